//! Libcalls that create structures and arrays, and those that concern many elements of an array.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wasm_jit_codegen::objects::ARRAY_ELEMENTS;

use super::collect::From;
use super::libcalls::{Running, halves, part};
use super::objects::{Object, Room};
use super::store::{Failure, StoreOpaque};
use crate::error::Error;
use crate::trap::Trap;
use crate::vmctx::{Answer, VmContext};

/// What a program may refer to only by what a libcall has got is in its frame.
const COLLECT: Room<'_> = Room::Collect(From::Libcall, &[]);

/// The answer of a libcall that creates an object with this function.
fn created(running: Running<'_>, create: impl FnOnce(&mut Running<'_>) -> Result<Object, Error>) -> Answer {
    let mut running = running;
    // The collector drops values of the embedder, which may panic: nothing may unwind through
    // compiled code.
    let failure = match catch_unwind(AssertUnwindSafe(|| create(&mut running))) {
        Ok(Ok(object)) => return running.answer(Ok(object.address() as u64)),
        Ok(Err(error)) => Failure::Error(error),
        Err(panic) => Failure::Panic(panic),
    };
    running.store.failure = Some(failure);
    Answer { value: 0, failed: 1 }
}

/// The value that compiled code has recorded for an array operation.
fn recorded(store: &StoreOpaque) -> u128 {
    // SAFETY: the context lives as long as the store, and no compiled code runs.
    let [low, high] = unsafe { (*store.vm()).element };
    u128::from(low) | u128::from(high) << 64
}

/// The number of elements that compiled code has recorded.
fn recorded_length(store: &StoreOpaque) -> u64 {
    recorded(store) as u32 as u64
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

pub(super) unsafe extern "sysv64" fn struct_new(context: *mut VmContext, ty: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let module = running.instance.module.clone();
    created(running, |running| running.store.new_struct(module.object_type(ty as u32), COLLECT))
}

pub(super) unsafe extern "sysv64" fn array_new(context: *mut VmContext, ty: u64, length: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let module = running.instance.module.clone();
    let value = recorded(running.store);
    let bytes = module.info().array_element(ty as u32).bytes();
    created(running, |running| {
        let array = running.store.new_array(module.object_type(ty as u32), length as u32, COLLECT)?;
        if value != 0 {
            // SAFETY: the array has these elements, and validation says that the value is of their
            // type.
            unsafe { array.fill(0, length as u32, bytes, value) };
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
    let module = running.instance.module.clone();
    let bytes = u64::from(module.info().array_element(ty).bytes());
    created(running, |running| {
        part(running.instance.data(segment), from, length * bytes).ok_or(Trap::MemoryOutOfBounds)?;
        let array = running.store.new_array(module.object_type(ty), length as u32, COLLECT)?;
        copy_data(running, segment, from, array, 0, length * bytes)?;
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
    let module = running.instance.module.clone();
    created(running, |running| {
        part(&running.instance.elements[segment as usize].values, from, length)
            .ok_or(Trap::TableOutOfBounds)?;
        let array = running.store.new_array(module.object_type(ty), length as u32, COLLECT)?;
        copy_elements(running, segment, from, array, 0, length)?;
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
    let outcome = operand(array).and_then(|array| {
        check(array, at, length)?;
        // SAFETY: the array has these elements, and validation says that the value is of their
        // type.
        unsafe { array.fill(at as u32, length as u32, bytes, recorded(running.store)) };
        Ok(0)
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
        // SAFETY: both arrays have these elements, and validation says that those of one are values
        // of the other.
        unsafe {
            let source = from_array.elements().add((from as usize) << log2);
            source.copy_to(to_array.elements().add((to as usize) << log2), (length as usize) << log2);
        }
        Ok(0)
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
    let outcome = operand(array).and_then(|array| {
        check(array, at, length)?;
        copy_data(&running, segment, from, array, at * bytes, length * bytes)
    });
    running.answer(outcome.map(|()| 0))
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
    let outcome = operand(array).and_then(|array| {
        check(array, at, length)?;
        copy_elements(&running, segment, from, array, at, length)
    });
    running.answer(outcome.map(|()| 0))
}

/// Copies bytes of a data segment to an array, which has room for them from the byte `to` on.
fn copy_data(
    running: &Running<'_>,
    segment: u32,
    from: u64,
    array: Object,
    to: u64,
    length: u64,
) -> Result<(), Trap> {
    let bytes = part(running.instance.data(segment), from, length).ok_or(Trap::MemoryOutOfBounds)?;
    // SAFETY: the array has room for them, and they are numbers.
    unsafe { array.elements().add(to as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// Copies values of an element segment to an array, which has these elements.
fn copy_elements(
    running: &Running<'_>,
    segment: u32,
    from: u64,
    array: Object,
    to: u64,
    length: u64,
) -> Result<(), Trap> {
    let values = &running.instance.elements[segment as usize].values;
    let values = part(values, from, length).ok_or(Trap::TableOutOfBounds)?;
    // SAFETY: the array has these elements, and validation says that the values are of their type.
    unsafe {
        let to = array.elements().cast::<u64>().add(to as usize);
        to.copy_from_nonoverlapping(values.as_ptr(), values.len());
    }
    Ok(())
}

const _: () = assert!(ARRAY_ELEMENTS % 8 == 0, "words are aligned");
