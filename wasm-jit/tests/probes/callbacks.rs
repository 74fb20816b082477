//! Probes that call closures: how long they are kept, what a panic does, and callees.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, NO_FUNCTION, NativeFn, OTHER_FUNCTION, Place, ProbeError,
    ProbeSpec, ValueError, Values,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Error, Func, Instance, Linker, Module, Store, Table, Trap, ValType};

use super::engine;

fn spec(module: &Module, function: u32, is: impl Fn(&Operator<'_>) -> bool, kind: Kind) -> ProbeSpec {
    let body = module.function(function).unwrap().body().unwrap();
    let at = body.instructions().find(|instruction| is(instruction.operator())).unwrap().offset();
    let offset = (at - body.range().start) as u32;
    ProbeSpec { location: Location { function, place: Place::Instruction { offset } }, kind }
}

/// A callback that logs its values.
fn logging(log: &Arc<Mutex<Vec<Vec<u64>>>>) -> Callback {
    let log = log.clone();
    Callback::new(move |values| log.lock().unwrap().push(values.to_vec()))
}

fn callback(function: Callback, values: impl Into<Values>) -> Kind {
    Kind::Callback { function, values: values.into() }
}

/// The code of a function without calls does not compare the stack pointer with the limit.
#[test]
fn closures_that_call_the_function_they_observe_overflow_the_stack() {
    const LEAF: &str =
        "(module (func (export \"f\") (param i32) (result i32) (i32.add (local.get 0) (i32.const 1))))";
    let is_addition = |operator: &Operator<'_>| matches!(operator, Operator::I32Add);
    let call = |module: &Module| {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        instance.get_typed_func::<i32, i32>(&mut store, "f").unwrap().call(&mut store, 1)
    };

    let module = Module::new(&engine(), LEAF).unwrap();
    let in_the_same_store = GenericFn::new(|frame| {
        let instance = frame.instance();
        let mut store = frame.store::<()>().expect("the type of the store");
        instance.get_typed_func::<i32, i32>(&mut store, "f")?.call(&mut store, 1).map(|_| ())
    });
    let probe = module.probe(spec(&module, 0, is_addition, Kind::Generic(in_the_same_store))).unwrap();
    probe.activate().unwrap();
    let error = call(&module).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::StackOverflow));
    drop(probe);
    assert_eq!(call(&module).unwrap(), 2);

    let module = Module::new(&engine(), LEAF).unwrap();
    let overflows = Arc::new(AtomicU32::new(0));
    let in_another_store = {
        let (observed, overflows) = (Mutex::new(Some(module.clone())), overflows.clone());
        Callback::new(move |_| {
            let module = observed.lock().unwrap().clone().expect("not taken yet");
            match call(&module) {
                Ok(_) => {}
                Err(error) if error.trap() == Some(Trap::StackOverflow) => {
                    overflows.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => panic!("{error}"),
            }
        })
    };
    let probe = module.probe(spec(&module, 0, is_addition, callback(in_another_store, []))).unwrap();
    probe.activate().unwrap();
    assert_eq!(call(&module).unwrap(), 2);
    assert_eq!(overflows.load(Ordering::Relaxed), 1);
}

/// The closure of a dropped probe may still be called by another thread, so it lives as long as the
/// code.
#[test]
fn closures_are_kept_with_the_code_and_no_longer() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let module = Module::new(&engine(), "(module (func (export \"run\")))").unwrap();
    let (is_dropped, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (owned, of_probe) = (Dropped(is_dropped.clone()), calls.clone());
    let function = Callback::new(move |_| {
        let _ = &owned;
        of_probe.fetch_add(1, Ordering::Relaxed);
    });
    let location = Location { function: 0, place: Place::Entry };
    let probe = module.probe(ProbeSpec { location, kind: callback(function, []) }).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    drop(probe);
    run.call(&mut store, ()).unwrap();
    drop(module);
    assert_eq!((calls.load(Ordering::Relaxed), is_dropped.load(Ordering::Relaxed)), (1, false));
    drop(store);
    assert!(is_dropped.load(Ordering::Relaxed));
}

