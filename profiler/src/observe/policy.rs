//! Decides when a function is observed: at random, depending only on past data.
//!
//! # The policy
//! 1. **On.** A function that is called rarely, or whose calls are long, stays on, and each of its
//!    calls is counted and timed. It has an *allowance* of calls, a token bucket that is refilled
//!    at a constant rate and in proportion to the time of its calls, up to a maximum
//!    ([`Allowance`]). When the allowance is used up, the function is switched off.
//! 2. **Sampled.** From then on its time is divided into *strata* of random length. In each stratum
//!    one *window* opens, at a uniformly distributed instant; every call that enters in the window
//!    is counted and timed. The window is as long as it takes for [`Intensity::calls`] calls at the
//!    rate seen in earlier windows ([`Pace`]). A window ends at a given time, never after a number
//!    of calls.
//! 3. **Counted.** If the windows of a function would be so short that the time of its probes
//!    dominates them, its calls are counted and timed in separate windows
//!    ([`crate::observe::counting`]).
//! 4. **On again**, when the rate of calls is at most half the rate of the refill, unless too many
//!    functions are called rarely ([`crate::observe::rare_calls`]). At a budget of 1 %, functions
//!    with a mean of 0.4 ms and more stay on, unless half of the budget is not enough for all of
//!    them ([`crate::observe::long_calls`]). They are most of those with the largest totals.
//!
//! # What is estimated, and why it is unbiased
//! A call at time t, in a stratum of length L with a window of length w, is observed with
//! probability w / L: neither the window's length nor its position depends on what the program does
//! in the stratum. It therefore counts L / w times (Horvitz and Thompson, 1952), as does its
//! latency. Both lengths are those of the program's *own time*: time without that for which its
//! threads were ready and had no processor, because other processes or the service thread had it
//! ([`crate::observe::own_time`], [`crate::observe::preemption`]), and in windows without what
//! probes took. Time in which the program waits is its own. Given the past, the expected value in
//! each stratum is the true one, and therefore also that of their sum, whatever the pattern of the
//! calls: clusters and phases change the variance, not the mean. Time on is a stratum with w = L;
//! it may end after a number of calls, because it represents nothing beyond its end.
//!
//! Times of functions that are called often have a second estimate, from stack samples
//! ([`crate::stacks`]), which does not depend on windows.
//!
//! The variance is the one between strata, not between the calls in a window, which are correlated;
//! see [`crate::estimate::strata`].
//!
//! # Where this does not hold
//! * From the moment the allowance is used up until the next stratum begins (the service thread's
//!   next tick: a few milliseconds, up to 0.2 s if the budget is small) nothing is observed. The
//!   calls of this *gap* are estimated as half of what the last rate would give, and the interval
//!   holds everything from none to all of it.
//! * A window with [`CAP`] times as many calls as expected is cut short, for its cost. The rest of
//!   it is treated as a gap.
//! * A window opens at the first tick of the service thread after the drawn instant, or some tenths
//!   of a millisecond later if many windows are due ([`crate::observe::opening`]). A call in the
//!   first tick of a stratum is therefore observed slightly less often, one in the last tick
//!   slightly more often. The length of strata varies, so that no period of the program stays in
//!   step with them.
//! * The tick comes when the service thread gets a processor, and windows open only while the
//!   program has one ([`crate::observe::displaced`]), some time after it got it
//!   ([`crate::observe::function`]). If all processors are in use, this depends on what the program
//!   does: it is observed more often while it leaves a processor free, and after it was
//!   descheduled. Therefore a function is overestimated if it is called mostly then, because the
//!   program waits for a point in time rather than for the end of some work. Processor time as an
//!   auxiliary variable (a ratio estimate) would correct this, as it does in counting windows.
//! * When the service thread begins a window, it has a processor that another thread or process may
//!   need. If the program waits for that one, it makes fewer calls for a moment. Windows of a
//!   program that often waits therefore open some tenths of a millisecond after they were begun, at
//!   a price: calls in between are not counted, and yet execute probes. Counting windows
//!   ([`crate::observe::counting`]) cannot wait, so functions that are called more than a million
//!   times per second by such a program, on processors that are all in use, are underestimated.
//! * The time of probes is taken off the length of a window, because it delays the program. It does
//!   not if the program waits for points in time: it makes calls while a probe runs that it would
//!   otherwise make later. The estimate is then too large by the part of the window that its probes
//!   take: up to a sixth where probes take 150 ns, for a call every microsecond. The lower limit
//!   includes it ([`crate::estimate::strata::Systematic`]).
//! * How much of a stratum is the program's own time is derived from the last tenths of a second,
//!   for all threads together.
//! * A part of the probes' time is known from a measurement at the start only
//!   ([`crate::observe::schedule`]).
//! * Without `rseq`, preemption is not detected: on a busy machine, windows are then shorter than
//!   assumed.

