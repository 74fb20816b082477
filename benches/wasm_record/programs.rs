//! Real WASI programs: the cost of recording, the size of traces, and the speed of replays.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use benches::child;
use benches::host;
use benches::options::Options;
use benches::report::{Cell, Table};

use super::Turns;

/// A program of `scripts/wasm-programs.sh`, and its arguments.
struct Program {
    name: &'static str,
    file: &'static str,
    arguments: Vec<String>,
    /// A directory that the program sees as `/share`.
    share: Option<&'static str>,
}

/// The inputs, which the programs see in `/work`.
const INPUTS: [&str; 3] = ["small_functions.lua", "wasm/messy.go", "wasm/stack_machine.v"];

fn programs(options: &Options) -> Vec<Program> {
    let program = |name, file, arguments: &[&str]| {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Program { name, file, arguments, share: None }
    };
    let size = |full, quick| options.either(full, quick);
    let sum = size("print(sum(i * i for i in range(1000000)))", "print(sum(range(100)))");
    let synthesis = "read_verilog /work/stack_machine.v; synth_ice40 -top stack_machine; stat";
    let all = [
        program("lua", "lua.wasm", &["/work/small_functions.lua", size("20", "1")]),
        program("sqlite", "sqlite.wasm", &[size("60000", "10")]),
        program("gofmt", "gofmt.wasm", &["-l", "/work/messy.go"]),
        program("rust", "rust.wasm", &["index", "/work", r"[a-z]+ing\b"]),
        program("python", "python.wasm", &["-S", "-c", sum]),
        Program { share: Some("yosys-share"), ..program("yosys", "yosys.wasm", &["-q", "-p", synthesis]) },
    ];
    all.into_iter().take(options.either(usize::MAX, 2)).collect()
}

/// What the programs cost; and the factor of the processor time of each.
pub(super) fn costs(options: &Options) -> (Table, Vec<f64>) {
    let mut table = Table::new(
        "Recording, reduction and replay",
        "Elapsed seconds of the processes, compilation included: least of the turns. Times are relative to `run`. \
         Sizes in KiB: of the trace, of the reduced trace, of the program, and of the module that replays it, which has \
         no custom sections, such as names and debugging information; seconds and memory to make it. Bytes are those \
         that the host writes to memories.",
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
            "made in s",
            "in MiB",
            "bytes",
            "read by the program",
        ],
    );
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut ratios = Vec::new();
    for program in programs(options) {
        options.progress(program.name);
        let (row, ratio) = measured(&program, folder.path(), options);
        table.push(row);
        ratios.push(ratio);
    }
    (table, ratios)
}

/// Fetches or builds the program; returns the directory of all of them.
fn fetched(program: &Program) -> PathBuf {
    let mut command = Command::new(host::repo_root().join("scripts/wasm-programs.sh"));
    command.arg(program.name).env("CARGO_TARGET_DIR", host::target_dir()).stderr(Stdio::inherit());
    let output = command.output().expect("the script can be started");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).expect("a UTF-8 path").trim_end().into()
}

fn measured(program: &Program, folder: &Path, options: &Options) -> (Vec<Cell>, f64) {
    let programs = fetched(program);
    let file = programs.join(program.file);
    let wasm_jit = host::ensure_built().join("wasm-jit");
    let work = folder.join(program.name);
    fs::create_dir(&work).expect("a folder can be made");
    for input in INPUTS {
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
        let preopened = |host: &Path, guest: &str| format!("--dir={}::{guest}", host.display());
        command.arg(preopened(&work, "/work")).arg(preopened(&work, "/tmp"));
        command.args(program.share.map(|share| preopened(&programs.join(share), "/share")));
        command.arg(&file).args(&program.arguments);
        command
    };
    let mut turns = Turns::new(program.name, options);
    let [plain, recorded] =
        turns.run(|| [run(&["run".as_ref()]), run(&["record".as_ref(), "-o".as_ref(), &trace])]);
    let is_same = plain.iter().chain(&recorded).all(|printed| *printed == plain[0]);
    assert!(is_same, "{}: its output differs", program.name);
    let done =
        child::run(command(&["reduce".as_ref(), "--json".as_ref(), "-o".as_ref(), &reduced, &trace, &file]));
    assert!(done.status.success(), "{}: {}", program.name, done.status);
    let figures: serde_json::Value = serde_json::from_slice(&done.output).expect("JSON");
    let made = child::run(command(&["replay-gen".as_ref(), "-o".as_ref(), &module, &reduced, &file]));
    assert!(made.status.success(), "{}: {}", program.name, made.status);
    let replays = (0..turns.number).map(|_| {
        // Ends by a trap if the program has called exit.
        let mut command = command(&["run".as_ref(), &module]);
        command.stderr(Stdio::null());
        child::run(command).elapsed.as_secs_f64()
    });
    let replayed = replays.fold(f64::INFINITY, f64::min);
    let size = |file: &Path| fs::metadata(file).expect("the file exists").len() as f64 / 1024.0;
    let count = |name: &str, index: usize| figures[name][index].as_u64().expect("a number");
    let [plain, recorded] = turns.elapsed;
    let row = vec![
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
        (made.peak_rss as f64 / f64::from(1 << 20)).into(),
        count("bytes", 0).into(),
        count("bytes", 1).into(),
    ];
    (row, turns.processor[1] / turns.processor[0])
}
