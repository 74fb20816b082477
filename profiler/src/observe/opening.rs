//! The windows that are due, and when they open.
//!
//! The length of a window is known as well as the time that the program spends in probes while it
//! is open ([`crate::observe::schedule`]). If all windows that are due at a tick opened together,
//! the program would spend most of the short ones in the probes of the others: measured in SQLite,
//! 2 to 15 times as long as in its own code. They therefore open in steps, the shortest first: as
//! many at a time as have probes that take [`LOAD`] of the program's time. Each further step is a
//! short tick of the service thread ([`crate::observe::retry`]). The order and the number depend on
//! earlier windows only, not on what the program does at the moment.
//!
//! On a busy machine the program is often displaced when a window is due
//! ([`crate::observe::displaced`]). The service thread then tries again after a few milliseconds,
//! and doubles the time at each attempt.

use std::time::Duration;

use crate::observe::displaced;
use crate::observe::policy::Planned;

/// The part of the program's time that the probes of all open windows take, unless those of one
/// function take more.
const LOAD: f64 = 0.15;

/// The next step is due when the load has fallen to this part of [`LOAD`].
const ENOUGH: f64 = 0.3;

/// The number of steps in which the windows of a tick open, if their lengths do not differ much:
/// the service thread sleeps between them, which costs more than a window.
const STEPS: f64 = 16.0;

/// The shortest time between two steps, in nanoseconds.
const MIN_STEP: f64 = 50e3;

/// The time to the first attempt to open windows of a displaced program: about a scheduler's time
/// slice.
const FIRST_ATTEMPT: Duration = Duration::from_millis(3);

/// The maximum number of times that this time is doubled.
const MAX_DOUBLINGS: u32 = 2;

/// Maximum number of times that windows are postponed while the program is displaced; and those in
/// which calls are counted ([`crate::observe::counting`]), without which next to nothing would be
/// known about the number of calls.
const MAX_POSTPONED: u32 = 3;
const MAX_POSTPONED_COUNTS: u32 = 14;

/// A window that is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Due {
    /// Index of the function.
    pub(crate) index: u32,
    pub(crate) planned: Planned,
}

/// The probes of an open window.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// The part of the program's time that they take.
    part: f64,
    /// The approximate end of the window, in nanoseconds on the session's clock.
    until: f64,
}

/// The windows that are due, in the order in which they open from the second step on.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    waiting: Vec<Due>,
    /// The number of times that windows have been postponed because of the program.
    postponed: u32,
    /// Whether some have been in this attempt.
    are_postponed: bool,
    open: Vec<Load>,
    /// The time of the next step, if they were not postponed.
    next: f64,
}