use rand::{Rng, RngExt};

use crate::observe::busiest::Queued;

/// A window is cut short after this multiple of the expected number of calls.
pub(crate) const CAP: u32 = 20;

/// The length of the shortest window, in nanoseconds.
const MIN_WINDOW: f64 = 1_000.0;

/// The first stratum of a function is this part of the others, but not shorter than the following
/// number of nanoseconds. Each later one is longer by [`GROWTH`]. ([`crate::observe::schedule`]
/// plans longer ones if many functions begin to be sampled at the same time.)
const FIRST_STRATUM: f64 = 0.1;
const MIN_STRATUM: f64 = 1e6;
const GROWTH: f64 = 1.5;

/// Maximum ratio of the lengths of successive strata: a window that is empty by chance must not
/// cause the next one to represent most of the run.
const LENGTHEN: f64 = 3.0;

/// Below this part of the usual importance, a function's first strata are not shorter than others.
const UNIMPORTANT: f64 = 0.3;

/// A function may be on if it is called at most this multiple of the calls that its windows would
/// observe, and at [`Intensity::rare`] in any case.
const ON_FOR_SAMPLED: f64 = 10.0;

/// The maximum of [`Intensity::rare`]: 100 calls per second.
pub(crate) const RARE: f64 = 1e-7;

/// A function is switched on again if it would use at most this part of its allowance: after an
/// allowance is used up, it is unobserved until the next tick.
const ROOM: f64 = 0.5;

/// Maximum number of calls that are added to an allowance for the time of its function's calls.
/// Their probes take less than a millisecond.
const MAX_EARNED: f64 = 500.0;

/// Calls per nanosecond above which calls are counted and timed in separate windows
/// ([`crate::observe::counting`]): the error of the probes' time is then more than a few hundredths
/// of the time between two calls.
const FREQUENT: f64 = 1e-3;

/// The weight of the last window in the observed rate.
const NEWEST: f64 = 0.5;

/// The intensity of observation, set by the governor, and the same for all functions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Intensity {
    /// Calls that a window should hold.
    pub(crate) calls: f64,
    /// Mean length of a stratum, in nanoseconds.
    pub(crate) stratum: f64,
    /// Maximum of a function's allowance, in calls, without those for the time of its calls.
    pub(crate) allowance: f64,
    /// Calls that are added to the allowance for each nanosecond spent in calls to the function.
    pub(crate) earned: f64,
    /// A function that is called less often than this is on all the time; in calls per nanosecond.
    /// 0 while there are too many of them ([`crate::observe::rare_calls`]).
    pub(crate) rare: f64,
}

impl Intensity {
    /// The rate at which an allowance is refilled, in calls per nanosecond: more than windows would
    /// observe, since a function that is on needs no toggles and is known exactly.
    pub(crate) fn refill(&self) -> f64 {
        (ON_FOR_SAMPLED * self.calls / self.stratum).max(self.rare)
    }

