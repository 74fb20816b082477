//! The contents of a report. The field names are those of the JSON format, version 3.
//!
//! Estimated figures are [`Estimate`]s, with their 95 % confidence intervals. The others were
//! counted or measured.

use serde::{Deserialize, Serialize};

use super::Estimate;
use super::json;
use crate::binary::symbol::demangle;

/// The measurements of one process, from its start to the report, or of several processes, merged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Report {
    /// The version of the format: [`Report::VERSION`].
    pub version: u32,
    /// Identifies the run: the same for all processes that descend from one process. Empty if it is
    /// not known.
    #[serde(default)]
    pub run: String,
    /// The settings in force when the report was written, in the form of options. In a merged
    /// report, those of the first one; empty if they are not known.
    #[serde(default)]
    pub settings: String,
    /// The program and its arguments. In a merged report, those of the first process of the run, or
    /// of any process.
    pub command: Vec<String>,
    /// The process id. In a merged report, that of the process of `command`.
    pub pid: u32,
    /// The start of the observation, in microseconds since 1970: distinguishes the programs that a
    /// process has executed one after the other. In a merged report, that of the process of
    /// `command`. 0 if it is not known.
    #[serde(default)]
    pub started_us: u64,
    /// The number of processes: more than 1 if reports were merged.
    pub processes: u32,
    /// The observed wall-clock time, in nanoseconds. In a merged report, that of the
    /// longest-running process.
    pub duration_ns: u64,
    /// The total wall-clock lifetime of the program's threads, in nanoseconds: the reference for
    /// shares.
    pub thread_time_ns: u64,
    /// The number of discovered probes; entries and exits are counted separately. In a merged
    /// report, the maximum over the processes.
    pub probes: u64,
    /// The number of times that a probe was activated or deactivated.
    pub toggles: u64,
    /// The number of timed calls of all functions.
    pub samples: u64,
    /// The number of timed calls that were dropped because a buffer was full.
    #[serde(default)]
    pub lost_samples: u64,
    /// The number of stack samples from which times are estimated.
    #[serde(default)]
    pub stacks: u64,
    /// The cost of profiling.
    pub cost: Cost,
    /// Notes for the reader about this measurement, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The functions that were called, in any order; JSON has them in the order of
    /// [`Report::ranked`].
    pub functions: Vec<FunctionReport>,
    /// The calls between functions, in any order; JSON sorts them.
    #[serde(default)]
    pub arcs: Vec<Arc>,
}

/// The cost of profiling in processor time and memory, measured during the run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// The maximum cost, as a fraction of the program's processor time: 0.01 is 1 %. `None` if
    /// there was no limit.
    pub budget: Option<f64>,
    /// The processor time of the process, user and system, including profiling, in nanoseconds.
    pub cpu_ns: u64,
    /// The processor time in probes, on the program's threads, in nanoseconds.
    pub probes_ns: u64,
    /// The processor time of the service thread, without toggles, in nanoseconds.
    pub service_ns: u64,
    /// The processor time for toggling probes, on any thread, in nanoseconds.
    pub toggles_ns: u64,
    /// The processor time of the program's threads for samples of their stacks, in nanoseconds.
    #[serde(default)]
    pub stacks_ns: u64,
    /// The processor time before the program's own start, for discovering probes and calibrating
    /// the clock, in nanoseconds.
    pub startup_ns: u64,
    /// The processor time for writing the report after its figures were determined, in nanoseconds,
    /// which is not part of `cpu_ns`. Merging reports and output to a file are not included.
    #[serde(default)]
    pub report_ns: u64,
    /// Half the width of the 95 % confidence interval of the sum of the first five times, relative
    /// to the sum.
    #[serde(serialize_with = "json::four_decimals")]
    pub error: f64,
    /// The memory that the profiler used, in bytes.
    pub memory_bytes: u64,
}

