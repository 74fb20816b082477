//! What a recorder of a store observes: calls between the host and WebAssembly, and writes by the
//! host.
//!
//! # Calls
//! [`CallObserver`] is called around each call from the host to a WebAssembly function, by whatever
//! part of the API, and around each call from WebAssembly to a host function. There may be several
//! observers; they can be added and removed at any time. If there is none, each such call costs a
//! comparison. A call to a function of another instance, as an import or through a reference, is
//! observed as a call from the first instance to the host, and a call from the host to the second
//! instance (`redirect.rs`).
//!
//! # Writes
//! Safe code writes to a memory only through its [`Memory`], so a [`WriteLog`] knows what may have
//! changed without comparing the complete memory: before bytes are handed out for writing, they are
//! copied. [`Memory::write`] copies the bytes that it replaces; a slice of the complete memory
//! (`data_mut`) costs a copy of the complete memory. Each log has its own copies. Code that takes
//! [`Memory::data_ptr`] can write at any later time, so a memory whose address was given out is
//! copied each time the log restarts. To avoid this cost, a host that writes through an address
//! announces its writes ([`Memory::announced`]). For tables, the log records which elements were
//! set or added; these are not copied.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::activation;
use super::caller::Caller;
use super::func::Func;
use super::host::{HostCall, HostFuncData};
use super::instance::InstanceData;
use super::memory::Memory;
use super::redirect;
use super::store::{AsContext, AsContextMut, Handle, Store, StoreContextMut, StoreInner, StoreOpaque};
use super::table::Table;
use super::value::{Val, read_words};
use crate::error::Error;
use crate::linear_memory::{LinearMemory, copy_atomically};
use crate::types::ValType;

/// Is called around each call between the host and WebAssembly. If it returns an error, the call
/// fails with this error.
pub trait CallObserver<T: 'static>: Send + Sync {
    /// The host is about to call a WebAssembly function.
    ///
    /// # Errors
    /// If this returns an error, the function is not called.
    fn enter(&self, store: StoreContextMut<'_, T>, func: &Func, arguments: &[Val]) -> Result<(), Error>;

    /// The WebAssembly function has returned these results, or failed.
    ///
    /// # Errors
    /// The call fails with this error.
    fn leave(
        &self,
        store: StoreContextMut<'_, T>,
        func: &Func,
        results: Result<&[Val], &Error>,
    ) -> Result<(), Error>;

    /// Whether the observer ignores all calls from now on, so that another one may take its place.
    fn has_ended(&self) -> bool {
        false
    }

    /// The program is about to call a host function.
    ///
    /// # Errors
    /// If this returns an error, the function is not called.
    fn enter_host(&self, _caller: Caller<'_, T>, _func: &Func, _arguments: &[Val]) -> Result<(), Error> {
        Ok(())
    }

    /// The host function has returned these results, or failed.
    ///
    /// # Errors
    /// The call fails with this error.
    fn leave_host(
        &self,
        _caller: Caller<'_, T>,
        _func: &Func,
        _results: Result<&[Val], &Error>,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// Identifies an observer that was added to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObserverId(u64);

impl ObserverId {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// The observers of a store, in the order in which they were added; at least one.
pub(crate) struct Observers<T: 'static>(Vec<(ObserverId, Arc<dyn CallObserver<T>>)>);

impl<T: 'static> Observers<T> {
    /// Performs a call between the notifications of all observers; those of each observer are
    /// nested inside those of the previous ones. An observer that refuses the call, or ends it with
    /// an error, determines what the others see.
    ///
    /// # Errors
    /// As for the call, and errors that observers return.
    fn around<C>(
        &self,
        context: &mut C,
        enter: impl Fn(&mut C, &dyn CallObserver<T>) -> Result<(), Error>,
        call: impl FnOnce(&mut C) -> Result<Vec<Val>, Error>,
        leave: impl Fn(&mut C, &dyn CallObserver<T>, Result<&[Val], &Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut entered, mut refused) = (0, None);
        for (_, observer) in &self.0 {
            if let Err(error) = enter(context, &**observer) {
                refused = Some(error);
                break;
            }
            entered += 1;
        }
        let mut done = refused.map_or_else(|| call(context), Err);
        for (_, observer) in self.0[..entered].iter().rev() {
            if let Err(error) = leave(context, &**observer, done.as_deref()) {
                done = Err(error);
            }
        }
        done.map(drop)
    }
}

/// Calls host functions between two calls to each observer, whatever the type of the store's data.
pub(crate) struct HostObserver(Box<CallHost>);

type CallHost = dyn Fn(*const HostFuncData, HostCall, *mut u64) -> Result<(), Error> + Send + Sync;

impl<T: 'static> fmt::Debug for Observers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(id, _)| id)).finish()
    }
}

