//! `fastinst run`: scripts that observe native programs. A program must print and end as it does
//! without the script; a script's counts are compared with the program's own.

mod arguments;
mod frames;
mod results;
mod splits;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::Compiler::{Clang, Gcc};
use tests::{Compiler, Run, bare, compile, ensure_built, repo_root, run};

/// Counts entries and exits of each function, and the exits whose entries are known.
const COUNTS: &str = r#"
report var deepest: u32;
native:func:entry { report var calls: u64; calls++; if (depth > deepest) { deepest = depth; } }
native:func:exit { report var exits: u64; exits++; }
native:func:exit { report var shortest: u64; report var paired: u64; paired++;
    if (paired == 1 || duration < shortest) { shortest = duration; } }
"#;

/// A program that ran with a script, and the reports of its processes.
struct Scripted {
    run: Run,
    reports: Vec<Value>,
}

fn command(script: &Path, output: &Path, binary: &Path, args: &[&str]) -> Command {
    let mut command = bare(&ensure_built().join("fastinst"), &[]);
    command.arg("run").arg("-o").arg(output).arg(script).arg("--").arg(binary).args(args);
    command
}

fn scripted(script: &str, binary: &Path, args: &[&str]) -> Scripted {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("script.mm");
    fs::write(&file, script).expect("the folder can be written");
    let reports = folder.path().join("reports");
    fs::create_dir(&reports).expect("the folder can be written");
    let run = run(&mut command(&file, &reports.join("report.json"), binary, args));
    let mut files: Vec<PathBuf> =
        fs::read_dir(&reports).expect("the folder can be read").map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("the report can be read");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", file.display()))
    };
    Scripted { run, reports: files.iter().map(read).collect() }
}

impl Scripted {
    /// The sums of a variable of functions, over all processes.
    fn by_function(&self, variable: &str) -> BTreeMap<String, u64> {
        by_function(&self.reports, variable)
    }

    fn notes(&self) -> Vec<&str> {
        self.reports
            .iter()
            .flat_map(|report| report["notes"].as_array().unwrap())
            .filter_map(Value::as_str)
            .collect()
    }
}

fn by_function(reports: &[Value], variable: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for table in reports.iter().flat_map(|report| report["tables"].as_array().unwrap()) {
        let columns = table["columns"].as_array().unwrap();
        let column = |name: &str| columns.iter().position(|column| column == name);
        let (Some(value), Some(function)) = (column(variable), column("function")) else { continue };
        for row in table["rows"].as_array().unwrap() {
            let name = row[function].as_str().unwrap().to_owned();
            *sums.entry(name).or_default() += row[value].as_u64().unwrap();
        }
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}

/// The output of a program: a name and a number in each line.
fn own_counts(run: &Run) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(&run.stdout);
    let counts = text.lines().filter_map(|line| line.split_once(' '));
    let counts = counts.map(|(name, count)| (name.to_owned(), count.parse().expect("a number")));
    counts.filter(|(_, count)| *count > 0).collect()
}

const BUILDS: [(Compiler, &[&str]); 4] =
    [(Gcc, &["-O0"]), (Gcc, &["-O2"]), (Clang, &["-O2"]), (Gcc, &["-O2", "-fno-plt", "-no-pie"])];

/// Runs a scenario of `scripted.c` in each build, and compares the script's entries with the
/// program's own counts.
fn check(scenario: &str) -> Vec<Scripted> {
    let run_build = |(compiler, flags): (Compiler, &[&str])| {
        let binary = compile("fixtures/scripted.c", flags, compiler);
        let found = scripted(COUNTS, &binary, &[scenario]);
        let what = format!("{scenario} by {compiler:?} {flags:?}");
        assert!(found.run.status.code() != Some(99), "{what}: {}", found.run.stderr);
        assert_eq!(found.run.stderr, "", "{what}");
        assert_eq!(found.by_function("calls"), own_counts(&found.run), "{what}: {:?}", found.notes());
        found
    };
    BUILDS.into_iter().map(run_build).collect()
}

#[track_caller]
fn assert_all_paired(found: &Scripted) {
    let calls = found.by_function("calls");
    assert_eq!(found.by_function("exits"), calls);
    assert_eq!(found.by_function("paired"), calls);
    assert_eq!(found.notes(), <[&str; 0]>::default());
}

