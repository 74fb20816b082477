//! The paper's memory model (PLDI 2016, section 3), executable, and an exhaustive search through everything it allows.
//!
//! # The model in short
//! * Code is bytes that all processors share ([`memory`]). Data writes reach them as x86-TSO says; "a write that straddles" a
//!   fetch window is two write events, locked or not.
//! * Executors fetch ([`executor`]): one read for each window the instruction touches, in any order, any of them elided by the
//!   micro-op cache and answered from an older copy. What they combine is what they execute.
//! * Patchers ([`patcher`]) carry out calls of the library ([`program`]), with the steps of the real protocol, and wait. T_max is
//!   modelled by what a wait guarantees, without a clock.
//! * The window that the processors have, and the one that the patchers assume, are different parameters.
//! * [`scenario`] lists the properties; [`explore`] visits every state.
//!
//! # What it leaves out
//! * The store instruction itself, the choice of the eight bytes around a patch, and the mapping it goes through.
//! * Instructions: bytes are a complete instruction if the scenario says so. Threads that jump into the middle of one.
//! * The kernel, except that delivering a trap may take any time; and the slots of the trap handler's table: each site has its own
//!   (`slots.rs` has the table).
//! * Processors that fetch bytes which never stood in memory: the paper's second assumption.

pub(crate) mod executor;
pub(crate) mod explore;
pub(crate) mod memory;
pub(crate) mod patcher;
pub(crate) mod program;
pub(crate) mod scenario;
