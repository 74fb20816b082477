//! Typed references to functions: values, items and imports of such types.

use wasm_jit::{
    Caller, Engine, Error, ExternType, Func, FuncType, Global, GlobalType, HeapType, Instance, Linker,
    Module, Mutability, RefType, Store, Table, TableType, Val, ValType,
};

use super::instance;

/// `(ref null? $id)`, where `$id` is the type of these functions.
fn reference(engine: &Engine, nullable: bool, ty: &FuncType) -> RefType {
    RefType::new(nullable, HeapType::ConcreteFunc(engine.func_type_id(ty).unwrap()))
}

fn unary() -> FuncType {
    FuncType::new([ValType::I32], [ValType::I32])
}

/// The error of a value that has another type, as its text.
fn mismatch<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::ValueType(types)) => format!("{} {}", types.expected, types.found),
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_are_checked_when_they_enter_the_store() {
    let (mut store, instance) = instance(
        r#"(module
            (type $unary (func (param i32) (result i32)))
            (func $inc (export "inc") (type $unary) (i32.add (local.get 0) (i32.const 1)))
            (func (export "other") (param i64))
            (func (export "sure") (param (ref $unary)) (result i32)
                (call_ref $unary (i32.const 1) (local.get 0)))
            (func (export "nullable") (param (ref null $unary)) (result i32)
                (ref.is_null (local.get 0)))
            (func (export "any") (param (ref func)) (result (ref func)) (local.get 0))
            (func (export "extern") (param (ref extern)))
            (func (export "give") (result (ref $unary)) (ref.func $inc)))"#,
    );
    let func = |store: &mut Store<()>, name: &str| instance.get_func(store, name).unwrap();
    let [inc, other] = ["inc", "other"].map(|name| func(&mut store, name));
    let [unary, of_other] = [&inc, &other].map(|func| {
        let ty = func.ty(&store);
        HeapType::ConcreteFunc(store.engine().func_type_id(&ty).unwrap())
    });
    let mut results = [Val::I32(0)];
    let mut call = |name: &str, value: Val, results: &mut [Val]| {
        func(&mut store, name).call(&mut store, &[value], results).map(|()| results.to_vec())
    };
    let null = || Val::FuncRef(None);
    assert_eq!(call("sure", inc.into(), &mut results).unwrap()[0].unwrap_i32(), 2);
    assert_eq!(call("nullable", inc.into(), &mut results).unwrap()[0].unwrap_i32(), 0);
    assert_eq!(call("nullable", null(), &mut results).unwrap()[0].unwrap_i32(), 1);
    assert_eq!(call("any", other.into(), &mut results).unwrap()[0].unwrap_func_ref(), Some(&other));
    assert_eq!(mismatch(call("sure", null(), &mut results)), format!("(ref {unary}) funcref"));
    assert_eq!(mismatch(call("sure", other.into(), &mut results)), format!("(ref {unary}) (ref {of_other})"));
    assert_eq!(
        mismatch(call("nullable", other.into(), &mut results)),
        format!("(ref null {unary}) (ref {of_other})")
    );
    assert_eq!(
        mismatch(call("nullable", Val::ExternRef(None), &mut results)),
        format!("(ref null {unary}) externref")
    );
    assert_eq!(mismatch(call("any", null(), &mut results)), "(ref func) funcref");
    assert_eq!(mismatch(call("extern", Val::ExternRef(None), &mut [])), "(ref extern) externref");
    let give = func(&mut store, "give");
    give.call(&mut store, &[], &mut results).unwrap();
    assert_eq!(results[0].unwrap_func_ref(), Some(&inc));
    let foreign = Func::wrap(&mut Store::new(&Engine::default(), ()), |_: i32| 0_i32).unwrap();
    let sure = func(&mut store, "sure");
    let error = sure.call(&mut store, &[foreign.into()], &mut results).unwrap_err();
    assert!(matches!(error, Error::WrongStore { .. }), "{error}");
}

#[test]
fn typed_functions_accept_results_of_subtypes() {
    let (mut store, instance) = instance(
        r#"(module
            (type $t (func (param funcref) (result (ref $t))))
            (func $f (export "f") (type $t) (ref.func $f))
            (func (export "g") (param (ref null $t))))"#,
    );
    let f = instance.get_typed_func::<Option<Func>, Option<Func>>(&mut store, "f").unwrap();
    assert_eq!(f.call(&mut store, None).unwrap(), instance.get_func(&mut store, "f"));
    let error = instance.get_typed_func::<Option<Func>, ()>(&mut store, "g").unwrap_err();
    assert!(matches!(error, Error::FuncType(_)), "any function could be passed: {error}");
    let error = instance.get_typed_func::<Option<Func>, ()>(&mut store, "f").unwrap_err();
    assert!(matches!(error, Error::FuncType(_)), "{error}");
}

