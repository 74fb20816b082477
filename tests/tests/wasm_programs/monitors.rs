//! The programs with small workloads under every monitor of `wasm-jit monitors`: output and exit
//! code are the same as without monitors, and figures of different monitors that mean the same are
//! equal.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tests::{Run, ensure_wasm_jit, is_long, repo_root, run_within};

use super::{STEP, Step, TIME_LIMIT, engine, ours, programs};

/// Reports, by monitor name.
pub(super) struct Reports(BTreeMap<String, Value>);

/// Figures by function or by offset.
pub(super) type Figures = BTreeMap<String, u64>;

/// A program with its workload.
pub(super) struct Workload {
    pub(super) fetched: &'static str,
    files: &'static [&'static str],
    pub(super) step: Step,
}

impl Workload {
    /// A directory with the workload's files, in `work`.
    pub(super) fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        for part in ["work", "tmp"] {
            fs::create_dir(folder.path().join(part)).expect("a folder can be made");
        }
        for file in self.files {
            let source = repo_root().join("tests/programs").join(file);
            let to = folder.path().join("work").join(source.file_name().expect("a source has a name"));
            fs::copy(&source, to).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        }
        folder
    }

    pub(super) fn run(&self, options: &[&str]) -> Run {
        let folder = self.folder();
        let mut command = ours(&programs(&[self.fetched]), folder.path(), &self.step, options);
        run_within(&mut command, TIME_LIMIT)
    }

    /// Records the program with these options; also returns the program.
    pub(super) fn recorded(&self, trace: &Path, options: &[&str]) -> (Run, PathBuf) {
        let folder = self.folder();
        let programs = programs(&[self.fetched]);
        let program = programs.join(self.step.program);
        let mut command = Command::new(ensure_wasm_jit());
        command.arg("record").args(options).arg("-o").arg(trace);
        let mut command = engine(command, &program, &programs, folder.path(), &self.step);
        (run_within(&mut command, TIME_LIMIT), program)
    }

    /// Runs the program under monitors, and compares output and exit code with those of `plain`.
    #[track_caller]
    fn monitored(&self, monitors: &str, plain: &Run) -> Reports {
        let run = self.run(&["--monitors", monitors, "--monitor-format", "json"]);
        let program = self.step.program;
        let same = run.status == plain.status && run.stdout == plain.stdout;
        assert!(
            same,
            "{program} under {monitors}: {} instead of {}\n{}",
            run.status, plain.status, run.stderr
        );
        let rest = rest_of(&run.stderr);
        if !monitors.contains("trace") {
            assert_eq!(rest, plain.stderr, "{program} under {monitors}: standard error");
        }
        Reports::read(&run.stderr)
    }
}

fn rest_of(stderr: &str) -> String {
    stderr.lines().filter(|line| !line.starts_with("{\"monitor\":")).map(|line| format!("{line}\n")).collect()
}

impl Reports {
    /// The reports among the lines of standard error.
    pub(super) fn read(stderr: &str) -> Self {
        let reports = stderr.lines().filter(|line| line.starts_with("{\"monitor\":"));
        let reports = reports.map(|line| {
            let report: Value = serde_json::from_str(line).expect("a report is JSON");
            (report["monitor"].as_str().expect("a name").to_owned(), report)
        });
        Self(reports.collect())
    }

    #[track_caller]
    fn of(&self, monitor: &str) -> &Value {
        self.0.get(monitor).unwrap_or_else(|| panic!("no report of {monitor}"))
    }

    #[track_caller]
    pub(super) fn value(&self, monitor: &str, name: &str) -> u64 {
        self.of(monitor)[name].as_u64().unwrap_or_else(|| panic!("{monitor} has no number {name}"))
    }

    #[track_caller]
    pub(super) fn rows(&self, monitor: &str, table: &str) -> impl Iterator<Item = &Value> {
        let rows = self.of(monitor)[table].as_array();
        rows.unwrap_or_else(|| panic!("{monitor} has no table {table}")).iter()
    }

