//! The code generator of `wasm-jit`: turns validated WebAssembly functions into x86-64 machine
//! code, in one pass.
//!
//! A [`Compiler`] takes the functions of one module, one at a time, and appends their code to a
//! [`Chunk`], together with all that is needed to link it, to unwind its frames, and to find
//! exception handlers. It knows the declarations of the module ([`ModuleInfo`]), but nothing about
//! engines, stores or signals. [`Sites`] are points in the code that a patch can turn into jumps.
//! An [`Observer`] is notified of the code position of each instruction and the locations of its
//! values. The code's requirements on a runtime are in [`vmctx`]: registers, calls, frames, and the
//! layout of shared memory. Read that first.
//!
//! This crate is a part of `wasm-jit`, which programs should use instead: the interface of this
//! crate changes whenever the engine does.
//!
//! | directory or file | what it is |
//! | --- | --- |
//! | `vmctx.rs` | the contract between compiled code and the runtime |
//! | `compiler/` | from a function's operators to machine code |
//! | `asm/` | encodings of instructions |
//! | `module.rs` | the declarations of a module, and branch hints |
//! | `objects.rs` | objects of the garbage-collected heap |

mod asm;
mod compiler;
mod module;
pub mod objects;
pub mod vmctx;

pub use asm::{ENTRY_PREFIX, Reg, SITE_OFF, SiteJump, TRANSFER_TRAP, UD2, Width, site_jump};
pub use compiler::{
    Access, Action, Address, At, AtSite, Callee, Catch, Chunk, CompiledFunction, Compiler, Condition,
    Continue, CounterStub, Counting, DirectCall, ENTER_STUB_SIZE, ENTRY_LENGTH, FrameMap, FrameMaps,
    GenericPart, Inlined, InlinedInstance, InlinedMemory, Instrumentation, LAZY_ENTRY_SIZE, Lane, Limit,
    ListStub, LocalPlace, Located, LocatedLocals, MAX_ARGUMENTS, MAX_GROWTH, MAX_SHARED, NoValue, Observer,
    Only, Operand, OperandPlace, Placed, Position, Positions, Quadword, Record, Refusal, Relation, Run,
    SITE_LENGTH, SITE_WINDOW, Shortcut, SiteFrame, SiteState, Sites, State, Step, Temp, TryRegion, Ty, Value,
    ValueAt, Wanted, access, callee_saved_slot, counter_stub, enter_stubs, entry_trampoline, host_trampoline,
    is_control, lazy_entries, list_stub, move_last,
};
pub use module::{BranchHints, CodeSettings, CompiledSites, ModuleInfo, PAGE_SIZE_LOG2};

/// Identifies this code generator: a hash of its sources and features. If it is equal, equal
/// functions with equal settings have equal code, which runs with an equal runtime.
pub const FINGERPRINT: &str = env!("CODEGEN_FINGERPRINT");
