//! Decides when the memory of threads that have ended is freed: every second, and earlier if many
//! threads have begun since. A program may start thousands of threads per second, each with some
//! calls.

use std::time::{Duration, Instant};

use crate::thread;

/// Maximum time between two reclamations.
const EVERY: Duration = Duration::from_secs(1);

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

    /// Frees the memory if that is due. The samples of the threads must have been drained.
    pub(crate) fn tick(&mut self) {
        if self.last.elapsed() >= EVERY || thread::have_many_begun() {
            thread::reclaim();
            *self = Self::new();
        }
    }
}
