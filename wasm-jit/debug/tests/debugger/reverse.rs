//! Reverse execution, compared with all instructions that a run without a debugger executes, and
//! their values.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_jit::probes::{Frame, GenericFn, Kind, Location};
use wasm_jit::{Config, Engine, Module, Store};
use wasm_jit_debug::{
    Debugger, Error, Event, Expression, Outcome, Reason, Repetition, Resume, Reverse, Stop, Value,
};

use super::steps::{TRAPS, WRITTEN};
use super::{Debugged, call_main, instantiate, is_breakpoint, programs};

/// A moment of a run, with the state that the debugger shows there.
#[derive(Clone, Debug, PartialEq)]
struct Moment {
    location: Location,
    depth: usize,
    /// Parameters and locals, then operands.
    values: Vec<String>,
    /// The first bytes of memory.
    bytes: Vec<u8>,
}

const BYTES: usize = 128;

/// The state of the innermost frame.
fn moment(frame: &mut Frame<'_>, locals: u32) -> Moment {
    let mut values = Vec::new();
    for local in 0..locals {
        values.push(Value::from(&frame.local(local).unwrap()).to_string());
    }
    for operand in 0..frame.operands() as u32 {
        values.push(Value::from(&frame.operand(operand).unwrap()).to_string());
    }
    let mut bytes = vec![0; BYTES.min(frame.memory_size(0).unwrap_or(0) as usize)];
    frame.read_memory(0, 0, &mut bytes).ok();
    Moment { location: frame.location(), depth: frame.depth(), values, bytes }
}

fn locals(module: &Module, location: Location) -> u32 {
    let function = module.function(location.function).unwrap();
    (function.ty().params().len() + function.body().unwrap().locals().count()) as u32
}

/// All instructions of a run without fuel, and how it ends.
fn history(text: &str) -> (Vec<Moment>, Result<String, String>) {
    let module = Module::new(&Engine::default(), text).unwrap();
    let executed = Arc::new(Mutex::new(Vec::new()));
    let (log, of) = (executed.clone(), module.clone());
    let closure = GenericFn::new(move |frame| {
        let locals = locals(&of, frame.location());
        log.lock().unwrap().push(moment(frame, locals));
        Ok(())
    });
    let probe = module.global_probe(Kind::Generic(closure)).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = instantiate(&mut store, &module);
    let outcome = call_main(&mut store, &instance, &[]);
    assert!(probe.refused().is_empty());
    let executed = std::mem::take(&mut *executed.lock().unwrap());
    (executed, outcome)
}

const FUEL: u64 = 1 << 40;

/// Starts `main` on a thread.
fn start(debugger: &Arc<Debugger>, fuel: u64) {
    let debugger = debugger.clone();
    std::thread::spawn(move || {
        let module = debugger.code().module().clone();
        let mut store = Store::new(module.engine(), ());
        store.set_fuel(fuel).unwrap();
        debugger.add_thread(store.interrupt_handle());
        let instance = instantiate(&mut store, &module);
        let outcome = match call_main(&mut store, &instance, &[]) {
            Ok(results) => Outcome::returned(results),
            Err(error) => Outcome::failed(error, 1),
        };
        debugger.ended(outcome.with_fuel(store.get_fuel().unwrap()));
    });
}

impl Debugged {
    /// A program that can go back. `pass` is called when it is started again.
    pub(super) fn repeating(
        text: &str,
        pass: impl Fn(&Debugger, Repetition) + Send + Sync + 'static,
    ) -> Self {
        let engine = Engine::new(Config::new().consume_fuel(true)).unwrap();
        let debugger = Arc::new(Debugger::new(&Module::new(&engine, text).unwrap()));
        let again = Arc::downgrade(&debugger);
        debugger.allow_reverse(FUEL, move |run| {
            if let Some(debugger) = again.upgrade() {
                pass(&debugger, run);
                start(&debugger, run.fuel);
            }
            Ok(())
        });
        Self { debugger, thread: None }
    }

    /// Runs it to its end for the first time.
    pub(super) fn run_once(&self) {
        start(&self.debugger, FUEL);
        assert!(matches!(self.debugger.wait(), Event::Ended(_)));
    }

