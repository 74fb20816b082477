//! `tmax-probe` without a subcommand: measures, reports, and stores the calibration.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use clap::Args;
use tmax_probe::boundary::{CACHE_LINE, CLASSES};
use tmax_probe::costs;
use tmax_probe::error::Error;
use tmax_probe::estimate::findings;
use tmax_probe::journal::Journal;
use tmax_probe::kernel::ThisMachine;
use tmax_probe::plan::{self, Depth};
use tmax_probe::report::{plot, text};
use tmax_probe::results::Results;
use tmax_probe::simulated::{Outcomes, Simulated};
use tmax_probe::survey::{Unobserved, survey};
use wordpatch::calibration::{self, Calibration, Model};

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
        conflicts_with_all = ["full", "calibration"]
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
) -> Result<Vec<tmax_probe::trial::Trial>, Failure> {
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

/// Whether the results of a run agree with the existing calibration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreement {
    /// They do not contradict the file, or there is none.
    Consistent,
    /// They contain a tear that contradicts the file.
    Refuted,
}

/// The change of the calibration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The new calibration is written.
    Write,
    /// The file is kept: it has more information than this run.
    Keep,
    /// The file is removed: it was refuted, and there is no replacement.
    Remove,
    /// There is nothing to write.
    Nothing,
}

impl Action {
    /// The action for a valid file with the model `before`, if there is one, and a run that found
    /// `found`.
    fn choose(before: Option<&Model>, agreement: Agreement, found: Option<&Model>) -> Self {
        // A run without a result for a parameter has less information than one with a result, but a
        // larger window is new information.
        let has_more_information = |before: &Model, found: &Model| {
            before.window_bytes > found.window_bytes
                || (before.window_bytes == found.window_bytes
                    && before.t_max_ticks.is_some()
                    && found.t_max_ticks.is_none())
        };
        match (before, found) {
            (Some(_), None) if agreement == Agreement::Refuted => Self::Remove,
            (Some(before), Some(found))
                if agreement == Agreement::Consistent && has_more_information(before, found) =>
            {
                Self::Keep
            }
            (_, Some(_)) => Self::Write,
            (Some(_), None) => Self::Keep,
            (None, None) => Self::Nothing,
        }
    }
}

/// Writes the calibration that follows from the results, if there is one, and removes one that they
/// refute.
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
    let before = Calibration::read(&path).ok().filter(|before| before.check_host(&results.host).is_ok());
    let before = before.map(|before| before.model);
    let agreement = before.map_or(Agreement::Consistent, |before| Agreement::of(&before, results));
    let place = path.display();
    match Action::choose(before.as_ref(), agreement, found.as_ref().map(|found| &found.model)) {
        Action::Write => {
            let found = found.expect("there is one to write");
            found.write(&path).map_err(|error| cannot_write(&path, &error))?;
            say(&format!("calibration written to {place}"));
        }
        Action::Keep => {
            say(&format!("the calibration in {place} has more information, was not refuted, and is kept"))
        }
        Action::Remove => {
            std::fs::remove_file(&path).map_err(|source| Error::File { path: path.clone(), source })?;
            say(&format!(
                "the calibration in {place} does NOT hold and was removed: the vendors' guarantees are in force"
            ));
        }
        Action::Nothing => say(
            "neither window nor T_max is known: no calibration is written, and the vendors' guarantees stay in force",
        ),
    }
    Ok(end)
}

impl Agreement {
    /// Compares the results with this model.
    fn of(model: &Model, results: &Results) -> Self {
        let t_max_tore =
            model.t_max_ticks.is_some_and(|t_max| results.tears.from_wait(t_max).torn_trials > 0);
        let is_refuted = results.tears.refutes(model.window_bytes as u32) || t_max_tore;
        if is_refuted { Self::Refuted } else { Self::Consistent }
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
    use wordpatch::WaitPolicy;

    use super::*;

    #[test]
    fn a_file_is_kept_if_it_has_more_information_and_removed_if_it_is_refuted() {
        use Agreement::{Consistent, Refuted};
        let model = |window_bytes, t_max_ticks: Option<u32>| {
            let wait = if t_max_ticks.is_some() { WaitPolicy::TMax } else { WaitPolicy::Membarrier };
            Some(Model { window_bytes, t_max_ticks, wait })
        };
        let check = |before: Option<Model>, agreement, found: Option<Model>, expected| {
            assert_eq!(Action::choose(before.as_ref(), agreement, found.as_ref()), expected);
        };
        check(None, Consistent, None, Action::Nothing);
        check(None, Consistent, model(32, None), Action::Write);
        // The same results again, a shorter T_max, a larger window.
        check(model(32, Some(900)), Consistent, model(32, Some(800)), Action::Write);
        check(model(8, Some(900)), Consistent, model(32, None), Action::Write);
        // A quick run, or one on a busy machine.
        check(model(32, Some(900)), Consistent, model(32, None), Action::Keep);
        check(model(32, None), Consistent, model(8, Some(900)), Action::Keep);
        check(model(32, None), Consistent, None, Action::Keep);
        // A tear that contradicts the file.
        check(model(64, None), Refuted, model(32, None), Action::Write);
        check(model(64, Some(900)), Refuted, None, Action::Remove);
        check(model(64, Some(900)), Refuted, model(8, Some(2_000)), Action::Write);
    }
}
