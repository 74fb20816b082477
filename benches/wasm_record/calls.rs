//! Programs that mostly call their host: the worst case of a recording.

use std::fs;
use std::process::Command;

use benches::distribution::geometric_mean;
use benches::host;
use benches::options::Options;
use benches::report::Table;

use super::Turns;
use super::middle::Contents;

/// A kernel, the loop that it executes with `$n` from a number down to 1, and these numbers.
struct Kernel {
    name: &'static str,
    body: &'static str,
    calls: [u64; 2],
}

/// The vector at 0 has 8 bytes at 1024, that at 8 has 64 KiB at 65536; the file is descriptor 4.
const KERNELS: [Kernel; 4] = [
    Kernel {
        name: "clock",
        body: "(drop (call $clock (i32.const 1) (i64.const 1) (i32.const 64)))",
        calls: [200_000, 200],
    },
    Kernel {
        name: "writes of 8 bytes",
        body: "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 64)))",
        calls: [100_000, 100],
    },
    Kernel {
        name: "reads of 8 bytes",
        body: "(drop (call $read (i32.const 4) (i32.const 0) (i32.const 1) (i32.const 64)))",
        calls: [100_000, 100],
    },
    Kernel {
        name: "reads of 64 KiB",
        body: "(drop (call $read (i32.const 4) (i32.const 8) (i32.const 1) (i32.const 64)))",
        calls: [1_600, 16],
    },
];

impl Kernel {
    fn text(&self, calls: u64) -> String {
        let body = self.body;
        format!(
            r#"(module
                (import "wasi_snapshot_preview1" "clock_time_get"
                    (func $clock (param i32 i64 i32) (result i32)))
                (import "wasi_snapshot_preview1" "fd_write"
                    (func $write (param i32 i32 i32 i32) (result i32)))
                (import "wasi_snapshot_preview1" "fd_read"
                    (func $read (param i32 i32 i32 i32) (result i32)))
                (import "wasi_snapshot_preview1" "path_open"
                    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
                (memory (export "memory") 3)
                (data (i32.const 0) "\00\04\00\00\08\00\00\00\00\00\01\00\00\00\01\00")
                (data (i32.const 100) "data")
                (func (export "_start") (local $n i32)
                    (if (call $open (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 4) (i32.const 0)
                            (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 72))
                        (then unreachable))
                    (if (i32.ne (i32.load (i32.const 72)) (i32.const 4)) (then unreachable))
                    (local.set $n (i32.const {calls}))
                    (loop $again
                        {body}
                        (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))"#
        )
    }
}

/// What recording costs these programs.
pub(super) fn costs(options: &Options) -> Table {
    let mut table = Table::new(
        "Programs that do nothing but call their host",
        "Seconds of processor time, of all threads of the process, its start included: least of the turns. Relative to \
         `run`. The file that is read has random bytes, which cannot be compressed.",
        &["calls", "number", "run s", "record", "elapsed", "trace KiB"],
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut bytes = vec![0; options.either(100 << 20, 1 << 20)];
    Contents::Random.fill(&mut bytes);
    fs::write(folder.path().join("data"), bytes).expect("the file can be written");
    let mut ratios = Vec::new();
    let wasm_jit = host::ensure_built().join("wasm-jit");
    for kernel in &KERNELS {
        options.progress(kernel.name);
        let calls = options.either(kernel.calls[0], kernel.calls[1]);
        fs::write(folder.path().join("kernel.wat"), kernel.text(calls)).expect("the program can be written");
        let command = |first: &[&str]| {
            let mut command = Command::new(&wasm_jit);
            command.args(first).args(["--dir", ".::/", "kernel.wat"]).current_dir(folder.path());
            command
        };
        let mut turns = Turns::new(kernel.name, options);
        turns.run(|| [command(&["run"]), command(&["record", "-o", "trace"])]);
        let size = fs::metadata(folder.path().join("trace")).expect("there is a trace").len();
        let [plain, recorded] = turns.processor;
        ratios.push(recorded / plain);
        table.push(vec![
            kernel.name.into(),
            calls.into(),
            plain.into(),
            (recorded / plain).into(),
            (turns.elapsed[1] / turns.elapsed[0]).into(),
            (size as f64 / 1024.0).into(),
        ]);
    }
    let empty = || "".into();
    table.push(vec![
        "geometric mean".into(),
        empty(),
        empty(),
        geometric_mean(ratios).into(),
        empty(),
        empty(),
    ]);
    table
}
