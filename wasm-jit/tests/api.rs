//! The Rust API, as an embedder uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wasm_jit::{
    AsContextMut, Caller, Config, Engine, Error, ExnRef, Extern, ExternRef, ExternType, Func, FuncType,
    Global, GlobalType, Instance, Linker, Memory, MemoryType, Module, Mutability, RefType, SharedMemory,
    Store, StoreLimits, Table, TableType, Tag, TagType, Trap, Val, ValType,
};

fn module(text: &str) -> Module {
    Module::new(&Engine::default(), text).unwrap()
}

/// A store with an instance of a module that imports nothing.
fn instance(text: &str) -> (Store<()>, Instance) {
    let module = module(text);
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance)
}

/// An instance of a module that imports one host function, `host` `f`.
fn with_host<P, R>(text: &str, closure: impl wasm_jit::IntoFunc<(), P, R>) -> (Store<()>, Instance) {
    let module = module(text);
    let mut store = Store::new(module.engine(), ());
    let func = Func::wrap(&mut store, closure).unwrap();
    let instance = Instance::new(&mut store, &module, &[func.into()]).unwrap();
    (store, instance)
}

fn call0<R: wasm_jit::WasmResults>(
    store: &mut Store<()>,
    instance: Instance,
    name: &str,
) -> Result<R, Error> {
    instance.get_typed_func::<(), R>(&mut *store, name).unwrap().call(store, ())
}

#[test]
fn typed_functions_take_and_give_all_number_types() {
    let (mut store, instance) = instance(
        r#"(module (func (export "f") (param i32 i64 f32 f64) (result i32 i64 f32 f64)
            local.get 0 i32.const 1 i32.add
            local.get 1 i64.const 1 i64.add
            local.get 2 f32.const 1 f32.add
            local.get 3 f64.const 1 f64.add))"#,
    );
    type Four = (i32, i64, f32, f64);
    let f = instance.get_typed_func::<Four, Four>(&mut store, "f").unwrap();
    assert_eq!(f.call(&mut store, (-1, i64::MAX, 0.5, -0.5)).unwrap(), (0, i64::MIN, 1.5, 0.5));
    let f = instance.get_typed_func::<(u32, u64, f32, f64), (u32, u64, f32, f64)>(&mut store, "f").unwrap();
    assert_eq!(f.call(&mut store, (u32::MAX, 1, 0.0, 0.0)).unwrap(), (0, 2, 1.0, 1.0));
}

#[test]
fn sixteen_parameters_arrive_in_order() {
    let params = "i32 ".repeat(16);
    let body: String =
        (0..16).map(|n| format!("local.get {n} i32.const {} i32.mul i32.add ", n + 1)).collect();
    let (mut store, instance) = instance(&format!(
        r#"(module (func (export "f") (param {params}) (result i32) i32.const 0 {body}))"#
    ));
    let f = instance.get_func(&mut store, "f").unwrap();
    let arguments: Vec<Val> = (0..16).map(|n| Val::I32(n * n)).collect();
    let mut result = [Val::I32(0)];
    f.call(&mut store, &arguments, &mut result).unwrap();
    assert_eq!(result[0].unwrap_i32(), (0..16).map(|n| n * n * (n + 1)).sum());
}

#[test]
fn a_function_of_another_type_is_refused() {
    let (mut store, instance) = instance(r#"(module (func (export "f") (param i32)))"#);
    let error = instance.get_typed_func::<i64, ()>(&mut store, "f").unwrap_err();
    let Error::FuncType(types) = &error else { panic!("{error}") };
    assert_eq!(types.expected, FuncType::new([ValType::I64], []));
    assert_eq!(types.found, FuncType::new([ValType::I32], []));
    assert!(matches!(
        instance.get_typed_func::<(), ()>(&mut store, "g"),
        Err(Error::UnknownExport { kind: "function", .. })
    ));
    let f = instance.get_func(&mut store, "f").unwrap();
    let too_few = f.call(&mut store, &[], &mut []);
    assert!(matches!(too_few, Err(Error::ValueCount { expected: 1, found: 0, .. })));
    let wrong = f.call(&mut store, &[Val::F32(0)], &mut []);
    assert!(matches!(wrong, Err(Error::ValueType(_))));
}

#[test]
fn host_functions_see_arguments_and_the_callers_memory() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "print" (func $print (param i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 8) "hello")
            (func (export "run") (result i32) i32.const 8 i32.const 5 call $print))"#,
    )
    .unwrap();
    let mut linker: Linker<Vec<String>> = Linker::new(&engine);
    linker
        .func_wrap("host", "print", |mut caller: Caller<'_, Vec<String>>, at: u32, length: u32| {
            let memory = caller.get_export("memory").and_then(Extern::into_memory).unwrap();
            let mut text = vec![0; length as usize];
            memory.read(&caller, at as usize, &mut text)?;
            caller.data_mut().push(String::from_utf8(text).unwrap());
            Ok::<_, Error>(length * 2)
        })
        .unwrap();
    // One linker serves several stores.
    for _ in 0..2 {
        let mut store = Store::new(&engine, Vec::new());
        let instance = linker.instantiate(&mut store, &module).unwrap();
        let run = instance.get_typed_func::<(), u32>(&mut store, "run").unwrap();
        assert_eq!(run.call(&mut store, ()).unwrap(), 10);
        assert_eq!(store.into_data(), ["hello"]);
    }
}

