//! Functions that were compiled with places for probes (`Config::probe_sites`): jumps of the
//! program that are sites, and instructions that share one.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec, activate_all};
use wasm_jit::{Config, Engine, Instance, Module, ProbeSites, Store};

use super::{call_main, location, outcome, programs, reference};

fn engine() -> Engine {
    let mut config = Config::new();
    Engine::new(config.probe_sites(ProbeSites::Branches).counter_stubs(u32::MAX)).unwrap()
}

/// How many versions were compiled for probes.
fn versions(module: &Module) -> usize {
    let mut map = Vec::new();
    module.write_perf_map(&mut map).unwrap();
    String::from_utf8(map).unwrap().matches(" [probed]\n").count()
}

/// Probes at the control instructions of the first function, with their names, as far as they can
/// be reached.
fn at_control_instructions(module: &Module) -> (Vec<String>, Vec<Probe>) {
    let body = module.function(0).unwrap().body().unwrap();
    let instructions = body.instructions().filter(|it| it.is_control());
    let (mut names, mut probes) = (Vec::new(), Vec::new());
    for instruction in instructions {
        let offset = (instruction.offset() - body.range().start) as u32;
        let location = Location { function: 0, place: Place::Instruction { offset } };
        if let Ok(probe) = module.probe(ProbeSpec { location, kind: Kind::Count }) {
            let name = format!("{:?}", instruction.operator());
            names.push(name.split(' ').next().unwrap().to_owned());
            probes.push(probe);
        }
    }
    (names, probes)
}

/// Random probes at entries and control instructions of random programs are switched at random
/// between runs: each counts what happens while it is on, whichever others are on.
#[test]
fn each_counts_for_itself_whoever_shares_its_site() {
    let mut counted = 0;
    for seed in 0..60 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let engine = engine();
        let (expected, reference, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let in_originals: Vec<(usize, ProbeSpec)> = (0..places.len())
            .map(|number| (number, location(&module, places[number])))
            .filter(|(_, location)| {
                let Place::Instruction { offset } = location.place else { return true };
                let body = module.function(location.function).unwrap().body().unwrap();
                let at = body.range().start + offset as usize;
                body.instructions().any(|it| it.offset() == at && it.is_control())
            })
            .map(|(number, location)| (number, ProbeSpec { location, kind: Kind::Count }))
            .collect();
        let specs: Vec<ProbeSpec> = in_originals.iter().map(|(_, spec)| spec.clone()).collect();
        let made = module.probes(&specs);
        let probes: Vec<(u64, Probe)> = std::iter::zip(&in_originals, made)
            .filter_map(|((number, _), probe)| Some((reference[*number], probe.ok()?)))
            .collect();
        assert_eq!(versions(&module), 0, "seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let mut is_on = vec![false; probes.len()];
        let mut counts = vec![0; probes.len()];
        for run in 0..12 {
            for (number, (_, probe)) in probes.iter().enumerate() {
                let on = match run {
                    0 | 11 => false,
                    1 | 10 => true,
                    _ => random.random(),
                };
                if on != is_on[number] {
                    if on {
                        probe.activate().unwrap()
                    } else {
                        probe.deactivate().unwrap()
                    }
                    is_on[number] = on;
                }
            }
            assert_eq!(outcome(&module).0, expected, "seed {seed}, run {run}");
            for (number, (each, probe)) in probes.iter().enumerate() {
                counts[number] += if is_on[number] { *each } else { 0 };
                assert_eq!(probe.count(), counts[number], "seed {seed}, run {run}, probe {number}");
                counted += each;
            }
        }
    }
    assert!(counted > 100_000, "{counted}");
}

/// A load that the next instruction does may trap: then that instruction was not executed, however
/// many share the site in front of it.
#[test]
fn an_instruction_after_a_load_that_traps_is_not_counted() {
    let check = |first: u32, second: u32, expected: &[(&str, u64)]| {
        let text = format!(
            r#"(module (memory (export "memory") 1)
                (func (export "main") (result i64)
                    (block (block (br_if 0 (i32.load offset={first} (i32.const 0)))
                        (if (i32.load offset={second} (i32.const 0)) (then (br 0)))))
                    (i64.const 7)))"#
        );
        let engine = engine();
        let module = Module::new(&engine, text).unwrap();
        let (names, probes) = at_control_instructions(&module);
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        assert_eq!(versions(&module), 0);
        assert!(outcome(&module).0.0.is_err());
        let counts = names.iter().map(String::as_str).zip(probes.iter().map(Probe::count));
        let executed: Vec<(&str, u64)> = counts.filter(|(_, count)| *count > 0).collect();
        assert_eq!(executed, expected);
    };
    check(4, 65_533, &[("Block", 1), ("Block", 1), ("BrIf", 1)]);
    check(65_533, 4, &[("Block", 1), ("Block", 1)]);
}

/// Calls that run see counters of jumps come and go.
#[test]
fn jumps_are_switched_while_their_loop_runs() {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "main") (result i64) (local $n i64)
            (loop $again
                (block (br_if 0 (i64.eqz (i64.rem_u (local.get $n) (i64.const 3))))
                    (if (i64.lt_u (i64.and (local.get $n) (i64.const 7)) (i64.const 4)) (then (br 1))))
                (local.set $n (i64.add (local.get $n) (i64.const 1)))
                (br_if $again (i64.ne (local.get $n) (i64.const 60000))))
            (local.get $n)))"#;
    let engine = engine();
    let module = Module::new(&engine, text).unwrap();
    let (_, probes) = at_control_instructions(&module);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(1);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let probe = &probes[random.random_range(0..probes.len())];
                if random.random() { probe.activate().unwrap() } else { probe.deactivate().unwrap() }
            }
        });
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        for _ in 0..300 {
            assert_eq!(call_main(&mut store, &instance).0, Ok(60_000));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    let before: Vec<u64> = probes.iter().map(Probe::count).collect();
    assert_eq!(outcome(&module).0.0, Ok(60_000));
    let counts: Vec<u64> = probes.iter().zip(before).map(|(probe, before)| probe.count() - before).collect();
    // loop, block, br_if, if, br, end of block, br_if, end of loop, end of the function
    assert_eq!(counts, [60_000, 60_000, 60_000, 40_000, 20_000, 20_000, 60_000, 1, 1]);
    assert_eq!(versions(&module), 0);
}
