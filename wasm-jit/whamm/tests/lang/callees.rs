//! The functions that indirect calls are about to call.

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_whamm::lang::{self, ReportedValue, Script, ScriptReport, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;

/// Calls each of three functions by the table, the one that is imported included, twice; one by a
/// reference, and one by a tail call. In the end, there is no function.
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

/// What a script has found when the program has trapped: in the store of the program, then in one
/// of its own.
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
    [here, shared.read(|store, instance| script.report(&*store, instance)).unwrap().unwrap()]
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

/// Other engines do not tell monitors the callee, and only calls before them have one.
#[test]
fn callees_are_refused_elsewhere() {
    let script = b"report var n: i32; wasm:opcode:call_ref:before { n = resolved_fid; }";
    let error = lang::compile("test.mm", script, &[]).unwrap_err().to_string();
    assert!(error.contains("known only to this engine"), "{error}");
    let engine = Engine::default();
    let program = Module::new(&engine, "(module)").unwrap();
    let error = wasm_jit_whamm::rewrite::instrument("test.mm", script, &program).unwrap_err().to_string();
    assert!(error.contains("known only to this engine"), "{error}");
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
