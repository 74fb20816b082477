//! Function arguments: the values that a script gets are compared with those that the program has
//! noted, for compilers and optimizations that keep arguments in different places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::Compiler::{Clang, Gcc};
use tests::{Compiler, compile};

use super::{Scripted, scripted};

/// The number of argument positions in the fixture.
const POSITIONS: usize = 9;

/// What a script, or the program, reports about the values of an argument. The hash depends on the
/// order of the calls. Integers of all types are represented by 64 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Values {
    Integers { hash: u64, sum: u64, calls: u64 },
    Floats { hash: f64, sum: f64, calls: u64 },
}

impl Values {
    pub(super) fn calls(self) -> u64 {
        match self {
            Self::Integers { calls, .. } | Self::Floats { calls, .. } => calls,
        }
    }

    /// Whether they are the same. The parser of reports rounds floats differently in the last
    /// place.
    pub(super) fn is(self, other: Self) -> bool {
        let is_near = |one: f64, other: f64| (one - other).abs() <= 1e-14 * one.abs();
        match (self, other) {
            (
                Self::Floats { hash, sum, calls },
                Self::Floats { hash: other_hash, sum: other_sum, calls: other_calls },
            ) => is_near(hash, other_hash) && is_near(sum, other_sum) && calls == other_calls,
            _ => self == other,
        }
    }

    /// The values without the hash: exits are in another order than entries.
    fn sums(self) -> Self {
        match self {
            Self::Integers { sum, calls, .. } => Self::Integers { hash: 0, sum, calls },
            Self::Floats { sum, calls, .. } => Self::Floats { hash: 0.0, sum, calls },
        }
    }
}

/// By function and position.
type Arguments = BTreeMap<(String, usize), Values>;

/// The types by which a script asks for a value, with the kinds of the fixture that they match.
pub(super) const TYPES: [(&str, &str); 3] = [("i64", "ib"), ("u64", "ub"), ("f64", "f")];

/// A script that hashes and sums all arguments, at entries and at exits.
fn script() -> String {
    let mut script = String::new();
    for (ty, _) in TYPES {
        let step = if ty == "f64" { "* 0.5" } else { "* 31" };
        for (event, position) in
            ["entry", "exit"].into_iter().flat_map(|event| (0..POSITIONS).map(move |at| (event, at)))
        {
            let (map, arg) = (format!("{event}_{ty}_{position}"), format!("arg{position}"));
            let _ = write!(
                script,
                "report var {map}: map<str, ({ty}, {ty}, u64)>;
                native:func:{event}({arg}: {ty}) {{
                    var seen: ({ty}, {ty}, u64) = {map}[fname];
                    {map}[fname] = (seen.0 {step} + {arg}, seen.1 + {arg}, seen.2 + 1);
                }}\n"
            );
        }
    }
    script
}

/// What the script has seen of the arguments that it requests with one type.
fn seen(report: &Value, event: &str, ty: &str) -> Arguments {
    let of = |position: usize| {
        let table = of_table(report, &format!("{event}_{ty}_{position}"), ty);
        table.into_iter().map(move |(function, values)| ((function, position), values))
    };
    (0..POSITIONS).flat_map(of).collect()
}

/// What the script has seen, by function: a table with hashes, sums and numbers of calls.
pub(super) fn of_table(report: &Value, name: &str, ty: &str) -> BTreeMap<String, Values> {
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["name"] == *name).expect("there is a table");
    let values = |row: &Value| {
        let float = |column: usize| row[column].as_f64().unwrap();
        let integer = |column: usize| {
            let value = &row[column];
            value.as_i64().map(i64::cast_unsigned).or_else(|| value.as_u64()).unwrap()
        };
        let calls = integer(3);
        match ty {
            "f64" => Values::Floats { hash: float(1), sum: float(2), calls },
            _ => Values::Integers { hash: integer(1), sum: integer(2), calls },
        }
    };
    let rows = table["rows"].as_array().unwrap();
    rows.iter().map(|row| (row[0].as_str().unwrap().to_owned(), values(row))).collect()
}

