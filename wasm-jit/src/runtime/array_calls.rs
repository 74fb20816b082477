//! Libcalls that create structures and arrays, and those that concern many elements of an array.

use wasm_jit_codegen::objects::ARRAY_ELEMENTS;

use super::collect::From;
use super::instance::InstanceData;
use super::libcalls::{Running, halves, in_pieces, part};
use super::objects::{Object, Room};
use super::store::StoreOpaque;
use crate::error::Error;
use crate::trap::Trap;
use crate::vmctx::{Answer, VmContext};

/// References that the program has only passed to a libcall are in the program's frame.
const COLLECT: Room<'_> = Room::of(From::Libcall);

/// The result of a libcall that creates an object with this function.
fn created(
    running: Running<'_>,
    create: impl FnOnce(&mut StoreOpaque, &InstanceData) -> Result<Object, Error>,
) -> Answer {
    let Running { store, instance } = running;
    match store.attempt(|store| create(store, instance)) {
        Some(object) => Running { store, instance }.answer(Ok(object.address() as u64)),
        None => Answer { value: 0, failed: 1 },
    }
}

/// The value of this size that compiled code has recorded for an array operation.
fn recorded(store: &StoreOpaque, bytes: u32) -> u128 {
    // SAFETY: the context lives as long as the store, and no compiled code runs.
    let [low, high] = unsafe { (*store.vm()).element };
    (u128::from(low) | u128::from(high) << 64) & (u128::MAX >> (u128::BITS - 8 * bytes))
}

/// The number of elements that compiled code has recorded.
fn recorded_length(store: &StoreOpaque) -> u64 {
    recorded(store, u32::BITS / 8) as u64
}

/// The array that is the operand of an instruction.
fn operand(reference: u64) -> Result<Object, Trap> {
    if reference == 0 {
        return Err(Trap::NullReference);
    }
    // SAFETY: validated: a reference to an array, which the frame keeps alive.
    Ok(unsafe { Object::at(reference as usize) })
}

/// Checks that an array has these elements.
fn check(array: Object, at: u64, count: u64) -> Result<(), Trap> {
    match at + count <= array.length().into() {
        true => Ok(()),
        false => Err(Trap::ArrayOutOfBounds),
    }
}

/// The array that is the operand of an instruction, which must have these elements.
fn operand_with(reference: u64, at: u64, count: u64) -> Result<Object, Trap> {
    let array = operand(reference)?;
    check(array, at, count)?;
    Ok(array)
}

/// Bytes of a data segment.
fn data(instance: &InstanceData, segment: u32, from: u64, length: u64) -> Result<&[u8], Trap> {
    part(instance.data(segment), from, length).ok_or(Trap::MemoryOutOfBounds)
}

/// Values of an element segment.
fn values(instance: &InstanceData, segment: u32, from: u64, length: u64) -> Result<&[u64], Trap> {
    part(&instance.elements[segment as usize].values, from, length).ok_or(Trap::TableOutOfBounds)
}

/// Writes a value to elements of an array. An interrupt may end this halfway.
///
/// # Safety
/// As [`Object::fill`].
unsafe fn fill(store: &StoreOpaque, array: Object, at: u64, count: u64, value: u128) -> Result<u64, Trap> {
    let bytes = 1 << array.element_log2();
    in_pieces(store, count * u64::from(bytes), false, |piece| {
        let elements = |length: usize| (length / bytes as usize) as u32;
        // SAFETY: the caller's obligation, for a part of the elements.
        unsafe { array.fill(at as u32 + elements(piece.start), elements(piece.len()), bytes, value) };
    })
}

/// Writes elements of an array, starting at this index.
///
/// # Safety
/// The array has room for them there, and they are of its elements' type and size, or the bytes of
/// such elements, which are numbers.
unsafe fn write<T: Copy>(array: Object, at: u64, source: &[T]) {
    const { assert!((ARRAY_ELEMENTS as usize).is_multiple_of(align_of::<T>()), "aligned") };
    // SAFETY: the caller's obligation.
    unsafe {
        let place = array.elements().cast::<T>().add(at as usize);
        place.copy_from_nonoverlapping(source.as_ptr(), source.len());
    }
}

pub(super) unsafe extern "sysv64" fn struct_new(context: *mut VmContext, ty: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    created(running, |store, instance| store.new_struct(instance.module.object_type(ty as u32), COLLECT))
}

