//! `tmax-probe verify`: checks whether the calibration still holds.

use std::path::{Path, PathBuf};

use crate::costs::ticks_per_us;
use crate::estimate::Count;
use crate::kernel::ThisMachine;
use crate::plan::expected_milliseconds;
use crate::stored::{self, Refuted, path_of_refuted};
use crate::trial::Method;
use crate::verify::{Effort, Verdict, Verification, parts, verify};
use crate::watch::{End, run_when_idle, watch};
use clap::Args;
use wordpatch::calibration::{Host, Status, status};
use wordpatch::{FetchModel, FetchWindow, TMax, WaitPolicy};

use super::calibrate::{remove, write_refuted};
use super::progress::{self, Progress};
use super::{Failure, code, print, program, say};

/// Stress-test the calibration in force (or another model): about forty seconds
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Toggle each of the 4 splits this often through wordpatch::patch, with 2 to 6 executors each.
    /// The paper's stress is 50000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    toggles: Option<u64>,

    /// Check this window in bytes instead of the calibrated one; one that is too large shows tears
    #[arg(long, value_name = "BYTES", value_parser = window)]
    window: Option<FetchWindow>,

    /// Check this T_max in ticks instead of the calibrated one; one that is too small shows tears
    #[arg(long, value_name = "TICKS")]
    t_max: Option<u32>,

    /// Check until interrupted, only on idle processors, and for a hundredth of the time. A refuted
    /// calibration is moved to FILE.refuted, and the program ends with code 4; otherwise with 0
    #[arg(long, conflicts_with_all = ["toggles", "window", "t_max"])]
    watch: bool,

    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

fn window(text: &str) -> Result<FetchWindow, String> {
    let known = text.parse().ok().and_then(FetchWindow::from_bytes);
    known.ok_or_else(|| "the window is 8, 16, 32 or 64 bytes".into())
}

/// The model to check, and its file if it is the calibrated one.
fn model(arguments: &Verify) -> Result<(FetchModel, Option<PathBuf>), Failure> {
    let now = FetchModel::in_force();
    if arguments.window.is_some() || arguments.t_max.is_some() {
        let window = arguments.window.unwrap_or(now.window);
        let t_max = arguments.t_max.map(TMax).or(now.t_max);
        let wait = if t_max.is_some() { WaitPolicy::TMax } else { WaitPolicy::Membarrier };
        return Ok((FetchModel { window, t_max, wait, ..now }, None));
    }
    match status() {
        Status::Loaded { path, .. } => Ok((now, Some(path.clone()))),
        refused => {
            let absent = "there is no calibration; run tmax-probe, or name a model by --window and --t-max";
            let (code, message) = match refused.warning() {
                Some(why) => (code::FAILED, why),
                None => (code::UNDECIDED, absent.to_owned()),
            };
            Err(Failure { code, message })
        }
    }
}

pub(super) fn run(arguments: &Verify) -> Result<u8, Failure> {
    let (model, path) = model(arguments)?;
    let mut machine = ThisMachine::new(program())?.assuming(&model);
    if arguments.watch {
        return run_watch(arguments, &mut machine, &model, path.as_deref());
    }
    let effort = Effort { toggles: arguments.toggles, ..Effort::SHORT };
    let ticks_per_us = ticks_per_us();
    let specs = parts(&model, effort).into_iter().flat_map(|(_, specs)| specs);
    let expected = specs.map(|spec| expected_milliseconds(&spec, ticks_per_us * 1e3)).sum();
    let mut progress = Progress::new(expected, ticks_per_us);
    let seen = verify(&mut machine, &model, effort, &mut progress);
    progress.end();
    let seen = seen?;
    show(arguments, &seen)?;
    if seen.t_max_ticks.is_some() && seen.protocol_control.torn_trials == 0 {
        say("no trial without waits tore either: this run says nothing about T_max");
    }
    Ok(match seen.verdict() {
        Verdict::Holds => 0,
        Verdict::Blind => {
            say(
                "no trial tore that must not, but none tore in the control either: the check could not detect tears",
            );
            code::UNDECIDED
        }
        Verdict::Refuted => {
            say("the model does NOT hold here; run tmax-probe");
            code::CHECK_FAILED
        }
    })
}

