//! Probes that append records to buffers.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{
    Bound, Callback, Frame, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, Recorder, Scope,
    StoreId, Values, activate_all, deactivate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Error, Instance, Linker, Module, Store, Trap, Val};

use super::rewrite::Counted;
use super::threads::{Ends, PROGRAM};
use super::values::{Candidate, places};
use super::{call_main, engine, location, outcome, programs, seeds};

/// Values that a place can record at most: enough to leave no register free.
const MAX_VALUES: usize = 12;
/// With the number of the place.
const WORDS: usize = MAX_VALUES + 1;
/// Of the largest, a buffer holds 31.
const LARGEST: usize = 64;

type Log<const N: usize> = Arc<Mutex<Vec<[u64; N]>>>;

/// A recorder whose closure logs all records.
fn logging<const N: usize>() -> (Recorder, Log<N>) {
    let log = Log::default();
    let of_closure = log.clone();
    let recorder = Recorder::new(move |_, records: &[[u64; N]]| of_closure.lock().unwrap().extend(records));
    (recorder.unwrap(), log)
}

/// All records of a recorder that were not taken.
fn take<const N: usize>((recorder, log): &(Recorder, Log<N>)) -> Vec<[u64; N]> {
    recorder.flush();
    std::mem::take(&mut *log.lock().unwrap())
}

fn record(recorder: &Recorder, values: &[Bound]) -> Kind {
    Kind::Record { recorder: recorder.clone(), values: Values::from(values) }
}

/// Random values for each place that has some.
fn choose(bytes: &[u8], random: &mut SmallRng) -> Vec<(Counted, Vec<Candidate>)> {
    let places = places(bytes);
    let mut sorted: Vec<Counted> = places.keys().copied().collect();
    sorted.sort();
    let values = |place: Counted| {
        let count = [0, 1, 2, 3, MAX_VALUES][random.random_range(0..5)];
        (place, places[&place].choose(count, random))
    };
    sorted.into_iter().map(values).collect()
}

/// The values of a record, with this number.
fn bounds<const N: usize>(number: usize, values: &[Candidate]) -> [Bound; N] {
    let mut bounds = [Bound::Const(0); N];
    bounds[0] = Bound::Const(number as u64);
    bounds[1..].iter_mut().zip(values).for_each(|(bound, value)| *bound = value.bound);
    bounds
}

/// The same record, as a closure finds its values in the frame.
fn read<const N: usize>(
    frame: &mut Frame<'_>,
    number: usize,
    values: &[Candidate],
) -> Result<[u64; N], Error> {
    let mut words = [0; N];
    words[0] = number as u64;
    for (word, value) in words[1..].iter_mut().zip(values) {
        let found = match value.bound {
            Bound::Local(index) => frame.local(index)?,
            _ => frame.operand(value.depth)?,
        };
        *word = value.plus
            + match found {
                Val::I32(value) => u64::from(value as u32),
                Val::I64(value) => value as u64,
                Val::F32(bits) => bits.into(),
                Val::F64(bits) => bits,
                other => panic!("{other:?}"),
            };
    }
    Ok(words)
}

/// A kind of probe for a place by its number, with its values.
type KindOf<'a> = &'a dyn Fn(usize, &[Candidate]) -> Kind;

/// Active probes at all places that control can come to.
fn probes(module: &Module, chosen: &[(Counted, Vec<Candidate>)], kind: KindOf<'_>) -> Vec<Probe> {
    let spec = |(number, (place, values)): (usize, &(Counted, Vec<Candidate>))| ProbeSpec {
        location: location(module, *place),
        kind: kind(number, values),
    };
    let specs: Vec<ProbeSpec> = chosen.iter().enumerate().map(spec).collect();
    let made: Vec<Probe> = module
        .probes(&specs)
        .into_iter()
        .filter_map(|probe| match probe {
            Ok(probe) => Some(probe),
            Err(ProbeError::Unreachable { .. }) => None,
            Err(error) => panic!("{error}"),
        })
        .collect();
    activate_all(&made).into_iter().for_each(|on| on.unwrap());
    made
}

