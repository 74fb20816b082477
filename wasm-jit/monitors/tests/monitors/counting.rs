//! Monitors that count instructions.

use wasm_jit::{Engine, Module};

use super::{LOOP, Observed, integers, texts};

#[test]
fn icount_is_the_number_of_instructions_by_function() {
    let observed = Observed::by(LOOP, "icount");
    observed.call("run", 10).unwrap();
    let report = observed.report("icount");
    // The loop: loop, local.get, call, drop, local.get, i32.const, i32.sub, local.tee, br_if; then
    // twice end. The callee: three instructions and end.
    assert_eq!(report.get("instructions"), Some(9 * 10 + 2 + 4 * 10));
    assert_eq!(integers(&report, "functions", "instructions"), [92, 40]);
    assert_eq!(texts(&report, "functions", "function"), ["run", "leaf"]);
}

#[test]
fn hotness_ranks_paths_and_lists_the_module() {
    let observed = Observed::by(LOOP, "hotness");
    observed.call("run", 10).unwrap();
    let report = observed.report("hotness");
    assert_eq!(report.get("instructions"), Some(132));
    assert_eq!(integers(&report, "paths", "executed"), [90, 40, 2]);
    assert_eq!(integers(&report, "paths", "times"), [10, 10, 1]);
    assert_eq!(integers(&report, "paths", "length"), [9, 4, 2]);
    assert_eq!(texts(&report, "paths", "begins with"), ["loop ;; label = @1", "local.get 0", "end"]);
    assert_eq!(integers(&report, "by_instruction", "times").iter().sum::<u64>(), 132);
    let (name, listing) = &report.files()[0];
    assert_eq!(name, "listing.wat");
    let listing = String::from_utf8(listing.clone()).unwrap();
    assert!(
        listing.lines().any(|line| line.trim_start().starts_with("10 ") && line.ends_with("i32.mul")),
        "{listing}"
    );
    assert!(
        listing.lines().any(|line| line.trim_start().starts_with("0 ") && line.ends_with("drop")),
        "{listing}"
    );
}

/// The machine code is listed with the counts of its instructions. It is the code without probes,
/// although they are on.
#[test]
fn hotness_lists_machine_code() {
    let observed = Observed::by(LOOP, "hotness");
    observed.call("run", 10).unwrap();
    let report = observed.report("hotness");
    let (name, listing) = &report.files()[1];
    assert_eq!(name, "listing.asm");
    let listing = String::from_utf8(listing.clone()).unwrap();
    let lines: Vec<&str> = listing.lines().collect();
    let multiplied = lines.iter().position(|line| line.ends_with("i32.mul")).unwrap();
    for line in &lines[multiplied..multiplied + 2] {
        assert!(line.trim_start().starts_with("10 "), "{listing}");
    }
    assert!(lines[multiplied + 1].contains("lea "), "{listing}");
    assert!(!listing.contains("unused"), "only functions that were executed: {listing}");
    // Without the figures, it is what the module listed before.
    let mut plain = Vec::new();
    let module = Module::new(&Engine::default(), LOOP).unwrap();
    module.write_objdump(|_, name| name != Some("unused"), &mut plain).unwrap();
    let without = |line: &&str| line.get(16..).unwrap_or("").to_owned() + "\n";
    assert_eq!(lines.iter().map(without).collect::<String>(), String::from_utf8(plain).unwrap());
    for line in lines.iter().filter(|line| line.trim_start().starts_with("(") || line.contains("push rbp")) {
        assert!(line.starts_with("                "), "no instruction: {line}");
    }
}

#[test]
fn functions_are_chosen_by_name() {
    for glob in ["leaf", "l*f", "0"] {
        let observed = Observed::by(LOOP, &format!("icount{{function={glob}}}"));
        observed.call("run", 10).unwrap();
        assert_eq!(observed.report("icount").get("instructions"), Some(40), "{glob}");
    }
}

#[test]
fn what_a_trap_has_not_executed_is_not_counted() {
    let text = "(module (func (export \"run\") (param i32)
        (drop (i32.div_u (i32.const 1) (local.get 0)))))";
    let observed = Observed::by(text, "icount");
    observed.call("run", 0).unwrap_err();
    assert_eq!(observed.report("icount").get("instructions"), Some(3));
}
