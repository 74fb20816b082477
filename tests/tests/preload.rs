//! `LD_PRELOAD=libfastinst.so` in every kind of process that breaks such tools: each fixture
//! program must print and end as it does without the preload, must not hang, and must write a
//! report with its functions, or one line with the reason why there is none.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io, thread};

use nix::fcntl::{FcntlArg, fcntl};
use tests::Compiler::{Clang, Gcc};
use tests::{
    Compiler, Profiled, Report, bare, compile, ensure_preload, is_long, preloaded, profiled, reports_in, run,
    target_release_dir,
};

/// A compiler and its flags.
type Build = (Compiler, &'static [&'static str]);

/// For fixtures that test the behaviour of the process.
const USUAL: &[Build] = &[(Gcc, &["-O2"]), (Clang, &["-O2"])];

/// For fixtures that test the shapes of the sites.
const SHAPES: &[Build] = &[
    (Gcc, &["-O0"]),
    (Gcc, &["-O1", "-no-pie"]),
    (Gcc, &["-O2"]),
    (Gcc, &["-O2", "-no-pie"]),
    (Gcc, &["-O2", "-fno-plt"]),
    (Gcc, &["-O2", "-fcf-protection"]),
    (Gcc, &["-O2", "-fno-plt", "-no-pie", "-Wl,-z,now"]),
    (Gcc, &["-O3", "-fomit-frame-pointer"]),
    (Gcc, &["-Os"]),
    (Gcc, &["-Os", "-fno-plt"]),
    (Clang, &["-O0"]),
    (Clang, &["-O2"]),
    (Clang, &["-O2", "-no-pie"]),
    (Clang, &["-O2", "-fcf-protection"]),
    (Clang, &["-Os", "-fno-plt"]),
    (Clang, &["-O2", "-Wl,-z,now"]),
];

/// The expected report of a profiled program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// With a report.
    Report,
    /// With a report, or with a line on stderr with the reason why there is none.
    ReportOrLine,
    /// Neither a report nor a line: the user did not ask for one.
    Nothing,
}

/// Runs a fixture in each build, without and with the preload, and asserts that both runs are the
/// same and that each function of `sampled` has samples in at least one of the reports. Returns the
/// profiled runs for further checks.
fn check(source: &str, args: &[&str], builds: &[Build], expect: Expect, sampled: &[&str]) -> Vec<Profiled> {
    builds.iter().map(|&build| check_build(source, args, build, expect, sampled)).collect()
}

/// A fixture runs for a few tens of milliseconds. Its probes are made by a thread that may not get
/// a processor in that time on a busy machine; then there are no samples, and the run is repeated.
/// Other faults occur every time.
const ATTEMPTS: usize = 5;

fn check_build(
    source: &str,
    args: &[&str],
    (compiler, flags): Build,
    expect: Expect,
    sampled: &[&str],
) -> Profiled {
    let what = format!("{source} {args:?} by {compiler:?} {flags:?}");
    let binary = compile(&format!("fixtures/{source}"), flags, compiler);
    let without = run(&mut bare(&binary, args));
    assert!(without.status.code() != Some(99), "{what}: the fixture itself failed: {}", without.stderr);
    let mut faults = Vec::new();
    for _ in 0..ATTEMPTS {
        let with = profiled(&binary, args, "");
        with.run.assert_same(&without, &what);
        let excused = match expect {
            Expect::Report => false,
            Expect::ReportOrLine => with.run.own_lines().count() == 1,
            Expect::Nothing => true,
        };
        let missing = sampled.iter().find(|name| with.with_samples_of(name).next().is_none());
        match missing {
            Some(name) if !excused => {
                let (summary, stderr) = (summary(&with), &with.run.stderr);
                faults.push(format!("{what}: no samples of {name} in {summary:?}; stderr:\n{stderr}"));
            }
            _ => return with,
        }
    }
    panic!("{faults:#?}");
}

/// Every report with its functions and their samples, for failure messages.
fn summary(profiled: &Profiled) -> Vec<String> {
    let functions = |report: &Report| {
        report
            .functions()
            .map(|function| format!("{} {}", function["name"], function["samples"]))
            .collect::<Vec<_>>()
            .join(", ")
    };
    profiled.reports.iter().map(|report| format!("{}: {}", report.file_name, functions(report))).collect()
}

/// Asserts that the median latency of functions that take well under a microsecond is plausible.
fn assert_short(profiled: &Profiled, names: &[&str]) {
    for name in names {
        let p50 = profiled.report().latency_ns(name, "p50");
        assert!(p50.is_none_or(|p50| p50 < 5_000.0), "{name}: p50 is {p50:?} ns: someone else's time");
    }
}