/// Probes with closures that read the values from the frame.
fn reading(module: &Module, chosen: &[(Counted, Vec<Candidate>)], log: &Log<WORDS>) -> Vec<Probe> {
    probes(module, chosen, &|number, values| {
        let (log, values) = (log.clone(), values.to_vec());
        Kind::Generic(GenericFn::new(move |frame| {
            let words = read(frame, number, &values)?;
            log.lock().unwrap().push(words);
            Ok(())
        }))
    })
}

/// Random programs have the same records as closures read from the frame, alone at a place, with
/// others and with counters there, and while a closure is called at the same place.
#[test]
fn records_are_what_closures_find_in_the_frame() {
    let (mut recorded, seeds) = (0, seeds().take(20));
    for seed in seeds.clone() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let chosen = choose(&bytes, &mut SmallRng::seed_from_u64(seed));
        let module = || Module::from_binary(&engine(), &bytes).unwrap();
        let expected = outcome(&module()).0;
        let log = Log::<WORDS>::default();
        let with_closures = module();
        let closures = reading(&with_closures, &chosen, &log);
        assert_eq!(outcome(&with_closures).0, expected, "seed {seed}");
        let reference = std::mem::take(&mut *log.lock().unwrap());
        recorded += reference.len();

        let (one, two) = (logging::<WORDS>(), logging::<WORDS>());
        let of = |recorder: &Recorder, number: usize, values: &[Candidate]| {
            record(recorder, &bounds::<WORDS>(number, values))
        };
        let module = module();
        let first = probes(&module, &chosen, &|number, values| of(&one.0, number, values));
        let check = |context: &str, recorders: &[(&(Recorder, Log<WORDS>), bool)]| {
            assert_eq!(outcome(&module).0, expected, "seed {seed}: {context}");
            for (recorder, is_on) in recorders {
                let records = take(recorder);
                let expected = if *is_on { &reference[..] } else { &[] };
                assert_eq!(records.len(), expected.len(), "seed {seed}: {context}");
                assert_eq!(records, *expected, "seed {seed}: {context}");
            }
        };
        check("alone", &[(&one, true)]);
        let second = probes(&module, &chosen, &|number, values| of(&two.0, number, values));
        check("two at each place", &[(&one, true), (&two, true)]);
        let counters = probes(&module, &chosen, &|_, _| Kind::Count);
        check("with counters", &[(&one, true), (&two, true)]);
        let counted: u64 = counters.iter().map(Probe::count).sum();
        assert_eq!(counted, reference.len() as u64, "seed {seed}");
        deactivate_all(&first).into_iter().for_each(|off| off.unwrap());
        check("the first is off", &[(&one, false), (&two, true)]);
        let others = reading(&module, &chosen, &log);
        check("with closures", &[(&one, false), (&two, true)]);
        assert_eq!(*log.lock().unwrap(), reference, "seed {seed}");
        drop((closures, others));
        deactivate_all(&second).into_iter().for_each(|off| off.unwrap());
        check("off", &[(&one, false), (&two, false)]);
    }
    println!("{recorded} records");
    assert!(recorded > 60 * seeds.count(), "{recorded}");
}

/// The store of a module with a function that records as often as it is asked to.
fn padded(engine: &Engine, kind: Kind) -> (Module, Probe) {
    let text = "(module (func (export \"pad\") (param i32)
        (loop (br_if 1 (i32.eqz (local.get 0)))
            (local.set 0 (i32.sub (local.get 0) (i32.const 1))) (br 0))))";
    let module = Module::new(engine, text).unwrap();
    let probe = module.probe(ProbeSpec { location: subtraction(&module, 0), kind }).unwrap();
    probe.activate().unwrap();
    (module, probe)
}

