//! Single threads: where probes can be, what they count when, and what they leave as it is.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all, deactivate_all,
};
use wasm_jit::{Config, Error, Instance, Linker, Module, ProbeSites, Store, Val};

use super::{engine, outcome, probes_everywhere, programs, reference, rewrite};

fn offset_of(
    module: &Module,
    function: u32,
    is: impl Fn(&wasm_jit::wasmparser::Operator<'_>) -> bool,
) -> u32 {
    let body = module.function(function).unwrap().body().unwrap();
    let found = body.instructions().find(|instruction| is(instruction.operator())).unwrap();
    (found.offset() - body.range().start) as u32
}

fn count_at(function: u32, offset: u32) -> ProbeSpec {
    let location = Location { function, place: Place::Instruction { offset } };
    ProbeSpec { location, kind: Kind::Count }
}

fn entry(function: u32, kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function, place: Place::Entry }, kind }
}

/// Calls itself, then the host in the innermost call; each frame then executes `global.set`.
const RECURSION: &str = r#"(module
    (import "host" "act" (func $act))
    (global $g (mut i32) (i32.const 0))
    (func $recurse (export "run") (param $depth i32)
        (if (local.get $depth)
            (then (call $recurse (i32.sub (local.get $depth) (i32.const 1))))
            (else (call $act)))
        (global.set $g (i32.add (global.get $g) (local.get $depth)))))"#;

/// Runs [`RECURSION`], whose host function calls `act` with the number of the run.
fn run_recursion(module: &Module, runs: u32, act: impl Fn(u32) + Send + Sync + 'static) {
    let mut linker = Linker::new(module.engine());
    let run_number = Arc::new(Mutex::new(0));
    let of_host = run_number.clone();
    linker.func_wrap("host", "act", move || act(*of_host.lock().unwrap())).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = linker.instantiate(&mut store, module).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    for number in 0..runs {
        *run_number.lock().unwrap() = number;
        run.call(&mut store, 9).unwrap();
    }
}

/// All frames are suspended while their function changes its version, and go over when their calls
/// return.
#[test]
fn frames_that_wait_for_a_call_meet_the_probe_when_it_returns() {
    let module = Module::new(&engine(), RECURSION).unwrap();
    let at = offset_of(&module, 1, |it| matches!(it, wasm_jit::wasmparser::Operator::GlobalSet { .. }));
    let probe = Arc::new(module.probe(count_at(1, at)).unwrap());
    let of_host = probe.clone();
    run_recursion(&module, 6, move |number| match number {
        1 | 4 => of_host.activate().unwrap(),
        3 => deactivate_all([&*of_host]).into_iter().for_each(|off| off.unwrap()),
        _ => {}
    });
    // Run 1 from the host call on, run 2; run 3 until the host call, in which the probe is not
    // reached; run 4 from there on; run 5.
    assert_eq!(probe.count(), 10 + 10 + 10 + 10);
}

#[test]
fn probes_of_one_place_count_what_happens_while_each_is_on() {
    let module = Module::new(&engine(), RECURSION).unwrap();
    let make = |kind| module.probe(entry(1, kind)).unwrap();
    let probes = Arc::new([make(Kind::Count), make(Kind::Count), make(Kind::Empty)]);
    let check = |expected: [u64; 2]| {
        assert_eq!([probes[0].count(), probes[1].count()], expected);
    };
    let run = || run_recursion(&module, 1, |_| {});
    run();
    check([0, 0]);
    probes[2].activate().unwrap();
    run();
    check([0, 0]);
    probes[0].activate().unwrap();
    run();
    check([10, 0]);
    probes[1].activate().unwrap();
    probes[1].activate().unwrap();
    run();
    check([20, 10]);
    probes[0].deactivate().unwrap();
    probes[2].deactivate().unwrap();
    run();
    check([20, 20]);
    probes[1].deactivate().unwrap();
    run();
    check([20, 20]);
    assert_eq!(probes[2].count(), 0);
}

