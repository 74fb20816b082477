//! Sampled times, with samples that the program takes itself, at known places.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use wasm_jit::{Caller, Engine, Linker, Module, Store};

use super::*;

/// A module whose program takes samples, by a function of the host that is not observed.
struct Sampling {
    module: Module,
    contexts: Arc<Contexts>,
    linker: Linker<()>,
    /// The paths that the thread had published at the samples.
    paths: Arc<Mutex<Vec<String>>>,
}

/// What each sample represents.
const SAMPLE: u64 = 1_000_000;

impl Sampling {
    /// The program imports `host.sample`, and functions by which it comes back: `host.call`, and
    /// `host.fail`.
    fn of(text: &str) -> Self {
        let module = Module::new(&Engine::default(), text).unwrap();
        let contexts = Arc::new(Contexts::sampled(&module));
        let paths = Arc::new(Mutex::new(Vec::new()));
        let mut linker = Linker::new(module.engine());
        let (sampled, found, of) = (contexts.clone(), paths.clone(), module.clone());
        let sample = move || {
            sampled.sample();
            let path = Current(sampled.shared.clone()).path();
            let symbols = of.symbols();
            let names: Vec<String> = path.iter().rev().map(|at| symbols.function(*at)).collect();
            found.lock().unwrap().push(names.join("/"));
        };
        linker.func_wrap("host", "sample", sample).unwrap();
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

    /// The samples of functions by paths: of themselves, and with all below.
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
    /// Of all functions, without samples but those that are taken by [`sample`](Self::sample).
    fn sampled(module: &Module) -> Self {
        let shared = Shared::new(Measure::SampledTimes, usize::MAX);
        let functions = module.functions().filter(|function| function.body().is_some());
        let functions = functions.map(|function| function.index()).collect();
        let contexts = Self::new(module, functions, shared, BTreeMap::new());
        contexts.observe().unwrap();
        contexts
    }

    /// Takes a sample of all threads.
    fn sample(&self) {
        self.shared.threads().sample(&self.shared, SAMPLE);
    }

    /// After a run of a program, with samples of 1 ms at known places, for the forms of reports.
    pub(in crate::builtin) fn example() -> (Module, Self) {
        let text = "(module
            (import \"host\" \"sample\" (func $sample))
            (func $work (call $sample))
            (func $idle)
            (func $down (param i32)
                (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1)))))
                (call $work))
            (func (export \"run\")
                (call $work) (call $idle) (call $idle) (call $down (i32.const 2)) (call $sample)))";
        let module = Module::new(&Engine::default(), text).unwrap();
        let contexts = Self::sampled(&module);
        let shared = contexts.shared.clone();
        let mut linker = Linker::new(module.engine());
        let sample = move || shared.threads().sample(&shared, SAMPLE);
        linker.func_wrap("host", "sample", sample).unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = linker.instantiate(&mut store, &module).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
        (module, contexts)
    }
}

