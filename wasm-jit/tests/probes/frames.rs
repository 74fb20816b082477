//! Generic probes: what closures read is what the program has, what they write is what it goes on
//! with, and accessors are of the frames that they say.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{
    AccessError, Bound, Frame, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec,
};
use wasm_jit::wasmparser::{Operator, Parser, Payload};
use wasm_jit::{Error, Func, Instance, Module, Store, Trap, Val};

use super::native::reference;
use super::rewrite::Counted;
use super::{engine, location, outcome, programs, seeds, values};

pub(crate) fn generic(closure: impl Fn(&mut Frame<'_>) -> Result<(), Error> + Send + Sync + 'static) -> Kind {
    Kind::Generic(GenericFn::new(closure))
}

fn raw(value: &Val) -> u64 {
    match value {
        Val::I32(value) => u64::from(*value as u32),
        Val::I64(value) => *value as u64,
        Val::F32(bits) => u64::from(*bits),
        Val::F64(bits) => *bits,
        other => panic!("{other:?}"),
    }
}

/// Makes probes of places; those that have no code get none.
pub(crate) fn make<T>(module: &Module, wanted: Vec<(Counted, T, Kind)>) -> Vec<(Counted, T, Probe)> {
    let spec = |(place, _, kind): &(Counted, T, Kind)| ProbeSpec {
        location: location(module, *place),
        kind: kind.clone(),
    };
    let specs: Vec<ProbeSpec> = wanted.iter().map(spec).collect();
    let made = module.probes(&specs).into_iter().zip(wanted);
    made.filter_map(|(probe, (place, what, _))| match probe {
        Ok(probe) => Some((place, what, probe)),
        Err(ProbeError::Unreachable { .. }) => None,
        Err(error) => panic!("{place:x?}: {error}"),
    })
    .collect()
}

/// Every local and operand that a closure reads is that of the program.
#[test]
fn closures_read_the_values_of_the_program() {
    let (mut fired, mut read) = (0, 0);
    // A closure for each event takes its time.
    for seed in seeds().take(20) {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut chosen, mut wanted) = (HashMap::new(), Vec::new());
        let mut sorted: Vec<&Counted> = places.keys().collect();
        sorted.sort();
        for place in sorted {
            let mut values = places[place].choose(8, &mut random);
            values.retain(|value| value.bound != Bound::Address);
            let bounds: Vec<Bound> = values.iter().map(|value| value.bound).collect();
            let record: Arc<[AtomicU64; 2]> = Arc::default();
            let of_probe = record.clone();
            let at = location(&module, *place);
            let kind = generic(move |frame| {
                assert_eq!(frame.location(), at);
                for bound in &bounds {
                    let value = match bound {
                        Bound::Local(index) => frame.local(*index)?,
                        Bound::Operand(depth) => frame.operand(*depth)?,
                        other => panic!("{other:?}"),
                    };
                    let [values, count] = &*of_probe;
                    values.store(values::add(values.load(Relaxed), raw(&value)), Relaxed);
                    count.fetch_add(1, Relaxed);
                }
                Ok(())
            });
            chosen.insert(*place, values);
            wanted.push((*place, record, kind));
        }
        let probes = make(&module, wanted);
        let (expected, records) = reference(&bytes, &places, &chosen);
        probes.iter().for_each(|(.., probe)| probe.activate().unwrap());
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        for (place, record, _) in &probes {
            let [values, count] = &**record;
            assert_eq!(values.load(Relaxed), records[place], "seed {seed}: {place:x?} {:?}", chosen[place]);
            read += count.load(Relaxed);
            fired += u64::from(count.load(Relaxed) > 0);
        }
    }
    println!("{read} values, at {fired} places");
    assert!(read > 40_000, "{read}");
}

/// The first events of a place whose writes take place.
const WRITES: u64 = 3;