#[test]
fn events_of_other_functions_are_noted() {
    let binary = compile("fixtures/merged_calls.c", &["-O2"], Gcc);
    let found = scripted(COUNTS, &binary, &["9000"]);
    assert!(found.run.status.success(), "{}", found.run.stderr);
    let note = "merged_first includes calls of merged_second: ";
    assert!(found.notes().iter().any(|found| found.starts_with(note)), "{:?}", found.notes());
}

/// A shell that is configured by its environment, without `fastinst run`.
#[test]
fn programs_that_a_process_starts_belong_to_its_run() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let [script, reports] = ["script.mm", "reports"].map(|name| folder.path().join(name));
    fs::write(&script, COUNTS).expect("the folder can be written");
    fs::create_dir(&reports).expect("the folder can be written");
    let mut shell = bare(Path::new("bash"), &["-c", "\"$0\" recursion; \"$0\" recursion; true"]);
    let options =
        format!("script={}:output={}:format=json", script.display(), reports.join("r.json").display());
    shell.arg(&binary).env("LD_PRELOAD", ensure_built().join("libfastinst_script.so"));
    let ran = run(shell.env("FASTINST_SCRIPT", options));
    assert!(ran.status.success(), "{}", ran.stderr);
    let texts = fs::read_dir(&reports).expect("the folder exists").map(|entry| entry.unwrap().path());
    let texts: Vec<_> = texts.map(|path| fs::read_to_string(path).expect("a report")).collect();
    let of_program = |text: &&String| text.contains(binary.to_str().expect("a path in UTF-8"));
    assert_eq!(texts.iter().filter(of_program).count(), 2, "{texts:?}");
}

/// In the rest of a period, probes write no events: the predicate is not evaluated for them.
/// Without values, and with arguments.
#[test]
fn timed_samples_cost_little_in_between() {
    let binary = compile("fixtures/scripted.c", &["-O0", "-g"], Gcc);
    for rule in ["native:func:entry", "native:func:entry(arg0: u32)"] {
        let script = format!(
            "report var evaluated: u64; report var sampled: u64;
             fn evaluate() -> bool {{ evaluated++; return true; }}
             @sample(1s) {rule} / evaluate() && fname != \"main\" / {{ sampled++; }}"
        );
        let found = scripted(&script, &binary, &["threads"]);
        assert!(found.run.status.success(), "{}", found.run.stderr);
        let value = |name: &str| found.reports[0]["values"][name].as_u64().unwrap();
        let calls: u64 = own_counts(&found.run).values().sum();
        assert!(calls >= 1_920_000, "{calls}");
        assert!((1..=60).contains(&value("sampled")), "{rule}: {}", value("sampled"));
        assert!(value("evaluated") < calls / 4, "{rule}: {} of {calls}", value("evaluated"));
    }
}

/// A rule that needs all events gets them, even where a sampled rule comes first; and each period
/// has its sample.
#[test]
fn timed_samples_leave_other_rules_alone() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let script = "report var sampled: u64;
        @sample(1s) native:func:entry { sampled++; }
        native:func:entry / fname == \"inner\" || fname == \"leaf\" / { report var calls: u64; calls++; }";
    let found = scripted(script, &binary, &["threads"]);
    assert_eq!(found.by_function("calls"), own_counts(&found.run), "{:?}", found.notes());
    // The periods of rules that share their places with no other rule.
    let script = "report var sampled: u64; report var first: u64; report var last: u64;
        @sample(5ms) native:func:entry / fname == \"sleeper\" / { sampled++; if (first == 0) { first = ns; } last = ns; }";
    let found = scripted(script, &binary, &["durations"]);
    let value = |name: &str| found.reports[0]["values"][name].as_u64().unwrap();
    // Five calls that take at least 20 ms each.
    assert_eq!(value("sampled"), 5);
    assert!(value("last") - value("first") >= 80_000_000);
}

#[test]
fn threads_that_come_and_go() {
    for found in check("threads") {
        assert_all_paired(&found);
        assert_eq!(found.by_function("calls")["leaf"], 2 * 8 * 4 * 20_000);
        assert_eq!(found.reports[0]["values"]["deepest"], 2);
    }
}

#[test]
fn more_events_than_fit_into_a_ring() {
    for found in check("many") {
        assert_all_paired(&found);
    }
}

