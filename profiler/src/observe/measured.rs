//! The measurements of one function, and the corresponding row of the report.

mod few;

use std::ffi::{CStr, c_char};
use std::ops::Deref;
use std::ptr::NonNull;

use self::few::Few;
use crate::estimate::callers::{Callers, FunctionAt};
use crate::estimate::quantiles::Quantiles;
use crate::estimate::strata::{Strata, Systematic, Times};
use crate::observe::counting::Count;
use crate::observe::fire;
use crate::observe::function::PATIENT;
use crate::observe::policy::Pace;
use crate::observe::thread::Sample;
use crate::report::{Estimate, FunctionReport, Latency, OffCpu};

/// The weight of a sample that was taken while the function was on: the sample represents only
/// itself.
pub(crate) const ON: f32 = 0.0;

/// Number of samples in a group, for the intervals of percentiles of a function that was on.
const GROUP: u32 = 8;

/// Set in the numbers of groups of samples that were taken while the function was on.
const ON_GROUP: u32 = 1 << 31;

/// The percentiles of the report.
const SHARES: [f64; 3] = [0.5, 0.9, 0.99];

/// A call of at least this many ticks, a few tens of microseconds, is not noticeably longer because
/// of rewritten code.
const LONG: u64 = 100_000;

/// A preemption shorter than this, in ticks, is within the error of the kernel's figures, which is
/// a few microseconds.
const MIN_PREEMPTION: u64 = 10_000;

/// The current state of a function's observation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Stage {
    /// No observation yet.
    #[default]
    Off,
    /// The function is turned on as soon as no thread is deactivating its probes.
    Waiting(Unobserved),
    /// The function has been on since this number of nanoseconds after the start. Its calls are not
    /// in the strata yet.
    On { since: f64 },
    /// A window is scheduled.
    Planned(crate::observe::policy::Planned),
    /// A window is, or was, open in a stratum that is not over.
    Open(crate::observe::policy::Open),
    /// The function's calls were counted in a stratum that is not over.
    Counted(CountedStratum),
}

impl Stage {
    /// Whether the function is observed in windows.
    pub(crate) fn is_sampled(&self) -> bool {
        match self {
            Stage::Off | Stage::Waiting(_) | Stage::On { .. } => false,
            Stage::Planned(_) | Stage::Open(_) | Stage::Counted(_) => true,
        }
    }
}

/// A period in which nothing is observed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unobserved {
    /// The beginning, in nanoseconds after the start.
    pub(crate) since: f64,
    /// The rate before, in calls per nanosecond.
    pub(crate) rate: f64,
}

/// A stratum in which calls were counted. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedStratum {
    pub(crate) start: f64,
    pub(crate) count: Count,
    /// [`counting::own_time`](crate::observe::counting::own_time) when the stratum began.
    pub(crate) own_time: f64,
}

/// Whether the filter selects a function; the filter may be changed while the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Selected since its probes were made.
    #[default]
    Always,
    /// Selected now, but not all the time.
    Partly,
    /// No longer selected.
    Excluded,
}

/// A string that lives as long as the process, in one word.
#[derive(Clone, Copy, Debug)]
struct Text(NonNull<c_char>);

// SAFETY: it is only read.
unsafe impl Send for Text {}

impl Text {
    fn new(text: &'static CStr) -> Self {
        Self(NonNull::from(text).cast())
    }

    fn get(self) -> &'static CStr {
        // SAFETY: the pointer of a string that is never freed or changed.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }
    }
}

/// There may be a million functions.
const _: () = assert!(size_of::<Measured>() <= 88);

/// The measurements of one function.
pub(crate) struct Measured {
    name: Text,
    object: Text,
    /// The function's address in its object.
    pub(crate) address: usize,
    /// The number of the function's probes.
    pub(crate) probes: u32,
    pub(crate) selection: Selection,
    stage: ShortStage,
    observations: Observations,
}

/// A [`Stage`] in less memory: most functions of a large program stay on, or have no probes.
#[derive(Clone, Copy, Debug)]
enum ShortStage {
    Off,
    On {
        since: f64,
    },
    /// [`Observed::stage`]
    InObserved,
}

/// The observations of a function. Most functions of a large program are not called, or called only
/// a few times.
#[derive(Debug)]
enum Observations {
    Few(Few),
    Many(Box<Observed>),
}

/// The observations of a function, for reading.
#[derive(Debug)]
pub(crate) enum ObservedRef<'a> {
    Kept(&'a Observed),
    Made(Box<Observed>),
}

