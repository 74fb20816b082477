//! Objects: everything that `wasm.h` calls a reference. `wasm_ref_t`, `wasm_extern_t`,
//! `wasm_func_t` and so on are one type in Rust, so that a pointer to an object of any kind is also
//! a pointer to a reference.

use std::ffi::c_void;
use std::fmt;
use std::rc::Rc;

use wasm_jit::{
    AnyRef, ExnRef, Extern, ExternRef, Func, Global, Instance, Memory, Module, SharedMemory, Table, Tag,
};

use crate::host_info::{Finalized, HostInfo};
use crate::store::{Item, SharedStore};
use crate::trap_info::TrapInfo;

/// A reference to an object of a store. A copy refers to the same object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) store: Rc<SharedStore>,
    pub(crate) kind: Kind,
}

/// The kind of an object, with its contents.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Func(Func),
    Global(Global),
    Table(Table),
    Memory(Memory),
    SharedMemory(SharedMemory),
    Tag(Tag),
    Instance(Instance),
    Module(Rc<Attached<Module>>),
    Trap(Rc<Attached<TrapInfo>>),
    /// A host value: the data are a [`Foreign`].
    Foreign(ExternRef),
    /// A structure, an array or an `i31`.
    Any(Rc<Attached<AnyRef>>),
    Exception(Rc<Attached<ExnRef>>),
}

/// An item that can have a host value attached.
#[derive(Debug)]
pub(crate) struct Attached<T> {
    pub(crate) value: T,
    info: HostInfo,
}

impl<T> Attached<T> {
    pub(crate) fn new(value: T) -> Rc<Self> {
        Rc::new(Self { value, info: HostInfo::default() })
    }
}

/// A value that only the thread that uses its store can access, although the engine requires its
/// types to be `Send`.
pub(crate) struct OfStore<T>(pub(crate) T);

// SAFETY: such values are in the engine's store or on their way to it, and are accessed by
// functions of this library that use the store. C code must let one thread at a time use a store
// and its objects.
unsafe impl<T> Send for OfStore<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for OfStore<T> {}

impl<T: fmt::Debug> fmt::Debug for OfStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The data of a foreign object.
type Foreign = OfStore<HostInfo>;

/// The data of an `externref` that is another object.
type Wrapped = OfStore<Kind>;

impl Kind {
    /// A new foreign object.
    pub(crate) fn foreign() -> Self {
        Self::Foreign(ExternRef::new(OfStore(HostInfo::default())))
    }

    pub(crate) fn any(value: AnyRef) -> Self {
        match value.as_extern() {
            Some(value) => Self::of_extern(value.clone()),
            None => Self::Any(Attached::new(value)),
        }
    }

    pub(crate) fn exception(value: ExnRef) -> Self {
        Self::Exception(Attached::new(value))
    }

    /// The object that a value of type `extern` is.
    pub(crate) fn of_extern(value: ExternRef) -> Self {
        if let Some(OfStore(kind)) = value.data().downcast_ref::<Wrapped>() {
            return kind.clone();
        }
        match value.data().downcast_ref::<AnyRef>() {
            Some(any) => Self::Any(Attached::new(any.clone())),
            None => Self::Foreign(value),
        }
    }

    /// This object as a value of type `extern`.
    pub(crate) fn to_extern(&self) -> ExternRef {
        match self {
            Self::Foreign(value) => value.clone(),
            Self::Any(any) => any.value.to_extern(),
            other => ExternRef::new(OfStore(other.clone())),
        }
    }

    /// The object, if it can be imported.
    pub(crate) fn to_item(&self) -> Option<Extern> {
        Some(match self {
            Self::Func(func) => (*func).into(),
            Self::Global(global) => (*global).into(),
            Self::Table(table) => (*table).into(),
            Self::Memory(memory) => (*memory).into(),
            Self::SharedMemory(memory) => memory.clone().into(),
            Self::Tag(tag) => (*tag).into(),
            _ => return None,
        })
    }

    /// Whether both are the same object of the same store.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Module(one), Self::Module(other)) => Rc::ptr_eq(one, other),
            (Self::Trap(one), Self::Trap(other)) => Rc::ptr_eq(one, other),
            (Self::Exception(one), Self::Exception(other)) => one.value.same(&other.value),
            (Self::Foreign(one), Self::Foreign(other)) => one.same(other),
            (Self::Any(one), Self::Any(other)) => one.value.same(&other.value),
            _ => self.in_store().is_some_and(|item| other.in_store() == Some(item)),
        }
    }

    /// The object, if it lives as long as its store.
    fn in_store(&self) -> Option<Item> {
        Some(match self {
            Self::Func(func) => Item::Func(*func),
            Self::Global(global) => Item::Global(*global),
            Self::Table(table) => Item::Table(*table),
            Self::Memory(memory) => Item::Memory(*memory),
            Self::SharedMemory(memory) => Item::SharedMemory(memory.data_ptr().addr()),
            Self::Tag(tag) => Item::Tag(*tag),
            Self::Instance(instance) => Item::Instance(*instance),
            _ => return None,
        })
    }

    /// The host value of an object that stores it itself.
    fn info(&self) -> Option<&HostInfo> {
        match self {
            Self::Module(module) => Some(&module.info),
            Self::Trap(trap) => Some(&trap.info),
            Self::Any(any) => Some(&any.info),
            Self::Exception(exception) => Some(&exception.info),
            Self::Foreign(value) => value.data().downcast_ref::<Foreign>().map(|OfStore(info)| info),
            _ => None,
        }
    }
}

impl Object {
    pub(crate) fn new(store: &Rc<SharedStore>, kind: Kind) -> Box<Self> {
        if let Kind::SharedMemory(memory) = &kind {
            store.keep(memory);
        }
        Box::new(Self { store: store.clone(), kind })
    }

    pub(crate) fn of_item(store: &Rc<SharedStore>, item: Extern) -> Box<Self> {
        let kind = match item {
            Extern::Func(func) => Kind::Func(func),
            Extern::Global(global) => Kind::Global(global),
            Extern::Table(table) => Kind::Table(table),
            Extern::Memory(memory) => Kind::Memory(memory),
            Extern::SharedMemory(memory) => Kind::SharedMemory(memory),
            Extern::Tag(tag) => Kind::Tag(tag),
        };
        Self::new(store, kind)
    }

    /// Whether both are the same object of the same store.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.store, &other.store) && self.kind.is(&other.kind)
    }

    pub(crate) fn host_info(&self) -> *mut c_void {
        match (self.kind.info(), self.kind.in_store()) {
            (Some(info), _) => info.get(),
            (None, Some(item)) => self.store.info(item),
            (None, None) => std::ptr::null_mut(),
        }
    }

    pub(crate) fn set_host_info(&self, value: Finalized) {
        match (self.kind.info(), self.kind.in_store()) {
            (Some(info), _) => info.set(value),
            (None, Some(item)) => self.store.set_info(item, value),
            // Every object has one of the two places: what is dropped here would be finalized.
            (None, None) => drop(value),
        }
    }
}
