//! Several instances that call each other, including through references, and share memories, tables
//! and globals, recorded in one run: each has a trace, which replays alone, and equals that of a
//! run in which only this instance is recorded.

use std::io::Cursor;
use std::num::NonZeroU64;

use crate::support::{Replayed, Trace, events, random, reduced, replay, replay_in_wasmi, trace_of};
use wasm_jit::{
    AsContextMut, Caller, Engine, Error as EngineError, Global, GlobalType, Instance, Linker, Module,
    Mutability, Store, Val, ValType,
};
use wasm_jit_replay::{CallRecorder, Calls, Ended, Event, Recorder, Replay, Value, generate, reduce};

/// The part that all three have: a state that depends on everything that they read.
const STATE: &str = r#"
    (memory $own 1)
    (global $s (mut i64) (i64.const 1))
    (func $mix (param i64)
        (global.set $s (i64.add (i64.mul (i64.xor (global.get $s) (local.get 0))
            (i64.const 6364136223846793005)) (i64.const 1442695040888963407)))
        (global.set $s (i64.xor (global.get $s) (i64.shr_u (global.get $s) (i64.const 29)))))
    (func $at (result i32) (i32.and (i32.wrap_i64 (i64.shr_u (global.get $s) (i64.const 33))) (i32.const 2047)))
    (func $look
        (call $mix (i64.load $m (call $at)))
        (call $mix (i64.load $own (call $at)))
        (call $mix (global.get $count))
        (call $mix (i64.extend_i32_u (memory.size $m)))
        (call $mix (i64.extend_i32_u (table.size $t))))
    (func $change
        (i64.store16 $m (call $at) (global.get $s))
        (i64.store16 $own (call $at) (global.get $s))
        (global.set $count (i64.add (global.get $count) (i64.const 1)))
        (if (i32.eqz (i32.and (call $at) (i32.const 63))) (then (drop (memory.grow $m (i32.const 1)))))
        (if (i32.eqz (i32.and (call $at) (i32.const 63)))
            (then (drop (table.grow $t (ref.null func) (i32.const 1))))))
    (type $v (func (param i32) (result i32)))
    (table $kept 1 funcref)
    (elem declare func $visited $back)
    ;; Others call it through references.
    (func $visited (type $v)
        (call $mix (i64.extend_i32_u (local.get 0)))
        (call $look)
        (call $change)
        (call $look)
        (i32.wrap_i64 (global.get $s)))
    (func $in_table (param $slot i32) (result i32)
        (if (ref.is_null (table.get $t (local.get $slot))) (then (return (i32.const 1))))
        (return_call_indirect $t (type $v) (i32.wrap_i64 (global.get $s)) (local.get $slot)))
    (func $visit
        (call $mix (i64.extend_i32_u (call $in_table (i32.and (call $at) (i32.const 1)))))
        (call $look)
        (if (i32.eqz (ref.is_null (table.get $kept (i32.const 0))))
            (then (call $mix (i64.extend_i32_u
                (call_indirect $kept (type $v) (i32.wrap_i64 (global.get $s)) (i32.const 0))))
            (call $look)))
        (table.set $kept (i32.const 0) (table.get $t (i32.and (call $at) (i32.const 1))))
        (if (i32.eqz (i32.and (call $at) (i32.const 3)))
            (then (table.set $kept (i32.const 0) (global.get $ref))))
        (if (i32.eqz (i32.and (call $at) (i32.const 3)))
            (then (global.set $ref (table.get $t (i32.and (call $at) (i32.const 1))))))
        (if (i32.eqz (i32.and (call $at) (i32.const 1)))
            (then (table.set $t (i32.and (call $at) (i32.const 1)) (ref.func $visited))))
        (if (i32.eqz (i32.and (call $at) (i32.const 15)))
            (then (table.set $t (i32.and (call $at) (i32.const 1)) (ref.func $back)))))
    (func $step (param $n i32)
        (call $look)
        (call $change)
        (call $visit)
        (call $mix (i64.extend_i32_u (call $back (local.get $n))))
        (call $look))
"#;