#[test]
fn fork_every_process_writes_its_own_report() {
    for profiled in
        check("fork.c", &[], USUAL, Expect::Report, &["parent_work", "child_work", "grandchild_work"])
    {
        assert_eq!(profiled.reports.len(), 4, "parent, two children, a grandchild: {:?}", summary(&profiled));
        assert_eq!(
            profiled.with_samples_of("parent_work").count(),
            1,
            "inherited samples are the parent's alone"
        );
        assert_eq!(profiled.with_samples_of("child_work").count(), 2, "{:?}", summary(&profiled));
        assert_eq!(profiled.with_samples_of("grandchild_work").count(), 1, "{:?}", summary(&profiled));
        assert_distinct_pids(&profiled);
    }
}

#[test]
fn fork_while_other_threads_run_through_toggling_sites() {
    for profiled in check("fork_threads.c", &[], USUAL, Expect::Report, &["background_work", "forked_work"]) {
        assert_eq!(profiled.reports.len(), 21, "parent and 20 children: {:?}", summary(&profiled));
        assert_distinct_pids(&profiled);
    }
}

fn assert_distinct_pids(profiled: &Profiled) {
    let mut pids: Vec<_> = profiled.reports.iter().map(|report| report.json["pid"].as_u64()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), profiled.reports.len(), "two reports of one process: {:?}", summary(profiled));
}

#[test]
fn exec_both_images_are_reported() {
    for profiled in check("exec.c", &[], USUAL, Expect::Report, &["work_before_exec", "work_after_exec"]) {
        assert_eq!(profiled.reports.len(), 2, "one report for each image: {:?}", summary(&profiled));
    }
}

#[test]
fn vfork_spawn_and_system_children_leave_the_parent_alone() {
    for profiled in check("vfork_exec.c", &[], USUAL, Expect::Report, &["parent_work", "spawned_work"]) {
        assert_eq!(profiled.with_samples_of("spawned_work").count(), 4, "{:?}", summary(&profiled));
        assert_eq!(profiled.with_samples_of("parent_work").count(), 1, "{:?}", summary(&profiled));
        assert!(profiled.report().samples("parent_work") > 0, "{:?}", summary(&profiled));
    }
}

/// Two threads never share a block.
#[test]
fn vfork_before_the_first_probe_of_a_thread() {
    let profiled = profiled(&compile("fixtures/vfork_first.c", &["-O2"], Gcc), &[], "budget=none");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let report = profiled.report();
    for (function, calls) in [("by_main", 3001), ("by_other", 3000)] {
        assert_eq!(report.samples(function), calls, "{function}: {:?}", summary(&profiled));
    }
}

/// Of two libraries, one after the other at the same place, each keeps its calls.
#[test]
fn callers_in_unloaded_libraries_keep_their_calls() {
    // The first call of the second library comes before it is noticed.
    const CALLS: std::ops::RangeInclusive<f64> = 1000.0..=1002.0;
    let plugin = |name: &str| {
        let define = format!("-DNAME={name}");
        let plugin = compile("fixtures/calling_plugin.c", &["-O2", "-shared", "-fPIC", &define], Gcc);
        plugin.into_os_string().into_string().expect("a UTF-8 path")
    };
    let (first, second) = (plugin("first_caller"), plugin("second_caller"));
    let binary = compile("fixtures/dlopen_callers.c", &["-O2", "-rdynamic"], Gcc);
    let profiled = profiled(&binary, &[&first, &second], "counts=exact");
    assert!(profiled.run.status.success(), "{}", profiled.run.stderr);
    assert!(profiled.run.stderr.contains("at the same place"), "{}", profiled.run.stderr);
    let arcs = profiled.report().json["arcs"].as_array().expect("a list");
    for name in ["first_caller", "second_caller"] {
        let is_wanted =
            |arc: &&serde_json::Value| arc["caller"]["name"] == name && arc["callee"]["name"] == "main_work";
        let calls = arcs.iter().find(is_wanted).and_then(|arc| arc["calls"]["value"].as_f64());
        assert!(calls.is_some_and(|calls| CALLS.contains(&calls)), "{name}: {calls:?}: {arcs:?}");
    }
}

#[test]
fn dlopen_dlclose_libraries_come_and_go_at_the_same_place() {
    for &(compiler, flags) in
        &[USUAL[0], USUAL[1], (Gcc, &["-O0"]), (Gcc, &["-O2", "-fno-plt"]), (Gcc, &["-Os"])]
    {
        let plugin = |name: &str| {
            let mut shared = vec!["-shared", "-fPIC"];
            shared.extend(flags);
            compile(&format!("fixtures/{name}"), &shared, compiler)
                .into_os_string()
                .into_string()
                .expect("a UTF-8 path")
        };
        let (plugin_a, plugin_b) = (plugin("plugin_a.c"), plugin("plugin_b.c"));
        let sampled = [
            "main_work",
            "plugin_a_leaf",
            "plugin_a_inner",
            "plugin_b_leaf",
            "plugin_b_middle",
            "plugin_b_inner",
        ];
        let profiled =
            check_build("dlopen.c", &[&plugin_a, &plugin_b], (compiler, flags), Expect::Report, &sampled);
        for function in profiled.report().functions() {
            let (name, object) = (
                function["name"].as_str().unwrap_or_default(),
                function["object"].as_str().unwrap_or_default(),
            );
            for plugin in ["plugin_a", "plugin_b"] {
                assert!(
                    !name.starts_with(plugin) || object.contains(plugin),
                    "{name} is reported in {object}"
                );
            }
        }
    }
}

