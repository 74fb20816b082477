//! Checks a calibration as long as a machine runs, at no cost to its programs.
//!
//! Repeats rounds of [`crate::verify`] with different draws, under the scheduling policy
//! SCHED_IDLE: its threads run only on idle processors. It sleeps between trials, so that it uses
//! at most a hundredth of the time. The evidence accumulates, and an incorrect calibration of a
//! short run is refuted eventually.

use std::time::{Duration, Instant};

use wordpatch::FetchModel;

use crate::error::Error;
use crate::trial::{Machine, Trial};
use crate::verify::{Verification, must_not_tear, rounds};

/// Maximum share of the time that trials take.
const DUTY: f64 = 0.01;

/// Maximum duration of a sleep, so that an interrupt is noticed.
const NAP: Duration = Duration::from_millis(200);

/// The reason why watching ended.
#[derive(Debug)]
pub(crate) enum End {
    /// A trial tore that must not tear.
    Refuted(Box<Verification>),
    /// `is_over` returned true, or a trial was interrupted, and nothing had torn.
    Over(Box<Verification>),
}

/// Restricts the calling process and its children to idle processors.
///
/// # Errors
/// [`Error::System`].
pub(crate) fn run_when_idle() -> Result<(), Error> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads the parameters, which outlive the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) } != 0 {
        let source = std::io::Error::last_os_error();
        return Err(Error::System { what: "sched_setscheduler(SCHED_IDLE)", source });
    }
    Ok(())
}

/// Checks `model` until it is refuted, or `is_over` returns true, which is called several times per
/// second.
///
/// # Errors
/// The errors of the machine. A trial that got no processor time is skipped.
pub(crate) fn watch(
    machine: &mut dyn Machine,
    model: &FetchModel,
    mut is_over: impl FnMut(&[Trial]) -> bool,
) -> Result<End, Error> {
    let mut trials = Vec::new();
    for number in 0.. {
        for spec in rounds(model, number..number + 1).into_iter().flat_map(|(_, specs)| specs) {
            let start = Instant::now();
            match machine.run(&spec) {
                Ok(trial) => trials.push(trial),
                Err(Error::Starved { .. }) => {}
                // The signal was delivered to the trial's process first.
                Err(Error::Interrupted) => {
                    return Ok(End::Over(Box::new(Verification::of(model, &trials))));
                }
                Err(error) => return Err(error),
            }
            if trials.last().is_some_and(|trial| trial.tears > 0 && must_not_tear(model, &trial.spec)) {
                return Ok(End::Refuted(Box::new(Verification::of(model, &trials))));
            }
            let until = Instant::now() + start.elapsed().mul_f64(1.0 / DUTY - 1.0);
            loop {
                if is_over(&trials) {
                    return Ok(End::Over(Box::new(Verification::of(model, &trials))));
                }
                match until.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => std::thread::sleep(left.min(NAP)),
                    _ => break,
                }
            }
        }
    }
    unreachable!("numbers do not end")
}

#[cfg(test)]
mod tests {
    use wordpatch::{FetchWindow, Source, WaitPolicy};

    use super::*;
    use crate::simulated::Simulated;
    use crate::trial::Spec;

    /// Is interrupted instead of the eleventh trial.
    struct Interrupted(Simulated, u32);

    impl Machine for Interrupted {
        fn run(&mut self, spec: &Spec) -> Result<Trial, Error> {
            self.1 += 1;
            if self.1 > 10 { Err(Error::Interrupted) } else { self.0.run(spec) }
        }
    }

    #[test]
    fn an_interrupted_trial_ends_it_with_its_evidence() {
        let mut machine = Interrupted(Simulated::new(8, 800, 5), 0);
        let model = FetchModel {
            window: FetchWindow::Bytes8,
            t_max: None,
            wait: WaitPolicy::Membarrier,
            source: Source::Forced,
        };
        let Ok(End::Over(seen)) = watch(&mut machine, &model, |_| false) else { panic!("not over") };
        assert!(seen.wordpatch.trials > 0, "{seen:?}");
    }

    fn watched(window: FetchWindow, trials: usize) -> End {
        let mut machine = Simulated::new(32, 800, 5);
        machine.assumed_window = window.bytes() as u32;
        let model = FetchModel { window, t_max: None, wait: WaitPolicy::Membarrier, source: Source::Forced };
        watch(&mut machine, &model, |seen| seen.len() >= trials).unwrap()
    }

    #[test]
    fn a_wrong_window_is_refuted_and_a_right_one_gathers_evidence() {
        assert!(matches!(watched(FetchWindow::Bytes64, usize::MAX), End::Refuted(_)));
        let End::Over(seen) = watched(FetchWindow::Bytes32, 300) else { panic!("refuted") };
        assert!(seen.torn.is_empty() && seen.control.torn_trials > 0, "{seen:?}");
        assert!(seen.inside.iter().any(|at| at.count.trials > 60), "{seen:?}");
    }
}
