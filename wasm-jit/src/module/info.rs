//! What a module declares: everything but code and data.

use wasmparser::{FuncType, GlobalType, MemoryType, TableType};

use crate::engine::TypeId;
use crate::vmctx::VmLayout;

/// Settings of the engine that code depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodeSettings {
    /// Accesses to memories compare the address with the memory's length: what lies behind it may be anything.
    pub checks_bounds: bool,
    /// Indices that are compared with a bound are made 0 behind the comparison where they are beyond it: the processor may go on in
    /// the wrong direction for a while.
    pub masks_indices: bool,
}

/// The declarations of a module; in each list the imports come first.
#[derive(Debug, Default)]
pub(crate) struct ModuleInfo {
    /// Function types, by type index.
    pub types: Vec<FuncType>,
    /// The engine-wide id of each of them: equal types have equal ids.
    pub type_ids: Vec<TypeId>,
    /// Type index of every function.
    pub functions: Vec<u32>,
    pub imported_functions: u32,
    pub tables: Vec<TableType>,
    pub imported_tables: u32,
    pub memories: Vec<MemoryType>,
    pub imported_memories: u32,
    pub globals: Vec<GlobalType>,
    pub imported_globals: u32,
    /// Type index of every tag.
    pub tags: Vec<u32>,
    pub imported_tags: u32,
    pub settings: CodeSettings,
}

impl ModuleInfo {
    pub(crate) fn function_type(&self, function: u32) -> &FuncType {
        &self.types[self.functions[function as usize] as usize]
    }

    pub(crate) fn layout(&self) -> VmLayout {
        VmLayout::new(self)
    }
}