#[test]
fn host_functions_return_several_results_and_take_many_parameters() {
    let sum =
        |a: i32, b: i64, c: f32, d: f64, e: i32, f: i32, g: i32, h: i32, i: i32, j: i32, k: i32, l: i32| {
            (i64::from(a + e + f + g + h + i + j + k + l) + b, f64::from(c) + d, 7_i32)
        };
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (param i32 i64 f32 f64 i32 i32 i32 i32 i32 i32 i32 i32) (result i64 f64 i32)))
            (func (export "run") (result i64 f64 i32)
                i32.const 1 i64.const 2 f32.const 3 f64.const 4 i32.const 5 i32.const 6 i32.const 7 i32.const 8
                i32.const 9 i32.const 10 i32.const 11 i32.const 12 call $f))"#,
        sum,
    );
    assert_eq!(call0::<(i64, f64, i32)>(&mut store, instance, "run").unwrap(), (71, 7.0, 7));
}

#[test]
fn untyped_host_functions_get_values_of_their_type() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, 5_i64);
    let ty = FuncType::new([ValType::I32, ValType::F64], [ValType::I64, ValType::F32]);
    let func = Func::new(&mut store, ty.clone(), |caller, arguments, results| {
        results[0] = Val::I64(i64::from(arguments[0].unwrap_i32()) + *caller.data());
        results[1] = Val::from(arguments[1].unwrap_f64() as f32);
        Ok(())
    })
    .unwrap();
    assert_eq!(func.ty(&store), ty);
    let mut results = [Val::I32(0), Val::I32(0)];
    func.call(&mut store, &[Val::I32(2), Val::from(1.5)], &mut results).unwrap();
    assert_eq!((results[0].unwrap_i64(), results[1].unwrap_f32()), (7, 1.5));
    let wrong = Func::new(&mut store, FuncType::new([], [ValType::I32]), |_, _, results| {
        results[0] = Val::I64(0);
        Ok(())
    })
    .unwrap();
    assert!(matches!(wrong.call(&mut store, &[], &mut [Val::I32(0)]), Err(Error::ValueType(_))));
}

#[test]
fn every_kind_of_trap_is_an_error_with_a_backtrace() {
    let (mut store, instance) = instance(
        r#"(module
            (memory 1)
            (table 2 funcref)
            (elem (i32.const 0) $other)
            (type $nothing (func))
            (func $other (param i32))
            (func (export "unreachable") unreachable)
            (func (export "division") (result i32) i32.const 1 i32.const 0 i32.div_s)
            (func (export "overflow") (result i32) i32.const 0x80000000 i32.const -1 i32.div_s)
            (func (export "conversion") (result i32) f32.const nan i32.trunc_f32_s)
            (func (export "memory") (result i32) i32.const 65533 i32.load)
            (func (export "fill") i32.const 65535 i32.const 0 i32.const 2 memory.fill)
            (func (export "table") (result funcref) i32.const 2 table.get 0)
            (func (export "undefined") i32.const 2 call_indirect (type $nothing))
            (func (export "null") i32.const 1 call_indirect (type $nothing))
            (func (export "signature") i32.const 0 call_indirect (type $nothing))
            (func $recurse (export "recurse") call $recurse))"#,
    );
    let cases = [
        ("unreachable", Trap::UnreachableCodeReached),
        ("division", Trap::IntegerDivisionByZero),
        ("overflow", Trap::IntegerOverflow),
        ("conversion", Trap::BadConversionToInteger),
        ("memory", Trap::MemoryOutOfBounds),
        ("fill", Trap::MemoryOutOfBounds),
        ("table", Trap::TableOutOfBounds),
        ("undefined", Trap::UndefinedElement),
        ("null", Trap::IndirectCallToNull),
        ("signature", Trap::BadSignature),
        ("recurse", Trap::StackOverflow),
    ];
    for (name, expected) in cases {
        let func = instance.get_func(&mut store, name).unwrap();
        let mut results: Vec<Val> = func.ty(&store).results().map(Val::default_for_ty).collect();
        let error = func.call(&mut store, &[], &mut results).unwrap_err();
        assert_eq!(error.trap(), Some(expected), "{name}: {error}");
        assert!(!error.backtrace().unwrap().frames().is_empty(), "{name}");
    }
}