/// The measurements of one function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// The demangled name. In a report that the profiled process writes it is still the symbol:
    /// [`Report::demangle`].
    pub name: String,
    /// The path of the executable or shared library.
    pub object: String,
    /// The start of the function, relative to the lowest address of `object`, so that it is the
    /// same in every run: for a library or a position-independent executable, this is the address
    /// shown by `nm` and `addr2line`. In JSON it is a string of hexadecimal digits, `"0x1136"`.
    #[serde(with = "json::hex")]
    pub address: u64,
    /// The location of the definition, as `file:line`, of functions that share their name
    /// with others; `None` for others, and without debugging information.
    #[serde(default)]
    pub location: Option<String>,
    /// The number of timed calls. May be 0 for a function that was called.
    pub samples: u64,
    /// The number of calls to the function.
    #[serde(serialize_with = "json::whole")]
    pub calls: Estimate,
    /// The time spent in calls to the function, including callees, in nanoseconds. Nested calls to
    /// the same function count once. `None` if nothing is known of it.
    #[serde(default, serialize_with = "json::whole_or_null")]
    pub total_ns: Option<Estimate>,
    /// The self time, in nanoseconds: the time spent in the function, except in other instrumented
    /// functions. `None` if nothing is known of it.
    #[serde(default, serialize_with = "json::whole_or_null")]
    pub self_ns: Option<Estimate>,
    /// Whether a call was observed inside a call to the same function.
    pub recursive: bool,
    /// The number of calls that had not returned when the report was made. Their time so far is
    /// part of `total_ns`.
    #[serde(default)]
    pub open_calls: u64,
    /// The latencies of the calls; `None` if no call was timed.
    #[serde(default)]
    pub latency_ns: Option<Latency>,
    /// The timed calls during which the thread was preempted; `None` if preemption was not
    /// observed.
    #[serde(default)]
    pub off_cpu: Option<OffCpu>,
}

/// The distribution of the latencies of one function's calls, including callees, in nanoseconds.
/// The time for which a preempted thread waited for a processor is excluded. JSON keeps one
/// decimal, and has null for what is not [known](Latency::known), which is read as a figure of at
/// least 0.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Latency {
    /// The shortest timed latency.
    pub min: f64,
    /// The arithmetic mean of the latencies.
    #[serde(deserialize_with = "json::known_or_not")]
    pub mean: Estimate,
    /// The median.
    #[serde(deserialize_with = "json::known_or_not")]
    pub p50: Estimate,
    /// The 90th percentile.
    #[serde(deserialize_with = "json::known_or_not")]
    pub p90: Estimate,
    /// The 99th percentile.
    #[serde(deserialize_with = "json::known_or_not")]
    pub p99: Estimate,
    /// The longest timed latency.
    pub max: f64,
    /// Whether a typical call is shorter than `resolution`, so that its latency is only known to be
    /// below that.
    pub below_resolution: bool,
    /// The shortest latency that the clock can resolve on this machine, in nanoseconds.
    pub resolution: f64,
}

/// Timed calls during which the thread was preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffCpu {
    /// The number of such calls.
    pub samples: u64,
    /// The total time for which the thread waited for a processor during these calls, in
    /// nanoseconds: measured, not extrapolated to other calls.
    pub ns: u64,
}

/// Calls from one function to another. In JSON, callers and callees also have their names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Arc {
    /// The calling function.
    pub caller: Caller,
    /// The called function.
    pub callee: FunctionRef,
    /// The number of calls.
    pub calls: Estimate,
    /// The time spent in these calls, in nanoseconds, as in [`FunctionReport::total_ns`]; `None` if
    /// nothing is known of it.
    #[serde(default)]
    pub total_ns: Option<Estimate>,
}

/// Identifies a function of a report, by its [`FunctionReport::object`] and
/// [`FunctionReport::address`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct FunctionRef {
    /// The path of the executable or shared library.
    pub object: String,
    /// The start of the function, relative to the lowest address of `object`.
    #[serde(with = "json::hex")]
    pub address: u64,
}

/// The origin of calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(from = "json::ReadCaller")]
pub enum Caller {
    /// A function of the report.
    Function(FunctionRef),
    /// Code without probes; what is known of it, in brackets: `[libc.so.6]`.
    Other(String),
}

impl Report {
    /// The version of the format that this crate writes and reads.
    pub const VERSION: u32 = 3;

    /// The report of this process if nothing was observed.
    pub(crate) fn of_nothing(pid: u32) -> Self {
        Self {
            version: Self::VERSION,
            run: String::new(),
            settings: String::new(),
            command: Vec::new(),
            pid,
            started_us: 0,
            processes: 1,
            duration_ns: 0,
            thread_time_ns: 0,
            probes: 0,
            toggles: 0,
            samples: 0,
            lost_samples: 0,
            stacks: 0,
            cost: Cost::default(),
            notes: Vec::new(),
            functions: Vec::new(),
            arcs: Vec::new(),
        }
    }

    /// Replaces the symbols of functions by demangled names, which takes about ten microseconds for
    /// each C++ function. Other names do not change.
    pub fn demangle(&mut self) {
        // Of C++, and of Rust.
        let is_mangled = |name: &str| ["_Z", "_R", "_GLOBAL_"].iter().any(|begin| name.starts_with(begin));
        for function in self.functions.iter_mut().filter(|function| is_mangled(&function.name)) {
            function.name = demangle(&function.name);
        }
    }
}

