//! Expressions, and changes of values.

use wasm_jit::Val;
use wasm_jit_debug::{Expression, Resume};

use super::Debugged;

const VALUES: &str = r#"(module
    (memory (export "memory") 1)
    (global $g (mut i64) (i64.const -2))
    (global $constant i32 (i32.const 9))
    (data (i32.const 100) "\ff\80\01\00\00\00\00\c0")
    (data (i32.const 128) "\00\00\80\3f")
    (func $inner (param $a i32) (param $b f64) (param i64) (result f64)
        (local $f f32) (local $r externref)
        (f64.add (f64.convert_i32_s (local.get $a)) (local.get $b)) (nop))
    (func $main (export "main") (param $x i32) (result f64)
        (f64.add (call $inner (i32.mul (local.get $x) (i32.const 3)) (f64.const 0.5) (i64.const -7))
            (f64.convert_i32_s (local.get $x)))))"#;

/// Stopped at `nop`, with a result on the stack.
fn stopped() -> Debugged {
    let (debugged, mut stop) = Debugged::begin(VALUES, "inner", &[Val::I32(2)]);
    while debugged.text(&stop) != "nop" {
        stop = debugged.go(Resume::StepInstruction);
    }
    debugged
}

#[test]
fn expressions_have_the_values_of_c() {
    let debugged = stopped();
    #[track_caller]
    fn check(debugged: &Debugged, expression: &str, expected: &str) {
        assert_eq!(debugged.value(0, expression), expected, "{expression}");
    }
    let check = |expression: &str, expected: &str| check(&debugged, expression, expected);
    check("$a", "6");
    check("a", "6");
    check("$local1", "0.5");
    check("$local2", "-7");
    check("$f", "0.0");
    check("$r", "null");
    check("$stack0", "6.5");
    check("$g", "-2");
    check("$global1 + 1", "10");
    check("1 + 2 * 3 - 4 / 2", "5");
    check("(1 + 2) * 3", "9");
    check("-7 / 2", "-3");
    check("-7 % 4", "-3");
    check("7.0 / 2", "3.5");
    check("1 << 4 | 3 ^ 1 & 7", "18");
    check("~0", "-1");
    check("!5 + !0", "1");
    check("1 < 2 && 2 <= 2 && !(3 > 4) && 3 != 4", "1");
    check("0 || 0", "0");
    check("0 && 1 / 0", "0");
    check("'a' + 1", "98");
    check("0xff", "255");
    check("1e3", "1000.0");
    check("1e-3", "0.001");
    check("5000000000", "5000000000");
    check("18446744073709551615", "18446744073709551615");
    check("u8[100]", "255");
    check("s8[100]", "-1");
    check("u16[100]", "33023");
    check("s16[100]", "-32513");
    check("i32[100]", "98559");
    check("u32[104]", "3221225472");
    check("i64[100]", "-4611686018427289345");
    check("f32[$a + 122]", "1.0");
    check("f64[100] < 0", "1");
    check("$depth", "1");
    check("$function", "0");
    check("i32[65532]", "0");
    check("1 ? 2 : 3", "2");
    check("$a == 5 ? 1 : $a == 6 ? 2 : 3", "2");
    check("0 ? 1 / 0 : i32[0:1 ? 100 : 128]", "98559");
    check("(1 ? 0 : 1) || 0 ? 7 : 8 + 1", "9");
    check("sizeof(i32) + sizeof(f64) + sizeof(u8) + sizeof(v128)", "29");
    check("sizeof $g + sizeof($f) + sizeof(i64[100])", "20");
    check("sizeof(sizeof(i32)) + 10 * sizeof($pc) + 100 * sizeof($depth) + 1000 * sizeof(a)", "4888");
    // Operators after an operand in parentheses belong to it.
    check("sizeof(i32) * 2 + sizeof(a) * 100", "408");
    check("sizeof(a)[0]", "<only variables of the source have types>");
    check("sizeof (a)->x", "<only variables of the source have types>");
    check("sizeof(i32 *) + sizeof(u8 **)", "8");
    check("sizeof (i32 *) - 1 + (a)", "9");
    check("(a) - 1", "5");
    check("(i32 *) 4", "<there is no type of the source `i32`>");
    check("(unsigned char) 300", "<there is no type of the source `unsigned char`>");
    check("none::a", "<there is no variable, local or global `none::a`>");
    check("$local0 == 6 ? ::a : 1", "<there is no variable, local or global `::a`>");
    check("sizeof(none)", "<there is no variable, local or global `none`>");
    check("sizeof(struct none)", "<there is no type `struct none`>");
    check("sizeof(long long int *)", "<there is no type `long long int`>");
    // Expressions without a value.
    check("i32[65533]", "<4 at 65533 is out of the bounds of a memory of size 65536>");
    check("i32[-4]", "<4 at 4294967292 is out of the bounds of a memory of size 65536>");
    check(
        "i64[18446744073709551615]",
        "<8 at 18446744073709551615 is out of the bounds of a memory of size 65536>",
    );
    check("$local5", "<the function has no local 5>");
    check("$stack1", "<the stack has no operand 1, counted from its top>");
    check("$global2", "<there is no global `2`>");
    check("nothing", "<there is no variable, local or global `nothing`>");
    check("1 / 0", "<division by zero>");
    check("1 << 64", "<the result is out of range>");
    check("18446744073709551615 + 1", "<the integer has more than 64 bits>");
    check("1.5 & 1", "<floats have no bits here>");
    check("$r + 1", "<null is no number>");
    check("$a.x", "<only variables of the source have types>");
}