#[test]
fn recursion_has_a_depth() {
    for found in check("recursion") {
        assert_all_paired(&found);
        assert_eq!(found.reports[0]["values"]["deepest"], 51, "50 calls, and the leaf");
    }
}

#[test]
fn signal_handlers_interrupt_probes() {
    for found in check("signals") {
        assert_all_paired(&found);
        assert!(found.by_function("calls")["on_alarm"] > 0);
    }
}

/// The entries of calls that were left by longjmp are not attributed to other calls.
#[test]
fn calls_that_end_by_longjmp() {
    for found in check("longjmp") {
        let calls = found.by_function("calls");
        let paired = found.by_function("paired");
        assert_eq!((paired["catches"], paired["leaf"]), (calls["catches"], calls["leaf"]));
        assert_eq!(found.by_function("exits").get("leaves"), None);
        assert_eq!(
            found.reports[0]["values"]["deepest"], 8,
            "the leaf is not called by calls that have ended"
        );
        // `leaves` calls itself, and the innermost call leaves all of them.
        let note = format!("{} calls have ended without an exit, ", calls["leaves"]);
        let notes = found.notes();
        assert!(
            notes.len() == 1 && notes[0].starts_with(&note) && notes[0].ends_with(": leaves"),
            "{notes:?}"
        );
    }
}

#[test]
fn every_process_of_a_fork_has_its_own_variables() {
    for found in check("fork") {
        assert_eq!(found.reports.len(), 4);
        assert_all_paired(&found);
        let of_children = found.reports.iter().filter(|report| {
            by_function(std::slice::from_ref(report), "calls")
                == BTreeMap::from([("child_work".to_owned(), 500)])
        });
        assert_eq!(of_children.count(), 3);
    }
}

/// A vfork child has the thread-local storage of its parent, and does not get a separate ring.
#[test]
fn the_first_probe_of_a_thread_in_a_vfork_child() {
    for found in check("vfork") {
        assert_eq!(found.by_function("exits"), found.by_function("calls"));
        assert_eq!(found.notes(), ["2 events are missing: there was no room for them"]);
    }
}

#[test]
fn the_rules_of_the_end_after_an_exec_that_fails() {
    const TOTAL: &str =
        "var n: u64; report var total: u64; native:func:entry { n++; } native:end { total = n; }";
    let found = scripted(TOTAL, &compile("fixtures/scripted.c", &["-O2"], Gcc), &["exec"]);
    assert_eq!(found.reports[0]["values"]["total"], 1010);
    let note = "the rules of `native:end` were executed 2 times, because the program has tried to exec";
    assert_eq!(found.notes(), [note]);
}

#[test]
fn the_report_is_written_before_underscore_exit() {
    for found in check("exit") {
        assert_eq!(found.run.status.code(), Some(7));
        assert_all_paired(&found);
    }
}

#[test]
fn durations_are_nanoseconds() {
    for found in check("durations") {
        let shortest = found.by_function("shortest")["sleeper"];
        // The fixture sleeps for 20 ms. The clock's rate is accurate to a thousandth.
        assert!((19_900_000..10_000_000_000).contains(&shortest), "{shortest}");
    }
}

/// A script that asks only for names does not need the rate of a clock.
#[test]
fn predicates_choose_functions() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let script = r#"
        report var calls_of: map<str, u64>;
        native:func:entry / fname.matches("l?af") && object.ends_with("/NAME") / { calls_of[fname]++; }
        native:func:entry / fname == "inner" && tid == 0 / { calls_of[fname]++; }
        native:func:entry / object.contains("nowhere") / { calls_of["nowhere"]++; }
        native:func:* / fname.matches("*ner*") / { report var both: u64; both++; }
    "#
    .replace("NAME", &binary.file_name().unwrap().to_string_lossy());
    let found = scripted(&script, &binary, &["many"]);
    assert_eq!(found.run.stderr, "");
    let counted = &found.reports[0]["tables"][0];
    assert_eq!(counted["rows"], serde_json::json!([["leaf", 40_000]]));
    assert_eq!(found.by_function("both"), BTreeMap::from([("inner".to_owned(), 40_000)]));
}