/// The arguments that the program has passed, with their kinds, as it prints them.
pub(super) fn passed(found: &Scripted) -> Vec<((String, usize), char, Values)> {
    let text = String::from_utf8(found.run.stdout.clone()).unwrap();
    let line = |line: &str| {
        let fields: Vec<_> = line.split(' ').collect();
        let [function, position, calls, kind, hash, sum] = fields[..] else { panic!("{line}") };
        let calls = calls.parse().unwrap();
        let values = match kind {
            "f" => Values::Floats { hash: hash.parse().unwrap(), sum: sum.parse().unwrap(), calls },
            _ => Values::Integers { hash: hash.parse().unwrap(), sum: sum.parse().unwrap(), calls },
        };
        ((function.to_owned(), position.parse().unwrap()), kind.chars().next().unwrap(), values)
    };
    text.lines().map(line).collect()
}

/// The names of parameters in the fixture that some build does not keep.
fn name_of(function: &str, position: usize) -> &'static str {
    match (function, position) {
        ("copied", 0) => "removed",
        ("early" | "integers", 0) => "a",
        ("modified", 0) => "n",
        ("small", 0) => "q",
        ("small", 1) => "r",
        ("unused", 1) => "b",
        other => panic!("{other:?} is not known, and should be"),
    }
}

/// The arguments that are not known at some calls. All others must be those that the program has
/// passed, and for these there must be a note with the exact number of events.
fn incomplete(binary: &Path, what: &str) -> BTreeSet<String> {
    let found = scripted(&script(), binary, &[]);
    assert_eq!(found.run.stderr, "", "{what}");
    let report = &found.reports[0];
    // Some types fit none of the functions.
    let mut notes = found.notes();
    notes.retain(|note| !note.starts_with("rules that ask for `arg"));
    let mut incomplete = BTreeSet::new();
    let mut noted = 0;
    let tables = TYPES.map(|(ty, kinds)| (ty, kinds, seen(report, "entry", ty), seen(report, "exit", ty)));
    for (argument, kind, passed) in passed(&found) {
        let (function, position) = &argument;
        let mut missing = BTreeSet::new();
        for (ty, kinds, entries, exits) in &tables {
            let what = format!("{what}: {argument:?} as {ty}: {notes:#?}");
            let (entry, exit) = (entries.get(&argument).copied(), exits.get(&argument).copied());
            if !kinds.contains(kind) {
                assert_eq!((entry, exit), (None, None), "{what}");
                continue;
            }
            let calls = entry.map_or(0, Values::calls);
            assert_eq!(calls, exit.map_or(0, Values::calls), "{what}");
            missing.insert(passed.calls() - calls);
            if calls == passed.calls() {
                assert!(entry.is_some_and(|entry| entry.is(passed)), "{entry:?} {passed:?} {what}");
                let is_same = exit.is_some_and(|exit| exit.sums().is(passed.sums()));
                assert!(is_same, "{exit:?} {passed:?} {what}");
            }
        }
        assert_eq!(missing.len(), 1, "{what}: {argument:?}: each type has the same calls");
        let missing = missing.pop_first().unwrap();
        if missing > 0 {
            let name = name_of(function, *position);
            let note = format!(
                "{} events of {function} were not given to rules that ask for `{name}`: \
                 the compiler does not keep it until the probe",
                2 * missing
            );
            assert!(notes.contains(&note.as_str()), "{what}: {note:?} is not in {notes:#?}");
            noted += 1;
            incomplete.insert(format!("{function}.{position}"));
        }
    }
    assert_eq!(notes.len(), noted, "{what}: {notes:#?}");
    incomplete
}

