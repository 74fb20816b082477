//! Discovery of functions when they are first executed, as the profiler uses it.

use tests::Compiler::{Clang, Gcc};
use tests::{bare, compile, profiled, run};

/// Three of more than two thousand functions are called.
#[test]
fn only_functions_that_are_executed_have_probes() {
    for (compiler, flags) in [
        (Gcc, &["-O0"][..]),
        (Gcc, &["-O2"]),
        (Gcc, &["-O2", "-fno-plt"]),
        (Gcc, &["-O2", "-fno-asynchronous-unwind-tables"]),
        (Gcc, &["-O2", "-Wl,--no-eh-frame-hdr"]),
        (Clang, &["-O2"]),
    ] {
        let what = format!("{compiler:?} {flags:?}");
        let binary = compile("fixtures/many_functions.c", flags, compiler);
        let without = run(&mut bare(&binary, &[]));
        let with = profiled(&binary, &[], "discovery=lazy");
        with.run.assert_same(&without, &what);
        let report = with.report();
        // An entry and an exit each; two for the inlined function, unless it is inlined nowhere.
        let probes = report.json["probes"].as_u64().expect("a number of probes");
        assert!((8..=16).contains(&probes), "{what}: {probes} probes");
        for name in ["early", "late", "inlined"] {
            assert!(report.samples(name) > 0, "{what}: no samples of {name}; {}", with.run.stderr);
        }
        let names: Vec<_> = report.functions().filter_map(|function| function["name"].as_str()).collect();
        assert!(!names.iter().any(|name| name.starts_with("never")), "{what}: {names:?}");
    }
}
