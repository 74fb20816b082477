//! The thread that runs while the program's other threads wait.
//!
//! Many programs have several threads of which one computes at a time: the others are a pool
//! without work, or wait for input. What is known of a program with one thread is then known of
//! this one: how much of a stratum was the program's own time ([`Queued`]), and that no other
//! thread has delayed it in a window. Whether others have run is read from their processor time.

use crate::observe::thread;
use crate::stacks::waiting::queued;

/// The maximum processor time of other threads, as a part of elapsed time.
const MAX_OTHERS: f64 = 0.1;

/// The minimum of a program's own part of the time.
pub(crate) const MIN_PART: f64 = 0.002;

/// The thread that has run most in recent time.
#[derive(Debug, Default)]
pub(crate) struct Busiest {
    thread: Option<u32>,
    /// The threads and their processor time at the last look.
    last: Vec<(u32, u64)>,
    /// The number of threads that had run since the look before.
    running: usize,
}

impl Busiest {
    /// Looks which threads have run since the last look, and returns their number; if there are
    /// many threads, the number of all. Called by the service thread.
    pub(crate) fn look(&mut self) -> usize {
        let live = thread::live().take(thread::MAX_READ + 1).count();
        if live > thread::MAX_READ {
            *self = Self { running: thread::live().count(), ..Self::default() };
        } else {
            self.compare(thread::processor_times().collect());
        }
        self.running
    }

    fn compare(&mut self, now: Vec<(u32, u64)>) {
        let before =
            |thread| self.last.iter().find(|(other, _)| *other == thread).map_or(0, |(_, time)| *time);
        let ran = now.iter().map(|(thread, time)| (*thread, time.saturating_sub(before(*thread))));
        self.running = ran.clone().filter(|(_, time)| *time > 0).count();
        let most = ran.max_by_key(|(_, time)| *time);
        // While all wait, it stays the same.
        if let Some((thread, time)) = most
            && (time > 0 || now.len() == 1)
        {
            self.thread = Some(thread);
        }
        self.last = now;
    }

    /// Whether no other thread has run between the last two looks.
    pub(crate) fn is_alone(&self) -> bool {
        self.running <= 1
    }

    /// Its kernel id, if there are few threads.
    pub(crate) fn thread(&self) -> Option<u32> {
        self.thread
    }
}

/// How long the busiest thread had been ready without a processor, and how long the others had run,
/// at some time, in nanoseconds.
///
/// The kernel adds a span when it ends. The difference of these figures at the ends of a stratum
/// gives the stratum's own part, where the recent average is of little use: the shares of competing
/// processes change within milliseconds. A span that began in one stratum may be longer than the
/// next one, in which it ends: the rest is left for those that follow ([`Queued::next`]). The own
/// parts of all strata together are therefore as exact as the kernel's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Queued {
    thread: u32,
    at: f64,
    queued: f64,
    others: f64,
}

/// The part of the time that is the program's own, if one thread has run in nearly all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OwnPart {
    pub(crate) part: f64,
    /// The processor time of the others as a part of the time: while they ran, the program had a
    /// processor, even if the thread had none.
    pub(crate) others: f64,
}

impl Queued {
    /// Reads the figures of this thread at the time `at`; `None` without /proc. Takes a few
    /// microseconds.
    pub(crate) fn read(thread: u32, at: f64) -> Option<Self> {
        let queued = queued(thread)?;
        let others = thread::processor_times().filter(|(other, _)| *other != thread);
        let others = others.map(|(_, time)| time).sum::<u64>() as f64 + thread::processor_time_of_ended();
        Some(Self { thread, at, queued, others })
    }

    /// The thread.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// The program's own part of the time from `self` to `then`; `None` if that is of a different
    /// thread, or if others have run for much of the time.
    pub(crate) fn own_part_until(&self, then: &Self) -> Option<OwnPart> {
        let passed = then.at - self.at;
        if self.thread != then.thread || passed <= 0.0 {
            return None;
        }
        let part = (1.0 - (then.queued - self.queued) / passed).clamp(MIN_PART, 1.0);
        let others = (then.others - self.others).max(0.0) / passed;
        (others <= MAX_OTHERS).then_some(OwnPart { part, others })
    }

