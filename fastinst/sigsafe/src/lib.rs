//! Building blocks for code that runs at any time in any thread, such as probe functions and signal
//! handlers, and therefore must not allocate, lock or format.
//!
//! * [`blocks`]: memory of threads, which is mapped when needed and reused.
//! * [`futex`]: waiting for a change of a word, and waking the waiters.
//! * [`pool`]: objects that are allocated by such code.
//! * [`Segments`]: an append-only table. Reading is async-signal-safe, appending is not.
//! * [`signal`]: forwarding a signal to the action that was installed before.
//!
//! # Example
//! ```
//! use fastinst_sigsafe::Segments;
//!
//! static NAMES: Segments<&str> = Segments::new();
//!
//! let index = NAMES.push_with(|_| "main").expect("there is room");
//! // Signal handlers may do this; the reference stays valid.
//! let name: &'static &str = NAMES.get(index).expect("it was pushed");
//! assert_eq!(*name, "main");
//! ```
//!
//! # Features
//! None.

pub mod blocks;
pub mod futex;
mod mapping;
pub mod pool;
mod segments;
pub mod signal;

pub use segments::Segments;
