//! Calls to another module's functions through references, in shared tables and globals, and as
//! arguments: in the trace of each module, they are calls to the host, or by the host.

use std::io::Cursor;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{
    Replayed, Trace, events, reduced, replay, replay_in_wasmi, replay_separately, replay_separately_in_wasmi,
    trace_of,
};
use wasm_jit::probes::{Bound, Kind, Location, Place, ProbeSpec, WasmFn};
use wasm_jit::{
    AsContextMut, CallObserver, Config, Engine, Error, Func, Global, GlobalType, Instance, Linker, Module,
    Mutability, Store, StoreContextMut, Val, ValType,
};
use wasm_jit_replay::{
    CallRecorder, Calls, Ended, Event, Recorder, Replay, Snapshots, Type, Value, generate, separate, slice,
};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// Has the table, and calls functions that others have stored there, including from within itself.
const LIBRARY: &str = r#"(module
    (type $v (func (param i32 i64) (result i64)))
    (table $t (export "table") 4 10 funcref)
    (global $hook (export "hook") (mut funcref) (ref.null func))
    (table $kept 1 funcref)
    (func $own (export "own") (type $v) (i64.mul (local.get 1) (i64.const 3)))
    (elem (table $t) (i32.const 0) func $own)
    (func (export "call") (param $slot i32) (param $x i64) (result i64)
        (i64.add (call_indirect $t (type $v) (i32.const 7) (local.get $x) (i32.const 0))
            (call_indirect $t (type $v) (i32.const 7) (local.get $x) (local.get $slot))))
    (func (export "keep") (param funcref) (result funcref)
        (table.set $kept (i32.const 0) (local.get 0))
        (global.get $hook))
    (func (export "kept") (param $x i64) (result i64)
        (return_call_indirect $kept (type $v) (i32.const 8) (local.get $x) (i32.const 0))))"#;

const PROGRAM: &str = r#"(module
    (type $v (func (param i32 i64) (result i64)))
    (import "lib" "table" (table $t 4 funcref))
    (import "lib" "call" (func $call (param i32 i64) (result i64)))
    (import "lib" "keep" (func $keep (param funcref) (result funcref)))
    (import "lib" "kept" (func $kept (param i64) (result i64)))
    (import "lib" "hook" (global $hook (mut funcref)))
    (func $mine (type $v)
        (i64.add (i64.extend_i32_u (local.get 0)) (call_indirect $t (type $v) (i32.const 1) (local.get 1) (i32.const 0))))
    (func $other (type $v) (i64.sub (local.get 1) (i64.const 5)))
    (elem (table $t) (i32.const 1) func $mine)
    (elem declare func $other $mine)
    (func $run (export "run") (param $x i64) (result i64)
        (global.set $hook (ref.func $other))
        (table.set $t (i32.const 3) (ref.func $other))
        (table.set $t (i32.const 2) (call $keep (ref.func $mine)))
        (local.set $x (i64.add (local.get $x) (call $call (i32.const 1) (local.get $x))))
        (local.set $x (i64.add (local.get $x) (call $call (i32.const 2) (local.get $x))))
        (local.set $x (i64.add (local.get $x) (call $kept (local.get $x))))
        (i64.add (local.get $x) (call_indirect $t (type $v) (i32.const 9) (local.get $x) (i32.const 0)))))"#;

/// The two modules, and their instances.
struct Both {
    modules: [Module; 2],
    store: Store<()>,
    linker: Linker<()>,
}

impl Both {
    fn new() -> Self {
        let engine = Engine::default();
        let modules = [LIBRARY, PROGRAM].map(|text| Module::new(&engine, text).unwrap());
        Self { modules, store: Store::new(&engine, ()), linker: Linker::new(&engine) }
    }

    fn instantiate(&mut self, recorders: [Option<&Recorder>; 2]) -> [Instance; 2] {
        [0, 1].map(|which| {
            let instance = match recorders[which] {
                Some(recorder) => recorder.instantiate(&mut self.store, &self.linker).unwrap(),
                None => self.linker.instantiate(&mut self.store, &self.modules[which]).unwrap(),
            };
            self.linker.instance(&self.store, ["lib", "main"][which], instance).unwrap();
            instance
        })
    }

    fn run(&mut self, program: Instance, x: i64) -> i64 {
        program.get_typed_func::<i64, i64>(&self.store, "run").unwrap().call(&mut self.store, x).unwrap()
    }
}

fn unrecorded() -> [i64; 2] {
    let mut both = Both::new();
    let [_, program] = both.instantiate([None; 2]);
    [both.run(program, 5), both.run(program, 6)]
}

