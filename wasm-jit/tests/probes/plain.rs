//! Frames that go on in a plain version, because a closure has changed a value that the optimized
//! code does not have in a place of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{
    AccessError, Bound, Branches, Callback, Frame, FrameAccessor, Kind, Location, Place, Probe, ProbeSpec,
    activate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Error, Instance, Module, Store, Trap, Val};

use super::behaviour::{TRAPPING, trapping};
use super::counting::{LEAVING, leaving};
use super::frames::{at, call, calls, entry, generic, make, offset_of, program};
use super::rewrite::Counted;
use super::{call_main, engine, location, outcome, probes_everywhere, programs, reference, seeds, values};

/// Writes the values that the frame has: so it becomes plain, wherever one of them has no place.
fn write_all_back(frame: &mut Frame<'_>, locals: u32) -> Result<(), Error> {
    for index in 0..locals {
        let value = frame.local(index)?;
        match frame.set_local(index, &value) {
            Ok(()) | Err(AccessError::Fixed) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for depth in 0..frame.operands() as u32 {
        let value = frame.operand(depth)?;
        frame.set_operand(depth, &value)?;
    }
    Ok(())
}

/// Frames that become plain anywhere give the same results, and count as before: in loops, with
/// traps, exceptions that they throw and catch, and tail calls.
#[test]
fn frames_that_become_plain_go_on_as_before() {
    let random_programs = seeds().map(|seed| wat::parse_str(programs::program(seed)).unwrap());
    let deep = |body: &&&str| !body.contains("call $inner");
    let leaving = LEAVING.iter().map(|body| leaving(body));
    let special = TRAPPING.iter().filter(deep).map(|body| trapping(body)).chain(leaving);
    let mut written = 0;
    for (number, bytes) in random_programs.chain(special).enumerate() {
        let engine = engine();
        let (_, counts, places) = reference(&engine, &bytes, 3);
        // Each run finds the memory as the one before has left it.
        let (first, mut store, instance) = outcome(&Module::from_binary(&engine, &bytes).unwrap());
        let expected = [first, call_main(&mut store, &instance), call_main(&mut store, &instance)];
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let locals: HashMap<u32, u32> =
            values::places(&bytes).iter().map(|((function, _), place)| (*function, place.locals())).collect();
        let mut random = SmallRng::seed_from_u64(number as u64);
        let writes = Arc::new(AtomicU64::new(0));
        let wanted: Vec<(Counted, (), Kind)> = places
            .iter()
            .zip(&counts)
            // Closures take their time.
            .filter(|(_, count)| **count < 3_000 && random.random_range(0..3) == 0)
            .map(|(place, _)| {
                let (locals, writes) = (locals[&place.0], writes.clone());
                let kind = generic(move |frame| {
                    // Not in every loop iteration: most code is optimized when the first one comes.
                    if writes.fetch_add(1, Relaxed) % 5 == 0 {
                        write_all_back(frame, locals)?;
                    }
                    Ok(())
                });
                (*place, (), kind)
            })
            .collect();
        let closures = make(&module, wanted);
        let probes = probes_everywhere(&module, &places, Kind::Count);
        let all = closures.iter().map(|(.., probe)| probe).chain(probes.iter().map(|(_, probe)| probe));
        activate_all(all).into_iter().for_each(|on| on.unwrap());
        let (first, mut store, instance) = outcome(&module);
        let found = [first, call_main(&mut store, &instance), call_main(&mut store, &instance)];
        assert_eq!(found, expected, "program {number}");
        for (at, probe) in &probes {
            assert_eq!(probe.count(), counts[*at], "program {number}: {:x?}", places[*at]);
        }
        written += writes.load(Relaxed);
    }
    println!("{written} writes");
    assert!(written > 1_000, "{written}");
}

/// The first events of a place whose writes take place.
const WRITES: u64 = 3;

/// Random writes by the entries of functions into the frames that have called them give what a
/// program gives that has the writes in front of its calls.
#[test]
fn writes_to_callers_are_those_of_a_program_that_does_them_itself() {
    let (mut done, mut different) = (0, 0);
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let calls = calls(&bytes, &module);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut sorted: Vec<(&Counted, &u32)> = calls.iter().collect();
        sorted.sort();
        let mut chosen = HashMap::new();
        for (place, arguments) in sorted {
            let Some(values) = places.get(place) else { continue };
            let fits = |bound| match bound {
                Bound::Operand(depth) => depth >= *arguments,
                bound => bound != Bound::Address,
            };
            let value = values.choose(8, &mut random).into_iter().find(|value| fits(value.bound));
            chosen.extend(value.map(|value| (*place, (value, random.random_range(1..7)))));
        }
        let writes: HashMap<Location, (Bound, Val, u32, AtomicU64)> = chosen
            .iter()
            .map(|(place, (value, new))| {
                let write = (value.bound, value.constant(*new), calls[place], AtomicU64::new(0));
                (location(&module, *place), write)
            })
            .collect();
        let written = Arc::new(Mutex::new(0));
        let of_probes = written.clone();
        let kind = generic(move |frame| {
            let Some(caller) = frame.caller()? else { return Ok(()) };
            let Some((bound, value, arguments, events)) = writes.get(&caller.location(frame)?) else {
                return Ok(());
            };
            if events.fetch_add(1, Relaxed) >= WRITES {
                return Ok(());
            }
            let (changed, now) = match bound {
                Bound::Local(index) => (caller.set_local(frame, *index, value), caller.local(frame, *index)?),
                Bound::Operand(depth) => {
                    let depth = *depth - arguments;
                    (caller.set_operand(frame, depth, value), caller.operand(frame, depth)?)
                }
                other => panic!("{other:?}"),
            };
            match changed {
                Ok(()) => assert_eq!(format!("{now:?}"), format!("{value:?}")),
                Err(AccessError::Fixed) if matches!(bound, Bound::Local(_)) => {}
                Err(error) => return Err(error.into()),
            }
            *of_probes.lock().unwrap() += 1;
            Ok(())
        });
        let entries = (0..4).map(|function| ((function, None), (), kind.clone())).collect();
        let probes = make(&module, entries);
        probes.iter().for_each(|(.., probe)| probe.activate().unwrap());
        let found = outcome(&module).0;
        let rewritten = values::writing(&bytes, &places, &chosen, WRITES);
        let expected = outcome(&Module::from_binary(&engine(), &rewritten).unwrap()).0;
        assert_eq!(found, expected, "seed {seed}: {chosen:x?}");
        let unchanged = outcome(&Module::from_binary(&engine(), &bytes).unwrap()).0;
        different += u64::from(unchanged != expected);
        done += *written.lock().unwrap();
    }
    println!("{done} writes to callers; {different} programs differ");
    assert!(done > 3 * seeds().end && different > seeds().end / 8, "{done} {different}");
}

fn log(log: &Arc<Mutex<Vec<u64>>>, bound: Bound) -> Kind {
    let log = log.clone();
    let function = Callback::new(move |values| log.lock().unwrap().push(values[0]));
    Kind::Callback { function, values: [bound].into() }
}

/// The other probes of the place fire once, with the new value; so do those of later places, which
/// are made, activated and removed as ever.
#[test]
fn probes_of_plain_frames_see_the_new_values() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32) (local i32)
            (local.set 1 (i32.const 10))
            (i32.mul (i32.add (local.get 1) (i32.const 5)) (i32.const 7))))",
    );
    let add = offset_of(&module, 0, |operator| matches!(operator, Operator::I32Add));
    let mul = offset_of(&module, 0, |operator| matches!(operator, Operator::I32Mul));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let write = |depth: u32, value: i32| {
        generic(move |frame| {
            let accessor = frame.accessor()?;
            frame.set_operand(depth, &Val::I32(value))?;
            assert_eq!(frame.operand(depth)?.unwrap_i32(), value);
            assert_eq!((accessor, accessor.operand(frame, depth)?.unwrap_i32()), (frame.accessor()?, value));
            assert_eq!(accessor.location(frame)?, frame.location());
            Ok(())
        })
    };
    let specs = [
        at(0, add, log(&seen, Bound::Operand(0))),
        at(0, add, write(0, 50)),
        at(0, add, log(&seen, Bound::Operand(0))),
        at(0, add, write(1, 100)),
        at(0, add, log(&seen, Bound::Operand(1))),
        at(0, add, log(&seen, Bound::Local(1))),
        at(0, add, Kind::Count),
        at(0, mul, log(&seen, Bound::Operand(1))),
        ProbeSpec {
            location: Location { function: 0, place: Place::Exit },
            kind: log(&seen, Bound::Result(0)),
        },
    ];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    assert_eq!(call(&mut store, &instance, 0).unwrap(), 1050);
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [5, 50, 100, 10, 150, 1050]);
    assert_eq!(probes[6].count(), 1);
    // A probe that did not exist when the version was compiled, and one that goes off.
    let later = module.probe(at(0, mul, log(&seen, Bound::Operand(0)))).unwrap();
    later.activate().unwrap();
    probes[7].deactivate().unwrap();
    assert_eq!(call(&mut store, &instance, 0).unwrap(), 1050);
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [5, 50, 100, 10, 7, 1050]);
    probes[1].deactivate().unwrap();
    probes[3].deactivate().unwrap();
    assert_eq!(call(&mut store, &instance, 0).unwrap(), 105);
    assert_eq!(*seen.lock().unwrap(), [5, 5, 10, 10, 7, 105]);
    assert_eq!(probes[6].count(), 3);
}