    /// The same program, at the end of its run.
    fn at_end(text: &str) -> Self {
        let debugged = Self::repeating(text, |_, _| {});
        debugged.run_once();
        debugged
    }

    #[track_caller]
    fn run_to_end(&self) -> Outcome {
        self.debugger.resume(Resume::Continue).unwrap();
        match self.debugger.wait() {
            Event::Ended(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn back(&self, how: Reverse) -> Stop {
        self.debugger.reverse(how, 1).unwrap();
        self.stop()
    }

    #[track_caller]
    fn check(&self, stop: &Stop, expected: &Moment) {
        assert_eq!((stop.location, stop.depth), (expected.location, expected.depth), "{stop:?}");
        let look = |stopped: &mut wasm_jit_debug::Stopped<'_, '_>| {
            let locals = locals(stopped.code().module(), stopped.locations()[0].unwrap());
            moment(stopped.probe_frame(), locals)
        };
        assert_eq!(self.debugger.inspect(look).unwrap(), *expected);
    }
}

fn is_start(stop: &Stop) -> bool {
    stop.reasons.iter().any(|reason| matches!(reason, Reason::HistoryStart))
}

fn is_step(stop: &Stop) -> bool {
    stop.reasons.iter().any(|reason| matches!(reason, Reason::Step))
}

/// From the end to the start, instruction by instruction.
fn check_all(text: &str) -> usize {
    let (executed, expected) = history(text);
    let debugged = Debugged::at_end(text);
    for (index, moment) in executed.iter().enumerate().rev() {
        let stop = debugged.back(Reverse::StepInstruction);
        assert!(is_step(&stop), "{stop:?} at {index}");
        debugged.check(&stop, moment);
    }
    for _ in 0..2 {
        let stop = debugged.back(Reverse::StepInstruction);
        assert!(is_start(&stop), "{stop:?}");
        debugged.check(&stop, &executed[0]);
    }
    let outcome = debugged.run_to_end();
    assert_eq!(if outcome.has_failed { Err(outcome.text) } else { Ok(outcome.text) }, expected);
    executed.len()
}

/// Returns from many frames, without an instruction that costs fuel.
const UNWINDS: &str = r#"(module
    (func $f (param $n i32)
        (if (local.get $n) (then (call $f (i32.sub (local.get $n) (i32.const 1))))))
    (func (export "main") (result i32) (call $f (i32.const 6)) (i32.const 1)))"#;

#[test]
fn every_instruction_is_stepped_back_to() {
    assert!(check_all(UNWINDS) > 50);
    // Recursion, tail calls, indirect calls, exceptions, calls by the host; a trap.
    assert!(check_all(WRITTEN) > 200);
    assert!(check_all(TRAPS) > 8);
}

/// The destinations of steps, according to the history.
struct Expected<'h>(&'h [Moment]);

impl Expected<'_> {
    fn last(&self, before: usize, holds: impl Fn(&Moment) -> bool) -> Option<usize> {
        (0..before).rev().find(|index| holds(&self.0[*index]))
    }
}

/// Random commands forward and back, with breakpoints.
fn walk(text: &str, seed: u64, commands: usize) {
    let (executed, _) = history(text);
    let expected = Expected(&executed);
    let mut random = SmallRng::seed_from_u64(seed);
    let debugged = Debugged::at_end(text);
    let mut at = executed.len();
    for command in 0..commands {
        let place = executed[random.random_range(0..executed.len())].location;
        let depth = executed.get(at).map_or(usize::MAX, |moment| moment.depth);
        let (stop, next) = match random.random_range(0..6) {
            0 => (debugged.back(Reverse::StepInstruction), at.checked_sub(1)),
            1 => (debugged.back(Reverse::NextInstruction), expected.last(at, |of| of.depth <= depth)),
            2 if at < executed.len() && depth > 0 => {
                let next = expected.last(at, |of| of.depth < depth);
                (debugged.back(Reverse::Finish { level: 0 }), next)
            }
            3 => {
                let number = debugged.debugger.add_breakpoint_at("place", vec![place], None, false).unwrap();
                let stop = debugged.back(Reverse::Continue);
                let next = expected.last(at, |of| of.location == place);
                assert_eq!(is_breakpoint(&stop, number), next.is_some(), "{stop:?}");
                debugged.debugger.delete(number).unwrap();
                (stop, next)
            }
            4 => {
                // A step over a call that reaches a breakpoint.
                let number = debugged.debugger.add_breakpoint_at("place", vec![place], None, false).unwrap();
                let stop = debugged.back(Reverse::NextInstruction);
                let next = expected.last(at, |of| of.depth <= depth || of.location == place);
                debugged.debugger.delete(number).unwrap();
                (stop, next)
            }
            _ if at < executed.len() => {
                let number = debugged.debugger.add_breakpoint_at("place", vec![place], None, false).unwrap();
                debugged.debugger.resume(Resume::Continue).unwrap();
                let event = debugged.debugger.wait();
                debugged.debugger.delete(number).unwrap();
                let next = (at + 1..executed.len()).find(|index| executed[*index].location == place);
                match event {
                    Event::Stopped(stop) => (stop, next),
                    _ => {
                        assert_eq!(next, None);
                        at = executed.len();
                        continue;
                    }
                }
            }
            _ => continue,
        };
        let index = next.unwrap_or(0);
        assert_eq!(is_start(&stop), next.is_none(), "{stop:?}, command {command} at {at} of\n{text}");
        debugged.check(&stop, &executed[index]);
        at = index;
    }
}

