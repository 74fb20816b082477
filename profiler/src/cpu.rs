//! How long the program has run: the processor time of all threads of the process. The daemon is one of them, a small one.
//!
//! A thread's own time is exact. What the process's clock says of a thread that runs on another processor dates from the last
//! tick there, some milliseconds ago (Linux, `thread_group_cputime`), unless somebody has asked for that thread's own clock.

use nix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> Option<u64> {
    let time = clock_gettime(clock).ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Processor time of the program in nanoseconds, up to date about the thread that calls; nothing where the system refuses to
/// tell. A system call; async-signal-safe.
pub(crate) fn of_program() -> Option<u64> {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// The same, up to date about another thread, which the kernel has this number for. It may have ended.
pub(crate) fn of_program_with(thread: u64) -> Option<u64> {
    // The clock of a thread's processor time (Linux, include/linux/posix-timers_types.h: the complement of its number, and
    // CPUCLOCK_PERTHREAD with CPUCLOCK_SCHED).
    let clock = (!(thread as libc::clockid_t) << 3) | 4 | 2;
    // Asked for what it does to the process's clock only.
    let _ = read(ClockId::from_raw(clock));
    of_program()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_thread_that_runs_elsewhere_is_seen_to_run() {
        let (number, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (number, done) = (&number, &done);
            scope.spawn(move || {
                // SAFETY: no arguments, cannot fail.
                number.store(unsafe { libc::syscall(libc::SYS_gettid) } as u64, Ordering::Release);
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let thread = loop {
                match number.load(Ordering::Acquire) {
                    0 => std::hint::spin_loop(),
                    thread => break thread,
                }
            };
            // More than this thread uses itself, and less than a tick: the largest number of ticks in a second is 1000.
            let mut last = of_program_with(thread).unwrap();
            let moved = (0..2000).filter(|_| {
                std::thread::sleep(std::time::Duration::from_micros(100));
                let now = of_program_with(thread).unwrap();
                (60_000..900_000).contains(&(now - std::mem::replace(&mut last, now)))
            });
            let moved = moved.take(100).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(moved, 100, "the other thread's time stands still between ticks");
        });
    }
}