/// The place of a function's subtraction.
fn subtraction(module: &Module, function: u32) -> Location {
    let body = module.function(function).unwrap().body().unwrap();
    let at = body.instructions().find(|it| matches!(it.operator(), Operator::I32Sub)).unwrap();
    let offset = (at.offset() - body.range().start) as u32;
    Location { function, place: Place::Instruction { offset } }
}

/// The buffer becomes full at each place of a program once, with everything that is live there.
#[test]
fn a_full_buffer_is_emptied_at_any_place() {
    for seed in seeds().take(6) {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let chosen = choose(&bytes, &mut SmallRng::seed_from_u64(seed));
        let engine = engine();
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let (expected, ..) = outcome(&module);
        let recorder = logging::<LARGEST>();
        let _probes = probes(&module, &chosen, &|number, values| {
            record(&recorder.0, &bounds::<LARGEST>(number, values))
        });
        let padding = record(&recorder.0, &[Bound::Const(u64::MAX); LARGEST]);
        let (pad, _probe) = padded(&engine, padding);
        let mut reference = None;
        for count in 0..31 {
            let mut store = Store::new(&engine, ());
            let pad = Instance::new(&mut store, &pad, &[]).unwrap();
            pad.get_typed_func::<i32, ()>(&mut store, "pad").unwrap().call(&mut store, count).unwrap();
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            assert_eq!(call_main(&mut store, &instance), expected, "seed {seed}, {count}");
            let records = take(&recorder);
            let (padding, own) = records.split_at(count as usize);
            assert!(padding.iter().all(|record| *record == [u64::MAX; LARGEST]));
            let reference = reference.get_or_insert_with(|| own.to_vec());
            assert!(own == reference, "seed {seed}, {count}");
        }
    }
}

/// How often each first word of a record was, by store.
type Counts = Arc<Mutex<HashMap<StoreId, Vec<u64>>>>;

/// A recorder whose closure counts records by their first word in each store.
fn counting() -> (Recorder, Counts) {
    let counts = Counts::default();
    let of_closure = counts.clone();
    let recorder = Recorder::new(move |store, records: &[[u64; 2]]| {
        let mut counts = of_closure.lock().unwrap();
        let counts: &mut Vec<u64> = counts.entry(store).or_default();
        for [place, _] in records {
            let place = *place as usize;
            counts.resize(counts.len().max(place + 1), 0);
            counts[place] += 1;
        }
    });
    (recorder.unwrap(), counts)
}