/// Has the memory, the table and the tag; a call to it throws at times, and traps for -1.
const LIBRARY: &str = r#"(module
    (import "h" "back" (func $back (param i32) (result i32)))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "ref" (global $ref (mut funcref)))
    (tag $e (export "e") (param i32))
    (memory $m (export "memory") 1 9)
    (table $t (export "table") 2 40 funcref)
    STATE
    (func $work (export "work") (param $n i32) (result i32)
        (if (i32.eq (local.get $n) (i32.const -1)) (then (unreachable)))
        (call $step (local.get $n))
        THROW
        (i32.wrap_i64 (global.get $s)))
    (func (export "swap") (param funcref) (result funcref)
        (table.get $kept (i32.const 0))
        (table.set $kept (i32.const 0) (local.get 0)))
    (func (export "tail") (param $n i32) (result i32)
        (call $look)
        (return_call $back (i32.add (local.get $n) (i32.const 1)))))"#;

/// Calls the library, including through a table, and catches what it throws.
const PROGRAM: &str = r#"(module
    (import "lib" "work" (func $work (param i32) (result i32)))
    (import "h" "back" (func $back (param i32) (result i32)))
    (import "lib" "e" (tag $e (param i32)))
    (import "lib" "memory" (memory $m 1))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "ref" (global $ref (mut funcref)))
    (import "lib" "tail" (func $tail (param i32) (result i32)))
    (import "lib" "swap" (func $swap (param funcref) (result funcref)))
    (import "lib" "table" (table $t 2 funcref))
    (table $f 2 funcref)
    (elem (table $f) (i32.const 0) func $tail $work)
    STATE
    (func $round (param $n i32)
        (call $step (local.get $n))
        (table.set $t (i32.and (call $at) (i32.const 1)) (call $swap (ref.func $visited)))
        (call $mix (i64.extend_i32_u CALL))
        (call $look))
    (func (export "run") (param $n i32) (result i32)
        (if (i32.eq (local.get $n) (i32.const -1)) (then (return_call $work (local.get $n))))
        (loop $again
            (call $round (local.get $n))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (return_call $tail (i32.wrap_i64 (global.get $s)))))"#;

/// Calls both, including indirectly: it calls the program, which calls the library. It passes its
/// state to the library.
const PLUGIN: &str = r#"(module
    (import "main" "run" (func $run (param i32) (result i32)))
    (import "lib" "work" (func $work (param i32) (result i32)))
    (import "lib" "memory" (memory $m 1))
    (import "lib" "table" (table $t 2 funcref))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "ref" (global $ref (mut funcref)))
    (import "h" "back" (func $back (param i32) (result i32)))
    STATE
    (func $round (param $n i32)
        (call $step (local.get $n))
        (call $mix (i64.extend_i32_u (call $run (i32.const 1))))
        (call $look)
        (call $mix (i64.extend_i32_u (call $work (i32.and (i32.wrap_i64 (global.get $s)) (i32.const 1048575)))))
        (call $look))
    (func (export "use") (param $n i32) (result i32)
        (if (i32.eq (local.get $n) (i32.const -1)) (then (return (call $run (local.get $n)))))
        (call $round (local.get $n))
        (return_call $run (i32.const 1))))"#;

/// Names of the functions that the host calls, one of each instance.
const ENTRIES: [&str; 3] = ["work", "run", "use"];

/// The modules, in the order in which they are instantiated.
fn modules(engine: &Engine, throws: bool) -> [Module; 3] {
    let throw = match throws {
        true => "(if (i32.eqz (i32.and (call $at) (i32.const 3))) (then (throw $e (call $at))))",
        false => "",
    };
    let call = match throws {
        true => {
            "(block $caught (result i32) (try_table (result i32) (catch $e $caught) (call $work (local.get $n))))"
        }
        false => "(call_indirect $f (param i32) (result i32) (local.get $n) (i32.const 1))",
    };
    [LIBRARY, PROGRAM, PLUGIN].map(|text| {
        let mut text = text.replace("STATE", STATE).replace("THROW", throw).replace("CALL", call);
        if !throws {
            let tags = ["(tag $e (export \"e\") (param i32))", "(import \"lib\" \"e\" (tag $e (param i32)))"];
            tags.iter().for_each(|tag| text = text.replace(tag, ""));
        }
        Module::new(engine, text).unwrap()
    })
}

