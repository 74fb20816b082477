//! [`Replay`]: repeats a recorded run in this engine.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use wasm_jit::{AsContextMut, Instance, InterruptHandle, Module, Store, StoreLimits};

use super::error::Error;
use super::objects;
use super::rerun::{self, Ended, Observer, Run};
use super::snapshot::{Snapshots, Taking};
use super::state::State;

/// Repeats a recorded run in this engine: the program runs with a host that does what the trace
/// says. What the host did outside of the program, such as output, is not repeated.
///
/// The program executes the same instructions on the same values as when it was recorded, and as in
/// every other replay, whatever probes its module has. Arguments, results, and which function is
/// called next are compared with the trace.
///
/// # Example
/// ```
/// # use std::io::{self, Write};
/// # use std::sync::{Arc, Mutex};
/// use wasm_jit::probes::{Kind, Location, Place, ProbeSpec};
/// # use wasm_jit::{Engine, Linker, Module, Store};
/// # use wasm_jit_replay::{Ended, Recorder, Replay};
/// # #[derive(Clone, Default)]
/// # struct Trace(Arc<Mutex<Vec<u8>>>);
/// # impl Write for Trace {
/// #     fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
/// #         self.0.lock().expect("no writer panics").write(bytes)
/// #     }
/// #     fn flush(&mut self) -> io::Result<()> {
/// #         Ok(())
/// #     }
/// # }
/// # let engine = Engine::default();
/// # let program = Module::new(&engine, r#"(module
/// #     (import "host" "next" (func $next (result i32)))
/// #     (func $half (param i32) (result i32) (i32.shr_u (local.get 0) (i32.const 1)))
/// #     (func (export "run") (result i32) (i32.add (call $half (call $next)) (call $half (call $next)))))"#)?;
/// # let mut linker = Linker::new(&engine);
/// # linker.func_wrap("host", "next", || 42_i32)?;
/// # let trace = Trace::default();
/// # let recorder = Recorder::new(&program, trace.clone())?;
/// # let mut store = Store::new(&engine, ());
/// # let instance = recorder.instantiate(&mut store, &linker)?;
/// # instance.get_typed_func::<(), i32>(&mut store, "run")?.call(&mut store, ())?;
/// # let trace = io::Cursor::new(trace.0.lock().expect("no writer panics").clone());
/// // How often is `half` called in the run that `trace` has?
/// let half = Location { function: 1, place: Place::Entry };
/// let calls = program.probe(ProbeSpec { location: half, kind: Kind::Count })?;
/// calls.activate()?;
/// let mut replay = Replay::new(&program, trace)?;
/// assert!(matches!(replay.run()?, Ended::Returned));
/// assert_eq!(calls.count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Replay {
    store: Store<Run<Box<dyn Read>, Unobserved>>,
}

/// An observer that does nothing.
struct Unobserved;

impl Observer for Unobserved {}

impl Replay {
    /// A replay before its start: the instance exists, and none of its functions has been called,
    /// not even its start function. The trace is read while the program runs.
    ///
    /// # Errors
    /// [`Error::OtherModule`], [`Error::Damaged`], [`Error::Io`]; [`Error::Mismatch`] and
    /// [`Error::Unsupported`] for imports; [`Error::Engine`].
    pub fn new(module: &Module, trace: impl Read + 'static) -> Result<Self, Error> {
        let trace: Box<dyn Read> = Box::new(trace);
        rerun::instantiate(module, trace, Unobserved).map(|store| Self { store })
    }

    /// The instance that is replayed.
    pub fn instance(&self) -> Instance {
        self.store.data().instance()
    }

    /// A handle to interrupt the program from other threads.
    pub fn interrupt_handle(&mut self) -> InterruptHandle {
        self.store.interrupt_handle()
    }

    /// Limits the resources that the program may use. If it had limits when it was recorded, a
    /// replay without them differs from the point where they had an effect.
    pub fn set_limits(&mut self, limits: StoreLimits) {
        self.store.set_limits(limits);
    }

    /// Gives the program fuel: see [`Store::set_fuel`]. If the recorded run had the same amount and
    /// consumed it, the replay ends at the same instruction.
    ///
    /// # Errors
    /// [`wasm_jit::Error::NoFuel`].
    pub fn set_fuel(&mut self, fuel: u64) -> Result<(), wasm_jit::Error> {
        self.store.set_fuel(fuel)?;
        self.store.data_mut().set_fuel(fuel);
        Ok(())
    }

    /// The remaining fuel.
    ///
    /// # Errors
    /// [`wasm_jit::Error::NoFuel`].
    pub fn fuel(&self) -> Result<u64, wasm_jit::Error> {
        self.store.get_fuel()
    }

    /// Begins at the last of these snapshots at which less fuel than `unobserved` had been
    /// consumed, if there is one, so that earlier events do not happen. Also takes further
    /// snapshots during the run: where the host calls the program, no call to it is active, and the
    /// last snapshot is some milliseconds ago. To be called before [`Replay::run`], with the fuel
    /// of a run from its beginning; the fuel that was consumed before the snapshot is subtracted.
    ///
    /// No snapshots are taken of programs that keep references to anything but their own functions
    /// in tables or globals, or objects in constant globals and initializers.
    ///
    /// # Example
    /// ```no_run
    /// # use std::{fs::File, sync::Arc};
    /// # use wasm_jit::Module;
    /// # use wasm_jit_replay::{Replay, Snapshots};
    /// # fn again(module: &Module, snapshots: &Arc<Snapshots>) -> Result<(), Box<dyn std::error::Error>> {
    /// // What happens once a million units are consumed is of interest.
    /// let mut replay = Replay::new(module, File::open("app.trace")?)?;
    /// replay.set_fuel(i64::MAX as u64)?;
    /// replay.use_snapshots(snapshots.clone(), 1_000_000)?;
    /// replay.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`wasm_jit::Error::NoFuel`], and the errors of reading the trace: [`Error::Damaged`],
    /// [`Error::Io`].
    pub fn use_snapshots(&mut self, snapshots: Arc<Snapshots>, unobserved: u64) -> Result<(), Error> {
        let given = self.store.get_fuel()?;
        let instance = self.instance();
        match objects::refuse(&mut self.store.as_context_mut(), instance) {
            Err(Error::Unsupported { .. }) => return Ok(()),
            other => other?,
        }
        let initial = State::empty(&self.store.as_context_mut(), instance);
        if let Some(snapshot) = snapshots.before(unobserved.min(given)) {
            self.store.set_fuel(given - snapshot.consumed)?;
            self.store.data_mut().begin_at(snapshot)?;
        }
        let functions = self.store.data().functions().clone();
        self.store.data_mut().take_snapshots(Taking::new(snapshots, given, initial, functions));
        Ok(())
    }

    /// Runs the program on this thread, to the end of the trace. A second call has nothing left to
    /// do.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Io`] if the trace cannot be read. [`Error::Mismatch`] if the
    /// program does not do what is recorded, [`Error::Failed`] if it fails instead, including when
    /// a probe or an interrupt ends its call.
    pub fn run(&mut self) -> Result<Ended, Error> {
        rerun::run(&mut self.store)
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("instance", &self.instance()).finish_non_exhaustive()
    }
}
