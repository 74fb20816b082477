//! [`Program`]: names and source lines of the observed module, for reports.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wasm_jit::{Module, Symbols};

use crate::names::Names;
use crate::report::Cell;

/// The observed module, with its names and source lines.
#[derive(Debug)]
pub struct Program<'m> {
    /// The observed module.
    pub module: &'m Module,
    /// The module's names and source lines.
    pub symbols: Symbols<'m>,
    unique: OnceCell<Names>,
    /// The names of the functions that were requested so far.
    names: RefCell<HashMap<u32, Arc<str>>>,
    /// Texts that may be in many rows, each stored once.
    texts: RefCell<HashSet<Arc<str>>>,
}

impl<'m> Program<'m> {
    /// Prepares the names and source lines of a module.
    pub fn new(module: &'m Module) -> Self {
        let (unique, names, texts) = Default::default();
        Self { module, symbols: module.symbols(), unique, names, texts }
    }

    /// The name of a function, by its index: that of [`Symbols::unescaped_function`], followed by
    /// `#INDEX` if several functions of the module have it. Control characters are escaped only
    /// when the cell is printed as text.
    pub fn name(&self, function: u32) -> Cell {
        Cell::Text(self.function_name(function))
    }

    /// The text of [`name`](Self::name).
    pub fn function_name(&self, function: u32) -> Arc<str> {
        let name = || {
            let unique = self.unique.get_or_init(|| Names::of(self.module));
            unique.complete(function, self.symbols.unescaped_function(function)).into()
        };
        self.names.borrow_mut().entry(function).or_insert_with(name).clone()
    }

    /// A text that may be in many rows: it is stored only once.
    pub fn text(&self, text: &str) -> Cell {
        let mut texts = self.texts.borrow_mut();
        if let Some(known) = texts.get(text) {
            return Cell::Text(known.clone());
        }
        let text: Arc<str> = text.into();
        texts.insert(text.clone());
        Cell::Text(text)
    }

    /// The offset of an instruction in the module, as backtraces show it. `offset` is relative to
    /// the start of the function's body.
    pub fn offset(&self, function: u32, offset: u32) -> Cell {
        let body = self.module.function(function).and_then(|function| function.body());
        body.map_or(Cell::None, |body| Cell::Hex(body.range().start as u64 + u64::from(offset)))
    }

    /// The source line of an instruction as `FILE:LINE`, or nothing if it is not known. `offset` is
    /// relative to the start of the function's body.
    pub fn line(&self, function: u32, offset: u32) -> Cell {
        let found = self.symbols.lookup(function, offset);
        let line = found.first().and_then(|symbol| Some((symbol.file()?, symbol.line()?)));
        line.map_or(Cell::None, |(file, line)| self.text(&format!("{file}:{line}")))
    }
}
