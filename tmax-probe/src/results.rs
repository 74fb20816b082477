//! The results of a run, as they are stored.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use wordpatch::WaitPolicy;
use wordpatch::calibration::{self, Calibration, Evidence, Host, Model};

use crate::costs::Costs;
use crate::error::Error;
use crate::estimate::{CONFIDENCE, Findings, SAFETY_FACTOR, TMaxVerdict, findings};
use crate::kernel::usable_processors;
use crate::surroundings::blind_spots;
use crate::survey::VENDORS_WINDOW;
use crate::trial::Trial;

/// Version of the format.
const VERSION: u32 = 2;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The version of the format: 2.
    pub version: u32,
    /// The name and version of the program.
    pub made_by: String,
    /// The time at which the run ended, in seconds since 1970.
    pub made_unix_s: u64,
    /// The name of the processor.
    pub cpu: String,
    /// Whether the machine is simulated.
    pub simulated: bool,
    /// The machine on which the trials ran.
    pub host: Host,
    /// The fetch window in bytes; null if it is not known.
    pub window_bytes: Option<u32>,
    /// T_max in ticks, including the safety factor; null if it is not known.
    pub t_max_ticks: Option<u32>,
    /// The confidence level of every bound.
    pub confidence: f64,
    /// The findings by class, boundary and wait, with the verdicts.
    pub tears: Findings,
    /// The costs on this machine; null in a simulated run.
    pub costs: Option<Costs>,
    /// The advice on how to wait and when to batch.
    pub advice: Option<Advice>,
    /// Limits of what the run could detect.
    pub blind_spots: Vec<String>,
    /// Every trial, in order.
    pub trials: Vec<Trial>,
}

/// Advice that follows from T_max and the costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The kind of wait whose worst case is cheaper.
    pub wait: WaitPolicy,
    /// The cost of such a wait, in ticks, in the worst case.
    pub wait_ticks: u64,
    /// The cost of the other kind, if it is available.
    pub other_ticks: Option<u64>,
    /// The batch size, in straddlers, above which the stores cost more than the waits.
    pub batch: u64,
}

/// The number of waits in the patch of a straddler; it has one more store.
const WAITS: u64 = 2;
const STORES: u64 = 3;

impl Advice {
    fn new(t_max: Option<u32>, costs: &Costs) -> Self {
        let membarrier = costs.membarrier_at_worst();
        let (wait, wait_ticks, other_ticks) = match t_max.map(u64::from) {
            Some(t_max) if t_max < membarrier => (WaitPolicy::TMax, t_max, Some(membarrier)),
            t_max => (WaitPolicy::Membarrier, membarrier, t_max),
        };
        let batch = (WAITS * wait_ticks).div_ceil(STORES * costs.alias_store.max(1));
        Self { wait, wait_ticks, other_ticks, batch }
    }
}

impl Results {
    /// The results of `trials`. A simulated machine has no costs.
    pub fn new(trials: Vec<Trial>, costs: Option<Costs>) -> Self {
        let host = Host::here();
        let tears = findings(&trials);
        let t_max_ticks = tears.t_max_ticks();
        let processors = usable_processors().map_or(0, |processors| processors.len());
        let max_executors = trials.iter().map(|trial| trial.spec.executors).max().unwrap_or(0);
        Self {
            version: VERSION,
            made_by: concat!("tmax-probe ", env!("CARGO_PKG_VERSION")).into(),
            made_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            cpu: host.cpu_name.clone(),
            simulated: costs.is_none(),
            window_bytes: tears.window_bytes(),
            t_max_ticks,
            confidence: CONFIDENCE,
            tears,
            advice: costs.as_ref().map(|costs| Advice::new(t_max_ticks, costs)),
            costs,
            blind_spots: blind_spots(&host, processors, max_executors),
            host,
            trials,
        }
    }

    /// The calibration that follows from the results, if the window or T_max is known and the
    /// machine is real. If the window is not known, it is that of the vendors' guarantee.
    pub fn calibration(&self) -> Option<Calibration> {
        let wait = self.advice?.wait;
        if self.window_bytes.is_none() && self.t_max_ticks.is_none() {
            return None;
        }
        let window_bytes = self.window_bytes.unwrap_or(VENDORS_WINDOW);
        let inside = self.tears.weakest_inside(window_bytes);
        let border = self.window_bytes.map(|window| self.tears.class(window));
        let clean_wait_ticks = match self.tears.t_max {
            TMaxVerdict::Known { clean, .. } => clean,
            _ => 0,
        };
        let clean = self.t_max_ticks.map(|_| self.tears.from_wait(clean_wait_ticks)).unwrap_or_default();
        Some(Calibration {
            version: calibration::VERSION,
            made_by: self.made_by.clone(),
            made_unix_s: self.made_unix_s,
            host: self.host.clone(),
            model: Model { window_bytes: window_bytes as usize, t_max_ticks: self.t_max_ticks, wait },
            evidence: Evidence {
                confidence: CONFIDENCE,
                trials_inside_window: inside.trials,
                torn_inside_at_most: inside.share_at_most(),
                torn_at_border_at_least: border.map_or(0.0, |count| count.share_at_least()),
                clean_wait_ticks,
                safety_factor: SAFETY_FACTOR,
                trials_at_clean_waits: clean.trials,
                torn_at_clean_waits_at_most: clean.share_at_most(),
            },
        })
    }

    /// The results as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and text") + "\n"
    }

    /// Reads results from a JSON file.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Content`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text =
            fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        let wrong = |reason: String| Error::Content { path: path.to_owned(), reason };
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| wrong(format!("no results of tmax-probe: {error}")))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let reason = format!("results of version {version}; version {VERSION} is understood");
                return Err(wrong(reason));
            }
            None => return Err(wrong("no results of tmax-probe: no version".into())),
        }
        serde_json::from_value(value).map_err(|error| wrong(error.to_string()))
    }
}
