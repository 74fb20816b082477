//! Scripts that come and go while a program runs, by `fastinst attach`, or by a signal with
//! `fastinst run --toggle`. Their counts are compared with the calls that the program made on
//! request while they were attached.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::Compiler::{Clang, Gcc};
use tests::{Compiler, bare, compile, ensure_built};

const CALLS: &str = "native:func:entry { report var calls: u64; calls++; }";

/// Counts entries, and exits whose entries were seen.
const PAIRS: &str = "native:func:entry / fname != \"main\" / { report var calls: u64; calls++; }
    native:func:exit / duration >= 0 / { report var paired: u64; paired++; }";

/// Builds whose code is longer than the part that is compared.
const BUILDS: [(Compiler, &[&str]); 3] = [(Gcc, &["-O2"]), (Clang, &["-O2"]), (Gcc, &["-O0", "-no-pie"])];

fn fastinst() -> PathBuf {
    ensure_built().join("fastinst")
}

/// The fixture, which takes commands.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Program {
    fn start(binary: &Path, options: &[&str]) -> Self {
        let mut command = bare(&fastinst(), &[]);
        command.arg("run").args(options).arg("--").arg(binary);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Self { child, input, output, folder: tempfile::tempdir().unwrap() };
        // From here on, the library has been started.
        assert_eq!(program.tell("code"), "same");
        program
    }

    fn usual() -> Self {
        Self::start(&compile("fixtures/attached.c", &["-O2"], Gcc), &["--control"])
    }

    fn say(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("it reads");
    }

    /// The program's answer to a command.
    fn tell(&mut self, command: &str) -> String {
        self.say(command);
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn attach(&self, script: &str) -> Attached {
        Attached::to(self.pid(), script, self.folder.path(), &[])
    }

    /// The exit status, and the program's standard error.
    fn end(mut self, command: &str) -> (ExitStatus, String) {
        self.say(command);
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap(), errors)
    }
}

/// A client.
struct Attached {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
    /// The client's first line on standard error.
    first: String,
}

impl Attached {
    fn to(process: u32, script: &str, folder: &Path, options: &[&str]) -> Self {
        let file = folder.join("script.mm");
        fs::write(&file, script).expect("the folder can be written");
        let mut command = bare(&fastinst(), &[]);
        command.args(["attach", "--format", "json"]).args(options).arg(process.to_string()).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        errors.read_line(&mut first).unwrap();
        Self { child, errors, first }
    }

    #[track_caller]
    fn assert_attached(&self) {
        assert!(self.first.contains(": observing "), "{}", self.first);
    }

