//! The values that probes fetch, arguments at entries and the result at exits: a list for each
//! probe.
//!
//! [`values`] runs in probe functions, including in signal handlers: it reads a table without
//! locks, registers, and the stack of the function that is entered or left.
//!
//! A list is never freed, since a probe may be reading it. It grows only when a script asks for an
//! argument or the result of the function that no script has asked for before, up to [`MAX_VALUES`]
//! values.

use std::sync::atomic::{AtomicPtr, Ordering};

use fastinst::ProbeId;
use fastinst_sigsafe::Segments;
use profiler::arguments::{Fetch, Register, Source};

use crate::fire::Registers;
use crate::ring::{MAX_VALUES, Values};

/// The maximum distance of an argument from the stack pointer: that of a frame as large as the
/// usual stack. A greater distance comes from debugging information that does not match the code.
const MAX_FRAME: usize = 8 << 20;

/// The locations of a probe's values: `None` where one is not known.
pub(crate) type List = Vec<Option<Fetch>>;

/// The lists by number of the probe. Null: the probe fetches nothing.
static LISTS: Segments<AtomicPtr<List>> = Segments::new();

/// Sets what a probe fetches. The list has at most [`MAX_VALUES`] elements. Returns false if the
/// table is full.
pub(crate) fn set(id: ProbeId, mut list: List) -> bool {
    assert!(list.len() <= MAX_VALUES, "the caller counts them");
    // Slots of events are not wasted on values that are never known.
    list.truncate(list.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
    let number = id.0 as usize;
    while LISTS.len() <= number {
        if LISTS.push_with(|_| AtomicPtr::default()).is_none() {
            return false;
        }
    }
    let Some(entry) = LISTS.get(number) else { return false };
    // Release: pairs with the Acquire of `values`.
    entry.store(Box::into_raw(Box::new(list)), Ordering::Release);
    true
}

/// The values that a probe fetches, and their number.
pub(crate) fn values(id: ProbeId, registers: &Registers) -> (Values, usize) {
    let mut found = Values::NONE;
    let Some(entry) = LISTS.get(id.0 as usize) else { return (found, 0) };
    // SAFETY: null, or a list that `set` has published and that is never freed.
    let Some(list) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else { return (found, 0) };
    for (number, fetch) in list.iter().enumerate().take(MAX_VALUES) {
        if let Some(bits) = fetch.as_ref().and_then(|fetch| value(fetch, registers)) {
            found.values[number] = bits;
            found.known |= 1 << number;
        }
    }
    (found, list.len())
}

fn value(fetch: &Fetch, registers: &Registers) -> Option<u64> {
    let bits = match &fetch.source {
        Source::Constant(value) => *value,
        Source::Register(register, added) => match register.vector() {
            Some(number) => *registers.vectors.get(usize::from(number))?,
            None => general(registers, *register)?.wrapping_add_signed(*added),
        },
        Source::Memory(base, offset) => in_frame(registers, *base, *offset, fetch.ty.bytes())?,
        Source::Computed(computation) => computation.evaluate(
            |register| general(registers, register),
            |base, offset, bytes| in_frame(registers, base, offset, bytes),
        )?,
    };
    Some(fetch.ty.extend(bits))
}

fn general(registers: &Registers, register: Register) -> Option<u64> {
    match register.general() {
        Some(number) => Some(registers.general[usize::from(number)]),
        None => register.is_return_address().then_some(registers.return_address),
    }
}

/// Reads bytes in the frame of the function, or among the arguments on its stack.
fn in_frame(registers: &Registers, base: Register, offset: i32, bytes: u8) -> Option<u64> {
    let address = (general(registers, base)? as usize).wrapping_add_signed(offset as isize);
    if address.wrapping_sub(registers.stack_pointer()) > MAX_FRAME {
        return None;
    }
    // SAFETY: readable, because it is in the frame of the function that is being entered or left,
    // or among the arguments on its stack, according to the debugging information or the code of
    // the function, which are in the same file as the code that runs; and it is not below the stack
    // pointer, nor further above it than the size of a frame. Unaligned reads are used, since
    // nothing is known about the alignment.
    Some(unsafe { read(address, bytes) })
}

/// Reads bytes, the lowest first.
///
/// # Safety
/// The bytes must be readable.
unsafe fn read(address: usize, bytes: u8) -> u64 {
    let from = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller's obligation; any bytes are a number.
    unsafe {
        match bytes {
            1 => from.read_volatile().into(),
            2 => from.cast::<u16>().read_unaligned().into(),
            4 => from.cast::<u32>().read_unaligned().into(),
            _ => from.cast::<u64>().read_unaligned(),
        }
    }
}
