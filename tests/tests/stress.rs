//! The short form of the stress program: every scenario runs briefly, and every injected defect is
//! found.

use std::process::Command;

use serde_json::Value;
use tests::run;

/// Runs the program with these arguments; returns its exit code, its total and its stderr.
fn stress(arguments: &[&str]) -> (Option<i32>, Value, String) {
    let program = env!("CARGO_BIN_EXE_stress");
    let run = run(Command::new(program).arg("--json").args(arguments));
    let text = String::from_utf8_lossy(&run.stdout);
    let json: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", run.stderr));
    (run.status.code(), json["total"].clone(), run.stderr)
}

#[track_caller]
fn check(scenario: &str) {
    check_with(&["--scenario", scenario]);
}

#[track_caller]
fn check_with(arguments: &[&str]) {
    let (code, total, said) = stress(&[arguments, &["--seconds", "0.4"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for count in ["executions", "toggles"] {
        assert!(total[count].as_u64() > Some(0), "{total}");
    }
    for count in ["torn", "lost", "hung", "other"] {
        assert_eq!(total[count], 0, "{total}");
    }
}

#[test]
fn paper() {
    check("paper");
}

#[test]
fn boundaries() {
    check("boundaries");
}

/// If the window may be larger than this processor's, single stores may tear: then no other
/// violation may occur, and none at all if the processor does not tear.
#[test]
fn boundaries_of_a_window_that_may_be_too_large() {
    let arguments = ["--scenario", "boundaries", "--window", "64", "--t-max", "0", "--seconds", "1"];
    let (code, total, said) = stress(&arguments);
    for count in ["lost", "hung", "other"] {
        assert_eq!(total[count], 0, "{total}: {said}");
    }
    let torn = total["torn"].as_u64().expect("a count");
    assert_eq!(code, Some(i32::from(torn > 0)), "{said}");
    if torn == 0 {
        eprintln!("no tear inside a line occurred in this run");
    }
}

#[test]
fn neighbours() {
    check("neighbours");
}

#[test]
fn contention() {
    check("contention");
}

#[test]
fn batches() {
    check("batches");
}

#[test]
fn asynchronous() {
    check("asynchronous");
}

#[test]
fn signals() {
    check("signals");
}

#[test]
fn fork() {
    check("fork");
}

#[test]
fn unload() {
    check("unload");
}

#[test]
fn wasm() {
    check("wasm");
}

#[test]
fn unload_of_text_that_is_mapped_shared() {
    check_with(&["--scenario", "unload", "--text", "alias"]);
}

/// All scenarios except the one in which text is unmapped while its patches are outstanding: see
/// `TextAccess::Private`.
#[test]
fn a_debugger_that_copies_pages_all_the_time() {
    for scenario in ["neighbours", "batches", "asynchronous", "fork"] {
        check_with(&["--scenario", scenario, "--debugger"]);
    }
}

#[test]
fn all_at_once() {
    check("all");
}

#[test]
fn injected_defects_are_found() {
    // A lost update may show as its consequence: a mixture, or an INT3 without a site, which ends
    // the process.
    let damage: &[&str] = &["lost: ", "torn: "];
    for (scenario, defect, lines) in [
        ("neighbours", "overwrite", damage),
        ("neighbours", "tear", damage),
        ("asynchronous", "lock", damage),
        ("unload", "writable", &["a mapping is writable and executable"]),
        ("contention", "hang", &["hung: the injected defect has made no progress"]),
        ("wasm", "switch", &["lost: "]),
        ("wasm", "leak", &["other: switcher: memory grows"]),
    ] {
        // Memory grows only after several rounds, of which a busy machine makes fewer in the same
        // time.
        let times = if defect == "leak" { ["4", "16", "40"] } else { ["0.4", "2", "10"] };
        let run = |seconds: &str| {
            let program = ["--scenario", scenario, "--defect", defect];
            stress(&[&program[..], &["--seconds", seconds, "--patience", "3"]].concat())
        };
        let mut found = run(times[0]);
        for seconds in &times[1..] {
            if found.0 == Some(0) {
                found = run(seconds);
            }
        }
        let (code, _, said) = found;
        assert_eq!(code, Some(1), "{scenario}, {defect}: {said}");
        assert!(lines.iter().any(|line| said.contains(line)), "{scenario}, {defect}: {said}");
    }
}

#[test]
fn an_unknown_scenario_is_refused() {
    let run = run(Command::new(env!("CARGO_BIN_EXE_stress")).args(["--scenario", "calm"]));
    assert_eq!(run.status.code(), Some(2));
    assert!(
        run.stderr.contains("no scenario calm; there are paper, boundaries, neighbours"),
        "{}",
        run.stderr
    );
}