#[test]
fn a_backtrace_names_the_functions_innermost_first() {
    let (mut store, instance) = instance(
        r#"(module $program
            (func $inner unreachable)
            (func $outer (export "run") call $inner))"#,
    );
    let error = call0::<()>(&mut store, instance, "run").unwrap_err();
    let names: Vec<_> = error.backtrace().unwrap().frames().iter().map(|frame| frame.func_name()).collect();
    assert_eq!(names, [Some("inner"), Some("outer")]);
}

#[test]
fn a_host_functions_error_comes_out_as_it_is() {
    #[derive(Debug, thiserror::Error)]
    #[error("exit {0}")]
    struct Exit(i32);
    let (mut store, instance) = with_host(
        r#"(module (import "host" "f" (func $f)) (func (export "run") call $f))"#,
        || -> Result<(), Error> { Err(Error::host(Exit(3))) },
    );
    let error = call0::<()>(&mut store, instance, "run").unwrap_err();
    assert_eq!(error.downcast_ref::<Exit>().unwrap().0, 3);
    assert_eq!(error.to_string(), "exit 3");
}

#[test]
fn a_host_functions_trap_gets_the_frames_that_led_to_it() {
    let (mut store, instance) = with_host(
        r#"(module (import "host" "f" (func $f)) (func $run (export "run") call $f))"#,
        || -> Result<(), Error> { Err(Trap::IntegerOverflow.into()) },
    );
    let error = call0::<()>(&mut store, instance, "run").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::IntegerOverflow));
    assert_eq!(error.backtrace().unwrap().frames()[0].func_name(), Some("run"));
}

#[test]
fn a_panic_of_a_host_function_passes_through_compiled_code() {
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (param i32)))
            (func (export "run") (param i32) local.get 0 call $f))"#,
        |fails: i32| assert_eq!(fails, 0, "as asked for"),
    );
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.call(&mut store, 1)));
    let message = panic.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("as asked for"));
    run.call(&mut store, 0).unwrap();
}

#[test]
fn a_host_function_calls_back_into_the_instance() {
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (param i32) (result i32)))
            (func (export "factorial") (param i32) (result i32)
                (if (result i32) (i32.eqz (local.get 0))
                    (then i32.const 1)
                    (else (i32.mul (local.get 0) (call $f (i32.sub (local.get 0) (i32.const 1))))))))"#,
        |mut caller: Caller<'_, ()>, n: i32| -> Result<i32, Error> {
            let func = caller.get_export("factorial").and_then(Extern::into_func).unwrap();
            func.typed::<i32, i32>(&caller)?.call(&mut caller, n)
        },
    );
    let factorial = instance.get_typed_func::<i32, i32>(&mut store, "factorial").unwrap();
    assert_eq!(factorial.call(&mut store, 10).unwrap(), 3_628_800);
}

#[test]
fn a_trap_in_a_nested_call_can_be_caught_by_the_host() {
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (result i32)))
            (func (export "trap") unreachable)
            (func (export "run") (result i32) call $f i32.const 1 i32.add))"#,
        |mut caller: Caller<'_, ()>| -> i32 {
            let func = caller.get_export("trap").and_then(Extern::into_func).unwrap();
            let error = func.call(&mut caller, &[], &mut []).unwrap_err();
            assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
            41
        },
    );
    assert_eq!(call0::<i32>(&mut store, instance, "run").unwrap(), 42);
}

#[test]
fn a_memory_grows_in_place_and_keeps_its_contents() {
    let (mut store, instance) = instance(
        r#"(module
            (memory (export "memory") 1 3)
            (func (export "grow") (param i32) (result i32) local.get 0 memory.grow)
            (func (export "load") (param i32) (result i32) local.get 0 i32.load)
            (func (export "size") (result i32) memory.size))"#,
    );
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let (grow, load) = (
        instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap(),
        instance.get_typed_func::<u32, u32>(&mut store, "load").unwrap(),
    );
    memory.write(&mut store, 65_532, &0x0403_0201_u32.to_le_bytes()).unwrap();
    let base = memory.data_ptr(&store);
    assert_eq!(load.call(&mut store, 65_536).unwrap_err().trap(), Some(Trap::MemoryOutOfBounds));
    assert_eq!(grow.call(&mut store, 1).unwrap(), 1);
    assert_eq!(load.call(&mut store, 65_536).unwrap(), 0);
    assert_eq!(memory.grow(&mut store, 1).unwrap(), 2);
    assert_eq!(call0::<i32>(&mut store, instance, "size").unwrap(), 3);
    assert_eq!(grow.call(&mut store, 1).unwrap(), -1);
    assert!(matches!(memory.grow(&mut store, 1), Err(Error::Grow { size: 3, by: 1, .. })));
    assert_eq!((memory.data_ptr(&store), memory.data_size(&store)), (base, 3 * 65_536));
    assert_eq!(memory.data(&store)[65_532..65_536], [1, 2, 3, 4]);
    assert!(matches!(memory.read(&store, 3 * 65_536 - 1, &mut [0; 2]), Err(Error::OutOfBounds { .. })));
    let (bytes, ()) = memory.data_and_store_mut(&mut store);
    bytes[0] = 9;
    assert_eq!(load.call(&mut store, 0).unwrap(), 9);
}

