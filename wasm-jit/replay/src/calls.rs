//! [`CallRecorder`]: records calls to one function of a running program, or to all functions.
//!
//! 1. Probes at the entry and exit of the function, or of all functions, are activated, at any time
//!    and from any thread. A call that is already running is not seen; calls that it makes are.
//! 2. When the first wanted call enters, the state of the instance is written (`state.rs`), and the
//!    call as a call by the host. From here on, the store's calls are observed (`recording.rs`).
//! 3. When this frame returns, the call in the trace also returns, and the store is no longer
//!    observed. Recursive calls, and calls by the host in between, are part of the call; if all
//!    functions are recorded, so is everything that is called within it.
//! 4. Everything between two calls is attributed to the host: the state after the first call is
//!    kept, and at the next entry, the differences become events.
//! 5. After the last call, the probes are removed, and the functions return to their original code.
//!
//! A call that fails, or is left by an exception, ends the recording. The probe that detects this
//! cannot access the store, so the store's observer stays: it ignores calls, and removes itself at
//! the next one; until then, calls between instances go through the host.
//!
//! An error ends the recording, not the program.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use wasm_jit::probes::{
    Frame, GenericFn, Kind, Location, Place, Probe, ProbeSpec, UnwoundFrame, UnwoundWatch,
};
use wasm_jit::{
    AsContextMut, CallObserver, Caller, Func, FunctionInfo, Instance, Module, ObserverId, StoreContextMut,
    Val,
};

use super::accesses;
use super::any_store::AnyStore;
use super::check::check;
use super::error::{Error, unsupported};
use super::event::Event;
use super::exception;
use super::functions::all_recorded;
use super::recording::Recording;
use super::state::{State, write_snapshot};
use super::trace::Writer;

/// Chooses the calls of a function that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// The function's index.
    pub function: u32,
    /// The number of calls that are skipped first; recursive calls count.
    pub skipped: u64,
    /// The number of calls that are recorded after that. Recursive calls are part of the outer
    /// call.
    pub number: NonZeroU64,
}

/// The calls to record: those of a function, or of all functions.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// The function's index.
    function: Option<u32>,
    skipped: u64,
    /// `None` for all calls until the end.
    number: Option<NonZeroU64>,
}

impl Wanted {
    /// Whether calls to this function are recorded.
    fn has(self, function: u32) -> bool {
        self.function.is_none_or(|wanted| wanted == function)
    }
}

impl From<Calls> for Wanted {
    fn from(Calls { function, skipped, number }: Calls) -> Self {
        Self { function: Some(function), skipped, number: Some(number) }
    }
}

/// Records calls to a function, or to all functions, until the chosen number of them has ended, or
/// until it is stopped or dropped. Only one instance is recorded: the first one that makes a call
/// that is to be recorded.
#[derive(Debug)]
pub struct CallRecorder(Shared);

