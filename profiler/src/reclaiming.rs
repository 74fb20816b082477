//! When the memory of threads that have ended is freed: every second, and earlier if many threads
//! have begun since. A program may start thousands of threads a second, each with some calls.

use std::time::{Duration, Instant};

use crate::thread;

/// The longest time between two times.
const EVERY: Duration = Duration::from_secs(1);

/// It is done earlier if there are twice as many threads as were left the last time, and these
/// more.
const FEW: usize = 8;

/// When it was done last, and how many threads were left.
#[derive(Debug)]
pub(crate) struct Reclaiming {
    last: Instant,
    left: usize,
}

impl Reclaiming {
    /// It is due in a second.
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), left: 0 }
    }

    /// Frees the memory if that is due. Their samples must have been drained.
    pub(crate) fn tick(&mut self) {
        if self.last.elapsed() >= EVERY || thread::live().count() > 2 * self.left + FEW {
            thread::reclaim();
            *self = Self { last: Instant::now(), left: thread::live().count() };
        }
    }
}
