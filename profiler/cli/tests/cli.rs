//! The command `fastinst` from outside: its output, the programs it starts, and its exit codes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const MAIN: &str = "int main(void) { return 0; }";
const WARNING: &str = "itself has no instrumented function";

const REPORT: &str = r#"{"version": 2, "command": ["./app"], "pid": 7, "processes": 1, "duration_ns": 2000000000,
    "thread_time_ns": 2000000000, "probes": 4, "toggles": 100, "samples": 20,
    "cost": {"budget": 0.01, "cpu_ns": 1000000000, "probes_ns": 4000000, "service_ns": 2000000, "toggles_ns": 1000000,
             "startup_ns": 1000000, "error": 0.2, "memory_bytes": 123456},
    "functions": [
    {"name": "step", "object": "/opt/app", "address": "0x401000", "samples": 20, "recursive": false,
     "calls": {"value": 50000, "low": 47500, "high": 52500},
     "total_ns": {"value": 100000000, "low": 90000000, "high": 110000000},
     "latency_ns": {"min": 1500, "mean": {"value": 2000, "low": 1900, "high": 2100},
        "p50": {"value": 1900, "low": 1800, "high": 2000}, "p90": {"value": 2500, "low": 2300, "high": 2600},
        "p99": {"value": 3000, "low": 2900, "high": 3100}, "max": 3100, "below_resolution": false, "resolution": 20}},
    {"name": "main", "object": "/opt/app", "address": "0x401100", "samples": 0, "recursive": false,
     "calls": {"value": 1, "low": 1, "high": 1}}],
    "arcs": [{"caller": {"name": "main", "object": "/opt/app", "address": "0x401100"},
              "callee": {"name": "step", "object": "/opt/app", "address": "0x401000"},
              "calls": {"value": 50000, "low": 47500, "high": 52500},
              "total_ns": {"value": 100000000, "low": 90000000, "high": 110000000}}]}"#;

const TABLE: &str = "\
fastinst: ./app (pid 7), 2.00s
4 probes, 20 calls timed, 100 toggles (50.0/s)
profiling cost 0.81% ±0.16% processor time, budget 1% (probes 4.00ms, service 2.00ms, toggles 1.00ms, start-up 1.00ms), and 123kB of memory
total includes callees; shares are of the 2.00s that the program's threads lived; ±, >=, <= and a-b are 95% intervals
-: not known: too few calls were timed (a longer run, a larger budget or fewer functions (only=) shows more), none has returned, or the clock does not resolve them

    calls       total  share  self  share    mean     p50     p90     p99       max  function
─────────────────────────────────────────────────────────────────────────────────────────────
50.0k ±5%  100ms ±10%   5.0%     -      -  2.00us  1.90us  2.50us  3.00us  >=3.10us  step
    1          -           -     -      -       -       -       -       -         -  main
";

/// A directory with a harmless library to preload.
struct Fixture {
    directory: TempDir,
    library: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let library = compile(directory.path(), "harmless.so", &["-shared", "-fPIC"], "int harmless;");
        Fixture { directory, library: fs::canonicalize(library).unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a file in a separate process: a file that this process wrote could still be open for
    /// writing in a child that another test is just starting, and would then be too busy to be
    /// executed.
    #[track_caller]
    fn put(&self, name: &str, mode: u32, contents: impl AsRef<[u8]>) {
        let source = self.path("source");
        fs::write(&source, contents).unwrap();
        let mut install = Command::new("install");
        install.arg("-D").arg("-m").arg(format!("{mode:o}")).arg(source).arg(self.path(name));
        assert!(install.status().unwrap().success());
    }

    fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        compile(self.directory.path(), name, options, MAIN)
    }

    /// `fastinst record --library LIBRARY [options] -- command`, in the directory.
    fn record(&self, options: &[&str], command: &[&str]) -> Command {
        let mut fastinst = fastinst();
        fastinst.current_dir(self.directory.path()).arg("record").arg("--library").arg(&self.library);
        fastinst.args(options).arg("--").args(command);
        fastinst
    }
}

#[track_caller]
fn compile(directory: &Path, name: &str, options: &[&str], source: &str) -> PathBuf {
    let (input, output) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&input, source).unwrap();
    assert!(Command::new("cc").args(options).arg("-o").arg(&output).arg(&input).status().unwrap().success());
    output
}