#[test]
fn functions_that_are_inlined_here_and_defined_in_a_library_have_its_names() {
    let library = compile(
        "fixtures/defined_elsewhere.c",
        &["-O2", "-shared", "-fPIC", "-DLIBRARY", "-fno-instrument-functions"],
        Gcc,
    );
    let library = library.to_str().expect("a UTF-8 path");
    for &(compiler, flags) in &[
        USUAL[0],
        USUAL[1],
        (Gcc, &["-O2", "-fno-pie", "-no-pie"]),
        (Gcc, &["-O2", "-fno-plt", "-Wl,-z,now"]),
    ] {
        let flags = [flags, &["-Wl,--no-as-needed", library]].concat();
        let binary = compile("fixtures/defined_elsewhere.c", &flags, compiler);
        let without = run(&mut bare(&binary, &[]));
        let profiled = profiled(&binary, &[], "counts=exact");
        profiled.run.assert_same(&without, library);
        let function = profiled.report().function("defined_elsewhere");
        let function = function.unwrap_or_else(|| panic!("{flags:?}: {:?}", summary(&profiled)));
        assert_eq!(function["calls"]["value"], 2000, "{flags:?}");
        // Where the program is not relocated, the address is in its linkage table.
        let object = if flags.contains(&"-no-pie") { &binary } else { Path::new(library) };
        assert_eq!(function["object"].as_str(), object.to_str(), "{flags:?}");
        let address =
            u64::from_str_radix(function["address"].as_str().expect("text").trim_start_matches("0x"), 16);
        assert!(address.expect("hexadecimal") < 1 << 20, "{flags:?}: {function}");
    }
}

#[test]
fn longjmp_unwound_calls_give_their_time_to_nobody() {
    for profiled in check("longjmp.c", &[], USUAL, Expect::Report, &["leaf", "descend"]) {
        assert_short(&profiled, &["leaf", "descend"]);
    }
}

#[test]
fn cpp_exceptions_unwound_calls_give_their_time_to_nobody() {
    for profiled in check(
        "exceptions.cpp",
        &[],
        USUAL,
        Expect::Report,
        &["leaf", "descend", "Guard::Guard", "Guard::~Guard"],
    ) {
        assert_short(&profiled, &["leaf", "Guard::Guard", "Guard::~Guard"]);
    }
}

#[test]
fn pthread_exit_and_cancellation_from_deep_inside_of_many_threads() {
    for profiled in check("pthread_exit.c", &[], USUAL, Expect::Report, &["leaf"]) {
        assert_short(&profiled, &["leaf"]);
    }
}

#[test]
fn main_thread_leaves_by_pthread_exit_and_the_process_still_ends() {
    check("main_pthread_exit.c", &[], USUAL, Expect::Report, &["worker_work"]);
}

#[test]
fn underscore_exit_is_reported() {
    check("early_end.c", &["_exit"], USUAL, Expect::Report, &["work_leaf", "work_outer"]);
}

#[test]
fn quick_exit_is_reported() {
    check("early_end.c", &["quick_exit"], USUAL, Expect::Report, &["work_leaf", "work_outer"]);
}

#[test]
fn abort_is_reported_and_still_dies_of_sigabrt() {
    for profiled in check("early_end.c", &["abort"], USUAL, Expect::Report, &["work_leaf", "work_outer"]) {
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGABRT));
    }
}

#[test]
fn segmentation_fault_still_dies_of_sigsegv() {
    for profiled in check("early_end.c", &["segv"], USUAL, Expect::ReportOrLine, &["work_outer"]) {
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGSEGV));
    }
}

#[test]
fn sigkill_leaves_no_broken_report() {
    for profiled in check("early_end.c", &["kill"], USUAL, Expect::Nothing, &[]) {
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGKILL));
    }
}

#[test]
fn sigterm_is_reported_and_still_dies_of_sigterm() {
    for case in ["default", "thread"] {
        for profiled in check("sigterm.c", &[case], USUAL, Expect::Report, &["work_leaf", "work_outer"]) {
            assert_eq!(profiled.run.status.signal(), Some(libc::SIGTERM));
        }
    }
}

