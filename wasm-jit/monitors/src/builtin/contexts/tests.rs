//! Sampled times, with samples that the program takes itself, at known points.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{Callback, Kind, Location, Place};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Caller, Engine, Instance, Linker, Module, Store};

use super::*;
use crate::lazy::Order;

/// A module whose program takes a sample at each `nop`.
struct Sampling {
    module: Module,
    contexts: Arc<Contexts>,
    linker: Linker<()>,
    paths: Arc<Paths>,
}

/// The functions on the paths that the thread had published at the samples, the innermost first.
type Paths = Mutex<Vec<Vec<u32>>>;

/// The time that each sample represents, in nanoseconds.
const SAMPLE: u64 = 1_000_000;

impl Sampling {
    /// The program may import `host.call`, which calls its export `back`.
    fn of(text: &str) -> Self {
        let module = Module::new(&Engine::default(), text).unwrap();
        let paths = Arc::new(Paths::default());
        let contexts = Arc::new(Contexts::sampled(&module, &paths));
        let mut linker = Linker::new(module.engine());
        let call = |mut caller: Caller<'_, ()>| {
            let back = caller.get_export("back").and_then(|back| back.into_func()).unwrap();
            back.typed::<(), ()>(&caller)?.call(&mut caller, ())
        };
        linker.func_wrap("host", "call", call).unwrap();
        Self { module, contexts, linker, paths }
    }

    fn run(&self) -> Result<(), wasm_jit::Error> {
        let mut store = Store::new(self.module.engine(), ());
        let instance = self.linker.instantiate(&mut store, &self.module)?;
        instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())
    }

    /// The samples by path: in the function itself, and including all below.
    fn samples(&self) -> Vec<(String, u64, u64)> {
        let merged = self.contexts.merged();
        let (times, symbols) = (merged.times(), self.module.symbols());
        let mut paths: BTreeMap<u32, String> = BTreeMap::new();
        let mut all = Vec::new();
        for (node, _) in merged.depth_first(&times) {
            let context = &merged.nodes[node as usize];
            let name = symbols.function(context.function);
            let path = match paths.get(&context.parent) {
                Some(caller) => format!("{caller}/{name}"),
                None => name,
            };
            let (own, total) = times.samples(node);
            assert_eq!(
                [own, total].map(|samples| samples * SAMPLE),
                [times.own[node as usize], times.total[node as usize]]
            );
            if total > 0 {
                all.push((path.clone(), own, total));
            }
            paths.insert(node, path);
        }
        all.sort();
        all
    }

    #[track_caller]
    fn check(&self, expected: &[(&str, u64, u64)]) {
        let expected: Vec<_> =
            expected.iter().map(|(path, own, total)| ((*path).to_owned(), *own, *total)).collect();
        assert_eq!(self.samples(), expected);
        let merged = self.contexts.merged();
        assert_eq!(
            merged.times().sampled.unwrap().estimate.samples,
            expected.iter().map(|of| of.1).sum::<u64>()
        );
    }
}

impl Contexts {
    /// Contexts of all functions, without samples except those of [`sample`](Self::sample) and of
    /// each `nop`.
    fn sampled(module: &Module, paths: &Arc<Paths>) -> Self {
        let shared = Shared::new(Measure::SampledTimes, usize::MAX);
        let (sampled, paths) = (shared.clone(), paths.clone());
        let sample = Callback::new(move |_| {
            sampled.threads().sample(&sampled, SAMPLE);
            paths.lock().unwrap().push(Current(sampled.clone()).path());
        });
        let mut nops: BTreeMap<u32, Vec<ProbeSpec>> = BTreeMap::new();
        for function in module.functions() {
            let Some(body) = function.body() else { continue };
            let specs = nops.entry(function.index()).or_default();
            for instruction in body.instructions() {
                if matches!(instruction.operator(), Operator::Nop) {
                    let offset = (instruction.offset() - body.range().start) as u32;
                    let location =
                        Location { function: function.index(), place: Place::Instruction { offset } };
                    let kind = Kind::Callback { function: sample.clone(), values: [].into() };
                    specs.push(ProbeSpec { location, kind });
                }
            }
        }
        let contexts = Self::new(module, nops.keys().copied().collect(), shared, nops);
        contexts.observe().unwrap();
        contexts
    }

    /// Takes a sample of all threads.
    fn sample(&self) {
        self.shared.threads().sample(&self.shared, SAMPLE);
    }

