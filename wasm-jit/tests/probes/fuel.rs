//! Fuel: what random programs consume, against counts of a rewritten module; and that probes
//! change nothing about it.

use wasm_jit::probes::{GenericFn, Kind, activate_all, deactivate_all};
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
    (outcome, is_out, fuel - store.fuel().unwrap())
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

pub(crate) fn test_all() {
    random_programs_consume_what_their_instructions_cost_with_any_probes();
}
