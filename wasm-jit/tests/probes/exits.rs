//! Probes at exits, and frames that are left in other ways.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    AccessError, Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, ValueError,
    Values, activate_all,
};
use wasm_jit::{Linker, Module, Store, Val};

use super::engine;

type Log = Arc<Mutex<Vec<Vec<u64>>>>;

fn logging(log: &Log, values: impl Into<Values>) -> Kind {
    let log = log.clone();
    let function = Callback::new(move |values| log.lock().unwrap().push(values.to_vec()));
    Kind::Callback { function, values: values.into() }
}

fn at(function: u32, place: Place, kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function, place }, kind }
}

/// Entries and exits of these functions, which log 0 or 1, the function and the frame; and counters
/// of the exits.
fn entries_and_exits(module: &Module, functions: &[u32], log: &Log) -> (Vec<Probe>, Vec<Probe>) {
    let values = |kind| [Bound::Const(kind), Bound::Function, Bound::Frame];
    let entry = |function: &u32| at(*function, Place::Entry, logging(log, values(0)));
    let exit = |function: &u32| at(*function, Place::Exit, logging(log, values(1)));
    let count = |function: &u32| at(*function, Place::Exit, Kind::Count);
    let specs: Vec<ProbeSpec> = functions
        .iter()
        .map(entry)
        .chain(functions.iter().map(exit))
        .chain(functions.iter().map(count))
        .collect();
    let mut probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    let counters = probes.split_off(2 * functions.len());
    activate_all(probes.iter().chain(&counters)).into_iter().for_each(|on| on.unwrap());
    (probes, counters)
}

/// Runs the export `run` with one argument.
fn run(module: &Module, argument: i32) -> Result<Vec<Val>, wasm_jit::Error> {
    let mut linker: Linker<()> = Linker::new(module.engine());
    linker.func_wrap("host", "f", |x: i32| x + 1).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, module)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let mut results = vec![Val::I32(0); run.ty(&store).results().len()];
    run.call(&mut store, &[Val::I32(argument)], &mut results)?;
    Ok(results)
}

/// Every way out passes the exit once: `return`, the end, and all branches to the outermost block;
/// results of all types are in their places.
#[test]
fn every_way_out_passes_the_exit() {
    let text = "(module (func (export \"run\") (param $n i32) (result i32 f64 i64 f32 i64 f64 f32 i32)
        (local $x i64) (local.set $x (i64.extend_i32_u (local.get $n)))
        (local.get $n) (f64.const 1.5) (i64.const -2) (f32.const 2.5) (local.get $x) (f64.const 3.5) (f32.const 4.5)
            (i32.const 10)
        (br_if 0 (i32.eq (local.get $n) (i32.const 1)))
        (block (if (i32.eq (local.get $n) (i32.const 2)) (then
            (local.get $n) (f64.const 1.5) (i64.const -2) (f32.const 2.5) (local.get $x) (f64.const 3.5)
                (f32.const 4.5) (i32.const 20) (return))))
        (if (i32.eq (local.get $n) (i32.const 3)) (then
            (local.get $n) (f64.const 1.5) (i64.const -2) (f32.const 2.5) (local.get $x) (f64.const 3.5)
                (f32.const 4.5) (i32.const 30) (br 1)))
        (i32.sub (local.get $n) (i32.const 4)) (br_table 0 0)
    ))";
    let module = Module::new(&engine(), text).unwrap();
    let log = Log::default();
    let some = |all: &[u32]| {
        let bounds: Vec<Bound> = all.iter().map(|index| Bound::Result(*index)).collect();
        at(0, Place::Exit, logging(&log, Values::from(&bounds[..])))
    };
    let probes = module.probes(&[some(&[0, 1, 2, 3]), some(&[4, 5, 6, 7]), at(0, Place::Exit, Kind::Count)]);
    let probes: Vec<Probe> = probes.into_iter().map(Result::unwrap).collect();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    for argument in 0..7 {
        let results: Vec<u64> = run(&module, argument)
            .unwrap()
            .iter()
            .map(|value| match value {
                Val::I32(value) => u64::from(*value as u32),
                Val::I64(value) => *value as u64,
                Val::F32(value) => u64::from(*value),
                Val::F64(value) => *value,
                other => panic!("{other:?}"),
            })
            .collect();
        let logged: Vec<u64> = log.lock().unwrap().drain(..).flatten().collect();
        assert_eq!(logged, results, "{argument}");
        assert_eq!(probes[2].count(), argument as u64 + 1);
    }
}