/// A condition that the compiler has folded can be changed: the code after it runs, with its
/// choices counted.
#[test]
fn folded_branches_are_taken_if_their_condition_is_changed() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32)
            (block (br_if 0 (i32.eqz (local.get 0))) (br_if 0 (i32.const 0)) (return (i32.const 1)))
            (select (i32.add (local.get 0) (i32.const 1)) (local.get 0) (i32.const 1))))",
    );
    // The second one.
    let mut before = 1;
    let br_if = offset_of(&module, 0, |operator| match operator {
        Operator::BrIf { .. } => std::mem::take(&mut before) == 0,
        _ => false,
    });
    let select = offset_of(&module, 0, |operator| matches!(operator, Operator::Select));
    let flip = |to: i32| generic(move |frame| Ok(frame.set_operand(0, &Val::I32(to))?));
    let specs = [
        at(0, br_if, flip(1)),
        at(0, select, flip(0)),
        at(0, br_if, Kind::CountBranch),
        at(0, select, Kind::CountBranch),
    ];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    assert_eq!(call(&mut store, &instance, 20).unwrap(), 20);
    let branches = |probe: &Probe| probe.branches().unwrap();
    assert_eq!(branches(&probes[2]), Branches::Condition { taken: 1, not_taken: 0 });
    assert_eq!(branches(&probes[3]), Branches::Condition { taken: 0, not_taken: 1 });
    probes[1].deactivate().unwrap();
    assert_eq!(call(&mut store, &instance, 20).unwrap(), 21);
    probes[0].deactivate().unwrap();
    assert_eq!(call(&mut store, &instance, 20).unwrap(), 1);
    assert_eq!(branches(&probes[2]), Branches::Condition { taken: 2, not_taken: 1 });
    assert_eq!(branches(&probes[3]), Branches::Condition { taken: 1, not_taken: 1 });
}

