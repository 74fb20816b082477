//! Type bounds: a place with other types does not match, and nothing is done for it.

use super::compile;
use super::engine::{check_program, observe, rows_of};

const COUNTER: &str = "(module (global $n (mut i32) (i32.const 0))
    (func (export \"hit\") (result i32)
        (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
    (func (export \"hits\") (result i32) (global.get $n)))";

/// Operands, results and parameters of several types; each place is reached once.
const PROGRAM: &str = r#"(module
    (func $one (param i32) (result i32) (local.get 0))
    (func $two (param i64 f32) (result f64) (f64.const 2))
    (func (export "run") (local $i i32)
        (drop (call $one (i32.const 1)))
        (drop (call $two (i64.const 1) (f32.const 0)))
        (drop (ref.null func))
        (block $out (loop $again
            (drop (i64.const 5))
            (drop (br_on_null $out (ref.null func)))))
        (drop (i64.const 6))))"#;

#[test]
fn nothing_is_done_for_places_with_other_types() {
    let check = |rule: &str, inits: u32| {
        let script = format!(
            "use counter; report var inits: i32; wasm:end {{ inits = counter.hits(); }}
            {rule} / @static counter.hit() > 0 / {{ @init counter.hit(); }}"
        );
        let report = observe(&script, &[("counter", COUNTER)], PROGRAM);
        // Once in the predicate, once for the place.
        assert_eq!(rows_of(&report), [format!("inits     {}", 2 * inits)], "{rule}");
    };
    check("wasm:opcode:call(arg0: f64):before", 0);
    check("wasm:opcode:call(arg0: f32):before", 1);
    check("wasm:opcode:call(arg0: f32, arg1: i32):before", 0);
    check("wasm:opcode:call(arg0: f32, arg1: i64):before", 1);
    check("wasm:opcode:call(arg5: i32):before", 0);
    check("wasm:opcode:call(res0: i64):after", 0);
    check("wasm:opcode:call(res0: f64):after", 1);
    check("wasm:func:entry(local0: i64)", 1);
    check("wasm:func:entry(local0: i32)", 2);
    check("wasm:func:entry(local1: i32)", 0);
    check("wasm:block:start(local1: f32)", 1);
}

#[test]
fn reports_have_the_places_that_match() {
    let event = "wasm:opcode:drop:before";
    check_program(
        "wasm:opcode:drop(arg0: i64):before { report unshared var k: u32; k++; }",
        PROGRAM,
        &[&format!("k {event} 2 1"), &format!("k {event} 2 1")],
    );
    check_program(
        "wasm:opcode:call(res0: i32):after { report unshared var k: u32; k++; }",
        PROGRAM,
        &["k wasm:opcode:call:after 2 1"],
    );
}

/// The interface has no types: rules with the same values in other types have names of their own.
#[test]
fn equal_values_in_other_types() {
    let bounds = ["i32", "i64", "i32", "i64"];
    let rules = |predicate: &str| -> String {
        let rule = |(number, ty): (u32, &&str)| {
            let add = 10_u32.pow(number);
            format!(
                "wasm:opcode:drop|call(arg0: {ty}):before {predicate} {{ n = n + {add}; sum = sum + (arg0 as i64); }}"
            )
        };
        (0..).zip(&bounds).map(rule).collect()
    };
    for predicate in ["", "/ fid == 2 /", "/ fid == 2 && arg0 != 0 /"] {
        let script = format!("report var n: u32; report var sum: i64; {}", rules(predicate));
        // One `call` and one `drop` with an i32, two `drop` with an i64.
        check_program(&script, PROGRAM, &["n 2222", "sum 26"]);
        let engine = wasm_jit::Engine::default();
        let module = wasm_jit::Module::from_binary(&engine, &compile(&script)).unwrap();
        let names: Vec<_> = module.exports().map(|export| export.name().to_owned()).collect();
        let rules: Vec<_> = names.iter().filter(|name| name.starts_with("wasm:opcode")).collect();
        // Two for each instruction, of which one may be shared.
        assert_eq!(rules.len(), 4, "{rules:?}");
        assert!(rules.iter().all(|name| name.trim() == *name && !name.contains("  ")), "{rules:?}");
    }
}

/// Instructions without an operand are left out.
#[test]
fn bounds_choose_among_instructions() {
    check_program("report var n: u32; wasm:opcode:*(arg0: f32):before { n++; }", PROGRAM, &["n 1"]);
    compile("wasm:opcode:nop|drop(arg0: i32):before { }");
}
