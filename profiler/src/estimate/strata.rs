//! Estimates numbers of calls and times from strata, with their confidence intervals.
//!
//! # The estimates
//! For time in which a function was on, counts and times are exact. Each sampled stratum of length
//! L with a window of length w adds its observed calls and their latencies, times L / w (for the
//! reason why this is unbiased, see [`crate::observe::policy`]). A call belongs to the window in
//! which it *enters*, and is followed to its end. The mean is total / calls: a ratio of sums over
//! strata, not a mean of means.
//!
//! Functions that are called very often are counted and timed in separate windows of a stratum
//! ([`crate::observe::counting`]). Such a stratum adds its counted calls, weighted, and as many
//! times the mean of the calls that were timed in it. Calls whose code had just been rewritten are
//! ignored in this mean if there are others.
//!
//! # The variance
//! There is one window per stratum, so the variance within a stratum cannot be estimated from the
//! stratum alone. Half the squared difference of the rates of neighbours is used (successive
//! differences; Wolter, "Introduction to Variance Estimation", 2007, chapter 8), for each stratum
//! the mean of that to both its neighbours, times the square of its length: correct if neighbours
//! have the same expected value, too large if the rate changes from one to the next. Therefore a
//! stratum that is much longer than the others, and whose window has seen nothing, has a large
//! variance if there were calls before or after it. Calls in one window are never assumed to be
//! independent.
//!
//! If few windows contain most of the calls, intervals of a normal distribution would be too
//! narrow. The degrees of freedom of Student's distribution are estimated from the differences
//! themselves, (Σd²)² / Σd⁴: with one outlier among a hundred windows, there are about two. If a
//! function was observed only a few times in its windows, the upper limit of a Poisson distribution
//! is used, too.
//!
//! An estimate with a large error is skewed: it is often too small, and rarely much too large. Its
//! limits are derived from those of its logarithm ([`lower_part`], [`skew`]). If the error is as
//! large as the estimate itself, an upper limit is not given. If one or two windows contain nearly
//! everything, nothing is known except what was observed.
//!
//! A *gap*, in which nothing was observed, adds half of the calls that the last known rate would
//! give, with the variance of a uniform distribution from zero to all of them.

mod late;
mod systematic;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use self::late::Late;
pub(crate) use self::systematic::Systematic;
use crate::estimate::interval::{least_for, most_for, student};
use crate::report::Estimate;

/// The number of windows that are kept until the calls that entered in them have returned. A call
/// that returns later is added with its own variance.
const PENDING: usize = 4;

/// Estimates have no upper limit if gaps are a larger part of the time since a function was on,
/// unless they are shorter than `SHORT_GAP` nanoseconds in total.
const MAX_GAPS: f64 = 0.25;
const SHORT_GAP: f64 = 3e6;

/// A function has upper limits if it was on for all but this part of the time, and was called more
/// often in that time than after it. Some window must have ended: an allowance is used up in a
/// phase of many calls, which may go on for any time.
const MOSTLY_EXACT: f64 = 0.1;

/// If the time of probes makes windows more uncertain than this, rates have no upper limit.
const TOO_FAST: f64 = 1.0;

/// See [`lower_part`].
const MIN_EFFECTIVE: f64 = 3.0;

/// With fewer windows, there is no upper limit, either, because a phase with many calls may have
/// been missed. (In two interpreters, budgets of 1 to 5 %: of 15 functions with 6 windows, the
/// limit was too low for 7; of 16 with 7 to 9, for none.)
const MIN_WINDOWS: f64 = 8.0;

/// Where the calls of a stratum are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    /// In the window in which they are timed.
    SameWindow,
    /// In a separate window ([`crate::observe::counting`]).
    SeparateWindow,
}

/// A window whose calls are still being collected.
#[derive(Clone, Copy, Debug)]
struct Window {
    observation: u32,
    weight: f64,
    /// The length of the stratum, in nanoseconds.
    length: f64,
    entries: f64,
    timed: f64,
    ticks: f64,
    /// Calls of rewritten code, if the window's calls were counted in another window: used only if
    /// there are no others.
    cold: f64,
    cold_ticks: f64,
    /// The calls in the part of the window that was cut off, estimated at the rate of the rest.
    cut_off: f64,
    systematic: Systematic,
    counting: Counting,
}

