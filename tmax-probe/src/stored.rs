//! What a run changes in the calibration that is stored for its machine.
//!
//! A run may miss tears, but a tear that it has seen is a fact: a stored window is known because
//! stores across its boundary tore, and a stored T_max because trials tore just below the clean
//! wait. A later run that has seen fewer tears must not replace them by a larger window or a
//! shorter T_max. Therefore
//!
//! 1. the window is the smallest one of which it is known that stores across its boundary tear;
//! 2. T_max is the longest one, and is kept only as long as one of the runs that found it has
//!    tested all boundaries at which patches wait: those of the window and larger ones;
//! 3. what a tear contradicts is *refuted*, and stored in `FILE.refuted`: no later run on the same
//!    machine claims it, a larger window, or a shorter T_max.
//!
//! In `FILE.refuted`, which has the format of a calibration, a window of 8 bytes, the vendors'
//! guarantee, stands for none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use wordpatch::WaitPolicy;
use wordpatch::calibration::{Calibration, Evidence, Host, Model};

use crate::boundary::class;
use crate::estimate::{Findings, SAFETY_FACTOR};
use crate::survey::VENDORS_WINDOW;
use crate::trial::Method;
use crate::verify::Verification;

/// The values of a model that are refuted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refuted {
    /// The window.
    pub window: bool,
    /// T_max.
    pub t_max: bool,
}

impl Refuted {
    /// What the findings of a run refute.
    pub(crate) fn by_run(model: &Model, findings: &Findings) -> Self {
        let tore_at = |t_max| findings.from_wait(t_max).torn_trials > 0;
        Self {
            window: findings.refutes(model.window_bytes as u32),
            t_max: model.t_max_ticks.is_some_and(tore_at),
        }
    }

    /// What a check refutes.
    pub(crate) fn by_check(seen: &Verification) -> Self {
        let is_inside = |boundary| class(boundary) < seen.window_bytes;
        let of_window = seen.torn.iter().map(|trial| match trial.spec.method {
            Method::Store | Method::LockedStore => true,
            Method::Protocol { .. } => false,
            Method::Wordpatch => is_inside(trial.spec.boundary) || seen.t_max_ticks.is_none(),
        });
        let (window, t_max): (Vec<bool>, Vec<bool>) = of_window.partition(|is_of_window| *is_of_window);
        Self { window: !window.is_empty(), t_max: !t_max.is_empty() }
    }

    /// Whether anything is refuted.
    pub(crate) fn any(self) -> bool {
        self.window || self.t_max
    }
}

/// The path of the refuted values for the calibration at `path`.
pub(crate) fn path_of_refuted(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".refuted");
    PathBuf::from(name)
}

/// Reads a valid file of this host.
pub(crate) fn of_host(path: &Path, host: &Host) -> Option<Calibration> {
    Calibration::read(path).ok().filter(|stored| stored.check_host(host).is_ok())
}

/// The window, if stores across its boundary tore.
fn window_of(calibration: &Calibration) -> Option<usize> {
    let tears = calibration.evidence.torn_at_border_at_least > 0.0;
    tears.then_some(calibration.model.window_bytes)
}

fn t_max_of(calibration: &Calibration) -> Option<u32> {
    calibration.model.t_max_ticks
}

/// The window of one calibration, and T_max of another one, whose evidence supports `ticks`. None
/// without both.
fn joined(window: Option<&Calibration>, t_max: Option<(&Calibration, u32)>) -> Option<Calibration> {
    let (of_t_max, ticks) = t_max.unzip();
    let base = of_t_max.or(window)?;
    let evidence = Evidence {
        confidence: window.map_or(1.0, |from| from.evidence.confidence).min(base.evidence.confidence),
        trials_inside_window: window.map_or(0, |from| from.evidence.trials_inside_window),
        torn_inside_at_most: window.map_or(1.0, |from| from.evidence.torn_inside_at_most),
        torn_at_border_at_least: window.map_or(0.0, |from| from.evidence.torn_at_border_at_least),
        clean_wait_ticks: of_t_max.map_or(0, |from| from.evidence.clean_wait_ticks),
        safety_factor: of_t_max.map_or(SAFETY_FACTOR, |from| from.evidence.safety_factor),
        trials_at_clean_waits: of_t_max.map_or(0, |from| from.evidence.trials_at_clean_waits),
        torn_at_clean_waits_at_most: of_t_max.map_or(1.0, |from| from.evidence.torn_at_clean_waits_at_most),
    };
    let model = Model {
        window_bytes: window.map_or(VENDORS_WINDOW as usize, |from| from.model.window_bytes),
        t_max_ticks: ticks,
        wait: of_t_max.map_or(WaitPolicy::Membarrier, |from| from.model.wait),
    };
    Some(Calibration { model, evidence, ..base.clone() })
}

