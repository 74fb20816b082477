//! Records what the host does to a program, and generates a module that replays the run alone
//! (after Baek and others, "Wasm-R3", OOPSLA 2024).
//!
//! 1. A [`Recorder`] instantiates a module so that every host function that it imports is wrapped,
//!    and observes the calls of the host (`record.rs`). It writes to the trace: calls in both
//!    directions, also nested ones, their arguments and results, and what the host has changed in
//!    memories, tables and globals before the program continues.
//! 2. A trace is a sequence of [`Event`]s (`event.rs`) in a compressed file (`trace.rs`): one whose
//!    writer crashed is readable up to the last call that ended. All values are stored as bits.
//! 3. [`generate`] makes a standalone module from the program and the trace (`generate/`): the
//!    imported functions are replaced by functions that do what the host did; `_start` repeats the
//!    calls of the host. The code of the original functions is copied byte by byte.
//! 4. [`reduce`] makes a trace smaller (section 3.3 of the paper): it runs the program with a host
//!    that does what the trace says (`rerun.rs`), observes all accesses to memories
//!    (`accesses.rs`), and keeps the bytes that the program reads before they are overwritten.
//! 5. [`slice()`] runs the program in the same way, and writes a trace in which the host calls only
//!    one of its functions.
//! 6. [`import()`] makes a trace from one in the text format of Wasm-R3 (`import/`).
//!
//! # How effects are found
//! The engine copies bytes of a memory before the host gets write access to them
//! ([`WriteLog`](wasm_jit::WriteLog)); the copies are compared when the program continues. This is
//! exact for any safe host, and costs time in proportion to what the host may have written: WASI
//! announces the ranges of its results, a slice of the complete memory costs a copy of it.
//!
//! # What is refused
//! [`Error::Unsupported`] names it: imports other than functions, shared memories, start functions,
//! a second instance; at the moment that they occur, references to values of the host or to
//! functions of other modules, and exceptions that cross the boundary. A run that goes on after a
//! trap can be recorded, but not replayed.

mod accesses;
mod dirty;
mod error;
mod event;
mod generate;
mod import;
mod record;
mod reduce;
mod rerun;
mod slice;
mod trace;
mod value;
mod writes;

pub use error::Error;
pub use event::Event;
pub use generate::{DIFFERENCE, LAST, POSITION, generate};
pub use import::import;
pub use record::Recorder;
pub use reduce::{Reduced, reduce};
pub use slice::slice;
pub use trace::{Reader, Writer};
pub use value::Value;