impl CallRecorder {
    /// Checks whether these calls can be recorded, as far as that is known before the program runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(module: &Module, calls: Calls) -> Result<(), Error> {
        checked(module, calls).map(drop)
    }

    /// Starts to record calls in stores with data of type `T`. The trace is flushed after each call
    /// in either direction. Returns at once; the program may be running on any thread.
    ///
    /// The first call is delayed by the time to write memories and tables, and each further one by
    /// the time to compare them with a copy of the memories, which is kept between calls.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a module that cannot be recorded, or if the function is imported
    /// or ends in tail calls; [`Error::Engine`] if there are no probes; [`Error::Io`].
    pub fn start<T: 'static>(
        module: &Module,
        calls: Calls,
        out: impl Write + Send + 'static,
    ) -> Result<Self, Error> {
        Self::start_with::<T>(module, calls.into(), &[checked(module, calls)?], || Writer::new(out))
    }

    /// As [`CallRecorder::start`], to a file: see [`Writer::to_file`].
    ///
    /// # Errors
    /// As [`CallRecorder::start`].
    pub fn start_to_file<T: 'static>(module: &Module, calls: Calls, file: File) -> Result<Self, Error> {
        Self::start_with::<T>(module, calls.into(), &[checked(module, calls)?], || Writer::to_file(file))
    }

    /// Starts to record this number of the calls that begin from now on, or all of them (`None`).
    /// Functions that are running now are treated as the host: what they change between two calls
    /// that they make becomes changes by the host, and when they return, the calls of their callers
    /// are recorded. Functions that end in tail calls are always treated as the host. A call by a
    /// recorded function is part of that call.
    ///
    /// During the recording, each function runs with two probes, and between two calls of the trace
    /// the memories are compared with a copy of them. Otherwise as [`CallRecorder::start`].
    ///
    /// # Errors
    /// As [`CallRecorder::start`].
    pub fn start_all<T: 'static>(
        module: &Module,
        number: Option<NonZeroU64>,
        out: impl Write + Send + 'static,
    ) -> Result<Self, Error> {
        Self::start_all_with::<T>(module, number, || Writer::new(out))
    }

    /// As [`CallRecorder::start_all`], to a file: see [`Writer::to_file`].
    ///
    /// # Errors
    /// As [`CallRecorder::start`].
    pub fn start_all_to_file<T: 'static>(
        module: &Module,
        number: Option<NonZeroU64>,
        file: File,
    ) -> Result<Self, Error> {
        Self::start_all_with::<T>(module, number, || Writer::to_file(file))
    }

    fn start_all_with<T: 'static>(
        module: &Module,
        number: Option<NonZeroU64>,
        writer: impl FnOnce() -> Result<Writer, Error>,
    ) -> Result<Self, Error> {
        check(module)?;
        let indices = 0..module.functions().len() as u32;
        let functions: Vec<_> = indices.filter_map(|index| accesses::delimited(module, index).ok()).collect();
        if functions.is_empty() {
            return Err(unsupported("a module without a function that returns"));
        }
        Self::start_with::<T>(module, Wanted { function: None, skipped: 0, number }, &functions, writer)
    }

    fn start_with<T: 'static>(
        module: &Module,
        calls: Wanted,
        functions: &[FunctionInfo<'_>],
        writer: impl FnOnce() -> Result<Writer, Error>,
    ) -> Result<Self, Error> {
        let shared = Shared(Arc::new(Mutex::new(Recorded::new(module, calls, writer()?))));
        let left = shared.clone();
        let watch = module.watch_unwound(move |frame| {
            if calls.has(frame.function) {
                left.lock().unwound(FrameOfThread::new(frame.frame), frame);
            }
        });
        let recorder = Self(shared.clone());
        // A call waits at its entry until all probes are active.
        let mut recorded = shared.lock();
        let specs: Vec<_> = functions.iter().flat_map(|function| boundary::<T>(function, &shared)).collect();
        let probes = accesses::make(module, &specs).map_err(accesses::refused)?;
        recorded.attached = Some((probes, watch));
        drop(recorded);
        Ok(recorder)
    }

    /// Whether the calls have been recorded, or an error has ended the recording.
    pub fn has_ended(&self) -> bool {
        self.0.lock().recording.is_none()
    }

    /// Ends the recording and completes the trace. Returns the number of calls in the trace; a call
    /// that has not ended is contained up to this point.
    ///
    /// # Errors
    /// [`Error::Unsupported`] or [`Error::Io`] if such an error has ended the recording before;
    /// reported once. [`Error::NotCalled`] if there was no call, [`Error::FewerCalls`] if all calls
    /// were skipped: then the trace has no run. [`Error::NothingCalled`] if all functions were to
    /// be recorded, and none was called.
    pub fn stop(&self) -> Result<u64, Error> {
        let mut recorded = self.0.lock();
        recorded.finish();
        let failed = recorded.failed.take();
        let name = |function| accesses::name(&recorded.module, function);
        match failed {
            Some(error) => Err(error),
            None if recorded.entered == 0 => Err(match (recorded.calls.function, recorded.skipped) {
                (None, _) => Error::NothingCalled,
                (Some(function), 0) => Error::NotCalled { function: name(function) },
                (Some(function), calls) => Error::FewerCalls { function: name(function), calls },
            }),
            None => Ok(recorded.entered),
        }
    }
}

impl Drop for CallRecorder {
    fn drop(&mut self) {
        self.0.lock().finish();
    }
}

fn checked(module: &Module, calls: Calls) -> Result<FunctionInfo<'_>, Error> {
    check(module)?;
    accesses::delimited(module, calls.function)
}

/// A frame, by its thread and its number in that thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FrameOfThread(ThreadId, u64);

impl FrameOfThread {
    /// The frame of the current thread with this number.
    fn new(number: u64) -> Self {
        Self(thread::current().id(), number)
    }
}

