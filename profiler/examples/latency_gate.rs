//! Compares a report with latency limits, as a build server does after a test run.
//!
//! Run by `cargo run --release -p profiler --example latency_gate`; it reads `report.json` next to
//! this file, which `fastinst record -o report.json -- ./app` has written.
//!
//! Prints:
//!
//! ```text
//! parse: median kept, 99th percentile not decided by so few calls
//! lookup: median exceeded, 99th percentile exceeded
//! save: median kept, 99th percentile kept
//! ```

use std::path::Path;

use profiler::error::Error;
use profiler::report::{Estimate, json};

/// The limits for the median and the 99th percentile of the calls to each function, in nanoseconds.
const LIMITS: [(&str, f64, f64); 3] =
    [("parse", 1_000.0, 5_000.0), ("lookup", 2_000.0, 4_000.0), ("save", 1e6, 1e7)];

/// The verdict of an estimate about a limit: its entire interval is on one side, or the answer is
/// not known.
fn verdict(estimate: &Estimate, limit: f64) -> &'static str {
    match estimate {
        estimate if estimate.low > limit => "exceeded",
        estimate if estimate.high.is_some_and(|high| high <= limit) => "kept",
        _ => "not decided by so few calls",
    }
}

fn main() -> Result<(), Error> {
    let report = json::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/report.json")))?;
    for (name, median, tail) in LIMITS {
        let found = report.functions.iter().find(|function| function.name == name);
        let Some(latency) = found.and_then(|function| function.latency_ns) else {
            println!("{name}: not called");
            continue;
        };
        println!(
            "{name}: median {}, 99th percentile {}",
            verdict(&latency.p50, median),
            verdict(&latency.p99, tail)
        );
    }
    Ok(())
}
