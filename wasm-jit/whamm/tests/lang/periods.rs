//! Rules that are sampled by time, with a clock that the program advances.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_whamm::lang::{ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::{Alarm, Clock, MonitorModule};

/// A clock of a test.
#[derive(Default)]
struct Advanced {
    now: AtomicU64,
    alarms: Mutex<Vec<(u64, Alarm)>>,
}

impl std::fmt::Debug for Advanced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Advanced").field(&self.now).finish()
    }
}

impl Clock for Advanced {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn call_at(&self, time: u64, function: Alarm) {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).push((time, function));
    }
}

impl Advanced {
    /// Advances the clock, and calls the functions that are due.
    fn advance(&self, by: u64) {
        let now = self.now.fetch_add(by, Ordering::Relaxed) + by;
        let alarms = std::mem::take(&mut *self.alarms.lock().unwrap_or_else(PoisonError::into_inner));
        for (time, function) in alarms {
            if time <= now {
                function();
            } else {
                self.call_at(time, function);
            }
        }
    }
}

/// Forty calls to `$f`, three milliseconds apart.
const PROGRAM: &str = r#"(module (import "host" "advance" (func $advance (param i64)))
    (func $f (param i32) (drop (i32.add (local.get 0) (i32.const 1))))
    (func (export "run") (local $i i32)
        (loop $next
            (call $f (local.get $i))
            (call $advance (i64.const 3000000))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 40))))))"#;

/// Counts the evaluations of predicates that call it.
const COUNTER: &str = r#"(module (global $n (mut i32) (i32.const 0))
    (func (export "tick") (result i32)
        (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
    (func (export "ticks") (result i32) (global.get $n)))"#;

/// The values of a script's variables: in the program's store, then in a separate one.
fn values(rules: &str) -> [Vec<i128>; 2] {
    let script = format!(
        "use counter; report var ticks: i32; report var n: u32; report var sum: i32; {rules}
         wasm:end {{ ticks = counter.ticks(); }}"
    );
    let library = wat::parse_str(COUNTER).unwrap();
    let script = Script::new("test.mm", script.as_bytes(), &[("counter", &library)]);
    let script = script.unwrap_or_else(|error| panic!("{error}"));
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let clock = || Arc::new(Advanced::default());
    let monitor = |clock: &Arc<Advanced>| {
        let libraries = vec![("counter".to_owned(), Module::new(&engine, COUNTER).unwrap())];
        let module = Module::from_binary(&engine, script.module()).unwrap();
        MonitorModule::new(module, libraries).unwrap().with_clock(clock.clone())
    };
    let run = |store: &mut Store<()>, clock: &Arc<Advanced>| {
        let mut linker = Linker::new(&engine);
        let clock = clock.clone();
        linker.func_wrap("host", "advance", move |by: i64| clock.advance(by as u64)).unwrap();
        let instance = linker.instantiate(&mut *store, &program).unwrap();
        instance.get_typed_func::<(), ()>(&mut *store, "run").unwrap().call(store, ()).unwrap();
    };
    let of = |report: ScriptReport| -> Vec<i128> {
        let value = |value| match value {
            ReportedValue::Value(Value::Int(value)) => value,
            other => panic!("{other:?}"),
        };
        report.variables.into_iter().map(|variable| value(variable.value)).collect()
    };
    let (mut store, of_store) = (Store::new(&engine, ()), clock());
    let monitor_here = monitor(&of_store);
    let mut attached = monitor_here.attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    run(&mut store, &of_store);
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    let here = of(script.report(&store, instance).unwrap());
    drop(attached);
    let of_shared = clock();
    let shared = monitor(&of_shared);
    let shared = shared.share(Store::new(&engine, ()), &mut Linker::new(&engine), &program).unwrap();
    shared.activate().unwrap();
    run(&mut Store::new(&engine, ()), &of_shared);
    shared.finish().unwrap();
    [here, of(shared.read(|store, instance| script.report(&*store, instance)).unwrap())]
}

/// Of the calls to `$f` that are events, the first one in each period of this many milliseconds.
fn first_in_each(period: i128, is_event: impl Fn(i128) -> bool) -> Vec<i128> {
    let mut due = 0;
    let mut found = Vec::new();
    for call in (0..40).filter(|call| is_event(*call)) {
        if 3 * call >= due {
            due = (3 * call / period + 1) * period;
            found.push(call);
        }
    }
    found
}

/// The probe is off in the rest of the period: the predicate is evaluated for one call in each.
#[test]
fn the_first_event_in_each_period_is_selected() {
    for period in [10, 3, 1, 50] {
        let calls = first_in_each(period, |_| true);
        let rule = format!(
            "@sample({period}ms) wasm:func:entry(local0: i32) / fname == \"f\" && counter.tick() > 0 / {{ n++; sum = sum + local0; }}"
        );
        let expected = vec![calls.len() as i128, calls.len() as i128, calls.iter().sum()];
        assert_eq!(values(&rule), [expected.clone(), expected], "{period}");
    }
    assert_eq!(first_in_each(10, |_| true).len(), 12);
}

/// Times are those of events for which the predicate holds; several places share a period.
#[test]
fn a_period_is_one_of_the_rule() {
    let calls = first_in_each(20, |call| call % 4 == 3);
    let rule = "@sample(0.02s) wasm:func:entry(local0: i32) / fname == \"f\" && local0 % 4 == 3 / { n++; sum = sum + local0; }";
    let expected = vec![0, calls.len() as i128, calls.iter().sum()];
    assert_eq!(values(rule), [expected.clone(), expected]);
    // Both instructions are in `$f`, at the same time.
    let calls = first_in_each(9, |_| true).len() as i128;
    let rule = "@sample(9000us) wasm:opcode:i32.const|local.get:before / fname == \"f\" / { n++; }";
    assert_eq!(values(rule), [vec![0, calls, 0], vec![0, calls, 0]]);
    // Also where the probe of one of them stays on.
    let rules = format!("{rule} wasm:opcode:i32.const:before / fname == \"f\" / {{ sum++; }}");
    assert_eq!(values(&rules), [vec![0, calls, 40], vec![0, calls, 40]]);
}

/// Where another rule needs all events, the probe stays on.
#[test]
fn other_rules_see_all_events() {
    let calls = first_in_each(10, |_| true).len() as i128;
    let rules = "@sample(10ms) wasm:func:entry / fname == \"f\" && counter.tick() > 0 / { n++; }
        wasm:func:entry / fname == \"f\" / { sum++; }
        @once @sample(10ms) wasm:func:entry / fname == \"f\" / { sum = sum + 1000; }";
    let expected = vec![40, calls, 1040];
    assert_eq!(values(rules), [expected.clone(), expected]);
}
