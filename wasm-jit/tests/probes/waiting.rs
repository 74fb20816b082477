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

#[test]
fn frames_that_wait_meet_the_probes_of_all_instructions_behind() {
    let engine = engine();
    let mut compared = 0;
    for seed in seeds().step_by(4) {
        let bytes = program(seed);
        let (all, calls) = fired(&engine, &bytes, None, ProbeKind::Callback);
        // The first call, and some in which other frames wait.
        for number in (0..calls.len().min(40)).step_by(13) {
            for what in [ProbeKind::Callback, ProbeKind::Generic, ProbeKind::Count] {
                let (found, _) = fired(&engine, &bytes, Some(number), what);
                let mut expected = all[calls[number]..].to_vec();
                if what == ProbeKind::Count {
                    expected.sort_unstable();
                }
                let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                assert!(
                    found.len() == expected.len() && differs.is_none(),
                    "seed {seed}, call {number}, {what:?}: {} of {} fired, different from {differs:?} on",
                    found.len(),
                    expected.len(),
                );
                compared += expected.len();
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

pub(crate) fn test_all() {
    frames_that_wait_meet_the_probes_of_all_instructions_behind();
}