/// Both modules, with their traces: of the entire run, or of the second call, for which recorders
/// are attached.
fn recorded(is_attached: bool) -> [(Module, Vec<u8>); 2] {
    let mut both = Both::new();
    let traces = [Trace::default(), Trace::default()];
    let recorders = [0, 1].map(|which| Recorder::new(&both.modules[which], traces[which].clone()).unwrap());
    let instances =
        both.instantiate(recorders.each_ref().map(|recorder| Some(recorder).filter(|_| !is_attached)));
    let first = both.run(instances[1], 5);
    if is_attached {
        for (recorder, instance) in recorders.iter().zip(instances) {
            recorder.attach(&mut both.store, instance).unwrap();
        }
    }
    assert_eq!([first, both.run(instances[1], 6)], unrecorded());
    recorders.iter().for_each(|recorder| recorder.stop(&mut both.store).unwrap());
    // Nothing of the recording is left: the two call each other directly.
    let lengths = traces.each_ref().map(|trace| trace.bytes().len());
    both.run(instances[1], 7);
    assert_eq!(traces.each_ref().map(|trace| trace.bytes().len()), lengths);
    [0, 1].map(|which| (both.modules[which].clone(), traces[which].bytes()))
}

/// Replays a trace in all forms, and its reduction.
fn check(module: &Module, trace: &[u8]) {
    let small = reduced(module, trace);
    assert_eq!(events(&small), events(trace), "there are no memories");
    let bench = generate(module.bytes(), trace, true).unwrap();
    assert_eq!((replay(&bench), replay_in_wasmi(&bench)), (COMPLETE, COMPLETE));
    let unchecked = generate(module.bytes(), trace, false).unwrap();
    assert!(matches!(replay(&unchecked), Replayed::Stopped(0)), "it returns, and notes no position");
    let modules = separate(module.bytes(), trace, true).unwrap();
    assert_eq!((replay_separately(&modules), replay_separately_in_wasmi(&modules)), (COMPLETE, COMPLETE));
    let ended = Replay::new(module, Cursor::new(trace.to_vec())).unwrap().run().unwrap();
    assert!(matches!(ended, Ended::Returned));
}

#[test]
fn calls_through_references_are_recorded() {
    let all = recorded(false);
    for (module, trace) in all.iter().chain(&recorded(true)) {
        check(module, trace);
        crate::javascript::check(module.bytes(), trace);
    }
    let lines = |which: usize| events(&all[which].1).iter().map(Event::to_string).collect::<Vec<_>>();
    let of_library = [
        // The segment of the program.
        "function func=4 parameters=i32,i64 results=i64",
        "set table=0 element=1 func:4",
        "set table=0 element=3 func:5",
        "enter func=2 func:4",
        // In `call`: its own function is called without the host, `mine` is not.
        "enter func=1 i32:1 i64:5",
        "call import=4 i32:7 i64:5",
        "enter func=0 i32:1 i64:5",
        "leave i64:15",
        "return i64:22",
        "leave i64:37",
    ];
    let of_program = [
        "function func=6 parameters=i32,i64 results=i64",
        "call import=0 i32:1 i64:5",
        "enter func=3 i32:7 i64:5",
        "call import=6 i32:1 i64:5",
        "return i64:15",
        "leave i64:22",
        "return i64:37",
        "call import=6 i32:9 i64:828",
    ];
    for (which, expected) in [&of_library[..], &of_program].into_iter().enumerate() {
        let found = lines(which);
        let mut rest = found.iter();
        for line in expected {
            assert!(rest.any(|found| found == line), "{line} in {found:#?}");
        }
    }
    // The functions of the host, in the order of the trace.
    let declared = |which: usize| lines(which).iter().filter(|line| line.starts_with("function")).count();
    assert_eq!([declared(0), declared(1)], [2, 1]);
}

/// A changed bit in what is passed to a function of another module, or returned by it.
#[test]
fn a_changed_bit_in_a_call_through_a_reference_is_found_and_named() {
    let mut planted = 0;
    for (module, trace) in recorded(false) {
        let (own, all) = (module.functions().len() as u32, events(&trace));
        for (number, event) in all.iter().enumerate() {
            let Event::Call { import, .. } = event else { continue };
            if *import < own {
                continue;
            }
            let mut changed = all.clone();
            let Event::Call { arguments, .. } = &mut changed[number] else { continue };
            let Value::I64(argument) = &mut arguments[1] else { panic!("{event}") };
            *argument ^= 1;
            let changed = trace_of(&changed);
            let expected = Replayed::Differs(number as i32);
            assert_eq!(replay(&generate(module.bytes(), &changed[..], true).unwrap()), expected);
            assert_eq!(replay_separately(&separate(module.bytes(), &changed[..], true).unwrap()), expected);
            let error = Replay::new(&module, Cursor::new(changed)).unwrap().run().unwrap_err().to_string();
            assert!(error.contains(&format!("event {number} ")), "{error}");
            // Another result is found later.
            let mut changed = all.clone();
            let ended = number
                + all[number..].iter().position(|event| matches!(event, Event::Return { .. })).unwrap();
            changed[ended] = Event::Return { results: vec![Value::I64(1 << 40)] };
            let found = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
            assert!(matches!(found, Replayed::Differs(at) if at > ended as i32), "{found:?}");
            planted += 1;
        }
    }
    assert!(planted >= 8, "{planted}");
}

