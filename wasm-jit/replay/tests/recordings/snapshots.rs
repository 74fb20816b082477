//! Replays that begin with snapshots, compared with the end of a complete replay, instruction by
//! instruction.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use crate::support::{Trace, random};
use wasm_jit::probes::{Frame, GenericFn, Kind, Location, Place, ProbeSpec};
use wasm_jit::{Caller, Config, Engine, Error, Linker, Module, Store, Trap, Val};
use wasm_jit_replay::{Ended, Error as ReplayError, Recorder, Replay, Snapshots};

/// `act` changes each kind of state; with the last argument it uses a segment, which was then
/// dropped.
const PROGRAM: &str = r#"(module
    (import "host" "next" (func $next (result i32)))
    (import "host" "memory" (memory $imported 1 8))
    (memory $own 1)
    (export "imported" (memory $imported))
    (export "own" (memory $own))
    (type $unary (func (param i32) (result i32)))
    (table $t 2 funcref)
    (global $g (mut i32) (i32.const 0))
    (global $f (mut funcref) (ref.null func))
    (global $v (mut v128) (v128.const i64x2 0 0))
    (data $d "passive")
    (data (memory $own) (i32.const 100) "active")
    (elem $e func $double $square)
    (elem (table $t) (i32.const 0) func $square)
    (func $double (param i32) (result i32) (i32.mul (local.get 0) (i32.const 2)))
    (func $square (param i32) (result i32) (i32.mul (local.get 0) (local.get 0)))
    (func $sum (result i32) (local $at i32) (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (i32.rotl (local.get $sum) (i32.const 1))
                (i32.add (i32.load $own (local.get $at)) (i32.load $imported (local.get $at)))))
            (br_if $again (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 4))) (i32.const 256))))
        (i32.add (local.get $sum) (i32.add (memory.size $own) (memory.size $imported))))
    (func $start (i32.store $own (i32.const 8) (i32.const 77)))
    (start $start)
    (func (export "act") (param $what i32) (param $x i32) (result i32)
        (block $8 (block $7 (block $6 (block $5 (block $4 (block $3 (block $2 (block $1 (block $0
            (br_table $0 $1 $2 $3 $4 $5 $6 $7 $8 (local.get $what)))
        (;0;) (drop (memory.grow $own (i32.const 1))) (drop (memory.grow $imported (i32.const 1)))
            (i32.store $own (i32.sub (i32.mul (memory.size $own) (i32.const 65536)) (i32.const 4))
                (local.get $x))
            (return (memory.size $own)))
        (;1;) (drop (table.grow $t (ref.null func) (i32.const 1)))
            (table.set $t (i32.sub (table.size $t) (i32.const 1)) (ref.func $double))
            (return (table.size $t)))
        (;2;) (global.set $g (i32.add (global.get $g) (local.get $x)))
            (global.set $f (select (result funcref) (ref.func $square) (ref.null func)
                (i32.and (local.get $x) (i32.const 1))))
            (global.set $v (i32x4.add (global.get $v) (i32x4.splat (local.get $x))))
            (return (i32.add (ref.is_null (global.get $f)) (i32x4.extract_lane 2 (global.get $v)))))
        (;3;) (memory.init $own $d (i32.const 60) (i32.const 0) (i32.const 0)) (data.drop $d)
            (return (call $sum)))
        (;4;) (table.init $t $e (i32.const 0) (i32.const 0) (i32.const 0)) (elem.drop $e)
            (return (i32.const 0)))
        (;5;) (i32.store $imported (i32.const 40) (call $next)) (return (call $sum)))
        (;6;) (return (call_indirect $t (type $unary) (local.get $x)
                (select (i32.const 0) (i32.sub (table.size $t) (i32.const 1)) (table.size $t)))))
        (;7;) (i32.store $own (i32.and (local.get $x) (i32.const 252)) (local.get $x))
            (return (i32.add (call $sum) (global.get $g))))
        (;8;) (memory.init $own $d (i32.const 60) (i32.const 0) (i32.const 1))
        (i32.const 0)))"#;

/// The index of `act`: after the import and four others.
const ACT: u32 = 5;
const FUEL: u64 = 1 << 40;

fn engine() -> Engine {
    Engine::new(Config::new().consume_fuel(true)).unwrap()
}

