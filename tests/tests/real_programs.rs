//! Three real programs of different kinds run 10 times each with the preload (with `LONG_TESTS=1`,
//! 100 times): their output and exit status must be the same as without it, which two runs show to
//! be reproducible. `scripts/third-party.sh` builds them, which takes a minute or two the first
//! time.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tests::{bare, is_long, profiled, repo_root, run, run_within};

/// The number of runs of each program with the preload.
fn runs() -> usize {
    if is_long() { 100 } else { 10 }
}

fn build(name: &str) -> PathBuf {
    let mut command = Command::new(repo_root().join("scripts/third-party.sh"));
    let built = run_within(command.arg(name), Duration::from_secs(600));
    assert!(built.status.success(), "scripts/third-party.sh {name}: {}\n{}", built.status, built.stderr);
    PathBuf::from(String::from_utf8(built.stdout).expect("a UTF-8 path").trim_end())
}

/// Runs a program [several times](runs) with the preload, and twice without. `sampled`: functions
/// that must have samples in every report that has lost none, and in most of all reports. On a busy
/// machine, the service thread may have to wait for a processor while the program makes thousands
/// of samples.
fn check_runs(name: &str, args: &[&str], sampled: &[&str]) {
    let binary = build(name);
    let first = run(&mut bare(&binary, args));
    assert!(first.status.success() && !first.stdout.is_empty(), "{name}: {}\n{}", first.status, first.stderr);
    run(&mut bare(&binary, args)).assert_same(&first, &format!("{name}, second bare run"));
    let mut without = 0;
    for number in 1..=runs() {
        let with = profiled(&binary, args, "");
        with.run.assert_same(&first, &format!("{name}, profiled run {number}"));
        let report = with.report();
        for function in sampled.iter().filter(|function| report.samples(function) == 0) {
            let lost = report.json["lost_samples"].as_u64();
            assert!(lost > Some(0), "{name}, run {number}: no samples of {function}");
            without += 1;
        }
    }
    let most = runs() / 2;
    assert!(without <= most, "{name}: {without} functions without samples in {} runs", runs());
}

#[test]
fn cpp_with_exceptions_jsonnet() {
    check_runs("jsonnet", &[], &["(anonymous namespace)::outcome", "jsonnet_evaluate_snippet"]);
}

#[test]
fn multi_threaded_bzip2() {
    check_runs("bzip2", &["6", "4"], &["process", "BZ2_bzCompress", "BZ2_decompress"]);
}

#[test]
fn many_small_functions_lua() {
    let script = repo_root().join("tests/programs/small_functions.lua");
    check_runs(
        "lua",
        &[script.to_str().expect("a UTF-8 path"), "4"],
        &["luaV_execute", "luaH_getint", "luaS_newlstr"],
    );
}
