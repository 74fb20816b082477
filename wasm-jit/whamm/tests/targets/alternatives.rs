//! Rules that call functions of the program in place of instructions and blocks, and rules that
//! replace several results, or references: the rewritten program computes the same as one that was
//! written by hand.

use wasm_jit::{Engine, Module};
use wasm_jit_whamm::lang::{Script, compile};
use wasm_jit_whamm::rewrite::{RewriteError, instrument};

use crate::replaced::{ARGUMENTS, check_with, here, replaced};

const FUNCTIONS: &str = "(type $binary (func (param i32 i32) (result i32)))
    (import \"wasi_snapshot_preview1\" \"fd_write\" (func $imported (param i32 i32 i32 i32) (result i32)))
    (global $log (mut i32) (i32.const 0))
    (func $slow (type $binary) (i32.add (local.get 0) (i32.const 5)))
    (func $fast (type $binary) (i32.sub (i32.mul (local.get 0) (i32.const 3)) (local.get 1)))
    (func $other (export \"exported\") (type $binary) (i32.xor (local.get 0) (local.get 1)))
    (func $note (param i32) (global.set $log (i32.add (global.get $log) (local.get 0))))
    (func $twice (param i32) (call $note (local.get 0)) (call $note (local.get 0)))
    (func $pair (param i32) (result i32 i64) (local.get 0) (i64.const 7))
    (func $swapped (param i32) (result i32 i64) (i32.const 9) (i64.extend_i32_s (local.get 0)))
    (func $divide (type $binary) (if (result i32) (local.get 1)
        (then (i32.div_u (local.get 0) (local.get 1))) (else (i32.const -1))))
    (func $sum (param i32 i32) (result i32 i32)
        (i32.add (local.get 0) (local.get 1)) (i32.const 2))
    (table $calls 4 funcref) (elem (table $calls) (i32.const 0) func $slow $fast $other)
    (func $zero (result i32) (i32.const 0x100))
    (func $self (param i32) (result funcref) (ref.func $self))
    (func $none (param i32) (result funcref) (ref.null func))
    (func $both (param i32) (result i32 funcref) (i32.const 4) (ref.func $self))
    (elem declare func $self)";

#[track_caller]
fn check(script: &str, original: &str, expected: &str) {
    check_with(FUNCTIONS, script, original, expected);
}

#[test]
fn calls_are_redirected() {
    const CALL: &str = "(call $slow (local.get 0) (local.get 1))";
    const INSTEAD: &str = "(call $fast (local.get 0) (local.get 1))";
    check(
        "wasm:opcode:call:alt / target_fn_name == \"slow\" / { alt_call_by_name(\"fast\"); }",
        CALL,
        INSTEAD,
    );
    // By its index, the imported function included; and by the name of an export.
    check("wasm:opcode:call:alt / imm0 == 1 / { alt_call_by_id(2); }", CALL, INSTEAD);
    check(
        "wasm:opcode:call:alt / imm0 == 1 / { alt_call_by_name(\"exported\"); }",
        CALL,
        "(i32.xor (local.get 0) (local.get 1))",
    );
    // Where the rule calls nothing, the original is executed.
    check(
        "wasm:opcode:call(arg0: i32):alt / target_fn_name == \"slow\" / {
             if (arg0 == 2) { alt_call_by_name(\"fast\"); } elif (arg0 == 3) { alt_call_by_name(\"other\"); }
         }",
        CALL,
        "(if (result i32) (i32.eq (local.get 1) (i32.const 2)) (then (call $fast (local.get 0) (local.get 1)))
            (else (if (result i32) (i32.eq (local.get 1) (i32.const 3))
                (then (call $other (local.get 0) (local.get 1)))
                (else (call $slow (local.get 0) (local.get 1))))))",
    );
    // A rule with a result computes it where it calls nothing.
    check(
        "wasm:opcode:call(res0: i32, arg1: i32):alt / target_fn_name == \"slow\" / {
             res0 = 77; if (arg1 == 7) { alt_call_by_name(\"fast\"); }
         }",
        CALL,
        "(if (result i32) (i32.eq (local.get 0) (i32.const 7)) (then (call $fast (local.get 0) (local.get 1)))
            (else (i32.const 77)))",
    );
    // Without a result.
    check(
        "wasm:opcode:call:alt / target_fn_name == \"note\" && fname == \"run\" / { alt_call_by_name(\"twice\"); }",
        "(call $note (local.get 0)) (global.get $log)",
        "(call $twice (local.get 0)) (global.get $log)",
    );
}

/// The last one that a rule chooses is called, once, after the statements of all rules.
#[test]
fn the_last_choice_counts() {
    check(
        "var calls: i32; wasm:func:entry / fname == \"fast\" / { calls++; }
         wasm:opcode:call:alt / target_fn_name == \"slow\" / { alt_call_by_name(\"other\"); alt_call_by_name(\"fast\"); }
         wasm:opcode:call(arg0: i32):alt / target_fn_name == \"slow\" && arg0 == 3 / { alt_call_by_name(\"other\"); }
         wasm:opcode:call(res0: i32, arg1: i32):alt / target_fn_name == \"slow\" && arg1 == 7 / { res0 = 70; }
         wasm:opcode:i32.const:alt / imm0 == 1000 / { res0 = calls; }",
        "(i32.add (call $slow (local.get 0) (local.get 1)) (i32.const 1000))",
        "(if (i32.eq (local.get 0) (i32.const 7)) (then (return (i32.add (global.get $log) (i32.const 70)))))
         (if (i32.eq (local.get 1) (i32.const 3))
            (then (return (i32.add (global.get $log) (i32.xor (local.get 0) (local.get 1))))))
         (global.set $log (i32.add (global.get $log) (i32.const 1)))
         (i32.add (call $fast (local.get 0) (local.get 1)) (global.get $log))",
    );
    // Functions of the script hide those of the language.
    check(
        "var n: i32; fn alt_call_by_name(name: str) { n = 6; }
         wasm:opcode:call(res0: i32):alt / imm0 == 1 / { alt_call_by_name(\"nothing\"); res0 = n; }",
        "(call $slow (local.get 0) (local.get 1))",
        "(i32.const 6)",
    );
}

#[test]
fn other_instructions_call_functions() {
    check(
        "wasm:opcode:i32.div_s:alt / fname == \"run\" / { res0 = 1; if (trap) { alt_call_by_name(\"divide\"); } }",
        "(i32.div_s (local.get 0) (local.get 1))",
        "(if (result i32) (i32.or (i32.eqz (local.get 1))
            (i32.and (i32.eq (local.get 0) (i32.const 0x80000000)) (i32.eq (local.get 1) (i32.const -1))))
            (then (call $divide (local.get 0) (local.get 1))) (else (i32.const 1)))",
    );
    // The index is not an argument.
    check(
        "wasm:opcode:call_indirect(arg0: i32):alt / arg0 != 1 / { alt_call_by_name(\"other\"); }",
        "(call_indirect (type $binary) (local.get 0) (local.get 1) (local.get 0))",
        "(if (result i32) (i32.eq (local.get 0) (i32.const 1))
            (then (call $fast (local.get 0) (local.get 1)))
            (else (call $other (local.get 0) (local.get 1))))",
    );
    check(
        "wasm:opcode:local.get:alt / fname == \"run\" && imm0 == 2 / { alt_call_by_name(\"zero\"); }",
        "(i32.add (local.get 2) (local.get 0))",
        "(i32.add (call $zero) (local.get 0))",
    );
    // A block with parameters, and one whose results are several.
    check(
        "wasm:opcode:block(local0: i32):block_alt / local0 == 7 / { alt_call_by_name(\"sum\"); }",
        "(local.get 0) (local.get 1)
         (block (param i32 i32) (result i32 i32) (br_if 0 (local.get 0)) (br 0)) (i32.sub)",
        "(local.get 0) (local.get 1)
         (if (param i32 i32) (result i32 i32) (i32.eq (local.get 0) (i32.const 7)) (then (call $sum)))
         (i32.sub)",
    );
}

#[test]
fn several_results_are_replaced() {
    check(
        "wasm:opcode:call(res0: i64, res1: i32, arg0: i32):alt / target_fn_name == \"pair\" && arg0 < 8 / {
             res0 = 40; res1 = arg0 * 2;
         }",
        "(call $pair (local.get 0)) (i32.wrap_i64) (i32.sub)",
        "(if (i32.lt_s (local.get 0) (i32.const 8))
            (then (return (i32.sub (i32.mul (local.get 0) (i32.const 2)) (i32.const 40)))))
         (i32.sub (local.get 0) (i32.const 7))",
    );
    // What the rule does not say is zero.
    check(
        "wasm:opcode:call(res0: i64, res1: i32):alt / target_fn_name == \"pair\" / { res1 = 3; }",
        "(call $pair (local.get 0)) (i32.wrap_i64) (i32.sub)",
        "(i32.const 3)",
    );
    check(
        "wasm:opcode:call:alt / target_fn_name == \"pair\" / { alt_call_by_name(\"swapped\"); }",
        "(call $pair (local.get 0)) (i32.wrap_i64) (i32.sub)",
        "(i32.sub (i32.const 9) (local.get 0))",
    );
    check(
        "wasm:opcode:if(res0: i32, res1: i32, res2: i32, arg0: i32):block_alt / arg0 == 2 / { res2 = 8; res0 = 1; }",
        "(if (result i32 i32 i32) (local.get 1) (then (i32.const 1) (i32.const 2) (local.get 0))
            (else (i32.const 4) (i32.const 5) (i32.const 6)))
         (i32.mul) (i32.sub)",
        "(if (result i32) (i32.eq (local.get 1) (i32.const 2)) (then (i32.const 8))
            (else (if (result i32) (local.get 1) (then (i32.sub (i32.const 1) (i32.mul (i32.const 2) (local.get 0))))
                (else (i32.const -26)))))",
    );
}