pub(super) unsafe extern "sysv64" fn array_new(context: *mut VmContext, ty: u64, length: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    created(running, |store, instance| {
        let bytes = instance.module.info().array_element(ty as u32).bytes();
        let value = recorded(store, bytes);
        let array = store.new_array(instance.module.object_type(ty as u32), length as u32, COLLECT)?;
        if value != 0 {
            // SAFETY: the array has these elements, and validation says that the value is of their
            // type.
            unsafe { fill(store, array, 0, length, value)? };
        }
        Ok(array)
    })
}

pub(super) unsafe extern "sysv64" fn array_new_data(
    context: *mut VmContext,
    ty_and_segment: u64,
    from: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (ty, segment) = halves(ty_and_segment);
    created(running, |store, instance| {
        let bytes = u64::from(instance.module.info().array_element(ty).bytes());
        let source = data(instance, segment, from, length * bytes)?;
        let array = store.new_array(instance.module.object_type(ty), length as u32, COLLECT)?;
        // SAFETY: it has as many bytes, and validation says that the elements are numbers.
        unsafe { write(array, 0, source) };
        Ok(array)
    })
}

pub(super) unsafe extern "sysv64" fn array_new_elem(
    context: *mut VmContext,
    ty_and_segment: u64,
    from: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (ty, segment) = halves(ty_and_segment);
    created(running, |store, instance| {
        let source = values(instance, segment, from, length)?;
        let array = store.new_array(instance.module.object_type(ty), length as u32, COLLECT)?;
        // SAFETY: it has as many elements, and validation says that the values are of their type.
        unsafe { write(array, 0, source) };
        Ok(array)
    })
}

pub(super) unsafe extern "sysv64" fn array_fill(
    context: *mut VmContext,
    ty: u64,
    array: u64,
    at: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let bytes = running.instance.module.info().array_element(ty as u32).bytes();
    let outcome = operand_with(array, at, length).and_then(|array| {
        let value = recorded(running.store, bytes);
        // SAFETY: the array has these elements, and validation says that the value is of their
        // type.
        unsafe { fill(running.store, array, at, length, value) }
    });
    running.answer(outcome)
}

pub(super) unsafe extern "sysv64" fn array_copy(
    context: *mut VmContext,
    to_array: u64,
    to: u64,
    from_array: u64,
    from: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let length = recorded_length(running.store);
    let outcome = operand(to_array).and_then(|to_array| {
        let from_array = operand(from_array)?;
        check(to_array, to, length)?;
        check(from_array, from, length)?;
        let log2 = to_array.element_log2();
        // SAFETY: both arrays have these elements.
        let (source, target) = unsafe {
            let source = from_array.elements().add((from as usize) << log2);
            (source, to_array.elements().add((to as usize) << log2))
        };
        // If the elements overlap, none is written before it has been read.
        in_pieces(running.store, length << log2, source.addr() < target.addr(), |piece| {
            // SAFETY: as above; validation says that the elements of one are values of the other.
            unsafe { source.add(piece.start).copy_to(target.add(piece.start), piece.len()) };
        })
    });
    running.answer(outcome)
}

pub(super) unsafe extern "sysv64" fn array_init_data(
    context: *mut VmContext,
    ty_and_segment: u64,
    array: u64,
    at: u64,
    from: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (ty, segment) = halves(ty_and_segment);
    let bytes = u64::from(running.instance.module.info().array_element(ty).bytes());
    let length = recorded_length(running.store);
    let outcome = operand_with(array, at, length).and_then(|array| {
        let source = data(running.instance, segment, from, length * bytes)?;
        // SAFETY: the array has these elements, and validation says that they are numbers.
        unsafe { write(array, at * bytes, source) };
        Ok(0)
    });
    running.answer(outcome)
}

pub(super) unsafe extern "sysv64" fn array_init_elem(
    context: *mut VmContext,
    ty_and_segment: u64,
    array: u64,
    at: u64,
    from: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (_, segment) = halves(ty_and_segment);
    let length = recorded_length(running.store);
    let outcome = operand_with(array, at, length).and_then(|array| {
        let source = values(running.instance, segment, from, length)?;
        // SAFETY: the array has these elements, and validation says that the values are of their
        // type.
        unsafe { write(array, at, source) };
        Ok(0)
    });
    running.answer(outcome)
}
