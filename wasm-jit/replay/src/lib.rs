//! Records what the host does to a program, and generates a module that replays the run alone
//! (after Baek and others, "Wasm-R3", OOPSLA 2024).
//!
//! 1. A [`Recorder`] instantiates a module so that every host function that it imports is wrapped
//!    (`record.rs`). The wrapper writes to the trace: the arguments, what the call changed in
//!    exported memories and globals, and the results. [`Recorder::call`] records a call of the
//!    host.
//! 2. A trace is a sequence of [`Event`]s, each in a frame with length and checksum (`trace.rs`): a
//!    trace whose writer crashed is readable up to the last complete frame. Floats are stored as
//!    bits.
//! 3. [`generate`] makes a standalone module from the program and the trace (`generate.rs`): the
//!    imported functions are replaced by functions that do what the host did; `_start` repeats the
//!    calls of the host. The code of the original functions is copied byte by byte.
//!
//! # How effects are found
//! The exported memories are copied before a host function is called and compared afterwards, which
//! is exact however the host writes, and costs time in proportion to their size at every call. A
//! host that writes between two calls of exports is observed too.
//!
//! # What is refused
//! [`Error::Unsupported`] names it: imports other than functions, shared memories, exported tables,
//! start functions, references as arguments or results of host functions and in exported mutable
//! globals. A recording ends with an error when a host function calls back into the program, which
//! the engine counts ([`StoreContext::entries`](wasm_jit::StoreContext::entries)).

mod error;
mod generate;
mod record;
mod trace;

pub use error::Error;
pub use generate::{DIFFERENCE, generate};
pub use record::Recorder;
pub use trace::{Event, Reader, Value};
