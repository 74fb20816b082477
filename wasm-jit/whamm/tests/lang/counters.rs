//! Counters in place of map entries: the reports of all targets are the same, and what a script
//! with lookups at each event would have.

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::Script;
use wasm_jit_whamm::monitor_module::MonitorModule;

use super::engine::{check_program, observe, rows_of};

/// `first` is called after `second`, and `never` is not called.
const PROGRAM: &str = r#"(module
    (func $first (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
    (func $never (nop) (unreachable))
    (func $second (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))
    (func (export "run") (local $i i32)
        (loop $next
            (drop (call $second (local.get $i)))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 300))))
        (drop (call $first (i32.const 0))) (drop (call $first (i32.const 1)))))"#;

/// The numbers of places where a function is called or the engine counts, and where it counts.
fn places(script: &str) -> (usize, usize) {
    places_with(script, &[])
}

fn places_with(script: &str, libraries: &[(&str, &str)]) -> (usize, usize) {
    let engine = Engine::default();
    let texts: Vec<_> = libraries.iter().map(|(name, text)| (*name, wat::parse_str(text).unwrap())).collect();
    let bytes: Vec<_> = texts.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let script = Script::new("test.mm", script.as_bytes(), &bytes).unwrap();
    let monitor = Module::from_binary(&engine, script.module()).unwrap();
    let libraries =
        bytes.iter().map(|(name, bytes)| ((*name).to_owned(), Module::from_binary(&engine, bytes).unwrap()));
    let monitor = MonitorModule::new(monitor, libraries.collect()).unwrap();
    let program = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, ());
    let attached = monitor.attach(&mut store, &mut Linker::new(&engine), &program).unwrap();
    let instance = Instance::new(&mut store, &program, &[]).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    (attached.probes(), attached.counters())
}

/// A script for which the engine counts everywhere.
#[track_caller]
fn counted(script: &str, expected: &[&str]) {
    check_program(script, PROGRAM, expected);
    let (probes, counters) = places(script);
    assert!(probes > 0 && counters == probes, "{counters} of {probes}: {script}");
}

/// A script whose functions are called.
#[track_caller]
fn called(script: &str, expected: &[&str]) {
    check_program(script, PROGRAM, expected);
    assert_eq!(places(script).1, 0, "{script}");
}

