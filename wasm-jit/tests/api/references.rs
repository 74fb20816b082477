//! Host values and exceptions that a program holds and drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasm_jit::{
    AsContextMut, Caller, Engine, Error, ExnRef, Extern, ExternRef, Func, FuncType, Global, GlobalType,
    Instance, Linker, Module, Mutability, Store, StoreLimits, Tag, TagType, Val, ValType,
};

use super::{call0, instance, with_host};

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
        Err(Error::from(ExnRef::new(&mut caller, &tag, &[Val::I32(3), Val::from(1.5)])?))
    })
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[tag.into(), thrower.into()]).unwrap();
    assert_eq!(call0::<(i32, f64)>(&mut store, instance, "catch").unwrap(), (3, 1.5));
    let Error::Exception { exception, .. } = call0::<()>(&mut store, instance, "throw").unwrap_err() else {
        panic!()
    };
    assert_eq!(exception.tag(&store), tag);
    let fields = exception.fields(&mut store);
    assert_eq!((fields[0].unwrap_i32(), fields[1].unwrap_f64()), (7, 0.5));
    let ty = GlobalType::new(ValType::EXNREF, Mutability::Const);
    let read = Global::new(&mut store, ty, exception.clone().into()).unwrap().get(&mut store);
    assert!(exception.same(read.unwrap_exn_ref().unwrap()));
    assert!(!exception.same(&ExnRef::new(&mut store, &tag, &fields).unwrap()));
}

/// Counts its live instances.
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
    store.gc();
    assert_eq!(alive.load(Ordering::SeqCst), 3, "the local's, the global's and the table's");
    drop((store, local));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn memory_of_host_values_counts_for_the_heap() {
    const MIB: u64 = 1 << 20;
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (result (ref extern))))
            (table $kept 100 externref)
            (func (export "run") (param $n i32) (param $keeps i32) (local $value externref)
                (loop $again
                    (local.set $value (call $f))
                    (table.set $kept
                        (select (local.get $n) (i32.const 0) (local.get $keeps)) (local.get $value))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))"#,
        move |mut caller: Caller<'_, ()>| -> Result<ExternRef, Error> {
            caller.as_context_mut().reserve(MIB)?;
            Ok(ExternRef::with_size(Counted::new(&count), MIB))
        },
    );
    let run = instance.get_typed_func::<(i32, i32), ()>(&mut store, "run").unwrap();
    run.call(&mut store, (1000, 0)).unwrap();
    let few = alive.load(Ordering::SeqCst);
    assert!(few <= 20, "{few} of 1000 are alive without a limit");
    store.set_limits(StoreLimits::new().heap_size(10 * MIB));
    run.call(&mut store, (1000, 0)).unwrap();
    assert!(store.heap_size() <= 10 * MIB);
    run.call(&mut store, (7, 1)).unwrap();
    assert!(store.heap_size() >= 7 * MIB);
    let error = run.call(&mut store, (20, 1)).unwrap_err();
    assert!(matches!(error, Error::StoreLimit { .. }), "{error}");
    store.set_limits(StoreLimits::new());
    run.call(&mut store, (99, 1)).unwrap();
    store.gc();
    // The one at 0 is of an earlier call.
    assert_eq!((alive.load(Ordering::SeqCst), store.heap_size()), (100, 100 * MIB));
}

#[test]
fn a_reservation_collects_if_there_is_no_room() {
    const UNIT: u64 = 256 << 10;
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (param i32) (result (ref extern))))
            (global $kept (mut externref) (ref.null extern))
            (func (export "keep") (param i32) (global.set $kept (call $f (local.get 0))))
            (func (export "drop") (param i32) (drop (call $f (local.get 0)))))"#,
        |mut caller: Caller<'_, ()>, units: u32| -> Result<ExternRef, Error> {
            let bytes = u64::from(units) * UNIT;
            caller.as_context_mut().reserve(bytes)?;
            Ok(ExternRef::with_size((), bytes))
        },
    );
    let functions = ["keep", "drop"].map(|name| instance.get_typed_func::<u32, ()>(&store, name).unwrap());
    let [keep, drop] = functions;
    store.set_limits(StoreLimits::new().heap_size(32 * UNIT));
    keep.call(&mut store, 20).unwrap();
    store.gc();
    // A collection is due at a quarter of the limit.
    drop.call(&mut store, 6).unwrap();
    assert_eq!(store.heap_size(), 26 * UNIT);
    drop.call(&mut store, 10).unwrap();
    assert_eq!(store.heap_size(), 30 * UNIT);
    let error = drop.call(&mut store, 13).unwrap_err();
    assert!(matches!(error, Error::StoreLimit { what: "heap memory", .. }), "{error}");
    drop.call(&mut store, 12).unwrap();
}

