//! Decides when the memory of threads that have ended is freed: every second, and earlier if many
//! threads have begun since. A program may start thousands of threads per second, each with some
//! calls.

use std::time::{Duration, Instant};

use crate::thread;

/// Maximum time between two reclamations.
const EVERY: Duration = Duration::from_secs(1);

/// Reclamation is earlier if there are twice as many threads as were left the last time, plus this
/// number.
const FEW: usize = 8;

/// The time of the last reclamation, and the number of threads that were left.
#[derive(Debug)]
pub(crate) struct Reclaiming {
    last: Instant,
    left: usize,
}

impl Reclaiming {
    /// The first reclamation is due in a second.
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), left: 0 }
    }

    /// Frees the memory if that is due. The samples of the threads must have been drained.
    pub(crate) fn tick(&mut self) {
        if self.last.elapsed() >= EVERY || thread::live().count() > 2 * self.left + FEW {
            thread::reclaim();
            *self = Self { last: Instant::now(), left: thread::live().count() };
        }
    }
}
