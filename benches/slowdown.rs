//! CPU time that the profiler costs real programs.
//!
//! The question of Table 3 of the paper (which does not state its baseline): programs compiled with
//! `-finstrument-functions -O2` run under the profiler with its default settings, compared with the
//! same object files linked with instrumentation functions that do nothing. In a third
//! configuration, under the library with `tool=none`, every site is off for the entire run: the
//! remaining cost is that of the compiler's instrumentation, and of discovering the sites.
//!
//! The three configurations run alternately. Their output must be the same, byte for byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use benches::child::{self, Run};
use benches::distribution::Distribution;
use benches::host;
use benches::options::Options;
use benches::preload::{self, Under};
use benches::report::{Report, Table};
use clap::Parser;
use serde_json::Value;

/// A program of `scripts/third-party.sh`.
struct Program {
    name: &'static str,
    what: &'static str,
    arguments: Vec<String>,
}

fn programs(options: &Options) -> Vec<Program> {
    let script = host::repo_root().join("tests/programs/small_functions.lua").display().to_string();
    let size = |full: &str, quick: &str| options.either(full, quick).to_string();
    let program = |name, what, arguments: Vec<String>| Program { name, what, arguments };
    vec![
        program("lua", "C, many small functions", vec![script, size("40", "5")]),
        program("bzip2", "C, 4 threads", vec![size("80", "4"), "4".into()]),
        program("jsonnet", "C++, exceptions", vec![size("2", "1")]),
        program("sqlite", "C, large", vec![size("150000", "10000")]),
    ]
}

fn main() {
    let options = Options::parse();
    let mut report = Report::new("How much CPU time does the profiler cost real programs?");
    let library = preload::library();
    let mut slowdown = Table::new(
        "CPU time (paper, Table 3: 0.2 to 11 %)",
        "User and system time of the process in seconds, medians. Then increases in percent, of consecutive runs: \
         median, least and most; and of the fastest runs of each configuration (best), since other work on the machine only adds time. \
         \"profiled\" and \"off\" are against \"empty\", the program with do-nothing instrumentation functions; \"over off\" is \
         profiled against off: the cost of the profiler itself.",
        &[
            "program",
            "kind",
            "runs",
            "empty s",
            "off s",
            "profiled s",
            "profiled %",
            "least",
            "most",
            "best",
            "off %",
            "off best",
            "over off %",
            "over off best",
        ],
    );
    let mut rates = Table::new(
        "What the profiler did (paper: 730 to 42,276 toggles and 3,650 to 211,346 samples per second)",
        "Medians of the profiled runs; per second of run time.",
        &["program", "probes", "seconds", "toggles", "toggles/s", "samples", "samples/s", "lost samples"],
    );
    for program in programs(&options) {
        options.progress(program.name);
        measure(&program, &library, options.runs(5), &mut slowdown, &mut rates);
    }
    report.push(slowdown);
    report.push(rates);
    options.print(&report);
}

/// Builds a program, and returns it and its twin with do-nothing instrumentation functions.
fn build(name: &str) -> [PathBuf; 2] {
    let mut command = Command::new(host::repo_root().join("scripts/third-party.sh"));
    let output =
        command.arg(name).env("CARGO_TARGET_DIR", host::target_dir()).stderr(Stdio::inherit()).output();
    let output = output.expect("the script can be started");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let printed = String::from_utf8(output.stdout).expect("a UTF-8 path");
    let path = printed.trim_end();
    [PathBuf::from(path), PathBuf::from(format!("{path}.empty"))]
}

fn measure(program: &Program, library: &Path, runs: u32, slowdown: &mut Table, rates: &mut Table) {
    let [binary, empty] = build(program.name);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let report = folder.path().join("report.json");
    let profiling = format!("output={}", report.display());
    let mut seconds: [Vec<f64>; 3] = Default::default();
    let mut facts: Vec<[f64; 5]> = Vec::new();
    let mut expected = None;
    // The first round loads the files into memory, and is not counted.
    for turn in 0..=runs {
        let commands = [
            preload::command(&empty, &program.arguments, Under::Nothing),
            preload::command(&binary, &program.arguments, Under::Library(library, "tool=none")),
            preload::command(&binary, &program.arguments, Under::Library(library, &profiling)),
        ];
        for (command, seconds) in commands.into_iter().zip(&mut seconds) {
            let Run { cpu_seconds, status, output, .. } = child::run(command);
            assert!(status.success(), "{}: {status}", program.name);
            let expected = expected.get_or_insert_with(|| output.clone());
            assert_eq!(
                String::from_utf8_lossy(&output),
                String::from_utf8_lossy(expected),
                "{}",
                program.name
            );
            if turn > 0 {
                seconds.push(cpu_seconds);
            }
        }
        if turn > 0 {
            let text = fs::read(&report).expect("the profiler has written its report");
            let read: Value = serde_json::from_slice(&text).expect("the report is JSON");
            let fact = |name: &str| read[name].as_f64().unwrap_or_else(|| panic!("{name} in the report"));
            facts.push(["probes", "duration_ns", "toggles", "samples", "lost_samples"].map(fact));
        }
    }

    let [empty, off, profiled] = &seconds;
    let more = |more: f64, than: f64| (more / than - 1.0) * 100.0;
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ratios = |configuration: &[f64], than: &[f64]| -> Vec<f64> {
        configuration.iter().zip(than).map(|(one, than)| more(*one, *than)).collect()
    };
    let best = |configuration: &[f64], than: &[f64]| more(least(configuration), least(than));
    let against_empty = ratios(profiled, empty);
    slowdown.push(vec![
        program.name.into(),
        program.what.into(),
        u64::from(runs).into(),
        median(empty.clone()).into(),
        median(off.clone()).into(),
        median(profiled.clone()).into(),
        median(against_empty.clone()).into(),
        least(&against_empty).into(),
        most(&against_empty).into(),
        best(profiled, empty).into(),
        median(ratios(off, empty)).into(),
        best(off, empty).into(),
        median(ratios(profiled, off)).into(),
        best(profiled, off).into(),
    ]);

    let fact = |index: usize| median(facts.iter().map(|facts| facts[index]).collect());
    let rate = |index: usize| median(facts.iter().map(|facts| facts[index] / (facts[1] / 1e9)).collect());
    let whole = |number: f64| (number.round() as u64).into();
    rates.push(vec![
        program.name.into(),
        whole(fact(0)),
        (fact(1) / 1e9).into(),
        whole(fact(2)),
        whole(rate(2)),
        whole(fact(3)),
        whole(rate(3)),
        whole(fact(4)),
    ]);
}

fn median(values: Vec<f64>) -> f64 {
    Distribution::of(values).median
}