impl Deref for ObservedRef<'_> {
    type Target = Observed;

    fn deref(&self) -> &Observed {
        match self {
            ObservedRef::Kept(observed) => observed,
            ObservedRef::Made(observed) => observed,
        }
    }
}

/// The observations of a function.
#[derive(Debug)]
pub(crate) struct Observed {
    /// The stage of a function that is not just on or off.
    stage: Stage,
    pub(crate) pace: Pace,
    /// The value of observing the function when its last window was planned; `None` if no call had
    /// been timed.
    pub(crate) value: Option<f64>,
    pub(crate) strata: Strata,
    pub(crate) callers: Callers,
    quantiles: Quantiles,
    /// Samples of calls that were slowed down by rewritten code, used only if there are no others.
    cold: Quantiles,
    samples: u64,
    on_samples: u32,
    min: f64,
    max: f64,
    preempted: u64,
    preempted_ticks: u64,
    /// The sums of the times and errors of the samples, weighted.
    timed: f64,
    below: f64,
    above: f64,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            stage: Stage::Off,
            pace: Pace::new(0.0, None),
            value: None,
            strata: Strata::default(),
            callers: Callers::default(),
            quantiles: Quantiles::default(),
            cold: Quantiles::default(),
            samples: 0,
            on_samples: 0,
            min: f64::INFINITY,
            max: 0.0,
            preempted: 0,
            preempted_ticks: 0,
            timed: 0.0,
            below: 0.0,
            above: 0.0,
        }
    }
}

/// Factors for the units of the report: ticks per nanosecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    pub(crate) ticks_per_ns: f64,
    /// The measured latency of a call to an empty function, in ticks.
    pub(crate) resolution: u64,
    /// The thread time that the report covers, in nanoseconds.
    pub(crate) thread_time: f64,
}

/// Calls to a function that have not returned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenCalls {
    pub(crate) number: u64,
    /// The number of calls, weighted.
    pub(crate) weighted: f64,
    /// The calls' time so far, weighted, in ticks; and the same for the outermost call of each
    /// thread.
    pub(crate) ticks: f64,
    /// By how much `ticks` may be too high or too low: see [`crate::observe::thread::Limits`].
    pub(crate) below: f64,
    pub(crate) above: f64,
    /// Calls that may or may not have returned.
    pub(crate) missed: Missed,
}

/// The weighted number of calls whose exits were missed, and their time, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missed {
    pub(crate) calls: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Missed {
    /// The mean time, half-way between the limits, if there are such calls.
    fn mean(&self) -> impl Iterator<Item = f64> {
        (self.calls > 0.0).then(|| (self.least + self.most) / 2.0 / self.calls).into_iter()
    }

    /// What one of the calls took at least, if there are such calls.
    fn least_mean(&self) -> impl Iterator<Item = f64> {
        (self.calls > 0.0).then(|| self.least / self.calls).into_iter()
    }
}

impl Measured {
    pub(crate) fn new(name: &'static CStr, object: &'static CStr, address: usize) -> Self {
        Self {
            name: Text::new(name),
            object: Text::new(object),
            address,
            probes: 0,
            selection: Selection::default(),
            stage: ShortStage::Off,
            observations: Observations::Few(Few::default()),
        }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        self.name.get()
    }