    /// Waits for the client's end: the exit code, the report if there is one, and the last lines.
    fn finish(mut self) -> (Option<i32>, Value, String) {
        let (mut output, mut errors) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        self.errors.read_to_string(&mut errors).unwrap();
        let code = self.child.wait().unwrap().code();
        let report = if output.is_empty() { Value::Null } else { serde_json::from_str(&output).unwrap() };
        (code, report, errors)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Ends the client as Ctrl-C does; returns its report.
    #[track_caller]
    fn interrupt(self) -> Value {
        self.assert_attached();
        self.signal(Signal::SIGINT);
        let (code, report, errors) = self.finish();
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        report
    }
}

/// A variable of a function in a report; 0 if there is none.
fn count(report: &Value, variable: &str, function: &str) -> u64 {
    let mut sum = 0;
    for table in report["tables"].as_array().unwrap() {
        let columns = table["columns"].as_array().unwrap();
        let column = |name: &str| columns.iter().position(|column| column == name);
        let (Some(value), Some(name)) = (column(variable), column("function")) else { continue };
        let rows = table["rows"].as_array().unwrap().iter().filter(|row| row[name] == function);
        sum += rows.map(|row| row[value].as_u64().unwrap()).sum::<u64>();
    }
    sum
}

fn notes(report: &Value) -> Vec<&str> {
    report["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// Waits until the condition holds.
#[track_caller]
fn eventually(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it has not become so");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_script_counts_from_when_it_is_attached_until_it_is_detached() {
    for (compiler, flags) in BUILDS {
        let mut program = Program::start(&compile("fixtures/attached.c", flags, compiler), &["--control"]);
        program.tell("calls 700");
        let first = program.attach(CALLS);
        first.assert_attached();
        assert_eq!(program.tell("code"), "different");
        program.tell("calls 1000");
        let second = program.attach(PAIRS);
        second.assert_attached();
        program.tell("calls 30");
        let report = first.interrupt();
        assert_eq!((count(&report, "calls", "leaf"), count(&report, "calls", "outer")), (1030, 2));
        assert_eq!(notes(&report), <[&str; 0]>::default());
        program.tell("calls 5");
        let report = second.interrupt();
        assert_eq!((count(&report, "calls", "leaf"), count(&report, "calls", "outer")), (35, 2));
        assert_eq!((count(&report, "paired", "leaf"), count(&report, "paired", "outer")), (35, 2));
        assert_eq!(notes(&report), <[&str; 0]>::default());
        assert_eq!(program.tell("code"), "same", "probes that no script needs are off");
        program.tell("calls 100");
        let report = program.attach(CALLS).interrupt();
        assert_eq!(count(&report, "calls", "leaf"), 0);
        let (status, errors) = program.end("exit 7");
        assert_eq!((status.code(), errors.as_str()), (Some(7), ""));
    }
}

#[test]
fn a_script_of_the_start_and_one_that_is_attached_have_variables_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (script, output) = (folder.path().join("start.mm"), folder.path().join("start.json"));
    fs::write(&script, CALLS).unwrap();
    let options = ["--control", "-o", output.to_str().unwrap(), script.to_str().unwrap()];
    let mut program = Program::start(&compile("fixtures/attached.c", &["-O2"], Gcc), &options);
    program.tell("calls 100");
    let attached = program.attach(CALLS);
    attached.assert_attached();
    program.tell("calls 10");
    let report = attached.interrupt();
    assert_eq!(count(&report, "calls", "leaf"), 10);
    assert_eq!(program.tell("code"), "same", "the first script's probes are on, as at the start");
    program.tell("calls 1");
    assert_eq!(program.end("exit 0").0.code(), Some(0));
    let report = serde_json::from_str(&fs::read_to_string(output).unwrap()).unwrap();
    assert_eq!(count(&report, "calls", "leaf"), 111);
}

/// Executors run the code all the time, and rings are full.
#[test]
fn scripts_come_and_go_while_threads_call() {
    let mut program = Program::usual();
    let always = program.attach(CALLS);
    always.assert_attached();
    program.tell("spin");
    for round in 0..20 {
        let attached = program.attach(if round % 2 == 0 { CALLS } else { PAIRS });
        attached.assert_attached();
        let report = attached.interrupt();
        let (leaf, outer) = (count(&report, "calls", "leaf"), count(&report, "calls", "outer"));
        // Each thread is in at most one call to `outer` at either end.
        assert!(leaf.abs_diff(10 * outer) <= 3 * 10, "{leaf} {outer}");
        if round % 2 == 1 {
            let paired = count(&report, "paired", "leaf");
            assert!(paired <= leaf && leaf - paired <= 3, "{paired} of {leaf}");
        }
    }
    let calls: u64 = program.tell("stop").parse().unwrap();
    let report = always.interrupt();
    assert_eq!((count(&report, "calls", "leaf"), count(&report, "calls", "outer")), (calls, calls / 10));
    assert_eq!(notes(&report), <[&str; 0]>::default());
    assert_eq!(program.tell("code"), "same");
    assert_eq!(program.end("exit 0").0.code(), Some(0));
}

#[test]
fn the_ends_of_calls_that_were_made_before_are_in_the_notes() {
    let mut program = Program::usual();
    assert_eq!(program.tell("open"), "open");
    let attached = program.attach(PAIRS);
    attached.assert_attached();
    program.tell("release");
    program.tell("calls 2");
    let report = attached.interrupt();
    assert_eq!((count(&report, "paired", "blocked"), count(&report, "paired", "leaf")), (0, 2));
    let [note] = notes(&report)[..] else { panic!("{report}") };
    assert!(note.starts_with("1 end of a call without a beginning") && note.ends_with(": blocked"), "{note}");
}

#[test]
fn the_report_comes_after_the_time_that_was_asked_for() {
    let program = Program::usual();
    let attached = Attached::to(program.pid(), CALLS, program.folder.path(), &["--for", "0.2"]);
    attached.assert_attached();
    assert!(attached.first.contains("observing 4 of 4 functions for 0.2 s"), "{}", attached.first);
    let (code, report, errors) = attached.finish();
    assert_eq!((code, count(&report, "calls", "leaf"), errors.as_str()), (Some(0), 0, ""));
}

/// Longer than the time limit for a client's request.
#[test]
fn a_client_may_wait_for_long() {
    let mut program = Program::usual();
    let attached = program.attach(CALLS);
    attached.assert_attached();
    std::thread::sleep(Duration::from_millis(2500));
    program.tell("calls 10");
    let report = attached.interrupt();
    assert_eq!(count(&report, "calls", "leaf"), 10, "{report:#}");
}

#[test]
fn the_report_comes_when_the_process_ends_or_calls_exec() {
    for (command, expected) in [("exit 3", "has ended"), ("exec", "calls exec")] {
        let mut program = Program::usual();
        let attached = program.attach(CALLS);
        attached.assert_attached();
        program.tell("calls 10");
        program.say(command);
        let (code, report, errors) = attached.finish();
        assert_eq!((code, count(&report, "calls", "leaf")), (Some(0), 10), "{errors}");
        assert!(errors.trim_end().ends_with(expected), "{errors}");
    }
}

/// Kills a process, and removes the socket on which it may have been listening.
fn end(process: u32) {
    kill(Pid::from_raw(process.cast_signed()), Signal::SIGKILL).unwrap();
    let _ = fs::remove_file(format!("/tmp/.fastinst-{process}"));
}

#[test]
fn forked_children_listen_and_do_not_belong_to_the_clients_of_their_parent() {
    let mut program = Program::usual();
    let attached = program.attach(CALLS);
    attached.assert_attached();
    program.tell("calls 10");
    let child: u32 = program.tell("fork").parse().unwrap();
    let mut code = String::new();
    program.output.read_line(&mut code).unwrap();
    assert_eq!(code, "same\n", "no script observes the child");
    let of_child = Attached::to(child, CALLS, program.folder.path(), &["--for", "0.5"]);
    of_child.assert_attached();
    let (code, report, _) = of_child.finish();
    assert_eq!(code, Some(0));
    assert!(count(&report, "calls", "child_work") > 0 && count(&report, "calls", "leaf") == 0, "{report}");
    // The child has no copy of the connection that would keep it open.
    end(program.pid());
    let (code, report, errors) = attached.finish();
    assert_eq!((code, report), (Some(1), Value::Null));
    assert!(errors.contains("there is no report"), "{errors}");
    end(child);
}

#[test]
fn a_client_that_is_killed_leaves_no_probes() {
    let mut program = Program::usual();
    let mut attached = program.attach(CALLS);
    attached.assert_attached();
    assert_eq!(program.tell("code"), "different");
    attached.child.kill().unwrap();
    attached.child.wait().unwrap();
    eventually(|| program.tell("code") == "same");
    assert_eq!(program.end("exit 0").1, "");
}

#[test]
fn a_script_that_fails_is_detached_and_reported() {
    let mut program = Program::usual();
    let other = program.attach(CALLS);
    let failing = program.attach(
        "report var calls: u64; native:func:entry / fname == \"leaf\" / { calls++; calls = calls / (10 - calls) * 0 + calls; }",
    );
    failing.assert_attached();
    program.tell("calls 20");
    let (code, report, errors) = failing.finish();
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("the script has failed: a rule for leaf: an integer was divided by zero"),
        "{errors}"
    );
    assert_eq!(report["values"]["calls"], 10, "{report}");
    assert_eq!(count(&other.interrupt(), "calls", "leaf"), 20);
    assert_eq!(program.end("exit 0").1, "");
}

#[test]
fn mistakes_are_named() {
    #[track_caller]
    fn refused(attached: Attached, code: i32, expected: &str) {
        let first = attached.first.clone();
        let (found, report, errors) = attached.finish();
        assert_eq!((found, report), (Some(code), Value::Null));
        assert!(format!("{first}{errors}").contains(expected), "{first}{errors}");
    }
    let program = Program::usual();
    refused(program.attach("native:func:entry { calls++; }"), 2, "is not a valid script");
    refused(program.attach("wasm:func:entry { }"), 2, "is not a valid script");
    refused(Attached::to(4_194_305, CALLS, program.folder.path(), &[]), 1, "there is no process 4194305");
    let own = std::process::id();
    refused(
        Attached::to(own, CALLS, program.folder.path(), &[]),
        1,
        "does not listen; start it with fastinst run",
    );
    let missing = ["-o", "/no/such/folder/report.json"];
    refused(Attached::to(program.pid(), CALLS, program.folder.path(), &missing), 2, "/no/such/folder");
}

/// A process that may connect may also send anything.
#[test]
fn the_socket_survives_what_is_not_a_client() {
    let mut program = Program::usual();
    let connect = || UnixStream::connect(format!("/tmp/.fastinst-{}", program.pid())).expect("it listens");
    let answer = |sent: &[u8]| {
        let mut stream = connect();
        // The program may refuse before everything is sent.
        let _ = stream.write_all(sent);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    for sent in [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"{\"version\":1,\"name\":1}\n"] {
        assert!(answer(sent).contains("not a request"), "{}", sent.escape_ascii());
    }
    let request = |version: u32, source: &str, format: &str| {
        answer(
            format!(
                "{}\n",
                serde_json::json!({
                    "version": version, "name": "n", "source": source, "format": format,
                })
            )
            .as_bytes(),
        )
    };
    assert!(request(7, CALLS, "json").contains("speaks version 1"));
    assert!(request(1, CALLS, "xml").contains("format=xml"));
    assert!(request(1, "native:func", "json").contains("n is not a valid script"));
    let long = vec![b'x'; 17 << 20];
    answer(&long);
    let silent: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    let attached = program.attach(CALLS);
    attached.assert_attached();
    program.tell("calls 10");
    let report = attached.interrupt();
    assert_eq!(count(&report, "calls", "leaf"), 10);
    drop(silent);
    assert_eq!(program.end("exit 0").1, "");
}

/// Daemons do this.
#[test]
fn a_program_may_close_all_descriptors() {
    let mut program = Program::usual();
    let attached = program.attach(CALLS);
    attached.assert_attached();
    program.tell("calls 10");
    assert_eq!(program.tell("close"), "closed");
    program.tell("calls 10");
    // The connection is gone.
    attached.signal(Signal::SIGINT);
    let (code, report, _) = attached.finish();
    assert_eq!((code, report), (Some(1), Value::Null));
    eventually(|| program.tell("code") == "same");
    // Scripts can be attached again, through another socket.
    eventually(|| {
        Attached::to(program.pid(), CALLS, program.folder.path(), &["--for", "0.01"]).finish().0 == Some(0)
    });
    assert_eq!(program.tell("opened"), "997", "the files are still there, and empty");
    let (status, errors) = program.end("exit 5");
    assert_eq!((status.code(), errors.as_str()), (Some(5), ""));
}

/// Probes of rules that act on the first event only are off afterwards, while others stay on.
#[test]
fn probes_of_rules_of_once_are_switched_off() {
    let mut program = Program::start(&compile("fixtures/attached.c", &["-O2"], Gcc), &["--control"]);
    let once = program.attach(
        "report var first: map<str, u64>; @once native:func:entry / fname == \"leaf\" / { first[fname]++; }
         @once native:func:exit / fname == \"leaf\" && duration >= 0 / { first[\"exit\"]++; }",
    );
    once.assert_attached();
    assert_eq!(program.tell("code"), "different");
    program.tell("calls 100");
    eventually(|| program.tell("code") == "same");
    let other = program.attach(CALLS);
    other.assert_attached();
    assert_eq!(program.tell("code"), "different");
    program.tell("calls 40");
    assert_eq!(count(&other.interrupt(), "calls", "leaf"), 40);
    let report = once.interrupt();
    assert_eq!(notes(&report), <[&str; 0]>::default());
    let mut rows = report["tables"][0]["rows"].as_array().unwrap().clone();
    rows.sort_by_key(|row| row[0].to_string());
    assert_eq!(rows, [serde_json::json!(["exit", 1]), serde_json::json!(["leaf", 1])]);
    assert_eq!(program.end("exit 0").0.code(), Some(0));
}

/// The depth counts all functions that rules match, including those whose rules have finished.
#[test]
fn depths_do_not_change_when_a_rule_of_once_is_done() {
    let mut program = Program::start(&compile("fixtures/attached.c", &["-O2"], Gcc), &["--control"]);
    let attached = program.attach(
        "@once native:func:entry / fname == \"outer\" / { }
         report var depths: map<u32, u64>; native:func:entry / fname == \"leaf\" / { depths[depth]++; }",
    );
    attached.assert_attached();
    program.tell("calls 10");
    // All events so far have been passed to the rules when the report of another script arrives.
    drop(program.attach(CALLS).interrupt());
    program.tell("calls 20");
    let report = attached.interrupt();
    assert_eq!(report["tables"][0]["rows"], serde_json::json!([[2, 30]]));
    assert_eq!(program.end("exit 0").0.code(), Some(0));
}

/// Scripts that ask for other arguments of the same function, one after the other.
#[test]
fn scripts_with_arguments_are_attached() {
    let mut program = Program::start(&compile("fixtures/attached.c", &["-O2", "-g"], Gcc), &["--control"]);
    program.tell("calls 3");
    let entries =
        program.attach("native:func:entry(args.x: u64) { report var sum: u64; sum = sum + args.x; }");
    entries.assert_attached();
    program.tell("calls 10");
    let exits = program.attach("native:func:exit(arg0: u32) { report var sum: u32; sum = sum + arg0; }");
    exits.assert_attached();
    let plain = program.attach(CALLS);
    plain.assert_attached();
    program.tell("calls 5");
    assert_eq!(count(&plain.interrupt(), "calls", "leaf"), 5);
    let report = entries.interrupt();
    assert_eq!((count(&report, "sum", "leaf"), count(&report, "sum", "outer")), (45 + 10, 0));
    assert_eq!(notes(&report), <[&str; 0]>::default());
    program.tell("calls 4");
    let report = exits.interrupt();
    assert_eq!((count(&report, "sum", "leaf"), count(&report, "sum", "outer")), (10 + 6, 5 + 4));
    assert_eq!(notes(&report), <[&str; 0]>::default());
    assert_eq!(program.tell("code"), "same");
    assert_eq!(program.end("exit 0").0.code(), Some(0));
}

/// The fixture with a script that SIGUSR2 toggles, which writes its report to a file.
struct Switched {
    program: Program,
    errors: BufReader<std::process::ChildStderr>,
}

impl Switched {
    /// `before` is executed by a shell before the program is started.
    fn start(script: &str, before: &str) -> Self {
        let binary = compile("fixtures/attached.c", &["-O2"], Gcc);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script.mm");
        fs::write(&file, script).unwrap();
        let mut command = bare(Path::new("/bin/sh"), &[]);
        command.arg("-c").arg(format!("{before} exec \"$@\"")).arg("sh").arg(fastinst());
        command.args(["run", "--toggle", "-o"]).arg(folder.path().join("report.json"));
        command.arg(&file).arg("--").arg(binary);
        let mut program = Program::of(command);
        program.folder = folder;
        let errors = BufReader::new(program.child.stderr.take().unwrap());
        Self { program, errors }
    }

    /// The next line on standard error, which comes soon.
    #[track_caller]
    fn line(&mut self) -> String {
        if self.errors.buffer().is_empty() {
            let mut awaited = [PollFd::new(self.errors.get_ref().as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut awaited, 20_000_u16), Ok(1), "it says nothing");
        }
        let mut line = String::new();
        self.errors.read_line(&mut line).unwrap();
        line
    }

    /// Sends the signal to a process of the program, and waits until it has had the expected
    /// effect.
    #[track_caller]
    fn switch(&mut self, process: u32, expected: &str) {
        kill(Pid::from_raw(process.cast_signed()), Signal::SIGUSR2).unwrap();
        let line = self.line();
        assert!(line.contains(expected), "{line}");
    }

    fn report(&self, file: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.program.folder.path().join(file)).unwrap()).unwrap()
    }