/// Calls of the host are observed: a sample is in its function, below the one that calls it.
#[test]
fn samples_belong_to_the_context_in_which_they_are_taken() {
    let sampling = Sampling::of(
        "(module
        (import \"host\" \"sample\" (func $sample))
        (func $leaf (call $sample))
        (func $empty)
        (func $left (call $leaf) (call $empty) (call $sample))
        (func $right (call $leaf) (call $leaf))
        (func (export \"run\") (call $left) (call $right)))",
    );
    sampling.run().unwrap();
    sampling.check(&[
        ("run", 0, 4),
        ("run/left", 0, 2),
        ("run/left/leaf", 0, 1),
        ("run/left/leaf/sample", 1, 1),
        ("run/left/sample", 1, 1),
        ("run/right", 0, 2),
        ("run/right/leaf", 0, 2),
        ("run/right/leaf/sample", 2, 2),
    ]);
}

/// Each sample is after something that must have put the thread back where it was.
#[test]
fn the_published_context_is_right_after_all_ways_to_leave_a_function() {
    let sampling = Sampling::of(
        "(module
        (import \"host\" \"sample\" (func $sample))
        (import \"host\" \"call\" (func $call))
        (type $t (func))
        (table funcref (elem $target))
        (tag $e)
        (func $target (type $t) (call $sample))
        (func $throws (throw $e))
        (func $middle (call $throws))
        (func $catches (block $caught (try_table (catch $e $caught) (call $middle))) (call $sample))
        (func $tail (return_call $target))
        (func $indirect (return_call_indirect (type $t) (i32.const 0)))
        (func $down (param i32)
            (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1)))))
            (call $sample))
        (func (export \"back\") (call $sample) (unreachable))
        (func (export \"run\")
            (call $catches) (call $sample)
            (call $tail) (call $sample)
            (call $indirect) (call $sample)
            (call $down (i32.const 2)) (call $sample)
            (call $call)))",
    );
    sampling.run().unwrap_err();
    let expected = [
        "run/catches/sample",
        "run/sample",
        "run/tail/target/sample",
        "run/sample",
        "run/indirect/target/sample",
        "run/sample",
        "run/down/sample",
        "run/down/sample",
        "run/down/sample",
        "run/sample",
        "run/call/back/sample",
    ];
    assert_eq!(*sampling.paths.lock().unwrap(), expected);
    // The trap has left all functions.
    sampling.contexts.sample();
    sampling.check(&[
        ("run", 0, 11),
        ("run/call", 0, 1),
        ("run/call/back", 0, 1),
        ("run/call/back/sample", 1, 1),
        ("run/catches", 0, 1),
        ("run/catches/sample", 1, 1),
        ("run/down", 0, 3),
        ("run/down/sample", 3, 3),
        ("run/indirect", 0, 1),
        ("run/indirect/target", 0, 1),
        ("run/indirect/target/sample", 1, 1),
        ("run/sample", 4, 4),
        ("run/tail", 0, 1),
        ("run/tail/target", 0, 1),
        ("run/tail/target/sample", 1, 1),
    ]);
}

const LEAF: &str = "(module
    (import \"host\" \"sample\" (func $sample))
    (func (export \"run\") (call $sample)))";

#[test]
fn threads_that_have_ended_are_not_sampled_any_more() {
    let sampling = Sampling::of(LEAF);
    std::thread::scope(|scope| scope.spawn(|| sampling.run().unwrap()).join().unwrap());
    sampling.contexts.sample();
    sampling.check(&[("run", 0, 1), ("run/sample", 1, 1)]);
    sampling.run().unwrap();
    sampling.contexts.sample();
    sampling.check(&[("run", 0, 2), ("run/sample", 2, 2)]);
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
        (import \"host\" \"sample\" (func $sample))
        (func (export \"run\") (call $sample)))",
    );
    // In the place of the probes, a sample is taken.
    let (contexts, number) = (sampling.contexts.clone(), sampling.contexts.shared.number);
    let mut linker = Linker::new(sampling.module.engine());
    let sample = move || {
        local::suspended(number, &mut || contexts.sample());
        contexts.sample();
    };
    linker.func_wrap("host", "sample", sample).unwrap();
    let sampling = Sampling { linker, ..sampling };
    sampling.run().unwrap();
    sampling.check(&[("run", 0, 1), ("run/sample", 1, 1)]);
    assert!(sampling.contexts.delays() > 0);
}

#[test]
fn results_are_cleared_with_their_samples() {
    let sampling = Sampling::of(LEAF);
    sampling.run().unwrap();
    sampling.contexts.clear();
    sampling.check(&[]);
    sampling.run().unwrap();
    sampling.check(&[("run", 0, 1), ("run/sample", 1, 1)]);
}

#[test]
fn several_monitors_have_their_own_samples() {
    let first = Sampling::of(LEAF);
    let shared = Shared::new(Measure::SampledTimes, usize::MAX);
    let second = Contexts::new(&first.module, BTreeSet::from([1]), shared, BTreeMap::new());
    second.observe().unwrap();
    let exact = Shared::new(Measure::ExactTimes, usize::MAX);
    let exact = Contexts::new(&first.module, BTreeSet::from([1]), exact, BTreeMap::new());
    exact.observe().unwrap();
    first.run().unwrap();
    first.check(&[("run", 0, 1), ("run/sample", 1, 1)]);
    let (second, exact) = (second.merged(), exact.merged());
    assert_eq!(second.times().sampled.unwrap().estimate.samples, 0);
    assert!(second.times().total[0] == 0 && exact.times().total[0] > 0);
    assert_eq!(second.nodes.len(), exact.nodes.len());
}

/// What probes know of a monitor is only its number.
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
