//! Objects of the garbage-collected heap: how the runtime allocates them, and reads and writes
//! their fields.
//!
//! Compiled code allocates small objects itself, from the span of addresses in its store's
//! [`VmStoreContext`](crate::vmctx::VmStoreContext); see `compiler/operators/objects.rs` there. The
//! layout of objects is in [`wasm_jit_codegen::objects`].

use std::ptr::NonNull;

use wasm_jit_codegen::objects::{
    ARRAY_ELEMENTS, ARRAY_LENGTH, FIRST_FIELD, HOST_BIT, I31_BIT, MAX_SMALL_OBJECT, array_size,
};

use super::collect::{self, From};
use super::store::StoreOpaque;
use crate::engine::KnownType;
use crate::error::Error;
use crate::linear_memory::system_refuses;
use crate::object_type::{ObjectLayout, ObjectType};
use crate::types::{ArrayType, HeapType, StructType};
use crate::vmctx::VmType;

/// What a word of the `any` hierarchy, or an `externref`, refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Referent {
    Null,
    /// The value, 31 bits.
    I31(u32),
    /// The entry of a host value.
    Host(u64),
    /// The address of an object.
    Object(usize),
}

impl Referent {
    pub(crate) fn of(word: u64) -> Self {
        if word == 0 {
            Self::Null
        } else if word & I31_BIT != 0 {
            Self::I31(word as u32 >> 1)
        } else if word & HOST_BIT != 0 {
            Self::Host(word)
        } else {
            Self::Object(word as usize)
        }
    }
}

/// What a collection that makes room for an allocation must know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<'a> {
    /// The caller of the allocation.
    pub(crate) from: From,
    /// Values whose lower halves may be references that are stored nowhere else.
    pub(crate) values: &'a [u128],
}

impl Room<'_> {
    /// Of an allocation whose caller has no references but those that are stored elsewhere.
    pub(crate) const fn of(from: From) -> Self {
        Self { from, values: &[] }
    }

    fn collect(self, store: &mut StoreOpaque) {
        let extra: Vec<u64> = self.values.iter().map(|value| *value as u64).collect();
        collect::collect(store, self.from, &extra);
    }
}

/// The address of an object: it is alive, and does not move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object(NonNull<u8>);

impl Object {
    /// The object at an address.
    ///
    /// # Safety
    /// There is an object at the address, and it stays alive while the result is used.
    pub(crate) unsafe fn at(address: usize) -> Self {
        let address = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller's obligation.
        Self(unsafe { NonNull::new_unchecked(address) })
    }

    pub(crate) fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The object's type.
    pub(crate) fn ty(self) -> NonNull<VmType> {
        // SAFETY: an object begins with the address of its type.
        unsafe { self.0.cast::<NonNull<VmType>>().read() }
    }

    /// The number of elements of an array.
    pub(crate) fn length(self) -> u32 {
        // SAFETY: an array has its length there.
        unsafe { self.0.byte_add(ARRAY_LENGTH as usize).cast::<u32>().read() }
    }

    /// The binary logarithm of the size of an array's elements.
    pub(crate) fn element_log2(self) -> u8 {
        // SAFETY: the types of objects are the heads of such types.
        let ty = unsafe { self.ty().cast::<ObjectType>().as_ref() };
        match ty.layout {
            ObjectLayout::Array { element_log2, .. } => element_log2,
            _ => unreachable!("an array"),
        }
    }

    /// The address of an array's elements.
    pub(crate) fn elements(self) -> *mut u8 {
        self.0.as_ptr().wrapping_add(ARRAY_ELEMENTS as usize)
    }

    /// Reads the value at an offset, zero-extended if it is packed.
    ///
    /// # Safety
    /// There is a field or element of this size at the offset.
    pub(crate) unsafe fn read(self, offset: usize, bytes: u32) -> u128 {
        // SAFETY: the caller's obligation.
        unsafe {
            let place = self.0.as_ptr().add(offset);
            match bytes {
                1 => place.read().into(),
                2 => place.cast::<u16>().read().into(),
                4 => place.cast::<u32>().read().into(),
                8 => place.cast::<u64>().read().into(),
                _ => place.cast::<u128>().read_unaligned(),
            }
        }
    }

    /// Writes the lowest bytes of a value at an offset.
    ///
    /// # Safety
    /// There is a field or element of this size at the offset, and the value is of its type.
    pub(crate) unsafe fn write(self, offset: usize, bytes: u32, value: u128) {
        // SAFETY: the caller's obligation.
        unsafe {
            let place = self.0.as_ptr().add(offset);
            match bytes {
                1 => place.write(value as u8),
                2 => place.cast::<u16>().write(value as u16),
                4 => place.cast::<u32>().write(value as u32),
                8 => place.cast::<u64>().write(value as u64),
                _ => place.cast::<u128>().write_unaligned(value),
            }
        }
    }

    /// Writes a value to elements of an array.
    ///
    /// # Safety
    /// The array has the elements, of this size, and the value is of their type.
    pub(crate) unsafe fn fill(self, at: u32, count: u32, bytes: u32, value: u128) {
        let start = ARRAY_ELEMENTS as usize + at as usize * bytes as usize;
        for index in 0..count as usize {
            // SAFETY: the caller's obligation.
            unsafe { self.write(start + index * bytes as usize, bytes, value) };
        }
    }
}