#[test]
fn walks_forward_and_back_in_a_written_program() {
    walk(WRITTEN, 1, 100);
    walk(TRAPS, 2, 20);
}

#[test]
fn walks_forward_and_back_in_random_programs() {
    for seed in 0..6 {
        let text = programs::program(seed);
        if history(&text).0.len() < 20_000 {
            walk(&text, seed, 20);
        }
    }
}

/// Some 100,000 instructions, most of them in calls from one place; few write to memory.
const LONG: &str = r#"(module (memory (export "memory") 1) (global $sum (mut i32) (i32.const 0))
    (func $work (param $n i32) (result i32) (local $i i32)
        (loop $again
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (if (i32.eqz (i32.rem_u (local.get $i) (i32.const 1000)))
                (then (i32.store (i32.const 16) (local.get $i))))
            (br_if $again (i32.lt_u (local.get $i) (local.get $n))))
        (local.get $i))
    (func (export "main") (result i32) (local $x i32)
        (local.set $x (call $work (i32.const 3000)))
        (global.set $sum (local.get $x))
        (local.set $x (i32.add (local.get $x) (call $work (i32.const 6000))))
        (i32.store (i32.const 20) (i32.const 1))
        (i32.store (i32.const 20) (local.get $x))
        (local.get $x)))"#;

#[test]
fn long_histories_are_searched_in_parts() {
    let (executed, _) = history(LONG);
    assert!(executed.len() > 95_000, "{}", executed.len());
    let expected = Expected(&executed);
    let debugged = Debugged::at_end(LONG);
    let mut at = executed.len();
    // Over the second call, which is longer than a trail, and into the first one.
    for (how, times) in [(Reverse::NextInstruction, 9), (Reverse::StepInstruction, 40)] {
        for _ in 0..times {
            let depth = executed.get(at).map_or(usize::MAX, |moment| moment.depth);
            at = match how {
                Reverse::NextInstruction => expected.last(at, |of| of.depth <= depth).unwrap(),
                _ => at - 1,
            };
            let stop = debugged.back(how);
            debugged.check(&stop, &executed[at]);
        }
    }
    // Several at once.
    debugged.debugger.reverse(Reverse::StepInstruction, 1000).unwrap();
    at -= 1000;
    let stop = debugged.stop();
    debugged.check(&stop, &executed[at]);
}

#[test]
fn a_step_back_takes_three_runs_and_the_next_one_takes_one() {
    let passes = Arc::new(AtomicU32::new(0));
    let counted = passes.clone();
    let debugged = Debugged::repeating(LONG, move |_, _| _ = counted.fetch_add(1, Ordering::Relaxed));
    start(&debugged.debugger, FUEL);
    assert!(matches!(debugged.debugger.wait(), Event::Ended(_)));
    // With less fuel, along the trail, to the instruction.
    debugged.back(Reverse::StepInstruction);
    assert_eq!(passes.swap(0, Ordering::Relaxed), 3);
    debugged.back(Reverse::StepInstruction);
    assert_eq!(passes.swap(0, Ordering::Relaxed), 1);
    // The call is longer than the trail; the step leads to its instruction nevertheless.
    debugged.debugger.reverse(Reverse::NextInstruction, 9).unwrap();
    let stop = debugged.stop();
    assert_eq!(debugged.text(&stop), "call $work");
    assert_eq!(passes.load(Ordering::Relaxed), 2);
}

