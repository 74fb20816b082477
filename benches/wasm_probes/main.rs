//! The cost of probes for the WebAssembly code that executes them.
//!
//! The kernels of `kernels/`, as in the benchmark `wasm`, but in this process: each kernel is
//! loaded once for each [`Variant`], and runs in all of them in turn, so that other work on the
//! machine affects all equally. The least time of the turns counts. All variants must compute the
//! same checksum, and exactly those that count must have counted.

mod counters;
mod firing;
mod memory;
#[path = "../../wasm-jit/tests/probes/rewrite.rs"]
mod rewrite;

use std::fs;

use benches::distribution::{Distribution, geometric_mean};
use benches::kernels::{self, Built, Kernel};
use benches::options::Options;
use benches::report::{Cell, Report, Table};
use clap::Parser;
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all};
use wasm_jit::{Config, Engine, Instruction, Linker, Module, ProbeSites, Store, Val};
use wasm_jit_wasi::{OutputPipe, WasiCtx, WasiCtxBuilder, add_to_linker};

#[derive(Debug, Parser)]
#[command(about = "Measures, and prints tables.")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    choice: kernels::Choice,
}

/// How a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Never probed.
    Original,
    /// Never probed, but compiled with places for probes (`Config::probe_sites`).
    With(ProbeSites),
    /// Probes at all entries of functions, which are off, in the code that was made for them.
    FunctionsOff,
    /// Likewise, and also at blocks, loops, branches and calls.
    BranchesOff,
    /// Likewise, at all instructions.
    AllOff,
    /// Calls to all functions are counted.
    EntriesCounted,
    /// Executions of all instructions are counted.
    AllCounted,
    /// The choices of all branches are counted: `br_if`, `if`, `br_table` and `select`.
    BranchesCounted,
    /// The module counts all instructions and calls itself, in a global for each.
    Rewritten,
}

impl Variant {
    const ALL: [(Self, &'static str); 11] = [
        (Self::Original, "original"),
        (Self::With(ProbeSites::Functions), "with functions"),
        (Self::With(ProbeSites::Branches), "with branches"),
        (Self::With(ProbeSites::All), "with all"),
        (Self::FunctionsOff, "functions off"),
        (Self::BranchesOff, "branches off"),
        (Self::AllOff, "all off"),
        (Self::EntriesCounted, "entries counted"),
        (Self::AllCounted, "all counted"),
        (Self::BranchesCounted, "branches counted"),
        (Self::Rewritten, "rewritten"),
    ];

    /// Whether probes of this variant are at an instruction.
    fn has(self, instruction: &Instruction<'_>) -> bool {
        match self {
            Self::Original | Self::With(_) | Self::FunctionsOff | Self::EntriesCounted | Self::Rewritten => {
                false
            }
            Self::BranchesOff => instruction.is_control(),
            Self::BranchesCounted => chooses(instruction),
            Self::AllOff | Self::AllCounted => true,
        }
    }
}

/// Whether an instruction has an operand that decides how it continues.
fn chooses(instruction: &Instruction<'_>) -> bool {
    use wasm_jit::wasmparser::Operator::{BrIf, BrTable, If, Select, TypedSelect};
    matches!(instruction.operator(), BrIf { .. } | If { .. } | BrTable { .. } | Select | TypedSelect { .. })
}

/// Switches probes off, and leaves functions in the code that was made for them: the first probe of
/// each is toggled more often than a function returns to its original.
fn leave_in_versions(probes: &[Probe]) {
    let off = |probe: &Probe| probe.deactivate().expect("a probe can be switched off");
    probes.iter().for_each(off);
    for of_function in probes.chunk_by(|a, b| a.spec().location.function == b.spec().location.function) {
        for _ in 0..40 {
            of_function[0].activate().expect("a probe can be switched on");
            off(&of_function[0]);
        }
    }
}

/// A kernel, loaded in a variant.
struct Loaded {
    variant: Variant,
    module: Module,
    probes: Vec<Probe>,
    /// The time of each turn, in nanoseconds.
    times: Vec<f64>,
}

impl Loaded {
    fn new(bytes: &[u8], variant: Variant) -> Self {
        let mut config = Config::new();
        if let Variant::With(sites) = variant {
            config.probe_sites(sites);
        }
        if matches!(variant, Variant::FunctionsOff | Variant::BranchesOff | Variant::AllOff) {
            // Sites, not counting versions.
            config.counter_stubs(u32::MAX);
        }
        let engine = Engine::new(&config).expect("an engine");
        let bytes = if variant == Variant::Rewritten { rewrite::rewrite(bytes).0 } else { bytes.to_vec() };
        let module = Module::from_binary(&engine, &bytes).expect("a valid module");
        let probes = match variant {
            Variant::Original | Variant::With(_) | Variant::Rewritten => Vec::new(),
            _ => probes(&module, variant),
        };
        for on in activate_all(&probes) {
            on.expect("a probe can be switched on");
        }
        if matches!(variant, Variant::FunctionsOff | Variant::BranchesOff | Variant::AllOff) {
            leave_in_versions(&probes);
        }
        Self { variant, module, probes, times: Vec::new() }
    }

