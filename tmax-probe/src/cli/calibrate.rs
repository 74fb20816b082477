//! `tmax-probe` without a subcommand: measures, reports, and stores the calibration.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::boundary::{CACHE_LINE, CLASSES};
use crate::costs;
use crate::error::Error;
use crate::estimate::findings;
use crate::journal::Journal;
use crate::kernel::ThisMachine;
use crate::plan::{self, Depth};
use crate::report::{plot, text};
use crate::results::Results;
use crate::simulated::{Outcomes, Simulated};
use crate::stored::{self, Refuted, path_of_refuted};
use crate::survey::{Unobserved, survey};
use clap::Args;
use wordpatch::calibration::{self, Calibration};

use super::progress::Progress;
use super::{Failure, code, print, program, say};

#[derive(Debug, Args)]
pub(super) struct Calibrate {
    /// Run for less than a minute, and detect less
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// Run the paper's grid (2,500 trials of 50 million toggles): many hours. Resumes an
    /// interrupted run
    #[arg(long)]
    full: bool,

    /// Discard an interrupted --full run and start again
    #[arg(long, requires = "full")]
    restart: bool,

    /// Print the results as JSON (version, cpu, window_bytes, t_max_ticks, confidence, tears, ...)
    #[arg(long)]
    json: bool,

    /// Write the results with every trial to FILE, as JSON, for `tmax-probe report`
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Plot tears against the wait and against the offset of the split
    #[arg(long, value_name = "FILE.svg|png", value_parser = plot_path)]
    plot: Option<PathBuf>,

    /// Write the calibration to FILE instead of the default path
    #[arg(long, value_name = "FILE", conflicts_with = "no_save")]
    calibration: Option<PathBuf>,

    /// Replace the calibration that is there, instead of combining it with this run, and forget
    /// what was refuted on this machine
    #[arg(long, conflicts_with = "no_save")]
    replace: bool,

    /// Write no calibration
    #[arg(long)]
    no_save: bool,

    /// Run against simulated machines instead of this one: either one with this window (bytes) and
    /// T_max (ticks), or this many machines that tear at rates and in clusters like real ones, of
    /// which unsafe results are counted
    #[arg(
        long,
        value_name = "WINDOW:T_MAX|MACHINES",
        num_args = 0..=1,
        default_missing_value = "32:800",
        value_parser = simulation,
        conflicts_with_all = ["full", "calibration", "replace"]
    )]
    simulate: Option<Simulation>,
}

/// The argument of `--simulate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Simulation {
    One { window: u32, t_max: u32 },
    Many { machines: u64 },
}

/// Checks a file name whose extension selects the format of the plot.
pub(super) fn plot_path(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    let known = path.extension().is_some_and(|extension| extension == "svg" || extension == "png");
    if known { Ok(path) } else { Err("the name must end in .svg or .png".into()) }
}

fn simulation(text: &str) -> Result<Simulation, String> {
    let Some((window, t_max)) = text.split_once(':') else {
        let machines = text.parse().ok().filter(|machines| (1..=100_000).contains(machines));
        let machines = machines.ok_or("WINDOW:T_MAX such as 32:800, or 1 to 100000 machines, is expected")?;
        return Ok(Simulation::Many { machines });
    };
    let window: u32 = window.parse().map_err(|error| format!("window: {error}"))?;
    if !CLASSES[1..].contains(&window) {
        return Err("the window is 8, 16, 32 or 64 bytes".into());
    }
    let t_max: u32 = t_max.parse().map_err(|error| format!("T_max: {error}"))?;
    if !(1..=2_000).contains(&t_max) {
        return Err("T_max is 1 to 2000 ticks".into());
    }
    Ok(Simulation::One { window, t_max })
}

pub(super) fn run(arguments: &Calibrate) -> Result<u8, Failure> {
    let depth = match (arguments.quick, arguments.full) {
        (true, _) => Depth::Quick,
        (_, true) => Depth::Full,
        _ => Depth::Standard,
    };
    for path in arguments.output.iter().chain(&arguments.plot) {
        check_writable(path)?;
    }
    let results = match arguments.simulate {
        Some(Simulation::Many { machines }) => return simulate_many(arguments, depth, machines),
        Some(Simulation::One { window, t_max }) => {
            Results::new(survey(&mut Simulated::new(window, t_max, 1), depth, &mut Unobserved)?, None)
        }
        None => measure(depth, arguments.restart)?,
    };
    // Files first: a failure to print must not lose them, which may be the result of hours.
    let written = write_files(arguments, &results);
    print(&if arguments.json { results.to_json() } else { text::render(&results) })?;
    written?;
    match arguments.simulate {
        Some(Simulation::One { window, t_max }) => Ok(recovered(&results, window, t_max)),
        _ => keep(arguments, &results),
    }
}

