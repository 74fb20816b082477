//! The output of the compiler for a function.

/// Machine code of several functions, one after the other, not yet placed.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The code.
    pub code: Vec<u8>,
    /// Direct calls to link: the rel32 at `at` is relative to its end.
    pub calls: Vec<DirectCall>,
    /// The functions, in the order of their code.
    pub functions: Vec<CompiledFunction>,
}

/// A rel32 in a chunk that must be linked to the entry of a function.
#[derive(Clone, Copy, Debug)]
pub struct DirectCall {
    /// Offset of the rel32.
    pub at: u32,
    /// The callee.
    pub function: u32,
}

/// One function's part of a chunk. All offsets are from the chunk's start.
#[derive(Debug)]
pub struct CompiledFunction {
    /// Function index, including imports.
    pub index: u32,
    /// The target of calls: the prologue.
    pub entry: u32,
    /// From here on `rbp` and `rsp` are those of the frame.
    pub body: u32,
    /// The end of the code.
    pub end: u32,
    /// Distance from the stack pointer in the body to `rbp`.
    pub frame_size: u32,
    /// The callee-saved registers that it saves, as a set.
    pub saved: u32,
    /// In the order of their starts in the code; an inner region follows the outer one.
    pub try_regions: Box<[TryRegion]>,
}

/// The code of the body of a `try_table` or `try`.
#[derive(Clone, Debug)]
pub struct TryRegion {
    /// A return address belongs to the region if `start < address <= end`. The innermost region is
    /// searched first.
    pub start: u32,
    /// The last such address.
    pub end: u32,
    /// The region in which the search continues if no catch matches: the enclosing one, or the one
    /// that `delegate` names.
    pub parent: Option<u32>,
    /// Its handlers.
    pub catches: Box<[Catch]>,
}

/// Tried in order. At the handler `rbp` is the function's frame, `rsp` is `rbp - frame_size`, `r14`
/// and `r15` have their usual roles, and `rax` is the exception.
#[derive(Clone, Copy, Debug)]
pub struct Catch {
    /// Tag index, or `None` for all.
    pub tag: Option<u32>,
    /// The code that receives the exception.
    pub handler: u32,
}

/// The code position of a Wasm instruction. Recorded only when a function is compiled again for an
/// observer.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Offset in the chunk.
    pub code: u32,
    /// Offset in the module, or [`Position::DATA`].
    pub wasm: u32,
}

impl Position {
    /// Data rather than code: jump tables and constants.
    pub const DATA: u32 = u32::MAX;
}
