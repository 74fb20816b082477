//! The monitor `latency`. A process has one at a time, so each test waits for the others.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use profiler::report::{Caller, FunctionReport, Report as Latencies, json};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Config, Engine, Linker, Module, Store};
use wasm_jit_monitors::{Cell, Output, Report, Session};

use super::{LOOP, Observed, integers, texts};

pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const EXACT: &str = "latency{counts=exact}";

/// The report in the profiler's own format.
fn latencies(report: &Report) -> Latencies {
    let (name, contents) = &report.files()[0];
    assert_eq!(name, "report.json");
    json::parse(contents, Path::new(name)).unwrap()
}

/// The functions by name.
fn functions(report: &Report) -> HashMap<String, FunctionReport> {
    let functions = latencies(report).functions.into_iter();
    functions.map(|function| (function.name.clone(), function)).collect()
}

/// The number of calls to each function, which are all timed, so that the number is exact.
fn calls(report: &Report) -> HashMap<String, u64> {
    let exact = |function: &FunctionReport| {
        assert!(function.calls.is_exact(), "{function:?}");
        assert_eq!(function.samples as f64, function.calls.value, "{function:?}");
        assert_eq!(function.open_calls, 0, "{function:?}");
        function.samples
    };
    functions(report).into_iter().map(|(name, function)| (name, exact(&function))).collect()
}

/// Callers, callees and numbers of calls, in alphabetical order.
fn arcs(report: &Report) -> Vec<(String, String, u64)> {
    let (callers, callees) = (texts(report, "arcs", "caller"), texts(report, "arcs", "callee"));
    let calls = integers(report, "arcs", "calls");
    let arcs = callers.into_iter().zip(callees).zip(calls);
    let mut arcs: Vec<_> = arcs.map(|((caller, callee), calls)| (caller, callee, calls)).collect();
    arcs.sort();
    arcs
}

fn of<const N: usize>(expected: [(&str, u64); N]) -> HashMap<String, u64> {
    expected.into_iter().map(|(name, calls)| (name.to_owned(), calls)).collect()
}

fn arc(caller: &str, callee: &str, calls: u64) -> (String, String, u64) {
    (caller.to_owned(), callee.to_owned(), calls)
}

const HOST: &str = "[not instrumented]";

#[test]
fn every_call_is_counted_and_timed() {
    let _alone = alone();
    let observed = Observed::by(LOOP, EXACT);
    observed.call("run", 10).unwrap();
    let report = observed.report("latency");
    assert_eq!(calls(&report), of([("leaf", 10), ("run", 1)]));
    assert_eq!(arcs(&report), [arc(HOST, "run", 1), arc("run", "leaf", 10)]);
    assert_eq!(report.get("timed"), Some(11));
    let functions = functions(&report);
    // What the probes of `leaf` take in `run` is subtracted, and known to within its error only.
    let [run, leaf] = ["run", "leaf"].map(|name| functions[name].total_ns.unwrap());
    assert!(run.high.is_none_or(|high| high >= leaf.low), "{functions:?}");
    // The columns are those of the profiler's own format.
    let csv = profiler::report::csv::render(&latencies(&report), &Default::default());
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert_eq!(report.get_table("functions").unwrap().columns(), header);
    let text = wasm_jit_monitors::Format::Text.print(&[report]);
    assert!(text.contains("calls timed") && text.contains("leaf"), "{text}");
}

#[test]
fn all_monitors_start_in_an_engine_whose_programs_consume_fuel() {
    let _alone = alone();
    let engine = Engine::new(Config::new().consume_fuel(true)).unwrap();
    let module = Module::new(&engine, LOOP).unwrap();
    let session = Session::new(&module, Output::none());
    for name in session.known().iter().map(|known| known.name) {
        session.enable(if name == "latency" { EXACT } else { name }.parse().unwrap()).unwrap();
    }
    let mut store = Store::new(&engine, ());
    store.set_fuel(1000).unwrap();
    let instance = Linker::new(&engine).instantiate(&mut store, &module).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 10).unwrap();
    assert_eq!(session.report("latency").unwrap().get("timed"), Some(11));
}

