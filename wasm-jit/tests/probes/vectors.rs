//! Vectors at probes: registers keep all of their bits, generic probes read and write them, and
//! functions, which take values of 64 bits, do not get them.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, Place, ProbeError, ProbeSpec, ValueError,
};
use wasm_jit::{Engine, Instance, Module, Store};
use wasmparser::Operator;

use crate::frames::offset_of;

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
fn functions_of_probes_get_no_vectors() {
    let module = Module::new(&Engine::default(), TEXT).unwrap();
    for value in [Bound::Operand(0), Bound::Local(0)] {
        let kind = Kind::Callback { function: Callback::new(|_| ()), values: [value].into() };
        let error = module.probe(at_add(&module, kind)).and_then(|probe| probe.activate().map(|()| probe));
        let error = error.unwrap_err();
        assert!(matches!(error, ProbeError::Value { reason: ValueError::Vector, .. }), "{error}");
    }
}