impl Window {
    /// The window's contribution to the estimates: calls, timed calls, and their time.
    fn weighted(&self) -> (f64, f64, f64) {
        let calls = self.weight * (self.entries + self.cut_off / 2.0);
        if self.counting == Counting::SameWindow {
            (calls, self.weight * self.timed, self.weight * self.ticks)
        } else if self.timed > 0.0 {
            (calls, calls, calls * self.ticks / self.timed)
        } else if self.cold > 0.0 {
            (calls, calls, calls * self.cold_ticks / self.cold)
        } else {
            (calls, 0.0, 0.0)
        }
    }
}

/// Squares and products of the differences between neighbours.
#[derive(Clone, Copy, Debug, Default)]
struct Differences {
    calls: f64,
    calls_fourth: f64,
    ticks: f64,
    ticks_fourth: f64,
    products: f64,
}

impl Differences {
    /// Adds the difference of two rates, with this factor for its square.
    fn add(&mut self, [calls, ticks]: [f64; 2], factor: f64) {
        self.calls += factor * calls * calls;
        self.calls_fourth += (factor * calls * calls).powi(2);
        self.ticks += factor * ticks * ticks;
        self.ticks_fourth += (factor * ticks * ticks).powi(2);
        self.products += factor * calls * ticks;
    }
}

/// The last stratum, or the gap after which the next one begins.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// Calls and time per nanosecond.
    rates: [f64; 2],
    /// The square of its length; 0 for a gap.
    square: f64,
    /// The difference from its predecessor, if there was one, and the factor for the square of this
    /// difference in the predecessor's variance.
    difference: Option<([f64; 2], f64)>,
}

/// The part of the squared difference of two neighbours that is the variance of each of them: if it
/// has another neighbour as well, and if not.
const OF_BOTH_NEIGHBOURS: f64 = 0.25;
const OF_ONLY_NEIGHBOUR: f64 = 0.5;

/// The observations of a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strata {
    /// Calls while the function was on.
    exact_calls: f64,
    exact_time: f64,
    exact_timed: f64,
    /// Calls before the function's probes were ready, and whether some may have been missed.
    early_calls: f64,
    is_interrupted: bool,
    /// Other calls that may have been missed.
    missed: f64,
    exact_ticks: f64,
    /// The weighted number of calls whose exits were missed; their time, half-way between its
    /// limits; half the distance between the limits; and the lower limits for the calls that
    /// represent only themselves.
    between: f64,
    between_ticks: f64,
    between_half: f64,
    between_least: f64,
    /// Whether there were calls of which it is not known how long they took at most.
    is_unlimited: bool,
    sampled: Sampled,
    gap_calls: f64,
    /// The length of all gaps, in nanoseconds.
    unobserved: f64,
    /// The sum of the standard deviations: the gaps of a function are assumed to be correlated.
    gap_deviation: f64,
}

/// The sums over sampled strata. Most functions of a program have none, and need no memory for
/// them.
#[derive(Clone, Debug, Default)]
struct Sampled(Option<Box<Sums>>);

/// Sums over sampled strata; calls and time are weighted.
#[derive(Clone, Debug)]
struct Sums {
    pending: VecDeque<Window>,
    /// The number of strata.
    windows: f64,
    calls: f64,
    timed: f64,
    ticks: f64,
    /// The number of calls that were observed in windows, unweighted.
    seen: f64,
    /// The time of all sampled strata, and of their windows.
    strata_time: f64,
    window_time: f64,
    largest_weight: f64,
    last: Option<Last>,
    differences: Differences,
    /// The sums of the squares of the strata's weighted calls and time.
    squared_calls: f64,
    squared_ticks: f64,
    /// The contribution of truncated windows and late calls to the variances.
    calls_variance: f64,
    ticks_variance: f64,
    calls_systematic: Systematic,
    ticks_systematic: Systematic,
    late: Late,
}

