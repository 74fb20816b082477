//! The single-pass compiler.

pub(crate) mod abi;
mod output;

pub(crate) use output::{Catch, Chunk, CompiledFunction, DirectCall, Position, TryRegion};

use wasmparser::{FuncType, FunctionBody};

use crate::module::ModuleInfo;

/// Why a valid function cannot be compiled: a limit of this compiler.
#[derive(Clone, Debug, thiserror::Error)]
#[error("function {function}: {reason}")]
pub(crate) struct Limit {
    pub function: u32,
    pub reason: &'static str,
}

/// Compiles functions of one module, one after the other; a thread has its own.
#[derive(Debug)]
pub(crate) struct Compiler<'m> {
    module: &'m ModuleInfo,
}

impl<'m> Compiler<'m> {
    pub(crate) fn new(module: &'m ModuleInfo) -> Self {
        Self { module }
    }

    /// Appends a function, which must be valid, to a chunk.
    pub(crate) fn compile(
        &mut self,
        index: u32,
        body: &FunctionBody<'_>,
        chunk: &mut Chunk,
    ) -> Result<(), Limit> {
        let _ = (self.module, index, body, chunk);
        Err(Limit { function: index, reason: "not written" })
    }

    /// Compiles the function once more and tells where the code of each instruction starts, in ascending order of code
    /// offsets, which are relative to the entry + `entry` of the function as it was compiled into the chunk.
    pub(crate) fn positions(&mut self, index: u32, body: &FunctionBody<'_>) -> Result<Vec<Position>, Limit> {
        let _ = (index, body);
        Ok(Vec::new())
    }
}

/// Appends the trampoline that enters compiled code: `extern "sysv64" fn(context: *mut VmContext, code: *const u8, values: *mut
/// u64) -> u64`. Arguments are taken from `values`, eight bytes each, results are put there. Returns 0, or 1 when the activation
/// was left by a trap or an exception. Sets the store's `activation_fp`; the caller saves and restores it.
/// The frame: rbp, then rbx, r12, r13, r14, r15 below it at rbp - 8 to rbp - 40 (so that one routine can leave any activation).
pub(crate) fn entry_trampoline(ty: &FuncType, code: &mut Vec<u8>) {
    let _ = (ty, code);
}

/// Appends the trampoline by which compiled code calls a host function of this type: it calls
/// `extern "sysv64" fn(context: *mut VmContext (the host function's), caller: *mut VmContext, values: *mut u64) -> u64`, whose address
/// is in the quadword behind the head of the host function's context. Arguments are in `values`, the results go there. If the
/// answer is not 0, it calls `RaiseFromHost`.
pub(crate) fn host_trampoline(ty: &FuncType, code: &mut Vec<u8>) {
    let _ = (ty, code);
}
