//! Hooks: closures that are called when something happens in a program that runs in
//! [`wasm_jit`], with typed events.
//!
//! | function | events |
//! | --- | --- |
//! | [`functions`] | entries and exits of functions: returns, tail calls, and frames that a trap, an exception or an interrupt leaves |
//! | [`memory`] | loads, stores, atomic and bulk operations: address, size, value |
//! | [`branches`] | `br_if`, `if`, `br_table`, `select`, `br_on_null`, `br_on_non_null`, `br_on_cast`, `br_on_cast_fail`: the decision, and where control continues |
//! | [`calls`] | calls, tail calls, indirect calls with the function that they call |
//! | [`blocks`] | `block`, `loop` (each iteration), `if`, `try` |
//! | [`after`] | the completion of any instruction |
//!
//! Each of them takes a module, or [some of its instances](Instances), a filter that chooses
//! instructions or functions, and a closure, and returns an active [`Hook`]. Events contain the
//! instance in which they happen. Dropping the hook ends the reporting; it can be switched off and
//! on again at any time, from any thread, including by the closure. Code without hooks runs at full
//! speed; see [`wasm_jit::probes`] for what probes cost, and when a thread observes a change.
//!
//! A closure is called on the thread that runs the program, in the middle of it. What it may do,
//! what its panic does, and how long it is kept is described at [`Callback`]. Hooks of one place
//! are called in the order of their activation. Filters are called once, when the hook is made.
//! Unreachable instructions have no events.
//!
//! For your own probes, [`Flow`] gives the control flow of a function, and [`accesses`] the memory
//! accesses of an instruction.
//!
//! The crate uses only the public interface of probes. Each kind of hook is one short file, and an
//! example of how to write others.
//!
//! # Example
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::sync::Arc;
//! use wasm_jit::{Engine, Instance, Module, Store};
//! use wasm_jit_hooks::{AccessKind, memory};
//!
//! let module = Module::new(&Engine::default(), "(module (memory 1)
//!     (func (export \"fill\") (param i32)
//!         (loop (i32.store16 (local.get 0) (i32.const 7))
//!             (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 2)))))))")?;
//! let bytes = Arc::new(AtomicU64::new(0));
//! let stored = bytes.clone();
//! let hook = memory(&module, |_| true, move |access| {
//!     assert_eq!((access.kind, access.value), (AccessKind::Store, Some(7)));
//!     stored.fetch_add(access.size, Ordering::Relaxed);
//! })?;
//! let mut store = Store::new(module.engine(), ());
//! let fill = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, ()>(&mut store, "fill")?;
//! fill.call(&mut store, 100)?;
//! assert_eq!(bytes.load(Ordering::Relaxed), 100);
//! drop(hook);
//! fill.call(&mut store, 100)?;
//! assert_eq!(bytes.load(Ordering::Relaxed), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Callback`]: wasm_jit::probes::Callback

mod after;
mod attach;
mod blocks;
mod branches;
mod call_form;
mod calls;
mod flow;
mod functions;
mod hook;
mod memory;
mod of_hooks;
mod pending;
mod period;

pub use after::{After, after};
pub use attach::{Instances, Site};
pub use blocks::{Block, BlockKind, blocks};
pub use branches::{Branch, BranchKind, branches};
pub use call_form::CallForm;
pub use calls::{Call, CallKind, Callee, calls};
pub use flow::Flow;
pub use functions::{FunctionEvent, FunctionEventKind, functions};
pub use hook::Hook;
pub use memory::{Access, AccessInfo, AccessKind, accesses, memory};
pub use period::Period;
