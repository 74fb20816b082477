//! Nulls of all types, and integers as references.

use std::io::Cursor;

use crate::support::{Replayed, Trace, events, reduced, replay, replay_separately, trace_of};
use wasm_jit::{
    AnyRef, Caller, Engine, ExternType, Global, GlobalType, HeapType, I31, Instance, Linker, Module,
    Mutability, RefType, Store, Table, TableType, Val, ValType,
};
use wasm_jit_replay::{Event, Recorder, Type, Value, generate, javascript, reduce, separate, slice};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// `step` (1) passes on what it gets.
const PROGRAM: &str = r#"(module
    (type $s (struct (field i32)))
    (type $t (sub (func (result i32))))
    (type $sub (sub $t (func (result i32))))
    (type $again (sub (func (result i32))))
    (import "h" "pass" (func $pass
        (param anyref eqref i31ref (ref null $s) (ref null $t) exnref (ref i31))
        (result anyref (ref null $s) i31ref (ref null $t) exnref)))
    (import "h" "variable" (global $variable (mut eqref)))
    (import "h" "constant" (global $constant i31ref))
    (import "h" "table" (table $table 2 9 i31ref))
    (global $own (export "own") (mut structref) (ref.null struct))
    (table $typed (export "typed") 1 9 (ref null $t))
    (func $step (export "step") (param $any anyref) (param $t (ref null $t)) (param $n i32)
        (result i31ref (ref null $t) exnref i32)
        (local $i i31ref) (local $e exnref) (local $s (ref null $s)) (local $sum i32)
        (call $pass (local.get $any) (global.get $variable) (table.get $table (i32.const 1)) (ref.null $s)
            (local.get $t) (ref.null exn) (ref.i31 (local.get $n)))
        (local.set $e) (local.set $t) (local.set $i) (local.set $s) (local.set $any)
        (local.set $sum (ref.is_null (local.get $s)))
        (local.set $sum (i32.add (local.get $sum) (i31.get_s (ref.cast (ref i31) (local.get $any)))))
        (local.set $sum (i32.add (local.get $sum) (i31.get_u (global.get $constant))))
        (local.set $sum (i32.add (local.get $sum) (ref.is_null (global.get $own))))
        (local.set $sum (i32.add (local.get $sum) (table.size $typed)))
        (table.set $table (i32.const 0) (ref.i31 (local.get $sum)))
        (if (i32.eqz (ref.is_null (table.get $typed (i32.const 0))))
            (then (local.set $sum (i32.add (local.get $sum)
                (i32.add (call_ref $t (table.get $typed (i32.const 1)))
                    (i32.add (call_ref $t (table.get $typed (i32.const 2)))
                        (call_ref $t (table.get $typed (i32.const 0)))))))))
        (local.get $i) (local.get $t) (local.get $e) (local.get $sum))
    (func $seven (export "seven") (type $t) (i32.const 7))
    (func $eight (export "eight") (type $sub) (i32.const 8))
    (func $nine (export "nine") (type $again) (i32.const 9)))"#;

fn integer(value: i32) -> Val {
    Val::AnyRef(Some(AnyRef::from(I31::wrapping(value))))
}

/// A run with three calls, of which the last two are recorded if it is not new.
fn recorded(is_new: bool) -> (Module, Vec<u8>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let (mut store, mut linker) = (Store::new(&engine, 0), Linker::new(&engine));
    let i31 = RefType::new(true, HeapType::I31);
    let eq = ValType::Ref(RefType::new(true, HeapType::Eq));
    let null = Val::AnyRef(None);
    let ty = GlobalType::new(eq, Mutability::Var);
    let variable = Global::new(&mut store, ty, integer(-1)).unwrap();
    let ty = GlobalType::new(ValType::Ref(i31), Mutability::Const);
    let constant = Global::new(&mut store, ty, integer(i32::MAX >> 1)).unwrap();
    let table = Table::new(&mut store, TableType::new(i31, 2, Some(9)), null.clone()).unwrap();
    table.set(&mut store, 0, integer(3)).unwrap();
    linker.define(&store, "h", "variable", variable).unwrap();
    linker.define(&store, "h", "constant", constant).unwrap();
    linker.define(&store, "h", "table", table).unwrap();
    let pass = move |mut caller: Caller<'_, i32>, _: &[Val], results: &mut [Val]| {
        *caller.data_mut() += 1;
        let n = *caller.data();
        variable.set(&mut caller, if n == 2 { Val::AnyRef(None) } else { integer(n) })?;
        table.set(&mut caller, 1, integer(-n))?;
        table.grow(&mut caller, 1, Val::AnyRef(None))?;
        let nothing = [Val::AnyRef(None), Val::FuncRef(None), Val::ExnRef(None)];
        results[1..].clone_from_slice(&[
            nothing[0].clone(),
            integer(n),
            nothing[1].clone(),
            nothing[2].clone(),
        ]);
        results[0] = integer(-1 << 29);
        Ok(())
    };
    let import = module.imports().next().expect("the function");
    let ExternType::Func(ty) = import.ty() else { panic!("a function") };
    linker.func_new("h", "pass", ty.clone(), pass).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = match is_new {
        true => recorder.instantiate(&mut store, &linker).unwrap(),
        false => linker.instantiate(&mut store, &module).unwrap(),
    };
    step(&mut store, instance, integer(5));
    if !is_new {
        recorder.attach(&mut store, instance).unwrap();
    }
    let typed = instance.get_table(&store, "typed").unwrap();
    typed.grow(&mut store, 2, Val::FuncRef(None)).unwrap();
    // Of this type, of a subtype, and of an equal type.
    for (element, name) in (0..).zip(["seven", "eight", "nine"]) {
        let function = instance.get_func(&store, name).unwrap();
        typed.set(&mut store, element, Val::FuncRef(Some(function))).unwrap();
    }
    step(&mut store, instance, null);
    step(&mut store, instance, integer(-6));
    recorder.stop(&mut store).unwrap();
    (module, trace.bytes())
}