/// Without optimization, all arguments are known. With it, all except those that the compiler no
/// longer needs after the call to the probe, that it has changed before, or that it does not pass.
#[test]
fn arguments_are_what_the_program_passes() {
    const OF_GCC: &[&str] = &["copied.0", "unused.1", "early.0", "integers.0", "modified.0", "small.1"];
    const OF_CLANG: &[&str] = &["copied.0", "unused.1", "small.0", "small.1"];
    let builds: [(Compiler, &[&str], &[&str]); 12] = [
        (Gcc, &["-g", "-O0"], &[]),
        (Gcc, &["-g", "-O0", "-gdwarf-4", "-fstack-protector-all"], &[]),
        (Gcc, &["-g", "-O1"], &["copied.0", "unused.1"]),
        (Gcc, &["-g", "-O2"], OF_GCC),
        (Gcc, &["-g", "-O2", "-fno-omit-frame-pointer", "-no-pie", "-fno-plt"], OF_GCC),
        (Gcc, &["-g", "-O3"], OF_GCC),
        (Gcc, &["-g", "-O3", "-gdwarf-4", "-gno-variable-location-views"], OF_GCC),
        (Clang, &["-g", "-O0"], &[]),
        (Clang, &["-g", "-O0", "-gdwarf-4"], &[]),
        (Clang, &["-g", "-O1"], OF_CLANG),
        (Clang, &["-g", "-O2"], OF_CLANG),
        (Clang, &["-g", "-O2", "-fno-omit-frame-pointer", "-no-pie"], OF_CLANG),
    ];
    for (compiler, flags, allowed) in builds {
        let binary = compile("fixtures/arguments.c", flags, compiler);
        let what = format!("{compiler:?} {flags:?}");
        let incomplete = incomplete(&binary, &what);
        // The copy has been made.
        assert!(incomplete.contains("copied.0") || !flags.contains(&"-O3"), "{what}");
        let unexpected: Vec<_> = incomplete.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
        assert!(unexpected.is_empty(), "{what}: {unexpected:?}");
    }
}

