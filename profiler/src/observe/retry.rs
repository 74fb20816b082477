//! Ticks that only open windows that have waited ([`crate::observe::opening`]). All other work
//! waits for the next complete tick, which takes much longer.

use std::time::{Duration, Instant};

use crate::observe::governor::{self, Governor};
use crate::observe::schedule::Schedule;
use crate::processor_time;

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
        if schedule.until_release().is_none() || governor::is_woken() {
            return None;
        }
        release(schedule, governor);
        Some(until_next(schedule, remaining))
    }
}

/// Time to the next attempt, or to the next complete tick.
fn until_next(schedule: &Schedule, tick: Duration) -> Duration {
    schedule.until_release().map_or(tick, |until| tick.min(until))
}

fn release(schedule: &mut Schedule, governor: &mut Governor) {
    let begin = processor_time::of_thread();
    schedule.release();
    governor.released(begin);
}
