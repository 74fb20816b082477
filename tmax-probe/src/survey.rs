//! A run: the parts of the plan in order, each based on the findings of the earlier ones.

use std::time::{Duration, Instant};

use wordpatch::FetchModel;

use crate::error::Error;
use crate::estimate::{WindowVerdict, findings};
use crate::plan::{self, Depth};
use crate::trial::{Machine, Spec, Trial};

/// The window of the vendors' guarantee, in bytes: in force if the window is not known.
pub(crate) const VENDORS_WINDOW: u32 = FetchModel::VENDOR_GUARANTEE.window.bytes() as u32;

/// Observes the progress of a run.
pub trait Observer {
    /// Called when a part begins.
    fn part(&mut self, name: &'static str, specs: &[Spec]);

    /// Called when a trial has ended. An error ends the run.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    fn trial(&mut self, trial: &Trial) -> Result<(), Error>;
}

/// An observer that does nothing.
pub struct Unobserved;

impl Observer for Unobserved {
    fn part(&mut self, _: &'static str, _: &[Spec]) {}

    fn trial(&mut self, _: &Trial) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs the trials of one part, in order, until `limit`.
pub(crate) fn run_part(
    machine: &mut dyn Machine,
    observer: &mut dyn Observer,
    name: &'static str,
    specs: &[Spec],
    limit: Duration,
) -> Result<Vec<Trial>, Error> {
    observer.part(name, specs);
    let start = Instant::now();
    let mut trials = Vec::with_capacity(specs.len());
    for spec in specs {
        if start.elapsed() > limit {
            break;
        }
        let trial = machine.run(spec)?;
        observer.trial(&trial)?;
        trials.push(trial);
    }
    Ok(trials)
}

/// The time limit of a part. On a busy machine trials take several times as long; rounds that are
/// skipped cost power, and the verdict accounts for it.
fn limit(depth: Depth, specs: &[Spec]) -> Duration {
    /// Relative to the time of the part on an idle machine.
    const FACTOR: f64 = 1.5;
    /// Any rate will do: these trials have no limit on toggles, for which `expected_milliseconds`
    /// would use it.
    const ANY: f64 = 1.0;
    match depth {
        Depth::Full => Duration::MAX,
        Depth::Quick | Depth::Standard => {
            let expected = specs.iter().map(|spec| plan::expected_milliseconds(spec, ANY)).sum();
            Duration::from_millis(expected).mul_f64(FACTOR)
        }
    }
}

/// Runs all trials. Blocks for the duration of the run: for `--quick` and standard runs, at most
/// one and a half times that on an idle machine.
///
/// # Errors
/// The errors of the machine or the observer; the trials so far are lost unless the machine stores
/// them.
pub fn survey(
    machine: &mut dyn Machine,
    depth: Depth,
    observer: &mut dyn Observer,
) -> Result<Vec<Trial>, Error> {
    let mut trials = Vec::new();
    let mut run = |name, specs: Vec<Spec>, trials: &mut Vec<Trial>| -> Result<(), Error> {
        trials.extend(run_part(machine, observer, name, &specs, limit(depth, &specs))?);
        Ok(())
    };
    run("fetch window", plan::window(depth), &mut trials)?;
    run("calls", plan::calls(depth), &mut trials)?;
    let seen = findings(&trials);
    let window = match seen.window {
        WindowVerdict::NothingIsSafe => return Ok(trials),
        // T_max must hold for every boundary at which patches wait.
        _ => seen.window_bytes().unwrap_or(VENDORS_WINDOW),
    };
    run("T_max", plan::coarse(depth, window), &mut trials)?;
    let mut tried = 0;
    for repetition in 0..plan::FINE_ROUNDS {
        match findings(&trials).t_max.clean() {
            Some(clean) if clean > tried => {
                run("T_max, closer", plan::fine(depth, window, clean, repetition), &mut trials)?;
                tried = clean;
            }
            _ => break,
        }
    }
    Ok(trials)
}
