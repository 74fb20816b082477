//! Probes, against a reference that counts by itself, and under threads that switch them while
//! others run the code.

mod accessors;
mod actions;
mod behaviour;
mod callbacks;
mod calls;
mod counting;
mod exits;
mod first_calls;
mod frames;
mod fuel;
mod global;
mod global_kinds;
mod inlined;
mod instances;
mod items;
mod limits;
mod lists;
mod native;
mod originals;
mod plain;
#[path = "../frame_maps/programs.rs"]
mod programs;
mod reclaim;
mod records;
mod rewrite;
mod shortcuts;
mod tail_calls;
mod threads;
mod trapped;
mod values;
mod vector_writes;
mod vectors;
mod waiting;
mod wasm;

use std::cell::Cell;

use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all};
use wasm_jit::{Config, Engine, Instance, Module, ProbeSites, Store, Val};

thread_local! {
    static SITES: Cell<ProbeSites> = const { Cell::new(ProbeSites::None) };
    static COUNTER_STUBS: Cell<Option<u32>> = const { Cell::new(None) };
    static LAZY: Cell<bool> = const { Cell::new(false) };
}

/// An engine whose functions have the places for probes that this thread has chosen.
fn engine() -> Engine {
    Engine::new(&config()).unwrap()
}

fn config() -> Config {
    let mut config = Config::new();
    config.probe_sites(SITES.get()).lazy_compilation(LAZY.get());
    if let Some(limit) = COUNTER_STUBS.get() {
        config.counter_stubs(limit);
    }
    config
}

/// Whether the tests run in their long form.
fn is_long() -> bool {
    std::env::var_os("LONG_TESTS").is_some()
}

/// The random programs of a test: fewer when it runs again with other settings, and more in the
/// long form.
fn seeds() -> std::ops::Range<u64> {
    let has_usual_settings = SITES.get() == ProbeSites::None && COUNTER_STUBS.get().is_none() && !LAZY.get();
    0..match (has_usual_settings, is_long()) {
        (true, true) => 500,
        (true, false) => 40,
        (false, true) => 150,
        (false, false) => 12,
    }
}

/// All tests again, with sites in the originals of functions. Without sites, the number of stubs
/// with counters is what differs, and the longer ones of the tests that have no counters are left
/// out.
fn test_all_with(sites: ProbeSites, counter_stubs: Option<u32>) {
    SITES.set(sites);
    COUNTER_STUBS.set(counter_stubs);
    every_instruction_of_random_programs_is_counted_exactly();
    every_shape_of_block_is_counted_as_the_specification_executes_it();
    accessors::test_all();
    actions::test_all();
    behaviour::test_all();
    callbacks::test_all();
    calls::test_all();
    counting::test_all();
    exits::test_all();
    fuel::test_all();
    first_calls::test_all();
    global::test_all();
    global_kinds::test_all();
    frames::test_all();
    inlined::test_all();
    instances::test_all();
    items::test_all();
    lists::test_all();
    native::test_with_counters();
    plain::test_all();
    records::test_all();
    shortcuts::test_all();
    tail_calls::test_all();
    threads::test_all();
    waiting::test_all();
    wasm::test_others();
    if sites != ProbeSites::None || is_long() {
        native::test_without_counters();
        wasm::test_without_counters();
    }
}

/// In the long form only: sites everywhere are some of these, too.
#[test]
fn all_of_this_with_sites_at_entries() {
    if is_long() {
        test_all_with(ProbeSites::Functions, None);
    }
}

#[test]
fn all_of_this_with_counters_in_stubs() {
    test_all_with(ProbeSites::None, Some(u32::MAX));
}

#[test]
fn all_of_this_with_functions_that_always_count_by_themselves() {
    if is_long() {
        test_all_with(ProbeSites::None, Some(0));
    }
}

/// Likewise.
#[test]
fn all_of_this_with_sites_at_branches() {
    if is_long() {
        test_all_with(ProbeSites::Branches, Some(u32::MAX));
    }
}

#[test]
fn all_of_this_with_sites_everywhere() {
    test_all_with(ProbeSites::All, Some(20));
}

/// And that always count by themselves.
#[test]
fn all_of_this_with_functions_that_are_compiled_when_they_are_called() {
    LAZY.set(true);
    test_all_with(ProbeSites::None, Some(0));
}

/// In the long form only, as those of other functions.
#[test]
fn all_of_this_with_sites_at_branches_of_functions_that_are_compiled_when_they_are_called() {
    if is_long() {
        LAZY.set(true);
        test_all_with(ProbeSites::Branches, None);
    }
}

