//! Finds out what a thread is executing, without stopping it.

use std::time::{Duration, Instant};

use crate::module::Module;
use crate::trap::{InterruptHandle, Look};

/// The time between two looks.
const PAUSE: Duration = Duration::from_micros(100);

impl Module {
    /// The index of the function that a store's thread is executing, or of one that it has executed
    /// since this call began, to decide where to place probes. In a host function, this is the
    /// function that waits for it, if the host does not continue on another stack; a system call in
    /// which the thread waits fails with `EINTR`. `None` if the thread was not found in the
    /// module's code, or waiting to return there, within this time. The program continues.
    pub fn running_function(&self, thread: &InterruptHandle, within: Duration) -> Option<u32> {
        let start = Instant::now();
        let look = Look::begin(thread);
        loop {
            look.ask();
            std::thread::sleep(PAUSE);
            let function = self.code().function_at(look.found_at());
            if function.is_some() || start.elapsed() >= within {
                return function;
            }
        }
    }
}
