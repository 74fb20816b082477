//! Random modules: two engines have to do the same with them.
//!
//! A [`Case`] is made from a seed alone: a module, with a selection of the features that both
//! engines have, by wasm-smith or by [`program`], and the arguments of its calls. An [`Engine`]
//! runs it and keeps a [`Record`] of all that can be seen from outside: how each call of an
//! exported function ended and with which values, which host functions were called with which
//! values, and what is in the exported memories, globals and tables at the end. The two records
//! have to agree; [`record`] says where they need not.
//!
//! Every loop and function of a module counts down a budget of its own and traps when it is used
//! up, so that both engines stop at the same place.
//!
//! Exceptions have two forms, and the other engine may have one: then ours runs half of the
//! programs in the older form ([`program::Form`]), the other engine the same ones in the form of
//! today.
//!
//! A seed may also stand for bytes that are no module ([`bytes`]): loading them must not panic,
//! hang, or take much memory.
//!
//! With the feature `few-cached-locals` the compiler caches only a few locals in registers, so that
//! loops compete for them; small functions then reach cases that otherwise only large ones do.
//!
//! The [`driver`] hands seeds to worker processes, so that a crash or a hang of one is a finding
//! too, with its seed. This package compares with wasmi; the package in `../fuzz-wasmtime` uses
//! this library to compare with Wasmtime.

pub mod bytes;
pub mod case;
pub mod driver;
pub mod ours;
pub mod program;
pub mod random;
pub mod record;
pub mod reduce;

pub use case::Case;
pub use program::Features;
pub use record::{Engine, Outcome, Record, Trap, Type, Value};
