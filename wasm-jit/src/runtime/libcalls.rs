//! Libcalls: operations that compiled code delegates to the runtime: growing, bulk operations,
//! waiting, allocating exceptions.
//!
//! All run on the stack of the program, called with the C convention, inside an activation; none
//! unwinds. Those that can trap record the trap in the store and return a failure; compiled code
//! then leaves through `Raise`.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use wasm_jit_codegen::Continue;

use super::array_calls;
use super::collect;
use super::instance::InstanceData;
use super::redirect;
use super::room;
use super::store::{Handle, StoreArea, StoreOpaque};
use super::tag::Tag;
use super::tail_call::tail_call;
use super::wait::{self, Outcome};
use crate::linear_memory::{LinearMemory, copy_atomically, fill_atomically};
use crate::trap::{self, Trap};
use crate::vmctx::{Answer, LIBCALLS_COUNT, Libcall, VmContext};

/// The result of a refused growth of a memory or table whose sizes have 64 bits, or else 32.
fn refused(is_64: bool) -> u64 {
    if is_64 { u64::MAX } else { u32::MAX.into() }
}

/// The addresses, in the order of [`Libcall`].
pub(crate) fn table() -> *const usize {
    static TABLE: LazyLock<[usize; LIBCALLS_COUNT]> = LazyLock::new(|| {
        let mut table = [0; LIBCALLS_COUNT];
        for libcall in ALL {
            table[libcall as usize] = address(libcall);
        }
        table
    });
    TABLE.as_ptr()
}

const ALL: [Libcall; LIBCALLS_COUNT] = [
    Libcall::MemoryGrow,
    Libcall::MemoryCopy,
    Libcall::MemoryFill,
    Libcall::MemoryInit,
    Libcall::DataDrop,
    Libcall::TableGrow,
    Libcall::TableFill,
    Libcall::TableCopy,
    Libcall::TableInit,
    Libcall::ElemDrop,
    Libcall::AtomicWait32,
    Libcall::AtomicWait64,
    Libcall::AtomicNotify,
    Libcall::NewException,
    Libcall::StructNew,
    Libcall::ArrayNew,
    Libcall::ArrayNewData,
    Libcall::ArrayNewElem,
    Libcall::ArrayFill,
    Libcall::ArrayCopy,
    Libcall::ArrayInitData,
    Libcall::ArrayInitElem,
    Libcall::MakeRoom,
    Libcall::Throw,
    Libcall::Raise,
    Libcall::RaiseFromHost,
    Libcall::CompileFunction,
    Libcall::TailCall,
];

fn address(libcall: Libcall) -> usize {
    match libcall {
        Libcall::MemoryGrow => memory_grow as *const () as usize,
        Libcall::MemoryCopy => memory_copy as *const () as usize,
        Libcall::MemoryFill => memory_fill as *const () as usize,
        Libcall::MemoryInit => memory_init as *const () as usize,
        Libcall::DataDrop => data_drop as *const () as usize,
        Libcall::TableGrow => table_grow as *const () as usize,
        Libcall::TableFill => table_fill as *const () as usize,
        Libcall::TableCopy => table_copy as *const () as usize,
        Libcall::TableInit => table_init as *const () as usize,
        Libcall::ElemDrop => elem_drop as *const () as usize,
        Libcall::AtomicWait32 => atomic_wait_32 as *const () as usize,
        Libcall::AtomicWait64 => atomic_wait_64 as *const () as usize,
        Libcall::AtomicNotify => atomic_notify as *const () as usize,
        Libcall::NewException => new_exception as *const () as usize,
        Libcall::StructNew => array_calls::struct_new as *const () as usize,
        Libcall::ArrayNew => array_calls::array_new as *const () as usize,
        Libcall::ArrayNewData => array_calls::array_new_data as *const () as usize,
        Libcall::ArrayNewElem => array_calls::array_new_elem as *const () as usize,
        Libcall::ArrayFill => array_calls::array_fill as *const () as usize,
        Libcall::ArrayCopy => array_calls::array_copy as *const () as usize,
        Libcall::ArrayInitData => array_calls::array_init_data as *const () as usize,
        Libcall::ArrayInitElem => array_calls::array_init_elem as *const () as usize,
        Libcall::MakeRoom => room::make_room as *const () as usize,
        Libcall::Throw | Libcall::Raise | Libcall::RaiseFromHost => {
            trap::routine(libcall).expect("these three are routines")
        }
        Libcall::CompileFunction => compile_function as *const () as usize,
        Libcall::TailCall => tail_call as *const () as usize,
    }
}