#[test]
fn sigint_still_dies_of_sigint() {
    // A shell starts background jobs with SIGINT ignored, which programs inherit.
    // SAFETY: SIG_DFL is no code; no other test of this process relies on what SIGINT does.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    for profiled in check("sigterm.c", &["other"], USUAL, Expect::ReportOrLine, &["work_outer"]) {
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGINT));
    }
}

#[test]
fn sigterm_belongs_to_the_program_that_handles_or_ignores_it() {
    for (case, code) in [("handler", 42), ("ignored", 0)] {
        for profiled in check("sigterm.c", &[case], USUAL, Expect::Report, &["work_leaf", "work_outer"]) {
            assert_eq!(profiled.run.status.code(), Some(code));
        }
    }
}

#[test]
fn all_signals_blocked_in_all_threads() {
    check("block_signals.c", &[], USUAL, Expect::Report, &["blocked_leaf", "blocked_outer"]);
}

#[test]
fn own_sigtrap_handler_gets_all_its_traps() {
    check("own_sigtrap.c", &["handler"], USUAL, Expect::Report, &["work_leaf", "work_outer"]);
}

#[test]
fn sigtrap_without_a_handler_still_kills() {
    for profiled in check("own_sigtrap.c", &["default"], USUAL, Expect::ReportOrLine, &["work_outer"]) {
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGTRAP));
    }
}

#[test]
fn instrumented_malloc_does_not_deadlock_or_recurse() {
    let builds: &[Build] = &[
        (Gcc, &["-O2", "-fno-builtin"]),
        (Clang, &["-O2", "-fno-builtin"]),
        (Gcc, &["-O0", "-fno-builtin"]),
    ];
    check("own_malloc.c", &[], builds, Expect::Report, &["churn", "allocate", "class_of", "allocator_lock"]);
}

#[test]
fn recursion_wide_mutual_and_very_deep() {
    for profiled in check(
        "recursion.c",
        &[],
        SHAPES,
        Expect::Report,
        &["fibonacci", "is_even", "is_odd", "leaf_after_dive"],
    ) {
        // The observed calls return after thousands of nested calls, whose exits are not awaited.
        let dive = profiled.report().function("dive").expect("a row");
        assert!(dive["calls"]["low"].as_u64() >= Some(1), "{dive}");
        assert_short(&profiled, &["leaf_after_dive"]);
    }
}

#[test]
fn coroutines_on_small_stacks_interleave_entries_and_exits() {
    for profiled in check("coroutine.c", &[], USUAL, Expect::Report, &["leaf"]) {
        assert_short(&profiled, &["leaf"]);
    }
}

#[test]
fn signal_handler_on_an_alternate_stack_runs_probes_inside_probes() {
    for profiled in check(
        "sigaltstack.c",
        &[],
        USUAL,
        Expect::Report,
        &["handler_leaf", "handler_outer", "main_leaf", "main_outer"],
    ) {
        assert_short(&profiled, &["handler_leaf", "main_leaf"]);
    }
}

#[test]
fn tail_calls_and_inlined_bodies_in_every_build() {
    let mut sampled: Vec<String> = [
        "tail_leaf",
        "tail_chain",
        "two_exits",
        "many_exits",
        "inlined_leaf",
        "inlined_middle",
        "inlined_inner",
        "contains_inlined",
        "returns_value",
        "tail_through_pointer",
    ]
    .map(str::to_owned)
    .into();
    sampled.extend((1..=16).map(|pad| format!("padded_{pad}")));
    let sampled: Vec<&str> = sampled.iter().map(String::as_str).collect();
    for profiled in check("tail_call.c", &[], SHAPES, Expect::Report, &sampled) {
        assert_short(&profiled, &sampled);
        assert_eq!(profiled.report().samples("uninstrumented_outer"), 0, "its sites belong to inlined_leaf");
    }
}

#[test]
fn calls_through_registers_are_profiled_or_refused_in_one_line() {
    check(
        "tail_call.c",
        &[],
        &[(Gcc, &["-O2", "-mcmodel=large"])],
        Expect::ReportOrLine,
        &["tail_leaf", "two_exits"],
    );
}

#[test]
fn values_in_registers_survive_the_probes() {
    check(
        "return_values.c",
        &[],
        SHAPES,
        Expect::Report,
        &["returns_double", "returns_pair", "variable_arguments", "rounds"],
    );
}

#[test]
fn static_objects_thread_locals_and_exit_handlers() {
    let sampled = [
        "constructor_work",
        "main_work",
        "lazy_work",
        "thread_local_work",
        "exit_handler_work",
        "destructor_work",
    ];
    check("static_objects.cpp", &[], USUAL, Expect::Report, &sampled);
}

#[test]
fn calls_from_an_ifunc_resolver_and_before_constructors() {
    check("early_call.c", &[], SHAPES, Expect::Report, &["early_leaf", "main_work"]);
}

