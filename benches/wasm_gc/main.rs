//! Programs that allocate objects of the garbage-collected heap, in all engines that have one.
//!
//! Each is a WASI command in text form (`*.wat`), which times its kernel five times with the same
//! clock and prints the least time, so that the figure includes neither start-up nor compilation,
//! but all collections; and what the kernel has computed, which must be the same in all engines. A
//! kernel consists of steps of the same work. In one more repetition, the program measures each of
//! them: the longest pause is what the longest takes more than the shortest, or less than that if
//! the program did more in that step, as the hash map does when it grows.

use std::fs;
use std::path::Path;

use benches::child;
use benches::options::Options;
use benches::report::{Cell, Report, Table};
use benches::wasm::{self, Engine};
use clap::Parser;

/// What all programs begin with.
const PRELUDE: &str = include_str!("prelude.wat");

const PROGRAMS: [(&str, &str); 4] = [
    ("trees", include_str!("trees.wat")),
    ("list", include_str!("list.wat")),
    ("hash map", include_str!("hash_map.wat")),
    ("text", include_str!("text.wat")),
];

/// Winch has no garbage collection.
const ENGINES: [Engine; 4] = [Engine::WasmJit, Engine::Liftoff, Engine::CraneliftO0, Engine::Cranelift];

/// What a program has measured.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// The least time of its kernel, in nanoseconds.
    ns: f64,
    /// Number of objects that the kernel allocates.
    objects: f64,
    /// The longest pause, in nanoseconds.
    pause: f64,
}

fn main() {
    let options = Options::parse();
    let mut report = Report::new("How fast are programs that allocate objects?");
    let (engines, table) = wasm::find(ENGINES.into_iter(), String::new());
    report.push(table);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let columns: Vec<&str> =
        ["program"].into_iter().chain(engines.iter().map(|engine| engine.name())).collect();
    let mut times = Table::new("Run time", "Milliseconds, the least of all turns.", &columns);
    let mut ratios = Table::new("Times the run time of wasm-jit", "The same run times.", &columns);
    let mut rates = Table::new(
        "Allocation rate",
        "Millions of objects a second, in the same run times: with everything else that a program does, and collections.",
        &columns,
    );
    let mut pauses = Table::new(
        "Longest pause",
        "Milliseconds by which the longest step of a program exceeds the shortest; the least of all turns, so that \
         preemption counts only if it happens in each. The hash map grows in its longest step.",
        &columns,
    );
    for (name, text) in PROGRAMS {
        options.progress(name);
        let module = format!("(module\n{PRELUDE}{text})");
        let file = folder.path().join(format!("{name}.wasm"));
        fs::write(&file, wat::parse_str(module).expect("it is valid")).expect("it can be written");
        let least = measure(&options, &engines, &file);
        let ours = least[0].expect("wasm-jit runs all of them").ns;
        let push = |table: &mut Table, figure: &dyn Fn(Measured) -> f64| {
            let cells = least.iter().map(|one| one.map_or("-".into(), |one| figure(one).into()));
            table.push([Cell::from(name)].into_iter().chain(cells).collect());
        };
        push(&mut times, &|one| one.ns / 1e6);
        push(&mut ratios, &|one| one.ns / ours);
        push(&mut rates, &|one| one.objects / one.ns * 1e3);
        push(&mut pauses, &|one| one.pause / 1e6);
    }
    for table in [times, ratios, rates, pauses] {
        report.push(table);
    }
    options.print(&report);
}

/// The least figures of all turns, by engine; `None` for one that refuses the program.
fn measure(options: &Options, engines: &[Engine], file: &Path) -> Vec<Option<Measured>> {
    let mut least: Vec<Option<Measured>> = vec![None; engines.len()];
    let mut expected = None;
    for _ in 0..options.runs(3) {
        for (engine, least) in engines.iter().zip(&mut least) {
            let Some((one, result)) = run(*engine, file) else { continue };
            let expected = expected.get_or_insert_with(|| result.clone());
            assert_eq!(*expected, result, "{} by {engine}", file.display());
            let before = least.unwrap_or(one);
            *least = Some(Measured { ns: before.ns.min(one.ns), pause: before.pause.min(one.pause), ..one });
        }
    }
    least
}

/// The figures, and the result; `None` if the engine refuses the program, as older versions of node
/// do.
fn run(engine: Engine, file: &Path) -> Option<(Measured, String)> {
    let run = child::run(engine.run(file, &[]));
    let text = String::from_utf8_lossy(&run.output).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let printed = match lines[..] {
        [ns, result, objects, pause] => {
            let number = |line: &str| line.parse().expect("a number");
            let measured = Measured { ns: number(ns), objects: number(objects), pause: number(pause) };
            Some((measured, result.to_owned()))
        }
        _ => None,
    };
    assert!(engine != Engine::WasmJit || printed.is_some(), "{}: {} {text}", file.display(), run.status);
    printed
}