    /// Runs the kernel; returns its checksum.
    fn run(&mut self, n: u32) -> String {
        let output = OutputPipe::new(64 << 20);
        let mut wasi = WasiCtxBuilder::new();
        wasi.arg("kernel").arg(n.to_string()).arg("1").stdout(output.clone());
        let mut store = Store::new(self.module.engine(), wasi.build());
        let mut linker = Linker::new(self.module.engine());
        add_to_linker(&mut linker, |wasi: &mut WasiCtx| wasi).expect("the names of WASI are free");
        let instance = linker.instantiate(&mut store, &self.module).expect("a WASI command");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a WASI command");
        let before = self.counted();
        // A command may end by an exit, which is an error of the call.
        let _ = start.call(&mut store, ());
        let text = String::from_utf8(output.contents()).expect("a line of text");
        let (checksum, ns) = kernels::printed(&text).unwrap_or_else(|| panic!("the kernel printed: {text}"));
        let has_counted = match self.variant {
            Variant::Rewritten => {
                let first = instance.get_global(&mut store, "count 0").expect("a counter").get(&mut store);
                matches!(first, Val::I64(count) if count > 0)
            }
            Variant::EntriesCounted | Variant::AllCounted | Variant::BranchesCounted => {
                self.counted() > before
            }
            _ => self.counted() == before,
        };
        assert!(has_counted, "{:?}: wrong counts", self.variant);
        self.times.push(ns);
        checksum
    }

    fn counted(&self) -> u64 {
        self.probes.iter().map(Probe::count).sum()
    }
}

/// Size of the machine code of a variant, with the versions and stubs that its probes have made.
fn code_size(loaded: &Loaded) -> usize {
    let mut map = Vec::new();
    loaded.module.write_perf_map(&mut map).expect("memory is writable");
    let text = String::from_utf8(map).expect("a map is text");
    let made = text.lines().filter(|line| line.ends_with(" [probed]") || line.ends_with(" [stub]"));
    let size = |line: &str| {
        let size = line.split(' ').nth(1).and_then(|size| usize::from_str_radix(size, 16).ok());
        size.expect("a line has an address, a size and a name")
    };
    loaded.module.code_size() + made.map(size).sum::<usize>()
}

/// Probes at the places of a variant.
fn probes(module: &Module, variant: Variant) -> Vec<Probe> {
    let mut specs = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        let mut add = |place| {
            let location = Location { function: function.index(), place };
            let kind = if variant == Variant::BranchesCounted { Kind::CountBranch } else { Kind::Count };
            specs.push(ProbeSpec { location, kind });
        };
        if variant != Variant::BranchesCounted {
            add(Place::Entry);
        }
        for instruction in body.instructions().filter(|instruction| variant.has(instruction)) {
            add(Place::Instruction { offset: (instruction.offset() - body.range().start) as u32 });
        }
    }
    let made = module.probes(&specs).into_iter();
    made.filter_map(|probe| match probe {
        Ok(probe) => Some(probe),
        Err(ProbeError::Unreachable { .. }) => None,
        Err(error) => panic!("{error}"),
    })
    .collect()
}

fn main() {
    let Arguments { options, choice } = Arguments::parse();
    let mut report = Report::new("What do probes cost the WebAssembly code that runs through them?");
    let chosen = kernels::SCALAR.sample(&choice, &options);
    assert!(!chosen.is_empty(), "there is nothing to measure");
    options.progress("the kernels are compiled");
    let built = kernels::SCALAR.build(&chosen);
    let turns = options.runs(3);
    let measured: Vec<(Kernel, Vec<Measured>)> = built
        .iter()
        .map(|built| {
            options.progress(built.kernel.name);
            (built.kernel, measure(&options, built, turns))
        })
        .collect();
    report.push(times(&measured));
    report.push(ratios(&measured));
    report.push(sizes(&measured));
    options.progress("firing");
    report.push(firing::table(&options));
    options.progress("counters");
    report.push(counters::table(&options));
    options.progress("memory");
    report.push(memory::table(&options));
    options.print(&report);
}