#[test]
fn default_output_is_a_table_on_stderr() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    let with = run(preloaded(&binary, &[], "").env_remove("FASTINST_OPTIONS"));
    with.assert_same(&without, "recursion.c");
    for name in ["fibonacci", "dive", "is_even", "p50", "p99"] {
        assert!(with.stderr.contains(name), "no {name} in\n{}", with.stderr);
    }
}

/// Short runs, one right after the other, with and without the command.
#[test]
fn a_second_run_leaves_no_report_of_the_first() {
    ensure_preload();
    let binary = compile("fixtures/early_end.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    for extension in ["json", "txt"] {
        let output = folder.path().join(extension).join(format!("report.{extension}"));
        fs::create_dir(folder.path().join(extension)).expect("a folder can be made");
        for number in 0..60 {
            let mut command = if number % 2 == 0 {
                let mut record = bare(&target_release_dir().join("fastinst"), &["record", "-o"]);
                record.arg(&output).arg("--").arg(&binary).arg("_exit");
                record
            } else {
                preloaded(&binary, &["_exit"], &format!("output={}", output.display()))
            };
            let with = run(&mut command);
            let text = fs::read_to_string(&output).expect("a report");
            assert!(text.contains(&with.pid.to_string()), "run {number} left another's report:\n{text}");
            let files = fs::read_dir(folder.path().join(extension)).expect("the folder can be read").count();
            assert_eq!(files, 1, "run {number}");
        }
    }
}

#[test]
fn forked_children_share_a_merged_report() {
    let binary = compile("fixtures/fork.c", &["-O2"], Gcc);
    let apart = profiled(&binary, &[], "");
    let merged = profiled(&binary, &[], "merge=1");
    assert!(apart.reports.len() > 1, "{:?}", summary(&apart));
    assert_eq!(merged.reports.len(), 1, "{:?}", summary(&merged));
    assert_eq!(merged.report().json["processes"], apart.reports.len());
    for name in apart.reports.iter().flat_map(|report| report.functions()).map(|function| &function["name"]) {
        let name = name.as_str().expect("a name");
        assert!(merged.report().functions().any(|function| function["name"] == name), "no {name}");
    }
}

#[test]
fn only_what_is_asked_for_is_measured() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let names = |options: &str| {
        let profiled = profiled(&binary, &[], options);
        let names =
            profiled.report().functions().map(|function| function["name"].as_str().map(str::to_owned));
        let mut names: Vec<String> = names.map(|name| name.expect("a name")).collect();
        names.sort();
        names
    };
    let all = names("");
    assert!(all.len() > 2 && all.contains(&"fibonacci".to_owned()), "{all:?}");
    assert_eq!(names("only=fib*"), ["fibonacci"]);
    assert_eq!(names(r"only=file\:recursion.c"), all);
    assert_eq!(names(r"only=object\:recursion-gcc*:skip=file\:other.c"), all);
    let others: Vec<String> = all.iter().filter(|name| *name != "fibonacci").cloned().collect();
    assert_eq!(names("skip=fibonacci"), others);
}

#[test]
fn wrong_option_is_named_in_one_line_and_the_program_runs_unprofiled() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    for (options, named) in [
        ("outptu=/tmp/x.json", "outptu"),
        ("budget=many", "many"),
        ("samples=50", "samples"),
        ("tool=hammer", "hammer"),
        ("budget", "budget"),
    ] {
        let with = run(&mut preloaded(&binary, &[], options));
        with.assert_same(&without, options);
        assert_eq!(with.stderr.lines().count(), 1, "{options}:\n{}", with.stderr);
        assert!(
            with.stderr.starts_with("fastinst: ") && with.stderr.contains(named),
            "{options}:\n{}",
            with.stderr
        );
    }
}

#[test]
fn tool_none_profiles_nothing() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    let with = profiled(&binary, &[], "tool=none");
    with.run.assert_same(&without, "tool=none");
    assert!(
        with.reports.is_empty() && with.run.stderr.is_empty(),
        "{:?}\n{}",
        summary(&with),
        with.run.stderr
    );
}

