//! The text of a module, by instruction.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io;
use std::ops::Range;

use wasm_jit::Module;
use wasmprinter::Print;

use crate::{Cell, Program};

/// Instructions of a module as lines of its text.
pub(super) struct Listing {
    /// The lines of all instructions one behind the other, without indentation.
    texts: String,
    by_offset: HashMap<u64, Line>,
}

struct Line {
    /// From 1.
    number: u32,
    text: Range<u32>,
}

/// Collects the lines that are wanted.
struct Lines<'a> {
    wanted: &'a HashSet<u64>,
    /// Lines that have begun.
    begun: u32,
    /// The offset of the instruction whose line is being printed, if it is wanted.
    current: Option<u64>,
    /// Where the line's text begins.
    start: usize,
    listing: &'a mut Listing,
}

impl Listing {
    /// The lines of some instructions: functions, and offsets from the start of their bodies.
    pub(super) fn of(module: &Module, instructions: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut listing = Self { texts: String::new(), by_offset: HashMap::new() };
        let wanted = instructions.into_iter();
        let wanted = wanted.filter_map(|(function, offset)| in_module(module, function, offset)).collect();
        let mut lines = Lines { wanted: &wanted, begun: 0, current: None, start: 0, listing: &mut listing };
        // A module that was compiled can be printed.
        let _ = wasmprinter::Config::new().print(module.bytes(), &mut lines);
        lines.finish();
        listing
    }

    /// An instruction as a cell of a table.
    pub(super) fn cell(&self, program: &Program<'_>, function: u32, offset: u32) -> Cell {
        self.text(program.module, function, offset).map_or(Cell::None, |text| program.text(text))
    }

    /// An instruction, by its offset from the start of the function's body.
    pub(super) fn text(&self, module: &Module, function: u32, offset: u32) -> Option<&str> {
        let Range { start, end } = self.by_offset.get(&in_module(module, function, offset)?)?.text;
        self.texts.get(start as usize..end as usize)
    }

    /// The line of an instruction, from 1, by its offset from the start of the function's body.
    pub(super) fn line(&self, module: &Module, function: u32, offset: u32) -> Option<u32> {
        Some(self.by_offset.get(&in_module(module, function, offset)?)?.number)
    }
}

/// The offset in the module of an instruction.
fn in_module(module: &Module, function: u32, offset: u32) -> Option<u64> {
    let body = module.function(function)?.body()?;
    Some(body.range().start as u64 + u64::from(offset))
}

impl Lines<'_> {
    /// The current line has ended.
    fn finish(&mut self) {
        let Some(offset) = self.current.take() else { return };
        let texts = &mut self.listing.texts;
        texts.truncate(texts.trim_end().len().max(self.start));
        // The text of a module has fewer than 4 GiB: the module's size is limited to 1 GiB.
        let text = self.start as u32..texts.len() as u32;
        self.listing.by_offset.insert(offset, Line { number: self.begun, text });
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
        self.begun += 1;
        self.current = offset.filter(|offset| self.wanted.contains(offset));
        self.start = self.listing.texts.len();
    }
}

/// The text of a module with a figure in front of each instruction that has one. `figure` is called
/// with a function, and an offset from the start of its body.
pub(super) fn annotated(module: &Module, figure: impl Fn(u32, u32) -> Option<u64>) -> String {
    // In the order of their offsets in the module.
    let mut figures: Vec<(u64, u64)> = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        let start = body.range().start;
        figures.extend(body.instructions().filter_map(|instruction| {
            let offset = instruction.offset();
            Some((offset as u64, figure(function.index(), (offset - start) as u32)?))
        }));
    }
    let mut annotated = Annotated { figures, text: String::new() };
    let _ = wasmprinter::Config::new().print(module.bytes(), &mut annotated);
    if !annotated.text.ends_with('\n') {
        annotated.text.push('\n');
    }
    annotated.text
}

/// Puts figures in front of lines.
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