#[test]
fn recursion_is_paired_by_frames() {
    let _alone = alone();
    let fib = "(module (func $fib (param i32) (result i32)
        (if (result i32) (i32.lt_u (local.get 0) (i32.const 2)) (then (local.get 0))
            (else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1)))
                (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
        (func (export \"run\") (param i32) (drop (call $fib (local.get 0)))))";
    let observed = Observed::by(fib, EXACT);
    observed.call("run", 10).unwrap();
    let report = observed.report("latency");
    assert_eq!(calls(&report), of([("fib", 177), ("run", 1)]));
    assert_eq!(arcs(&report), [arc(HOST, "run", 1), arc("fib", "fib", 176), arc("run", "fib", 1)]);
    let functions = functions(&report);
    assert!(functions["fib"].recursive && !functions["run"].recursive);
    let [run, fib] = ["run", "fib"].map(|name| functions[name].total_ns.unwrap());
    let is_possible = run.high.is_none_or(|high| fib.low <= high);
    assert!(is_possible, "nested calls count once: {fib:?} of {run:?}");
}

#[test]
fn a_tail_call_ends_a_call() {
    let _alone = alone();
    let text = "(module (type $t (func (param i32)))
        (table funcref (elem $long))
        (func $long (param i32) (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
        (func $direct (param i32) (return_call $long (local.get 0)))
        (func $indirect (param i32) (return_call_indirect (type $t) (local.get 0) (i32.const 0)))
        (func $count (param i32) (if (local.get 0)
            (then (return_call $count (i32.sub (local.get 0) (i32.const 1))))))
        (func (export \"run\") (param i32)
            (call $direct (local.get 0)) (call $indirect (local.get 0)) (call $count (i32.const 9))))";
    let observed = Observed::by(text, EXACT);
    observed.call("run", 3_000_000).unwrap();
    let report = observed.report("latency");
    assert_eq!(calls(&report), of([("long", 2), ("direct", 1), ("indirect", 1), ("count", 10), ("run", 1)]));
    let functions = functions(&report);
    let total = |name: &str| functions[name].total_ns.unwrap().value;
    assert!(total("direct") + total("indirect") < total("long"), "{functions:?}");
    assert!(!functions["count"].recursive);
}

#[test]
fn calls_that_are_left_count_until_then() {
    let _alone = alone();
    let text = "(module (tag $tag)
        (func $trap (param i32) (drop (i32.div_u (i32.const 1) (local.get 0))))
        (func $between (param i32) (call $trap (local.get 0)))
        (func (export \"run\") (param i32) (call $between (local.get 0)))
        (func $throw (throw $tag))
        (func $passes (call $throw))
        (func $catches (block $caught (try_table (catch_all $caught) (call $passes))))
        (func (export \"catch\") (param i32)
            (loop (call $catches) (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
    let observed = Observed::by(text, EXACT);
    observed.call("run", 0).unwrap_err();
    observed.call("run", 0).unwrap_err();
    observed.call("run", 1).unwrap();
    observed.call("catch", 5).unwrap();
    let report = observed.report("latency");
    let expected =
        [("trap", 3), ("between", 3), ("run", 3), ("throw", 5), ("passes", 5), ("catches", 5), ("catch", 1)];
    assert_eq!(calls(&report), of(expected));
}

#[test]
fn the_host_is_re_entered() {
    let _alone = alone();
    let text = "(module (import \"host\" \"again\" (func $again (param i32)))
        (func $run (export \"run\") (param i32) (if (local.get 0)
            (then (call $again (i32.sub (local.get 0) (i32.const 1)))))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable(EXACT.parse().unwrap()).unwrap();
    let mut store = Store::new(module.engine(), ());
    let mut linker = Linker::new(module.engine());
    linker
        .func_wrap("host", "again", |mut caller: wasm_jit::Caller<'_, ()>, n: i32| {
            let run = caller.get_export("run").and_then(|run| run.into_func()).unwrap();
            run.typed::<i32, ()>(&caller).unwrap().call(&mut caller, n).unwrap();
        })
        .unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 4).unwrap();
    let report = session.report("latency").unwrap();
    assert_eq!(calls(&report), of([("run", 5)]));
    assert_eq!(arcs(&report), [arc(HOST, "run", 5)]);
}

#[test]
fn threads_are_observed_at_once() {
    let _alone = alone();
    let observed = Observed::by(LOOP, EXACT);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..20).for_each(|_| observed.call("run", 100).unwrap()));
        }
    });
    let report = observed.report("latency");
    assert_eq!(calls(&report), of([("leaf", 6000), ("run", 60)]));
}

#[test]
fn what_is_called_while_it_is_off_is_not_in_the_report() {
    let _alone = alone();
    let observed = Observed::by(LOOP, EXACT);
    observed.call("run", 10).unwrap();
    observed.session.disable("latency").unwrap();
    let before = latencies(&observed.report("latency"));
    observed.call("run", 100).unwrap();
    assert_eq!(calls(&observed.report("latency")), of([("leaf", 10), ("run", 1)]));
    let after = latencies(&observed.report("latency"));
    assert_eq!((after.duration_ns, after.toggles), (before.duration_ns, before.toggles));
    observed.session.enable(EXACT.parse().unwrap()).unwrap();
    observed.call("run", 10).unwrap();
    assert_eq!(calls(&observed.report("latency")), of([("leaf", 20), ("run", 2)]));
}

#[test]
fn functions_that_are_first_called_while_it_is_off_are_observed_later() {
    let _alone = alone();
    let observed = Observed::by(LOOP, EXACT);
    observed.session.disable("latency").unwrap();
    observed.call("run", 100).unwrap();
    assert_eq!(calls(&observed.report("latency")), of([]));
    observed.session.enable(EXACT.parse().unwrap()).unwrap();
    observed.call("run", 10).unwrap();
    assert_eq!(calls(&observed.report("latency")), of([("leaf", 10), ("run", 1)]));
}

/// If an instance exists, functions may be running.
#[test]
fn it_starts_while_the_program_runs() {
    let _alone = alone();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Linker::new(module.engine()).instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    run.call(&mut store, 5).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable(EXACT.parse().unwrap()).unwrap();
    run.call(&mut store, 10).unwrap();
    assert_eq!(calls(&session.report("latency").unwrap()), of([("leaf", 10), ("run", 1)]));
}

/// The time for which the calls of a thread wait for probes, of whichever monitor.
mod delays {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    thread_local!(static DELAYED: Cell<Duration> = const { Cell::new(Duration::ZERO) });

    pub(super) fn around(function: &mut dyn FnMut()) {
        let begin = Instant::now();
        function();
        DELAYED.set(DELAYED.get() + begin.elapsed());
    }

    /// The time that a call takes, without delays.
    pub(super) fn without(call: impl FnOnce()) -> Duration {
        let (begin, before) = (Instant::now(), DELAYED.get());
        call();
        begin.elapsed() - (DELAYED.get() - before)
    }
}

/// The first call of a function takes longer by the time in which probes are made, and by that in
/// which another thread makes some. Neither is part of the time of the callers.
#[test]
fn making_probes_is_the_time_of_no_call() {
    let _alone = alone();
    let text = "(module (import \"host\" \"arrive\" (func $arrive))
        (func $first) (func $second)
        (func $one (export \"one\") (param i32) (call $first))
        (func $two (export \"two\") (param i32)
            (if (local.get 0) (then (call $arrive) (call $second)))))";
    let observed = Observed::by(text, EXACT);
    wasm_jit::probes::on_delays(delays::around);
    // Probes of `first` are made until long after the other thread has arrived at `second`.
    let [(begins, begun), (arrives, arrived)] = [(); 2].map(|()| std::sync::mpsc::channel());
    let [begun, arrived] = [begun, arrived].map(Mutex::new);
    let make = move |function: u32| {
        if function == 1 {
            begins.send(()).unwrap();
            arrived.lock().unwrap().recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let _watch = observed.module.watch_first_calls(make).unwrap();
    let mut linker = Linker::new(observed.module.engine());
    let arrive = move || {
        begun.lock().unwrap().recv().unwrap();
        arrives.send(()).unwrap();
    };
    linker.func_wrap("host", "arrive", arrive).unwrap();
    let call = |name: &str, argument: i32| {
        let mut store = Store::new(observed.module.engine(), ());
        let instance = linker.instantiate(&mut store, &observed.module).unwrap();
        let function = instance.get_typed_func::<i32, ()>(&mut store, name).unwrap();
        delays::without(|| function.call(&mut store, argument).unwrap())
    };
    let (call, before) = (&call, call("two", 0));
    let took = std::thread::scope(|scope| {
        ["one", "two"].map(|name| scope.spawn(move || call(name, 1))).map(|thread| thread.join().unwrap())
    });
    let took = [took[0], before + took[1]];
    let report = observed.report("latency");
    assert_eq!(latencies(&report).toggles, 0, "probes are made in their state");
    for (name, took) in ["one", "two"].into_iter().zip(took) {
        let total = functions(&report)[name].total_ns.unwrap();
        assert!(total.low <= took.as_nanos() as f64, "{name}: {total:?} in {took:?}");
    }
}

#[test]
fn a_process_has_one() {
    let _alone = alone();
    let first = Observed::by(LOOP, EXACT);
    let second = Module::new(&Engine::default(), LOOP).unwrap();
    let second = Session::new(&second, Output::none());
    let refused = second.enable("latency".parse().unwrap()).unwrap_err().to_string();
    assert_eq!(refused, "the monitor `latency`: a profiler runs in this process already; end that one first");
    first.call("run", 10).unwrap();
    assert_eq!(calls(&first.report("latency")), of([("leaf", 10), ("run", 1)]));
    drop(first);
    second.enable("latency".parse().unwrap()).unwrap();
}

#[test]
fn options_are_checked() {
    let _alone = alone();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    let session = Session::new(&module, Output::none());
    let refused = |text: &str| session.enable(text.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        refused("latency{budget=1}"),
        "option `budget`: `1` is not a percentage above 0% and up to 100%, such as 1%, or none"
    );
    assert_eq!(refused("latency{counts=all}"), "option `counts`: `all` is not sampled or exact");
    session.enable("latency{budget=2.5%,function=leaf}".parse().unwrap()).unwrap();
    let report = session.report("latency").unwrap();
    assert_eq!(latencies(&report).cost.budget, Some(0.025));
    assert_eq!(latencies(&report).probes, 2);
}

/// A program with functions that are called often, from two call sites, and by each other.
const BUSY: &str = "(module
    (func $mix (param i32) (result i32) (local i32) (local.set 1 (i32.const 20))
        (loop
            (local.set 0 (i32.xor (i32.mul (local.get 0) (i32.const 0x9e3779b1))
                (i32.shr_u (local.get 0) (i32.const 15))))
            (br_if 0 (local.tee 1 (i32.sub (local.get 1) (i32.const 1)))))
        (local.get 0))
    (func $twice (param i32) (result i32) (call $mix (call $mix (local.get 0))))
    (func $sometimes (param i32) (result i32) (if (result i32) (i32.and (local.get 0) (i32.const 7))
        (then (call $mix (local.get 0))) (else (call $twice (local.get 0)))))
    (func (export \"run\") (param i32) (local i32)
        (loop
            (local.set 1 (call $sometimes (i32.add (local.get 1) (local.get 0))))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";

/// Counters at the entries of all functions.
fn counters(module: &Module) -> Vec<(String, Probe)> {
    let symbols = module.symbols();
    let functions = module.functions().filter(|function| function.body().is_some());
    let probe = |function: u32| {
        let location = Location { function, place: Place::Entry };
        let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
        probe.activate().unwrap();
        (symbols.function(function), probe)
    };
    functions.map(|function| probe(function.index())).collect()
}

/// The intervals have a confidence of 95 %. Therefore estimates are not required to have the truth
/// in the interval, but to be near it.
#[test]
fn estimates_are_near_exact_counts() {
    let _alone = alone();
    let observed = Observed::by(BUSY, "latency{budget=5%}");
    let counters = counters(&observed.module);
    observed.call("run", 20_000_000).unwrap();
    let report = observed.report("latency");
    let functions = functions(&report);
    for (name, counter) in counters {
        let (calls, exact) = (functions[&name].calls, counter.count() as f64);
        let high = calls.high.unwrap_or(f64::INFINITY);
        let distance = (calls.low - exact).max(exact - high).max(0.0);
        assert!(distance <= 3.0 * (high - calls.low), "{name}: {exact}, {calls:?}");
    }
    let latencies = latencies(&report);
    assert!(latencies.toggles > 0 && latencies.samples > 100, "{latencies:?}");
    // All calls to one function come from another one.
    let from = |caller: &str| {
        let caller = functions[caller].key();
        let callee = functions["twice"].key();
        let is_it = |arc: &&profiler::report::Arc| {
            arc.callee == callee && arc.caller == Caller::Function(caller.clone())
        };
        latencies.arcs.iter().find(is_it).map(|arc| arc.calls.value)
    };
    assert_eq!(from("sometimes"), Some(functions["twice"].calls.value));
}

/// Functions that call others, in a random acyclic order, by calls and tail calls, trap at random
/// and catch exceptions; a seed gives a module.
fn random_module(seed: u64) -> String {
    let mut source = SmallRng::seed_from_u64(seed);
    let mut random = |limit: u64| source.random_range(..limit);
    const FUNCTIONS: u64 = 12;
    let mut text = "(module (tag $tag)".to_owned();
    for function in 0..FUNCTIONS {
        text.push_str(&format!("(func $f{function} (param i32)"));
        let mut body = String::new();
        for _ in 0..random(4) + 1 {
            let callee = function + 1 + random(3);
            if callee >= FUNCTIONS {
                break;
            }
            let argument = format!("(i32.add (local.get 0) (i32.const {}))", random(100));
            let call = match random(6) {
                0 => format!("(return_call $f{callee} {argument})"),
                1 => format!("(block $caught (try_table (catch_all $caught) (call $f{callee} {argument})))"),
                2 => {
                    format!("(if (i32.and (local.get 0) (i32.const 1)) (then (call $f{callee} {argument})))")
                }
                _ => format!("(call $f{callee} {argument})"),
            };
            body.push_str(&call);
        }
        match random(5) {
            0 => body.push_str("(if (i32.eqz (i32.rem_u (local.get 0) (i32.const 5))) (then (throw $tag)))"),
            1 => body.push_str("(drop (i32.div_u (i32.const 1) (i32.rem_u (local.get 0) (i32.const 61))))"),
            _ => {}
        }
        text.push_str(&body);
        text.push(')');
    }
    text + "(export \"run\" (func $f0)))"
}

#[test]
fn random_programs_are_counted_exactly() {
    let _alone = alone();
    let mut ended = [0; 2];
    for seed in 0..60 {
        let observed = Observed::by(&random_module(seed), EXACT);
        let counters = counters(&observed.module);
        for argument in 0..20 {
            ended[usize::from(observed.call("run", argument).is_ok())] += 1;
        }
        let exact = counters.into_iter().map(|(name, probe)| (name, probe.count()));
        let exact: HashMap<String, u64> = exact.filter(|(_, count)| *count > 0).collect();
        let report = observed.report("latency");
        assert_eq!(calls(&report), exact, "seed {seed}");
        let mut callees: HashMap<String, u64> = HashMap::new();
        arcs(&report).into_iter().for_each(|(_, callee, calls)| *callees.entry(callee).or_default() += calls);
        assert_eq!(callees, exact, "seed {seed}");
    }
    assert!(ended.iter().all(|ended| *ended > 50), "{ended:?}");
}

/// The table has the figures of the file.
#[test]
fn tables_have_the_figures_of_the_file() {
    let _alone = alone();
    let observed = Observed::by(LOOP, EXACT);
    observed.call("run", 1000).unwrap();
    let report = observed.report("latency");
    let latencies = latencies(&report);
    let samples: Vec<u64> = latencies.ranked().iter().map(|function| function.samples).collect();
    assert_eq!(integers(&report, "functions", "samples"), samples);
    let addresses = report.get_table("functions").unwrap().column("address");
    let bodies = |name: &str| {
        let function = observed.module.functions().find(|function| {
            function.name() == Some(name) || function.exports().any(|export| export == name)
        });
        Cell::Hex(function.unwrap().body().unwrap().range().start as u64)
    };
    let names = texts(&report, "functions", "name");
    assert!(addresses.zip(names).all(|(address, name)| *address == bodies(&name)));
}
