//! Ticks that only open windows that have waited for the program to run.
//!
//! On a busy machine the program is often displaced when a window is due ([`crate::displaced`]).
//! The service thread then tries again after a few milliseconds, and doubles the time at each
//! attempt. All other work waits for the next complete tick, which takes much longer.

use std::time::{Duration, Instant};

use crate::governor::{self, Governor};
use crate::schedule::Schedule;

/// The time to the first attempt: about a scheduler's time slice.
const FIRST: Duration = Duration::from_millis(3);

/// The maximum number of times that this time is doubled.
const MAX_DOUBLINGS: u32 = 2;

/// The time at which the next complete tick is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    next_tick: Instant,
}

impl Retries {
    /// The next tick is due now.
    pub(crate) fn new() -> Self {
        Self { next_tick: Instant::now() }
    }

    /// Ends a complete tick, `pause` before the next one: opens windows. Returns the time for which
    /// the thread sleeps.
    pub(crate) fn end_tick(
        &mut self,
        schedule: &mut Schedule,
        governor: &mut Governor,
        pause: Duration,
    ) -> Duration {
        release(schedule, governor);
        self.next_tick = Instant::now() + pause;
        until_next(schedule, pause)
    }

    /// Time until the next complete tick; `None` if it is due.
    pub(crate) fn until_tick(&self) -> Option<Duration> {
        self.next_tick.checked_duration_since(Instant::now())
    }

    /// Replaces a complete tick if none is due: opens windows that have waited. Returns the time
    /// for which the thread sleeps.
    pub(crate) fn retry(&self, schedule: &mut Schedule, governor: &mut Governor) -> Option<Duration> {
        let remaining = self.until_tick()?;
        if schedule.attempts() == 0 || governor::is_woken() {
            return None;
        }
        release(schedule, governor);
        Some(until_next(schedule, remaining))
    }
}

/// Time to the next attempt, or to the next complete tick.
fn until_next(schedule: &Schedule, tick: Duration) -> Duration {
    match schedule.attempts() {
        0 => tick,
        attempts => tick.min(FIRST * (1 << (attempts - 1).min(MAX_DOUBLINGS))),
    }
}

fn release(schedule: &mut Schedule, governor: &mut Governor) {
    let begin = governor::of_thread();
    schedule.release();
    governor.released(begin);
}