#[test]
fn references_are_replaced() {
    // By null, or by what a function returns.
    check(
        "wasm:opcode:call(res0: ref, arg0: i32):alt / target_fn_name == \"self\" && arg0 > 5 / { }",
        "(ref.is_null (call $self (local.get 0)))",
        "(i32.gt_s (local.get 0) (i32.const 5))",
    );
    check(
        "wasm:opcode:call:alt / target_fn_name == \"self\" / { alt_call_by_name(\"none\"); }",
        "(ref.is_null (call $self (local.get 0)))",
        "(i32.const 1)",
    );
    check(
        "wasm:opcode:call(res0: ref, res1: i32):alt / target_fn_name == \"both\" / { res1 = 6; }",
        "(call $both (local.get 0)) (ref.is_null) (i32.add)",
        "(i32.const 7)",
    );
    check(
        "wasm:opcode:table.get(res0: ref, arg0: u32):alt / arg0 == 2 / { }
         wasm:opcode:ref.func(res0: i32):alt { }",
        "(ref.is_null (table.get $calls (i32.and (local.get 1) (i32.const 3))))",
        "(i32.ge_u (i32.and (local.get 1) (i32.const 3)) (i32.const 2))",
    );
    check(
        "wasm:opcode:block(res0: ref):block_alt { }",
        "(ref.is_null (block (result funcref) (br_if 0 (call $self (i32.const 0)) (local.get 0))))",
        "(i32.const 1)",
    );
}

