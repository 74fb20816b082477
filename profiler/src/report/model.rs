//! What a report holds. The field names are those of the JSON form, version 1.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::json;

/// What was measured in one process, from its start to the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format, [`Report::VERSION`].
    pub version: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Process id.
    pub pid: u32,
    /// Wall-clock time that was observed, in nanoseconds.
    pub duration_ns: u64,
    /// Probes that were discovered, entry and exit counted apart.
    pub probes: u64,
    /// How often a probe was turned on or off.
    pub toggles: u64,
    /// Latencies that were measured, of all functions.
    pub samples: u64,
    /// Measured latencies that were dropped because a buffer was full.
    #[serde(default)]
    pub lost_samples: u64,
    /// What the reader should know about this measurement, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The functions that were called, in any order; it is written in the order of [`Report::ranked`].
    #[serde(serialize_with = "json::ranked")]
    pub functions: Vec<FunctionReport>,
}

/// What was measured of one function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Readable name.
    pub name: String,
    /// Path of the executable or shared library that holds it.
    pub object: String,
    /// Where it starts; in JSON a string of hexadecimal digits, `"0x401136"`.
    #[serde(with = "json::hex")]
    pub address: u64,
    /// Latencies that were measured. 0 is possible for a function that was called.
    pub samples: u64,
    /// How often it was called.
    pub calls_estimate: u64,
    /// Half the width of the 95 % interval of `calls_estimate`, relative to it: 0.08 is ±8 %. 0 if the calls were
    /// counted, none if the error is not known. JSON keeps four decimals.
    #[serde(default, serialize_with = "json::four_decimals")]
    pub calls_error: Option<f64>,
    /// Time spent in all its calls, callees included, in nanoseconds.
    pub total_ns_estimate: u64,
    /// The latencies that were measured, none if `samples` is 0.
    #[serde(default)]
    pub latency_ns: Option<Latency>,
}

/// The distribution of one function's measured latencies, callees included, in nanoseconds. All values are finite;
/// JSON keeps one decimal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Shortest.
    #[serde(serialize_with = "json::one_decimal")]
    pub min: f64,
    /// Arithmetic mean.
    #[serde(serialize_with = "json::one_decimal")]
    pub mean: f64,
    /// Median.
    #[serde(serialize_with = "json::one_decimal")]
    pub p50: f64,
    /// 90 % are shorter.
    #[serde(serialize_with = "json::one_decimal")]
    pub p90: f64,
    /// 99 % are shorter.
    #[serde(serialize_with = "json::one_decimal")]
    pub p99: f64,
    /// Longest.
    #[serde(serialize_with = "json::one_decimal")]
    pub max: f64,
}

impl Report {
    /// The version of the format that this crate writes and reads.
    pub const VERSION: u32 = 1;

    /// The functions by total time, longest first; equal ones by name, then by address.
    pub fn ranked(&self) -> Vec<&FunctionReport> {
        Report::rank(&self.functions)
    }

    /// [`Report::ranked`] of any functions.
    pub(super) fn rank(functions: &[FunctionReport]) -> Vec<&FunctionReport> {
        let mut ranked: Vec<&FunctionReport> = functions.iter().collect();
        ranked
            .sort_by_key(|&function| (Reverse(function.total_ns_estimate), &function.name, function.address));
        ranked
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report with one function of every kind: sampled, counted exactly, with an unknown error, never sampled.
    pub(in crate::report) fn example() -> Report {
        let function =
            |name: &str, object: &str, address, samples, calls_estimate, calls_error, total_ns_estimate| {
                FunctionReport {
                    name: name.to_owned(),
                    object: object.to_owned(),
                    address,
                    samples,
                    calls_estimate,
                    calls_error,
                    total_ns_estimate,
                    latency_ns: None,
                }
            };
        let latency = |min, mean, p50, p90, p99, max| Some(Latency { min, mean, p50, p90, p99, max });
        Report {
            version: Report::VERSION,
            command: ["./app", "--size", "10"].map(String::from).to_vec(),
            pid: 4242,
            duration_ns: 2_130_000_000,
            probes: 1204,
            toggles: 11_310,
            samples: 13_441,
            lost_samples: 0,
            notes: Vec::new(),
            functions: vec![
                FunctionReport {
                    latency_ns: latency(81.0, 96.04, 92.5, 120.0, 410.0, 81_250.0),
                    ..function(
                        "hash",
                        "/usr/lib/libhash.so.1",
                        0x7f00_0000_1120,
                        12_340,
                        12_345_678,
                        Some(0.083),
                        1_185_650_000,
                    )
                },
                function("fini", "/opt/app/bin/app", 0x40_2200, 0, 1, Some(0.0), 0),
                FunctionReport {
                    latency_ns: latency(2.1e9, 2.1e9, 2.1e9, 2.1e9, 2.1e9, 2.1e9),
                    ..function("main", "/opt/app/bin/app", 0x40_1136, 1, 1, Some(0.0), 2_100_000_000)
                },
                FunctionReport {
                    latency_ns: latency(900.0, 1_499.96, 1_234.0, 2_000.0, 9_999.0, 12_000.0),
                    ..function(
                        "Tree::insert(int)",
                        "/opt/app/bin/app",
                        0x40_1200,
                        1100,
                        5000,
                        None,
                        7_500_000,
                    )
                },
            ],
        }
    }

    #[test]
    fn functions_are_ranked_by_total_then_name_then_address() {
        let function = |name: &str, address, total_ns_estimate| FunctionReport {
            name: name.to_owned(),
            address,
            total_ns_estimate,
            ..example().functions[1].clone()
        };
        let report = Report {
            functions: vec![
                function("b", 2, 5),
                function("b", 1, 5),
                function("z", 3, 9),
                function("a", 9, 5),
            ],
            ..example()
        };
        let order: Vec<u64> = report.ranked().iter().map(|function| function.address).collect();
        assert_eq!(order, [3, 9, 1, 2]);
    }
}
