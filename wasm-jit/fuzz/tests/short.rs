//! A short fuzzing run: some seconds, starting with the first seed.

use std::process::Command;

use wasm_jit::wasmparser::{FunctionBody, Operator, Parser, Payload};
use wasm_jit::{Engine, Module};
use wasm_jit_fuzz::{Case, Features};

#[test]
fn some_seconds_of_random_modules() {
    run(4, &[]);
    run(2, &["--seed", "1000000", "--bounds-checks", "--no-avx512"]);
    run(2, &["--seed", "2000000", "--bounds-checks", "--harden-speculation"]);
    run(2, &["--seed", "3000000", "--harden-speculation"]);
    run(2, &["--seed", "4000000", "--stored"]);
    run(2, &["--seed", "6000000", "--lazy"]);
}

#[test]
fn some_seconds_of_random_modules_with_probes() {
    run(4, &["--probes"]);
    run(2, &["--probes", "--seed", "1000000", "--bounds-checks"]);
    run(2, &["--probes", "--seed", "4000000", "--stored"]);
    run(2, &["--probes", "--seed", "6000000", "--lazy"]);
}

#[test]
fn as_many_seeds_as_asked_for() {
    for jobs in ["1", "3"] {
        let arguments = ["--cases", "40", "--jobs", jobs, "--seed", "5000000"];
        let stdout = output(&arguments);
        assert!(stdout.contains("fuzz: 40 seeds: "), "{stdout}");
    }
}

/// Those that are compared with Wasmtime only.
#[test]
fn programs_with_all_features_are_valid() {
    let features = Features { fuel: false, ..Features::ALL };
    let engine = Engine::default();
    const CONSTRUCTS: [&str; 10] = [
        "br_on_non_null",
        "br_on_cast_fail",
        "(param v128",
        ".relaxed_madd",
        "i8x16.shuffle",
        "v128.store16_lane",
        "(memory (;0;) i64 1 2",
        "(memory $other (;1;) i64 1 1",
        "(table $t0 (;0;) i64 2 ",
        "(@metadata.code.branch_hint \"\\01\")",
    ];
    let (mut counts, mut with_floats) = ([0; CONSTRUCTS.len()], 0);
    for seed in 0..400 {
        let Some(case) = Case::new(seed, features).filter(|case| case.same_nans) else { continue };
        for wasm in [Some(&case.wasm), case.legacy.as_ref()].into_iter().flatten() {
            Module::validate(&engine, wasm).unwrap_or_else(|error| panic!("{seed}: {error}"));
        }
        with_floats += usize::from(has_floats_in_loops(&case.wasm));
        let text = case.text();
        for (count, construct) in counts.iter_mut().zip(CONSTRUCTS) {
            *count += usize::from(text.contains(construct));
        }
    }
    for (count, construct) in counts.into_iter().zip(CONSTRUCTS) {
        assert!(count > 10, "only {count} programs have {construct}");
    }
    assert!(with_floats > 45, "only {with_floats} programs have float constants in loops without calls");
}

/// Whether a function without handlers has a loop without calls and other loops in which there is a
/// float constant: the compiler keeps such constants in registers.
fn has_floats_in_loops(wasm: &[u8]) -> bool {
    let payloads = Parser::new(0).parse_all(wasm).map(|payload| payload.expect("the module is valid"));
    payloads.into_iter().any(|payload| match payload {
        Payload::CodeSectionEntry(body) => function_has_floats_in_loops(&body),
        _ => false,
    })
}

fn function_has_floats_in_loops(body: &FunctionBody<'_>) -> bool {
    // For each block that is open, whether it is such a loop so far, and has a constant.
    let (mut open, mut found) = (Vec::new(), false);
    for operator in body.get_operators_reader().expect("the module is valid") {
        match operator.expect("as above") {
            Operator::TryTable { .. } => return false,
            Operator::Loop { .. } => {
                open.iter_mut().for_each(|(is_loop, _)| *is_loop = false);
                open.push((true, false));
            }
            Operator::Block { .. } | Operator::If { .. } => open.push((false, false)),
            Operator::End => found |= open.pop().is_some_and(|(is_loop, has)| is_loop && has),
            Operator::F32Const { .. } | Operator::F64Const { .. } => {
                open.iter_mut().for_each(|(_, has)| *has = true);
            }
            Operator::Call { .. } | Operator::CallIndirect { .. } | Operator::CallRef { .. } => {
                open.iter_mut().for_each(|(is_loop, _)| *is_loop = false);
            }
            _ => {}
        }
    }
    found
}

/// Runs the command for this many seconds; in the long form, for this many minutes.
fn run(seconds: u32, arguments: &[&str]) {
    let seconds = if std::env::var_os("LONG_TESTS").is_some() { 60 * seconds } else { seconds };
    let stdout = output(&[&["--seconds", &seconds.to_string()], arguments].concat());
    let modules: u64 = stdout
        .split_once("seeds: ")
        .and_then(|(_, rest)| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number of modules in {stdout}"));
    // On a busy machine, there are few with probes, which run many times.
    assert!(modules > 4, "only {modules} modules");
}

/// What the command prints; it finds nothing.
fn output(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_wasm-jit-fuzz"))
        .args(arguments)
        .output()
        .expect("the command can be started");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{stdout}");
    assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}
