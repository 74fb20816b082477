//! The stress program: patches running code concurrently, and detects torn instructions, lost
//! updates and hangs.
//!
//! 1. Each scenario runs in a separate process: this program again, with `--in-process`. A crash
//!    there counts as a torn instruction.
//! 2. It runs the scenario's threads (`run.rs`), monitored by `watchdog.rs`, and prints its counts
//!    as JSON.
//! 3. They are added up, round after round in the long form, and printed as a table (`report.rs`).
//!
//! Each scenario is a file and a line in [`SCENARIOS`].

mod asynchronous;
mod batches;
mod boundaries;
mod contention;
mod defect;
mod executor;
mod fork;
mod neighbours;
mod options;
mod paper;
mod random;
mod report;
mod run;
mod signals;
mod sites;
mod unload;
mod wasm;
mod watchdog;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;

use clap::Parser;
use wordpatch::{FetchModel, TMax, TextAccess, WaitPolicy, text};

use options::{Options, Text};
use report::{Counts, table, total};
use run::{Kind, Run};

type Scenario = fn(&Run);

/// Every scenario, by name; the last one runs all others at once.
const SCENARIOS: [(&str, Scenario); 11] = [
    ("paper", paper::run),
    ("boundaries", boundaries::run),
    ("neighbours", neighbours::run),
    ("contention", contention::run),
    ("batches", batches::run),
    ("asynchronous", asynchronous::run),
    ("signals", signals::run),
    ("fork", fork::run),
    ("unload", unload::run),
    ("wasm", wasm::run),
    ("all", all),
];

/// The targets of the long form.
const EXECUTIONS: u64 = 1_000_000_000;
const TOGGLES: u64 = 100_000_000;

fn all(run: &Run) {
    thread::scope(|scope| {
        for (_, scenario) in SCENARIOS.iter().take(SCENARIOS.len() - 1) {
            scope.spawn(|| scenario(run));
        }
    });
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    let known = |name: &String| SCENARIOS.iter().any(|(other, _)| other == name);
    if let Some(unknown) = options.scenario.iter().find(|name| !known(name)) {
        let names: Vec<_> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        eprintln!("stress: no scenario {unknown}; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    if options.in_process {
        let (name, scenario) =
            SCENARIOS[SCENARIOS.iter().position(|(name, _)| *name == options.scenario[0]).unwrap_or(0)];
        let counts = run_here(&options, name, scenario);
        return print(&options, &[counts]);
    }
    let chosen: Vec<&str> = SCENARIOS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| options.scenario.is_empty() || options.scenario.iter().any(|chosen| chosen == name))
        .collect();
    let mut results: Vec<Counts> =
        chosen.iter().map(|name| Counts { scenario: (*name).to_owned(), ..Counts::default() }).collect();
    loop {
        for (name, result) in chosen.iter().zip(&mut results) {
            eprintln!("... {name}, {:?}, seed {}", options.time(), options.seed);
            result.add(&run_in_child(&options, name));
        }
        let sum = total(&results);
        let is_enough = sum.executions >= EXECUTIONS && sum.toggles >= TOGGLES;
        if !options.long || is_enough || !sum.is_clean() {
            return print(&options, &results);
        }
        options.seed += 1;
    }
}

/// Prints the results, and a line for each violation.
fn print(options: &Options, results: &[Counts]) -> ExitCode {
    let text = if options.in_process {
        format!("{}\n", results[0].json())
    } else if options.json {
        let scenarios: Vec<_> = results.iter().map(Counts::json).collect();
        format!("{:#}\n", serde_json::json!({ "scenarios": scenarios, "total": total(results).json() }))
    } else {
        table(results)
    };
    // If the reader has closed the pipe, there is nothing left to do.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if !options.in_process {
        for counts in results {
            counts.violations.iter().for_each(|line| eprintln!("stress: {}: {line}", counts.scenario));
        }
    }
    if results.iter().all(Counts::is_clean) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Step 1: the scenario in a separate process.