#[test]
fn pointers_have_the_size_of_addresses() {
    let (debugged, _) = Debugged::begin("(module (memory i64 1) (func (export \"main\") (nop)))", "0", &[]);
    assert_eq!(debugged.value(0, "sizeof(i32 *)"), "8");
}

#[test]
fn what_is_no_expression_is_refused() {
    #[track_caller]
    fn check(text: &str) {
        assert!(Expression::parse(text).is_err(), "{text}");
    }
    for text in [
        "",
        "1 +",
        "(1",
        "1)",
        "a[1",
        "i32[",
        "1 2",
        "'a",
        "'",
        "0x",
        "1.2.3",
        "a.",
        "a->",
        "a::",
        "::",
        "a:::b",
        "(a *)",
        "(int) )",
        "1 ? 2",
        "1 ? : 2",
        "1 : 2",
        "sizeof",
        "sizeof(",
        "sizeof()",
        "sizeof(1 2)",
        "@",
        "99999999999999999999999999999999999999999x",
    ] {
        check(text);
    }
    check(&"(".repeat(10_000));
    check(&"-".repeat(10_000));
    check(&"1+".repeat(10_000));
    check(&format!("a{}", "[1]".repeat(10_000)));
    check(&format!("a{}", ".b".repeat(10_000)));
    check(&format!("(int {}) 0", "*".repeat(60_000)));
    check(&format!("sizeof(int {})", "*".repeat(60_000)));
}

#[test]
fn void_has_no_entry_in_any_unit() {
    // The second one is cut off.
    for units in ["", "\\40\\00"] {
        let custom = format!("(@custom \".debug_info\" \"{units}\") (memory (export \"memory\") 1)");
        let text = VALUES.replacen("(memory (export \"memory\") 1)", &custom, 1);
        let (debugged, _) = Debugged::begin(&text, "inner", &[Val::I32(2)]);
        assert_eq!(debugged.value(0, "(void *) 16"), "0x10");
        assert_eq!(debugged.value(0, "(void) 1"), "<only scalars and pointers can be cast>");
        assert_eq!(debugged.value(0, "*(void *) 16"), "<unknown type>");
        assert_eq!(debugged.value(0, "(void *) 16 + 1"), "0x11");
        assert_eq!(debugged.value(0, "*(int *) 128"), "1065353216");
        assert_eq!(debugged.value(0, "sizeof(void)"), "<there is no type `void`>");
    }
}

#[test]
fn changes_take_effect() {
    let mut debugged = stopped();
    debugged.assign(0, "$stack0", "100").unwrap();
    debugged.assign(0, "$g", "5").unwrap();
    debugged.assign(0, "u16[200]", "0xffff").unwrap();
    debugged.assign(0, "f64[208]", "1.5").unwrap();
    debugged.assign(0, "$local0", "-1").unwrap();
    debugged.assign(1, "$x", "1000").unwrap();
    assert_eq!(debugged.value(0, "$stack0"), "100.0");
    assert_eq!(debugged.value(0, "$g"), "5");
    assert_eq!(debugged.value(0, "u32[198]"), "4294901760");
    assert_eq!(debugged.value(0, "f64[208]"), "1.5");
    assert_eq!(debugged.value(0, "$a"), "-1");
    assert_eq!(debugged.value(1, "$x"), "1000");
    for (to, value) in [
        ("$constant", "1"),
        ("1 + 1", "2"),
        ("$a", "1.5"),
        ("$a", "4294967296"),
        ("u8[0]", "256"),
        ("$r", "1"),
    ] {
        assert!(debugged.assign(0, to, value).is_err(), "{to} = {value}");
    }
    assert_eq!(debugged.finish().text, "1100.0");
}

#[test]
fn frames_are_those_of_the_stack() {
    let mut debugged = stopped();
    let locations = debugged.locations();
    let functions: Vec<u32> = locations.iter().map(|location| location.unwrap().function).collect();
    assert_eq!(functions, [0, 1]);
    assert_eq!(debugged.debugger.code().text(locations[1].unwrap()), "call $inner");
    assert_eq!(debugged.value(2, "1"), "<there is no frame 2>");
    debugged.finish();
    assert!(debugged.debugger.inspect(|_| ()).is_err(), "nothing is stopped");
    assert!(debugged.debugger.resume(Resume::Continue).is_err());
}

#[test]
fn steps_go_on_after_a_constant_was_changed() {
    let text = r#"(module (func $main (export "main") (param $x i32) (result i32)
        (i32.add (i32.const 1) (local.get $x)) (nop) (i32.mul (i32.const 2))))"#;
    let (mut debugged, mut stop) = Debugged::begin(text, "main", &[Val::I32(5)]);
    while debugged.text(&stop) != "i32.add" {
        stop = debugged.go(Resume::StepInstruction);
    }
    debugged.assign(0, "$stack1", "41").unwrap();
    debugged.assign(0, "$x", "7").unwrap();
    assert_eq!((debugged.value(0, "$stack1"), debugged.value(0, "$stack0")), ("41".into(), "5".into()));
    for expected in ["nop", "i32.const 2", "i32.mul", "end"] {
        stop = debugged.go(Resume::StepInstruction);
        assert_eq!(debugged.text(&stop), expected);
        assert_eq!(debugged.value(0, "$x"), "7");
    }
    assert_eq!(debugged.value(0, "$stack0"), "92");
    assert_eq!(debugged.finish().text, "92");
}
