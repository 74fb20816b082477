//! The cost of toggles for the threads that execute the code at the same time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use benches::clock::thread_time_ns;
use benches::distribution::Distribution;
use benches::options::Options;
use benches::pace::{Pace, toggle_for};
use benches::report::{Cell, Table};
use wasm_jit::probes::{Kind, Location, NativeFn, Place, Probe, ProbeSpec, activate_all, deactivate_all};
use wasm_jit::{Config, Engine, Instance, Module, ProbeSites, Store, TypedFunc};

/// A loop with a branch in it.
const TEXT: &str = r#"(module (func (export "run") (param $n i32) (result i32) (local $sum i32)
    (loop $again
        (block $over
            (br_if $over (i32.and (local.get $n) (i32.const 1)))
            (local.set $sum (i32.xor (local.get $sum) (i32.mul (local.get $n) (i32.const 7)))))
        (local.set $sum (i32.add (local.get $sum) (local.get $n)))
        (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $sum)))"#;

/// Iterations of the loop in one call.
const ITERATIONS: i32 = 1000;
/// Minimum number of calls by an executor in a measurement.
const MIN_CALLS: u64 = 200;

/// What is toggled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toggled {
    /// A counter at an instruction of the loop, in a version with sites.
    Counter,
    /// A branch of the loop that is a site itself, in the original code.
    Branch,
    /// A probe that calls a native function.
    Native,
    /// Counters at all instructions, all toggled together; the function goes to the code with sites
    /// and back to its original.
    Version,
}

impl Toggled {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Counter, "a counter"),
        (Self::Branch, "a counter, at a branch of the original code"),
        (Self::Native, "a native function"),
        (Self::Version, "counters at all instructions, and the version of the function"),
    ];
}

extern "C" fn nothing() {}

struct Case {
    toggled: Toggled,
    module: Module,
    probes: Vec<Probe>,
}

impl Case {
    fn new(toggled: Toggled) -> Self {
        let mut config = Config::new();
        config.counter_stubs(u32::MAX);
        if toggled == Toggled::Branch {
            config.probe_sites(ProbeSites::Branches);
        }
        let engine = Engine::new(&config).expect("an engine");
        let module = Module::new(&engine, TEXT).expect("a valid module");
        let body = module.function(0).expect("a function").body().expect("of the module");
        let instructions = body.instructions();
        let chosen = instructions.filter(|instruction| {
            use wasm_jit::wasmparser::Operator::{BrIf, I32Add};
            match toggled {
                Toggled::Counter | Toggled::Native => matches!(instruction.operator(), I32Add),
                Toggled::Branch => matches!(instruction.operator(), BrIf { .. }),
                Toggled::Version => true,
            }
        });
        let kind = match toggled {
            Toggled::Native => {
                // SAFETY: it does not unwind, and is part of the program.
                let function = unsafe { NativeFn::new(nothing as extern "C" fn()) };
                Kind::Native { function, values: [].as_slice().into() }
            }
            _ => Kind::Count,
        };
        let specs: Vec<ProbeSpec> = chosen
            .map(|instruction| {
                let offset = (instruction.offset() - body.range().start) as u32;
                let location = Location { function: 0, place: Place::Instruction { offset } };
                ProbeSpec { location, kind: kind.clone() }
            })
            .collect();
        let mut probes = super::made(module.probes(&specs));
        if toggled != Toggled::Version {
            probes.truncate(1);
        }
        Self { toggled, module, probes }
    }

    fn set(&self, on: bool) {
        let done = match (self.toggled, on) {
            (Toggled::Version, true) => activate_all(&self.probes),
            (Toggled::Version, false) => deactivate_all(&self.probes),
            (_, true) => vec![self.probes[0].activate()],
            (_, false) => vec![self.probes[0].deactivate()],
        };
        super::switched(done);
    }

    fn function(&self) -> (Store<()>, TypedFunc<i32, i32>) {
        let mut store = Store::new(self.module.engine(), ());
        let instance = Instance::new(&mut store, &self.module, &[]).expect("an instance");
        let run = instance.get_typed_func(&mut store, "run").expect("it is exported");
        (store, run)
    }