/// Records this number of calls, the last of which traps.
fn record(seed: u64, calls: u64) -> Vec<u8> {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker = Linker::new(&engine);
    let state = Mutex::new(seed);
    let next = move |mut caller: Caller<'_, ()>| -> Result<i32, Error> {
        let value = random(&mut state.lock().unwrap(), 1 << 20);
        let own = caller.get_export("own").and_then(|export| export.into_memory()).unwrap();
        own.write(&mut caller, (value % 200) as usize, &value.to_le_bytes())?;
        Ok(value as i32)
    };
    linker.func_wrap("host", "next", next).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, ());
    let ty = wasm_jit::MemoryType::new(1, Some(8));
    let memory = wasm_jit::Memory::new(&mut store, ty).unwrap();
    memory.write(&mut store, 12, b"the host's").unwrap();
    linker.define(&store, "host", "memory", memory).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let act = instance.get_typed_func::<(i32, i32), i32>(&mut store, "act").unwrap();
    let mut state = seed + 1;
    for call in 1..calls {
        // Memories grow rarely.
        let what = match call {
            20 | 60 | 100 => 0,
            21 => 3,
            _ => 1 + random(&mut state, 7) as i32,
        };
        act.call(&mut store, (what, random(&mut state, 1 << 16) as i32)).unwrap();
    }
    act.call(&mut store, (8, 0)).unwrap_err();
    trace.bytes()
}

/// A moment: the location, the remaining fuel, the depth, and a hash of the state.
type Moment = (Location, u64, usize, u64);

/// All instructions of a replay, and the memories and the table at each call of `act`.
fn replay(
    module: &Module,
    trace: &[u8],
    fuel: u64,
    from: Option<(&Arc<Snapshots>, u64)>,
) -> (Result<Ended, ReplayError>, Vec<Moment>) {
    let executed: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let log = |frame: &mut Frame<'_>, executed: &Mutex<Vec<Moment>>, is_entry: bool| {
        let mut state = DefaultHasher::new();
        for memory in (0..2).filter(|_| is_entry) {
            let mut bytes = vec![0; frame.memory_size(memory).unwrap() as usize];
            frame.read_memory(memory, 0, &mut bytes).unwrap();
            bytes.hash(&mut state);
        }
        for operand in 0..frame.operands() as u32 {
            match frame.operand(operand).unwrap() {
                Val::FuncRef(func) => func.is_none().hash(&mut state),
                value => format!("{value:?}").hash(&mut state),
            }
        }
        let moment = (frame.location(), frame.fuel()?, frame.depth(), state.finish());
        executed.lock().unwrap().push(moment);
        Ok(())
    };
    let (of_all, of_entries) = (executed.clone(), executed.clone());
    let all =
        module.global_probe(Kind::Generic(GenericFn::new(move |frame| log(frame, &of_all, false)))).unwrap();
    all.activate().unwrap();
    let entry = GenericFn::new(move |frame| log(frame, &of_entries, true));
    let location = Location { function: ACT, place: Place::Entry };
    let entries = module.probe(ProbeSpec { location, kind: Kind::Generic(entry) }).unwrap();
    entries.activate().unwrap();
    let mut replay = Replay::new(module, Cursor::new(trace.to_vec())).unwrap();
    replay.set_fuel(fuel).unwrap();
    if let Some((snapshots, unobserved)) = from {
        replay.use_snapshots(snapshots.clone(), unobserved).unwrap();
    }
    let ended = replay.run();
    drop((all, entries));
    let executed = executed.lock().unwrap().clone();
    (ended, executed)
}

fn is_trap(ended: &Result<Ended, ReplayError>, trap: Trap) -> bool {
    match ended {
        Ok(Ended::Failed(error)) => error.trap() == Some(trap),
        Err(ReplayError::Failed { source, .. }) => source.trap() == Some(trap),
        _ => false,
    }
}

#[test]
fn the_rest_of_a_run_is_the_same_from_each_snapshot() {
    let trace = record(1, 120);
    let module = Module::new(&engine(), PROGRAM).unwrap();
    let (ended, expected) = replay(&module, &trace, FUEL, None);
    assert!(is_trap(&ended, Trap::MemoryOutOfBounds), "{ended:?}");
    let consumed = FUEL - expected.last().unwrap().1;
    let snapshots = Arc::new(Snapshots::with(1, usize::MAX));
    let (ended, executed) = replay(&module, &trace, FUEL, Some((&snapshots, u64::MAX)));
    assert!(is_trap(&ended, Trap::MemoryOutOfBounds), "{ended:?}");
    assert!(executed == expected, "the first one begins with the run");
    assert!(snapshots.count() > 32, "{}", snapshots.count());
    let (mut state, mut skipped) = (7, 0);
    for number in 0..20 {
        // Anywhere, or where a call begins: the end of the preceding call has the same fuel.
        let unobserved = match number % 2 {
            0 => random(&mut state, consumed + 2),
            _ => {
                let is_entry = |moment: &Moment| moment.0.place == Place::Entry;
                let entries = (1..expected.len()).filter(|index| is_entry(&expected[*index]));
                let ends: Vec<u64> = entries.map(|index| FUEL - expected[index - 1].1).collect();
                ends[random(&mut state, ends.len() as u64) as usize]
            }
        };
        // With all fuel, or with an amount that is consumed somewhere after that.
        let fuel = match number % 3 {
            0 => unobserved + random(&mut state, consumed - unobserved.min(consumed) + 1),
            _ => FUEL,
        };
        let (trap, all) = match fuel {
            FUEL => (Trap::MemoryOutOfBounds, expected.clone()),
            _ => {
                let (ended, executed) = replay(&module, &trace, fuel, None);
                let is_out = is_trap(&ended, Trap::OutOfFuel);
                (if is_out { Trap::OutOfFuel } else { Trap::MemoryOutOfBounds }, executed)
            }
        };
        let (ended, executed) = replay(&module, &trace, fuel, Some((&snapshots, unobserved)));
        let first = all.len() - executed.len();
        assert!(executed == all[first..], "{unobserved} of {fuel}");
        assert!(is_trap(&ended, trap), "{ended:?}");
        // Nothing of interest is missing.
        let is_missing = |(_, left, ..): &Moment| fuel - left >= unobserved;
        assert!(!all[..first].iter().any(is_missing), "{unobserved} of {fuel}");
        skipped += first;
    }
    assert!(skipped > 4 * expected.len(), "{skipped} of {}", expected.len());
}

