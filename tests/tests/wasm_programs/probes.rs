//! The programs with small workloads under probes: with `ProbeSites::All` (places for probes at the
//! entries of functions; those at all instructions come with a function's first probe), with a
//! counter at every instruction that is executed, and with a thread that continuously creates
//! probes and toggles them at random. Output and exit code are the same as without probes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tests::is_long;
use wasm_jit::probes::{Bound, Callback, FirstCallWatch, Kind, Location, Place, Probe, ProbeSpec, Values};
use wasm_jit::{Config, Engine, Linker, Module, ProbeSites, Store};
use wasm_jit_wasi::{Exit, OutputPipe, WasiCtx, WasiCtxBuilder, add_to_linker};

use super::monitors::{GOFMT, ICEPLL, LARGE, LUA, PYTHON, RUST, SQLITE, Workload};
use super::programs;

/// The stack size of the thread that runs a program.
const STACK: usize = 64 << 20;

/// The maximum number of probes that the other thread creates.
const MAX_PROBES: usize = 3000;

/// The minimum number of toggles.
const ENOUGH: u64 = 2000;

/// Ends the other thread, even if a check fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The output of a program, and its exit code.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: i32,
}

fn compile(workload: &Workload, sites: ProbeSites) -> Module {
    let engine = Engine::new(Config::new().probe_sites(sites)).expect("an engine");
    Module::from_file(&engine, programs(&[workload.fetched]).join(workload.step.program)).expect("a program")
}

/// Runs a program once.
fn run(workload: &Workload, module: &Module) -> Outcome {
    let (step, folder, engine) = (&workload.step, workload.folder(), module.engine());
    let (stdout, stderr) = (OutputPipe::new(64 << 20), OutputPipe::new(64 << 20));
    let mut wasi = WasiCtxBuilder::new();
    wasi.arg(step.program).args(step.arguments.iter().copied());
    wasi.stdout(stdout.clone()).stderr(stderr.clone());
    for variable in step.environment {
        let (name, value) = variable.split_once('=').expect("NAME=VALUE");
        wasi.env(name, value);
    }
    let shared = step.share.map(|share| (programs(&[workload.fetched]).join(share), "/share"));
    let own = [("work", "/work"), ("tmp", "/tmp")].map(|(part, guest)| (folder.path().join(part), guest));
    for (host, guest) in own.into_iter().chain(shared) {
        wasi.preopened_dir(host, guest).expect("a folder");
    }
    let mut store = Store::new(engine, wasi.build());
    let mut linker = Linker::new(engine);
    add_to_linker(&mut linker, |wasi: &mut WasiCtx| wasi).expect("the names of WASI are free");
    let execute = || {
        let instance = linker.instantiate(&mut store, module).expect("a WASI command");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a WASI command");
        match start.call(&mut store, ()) {
            Ok(()) => 0,
            Err(error) => error.downcast_ref::<Exit>().unwrap_or_else(|| panic!("{error:?}")).0,
        }
    };
    let code = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, execute);
        let code = thread.expect("a thread").join();
        code.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Outcome { stdout: stdout.contents(), stderr: stderr.contents(), code }
}

/// Probes in functions that have been called, at random instructions.
struct Toggled {
    module: Module,
    called: Arc<Mutex<Vec<u32>>>,
    toggles: AtomicU64,
    _watch: FirstCallWatch,
}

impl Toggled {
    fn new(module: &Module) -> Self {
        let called = Arc::new(Mutex::new(Vec::new()));
        let of_watch = called.clone();
        let watch = module.watch_first_calls(move |function| of_watch.lock().unwrap().push(function));
        let toggles = AtomicU64::new(0);
        Self { module: module.clone(), called, toggles, _watch: watch.expect("code can be patched") }
    }

    /// Toggles probes until the run is over.
    fn run(&self, is_over: &AtomicBool) {
        let mut random = SmallRng::seed_from_u64(1);
        let mut probes = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            if probes.len() < MAX_PROBES {
                probes.extend(self.probe(&mut random));
            }
            for _ in 0..probes.len().min(50) {
                let probe: &Probe = &probes[random.random_range(0..probes.len())];
                if random.random() { probe.activate() } else { probe.deactivate() }
                    .expect("code can be patched");
                self.toggles.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A new probe, if the place can be reached.
    fn probe(&self, random: &mut SmallRng) -> Option<Probe> {
        let called = self.called.lock().unwrap();
        let function = *called.get(random.random_range(0..called.len().max(1)))?;
        drop(called);
        let body = self.module.function(function)?.body()?;
        let count = body.instructions().count();
        let instruction = body.instructions().nth(random.random_range(0..count))?;
        let place = Place::Instruction { offset: (instruction.offset() - body.range().start) as u32 };
        let location = Location { function, place };
        let kind = match random.random_range(0..3) {
            0 => Kind::Empty,
            1 => Kind::Count,
            _ => Kind::Callback { function: Callback::new(|_| ()), values: Values::from([Bound::Frame]) },
        };
        self.module.probe(ProbeSpec { location, kind }).ok()
    }
}

fn check(workload: &Workload) {
    let name = workload.step.program;
    let plain = run(workload, &compile(workload, ProbeSites::None));
    let module = compile(workload, ProbeSites::All);
    assert_eq!(run(workload, &module), plain, "{name} with places for probes at entries");

    let global = module.global_probe(Kind::Count).expect("counters everywhere");
    global.activate().expect("code can be patched");
    assert_eq!(run(workload, &module), plain, "{name} with a global probe");
    assert!(global.refused().is_empty() && global.count() > 10_000, "{name}: {}", global.count());
    drop(global);

    let toggled = Toggled::new(&module);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let toggler = scope.spawn(|| toggled.run(&is_over));
        let ends = Ends(&is_over);
        let mut runs = 0;
        while !toggler.is_finished() && (toggled.toggles.load(Ordering::Relaxed) < ENOUGH || runs < 2) {
            assert_eq!(run(workload, &module), plain, "{name} with probes that are toggled");
            runs += 1;
        }
        drop(ends);
        toggler.join().expect("the other thread switches probes");
    });
}

#[test]
fn small_programs_do_not_notice_probes() {
    [ICEPLL, LUA, SQLITE].iter().for_each(check);
}

#[test]
fn programs_of_other_languages_do_not_notice_probes() {
    [RUST, GOFMT].iter().for_each(check);
    if is_long() {
        check(&PYTHON);
    }
}

/// Only in the long form.
#[test]
fn large_programs_do_not_notice_probes() {
    let chosen = if is_long() { &LARGE[..] } else { &[] };
    chosen.iter().for_each(|(workload, _)| check(workload));
}
