//! The measurements of a function that was called only a few times, as most functions of a large
//! program are: its calls, from which the [`Observed`] of other functions is made when it is
//! needed.

use super::{MIN_PREEMPTION, ON, Observed};
use crate::estimate::callers::{FunctionAt, Origin};
use crate::observe::thread::Sample;

/// Maximum number of calls.
const FEW: usize = 6;

/// A call that was timed while its function was on.
#[derive(Clone, Copy, Debug)]
struct Call {
    origin: Origin,
    ticks: u32,
    /// How much shorter or longer it may have been.
    error: f32,
}

/// The calls of a function that was never observed in windows.
#[derive(Debug, Default)]
pub(super) struct Few {
    calls: Box<[Call]>,
    /// See [`crate::estimate::strata::Strata::counted_early`] and
    /// [`crate::estimate::strata::Strata::interrupted`].
    early: u32,
    is_interrupted: bool,
}

impl Few {
    /// Adds a call. Returns false, and does nothing, if there are too many, or if this one has more
    /// facts than are kept here.
    pub(super) fn sample(&mut self, sample: &Sample) -> bool {
        let Ok(ticks) = u32::try_from(sample.ticks) else { return false };
        let is_usual = sample.weight == ON
            && sample.least >= sample.ticks
            && sample.preempted < MIN_PREEMPTION
            && sample.below == sample.above
            && !sample.is_cold
            && !sample.is_late;
        if !is_usual || self.calls.len() == FEW {
            return false;
        }
        let call = Call { origin: sample.origin, ticks, error: sample.below };
        self.calls = self.calls.iter().copied().chain([call]).collect();
        true
    }

    /// Adds calls that were counted before the probes were ready. Returns false, and does nothing,
    /// if they are too many.
    pub(super) fn counted_early(&mut self, calls: u64) -> bool {
        let sum = u32::try_from(calls).ok().and_then(|calls| self.early.checked_add(calls));
        self.early = sum.unwrap_or(self.early);
        sum.is_some()
    }

    /// See [`crate::estimate::callers::Callers::settle`].
    pub(super) fn settle(&mut self, function_at: &FunctionAt<'_>) {
        self.calls.iter_mut().for_each(|call| call.origin = call.origin.settled(function_at));
    }

    pub(super) fn interrupted(&mut self) {
        self.is_interrupted = true;
    }

    /// The number of timed calls.
    pub(super) fn samples(&self) -> u64 {
        self.calls.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.early == 0 && !self.is_interrupted
    }

    /// Heap memory, in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.calls)
    }

    /// The same measurements in their general form; `empty` is the latency of an empty function, in
    /// ticks, which is subtracted.
    pub(super) fn observed(&self, empty: f64) -> Observed {
        let mut observed = Observed::default();
        if self.early > 0 {
            observed.strata.counted_early(self.early.into());
        }
        if self.is_interrupted {
            observed.strata.interrupted();
        }
        for &Call { origin, ticks, error } in &self.calls {
            let ticks = ticks.into();
            let sample = Sample {
                weight: ON,
                origin,
                ticks,
                least: ticks,
                below: error,
                above: error,
                ..Sample::default()
            };
            observed.sample(&sample, empty, FEW);
        }
        observed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal if all figures are.
    fn figures(observed: &Observed) -> String {
        format!("{observed:?}")
    }

    #[test]
    fn a_few_calls_give_the_same_figures_as_if_each_were_added_at_once() {
        let (mut few, mut expected) = (Few::default(), Observed::default());
        assert!(few.is_empty() && few.counted_early(2));
        few.interrupted();
        expected.strata.counted_early(2);
        expected.strata.interrupted();
        for number in 1..=FEW as u64 {
            let ticks = 1000 * number;
            let (origin, below) = (Origin { return_address: number as usize % 2, probe: 7 }, number as f32);
            let sample = Sample { origin, ticks, least: ticks, below, above: below, ..Sample::default() };
            assert!(few.sample(&sample));
            expected.sample(&sample, 7.5, 100);
        }
        assert_eq!(figures(&few.observed(7.5)), figures(&expected));
        assert_eq!(few.samples(), FEW as u64);
        assert!(!few.sample(&Sample::default()), "there is no room for another one");
    }

    #[test]
    fn calls_with_more_facts_are_refused() {
        let usual = Sample { ticks: 100, least: 100, ..Sample::default() };
        let refused = [
            Sample { weight: 10.0, ..usual },
            Sample { least: 50, ..usual },
            Sample { preempted: MIN_PREEMPTION, ..usual },
            Sample { below: 1e6, ..usual },
            Sample { ticks: 1 << 32, least: 1 << 32, ..usual },
            Sample { is_cold: true, ..usual },
            Sample { is_late: true, ..usual },
        ];
        let mut few = Few::default();
        assert!(refused.iter().all(|sample| !few.sample(sample)) && few.is_empty());
        assert!(few.sample(&usual) && !few.is_empty());
        assert!(few.counted_early(u32::MAX.into()) && !few.counted_early(1));
    }
}
