//! An executable version of the paper's memory model for patches of running code, and an exhaustive
//! search of all executions that it allows.
//!
//! The paper is "Living on the Edge: Rapid-Toggling Probes with Cross-Modification on x86" (PLDI
//! 2016); the model is that of its section 3, extended by behaviour that was observed on
//! processors.
//!
//! # What is explored
//! * The library's own drivers, unchanged. In a build with `--cfg model`, `wordpatch` uses the
//!   [`environment`] in place of the machine and the kernel: for text, the site table, the clock
//!   and waits. This includes `callpatch`, which writes text and waits through `wordpatch` only.
//! * [`Job`]s are calls to the library; a [`Program`] is the sequence of calls of one thread; a
//!   [`Scenario`] has sites, executors and patchers.
//! * [`explore`](explore::explore) visits all states, breadth first, and returns the shortest
//!   counterexample.
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER=scripts/cfg/model cargo test --release -p wordpatch -p callpatch --lib exploration
//! ```
//!
//! `-- --nocapture` prints the number of states of each scenario, and the counterexample for each
//! defect. `record.md` in this crate's directory contains the results of a run.
//!
//! # Assumptions
//! [`Assumption::ALL`] lists them, each with its status. Dropping any of them gives a
//! counterexample.
//!
//! # Not covered
//! * The store instruction itself, the choice of the eight bytes around a patch, and the mapping
//!   that it goes through.
//! * Instruction encodings: the scenario lists the bytes that are complete instructions. In a patch
//!   of several instructions, each is a site; that a thread never executes a new one before an old
//!   one is not modelled (it requires fetch in program order).
//! * The kernel, except that the delivery of a trap may take any time, and waits may be refused.
//! * The layout of the site table: each site has its own record (`interleavings` of wordpatch
//!   covers the table).
//! * Text that is unmapped or mapped again.

pub mod assumptions;
mod code;
mod cores;
pub mod environment;
mod executor;
pub mod explore;
mod job;
mod memory;
mod patcher;
mod scenario;

pub use assumptions::{Assumption, Status};
pub use code::{Code, MAX_CODE};
pub use executor::Handler;
pub use job::{Change, Job, Program};
pub use patcher::Stores;
pub use scenario::{Form, Scenario, State, Violation};
