//! What a module declares: everything but code and data.

use wasmparser::{FuncType, GlobalType, MemoryType, TableType};

use crate::vmctx::VmLayout;

/// The declarations of a module; in each list the imports come first.
#[derive(Debug, Default)]
pub(crate) struct ModuleInfo {
    /// Function types, by type index.
    pub types: Vec<FuncType>,
    /// The engine-wide id of each of them: equal types have equal ids. Whoever has the module keeps them in use.
    pub type_ids: Vec<u32>,
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
}

impl ModuleInfo {
    pub(crate) fn function_type(&self, function: u32) -> &FuncType {
        &self.types[self.functions[function as usize] as usize]
    }

    pub(crate) fn layout(&self) -> VmLayout {
        VmLayout::new(self)
    }
}
