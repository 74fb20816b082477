//! What the names of functions, lines and places denote.

use std::collections::BTreeSet;

use wasm_jit::probes::{Location, Place};

use crate::Error;
use crate::code::{Code, number};
use crate::dwarf::index::Function;

/// The names that compilers give a program's main function.
const MAIN: [&str; 3] = ["__original_main", "__main_argc_argv", "__main_void"];

/// A function by its name: there may be several with the same one.
#[derive(Debug, Default)]
struct Named {
    functions: BTreeSet<u32>,
    /// Where calls to it were inlined.
    inlined: BTreeSet<Location>,
}

impl Code {
    /// The name of a function, as in backtraces; that of the source for the main function, to which
    /// compilers give other names.
    pub fn name(&self, function: u32) -> String {
        self.of_symbol(function, self.module().symbols().function(function))
    }

    fn of_symbol(&self, function: u32, name: String) -> String {
        let is_main = MAIN.contains(&name.as_str())
            && self.source_of(function).is_some_and(|source| source.path == "main");
        if is_main { "main".to_owned() } else { name }
    }

    /// The names of the functions that the module defines, without parameters, and of those of the
    /// source that have code.
    pub fn function_names(&self) -> Vec<String> {
        let symbols = self.module().symbols();
        let own = self.own_functions().map(|function| self.of_symbol(function, symbols.function(function)));
        let own = own.map(|name| name.split('(').next().unwrap_or_default().to_owned());
        let own = own.filter(|name| !name.contains(' '));
        let source = self.dwarf().into_iter().flat_map(|dwarf| dwarf.index().function_names());
        own.chain(source.map(str::to_owned)).collect()
    }

    /// The source of a function.
    fn source_of(&self, function: u32) -> Option<&Function> {
        let dwarf = self.dwarf()?;
        dwarf.index().function_at(self.start(function).checked_sub(dwarf.code_start)?)
    }

    /// The function with this name, index (`21`, `#21`, `func[21]`) or exported name that the
    /// module defines. A name is the one in the name section, the demangled one, with or without
    /// parameters, or that of the source; components before it may be omitted.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Ambiguous`], [`Error::Removed`].
    pub fn function(&self, name: &str) -> Result<u32, Error> {
        let found = self.named(name)?;
        let mut functions = found.functions.iter();
        match (functions.next(), functions.next()) {
            (Some(function), None) => Ok(*function),
            (None, _) => Err(unknown(name)),
            _ => Err(self.ambiguous(name, found.functions.iter().map(|function| self.labelled(*function)))),
        }
    }

    fn labelled(&self, function: u32) -> String {
        format!("#{function} ({})", self.module().symbols().function(function))
    }

    fn ambiguous(&self, name: &str, found: impl Iterator<Item = String>) -> Error {
        let found: Vec<String> = found.take(5).collect();
        Error::Ambiguous { name: name.to_owned(), found: found.join(", ") }
    }

    fn named(&self, name: &str) -> Result<Named, Error> {
        let exact = |function: &u32| {
            self.module().function(*function).is_some_and(|function| {
                function.name() == Some(name) || function.exports().any(|export| export == name)
            })
        };
        let exact = self.own_functions().find(exact);
        let in_brackets = |text: &str| text.strip_suffix(']').and_then(|text| text.parse().ok());
        let index = name.strip_prefix('#').unwrap_or(name).parse().ok();
        let index =
            index.or_else(|| in_brackets(name.strip_prefix("func[").or(name.strip_prefix("function["))?));
        if let (None, Some(index)) = (exact, index) {
            return if self.has_body(index) { Ok(self.of_function(index)) } else { Err(unknown(name)) };
        }
        let sources = self.dwarf().map(|dwarf| dwarf.index().functions(name)).unwrap_or_default();
        let with_code: Vec<&Function> = sources.iter().copied().filter(|source| source.has_code()).collect();
        let same: Vec<&Function> =
            with_code.iter().copied().filter(|source| source.path == name.trim_start_matches("::")).collect();
        let paths: BTreeSet<&str> = with_code.iter().map(|source| source.path.as_str()).collect();
        match exact {
            // A function without a source may be the one that calls the main function.
            Some(function) if self.source_of(function).is_some() || paths.len() != 1 => {
                let mut found = self.of_function(function);
                self.add_sources(&same, &mut found);
                return Ok(found);
            }
            _ => {}
        }
        let mut found = Named::default();
        if !same.is_empty() {
            self.add_sources(&same, &mut found);
        } else if paths.len() == 1 {
            self.add_sources(&with_code, &mut found);
        } else {
            let symbols = self.symbols_named(name);
            match (&symbols[..], paths.len()) {
                ([function], _) => found = self.of_function(*function),
                ([], 0) if !sources.is_empty() => return Err(Error::Removed { name: name.to_owned() }),
                ([], 0) => return Err(unknown(name)),
                ([], _) => return Err(self.ambiguous(name, paths.into_iter().map(str::to_owned))),
                _ => return Err(self.ambiguous(name, symbols.iter().map(|of| self.labelled(*of)))),
            }
        }
        Ok(found)
    }

    /// The functions with this demangled name, with or without parameters, or its last component.
    fn symbols_named(&self, name: &str) -> Vec<u32> {
        let symbols = self.module().symbols();
        let is_it = |function: &u32| {
            let full = symbols.function(*function);
            let short = full.split(['(', '<']).next().unwrap_or_default();
            full == name || short == name || short.rsplit("::").next() == Some(name)
        };
        self.own_functions().filter(is_it).collect()
    }

