//! `Replay`: a recorded run happens again, instruction by instruction, and ends as it did.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use crate::support::{Trace, events, trace_of};
use wasm_jit::probes::{GenericFn, GlobalProbe, Kind, Location, Place, ProbeSpec};
use wasm_jit::{Caller, Config, Engine, Error, Linker, Module, Store, Trap, Val};
use wasm_jit_replay::{Ended, Error as ReplayError, Event, HostFailed, Recorder, Replay, Value};

/// Calls a host that writes to its memory and calls it back; traps or exits at the end, depending
/// on its argument.
const PROGRAM: &str = r#"(module
    (import "host" "fill" (func $fill (param i32) (result i32)))
    (import "host" "exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (global $g (export "g") (mut i32) (i32.const 0))
    (func $sum (param $to i32) (result i32) (local $sum i32)
        (loop $again
            (local.set $to (i32.sub (local.get $to) (i32.const 1)))
            (local.set $sum (i32.add (local.get $sum) (i32.load8_u (local.get $to))))
            (br_if $again (local.get $to)))
        (local.get $sum))
    (func (export "back") (param i32) (result i32)
        (global.set $g (i32.add (global.get $g) (local.get 0)))
        (call $sum (local.get 0)))
    (func (export "run") (param $end i32) (result i32) (local $x i32)
        (local.set $x (i32.add (call $fill (i32.const 3)) (call $fill (i32.const 5))))
        (if (i32.eq (local.get $end) (i32.const 1)) (then unreachable))
        (if (i32.eq (local.get $end) (i32.const 2)) (then (call $exit (i32.const 42))))
        (local.get $x)))"#;

/// An instruction, the depth of its frame, and the parameter or local 0.
type Moment = (Location, usize, Option<Val>);

/// All instructions of a run.
type Executed = Arc<Mutex<Vec<Moment>>>;

fn follow(module: &Module) -> (GlobalProbe, Executed) {
    let executed = Executed::default();
    let log = executed.clone();
    let closure = GenericFn::new(move |frame| {
        let moment = (frame.location(), frame.depth(), frame.local(0).ok());
        log.lock().unwrap().push(moment);
        Ok(())
    });
    let probe = module.global_probe(Kind::Generic(closure)).unwrap();
    probe.activate().unwrap();
    (probe, executed)
}

/// A recorded run, with all instructions that it has executed.
fn record(engine: &Engine, end: i32) -> (Vec<u8>, Vec<Moment>) {
    let module = Module::new(engine, PROGRAM).unwrap();
    let mut linker = Linker::new(engine);
    let mut calls = 0_u8;
    let fill = move |mut caller: Caller<'_, ()>, length: i32| -> Result<i32, Error> {
        calls += 1;
        let memory = caller.get_export("memory").and_then(|export| export.into_memory()).unwrap();
        memory.write(&mut caller, 0, &vec![calls * 10; length as usize])?;
        let back = caller.get_export("back").and_then(|export| export.into_func()).unwrap();
        back.typed::<i32, i32>(&caller)?.call(&mut caller, length)
    };
    let fill = Mutex::new(fill);
    let fill = move |caller: Caller<'_, ()>, length: i32| (fill.lock().unwrap())(caller, length);
    linker.func_wrap("host", "fill", fill).unwrap();
    let exit = |_: i32| -> Result<(), Error> { Err(Error::host("the end")) };
    linker.func_wrap("host", "exit", exit).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let (probe, executed) = follow(&module);
    let mut store = Store::new(engine, ());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, end).is_ok(), end == 0);
    drop(probe);
    let executed = executed.lock().unwrap().clone();
    (trace.bytes(), executed)
}

/// Replays a trace, and returns how it ended, and all instructions.
fn replay(trace: &[u8]) -> (Result<Ended, ReplayError>, Vec<Moment>) {
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let (probe, executed) = follow(&module);
    let ended = Replay::new(&module, Cursor::new(trace.to_vec())).and_then(|mut replay| replay.run());
    drop(probe);
    let executed = executed.lock().unwrap().clone();
    (ended, executed)
}

fn shown(executed: &[Moment]) -> Vec<String> {
    executed.iter().map(|moment| format!("{moment:?}")).collect()
}