    /// Sums of columns of a table, grouped by another column. Rows that are 0 are left out.
    #[track_caller]
    pub(super) fn sums(&self, monitor: &str, table: &str, by: &str, columns: &[&str]) -> Figures {
        let mut sums = Figures::new();
        for row in self.rows(monitor, table) {
            let number = |column: &&str| {
                row[*column].as_u64().unwrap_or_else(|| panic!("{monitor}.{table}: {column} in {row}"))
            };
            *sums.entry(key(&row[by])).or_default() += columns.iter().map(number).sum::<u64>();
        }
        sums.retain(|_, sum| *sum > 0);
        sums
    }

    /// The number of executions of the instructions with these opcodes, by offset.
    #[track_caller]
    fn executed(&self, is_wanted: impl Fn(&str) -> bool) -> Figures {
        let wanted = self.rows("hotness", "by_instruction").filter(|row| is_wanted(opcode(row)));
        wanted.map(|row| (key(&row["offset"]), row["times"].as_u64().expect("a number"))).collect()
    }
}

pub(super) fn key(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn opcode(row: &Value) -> &str {
    row["instruction"].as_str().and_then(|text| text.split_whitespace().next()).unwrap_or("?")
}

#[track_caller]
pub(super) fn assert_same(what: &str, left: &Figures, right: &Figures) {
    let mut keys = left.keys().chain(right.keys());
    if let Some(differs) = keys.find(|key| left.get(*key) != right.get(*key)) {
        panic!("{what}: for {differs}, {:?} and {:?}", left.get(differs), right.get(differs));
    }
    assert!(!left.is_empty(), "{what}: there is something to compare");
}

/// Monitors that count instructions.
const COUNTS: &str = "icount,hotness,imix,opcodes,coverage";

#[track_caller]
fn check_counts(reports: &Reports) {
    let total = reports.value("icount", "instructions");
    assert!(total > 10_000, "{total} instructions are a workload");
    for monitor in ["hotness", "imix", "opcodes"] {
        assert_eq!(reports.value(monitor, "instructions"), total, "{monitor} and icount");
    }
    let sum = |monitor, table, by, column| reports.sums(monitor, table, by, &[column]).values().sum::<u64>();
    assert_eq!(sum("hotness", "by_instruction", "offset", "times"), total, "instructions of hotness");
    assert_eq!(sum("hotness", "paths", "from", "executed"), total, "paths of hotness");
    assert_eq!(sum("imix", "by_class", "class", "times"), total, "classes of imix");
    assert_eq!(sum("opcodes", "by_opcode", "opcode", "times"), total, "opcodes");
    let by_function = reports.sums("icount", "functions", "function", &["instructions"]);
    let hot = reports.sums("hotness", "by_instruction", "function", &["times"]);
    assert_same("icount's and hotness' functions", &by_function, &hot);
    // Coverage contains what hotness has seen at least once.
    let mut places = Figures::new();
    let mut functions = 0;
    for row in reports.rows("hotness", "by_instruction") {
        *places.entry(key(&row["function"])).or_default() += 1;
    }
    let covered = reports.sums("coverage", "by_function", "function", &["executed"]);
    assert_same("instructions with hotness and coverage", &places, &covered);
    for row in reports.rows("coverage", "by_function") {
        functions += u64::from(row["executed"].as_u64() > Some(0));
    }
    assert_eq!(reports.value("coverage", "functions_covered"), functions);
    let executed = places.values().sum::<u64>();
    assert_eq!(reports.value("coverage", "instructions_covered"), executed);
    let by_opcode = reports.sums("opcodes", "by_opcode", "opcode", &["places"]);
    assert_eq!(by_opcode.values().sum::<u64>(), executed, "places of opcodes");
}

/// Monitors of control flow, together with hotness.
const CONTROL: &str = "hotness,coverage,blocks,branches,loops,globals,opcodes";

#[track_caller]
fn check_control(reports: &Reports) {
    let loops = reports.sums("loops", "by_loop", "offset", &["iterations"]);
    assert_same("loops and hotness", &loops, &reports.executed(|opcode| opcode == "loop"));
    let entered = reports.sums("loops", "by_loop", "offset", &["entered"]);
    assert!(
        entered.iter().all(|(at, entered)| *entered <= loops[at]),
        "each time a loop is entered it iterates"
    );
    let chooses = |opcode: &str| matches!(opcode, "br_if" | "if" | "br_table" | "select");
    let branches = reports.sums("branches", "by_branch", "offset", &["taken", "not_taken"]);
    assert_same("branches and hotness", &branches, &reports.executed(chooses));
    assert_eq!(reports.value("branches", "branches"), branches.values().sum::<u64>());
    let targets = reports.sums("branches", "targets", "offset", &["times"]);
    assert_same("targets and hotness", &targets, &reports.executed(|opcode| opcode == "br_table"));
    let blocks = reports.sums("blocks", "by_block", "from", &["times"]);
    let hot = reports.sums("hotness", "by_instruction", "offset", &["times"]);
    let begins: Figures = hot.iter().filter(|(at, _)| blocks.contains_key(*at)).map(owned).collect();
    assert_same("blocks and hotness", &blocks, &begins);
    assert_eq!(reports.value("coverage", "blocks_covered"), reports.value("blocks", "blocks_executed"));
    let whole = reports.rows("blocks", "by_block");
    let whole: u64 =
        whole.map(|row| row["times"].as_u64().unwrap_or(0) * row["length"].as_u64().unwrap_or(0)).sum();
    assert!(whole >= reports.value("hotness", "instructions"), "blocks contain all instructions");
    let times = reports.sums("opcodes", "by_opcode", "opcode", &["times"]);
    let of = |opcode: &str| times.get(opcode).copied().unwrap_or(0);
    assert_eq!(reports.value("globals", "reads"), of("global.get"), "globals that are read");
    assert_eq!(reports.value("globals", "writes"), of("global.set"), "globals that are written");
}

fn owned((key, value): (&String, &u64)) -> (String, u64) {
    (key.clone(), *value)
}

/// Monitors of callers and callees.
const ARCS: &str = "calls,calltree,profile";
/// The same, with sampled times.
const SAMPLED_ARCS: &str = "calls,calltree{times=sampled},profile{times=sampled}";

#[track_caller]
fn check_arcs(reports: &Reports) {
    let called = reports.sums("calls", "functions", "function", &["called"]);
    let tree = reports.sums("calltree", "functions", "function", &["calls"]);
    assert_same("calls and calltree", &called, &tree);
    let profile = reports.sums("profile", "functions", "function", &["called", "recursive_calls"]);
    assert_same("calls and profile", &called, &profile);
    let contexts = reports.sums("calltree", "contexts", "function", &["calls", "recursive_calls"]);
    assert_same("functions and contexts", &tree, &contexts);
    let arcs = |monitor: &str, columns: &[&str], host: &str| {
        let mut arcs = Figures::new();
        for row in reports.rows(monitor, "arcs") {
            let caller = key(&row["caller"]);
            let caller = if caller == host { "the host".to_owned() } else { caller };
            let calls: u64 = columns.iter().map(|column| row[*column].as_u64().expect("a number")).sum();
            *arcs.entry(format!("{caller} -> {}", key(&row["callee"]))).or_default() += calls;
        }
        arcs
    };
    let of_calls = arcs("calls", &["calls"], "host");
    assert_same("arcs", &of_calls, &arcs("profile", &["called", "recursive_calls"], "<spontaneous>"));
    let sites = reports.sums("calls", "sites", "kind", &["calls"]);
    assert_eq!(sites.values().sum::<u64>(), reports.value("calls", "calls"), "calls by site");
    let by_host = of_calls.iter().filter(|(arc, _)| arc.starts_with("the host -> "));
    let by_host: u64 = by_host.map(|(_, calls)| calls).sum();
    assert_eq!(by_host, reports.value("calls", "by_host"), "calls by the host");
}

/// These, and other monitors that observe calls.
const CALLS: &str = "calls,calltree,profile,hostcalls,opcodes,latency";

#[track_caller]
fn check_calls(reports: &Reports) {
    check_arcs(reports);
    let times = reports.sums("opcodes", "by_opcode", "opcode", &["times"]);
    let of = |opcode: &str| times.get(opcode).copied().unwrap_or(0);
    assert_eq!(reports.value("calls", "direct"), of("call") + of("return_call"), "direct calls");
    assert_eq!(
        reports.value("calls", "indirect"),
        of("call_indirect") + of("return_call_indirect"),
        "indirect calls"
    );
    let host = reports.sums("hostcalls", "functions", "function", &["calls"]);
    assert_eq!(host.values().sum::<u64>(), reports.value("hostcalls", "calls"));
    let called = reports.sums("calls", "functions", "function", &["called"]);
    for (function, calls) in &host {
        let ends: u64 = called
            .iter()
            .filter(|(name, _)| name.rsplit(['.', ':']).next() == Some(function))
            .map(|(_, n)| n)
            .sum();
        // The name section may give an import and the function around it the same name.
        assert!(ends >= *calls || ends == 0, "{function}: hostcalls has {calls}, calls {ends}");
    }
}

/// Monitors of memory, together with hotness.
const MEMORY: &str = "memory,cache,hotness";

#[track_caller]
fn check_memory(reports: &Reports) {
    let accesses = reports.sums("memory", "by_instruction", "offset", &["accesses"]);
    let is_access = |opcode: &str| {
        let is_atomic = opcode.contains(".atomic.");
        is_atomic || opcode.contains(".load") || opcode.contains(".store")
    };
    let mut expected = reports.executed(is_access);
    // A copy both loads and stores.
    expected
        .extend(reports.executed(|opcode| opcode == "memory.copy").into_iter().map(|(at, n)| (at, 2 * n)));
    expected.extend(reports.executed(|opcode| matches!(opcode, "memory.fill" | "memory.init")));
    assert_same("memory and hotness", &accesses, &expected);
    let simple = |figures: Figures| -> Figures {
        let plain = reports.executed(is_access);
        figures.into_iter().filter(|(at, _)| plain.contains_key(at)).collect()
    };
    // The cache ignores bulk instructions with a length of zero.
    let cached = simple(reports.sums("cache", "by_instruction", "offset", &["accesses"]));
    assert_same("cache and memory", &cached, &simple(accesses.clone()));
    let sum = ["loads", "stores", "modifications"].map(|name| reports.value("memory", name));
    assert_eq!(sum.iter().sum::<u64>(), accesses.values().sum::<u64>(), "loads and stores");
    assert!(
        reports.value("cache", "misses_1") >= reports.value("cache", "misses_2"),
        "a level misses what it gets"
    );
}

pub(super) const ICEPLL: Workload = Workload {
    fetched: "nextpnr",
    files: &[],
    step: Step { program: "icepll.wasm", arguments: &["-i", "12", "-o", "60"], ..STEP },
};

pub(super) const LUA: Workload = Workload {
    fetched: "lua",
    files: &["small_functions.lua"],
    step: Step { program: "lua.wasm", arguments: &["/work/small_functions.lua", "0.2"], ..STEP },
};

pub(super) const SQLITE: Workload = Workload {
    fetched: "sqlite",
    files: &[],
    step: Step { program: "sqlite.wasm", arguments: &["10"], ..STEP },
};

pub(super) const GOFMT: Workload = Workload {
    fetched: "gofmt",
    files: &["wasm/messy.go"],
    step: Step { program: "gofmt.wasm", arguments: &["-l", "/work/messy.go"], ..STEP },
};

pub(super) const RUST: Workload = Workload {
    fetched: "rust",
    files: &["wasm/messy.go"],
    step: Step { program: "rust.wasm", arguments: &["index", "/work", r"[a-z]+ing\b"], ..STEP },
};

pub(super) const PYTHON: Workload = Workload {
    fetched: "python",
    files: &[],
    step: Step { program: "python.wasm", arguments: &["-S", "-c", "print(sum(range(100)))"], ..STEP },
};

/// Programs with workloads, and with arguments for which they do little.
pub(super) const LARGE: [(Workload, &[&str]); 3] = [
    (
        Workload {
            fetched: "yosys",
            files: &["wasm/stack_machine.v"],
            step: Step {
                program: "yosys.wasm",
                arguments: &["-q", "-p", "read_verilog /work/stack_machine.v; proc; opt; stat"],
                share: Some("yosys-share"),
                ..STEP
            },
        },
        &["-V"],
    ),
    (
        Workload {
            fetched: "nextpnr",
            files: &[],
            step: Step {
                program: "nextpnr-ice40.wasm",
                arguments: &["--hx1k", "--package", "tq144"],
                share: Some("nextpnr-share"),
                ..STEP
            },
        },
        &["--version"],
    ),
    (
        Workload {
            fetched: "gocompile",
            files: &["wasm/numbers.go"],
            step: Step {
                program: "go-compile.wasm",
                arguments: &["-p", "numbers", "-complete", "-o", "/work/numbers.o", "/work/numbers.go"],
                environment: &["GOOS=linux", "GOARCH=amd64"],
                ..STEP
            },
        },
        &["-V"],
    ),
];

/// The names of all monitors.
fn all_monitors() -> Vec<String> {
    let listed = run_within(Command::new(ensure_wasm_jit()).arg("monitors"), TIME_LIMIT);
    let text = String::from_utf8(listed.stdout).expect("UTF-8");
    text.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
}

/// The figures of the program are the same in each run.
#[test]
fn monitors_together_have_the_figures_of_each_alone() {
    let plain = ICEPLL.run(&[]);
    // The module has no named allocator; the trace goes to standard error.
    let names: Vec<String> =
        all_monitors().into_iter().filter(|name| !matches!(name.as_str(), "alloc" | "trace")).collect();
    assert!(names.len() >= 15, "{names:?}");
    let together = ICEPLL.monitored(&names.join(","), &plain);
    check_counts(&together);
    check_control(&together);
    check_calls(&together);
    check_memory(&together);
    check_arcs(&ICEPLL.monitored(SAMPLED_ARCS, &plain));
    for name in &names {
        let alone = ICEPLL.monitored(name, &plain);
        // The other monitors measure times.
        if !matches!(name.as_str(), "calltree" | "hostcalls" | "latency" | "profile") {
            assert!(alone.of(name) == together.of(name), "{name} alone reports something else");
        }
    }
}

/// Programs, and arguments for which they do little.
const SHORT: [(Workload, &[&str]); 6] = [
    (ICEPLL, ICEPLL.step.arguments),
    (LUA, &["/work/small_functions.lua", "0.001"]),
    (SQLITE, &["1"]),
    (RUST, &["index", "/nothing", "a"]),
    (GOFMT, &["-h"]),
    (PYTHON, &["-V"]),
];

/// All monitors together, of which `trace` is limited.
#[test]
fn every_monitor_observes_every_program() {
    let names = all_monitors();
    let request = |name: &String| if name == "trace" { "trace{limit=1000}".to_owned() } else { name.clone() };
    let monitors = names.iter().map(request).collect::<Vec<_>>().join(",");
    let observe = |workload: &Workload| {
        let reports = workload.monitored(&monitors, &workload.run(&[]));
        for name in &names {
            let refused = reports.of(name).get("functions_not_observed");
            assert_eq!(refused, None, "{}: {name}", workload.step.program);
        }
        reports
    };
    // The others take a minute.
    let large = if is_long() { &LARGE[..] } else { &LARGE[1..2] };
    for (workload, arguments) in SHORT.iter().chain(large) {
        observe(&Workload { step: Step { arguments, ..workload.step }, ..*workload });
    }
    if is_long() {
        for workload in [LUA, SQLITE, RUST, GOFMT, PYTHON] {
            let reports = observe(&workload);
            check_counts(&reports);
            check_control(&reports);
            check_calls(&reports);
            check_memory(&reports);
        }
    }
}

#[test]
fn a_trace_has_each_instruction_that_is_counted() {
    let plain = ICEPLL.run(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let out = folder.path().to_str().expect("UTF-8");
    let run = ICEPLL.run(&["--monitors", "trace,hotness", "--monitor-out", out]);
    assert!(run.status == plain.status && run.stdout == plain.stdout, "{}\n{}", run.status, run.stderr);
    let read = |file: &str| fs::read_to_string(folder.path().join(file)).expect("a report is written");
    let report: Value = serde_json::from_str(&read("hotness.json")).expect("JSON");
    let reports = Reports(BTreeMap::from([("hotness".to_owned(), report)]));
    let mut lines = Figures::new();
    for line in read("trace.log").lines() {
        let offset = line.split_whitespace().nth(2).and_then(|text| text.strip_prefix("0x"));
        let offset = u64::from_str_radix(offset.expect("an offset"), 16).expect("a number");
        *lines.entry(offset.to_string()).or_default() += 1;
    }
    assert_same(
        "trace and hotness",
        &lines,
        &reports.sums("hotness", "by_instruction", "offset", &["times"]),
    );
}

/// Lua's errors are exceptions.
#[test]
fn monitors_of_lua_agree() {
    let plain = LUA.run(&[]);
    check_counts(&LUA.monitored(COUNTS, &plain));
    check_control(&LUA.monitored(CONTROL, &plain));
    check_calls(&LUA.monitored(CALLS, &plain));
    check_arcs(&LUA.monitored(SAMPLED_ARCS, &plain));
    check_memory(&LUA.monitored(MEMORY, &plain));
    let reports = LUA.monitored("alloc,trace{limit=1000}", &plain);
    assert!(
        reports.value("alloc", "allocations") >= reports.value("alloc", "frees"),
        "blocks are freed once"
    );
    assert_eq!(reports.value("trace", "instructions"), 1000);
}

/// A program that fails ends with the same code.
#[test]
fn a_failure_stays_one_under_monitors() {
    let missing = Workload { step: Step { arguments: &["/work/missing.lua"], ..LUA.step }, ..LUA };
    let plain = missing.run(&[]);
    assert!(plain.status.code().is_some_and(|code| code != 0), "{}", plain.status);
    for monitors in [COUNTS, CALLS] {
        missing.monitored(monitors, &plain);
    }
}

#[test]
fn monitors_of_sqlite_agree() {
    let plain = SQLITE.run(&[]);
    check_counts(&SQLITE.monitored(COUNTS, &plain));
    check_control(&SQLITE.monitored(CONTROL, &plain));
    check_calls(&SQLITE.monitored(CALLS, &plain));
}

#[test]
fn monitors_of_a_rust_program_agree() {
    let plain = RUST.run(&[]);
    check_counts(&RUST.monitored(COUNTS, &plain));
    check_calls(&RUST.monitored(CALLS, &plain));
}

/// A goroutine leaves a function and returns to it later, without calls that are visible in Wasm.
#[test]
fn monitors_of_gofmt_agree() {
    let plain = GOFMT.run(&[]);
    check_calls(&GOFMT.monitored(CALLS, &plain));
    if is_long() {
        check_counts(&GOFMT.monitored(COUNTS, &plain));
        check_control(&GOFMT.monitored(CONTROL, &plain));
        check_memory(&GOFMT.monitored(MEMORY, &plain));
    }
}

#[test]
fn monitors_of_python_agree() {
    let plain = PYTHON.run(&[]);
    check_arcs(&PYTHON.monitored(ARCS, &plain));
    if is_long() {
        check_counts(&PYTHON.monitored(COUNTS, &plain));
        check_control(&PYTHON.monitored(CONTROL, &plain));
        check_calls(&PYTHON.monitored(CALLS, &plain));
        check_memory(&PYTHON.monitored(MEMORY, &plain));
    }
}

/// Modules of 2 to 69 MB. Probes are created only in functions that are called.
#[test]
fn monitors_of_large_programs_agree() {
    // Go's compiler takes as long as yosys.
    let chosen = if is_long() { &LARGE[..] } else { &LARGE[..2] };
    for (workload, version) in chosen {
        let short = Workload { step: Step { arguments: version, ..workload.step }, ..*workload };
        check_counts(&short.monitored(COUNTS, &short.run(&[])));
        if is_long() {
            let plain = workload.run(&[]);
            check_counts(&workload.monitored(COUNTS, &plain));
            check_control(&workload.monitored(CONTROL, &plain));
            check_calls(&workload.monitored(CALLS, &plain));
            check_memory(&workload.monitored(MEMORY, &plain));
        }
    }
}
