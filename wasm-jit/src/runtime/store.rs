//! [`Store`]: owner of the state of running programs.
//!
//! All parts of an instance are in vectors of its store, as long as the store lives. A handle such
//! as [`Func`](super::Func) or [`Memory`](super::Memory) is an index or address there, with the
//! store's id, which is compared at each use.
//!
//! # Exclusive access
//! A call to WebAssembly code borrows the store exclusively until it returns. While compiled code
//! runs, the borrow is lent to the code that it calls: [`StoreArea::store`] is a pointer derived
//! from it, through which libcalls and host functions access the store while they run.
//! [`StoreContextMut`] is not `Send`, so that all nested activations are on one thread's stack.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use super::accessors::Accessors;
use super::collect::{self, Threshold};
use super::exception::Exceptions;
use super::global::GlobalData;
use super::heap::Heap;
use super::host::HostFuncData;
use super::instance::InstanceData;
use super::limits::StoreLimits;
use super::observe::{HostObserver, Observers, WriteLogs};
use super::redirect::Redirected;
use super::references::ExternRefs;
use super::roots::Roots;
use super::table::TableData;
use super::tag::TagData;
use crate::code::probed::buffers::Cursors;
use crate::engine::{self, Engine};
use crate::error::Error;
use crate::linear_memory::LinearMemory;
use crate::store_id::StoreId;
use crate::trap::{ExecutionState, InterruptHandle, Interruption};
use crate::vmctx::VmStoreContext;

/// A handle of the public API: an index in one of its store's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle {
    store: StoreId,
    index: u32,
}

impl Handle {
    /// A handle of the item at this index.
    pub(crate) fn at(store: &StoreOpaque, index: u32) -> Self {
        Self { store: store.id, index }
    }

    pub(crate) fn belongs_to(self, store: &StoreOpaque) -> bool {
        self.store == store.id
    }

    /// The index, in the store that it belongs to.
    ///
    /// # Panics
    /// If the handle belongs to another store.
    #[track_caller]
    pub(crate) fn index_in(self, store: &StoreOpaque) -> usize {
        store.check(self.store);
        self.index as usize
    }
}

/// The reason why a libcall or host function failed: recorded when it fails, taken when its
/// activation has been left.
#[derive(Debug)]
pub(crate) enum Failure {
    Error(Error),
    Panic(Box<dyn std::any::Any + Send>),
}

/// The target of contexts: the execution state, whose head compiled code accesses, and the link
/// from there to the store.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct StoreArea {
    pub execution: ExecutionState,
    /// The store, derived from the borrow of the innermost activation; null if nothing runs.
    pub store: *mut StoreOpaque,
}

/// A store without the embedder's data.
#[derive(Debug)]
pub(crate) struct StoreOpaque {
    pub id: StoreId,
    /// The type of the embedder's data.
    pub data_type: TypeId,
    pub engine: Engine,
    pub area: NonNull<StoreArea>,
    pub instances: Vec<NonNull<InstanceData>>,
    pub hosts: Vec<NonNull<HostFuncData>>,
    pub memories: Vec<Arc<LinearMemory>>,
    pub tables: Vec<TableData>,
    pub globals: Vec<GlobalData>,
    pub tags: Vec<TagData>,
    pub extern_refs: ExternRefs,
    pub exceptions: Exceptions,
    /// WebAssembly objects, and those that the host has handles of.
    pub heap: Heap,
    pub object_roots: Roots,
    /// The types of objects that the host has created, by their ids: they must be in use as long as
    /// their objects are in the heap, reachable or not. The types of programs belong to instances.
    pub object_types: HashMap<u32, engine::TypeId>,
    pub limits: StoreLimits,
    pub collect_at: Threshold,
    /// Number of collections.
    pub collections: u64,
    pub failure: Option<Failure>,
    pub accessors: Accessors,
    /// The cursors of recorders, once there is a record.
    pub cursors: Option<Arc<Cursors>>,
    /// Fuel beyond what compiled code can count.
    pub fuel_reserve: u64,
    /// Where writes by the host are logged.
    pub writes: WriteLogs,
    /// The observer of calls to host functions in this store.
    pub host_observer: Option<Arc<HostObserver>>,
    /// Calls between instances, while others are observed.
    pub redirected: Redirected,
}