/// A frame that became plain before its function counted choices counts no way of a branch, even if
/// an instruction counter counts the branch there.
#[test]
fn frames_that_were_plain_before_count_no_ways() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32)
            (drop (i32.add (local.get 0) (i32.const 1)))
            (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
            (local.get 0)))",
    );
    let add = offset_of(&module, 0, |operator| matches!(operator, Operator::I32Add));
    let br_if = offset_of(&module, 0, |operator| matches!(operator, Operator::BrIf { .. }));
    let made: Arc<Mutex<Vec<Probe>>> = Arc::default();
    let (by_closure, its_module) = (made.clone(), module.clone());
    let write = generic(move |frame| {
        frame.set_operand(0, &Val::I32(7))?;
        let mut made = by_closure.lock().unwrap();
        if made.is_empty() {
            let specs = [at(0, br_if, Kind::Count), at(0, br_if, Kind::CountBranch)];
            made.extend(its_module.probes(&specs).into_iter().map(Result::unwrap));
            activate_all(&*made).into_iter().for_each(|on| on.unwrap());
        }
        Ok(())
    });
    let write = module.probe(at(0, add, write)).unwrap();
    write.activate().unwrap();
    let counts = || {
        let made = made.lock().unwrap();
        (made[0].count(), made[1].branches().unwrap())
    };
    assert_eq!(call(&mut store, &instance, 5).unwrap(), 0);
    assert_eq!(counts(), (5, Branches::Condition { taken: 0, not_taken: 0 }));
    write.deactivate().unwrap();
    assert_eq!(call(&mut store, &instance, 4).unwrap(), 0);
    assert_eq!(counts(), (9, Branches::Condition { taken: 3, not_taken: 1 }));
}

