//! The single-pass compiler.
//!
//! Each operator is compiled at once, with what is known about its operands at that point. The
//! compiler also looks at the next operator, so that a comparison fuses with its branch, a load
//! fuses with its use, and a result goes directly to the local that is set next.
//!
//! Read in this order: `vmctx.rs` (calls and frames) and `abi.rs` (registers by role); then
//! `state.rs` (what is known about operands and locals), `cached_locals.rs` (which locals are kept
//! in registers), `edges.rs` (moves on branches), `function.rs` (the parts of a function). The
//! folders are:
//!
//! | folder | contents |
//! | --- | --- |
//! | `operators/` | the code of each operator, by families |
//! | `sites/` | places for probes: NOPs in the code, and the versions of functions that have them |
//! | `stubs/` | code outside functions: that of probes at sites, of entries, and of calls from and to the host |
//! | `counting/` | versions of functions that count their instructions |
//! | `observe/` | what a second compilation tells about positions and values |
//!
//! # A function
//! 1. `scan.rs` scans it: where its loops are, which locals they use, where they call. If the
//!    function has not been validated yet, `validate.rs` does both in one pass. `decode.rs` records
//!    the operators for the compilation.
//! 2. `cached_locals.rs` assigns registers to locals, based on the scan: first for the function,
//!    later for each loop when it is opened.
//! 3. `function.rs` reserves space for the prologue and compiles operator after operator;
//!    `enter.rs` has moved the parameters to their locations.
//! 4. `operators/mod.rs` dispatches to the families. Registers come from `registers.rs`
//!    (`register_file.rs` tracks their use), slots from `frame.rs`. Code that rarely runs is
//!    collected in `cold.rs`.
//! 5. `function.rs` appends epilogue, cold code and constants, and writes the prologue, when frame
//!    size and saved registers are known.
//!
//! # The state
//! [`FunctionCompiler`](function::FunctionCompiler) is the state at one point of the code. Its
//! parts keep their own invariants:
//!
//! | part | what it keeps true |
//! | --- | --- |
//! | `value_stack.rs` | operands below the spilled height are in their slots or constants |
//! | `register_file.rs` | which operand or copy of a local holds a register, and which copies are newer than slots; pinned ones are not allocated |
//! | `cached_locals.rs` | the regions, and the one that the state belongs to |
//! | `frame.rs` | the frame has every slot that was asked for |
//! | `control_stack.rs` | every block on the stack has a label that code was compiled for |
//! | `instruction.rs` | the state of the current instruction is forgotten at the next |
//! | `cold.rs` | the estimated size includes every piece and move |
//! | `operators/exceptions.rs` | each region of a `try` knows the one around it |
//! | `fuel.rs` | the cost of a straight-line run is subtracted once, before its first costly instruction |
//! | `sites/layout.rs` | a site is shared only by instructions that are reached through it |
//!
//! Locals (`state.rs`), registers and the stack refer to each other: an alias counts in its local,
//! a register's holder is an operand or a local. The methods of `FunctionCompiler` that push, pop,
//! spill and drop copies change them together, so these three are not separate parts.
//!
//! The result is in `output.rs`. Calls between functions are linked later, when the chunks are
//! placed. `stubs/trampoline.rs` generates the code through which the host calls compiled code, and
//! is called by it.
//!
//! The code depends only on the function and the module's declarations: compiling a function again
//! produces the same bytes. Positions of instructions are therefore not stored; to get them,
//! compile the function again with an [`Observer`]. This holds only as long as every decision
//! follows from the function and the declarations, and none from an address, the time, a hash seed,
//! or the previous function.

#![expect(
    clippy::wrong_self_convention,
    reason = "`to_reg` moves an operand to a register, and may spill another one first"
)]

pub(crate) mod abi;
mod cached_locals;
mod cold;
mod control_stack;
mod counting;
mod decode;
mod edges;
mod enter;
mod frame;
mod fuel;
mod function;
mod instruction;
mod observe;
mod operators;
mod output;
mod register_file;
mod registers;
mod scan;
mod sites;
mod state;
mod stubs;
mod validate;
mod value_stack;

pub use abi::Ty;
pub use counting::{Counting, Run};
pub use function::MAX_GROWTH;
pub use observe::located::{At, Located, ValueAt};
pub use observe::located_locals::LocatedLocals;
pub use observe::{
    Address, Condition, FrameMap, FrameMaps, LocalPlace, Observer, OperandPlace, Placed, Positions, State,
    move_last,
};
pub use operators::access::{Access, access};
pub use output::{Catch, Chunk, CompiledFunction, DirectCall, Position, TryRegion};
pub use sites::{ENTRY_LENGTH, MAX_SHARED, SITE_LENGTH, SITE_WINDOW, Sites, is_control};
pub use stubs::enter::{Continue, ENTER_STUB_SIZE, enter_stubs};
pub use stubs::frame::{SiteFrame, callee_saved_slot};
pub use stubs::inlined::{Inlined, InlinedInstance, InlinedMemory};
pub use stubs::lazy::{LAZY_ENTRY_SIZE, lazy_entries};
pub use stubs::list::{Action, Callee, GenericPart, ListStub, MAX_ARGUMENTS, Only, SiteState, list_stub};
pub use stubs::record::Record;
pub use stubs::shortcut::{Operand, Quadword, Relation, Shortcut, Step, Temp};
pub use stubs::trampoline::{entry_trampoline, host_trampoline};
pub use stubs::values::{Lane, NoValue, Value, Wanted};
pub use stubs::{AtSite, CounterStub, counter_stub};

