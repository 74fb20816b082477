//! Monitors: analyses of programs that run in [`wasm_jit`], by [probes](wasm_jit::probes).
//!
//! A [`Monitor`] observes a module: it makes probes when it starts, and can report its observations
//! at any time. Monitors are activated and deactivated while threads run the program. One that is
//! off costs nothing; several that are on do not disturb each other.
//!
//! A [`Session`] runs the monitors of a module. [`ALL`] lists those of this crate; custom ones are
//! added with [`Session::with`]. Each monitor has a name, and options of the form
//! `NAME{key=value,...}` ([`Request`]).
//!
//! A [`Report`] consists of values, tables, texts and files. It is written as text, JSON or CSV
//! ([`Output`]).
//!
//! # Example
//! ```
//! use wasm_jit::{Engine, Instance, Module, Store};
//! use wasm_jit_monitors::{Output, Session};
//!
//! let module = Module::new(&Engine::default(), "(module (func (export \"sum\") (param i32) (result i32)
//!     (local i32)
//!     (loop
//!         (local.set 1 (i32.add (local.get 1) (local.get 0)))
//!         (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
//!     (local.get 1)))")?;
//! let session = Session::new(&module, Output::none());
//! session.enable("icount".parse()?)?;
//! let mut store = Store::new(module.engine(), ());
//! let sum = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, i32>(&mut store, "sum")?;
//! assert_eq!(sum.call(&mut store, 100)?, 5050);
//! let report = session.report("icount")?;
//! assert_eq!(report.get("instructions"), Some(100 * 10 + 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Other processes
//! A [`control::Control`] lets other processes activate and deactivate the monitors of a session.
//!
//! # Custom monitors
//! A monitor is a type that implements [`Monitor`], and a [`Description`] with a function that
//! starts it. It needs only the public interfaces of [`wasm_jit`] and, for events with values,
//! [`wasm_jit_hooks`]. Each monitor of this crate is a file of `src/builtin/`, and may serve as an
//! example; the repository's `examples/own-monitor` has one outside of this crate, with a program
//! that runs it.
//!
//! # Cost
//! Each file describes its probes. See [`wasm_jit::probes`] for their cost, and for when other
//! threads see that they were toggled.

mod builtin;
pub mod control;
mod error;
mod lazy;
mod lock;
mod monitor;
mod names;
mod options;
mod output;
#[cfg(test)]
mod pipe_in_tests;
mod program;
mod replaced;
pub mod report;
mod session;

pub use builtin::{ALL, CallArcs};
pub use error::Error;
pub use lazy::LazyProbes;
pub use monitor::{Description, Monitor, Setup, make, switch};
pub use options::{OptionInfo, Options, Request};
pub use output::{Format, Output, Stream};
pub use program::Program;
pub use report::{Cell, Report, Table};
pub use session::Session;