/// Plain frames execute what the optimized code has left out, and count with the same cells: here
/// in front of loops, each the first instruction that is executed after a condition that is folded.
#[test]
fn plain_frames_count_loops_after_folded_conditions() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32) (local i32)
            (local.set 1 (i32.const 0))
            (block (br_if 0 (i32.const 1)) (local.set 0 (i32.const 3)))
            (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
            (if (i32.const 0)
                (then (local.set 0 (i32.const 4)))
                (else (loop (nop)
                    (br_if 0 (i32.lt_u (local.tee 1 (i32.add (local.get 1) (i32.const 1))) (i32.const 3))))))
            (local.get 1)))",
    );
    let function = module.function(0).unwrap();
    let body = function.body().unwrap();
    let start = body.range().start;
    let instructions = body.instructions();
    let offsets = instructions.map(|instruction| (instruction.offset() - start) as u32);
    let specs: Vec<ProbeSpec> = offsets.map(|offset| at(0, offset, Kind::Count)).collect();
    let counters: Vec<Probe> = module.probes(&specs).into_iter().filter_map(Result::ok).collect();
    activate_all(&counters).into_iter().for_each(|on| on.unwrap());
    let counts = |before: &[u64]| -> Vec<u64> {
        counters.iter().zip(before).map(|(counter, before)| counter.count() - before).collect()
    };
    assert_eq!(call(&mut store, &instance, 5).unwrap(), 3);
    let optimized = counts(&vec![0; counters.len()]);
    let loops = [5, 3].map(|count| optimized.iter().filter(|found| **found == count).count());
    assert!(loops[0] >= 5 && loops[1] >= 8, "{optimized:?}");
    let set = offset_of(&module, 0, |operator| matches!(operator, Operator::LocalSet { .. }));
    let write = generic(|frame| Ok(frame.set_operand(0, &Val::I32(0))?));
    let write = module.probe(at(0, set, write)).unwrap();
    write.activate().unwrap();
    let before = counts(&vec![0; counters.len()]);
    assert_eq!(call(&mut store, &instance, 5).unwrap(), 3);
    assert_eq!(counts(&before), optimized);
}

/// Traps of plain frames are at their instructions, and exceptions are caught; their accessors end.
#[test]
fn plain_frames_trap_and_catch() {
    let (module, mut store, instance) = program(
        "(module (tag $tag (param i32))
        (func $run (export \"run\") (param i32) (result i32) (local i32)
            (local.set 1 (i32.const 3))
            (block $caught (result i32)
                (try_table (catch $tag $caught)
                    (call $leave (i32.add (local.get 0) (i32.const 0))) (return (i32.const 0)))
                (unreachable))
            (i32.add (local.get 1)))
        (func $leave (param i32)
            (if (i32.eqz (local.get 0)) (then (throw $tag (i32.const 40))))
            (drop (i32.div_u (i32.const 1) (i32.sub (local.get 0) (local.get 0))))))",
    );
    let div = offset_of(&module, 1, |operator| matches!(operator, Operator::I32DivU));
    let last: Arc<Mutex<Vec<FrameAccessor>>> = Arc::default();
    let of_leave = last.clone();
    let enter = generic(move |frame| {
        let caller = frame.caller()?.expect("it was called");
        caller.set_local(frame, 1, &Val::I32(100))?;
        assert_eq!(caller.local(frame, 1)?.unwrap_i32(), 100);
        *of_leave.lock().unwrap() = vec![frame.accessor()?, caller];
        Ok(())
    });
    let add = offset_of(&module, 0, |operator| matches!(operator, Operator::I32Add));
    let become_plain = generic(|frame| write_all_back(frame, 2));
    let of_run = last.clone();
    let check = generic(move |frame| {
        assert!(of_run.lock().unwrap().iter().all(|accessor| !accessor.is_alive(frame)));
        Ok(())
    });
    let specs =
        [entry(1, enter), at(0, add, become_plain), at(1, div, generic(|frame| write_all_back(frame, 1)))];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    for is_plain in [false, true] {
        // Whether the caller is plain before its call, or becomes so while it waits.
        probes[0].activate().unwrap();
        probes[2].activate().unwrap();
        if is_plain {
            probes[1].activate().unwrap();
        }
        for _ in 0..2 {
            assert_eq!(call(&mut store, &instance, 0).unwrap(), 140);
            let error = call(&mut store, &instance, 1).unwrap_err();
            let Error::Trap { trap: Trap::IntegerDivisionByZero, backtrace } = &error else {
                panic!("{error}")
            };
            let frames: Vec<_> =
                backtrace.frames().iter().map(|frame| (frame.func_index(), frame.func_offset())).collect();
            let call = offset_of(&module, 0, |operator| matches!(operator, Operator::Call { .. }));
            assert_eq!(frames, [(1, Some(div as usize)), (0, Some(call as usize))]);
        }
        let check = module.probe(entry(0, check.clone())).unwrap();
        check.activate().unwrap();
        probes[0].deactivate().unwrap();
        assert_eq!(call(&mut store, &instance, 0).unwrap(), 43);
    }
}

