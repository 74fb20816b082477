//! Differential fuzzing: random modules must have the same results in two engines.
//!
//! A [`Case`] is generated from a seed alone: a module, with a selection of the features that both
//! engines support, by wasm-smith or by [`program`], and the arguments of its calls.
//! [`engine::run_loaded`] runs it in an [`Engine`] and keeps a [`Record`] of all observable
//! behaviour: how each call to an exported function ended and with which values, which host
//! functions were called with which values, and the final contents of exported memories, globals
//! and tables. The two records must agree; [`record`] describes the permitted differences.
//!
//! Every loop and function of a module decrements a budget and traps when it is used up, so that
//! both engines stop at the same point.
//!
//! Exceptions have two forms, and the reference engine may support only one: then wasm-jit runs
//! half of the programs in the legacy form ([`program::Form`]), and the reference engine the same
//! ones in the current form.
//!
//! A seed may also generate bytes that are not a module ([`bytes`]): loading them must not panic,
//! hang, or take much memory.
//!
//! With `--probes`, the code of wasm-jit has random probes, which are switched while it runs
//! ([`probed`]).
//!
//! With the feature `few-cached-locals` the compiler caches only a few locals in registers, so that
//! loops compete for them; small functions then reach cases that otherwise only large ones do.
//!
//! The [`driver`] distributes seeds to worker processes, so that a crash or a hang is reported with
//! its seed too. This package compares with wasmi; the package in `../fuzz-wasmtime` uses this
//! library to compare with Wasmtime.

pub mod bytes;
pub mod case;
pub mod driver;
pub mod engine;
mod hints;
mod imports;
pub mod ours;
pub mod probed;
mod probes;
pub mod program;
pub mod random;
pub mod record;
pub mod reduce;

pub use case::Case;
pub use engine::{Contents, Engine, Host, Instantiated};
pub use ours::FUEL;
pub use program::Features;
pub use record::{Outcome, Record, Trap, Type, Value};
