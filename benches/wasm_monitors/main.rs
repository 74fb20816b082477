//! The cost of monitors, compared with the same analyses by rewriting the module, in the same
//! engine. With `--scripts`, scripts in place and by rewriting, in this engine and in wasmtime.
//!
//! The kernels of `kernels/`, in this process: each kernel is loaded once for each [`Variant`],
//! and runs in all of them in turn, so that other work on the machine affects all equally. The
//! least time of the turns counts. All variants must compute the same checksum.

mod rewrite;

use std::fs;
use std::hint::black_box;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use benches::distribution::geometric_mean;
use benches::kernels::{self, Built, Kernel};
use benches::options::Options;
use benches::report::{Cell, Report, Table};
use benches::wasm;
use clap::Parser;
use rewrite::Analysis;
use tempfile::NamedTempFile;
use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_monitors::{ALL, Output, Request, Session};
use wasm_jit_wasi::{OutputPipe, WasiCtx, WasiCtxBuilder, add_to_linker};
use wasm_jit_whamm::lang::Script;
use wasm_jit_whamm::monitor_module::MonitorModule;
use wasm_jit_whamm::rewrite::instrument;

#[derive(Debug, Parser)]
#[command(about = "Measures, and prints tables.")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    choice: kernels::Choice,

    /// Measures only these monitors: NAME[{OPTIONS}],...
    #[arg(long, value_name = "LIST")]
    monitors: Option<String>,

    /// Does not measure rewritten modules, which do the same themselves
    #[arg(long)]
    without_rewriting: bool,

    /// Also measures monitor modules with functions that are always called
    #[arg(long)]
    called: bool,

    /// Measures scripts in place, by rewriting, and by rewriting in wasmtime if it is installed,
    /// which takes much longer than everything else
    #[arg(long)]
    scripts: bool,

    /// Measures only the columns whose names begin with one of these, such as `cache`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    columns: Vec<String>,
}