#[test]
fn a_loop_at_the_start_does_not_repeat_the_entry() {
    let text = "(module (func (export \"run\") (param i32)
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
    let module = Module::new(&engine(), text).unwrap();
    let at = offset_of(&module, 0, |it| matches!(it, wasm_jit::wasmparser::Operator::Loop { .. }));
    let probes: Vec<Probe> = module
        .probes(&[entry(0, Kind::Count), count_at(0, at)])
        .into_iter()
        .map(|made| made.unwrap())
        .collect();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    run.call(&mut store, 7).unwrap();
    assert_eq!(probes.iter().map(Probe::count).collect::<Vec<_>>(), [1, 7]);
}

#[test]
fn what_instances_have_counted_is_kept_when_they_go() {
    let text = "(module (func (export \"run\")))";
    let module = Module::new(&engine(), text).unwrap();
    let run = |store: &mut Store<()>, instance: &Instance| {
        instance.get_typed_func::<(), ()>(&mut *store, "run").unwrap().call(store, ()).unwrap();
    };
    // One instance is older than the first probe.
    let mut old = Store::new(module.engine(), ());
    let old_instance = Instance::new(&mut old, &module, &[]).unwrap();
    let probe = module.probe(entry(0, Kind::Count)).unwrap();
    probe.activate().unwrap();
    run(&mut old, &old_instance);
    for expected in 2..10 {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        run(&mut store, &instance);
        assert_eq!(probe.count(), expected);
        drop(store);
        assert_eq!(probe.count(), expected);
    }
    drop(module);
    run(&mut old, &old_instance);
    drop(old);
    assert_eq!(probe.count(), 10);
}

/// Code that a branch with a constant condition never comes to has no probes, of whatever kind and
/// in whatever version of the function, and a global probe is on the rest. If a probe changes the
/// condition, that code is executed. Probes in an `if` that never holds do not fire.
#[test]
fn code_after_constant_branches_is_unreachable() {
    let text = "(module (func (export \"run\") (result i32)
        (if (i32.const 0) (then nop))
        (i32.const 7) (br_if 0 (i32.const 1)) (drop) (i32.const 8)))";
    let module = Module::new(&engine(), text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let offsets: Vec<u32> = body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect();
    // i32.const, if, nop, end, i32.const, i32.const, br_if, drop, i32.const, end.
    let (nop, br_if, unreachable) = (2, 6, 7..10);
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
    let mut made = Vec::new();
    for kind in [Kind::Count, Kind::Generic(GenericFn::new(|_| Ok(())))] {
        let specs: Vec<ProbeSpec> =
            offsets.iter().map(|offset| ProbeSpec { kind: kind.clone(), ..count_at(0, *offset) }).collect();
        for (number, probe) in module.probes(&specs).into_iter().enumerate() {
            match probe {
                Ok(probe) => {
                    assert!(!unreachable.contains(&number), "{number}");
                    probe.activate().unwrap();
                    made.push(probe);
                }
                Err(ProbeError::Unreachable { function: 0, offset }) => {
                    assert!(unreachable.contains(&number) && offset == offsets[number], "{number}");
                }
                Err(error) => panic!("{number}: {error}"),
            }
        }
    }
    let global = module.global_probe(Kind::Count).unwrap();
    global.activate().unwrap();
    assert_eq!(run.call(&mut store, ()).unwrap(), 7);
    assert_eq!((global.count(), global.refused().len()), (5, 0));
    assert_eq!([0, nop, br_if].map(|number| made[number].count()), [1, 0, 1]);
    let write = GenericFn::new(|frame| Ok(frame.set_operand(0, &Val::I32(0))?));
    let write =
        module.probe(ProbeSpec { kind: Kind::Generic(write), ..count_at(0, offsets[br_if]) }).unwrap();
    write.activate().unwrap();
    assert_eq!(run.call(&mut store, ()).unwrap(), 8);
}

