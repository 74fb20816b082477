//! The fetch window that can be claimed from the trials.
//!
//! 1. A tear inside an aligned quadword: no store is safe on this machine.
//! 2. The smallest class inside a cache line that tore is the *control*. Each smaller class must
//!    have had the power to tear: with [`CONFIDENCE`](super::CONFIDENCE), fewer of its trials tear
//!    than a quarter ([`MARGIN`]) of the lower bound on the share at the control. The trials of all
//!    classes are equal except for the offset of the split ([`crate::plan`]), which makes one a
//!    control for the others. Then the window is the control's class.
//! 3. If no class inside the line tore, there is no control of the same kind, and the window is not
//!    known. A tear across lines says nothing about the power to detect one inside a line: it is a
//!    hundred thousand times as frequent.
//!
//! If the window is not known, the vendors' guarantee stays in force: 8 bytes.

use serde::{Deserialize, Serialize};

use super::count::Count;
use crate::boundary::{CACHE_LINE, CLASSES, INSIDE_LINE, boundaries, class};
use crate::trial::{Kernel, Method, Trial};

/// A class counts as safe if its share of torn trials is below the control's share divided by this.
pub(super) const MARGIN: f64 = 4.0;

/// The trials of one class of boundaries, by one store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtClass {
    /// The class in bytes: the alignment that a site with this split crosses; 4 for none.
    pub class: u32,
    /// Trials with mixtures that show in registers.
    pub mixtures: Count,
    /// Trials with calls, whose mixtures crash.
    pub calls: Count,
}

/// The trials at one boundary, by one store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtBoundary {
    /// The boundary, in bytes from the start of the cache line.
    pub boundary: u32,
    /// Trials with mixtures that show in registers.
    pub mixtures: Count,
    /// Trials with calls, whose mixtures crash.
    pub calls: Count,
}

/// The verdict on the window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowVerdict {
    /// The window has this number of bytes.
    Known {
        /// The window in bytes: 8, 16 or 32.
        bytes: u32,
    },
    /// No tear was observed, not even across cache lines.
    Blind,
    /// Tears were observed only across cache lines: no control shows whether a tear inside a line
    /// would have been detected.
    NoControl,
    /// A class tore, but a smaller class had too few trials to rule out tears.
    TooWeak {
        /// The class that tore, in bytes.
        control: u32,
        /// The lower bound on the share of its trials that tear, from 0 to 1.
        control_at_least: f64,
        /// The smaller class, in bytes.
        class: u32,
        /// The upper bound on the share of its trials that tear, from 0 to 1.
        class_at_most: f64,
    },
    /// A tear was observed inside an aligned quadword, where AMD guarantees that there is none and
    /// Intel was never observed to tear.
    NothingIsSafe,
}

impl AtClass {
    /// Whether any trial of this class tore.
    pub(super) fn tore(&self) -> bool {
        self.mixtures.torn_trials + self.calls.torn_trials > 0
    }
}

fn by_one_store(trial: &Trial) -> bool {
    matches!(trial.spec.method, Method::Store | Method::LockedStore)
}

/// Mixtures and calls by one store at boundaries for which `at` holds.
fn count(trials: &[Trial], at: impl Fn(u32) -> bool) -> (Count, Count) {
    let stores = trials.iter().filter(|trial| by_one_store(trial) && at(trial.spec.boundary));
    let (calls, mixtures): (Vec<_>, Vec<_>) = stores.partition(|trial| trial.spec.kernel == Kernel::Call);
    (Count::of(mixtures), Count::of(calls))
}

/// The trials by class, in ascending order.
pub(super) fn by_class(trials: &[Trial]) -> Vec<AtClass> {
    let at = |wanted| {
        let (mixtures, calls) = count(trials, |boundary| class(boundary) == wanted);
        AtClass { class: wanted, mixtures, calls }
    };
    CLASSES.into_iter().map(at).filter(|at| at.mixtures.trials + at.calls.trials > 0).collect()
}

