//! [`Global`]: a handle of a global variable.

use std::ptr::NonNull;

use super::collect;
use super::store::{AsContext, AsContextMut, Handle, StoreOpaque};
use super::value::{Val, read_words, write_words};
use crate::error::Error;
use crate::types::{GlobalType, Mutability, RefType, ValType};

/// A global of a store.
#[derive(Debug)]
pub(crate) struct GlobalData {
    pub ty: GlobalType,
    /// The address of the value, eight bytes, or 16 for a vector: in the context of the instance
    /// that defines the global, or in a box of its own if `owned`.
    pub cell: NonNull<u64>,
    /// Whether the cell is a separate box.
    owned: bool,
}

impl GlobalData {
    /// A global whose value is in an instance's context.
    pub(crate) fn of_instance(ty: GlobalType, cell: NonNull<u64>) -> Self {
        Self { ty, cell, owned: false }
    }

    pub(crate) fn raw(&self) -> u128 {
        // SAFETY: the cell lives as long as the store; compiled code that could write it is not
        // running.
        unsafe { read_words(self.ty.content(), self.cell.as_ptr()) }
    }

    pub(crate) fn set_raw(&mut self, raw: u128) {
        // SAFETY: as in `raw`.
        unsafe { write_words(self.ty.content(), raw, self.cell.as_ptr()) };
    }

    pub(crate) fn may_hold(&self, kind: impl Fn(RefType) -> bool) -> bool {
        matches!(self.ty.content(), ValType::Ref(ty) if kind(ty))
    }
}

impl Drop for GlobalData {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: leaked from a box in `Global::new`.
            drop(unsafe { Box::from_raw(self.cell.as_ptr().cast::<[u64; 2]>()) });
        }
    }
}

/// A handle of a global. It must be used with the store that it belongs to; otherwise its methods
/// panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Global(pub(crate) Handle);

impl Global {
    /// A new global with this value.
    ///
    /// # Errors
    /// [`Error::ValueType`] and [`Error::WrongStore`] if the value is of another type or store;
    /// [`Error::InvalidType`] if the type refers to a type that the engine does not know, or that
    /// is of another kind.
    pub fn new(mut store: impl AsContextMut, ty: GlobalType, value: Val) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        store.engine.check_known(ty.content(), "global")?;
        collect::if_due(store, collect::From::Host, &[]);
        let raw = store.lower(ty.content(), &value)?;
        let cell = NonNull::from(Box::leak(Box::new([raw as u64, (raw >> 64) as u64]))).cast();
        let index = store.add_global(GlobalData { ty, cell, owned: true });
        Ok(Self(Handle::at(store, index)))
    }

    /// The type of the global's value, and whether it can be assigned.
    pub fn ty(&self, store: impl AsContext) -> GlobalType {
        self.data(&store.as_context().0.opaque).ty
    }

    /// The global's current value.
    pub fn get(&self, mut store: impl AsContextMut) -> Val {
        let store = &mut store.as_context_mut().into_inner().opaque;
        collect::if_due(store, collect::From::Host, &[]);
        let (ty, raw) = (self.data(store).ty.content(), self.data(store).raw());
        store.lift(ty, raw)
    }

    /// Assigns a value.
    ///
    /// # Errors
    /// [`Error::ConstantGlobal`], [`Error::ValueType`], or [`Error::WrongStore`] if the value
    /// belongs to another store.
    pub fn set(&self, mut store: impl AsContextMut, value: Val) -> Result<(), Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let ty = self.data(store).ty;
        if ty.mutability() == Mutability::Const {
            return Err(Error::ConstantGlobal);
        }
        collect::if_due(store, collect::From::Host, &[]);
        let raw = store.lower(ty.content(), &value)?;
        let global = self.0.index_in(store);
        store.globals[global].set_raw(raw);
        Ok(())
    }

    #[track_caller]
    pub(crate) fn data<'a>(&self, store: &'a StoreOpaque) -> &'a GlobalData {
        &store.globals[self.0.index_in(store)]
    }
}

impl StoreOpaque {
    /// Returns its index.
    pub(crate) fn add_global(&mut self, global: GlobalData) -> u32 {
        self.globals.push(global);
        self.globals.len() as u32 - 1
    }
}
