//! Measures, by stress, how a machine's instruction fetch behaves when code is rewritten while it
//! runs.
//!
//! The command `tmax-probe` writes the result as a calibration for the crate `wordpatch`. The crate
//! can also be used as a library: its statistics can be run against a simulated machine,
//!
//! ```
//! use tmax_probe::{Depth, Results, Simulated, Unobserved, survey};
//!
//! // Instruction fetch of this machine tears at 32 bytes; stale code is executed for 800 ticks.
//! let mut machine = Simulated::new(32, 800, 1);
//! let results = Results::new(survey(&mut machine, Depth::Quick, &mut Unobserved)?, None);
//! // The 8 bytes that the vendors guarantee are always claimed; larger windows need evidence.
//! assert!(results.calibration().is_none_or(|found| found.model.window_bytes <= 32));
//! # Ok::<(), tmax_probe::Error>(())
//! ```
//!
//! or against this one, by [`ThisMachine`].
//!
//! # The question
//! Other cores eventually see a store to code that they execute, but possibly not atomically. Two
//! properties decide how code may be rewritten: the **fetch window**, the largest aligned block in
//! which instruction fetch never sees part of a store, and **T_max**, the longest time for which a
//! core may continue to execute bytes that were replaced. The paper (section 3) assumes the cache
//! line for the first and measures the second (section 8.1, Figure 9). This crate measures both.
//!
//! # The method
//! 1. In a *trial*, a patcher toggles one instruction between two forms while executors run it in a
//!    loop and check its effect ([`trial`], `kernel`). Both forms, and all their mixtures, are
//!    `mov` instructions that leave different values in registers: a mixture is detected without a
//!    crash. The paper's own kernel crashes; each trial runs in a separate process
//!    (`kernel::child`).
//! 2. Trials of a round differ in one parameter only (`plan`): in the offset of the split, by one
//!    store, for the window; in the wait, by the protocol, for T_max. [`survey`] runs the rounds.
//! 3. Whether a trial tore counts. A window or a T_max is claimed only by a run that had the power
//!    to refute it ([`estimate`]).
//! 4. The result becomes a calibration for `wordpatch` ([`Results::calibration`]), which the
//!    command combines with what is known from earlier runs (`stored`). [`verify`](verify::verify)
//!    tries to refute it by similar trials and by patches of the library itself; the command can do
//!    so as long as the machine runs (`watch`).
//!
//! The protocol's lock is an opcode without visible effect, not INT3: instruction fetch treats both
//! alike, and executors that do not trap run a hundred times as often, which makes rare tears
//! observable.
//!
//! # How it is tested
//! On simulated machines that tear rarely and in clusters ([`Simulated`]), no run may make a false
//! claim, independently of the machine that runs the tests.
//!
//! # Safety, errors, features
//! The library has no `unsafe` functions; its trials run in child processes, because torn code may
//! do anything. [`Error`] describes what the machine or the kernel refused. There are no
//! features.

mod boundary;
pub mod cli;
mod costs;
mod error;
pub mod estimate;
mod journal;
mod kernel;
mod plan;
mod report;
mod results;
mod simulated;
mod stored;
mod surroundings;
mod survey;
pub mod trial;
pub mod verify;
mod watch;

pub use costs::{Costs, Membarrier};
pub use error::Error;
pub use kernel::ThisMachine;
pub use plan::Depth;
pub use results::{Advice, Results};
pub use simulated::{Simulated, Tearing};
pub use survey::{Observer, Unobserved, survey};