    /// The figures at the start of the stratum that follows one from `then` to `now`, as far as
    /// they are known. What that one could not hold of the queueing time belongs to the next.
    pub(crate) fn next(then: Option<Self>, now: Option<Self>) -> Option<Self> {
        let held = |now: &Self| {
            let then = then?;
            Some(then.queued + (1.0 - then.own_part_until(now)?.part) * (now.at - then.at))
        };
        now.map(|now| Self { queued: held(&now).unwrap_or(now.queued), ..now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_has_run_most_since_the_last_look() {
        let mut busiest = Busiest::default();
        let mut look = |times: &[(u32, u64)]| {
            busiest.compare(times.to_vec());
            (busiest.running, busiest.is_alone(), busiest.thread())
        };
        assert_eq!(look(&[(1, 0)]), (0, true, Some(1)), "the only one");
        assert_eq!(look(&[(1, 50), (2, 80)]), (2, false, Some(2)));
        assert_eq!(look(&[(1, 90), (2, 81)]), (2, false, Some(1)));
        assert_eq!(look(&[(1, 90), (2, 81)]), (0, true, Some(1)));
        assert_eq!(look(&[(2, 81), (3, 7)]), (1, true, Some(3)));
    }

    #[test]
    fn own_part_between_two_readings_of_one_thread() {
        let reading = |thread, at, queued, others| Queued { thread, at, queued, others };
        let first = reading(1, 100.0, 50.0, 7.0);
        let until = |then| first.own_part_until(&then);
        assert_eq!(until(reading(1, 200.0, 80.0, 7.0)), Some(OwnPart { part: 0.7, others: 0.0 }));
        assert_eq!(until(reading(1, 200.0, 50.0, 12.0)), Some(OwnPart { part: 1.0, others: 0.05 }));
        assert_eq!(until(reading(1, 200.0, 50.0, 27.0)), None, "another one has run as well");
        // It got a processor after a long time.
        let late = until(reading(1, 200.0, 900.0, 7.0));
        assert_eq!(late, Some(OwnPart { part: MIN_PART, others: 0.0 }));
        assert_eq!(until(reading(2, 200.0, 80.0, 7.0)), None);
        assert_eq!(until(first), None);
    }

    /// A thread runs for 3 ms, then waits for 97, and so on. Strata are much shorter than that, or
    /// longer.
    #[test]
    fn own_parts_add_up_however_long_the_thread_waits() {
        for stratum in [7.0, 23.0, 41.0, 330.0] {
            let at = |at: f64| {
                let queued = (at / 100.0).floor() * 97.0;
                Queued { thread: 1, at, queued, others: 0.0 }
            };
            let (mut then, mut own) = (Some(at(0.0)), 0.0);
            for end in (1..=1000).map(|n| f64::from(n) * stratum) {
                let now = at(end);
                own += then
                    .and_then(|then| then.own_part_until(&now))
                    .map_or(f64::NAN, |own| own.part * stratum);
                then = Queued::next(then, Some(now));
            }
            let ran = 30.0 * stratum;
            assert!((own - ran).abs() < 100.0 + 0.01 * ran, "{stratum}: {own} of {ran}");
        }
    }

    #[test]
    fn nothing_is_left_of_figures_that_cannot_be_compared() {
        let reading = |thread, at, queued, others| Queued { thread, at, queued, others };
        let first = reading(1, 100.0, 50.0, 7.0);
        for then in [reading(2, 200.0, 900.0, 7.0), reading(1, 200.0, 900.0, 27.0), first] {
            assert_eq!(Queued::next(Some(first), Some(then)), Some(then));
        }
        let fits = Some(reading(1, 200.0, 80.0, 7.0));
        assert_eq!(Queued::next(Some(first), fits), fits);
        assert_eq!((Queued::next(None, fits), Queued::next(Some(first), None)), (fits, None));
    }
}
