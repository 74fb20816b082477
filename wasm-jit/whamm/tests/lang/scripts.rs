//! The scripts of the directory `scripts`, each on a small program with known counts. Scripts that
//! a monitor can check also run on real programs, in the repository's tests.

use super::engine::rows_without_offset;

/// A clock that advances by ten nanoseconds whenever it is read.
const CLOCK: &str = r#"(module (global $now (mut i64) (i64.const 1000))
    (func (export "now") (result i64)
        (global.set $now (i64.add (global.get $now) (i64.const 10))) (global.get $now)))"#;

/// Rows whose value is not zero: name, rule or event and function, key, and value.
#[track_caller]
fn check(script: &str, program: &str, expected: &[&str]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let script = std::fs::read_to_string(path).unwrap();
    let rows = rows_without_offset(&script, &[("clock", CLOCK)], program);
    let rows: Vec<_> = rows.into_iter().filter(|row| !row.ends_with(" 0")).collect();
    assert_eq!(rows, expected);
}

/// The monitors of table 2 of the paper have no more lines than there, without libraries.
#[test]
fn monitors_of_the_paper_have_no_more_lines() {
    for (script, lines) in [("decisions.mm", 25), ("imix.mm", 4), ("hotness.mm", 4), ("cache_sim.mm", 13)] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
        let text = std::fs::read_to_string(path).unwrap();
        super::compile(&text);
        let code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        let count = code.count();
        assert!(count <= lines, "{script} has {count} lines, in the paper {lines}");
    }
}

/// Two functions that call each other, one of them by a table: `even(5)`, and `odd(2)` by the
/// table.
const PARITY: &str = r#"(module (type $unary (func (param i32) (result i32)))
    (table funcref (elem $even $odd))
    (func $even (param i32) (result i32)
        (if (result i32) (local.get 0) (then (call $odd (i32.sub (local.get 0) (i32.const 1)))) (else (i32.const 1))))
    (func $odd (param i32) (result i32)
        (if (result i32) (local.get 0) (then (call $even (i32.sub (local.get 0) (i32.const 1)))) (else (i32.const 0))))
    (func $main (export "run")
        (drop (call $even (i32.const 5)))
        (drop (call_indirect (type $unary) (i32.const 2) (i32.const 1)))))"#;

#[test]
fn calls_and_their_targets() {
    // even: 5 3 1, and 1; odd: 4 2 0, and 2 0.
    check(
        "hot_call_sites.mm",
        PARITY,
        &[
            "callee wasm:opcode:call:before 0 odd",
            "times wasm:opcode:call:before 0 4",
            "callee wasm:opcode:call:before 1 even",
            "times wasm:opcode:call:before 1 3",
            "callee wasm:opcode:call:before 2 even",
            "times wasm:opcode:call:before 2 1",
        ],
    );
    check("call_graph.mm", PARITY, &["calls (even, odd) 4", "calls (odd, even) 3", "calls (main, even) 1"]);
    check("indirect_targets.mm", PARITY, &["targets (main, odd) 1"]);
    check(
        "calls.mm",
        PARITY,
        &["calls wasm:func:entry 0 4", "calls wasm:func:entry 1 5", "calls wasm:func:entry 2 1"],
    );
}

#[test]
fn depths_of_the_stack() {
    // main 1; even(5) to odd(0) 2 to 7; odd(2), even(1), odd(0) 2 to 4.
    let depths = ["1 1", "2 2", "3 2", "4 2", "5 1", "6 1", "7 1"].map(|depth| format!("calls {depth}"));
    let mut expected: Vec<&str> = depths.iter().map(String::as_str).collect();
    expected.push("deepest 7");
    check("stack_depth.mm", PARITY, &expected);
    // After an exception through two frames and after a tail call, the depth is correct again.
    let program = r#"(module (tag $e)
        (func $throw (throw $e))
        (func $middle (call $throw))
        (func $leaf)
        (func $tail (return_call $leaf))
        (func (export "run")
            (block (try_table (catch_all 0) (call $middle)))
            (call $leaf) (call $tail) (call $leaf)))"#;
    check("stack_depth.mm", program, &["calls 1 1", "calls 2 5", "calls 3 1", "deepest 3"]);
}

