//! Rules that act on some of their events: `@once` and `@sample`.

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;

use super::engine::{check_program, rows_without_offset};

/// A loop of ten iterations, in which one function is called at two places.
const PROGRAM: &str = r#"(module
    (func $f (param i32))
    (func (export "run") (local $i i32)
        (loop $next
            (call $f (local.get $i))
            (call $f (i32.mul (local.get $i) (i32.const 2)))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10))))))"#;

#[test]
fn once_is_the_first_event_at_each_place() {
    let event = "wasm:opcode:call:before";
    check_program(
        "@once wasm:opcode:call:before { report var times: u32; times++; }",
        PROGRAM,
        &[&format!("times {event} 1 1"), &format!("times {event} 1 1")],
    );
    // The first one for which the predicate holds: 4, which is 2 * 2 at the second place.
    check_program(
        "@once wasm:opcode:call(arg0: u32):before / arg0 > 3 / { report var first: u32; first = arg0; }",
        PROGRAM,
        &[&format!("first {event} 1 4"), &format!("first {event} 1 4")],
    );
    // Other rules of the place continue, even after a `return`.
    check_program(
        "report var once: u32; report var each: u32;
        @once wasm:func:entry { once++; if (once > 0) { return; } }
        wasm:func:entry { each++; }
        @once wasm:func:exit { once = once + 100; }
        @once wasm:block:end { once = once + 1000; }",
        PROGRAM,
        // Two functions; two blocks in one of them, and one in the other.
        &["once 3202", "each 21"],
    );
}

/// The number of evaluations of its predicate shows whether the probe is switched off.
#[test]
fn once_switches_its_probe_off() {
    const LIBRARY: &str = r#"(module (global $n (mut i32) (i32.const 0))
        (func (export "tick") (result i32)
            (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
        (func (export "ticks") (result i32) (global.get $n)))"#;
    let script = "use clock; report var ticks: i32; report var times: u32;
        @once wasm:func:entry / fname == \"f\" && clock.tick() >= 7 / { times++; }
        wasm:end { ticks = clock.ticks(); }";
    let library = wat::parse_str(LIBRARY).unwrap();
    let script = Script::new("test.mm", script.as_bytes(), &[("clock", &library)]).unwrap();
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let monitor = || {
        let libraries = vec![("clock".to_owned(), Module::new(&engine, LIBRARY).unwrap())];
        let module = Module::from_binary(&engine, script.module()).unwrap();
        MonitorModule::new(module, libraries).unwrap()
    };
    let run = |store: &mut Store<()>| {
        let instance = Instance::new(&mut *store, &program, &[]).unwrap();
        instance.get_typed_func::<(), ()>(&mut *store, "run").unwrap().call(store, ()).unwrap();
    };
    let values = |report: wasm_jit_whamm::lang::ScriptReport| {
        let values = report.variables.into_iter().map(|variable| variable.value);
        values.collect::<Vec<_>>()
    };
    let expected = [7, 1].map(|value| ReportedValue::Value(Value::Int(value)));
    // In the program's store, and in a separate one.
    let mut store = Store::new(&engine, ());
    let mut attached = monitor().attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    run(&mut store);
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    assert_eq!(values(script.report(&store, instance).unwrap()), expected);
    drop(attached);
    let shared = monitor().share(Store::new(&engine, ()), &mut Linker::new(&engine), &program).unwrap();
    shared.activate().unwrap();
    run(&mut Store::new(&engine, ()));
    // After deactivation and activation, it remains off.
    shared.deactivate().unwrap();
    shared.activate().unwrap();
    run(&mut Store::new(&engine, ()));
    shared.finish().unwrap();
    let report = shared.read(|store, instance| script.report(&*store, instance)).unwrap();
    assert_eq!(values(report), expected);
}

/// The numbers that the generator draws, as the manual describes it.
struct Generator(u64);

impl Generator {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn draws(&mut self, probability: f64) -> bool {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let upper = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (upper as f64) < probability * f64::from(u32::MAX) + probability
    }
}

#[test]
fn samples_are_drawn_independently_for_each_event() {
    let program = PROGRAM.replace("(i32.const 10)", "(i32.const 20000)");
    let found = |annotation: &str| -> u64 {
        let script = format!("report var n: u32; {annotation} wasm:opcode:call:before {{ n++; }}");
        let rows = rows_without_offset(&script, &[], &program);
        rows[0].rsplit(' ').next().unwrap().parse().unwrap()
    };
    for (text, probability) in [("1%", 0.01), ("0.5%", 0.005), ("25%", 0.25), ("100%", 1.0)] {
        let mut generator = Generator::new();
        let expected = (0..40_000).filter(|_| generator.draws(probability)).count() as u64;
        assert_eq!(found(&format!("@sample({text})")), expected, "{text}");
        // Four standard deviations of that many independent draws.
        let (mean, deviation) =
            (40_000.0 * probability, (40_000.0 * probability * (1.0 - probability)).sqrt());
        assert!((expected as f64 - mean).abs() <= 4.0 * deviation, "{text}: {expected}");
    }
    // The first event that is drawn at each place.
    assert_eq!(found("@once @sample(1%)"), 2);
    assert_eq!(found("@sample(1%) @once"), 2);
}

/// Only events for which the predicate holds are drawn, and rules share the generator.
#[test]
fn rules_draw_from_one_generator() {
    let mut generator = Generator::new();
    let mut expected = [0, 0];
    for argument in (0..10).flat_map(|i| [i, 2 * i]) {
        // Before the call, then in the function.
        expected[0] += u64::from(argument > 3 && generator.draws(0.5));
        expected[1] += u64::from(generator.draws(0.25));
    }
    check_program(
        "report var a: u32; report var b: u32;
        @sample(50%) wasm:opcode:call(arg0: i32):before / arg0 > 3 / { a++; }
        @sample(25%) wasm:func:entry / fname == \"f\" / { b++; }",
        PROGRAM,
        &[&format!("a {}", expected[0]), &format!("b {}", expected[1])],
    );
}

/// Nothing is drawn at a place whose rule is done, in any target.
#[test]
fn rules_that_are_done_draw_nothing() {
    let mut generator = Generator::new();
    let (mut done, mut sampled) = ([false; 2], 0);
    for place in [0, 1].repeat(10) {
        if !done[place] {
            done[place] = generator.draws(0.4);
        }
        sampled += u64::from(generator.draws(0.25));
    }
    assert_eq!(done, [true; 2]);
    check_program(
        "report var a: u32; report var b: u32;
        @once @sample(40%) wasm:opcode:call:before { a++; }
        @sample(25%) wasm:func:entry / fname == \"f\" / { b++; }",
        PROGRAM,
        &["a 2", &format!("b {sampled}")],
    );
}

/// The heading of a rule's table states how its events were selected.
#[test]
fn reports_name_the_annotations_of_rules() {
    let script = "@sample( 2% )  @once\n wasm:func:entry { report var n: u32; n++; }
        @sample(1e1%) wasm:func:exit { report shared var m: u32; m++; }";
    let script = Script::new("test.mm", script.as_bytes(), &[]).unwrap();
    let engine = Engine::default();
    let monitor = Module::from_binary(&engine, script.module()).unwrap();
    let monitor = MonitorModule::new(monitor, Vec::new()).unwrap();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, ());
    let attached = monitor.attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    let instance = attached.instance(&mut store);
    let report = script.report(&store, instance).unwrap();
    assert_eq!(report.rules[0].rule, "@sample( 2% ) @once wasm:func:entry");
    assert_eq!(report.variables[0].rule.as_deref(), Some("@sample(1e1%) wasm:func:exit"));
}
