//! The command `wasm-jit` with programs that wait or have threads, and with modules that are not
//! programs.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn fifo(&self, name: &str) {
        let path = CString::new(self.path(name).as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        // SIGALRM ends a command that hangs: then there is no exit code.
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        // SAFETY: both are async-signal-safe, and alarm is preserved by exec.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                libc::alarm(30);
                // Tests may run in the background, where Ctrl-C is ignored.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    fn check(&self, arguments: &[&str], code: i32, stdout: &str, stderr: &[&str]) {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        let found = (output.status.code(), String::from_utf8(output.stdout).unwrap());
        assert_eq!(found, (Some(code), stdout.to_owned()), "{arguments:?}: {said}");
        for part in stderr {
            assert!(said.contains(part), "{arguments:?}: `{part}` is not in:\n{said}");
        }
    }
}

/// Opens `fifo` in the first directory with the requested rights, then reads or writes repeatedly.
const USES_FIFO: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "fifo")
    ;; One buffer of 4096 bytes.
    (data (i32.const 16) "\00\10\00\00\00\10\00\00")
    (func $fifo (param $rights i64) (result i32)
        (if (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 0)
                (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 32))
            (then unreachable))
        (i32.load (i32.const 32)))
    ;; Nobody opens the other end.
    (func (export "open to read") (drop (call $fifo (i64.const 2))))
    (func (export "open to write") (drop (call $fifo (i64.const 64))))
    ;; The program has both ends.
    (func (export "read")
        (local $fd i32)
        (local.set $fd (call $fifo (i64.const 66)))
        (drop (call $read (local.get $fd) (i32.const 16) (i32.const 1) (i32.const 40))))
    (func (export "write")
        (local $fd i32)
        (local.set $fd (call $fifo (i64.const 66)))
        (loop $again
            (br_if $again
                (i32.eqz (call $write (local.get $fd) (i32.const 16) (i32.const 1) (i32.const 40)))))))"#;

#[test]
fn time_runs_out_for_a_program_that_waits_for_a_fifo() {
    let place = Place::new();
    place.text("fifo.wat", USES_FIFO);
    place.fifo("fifo");
    for function in ["open to read", "open to write", "read", "write"] {
        let arguments = ["run", "--timeout", "1s", "--dir", ".::/", "--invoke", function, "fifo.wat"];
        place.check(&arguments, 134, "", &["1s", "wasm trap: interrupt", "fifo.wat"]);
    }
}

/// Sends the program's thread a signal that does not concern it, while it waits.
fn signal_when_it_waits(process: u32) {
    let tasks = format!("/proc/{process}/task");
    let waiting = |task: &std::path::Path| -> Option<i32> {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        // The pid, the name in parentheses, the state.
        stat.contains("(program) S ").then(|| stat.split(' ').next()?.parse().ok())?
    };
    let thread = loop {
        let mut tasks = std::fs::read_dir(&tasks).unwrap();
        match tasks.find_map(|task| waiting(&task.ok()?.path())) {
            Some(thread) => break thread,
            None => std::thread::yield_now(),
        }
    };
    // SAFETY: sends a signal.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
    assert_eq!(sent, 0);
}

#[test]
fn a_signal_that_is_not_for_the_program_ends_no_wait() {
    let place = Place::new();
    place.text(
        "wait.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "path_open"
                (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "fifo")
            (data (i32.const 16) "\40\00\00\00\01\00\00\00")
            (func $check (param $error i32) (if (local.get $error) (then (call $exit (local.get $error)))))
            (func (export "_start")
                (call $check (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 0)
                    (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 32)))
                (call $check
                    (call $read (i32.load (i32.const 32)) (i32.const 16) (i32.const 1) (i32.const 40)))
                (call $check (call $read (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 40)))
                (call $exit (i32.const 100))))"#,
    );
    place.fifo("fifo");
    let mut command = place.command(&["run", "--timeout", "1h", "--dir", ".::/", "wait.wat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let signal = || (0..20).for_each(|_| signal_when_it_waits(child.id()));
    // It waits for the FIFO to be opened, then for data from the FIFO, then for its input.
    signal();
    let mut writer = std::fs::File::options().write(true).open(place.path("fifo")).unwrap();
    signal();
    writer.write_all(b"x").unwrap();
    signal();
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(100), "EINTR is 27");
}