impl Cost {
    /// The total processor time of profiling, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.estimated_ns() + self.report_ns
    }

    /// The times that are not known exactly: all but that for writing the report.
    pub(super) fn estimated_ns(&self) -> u64 {
        self.probes_ns + self.service_ns + self.toggles_ns + self.stacks_ns + self.startup_ns
    }

    /// The cost of profiling as a fraction of the program's own processor time; `None` if the
    /// program used none, or less than the error of the cost.
    #[must_use]
    pub fn fraction(&self) -> Option<f64> {
        self.part_of_own(self.total_ns() as f64)
    }

    /// Half the width of the 95 % confidence interval of that fraction. What is wrong with the cost
    /// is also wrong with the program's own time, which is the rest.
    #[must_use]
    pub fn error_of_fraction(&self) -> Option<f64> {
        Some(self.part_of_own(self.error_ns())? * (1.0 + self.fraction()?))
    }

    fn error_ns(&self) -> f64 {
        self.estimated_ns() as f64 * self.error
    }

    fn part_of_own(&self, ns: f64) -> Option<f64> {
        let own = self.cpu_ns.saturating_sub(self.estimated_ns()) as f64;
        (own > self.error_ns()).then(|| ns / own)
    }
}

impl Latency {
    /// One of the figures, if it says anything. A lower bound alone does not if the clock does not
    /// resolve it, or if it is no more than the shortest timed call.
    #[must_use]
    pub fn known(&self, figure: Estimate) -> Option<Estimate> {
        let least = self.resolution.max(self.min);
        (figure.high.is_some() || figure.low > least).then_some(figure)
    }
}