use wasmparser::{BinaryReaderError, FuncValidator, FunctionBody, ValidatorResources};

use decode::Operators;

use crate::module::ModuleInfo;
use crate::objects::ModuleType;
use crate::vmctx::VmLayout;

/// A valid function cannot be compiled: a limit of this compiler.
#[derive(Clone, Debug, thiserror::Error)]
#[error("function {function}: {reason}")]
pub struct Limit {
    /// The index of the function, including imports.
    pub function: u32,
    /// The limit that is exceeded.
    pub reason: &'static str,
}

/// Why a function that may be invalid is not compiled.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is not valid.
    #[error(transparent)]
    Invalid(#[from] BinaryReaderError),
    /// It is valid, but cannot be compiled.
    #[error(transparent)]
    Limit(#[from] Limit),
}

/// Compiles functions of one module, one after the other; each thread has its own.
#[derive(Debug)]
pub struct Compiler<'m> {
    module: &'m ModuleInfo,
    layout: VmLayout,
    /// For each type, whether a parameter, result, field or element is a vector. Empty if none is.
    vector_types: Vec<bool>,
    scratch: function::Scratch,
    /// An empty record of operators, for its allocation.
    record: Operators<'static>,
}

/// What a version of a function contains for probes.
#[derive(Clone, Copy, Debug)]
pub struct Instrumentation<'a> {
    /// The sites of the version.
    pub sites: &'a Sites,
    /// What the version counts, if it is a counting version.
    pub counting: Option<&'a Counting>,
}

impl<'m> Compiler<'m> {
    /// A compiler for the functions of a module.
    pub fn new(module: &'m ModuleInfo) -> Self {
        let mut vector_types: Vec<bool> = module.types.iter().map(ModuleType::has_vector).collect();
        if !vector_types.contains(&true) {
            vector_types.clear();
        }
        Self {
            module,
            layout: VmLayout::new(module),
            vector_types,
            scratch: function::Scratch::default(),
            record: Operators::default(),
        }
    }

    /// Appends a function, which must be valid, to a chunk, with the sites of the settings.
    ///
    /// # Errors
    /// The function exceeds a limit of the compiler. The chunk must be discarded.
    pub fn compile(&mut self, index: u32, body: &FunctionBody<'_>, chunk: &mut Chunk) -> Result<(), Limit> {
        let record = function::scan(self, index, body)?;
        self.compile_scanned(index, body, record, chunk)
    }

    /// Like [`Compiler::compile`], for the function of a validator that has not read it yet.
    ///
    /// # Errors
    /// The function is not valid, or exceeds a limit. The chunk must be discarded.
    pub fn validate_and_compile(
        &mut self,
        validator: &mut FuncValidator<ValidatorResources>,
        body: &FunctionBody<'_>,
        chunk: &mut Chunk,
    ) -> Result<(), Refusal> {
        let record = function::validate_and_scan(self, validator, body)?;
        Ok(self.compile_scanned(validator.index(), body, record, chunk)?)
    }

    fn compile_scanned(
        &mut self,
        index: u32,
        body: &FunctionBody<'_>,
        record: Operators<'_>,
        chunk: &mut Chunk,
    ) -> Result<(), Limit> {
        let sites = self.module.settings.sites.into();
        let instrumentation = Instrumentation { sites: &sites, counting: None };
        function::compile(self, index, body, &record, chunk, instrumentation, None)?;
        record.end(&mut self.record);
        Ok(())
    }

    /// Like [`Compiler::compile`], with an observer, which does not change the code.
    ///
    /// # Errors
    /// As [`Compiler::compile`]; a function that was compiled before has none.
    pub fn compile_observed(
        &mut self,
        index: u32,
        body: &FunctionBody<'_>,
        chunk: &mut Chunk,
        observer: &mut dyn Observer,
    ) -> Result<(), Limit> {
        let sites = self.module.settings.sites.into();
        let instrumentation = Instrumentation { sites: &sites, counting: None };
        self.compile_version(index, body, chunk, instrumentation, observer)
    }

    /// As [`Compiler::compile_observed`], with other instrumentation.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn compile_version(
        &mut self,
        index: u32,
        body: &FunctionBody<'_>,
        chunk: &mut Chunk,
        instrumentation: Instrumentation<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(), Limit> {
        let record = function::scan(self, index, body)?;
        function::compile(self, index, body, &record, chunk, instrumentation, Some(observer))?;
        record.end(&mut self.record);
        Ok(())
    }
}
