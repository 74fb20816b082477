//! Waiting for a change of a word in this process's memory, and waking the waiters (futex(2)).

use std::sync::atomic::AtomicU32;
use std::time::Instant;

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, timeout: Option<&libc::timespec>) {
    let timeout = timeout.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: word and time-out are valid for the call, or null. Every result is acceptable:
    // callers read the word again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, timeout);
    }
}

/// Wakes all threads of this process that [`wait`] for this word. Async-signal-safe.
pub fn wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, libc::c_int::MAX as u32, None);
}

/// Sleeps while the word is `value`, at most until `deadline`; may return early.
/// Async-signal-safe.
pub fn wait(word: &AtomicU32, value: u32, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return;
    }
    let timeout = libc::timespec {
        tv_sec: left.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(left.subsec_nanos()),
    };
    futex(word, libc::FUTEX_WAIT, value, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    /// Later than the end of any test: a wait that ends earlier was woken, or did not start.
    fn never() -> Instant {
        Instant::now() + Duration::from_secs(36_000)
    }

    #[test]
    fn wait_returns_if_the_word_has_changed() {
        wait(&AtomicU32::new(1), 0, never());
    }

    #[test]
    fn wait_returns_if_the_deadline_has_passed() {
        wait(&AtomicU32::new(0), 0, Instant::now());
    }

    #[test]
    fn all_waiting_threads_are_woken() {
        let word = AtomicU32::new(0);
        let is_done = || word.load(Ordering::Acquire) == 1;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done() {
                        wait(&word, 0, never());
                    }
                });
            }
            word.store(1, Ordering::Release);
            wake(&word);
        });
    }
}
