//! Programs that allocate objects of the garbage-collected heap, in all engines that have one.
//!
//! Each is a WASI command in text form (`*.wat`), which times its kernel five times with the same
//! clock and prints the least time, so that the figure includes neither start-up nor compilation,
//! but all collections; and what the kernel has computed, which must be the same in all engines.

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
    for (name, text) in PROGRAMS {
        options.progress(name);
        let module = format!("(module\n{PRELUDE}{text})");
        let file = folder.path().join(format!("{name}.wasm"));
        fs::write(&file, wat::parse_str(module).expect("it is valid")).expect("it can be written");
        let least = measure(&options, &engines, &file);
        let row =
            |cells: &mut dyn Iterator<Item = Cell>| [Cell::from(name)].into_iter().chain(cells).collect();
        times.push(row(&mut least.iter().map(|ns| ns.map_or("-".into(), |ns| (ns / 1e6).into()))));
        let ours = least[0].expect("wasm-jit runs all of them");
        ratios.push(row(&mut least.iter().map(|ns| ns.map_or("-".into(), |ns| (ns / ours).into()))));
    }
    report.push(times);
    report.push(ratios);
    options.print(&report);
}

/// The least time in nanoseconds, by engine; `None` for one that refuses the program.
fn measure(options: &Options, engines: &[Engine], file: &Path) -> Vec<Option<f64>> {
    let mut least: Vec<Option<f64>> = vec![None; engines.len()];
    let mut expected = None;
    for _ in 0..options.runs(3) {
        for (engine, least) in engines.iter().zip(&mut least) {
            let Some((ns, result)) = run(*engine, file) else { continue };
            let expected = expected.get_or_insert_with(|| result.clone());
            assert_eq!(*expected, result, "{} by {engine}", file.display());
            *least = Some(least.map_or(ns, |least| least.min(ns)));
        }
    }
    least
}

/// The time in nanoseconds, and the result; `None` if the engine refuses the program, as older
/// versions of node do.
fn run(engine: Engine, file: &Path) -> Option<(f64, String)> {
    let run = child::run(engine.run(file, &[]));
    let text = String::from_utf8_lossy(&run.output).into_owned();
    let mut lines = text.lines();
    let printed = lines.next().and_then(|ns| ns.parse().ok()).zip(lines.next().map(str::to_owned));
    assert!(engine != Engine::WasmJit || printed.is_some(), "{}: {} {text}", file.display(), run.status);
    printed
}