/// Parts of a run: the calls of one function, and a slice.
#[test]
fn parts_of_a_run_have_the_functions_of_others() {
    let mut both = Both::new();
    let [_, program] = both.instantiate([None; 2]);
    let module = both.modules[1].clone();
    let trace = Trace::default();
    let function = module.functions().find(|function| function.name() == Some("run")).unwrap().index();
    let calls = Calls { function, skipped: 1, number: NonZeroU64::new(2).unwrap() };
    let recorder = CallRecorder::start::<()>(&module, calls, trace.clone()).unwrap();
    (5..9).for_each(|x| _ = both.run(program, x));
    assert_eq!(recorder.stop().unwrap(), 2);
    assert!(!both.store.as_context_mut().is_observed());
    check(&module, &trace.bytes());
    // The library's `keep`, which gets a function of the program.
    let [(library, trace), _] = recorded(true);
    let sliced = Trace::default();
    assert_eq!(slice(&library, 2, Cursor::new(trace), sliced.clone()).unwrap(), 1);
    check(&library, &sliced.bytes());
}

/// Events that do not fit, and events that no trace has.
#[test]
fn functions_that_are_not_known_are_refused() {
    let [(module, trace), _] = recorded(false);
    let all = events(&trace);
    let at = all.iter().position(|event| matches!(event, Event::Function { .. })).unwrap();
    let other =
        |function: u32| Event::Function { function, parameters: vec![Type::I32], results: Vec::new() };
    for (planted, expected) in [
        (None, "there is no such function"),
        (Some(other(7)), "another number of functions"),
        (Some(other(0)), "another number of functions"),
    ] {
        let mut changed = all.clone();
        match planted {
            Some(planted) => changed[at] = planted,
            None => changed.retain(|event| !matches!(event, Event::Function { .. })),
        }
        let changed = trace_of(&changed);
        let error = generate(module.bytes(), &changed[..], true).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let error = Replay::new(&module, Cursor::new(changed)).unwrap().run().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A type that is declared as a subtype is not the one that a replay would make.
    for text in [
        "(module (type $a (sub (func))) (func (export \"f\") (type $a)))",
        "(module (type $a (func)) (func (export \"f\") (param (ref null $a))))",
    ] {
        let mut both = Both::new();
        let module = both.modules[0].clone();
        let recorder = Recorder::new(&module, Vec::new()).unwrap();
        let library = recorder.instantiate(&mut both.store, &both.linker).unwrap();
        let other = Module::new(module.engine(), text).unwrap();
        let other = both.linker.instantiate(&mut both.store, &other).unwrap();
        let foreign = other.get_func(&both.store, "f").unwrap();
        let table = library.get_table(&both.store, "table").unwrap();
        table.set(&mut both.store, 1, Val::FuncRef(Some(foreign))).unwrap();
        let own = library.get_func(&both.store, "own").unwrap();
        let called = own.call(&mut both.store, &[Val::I32(1), Val::I64(1)], &mut [Val::I64(0)]);
        assert_eq!(
            called.unwrap_err().to_string(),
            "cannot be recorded: a reference to a function of another module, of a type of its own"
        );
    }
}

/// The host stores an exported function of another module in a table and in a global before the
/// program exists.
#[test]
fn exported_functions_in_imported_items_are_recorded() {
    let engine = Engine::default();
    let [other, program] = [
        r#"(module (func (export "f") (param i32) (result i32) (i32.add (local.get 0) (i32.const 1))))"#,
        r#"(module (type $t (func (param i32) (result i32)))
            (import "h" "hook" (global $hook (mut funcref)))
            (table $t (export "table") 2 funcref)
            (func (export "run") (param i32) (result i32)
                (table.set $t (i32.const 1) (global.get $hook))
                (i32.mul (call_indirect $t (type $t) (local.get 0) (i32.const 0))
                    (call_indirect $t (type $t) (local.get 0) (i32.const 1)))))"#,
    ]
    .map(|text| Module::new(&engine, text).unwrap());
    let (mut store, mut linker) = (Store::new(&engine, ()), Linker::new(&engine));
    let other = linker.instantiate(&mut store, &other).unwrap();
    let foreign = Val::FuncRef(other.get_func(&store, "f"));
    let ty = GlobalType::new(ValType::FUNCREF, Mutability::Var);
    let hook = Global::new(&mut store, ty, foreign.clone()).unwrap();
    linker.define(&store, "h", "hook", hook).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&program, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    instance.get_table(&store, "table").unwrap().set(&mut store, 0, foreign).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&store, "run").unwrap();
    assert_eq!(run.call(&mut store, 6).unwrap(), 49);
    let calls = events(&trace.bytes()).iter().filter(|event| matches!(event, Event::Call { .. })).count();
    assert_eq!(calls, 2);
    check(&program, &trace.bytes());
    crate::javascript::check(program.bytes(), &trace.bytes());
}

