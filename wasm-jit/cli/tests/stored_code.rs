//! The command `wasm-jit` with programs whose code is stored: where it is executed, and what
//! monitors observe.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A directory in which commands run.
struct Place(TempDir);

impl Place {
    fn with(name: &str, text: &str) -> Self {
        let place = Self(TempDir::new().unwrap());
        fs::write(place.path(name), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        command.args(arguments).current_dir(self.0.path());
        command
    }

    /// The standard output of a command that succeeds.
    #[track_caller]
    fn output(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The number of executable mappings of files in the directory of the cache while the program
    /// runs with these options: it writes a byte, and waits until its input ends.
    fn executable_mappings(&self, options: &[&str]) -> usize {
        let mut command = self.command(&[&["run", "--cache=folder"], options, &["waits.wat"]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).expect("the program writes a byte");
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", child.id()));
        let folder = self.path("folder");
        let of_folder = maps.lines().filter(|line| line.contains(folder.to_str().unwrap()));
        of_folder.filter(|line| line.contains(" r-xs ")).count()
    }
}

#[test]
fn code_in_a_cache_is_executed_there_unless_it_must_be_copied() {
    let place = Place::with(
        "waits.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "\10\00\00\00\01\00\00\00")
            (func (export "_start")
                (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
                (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))))"#,
    );
    assert_eq!(place.executable_mappings(&[]), 0, "it is compiled");
    assert_eq!(place.executable_mappings(&[]), 1);
    assert_eq!(place.executable_mappings(&["--gdb"]), 1);
    assert_eq!(place.executable_mappings(&["--perf-map"]), 0, "perf ignores the map for code in files");
    assert_eq!(place.executable_mappings(&["--monitors=icount"]), 0, "it is patched");
}

#[test]
fn monitors_observe_stored_code_as_they_observe_compiled_code() {
    let place = Place::with(
        "fib.wat",
        r#"(module (func $fib (export "fib") (param i32) (result i32)
            (if (result i32) (i32.lt_u (local.get 0) (i32.const 2))
                (then (local.get 0))
                (else (i32.add
                    (call $fib (i32.sub (local.get 0) (i32.const 1)))
                    (call $fib (i32.sub (local.get 0) (i32.const 2))))))))"#,
    );
    place.output(&["compile", "-o", "fib.cwasm", "fib.wat"]);
    let monitors = ["run", "--monitors=icount,branches,hotness,calls", "--monitor-out=reports"];
    let reports = |options: &[&str], file: &str| {
        let output = place.output(&[&monitors, options, &["--invoke", "fib", file, "10"]].concat());
        assert_eq!(output, "55\n");
        let mut reports: Vec<(PathBuf, String)> = fs::read_dir(place.path("reports"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
            .collect();
        fs::remove_dir_all(place.path("reports")).unwrap();
        reports.sort();
        reports
    };
    let expected = reports(&[], "fib.wat");
    assert!(expected.len() >= 4, "{expected:?}");
    assert_eq!(reports(&["--cache=folder"], "fib.wat"), expected, "compiled");
    assert_eq!(reports(&["--cache=folder"], "fib.wat"), expected, "from the cache");
    assert_eq!(reports(&["--allow-precompiled"], "fib.cwasm"), expected);
}
