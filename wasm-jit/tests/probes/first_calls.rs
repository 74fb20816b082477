//! Closures that are called when functions are called for the first time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use wasm_jit::Module;
use wasm_jit::probes::{Callback, FirstCallWatch, Kind, Place, Probe, ProbeError, ProbeSpec, activate_all};

use super::threads::{Ends, PROGRAM};
use super::{engine, location, outcome, programs, reference, rewrite, seeds};

/// Probes by function, made when it is first called.
type Made = Arc<Mutex<BTreeMap<u32, Vec<Probe>>>>;

/// Counts all of these places in functions that are called.
fn count_in_called(module: &Module, places: &[rewrite::Counted]) -> (FirstCallWatch, Made) {
    let made = Made::default();
    let mut specs: BTreeMap<u32, Vec<ProbeSpec>> = BTreeMap::new();
    for place in places {
        let spec = ProbeSpec { location: location(module, *place), kind: Kind::Count };
        specs.entry(place.0).or_default().push(spec);
    }
    let (of_watch, of_closure) = (made.clone(), module.clone());
    let watch = module.watch_first_calls(move |function| {
        let probes = of_closure.probes(&specs[&function]).into_iter();
        let probes: Vec<Probe> = probes
            .filter(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. })))
            .map(Result::unwrap)
            .collect();
        activate_all(&probes).into_iter().for_each(Result::unwrap);
        assert!(
            of_watch.lock().unwrap().insert(function, probes).is_none(),
            "function {function} came twice"
        );
    });
    (watch.unwrap(), made)
}

#[test]
fn probes_of_first_calls_observe_them() {
    let mut total = 0;
    for seed in seeds() {
        let engine = engine();
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let (watch, made) = count_in_called(&module, &places);
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        let made = made.lock().unwrap();
        for (place, count) in places.iter().zip(&counts) {
            let Some(probes) = made.get(&place.0) else {
                assert_eq!(*count, 0, "seed {seed} {place:x?}: not called");
                continue;
            };
            let location = location(&module, *place);
            let probe = probes.iter().find(|probe| probe.spec().location == location);
            assert_eq!(probe.map_or(0, Probe::count), *count, "seed {seed} {place:x?}");
            total += count;
        }
        let entered = |function: u32| {
            places.iter().zip(&counts).any(|(place, count)| *place == (function, None) && *count > 0)
        };
        assert!(made.keys().all(|function| entered(*function)), "seed {seed}: only those that are called");
        drop(watch);
    }
    assert!(total > 10_000, "{total}");
}

