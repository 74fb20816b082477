//! A debugger for programs that run in [`wasm_jit`]: breakpoints, steps, watchpoints, values.
//!
//! It is built on [probes](wasm_jit::probes) only, which are toggled while the program runs. A
//! program needs no preparation, and code without breakpoints runs at full speed. This crate has no
//! terminal interface; the command `wasm-jit debug` provides one. [`serve`] serves clients of the
//! GDB remote protocol.
//!
//! # Stopping a program
//! A probe's closure runs on the program's thread, with its [`Frame`](wasm_jit::probes::Frame). To
//! stop the thread, it reports an [`Event::Stopped`] and waits for commands. [`Debugger::inspect`]
//! sends it closures, which read and change the program there; [`Debugger::resume`] lets it return.
//! Other threads of the program continue until they would stop as well, and then wait for their
//! turn. [`Debugger::release`] detaches from the program.
//!
//! # Places
//! Before a thread can stop in a function, the function gets a probe at every instruction, all off.
//! Thus its code has sites everywhere, and the frame that stops executes that code: every probe
//! that is activated during the stop takes effect when the frame continues. Frames further up the
//! stack switch to that code when their callee returns.
//!
//! # Steps
//! A step activates probes wherever control may go next: the successors in this frame, the first
//! instructions of callees (which an indirect call determines when it is executed), the points
//! where the callers continue, and those where exceptions are caught in any frame. The depth of the
//! stack decides which of them belongs to the step. Therefore steps are exact under recursion, tail
//! calls, indirect calls and exceptions, and other code runs at full speed.
//!
//! # Watchpoints
//! A [global probe](wasm_jit::probes::GlobalProbe) evaluates the expressions before each
//! instruction, so that it sees the effects of all stores, of calls to the host, and of other
//! threads' writes that this thread meets. This is slow, and ends with the watchpoint. Functions of
//! tens of thousands of instructions may need more memory for it than [probes
//! get](wasm_jit::probes::ProbeError::StubMemory): they are not watched, and each stop and the end
//! [say so](Stop::unwatched).
//!
//! # Traps
//! A trap, another error, or an exception that the program does not catch, stops its thread where
//! it occurs ([`Debugger::catch_traps`]). No probe can precede every instruction that may trap.
//! Instead, the engine [reports](wasm_jit::Module::watch_traps) the trap on the program's thread,
//! after the machine's fault and before any frame is left, with a
//! [`Frame`](wasm_jit::probes::Frame) like that of a probe. The waiting frames are read as at any
//! stop. In the frame that has trapped, the engine knows which registers the code of the
//! instruction has overwritten; a value that was only there has no value. Nothing can be changed,
//! since the frames do not continue.
//!
//! # Going back
//! If every run of the program executes the same instructions, as runs of a recorded program do,
//! the program can go back ([`Debugger::allow_reverse`], [`Debugger::reverse`]): it is run again,
//! and stops at an earlier moment. A stop at a trap counts as the end of the run: passes continue
//! to it, and the last instruction before it is the one that has trapped.
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
mod inlined;
mod lookup;
mod names;
mod pass;
mod places;
mod position;
mod quad;
mod reverse;
mod shared;
mod step;
mod stop;
mod trail;
mod value;
mod watch;

pub use code::Code;
pub use debugger::{Debugger, PausableThread};
pub use error::Error;
pub use expression::Expression;
pub use frames::{Scope, Stopped};
pub use gdb::{GdbEnd, serve};
pub use inlined::{Level, SourceFrame};
pub use pass::Repetition;
pub use reverse::Reverse;
pub use shared::Killed;
pub use step::Resume;
pub use stop::{Breakpoint, Event, Outcome, Reason, Stop, Unwatched};
pub use value::Value;
