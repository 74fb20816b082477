//! Functions whose calls of the instrumentation functions the compiler has merged: what a report
//! says of them.

use serde_json::Value;
use tests::Compiler::{Clang, Gcc};
use tests::{compile, profiled};

/// Nothing distinguishes the functions except an execution: what is counted as calls of one are
/// those of all.
#[test]
fn calls_that_the_compiler_has_merged_are_limits() {
    for compiler in [Gcc, Clang] {
        let binary = compile("fixtures/merged_calls.c", &["-O2"], compiler);
        let profiled = profiled(&binary, &["90000"], "counts=exact:discovery=eager");
        let report = profiled.report();
        let row = |name: &str| report.function(name).expect("a row");
        let first = row("merged_first");
        let is_at_most = |figures: &Value| {
            let is_enough = figures["calls"]["high"].as_f64().is_some_and(|high| high > 89_000.0);
            is_enough && [&figures["calls"], &figures["total_ns"]].iter().all(|figure| figure["low"] == 0.0)
        };
        let is_at_least = |figures: &Value| {
            let has_calls = figures["calls"]["low"].as_f64() > Some(0.0);
            has_calls
                && [&figures["calls"], &figures["total_ns"]].iter().all(|figure| figure["high"].is_null())
        };
        assert!(is_at_most(first) && first["latency_ns"].is_null(), "{first}");
        let arcs_of = |name: &str| {
            let arcs = report.json["arcs"].as_array().expect("a list").iter();
            arcs.filter(|arc| arc["callee"]["name"] == name || arc["caller"]["name"] == name)
                .collect::<Vec<_>>()
        };
        let of_first = arcs_of("merged_first");
        assert!(of_first.len() == 2 && of_first.into_iter().all(is_at_most), "{report:?}");
        let notes = report.json["notes"].to_string();
        for other in ["merged_second", "merged_third"] {
            let (row, arcs) = (row(other), arcs_of(other));
            assert!(is_at_least(row) && row["latency_ns"]["p50"].is_null(), "{row}");
            assert!(arcs.len() == 2 && arcs.into_iter().all(is_at_least), "{report:?}");
            assert!(notes.contains(&format!("merged_first includes calls of {other}")), "{notes}");
        }
    }
}
