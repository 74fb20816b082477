//! What a recorder of a store observes: calls between the host and WebAssembly, and what the host
//! writes.
//!
//! # Calls
//! [`CallObserver`] is called around each call that the host makes of a function of WebAssembly, by
//! whatever part of the API, and around each call of a host function by WebAssembly. It can be set
//! and removed at any time. Without one, either call costs a comparison.
//!
//! # Writes
//! Safe code writes to a memory through its [`Memory`] only, so a [`WriteLog`] can know what may
//! have changed, without a comparison of the complete memory: before bytes are handed out for
//! writing, they are copied. [`Memory::write`] copies the bytes that it replaces, a slice of the
//! complete memory (`data_mut`) costs a copy of the complete memory. Code that takes
//! [`Memory::data_ptr`] can write at any time later; a memory whose address was given to anyone is
//! copied each time that the log starts again. A host that writes through an address without this
//! cost announces its writes: [`Memory::announced`]. Of tables, the log knows which elements were
//! set or added; these are not copied.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::activation;
use super::caller::Caller;
use super::func::Func;
use super::host::{HostCall, HostFuncData};
use super::instance::InstanceData;
use super::memory::Memory;
use super::store::{AsContext, AsContextMut, Handle, Store, StoreContextMut, StoreInner, StoreOpaque};
use super::table::Table;
use super::value::{Val, read_words};
use crate::error::Error;
use crate::linear_memory::{LinearMemory, copy_atomically};
use crate::types::ValType;

/// Is called around each call between the host and WebAssembly. An error that it returns is that of
/// the call.
pub trait CallObserver<T: 'static>: Send + Sync {
    /// The host calls a function.
    ///
    /// # Errors
    /// The function is not called then.
    fn enter(&self, store: StoreContextMut<'_, T>, func: &Func, arguments: &[Val]) -> Result<(), Error>;

    /// The function has returned these results, or failed.
    ///
    /// # Errors
    /// The call fails with this error.
    fn leave(
        &self,
        store: StoreContextMut<'_, T>,
        func: &Func,
        results: Result<&[Val], &Error>,
    ) -> Result<(), Error>;

    /// Whether it ignores all calls from now on: another one may take its place.
    fn has_ended(&self) -> bool {
        false
    }

    /// The program calls a host function.
    ///
    /// # Errors
    /// The function is not called then.
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

/// The observer of a store.
pub(crate) struct Observer<T: 'static>(pub Arc<dyn CallObserver<T>>);

/// Calls host functions between two calls of the observer, whatever the type of the store's data.
pub(crate) struct HostObserver(Box<CallHost>);

type CallHost = dyn Fn(*const HostFuncData, HostCall, *mut u64) -> Result<(), Error> + Send + Sync;

impl<T: 'static> fmt::Debug for Observer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl<T: 'static> Store<T> {
    /// Calls between the host and WebAssembly are observed from now on; `None` ends this. For calls
    /// that run already, nothing changes.
    pub fn observe_calls(&mut self, observer: Option<Arc<dyn CallObserver<T>>>) {
        self.as_context_mut().observe_calls(observer);
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// As [`Store::observe_calls`], also in a host function or in a closure of a probe.
    pub fn observe_calls(&mut self, observer: Option<Arc<dyn CallObserver<T>>>) {
        let store = self.inner_mut();
        store.opaque.host_observer = observer.clone().map(|observer| Arc::new(HostObserver::new(observer)));
        store.observer = observer.map(Observer);
    }

    /// Whether there is an observer that has not [ended](CallObserver::has_ended).
    pub fn is_observed(&self) -> bool {
        self.as_context().0.observer.as_ref().is_some_and(|observer| !observer.0.has_ended())
    }
}

/// Calls a function of WebAssembly between two calls of the observer.
///
/// # Errors
/// Those of [`activation::invoke_from`], and those of the observer.
///
/// # Safety
/// Those of [`activation::invoke_from`].
#[cold]
pub(super) unsafe fn invoke<T: 'static>(
    store: &mut StoreInner<T>,
    observer: &dyn CallObserver<T>,
    func: Func,
    caller: Option<NonNull<InstanceData>>,
    values: *mut u64,
) -> Result<(), Error> {
    let ty = func.type_in(&store.opaque);
    // These are roots: what the observer does may run the collector.
    // SAFETY: the caller's obligation.
    let arguments = unsafe { lift(&mut store.opaque, ty.params(), values) };
    observer.enter(StoreContextMut::new(store), &func, &arguments)?;
    // SAFETY: the caller's obligation.
    let done = unsafe { activation::invoke_unobserved(store, func, caller, values) };
    let results = match &done {
        // SAFETY: the function has written its results.
        Ok(()) => Ok(unsafe { lift(&mut store.opaque, ty.results(), values) }),
        Err(error) => Err(error),
    };
    observer.leave(StoreContextMut::new(store), &func, results.as_deref().map_err(|error| *error))?;
    done
}

impl HostObserver {
    fn new<T: 'static>(observer: Arc<dyn CallObserver<T>>) -> Self {
        Self(Box::new(move |host, call, values| {
            // SAFETY: the obligation of whoever calls this; the store has data of the observer's
            // type, since it was set there.
            unsafe { call_host(&*observer, host, call, values) }
        }))
    }

    /// Calls the host function.
    ///
    /// # Safety
    /// Those of [`HostFuncData::call`]; the observer is that of the store.
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

/// Calls a host function between two calls of the observer.
///
/// # Safety
/// Those of [`HostFuncData::call`]; the store has data of type `T`.
unsafe fn call_host<T: 'static>(
    observer: &dyn CallObserver<T>,
    host: *const HostFuncData,
    call: HostCall,
    values: *mut u64,
) -> Result<(), Error> {
    // SAFETY: the caller's obligation: the store is lent to this call, and the host function lives
    // as long as it. Each borrow ends before the next one begins.
    let (func, ty) = unsafe {
        let func = Func::at(&*call.store, NonNull::from(&(*host).func_ref));
        (func, func.type_in(&*call.store))
    };
    // SAFETY: as above. These are roots: what the observer does may run the collector.
    let arguments = unsafe { lift(&mut *call.store, ty.params(), values) };
    // SAFETY: as above, and the caller's obligation.
    observer.enter_host(unsafe { Caller::new(call) }, &func, &arguments)?;
    // SAFETY: the caller's obligation.
    let done = unsafe { HostFuncData::call(host, call, values) };
    // SAFETY: as above.
    let done = done.map_err(|error| unsafe { of_store(&*call.store, error) });
    drop(arguments);
    let results = match &done {
        // SAFETY: as above; the function has written its results.
        Ok(()) => Ok(unsafe { lift(&mut *call.store, ty.results(), values) }),
        Err(error) => Err(error),
    };
    // SAFETY: as above.
    observer.leave_host(unsafe { Caller::new(call) }, &func, results.as_deref().map_err(|error| *error))?;
    done
}