/// Non-null references come from functions only.
#[test]
fn references_that_cannot_be_null_are_those_of_functions() {
    let program = "(module (type $f (func (result i32))) (elem declare func $five $six)
        (func $five (type $f) (i32.const 5)) (func $six (type $f) (i32.const 6))
        (func $one (result (ref $f)) (ref.func $five)) (func $two (result (ref $f)) (ref.func $six))
        (func (export \"run\") (param i32 i32) (result i32) (call_ref $f (call $one))))";
    let script = "wasm:opcode:call(res0: ref):alt { }
        wasm:opcode:call(local0: i32):alt / target_fn_name == \"one\" && local0 == 1 / { alt_call_by_name(\"two\"); }";
    let changed = replaced(script, program);
    assert_eq!(here(&changed, &[[0, 0], [1, 0]]), [Some(5), Some(6)]);
    // A subtype of the parameter's type, and of the result's.
    let program = "(module (type $f (func (result i32))) (elem declare func $five)
        (func $five (type $f) (i32.const 5))
        (func $one (param (ref $f)) (result funcref) (local.get 0))
        (func $two (param funcref) (result (ref null $f)) (ref.null $f))
        (func (export \"run\") (param i32 i32) (result i32) (ref.is_null (call $one (ref.func $five)))))";
    let changed = replaced("wasm:opcode:call:alt { alt_call_by_name(\"two\"); }", program);
    assert_eq!(here(&changed, &ARGUMENTS[..1]), [Some(1)]);
}

/// The program also reports if `proc_exit` is called in place of an instruction.
#[test]
fn a_redirected_exit_reports() {
    let program = "(module
        (import \"wasi_snapshot_preview1\" \"proc_exit\" (func $exit (param i32)))
        (import \"wasi_snapshot_preview1\" \"fd_write\" (func (param i32 i32 i32 i32) (result i32)))
        (func $go_on (param i32))
        (func (export \"_start\") (call $go_on (i32.const 3)) (unreachable)))";
    let script = "report var n: i32; wasm:func:entry { n++; }
        wasm:opcode:call:alt / target_fn_name == \"go_on\" / { alt_call_by_name(\"proc_exit\"); }";
    let outcome = crate::rewrite::in_wasmi(&replaced(script, program), false);
    assert_eq!((outcome.1.lines().last(), outcome.2), (Some("n,i32,,,,,1"), Some(3)));
}

#[test]
fn what_cannot_be_called_is_refused() {
    let program = format!(
        "(module {FUNCTIONS} (func (export \"run\") (param i32 i32) (result i32)
            (call $slow (local.get 0) (local.get 1))))"
    );
    let module = Module::new(&Engine::default(), &program).unwrap();
    let refused = |script: &str| instrument("test.mm", script.as_bytes(), &module).unwrap_err();
    let error = refused("wasm:opcode:call:alt / imm0 == 1 / { alt_call_by_name(\"missing\"); }");
    assert!(matches!(error, RewriteError::Alternative { .. }), "{error}");
    assert!(error.to_string().contains("no function for `alt_call_by_name(\"missing\")`"), "{error}");
    let error = refused("wasm:opcode:call:alt / imm0 == 1 / { alt_call_by_id(100); }");
    assert!(error.to_string().contains("`alt_call_by_id(100)`"), "{error}");
    let error = refused("wasm:opcode:call:alt / imm0 == 1 / { alt_call_by_name(\"note\"); }");
    let expected = "has the type (i32) -> (), and what it replaces at `fid == 14 && pc == 5` \
                    has (i32, i32) -> (i32): restrict the rule";
    assert!(error.to_string().contains(expected), "{error}");
    // Where no place matches, nothing is called.
    let nowhere = "wasm:opcode:call:alt / imm0 == 99 / { alt_call_by_name(\"missing\"); }";
    instrument("test.mm", nowhere.as_bytes(), &module).unwrap();

    for (script, expected) in [
        ("wasm:opcode:call:before { alt_call_by_name(\"f\"); }", "belongs to rules of the modes"),
        ("fn f() { alt_call_by_id(1); }", "belongs to rules of the modes"),
        ("wasm:opcode:call:alt { alt_call_by_name(target_fn_name); }", "is not known when"),
        ("wasm:opcode:call:alt { alt_call_by_name(7); }", "expected a `str`"),
        ("wasm:opcode:call:alt { alt_call_by_id(-1); }", "not in the range"),
        ("wasm:opcode:call:alt { alt_call_by_name(); }", "1 parameter,"),
        ("wasm:opcode:call:alt { var n: i32 = alt_call_by_id(1); }", "is a statement"),
        ("wasm:opcode:call(res1: i32):alt { }", "`res1` has a type, and `res0` has none"),
        ("wasm:opcode:call(res0: i32, res2: i32):alt { }", "`res2` has a type, and `res1` has none"),
        ("wasm:opcode:select:alt { }", "the type of the result of `select` differs"),
        ("wasm:opcode:call(res0: ref):alt { res0 = 1; }", "`res0` is not supported"),
        ("wasm:opcode:call(res0: ref):after { }", "`ref` is the type of results"),
        ("wasm:opcode:call(arg0: ref):alt { }", "`ref` is the type of results"),
        ("var x: ref;", "unknown type `ref`"),
    ] {
        let error = refused(script);
        assert!(matches!(error, RewriteError::Script(_)), "{error}");
        assert!(error.to_string().contains(expected), "{script}: {error}");
    }
    // Programs that are only observed stay as they are.
    let script = b"wasm:opcode:call:alt { alt_call_by_name(\"fast\"); }";
    for error in [
        Script::new("test.mm", script, &[]).unwrap_err().to_string(),
        compile("test.mm", script, &[]).unwrap_err().to_string(),
    ] {
        assert!(error.contains("changes the program, which is only observed here"), "{error}");
        assert!(error.contains("whamm instrument"), "{error}");
    }
}
