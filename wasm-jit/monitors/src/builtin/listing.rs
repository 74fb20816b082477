//! The text of a module, by instruction.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
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
    /// In the order of the offsets in the module, which fit: its size is limited to 1 GiB.
    numbers: Vec<(u32, u32)>,
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
            let at = self.numbers.binary_search_by_key(&offset, |(offset, _)| (*offset).into()).ok()?;
            Some(self.numbers[at].1)
        };
        line(offset).or_else(|| line(0))
    }
}

struct Counted {
    line: u32,
    numbers: Vec<(u32, u32)>,
}

impl Print for Counted {
    fn write_str(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn start_line(&mut self, offset: Option<u64>) {
        self.line += 1;
        self.numbers.extend(offset.map(|offset| (offset as u32, self.line)));
    }
}

/// Writes the text of a module with a figure before each instruction that has one. `figure` is
/// called with a function, and an offset from the start of its body.
///
/// # Errors
/// Any error that `out` returns.
pub(super) fn write_annotated(
    module: &Module,
    figure: impl Fn(u32, u32) -> Option<u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let bodies =
        module.functions().filter_map(|function| Some((function.body()?.range().start, function.index())));
    let mut annotated = Annotated {
        module,
        bodies: bodies.collect(),
        figure,
        of: None,
        figures: Vec::new(),
        out,
        margin: String::new(),
        is_at_end_of_line: false,
    };
    // A compiled module can be printed.
    if let Err(error) = wasmprinter::Config::new().print(module.bytes(), &mut annotated)
        && let Ok(error) = error.downcast::<io::Error>()
    {
        return Err(error);
    }
    if annotated.is_at_end_of_line { Ok(()) } else { annotated.write_str("\n") }
}

/// Prefixes lines with figures.
struct Annotated<'a, F> {
    module: &'a Module,
    /// The starts of the bodies in the module, in ascending order, and the functions.
    bodies: Vec<(usize, u32)>,
    figure: F,
    /// The function of the figures.
    of: Option<u32>,
    /// Those of one function, by offset in the module, in ascending order.
    figures: Vec<(u64, u64)>,
    out: &'a mut dyn Write,
    /// What is to be written before the current line.
    margin: String,
    is_at_end_of_line: bool,
}

impl<F: Fn(u32, u32) -> Option<u64>> Annotated<'_, F> {
    /// The figure of the instruction at this offset in the module.
    fn figure(&mut self, offset: u64) -> Option<u64> {
        let at = self.bodies.partition_point(|(start, _)| *start as u64 <= offset).checked_sub(1)?;
        let function = self.bodies[at].1;
        if self.of.replace(function) != Some(function) {
            self.figures = self.figures_of(function);
        }
        let at = self.figures.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(self.figures[at].1)
    }

    fn figures_of(&self, function: u32) -> Vec<(u64, u64)> {
        let Some(info) = self.module.function(function) else { return Vec::new() };
        let Some(body) = info.body() else { return Vec::new() };
        let Range { start, end } = body.range();
        let figure = |offset: usize| (self.figure)(function, (offset - start) as u32);
        if body.locals().next().is_none() && body.instructions().nth(1).is_none() {
            // The `end` of an empty function has no line of its own.
            return figure(end - 1).map(|figure| (start as u64, figure)).into_iter().collect();
        }
        let offsets = body.instructions().map(|instruction| instruction.offset());
        offsets.filter_map(|offset| Some((offset as u64, figure(offset)?))).collect()
    }
}

impl<F: Fn(u32, u32) -> Option<u64>> Print for Annotated<'_, F> {
    fn write_str(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(self.margin.as_bytes())?;
        self.margin.clear();
        self.is_at_end_of_line = text.ends_with('\n');
        self.out.write_all(text.as_bytes())
    }

    fn start_line(&mut self, offset: Option<u64>) {
        self.margin = match offset.and_then(|offset| self.figure(offset)) {
            Some(figure) => format!("{figure:>15} "),
            None => " ".repeat(16),
        };
    }
}

#[cfg(test)]
mod tests {
    use wasm_jit::Engine;

    use super::*;
    use crate::pipe_in_tests::Pipe;

    /// A listing is not kept in memory, and one that cannot be written is an error.
    #[test]
    fn listings_are_written_by_line() {
        let text = "(module (func (param i32) (drop (i32.const 1))) (func) (func (local i32) nop))";
        let module = Module::new(&Engine::default(), text).unwrap();
        let mut written = Vec::new();
        write_annotated(&module, |function, offset| Some(u64::from(100 * function + offset)), &mut written)
            .unwrap();
        let lines: Vec<_> = String::from_utf8(written.clone()).unwrap().lines().map(str::to_owned).collect();
        let figures = lines.iter().filter_map(|line| line[..16].trim().parse::<u64>().ok());
        assert_eq!(figures.collect::<Vec<_>>(), [1, 3, 4, 101, 203, 204], "{lines:#?}");
        for taken in 0..=written.len() {
            let done = write_annotated(&module, |_, _| Some(0), &mut Pipe(taken));
            let failed = done.err().map(|error| error.kind());
            let expected = (taken < written.len()).then_some(io::ErrorKind::BrokenPipe);
            assert_eq!(failed, expected, "after {taken} bytes");
        }
    }

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