impl<T: 'static> Store<T> {
    /// Adds an observer: it observes calls between the host and WebAssembly from now on. For calls
    /// that are already running, nothing changes.
    ///
    /// While there are observers, calls to functions of other instances go through the host,
    /// including tail calls: a chain of tail calls between instances takes stack. If there are
    /// several instances, calls through references within one take a few nanoseconds longer.
    ///
    /// # Errors
    /// [`Error::Code`] if there is no memory for the trampolines that this takes.
    pub fn observe_calls(&mut self, observer: Arc<dyn CallObserver<T>>) -> Result<ObserverId, Error> {
        self.as_context_mut().observe_calls(observer)
    }

    /// Removes an observer, if the store has it. For calls that are already running, nothing
    /// changes.
    pub fn remove_observer(&mut self, id: ObserverId) {
        self.as_context_mut().remove_observer(id);
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// As [`Store::observe_calls`], for use in a host function or in the closure of a probe.
    ///
    /// # Errors
    /// As for [`Store::observe_calls`].
    pub fn observe_calls(&mut self, observer: Arc<dyn CallObserver<T>>) -> Result<ObserverId, Error> {
        let (mut observers, id) = (self.observers(), ObserverId::next());
        if observers.is_empty()
            && let Err(error) = redirect::begin(self.inner_mut())
        {
            redirect::end(&mut self.inner_mut().opaque);
            return Err(error);
        }
        observers.push((id, observer));
        self.set_observers(observers);
        Ok(id)
    }

    /// As [`Store::remove_observer`], for use in a host function or in the closure of a probe.
    pub fn remove_observer(&mut self, id: ObserverId) {
        let mut observers = self.observers();
        observers.retain(|(of, _)| *of != id);
        if observers.is_empty() {
            redirect::end(&mut self.inner_mut().opaque);
        }
        self.set_observers(observers);
    }

    /// Whether there is an observer that has not [ended](CallObserver::has_ended).
    pub fn is_observed(&self) -> bool {
        self.observers().iter().any(|(_, observer)| !observer.has_ended())
    }

    fn observers(&self) -> Vec<(ObserverId, Arc<dyn CallObserver<T>>)> {
        self.as_context().0.observers.as_ref().map_or_else(Vec::new, |observers| observers.0.clone())
    }

    /// Calls that are already running keep the observers that they began with.
    fn set_observers(&mut self, observers: Vec<(ObserverId, Arc<dyn CallObserver<T>>)>) {
        let store = self.inner_mut();
        store.observers = (!observers.is_empty()).then(|| Arc::new(Observers(observers)));
        let observers = store.observers.clone();
        store.opaque.host_observer = observers.map(|observers| Arc::new(HostObserver::new(observers)));
    }
}

/// Calls a WebAssembly function between two calls to each observer.
///
/// # Errors
/// As for [`activation::invoke_from`], and errors that observers return.
///
/// # Safety
/// As for [`activation::invoke_from`].
#[cold]
pub(super) unsafe fn invoke<T: 'static>(
    store: &mut StoreInner<T>,
    observers: &Observers<T>,
    func: Func,
    caller: Option<NonNull<InstanceData>>,
    values: *mut u64,
) -> Result<(), Error> {
    let ty = func.type_in(&store.opaque);
    // These are roots: what the observers do may run the collector.
    // SAFETY: the caller's obligation.
    let arguments = unsafe { lift(&mut store.opaque, ty.params(), values) };
    let call = |store: &mut StoreInner<T>| {
        // SAFETY: the caller's obligation.
        unsafe { activation::invoke_unobserved(store, func, caller, values) }?;
        // SAFETY: the function has written its results.
        Ok(unsafe { lift(&mut store.opaque, ty.results(), values) })
    };
    observers.around(
        store,
        |store, observer| observer.enter(StoreContextMut::new(store), &func, &arguments),
        call,
        |store, observer, results| observer.leave(StoreContextMut::new(store), &func, results),
    )
}

impl HostObserver {
    fn new<T: 'static>(observers: Arc<Observers<T>>) -> Self {
        Self(Box::new(move |host, call, values| {
            // SAFETY: the obligation of the closure's caller; the store has data of the observers'
            // type, since they were added there.
            unsafe { call_host(&observers, host, call, values) }
        }))
    }

    /// Calls the host function.
    ///
    /// # Safety
    /// As for [`HostFuncData::call`]; the observers are those of the store.
    #[cold]
    pub(super) unsafe fn call(
        &self,
        host: *const HostFuncData,
        call: HostCall,
        values: *mut u64,
    ) -> Result<(), Error> {
        (self.0)(host, call, values)
    }
}

impl fmt::Debug for HostObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostObserver").finish_non_exhaustive()
    }
}

