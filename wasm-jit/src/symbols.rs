//! [`Symbols`]: names and source lines for reports.

use std::collections::HashMap;

use crate::code::sections::{Sections, demangle, printable};
use crate::module::{FunctionInfo, Item, Module};
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

    /// The names of all functions in the order of their indices, imports first, each as
    /// [`Symbols::unescaped_function`] returns it. Several functions may have one name.
    pub fn function_names(&self) -> impl Iterator<Item = String> + '_ {
        let imports = self.parsed().imports.iter();
        let mut imports = imports.filter(|import| matches!(import.item, Item::Func(_)));
        let mut exports: HashMap<u32, &str> = HashMap::new();
        for (name, item) in &self.parsed().exports {
            if let Item::Func(index) = item {
                exports.entry(*index).or_insert(name);
            }
        }
        self.functions().map(move |function| {
            let index = function.index();
            // Imports come first.
            let import = imports.next().map(|import| (&*import.module, &*import.name));
            let export = || exports.get(&index).copied();
            unescaped_name(function.name(), || import, export).unwrap_or_else(|| unnamed(index))
        })
    }
}

impl FunctionInfo<'_> {
    /// The function's name as reports show it: see [`Symbols::function`].
    pub fn display_name(&self) -> String {
        self.shown_name().unwrap_or_else(|| unnamed(self.index()))
    }

    /// As [`display_name`](Self::display_name), but control characters are not escaped.
    pub fn unescaped_display_name(&self) -> String {
        self.unescaped_name().unwrap_or_else(|| unnamed(self.index()))
    }

    fn shown_name(&self) -> Option<String> {
        self.unescaped_name().map(|name| printable(&name).into_owned())
    }

    fn unescaped_name(&self) -> Option<String> {
        let import = || self.import().map(|import| (import.module(), import.name()));
        unescaped_name(self.name(), import, || self.exports().next())
    }
}

/// A function's name, given its name in the name section, the module and name of its import, and
/// the name of its export.
fn unescaped_name<'a>(
    name: Option<&'a str>,
    import: impl FnOnce() -> Option<(&'a str, &'a str)>,
    export: impl FnOnce() -> Option<&'a str>,
) -> Option<String> {
    let imported = || import().map(|(module, name)| format!("{module}::{name}"));
    name.map(demangle).or_else(imported).or_else(|| export().map(str::to_owned))
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
