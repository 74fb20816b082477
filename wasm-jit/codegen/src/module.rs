//! The declarations of a module: everything but code and data.

mod branch_hints;

use wasmparser::{FuncType, GlobalType, MemoryType, TableType};

pub use self::branch_hints::BranchHints;
pub(crate) use self::branch_hints::FunctionHints;
use crate::objects::{Composite, ModuleType, Storage, StructLayout};

/// The binary logarithm of the page size in bytes, unless a memory declares another one.
pub const PAGE_SIZE_LOG2: u8 = 16;

/// Settings of the engine that affect the generated code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeSettings {
    /// Accesses to all memories compare the address with the memory's length; nothing is assumed
    /// about addresses beyond it.
    pub checks_bounds: bool,
    /// Indices that are compared with a bound are set to 0 after the comparison if they exceed it,
    /// because the processor may speculatively continue past a mispredicted branch.
    pub masks_indices: bool,
    /// Relaxed vector operators have the results of single instructions of the processor, instead
    /// of results that are the same on all processors.
    pub relaxes_vectors: bool,
    /// The processor has AVX-512 with the extensions VL, DQ, BW and BITALG, and code uses it.
    pub uses_avx512: bool,
    /// Code subtracts its cost from the store's fuel, and traps when the fuel is used up.
    pub uses_fuel: bool,
    /// The sites of functions in their first compilation.
    pub sites: CompiledSites,
    /// The number of counters in a function that use stubs: with more of them, its versions count
    /// inline.
    pub counter_stubs: u32,
    /// The operands of direct calls are inside aligned quadwords, so that they can be changed while
    /// other threads execute the calls.
    pub patches_calls: bool,
}

/// Which locations of all functions have sites, as in [`Sites`](crate::Sites).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompiledSites {
    /// No location.
    #[default]
    None,
    /// Entries of functions.
    Functions,
    /// Entries of functions, and control instructions.
    Branches,
    /// Entries of functions, and all instructions.
    All,
}

/// The declarations of a module; in each list the imports come first.
#[derive(Debug, Default)]
pub struct ModuleInfo {
    /// The types, by type index.
    pub types: Vec<ModuleType>,
    /// The engine-wide id of each type: equal types have equal ids. The owner of the module keeps
    /// the ids in use. Code does not contain them: it reads them from its context.
    pub type_ids: Vec<u32>,
    /// The type index of each function, imports first.
    pub functions: Vec<u32>,
    /// The number of imported functions.
    pub imported_functions: u32,
    /// The type of each table, imports first.
    pub tables: Vec<TableType>,
    /// The number of imported tables.
    pub imported_tables: u32,
    /// The type of each memory, imports first.
    pub memories: Vec<MemoryType>,
    /// The number of imported memories.
    pub imported_memories: u32,
    /// The type of each global, imports first.
    pub globals: Vec<GlobalType>,
    /// The number of imported globals.
    pub imported_globals: u32,
    /// The type index of each tag, imports first.
    pub tags: Vec<u32>,
    /// The number of imported tags.
    pub imported_tags: u32,
    /// Hints which way branches most likely go.
    pub branch_hints: BranchHints,
    /// The engine's settings.
    pub settings: CodeSettings,
}

impl ModuleInfo {
    /// Whether accesses to a memory compare the address with the memory's length. 32-bit addresses
    /// need no comparison if all of them are reserved, in memories that end at the end of a system
    /// page.
    pub fn checks_bounds(&self, memory: u32) -> bool {
        let memory64 = self.memories[memory as usize].memory64;
        self.settings.checks_bounds || memory64 || self.page_size_log2(memory) != PAGE_SIZE_LOG2
    }

    /// The binary logarithm of a memory's page size.
    pub fn page_size_log2(&self, memory: u32) -> u8 {
        self.memories[memory as usize].page_size_log2.map_or(PAGE_SIZE_LOG2, |log2| log2 as u8)
    }

    /// The type of the function with this index, including imports.
    pub fn function_type(&self, function: u32) -> &FuncType {
        self.func_type(self.functions[function as usize])
    }

    /// The type of a tag, as a function type.
    pub fn tag_type(&self, tag: u32) -> &FuncType {
        self.func_type(self.tags[tag as usize])
    }

    /// The function type of this index.
    ///
    /// # Panics
    /// If the type is not a function type. The next two methods panic likewise if the type is not
    /// of their kind.
    pub fn func_type(&self, index: u32) -> &FuncType {
        self.types[index as usize].func().expect("validated: a type of functions")
    }

    /// The layout of the structures of the type of this index.
    pub fn struct_layout(&self, index: u32) -> &StructLayout {
        match &self.types[index as usize].composite {
            Composite::Struct(layout) => layout,
            _ => panic!("validated: a type of structures"),
        }
    }

    /// How the elements of the arrays of this type are stored.
    pub fn array_element(&self, index: u32) -> Storage {
        match self.types[index as usize].composite {
            Composite::Array(element) => element,
            _ => panic!("validated: a type of arrays"),
        }
    }
}
