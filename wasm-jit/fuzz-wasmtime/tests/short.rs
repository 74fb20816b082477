//! A short comparison with Wasmtime: the same seeds in every run, half a minute.

use std::process::Command;

#[test]
fn random_modules_do_the_same_in_wasmtime() {
    run(2400, &[]);
    run(600, &["--seed", "1000000", "--fuel"]);
    run(600, &["--seed", "2000000", "--collect-always", "--no-avx512"]);
    run(120, &["--seed", "3000000", "--probes"]);
    run(120, &["--seed", "4000000", "--probes", "--stored"]);
    run(600, &["--seed", "6000000", "--lazy", "--bounds-checks"]);
}

/// Runs the command for this many seeds; in the long form, for a thousand times as many.
fn run(cases: u64, arguments: &[&str]) {
    let cases = if std::env::var_os("LONG_TESTS").is_some() { 1000 * cases } else { cases };
    let output = Command::new(env!("CARGO_BIN_EXE_wasm-jit-fuzz-wasmtime"))
        .args(["--cases", &cases.to_string()])
        .args(arguments)
        .output()
        .expect("the command can be started");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{stdout}");
    assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
    let numbers: Vec<u64> = stdout.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [seeds, modules, ..] = numbers[..] else { panic!("no numbers in {stdout}") };
    assert_eq!(seeds, cases, "{stdout}");
    assert!(modules > cases / 2, "only {modules} modules");
}
