//! The callees of indirect calls.

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_whamm::lang::{self, ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;
use wasm_jit_whamm::rewrite::instrument;

use super::{engine, printing};

/// Calls each of three functions, one of which is imported, twice through the table; one by a
/// reference, and one by a tail call. The last call has no function.
const PROGRAM: &str = r#"(module
    (type $unary (func (param i32) (result i32)))
    (import "host" "square" (func $imported (type $unary)))
    (table 5 funcref) (elem (i32.const 0) $double $half $imported) (elem declare func $double)
    (func $double (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (func $half (type $unary) (i32.div_u (local.get 0) (i32.const 2)))
    (func $tail (param i32) (result i32) (return_call_indirect (type $unary) (i32.const 8) (local.get 0)))
    (func (export "run") (param $end i32) (local $i i32)
        (loop $next
            (drop (call_indirect (type $unary) (i32.const 8) (i32.rem_u (local.get $i) (i32.const 3))))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 6))))
        (drop (call_ref $unary (i32.const 1) (ref.func $double)))
        (drop (call $tail (i32.const 1)))
        (drop (call_indirect (type $unary) (i32.const 8) (local.get $end)))))"#;

/// The report of a script after the program has trapped: in the program's store, then in a separate
/// one.
fn reports(script: &str) -> [ScriptReport; 2] {
    let script = Script::new("test.mm", script.as_bytes(), &[]).unwrap_or_else(|error| panic!("{error}"));
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let monitor =
        || MonitorModule::new(Module::from_binary(&engine, script.module()).unwrap(), Vec::new()).unwrap();
    let run = |store: &mut Store<()>| {
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "square", |number: i32| number * number).unwrap();
        let instance = linker.instantiate(&mut *store, &program).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut *store, "run").unwrap();
        assert!(run.call(store, 4).is_err(), "the table has no function there");
    };
    let mut store = Store::new(&engine, ());
    let mut attached = monitor().attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    run(&mut store);
    attached.finish(&mut store).unwrap();
    let instance = attached.instance(&mut store);
    let here = script.report(&store, instance).unwrap();
    drop(attached);
    let shared = monitor().share(Store::new(&engine, ()), &mut Linker::new(&engine), &program).unwrap();
    shared.activate().unwrap();
    run(&mut Store::new(&engine, ()));
    shared.finish().unwrap();
    [here, shared.read(|store, instance| script.report(&*store, instance)).unwrap()]
}

#[test]
fn callees_have_numbers_and_names() {
    let script = r#"report var calls: map<(str, str, i32), u64>; report var halves: u32; report var sum: i32;
        wasm:opcode:call_indirect|call_ref|return_call_indirect:before {
            calls[(opname, target_fn_name, resolved_fid)]++;
        }
        wasm:opcode:call_indirect:before / target_fn_name == "half" && resolved_fid > 0 / { halves++; }
        report var first: i32;
        @once wasm:opcode:call_indirect:before / resolved_fid != 1 / { first = resolved_fid; sum = sum + 100; }
        wasm:opcode:call_indirect(arg1: i32):before { sum = sum + arg1; }"#;
    let text = |text: &str| Value::Text(text.to_owned());
    for report in reports(script) {
        let value = |name: &str| {
            let variable = report.variables.iter().find(|variable| variable.name == name).unwrap();
            variable.value.clone()
        };
        let ReportedValue::Map(mut calls) = value("calls") else { panic!("{report:?}") };
        calls.sort_by_key(|(key, _)| format!("{key:?}"));
        let mut expected = [
            ("call_indirect", "double", 1, 2),
            ("call_indirect", "half", 2, 2),
            ("call_indirect", "square", 0, 2),
            ("call_indirect", "", -1, 1),
            ("call_ref", "double", 1, 1),
            ("return_call_indirect", "half", 2, 1),
        ]
        .map(|(opcode, name, number, count)| {
            (Value::Tuple(vec![text(opcode), text(name), Value::Int(number)]), Value::Int(count))
        });
        expected.sort_by_key(|(key, _)| format!("{key:?}"));
        assert_eq!(calls, expected);
        assert_eq!(value("halves"), ReportedValue::Value(Value::Int(2)));
        // One of each place: `half`, and none.
        assert_eq!(value("first"), ReportedValue::Value(Value::Int(-1)));
        assert_eq!(value("sum"), ReportedValue::Value(Value::Int(2 * 100 + 7 * 8)));
    }
}