/// The store and the instance of a context, during a libcall.
pub(super) struct Running<'a> {
    pub(super) store: &'a mut StoreOpaque,
    pub(super) instance: &'a mut InstanceData,
}

impl Running<'_> {
    /// # Safety
    /// The context belongs to an instance whose code is running and has called this libcall.
    pub(super) unsafe fn new(context: *mut VmContext) -> Self {
        // SAFETY: the store is lent to the code that runs in it, which is only this libcall.
        // Instance and store are different objects, and there is no other reference to the
        // instance.
        unsafe {
            let area: *mut StoreArea = (*context).store.cast();
            Self { store: &mut *(*area).store, instance: &mut *(*context).owner.cast() }
        }
    }

    fn memory(&self, index: u32) -> &LinearMemory {
        &self.store.memories[self.instance.memories[index as usize] as usize]
    }

    /// The index of a table in the store.
    fn table(&self, index: u32) -> u32 {
        self.instance.tables[index as usize]
    }

    /// The result of a bulk operation. A program may spend nearly all of its time in these
    /// operations, where no signal can stop it; therefore interrupts take effect here.
    pub(super) fn answer(self, outcome: Result<u64, Trap>) -> Answer {
        // SAFETY: this thread runs the store.
        let is_interrupted = || unsafe { trap::is_interrupted(self.store.execution()) };
        match outcome.and_then(|value| if is_interrupted() { Err(Trap::Interrupt) } else { Ok(value) }) {
            Ok(value) => Answer { value, failed: 0 },
            Err(trap) => {
                self.store.fail(trap.into());
                Answer { value: 0, failed: 1 }
            }
        }
    }
}

/// Performs an operation on this many bytes in pieces, from the first one on, or from the last. All
/// but the last are a multiple of every element's size. An interrupt ends it between two pieces.
pub(super) fn in_pieces(
    store: &StoreOpaque,
    length: u64,
    from_end: bool,
    act: impl Fn(Range<usize>),
) -> Result<u64, Trap> {
    const PIECE: usize = 16 << 20;
    let length = length as usize;
    let count = length.div_ceil(PIECE);
    for number in 0..count {
        // SAFETY: this thread runs the store.
        if number > 0 && unsafe { trap::is_interrupted(store.execution()) } {
            return Err(Trap::Interrupt);
        }
        let start = PIECE * if from_end { count - 1 - number } else { number };
        act(start..length.min(start + PIECE));
    }
    Ok(0)
}

/// The two indices that are packed into one argument.
pub(super) fn halves(two: u64) -> (u32, u32) {
    (two as u32, (two >> 32) as u32)
}

/// The first call to a function: its arguments are saved, and no frame of it exists.
unsafe extern "sysv64" fn compile_function(context: *mut VmContext, function: u32) -> Continue {
    // SAFETY: called by the entry of a function of the instance. While probes are made, nothing
    // refers to the store.
    let image = unsafe { Running::new(context) }.instance.module.code().clone();
    match image.first_call(function) {
        Ok(at) => {
            // SAFETY: as above. Only this thread runs the store, in which the reference is.
            unsafe {
                let func_ref = (*context).func_refs.add(function as usize);
                redirect::set_code(func_ref, image.entry(function));
            }
            at
        }
        Err(error) => {
            // SAFETY: as above.
            unsafe { Running::new(context) }.store.fail(error.into());
            Continue { address: 0, after_entry: 0 }
        }
    }
}

unsafe extern "sysv64" fn memory_grow(context: *mut VmContext, memory: u64, pages: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let is_64 = running.memory(memory as u32).ty().is_64();
    let memory = running.instance.memories[memory as usize];
    let grown = running.store.grow_memory(memory, pages).unwrap_or(refused(is_64));
    running.answer(Ok(grown))
}

unsafe extern "sysv64" fn memory_copy(
    context: *mut VmContext,
    memories: u64,
    to: u64,
    from: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (to_memory, from_memory) = halves(memories);
    let (to_memory, from_memory) = (running.memory(to_memory), running.memory(from_memory));
    let ranges = from_memory.range(from, length).zip(to_memory.range(to, length));
    let shared = to_memory.ty().is_shared() || from_memory.ty().is_shared();
    let outcome = ranges.ok_or(Trap::MemoryOutOfBounds).and_then(|(from, to)| {
        // If the ranges overlap, no byte is written before it has been read.
        in_pieces(running.store, length, from.addr() < to.addr(), |piece| {
            // SAFETY: both ranges are accessible. Memories that are not shared belong to the store,
            // which is not used concurrently.
            unsafe {
                let (from, to) = (from.add(piece.start), to.add(piece.start));
                match shared {
                    true => copy_atomically(from, to, piece.len()),
                    false => from.copy_to(to, piece.len()),
                }
            }
        })
    });
    running.answer(outcome)
}