struct Recorded {
    module: Module,
    calls: Wanted,
    /// `None` after the end of the recording.
    recording: Option<Recording>,
    /// The instance of the first recorded call.
    instance: Option<Instance>,
    /// The state after the last call, between two calls.
    known: Option<State>,
    /// The number of calls that were skipped so far.
    skipped: u64,
    /// The number of calls that were recorded so far or have begun.
    entered: u64,
    /// The outermost frame of the call that is recorded.
    inside: Option<FrameOfThread>,
    /// The observer of the store, while a call is recorded.
    observer: Option<ObserverId>,
    failed: Option<Error>,
    /// Dropped at the end of the recording.
    attached: Option<(Vec<Probe>, UnwoundWatch)>,
}

impl Recorded {
    fn new(module: &Module, calls: Wanted, writer: Writer) -> Self {
        let recording = Recording::new(module, writer);
        Self {
            module: module.clone(),
            calls,
            recording: Some(recording),
            instance: None,
            known: None,
            skipped: 0,
            entered: 0,
            inside: None,
            observer: None,
            failed: None,
            attached: None,
        }
    }

    /// Completes the trace so that it can be read. Does nothing if the recording has ended.
    fn finish(&mut self) {
        if let Some(mut recording) = self.recording.take()
            && let Err(error) = recording.out.close()
        {
            self.failed.get_or_insert(error);
        }
        (self.inside, self.known, self.attached) = (None, None, None);
    }

    fn end_if_failed(&mut self, done: Result<(), Error>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
            self.finish();
        }
    }

    /// Whether a call that is entered now is to be recorded.
    fn is_wanted(&mut self, instance: Instance) -> bool {
        if self.recording.is_none()
            || self.inside.is_some()
            || self.instance.is_some_and(|one| one != instance)
        {
            return false;
        }
        let is_wanted = self.skipped == self.calls.skipped;
        self.skipped += u64::from(!is_wanted);
        is_wanted
    }

    /// A function is entered, outside of recorded calls.
    fn enter(
        &mut self,
        store: &mut dyn AnyStore,
        instance: Instance,
        function: u32,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let Some(recording) = &mut self.recording else { return Ok(()) };
        let functions = recording.out.functions.clone();
        let arguments = all_recorded(arguments, instance, &functions, store)?;
        match self.known.take() {
            None => write_snapshot(store, instance, &mut recording.out)?,
            Some(known) => {
                let out = &mut recording.out;
                known.write_changes(store, instance, &functions, &mut |event| out.write(&event))?;
            }
        }
        recording.out.write(&Event::Enter { function, arguments })?;
        self.instance = Some(instance);
        self.entered += 1;
        recording.begin(store, instance)?;
        recording.out.flush()
    }

    /// Ends the observation of a store's calls.
    fn end_observation<T: 'static>(&mut self, store: &mut StoreContextMut<'_, T>) {
        if let Some(observer) = self.observer.take() {
            store.remove_observer(observer);
        }
    }

    /// The outermost frame returns.
    fn leave<T: 'static>(
        &mut self,
        mut store: StoreContextMut<'_, T>,
        instance: Instance,
        results: &[Val],
    ) -> Result<(), Error> {
        self.inside = None;
        self.end_observation(&mut store);
        let Some(recording) = &mut self.recording else { return Ok(()) };
        recording.end();
        let functions = recording.out.functions.clone();
        let results = all_recorded(results, instance, &functions, &store)?;
        recording.out.write(&Event::Leave { results })?;
        recording.out.flush()?;
        if self.calls.number.is_some_and(|number| self.entered == number.get()) {
            self.finish();
        } else {
            self.known = Some(State::of(&mut store, instance, &functions));
        }
        Ok(())
    }

    /// A frame of the function is left by a trap, an exception, or a failure of the host.
    fn unwound(&mut self, frame: FrameOfThread, left: UnwoundFrame<'_>) {
        if self.inside != Some(frame) {
            return;
        }
        if let Some(recording) = &mut self.recording
            && let Some(event) = exception::unwound(left, recording.fuel())
        {
            let written = recording.out.write(&event);
            self.end_if_failed(written);
        }
        self.finish();
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Recorded>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Recorded> {
        // Not held while foreign code runs, which might panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A probe at the entry fires.
    fn entered<T: 'static>(&self, frame: &mut Frame<'_>, function: u32, parameters: u32) {
        let mut recorded = self.lock();
        if recorded.is_wanted(frame.instance()) {
            let begun = self.begin::<T>(&mut recorded, frame, function, parameters);
            recorded.end_if_failed(begun);
        }
    }

    fn begin<T: 'static>(
        &self,
        recorded: &mut Recorded,
        frame: &mut Frame<'_>,
        function: u32,
        parameters: u32,
    ) -> Result<(), Error> {
        let (instance, number) = (frame.instance(), frame.number());
        let locals = (0..parameters).map(|local| frame.local(local));
        let arguments: Vec<Val> = locals.collect::<Result<_, _>>().map_err(wasm_jit::Error::from)?;
        let mut store = frame.store::<T>().ok_or_else(|| unsupported("a store with data of another type"))?;
        // From here on, imports that are functions of other instances are treated as host
        // functions.
        recorded.observer = Some(store.observe_calls(Arc::new(self.clone()))?);
        recorded.inside = Some(FrameOfThread::new(number));
        let entered = recorded.enter(&mut store, instance, function, &arguments);
        if entered.is_err() {
            recorded.end_observation(&mut store);
        }
        entered
    }

    /// A probe at the exit fires.
    fn left<T: 'static>(&self, frame: &mut Frame<'_>, results: u32) {
        let mut recorded = self.lock();
        if recorded.inside == Some(FrameOfThread::new(frame.number())) {
            let ended = end::<T>(&mut recorded, frame, results);
            recorded.end_if_failed(ended);
        }
    }

    /// Notifies the recording of a call; removes the observer if there is no recording any more.
    fn observe<T: 'static>(
        &self,
        mut store: StoreContextMut<'_, T>,
        event: impl FnOnce(&mut Recording, &mut StoreContextMut<'_, T>) -> Result<(), Error>,
    ) {
        let mut recorded = self.lock();
        let done = match &mut recorded.recording {
            Some(recording) => event(recording, &mut store),
            None => return recorded.end_observation(&mut store),
        };
        recorded.end_if_failed(done);
    }
}