/// The sum of 1 to 10, by a loop; called twice.
const SUM: &str = r#"(module
    (func $sum (param $n i32) (param $unused i32) (result i32) (local $s i32)
        (loop $next
            (local.set $s (i32.add (local.get $s) (local.get $n)))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $s))
    (func $second (param $unused i32) (param i32) (result i32) (local.get 1))
    (func (export "run")
        (drop (call $sum (i32.const 10) (i32.const 1)))
        (drop (call $sum (i32.const 4) (i32.const 1)))
        (drop (call $second (i32.const 3) (i32.const 4)))))"#;

#[test]
fn loops_and_blocks() {
    let event = "wasm:opcode:loop:before 0";
    let rows = [format!("iterations {event} 14"), format!("calls {event} 2"), format!("most {event} 10")];
    check("loop_trips.mm", SUM, &rows.each_ref().map(String::as_str));
    let mut expected = Vec::new();
    // The loop; what follows it; and the bodies of the other functions.
    for (function, times, length) in [(0, 14, 10), (0, 2, 3), (1, 1, 2), (2, 1, 13)] {
        expected.push(format!("times wasm:block:end {function} {times}"));
        expected.push(format!("length wasm:block:end {function} {length}"));
    }
    check("hot_blocks.mm", SUM, &expected.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn parameters_that_are_not_read() {
    check("dead_parameters.mm", SUM, &["is_unread second 1"]);
}

#[test]
fn decisions_of_branches() {
    let program = r#"(module (func $choose (param i32)
            (block $a (block $b (block $c (br_table $a $b $c (local.get 0)))))
            (drop (select (i32.const 1) (i32.const 2) (local.get 0)))
            (block (br_if 0 (local.get 0)) (br 0)))
        (func (export "run") (call $choose (i32.const 0)) (call $choose (i32.const 1)) (call $choose (i32.const 7))))"#;
    check(
        "decisions.mm",
        program,
        &[
            "yes wasm:opcode:br_if:before 0 2",
            "no wasm:opcode:br_if:before 0 1",
            "yes wasm:opcode:br:before 0 1",
            "first wasm:opcode:select:before 0 2",
            "second wasm:opcode:select:before 0 1",
            "targets wasm:opcode:br_table:before 0 0 1",
            "targets wasm:opcode:br_table:before 0 1 1",
            "targets wasm:opcode:br_table:before 0 2 1",
        ],
    );
    check(
        "branches.mm",
        program,
        &["taken_times wasm:opcode:br_if:before 0 2", "not_taken wasm:opcode:br_if:before 0 1"],
    );
}

#[test]
fn decisions_of_branches_by_references() {
    check(
        "branches.mm",
        include_str!("../../../tests/probes/references.wat"),
        &[
            "taken_times wasm:opcode:br_on_null:before 2 3",
            "not_taken wasm:opcode:br_on_null:before 2 6",
            "taken_times wasm:opcode:br_on_non_null:before 2 6",
            "not_taken wasm:opcode:br_on_non_null:before 2 3",
            "taken_times wasm:opcode:br_if:before 2 2",
            "not_taken wasm:opcode:br_if:before 2 3",
            "taken_times wasm:opcode:br_if:before 2 8",
            "not_taken wasm:opcode:br_if:before 2 1",
            "taken_times wasm:opcode:br_on_null:before 2 1",
            "not_taken wasm:opcode:br_on_null:before 2 1",
        ],
    );
}

#[test]
fn instructions_by_place_name_and_category() {
    let program = r#"(module (memory 1) (func (export "run") (i32.store (i32.const 8) (i32.const 1)) nop))"#;
    let places = ["i32.const", "i32.const", "i32.store", "nop", "end"];
    let rows = places.map(|name| format!("times wasm:opcode:{name}:before 0 1"));
    // By kind of instruction, as the compiler lists them.
    let mut expected: Vec<&str> = rows.iter().map(String::as_str).collect();
    expected.dedup();
    expected.insert(0, "times wasm:opcode:i32.const:before 0 1");
    check("hotness.mm", program, &expected);
    check("imix.mm", program, &["times i32.const 2", "times i32.store 1", "times nop 1", "times end 1"]);
    check("categories.mm", program, &["times const 2", "times store 1", "times misc 1", "times control 1"]);
}

#[test]
fn strides_of_accesses() {
    let program = r#"(module (memory 1)
        (func $walk (param $step i32) (local $i i32)
            (loop $next
                (drop (i32.load (local.get $i)))
                (local.set $i (i32.add (local.get $i) (local.get $step)))
                (br_if $next (i32.lt_u (local.get $i) (i32.const 1000)))))
        (func (export "run") (call $walk (i32.const 4)) (call $walk (i32.const 100)) (i32.store (i32.const 0) (i32.const 1))))"#;
    // 250 accesses, then back by 996 bytes, and 9 strides.
    check("strides.mm", program, &["bytes (walk, 4) 249", "bytes (walk, 512) 1", "bytes (walk, 64) 9"]);
}

