//! Features that the language shares with the upstream compiler. Each script is compared in all
//! targets.

use wasm_jit_whamm::lang;

use super::engine::{check_program, observe, rows_of};

/// Locals of all numeric types, which are set once; calls with two parameters.
const TYPES: &str = r#"(module
    (func $ii (param i32 i32)) (func $il (param i32 i64)) (func $li (param i64 i32)) (func $fd (param f32 f64))
    (func (export "run") (local i32 i64 f32 f64)
        (local.set 0 (i32.const 5)) (local.set 1 (i64.const 7))
        (local.set 2 (f32.const 1.5)) (local.set 3 (f64.const 2.5))
        (call $ii (i32.const 1) (i32.const 2)) (call $il (i32.const 3) (i64.const 4))
        (call $li (i64.const 5) (i32.const 6)) (call $fd (f32.const 7) (f64.const 8))))"#;

#[test]
fn rules_with_type_parameters_stand_for_one_rule_for_each_type() {
    let set = "x wasm:opcode:local.set:before 4";
    check_program(
        "wasm:opcode:local.set<T: numeric>(arg0: T):before / arg0 > 0 / { report var x: T; x = arg0 + 1; }",
        TYPES,
        &[6.0, 8.0, 2.5, 3.5].map(|value| format!("{set} {value}")).each_ref().map(|row| &row[..]),
    );
    check_program(
        "wasm:opcode:local.set<T: int>(arg0: T):before { report var x: T; x = arg0 << 1; }",
        TYPES,
        &[format!("{set} 10"), format!("{set} 14")].each_ref().map(|row| &row[..]),
    );
    check_program(
        "wasm:opcode:local.set < T : float > (arg0: T) : before / arg0 > 1.75 / { report var x: T = 1.5; x = arg0; }",
        TYPES,
        &[format!("{set} 1.5"), format!("{set} 2.5")].each_ref().map(|row| &row[..]),
    );
    // Where both have the same type; where each has one; and where the other one is converted.
    let call = "x wasm:opcode:call:before 4";
    check_program(
        "wasm:opcode:call<T: numeric>(arg0: T, arg1: T):before { report var x: T; x = arg0 + arg1; }",
        TYPES,
        &[&format!("{call} 3")],
    );
    check_program(
        "report var sum: f64; wasm:opcode:call<T: numeric, U: numeric>(arg0: T, arg1: U):before {
            sum = sum + (arg0 as f64) * 10.0 + (arg1 as f64); }",
        TYPES,
        &["sum 216"],
    );
    check_program(
        "wasm:opcode:call<T: numeric>(arg0: T, arg1: i32):before { report var x: T; x = arg0 + (arg1 as T); }",
        TYPES,
        &[format!("{call} 3"), format!("{call} 7")].each_ref().map(|row| &row[..]),
    );
}

/// The rule in the report and in messages has the choice of types.
#[test]
fn the_report_names_the_types() {
    let script = "@once wasm:opcode:local.set<T: int>(arg0: T):before { report var x: T; x = arg0; }";
    let report = observe(script, &[], TYPES);
    let rules: Vec<_> = report.rules.iter().map(|rule| rule.rule.as_str()).collect();
    assert_eq!(
        rules,
        ["@once wasm:opcode:local.set:before (T = i32)", "@once wasm:opcode:local.set:before (T = i64)"]
    );
    let events = lang::info("wasm:opcode:local.set<T: int>(arg0: T):before").unwrap();
    let types: Vec<_> = events
        .iter()
        .flat_map(|event| event.bound.iter().find(|bound| bound.name == "arg0"))
        .map(|bound| bound.ty.as_str())
        .collect();
    assert_eq!(types, ["i32", "i64"]);
}

/// A native function may have an argument of each type: several choices would match.
#[test]
fn rules_for_native_functions_have_no_type_parameters() {
    let script = b"native:func:entry<T: int>(arg0: T) { report var n: u64; n++; }";
    let error = lang::Script::native("test.mm", script).unwrap_err().to_string();
    assert!(error.contains("rules for native functions have no type parameters"), "{error}");
}