impl FunctionReport {
    /// The identity of the function in arcs.
    #[must_use]
    pub fn key(&self) -> FunctionRef {
        FunctionRef { object: self.object.clone(), address: self.address }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report with one function of every kind: sampled, timed in every call and still running,
    /// little known, below the resolution of the clock, never timed.
    pub(in crate::report) fn example() -> Report {
        const APP: &str = "/opt/app/bin/app";
        let function = |name: &str, object: &str, address, samples, calls| FunctionReport {
            name: name.to_owned(),
            object: object.to_owned(),
            address,
            location: None,
            samples,
            calls,
            total_ns: None,
            self_ns: None,
            recursive: false,
            open_calls: 0,
            latency_ns: None,
            off_cpu: None,
        };
        let latency = |min, [mean, p50, p90, p99]: [f64; 4], max, relative: f64| {
            let of = |value: f64| Estimate::within(value, value * (1.0 - relative), value * (1.0 + relative));
            Some(Latency {
                min,
                mean: of(mean),
                p50: of(p50),
                p90: of(p90),
                p99: of(p99),
                max,
                below_resolution: false,
                resolution: 20.0,
            })
        };
        let reference = |address| FunctionRef { object: APP.to_owned(), address };
        let hash = FunctionReport {
            location: Some("/src/hash.c:120".to_owned()),
            total_ns: Some(Estimate::within(1_185_650_000.0, 1.1e9, 1.3e9)),
            self_ns: Some(Estimate::within(1_185_650_000.0, 1.1e9, 1.3e9)),
            latency_ns: latency(81.0, [96.04, 92.5, 120.0, 410.0], 81_250.0, 0.02),
            off_cpu: Some(OffCpu { samples: 3, ns: 12_400_000 }),
            ..function(
                "hash",
                "/usr/lib/libhash.so.1",
                0x7f00_0000_1120,
                12_340,
                Estimate::within(12_345_678.0, 11_300_000.4, 13_400_000.2),
            )
        };
        let main = FunctionReport {
            total_ns: Some(Estimate::exact(2.1e9)),
            self_ns: Some(Estimate::within(9.1e8, 8.0e8, 1.0e9)),
            open_calls: 1,
            latency_ns: latency(2.1e9, [2.1e9; 4], 2.1e9, 0.0),
            off_cpu: Some(OffCpu { samples: 0, ns: 0 }),
            ..function("main", APP, 0x40_1136, 1, Estimate::exact(1.0))
        };
        let insert = FunctionReport {
            recursive: true,
            total_ns: Some(Estimate::within(7_500_000.0, 0.0, 20_000_000.0)),
            self_ns: Some(Estimate::at_least(12_000.0)),
            latency_ns: latency(900.0, [1_499.96, 1_234.0, 2_000.0, 9_999.0], 12_000.0, 0.5),
            ..function("Tree::insert(int)", APP, 0x40_1200, 1100, Estimate::at_least(5000.0))
        };
        let mut leaf = FunctionReport {
            total_ns: Some(Estimate::within(30_000_000.0, 0.0, 60_000_000.0)),
            self_ns: Some(Estimate::within(30_000_000.0, 0.0, 60_000_000.0)),
            latency_ns: latency(0.0, [9.0, 8.0, 11.0, 14.0], 25.0, 1.0),
            ..function("leaf", APP, 0x40_1300, 900, Estimate::within(3e6, 2.9e6, 3.1e6))
        };
        leaf.latency_ns.iter_mut().for_each(|latency| latency.below_resolution = true);
        let fini = function("fini", APP, 0x40_2200, 0, Estimate::exact(1.0));
        let arcs = vec![
            Arc {
                caller: Caller::Function(main.key()),
                callee: hash.key(),
                calls: hash.calls,
                total_ns: hash.total_ns,
            },
            Arc {
                caller: Caller::Other("[libc.so.6]".to_owned()),
                callee: reference(0x40_1136),
                calls: Estimate::exact(1.0),
                total_ns: Some(Estimate::exact(2.1e9)),
            },
            Arc {
                caller: Caller::Function(reference(0x40_1136)),
                callee: reference(0x40_1200),
                calls: Estimate::at_least(100.0),
                total_ns: None,
            },
        ];
        Report {
            version: Report::VERSION,
            run: "1700000000000000001.4242".to_owned(),
            settings: "budget=1%:counts=sampled".to_owned(),
            command: ["./app", "--size", "10"].map(String::from).to_vec(),
            pid: 4242,
            started_us: 1_700_000_000_000_100,
            processes: 1,
            duration_ns: 2_130_000_000,
            thread_time_ns: 2_140_000_000,
            probes: 1204,
            toggles: 11_310,
            samples: 13_441,
            lost_samples: 0,
            stacks: 0,
            cost: Cost {
                budget: Some(0.01),
                cpu_ns: 2_020_000_000,
                probes_ns: 8_000_000,
                service_ns: 5_000_000,
                toggles_ns: 4_000_000,
                stacks_ns: 0,
                startup_ns: 3_000_000,
                report_ns: 2_000_000,
                error: 0.12,
                memory_bytes: 2_345_678,
            },
            notes: Vec::new(),
            functions: vec![hash, fini, main, leaf, insert],
            arcs,
        }
    }

    #[test]
    fn a_lower_bound_that_says_nothing_is_not_known() {
        let latency = example().functions[0].latency_ns.unwrap();
        assert_eq!((latency.min, latency.resolution), (81.0, 20.0));
        let check = |figure, is_known| assert_eq!(latency.known(figure), is_known, "{figure:?}");
        let all = |figure: Estimate| check(figure, Some(figure));
        all(Estimate::exact(3.0));
        all(Estimate::within(30.0, 0.0, 50.0));
        all(Estimate::at_least(81.1));
        // The shortest timed call, with which most percentiles without an upper bound begin.
        check(Estimate::at_least(81.0), None);
        check(Estimate { value: 96.0, low: 0.3, high: None }, None);
        let short = Latency { min: 0.0, ..latency };
        assert_eq!(short.known(Estimate::at_least(20.0)), None);
        assert_eq!(short.known(Estimate::at_least(20.1)), Some(Estimate::at_least(20.1)));
    }

    #[test]
    fn the_cost_is_relative_to_the_programs_own_time() {
        let cost = example().cost;
        assert_eq!(cost.total_ns(), 22_000_000);
        assert_eq!(cost.fraction(), Some(0.011));
        let error = cost.error_of_fraction().expect("the program used some");
        assert!((error - 0.0012 * 1.011).abs() < 1e-12, "{error}");
        assert_eq!(Cost { cpu_ns: 20_000_000, ..cost }.fraction(), None);
        assert_eq!(Cost::default().fraction(), None);
    }

    /// As with `counts=exact`: the program's own time is a small part, or the error of the rest.
    #[test]
    fn the_error_of_the_cost_is_one_of_the_programs_own_time() {
        let cost = |cpu_ns| Cost { cpu_ns, error: 0.125, report_ns: 0, ..example().cost };
        let of = |cpu_ns| (cost(cpu_ns).fraction(), cost(cpu_ns).error_of_fraction());
        assert_eq!(of(25_000_000), (Some(4.0), Some(2.5)));
        assert_eq!(of(22_500_000), (None, None));
        assert!(cost(22_600_000).fraction().is_some());
    }
}