    /// The path of the function's object.
    pub(crate) fn object(&self) -> &'static CStr {
        self.object.get()
    }

    /// Resets everything that was measured.
    pub(crate) fn forget(&mut self) {
        let selection = match self.selection {
            Selection::Always | Selection::Partly => Selection::Always,
            Selection::Excluded => Selection::Excluded,
        };
        let new = Self::new(self.name(), self.object(), self.address);
        *self = Self { probes: self.probes, selection, ..new };
    }

    /// The current state of the observation.
    pub(crate) fn stage(&self) -> Stage {
        match (self.stage, &self.observations) {
            (ShortStage::On { since }, _) => Stage::On { since },
            (ShortStage::InObserved, Observations::Many(observed)) => observed.stage,
            (ShortStage::Off | ShortStage::InObserved, _) => Stage::Off,
        }
    }

    pub(crate) fn set_stage(&mut self, stage: Stage) {
        self.stage = match stage {
            Stage::Off => ShortStage::Off,
            Stage::On { since } => ShortStage::On { since },
            Stage::Waiting(_) | Stage::Planned(_) | Stage::Open(_) | Stage::Counted(_) => {
                self.observed_mut().stage = stage;
                ShortStage::InObserved
            }
        };
    }

    /// The observations.
    pub(crate) fn observed(&self) -> ObservedRef<'_> {
        match &self.observations {
            Observations::Few(few) => ObservedRef::Made(Box::new(few.observed(fire::empty()))),
            Observations::Many(observed) => ObservedRef::Kept(observed),
        }
    }

    /// Whether there are any observations.
    pub(crate) fn is_observed(&self) -> bool {
        match &self.observations {
            Observations::Few(few) => !few.is_empty(),
            Observations::Many(_) => true,
        }
    }

    /// As [`Measured::observed`], for adding any kind of observations.
    pub(crate) fn observed_mut(&mut self) -> &mut Observed {
        if let Observations::Few(few) = &self.observations {
            self.observations = Observations::Many(Box::new(few.observed(fire::empty())));
        }
        match &mut self.observations {
            Observations::Many(observed) => observed,
            Observations::Few(_) => unreachable!("they were replaced"),
        }
    }

    /// Adds a call that has returned: see [`Observed::sample`].
    pub(crate) fn sample(&mut self, sample: &Sample, empty: f64, kept: usize) {
        if let Observations::Few(few) = &mut self.observations
            && few.sample(sample)
        {
            return;
        }
        self.observed_mut().sample(sample, empty, kept);
    }

    /// Adds calls that were counted before the function's probes were ready, of which some may have
    /// been missed.
    pub(crate) fn counted_early(&mut self, calls: u64, is_interrupted: bool) {
        if let Observations::Few(few) = &mut self.observations
            && few.counted_early(calls)
        {
            if is_interrupted {
                few.interrupted();
            }
            return;
        }
        let strata = &mut self.observed_mut().strata;
        strata.counted_early(calls);
        if is_interrupted {
            strata.interrupted();
        }
    }

    /// Replaces callers in an unloaded library by its functions.
    pub(crate) fn settle(&mut self, function_at: &FunctionAt<'_>) {
        match &mut self.observations {
            Observations::Few(few) => few.settle(function_at),
            Observations::Many(observed) => observed.callers.settle(function_at),
        }
    }

    /// The number of timed calls.
    pub(crate) fn samples(&self) -> u64 {
        match &self.observations {
            Observations::Few(few) => few.samples(),
            Observations::Many(observed) => observed.samples,
        }
    }

    /// Heap memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        match &self.observations {
            Observations::Few(few) => few.memory(),
            Observations::Many(observed) => size_of::<Observed>() + observed.memory(),
        }
    }

    /// The row of the report, including calls counted since the strata were last filled; `None` if
    /// the function was not called. `observed` are its observations, and `strata` the finished
    /// ones.
    pub(crate) fn report(
        &self,
        observed: &Observed,
        strata: &Strata,
        open: &OpenCalls,
        units: &Units,
    ) -> Option<FunctionReport> {
        let calls = strata.calls();
        if calls.value <= 0.0 && observed.samples == 0 {
            return None;
        }
        let overlap = OVERLAP * units.resolution as f64;
        let times = strata.ticks(open.weighted).map(|Times { total, mean }| Times {
            total: widened(total, observed.error_of(total.value, calls.value * overlap)),
            mean: widened(mean, observed.error_of(mean.value, overlap)),
        });
        let unknown = strata.unknown_part(open.weighted);
        let open_ns = open.ticks / units.ticks_per_ns;
        let total = times.map(|times| times.total.scaled(1.0 / units.ticks_per_ns)).map(|total| Estimate {
            value: total.value + open_ns,
            low: total.low + open_ns,
            high: total.high.map(|high| high + open_ns),
        });
        // Open calls have taken some time, even if nothing is known of other calls.
        let total = total.or((open.number > 0).then(|| Estimate::at_least(open_ns)));
        // Whatever the calls took, the program's threads did not live longer.
        let total = total.or(Some(Estimate::within(0.0, 0.0, units.thread_time)));
        let [below, above] = [open.below, open.above].map(|ticks| ticks / units.ticks_per_ns);
        let total = total.map(|total| widened(total, Systematic { below, above }));
        Some(FunctionReport {
            name: self.name().to_string_lossy().into_owned(),
            object: self.object().to_string_lossy().into_owned(),
            address: self.address as u64,
            location: None,
            samples: observed.samples,
            // Timed calls were made, even if the run ended in the middle of a window.
            calls: Estimate {
                value: calls.value.round().max(observed.samples as f64),
                low: calls.low.floor().max(observed.samples as f64),
                high: calls.high.map(|high| high.ceil().max(observed.samples as f64)),
            },
            total_ns: total,
            self_ns: None,
            recursive: false,
            open_calls: open.number,
            latency_ns: times.and_then(|times| observed.latency(&times, &open.missed, unknown, units)),
            off_cpu: crate::observe::preemption::is_available().then(|| OffCpu {
                samples: observed.preempted,
                ns: (observed.preempted_ticks as f64 / units.ticks_per_ns) as u64,
            }),
        })
    }
}

