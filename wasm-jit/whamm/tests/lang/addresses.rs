//! Addresses: in 32-bit and 64-bit memories, in vector accesses, and at the limits; and the
//! instructions on vectors, references and wide integers.

use wasm_jit::{Engine, Module};
use wasm_jit_whamm::lang::{self, NarrowRule, Script, WideBound};

use super::engine::check_program;

/// A memory of each kind, with the same accesses to both. The last one traps.
const MEMORIES: &str = r#"(module (memory $narrow 1) (memory $wide i64 1)
    (func (export "run")
        (i32.store $narrow offset=4 (i32.const 8) (i32.const 1))
        (i32.store $wide offset=4 (i64.const 16) (i32.const 2))
        (drop (i32.load $wide (i64.const 20)))
        (drop (memory.grow $narrow (i32.const 0)))
        (drop (memory.grow $wide (i64.const 1)))
        (drop (i32.load $narrow offset=0x7fffffff (i32.const 0x80000010)))))"#;

#[test]
fn rules_are_for_memories_with_the_addresses_that_they_ask_for() {
    check_program(
        "report var narrow: u32; report var both: u64; report var wide: u64; report var n: u32;
        wasm:opcode:*load*|*store*:before / offset < 100 / { narrow = narrow + effective_addr; n++; }
        wasm:opcode:*load*|*store*(effective_addr: u64):before / offset < 100 / { both = both + effective_addr; n = n + 10; }
        wasm:opcode:*load(arg0: u64):before { wide = wide + addr + effective_addr; n = n + 100; }",
        MEMORIES,
        &["narrow 12", "both 52", "wide 40", "n 131"],
    );
    check_program(
        "report var pages: i64; report var narrow: i32; report var size: u64;
        wasm:opcode:memory.grow(res0: i64):after { pages = pages + res0; }
        wasm:opcode:memory.grow(arg0: u64):before { size = size + arg0; }
        wasm:opcode:memory.grow:after { narrow = narrow + res0; }",
        MEMORIES,
        &["pages 1", "narrow 1", "size 1"],
    );
}

#[test]
fn addresses_do_not_wrap() {
    check_program(
        "report var narrow: u32; report var wide: u64;
        wasm:opcode:i32.load:before / offset > 100 && effective_addr > 1024 / { narrow = effective_addr; }
        wasm:opcode:i32.load(effective_addr: u64):before / offset > 100 / { wide = effective_addr; }",
        MEMORIES,
        &["narrow 4294967295", "wide 4294967311"],
    );
}

/// Rules that are only for 32-bit memories are named.
#[test]
fn narrow_rules_are_known() {
    let script = "var a: u64; report var n: u64; wasm:opcode:*load*:before { n++; }
        wasm:opcode:*load*:before / addr > 1000 / { n++; }
        wasm:opcode:*store*(addr: u64):before { a = addr; }
        wasm:opcode:memory.grow:before { a = arg0 as u64; }";
    let script = Script::new("test.mm", script.as_bytes(), &[]).unwrap();
    let engine = Engine::default();
    let of = |program: &str| script.narrow_rules(&Module::new(&engine, program).unwrap()).to_vec();
    let narrow = |rule: &str, bound: &str, is_for_both| NarrowRule {
        rule: rule.to_owned(),
        bound: WideBound { bound: bound.to_owned(), is_for_both },
    };
    let expected = [
        narrow("wasm:opcode:*load*:before (line 2)", "addr: u64", true),
        narrow("wasm:opcode:memory.grow:before (line 4)", "arg0: u64", false),
    ];
    assert_eq!(of(MEMORIES), expected);
    assert_eq!(of("(module (import \"m\" \"m\" (memory i64 1)))"), expected);
    assert_eq!(of("(module (memory 1))"), []);
}

/// A rule with the bound that a message names is accepted.
#[test]
fn bounds_for_addresses_of_64_bits_exist() {
    for (rule, value, bound) in [
        ("memory.grow:before", "arg0", "arg0: u64"),
        ("memory.grow:after", "res0", "res0: i64"),
        ("memory.size:after", "res0", "res0: u64"),
        ("memory.fill:before", "arg2", "arg2: u64"),
        ("memory.copy:before", "arg1", "arg1: u64"),
        ("i32.load:before", "effective_addr", "effective_addr: u64"),
    ] {
        let script =
            |rule: &str| format!("report var x: u64; wasm:opcode:{rule} / ({value} as u64) > 1 / {{ x++; }}");
        let narrow = lang::narrow_rules("test.mm", script(rule).as_bytes(), &[]).unwrap();
        assert_eq!(narrow.len(), 1, "{rule}");
        assert_eq!(narrow[0].bound.bound, bound);
        let wide = script(&rule.replace(':', &format!("({bound}):")));
        let found = lang::narrow_rules("test.mm", wide.as_bytes(), &[]);
        assert_eq!(found.unwrap_or_else(|error| panic!("{error}")), []);
    }
}

/// Nine instructions from the proposals, and others.
const NEW: &str = r#"(module (memory 1) (type $pair (struct (field i32))) (type $list (array i64))
    (func (export "run")
        (v128.store offset=16 (i32.const 32) (i32x4.add (v128.load (i32.const 64)) (v128.const i64x2 1 2)))
        (v128.store8_lane 3 (i32.const 7) (v128.load32_zero (i32.const 80)))
        (drop (i32x4.extract_lane 1 (i64x2.splat (i64.const 5))))
        (drop (struct.get $pair 0 (struct.new $pair (i32.const 3))))
        (drop (array.get $list (array.new $list (i64.const 1) (i32.const 2)) (i32.const 1)))
        (drop (ref.cast (ref i31) (ref.i31 (i32.const 4))))
        (i64.add128 (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)) drop drop))"#;

#[test]
fn vectors_references_and_wide_integers_are_instructions() {
    check_program(
        "report var all: u64; report var named: u64; var by: map<str, u64>;
        wasm:opcode:*:before { all++; }
        wasm:opcode:*:before { named++; by[opname]++; }",
        NEW,
        &["all 36", "named 36"],
    );
    check_program(
        "report var of: map<(str, str), u32>;
        wasm:opcode:*load*|*store*:before { of[(opname, category_name)] = effective_addr * 100 + data_size; }",
        NEW,
        &[
            "of (v128.load, simd) 6416",
            "of (v128.store, simd) 4816",
            "of (v128.load32_zero, simd) 8004",
            "of (v128.store8_lane, simd) 701",
        ],
    );
    check_program(
        "report var sum: i64; report var gc: u32; report var lane: i32;
        wasm:opcode:array.get:before { sum = sum + arg0 as i64; }
        wasm:opcode:array.get(res0: i64):after { sum = sum + res0 * 10; }
        wasm:opcode:i64.add128:before { sum = sum + arg0 * 100 + arg3 * 1000; }
        wasm:opcode:ref.i31|i64x2.splat:before / category_name == \"gc\" / { gc = gc + imm_count(); }
        fn imm_count() -> u32 { return 7; }
        wasm:opcode:i32x4.extract_lane:after { lane = lane + res0 + 1; }",
        NEW,
        &["sum 1411", "gc 7", "lane 1"],
    );
}

#[test]
fn what_has_no_type_in_scripts_is_refused() {
    for rule in
        ["i32x4.add:before { n = arg0; }", "ref.cast:after { n = res0; }", "array.get:before { n = arg1; }"]
    {
        let script = format!("var n: u32; wasm:opcode:{rule}");
        let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err().to_string();
        assert!(error.contains("it is a vector or a reference, which scripts do not have"), "{error}");
    }
}