#[derive(Debug)]
struct Host {
    state: u64,
    depth: u32,
    instances: Vec<Instance>,
    /// The results of all calls, and the values that the host has got.
    notes: Vec<i64>,
}

/// Calls one of the instances, or changes what they share; passes on some exceptions.
fn back(caller: &mut Caller<'_, Host>, n: i32) -> Result<i32, EngineError> {
    caller.data_mut().notes.push(n.into());
    if caller.data().depth >= 3 || caller.data().instances.len() < 3 {
        return Ok(n);
    }
    caller.data_mut().depth += 1;
    for _ in 0..random(&mut caller.data_mut().state, 2) {
        let (at, which) = (
            random(&mut caller.data_mut().state, 2048) as usize,
            random(&mut caller.data_mut().state, 5) as usize,
        );
        match ENTRIES.get(which) {
            Some(name) => {
                let called = caller.data().instances[which].get_func(&*caller, name).unwrap();
                let mut results = [Val::I32(0)];
                match called.call(&mut *caller, &[Val::I32(1 + at as i32 % 2)], &mut results) {
                    Err(error) if at % 3 == 0 => {
                        caller.data_mut().depth -= 1;
                        return Err(error);
                    }
                    Err(EngineError::Exception { .. }) => {}
                    other => other?,
                }
            }
            None => {
                let memory = caller.data().instances[0].get_memory(&*caller, "memory").unwrap();
                memory.write(&mut *caller, at, &[n as u8, 1, 2])?;
            }
        }
    }
    caller.data_mut().depth -= 1;
    Ok(n.wrapping_mul(3))
}

/// The three instances, and their host.
struct Group {
    modules: [Module; 3],
    store: Store<Host>,
    linker: Linker<Host>,
    instances: Vec<Instance>,
}

impl Group {
    /// Without the instances.
    fn new(seed: u64) -> Self {
        let engine = Engine::default();
        let modules = modules(&engine, seed % 2 == 1);
        let host = Host { state: seed, depth: 0, instances: Vec::new(), notes: Vec::new() };
        let mut store = Store::new(&engine, host);
        let mut linker: Linker<Host> = Linker::new(&engine);
        linker.func_wrap("h", "back", |mut caller: Caller<'_, Host>, n: i32| back(&mut caller, n)).unwrap();
        let count = GlobalType::new(ValType::I64, Mutability::Var);
        let count = Global::new(&mut store, count, Val::I64(5)).unwrap();
        linker.define(&store, "h", "count", count).unwrap();
        let reference = GlobalType::new(ValType::FUNCREF, Mutability::Var);
        let reference = Global::new(&mut store, reference, Val::FuncRef(None)).unwrap();
        linker.define(&store, "h", "ref", reference).unwrap();
        Self { modules, store, linker, instances: Vec::new() }
    }

    /// Makes the instances, which recorders may do, and calls them.
    fn instantiate(&mut self, recorders: [Option<&Recorder>; 3]) {
        for (which, name) in ["lib", "main", "plugin"].into_iter().enumerate() {
            let (store, linker) = (&mut self.store, &mut self.linker);
            let instance = match recorders[which] {
                Some(recorder) => recorder.instantiate(store, linker).unwrap(),
                None => linker.instantiate(&mut *store, &self.modules[which]).unwrap(),
            };
            linker.instance(&*store, name, instance).unwrap();
            self.instances.push(instance);
        }
        self.store.data_mut().instances = self.instances.clone();
        (0..3).for_each(|which| self.call(which, 2));
    }

    fn call(&mut self, which: usize, n: i32) {
        let store = &mut self.store;
        let called = self.instances[which].get_typed_func::<i32, i32>(&*store, ENTRIES[which]).unwrap();
        let note = match called.call(&mut *store, n) {
            Ok(result) => result.into(),
            Err(EngineError::Exception { .. }) => 1 << 40,
            Err(error) => {
                assert!(error.trap().is_some(), "{error}");
                1 << 41
            }
        };
        store.data_mut().notes.push(note);
    }

    /// Calls of all three, with changes by the host in between.
    fn calls(&mut self) {
        for which in [1, 0, 2, 1, 2] {
            let n = 1 + random(&mut self.store.data_mut().state, 3) as i32;
            self.call(which, n);
            let at = random(&mut self.store.data_mut().state, 2048) as usize;
            let memory = self.instances[0].get_memory(&self.store, "memory").unwrap();
            memory.write(&mut self.store, at, &[3, 1, 4]).unwrap();
        }
    }
}

/// The time at which the recorders begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    WithTheInstances,
    Later,
}