/// The child uses the ring of its parent's thread, and the parent's worker makes room in it.
#[test]
fn a_vfork_child_waits_for_room() {
    let binary = compile("fixtures/vfork_many.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    let found = scripted(COUNTS, &binary, &[]);
    found.run.assert_same(&without, "vfork_many.c");
    assert!(!found.notes().iter().any(|note| note.contains("missing")), "{:?}", found.notes());
    assert_eq!(found.by_function("calls")["borrowed_work"], 5001);
}

/// Fixtures that break such tools: they print and end as they do without a script.
#[test]
fn difficult_programs_stay_what_they_are() {
    for source in [
        "block_signals.c",
        "coroutine.c",
        "early_call.c",
        "exceptions.cpp",
        "exec.c",
        "few_descriptors.c",
        "fork_threads.c",
        "late_functions.c",
        "main_pthread_exit.c",
        "own_malloc.c",
        "own_sigtrap.c",
        "pthread_exit.c",
        "return_values.c",
        "sigaltstack.c",
        "static_objects.cpp",
        "tail_call.c",
        "vfork_exec.c",
    ] {
        let binary = compile(&format!("fixtures/{source}"), &["-O2"], Gcc);
        let without = run(&mut bare(&binary, &[]));
        let found = scripted(COUNTS, &binary, &[]);
        found.run.assert_same(&without, source);
        let notes = found.notes();
        assert!(!notes.iter().any(|note| note.contains("events are missing")), "{source}: {notes:?}");
        assert!(!notes.iter().any(|note| note.contains("has failed")), "{source}: {notes:?}");
    }
}

#[test]
fn a_library_is_loaded_and_unloaded() {
    let binary = compile("fixtures/dlopen.c", &["-O2"], Gcc);
    let plugins = ["plugin_a.c", "plugin_b.c"]
        .map(|source| compile(&format!("fixtures/{source}"), &["-O2", "-shared", "-fPIC"], Gcc));
    let args = plugins.each_ref().map(|plugin| plugin.to_str().unwrap());
    let without = run(&mut bare(&binary, &args));
    let found = scripted(COUNTS, &binary, &args);
    found.run.assert_same(&without, "dlopen");
    let calls = found.by_function("calls");
    for name in ["main_work", "plugin_a_inner", "plugin_b_inner"] {
        assert!(calls.get(name).is_some_and(|calls| *calls > 0), "{name}: {calls:?}");
    }
}

/// The calls before a script fails are counted, the program continues, and the report states the
/// reason.
#[test]
fn a_script_that_fails() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &["many"]));
    #[track_caller]
    fn fails(binary: &Path, without: &Run, statements: &str, n: u64, reason: &str) {
        let script =
            format!("report var n: u64; native:func:entry / fname == \"leaf\" / {{ n++; {statements} }}");
        let found = scripted(&script, binary, &["many"]);
        found.run.assert_same(without, statements);
        assert_eq!(found.reports[0]["values"]["n"], n, "{statements}");
        let notes = found.notes();
        assert!(notes.iter().any(|note| note.contains(reason)), "{statements}: {notes:?}");
    }
    fails(&binary, &without, "var k: u64 = 1 / (100 - n);", 100, "an integer was divided by zero");
    fails(&binary, &without, "var m: u64 = n % (3000 - n);", 3000, "an integer was divided by zero");
    fails(
        &binary,
        &without,
        "var k: i64 = -9223372036854775807; k = (k - 1) / ((n as i64) - 6);",
        5,
        "out of range",
    );
    fails(&binary, &without, "while (true) { continue; }", 1, "2^24 steps");
    fails(&binary, &without, "while (true) { while (true) { break; } }", 1, "2^24 steps");
}

#[test]
fn a_script_without_memory_fails() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let script = "var m: map<(u64, u64, u64, u64, u64, u64, u64, u64), u64>; report var n: u64;
        native:func:entry { var i: u64; while (i < 10000) { n++; m[(n, n, n, n, n, n, n, n)] = n; i++; } }";
    let found = scripted(script, &binary, &["many"]);
    let notes = found.notes();
    assert!(notes.iter().any(|note| note.contains("no memory left")), "{notes:?}");
    // An entry takes 72 bytes; 1 GiB is available, and growing needs the old entries as well.
    let entries = found.reports[0]["values"]["n"].as_u64().unwrap();
    assert!((1_000_000..16_000_000).contains(&entries), "{entries}");
}

