//! [`Symbols`]: names and source lines for reports.

use crate::code::sections::{Sections, demangle, printable};
use crate::module::{FunctionInfo, Module};
use crate::trap::{FrameSymbol, Lines};

/// Names of a module's functions, and the source of its instructions, as backtraces show them.
///
/// Source lines are read from DWARF in the module when they are looked up. The amount that is read
/// is bounded by a multiple of the size of the DWARF; if reading would exceed it, there are no
/// lines.
///
/// ```
/// use wasm_jit::{Engine, Module};
///
/// let module = Module::new(&Engine::default(), "(module
///     (import \"host\" \"print\" (func)) (func $_ZN3abc3addEii) (func))")?;
/// let symbols = module.symbols();
/// let names: Vec<_> = (0..3).map(|function| symbols.function(function)).collect();
/// assert_eq!(names, ["host::print", "abc::add(int, int)", "function[2]"]);
/// assert!(symbols.lookup(1, 0).is_empty(), "there is no DWARF");
/// # Ok::<(), wasm_jit::Error>(())
/// ```
pub struct Symbols<'m> {
    module: &'m Module,
    lines: Option<Lines<'m>>,
}

impl Module {
    /// The names of the module's functions, and the source lines of its instructions.
    pub fn symbols(&self) -> Symbols<'_> {
        Symbols { module: self, lines: Lines::of(&Sections::of(self.bytes())) }
    }
}

impl FunctionInfo<'_> {
    /// The function's name as reports show it: see [`Symbols::function`].
    pub fn display_name(&self) -> String {
        self.shown_name().unwrap_or_else(|| unnamed(self.index()))
    }

    fn shown_name(&self) -> Option<String> {
        self.unescaped_name().map(|name| printable(&name).into_owned())
    }

    fn unescaped_name(&self) -> Option<String> {
        let import = || self.import().map(|import| format!("{}::{}", import.module(), import.name()));
        let export = || self.exports().next().map(str::to_owned);
        self.name().map(demangle).or_else(import).or_else(export)
    }
}

fn unnamed(index: u32) -> String {
    format!("function[{index}]")
}

impl Symbols<'_> {
    /// A name for the function with this index (imports are counted): its name in the name section,
    /// demangled and without control characters; without one, `module::name` for an import, the
    /// name of the export for an exported function, and else `function[INDEX]`.
    pub fn function(&self, index: u32) -> String {
        let name = self.module.function(index).and_then(|function| function.shown_name());
        name.unwrap_or_else(|| unnamed(index))
    }

    /// As [`function`](Self::function), but control characters are not escaped: for formats that
    /// programs read.
    pub fn unescaped_function(&self, index: u32) -> String {
        let name = self.module.function(index).and_then(|function| function.unescaped_name());
        name.unwrap_or_else(|| unnamed(index))
    }

    /// The source positions of the instruction at this offset from the start of a function's body,
    /// innermost first: more than one if calls were inlined, none if the module has no DWARF for
    /// it.
    pub fn lookup(&self, function: u32, offset: u32) -> Vec<FrameSymbol> {
        let body = self.module.function(function).and_then(|function| function.body());
        let position = body.and_then(|body| (body.range().start as u64).checked_add(offset.into()));
        let found = self.lines.as_ref().zip(position).map(|(lines, position)| lines.symbols(position));
        found.unwrap_or_default()
    }

    /// Whether the module has DWARF that can be read.
    pub fn has_lines(&self) -> bool {
        self.lines.is_some()
    }
}

impl std::fmt::Debug for Symbols<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbols").field("has_lines", &self.has_lines()).finish_non_exhaustive()
    }
}