#[test]
fn every_instruction_is_repeated_and_the_end_is_the_same() {
    let [returned, trapped, exited] = [0, 1, 2].map(|end| {
        let (trace, recorded) = record(&Engine::default(), end);
        let (ended, repeated) = replay(&trace);
        assert!(recorded.len() > 100);
        assert_eq!(shown(&repeated), shown(&recorded));
        ended.unwrap()
    });
    assert!(matches!(returned, Ended::Returned), "{returned:?}");
    let Ended::Failed(error) = trapped else { panic!("{trapped:?}") };
    assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
    assert!(error.to_string().contains("unreachable"), "{error}");
    let Ended::Failed(error) = exited else { panic!("{exited:?}") };
    let failed = error.downcast_ref::<HostFailed>().unwrap();
    assert_eq!((failed.module.as_str(), failed.name.as_str()), ("host", "exit"));
    assert_eq!(failed.arguments, [Value::I32(42)]);
}

#[test]
fn a_trace_that_was_cut_off_ends_the_replay() {
    let (trace, _) = record(&Engine::default(), 0);
    let all = events(&trace);
    let is_return = |event: &Event| matches!(event, Event::Return { .. });
    let cut = all.iter().position(is_return).unwrap();
    let (ended, executed) = replay(&trace_of(&all[..=cut]));
    assert!(matches!(ended, Ok(Ended::TraceEnded)), "{ended:?}");
    assert!(!executed.is_empty());
    // The trace ends anywhere during a call to the program, or before there is one.
    let mut depth = 0;
    for length in 1..all.len() {
        match all[length - 1] {
            Event::Enter { .. } => depth += 1,
            Event::Leave { .. } => depth -= 1,
            _ => {}
        }
        let is_complete =
            depth == 0 && all[..length].iter().any(|event| matches!(event, Event::Enter { .. }));
        match replay(&trace_of(&all[..length])).0 {
            Ok(Ended::Returned) => assert!(is_complete, "{length} events"),
            Ok(Ended::TraceEnded) => assert!(!is_complete, "{length} events"),
            other => panic!("{length} events: {other:?}"),
        }
    }
}

#[test]
fn another_run_is_an_error() {
    let (trace, _) = record(&Engine::default(), 0);
    let mut all = events(&trace);
    let leave = all.iter().position(|event| matches!(event, Event::Leave { .. })).unwrap();
    all[leave] = Event::Leave { results: vec![Value::I32(-1)] };
    let (ended, _) = replay(&trace_of(&all));
    assert!(
        matches!(ended, Err(ReplayError::Mismatch { number, .. }) if number == leave as u64),
        "{ended:?}"
    );
    // The trace of another module.
    let other = Module::new(&Engine::default(), "(module)").unwrap();
    let error = Replay::new(&other, Cursor::new(trace)).unwrap_err();
    assert!(matches!(error, ReplayError::OtherModule), "{error}");
}

#[test]
fn a_replay_can_be_ended() {
    let (trace, _) = record(&Engine::default(), 0);
    let engine = Engine::new(Config::new().consume_fuel(true)).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let number = |ended: Result<Ended, ReplayError>| match ended {
        Err(ReplayError::Failed { number, source }) => (number, source),
        other => panic!("{other:?}"),
    };
    // An interrupt by a probe, before the second call to the host.
    let location = Location { function: 4, place: Place::Entry };
    let closure = GenericFn::new(|_| Err(Error::host("enough")));
    let probe = module.probe(ProbeSpec { location, kind: Kind::Generic(closure) }).unwrap();
    probe.activate().unwrap();
    let mut replay = Replay::new(&module, Cursor::new(trace.clone())).unwrap();
    replay.set_fuel(1 << 20).unwrap();
    let (_, source) = number(replay.run());
    assert!(source.to_string().contains("enough"), "{source}");
    drop(probe);
    // By lack of fuel; with sufficient fuel, the same amount is consumed each time.
    let mut consumed = Vec::new();
    for _ in 0..2 {
        let mut replay = Replay::new(&module, Cursor::new(trace.clone())).unwrap();
        replay.set_fuel(1 << 20).unwrap();
        assert!(matches!(replay.run(), Ok(Ended::Returned)));
        consumed.push((1 << 20) - replay.fuel().unwrap());
    }
    assert_eq!(consumed[0], consumed[1]);
    let mut replay = Replay::new(&module, Cursor::new(trace)).unwrap();
    replay.set_fuel(consumed[0] - 1).unwrap();
    let (_, source) = number(replay.run());
    assert_eq!(source.trap(), Some(Trap::OutOfFuel));
}