#[test]
fn accesses_to_memory() {
    let program = r#"(module (memory 1 5)
        (func (export "run") (local $i i32)
            ;; 200 bytes from 0 on: four lines; then the same lines again.
            (loop $next
                (drop (i32.load8_u (local.get $i)))
                (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 200))))
            (drop (i64.load offset=60 (i32.const 0)))
            ;; The line that replaces the first one.
            (i32.store16 offset=1 (i32.const 32768) (i32.const 1))
            (drop (i32.load (i32.const 0)))
            (drop (memory.grow (i32.const 2))) (drop (memory.grow (i32.const 2))) (drop (memory.grow (i32.const 3)))))"#;
    check("cache_sim.mm", program, &["hits 197", "misses 6"]);
    check("accesses.mm", program, &["loads 202", "stores 1", "bytes 214", "unaligned 2"]);
    check(
        "null_pages.mm",
        program,
        &[
            "times wasm:opcode:i32.load8_u:before 0 200",
            "times wasm:opcode:i64.load:before 0 1",
            "times wasm:opcode:i32.load:before 0 1",
        ],
    );
    check("memory_growth.mm", program, &["pages 2 2", "pages 3 1"]);
}

/// An allocator that never frees, and a program that accesses memory beyond the ends of its blocks.
const HEAP: &str = r#"(module (memory 1) (global $top (mut i32) (i32.const 64))
    (func $malloc (param i32) (result i32)
        (global.get $top)
        (global.set $top (i32.add (i32.add (global.get $top) (local.get 0)) (i32.const 16))))
    (func $free (param i32))
    (func $fill (param $block i32) (param $size i32)
        (loop $next
            (i32.store8 (i32.add (local.get $block) (local.get $size)) (i32.const 7))
            (br_if $next (i32.ge_s (local.tee $size (i32.sub (local.get $size) (i32.const 1))) (i32.const 0)))))
    (func (export "run") (local $a i32) (local $b i32)
        (local.set $a (call $malloc (i32.const 24)))
        (local.set $b (call $malloc (i32.const 100)))
        ;; One too many; right; and after it has been freed.
        (call $fill (local.get $a) (i32.const 24))
        (call $fill (local.get $b) (i32.const 99))
        (call $free (local.get $a))
        (call $fill (local.get $a) (i32.const 24))
        (drop (call $malloc (i32.const 1))) (drop (call $malloc (i32.const 20)))))"#;

#[test]
fn blocks_of_the_allocator() {
    check("allocation_sizes.mm", HEAP, &["sizes 32 2", "sizes 128 1", "sizes 1 1", "bytes 145"]);
    let event = "wasm:opcode:i32.store8:before 2";
    // The first block is at 64, and its end at 88.
    check("off_by_one.mm", HEAP, &[&format!("times {event} 1"), &format!("address {event} 88")]);
}

#[test]
fn times_by_argument() {
    let program = r#"(module
        (func $work (param $n i32)
            (if (local.get $n) (then (call $work (i32.sub (local.get $n) (i32.const 1))))))
        (func (export "run") (call $work (i32.const 2)) (call $work (i32.const 0))))"#;
    // Ten nanoseconds from each reading of the clock to the next: 1, 3 and 5 of them.
    check(
        "latency.mm",
        program,
        &["calls 0 2", "calls 1 1", "calls 2 1", "nanoseconds 0 20", "nanoseconds 1 30", "nanoseconds 2 50"],
    );
}

#[test]
fn locks() {
    let program = r#"(module (memory 1 1 shared)
        (func $try (param i32) (result i32)
            (i32.atomic.rmw.cmpxchg offset=4 (local.get 0) (i32.const 0) (i32.const 1)))
        (func (export "run")
            (drop (call $try (i32.const 16))) (drop (call $try (i32.const 16))) (drop (call $try (i32.const 32)))
            (i32.atomic.store (i32.const 20) (i32.const 0))
            (drop (call $try (i32.const 16)))
            (drop (i32.atomic.rmw.xchg (i32.const 20) (i32.const 0)))
            ;; It is not a lock that is held.
            (i32.atomic.store (i32.const 100) (i32.const 0))))"#;
    // Readings of the clock: acquired 20, 36, released 20, acquired 20, released 20.
    check(
        "lock_hold_times.mm",
        program,
        &["acquired 20 2", "acquired 36 1", "contended 20 1", "nanoseconds 20 30"],
    );
}

