//! Threads that run code while its probes are switched.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Kind, Probe, activate_all, deactivate_all};
use wasm_jit::{Instance, Module, Store};

use super::rewrite::Counted;
use super::{Outcome, call_main, engine, outcome, probes_everywhere, programs, reference};

pub(crate) const PROGRAM: &str = include_str!("hot.wat");

/// Sets the flag when it goes, also by a panic.
pub(crate) struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn run_until(module: &Module, expected: &Outcome, is_over: impl Fn(u32) -> bool) -> (Store<()>, Instance) {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    for run in 0.. {
        if is_over(run) {
            break;
        }
        assert_eq!(call_main(&mut store, &instance), *expected);
    }
    (store, instance)
}

/// Switches, makes and drops probes at random.
fn switch_at_random(probes: &mut [(usize, Probe)], make: impl Fn(usize) -> Probe, random: &mut SmallRng) {
    let chosen = random.random_range(0..probes.len());
    match random.random_range(0..100) {
        0 => deactivate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|off| off.unwrap()),
        1 => activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap()),
        2 => probes[chosen].1 = make(probes[chosen].0),
        3..52 => probes[chosen].1.activate().unwrap(),
        _ => probes[chosen].1.deactivate().unwrap(),
    }
}

/// Waits until a program has run once more, or has failed.
pub(crate) fn wait_for_a_run(runs: &AtomicU32, failed: &AtomicBool) {
    let before = runs.load(Ordering::Relaxed);
    while runs.load(Ordering::Relaxed) == before && !failed.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

pub(crate) fn counts_of(probes: &[(usize, Probe)]) -> Vec<u64> {
    probes.iter().map(|(_, probe)| probe.count()).collect()
}

/// Compares what probes have counted since `before` with the counts of their places, `times` times.
pub(crate) fn check_counts(
    probes: &[(usize, Probe)],
    before: &[u64],
    (places, counts): (&[Counted], &[u64]),
    times: u64,
) {
    for ((number, probe), before) in probes.iter().zip(before) {
        assert_eq!(probe.count() - before, times * counts[*number], "{:x?}", places[*number]);
    }
}

/// Four threads run the same functions, a fifth switches their probes at random. When it is quiet,
/// counts are exact; when all are off, nothing is counted.
#[test]
fn counts_are_exact_once_it_is_quiet() {
    const EXECUTORS: u64 = 4;
    const ROUNDS: usize = 20;
    const CHANGES: usize = 2_000;
    let engine = engine();
    let bytes = wat::parse_str(PROGRAM).unwrap();
    let (expected, counts, places) = reference(&engine, &bytes, 1);
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let mut probes = probes_everywhere(&module, &places, Kind::Count);
    let make = |number: usize| probes_everywhere(&module, &places[number..=number], Kind::Count).remove(0).1;
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..ROUNDS {
        let is_quiet = AtomicBool::new(false);
        let failed = AtomicBool::new(false);
        let runs = AtomicU32::new(0);
        let barrier = std::sync::Barrier::new(EXECUTORS as usize + 1);
        std::thread::scope(|scope| {
            for _ in 0..EXECUTORS {
                scope.spawn(|| {
                    let mut ends = Some(Ends(&failed));
                    let over = |_| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        is_quiet.load(Ordering::Acquire)
                    };
                    let (mut store, instance) = run_until(&module, &expected, over);
                    // Once with all on, once with all off.
                    for _ in 0..2 {
                        barrier.wait();
                        barrier.wait();
                        assert_eq!(call_main(&mut store, &instance), expected);
                        barrier.wait();
                    }
                    std::mem::forget(ends.take());
                });
            }
            for _ in 0..CHANGES {
                switch_at_random(&mut probes, make, &mut random);
                if random.random_range(0..64) == 0 {
                    wait_for_a_run(&runs, &failed);
                }
            }
            is_quiet.store(true, Ordering::Release);
            assert!(!failed.load(Ordering::Acquire), "an executor has failed");
            barrier.wait();
            activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
            let before = counts_of(&probes);
            barrier.wait();
            barrier.wait();
            check_counts(&probes, &before, (&places, &counts), EXECUTORS);
            barrier.wait();
            for (_, probe) in &probes {
                probe.deactivate().unwrap();
            }
            let before = counts_of(&probes);
            barrier.wait();
            barrier.wait();
            check_counts(&probes, &before, (&places, &counts), 0);
        });
    }
}

/// Random programs give what they should, whatever is switched meanwhile.
#[test]
fn random_programs_are_not_disturbed() {
    let engine = engine();
    let mut changes = 0;
    for seed in 0..40 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let (expected, _, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        assert_eq!(outcome(&module).0, expected);
        let mut probes = probes_everywhere(&module, &places, Kind::Count);
        let make =
            |number: usize| probes_everywhere(&module, &places[number..=number], Kind::Count).remove(0).1;
        let mut random = SmallRng::seed_from_u64(seed);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ends = Ends(&is_over);
                run_until(&module, &expected, |run| run == 100);
            });
            while !is_over.load(Ordering::Acquire) {
                switch_at_random(&mut probes, make, &mut random);
                changes += 1;
            }
        });
    }
    println!("{changes} changes");
    assert!(changes > 1000, "{changes}");
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    counts_are_exact_once_it_is_quiet();
    random_programs_are_not_disturbed();
}