/// Four threads run a program, while others switch its probes, flush, and remove probes and their
/// recorders. No program is disturbed, and when it is quiet, each store has its own records.
#[test]
fn threads_have_their_own_records() {
    const EXECUTORS: usize = 4;
    const ROUNDS: usize = 12;
    let bytes = wat::parse_str(PROGRAM).unwrap();
    let module = Module::from_binary(&engine(), &bytes).unwrap();
    let expected = outcome(&module).0;
    let chosen = choose(&bytes, &mut SmallRng::seed_from_u64(0));
    let kind_of = |recorder: &Recorder| {
        let recorder = recorder.clone();
        move |number: usize, _: &[Candidate]| record(&recorder, &[Bound::Const(number as u64), Bound::Frame])
    };
    let (lasting, counts) = counting();
    let of_lasting = probes(&module, &chosen, &kind_of(&lasting));
    let counters = probes(&module, &chosen, &|_, _| Kind::Count);
    let (reference, (mut store, instance)) = {
        let (_, store, instance) = outcome(&module);
        lasting.flush();
        (counts.lock().unwrap()[&store.id()].clone(), (store, instance))
    };
    let counted: Vec<u64> = counters.iter().map(Probe::count).collect();
    assert_eq!(
        reference.iter().filter(|count| **count > 0).count(),
        counted.iter().filter(|count| **count > 0).count()
    );
    drop(counters);
    let (is_over, runs) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..EXECUTORS {
            scope.spawn(|| {
                let _ends = Ends(&is_over);
                let mut store = Store::new(module.engine(), ());
                let instance = Instance::new(&mut store, &module, &[]).unwrap();
                while !is_over.load(Ordering::Acquire) {
                    assert_eq!(call_main(&mut store, &instance), expected);
                    runs.fetch_add(1, Ordering::Relaxed);
                }
                // What this store has recorded is a whole number of runs once its probes stay on.
                lasting.flush();
                let before = counts.lock().unwrap()[&store.id()].clone();
                assert_eq!(call_main(&mut store, &instance), expected);
                lasting.flush();
                let after = counts.lock().unwrap()[&store.id()].clone();
                let of_run: Vec<u64> =
                    after.iter().zip(&before).map(|(after, before)| after - before).collect();
                assert_eq!(of_run, reference);
            });
        }
        let _ends = Ends(&is_over);
        let mut random = SmallRng::seed_from_u64(1);
        for round in 0..ROUNDS {
            // Records of this recorder only have its round.
            let sum = Arc::new(AtomicU64::new(0));
            let of_closure = sum.clone();
            let own = Recorder::new(move |_, records: &[[u64; 3]]| {
                assert!(records.iter().all(|record| record[..2] == [round as u64, !(round as u64)]));
                of_closure.fetch_add(records.len() as u64, Ordering::Relaxed);
            })
            .unwrap();
            let made = probes(&module, &chosen, &|_, _| {
                record(&own, &[Bound::Const(round as u64), Bound::Const(!(round as u64)), Bound::Context])
            });
            super::threads::wait_for_a_run(&runs, &is_over);
            for _ in 0..50 {
                let probe = &made[random.random_range(0..made.len())];
                if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
                if random.random_range(0..4) == 0 {
                    own.flush();
                    lasting.flush();
                }
            }
            own.flush();
            assert!(sum.load(Ordering::Relaxed) > 0);
            drop((made, own));
        }
    });
    // The stores of the others have ended; this one can be used.
    let before = counts.lock().unwrap()[&store.id()].clone();
    assert_eq!(call_main(&mut store, &instance), expected);
    lasting.flush();
    let after = counts.lock().unwrap()[&store.id()].clone();
    assert!(after.iter().zip(&before).map(|(after, before)| after - before).eq(reference.iter().copied()));
    drop(of_lasting);
}

const LOOP: &str = "(module (func (export \"run\") (param i32) (result i32) (local i32)
    (loop $again
        (local.set 1 (i32.add (i32.mul (local.get 1) (i32.const 3)) (local.get 0)))
        (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
    (local.get 1)))";

/// The module [`LOOP`], with a probe at its subtraction.
fn looping(kind: Kind, scope: Scope) -> (Module, Probe) {
    let module = Module::new(&engine(), LOOP).unwrap();
    let probe = looping_probe(&module, kind, scope);
    (module, probe)
}

fn looping_probe(module: &Module, kind: Kind, scope: Scope) -> Probe {
    let location = subtraction(module, 0);
    let probe = module.scoped_probes(scope, &[ProbeSpec { location, kind }]).pop().unwrap().unwrap();
    probe.activate().unwrap();
    probe
}

/// Calls [`LOOP`]'s function in a new instance of a store.
fn run(store: &mut Store<()>, module: &Module, count: i32) -> Result<i32, Error> {
    let instance = Instance::new(&mut *store, module, &[]).unwrap();
    instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap().call(&mut *store, count)
}

