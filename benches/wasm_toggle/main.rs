//! The cost of switching WebAssembly probes on and off, and of making the first probe in a
//! function; for comparison, the cost of compiling the code anew, as engines do that insert probes
//! by discarding the code of a function. And the cost of toggles for the threads that execute the
//! code.
//!
//! Before anything is timed, each probe must count what it should, and nothing once it is off.

mod kinds;
mod program;
mod throughput;

use std::sync::Mutex;

use benches::clock;
use benches::executor::Executor;
use benches::options::Options;
use benches::report::{Report, Table};
use clap::Parser;
use program::{INSTRUCTIONS, module_text};
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec, activate_all, deactivate_all};
use wasm_jit::{Config, Engine, Instance, Module, Store, TypedFunc};

/// A probe for each instruction of the loops.
fn specs(module: &Module) -> Vec<ProbeSpec> {
    let mut specs = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        for instruction in body.instructions() {
            let place = Place::Instruction { offset: (instruction.offset() - body.range().start) as u32 };
            specs.push(ProbeSpec {
                location: Location { function: function.index(), place },
                kind: Kind::Count,
            });
        }
    }
    specs
}

fn made(probes: Vec<Result<Probe, wasm_jit::probes::ProbeError>>) -> Vec<Probe> {
    probes.into_iter().map(|probe| probe.expect("all code can be reached")).collect()
}

fn switched(results: Vec<Result<(), wasm_jit::probes::ProbeError>>) {
    results.into_iter().for_each(|switched| switched.expect("a probe can be switched"));
}

/// A function of a module, in a store of its own.
struct Callable {
    store: Store<()>,
    function: TypedFunc<i32, i32>,
}

impl Callable {
    fn new(module: &Module) -> Self {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).expect("an instance");
        let function = instance.get_typed_func(&mut store, "0").expect("the first function");
        Self { store, function }
    }

    fn call(&mut self) -> i32 {
        self.function.call(&mut self.store, 1).expect("it does not trap")
    }
}

/// Engines compile on one thread here.
fn engine() -> Engine {
    Engine::new(Config::new().compile_threads(std::num::NonZero::<usize>::MIN)).expect("an engine")
}

fn main() {
    let options = Options::parse();
    let mut report = Report::new("What does it cost to switch probes of WebAssembly on and off?");
    options.progress("one probe");
    report.push(one(&options));
    options.progress("the first probe of a function");
    report.push(first(&options));
    options.progress("many probes");
    report.push(many(&options));
    options.progress("many probes of each kind");
    report.push(kinds::table(&options));
    options.progress("throughput");
    let ticks_per_ns = report.host().ticks_per_ns;
    report.push(throughput::table(&options, ticks_per_ns));
    options.print(&report);
}

fn check(callable: &mut Callable, probe: &Probe) {
    let before = probe.count();
    probe.activate().expect("a probe can be switched on");
    callable.call();
    assert_eq!(probe.count(), before + 1, "a probe that is on counts");
    probe.deactivate().expect("a probe can be switched off");
    callable.call();
    assert_eq!(probe.count(), before + 1, "a probe that is off does not");
}

/// One probe, of a function that has been probed before.
fn one(options: &Options) -> Table {
    let mut table = Table::of_distributions(
        "One probe",
        "Ticks for each call; in the rows with a timer, each call was timed by itself, with the timer. `executed`: \
         another thread runs the function all the time.",
    );
    let module = Module::new(&engine(), module_text(1)).expect("a valid module");
    let probes = made(module.probes(&specs(&module)));
    let probe = &probes[probes.len() / 2];
    let mut callable = Callable::new(&module);
    check(&mut callable, probe);
    let (on, off) = (|| probe.activate(), || probe.deactivate());
    let rounds = options.either(2_000, 20);
    let pairs = || {
        const PAIRS: usize = 100;
        let (ticks, ()) = clock::ticks(|| {
            for _ in 0..PAIRS {
                let _ = (on(), off());
            }
        });
        ticks / (2 * PAIRS) as f64
    };
    table.push_distribution("the timer", clock::own_cost(rounds));
    table.push_distribution("on and off, mean of 100 pairs", (0..rounds).map(|_| pairs()).collect());
    let timed = |table: &mut Table, name: [&str; 2]| {
        let (mut activations, mut deactivations) = (Vec::new(), Vec::new());
        for _ in 0..rounds * 10 {
            let (ticks, switched) = clock::ticks(on);
            switched.expect("a probe can be switched on");
            activations.push(ticks);
            let (ticks, switched) = clock::ticks(off);
            switched.expect("a probe can be switched off");
            deactivations.push(ticks);
        }
        table.push_distribution(name[0], activations);
        table.push_distribution(name[1], deactivations);
    };
    timed(&mut table, ["activate, with the timer", "deactivate, with the timer"]);
    let executed = Mutex::new(Callable::new(&module));
    let run = || {
        let mut executed = executed.lock().expect("no panic");
        for _ in 0..100 {
            executed.call();
        }
    };
    Executor::during(run, |_| {
        timed(&mut table, ["activate, executed, with the timer", "deactivate, executed, with the timer"]);
        table.push_distribution(
            "on and off, executed, mean of 100 pairs",
            (0..rounds).map(|_| pairs()).collect(),
        );
    });
    check(&mut callable, probe);
    table
}