struct Run {
    modules: [Module; 3],
    /// The traces of the recorded instances.
    traces: [Option<Vec<u8>>; 3],
    notes: Vec<i64>,
}

/// A run in which some instances are recorded. At the end, some runs trap.
fn run(seed: u64, recorded: [bool; 3], begin: Begin) -> Run {
    let mut group = Group::new(seed);
    let traces = [0; 3].map(|_| Trace::default());
    let recorder = |which: usize| Recorder::new(&group.modules[which], traces[which].clone()).unwrap();
    let recorders = [0, 1, 2].map(|which| recorded[which].then(|| recorder(which)));
    match begin {
        Begin::WithTheInstances => group.instantiate(recorders.each_ref().map(Option::as_ref)),
        Begin::Later => {
            group.instantiate([None; 3]);
            for (recorder, instance) in recorders.iter().zip(&group.instances) {
                recorder.iter().for_each(|recorder| recorder.attach(&mut group.store, *instance).unwrap());
            }
        }
    }
    group.calls();
    if seed % 4 == 2 {
        group.call(2, -1);
    }
    for recorder in recorders.iter().flatten() {
        recorder.stop(&mut group.store).unwrap();
    }
    assert!(!group.store.as_context_mut().is_observed());
    let lengths = traces.each_ref().map(|trace| trace.bytes().len());
    group.call(2, 1);
    assert_eq!(traces.each_ref().map(|trace| trace.bytes().len()), lengths);
    let traces = [0, 1, 2].map(|which| recorded[which].then(|| traces[which].bytes()));
    Run { modules: group.modules, traces, notes: group.store.into_data().notes }
}

/// Checks that a trace and its reduction repeat, here and in another engine.
#[track_caller]
fn check(module: &Module, trace: &[u8], seed: u64) {
    let small = reduced(module, trace);
    let expected = Replayed::Complete { returned: seed % 4 != 2 };
    for trace in [trace, &small] {
        let bench = generate(module.bytes(), trace, true).unwrap();
        assert_eq!(replay(&bench), expected, "seed {seed}");
        if seed.is_multiple_of(2) {
            // Wasmi has no exceptions.
            assert_eq!(replay_in_wasmi(&bench), expected, "seed {seed} in wasmi");
        }
        let ended = Replay::new(module, Cursor::new(trace.to_vec())).unwrap().run().unwrap();
        let last = events(trace).pop().unwrap();
        let fails = matches!(last, Event::Fail { .. } | Event::Throw(_));
        assert_eq!(matches!(ended, Ended::Failed(_)), fails, "seed {seed}: {ended:?}");
        assert_eq!(matches!(last, Event::Fail { .. }), seed % 4 == 2, "seed {seed}");
    }
}

#[test]
fn replays_of_each_instance_equal_their_recordings() {
    let (mut nested, mut thrown) = (0, 0);
    let seeds = if std::env::var_os("LONG_TESTS").is_some() { 100 } else { 8 };
    for seed in 0..seeds {
        for begin in [Begin::WithTheInstances, Begin::Later] {
            let together = run(seed, [true; 3], begin);
            assert_eq!(
                together.notes,
                run(seed, [false; 3], begin).notes,
                "seed {seed}: recorders change it"
            );
            for which in 0..3 {
                let trace = together.traces[which].as_ref().unwrap();
                check(&together.modules[which], trace, seed);
                let found = events(trace);
                let alone = run(seed, [0, 1, 2].map(|index| index == which), begin);
                assert_eq!(alone.notes, together.notes);
                assert_eq!(events(alone.traces[which].as_ref().unwrap()), found, "seed {seed}, {which}");
                nested += found
                    .windows(2)
                    .filter(|pair| matches!(pair, [Event::Call { .. }, Event::Enter { .. }]))
                    .count();
                thrown += found.iter().filter(|event| matches!(event, Event::Throw(_))).count();
            }
        }
    }
    assert!(nested > 100 && thrown > 100, "{nested} nested calls, {thrown} exceptions");
}