#[test]
fn mistakes_of_a_script_are_shown_before_the_program_runs() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    #[track_caller]
    fn refused(binary: &Path, script: &str, expected: &[&str]) {
        let found = scripted(script, binary, &["many"]);
        assert_eq!(found.run.status.code(), Some(2), "{script}: {}", found.run.stderr);
        assert_eq!((found.run.stdout.len(), found.reports.len()), (0, 0), "{script}");
        for text in expected {
            assert!(found.run.stderr.contains(text), "{script}: {}", found.run.stderr);
        }
    }
    refused(&binary, "native:func:entry { n++; }", &["script.mm:1:21", "there is no variable `n`"]);
    refused(&binary, "native:func:enter { }", &["script.mm:1:1", "there are `entry` and `exit`"]);
    refused(&binary, "wasm:func:entry { }", &["wasm-jit run"]);
    refused(&binary, "native:func:entry { var d: u64 = duration; }", &["`duration`"]);
    refused(&binary, "native:opcode:call:before { }", &["this rule matches nothing"]);
    refused(&binary, "frame var n: u64; native:end { n++; }", &["there is no frame here"]);
    refused(&binary, "native:func:exit { var k: u64 = res0; }", &["native:func:exit(res0: i32)"]);
    refused(&binary, "native:func:entry(res0: i32) { }", &["has no `res0`"]);
    refused(&binary, "fn f() { g(); } fn g() { f(); } native:func:entry { f(); }", &["`f` calls itself"]);
    refused(&binary, "native:func:entry { var k: u64 = args.size; }", &["native:func:entry(args.size: i32)"]);
    refused(&binary, "thread var n: u64; native:end { n++; }", &["there is no thread here"]);
    refused(&binary, "use lib; native:func:entry { }", &["libraries are not supported"]);
    refused(&binary, "native:func:entry / fname.matches(\"a\") { }", &["error"]);
    refused(&binary, "native:func:exit { var k: u32 = log2(-1); }", &["unsigned"]);
}

/// A human-readable report, and one of tables.
#[test]
fn formats() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.mm");
    fs::write(
        &script,
        "report var n: u64; report var d: map<u32, u64>;
         native:func:entry / fname == \"leaf\" / { report var calls: u64; n++; calls++; d[log2(n)]++; }",
    )
    .unwrap();
    let csv = folder.path().join("r.csv");
    assert_eq!(run(&mut command(&script, &csv, &binary, &["many"])).stderr, "");
    let text = fs::read_to_string(&csv).unwrap();
    assert!(text.starts_with("# values\nname,value\nn,40000\n\n# d\nkey,value\n0,1\n1,2\n2,4\n"), "{text}");
    assert!(text.contains("\n\n# by_function\ncalls,function,object\n40000,leaf,"), "{text}");
    let mut to_stderr = bare(&ensure_built().join("fastinst"), &[]);
    to_stderr.arg("run").arg(&script).arg("--").arg(&binary).arg("many");
    let text = run(&mut to_stderr).stderr;
    assert!(text.contains("\n  n  40000\n\nd\n"), "{text}");
    assert!(text.contains("\n  40000  leaf"), "{text}");
}

/// The scripts of the manual, on a program with several threads.
#[test]
fn scripts_of_the_manual() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let report_of = |name: &str| {
        let script = repo_root().join("profiler/script/scripts").join(name);
        let script = fs::read_to_string(script).expect("the script can be read");
        let mut found = scripted(&script, &binary, &["threads"]);
        assert_eq!((found.run.stderr.as_str(), found.notes().len()), ("", 0), "{name}");
        found.reports.remove(0)
    };
    let rows = |report: &Value| report["tables"][0]["rows"].as_array().unwrap().clone();
    let sum = |report: &Value, column: usize| -> u64 {
        rows(report).iter().map(|row| row[column].as_u64().unwrap()).sum()
    };
    let calls = 3 * 8 * 4 * 20_000;
    assert_eq!(sum(&report_of("calls.mm"), 0), calls);
    assert_eq!(sum(&report_of("latency.mm"), 1), calls);
    assert_eq!(sum(&report_of("rate.mm"), 1), calls);
    let threads = report_of("threads.mm");
    assert_eq!(rows(&threads).len(), 32);
    assert_eq!(threads["tables"][0]["columns"], serde_json::json!(["calls", "deepest", "thread"]));
    assert!(rows(&threads).iter().all(|row| row[0] == 60_000 && row[1] == 2), "{threads}");
    let first = report_of("first_calls.mm");
    let order: Vec<_> = rows(&first).iter().map(|row| row[1].as_str().unwrap().to_owned()).collect();
    assert_eq!(order, ["inner", "leaf"]);
    report_of("slow_calls.mm");
    assert_eq!(sum(&report_of("stacks.mm"), 1), calls);
    report_of("time_by_stack.mm");
    assert!(sum(&report_of("pauses.mm"), 2) > 0);
    let callees = [("inner", 2, calls / 3), ("leaf", 0, calls / 3 * 2)];
    let callees = callees.map(|(name, made, calls)| serde_json::json!([name, made, calls, 1.0]));
    let mut found = rows(&report_of("callees.mm"));
    found.sort_by_key(|row| row[0].as_str().map(str::to_owned));
    assert_eq!(found, callees);
}