/// Fails if a file cannot be written, before the measurement rather than after it.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let exists = match std::fs::metadata(path) {
        // Opening a pipe may wait for its reader.
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => return Ok(()),
        metadata => metadata.is_ok(),
    };
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|source| Error::File { path: path.to_owned(), source })?;
    if !exists {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn write_files(arguments: &Calibrate, results: &Results) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        std::fs::write(path, results.to_json())
            .map_err(|source| Error::File { path: path.clone(), source })?;
    }
    if let Some(path) = &arguments.plot {
        plot::draw(results, path)?;
    }
    Ok(())
}

/// The expected duration of a run, before its findings are known, in milliseconds.
fn expected(depth: Depth, ticks_per_us: f64) -> u64 {
    let parts = [
        plan::window(depth),
        plan::calls(depth),
        plan::coarse(depth, CACHE_LINE),
        plan::fine(depth, CACHE_LINE, 500, 0),
    ];
    parts.iter().flatten().map(|spec| plan::expected_milliseconds(spec, ticks_per_us * 1e3)).sum()
}

fn measure(depth: Depth, restart: bool) -> Result<Results, Failure> {
    let ticks_per_us = costs::ticks_per_us();
    let mut machine = ThisMachine::new(program())?;
    let mut progress = Progress::new(expected(depth, ticks_per_us), ticks_per_us);
    let trials = if depth == Depth::Full {
        full(&mut machine, restart, &mut progress)
    } else {
        survey(&mut machine, depth, &mut progress).map_err(Failure::from)
    };
    progress.end();
    Ok(Results::new(trials?, Some(costs::measure(ticks_per_us)?)))
}

/// Runs the full grid, with a journal.
fn full(
    machine: &mut ThisMachine,
    restart: bool,
    progress: &mut Progress,
) -> Result<Vec<crate::trial::Trial>, Failure> {
    let path = journal_path().ok_or(Failure {
        code: code::FAILED,
        message: "no folder for the journal: set HOME or XDG_STATE_HOME".into(),
    })?;
    if restart {
        let _ = std::fs::remove_file(&path);
    }
    let made_by = concat!("tmax-probe ", env!("CARGO_PKG_VERSION"));
    let mut journal = Journal::open(&path, made_by, machine)?;
    if journal.kept() > 0 {
        say(&format!("resuming after {} trials, stored in {}", journal.kept(), path.display()));
    }
    match survey(&mut journal, Depth::Full, progress) {
        Ok(trials) => {
            journal.remove()?;
            Ok(trials)
        }
        Err(Error::Interrupted) => Err(Failure {
            code: code::INTERRUPTED,
            message: format!("interrupted; `tmax-probe --full` resumes from {}", path.display()),
        }),
        Err(error) => Err(error.into()),
    }
}

/// The path of the journal, in the XDG state directory.
fn journal_path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("fastinst/tmax-probe.journal"))
}

/// Compares the findings with the parameters of the simulated machine.
fn recovered(results: &Results, window: u32, t_max: u32) -> u8 {
    let windows_agree = results.window_bytes.map(|found| found == window);
    let t_max_holds = results.t_max_ticks.map(|found| found >= t_max);
    let word = |agrees| match agrees {
        Some(true) => "recovered",
        Some(false) => "WRONG",
        None => "not known",
    };
    say(&format!(
        "the simulated machine has a window of {window} bytes ({}) and a T_max of {t_max} ticks ({})",
        word(windows_agree),
        word(t_max_holds)
    ));
    match (windows_agree, t_max_holds) {
        (Some(false), _) | (_, Some(false)) => code::CHECK_FAILED,
        (Some(true), Some(true)) => 0,
        _ => code::UNDECIDED,
    }
}

/// Runs against this number of machines, and counts the outcomes.
fn simulate_many(arguments: &Calibrate, depth: Depth, machines: u64) -> Result<u8, Failure> {
    let mut outcomes = Outcomes::default();
    for number in 0..machines {
        let mut machine = Simulated::drawn(number);
        let tears = findings(&survey(&mut machine, depth, &mut Unobserved)?);
        outcomes.add(&machine, tears.window_bytes(), tears.t_max_ticks());
    }
    let Outcomes { with_control, windows_known, t_max_known, unsafe_calibrations, .. } = outcomes;
    print(&if arguments.json {
        serde_json::to_string_pretty(&outcomes).expect("numbers") + "\n"
    } else {
        format!(
            "{machines} simulated machines: {unsafe_calibrations} unsafe results\n\
             window         found of {windows_known}; not known of {} ({} of them tear inside a line, the others across lines only)\n\
             T_max          found of {t_max_known}; not known of {}\n",
            machines - windows_known,
            with_control.saturating_sub(windows_known),
            machines - t_max_known,
        )
    })?;
    Ok(if unsafe_calibrations > 0 { code::CHECK_FAILED } else { 0 })
}