/// Records of a store that has ended are not lost, and those of instances of one store are in their
/// order.
#[test]
fn records_outlive_their_store() {
    let recorder = logging::<1>();
    let (module, _probe) = looping(record(&recorder.0, &[Bound::Local(0)]), Scope::Module);
    let mut stores = [Store::new(module.engine(), ()), Store::new(module.engine(), ())];
    for count in [3, 2] {
        run(&mut stores[0], &module, count).unwrap();
    }
    run(&mut stores[1], &module, 1).unwrap();
    drop(stores);
    assert_eq!(take(&recorder), [[3], [2], [1], [2], [1], [1]]);
    // Its buffer has gone, and there is another one.
    run(&mut Store::new(module.engine(), ()), &module, 1).unwrap();
    assert_eq!(take(&recorder), [[1]]);
    // A store that gets a buffer makes those of stores that have ended be given back.
    for _ in 0..2 {
        run(&mut Store::new(module.engine(), ()), &module, 1).unwrap();
    }
    assert_eq!(*recorder.1.lock().unwrap(), [[1]]);
    assert_eq!(take(&recorder), [[1], [1]]);
}

/// A module whose function calls the host after each record.
const PAUSING: &str = "(module (import \"host\" \"pause\" (func $pause)) (func (export \"run\") (param i32)
    (loop $again
        (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
        (call $pause)
        (br_if $again (local.get 0)))))";

/// A store makes records and ends while its buffer is being read: these come with the next flush.
#[test]
fn records_of_a_store_that_ends_during_a_flush_are_kept() {
    let module = Module::new(&engine(), PAUSING).unwrap();
    // The closure lets the program go on when it gets the first record, and waits for its end.
    let program = Arc::new(Mutex::new(None::<(Sender<()>, JoinHandle<()>)>));
    let (count, of_closure) = (Arc::new(AtomicU64::new(0)), program.clone());
    let counted = count.clone();
    let recorder = Recorder::new(move |_, records: &[[u64; 1]]| {
        counted.fetch_add(records.len() as u64, Ordering::Relaxed);
        if let Some((go_on, thread)) = of_closure.lock().unwrap().take() {
            drop(go_on);
            thread.join().unwrap();
        }
    })
    .unwrap();
    let kind = record(&recorder, &[Bound::Local(0)]);
    let location = subtraction(&module, 1);
    let probe = module.probe(ProbeSpec { location, kind }).unwrap();
    probe.activate().unwrap();
    let ((go_on, goes_on), (has_paused, pauses)) = (channel::<()>(), channel());
    let goes_on = Mutex::new(goes_on);
    let thread = std::thread::spawn(move || {
        let mut linker = Linker::new(module.engine());
        let pause = move || {
            let _ = has_paused.send(());
            // Returns at once when the sender has gone.
            let _ = goes_on.lock().unwrap().recv();
        };
        linker.func_wrap("host", "pause", pause).unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = linker.instantiate(&mut store, &module).unwrap();
        instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 10).unwrap();
    });
    pauses.recv().unwrap();
    *program.lock().unwrap() = Some((go_on, thread));
    recorder.flush();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    recorder.flush();
    assert_eq!(count.load(Ordering::Relaxed), 10);
}

