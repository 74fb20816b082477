//! Frames that wait for a call while probes are switched on: every instruction that they execute
//! after it has returned fires.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all,
};
use wasm_jit::{Engine, Linker, Module, Store};

use super::{engine, programs, seeds};

/// A random program that calls the host at the start of its last function.
fn program(seed: u64) -> Vec<u8> {
    let text =
        programs::program(seed).replacen("(module ", "(module (import \"host\" \"act\" (func $act)) ", 1);
    let last = text.find("(func $f3").expect("a last function");
    let body = last + text[last..].find('\n').expect("a line of its own");
    wat::parse_str(format!("{}\n(call $act){}", &text[..body], &text[body..])).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeKind {
    Callback,
    Generic,
    Count,
}

/// Numbers of the instructions that fire in a run, in order, or as often as they are counted; and
/// how many had fired when the host was called each time. The probes are switched on in the host's
/// call of this number; before the run, if there is none.
fn fired(
    engine: &Engine,
    bytes: &[u8],
    switched: Option<usize>,
    what: ProbeKind,
) -> (Vec<usize>, Vec<usize>) {
    let module = Module::from_binary(engine, bytes).unwrap();
    let fired: Arc<Mutex<Vec<usize>>> = Arc::default();
    let bodies = module.functions().filter_map(|function| Some((function.index(), function.body()?)));
    let places = bodies.flat_map(|(function, body)| {
        let start = body.range().start;
        body.instructions().map(move |instruction| Location {
            function,
            place: Place::Instruction { offset: (instruction.offset() - start) as u32 },
        })
    });
    let spec = |(number, location)| {
        let by_probe = fired.clone();
        let kind = match what {
            ProbeKind::Count => Kind::Count,
            ProbeKind::Generic => Kind::Generic(GenericFn::new(move |_| {
                by_probe.lock().unwrap().push(number);
                Ok(())
            })),
            ProbeKind::Callback => Kind::Callback {
                function: Callback::new(move |values| by_probe.lock().unwrap().push(values[0] as usize)),
                values: [Bound::Const(number as u64)].into(),
            },
        };
        ProbeSpec { location, kind }
    };
    let specs: Vec<ProbeSpec> = places.enumerate().map(spec).collect();
    let made = module.probes(&specs).into_iter().enumerate();
    let reached = made.filter(|(_, probe)| !matches!(probe, Err(ProbeError::Unreachable { .. })));
    let (numbers, probes): (Vec<usize>, Vec<Probe>) =
        reached.map(|(number, probe)| (number, probe.unwrap())).unzip();
    let probes = Arc::new(probes);
    let of_host = probes.clone();
    let switch_on = move || activate_all(&*of_host).into_iter().for_each(|on| on.unwrap());
    if switched.is_none() {
        switch_on();
    }
    let calls: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut linker = Linker::new(engine);
    let (by_host, calls_of_host) = (fired.clone(), calls.clone());
    let act = move || {
        let mut calls = calls_of_host.lock().unwrap();
        if switched == Some(calls.len()) {
            switch_on();
        }
        calls.push(by_host.lock().unwrap().len());
    };
    linker.func_wrap("host", "act", act).unwrap();
    let mut store = Store::new(engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    // It may trap.
    let _ = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap().call(&mut store, ());
    let mut fired = std::mem::take(&mut *fired.lock().unwrap());
    if what == ProbeKind::Count {
        let counted = numbers.iter().zip(&*probes);
        fired = counted.flat_map(|(number, probe)| vec![*number; probe.count() as usize]).collect();
    }
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    (fired, calls)
}

/// Calls the host in callees of all kinds of calls, from frames that catch, end by tail calls,
/// branch behind calls to where these return, or have the same code at several places.
const WRITTEN: &str = r#"(module
    (import "host" "act" (func $act))
    (type $unary (func (param i32) (result i32)))
    (table funcref (elem $id $thrower $tail))
    (tag $e (param i32))
    (global $g (mut i32) (i32.const 1))
    (func $id (type $unary) (call $act) (local.get 0))
    (func $none (call $act))
    (func $pair (param i32) (result i32 i64) (call $act) (local.get 0) (i64.const 7))
    (func $thrower (type $unary) (call $act) (throw $e (local.get 0)))
    (func $tail (type $unary)
        (drop (call $id (i32.const 1)))
        (return_call_indirect (type $unary) (local.get 0) (i32.const 0)))
    (func $catches (type $unary)
        (block $handler (result i32)
            (try_table (result i32) (catch $e $handler)
                (call_indirect (type $unary) (local.get 0) (i32.const 1)))
            (drop) (i32.const 5))
        (i32.add (call $id (i32.const 2))))
    (func $repeats (type $unary) (local $count i32)
        (loop $again
            (local.set $count (i32.add (local.get $count) (i32.const 1)))
            (call $none)
            (if (i32.lt_u (local.get $count) (i32.const 3))
                (then (try_table (catch_all $again) (drop (call $thrower (local.get 0)))))))
        (local.get $count))
    (func $branches (type $unary)
        (block $a (br_if $a (i32.and (local.get 0) (i32.const 1))) (call $none))
        (if (i32.and (local.get 0) (i32.const 2)) (then (call $none)))
        (if (i32.and (local.get 0) (i32.const 4)) (then (call $none)) (else (nop) (call $none)))
        (block $b (block $c (br_table $b $c $b (local.get 0))) (call $none))
        (call $none)
        (loop $again (br_if $again (i32.eqz (global.get $g))))
        (call $none)
        (block (loop (call $none)))
        (if (i32.eq (local.get 0) (i32.const 6)) (then (return (i32.const 1))))
        (call $id (local.get 0)))
    (func $early (param i32)
        (if (local.get 0) (then (return)))
        (call $none))
    (func (export "main") (result i64) (local $i i32)
        (loop $again
            (drop (call $branches (local.get $i)))
            (call $early (i32.and (local.get $i) (i32.const 1)))
            (br_if $again (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 8))))
        (drop (call $catches (i32.const 3)))
        (drop (call $repeats (i32.const 4)))
        (drop (i32.add (call_indirect (type $unary) (i32.const 9) (i32.const 2)) (i32.const 3)))
        (call $pair (i32.const 1)) (i64.const 2) (i64.add) (local.set $i (i32.wrap_i64)) (drop)
        (i64.const 1)))"#;

