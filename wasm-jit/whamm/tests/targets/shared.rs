//! Monitors with separate stores: attached to running programs, in several threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use wasm_jit::{Engine, Instance, Linker, Module, Store, Val};
use wasm_jit_whamm::lang::{ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::{MonitorError, MonitorModule, SharedMonitor};

/// A script that is attached.
struct Observed {
    script: Script,
    shared: SharedMonitor<()>,
}

impl Observed {
    fn of(script: &str, program: &Module) -> Self {
        let script = match Script::new("test.mm", script.as_bytes(), &[]) {
            Ok(script) => script,
            Err(error) => panic!("{error}"),
        };
        let shared = share(Module::from_binary(program.engine(), script.module()).unwrap(), program);
        Self { script, shared }
    }

    fn report(&self) -> ScriptReport {
        self.shared.read(|store, instance| self.script.report(&*store, instance)).unwrap()
    }

    /// The integer variables that exist once.
    fn integers(&self) -> Vec<i128> {
        let integer = |value: &ReportedValue| match value {
            ReportedValue::Value(Value::Int(value)) => Some(*value),
            _ => None,
        };
        self.report().variables.iter().filter_map(|variable| integer(&variable.value)).collect()
    }

    /// The entries of the first map.
    fn map(&self) -> Vec<(String, i128)> {
        let report = self.report();
        let map = report.variables.iter().find_map(|variable| match &variable.value {
            ReportedValue::Map(entries) => Some(entries.clone()),
            _ => None,
        });
        let mut entries: Vec<(String, i128)> = map
            .unwrap()
            .into_iter()
            .map(|(key, value)| match (key, value) {
                (Value::Text(key), Value::Int(value)) => (key, value),
                (Value::Int(key), Value::Int(value)) => (key.to_string(), value),
                other => panic!("{other:?}"),
            })
            .collect();
        entries.sort();
        entries
    }
}

fn share(monitor: Module, program: &Module) -> SharedMonitor<()> {
    let engine = program.engine();
    let monitor = MonitorModule::new(monitor, Vec::new()).unwrap();
    monitor.share(Store::new(engine, ()), &mut Linker::new(engine), program).unwrap()
}

/// Calls the host for each number from its argument down to 0, in a loop, and after each call a
/// function that recurses as often as the number says.
const PROGRAM: &str = r#"(module
    (import "host" "at" (func $at (param i32)))
    (func $down (param i32)
        (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))))))
    (func $run (export "run") (param i32)
        (loop $next
            (call $at (local.get 0))
            (call $down (local.get 0))
            (br_if $next (i32.ge_s (local.tee 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 0))))))"#;

/// Runs the program, in a new instance, with a host function.
fn run(program: &Module, argument: i32, at: impl Fn(i32) + Send + Sync + 'static) {
    let mut linker: Linker<()> = Linker::new(program.engine());
    linker.func_wrap("host", "at", at).unwrap();
    let mut store = Store::new(program.engine(), ());
    let instance = linker.instantiate(&mut store, program).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, argument).unwrap();
}

/// Switches a monitor on when the host is called with one number, and off with another one; the
/// calls in between are known.
#[track_caller]
fn check_in_the_middle(script: &str, is_expected: impl Fn(&Observed)) {
    let program = Module::new(&Engine::default(), PROGRAM).unwrap();
    let observed: Arc<Mutex<Option<Observed>>> = Arc::default();
    let (of_host, module, text) = (observed.clone(), program.clone(), script.to_owned());
    run(&program, 9, move |number| {
        let mut observed = of_host.lock().unwrap();
        match number {
            // The program's functions are already running, and were never probed.
            7 => observed.insert(Observed::of(&text, &module)).shared.activate().unwrap(),
            5 => observed.as_ref().unwrap().shared.deactivate().unwrap(),
            3 => observed.as_ref().unwrap().shared.activate().unwrap(),
            1 => observed.as_ref().unwrap().shared.deactivate().unwrap(),
            _ => {}
        }
    });
    let observed = observed.lock().unwrap().take().unwrap();
    is_expected(&observed);
    // Off, it observes nothing.
    run(&program, 9, |_| ());
    is_expected(&observed);
    observed.shared.activate().unwrap();
    run(&program, 0, |_| ());
    assert!(observed.shared.is_active() && observed.shared.probes() > 0);
}