/// At each instruction that a step back sees, the frames of the stack are counted: with many frames
/// it sees few instructions.
#[test]
fn steps_back_from_an_exhausted_stack() {
    let text = "(module (func $deep (export \"main\") (result i32) (local i32)
        (i32.add (call $deep) (i32.add (local.get 0) (i32.const 1)))))";
    let passes = Arc::new(AtomicU32::new(0));
    let counted = passes.clone();
    let debugged = Debugged::repeating(text, move |_, _| _ = counted.fetch_add(1, Ordering::Relaxed));
    start(&debugged.debugger, FUEL);
    assert!(matches!(debugged.debugger.wait(), Event::Ended(_)));
    let stop = debugged.back(Reverse::StepInstruction);
    assert!(stop.depth > 1_000, "{stop:?}");
    assert_eq!(debugged.text(&stop), "call $deep");
    // Twice with less fuel, along the trail, to the instruction.
    assert_eq!(passes.load(Ordering::Relaxed), 4);
    let before = debugged.back(Reverse::StepInstruction);
    assert_eq!((before.depth, debugged.text(&before)), (stop.depth - 1, "call $deep".to_owned()));
}

#[test]
fn a_run_may_begin_shortly_before_what_it_observes() {
    let runs: Arc<Mutex<Vec<Repetition>>> = Arc::default();
    let noted = runs.clone();
    let debugged = Debugged::repeating(LONG, move |_, run| noted.lock().unwrap().push(run));
    start(&debugged.debugger, FUEL);
    assert!(matches!(debugged.debugger.wait(), Event::Ended(_)));
    let consumed = |debugged: &Debugged| {
        let look = |stopped: &mut wasm_jit_debug::Stopped<'_, '_>| stopped.probe_frame().fuel();
        FUEL - debugged.debugger.inspect(look).unwrap().unwrap()
    };
    debugged.back(Reverse::StepInstruction);
    let last = consumed(&debugged);
    let [less, trail, stop] = runs.lock().unwrap().split_off(0)[..] else { panic!("three runs") };
    // Of the run with less fuel, only the end is observed.
    assert!(less.fuel < last && less.unobserved >= less.fuel, "{less:?}");
    assert_eq!((trail.fuel, stop.fuel), (FUEL, FUEL));
    assert!(trail.unobserved + 20_000 > last && trail.unobserved < last - 10_000, "{trail:?}");
    assert_eq!(stop.unobserved, last);
    // A search that comes to the beginning needs all of it.
    debugged.debugger.add_breakpoint("main", None, false).unwrap();
    debugged.back(Reverse::Continue);
    let runs = runs.lock().unwrap().split_off(0);
    assert!(runs.iter().any(|run| run.fuel == FUEL && run.unobserved == 0), "{runs:?}");
    assert_eq!(runs.last().unwrap().unobserved, consumed(&debugged));
}

#[test]
fn another_run_stops_at_breakpoints_after_one_that_went_back() {
    let debugged = Debugged::at_end(LONG);
    let debugger = &debugged.debugger;
    debugged.back(Reverse::StepInstruction);
    debugged.run_to_end();
    debugger.add_breakpoint("main", None, false).unwrap();
    debugger.begin();
    start(debugger, FUEL);
    assert!(is_breakpoint(&debugged.stop(), 1));
    debugged.run_to_end();
    // This also holds if the last run to the moment was ended.
    debugger.reverse(Reverse::StepInstruction, 1).unwrap();
    debugger.kill();
    assert!(matches!(debugger.wait(), Event::Ended(_)));
    debugger.begin();
    start(debugger, FUEL);
    assert!(is_breakpoint(&debugged.stop(), 1));
}

/// The changes of a value that is seen in all moments, as indices of the instructions that make
/// them.
fn changes(executed: &[Moment], value: impl Fn(&Moment) -> i32) -> Vec<(usize, i32, i32)> {
    let pairs = executed.windows(2).enumerate();
    let both = pairs.map(|(index, pair)| (index, value(&pair[0]), value(&pair[1])));
    both.filter(|(_, before, after)| before != after).collect()
}

