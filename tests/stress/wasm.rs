//! Probes in WebAssembly: four threads run the same functions, each in a separate store, while a
//! fifth toggles probes at all instructions and entries as fast as it can. Some of the probes
//! count; others append records, or call closures (with values or with the frame), native
//! functions, or a WebAssembly function in one of the stores, all of which count. A sixth thread
//! loads modules, runs them with all probes on, and drops them. The engines differ in the places
//! for probes that functions have from the start, and in whether functions with many counters count
//! by themselves.
//!
//! After [`ROUND`] toggles the fifth thread pauses. With all probes on, each executor makes several
//! calls, and every count must grow by the amount that a self-counting module reports; with all
//! probes off, none may grow. Then the module is dropped, and the next round loads another one: the
//! memory of the process and the number of its mappings must not grow from round to round.

#[path = "../../wasm-jit/tests/frame_maps/programs.rs"]
mod programs;
#[path = "../../wasm-jit/tests/probes/rewrite.rs"]
mod rewrite;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind as ProbeKind, Location, NativeFn, Place, Probe, ProbeSpec, Recorder,
    WasmFn, activate_all, deactivate_all,
};
use wasm_jit::{
    Config, Engine, Instance, MemoryType, Module, ProbeSites, SharedMemory, Store, TypedFunc, Val,
};

use crate::options::Defect;
use crate::run::{Kind, Run, Worker};

const EXECUTORS: usize = 4;
/// The number of toggles in a round.
const ROUND: usize = 5_000;
/// The number of calls by each executor while counts are compared.
const CALLS: u64 = 3;
/// The number of random programs, in addition to those in files.
const RANDOM: usize = 3;

/// The number of pages of the memory in which WebAssembly functions count.
const PAGES: u32 = 16;
/// Counts in the quadword with this number. Stubs may execute the function themselves.
const MONITOR: &str = r#"(module
    (import "host" "counts" (memory 16 16 shared))
    (func (export "count") (param i32) (local i32)
        (local.set 1 (i32.shl (local.get 0) (i32.const 3)))
        (i64.store (local.get 1) (i64.add (i64.load (local.get 1)) (i64.const 1)))))"#;

const HOT: &str = include_str!("../../wasm-jit/tests/probes/hot.wat");
const SHAPES: &str = include_str!("../../wasm-jit/tests/probes/shapes.wat");

pub(crate) fn run(run: &Run) {
    let with = |(sites, counter_stubs)| {
        Engine::new(Config::new().probe_sites(sites).counter_stubs(counter_stubs)).expect("an engine")
    };
    let engines = [
        (ProbeSites::None, u32::MAX),
        (ProbeSites::Branches, u32::MAX),
        (ProbeSites::None, 0),
        (ProbeSites::All, u32::MAX),
    ]
    .map(with);
    let texts = [HOT, SHAPES].map(str::to_owned).into_iter().chain((0..).map(programs::program));
    let programs: Vec<Program> =
        texts.filter_map(|text| Program::new(&engines[0], &text)).take(2 + RANDOM).collect();
    thread::scope(|scope| {
        scope.spawn(|| load(run, &engines, &programs));
        scope.spawn(|| switch(run, &engines, &programs));
        scope.spawn(|| crate::defect::inject(run, &crate::sites::make(1)));
    });
}

/// The outcome of a call to `main`: the result, or the trap, and a checksum of the memory.
type Outcome = (Result<i64, String>, u32);

/// A program, and the effects of each call to it.
struct Program {
    bytes: Vec<u8>,
    outcome: Outcome,
    places: Vec<rewrite::Counted>,
    /// The number of executions of each place.
    counts: Vec<u64>,
}

impl Program {
    /// `None` if a second call differs from the first, or a call takes long.
    fn new(engine: &Engine, text: &str) -> Option<Self> {
        let bytes = wat::parse_str(text).expect("a valid program");
        let (rewritten, places) = rewrite::rewrite(&bytes);
        let module = Module::from_binary(engine, &rewritten).expect("the rewritten program is valid");
        let mut running = Running::new(&module);
        let outcome = running.call();
        let counts = running.counted(places.len());
        let again = running.call();
        let twice: Vec<u64> = counts.iter().map(|count| 2 * count).collect();
        let is_regular = again == outcome && running.counted(places.len()) == twice;
        let is_short = counts.iter().sum::<u64>() < 200_000;
        (is_regular && is_short).then_some(Self { bytes, outcome, places, counts })
    }

    fn load(&self, engine: &Engine) -> Module {
        Module::from_binary(engine, &self.bytes).expect("it was compiled before")
    }

