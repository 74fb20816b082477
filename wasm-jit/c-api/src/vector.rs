//! Vectors: `wasm_NAME_vec_t`, a number and the address of that many elements.
//!
//! The C library allocates their memory, so that freeing it does not depend on the number of
//! elements, which C code may have changed.

use std::alloc::{Layout, handle_alloc_error};
use std::mem::{ManuallyDrop, MaybeUninit, replace};
use std::{ptr, slice};

/// An element of a vector.
///
/// # Safety
/// All-zero memory is a valid value: C code gets it in vectors whose elements it is to write.
pub(crate) unsafe trait Element: Clone {}

// SAFETY: a number.
unsafe impl Element for u8 {}

// SAFETY: a null pointer is `None`.
unsafe impl<T: Clone> Element for Option<Box<T>> {}

/// A vector, which owns its elements. C code also creates vectors that do not own theirs, and never
/// passes these to a function that takes ownership.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Vector<T: Element> {
    size: usize,
    data: *mut T,
}

/// The destination of a vector that a function returns; it may be uninitialized.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<Vector<T>>>;

impl<T: Element> Vector<T> {
    pub(crate) fn empty() -> Self {
        Self { size: 0, data: ptr::null_mut() }
    }

    /// Elements of all-zero bytes; `None` if there is no memory for them.
    fn zeroed(size: usize) -> Option<Self> {
        if size == 0 {
            return Some(Self::empty());
        }
        // No object is larger than this allows.
        Layout::array::<T>(size).ok()?;
        // SAFETY: takes two numbers.
        let data: *mut T = unsafe { libc::calloc(size, size_of::<T>()) }.cast();
        (!data.is_null()).then_some(Self { size, data })
    }

    pub(crate) fn len(&self) -> usize {
        if self.data.is_null() { 0 } else { self.size }
    }

    pub(crate) fn elements(&self) -> &[T] {
        match self.len() {
            0 => &[],
            // SAFETY: there are that many elements: of a vector of this library since it was
            // created, of one of C code by the meaning of the type.
            len => unsafe { slice::from_raw_parts(self.data, len) },
        }
    }

    /// Overwrites the first elements of a vector of C code, which need not be initialized, with
    /// these values.
    ///
    /// # Safety
    /// C code has passed the vector for this, and there are no references to its elements.
    pub(crate) unsafe fn overwrite(&self, values: impl Iterator<Item = T>) {
        for (index, value) in (0..self.len()).zip(values) {
            // SAFETY: there are that many elements, and the caller's obligation.
            unsafe { self.data.add(index).write(value) };
        }
    }

    /// Frees the memory without dropping the elements: whether they still exist is unknown.
    pub(crate) fn leave_elements(self) {
        let vector = ManuallyDrop::new(self);
        // SAFETY: the memory is that of `zeroed`, or null.
        unsafe { libc::free(vector.data.cast()) };
    }

    /// Moves the elements into a new vector.
    pub(crate) fn take(&mut self) -> Self {
        replace(self, Self::empty())
    }
}

impl<T: Element> FromIterator<T> for Vector<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let values = Vec::from_iter(values);
        let Some(vector) = Self::zeroed(values.len()) else {
            handle_alloc_error(Layout::for_value(&*values))
        };
        // SAFETY: nothing else knows the new vector.
        unsafe { vector.overwrite(values.into_iter()) };
        vector
    }
}

impl<T: Element> Clone for Vector<T> {
    fn clone(&self) -> Self {
        self.elements().iter().cloned().collect()
    }
}

impl<T: Element> Drop for Vector<T> {
    fn drop(&mut self) {
        if self.data.is_null() {
            return;
        }
        // SAFETY: the elements belong to the vector, and so does their memory, which is that of
        // `zeroed`.
        unsafe {
            ptr::drop_in_place(ptr::slice_from_raw_parts_mut(self.data, self.size));
            libc::free(self.data.cast());
        }
    }
}

/// Stores a result of a function through a pointer, unless that is null.
pub(crate) fn store<T>(out: Option<&mut MaybeUninit<T>>, value: T) {
    if let Some(out) = out {
        out.write(value);
    }
}

/// `wasm_NAME_vec_new_empty`: a vector without elements.
pub(crate) fn new_empty<T: Element>(out: Out<'_, T>) {
    store(out, Vector::empty());
}

/// `wasm_NAME_vec_new_uninitialized`: all-zero elements, or an empty vector if there is no memory.
pub(crate) fn new_uninitialized<T: Element>(out: Out<'_, T>, size: usize) {
    store(out, Vector::zeroed(size).unwrap_or_else(Vector::empty));
}

/// `wasm_NAME_vec_new`: moves `size` elements into a new vector.
///
/// # Safety
/// `elements` is null, or the address of `size` elements that the caller owns.
pub(crate) unsafe fn new<T: Element>(out: Out<'_, T>, size: usize, elements: *const T) {
    let Some(vector) = Vector::zeroed(if elements.is_null() { 0 } else { size }) else {
        return new_empty(out);
    };
    if vector.size != 0 {
        // SAFETY: there are that many elements, and places for them.
        unsafe { ptr::copy_nonoverlapping(elements, vector.data, vector.size) };
    }
    store(out, vector);
}

/// `wasm_NAME_vec_copy`: copies the elements into a new vector.
pub(crate) fn copy<T: Element>(out: Out<'_, T>, vector: Option<&Vector<T>>) {
    store(out, vector.map_or_else(Vector::empty, Vector::clone));
}

/// `wasm_NAME_vec_delete`: drops the elements. The vector is empty afterwards, so that deleting it
/// again has no effect.
pub(crate) fn delete<T: Element>(vector: Option<&mut Vector<T>>) {
    if let Some(vector) = vector {
        drop(vector.take());
    }
}

/// Exports the functions of vectors, for each name of `wasm_NAME_vec_t` with elements of a type.
macro_rules! export_vectors {
    ($($name:literal $element:ty;)*) => {
        $(
            const _: () = {
                use $crate::vector::{self, Out, Vector};

                #[unsafe(export_name = concat!("wasm_", $name, "_vec_new_empty"))]
                extern "C" fn new_empty(out: Out<'_, $element>) {
                    vector::new_empty(out);
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_vec_new_uninitialized"))]
                extern "C" fn new_uninitialized(out: Out<'_, $element>, size: usize) {
                    vector::new_uninitialized(out, size);
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_vec_new"))]
                unsafe extern "C" fn new(out: Out<'_, $element>, size: usize, elements: *const $element) {
                    // SAFETY: the caller's obligation.
                    unsafe { vector::new(out, size, elements) };
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_vec_copy"))]
                extern "C" fn copy(out: Out<'_, $element>, vector: Option<&Vector<$element>>) {
                    vector::copy(out, vector);
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_vec_delete"))]
                extern "C" fn delete(vector: Option<&mut Vector<$element>>) {
                    vector::delete(vector);
                }
            };
        )*
    };
}
pub(crate) use export_vectors;

export_vectors! {
    "byte" u8;
}