/// The uncertainty of each call, as a part of the clock's resolution: the processor may overlap the
/// call with the two readings of the clock more or less than it does for an empty call.
const OVERLAP: f64 = 0.5;

/// Widens an estimate by a systematic error in the same unit, if the error is at least half a
/// percent of the estimate. As everywhere, there is no upper limit if the error would exceed 100 %.
fn widened(estimate: Estimate, by: Systematic) -> Estimate {
    let value = estimate.value.max(0.0);
    if by.below.max(by.above) <= 0.005 * value {
        return estimate;
    }
    let high = estimate.high.map(|high| high + by.above).filter(|high| high - value <= value);
    Estimate { value, low: (estimate.low - by.below).max(0.0), high }
}

/// Percentiles, the lowest first, made consistent: a higher one is at least as long as a lower one,
/// so lower limits are carried upwards, and upper limits downwards.
fn ordered<const N: usize>(mut percentiles: [Estimate; N]) -> [Estimate; N] {
    for at in 1..N {
        percentiles[at].low = percentiles[at].low.max(percentiles[at - 1].low);
    }
    for at in (1..N).rev() {
        let most = percentiles[at].high;
        let below = &mut percentiles[at - 1];
        below.high = below.high.into_iter().chain(most).reduce(f64::min);
    }
    percentiles
}

impl Observed {
    /// Adds a call that has returned. `empty` is the mean measured time of a call to an empty
    /// function. At most `kept` samples are kept for the percentiles.
    pub(crate) fn sample(&mut self, sample: &Sample, empty: f64, kept: usize) {
        if sample.least < sample.ticks {
            return self.unseen_exit(sample);
        }
        // Below zero if the clock has not advanced, or by less than usual: such times are part of
        // the mean, which would be too large without them.
        let (ticks, weight) = (sample.ticks as f64 - empty, f64::from(sample.weight));
        let seen = ticks.max(0.0);
        self.samples += 1;
        self.timed += weight.max(1.0) * seen;
        self.below += weight.max(1.0) * f64::from(sample.below);
        self.above += weight.max(1.0) * f64::from(sample.above);
        self.min = self.min.min(seen);
        self.max = self.max.max(seen);
        if sample.preempted >= MIN_PREEMPTION {
            self.preempted += 1;
            self.preempted_ticks += sample.preempted;
        }
        // A call during which probes were activated takes longer than usual, but the difference is
        // not significant for a long call.
        let is_usual = !sample.is_cold || sample.ticks > LONG;
        if sample.weight == ON {
            self.strata.timed(ticks);
            self.callers.call(sample.origin, 1.0, ticks);
            self.on_samples = self.on_samples.wrapping_add(1);
            let group = ON_GROUP | (self.on_samples / GROUP);
            self.percentiles(is_usual).add(group, seen, 1.0, kept);
        } else {
            let group = sample.observation & !ON_GROUP;
            self.callers.call(sample.origin, weight, ticks * weight);
            if sample.is_late {
                self.strata.timed_late(weight, ticks);
                // Calls that were cut off have no percentiles.
                self.quantiles.add(group, seen, weight * f64::from(PATIENT), kept);
            } else {
                self.strata.timed_in_window(sample.observation, weight, ticks, is_usual);
                self.percentiles(is_usual).add(group, seen, weight, kept);
            }
        }
    }

    /// Adds a call whose exit was not seen. If the exit was missed, and the call is not known to be
    /// longer than others, it counts as a call that was counted and not timed.
    fn unseen_exit(&mut self, sample: &Sample) {
        let (least, most) = (sample.least as f64, sample.ticks as f64);
        let weight = f64::from(sample.weight).max(1.0);
        if sample.ticks == Sample::ANY_TIME {
            return self.strata.took_any_time();
        }
        if sample.is_late && sample.weight != ON {
            self.strata.cut_off(weight, least, most);
        } else if sample.was_left || self.strata.are_unusual(least) {
            self.strata.timed_between(weight, least, most);
        } else {
            return;
        }
        let middle = least.midpoint(most);
        self.callers.call(sample.origin, weight, weight * middle);
        self.min = self.min.min(middle);
        self.max = self.max.max(least);
    }

