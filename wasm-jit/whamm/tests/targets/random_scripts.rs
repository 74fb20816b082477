//! Random scripts on random programs: the reports of a script in place, from a separate store, and
//! in the rewritten program must be the same text. At the same time, another thread creates,
//! toggles and drops other probes of the program that is observed in place.
//!
//! `RANDOM_SCRIPTS=100..5000` selects the seeds; by default, there are a few.

mod script;

use std::error::Error;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rand::rngs::{SmallRng, StdRng};
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Engine, Instance, Linker, Module, Store, Trap};
use wasm_jit_whamm::lang::{self, Script};
use wasm_jit_whamm::monitor_module::MonitorModule;
use wasm_jit_whamm::rewrite;

use crate::many_rules::without_sections;
use crate::printing::{printing, text};

/// The number of runs of a program: its memory keeps what it has written.
const RUNS: usize = 3;

/// The maximum number of toggles by another thread in these runs. Each new order of probes at a
/// place takes stub memory, which is limited.
const SWITCHES: usize = 2_000;

/// The result of each run, and the printed text.
#[derive(Debug, PartialEq)]
struct Outcome {
    results: Vec<Result<i64, Option<Trap>>>,
    report: String,
}

impl Outcome {
    /// The maximum stack depth depends on the size of frames.
    fn has_overflowed(&self) -> bool {
        self.results.contains(&Err(Some(Trap::StackOverflow)))
    }
}

/// Calls the export `main`, or `run`, which has no result.
fn run(store: &mut Store<()>, instance: &Instance) -> Vec<Result<i64, Option<Trap>>> {
    let main = instance.get_typed_func::<(), i64>(&mut *store, "main");
    let mut call = || match &main {
        Ok(main) => main.call(&mut *store, ()),
        Err(_) => {
            let run = instance.get_typed_func::<(), ()>(&mut *store, "run")?;
            run.call(&mut *store, ()).map(|()| 0)
        }
    };
    (0..RUNS).map(|_| call().map_err(|error: wasm_jit::Error| error.trap())).collect()
}

/// Programs of two kinds: with many types and values, and with many ways to leave a function.
fn program(seed: u64) -> String {
    if seed.is_multiple_of(3) {
        return crate::statements::program(&mut StdRng::seed_from_u64(seed));
    }
    // A report cannot be printed from a 64-bit memory.
    crate::programs::program(seed).replace("(export \"memory\") i64", "i64")
}

/// Probes of all kinds at random places, which never touch the program's state.
fn other_probes(module: &Module, random: &mut SmallRng) -> Vec<Probe> {
    let mut specs = Vec::new();
    for function in module.functions() {
        let Some(body) = function.body() else { continue };
        let start = body.range().start;
        let places =
            body.instructions().map(|at| Place::Instruction { offset: (at.offset() - start) as u32 });
        for place in places.chain([Place::Entry, Place::Exit]) {
            if random.random_range(0..8) > 0 {
                continue;
            }
            let kind = match random.random_range(0..3) {
                0 => Kind::Count,
                1 => Kind::CountBranch,
                _ => Kind::Callback {
                    function: Callback::new(|values| _ = std::hint::black_box(values.len())),
                    values: [Bound::Function, Bound::Offset].into(),
                },
            };
            specs.push(ProbeSpec { location: Location { function: function.index(), place }, kind });
        }
    }
    // Some of them cannot be created: at instructions that make no choice, and at unreachable ones.
    module.probes(&specs).into_iter().filter_map(Result::ok).collect()
}

/// Runs an action while other probes of the module are created and dropped.
fn while_probes_change<T>(module: &Module, seed: u64, action: impl FnOnce() -> T) -> T {
    let (is_over, both) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut probes = Vec::new();
            both.wait();
            for _ in 0..SWITCHES {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if probes.is_empty() || random.random_range(0..30) == 0 {
                    probes = other_probes(module, &mut random);
                    continue;
                }
                let probe: &Probe = &probes[random.random_range(0..probes.len())];
                match random.random_range(0..2) {
                    0 => probe.activate().unwrap(),
                    _ => probe.deactivate().unwrap(),
                }
            }
        });
        both.wait();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
        is_over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// With probes, in the program's store.
