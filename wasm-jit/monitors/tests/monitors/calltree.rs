//! Calling contexts: paths, counts, times.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use wasm_jit::{Caller, Engine, Linker, Module, Store};
use wasm_jit_hooks::{FunctionEventKind, functions};
use wasm_jit_monitors::{Cell, Output, Report, Session};

use super::{Observed, integers, programs, texts};

/// The contexts in alphabetical order: paths, calls, recursive calls.
fn paths(report: &Report) -> Vec<(String, u64, u64)> {
    let table = report.get_table("contexts").unwrap();
    let names = texts(report, "contexts", "function");
    let (calls, recursive) =
        (integers(report, "contexts", "calls"), integers(report, "contexts", "recursive calls"));
    let mut paths: Vec<String> = Vec::new();
    for (row, caller) in table.column("caller").enumerate() {
        paths.push(match caller {
            Cell::Int(caller) => format!("{}/{}", paths[*caller as usize], names[row]),
            _ => names[row].clone(),
        });
    }
    let mut all: Vec<_> = paths
        .into_iter()
        .zip(calls)
        .zip(recursive)
        .map(|((path, calls), back)| (path, calls, back))
        .collect();
    all.sort();
    all
}

pub(super) fn check(report: &Report, expected: &[(&str, u64, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|(path, calls, back)| ((*path).to_owned(), *calls, *back)).collect();
    assert_eq!(paths(report), expected);
    check_times(report);
}

/// The total is the sum of the times of all functions, and of those of all contexts.
pub(super) fn check_times(report: &Report) {
    let total = report.get("nanoseconds").unwrap();
    for table in ["functions", "contexts"] {
        assert_eq!(integers(report, table, "self ns").iter().sum::<u64>(), total, "{table}");
    }
    let (own, totals) = (integers(report, "contexts", "self ns"), integers(report, "contexts", "total ns"));
    let callers: Vec<Option<usize>> = report
        .get_table("contexts")
        .unwrap()
        .column("caller")
        .map(|cell| if let Cell::Int(row) = cell { Some(*row as usize) } else { None })
        .collect();
    let mut sums = own;
    for row in (0..sums.len()).rev() {
        if let Some(caller) = callers[row] {
            sums[caller] += sums[row];
        }
    }
    assert_eq!(sums, totals);
}

#[test]
fn paths_have_counts() {
    let observed = Observed::by(
        "(module
        (func $leaf (local i32)
            ;; Long enough to have a time, whatever is subtracted.
            (loop (br_if 0 (i32.lt_u
                (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 2000)))))
        (func $left (call $leaf) (call $leaf))
        (func $right (call $leaf))
        (func (export \"run\") (param i32)
            (loop (call $left) (call $right) (call $leaf)
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))",
        "calltree",
    );
    observed.call("run", 10).unwrap();
    let report = observed.report("calltree");
    let expected = [
        ("run", 1, 0),
        ("run/leaf", 10, 0),
        ("run/left", 10, 0),
        ("run/left/leaf", 20, 0),
        ("run/right", 10, 0),
        ("run/right/leaf", 10, 0),
    ];
    check(&report, &expected);
    assert_eq!(report.get("calls"), Some(61));
    let mut leaf =
        texts(&report, "functions", "function").into_iter().zip(integers(&report, "functions", "calls"));
    assert_eq!(leaf.find(|(name, _)| name == "leaf"), Some(("leaf".to_owned(), 40)));
    let folded = report.files().iter().find(|(name, _)| name == "folded").unwrap();
    assert!(
        String::from_utf8(folded.1.clone()).unwrap().lines().any(|line| line.starts_with("run;left;leaf "))
    );
}

#[test]
fn the_time_in_which_probes_are_made_belongs_to_no_function() {
    // Its probes are made when it is called, which takes long, whereas the function does little.
    let large = "(drop (i32.const 1))".repeat(20_000);
    let text = format!(
        "(module
        (func $large (param i32) (if (i32.eqz (local.get 0)) (then {large})))
        (func (export \"run\") (param i32) (call $large (local.get 0))))"
    );
    let observed = Observed::by(&text, "calltree");
    let started = Instant::now();
    observed.call("run", 1).unwrap();
    let elapsed = started.elapsed().as_nanos() as u64;
    let report = observed.report("calltree");
    check(&report, &[("run", 1, 0), ("run/large", 1, 0)]);
    let subtracted = report.get("nanoseconds subtracted").unwrap();
    // More than the observation of two calls takes.
    assert!(subtracted > 10_000, "{subtracted}");
    // Otherwise, the time for making the callee's probes would be in the caller's time, too.
    let total = report.get("nanoseconds").unwrap();
    assert!(total + subtracted <= elapsed + elapsed / 100, "{total} + {subtracted} of {elapsed}");
}

#[test]
fn a_frame_that_has_trapped_calls_nothing() {
    /// Calls with this many more frames on the stack.
    #[inline(never)]
    fn deeper(observed: &Observed, frames: u32) {
        let frame = std::hint::black_box([0_u8; 512]);
        match frames {
            0 => observed.call("run", 0).unwrap(),
            _ => deeper(observed, frames - 1),
        }
        std::hint::black_box(frame);
    }
    let text = "(module
        (func (export \"traps\") (param i32) (unreachable))
        (func (export \"run\") (param i32)))";
    let observed = Observed::by(text, "calltree");
    observed.call("traps", 0).unwrap_err();
    deeper(&observed, 20);
    check(&observed.report("calltree"), &[("run", 1, 0), ("traps", 1, 0)]);
}

#[test]
fn callers_from_before_it_was_switched_on_are_not_known() {
    let text = "(module
        (import \"host\" \"toggle\" (func $toggle))
        (func $leaf)
        (func (export \"run\") (param i32) (call $leaf) (call $toggle) (call $leaf)))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Arc::new(Session::new(&module, Output::none()));
    session.enable("calltree".parse().unwrap()).unwrap();
    let mut linker = Linker::new(module.engine());
    let toggled = session.clone();
    let toggle = move || {
        toggled.disable("calltree").unwrap();
        toggled.enable("calltree".parse().unwrap()).unwrap();
    };
    linker.func_wrap("host", "toggle", toggle).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 0).unwrap();
    let report = session.report("calltree").unwrap();
    check(&report, &[("leaf", 1, 0), ("run", 1, 0), ("run/leaf", 1, 0), ("run/toggle", 1, 0)]);
}

#[test]
fn recursion_leads_back_to_the_node_on_the_path() {
    let observed = Observed::by(
        "(module
        (func $even (param i32) (if (local.get 0) (then (call $odd (i32.sub (local.get 0) (i32.const 1))))))
        (func $odd (param i32) (if (local.get 0) (then (call $even (i32.sub (local.get 0) (i32.const 1))))))
        (func $down (param i32) (call $leaf)
            (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))) (call $leaf))))
        (func $leaf)
        (func (export \"run\") (param i32)
            (call $even (local.get 0)) (call $odd (local.get 0)) (call $down (local.get 0))))",
        "calltree",
    );
    observed.call("run", 5000).unwrap();
    let expected = [
        ("run", 1, 0),
        ("run/down", 1, 5000),
        ("run/down/leaf", 10001, 0),
        ("run/even", 1, 2500),
        ("run/even/odd", 2500, 0),
        ("run/odd", 1, 2500),
        ("run/odd/even", 2500, 0),
    ];
    check(&observed.report("calltree"), &expected);
}

#[test]
fn callees_of_tail_calls_are_below_their_callers() {
    let observed = Observed::by(
        "(module
        (type $t (func (param i32)))
        (table funcref (elem $loop $end))
        (func $end (type $t) (call $leaf))
        (func $loop (type $t)
            (if (local.get 0) (then (return_call $other (i32.sub (local.get 0) (i32.const 1)))))
            (return_call_indirect (type $t) (i32.const 0) (i32.const 1)))
        (func $other (type $t) (return_call_indirect (type $t) (local.get 0) (i32.const 0)))
        (func $leaf)
        (func (export \"run\") (param i32)
            (call $loop (local.get 0)) (call $leaf) (call $loop (local.get 0)) (call $leaf)))",
        "calltree",
    );
    observed.call("run", 100_000).unwrap();
    let expected = [
        ("run", 1, 0),
        ("run/leaf", 2, 0),
        ("run/loop", 2, 200_000),
        ("run/loop/end", 2, 0),
        ("run/loop/end/leaf", 2, 0),
        ("run/loop/other", 200_000, 0),
    ];
    check(&observed.report("calltree"), &expected);
}

#[test]
fn frames_that_traps_and_exceptions_leave_have_ended() {
    let observed = Observed::by(
        "(module
        (tag $e)
        (func $throws (throw $e))
        (func $middle (call $throws))
        (func $catches (block $caught (try_table (catch $e $caught) (call $middle))) (call $leaf))
        (func $leaf)
        (func $traps (call $leaf) unreachable)
        (func (export \"run\") (param i32)
            (call $catches) (call $leaf) (if (local.get 0) (then (call $traps))) (call $leaf)))",
        "calltree",
    );
    observed.call("run", 1).unwrap_err();
    observed.call("run", 0).unwrap();
    let expected = [
        ("run", 2, 0),
        ("run/catches", 2, 0),
        ("run/catches/leaf", 2, 0),
        ("run/catches/middle", 2, 0),
        ("run/catches/middle/throws", 2, 0),
        ("run/leaf", 3, 0),
        ("run/traps", 1, 0),
        ("run/traps/leaf", 1, 0),
    ];
    check(&observed.report("calltree"), &expected);
}

/// Calls to a host that calls back, directly and through a table, throws, and fails.
const HOST: &str = "(module
    (import \"host\" \"call\" (func $call (param i32)))
    (import \"host\" \"wait\" (func $wait (param i32)))
    (type $t (func (param i32)))
    (table funcref (elem $call $leaf))
    (tag $e (export \"e\"))
    (func $leaf (type $t))
    (func (export \"back\") (param i32)
        (call $leaf (i32.const 0))
        (if (i32.eq (local.get 0) (i32.const 2)) (then (throw $e)))
        (if (i32.eq (local.get 0) (i32.const 3)) (then unreachable)))
    (func $tail (type $t) (return_call $call (i32.const 1)))
    (func (export \"run\") (param i32)
        (call $wait (i32.const 1))
        (block $caught (try_table (catch $e $caught) (call $call (local.get 0))))
        (call $leaf (i32.const 0))
        (call_indirect (type $t) (i32.const 1) (i32.const 0))
        (call_indirect (type $t) (i32.const 1) (i32.const 1))
        (call $leaf (i32.const 0))
        (call $tail (i32.const 0))
        (call $leaf (i32.const 0))))";

/// A session for [`HOST`], and a linker that runs it.
fn with_host(monitors: &str) -> (Session, Linker<()>, Module) {
    let module = Module::new(&Engine::default(), HOST).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable(monitors.parse().unwrap()).unwrap();
    let mut linker = Linker::<()>::new(module.engine());
    let call = |mut caller: Caller<'_, ()>, argument: i32| {
        let back = caller.get_export("back").and_then(|back| back.into_func()).unwrap();
        back.typed::<i32, ()>(&caller)?.call(&mut caller, argument)
    };
    linker.func_wrap("host", "call", call).unwrap();
    let wait = |milliseconds: i32| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(milliseconds as u64) {}
    };
    linker.func_wrap("host", "wait", wait).unwrap();
    (session, linker, module)
}

fn run(linker: &Linker<()>, module: &Module, argument: i32) -> Result<(), wasm_jit::Error> {
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, module)?;
    instance.get_typed_func::<i32, ()>(&mut store, "run")?.call(&mut store, argument)
}

#[test]
fn what_the_host_calls_is_below_the_call_of_the_host() {
    let (session, linker, module) = with_host("calltree");
    run(&linker, &module, 1).unwrap();
    // The return of the host from a tail call is not observed: it calls back from the function that
    // waits.
    let expected = [
        ("run", 1, 0),
        ("run/back", 1, 0),
        ("run/back/leaf", 1, 0),
        ("run/call", 2, 0),
        ("run/call/back", 2, 0),
        ("run/call/back/leaf", 2, 0),
        ("run/leaf", 4, 0),
        ("run/tail", 1, 0),
        ("run/tail/call", 1, 0),
        ("run/wait", 1, 0),
    ];
    let report = session.report("calltree").unwrap();
    check(&report, &expected);
    let at = texts(&report, "contexts", "function").iter().position(|name| name.ends_with("wait")).unwrap();
    let waited = integers(&report, "contexts", "self ns")[at];
    assert!(waited > 990_000, "{waited}");
}

/// Calls directly, through a table and by a reference. The last one does not return.
#[test]
fn tail_calls_of_the_host_are_counted() {
    let text = "(module
        (import \"host\" \"call\" (func $call (param i32)))
        (type $t (func (param i32)))
        (table funcref (elem $call))
        (func $direct (type $t) (return_call $call (local.get 0)))
        (func $indirect (type $t) (return_call_indirect (type $t) (local.get 0) (i32.const 0)))
        (func $by_reference (type $t) (return_call_ref $t (local.get 0) (ref.func $call)))
        (func (export \"run\") (type $t)
            (call $direct (i32.const 0)) (call $indirect (i32.const 0))
            (call $by_reference (i32.const 0)) (call $call (i32.const 0)) (call $direct (i32.const 1))))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none());
    for monitor in ["calls", "calltree", "profile"] {
        session.enable(monitor.parse().unwrap()).unwrap();
    }
    let mut linker = Linker::<()>::new(module.engine());
    let call = |exit: i32| if exit == 1 { Err(wasm_jit::Error::host("exit")) } else { Ok(()) };
    linker.func_wrap("host", "call", call).unwrap();
    run(&linker, &module, 0).unwrap_err();
    let report = session.report("calltree").unwrap();
    let expected = [
        ("run", 1, 0),
        ("run/by_reference", 1, 0),
        ("run/by_reference/call", 1, 0),
        ("run/call", 1, 0),
        ("run/direct", 2, 0),
        ("run/direct/call", 2, 0),
        ("run/indirect", 1, 0),
        ("run/indirect/call", 1, 0),
    ];
    check(&report, &expected);
    let calls = session.report("calls").unwrap();
    let of_calls = calls.get("calls").unwrap() + calls.get("by_host").unwrap();
    let of_profile = session.report("profile").unwrap().get("calls").unwrap();
    assert_eq!([of_calls, of_profile], [report.get("calls").unwrap(); 2]);
}

#[test]
fn failures_of_the_host_end_its_call() {
    for (argument, is_caught) in [(2, true), (3, false)] {
        let (session, linker, module) = with_host("calltree");
        assert_eq!(run(&linker, &module, argument).is_ok(), is_caught, "{argument}");
        let all = paths(&session.report("calltree").unwrap());
        let leaf = all.iter().find(|(path, ..)| path == "run/leaf").map(|(_, calls, _)| *calls);
        assert_eq!(leaf, is_caught.then_some(4), "{all:?}");
        check_times(&session.report("calltree").unwrap());
    }
}

#[test]
fn threads_are_added_together() {
    let observed = Observed::by(super::LOOP, "calltree");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| observed.call("run", 1000).unwrap());
        }
    });
    observed.call("run", 1000).unwrap();
    let report = observed.report("calltree");
    check(&report, &[("run", 5, 0), ("run/leaf", 5000, 0)]);
    assert_eq!(report.get("threads"), Some(5));
}

#[test]
fn reports_are_consistent_while_the_program_runs() {
    let observed = Observed::by(super::LOOP, "calltree");
    let mut last = (0, 0);
    thread::scope(|scope| {
        let program = scope.spawn(|| observed.call("run", 2_000_000).unwrap());
        while !program.is_finished() {
            let report = observed.report("calltree");
            check_times(&report);
            let now = (report.get("calls").unwrap(), report.get("contexts_called").unwrap());
            assert!(now >= last, "{now:?} {last:?}");
            last = now;
        }
    });
    check(&observed.report("calltree"), &[("run", 1, 0), ("run/leaf", 2_000_000, 0)]);
}

#[test]
fn time_counts_while_it_is_on_only() {
    let (session, linker, module) = with_host("calltree");
    let begin = Instant::now();
    run(&linker, &module, 1).unwrap();
    session.disable("calltree").unwrap();
    let off = session.report("calltree").unwrap();
    run(&linker, &module, 1).unwrap();
    // Each report converts ticks by the rate as it is known by then.
    let nanoseconds = |report: &Report| report.get("nanoseconds").unwrap();
    let later = session.report("calltree").unwrap();
    let difference = nanoseconds(&later).abs_diff(nanoseconds(&off));
    assert!(difference <= nanoseconds(&off) / 1000, "{} {}", nanoseconds(&later), nanoseconds(&off));
    session.enable("calltree".parse().unwrap()).unwrap();
    run(&linker, &module, 1).unwrap();
    let report = session.report("calltree").unwrap();
    assert_eq!(report.get("calls"), off.get("calls").map(|calls| 2 * calls));
    let nanoseconds = u128::from(nanoseconds(&report));
    // The rates of clocks are measured to 1 in 10,000.
    assert!(nanoseconds < begin.elapsed().as_nanos() * 1001 / 1000, "{nanoseconds}");
    assert!(nanoseconds > 2 * 990_000, "{nanoseconds}");
}

#[test]
fn memory_for_contexts_is_bounded() {
    let chain: String = (0..40).map(|at| format!("(func $f{at} (call $f{}))", at + 1)).collect();
    let text =
        format!("(module {chain} (func $f40) (func (export \"run\") (param i32) (call $f0) (call $f40)))");
    let observed = Observed::by(&text, "calltree{contexts=20}");
    observed.call("run", 0).unwrap();
    let report = observed.report("calltree");
    // The host, the rest, 18 others.
    assert_eq!(report.get("contexts_called"), Some(19));
    assert_eq!(report.get("calls left out"), Some(41 - 17 + 1));
    assert_eq!(report.get("calls"), Some(43));
    check_times(&report);
}

#[test]
fn mistakes_in_options_are_named() {
    let module = Module::new(&Engine::default(), super::LOOP).unwrap();
    let session = Session::new(&module, Output::none());
    let error = session.enable("calltree{contexts=many}".parse().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "option `contexts`: `many` is not a number from 8 on");
    let error = session.enable("calltree{times=guessed}".parse().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "option `times`: `guessed` is not exact or sampled");
}

/// The paths of a run according to hooks, in the monitor's form, with calls and recursive calls.
fn expected(module: &Module) -> Vec<(String, u64, u64)> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let of_hook = log.clone();
    let hook =
        functions(module, |_| true, move |event| of_hook.lock().unwrap().push((event.kind, event.function)));
    let _hook = hook.unwrap();
    run_main(module);
    let symbols = module.symbols();
    let mut counts: BTreeMap<Vec<u32>, (u64, u64)> = BTreeMap::new();
    let mut frames: Vec<Vec<u32>> = Vec::new();
    for (kind, function) in log.lock().unwrap().iter() {
        if *kind != FunctionEventKind::Entry {
            frames.pop();
            continue;
        }
        let mut path = frames.last().cloned().unwrap_or_default();
        match path.iter().position(|known| known == function) {
            Some(at) => {
                path.truncate(at + 1);
                counts.entry(path.clone()).or_default().1 += 1;
            }
            None => {
                path.push(*function);
                counts.entry(path.clone()).or_default().0 += 1;
            }
        }
        frames.push(path);
    }
    let name = |path: &[u32]| path.iter().map(|at| symbols.function(*at)).collect::<Vec<_>>().join("/");
    let mut all: Vec<_> =
        counts.into_iter().map(|(path, (calls, back))| (name(&path), calls, back)).collect();
    all.sort();
    all
}

fn run_main(module: &Module) {
    let mut store = Store::new(module.engine(), ());
    let instance = Linker::new(module.engine()).instantiate(&mut store, module).unwrap();
    let _ = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap().call(&mut store, ());
}

/// With times of either kind.
#[test]
fn contexts_of_random_programs() {
    let engine = Engine::default();
    let mut contexts = 0;
    for seed in 0..60 {
        let module = Module::new(&engine, programs::program(seed)).unwrap();
        let expected = expected(&module);
        for monitor in ["calltree", "calltree{times=sampled}"] {
            let session = Session::new(&module, Output::none());
            session.enable(monitor.parse().unwrap()).unwrap();
            // From the second time on, the stubs of probes find all calls.
            (0..3).for_each(|_| run_main(&module));
            let report = session.report("calltree").unwrap();
            let once = |(path, calls, back): (String, u64, u64)| {
                assert_eq!((calls % 3, back % 3), (0, 0), "{seed} {monitor} {path}");
                (path, calls / 3, back / 3)
            };
            let paths: Vec<_> = paths(&report).into_iter().map(once).collect();
            assert_eq!(paths, expected, "{seed} {monitor}");
            check_times(&report);
        }
        contexts += expected.len();
    }
    assert!(contexts > 100, "{contexts}");
}