impl Opening {
    /// Adds a window that opens at the end of the tick, or later.
    pub(crate) fn push(&mut self, due: Due) {
        self.waiting.push(due);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes the windows of other functions than these.
    pub(crate) fn retain(&mut self, is_sampled: impl Fn(u32) -> bool) {
        self.waiting.retain(|due| is_sampled(due.index));
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes all windows that wait.
    pub(crate) fn take(&mut self) -> Vec<Due> {
        self.are_postponed = false;
        std::mem::take(&mut self.waiting)
    }

    /// Whether windows that have been postponed can be postponed again.
    fn may_wait(&self) -> bool {
        self.postponed < MAX_POSTPONED
    }

    /// Whether windows in which calls are counted can be postponed again.
    pub(crate) fn may_wait_to_count(&self) -> bool {
        self.postponed < MAX_POSTPONED_COUNTS
    }

    /// Whether windows can open now: there are some, and the program is not displaced, or has been
    /// for long. Takes some microseconds.
    pub(crate) fn begin(&mut self) -> bool {
        if self.waiting.is_empty() {
            self.postponed = 0;
            return false;
        }
        let is_displaced = || match self.postponed {
            0 => displaced::is_program_displaced(),
            _ => displaced::is_still_displaced(),
        };
        if self.may_wait() && is_displaced() {
            self.postponed += 1;
            return false;
        }
        true
    }

    /// Adds a window that could not open in this attempt because of what the program does.
    pub(crate) fn postpone(&mut self, due: Due) {
        self.waiting.push(due);
        self.are_postponed = true;
    }

    /// Ends the attempt, at the time `now`.
    pub(crate) fn end(&mut self, now: f64) {
        self.next = self.falls_to(LOAD * ENOUGH).max(now + MIN_STEP);
        self.postponed = if std::mem::take(&mut self.are_postponed) { self.postponed + 1 } else { 0 };
    }

    /// Of all windows `due` at the time `now`, returns those that open now. The others open later.
    /// `part` tells which part of the program's time the probes of a window take; it is returned
    /// with the window.
    pub(crate) fn step(&mut self, now: f64, due: Vec<Due>, part: impl Fn(&Due) -> f64) -> Vec<(Due, f64)> {
        let mut due: Vec<(Due, f64)> = due.into_iter().map(|due| (due, part(&due))).collect();
        due.sort_by(|(a, _), (b, _)| a.planned.length.total_cmp(&b.planned.length));
        self.open.retain(|load| load.until > now);
        let limit = (due.iter().map(|(_, part)| part).sum::<f64>() / STEPS).max(LOAD);
        let mut sum = self.sum();
        let mut taken = 0;
        for (_, part) in &due {
            if sum + part > limit && (taken > 0 || sum > limit * ENOUGH) {
                break;
            }
            sum += part;
            taken += 1;
        }
        self.waiting.extend(due.drain(taken..).map(|(due, _)| due));
        due
    }

    fn sum(&self) -> f64 {
        self.open.iter().map(|load| load.part).sum()
    }

    /// The time at which the load of the windows that are open falls to `limit`.
    fn falls_to(&mut self, limit: f64) -> f64 {
        self.open.sort_by(|a, b| a.until.total_cmp(&b.until));
        let mut sum = self.sum();
        let ends = self.open.iter().map_while(|load| {
            let is_above = sum > limit;
            sum -= load.part;
            is_above.then_some(load.until)
        });
        ends.last().unwrap_or(0.0)
    }

    /// Records that a window has been opened whose probes take this part of the program's time
    /// until the time `until`.
    pub(crate) fn opened(&mut self, part: f64, until: f64) {
        self.open.push(Load { part, until });
    }

    /// The time from `now` to the next attempt to open the windows that wait; `None` if there are
    /// none.
    pub(crate) fn until_next(&self, now: f64) -> Option<Duration> {
        match self.postponed {
            _ if self.waiting.is_empty() => None,
            0 => Some(Duration::from_nanos((self.next - now).max(0.0) as u64)),
            attempts => Some(FIRST_ATTEMPT * (1 << (attempts - 1).min(MAX_DOUBLINGS))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window of a function whose index is its length in microseconds.
    fn window(us: u32) -> Due {
        let planned = Planned {
            start: 0.0,
            end: 1e9,
            opens: 0.0,
            length: f64::from(us) * 1e3,
            counted_from: None,
            queued: None,
        };
        Due { index: us, planned }
    }

    /// The indices of the windows that open in a step at the time `now`. Each takes `part` of the
    /// time for as long as it lasts.
    fn step(opening: &mut Opening, now: f64, due: &[u32], part: f64) -> Vec<u32> {
        let due = opening.take().into_iter().chain(due.iter().map(|us| window(*us))).collect();
        let now_open = opening.step(now, due, |_| part);
        for (due, part) in &now_open {
            opening.opened(*part, now + due.planned.length);
        }
        opening.end(now);
        now_open.iter().map(|(due, _)| due.index).collect()
    }

    #[test]
    fn the_shortest_windows_open_first_as_many_as_probes_may_take_time() {
        let mut opening = Opening::default();
        assert_eq!(step(&mut opening, 0.0, &[700, 100, 300, 900, 500], 0.4 * LOAD), [100, 300]);
        // The load falls below its limit with the first, and to the part at which it is due with
        // the second.
        assert_eq!(opening.until_next(0.0), Some(Duration::from_micros(300)));
        assert_eq!(opening.until_next(250e3), Some(Duration::from_micros(50)));
        assert_eq!(step(&mut opening, 50e3, &[], 0.4 * LOAD), [0; 0]);
        assert_eq!(step(&mut opening, 301e3, &[200], 0.4 * LOAD), [200, 500]);
        assert_eq!(step(&mut opening, 2e6, &[], 0.4 * LOAD), [700, 900]);
        assert_eq!(opening.until_next(2e6), None);
    }

    #[test]
    fn a_window_whose_probes_take_more_opens_alone() {
        let mut opening = Opening::default();
        assert_eq!(step(&mut opening, 0.0, &[40, 50], 3.0 * LOAD), [40]);
        assert_eq!(opening.until_next(0.0), Some(Duration::from_nanos(MIN_STEP as u64)));
        assert_eq!(step(&mut opening, 30e3, &[], 3.0 * LOAD), [0; 0]);
        assert_eq!(step(&mut opening, 50e3, &[], 3.0 * LOAD), [50]);
    }

    #[test]
    fn long_windows_whose_probes_take_little_delay_no_others() {
        let mut opening = Opening::default();
        assert_eq!(step(&mut opening, 0.0, &[100_000], 0.4 * ENOUGH * LOAD), [100_000]);
        assert_eq!(step(&mut opening, 1e3, &[40, 50], 2.0 * LOAD), [40]);
        assert_eq!(opening.until_next(1e3), Some(Duration::from_nanos(MIN_STEP as u64)));
    }

    #[test]
    fn many_windows_open_in_a_limited_number_of_steps() {
        let mut opening = Opening::default();
        let due: Vec<u32> = (1..=1000).collect();
        let mut steps = 1;
        let mut opened = step(&mut opening, 0.0, &due, LOAD).len();
        while !opening.is_empty() {
            opened += step(&mut opening, f64::from(steps) * 1e9, &[], LOAD).len();
            steps += 1;
        }
        assert_eq!(opened, 1000);
        assert!(steps > 16 && steps < 100, "{steps}");
    }

    #[test]
    fn attempts_are_further_and_further_apart_while_the_program_prevents_them() {
        let mut opening = Opening::default();
        let mut times = Vec::new();
        for _ in 0..4 {
            opening.take();
            opening.postpone(window(1));
            opening.end(0.0);
            times.push(opening.until_next(0.0).expect("a window waits").as_millis());
        }
        assert_eq!(times, [3, 6, 12, 12]);
        assert!(!opening.may_wait());
        assert!(opening.may_wait_to_count(), "without a count, nothing would be known");
        opening.take();
        opening.push(window(1));
        opening.end(0.0);
        assert!(opening.may_wait());
        assert_eq!(opening.until_next(0.0), Some(Duration::from_nanos(MIN_STEP as u64)));
    }
}