fn word(moment: &Moment, at: usize) -> i32 {
    i32::from_le_bytes(moment.bytes[at..at + 4].try_into().unwrap())
}

#[track_caller]
fn changed(stop: &Stop, number: u32) -> (String, String) {
    let found = stop.reasons.iter().find_map(|reason| match reason {
        Reason::Watch { number: of, old: Ok(old), new: Ok(new), .. } if *of == number => {
            Some((old.to_string(), new.to_string()))
        }
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{stop:?}"))
}

/// Goes back through all changes of a word of memory, and forward again through some.
fn check_watch(text: &str, at: usize) -> usize {
    let (executed, _) = history(text);
    let changes = changes(&executed, |moment| word(moment, at));
    let debugged = Debugged::at_end(text);
    let expression = Expression::parse(&format!("i32[{at}]")).unwrap();
    let number = debugged.debugger.add_watch(expression, None, 0).unwrap();
    for (index, before, after) in changes.iter().rev() {
        let stop = debugged.back(Reverse::Continue);
        assert_eq!(changed(&stop, number), (after.to_string(), before.to_string()));
        debugged.check(&stop, &executed[*index]);
    }
    assert!(is_start(&debugged.back(Reverse::Continue)));
    for (index, before, after) in changes.iter().take(3) {
        let stop = debugged.go(Resume::Continue);
        assert_eq!(changed(&stop, number), (before.to_string(), after.to_string()));
        debugged.check(&stop, &executed[index + 1]);
    }
    changes.len()
}

#[test]
fn changes_of_memory_are_found_backwards() {
    assert_eq!(check_watch(LONG, 16), 9);
    assert_eq!(check_watch(LONG, 20), 2);
    assert_eq!(check_watch(WRITTEN, 8), 1);
}

#[test]
fn a_step_back_over_a_change_tells_it() {
    let debugged = Debugged::at_end(LONG);
    let number = debugged.debugger.add_watch(Expression::parse("i32[20]").unwrap(), None, 0).unwrap();
    // `end`, `local.get`, and the store.
    assert!(is_step(&debugged.back(Reverse::StepInstruction)));
    assert!(is_step(&debugged.back(Reverse::StepInstruction)));
    let stop = debugged.back(Reverse::StepInstruction);
    assert_eq!(changed(&stop, number), ("9000".into(), "1".into()));
    assert!(is_step(&stop));
}

#[test]
fn a_breakpoint_after_a_change_comes_first() {
    let (executed, _) = history(LONG);
    let changes = changes(&executed, |moment| word(moment, 20));
    let (change, ..) = changes[0];
    let debugged = Debugged::at_end(LONG);
    let watch = debugged.debugger.add_watch(Expression::parse("i32[20]").unwrap(), None, 0).unwrap();
    let after = vec![executed[change + 1].location];
    let number = debugged.debugger.add_breakpoint_at("after", after, None, false).unwrap();
    changed(&debugged.back(Reverse::Continue), watch);
    let stop = debugged.back(Reverse::Continue);
    assert!(matches!(stop.reasons[..], [Reason::Breakpoint { number: of, .. }] if of == number), "{stop:?}");
    debugged.check(&stop, &executed[change + 1]);
    let stop = debugged.back(Reverse::Continue);
    assert_eq!(changed(&stop, watch), ("1".into(), "0".into()));
    debugged.check(&stop, &executed[change]);
}

#[test]
fn breakpoints_and_watchpoints_are_searched_together() {
    let debugged = Debugged::at_end(LONG);
    let watch = debugged.debugger.add_watch(Expression::parse("$sum").unwrap(), None, 0).unwrap();
    let work = debugged.debugger.add_breakpoint("work", None, false).unwrap();
    let stop = debugged.back(Reverse::Continue);
    assert!(is_breakpoint(&stop, work), "the second call: {stop:?}");
    assert_eq!(debugged.value(0, "$n"), "6000");
    let stop = debugged.back(Reverse::Continue);
    assert_eq!(changed(&stop, watch), ("3000".into(), "0".into()));
    assert_eq!(debugged.text(&stop), "global.set $sum");
    let stop = debugged.back(Reverse::Continue);
    assert!(is_breakpoint(&stop, work), "the first call: {stop:?}");
    assert_eq!(debugged.value(0, "$n"), "3000");
    let hits = |number| debugged.debugger.breakpoints().iter().find(|of| of.number == number).unwrap().hits;
    assert_eq!((hits(work), hits(watch)), (2, 1));
    // A condition.
    debugged.debugger.set_condition(work, Some(Expression::parse("$n == 6000").unwrap())).unwrap();
    assert!(is_start(&debugged.back(Reverse::Continue)));
    assert_eq!(changed(&debugged.go(Resume::Continue), watch), ("0".into(), "3000".into()));
    assert!(is_breakpoint(&debugged.go(Resume::Continue), work));
}

const RECURSIVE: &str = r#"(module
    (func $f (param $n i32) (result i32) (local $x i32)
        (local.set $x (i32.const 1))
        (if (local.get $n) (then
            (local.set $x (call $f (i32.sub (local.get $n) (i32.const 1))))
            (local.set $x (i32.add (local.get $x) (local.get $n)))))
        (local.get $x))
    (func (export "main") (result i32) (drop (call $f (i32.const 2))) (call $f (i32.const 3))))"#;

#[test]
fn a_local_is_watched_in_its_frame_only() {
    let debugged = Debugged::repeating(RECURSIVE, |_, _| {});
    // At the end of f(2) in the second call: of the frames with $n == 2, the last one.
    let number = debugged.debugger.add_breakpoint("f", None, false).unwrap();
    debugged
        .debugger
        .set_condition(number, Some(Expression::parse("$n == 2 && $depth == 2").unwrap()))
        .unwrap();
    start(&debugged.debugger, FUEL);
    let stop = debugged.stop();
    assert_eq!(stop.depth, 2);
    debugged.debugger.delete(number).unwrap();
    let watch = debugged.debugger.add_watch(Expression::parse("$x").unwrap(), None, 0).unwrap();
    let forward: Vec<_> = (0..3).map(|_| changed(&debugged.go(Resume::Continue), watch)).collect();
    let expected = [("0", "1"), ("1", "2"), ("2", "4")].map(|(old, new)| (old.to_owned(), new.to_owned()));
    assert_eq!(forward, expected);
    // The last one again.
    for (old, new) in expected.iter().rev() {
        let stop = debugged.back(Reverse::Continue);
        assert_eq!(changed(&stop, watch), (new.clone(), old.clone()));
        assert_eq!(stop.depth, 2);
        assert_eq!(debugged.value(0, "$n"), "2");
        assert!(debugged.text(&stop).starts_with("local.set"), "{}", debugged.text(&stop));
    }
    // And forward: it is the same frame in another run.
    assert_eq!(changed(&debugged.go(Resume::Continue), watch), expected[0]);
    debugged.back(Reverse::Continue);
    let stop = debugged.back(Reverse::Continue);
    assert!(matches!(stop.reasons[..], [Reason::OutOfScope { number, .. }] if number == watch), "{stop:?}");
    assert!(debugged.debugger.breakpoints().is_empty());
    assert_eq!(debugged.run_to_end().text, "7");
}

#[test]
fn a_local_of_a_frame_that_is_older_than_the_searched_part_is_watched() {
    let debugged = Debugged::repeating(LONG, |_, _| {});
    let number = debugged.debugger.add_breakpoint("work", None, false).unwrap();
    debugged.debugger.set_condition(number, Some(Expression::parse("$n == 6000").unwrap())).unwrap();
    start(&debugged.debugger, FUEL);
    debugged.stop();
    debugged.debugger.delete(number).unwrap();
    let watch = debugged.debugger.add_watch(Expression::parse("$x").unwrap(), None, 1).unwrap();
    assert_eq!(changed(&debugged.go(Resume::Continue), watch), ("3000".into(), "9000".into()));
    assert_eq!(changed(&debugged.back(Reverse::Continue), watch), ("9000".into(), "3000".into()));
    assert_eq!(changed(&debugged.back(Reverse::Continue), watch), ("3000".into(), "0".into()));
    assert_eq!(changed(&debugged.go(Resume::Continue), watch), ("0".into(), "3000".into()));
}

#[test]
fn a_frame_is_left_backwards_at_any_level() {
    let (executed, _) = history(RECURSIVE);
    let deep = executed.iter().position(|of| of.depth == 3).unwrap();
    for level in 0..3 {
        let debugged = Debugged::repeating(RECURSIVE, |_, _| {});
        let number =
            debugged.debugger.add_breakpoint_at("deep", vec![executed[deep].location], None, false).unwrap();
        start(&debugged.debugger, FUEL);
        let mut stop = debugged.stop();
        while stop.depth < 3 {
            stop = debugged.go(Resume::Continue);
        }
        debugged.debugger.delete(number).unwrap();
        let stop = debugged.back(Reverse::Finish { level });
        let target = (0..deep).rev().find(|index| executed[*index].depth < 3 - level).unwrap();
        debugged.check(&stop, &executed[target]);
        assert!(debugged.text(&stop).starts_with("call"), "{}", debugged.text(&stop));
    }
}

/// The call of a function that was called a moment ago: only the last part of the run is observed.
/// The call of its caller was before this part.
#[test]
fn a_call_is_looked_for_in_the_last_part_of_the_run_first() {
    const CALLS: &str = r#"(module
        (func $work (param $n i32) (result i32) (local $i i32)
            (loop $again
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $again (i32.lt_u (local.get $i) (i32.const 1000))))
            (local.get $n))
        (func $all (param $n i32) (result i32)
            (loop $again
                (drop (call $work (local.get $n)))
                (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            (local.get $n))
        (func (export "main") (result i32) (drop (call $work (i32.const 7))) (call $all (i32.const 1000))))"#;
    let runs: Arc<Mutex<Vec<Repetition>>> = Arc::default();
    let noted = runs.clone();
    let debugged = Debugged::repeating(CALLS, move |_, run| noted.lock().unwrap().push(run));
    let number = debugged.debugger.add_breakpoint("work", None, false).unwrap();
    debugged.debugger.set_condition(number, Some(Expression::parse("$n == 20").unwrap())).unwrap();
    start(&debugged.debugger, FUEL);
    debugged.stop();
    debugged.debugger.delete(number).unwrap();
    let inspect = |debugged: &Debugged| {
        let look = |stopped: &mut wasm_jit_debug::Stopped<'_, '_>| {
            let frame = stopped.probe_frame();
            (FUEL - frame.fuel().unwrap(), frame.local(0).map(|value| value.unwrap_i32()).ok())
        };
        debugged.debugger.inspect(look).unwrap()
    };
    let (consumed, _) = inspect(&debugged);
    assert!(consumed > 5_000_000, "{consumed}");
    let stop = debugged.back(Reverse::Finish { level: 0 });
    assert_eq!((debugged.text(&stop), inspect(&debugged).1), ("call $work".into(), Some(20)));
    let [near, last] = runs.lock().unwrap().split_off(0)[..] else { panic!("two runs") };
    assert!(near.unobserved > consumed - (1 << 22) - 1000, "{near:?} of {consumed}");
    assert!(last.unobserved >= consumed - 1000, "{last:?} of {consumed}");
    let stop = debugged.back(Reverse::Finish { level: 0 });
    assert_eq!((debugged.text(&stop), stop.depth), ("call $all".into(), 0));
    let [near, all, last] = runs.lock().unwrap().split_off(0)[..] else { panic!("three runs") };
    assert!(near.unobserved > 0 && all.unobserved == 0, "{near:?} {all:?}");
    assert!(last.unobserved < 10_000, "{last:?}");
}

#[test]
fn a_recorded_run_is_not_changed() {
    let debugged = Debugged::at_end(WRITTEN);
    let stop = debugged.back(Reverse::Continue);
    assert!(is_start(&stop));
    for place in ["i32[8]", "$stack0"] {
        let error = debugged.assign(0, place, "5").unwrap_err();
        assert!(matches!(error, Error::Recorded | Error::Value(_) | Error::Access(_)), "{place}: {error}");
    }
    assert!(matches!(debugged.assign(0, "i32[8]", "5"), Err(Error::Recorded)));
    assert_eq!(Ok(debugged.run_to_end().text), history(WRITTEN).1);
}

#[test]
fn only_a_run_that_repeats_goes_back() {
    let (mut debugged, _) = Debugged::begin(TRAPS, "main", &[]);
    let error = debugged.debugger.reverse(Reverse::Continue, 1).unwrap_err();
    assert!(matches!(error, Error::NotRepeatable), "{error}");
    debugged.finish();
    let debugged = Debugged::repeating(TRAPS, |_, _| {});
    let error = debugged.debugger.reverse(Reverse::Continue, 1).unwrap_err();
    assert!(matches!(error, Error::Running), "{error}");
}

#[test]
fn a_search_is_interrupted() {
    let passes = Arc::new(AtomicU32::new(0));
    let counted = passes.clone();
    // While the first pass runs, or before.
    let debugged = Debugged::repeating(LONG, move |debugger, _| {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            debugger.pause();
        }
    });
    debugged.debugger.add_breakpoint("work", None, false).unwrap();
    start(&debugged.debugger, FUEL);
    let stop = debugged.stop();
    let back = debugged.back(Reverse::Continue);
    assert!(matches!(back.reasons[..], [Reason::Pause]), "{back:?}");
    assert_eq!((back.location, back.depth), (stop.location, stop.depth));
    // Nothing is left of it.
    let next = debugged.go(Resume::Continue);
    let back = debugged.back(Reverse::Continue);
    assert!(is_breakpoint(&back, 1), "{back:?}");
    assert_eq!(back.location, next.location);
}