#[test]
fn what_comes_while_it_is_on_is_counted_exactly() {
    // down(7), down(6), down(3), down(2).
    check_in_the_middle("report var n: u64; wasm:func:entry / fname == \"down\" / { n++; }", |observed| {
        assert_eq!(observed.integers(), [8 + 7 + 4 + 3]);
        assert_eq!(observed.shared.counters(), observed.shared.probes());
    });
    // Under keys that are known: the report is read again and again, and its order stays the same.
    let script = "report var by: map<str, u64>; wasm:func:entry { by[fname]++; }
        wasm:opcode:br_if:before { by[opname]++; by[\"never\"] = by[\"never\"] + 3; }
        wasm:opcode:nop:before { by[\"no nop\"]++; }";
    check_in_the_middle(script, |observed| {
        let keys = ["down", "br_if", "never"].map(|key| Value::Text(key.to_owned()));
        let counts = [8 + 7 + 4 + 3, 4, 12].map(Value::Int);
        let expected = ReportedValue::Map(keys.into_iter().zip(counts).collect());
        for _ in 0..3 {
            assert_eq!(observed.report().variables[0].value, expected);
        }
        assert_eq!(observed.shared.counters(), observed.shared.probes());
    });
    // Functions that are called, with operands.
    check_in_the_middle(
        "report var by: map<i32, u64>; wasm:opcode:call(arg0: i32):before / fname == \"down\" / { by[arg0]++; }",
        |observed| {
            let expected = [("0", 4), ("1", 4), ("2", 3), ("3", 2), ("4", 2), ("5", 2), ("6", 1)];
            assert_eq!(observed.map(), expected.map(|(key, count)| (key.to_owned(), count)));
            assert_eq!(observed.shared.counters(), 0);
        },
    );
    // At entries.
    check_in_the_middle(
        "report var by: map<i32, u64>; wasm:func:entry(local0: i32) / fname == \"down\" / { by[local0 / 4]++; }",
        |observed| {
            let expected = [("0", 15), ("1", 7)];
            assert_eq!(observed.map(), expected.map(|(key, count)| (key.to_owned(), count)));
        },
    );
    // In the frame that called the host when it was switched on.
    check_in_the_middle("report var n: u64; wasm:opcode:br_if:before { n++; }", |observed| {
        assert_eq!(observed.integers(), [4]);
    });
}

/// Variables of frames that are older than the probes are initialized when they are first used, and
/// those of frames that are gone do not reappear.
#[test]
fn frames_begin_anew_when_it_is_switched_on() {
    let script = "frame var calls: u64; report var most: map<str, u64>; report var n: u64;
        wasm:opcode:call:before { calls++; n++; }
        wasm:func:exit { if (calls > most[fname]) { most[fname] = calls; } }
        wasm:opcode:br_if:before { if (calls > most[fname]) { most[fname] = calls; } }";
    check_in_the_middle(script, |observed| {
        // Each time, `run` calls `down`, the host and `down`, until the end of the loop; then the
        // host, which switches the monitor off.
        let most = observed.map();
        assert_eq!(most, [("down".to_owned(), 1), ("run".to_owned(), 3)]);
        assert_eq!(observed.integers(), [7 + 6 + 3 + 2 + 4 + 4]);
    });
}

/// Threads of the program.
fn in_threads(count: usize, each: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for number in 0..count {
            let each = &each;
            scope.spawn(move || each(number));
        }
    });
}

#[test]
fn threads_have_frames_of_their_own() {
    let program = Module::new(&Engine::default(), PROGRAM).unwrap();
    // The depth of each call below its caller is found again in its own frame.
    let script = "frame var argument: i32; frame var calls: u64;
        report var n: u64; report var wrong: u64; report var ended: u64;
        wasm:func:entry(local0: i32) { argument = local0; }
        wasm:opcode:call(arg0: i32):before { calls++; n++; }
        wasm:opcode:call:semantic_after { ended++; }
        wasm:opcode:i32.sub(arg1: i32):before { if (fname == \"down\" && arg1 != argument) { wrong++; } }
        wasm:func:exit / fname == \"down\" / { if ((argument != 0) != (calls == 1)) { wrong++; } }";
    let observed = Observed::of(script, &program);
    observed.shared.activate().unwrap();
    const ROUNDS: usize = 40;
    in_threads(4, |number| {
        (0..ROUNDS).for_each(|_| run(&program, 10 + number as i32, |_| thread::yield_now()))
    });
    // Each run with n: n + 1 calls to the host and to `down`, which calls itself 0 + 1 + .. + n
    // times.
    let calls = |n: i128| 2 * (n + 1) + n * (n + 1) / 2;
    let expected = ROUNDS as i128 * (10..14).map(calls).sum::<i128>();
    assert_eq!(observed.integers(), [expected, 0, expected]);
}

/// Threads toggle a monitor while others run the program: no event after activation is lost, none
/// is counted twice, and the variables of a rule are always consistent.
#[test]
fn threads_switch_it_while_others_run_the_program() {
    let program = Module::new(&Engine::default(), PROGRAM).unwrap();
    let counted = Observed::of("report var n: u64; wasm:func:entry / fname == \"down\" / { n++; }", &program);
    let called = Observed::of(
        "report var n: u64; report var m: u64; report var by: map<i32, u64>;
        wasm:opcode:call(arg0: i32):before / fname == \"down\" / { n++; by[arg0 % 3]++; m++; }",
        &program,
    );
    let (ends, runs) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let runners: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        run(&program, 12, |_| ());
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let togglers: Vec<_> = [&counted, &called]
            .map(|observed| {
                scope.spawn(move || {
                    for _ in 0..200 {
                        observed.shared.activate().unwrap();
                        let integers = observed.integers();
                        assert!(integers.iter().all(|n| *n == integers[0]), "{integers:?}");
                        observed.shared.deactivate().unwrap();
                    }
                })
            })
            .into();
        togglers.into_iter().for_each(|toggler| toggler.join().unwrap());
        // Some run has seen them.
        let seen = runs.load(Ordering::Relaxed);
        while runs.load(Ordering::Relaxed) < seen + 3 {
            thread::yield_now();
        }
        ends.store(true, Ordering::Relaxed);
        runners.into_iter().for_each(|runner| runner.join().unwrap());
    });
    let by = |observed: &Observed| observed.map().iter().map(|(_, count)| count).sum::<i128>();
    let before = (counted.integers()[0], called.integers()[0]);
    assert_eq!(by(&called), before.1);
    run(&program, 12, |_| ());
    assert_eq!((counted.integers()[0], called.integers()[0]), before, "they are off");
    counted.shared.activate().unwrap();
    called.shared.activate().unwrap();
    in_threads(3, |_| (0..20).for_each(|_| run(&program, 12, |_| ())));
    let (entries, calls) = (13 + 12 * 13 / 2, 12 * 13 / 2);
    assert_eq!(counted.integers()[0] - before.0, 60 * entries);
    assert_eq!(called.integers()[0] - before.1, 60 * calls);
    assert_eq!(by(&called), called.integers()[0]);
}

/// The monitor is read while threads are in its functions.
#[test]
fn reports_are_read_while_the_program_runs() {
    let program = Module::new(&Engine::default(), PROGRAM).unwrap();
    let observed = Observed::of(
        "report var n: u64; report var m: u64; wasm:opcode:if(arg0: i32):before { n++; if (arg0 >= 0) { m++; } }",
        &program,
    );
    observed.shared.activate().unwrap();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            (0..100).for_each(|_| run(&program, 12, |_| ()));
        });
        barrier.wait();
        let mut last = 0;
        for _ in 0..100 {
            let [n, m] = observed.integers()[..] else { panic!("two variables") };
            assert!(n == m && n >= last, "{n} {m} {last}");
            last = n;
        }
    });
    assert_eq!(observed.integers()[0], 100 * (13 + 12 * 13 / 2));
}