#[test]
fn libraries_that_are_closed_while_they_are_inspected() {
    let plugin = |name: &str| {
        let path = compile(&format!("fixtures/{name}"), &["-shared", "-fPIC", "-O2"], Gcc);
        path.into_os_string().into_string().expect("a UTF-8 path")
    };
    let binary = compile("fixtures/dlopen_storm.c", &["-O2"], Gcc);
    let plugins = [plugin("plugin_a.c"), plugin("plugin_b.c")];
    let plugins = [plugins[0].as_str(), plugins[1].as_str()];
    let without = run(&mut bare(&binary, &plugins));
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let output = format!("output={}/storm.json", folder.path().display());
    let with = run(&mut preloaded(&binary, &plugins, &output));
    assert_eq!((with.status, &with.stdout), (without.status, &without.stdout), "{}", with.stderr);
    // Both libraries are loaded at the same addresses, so calls of one must not count for the
    // other.
    let rounds = |first: u64| (first..300).step_by(2).map(|cycle| 1 + cycle * cycle % 5000).sum::<u64>();
    let truths = [("plugin_a_leaf", 2 * rounds(0)), ("plugin_b_leaf", 3 * rounds(1)), ("plugin_run", 150)];
    for report in reports_in(folder.path()) {
        for (name, calls) in truths {
            let functions = report.json["functions"].as_array().into_iter().flatten();
            for function in functions.filter(|function| function["name"] == name) {
                let [low, high] = ["low", "high"].map(|end| function["calls"][end].as_f64());
                let holds = low <= Some(calls as f64) && high.is_none_or(|high| calls as f64 <= high);
                assert!(holds, "{name}: {calls} calls, {low:?} to {high:?}");
            }
        }
    }
}