/// A function that calls itself while another version becomes the current one, or while its first
/// call is watched: its own calls, which go straight to the version that they are made from, lead
/// to where others lead. The frame that makes them comes to no point at which it could move before.
#[test]
fn calls_of_a_function_to_itself_lead_to_its_current_version() {
    let text = "(module (memory (export \"memory\") 1)
        (func $f (param i32) (result i32)
            (if (result i32) (local.get 0)
                (then (i32.add (i32.const 1) (call $f (i32.sub (local.get 0) (i32.const 1)))))
                (else (i32.const 0))))
        (func (export \"main\") (result i64) (i64.extend_i32_u (call $f (i32.const 9)))))";
    let engine = engine();
    let module = Module::new(&engine, text).unwrap();
    let watched = Arc::new(AtomicU32::new(0));
    let entered = AtomicU32::new(0);
    let later: Arc<Mutex<(Vec<Probe>, Vec<FirstCallWatch>)>> = Arc::default();
    let (of_closure, of_watch, made) = (module.clone(), watched.clone(), later.clone());
    let at_entry =
        |kind| ProbeSpec { location: wasm_jit::probes::Location { function: 0, place: Place::Entry }, kind };
    let closure = Callback::new(move |_| {
        let (probes, watches) = &mut *made.lock().unwrap();
        match entered.fetch_add(1, Ordering::Relaxed) {
            // Its count needs another version, or a site in this one, which is not there yet.
            3 => {
                let probe = of_closure.probe(at_entry(Kind::Count)).unwrap();
                probe.activate().unwrap();
                probes.push(probe);
            }
            6 => {
                let watched = of_watch.clone();
                let watch = of_closure.watch_first_calls(move |function| {
                    assert_eq!(function, 0);
                    watched.fetch_add(1, Ordering::Relaxed);
                });
                watches.push(watch.unwrap());
            }
            _ => {}
        }
    });
    let probe = module.probe(at_entry(Kind::Callback { function: closure, values: [].into() })).unwrap();
    probe.activate().unwrap();
    let (outcome, _store, _instance) = outcome(&module);
    assert_eq!(outcome.0, Ok(9));
    let later = later.lock().unwrap();
    assert_eq!((later.0[0].count(), watched.load(Ordering::Relaxed)), (6, 1));
}

/// A watch that ends leaves nothing behind, and one that begins later finds what was probed.
#[test]
fn watches_begin_and_end() {
    let engine = engine();
    let module = Module::new(
        &engine,
        "(module (memory (export \"memory\") 1) (func (export \"main\") (result i64) (call 1) (i64.const 0)) (func))",
    );
    let module = module.unwrap();
    let called = Arc::new(Mutex::new(Vec::new()));
    let watch = || {
        let of_watch = called.clone();
        module.watch_first_calls(move |function| of_watch.lock().unwrap().push(function)).unwrap()
    };
    let take = || std::mem::take(&mut *called.lock().unwrap());
    drop(watch());
    assert!(!module.has_instances());
    let run = outcome(&module);
    run.0.0.clone().unwrap();
    assert!(module.has_instances());
    drop(run);
    assert!(!module.has_instances());
    assert_eq!(take(), [], "it has ended");
    let both = (watch(), watch());
    outcome(&module).0.0.unwrap();
    assert_eq!(take(), [0, 0, 1, 1]);
    outcome(&module).0.0.unwrap();
    assert_eq!(take(), [], "they have been called");
    drop(both);
    let location = super::Location { function: 1, place: Place::Entry };
    let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
    probe.activate().unwrap();
    let watch = watch();
    assert_eq!(take(), [], "one that is probed waits, too");
    outcome(&module).0.0.unwrap();
    assert_eq!(take(), [0, 1]);
    outcome(&module).0.0.unwrap();
    assert_eq!(take(), []);
    drop(watch);
    outcome(&module).0.0.unwrap();
    assert_eq!(probe.count(), 3);
}

/// A closure may make probes in other functions, whether these have been called or not.
#[test]
fn closures_may_probe_other_functions() {
    let text = "(module (memory (export \"memory\") 1) (func (export \"main\") (result i64) (call 1) (call 2) (call 1) (i64.const 0)) (func) (func))";
    let module = Module::new(&engine(), text).unwrap();
    let (order, probes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (of_watch, made, of_closure) = (order.clone(), probes.clone(), module.clone());
    let _watch = module
        .watch_first_calls(move |function| {
            of_watch.lock().unwrap().push(function);
            if function == 0 {
                let location = super::Location { function: 2, place: Place::Entry };
                let probe = of_closure.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
                probe.activate().unwrap();
                made.lock().unwrap().push(probe);
            }
        })
        .unwrap();
    outcome(&module).0.0.unwrap();
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    assert_eq!(probes.lock().unwrap()[0].count(), 1);
}

/// Threads call functions for the first time at the same time: each function is reported once, and
/// nobody executes it before its probes are on.
#[test]
fn threads_wait_for_the_probes_of_first_calls() {
    let rounds = seeds().end as u32;
    for _ in 0..rounds {
        let engine = engine();
        let bytes = wat::parse_str(PROGRAM).unwrap();
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let (_watch, made) = count_in_called(&module, &places);
        let (is_over, runs) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let _ends = Ends(&is_over);
                    assert_eq!(outcome(&module).0, expected);
                    runs.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let (runs, made) = (u64::from(runs.into_inner()), made.lock().unwrap());
        for (place, count) in places.iter().zip(&counts) {
            let location = location(&module, *place);
            let probes = made.get(&place.0).into_iter().flatten();
            let found =
                probes.filter(|probe| probe.spec().location == location).map(Probe::count).sum::<u64>();
            assert_eq!(found, runs * count, "{place:x?}");
        }
    }
}

/// A global probe fires before a probe that was activated later, also if that is made by a watch
/// that is older; and if the watch has activated both.
#[test]
fn global_probes_keep_their_order() {
    for by_watch in [false, true] {
        let text =
            "(module (memory (export \"memory\") 1) (func (export \"main\") (result i64) (i64.const 0)))";
        let module = Module::new(&engine(), text).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let logging = |name: &'static str| {
            let log = log.clone();
            let function = Callback::new(move |_| log.lock().unwrap().push(name));
            Kind::Callback { function, values: [].into() }
        };
        let global = Arc::new(module.global_probe(logging("global")).unwrap());
        let place = Place::Instruction { offset: 1 };
        let own = ProbeSpec { location: super::Location { function: 0, place }, kind: logging("own") };
        let made = Arc::new(Mutex::new(Vec::new()));
        let (of_watch, of_closure, by_closure) = (module.clone(), made.clone(), global.clone());
        let _watch = module
            .watch_first_calls(move |_| {
                if by_watch {
                    by_closure.activate().unwrap();
                }
                let own = of_watch.probe(own.clone()).unwrap();
                own.activate().unwrap();
                of_closure.lock().unwrap().push(own);
            })
            .unwrap();
        if !by_watch {
            global.activate().unwrap();
        }
        outcome(&module).0.0.unwrap();
        assert_eq!(*log.lock().unwrap(), ["global", "own", "global"], "by the watch: {by_watch}");
        assert_eq!(global.refused().len(), 0);
        made.lock().unwrap().clear();
    }
}

/// A closure runs the function whose first call it precedes, in another store: before it has made
/// probes there, and afterwards.
#[test]
fn closures_may_call_the_function() {
    let text = "(module (memory (export \"memory\") 1) (func (export \"main\") (result i64) (i64.const 7)))";
    let module = Module::new(&engine(), text).unwrap();
    let made = Arc::new(Mutex::new(Vec::new()));
    let (of_watch, of_closure) = (module.clone(), made.clone());
    let run = |module: &Module| assert_eq!(outcome(module).0.0.unwrap(), 7);
    let _watch = module
        .watch_first_calls(move |_| {
            run(&of_watch);
            let body = of_watch.function(0).unwrap().body().unwrap();
            let all = body.instructions().map(|at| (at.offset() - body.range().start) as u32);
            let spec = |offset| ProbeSpec {
                location: super::Location { function: 0, place: Place::Instruction { offset } },
                kind: Kind::Count,
            };
            let probes: Vec<Probe> = all.map(|offset| of_watch.probe(spec(offset)).unwrap()).collect();
            activate_all(&probes).into_iter().for_each(Result::unwrap);
            run(&of_watch);
            of_closure.lock().unwrap().extend(probes);
        })
        .unwrap();
    run(&module);
    let counts: Vec<u64> = made.lock().unwrap().drain(..).map(|probe: Probe| probe.count()).collect();
    assert_eq!(counts, [2, 2], "one call by the closure, and the one before which it was called");
}

pub(crate) fn test_all() {
    closures_may_call_the_function();
    global_probes_keep_their_order();
    probes_of_first_calls_observe_them();
    watches_begin_and_end();
    calls_of_a_function_to_itself_lead_to_its_current_version();
    closures_may_probe_other_functions();
    threads_wait_for_the_probes_of_first_calls();
}