#[test]
fn a_monitor_that_fails_does_not_end_the_program() {
    let program = Module::new(&Engine::default(), PROGRAM).unwrap();
    let observed = Observed::of(
        "report var n: i32; wasm:opcode:call(arg0: i32):before / fname == \"run\" / { n++; n = n + 0 / arg0; }",
        &program,
    );
    observed.shared.activate().unwrap();
    assert!(observed.shared.failure().is_none());
    run(&program, 3, |_| ());
    // Two calls for each number; the report contains the events before the failure, and the effects
    // of the failed event up to it.
    assert_eq!(observed.integers(), [7]);
    let error = observed.shared.failure().unwrap();
    let MonitorError::Failed { export, reason } = &error else { panic!("{error}") };
    assert_eq!(
        (export.as_str(), reason.as_str()),
        ("wasm:opcode:call:before (line 1)", "an integer was divided by zero")
    );
    assert!(observed.shared.finish().is_err());
    run(&program, 3, |_| ());
    observed.shared.deactivate().unwrap();
}

/// The engine counts for one of two rules. When the other one fails, it counts no more.
#[test]
fn a_monitor_that_fails_counts_no_more() {
    let program = Module::new(&Engine::default(), PROGRAM).unwrap();
    let observed = Observed::of(
        "report var calls: i32; report var n: i32; wasm:opcode:call:before / fname == \"run\" / { calls++; }
        wasm:opcode:call(arg0: i32):before / fname == \"run\" / { n = n + 0 / arg0; }",
        &program,
    );
    observed.shared.activate().unwrap();
    run(&program, 3, |_| ());
    assert!(observed.shared.failure().is_some() && observed.shared.counters() > 0);
    let [calls, 0] = observed.integers()[..] else { panic!("{:?}", observed.integers()) };
    assert!(calls > 0);
    observed.shared.activate().unwrap();
    assert!(!observed.shared.is_active());
    run(&program, 3, |_| ());
    assert_eq!(observed.integers(), [calls, 0]);
}

