//! Speed of the code that engines generate for the same WebAssembly: the benchmarks `wasm` and
//! `wasm_simd`.
//!
//! Compute kernels in C, compiled once to WebAssembly and once to native code. Each program times
//! its own kernel with the same clock, so that the figure includes neither start-up nor
//! compilation, and prints the minimum of its repetitions. Every engine runs every kernel in each
//! round, so that other work on the machine affects all equally, and the minimum of the rounds is
//! used, because other work only adds time. All of them must compute the same checksum: in small
//! sizes before anything is measured, and in every measured run.

use std::path::PathBuf;

use clap::Parser;

use crate::child;
use crate::distribution::geometric_mean;
use crate::kernels::{self, Built, Kernel, Suite};
use crate::options::Options;
use crate::report::{Cell, Report, Table};
use crate::wasm::{self, Engine};

#[derive(Debug, Parser)]
#[command(about = "Measures, and prints tables.")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    choice: kernels::Choice,

    /// The programs in this directory instead of the kernels of this repository: each is a C file,
    /// or a directory of C files, that defines `kernel` of `kernel.h`
    #[arg(long, value_name = "DIR")]
    sources: Option<PathBuf>,

    /// Only these engines; without it, all that are installed
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',')]
    engines: Vec<Engine>,
}

/// The times of one kernel, in nanoseconds by engine and round.
struct Measured {
    kernel: Kernel,
    ns: Vec<Vec<f64>>,
}

impl Measured {
    fn least(&self, engine: usize) -> f64 {
        self.ns[engine].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The largest difference between the slowest and the fastest round of an engine, in percent.
    fn spread(&self) -> f64 {
        let most = |turns: &Vec<f64>| turns.iter().copied().fold(0.0, f64::max);
        let spread = |engine: usize| (most(&self.ns[engine]) / self.least(engine) - 1.0) * 100.0;
        (0..self.ns.len()).map(spread).fold(0.0, f64::max)
    }
}

/// The benchmark: measures the kernels of a suite, and prints the report.
///
/// # Panics
/// If a kernel cannot be compiled, an engine fails, or two of them compute different checksums.
pub fn run_benchmark(question: &str, suite: &Suite) {
    let Arguments { options, choice, sources, engines } = Arguments::parse();
    let mut report = Report::new(question);
    let all = Engine::ALL.into_iter().filter(|engine| engines.is_empty() || engines.contains(engine));
    let settings = Engine::SETTINGS.into_iter().filter(|engine| engines.contains(engine));
    let has_settings = settings.clone().next().is_some();
    let (engines, table) = wasm::find(all.chain(settings), suite.compilation());
    report.push(table);
    options.progress("the kernels are compiled");
    let built = match sources {
        Some(folder) => suite.build_foreign(&folder, &choice).into_iter().map(with_argument).collect(),
        None => suite.build(&suite.chosen(&choice)),
    };
    assert!(!built.is_empty() && !engines.is_empty(), "there is nothing to measure");
    if !options.is_quick() {
        options.progress("the checksums are compared");
        built.iter().for_each(|built| compare(&engines, built));
    }
    let measured = measure(&options, &engines, &built);
    report.push(times(&engines, &measured));
    let ours = has_settings.then_some(Engine::WasmJit);
    for base in [Engine::Native, Engine::Liftoff, Engine::Cranelift].into_iter().chain(ours) {
        if let Some(base) = engines.iter().position(|engine| *engine == base) {
            report.push(ratios(&engines, &measured, base));
        }
    }
    options.print(&report);
}

/// The program, with an argument for which native code takes at least a tenth of a second.
fn with_argument(mut built: Built) -> Built {
    while run(Engine::Native, &built, built.kernel.full, 1).1 < 1e8 {
        built.kernel.full *= 2;
    }
    built
}

/// Runs a kernel in its small size in all engines.
fn compare(engines: &[Engine], built: &Built) {
    let checksums = engines.iter().map(|engine| (*engine, run(*engine, built, built.kernel.quick, 1).0));
    let mut checksums = checksums.into_iter();
    let (first, expected) = checksums.next().expect("there is an engine");
    for (engine, checksum) in checksums {
        assert_eq!(checksum, expected, "{}: {engine} against {first}", built.kernel.name);
    }
}

fn measure(options: &Options, engines: &[Engine], built: &[Built]) -> Vec<Measured> {
    let turns = options.runs(3);
    let repetitions = options.either(2, 1);
    let empty = |built: &Built| Measured { kernel: built.kernel, ns: vec![Vec::new(); engines.len()] };
    let mut measured: Vec<Measured> = built.iter().map(empty).collect();
    for turn in 1..=turns {
        options.progress(format!("turn {turn} of {turns}"));
        for (built, measured) in built.iter().zip(&mut measured) {
            let n = options.either(built.kernel.full, built.kernel.quick);
            let mut expected = None;
            for (engine, ns) in engines.iter().zip(&mut measured.ns) {
                let (checksum, taken) = run(*engine, built, n, repetitions);
                let (first, expected) = expected.get_or_insert_with(|| (*engine, checksum.clone()));
                assert_eq!(&checksum, expected, "{}: {engine} against {first}", built.kernel.name);
                ns.push(taken);
            }
        }
    }
    measured
}

/// The checksum, and the time in nanoseconds.
fn run(engine: Engine, built: &Built, n: u32, repetitions: u32) -> (String, f64) {
    let file = if engine == Engine::Native { &built.native } else { &built.wasm };
    let run = child::run(engine.run(file, &[n.to_string(), repetitions.to_string()]));
    let what = format!("{} by {engine}", built.kernel.name);
    assert!(run.status.success(), "{what}: {}", run.status);
    let text = String::from_utf8_lossy(&run.output);
    kernels::printed(&text).unwrap_or_else(|| panic!("{what} printed: {text}"))
}

fn columns(engines: &[Engine], around: [&'static [&'static str]; 2]) -> Vec<&'static str> {
    let names: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
    [around[0], &names, around[1]].concat()
}