/// The text of a rule is read once for each choice, so the sum is limited.
#[test]
fn choices_of_types_are_limited() {
    let body = "n++; ".repeat(40_000);
    let rule = format!("wasm:opcode:call<T: numeric, U: numeric>(arg0: T, arg1: U):before {{ {body} }}\n");
    let script = format!("var n: u32; {}", rule.repeat(6));
    let error = lang::compile("test.mm", script.as_bytes(), &[]).unwrap_err().to_string();
    assert!(error.contains("written once for each type"), "{error}");
}

/// Jumps to each of four targets and to the default one, twice with different indices.
const TABLE: &str = r#"(module
    (func $jump (param i32)
        (block $a (block $b (block $c (br_table $c $b $b $a $c (local.get 0))))))
    (func $only (param i32) (block (br_table 0 (local.get 0))))
    (func (export "run")
        (call $jump (i32.const 0)) (call $jump (i32.const 1)) (call $jump (i32.const 2)) (call $jump (i32.const 3))
        (call $jump (i32.const 4)) (call $jump (i32.const -1)) (call $only (i32.const 3))))"#;

#[test]
fn targets_of_a_br_table_have_indices() {
    check_program(
        "wasm:opcode:br_table:before / fid == 0 / {
            report var taken: map<u32, u32>; report var second: u32; report var beyond: u32;
            taken[targets[arg0]]++;
            second = targets[1];
            beyond = targets[100];
        }",
        TABLE,
        &[
            "taken wasm:opcode:br_table:before 0 0 3",
            "taken wasm:opcode:br_table:before 0 1 2",
            "taken wasm:opcode:br_table:before 0 2 1",
            "second wasm:opcode:br_table:before 0 1",
            "beyond wasm:opcode:br_table:before 0 0",
        ],
    );
    // A constant index is known before the program runs: there and in a predicate.
    check_program(
        "wasm:opcode:br_table:before / targets[1] == 0 / { report unshared var third: u32 = targets[2]; }",
        TABLE,
        &["third wasm:opcode:br_table:before 1 0"],
    );
}

/// Labels of more than six bits, and more targets than a name has characters.
#[test]
fn targets_may_be_many() {
    const COUNT: usize = 5000;
    let labels: String = (0..COUNT).map(|index| format!(" {}", index % 400)).collect();
    let blocks =
        format!("{} (br_table {labels} 399 (i32.const 4321)) {}", "(block ".repeat(400), ")".repeat(400));
    let program = format!("(module (func (export \"run\") {blocks}))");
    check_program(
        "report var taken: u32; report var last: u32;
        wasm:opcode:br_table:before { taken = targets[arg0]; last = targets[num_targets]; }",
        &program,
        &[&format!("taken {}", 4321 % 400), "last 399"],
    );
    let labels = " 0".repeat(1 << 18);
    let program = format!("(module (func (export \"run\") (block (br_table {labels} 0 (i32.const 0)))))");
    let script = lang::Script::new(
        "test.mm",
        b"wasm:opcode:br_table:before { report var x: u32; x = targets[0]; }",
        &[],
    );
    let engine = wasm_jit::Engine::default();
    let monitor = wasm_jit::Module::from_binary(&engine, script.unwrap().module()).unwrap();
    let monitor = wasm_jit_whamm::monitor_module::MonitorModule::new(monitor, Vec::new()).unwrap();
    let module = wasm_jit::Module::new(&engine, program).unwrap();
    let mut store = wasm_jit::Store::new(&engine, ());
    let attached = monitor.attach(&mut store, &mut wasm_jit::Linker::new(&engine), &module);
    let error = attached.map(drop).unwrap_err().to_string();
    assert_eq!(error, "a `br_table` of function 0 has 262144 targets, too many for `targets`");
}

