//! Frame variables: at the exit of a call, a rule finds the values that rules have set at its
//! entry, whatever was called in between, and however those calls ended.

use std::collections::BTreeMap;

use tests::Compiler::{Clang, Gcc};
use tests::compile;

use super::scripted;

/// The functions return their first argument. `is_set` is at exits by exceptions as well, which
/// have no result.
const SCRIPT: &str = "
    frame var tag: i64;
    frame var is_set: bool;
    frame var initial: i64 = -7;
    native:func:entry(arg0: i64, arg1: i32) {
        report var begun: u64;
        begun++;
        if (initial != -7 || is_set || tag != 0) { wrong++; }
        tag = arg0;
        is_set = true;
    }
    native:func:entry(arg0: i64, arg1: i32) { initial = arg0; }
    native:func:exit(res0: i64, arg1: i32) {
        report var returned: u64;
        returned++;
        if (tag != res0 || initial != res0) { wrong++; }
    }
    native:func:exit(arg0: i64, arg1: i32) / !is_set / { wrong++; }
    report var wrong: u64;";

#[test]
fn each_call_has_its_own_variables() {
    for (compiler, flags) in
        [(Gcc, ["-g", "-O0"]), (Gcc, ["-g", "-O2"]), (Clang, ["-g", "-O0"]), (Clang, ["-g", "-O2"])]
    {
        let binary = compile("fixtures/frames.cpp", &flags, compiler);
        let found = scripted(SCRIPT, &binary, &[]);
        let what = format!("{compiler:?} {flags:?}: {:#?}", found.notes());
        assert_eq!(found.run.stderr, "", "{what}");
        let text = String::from_utf8(found.run.stdout.clone()).unwrap();
        let line = |line: &str| {
            let (name, calls) = line.split_once(' ').unwrap();
            (name.to_owned(), calls.parse().unwrap())
        };
        let expected: BTreeMap<String, u64> = text.lines().map(line).collect();
        assert_eq!(found.reports[0]["values"]["wrong"], 0, "{what}");
        let mut returned = found.by_function("returned");
        // gcc places an exit of it where the function is not known before the first execution, and
        // the program may have ended until then.
        let catching = returned.entry("catching".to_owned()).or_default();
        assert!(*catching <= expected["catching"], "{what}: {catching}");
        *catching = expected["catching"];
        assert_eq!(returned, expected, "{what}");
        let begun = found.by_function("begun");
        assert!(begun["leaving"] > 0 && begun["throwing"] > 0, "{what}: {begun:?}");
        for (name, calls) in expected {
            assert_eq!(begun[&name], calls, "{what}: {name}");
        }
    }
}

/// The memory of ended calls is reused: the variables take little memory, however many calls there
/// are, and however they end.
#[test]
fn variables_of_ended_calls_take_no_memory() {
    let script = |count: usize, rules: &str| {
        let values = (0..count).map(|number| format!("frame var v{number}: u64;")).collect::<String>();
        format!("{values} report var n: u64; {rules}")
    };
    // 32 kB for each of 60,000 calls would be 2 GB.
    let binary = compile("fixtures/scripted.c", &["-O2"], Gcc);
    let rules = "native:func:entry { v0 = ticks; } native:func:exit / v0 != 0 / { n++; }";
    let found = scripted(&script(4000, rules), &binary, &["many"]);
    assert_eq!((found.run.stderr.as_str(), found.notes()), ("", vec![]));
    assert_eq!(found.reports[0]["values"]["n"], 60_000);
    // These calls do not return: 256 kB for each of more than 6000 would be 1.5 GB.
    let binary = compile("fixtures/frames.cpp", &["-O2"], Clang);
    let rules = "native:func:entry / fname == \"leaving\" || fname == \"throwing\" / { v0 = 1; n++; }";
    let found = scripted(&script(32_000, rules), &binary, &[]);
    assert_eq!((found.run.stderr.as_str(), found.notes()), ("", vec![]));
    assert!(found.reports[0]["values"]["n"].as_u64().unwrap() > 6000);
}
