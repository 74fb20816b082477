//! The elements of an array of numbers, as a slice.

use std::slice;

use wasm_jit_codegen::objects::ARRAY_ELEMENTS;

use super::any_ref::ArrayRef;
use super::objects::Object;
use super::store::{StoreContext, StoreContextMut, StoreOpaque};
use crate::types::{Mutability, StorageType, ValType};

/// A Rust number type that array elements can have.
///
/// # Safety
/// Every sequence of bits is a value, elements of this storage type have the same size, and the
/// alignment is at most eight bytes.
pub unsafe trait ArrayElement: Copy + 'static {
    /// The storage type of the elements.
    const STORAGE: StorageType;
}

macro_rules! numbers {
    ($($ty:ty => $storage:expr;)*) => {
        $(
            // SAFETY: a number of this size.
            unsafe impl ArrayElement for $ty {
                const STORAGE: StorageType = $storage;
            }

            const _: () = assert!((ARRAY_ELEMENTS as usize).is_multiple_of(align_of::<$ty>()));
        )*
    };
}

numbers! {
    u8 => StorageType::I8;
    u16 => StorageType::I16;
    u32 => StorageType::Val(ValType::I32);
    u64 => StorageType::Val(ValType::I64);
    f32 => StorageType::Val(ValType::F32);
    f64 => StorageType::Val(ValType::F64);
}

impl ArrayRef {
    /// The elements, or `None` if they are not numbers of this type.
    ///
    /// # Panics
    /// If the array belongs to another store.
    pub fn elements<'a, E: ArrayElement, T: 'static>(
        &'a self,
        store: impl Into<StoreContext<'a, T>>,
    ) -> Option<&'a [E]> {
        let store = &store.into().0.opaque;
        let object = self.object_of::<E>(store)?;
        // SAFETY: the array has these elements, aligned to eight bytes, and the handle keeps it
        // alive. The store is borrowed: nothing writes to it.
        Some(unsafe { slice::from_raw_parts(object.elements().cast(), object.length() as usize) })
    }

    /// The elements, mutable, or `None` if they are constant or not numbers of this type.
    ///
    /// # Panics
    /// If the array belongs to another store.
    #[expect(clippy::mut_from_ref, reason = "the store is borrowed exclusively, not the handle")]
    pub fn elements_mut<'a, E: ArrayElement, T: 'static>(
        &'a self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> Option<&'a mut [E]> {
        let store = &store.into().into_inner().opaque;
        let object = self.object_of::<E>(store)?;
        if self.type_in(store).element().mutability() == Mutability::Const {
            return None;
        }
        // SAFETY: as in `elements`. The store is borrowed exclusively: nothing else reads or writes
        // the array.
        Some(unsafe { slice::from_raw_parts_mut(object.elements().cast(), object.length() as usize) })
    }

    /// The object, if its elements are of this type.
    fn object_of<E: ArrayElement>(&self, store: &StoreOpaque) -> Option<Object> {
        let object = self.object(store);
        (self.type_in(store).element().storage() == E::STORAGE).then_some(object)
    }
}