#[test]
fn tables_hold_functions_and_host_values() {
    let (mut store, instance) = instance(
        r#"(module
            (table $f (export "functions") 1 4 funcref)
            (table (export "values") 2 externref)
            (type $unary (func (param i32) (result i32)))
            (func $double (export "double") (param i32) (result i32) local.get 0 i32.const 2 i32.mul)
            (elem declare func $double)
            (func (export "call") (param i32 i32) (result i32)
                local.get 1 local.get 0 call_indirect $f (type $unary)))"#,
    );
    let functions = instance.get_table(&mut store, "functions").unwrap();
    let double = instance.get_func(&mut store, "double").unwrap();
    let triple = Func::wrap(&mut store, |n: i32| n * 3).unwrap();
    functions.set(&mut store, 0, double.into()).unwrap();
    assert_eq!(functions.grow(&mut store, 2, triple.into()).unwrap(), 1);
    let call = instance.get_typed_func::<(i32, i32), i32>(&mut store, "call").unwrap();
    assert_eq!(call.call(&mut store, (0, 21)).unwrap(), 42);
    assert_eq!(call.call(&mut store, (2, 21)).unwrap(), 63);
    assert!(matches!(
        functions.set(&mut store, 3, Val::FuncRef(None)),
        Err(Error::OutOfBounds { size: 3, .. })
    ));
    assert!(matches!(functions.set(&mut store, 0, Val::I32(0)), Err(Error::ValueType(_))));
    assert!(functions.grow(&mut store, 2, Val::FuncRef(None)).is_err());

    let values = instance.get_table(&mut store, "values").unwrap();
    values.set(&mut store, 1, ExternRef::new("text".to_owned()).into()).unwrap();
    assert!(values.get(&mut store, 0).unwrap().unwrap_extern_ref().is_none());
    let value = values.get(&mut store, 1).unwrap();
    assert_eq!(value.unwrap_extern_ref().unwrap().data().downcast_ref::<String>().unwrap(), "text");
    assert!(values.get(&mut store, 2).is_none());
}

#[test]
fn globals_are_shared_with_the_host_and_constants_are_constant() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "base" (global $base i32))
            (import "host" "counter" (global $counter (mut i64)))
            (global $own (export "own") (mut f64) (f64.const 0.5))
            (global (export "sum") i32 (i32.add (global.get $base) (i32.const 2)))
            (func (export "run")
                (global.set $counter (i64.add (global.get $counter) (i64.const 1)))
                (global.set $own (f64.const 2.5))))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let base =
        Global::new(&mut store, GlobalType::new(ValType::I32, Mutability::Const), Val::I32(40)).unwrap();
    let counter =
        Global::new(&mut store, GlobalType::new(ValType::I64, Mutability::Var), Val::I64(6)).unwrap();
    let instance = Instance::new(&mut store, &module, &[base.into(), counter.into()]).unwrap();
    let (own, sum) =
        (instance.get_global(&mut store, "own").unwrap(), instance.get_global(&mut store, "sum").unwrap());
    assert_eq!(sum.get(&mut store).unwrap_i32(), 42);
    assert_eq!(own.get(&mut store).unwrap_f64(), 0.5);
    call0::<()>(&mut store, instance, "run").unwrap();
    assert_eq!((counter.get(&mut store).unwrap_i64(), own.get(&mut store).unwrap_f64()), (7, 2.5));
    assert!(matches!(sum.set(&mut store, Val::I32(0)), Err(Error::ConstantGlobal)));
    assert!(matches!(own.set(&mut store, Val::I32(0)), Err(Error::ValueType(_))));
}

#[test]
fn an_instance_imports_everything_from_another() {
    let engine = Engine::default();
    let provider = Module::new(
        &engine,
        r#"(module
            (memory (export "memory") 1)
            (table (export "table") 1 funcref)
            (global (export "global") (mut i32) (i32.const 5))
            (func (export "bump") (result i32)
                (global.set 0 (i32.add (global.get 0) (i32.const 1)))
                (i32.store (i32.const 0) (global.get 0))
                (global.get 0)))"#,
    )
    .unwrap();
    let user = Module::new(
        &engine,
        r#"(module
            (import "p" "memory" (memory 1))
            (import "p" "table" (table 1 funcref))
            (import "p" "global" (global $g (mut i32)))
            (import "p" "bump" (func $bump (result i32)))
            (elem (i32.const 0) $bump)
            (func (export "run") (result i32)
                (drop (call $bump))
                (drop (call_indirect (result i32) (i32.const 0)))
                (i32.add (i32.load (i32.const 0)) (global.get $g))))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let provider = linker.instantiate(&mut store, &provider).unwrap();
    linker.instance(&store, "p", provider).unwrap();
    let user = linker.instantiate(&mut store, &user).unwrap();
    assert_eq!(call0::<i32>(&mut store, user, "run").unwrap(), 14);
    assert_eq!(provider.get_global(&store, "global").unwrap().get(&mut store).unwrap_i32(), 7);
}

