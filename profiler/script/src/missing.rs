//! Calls for which there are no events.

use std::collections::BTreeMap;

use fastinst::provider::EarlyCalls;

/// Calls for which there are no events, since the observation of the process began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Missing {
    /// The numbers of calls that were made before the probes of their functions were ready, by
    /// function.
    pub(crate) early: BTreeMap<u32, u64>,
    /// The number of such calls whose functions are not known.
    pub(crate) unassigned: u64,
    /// The numbers of interruptions of counting, by function: each hides an unknown number of
    /// calls.
    pub(crate) interrupted: BTreeMap<u32, u64>,
    /// The number of interruptions for functions that are not known.
    pub(crate) unassigned_interrupted: u64,
    /// The number of events for which there was no room.
    pub(crate) lost: u64,
}

impl Missing {
    /// Adds calls to a function, or to one that is not known.
    pub(crate) fn add(&mut self, function: Option<u32>, calls: &EarlyCalls) {
        match (function, calls) {
            (Some(function), EarlyCalls::Counted(calls)) => *self.early.entry(function).or_default() += calls,
            (None, EarlyCalls::Counted(calls)) | (_, EarlyCalls::OfUnloaded(calls)) => {
                self.unassigned += calls
            }
            (Some(function), EarlyCalls::Interrupted) => *self.interrupted.entry(function).or_default() += 1,
            (None, EarlyCalls::Interrupted) => self.unassigned_interrupted += 1,
        }
    }

    /// Adds the calls of another value to this one.
    pub(crate) fn extend(&mut self, others: Self) {
        for (function, calls) in others.early {
            *self.early.entry(function).or_default() += calls;
        }
        for (function, times) in others.interrupted {
            *self.interrupted.entry(function).or_default() += times;
        }
        self.unassigned += others.unassigned;
        self.unassigned_interrupted += others.unassigned_interrupted;
        self.lost += others.lost;
    }

    /// The calls that were added since `before` was copied.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let by_function = |now: &BTreeMap<u32, u64>, before: &BTreeMap<u32, u64>| {
            let since = now
                .iter()
                .map(|(function, now)| (*function, now - before.get(function).copied().unwrap_or_default()));
            since.filter(|(_, number)| *number > 0).collect()
        };
        Self {
            early: by_function(&self.early, &before.early),
            unassigned: self.unassigned - before.unassigned,
            interrupted: by_function(&self.interrupted, &before.interrupted),
            unassigned_interrupted: self.unassigned_interrupted - before.unassigned_interrupted,
            lost: self.lost - before.lost,
        }
    }
}
