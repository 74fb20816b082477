//! Rules that act in place of instructions and blocks: the rewritten program computes the same as
//! one that was written by hand, in this engine and in wasmi.

use rand::SeedableRng;
use rand::rngs::StdRng;
use wasm_jit::{Engine, Linker, Module, Store, Trap};
use wasm_jit_whamm::rewrite::instrument;

/// The results of `run` with these arguments, one call after the other in one instance; `None` if
/// it traps.
pub(super) type Results = Vec<Option<i32>>;

pub(super) fn here(module: &[u8], arguments: &[[i32; 2]]) -> Results {
    let engine = Engine::default();
    let module = Module::from_binary(&engine, module).unwrap();
    let mut linker = Linker::new(&engine);
    let write = |_: i32, _: i32, _: i32, _: i32| 8_i32;
    linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<(i32, i32), i32>(&mut store, "run").unwrap();
    arguments.iter().map(|[a, b]| run.call(&mut store, (*a, *b)).ok()).collect()
}

fn in_wasmi(module: &[u8], arguments: &[[i32; 2]]) -> Results {
    let engine = wasmi::Engine::default();
    let module = wasmi::Module::new(&engine, module).unwrap();
    let mut linker = wasmi::Linker::new(&engine);
    let write = |_: i32, _: i32, _: i32, _: i32| 8_i32;
    linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
    let mut store = wasmi::Store::new(&engine, ());
    let instance = linker.instantiate_and_start(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<(i32, i32), i32>(&store, "run").unwrap();
    arguments.iter().map(|[a, b]| run.call(&mut store, (*a, *b)).ok()).collect()
}

pub(super) fn replaced(script: &str, program: &str) -> Vec<u8> {
    let module =
        Module::new(&Engine::default(), program).unwrap_or_else(|error| panic!("{error}\n{program}"));
    instrument("test.mm", script.as_bytes(), &module).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) const ARGUMENTS: [[i32; 2]; 8] =
    [[0, 0], [1, 2], [7, 3], [-1, 5], [20, 0], [i32::MIN, -1], [3, 3], [100, 1 << 20]];

/// The program with the rules, and the one that was written by hand. Fields and functions are
/// common to both; the bodies are those of `run`.
#[track_caller]
pub(super) fn check_with(fields: &str, script: &str, original: &str, expected: &str) {
    let program = |body: &str| {
        format!(
            "(module {fields} (func $run (export \"run\") (param i32 i32) (result i32) (local i32) {body}))"
        )
    };
    let by_hand = wat::parse_str(program(expected)).unwrap();
    let results = in_wasmi(&by_hand, &ARGUMENTS);
    assert_eq!(here(&by_hand, &ARGUMENTS), results, "{expected}");
    let unchanged = wat::parse_str(program(original)).unwrap();
    assert_ne!(here(&unchanged, &ARGUMENTS), results, "the rule changes nothing: {script}");
    let replaced = replaced(script, &program(original));
    assert_eq!(here(&replaced, &ARGUMENTS), results, "{script}");
    assert_eq!(in_wasmi(&replaced, &ARGUMENTS), results, "{script}");
}

#[track_caller]
fn check(script: &str, original: &str, expected: &str) {
    check_with("", script, original, expected);
}

#[test]
fn instructions_are_replaced() {
    check(
        "wasm:opcode:i32.add:alt { res0 = arg1 - arg0; }",
        "(i32.add (local.get 0) (local.get 1))",
        "(i32.sub (local.get 0) (local.get 1))",
    );
    // The result is zero unless the rule sets another one.
    check("wasm:opcode:i32.mul:alt { }", "(i32.mul (local.get 0) (local.get 1))", "(i32.const 0)");
    check(
        "wasm:opcode:i32.const:alt / imm0 == 5 / { res0 = 6; }",
        "(i32.add (i32.const 5) (i32.const 7))",
        "(i32.const 13)",
    );
    check(
        "wasm:opcode:i64.extend_i32_s:alt { res0 = arg0 as u32 as i64; }",
        "(i32.wrap_i64 (i64.shr_s (i64.extend_i32_s (local.get 0)) (i64.const 32)))",
        "(i32.const 0)",
    );
    check(
        "wasm:opcode:f64.add|f64.promote_f32:alt { res0 = 1.5; } wasm:opcode:f32.demote_f64:alt { res0 = 2.5; }",
        "(i32.trunc_f64_s (f64.add (f64.promote_f32 (f32.demote_f64 (f64.convert_i32_s (local.get 0)))) \
            (f64.const 3)))",
        "(i32.const 1)",
    );
    check(
        "wasm:opcode:local.get(res0: i32):alt / imm0 == 1 / { res0 = 40; }",
        "(i32.add (local.get 0) (local.get 1))",
        "(i32.add (local.get 0) (i32.const 40))",
    );
    check(
        "wasm:opcode:select(res0: i32):alt { res0 = 0 - 1; }",
        "(select (local.get 0) (i32.const 2) (local.get 1))",
        "(i32.const -1)",
    );
    check("wasm:opcode:local.set:alt { }", "(local.set 0 (i32.const 9)) (local.get 0)", "(local.get 0)");
    check(
        "wasm:opcode:i64.const:alt / false / { } wasm:opcode:nop:alt { } wasm:opcode:drop:alt { }
         wasm:opcode:i32.eqz:alt { res0 = 3; }",
        "(drop (i64.const 4)) (nop) (i32.eqz (local.get 0))",
        "(i32.const 3)",
    );
}

/// The original has its operands, and traps as it does alone.
#[test]
fn the_original_is_executed_if_the_predicate_does_not_hold() {
    check(
        "wasm:opcode:i32.div_s:alt / trap / { res0 = 0 - 7; }",
        "(i32.div_s (local.get 0) (local.get 1))",
        "(if (result i32) (i32.or (i32.eqz (local.get 1))
            (i32.and (i32.eq (local.get 0) (i32.const 0x80000000)) (i32.eq (local.get 1) (i32.const -1))))
            (then (i32.const -7)) (else (i32.div_s (local.get 0) (local.get 1))))",
    );
    check(
        "wasm:opcode:i32.div_s:alt / arg0 == 3 / { res0 = 100; }",
        "(i32.div_s (local.get 0) (local.get 1))",
        "(if (result i32) (i32.eq (local.get 1) (i32.const 3))
            (then (i32.const 100)) (else (i32.div_s (local.get 0) (local.get 1))))",
    );
    check(
        "wasm:opcode:i32.sub(local0: i32):alt / local0 > 5 / { if (arg0 == 3) { return; } res0 = local0; }",
        "(i32.sub (local.get 0) (local.get 1))",
        "(if (result i32) (i32.gt_s (local.get 0) (i32.const 5))
            (then (select (i32.const 0) (local.get 0) (i32.eq (local.get 1) (i32.const 3))))
            (else (i32.sub (local.get 0) (local.get 1))))",
    );
}

