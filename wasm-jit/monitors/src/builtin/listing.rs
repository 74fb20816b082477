//! The text of a module, by instruction.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;
use std::ops::Range;

use wasm_jit::Module;
use wasmprinter::Print;

use super::excerpt::{Excerpt, Excerpts};
use crate::{Cell, Program};

/// The text lines of a module's instructions.
#[derive(Default)]
pub(super) struct Listing {
    /// The lines of all instructions, concatenated, without indentation.
    texts: String,
    /// Indexed by the offset in the module.
    by_offset: HashMap<u64, Range<u32>>,
}

/// Number of bytes of bodies that are printed together.
const PORTION: usize = 1 << 20;

impl Listing {
    /// The lines of some instructions, given by functions and offsets from the start of their
    /// bodies.
    pub(super) fn of(module: &Module, instructions: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (function, offset) in instructions {
            wanted.entry(function).or_default().push(offset);
        }
        let mut listing = Self::default();
        if wanted.is_empty() {
            return listing;
        }
        wanted.values_mut().for_each(|offsets| offsets.sort_unstable());
        let excerpts = Excerpts::of(module);
        let (mut portion, mut size) = (Vec::new(), 0);
        for function in wanted.keys() {
            portion.push(*function);
            size += start_and_length(module, *function).map_or(0, |(_, length)| length);
            if size >= PORTION {
                listing.add(module, &excerpts.excerpt(&portion), &wanted);
                portion.clear();
                size = 0;
            }
        }
        listing.add(module, &excerpts.excerpt(&portion), &wanted);
        listing
    }

    /// The lines of all instructions of a function.
    pub(super) fn of_function(module: &Module, excerpts: &Excerpts, function: u32) -> Self {
        let mut listing = Self::default();
        let body = module.function(function).and_then(|function| function.body());
        if let Some(body) = body {
            let start = body.range().start;
            let offsets = body.instructions().map(|instruction| (instruction.offset() - start) as u32);
            let wanted = BTreeMap::from([(function, offsets.collect())]);
            listing.add(module, &excerpts.excerpt(&[function]), &wanted);
        }
        listing
    }

    fn add(&mut self, module: &Module, excerpt: &Excerpt, wanted: &BTreeMap<u32, Vec<u32>>) {
        let mut lines = Lines { module, excerpt, wanted, current: None, start: 0, listing: self };
        // The bodies were validated, so they can be printed.
        let _ = wasmprinter::Config::new().print(&excerpt.bytes, &mut lines);
        lines.finish();
    }

    /// An instruction as a cell of a table.
    pub(super) fn cell(&self, program: &Program<'_>, function: u32, offset: u32) -> Cell {
        self.text(program.module, function, offset).map_or(Cell::None, |text| program.text(text))
    }

    /// An instruction, by its offset from the start of the function's body. The printer has a
    /// parenthesis for the `end` of a function, and no line if there is nothing else.
    pub(super) fn text(&self, module: &Module, function: u32, offset: u32) -> Option<&str> {
        if is_end(module, function, offset) {
            return Some("end");
        }
        let Range { start, end } = *self.by_offset.get(&in_module(module, function, offset)?)?;
        self.texts.get(start as usize..end as usize)
    }
}

/// The offset of a function's body in the module, and its length.
fn start_and_length(module: &Module, function: u32) -> Option<(usize, usize)> {
    let range = module.function(function)?.body()?.range();
    Some((range.start, range.len()))
}

/// The offset in the module of an instruction.
fn in_module(module: &Module, function: u32, offset: u32) -> Option<u64> {
    Some(start_and_length(module, function)?.0 as u64 + u64::from(offset))
}

/// Whether this is the `end` of a function.
fn is_end(module: &Module, function: u32, offset: u32) -> bool {
    start_and_length(module, function).is_some_and(|(_, length)| offset as usize + 1 == length)
}

/// Collects the wanted lines of an excerpt.
struct Lines<'a> {
    module: &'a Module,
    excerpt: &'a Excerpt,
    /// Offsets by function, in ascending order.
    wanted: &'a BTreeMap<u32, Vec<u32>>,
    /// The offset in the module of the instruction whose line is being printed, if it is wanted.
    current: Option<u64>,
    /// The start of the line in the output.
    start: usize,
    listing: &'a mut Listing,
}

impl Lines<'_> {
    /// The offset in the module of a wanted instruction, given its offset in the excerpt.
    fn wanted(&self, offset: u64) -> Option<u64> {
        let bodies = &self.excerpt.bodies;
        let at = bodies.partition_point(|(_, start)| *start as u64 <= offset).checked_sub(1)?;
        let (function, start) = bodies[at];
        let of_function = u32::try_from(offset - start as u64).ok()?;
        self.wanted.get(&function)?.binary_search(&of_function).ok()?;
        in_module(self.module, function, of_function)
    }

    /// Ends the current line.
    fn finish(&mut self) {
        let Some(offset) = self.current.take() else { return };
        let texts = &mut self.listing.texts;
        texts.truncate(texts.trim_end().len().max(self.start));
        // The text of a module has fewer than 4 GiB: the module's size is limited to 1 GiB.
        let text = self.start as u32..texts.len() as u32;
        self.listing.by_offset.insert(offset, text);
    }
}