/// A call that ends in a tail call does not pass its exit, whoever the callee is; that of the
/// callee's does.
#[test]
fn tail_calls_do_not_pass_the_exit() {
    let text = "(module (type $t (func (param i32) (result i32)))
        (import \"host\" \"f\" (func $host (type $t)))
        (table 2 funcref) (elem (i32.const 0) $host $end)
        (func $end (type $t) (i32.add (local.get 0) (i32.const 5)))
        (func $direct (type $t) (return_call $end (local.get 0)))
        (func $import (type $t) (return_call $host (local.get 0)))
        (func $indirect (type $t) (return_call_indirect (type $t) (local.get 0) (local.get 0)))
        (func (export \"run\") (type $t) (i32.add (i32.add (call $direct (i32.const 1)) (call $import (i32.const 2)))
            (i32.add (call $indirect (i32.const 0)) (call $indirect (i32.const 1))))))";
    let module = Module::new(&engine(), text).unwrap();
    let log = Log::default();
    let (_probes, counters) = entries_and_exits(&module, &[1, 2, 3, 4, 5], &log);
    assert_eq!(run(&module, 0).unwrap()[0].i32(), Some(6 + 3 + 1 + 6));
    let events: Vec<[u64; 2]> = log.lock().unwrap().iter().map(|values| [values[0], values[1]]).collect();
    let expected = [[0, 5], [0, 2], [0, 1], [1, 1], [0, 3], [0, 4], [0, 4], [0, 1], [1, 1], [1, 5]];
    assert_eq!(events, expected);
    let counts: Vec<u64> = counters.iter().map(Probe::count).collect();
    assert_eq!(counts, [2, 0, 0, 0, 1]);
}

/// Frames that traps and exceptions leave are reported, innermost first, with the numbers that they
/// had at their entries; those that handle the exception are not.
#[test]
fn frames_that_are_left_otherwise_are_reported() {
    let text = "(module (type $t (func (param i32) (result i32))) (import \"host\" \"f\" (func $host (type $t)))
        (tag $e)
        (func $deep (type $t) (if (result i32) (i32.eqz (local.get 0))
            (then (throw $e)) (else (i32.add (i32.const 1) (call $deep (i32.sub (local.get 0) (i32.const 1)))))))
        (func $catch (type $t)
            (block $caught (try_table (catch $e $caught) (return (call $deep (local.get 0))))) (i32.const 40))
        (func $leaf (type $t) (i32.div_u (i32.const 7) (local.get 0)))
        (func (export \"run\") (type $t)
            (if (result i32) (i32.lt_s (local.get 0) (i32.const 3))
                (then (call $leaf (call $catch (local.get 0))))
                (else (i32.add (call $leaf (i32.const 0)) (i32.const 1))))))";
    let module = Module::new(&engine(), text).unwrap();
    let log = Log::default();
    let _probes = entries_and_exits(&module, &[1, 2, 3, 4], &log);
    let of_watch = log.clone();
    let watch = module.watch_unwound(move |left| {
        of_watch.lock().unwrap().push(vec![2, left.function.into(), left.frame]);
    });
    // Events, and the frames that are left in the order of their entries, of which each is left
    // once.
    let events = || {
        let mut open: Vec<(u64, u64)> = Vec::new();
        let mut events = Vec::new();
        for event in log.lock().unwrap().drain(..) {
            match event[0] {
                0 => open.push((event[1], event[2])),
                _ => assert_eq!(open.pop(), Some((event[1], event[2])), "{event:?}"),
            }
            events.push([event[0], event[1]]);
        }
        assert_eq!(open, []);
        events
    };
    assert_eq!(run(&module, 2).unwrap()[0].i32(), Some(0));
    let deep = [[0, 1], [0, 1], [0, 1], [2, 1], [2, 1], [2, 1]];
    let expected = [&[[0, 4], [0, 2]][..], &deep, &[[1, 2], [0, 3], [1, 3], [1, 4]]].concat();
    assert_eq!(events(), expected);
    assert!(run(&module, 3).unwrap_err().trap().is_some());
    assert_eq!(events(), [[0, 4], [0, 3], [2, 3], [2, 4]]);
    drop(watch);
    assert!(run(&module, 3).is_err());
    assert!(log.lock().unwrap().iter().all(|event| event[0] == 0));
}

