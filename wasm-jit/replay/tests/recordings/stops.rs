//! Runs that were stopped, for lack of fuel or by an interrupt, and reasons of other failures.

use std::io::Cursor;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::support::{Replayed, Trace, events, replay, trace_of};
use wasm_jit::{Caller, Config, Engine, Error as EngineError, Exit, Linker, Module, Store, Trap};
use wasm_jit_replay::{CallRecorder, Calls, Ended, Event, Reason, Recorder, Replay, generate, reduce};

/// Executes a hundred thousand instructions, or the number in the argument, after a call to the
/// host.
const PROGRAM: &str = r#"(module
    (import "h" "f" (func $f (param i32) (result i32)))
    (func (export "run") (param $n i32) (result i32)
        (local.set $n (call $f (local.get $n)))
        (loop $again (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (i32.div_u (i32.const 1) (local.get $n))))"#;

/// The index of `run`.
const RUN: u32 = 1;

const ITERATIONS: i32 = 25_000;

fn engine(has_fuel: bool) -> Engine {
    Engine::new(Config::new().consume_fuel(has_fuel)).unwrap()
}

/// The trace of a run.
fn recorded(fuel: Option<u64>, argument: i32, is_interrupted: bool) -> Vec<u8> {
    trace_of_run(false, fuel, argument, is_interrupted)
}

/// The trace of a run, or of the call that it consists of.
fn trace_of_run(is_call: bool, fuel: Option<u64>, argument: i32, is_interrupted: bool) -> Vec<u8> {
    let engine = engine(fuel.is_some());
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    let f = |_: Caller<'_, ()>, n: i32| match n {
        -1 => Err(EngineError::host("the disk\nis full")),
        -2 => Err(EngineError::host(Exit(-4))),
        n => Ok(n),
    };
    linker.func_wrap("h", "f", f).unwrap();
    let mut store = Store::new(&engine, ());
    if let Some(fuel) = fuel {
        store.set_fuel(fuel).unwrap();
    }
    let trace = Trace::default();
    let calls = Calls { function: RUN, skipped: 0, number: NonZeroU64::MIN };
    let _calls = is_call.then(|| CallRecorder::start::<()>(&module, calls, trace.clone()).unwrap());
    let instance = match is_call {
        true => linker.instantiate(&mut store, &module).unwrap(),
        false => {
            let recorder = Recorder::new(&module, trace.clone()).unwrap();
            recorder.instantiate(&mut store, &linker).unwrap()
        }
    };
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let timeout = is_interrupted.then(|| store.interrupt_handle().interrupt_after(Duration::from_millis(20)));
    run.call(&mut store, argument).unwrap_err();
    drop(timeout);
    trace.bytes()
}

fn replayed(trace: &[u8], fuel: Option<u64>) -> Ended {
    let module = Module::new(&engine(fuel.is_some()), PROGRAM).unwrap();
    let mut replay = Replay::new(&module, Cursor::new(trace.to_vec())).unwrap();
    if let Some(fuel) = fuel {
        replay.set_fuel(fuel).unwrap();
    }
    replay.run().unwrap()
}