impl StoreOpaque {
    fn new(engine: &Engine, data_type: TypeId) -> Self {
        let id = StoreId::next();
        let mut execution = ExecutionState::new(engine.interrupt_signal());
        execution.vm.number = id.number();
        let area = StoreArea { execution, store: std::ptr::null_mut() };
        Self {
            id,
            data_type,
            engine: engine.clone(),
            area: NonNull::from(Box::leak(Box::new(area))),
            instances: Vec::new(),
            hosts: Vec::new(),
            memories: Vec::new(),
            tables: Vec::new(),
            globals: Vec::new(),
            tags: Vec::new(),
            extern_refs: ExternRefs::default(),
            exceptions: Exceptions::default(),
            heap: Heap::new(),
            object_roots: Roots::default(),
            object_types: HashMap::new(),
            limits: StoreLimits::default(),
            collect_at: Threshold::default(),
            collections: 0,
            failure: None,
            accessors: Accessors::default(),
            cursors: None,
            fuel_reserve: 0,
            writes: WriteLogs::default(),
            host_observer: None,
            redirected: Redirected::default(),
        }
    }

    /// # Panics
    /// If the handle belongs to another store.
    #[track_caller]
    pub(crate) fn check(&self, id: StoreId) {
        assert!(self.id == id, "a handle was used with another store than its own");
    }

    /// Numbers of memories, tables, globals and tags.
    pub(crate) fn sizes(&self) -> [usize; 4] {
        [self.memories.len(), self.tables.len(), self.globals.len(), self.tags.len()]
    }

    /// Drops the last items, to which nothing refers yet, to restore these numbers.
    pub(crate) fn shrink_to(&mut self, [memories, tables, globals, tags]: [usize; 4]) {
        self.memories.truncate(memories);
        self.tables.truncate(tables);
        self.globals.truncate(globals);
        self.tags.truncate(tags);
    }

    /// The part that compiled code accesses.
    pub(crate) fn vm(&self) -> *mut VmStoreContext {
        self.area.as_ptr().cast()
    }

    /// The execution state of the store.
    pub(crate) fn execution(&self) -> *mut ExecutionState {
        self.area.as_ptr().cast()
    }

    /// The result of an operation that compiled code has called for, and that may collect; `None`
    /// if it failed, in which case the reason is recorded. The collector drops values of the
    /// embedder, which may panic, and nothing may unwind through compiled code.
    pub(crate) fn attempt<T>(&mut self, operation: impl FnOnce(&mut Self) -> Result<T, Error>) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| operation(self))) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => self.fail(error),
            Err(panic) => self.failure = Some(Failure::Panic(panic)),
        }
        None
    }

    /// Records the reason why a libcall or host function failed.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure = Some(Failure::Error(error));
    }
}

impl Drop for StoreOpaque {
    fn drop(&mut self) {
        // SAFETY: each was leaked from a box by this store, and nothing that could reach it is
        // running.
        unsafe {
            self.instances.drain(..).for_each(|instance| drop(Box::from_raw(instance.as_ptr())));
            self.hosts.drain(..).for_each(|host| drop(Box::from_raw(host.as_ptr())));
            drop(Box::from_raw(self.area.as_ptr()));
        }
        if let Some(cursors) = &self.cursors {
            cursors.end();
        }
    }
}

/// A store and the embedder's data. The store comes first, so that a pointer to it is a pointer to
/// both.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct StoreInner<T: 'static> {
    pub opaque: StoreOpaque,
    pub data: T,
    pub observers: Option<Arc<Observers<T>>>,
}

/// Owns instances and all their parts, and data of the embedder, which host functions access
/// through their [`Caller`](super::Caller).
///
/// What a store owns is freed with the store. One thread at a time can use a store; different
/// stores are independent.
#[derive(Debug)]
pub struct Store<T: 'static> {
    inner: NonNull<StoreInner<T>>,
    /// Invariant in `T`: closures of host functions read and write the data.
    data: PhantomData<fn(T) -> T>,
}

