//! `wasm-jit debug`: sessions in a terminal, attached to a running program, and by the GDB remote
//! protocol. The C program is compiled by clang, with DWARF.

mod gdb;
mod inlined;
mod recorded;
mod signals;
mod source;
mod terminal;
mod traps;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Loops until its global is set.
const LOOPS: &str = r#"(module (global $stop (mut i32) (i32.const 0)) (memory (export "memory") 1)
    (func $turn (param $count i64) (result i64) (i64.add (local.get $count) (i64.const 1)))
    (func $main (export "main") (result i32) (local $count i64)
        (loop $again
            (local.set $count (call $turn (local.get $count)))
            (br_if $again (i32.eqz (global.get $stop))))
        (global.get $stop)))"#;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        std::fs::write(place.path("loops.wat"), LOOPS).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles `points.c`.
    fn points(&self) {
        self.points_for("wasm32");
    }

    fn points_for(&self, target: &str) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/debug/points.c");
        std::fs::copy(source, self.path("points.c")).unwrap();
        let clang = Command::new("clang")
            .args([
                &format!("--target={target}"),
                "-O0",
                "-g",
                "-nostdlib",
                "-Wl,--no-entry",
                "points.c",
                "-o",
                "points.wasm",
            ])
            .current_dir(self.dir.path())
            .output()
            .expect("clang can be started");
        assert!(clang.status.success(), "{}", String::from_utf8_lossy(&clang.stderr));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        command.args(arguments).current_dir(self.dir.path()).env("XDG_STATE_HOME", self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A command that hangs is ended. SAFETY: both are async-signal-safe, and alarm is
        // preserved by exec.
        unsafe {
            command.pre_exec(|| {
                libc::alarm(60);
                // Tests may run in the background, where Ctrl-C is ignored.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        command
    }

    /// Executes commands of the debugger; returns all that it prints, without the directory.
    fn session(&self, commands: &[&str], program: &[&str]) -> String {
        let mut arguments = vec!["debug", "--batch"];
        commands.iter().for_each(|command| arguments.extend(["--command", command]));
        arguments.extend(program);
        let output = self.command(&arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        let directory = format!("{}/", std::fs::canonicalize(self.dir.path()).unwrap().display());
        text.replace(&directory, "")
    }
}

#[test]
fn a_c_program_is_debugged_by_its_source() {
    let place = Place::new();
    place.points();
    let commands = [
        "break points.c:8 if i == 1",
        "run",
        "print sum",
        "print *p",
        "print p->next->y",
        "print &total",
        "next",
        "print sum",
        "backtrace",
        "delete 1",
        "finish",
        "up",
    ];
    let text = place.session(&commands, &["--invoke", "main", "points.wasm", "3"]);
    let offsets = |text: &str| {
        let hide = |word: &str| if word.starts_with("0x") { "0x".to_owned() } else { word.to_owned() };
        let line = |line: &str| line.split(' ').map(hide).collect::<Vec<_>>().join(" ");
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let text = offsets(&text);
    let expected = "(wasm-jit) break points.c:8 if i == 1
Breakpoint 1: 0x add at points.c:8
(wasm-jit) run
Breakpoint 1, 0x add at points.c:8
8\t    sum += p->x + p->y;
(wasm-jit) print sum
3
(wasm-jit) print *p
{x = 1, y = 2, next = 0x
(wasm-jit) print p->next->y
4
(wasm-jit) print &total
0x
(wasm-jit) next
0x add at points.c:9
9\t    total += sum;
(wasm-jit) print sum
6
(wasm-jit) backtrace
";
    let rest = text.strip_prefix(expected).unwrap_or_else(|| panic!("{text}"));
    assert!(rest.contains("add (p=") && rest.contains(", n=3) at points.c:9"), "{text}");
    assert!(rest.contains("Returned: 9\n"), "{text}");
    assert!(rest.contains("0x run at points.c:18"), "{text}");
    assert!(rest.ends_with("wasm-jit: `up`: this is the outermost frame"), "{text}");
}

#[test]
fn variables_of_the_source_are_shown_by_their_names() {
    let place = Place::new();
    place.points();
    let commands = [
        "tbreak points.c:19",
        "run",
        "info locals",
        "print way",
        "print/x way",
        "print way == 5",
        "print sizeof(struct point) + 100 * sizeof(a.next) + 1000 * sizeof(*a.next) + 100000 * sizeof(int)",
        "print sizeof(char *) + 10 * sizeof names + 1000 * sizeof(enum way)",
        "print sizeof(names)[0] + 10 * sizeof(a).next + 100 * sizeof (a.next)->next->x + 1000 * sizeof(names)",
        "print way == 4 ? 1 : n ? first : second",
        "info threads",
        "break points.c:19 if way == 0",
        "info locals all",
        "frame",
    ];
    let text = place.session(&commands, &["--invoke", "main", "points.wasm", "3"]);
    let answer = |command: &str| {
        let after = text.split_once(&format!("(wasm-jit) {command}\n")).unwrap_or_else(|| panic!("{text}")).1;
        after.split("(wasm-jit) ").next().unwrap().to_owned()
    };
    let locals = answer("info locals");
    assert!(locals.contains("way = RIGHT\n") && locals.contains("first = 9\n"), "{locals}");
    assert!(locals.contains("n = 3\n") && !locals.contains('$'), "{locals}");
    assert_eq!(
        [answer("print way"), answer("print/x way"), answer("print way == 5")],
        ["RIGHT\n", "0x5\n", "1\n"]
    );
    assert_eq!(answer("print way == 4 ? 1 : n ? first : second"), "9\n");
    assert!(text.contains("sizeof(int)\n412412\n"), "{text}");
    assert!(text.contains("sizeof(names)\n8444\n"), "{text}");
    assert!(text.contains("sizeof(enum way)\n4084\n"), "{text}");
    let threads = answer("info threads");
    assert!(threads.starts_with("* 1   0x") && threads.ends_with(" run at points.c:19\n"), "{threads}");
    let all = answer("info locals all");
    assert!(all.starts_with(&locals) && all.contains("$local0 = 3\n"), "{all}");
    assert!(answer("frame").contains(" run (n=3) at points.c:19"), "{text}");
}

#[test]
fn values_are_changed_and_the_program_runs_again() {
    let place = Place::new();
    place.points();
    let commands = [
        "tbreak points.c:19",
        "run",
        "set first = 100",
        "set a.next->x = 10",
        "set total = 0",
        "continue",
        "run",
        "info breakpoints",
    ];
    let text = place.session(&commands, &["--invoke", "main", "points.wasm", "2"]);
    // (1 + 2) * 2 + (3 + 4) * 2 + 1 without changes.
    assert!(text.contains("(wasm-jit) continue\n129\nThe program has ended"), "{text}");
    assert!(text.contains("(wasm-jit) run\n21\nThe program has ended"), "{text}");
    assert!(text.ends_with("no breakpoints\n"), "{text}");
}

#[test]
fn pointers_of_programs_with_64_bit_memories_have_8_bytes() {
    let place = Place::new();
    place.points_for("wasm64");
    let commands = [
        "tbreak points.c:19",
        "run",
        "print sizeof(char *) + 10 * sizeof(a.next) + 100 * sizeof(names)",
        "print a.next == &b",
        "print a.next->y",
        "print names[1][2] == 'o'",
        "set var a.next = 4294967297",
        "print a.next",
    ];
    let text = place.session(&commands, &["--invoke", "main", "points.wasm", "3"]);
    assert!(text.contains("sizeof(names)\n1688\n"), "{text}");
    assert!(text.contains("a.next == &b\n1\n"), "{text}");
    assert!(text.contains("a.next->y\n4\n"), "{text}");
    assert!(text.contains("names[1][2] == 'o'\n1\n"), "{text}");
    assert!(text.ends_with("print a.next\n0x100000001\n"), "{text}");
}

#[test]
fn conditions_with_unknown_names_are_refused() {
    let place = Place::new();
    place.points();
    for (commands, name) in [
        (&["break points.c:8 if i == 1 && summ > 2"][..], "summ"),
        // In scope in another function.
        (&["tbreak points.c:8 if way == 5"], "way"),
        (&["break add", "condition 1 sizeof(struct pint) == 4"], "struct pint"),
        (&["watch total if totl > 3"], "totl"),
    ] {
        let text = place.session(commands, &["--invoke", "main", "points.wasm", "2"]);
        let last = text.lines().last().unwrap();
        assert!(last.contains(": there is no ") && last.ends_with(&format!("`{name}`")), "{text}");
    }
}

/// Values are written as they are shown.
#[test]
fn vectors_and_special_floats_are_changed() {
    let place = Place::new();
    let program = "(module (func $f (export \"main\") (param $n i32) (result i32)
        (local $v v128) (local $x f64)
        (local.set $v (v128.const i32x4 1 2 3 4))
        (nop)
        (i32.add (i32x4.extract_lane 3 (local.get $v)) (f64.eq (local.get $x) (f64.const inf)))))";
    std::fs::write(place.path("vector.wat"), program).unwrap();
    let commands = [
        "break f",
        "run",
        "stepi 3",
        "print $v",
        "print $v == 0x00000004000000030000000200000001",
        "set var $v = 0x00000028000000030000000200000001",
        "set $x = inf",
        "print $x - $x == NaN",
        "continue",
    ];
    let text = place.session(&commands, &["--invoke", "main", "vector.wat", "1"]);
    for expected in [
        "print $v\n0x00000004000000030000000200000001\n",
        "print $v == 0x00000004000000030000000200000001\n1\n",
        "print $x - $x == NaN\n0\n",
        "continue\n41\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for (command, expected) in [
        ("set $v = 3", "3 is no value for the local: a vector is written as 0x and its 32 digits"),
        ("set $n = 0x00000028000000030000000200000001", "0001 is no value for the local\n"),
    ] {
        let text = place.session(&["break f", "run", command], &["--invoke", "main", "vector.wat", "1"]);
        assert!(text.contains(expected), "{command}: {text}");
    }
}

#[test]
fn long_strings_are_shown_in_parts() {
    let place = Place::new();
    let data = "abcdefghij".repeat(105);
    let program =
        format!("(module (memory 1) (data (i32.const 0) \"{data}\\00next\") (func $f (export \"main\")))");
    std::fs::write(place.path("string.wat"), program).unwrap();
    let text = place.session(&["break f", "run", "x/3s 0"], &["--invoke", "main", "string.wat"]);
    let (first, second) = data.split_at(1000);
    let expected = format!("0x0:\t{first:?}\n0x3e8:\t{second:?}\n0x41b:\t\"next\"\n");
    assert!(text.ends_with(&expected), "{text}");
}

#[test]
fn a_trap_is_reported_with_its_frames() {
    let place = Place::new();
    std::fs::write(place.path("trap.wat"), "(module (func $f (export \"main\") (unreachable)))").unwrap();
    let text = place.session(
        &["break f", "run", "catch off", "continue", "backtrace"],
        &["--invoke", "main", "trap.wat"],
    );
    assert!(text.contains("=> 0x21\tunreachable"), "{text}");
    assert!(
        text.contains("The program has failed: wasm trap: wasm `unreachable` instruction executed"),
        "{text}"
    );
    assert!(text.contains("!f"), "{text}");
    assert!(text.contains("the program does not run"), "{text}");
}

#[test]
fn mistakes_in_commands_say_what_is_wrong() {
    let place = Place::new();
    #[track_caller]
    fn check(place: &Place, command: &str, expected: &str) {
        let text = place.session(&[command], &["--invoke", "main", "loops.wat"]);
        assert!(text.contains(expected), "{command}: {text}");
    }
    check(&place, "brake main", "there is no command `brake`");
    check(&place, "break other", "there is no function with code `other`");
    check(&place, "break main if 1 +", "expected a value");
    check(&place, "print 1", "the program is not stopped");
    check(&place, "continue", "the program does not run");
    check(&place, "step x", "`x` is no count");
    check(&place, "delete 7", "there is no breakpoint 7");
    check(&place, "x/q 1", "`/q` is no format");
    check(&place, "set 5", "set PLACE = EXPRESSION");
    check(&place, "info nothing", "info breakpoints|locals");
    check(&place, "info threads", "no thread has stopped");
    check(&place, "watch 3", "the value of `3` never changes");
    check(&place, "watch 1 + -2", "never changes");
    check(&place, "watch i32[65533]", "the address 65533 is outside of the memory, which has 65536 bytes");
    check(&place, "watch u8[2 * 65536]", "is outside of the memory");
    check(&place, "watch i32[65532]", "Watchpoint 1: i32[65532]");
    check(&place, "list", "the program does not run");
    check(&place, "detach", "the debugger has started the program itself: kill ends it");
    let timeout = place.command(&["debug", "--timeout", "1s", "loops.wat"]).output().unwrap();
    assert_eq!(timeout.status.code(), Some(2));
}

#[test]
fn a_running_program_is_attached_to() {
    let place = Place::new();
    let mut program =
        place.command(&["run", "--debug-port", "socket", "--invoke", "main", "loops.wat"]).spawn().unwrap();
    let socket = place.path("socket");
    while !socket.exists() {
        std::thread::yield_now();
    }
    // A first one looks, and goes.
    let look = |commands: &str| {
        let mut debugger =
            place.command(&["debug", "--connect", "socket"]).stdin(Stdio::piped()).spawn().unwrap();
        debugger.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let output = debugger.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = look("backtrace\nbreak turn\ncontinue\nprint $count >= 0\nquit\n");
    assert!(text.contains("Paused"), "{text}");
    assert!(text.contains("Breakpoint 1, "), "{text}");
    assert!(text.contains("\n1\n"), "{text}");
    let text = look("break turn\ncontinue\ndetach\nprint 1234\n");
    assert!(text.contains("Breakpoint 2, ") && !text.contains("1234"), "{text}");
    // The program goes on, without the breakpoints.
    let text = look("info breakpoints\nset $stop = 7\ncontinue\n");
    assert!(text.contains("no breakpoints"), "{text}");
    assert!(text.contains("The program has ended"), "{text}");
    let mut printed = String::new();
    program.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!((printed.as_str(), program.wait().unwrap().code()), ("7\n", Some(0)));
    assert!(!socket.exists());
}

/// Writes a program; returns its name.
fn program(place: &Place, text: &str) -> &'static str {
    std::fs::write(place.path("program.wat"), text).unwrap();
    "program.wat"
}

/// Starts a program to which debuggers can be attached; returns it, the lines that it writes to
/// standard error after the address, and the address.
fn attachable(
    place: &Place,
    program: &[&str],
) -> (std::process::Child, impl Iterator<Item = String> + use<>, String) {
    let arguments: Vec<&str> = ["run", "--debug-port", "0"].iter().chain(program).copied().collect();
    let mut child = place.command(&arguments).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let address = said.next().unwrap().rsplit(' ').next().unwrap().to_owned();
    (child, said, address)
}

/// Starts a program with a server for the GDB protocol; returns it and the port.
fn server(place: &Place, program: &[&str]) -> (std::process::Child, u16) {
    let arguments: Vec<&str> = ["debug", "--gdb-server", "0"].iter().chain(program).copied().collect();
    let mut child = place.command(&arguments).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    let port = said.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    (child, port.unwrap_or_else(|| panic!("{said}")))
}