#[test]
fn a_calibration_with_insufficient_evidence_is_reported_in_one_line_and_ignored() {
    let binary = compile("fixtures/early_end.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &["_exit"]));
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("calibration.toml");
    fs::write(&path, "window_bytes = 64\n").expect("written");
    for tool in ["profiler", "none"] {
        let reports = format!("output={}/{tool}.json:tool={tool}", folder.path().display());
        let with = run(preloaded(&binary, &["_exit"], &reports).env("FASTINST_CALIBRATION", &path));
        assert_eq!((&with.stdout, with.status), (&without.stdout, without.status), "{tool}");
        let lines: Vec<_> = with.stderr.lines().collect();
        let named = lines.len() == 1 && lines[0].contains(path.to_str().expect("UTF-8"));
        assert!(named && lines[0].contains("run tmax-probe"), "{tool}:\n{}", with.stderr);
    }
    let reports = reports_in(folder.path());
    assert!(reports.len() == 1 && reports[0].samples("work_outer") > 0, "{reports:?}");
}

#[test]
fn program_without_instrumented_functions_is_left_alone() {
    let mut printer = Command::new("/bin/echo");
    printer.arg("plain").env("LD_PRELOAD", ensure_preload()).env_remove("FASTINST_OPTIONS");
    let with = run(&mut printer);
    assert_eq!((with.stdout.as_slice(), with.status.code()), (b"plain\n".as_slice(), Some(0)));
    assert!(with.stderr.lines().count() <= 1, "more than one line:\n{}", with.stderr);
}

#[test]
fn record_runs_the_program_and_passes_its_exit_code_through() {
    ensure_preload();
    let binary = compile("fixtures/early_end.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let output: PathBuf = folder.path().join("report.json");
    let without = run(&mut bare(&binary, &["_exit"]));
    let mut record = bare(&target_release_dir().join("fastinst"), &["record", "-o"]);
    record.arg(&output).arg("--").arg(&binary).arg("_exit");
    run(&mut record).assert_same(&without, "fastinst record");
    let reports = reports_in(folder.path());
    assert!(reports.len() == 1 && reports[0].samples("work_outer") > 0, "{reports:?}");
}

/// For tests that depend on addresses.
const FIXED: &[Build] =
    &[(Gcc, &["-O2", "-no-pie"]), (Clang, &["-O2", "-no-pie"]), (Gcc, &["-O0", "-no-pie"])];

#[test]
fn a_debugger_sets_breakpoints_before_the_start_and_in_the_middle() {
    check("debugger.c", &[], FIXED, Expect::Report, &["stopped_work", "other_work"]);
}

#[test]
fn gdb_stops_in_a_profiled_program_and_continues_it() {
    let binary = compile("fixtures/debugger.c", &["-O2", "-no-pie"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let options = format!("output={}", folder.path().join("report.json").display());
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set environment FASTINST_OPTIONS", "-ex"])
        .arg(format!("set environment FASTINST_OPTIONS {options}"))
        .arg("-ex")
        .arg(format!("set environment LD_PRELOAD {}", ensure_preload().display()))
        .args(["-ex", "handle SIGSTOP stop nopass", "-ex", "break stopped_work", "-ex", "run"])
        // Stopped before the first probe, and again while probes are toggled.
        .args(["-ex", "continue", "-ex", "backtrace", "-ex", "delete", "-ex", "continue"])
        .args(["-ex", "break stopped_work", "-ex", "break other_work", "-ex", "continue", "-ex", "continue"])
        .args(["-ex", "delete", "-ex", "continue", "-ex", "print $_exitcode", "--args"])
        .arg(&binary)
        .arg("program")
        .env_remove("LD_PRELOAD");
    let run = run(&mut gdb);
    let output = String::from_utf8_lossy(&run.stdout);
    let hits = |name: &str| output.lines().filter(|line| line.contains(name)).count();
    assert_eq!(hits("Breakpoint 1, "), 2, "{output}{}", run.stderr);
    assert_eq!((hits("Breakpoint 2, "), hits("Breakpoint 3, ")), (1, 1), "{output}{}", run.stderr);
    assert!(output.contains("$1 = 42") || output.contains("$1 = 052"), "{output}{}", run.stderr);
    let reports = reports_in(folder.path());
    let sampled = |name| reports.iter().any(|report| report.samples(name) > 0);
    assert!(sampled("stopped_work") && sampled("other_work"), "{output}{}", run.stderr);
}

#[test]
fn a_sandbox_at_the_start_of_main_does_not_kill_a_starting_thread() {
    for _ in 0..if is_long() { 30 } else { 10 } {
        check("sandbox.c", &[], &USUAL[..1], Expect::Report, &["sandboxed_work"]);
    }
}

/// Runs a shell command line under the preload.
fn shell(line: &str, options: &str) -> tests::Run {
    run(&mut preloaded(Path::new("/bin/sh"), &["-c", line], options))
}

#[test]
fn only_the_process_started_by_the_user_reports_that_there_is_nothing_to_report() {
    let alone = run(&mut preloaded(Path::new("/bin/true"), &[], ""));
    let lines: Vec<_> = alone.own_lines().collect();
    let [line] = lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("nothing to report") && line.contains("-finstrument-functions"), "{line}");
    // In place of the first process, as a child that is waited for, as one that is not, and as a
    // child of a child.
    for line in
        ["exec sed -n 1p /dev/null", "sed -n 1p /dev/null; :", "(:) & :", "sh -c 'sed -n 1p /dev/null; :'; :"]
    {
        let run = shell(line, "");
        assert!(run.status.success(), "{line}: {}", run.status);
        assert_eq!(run.stderr, "", "{line}");
    }
}

#[test]
fn only_the_program_started_by_a_shell_is_reported() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    for line in [format!("{0}; sed -n 1p /dev/null", binary.display()), format!("exec {}", binary.display())]
    {
        let folder = tempfile::tempdir().unwrap();
        let run = shell(&line, &format!("output={}", folder.path().join("report.json").display()));
        assert_eq!((run.status.success(), run.stderr.as_str()), (true, ""), "{line}");
        assert_eq!(reports_in(folder.path()).len(), 1, "{line}");
    }
}

#[test]
fn a_redirected_report_names_its_file() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("report.txt");
    let run = run(&mut preloaded(&binary, &[], &format!("output={}", missing.display())));
    let places: Vec<_> =
        run.own_lines().filter_map(|line| line.strip_prefix("fastinst: the report is in ")).collect();
    let [place] = places[..] else { panic!("{}", run.stderr) };
    let report = fs::read_to_string(place).unwrap();
    fs::remove_file(place).unwrap();
    assert!(place.starts_with("/tmp/") && report.starts_with("fastinst: "), "{place}: {report}");
}

/// A pager reads the first page, and the rest when its user scrolls.
#[test]
fn a_report_waits_for_its_reader() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let (mut reader, writer) = io::pipe().unwrap();
    let capacity = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    (&writer).write_all(&vec![b'\n'; capacity as usize]).unwrap();
    let mut command = preloaded(&binary, &[], "");
    let mut program = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    drop(command);
    // Longer than an exiting process waits for a report that makes no progress.
    thread::sleep(Duration::from_secs(11));
    assert_eq!(program.try_wait().unwrap(), None, "the report was given up");
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    let status = program.wait().unwrap();
    let report = output.trim_start();
    assert!(status.success() && report.starts_with("fastinst: ") && report.contains("fibonacci"), "{report}");
}

#[test]
fn a_missing_proc_is_reported_in_one_line() {
    let binary = compile("fixtures/recursion.c", &["-O2"], Gcc);
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c"])
        .env_remove("LD_PRELOAD")
        .env_remove("FASTINST_OPTIONS");
    let hide = "mount -t tmpfs none /proc || exit 77; LD_PRELOAD=$0 exec $1";
    let run = run(command.arg(hide).arg(ensure_preload()).arg(&binary));
    if matches!(run.status.code(), Some(1 | 77)) {
        eprintln!("skipped: this system does not permit mounts: {}", run.stderr);
        return;
    }
    let lines: Vec<_> = run.own_lines().collect();
    assert!(run.status.success() && lines.len() == 1 && lines[0].contains("/proc"), "{}", run.stderr);
}