impl StoreOpaque {
    /// A new structure, all fields of which are 0 or null.
    pub(crate) fn new_struct(&mut self, ty: &ObjectType, room: Room<'_>) -> Result<Object, Error> {
        let ObjectLayout::Struct { size, .. } = ty.layout else {
            unreachable!("the type is one of structures")
        };
        self.new_object(ty, size.into(), None, room)
    }

    /// A new array, all elements of which are 0 or null.
    pub(crate) fn new_array(
        &mut self,
        ty: &ObjectType,
        length: u32,
        room: Room<'_>,
    ) -> Result<Object, Error> {
        let ObjectLayout::Array { element_log2, .. } = ty.layout else {
            unreachable!("the type is one of arrays")
        };
        self.new_object(ty, array_size(element_log2, length), Some(length), room)
    }

    fn new_object(
        &mut self,
        ty: &ObjectType,
        size: u64,
        length: Option<u32>,
        room: Room<'_>,
    ) -> Result<Object, Error> {
        let is_small = size <= MAX_SMALL_OBJECT.into();
        let object = if is_small {
            self.make_room(size as usize, room)?;
            // SAFETY: the context lives as long as the store, and no compiled code runs.
            NonNull::new(std::ptr::with_exposed_provenance_mut(unsafe { (*self.vm()).heap_next }))
        } else {
            self.allocate_large(size, room)
        };
        let object = object.ok_or_else(|| self.no_room())?;
        // SAFETY: there is room for an object of this size, and nothing else uses it.
        unsafe {
            object.cast::<*const VmType>().write(&raw const ty.vm);
            // A large object is zero already.
            if is_small {
                object.add(FIRST_FIELD as usize).write_bytes(0, size as usize - FIRST_FIELD as usize);
            }
            if let Some(length) = length {
                object.byte_add(ARRAY_LENGTH as usize).cast::<u32>().write(length);
            }
            if is_small {
                (*self.vm()).heap_next += size as usize;
            }
        }
        Ok(Object(object))
    }

    /// Makes sure that the span has room for an object of this size.
    pub(crate) fn make_room(&mut self, size: usize, room: Room<'_>) -> Result<(), Error> {
        // SAFETY: the context lives as long as the store, and no compiled code runs.
        let has_room = unsafe { (*self.vm()).heap_end - (*self.vm()).heap_next >= size };
        if has_room || self.collecting(room, |store| store.refill(size).then_some(())).is_some() {
            return Ok(());
        }
        Err(self.no_room())
    }

    /// Allocates, after a collection if one is due or there is no room.
    fn collecting<T>(
        &mut self,
        room: Room<'_>,
        mut allocate: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        if self.is_collection_due() {
            room.collect(self);
        }
        let allocated = allocate(self);
        if allocated.is_some() {
            return allocated;
        }
        room.collect(self);
        allocate(self)
    }

    /// The error of an allocation that nothing can make room for.
    pub(crate) fn no_room(&self) -> Error {
        match self.limits.heap() {
            u64::MAX => system_refuses("the heap"),
            _ => Error::limit("heap memory"),
        }
    }

    /// Whether an allocation should collect before more memory is requested.
    pub(crate) fn is_collection_due(&self) -> bool {
        self.heap.is_due(self.limits.heap())
            || self.heap.is_due_with_exceptions(self.exceptions.fresh(), self.exceptions.retained)
            || self.engine.collects_always() && self.heap.may_always_collect()
    }

    /// Finds another span; returns whether there is one.
    fn refill(&mut self, size: usize) -> bool {
        let vm = self.vm();
        // SAFETY: the context lives as long as the store, and no compiled code runs.
        let next = unsafe { (*vm).heap_next };
        let span = self.heap.refill(next, size, self.limits.heap());
        let (start, mut end) = span.map_or((0, 0), |span| (span.start, span.end));
        if self.engine.collects_always() && span.is_some() {
            // Compiled code comes back for the next object.
            end = start + size;
        }
        // SAFETY: as above.
        unsafe { ((*vm).heap_next, (*vm).heap_end) = (start, end) };
        span.is_some()
    }

    fn allocate_large(&mut self, size: u64, room: Room<'_>) -> Option<NonNull<u8>> {
        let size = usize::try_from(size).ok()?;
        let limit = self.limits.heap();
        self.collecting(room, |store| store.heap.allocate_large(size, limit))
    }

    /// The structure type of an object, if it is a structure.
    pub(crate) fn struct_type(&self, object: Object) -> Option<StructType> {
        match self.type_of_object(object) {
            KnownType::Struct(ty) => Some(ty),
            _ => None,
        }
    }

    /// The array type of an object, if it is an array.
    pub(crate) fn array_type(&self, object: Object) -> Option<ArrayType> {
        match self.type_of_object(object) {
            KnownType::Array(ty) => Some(ty),
            _ => None,
        }
    }

    fn type_of_object(&self, object: Object) -> KnownType {
        // SAFETY: a type is in use as long as there are objects of it.
        self.engine.known_type(unsafe { object.ty().as_ref() }.id)
    }

    /// The heap type of references to an object.
    pub(crate) fn heap_type(&self, object: Object) -> HeapType {
        // SAFETY: as in `type_of_object`.
        let ty = unsafe { object.ty().as_ref() };
        HeapType::of_id(ty.kind, ty.id)
    }
}