#[test]
fn a_search_from_a_trap_is_interrupted() {
    let passes = Arc::new(AtomicU32::new(0));
    let counted = passes.clone();
    let debugged = Debugged::repeating(TRAPS, move |debugger, _| {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            debugger.pause();
        }
    });
    debugged.debugger.catch_traps(true);
    start(&debugged.debugger, FUEL);
    let stop = debugged.stop();
    assert!(matches!(stop.reasons[..], [Reason::Trapped { .. }]), "{stop:?}");
    let back = debugged.back(Reverse::StepInstruction);
    assert!(matches!(back.reasons[..], [Reason::Pause, Reason::Trapped { .. }]), "{back:?}");
    assert_eq!((back.location, back.depth), (stop.location, stop.depth));
    // To the instruction itself, and to the trap again.
    let back = debugged.back(Reverse::StepInstruction);
    assert!(matches!(back.reasons[..], [Reason::Step]), "{back:?}");
    assert_eq!((back.location, back.depth), (stop.location, stop.depth));
    let again = debugged.go(Resume::StepInstruction);
    assert!(matches!(again.reasons[..], [Reason::Trapped { .. }]), "{again:?}");
    assert!(debugged.run_to_end().has_failed);
}

#[test]
fn a_program_is_killed_while_it_goes_back() {
    let debugged = Debugged::repeating(LONG, |debugger, _| debugger.kill());
    debugged.debugger.add_breakpoint("work", None, false).unwrap();
    start(&debugged.debugger, FUEL);
    debugged.stop();
    debugged.debugger.reverse(Reverse::Continue, 1).unwrap();
    let Event::Ended(outcome) = debugged.debugger.wait() else { panic!("it stops") };
    assert_eq!(outcome.text, "killed");
    // Nor is there an end from which it could go back.
    let error = debugged.debugger.reverse(Reverse::Continue, 1).unwrap_err();
    assert!(matches!(error, Error::Running), "{error}");
}

#[test]
fn a_run_that_does_not_repeat_is_noticed() {
    let engine = Engine::new(Config::new().consume_fuel(true)).unwrap();
    let debugger = Arc::new(Debugger::new(&Module::new(&engine, TRAPS).unwrap()));
    let again = Arc::downgrade(&debugger);
    debugger.allow_reverse(FUEL, move |_| {
        // Too little fuel for the run that was before.
        again.upgrade().iter().for_each(|debugger| start(debugger, 2));
        Ok(())
    });
    debugger.add_breakpoint("divide", None, false).unwrap();
    start(&debugger, FUEL);
    let debugged = Debugged { debugger, thread: None };
    debugged.stop();
    debugged.debugger.reverse(Reverse::StepInstruction, 1).unwrap();
    let Event::Ended(outcome) = debugged.debugger.wait() else { panic!("it stops") };
    assert!(outcome.has_failed && outcome.text.contains("does not repeat"), "{outcome:?}");
}