/// The instructions that count down the iterations of a loop, and end it: what can be written to
/// the operand on top of the stack, so that the loop ends.
fn counting_loops(bytes: &[u8]) -> HashMap<Counted, i32> {
    let (mut found, mut function) = (HashMap::new(), 0);
    for payload in Parser::new(0).parse_all(bytes) {
        let Payload::CodeSectionEntry(body) = payload.unwrap() else { continue };
        let all = body.get_operators_reader().unwrap().into_iter_with_offsets().flatten().collect::<Vec<_>>();
        for three in all.windows(3) {
            if let [(Operator::I32Sub, sub), (Operator::LocalTee { .. }, _), (Operator::BrIf { .. }, end)] =
                three
            {
                found.insert((function, Some(*sub as u32)), 1);
                found.insert((function, Some(*end as u32)), 0);
            }
        }
        function += 1;
    }
    found
}

/// Random writes by closures give what a program gives that has the writes in its own code.
#[test]
fn writes_are_those_of_a_program_that_does_them_itself() {
    let (mut done, mut refused, mut different) = (0, 0, 0);
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let counting = counting_loops(&bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut wanted = Vec::new();
        let mut sorted: Vec<&Counted> = places.keys().collect();
        sorted.sort();
        for place in sorted {
            if random.random_range(0..3) != 0 {
                continue;
            }
            let Some(value) = places[place].choose(1, &mut random).pop() else { continue };
            if value.bound == Bound::Address {
                continue;
            }
            // No loop counts from less than 1, or by another number than 1: none runs for ever.
            let new = match counting.get(place) {
                Some(new) if value.bound == Bound::Operand(0) => *new,
                _ => random.random_range(1..7),
            };
            let (bound, val) = (value.bound, value.constant(new));
            // How often the closure was called, and how often it has written.
            let events: Arc<[AtomicU64; 2]> = Arc::default();
            let of_probe = events.clone();
            let kind = generic(move |frame| {
                let [called, written] = &*of_probe;
                if called.fetch_add(1, Relaxed) >= WRITES {
                    return Ok(());
                }
                let (changed, now) = match bound {
                    Bound::Local(index) => (frame.set_local(index, &val), frame.local(index)?),
                    Bound::Operand(depth) => (frame.set_operand(depth, &val), frame.operand(depth)?),
                    other => panic!("{other:?}"),
                };
                match changed {
                    Ok(()) => {
                        assert_eq!(raw(&now), raw(&val));
                        written.fetch_add(1, Relaxed);
                    }
                    // No instruction uses it.
                    Err(AccessError::Fixed) if matches!(bound, Bound::Local(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                Ok(())
            });
            wanted.push((*place, (value, new, events), kind));
        }
        let probes = make(&module, wanted);
        probes.iter().for_each(|(.., probe)| probe.activate().unwrap());
        let found = outcome(&module).0;
        let mut writes = HashMap::new();
        for (place, (value, new, events), _) in &probes {
            let [called, written] = &**events;
            let (called, written) = (called.load(Relaxed).min(WRITES), written.load(Relaxed));
            assert!(written == 0 || written == called, "{place:x?}: what is fixed is always");
            if written > 0 {
                writes.insert(*place, (value.clone(), *new));
                done += 1;
            } else {
                refused += u64::from(called > 0);
            }
        }
        let rewritten = values::writing(&bytes, &places, &writes, WRITES);
        let expected = outcome(&Module::from_binary(&engine(), &rewritten).unwrap()).0;
        assert_eq!(found, expected, "seed {seed}: {writes:x?}");
        let unchanged = outcome(&Module::from_binary(&engine(), &bytes).unwrap()).0;
        different += u64::from(unchanged != expected);
    }
    println!("{done} places with writes, {refused} of unused locals; {different} programs differ");
    assert!(refused < done / 100, "{refused}");
    assert!(done > 10 * seeds().end && different > seeds().end / 2, "{done} {different}");
}

/// The calls of a module, and how many arguments they have.
pub(crate) fn calls(bytes: &[u8], module: &Module) -> HashMap<Counted, u32> {
    let (mut calls, mut function) = (HashMap::new(), 0);
    for payload in Parser::new(0).parse_all(bytes) {
        let Payload::CodeSectionEntry(body) = payload.unwrap() else { continue };
        for (operator, at) in body.get_operators_reader().unwrap().into_iter_with_offsets().flatten() {
            if let Operator::Call { function_index } = operator {
                let arguments = module.function(function_index).unwrap().ty().params().len() as u32;
                calls.insert((function, Some(at as u32)), arguments);
            }
        }
        function += 1;
    }
    calls
}

/// What the entry of a function reads of its caller is what the caller has at its call.
#[test]
fn values_of_callers_are_those_at_their_calls() {
    let mut read = 0;
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let calls = calls(&bytes, &module);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut chosen = HashMap::new();
        for (place, arguments) in &calls {
            let Some(values) = places.get(place) else { continue };
            let mut values = values.choose(6, &mut random);
            values.retain(|value| match value.bound {
                Bound::Operand(depth) => depth >= *arguments,
                bound => bound != Bound::Address,
            });
            chosen.insert(*place, values);
        }
        let bounds: HashMap<Location, (Counted, Vec<Bound>, u32)> = chosen
            .iter()
            .map(|(place, values)| {
                let bounds = values.iter().map(|value| value.bound).collect();
                (location(&module, *place), (*place, bounds, calls[place]))
            })
            .collect();
        let records: Arc<Mutex<HashMap<Counted, u64>>> = Arc::default();
        let of_probes = records.clone();
        let kind = generic(move |frame| {
            let Some(caller) = frame.caller()? else {
                assert_eq!(frame.depth(), 0);
                return Ok(());
            };
            assert_eq!(caller.depth(frame)? + 1, frame.depth());
            let (place, bounds, arguments) = &bounds[&caller.location(frame)?];
            let mut record = *of_probes.lock().unwrap().entry(*place).or_default();
            for bound in bounds {
                let value = match bound {
                    Bound::Local(index) => caller.local(frame, *index)?,
                    Bound::Operand(depth) => caller.operand(frame, *depth - arguments)?,
                    other => panic!("{other:?}"),
                };
                record = values::add(record, raw(&value));
            }
            of_probes.lock().unwrap().insert(*place, record);
            Ok(())
        });
        let entries = (0..4).map(|function| ((function, None), (), kind.clone())).collect();
        let probes = make(&module, entries);
        probes.iter().for_each(|(.., probe)| probe.activate().unwrap());
        let (expected, of_reference) = reference(&bytes, &places, &chosen);
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        for (place, record) in &*records.lock().unwrap() {
            assert_eq!(*record, of_reference[place], "seed {seed}: {place:x?} {:?}", chosen[place]);
            read += chosen[place].len();
        }
    }
    println!("values of callers at {read} places");
    assert!(read > 5 * seeds().end as usize, "{read}");
}

/// A module, its instance, and its exported function.
pub(crate) fn program(text: &str) -> (Module, Store<()>, Instance) {
    let module = Module::new(&engine(), text).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (module, store, instance)
}

pub(crate) fn entry(function: u32, kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function, place: Place::Entry }, kind }
}