#[test]
fn a_linker_says_what_does_not_fit() {
    let engine = Engine::default();
    let wants =
        |import: &str| Module::new(&engine, format!(r#"(module (import "a" "b" {import}))"#)).unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker: Linker<()> = Linker::new(&engine);
    let unknown = linker.instantiate(&mut store, &wants("(func)")).unwrap_err();
    assert_eq!(unknown.to_string(), "unknown import: `a` `b`");
    linker.func_wrap("a", "b", |_: i32| ()).unwrap();
    let error = linker.instantiate(&mut store, &wants("(func (param i64))")).unwrap_err();
    let Error::IncompatibleImport { types, .. } = &error else { panic!("{error}") };
    assert_eq!(types.expected, ExternType::Func(FuncType::new([ValType::I64], [])));
    assert_eq!(types.found, ExternType::Func(FuncType::new([ValType::I32], [])));
    assert!(linker.instantiate(&mut store, &wants("(memory 1)")).is_err());
    linker.instantiate(&mut store, &wants("(func (param i32))")).unwrap();
    let again = linker.func_wrap("a", "b", || ()).map(drop);
    assert!(matches!(again, Err(Error::DuplicateDefinition { .. })));
    linker.allow_shadowing(true).func_wrap("a", "b", || ()).unwrap();
    linker.instantiate(&mut store, &wants("(func)")).unwrap();
}

#[test]
fn limits_of_imported_memories_and_tables_must_fit() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(2, Some(4))).unwrap();
    let table =
        Table::new(&mut store, TableType::new(RefType::Func, 2, Some(4)), Val::FuncRef(None)).unwrap();
    let mut fits = |text: &str, item: Extern| {
        let module = Module::new(&engine, format!(r#"(module (import "a" "b" {text}))"#)).unwrap();
        Instance::new(&mut store, &module, &[item]).is_ok()
    };
    for (text, expected) in [
        ("(memory 2 4)", true),
        ("(memory 1 5)", true),
        ("(memory 1)", true),
        ("(memory 3)", false),
        ("(memory 2 3)", false),
        ("(memory 2 4 shared)", false),
    ] {
        assert_eq!(fits(text, memory.into()), expected, "{text}");
    }
    for (text, expected) in [
        ("(table 2 4 funcref)", true),
        ("(table 0 funcref)", true),
        ("(table 3 funcref)", false),
        ("(table 2 3 funcref)", false),
        ("(table 2 4 externref)", false),
    ] {
        assert_eq!(fits(text, table.into()), expected, "{text}");
    }
}

#[test]
fn a_segment_that_does_not_fit_traps_and_leaves_what_came_before() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
    let module = Module::new(
        &engine,
        r#"(module (import "a" "b" (memory 1))
            (data (i32.const 0) "first")
            (data (i32.const 65535) "second"))"#,
    )
    .unwrap();
    let error = Instance::new(&mut store, &module, &[memory.into()]).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds));
    assert_eq!(&memory.data(&store)[..5], b"first");
    assert_eq!(memory.data(&store)[65_535], 0);
}

#[test]
fn the_start_function_runs_last_and_its_trap_is_the_error() {
    let (mut store, instance) = instance(
        r#"(module
            (memory (export "memory") 1)
            (data (i32.const 0) "\05")
            (func $start (i32.store8 (i32.const 1) (i32.load8_u (i32.const 0))))
            (start $start))"#,
    );
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert_eq!(memory.data(&store)[1], 5);
    let module = Module::new(store.engine(), "(module (func $start unreachable) (start $start))").unwrap();
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
}