    fn percentiles(&mut self, is_usual: bool) -> &mut Quantiles {
        if is_usual { &mut self.quantiles } else { &mut self.cold }
    }

    /// The systematic error of a time of calls, in ticks: the same part of it as that of all timed
    /// calls is of theirs, and the error by the clock.
    fn error_of(&self, ticks: f64, of_clock: f64) -> Systematic {
        let part = |error: f64| if self.timed > 0.0 { error / self.timed } else { 0.0 };
        let [below, above] = [self.below, self.above].map(|error| of_clock + part(error) * ticks);
        Systematic { below, above }
    }

    /// The memory of the parts with variable size, in bytes.
    fn memory(&self) -> usize {
        self.quantiles.memory() + self.cold.memory() + self.callers.memory()
    }

    /// The latency; `unknown` is the number of calls about which nothing is known, relative to the
    /// timed ones.
    fn latency(&self, times: &Times, missed: &Missed, unknown: f64, units: &Units) -> Option<Latency> {
        let ns = |ticks: f64| ticks / units.ticks_per_ns;
        let estimate = |estimate: Estimate| estimate.scaled(1.0 / units.ticks_per_ns);
        // They are stored with lower precision.
        let seen = |ticks: f64| ticks.clamp(self.min, self.max);
        let percentiles = self
            .quantiles
            .at(SHARES, if self.cold.memory() > 0 { unknown.max(f64::MIN_POSITIVE) } else { unknown })
            .or_else(|| self.cold.at(SHARES, unknown))?
            .map(|quantile| Estimate {
                value: seen(quantile.value),
                low: seen(quantile.low),
                high: quantile.high.map(seen),
            })
            .map(|quantile| {
                widened(quantile, self.error_of(quantile.value, OVERLAP * units.resolution as f64))
            });
        let [p50, p90, p99] = ordered(percentiles);
        // Two readings of the clock cannot resolve a time shorter than that between them for an
        // empty call.
        let resolution = units.resolution.max(1) as f64;
        let max = missed.least_mean().fold(self.max, f64::max);
        // Calls that were not timed may have been longer.
        let of_timed = Estimate {
            value: times.mean.value.min(max),
            low: times.mean.low.min(max),
            high: times.mean.high,
        };
        Some(Latency {
            min: ns(missed.mean().fold(self.min, f64::min)),
            mean: estimate(of_timed),
            p50: estimate(p50),
            p90: estimate(p90),
            p99: estimate(p99),
            max: ns(max),
            below_resolution: p50.value < resolution,
            resolution: ns(resolution),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that advances in steps of 26 ticks shows calls of 5 ticks beyond an empty call,
    /// which takes 13, as 0 or 26.
    #[test]
    fn times_below_the_steps_of_the_clock_have_the_right_mean() {
        let mut observed = Observed::default();
        for at in 0..2600_u64 {
            let step = |now: u64| now / 26 * 26;
            let ticks = step(at + 18) - step(at);
            observed.sample(&Sample { least: ticks, ticks, ..Sample::default() }, 13.0, 100);
        }
        let mean = observed.strata.known_mean().expect("calls were timed");
        assert!((mean - 5.0).abs() < 0.01, "{mean}");
        assert_eq!((observed.min, observed.max), (0.0, 13.0));
    }

    #[test]
    fn what_the_processor_overlaps_is_part_of_the_error_of_short_times() {
        let within = Estimate::within;
        assert_eq!(widened(within(30.0, 28.0, 32.0), Systematic::of_both(13.0)), within(30.0, 15.0, 45.0));
        let negative = Estimate { value: -3.0, low: -5.0, high: None };
        assert_eq!(
            widened(negative, Systematic::of_both(13.0)),
            Estimate { value: 0.0, low: 0.0, high: None }
        );
        assert_eq!(widened(Estimate::exact(10_000.0), Systematic::of_both(13.0)), Estimate::exact(10_000.0));
    }

    /// The upper ones have fewer samples to be estimated from.
    #[test]
    fn percentiles_are_in_order() {
        let at_least = |value, low| Estimate { value, low, high: None };
        let before = [at_least(40.0, 34.0), at_least(50.0, 18.0), Estimate::within(90.0, 60.0, 95.0)];
        let expected = [
            Estimate::within(40.0, 34.0, 95.0),
            Estimate::within(50.0, 34.0, 95.0),
            Estimate::within(90.0, 60.0, 95.0),
        ];
        assert_eq!(ordered(before), expected);
        assert_eq!(ordered(expected), expected);
        let open = [Estimate::within(40.0, 34.0, 44.0), at_least(50.0, 36.0)];
        assert_eq!(ordered(open), open);
    }

    /// Two calls of 10 ms have waited, and were preempted; how long each is known for both
    /// together.
    #[test]
    fn calls_in_which_a_thread_waited_and_was_preempted_have_an_interval() {
        let mut observed = Observed::default();
        let sample =
            Sample { ticks: 14_000, least: 14_000, below: 4000.0, above: 7000.0, ..Sample::default() };
        observed.strata.counted(2, 0.0);
        (0..2).for_each(|_| observed.sample(&sample, 0.0, 100));
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e9 };
        let times = observed.strata.ticks(0.0).expect("calls were timed");
        let error = observed.error_of(times.total.value, 0.0);
        assert_eq!(widened(times.total, error), Estimate::within(28_000.0, 20_000.0, 42_000.0));
        let latency = observed.latency(&times, &Missed::default(), 0.0, &units).expect("calls were timed");
        assert!(latency.p50.low <= 10_000.0 && latency.p50.high >= Some(21_000.0), "{:?}", latency.p50);
    }

    #[test]
    fn calls_whose_exits_were_missed_count_if_they_are_longer_than_others() {
        let mut observed = Observed::default();
        let sample = |least, ticks| Sample { least, ticks, ..Sample::default() };
        (0..3).for_each(|_| observed.sample(&sample(10, 10), 0.0, 100));
        observed.sample(&sample(5, 3000), 0.0, 100);
        assert_eq!((observed.max, observed.strata.known_ticks()), (10.0, 30.0));
        observed.sample(&sample(1000, 3000), 0.0, 100);
        assert_eq!((observed.min, observed.max, observed.samples), (10.0, 1000.0, 3));
        assert_eq!(observed.strata.known_ticks(), 2030.0);
    }

    /// Some calls were left by exceptions: two of them at once, one perhaps after a long time, and
    /// one on a stack of its own.
    #[test]
    fn calls_that_were_left_may_have_been_longer_than_others() {
        let mut observed = Observed::default();
        (0..3).for_each(|_| observed.sample(&Sample { least: 10, ticks: 10, ..Sample::default() }, 0.0, 100));
        let left = |ticks| Sample { ticks, was_left: true, ..Sample::default() };
        observed.strata.counted(6, 0.0);
        (0..2).for_each(|_| observed.sample(&left(8), 0.0, 100));
        observed.sample(&left(5000), 0.0, 100);
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e9 };
        let total = |observed: &Observed| observed.strata.ticks(0.0).expect("calls were timed").total;
        let Estimate { low, high, .. } = total(&observed);
        assert_eq!((low, high), (30.0, Some(5046.0)));
        let times = observed.strata.ticks(0.0).expect("calls were timed");
        let latency = observed.latency(&times, &Missed::default(), 1.0, &units).expect("calls were timed");
        assert_eq!((latency.mean.value, latency.max), (10.0, 10.0), "of those that were timed");
        assert!(latency.mean.high > Some(700.0), "{:?}", latency.mean);
        observed.sample(&left(Sample::ANY_TIME), 0.0, 100);
        assert_eq!(total(&observed).high, None);
    }

    /// A window has a usual call and one that was cut off. Patient windows have timed similar ones.
    #[test]
    fn late_calls_stand_for_those_that_were_cut_off() {
        let mut observed = Observed::default();
        let usual = Sample { weight: 10.0, least: 100, ticks: 100, ..Sample::default() };
        observed.strata.opened(0, 10.0, 1e6);
        observed.strata.closed(100, 0.0, Systematic::NONE);
        (0..100).for_each(|_| observed.sample(&usual, 0.0, 1000));
        let late = Sample { least: 5000, ticks: 5000, is_late: true, ..usual };
        (0..4).for_each(|_| observed.sample(&late, 0.0, 1000));
        let cut_off = Sample { least: 50, ticks: 90_000, is_late: true, ..usual };
        (0..6).for_each(|_| observed.sample(&cut_off, 0.0, 1000));
        let ticks = observed.strata.finished().ticks(0.0).expect("calls were timed");
        assert_eq!(ticks.total.value, 1000.0 * 100.0 + 100.0 * 5000.0);
        assert_eq!(observed.samples, 104);
    }
}
