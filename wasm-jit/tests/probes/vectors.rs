//! Vectors at probes: registers keep all of their bits, generic probes read and write them,
//! functions of WebAssembly get them, and others get their lanes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Lane, Location, Place, ProbeError, ProbeSpec, ValueError, Values,
    WasmFn,
};
use wasm_jit::{Engine, Instance, Module, Store, Val, ValType};
use wasmparser::Operator;

use crate::frames::offset_of;
use crate::native::clobber;

const TEXT: &str = "(module
    (func $callee (param v128) (result v128) (i64x2.add (local.get 0) (v128.const i64x2 1 1)))
    (func (export \"run\") (param $x v128) (param $n i32) (result v128) (local $sum v128)
        (loop $again
            (local.set $sum (i64x2.add (local.get $sum) (i64x2.mul (local.get $x) (local.get $x))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (i64x2.add (v128.const i64x2 3 5) (call $callee (local.get $sum)))))";

fn at_add(module: &Module, kind: Kind) -> ProbeSpec {
    let offset = offset_of(module, 1, |operator| matches!(operator, Operator::I64x2Mul));
    ProbeSpec { location: Location { function: 1, place: Place::Instruction { offset } }, kind }
}

fn run(module: &Module) -> u128 {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<(u128, i32), u128>(&mut store, "run").unwrap();
    run.call(&mut store, (7 << 64 | 3, 4)).unwrap()
}

#[test]
fn vectors_survive_probes_and_are_read_and_written() {
    let engine = Engine::default();
    let module = Module::new(&engine, TEXT).unwrap();
    let plain = run(&module);
    assert_eq!(plain, (4 * 49 + 6) << 64 | (4 * 9 + 4));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_probe = seen.clone();
    let kind = Kind::Generic(GenericFn::new(move |frame| {
        let values = [frame.operand(0)?, frame.operand(1)?, frame.operand(2)?, frame.local(2)?];
        of_probe.lock().unwrap().push(values.map(|value| value.unwrap_v128()));
        Ok(())
    }));
    let probe = module.probe(at_add(&module, kind)).unwrap();
    probe.activate().unwrap();
    assert_eq!(run(&module), plain);
    let x = 7 << 64 | 3;
    let sums = (0..4).map(|turn| (turn * 49) << 64 | (turn * 9));
    assert_eq!(*seen.lock().unwrap(), sums.map(|sum| [x, x, sum, sum]).collect::<Vec<_>>());
    drop(probe);
    // Both are aliases or in registers: the frame goes on in the plain version.
    let kind = Kind::Generic(GenericFn::new(|frame| {
        frame.set_operand(0, &2_u128.into())?;
        frame.set_local(2, &(1_u128 << 64).into())?;
        assert_eq!(frame.local(2)?.unwrap_v128(), 1 << 64);
        frame.set_operand(2, &10_u128.into())?;
        Ok(())
    }));
    let probe = module.probe(at_add(&module, kind)).unwrap();
    probe.activate().unwrap();
    assert_eq!(run(&module), 6 << 64 | (10 + 6 + 4));
}

#[test]
fn vectors_that_a_function_cannot_get_are_refused() {
    let module = Module::new(&Engine::default(), TEXT).unwrap();
    let refused = |function: Callback, value: Bound| {
        let kind = Kind::Callback { function, values: [value].into() };
        let probe = module.probe(at_add(&module, kind)).and_then(|probe| probe.activate().map(|()| probe));
        match probe.unwrap_err() {
            ProbeError::Value { reason, .. } => reason,
            error => panic!("{error}"),
        }
    };
    let any = || Callback::new(|_| ());
    let of = |ty: ValType| Callback::with_types([ty], |_| ());
    for value in [Bound::Operand(0), Bound::Local(0), Bound::Local(2)] {
        assert_eq!(refused(any(), value), ValueError::Vector);
        assert_eq!(refused(of(ValType::V128), value), ValueError::Vector);
    }
    assert_eq!(refused(any(), Bound::LocalLane(1, Lane::Low)), ValueError::NotVector);
    assert_eq!(refused(any(), Bound::LocalLane(3, Lane::Low)), ValueError::NoLocal);
    assert_eq!(refused(any(), Bound::OperandLane(3, Lane::High)), ValueError::NoOperand);
    assert_eq!(refused(any(), Bound::ResultLane(0, Lane::High)), ValueError::NoResult);
    let parameter = ValType::F64;
    assert_eq!(refused(of(parameter), Bound::LocalLane(0, Lane::Low)), ValueError::Type { parameter });
}

/// Vectors that are constants, aliases of locals, zero, in registers and in the frame, and results
/// in registers and in memory.
const PLACES: &str = "(module
    (func $many (param $a v128) (result v128 v128 i32 v128 v128) (local $b v128) (local $c v128)
        (local.get $a) (local.get $b) (i32.const 7) (v128.const i64x2 11 12) (local.get $c)
        (local.set $c (i64x2.add (local.get $a) (v128.const i64x2 -1 1)))
        (drop) (local.get $c))
    (func $run (export \"run\") (param $a v128) (param $n i32) (result v128) (local $sum v128) (local v128)
        (loop $again
            (call $many (local.get $a))
            (local.set $sum (i64x2.add (local.get $sum)))
            (local.set $sum (i64x2.sub (local.get $sum)))
            (drop)
            (local.set $sum (v128.xor (local.get $sum)))
            (local.set $sum (i64x2.add (local.get $sum)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (v128.xor (local.get $sum) (v128.const i64x2 3 5)))
    (func (export \"at\") (param v128 i32) (result v128) (call $run (local.get 0) (local.get 1))))";

/// Closures get the lanes that generic probes read, at each instruction.
#[test]
fn lanes_are_those_of_the_frame_everywhere() {
    let module = Module::new(&Engine::default(), PLACES).unwrap();
    let plain = run(&module);
    let mut compared = 0;
    for function in 0..2 {
        let info = module.function(function).unwrap();
        let start = info.body().unwrap().range().start;
        for instruction in info.body().unwrap().instructions() {
            let offset = (instruction.offset() - start) as u32;
            let location = Location { function, place: Place::Instruction { offset } };
            // The vectors of each event.
            let read = Arc::new(Mutex::new(Vec::<Vec<(Bound, Bound, u128)>>::new()));
            let of_probe = read.clone();
            let reader = GenericFn::new(move |frame| {
                let locals = (0..4).map_while(|index| Some((true, index, frame.local(index).ok()?)));
                let mut values: Vec<_> = locals.collect();
                let operands = 0..frame.operands() as u32;
                values.extend(operands.map(|depth| (false, depth, frame.operand(depth).unwrap())));
                let vectors = values.into_iter().filter_map(|(is_local, index, value)| {
                    let lane = |lane| match is_local {
                        true => Bound::LocalLane(index, lane),
                        false => Bound::OperandLane(index, lane),
                    };
                    let Val::V128(bits) = value else { return None };
                    Some((lane(Lane::Low), lane(Lane::High), bits))
                });
                of_probe.lock().unwrap().push(vectors.collect());
                Ok(())
            });
            let Ok(probe) = module.probe(ProbeSpec { location, kind: Kind::Generic(reader) }) else {
                continue;
            };
            probe.activate().unwrap();
            assert_eq!(run(&module), plain);
            drop(probe);
            let read = std::mem::take(&mut *read.lock().unwrap());
            let Some(first) = read.first() else { continue };
            let bounds: Vec<_> = first.iter().flat_map(|(low, high, _)| [*low, *high]).collect();
            let passed = Arc::new(Mutex::new(Vec::new()));
            let of_probe = passed.clone();
            let function = Callback::new(move |values| of_probe.lock().unwrap().push(values.to_vec()));
            let kind = Kind::Callback { function, values: Values::from(&bounds[..]) };
            let probe = module.probe(ProbeSpec { location, kind }).unwrap();
            probe.activate().unwrap();
            assert_eq!(run(&module), plain);
            let lanes = |event: &Vec<(Bound, Bound, u128)>| -> Vec<u64> {
                event.iter().flat_map(|(.., bits)| [*bits as u64, (bits >> 64) as u64]).collect()
            };
            assert_eq!(*passed.lock().unwrap(), read.iter().map(lanes).collect::<Vec<_>>(), "{location:?}");
            compared += bounds.len();
        }
    }
    assert!(compared > 100, "{compared}");
}

/// A function of WebAssembly gets vectors in registers and on its stack, and a closure the lanes of
/// results, which are in registers and in memory.
#[test]
fn vectors_are_passed_to_functions_of_webassembly() {
    let engine = Engine::default();
    let module = Module::new(&engine, PLACES).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let observer = Module::new(
        &engine,
        "(module (memory (export \"memory\") 1)
            (func (export \"observe\") (param v128 v128 i32 v128 v128 v128 v128 v128 v128 v128 i64 v128)
                (v128.store (i32.const 0) (local.get 0)) (v128.store (i32.const 16) (local.get 1))
                (i32.store (i32.const 32) (local.get 2)) (v128.store (i32.const 48) (local.get 3))
                (v128.store (i32.const 64) (local.get 4)) (v128.store (i32.const 80) (local.get 9))
                (i64.store (i32.const 96) (local.get 10)) (v128.store (i32.const 112) (local.get 11))))",
    );
    let observer = Instance::new(&mut store, &observer.unwrap(), &[]).unwrap();
    let observe = observer.get_func(&mut store, "observe").unwrap();
    let results = [4, 3, 2, 1, 0, 4, 3, 1, 0, 0].map(Bound::Operand);
    let last = [Bound::Const(0xabc), Bound::Operand(1)];
    let values = Values::from(&[&results[..], &last].concat()[..]);
    let offset = offset_of(&module, 1, |operator| matches!(operator, Operator::Call { .. }));
    // `call 0` has two bytes.
    let location = Location { function: 1, place: Place::Instruction { offset: offset + 2 } };
    let kind = Kind::Wasm { function: WasmFn::new(&store, observe).unwrap(), values };
    let by_wasm = module.probe(ProbeSpec { location, kind }).unwrap();
    let location = Location { function: 0, place: Place::Exit };
    let lanes = Arc::new(Mutex::new(Vec::new()));
    let of_probe = lanes.clone();
    let function = Callback::new(move |values| of_probe.lock().unwrap().push(values.to_vec()));
    let values = [0, 1, 3, 4].into_iter().flat_map(|at| [Lane::Low, Lane::High].map(|lane| (at, lane)));
    let values: Vec<_> = values.map(|(at, lane)| Bound::ResultLane(at, lane)).collect();
    let kind = Kind::Callback { function, values: Values::from(&values[..]) };
    let by_closure = module.probe(ProbeSpec { location, kind }).unwrap();
    by_wasm.activate().unwrap();
    by_closure.activate().unwrap();
    let run = instance.get_typed_func::<(u128, i32), u128>(&mut store, "run").unwrap();
    let a = 7_u128 << 64 | 3;
    run.call(&mut store, (a, 1)).unwrap();
    let vectors = [a, 0, 12 << 64 | 11, 8 << 64 | 2];
    let expected = vectors.iter().flat_map(|bits| [*bits as u64, (bits >> 64) as u64]);
    assert_eq!(*lanes.lock().unwrap(), [expected.collect::<Vec<_>>()]);
    let memory = observer.get_memory(&mut store, "memory").unwrap();
    let stored = memory.data(&store);
    let vector = |at: usize| u128::from_le_bytes(stored[at..at + 16].try_into().unwrap());
    assert_eq!([0, 16, 48, 64, 80].map(vector), [a, 0, vectors[2], vectors[3], vectors[3]]);
    assert_eq!((vector(32) as u32, vector(96) as u64, vector(112)), (7, 0xabc, vectors[2]));
}

/// In a frame that has become plain, lanes and whole vectors are the new ones.
#[test]
fn plain_frames_pass_their_vectors() {
    let module = Module::new(&Engine::default(), TEXT).unwrap();
    let new = [1, 2, 3].map(numbered);
    let write = Kind::Generic(GenericFn::new(move |frame| {
        frame.set_local(2, &new[0].into())?;
        frame.set_operand(0, &new[1].into())?;
        frame.set_operand(1, &new[2].into())?;
        Ok(())
    }));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_probe = seen.clone();
    let function = Callback::new(move |values| of_probe.lock().unwrap().push(values.to_vec()));
    let lanes = [Lane::High, Lane::Low];
    let values: Vec<Bound> = lanes
        .into_iter()
        .flat_map(|lane| {
            [Bound::LocalLane(2, lane), Bound::OperandLane(0, lane), Bound::OperandLane(1, lane)]
        })
        .collect();
    let look = Kind::Callback { function, values: Values::from(&values[..]) };
    let mut store = Store::new(module.engine(), ());
    let text = "(module (memory (export \"memory\") 1)
        (func (export \"f\") (param v128 v128 v128)
            (v128.store (i32.const 0) (local.get 0))
            (v128.store (i32.const 16) (local.get 1))
            (v128.store (i32.const 32) (local.get 2))))";
    let monitor = Module::new(module.engine(), text).unwrap();
    let monitor = Instance::new(&mut store, &monitor, &[]).unwrap();
    let function = monitor.get_func(&mut store, "f").unwrap();
    let function = WasmFn::new(&store, function).unwrap();
    let values = [Bound::Local(2), Bound::Operand(0), Bound::Operand(1)].into();
    let store_all = Kind::Wasm { function, values };
    let probes = [write, look, store_all].map(|kind| module.probe(at_add(&module, kind)).unwrap());
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(u128, i32), u128>(&mut store, "run").unwrap();
    run.call(&mut store, (7, 1)).unwrap();
    let halves = lanes.map(|lane| new.map(|vector| (vector >> (64 * lane as u32)) as u64));
    assert_eq!(*seen.lock().unwrap(), [halves.concat()]);
    let memory = monitor.get_memory(&mut store, "memory").unwrap();
    let stored = |at: usize| u128::from_le_bytes(memory.data(&store)[at..at + 16].try_into().unwrap());
    assert_eq!([0, 16, 32].map(stored), new);
}

/// A vector that is different in each byte.
fn numbered(number: u8) -> u128 {
    u128::from_le_bytes(std::array::from_fn(|at| number.wrapping_mul(16).wrapping_add(at as u8)))
}

/// Eight vectors are in registers where `$sum` is called, and at the place of its `nop`.
const EIGHT: &str = "(module
    (func $sum (param v128 v128 v128 v128 v128 v128 v128 v128) (result v128)
        (i64x2.add (local.get 0) (local.get 0))
        (nop)
        (i64x2.add (local.get 1)) (i64x2.add (local.get 2)) (i64x2.add (local.get 3))
        (i64x2.add (local.get 4)) (i64x2.add (local.get 5)) (i64x2.add (local.get 6))
        (i64x2.add (local.get 7)))
    (func (export \"run\") (param v128 v128 v128 v128 v128 v128 v128 v128) (result v128)
        (call $sum (local.get 0) (local.get 1) (local.get 2) (local.get 3)
            (local.get 4) (local.get 5) (local.get 6) (local.get 7))))";

type Eight = (u128, u128, u128, u128, u128, u128, u128, u128);

fn sum_of_eight(module: &Module) -> u128 {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let run = instance.get_typed_func::<Eight, u128>(&mut store, "run").unwrap();
    let v = numbered;
    run.call(&mut store, (v(1), v(2), v(3), v(4), v(5), v(6), v(7), v(8))).unwrap()
}

#[test]
fn closures_that_change_all_registers_keep_vectors() {
    let engine = Engine::default();
    let half = |shift: u32| {
        let half = |number: u8| (numbered(number) >> shift) as u64;
        (1..9).map(half).fold(half(1), u64::wrapping_add)
    };
    let expected = u128::from(half(0)) | u128::from(half(64)) << 64;
    let module = Module::new(&engine, EIGHT).unwrap();
    assert_eq!(sum_of_eight(&module), expected);
    // When a function is called for the first time.
    let module = Module::new(&engine, EIGHT).unwrap();
    let watch = module.watch_first_calls(|_| clobber()).unwrap();
    assert_eq!(sum_of_eight(&module), expected);
    drop(watch);
    // At probes.
    let fired = Arc::new(AtomicU32::new(0));
    for place in [
        Place::Entry,
        Place::Instruction { offset: offset_of(&module, 0, |operator| matches!(operator, Operator::Nop)) },
        Place::Exit,
    ] {
        for is_generic in [false, true] {
            let of_probe = fired.clone();
            let fire = move || {
                clobber();
                of_probe.fetch_add(1, Ordering::Relaxed);
            };
            let kind = if is_generic {
                Kind::Generic(GenericFn::new(move |_| {
                    fire();
                    Ok(())
                }))
            } else {
                Kind::Callback { function: Callback::new(move |_| fire()), values: [].into() }
            };
            let probe = module.probe(ProbeSpec { location: Location { function: 0, place }, kind }).unwrap();
            probe.activate().unwrap();
            assert_eq!(sum_of_eight(&module), expected, "{place:?}, generic: {is_generic}");
        }
    }
    assert_eq!(fired.load(Ordering::Relaxed), 6);
}

/// Results beyond the first two are in memory, constants nowhere.
#[test]
fn constants_and_results_in_memory_are_read() {
    let text = format!(
        "(module (func (export \"run\") (result v128 i32 v128 v128 v128)
            {a} (i32.const 9) {b} {c} {d} (nop)))",
        a = constant(numbered(1)),
        b = constant(numbered(2)),
        c = constant(numbered(3)),
        d = constant(numbered(4)),
    );
    let module = Module::new(&Engine::default(), text).unwrap();
    let nop =
        Place::Instruction { offset: offset_of(&module, 0, |operator| matches!(operator, Operator::Nop)) };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let probes = [nop, Place::Exit].map(|place| {
        let of_probe = seen.clone();
        let kind = Kind::Generic(GenericFn::new(move |frame| {
            for depth in [0, 1, 2, 4] {
                of_probe.lock().unwrap().push(frame.operand(depth)?.unwrap_v128());
            }
            assert_eq!(frame.operand(3)?.unwrap_i32(), 9);
            Ok(())
        }));
        module.probe(ProbeSpec { location: Location { function: 0, place }, kind }).unwrap()
    });
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), (u128, i32, u128, u128, u128)>(&mut store, "run").unwrap();
    let expected = [1, 2, 3, 4].map(numbered);
    let [a, b, c, d] = expected;
    assert_eq!(run.call(&mut store, ()).unwrap(), (a, 9, b, c, d));
    assert_eq!(*seen.lock().unwrap(), [d, c, b, a, d, c, b, a]);
}

/// The plain version has slots for operands that had none.
#[test]
fn frames_with_many_vectors_become_plain() {
    const COUNT: u8 = 40;
    let values: String = (0..COUNT).map(|number| constant(numbered(number))).collect();
    let text = format!(
        "(module (func (export \"run\") (result v128) {values} (nop) {}))",
        "i64x2.add ".repeat(usize::from(COUNT) - 1)
    );
    let module = Module::new(&Engine::default(), text).unwrap();
    let half = |shift: u32, of: &dyn Fn(u8) -> u128| {
        (0..COUNT).map(|number| (of(number) >> shift) as u64).fold(0, u64::wrapping_add)
    };
    let sum = |of: &dyn Fn(u8) -> u128| u128::from(half(0, of)) | u128::from(half(64, of)) << 64;
    let run = || {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<(), u128>(&mut store, "run").unwrap();
        run.call(&mut store, ()).unwrap()
    };
    assert_eq!(run(), sum(&numbered));
    for changed in [0, 17, COUNT - 1] {
        let kind = Kind::Generic(GenericFn::new(move |frame| {
            frame.set_operand(u32::from(COUNT - 1 - changed), &(1_u128 << 64 | 2).into())?;
            assert_eq!(
                frame.operand(0)?.unwrap_v128(),
                if changed == COUNT - 1 { 1 << 64 | 2 } else { numbered(COUNT - 1) }
            );
            Ok(())
        }));
        let offset = offset_of(&module, 0, |operator| matches!(operator, Operator::Nop));
        let location = Location { function: 0, place: Place::Instruction { offset } };
        let probe = module.probe(ProbeSpec { location, kind }).unwrap();
        probe.activate().unwrap();
        let expected = sum(&|number| if number == changed { 1 << 64 | 2 } else { numbered(number) });
        assert_eq!(run(), expected, "{changed}");
    }
    assert_eq!(run(), sum(&numbered));
}

/// A parameter that was stored at a call and loaded again is in its slot and in a register: both
/// are written.
#[test]
fn written_locals_are_changed_in_their_slots_too() {
    let text = "(module (func $nothing)
        (func (export \"run\") (param v128) (result v128 v128)
            (call $nothing) (i64x2.add (local.get 0) (local.get 0)) (nop)
            (i64x2.add (local.get 0)) (call $nothing) (local.get 0)))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let offset = offset_of(&module, 1, |operator| matches!(operator, Operator::Nop));
    let kind = Kind::Generic(GenericFn::new(|frame| {
        let value = frame.local(0)?.unwrap_v128();
        frame.set_local(0, &(!value).into())?;
        assert_eq!(frame.local(0)?.unwrap_v128(), !value);
        Ok(())
    }));
    let location = Location { function: 1, place: Place::Instruction { offset } };
    let probe = module.probe(ProbeSpec { location, kind }).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<u128, (u128, u128)>(&mut store, "run").unwrap();
    // Twice the old value and once the new one, by quadwords.
    let sum = |value: u64| value.wrapping_add(value).wrapping_add(!value);
    let value = 5 << 64 | 9;
    assert_eq!(run.call(&mut store, value).unwrap(), (u128::from(sum(5)) << 64 | u128::from(sum(9)), !value));
}

/// The compiler knows what the local holds, and does not read it; unless it is written, as here in
/// the plain version.
#[test]
fn locals_that_hold_constants_are_written() {
    let text = format!(
        "(module (func (export \"run\") (param v128) (result v128) (local $zero v128)
            (local.set $zero {zero})
            (nop)
            (v128.bitselect (local.get 0) (local.get $zero) {mask})))",
        zero = constant(0),
        mask = constant(0xff),
    );
    let module = Module::new(&Engine::default(), text).unwrap();
    let offset = offset_of(&module, 0, |operator| matches!(operator, Operator::Nop));
    let kind = Kind::Generic(GenericFn::new(|frame| {
        assert_eq!(frame.local(1)?.unwrap_v128(), 0);
        frame.set_local(1, &numbered(5).into())?;
        Ok(())
    }));
    let location = Location { function: 0, place: Place::Instruction { offset } };
    let probe = module.probe(ProbeSpec { location, kind }).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<u128, u128>(&mut store, "run").unwrap();
    let x = numbered(3);
    assert_eq!(run.call(&mut store, x).unwrap(), x & 0xff);
    probe.activate().unwrap();
    assert_eq!(run.call(&mut store, x).unwrap(), x & 0xff | numbered(5) & !0xff);
}

/// In a loop that never writes the local, also where several ways meet, and behind a loop inside
/// of it: what is written there is what the loop begins with the next time.
#[test]
fn locals_that_hold_constants_throughout_loops_are_written() {
    let select = "(local.set $sum (i64x2.add (local.get $sum)
        (v128.bitselect (local.get $x) (local.get $zero) (local.get $mask))))";
    let again = |label: &str, n: &str| {
        format!("(br_if {label} (local.tee {n} (i32.sub (local.get {n}) (i32.const 1))))")
    };
    let bodies = [
        // One after the ways of an `if` meet.
        format!("(loop $again {select} (if (local.get $n) (then)) (nop) {})", again("$again", "$n")),
        // In the inner loop, after that.
        format!(
            "(loop $outer {select} (local.set $m (i32.const 1))
                (loop $inner (if (local.get $n) (then)) (nop) {inner}) {outer})",
            inner = again("$inner", "$m"),
            outer = again("$outer", "$n"),
        ),
        // After the inner loop.
        format!(
            "(loop $outer {select} (local.set $m (i32.const 1))
                (loop $inner {inner}) (nop) {outer})",
            inner = again("$inner", "$m"),
            outer = again("$outer", "$n"),
        ),
        // While a call of the loop waits: the accessor is the caller's. The local is used often
        // enough to stay in a register.
        format!(
            "(loop $again {select} {uses} (if (local.get $n) (then)) (call $callee) {again})",
            uses = "(drop (local.get $zero))".repeat(8),
            again = again("$again", "$n"),
        ),
    ];
    for body in bodies {
        let text = format!(
            "(module
                (func $callee (nop))
                (func (export \"run\") (param $x v128) (param $n i32) (param $mask v128) (result v128)
                    (local $zero v128) (local $sum v128) (local $m i32)
                    (local.set $zero {zero})
                    {body}
                    (local.get $sum)))",
            zero = constant(0),
        );
        let module = Module::new(&Engine::default(), &text).unwrap();
        let is_called = body.contains("$callee");
        let function = u32::from(!is_called);
        let offset = offset_of(&module, function, |operator| matches!(operator, Operator::Nop));
        let kind = Kind::Generic(GenericFn::new(move |frame| {
            if is_called {
                let caller = frame.caller().unwrap().unwrap();
                caller.set_local(frame, 3, &numbered(5).into())
            } else {
                frame.set_local(3, &numbered(5).into())
            }?;
            Ok(())
        }));
        let location = Location { function, place: Place::Instruction { offset } };
        let probe = module.probe(ProbeSpec { location, kind }).unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<(u128, i32, u128), u128>(&mut store, "run").unwrap();
        let (x, mask) = (numbered(3), 0xff);
        assert_eq!(run.call(&mut store, (x, 3, mask)).unwrap(), 3 * (x & mask), "{body}");
        probe.activate().unwrap();
        let [low, high] = [0, 64].map(|shift| {
            let half = |value: u128| (value >> shift) as u64;
            let later = half(x & mask | numbered(5) & !mask);
            u128::from(half(x & mask).wrapping_add(later.wrapping_mul(2))) << shift
        });
        assert_eq!(run.call(&mut store, (x, 3, mask)).unwrap(), low | high, "{body}");
    }
}

/// A constant for the text format.
fn constant(bits: u128) -> String {
    format!("(v128.const i64x2 {} {})", bits as u64, (bits >> 64) as u64)
}
