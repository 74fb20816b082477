//! Rules that fail, or do not end: the program continues without its monitor.

use std::time::Duration;

use wasm_jit::{Engine, Instance, Linker, Module, Store, StoreLimits};
use wasm_jit_whamm::lang::{ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::{MonitorError, MonitorModule};

/// Ten additions.
const PROGRAM: &str = r#"(module (func $step (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
    (func (export "run") (result i32) (local i32)
        (loop (br_if 0 (i32.lt_u (local.tee 0 (call $step (local.get 0))) (i32.const 10))))
        (local.get 0)))"#;

/// The monitor of a script, with the script, and a program.
fn load(source: &str) -> (MonitorModule, Script, Module) {
    let engine = Engine::default();
    let script = Script::new("test.mm", source.as_bytes(), &[]).unwrap_or_else(|error| panic!("{error}"));
    let features = wasmparser::WasmFeatures::default();
    wasmparser::Validator::new_with_features(features).validate_all(script.module()).unwrap();
    let monitor = Module::from_binary(&engine, script.module()).unwrap();
    (MonitorModule::new(monitor, Vec::new()).unwrap(), script, Module::new(&engine, PROGRAM).unwrap())
}

fn run(store: &mut Store<()>, program: &Module) -> i32 {
    let instance = Instance::new(&mut *store, program, &[]).unwrap();
    instance.get_typed_func::<(), i32>(&mut *store, "run").unwrap().call(store, ()).unwrap()
}