/// Of a frame that an exception leaves: its tag and values, as far as they are known without a
/// store.
#[test]
fn exceptions_that_leave_frames_are_known() {
    let text = "(module (tag $a (param f32)) (tag $b (param i32 v128 funcref externref f64))
        (func $throw (param i32)
            (if (i32.eqz (local.get 0)) (then (throw $a (f32.const nan:0x200001))))
            (if (i32.eq (local.get 0) (i32.const 1)) (then unreachable))
            (throw $b (local.get 0) (v128.const i64x2 7 -1) (ref.func $throw) (ref.null extern) (f64.const 1)))
        (elem declare func $throw)
        (func (export \"run\") (param i32) (result i32) (call $throw (local.get 0)) (i32.const 0)))";
    let module = Module::new(&engine(), text).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_watch = seen.clone();
    let _watch = module.watch_unwound(move |left| {
        let exception = left.exception().map(|exception| (exception.tag, exception.fields));
        of_watch.lock().unwrap().push(format!("{} {exception:?}", left.function));
    });
    let a = "Some((Some(0), [Some(F32(2141192193))]))";
    let b = format!(
        "Some((Some(1), [Some(I32(2)), Some(V128({})), None, Some(ExternRef(None)), Some(F64({}))]))",
        u128::from(u64::MAX) << 64 | 7,
        1_f64.to_bits()
    );
    for (argument, expected) in [(0, a), (1, "None"), (2, &b)] {
        run(&module, argument).unwrap_err();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen, [format!("0 {expected}"), format!("1 {expected}")], "{argument}");
    }
}

/// Of a frame that is left: the instruction that traps, or the call that it waits in.
#[test]
fn frames_that_are_left_say_where_they_are() {
    let text = "(module (memory 1) (tag $e)
        (func $leaf (param i32) nop
            (drop (i32.load (local.get 0))) (drop (i32.div_s (i32.const 1) (local.get 0))) (throw $e))
        (func (export \"run\") (param i32) (result i32) (call $leaf (local.get 0)) (i32.const 0)))";
    let module = Module::new(&engine(), text).unwrap();
    let places = Arc::new(Mutex::new(Vec::new()));
    let of_watch = places.clone();
    let _watch = module.watch_unwound(move |left| {
        of_watch.lock().unwrap().push((left.function, left.offset().unwrap().unwrap(), left.is_call()));
    });
    // nop, local.get, i32.load, drop, i32.const, local.get, i32.div_s, drop, throw; local.get,
    // call.
    let bodies = [0, 1].map(|function| module.function(function).unwrap().body().unwrap());
    let at = |function: usize, instruction: usize| {
        let body = &bodies[function];
        (body.instructions().nth(instruction).unwrap().offset() - body.range().start) as u32
    };
    let call = (1, at(1, 1), true);
    for (argument, offset, is_call) in [(-1, at(0, 2), false), (0, at(0, 6), false), (1, at(0, 8), true)] {
        run(&module, argument).unwrap_err();
        assert_eq!(std::mem::take(&mut *places.lock().unwrap()), [(0, offset, is_call), call], "{argument}");
    }
    // In a version with sites, too.
    let location = Location { function: 0, place: Place::Instruction { offset: at(0, 2) } };
    let probe = module.probe(ProbeSpec { location, kind: Kind::Empty }).unwrap();
    probe.activate().unwrap();
    run(&module, -1).unwrap_err();
    assert_eq!(*places.lock().unwrap(), [(0, at(0, 2), false), call]);
}

/// At an exit there are results only, and results are only there.
#[test]
fn exits_have_results_only() {
    let module = Module::new(&engine(), "(module (func (param i32) (result i64) (i64.const 1)))").unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let first = body.instructions().next().unwrap().offset() - body.range().start;
    let instruction = Place::Instruction { offset: first as u32 };
    let end = Place::Instruction { offset: body.range().len() as u32 };
    for (place, value, expected) in [
        (Place::Exit, Bound::Local(0), ValueError::AtExit),
        (Place::Exit, Bound::Operand(0), ValueError::AtExit),
        (Place::Exit, Bound::Result(1), ValueError::NoResult),
        (Place::Exit, Bound::Address, ValueError::NoAccess),
        (Place::Entry, Bound::Result(0), ValueError::NoResult),
        (instruction, Bound::Result(0), ValueError::NoResult),
    ] {
        let error = module.probe(at(0, place, logging(&Log::default(), [value]))).map(|_| ()).unwrap_err();
        let ProbeError::Value { reason, .. } = error else { panic!("{error}") };
        assert_eq!(reason, expected, "{place:?} {value:?}");
    }
    let error = module.probe(at(0, end, Kind::Count)).map(|_| ()).unwrap_err();
    assert!(matches!(error, ProbeError::NoInstruction { .. }), "{error}");
}

/// At an exit, a closure sees the results as operands, and the last values of the locals, on every
/// way out; and what it writes are the results.
#[test]
fn closures_at_exits_see_results_and_locals() {
    // The locals are in registers, other ones in the loop.
    let text = "(module (func (export \"run\") (param $n i32) (result i32 f64 i64 i64 funcref)
        (local $x i64) (local $y f64) (local $z i32) (local $m i32)
        (local.set $m (local.get $n))
        (loop $again
            (local.set $x (i64.add (local.get $x) (i64.mul (local.get $x) (i64.const 3))))
            (local.set $x (i64.add (local.get $x) (i64.const 1)))
            (local.set $y (f64.add (local.get $y) (f64.const 1)))
            (local.set $z (i32.add (local.get $z) (i32.const 2)))
            (if (i32.eq (local.get $m) (i32.const 3)) (then
                (return (local.get $z) (local.get $y) (local.get $x) (i64.const 1) (ref.func 0))))
            (br_if $again (local.tee $m (i32.sub (local.get $m) (i32.const 1)))))
        (local.set $z (i32.const 100))
        (local.get $z) (local.get $y) (i64.const 5) (local.get $x) (ref.null func))
        (func $other (export \"other\") (result i64 i64 i64 i64) (i64.const 9) (i64.const 9) (i64.const 9) (i64.const 9))
        (elem declare func 0))";
    let module = Module::new(&engine(), text).unwrap();
    let run = |argument| -> String { format!("{:?}", &run(&module, argument).unwrap()[..4]) };
    let before: Vec<String> = (1..6).map(run).collect();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = seen.clone();
    let kind = Kind::Generic(GenericFn::new(move |frame| {
        assert_eq!(frame.location(), Location { function: 0, place: Place::Exit });
        let own = frame.accessor()?;
        assert_eq!((own.location(frame)?, own.operands(frame)?), (frame.location(), 5));
        let results = (1..5).rev().map(|depth| frame.operand(depth)).collect::<Result<Vec<_>, _>>()?;
        let of_accessor =
            (1..5).rev().map(|depth| own.operand(frame, depth)).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(format!("{of_accessor:?}"), format!("{results:?}"));
        log.lock().unwrap().push(format!("{results:?}"));
        // The last value of each local is known from the argument.
        let n = frame.local(0)?.unwrap_i32();
        let loops = if n >= 3 { n - 2 } else { n };
        let x = (0..loops).fold(0_i64, |x, _| 4 * x + 1);
        let is_return = n >= 3;
        assert_eq!(frame.local(1)?.unwrap_i64(), x);
        assert_eq!(frame.local(2)?.unwrap_f64(), f64::from(loops));
        assert_eq!(frame.local(3)?.unwrap_i32(), if is_return { 2 * loops } else { 100 });
        assert_eq!(frame.local(4)?.unwrap_i32(), if is_return { 3 } else { 0 });
        assert_eq!(frame.operand(0)?.func_ref().unwrap().is_some(), is_return);
        // A call whose results are in the same memory.
        let instance = frame.instance();
        let mut store = frame.store::<()>().unwrap();
        let other = instance.get_typed_func::<(), (i64, i64, i64, i64)>(&mut store, "other")?;
        assert_eq!(other.call(&mut store, ())?, (9, 9, 9, 9));
        Ok(())
    }));
    let probe = module.probe(at(0, Place::Exit, kind)).unwrap();
    let count = module.probe(at(0, Place::Exit, Kind::Count)).unwrap();
    activate_all([&count, &probe]).into_iter().for_each(|on| on.unwrap());
    let after: Vec<String> = (1..6).map(run).collect();
    assert_eq!((&after, &*seen.lock().unwrap(), count.count()), (&before, &before, 5));
    let kind = Kind::Generic(GenericFn::new(|frame| {
        for (depth, value) in (1..5).rev().zip([Val::I32(-1), 2.5.into(), Val::I64(-3), Val::I64(-4)]) {
            frame.set_operand(depth, &value)?;
        }
        let error = frame.set_operand(0, &Val::I32(0)).unwrap_err();
        assert!(matches!(error, AccessError::Value(_)), "{error}");
        assert!(matches!(frame.operand(5), Err(AccessError::NoOperand { depth: 5 })));
        frame.set_local(1, &Val::I64(7))?;
        assert_eq!(frame.local(1)?.unwrap_i64(), 7);
        Ok(())
    }));
    let write = module.probe(at(0, Place::Exit, kind)).unwrap();
    let native = module.probe(at(0, Place::Exit, logging(&Log::default(), [Bound::Result(3)]))).unwrap();
    native.activate().unwrap();
    write.activate().unwrap();
    let expected = format!("{:?}", [Val::I32(-1), 2.5.into(), Val::I64(-3), Val::I64(-4)]);
    (1..6).for_each(|argument| assert_eq!(run(argument), expected));
}

/// A register alone holds the last value of a local when the function returns, and when it ends.
#[test]
fn exits_see_locals_that_were_just_set() {
    // The uses of the local do not suffice to keep it in a register across labels: those after the
    // hint do not count.
    let text = "(module (func (export \"run\") (param $n i32) (result i32) (local $x i32)
        (@metadata.code.branch_hint \"\\00\")
        (if (local.get $n) (then
            (local.set $x (i32.mul (local.get $n) (i32.const 3)))
            (return (local.get $x))))
        (local.set $x (i32.add (local.get $n) (i32.const 5)))
        (i32.const 1)))";
    let module = Module::new(&engine(), text).unwrap();
    let seen: Arc<Mutex<Vec<i32>>> = Arc::default();
    let log = seen.clone();
    let kind = Kind::Generic(GenericFn::new(move |frame| {
        log.lock().unwrap().push(frame.local(1)?.unwrap_i32());
        Ok(())
    }));
    let probe = module.probe(at(0, Place::Exit, kind)).unwrap();
    probe.activate().unwrap();
    assert_eq!([7, 0].map(|argument| run(&module, argument).unwrap()[0].i32()), [Some(21), Some(1)]);
    assert_eq!(*seen.lock().unwrap(), [21, 5]);
}

/// A closure at the exit of a frame that has become plain sees the same.
#[test]
fn plain_frames_have_exits() {
    let text = "(module (func (export \"run\") (param i32) (result i32) (local i32)
        (local.set 1 (i32.add (local.get 0) (i32.const 5)))
        (i32.add (local.get 1) (i32.const 7))))";
    let module = Module::new(&engine(), text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let start = body.range().start;
    let adds =
        body.instructions().filter(|one| matches!(one.operator(), wasm_jit::wasmparser::Operator::I32Add));
    let offset = (adds.last().unwrap().offset() - start) as u32;
    let plain = Kind::Generic(GenericFn::new(|frame| Ok(frame.set_operand(0, &Val::I32(70))?)));
    let exit = Kind::Generic(GenericFn::new(|frame| {
        assert_eq!(
            [frame.local(0)?, frame.local(1)?, frame.operand(0)?].map(|value| value.unwrap_i32()),
            [1, 6, 76]
        );
        Ok(frame.set_operand(0, &Val::I32(8))?)
    }));
    let specs = [at(0, Place::Instruction { offset }, plain), at(0, Place::Exit, exit)];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    assert_eq!(run(&module, 1).unwrap()[0].i32(), Some(8));
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    every_way_out_passes_the_exit();
    tail_calls_do_not_pass_the_exit();
    frames_that_are_left_otherwise_are_reported();
    exits_have_results_only();
    closures_at_exits_see_results_and_locals();
    exits_see_locals_that_were_just_set();
    plain_frames_have_exits();
}

/// Entries and exits of a call have the same return address, in the code of the caller, whichever
/// version that is in.
#[test]
fn return_addresses_are_in_the_caller() {
    let text = "(module
        (func $leaf (param i32) (result i32) (local.get 0))
        (func $tail (param i32) (result i32) (return_call $leaf (local.get 0)))
        (func $run (export \"run\") (param i32) (result i32)
            (i32.add (call $leaf (local.get 0)) (call $tail (local.get 0)))))";
    let module = Module::new(&engine(), text).unwrap();
    let log = Log::default();
    let values = [Bound::Function, Bound::ReturnAddress];
    let probes = |functions: &[u32]| -> Vec<Probe> {
        let places = [Place::Entry, Place::Exit];
        let specs = functions
            .iter()
            .flat_map(|function| places.map(|place| at(*function, place, logging(&log, values))));
        let specs: Vec<ProbeSpec> = specs.collect();
        let probes: Vec<Probe> = module.probes(&specs).into_iter().filter_map(Result::ok).collect();
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        probes
    };
    let callers = || -> Vec<(u64, Option<u32>)> {
        run(&module, 7).unwrap();
        let log = std::mem::take(&mut *log.lock().unwrap());
        log.into_iter().map(|event| (event[0], module.function_at(event[1]))).collect()
    };
    let of_leaf = probes(&[0]);
    assert_eq!(callers(), [(0, Some(2)); 4], "a tail call returns to the caller of its function");
    let of_callers = probes(&[1, 2]);
    let [leaf, host] = [(0, Some(2)), (2, None)];
    assert_eq!(callers(), [host, leaf, leaf, (1, Some(2)), leaf, leaf, host]);
    drop(of_callers);
    assert_eq!(callers(), [leaf; 4]);
    drop(of_leaf);
    assert_eq!((module.function_at(0), module.function_at(u64::MAX)), (None, None));
}