/// The refuted values after these of `calibration` were refuted; `earlier` are those known before.
pub(crate) fn refuted(
    calibration: &Calibration,
    refuted: Refuted,
    earlier: Option<&Calibration>,
) -> Option<Calibration> {
    let now = Some(calibration);
    let windows = [earlier, now.filter(|_| refuted.window)].into_iter().flatten();
    let t_maxes = [earlier, now.filter(|_| refuted.t_max)].into_iter().flatten();
    joined(
        windows.filter(|from| window_of(from).is_some()).min_by_key(|from| from.model.window_bytes),
        t_maxes.filter_map(|from| t_max_of(from).map(|ticks| (from, ticks))).max_by_key(|(_, ticks)| *ticks),
    )
}

/// The calibration that follows from the one that is stored, from the one that a run has found, and
/// from the refuted values.
pub(crate) fn combined(
    stored: Option<&Calibration>,
    found: Option<&Calibration>,
    refuted: Option<&Calibration>,
) -> Option<Calibration> {
    let known = || [found, stored].into_iter().flatten();
    let is_window = |from: &&Calibration| {
        let refuted = refuted.and_then(window_of);
        window_of(from).is_some_and(|bytes| refuted.is_none_or(|refuted| bytes < refuted))
    };
    let window = known().filter(is_window).min_by_key(|from| from.model.window_bytes);
    let bytes = window.map_or(VENDORS_WINDOW as usize, |from| from.model.window_bytes);
    let is_t_max = |from: &&Calibration| {
        let refuted = refuted.and_then(t_max_of);
        from.model.window_bytes <= bytes
            && t_max_of(from).is_some_and(|ticks| refuted.is_none_or(|refuted| ticks > refuted))
    };
    let t_max = known().filter(is_t_max).max_by_key(|from| t_max_of(from));
    joined(window, t_max.zip(known().filter_map(t_max_of).max()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A calibration with a T_max of three times `clean` ticks. A window of 0 bytes is not known.
    fn calibration(window: usize, clean: Option<u32>) -> Calibration {
        let is_known = window > 0;
        Calibration {
            version: wordpatch::calibration::VERSION,
            made_by: "tmax-probe 0.0.0".into(),
            made_unix_s: 1_700_000_000,
            host: Host::here(),
            model: Model {
                window_bytes: if is_known { window } else { VENDORS_WINDOW as usize },
                t_max_ticks: clean.map(|clean| 3 * clean),
                wait: if clean.is_some() { WaitPolicy::TMax } else { WaitPolicy::Membarrier },
            },
            evidence: Evidence {
                confidence: 0.99,
                trials_inside_window: 600,
                torn_inside_at_most: 0.0076,
                torn_at_border_at_least: if is_known { 0.4 } else { 0.0 },
                clean_wait_ticks: clean.unwrap_or(0),
                safety_factor: SAFETY_FACTOR,
                trials_at_clean_waits: clean.map_or(0, |_| 900),
                torn_at_clean_waits_at_most: 0.0051,
            },
        }
    }

    type Values = (usize, Option<u32>);

    /// Window and T_max of the result, which must be a valid file.
    fn values(calibration: Option<&Calibration>) -> Option<Values> {
        let text = calibration?.to_text();
        let read = Calibration::from_text(&text).expect("the evidence supports the values");
        Some((window_of(&read).unwrap_or(0), read.model.t_max_ticks))
    }

    #[track_caller]
    fn check(
        stored: Option<Values>,
        found: Option<Values>,
        refuted: Option<Values>,
        expected: Option<Values>,
    ) {
        let [stored, found, refuted] = [stored, found, refuted]
            .map(|values| values.map(|(window, t_max)| calibration(window, t_max.map(|ticks| ticks / 3))));
        let combined = combined(stored.as_ref(), found.as_ref(), refuted.as_ref());
        assert_eq!(values(combined.as_ref()), expected);
    }

    #[test]
    fn a_window_is_never_enlarged_and_a_t_max_never_shortened() {
        check(None, None, None, None);
        check(None, Some((32, None)), None, Some((32, None)));
        check(None, Some((0, Some(900))), None, Some((0, Some(900))));
        for wide in [32, 64] {
            check(Some((16, None)), Some((wide, None)), None, Some((16, None)));
            check(Some((wide, None)), Some((16, None)), None, Some((16, None)));
        }
        check(Some((32, Some(900))), Some((32, Some(600))), None, Some((32, Some(900))));
        check(Some((32, Some(600))), Some((32, Some(900))), None, Some((32, Some(900))));
        // A run that has found less: a quick one, or one on a busy machine.
        check(Some((32, Some(900))), Some((32, None)), None, Some((32, Some(900))));
        check(Some((32, Some(900))), None, None, Some((32, Some(900))));
    }

    #[test]
    fn a_window_that_was_not_known_is_no_evidence() {
        check(Some((0, Some(900))), Some((32, None)), None, Some((32, Some(900))));
        check(Some((32, None)), Some((0, Some(900))), None, Some((32, Some(900))));
        check(Some((8, Some(900))), Some((32, None)), None, Some((8, Some(900))));
    }

    /// Boundaries inside the larger window were not tested when its T_max was measured.
    #[test]
    fn t_max_is_dropped_with_the_larger_window_for_which_it_was_measured() {
        check(Some((32, Some(900))), Some((16, None)), None, Some((16, None)));
        check(Some((16, None)), Some((32, Some(900))), None, Some((16, None)));
        // The tears just below the clean wait of the larger one remain facts.
        check(Some((32, Some(900))), Some((16, Some(600))), None, Some((16, Some(900))));
        check(Some((32, Some(600))), Some((16, Some(900))), None, Some((16, Some(900))));
    }

    #[test]
    fn what_was_refuted_is_not_claimed_again() {
        for wide in [32, 64] {
            check(None, Some((wide, None)), Some((32, None)), None);
            check(None, Some((wide, Some(900))), Some((32, None)), None);
        }
        check(None, Some((16, Some(900))), Some((32, None)), Some((16, Some(900))));
        for short in [600, 900] {
            check(None, Some((32, Some(short))), Some((0, Some(900))), Some((32, None)));
        }
        check(None, Some((32, Some(1_200))), Some((0, Some(900))), Some((32, Some(1_200))));
        check(Some((16, Some(600))), Some((32, Some(1_200))), Some((0, Some(900))), Some((16, None)));
    }

    #[test]
    fn refuted_values_are_collected() {
        let stored = calibration(32, Some(300));
        let only = |window, t_max| Refuted { window, t_max };
        let window = refuted(&stored, only(true, false), None);
        assert_eq!(values(window.as_ref()), Some((32, None)));
        let both = refuted(&calibration(64, Some(200)), only(true, true), window.as_ref());
        assert_eq!(values(both.as_ref()), Some((32, Some(600))));
        let longer = refuted(&stored, only(false, true), both.as_ref());
        assert_eq!(values(longer.as_ref()), Some((32, Some(900))));
        assert_eq!(refuted(&stored, only(false, false), None), None);
    }

    #[test]
    fn a_torn_patch_refutes_the_window_inside_it_and_t_max_at_its_border() {
        use crate::simulated::Simulated;
        use crate::trial::{Machine, Spec};
        use wordpatch::{FetchModel, FetchWindow, Source, TMax};

        let of = |method, boundary, t_max: Option<u32>| {
            let model = FetchModel {
                window: FetchWindow::Bytes32,
                t_max: t_max.map(TMax),
                wait: WaitPolicy::TMax,
                source: Source::Forced,
            };
            let spec = Spec { method, boundary, ..crate::plan::by_wordpatch(0..1)[0] };
            let mut trial = Simulated::new(8, 800, 1).run(&spec).expect("a simulated trial");
            trial.tears = 1;
            Refuted::by_check(&Verification::of(&model, &[trial]))
        };
        let only = |window, t_max| Refuted { window, t_max };
        assert_eq!(of(Method::Store, 16, Some(900)), only(true, false));
        assert_eq!(of(Method::Protocol { wait: 900 }, 32, Some(900)), only(false, true));
        assert_eq!(of(Method::Wordpatch, 16, Some(900)), only(true, false));
        assert_eq!(of(Method::Wordpatch, 32, Some(900)), only(false, true));
        assert_eq!(of(Method::Wordpatch, 32, None), only(true, false));
    }
}
