//! Variables of frames: one for each call, however the call ends.

use super::engine::check_program;

/// The depth of each call to a function, kept in its frame, and how the calls end.
const DEPTHS: &str = "var depth: u32; report var wrong: u32; report var ended: u32; report var calls: u32;
    frame var mine: u32;
    wasm:func:entry { if (mine != 0) { wrong++; } mine = fid * 1000 + (local0_is()); calls++; }
    fn local0_is() -> u32 { return 7; }
    wasm:opcode:nop:before { if (mine != fid * 1000 + 7) { wrong++; } }
    wasm:func:exit { if (mine != fid * 1000 + 7) { wrong++; } ended++; }";

#[test]
fn recursion_has_a_variable_for_each_call() {
    // Each call keeps its own argument in the frame, and compares it after the calls that it makes.
    let script = "frame var n: i32; report var sum: i32; report var exits: u32;
        wasm:func:entry(local0: i32) { n = local0; }
        wasm:opcode:nop(local0: i32):before { sum = sum + n - local0; exits++; }
        wasm:func:exit { sum = sum + n; }";
    let program = "(module (func $fib (param i32) (result i32)
            (if (result i32) (i32.lt_u (local.get 0) (i32.const 2)) (then (local.get 0)) (else
                (call $fib (i32.sub (local.get 0) (i32.const 1)))
                (call $fib (i32.sub (local.get 0) (i32.const 2))) (nop) i32.add)))
        (func (export \"run\") (drop (call $fib (i32.const 10)))))";
    // The sum of all arguments: fib(10) with s(n) = n + s(n - 1) + s(n - 2), s(0) = 0, s(1) = 1.
    let mut sums = [0, 1].to_vec();
    for n in 2..=10 {
        sums.push(n + sums[n as usize - 1] + sums[n as usize - 2]);
    }
    // `run` has no local 0: its frame variable is zero.
    check_program(script, program, &[&format!("sum {}", sums[10]), "exits 88"]);
}

#[test]
fn calls_that_trap_or_throw_leave_nothing() {
    // An exception leaves two frames; then others take their places, with other variables.
    let program = "(module (tag $e)
        (func $deep (param i32) (nop) (if (local.get 0) (then (throw $e))))
        (func $middle (param i32) (nop) (call $deep (local.get 0)) (nop))
        (func $catch (param i32) (nop) (block (try_table (catch_all 0) (call $middle (local.get 0)))) (nop))
        (func $tail (param i32) (nop) (return_call $deep (local.get 0)))
        (func (export \"run\") (call $catch (i32.const 1)) (call $middle (i32.const 0))
            (call $deep (i32.const 0)) (call $catch (i32.const 1)) (call $tail (i32.const 0)) (nop)
            (call $catch (i32.const 0)) (call $middle (i32.const 1))))";
    // Calls: 2 times 3 with an exception, middle and deep, deep, tail and deep, catch, middle and
    // deep, middle and deep with the last exception, run. Ended: those without an exception, the
    // two that catch one, and neither the tail call nor run.
    check_program(DEPTHS, program, &["wrong 0", "ended 9", "calls 17"]);
}

#[test]
fn initial_values_are_those_of_each_call() {
    let script = "report var sum: u64; report var text: str;
        wasm:opcode:nop:before { frame var steps: u64 = 100; frame var name: str = \"first\"; steps++;
            sum = sum + steps; text = name; name = \"changed\"; }";
    let program = "(module (func $three (nop) (nop) (nop))
        (func (export \"run\") (call $three) (call $three)))";
    check_program(script, program, &[&format!("sum {}", 2 * (101 + 102 + 103)), "text changed"]);
}