/// Compares what fires after probes were switched on in some calls of the host with what fires in a
/// run with all probes. Returns how much that was.
fn compare(engine: &Engine, bytes: &[u8], numbers: impl Fn(usize) -> Vec<usize>, about: &str) -> usize {
    let (all, calls) = fired(engine, bytes, None, ProbeKind::Callback);
    let mut compared = 0;
    for number in numbers(calls.len()) {
        for what in [ProbeKind::Callback, ProbeKind::Generic, ProbeKind::Count] {
            let (found, _) = fired(engine, bytes, Some(number), what);
            let mut expected = all[calls[number]..].to_vec();
            if what == ProbeKind::Count {
                expected.sort_unstable();
            }
            let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert!(
                found.len() == expected.len() && differs.is_none(),
                "{about}, call {number}, {what:?}: {} of {} fired, different from {differs:?} on",
                found.len(),
                expected.len(),
            );
            compared += expected.len();
        }
    }
    compared
}

#[test]
fn frames_that_wait_go_on_with_probes_whatever_follows() {
    let bytes = wat::parse_str(WRITTEN).unwrap();
    assert!(compare(&engine(), &bytes, |calls| (0..calls).collect(), "written") > 10_000);
}

#[test]
fn frames_that_wait_meet_the_probes_of_all_instructions_behind() {
    let engine = engine();
    let mut compared = 0;
    for seed in seeds().step_by(4) {
        let bytes = program(seed);
        // The first call, and some in which other frames wait.
        let some = |calls: usize| (0..calls.min(40)).step_by(13).collect();
        compared += compare(&engine, &bytes, some, &format!("seed {seed}"));
    }
    assert!(compared > 10_000, "{compared}");
}

pub(crate) fn test_all() {
    frames_that_wait_go_on_with_probes_whatever_follows();
    frames_that_wait_meet_the_probes_of_all_instructions_behind();
}