/// The first probe of functions that were never probed.
fn first(options: &Options) -> Table {
    let mut table = Table::of_distributions(
        "The first probe of a function",
        format!(
            "Ticks. Each function has some {INSTRUCTIONS} instructions, and was never probed; the module has been. For \
             comparison, a module of one such function is loaded, and one without any."
        ),
    );
    let functions = options.either(2_000, 20);
    let engine = engine();
    let module = Module::new(&engine, module_text(functions)).expect("a valid module");
    let spec = |function: usize| {
        let location = Location { function: function as u32, place: Place::Entry };
        ProbeSpec { location, kind: Kind::Count }
    };
    let mut callable = Callable::new(&module);
    let kept = module.probe(spec(0)).expect("a function has an entry");
    check(&mut callable, &kept);
    let (mut makes, mut activations, mut removals) = (Vec::new(), Vec::new(), Vec::new());
    for function in 1..functions {
        let (ticks, probe) = clock::ticks(|| module.probe(spec(function)));
        makes.push(ticks);
        let probe = probe.expect("a function has an entry");
        let (ticks, on) = clock::ticks(|| probe.activate());
        on.expect("a probe can be switched on");
        activations.push(ticks);
        let (ticks, ()) = clock::ticks(|| drop(probe));
        removals.push(ticks);
    }
    table.push_distribution("the probe is made, off: `Module::probe`", makes);
    table.push_distribution("its first `activate`", activations);
    table.push_distribution("it is dropped, and the function returns to its original code", removals);
    let load = |functions: usize| {
        let bytes = wat::parse_str(module_text(functions)).expect("a valid module");
        let rounds = 0..options.either(1_000, 10);
        rounds.map(|_| clock::ticks(|| Module::from_binary(&engine, &bytes).is_ok()).0).collect::<Vec<f64>>()
    };
    table.push_distribution("a module of one function is loaded", load(1));
    table.push_distribution("a module of no function is loaded", load(0));
    table
}

/// Many probes in one call.
fn many(options: &Options) -> Table {
    let mut table = Table::of_distributions(
        "Many probes in one call",
        "Ticks for each probe. For comparison, the module is loaded again, which compiles it on one thread: also divided \
         by the number of probes.",
    );
    for functions in options.either([6, 547], [1, 6]) {
        let engine = engine();
        let text = module_text(functions);
        let module = Module::new(&engine, &text).expect("a valid module");
        let specs = specs(&module);
        let count = specs.len();
        let rounds = options.either(20, 2) * if functions < 50 { 20 } else { 1 };
        let mut times: [Vec<f64>; 6] = Default::default();
        let (ticks, probes) = clock::ticks(|| made(module.probes(&specs)));
        let mut callable = Callable::new(&module);
        check(&mut callable, &probes[0]);
        for _ in 0..rounds {
            let on = |times: &mut Vec<f64>| {
                let (ticks, on) = clock::ticks(|| activate_all(&probes));
                times.push(ticks / count as f64);
                switched(on);
            };
            // The functions go from their originals to the code with sites, and back.
            on(&mut times[0]);
            let (ticks, off) = clock::ticks(|| deactivate_all(&probes));
            times[1].push(ticks / count as f64);
            switched(off);
            // They stay in the code with sites.
            switched(activate_all(&probes));
            let (ticks, ()) = clock::ticks(|| probes.iter().for_each(|probe| drop(probe.deactivate())));
            times[2].push(ticks / count as f64);
            on(&mut times[3]);
            switched(deactivate_all(&probes));
        }
        let bytes = wat::parse_str(&text).expect("a valid module");
        for _ in 0..rounds.min(20) {
            let (ticks, loaded) = clock::ticks(|| Module::from_binary(&engine, &bytes));
            times[4].push(ticks / count as f64);
            drop(loaded);
        }
        times[5].push(ticks / count as f64);
        check(&mut callable, &probes[0]);
        let names = [
            "on, from the original code",
            "off, to the original code",
            "off, one by one, in the code with sites",
            "on, in the code with sites",
            "the module is loaded again",
            "the probes are made",
        ];
        for (name, times) in names.into_iter().zip(times) {
            table.push_distribution(&format!("{count} probes: {name}"), times);
        }
    }
    table
}
