//! The beginning of a wait, by the time-stamp counters of the processors that look at it.
//!
//! Counters of two processors are never compared: the kernel may give the counter up as its clock
//! while the process runs, because they differ. A wait that is looked at on another processor than
//! before begins there. Threads may take turns in looking at it, so the beginning is known for
//! several processors.

use crate::tsc::Moment;

/// How far, in ticks, the counter may lie behind its value at the beginning of a wait before the
/// wait begins again: if processors cannot be distinguished, another one may have begun it. Much
/// more than the counters differ on any machine whose kernel uses them as its clock.
pub(crate) const MAX_SKEW: u64 = 10_000_000;

/// The number of processors for which the beginning is known.
const PROCESSORS: usize = 8;

/// The beginning of a wait: a time after the stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since([Option<Moment>; PROCESSORS]);

impl Since {
    /// Begins a wait for all earlier stores.
    pub(crate) fn now() -> Self {
        Self::at(Moment::now_after_all())
    }

    pub(crate) fn at(begin: Moment) -> Self {
        let mut begun = [None; PROCESSORS];
        begun[begin.processor as usize % PROCESSORS] = Some(begin);
        Self(begun)
    }

    /// The later of two waits.
    pub(crate) fn max(mut self, other: Self) -> Self {
        for (begun, other) in self.0.iter_mut().zip(other.0) {
            *begun = match (*begun, other) {
                (Some(one), Some(other)) if one.processor == other.processor => {
                    Some(if one.ticks > other.ticks { one } else { other })
                }
                // One of them has not begun there.
                _ => None,
            };
        }
        self
    }

    /// The ticks since the wait has begun on this processor. If its counter is behind, the machine
    /// was suspended or migrated, and the wait begins again.
    pub(crate) fn elapsed(&mut self) -> u64 {
        let now = Moment::now();
        let begun = &mut self.0[now.processor as usize % PROCESSORS];
        let begin = match begun.filter(|begin| begin.processor == now.processor) {
            Some(begin) if begin.ticks <= now.ticks.saturating_add(MAX_SKEW) => begin,
            _ => *begun.insert(now),
        };
        now.ticks.saturating_sub(begin.ticks)
    }

    /// The time in the model, which has one clock.
    #[cfg(model)]
    pub(crate) fn in_model(&self) -> u64 {
        self.0[0].map_or(0, |begin| begin.ticks)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{processors_in_tests, tsc};

    #[test]
    fn a_wait_begins_again_if_the_counter_was_set_back() {
        if let Some([one, _]) = processors_in_tests::two() {
            processors_in_tests::pin(one);
        }
        let now = Moment::now();
        let mut since = Since::at(Moment { ticks: now.ticks + (1 << 40), ..now });
        assert_eq!(since.elapsed(), 0);
        let begun = since.0.into_iter().flatten().map(|begin| begin.ticks).max();
        assert!(begun.is_some_and(|begun| begun <= Moment::now().ticks));
    }

    #[test]
    fn counters_of_two_processors_are_not_compared() {
        let Some([one, other]) = processors_in_tests::two() else { return };
        if !tsc::has_processor_numbers() {
            return;
        }
        processors_in_tests::pin(one);
        let mut since = Since::at(Moment { ticks: 0, ..Moment::now() });
        let of_one = since.elapsed();
        assert!(of_one > MAX_SKEW, "it has begun long ago");
        processors_in_tests::pin(other);
        assert_eq!(since.elapsed(), 0, "it begins here");
        let later = since.max(Since::now());
        processors_in_tests::pin(one);
        assert!(since.elapsed() >= of_one, "the beginning is still known");
        assert_eq!({ later }.elapsed(), 0, "one of them has not begun here");
    }
}
