//! The output of the compiler for a function.

/// Machine code of several functions, one after the other, not yet placed.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The machine code.
    pub code: Vec<u8>,
    /// The direct calls to link: the rel32 at `at` is relative to its end.
    pub calls: Vec<DirectCall>,
    /// The functions, in the order of their code.
    pub functions: Vec<CompiledFunction>,
}

/// A rel32 in a chunk that must be linked to the entry of a function.
#[derive(Clone, Copy, Debug)]
pub struct DirectCall {
    /// The offset of the rel32 in the chunk.
    pub at: u32,
    /// The index of the callee, including imports.
    pub function: u32,
}

/// One function's part of a chunk. All offsets are from the chunk's start.
#[derive(Debug)]
pub struct CompiledFunction {
    /// The function's index, including imports.
    pub index: u32,
    /// The target of calls: the prologue.
    pub entry: u32,
    /// Where the frame is complete: from here, `rbp` and `rsp` are those of the frame.
    pub body: u32,
    /// The end of the code.
    pub end: u32,
    /// Distance from the stack pointer in the body to `rbp`.
    pub frame_size: u32,
    /// The callee-saved registers that the function saves, as a set.
    pub saved: u32,
    /// The try regions, in the order of their starts in the code; an inner region follows the outer
    /// one.
    pub try_regions: Box<[TryRegion]>,
}

/// The code of the body of a `try_table` or `try`.
#[derive(Clone, Debug)]
pub struct TryRegion {
    /// The start of the region: a return address belongs to it if `start < address <= end`. The
    /// innermost region is searched first.
    pub start: u32,
    /// The last return address of the region.
    pub end: u32,
    /// The region in which the search continues if no catch matches: the enclosing one, or the one
    /// that `delegate` names.
    pub parent: Option<u32>,
    /// The region's handlers, in the order in which they are tried.
    pub catches: Box<[Catch]>,
}

/// A handler of exceptions. At the handler, `rbp` is the function's frame, `rsp` is
/// `rbp - frame_size`, `r14` and `r15` have their usual roles, and `rax` is the exception.
#[derive(Clone, Copy, Debug)]
pub struct Catch {
    /// The index of the tag of the exceptions to catch, or `None` for all.
    pub tag: Option<u32>,
    /// The code that receives the exception.
    pub handler: u32,
}

/// The code position of a Wasm instruction. Recorded only when a function is compiled again for an
/// observer.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The offset of the code in the chunk.
    pub code: u32,
    /// The offset of the instruction in the module, or [`Position::DATA`].
    pub wasm: u32,
}

impl Position {
    /// The value of `wasm` for data: jump tables and constants.
    pub const DATA: u32 = u32::MAX;
}
