//! `wasm_store_t`: a store, which all of its objects share.
//!
//! Deleting the store, like deleting any object, gives up one reference to it. The engine's store
//! is freed with the last reference, whatever the order.
//!
//! A function of this library holds a reference to the store that it uses: while it works, a host
//! function or a finalizer may delete the object through which it got the store.
//!
//! # Access
//! The engine borrows a store exclusively while WebAssembly runs. A host function must use the
//! store through its [`Caller`], which is recorded here while C code runs in a host function, so
//! that all functions of this library find it.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::rc::{Rc, Weak};

use wasm_jit::probes::InstanceId;
use wasm_jit::{
    AsContextMut, Caller, Engine, Error, Func, Global, Instance, InterruptHandle, Memory, SharedMemory,
    Store, StoreContextMut, Table, Tag,
};

use crate::host_info::{self, Finalized, HostInfo};
use crate::last_error::required;

/// The data of the engine's store.
#[derive(Debug)]
pub(crate) struct Data {
    shared: Weak<SharedStore>,
}

impl Data {
    /// The store; `None` while it is freed, when no host function runs.
    pub(crate) fn shared(&self) -> Option<Rc<SharedStore>> {
        self.shared.upgrade()
    }
}

/// An object that lives as long as its store. A shared memory is identified by its address, which
/// no other memory gets because the store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Func(Func),
    Global(Global),
    Table(Table),
    Memory(Memory),
    SharedMemory(usize),
    Tag(Tag),
    Instance(Instance),
}

/// A store, with the host values that C code has attached to its objects.
#[derive(Debug)]
pub(crate) struct SharedStore {
    engine: Engine,
    /// `None` while this is dropped.
    store: UnsafeCell<Option<Store<Data>>>,
    /// The caller of the innermost host function, or null.
    caller: Cell<*mut Caller<'static, Data>>,
    infos: RefCell<HashMap<Item, HostInfo>>,
    instances: RefCell<HashMap<InstanceId, Instance>>,
    /// The shared memories for which C code has objects, by address. The engine's store keeps only
    /// those of its instances.
    shared_memories: RefCell<HashMap<usize, SharedMemory>>,
}

impl SharedStore {
    fn new(engine: &Engine) -> Rc<Self> {
        Rc::new_cyclic(|shared| Self {
            engine: engine.clone(),
            store: UnsafeCell::new(Some(Store::new(engine, Data { shared: shared.clone() }))),
            caller: Cell::new(ptr::null_mut()),
            infos: RefCell::default(),
            instances: RefCell::default(),
            shared_memories: RefCell::default(),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Gives access to the engine's store. C code runs during the access only in host functions,
    /// through [`lend`](Self::lend).
    pub(crate) fn with<R>(&self, work: impl FnOnce(StoreContextMut<'_, Data>) -> R) -> R {
        host_info::in_engine(|| {
            // SAFETY: there is no other borrow. One made by `with` ends before it returns, and
            // while it exists, only a host function can get here, for which `caller` is not null:
            // finalizers wait. One thread uses a store at a time: a rule for C code.
            let context = unsafe {
                match self.caller.get().as_mut() {
                    Some(caller) => caller.as_context_mut(),
                    None => {
                        let store = (*self.store.get()).as_mut();
                        store.expect("whoever gets here keeps the store").as_context_mut()
                    }
                }
            };
            work(context)
        })
    }

    /// A handle to stop the program; `None` in a host function.
    pub(crate) fn interrupt_handle(&self) -> Option<InterruptHandle> {
        if !self.caller.get().is_null() {
            return None;
        }
        // SAFETY: as in `with` when no host function runs; this calls no foreign code.
        unsafe { (*self.store.get()).as_mut() }.map(Store::interrupt_handle)
    }

    /// Calls C code in a host function, which uses the store through its caller.
    pub(crate) fn lend<R>(&self, caller: &mut Caller<'_, Data>, call: impl FnOnce() -> R) -> R {
        let outer = self.caller.replace(ptr::from_mut(caller).cast());
        let result = host_info::in_host(call);
        self.caller.set(outer);
        result
    }

    /// Attaches a host value to an object.
    pub(crate) fn set_info(&self, item: Item, value: Finalized) {
        let previous = self.infos.borrow_mut().insert(item, HostInfo::of(value));
        // Runs the finalizer of the previous value, which may use the store.
        drop(previous);
    }

    /// The host value of an object, or null.
    pub(crate) fn info(&self, item: Item) -> *mut c_void {
        self.infos.borrow().get(&item).map_or(ptr::null_mut(), HostInfo::get)
    }

    /// Keeps a shared memory for as long as this store.
    pub(crate) fn keep(&self, memory: &SharedMemory) {
        let address = memory.data_ptr().addr();
        self.shared_memories.borrow_mut().entry(address).or_insert_with(|| memory.clone());
    }

    /// Instantiates a module. The instance is registered before its start function runs, which may
    /// trap.
    pub(crate) fn instantiate(
        &self,
        module: &wasm_jit::Module,
        imports: &[wasm_jit::Extern],
    ) -> Result<Instance, Error> {
        let (instance, id) = self.with(|mut store| {
            let instance = Instance::new_unstarted(&mut store, module, imports)?;
            Ok::<_, Error>((instance, instance.id(&store)))
        })?;
        self.instances.borrow_mut().insert(id, instance);
        self.with(|store| instance.start(store))?;
        Ok(instance)
    }

    /// An object for an instance of this store.
    pub(crate) fn instance(&self, id: InstanceId) -> Option<Instance> {
        self.instances.borrow().get(&id).copied()
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        let store = self.store.get_mut().take();
        host_info::in_engine(|| drop(store));
    }
}

/// `wasm_store_t`.
pub(crate) type StoreHandle = Rc<SharedStore>;

#[unsafe(no_mangle)]
extern "C" fn wasm_store_new(engine: Option<&Engine>) -> Option<Box<StoreHandle>> {
    required(engine, "an engine").map(|engine| Box::new(SharedStore::new(engine)))
}

/// Deletes a store, which is freed when all of its objects have been deleted, too.
#[unsafe(no_mangle)]
extern "C" fn wasm_store_delete(_: Option<Box<StoreHandle>>) {}