#[test]
fn the_size_of_snapshots_is_limited() {
    let trace = record(2, 300);
    let module = Module::new(&engine(), PROGRAM).unwrap();
    let run = |snapshots: &Arc<Snapshots>, unobserved| {
        let mut replay = Replay::new(&module, Cursor::new(trace.clone())).unwrap();
        replay.set_fuel(FUEL).unwrap();
        replay.use_snapshots(snapshots.clone(), unobserved).unwrap();
        let begun_with = replay.fuel().unwrap();
        assert!(is_trap(&replay.run(), Trap::MemoryOutOfBounds));
        (FUEL - begun_with, FUEL - replay.fuel().unwrap())
    };
    let snapshots = Arc::new(Snapshots::with(1, usize::MAX));
    let (_, consumed) = run(&snapshots, u64::MAX);
    assert!((32..=64).contains(&snapshots.count()), "{}", snapshots.count());
    let bytes = snapshots.bytes();
    // They cover the run, regardless of which were dropped.
    for part in 1..8 {
        let unobserved = consumed * part / 8;
        let (begun, end) = run(&snapshots, unobserved);
        assert!(begun < unobserved && begun + consumed / 8 > unobserved, "{begun}, {unobserved}");
        assert_eq!(end, consumed);
    }
    let small = Arc::new(Snapshots::with(1, bytes / 4));
    run(&small, u64::MAX);
    assert!(small.count() >= 4 && small.bytes() <= bytes / 4, "{small:?}");
    let none = Arc::new(Snapshots::with(1, 1));
    run(&none, u64::MAX);
    assert_eq!((none.count(), none.bytes()), (0, 0));
    // By default, far apart.
    let default = Arc::new(Snapshots::new());
    run(&default, u64::MAX);
    assert_eq!(default.count(), 0);
}

#[test]
fn programs_whose_state_has_no_recorded_form_have_no_snapshots() {
    // An object in a variable, and one that the program changes.
    let texts = [
        r#"(module (type $box (struct (field i32))) (global $r (mut anyref) (ref.null any))
            (func (export "act") (param i32) (result i32)
                (local.get 0)
                (struct.get $box 0 (ref.cast (ref $box) (global.get $r)))
                (global.set $r (struct.new $box (local.get 0)))
                (i32.add))
            (func (export "set") (global.set $r (struct.new $box (i32.const 5)))))"#,
        r#"(module (type $box (struct (field (mut i32))))
            (global $b (ref $box) (struct.new $box (i32.const 0)))
            (func (export "act") (param i32) (result i32)
                (local.get 0)
                (struct.get $box 0 (global.get $b)) (struct.set $box 0 (global.get $b) (local.get 0))
                (i32.add))
            (func (export "set") (struct.set $box 0 (global.get $b) (i32.const 5))))"#,
    ];
    for text in texts {
        let engine = engine();
        let module = Module::new(&engine, text).unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let mut store = Store::new(&engine, ());
        store.set_fuel(FUEL).unwrap();
        let instance = recorder.instantiate(&mut store, &Linker::new(&engine)).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "set").unwrap().call(&mut store, ()).unwrap();
        let act = instance.get_typed_func::<i32, i32>(&mut store, "act").unwrap();
        assert_eq!(act.call(&mut store, 1).unwrap(), 6);
        assert_eq!(act.call(&mut store, 2).unwrap(), 3);
        let snapshots = Arc::new(Snapshots::with(1, usize::MAX));
        for _ in 0..2 {
            let mut replay = Replay::new(&module, Cursor::new(trace.bytes())).unwrap();
            replay.set_fuel(FUEL).unwrap();
            replay.use_snapshots(snapshots.clone(), u64::MAX).unwrap();
            let ended = replay.run();
            assert!(matches!(ended, Ok(Ended::Returned)), "{ended:?}");
            assert_eq!(snapshots.count(), 0);
        }
    }
}