    /// Ends the program, and returns the report.
    #[track_caller]
    fn end(mut self) -> Value {
        self.program.say("exit 3");
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).unwrap();
        assert_eq!((self.program.child.wait().unwrap().code(), errors.as_str()), (Some(3), ""));
        self.report("report.json")
    }
}

#[test]
fn a_signal_switches_the_script_of_the_start() {
    let mut switched = Switched::start(PAIRS, "");
    let process = switched.program.pid();
    let check = |report: &Value, calls: u64, times: &str| {
        let found = ["calls", "paired"].map(|variable| count(report, variable, "leaf"));
        assert_eq!(found, [calls; 2], "{report}");
        let [note] = notes(report)[..] else { panic!("{report}") };
        assert!(note.contains(times), "{note}");
    };
    switched.program.tell("calls 500");
    assert_eq!(switched.program.tell("code"), "same");
    for (calls, sum) in [(100, 100), (20, 120)] {
        switched.switch(process, "is switched on: observing 4 of 4 functions");
        assert_eq!(switched.program.tell("code"), "different");
        switched.program.tell(&format!("calls {calls}"));
        switched.switch(process, "is switched off");
        assert_eq!(switched.program.tell("code"), "same");
        let times = if calls == 100 { "switched on 1 times" } else { "switched on 2 times" };
        check(&switched.report("report.json"), sum, times);
        switched.program.tell("calls 7");
    }
    switched.switch(process, "is switched on");
    switched.program.tell("calls 3");
    check(&switched.end(), 123, "switched on 3 times");
}

