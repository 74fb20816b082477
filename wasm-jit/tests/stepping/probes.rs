//! Interrupts at the machine instructions of functions with probes, stubs included. Whatever the
//! instruction is,
//!
//! * the backtrace has the frames of the program, and the instruction that fires its probes, or has
//!   fired them, or is executed;
//! * each probe has fired once for each instruction up to there, in order, and none twice;
//! * the program can be run again, with its probes.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, Values, activate_all,
};
use wasm_jit::{Config, Engine, Error, Instance, Module, Store, Trap};

use super::stepper::{interrupted_after, step_from_here, turn};
use super::stride;

/// Operands in registers, in memory, in the flags, constants, and loads that are still to be done.
const PROGRAM: &str = r#"(module (memory 1) (global $g (mut i64) (i64.const 0))
    (func $leaf (param i32) (result i32)
        (i32.store (i32.const 8) (local.get 0))
        (if (i32.lt_u (i32.load (i32.const 8)) (i32.const 2)) (then (global.set $g (i64.const 5))))
        (i32.add (i32.load (i32.const 8)) (i32.const 3)))
    (func $main (export "main") (result i32) (local i32)
        (loop $again
            (local.set 0 (call $leaf (local.get 0)))
            (br_if $again (i32.lt_s (local.get 0) (i32.const 5))))
        (i32.add (local.get 0) (i32.wrap_i64 (global.get $g)))))"#;

/// 0, 3, 6; and 5.
const RESULT: i32 = 11;

/// Runs before and after the end of an `if`, and in it.
const JOINED: &str = r#"(module (memory 1)
    (func (export "main") (result i32)
        (i32.store (i32.const 8) (i32.const 3))
        (if (i32.load (i32.const 8))
            (then (i32.store (i32.const 8) (i32.const 4)) (i32.store (i32.const 12) (i32.const 5))))
        (i32.store (i32.const 16) (i32.load (i32.const 8)))
        (i32.add (i32.load (i32.const 16)) (i32.load (i32.const 12)))))"#;

/// A module with two probes at each instruction, a counter and a closure that appends the number of
/// the instruction to a log, in this order.
struct Probed {
    module: Module,
    /// Functions and offsets in the module, by number.
    functions: Vec<u32>,
    offsets: Vec<usize>,
    counters: Vec<Probe>,
    _closures: Vec<Probe>,
    log: Arc<Mutex<Vec<usize>>>,
}

/// Runs the `main` of a module to this step; returns the number of steps that it has left if it
/// ends.
fn run(module: &Module, steps: usize) -> (Result<i32, Error>, usize) {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let main = instance.get_typed_func::<(), i32>(&mut store, "main").unwrap();
    let interrupt = store.interrupt_handle();
    let call = || main.call(&mut store, ());
    let stepped = interrupted_after(steps, &[module], false, interrupt, call);
    (stepped.result, stepped.left)
}

impl Probed {
    fn new(counter_stubs: u32) -> Self {
        let engine = Engine::new(Config::new().counter_stubs(counter_stubs)).unwrap();
        let module = Module::new(&engine, PROGRAM).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (mut functions, mut offsets) = (Vec::new(), Vec::new());
        let (mut counters, mut closures) = (Vec::new(), Vec::new());
        for function in module.functions() {
            let body = function.body().unwrap();
            for instruction in body.instructions() {
                let offset = (instruction.offset() - body.range().start) as u32;
                let location = Location { function: function.index(), place: Place::Instruction { offset } };
                let number = offsets.len();
                let fired = {
                    let log = log.clone();
                    move || {
                        log.lock().unwrap().push(number);
                        step_from_here();
                    }
                };
                let kind = match number % 2 {
                    0 => Kind::Callback {
                        function: Callback::new(move |_| fired()),
                        values: Values::from([Bound::Frame]),
                    },
                    _ => Kind::Generic(GenericFn::new(move |_| {
                        fired();
                        Ok(())
                    })),
                };
                let made =
                    module.probes(&[ProbeSpec { location, kind: Kind::Count }, ProbeSpec { location, kind }]);
                let mut made = made.into_iter();
                match (made.next().unwrap(), made.next().unwrap()) {
                    (Ok(counter), Ok(closure)) => {
                        functions.push(function.index());
                        offsets.push(instruction.offset());
                        counters.push(counter);
                        closures.push(closure);
                    }
                    (counter, _) => {
                        assert!(matches!(counter, Err(ProbeError::Unreachable { .. })), "{counter:?}");
                    }
                }
            }
        }
        let all = activate_all(counters.iter().chain(&closures));
        all.into_iter().for_each(|on| on.unwrap());
        Self { module, functions, offsets, counters, _closures: closures, log }
    }

    /// The counts, without those before; and what was logged.
    fn observed(&self, before: &mut [u64]) -> (Vec<u64>, Vec<usize>) {
        let counts = self.counters.iter().zip(before).map(|(counter, before)| {
            let count = counter.count();
            count - std::mem::replace(before, count)
        });
        (counts.collect(), std::mem::take(&mut *self.log.lock().unwrap()))
    }

