//! Threads that take all processors while a test runs.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// Runs four threads for each processor, which end when `act` has returned or panicked.
pub(crate) fn with_competitors<R>(act: impl FnOnce() -> R) -> R {
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 * thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _ends = Ends(done);
        act()
    })
}

/// Sets a flag when dropped, including by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
