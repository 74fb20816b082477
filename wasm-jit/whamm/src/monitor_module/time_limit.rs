//! Limits the time that functions of a monitor may take while it is attached.
//!
//! They are called for each place that a rule matches, which may be millions of times, so that a
//! timer for each call would take longer than the calls. One timer serves many calls: it is renewed
//! at the first call after a tenth of the time.

use std::time::{Duration, Instant};

use wasm_jit::{InterruptHandle, Timeout};

/// Interrupts calls that take too long.
pub(super) struct TimeLimit {
    handle: InterruptHandle,
    limit: Duration,
    timer: Option<(Instant, Timeout)>,
}

impl TimeLimit {
    pub(super) fn new(handle: InterruptHandle, limit: Duration) -> Self {
        Self { handle, limit, timer: None }
    }

    /// Begins a call, which ends by a trap after the time limit, or up to a tenth later.
    pub(super) fn renew(&mut self) {
        let (now, tenth) = (Instant::now(), self.limit / 10);
        if self.timer.as_ref().is_some_and(|(since, _)| now - *since < tenth) {
            return;
        }
        // The request of the old timer is withdrawn if it came between two calls.
        self.timer = None;
        // Without a timer, there is no limit.
        let timer = self.handle.interrupt_after(self.limit + tenth).ok();
        self.timer = timer.map(|timer| (now, timer));
    }

    /// Whether the call that has ended was interrupted.
    pub(super) fn has_passed(&self) -> bool {
        self.timer.as_ref().is_some_and(|(_, timer)| timer.has_fired())
    }
}