const MEMORY: &str = "(memory (export \"memory\") 1 2)
    (func $slow (param i32 i64) (result i64) (i64.add (local.get 1) (i64.extend_i32_s (local.get 0))))
    (func $note (param i32) (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (local.get 0))))
    (type $unary (func (param i32) (result i32)))
    (func $twice (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (table 1 funcref) (elem (i32.const 0) $twice)
    (global $count (mut i32) (i32.const 5))";

#[test]
fn calls_accesses_and_globals_are_replaced() {
    check_with(
        MEMORY,
        "wasm:opcode:call(res0: i64, arg0: i64, arg1: i32):alt / target_fn_name == \"slow\" && arg1 != 7 / { res0 = arg0 * 2; }",
        "(i32.wrap_i64 (call $slow (local.get 0) (i64.const 30)))",
        "(i32.wrap_i64 (if (result i64) (i32.eq (local.get 0) (i32.const 7))
            (then (call $slow (local.get 0) (i64.const 30))) (else (i64.const 60))))",
    );
    // Calls with results are not replaced.
    check_with(
        MEMORY,
        "wasm:opcode:call:alt { }",
        "(call $note (local.get 0)) (drop (call $slow (local.get 0) (i64.const 1))) (i32.load (i32.const 8))",
        "(i32.load (i32.const 8))",
    );
    check_with(
        MEMORY,
        "wasm:opcode:call_indirect(res0: i32, arg1: i32):alt / arg1 == 20 / { res0 = 1; }",
        "(call_indirect (type $unary) (local.get 0) (local.get 1))",
        "(if (result i32) (i32.eq (local.get 0) (i32.const 20)) (then (i32.const 1))
            (else (call_indirect (type $unary) (local.get 0) (local.get 1))))",
    );
    check_with(
        MEMORY,
        "report var dropped: u32; wasm:opcode:i32.store:alt / effective_addr >= 65533 / { dropped++; }
         wasm:opcode:i32.load:alt / effective_addr >= 65533 / { res0 = dropped as i32; }",
        "(i32.store offset=4 (local.get 1) (local.get 0)) (i32.load offset=4 (local.get 1))",
        "(if (i32.ge_u (local.get 1) (i32.const 65529))
            (then (global.set $count (i32.add (global.get $count) (i32.const 1)))
                (return (i32.sub (global.get $count) (i32.const 5)))))
         (i32.store offset=4 (local.get 1) (local.get 0)) (i32.load offset=4 (local.get 1))",
    );
    check_with(
        MEMORY,
        "wasm:opcode:memory.grow:alt { res0 = 0 - 1; } wasm:opcode:global.set:alt { }",
        "(global.set $count (i32.const 9)) (i32.add (memory.grow (i32.const 1)) (global.get $count))",
        "(i32.const 4)",
    );
}