impl<T: 'static> CallObserver<T> for Shared {
    fn enter(
        &self,
        store: StoreContextMut<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        self.observe(store, |recording, store| recording.enter(store, func, arguments));
        Ok(())
    }

    fn leave(
        &self,
        store: StoreContextMut<'_, T>,
        func: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        if !CallObserver::<T>::has_ended(self) {
            self.observe(store, |recording, store| recording.leave(store, func, results));
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.lock().recording.is_none()
    }

    fn enter_host(
        &self,
        mut caller: Caller<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        let instance = caller.instance();
        self.observe(caller.as_context_mut(), |recording, store| {
            recording.enter_host(store, instance, func, arguments)
        });
        Ok(())
    }

    fn leave_host(
        &self,
        mut caller: Caller<'_, T>,
        _: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        let instance = caller.instance();
        if !CallObserver::<T>::has_ended(self) {
            self.observe(caller.as_context_mut(), |recording, store| {
                recording.leave_host(store, instance, results)
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded = self.lock();
        let mut debug = f.debug_struct("Recorded");
        debug.field("calls", &recorded.calls).field("entered", &recorded.entered).finish_non_exhaustive()
    }
}

/// The outermost frame returns.
fn end<T: 'static>(recorded: &mut Recorded, frame: &mut Frame<'_>, results: u32) -> Result<(), Error> {
    let operands = (0..results).rev().map(|operand| frame.operand(operand));
    let results: Vec<Val> = operands.collect::<Result<_, _>>().map_err(wasm_jit::Error::from)?;
    let instance = frame.instance();
    let store = frame.store::<T>().ok_or_else(|| unsupported("a store with data of another type"))?;
    recorded.leave(store, instance, &results)
}

/// Probes that pass the arguments and the results of the function.
fn boundary<T: 'static>(function: &FunctionInfo<'_>, shared: &Shared) -> Vec<ProbeSpec> {
    let (parameters, results) = (function.ty().params().len() as u32, function.ty().results().len() as u32);
    let (index, entered, left) = (function.index(), shared.clone(), shared.clone());
    let at_entry = GenericFn::new(move |frame| {
        entered.entered::<T>(frame, index, parameters);
        Ok(())
    });
    let at_exit = GenericFn::new(move |frame| {
        left.left::<T>(frame, results);
        Ok(())
    });
    [(Place::Entry, at_entry), (Place::Exit, at_exit)]
        .map(|(place, closure)| ProbeSpec {
            location: Location { function: index, place },
            kind: Kind::Generic(closure),
        })
        .into()
}
