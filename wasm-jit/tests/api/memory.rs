//! Memories, tables and globals, accessed from both sides.

use wasm_jit::{
    Engine, Error, ExternRef, Func, Global, GlobalType, Instance, Memory, MemoryType, Module, Mutability,
    SharedMemory, Store, StoreLimits, Trap, Val, ValType,
};

use super::{call0, instance};

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
    assert!(matches!(
        Instance::new(&mut store, &module, &[]),
        Err(Error::StoreLimit { what: "instances", .. })
    ));
    assert!(matches!(Memory::new(&mut store, MemoryType::new(3, None)), Err(Error::StoreLimit { .. })));
}
