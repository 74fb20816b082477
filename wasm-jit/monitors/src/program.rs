//! [`Program`]: what reports say about the observed module.

use wasm_jit::{Module, Symbols};

use crate::report::Cell;

/// The module that is observed, with its names and source lines.
#[derive(Debug)]
pub struct Program<'m> {
    /// The module.
    pub module: &'m Module,
    /// Names and source lines.
    pub symbols: Symbols<'m>,
}

impl<'m> Program<'m> {
    /// A module.
    pub fn new(module: &'m Module) -> Self {
        Self { module, symbols: module.symbols() }
    }

    /// A function's name.
    pub fn name(&self, function: u32) -> Cell {
        Cell::Text(self.symbols.function(function))
    }

    /// The offset in the module of an instruction, as backtraces show it, by its offset from the
    /// start of the function's body.
    pub fn offset(&self, function: u32, offset: u32) -> Cell {
        let body = self.module.function(function).and_then(|function| function.body());
        body.map_or(Cell::None, |body| Cell::Hex(body.range().start as u64 + u64::from(offset)))
    }

    /// The source line of an instruction, `FILE:LINE`, or nothing.
    pub fn line(&self, function: u32, offset: u32) -> Cell {
        let found = self.symbols.lookup(function, offset);
        let line = found.first().and_then(|symbol| Some((symbol.file()?, symbol.line()?)));
        line.map_or(Cell::None, |(file, line)| Cell::Text(format!("{file}:{line}")))
    }
}