/// A frame that has caught an exception goes on in the current version, which ends its accessor.
#[test]
fn frames_that_catch_go_on_in_the_current_version() {
    for legacy in [false, true] {
        let try_it = if legacy {
            "try call $throws catch $tag end"
        } else {
            "(block (try_table (catch $tag 0) (call $throws)))"
        };
        let (module, mut store, instance) = program(&format!(
            "(module (tag $tag)
            (func $throws (throw $tag))
            (func $catches (param i32) (result i32) {try_it} (i32.add (local.get 0) (i32.const 1)))
            (func $run (export \"run\") (param i32) (result i32)
                (drop (i32.sub (call $catches (local.get 0)) (i32.const 2))) (i32.const 3)))"
        ));
        let sub = offset_of(&module, 2, |operator| matches!(operator, Operator::I32Sub));
        let last: Arc<Mutex<Option<FrameAccessor>>> = Arc::default();
        let (of_throws, of_run) = (last.clone(), last.clone());
        let remember = generic(move |frame| {
            *of_throws.lock().unwrap() = frame.caller()?;
            Ok(())
        });
        let check = generic(move |frame| {
            assert!(!of_run.lock().unwrap().expect("it was called").is_alive(frame));
            Ok(())
        });
        let specs = [entry(0, remember), at(2, sub, check)];
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        // In the first call, `$catches` has no version when it is entered.
        for _ in 0..2 {
            assert_eq!(call(&mut store, &instance, 1).unwrap(), 3);
        }
    }
}

/// A plain frame may be larger: a value cannot be changed where the stack has no room for it.
#[test]
fn plain_frames_need_room_on_the_stack() {
    let (constants, additions) = ("(i32.const 1) ".repeat(900), "i32.add ".repeat(899));
    let (module, mut store, instance) = program(&format!(
        "(module (func $run (export \"run\") (param i32) (result i32)
            (i32.add (call $leaf) (call $run (local.get 0))))
        (func $leaf (result i32) {constants} {additions}))"
    ));
    let add = offset_of(&module, 1, |operator| matches!(operator, Operator::I32Add));
    let (written, overflown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (done, refused) = (written.clone(), overflown.clone());
    let kind = generic(move |frame| match frame.set_operand(1, &Val::I32(2)) {
        Ok(()) => {
            done.fetch_add(1, Relaxed);
            Ok(())
        }
        Err(AccessError::StackOverflow) => {
            refused.fetch_add(1, Relaxed);
            Ok(())
        }
        Err(error) => Err(error.into()),
    });
    let probe = module.probe(at(1, add, kind)).unwrap();
    probe.activate().unwrap();
    let error = call(&mut store, &instance, 0).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::StackOverflow));
    assert!(written.load(Relaxed) > 100 && overflown.load(Relaxed) > 0, "{written:?} {overflown:?}");
}

