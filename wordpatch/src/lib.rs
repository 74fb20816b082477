//! Patches instructions of running x86-64 code: every thread executes the old instruction or the
//! new one, never a mixture, and no thread is stopped.
//!
//! Use it to rewrite code that other threads may be executing: probes, hot patching, inline caches,
//! generated code. For toggling calls, the crate `callpatch` is cheaper.
//!
//! # Example
//! ```
//! use std::arch::global_asm;
//!
//! global_asm!(".globl answer", ".balign 8", "answer:", "mov eax, 41", "ret");
//!
//! unsafe extern "C" {
//!     safe fn answer() -> u32;
//! }
//!
//! fn main() -> Result<(), wordpatch::Error> {
//!     let address = answer as *const () as usize;
//!     let (old, new) = ([0xb8, 41, 0, 0, 0], [0xb8, 42, 0, 0, 0]);
//!     // SAFETY: 1. an instruction starts there, in text that stays mapped and that only wordpatch writes; 2. every caller
//!     // can use 42; 3. no thread blocks SIGTRAP, and nothing branches into the middle of the instruction.
//!     unsafe { wordpatch::patch(address, &old, &new)? };
//!     assert_eq!(answer(), 42);
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//! * **Fetch window**: the largest naturally aligned block that instruction fetch reads atomically
//!   ([`FetchWindow`]). It is a property of the processor and may be smaller than a cache line.
//! * **Straddler**: an instruction whose bytes lie in two fetch windows, or a patch of such an
//!   instruction, whichever bytes it changes.
//! * **Text**: executable memory. It is never writable where it is executed; stores go through a
//!   second, writable mapping of the same pages ([`text`]).
//!
//! # What a patch does
//! A patch of an instruction inside one window is one atomic store. A straddler goes through the
//! protocol of the paper's section 5 (Figures 4 and 5), which exists once, as a value
//! (`src/protocol.rs`):
//!
//! 1. lock the site: the first byte becomes INT3;
//! 2. wait until no processor can still execute the old first byte;
//! 3. store the back part (the bytes in the second window);
//! 4. wait until no processor can still combine the old back part with a new front part;
//! 5. store the front part, which also unlocks the site.
//!
//! A thread that executes the INT3 does not spin. The trap handler resumes it in an out-of-line
//! copy of the old instruction, which the patch has made before it locked the site. Therefore a
//! patcher that is stopped midway blocks no other thread.
//!
//! A *wait* is `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`, unless the fetch model in force knows the
//! processor's T_max ([`FetchModel`]).
//!
//! The paper is "Living on the Edge: Rapid-Toggling Probes with Cross-Modification on x86" (PLDI
//! 2016).
//!
//! The program can still use SIGTRAP: every trap that is not from a locked site has the effect of
//! the action that the program had installed, whether that is a handler, a chain of handlers,
//! SIG_IGN or SIG_DFL (`src/trap`).
//!
//! # Drivers
//! [`patch_all`] makes any number of patches and pays each wait once; [`patch`] is a batch of one.
//! [`start_patch`] and [`start_patch_all`] return after the first store ([`Outstanding`]); a
//! [`Finisher`] is a thread that completes such patches.
//!
//! # Main types
//! * [`patch`], [`patch_all`], [`start_patch`], [`start_patch_all`]: the drivers. [`Patch`]: one
//!   patch of a batch.
//!   [`Outstanding`]: a batch that was begun; [`Finisher`]: the thread that completes such batches.
//! * [`FetchModel`]: the properties of instruction fetch that patches rely on, and their source:
//!   the vendors' guarantees or a [`calibration`].
//! * [`text`]: how text is written, and what happens to it at a fork; [`text::TogglePair`]: two
//!   forms of an instruction, for toggling.
//! * [`code_memory`], [`near`]: memory for code. [`tsc`]: the time-stamp counter.
//! * [`internal`]: for the other crates of this workspace, and not for other users.
//!
//! # Safety
//! The functions that patch are `unsafe`: the caller guarantees that an instruction starts at the
//! address, in text that only this crate writes, that the program is correct with the new
//! instruction, and, if the patch crosses a fetch window, that no thread that may execute it has
//! SIGTRAP blocked ([`check_sigtrap_unblocked`]). Each function lists its obligations.
//!
//! # Errors
//! [`Error`] has the reason: bytes other than expected, text that is not mapped or is shared with a
//! parent process, a patch that would split or merge instructions, a refused `membarrier`. The
//! instruction is then unchanged, with the one exception that is documented there.
//!
//! # Configurations
//! All of them are for the crate's own tests: `--cfg fault_injection` has hooks between the steps
//! of every patch, `loom` and `model` are for exhaustive tests
//! (`RUSTC_WORKSPACE_WRAPPER=scripts/cfg/model cargo test --release -p wordpatch --lib exploration`).
//!
//! # Further reading
//! `README.md` has guarantees, obligations, costs, and the status of each assumption about the
//! processor; `examples/` has programs: one patch, a batch, patches that a finisher completes.
//! `docs/limits.md` of the repository lists the known limits.
//!
//! # Checked
//! * By executing it (`tests/`).
//! * By searching every execution of the drivers under the paper's memory model (`src/exploration`,
//!   a build with `--cfg model`, in which the crate `wordpatch-model` replaces text, site table,
//!   clock and waits).
//! * By running site table, trap handler and asynchronous patches in every interleaving within a
//!   bound (`src/interleavings`, a build with `--cfg loom`).
//!
//! # Absent by design
//! No other crate of this workspace writes text, changes its protection, owns SIGTRAP or issues
//! membarrier.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("wordpatch patches x86-64 code under Linux");

mod batch;
mod bytes;
pub mod calibration;
pub mod code_memory;
mod copies;
mod displaced;
mod error;
#[cfg(all(test, model))]
mod exploration;
mod fault;
mod fetch_model;
mod finisher;
mod in_flight;
#[cfg(all(test, loom))]
mod interleavings;
pub mod internal;
mod layout;
mod maps;
pub mod near;
mod outstanding;
mod primitive;
#[cfg(test)]
mod processors_in_tests;
mod protocol;
mod serialize;
mod since;
mod site_table;
mod stepwise;
mod store;
pub mod text;
mod thread_id;
mod trap;
pub mod tsc;

pub use batch::{patch, patch_all};
pub use bytes::{Bytes, MAX_PATCH};
pub use error::Error;
pub use fetch_model::{FetchModel, FetchWindow, Source, Split, TMax, WaitPolicy};
pub use finisher::Finisher;
pub use outstanding::{Outstanding, State, finish_patch, start_patch, start_patch_all};
pub use serialize::{serialize_all_cores, wait_for_visibility};
pub use text::{TextAccess, TextRef};
pub use trap::check_sigtrap_unblocked;

/// Compiles the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// One patch of a batch; the fields are the arguments of [`patch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch<'a> {
    /// The address at which an instruction starts.
    pub address: usize,
    /// The bytes expected at the address.
    pub expected: &'a [u8],
    /// The new bytes; as many as `expected`.
    pub replacement: &'a [u8],
}