#[test]
fn a_collection_in_a_nested_call_spares_what_the_outer_ones_hold() {
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "make" (func $make (result externref)))
            (import "host" "nest" (func $nest (param externref)))
            (import "host" "check" (func $check (param externref)))
            (func (export "burn") (param $n i32)
                (loop $again
                    (drop (call $make))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
            (func (export "run") (local $a externref) (local $b externref)
                (local.set $a (call $make))
                (local.set $b (call $make))
                (call $nest (local.get $a))
                (call $check (local.get $b))
                (call $check (local.get $a))))"#,
    )
    .unwrap();
    let mut linker: Linker<u32> = Linker::new(&engine);
    linker.func_wrap("host", "make", move || Some(ExternRef::new(Counted::new(&count)))).unwrap();
    let nest = |mut caller: Caller<'_, u32>, _: Option<ExternRef>| -> Result<(), Error> {
        *caller.data_mut() += 1;
        // Three nested activations, before the innermost one causes many collections.
        let (name, argument) =
            if *caller.data() < 3 { ("run", vec![]) } else { ("burn", vec![Val::I32(10_000)]) };
        let func = caller.get_export(name).and_then(Extern::into_func).unwrap();
        func.call(&mut caller, &argument, &mut [])
    };
    linker.func_wrap("host", "nest", nest).unwrap();
    let check = |value: Option<ExternRef>| assert!(value.unwrap().data().is::<Counted>());
    linker.func_wrap("host", "check", check).unwrap();
    let mut store = Store::new(&engine, 0);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    instance.get_func(&store, "run").unwrap().call(&mut store, &[], &mut []).unwrap();
    let few = alive.load(Ordering::SeqCst);
    assert!(few < 5_000, "{few} of 10,006 are alive");
}

#[test]
fn a_program_that_throws_endlessly_needs_little_memory() {
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    // Each exception carries a host value, whose lifetime shows that of the exception.
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
fn a_limit_bounds_the_exceptions_that_a_program_holds() {
    // Each exception carries the one before.
    let (mut store, instance) = instance(
        r#"(module
            (tag $tag (param exnref))
            (func (export "run") (param $n i32) (param $keeps i32)
                (local $chain exnref) (local $last exnref)
                (loop $again
                    (block $caught (result exnref exnref)
                        (try_table (catch_ref $tag $caught) (throw $tag (local.get $chain)))
                        unreachable)
                    (local.set $last)
                    drop
                    (if (local.get $keeps) (then (local.set $chain (local.get $last))))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))"#,
    );
    store.set_limits(StoreLimits::new().exceptions_size(24 * 100_000));
    let run = instance.get_typed_func::<(i32, i32), ()>(&store, "run").unwrap();
    run.call(&mut store, (1_000_000, 0)).unwrap();
    run.call(&mut store, (99_990, 1)).unwrap();
    let error = run.call(&mut store, (100_001, 1)).unwrap_err();
    assert!(matches!(error, Error::StoreLimit { what: "exceptions", .. }), "{error}");
    store.gc();
    run.call(&mut store, (10, 1)).unwrap();
    store.set_limits(StoreLimits::new().exceptions_size(20));
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::I32], []))).unwrap();
    let error = ExnRef::new(&mut store, &tag, &[Val::I32(0)]).unwrap_err();
    assert!(matches!(error, Error::StoreLimit { .. }), "{error}");
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