/// How a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Never observed.
    Original,
    /// By the monitor of this request.
    Monitor(&'static str),
    /// By a monitor module, with this text.
    Module(&'static str),
    /// The same, whose functions are always called.
    Called(&'static str),
    /// By a script, whose probes its predicate switches.
    Script(&'static str),
    /// The same, whose predicate is checked at each event.
    Checked(&'static str),
    /// By a module that does it itself.
    Rewritten(Analysis),
    /// By a module that contains a script.
    Instrumented(&'static str),
    /// By another engine, which runs a module that contains a script, or is the original.
    Elsewhere(wasm::Engine, Option<&'static str>),
}

impl Variant {
    /// The script that the module of this variant contains.
    fn contained(self) -> Option<&'static str> {
        match self {
            Self::Instrumented(text) => Some(text),
            Self::Elsewhere(_, text) => text,
            _ => None,
        }
    }

    /// The variant to which this one is compared.
    fn original(self) -> Self {
        match self {
            Self::Elsewhere(engine, _) => Self::Elsewhere(engine, None),
            _ => Self::Original,
        }
    }
}

/// The analyses by rewriting, and the names of their columns.
const REWRITTEN: [(Analysis, &str); 5] = [
    (Analysis::Blocks, "blocks, rewritten"),
    (Analysis::Branches, "branches, rewritten"),
    (Analysis::Calls, "calls, rewritten"),
    (Analysis::Memory, "memory, rewritten"),
    (Analysis::Functions, "functions, rewritten"),
];

/// Monitor modules, and the names of their columns.
const MODULES: [(&str, [&str; 2]); 3] = [
    (include_str!("hotness.wat"), ["hotness, module", "hotness, called"]),
    (include_str!("branches.wat"), ["branches, module", "branches, called"]),
    (include_str!("imix.wat"), ["imix, module", "imix, called"]),
];

/// Scripts with a condition that never holds, and the names of their columns.
const SCRIPTS: [(&str, [&str; 2]); 1] =
    [(include_str!("inside.mm"), ["accesses inside, switched", "accesses inside, checked"])];

/// Scripts that also run by rewriting, with the names of their columns.
const TARGETS: [(&str, [&str; 3]); 5] = [
    (
        include_str!("../../wasm-jit/whamm/scripts/hotness.mm"),
        ["hotness, script", "hotness, instrumented", "hotness, wasmtime"],
    ),
    (
        include_str!("../../wasm-jit/whamm/scripts/branches.mm"),
        ["branches, script", "branches, instrumented", "branches, wasmtime"],
    ),
    (
        include_str!("../../wasm-jit/whamm/scripts/imix.mm"),
        ["imix, script", "imix, instrumented", "imix, wasmtime"],
    ),
    (
        include_str!("../../wasm-jit/whamm/scripts/cache_sim.mm"),
        ["cache, script", "cache, instrumented", "cache, wasmtime"],
    ),
    ("wasm:opcode:*:before { }", ["empty, script", "empty, instrumented", "empty, wasmtime"]),
];

/// Monitors that write while the program runs, or wait for a user.
const STREAMS: [&str; 1] = ["trace"];

/// Monitors that are measured with options, too.
const WITH_OPTIONS: [&str; 2] = ["calltree{times=sampled}", "profile{times=sampled}"];

/// A kernel, loaded in a variant.
struct Loaded {
    variant: Variant,
    module: Module,
    /// While it runs: a process has only one of some monitors.
    session: Option<Session>,
    /// The least time of all turns, in nanoseconds.
    least: f64,
    /// The time that starting the monitor took: for scripts, including their compilation; for
    /// another process, from its beginning until the kernel measures itself.
    start: f64,
    /// The module, for another process.
    file: Option<NamedTempFile>,
}

impl Loaded {
    fn new(bytes: &[u8], variant: Variant) -> Self {
        let engine = Engine::default();
        let original = || Module::from_binary(&engine, bytes).expect("a valid module");
        let begin = Instant::now();
        let instrumented = variant.contained().map(|text| {
            instrument("benchmark", text.as_bytes(), &original()).expect("the script fits the kernel")
        });
        let file = matches!(variant, Variant::Elsewhere(..)).then(|| {
            let file = NamedTempFile::with_suffix(".wasm").expect("a temporary file");
            fs::write(file.path(), instrumented.as_deref().unwrap_or(bytes)).expect("there is room");
            file
        });
        let module = match variant {
            Variant::Instrumented(_) => {
                Module::from_binary(&engine, instrumented.as_deref().expect("it was made"))
                    .expect("still valid")
            }
            Variant::Rewritten(analysis) => {
                Module::from_binary(&engine, &rewrite::rewrite(&original(), analysis)).expect("still valid")
            }
            _ => original(),
        };
        let made = begin.elapsed();
        let session = Session::new(&module, Output::none());
        let begin = Instant::now();
        if let Variant::Monitor(request) = variant {
            session.enable(request.parse().expect("a request")).expect("the monitor can start");
        }
        let start = match variant {
            Variant::Instrumented(_) => made.as_nanos() as f64,
            Variant::Script(_) | Variant::Elsewhere(..) => f64::INFINITY,
            _ => begin.elapsed().as_nanos() as f64,
        };
        let session = Some(session);
        Self { variant, module, session, least: f64::INFINITY, start, file }
    }

    /// Runs the kernel; returns its checksum.
    fn run(&mut self, n: u32) -> String {
        if let Variant::Elsewhere(engine, _) = self.variant {
            return self.run_elsewhere(engine, n);
        }
        let output = OutputPipe::new(64 << 20);
        let mut wasi = WasiCtxBuilder::new();
        wasi.arg("kernel").arg(n.to_string()).arg("1").stdout(output.clone());
        let mut store = Store::new(self.module.engine(), wasi.build());
        let mut linker = Linker::new(self.module.engine());
        add_to_linker(&mut linker, |wasi: &mut WasiCtx| wasi).expect("the names of WASI are free");
        let (module, name) = rewrite::IMPORT;
        linker.func_wrap(module, name, |a: i32, b: i32| _ = black_box((a, b))).expect("the name is free");
        let begin = Instant::now();
        let monitor = match self.variant {
            Variant::Module(text) | Variant::Called(text) => Some(text.as_bytes().to_vec()),
            Variant::Script(text) | Variant::Checked(text) => {
                let script = Script::new("benchmark", text.as_bytes(), &[]).expect("a valid script");
                Some(script.module().to_vec())
            }
            _ => None,
        };
        let attached = monitor.map(|monitor| {
            let monitor = Module::new(self.module.engine(), monitor).expect("a valid module");
            let mut monitor = MonitorModule::new(monitor, Vec::new()).expect("its exports are rules");
            if let Variant::Called(_) | Variant::Checked(_) = self.variant {
                monitor = monitor.always_call();
            }
            let attached = monitor.attach(&mut store, &mut linker, &self.module);
            attached.expect("there are places for its probes")
        });
        if let Variant::Script(_) = self.variant {
            self.start = self.start.min(begin.elapsed().as_nanos() as f64);
        }
        let instance = linker.instantiate(&mut store, &self.module).expect("a WASI command");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a WASI command");
        // A command may end by an exit, which is an error of the call.
        let _ = start.call(&mut store, ());
        drop(attached);
        self.printed(output.contents()).0
    }

    /// Runs the kernel in another engine.
    fn run_elsewhere(&mut self, engine: wasm::Engine, n: u32) -> String {
        let file = self.file.as_ref().expect("it was written");
        let mut command = engine.run(file.path(), &[n.to_string(), "1".to_owned()]);
        let begin = Instant::now();
        // The report is on standard error.
        let output = command.stderr(Stdio::null()).output().expect("the engine was found");
        let total = begin.elapsed().as_nanos() as f64;
        let (checksum, ns) = self.printed(output.stdout);
        self.start = self.start.min(total - ns);
        checksum
    }

    /// The checksum and the time that the kernel has printed.
    fn printed(&mut self, output: Vec<u8>) -> (String, f64) {
        let text = String::from_utf8(output).expect("a line of text");
        let (checksum, ns) = kernels::printed(&text)
            .unwrap_or_else(|| panic!("{:?}: the kernel printed: {text}", self.variant));
        self.least = self.least.min(ns);
        (checksum, ns)
    }
}

fn main() {
    let Arguments { options, choice, monitors, without_rewriting, called, scripts, columns } =
        Arguments::parse();
    let mut report = Report::new("What do monitors cost, and what the same analyses by rewriting?");
    let chosen = kernels::SCALAR.sample(&choice, &options);
    assert!(!chosen.is_empty(), "there is nothing to measure");
    let of_monitors: Vec<&'static str> = match &monitors {
        None => {
            let names = ALL.iter().map(|monitor| monitor.name).filter(|name| !STREAMS.contains(name));
            names.chain(WITH_OPTIONS).collect()
        }
        Some(list) => {
            let requests = Request::list(list).expect("a list of monitors");
            // They are there until the end of the process, as the others.
            requests.iter().map(|request| &*request.to_string().leak()).collect()
        }
    };
    let mut variants = vec![(Variant::Original, "original")];
    variants.extend(of_monitors.iter().map(|request| (Variant::Monitor(request), *request)));
    for (text, [module, always]) in MODULES {
        variants.push((Variant::Module(text), module));
        variants.extend(called.then_some((Variant::Called(text), always)));
    }
    for (text, [switched, checked]) in SCRIPTS {
        variants.extend([(Variant::Script(text), switched), (Variant::Checked(text), checked)]);
    }
    if !without_rewriting {
        variants.extend(REWRITTEN.map(|(analysis, name)| (Variant::Rewritten(analysis), name)));
    }
    if scripts {
        let (others, table) = wasm::find([wasm::Engine::Cranelift].into_iter(), String::new());
        report.push(table);
        variants.extend(others.iter().map(|engine| (Variant::Elsewhere(*engine, None), "wasmtime")));
        for (text, [in_place, instrumented, elsewhere]) in TARGETS {
            variants.extend([(Variant::Script(text), in_place), (Variant::Instrumented(text), instrumented)]);
            variants.extend(others.iter().map(|engine| (Variant::Elsewhere(*engine, Some(text)), elsewhere)));
        }
    }
    if !columns.is_empty() {
        variants.retain(|(variant, name)| {
            let is_original = *variant == variant.original();
            is_original || columns.iter().any(|column| name.starts_with(column.as_str()))
        });
    }
    let variants: Arc<[(Variant, &'static str)]> = variants.into();

    options.progress("the kernels are compiled");
    let built = kernels::SCALAR.build(&chosen);
    let turns = options.runs(3);
    let measured: Vec<(Kernel, Vec<Loaded>)> = built
        .iter()
        .map(|built| {
            options.progress(built.kernel.name);
            (built.kernel, measure(&options, built, turns, &variants))
        })
        .collect();
    report.push(ratios(&measured, &variants));
    report.push(starts(&measured, &variants));
    options.print(&report);
}

/// The kernel in each variant, run.
fn measure(
    options: &Options,
    built: &Built,
    turns: u32,
    variants: &[(Variant, &'static str)],
) -> Vec<Loaded> {
    let bytes = fs::read(&built.wasm).expect("the kernel was built");
    let n = options.either(built.kernel.full, built.kernel.quick);
    let mut loaded: Vec<Loaded> = variants.iter().map(|(variant, _)| Loaded::new(&bytes, *variant)).collect();
    let mut expected = None;
    for _ in 0..turns {
        for loaded in &mut loaded {
            let checksum = loaded.run(n);
            assert_eq!(expected.get_or_insert_with(|| checksum.clone()), &checksum, "{:?}", loaded.variant);
        }
    }
    for loaded in &mut loaded {
        let session = loaded.session.take().expect("it was there all the time");
        if let Variant::Monitor(request) = loaded.variant {
            let request: Request = request.parse().expect("it was started");
            session.report(&request.name).expect("it was started");
        }
    }
    loaded
}

fn ratios(measured: &[(Kernel, Vec<Loaded>)], variants: &[(Variant, &'static str)]) -> Table {
    let mut table = Table::new(
        "Times the run time without monitors",
        "The least of all turns. In front: milliseconds without. Below: the geometric mean, and the largest \
         of each column. Modules with a script in wasmtime: times the run time of the original there.",
        &["kernel", "ms"]
            .into_iter()
            .chain(variants.iter().skip(1).map(|(_, name)| *name))
            .collect::<Vec<_>>(),
    );
    let mut row = |name: &str, ms: Cell, value: &dyn Fn(usize) -> f64| {
        let values = (1..variants.len()).map(|variant| Cell::from(value(variant)));
        table.push([Cell::from(name), ms].into_iter().chain(values).collect());
    };
    let ratio = |loaded: &[Loaded], variant: usize| {
        let original = loaded[variant].variant.original();
        let original = loaded.iter().find(|loaded| loaded.variant == original).expect("it is measured");
        loaded[variant].least / original.least
    };
    for (kernel, loaded) in measured {
        row(kernel.name, (loaded[0].least / 1e6).into(), &|variant| ratio(loaded, variant));
    }
    let all = |variant: usize| measured.iter().map(move |(_, loaded)| ratio(loaded, variant));
    let mean = |variant| geometric_mean(all(variant));
    row("geometric mean", "".into(), &mean);
    row("largest", "".into(), &|variant| all(variant).fold(0.0, f64::max));
    table
}

fn starts(measured: &[(Kernel, Vec<Loaded>)], variants: &[(Variant, &'static str)]) -> Table {
    let mut table = Table::new(
        "Starting a monitor",
        "Milliseconds until a monitor is on, before the program runs: the mean and the largest of the kernels. \
         For scripts, from their text on; in wasmtime, until the kernel runs.",
        &["monitor", "mean", "largest"],
    );
    for (variant, (kind, name)) in variants.iter().enumerate() {
        if let Variant::Monitor(_) | Variant::Script(_) | Variant::Instrumented(_) | Variant::Elsewhere(..) =
            kind
        {
            let all = || measured.iter().map(|(_, loaded)| loaded[variant].start / 1e6);
            let mean = all().sum::<f64>() / measured.len() as f64;
            table.push(vec![Cell::from(*name), mean.into(), all().fold(0.0, f64::max).into()]);
        }
    }
    table
}
