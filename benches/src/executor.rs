//! A thread that runs a function for as long as it is told to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A function that another thread runs again and again.
#[derive(Debug, Default)]
pub struct Executor {
    stop: AtomicBool,
    runs: AtomicU64,
}

/// Stops the executor also when an assertion fails.
struct Stop<'a>(&'a Executor);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Executor {
    /// Has another thread run `function` while `act` is at work.
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

    /// Waits until a whole run of the function has been made.
    pub fn has_run(&self) {
        let before = self.runs.load(Ordering::Acquire);
        // One run may have been under way.
        while self.runs.load(Ordering::Acquire) < before + 2 {
            std::hint::spin_loop();
        }
    }
}
