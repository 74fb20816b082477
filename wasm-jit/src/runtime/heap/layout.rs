//! How objects are read: their types, sizes and lengths.

use std::ptr;

use wasm_jit_codegen::objects::{ARRAY_LENGTH, array_size};

use crate::object_type::{ObjectLayout, ObjectType};

/// The word at an address.
///
/// # Safety
/// The address is a multiple of 8, and the word is in the memory of a heap which is mapped and
/// which nothing else accesses now.
#[inline(always)]
pub(super) unsafe fn read(address: usize) -> u64 {
    // SAFETY: required of the caller; the provenance of the mapping was exposed by `Chunk::map`.
    unsafe { ptr::with_exposed_provenance::<u64>(address).read() }
}

/// The layout of a complete object.
///
/// # Safety
/// An object of a heap starts at the address, and its type is alive as long as the result is used.
#[inline(always)]
pub(super) unsafe fn layout_of<'a>(object: usize) -> &'a ObjectLayout {
    // SAFETY: the header of an object is the address of a descriptor, which is alive.
    unsafe { &(*ptr::with_exposed_provenance::<ObjectType>(read(object) as usize)).layout }
}

/// The length of a complete array.
///
/// # Safety
/// An array of a heap starts at the address.
#[inline(always)]
pub(super) unsafe fn length_of(array: usize) -> u32 {
    // SAFETY: the length is the lower half of the second word of an array.
    unsafe { read(array + ARRAY_LENGTH as usize) as u32 }
}

/// The size of a complete object.
///
/// # Safety
/// An object of a heap starts at the address, and its type is alive.
#[inline(always)]
pub(super) unsafe fn size_of_object(object: usize) -> usize {
    // SAFETY: required of the caller.
    match unsafe { layout_of(object) } {
        ObjectLayout::Struct { size, .. } => *size as usize,
        ObjectLayout::Array { element_log2, .. } => {
            // SAFETY: the layout is that of an array.
            array_size(*element_log2, unsafe { length_of(object) }) as usize
        }
        ObjectLayout::Function => unreachable!("functions are not in the heap"),
    }
}
