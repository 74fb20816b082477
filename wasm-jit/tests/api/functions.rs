//! Functions of programs and of the host, called from both sides.

use wasm_jit::{
    AsContextMut, Caller, Engine, Error, Extern, Func, FuncType, Linker, Module, Store, Val, ValType,
};

use super::{call0, instance, with_host};

#[test]
fn typed_functions_take_and_return_all_number_types() {
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
    assert_eq!(result[0].unwrap_i32(), (0..16).map(|n| n * n * (n + 1)).sum::<i32>());
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
    // One linker is used with several stores.
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
fn a_host_functions_error_is_returned_unchanged() {
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