/// The scripts of the manual that ask for arguments, on a program with debugging information.
#[test]
fn scripts_of_the_manual_that_ask_for_arguments() {
    let binary = compile("fixtures/scripted.c", &["-O2", "-g"], Gcc);
    let rows = |name: &str| {
        let script = repo_root().join("profiler/script/scripts").join(name);
        let found = scripted(&fs::read_to_string(script).unwrap(), &binary, &["sizes"]);
        assert_eq!((found.run.stderr.as_str(), found.notes().len()), ("", 0), "{name}: {:?}", found.notes());
        found.reports[0]["tables"][0]["rows"].as_array().unwrap().clone()
    };
    let mut expected: Vec<Value> = (0..7)
        .map(|bit| {
            let sizes = (1_u64 << bit..2 << bit).filter(|size| *size <= 100).count() as u64;
            let count = 3 * sizes;
            serde_json::json!(["request", "small_requests", 1 << bit, count, count as f64 / 300.0])
        })
        .collect();
    expected.push(serde_json::json!(["request", "large_requests", 4096, 30, 1.0]));
    let mut found = rows("sizes_by_caller.mm");
    let key = |row: &Value| (row[2].as_u64(), row[1].as_str().map(str::to_owned));
    found.sort_by_key(key);
    expected.sort_by_key(key);
    assert_eq!(found, expected);
    let binary_of_results = compile("fixtures/results.c", &["-O0", "-g"], Gcc);
    let script = repo_root().join("profiler/script/scripts/failures.mm");
    let failures = scripted(&fs::read_to_string(script).unwrap(), &binary_of_results, &[]);
    assert_eq!((failures.run.stderr.as_str(), failures.notes()), ("", vec![]));
    let failures = failures.by_function("failures");
    assert!(failures.contains_key("narrow") && !failures.contains_key("absolute"), "{failures:?}");
    // The script asks for an unsigned argument: functions with a signed one do not match.
    assert_eq!(rows("latency_by_argument.mm"), <[Value; 0]>::default());
    let found = scripted(
        &fs::read_to_string(repo_root().join("profiler/script/scripts/latency_by_argument.mm")).unwrap(),
        &binary,
        &["many"],
    );
    let mut by_argument = BTreeMap::new();
    for row in found.reports[0]["tables"][0]["rows"].as_array().unwrap() {
        *by_argument.entry((row[0].as_str().unwrap(), row[1].as_u64().unwrap())).or_insert(0) +=
            row[3].as_u64().unwrap();
    }
    let log2 = |x: u64| u64::from(x.max(1).ilog2());
    let mut expected = BTreeMap::new();
    for x in 0..20_000 {
        for (function, x) in [("inner", x), ("leaf", x), ("leaf", x + 1)] {
            *expected.entry((function, log2(x))).or_insert(0) += 1;
        }
    }
    assert_eq!(by_argument, expected);
}

