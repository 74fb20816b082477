//! Records what the host does to a program, and generates a module that replays the run alone
//! (after Baek and others, "Wasm-R3", OOPSLA 2024).
//!
//! 1. A [`Recorder`] observes the calls between an instance and its host, from instantiation on or
//!    from any later moment, to the end or to any earlier one (`record.rs`, `recording.rs`). It
//!    writes to the trace: calls in both directions, also nested ones, their arguments and results,
//!    the exceptions with which they end, and what the host has changed in memories, tables and
//!    globals before the program continues. A trace of an instance that ran before begins with its
//!    state (`state.rs`). A [`CallRecorder`] does the same for some calls of one function, within a
//!    call that runs already (`calls.rs`).
//! 2. A trace is a sequence of [`Event`]s (`event.rs`) in a compressed file (`trace/`): one whose
//!    writer was killed is readable up to the last call in either direction, or its end. All values
//!    are stored as bits.
//! 3. [`generate`] makes a standalone module from the program and the trace (`generate/`): the
//!    imported functions are replaced by functions that do what the host did; `_start` repeats the
//!    calls of the host. The code of the original functions is copied byte by byte. With
//!    [`separate()`] and [`javascript()`], the program and its host remain apart.
//! 4. [`reduce`] makes a trace smaller (section 3.3 of the paper): it runs the program with a host
//!    that does what the trace says (`rerun.rs`), observes all accesses to memories
//!    (`accesses.rs`), and keeps the bytes that the program reads before they are overwritten.
//! 5. [`slice()`] runs the program in the same way, and writes a trace in which the host calls only
//!    one of its functions.
//! 6. [`import()`] makes a trace from one in the text format of Wasm-R3 (`import/`).
//! 7. [`Replay`] runs the program in the same way, for whatever observes it: monitors, a debugger.
//!    With [`Snapshots`], it begins at a later call of the host (`snapshot.rs`).
//!
//! # Example
//! Recording calls of a program, and replaying them without its host:
//!
//! ```
//! use std::io::{self, Write};
//! use std::sync::{Arc, Mutex};
//!
//! use wasm_jit::{Engine, Linker, Module, Store};
//! use wasm_jit_replay::{Event, Reader, Recorder, generate};
//!
//! /// A trace in memory; usually it is a file.
//! #[derive(Clone, Default)]
//! struct Trace(Arc<Mutex<Vec<u8>>>);
//!
//! impl Write for Trace {
//!     fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
//!         self.0.lock().expect("no writer panics").write(bytes)
//!     }
//!     fn flush(&mut self) -> io::Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let engine = Engine::default();
//! let program = Module::new(&engine, r#"(module
//!     (import "host" "next" (func $next (result i32)))
//!     (func (export "sum") (result i32) (i32.add (call $next) (call $next))))"#)?;
//! let mut linker = Linker::new(&engine);
//! linker.func_wrap("host", "next", || 21_i32)?;
//!
//! // 1. Run the program, and record the calls in both directions.
//! let trace = Trace::default();
//! let recorder = Recorder::new(&program, trace.clone())?;
//! let mut store = Store::new(&engine, ());
//! let instance = recorder.instantiate(&mut store, &linker)?;
//! let sum = instance.get_typed_func::<(), i32>(&mut store, "sum")?;
//! assert_eq!(sum.call(&mut store, ())?, 42);
//!
//! // 2. Read the trace: the start, a call, two calls of the host and their returns, the return.
//! let trace = trace.0.lock().expect("no writer panics").clone();
//! let events = Reader::new(&trace[..]).collect::<Result<Vec<Event>, _>>()?;
//! assert_eq!(events.len(), 7);
//! assert!(matches!(events.last(), Some(Event::Leave { .. })));
//!
//! // 3. Generate a module that replays the run, and checks it.
//! let replay = Module::from_binary(&engine, &generate(program.bytes(), &trace[..], true)?)?;
//! assert_eq!(replay.imports().len(), 0);
//! let mut store = Store::new(&engine, ());
//! let instance = Linker::new(&engine).instantiate(&mut store, &replay)?;
//! instance.get_typed_func::<(), ()>(&mut store, "_start")?.call(&mut store, ())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Detection of effects
//! The engine copies bytes of a memory before the host gets write access to them
//! ([`WriteLog`](wasm_jit::WriteLog)); the copies are compared when the program continues. This is
//! exact for any safe host, and costs time in proportion to what the host may have written: WASI
//! announces the ranges of its results, a slice of the complete memory costs a copy of it.
//!
//! # In the middle of a run
//! A recording that begins or ends in the middle changes nothing for the program before and after:
//! the store has an observer meanwhile, and the function of a [`CallRecorder`] two probes. The
//! snapshot has the bytes of memories that are not zero, the elements of tables that are not null,
//! all mutable globals, and which segments were dropped. A replay starts with empty memories and
//! tables instead of the module's segments, restores this state when it is instantiated, and does
//! not call the start function.
//!
//! # Exceptions
//! An [`Event::Throw`] ends a call in either direction: the function of the host has thrown an
//! exception, or the host has caught one of the program. It has the index of the tag, which may be
//! imported, exported, or known to the module only, and the values. The program cannot look into
//! exceptions of other tags, which it passes on (`exception.rs`). The run goes on after it, as
//! after a return. An exception that leaves the one function of a [`CallRecorder`] or of
//! [`slice()`] ends the new trace; if it carries references, or the module does not have its tag,
//! the trace ends before, with the function running.
//!
//! # Several instances
//! Of instances that are linked with each other, a trace has one; the others are a part of its host
//! (`linked.rs`). Functions that it imports from them, and its own that they import, are called
//! through the host while it is recorded, and so are those that either calls through references.
//! What the others change in memories, tables and globals
//! that they share with it are effects of the host, and so are the segments of instances that are
//! made meanwhile. Several can be recorded in one run, with a [`Recorder`] for each: the traces are
//! independent of each other, and each replays alone.
//!
//! A function that the module neither has nor imports, to which the instance gets a reference, as
//! in a table that it shares with others, has a number in the trace and an [`Event::Function`] with
//! its type (`functions.rs`). In a replay it is a function of the host.
//!
//! # Not supported
//! [`Error::Unsupported`] names it: shared memories and so threads, imported start functions,
//! imports of one function of the host, memory, table, tag or mutable global twice, a second
//! instance in a trace; at the moment that they occur, references to values of the host, to
//! objects, and to functions of others whose types mention types other than numbers, vectors,
//! `funcref` and `externref`, or are declared as subtypes or in a group with others; functions in
//! constant globals that are imported. A run that goes on after a trap can be recorded, but not
//! replayed. Tail calls between instances take stack while one of them is recorded. What is in
//! objects is not in a trace: if the recording does not begin with the instance, and by
//! [`slice()`], programs are refused that have objects in globals, tables or element segments.
//!
//! References that the host keeps are not in a trace: a replay knows the functions and memories
//! that the host uses by their indices in the module, and other functions by their numbers.

mod accesses;
mod any_store;
mod calls;
mod check;
mod dirty;
mod error;
mod event;
mod exception;
mod functions;
mod generate;
mod import;
mod imported;
mod limits;
mod linked;
mod objects;
mod record;
mod recording;
mod reduce;
mod replay;
mod rerun;
mod slice;
mod snapshot;
mod state;
mod stops;
mod trace;
mod value;
mod writes;

pub use calls::{CallRecorder, Calls};
pub use error::{Difference, Error};
pub use event::{Event, Exception, Reason};
pub use generate::{DIFFERENCE, JavaScript, LAST, POSITION, Separate, generate, javascript, separate};
pub use import::{import, import_within};
pub use limits::Limits;
pub use record::Recorder;
pub use reduce::{Reduced, reduce, reduce_within};
pub use replay::Replay;
pub use rerun::{Ended, HostFailed};
pub use slice::{slice, slice_within};
pub use snapshot::Snapshots;
pub use trace::{Reader, Writer};
pub use value::{Type, Value};
