//! Checks whether a fetch model holds on this machine: the trials of a survey, for a given window
//! and T_max.
//!
//! 1. One store at every class inside the window, and at the window itself as the control: rounds
//!    of `plan`, whose trials differ only in their boundary. A window of 8 bytes makes no
//!    claim that a class could refute, and a machine may not tear there: its control is the
//!    smallest class that tears.
//! 2. The protocol, with waits of T_max, at the boundaries from the window on; if the model has a
//!    T_max. Every fourth round also has a trial without waits as the control.
//! 3. `wordpatch::patch` under the model, at every boundary: one store inside the window, INT3 and
//!    waits elsewhere.
//!
//! A tear inside the window, or in 2 or 3, refutes the model. Without one, the model holds as far
//! as the run had the power to refute it: [`Verification::power`] is the probability that a window
//! that tears in one trial of 26 (the rarest observed on a real machine) would have been refuted.
//! The control of part 1 must have torn, otherwise the run could not have detected tears. If that
//! of part 2 has not, nothing is known about T_max; the counts show it.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wordpatch::FetchModel;

use crate::boundary::{CACHE_LINE, CLASSES, INSIDE_LINE, class};
use crate::error::Error;
use crate::estimate::Count;
use crate::plan::{CONTROL_EVERY, by_one_store_rounds, by_protocol_rounds, by_wordpatch, paper_stress};
use crate::survey::{Observer, VENDORS_WINDOW, run_part};
use crate::trial::{Machine, Method, Spec, Trial};

/// The share of trials that tear on a machine whose tears are as clustered as the worst observed:
/// all but one of 88 from one trial of 26.
pub const CLUSTERED: f64 = 1.0 / 26.0;

/// The number of trials in a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The number of rounds of part 1, each of which has one trial of each class.
    pub rounds: u64,
    /// Toggles of each trial through `wordpatch::patch`, without a time limit, as in the paper: at
    /// the window's own boundary, each split, with 2 to 6 executors. If it is `None`, those trials
    /// are as short as the others, at every boundary.
    pub toggles: Option<u64>,
}

impl Effort {
    /// 150 trials of a class refute a window that tears in one trial of 26 with 99.7 % probability.
    pub const SHORT: Self = Self { rounds: 150, toggles: None };
}

/// The trials of one class inside the window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inside {
    /// The class in bytes: the alignment that a site with this split crosses; 4 for none.
    pub class: u32,
    /// The count of trials by one store.
    pub count: Count,
}

/// The results of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// The window that was checked, in bytes.
    pub window_bytes: u32,
    /// The T_max that was checked, in ticks; null if waits use only `membarrier`.
    pub t_max_ticks: Option<u32>,
    /// The class of the control in bytes: the window, or for one of 8 bytes, the smallest class
    /// that tore.
    pub control_class: u32,
    /// The count of trials by one store at boundaries of that class, which should tear.
    pub control: Count,
    /// The counts of trials by one store at the boundaries inside the window, which must not tear.
    pub inside: Vec<Inside>,
    /// The count of trials by the protocol without waits, which should tear.
    pub protocol_control: Count,
    /// The count of trials by the protocol with waits of T_max, which must not tear.
    pub protocol: Count,
    /// The count of trials by `wordpatch::patch`, which must not tear.
    pub wordpatch: Count,
    /// The probability that a window that tears in one trial of 26 would have been refuted: 0 to 1.
    pub power: f64,
    /// The trials that must not tear but did.
    pub torn: Vec<Trial>,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No trial tore that must not tear, and the control did.
    Holds,
    /// A trial tore that must not tear.
    Refuted,
    /// No trial tore that must not tear, but neither did the control.
    Blind,
}

impl Verification {
    /// The verdict that follows from the results.
    pub fn verdict(&self) -> Verdict {
        match (self.torn.is_empty(), self.control.torn_trials) {
            (false, _) => Verdict::Refuted,
            (true, 0) => Verdict::Blind,
            (true, _) => Verdict::Holds,
        }
    }
}