/// The host passes a different function each time, which becomes known between two of its calls.
#[test]
fn replays_that_begin_at_a_snapshot_have_the_functions_of_others() {
    let text = r#"(module (type $t (func (param i32) (result i32))) (table $t 2 funcref)
        (func (export "take") (param funcref i32) (result i32)
            (table.set $t (i32.const 1) (table.get $t (i32.const 0)))
            (table.set $t (i32.const 0) (local.get 0))
            (if (ref.is_null (table.get $t (i32.const 1))) (then (return (i32.const 0))))
            (call_indirect $t (type $t) (local.get 1) (i32.const 1))))"#;
    let engine = Engine::new(Config::new().consume_fuel(true)).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let (mut store, trace) = (Store::new(&engine, ()), Trace::default());
    store.set_fuel(1 << 40).unwrap();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &Linker::new(&engine)).unwrap();
    let take = instance.get_func(&store, "take").unwrap();
    for n in 0..9 {
        let foreign = Func::wrap(&mut store, move |x: i32| x + 100 * n).unwrap();
        let mut results = [Val::I32(0)];
        take.call(&mut store, &[Val::FuncRef(Some(foreign)), Val::I32(n)], &mut results).unwrap();
        assert_eq!(results[0].unwrap_i32(), if n == 0 { 0 } else { 100 * (n - 1) + n });
    }
    let used = (1 << 40) - store.get_fuel().unwrap();
    let snapshots = Arc::new(Snapshots::with(1, 1 << 20));
    for unobserved in std::iter::once(0).chain(0..used) {
        let mut replay = Replay::new(&module, Cursor::new(trace.bytes())).unwrap();
        replay.set_fuel(1 << 40).unwrap();
        replay.use_snapshots(snapshots.clone(), unobserved).unwrap();
        assert!(matches!(replay.run().unwrap(), Ended::Returned), "{unobserved}");
        assert_eq!((1 << 40) - replay.fuel().unwrap(), used);
        assert_eq!(snapshots.count(), 8);
    }
}

/// Counts calls by the host, including those that it makes for an instance.
struct Entered(Arc<AtomicU32>);

impl CallObserver<()> for Entered {
    fn enter(&self, _: StoreContextMut<'_, ()>, _: &Func, _: &[Val]) -> Result<(), Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn leave(&self, _: StoreContextMut<'_, ()>, _: &Func, _: Result<&[Val], &Error>) -> Result<(), Error> {
        Ok(())
    }
}

/// A call made by a probe is not a part of the run, even if it is a call to a function of another
/// instance.
#[test]
fn functions_that_probes_call_are_not_recorded() {
    let traces = [false, true].map(|is_probed| {
        let (mut both, trace) = (Both::new(), Trace::default());
        let entered = Arc::new(AtomicU32::new(0));
        both.store.observe_calls(Arc::new(Entered(entered.clone()))).unwrap();
        let recorder = Recorder::new(&both.modules[1], trace.clone()).unwrap();
        let monitor = r#"(module (global $n (export "n") (mut i32) (i32.const 0))
            (func $add (param i32) (global.set $n (i32.add (global.get $n) (local.get 0))))
            (func $f (export "f") (param i32) (call $add (local.get 0)))
            (elem declare func $f))"#;
        let monitor = Module::new(both.store.engine(), monitor).unwrap();
        let monitor = both.linker.instantiate(&mut both.store, &monitor).unwrap();
        let count = monitor.get_func(&both.store, "f").unwrap();
        let [_, program] = both.instantiate([None, Some(&recorder)]);
        let function = WasmFn::new(&both.store, count).unwrap();
        let kind = Kind::Wasm { function, values: [Bound::Const(2)].into() };
        let location = Location { function: 3, place: Place::Entry };
        let probe = both.modules[1].probe(ProbeSpec { location, kind }).unwrap();
        if is_probed {
            probe.activate().unwrap();
        }
        both.run(program, 5);
        let n = monitor.get_global(&both.store, "n").unwrap().get(&mut both.store).unwrap_i32();
        assert_eq!(n, if is_probed { 4 } else { 0 });
        (events(&trace.bytes()), entered.load(Ordering::Relaxed))
    });
    assert_eq!(traces[0], traces[1]);
}
