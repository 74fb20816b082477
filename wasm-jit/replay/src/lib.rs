//! Records how the host interacts with a program, and generates a module that replays the run alone
//! (after Baek and others, "Wasm-R3", OOPSLA 2024).
//!
//! 1. A [`Recorder`] observes the calls between an instance and its host, from instantiation or any
//!    later moment to the end or any earlier moment (`record.rs`, `recording.rs`). It writes to the
//!    trace the calls in both directions, including nested ones, their arguments and results, the
//!    exceptions with which they end, and what the host has changed in memories, tables and globals
//!    before the program continues. A trace of an instance that ran before begins with its state
//!    (`state.rs`). A [`CallRecorder`] does the same for some calls to one function, or for all
//!    calls from a moment on, even within a call that is already running (`calls.rs`).
//! 2. A trace is a sequence of [`Event`]s (`event.rs`) in a compressed file (`trace/`): if its
//!    writer was killed, it is readable up to the last call or return in either direction. All
//!    values are stored as bits.
//! 3. [`generate`] makes a standalone module from the program and the trace (`generate/`): the
//!    imported functions are replaced by functions that do what the host did; `_start` repeats the
//!    calls by the host. The code of the original functions is copied byte by byte. With
//!    [`separate()`] and [`javascript()`], the program and its host remain separate.
//! 4. [`reduce`] makes a trace smaller (section 3.3 of the paper): it runs the program with a host
//!    that does what the trace says (`rerun.rs`), observes all accesses to memories
//!    (`accesses.rs`), and keeps the bytes that the program reads before they are overwritten.
//! 5. [`slice()`] runs the program in the same way, and writes a trace in which the host calls only
//!    one of its functions.
//! 6. [`import()`] converts a trace from the text format of Wasm-R3 (`import/`).
//! 7. [`Replay`] runs the program in the same way, for any observer: monitors, a debugger. With
//!    [`Snapshots`], it begins at a later call by the host (`snapshot.rs`).
//!
//! # Example
//! Recording the calls of a program, and replaying it without its host:
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
//! announces the ranges of its results, whereas a slice of the entire memory costs a copy of the
//! memory.
//!
//! # In the middle of a run
//! A recording that begins or ends in the middle of a run does not affect the program before and
//! after: during the recording, the store has an observer, and the functions of a [`CallRecorder`]
//! have two probes each. The snapshot contains the nonzero bytes of memories, the non-null elements
//! of tables, all mutable globals, and which segments were dropped. A replay starts with empty
//! memories and tables instead of the module's segments, restores this state when it is
//! instantiated, and does not call the start function.
//!
//! # Exceptions
//! An [`Event::Throw`] ends a call in either direction: a host function has thrown an exception, or
//! the host has caught one of the program. It has the values, and the index of the tag, which may
//! be imported, exported, or known to the module only. The program cannot look into exceptions with
//! other tags, which it passes on (`exception.rs`). The run continues after it, as after a return.
//! An exception that leaves the function of a [`CallRecorder`] or of [`slice()`] ends the new
//! trace; if it carries references, or the module does not have its tag, the trace ends before it,
//! while the function is running.
//!
//! # Several instances
//! A trace covers one of several linked instances; the others are a part of its host (`linked.rs`).
//! While it is recorded, the functions that it imports from them, its own functions that they
//! import, and calls through references in either direction are called through the host. Changes by
//! the others in memories, tables and globals that they share with it are effects of the host,
//! including those made by the segments of instances that are created during the recording. Several
//! instances can be recorded in one run, with a [`Recorder`] for each: the traces are independent
//! of each other, and each replays alone.
//!
//! If the instance gets a reference to a function that its module neither defines nor imports, for
//! example in a table that it shares with others, the function has a number in the trace and an
//! [`Event::Function`] with its type (`functions.rs`). In a replay it is a host function.
//!
//! # Host values
//! A reference to a host value (`externref`) is a number in the trace ([`Value::Extern`]): equal
//! numbers stand for the same value, of which the program can see no more. The recording keeps each
//! value until its end. In a replay, other values take their place: in a generated module,
//! references to integers (`i31ref`), and in a JavaScript host, objects. [`generate`] and
//! [`separate()`] refuse programs that use `any.convert_extern` and get such references, since they
//! could see the difference.
//!
//! # Not supported
//! [`Error::Unsupported`] names the feature. Refused before the program runs:
//!
//! * shared memories, and therefore threads;
//! * imported start functions;
//! * importing the same host function, memory, table, tag or mutable global twice;
//! * a second instance in a trace;
//! * imported tables whose elements are never null;
//! * functions in imported constant globals.
//!
//! Refused when they occur:
//!
//! * references to objects (structures, arrays, converted host values, and as `externref`, also
//!   integers) and exceptions that pass between the program and its host; nulls of all types and
//!   integers (`i31ref`) are recorded, like functions and host values;
//! * references to functions of other instances whose types mention types other than numbers,
//!   vectors, `funcref`, `externref`, `anyref` and `exnref`, or are declared as subtypes or in a
//!   group with others.
//!
//! Refused by [`generate`], [`separate()`] and [`javascript()`]: functions of other modules that
//! the host passes as a type of the module (`(ref $t)`).
//!
//! A run that continues after a trap can be recorded, but not replayed. Tail calls between
//! instances take stack space while one of the instances is recorded. A trace does not have the
//! contents of objects: if the recording does not begin with the instance, and by [`slice()`],
//! programs that have objects in globals, tables or element segments are refused.
//!
//! A trace does not have the references that the host keeps: a replay identifies the functions and
//! memories that the host uses by their indices in the module, and other functions by their
//! numbers.

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
mod initializers;
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
pub use generate::{
    DIFFERENCE, INCOMPLETE, JavaScript, LAST, NEXT, POSITION, Separate, generate, javascript, separate,
};
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
