//! The dynamic loader's lock around its list of objects.
//!
//! glibc holds it while `dl_iterate_phdr` calls back, and while `dlopen` and `dlclose` change the
//! list. At a fork it resets its other locks in the child, but not this one: if another thread held
//! it, the child has it locked by a thread that it does not have, and whatever needs it waits for
//! ever. So a child looks at the lock first. If it is locked, nothing is ever loaded or unloaded in
//! that child.
//!
//! glibc exports the structure that contains the lock (`_rtld_global`), but not its place there. It
//! is the one mutex in it that a thread holds in a callback of `dl_iterate_phdr` and not outside.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The first words of a `pthread_mutex_t`, which programs initialize statically: they are the same
/// in all versions of glibc (bits/struct_mutex.h).
#[repr(C, align(8))]
pub(super) struct Mutex {
    /// 0 if nobody holds it.
    lock: AtomicU32,
    count: AtomicU32,
    /// The kernel id of the thread that holds it.
    owner: AtomicU32,
    users: AtomicU32,
    kind: AtomicU32,
}

impl Mutex {
    fn is_held_by(&self, thread: u32) -> bool {
        let value = |word: &AtomicU32| word.load(Ordering::Relaxed);
        value(&self.lock) != 0
            && value(&self.count) > 0
            && value(&self.owner) == thread
            && value(&self.users) == 1
            && value(&self.kind) == libc::PTHREAD_MUTEX_RECURSIVE as u32
    }
}

/// Null if it is not known.
static LOCK: AtomicPtr<Mutex> = AtomicPtr::new(ptr::null_mut());

/// Whether the lock was looked for, and forks are followed.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Set in a forked child whose lock is locked, or not known.
static IS_LOST: AtomicBool = AtomicBool::new(false);

fn lock() -> Option<&'static Mutex> {
    // SAFETY: null, or a mutex of the loader, which is never unloaded.
    unsafe { LOCK.load(Ordering::Relaxed).as_ref() }
}

fn this_thread() -> u32 {
    // SAFETY: only returns a number.
    unsafe { libc::gettid() as u32 }
}

/// Whether this is a forked child that cannot ask the loader for anything.
pub(super) fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

/// Whether the calling thread is in a callback of `dl_iterate_phdr`, as far as is known.
pub(super) fn is_held_by_caller() -> bool {
    lock().is_some_and(|lock| lock.is_held_by(this_thread()))
}

pub(super) fn is_followed() -> bool {
    IS_FOLLOWED.load(Ordering::Acquire)
}

/// The address of the structure that contains the lock; null in a static program.
pub(super) fn around() -> usize {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_rtld_global".as_ptr()) as usize }
}

/// The mutexes in this memory that the calling thread holds.
///
/// # Safety
/// The memory is readable, and is never unmapped.
pub(super) unsafe fn held_in(memory: Range<usize>) -> Vec<&'static Mutex> {
    let this = this_thread();
    let last = memory.end.saturating_sub(size_of::<Mutex>());
    let places = (memory.start.next_multiple_of(align_of::<Mutex>())..=last).step_by(align_of::<Mutex>());
    // SAFETY: the memory is readable and aligned, and lasts; other threads may change these words.
    places.map(|at| unsafe { &*(at as *const Mutex) }).filter(|mutex| mutex.is_held_by(this)).collect()
}

/// Follows forks from now on. The caller held these mutexes in a callback.
///
/// As in `wordpatch::text`, two threads may both do this, so that none waits for the other.
pub(super) fn follow(mut held: Vec<&'static Mutex>) {
    let this = this_thread();
    held.retain(|mutex| !mutex.is_held_by(this));
    if let [lock] = held[..] {
        LOCK.store(ptr::from_ref(lock).cast_mut(), Ordering::Relaxed);
    }
    // SAFETY: the function is never unloaded, and only reads and writes a word.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // If there is no memory for it, the next call tries again.
    if refused == 0 {
        IS_FOLLOWED.store(true, Ordering::Release);
    }
}

extern "C" fn in_child() {
    // The child has no other thread that could release the lock.
    let is_free = lock().is_some_and(|lock| lock.lock.load(Ordering::Relaxed) == 0);
    IS_LOST.store(!is_free, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_found_and_is_that_of_callbacks() {
        crate::loaded::counters().expect("no fork");
        assert!(lock().is_some());
        assert!(!is_held_by_caller());
        let mut was_held = false;
        crate::loaded::visit(|_| {
            was_held = is_held_by_caller();
            1
        });
        assert!(was_held);
    }

    #[test]
    fn only_mutexes_of_the_calling_thread_are_found() {
        let words = |owner: u32, kind: i32| [0_u32, 0, 1, 1, owner, 1, kind as u32, 0];
        let held = |words: &'static [u32; 8]| {
            let start = words.as_ptr() as usize;
            // SAFETY: the words are never freed.
            unsafe { held_in(start..start + size_of_val(words)) }.len()
        };
        let leak = |words: [u32; 8]| -> &'static [u32; 8] {
            let aligned: &'static mut [u64; 4] = Box::leak(Box::new([0; 4]));
            // SAFETY: as large, and more strictly aligned.
            let place = unsafe { &mut *aligned.as_mut_ptr().cast::<[u32; 8]>() };
            *place = words;
            place
        };
        let this = this_thread();
        assert_eq!(held(leak(words(this, libc::PTHREAD_MUTEX_RECURSIVE))), 1);
        assert_eq!(held(leak(words(this, libc::PTHREAD_MUTEX_NORMAL))), 0);
        assert_eq!(held(leak(words(this + 1, libc::PTHREAD_MUTEX_RECURSIVE))), 0);
    }
}