impl Print for Lines<'_> {
    fn write_str(&mut self, text: &str) -> io::Result<()> {
        if self.current.is_some() {
            let texts = &mut self.listing.texts;
            // The indentation.
            let text = if texts.len() == self.start { text.trim_start() } else { text };
            texts.push_str(text);
        }
        Ok(())
    }

    fn start_line(&mut self, offset: Option<u64>) {
        self.finish();
        self.current = offset.and_then(|offset| self.wanted(offset));
        self.start = self.listing.texts.len();
    }
}

/// The line numbers of instructions in the text of a module, from 1.
pub(super) struct LineNumbers {
    /// In the order of the offsets in the module.
    numbers: Vec<(u64, u32)>,
}

impl LineNumbers {
    pub(super) fn of(module: &Module) -> Self {
        let mut counted = Counted { line: 0, numbers: Vec::new() };
        // A compiled module can be printed.
        let _ = wasmprinter::Config::new().print(module.bytes(), &mut counted);
        counted.numbers.sort_unstable();
        Self { numbers: counted.numbers }
    }

    /// The line of an instruction, given its offset from the start of the function's body. The end
    /// of an empty body is on the line of the function.
    pub(super) fn get(&self, module: &Module, function: u32, offset: u32) -> Option<u32> {
        let line = |offset: u32| {
            let offset = in_module(module, function, offset)?;
            let at = self.numbers.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
            Some(self.numbers[at].1)
        };
        line(offset).or_else(|| line(0))
    }
}

struct Counted {
    line: u32,
    numbers: Vec<(u64, u32)>,
}

impl Print for Counted {
    fn write_str(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn start_line(&mut self, offset: Option<u64>) {
        self.line += 1;
        self.numbers.extend(offset.map(|offset| (offset, self.line)));
    }
}

/// The text of a module with a figure before each instruction that has one. `figure` is called with
/// a function, and an offset from the start of its body.
pub(super) fn annotated(module: &Module, figure: impl Fn(u32, u32) -> Option<u64>) -> String {
    // In the order of their offsets in the module.
    let mut figures: Vec<(u64, u64)> = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        let start = body.range().start;
        let figure = |offset: usize| figure(function.index(), (offset - start) as u32);
        if body.locals().next().is_none() && body.instructions().nth(1).is_none() {
            // The `end` of an empty function has no line of its own.
            let end = body.range().end - 1;
            figures.extend(figure(end).map(|figure| (start as u64, figure)));
            continue;
        }
        figures.extend(body.instructions().filter_map(|instruction| {
            let offset = instruction.offset();
            Some((offset as u64, figure(offset)?))
        }));
    }
    let mut annotated = Annotated { figures, text: String::new() };
    let _ = wasmprinter::Config::new().print(module.bytes(), &mut annotated);
    if !annotated.text.ends_with('\n') {
        annotated.text.push('\n');
    }
    annotated.text
}

/// Prefixes lines with figures.
struct Annotated {
    figures: Vec<(u64, u64)>,
    text: String,
}

impl Print for Annotated {
    fn write_str(&mut self, text: &str) -> io::Result<()> {
        self.text.push_str(text);
        Ok(())
    }

    fn start_line(&mut self, offset: Option<u64>) {
        let at = offset.and_then(|offset| self.figures.binary_search_by_key(&offset, |known| known.0).ok());
        match at {
            Some(at) => _ = write!(self.text, "{:>15} ", self.figures[at].1),
            None => _ = write!(self.text, "{:16}", ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use wasm_jit::Engine;

    use super::*;

    /// The text and the line number of each instruction lead to the same line of the module's text.
    #[test]
    fn texts_and_line_numbers_agree() {
        let nops = "nop ".repeat(PORTION + 1);
        let text = format!(
            "(module (memory 1) (data (i32.const 0) \"x\")
                (func $long (param $p i32) {nops} (drop (i32.const 1)))
                (func $longer {nops} (drop (i32.const 2)))
                (func $locals (param i32) (result i32) (local $a i32) (local i64)
                    (if (result i32) (local.get 0) (then (i32.const 3)) (else (local.get $a)))))"
        );
        let module = Module::new(&Engine::default(), text.as_bytes()).unwrap();
        let printed = wasmprinter::print_bytes(module.bytes()).unwrap();
        let lines: Vec<&str> = printed.lines().map(str::trim).collect();
        let all: Vec<(u32, u32)> = module
            .functions()
            .flat_map(|function| {
                let body = function.body().unwrap();
                let start = body.range().start;
                let offsets = body.instructions().map(|instruction| (instruction.offset() - start) as u32);
                offsets.map(|offset| (function.index(), offset)).collect::<Vec<_>>()
            })
            // Keeps only a few equal instructions.
            .filter(|(_, offset)| *offset < 10 || *offset as usize > PORTION)
            .collect();
        let listing = Listing::of(&module, all.iter().copied());
        let numbers = LineNumbers::of(&module);
        for (function, offset) in &all {
            let number = numbers.get(&module, *function, *offset).expect("each instruction has a line");
            let text = listing.text(&module, *function, *offset);
            let line = if text == Some("end") { "end" } else { lines[number as usize - 1] };
            assert_eq!(text, Some(line), "{function} {offset}");
        }
        assert!(all.len() > 25, "{}", all.len());
    }
}