/// Other rules see the state at that point.
#[test]
fn rules_before_and_after_are_called_as_well() {
    check(
        "var before: i32; var after: i32;
         wasm:opcode:i32.mul:before { before = arg0; } wasm:opcode:i32.mul:alt { res0 = before + 1; }
         wasm:opcode:i32.mul:after { after = res0; } wasm:opcode:i32.const:alt { res0 = after * 10; }",
        "(i32.add (i32.mul (local.get 0) (local.get 1)) (i32.const 0))",
        "(i32.add (local.tee 2 (i32.add (local.get 1) (i32.const 1)))
            (i32.mul (local.get 2) (i32.const 10)))",
    );
    // The last one that acts.
    check(
        "wasm:opcode:i32.add:alt / arg0 == 2 / { res0 = 20; } wasm:opcode:i32.add:alt / arg0 < 4 / { res0 = 10; }
         wasm:opcode:i32.add:alt / arg0 == 3 / { }",
        "(i32.add (local.get 0) (local.get 1))",
        "(if (result i32) (i32.lt_s (local.get 1) (i32.const 4))
            (then (select (i32.const 0) (i32.const 10) (i32.eq (local.get 1) (i32.const 3))))
            (else (i32.add (local.get 0) (local.get 1))))",
    );
}

#[test]
fn blocks_are_replaced() {
    check(
        "wasm:opcode:block(res0: i32):block_alt { res0 = 12; }",
        "(i32.add (local.get 0) (block (result i32) (br_if 0 (i32.const 4) (local.get 1)) (drop) (i32.const 5)))",
        "(i32.add (local.get 0) (i32.const 12))",
    );
    // A parameter, branches out of it, and a rule for the end of the function.
    check(
        "var ends: u32; wasm:func:exit { ends++; }
         wasm:opcode:block(res0: i32, arg0: i32, local0: i32):block_alt / local0 == 7 && arg0 == 3 / { res0 = 70; }",
        "(block $outer (result i32)
            (local.get 1)
            (block (param i32) (result i32)
                (if (param i32) (result i32) (i32.eq (local.get 0) (i32.const 1))
                    (then (br $outer)) (else (i32.const 1) (i32.add)))
                (br_if 0 (i32.eq (local.get 0) (i32.const 20)))
                (br_if 2 (i32.eq (local.get 0) (i32.const 3)))
                (if (i32.eq (local.get 0) (i32.const 100)) (then (return (i32.const 55))))
                (br_table 0 1 0 (local.get 0)))
            (i32.const 1000) (i32.add))",
        "(if (i32.and (i32.eq (local.get 0) (i32.const 7)) (i32.eq (local.get 1) (i32.const 3)))
            (then (return (i32.const 1070))))
         (block $outer (result i32)
            (local.get 1)
            (block (param i32) (result i32)
                (if (param i32) (result i32) (i32.eq (local.get 0) (i32.const 1))
                    (then (br $outer)) (else (i32.const 1) (i32.add)))
                (br_if 0 (i32.eq (local.get 0) (i32.const 20)))
                (br_if 2 (i32.eq (local.get 0) (i32.const 3)))
                (if (i32.eq (local.get 0) (i32.const 100)) (then (return (i32.const 55))))
                (br_table 0 1 0 (local.get 0)))
            (i32.const 1000) (i32.add))",
    );
    // A loop is replaced in its entirety, not an iteration.
    check_with(
        "(global $calls (mut i32) (i32.const 0))",
        "var times: i32; wasm:opcode:loop:block_alt { times++; }
         wasm:opcode:local.get(res0: i32):alt / imm0 == 2 / { res0 = times; }",
        "(loop (local.set 2 (i32.add (local.get 2) (i32.const 3)))
            (br_if 0 (i32.lt_u (local.get 2) (i32.const 30)))) (local.get 2)",
        "(global.set $calls (i32.add (global.get $calls) (i32.const 1))) (global.get $calls)",
    );
}