#[test]
fn keys_that_are_known_come_in_the_order_of_locations() {
    counted(
        "report var calls: map<str, u64>; wasm:func:entry / fname != \"\" / { calls[fname]++; }",
        &["calls first 2", "calls second 300"],
    );
    // The same key at several locations, of several rules; tuples with literals.
    counted(
        "report var of: map<(str, bool), u32>;
        wasm:opcode:call:before { of[(target_fn_name, true)]++; }
        wasm:opcode:i32.mul|i32.add:before { of[(\"first\", true)]++; of[(opname, pc < 8)]--; }",
        &[
            "of (first, true) 604",
            "of (i32.add, true) 4294967294",
            "of (i32.mul, true) 4294966996",
            "of (second, true) 300",
            "of (i32.add, false) 4294966996",
        ],
    );
}

#[test]
fn amounts_are_those_of_the_language_in_the_type_of_the_value() {
    let of = |ty: &str, statement: &str| {
        format!("report var m: map<str, {ty}>; wasm:opcode:i32.mul:before {{ {statement} }}")
    };
    counted(&of("u8", "m[\"k\"]++;"), &["m k 44"]);
    counted(&of("i8", "m[\"k\"]--;"), &["m k -44"]);
    counted(&of("u16", "m[\"k\"] = m[\"k\"] + 1000;"), &["m k 37856"]);
    counted(&of("i16", "m[\"k\"] = 1000 + m[\"k\"];"), &["m k -27680"]);
    counted(&of("i32", "m[\"k\"] = m[\"k\"] - 0x70000000;"), &["m k -1073741824"]);
    counted(&of("u32", "m[\"k\"] = m[\"k\"] - 1;"), &["m k 4294966996"]);
    counted(&of("i64", "m[\"k\"] = m[\"k\"] - 5;"), &["m k -1500"]);
    counted(&of("u64", "m[\"k\"]--;"), &["m k 18446744073709551316"]);
    // The sum of two counters overflows: 132 and 228.
    counted(&of("u8", "m[\"k\"] = m[\"k\"] + 3; m[\"k\"] = m[\"k\"] + 11;"), &["m k 104"]);
    // Several amounts, one of them a constant of the location, and the value 0.
    counted(
        &of("u32", "m[opname]++; m[opname] = m[opname] + 2; m[opname] = m[opname] + fid;"),
        &["m i32.mul 1500"],
    );
    counted(&of("i32", "m[fname] = m[fname] + 0; m[opname]++; m[opname]--;"), &["m second 0", "m i32.mul 0"]);
    counted(&of("u8", "if (fid == 1) { m[\"never\"]++; } m[\"k\"] = m[\"k\"] + 64;"), &["m k 0"]);
}

#[test]
fn predicates_and_conditions_on_the_program_are_checked_at_each_event() {
    called(
        "report var m: map<str, u64>; wasm:opcode:i32.mul(arg1: i32):before / arg1 > 289 / { m[fname]++; }",
        &["m second 10"],
    );
    called(
        "report var m: map<(str, bool), u64>; wasm:opcode:i32.mul(arg1: i32):before {
            if (arg1 > 289) { m[(fname, true)]++; } else { m[(fname, false)]++; }
            var i: u32 = 0; while (i < 2) { m[(\"loop\", true)]++; i++; }
        }",
        &["m (second, true) 10", "m (second, false) 290", "m (loop, true) 600"],
    );
    // The engine counts decisions.
    counted(
        "report var m: map<(str, bool), u64>; wasm:opcode:br_if:before {
            if (taken) { m[(fname, true)]++; } else { m[(fname, false)]++; }
        }",
        &["m (, true) 299", "m (, false) 1"],
    );
}

/// Keys are in the order of events if they are looked up: `second` comes before `first`.
#[test]
fn maps_that_are_used_in_other_ways_are_looked_up_at_each_event() {
    let by_events = ["m second 300", "m first 2"];
    for (declared, statement, other) in [
        // Read by the rule itself, by another one, in a predicate, in a function, by a key.
        ("var x: u64;", "m[fname]++; x = m[fname];", ""),
        ("var x: u64;", "m[fname]++;", "wasm:opcode:br_if:before { x = m[\"first\"]; }"),
        ("", "m[fname]++;", "wasm:opcode:br_if:before / m[\"first\"] > 0 / { }"),
        ("fn read(k: str) -> u64 { return m[k]; } var x: u64;", "m[fname]++; x = read(fname);", ""),
        ("var of: map<u64, u64>;", "m[fname]++; of[m[fname]]++;", ""),
        // Changed in another way, also by a rule that is never executed.
        ("", "m[fname]++; if (fid == 77) { m[fname] = 5; }", ""),
        ("", "m[fname]++;", "wasm:opcode:br_on_null:before { m[\"x\"] = 5; }"),
        ("", "m[fname]++; m[fname] = m[\"other\"] + m[fname];", ""),
        // A key that is another one, and an amount that is not known.
        ("", "if (fid == 77) { m[\"first\"] = m[\"second\"] + 1; } m[fname]++;", ""),
        ("var one: u64 = 1;", "m[fname] = m[fname] + one;", ""),
        // In a function of the script, the key is an argument.
        ("fn count(k: str) { m[k]++; }", "count(fname);", ""),
    ] {
        let script = format!(
            "report var m: map<str, u64>; {declared}
            wasm:func:entry / fname == \"first\" || fname == \"second\" / {{ {statement} }} {other}"
        );
        called(&script, &by_events);
    }
    // Sums of floats depend on the order.
    called(
        "report var m: map<str, f32>; wasm:func:entry / fname != \"\" / { m[fname]++; }",
        &["m second 300", "m first 2"],
    );
    // A map for each location.
    called(
        "wasm:opcode:i32.mul:before { report var m: map<str, u64>; m[fname]++; }",
        &["m wasm:opcode:i32.mul:before 2 second 300"],
    );
}

/// A key whose computation fails, or has an effect, is computed at the event.
#[test]
fn keys_that_fail_or_have_effects_are_computed_at_each_event() {
    called("report var m: map<u32, u64>; wasm:opcode:i32.mul:before { m[6 / fid]++; }", &["m 3 300"]);
    let library = r#"(module (global $n (mut i32) (i32.const 0)) (func (export "next") (result i32)
        (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n)))"#;
    let script = "use lib; report var m: map<i32, u64>; report var last: i32; wasm:opcode:call:before {
            m[@static lib.next()]++; last = @static lib.next();
        } wasm:opcode:i32.mul:before { if (fid < 300) { m[lib.next() * 0]++; } }";
    let rows = rows_of(&observe(script, &[("lib", library)], PROGRAM));
    let entries: Vec<&str> = rows.iter().map(|row| row.rsplit("   ").next().unwrap()).collect();
    // One call for each location, although it is written twice.
    assert_eq!(entries, ["1 300", "0 300", "2 1", "3 1", "3"], "{rows:?}");
}

/// Additions under other keys, and assignments before the first event and after the last one.
#[test]
fn counters_are_added_to_what_is_in_the_map() {
    check_program(
        "report var m: map<str, u32>; report var sum: u32; report var missing: u32;
        wasm:begin { m[\"second\"] = 1000; m[\"begin\"]++; sum = m[\"second\"]; }
        wasm:func:entry / fname != \"\" / { m[fname]++; }
        wasm:opcode:br_if:before { m[taken ? \"taken\" : \"first\"]++; }
        wasm:end { sum = sum + m[\"second\"] + m[\"first\"]; m[\"first\"] = 0; missing = m[\"never\"]; }",
        PROGRAM,
        &["m second 1300", "m begin 1", "m taken 299", "m first 0", "sum 2303", "missing 0"],
    );
}

#[test]
fn selected_events_are_counted() {
    called(
        "report var m: map<str, u64>; @once wasm:opcode:i32.mul|i32.add:before { m[opname]++; }",
        &["m i32.add 2", "m i32.mul 1"],
    );
    let script = "report var m: map<str, u64>; report var n: u64;
        @sample(50%) wasm:opcode:i32.mul:before { m[fname]++; n++; }";
    let rows = rows_of(&observe(script, &[], PROGRAM));
    let counts: Vec<&str> = rows.iter().map(|row| row.rsplit(' ').next().unwrap()).collect();
    assert!(counts[0] == counts[1] && counts[0] != "0" && counts[0] != "300", "{rows:?}");
}

/// Keys are compared by their bits, as those of other maps.
#[test]
fn float_keys_are_compared_by_their_bits() {
    let program = r#"(module (func (export "run")
        (drop (f32.const nan:0x200001)) (drop (f32.const nan:0x200001)) (drop (f32.const nan))
        (drop (f32.const -0)) (drop (f32.const 0)) (drop (f32.const 1.5)) (drop (f32.const 1.5))))"#;
    let script = |more: &str| {
        format!("report var m: map<f32, u64>; wasm:opcode:f32.const:before {{ m[imm0]++; {more} }}")
    };
    let counts = |script: String| -> Vec<String> {
        let script = Script::new("test.mm", script.as_bytes(), &[]).unwrap();
        let mut found = None;
        super::engine::run(script.module(), &[], program, &mut String::new(), |store, attached| {
            let instance = attached.instance(&mut *store);
            found = Some(rows_of(&script.report(store, instance).unwrap()));
        });
        found.unwrap()
    };
    let expected = ["NaN 2", "NaN 1", "-0 1", "0 1", "1.5 2"].map(|row| format!("m    {row}"));
    assert_eq!(counts(script("")), expected);
    assert_eq!(counts(script("m[imm0] = m[imm0] * 1;")), expected);
}

/// The engine counts for rules that only add, while functions of other rules are called, unless
/// these use the variables otherwise.
#[test]
fn rules_that_only_add_count_beside_rules_that_are_called() {
    let both = |adding: &str, calling: &str| {
        let (predicate, calling) = calling.split_once('#').unwrap_or(("true", calling));
        let other = if calling.contains("other") { "n + 1" } else { "1" };
        format!(
            "report var n: u64; report var m: map<str, u64>; report var seen: map<i32, u32>; report var x: u64;
            fn other() -> u64 {{ return {other}; }}
            wasm:opcode:br_if:before {{ {adding} }}
            wasm:opcode:i32.mul:before / {predicate} / {{ seen[arg0]++; {calling} }}"
        )
    };
    let check = |adding: &str, calling: &str, are_counted: bool, expected: &[&str]| {
        let script = both(adding, calling);
        let reported = rows_of(&observe(&script, &[], PROGRAM));
        let rest: Vec<String> = reported
            .iter()
            .filter(|row| !row.starts_with("seen"))
            .map(|row| row.replace("  ", " "))
            .collect();
        let rest: Vec<String> =
            rest.iter().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rest, expected, "{script}");
        assert_eq!(reported.len() - rest.len(), 1, "{script}");
        // One `br_if` and one `i32.mul`.
        assert_eq!(places(&script), (2, usize::from(are_counted)), "{script}");
    };
    check("n++;", "", true, &["n 300", "x 0"]);
    check(
        "n++; m[opname]++; report unshared var own: u32; own = own + 2;",
        "",
        true,
        &["n 300", "m br_if 300", "x 0", "own wasm:opcode:br_if:before 3 21 600"],
    );
    check("var two: u64 = 2; n = two + n;", "", true, &["n 600", "x 0"]);
    // Additions by the called function commute with those that are counted.
    check("n++;", "n = n + 10; x = x - 1;", true, &["n 3300", "x 18446744073709551316"]);
    check("n++;", "n = n - (arg1 as u64);", true, &["n 18446744073709507066", "x 0"]);
    // It reads the number, or assigns to it.
    check("n++;", "x = x + n;", false, &["n 300", "x 44850"]);
    check("n++;", "x = n;", false, &["n 300", "x 299"]);
    check("n++;", "x = other();", false, &["n 300", "x 300"]);
    check("n++;", "if (n > 100) { x++; }", false, &["n 300", "x 199"]);
    check("n++;", "n = 5;", false, &["n 6", "x 0"]);
    check("n++;", "n = 2 * n + 1 - n;", false, &["n 600", "x 0"]);
    check("n++;", "n = 2 * n;", false, &["n 18446744073709551615", "x 0"]);
    check("n++; x = n;", "", false, &["n 300", "x 300"]);
    check("m[\"k\"]++;", "x = m[\"k\"];", false, &["n 0", "m k 300", "x 299"]);
    // A predicate reads it.
    check("n++;", "n > 100 # x++;", false, &["n 300", "x 199"]);
    // All rules only add, and one of them must be called.
    let script = "report var n: u64; report var big: u64; wasm:opcode:br_if:before { n++; }
        wasm:opcode:i32.mul(arg1: i32):before / arg1 > 250 / { big++; }";
    check_program(script, PROGRAM, &["n 300", "big 49"]);
    assert_eq!(places(script), (2, 1));
    // It reads the script's memory, possibly that of the number.
    let library = ("texts", r#"(module (memory (export "memory") 1))"#);
    let copies = |from: &str, to: &str| {
        format!(
            "use texts; report var n: u64; wasm:opcode:br_if:before {{ n++; }}
            wasm:opcode:i32.mul:before {{ memcpy({from}, 8, {to}, 0, 16); }}"
        )
    };
    assert_eq!(places_with(&copies("0", "memid(texts)"), &[library]), (2, 0));
    assert_eq!(places_with(&copies("memid(texts)", "memid(texts)"), &[library]), (2, 1));
}

/// Keys with effects are not computed twice, and are not equal.
#[test]
fn keys_with_effects_are_no_additions() {
    called(
        "report var m: map<u32, u64>; var i: u32;
        fn next() -> u32 { i++; return i; }
        wasm:opcode:br_if:before { m[1]++; }
        wasm:opcode:i32.mul(arg1: i32):before / arg1 == 3 / { m[next()] = m[next()] + 1; }",
        &["m 1 300", "m 2 4"],
    );
}

/// A rule may have any number of known keys; only some of them have counters.
#[test]
fn the_number_of_counters_of_a_rule_is_limited() {
    let additions: String = (0..2000).map(|key| format!("m[{key}]++;")).collect();
    let script = format!("report var m: map<u32, u64>; wasm:opcode:br_if:before {{ {additions} }}");
    let expected: Vec<String> = (16..2000).chain(0..16).map(|key| format!("m {key} 300")).collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    called(&script, &expected);
}
