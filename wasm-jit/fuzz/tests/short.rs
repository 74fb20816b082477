//! A short fuzzing run: some seconds, starting with the first seed.

use std::process::Command;

use wasm_jit::{Engine, Module};
use wasm_jit_fuzz::{Case, Features};

#[test]
fn some_seconds_of_random_modules() {
    run(4, &[]);
    run(2, &["--seed", "1000000", "--bounds-checks", "--no-avx512"]);
    run(2, &["--seed", "2000000", "--bounds-checks", "--harden-speculation"]);
    run(2, &["--seed", "3000000", "--harden-speculation"]);
}

#[test]
fn some_seconds_of_random_modules_with_probes() {
    run(4, &["--probes"]);
    run(2, &["--probes", "--seed", "1000000", "--bounds-checks"]);
}

/// Those that are compared with Wasmtime only.
#[test]
fn programs_with_all_features_are_valid() {
    let features =
        Features { exceptions: true, threads: true, function_references: true, gc: true, fuel: false };
    let engine = Engine::default();
    let (mut branches, mut casts) = (0, 0);
    for seed in 0..400 {
        let Some(case) = Case::new(seed, features).filter(|case| case.same_nans) else { continue };
        for wasm in [Some(&case.wasm), case.legacy.as_ref()].into_iter().flatten() {
            Module::validate(&engine, wasm).unwrap_or_else(|error| panic!("{seed}: {error}"));
        }
        branches += usize::from(case.text().contains("br_on_non_null"));
        casts += usize::from(case.text().contains("br_on_cast_fail"));
    }
    assert!(branches > 20, "only {branches} programs compare references with null");
    assert!(casts > 20, "only {casts} programs cast references");
}

/// Runs the command for this many seconds; in the long form, for this many minutes.
fn run(seconds: u32, arguments: &[&str]) {
    let seconds = if std::env::var_os("LONG_TESTS").is_some() { 60 * seconds } else { seconds };
    let output = Command::new(env!("CARGO_BIN_EXE_wasm-jit-fuzz"))
        .args(["--seconds", &seconds.to_string()])
        .args(arguments)
        .output()
        .expect("the command can be started");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{stdout}");
    assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
    let modules: u64 = stdout
        .split_once("seeds: ")
        .and_then(|(_, rest)| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number of modules in {stdout}"));
    // On a busy machine, there are few with probes, which run many times.
    assert!(modules > 4, "only {modules} modules");
}
