//! What a thread is executing, without stopping it.

use std::time::{Duration, Instant};

use crate::module::Module;
use crate::trap::InterruptHandle;

/// The time between two looks.
const PAUSE: Duration = Duration::from_micros(100);

impl Module {
    /// The function that a store's thread is executing, by its index, or one that it has executed
    /// since the call: to decide where to place probes. `None` if within this time the thread was
    /// never found in the module's code: it may be in a host function. A system call in which it
    /// waits there fails with `EINTR`. The program continues.
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