/// What a call fails with that a host function has ended with this error.
fn of_store(store: &StoreOpaque, error: Error) -> Error {
    match error {
        Error::Exception(exception) => match exception.lower(store) {
            Ok(_) => Error::Exception(exception),
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

/// Bytes of a memory, as they were before the host got access to them.
#[derive(Clone, Debug)]
pub struct Before {
    /// The memory.
    pub memory: Memory,
    /// The address of the first byte.
    pub offset: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Elements of a table that the host has set or added.
#[derive(Clone, Copy, Debug)]
pub struct ChangedElements {
    /// The table.
    pub table: Table,
    /// The index of the first one.
    pub first: u64,
    /// How many there are.
    pub length: u64,
}

/// The bytes that the host may have written since the log was started, and the elements of tables
/// that it has changed. A clone is the same log.
///
/// The ranges may overlap. A byte that differs from none of the copies of it has not been changed;
/// what differs from one may have been.
#[derive(Clone, Debug)]
pub struct WriteLog(Arc<Mutex<Logged>>);

#[derive(Debug, Default)]
struct Logged {
    bytes: Vec<Before>,
    elements: Vec<ChangedElements>,
}

impl WriteLog {
    /// Starts a log of what the host writes to the memories of a store. There is one at a time: the
    /// previous one gets no more ranges.
    pub fn start(mut store: impl AsContextMut) -> Self {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let log = Self(Arc::default());
        store.writes = Some(log.clone());
        log.restart_in(store);
        log
    }

    /// Forgets what was logged.
    pub fn restart(&self, store: impl AsContext) {
        self.restart_in(&store.as_context().0.opaque);
    }

    /// The bytes that were logged, in order; forgets them.
    pub fn take(&self) -> Vec<Before> {
        std::mem::take(&mut self.logged().bytes)
    }

    /// The elements of tables that were logged, in order; forgets them.
    pub fn take_elements(&self) -> Vec<ChangedElements> {
        std::mem::take(&mut self.logged().elements)
    }

    /// Ends the log of a store, if there is one.
    pub fn end(mut store: impl AsContextMut) {
        store.as_context_mut().into_inner().opaque.writes = None;
    }

    fn restart_in(&self, store: &StoreOpaque) {
        *self.logged() = Logged::default();
        for (index, memory) in store.memories.iter().enumerate().filter(|(_, memory)| memory.is_exposed()) {
            let memory_of_store = Memory(Handle::at(store, index as u32));
            // SAFETY: this many bytes are accessible, and compiled code is not running.
            let bytes = unsafe { std::slice::from_raw_parts(memory.base(), memory.length() as usize) };
            self.add(memory_of_store, 0, bytes);
        }
    }

    /// Whether someone will read it: the one who has started it may have forgotten it.
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The host may change these bytes from now on.
    pub(super) fn add(&self, memory: Memory, offset: usize, bytes: &[u8]) {
        if !self.is_wanted() {
            return;
        }
        self.logged().bytes.push(Before { memory, offset, bytes: bytes.to_vec() });
    }

    /// The host has changed these elements.
    pub(super) fn add_elements(&self, table: Table, first: u64, length: u64) {
        if !self.is_wanted() {
            return;
        }
        self.logged().elements.push(ChangedElements { table, first, length });
    }

    /// The host may change all of these bytes from now on: those that are not logged as a complete
    /// memory already.
    pub(super) fn add_all(&self, memory: Memory, bytes: &[u8]) {
        if !self.is_wanted() {
            return;
        }
        let ranges = &mut self.logged().bytes;
        let known = ranges.iter().filter(|range| range.memory == memory);
        // Each of them continues where the previous one ends.
        let from =
            known.fold(
                0,
                |end, range| {
                    if range.offset <= end { end.max(range.offset + range.bytes.len()) } else { end }
                },
            );
        if from < bytes.len() {
            ranges.push(Before { memory, offset: from, bytes: bytes[from..].to_vec() });
        }
    }

    fn logged(&self) -> MutexGuard<'_, Logged> {
        // Never held while foreign code runs.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a host announces what it will write to a memory through its address.
#[derive(Clone, Debug)]
pub struct Announced {
    log: Option<(WriteLog, Memory, Arc<LinearMemory>)>,
}

impl Announced {
    pub(super) fn of(store: &StoreOpaque, memory: Memory) -> Self {
        let log = store.writes.clone();
        Self { log: log.map(|log| (log, memory, store.memories[memory.0.index_in(store)].clone())) }
    }

    /// For a memory that no log can concern.
    pub fn ignored() -> Self {
        Self { log: None }
    }

    /// These bytes of the memory may be changed from now on. Those that are not inside of it are
    /// ignored.
    pub fn write(&self, offset: usize, length: usize) {
        if let Some((log, memory, bytes)) = &self.log
            && let Some(from) = bytes.range(offset as u64, length as u64)
        {
            let mut copy = vec![0; length];
            // SAFETY: the bytes are accessible, and read atomically: nothing prevents a caller from
            // keeping this while the program runs.
            unsafe { copy_atomically(from, copy.as_mut_ptr(), length) };
            log.logged().bytes.push(Before { memory: *memory, offset, bytes: copy });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::types::MemoryType;

    #[test]
    fn a_log_that_was_forgotten_does_not_grow() {
        let mut store = Store::new(&Engine::default(), ());
        let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
        let log = WriteLog::start(&mut store);
        memory.write(&mut store, 0, b"wanted").unwrap();
        assert_eq!(log.take().len(), 1);
        drop(log);
        memory.write(&mut store, 0, b"not wanted").unwrap();
        memory.data_mut(&mut store)[0] = 1;
        let left = store.as_context_mut().into_inner().opaque.writes.clone();
        assert!(left.expect("nobody has ended it").take().is_empty());
    }
}
