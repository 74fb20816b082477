//! Rules after instructions, and in and after blocks.

use super::engine::check_program;

fn body(body: &str) -> String {
    format!(
        "(module (memory 1) (type $two (func (result i32 i64)))
            (func $pair (result i32 i64) (i32.const 7) (i64.const 8))
            (table funcref (elem $pair))
            (func $count (param $n i32) (result i32) (local $i i32) {body}
                (local.get $i))
            (func (export \"run\") (drop (call $count (i32.const 3)))))"
    )
}

#[test]
fn results_are_those_of_the_instruction() {
    let program = body(
        "(i32.store (i32.const 16) (i32.const 5))
        (local.set $i (i32.add (i32.load (i32.const 16)) (i32.const 1)))
        (call $pair) drop drop (call_indirect (type $two) (i32.const 0)) drop drop",
    );
    check_program("report var n: i32; wasm:opcode:i32.load:after { n = n * 10 + res0; }", &program, &["n 5"]);
    check_program("report var n: i32; wasm:opcode:i32.add:after { n = n * 10 + res0; }", &program, &["n 6"]);
    let script = "report var n: i64; report var m: i32;
        wasm:opcode:call|call_indirect(res0: i64, res1: i32):after { n = n * (10 as i64) + res0; m = m * 10 + res1; }";
    check_program(script, &program, &["n 88", "m 77"]);
    // There is an operand below the results, but no third result.
    let script = "report var n: i32; wasm:opcode:call*(res2: i32):after { n++; }";
    let program = body("(i32.const 1) (call $pair) drop drop drop");
    check_program(script, &program, &["n 0"]);
}

#[test]
fn an_instruction_before_a_loop_is_not_repeated_by_it() {
    let looping = "(local.set $i (i32.const 0))
        (loop $next (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $i) (local.get $n))))";
    // Set before the loop once, and three times in it.
    let script = "wasm:opcode:local.set:after { report var n: u32; n++; }";
    let event = "wasm:opcode:local.set:after 1";
    check_program(script, &body(looping), &[&format!("n {event} 1"), &format!("n {event} 3")]);
    // The same loop as the body of another one, and recursion between the instruction and the loop.
    let program = "(module (func $again (param $n i32) (result i32) (local $i i32)
            (if (i32.eqz (local.get $n)) (then (return (i32.const 0))))
            (call $again (i32.sub (local.get $n) (i32.const 1)))
            (loop $next (param i32) (result i32) (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $next (i32.lt_u (local.get $i) (local.get $n)))))
        (func (export \"run\") (drop (call $again (i32.const 4)))))";
    let script = "wasm:opcode:call:after / fid == 0 / { report var n: u32; report var sum: i32; n++; sum = sum + res0; }";
    let script = &script.replace("call:after", "call(res0: i32):after");
    // Not at the iterations of the loop, of which there are 1 + 2 + 3 + 4.
    check_program(script, program, &["n wasm:opcode:call:after 0 4", "sum wasm:opcode:call:after 0 0"]);
    let script = "report var n: u32; wasm:opcode:loop:before { n++; }";
    check_program(script, program, &["n 10"]);
}

#[test]
fn an_exception_before_a_loop_leaves_no_trace() {
    // The call before the loop throws in the first two of four calls.
    let program = "(module (tag $e) (global $calls (mut i32) (i32.const 0))
        (func $may_throw (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
            (if (i32.le_u (global.get $calls) (i32.const 2)) (then (throw $e))))
        (func $looping (local $i i32) (call $may_throw)
            (loop $next (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $next (i32.lt_u (local.get $i) (i32.const 5)))))
        (func $catch (block (try_table (catch_all 0) (call $looping))))
        (func (export \"run\") (call $catch) (call $catch) (call $catch) (call $catch)))";
    let script = "report var n: u32; wasm:opcode:call:after / fid == 1 / { n++; }";
    check_program(script, program, &["n 2"]);
}

#[test]
fn branches_continue_somewhere() {
    let program = body(
        "(block $out
            (loop $next
                (br_if $out (i32.ge_u (local.get $i) (local.get $n)))
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (block $a (block $b (br_table $a $b (local.get $i))))
                (br $next)))
        (if (local.get $i) (then nop) (else nop nop))
        (if (local.get $i) (then (return (local.get $i))))",
    );
    let count = |event: &str, times: u32| {
        let script = format!("report var n: u32; wasm:opcode:{event} / fid == 1 / {{ n++; }}");
        check_program(&script, &program, &[&format!("n {times}")]);
        // Sites are the places of the instruction, wherever the rule's function is called.
        let script = format!("wasm:opcode:{event} / fid == 1 / {{ report var n: u32; n++; }}");
        let script = script.replace("n++;", "n++; shared var all: u32; all++;");
        if event.starts_with("br") {
            let name = format!("wasm:opcode:{event}");
            check_program(&script, &program, &[&format!("n {name} 1 {times}")]);
        }
    };
    count("br_if:before", 4);
    count("br_if:semantic_after", 4);
    count("br_if:after", 3);
    count("br:semantic_after", 3);
    count("br_table:semantic_after", 3);
    count("if:semantic_after", 1);
    count("if:entry", 2);
    count("else:after", 0);
    count("return:semantic_after", 1);
    count("loop:entry", 4);
    // The outer block is left by a branch; the loop is not left at its end.
    count("loop:exit", 0);
    count("block:exit", 7);
    count("block:entry", 7);
}

/// An `else` that was executed never continues with the next instruction, even if that is a loop
/// that control reaches later in the same call.
#[test]
fn nothing_comes_after_an_else() {
    let program = r#"(module (func (export "run") (local $i i32)
        (loop $again
            (if (i32.eqz (local.get $i)) (then nop) (else (loop nop)))
            (br_if $again (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3))))))"#;
    check_program("report var n: u32; wasm:opcode:else:after { n++; }", program, &["n 0"]);
    check_program("report var n: u32; wasm:opcode:else:before { n++; }", program, &["n 1"]);
}