fn run_in_child(options: &Options, name: &str) -> Counts {
    let failed = |line: String, torn: bool| Counts {
        scenario: name.to_owned(),
        torn: u64::from(torn),
        other: u64::from(!torn),
        violations: vec![line],
        ..Counts::default()
    };
    let mut arguments = vec![
        "--in-process".to_owned(),
        format!("--scenario={name}"),
        format!("--seed={}", options.seed),
        format!("--patience={}", options.patience),
        format!("--seconds={}", options.time().as_secs_f64()),
    ];
    arguments.extend(options.toggles.map(|toggles| format!("--toggles={toggles}")));
    arguments.extend(options.t_max.map(|ticks| format!("--t-max={ticks}")));
    arguments.extend(options.window.map(|window| format!("--window={}", window.bytes())));
    arguments.push(format!("--text={:?}", options.text).to_lowercase());
    arguments.extend(options.debugger.then(|| "--debugger".to_owned()));
    arguments.extend(options.defect.map(|defect| format!("--defect={defect:?}").to_lowercase()));
    let output = std::env::current_exe()
        .and_then(|program| Command::new(program).args(arguments).stderr(Stdio::inherit()).output());
    match output {
        Err(error) => failed(format!("other: the scenario's process could not be run: {error}"), false),
        Ok(output) => match Counts::parse(&String::from_utf8_lossy(&output.stdout)) {
            Some(counts) => counts,
            None => match output.status.signal() {
                Some(signal) => failed(format!("torn: the process was ended by signal {signal}"), true),
                None => failed(format!("other: the process has ended with {}", output.status), false),
            },
        },
    }
}

/// Steps 2 and 3, in this process.
fn run_here(options: &Options, name: &str, scenario: Scenario) -> Counts {
    if options.t_max.is_some() || options.window.is_some() {
        let model = FetchModel::in_force();
        let window = options.window.unwrap_or(model.window);
        let (t_max, wait) = match options.t_max {
            Some(ticks) => (Some(TMax(ticks)), WaitPolicy::TMax),
            None => (model.t_max, model.wait),
        };
        // SAFETY: none: the run tests whether the forced values are right. A mixture shows in
        // registers, or crashes this process, which is expendable.
        unsafe { FetchModel::force(window, t_max, wait) };
    }
    text::set_access(match options.text {
        Text::Private => TextAccess::Private,
        Text::Alias => TextAccess::Alias,
    });
    let FetchModel { window, t_max, wait, .. } = FetchModel::in_force();
    eprintln!("    window {}, {t_max:?}, {wait:?}", window.bytes());
    let run = Run::new(options);
    let (ends, ended) = mpsc::channel();
    let mut debugger = options.debugger.then(start_debugger);
    thread::scope(|scope| {
        let run = &run;
        scope.spawn(move || {
            watchdog::watch(run, &ended, options.debugger, || {
                print(options, &[run.counts(name)]);
                // SAFETY: ends the process, whatever its other threads are doing.
                unsafe { libc::_exit(1) }
            });
        });
        scenario(run);
        drop(ends);
    });
    if let Some(debugger) = &mut debugger {
        // It ends when this process does, unless it failed.
        let early = debugger.try_wait();
        run.check(matches!(early, Ok(None)), Kind::Other, || format!("the debugger has ended: {early:?}"));
    }
    run.counts(name)
}

/// Starts a process that repeatedly stops this one, and writes its text with unchanged bytes.
fn start_debugger() -> Child {
    let debugger = tests::compile("fixtures/copying_debugger.c", &["-O2"], tests::Compiler::Gcc);
    // SAFETY: permits any process to trace this one. Fails where Yama is absent, and then nothing
    // else requires it.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    let mut debugger = Command::new(debugger)
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the debugger can be started");
    // Its first byte means that it has stopped this process once.
    let mut said = [0];
    let read = debugger.stdout.as_mut().map(|stdout| stdout.read_exact(&mut said));
    assert!(matches!(read, Some(Ok(()))), "the debugger cannot stop this process: {read:?}");
    debugger
}