/// Stubs of recorders that were dropped are freed while the store goes on, and their numbers are
/// used by others, with records of another length.
#[test]
fn numbers_of_recorders_are_used_again_in_a_store_that_goes_on() {
    const ADDITIONS: usize = 400;
    let additions = "(local.set 0 (i32.add (i32.xor (local.get 0) (i32.const 77)) (local.get 0)))";
    let text = format!(
        "(module (func (export \"run\") (param i32) (result i32) {} (local.get 0)))",
        additions.repeat(ADDITIONS)
    );
    let module = Module::new(&engine(), text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let start = body.range().start;
    let additions = body.instructions().filter(|it| matches!(it.operator(), Operator::I32Add));
    let place = |offset| Location { function: 0, place: Place::Instruction { offset } };
    let places: Vec<Location> = additions.map(|it| place((it.offset() - start) as u32)).collect();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let mut round = |recorder: &Recorder, values: &[Bound]| {
        let spec = |location: &Location| ProbeSpec { location: *location, kind: record(recorder, values) };
        let specs: Vec<ProbeSpec> = places.iter().map(spec).collect();
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        run.call(&mut store, 5).unwrap();
    };
    let mut closures: Vec<Weak<dyn Any>> = Vec::new();
    for number in 0..30 {
        if number % 2 == 0 {
            let recorder = logging::<1>();
            let log: Arc<dyn Any> = recorder.1.clone();
            closures.push(Arc::downgrade(&log));
            drop(log);
            round(&recorder.0, &[Bound::Const(number)]);
            assert_eq!(take(&recorder), [[number]; ADDITIONS]);
        } else {
            let recorder = logging::<3>();
            let log: Arc<dyn Any> = recorder.1.clone();
            closures.push(Arc::downgrade(&log));
            drop(log);
            round(&recorder.0, &[Bound::Const(number); 3]);
            assert_eq!(take(&recorder), [[number; 3]; ADDITIONS]);
        }
    }
    let kept = closures.iter().filter(|closure| closure.strong_count() > 0).count();
    assert!(kept < 20, "{kept}");
}

/// Instances of other scopes pass the probe, with and without a closure at its place.
#[test]
fn records_are_made_in_their_scope_only() {
    let (of_instance, of_store) = (logging::<1>(), logging::<1>());
    let module = Module::new(&engine(), LOOP).unwrap();
    let mut stores = [Store::new(module.engine(), ()), Store::new(module.engine(), ())];
    let instances =
        [0, 0, 1].map(|store: usize| (store, Instance::new(&mut stores[store], &module, &[]).unwrap()));
    let instance = Scope::Instance(instances[1].1.id(&stores[0]));
    let scopes = [(&of_instance, instance), (&of_store, Scope::Store(stores[0].id()))];
    let mut run_all = |expected: [usize; 2]| {
        for (store, instance) in instances {
            let store = &mut stores[store];
            let run = instance.get_typed_func::<i32, i32>(&mut *store, "run").unwrap();
            run.call(&mut *store, 1000).unwrap();
        }
        for ((recorder, _), expected) in scopes.iter().zip(expected) {
            assert_eq!(take(recorder).len(), expected);
        }
    };
    let [one, two] =
        scopes.map(|(recorder, scope)| looping_probe(&module, record(&recorder.0, &[Bound::Frame]), scope));
    run_all([1000, 2000]);
    two.deactivate().unwrap();
    run_all([1000, 0]);
    let closure = Kind::Callback { function: Callback::new(|_| {}), values: [].into() };
    let _closure = looping_probe(&module, closure, Scope::Module);
    run_all([1000, 0]);
    two.activate().unwrap();
    one.deactivate().unwrap();
    run_all([0, 2000]);
}

/// What a panic of the closure, or of another use of the recorder in it, does to the program.
fn check_panic(kind: Kind, expected: &str) {
    let (module, _probe) = looping(kind, Scope::Module);
    let mut store = Store::new(module.engine(), ());
    for _ in 0..2 {
        // 2047 records of one word fill a buffer.
        assert!(run(&mut store, &module, 100).is_ok());
        let panic = catch_unwind(AssertUnwindSafe(|| run(&mut store, &module, 2048))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&expected));
        assert!(run(&mut store, &module, 1000).is_ok(), "the buffer is empty");
    }
}

#[test]
fn a_panic_of_the_closure_ends_the_program() {
    let recorder = Recorder::new(|_, _: &[[u64; 1]]| panic!("full")).unwrap();
    check_panic(record(&recorder, &[Bound::Local(1)]), "full");
    catch_unwind(AssertUnwindSafe(|| recorder.flush())).unwrap_err();
    recorder.flush();
}

#[test]
fn a_closure_cannot_use_its_recorder() {
    let own = Arc::new(Mutex::new(None::<Recorder>));
    let of_closure = own.clone();
    let recorder = Recorder::new(move |_, _: &[[u64; 1]]| {
        let recorder = of_closure.lock().unwrap().clone().unwrap();
        recorder.flush();
    });
    let recorder = own.lock().unwrap().insert(recorder.unwrap()).clone();
    check_panic(
        record(&recorder, &[Bound::Local(1)]),
        "the closure of a recorder uses the recorder, or runs its probes",
    );
    own.lock().unwrap().take();
}

