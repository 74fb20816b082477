//! Fuel: what random programs consume, against counts of a rewritten module; and that probes
//! change nothing about it.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{FuelThreshold, GenericFn, Kind, Location, activate_all, deactivate_all};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Instance, Module, Store, Trap};

use super::rewrite::Counted;
use super::{Outcome, call_main, config, engine, probes_everywhere, programs, reference, seeds};

/// What the instructions of a module cost that were executed so often.
fn cost_of(module: &Module, counts: &[u64], places: &[Counted]) -> u64 {
    let is_free = |(function, at): Counted| {
        let Some(at) = at else { return false };
        let function = module.function(function).unwrap();
        let body = function.body().unwrap();
        let found = body.instructions().find(|instruction| instruction.offset() == at as usize).unwrap();
        // Of those that the programs contain.
        matches!(
            found.operator(),
            Operator::Nop
                | Operator::Drop
                | Operator::Block { .. }
                | Operator::Loop { .. }
                | Operator::Else
                | Operator::End
                | Operator::Return
                | Operator::Unreachable
        )
    };
    let costly = places.iter().zip(counts).filter(|(place, _)| !is_free(**place));
    costly.map(|(_, count)| count).sum()
}

/// The outcome of a run with so much fuel, whether it was not enough, and how much it consumed.
fn run(module: &Module, fuel: u64) -> (Outcome, bool, u64) {
    let mut store = Store::new(module.engine(), ());
    store.set_fuel(fuel).unwrap();
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let outcome = call_main(&mut store, &instance);
    let is_out = outcome.0.as_ref().is_err_and(|reason| *reason == Trap::OutOfFuel.to_string());
    (outcome, is_out, fuel - store.get_fuel().unwrap())
}

#[test]
fn random_programs_consume_what_their_instructions_cost_with_any_probes() {
    const PLENTY: u64 = 1 << 40;
    let mut consumed_in_all = 0;
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let (outcome, counts, places) = reference(&engine(), &bytes, 1);
        let module = Module::from_binary(&Engine::new(config().consume_fuel(true)).unwrap(), &bytes).unwrap();
        let expected = cost_of(&module, &counts, &places);
        let (found, _, consumed) = run(&module, PLENTY);
        assert_eq!(found, outcome, "seed {seed}");
        assert!(outcome.0.is_ok(), "seed {seed}: {outcome:?}");
        assert_eq!(consumed, expected, "seed {seed}");
        consumed_in_all += consumed;
        let amounts = [PLENTY, consumed, consumed - 1, consumed / 2, consumed / 3, 0];
        let usual = amounts.map(|fuel| run(&module, fuel));
        assert_eq!(usual.each_ref().map(|(_, is_out, _)| *is_out), [false, false, true, true, true, true]);

        for kind in [Kind::Count, Kind::Generic(GenericFn::new(|_| Ok(()))), Kind::Empty] {
            let probes: Vec<_> =
                probes_everywhere(&module, &places, kind).into_iter().map(|(_, probe)| probe).collect();
            activate_all(&probes).into_iter().for_each(|on| on.unwrap());
            let with_probes = amounts.map(|fuel| run(&module, fuel));
            assert_eq!(with_probes, usual, "seed {seed}");
            deactivate_all(&probes).into_iter().for_each(|off| off.unwrap());
            assert_eq!(run(&module, PLENTY), usual[0], "seed {seed}");
        }
    }
    assert!(consumed_in_all > 50_000, "{consumed_in_all}");
}

/// The places that probes are called at, each with the fuel that is left.
type Called = Arc<Mutex<Vec<(Location, u64)>>>;

fn logs(called: &Called, threshold: Option<&Arc<FuelThreshold>>) -> Kind {
    let called = called.clone();
    let log = move |frame: &mut wasm_jit::probes::Frame<'_>| {
        called.lock().unwrap().push((frame.location(), frame.fuel()?));
        Ok(())
    };
    Kind::Generic(match threshold {
        Some(threshold) => GenericFn::below_fuel(threshold.clone(), log),
        None => GenericFn::new(log),
    })
}

#[test]
fn closures_with_a_threshold_are_called_from_that_fuel_on() {
    const PLENTY: u64 = 1 << 40;
    let mut passed_in_all = 0;
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let (_, _, places) = reference(&engine(), &bytes, 1);
        let module = Module::from_binary(&Engine::new(config().consume_fuel(true)).unwrap(), &bytes).unwrap();
        let expected = run(&module, PLENTY);
        let (all, some) = (Called::default(), Called::default());
        let threshold = Arc::new(FuelThreshold::default());
        // Each place has one without a threshold before it, and a counter after it.
        let kinds = [logs(&all, None), logs(&some, Some(&threshold)), Kind::Count];
        let probes = kinds.map(|kind| probes_everywhere(&module, &places, kind));
        for probe in probes.iter().flatten() {
            probe.1.activate().unwrap();
        }
        let mut counted = 0;
        let mut check = |given: u64, fuel: Option<u64>| {
            fuel.iter().for_each(|fuel| threshold.set(*fuel));
            assert_eq!(run(&module, given), expected, "seed {seed}");
            let (mut all, some) = (all.lock().unwrap(), some.lock().unwrap().split_off(0));
            let counts: u64 = probes[2].iter().map(|(_, probe)| probe.count()).sum();
            assert_eq!(counts - counted, all.len() as u64, "seed {seed}");
            counted = counts;
            let before = all.len();
            all.retain(|(_, left)| fuel.is_none_or(|fuel| *left <= fuel));
            assert_eq!(some, *all, "seed {seed}, {fuel:?}");
            passed_in_all += before - all.len();
            all.clear();
        };
        check(PLENTY, None);
        let left = PLENTY - expected.2;
        for fuel in [left, PLENTY - expected.2 / 2, PLENTY - 1, u64::MAX, 0] {
            check(PLENTY, Some(fuel));
        }
        // The largest amount that code counts.
        check(i64::MAX as u64, Some(i64::MAX as u64 - expected.2 / 2));
    }
    assert!(passed_in_all > 10_000, "{passed_in_all}");
}

pub(crate) fn test_all() {
    random_programs_consume_what_their_instructions_cost_with_any_probes();
    closures_with_a_threshold_are_called_from_that_fuel_on();
}
