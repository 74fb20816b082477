//! A thread that runs a function until it is stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A function that another thread runs repeatedly.
#[derive(Debug, Default)]
pub struct Executor {
    stop: AtomicBool,
    runs: AtomicU64,
}

/// Stops the executor, even if an assertion fails.
struct Stop<'a>(&'a Executor);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Executor {
    /// Runs `function` on another thread while `act` runs.
    pub fn during<R>(function: impl Fn() + Sync, act: impl FnOnce(&Self) -> R) -> R {
        let executor = Self::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !executor.stop.load(Ordering::Relaxed) {
                    function();
                    executor.runs.fetch_add(1, Ordering::Release);
                }
            });
            let _stop = Stop(&executor);
            executor.has_run();
            act(&executor)
        })
    }

    /// Waits until the function has been run completely.
    pub fn has_run(&self) {
        let before = self.runs.load(Ordering::Acquire);
        // One run may have been in progress.
        while self.runs.load(Ordering::Acquire) < before + 2 {
            std::hint::spin_loop();
        }
    }
}
