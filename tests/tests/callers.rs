//! The callers of functions, and the self times that follow from them.

use std::collections::BTreeMap;

use tests::Compiler::{Clang, Gcc};
use tests::{Report, compile, profiled};

/// The numbers of calls by caller and callee.
fn arcs(report: &Report) -> BTreeMap<(&str, &str), f64> {
    let arcs = report.json["arcs"].as_array().expect("a list").iter();
    let arc = arcs.map(|arc| {
        let name = |end: &str| arc[end]["name"].as_str().expect("a name");
        ((name("caller"), name("callee")), arc["calls"]["value"].as_f64().expect("a number"))
    });
    arc.collect()
}

#[test]
fn callers_of_inlined_functions_are_those_into_which_they_were_inlined() {
    let builds: [(_, &[&str]); 4] =
        [(Gcc, &["-O2"]), (Gcc, &["-O3", "-fno-plt"]), (Clang, &["-O2"]), (Clang, &["-O3"])];
    for (compiler, flags) in builds {
        let binary = compile("fixtures/inlined_callers.c", flags, compiler);
        let profiled = profiled(&binary, &[], "counts=exact:discovery=eager");
        let report = profiled.report();
        let expected = [
            (("[not instrumented]", "main"), 1.0),
            (("asks", "counter"), 100.0),
            (("descends", "descends"), 1000.0),
            (("holder", "inlined"), 100.0),
            (("main", "round_of"), 100.0),
            (("middle", "inlined"), 100.0),
            (("outer", "middle"), 100.0),
            (("round_of", "asks"), 100.0),
            (("round_of", "descends"), 100.0),
            (("round_of", "holder"), 100.0),
            (("round_of", "outer"), 100.0),
        ];
        assert_eq!(arcs(report), expected.into(), "{compiler:?} {flags:?}");
        for name in ["holder", "middle", "outer", "round_of"] {
            let row = report.function(name).expect("a row");
            let [own, total] = [&row["self_ns"]["low"], &row["total_ns"]["value"]].map(|time| time.as_f64());
            assert!(own.zip(total).is_some_and(|(own, total)| own < total / 2.0), "{row}");
        }
    }
}
