//! `tmax-probe` without a verb: measures, reports, and keeps the calibration.

use std::path::{Path, PathBuf};

use clap::Args;
use tmax_probe::costs;
use tmax_probe::error::Error;
use tmax_probe::estimate::TMaxVerdict;
use tmax_probe::journal::Journal;
use tmax_probe::kernel::ThisMachine;
use tmax_probe::plan::{self, Depth};
use tmax_probe::report::{plot, text};
use tmax_probe::results::Results;
use tmax_probe::simulated::Simulated;
use tmax_probe::survey::survey;
use tmax_probe::trial::CACHE_LINE;
use wordpatch::calibration;

use super::progress::Progress;
use super::{Failure, code, print, program, say};

/// Of a simulated machine: how many of a million executions inside a cache line may tear.
const SIMULATED_RARITY: u32 = 20;

#[derive(Debug, Args)]
pub(super) struct Calibrate {
    /// Take less than a minute, and see less
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// Run the paper's grid (2,500 trials of 50 million toggles): many hours. Goes on where an interrupted run was
    #[arg(long)]
    full: bool,

    /// Forget an interrupted --full run and begin anew
    #[arg(long, requires = "full")]
    restart: bool,

    /// Print the results as JSON (version, cpu, window_bytes, t_max_ticks, confidence, tears, ...)
    #[arg(long)]
    json: bool,

    /// Write the results with every trial to FILE, as JSON, for `tmax-probe report`
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Draw tears against the wait and against the place of the cut
    #[arg(long, value_name = "FILE.svg|png", value_parser = plot_path)]
    plot: Option<PathBuf>,

    /// Write the calibration to FILE instead of the usual place
    #[arg(long, value_name = "FILE", conflicts_with = "no_save")]
    calibration: Option<PathBuf>,

    /// Write no calibration
    #[arg(long)]
    no_save: bool,

    /// Run against a simulated machine with this window (bytes) and T_max (ticks), and see whether both are recovered
    #[arg(
        long,
        value_name = "WINDOW:T_MAX",
        num_args = 0..=1,
        default_missing_value = "32:800",
        value_parser = simulated_machine,
        conflicts_with_all = ["full", "calibration"]
    )]
    simulate: Option<(u32, u32)>,
}

/// A file name that says which kind of picture it is to be.
pub(super) fn plot_path(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    let known = path.extension().is_some_and(|extension| extension == "svg" || extension == "png");
    if known { Ok(path) } else { Err("the name must end in .svg or .png".into()) }
}

fn simulated_machine(text: &str) -> Result<(u32, u32), String> {
    let (window, t_max) = text.split_once(':').ok_or("WINDOW:T_MAX is expected, such as 32:800")?;
    let window: u32 = window.parse().map_err(|error| format!("window: {error}"))?;
    if !plan::CLASSES[1..].contains(&window) {
        return Err("the window is 8, 16, 32 or 64 bytes".into());
    }
    let t_max: u32 = t_max.parse().map_err(|error| format!("T_max: {error}"))?;
    if (1..=2_000).contains(&t_max) { Ok((window, t_max)) } else { Err("T_max is 1 to 2000 ticks".into()) }
}

pub(super) fn run(arguments: &Calibrate) -> Result<u8, Failure> {
    let depth = match (arguments.quick, arguments.full) {
        (true, _) => Depth::Quick,
        (_, true) => Depth::Full,
        _ => Depth::Standard,
    };
    let results = match arguments.simulate {
        Some(truth) => simulate(depth, truth)?,
        None => measure(depth, arguments.restart)?,
    };
    // Files first: a failed one must not cost the report, which may be all that is left of hours.
    let written = write_files(arguments, &results);
    print(&if arguments.json { results.to_json() } else { text::render(&results) })?;
    written?;
    match arguments.simulate {
        Some(truth) => recovered(&results, truth),
        None => keep(arguments, &results),
    }
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

/// What a run is expected to take before its findings are known, in milliseconds.
fn expected(depth: Depth, ticks_per_us: f64) -> u64 {
    let parts = [
        plan::window(depth),
        plan::calls(depth),
        plan::coarse(depth, CACHE_LINE),
        plan::fine(depth, CACHE_LINE, 500),
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

/// The long run, with a journal.
fn full(
    machine: &mut ThisMachine,
    restart: bool,
    progress: &mut Progress,
) -> Result<Vec<tmax_probe::trial::Trial>, Failure> {
    let path = journal_path().ok_or(Failure {
        code: code::FAILED,
        message: "no place for the journal: set HOME or XDG_STATE_HOME".into(),
    })?;
    if restart {
        let _ = std::fs::remove_file(&path);
    }
    let made_by = concat!("tmax-probe ", env!("CARGO_PKG_VERSION"));
    let mut journal = Journal::open(&path, made_by, machine)?;
    if journal.kept() > 0 {
        say(&format!("going on after {} trials, kept in {}", journal.kept(), path.display()));
    }
    match survey(&mut journal, Depth::Full, progress) {
        Ok(trials) => {
            journal.remove()?;
            Ok(trials)
        }
        Err(Error::Interrupted) => Err(Failure {
            code: code::INTERRUPTED,
            message: format!("interrupted; `tmax-probe --full` goes on from {}", path.display()),
        }),
        Err(error) => Err(error.into()),
    }
}

/// In the XDG state directory.
fn journal_path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("fastinst/tmax-probe.journal"))
}

fn simulate(depth: Depth, (window, t_max): (u32, u32)) -> Result<Results, Failure> {
    let mut machine = Simulated::new(window, t_max, SIMULATED_RARITY, 1);
    // Its trials take no time.
    let mut progress = Progress::new(0, 0.0);
    let trials = survey(&mut machine, depth, &mut progress);
    progress.end();
    Ok(Results::new(trials?, None))
}

fn recovered(results: &Results, (window, t_max): (u32, u32)) -> Result<u8, Failure> {
    let bounded = match results.tears.t_max {
        TMaxVerdict::Found { t_max: found, .. } => found >= t_max,
        _ => false,
    };
    let right = results.window_bytes == Some(window) && bounded;
    say(&format!(
        "the simulated machine has a window of {window} bytes and a T_max of {t_max} ticks: {}",
        if right { "recovered" } else { "NOT recovered" }
    ));
    Ok(if right { 0 } else { code::CHECK_FAILED })
}

/// Writes the calibration, if there is one.
fn keep(arguments: &Calibrate, results: &Results) -> Result<u8, Failure> {
    let Some(calibration) = results.calibration() else {
        say(
            "the run could not tell the fetch window: no calibration is written, and vendor guarantees stay in force",
        );
        return Ok(code::UNDECIDED);
    };
    if arguments.no_save {
        return Ok(0);
    }
    let Some(path) = arguments.calibration.clone().or_else(calibration::default_path) else {
        say(&format!("{}=none: no calibration is written", calibration::ENVIRONMENT));
        return Ok(0);
    };
    calibration.write(&path).map_err(|error| cannot_write(&path, &error))?;
    say(&format!("calibration written to {}", path.display()));
    Ok(0)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!(
        "the calibration could not be written to {}: {error}; name another place by --calibration FILE and {}",
        path.display(),
        calibration::ENVIRONMENT
    );
    Failure { code: code::FAILED, message }
}