/// As `fmod` in C: exact, with the sign of the dividend.
#[test]
fn remainders_of_floats() {
    let program = "(module (func (export \"run\") (nop)))";
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.5,
        -2.5,
        0.1,
        3.0,
        1e-300,
        5e-324,
        1.5e-323,
        7e-322,
        1e300,
        f64::MAX,
        f64::MIN,
        1e16,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        2.2250738585072014e-308,
        4_503_599_627_370_497.0,
    ];
    let mut wrong = String::new();
    for dividend in numbers {
        let mut script = String::new();
        // Infinities and NaN are quotients.
        let name = |number: f64| match number {
            number if number.is_nan() => "zero / zero".to_owned(),
            number if number.is_infinite() => format!("{} / zero", number.signum()),
            number => format!("{number:?}"),
        };
        script += &format!("var zero: f64 = 0.0; var dividend: f64 = {};", name(dividend));
        for (index, divisor) in numbers.iter().enumerate() {
            script += &format!("report var r{index}: f64 = dividend % ({});", name(*divisor));
            // The sign of zero and the bits of the result.
            script += &format!("report var s{index}: bool = 1.0 / r{index} < zero;");
        }
        let compiled =
            lang::Script::new("test.mm", script.as_bytes(), &[]).unwrap_or_else(|error| panic!("{error}"));
        super::engine::run(compiled.module(), &[], program, &mut String::new(), |store, attached| {
            let instance = attached.instance(&mut *store);
            let report = compiled.report(&mut *store, instance).unwrap();
            for (index, divisor) in numbers.iter().enumerate() {
                let lang::ReportedValue::Value(lang::Value::Float(found)) = report.variables[2 * index].value
                else {
                    panic!("{report:?}")
                };
                let expected = dividend % divisor;
                let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                if !is_same {
                    wrong += &format!("{dividend:?} % {divisor:?} is {expected:?}, not {found:?}\n");
                }
            }
        });
    }
    assert_eq!(wrong, "");
    // In 32 bits, and in all targets.
    check_program(
        "report var a: f32; report var b: f64; var x: f32 = 5.5; var y: f64 = -5.5;
        wasm:opcode:nop:before / y % 2.0 < 0.0 / { a = x % 4.0; b = y % 2.0; }",
        program,
        &["a 1.5", "b -1.5"],
    );
}

#[test]
fn opcodes_are_constants_of_any_integer_type() {
    let program = "(module (memory 1) (func (export \"run\") (nop)
        (memory.fill (i32.const 0) (i32.const 0) (i32.const 0))))";
    check_program(
        "report var all: u32; wasm:opcode:*:before { all = all + bytecode; }
        wasm:opcode:memory.fill:before { report var wide: u64; report var narrow: i16; wide = bytecode; narrow = bytecode; }
        wasm:opcode:memory.fill:before {
            report var equal: u32; var code: u16 = 0xfc0b; var n: u32 = 2; var seven: u8 = 7;
            if (bytecode == code && code == bytecode && bytecode + n == 0xfc0d && bytecode > 5) { equal++; }
            if ((bytecode & seven) == 3 && (-2 & seven) == 6 && (seven & -2) == 6 && (seven ^ -1) == 0xf8) { equal++; }
        }",
        program,
        // nop, three times i32.const, memory.fill and end.
        &[
            &format!("all {}", 1 + 3 * 0x41 + 0xfc0b + 0xb),
            &format!("wide wasm:opcode:memory.fill:before 0 {}", 0xfc0b),
            &format!("narrow wasm:opcode:memory.fill:before 0 {}", 0xfc0b_u16.cast_signed()),
            "equal wasm:opcode:memory.fill:before 0 2",
        ],
    );
}

#[test]
fn growth_of_a_memory_may_fail() {
    let program = "(module (memory 1 2) (memory $wide i64 1 2) (func (export \"run\")
        (drop (memory.grow (i32.const 1))) (drop (memory.grow (i32.const 1)))
        (drop (memory.grow $wide (i64.const 2)))))";
    let event = "memory.grow:after 0";
    check_program(
        "wasm:opcode:memory.grow:after { report var x: bool; x = failed; }
        wasm:opcode:memory.grow(res0: i64):after { report var y: bool; y = failed; }",
        program,
        &[
            &format!("x wasm:opcode:{event} false"),
            &format!("x wasm:opcode:{event} true"),
            &format!("y wasm:opcode:{event} true"),
        ],
    );
    let narrow = lang::narrow_rules("test.mm", b"wasm:opcode:memory.grow:after / failed / { }", &[]).unwrap();
    assert_eq!(narrow[0].bound.bound, "res0: i64");
}

/// In operations on bits, negative numbers are their bits in the unsigned type.
#[test]
fn negative_numbers_are_bits_of_unsigned_types() {
    check_program(
        "report var a: u8; report var b: u64; report var c: u16; report var d: u32; report var e: i8;
        wasm:begin { a = -1 << 2; b = -1 >> 2; c = -2 & 0xff; d = ~ -1; e = -1 >> 2; }",
        "(module (func (export \"run\")))",
        &["a 252", &format!("b {}", u64::MAX >> 2), "c 254", "d 0", "e -1"],
    );
}