/// The offset of the first instruction that does this.
pub(crate) fn offset_of(module: &Module, function: u32, mut what: impl FnMut(&Operator<'_>) -> bool) -> u32 {
    let function = module.function(function).unwrap();
    let body = function.body().unwrap();
    let mut all = body.instructions();
    let at = all.find(|instruction| what(instruction.operator())).unwrap();
    (at.offset() - body.range().start) as u32
}

pub(crate) fn at(function: u32, offset: u32, kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function, place: Place::Instruction { offset } }, kind }
}

pub(crate) fn call(store: &mut Store<()>, instance: &Instance, argument: i32) -> Result<i32, Error> {
    instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap().call(&mut *store, argument)
}

/// What a closure does ends the activation as what a host function does; nothing else is disturbed.
#[test]
fn errors_panics_and_exceptions_of_closures_end_the_call() {
    let text = "(module (tag $tag (export \"tag\"))
        (func $run (export \"run\") (param i32) (result i32)
            (block (try_table (catch_all 0) (call $inner (local.get 0)) (return (i32.const 1))))
            (i32.const 2))
        (func $inner (param i32) (drop (i32.add (local.get 0) (i32.const 1)))))";
    let (module, mut store, instance) = program(text);
    let add = offset_of(&module, 1, |operator| matches!(operator, Operator::I32Add));
    let tag = instance.get_tag(&mut store, "tag").unwrap();
    let exception = wasm_jit::ExnRef::new(&mut store, &tag, &[]).unwrap();
    let kind = generic(move |frame| match frame.local(0)?.unwrap_i32() {
        1 => Err(Error::host("an error")),
        2 => panic!("a panic"),
        3 => Err(exception.clone().into()),
        4 => Err(Trap::IntegerOverflow.into()),
        _ => Ok(()),
    });
    let probe = module.probe(at(1, add, kind)).unwrap();
    probe.activate().unwrap();
    for _ in 0..2 {
        assert_eq!(call(&mut store, &instance, 0).unwrap(), 1);
        let error = call(&mut store, &instance, 1).unwrap_err();
        assert!(error.to_string().contains("an error"), "{error}");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = call(&mut store, &instance, 2);
        }));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"a panic"));
        let error = call(&mut store, &instance, 3).unwrap_err();
        assert!(matches!(error, Error::Exception { .. }), "no handler of the program gets it: {error}");
        let error = call(&mut store, &instance, 4).unwrap_err();
        let Error::Trap { trap: Trap::IntegerOverflow, backtrace } = &error else { panic!("{error}") };
        let frames: Vec<_> = backtrace.frames().iter().map(|frame| frame.func_index()).collect();
        assert_eq!(frames, [1, 0]);
        assert_eq!(backtrace.frames()[0].func_offset(), Some(add as usize));
    }
}