#[test]
fn errors_say_why_a_place_cannot_be_probed() {
    let text =
        "(module (import \"a\" \"b\" (func)) (func (local i32) (local.set 0 (i32.const 500)) return nop))";
    let module = Module::new(&engine(), text).unwrap();
    let made = module.probes(&[
        entry(0, Kind::Count),
        entry(2, Kind::Count),
        count_at(1, 0),
        count_at(1, 4),
        count_at(1, 9),
        count_at(1, u32::MAX),
        count_at(1, 3),
    ]);
    let body = module.function(1).unwrap().body().unwrap();
    let offsets: Vec<u32> = body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect();
    assert_eq!(offsets, [3, 6, 8, 9, 10]);
    use ProbeError::{NoFunction, NoInstruction, Unreachable};
    assert!(matches!(&made[0], Err(NoFunction { function: 0 })));
    assert!(matches!(&made[1], Err(NoFunction { function: 2 })));
    for (number, expected) in [(2, 0), (3, 4), (5, u32::MAX)] {
        assert!(matches!(&made[number], Err(NoInstruction { function: 1, offset }) if *offset == expected));
    }
    assert!(matches!(&made[4], Err(Unreachable { function: 1, offset: 9 })));
    assert!(made[6].is_ok());
}

/// Bodies of functions that trap when they are called with 7.
pub(crate) const TRAPPING: [&str; 16] = [
    // The optimized code has no label after the outermost block, but the plain version has one.
    "(loop
        (drop (i32.const 1)) (drop (i32.const 2)) (drop (i32.const 3))
        (drop (i32.div_u (i32.const 1) (i32.sub (local.get 0) (i32.const 30))))
        (block (block (block (br_table 2 2 1 (i32.const 255))) (nop)) (nop))
        (if (local.get 0) (then (nop)))
        (drop (i32.const 4)) (drop (i32.const 5))
        (local.set 0 (i32.add (local.get 0) (i32.const 1)))
        (br 0))
        (i32.const 1)",
    // A load that is fused with the addition after it.
    "(i32.add (i32.load offset=65000 (i32.const 600)) (i32.load (local.get 0)))",
    "(i32.add (local.get 0) (i32.load (i32.shl (local.get 0) (i32.const 20))))",
    "(loop (result i32) (i32.div_u (i32.const 5) (i32.sub (local.get 0) (i32.const 7))))",
    "(loop (result i32) (unreachable))",
    "(i32.div_s (i32.const 0x80000000) (i32.sub (local.get 0) (i32.const 8)))",
    "(block (i32.store (i32.shl (local.get 0) (i32.const 20)) (i32.const 1))) (i32.const 1)",
    "(call_indirect (param i32) (result i32) (local.get 0) (i32.const 9))",
    "(call $inner (local.get 0))",
    "(i32.trunc_f32_s (f32.const nan))",
    // Before a loop with code that is counted with the code before a block.
    "(loop
        (drop (i32.div_u (i32.const 1) (i32.sub (local.get 0) (i32.const 10))))
        (loop (if (local.get 0) (then (nop))) (nop))
        (local.set 0 (i32.add (local.get 0) (i32.const 1)))
        (br 0))
        (i32.const 1)",
    // Before code that is counted with the code before a block.
    "(if (local.get 0) (then (drop (i32.div_u (i32.const 1) (i32.sub (local.get 0) (i32.const 7))))))
        (i32.const 1)",
    "(block
        (block (br_if 0 (i32.eqz (local.get 0))) (i32.store (i32.shl (local.get 0) (i32.const 20)) (i32.const 1)))
        (nop))
        (i32.const 1)",
    "(loop
        (block
            (br_if 0 (i32.lt_u (local.get 0) (i32.const 9)))
            (if (i32.eqz (local.get 0)) (then (nop)) (else (nop)))
            (unreachable))
        (local.set 0 (i32.add (local.get 0) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get 0) (i32.const 20))))
        (i32.const 1)",
    // In the runtime, before code that follows a block.
    "(block (memory.fill (i32.shl (local.get 0) (i32.const 16)) (i32.const 0) (i32.const 9)) (nop)) (i32.const 1)",
    "(if (local.get 0) (then (memory.copy (i32.const 65530) (i32.const 0) (local.get 0)))) (i32.const 1)",
];

