//! What the compiler makes of a function.

/// Machine code of many functions, one after the other, not yet in its place.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The code.
    pub code: Vec<u8>,
    /// Direct calls to link: a rel32 lies at `at`, relative to its end.
    pub calls: Vec<DirectCall>,
    /// The functions, in the order of their code.
    pub functions: Vec<CompiledFunction>,
}

/// A rel32 in a chunk that must reach the entry of a function.
#[derive(Clone, Copy, Debug)]
pub struct DirectCall {
    /// Where the rel32 lies.
    pub at: u32,
    /// The callee.
    pub function: u32,
}

/// One function's part of a chunk. All offsets are from the chunk's start.
#[derive(Debug)]
pub struct CompiledFunction {
    /// Function index, imports counted.
    pub index: u32,
    /// Where calls go to: the prologue.
    pub entry: u32,
    /// From here on `rbp` and `rsp` are the frame's.
    pub body: u32,
    /// Behind the last byte of code.
    pub end: u32,
    /// From the stack pointer in the body up to `rbp`.
    pub frame_size: u32,
    /// In the order of their starts in the code; an inner one comes after the outer one.
    pub try_regions: Box<[TryRegion]>,
}

/// The code of the body of a `try_table` or `try`.
#[derive(Clone, Debug)]
pub struct TryRegion {
    /// A return address belongs to the region if `start < address <= end`. The innermost is asked
    /// first.
    pub start: u32,
    /// The last such address.
    pub end: u32,
    /// Where to go on looking when none of the catches fits: the enclosing region, or the one that
    /// `delegate` names.
    pub parent: Option<u32>,
    /// Its handlers.
    pub catches: Box<[Catch]>,
}

/// Asked in order. At the handler `rbp` is the function's frame, `rsp` is `rbp - frame_size`, `r14`
/// and `r15` are as ever, and `rax` is the exception.
#[derive(Clone, Copy, Debug)]
pub struct Catch {
    /// Tag index, or `None` for all.
    pub tag: Option<u32>,
    /// Where the exception goes.
    pub handler: u32,
}

/// Where the code of a Wasm instruction starts. Recorded only when a function is compiled once more
/// to be asked about.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Offset in the chunk.
    pub code: u32,
    /// Offset in the module, or [`Position::DATA`].
    pub wasm: u32,
}

impl Position {
    /// What is no code: jump tables and constants.
    pub const DATA: u32 = u32::MAX;
}