/// Instructions in a block that is not replaced are observed, and may be replaced.
#[test]
fn replaceable_blocks_are_nested() {
    check(
        "wasm:opcode:if(res0: i32):block_alt / arg0 == 3 / { res0 = 33; }
         wasm:opcode:loop(res0: i32, local0: i32):block_alt / local0 == 7 / { res0 = 77; }
         wasm:opcode:i32.const:alt / imm0 == 11 / { res0 = 12; }",
        "(loop $again (result i32)
            (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
            (if (result i32) (local.get 1)
                (then (br_if $again (i32.eq (local.get 1) (i32.const 4))) (i32.const 11))
                (else (loop $never (br_if 1 (i32.const 2) (local.get 1)) (drop)) (i32.const 21))))",
        "(if (i32.eq (local.get 0) (i32.const 7)) (then (return (i32.const 77))))
         (loop $again
            (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
            (if (i32.eq (local.get 1) (i32.const 3)) (then (return (i32.const 33))))
            (br_if $again (i32.eq (local.get 1) (i32.const 4))))
         (if (result i32) (local.get 1) (then (i32.const 12)) (else (i32.const 21)))",
    );
}

/// What cannot be replaced does not match, as with bounds that do not hold.
#[test]
fn what_has_another_result_is_left_alone() {
    let program = "(module (func $pair (result i32 i32) (i32.const 1) (i32.const 2))
        (func $text (result externref) (ref.null extern))
        (func (export \"run\") (param i32 i32) (result i32) (local (ref null extern))
            (call $pair) (drop) (call $text) (local.set 2)
            (block (result i32 i32) (call $pair)) (drop) (i32.add)))";
    let script = "wasm:opcode:call(res0: i32):alt { res0 = 7; } wasm:opcode:call(res0: i64):alt { res0 = 8; }
        wasm:opcode:call:alt { } wasm:opcode:local.set:alt { } wasm:opcode:ref.null(res0: i32):alt { }
        wasm:opcode:block(res0: i32):block_alt { } wasm:opcode:block:block_alt { }";
    let changed = replaced(script, program);
    assert_eq!(here(&changed, &ARGUMENTS[..1]), here(&wat::parse_str(program).unwrap(), &ARGUMENTS[..1]));
}

/// Values below the operands of the instruction stay on the stack, and are not bound.
#[test]
fn deeper_values_stay() {
    check_with(
        "(func $take (param i32))",
        "var log: i32; wasm:opcode:i32.eqz:alt { res0 = log + arg0; }
         wasm:opcode:call(arg0: i32):alt { log = arg0; }
         wasm:opcode:call(arg0: i32, arg1: i32, arg2: i32):alt { log = arg2 + arg1; }",
        "(local.get 0) (local.get 1) (call $take (i32.const 9)) (i32.sub) (i32.eqz)",
        "(i32.add (i32.const 9) (i32.sub (local.get 0) (local.get 1)))",
    );
}

/// A local whose reference cannot be null must be initialized on all paths to its use.
#[test]
fn locals_that_cannot_be_null_are_set() {
    let program = "(module (type $f (func (result i32))) (elem declare func $five)
        (func $five (type $f) (i32.const 5))
        (func (export \"run\") (param i32 i32) (result i32) (local $callee (ref $f))
            (local.set $callee (ref.func $five)) (call_ref $f (local.get $callee))))";
    let changed = replaced("wasm:opcode:local.set:alt { }", program);
    assert_eq!(here(&changed, &[[0, 0]]), [Some(5)]);
}

/// Rules that never act, everywhere: labels and operands are correct in programs of all kinds.
#[test]
fn random_programs_are_the_same_if_no_rule_acts() {
    const NEVER: &str = "var acts: bool;
        wasm:opcode:i32*|i64*|f32*|f64*|drop|nop|call*|global.set|local.set:alt / acts / { }
        wasm:opcode:call|call_indirect|local.get|local.tee|global.get|select(res0: i32):alt / acts / { }
        wasm:opcode:block|loop|if:block_alt / acts / { }
        wasm:opcode:block|loop|if(res0: i32):block_alt / acts / { }
        wasm:opcode:block|loop|if(res0: i64):block_alt / acts / { }
        wasm:opcode:block|loop|if(res0: i32, res1: i32):block_alt / acts / { }
        wasm:opcode:local.get|table.get|ref.null|ref.func(res0: ref):alt / acts / { }
        report var ends: u32; wasm:func:exit { ends++; }";
    let mut blocks = 0;
    for seed in 0..60 {
        let text = match seed % 3 {
            0 => crate::statements::program(&mut StdRng::seed_from_u64(seed)),
            _ => crate::programs::program(seed).replace("(export \"memory\") i64", "i64"),
        };
        let run = |module: &[u8]| -> Vec<Result<i64, Option<Trap>>> {
            let engine = Engine::default();
            let module =
                Module::from_binary(&engine, module).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let mut linker = Linker::new(&engine);
            let write = |_: i32, _: i32, _: i32, _: i32| 8_i32;
            linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
            let mut store = Store::new(&engine, ());
            let instance = linker.instantiate(&mut store, &module).unwrap();
            let main = instance.get_typed_func::<(), i64>(&mut store, "main");
            let mut call = || match &main {
                Ok(main) => main.call(&mut store, ()),
                Err(_) => {
                    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
                    run.call(&mut store, ()).map(|()| 0)
                }
            };
            (0..2).map(|_| call().map_err(|error: wasm_jit::Error| error.trap())).collect()
        };
        let original = run(&wat::parse_str(&text).unwrap());
        let changed = run(&replaced(NEVER, &text));
        if !changed.contains(&Err(Some(Trap::StackOverflow))) {
            assert_eq!(changed, original, "{text}");
        }
        blocks += text.matches("(block").count() + text.matches("(loop").count();
    }
    assert!(blocks > 200, "{blocks}");
}