/// Initial values of variables of a place may depend on earlier ones.
#[test]
fn initial_values_depend_on_earlier_ones() {
    check_program(
        "wasm:opcode:nop:before {
            report unshared var s: str = \"hello\"; report unshared var l: u32 = s.len();
            report unshared var starts: bool = s.starts_with(\"he\");
            report unshared var sum: u32 = l * 2 + fid; l++;
        }",
        "(module (func (export \"run\") (nop) (nop)))",
        &[
            "s wasm:opcode:nop:before 0 hello",
            "l wasm:opcode:nop:before 0 6",
            "starts wasm:opcode:nop:before 0 true",
            "sum wasm:opcode:nop:before 0 10",
            "s wasm:opcode:nop:before 0 hello",
            "l wasm:opcode:nop:before 0 6",
            "starts wasm:opcode:nop:before 0 true",
            "sum wasm:opcode:nop:before 0 10",
        ],
    );
}

/// Thousands of conditions, in the order of the text.
#[test]
fn chains_of_conditions_may_be_long() {
    let chain = |operator: &str, condition: &dyn Fn(u32) -> String| {
        (0..3000).map(condition).collect::<Vec<_>>().join(operator)
    };
    let any = chain(" || ", &|number| format!("fid == {number}"));
    let all = chain(" && ", &|number| format!("arg0 != {}", number + 10));
    let mixed = "fid == 9 || true && fid == 7 || count(1) == 1 && count(10) == 11";
    let script = format!(
        "report var calls: u32; fn count(by: u32) -> u32 {{ calls = calls + by; return calls; }}
        report var n: u32; wasm:opcode:drop:before / {any} / {{ n++; }}
        report var m: u32; wasm:opcode:drop(arg0: i32):before / {all} / {{ m++; }}
        report var k: u32; wasm:opcode:nop:before / {mixed} / {{ k++; }}"
    );
    let program = "(module (func (export \"run\") (nop) (drop (i32.const 5)) (drop (i32.const 2500))))";
    check_program(&script, program, &["calls 11", "n 2", "m 1", "k 1"]);
}

/// The instructions of blocks that are named are replaced with their contents.
#[test]
fn alt_replaces_blocks_that_are_named() {
    let program = "(module (func (export \"run\") (block (nop) (loop (nop) (nop))) (nop)))";
    let script =
        "report var n: u32; wasm:opcode:nop:before { n++; } wasm:opcode:loop|drop:alt { drop_args(); }";
    let printed = super::engine::rewritten(script, program).unwrap();
    assert_eq!(super::engine::rows(&printed), ["n     2"]);
    // A pattern for all instructions is not about blocks.
    let script = "report var n: u32; wasm:opcode:nop:before { n++; } wasm:opcode:l?op:alt { }";
    let error = super::engine::rewritten(script, program).unwrap_err().to_string();
    assert!(error.contains("this rule matches nothing"), "{error}");
}

/// The rows do not depend on how the engine evaluates a rule.
#[test]
fn references_to_functions_are_resolved() {
    let program = r#"(module (type $t (func)) (table 3 funcref) (elem (i32.const 0) $a $b)
        (func $a) (func $b)
        (func (export "run") (call_indirect (type $t) (i32.const 1)) (call_indirect (type $t) (i32.const 0))))"#;
    let script = "wasm:opcode:*call_indirect:before {
        report var one: i32; report var other: i32; report var index: i32; report var none: i32;
        var f: funcref = target_funcref; var empty: funcref;
        one = resolve_funcref(f, table_entry_idx); other = resolved_fid; index = table_entry_idx;
        none = resolve_funcref(empty, table_entry_idx);
    }";
    let script =
        lang::Script::new("test.mm", script.as_bytes(), &[]).unwrap_or_else(|error| panic!("{error}"));
    super::engine::run(script.module(), &[], program, &mut String::new(), |store, attached| {
        let instance = attached.instance(&mut *store);
        let rows = rows_of(&script.report(&mut *store, instance).unwrap());
        let values: Vec<_> = rows.iter().map(|row| row.split(' ').next_back().unwrap()).collect();
        assert_eq!(values, ["1", "1", "1", "-1", "0", "0", "0", "-1"]);
    });
}