fn step(store: &mut Store<i32>, instance: Instance, value: Val) {
    let step = instance.get_func(&*store, "step").unwrap();
    let mut results = [Val::AnyRef(None), Val::FuncRef(None), Val::ExnRef(None), Val::I32(0)];
    step.call(store, &[value, Val::FuncRef(None), Val::I32(9)], &mut results).unwrap();
}

#[track_caller]
fn check(module: &Module, trace: &[u8]) {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        let bench = generate(module.bytes(), trace, true).unwrap();
        Module::from_binary(module.engine(), &bench).unwrap();
        assert_eq!(replay(&bench), COMPLETE);
        let separate = separate(module.bytes(), trace, true).unwrap();
        assert_eq!(replay_separately(&separate), COMPLETE);
    }
}

#[test]
fn nulls_of_all_types_and_integers_are_replayed() {
    for is_new in [true, false] {
        let (module, trace) = recorded(is_new);
        check(&module, &trace);
        let cut = Trace::default();
        let calls = slice(&module, 1, Cursor::new(trace.clone()), cut.clone()).unwrap();
        assert_eq!(calls, if is_new { 3 } else { 2 });
        check(&module, &cut.bytes());
        // JavaScript cannot pass the null of an exception.
        let refused = javascript(module.bytes(), &trace[..]).unwrap_err().to_string();
        assert!(refused.contains("a value of type exnref"), "{refused}");
    }
    let lines: Vec<String> = events(&recorded(true).1).iter().map(Event::to_string).collect();
    let mut rest = lines.iter();
    for expected in [
        "import global=0 i31:-1",
        "import global=1 i31:1073741823",
        "set table=0 element=0 i31:3",
        "enter func=1 i31:5 func:null i32:9",
        "call import=0 i31:5 i31:-1 any:null any:null func:null exn:null i31:9",
        "set global=0 i31:1",
        "grow table=0 elements=1",
        "set table=0 element=1 i31:-1",
        "return i31:-536870912 any:null i31:1 func:null exn:null",
        "grow table=1 elements=2",
        "set table=1 element=0 func:2",
        "set table=1 element=1 func:3",
        "set table=1 element=2 func:4",
        "call import=0 any:null i31:1 i31:-1 any:null func:null exn:null i31:9",
        "set global=0 any:null",
    ] {
        assert!(rest.any(|line| line == expected), "{expected} in {lines:#?}");
    }
}

/// Another integer, null instead of an integer, and an integer instead of null.
#[test]
fn another_integer_or_null_is_found_and_named() {
    let (module, trace) = recorded(true);
    let all = events(&trace);
    let mut planted = 0;
    for (number, event) in all.iter().enumerate() {
        let (Event::Call { arguments: values, .. } | Event::Leave { results: values }) = event else {
            continue;
        };
        for at in (0..values.len()).filter(|at| matches!(values[*at], Value::Any(_))) {
            let other = match values[at] {
                Value::Any(Some(value)) => [Value::Any(Some(value ^ 1)), Value::Any(None)],
                _ => [Value::Any(Some(0)), Value::Any(Some(-1))],
            };
            for other in other {
                let mut changed = all.clone();
                let (Event::Call { arguments: values, .. } | Event::Leave { results: values }) =
                    &mut changed[number]
                else {
                    unreachable!("a call or its end")
                };
                values[at] = other;
                let changed = trace_of(&changed);
                let error = reduce(&module, Cursor::new(changed.clone()), Trace::default()).unwrap_err();
                assert!(error.to_string().contains(&format!("event {number} ")), "{error}");
                // Types exclude some values: no structure is an integer.
                match generate(module.bytes(), &changed[..], true) {
                    Ok(bench) => assert_eq!(replay(&bench), Replayed::Differs(number as i32), "{event}"),
                    Err(error) => assert!(error.to_string().contains("values of other types"), "{error}"),
                }
                planted += 1;
            }
        }
    }
    assert!(planted > 30, "{planted}");
}

/// Functions of others have these types, too. An integer has 31 bits.
#[test]
fn encoded_references_are_decoded() {
    let values =
        vec![Value::Any(None), Value::Any(Some(-1 << 30)), Value::Any(Some((1 << 30) - 1)), Value::Exn];
    let function = Event::Function { function: 1, parameters: vec![Type::Any], results: vec![Type::Exn] };
    let all = [Event::Start { module: 1, length: 2 }, function, Event::Return { results: values }];
    assert_eq!(events(&trace_of(&all)), all);
    let large = Event::Return { results: vec![Value::Any(Some(1 << 30))] };
    let large = trace_of(&[all[0].clone(), large]);
    let error =
        wasm_jit_replay::Reader::new(&large[..]).collect::<Result<Vec<_>, _>>().unwrap_err().to_string();
    assert!(error.contains("a number that is too large"), "{error}");
}