#[test]
fn addresses_of_64_bits() {
    let program = r#"(module (memory i64 1 1 shared)
        (func $try (param i64) (result i32)
            (i32.atomic.rmw.cmpxchg offset=4 (local.get 0) (i32.const 0) (i32.const 1)))
        (func $copy (param $from i64) (param $to i64) (i32.store8 (local.get $to) (i32.load8_u (local.get $from))))
        (func (export "run")
            (i32.store8 (i64.const 1024) (i32.const 97))
            (call $copy (i64.const 1024) (i64.const 2000))
            (drop (call $try (i64.const 16)))
            (i32.atomic.store (i64.const 20) (i32.const 0))
            (drop (i32.load offset=8 (i64.const 1000)))))"#;
    check(
        "null_pages.mm",
        program,
        &["times wasm:opcode:i32.atomic.store:before 2 1", "times wasm:opcode:i32.load:before 2 1"],
    );
    check("lock_hold_times.mm", program, &["acquired 20 1", "nanoseconds 20 10"]);
    let copied = program.replace("(i32.store8 (i64.const 1024) (i32.const 97))", "");
    check("taint_byte.mm", &copied, &["copies 2000 1", "reads wasm:opcode:i32.load8_u:before 1 1"]);
}

#[test]
fn arithmetic() {
    let program = r#"(module
        (func $all (param i32 i32) (result i32)
            (i32.add (i32.add (local.get 0) (local.get 1))
                (i32.add (i32.sub (local.get 0) (local.get 1)) (i32.mul (local.get 0) (local.get 1)))))
        (func (export "run")
            (drop (call $all (i32.const 2) (i32.const 3)))
            (drop (call $all (i32.const 65536) (i32.const -65536)))
            (drop (call $all (i32.const 0x7fffffff) (i32.const 1)))
            (drop (i32.div_s (i32.const 1) (i32.const 0)))))"#;
    // 65536 * -65536; 0x7fffffff + 1, the sum of 0x7ffffffe and 0x7fffffff, and the sum of these
    // two results, -0x80000000 and -3.
    check(
        "integer_overflow.mm",
        program,
        &[
            "overflows wasm:opcode:i32.add:before 0 1",
            "overflows wasm:opcode:i32.mul:before 0 1",
            "overflows wasm:opcode:i32.add:before 0 1",
            "overflows wasm:opcode:i32.add:before 0 1",
        ],
    );
    // The program ends by it.
    check("division_traps.mm", program, &["times wasm:opcode:i32.div_s:before 1 1"]);
    let program = r#"(module (func $divide (param f64 f64) (result f64) (f64.div (local.get 0) (local.get 1)))
        (func (export "run")
            (drop (call $divide (f64.const 1) (f64.const 0))) (drop (call $divide (f64.const 0) (f64.const 0)))
            (drop (call $divide (f64.const nan) (f64.const 1)))))"#;
    check("nan_watch.mm", program, &["times wasm:opcode:f64.div:after 0 1"]);
}

#[test]
fn a_byte_of_the_input() {
    let program = r#"(module (memory 1) (data (i32.const 1020) "abcdefgh")
        (func $copy (param $from i32) (param $to i32) (i32.store8 (local.get $to) (i32.load8_u (local.get $from))))
        (func (export "run")
            ;; The byte, one that is not, a copy of the copy, and the end of the first copy.
            (call $copy (i32.const 1024) (i32.const 2000))
            (call $copy (i32.const 1025) (i32.const 2001))
            (call $copy (i32.const 2000) (i32.const 3000))
            (i32.store8 (i32.const 2000) (i32.const 1))
            (call $copy (i32.const 2000) (i32.const 4000))))"#;
    check(
        "taint_byte.mm",
        program,
        &["copies 2000 1", "copies 3000 1", "reads wasm:opcode:i32.load8_u:before 0 2"],
    );
}

/// The monitors of the paper's table 2 have no more lines than stated there.
#[test]
fn monitors_of_the_paper_are_short() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    for (script, most) in
        [("decisions.mm", 25), ("categories.mm", 4), ("hotness.mm", 4), ("cache_sim.mm", 13)]
    {
        let text = std::fs::read_to_string(folder.join(script)).unwrap();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let lines = text.lines().filter(is_code).count();
        assert!(lines <= most, "{script}: {lines} lines");
    }
}