#[test]
fn two_threads_share_a_memory() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "memory" (memory 1 1 shared))
            (func (export "count") (param i32)
                (loop $again
                    (drop (i32.atomic.rmw.add (i32.const 0) (i32.const 1)))
                    (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
            (func (export "wait") (result i32) (memory.atomic.wait32 (i32.const 8) (i32.const 0) (i64.const -1)))
            (func (export "notify") (result i32) (memory.atomic.notify (i32.const 8) (i32.const 1))))"#,
    )
    .unwrap();
    let memory = SharedMemory::new(MemoryType::shared(1, 1)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut store = Store::new(&engine, ());
                let instance = Instance::new(&mut store, &module, &[memory.clone().into()]).unwrap();
                instance
                    .get_typed_func::<i32, ()>(&mut store, "count")
                    .unwrap()
                    .call(&mut store, 10_000)
                    .unwrap();
            });
        }
    });
    let mut counter = [0; 4];
    memory.read(0, &mut counter).unwrap();
    assert_eq!(u32::from_le_bytes(counter), 20_000);

    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[memory.clone().into()]).unwrap();
            call0::<i32>(&mut store, instance, "wait").unwrap()
        });
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[memory.clone().into()]).unwrap();
        while call0::<i32>(&mut store, instance, "notify").unwrap() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(waiter.join().unwrap(), 0);
    });
}

#[test]
fn waiting_traps_on_a_memory_that_is_not_shared_and_on_unaligned_addresses() {
    let (mut store, unshared) = instance(
        r#"(module (memory 1) (func (export "wait") (result i32)
            (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const 0))))"#,
    );
    let error = call0::<i32>(&mut store, unshared, "wait").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::AtomicWaitNonSharedMemory));
    let (mut store, shared) = instance(
        r#"(module (memory 1 1 shared)
            (func (export "wait") (param i32) (result i32)
                (memory.atomic.wait64 (local.get 0) (i64.const 0) (i64.const 1000)))
            (func (export "notify") (param i32) (result i32)
                (memory.atomic.notify (local.get 0) (i32.const 1))))"#,
    );
    let wait = shared.get_typed_func::<i32, i32>(&mut store, "wait").unwrap();
    assert_eq!(wait.call(&mut store, 4).unwrap_err().trap(), Some(Trap::HeapMisaligned));
    assert_eq!(wait.call(&mut store, 65_536).unwrap_err().trap(), Some(Trap::MemoryOutOfBounds));
    assert_eq!(wait.call(&mut store, 8).unwrap(), 2, "timed out");
    let notify = shared.get_typed_func::<i32, i32>(&mut store, "notify").unwrap();
    assert_eq!(notify.call(&mut store, 2).unwrap_err().trap(), Some(Trap::HeapMisaligned));
    assert_eq!(notify.call(&mut store, 8).unwrap(), 0);
}

#[test]
#[should_panic(expected = "another store than its own")]
fn a_handle_of_another_store_is_refused() {
    let engine = Engine::default();
    let mut one = Store::new(&engine, ());
    let other = Store::new(&engine, ());
    let memory = Memory::new(&mut one, MemoryType::new(1, None)).unwrap();
    memory.size(&other);
}

#[test]
fn values_and_imports_of_another_store_are_errors() {
    let (mut store, instance) = instance(r#"(module (func (export "f") (param funcref)))"#);
    let mut other = Store::new(store.engine(), ());
    let stranger = Func::wrap(&mut other, || ()).unwrap();
    let f = instance.get_func(&mut store, "f").unwrap();
    let error = f.call(&mut store, &[stranger.into()], &mut []).unwrap_err();
    assert!(matches!(error, Error::WrongStore { .. }));
    let module = Module::new(store.engine(), r#"(module (import "a" "b" (func)))"#).unwrap();
    assert!(matches!(Instance::new(&mut store, &module, &[stranger.into()]), Err(Error::WrongStore { .. })));
    assert!(matches!(
        Instance::new(&mut store, &module, &[]),
        Err(Error::ImportCount { expected: 1, found: 0 })
    ));
}

#[test]
fn an_interrupt_stops_an_endless_loop_and_the_store_goes_on() {
    let (mut store, instance) = instance(
        r#"(module
            (func (export "forever") (loop $again br $again))
            (func (export "one") (result i32) i32.const 1))"#,
    );
    let handle = store.interrupt_handle();
    let timeout = handle.interrupt_after(Duration::from_millis(20)).unwrap();
    let error = call0::<()>(&mut store, instance, "forever").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::Interrupt));
    assert!(timeout.has_fired());
    drop(timeout);
    assert_eq!(call0::<i32>(&mut store, instance, "one").unwrap(), 1);
}

#[test]
fn an_interrupt_ends_an_endless_wait() {
    let (mut store, instance) = instance(
        r#"(module (memory 1 1 shared) (func (export "wait") (result i32)
            (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1))))"#,
    );
    let handle = store.interrupt_handle();
    let _timeout = handle.interrupt_after(Duration::from_millis(20)).unwrap();
    let error = call0::<i32>(&mut store, instance, "wait").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::Interrupt));
}