/// Combines the results with the calibration that is there, and writes what follows from both.
/// What the results refute is written to `FILE.refuted`.
fn keep(arguments: &Calibrate, results: &Results) -> Result<u8, Failure> {
    let found = results.calibration();
    let end = if found.is_some() { 0 } else { code::UNDECIDED };
    if arguments.no_save {
        return Ok(end);
    }
    let Some(path) = arguments.calibration.clone().or_else(calibration::default_path) else {
        say(&format!("{}=none: no calibration is written", calibration::ENVIRONMENT));
        return Ok(end);
    };
    if arguments.replace {
        for old in [&path, &path_of_refuted(&path)] {
            remove(old)?;
        }
    }
    update(&path, found.as_ref(), results)?;
    Ok(end)
}

/// Updates the calibration at `path` by what was found.
fn update(path: &Path, found: Option<&Calibration>, results: &Results) -> Result<(), Failure> {
    let before = stored::of_host(path, &results.host);
    let aside = path_of_refuted(path);
    let mut refuted = stored::of_host(&aside, &results.host);
    let place = path.display();
    if let Some(before) = &before {
        let now = Refuted::by_run(&before.model, &results.tears);
        if now.any() {
            refuted = stored::refuted(before, now, refuted.as_ref());
            write_refuted(refuted.as_ref(), &aside)?;
            say(&format!(
                "the calibration in {place} does NOT hold; what was refuted is in {}",
                aside.display()
            ));
        }
    }
    match stored::combined(before.as_ref(), found, refuted.as_ref()) {
        Some(next) if before.as_ref().is_some_and(|before| before.model == next.model) => {
            say(&format!("the calibration in {place} is kept: this run adds nothing to it"));
        }
        Some(next) => {
            next.write(path).map_err(|error| cannot_write(path, &error))?;
            say(&format!("calibration written to {place}"));
            if found.is_some_and(|found| found.model != next.model) {
                say("it combines this run with what was known from earlier ones; --replace starts afresh");
            }
        }
        None if before.is_some() => {
            remove(path)?;
            say(&format!("{place} was removed: the vendors' guarantees are in force"));
        }
        None if found.is_some() => say(&format!(
            "no calibration is written: what this run has found was refuted before ({}); --replace starts afresh",
            aside.display()
        )),
        None => say(
            "neither window nor T_max is known: no calibration is written, and the vendors' guarantees stay in force",
        ),
    }
    Ok(())
}

/// Writes refuted values to `FILE.refuted`, if there are any.
pub(super) fn write_refuted(refuted: Option<&Calibration>, aside: &Path) -> Result<(), Failure> {
    let Some(refuted) = refuted else { return Ok(()) };
    refuted.write(aside).map_err(|source| Error::File { path: aside.to_owned(), source }.into())
}

/// Removes a file, if there is one.
pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(Error::File { path: path.to_owned(), source }.into())
        }
        _ => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!(
        "the calibration could not be written to {}: {error}; choose another path by --calibration FILE and {}",
        path.display(),
        calibration::ENVIRONMENT
    );
    Failure { code: code::FAILED, message }
}

#[cfg(test)]
mod tests {
    use crate::costs::Costs;

    use super::*;

    /// The results of a run on a machine with this window and T_max.
    fn results(window: u32, t_max: u32, depth: Depth) -> Results {
        let trials = survey(&mut Simulated::new(window, t_max, 1), depth, &mut Unobserved);
        let costs = Costs {
            ticks_per_us: 2e3,
            store: 20,
            alias_store: 40,
            mprotect_pair: 2_000,
            int3_round_trip: 3_000,
            membarrier: Vec::new(),
        };
        Results::new(trials.expect("a simulated machine"), Some(costs))
    }

    #[test]
    fn a_run_refutes_the_calibration_and_is_refuted_by_what_is_known() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("calibration.toml");
        let stored = || Calibration::read(&path).ok().map(|stored| stored.model);
        let run = |results: &Results| update(&path, results.calibration().as_ref(), results);
        let small = results(16, 800, Depth::Standard);
        let large = results(32, 800, Depth::Quick);
        run(&large).expect("written");
        assert_eq!(stored().expect("written").window_bytes, 32);
        run(&small).expect("written");
        let known = stored().expect("written");
        assert_eq!((known.window_bytes, known.t_max_ticks.is_some()), (16, true));
        let refuted = Calibration::read(&path_of_refuted(&path)).expect("written");
        assert_eq!((refuted.model.window_bytes, refuted.model.t_max_ticks), (32, None));
        // A run that has missed the tears of smaller windows.
        run(&large).expect("nothing to write");
        assert_eq!(stored(), Some(known));
        remove(&path).expect("removed");
        run(&large).expect("nothing to write");
        assert_eq!(stored(), None, "a refuted window is claimed again");
    }
}