/// A monitor module that is not one of our scripts asks for frames: it does not know which thread a
/// frame belongs to.
#[test]
fn frames_of_several_threads_are_refused_to_modules_that_cannot_tell_them_apart() {
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let monitor = |values: &str, parameters: &str| {
        let text = format!(
            "(module (global $n (export \"n\") (mut i32) (i32.const 0))
                (func (export \"wasm:func:entry ({values})\") {parameters}
                    (global.set $n (i32.add (global.get $n) (i32.const 1)))
                    (drop (i32.div_u (i32.const 1) (global.get $n)))))"
        );
        share(Module::new(&engine, text).unwrap(), &program)
    };
    let (with_frames, without) = (monitor("frame", "(param i64)"), monitor("fid", "(param i32)"));
    for shared in [&with_frames, &without] {
        shared.activate().unwrap();
        run(&program, 0, |_| ());
        let n = |shared: &SharedMonitor<()>| {
            shared.read(|store, instance| instance.get_global(&*store, "n").unwrap().get(store))
        };
        assert!(matches!(n(shared), Val::I32(2)) && shared.failure().is_none());
        in_threads(1, |_| run(&program, 0, |_| ()));
        match shared.failure() {
            None => assert!(matches!(n(shared), Val::I32(4)) && std::ptr::eq(shared, &without)),
            Some(error) => {
                assert!(error.to_string().contains("several threads") && std::ptr::eq(shared, &with_frames));
                assert!(matches!(n(shared), Val::I32(2)));
            }
        }
    }
}

/// The program is the monitor's own module: what the monitor executes is not observed.
#[test]
fn a_monitor_does_not_observe_itself() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        "(module (global $n (export \"n\") (mut i32) (i32.const 0))
            (func $add (param i32) (global.set $n (i32.add (global.get $n) (local.get 0))))
            (func (export \"wasm:func:entry (local0)\") (param i32)
                (call $add (i32.add (local.get 0) (i32.const 1)))))",
    )
    .unwrap();
    let shared = share(module.clone(), &module);
    shared.activate().unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let entry = instance.get_typed_func::<i32, ()>(&mut store, "wasm:func:entry (local0)").unwrap();
    entry.call(&mut store, 5).unwrap();
    let n = shared.read(|store, instance| instance.get_global(&*store, "n").unwrap().get(store));
    // The program calls the rule's function with 5, which calls the other one with 6.
    assert!(matches!(n, Val::I32(13)), "{n:?}");
}

/// After a monitor has failed, none of its functions is called.
#[test]
fn a_monitor_that_has_failed_is_not_called() {
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let text = "(module (import \"host\" \"called\" (func $called))
        (func (export \"wasm:func:entry\") (call $called) unreachable)
        (func (export \"wasm:end\") (call $called)))";
    let monitor = MonitorModule::new(Module::new(&engine, text).unwrap(), Vec::new()).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let of_host = calls.clone();
    let mut linker: Linker<()> = Linker::new(&engine);
    let called = move || _ = of_host.fetch_add(1, Ordering::Relaxed);
    linker.func_wrap("host", "called", called).unwrap();
    let shared = monitor.share(Store::new(&engine, ()), &mut linker, &program).unwrap();
    shared.activate().unwrap();
    run(&program, 3, |_| ());
    assert!(matches!(shared.finish(), Err(MonitorError::Failed { .. })));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}
