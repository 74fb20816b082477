//! Steps, compared with all instructions that a run without a debugger executes.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{GenericFn, Kind, Location, Place};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Module, Store, Val};
use wasm_jit_debug::{Event, Expression, Reason, Resume};

use super::{Debugged, call_main, instantiate, programs};

/// Recursion, tail calls, indirect calls, exceptions of both forms through frames, and calls back
/// from the host.
pub(super) const WRITTEN: &str = r#"(module
    (import "host" "call" (func $host (param i32) (result i32)))
    (type $unary (func (param i32) (result i32)))
    (table funcref (elem $double $fib $thrower))
    (tag $e (param i32))
    (memory (export "memory") 1)
    (func $double (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (func $fib (type $unary)
        (if (result i32) (i32.lt_u (local.get 0) (i32.const 2))
            (then (local.get 0))
            (else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1)))
                (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
    (func $thrower (type $unary)
        (if (i32.eqz (local.get 0)) (then (throw $e (i32.const 7))))
        (call $thrower (i32.sub (local.get 0) (i32.const 1))))
    (func $catcher (type $unary)
        (block $h (result i32)
            (try_table (result i32) (catch $e $h)
                (call_indirect (type $unary) (local.get 0) (i32.const 2)))
            (drop) (i32.const 1))
        (i32.add (i32.const 100)))
    (func $catches_in_loop (type $unary) (local $count i32)
        (loop $again
            (local.set $count (i32.add (local.get $count) (i32.const 1)))
            (if (i32.lt_u (local.get $count) (i32.const 3))
                (then (try_table (catch_all $again) (drop (call $thrower (local.get 0)))))))
        (local.get $count))
    (func $tail (type $unary)
        (if (i32.eqz (local.get 0)) (then (return_call_indirect (type $unary) (i32.const 20) (i32.const 0))))
        (return_call $tail (i32.sub (local.get 0) (i32.const 1))))
    (func (export "back") (type $unary)
        (i32.add (call $tail (local.get 0)) (call $double (i32.const 1))))
    (func $main (export "main") (result i32)
        (i32.store (i32.const 8) (call $fib (i32.const 4)))
        (i32.add
            (i32.add (call $catcher (i32.const 2)) (call $catches_in_loop (i32.const 1)))
            (i32.add (call $host (i32.const 3))
                (i32.add (call_indirect (type $unary) (i32.const 5) (i32.const 0)) (i32.load (i32.const 8)))))))"#;

/// As above, ends by a trap in a callee.
pub(super) const TRAPS: &str = r#"(module
    (func $divide (param i32 i32) (result i32) (i32.div_u (local.get 0) (local.get 1)))
    (func (export "main") (result i32)
        (i32.add (call $divide (i32.const 6) (i32.const 2)) (call $divide (i32.const 6) (i32.const 0)))))"#;

/// An instruction that was executed, and the number of frames outside of its own.
type Executed = (Location, usize);

/// All instructions of a run, in order, and how it ends.
fn trace(text: &str) -> (Vec<Executed>, Result<String, String>) {
    let module = Module::new(&Engine::default(), text).unwrap();
    let executed = Arc::new(Mutex::new(Vec::new()));
    let log = executed.clone();
    let closure = GenericFn::new(move |frame| {
        log.lock().unwrap().push((frame.location(), frame.depth()));
        Ok(())
    });
    let probe = module.global_probe(Kind::Generic(closure)).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = instantiate(&mut store, &module);
    let outcome = call_main(&mut store, &instance, &[]);
    assert!(probe.refused().is_empty());
    (std::mem::take(&mut *executed.lock().unwrap()), outcome)
}

/// Stops in `main`, and steps to the end. `next` determines, from the trace and the index of the
/// present instruction, where the step leads; `None` stands for the end.
fn check(text: &str, resume: Resume, next: impl Fn(&[Executed], usize, &Module) -> Option<usize>) -> usize {
    check_from(text, 0, resume, next)
}

/// As [`check`], from this instruction of the trace.
fn check_from(
    text: &str,
    start: usize,
    resume: Resume,
    next: impl Fn(&[Executed], usize, &Module) -> Option<usize>,
) -> usize {
    let (executed, expected) = trace(text);
    let mut debugged = Debugged::new(text);
    let (first, _) = executed[start];
    let number = debugged.debugger.add_breakpoint_at("start", vec![first], None, true).unwrap();
    let before = executed[..start].iter().filter(|(location, _)| *location == first).count();
    debugged.debugger.ignore(number, before as u64).unwrap();
    debugged.start(&[]);
    let mut stop = debugged.stop();
    let (mut at, mut steps) = (start, 0);
    let module = debugged.debugger.code().module().clone();
    loop {
        assert_eq!((stop.location, stop.depth), executed[at], "step {steps}, instruction {at} of\n{text}");
        let target = next(&executed, at, &module);
        debugged.debugger.resume(resume).unwrap();
        match (debugged.debugger.wait(), target) {
            (Event::Stopped(next), Some(target)) => {
                assert!(next.reasons.iter().any(|reason| matches!(reason, Reason::Step)), "{next:?}");
                (stop, at) = (next, target);
            }
            (Event::Ended(outcome), None) => {
                let ended = if outcome.has_failed { Err(outcome.text) } else { Ok(outcome.text) };
                assert_eq!(ended, expected);
                debugged.thread.take().unwrap().join().unwrap();
                return steps;
            }
            (event, target) => {
                let target = target.map(|target| executed[target]);
                panic!("step {steps} from {:?}: {event:?}, expected {target:?} in\n{text}", executed[at])
            }
        }
        steps += 1;
    }
}

/// Each instruction follows the one before, except where the host is in between and nothing of the
/// stack remains.
fn every(executed: &[Executed], at: usize, _: &Module) -> Option<usize> {
    (at + 1 < executed.len()).then_some(at + 1)
}

/// The next one in the frame or, after the frame has ended, in one further up.
fn over(executed: &[Executed], at: usize, module: &Module) -> Option<usize> {
    let (location, depth) = executed[at];
    let Place::Instruction { offset } = location.place else { panic!("{location:?}") };
    let body = module.function(location.function).unwrap().body().unwrap();
    let start = body.range().start;
    let mut instructions = body.instructions();
    let here = instructions.find(|of| of.offset() - start == offset as usize).unwrap();
    let is_tail = matches!(
        here.operator(),
        Operator::ReturnCall { .. } | Operator::ReturnCallIndirect { .. } | Operator::ReturnCallRef { .. }
    );
    let ends = |of: &usize| *of < depth || (*of == depth && !is_tail);
    (at + 1..executed.len()).find(|next| ends(&executed[*next].1))
}

#[test]
fn instruction_steps_follow_every_instruction() {
    assert!(check(TRAPS, Resume::StepInstruction, every) > 8);
    // A call by the host is not followed: the step ends when it has returned.
    let in_module = |executed: &[Executed], at: usize, module: &Module| {
        let back = module.functions().find(|of| of.exports().any(|name| name == "back")).unwrap().index();
        let (_, depth) = executed[at];
        let (next, deeper) = *executed.get(at + 1)?;
        if next.function == back && deeper > depth {
            return (at + 1..executed.len()).find(|next| executed[*next].1 <= depth);
        }
        Some(at + 1)
    };
    assert!(check(WRITTEN, Resume::StepInstruction, in_module) > 100);
    // Without lines, a step executes one instruction.
    assert!(check(TRAPS, Resume::Step, every) > 8);
}

#[test]
fn steps_over_calls_stay_in_the_frame_or_its_callers() {
    assert!(check(WRITTEN, Resume::NextInstruction, over) > 10);
    assert!(check(TRAPS, Resume::NextInstruction, over) > 3);
    assert!(check(TRAPS, Resume::Next, over) > 3);
}

#[test]
fn steps_over_calls_in_inner_frames() {
    // The frames of recursive functions, and of those that catch what their callees throw.
    let (executed, _) = trace(WRITTEN);
    let module = Module::new(&Engine::default(), WRITTEN).unwrap();
    for name in ["fib", "thrower", "catcher", "catches_in_loop", "tail"] {
        let function = module.functions().find(|of| of.name() == Some(name)).unwrap().index();
        let start = executed.iter().position(|(location, _)| location.function == function).unwrap();
        assert!(check_from(WRITTEN, start, Resume::NextInstruction, over) > 3, "{name}");
    }
}

#[test]
fn steps_of_random_programs() {
    let (mut by_instruction, mut over_calls) = (0, 0);
    for seed in 0..40 {
        let text = programs::program(seed);
        let (executed, _) = trace(&text);
        // Each step is a switch between two threads.
        if executed.len() < 20_000 {
            by_instruction += check(&text, Resume::StepInstruction, every);
            over_calls += check(&text, Resume::NextInstruction, over);
        }
    }
    assert!(by_instruction > 5_000 && over_calls > 1_000, "{by_instruction}, {over_calls}");
}

#[test]
fn a_frame_is_finished_at_any_depth() {
    let (executed, expected) = trace(WRITTEN);
    for level in 0..3 {
        let mut debugged = Debugged::new(WRITTEN);
        let deep = executed.iter().position(|(_, depth)| *depth == 3).unwrap();
        debugged.debugger.add_breakpoint_at("deep", vec![executed[deep].0], None, false).unwrap();
        debugged.start(&[]);
        let mut stop = debugged.stop();
        while stop.depth < 3 {
            stop = debugged.go(Resume::Continue);
        }
        let at = executed.iter().position(|of| *of == (stop.location, stop.depth)).unwrap();
        debugged.debugger.delete(1).unwrap();
        let finished = debugged.go(Resume::Finish { level });
        let target = (at..executed.len()).find(|next| executed[*next].1 < 3 - level).unwrap();
        assert_eq!((finished.location, finished.depth), executed[target]);
        // fib(2), fib(3), fib(4).
        let [Reason::Finished { results }] = &finished.reasons[..] else { panic!("{finished:?}") };
        let expected_result = [1, 2, 3][level];
        assert_eq!(results.iter().map(Val::unwrap_i32).collect::<Vec<_>>(), [expected_result]);
        assert_eq!(Ok(debugged.finish().text), expected);
    }
}

/// The host function has results of its own, although they look like those of the frame.
#[test]
fn a_frame_that_the_host_has_called_returns_nothing_to_the_caller_of_the_host() {
    let (mut debugged, _) = Debugged::begin(WRITTEN, "back", &[]);
    let finished = debugged.go(Resume::Finish { level: 0 });
    assert_eq!(finished.depth, 0);
    assert!(matches!(finished.reasons[..], [Reason::Step]), "{finished:?}");
    debugged.finish();
}

#[test]
fn the_outermost_frame_cannot_be_left_by_level() {
    let (mut debugged, _) = Debugged::begin(TRAPS, "main", &[]);
    assert!(debugged.debugger.resume(Resume::Finish { level: 1 }).is_err());
    assert_eq!(debugged.finish().text, "wasm trap: integer divide by zero");
}

#[test]
fn a_step_ends_at_a_breakpoint_in_a_callee() {
    let (mut debugged, _) = Debugged::begin(TRAPS, "main", &[]);
    let number = debugged.debugger.add_breakpoint("divide", None, true).unwrap();
    debugged.go(Resume::NextInstruction);
    debugged.go(Resume::NextInstruction);
    let stop = debugged.go(Resume::NextInstruction);
    assert!(super::is_breakpoint(&stop, number), "{stop:?}");
    assert_eq!(stop.depth, 1);
    // The step is over.
    debugged.finish();
}

#[test]
fn deep_recursion_takes_as_many_looks_at_frames_as_there_are_frames() {
    const DEPTH: usize = 2_000;
    let text = r#"(module (func $count (param i32) (result i32)
            (if (result i32) (i32.eqz (local.get 0)) (then (i32.const 0))
                (else (i32.add (i32.const 1) (call $count (i32.sub (local.get 0) (i32.const 1)))))))
        (func (export "main") (param i32) (result i32) (call $count (local.get 0))))"#;
    let walked =
        |debugged: &Debugged| debugged.debugger.inspect(|stopped| stopped.probe_frame().walked()).unwrap();
    // Each stop looks at all frames a few times.
    let check = |walked: u64, what: &str| assert!(walked < 20 * DEPTH as u64, "{what}: {walked}");
    let argument = Val::I32(DEPTH as i32);

    let mut debugged = Debugged::new(text);
    let condition = Expression::parse("$local0 == 1").unwrap();
    let number = debugged.debugger.add_breakpoint("count", Some(condition), true).unwrap();
    debugged.start(std::slice::from_ref(&argument));
    let stop = debugged.stop();
    assert!(super::is_breakpoint(&stop, number) && stop.depth == DEPTH, "{stop:?}");
    check(walked(&debugged), "a breakpoint with a condition");
    let before = walked(&debugged);
    assert_eq!(debugged.value(DEPTH - 1, "$local0"), DEPTH.to_string());
    check(walked(&debugged) - before, "a frame");
    let before = walked(&debugged);
    assert_eq!(debugged.go(Resume::Finish { level: DEPTH / 2 }).depth, DEPTH / 2 - 1);
    check(walked(&debugged) - before, "the end of a frame");
    assert_eq!(debugged.finish().text, DEPTH.to_string());

    let (mut debugged, mut stop) = Debugged::begin(text, "count", &[argument]);
    while !debugged.text(&stop).starts_with("call") {
        stop = debugged.go(Resume::NextInstruction);
    }
    let before = walked(&debugged);
    assert_eq!(debugged.go(Resume::NextInstruction).depth, 1);
    check(walked(&debugged) - before, "a step over a call");
    assert_eq!(debugged.finish().text, DEPTH.to_string());
}
