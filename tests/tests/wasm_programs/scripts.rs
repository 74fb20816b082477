//! The scripts of `wasm-jit/whamm/scripts/` on a program, compared with the monitors of `wasm-jit
//! monitors`: the same counts.
//!
//! A script knows a place by a number of a function and an offset in it, and a monitor by an offset
//! in the module, so counts of places are compared as multisets.

use super::monitors::{Figures, ICEPLL, LUA, Reports, Workload, assert_same, key, opcode};

/// The rows of a script's report: the variable, the event, the key, and the value.
struct Rows(Vec<[String; 4]>);

impl Rows {
    /// Values of a variable that are not 0, sorted.
    fn values(&self, variable: &str) -> Vec<u64> {
        let rows = self.0.iter().filter(|[name, ..]| name == variable);
        let mut values: Vec<u64> =
            rows.map(|[.., value]| value.parse().expect("a number")).filter(|value| *value > 0).collect();
        values.sort_unstable();
        values
    }

    #[track_caller]
    fn value(&self, variable: &str) -> u64 {
        let values: Vec<&str> =
            self.0.iter().filter(|[name, ..]| name == variable).map(|[.., value]| value.as_str()).collect();
        let [value] = values[..] else { panic!("{variable}: {values:?}") };
        value.parse().expect("a number")
    }

    fn by_key(&self, variable: &str) -> Figures {
        let rows = self.0.iter().filter(|[name, ..]| name == variable);
        rows.map(|[.., key, value]| (key.clone(), value.parse().expect("a number"))).collect()
    }
}

/// Fields of a line, without quotes.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut is_quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            other => fields.last_mut().expect("one at least").push(other),
        }
    }
    fields
}

/// Runs a program under a script and monitors.
#[track_caller]
fn observed(program: &Workload, script: &str, monitors: &str) -> (Rows, Reports) {
    let script = tests::repo_root().join("wasm-jit/whamm/scripts").join(script);
    let monitors = format!("{},{monitors}", script.display());
    let plain = program.run(&[]);
    let run = program.run(&["--monitors", &monitors, "--monitor-format", "json"]);
    assert_eq!((run.status, &run.stdout), (plain.status, &plain.stdout), "{}", run.stderr);
    let report = run.stderr.split_once("name,type,event,fid,pc,key,value\n").expect("the script's report").1;
    let rows = report.lines().take_while(|line| !line.starts_with('{')).map(|line| {
        let fields = fields(line);
        let [name, _, event, _, _, key, value] = fields.try_into().expect("seven fields");
        [name, event, key, value]
    });
    (Rows(rows.collect()), Reports::read(&run.stderr))
}

fn sorted(figures: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut figures: Vec<u64> = figures.filter(|figure| *figure > 0).collect();
    figures.sort_unstable();
    figures
}

#[test]
fn instructions_are_counted_as_by_hotness() {
    let (rows, reports) = observed(&LUA, "hotness.mm", "hotness");
    let times = rows.values("times");
    assert_eq!(times.iter().sum::<u64>(), reports.value("hotness", "instructions"));
    let executed = reports.rows("hotness", "by_instruction").filter_map(|row| row["times"].as_u64());
    assert_eq!(times, sorted(executed));
}

#[test]
fn branches_are_counted_as_by_branches() {
    let (rows, reports) = observed(&LUA, "branches.mm", "branches");
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
    let (rows, reports) = observed(&ICEPLL, "imix.mm", "hotness");
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
    let (rows, reports) = observed(&LUA, "calls.mm", "calls");
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
    let (rows, reports) = observed(&LUA, "accesses.mm", "memory");
    for name in ["loads", "stores"] {
        assert_eq!(rows.value(name), reports.value("memory", name), "{name}");
    }
    let bytes = reports.value("memory", "bytes_of_loads") + reports.value("memory", "bytes_of_stores");
    assert_eq!(rows.value("bytes"), bytes);
    let by_offset = reports.rows("memory", "by_instruction").map(|row| key(&row["offset"]));
    assert!(by_offset.count() > 100, "a program with many accesses");
}