unsafe extern "sysv64" fn memory_fill(
    context: *mut VmContext,
    memory: u64,
    to: u64,
    byte: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let memory = running.memory(memory as u32);
    let outcome = memory.range(to, length).ok_or(Trap::MemoryOutOfBounds).and_then(|to| {
        in_pieces(running.store, length, false, |piece| {
            // SAFETY: as in `memory_copy`.
            unsafe {
                let to = to.add(piece.start);
                match memory.ty().is_shared() {
                    true => fill_atomically(to, byte as u8, piece.len()),
                    false => to.write_bytes(byte as u8, piece.len()),
                }
            }
        })
    });
    running.answer(outcome)
}

unsafe extern "sysv64" fn memory_init(
    context: *mut VmContext,
    memory_and_segment: u64,
    to: u64,
    from: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (memory, segment) = halves(memory_and_segment);
    let bytes = part(running.instance.data(segment), from, length).ok_or(Trap::MemoryOutOfBounds);
    let outcome = bytes.and_then(|bytes| write_memory(running.memory(memory), to, bytes));
    running.answer(outcome.map(|()| 0))
}

/// `length` elements starting at `from`, if there are that many.
pub(super) fn part<T>(all: &[T], from: u64, length: u64) -> Option<&[T]> {
    let end = from.checked_add(length)?;
    all.get(usize::try_from(from).ok()?..usize::try_from(end).ok()?)
}

/// Writes bytes into a memory for the host.
pub(crate) fn write_memory(memory: &LinearMemory, to: u64, bytes: &[u8]) -> Result<(), Trap> {
    let to = memory.range(to, bytes.len() as u64).ok_or(Trap::MemoryOutOfBounds)?;
    match memory.ty().is_shared() {
        true => {
            // Atomic accesses require writable memory, even for reads.
            let mut copy = [0; 4096];
            for (number, chunk) in bytes.chunks(copy.len()).enumerate() {
                copy[..chunk.len()].copy_from_slice(chunk);
                // SAFETY: the chunk is inside the range, which is accessible.
                unsafe { copy_atomically(copy.as_ptr(), to.add(number * copy.len()), chunk.len()) };
            }
        }
        // SAFETY: as in `memory_copy`; the bytes are not part of the memory.
        false => unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) },
    }
    Ok(())
}

unsafe extern "sysv64" fn data_drop(context: *mut VmContext, segment: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    running.instance.dropped_data[segment as usize] = true;
    running.answer(Ok(0))
}

unsafe extern "sysv64" fn table_grow(
    context: *mut VmContext,
    table: u64,
    value: u64,
    elements: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let table = running.table(table as u32);
    let is_64 = running.store.tables[table as usize].ty.is_64();
    let grown = running.store.grow_table(table, elements, value).unwrap_or(refused(is_64));
    running.answer(Ok(grown))
}

unsafe extern "sysv64" fn table_fill(
    context: *mut VmContext,
    table: u64,
    at: u64,
    value: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let table = running.table(table as u32);
    let outcome = running.store.tables[table as usize].range_mut(at, length).map(|range| range.fill(value));
    running.answer(outcome.map(|()| 0))
}

unsafe extern "sysv64" fn table_copy(
    context: *mut VmContext,
    tables: u64,
    to: u64,
    from: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (to_table, from_table) = halves(tables);
    let (to_table, from_table) = (running.table(to_table) as usize, running.table(from_table) as usize);
    let outcome = match running.store.tables.get_disjoint_mut([to_table, from_table]) {
        Ok([to_table, from_table]) => from_table
            .range(from, length)
            .and_then(|source| to_table.range_mut(to, length).map(|target| target.copy_from_slice(source))),
        Err(_) => running.store.tables[to_table].copy_within(to, from, length),
    };
    running.answer(outcome.map(|()| 0))
}

unsafe extern "sysv64" fn table_init(
    context: *mut VmContext,
    table_and_segment: u64,
    to: u64,
    from: u64,
    length: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let (table, segment) = halves(table_and_segment);
    let table = running.table(table) as usize;
    let values = part(&running.instance.elements[segment as usize].values, from, length);
    let outcome = values.ok_or(Trap::TableOutOfBounds).and_then(|values| {
        running.store.tables[table].range_mut(to, length).map(|target| target.copy_from_slice(values))
    });
    running.answer(outcome.map(|()| 0))
}