#[test]
fn a_program_with_an_address_sanitizer_is_recorded() {
    let binary = compile("fixtures/recursion.c", &["-O1", "-fsanitize=address"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    let folder = tempfile::tempdir().unwrap();
    ensure_preload();
    let mut record = bare(&target_release_dir().join("fastinst"), &["record", "-o"]);
    record.arg(folder.path().join("report.json")).arg("--").arg(&binary);
    let with = run(&mut record);
    with.assert_same(&without, "with a sanitizer");
    assert_eq!(reports_in(folder.path()).len(), 1, "{}", with.stderr);
}

#[test]
fn a_library_loaded_repeatedly_leaks_nothing() {
    let plugin = compile("fixtures/plugin_a.c", &["-O2", "-shared", "-fPIC"], Gcc);
    let plugin = plugin.to_str().expect("a path in UTF-8");
    let profiled =
        check_build("dlopen_cycles.c", &[plugin], (Gcc, &["-O2"]), Expect::Report, &["plugin_a_leaf"]);
    // Four functions, each with entry and exit, and the same ids whenever the library is at the
    // same address: 60 loads use only a few addresses, because the profiler maps the files of
    // sampled objects in between, as the program maps others.
    assert!(profiled.report().json["probes"].as_u64() <= Some(8 * 9), "{}", profiled.report().json["probes"]);
}

/// Waits until the child has stopped itself.
fn wait_for_stop(child: u32) {
    let mut status = 0;
    // SAFETY: writes the status of our own child.
    let waited = unsafe { libc::waitpid(child.cast_signed(), &raw mut status, libc::WUNTRACED) };
    assert!(waited == child.cast_signed() && libc::WIFSTOPPED(status), "status {status:#x}");
}

#[test]
fn gdb_attaches_in_the_middle_and_detaches_again() {
    let binary = compile("fixtures/debugger.c", &["-O2", "-no-pie"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let options = format!("output={}", folder.path().join("report.json").display());
    let mut program = preloaded(&binary, &["program"], &options);
    let mut program = program.stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_for_stop(program.id());
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &program.id().to_string()])
        .args(["-ex", "handle SIGSTOP nostop noprint nopass", "-ex", "break stopped_work"])
        .args(["-ex", "continue", "-ex", "continue", "-ex", "backtrace", "-ex", "delete", "-ex", "detach"])
        .env_remove("LD_PRELOAD");
    let run = run(&mut gdb);
    // The debugger leaves it stopped, as when it attached.
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(program.id().cast_signed(), libc::SIGCONT) };
    let end = program.wait().unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    let hits = output.lines().filter(|line| line.contains("hit Breakpoint 1, ")).count();
    assert_eq!(hits, 2, "{output}{}", run.stderr);
    assert_eq!(end.code(), Some(42), "{end}: {output}{}", run.stderr);
    let reports = reports_in(folder.path());
    assert!(reports.iter().any(|report| report.samples("stopped_work") > 0), "{output}{}", run.stderr);
}

#[test]
fn what_a_report_costs_is_part_of_the_stated_cost() {
    let binary = compile("fixtures/memory.c", &["-O1"], Gcc);
    let profiled = profiled(&binary, &[], "discovery=eager");
    let cost = &profiled.report().json["cost"];
    assert!(cost["report_ns"].as_u64() > Some(0), "{cost}");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("a.txt");
    let run = run(Command::new(&binary)
        .env("LD_PRELOAD", ensure_preload())
        .env("FASTINST_OPTIONS", format!("discovery=eager:output={}", path.display())));
    assert!(run.status.success(), "{}", run.stderr);
    let text = std::fs::read_to_string(path).expect("the report");
    let cost =
        text.lines().find(|line| line.starts_with("profiling cost ")).unwrap_or_else(|| panic!("{text}"));
    assert!(cost.contains(", report "), "{cost}");
}

/// The memory that the report states for profiling is compared with the kernel's figures, with and
/// without the library.
#[test]
fn the_memory_that_a_report_states_is_what_the_process_has_more() {
    let binary = compile("fixtures/memory.c", &["-O1"], Gcc);
    let anonymous = |stdout: &[u8]| -> f64 {
        let text = String::from_utf8_lossy(stdout).into_owned();
        text.split(' ').next().and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let without = run(&mut Command::new(&binary));
    let with = profiled(&binary, &[], "discovery=eager");
    assert!(with.run.status.success(), "{}", with.run.stderr);
    let report = with.report();
    let stated = report.json["cost"]["memory_bytes"].as_f64().expect("a number");
    let added = anonymous(&with.run.stdout) - anonymous(&without.stdout);
    println!("stated {stated:.0} bytes, measured {added:.0}, {} probes", report.json["probes"]);
    assert!(report.json["probes"].as_u64() >= Some(16_384));
    // Buffers are in the statement as a whole, and in memory as far as they were used.
    assert!((0.75..1.5).contains(&(stated / added)), "stated {stated:.0} bytes, measured {added:.0}");
}