/// How long a kernel takes in one variant.
struct Measured {
    /// The least time of all turns, in nanoseconds.
    least: f64,
    /// The median of the time of each turn relative to the code without probes in the same turn.
    ratio: f64,
    /// Bytes of code.
    size: usize,
}

/// The times of each variant.
fn measure(options: &Options, built: &Built, turns: u32) -> Vec<Measured> {
    let bytes = fs::read(&built.wasm).expect("the kernel was built");
    let n = options.either(built.kernel.full, built.kernel.quick);
    let mut variants: Vec<Loaded> =
        Variant::ALL.iter().map(|(variant, _)| Loaded::new(&bytes, *variant)).collect();
    let mut expected = None;
    for _ in 0..turns {
        for loaded in &mut variants {
            let checksum = loaded.run(n);
            assert_eq!(expected.get_or_insert_with(|| checksum.clone()), &checksum, "{:?}", loaded.variant);
        }
    }
    let measured = |loaded: &Loaded| {
        let ratios = loaded.times.iter().zip(&variants[0].times).map(|(time, original)| time / original);
        Measured {
            least: loaded.times.iter().copied().fold(f64::INFINITY, f64::min),
            ratio: Distribution::of(ratios.collect()).median,
            size: code_size(loaded),
        }
    };
    variants.iter().map(measured).collect()
}

fn columns() -> Vec<&'static str> {
    ["kernel"].into_iter().chain(Variant::ALL.iter().map(|(_, name)| *name)).collect()
}

fn times(measured: &[(Kernel, Vec<Measured>)]) -> Table {
    let mut table = Table::new("Run time", "Milliseconds, the least of all turns.", &columns());
    for (kernel, variants) in measured {
        let ms = variants.iter().map(|variant| Cell::from(variant.least / 1e6));
        table.push([Cell::from(kernel.name)].into_iter().chain(ms).collect());
    }
    table
}

fn sizes(measured: &[(Kernel, Vec<Measured>)]) -> Table {
    let mut table = Table::new(
        "Code size",
        "The code of each variant, and of all versions and stubs that its probes have made, times the bytes in the \
         first column, which are those of the original. Below: the geometric mean.",
        &columns(),
    );
    let ratio =
        |variants: &[Measured], variant: usize| variants[variant].size as f64 / variants[0].size as f64;
    let mut row = |name: &str, first: Cell, ratio: &dyn Fn(usize) -> f64| {
        let ratios = (1..Variant::ALL.len()).map(|variant| Cell::from(ratio(variant)));
        table.push([Cell::from(name), first].into_iter().chain(ratios).collect());
    };
    for (kernel, variants) in measured {
        row(kernel.name, Cell::from(variants[0].size), &|variant| ratio(variants, variant));
    }
    row("geometric mean", Cell::from(""), &|variant| {
        geometric_mean(measured.iter().map(|(_, variants)| ratio(variants, variant)))
    });
    table
}

fn ratios(measured: &[(Kernel, Vec<Measured>)]) -> Table {
    let mut table = Table::new(
        "Times the run time without probes",
        "The same run times. Below: the geometric mean, and the largest of each column; and the geometric mean of what \
         each kernel takes in the median turn, times what the code without probes takes in the same turn.",
        &columns(),
    );
    let mut row = |name: &str, value: &dyn Fn(usize) -> f64| {
        let values = (0..Variant::ALL.len()).map(|variant| Cell::from(value(variant)));
        table.push([Cell::from(name)].into_iter().chain(values).collect());
    };
    let ratio = |variants: &[Measured], variant: usize| variants[variant].least / variants[0].least;
    for (kernel, variants) in measured {
        row(kernel.name, &|variant| ratio(variants, variant));
    }
    let mean =
        |of: &dyn Fn(&[Measured]) -> f64| geometric_mean(measured.iter().map(|(_, variants)| of(variants)));
    row("geometric mean", &|variant| mean(&|variants| ratio(variants, variant)));
    row("largest", &|variant| {
        measured.iter().map(|(_, variants)| ratio(variants, variant)).fold(0.0, f64::max)
    });
    row("geometric mean of medians", &|variant| mean(&|variants| variants[variant].ratio));
    table
}
