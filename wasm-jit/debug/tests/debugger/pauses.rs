//! Pauses: stopping a running program.

use std::time::Duration;

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_debug::{Debugger, Event, Expression, Outcome, Reason, Resume};

use super::Debugged;

/// Loops until a global is set, in a function that was never probed.
const LOOPS: &str = r#"(module
    (global $stop (mut i32) (i32.const 0))
    (memory (export "memory") 1)
    (func $spin (local $count i64)
        (loop $again
            (local.set $count (i64.add (local.get $count) (i64.const 1)))
            (br_if $again (i32.eqz (global.get $stop)))))
    (func (export "main") (result i32) (call $spin) (i32.const 42)))"#;

#[test]
fn a_loop_is_paused_and_continues() {
    let mut debugged = Debugged::new(LOOPS);
    debugged.start(&[]);
    for _ in 0..3 {
        debugged.debugger.pause();
        let stop = debugged.stop();
        assert!(matches!(stop.reasons[..], [Reason::Pause]), "{stop:?}");
        assert_eq!(debugged.locations().len(), 2);
        // Steps continue from there.
        let next = debugged.go(Resume::StepInstruction);
        assert_ne!(next.location, stop.location);
        debugged.debugger.resume(Resume::Continue).unwrap();
    }
    debugged.debugger.pause();
    debugged.stop();
    debugged.assign(0, "$stop", "1").unwrap();
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn calls_without_loops_are_paused() {
    let mut debugged = Debugged::new(
        r#"(module (global $stop (mut i32) (i32.const 0))
            (func $turn (param i32) (result i32)
                (if (result i32) (global.get $stop) (then (local.get 0))
                    (else (return_call $turn (i32.add (local.get 0) (i32.const 1))))))
            (func (export "main") (result i32) (drop (call $turn (i32.const 0))) (i32.const 1)))"#,
    );
    debugged.start(&[]);
    debugged.debugger.pause();
    debugged.stop();
    debugged.assign(0, "$stop", "1").unwrap();
    assert_eq!(debugged.finish().text, "1");
}

#[test]
fn a_program_is_killed() {
    let mut debugged = Debugged::new(LOOPS);
    debugged.start(&[]);
    debugged.debugger.pause();
    debugged.stop();
    debugged.debugger.kill();
    let outcome = debugged.end();
    assert_eq!(outcome.text, "killed by the debugger");
    // It can run again.
    debugged.debugger.begin();
    debugged.start(&[]);
    debugged.debugger.pause();
    debugged.stop();
    debugged.assign(0, "$stop", "1").unwrap();
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn a_pause_of_a_stopped_program_takes_effect_when_it_continues() {
    let (mut debugged, _) = Debugged::begin(LOOPS, "spin", &[]);
    debugged.debugger.pause();
    let stop = debugged.go(Resume::Continue);
    assert!(matches!(stop.reasons[..], [Reason::Pause]), "{stop:?}");
    debugged.assign(0, "$stop", "1").unwrap();
    assert_eq!(debugged.finish().text, "42");
}

#[test]
fn a_thread_is_paused_at_any_probe_that_it_comes_to() {
    let run = |debugged: &mut Debugged| {
        debugged.start_as(&[], false);
        debugged.debugger.pause();
        let event = debugged.debugger.wait_for(Duration::from_secs(20));
        let Some(Event::Stopped(stop)) = event else { panic!("{event:?}") };
        assert!(matches!(stop.reasons[..], [Reason::Pause]), "{stop:?}");
        debugged.assign(0, "$stop", "1").unwrap();
        for number in debugged.debugger.breakpoints().iter().map(|of| of.number) {
            debugged.debugger.delete(number).unwrap();
        }
        assert_eq!(debugged.finish().text, "42");
    };
    let mut debugged = Debugged::new(LOOPS);
    let never = Expression::parse("$count == -1").unwrap();
    let instructions = debugged.debugger.code().instructions(0).unwrap();
    let (offset, _) = instructions.iter().find(|(_, text)| text.starts_with("i64.add")).unwrap();
    debugged.debugger.add_breakpoint(&format!("*{offset}"), Some(never), false).unwrap();
    run(&mut debugged);
    let mut debugged = Debugged::new(LOOPS);
    debugged.debugger.add_watch(Expression::parse("i32[64]").unwrap(), None, 0).unwrap();
    run(&mut debugged);
}

/// The thread is in compiled code for a millionth of the time.
#[test]
fn a_thread_that_mostly_waits_in_the_host_is_paused() {
    let text = r#"(module (import "host" "wait" (func $wait))
        (func $waits (param $left i32)
            (loop $again
                (call $wait)
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
        (func (export "main") (call $waits (i32.const 100))))"#;
    let module = Module::new(&Engine::default(), text).unwrap();
    let debugger = Debugger::new(&module);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut store = Store::new(module.engine(), ());
            debugger.add_thread(store.interrupt_handle());
            let mut linker = Linker::new(module.engine());
            // A host function that waits for the world.
            linker.func_wrap("host", "wait", || std::thread::sleep(Duration::from_millis(20))).unwrap();
            let instance = linker.instantiate(&mut store, &module).unwrap();
            let main = instance.get_typed_func::<(), ()>(&mut store, "main").unwrap();
            main.call(&mut store, ()).unwrap();
            debugger.ended(Outcome::returned(""));
        });
        debugger.pause();
        match debugger.wait() {
            Event::Stopped(stop) => assert!(matches!(stop.reasons[..], [Reason::Pause]), "{stop:?}"),
            other => panic!("{other:?}"),
        }
        debugger.release();
    });
}