/// Calls a host function between two calls to each observer.
///
/// # Safety
/// As for [`HostFuncData::call`]; the store has data of type `T`.
unsafe fn call_host<T: 'static>(
    observers: &Observers<T>,
    host: *const HostFuncData,
    mut call: HostCall,
    values: *mut u64,
) -> Result<(), Error> {
    // SAFETY: the caller's obligation: the store is lent to this call, and the host function lives
    // as long as it. Each borrow ends before the next one begins.
    let (func, ty) = unsafe {
        let func = Func::at(&*call.store, NonNull::from(&(*host).func_ref));
        (func, func.type_in(&*call.store))
    };
    // SAFETY: as above. These are roots: what the observers do may run the collector.
    let arguments = unsafe { lift(&mut *call.store, ty.params(), values) };
    observers.around(
        &mut call,
        // SAFETY: as above, and the caller's obligation.
        |call, observer| observer.enter_host(unsafe { Caller::new(*call) }, &func, &arguments),
        |call| {
            // SAFETY: the caller's obligation.
            let done = unsafe { HostFuncData::call(host, *call, values) };
            // SAFETY: as above.
            done.map_err(|error| unsafe { of_store(&*call.store, error) })?;
            // SAFETY: as above; the function has written its results.
            Ok(unsafe { lift(&mut *call.store, ty.results(), values) })
        },
        // SAFETY: as above.
        |call, observer, results| observer.leave_host(unsafe { Caller::new(*call) }, &func, results),
    )
}

/// The error with which a call fails if a host function has ended it with this error.
fn of_store(store: &StoreOpaque, error: Error) -> Error {
    match error {
        Error::Exception { exception, backtrace } => match exception.lower(store) {
            Ok(_) => Error::Exception { exception, backtrace },
            Err(error) => error,
        },
        error => error,
    }
}

/// # Safety
/// There is a value of its type for each of the types.
unsafe fn lift(
    store: &mut StoreOpaque,
    types: impl Iterator<Item = ValType>,
    mut values: *const u64,
) -> Vec<Val> {
    let lift = |ty: ValType| {
        // SAFETY: the caller's obligation.
        let raw = unsafe { read_words(ty, values) };
        values = values.wrapping_add(ty.words());
        store.lift(ty, raw)
    };
    types.map(lift).collect()
}

/// Bytes of a memory, as they were before the host got write access to them.
#[derive(Clone, Debug)]
pub struct PreviousBytes {
    /// The memory that the host may have changed.
    pub memory: Memory,
    /// The address of the first byte in the linear memory.
    pub offset: usize,
    /// The previous contents, from `offset`.
    pub bytes: Vec<u8>,
}

/// Elements of a table that the host has set or added.
#[derive(Clone, Copy, Debug)]
pub struct ChangedElements {
    /// The table that the host has changed.
    pub table: Table,
    /// The index of the first changed element.
    pub first: u64,
    /// The number of changed elements, from `first`.
    pub length: u64,
}

/// The bytes that the host may have written since the log was started, and the elements of tables
/// that it has changed. A clone is the same log; logging ends when the last clone is dropped.
///
/// The ranges may overlap. A byte that is equal to all of its copies has not been changed; one that
/// differs from a copy may have been.
#[derive(Clone, Debug)]
pub struct WriteLog(Arc<Mutex<Logged>>);

#[derive(Debug, Default)]
struct Logged {
    bytes: Vec<PreviousBytes>,
    elements: Vec<ChangedElements>,
}

impl WriteLog {
    /// Starts a log of what the host writes to the memories and tables of a store. There may be
    /// several logs at a time.
    pub fn start(mut store: impl AsContextMut) -> Self {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let log = Self(Arc::default());
        store.writes.add(&log);
        log.restart_in(store);
        log
    }

    /// Discards what was logged, and starts the log again.
    pub fn restart(&self, store: impl AsContext) {
        self.restart_in(&store.as_context().0.opaque);
    }

    /// Takes the bytes that were logged, in order.
    pub fn take(&self) -> Vec<PreviousBytes> {
        std::mem::take(&mut self.logged().bytes)
    }

    /// Takes the table elements that were logged, in order.
    pub fn take_elements(&self) -> Vec<ChangedElements> {
        std::mem::take(&mut self.logged().elements)
    }

    fn restart_in(&self, store: &StoreOpaque) {
        *self.logged() = Logged::default();
        for (index, memory) in store.memories.iter().enumerate().filter(|(_, memory)| memory.is_exposed()) {
            let memory_of_store = Memory(Handle::at(store, index as u32));
            // SAFETY: this many bytes are accessible, and compiled code is not running.
            let bytes = unsafe { std::slice::from_raw_parts(memory.base(), memory.length() as usize) };
            self.logged().bytes.push(PreviousBytes {
                memory: memory_of_store,
                offset: 0,
                bytes: bytes.to_vec(),
            });
        }
    }