/// A call that was open when the script was switched off, and ends when it is on again, has no
/// entry.
#[test]
fn calls_do_not_outlast_the_time_for_which_a_script_is_on() {
    let mut switched = Switched::start(PAIRS, "");
    let process = switched.program.pid();
    switched.switch(process, "is switched on");
    assert_eq!(switched.program.tell("open"), "open");
    switched.switch(process, "is switched off");
    switched.switch(process, "is switched on");
    assert_eq!(switched.program.tell("release"), "released");
    switched.switch(process, "is switched off");
    let report = switched.report("report.json");
    assert_eq!((count(&report, "calls", "blocked"), count(&report, "paired", "blocked")), (1, 0), "{report}");
    assert!(
        notes(&report).iter().any(|note| note.starts_with("1 end of a call without a beginning")),
        "{report}"
    );
    switched.end();
}

#[test]
fn a_forked_child_is_switched_by_itself() {
    let mut switched = Switched::start(CALLS, "");
    let parent = switched.program.pid();
    let child: u32 = switched.program.tell("fork").parse().unwrap();
    let mut code = String::new();
    switched.program.output.read_line(&mut code).unwrap();
    assert_eq!(code, "same\n");
    switched.switch(child, "is switched on");
    assert_eq!(switched.program.tell("code"), "same", "the parent is off");
    let of_child = format!("report.{child}.json");
    // The child calls it about once per millisecond.
    eventually(|| {
        switched.switch(child, "is switched off");
        let report = switched.report(&of_child);
        switched.switch(child, "is switched on");
        count(&report, "calls", "child_work") > 0
    });
    switched.switch(parent, "is switched on");
    switched.program.tell("calls 9");
    switched.switch(parent, "is switched off");
    let report = switched.report("report.json");
    assert_eq!((count(&report, "calls", "leaf"), count(&report, "calls", "child_work")), (9, 0), "{report}");
    end(child);
    switched.end();
}

/// The program's handler is called, and a message says that the script is not toggled.
#[test]
fn a_program_keeps_its_own_handler() {
    let mut switched = Switched::start(CALLS, "");
    let process = switched.program.pid();
    switched.program.tell("handle");
    let line = switched.line();
    assert!(line.contains("the program uses SIGUSR2 itself"), "{line}");
    kill(Pid::from_raw(process.cast_signed()), Signal::SIGUSR2).unwrap();
    eventually(|| switched.program.tell("handled") == "1");
    assert_eq!(switched.program.tell("code"), "same");
    switched.end();
}

/// As under nohup, but for another signal: it stays ignored.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let mut switched = Switched::start(CALLS, "trap '' USR2;");
    let process = switched.program.pid();
    let line = switched.line();
    assert!(line.contains("SIGUSR2 is ignored or handled in this process already"), "{line}");
    kill(Pid::from_raw(process.cast_signed()), Signal::SIGUSR2).unwrap();
    switched.program.tell("calls 3");
    assert_eq!(switched.program.tell("code"), "same");
    let report = switched.end();
    assert_eq!((count(&report, "calls", "leaf"), notes(&report).len()), (0, 1), "{report}");
}
