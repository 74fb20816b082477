//! Strings that the engine provides: names of functions.

use super::engine::check_program;

const PROGRAM: &str = "(module (import \"host\" \"unused\" (func $unused))
    (func $main (export \"run\") (call $a) (call $b) (call $a))
    (func $a (call $b))
    (func $b (nop)))";

fn program() -> String {
    // Nothing is linked: the import cannot be provided here.
    PROGRAM.replace("(import \"host\" \"unused\" (func $unused))", "(func $unused)")
}

#[test]
fn calls_by_names() {
    let script = "report var calls: map<(str, str), u32>;
        wasm:opcode:call:before { calls[(fname, target_fn_name)]++; }";
    let expected = ["calls (main, a) 2", "calls (main, b) 1", "calls (a, b) 2"];
    check_program(script, &program(), &expected);
}

#[test]
fn equal_strings_are_one() {
    // Of the script, of the engine, and of the instruction.
    let script = "report var seen: map<str, u32>; report var equal: u32; report var long: u32;
        wasm:func:entry { seen[fname]++; seen[\"b\"]++; if (fname == \"b\") { equal++; } }
        wasm:opcode:call:before / target_fn_name == \"a\" && fname != \"x\" / { seen[\"a\"]++; long = fname.len(); }
        wasm:opcode:nop:before / fname.starts_with(\"b\") / { var name: str = fname; seen[name]++;
            if (name.contains(\"b\") && name.ends_with(\"b\") && !name.contains(\"bb\")) { equal++; } }";
    let expected = ["seen b 12", "seen main 1", "seen a 4", "equal 6", "long 4"];
    check_program(script, &program(), &expected);
}

#[test]
fn strings_of_initial_values_are_known() {
    let script =
        "var name: str = \"a\"; report var equal: u32; wasm:func:entry { if (fname == name) { equal++; } }";
    check_program(script, &program(), &["equal 2"]);
}

#[test]
fn many_names_of_one_length() {
    let functions: String = (100..400).map(|number| format!("(func $f{number})")).collect();
    let calls: String = (100..400).map(|number| format!("(call $f{number})")).collect();
    let program = format!("(module {functions} (func $run (export \"run\") {calls} (call $f222)))");
    let mut expected: Vec<String> =
        (100..400).map(|number| format!("calls f{number} {}", if number == 222 { 2 } else { 1 })).collect();
    expected.push("calls run 1".to_owned());
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    check_program(
        "report var calls: map<str, u32>; wasm:func:entry { calls[fname]++; }",
        &program,
        &expected,
    );
}

#[test]
fn what_is_called() {
    let script = "report var kinds: map<(str, str), u32>; report var sum: i32;
        wasm:opcode:call:before { kinds[(target_fn_type, target_imp_module)]++; sum = sum + resolved_fid; }";
    check_program(script, &program(), &["kinds (local, ) 5", "sum 13"]);
}

#[test]
fn divisions_that_trap() {
    let script = "report var bad: u32; report var all: u32;
        wasm:opcode:*div*|*rem*:before { all++; if (trap) { bad++; } }";
    let program =
        "(module (func $divide (param i32 i32) (result i32) (i32.div_s (local.get 0) (local.get 1)))
        (func (export \"run\") (drop (call $divide (i32.const 7) (i32.const -1)))
            (drop (i64.rem_s (i64.const 0x8000000000000000) (i64.const -1)))
            (drop (i32.rem_u (i32.const 7) (i32.const 1)))
            (drop (call $divide (i32.const 0x80000000) (i32.const -1)))))";
    check_program(&script.replace("*div*|*rem*", "i??.div_?|i??.rem_?"), program, &["bad 1", "all 4"]);
}