#[test]
fn exceptions_pass_between_program_and_host() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "tag" (tag $tag (param i32 f64)))
            (import "host" "f" (func $f))
            (func (export "throw") i32.const 7 f64.const 0.5 throw $tag)
            (func (export "catch") (result i32 f64)
                (block $caught (result i32 f64)
                    (try_table (catch $tag $caught) (call $f))
                    (i32.const 0) (f64.const 0))))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let ty = TagType::new(FuncType::new([ValType::I32, ValType::F64], []));
    let tag = Tag::new(&mut store, &ty).unwrap();
    let thrower = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>| -> Result<(), Error> {
        Err(Error::Exception(ExnRef::new(&mut caller, &tag, &[Val::I32(3), Val::from(1.5)])?))
    })
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[tag.into(), thrower.into()]).unwrap();
    assert_eq!(call0::<(i32, f64)>(&mut store, instance, "catch").unwrap(), (3, 1.5));
    let Error::Exception(exception) = call0::<()>(&mut store, instance, "throw").unwrap_err() else {
        panic!()
    };
    assert_eq!(exception.tag(&store), tag);
    let fields = exception.fields(&mut store);
    assert_eq!((fields[0].unwrap_i32(), fields[1].unwrap_f64()), (7, 0.5));
}

/// Counts how many of it are alive.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn host_values_that_the_program_forgets_are_freed_and_others_kept() {
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (result externref)))
            (table $kept 1 externref)
            (global $global (mut externref) (ref.null extern))
            (func (export "run") (param $n i32) (result externref) (local $local externref)
                (local.set $local (call $f))
                (global.set $global (call $f))
                (table.set $kept (i32.const 0) (call $f))
                (loop $again
                    (drop (call $f))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
                (local.get $local))
            (func (export "kept") (result externref externref)
                (global.get $global) (table.get $kept (i32.const 0))))"#,
        move || Some(ExternRef::new(Counted::new(&count))),
    );
    let run = instance.get_typed_func::<i32, Option<ExternRef>>(&mut store, "run").unwrap();
    let local = run.call(&mut store, 100_000).unwrap().unwrap();
    assert!(local.data().is::<Counted>());
    let few = alive.load(Ordering::SeqCst);
    assert!((3..10_000).contains(&few), "{few} of 100,003 are alive");
    let (global, table) =
        call0::<(Option<ExternRef>, Option<ExternRef>)>(&mut store, instance, "kept").unwrap();
    assert!(global.unwrap().data().is::<Counted>() && table.unwrap().data().is::<Counted>());
    drop((store, local));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_program_that_throws_for_ever_needs_little_memory() {
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    // Each exception carries a value of the host, whose life tells of the exception's.
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (result externref)))
            (tag $tag (param externref i32))
            (func $throw (param i32) (throw $tag (call $f) (local.get 0)))
            (func (export "run") (param $n i32) (result i32)
                (local $first exnref) (local $exception exnref) (local $sum i32)
                (loop $again
                    (block $caught (result externref i32 exnref)
                        (try_table (catch_ref $tag $caught) (call $throw (local.get $n)))
                        unreachable)
                    (local.set $exception)
                    (local.set $sum (i32.add (local.get $sum)))
                    drop
                    (if (ref.is_null (local.get $first)) (then (local.set $first (local.get $exception))))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
                (block $again_caught (result externref i32)
                    (try_table (catch $tag $again_caught) (throw_ref (local.get $first)))
                    unreachable)
                (return (i32.add (local.get $sum)))))"#,
        move || Some(ExternRef::new(Counted::new(&count))),
    );
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let n = 50_000_i32;
    let sum = (1..=n).fold(n, i32::wrapping_add);
    assert_eq!(run.call(&mut store, n).unwrap(), sum);
    let few = alive.load(Ordering::SeqCst);
    assert!(few < 10_000, "{few} of 50,000 are alive");
}

#[test]
fn an_exception_that_the_host_holds_outlives_collections() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::EXTERNREF], []))).unwrap();
    let text = || Val::from(ExternRef::new("kept".to_owned()));
    let exception = ExnRef::new(&mut store, &tag, &[text()]).unwrap();
    for _ in 0..10_000 {
        ExnRef::new(&mut store, &tag, &[text()]).unwrap();
    }
    let fields = exception.fields(&mut store);
    assert_eq!(fields[0].unwrap_extern_ref().unwrap().data().downcast_ref::<String>().unwrap(), "kept");
}

#[test]
fn limits_of_a_store_bound_memories_tables_and_instances() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (memory (export "memory") 1) (table (export "table") 1 funcref)
            (func (export "grow") (result i32) i32.const 2 memory.grow))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().memory_size(2 * 65_536).table_elements(3).instances(1));
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    assert_eq!(call0::<i32>(&mut store, instance, "grow").unwrap(), -1);
    assert_eq!(instance.get_memory(&store, "memory").unwrap().grow(&mut store, 1).unwrap(), 1);
    let table = instance.get_table(&store, "table").unwrap();
    assert!(table.grow(&mut store, 3, Val::FuncRef(None)).is_err());
    assert!(matches!(Instance::new(&mut store, &module, &[]), Err(Error::StoreLimit { what: "instances" })));
    assert!(matches!(Memory::new(&mut store, MemoryType::new(3, None)), Err(Error::StoreLimit { .. })));
}