// SAFETY: a store owns everything that its pointers lead to, and shares nothing except for what is
// designed to be shared (modules, engines, shared memories, host functions, which are all `Send`
// and `Sync`). It can move to another thread only between two activations, which borrow it.
unsafe impl<T: Send> Send for Store<T> {}
// SAFETY: through a shared reference a store can only be read.
unsafe impl<T: Sync> Sync for Store<T> {}

impl<T: 'static> Store<T> {
    /// An empty store.
    pub fn new(engine: &Engine, data: T) -> Self {
        let opaque = StoreOpaque::new(engine, TypeId::of::<T>());
        let inner = Box::new(StoreInner { opaque, data, observers: None });
        Self { inner: NonNull::from(Box::leak(inner)), data: PhantomData }
    }

    /// The store's identity, for [probes](crate::probes::Scope) that concern only its instances.
    pub fn id(&self) -> StoreId {
        self.as_context().0.opaque.id
    }

    /// The engine that the store was created with.
    pub fn engine(&self) -> &Engine {
        &self.as_context().0.opaque.engine
    }

    /// The embedder's data that the store was created with.
    pub fn data(&self) -> &T {
        &self.as_context().0.data
    }

    /// The embedder's data, mutable.
    pub fn data_mut(&mut self) -> &mut T {
        &mut self.as_context_mut().into_inner().data
    }

    /// Drops the store with everything in it, and returns the embedder's data.
    pub fn into_data(self) -> T {
        let store = std::mem::ManuallyDrop::new(self);
        // SAFETY: leaked from a box in `new`; `drop` will not run.
        let inner = unsafe { Box::from_raw(store.inner.as_ptr()) };
        inner.data
    }

    /// A handle to stop the store's program from another thread.
    pub fn interrupt_handle(&mut self) -> InterruptHandle {
        let opaque = &mut self.as_context_mut().into_inner().opaque;
        let signal = opaque.engine.interrupt_signal();
        // SAFETY: the state lives as long as the store, and nothing runs.
        let interruption = unsafe { &mut (*opaque.execution()).interruption };
        InterruptHandle::new(interruption.get_or_insert_with(|| Interruption::new(signal)))
    }

    /// Frees unreachable objects, exceptions and references to host values. This happens
    /// automatically, too, when there are many.
    pub fn gc(&mut self) {
        self.as_context_mut().gc();
    }

    /// The size of the garbage-collected heap in bytes, including the declared sizes of host values
    /// ([`ExternRef::with_size`](super::ExternRef::with_size)).
    pub fn heap_size(&self) -> u64 {
        self.as_context().0.opaque.heap.bytes()
    }

    /// Limits the resources of the store's instances from now on.
    pub fn set_limits(&mut self, limits: StoreLimits) {
        self.as_context_mut().into_inner().opaque.limits = limits;
    }
}

impl<T: 'static> Drop for Store<T> {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `new`; nothing borrows it any more.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

/// A shared borrow of a store.
#[derive(Debug)]
pub struct StoreContext<'a, T: 'static>(pub(crate) &'a StoreInner<T>);

impl<T: 'static> Clone for StoreContext<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: 'static> Copy for StoreContext<'_, T> {}

impl<'a, T: 'static> StoreContext<'a, T> {
    /// The embedder's data in the store.
    pub fn data(&self) -> &'a T {
        &self.0.data
    }

    /// The engine that the store was created with.
    pub fn engine(&self) -> &'a Engine {
        &self.0.opaque.engine
    }
}

/// An exclusive borrow of a store. It stays on its thread.
#[derive(Debug)]
pub struct StoreContextMut<'a, T: 'static> {
    inner: &'a mut StoreInner<T>,
    not_send: PhantomData<*mut ()>,
}

