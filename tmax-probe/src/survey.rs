//! A run: the parts of the plan in order, each based on what the earlier ones have found.

use std::time::{Duration, Instant};

use wordpatch::FetchModel;

use crate::error::Error;
use crate::estimate::{WindowVerdict, findings};
use crate::plan::{self, Depth};
use crate::trial::{Machine, Spec, Trial};

/// What the vendors promise, in bytes: in force where the window is not known.
pub(crate) const VENDORS_WINDOW: u32 = FetchModel::VENDOR_GUARANTEE.window.bytes() as u32;

/// Whoever follows a run.
pub trait Observer {
    /// A part begins.
    fn part(&mut self, name: &'static str, specs: &[Spec]);

    /// A trial has ended. An error ends the run.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    fn trial(&mut self, trial: &Trial) -> Result<(), Error>;
}

/// An observer of nothing.
pub struct Unobserved;

impl Observer for Unobserved {
    fn part(&mut self, _: &'static str, _: &[Spec]) {}

    fn trial(&mut self, _: &Trial) -> Result<(), Error> {
        Ok(())
    }
}

/// Makes the trials of one part, in order, as far as it comes in `limit`.
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

/// How long a part may take. On a busy machine trials take several times their time; the rounds
/// that are left out cost power, and the verdict says so.
fn limit(depth: Depth, specs: &[Spec]) -> Duration {
    /// Of the time that the part takes on an idle machine.
    const FACTOR: f64 = 1.5;
    /// By which `expected_milliseconds` counts toggles, of which these trials have no limit.
    const ANY: f64 = 1.0;
    match depth {
        Depth::Full => Duration::MAX,
        Depth::Quick | Depth::Standard => {
            let expected = specs.iter().map(|spec| plan::expected_milliseconds(spec, ANY)).sum();
            Duration::from_millis(expected).mul_f64(FACTOR)
        }
    }
}

/// Makes all trials of a run. Blocks for its whole time; for `--quick` and standard runs, at most
/// one and a half times what it is on an idle machine.
///
/// # Errors
/// The machine's or the observer's; the trials so far are lost unless the machine keeps them.
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
        // T_max must hold for every boundary that patches will wait at.
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
