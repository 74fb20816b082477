//! The reports of the profiler and of the oracle on a run.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// An estimated figure with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end; `None` if the report has a lower limit only.
    pub high: Option<f64>,
}

impl Estimate {
    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            value: value["value"].as_f64()?,
            low: value["low"].as_f64()?,
            high: value["high"].as_f64(),
        })
    }

    /// Whether the figure is exact.
    pub fn is_exact(&self) -> bool {
        self.high == Some(self.low)
    }

    /// Whether the interval overlaps the range of `truth`.
    pub fn covers(&self, truth: Range) -> bool {
        // The report rounds.
        let slack = 0.5_f64.min(1e-3 * truth.high.abs());
        self.low <= truth.high + slack && self.high.is_none_or(|high| high + slack >= truth.low)
    }

    /// Half the interval divided by the value; `None` without an upper end.
    pub fn stated_error(&self) -> Option<f64> {
        Some((self.high? - self.low) / 2.0 / self.value.max(f64::MIN_POSITIVE))
    }

    /// Whether the value is off by a factor of more than 2 from every truth in the range.
    pub fn is_off_by_2(&self, truth: Range) -> bool {
        self.value > 2.0 * truth.high || self.value < truth.low / 2.0
    }
}

/// The range of a true figure: minimum and maximum of several runs of the oracle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The minimum of the runs.
    pub low: f64,
    /// The maximum of the runs.
    pub high: f64,
}

impl Range {
    /// The range of equivalent figures.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let none = Self { low: f64::INFINITY, high: f64::NEG_INFINITY };
        values
            .into_iter()
            .fold(none, |range, value| Self { low: range.low.min(value), high: range.high.max(value) })
    }

    /// The range, extended at each end by this share.
    pub fn widened(self, share: f64) -> Self {
        Self { low: self.low * (1.0 - share), high: self.high * (1.0 + share) }
    }

    /// The figure in the middle.
    pub fn middle(self) -> f64 {
        (self.low + self.high) / 2.0
    }
}

/// The latencies of a function, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// The mean.
    pub mean: Option<Estimate>,
    /// Percentiles.
    pub p50: Option<Estimate>,
    /// One in ten is longer.
    pub p90: Option<Estimate>,
    /// One in a hundred is longer.
    pub p99: Option<Estimate>,
    /// The function is too short for the clock's resolution.
    pub below_resolution: bool,
}

/// One function of the profiler's report.
#[derive(Clone, Debug)]
pub struct Row {
    /// The function's name.
    pub name: String,
    /// Number of calls.
    pub calls: Estimate,
    /// The total time of the function's calls, callees included.
    pub total_ns: Option<Estimate>,
    /// The latencies of the function's calls.
    pub latency: Option<Latency>,
}

/// The profiler's report.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rows of the executable's functions, by address: those of libraries may have the same.
    pub rows: HashMap<u64, Row>,
    /// The time of all threads.
    pub thread_time_ns: f64,
    /// The stated cost of the profiler, as a share of the program's processor time, and the error
    /// of that.
    pub stated_cost: Option<f64>,
    /// The cost of start-up.
    pub startup_ns: Option<f64>,
    /// The memory of the profiler.
    pub memory_bytes: Option<f64>,
    /// The number of probes.
    pub probes: f64,
}

fn address_of(value: &Value) -> Result<u64, String> {
    let text = value.as_str().ok_or_else(|| format!("{value} is not an address"))?;
    u64::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|error| format!("{text}: {error}"))
}