#[test]
fn items_of_the_host_have_typed_references() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let [nullable, sure] = [true, false].map(|nullable| reference(&engine, nullable, &unary()));
    let inc = Func::wrap(&mut store, |value: i32| value + 1).unwrap();
    let other = Func::wrap(&mut store, |_: i64| ()).unwrap();

    let ty = TableType::new(sure, 2, None);
    assert_eq!(mismatch(Table::new(&mut store, ty, Val::FuncRef(None))), format!("{sure} funcref"));
    let table = Table::new(&mut store, ty, inc.into()).unwrap();
    mismatch(table.set(&mut store, 0, other.into()));
    mismatch(table.grow(&mut store, 1, Val::FuncRef(None)));
    assert_eq!(table.get(&mut store, 1).unwrap().unwrap_func_ref(), Some(&inc));

    let ty = GlobalType::new(ValType::Ref(nullable), Mutability::Var);
    let global = Global::new(&mut store, ty, Val::FuncRef(None)).unwrap();
    mismatch(global.set(&mut store, other.into()));
    global.set(&mut store, inc.into()).unwrap();

    let module = Module::new(
        &engine,
        r#"(module (type $unary (func (param i32) (result i32)))
            (import "host" "table" (table 2 (ref $unary)))
            (import "host" "global" (global $g (mut (ref null $unary))))
            (import "host" "apply" (func $apply (param (ref $unary) i32) (result (ref null $unary))))
            (func $double (type $unary) (i32.mul (local.get 0) (i32.const 2)))
            (elem declare func $double)
            (func (export "run") (param i32) (result i32)
                (call_ref $unary
                    (call_ref $unary (local.get 0) (table.get (i32.const 1)))
                    (call $apply (ref.func $double) (call_ref $unary (local.get 0) (global.get $g))))))"#,
    )
    .unwrap();
    let ExternType::Func(ty) = module.imports().nth(2).unwrap().ty().clone() else { panic!() };
    assert_eq!(ty, FuncType::new([ValType::Ref(sure), ValType::I32], [ValType::Ref(nullable)]));
    let mut linker = Linker::new(&engine);
    let apply = |mut caller: Caller<'_, ()>, given: &[Val], results: &mut [Val]| {
        let double = *given[0].unwrap_func_ref().expect("it is not null");
        let mut result = [Val::I32(0)];
        double.call(&mut caller, &[given[1].clone()], &mut result)?;
        let total = result[0].unwrap_i32();
        results[0] = Func::wrap(&mut caller, move |value: i32| value + total)?.into();
        Ok(())
    };
    linker.define(&mut store, "host", "table", table).unwrap();
    linker.define(&mut store, "host", "global", global).unwrap();
    linker.func_new("host", "apply", ty.clone(), apply).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, 5).unwrap(), 6 + 2 * 6);

    // The result that a host function does not write is null.
    let ty = FuncType::new([], [ValType::Ref(sure)]);
    let nothing = Func::new(&mut store, ty, |_, _, _| Ok(())).unwrap();
    mismatch(nothing.call(&mut store, &[], &mut [Val::I32(0)]));
}

#[test]
fn imports_of_subtypes_are_accepted() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let exporter = Module::new(
        &engine,
        r#"(module (type $t (func))
            (func $f (type $t))
            (global (export "const") (ref $t) (ref.func $f))
            (global (export "var") (mut (ref $t)) (ref.func $f))
            (table (export "table") 1 (ref $t) (ref.func $f))
            (func (export "func") (param (ref $t))))"#,
    )
    .unwrap();
    let exporter = Instance::new(&mut store, &exporter, &[]).unwrap();
    let mut accepts = |name: &str, import: &str| {
        let text =
            format!("(module (type $t (func)) (type $u (func (param i32))) (import \"\" \"\" {import}))");
        let module = Module::new(&engine, text).unwrap();
        let item = exporter.get_export(&mut store, name).unwrap();
        match Instance::new(&mut store, &module, &[item]) {
            Ok(_) => true,
            Err(Error::IncompatibleImport { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    };
    let types =
        ["(ref $t)", "(ref null $t)", "(ref func)", "funcref", "(ref $u)", "(ref null $u)", "externref"];
    for (number, ty) in types.into_iter().enumerate() {
        assert_eq!(accepts("const", &format!("(global {ty})")), number < 4, "{ty}");
        assert_eq!(accepts("var", &format!("(global (mut {ty}))")), number == 0, "{ty}");
        assert_eq!(accepts("table", &format!("(table 1 {ty})")), number == 0, "{ty}");
        assert_eq!(accepts("func", &format!("(func (param {ty}))")), number == 0, "{ty}");
    }
}

#[test]
fn host_functions_have_types_of_recursion_groups() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (rec (type $a (func (result (ref null $b)))) (type $b (func (result i32))))
            (import "host" "f" (func $f (type $a)))
            (func (export "run") (result i32) (ref.is_null (call $f))))"#,
    )
    .unwrap();
    let ExternType::Func(ty) = module.imports().next().unwrap().ty().clone() else { panic!() };
    let ValType::Ref(result) = ty.results().next().unwrap() else { panic!() };
    let HeapType::ConcreteFunc(id) = result.heap_type() else { panic!() };
    assert_ne!(engine.func_type(id), Some(FuncType::new([], [ValType::I32])), "it is one of the group");
    let mut store = Store::new(&engine, ());
    let alike = FuncType::new([], [ValType::Ref(result)]);
    for (ty, fits) in [(ty, true), (alike, false)] {
        let f = Func::new(&mut store, ty.clone(), |_, _, _| Ok(())).unwrap();
        assert_eq!(f.ty(&store), ty);
        let instance = Instance::new(&mut store, &module, &[f.into()]);
        assert_eq!(instance.is_ok(), fits);
        if let Ok(instance) = instance {
            let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
            assert_eq!(run.call(&mut store, ()).unwrap(), 1);
        }
    }
    // A type that refers to itself is a group.
    let alone = Module::new(
        &engine,
        r#"(module (type $t (func (result (ref null $t)))) (import "host" "f" (func (type $t))))"#,
    )
    .unwrap();
    let ExternType::Func(ty) = alone.imports().next().unwrap().ty().clone() else { panic!() };
    let f = Func::new(&mut store, ty, |_, _, _| Ok(())).unwrap();
    Instance::new(&mut store, &alone, &[f.into()]).unwrap();
    drop((module, store));
    let error =
        Func::new(&mut Store::new(&engine, ()), FuncType::new([], [ValType::Ref(result)]), |_, _, _| Ok(()));
    assert!(matches!(error, Err(Error::InvalidType { of: "function" })), "nothing uses the type any more");
}
