//! Patches of running code under the paper's memory model, executable: an exhaustive search through
//! everything it allows.
//!
//! The paper is "Living on the Edge: Rapid-Toggling Probes with Cross-Modification on x86" (PLDI
//! 2016); the model is that of its section 3, extended by what processors were seen to do.
//!
//! # What is explored
//! * The library's own drivers, unchanged. In a build with `--cfg model`, `wordpatch` asks the
//!   [`environment`] for what it otherwise asks the machine and the kernel: text, the table of
//!   sites, the clock and waits. `callpatch` comes along, since it writes text and waits by
//!   `wordpatch` only.
//! * [`Job`]s are calls of the library; a [`Program`] is what one thread calls; a [`Scenario`] has
//!   sites, executors and patchers.
//! * [`explore`](explore::explore) visits every state, breadth first, and gives the shortest
//!   counterexample.
//!
//! ```text
//! RUSTFLAGS="--cfg model" cargo test --release -p wordpatch -p callpatch --lib --target-dir target/model exploration
//! ```
//!
//! `-- --nocapture` prints how many states each scenario has, and the counterexample to each
//! defect. The results of one such run are in `record.md` next to this crate's sources.
//!
//! # Assumptions
//! [`Assumption::ALL`] lists them, each with its status. Dropping any of them gives a
//! counterexample.
//!
//! # What is left out
//! * The store instruction itself, the choice of the eight bytes around a patch, and the mapping
//!   that it goes through.
//! * Instructions: bytes are a complete instruction if the scenario says so. Of a patch of several
//!   instructions, each is a site of its own; that a thread does not run new ones first and old
//!   ones then is not modelled (it needs fetch in program order).
//! * The kernel, except that delivering a trap may take any time, and waits may be refused. The
//!   slots of the table: each site has a record of its own (`interleavings` of wordpatch has the
//!   table).
//! * Text that is unmapped or mapped anew.

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
