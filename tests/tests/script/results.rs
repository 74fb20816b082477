//! Function results: the values that a script gets are compared with those that the program has
//! noted, for compilers and optimizations that keep results in different places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use tests::Compiler::{Clang, Gcc};
use tests::{Compiler, compile};

use super::arguments::{TYPES, Values, of_table, passed};
use super::scripted;

/// A script that hashes and sums all results.
fn script() -> String {
    let mut script = String::new();
    for (ty, _) in TYPES {
        let step = if ty == "f64" { "* 0.5" } else { "* 31" };
        let _ = write!(
            script,
            "report var results_{ty}: map<str, ({ty}, {ty}, u64)>;
            native:func:exit(res0: {ty}) {{
                var seen: ({ty}, {ty}, u64) = results_{ty}[fname];
                results_{ty}[fname] = (seen.0 {step} + res0, seen.1 + res0, seen.2 + 1);
            }}\n"
        );
    }
    script
}

/// The functions whose results are not known at some exits. All others must be those that the
/// program has noted, and for these there must be a note with the exact number of events.
fn incomplete(binary: &Path, what: &str) -> BTreeSet<String> {
    let found = scripted(&script(), binary, &[]);
    assert_eq!(found.run.stderr, "", "{what}");
    let tables = TYPES.map(|(ty, kinds)| (kinds, of_table(&found.reports[0], &format!("results_{ty}"), ty)));
    let mut notes: BTreeMap<String, u64> = BTreeMap::new();
    for note in found.notes() {
        let (events, rest) = note.split_once(" events of ").expect(note);
        let (function, rest) = rest.split_once(" were not given to rules that ask for `res0`: ").expect(note);
        let reasons = [
            "the code after the probe does not show where it is",
            "the function was inlined there",
            "the compiler does not keep it until the probe",
        ];
        assert!(rest.split("; ").all(|reason| reasons.contains(&reason)), "{what}: {note}");
        notes.insert(function.to_owned(), events.parse().unwrap());
    }
    let mut incomplete = BTreeSet::new();
    for ((function, _), kind, got) in passed(&found) {
        let mut missing = BTreeSet::new();
        for (kinds, seen) in &tables {
            let seen = seen.get(&function).copied();
            let what = format!("{what}: {function}: {seen:?} {got:?}");
            if !kinds.contains(kind) {
                assert_eq!(seen, None, "{what}");
                continue;
            }
            let calls = seen.map_or(0, Values::calls);
            missing.insert(got.calls() - calls);
            assert!(calls < got.calls() || seen.is_some_and(|seen| seen.is(got)), "{what}");
        }
        assert_eq!(missing.len(), 1, "{what}: {function}: each type has the same calls");
        let missing = missing.pop_first().unwrap();
        let noted = notes.remove(&function).unwrap_or(0);
        assert_eq!(noted, missing, "{what}: {function}");
        if missing > 0 {
            incomplete.insert(function);
        }
    }
    // It does not return where it is inlined, and its caller does not note it.
    if notes.remove("small").is_some() {
        incomplete.insert("small".to_owned());
    }
    assert_eq!(notes, BTreeMap::new(), "{what}");
    let unbound = |name: &&String| name.starts_with("returns_");
    let mut bound = tables.iter().flat_map(|(_, seen)| seen.keys());
    assert_eq!(bound.find(unbound), None, "{what}: structures and the like are not bound");
    incomplete
}

#[test]
fn results_are_what_the_program_gets() {
    const INLINED: &[&str] = &["folded", "small"];
    let builds: [(Compiler, &[&str], &[&str]); 14] = [
        (Gcc, &["-g", "-O0"], &[]),
        (Gcc, &["-g", "-O0", "-gdwarf-4", "-fstack-protector-all"], &[]),
        (Gcc, &["-g", "-O1"], INLINED),
        (Gcc, &["-g", "-O2"], INLINED),
        (Gcc, &["-g", "-O2", "-fno-omit-frame-pointer", "-no-pie", "-fno-plt"], INLINED),
        (Gcc, &["-g", "-O2", "-fstack-protector-all"], INLINED),
        (Gcc, &["-g", "-O3"], INLINED),
        (Gcc, &["-g", "-Os"], INLINED),
        (Clang, &["-g", "-O0"], &[]),
        (Clang, &["-g", "-O1"], INLINED),
        (Clang, &["-g", "-O1", "-fstack-protector-all"], INLINED),
        (Clang, &["-g", "-O2"], INLINED),
        (Clang, &["-g", "-O2", "-fno-omit-frame-pointer", "-no-pie", "-fstack-protector-all"], INLINED),
        (Clang, &["-g", "-O3"], INLINED),
    ];
    let with_avx: (Compiler, &[&str], &[&str]) = (Gcc, &["-g", "-O2", "-mavx"], INLINED);
    let has_avx = is_x86_feature_detected!("avx");
    let mut unexpected = Vec::new();
    for (compiler, flags, allowed) in builds.into_iter().chain(has_avx.then_some(with_avx)) {
        let binary = compile("fixtures/results.c", flags, compiler);
        let what = format!("{compiler:?} {flags:?}");
        let incomplete = incomplete(&binary, &what);
        let others = incomplete.into_iter().filter(|name| !allowed.contains(&name.as_str()));
        unexpected.extend(others.map(|name| format!("{what}: {name}")));
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Methods, templates, overloaded functions, and calls that end by exceptions.
#[test]
fn results_in_cpp() {
    const SCRIPT: &str = "
        report var sums: map<str, i64>;
        native:func:exit(res0: i64) / object.contains(\"arguments\") / {
            sums[fname] = sums[fname] + res0;
        }";
    let range = 0..100_i64;
    let sum = |value: fn(i64) -> i64| range.clone().map(value).sum::<i64>();
    let expected = BTreeMap::from([
        ("Square::area", sum(|i| 49 * i + i / 2)),
        ("sum<long>", sum(|i| 6 * i)),
        ("over", sum(|i| i - 50 + if i % 3 == 0 { -1000 * i } else { 1000 * i })),
        ("level", sum(|i| if i % 2 == 0 { 100 } else { -3 } + i + 300)),
        ("by_value", sum(|_| 4)),
        ("throws", sum(|i| if i % 2 == 0 { i } else { 0 })),
    ]);
    for (compiler, flags) in
        [(Gcc, ["-g", "-O0"]), (Gcc, ["-g", "-O2"]), (Clang, ["-g", "-O0"]), (Clang, ["-g", "-O2"])]
    {
        let binary = compile("fixtures/arguments.cpp", &flags, compiler);
        let found = scripted(SCRIPT, &binary, &[]);
        let what = format!("{compiler:?} {flags:?}: {:#?}", found.notes());
        assert_eq!(found.run.stderr, "", "{what}");
        // clang does not report these exits; gcc, if it optimizes, places one where the function is
        // not known before the first execution, and the program may have ended until then.
        let note = " events of throws were not given to rules that ask for `res0`: the call has ended by an exception";
        let is_known = compiler == Gcc && flags.contains(&"-O0");
        assert!(!is_known || found.notes().iter().any(|found| found.ends_with(note)), "{what}");
        let rows = found.reports[0]["tables"][0]["rows"].as_array().unwrap();
        let found: BTreeMap<_, _> = rows
            .iter()
            .map(|row| (row[0].as_str().unwrap(), row[1].as_i64().unwrap()))
            .filter(|(name, _)| expected.contains_key(name))
            .collect();
        assert_eq!(found, expected, "{what}");
    }
}
