//! Branches, loops, blocks, and classes of instructions, checked by hand.

use super::{LOOP, Observed, integers, texts};

#[test]
fn branches_are_counted_by_way() {
    let text = "(module (func (export \"run\") (param i32)
        (loop
            (block (block (block (br_table 0 1 0 2 (local.get 0))) nop) nop)
            (if (i32.eqz (local.get 0)) (then nop))
            (drop (select (i32.const 1) (i32.const 2) (i32.and (local.get 0) (i32.const 1))))
            (br_if 0 (i32.ge_s (local.tee 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 0))))))";
    let observed = Observed::by(text, "branches");
    observed.call("run", 4).unwrap();
    let report = observed.report("branches");
    // 4, 3, 2, 1, 0: each of four branches is executed five times.
    assert_eq!(report.get("branches"), Some(20));
    assert_eq!(integers(&report, "by_branch", "times"), [5, 5, 5, 5]);
    // br_table by 2, 1 and 0; the if by 0; select by 3 and 1; br_if except for 0.
    assert_eq!(integers(&report, "by_branch", "taken"), [3, 1, 2, 4]);
    assert_eq!(integers(&report, "by_branch", "not taken"), [2, 4, 3, 1]);
    assert_eq!(report.get("taken"), Some(10));
    assert_eq!(report.get("not_taken"), Some(10));
    assert_eq!(
        texts(&report, "by_branch", "instruction"),
        ["br_table 0 (;@4;) 1 (;@3;) 0 (;@4;) 2 (;@2;)", "if ;; label = @2", "select", "br_if 0 (;@1;)"]
    );
    assert_eq!(integers(&report, "targets", "times"), [2, 1, 1, 1]);
    let indices: Vec<_> = report.get_table("targets").unwrap().column("index").cloned().collect();
    assert_eq!(indices, ["default".into(), 0.into(), 1.into(), 2.into()]);
}