/// A module whose `main` calls a function that calls another one, which has this body.
pub(crate) fn trapping(body: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1) (table 2 funcref)
            (func $inner (param i32) (result i32) {body})
            (func $outer (param i32) (result i32) (i32.add (i32.const 3) (call $inner (local.get 0))))
            (func (export \"main\") (result i64) (i64.extend_i32_u (call $outer (i32.const 7)))))"
    );
    wat::parse_str(text).unwrap()
}

/// Each of several ways to trap: the same trap, at the same instruction, and counts like those of
/// the rewritten module.
#[test]
fn traps_are_the_same_with_probes() {
    for body in TRAPPING {
        let bytes = trapping(body);
        let engine = engine();
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        assert!(expected.0.is_err());
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let frames = || {
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            let main = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap();
            let error = main.call(&mut store, ()).unwrap_err();
            let Error::Trap { backtrace, .. } = &error else { panic!("{error}") };
            let place = |frame: &wasm_jit::FrameInfo| (frame.func_index(), frame.func_offset().unwrap());
            let frames: Vec<_> = backtrace.frames().iter().map(place).collect();
            (error.trap(), frames)
        };
        let without = frames();
        let probes = probes_everywhere(&module, &places, Kind::Count);
        activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
        assert_eq!(frames(), without, "{body}");
        if body.contains("call $inner") {
            // How deep the recursion gets depends on the size of the frames.
            continue;
        }
        for (number, probe) in &probes {
            assert_eq!(probe.count(), counts[*number], "{body}: {:x?}", places[*number]);
        }
    }
}

/// A program that is interrupted at any instruction of its code or of a stub, or in between.
#[test]
fn interrupts_leave_code_with_probes() {
    let text =
        "(module (memory 1) (func $inner (param i32) (result i32) (i32.xor (local.get 0) (i32.const 5)))
        (func (export \"run\") (local i32)
            (loop (local.set 0 (call $inner (i32.add (local.get 0) (i32.load (i32.const 8)))))
                (if (i32.lt_u (local.get 0) (i32.const 100)) (then (local.set 0 (i32.const 3))))
                (br 0))))";
    let bytes = wat::parse_str(text).unwrap();
    let engine = engine();
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let (_, places) = rewrite::rewrite(&bytes);
    let probes = probes_everywhere(&module, &places, Kind::Count);
    activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let mut known = 0;
    for _ in 0..300 {
        let handle = store.interrupt_handle();
        let before = probes[0].1.count() + probes.last().unwrap().1.count();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let count = || probes[0].1.count() + probes.last().unwrap().1.count();
                while count() < before + 50 {
                    std::hint::spin_loop();
                }
                handle.interrupt();
            });
            let error = run.call(&mut store, ()).unwrap_err();
            let Error::Trap { backtrace, .. } = &error else { panic!("{error}") };
            assert_eq!(error.trap(), Some(wasm_jit::Trap::Interrupt));
            let frames = backtrace.frames();
            assert!((1..=2).contains(&frames.len()), "{backtrace}");
            assert_eq!(frames.last().unwrap().func_index(), 1, "{backtrace}");
            assert!(!backtrace.to_string().contains("unknown:"), "{backtrace}");
            for frame in frames {
                // The prologue is no instruction's.
                let Some(at) = frame.module_offset() else { continue };
                known += 1;
                let is_place = |(function, place): &rewrite::Counted| {
                    let start = module.function(*function).unwrap().body().unwrap().range().start;
                    *function == frame.func_index() && place.map_or(start, |place| place as usize) == at
                };
                assert!(places.iter().any(is_place), "{backtrace}");
            }
        });
    }
    assert!(known > 0);
}