fn fastinst() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastinst"));
    command.env_remove("LD_PRELOAD").env_remove("FASTINST_OPTIONS");
    command
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Asserts that nothing ran, and that there is one line which starts with our name and contains
/// `expected`.
#[track_caller]
fn check_refused(command: &mut Command, code: i32, expected: &str) {
    let output = command.output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(stdout(&output), "");
    assert!(message.starts_with("fastinst: ") && message.contains(expected), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn help_has_examples_first_and_exit_codes() {
    #[track_caller]
    fn check(verb: &[&str], expected: &[&str]) {
        let output = fastinst().args(verb).arg("--help").output().unwrap();
        let help = stdout(&output);
        assert!(output.status.success());
        assert!(help.find("Examples:").unwrap() < help.find("Usage:").unwrap(), "{help}");
        for text in expected {
            assert!(help.contains(text), "{text} is not in\n{help}");
        }
    }
    check(&[], &["record", "report", "fastinst record -- ./app"]);
    check(
        &["record"],
        &[
            "Exit codes:",
            "125 ",
            "126 ",
            "127 ",
            "--output <FILE>",
            "--merge",
            "--budget <N%>",
            "--counts <sampled|exact>",
            "--only <PATTERN,...>",
            "--skip <PATTERN,...>",
            "--text",
            "--library",
        ],
    );
    check(
        &["report"],
        &[
            "Exit codes:",
            "--text",
            "--json",
            "--csv",
            "--callers <FUNCTION>",
            "--callees <FUNCTION>",
            "--tree",
            "--sort <KEY>",
            "--filter <PATTERN,...>",
            "--limit <N>",
        ],
    );
}

#[test]
fn wrong_usage_exits_2() {
    for line in [&[][..], &["record"], &["record", "--budget", "0", "--", "true"], &["report"]] {
        assert_eq!(fastinst().args(line).output().unwrap().status.code(), Some(2), "{line:?}");
    }
}

#[test]
fn programs_that_cannot_be_started_exit_126_or_127() {
    let fixture = Fixture::new();
    fixture.put("text", 0o644, "");
    fixture.put("script", 0o755, "#!/nowhere/interpreter\n");
    let check = |program: &str, code: i32, expected: &str| {
        check_refused(&mut fixture.record(&[], &[program]), code, expected);
    };
    check("no-such-program-anywhere", 127, "no-such-program-anywhere: no such program");
    check("./missing", 127, "./missing: no such program");
    check("./text", 126, "./text: execute permission is missing");
    check("/", 126, "/: it is a directory");
    check("./script", 126, "cannot execute ./script: No such file or directory");
}

#[test]
fn unprofilable_programs_are_not_run() {
    let fixture = Fixture::new();
    fixture.compile("static", &["-static"]);
    fixture.compile("static_pie", &["-static-pie"]);
    let set_id = fixture.compile("set_id", &["-finstrument-functions"]);
    fs::set_permissions(&set_id, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut foreign = fs::read(fixture.compile("foreign", &[])).unwrap();
    foreign[18] = 183;
    fs::write(fixture.path("foreign"), foreign).unwrap();
    let check =
        |program: &str, expected: &str| check_refused(&mut fixture.record(&[], &[program]), 125, expected);
    check("./static", "./static is statically linked and cannot be profiled");
    check("./static_pie", "./static_pie is statically linked and cannot be profiled");
    check("./set_id", "./set_id is set-user-ID, set-group-ID or has capabilities and cannot be profiled");
    check("./foreign", "./foreign is a 64-bit program for ELF machine 183 and cannot be profiled");
}

#[test]
fn invalid_setups_exit_125() {
    let fixture = Fixture::new();
    fs::write(fixture.path("garbage.so"), "garbage").unwrap();
    fs::copy(&fixture.library, fixture.path("with space.so")).unwrap();
    let check = |library: &str, expected: &str| {
        let mut command = fastinst();
        command.current_dir(fixture.directory.path()).args(["record", "--library", library, "--", "true"]);
        check_refused(&mut command, 125, expected);
    };
    check("missing.so", "cannot inspect missing.so: No such file or directory");
    check("garbage.so", "garbage.so is not an x86-64 shared library");
    check("with space.so", "with space.so cannot be preloaded");
    check_refused(
        fixture.record(&[], &["true"]).env("FASTINST_OPTIONS", "colour=1"),
        125,
        "unknown option `colour`",
    );
    check_refused(
        &mut fixture.record(&["-o", "missing/r.txt"], &["true"]),
        125,
        "missing of the report does not exist",
    );
    // A copy of the command has no library in its directory.
    let alone = fixture.path("bin/fastinst");
    fixture.put("bin/fastinst", 0o755, fs::read(env!("CARGO_BIN_EXE_fastinst")).unwrap());
    check_refused(Command::new(&alone).args(["record", "--", "true"]), 125, "libfastinst.so is not in");
    // The library is found in ../lib.
    fs::create_dir(fixture.path("lib")).unwrap();
    fs::copy(&fixture.library, fixture.path("lib/libfastinst.so")).unwrap();
    let output =
        Command::new(&alone).env_remove("FASTINST_OPTIONS").args(["record", "--", "env"]).output().unwrap();
    assert!(stdout(&output).contains("/lib/libfastinst.so"), "{}", stdout(&output));
}

#[test]
fn the_environment_of_the_program_is_set_up() {
    let fixture = Fixture::new();
    let other = compile(fixture.directory.path(), "other.so", &["-shared", "-fPIC"], "int other;");
    let mut command = fixture.record(&["-o", "r.%p.json", "--budget", "5%"], &["env"]);
    command
        .env("LD_PRELOAD", &other)
        .env("FASTINST_OPTIONS", "counts=exact:budget=3%:run=17.4")
        .env("KEPT", "as it was");
    let output = command.output().unwrap();
    let environment = stdout(&output);
    let here = fs::canonicalize(fixture.directory.path()).unwrap();
    for expected in [
        format!("LD_PRELOAD={}:{}", fixture.library.display(), other.display()),
        format!("FASTINST_OPTIONS=output={}/r.%p.json:budget=5%:counts=exact:run=17.4", here.display()),
        "KEPT=as it was".to_owned(),
    ] {
        assert!(environment.lines().any(|line| line == expected), "{expected} is not in\n{environment}");
    }
}

#[test]
fn only_a_program_without_instrumented_functions_is_warned_of() {
    let fixture = Fixture::new();
    fixture.compile("plain", &[]);
    fixture.compile("instrumented", &["-finstrument-functions"]);
    fixture.put("script", 0o755, "#!/bin/sh\nexit 0\n");
    let check = |program: &str, warned: bool| {
        let output = fixture.record(&[], &[program]).output().unwrap();
        assert!(output.status.success());
        let message = stderr(&output);
        assert_eq!(message.lines().count(), usize::from(warned), "{program}: {message}");
        assert_eq!(
            message.starts_with("fastinst: warning: ") && message.contains(WARNING),
            warned,
            "{message}"
        );
    };
    check("./plain", true);
    check("./instrumented", false);
    check("./script", false);
}

#[test]
fn the_program_takes_the_place_of_the_command() {
    let fixture = Fixture::new();
    let script = r#"echo "$$ $0 $*"; exit 7"#;
    let mut command = fixture.record(&[], &["sh", "-c", script, "-x", "--", "a b", "--budget"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{pid} -x -- a b --budget\n"));
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_deadly_signal_passes_through() {
    let fixture = Fixture::new();
    for signal in [9, 15] {
        let status =
            fixture.record(&[], &["sh", "-c", &format!("kill -{signal} $$")]).output().unwrap().status;
        assert_eq!(status.signal(), Some(signal));
    }
}

#[test]
fn a_report_is_printed_again() {
    let fixture = Fixture::new();
    fs::write(fixture.path("r.json"), REPORT).unwrap();
    let report = |options: &[&str]| {
        let output = fastinst().arg("report").arg(fixture.path("r.json")).args(options).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    assert_eq!(report(&[]), TABLE);
    assert_eq!(report(&["--text", "--limit", "0"]), TABLE);
    assert!(report(&["--limit", "1"]).ends_with("… and 1 more function; --limit 0 shows all of them\n"));
    let names = |options: &[&str]| {
        let table = report(options);
        let rows = table.lines().skip_while(|line| !line.starts_with('─')).skip(1);
        rows.map(|row| row.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--sort", "name"]), ["main", "step"]);
    assert_eq!(names(&["--filter", "ma*,nothing"]), ["main"]);
    assert!(
        report(&["--csv", "--filter", "main"])
            .ends_with("\nmain,/opt/app,0x401100,,0,1,1,1,,,,,,,,,,,,,,,,,,,,,,false,0,,\n")
    );
    assert!(report(&["--callers", "step"]).contains("\n50.0k ±5%  100ms ±10%   100%  main\n"));
    assert!(report(&["--callees", "main"]).contains("\n50.0k ±5%  100ms ±10%"));
    assert!(report(&["--callees", "step"]).ends_with("no call was observed\n"));
    assert!(report(&["--tree"]).contains("  5.0%    100ms"), "{}", report(&["--tree"]));
    // Normalised JSON does not change.
    let normal = report(&["--json"]);
    assert!(normal.starts_with("{\n  \"version\": 3,\n"));
    fs::write(fixture.path("r.json"), &normal).unwrap();
    assert_eq!(report(&["--json"]), normal);
    assert_eq!(report(&[]), TABLE);
    let json = |options: &[&str]| -> serde_json::Value {
        serde_json::from_str(&report(&[&["--json"], options].concat())).unwrap()
    };
    let by_name = json(&["--sort", "name", "--limit", "1"]);
    assert_eq!(
        (&by_name["functions"][0]["name"], by_name["functions"].as_array().unwrap().len()),
        (&"main".into(), 1)
    );
    assert_eq!(by_name["arcs"], serde_json::json!([]));
    assert_eq!(json(&["--filter", "step"])["arcs"][0]["caller"]["name"], "main");
    assert_eq!(json(&["--callers", "step"])["callers"][0]["caller"]["name"], "main");
    assert_eq!(json(&["--callees", "main"])["callees"][0]["callee"]["name"], "step");
}

#[test]
fn reports_are_merged() {
    let fixture = Fixture::new();
    fs::write(fixture.path("one.json"), REPORT).unwrap();
    fs::write(fixture.path("two.json"), REPORT).unwrap();
    let mut command = fastinst();
    command.current_dir(fixture.directory.path()).args(["report", "one.json", "two.json"]);
    check_refused(&mut command, 1, "two.json is the report of a process whose report is already included");
    let of_other_process = REPORT.replacen("\"pid\": 7", "\"pid\": 8", 1);
    fs::write(fixture.path("two.json"), &of_other_process).unwrap();
    let output = command.output().unwrap();
    let table = stdout(&output);
    assert!(output.stderr.is_empty());
    assert!(table.starts_with("fastinst: ./app (pid 7 and 1 more process), 2.00s\n"), "{table}");
    assert!(table.contains("\n100k ±5%  200ms ±10%   5.0% "), "{table}");
    // The same process has executed another program, or a process of another container has its id.
    for different in
        [REPORT.replacen('{', "{\"started_us\": 5, ", 1), REPORT.replacen("2000000000", "2000000001", 1)]
    {
        assert_ne!(different, REPORT);
        fs::write(fixture.path("two.json"), different).unwrap();
        assert_eq!(stdout(&command.output().unwrap()).lines().count(), table.lines().count());
    }
    let of_other_build = of_other_process.replacen("\"step\"", "\"rebuilt\"", 1);
    fs::write(fixture.path("two.json"), of_other_build).unwrap();
    check_refused(&mut command, 1, "two.json cannot be added: it is of another build of ");
    // An older one.
    fs::write(fixture.path("two.json"), of_other_process.replacen('{', "{\"run\": \"1.2\", ", 1)).unwrap();
    let output = command.output().unwrap();
    let warning = "fastinst: warning: these are reports of 2 different runs; their figures are added\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), warning);
    fs::write(fixture.path("two.json"), REPORT.replacen('2', "1", 1)).unwrap();
    check_refused(&mut command, 1, "two.json is a report of version 1");
}

#[test]
fn functions_that_are_not_there_are_named() {
    let fixture = Fixture::new();
    fs::write(fixture.path("r.json"), REPORT).unwrap();
    let check = |options: [&str; 2], expected: &str| {
        let mut command = fastinst();
        command.arg("report").arg(fixture.path("r.json")).args(options);
        check_refused(&mut command, 1, expected);
    };
    check(["--callers", "nothing"], "no function `nothing` is in the report");
    check(["--callees", "*"], "`*` is the name of several functions: step, main; write one of these");
}

#[test]
fn only_reports_that_can_be_read_again_are_merged() {
    let fixture = Fixture::new();
    check_refused(&mut fixture.record(&["-o", "r.txt", "--merge"], &["true"]), 125, "output=FILE.json");
}

#[test]
fn every_run_has_a_name() {
    let fixture = Fixture::new();
    let run = |options: &[&str]| {
        let output = fixture.record(options, &["env"]).output().unwrap();
        stdout(&output).lines().find_map(|line| Some(line.split_once(":run=")?.1.to_owned()))
    };
    let (first, second) = (run(&["-o", "r.json"]).unwrap(), run(&["-o", "r.json"]).unwrap());
    let parts = |run: &str| run.split('.').map(|part| part.parse::<u64>().unwrap()).collect::<Vec<_>>();
    assert!(parts(&first) < parts(&second), "{first} {second}");
    assert_eq!(run(&[]), None, "nothing is written that could be left over");
}

/// Two constructors of a class have the same demangled name.
#[test]
fn symbols_are_demangled_and_told_apart_by_their_lines() {
    let fixture = Fixture::new();
    let source = "int one(void) { return 1; }\nint two(void) { return 2; }\n";
    let library = compile(fixture.directory.path(), "two.so", &["-g", "-shared", "-fPIC"], source);
    let symbols = Command::new("nm").arg(&library).output().unwrap();
    let address = |name: &str| {
        let line = stdout(&symbols).lines().find(|line| line.ends_with(&format!(" T {name}"))).unwrap();
        format!("{:#x}", u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap())
    };
    let report = REPORT
        .replace("/opt/app", library.to_str().unwrap())
        .replace("0x401000", &address("one"))
        .replace("0x401100", &address("two"))
        .replace("\"step\"", "\"_ZN4TreeC1Ei\"")
        .replace("\"main\"", "\"_ZN4TreeC2Ei\"");
    fs::write(fixture.path("r.json"), report).unwrap();
    let shown = |options: &[&str]| {
        let output = fastinst().arg("report").arg(fixture.path("r.json")).args(options).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    let table = shown(&[]);
    assert!(
        ["c:1)", "c:2)"].iter().all(|line| table.contains(line)) && table.contains("Tree::Tree ("),
        "{table}"
    );
    assert!(shown(&["--json"]).contains("\"name\": \"Tree::Tree(int)\""));
    let by_file = |pattern: &str| {
        let csv = shown(&["--csv", "--filter", pattern]);
        csv.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((by_file("file:two.so.c").len(), by_file("file:other.c").len()), (2, 0));
    // The lines of a library that was built again are not known.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    fs::File::open(&library).unwrap().set_modified(later).unwrap();
    assert!(shown(&[]).contains(&format!("Tree::Tree (two.so+{})", address("one"))), "{}", shown(&[]));
}

/// Also those whose names are unique, for which reports have no location.
#[test]
fn functions_are_selected_by_their_files() {
    let fixture = Fixture::new();
    let source = "int one(void) { return 1; }\n";
    let report = |flags: &[&str]| {
        let library = compile(fixture.directory.path(), "one.so", flags, source);
        let report = REPORT.replace("/opt/app", library.to_str().unwrap());
        let symbols = Command::new("nm").arg(&library).output().unwrap();
        let line = stdout(&symbols).lines().find(|line| line.ends_with(" T one")).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        fs::write(fixture.path("r.json"), report.replace("0x401000", &format!("{address:#x}"))).unwrap();
        let mut command = fastinst();
        command.arg("report").arg(fixture.path("r.json")).args(["--csv", "--filter", "file:*.c"]);
        command.output().unwrap()
    };
    let found = report(&["-g", "-shared", "-fPIC"]);
    assert!(
        stdout(&found).lines().nth(1).is_some_and(|line| line.starts_with("step,")),
        "{}",
        stdout(&found)
    );
    assert_eq!(stderr(&found), "");
    let without = report(&["-shared", "-fPIC"]);
    assert_eq!(stdout(&without).lines().count(), 1);
    assert!(
        stderr(&without).contains("one.so are not known (it was compiled without -g"),
        "{}",
        stderr(&without)
    );
}

#[test]
fn other_files_than_reports_are_refused() {
    let fixture = Fixture::new();
    let check = |contents: &[u8], expected: &str| {
        fs::write(fixture.path("r.json"), contents).unwrap();
        check_refused(fastinst().arg("report").arg(fixture.path("r.json")), 1, expected);
    };
    check(b"", "r.json is not a fastinst report (an empty file)");
    check(b"\x7fELF\x02\x01\x01", "r.json is not a fastinst report (not JSON");
    check(TABLE.as_bytes(), "r.json is not a fastinst report (not JSON");
    check(b"{\"functions\": []}", "r.json is not a fastinst report (JSON without a version)");
    check(&REPORT.as_bytes()[..REPORT.len() / 2], "r.json is truncated");
    check(
        REPORT.replacen('2', "1", 1).as_bytes(),
        "r.json is a report of version 1, this fastinst reads versions 2 to 3",
    );
    check_refused(
        fastinst().arg("report").arg(fixture.path("none.json")),
        1,
        "none.json: No such file or directory",
    );
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let fixture = Fixture::new();
    fs::write(fixture.path("r.json"), REPORT).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = fastinst().arg("report").arg(fixture.path("r.json")).stdout(writer).output().unwrap();
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
}