/// Both arms are executed equally often.
#[test]
fn paths_of_hot_instructions_end_at_branches() {
    let text = "(module (func (export \"run\") (param i32)
        (loop
            (if (i32.and (local.get 0) (i32.const 1))
                (then nop nop)
                (else nop nop nop))
            (block (br_if 0 (i32.lt_s (local.get 0) (i32.const 0))) nop)
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
    let observed = Observed::by(text, "hotness");
    observed.call("run", 10).unwrap();
    let report = observed.report("hotness");
    let paths: Vec<_> = integers(&report, "paths", "times")
        .into_iter()
        .zip(integers(&report, "paths", "length"))
        .zip(texts(&report, "paths", "begins with"))
        .map(|((times, length), first)| format!("{times} {length} {first}"))
        .collect();
    // From the block to the end of the loop, where a branch is never taken; from the loop to the
    // `if`; the second arm with the `end`, and the first one with the `else`; the other ends.
    assert_eq!(
        paths,
        ["10 12 block ;; label = @2", "10 5 loop ;; label = @1", "5 4 nop", "5 3 nop", "1 2 end"],
        "{report:?}"
    );
}

#[test]
fn branches_of_references_are_branches() {
    let text = include_str!("../../../tests/probes/references.wat");
    let text = text.replace("(export \"run\") (local $n i32)", "(export \"run\") (param $n i32)");
    let observed = Observed::by(&text, "branches,coverage{branches},loops");
    observed.call("run", 0).unwrap();
    let report = observed.report("branches");
    // With the select, the br_if of the inner loop, and that of the outer one.
    assert_eq!(integers(&report, "by_branch", "times"), [20, 9, 9, 9, 5, 2]);
    assert_eq!(integers(&report, "by_branch", "taken"), [13, 3, 6, 8, 2, 1]);
    assert_eq!(
        texts(&report, "by_branch", "instruction"),
        [
            "select (result (ref null $number))",
            "br_on_null $null",
            "br_on_non_null $other",
            "br_if $again",
            "br_if $twice",
            "br_on_null $up"
        ]
    );
    let coverage = observed.report("coverage");
    assert_eq!(coverage.get("outcomes_covered"), Some(10));
    let loops = observed.report("loops");
    assert_eq!(integers(&loops, "by_loop", "iterations"), [9, 5, 2]);
    assert_eq!(integers(&loops, "by_loop", "entered"), [1, 3, 1]);
}

/// A loop that contains two others: one after an instruction that always continues with it, and one
/// after the end of a block, to which a br_table branches.
const LOOPS: &str = "(module (func (export \"run\") (param i32) (local $n i32)
    (loop $outer
        (local.set $n (i32.const 4))
        (loop $inner
            (br_if $inner (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (block $past
            (br_if $past (i32.and (local.get 0) (i32.const 1)))
            (drop (i32.load (i32.const 0))))
        (block $done (loop $table
            (br_table $table $done
                (i32.gt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 2)))))
        (br_if $outer (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
    (memory 1))";

#[test]
fn loops_have_entries_and_iterations() {
    let observed = Observed::by(LOOPS, "loops");
    observed.call("run", 3).unwrap();
    observed.call("run", 1).unwrap();
    let report = observed.report("loops");
    assert_eq!(integers(&report, "by_loop", "iterations"), [16, 12, 4]);
    assert_eq!(integers(&report, "by_loop", "entered"), [4, 4, 2]);
    assert_eq!(integers(&report, "by_loop", "depth"), [1, 1, 0]);
    assert_eq!(report.get("iterations"), Some(32));
    assert_eq!(report.get("entered"), Some(10));
}

/// Loops that a caught exception repeats are not entered by it. `run` enters its loop after a
/// constant, `first` at its beginning, `branch` from two places, and `call` after a call, which may
/// not complete.
const RETRIES: &str = "(module (tag $e) (func $maybe (param i32)
        (if (i32.and (local.get 0) (i32.const 1)) (then (throw $e))))
    (func (export \"run\") (param i32)
        (drop (i32.const 0))
        (loop $retry
            (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
            (try_table (catch $e $retry) (call $maybe (local.get 0)))
            (br_if $retry (i32.gt_s (local.get 0) (i32.const 0)))))
    (func (export \"first\") (param i32)
        (loop $retry
            (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
            (try_table (catch_all $retry) (call $maybe (local.get 0)))
            (br_if $retry (i32.gt_s (local.get 0) (i32.const 0)))))
    (func (export \"branch\") (param i32)
        (block $past (br_if $past (i32.lt_u (local.get 0) (i32.const 5))) nop)
        (loop $retry
            (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
            (try_table (catch $e $retry) (call $maybe (local.get 0)))
            (br_if $retry (i32.gt_s (local.get 0) (i32.const 0)))))
    (func (export \"call\") (param i32)
        (call $maybe (i32.const 0))
        (loop $retry
            (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
            (try_table (catch $e $retry) (call $maybe (local.get 0)))
            (br_if $retry (i32.gt_s (local.get 0) (i32.const 0))))))";

#[test]
fn loops_are_not_entered_by_exceptions_that_repeat_them() {
    for (name, unknown) in [("run", None), ("first", None), ("branch", None), ("call", Some(1))] {
        let observed = Observed::by(RETRIES, "loops");
        observed.call(name, 10).unwrap();
        observed.call(name, 4).unwrap();
        let report = observed.report("loops");
        assert_eq!(integers(&report, "by_loop", "iterations"), [14], "{name}");
        assert_eq!(report.get("loops with unknown entries"), unknown, "{name}");
        if unknown.is_none() {
            assert_eq!(integers(&report, "by_loop", "entered"), [2], "{name}");
        }
    }
}

#[test]
fn blocks_are_counted_by_their_first_instruction() {
    let observed = Observed::by(LOOP, "blocks");
    observed.call("run", 10).unwrap();
    let report = observed.report("blocks");
    // The callee; the loop; the two ends. A function that is not called has one block.
    assert_eq!(integers(&report, "by_block", "times"), [10, 10, 1]);
    assert_eq!(integers(&report, "by_block", "length"), [4, 9, 2]);
    assert_eq!(report.get("blocks"), Some(4));
    assert_eq!(report.get("blocks_executed"), Some(3));
    assert_eq!(report.get("executed"), Some(21));
}

#[test]
fn instructions_are_counted_by_opcode_and_class() {
    let observed = Observed::by(LOOP, "opcodes,imix");
    observed.call("run", 10).unwrap();
    let report = observed.report("opcodes");
    assert_eq!(report.get("instructions"), Some(132));
    assert_eq!(
        texts(&report, "by_opcode", "opcode"),
        ["local.get", "i32.const", "end", "br_if", "call", "drop", "i32.mul", "i32.sub", "local.tee", "loop"]
    );
    assert_eq!(integers(&report, "by_opcode", "times"), [30, 20, 12, 10, 10, 10, 10, 10, 10, 10]);
    assert_eq!(integers(&report, "by_opcode", "places"), [3, 2, 3, 1, 1, 1, 1, 1, 1, 1]);
    let report = observed.report("imix");
    assert_eq!(
        texts(&report, "by_class", "class"),
        [
            "local",
            "block",
            "constant",
            "branch",
            "call",
            "drop and select",
            "integer, add",
            "integer, multiply"
        ]
    );
    assert_eq!(integers(&report, "by_class", "times"), [40, 22, 20, 10, 10, 10, 10, 10]);
}

#[test]
fn casts_objects_vectors_and_wide_arithmetic_have_classes() {
    let text = "(module (type $s (struct (field (mut i32))))
        (func (export \"run\") (param i32)
            (struct.set $s 0 (struct.new $s (i32.const 1)) (i32.const 2))
            (drop (ref.test (ref $s) (struct.new $s (i32.const 1))))
            (drop (struct.get $s 0 (ref.cast (ref $s) (struct.new $s (i32.const 1)))))
            (drop (block (result anyref) (br_on_cast 0 anyref (ref $s) (ref.null any))))
            (drop (i8x16.add (v128.const i64x2 1 2) (i8x16.splat (i32.const 1))))
            (i64.add128 (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)) drop drop
            (i64.mul_wide_u (i64.const 1) (i64.const 2)) drop drop))";
    let observed = Observed::by(text, "imix");
    observed.call("run", 1).unwrap();
    let report = observed.report("imix");
    let counts = integers(&report, "by_class", "times");
    let counts: Vec<_> = texts(&report, "by_class", "class").into_iter().zip(counts).collect();
    let expected = [
        ("constant", 12),
        ("drop and select", 8),
        ("object", 5),
        ("block", 3),
        ("cast", 2),
        ("branch", 1),
        ("integer, add", 1),
        ("integer, multiply", 1),
        ("reference", 1),
        ("vector, integer", 1),
        ("vector, lanes", 1),
    ];
    assert_eq!(counts, expected.map(|(class, count)| (class.to_owned(), count)));
}