    /// The calls that are added to an allowance for `elapsed` nanoseconds because the function is
    /// called rarely.
    pub(crate) fn added_for_rare(&self, elapsed: f64) -> f64 {
        (elapsed * self.rare).min(self.allowance)
    }
}

/// A function's allowance of calls while it is on: a token bucket that is examined when it is
/// empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Allowance {
    /// The function may continue for this number of calls.
    More(u32),
    /// The function has used up its allowance.
    Exhausted,
}

impl Allowance {
    /// The allowance after `elapsed` nanoseconds since the last refill, of which the function's
    /// calls took `inside`.
    pub(crate) fn refilled(elapsed: f64, inside: f64, intensity: &Intensity) -> Self {
        let earned = (inside * intensity.earned).min(MAX_EARNED);
        let calls = (elapsed * intensity.refill()).min(intensity.allowance) + earned;
        // A smaller refill is not worth its cost.
        if calls < (intensity.allowance / 4.0).max(1.0) { Self::Exhausted } else { Self::More(calls as u32) }
    }
}

/// A stratum and the window in it, before it opens. Times in nanoseconds on the session's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// The time at which the window should open, and its length if the program runs all the time.
    pub(crate) opens: f64,
    pub(crate) length: f64,
    /// If calls are counted and timed in separate windows,
    /// [`counting::own_time`](crate::observe::counting::own_time) at the start.
    pub(crate) counted_from: Option<f64>,
    /// The queueing time of the busiest thread at the start, if it is known.
    pub(crate) queued: Option<Queued>,
}

/// A stratum and the window in it, from its opening on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Open {
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// The length of the window in the program's own time.
    pub(crate) length: f64,
    /// The part of the time that is the program's own.
    pub(crate) running: f64,
    /// The processor time that the program had taken, without probes, when the window was begun.
    pub(crate) own_time: f64,
    /// See [`Planned::queued`].
    pub(crate) queued: Option<Queued>,
    /// [`OwnPart::others`](crate::observe::busiest::OwnPart::others), if one thread runs nearly
    /// alone.
    pub(crate) others: Option<f64>,
}

impl Planned {
    /// The same stratum with a window that both counts and times calls, and is longer than the
    /// effects of a context switch.
    pub(crate) fn longer(&self) -> Self {
        Self {
            length: self.length.max(50.0 * MIN_WINDOW).min(self.end - self.start),
            counted_from: None,
            ..*self
        }
    }

    /// Opens the window, at `now` at the earliest. A stratum ends no sooner than its window.
    /// `running` is the part of the time that is the program's own: the calls of the planned length
    /// are made in that.
    pub(crate) fn open(&self, now: f64, running: f64, own_time: f64) -> Open {
        let length = (self.length * running).max(MIN_WINDOW.min(self.length));
        let end = self.end.max(self.opens.max(now) + length / running);
        Open { start: self.start, end, length, running, own_time, queued: self.queued, others: None }
    }
}

impl Open {
    /// The same, with the program's own part of the time until `now`, if it is known.
    pub(crate) fn measured(self, now: Option<Queued>) -> Self {
        let own = self.queued.zip(now).and_then(|(then, now)| then.own_part_until(&now));
        let running = own.map_or(self.running, |own| own.part);
        Self { running, others: own.map(|own| own.others), ..self }
    }

    /// The number of calls that each observed call represents.
    pub(crate) fn weight(&self) -> f64 {
        ((self.end - self.start) * self.running / self.length.max(1.0)).max(1.0)
    }
}

/// The next step for a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Next {
    On,
    Window(Planned),
}

/// The known rate of calls of a function, and the length of its next stratum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Calls per nanosecond.
    rate: f64,
    /// The length of the next stratum, as a part of the governor's: grows to 1.
    part: f64,
    /// The length of the last stratum, in nanoseconds; infinite before the first one.
    last: f64,
    /// The factor by which more of the function is observed than of others; usually 1.
    importance: f64,
    /// The part of the program's time that its calls took in the last windows or, before the first
    /// one, while the allowance was used up. `None` if it is not known.
    share: Option<f64>,
    has_windows: bool,
}