impl<'a, T: 'static> StoreContextMut<'a, T> {
    pub(crate) fn new(inner: &'a mut StoreInner<T>) -> Self {
        Self { inner, not_send: PhantomData }
    }

    /// As [`Store::gc`], for use in host functions.
    pub fn gc(&mut self) {
        collect::collect(&mut self.inner.opaque, collect::From::Host, &[]);
    }

    /// Makes sure that the program may have host values that own this many more bytes
    /// ([`ExternRef::with_size`](super::ExternRef::with_size)). Collects if a collection is due or
    /// needed for this.
    ///
    /// # Errors
    /// [`Error::StoreLimit`] if [`StoreLimits::heap_size`] does not permit them.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        let store = &mut self.inner.opaque;
        let limit = store.limits.heap();
        collect::if_due(store, collect::From::Host, &[]);
        if store.heap.has_room_for(bytes, limit) {
            return Ok(());
        }
        collect::collect(store, collect::From::Host, &[]);
        if store.heap.has_room_for(bytes, limit) { Ok(()) } else { Err(store.no_room()) }
    }

    pub(crate) fn into_inner(self) -> &'a mut StoreInner<T> {
        self.inner
    }

    pub(crate) fn inner_mut(&mut self) -> &mut StoreInner<T> {
        self.inner
    }

    pub(crate) fn opaque(&mut self) -> &mut StoreOpaque {
        &mut self.inner.opaque
    }

    /// The embedder's data in the store.
    pub fn data(&self) -> &T {
        &self.inner.data
    }

    /// The embedder's data in the store, mutable.
    pub fn data_mut(&mut self) -> &mut T {
        &mut self.inner.data
    }

    /// The engine that the store was created with.
    pub fn engine(&self) -> &Engine {
        &self.inner.opaque.engine
    }
}

/// Types from which a store can be borrowed: a [`Store`], a [`Caller`](super::Caller), or a borrow
/// of either.
pub trait AsContext {
    /// The embedder's data.
    type Data: 'static;

    /// Borrows the store.
    fn as_context(&self) -> StoreContext<'_, Self::Data>;
}

/// Types from which a store can be borrowed exclusively.
pub trait AsContextMut: AsContext {
    /// Borrows the store exclusively.
    fn as_context_mut(&mut self) -> StoreContextMut<'_, Self::Data>;
}

impl<T: 'static> AsContext for Store<T> {
    type Data = T;

    fn as_context(&self) -> StoreContext<'_, T> {
        // SAFETY: the pointer is valid as long as the store, which is borrowed.
        StoreContext(unsafe { self.inner.as_ref() })
    }
}

impl<T: 'static> AsContextMut for Store<T> {
    fn as_context_mut(&mut self) -> StoreContextMut<'_, T> {
        // SAFETY: as in `as_context`; the store is borrowed exclusively.
        StoreContextMut::new(unsafe { self.inner.as_mut() })
    }
}

impl<T: 'static> AsContext for StoreContext<'_, T> {
    type Data = T;

    fn as_context(&self) -> StoreContext<'_, T> {
        *self
    }
}

impl<T: 'static> AsContext for StoreContextMut<'_, T> {
    type Data = T;

    fn as_context(&self) -> StoreContext<'_, T> {
        StoreContext(self.inner)
    }
}

impl<T: 'static> AsContextMut for StoreContextMut<'_, T> {
    fn as_context_mut(&mut self) -> StoreContextMut<'_, T> {
        StoreContextMut::new(self.inner)
    }
}

impl<C: AsContext> AsContext for &C {
    type Data = C::Data;

    fn as_context(&self) -> StoreContext<'_, C::Data> {
        C::as_context(self)
    }
}

impl<C: AsContext> AsContext for &mut C {
    type Data = C::Data;

    fn as_context(&self) -> StoreContext<'_, C::Data> {
        C::as_context(self)
    }
}

impl<C: AsContextMut> AsContextMut for &mut C {
    fn as_context_mut(&mut self) -> StoreContextMut<'_, C::Data> {
        C::as_context_mut(self)
    }
}

impl<'a, C: AsContext> From<&'a C> for StoreContext<'a, C::Data> {
    fn from(store: &'a C) -> Self {
        store.as_context()
    }
}

impl<'a, C: AsContext> From<&'a mut C> for StoreContext<'a, C::Data> {
    fn from(store: &'a mut C) -> Self {
        C::as_context(store)
    }
}

impl<'a, C: AsContextMut> From<&'a mut C> for StoreContextMut<'a, C::Data> {
    fn from(store: &'a mut C) -> Self {
        store.as_context_mut()
    }
}