    fn logged(&self) -> MutexGuard<'_, Logged> {
        lock(&self.0)
    }
}

fn lock(logged: &Mutex<Logged>) -> MutexGuard<'_, Logged> {
    // Never held while foreign code runs.
    logged.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The logs of a store that can still be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteLogs(Vec<Weak<Mutex<Logged>>>);

impl WriteLogs {
    fn add(&mut self, log: &WriteLog) {
        self.0.retain(|log| log.strong_count() > 0);
        self.0.push(Arc::downgrade(&log.0));
    }

    fn each(&self, mut add: impl FnMut(&mut Logged)) {
        for log in self.0.iter().filter_map(Weak::upgrade) {
            add(&mut lock(&log));
        }
    }

    /// The host may change these bytes from now on.
    pub(super) fn add_bytes(&self, memory: Memory, offset: usize, bytes: &[u8]) {
        self.each(|log| log.bytes.push(PreviousBytes { memory, offset, bytes: bytes.to_vec() }));
    }

    /// The host has changed these elements.
    pub(super) fn add_elements(&self, table: Table, first: u64, length: u64) {
        self.each(|log| log.elements.push(ChangedElements { table, first, length }));
    }

    /// The host may change all of these bytes from now on: those that are not logged as a complete
    /// memory already.
    pub(super) fn add_all(&self, memory: Memory, bytes: &[u8]) {
        self.each(|log| {
            let known = log.bytes.iter().filter(|range| range.memory == memory);
            // Each of them continues where the previous one ends.
            let from = known.fold(0, |end, range| match range.offset <= end {
                true => end.max(range.offset + range.bytes.len()),
                false => end,
            });
            if from < bytes.len() {
                log.bytes.push(PreviousBytes { memory, offset: from, bytes: bytes[from..].to_vec() });
            }
        });
    }
}

/// Where a host announces what it will write to a memory through its address.
#[derive(Clone, Debug)]
pub struct WriteAnnouncer {
    logs: Option<(WriteLogs, Memory, Arc<LinearMemory>)>,
}

impl WriteAnnouncer {
    pub(super) fn of(store: &StoreOpaque, memory: Memory) -> Self {
        let logs = (!store.writes.0.is_empty()).then(|| store.writes.clone());
        Self { logs: logs.map(|logs| (logs, memory, store.memories[memory.0.index_in(store)].clone())) }
    }

    /// Ignores announcements: for a memory that no log covers.
    pub fn ignored() -> Self {
        Self { logs: None }
    }

    /// Announces that these bytes of the memory may be changed from now on. Bytes that are not
    /// inside the memory are ignored.
    pub fn write(&self, offset: usize, length: usize) {
        if let Some((logs, memory, bytes)) = &self.logs
            && let Some(from) = bytes.range(offset as u64, length as u64)
        {
            let mut copy = vec![0; length];
            // SAFETY: the bytes are accessible, and read atomically: nothing prevents a caller from
            // keeping this while the program runs.
            unsafe { copy_atomically(from, copy.as_mut_ptr(), length) };
            logs.add_bytes(*memory, offset, &copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::types::MemoryType;

    #[test]
    fn a_log_ends_when_nobody_has_it() {
        let mut store = Store::new(&Engine::default(), ());
        let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
        let log = WriteLog::start(&mut store);
        memory.write(&mut store, 0, b"wanted").unwrap();
        assert_eq!(log.take().len(), 1);
        drop(log);
        memory.write(&mut store, 0, b"not wanted").unwrap();
        memory.data_mut(&mut store)[0] = 1;
        let other = WriteLog::start(&mut store);
        assert_eq!(store.as_context_mut().into_inner().opaque.writes.0.len(), 1);
        assert!(other.take().is_empty());
    }

    #[test]
    fn logs_are_independent() {
        let mut store = Store::new(&Engine::default(), ());
        let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
        let lengths = |log: &WriteLog| log.take().iter().map(|range| range.bytes.len()).collect::<Vec<_>>();
        let first = WriteLog::start(&mut store);
        memory.write(&mut store, 0, b"one").unwrap();
        let second = WriteLog::start(&mut store);
        memory.write(&mut store, 0, b"both").unwrap();
        first.restart(&store);
        memory.announced(&store).1.write(0, 5);
        assert_eq!((lengths(&first), lengths(&second)), (vec![5], vec![4, 5]));
        memory.data_mut(&mut store)[0] = 1;
        assert_eq!((lengths(&first), lengths(&second)), (vec![65_536], vec![65_536]));
    }
}
