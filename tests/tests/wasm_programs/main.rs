//! Real third-party programs run a real workload under `wasm-jit run`, and must produce the same
//! output as under another engine.
//!
//! `scripts/wasm-programs.sh` fetches or builds the programs. The expected output of each workload,
//! and the files that it must write, are in `fixtures/wasm/`, one text for each test. They come
//! from the engine Wasmtime (`wasmtime` of the crate wasmtime-cli 48 in the path), those of Lua
//! from a native build of the same source, those of Kotlin from the JVM, and those of
//! meshoptimizer, whose native build computes reciprocal square roots less exactly, from V8:
//!
//! ```text
//! WASM_PROGRAMS_BLESS=1 cargo test --release -p tests --test wasm_programs
//! ```

mod monitors;
mod probes;
mod recorded;
mod scripts;
mod targets;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::{Run, ensure_wasm_jit, is_long, repo_root, run_within};

/// The time limit for one step on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// One run of a program.
#[derive(Clone, Copy)]
struct Step {
    /// The file of the program, in the directory of the programs.
    program: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [&'static str],
    /// A directory next to the programs that the program sees as `/share`.
    share: Option<&'static str>,
    /// Files that the program writes; their length and checksum are compared.
    outputs: &'static [&'static str],
}

const STEP: Step = Step { program: "", arguments: &[], environment: &[], share: None, outputs: &[] };