/// A panic leaves the program, as that of a host function; the probes after it do not fire, and the
/// store can be used again.
#[test]
fn a_panic_ends_the_program() {
    let text = "(module (memory 1) (func $f (export \"run\") (param i32) (result i32)
        (i32.add (local.get 0) (call $g (local.get 0))))
        (func $g (param i32) (result i32) (i32.mul (i32.load (local.get 0)) (local.get 0))))";
    let module = Module::new(&engine(), text).unwrap();
    let fired = Arc::new(AtomicU32::new(0));
    let of_probe = fired.clone();
    let panicking = Callback::new(|values| assert!(values[0] != 3, "three"));
    let second = Callback::new(move |_| {
        of_probe.fetch_add(1, Ordering::Relaxed);
    });
    let is_multiplication = |operator: &Operator<'_>| matches!(operator, Operator::I32Mul);
    let probes = module.probes(&[
        spec(&module, 1, is_multiplication, callback(panicking, [Bound::Local(0)])),
        spec(&module, 1, is_multiplication, callback(second, [])),
    ]);
    let probes: Vec<_> = probes.into_iter().map(Result::unwrap).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    for _ in 0..2 {
        assert_eq!(run.call(&mut store, 2).unwrap(), 2);
        let panic = catch_unwind(AssertUnwindSafe(|| run.call(&mut store, 3))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"three"));
    }
    assert_eq!(fired.load(Ordering::Relaxed), 2);
}