/// A closure calls into its own instance, whose probes fire, and whose code uses what the site had
/// put aside.
#[test]
fn closures_call_into_the_running_instance() {
    // The loads are done by the additions: sites keep them aside.
    let text = "(module (memory 1) (data (i32.const 0) \"\\05\\00\\00\\00\\07\\00\\00\\00\")
        (func $run (export \"run\") (param i32) (result i32)
            (i32.add (local.get 0) (i32.load (i32.const 0))))
        (func (export \"other\") (param i32) (result i32)
            (i32.add (local.get 0) (i32.load (i32.const 4)))))";
    let (module, mut store, instance) = program(text);
    let depths: Arc<Mutex<Vec<(usize, usize)>>> = Arc::default();
    let seen = depths.clone();
    let outer = generic(move |frame| {
        let own = frame.accessor()?;
        assert_eq!(frame.operand(0)?.unwrap_i32(), 5);
        let instance = frame.instance();
        assert!(frame.store::<u32>().is_none(), "the store has other data");
        let mut store = frame.store::<()>().unwrap();
        let other = instance.get_typed_func::<i32, i32>(&mut store, "other")?;
        assert_eq!(other.call(&mut store, 100)?, 107);
        assert_eq!(frame.operand(0)?.unwrap_i32(), 5);
        assert_eq!(frame.accessor()?, own);
        seen.lock().unwrap().push((frame.depth(), 0));
        Ok(())
    });
    let seen = depths.clone();
    let inner = generic(move |frame| {
        assert_eq!(frame.operand(0)?.unwrap_i32(), 7);
        let waiting = frame.caller()?.expect("the frame that the outer probe interrupted");
        assert_eq!(waiting.operand(frame, 0)?.unwrap_i32(), 5);
        assert_eq!(waiting.local(frame, 0)?.unwrap_i32(), 1);
        assert_eq!(waiting.location(frame)?.function, 0);
        seen.lock().unwrap().push((frame.depth(), waiting.depth(frame)?));
        Ok(())
    });
    let is_add = |operator: &Operator<'_>| matches!(operator, Operator::I32Add);
    let specs = [(0, outer), (1, inner)]
        .map(|(function, kind)| at(function, offset_of(&module, function, is_add), kind));
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    assert_eq!(call(&mut store, &instance, 1).unwrap(), 6);
    assert_eq!(*depths.lock().unwrap(), [(1, 0), (0, 0)]);
}

/// References have their types, and can be changed; a value of another type is refused.
#[test]
fn references_are_read_and_written() {
    let text = "(module
        (func $run (export \"run\") (param i32) (result i32) (local $function funcref)
            (local.set $function (ref.func $run))
            (i32.add (local.get 0)
                (ref.is_null (call $same (local.get $function) (ref.null extern)))))
        (func $same (param funcref externref) (result funcref) (drop (ref.is_null (local.get 1)))
            (local.get 0))
        (elem declare func $run))";
    let (module, mut store, instance) = program(text);
    let is_null = |operator: &Operator<'_>| matches!(operator, Operator::RefIsNull);
    let of_same = generic(|frame| {
        assert!(frame.local(0)?.func_ref().is_some_and(|function| function.is_some()));
        assert!(frame.operand(0)?.extern_ref().is_some_and(|reference| reference.is_none()));
        let error = frame.set_local(0, &Val::ExternRef(None)).unwrap_err();
        assert!(matches!(error, AccessError::Value(_)), "{error}");
        assert!(matches!(frame.local(9), Err(AccessError::NoLocal { index: 9 })));
        assert!(matches!(frame.operand(1), Err(AccessError::NoOperand { depth: 1 })));
        frame.set_local(0, &Val::FuncRef(None))?;
        Ok(())
    });
    let of_run = generic(|frame| {
        assert!(frame.operand(0)?.func_ref().is_some_and(|function| function.is_none()));
        assert_eq!(frame.operand(1)?.unwrap_i32(), 4);
        Ok(())
    });
    let specs =
        [at(1, offset_of(&module, 1, is_null), of_same), at(0, offset_of(&module, 0, is_null), of_run)];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    assert_eq!(call(&mut store, &instance, 4).unwrap(), 4);
    probes.iter().for_each(|probe| probe.activate().unwrap());
    assert_eq!(call(&mut store, &instance, 4).unwrap(), 5);
}

/// A reference keeps the properties on which its calls rely: its type, and that it is not null.
#[test]
fn typed_references_are_checked_when_written() {
    let text = "(module (type $unary (func (param i32) (result i32)))
        (func $run (export \"run\") (param i32) (result i32) (local $sure (ref $unary))
            (local.set $sure (ref.func $inc))
            (call_ref $unary (local.get 0) (local.get $sure)))
        (func $inc (type $unary) (i32.add (local.get 0) (i32.const 1)))
        (func $twice (type $unary) (i32.mul (local.get 0) (i32.const 2)))
        (func $other (export \"other\") (param i64))
        (func (export \"twice\") (result funcref) (ref.func $twice))
        (elem declare func $inc $twice))";
    let (module, mut store, instance) = program(text);
    let twice = instance.get_typed_func::<(), Option<Func>>(&mut store, "twice").unwrap();
    let twice = twice.call(&mut store, ()).unwrap();
    let other = instance.get_func(&mut store, "other");
    let is_call = |operator: &Operator<'_>| matches!(operator, Operator::CallRef { .. });
    let wrong = move || [Val::FuncRef(None), Val::FuncRef(other), Val::ExternRef(None)];
    let before_call = generic(move |frame| {
        for value in wrong() {
            let error = frame.set_operand(0, &value).unwrap_err();
            assert!(matches!(error, AccessError::Value(_)), "{error}");
            let error = frame.set_local(1, &value).unwrap_err();
            assert!(matches!(error, AccessError::Value(_)), "{error}");
        }
        assert_eq!(frame.callee(), Some(1));
        frame.set_operand(0, &Val::FuncRef(twice))?;
        assert_eq!(frame.callee(), Some(2));
        Ok(())
    });
    let probe = module.probe(at(0, offset_of(&module, 0, is_call), before_call)).unwrap();
    assert_eq!(call(&mut store, &instance, 7).unwrap(), 8);
    probe.activate().unwrap();
    assert_eq!(call(&mut store, &instance, 7).unwrap(), 14);
}

/// The closures of a place are called in the order of activation, for their scopes only, and see
/// what those before them have written.
#[test]
fn closures_of_one_place_are_called_in_order() {
    let (module, mut store, instance) = program(
        "(module (func (export \"run\") (param i32) (result i32) (i32.add (local.get 0) (local.get 0))))",
    );
    let add = offset_of(&module, 0, |operator| matches!(operator, Operator::LocalGet { .. }));
    let log: Arc<Mutex<Vec<(u32, i32)>>> = Arc::default();
    let probes: Vec<Probe> = (0..3)
        .map(|number| {
            let log = log.clone();
            let kind = generic(move |frame| {
                let value = frame.local(0)?.unwrap_i32();
                log.lock().unwrap().push((number, value));
                Ok(frame.set_local(0, &Val::I32(10 * value))?)
            });
            module.probe(at(0, add, kind)).unwrap()
        })
        .collect();
    let counter = module.probe(at(0, add, Kind::Count)).unwrap();
    for number in [2, 0, 1] {
        probes[number].activate().unwrap();
    }
    counter.activate().unwrap();
    assert_eq!(call(&mut store, &instance, 1).unwrap(), 2000);
    assert_eq!(std::mem::take(&mut *log.lock().unwrap()), [(2, 1), (0, 10), (1, 100)]);
    probes[2].deactivate().unwrap();
    assert_eq!(call(&mut store, &instance, 1).unwrap(), 200);
    probes[2].activate().unwrap();
    assert_eq!(call(&mut store, &instance, 2).unwrap(), 4000);
    let numbers: BTreeSet<u32> = log.lock().unwrap().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, BTreeSet::from([0, 1, 2]));
    assert_eq!(log.lock().unwrap()[2..], [(0, 2), (1, 20), (2, 200)]);
    assert_eq!(counter.count(), 3);
}

/// Threads, each with its own store, run the same functions while their closures are switched.
#[test]
fn closures_are_switched_while_threads_run_them() {
    let bytes = wat::parse_str(programs::program(3)).unwrap();
    let module = Module::from_binary(&engine(), &bytes).unwrap();
    let expected = outcome(&module).0;
    let places = values::places(&bytes);
    let called = Arc::new(AtomicU64::new(0));
    let of_probes = called.clone();
    let kind = generic(move |frame| {
        of_probes.fetch_add(1, Relaxed);
        let accessor = frame.accessor()?;
        assert!(accessor.is_alive(frame));
        assert_eq!(accessor.location(frame)?, frame.location());
        Ok(())
    });
    let wanted = places.keys().map(|place| (*place, (), kind.clone())).collect();
    let probes = make(&module, wanted);
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
    probes.iter().for_each(|(.., probe)| probe.activate().unwrap());
    let before = called.load(Relaxed);
    assert_eq!(outcome(&module).0, expected);
    assert!(called.load(Relaxed) > before);
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    closures_read_the_values_of_the_program();
    writes_are_those_of_a_program_that_does_them_itself();
    values_of_callers_are_those_at_their_calls();
    errors_panics_and_exceptions_of_closures_end_the_call();
    closures_call_into_the_running_instance();
    references_are_read_and_written();
    closures_of_one_place_are_called_in_order();
}
