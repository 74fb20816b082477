//! Functions of libraries in scripts.

use wasm_jit_whamm::lang::{self, ReportedValue, Value};

use super::engine::observe;

const COUNTER: &str = "(module (global $n (mut i32) (i32.const 0))
    (func (export \"next\") (result i32) (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
    (func (export \"add\") (param i32) (global.set $n (i32.add (global.get $n) (local.get 0))))
    (func (export \"mean\") (param f64 i64) (result f64)
        (f64.div (f64.add (local.get 0) (f64.convert_i64_s (local.get 1))) (f64.const 2)))
    (func (export \"pair\") (result i32 i32) (i32.const 1) (i32.const 2)))";

const PROGRAM: &str = "(module (func $three (nop) (nop) (nop))
    (func (export \"run\") (call $three) (call $three)))";

#[track_caller]
fn check(script: &str, expected: &[(&str, Value)]) {
    let report = observe(script, &[("counter", COUNTER)], PROGRAM);
    let variables = report.variables.iter().map(|variable| match &variable.value {
        ReportedValue::Value(value) => (variable.name.as_str(), value.clone()),
        ReportedValue::Map(_) => panic!("a map"),
    });
    assert_eq!(variables.collect::<Vec<_>>(), expected, "{script}");
}

#[test]
fn calls_are_made_where_they_are() {
    check(
        "use counter; report var n: i32; report var m: f64; wasm:opcode:nop:before { n = counter.next(); }
        wasm:end { m = counter.mean(3.0, 4); }",
        &[("n", Value::Int(6)), ("m", Value::Float(3.5))],
    );
    // A function of the script calls one of a library; signs do not matter.
    check(
        "use counter; report var n: i32; fn twice(by: u32) { counter.add(by); counter.add(by); }
        wasm:opcode:nop:before / counter.next() > 3 / { twice(10); n = counter.next(); }",
        &[("n", Value::Int(3 + 2 * 3 + 60))],
    );
}

#[test]
fn static_calls_are_made_once_for_each_match() {
    // Three instructions, each executed twice: 1 + 2 + 3, and the next one is the fourth.
    check(
        "use counter; report var sum: i32; report var next: i32;
        wasm:opcode:nop:before { sum = sum + @static counter.next(); } wasm:end { next = counter.next(); }",
        &[("sum", Value::Int(12)), ("next", Value::Int(4))],
    );
    // In a predicate: for the second of the three instructions.
    check(
        "use counter; report var n: i32; report var sum: i32;
        wasm:opcode:nop:before / @static counter.next() == 2 / { n++; sum = sum + @static counter.next(); }",
        &[("n", Value::Int(2)), ("sum", Value::Int(6))],
    );
}

#[test]
fn initial_values_of_sites_are_computed_once_for_each_match() {
    // 11, 12 and 13, each twice.
    check(
        "use counter; report var sum: i32; report var next: i32;
        wasm:opcode:nop:before { unshared var number: i32 = counter.next() + 10; sum = sum + number; }
        wasm:end { next = counter.next(); }",
        &[("sum", Value::Int(72)), ("next", Value::Int(4))],
    );
}

#[test]
fn calls_of_the_beginning() {
    check(
        "use counter; @init counter.add(100); report var n: i32;
        wasm:opcode:nop:before { @init counter.add(pc); } wasm:end { n = counter.next(); }",
        // The offsets of the three instructions are 1, 2 and 3.
        &[("n", Value::Int(100 + 1 + 2 + 3 + 1))],
    );
}

#[test]
fn mistakes_are_found() {
    #[track_caller]
    fn refused(script: &str, message: &str) {
        let library = wat::parse_str(COUNTER).unwrap();
        let error = lang::compile("test.mm", script.as_bytes(), &[("counter", &library)]).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    refused("use counter; wasm:begin { counter.last(); }", "it has: add, mean, next, pair");
    refused("use counter; wasm:begin { counter.add(); }", "1 parameter, and is called with 0");
    refused("use counter; wasm:begin { counter.add(1.5); }", "expected a `i32`, this is a `f64`");
    refused("use counter; wasm:begin { counter.pair(); }", "one or no number");
    refused("use counter; use counter;", "used twice");
    refused("wasm:begin { counter.next(); }", "no variable or library `counter`");
    refused("wasm:func:entry { counter.next(); }", "a library is named at the beginning: `use counter;`");
    refused("var x: i32 = counter.next();", "no variable or library `counter`");
    refused("use counter; wasm:opcode:br_if:before { var x: i32 = @init counter.next(); }", "is a statement");
    refused("use counter; wasm:opcode:br_if:before { @later counter.next(); }", "no annotation");
    refused("use counter; wasm:opcode:br_if:before { @init counter.add(arg0); }", "depends on the program");
    let depends = "the initial value depends on the program's execution";
    refused(
        "use counter; wasm:func:entry(local0: i32) { unshared var x: f64 = counter.mean(1.0, local0 as i64); }",
        depends,
    );
    refused("use counter; wasm:opcode:nop:before { shared var x: i32 = counter.next(); }", depends);
    refused("fn f() -> i32 { return 1; } var x: i32 = @static f();", "only calls of libraries");
    let error = lang::compile("test.mm", b"use counter;", &[("counter", b"\0asm!")]).unwrap_err();
    assert!(error.to_string().contains("not a module"), "{error}");
    let error = lang::compile("test.mm", b"use none; wasm:begin { none.f(); }", &[]).unwrap_err();
    assert_eq!(error.problems().len(), 1, "{error}");
    assert_eq!(lang::libraries("test.mm", b"use b; use a; var x: i32;").unwrap(), ["b", "a"]);
}