impl Sums {
    const NONE: Self = Self {
        pending: VecDeque::new(),
        windows: 0.0,
        calls: 0.0,
        timed: 0.0,
        ticks: 0.0,
        seen: 0.0,
        strata_time: 0.0,
        window_time: 0.0,
        largest_weight: 0.0,
        last: None,
        differences: Differences {
            calls: 0.0,
            calls_fourth: 0.0,
            ticks: 0.0,
            ticks_fourth: 0.0,
            products: 0.0,
        },
        squared_calls: 0.0,
        squared_ticks: 0.0,
        calls_variance: 0.0,
        ticks_variance: 0.0,
        calls_systematic: Systematic::NONE,
        ticks_systematic: Systematic::NONE,
        late: Late::NONE,
    };
}

impl Sampled {
    /// Whether there are no strata, and no memory for them.
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Deref for Sampled {
    type Target = Sums;

    fn deref(&self) -> &Sums {
        static NONE: Sums = Sums::NONE;
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Sampled {
    fn deref_mut(&mut self) -> &mut Sums {
        self.0.get_or_insert_with(|| Box::new(Sums::NONE))
    }
}

impl Strata {
    /// Adds calls that were counted while the function was on, for `time` nanoseconds.
    pub(crate) fn counted(&mut self, calls: u64, time: f64) {
        self.exact_calls += calls as f64;
        self.exact_time += time.max(0.0);
    }

    /// Adds calls that were counted before the function's probes were ready.
    pub(crate) fn counted_early(&mut self, calls: u64) {
        self.exact_calls += calls as f64;
        self.early_calls += calls as f64;
    }

    /// Records that early calls may have been missed while the probes were made: any number, if the
    /// function had been called until then. (A loop may have begun with that call.)
    pub(crate) fn interrupted(&mut self) {
        self.is_interrupted = true;
    }

    /// The number of calls that may have been missed.
    fn missed_calls(&self) -> f64 {
        if self.is_interrupted && self.early_calls > 0.0 { f64::INFINITY } else { self.missed }
    }

    /// Adds calls that were counted for a function without probes, which may have been called any
    /// number of times.
    pub(crate) fn counted_at_least(&mut self, calls: u64) {
        self.exact_calls += calls as f64;
        self.missed = f64::INFINITY;
    }

    /// Adds a number of calls of which any may have been calls of the function.
    pub(crate) fn missed(&mut self, calls: u64) {
        self.missed += calls as f64;
    }

    /// Adds a call that was timed while the function was on.
    pub(crate) fn timed(&mut self, ticks: f64) {
        self.exact_timed += 1.0;
        self.exact_ticks += ticks;
    }

    /// Adds a call whose exit was not seen, and whose time is between these limits: any time
    /// between them is possible, and those of several calls have the same cause. If it was observed
    /// in a window, it represents `weight` calls, otherwise only itself.
    pub(crate) fn timed_between(&mut self, weight: f64, least: f64, most: f64) {
        let middle = (least + most) / 2.0;
        self.between += weight;
        self.between_ticks += weight * middle;
        self.between_half += weight * (most - least) / 2.0;
        if weight > 1.0 {
            self.sampled.ticks_variance += weight * (weight - 1.0) * middle * middle;
        } else {
            self.between_least += least;
        }
    }

    /// Records that calls were counted of whose times nothing is known.
    pub(crate) fn took_any_time(&mut self) {
        self.is_unlimited = true;
    }

    /// Adds a gap of `length` nanoseconds, in which nothing was observed, after a rate of `rate`
    /// calls per nanosecond. The next window is compared with that rate.
    pub(crate) fn gap(&mut self, length: f64, rate: f64) {
        self.fold_all();
        self.end_series();
        // The time of these calls is unknown, so that of the next window is an outlier until other
        // windows agree with it.
        self.sampled.last = Some(Last { rates: [rate, 0.0], square: 0.0, difference: None });
        let most = length.max(0.0) * rate;
        self.unobserved += length.max(0.0);
        self.gap_calls += most / 2.0;
        self.gap_deviation += (most * most / 12.0 + most).sqrt();
    }

    /// Adds `length` nanoseconds in which nothing was observed because the run ended before the
    /// window opened. Unlike in a gap, there is no reason to expect fewer calls than before: the
    /// same rate is assumed, with an uncertainty of all these calls.
    pub(crate) fn unobserved(&mut self, length: f64, rate: f64) {
        let calls = length.max(0.0) * rate;
        self.unobserved += length.max(0.0);
        self.gap_calls += calls;
        self.gap_deviation += (calls * calls / 3.0 + calls).sqrt();
    }

    /// Removes the last window, which did not open.
    pub(crate) fn forget_last(&mut self) {
        self.sampled.pending.pop_back();
    }

    /// Corrects the last window, whose stratum was `length` nanoseconds long instead of its planned
    /// length, and therefore has another weight.
    pub(crate) fn resize_last(&mut self, length: f64, weight: f64) {
        if let Some(last) = self.sampled.pending.back_mut() {
            (last.length, last.weight) = (length, weight);
        }
    }

    fn fold_all(&mut self) {
        if self.sampled.is_empty() {
            return;
        }
        while let Some(window) = self.sampled.pending.pop_front() {
            self.fold(&window);
        }
    }

    /// Adds a window that opens.
    pub(crate) fn opened(&mut self, observation: u32, weight: f64, length: f64) {
        self.open(observation, weight, length, Counting::SameWindow);
    }

    /// Adds a window that opens and in which calls are only timed. They were counted in another
    /// window, in which each represents `weight` calls: see [`Strata::closed`].
    pub(crate) fn opened_apart(&mut self, observation: u32, weight: f64, length: f64) {
        self.open(observation, weight, length, Counting::SeparateWindow);
    }

    fn open(&mut self, observation: u32, weight: f64, length: f64, counting: Counting) {
        if self.sampled.pending.len() == PENDING
            && let Some(window) = self.sampled.pending.pop_front()
        {
            self.fold(&window);
        }
        let window = Window {
            observation,
            weight,
            length,
            entries: 0.0,
            timed: 0.0,
            ticks: 0.0,
            cut_off: 0.0,
            systematic: Systematic::NONE,
            counting,
            cold: 0.0,
            cold_ticks: 0.0,
        };
        self.sampled.pending.push_back(window);
    }

    /// Sets the counts of the last window: its entries, the calls that it may have missed at its
    /// end, and their systematic error.
    pub(crate) fn closed(&mut self, entries: u64, cut_off: f64, systematic: Systematic) {
        if let Some(window) = self.sampled.pending.back_mut() {
            window.systematic = systematic;
            window.entries = entries as f64;
            window.cut_off = cut_off;
        }
    }

    /// Adds a call that was timed in a window. `is_usual` says that its code was not just
    /// rewritten.
    pub(crate) fn timed_in_window(&mut self, observation: u32, weight: f64, ticks: f64, is_usual: bool) {
        match self.sampled.pending.iter_mut().find(|window| window.observation == observation) {
            Some(window) if window.counting == Counting::SeparateWindow && !is_usual => {
                window.cold += 1.0;
                window.cold_ticks += ticks;
            }
            Some(window) => {
                window.timed += 1.0;
                window.ticks += ticks;
            }
            None => {
                self.sampled.timed += weight;
                self.sampled.ticks += weight * ticks;
                self.sampled.squared_ticks += (weight * ticks).powi(2);
                self.sampled.ticks_variance += weight * (weight - 1.0) * ticks * ticks;
            }
        }
    }

    /// Adds a call that was timed in a patient window and would have been cut off in other windows
    /// ([`late`]).
    pub(crate) fn timed_late(&mut self, weight: f64, ticks: f64) {
        self.sampled.late.timed(weight, ticks);
    }

    /// Adds a call of a window that was cut off, whose time is between these limits.
    pub(crate) fn cut_off(&mut self, weight: f64, least: f64, most: f64) {
        self.sampled.late.cut_off(weight, least, most);
    }

    fn fold(&mut self, window: &Window) {
        let Window { weight, length, .. } = *window;
        let (calls, timed, ticks) = window.weighted();
        let rates = [calls / length, ticks / length];
        let difference = self.sampled.last.map(|last| {
            let part = match last.difference {
                Some((before, factor)) => {
                    self.sampled.differences.add(before, factor + OF_BOTH_NEIGHBOURS * last.square);
                    OF_BOTH_NEIGHBOURS
                }
                None => OF_ONLY_NEIGHBOUR,
            };
            ([0, 1].map(|index| rates[index] - last.rates[index]), part * last.square)
        });
        if window.cut_off > 0.0 {
            self.sampled.calls_variance += (weight * window.cut_off).powi(2) / 12.0 + calls * calls;
        }
        self.sampled.calls_systematic.add(window.systematic, calls);
        self.sampled.ticks_systematic.add(window.systematic, ticks);
        self.sampled.last = Some(Last { rates, square: length * length, difference });
        self.sampled.windows += 1.0;
        self.sampled.calls += calls;
        self.sampled.squared_calls += calls * calls;
        self.sampled.timed += timed;
        self.sampled.ticks += ticks;
        self.sampled.squared_ticks += ticks * ticks;
        self.sampled.seen += window.entries;
        self.sampled.strata_time += length;
        self.sampled.window_time += length / weight;
        self.sampled.largest_weight = self.sampled.largest_weight.max(weight);
    }

    /// The last stratum has no neighbour after it.
    fn end_series(&mut self) {
        if self.sampled.is_empty() {
            return;
        }
        if let Some(Last { square, difference: Some((difference, factor)), .. }) = self.sampled.last.take() {
            self.sampled.differences.add(difference, factor + OF_ONLY_NEIGHBOUR * square);
        }
    }

    /// A copy that includes all pending windows.
    pub(crate) fn finished(&self) -> Self {
        let mut finished = self.clone();
        finished.fold_all();
        finished.end_series();
        finished
    }

    /// The known time of all calls so far, in ticks.
    pub(crate) fn known_ticks(&self) -> f64 {
        self.known()[0] + self.between_ticks + self.sampled.late.all_ticks()
    }

    /// The mean time of the calls that were timed so far, in ticks; `None` if there are none.
    pub(crate) fn known_mean(&self) -> Option<f64> {
        let [ticks, timed] = self.known();
        (timed > 0.0).then(|| ticks / timed)
    }

    /// Whether calls that take at least this many ticks are not like those that were timed so far.
    pub(crate) fn are_unusual(&self, least: f64) -> bool {
        self.known_mean().is_none_or(|mean| least > mean)
    }

    /// The time and the number of the timed calls, including those of windows whose calls are still
    /// being collected.
    fn known(&self) -> [f64; 2] {
        self.sampled.pending.iter().map(Window::weighted).fold(
            [self.exact_ticks + self.sampled.ticks, self.exact_timed + self.sampled.timed],
            |[ticks, timed], (_, more_timed, more_ticks)| [ticks + more_ticks, timed + more_timed],
        )
    }

    /// Whether every call was counted.
    pub(crate) fn is_exact(&self) -> bool {
        self.sampled.windows == 0.0 && self.gap_calls == 0.0
    }

    /// The possible number of calls whose time is unknown, as a multiple of the timed calls. For
    /// finished strata; calls that have not returned represent `open` calls.
    pub(crate) fn unknown_part(&self, open: f64) -> f64 {
        let timed = self.exact_timed + self.sampled.timed;
        if self.is_hardly_observed() || timed <= 0.0 {
            return f64::INFINITY;
        }
        let counted = (self.exact_calls + self.sampled.calls - timed).max(open);
        // An estimate from windows is not exact, even if no call is missing.
        let least = if self.sampled.windows > 0.0 { f64::MIN_POSITIVE } else { 0.0 };
        ((counted + 2.0 * self.gap_calls) / timed).max(least)
    }

    /// The number of observed calls, unweighted.
    #[cfg(test)]
    pub(crate) fn observed(&self) -> f64 {
        self.exact_calls + self.sampled.seen
    }

    /// The number of windows, which are independent observations.
    pub(crate) fn windows(&self) -> f64 {
        self.sampled.windows
    }

    /// The estimated variance of a weighted sum, from the differences. With a single window, it is
    /// the square of the sum.
    fn variance(&self, differences: f64, sum: f64) -> f64 {
        if self.sampled.windows >= 2.0 { differences } else { sum * sum }
    }

    /// The degrees of freedom of a sum of squared differences: a third of their number if they are
    /// normally distributed, fewer if there are outliers.
    fn degrees(squares: f64, fourths: f64) -> f64 {
        if fourths > 0.0 { squares * squares / fourths } else { f64::INFINITY }
    }

    /// The number of calls. For finished strata.
    pub(crate) fn calls(&self) -> Estimate {
        let value = self.exact_calls + self.sampled.calls + self.gap_calls;
        if self.is_exact() {
            return limited(value, value, value + self.missed_calls(), value);
        }
        let weight = if self.sampled.window_time > 0.0 {
            self.sampled.strata_time / self.sampled.window_time
        } else {
            1.0
        };
        let poisson = self.sampled.seen * weight * (weight - 1.0).max(0.0);
        let between = self.variance(self.sampled.differences.calls, self.sampled.calls).max(poisson)
            + self.sampled.calls_variance;
        let degrees = Self::degrees(self.sampled.differences.calls, self.sampled.differences.calls_fourth);
        let error = (student(degrees).powi(2) * between + (1.96 * self.gap_deviation).powi(2)).sqrt();
        let systematic = self.sampled.calls_systematic;
        let sampled = lower_part(self.sampled.calls, self.sampled.squared_calls, between, student(degrees));
        let low = self.exact_calls + (sampled * self.sampled.calls - systematic.below).max(self.sampled.seen);
        let mut high = value + error + systematic.above + self.missed_calls();
        if self.sampled.windows > 0.0 && self.sampled.seen < 30.0 {
            high = high.max(
                self.exact_calls
                    + 2.0 * self.gap_calls
                    + most_for(self.sampled.seen) * self.sampled.largest_weight,
            );
        }
        let high = if self.is_hardly_observed() { f64::INFINITY } else { high };
        let skew = skew(self.sampled.calls, between, student(degrees));
        limited(value, value - error - systematic.below, high, low).skewed(skew)
    }

    /// Whether the observations are too few for an upper limit, so that estimates have only a lower
    /// limit.
    fn is_hardly_observed(&self) -> bool {
        let estimated_time = self.sampled.strata_time + self.unobserved;
        let is_mostly_exact = self.sampled.windows > 0.0
            && estimated_time < MOSTLY_EXACT * (estimated_time + self.exact_time)
            && self.sampled.calls + 2.0 * self.gap_calls < self.exact_calls;
        if is_mostly_exact {
            return false;
        }
        // Most of the time between two calls is that of probes.
        let is_too_fast = self.sampled.calls_systematic.above > TOO_FAST * self.sampled.calls;
        let has_long_gaps = self.unobserved > MAX_GAPS * (self.sampled.strata_time + self.unobserved)
            && self.unobserved > SHORT_GAP;
        is_too_fast
            || has_long_gaps
            || (self.sampled.windows > 0.0
                && self.sampled.windows < MIN_WINDOWS
                && self.sampled.strata_time > SHORT_GAP)
    }

    /// The time of all calls in ticks, and the mean; `None` if no call was timed. For finished
    /// strata. Calls that have not returned, which represent `open` calls, are not included.
    pub(crate) fn ticks(&self, open: f64) -> Option<Times> {
        let late = self.sampled.late.time();
        let timed = self.exact_timed + self.sampled.timed + self.between + late.calls;
        if timed <= 0.0 {
            return None;
        }
        let known = self.exact_ticks + self.sampled.ticks + self.between_ticks + late.ticks;
        let mean = known / timed;
        let is_complete = self.exact_timed + open >= self.exact_calls && self.missed_calls() == 0.0;
        if self.is_exact() && self.between == 0.0 && is_complete {
            return Some(Times { total: Estimate::exact(known), mean: Estimate::exact(mean) });
        }
        // Calls that were counted but not timed: in gaps, or whose exits were missed.
        let untimed = (self.exact_calls + self.sampled.calls - timed - open).max(0.0);
        let unknown = untimed + self.gap_calls;
        let unknown_variance = self.gap_deviation.powi(2) + untimed * untimed / 3.0;

        let Differences { calls, ticks, ticks_fourth, products, .. } = self.sampled.differences;
        let factor = student(Self::degrees(ticks, ticks_fourth)).powi(2);
        let of_total = self.variance(ticks, self.sampled.ticks) + self.sampled.ticks_variance;
        let value = known + unknown * mean;
        let error = (factor * of_total + 1.96_f64.powi(2) * mean * mean * unknown_variance).sqrt();
        let of_missed_exits = self.between_half + late.error;
        let error = error + of_missed_exits;
        let systematic = self.sampled.ticks_systematic;
        // Those that may have been missed are not in `unknown`.
        let unknown = match self.missed_calls() {
            _ if self.is_hardly_observed() || self.is_unlimited => f64::INFINITY,
            missed if missed > 0.0 => 2.0 * mean.max(0.0) * missed,
            _ => 0.0,
        };
        let sampled = lower_part(self.sampled.ticks, self.sampled.squared_ticks, of_total, factor.sqrt());
        let low = self.exact_ticks
            + self.between_least
            + (sampled * self.sampled.ticks - systematic.below).max(0.0);
        let high = value + error + systematic.above + unknown;
        let skew = skew(self.sampled.ticks, of_total, factor.sqrt());
        let total = limited(value, value - error - systematic.below, high, low).skewed(skew);

        let residual = (ticks - 2.0 * mean * products + mean * mean * calls).max(0.0);
        let of_mean = self.variance(residual, self.sampled.ticks) + self.sampled.ticks_variance;
        let of_unknown = mean * mean * unknown_variance;
        let error = ((factor * of_mean + 1.96_f64.powi(2) * of_unknown).sqrt() + of_missed_exits) / timed;
        // Windows that are too few for a number of calls are too few for a mean.
        let error = if self.is_hardly_observed() { f64::INFINITY } else { error };
        let most = if self.is_unlimited { f64::INFINITY } else { mean + error };
        Some(Times { total, mean: limited(mean, mean - error, most, 0.0) })
    }
}

/// The lower limit of an estimate, as a part of it: the estimate is the sum `sum` of independent
/// strata, whose squares add up to `squares`, with this variance and quantile of Student's
/// distribution.
///
/// It is the exponential of the lower limit of the logarithm of a log-normal variable; but not more
/// than the limit of a Poisson distribution for as many events as there are windows of equal size
/// with the same coefficient of variation (Kish, "Survey Sampling", 1965, section 11.2: the
/// effective number); and 0 if these are fewer than [`MIN_EFFECTIVE`].
fn lower_part(sum: f64, squares: f64, variance: f64, student: f64) -> f64 {
    let effective = if squares > 0.0 { sum * sum / squares } else { 0.0 };
    if effective < MIN_EFFECTIVE {
        return 0.0;
    }
    let of_logarithm = (-student * deviation_of_logarithm(sum, variance)).exp();
    of_logarithm.min(least_for(effective) / effective)
}

/// By how much the upper limit of a sum of strata exceeds that of a normal distribution: it is the
/// exponential of the upper limit of the logarithm. The arguments are those of [`lower_part`].
fn skew(sum: f64, variance: f64, student: f64) -> f64 {
    if sum <= 0.0 {
        return 0.0;
    }
    let of_logarithm = (student * deviation_of_logarithm(sum, variance)).exp();
    (sum * (of_logarithm - 1.0) - student * variance.sqrt()).max(0.0)
}

/// The standard deviation of the logarithm of a log-normal variable with this mean and variance.
fn deviation_of_logarithm(mean: f64, variance: f64) -> f64 {
    (1.0 + variance / (mean * mean)).ln().sqrt()
}

/// Times in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Times {
    pub(crate) total: Estimate,
    pub(crate) mean: Estimate,
}

/// An estimate whose lower limit is at least the observed value, and which has no upper limit if
/// its relative error exceeds 100%.
fn limited(value: f64, low: f64, high: f64, seen: f64) -> Estimate {
    let is_known = high - value <= value;
    Estimate { value, low: low.max(seen).min(value), high: is_known.then_some(high) }
}

impl Estimate {
    /// The same with a higher upper limit, if it has one.
    fn skewed(self, skew: f64) -> Self {
        Self { high: self.high.map(|high| high + skew), ..self }
    }
}

#[cfg(test)]
mod tests;
