//! [`Debugger::release`](wasm_jit_debug::Debugger::release), and panics of closures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasm_jit_debug::{Event, Expression, Resume, Reverse};

use super::Debugged;

/// Takes long enough for requests while it runs, and ends by itself. `far` is not called.
const COUNTS: &str = r#"(module (memory (export "memory") 1)
    (func $step (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
    (func $far (unreachable))
    (func $main (export "main") (result i32) (local $n i32)
        (loop $again
            (local.set $n (call $step (local.get $n)))
            (br_if $again (i32.lt_u (local.get $n) (i32.const 2000000))))
        (local.get $n)))"#;

#[track_caller]
fn ends(debugged: &Debugged) {
    match debugged.debugger.wait() {
        Event::Ended(outcome) => assert_eq!(outcome.text, "2000000"),
        other => panic!("{other:?}"),
    }
    assert!(debugged.debugger.breakpoints().is_empty() && !debugged.debugger.catches_traps());
}

#[test]
fn a_stopped_program_runs_on() {
    let (debugged, _) = Debugged::begin(COUNTS, "main", &[]);
    debugged.debugger.catch_traps(true);
    debugged.debugger.add_breakpoint("step", None, false).unwrap();
    debugged.debugger.add_watch(Expression::parse("i32[0]").unwrap(), None, 0).unwrap();
    debugged.debugger.release();
    ends(&debugged);
}

#[test]
fn a_pause_or_a_step_that_has_not_ended_stops_nothing() {
    for resume in [Resume::StepInstruction, Resume::Continue] {
        let (debugged, _) = Debugged::begin(COUNTS, "main", &[]);
        debugged.debugger.pause();
        debugged.debugger.resume(resume).unwrap();
        debugged.debugger.release();
        ends(&debugged);
        // It can be stopped again.
        debugged.debugger.add_breakpoint("step", None, true).unwrap();
        let mut again = debugged;
        again.start(&[]);
        again.stop();
        assert_eq!(again.finish().text, "2000000");
    }
}

#[test]
fn a_long_step_ends_nowhere() {
    let text = COUNTS.replace("2000000", "100000000").replace("$main (export \"main\")", "$long")
        + r#"(func $main (export "main") (result i32) (call $long)))"#;
    let text = text.replacen("(local.get $n)))(func", "(local.get $n)) (func", 1);
    let (debugged, stop) = Debugged::begin(&text, "main", &[]);
    assert!(debugged.text(&stop).starts_with("call"));
    debugged.debugger.resume(Resume::NextInstruction).unwrap();
    debugged.debugger.release();
    match debugged.debugger.wait() {
        Event::Ended(outcome) => assert_eq!(outcome.text, "100000000"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_goes_back_runs_to_its_end() {
    // While the passes look for something, and when the last one has begun.
    for at in 0..4 {
        let passes = Arc::new(AtomicUsize::new(0));
        let count = passes.clone();
        let debugged = Debugged::repeating(COUNTS, move |debugger, _| {
            if count.fetch_add(1, Ordering::Relaxed) == at {
                debugger.release();
            }
        });
        debugged.run_once();
        debugged.debugger.add_breakpoint("far", None, false).unwrap();
        debugged.debugger.reverse(Reverse::StepInstruction, 1).unwrap();
        match debugged.debugger.wait() {
            Event::Ended(outcome) => assert_eq!(outcome.text, "2000000", "{at}"),
            // There are fewer passes.
            Event::Stopped(_) => assert!(passes.load(Ordering::Relaxed) <= at),
            other => panic!("{other:?}"),
        }
        debugged.debugger.release();
    }
}

#[test]
fn a_panic_of_a_closure_is_that_of_the_caller() {
    let (mut debugged, _) = Debugged::begin(COUNTS, "main", &[]);
    let look = || debugged.debugger.inspect(|stopped| panic!("with {} frames", stopped.locations().len()));
    let panic = catch_unwind(AssertUnwindSafe(look)).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("with 1 frames"));
    // The program is where it was.
    assert!(debugged.debugger.is_stopped());
    assert_eq!(debugged.value(0, "$n"), "0");
    debugged.debugger.add_breakpoint("step", None, true).unwrap();
    debugged.go(Resume::Continue);
    assert_eq!(debugged.finish().text, "2000000");
}
