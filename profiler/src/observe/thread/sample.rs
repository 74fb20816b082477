//! What a thread records about a call.

use crate::estimate::callers::Origin;

/// A timed call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) function: u32,
    /// The observation in which the call entered, and the number of calls that it represents; see
    /// [`crate::observe::measured`].
    pub(crate) observation: u32,
    pub(crate) weight: f32,
    /// By how much the duration may be below `ticks`, because the cost of the probes inside the
    /// call is not known exactly, or because the thread has both waited and been preempted.
    pub(crate) below: f32,
    pub(crate) origin: Origin,
    /// Duration of the call without preemption, in ticks; the maximum, if its exit was not seen, or
    /// [`Sample::ANY_TIME`].
    pub(crate) ticks: u64,
    /// Minimum duration of the call: equal to `ticks`, unless its exit was not seen.
    pub(crate) least: u64,
    /// Duration of preemption, in ticks.
    pub(crate) preempted: u64,
    /// By how much the duration may be above `ticks`, for the same reasons as `below`.
    pub(crate) above: f32,
    /// Whether the call, or a call inside it, was one of the first after a probe was activated.
    pub(crate) is_cold: bool,
    /// Whether the call represents calls that were cut off
    /// ([`crate::observe::function::Function::is_late`]), or was cut off itself.
    pub(crate) is_late: bool,
    /// Whether the call was left without an exit, by an exception for example.
    pub(crate) was_left: bool,
}

impl Sample {
    /// The maximum duration of a call of which nothing is known.
    pub(crate) const ANY_TIME: u64 = u64::MAX;
}

/// The duration of a call without probes and preemption, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Duration {
    pub(crate) ticks: u64,
    /// By how much it may be shorter or longer.
    pub(crate) below: u64,
    pub(crate) above: u64,
}

impl Duration {
    pub(crate) fn least(&self) -> u64 {
        self.ticks - self.below
    }
}

/// What is known of the time of a call without probes and preemption, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) least: u64,
    /// The time so far, or until the call was found to have ended.
    pub(crate) most: u64,
    /// An estimate of the same time, and its error.
    pub(crate) time: Duration,
    /// Whether the call was open when the exit period of its entry ended.
    pub(super) was_cut_off: bool,
}