fn location(module: &Module, (function, at): rewrite::Counted) -> Location {
    let start = || module.function(function).unwrap().body().unwrap().range().start as u32;
    let place = at.map_or(Place::Entry, |at| Place::Instruction { offset: at - start() });
    Location { function, place }
}

/// A probe for each place of a module that has code, with the number of the place.
fn probes_everywhere(module: &Module, places: &[rewrite::Counted], kind: Kind) -> Vec<(usize, Probe)> {
    let spec =
        |place: &rewrite::Counted| ProbeSpec { location: location(module, *place), kind: kind.clone() };
    let specs: Vec<ProbeSpec> = places.iter().map(spec).collect();
    let made = module.probes(&specs).into_iter().enumerate();
    made.filter_map(|(number, probe)| match probe {
        Ok(probe) => Some((number, probe)),
        Err(ProbeError::Unreachable { .. }) => None,
        Err(error) => panic!("{:?}: {error}", places[number]),
    })
    .collect()
}

/// What a run of a program gives: the result or why there is none, and its memory.
type Outcome = (Result<i64, String>, u64);

fn outcome(module: &Module) -> (Outcome, Store<()>, Instance) {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let outcome = call_main(&mut store, &instance);
    (outcome, store, instance)
}

fn call_main(store: &mut Store<()>, instance: &Instance) -> Outcome {
    let main = instance.get_typed_func::<(), i64>(&mut *store, "main").unwrap();
    let result = main.call(&mut *store, ()).map_err(|error| error.reason());
    let memory = instance.get_memory(&mut *store, "memory").unwrap();
    let sum = memory.data(&*store).iter().fold(0_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    (result, sum)
}

/// What the rewritten module has counted.
fn reference(engine: &Engine, bytes: &[u8], runs: usize) -> (Outcome, Vec<u64>, Vec<rewrite::Counted>) {
    let (rewritten, places) = rewrite::rewrite(bytes);
    let module = Module::from_binary(engine, &rewritten).unwrap();
    let (mut first, mut store, instance) = outcome(&module);
    for _ in 1..runs {
        first = call_main(&mut store, &instance);
    }
    let count = |number: usize| {
        let global = instance.get_global(&mut store, &format!("count {number}")).unwrap();
        match global.get(&mut store) {
            Val::I64(count) => count as u64,
            other => panic!("{other:?}"),
        }
    };
    let counts = (0..places.len()).map(count).collect();
    (first, counts, places)
}

/// An instance that exists when the module's first probe is made, so that no instance has its
/// counters before its context.
fn earlier_instance(module: &Module) -> Store<()> {
    let mut store = Store::new(module.engine(), ());
    Instance::new(&mut store, module, &[]).unwrap();
    store
}

#[test]
fn every_instruction_of_random_programs_is_counted_exactly() {
    let (mut counted, mut traps) = (0, 0);
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let engine = engine();
        let (expected, reference, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let earlier = (seed % 2 == 0).then(|| earlier_instance(&module));
        let probes = probes_everywhere(&module, &places, Kind::Count);
        drop(earlier);
        activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        traps += u32::from(expected.0.is_err());
        for (number, probe) in &probes {
            assert_eq!(probe.count(), reference[*number], "seed {seed}: {:x?}", places[*number]);
            counted += probe.count();
        }
        let with_code: Vec<usize> = probes.iter().map(|(number, _)| *number).collect();
        for (number, count) in reference.iter().enumerate() {
            assert!(
                *count == 0 || with_code.contains(&number),
                "{:x?} is said to be unreachable",
                places[number]
            );
        }
    }
    assert!(counted > 100_000, "{counted}");
    println!("{counted} counted, {traps} programs trapped");
}

/// All shapes of blocks, with branches to their ends and loops that are repeated.
#[test]
fn every_shape_of_block_is_counted_as_the_specification_executes_it() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probes/shapes.wat");
    let bytes = wat::parse_file(folder).unwrap();
    let engine = engine();
    let (expected, reference, places) = reference(&engine, &bytes, 1);
    assert!(expected.0.is_ok(), "{expected:?}");
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let probes = probes_everywhere(&module, &places, Kind::Count);
    activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
    assert_eq!(outcome(&module).0, expected);
    for (number, probe) in &probes {
        assert_eq!(probe.count(), reference[*number], "{:x?}", places[*number]);
    }
}