    fn counts_of(&self, log: &[usize]) -> Vec<u64> {
        let mut counts = vec![0; self.counters.len()];
        log.iter().for_each(|number| counts[*number] += 1);
        counts
    }
}

fn interrupt_everywhere(counter_stubs: u32) {
    let probed = Probed::new(counter_stubs);
    let mut before = vec![0; probed.counters.len()];
    let (result, left) = run(&probed.module, usize::MAX);
    assert_eq!(result.unwrap(), RESULT);
    let steps = usize::MAX - left;
    let (counts, reference) = probed.observed(&mut before);
    assert_eq!(counts, probed.counts_of(&reference));
    assert!(reference.len() > 40 && steps > 20 * reference.len(), "{} {steps}", reference.len());
    let (mut last, mut in_both) = (0, [0; 2]);
    let stride = stride(11);
    for step in (0..steps).step_by(stride) {
        let (result, _) = run(&probed.module, step);
        let error = result.expect_err("it is interrupted");
        assert_eq!(error.trap(), Some(Trap::Interrupt), "step {step}: {error}");
        let (counts, log) = probed.observed(&mut before);
        assert_eq!(log, reference[..log.len()], "step {step}");
        assert!(log.len() >= last, "step {step}: at least what had fired before");
        last = log.len();
        // The counter of the next instruction comes before its closure.
        let next = reference.get(..last + 1).unwrap_or(&reference);
        let is_right = [probed.counts_of(&log), probed.counts_of(next)].contains(&counts);
        assert!(is_right, "step {step}: {counts:?} after {log:?}");

        let backtrace = error.backtrace().unwrap_or_else(|| panic!("step {step}: a backtrace"));
        let frames: Vec<_> = backtrace.frames().iter().map(|frame| frame.func_name().unwrap()).collect();
        assert!(frames == ["main"] || frames == ["leaf", "main"], "step {step}: {frames:?}");
        in_both[frames.len() - 1] += 1;
        let at = backtrace.frames()[0].module_offset().unwrap();
        // What the frame has begun last: a call, if its callee has returned.
        let function = backtrace.frames()[0].func_index();
        let begun = log.iter().rev().find(|number| probed.functions[**number] == function);
        let mut around = begun.into_iter().chain(reference.get(last)).map(|number| probed.offsets[*number]);
        assert!(around.any(|offset| offset == at), "step {step}: at {at:#x} after {log:?}");
    }
    assert!(in_both.iter().all(|count| *count > 500 / stride), "{in_both:?}");
    // Nothing of it has stayed.
    assert_eq!(run(&probed.module, usize::MAX).0.unwrap(), RESULT);
    assert_eq!(probed.observed(&mut before), (counts, reference));
}

#[test]
fn stubs_are_interrupted_anywhere() {
    let _turn = turn();
    interrupt_everywhere(u32::MAX);
}

#[test]
fn versions_that_count_are_interrupted_anywhere() {
    let _turn = turn();
    interrupt_everywhere(0);
}

/// Interrupted at any instruction, the program has counted its instructions up to there.
#[test]
fn runs_that_are_counted_together_are_interrupted_anywhere() {
    let _turn = turn();
    let engine = Engine::new(Config::new().counter_stubs(0)).unwrap();
    let module = Module::new(&engine, JOINED).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let specs = body.instructions().map(|instruction| {
        let offset = (instruction.offset() - body.range().start) as u32;
        ProbeSpec {
            location: Location { function: 0, place: Place::Instruction { offset } },
            kind: Kind::Count,
        }
    });
    let specs: Vec<ProbeSpec> = specs.collect();
    let counters: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    activate_all(&counters).into_iter().for_each(|on| on.unwrap());
    let mut before = vec![0; counters.len()];
    let mut executed = || {
        let counts = counters.iter().zip(&mut before).map(|(counter, before)| {
            let count = counter.count();
            count - std::mem::replace(before, count)
        });
        let counts: Vec<u64> = counts.collect();
        // All are executed once, in this order, since the condition holds.
        let executed = counts.iter().take_while(|count| **count == 1).count();
        assert!(counts[executed..].iter().all(|count| *count == 0), "{counts:?}");
        executed
    };
    let (result, left) = run(&module, usize::MAX);
    assert_eq!(result.unwrap(), 9);
    assert_eq!(executed(), counters.len());
    let (steps, mut last) = (usize::MAX - left, 0);
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..steps {
        let (result, _) = run(&module, step);
        assert_eq!(result.unwrap_err().trap(), Some(Trap::Interrupt), "step {step}");
        let executed = executed();
        assert!(executed >= last, "step {step}: at least what was executed before");
        last = executed;
        seen.insert(executed);
    }
    assert!(seen.len() > 5, "{seen:?} of {}", counters.len());
}