    /// The number of instructions that a call executes.
    fn executed(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Probes at these places, if they are reachable, each with the number of its place.
    fn probes(
        &self,
        module: &Module,
        numbers: impl Iterator<Item = usize>,
        counts: &Arc<Counts>,
    ) -> Vec<(usize, Counter)> {
        let start = |function| {
            let body = module.function(function).and_then(|function| function.body());
            body.expect("the module has the function").range().start as u32
        };
        let numbers: Vec<usize> = numbers.collect();
        let specs = numbers.iter().map(|number| {
            let (function, at) = self.places[*number];
            let place = match at {
                None => Place::Entry,
                Some(at) => Place::Instruction { offset: at - start(function) },
            };
            ProbeSpec { location: Location { function, place }, kind: counts.kind(*number) }
        });
        let made = module.probes(&specs.collect::<Vec<_>>());
        let counter = |number, probe| Some((number, Counter { probe, number, counts: Arc::clone(counts) }));
        numbers.into_iter().zip(made).filter_map(|(number, probe)| counter(number, probe.ok()?)).collect()
    }
}

/// The counts of the functions of a module's probes, by the numbers of their places.
struct Counts {
    by_functions: Arc<[AtomicU64]>,
    recorder: Recorder,
    /// Of the store of one instance.
    function: WasmFn,
    by_wasm: SharedMemory,
}

impl Counts {
    /// For a module of this many places; one kind of probe counts in this store only.
    fn new(places: usize, running: &mut Running) -> Arc<Self> {
        assert!(8 * places <= (PAGES as usize) << 16, "a quadword for each place");
        let by_functions: Arc<[AtomicU64]> = (0..places).map(|_| AtomicU64::new(0)).collect();
        let of_recorder = by_functions.clone();
        let recorder = Recorder::new(move |_, records: &[[u64; 1]]| {
            for [number] in records {
                of_recorder[*number as usize].fetch_add(1, Ordering::Relaxed);
            }
        });
        let by_wasm = SharedMemory::new(MemoryType::shared(PAGES, PAGES)).expect("a memory");
        let store = &mut running.store;
        let monitor = Module::new(store.engine(), MONITOR).expect("a valid module");
        let monitor = Instance::new(&mut *store, &monitor, &[by_wasm.clone().into()]).expect("an instance");
        let function = monitor.get_func(&mut *store, "count").expect("it is exported");
        let function = WasmFn::new(&*store, function).expect("it has no results");
        Arc::new(Self { by_functions, recorder: recorder.expect("there are few"), function, by_wasm })
    }

    /// The kind of the probe of a place.
    fn kind(&self, number: usize) -> ProbeKind {
        let (counts, slot) = (self.by_functions.clone(), Bound::Const(number as u64));
        match number % 8 {
            0 => ProbeKind::Callback {
                function: Callback::new(move |values| {
                    counts[values[0] as usize].fetch_add(1, Ordering::Relaxed);
                }),
                values: [slot].into(),
            },
            1 => ProbeKind::Generic(GenericFn::new(move |frame| {
                counts[number].fetch_add(u64::from(frame.depth() < 1 << 20), Ordering::Relaxed);
                Ok(())
            })),
            2 => {
                let count = std::ptr::from_ref(&counts[number]).expose_provenance();
                // SAFETY: the function does not unwind, and is part of the program.
                let function = unsafe { NativeFn::new(count_at as extern "C" fn(u64)) };
                ProbeKind::Native { function, values: [Bound::Const(count as u64)].into() }
            }
            3 => ProbeKind::Record { recorder: self.recorder.clone(), values: [slot].into() },
            4 => ProbeKind::Wasm { function: self.function.clone(), values: [slot].into() },
            _ => ProbeKind::Count,
        }
    }
}

/// Counts at an address.
extern "C" fn count_at(address: u64) {
    let count = std::ptr::with_exposed_provenance::<AtomicU64>(address as usize);
    // SAFETY: probes pass the addresses of counts that are kept until the programs which execute
    // them have ended.
    unsafe { (*count).fetch_add(1, Ordering::Relaxed) };
}

/// A probe that counts, directly or through its function.
struct Counter {
    probe: Probe,
    number: usize,
    counts: Arc<Counts>,
}

impl Counter {
    /// The count, after all records have been flushed.
    fn count(&self) -> u64 {
        match self.probe.spec().kind {
            ProbeKind::Count => self.probe.count(),
            ProbeKind::Wasm { .. } => {
                let mut count = [0; 8];
                self.counts.by_wasm.read(8 * self.number, &mut count).expect("inside the memory");
                u64::from_le_bytes(count)
            }
            _ => self.counts.by_functions[self.number].load(Ordering::Relaxed),
        }
    }