    /// The contexts after a run of a program, with samples of 1 ms at known points, for the forms
    /// of reports.
    pub(in crate::builtin) fn example() -> (Module, Self) {
        let text = "(module
            (func $work nop)
            (func $idle)
            (func $down (param i32)
                (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1)))))
                (call $work))
            (func (export \"run\")
                (call $work) (call $idle) (call $idle) (call $down (i32.const 2)) nop))";
        let module = Module::new(&Engine::default(), text).unwrap();
        let contexts = Self::sampled(&module, &Arc::default());
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
        (module, contexts)
    }
}

#[test]
fn samples_belong_to_the_context_in_which_they_are_taken() {
    let sampling = Sampling::of(
        "(module
        (func $leaf nop)
        (func $empty)
        (func $left (call $leaf) (call $empty) nop)
        (func $right (call $leaf) (call $leaf))
        (func (export \"run\") (call $left) (call $right)))",
    );
    sampling.run().unwrap();
    sampling.check(&[
        ("run", 0, 4),
        ("run/left", 1, 2),
        ("run/left/leaf", 1, 1),
        ("run/right", 0, 2),
        ("run/right/leaf", 2, 2),
    ]);
}

/// Each sample is taken after an event that must have put the thread back where it was, with
/// nothing observed in between.
#[test]
fn the_published_context_is_right_after_all_ways_to_leave_a_function() {
    let sampling = Sampling::of(
        "(module
        (import \"host\" \"call\" (func $call))
        (type $t (func))
        (table (export \"table\") funcref (elem $target $call))
        (tag $e)
        (func $target (type $t) nop)
        (func $throws (throw $e))
        (func $middle (call $throws))
        (func $catches (block $caught (try_table (catch $e $caught) (call $middle))) nop)
        (func $tail (return_call $target))
        (func $indirect (return_call_indirect (type $t) (i32.const 0)))
        (func $down (param i32)
            (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1)))))
            nop)
        (global $traps (mut i32) (i32.const 0))
        (func (export \"back\") nop (if (global.get $traps) (then unreachable)))
        (func (export \"run\")
            (call $catches) nop
            (call $tail) nop
            (call $indirect) nop
            (call $down (i32.const 2)) nop
            (call $call) nop
            (call_indirect (type $t) (i32.const 1)) nop
            (global.set $traps (i32.const 1))
            (call $call)))",
    );
    sampling.run().unwrap_err();
    let symbols = sampling.module.symbols();
    let paths = sampling.paths.lock().unwrap();
    let names = |path: &Vec<u32>| {
        path.iter().rev().map(|function| symbols.function(*function)).collect::<Vec<_>>().join("/")
    };
    let expected = [
        "run/catches",
        "run",
        "run/tail/target",
        "run",
        "run/indirect/target",
        "run",
        "run/down",
        "run/down",
        "run/down",
        "run",
        "run/call/back",
        "run",
        "run/call/back",
        "run",
        "run/call/back",
    ];
    assert_eq!(paths.iter().map(names).collect::<Vec<_>>(), expected);
    // The trap has left all functions.
    sampling.contexts.sample();
    sampling.check(&[
        ("run", 6, 15),
        ("run/call", 0, 3),
        ("run/call/back", 3, 3),
        ("run/catches", 1, 1),
        ("run/down", 3, 3),
        ("run/indirect", 0, 1),
        ("run/indirect/target", 1, 1),
        ("run/tail", 0, 1),
        ("run/tail/target", 1, 1),
    ]);
}

const LEAF: &str = "(module (func (export \"run\") nop))";

#[test]
fn threads_that_have_ended_are_not_sampled_any_more() {
    let sampling = Sampling::of(LEAF);
    std::thread::scope(|scope| scope.spawn(|| sampling.run().unwrap()).join().unwrap());
    sampling.contexts.sample();
    sampling.check(&[("run", 1, 1)]);
    sampling.run().unwrap();
    sampling.contexts.sample();
    sampling.check(&[("run", 2, 2)]);
}

#[test]
fn there_are_no_samples_while_it_is_off_nor_of_frames_from_before() {
    let sampling = Sampling::of(
        "(module
        (import \"host\" \"call\" (func $call))
        (func (export \"back\"))
        (func (export \"run\") (call $call)))",
    );
    let (off, contexts) = (Arc::new(Mutex::new(0)), sampling.contexts.clone());
    let mut linker = Linker::new(sampling.module.engine());
    let count = off.clone();
    let call = move || {
        contexts.sample();
        contexts.deactivate().unwrap();
        contexts.sample();
        contexts.observe().unwrap();
        // The function still runs, but may have ended unobserved.
        contexts.sample();
        *count.lock().unwrap() += 1;
    };
    linker.func_wrap("host", "call", call).unwrap();
    let sampling = Sampling { linker, ..sampling };
    sampling.run().unwrap();
    assert_eq!(*off.lock().unwrap(), 1);
    sampling.check(&[("run", 0, 1), ("run/call", 1, 1)]);
}

#[test]
fn making_probes_is_the_time_of_no_function() {
    let sampling = Sampling::of(
        "(module
        (import \"host\" \"call\" (func $call))
        (func (export \"back\"))
        (func (export \"run\") (call $call)))",
    );
    // Instead of the probes, a sample is taken.
    let contexts = sampling.contexts.clone();
    let mut linker = Linker::new(sampling.module.engine());
    let call = move || {
        local::suspended(&mut || contexts.sample());
        contexts.sample();
    };
    linker.func_wrap("host", "call", call).unwrap();
    let sampling = Sampling { linker, ..sampling };
    sampling.run().unwrap();
    sampling.check(&[("run", 0, 1), ("run/call", 1, 1)]);
    assert!(sampling.contexts.delays() > 0);
}

#[test]
fn making_probes_of_other_monitors_is_the_time_of_no_function() {
    let sampling = Sampling::of("(module (func $leaf) (func (export \"run\") (call $leaf) nop))");
    let contexts = sampling.contexts.clone();
    let specs = move |_: &FunctionInfo<'_>| {
        contexts.sample();
        Vec::new()
    };
    let other = LazyProbes::of(&sampling.module, [0], Order::Functions, specs);
    other.switch(true).unwrap();
    sampling.run().unwrap();
    assert_eq!(other.functions(), [0]);
    sampling.check(&[("run", 1, 1)]);
}

#[test]
fn results_are_cleared_with_their_samples() {
    let sampling = Sampling::of(LEAF);
    sampling.run().unwrap();
    sampling.contexts.clear();
    sampling.check(&[]);
    sampling.run().unwrap();
    sampling.check(&[("run", 1, 1)]);
}

#[test]
fn several_monitors_have_their_own_samples() {
    let first = Sampling::of(LEAF);
    let shared = Shared::new(Measure::SampledTimes, usize::MAX);
    let second = Contexts::new(&first.module, BTreeSet::from([0]), shared, BTreeMap::new());
    second.observe().unwrap();
    let exact = Shared::new(Measure::ExactTimes, usize::MAX);
    let exact = Contexts::new(&first.module, BTreeSet::from([0]), exact, BTreeMap::new());
    exact.observe().unwrap();
    first.run().unwrap();
    first.check(&[("run", 1, 1)]);
    let (second, exact) = (second.merged(), exact.merged());
    assert_eq!(second.times().sampled.unwrap().estimate.samples, 0);
    assert!(second.times().total[0] == 0 && exact.times().total[0] > 0);
    assert_eq!(second.nodes.len(), exact.nodes.len());
}

/// Probes know only the number of a monitor.
#[test]
fn events_of_a_monitor_that_is_gone_do_nothing() {
    let shared = Shared::new(Measure::SampledTimes, usize::MAX);
    let number = shared.number;
    let mut events = 0;
    local::with(number, |_| events += 1);
    assert_eq!(Arc::strong_count(&shared), 2, "the thread has it");
    drop(shared);
    std::thread::spawn(move || {
        // The other thread still has it; drops it when it observes for a new one.
        assert!(Shared::numbered(number).is_some());
    })
    .join()
    .unwrap();
    let next = Shared::new(Measure::SampledTimes, usize::MAX);
    local::with(next.number, |_| events += 1);
    assert!(Shared::numbered(number).is_none());
    local::with(number, |_| events += 1);
    assert_eq!(events, 2);
}

#[test]
fn the_sampler_has_ended_when_it_is_switched_off() {
    let sampling = Sampling::of(LEAF);
    // The sampler has a reference while it runs.
    let references = || Arc::strong_count(&sampling.contexts.shared);
    let before = references();
    sampling.contexts.activate().unwrap();
    assert_eq!(references(), before + 1);
    sampling.contexts.activate().unwrap();
    assert_eq!(references(), before + 1, "there is one already");
    sampling.contexts.deactivate().unwrap();
    assert_eq!(references(), before);
}

#[test]
fn a_sampler_ends_with_its_monitor() {
    let shared = Shared::new(Measure::SampledTimes, usize::MAX);
    let module = Module::new(&Engine::default(), "(module (func))").unwrap();
    let contexts = Contexts::new(&module, BTreeSet::from([0]), shared.clone(), BTreeMap::new());
    contexts.activate().unwrap();
    drop((contexts, module));
    assert_eq!(Arc::strong_count(&shared), 1);
}
