//! Speed and memory use of engines that compile large modules.
//!
//! Each engine compiles the complete module on one thread, function by function, into memory or
//! into a file. The modules are real programs (`--module`); by default, one module with all
//! kernels. Speeds are by processor time, which depends less than elapsed time on what else the
//! machine does; engines take turns.

use std::path::{Path, PathBuf};

use benches::child::{self, Run};
use benches::kernels;
use benches::options::Options;
use benches::report::{Cell, Report, Table};
use benches::sections::{self, Size};
use benches::wasm::{self, Engine};
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "Measures, and prints tables.")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// A module to compile (may be repeated); without it, all the kernels in one
    #[arg(long = "module", value_name = "FILE")]
    modules: Vec<PathBuf>,

    /// Only these engines; without it, all that are installed
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',')]
    engines: Vec<Engine>,
}

/// A module, an engine, and their measurements.
struct Measured {
    module: usize,
    engine: Engine,
    /// Processor time of the compilation alone, if the engine reports it.
    compilation: Option<f64>,
    /// The entire process.
    seconds: f64,
    cpu_seconds: f64,
    peak_rss: u64,
}

fn main() {
    let Arguments { options, mut modules, engines } = Arguments::parse();
    let mut report = Report::new("How fast do engines compile large modules, and in how much memory?");
    let wanted =
        |engine: &Engine| *engine != Engine::Native && (engines.is_empty() || engines.contains(engine));
    let (engines, table) = wasm::find(Engine::ALL.into_iter().filter(wanted), "One thread of each.".into());
    report.push(table);
    if modules.is_empty() {
        options.progress("the kernels are compiled");
        modules.push(kernels::build_one_module());
    }
    let sizes: Vec<Size> = modules.iter().map(|module| sections::size(module)).collect();
    let (measured, refused) = measure(&options, &engines, &modules);
    report.push(throughput(&modules, &sizes, &measured));
    if !refused.is_empty() {
        let mut table = Table::new(
            "Refused",
            "Modules that an engine does not compile.",
            &["module", "engine", "last message"],
        );
        for (module, engine, reason) in refused {
            table.push(vec![name(&modules[module]).into(), engine.name().into(), reason.into()]);
        }
        report.push(table);
    }
    options.print(&report);
}

fn name(module: &Path) -> String {
    module.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A module, an engine that does not compile it, and its last message.
type Refusal = (usize, Engine, String);

fn measure(options: &Options, engines: &[Engine], modules: &[PathBuf]) -> (Vec<Measured>, Vec<Refusal>) {
    let turns = options.runs(3);
    let (mut measured, mut refused): (Vec<Measured>, Vec<Refusal>) = (Vec::new(), Vec::new());
    for turn in 1..=turns {
        for (index, module) in modules.iter().enumerate() {
            for engine in engines.iter().copied() {
                if refused.iter().any(|(module, refuses, _)| (*module, *refuses) == (index, engine)) {
                    continue;
                }
                options.progress(format!("turn {turn} of {turns}: {engine}, {}", name(module)));
                match compile(engine, module) {
                    Ok((compilation, run)) => record(&mut measured, index, engine, compilation, &run),
                    Err(reason) => {
                        assert_ne!(engine, Engine::WasmJit, "{}: {reason}", module.display());
                        refused.push((index, engine, reason));
                    }
                }
            }
        }
    }
    measured.sort_by_key(|measured| measured.module);
    (measured, refused)
}

fn record(measured: &mut Vec<Measured>, module: usize, engine: Engine, compilation: Option<f64>, run: &Run) {
    let same = |earlier: &&mut Measured| (earlier.module, earlier.engine) == (module, engine);
    let entry = match measured.iter_mut().find(same) {
        Some(earlier) => earlier,
        None => measured.push_mut(Measured {
            module,
            engine,
            compilation,
            seconds: f64::INFINITY,
            cpu_seconds: f64::INFINITY,
            peak_rss: 0,
        }),
    };
    entry.compilation = entry.compilation.zip(compilation).map(|(least, seconds)| least.min(seconds));
    entry.seconds = entry.seconds.min(run.elapsed.as_secs_f64());
    entry.cpu_seconds = entry.cpu_seconds.min(run.cpu_seconds);
    entry.peak_rss = entry.peak_rss.max(run.peak_rss);
}

/// Seconds of processor time of the compilation alone, if the engine reports them, and the entire
/// run; or the engine's last message.
fn compile(engine: Engine, module: &Path) -> Result<(Option<f64>, Run), String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let said = folder.path().join("stderr");
    let mut command = engine.compile(module, &folder.path().join("code")).expect("an engine for WebAssembly");
    command.stderr(std::fs::File::create(&said).expect("a temporary file can be made"));
    let run = child::run(command);
    if !run.status.success() {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(format!("{}: {}", run.status, last.trim()));
    }
    let milliseconds = match engine {
        Engine::WasmJit => {
            let stats: serde_json::Value = serde_json::from_slice(&run.output).expect("statistics");
            Some(stats["processor_milliseconds"].as_f64().expect("milliseconds"))
        }
        Engine::Liftoff => Some(String::from_utf8_lossy(&run.output).trim().parse().expect("milliseconds")),
        _ => None,
    };
    Ok((milliseconds.map(|milliseconds| milliseconds / 1e3), run))
}

fn throughput(modules: &[PathBuf], sizes: &[Size], measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Compilation by one thread",
        "Times: the minimum of all turns. Compilation: processor time from the module's bytes in memory to executable \
         code, which wasm-jit and Liftoff (`new WebAssembly.Module`) report; for the other engines, that of the entire \
         process. MB/s: bytes of the code section by that time. Relative: this time as a multiple of wasm-jit's. \
         Process: elapsed and processor time of the entire process, which reads the file; node takes long to start. \
         Peak: resident memory of the process, and as a multiple of the module's size.",
        &[
            "module",
            "MB",
            "code MB",
            "engine",
            "compilation ms",
            "MB/s",
            "relative",
            "process s",
            "its CPU s",
            "peak MB",
            "times module",
        ],
    );
    for Measured { module, engine, compilation, seconds, cpu_seconds, peak_rss } in measured {
        let size = sizes[*module];
        let compilation = compilation.unwrap_or(*cpu_seconds);
        let ours = measured.iter().find(|other| other.module == *module && other.engine == Engine::WasmJit);
        let relative = ours.and_then(|ours| ours.compilation).map(|ours| compilation / ours);
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        table.push(vec![
            name(&modules[*module]).into(),
            megabytes(size.file).into(),
            megabytes(size.code).into(),
            engine.name().into(),
            (compilation * 1e3).into(),
            (megabytes(size.code) / compilation).into(),
            relative.map_or_else(|| "".into(), Cell::from),
            (*seconds).into(),
            (*cpu_seconds).into(),
            megabytes(*peak_rss).into(),
            (*peak_rss as f64 / size.file as f64).into(),
        ]);
    }
    table
}