fn number(report: &ScriptReport, name: &str) -> i128 {
    let variable = report.variables.iter().find(|variable| variable.name == name).unwrap();
    match &variable.value {
        ReportedValue::Value(Value::Int(number)) => *number,
        ReportedValue::Map(entries) => match entries[..] {
            [(_, Value::Int(number))] => number,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// The program runs to its end, and the script sees the first `seen` events, in the program's store
/// and in a separate one.
#[track_caller]
fn check(source: &str, seen: i128, rule: &str, reason: &str) {
    let expected = |error: MonitorError| match error {
        MonitorError::Failed { export, reason: why } => {
            assert_eq!((export.as_str(), why.as_str()), (rule, reason))
        }
        other => panic!("{other}"),
    };
    let (monitor, script, program) = load(source);
    let engine = program.engine();
    let mut store = Store::new(engine, ());
    store.set_limits(StoreLimits::new().memory_size(1 << 20));
    let mut attached = monitor.attach(&mut store, &mut Linker::new(engine), &program).unwrap();
    assert_eq!(run(&mut store, &program), 10);
    expected(attached.finish(&mut store).unwrap_err());
    let instance = attached.instance(&mut store);
    assert_eq!(number(&script.report(&store, instance).unwrap(), "seen"), seen);

    let mut store = Store::new(engine, ());
    store.set_limits(StoreLimits::new().memory_size(1 << 20));
    let shared = monitor.share(store, &mut Linker::new(engine), &program).unwrap();
    shared.activate().unwrap();
    assert_eq!(run(&mut Store::new(engine, ()), &program), 10);
    expected(shared.finish().unwrap_err());
}

#[test]
fn a_rule_that_fails_ends_the_monitor() {
    let rule = "wasm:opcode:i32.add:before (line 3)";
    let script = |statement: &str| {
        format!(
            "report var seen: u64; var n: i32; var m: map<i32, i32>; wasm:end {{ seen = 100; }}
            fn down(n: i32) -> i32 {{ return n == 0 ? 0 : down(n - 1) + 1; }}
            wasm:opcode:i32.add:before {{ seen++; if (seen == 3) {{ {statement} }} }}"
        )
    };
    check(&script("n = 1 / (n - n);"), 3, rule, "an integer was divided by zero");
    check(&script("n = -2147483648 / (n - 1);"), 3, rule, "the quotient of two integers is out of range");
    // A key with a counter, which is not added to the map after the failure.
    let counted = "report var seen: map<str, u64>; var n: i32; wasm:end { seen[\"i32.add\"] = 100; }
        wasm:opcode:i32.add:before { seen[opname]++;
            n++; if (n == 3) { n = 1 / (n - n); } }";
    let second = "wasm:opcode:i32.add:before (line 2)";
    check(counted, 3, second, "an integer was divided by zero");
    let narrow = "var small: i8 = -128; small = small / (-1 as i8);";
    check(&script(narrow), 3, rule, "the quotient of two integers is out of range");
    check(&script("n = 1 % (n - n);"), 3, rule, "an integer was divided by zero");
    check(&script("while (true) { n++; }"), 3, rule, "the rule has taken more than 2^24 steps");
    check(&script("n = down(-1);"), 3, rule, "calls of the script's functions are nested too deeply");
    let full = "while (n < 100000) { m[n]++; n++; }";
    check(&script(full), 3, "a map of the script", "the script has no memory left for its maps");
}

#[test]
fn steps_and_nesting_are_counted_for_each_event() {
    // Each event takes more than a hundredth of the steps, and most of the nesting.
    let (monitor, script, program) = load(
        "report var sum: i32; fn down(n: i32) -> i32 { return n == 0 ? 0 : down(n - 1) + 1; }
        @once wasm:opcode:i32.add:before / down(7) == 7 / { sum = sum + 1000; }
        wasm:opcode:i32.add:before { var i: i32; while (i < 200) { i++; sum = sum + down(700) - 699; } }",
    );
    let engine = program.engine();
    let mut store = Store::new(engine, ());
    let mut attached = monitor.attach(&mut store, &mut Linker::new(engine), &program).unwrap();
    assert_eq!(run(&mut store, &program), 10);
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    assert_eq!(number(&script.report(&store, instance).unwrap(), "sum"), 1000 + 200 * 10);
}

/// A monitor that cannot be attached, in either kind of store.
#[track_caller]
fn refused(monitor: &MonitorModule, program: &Module) -> String {
    let engine = program.engine();
    let attached = monitor.attach(&mut Store::new(engine, ()), &mut Linker::new(engine), program);
    let shared = monitor.share(Store::new(engine, ()), &mut Linker::new(engine), program);
    let (attached, shared) = (attached.unwrap_err().to_string(), shared.unwrap_err().to_string());
    assert_eq!(attached, shared);
    attached
}

/// Functions of libraries that fail, or do not end.
const LIBRARY: &str = r#"(module (func (export "trap") (result i32) unreachable)
    (func (export "spin") (param i32) (loop (br 0))))"#;

#[test]
fn what_fails_at_match_time_is_named_by_its_line() {
    let check = |source: &str, expected: &str| {
        let engine = Engine::default();
        let library = Module::new(&engine, LIBRARY).unwrap();
        let source = format!("use lib; report var n: i32;\n{source}");
        let script = Script::new("dir/test.mm", source.as_bytes(), &[("lib", library.bytes())]).unwrap();
        let module = Module::from_binary(&engine, script.module()).unwrap();
        let monitor = MonitorModule::new(module, vec![("lib".to_owned(), library)]).unwrap();
        let monitor = monitor.with_call_limit(Duration::from_millis(20));
        let error = refused(&monitor, &Module::new(&engine, PROGRAM).unwrap());
        assert!(error.starts_with(expected), "{error}");
    };
    let rule = "wasm:opcode:i32.add:before";
    check(
        &format!("{rule} {{ @init lib.spin(pc); n++; }}"),
        "`@init` of wasm:opcode:i32.add:before (line 2): `lib.spin` was ended after 20ms: \
         it is called when the rule is matched",
    );
    check(
        &format!("{rule} {{ n = n + @static lib.trap(); }}"),
        "`@static` of wasm:opcode:i32.add:before (line 2): `lib.trap`, for function 0 at offset 0x5: wasm trap: ",
    );
    check(
        &format!("\n{rule} / @static lib.trap() == 1 / {{ n++; }}"),
        "the predicate of wasm:opcode:i32.add:before (line 3): `lib.trap`, for function 0 at offset 0x5: ",
    );
    check(
        &format!("{rule} {{ unshared var k: u32 = 7 / (pc - 5); n = n + (k as i32); }}"),
        "an initial value of wasm:opcode:i32.add:before (line 2), for function 0 at offset 0x5: \
         an integer was divided by zero",
    );
    let outside = "a statement or initial value outside of rules: `lib.spin` was ended after 20ms: \
                   it is called when the monitor is attached";
    check("@init lib.spin(1);", outside);
    check("wasm:begin { n = lib.trap(); }", "wasm:begin (line 2): `lib.trap`: wasm trap: ");
    // Equal functions of several rules are one.
    check(
        "wasm:func:exit { @init lib.spin(1); n++; }\nwasm:func:exit { @init lib.spin(1); n++; }",
        "`@init` of wasm:func:exit (line 2): `lib.spin` was ended",
    );
}

#[test]
fn what_does_not_end_at_match_time_is_refused() {
    let (monitor, _, program) = load("var n: i32;\nwasm:begin { while (true) { n++; } }");
    let expected = "wasm:begin (line 2): the rule has taken more than 2^24 steps";
    assert_eq!(refused(&monitor, &program), expected);
    let module = r#"(module
        (func (export "$holds") (result i32) (loop (br 0)) (i32.const 1))
        (func (export "wasm:opcode:i32.add / $holds() /")))"#;
    let module = Module::new(program.engine(), module).unwrap();
    let monitor = MonitorModule::new(module, Vec::new()).unwrap();
    let monitor = monitor.with_call_limit(Duration::from_millis(20));
    let expected = "the export `wasm:opcode:i32.add / $holds() /`: `$holds` was ended after 20ms: \
                    it is called when the rule is matched";
    assert_eq!(refused(&monitor, &program), expected);
}