/// A frame that waits for a call of another instance's function becomes plain: by an indirect call,
/// by a call of an import, and by a tail call of its callee, which has no frame then.
#[test]
fn calls_of_other_instances_return_to_plain_frames() {
    let engine = engine();
    let callee =
        "(module (func (export \"f\") (param i32) (result i32) (i32.add (local.get 0) (i32.const 1))))";
    let callee = Module::new(&engine, callee).unwrap();
    let text = "(module (type $t (func (param i32) (result i32)))
        (import \"\" \"f\" (func $f (type $t)))
        (table 2 funcref) (elem (i32.const 0) $f $own)
        (func $own (type $t) (i32.add (local.get 0) (i32.const 2)))
        (func $run (export \"run\") (type $t) (local $x i32)
            (local.set $x (i32.const 10))
            (i32.add (local.get $x) (i32.add (i32.const 20)
                (call_indirect (type $t) (i32.const 3) (local.get 0)))))
        (func $direct (export \"direct\") (type $t) (i32.add (i32.const 20) (call $f (local.get 0))))
        (func $tail (export \"tail\") (type $t) (local $x i32)
            (i32.add (i32.const 20) (call $inner (local.get 0))))
        (func $inner (type $t) (local i32 i32) (local.set 2 (i32.const 1)) (return_call $f (local.get 0))))";
    let module = Module::new(&engine, text).unwrap();
    let write = generic(|frame| {
        let caller = frame.caller()?.expect("it was called");
        assert_ne!(caller.location(frame)?.function, 5);
        assert_eq!(frame.depth(), 1);
        caller.set_operand(frame, 0, &Val::I32(200))?;
        assert_eq!(caller.operand(frame, 0)?.unwrap_i32(), 200);
        Ok(())
    });
    let other = callee.probe(entry(0, write.clone())).unwrap();
    let own = module.probe(entry(1, write)).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &callee, &[]).unwrap();
    let f = instance.get_export(&mut store, "f").unwrap();
    let instance = Instance::new(&mut store, &module, &[f]).unwrap();
    let mut run = |name: &str, argument: i32| {
        instance.get_typed_func::<i32, i32>(&mut store, name).unwrap().call(&mut store, argument).unwrap()
    };
    for _ in 0..2 {
        assert_eq!([run("run", 0), run("run", 1), run("direct", 3), run("tail", 3)], [34, 35, 24, 24]);
        activate_all([&other, &own]).into_iter().for_each(|on| on.unwrap());
        assert_eq!([run("run", 0), run("run", 1), run("direct", 3), run("tail", 3)], [214, 215, 204, 204]);
        other.deactivate().unwrap();
        own.deactivate().unwrap();
    }
}

/// A frame that waits for its closure becomes plain by another one, which runs meanwhile.
#[test]
fn waiting_closures_return_to_plain_frames() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32) (i32.mul (i32.const 3) (i32.const 5)))
        (func (export \"other\") (param i32) (result i32) (local.get 0)))",
    );
    let mul = offset_of(&module, 0, |operator| matches!(operator, Operator::I32Mul));
    let outer = generic(|frame| {
        let instance = frame.instance();
        let mut store = frame.store::<()>().unwrap();
        let other = instance.get_typed_func::<i32, i32>(&mut store, "other")?;
        assert_eq!(other.call(&mut store, 1)?, 1);
        assert_eq!((frame.operand(0)?.unwrap_i32(), frame.operand(1)?.unwrap_i32()), (70, 3));
        frame.set_operand(1, &Val::I32(10))?;
        Ok(())
    });
    let inner = generic(|frame| {
        let waiting = frame.caller()?.expect("the closure's frame");
        waiting.set_operand(frame, 0, &Val::I32(70))?;
        assert_eq!(waiting.operand(frame, 0)?.unwrap_i32(), 70);
        Ok(())
    });
    let probes = module.probes(&[at(0, mul, outer), entry(1, inner)]);
    let probes: Vec<Probe> = probes.into_iter().map(Result::unwrap).collect();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    for _ in 0..2 {
        assert_eq!(call(&mut store, &instance, 0).unwrap(), 700);
    }
}

/// A plain frame that runs for ever can be interrupted, and is left when its closure fails.
#[test]
fn plain_frames_are_interrupted_and_fail() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32)
            (loop (br_if 0 (i32.const 1)) (unreachable)) (i32.const 1)))",
    );
    let br_if = offset_of(&module, 0, |operator| matches!(operator, Operator::BrIf { .. }));
    let handle = store.interrupt_handle();
    let rounds = Arc::new(AtomicU64::new(0));
    let seen = rounds.clone();
    let kind = generic(move |frame| {
        frame.set_operand(0, &Val::I32(2))?;
        match (seen.fetch_add(1, Relaxed), frame.local(0)?.unwrap_i32()) {
            (100, 0) => handle.interrupt(),
            (100, 1) => return Err(Error::host("enough")),
            (100, _) => frame.set_operand(0, &Val::I32(0))?,
            _ => {}
        }
        Ok(())
    });
    let probe = module.probe(at(0, br_if, kind)).unwrap();
    probe.activate().unwrap();
    for (how, expected) in [(0, Some(Trap::Interrupt)), (1, None), (2, Some(Trap::UnreachableCodeReached))] {
        rounds.store(0, Relaxed);
        let error = call(&mut store, &instance, how).unwrap_err();
        assert_eq!(error.trap(), expected, "{error}");
        assert_eq!(rounds.load(Relaxed), 101);
    }
}