fn in_place(engine: &Engine, monitor: &[u8], program: &[u8], seed: u64) -> Outcome {
    let (mut linker, printed) = printing(engine);
    let module = Module::from_binary(engine, program).unwrap();
    let monitor = MonitorModule::new(Module::from_binary(engine, monitor).unwrap(), Vec::new()).unwrap();
    let mut store = Store::new(engine, ());
    let mut attached = monitor.attach(&mut store, &mut linker, &module).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let results = while_probes_change(&module, seed, || run(&mut store, &instance));
    attached.finish(&mut store).unwrap();
    Outcome { results, report: text(&printed) }
}

/// With probes, from a separate store.
fn shared(engine: &Engine, monitor: &[u8], program: &[u8], seed: u64) -> Outcome {
    let (mut linker, printed) = printing(engine);
    let module = Module::from_binary(engine, program).unwrap();
    let monitor = MonitorModule::new(Module::from_binary(engine, monitor).unwrap(), Vec::new()).unwrap();
    let shared = monitor.share(Store::new(engine, ()), &mut linker, &module).unwrap();
    shared.activate().unwrap();
    let mut store = Store::new(engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let results = while_probes_change(&module, seed, || run(&mut store, &instance));
    shared.finish().unwrap();
    Outcome { results, report: text(&printed) }
}

/// The report of a script that this engine compiles, which toggles groups of probes unless all of
/// them are always on; in the program's store.
fn switching(engine: &Engine, script: &Script, program: &[u8], seed: u64, always: bool) -> String {
    let module = Module::from_binary(engine, program).unwrap();
    let monitor =
        MonitorModule::new(Module::from_binary(engine, script.module()).unwrap(), Vec::new()).unwrap();
    let monitor = if always { monitor.always_call() } else { monitor };
    let mut store = Store::new(engine, ());
    let mut attached = monitor.attach(&mut store, &mut Linker::new(engine), &module).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let results = while_probes_change(&module, seed, || run(&mut store, &instance));
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    format!("{results:?} {:#?}", script.report(&store, instance).unwrap())
}

/// In the program that contains the rules; an error if it is refused or invalid.
fn rewritten(engine: &Engine, script: &str, program: &[u8]) -> Result<Outcome, Box<dyn Error>> {
    let module = Module::from_binary(engine, program)?;
    let instrumented = rewrite::instrument("random.mm", script.as_bytes(), &module)?;
    let (linker, printed) = printing(engine);
    let mut store = Store::new(engine, ());
    let instance = linker.instantiate(&mut store, &Module::from_binary(engine, &instrumented)?)?;
    let results = run(&mut store, &instance);
    instance.get_typed_func::<(), ()>(&mut store, "whamm:report")?.call(&mut store, ())?;
    Ok(Outcome { results, report: text(&printed) })
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("RANDOM_SCRIPTS") else { return 0..60 };
    let parsed = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("RANDOM_SCRIPTS={text}: expected FIRST..END, such as 100..5000"))
}

#[test]
fn reports_do_not_depend_on_the_target() {
    let engine = Engine::default();
    let (mut rows, mut compared, mut switching_scripts) = (0, 0, 0);
    for seed in seeds() {
        let program = program(seed);
        let script = script::script(seed);
        let described = || format!("seed {seed}\n{}", script::with_program(&script, &program));
        let monitor = match lang::compile("random.mm", script.as_bytes(), &[]) {
            Ok(monitor) => monitor,
            Err(error) => panic!("{error}\n{}", described()),
        };
        let binary = wat::parse_str(&program).unwrap();
        let expected = rewritten(&engine, &script, &binary);
        let expected = expected.unwrap_or_else(|error| panic!("rewritten: {error}\n{}", described()));
        if expected.has_overflowed() {
            continue;
        }
        assert_eq!(in_place(&engine, &monitor, &binary, seed), expected, "in place, {}", described());
        // Without the description of its predicates.
        let plain = without_sections(&monitor);
        assert_eq!(in_place(&engine, &plain, &binary, seed), expected, "plain, {}", described());
        assert_eq!(shared(&engine, &monitor, &binary, seed), expected, "shared, {}", described());
        let here = Script::new("random.mm", script.as_bytes(), &[]).unwrap();
        let switched = switching(&engine, &here, &binary, seed, false);
        let always = switching(&engine, &here, &binary, seed, true);
        assert_eq!(switched, always, "groups, {}", described());
        switching_scripts += usize::from(here.module().windows(6).any(|name| name == b"switch"));
        rows += expected.report.lines().count();
        compared += 1;
    }
    println!("{compared} scripts, {switching_scripts} of them with groups, {rows} rows");
    assert!(switching_scripts > compared / 10, "{switching_scripts} of {compared}");
    assert!(rows > 5 * compared, "{rows} rows of {compared} scripts");
}
