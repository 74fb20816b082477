//! Finds out what a thread is executing, without stopping it.

use std::time::{Duration, Instant};

use crate::module::Module;
use crate::trap::InterruptHandle;

/// The time between two looks.
const PAUSE: Duration = Duration::from_micros(100);

impl Module {
    /// The index of the function that a store's thread is executing, or of one that it has executed
    /// since this call began, to decide where to place probes. `None` if the thread was not found
    /// in the module's code within this time; it may be in a host function, where a system call in
    /// which it waits fails with `EINTR`. The program continues.
    pub fn running_function(&self, thread: &InterruptHandle, within: Duration) -> Option<u32> {
        let start = Instant::now();
        thread.found_at();
        loop {
            thread.look();
            std::thread::sleep(PAUSE);
            let function = self.code().function_at(thread.found_at());
            if function.is_some() || start.elapsed() >= within {
                return function;
            }
        }
    }
}