/// The trials by boundary, in ascending order.
pub(super) fn by_boundary(trials: &[Trial]) -> Vec<AtBoundary> {
    let at = |wanted| {
        let (mixtures, calls) = count(trials, |boundary| boundary == wanted);
        AtBoundary { boundary: wanted, mixtures, calls }
    };
    boundaries().map(at).filter(|at| at.mixtures.trials + at.calls.trials > 0).collect()
}

/// The verdict that follows from `classes`.
pub(super) fn verdict(classes: &[AtClass]) -> WindowVerdict {
    let of = |wanted| classes.iter().find(|at| at.class == wanted);
    let tore = |wanted| of(wanted).is_some_and(AtClass::tore);
    if tore(CLASSES[0]) {
        return WindowVerdict::NothingIsSafe;
    }
    let Some(control) = INSIDE_LINE.into_iter().find(|class| tore(*class)) else {
        return if tore(CACHE_LINE) { WindowVerdict::NoControl } else { WindowVerdict::Blind };
    };
    // Calls that crash prove a tear too, but their trials differ from those of the smaller classes.
    let control_at_least = of(control).map_or(0.0, |at| at.mixtures.share_at_least());
    for class in INSIDE_LINE.into_iter().filter(|class| *class < control) {
        let class_at_most = of(class).map_or(1.0, |at| at.mixtures.share_at_most());
        if class_at_most * MARGIN > control_at_least {
            return WindowVerdict::TooWeak { control, control_at_least, class, class_at_most };
        }
    }
    WindowVerdict::Known { bytes: control }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_class(class: u32, trials: u64, torn_trials: u64) -> AtClass {
        let mixtures = Count { trials, torn_trials, ..Count::default() };
        AtClass { class, mixtures, calls: Count::default() }
    }

    /// Each class with its number of torn trials out of 120.
    #[track_caller]
    fn check(torn: [u64; 5], expected: &str) {
        let all: Vec<_> =
            CLASSES.into_iter().zip(torn).map(|(class, torn)| at_class(class, 120, torn)).collect();
        let found = format!("{:?}", verdict(&all));
        assert!(found.starts_with(expected), "{torn:?}: {found}, not {expected}");
    }

    #[test]
    fn the_smallest_class_that_tore_is_the_window_if_the_smaller_ones_had_the_power_to_tear() {
        check([0, 0, 0, 60, 120], "Known { bytes: 32 }");
        check([0, 0, 60, 60, 120], "Known { bytes: 16 }");
        check([0, 60, 0, 60, 120], "Known { bytes: 8 }");
        check([0, 1, 0, 0, 120], "Known { bytes: 8 }");
        // At 99 %, 30 of 120 are at least 0.16, and none of 120 is at most 0.038: below a quarter
        // of it; 29 are too few.
        check([0, 0, 0, 30, 120], "Known { bytes: 32 }");
        check([0, 0, 0, 24, 120], "TooWeak { control: 32");
        check([0, 0, 0, 1, 120], "TooWeak { control: 32");
        check([1, 0, 0, 60, 120], "NothingIsSafe");
    }

    #[test]
    fn a_tear_across_lines_is_no_control_for_one_inside_a_line() {
        check([0, 0, 0, 0, 120], "NoControl");
        check([0, 0, 0, 0, 0], "Blind");
        assert_eq!(verdict(&[]), WindowVerdict::Blind);
    }

    #[test]
    fn a_class_without_trials_has_no_power() {
        let some = [at_class(8, 120, 0), at_class(32, 120, 100)];
        assert!(matches!(verdict(&some), WindowVerdict::TooWeak { class: 16, .. }));
    }

    #[test]
    fn a_crash_counts_as_a_tear_but_not_as_power() {
        let mut all: Vec<_> = CLASSES.map(|class| at_class(class, 120, u64::from(class >= 32) * 100)).into();
        all[2].calls = Count { trials: 9, torn_trials: 1, ..Count::default() };
        assert!(matches!(verdict(&all), WindowVerdict::TooWeak { control: 16, .. }), "{:?}", verdict(&all));
    }
}