/// The value with its lowest bit changed, if it is a number.
fn flipped(value: &mut Value) -> bool {
    match value {
        Value::I32(value) => *value ^= 1,
        Value::I64(value) => *value ^= 1,
        _ => return false,
    }
    true
}

/// Whether these changes come with the results of a tail call.
fn is_after_tail_call(events: &[Event]) -> bool {
    let is_change = |event: &&Event| {
        matches!(event, Event::SetGlobal { .. } | Event::GrowTable { .. } | Event::SetElement { .. })
    };
    let changes = events.iter().take_while(is_change).count();
    matches!(events[changes..], [Event::Return { .. }, Event::Leave { .. }, ..])
}

/// A changed bit in what an instance passes or returns is found at its event; one in the effects of
/// others, at a later event. All three mix what they read.
#[test]
fn a_changed_bit_in_the_trace_of_each_instance_is_found_and_named() {
    let run = run(4, [true; 3], Begin::WithTheInstances);
    for (module, trace) in run.modules.iter().zip(run.traces.iter().flatten()) {
        let small = Trace::default();
        reduce(module, Cursor::new(trace.clone()), small.clone()).unwrap();
        let all = events(&small.bytes());
        let mut planted = 0;
        // Each call of an instance looks at what was changed before.
        let is_entry = |event: &Event| matches!(event, Event::Enter { .. });
        let first = all.iter().position(is_entry).unwrap();
        let last = all.iter().rposition(is_entry).unwrap();
        for number in (first..last).step_by(3) {
            let mut changed = all.clone();
            let is_own = match &mut changed[number] {
                Event::Call { arguments: values, .. } | Event::Leave { results: values } => {
                    values.iter_mut().any(flipped).then_some(true)
                }
                Event::Return { results } => results.iter_mut().any(flipped).then_some(false),
                // After a tail call, nothing is examined before the next change.
                Event::SetGlobal { .. } if is_after_tail_call(&all[number..]) => None,
                Event::SetGlobal { value, .. } => flipped(value).then_some(false),
                Event::Write { bytes, .. } => {
                    bytes[0] ^= 1;
                    Some(false)
                }
                _ => None,
            };
            let Some(is_own) = is_own else { continue };
            planted += 1;
            let found = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
            let named = match found {
                Replayed::Differs(named) => named as usize,
                other => panic!("event {number}, {}: {other:?}", all[number]),
            };
            assert!(
                if is_own { named == number } else { named > number },
                "{number}: {} {named}",
                all[number]
            );
        }
        assert!(planted > 15, "{planted}");
    }
}

/// Calls to one function of each instance, in the middle of a run, with calls to the others inside.
#[test]
fn replays_of_a_functions_calls_between_others_equal_their_recordings() {
    for seed in (0..12).step_by(4) {
        for (which, name) in ["work", "round", "round"].into_iter().enumerate() {
            let mut group = Group::new(seed);
            let module = group.modules[which].clone();
            let function = module.functions().find(|function| function.name() == Some(name)).unwrap().index();
            let number = NonZeroU64::new(1 + seed / 4).unwrap();
            let trace = Trace::default();
            group.instantiate([None; 3]);
            let calls = Calls { function, skipped: seed % 3, number };
            let recorder = CallRecorder::start::<Host>(&module, calls, trace.clone()).unwrap();
            (0..5).for_each(|_| group.calls());
            assert_eq!(recorder.stop().unwrap(), number.get(), "seed {seed}, {which}");
            assert!(!group.store.as_context_mut().is_observed());
            for import in 0..2 {
                let import = group.instances[2].func(&group.store, import).unwrap();
                assert!(!import.is_host(&group.store), "it is called directly again");
            }
            check(&module, &trace.bytes(), seed);
            let mut unrecorded = Group::new(seed);
            unrecorded.instantiate([None; 3]);
            (0..5).for_each(|_| unrecorded.calls());
            assert_eq!(group.store.data().notes, unrecorded.store.data().notes);
        }
    }
}