impl Pace {
    /// The pace of a function that has used up its allowance at this rate, when its calls took this
    /// share of the time, if that is known.
    pub(crate) fn new(rate: f64, share: Option<f64>) -> Self {
        Self { rate, part: FIRST_STRATUM, last: f64::INFINITY, importance: 1.0, share, has_windows: false }
    }

    /// Sets the importance of the function, from what is known of it so far. The first strata of
    /// unimportant functions are not short. Returns the former importance.
    pub(crate) fn matters(&mut self, importance: f64) -> f64 {
        if importance < UNIMPORTANT && !self.has_windows {
            self.part = 1.0;
        }
        std::mem::replace(&mut self.importance, importance)
    }

    /// Whether calls are counted and timed in separate windows ([`crate::observe::counting`]).
    pub(crate) fn is_frequent(&self) -> bool {
        self.rate > FREQUENT
    }

    /// Whether a window of the function has ended.
    pub(crate) fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// The rate in calls per nanosecond.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// Records the rate that a window has shown.
    pub(crate) fn observed(&mut self, rate: f64) {
        self.rate += NEWEST * (rate - self.rate);
    }

    /// Records the part of the time that the calls took in a window, if any call was timed so far.
    /// The first one replaces earlier knowledge: many functions are called often only for a moment.
    pub(crate) fn took(&mut self, share: Option<f64>) {
        let newest = if self.has_windows { NEWEST } else { 1.0 };
        self.has_windows = true;
        self.share = match (self.share, share) {
            (Some(before), Some(now)) => Some(before + newest * (now - before)),
            (before, now) => now.or(before),
        };
    }

    /// The part of the program's time that the calls take, if it is known.
    pub(crate) fn share(&self) -> Option<f64> {
        self.share
    }

    /// Records that a window was cut short at this rate.
    pub(crate) fn exceeded(&mut self, rate: f64) {
        self.rate = self.rate.max(rate);
    }