    /// Iterations per second of the executor's processor time, and toggles per second.
    fn measure(&self, pace: Pace, is_on: bool, ms: u64, ticks_per_ns: f64) -> [f64; 2] {
        self.set(is_on);
        let (begin, is_over, done) = (Barrier::new(2), AtomicBool::new(false), AtomicU64::new(0));
        let executor = || {
            let (mut store, run) = self.function();
            // Frames have gone to the current version.
            let expected = run.call(&mut store, ITERATIONS).expect("it does not trap");
            begin.wait();
            let (mut calls, had) = (0_u64, thread_time_ns());
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(run.call(&mut store, ITERATIONS).expect("it does not trap"), expected);
                calls += 1;
                done.store(calls, Ordering::Relaxed);
            }
            (calls * ITERATIONS as u64) as f64 / (thread_time_ns() - had) * 1e9
        };
        let (rate, toggles) = thread::scope(|scope| {
            let thread = scope.spawn(executor);
            begin.wait();
            let duration = (ms as f64 * 1e6 * ticks_per_ns) as u64;
            let (mut toggles, mut elapsed) = (0, 0);
            // Until the executor, too, has had a processor for a while.
            while elapsed == 0 || done.load(Ordering::Relaxed) < MIN_CALLS {
                let (made, ticks) = toggle_for(duration, pace.interval(ticks_per_ns), |number| {
                    if let Some(number) = number {
                        self.set(is_on ^ (number & 1 == 1));
                    }
                    true
                });
                (toggles, elapsed) = (toggles + made, elapsed + ticks);
            }
            is_over.store(true, Ordering::Relaxed);
            let toggles = toggles as f64 / (elapsed as f64 / ticks_per_ns) * 1e9;
            (thread.join().expect("the executor has not failed"), toggles)
        });
        self.set(false);
        [rate, toggles]
    }

    /// A probe that is on counts, one that is off does not.
    fn check(&self) {
        let (mut store, run) = self.function();
        let mut counted = || {
            let before: u64 = self.probes.iter().map(Probe::count).sum();
            run.call(&mut store, ITERATIONS).expect("it does not trap");
            self.probes.iter().map(Probe::count).sum::<u64>() - before
        };
        self.set(true);
        let on = counted();
        assert!(self.toggled == Toggled::Native || on >= ITERATIONS as u64, "{:?}: {on}", self.toggled);
        self.set(false);
        assert_eq!(counted(), 0, "{:?}", self.toggled);
    }
}

/// A row for each kind of toggle and pace.
pub(super) fn table(options: &Options, ticks_per_ns: f64) -> Table {
    let mut table = Table::new(
        "Throughput of an executor while its code is toggled",
        "One thread runs a loop, another toggles a probe in it: requested, and reached toggles per second. Million \
         iterations per second of the executor's processor time, and how much this is of the mean of both states without \
         toggles: medians of the turns, and the least and most.",
        &["what is toggled", "asked", "reached/s", "M/s", "relative", "least", "most"],
    );
    let (turns, ms) = (options.either(9, 1), options.either(100, 3));
    for (toggled, name) in Toggled::ALL {
        let case = Case::new(toggled);
        case.check();
        let mut rates = [Vec::new(), Vec::new()];
        let mut measured: Vec<[Vec<f64>; 3]> = vec![Default::default(); Pace::ALL.len()];
        for _ in 0..turns {
            let alone = [false, true].map(|on| case.measure(Pace::Never, on, ms, ticks_per_ns)[0]);
            rates.iter_mut().zip(alone).for_each(|(rates, rate)| rates.push(rate));
            for (pace, measured) in Pace::ALL.iter().zip(&mut measured) {
                let [rate, toggles] = case.measure(*pace, false, ms, ticks_per_ns);
                measured[0].push(toggles);
                measured[1].push(rate);
                measured[2].push(rate / ((alone[0] + alone[1]) / 2.0));
            }
        }
        case.check();
        let median = |values: &Vec<f64>| Distribution::of(values.clone()).median;
        for (rates, state) in rates.iter().zip(["never: off", "never: on"]) {
            let row = [name.into(), state.into(), 0_u64.into(), (median(rates) / 1e6).into()];
            table.push(row.into_iter().chain([1.0; 3].map(Cell::from)).collect());
        }
        for (pace, [toggles, rate, relative]) in Pace::ALL.iter().zip(&measured) {
            let extremes = [
                relative.iter().copied().fold(f64::MAX, f64::min),
                relative.iter().copied().fold(0.0, f64::max),
            ];
            let mut row: Vec<Cell> = vec![name.into(), pace.name().into()];
            row.extend([(median(toggles).round() as u64).into(), (median(rate) / 1e6).into()]);
            row.extend([median(relative), extremes[0], extremes[1]].map(Cell::from));
            table.push(row);
        }
    }
    table
}
