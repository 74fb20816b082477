//! The stack limit of compiled code.
//!
//! A thread may run on a stack that is not its own, such as that of a coroutine or a stack segment;
//! the host may switch stacks between two activations. The size of such a stack is unknown: the
//! embedder must provide the size that the setting permits, plus [`RESERVE`].

use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::trap::ExecutionState;

/// Bytes of a thread's stack that compiled code leaves to host functions, the runtime, and signal
/// handlers.
const RESERVE: usize = 256 << 10;

/// How much of the unused stack [`clear_below`] clears: more would cost memory that a program never
/// uses.
const CLEARED: usize = 256 << 10;

/// Finds out where the calling thread's stack ends, which its first call into WebAssembly does
/// otherwise. The C library calls `malloc` for this, so a thread that must not wait for the
/// program's `malloc` later calls this function first.
pub fn prepare_thread() {
    range();
}

/// An address in the caller's stack, near its end.
#[inline(never)]
pub(crate) fn pointer() -> usize {
    let local = 0_u8;
    std::hint::black_box(&raw const local).addr()
}

/// Whether this is the stack on which compiled code was entered at `top` with the limit `limit`.
/// `top` is 0 if there was none.
pub(crate) fn is_current(top: usize, limit: usize) -> bool {
    let here = pointer();
    match range() {
        Some((lowest, highest)) if (lowest..highest).contains(&here) => (lowest..highest).contains(&top),
        // Host functions may have used the stack below the limit.
        _ => top != 0 && (limit.saturating_sub(RESERVE)..=top).contains(&here),
    }
}

/// The lowest address that compiled code may use: `size` bytes below here, or the thread's limit.
pub(crate) fn limit(size: usize) -> usize {
    let here = pointer();
    let by_setting = here.saturating_sub(size);
    match range() {
        Some((lowest, highest)) if (lowest..highest).contains(&here) => by_setting.max(lowest + RESERVE),
        _ => by_setting,
    }
}

/// Writes zeros to the unused stack below the caller's frame, as far as compiled code may use it
/// with the limit `limit`, at most [`CLEARED`] bytes.
pub(super) fn clear_below(limit: usize) {
    clear(pointer().saturating_sub(limit).min(CLEARED));
}

/// Clears the stack by frames of this function.
#[inline(never)]
fn clear(bytes: usize) {
    const PART: usize = 4096;
    let mut part = [0_u64; PART / 8];
    std::hint::black_box(&mut part);
    if bytes > PART {
        clear(bytes - PART);
    }
    // The call above is not the last thing that this does, so its frame is below this one.
    std::hint::black_box(&mut part);
}

/// Records that the calling thread runs a store below the address `top` of its current stack; the
/// stack's limit must be known. Returns what was recorded before.
pub(super) fn enter(execution: &ExecutionState, top: usize) -> [usize; 2] {
    let bottom = match range() {
        Some((lowest, highest)) if (lowest..highest).contains(&top) => lowest,
        // The stack below belongs to host functions, but its size is unknown.
        _ => execution.vm.stack_limit,
    };
    execution.stack.change(bottom, top)
}

/// The range of this thread's stack.
fn range() -> Option<(usize, usize)> {
    thread_local! {
        static RANGE: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }
    RANGE.get().or_else(|| {
        let range = ask();
        RANGE.set(range);
        range
    })
}

fn ask() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: initializes the attributes of the calling thread.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes were initialized, and are destroyed once.
    let failed = unsafe {
        let failed = libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        failed
    };
    (failed == 0).then(|| (lowest.addr(), lowest.addr() + size))
}