#[test]
fn a_module_tells_its_imports_and_exports() {
    let module = module(
        r#"(module
            (import "a" "f" (func (param i32)))
            (import "b" "m" (memory 1 2 shared))
            (table (export "t") 3 externref)
            (global (export "g") (mut i64) (i64.const 0)))"#,
    );
    let imports: Vec<_> = module
        .imports()
        .map(|import| format!("{} {} {}", import.module(), import.name(), import.ty()))
        .collect();
    assert_eq!(imports, ["a f function [i32] -> []", "b m memory of 1 to 2 pages shared"]);
    let exports: Vec<_> =
        module.exports().map(|export| format!("{} {}", export.name(), export.ty())).collect();
    assert_eq!(exports, ["t table of 3 or more externref", "g global mut i64"]);
    assert_eq!(
        module.get_export("g"),
        Some(ExternType::Global(GlobalType::new(ValType::I64, Mutability::Var)))
    );
}

#[test]
fn unsupported_features_are_refused_by_name() {
    let engine = Engine::default();
    let cases = [
        ("(module (func (result v128) v128.const i64x2 0 0))", "SIMD"),
        ("(module (func (param i32) local.get 0 i32x4.splat drop))", "SIMD"),
        ("(module (memory i64 1))", "memory64"),
        ("(module (type (struct)))", "gc"),
        ("(module (func (param (ref func))))", "function references"),
        ("(module (memory 1 (pagesize 1)))", "custom page sizes"),
        ("(component)", "component"),
    ];
    for (text, feature) in cases {
        let error = Module::new(&engine, text).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{text}: {error:?}");
        assert!(error.to_string().contains(feature), "{text}: {error}");
    }
}

#[test]
fn wrong_modules_are_refused_with_the_place() {
    let engine = Engine::default();
    assert!(matches!(Module::new(&engine, "(module (func i32.add))"), Err(Error::Invalid { .. })));
    assert!(matches!(Module::new(&engine, "(module (fun))"), Err(Error::Text { .. })));
    assert!(matches!(Module::new(&engine, b"\0asm\x01\0\0\0\x01"), Err(Error::Invalid { offset: 9, .. })));
    assert!(matches!(Module::from_binary(&engine, b""), Err(Error::Invalid { .. })));
    assert!(matches!(Module::from_file(&engine, "/nonexistent.wasm"), Err(Error::Read { .. })));
}

#[test]
fn stack_overflow_comes_earlier_with_a_smaller_stack() {
    let depth = |config: &Config| {
        let engine = Engine::new(config).unwrap();
        let module = Module::new(
            &engine,
            r#"(module (global $depth (export "depth") (mut i32) (i32.const 0))
                (func $recurse (export "recurse")
                    (global.set $depth (i32.add (global.get $depth) (i32.const 1)))
                    call $recurse))"#,
        )
        .unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let error = call0::<()>(&mut store, instance, "recurse").unwrap_err();
        assert_eq!(error.trap(), Some(Trap::StackOverflow));
        instance.get_global(&store, "depth").unwrap().get(&mut store).unwrap_i32()
    };
    let (small, large) = (depth(Config::new().max_wasm_stack(64 << 10)), depth(&Config::new()));
    assert!(small * 8 < large && small > 100, "{small} and {large} calls");
}

#[test]
fn modules_and_engines_are_shared_among_threads_and_stores_move() {
    fn check<T: Send + Sync>() {}
    check::<(Engine, Module, SharedMemory, Linker<()>, Func, ExternRef, ExnRef, Error)>();
    check::<Store<()>>();
    let module = module(r#"(module (func (export "f") (result i32) i32.const 3))"#);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut store = Store::new(module.engine(), ());
                let instance = Instance::new(&mut store, &module, &[]).unwrap();
                // A store may go on in another thread.
                scope.spawn(move || assert_eq!(call0::<i32>(&mut store, instance, "f").unwrap(), 3));
            });
        }
    });
}

#[test]
fn functions_are_passed_as_values() {
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (param funcref) (result funcref)))
            (table 1 funcref)
            (elem declare func $one)
            (func $one (result i32) i32.const 1)
            (func (export "run") (result i32)
                (table.set (i32.const 0) (call $f (ref.func $one)))
                (call_indirect (result i32) (i32.const 0))))"#,
        |mut caller: Caller<'_, ()>, func: Option<Func>| -> Result<Option<Func>, Error> {
            let one = func.unwrap().typed::<(), i32>(&caller)?;
            assert_eq!(one.call(&mut caller, ())?, 1);
            Func::wrap(caller.as_context_mut(), || 5_i32).map(Some)
        },
    );
    assert_eq!(call0::<i32>(&mut store, instance, "run").unwrap(), 5);
}
