//! The cost of recording, the size of traces, and the speed of replays.
//!
//! Real WASI programs run with and without `wasm-jit record` in turns; then the trace is reduced,
//! and the module that replays it runs. The least times of the turns count. Then programs that
//! mostly call their host (`calls.rs`), recordings that begin and end in the middle of a run
//! (`middle.rs`), and other ways to find what the host changes (`effects.rs`).

mod calls;
mod effects;
mod middle;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use benches::child;
use benches::host;
use benches::options::Options;
use benches::report::{Report, Table};
use clap::Parser;

/// A program of `scripts/wasm-programs.sh`, and its arguments.
struct Program {
    name: &'static str,
    file: &'static str,
    arguments: Vec<String>,
}

fn programs(options: &Options) -> Vec<Program> {
    let program = |name, file, arguments: &[&str]| {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Program { name, file, arguments }
    };
    let size = |full, quick| options.either(full, quick);
    let sum = size("print(sum(i * i for i in range(1000000)))", "print(sum(range(100)))");
    let all = [
        program("lua", "lua.wasm", &["/work/small_functions.lua", size("20", "1")]),
        program("sqlite", "sqlite.wasm", &[size("60000", "10")]),
        program("gofmt", "gofmt.wasm", &["-l", "/work/messy.go"]),
        program("rust", "rust.wasm", &["index", "/work", r"[a-z]+ing\b"]),
        program("python", "python.wasm", &["-S", "-c", sum]),
    ];
    all.into_iter().take(options.either(usize::MAX, 2)).collect()
}

fn main() {
    let options = Options::parse();
    let mut table = Table::new(
        "Recording, reduction and replay",
        "Elapsed seconds of the processes, compilation included: least of the turns. Times are relative to `run`. \
         Sizes in KiB: of the trace, of the reduced trace, of the program, and of the module that replays it, which has \
         no custom sections, such as names and debugging information. Bytes are those that the host writes to memories.",
        &[
            "program",
            "run s",
            "record",
            "replay",
            "events",
            "trace",
            "reduced",
            "program KiB",
            "module",
            "generated s",
            "bytes",
            "read by the program",
        ],
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    for program in programs(&options) {
        options.progress(program.name);
        measure(&program, folder.path(), &options, &mut table);
    }
    let mut report = Report::new("What does it cost to record a program of WebAssembly?");
    report.push(table);
    report.push(calls::costs(&options));
    report.push(effects::ways(&options));
    report.push(middle::speed(&options));
    report.push(middle::snapshots(&options));
    options.print(&report);
}

/// Fetches or builds the program; returns its path.
fn fetched(program: &Program) -> PathBuf {
    let mut command = Command::new(host::repo_root().join("scripts/wasm-programs.sh"));
    command.arg(program.name).env("CARGO_TARGET_DIR", host::target_dir()).stderr(Stdio::inherit());
    let output = command.output().expect("the script can be started");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    Path::new(String::from_utf8(output.stdout).expect("a UTF-8 path").trim_end()).join(program.file)
}

fn measure(program: &Program, folder: &Path, options: &Options, table: &mut Table) {
    let file = fetched(program);
    let wasm_jit = host::ensure_built().join("wasm-jit");
    let work = folder.join(program.name);
    fs::create_dir(&work).expect("a folder can be made");
    for input in ["small_functions.lua", "wasm/messy.go"] {
        let from = host::repo_root().join("tests/programs").join(input);
        let name = from.file_name().expect("an input has a name");
        fs::copy(&from, work.join(name)).expect("the input can be copied");
    }
    let path = |name: &str| folder.join(format!("{}.{name}", program.name));
    let (trace, reduced, module) = (path("trace"), path("reduced"), path("wasm"));
    let command = |first: &[&Path]| {
        let mut command = Command::new(&wasm_jit);
        command.args(first);
        command
    };
    let run = |first: &[&Path]| {
        let mut command = command(first);
        command
            .arg(format!("--dir={}::/work", work.display()))
            .arg("--dir")
            .arg(format!("{}::/tmp", work.display()));
        command.arg(&file).args(&program.arguments);
        command
    };
    let mut least = [f64::INFINITY; 2];
    let mut expected = None;
    // The first turn loads the files into memory, and is not counted.
    let runs = options.runs(5);
    for turn in 0..=runs {
        let commands = [run(&["run".as_ref()]), run(&["record".as_ref(), "-o".as_ref(), &trace])];
        for (command, least) in commands.into_iter().zip(&mut least) {
            let ran = child::run(command);
            assert!(ran.status.success(), "{}: {}", program.name, ran.status);
            let expected = expected.get_or_insert_with(|| ran.output.clone());
            assert_eq!(
                String::from_utf8_lossy(&ran.output),
                String::from_utf8_lossy(expected),
                "{}",
                program.name
            );
            if turn > 0 {
                *least = least.min(ran.elapsed.as_secs_f64());
            }
        }
    }
    let done =
        child::run(command(&["reduce".as_ref(), "--json".as_ref(), "-o".as_ref(), &reduced, &trace, &file]));
    assert!(done.status.success(), "{}: {}", program.name, done.status);
    let figures: serde_json::Value = serde_json::from_slice(&done.output).expect("JSON");
    let made = child::run(command(&["replay-gen".as_ref(), "-o".as_ref(), &module, &reduced, &file]));
    assert!(made.status.success(), "{}: {}", program.name, made.status);
    let replays = (0..runs).map(|_| {
        // Ends by a trap if the program has called exit.
        let mut command = command(&["run".as_ref(), &module]);
        command.stderr(Stdio::null());
        child::run(command).elapsed.as_secs_f64()
    });
    let replayed = replays.fold(f64::INFINITY, f64::min);
    let size = |file: &Path| fs::metadata(file).expect("the file exists").len() as f64 / 1024.0;
    let count = |name: &str, index: usize| figures[name][index].as_u64().expect("a number");
    let [plain, recorded] = least;
    table.push(vec![
        program.name.into(),
        plain.into(),
        (recorded / plain).into(),
        (replayed / plain).into(),
        count("events", 0).into(),
        size(&trace).into(),
        size(&reduced).into(),
        size(&file).into(),
        size(&module).into(),
        made.elapsed.as_secs_f64().into(),
        count("bytes", 0).into(),
        count("bytes", 1).into(),
    ]);
}