/// The trials that try to refute `model`: of the parts 1 to 3, the rounds with these numbers.
pub(crate) fn rounds(model: &FetchModel, numbers: Range<u64>) -> [(&'static str, Vec<Spec>); 3] {
    let window = model.window.bytes() as u32;
    let largest = if window == VENDORS_WINDOW { CACHE_LINE } else { window };
    let classes: Vec<u32> = INSIDE_LINE.into_iter().filter(|class| *class <= largest).collect();
    let protocol = model.t_max.map(|t_max| {
        let waits =
            |number: u64| if number.is_multiple_of(CONTROL_EVERY) { vec![0, t_max.0] } else { vec![t_max.0] };
        let round = |number| by_protocol_rounds(number..number + 1, window, &waits(number));
        numbers.clone().flat_map(round).collect()
    });
    [
        ("one store", by_one_store_rounds(numbers.clone(), &classes)),
        ("protocol", protocol.unwrap_or_default()),
        ("wordpatch::patch", by_wordpatch(numbers)),
    ]
}

/// The trials of a check of `model`.
pub fn parts(model: &FetchModel, effort: Effort) -> [(&'static str, Vec<Spec>); 3] {
    let mut parts = rounds(model, 0..effort.rounds);
    if let Some(toggles) = effort.toggles {
        parts[2].1 = paper_stress(model.window.bytes() as u32, toggles);
    }
    parts
}

/// Whether a tear of this trial refutes the model.
pub(crate) fn must_not_tear(model: &FetchModel, spec: &Spec) -> bool {
    match spec.method {
        Method::Store | Method::LockedStore => class(spec.boundary) < model.window.bytes() as u32,
        Method::Protocol { wait } => model.t_max.is_some_and(|t_max| wait >= t_max.0),
        Method::Wordpatch => true,
    }
}

/// Checks `model`. Blocks for the duration of its trials.
///
/// # Errors
/// The errors of the machine or the observer.
pub fn verify(
    machine: &mut dyn Machine,
    model: &FetchModel,
    effort: Effort,
    observer: &mut dyn Observer,
) -> Result<Verification, Error> {
    let mut trials = Vec::new();
    for (name, specs) in parts(model, effort) {
        // There is no time limit on a busy machine; the power is reported.
        trials.extend(run_part(machine, observer, name, &specs, Duration::MAX)?);
    }
    Ok(Verification::of(model, &trials))
}

impl Verification {
    /// The results of these trials for `model`.
    pub(crate) fn of(model: &FetchModel, trials: &[Trial]) -> Self {
        let window = model.window.bytes() as u32;
        let is_one_store = |trial: &&Trial| matches!(trial.spec.method, Method::Store | Method::LockedStore);
        let of_class = |wanted| {
            Count::of(trials.iter().filter(is_one_store).filter(|trial| class(trial.spec.boundary) == wanted))
        };
        let of_method = |is: fn(&Method) -> bool, has_waits: bool| {
            Count::of(
                trials
                    .iter()
                    .filter(|trial| is(&trial.spec.method) && must_not_tear(model, &trial.spec) == has_waits),
            )
        };
        let is_protocol = |method: &Method| matches!(method, Method::Protocol { .. });
        let tears = |class: &u32| *class >= window && of_class(*class).torn_trials > 0;
        let control_class = match window {
            VENDORS_WINDOW => CLASSES.into_iter().find(tears).unwrap_or(window),
            _ => window.min(CACHE_LINE),
        };
        let inside: Vec<Inside> = CLASSES
            .into_iter()
            .filter(|class| *class < window)
            .map(|class| Inside { class, count: of_class(class) })
            .collect();
        let candidates = inside.iter().filter(|at| at.class > CLASSES[0]).map(|at| at.count.power(CLUSTERED));
        Self {
            window_bytes: window,
            t_max_ticks: model.t_max.map(|t_max| t_max.0),
            control_class,
            control: of_class(control_class),
            // A window of 8 bytes makes no claim that a class could refute.
            power: candidates.fold(1.0, f64::min),
            inside,
            protocol_control: of_method(is_protocol, false),
            protocol: of_method(is_protocol, true),
            wordpatch: of_method(|method| matches!(method, Method::Wordpatch), true),
            torn: trials
                .iter()
                .filter(|trial| trial.tears > 0 && must_not_tear(model, &trial.spec))
                .copied()
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use wordpatch::{FetchWindow, Source, TMax, WaitPolicy};

    use super::*;
    use crate::simulated::{Simulated, Tearing};
    use crate::survey::Unobserved;

    fn model(window: FetchWindow, t_max: Option<u32>) -> FetchModel {
        FetchModel { window, t_max: t_max.map(TMax), wait: WaitPolicy::TMax, source: Source::Forced }
    }

    fn check(machine: &mut Simulated, model: &FetchModel) -> Verification {
        machine.assumed_window = model.window.bytes() as u32;
        verify(machine, model, Effort::SHORT, &mut Unobserved).unwrap()
    }

    /// The stated power, on machines that tear 20 times in a million toggles, with all tears in one
    /// trial of 26.
    #[test]
    fn a_window_that_is_too_large_is_refuted_with_99_percent_however_clustered_the_tears_are() {
        const MACHINES: u64 = 500;
        let mut refuted = 0;
        for seed in 0..MACHINES {
            let mut machine = Simulated::new(32, 800, seed);
            machine.tearing = Tearing { hot: CLUSTERED, ..machine.tearing };
            // Only the 32-byte class can refute it.
            let seen = check(&mut machine, &model(FetchWindow::Bytes64, None));
            assert!(seen.power >= 0.99, "{}", seen.power);
            refuted += u64::from(seen.verdict() == Verdict::Refuted);
        }
        println!("{refuted} of {MACHINES} refuted");
        assert!(refuted as f64 >= 0.99 * MACHINES as f64, "{refuted} of {MACHINES}");
    }

    #[test]
    fn a_model_that_holds_is_not_refuted_and_its_control_tears() {
        for (seed, window) in (0..).zip(FetchWindow::ALL) {
            let bytes = window.bytes() as u32;
            let seen = check(&mut Simulated::new(bytes, 800, seed), &model(window, Some(800)));
            assert_eq!(seen.verdict(), Verdict::Holds, "{seen:?}");
            assert!(seen.protocol.trials > 0 && seen.wordpatch.trials > 0, "{seen:?}");
            assert!(seen.protocol_control.torn_trials > 0, "{seen:?}");
            assert_eq!(seen.control_class, bytes);
        }
    }

    /// A processor that tears only across larger boundaries, of which nothing is claimed.
    #[test]
    fn a_window_of_8_bytes_holds_on_a_machine_with_a_larger_one() {
        for bytes in [16, 32, 64] {
            let seen = check(&mut Simulated::new(bytes, 800, 1), &model(FetchWindow::Bytes8, Some(800)));
            assert_eq!((seen.verdict(), seen.control_class), (Verdict::Holds, bytes), "{seen:?}");
        }
    }

    #[test]
    fn a_machine_that_never_tears_makes_every_check_blind() {
        let mut machine = Simulated::new(8, 800, 1);
        machine.tearing = Tearing { hot: 0.0, ..machine.tearing };
        for window in FetchWindow::ALL {
            assert_eq!(check(&mut machine, &model(window, Some(800))).verdict(), Verdict::Blind);
        }
    }

    #[test]
    fn a_t_max_that_is_too_short_is_refuted() {
        let seen = check(&mut Simulated::new(32, 800, 1), &model(FetchWindow::Bytes32, Some(100)));
        assert_eq!(seen.verdict(), Verdict::Refuted, "{seen:?}");
        assert!(seen.inside.iter().all(|at| at.count.torn_trials == 0) && seen.protocol.torn_trials > 0);
    }

    #[test]
    fn a_control_that_does_not_tear_makes_the_check_blind() {
        let mut machine = Simulated::new(64, 800, 1);
        let seen = check(&mut machine, &model(FetchWindow::Bytes32, None));
        assert_eq!(seen.verdict(), Verdict::Blind, "the machine tears at lines only: {seen:?}");
    }
}