/// Each thread has its own variables, even if threads run one after the other.
#[test]
fn variables_of_threads() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let script =
        "report thread var calls: map<str, u64>; report thread var first: u64; thread var next: u64 = 1;
        native:func:entry { calls[fname]++; if (first == 0) { first = next; } next++; }
        native:func:entry / calls[fname] == 20000 && fname == \"inner\" / { report var last: u64; last++; }";
    let found = scripted(script, &binary, &["threads"]);
    assert_eq!((found.run.stderr.as_str(), found.notes()), ("", vec![]));
    assert_eq!(found.by_function("last"), BTreeMap::from([("inner".to_owned(), 32)]));
    let table = |name: &str| {
        let tables = found.reports[0]["tables"].as_array().unwrap();
        tables.iter().find(|table| table["name"] == name).expect("there is this table").clone()
    };
    let by_thread = table("by_thread");
    assert_eq!(by_thread["columns"], serde_json::json!(["first", "thread"]));
    let threads: Vec<_> = by_thread["rows"].as_array().unwrap().iter().map(|row| row[1].clone()).collect();
    assert_eq!(threads.len(), 32);
    assert!(by_thread["rows"].as_array().unwrap().iter().all(|row| row[0] == 1), "{by_thread}");
    let calls = table("calls");
    assert_eq!(calls["columns"], serde_json::json!(["key", "value", "thread"]));
    for thread in threads {
        let rows = calls["rows"].as_array().unwrap().iter().filter(|row| row[2] == thread);
        let mut of_thread: Vec<_> =
            rows.map(|row| (row[0].as_str().unwrap(), row[1].as_u64().unwrap())).collect();
        of_thread.sort_unstable();
        assert_eq!(of_thread, [("inner", 20_000), ("leaf", 40_000)]);
    }
}

/// Stacks are the functions that are being called, however deep; their reports are for tools that
/// draw flame graphs.
#[test]
fn call_stacks_are_folded() {
    let binary = compile("fixtures/scripted.c", &["-O0"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str| repo_root().join("profiler/script/scripts").join(name);
    let stacks = |name: &str, scenario: &str| {
        let file = folder.path().join(format!("{name}-{scenario}.folded"));
        assert_eq!(run(&mut command(&script(name), &file, &binary, &[scenario])).stderr, "");
        let text = fs::read_to_string(&file).unwrap();
        let line = |line: &str| {
            let (stack, count) = line.rsplit_once(' ').expect("a stack and a number");
            (stack.to_owned(), count.parse::<u64>().unwrap())
        };
        text.lines().map(line).collect::<BTreeMap<_, _>>()
    };
    let found = stacks("stacks.mm", "threads");
    let all = 8 * 4 * 20_000;
    assert_eq!(found, BTreeMap::from([("inner".to_owned(), all), ("inner;leaf".to_owned(), 2 * all)]));
    let found = stacks("stacks.mm", "recursion");
    let deep = |calls: usize| vec!["descend"; calls].join(";");
    let mut expected: BTreeMap<String, u64> = (1..=50).map(|calls| (deep(calls), 1)).collect();
    expected.insert(format!("{};leaf", deep(50)), 1);
    assert_eq!(found, expected);
    // The time of each call is counted once.
    let found = stacks("time_by_stack.mm", "durations");
    assert!(found["sleeper"] >= 5 * 1_000_000, "{found:?}");
}

/// Histograms have bars in human-readable reports, and numbers in others.
#[test]
fn histograms() {
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let script =
        "report var n: u64; report var d: map<log2, u64>; report var e: map<(str, linear<20000>), u64>;
        native:func:entry / fname == \"leaf\" / { d[n]++; e[(fname, n)]++; n++; }";
    let found = scripted(script, &binary, &["many"]);
    let tables = found.reports[0]["tables"].as_array().unwrap();
    assert_eq!(tables[0]["columns"], serde_json::json!(["key", "value", "share"]));
    assert_eq!(tables[0]["rows"][3], serde_json::json!([4, 4, 4.0 / 40_000.0]));
    let halves = [0, 20_000].map(|start| serde_json::json!(["leaf", start, 20_000, 0.5]));
    assert_eq!(tables[1]["rows"], serde_json::json!(halves));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.mm");
    fs::write(&file, script).unwrap();
    let mut to_stderr = bare(&ensure_built().join("fastinst"), &[]);
    to_stderr.arg("run").arg(&file).arg("--").arg(&binary).arg("many");
    let text = run(&mut to_stderr).stderr;
    let bar = "@".repeat(40);
    assert!(text.contains(&format!("  leaf       [0, 20000)  20000  {bar} 50.0%\n")), "{text}");
}
