//! Where commands write files: the option `-o`.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use nix::sys::stat::Mode;
use tempfile::TempDir;

const PROGRAM: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;

const SCRIPT: &str = "report var n: u64;\nwasm:opcode:call:before { n++; }\n";

/// A folder with a program, a script and a trace.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        fs::write(place.path("app.wat"), PROGRAM).unwrap();
        fs::write(place.path("calls.mm"), SCRIPT).unwrap();
        place.check(&["record", "-o", "app.trace", "app.wat"], Some(0), "");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Checks how a command ends and what it says.
    #[track_caller]
    fn check(&self, arguments: &[&str], code: Option<i32>, message: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        let output = command.args(arguments).current_dir(self.0.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.trim_end()), (code, message), "{arguments:?}");
    }
}

#[test]
fn inputs_are_not_overwritten() {
    let place = Place::new();
    let before = ["app.wat", "calls.mm", "app.trace"].map(|name| fs::read(place.path(name)).unwrap());
    let check = |arguments: &[&str], output: &str| {
        let message = format!("wasm-jit: {output}: it would overwrite the input {output}");
        place.check(&[arguments, &["-o", output]].concat(), Some(2), &message);
    };
    check(&["compile", "app.wat"], "app.wat");
    check(&["replay-gen", "app.trace", "app.wat"], "app.trace");
    check(&["replay-gen", "app.trace", "app.wat"], "app.wat");
    check(&["trace", "import", "app.trace", "app.wat"], "app.trace");
    check(&["whamm", "compile", "calls.mm"], "calls.mm");
    check(&["whamm", "instrument", "calls.mm", "app.wat"], "app.wat");
    fs::create_dir(place.path("folder")).unwrap();
    fs::rename(place.path("app.wat"), place.path("folder/program.wasm")).unwrap();
    place.check(
        &["replay-gen", "--separate", "app.trace", "folder/program.wasm", "-o", "folder"],
        Some(2),
        "wasm-jit: folder/program.wasm: it would overwrite the input folder/program.wasm",
    );
    let after =
        ["folder/program.wasm", "calls.mm", "app.trace"].map(|name| fs::read(place.path(name)).unwrap());
    assert_eq!(before, after);
}

#[test]
fn every_report_that_cannot_be_written_and_every_trace_that_is_cut_is_named() {
    let place = Place::new();
    let calls = r#"(module (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
        (memory (export "memory") 1) (func (export "_start") (drop (call $yield))))"#;
    fs::write(place.path("app.wat"), calls).unwrap();
    for directory in ["icount.txt", "hotness.txt", "hotness.json"] {
        fs::create_dir_all(place.path("out").join(directory)).unwrap();
    }
    for trace in ["trace.log", "hostcalls.log"] {
        symlink("/dev/full", place.path("out").join(trace)).unwrap();
    }
    let message = "\
wasm-jit: monitors: out/icount.txt: Is a directory (os error 21)
wasm-jit: monitors: out/hotness.txt: Is a directory (os error 21); 1 more file of the report cannot be written either
wasm-jit: monitors: out/trace.log: lines are lost: No space left on device (os error 28)
wasm-jit: monitors: out/hostcalls.log: lines are lost: No space left on device (os error 28)";
    let monitors = "--monitors=icount,trace,imix,hotness,hostcalls{trace}";
    place.check(&["run", monitors, "--monitor-out", "out", "app.wat"], Some(0), message);
    assert!(place.path("out/imix.json").exists() && place.path("out/trace.txt").exists());
}

/// A call that cannot be made is refused before anything runs or is written.
#[test]
fn a_mistake_in_a_call_leaves_the_earlier_trace() {
    let place = Place::new();
    let trace = fs::read(place.path("app.trace")).unwrap();
    for (call, message) in [
        (&["--invoke", "none", "app.wat"][..], "wasm-jit: no function is exported as `none`"),
        (&["--invoke", "_start", "app.wat", "1"], "wasm-jit: the function takes no arguments, 1 is given"),
    ] {
        place.check(&[&["record", "-o", "app.trace"], call].concat(), Some(1), message);
        assert_eq!(fs::read(place.path("app.trace")).unwrap(), trace, "{message}");
    }
}

#[test]
fn a_trace_to_which_a_recording_writes_is_not_replaced() {
    let place = Place::new();
    let trace = File::open(place.path("app.trace")).unwrap();
    trace.lock().unwrap();
    let reduce = ["reduce", "app.trace", "app.wat", "-o", "app.trace"];
    place.check(&reduce, Some(1), "wasm-jit: app.trace: a recording writes to it");
    trace.unlock().unwrap();
    place.check(&reduce, Some(0), "");
}

#[test]
fn links_are_followed_and_pipes_remain() {
    let place = Place::new();
    place.check(&["compile", "-o", "app.cwasm", "app.wat"], Some(0), "");
    let expected = fs::read(place.path("app.cwasm")).unwrap();
    // The first time, to a file that does not exist.
    symlink("linked.cwasm", place.path("link")).unwrap();
    for _ in 0..2 {
        place.check(&["compile", "-o", "link", "app.wat"], Some(0), "");
        assert_eq!(fs::read_link(place.path("link")).unwrap(), PathBuf::from("linked.cwasm"));
        assert!(fs::read(place.path("linked.cwasm")).unwrap() == expected);
    }
    nix::unistd::mkfifo(&place.path("pipe"), Mode::S_IRWXU).unwrap();
    let pipe = place.path("pipe");
    let read = thread::spawn(move || fs::read(pipe).unwrap());
    place.check(&["compile", "-o", "pipe", "app.wat"], Some(0), "");
    let kind = fs::symlink_metadata(place.path("pipe")).unwrap().file_type();
    // The reader would wait for ever.
    assert!(kind.is_fifo(), "it was replaced");
    assert!(read.join().unwrap() == expected);
    let missing = "wasm-jit: no/app.cwasm: No such file or directory (os error 2)";
    place.check(&["compile", "-o", "no/app.cwasm", "app.wat"], Some(1), missing);
    symlink("circle", place.path("circle")).unwrap();
    let circle = "wasm-jit: circle: Too many levels of symbolic links (os error 40)";
    place.check(&["compile", "-o", "circle", "app.wat"], Some(1), circle);
}

/// Standard output is a pipe, which has no path.
#[test]
fn a_module_is_written_to_standard_output() {
    let place = Place::new();
    for name in ["/dev/stdout", "/proc/self/fd/1"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        let output =
            command.args(["compile", "-o", name, "app.wat"]).current_dir(place.0.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(place.path("app.cwasm"), output.stdout).unwrap();
        place.check(&["run", "--allow-precompiled", "app.cwasm"], Some(0), "");
        fs::remove_file(place.path("app.cwasm")).unwrap();
    }
}

#[test]
fn a_precompiled_module_is_no_input_of_these_commands() {
    let place = Place::new();
    place.check(&["compile", "-o", "app.cwasm", "app.wat"], Some(0), "");
    let message = "wasm-jit: app.cwasm: this is a precompiled module: give the .wasm or .wat file that it was made from";
    place.check(&["compile", "app.cwasm"], Some(1), message);
    place.check(&["replay-gen", "app.trace", "app.cwasm", "-o", "bench.wasm"], Some(1), message);
    place.check(&["run", "--preload", "lib=app.cwasm", "app.wat"], Some(1), message);
}