unsafe extern "sysv64" fn elem_drop(context: *mut VmContext, segment: u64) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    running.instance.elements[segment as usize].values = Box::default();
    running.answer(Ok(0))
}

unsafe extern "sysv64" fn atomic_wait_32(
    context: *mut VmContext,
    memory: u64,
    address: u64,
    expected: u64,
    timeout: i64,
) -> Answer {
    // SAFETY: aligned and in a memory, as `atomic_wait` guarantees.
    let load =
        |cell: NonNull<u8>| unsafe { AtomicU32::from_ptr(cell.as_ptr().cast()) }.load(Ordering::SeqCst);
    // SAFETY: called by compiled code.
    unsafe { atomic_wait(context, memory as u32, address, 4, timeout, |cell| load(cell) == expected as u32) }
}

unsafe extern "sysv64" fn atomic_wait_64(
    context: *mut VmContext,
    memory: u64,
    address: u64,
    expected: u64,
    timeout: i64,
) -> Answer {
    // SAFETY: aligned and in a memory, as `atomic_wait` guarantees.
    let load =
        |cell: NonNull<u8>| unsafe { AtomicU64::from_ptr(cell.as_ptr().cast()) }.load(Ordering::SeqCst);
    // SAFETY: called by compiled code.
    unsafe { atomic_wait(context, memory as u32, address, 8, timeout, |cell| load(cell) == expected) }
}

/// `is_expected` is called with a cell of `size` bytes that is aligned and in the memory.
///
/// # Safety
/// As for [`Running::new`].
unsafe fn atomic_wait(
    context: *mut VmContext,
    memory: u32,
    address: u64,
    size: u64,
    timeout: i64,
    is_expected: impl Fn(NonNull<u8>) -> bool,
) -> Answer {
    // SAFETY: the caller's obligation.
    let running = unsafe { Running::new(context) };
    let memory = running.memory(memory);
    let cell = atomic_cell(memory, address, size).and_then(|cell| match memory.ty().is_shared() {
        true => Ok(cell),
        false => Err(Trap::AtomicWaitNonSharedMemory),
    });
    let execution = running.store.execution();
    let outcome = cell.and_then(|cell| {
        let timeout = u64::try_from(timeout).ok().map(Duration::from_nanos);
        // SAFETY: this thread runs the store.
        let is_interrupted: &dyn Fn() -> bool = &|| unsafe { trap::is_interrupted(execution) };
        // SAFETY: as above.
        let ask = unsafe { (*execution).interruption.is_some() }.then_some(is_interrupted);
        match wait::wait(cell.as_ptr().addr(), || is_expected(cell), timeout, ask) {
            Outcome::Interrupted => Err(Trap::Interrupt),
            outcome => Ok(outcome as u64),
        }
    });
    running.answer(outcome)
}

unsafe extern "sysv64" fn atomic_notify(
    context: *mut VmContext,
    memory: u64,
    address: u64,
    count: u64,
) -> Answer {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let cell = atomic_cell(running.memory(memory as u32), address, 4);
    running.answer(cell.map(|cell| u64::from(wait::notify(cell.as_ptr().addr(), count as u32))))
}

/// The address of an atomic access of `size` bytes.
fn atomic_cell(memory: &LinearMemory, address: u64, size: u64) -> Result<NonNull<u8>, Trap> {
    if !address.is_multiple_of(size) {
        return Err(Trap::HeapMisaligned);
    }
    memory.range(address, size).and_then(NonNull::new).ok_or(Trap::MemoryOutOfBounds)
}

unsafe extern "sysv64" fn new_exception(context: *mut VmContext, tag: u64, values: *const u64) -> u64 {
    // SAFETY: called by compiled code.
    let running = unsafe { Running::new(context) };
    let tag = Tag(Handle::at(running.store, running.instance.tags[tag as usize]));
    let count = tag.data(running.store).values as usize;
    let values = match count {
        0 => &[],
        // SAFETY: there is a value for each parameter of the tag.
        _ => unsafe { std::slice::from_raw_parts(values, count) },
    };
    // Throwing null traps; the activation is then left for the recorded reason.
    let address = running.store.attempt(|store| {
        // SAFETY: this thread runs the store.
        if unsafe { trap::is_interrupted(store.execution()) } {
            return Err(Trap::Interrupt.into());
        }
        let tag = tag.identity(store);
        collect::if_due(store, collect::From::Libcall, values);
        store.create_exception(collect::From::Libcall, tag, values)
    });
    address.unwrap_or(0) as u64
}
