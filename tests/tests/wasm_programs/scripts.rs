//! The scripts of `wasm-jit/whamm/scripts/` on a program, compared with the monitors of `wasm-jit
//! monitors`: the same counts.
//!
//! Places are compared by their offsets in the module, which are in both reports.

use std::collections::BTreeSet;

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

/// The number of times that something happened at each place, by the place's offset.
#[track_caller]
fn by_offset(reports: &Reports, script: &str, variable: &str) -> Figures {
    reports.sums(script, "by_site", "offset", &[variable])
}

/// The entries of a map, by their keys.
#[track_caller]
fn by_key(reports: &Reports, script: &str, variable: &str, keys: &[&str]) -> Figures {
    let rows = reports.rows(script, variable).map(|row| {
        let keys: Vec<String> = keys.iter().map(|name| key(&row[*name])).collect();
        (keys.join(" -> "), row["value"].as_u64().expect("a number"))
    });
    rows.filter(|(_, times)| *times > 0).collect()
}

#[test]
fn instructions_are_counted_as_by_hotness() {
    let reports = observed(&LUA, "hotness.mm", "hotness");
    let times = by_offset(&reports, "hotness.mm", "times");
    assert_eq!(times.values().sum::<u64>(), reports.value("hotness", "instructions"));
    let executed = reports.sums("hotness", "by_instruction", "offset", &["times"]);
    assert_same("hotness.mm and hotness", &times, &executed);
}

#[test]
fn branches_are_counted_as_by_branches() {
    for script in ["branches.mm", "decisions.mm"] {
        let reports = observed(&LUA, script, "branches");
        // The monitor counts an `if` whose condition holds as taken; so does the script.
        let columns = if script == "branches.mm" { ["taken_times", "not_taken"] } else { ["yes", "no"] };
        for (variable, column) in columns.into_iter().zip(["taken", "not_taken"]) {
            let rows = reports.rows("branches", "by_branch");
            let conditional = rows.filter(|row| matches!(opcode(row), "br_if" | "if"));
            let counted =
                conditional.map(|row| (key(&row["offset"]), row[column].as_u64().expect("a number")));
            let counted: Figures = counted.filter(|(_, times)| *times > 0).collect();
            let mut found = by_offset(&reports, script, variable);
            // The paper's monitor also covers unconditional branches.
            let rows = reports.rows(script, "by_site");
            for row in rows.filter(|row| row["event"] == "wasm:opcode:br:before") {
                found.remove(&key(&row["offset"]));
            }
            assert_same(&format!("{script}, {variable}, and branches"), &found, &counted);
        }
    }
}

#[test]
fn kinds_of_instructions_are_counted_as_by_hotness() {
    let reports = observed(&ICEPLL, "imix.mm", "hotness");
    let mut executed = Figures::new();
    for row in reports.rows("hotness", "by_instruction") {
        // In the text format, the `end` of a function is a parenthesis.
        let name = match opcode(row) {
            ")" | "?" => "end",
            name => name,
        };
        *executed.entry(name.to_owned()).or_default() += row["times"].as_u64().expect("a number");
    }
    executed.retain(|_, times| *times > 0);
    assert_same("imix.mm and hotness", &by_key(&reports, "imix.mm", "times", &["key"]), &executed);
}

#[test]
fn calls_are_counted_as_by_calls() {
    let reports = observed(&LUA, "calls.mm", "calls");
    let called = reports.sums("calls", "functions", "function", &["called"]);
    let counted = reports.sums("calls.mm", "by_site", "function", &["calls"]);
    // Imported functions have no code here.
    for (function, calls) in &counted {
        assert_eq!(called.get(function), Some(calls), "{function}");
    }
    assert!(
        called.len() - counted.len() < called.len() / 4,
        "{} of {} functions",
        counted.len(),
        called.len()
    );
}

#[test]
fn call_sites_and_the_call_graph_are_those_of_calls() {
    let reports = observed(&LUA, "hot_call_sites.mm", "calls,hotness");
    let rows = reports.rows("hotness", "by_instruction").filter(|row| opcode(row) == "call");
    let executed = rows.map(|row| (key(&row["offset"]), row["times"].as_u64().expect("a number")));
    let executed: Figures = executed.filter(|(_, times)| *times > 0).collect();
    let times = by_offset(&reports, "hot_call_sites.mm", "times");
    assert_same("hot_call_sites.mm and hotness", &times, &executed);
    // The monitor's graph contains direct and indirect calls, including calls to the host, whose
    // functions have other names there.
    let counting = tests::repo_root().join("wasm-jit/whamm/scripts/calls.mm");
    let direct = observed(&LUA, "call_graph.mm", &format!("calls,{}", counting.display()));
    let indirect = observed(&LUA, "indirect_targets.mm", "calls");
    let mut found = by_key(&direct, "call_graph.mm", "calls", &["key.0", "key.1"]);
    for (edge, times) in by_key(&indirect, "indirect_targets.mm", "targets", &["key.0", "key.1"]) {
        *found.entry(edge).or_default() += times;
    }
    let mut edges = Figures::new();
    for row in direct.rows("calls", "arcs") {
        // In scripts, functions of one name are not told apart.
        let [caller, callee] = ["caller", "callee"].map(|of| {
            let name = key(&row[of]);
            match name.rsplit_once('#') {
                Some((base, index)) if index.parse::<u32>().is_ok() => base.to_owned(),
                _ => name,
            }
        });
        let edge = format!("{caller} -> {callee}");
        *edges.entry(edge).or_default() += row["calls"].as_u64().expect("a number");
    }
    edges.retain(|_, times| *times > 0);
    let rows = direct.rows("calls.mm", "by_site").map(|row| key(&row["function"]));
    let names: BTreeSet<String> = rows.collect();
    for graph in [&mut found, &mut edges] {
        graph.retain(|edge, _| {
            let (caller, callee) = edge.split_once(" -> ").expect("two names");
            names.contains(caller) && names.contains(callee)
        });
    }
    assert!(edges.len() > 100, "{} pairs of functions", edges.len());
    assert_same("call_graph.mm with indirect_targets.mm and calls", &found, &edges);
}

#[test]
fn loops_are_counted_as_by_loops() {
    let reports = observed(&LUA, "loop_trips.mm", "loops");
    let iterations = reports.sums("loops", "by_loop", "offset", &["iterations"]);
    assert_same("loop_trips.mm and loops", &by_offset(&reports, "loop_trips.mm", "iterations"), &iterations);
    for row in reports.rows("loop_trips.mm", "by_site") {
        let number = |name: &str| row[name].as_u64().expect("a number");
        assert!(number("most") <= number("iterations") && number("calls") <= number("iterations"), "{row}");
    }
}

#[test]
fn accesses_are_counted_as_by_memory() {
    let reports = observed(&LUA, "accesses.mm", "memory");
    let value = |name| reports.value("accesses.mm", name);
    for name in ["loads", "stores"] {
        assert_eq!(value(name), reports.value("memory", name), "{name}");
    }
    let bytes = reports.value("memory", "bytes_of_loads") + reports.value("memory", "bytes_of_stores");
    assert_eq!(value("bytes"), bytes);
    let by_offset = reports.rows("memory", "by_instruction").map(|row| key(&row["offset"]));
    assert!(by_offset.count() > 100, "a program with many accesses");
    let reports = observed(&LUA, "cache_sim.mm", "memory");
    let accesses = reports.value("memory", "loads") + reports.value("memory", "stores");
    assert_eq!(reports.value("cache_sim.mm", "hits") + reports.value("cache_sim.mm", "misses"), accesses);
}