fn reason(trace: &[u8]) -> Reason {
    match events(trace).pop() {
        Some(Event::Fail { reason: Some(reason) }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_have_reasons() {
    let divided = recorded(None, ITERATIONS, false);
    assert_eq!(reason(&divided), Reason::Trap("wasm trap: integer divide by zero".to_owned()));
    let Ended::Failed(error) = replayed(&divided, None) else { panic!("it has trapped") };
    assert_eq!(error.trap(), Some(Trap::IntegerDivisionByZero));
    let failed = recorded(None, -1, false);
    assert_eq!(reason(&failed), Reason::Host("the disk".to_owned()));
    let Ended::Failed(error) = replayed(&failed, None) else { panic!("the host has failed") };
    assert_eq!(error.to_string(), "the host function h.f failed when it was recorded: host: the disk");
    let ended = recorded(None, -2, false);
    assert_eq!(reason(&ended), Reason::Exit(-4));
    let Ended::Failed(error) = replayed(&ended, None) else { panic!("the host has ended it") };
    assert!(error.to_string().ends_with(" failed when it was recorded: exit -4"), "{error}");
    let all = [
        Some(Reason::Exit(i32::MIN)),
        Some(Reason::Exit(i32::MAX)),
        Some(Reason::Trap(String::new())),
        Some(Reason::Fuel(u64::MAX)),
        Some(Reason::Interrupted),
        Some(Reason::Host("ä".repeat(500))),
        None,
    ];
    let fails = all.map(|reason| Event::Fail { reason });
    let start = Event::Start { module: 1, length: 2 };
    assert_eq!(events(&trace_of(&[std::slice::from_ref(&start), &fails[..]].concat()))[1..], fails);
    // It is not read, and neither is one that is not text.
    let long = Event::Fail { reason: Some(Reason::Host("x".repeat(1001))) };
    let read: Result<Vec<Event>, _> = wasm_jit_replay::Reader::new(&trace_of(&[start, long])[..]).collect();
    assert!(read.unwrap_err().to_string().contains("a text that is too long"));
}

/// The run could have continued: the event that gave control to the program is not replayed, unless
/// the replay stops by itself.
#[test]
fn a_run_that_was_stopped_ends_where_the_host_was_active_last() {
    let short = recorded(Some(1000), ITERATIONS, false);
    assert_eq!(reason(&short), Reason::Fuel(1000));
    let interrupted = recorded(None, i32::MIN, true);
    assert_eq!(reason(&interrupted), Reason::Interrupted);
    for trace in [&short, &interrupted] {
        let Ended::Stopped(found) = replayed(trace, None) else { panic!("it was stopped") };
        assert_eq!(found, reason(trace));
        let module = Module::new(&engine(false), PROGRAM).unwrap();
        let small = Trace::default();
        reduce(&module, Cursor::new(trace.clone()), small.clone()).unwrap();
        assert_eq!(events(&small.bytes()), events(trace));
        let bench = generate(module.bytes(), &trace[..], true).unwrap();
        assert_eq!(replay(&bench), Replayed::Complete { returned: false });
    }
    let Ended::Failed(error) = replayed(&short, Some(1000)) else { panic!("it has as much fuel") };
    assert_eq!(error.trap(), Some(Trap::OutOfFuel));
    assert!(matches!(replayed(&short, Some(1001)), Ended::Stopped(Reason::Fuel(1000))));
    // It was stopped before it called the host.
    let first = recorded(Some(2), ITERATIONS, false);
    assert_eq!(events(&first).len(), 3);
    assert!(matches!(replayed(&first, None), Ended::Stopped(Reason::Fuel(2))));
}

/// Recorders of calls learn the reason from the frames that are left.
#[test]
fn a_call_that_was_stopped_has_a_reason() {
    let divided = trace_of_run(true, None, ITERATIONS, false);
    assert_eq!(reason(&divided), Reason::Trap("wasm trap: integer divide by zero".to_owned()));
    let Ended::Failed(error) = replayed(&divided, None) else { panic!("it has trapped") };
    assert_eq!(error.trap(), Some(Trap::IntegerDivisionByZero));
    let short = trace_of_run(true, Some(1000), ITERATIONS, false);
    assert!(matches!(reason(&short), Reason::Fuel(1..=1000)), "{:?}", reason(&short));
    let interrupted = trace_of_run(true, None, i32::MIN, true);
    assert_eq!(reason(&interrupted), Reason::Interrupted);
    for trace in [&short, &interrupted] {
        let Ended::Stopped(found) = replayed(trace, None) else { panic!("it was stopped") };
        assert_eq!(found, reason(trace));
    }
    let failed = trace_of_run(true, None, -1, false);
    let last = events(&failed).pop();
    assert!(matches!(last, Some(Event::Fail { reason: None })), "{last:?}");
}

/// The trace of a process that was killed while the program ran: what the program does afterwards
/// is no difference.
#[test]
fn traces_that_end_while_the_program_runs_have_no_differences() {
    let text = r#"(module (import "h" "f" (func $f (param i32) (result i32)))
        (func (export "run") (result i32)
            (call $f (i32.add (call $f (i32.const 1)) (call $f (i32.const 2))))))"#;
    let engine = engine(false);
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.func_wrap("h", "f", |n: i32| n * 10).unwrap();
    let mut store = Store::new(&engine, ());
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    instance.get_typed_func::<(), i32>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    recorder.stop(&mut store).unwrap();
    let all = events(&trace.bytes());
    let first = all.iter().position(|event| matches!(event, Event::Enter { .. })).unwrap();
    let last = all.iter().position(|event| matches!(event, Event::Leave { .. })).unwrap();
    assert_eq!(last - first, 7, "three calls");
    let run = |events: &[Event]| replay(&generate(module.bytes(), &trace_of(events)[..], true).unwrap());
    for length in first + 1..=last {
        assert_eq!(run(&all[..length]), Replayed::Complete { returned: false }, "{length}");
    }
    assert_eq!(run(&all), Replayed::Complete { returned: true });
    // What differs before the end is found, and so is a call that a complete trace does not have.
    let mut changed = all.clone();
    let Event::Return { results } = &mut changed[first + 2] else { panic!("{}", all[first + 2]) };
    results[0] = wasm_jit_replay::Value::I32(11);
    assert_eq!(run(&changed[..last]), Replayed::Differs(first as i32 + 5));
    let mut shorter = all.clone();
    shorter.drain(last - 2..last);
    assert_eq!(run(&shorter), Replayed::Differs(shorter.len() as i32 - 1));
}
