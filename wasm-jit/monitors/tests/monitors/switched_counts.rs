//! Counts after several switches while the program runs: each is that of the time in which its own
//! counter was on, and relations between counts hold except for what the program does during the
//! switches.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use wasm_jit::{Engine, Module};
use wasm_jit_monitors::{Output, Session};

use super::integers;
use super::switching::{Ends, Progress};

/// The number of iterations of each loop, each time that it is entered.
const ITERATIONS: u64 = 20_000;

/// Loops that are entered at the start of the function, after an instruction that always completes,
/// after one that may trap, after a call, from two places, and by an exception. NEVER is code that
/// is not executed, with many counters: the switches of the counters before and after it are far
/// apart.
const PROGRAM: &str = r#"(module
    (import "host" "go_on" (func $go_on (result i32)))
    (memory 1)
    (tag $e)
    (func $throws (throw $e))
    (func $work (param $n i32)
        (loop $first (br_if $first (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $n (i32.const 20000))
        (loop $after (br_if $after (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $n (i32.const 20000))
        (i32.store (i32.const 0) (local.get $n))
        (loop $stored NEVER (br_if $stored (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $n (i32.const 20000))
        (call $leaf)
        (loop $called NEVER (br_if $called (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $n (i32.const 20000))
        (block $past (br_if $past (i32.load (i32.const 0))) nop)
        (loop $joined (br_if $joined (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $n (i32.const 20000))
        (block $caught (try_table (catch $e $caught) (call $throws)))
        (loop $handler NEVER (br_if $handler (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func $leaf (drop (i32.add (i32.load (i32.const 0)) (i32.mul (i32.const 2) (i32.const 3)))))
    (func (export "run")
        (loop $again
            (call $work (i32.const 20000))
            (br_if $again (call $go_on)))))"#;

/// How often the monitors are switched on, and off.
const ROUNDS: u64 = 40;

/// A session whose monitors were switched on and off several times while a thread ran the program.
fn switched(monitors: &[&str]) -> Session {
    let never = "(loop (br_if 0 (i32.load (i32.const 0))))".repeat(100);
    let never = format!("(if (i32.eqz (local.get $n)) (then {never}))");
    let module = Module::new(&Engine::default(), PROGRAM.replace("NEVER", &never)).unwrap();
    let session = Session::new(&module, Output::none());
    let progress = Arc::new(Progress::default());
    thread::scope(|scope| {
        let program = scope.spawn(|| progress.clone().run::<()>(&module));
        let all = [progress.clone()];
        let ends = Ends(&all);
        progress.wait();
        // Anywhere in the program.
        let pause = |round| {
            progress.wait();
            thread::sleep(Duration::from_micros(37 * round));
        };
        for round in 0..ROUNDS {
            pause(round);
            monitors.iter().for_each(|monitor| session.enable(monitor.parse().unwrap()).unwrap());
            (0..4).for_each(|_| pause(round));
            monitors.iter().for_each(|monitor| session.disable(monitor).unwrap());
        }
        drop(ends);
        program.join().unwrap();
    });
    session
}

#[test]
fn entries_of_loops_agree_with_their_iterations() {
    let report = switched(&["loops"]).report("loops").unwrap();
    let (entered, iterations) =
        (integers(&report, "by_loop", "entered"), integers(&report, "by_loop", "iterations"));
    assert_eq!(entered.len(), 7);
    // The outer loop has the fewest iterations, and was entered before.
    for (entered, iterations) in entered.iter().zip(&iterations).take(6) {
        // Each switch may be in the middle of a loop.
        let counts = format!("entered {entered}, {iterations} iterations");
        assert!(entered.abs_diff(iterations / ITERATIONS) <= 2 * ROUNDS + 1, "{counts}");
        assert!(*entered >= 4 * ROUNDS, "{counts}");
    }
    assert_eq!(entered[6], 0);
    assert!(iterations[6] >= 4 * ROUNDS, "{iterations:?}");
}

#[test]
fn instructions_of_a_straight_run_have_one_count() {
    let session = switched(&["hotness", "blocks"]);
    let report = session.report("hotness").unwrap();
    let total = report.get("instructions").unwrap();
    for (table, column) in [("paths", "executed"), ("by_instruction", "times")] {
        assert_eq!(integers(&report, table, column).iter().sum::<u64>(), total, "{table}");
    }
    // A path consists of complete blocks.
    let blocks = session.report("blocks").unwrap().get("blocks_executed").unwrap();
    let paths = integers(&report, "paths", "times").len() as u64;
    assert!(paths <= blocks, "{paths} paths, {blocks} blocks");
}
