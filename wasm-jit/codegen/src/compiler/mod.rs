//! The single-pass compiler.
//!
//! Each operator becomes code at once, with what is known of the operands then. One operator is
//! looked ahead, so that a comparison fuses with its branch, a load with its use, and a result goes
//! straight to the local that takes it.
//!
//! Read in this order: `vmctx.rs` (calls and frames) and `abi.rs` (registers by role); then
//! `state.rs` tells how operands and locals are kept, `homes.rs` which locals live in registers,
//! `edges.rs` what happens on the way to a label, `function.rs` how a function is put together.
//!
//! # A function
//! 1. `scan.rs` looks it over: where its loops are, which locals they use, where they call.
//! 2. `homes.rs` chooses registers for locals, by these facts: now for the function, and later for
//!    each loop when it is opened.
//! 3. `function.rs` leaves a hole for the prologue, brings the parameters to their places, and
//!    takes operator after operator.
//! 4. `operators.rs` hands each to its family: `int.rs`, `division.rs`, `float.rs`, `memory.rs`,
//!    `atomics.rs`, `calls.rs`, `locals.rs`, `control.rs`, `branches.rs`, `exceptions.rs`.
//!    Registers come from `registers.rs` (what is in use is in `register_file.rs`), slots from
//!    `frame.rs`. What runs rarely is put aside (`cold.rs`).
//! 5. `function.rs` appends epilogue, cold code and constants, and writes the prologue: frame size
//!    and saved registers are known now.
//!
//! What comes out is in `output.rs`. Calls between functions are linked later, by whoever puts the
//! chunks in their places. `trampoline.rs` makes the code by which the host enters, and is called.
//!
//! The code depends on nothing but the function and the module's declarations: compiling a function
//! once more gives the same bytes. So nothing is kept about where its instructions are: who must
//! know, compiles the function again in the sight of an [`Observer`]. That holds only as long as
//! every decision follows from the function and the declarations: none from an address, a time, a
//! hash seed, or the function before.

#![expect(
    clippy::wrong_self_convention,
    reason = "`to_reg` brings an operand to a register, and makes room there first"
)]

pub(crate) mod abi;
mod atomics;
mod branches;
mod calls;
mod cold;
mod control;
mod division;
mod edges;
mod exceptions;
mod float;
mod frame;
mod function;
mod homes;
mod int;
mod locals;
mod memory;
mod observe;
mod operators;
mod output;
mod register_file;
mod registers;
mod scan;
mod sites;
mod state;
mod stub;
mod trampoline;

pub use abi::Ty;
pub use function::MAX_GROWTH;
pub use observe::{
    Address, Condition, FrameMap, FrameMaps, LocalPlace, Observer, OperandPlace, Placed, Positions, State,
};
pub use output::{Catch, Chunk, CompiledFunction, DirectCall, Position, TryRegion};
pub use sites::{ENTRY_LENGTH, SITE_LENGTH, SITE_WINDOW, Sites};
pub use stub::{AtSite, CounterStub, counter_stub};
pub use trampoline::{entry_trampoline, host_trampoline};

use wasmparser::FunctionBody;

use crate::module::ModuleInfo;
use crate::vmctx::VmLayout;

/// Why a valid function cannot be compiled: a limit of this compiler.
#[derive(Clone, Debug, thiserror::Error)]
#[error("function {function}: {reason}")]
pub struct Limit {
    /// Its index, imports counted.
    pub function: u32,
    /// Which limit.
    pub reason: &'static str,
}

/// Compiles functions of one module, one after the other; a thread has its own.
#[derive(Debug)]
pub struct Compiler<'m> {
    module: &'m ModuleInfo,
    layout: VmLayout,
    scratch: function::Scratch,
}

impl<'m> Compiler<'m> {
    /// For the functions of a module.
    pub fn new(module: &'m ModuleInfo) -> Self {
        Self { module, layout: VmLayout::new(module), scratch: function::Scratch::default() }
    }

    /// Appends a function, which must be valid, to a chunk.
    ///
    /// # Errors
    /// The function exceeds a limit of the compiler. The chunk is of no use then.
    pub fn compile(&mut self, index: u32, body: &FunctionBody<'_>, chunk: &mut Chunk) -> Result<(), Limit> {
        function::compile(self, index, body, chunk, &Sites::None, None)
    }

    /// As [`Compiler::compile`], in the sight of an observer, which changes nothing: the code is
    /// the same.
    ///
    /// # Errors
    /// As [`Compiler::compile`]; none for a function that was compiled before.
    pub fn compile_observed(
        &mut self,
        index: u32,
        body: &FunctionBody<'_>,
        chunk: &mut Chunk,
        observer: &mut dyn Observer,
    ) -> Result<(), Limit> {
        self.compile_with_sites(index, body, chunk, &Sites::None, observer)
    }

    /// As [`Compiler::compile_observed`], with sites in front of some instructions.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn compile_with_sites(
        &mut self,
        index: u32,
        body: &FunctionBody<'_>,
        chunk: &mut Chunk,
        sites: &Sites,
        observer: &mut dyn Observer,
    ) -> Result<(), Limit> {
        function::compile(self, index, body, chunk, sites, Some(observer))
    }
}