/// Each probe of a function is made by itself, while those before it are on.
#[test]
fn probes_are_added_to_functions_that_have_some() {
    for seed in 0..10 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let engine = engine();
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let mut probes: Vec<(usize, Probe)> = Vec::new();
        for (number, place) in places.iter().enumerate() {
            let made = probes_everywhere(&module, &[*place], Kind::Count);
            for (_, probe) in made {
                probe.activate().unwrap();
                probes.push((number, probe));
            }
            // Some go again, and are made again later.
            if number % 5 == 4 && !probes.is_empty() {
                drop(probes.remove(number % probes.len()));
            }
        }
        assert_eq!(outcome(&module).0, expected);
        for (number, probe) in &probes {
            assert_eq!(probe.count(), counts[*number], "seed {seed}: {:x?}", places[*number]);
        }
    }
}

/// Modules with probes come and go: code, counters and their addresses are given back.
#[test]
fn modules_with_probes_leave_nothing() {
    let bytes = wat::parse_str(programs::program(3)).unwrap();
    let engine = engine();
    let (_, places) = rewrite::rewrite(&bytes);
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let round = || {
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let probes = probes_everywhere(&module, &places, Kind::Count);
        activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
        drop(outcome(&module));
    };
    (0..10).for_each(|_| round());
    let before = mappings();
    (0..100).for_each(|_| round());
    // Other tests of this process map and unmap meanwhile.
    assert!(mappings() < before + 100, "{} mappings, {before} before", mappings());
}

/// Functions that were compiled with sites need no version for probes there; other places do.
#[test]
fn originals_with_sites_need_no_versions() {
    let text = "(module $m (func (export \"run\") (param i32) (result i32)
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))) (local.get 0)))";
    let is_loop =
        |it: &wasm_jit::wasmparser::Operator<'_>| matches!(it, wasm_jit::wasmparser::Operator::Loop { .. });
    let is_sub =
        |it: &wasm_jit::wasmparser::Operator<'_>| matches!(it, wasm_jit::wasmparser::Operator::I32Sub);
    for sites in [ProbeSites::None, ProbeSites::Functions, ProbeSites::Branches, ProbeSites::All] {
        let engine = wasm_jit::Engine::new(Config::new().probe_sites(sites).counter_stubs(4)).unwrap();
        let module = Module::new(&engine, text).unwrap();
        let versions = || {
            let mut map = Vec::new();
            module.write_perf_map(&mut map).unwrap();
            let map = String::from_utf8(map).unwrap();
            [" [probed]\n", " [stub]\n"].map(|kind| map.matches(kind).count())
        };
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
        let mut check = |spec: ProbeSpec, has_site: bool, executed: u64| {
            let [made, _] = versions();
            let probe = module.probe(spec.clone()).unwrap();
            assert_eq!(versions()[0] - made, usize::from(!has_site), "{sites:?}, {spec:?}");
            run.call(&mut store, 5).unwrap();
            probe.activate().unwrap();
            run.call(&mut store, 5).unwrap();
            probe.deactivate().unwrap();
            run.call(&mut store, 5).unwrap();
            assert_eq!(probe.count(), executed, "{sites:?}, {spec:?}");
        };
        check(entry(0, Kind::Count), sites != ProbeSites::None, 1);
        let at_loop = count_at(0, offset_of(&module, 0, is_loop));
        check(at_loop, sites == ProbeSites::Branches, 5);
        // With `All`, the first version has all sites.
        check(count_at(0, offset_of(&module, 0, is_sub)), sites == ProbeSites::All, 5);
        let of_original = usize::from(sites != ProbeSites::None);
        assert_eq!(versions()[1], versions()[0] + of_original, "{sites:?}");
    }
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    frames_that_wait_for_a_call_meet_the_probe_when_it_returns();
    probes_of_one_place_count_what_happens_while_each_is_on();
    a_loop_at_the_start_does_not_repeat_the_entry();
    what_instances_have_counted_is_kept_when_they_go();
    errors_say_why_a_place_cannot_be_probed();
    traps_are_the_same_with_probes();
    interrupts_leave_code_with_probes();
    probes_are_added_to_functions_that_have_some();
    modules_with_probes_leave_nothing();
}
