//! A debugger for programs that run in [`wasm_jit`]: breakpoints, steps, watchpoints, values.
//!
//! It is built on [probes](wasm_jit::probes) only, which are switched while the program runs. A
//! program needs no preparation, and code without breakpoints runs at full speed. There is no
//! terminal in this crate: the command `wasm-jit debug` is one user, a server for another protocol
//! can be a second.
//!
//! # Stopping a program
//! A probe's closure runs on the program's thread, with its [`Frame`](wasm_jit::probes::Frame).
//! When it decides to stop, it reports an [`Event::Stopped`] and waits for commands.
//! [`Debugger::inspect`] sends it closures, which read and change the program there;
//! [`Debugger::resume`] lets it return. Other threads of the program continue until they come to a
//! place where they would stop, and wait for their turn there.
//!
//! # Places
//! A function in which there may be a stop first gets a probe at every instruction, off. So its
//! code has sites everywhere, and the frame that stops is in that code: every probe that is
//! switched on meanwhile takes effect when it continues. Frames further up the stack get there when
//! their callee returns.
//!
//! # Steps
//! A step switches on probes where control may go next: the successors in this frame, the first
//! instructions of callees (which an indirect call names when it is executed), where the callers
//! continue, and where exceptions are caught in any frame. Which of them is the step's is decided
//! by the depth of the stack. So steps are exact under recursion, tail calls, indirect calls and
//! exceptions, and other code runs at full speed meanwhile.
//!
//! # Watchpoints
//! A [global probe](wasm_jit::probes::GlobalProbe) evaluates the expressions before each
//! instruction: of all stores, calls of the host, and other threads' writes that this thread meets.
//! This is slow, and it ends with the watchpoint. Functions of tens of thousands of instructions
//! may need more memory for that than [probes get](wasm_jit::probes::ProbeError::StubMemory): they
//! are not watched, and each stop and the end [say so](Stop::unwatched).
//!
//! # Going back
//! If every run of the program executes the same instructions, as one that was recorded does, the
//! program can go back ([`Debugger::allow_reverse`], [`Debugger::reverse`]): it is run again, and
//! stops at an earlier moment.
//!
//! # Example
//! ```
//! use wasm_jit::{Engine, Instance, Module, Store, Val};
//! use wasm_jit_debug::{Debugger, Event, Outcome, Resume};
//!
//! let module = Module::new(&Engine::default(), "(module
//!     (func $square (export \"square\") (param $x i32) (result i32)
//!         (i32.mul (local.get $x) (local.get $x))))")?;
//! let debugger = Debugger::new(&module);
//! debugger.add_breakpoint("square", None, false)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let mut store = Store::new(module.engine(), ());
//!         let instance = Instance::new(&mut store, &module, &[]).unwrap();
//!         let square = instance.get_typed_func::<i32, i32>(&mut store, "square").unwrap();
//!         let result = square.call(&mut store, 7).unwrap();
//!         debugger.ended(Outcome::returned(result.to_string()));
//!     });
//!     let Event::Stopped(_) = debugger.wait() else { panic!("it does not stop") };
//!     debugger.inspect(|stopped| stopped.frame(0)?.set_local(0, &Val::I32(9)))??;
//!     debugger.resume(Resume::Continue)?;
//!     let Event::Ended(outcome) = debugger.wait() else { panic!("it stops again") };
//!     assert_eq!(outcome.text, "81");
//!     Ok::<_, wasm_jit_debug::Error>(())
//! })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod code;
mod debugger;
mod dwarf;
mod error;
mod expression;
mod frames;
mod gdb;
mod names;
mod pass;
mod places;
mod position;
mod reverse;
mod shared;
mod step;
mod stop;
mod trail;
mod value;
mod watch;

pub use code::Code;
pub use debugger::Debugger;
pub use error::Error;
pub use expression::Expression;
pub use frames::{Scope, Stopped};
pub use gdb::{GdbEnd, serve};
pub use pass::Repetition;
pub use reverse::Reverse;
pub use shared::Killed;
pub use step::Resume;
pub use stop::{Breakpoint, Event, Outcome, Reason, Stop, Unwatched};
pub use value::Value;