/// Methods, references, overloaded and inlined functions, exceptions.
#[test]
fn arguments_in_cpp() {
    const SCRIPT: &str = "
        report var object: u64; report var sums: map<str, i64>; report var real: f64;
        native:func:entry(args.this: u64, args.scale: i32, args.factor: f64) / fname == \"Square::area\" / {
            object = args.this;
            sums[\"area\"] = sums[\"area\"] + (args.scale as i64);
            real = real + args.factor;
        }
        native:func:entry(args.z: i64) { sums[fname] = sums[fname] + args.z; }
        native:func:entry(arg0: i32) / fname == \"over\" / { sums[\"over int\"] = sums[\"over int\"] + (arg0 as i64); }
        native:func:entry(arg1: bool, arg0: i64) / fname == \"over\" / {
            sums[\"over long\"] = sums[\"over long\"] + (arg1 ? arg0 : 0);
        }
        native:func:entry(args.n: i64) { sums[fname] = sums[fname] + args.n; }
        native:func:entry(args.level: i8, args.letter: u16) {
            sums[\"level\"] = sums[\"level\"] + (args.level as i64);
            sums[\"letter\"] = sums[\"letter\"] + (args.letter as i64);
        }
        native:func:entry(args.text: u64) { sums[\"never\"] = 1; }";
    for (compiler, flags) in
        [(Gcc, ["-g", "-O0"]), (Gcc, ["-g", "-O2"]), (Clang, ["-g", "-O0"]), (Clang, ["-g", "-O2"])]
    {
        let binary = compile("fixtures/arguments.cpp", &flags, compiler);
        let found = scripted(SCRIPT, &binary, &[]);
        let what = format!("{compiler:?} {flags:?}: {:?}", found.notes());
        assert_eq!(found.run.stderr, "", "{what}");
        let report = &found.reports[0];
        let text = String::from_utf8(found.run.stdout.clone()).unwrap();
        let expected: BTreeMap<_, _> = text.lines().filter_map(|line| line.rsplit_once(' ')).collect();
        assert_eq!(report["values"]["object"].to_string(), expected["object"], "{what}");
        assert_eq!(report["values"]["real"].as_f64(), expected["real"].parse().ok(), "{what}");
        let rows = report["tables"][0]["rows"].as_array().unwrap();
        let sums: BTreeMap<_, _> =
            rows.iter().map(|row| (row[0].as_str().unwrap(), row[1].to_string())).collect();
        let expected: BTreeMap<_, _> = expected
            .into_iter()
            .filter(|(name, _)| !["object", "real"].contains(name))
            .map(|(name, sum)| (name, sum.to_owned()))
            .collect();
        assert_eq!(sums, expected, "{what}");
    }
}

/// Sections may be compressed, or in a separate file.
#[test]
fn debugging_information_is_compressed_or_separate() {
    const SCRIPT: &str = "native:func:entry(args.size: u64) { report var n: u64; n++; }";
    let counts = |binary: &Path| {
        let found = scripted(SCRIPT, binary, &["sizes"]);
        assert_eq!((found.run.stderr.as_str(), found.notes()), ("", vec![]), "{}", binary.display());
        found.by_function("n")
    };
    let binary = compile("fixtures/scripted.c", &["-O2", "-g"], Gcc);
    let expected = counts(&binary);
    assert!(!expected.is_empty());
    assert_eq!(counts(&compile("fixtures/scripted.c", &["-O2", "-g", "-gz=zlib"], Gcc)), expected);
    let folder = tempfile::tempdir().unwrap();
    let [stripped, debug] = ["program", "program.debug"].map(|name| folder.path().join(name));
    let objcopy = |arguments: &[&str], from: &Path, to: &Path| {
        let status = Command::new("objcopy").args(arguments).arg(from).arg(to).status().unwrap();
        assert!(status.success(), "{arguments:?}");
    };
    objcopy(&["--only-keep-debug"], &binary, &debug);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    objcopy(&["--strip-debug", &link], &binary, &stripped);
    assert_eq!(counts(&stripped), expected);
}

/// Rules that ask for arguments do not match functions whose parameters are not known, and the
/// notes state the reason.
#[test]
fn without_debugging_information_there_are_no_arguments() {
    const SCRIPT: &str = "native:func:entry(arg0: u64) { report var n: u64; n++; }";
    for (flags, reason) in [
        (&["-O2", "-g0"][..], "there is no debugging information (-g)"),
        (&["-O2", "-g1"], "the debugging information has no parameters (-g1)"),
    ] {
        let binary = compile("fixtures/scripted.c", flags, Gcc);
        let found = scripted(SCRIPT, &binary, &["sizes"]);
        assert_eq!(found.run.stderr, "", "{flags:?}");
        assert_eq!(found.by_function("n"), BTreeMap::new(), "{flags:?}");
        let notes = found.notes();
        let expected = format!(
            "rules that ask for arguments or results do not match functions in {}: {reason}",
            binary.display()
        );
        assert!(notes.iter().any(|note| note.starts_with(&expected)), "{flags:?}: {notes:#?}");
    }
}

/// A rule whose type bound fits no function is named in a note, even if other rules match.
#[test]
fn bounds_that_fit_no_function_are_explained() {
    let binary = compile("fixtures/scripted.c", &["-O0", "-g"], Gcc);
    let script = "
        report var n: u64;
        native:func:entry(args.size: u64) / fname == \"request\" / { n++; }
        native:func:entry(args.size: i64) / fname == \"request\" / { n++; }
        native:func:entry(args.nope: i64) / fname == \"request\" / { n++; }
        native:func:exit(res0: f64) / fname == \"leaf\" || fname == \"sleeper\" / { n++; }";
    let found = scripted(script, &binary, &["sizes"]);
    assert!(found.reports[0]["values"]["n"].as_u64().unwrap() > 0);
    let mut notes = found.notes();
    notes.sort_unstable();
    let expected = [
        "rules that ask for `args.nope: i64` match no function: `request` has no `args.nope`, but the arguments kind, size",
        "rules that ask for `args.size: i64` match no function: `size` of `request` is of the type `u64`",
    ];
    assert_eq!(notes[..2], expected, "{notes:#?}");
    let result = notes[2];
    assert!(
        notes.len() == 3 && result.starts_with("rules that ask for `res0: f64` match no function: "),
        "{notes:#?}"
    );
    assert!(result.contains("`res0` of `leaf` is of the type `u32`"), "{result}");
    assert!(result.contains("`sleeper` does not return a number of up to 8 bytes"), "{result}");
}