    /// The number of stores in which the probe counts.
    fn stores(&self, all: u64) -> u64 {
        if matches!(self.probe.spec().kind, ProbeKind::Wasm { .. }) { 1 } else { all }
    }
}

/// An instance in a store.
struct Running {
    store: Store<()>,
    instance: Instance,
    main: TypedFunc<(), i64>,
}

impl Running {
    fn new(module: &Module) -> Self {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).expect("an instance");
        let main = instance.get_typed_func(&mut store, "main").expect("main");
        Self { store, instance, main }
    }

    fn call(&mut self) -> Outcome {
        let result = self.main.call(&mut self.store, ());
        let result = result.map_err(|error| error.reason());
        let memory = self.instance.get_memory(&mut self.store, "memory").expect("a memory");
        (result, crc32fast::hash(memory.data(&self.store)))
    }

    /// Executes a call, which must have the expected outcome.
    fn execute(&mut self, worker: &Worker<'_>, program: &Program) {
        let outcome = self.call();
        worker.check(outcome == program.outcome, Kind::Torn, || {
            format!("{outcome:?} instead of {:?}", program.outcome)
        });
        worker.executed(program.executed());
        worker.beat();
    }

    /// The counters of a rewritten program.
    fn counted(&mut self, places: usize) -> Vec<u64> {
        let count = |number: usize| {
            let global = self.instance.get_global(&mut self.store, &format!("count {number}"));
            match global.expect("a counter").get(&mut self.store) {
                Val::I64(count) => count as u64,
                other => panic!("{other:?}"),
            }
        };
        (0..places).map(count).collect()
    }
}

fn counts(probes: &[(usize, Counter)]) -> Vec<u64> {
    if let Some((_, counter)) = probes.first() {
        counter.counts.recorder.flush();
    }
    probes.iter().map(|(_, probe)| probe.count()).collect()
}

/// Checks what probes have counted since `before`, while each of `stores` stores has called their
/// program `calls` times.
fn check_counts(
    worker: &Worker<'_>,
    program: &Program,
    probes: &[(usize, Counter)],
    before: &[u64],
    (calls, stores): (u64, u64),
) {
    for (((number, probe), before), now) in probes.iter().zip(before).zip(counts(probes)) {
        let times = calls * probe.stores(stores);
        let (counted, expected) = (now - before, times * program.counts[*number]);
        worker.check(counted == expected, Kind::Lost, || {
            format!("{counted} executions of {:x?} were counted, not {expected}", program.places[*number])
        });
    }
}

/// Loads, runs and drops modules with probes.
fn load(run: &Run, engines: &[Engine], programs: &[Program]) {
    let mut worker = run.worker("loader");
    while worker.continues() {
        let program = &programs[worker.random.below(programs.len())];
        let module = program.load(&engines[worker.random.below(engines.len())]);
        let chosen = worker.random.some_of(&(0..program.places.len()).collect::<Vec<_>>());
        let mut running = Running::new(&module);
        let of_probes = Counts::new(program.places.len(), &mut running);
        let probes = program.probes(&module, chosen.into_iter(), &of_probes);
        let on = activate_all(probes.iter().map(|(_, counter)| &counter.probe));
        worker.check(on.iter().all(Result::is_ok), Kind::Lost, || format!("{on:?}"));
        worker.toggled(on.len() as u64);
        running.execute(&worker, program);
        check_counts(&worker, program, &probes, &vec![0; probes.len()], (1, 1));
        match worker.random.below(3) {
            0 => drop(probes),
            1 => drop(running),
            _ => drop(module),
        }
    }
}

/// Runs round after round.
fn switch(run: &Run, engines: &[Engine], programs: &[Program]) {
    let mut switcher = run.worker("switcher");
    let name = |number| format!("executor of WebAssembly {number}");
    let mut executors: Vec<Worker<'_>> = (0..EXECUTORS).map(|number| run.worker(name(number))).collect();
    let mut earlier = None;
    // Over time, each program is compiled by each engine.
    let engine = |number: usize| &engines[number / programs.len() % engines.len()];
    for (number, program) in programs.iter().cycle().enumerate() {
        if !switcher.continues() {
            return;
        }
        round(&mut switcher, &mut executors, engine(number), program);
        // Each program has run, and the allocator has what it keeps.
        if run.is_alone && number >= programs.len() {
            let now = Usage::now();
            now.check(&switcher, *earlier.get_or_insert(now));
        }
    }
}