    /// Draws the stratum that begins at `start`. The mean call of the function takes `mean`
    /// nanoseconds, as far as is known.
    pub(crate) fn next(
        &mut self,
        start: f64,
        mean: f64,
        intensity: &Intensity,
        random: &mut impl Rng,
    ) -> Next {
        let usual = intensity.stratum / self.importance;
        let length = (usual * self.part).max(MIN_STRATUM.min(usual)).min(LENGTHEN * self.last)
            * random.random_range(0.75..1.25);
        self.last = length;
        self.part = (self.part * GROWTH).min(1.0);
        let refill = intensity.refill() + self.rate * mean * intensity.earned;
        if self.rate <= ROOM * refill {
            return Next::On;
        }
        let window = (intensity.calls / self.rate).max(MIN_WINDOW).min(length);
        let opens = start + (length - window) * random.random_range(0.0..1.0);
        Next::Window(Planned {
            start,
            end: start + length,
            opens,
            length: window,
            counted_from: None,
            queued: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const INTENSITY: Intensity =
        Intensity { calls: 50.0, stratum: 10e6, allowance: 1000.0, earned: 1e-5, rare: RARE };

    #[test]
    fn a_window_lies_in_its_stratum_and_holds_the_calls_that_are_wanted() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut pace = Pace::new(1e-3, None);
        let mut start = 0.0;
        for _ in 0..1000 {
            let Next::Window(planned) = pace.next(start, 0.0, &INTENSITY, &mut random) else { panic!("on") };
            assert!(planned.start <= planned.opens && planned.opens + planned.length <= planned.end);
            assert_eq!(planned.length, 50_000.0);
            let open = planned.open(0.0, 1.0, 0.0);
            assert_eq!(open.weight(), (planned.end - planned.start) / planned.length);
            start = open.end;
        }
        assert!(
            (start / 1000.0 / 10e6 - 1.0).abs() < 0.02,
            "the mean length of a stratum: {}",
            start / 1000.0
        );
    }

    #[test]
    fn a_window_that_opens_late_makes_its_stratum_longer() {
        let planned = Planned {
            start: 100.0,
            end: 200.0,
            opens: 150.0,
            length: 40.0,
            counted_from: None,
            queued: None,
        };
        let at = |now: f64, running: f64| planned.open(now, running, 7.0);
        let open = Open {
            start: 100.0,
            end: 200.0,
            length: 40.0,
            running: 1.0,
            own_time: 7.0,
            queued: None,
            others: None,
        };
        assert_eq!((at(0.0, 1.0), open.weight()), (open, 2.5));
        assert_eq!(at(180.0, 1.0), Open { end: 220.0, ..open });
        let half = Open { end: 260.0, running: 0.5, ..open };
        assert_eq!(
            (at(180.0, 0.5), half.weight()),
            (half, 2.0),
            "the program has a processor half of the time"
        );
    }

    /// A function that was important, and has just seen an empty window.
    #[test]
    fn strata_become_longer_step_by_step() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut lengths = Vec::new();
        let mut pace = Pace::new(1e-3, None);
        for number in 0..12 {
            pace.matters(if number == 0 { 1.0 } else { 0.03 });
            let Next::Window(planned) = pace.next(0.0, 0.0, &INTENSITY, &mut random) else { panic!("on") };
            lengths.push(planned.end - planned.start);
            pace.took(Some(0.0));
        }
        assert!(lengths.windows(2).all(|pair| pair[1] < 3.76 * pair[0]), "{lengths:?}");
        assert!(lengths[11] > 0.7 * INTENSITY.stratum / 0.03, "{lengths:?}");
    }

    #[test]
    fn a_rare_function_is_on() {
        let mut random = SmallRng::seed_from_u64(1);
        assert_eq!(Pace::new(1e-9, None).next(0.0, 0.0, &INTENSITY, &mut random), Next::On);
        let mut slowing = Pace::new(1e-3, None);
        let windows = (0..).take_while(|_| {
            slowing.observed(0.0);
            slowing.next(0.0, 0.0, &INTENSITY, &mut random) != Next::On
        });
        assert!((3..20).contains(&windows.count()));
    }

    #[test]
    fn an_allowance_lasts_at_the_rate_of_its_refill_and_not_at_ten_times_that() {
        let refill = INTENSITY.refill();
        let more = Allowance::refilled(1001.0 / refill, 0.0, &INTENSITY);
        assert_eq!(more, Allowance::More(1000));
        assert_eq!(
            Allowance::refilled(1e15, 0.0, &INTENSITY),
            Allowance::More(1000),
            "no more than the maximum"
        );
        assert_eq!(Allowance::refilled(100.0 / refill, 0.0, &INTENSITY), Allowance::Exhausted);
    }

    /// 400 calls of 0.1 ms each earn 400 calls.
    #[test]
    fn long_calls_pay_for_themselves() {
        assert_eq!(Allowance::refilled(0.0, 400.0 * 1.001e5, &INTENSITY), Allowance::More(400));
        // The maximum is another one than that of the allowance, which is small if many functions
        // are called.
        let of_many = Intensity { allowance: 40.0, ..INTENSITY };
        assert_eq!(Allowance::refilled(0.0, 400.0 * 1.001e5, &of_many), Allowance::More(400));
        assert_eq!(Allowance::refilled(1e15, 1e15, &of_many), Allowance::More(540));
        assert_eq!(Allowance::refilled(0.0, 1000.0 * 1e4, &INTENSITY), Allowance::Exhausted);
        let mut random = SmallRng::seed_from_u64(1);
        let mut next = |mean: f64| Pace::new(1.0, None).next(0.0, mean, &INTENSITY, &mut random);
        assert_eq!(next(2.01e5), Next::On);
        assert!(matches!(next(1.9e5), Next::Window(_)));
    }
}