/// A program that does nothing but record can be interrupted, in the closure and outside of it.
#[test]
fn programs_that_record_are_interrupted() {
    let handle = Arc::new(Mutex::new(None::<wasm_jit::InterruptHandle>));
    let (of_closure, calls) = (handle.clone(), Arc::new(AtomicU32::new(0)));
    let of_calls = calls.clone();
    let recorder = Recorder::new(move |_, _: &[[u64; 1]]| {
        of_calls.fetch_add(1, Ordering::Relaxed);
        if let Some(handle) = &*of_closure.lock().unwrap() {
            handle.interrupt();
        }
    });
    let recorder = recorder.unwrap();
    let (module, _probe) = looping(record(&recorder, &[Bound::Local(1)]), Scope::Module);
    let mut store = Store::new(module.engine(), ());
    let interrupt = store.interrupt_handle();
    *handle.lock().unwrap() = Some(interrupt.clone());
    let trap = |result: Result<i32, Error>| result.unwrap_err().trap();
    assert_eq!(trap(run(&mut store, &module, 0)), Some(Trap::Interrupt));
    assert_eq!(calls.load(Ordering::Relaxed), 1, "it takes effect after the closure");
    handle.lock().unwrap().take();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = calls.load(Ordering::Relaxed);
            while calls.load(Ordering::Relaxed) < before + 3 {
                std::thread::yield_now();
            }
            interrupt.interrupt();
        });
        assert_eq!(trap(run(&mut store, &module, 0)), Some(Trap::Interrupt));
    });
    assert!(run(&mut store, &module, 3).is_ok());
}

/// The closure is dropped with the code.
#[test]
fn recorders_end_with_the_code_of_their_probes() {
    let owned = Arc::new(());
    for _ in 0..3 {
        let of_closure = owned.clone();
        let recorder = Recorder::new(move |_, _: &[[u64; 1]]| drop(of_closure.clone())).unwrap();
        let (module, probe) = looping(record(&recorder, &[Bound::Const(7)]), Scope::Module);
        let mut store = Store::new(module.engine(), ());
        run(&mut store, &module, 5).unwrap();
        drop((recorder, probe));
        assert_eq!(Arc::strong_count(&owned), 2, "a thread may be in the stub");
        run(&mut store, &module, 5).unwrap();
        drop((module, store));
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}

#[test]
fn records_have_the_values_of_their_recorder() {
    let recorder = logging::<2>();
    let module = Module::new(&engine(), LOOP).unwrap();
    let location = Location { function: 0, place: Place::Entry };
    let refused = |values: &[Bound]| {
        let kind = record(&recorder.0, values);
        module.probe(ProbeSpec { location, kind }).unwrap_err()
    };
    let error = refused(&[Bound::Local(0)]);
    assert!(matches!(error, ProbeError::Parameters { parameters: 2, values: 1 }), "{error}");
    let error = refused(&[Bound::Local(0), Bound::Local(2)]);
    assert!(matches!(error, ProbeError::Value { value: Bound::Local(2), .. }), "{error}");
}

pub(crate) fn test_all() {
    records_are_what_closures_find_in_the_frame();
    a_full_buffer_is_emptied_at_any_place();
    threads_have_their_own_records();
    records_outlive_their_store();
    records_of_a_store_that_ends_during_a_flush_are_kept();
    numbers_of_recorders_are_used_again_in_a_store_that_goes_on();
    records_are_made_in_their_scope_only();
    a_panic_of_the_closure_ends_the_program();
    a_closure_cannot_use_its_recorder();
    programs_that_record_are_interrupted();
    recorders_end_with_the_code_of_their_probes();
    records_have_the_values_of_their_recorder();
}