fn round(switcher: &mut Worker<'_>, executors: &mut [Worker<'_>], engine: &Engine, program: &Program) {
    let module = program.load(engine);
    // One instance is older than the probes.
    let mut running = vec![Running::new(&module)];
    let of_probes = Counts::new(program.places.len(), &mut running[0]);
    let mut probes = program.probes(&module, 0..program.places.len(), &of_probes);
    running.resize_with(EXECUTORS, || Running::new(&module));
    let is_quiet = AtomicBool::new(false);
    thread::scope(|scope| {
        for (worker, running) in executors.iter_mut().zip(&mut running) {
            let is_quiet = &is_quiet;
            scope.spawn(move || {
                while !is_quiet.load(Ordering::Acquire) {
                    running.execute(worker, program);
                }
            });
        }
        switch_at_random(switcher, &module, program, &mut probes);
        is_quiet.store(true, Ordering::Release);
    });
    let call_all = |executors: &mut [Worker<'_>], running: &mut [Running]| {
        thread::scope(|scope| {
            for (worker, running) in executors.iter_mut().zip(running) {
                scope.spawn(move || (0..CALLS).for_each(|_| running.execute(worker, program)));
            }
        });
    };
    if switcher.run.defect == Some(Defect::Switch) {
        let _ = probes.iter().try_for_each(|(_, counter)| counter.probe.deactivate());
    }
    let before = counts(&probes);
    call_all(executors, &mut running);
    check_counts(switcher, program, &probes, &before, (CALLS, EXECUTORS as u64));
    let off = match switcher.random.coin() {
        true => deactivate_all(probes.iter().map(|(_, counter)| &counter.probe)),
        false => probes.iter().map(|(_, counter)| counter.probe.deactivate()).collect(),
    };
    switcher.check(off.iter().all(Result::is_ok), Kind::Lost, || format!("{off:?}"));
    switcher.toggled(off.len() as u64);
    let before = counts(&probes);
    call_all(executors, &mut running);
    check_counts(switcher, program, &probes, &before, (0, 0));
    if switcher.run.defect == Some(Defect::Leak) {
        std::mem::forget(module);
    }
}

/// Toggles probes, and creates and drops some; at the end, all are on.
fn switch_at_random(
    worker: &mut Worker<'_>,
    module: &Module,
    program: &Program,
    probes: &mut [(usize, Counter)],
) {
    let mut are_on = vec![false; probes.len()];
    for _ in 0..ROUND {
        let chosen = worker.random.below(probes.len());
        let (number, counter) = &mut probes[chosen];
        let switched = match (worker.random.below(1000), are_on[chosen]) {
            (0, _) => {
                let remade = program.probes(module, [*number].into_iter(), &counter.counts).pop();
                *counter = remade.expect("there was one").1;
                are_on[chosen] = false;
                continue;
            }
            // The functions return to their originals.
            (1, _) => {
                are_on.fill(false);
                let off = deactivate_all(probes.iter().map(|(_, counter)| &counter.probe));
                worker.check(off.iter().all(Result::is_ok), Kind::Lost, || format!("{off:?}"));
                continue;
            }
            (_, true) => counter.probe.deactivate(),
            (_, false) => counter.probe.activate(),
        };
        are_on[chosen] = !are_on[chosen];
        worker.check(switched.is_ok(), Kind::Lost, || format!("{switched:?}"));
        worker.toggled(1);
        worker.beat();
    }
    let on = activate_all(probes.iter().map(|(_, counter)| &counter.probe));
    worker.check(on.iter().all(Result::is_ok), Kind::Lost, || format!("{on:?}"));
    worker.toggled(are_on.iter().filter(|is_on| !**is_on).count() as u64);
}

/// The resources that this process uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// The memory in kilobytes.
    memory: u64,
    mappings: usize,
}

impl Usage {
    /// The permitted growth.
    const ROOM: Self = Self { memory: 16 << 10, mappings: 60 };

    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            value.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        let maps = fs::read_to_string("/proc/self/maps").expect("a process has mappings");
        Self { memory: field("RssAnon:") + field("RssShmem:"), mappings: maps.lines().count() }
    }

    /// Checks that a round has left no more than an earlier one.
    fn check(self, worker: &Worker<'_>, earlier: Self) {
        let is_more = self.memory > earlier.memory + Self::ROOM.memory
            || self.mappings > earlier.mappings + Self::ROOM.mappings;
        worker.check(!is_more, Kind::Other, || format!("memory grows: {self:?}, earlier {earlier:?}"));
    }
}
