//! The cost of a script for the calls that it observes.
//!
//! A program calls an empty function a few million times, under scripts that count the calls or
//! measure their durations, and under tools that record or time every call: the profiler with exact
//! counts, and uftrace, if it is installed. All configurations run in turns.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use benches::child::{self, Run};
use benches::compiled;
use benches::distribution::Distribution;
use benches::host;
use benches::options::Options;
use benches::preload::{self, Under};
use benches::report::{Report, Table};
use clap::Parser;

const PROGRAM: &str = "
#include <stdlib.h>
__attribute__((noinline)) void called(void) { __asm__ volatile(\"\"); }
__attribute__((no_instrument_function)) int main(int argc, char **argv) {
    for (long left = atol(argv[1]); left > 0; left--)
        called();
    return 0;
}
";

/// A configuration.
struct Configuration {
    name: &'static str,
    what: &'static str,
    command: Box<dyn Fn() -> Command>,
    /// Nanoseconds per call, of the processors and elapsed.
    results: [Vec<f64>; 2],
}

fn main() {
    let options = Options::parse();
    let calls: u64 = options.either(3_000_000, 20_000);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let program = compiled::compile(&folder, "program", PROGRAM, &["-finstrument-functions"]);
    let mut configurations = configurations(&program, folder.path(), calls);
    let runs = options.runs(7);
    // The first turn loads the files into memory, and is not counted.
    for turn in 0..=runs {
        options.progress(format!("turn {turn} of {runs}"));
        for configuration in &mut configurations {
            let Run { status, cpu_seconds, elapsed, .. } = child::run((configuration.command)());
            assert!(status.success(), "{}: {status}", configuration.name);
            if turn > 0 {
                let per_call =
                    [cpu_seconds, elapsed.as_secs_f64()].map(|seconds| seconds * 1e9 / calls as f64);
                configuration.results.iter_mut().zip(per_call).for_each(|(results, one)| results.push(one));
            }
        }
    }
    let mut table = Table::new(
        "Cost of a call that is observed",
        "Nanoseconds per call of an empty function, start and end of the process included: user and system time \
         of all threads, and elapsed time; median, and the fastest run.",
        &["under", "what happens at a call", "CPU ns", "fastest", "elapsed ns", "fastest"],
    );
    for configuration in configurations {
        let mut row = vec![configuration.name.into(), configuration.what.into()];
        for results in configuration.results {
            let fastest = results.iter().copied().fold(f64::INFINITY, f64::min);
            row.extend([Distribution::of(results).median.into(), fastest.into()]);
        }
        table.push(row);
    }
    let mut report = Report::new("What does a script cost the calls that it observes?");
    report.push(table);
    options.print(&report);
}

fn configurations(program: &Path, folder: &Path, calls: u64) -> Vec<Configuration> {
    let arguments = [calls.to_string()];
    let library = preload::library();
    let scripts = host::repo_root().join("profiler/script/scripts");
    let configuration = |name, what, command: Box<dyn Fn() -> Command>| Configuration {
        name,
        what,
        command,
        results: Default::default(),
    };
    let preloaded = |options: &str| -> Box<dyn Fn() -> Command> {
        let (program, library, arguments) = (program.to_owned(), library.clone(), arguments.clone());
        let options = format!("output={}:{options}", folder.join("report.json").display());
        Box::new(move || preload::command(&program, &arguments, Under::Library(&library, &options)))
    };
    let under = |script: &str| -> Box<dyn Fn() -> Command> {
        let (program, arguments) = (program.to_owned(), arguments.clone());
        let (fastinst, script) = (library.with_file_name("fastinst"), scripts.join(script));
        let report = folder.join("script.json");
        Box::new(move || {
            let mut command = Command::new(&fastinst);
            command.arg("run").arg("-o").arg(&report).arg(&script).arg("--").arg(&program).args(&arguments);
            command
        })
    };
    let alone: Box<dyn Fn() -> Command> = {
        let (program, arguments) = (program.to_owned(), arguments.clone());
        Box::new(move || preload::command(&program, &arguments, Under::Nothing))
    };
    let control: Box<dyn Fn() -> Command> = {
        let (program, arguments, fastinst) =
            (program.to_owned(), arguments.clone(), library.with_file_name("fastinst"));
        Box::new(move || {
            let mut command = Command::new(&fastinst);
            command.args(["run", "--control", "--"]).arg(&program).args(&arguments);
            command
        })
    };
    let mut configurations = vec![
        configuration("nothing", "empty instrumentation functions of the C library", alone),
        configuration("tool=none", "nothing: all probes are off", preloaded("tool=none")),
        configuration("run --control", "nothing: no script is attached", control),
        configuration("run calls.mm", "an event; a rule increments a counter", under("calls.mm")),
        configuration("run latency.mm", "two events; a rule adds to a histogram", under("latency.mm")),
        configuration("counts=exact", "the profiler counts it; some are timed", preloaded("counts=exact")),
    ];
    let data = folder.join("uftrace.data");
    let exists = Command::new("uftrace").arg("--version").stdout(Stdio::null()).status();
    if exists.is_ok_and(|status| status.success()) {
        let (program, arguments) = (program.to_owned(), arguments);
        let record = move || {
            let _ = fs::remove_dir_all(&data);
            let mut command = Command::new("uftrace");
            command.args(["record", "--no-libcall", "-d"]).arg(&data).arg(&program).args(&arguments);
            command
        };
        configurations.push(configuration(
            "uftrace record",
            "two records in a buffer, which is written to a file",
            Box::new(record),
        ));
    } else {
        eprintln!("uftrace is not installed: not measured");
    }
    configurations
}
