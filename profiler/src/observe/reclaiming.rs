//! Decides when the memory of threads that have ended is freed: every second, and at each tick
//! before which several threads have begun. A program may start thousands of threads per second,
//! each with some calls: if they counted as live threads, the program would seem to have many that
//! are ready at the same time ([`crate::observe::own_time`]).

use std::time::{Duration, Instant};

use crate::observe::thread;

/// Maximum time between two reclamations.
const EVERY: Duration = Duration::from_secs(1);

/// The number of threads that have begun since the last reclamation at which another one is due.
const SEVERAL: usize = 4;

/// The time of the last reclamation.
#[derive(Debug)]
pub(crate) struct Reclaiming {
    last: Instant,
}

impl Reclaiming {
    /// The first reclamation is due in a second.
    pub(crate) fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// Whether the memory is to be freed now. To be called once in each tick, before it looks at
    /// the live threads.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= EVERY || thread::begun() >= SEVERAL;
        if is_due {
            *self = Self::new();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that starts a thread for each task would seem to have as many as it has tasks.
    #[test]
    fn threads_that_have_ended_are_not_among_the_live_ones_at_the_next_tick() {
        let mut reclaiming = Reclaiming::new();
        let with_a_probe = || {
            thread::Thread::current().expect("a block");
            nix::unistd::gettid().as_raw().cast_unsigned()
        };
        let threads: Vec<u32> = (0..3 * SEVERAL)
            .map(|_| std::thread::spawn(with_a_probe).join().expect("it does not panic"))
            .collect();
        let is_live = |thread: &u32| thread::live().any(|live| live == *thread);
        // Another test may reclaim at the same time. The kernel may still have the last thread.
        for _ in 0..1000 {
            if reclaiming.is_due() {
                thread::reclaim();
            }
            if threads.iter().filter(|thread| is_live(thread)).count() < SEVERAL {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{threads:?}");
    }
}
