//! How far down compiled code may use the thread's stack.

use std::cell::Cell;
use std::mem::MaybeUninit;

/// What compiled code leaves of a thread's stack to host functions, to the runtime, and to signal handlers.
const RESERVE: usize = 256 << 10;

/// The lowest address that compiled code may use: `size` bytes below here, or what the thread has.
pub(crate) fn limit(size: usize) -> usize {
    let local = 0_u8;
    let here = std::hint::black_box(&raw const local).addr();
    let by_setting = here.saturating_sub(size);
    match range() {
        // A thread may run on a stack that is not its own: of a coroutine. Then only the setting says how large it is.
        Some((lowest, highest)) if (lowest..highest).contains(&here) => by_setting.max(lowest + RESERVE),
        _ => by_setting,
    }
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
    // SAFETY: fills the attributes of the calling thread in.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes were filled in, and are destroyed once.
    let failed = unsafe {
        let failed = libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        failed
    };
    (failed == 0).then(|| (lowest.addr(), lowest.addr() + size))
}
