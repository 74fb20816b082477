//! A run: the parts of the plan in order, each founded on what the ones before have found.

use crate::error::Error;
use crate::estimate::{TMaxVerdict, WindowVerdict, findings};
use crate::plan::{self, Depth};
use crate::trial::{CACHE_LINE, Machine, Spec, Trial};

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

/// Makes the trials of one part, in order.
pub(crate) fn run_part(
    machine: &mut dyn Machine,
    observer: &mut dyn Observer,
    name: &'static str,
    specs: &[Spec],
) -> Result<Vec<Trial>, Error> {
    observer.part(name, specs);
    let mut trials = Vec::with_capacity(specs.len());
    for spec in specs {
        let trial = machine.run(spec)?;
        observer.trial(&trial)?;
        trials.push(trial);
    }
    Ok(trials)
}

/// Makes all trials of a run. Blocks for its whole time.
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
        trials.extend(run_part(machine, observer, name, &specs)?);
        Ok(())
    };
    run("fetch window", plan::window(depth), &mut trials)?;
    run("calls", plan::calls(depth), &mut trials)?;
    let window = match findings(&trials).window {
        WindowVerdict::Found(bytes) => bytes,
        // Waits are worth knowing all the same.
        WindowVerdict::Blind => CACHE_LINE,
        WindowVerdict::NothingIsSafe => return Ok(trials),
    };
    run("T_max", plan::coarse(depth, window), &mut trials)?;
    let mut tried = 0;
    for _ in 0..plan::FINE_ROUNDS {
        match findings(&trials).t_max {
            TMaxVerdict::Found { clean, .. } if clean > tried => {
                run("T_max, closer", plan::fine(depth, window, clean), &mut trials)?;
                tried = clean;
            }
            _ => break,
        }
    }
    Ok(trials)
}