/// Callees are known by their index, whether they are functions of the instance or imports; those
/// of other instances and null elements are told apart from them.
#[test]
fn callees_of_indirect_calls_are_resolved() {
    let text = "(module (type $t (func (result i32)))
        (import \"host\" \"f\" (func $host (type $t))) (import \"host\" \"table\" (table 8 funcref))
        (elem (table 0) (i32.const 0) func $host $own $run)
        (func $own (type $t) (i32.const 7))
        (func $run (export \"run\") (param i32) (result i32) (call_indirect (type $t) (local.get 0)))
        (func (export \"tail\") (param i32) (result i32) (return_call_indirect (type $t) (local.get 0))))";
    let module = Module::new(&engine(), text).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let is_call = |operator: &Operator<'_>| {
        matches!(operator, Operator::CallIndirect { .. } | Operator::ReturnCallIndirect { .. })
    };
    let kind = || callback(logging(&log), [Bound::Const(5), Bound::Callee, Bound::Local(0), Bound::Callee]);
    let probes = [2, 3].map(|function| module.probe(spec(&module, function, is_call, kind())).unwrap());
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let mut store = Store::new(module.engine(), ());
    let other =
        Module::new(module.engine(), "(module (func (export \"f\") (result i32) (i32.const 9)))").unwrap();
    let other = Instance::new(&mut store, &other, &[]).unwrap().get_func(&mut store, "f").unwrap();
    let host = Func::wrap(&mut store, || 8_i32).unwrap();
    let ty = module.imports().nth(1).unwrap().ty().clone();
    let wasm_jit::ExternType::Table(ty) = ty else { panic!("{ty}") };
    let table = Table::new(&mut store, ty, wasm_jit::Val::FuncRef(None)).unwrap();
    let instance = Instance::new(&mut store, &module, &[host.into(), table.into()]).unwrap();
    table.set(&mut store, 4, wasm_jit::Val::FuncRef(Some(other))).unwrap();
    for export in ["run", "tail"] {
        let run = instance.get_typed_func::<i32, i32>(&mut store, export).unwrap();
        let mut call = |index: i32| {
            let result = run.call(&mut store, index);
            let values = log.lock().unwrap().drain(..).collect::<Vec<_>>();
            let [values] = &values[..] else { panic!("{values:?}") };
            assert_eq!((values[0], values[2], values[3]), (5, index as u32 as u64, values[1]));
            (values[1], result.map_err(|error: Error| error.trap().unwrap()))
        };
        assert_eq!(call(0), (0, Ok(8)));
        assert_eq!(call(1), (1, Ok(7)));
        assert_eq!(call(2), (2, Err(Trap::BadSignature)));
        assert_eq!(call(3), (NO_FUNCTION, Err(Trap::IndirectCallToNull)));
        assert_eq!(call(4), (OTHER_FUNCTION, Ok(9)));
        assert_eq!(call(8), (NO_FUNCTION, Err(Trap::UndefinedElement)));
        assert_eq!(call(-1), (NO_FUNCTION, Err(Trap::UndefinedElement)));
    }
    extern "C" fn nothing(_: u64) {}
    // SAFETY: does nothing.
    let function = unsafe { NativeFn::new(nothing as extern "C" fn(u64)) };
    let native = Kind::Native { function, values: [Bound::Callee].into() };
    let is_get = |operator: &Operator<'_>| matches!(operator, Operator::LocalGet { .. });
    for spec in [
        spec(&module, 2, is_call, native),
        spec(&module, 2, is_get, callback(Callback::new(|_| {}), [Bound::Callee])),
    ] {
        let error = module.probe(spec).map(|_| ()).unwrap_err();
        assert!(matches!(error, ProbeError::Value { reason: ValueError::NoCallee, .. }), "{error}");
    }
}

/// So are those of calls through references.
#[test]
fn callees_of_references_are_resolved() {
    let text = "(module (type $t (func (result i32)))
        (import \"host\" \"f\" (func $host (type $t)))
        (import \"host\" \"global\" (global $g (mut (ref null $t))))
        (elem declare func $host $own)
        (func $own (type $t) (i32.const 7))
        (func (export \"run\") (result i32) (call_ref $t (global.get $g)))
        (func (export \"tail\") (result i32) (return_call_ref $t (global.get $g)))
        (func (export \"own\") (global.set $g (ref.func $own)))
        (func (export \"host\") (global.set $g (ref.func $host))))";
    let module = Module::new(&engine(), text).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let is_call = |operator: &Operator<'_>| {
        matches!(operator, Operator::CallRef { .. } | Operator::ReturnCallRef { .. })
    };
    let kind = || callback(logging(&log), [Bound::Const(5), Bound::Callee]);
    let probes = [2, 3].map(|function| module.probe(spec(&module, function, is_call, kind())).unwrap());
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let mut store = Store::new(module.engine(), ());
    let host = Func::wrap(&mut store, || 8_i32).unwrap();
    let other = Func::wrap(&mut store, || 9_i32).unwrap();
    let ty = module.imports().nth(1).unwrap().ty().clone();
    let wasm_jit::ExternType::Global(ty) = ty else { panic!("{ty}") };
    let global = wasm_jit::Global::new(&mut store, ty, wasm_jit::Val::FuncRef(None)).unwrap();
    let instance = Instance::new(&mut store, &module, &[host.into(), global.into()]).unwrap();
    for export in ["run", "tail"] {
        let run = instance.get_typed_func::<(), i32>(&mut store, export).unwrap();
        let call = |store: &mut Store<()>| {
            let result = run.call(store, ());
            let values = log.lock().unwrap().drain(..).collect::<Vec<_>>();
            let [values] = &values[..] else { panic!("{values:?}") };
            assert_eq!(values[0], 5);
            (values[1], result.map_err(|error: Error| error.trap().unwrap()))
        };
        let set = |store: &mut Store<()>, name: &str| {
            instance.get_typed_func::<(), ()>(&mut *store, name).unwrap().call(&mut *store, ()).unwrap();
        };
        global.set(&mut store, wasm_jit::Val::FuncRef(None)).unwrap();
        assert_eq!(call(&mut store), (NO_FUNCTION, Err(Trap::NullReference)));
        set(&mut store, "own");
        assert_eq!(call(&mut store), (1, Ok(7)));
        set(&mut store, "host");
        assert_eq!(call(&mut store), (0, Ok(8)));
        global.set(&mut store, other.into()).unwrap();
        assert_eq!(call(&mut store), (OTHER_FUNCTION, Ok(9)));
    }
}

/// A closure may run other stores, and switch its own probe off.
#[test]
fn closures_run_other_stores() {
    let module = Module::new(
        &engine(),
        "(module (import \"host\" \"f\" (func $f)) (func (export \"run\") (param f64) (result f64)
            (f64.add (local.get 0) (f64.const 1))))",
    )
    .unwrap();
    let own = module.clone();
    let other =
        Module::new(module.engine(), "(module (func (export \"run\") (result f64) (f64.const 5)))").unwrap();
    drop(own);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_probe = seen.clone();
    let function = Callback::new(move |values| {
        let mut store = Store::new(other.engine(), ());
        let instance = Instance::new(&mut store, &other, &[]).unwrap();
        let run = instance.get_typed_func::<(), f64>(&mut store, "run").unwrap();
        of_probe.lock().unwrap().push((run.call(&mut store, ()).unwrap(), f64::from_bits(values[0])));
    });
    let is_addition = |operator: &Operator<'_>| matches!(operator, Operator::F64Add);
    let probe = module.probe(spec(&module, 1, is_addition, callback(function, [Bound::Operand(1)]))).unwrap();
    probe.activate().unwrap();
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("host", "f", || {}).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<f64, f64>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, 2.5).unwrap(), 3.5);
    assert_eq!(*seen.lock().unwrap(), [(5.0, 2.5)]);
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    closures_are_kept_with_the_code_and_no_longer();
    a_panic_ends_the_program();
    callees_of_indirect_calls_are_resolved();
    closures_run_other_stores();
}

/// Operands and locals choose among places by their types, as for functions of WebAssembly.
#[test]
fn closures_with_types_refuse_values_of_others() {
    let module = Module::new(
        &engine(),
        "(module (func (export \"run\") (param i32) (drop (local.get 0)) (drop (i64.const 7)) (drop (f32.const 1))))",
    )
    .unwrap();
    let log: Arc<Mutex<Vec<Vec<u64>>>> = Arc::default();
    let of_probe = log.clone();
    let function = Callback::with_types([ValType::I64, ValType::I32], move |values| {
        of_probe.lock().unwrap().push(values.to_vec());
    });
    let body = module.function(0).unwrap().body().unwrap();
    let drops = body.instructions().filter(|each| matches!(each.operator(), Operator::Drop));
    let specs: Vec<ProbeSpec> = drops
        .map(|each| ProbeSpec {
            location: Location {
                function: 0,
                place: Place::Instruction { offset: (each.offset() - body.range().start) as u32 },
            },
            kind: callback(function.clone(), [Bound::Operand(0), Bound::Local(0)]),
        })
        .collect();
    let made = module.probes(&specs);
    let refused = |made: &Result<_, ProbeError>| match made {
        Err(ProbeError::Value { value, reason, .. }) => Some((*value, *reason)),
        _ => None,
    };
    let of_type = Some((Bound::Operand(0), ValueError::Type { parameter: ValType::I64 }));
    assert_eq!(made.iter().map(refused).collect::<Vec<_>>(), [of_type, None, of_type]);
    made.iter().flatten().for_each(|probe| probe.activate().unwrap());
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, -1).unwrap();
    assert_eq!(*log.lock().unwrap(), [[7, 0xffff_ffff]]);
    // A local of another type, and another number of values.
    let kind = |values: &[Bound]| callback(function.clone(), values);
    let spec = |kind| ProbeSpec { location: specs[0].location, kind };
    let error = module.probe(spec(kind(&[Bound::Local(0), Bound::Local(0)])));
    assert_eq!(refused(&error), Some((Bound::Local(0), ValueError::Type { parameter: ValType::I64 })));
    let error = module.probe(spec(kind(&[Bound::Local(0)])));
    assert!(matches!(error, Err(ProbeError::Parameters { parameters: 2, values: 1 })), "{error:?}");
}