fn number(value: &Value, key: &str) -> Result<f64, String> {
    value[key].as_f64().ok_or_else(|| format!("no {key}"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key].as_array().ok_or_else(|| format!("no {key}"))
}

impl Row {
    fn read(function: &Value) -> Result<Self, String> {
        let latency = &function["latency_ns"];
        let quantile = |key: &str| Estimate::read(&latency[key]);
        Ok(Self {
            name: function["name"].as_str().ok_or("a function without a name")?.to_owned(),
            calls: Estimate::read(&function["calls"]).ok_or_else(|| format!("no calls in {function}"))?,
            total_ns: Estimate::read(&function["total_ns"]),
            latency: latency.is_object().then(|| Latency {
                mean: quantile("mean"),
                p50: quantile("p50"),
                p90: quantile("p90"),
                p99: quantile("p99"),
                below_resolution: latency["below_resolution"].as_bool().unwrap_or(false),
            }),
        })
    }
}

impl Report {
    /// Reads a report.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::of(&value).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Parses the JSON of a report.
    pub fn of(value: &Value) -> Result<Self, String> {
        if value["version"] != 3 {
            return Err(format!("a report of version {}, not 3", value["version"]));
        }
        let functions = list(value, "functions")?.iter();
        let executable = functions.clone().find(|function| function["name"] == "main");
        let is_in_it = |function: &&Value| executable.is_none_or(|main| main["object"] == function["object"]);
        let rows = functions
            .filter(is_in_it)
            .map(|function| Ok((address_of(&function["address"])?, Row::read(function)?)));
        let cost = &value["cost"];
        Ok(Self {
            rows: rows.collect::<Result<_, String>>()?,
            thread_time_ns: number(value, "thread_time_ns")?,
            stated_cost: cost_share(cost),
            startup_ns: cost["startup_ns"].as_f64(),
            memory_bytes: cost["memory_bytes"].as_f64(),
            probes: value["probes"].as_f64().unwrap_or(0.0),
        })
    }
}

/// The cost of profiling as a share of the program's own time.
fn cost_share(cost: &Value) -> Option<f64> {
    let of = |key: &str| cost[key].as_f64();
    let spent = of("probes_ns")? + of("service_ns")? + of("toggles_ns").unwrap_or(0.0) + of("startup_ns")?;
    let own = of("cpu_ns")? - spent;
    (own > 0.0).then_some((spent + of("report_ns").unwrap_or(0.0)) / own)
}

/// The oracle's figures of a function; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Truth {
    /// Entries.
    pub calls: f64,
    /// Time of outermost activations, callees included.
    pub total: f64,
    /// Calls with an exit, on which the following figures are based.
    pub timed: f64,
    /// Percentiles.
    pub p50: f64,
    /// One in ten is longer.
    pub p90: f64,
    /// One in a hundred is longer.
    pub p99: f64,
    /// Total time of all activations divided by their number.
    pub mean: f64,
}

/// One run under the oracle.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// The load address of the executable.
    pub base: u64,
    /// The time between the two readings of the clock for an empty call, in nanoseconds.
    pub resolution: f64,
    /// Time without callees, of all functions: the time of all threads in instrumented code.
    pub time: f64,
    /// The functions of the executable, by their offset in it.
    pub functions: HashMap<u64, Truth>,
}

impl Oracle {
    /// Reads the oracle's output.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let truth = |function: &Value| {
            let of = |key: &str| function[key].as_f64().unwrap_or(0.0);
            let all = of("timed") + of("open");
            Truth {
                calls: of("calls"),
                total: of("outer_ns"),
                timed: of("timed"),
                p50: of("p50"),
                p90: of("p90"),
                p99: of("p99"),
                mean: if all > 0.0 { of("all_ns") / all } else { 0.0 },
            }
        };
        let functions = list(&value, "functions")?;
        let [base, end] = [address_of(&value["base"])?, address_of(&value["end"])?];
        let mut in_executable = HashMap::new();
        for function in functions {
            let address = address_of(&function["address"])?;
            if (base..end).contains(&address) {
                in_executable.insert(address - base, truth(function));
            }
        }
        Ok(Self {
            base,
            resolution: number(&value, "inner_ticks")? / number(&value, "ticks_per_ns")?,
            time: functions.iter().filter_map(|function| function["self_ns"].as_f64()).sum(),
            functions: in_executable,
        })
    }
}
