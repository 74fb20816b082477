//! The `end` of functions, also of those that consist of nothing else.

use super::{Observed, integers, texts};

/// Three empty functions, one of them with locals, that are called in different ways.
const EMPTY: &str = "(module
    (table funcref (elem $by_table))
    (func $empty)
    (func $with_locals (param i32) (local i64 f32))
    (func $by_table)
    (func $never)
    (func $tail (return_call $empty))
    (func (export \"run\") (param i32)
        (loop
            (call $empty)
            (call $with_locals (i32.const 1))
            (call_indirect (i32.const 0))
            (call $tail)
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";

/// Instructions of an iteration, and of a run: the loop has 12 from `loop` to `br_if`, and after it
/// are the ends of the loop and of the function.
const EACH: u64 = 12 + 2 + 1 + 1 + 1;

#[test]
fn ends_of_empty_functions_are_counted() {
    let observed = Observed::by(EMPTY, "icount,hotness,opcodes,imix");
    observed.call("run", 10).unwrap();
    let report = observed.report("icount");
    assert_eq!(report.get("instructions"), Some(10 * EACH + 2));
    let names = texts(&report, "functions", "function");
    let counts: Vec<_> = names.into_iter().zip(integers(&report, "functions", "instructions")).collect();
    let expected = [("run", 122), ("empty", 20), ("with_locals", 10), ("by_table", 10), ("tail", 10)];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
    let report = observed.report("opcodes");
    let opcodes = texts(&report, "by_opcode", "opcode");
    let end = opcodes.iter().position(|opcode| opcode == "end").unwrap();
    assert_eq!(integers(&report, "by_opcode", "times")[end], 10 * 4 + 2, "{opcodes:?}");
    assert!(!opcodes.iter().any(|opcode| opcode == "unknown" || opcode.starts_with('(')), "{opcodes:?}");
    let report = observed.report("imix");
    assert_eq!(report.get("instructions"), Some(10 * EACH + 2));
    let classes = texts(&report, "by_class", "class");
    let block = classes.iter().position(|class| class == "block").unwrap();
    assert_eq!(integers(&report, "by_class", "times")[block], 10 * 5 + 2);
}

#[test]
fn ends_of_functions_are_named() {
    let observed = Observed::by(EMPTY, "hotness");
    observed.call("run", 10).unwrap();
    let report = observed.report("hotness");
    let instructions = texts(&report, "by_instruction", "instruction");
    let functions = texts(&report, "by_instruction", "function");
    let ends = instructions.iter().zip(functions).filter(|(text, _)| *text == "end");
    let mut ends: Vec<String> = ends.map(|(_, function)| function).collect();
    ends.sort();
    assert_eq!(ends, ["by_table", "empty", "run", "run", "with_locals"]);
    assert_eq!(texts(&report, "paths", "begins with").len(), integers(&report, "paths", "times").len());
}

/// The line of a function whose body is on it has the figure of its `end`.
#[test]
fn listings_have_figures_of_empty_functions() {
    let observed = Observed::by(EMPTY, "hotness,coverage");
    observed.call("run", 10).unwrap();
    for (monitor, empty, never) in [("hotness", "20", "0"), ("coverage", "1", "0")] {
        let report = observed.report(monitor);
        let (_, listing) = report.files().iter().find(|(name, _)| name == "listing.wat").unwrap();
        let listing = String::from_utf8(listing.clone()).unwrap();
        let figures = |name: &str| {
            let from = listing.lines().skip_while(|line| !line.contains(&format!("(func ${name} ")));
            let body = from.enumerate().take_while(|(at, line)| *at == 0 || !line.contains("(func "));
            let figure = |line: &str| line.get(..16).unwrap_or("").trim().to_owned();
            body.map(|(_, line)| figure(line)).filter(|figure| !figure.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(figures("empty"), [empty], "{listing}");
        assert_eq!(figures("never"), [never], "{listing}");
        let with_locals = if monitor == "hotness" { "10" } else { "1" };
        assert_eq!(figures("with_locals"), [with_locals], "{listing}");
    }
}

#[test]
fn ends_of_empty_functions_are_covered() {
    let observed = Observed::by(EMPTY, "coverage");
    observed.call("run", 1).unwrap();
    let report = observed.report("coverage");
    let names = texts(&report, "by_function", "function");
    let all = integers(&report, "by_function", "instructions");
    let executed = integers(&report, "by_function", "executed");
    let of = |name: &str| {
        let at = names.iter().position(|known| known == name).unwrap();
        (all[at], executed[at])
    };
    for name in ["empty", "with_locals", "by_table"] {
        assert_eq!(of(name), (1, 1), "{name}");
    }
    assert_eq!(of("never"), (1, 0));
    // A tail call never comes to the end.
    assert_eq!(of("tail"), (1, 1));
    assert_eq!(report.get("instructions_covered"), Some(EACH - 1 + 2));
}
