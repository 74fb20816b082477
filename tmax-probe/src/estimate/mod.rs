//! Estimation of the window and T_max from trials.
//!
//! Whether a trial tore counts ([`Count`]), not how many of its executions did: tears come in
//! clusters. Both values are claimed only by a run that had the power to refute them; otherwise
//! they are *not known*, and the vendors' guarantees stay in force. The rules are in `window.rs`
//! and `t_max.rs`, and, for users, in `docs/calibration.md` of the repository.

mod count;
mod t_max;
mod window;

use serde::{Deserialize, Serialize};

pub use count::{CONFIDENCE, Count};
pub(crate) use t_max::MIN_TORN_TRIALS;
pub use t_max::{AtWait, SAFETY_FACTOR, TMaxVerdict};
pub use window::{AtBoundary, AtClass, WindowVerdict};

use crate::boundary::CLASSES;
use crate::trial::Trial;

/// The findings of all trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Trials by one store, by the class of the boundary, in ascending order.
    pub classes: Vec<AtClass>,
    /// Trials by one store, by boundary, in ascending order.
    pub boundaries: Vec<AtBoundary>,
    /// The fetch window in bytes, or the reason why it is not known.
    pub window: WindowVerdict,
    /// Trials by the protocol, by wait, in ascending order.
    pub waits: Vec<AtWait>,
    /// T_max in TSC ticks, or the reason why it cannot be claimed.
    pub t_max: TMaxVerdict,
}

/// The findings of the trials so far.
pub fn findings(trials: &[Trial]) -> Findings {
    let classes = window::by_class(trials);
    let waits = t_max::by_wait(trials);
    Findings {
        boundaries: window::by_boundary(trials),
        window: window::verdict(&classes),
        t_max: t_max::verdict(&waits),
        classes,
        waits,
    }
}

impl Findings {
    /// The fetch window in bytes, if it is known.
    pub fn window_bytes(&self) -> Option<u32> {
        match self.window {
            WindowVerdict::Known { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// T_max in TSC ticks, if it is known.
    pub fn t_max_ticks(&self) -> Option<u32> {
        match self.t_max {
            TMaxVerdict::Known { t_max, .. } => Some(t_max),
            _ => None,
        }
    }

    /// Whether a store inside a window of `bytes` tore.
    pub fn refutes(&self, bytes: u32) -> bool {
        self.classes.iter().any(|at| at.class < bytes && at.tore())
    }

    /// The count of the mixtures of one class.
    pub fn class(&self, class: u32) -> Count {
        self.classes.iter().find(|at| at.class == class).map_or(Count::default(), |at| at.mixtures)
    }

    /// The smallest count of the classes inside a window of `bytes`.
    pub fn weakest_inside(&self, bytes: u32) -> Count {
        let inside = self.classes.iter().filter(|at| at.class < bytes && at.class > CLASSES[0]);
        inside.map(|at| at.mixtures).min_by_key(|count| count.trials).unwrap_or_default()
    }

    /// The count at waits of at least `ticks`.
    pub fn from_wait(&self, ticks: u32) -> Count {
        let longer = self.waits.iter().filter(|at| at.wait >= ticks);
        longer.fold(Count::default(), |sum, at| sum.plus(&at.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::CACHE_LINE;
    use crate::plan::Depth;
    use crate::simulated::{Outcomes, Simulated};
    use crate::survey::{Unobserved, survey};

    const MACHINES: u64 = 200;

    /// A complete run on a known machine.
    fn run(machine: &mut Simulated, depth: Depth) -> Findings {
        findings(&survey(machine, depth, &mut Unobserved).unwrap())
    }

    #[track_caller]
    fn check(depth: Depth, at_least_known: u64) {
        let mut outcomes = Outcomes::default();
        for number in 0..MACHINES {
            let mut machine = Simulated::drawn(number);
            let seen = run(&mut machine, depth);
            outcomes.add(&machine, seen.window_bytes(), seen.t_max_ticks());
            let Some(window) = seen.window_bytes() else { continue };
            assert!(window <= machine.window, "{machine:?}: {window}");
        }
        println!("{depth:?}: {outcomes:?}");
        assert_eq!(outcomes.unsafe_calibrations, 0, "{outcomes:?}");
        assert!(outcomes.windows_known >= at_least_known, "{outcomes:?}");
    }

    /// If tears are rare and clustered, a run says "not known"; it never makes a false claim.
    #[test]
    fn of_200_simulated_machines_none_gets_an_unsafe_calibration_by_a_quick_run() {
        check(Depth::Quick, 60);
    }

    #[test]
    fn of_200_simulated_machines_none_gets_an_unsafe_calibration_by_a_standard_run() {
        check(Depth::Standard, 90);
    }

    #[test]
    fn window_and_t_max_of_machines_like_real_ones_are_recovered() {
        for (seed, (window, t_max)) in (1..).zip([(8, 300), (16, 900), (32, 800), (32, 2_000)]) {
            let mut machine = Simulated::new(window, t_max, seed);
            let seen = run(&mut machine, Depth::Standard);
            assert_eq!(seen.window, WindowVerdict::Known { bytes: window });
            let TMaxVerdict::Known { t_max: found, .. } = seen.t_max else { panic!("{:?}", seen.t_max) };
            assert!((t_max..=4 * t_max).contains(&found), "{found} for {t_max}");
            assert_eq!(seen.from_wait(t_max).torn_trials, 0, "the simulated T_max is respected");
        }
    }

    /// As on an Intel Emerald Rapids: nothing tears inside a line, so nothing shows that such a
    /// tear would have been detected.
    #[test]
    fn a_machine_that_tears_across_lines_only_gets_no_window() {
        let seen = run(&mut Simulated::new(CACHE_LINE, 800, 7), Depth::Standard);
        assert_eq!(seen.window, WindowVerdict::NoControl);
        assert!(seen.t_max_ticks().is_some_and(|t_max| t_max >= 800));
    }

    #[test]
    fn a_machine_that_never_tears_gets_nothing() {
        let seen = run(&mut Simulated::new(8_192, 0, 7), Depth::Standard);
        assert_eq!(seen.window, WindowVerdict::Blind);
        assert_eq!(seen.t_max_ticks(), None);
    }
}