/// The module is a FIFO that nobody writes to. Signals for monitors are kept.
#[test]
fn a_signal_ends_a_command_that_loads_a_module() {
    for (command, signal) in [
        (&["run", "--monitors=icount", "module.wasm"][..], Signal::SIGTERM),
        (&["debug", "--monitors=icount", "module.wasm"], Signal::SIGINT),
    ] {
        let place = Place::new();
        place.fifo("module.wasm");
        let mut child = place.command(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Can be opened when the command reads it.
        let writer = loop {
            let mut options = std::fs::OpenOptions::new();
            match options.write(true).custom_flags(libc::O_NONBLOCK).open(place.path("module.wasm")) {
                Ok(writer) => break writer,
                Err(_) => assert!(child.try_wait().unwrap().is_none(), "{command:?}"),
            }
        };
        for signal in [Signal::SIGUSR1, signal] {
            kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        }
        assert_eq!(child.wait().unwrap().signal(), Some(signal as i32), "{command:?}");
        drop(writer);
    }
}

#[test]
fn a_shared_memory_may_be_imported_by_any_names() {
    let place = Place::new();
    for (file, names) in [("a.wat", r#""foo" "bar""#), ("b.wat", r#""env" "memory""#), ("c.wat", r#""" """#)]
    {
        place.text(
            file,
            &r#"(module
                (import NAMES (memory $shared 1 1 shared))
                (import NAMES (memory $again 1 1 shared))
                (import "wasi" "thread-spawn" (func $spawn (param i32) (result i32)))
                (func (export "wasi_thread_start") (param i32 i32)
                    (i32.atomic.store (i32.const 0) (local.get 1))
                    (drop (memory.atomic.notify (i32.const 0) (i32.const 1))))
                (func (export "run") (result i32)
                    (if (i32.le_s (call $spawn (i32.const 7)) (i32.const 0)) (then unreachable))
                    (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))
                    (i32.atomic.load $again (i32.const 0))))"#
                .replace("NAMES", names),
        );
        place.check(&["run", "--invoke", "run", file], 0, "7\n", &[]);
    }
    place.text(
        "two.wat",
        r#"(module
            (import "a" "one" (memory $one 1 1 shared))
            (import "a" "two" (memory $two 1 1 shared))
            (func (export "run") (result i32)
                (i32.atomic.store $one (i32.const 0) (i32.const 3))
                (i32.atomic.load $two (i32.const 0))))"#,
    );
    place.check(&["run", "--invoke", "run", "two.wat"], 0, "0\n", &[]);
}

#[test]
fn a_library_is_not_a_program() {
    let place = Place::new();
    let refused = &["no function is exported as `_start`", "--invoke"][..];
    place.text("reactor.wat", r#"(module (func (export "_initialize") unreachable) (func (export "f")))"#);
    place.check(&["run", "reactor.wat"], 1, "", refused);
    place.text("library.wat", r#"(module (func (export "f")))"#);
    place.check(&["run", "library.wat"], 1, "", refused);
    place.text("global.wat", r#"(module (global (export "_start") i32 (i32.const 1)))"#);
    place.check(&["run", "global.wat"], 1, "", refused);
    place.check(&["run", "--invoke", "f", "library.wat"], 0, "", &[]);
    place.text("start.wat", r#"(module (func $f) (start $f))"#);
    place.check(&["run", "start.wat"], 0, "", &[]);
}

#[test]
fn names_of_imports_are_escaped() {
    let place = Place::new();
    place.text("hostile.wat", r#"(module (import "\1b[2J" "\07" (func)) (func (export "_start")))"#);
    place.check(&["run", "hostile.wat"], 1, "", &[r"unknown import: `\u{1b}[2J` `\u{7}`"]);
}

/// The report waits until the test reads, since the program has filled the pipe, and time is up
/// meanwhile.
#[test]
fn programs_that_have_trapped_before_have_not_timed_out() {
    let place = Place::new();
    place.text(
        "app.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 2)
            (data (i32.const 0) "\10\00\00\00\00\00\01\00")
            (func (export "_start")
                (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)))
                unreachable))"#,
    );
    let mut command = place.command(&["run", "--timeout=500ms", "--monitors=icount", "app.wat"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_secs(1));
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(134));
    // On a busy machine, time may be up before.
    let stderr = String::from_utf8_lossy(&ran.stderr);
    let [has_trapped, has_timed_out] = ["unreachable", "timed out"].map(|why| stderr.contains(why));
    assert!(has_trapped != has_timed_out, "{}", stderr.trim_start_matches('\0'));
}
