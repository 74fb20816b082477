//! How long the program has run: the processor time of all threads of the process but the daemon.
//!
//! The kernel's clocks are system calls. They read a thread that runs on another processor as it was at that processor's last
//! tick, up to some milliseconds ago.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::time::{ClockId, clock_gettime};

/// What the daemon has used so far, in nanoseconds.
static DAEMON: AtomicU64 = AtomicU64::new(0);

fn read(clock: ClockId) -> Option<u64> {
    let time = clock_gettime(clock).ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Processor time of the program in nanoseconds, from any thread, also in a signal handler; nothing where the system refuses
/// to tell.
pub(crate) fn of_program() -> Option<u64> {
    Some(read(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.saturating_sub(DAEMON.load(Ordering::Relaxed)))
}

/// The same, for the daemon, who is up to date about itself.
pub(crate) fn of_program_for_daemon() -> Option<u64> {
    DAEMON.store(read(ClockId::CLOCK_THREAD_CPUTIME_ID)?, Ordering::Relaxed);
    of_program()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_the_program_runs() {
        let (own, program) = (read(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap(), of_program().unwrap());
        while read(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap() < own + 20_000_000 {}
        assert!(of_program().unwrap() >= program + 20_000_000);
    }
}