/// Tables whose elements are known: functions of other types and subtypes, an imported one, null, a
/// 64-bit index, and initial elements that are expressions.
const TABLES: &str = r#"(module
    (type $plain (func (param i32) (result i32)))
    (type $unary (sub (func (param i32) (result i32))))
    (type $special (sub $unary (func (param i32) (result i32))))
    (type $nothing (func))
    (import "host" "square" (func $imported (type $plain)))
    (table $first 6 funcref) (table $wide i64 4 funcref)
    (table $same 3 (ref null $special) (ref.func $special))
    (elem (table $first) (i32.const 1) func $double $imported $nothing $special)
    (elem (table $first) (i32.const 0) func $imported)
    (elem (table $first) (i32.const 2) funcref (ref.func $half) (ref.null func))
    (elem (table $wide) (i64.const 2) func $half $double)
    (elem declare func $double)
    (func $double (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (func $half (type $unary) (i32.div_u (local.get 0) (i32.const 2)))
    (func $special (type $special) (i32.const 7))
    (func $nothing (type $nothing))
    (func $tail (param i32) (result i32) (return_call_indirect $first (type $unary) (i32.const 8) (local.get 0)))
    (func (export "run") (param $end i32)
        (drop (call_indirect $first (type $plain) (i32.const 8) (i32.const 0)))
        (drop (call_indirect $first (type $unary) (i32.const 8) (i32.const 1)))
        (drop (call_indirect $first (type $unary) (i32.const 8) (i32.const 2)))
        (drop (call_indirect $first (type $unary) (i32.const 8) (i32.const 4)))
        (drop (call_indirect $first (type $special) (i32.const 8) (i32.const 4)))
        (drop (call_indirect $wide (type $unary) (i32.const 8) (i64.const 3)))
        (drop (call_indirect $same (type $unary) (i32.const 8) (i32.const 2)))
        (drop (call $tail (i32.const 2)))
        (if (i32.eq (local.get $end) (i32.const 20))
            (then (drop (call_indirect $wide (type $unary) (i32.const 8) (i64.const 0x100000003)))))
        (if (i32.eq (local.get $end) (i32.const 21))
            (then (drop (call_indirect $first (type $special) (i32.const 8) (i32.const 1)))))
        (if (i32.eq (local.get $end) (i32.const 22))
            (then (call_indirect $first (type $nothing) (i32.const 4))))
        (drop (call_indirect $first (type $unary) (i32.const 8) (local.get $end)))))"#;

/// A program that looks up the callees reports what is observed in place, whatever causes its last
/// call to trap.
#[test]
fn callees_are_looked_up_in_programs() {
    let script = r#"report var calls: map<(str, i32), u64>; report var halves: u32;
        wasm:opcode:call_indirect|return_call_indirect:before { calls[(target_fn_name, resolved_fid)]++; }
        wasm:opcode:call_indirect:before / target_fn_name == "half" && resolved_fid == 2 / { halves++; }
        wasm:opcode:call_indirect:before { report var last: i32; last = resolved_fid; }"#;
    let engine = Engine::default();
    let program = Module::new(&engine, TABLES).unwrap();
    let compiled = Script::new("test.mm", script.as_bytes(), &[]).unwrap();
    let instrumented = instrument("test.mm", script.as_bytes(), &program).unwrap();
    let features = wasmparser::WasmFeatures::default();
    wasmparser::Validator::new_with_features(features).validate_all(&instrumented).unwrap();
    let instrumented = Module::from_binary(&engine, &instrumented).unwrap();
    // Elements that are null or missing, functions of another type, and a large index.
    for end in [0, 3, 5, 6, -1, 20, 21, 22] {
        let (mut linker, output) = printing::printing(&engine);
        linker.func_wrap("host", "square", |number: i32| number * number).unwrap();
        let mut store = Store::new(&engine, ());
        let monitor = Module::from_binary(&engine, compiled.module()).unwrap();
        let monitor = MonitorModule::new(monitor, Vec::new()).unwrap();
        let mut attached = monitor.attach(&mut store, &mut linker.clone(), &program).unwrap();
        let run = |store: &mut Store<()>, module: &Module| {
            let instance = linker.instantiate(&mut *store, module).unwrap();
            let run = instance.get_typed_func::<i32, ()>(&mut *store, "run").unwrap();
            assert!(run.call(&mut *store, end).is_err(), "{end}");
            instance
        };
        run(&mut store, &program);
        attached.finish(&mut store).unwrap();
        let instance = attached.instance(&mut store);
        let in_place = engine::rows_of(&compiled.report(&store, instance).unwrap());
        let mut store = Store::new(&engine, ());
        let report = run(&mut store, &instrumented).get_typed_func::<(), ()>(&mut store, "whamm:report");
        report.unwrap().call(&mut store, ()).unwrap();
        let by_itself = engine::rows(&printing::text(&output));
        assert_eq!(by_itself, in_place, "{end}");
        // A function of another type is one.
        let has_none = by_itself.contains(&"calls    (, -1) 1".to_owned());
        assert_eq!(has_none, [3, 5, 6, -1, 20].contains(&end), "{end}: {by_itself:?}");
    }
}

/// Monitor modules do not get the callee, and programs know it only if their tables do not change;
/// only the moment before a call has one.
#[test]
fn callees_are_refused_elsewhere() {
    let script = b"report var n: i32; wasm:opcode:call_ref|call_indirect:before { n = resolved_fid; }";
    let error = lang::compile("test.mm", script, &[]).unwrap_err().to_string();
    assert!(error.contains("not told to monitor modules"), "{error}");
    let engine = Engine::default();
    let refused = |fields: &str| {
        let program = format!(
            "(module (type $f (func)) {fields}
            (func $known (type $f)) (func (call_indirect (type $f) (i32.const 0))))"
        );
        let program = Module::new(&engine, program).unwrap();
        instrument("test.mm", script, &program).err().map(|error| error.to_string())
    };
    assert_eq!(refused("(table 1 funcref)"), None);
    assert_eq!(refused("(table 1 funcref) (table $other (export \"t\") 1 funcref)"), None);
    for (fields, reason) in [
        ("(table (import \"a\" \"b\") 1 funcref)", "its table 0 is imported"),
        ("(table (export \"t\") 1 funcref)", "its table 0 is exported"),
        ("(table 1 funcref) (func (table.set 0 (i32.const 0) (ref.null func)))", "its table 0 is changed"),
        ("(table 1 funcref) (func (drop (table.grow 0 (ref.null func) (i32.const 1))))", "is changed"),
        ("(table 1 funcref) (func (table.fill 0 (i32.const 0) (ref.null func) (i32.const 1)))", "is changed"),
        ("(table 1 funcref) (func (table.copy (i32.const 0) (i32.const 0) (i32.const 0)))", "is changed"),
        (
            "(table 1 funcref) (elem $e func) (func (table.init $e (i32.const 0) (i32.const 0) (i32.const 0)))",
            "is changed",
        ),
        (
            "(import \"a\" \"b\" (global $g i32)) (table 1 funcref) (elem (offset (global.get $g)) $known)",
            "that are not known",
        ),
        (
            "(import \"a\" \"b\" (global $g funcref)) (table 1 funcref) (elem (i32.const 0) funcref (global.get $g))",
            "that are not known",
        ),
        ("(table 3000000 funcref) (elem (i32.const 2000000) $known)", "that are not known"),
        (
            "(table 1 funcref) (func (param (ref $f)) (call_ref $f (local.get 0)))",
            "calls functions by references",
        ),
    ] {
        let error = refused(fields).unwrap_or_else(|| panic!("{fields}"));
        assert!(error.contains(reason) && error.contains("wasm-jit run --monitors"), "{fields}: {error}");
    }
    for rule in ["call_indirect:after { n = resolved_fid; }", "call_indirect:before { t = target_fn_type; }"]
    {
        let script = format!("report var n: i32; var t: str; wasm:opcode:{rule}");
        let error = Script::new("test.mm", script.as_bytes(), &[]).unwrap_err().to_string();
        assert!(error.contains("`resolved_fid` and `target_fn_name` are known, before the call"), "{error}");
    }
    let bound = lang::info("wasm:opcode:call_indirect:before").unwrap().remove(0).bound;
    let ty = |name: &str| {
        bound.iter().find(|bound| bound.name == name).map(|bound| (bound.ty.as_str(), bound.is_static))
    };
    assert_eq!([ty("target_fn_name"), ty("resolved_fid")], [Some(("str", false)), Some(("i32", false))]);
}