/// Threads make frames plain, while the probes of their functions are switched.
#[test]
fn threads_make_frames_plain() {
    let bytes = wat::parse_str(programs::program(3)).unwrap();
    let module = Module::from_binary(&engine(), &bytes).unwrap();
    let expected = outcome(&module).0;
    let places = values::places(&bytes);
    let wanted = |place: &Counted, locals: u32| {
        let events = AtomicU64::new(0);
        let kind = generic(move |frame| match events.fetch_add(1, Relaxed) % 16 {
            0 => write_all_back(frame, locals),
            _ => Ok(()),
        });
        (*place, (), kind)
    };
    let probes = make(&module, places.iter().map(|(place, of)| wanted(place, of.locals())).collect());
    let running = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    assert_eq!(outcome(&module).0, expected);
                }
                running.fetch_sub(1, Relaxed);
            });
        }
        let mut random = SmallRng::seed_from_u64(1);
        while running.load(Relaxed) > 0 {
            let probe = &probes[random.random_range(0..probes.len())].2;
            if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
        }
    });
}

/// A frame becomes plain at its exit, where the results are in registers: they are what is
/// returned, and what the functions of further probes of the exit get.
#[test]
fn frames_that_become_plain_at_their_exit_return_their_results() {
    let bytes = wat::parse_str(
        r#"(module (memory (export "memory") 1)
            (func $f (param f64 i64) (result f64 i64 f64) (local i32)
                (local.set 2 (i32.const 5))
                (f64.add (local.get 0) (f64.const 0.5))
                (i64.add (local.get 1) (i64.const 2))
                (f64.const -inf))
            (func (export "main") (result i64) (local f64 i64 f64)
                (call $f (f64.const 3) (i64.const 40))
                (local.set 2) (local.set 1) (local.set 0)
                (i64.xor (i64.reinterpret_f64 (local.get 0))
                    (i64.add (i64.reinterpret_f64 (local.get 2)) (local.get 1)))))"#,
    )
    .unwrap();
    let module = Module::from_binary(&engine(), &bytes).unwrap();
    let expected = outcome(&module).0;
    let location = Location { function: 0, place: Place::Exit };
    let write = generic(|frame| Ok(frame.set_local(2, &Val::I32(7))?));
    let read = generic(|frame| {
        assert_eq!(frame.operand(1)?.unwrap_i64(), 42);
        assert_eq!(frame.operand(2)?.unwrap_f64(), 3.5);
        Ok(frame.set_operand(1, &Val::I64(43))?)
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let look = Kind::Callback {
        function: Callback::new(move |values| log.lock().unwrap().push(values.to_vec())),
        values: [Bound::Result(0), Bound::Result(1), Bound::Result(2)].into(),
    };
    let [write, look, read] = [write, look, read].map(|kind| {
        let probe = module.probe(ProbeSpec { location, kind }).unwrap();
        probe.activate().unwrap();
        probe
    });
    assert_ne!(outcome(&module).0, expected, "the last closure changes a result");
    read.deactivate().unwrap();
    assert_eq!(outcome(&module).0, expected);
    let results = vec![3.5_f64.to_bits(), 42, f64::NEG_INFINITY.to_bits()];
    assert_eq!(*seen.lock().unwrap(), [results.clone(), results]);
    drop((write, look));
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    frames_that_become_plain_go_on_as_before();
    frames_that_become_plain_at_their_exit_return_their_results();
    writes_to_callers_are_those_of_a_program_that_does_them_itself();
    probes_of_plain_frames_see_the_new_values();
    folded_branches_are_taken_if_their_condition_is_changed();
    plain_frames_count_loops_after_folded_conditions();
    plain_frames_trap_and_catch();
    frames_that_catch_go_on_in_the_current_version();
    plain_frames_need_room_on_the_stack();
    calls_of_other_instances_return_to_plain_frames();
    waiting_closures_return_to_plain_frames();
    plain_frames_are_interrupted_and_fail();
    threads_make_frames_plain();
}