fn run_watch(
    arguments: &Verify,
    machine: &mut ThisMachine,
    model: &FetchModel,
    path: Option<&Path>,
) -> Result<u8, Failure> {
    run_when_idle()?;
    progress::end_at_signals();
    say("checking on idle processors until interrupted");
    match watch(machine, model, |_| progress::is_interrupted()) {
        Ok(End::Refuted(seen)) => {
            show(arguments, &seen)?;
            if let Some(path) = path {
                let aside = set_aside(path, &seen)?;
                say(&format!(
                    "the calibration does NOT hold here and was moved to {}: new processes use the vendors' guarantees; restart \
             running ones, and run tmax-probe",
                    aside.display()
                ));
            }
            Ok(code::CHECK_FAILED)
        }
        Ok(End::Over(seen)) => {
            show(arguments, &seen)?;
            Ok(0)
        }
        Err(error) => Err(error.into()),
    }
}

/// Moves what is refuted to `FILE.refuted`, so that no process uses it any more and no later run
/// claims it again. The rest of the calibration goes, too: the next run measures it again.
fn set_aside(path: &Path, seen: &Verification) -> Result<PathBuf, Failure> {
    let host = Host::here();
    let aside = path_of_refuted(path);
    let earlier = stored::of_host(&aside, &host);
    let refuted = stored::of_host(path, &host)
        .and_then(|stored| stored::refuted(&stored, Refuted::by_check(seen), earlier.as_ref()));
    write_refuted(refuted.as_ref(), &aside)?;
    remove(path)?;
    Ok(aside)
}

fn show(arguments: &Verify, seen: &Verification) -> Result<(), Failure> {
    print(&if arguments.json {
        serde_json::to_string_pretty(seen).expect("numbers and names") + "\n"
    } else {
        text(seen)
    })
}

fn text(seen: &Verification) -> String {
    let line = |what: &str, count: &Count| {
        if count.trials == 0 {
            return format!("{what:<26} not tried\n");
        }
        format!(
            "{what:<26} {} of {} trials tore ({:.1e} toggles, {:.1e} executions, {} torn)\n",
            count.torn_trials, count.trials, count.toggles as f64, count.executions as f64, count.tears
        )
    };
    let t_max = seen.t_max_ticks.map_or("unknown".to_owned(), |ticks| format!("{ticks} ticks"));
    let mut text = format!("checked                    window {} bytes, T_max {t_max}\n", seen.window_bytes);
    text += &line(&format!("control, across {}", seen.control_class), &seen.control);
    for at in &seen.inside {
        let place = match at.class {
            4 => "inside a quadword".to_owned(),
            class => format!("one store, across {class}"),
        };
        text += &line(&place, &at.count);
    }
    if seen.t_max_ticks.is_some() {
        text += &line("control, without waits", &seen.protocol_control);
    }
    text += &line("protocol with T_max", &seen.protocol);
    text += &line("wordpatch::patch", &seen.wordpatch);
    if seen.inside.iter().any(|at| at.class > 4) {
        text += &format!(
            "power                      a window that tears in one trial of 26 would have been refuted with {:.1} %\n",
            seen.power * 100.0
        );
    }
    for trial in &seen.torn {
        let how = match trial.spec.method {
            Method::Store | Method::LockedStore => "one store",
            Method::Protocol { .. } => "protocol",
            Method::Wordpatch => "wordpatch::patch",
        };
        text += &format!(
            "torn: {how}, cut {} bytes into the line after its byte {}, {} executors: {} of {} executions\n",
            trial.spec.boundary, trial.spec.front, trial.spec.executors, trial.tears, trial.executions
        );
    }
    text
}