    /// A function with the copies of it that were inlined.
    fn of_function(&self, function: u32) -> Named {
        let mut found = Named::default();
        if let Some(source) = self.source_of(function) {
            self.add_inlined(source, &mut found);
        }
        found.functions.insert(function);
        found
    }

    fn add_sources(&self, sources: &[&Function], found: &mut Named) {
        let Some(dwarf) = self.dwarf() else { return };
        for source in sources {
            let starts = source.starts.iter().map(|start| dwarf.code_start + start);
            found.functions.extend(starts.filter_map(|start| self.containing(start)));
            self.add_inlined(source, found);
        }
    }

    fn add_inlined(&self, source: &Function, found: &mut Named) {
        let Some(dwarf) = self.dwarf() else { return };
        let starts = source.inlined.iter().map(|start| dwarf.code_start + start);
        found.inlined.extend(starts.filter_map(|start| self.at_or_after(start)));
    }

    /// The function whose body contains an offset in the module.
    pub(crate) fn containing(&self, offset: u64) -> Option<u32> {
        // The bodies are in the order of the functions.
        let functions = self.own_functions();
        let (mut first, mut end) = (functions.start, functions.end);
        while first < end {
            let middle = first + (end - first) / 2;
            let range = self.module().function(middle)?.body()?.range();
            if offset < range.start as u64 {
                end = middle;
            } else if offset >= range.end as u64 {
                first = middle + 1;
            } else {
                return Some(middle);
            }
        }
        None
    }

    /// The first instruction of a function at an offset in the module, or after it.
    fn at_or_after(&self, offset: u64) -> Option<Location> {
        let function = self.containing(offset)?;
        let wanted = (offset - self.start(function)) as u32;
        let body = self.body(function).ok()?;
        let offset = *body.offsets.get(body.offsets.partition_point(|offset| *offset < wanted))?;
        Some(Location { function, place: Place::Instruction { offset } })
    }

    /// The locations that a text denotes:
    ///
    /// - `FUNCTION`, as for [`Code::function`]: the start of each function with this name, and of
    ///   each copy of it that was inlined. A number alone is an index only if no lines are known.
    /// - `FUNCTION:+OFFSET`, from the start of its body.
    /// - `*OFFSET` in the module, as in backtraces.
    /// - `FILE:LINE`.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Ambiguous`], [`Error::Removed`], [`Error::NoInstruction`].
    pub fn places(&self, text: &str) -> Result<Vec<Location>, Error> {
        let expected = "FUNCTION, #INDEX, FUNCTION:+OFFSET, *OFFSET or FILE:LINE";
        let wrong = || Error::Syntax { text: text.to_owned(), expected };
        if let Some(offset) = text.strip_prefix('*') {
            return Ok(vec![self.at(number(offset).ok_or_else(wrong)?)?]);
        }
        if let Some((function, offset)) = text.rsplit_once(":+") {
            let function = self.function(function)?;
            let offset = number(offset).ok_or_else(wrong)?;
            return Ok(vec![self.at(self.start(function).saturating_add(offset))?]);
        }
        let line = text.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse::<u32>().ok()?)));
        if let Some((file, line)) = line.filter(|(file, _)| !file.ends_with(':')) {
            return self.places_of_line(file, line);
        }
        if text.parse::<u32>().is_ok() && self.dwarf().is_some() {
            let found = format!("#{text} is the function with this index, FILE:{text} a line");
            return Err(Error::Ambiguous { name: text.to_owned(), found });
        }
        let found = self.named(text)?;
        let starts = found.functions.iter().map(|function| self.first(*function));
        let mut places = starts.collect::<Result<Vec<Location>, Error>>()?;
        let inlined: Vec<Location> = found.inlined.into_iter().filter(|at| !places.contains(at)).collect();
        places.extend(inlined);
        Ok(places)
    }

    fn places_of_line(&self, file: &str, line: u32) -> Result<Vec<Location>, Error> {
        let unknown = |what, name| Err(Error::Unknown { what, name });
        let Some(dwarf) = self.dwarf() else {
            let what = "source line in a module without debugging information";
            return unknown(what, format!("{file}:{line}"));
        };
        if !dwarf.has_file(file) {
            return unknown("source file", file.to_owned());
        }
        let mut places: Vec<Location> = Vec::new();
        for offset in dwarf.offsets(file, line) {
            let Some(function) = self.containing(offset) else { continue };
            // The first location in each function.
            if places.iter().any(|place| place.function == function) {
                continue;
            }
            // If the line is that of its declaration, a function begins after its prologue. Such
            // a line may begin before the first instruction, where the locals are declared.
            let first = self.body(function)?.offsets.first().copied();
            if first.is_some_and(|first| offset <= self.start(function) + u64::from(first)) {
                places.push(self.first(function)?);
            } else if let Ok(location) = self.at(offset) {
                places.push(location);
            }
        }
        if places.is_empty() {
            return unknown("code of the source line", format!("{file}:{line}"));
        }
        Ok(places)
    }
}

fn unknown(name: &str) -> Error {
    Error::Unknown { what: "function with code", name: name.to_owned() }
}
