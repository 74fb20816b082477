//! `tmax-probe verify`: whether the calibration still holds.

use clap::Args;
use tmax_probe::costs::ticks_per_us;
use tmax_probe::estimate::Count;
use tmax_probe::kernel::ThisMachine;
use tmax_probe::trial::Method;
use tmax_probe::verify::{Effort, Verdict, Verification, verify};
use wordpatch::calibration::{Status, status};
use wordpatch::{FetchModel, FetchWindow, TMax, WaitPolicy};

use super::progress::Progress;
use super::{Failure, code, print, program, say};

/// Milliseconds of each part of a short check.
const SHORT: u32 = 6_000;

/// Check by stress that the calibration in force holds here (or another model): some twenty seconds
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Toggle each of the 4 splits so often through wordpatch::patch, with 2 to 6 executors each. The paper's stress is 50000000
    #[arg(long, value_name = "N")]
    toggles: Option<u64>,

    /// Check this window in bytes instead of the calibrated one; one that is too large shows tears
    #[arg(long, value_name = "BYTES", value_parser = window)]
    window: Option<FetchWindow>,

    /// Check this T_max in ticks instead of the calibrated one; one that is too small shows tears
    #[arg(long, value_name = "TICKS")]
    t_max: Option<u32>,

    /// Print what was seen as JSON
    #[arg(long)]
    json: bool,
}

fn window(text: &str) -> Result<FetchWindow, String> {
    let known = text.parse().ok().and_then(FetchWindow::from_bytes);
    known.ok_or_else(|| "the window is 8, 16, 32 or 64 bytes".into())
}

pub(super) fn run(arguments: &Verify) -> Result<u8, Failure> {
    if arguments.window.is_some() || arguments.t_max.is_some() {
        let now = FetchModel::in_force();
        let window = arguments.window.unwrap_or(now.window);
        let t_max = arguments.t_max.map(TMax).or(now.t_max);
        // SAFETY: not known to hold, which is the question. All that this program patches are the trials' instructions, of
        // which every mixture is a valid one.
        unsafe { FetchModel::force(window, t_max, WaitPolicy::TMax) };
    } else if !matches!(status(), Status::Loaded { .. }) {
        let why = status().warning().unwrap_or("there is no calibration; run tmax-probe".into());
        return Err(Failure { code: code::FAILED, message: why });
    }
    let model = FetchModel::in_force();
    let ticks_per_us = ticks_per_us();
    let mut machine = ThisMachine::new(program())?;
    let mut progress = Progress::new(u64::from(SHORT) * 3, ticks_per_us);
    let effort = Effort { milliseconds: SHORT, toggles: arguments.toggles };
    let seen = verify(&mut machine, &model, effort, &mut progress);
    progress.end();
    let seen = seen?;
    print(&if arguments.json {
        serde_json::to_string_pretty(&seen).expect("numbers and text") + "\n"
    } else {
        text(&seen)
    })?;
    Ok(match seen.verdict() {
        Verdict::Holds => 0,
        Verdict::Blind => {
            say("not even a store across a cache line was seen torn: the check was blind");
            code::UNDECIDED
        }
        Verdict::Broken => {
            say("the model does NOT hold here; run tmax-probe");
            code::CHECK_FAILED
        }
    })
}

fn text(seen: &Verification) -> String {
    let line = |what: &str, count: &Count| {
        if count.toggles == 0 {
            return format!("{what:<18} not tried\n");
        }
        format!(
            "{what:<18} {:>9.1e} toggles, {:>9.1e} executions, {} torn (below {:.2e} per million at 95 %)\n",
            count.toggles as f64,
            count.executions as f64,
            count.tears,
            count.per_million_below()
        )
    };
    let t_max = seen.t_max_ticks.map_or("unknown".to_owned(), |ticks| format!("{ticks} ticks"));
    let mut text = format!("checked            window {} bytes, T_max {t_max}\n", seen.window_bytes);
    text += &line("control (tears)", &seen.control);
    text += &line("one store", &seen.one_store);
    text += &line("protocol", &seen.protocol);
    text += &line("wordpatch::patch", &seen.wordpatch);
    for trial in &seen.torn {
        let how = match trial.spec.method {
            Method::Store | Method::LockedStore => "one store",
            Method::Protocol { .. } => "protocol",
            Method::Wordpatch => "wordpatch::patch",
        };
        text += &format!(
            "torn: {how}, cut {} bytes into the line behind byte {}, {} executors: {} of {} executions\n",
            trial.spec.boundary, trial.spec.front, trial.spec.executors, trial.tears, trial.executions
        );
    }
    text
}
