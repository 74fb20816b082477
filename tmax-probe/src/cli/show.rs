//! `tmax-probe show`: the calibration that wordpatch would use here.

use clap::Args;
use wordpatch::calibration::{Calibration, Status, candidates, status};

use super::{Failure, code, print, say};

/// Show the calibration in force, or why there is none
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Print the calibration as JSON: null if there is none
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Show) -> Result<u8, Failure> {
    match status() {
        Status::Loaded { path, calibration } => {
            print(&if arguments.json {
                serde_json::to_string_pretty(calibration).expect("numbers and text") + "\n"
            } else {
                text(&path.display().to_string(), calibration)
            })?;
            Ok(0)
        }
        Status::Absent => {
            let places: Vec<_> = candidates().iter().map(|path| path.display().to_string()).collect();
            let looked = if places.is_empty() {
                "disabled by the environment".to_owned()
            } else {
                format!("there is no file at {}; run tmax-probe", places.join(" or at "))
            };
            say(&format!("no calibration: {looked}"));
            none(arguments)?;
            Ok(code::UNDECIDED)
        }
        refused @ Status::Refused { .. } => {
            say(&refused.warning().unwrap_or_default());
            none(arguments)?;
            Ok(code::FAILED)
        }
    }
}

/// The JSON value of no calibration.
fn none(arguments: &Show) -> Result<(), Failure> {
    if arguments.json { print("null\n") } else { Ok(()) }
}

fn text(path: &str, calibration: &Calibration) -> String {
    let Calibration { made_by, made_unix_s, host, model, evidence, .. } = calibration;
    let level = evidence.confidence * 100.0;
    let percent = |share: f64| share * 100.0;
    let window = if evidence.torn_at_border_at_least > 0.0 {
        format!(
            "of {} trials inside it none tore, at most {:.2} % tear; at its boundary, {:.1} % or more tear ({level} %)",
            evidence.trials_inside_window,
            percent(evidence.torn_inside_at_most),
            percent(evidence.torn_at_border_at_least)
        )
    } else {
        "the vendors' guarantee; the run did not support a larger one".to_owned()
    };
    let t_max = model.t_max_ticks.map_or("unknown".into(), |ticks| {
        format!(
            "{ticks} ticks: {} times the smallest clean wait of {}; of {} trials with this wait or a longer one none tore, at \
             most {:.2} % tear",
            evidence.safety_factor,
            evidence.clean_wait_ticks,
            evidence.trials_at_clean_waits,
            percent(evidence.torn_at_clean_waits_at_most)
        )
    });
    format!(
        "file           {path}\n\
         made           by {made_by}, {made_unix_s} seconds after 1970\n\
         host           {} (family {} model {} stepping {}, microcode {}), {} sockets, hypervisor {}, Linux {}\n\
         fetch window   {} bytes: {window}\n\
         T_max          {t_max}\n\
         wait           by {}\n",
        host.cpu_name,
        host.cpu_family,
        host.cpu_model,
        host.cpu_stepping,
        host.microcode,
        host.sockets,
        host.hypervisor,
        host.kernel,
        model.window_bytes,
        match model.wait {
            wordpatch::WaitPolicy::Membarrier => "membarrier",
            wordpatch::WaitPolicy::TMax => "T_max",
            wordpatch::WaitPolicy::Both => "membarrier and T_max",
        }
    )
}