fn times(engines: &[Engine], measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Run time",
        "Milliseconds, the least of all turns. Spread: by how many percent the slowest turn was over the fastest, of the \
         engine where that is most.",
        &columns(engines, [&["kernel"], &["spread %"]]),
    );
    for kernel in measured {
        let times = (0..engines.len()).map(|engine| Cell::from(kernel.least(engine) / 1e6));
        let name = [Cell::from(kernel.kernel.name)];
        table.push(name.into_iter().chain(times).chain([kernel.spread().into()]).collect());
    }
    table
}

/// The times of all engines relative to one of them.
fn ratios(engines: &[Engine], measured: &[Measured], base: usize) -> Table {
    let of = if engines[base] == Engine::Native { "native code" } else { engines[base].name() };
    let mut table = Table::new(
        &format!("Times the run time of {of}"),
        "The same run times. Below: the geometric mean, the largest and the smallest of each column.",
        &columns(engines, [&["kernel"], &[]]),
    );
    let ratio = |kernel: &Measured, engine: usize| kernel.least(engine) / kernel.least(base);
    let mut row = |name: &str, value: &dyn Fn(usize) -> f64| {
        let values = (0..engines.len()).map(|engine| Cell::from(value(engine)));
        table.push([Cell::from(name)].into_iter().chain(values).collect());
    };
    for kernel in measured {
        row(kernel.kernel.name, &|engine| ratio(kernel, engine));
    }
    let all = |engine: usize| measured.iter().map(move |kernel| ratio(kernel, engine));
    row("geometric mean", &|engine| geometric_mean(all(engine)));
    row("largest", &|engine| all(engine).fold(0.0, f64::max));
    row("smallest", &|engine| all(engine).fold(f64::INFINITY, f64::min));
    table
}
