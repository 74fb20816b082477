//! The scripts of `wasm-jit/whamm/scripts/` on a program, compared with the monitors of `wasm-jit
//! monitors`: the same counts.
//!
//! A script knows a place by a number of a function and an offset in it, and a monitor by an offset
//! in the module, so counts of places are compared as multisets.

use super::monitors::{Figures, ICEPLL, LUA, Reports, Workload, assert_same, key, opcode};

/// Runs a program under a script and monitors.
#[track_caller]
fn observed(program: &Workload, script: &str, monitors: &str) -> Reports {
    let script = tests::repo_root().join("wasm-jit/whamm/scripts").join(script);
    let monitors = format!("{},{monitors}", script.display());
    let plain = program.run(&[]);
    let run = program.run(&["--monitors", &monitors, "--monitor-format", "json"]);
    assert_eq!((run.status, &run.stdout), (plain.status, &plain.stdout), "{}", run.stderr);
    Reports::read(&run.stderr)
}

/// Values of a variable of places that are not 0, sorted.
fn values(reports: &Reports, script: &str, variable: &str) -> Vec<u64> {
    sorted(reports.rows(script, "by_site").map(|row| row[variable].as_u64().expect("a number")))
}

fn sorted(figures: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut figures: Vec<u64> = figures.filter(|figure| *figure > 0).collect();
    figures.sort_unstable();
    figures
}

#[test]
fn instructions_are_counted_as_by_hotness() {
    let reports = observed(&LUA, "hotness.mm", "hotness");
    let times = values(&reports, "hotness_", "times");
    assert_eq!(times.iter().sum::<u64>(), reports.value("hotness", "instructions"));
    let executed = reports.rows("hotness", "by_instruction").filter_map(|row| row["times"].as_u64());
    assert_eq!(times, sorted(executed));
}

#[test]
fn branches_are_counted_as_by_branches() {
    let reports = observed(&LUA, "branches.mm", "branches");
    let conditional = || {
        let rows = reports.rows("branches", "by_branch");
        rows.filter(|row| matches!(opcode(row), "br_if" | "if"))
    };
    // The monitor counts an `if` whose condition holds as taken; so does the script.
    for (variable, column) in [("taken_times", "taken"), ("not_taken", "not taken")] {
        let counted = conditional().filter_map(|row| row[column].as_u64());
        assert_eq!(rows.values(variable), sorted(counted), "{variable}");
    }
}

#[test]
fn kinds_of_instructions_are_counted_as_by_hotness() {
    let reports = observed(&ICEPLL, "imix.mm", "hotness");
    let mut executed = Figures::new();
    for row in reports.rows("hotness", "by_instruction") {
        // Of the `end` of a function, the text of the module has a parenthesis.
        let name = match opcode(row) {
            ")" | "?" => "end",
            name => name,
        };
        *executed.entry(name.to_owned()).or_default() += row["times"].as_u64().expect("a number");
    }
    executed.retain(|_, times| *times > 0);
    assert_same("imix.mm and hotness", &rows.by_key("times"), &executed);
}

#[test]
fn calls_are_counted_as_by_calls() {
    let reports = observed(&LUA, "calls.mm", "calls");
    // Imported functions have no code here.
    let mut called = sorted(reports.rows("calls", "functions").filter_map(|row| row["called"].as_u64()));
    for calls in rows.values("calls") {
        let found = called.binary_search(&calls).unwrap_or_else(|_| panic!("{calls} calls of no function"));
        called.remove(found);
    }
    let imported = reports.sums("calls", "functions", "function", &["called"]).len();
    assert!(called.len() < imported / 4, "{} of {imported} functions have no code", called.len());
}

#[test]
fn accesses_are_counted_as_by_memory() {
    let reports = observed(&LUA, "accesses.mm", "memory");
    for name in ["loads", "stores"] {
        assert_eq!(rows.value(name), reports.value("memory", name), "{name}");
    }
    let bytes = reports.value("memory", "bytes_of_loads") + reports.value("memory", "bytes_of_stores");
    assert_eq!(rows.value("bytes"), bytes);
    let by_offset = reports.rows("memory", "by_instruction").map(|row| key(&row["offset"]));
    assert!(by_offset.count() > 100, "a program with many accesses");
}