/// The source of the expected output.
#[derive(Clone, Copy)]
enum Oracle {
    Wasmtime,
    /// `scripts/third-party.sh` builds the same program natively.
    Native(&'static str),
    /// This file next to the programs is the same program for the JVM.
    Jvm(&'static str),
    /// V8's Liftoff in node, for a program that opens no files.
    Node,
}

/// The directory of the programs, after ensuring that it contains these.
fn programs(names: &[&str]) -> PathBuf {
    let mut command = Command::new(repo_root().join("scripts/wasm-programs.sh"));
    let built = run_within(command.args(names), Duration::from_secs(900));
    assert!(built.status.success(), "scripts/wasm-programs.sh {names:?}: {}\n{}", built.status, built.stderr);
    PathBuf::from(String::from_utf8(built.stdout).expect("a UTF-8 path").trim_end())
}

/// Runs the steps one after the other in a directory `/work` with these files of `tests/programs/`,
/// and compares all output with the expected text of this name.
#[track_caller]
fn check(name: &str, oracle: Oracle, fetched: &[&str], files: &[&str], steps: &[Step]) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let work = folder.path().join("work");
    fs::create_dir_all(&work).expect("a folder can be made");
    fs::create_dir_all(folder.path().join("tmp")).expect("a folder can be made");
    for file in files {
        let source = repo_root().join("tests/programs").join(file);
        let to = work.join(source.file_name().expect("a source has a name"));
        fs::copy(&source, to).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    }
    let programs = programs(fetched);
    let bless = std::env::var_os("WASM_PROGRAMS_BLESS").is_some();
    let mut left = String::new();
    for step in steps {
        let command = if bless {
            blessed(oracle, &programs, folder.path(), step)
        } else {
            ours(&programs, folder.path(), step, &[])
        };
        report(&mut left, step, &work, &finished(command, step));
    }
    let fixture = repo_root().join(format!("tests/fixtures/wasm/{name}.txt"));
    if bless {
        fs::write(&fixture, &left).expect("an expectation can be written");
        return;
    }
    let expected =
        fs::read_to_string(&fixture).unwrap_or_else(|error| panic!("{}: {error}", fixture.display()));
    let differs =
        left.lines().zip(expected.lines()).enumerate().find(|(_, (left, expected))| left != expected);
    if let Some((line, (left, expected))) = differs {
        panic!("{name}: line {} is\n  {left}\ninstead of\n  {expected}", line + 1);
    }
    assert_eq!(left, expected, "{name}: one has more lines");
}

/// Options that both `wasm-jit run` and `wasmtime run` accept.
fn engine(mut command: Command, program: &Path, programs: &Path, folder: &Path, step: &Step) -> Command {
    let preopened = |host: PathBuf, guest: &str| format!("--dir={}::{guest}", host.display());
    command.arg(preopened(folder.join("work"), "/work")).arg(preopened(folder.join("tmp"), "/tmp"));
    command.args(step.share.map(|share| preopened(programs.join(share), "/share")));
    for variable in step.environment {
        command.args(["--env", variable]);
    }
    command.arg(program).args(step.arguments);
    command
}

fn ours(programs: &Path, folder: &Path, step: &Step, options: &[&str]) -> Command {
    let mut command = Command::new(ensure_wasm_jit());
    command.arg("run").args(options);
    engine(command, &programs.join(step.program), programs, folder, step)
}

fn blessed(oracle: Oracle, programs: &Path, folder: &Path, step: &Step) -> Command {
    match oracle {
        Oracle::Wasmtime => {
            let compiled = programs.join(step.program).with_extension("cwasm");
            let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            if changed(&compiled) <= changed(&programs.join(step.program)) {
                let mut compile = Command::new("wasmtime");
                compile.args(["compile", "-W", "exceptions=y", "-o"]).arg(&compiled);
                let made = run_within(compile.arg(programs.join(step.program)), Duration::from_secs(900));
                assert!(made.status.success(), "wasmtime compile {}:\n{}", step.program, made.stderr);
            }
            let mut command = Command::new("wasmtime");
            command.args(["run", "--allow-precompiled", "-W", "exceptions=y"]);
            engine(command, &compiled, programs, folder, step)
        }
        Oracle::Native(name) => {
            let mut build = Command::new(repo_root().join("scripts/third-party.sh"));
            let built = run_within(build.arg(name), Duration::from_secs(600));
            assert!(built.status.success(), "scripts/third-party.sh {name}:\n{}", built.stderr);
            let mut command = Command::new(String::from_utf8(built.stdout).expect("a UTF-8 path").trim_end());
            let inside = |argument: &&str| argument.replace("/work", &folder.join("work").to_string_lossy());
            command.args(step.arguments.iter().map(inside));
            command
        }
        Oracle::Jvm(name) => {
            let mut command = Command::new("java");
            command.arg("-jar").arg(programs.join(name)).args(step.arguments);
            command
        }
        Oracle::Node => {
            let mut command = Command::new("node");
            command.args(["--no-warnings", "--allow-natives-syntax", "--liftoff-only"]);
            command.arg("--no-wasm-lazy-compilation");
            command.arg(repo_root().join("benches/wasm/run_in_node.cjs")).arg("run");
            command.arg(programs.join(step.program)).args(step.arguments);
            command
        }
    }
}

fn finished(mut command: Command, step: &Step) -> Run {
    let run = run_within(&mut command, TIME_LIMIT);
    assert!(run.status.success(), "{} {:?}: {}\n{}", step.program, step.arguments, run.status, run.stderr);
    run
}

/// Appends the output of a step.
fn report(left: &mut String, step: &Step, work: &Path, run: &Run) {
    // Writing to a String cannot fail.
    let _ = writeln!(left, "# {} {}", step.program, step.arguments.join(" "));
    left.push_str(&String::from_utf8_lossy(&run.stdout));
    for output in step.outputs {
        let bytes = fs::read(work.join(output)).unwrap_or_else(|error| panic!("{output}: {error}"));
        let _ = writeln!(left, "# {output}: {} bytes, CRC-32 {:08x}", bytes.len(), crc32fast::hash(&bytes));
    }
}

/// Synthesis, placement and routing, and the bitstream: C++ with exceptions, a module of 69 MB with
/// 46,000 functions.
#[test]
fn yosys_and_nextpnr_make_a_bitstream() {
    let yosys = Step {
        program: "yosys.wasm",
        arguments: &[
            "-q",
            "-p",
            "read_verilog /work/stack_machine.v; synth_ice40 -top stack_machine -json /work/netlist.json; stat",
        ],
        share: Some("yosys-share"),
        outputs: &["netlist.json"],
        ..STEP
    };
    let nextpnr = Step {
        program: "nextpnr-ice40.wasm",
        arguments: &[
            "-q",
            "--hx1k",
            "--package",
            "tq144",
            "--seed",
            "1",
            "--json",
            "/work/netlist.json",
            "--asc",
            "/work/placed.asc",
            "--report",
            "/work/report.json",
        ],
        share: Some("nextpnr-share"),
        outputs: &["placed.asc", "report.json"],
        ..STEP
    };
    let icepack = Step {
        program: "icepack.wasm",
        arguments: &["/work/placed.asc", "/work/bitstream.bin"],
        outputs: &["bitstream.bin"],
        ..STEP
    };
    check(
        "bitstream",
        Oracle::Wasmtime,
        &["yosys", "nextpnr"],
        &["wasm/stack_machine.v"],
        &[yosys, nextpnr, icepack],
    );
}

#[test]
fn icepll_finds_settings() {
    let settings = |arguments| Step { program: "icepll.wasm", arguments, ..STEP };
    let verilog = Step {
        arguments: &["-i", "16", "-o", "48.5", "-m", "-f", "/work/pll.v"],
        outputs: &["pll.v"],
        ..settings(&[])
    };
    check(
        "icepll",
        Oracle::Wasmtime,
        &["nextpnr"],
        &[],
        &[settings(&["-i", "12", "-o", "60"]), settings(&["-i", "100", "-o", "33.3", "-S"]), verilog],
    );
}

#[test]
fn gofmt_formats_a_file() {
    let format = |arguments| Step { program: "gofmt.wasm", arguments, ..STEP };
    check(
        "gofmt",
        Oracle::Wasmtime,
        &["gofmt"],
        &["wasm/messy.go"],
        &[format(&["-l", "/work/messy.go"]), format(&["-s", "/work/messy.go"])],
    );
}

/// The compiler's largest function has 760 kB, and a table of 12,132 targets. Only in the long
/// form: building the compiler takes more than a minute.
#[test]
fn the_go_compiler_compiles_a_package() {
    if !is_long() {
        return;
    }
    let compile = |environment| Step {
        program: "go-compile.wasm",
        arguments: &[
            "-p",
            "numbers",
            "-complete",
            "-buildid",
            "",
            "-o",
            "/work/numbers.o",
            "/work/numbers.go",
        ],
        environment,
        outputs: &["numbers.o"],
        ..STEP
    };
    check(
        "go_compile",
        Oracle::Wasmtime,
        &["gocompile"],
        &["wasm/numbers.go"],
        &[
            compile(&["GOOS=linux", "GOARCH=amd64"]),
            compile(&["GOOS=darwin", "GOARCH=arm64"]),
            compile(&["GOOS=wasip1", "GOARCH=wasm"]),
        ],
    );
}

#[test]
fn python_runs_its_library() {
    let script = Step { program: "python.wasm", arguments: &["/work/library.py", "/tmp/library"], ..STEP };
    check("python", Oracle::Wasmtime, &["python"], &["wasm/library.py"], &[script]);
}

#[test]
fn sqlite_runs_a_shop() {
    let shop = Step { program: "sqlite.wasm", arguments: &["30000"], ..STEP };
    check("sqlite", Oracle::Wasmtime, &["sqlite"], &[], &[shop]);
}

/// Every error and every end of a coroutine is a longjmp: an exception of the legacy form.
#[test]
fn lua_runs_small_functions() {
    let script = Step { program: "lua.wasm", arguments: &["/work/small_functions.lua", "5"], ..STEP };
    check("lua", Oracle::Native("lua"), &["lua"], &["small_functions.lua"], &[script]);
}

/// Decoders that are written with vectors, and what the compiler makes of other loops.
#[test]
fn meshopt_compresses_a_mesh() {
    let mesh = Step { program: "meshopt.wasm", arguments: &["3"], ..STEP };
    check("meshopt", Oracle::Node, &["meshopt"], &[], &[mesh]);
}

/// Rust's standard library and packages: an image rendered in floating point, regular expressions,
/// JSON, files and errors.
#[test]
fn rust_draws_and_indexes() {
    let rust = |arguments| Step { program: "rust.wasm", arguments, ..STEP };
    let draw =
        Step { outputs: &["picture.png"], ..rust(&["draw", "/work/picture.svg", "/work/picture.png"]) };
    let files = Step { environment: &["RUST_WORKLOAD=yes"], ..rust(&["files", "/work"]) };
    check(
        "rust",
        Oracle::Wasmtime,
        &["rust"],
        &["wasm/rust/picture.svg", "wasm/library.py", "wasm/messy.go", "small_functions.lua"],
        &[rust(&["index", "/work", r"[a-z]+ing\b|\d{3,}"]), draw, files],
    );
}

/// Objects of a thousand types, casts, closures, coroutines, exceptions, and much garbage: both as
/// the compiler writes them, and after an optimizer that puts most types into one group.
#[test]
fn kotlin_makes_objects() {
    let objects = |program| Step { program, ..STEP };
    check(
        "kotlin",
        Oracle::Jvm("kotlin.jar"),
        &["kotlin"],
        &[],
        &[objects("kotlin.wasm"), objects("kotlin-optimized.wasm")],
    );
}
