//! Functions that gcc splits: exits are in another function than the entries.

use tests::Compiler::Gcc;
use tests::compile;

use super::{COUNTS, own_counts, scripted};

/// The calls of all functions are paired, also of recursive ones. Those that are left by `longjmp`
/// have no exit.
#[test]
fn exits_in_parts_belong_to_the_entries_in_callers() {
    for flags in [["-O2"], ["-O3"]] {
        let binary = compile("fixtures/partial_inlining.c", &flags, Gcc);
        let symbols = std::fs::read(&binary).unwrap();
        assert!(symbols.windows(12).any(|name| name == b"tree.part.0\0"), "gcc splits it");
        let found = scripted(COUNTS, &binary, &[]);
        let calls = own_counts(&found.run);
        assert_eq!(found.by_function("calls"), calls, "{:?}", found.notes());
        let paired = found.by_function("paired");
        assert_eq!(found.by_function("exits"), paired);
        let mut left = calls.clone();
        left.retain(|name, calls| {
            *calls -= paired[name];
            *calls > 0
        });
        assert_eq!(left, [("leaves".to_owned(), 83)].into());
        // The innermost call of `tree`, below three others and `grows`, calls `leaf`.
        assert_eq!(found.reports[0]["values"]["deepest"], 6);
        let note = "83 calls have ended without an exit, for example by an exception or `longjmp`, and rules for exits did not get them: leaves";
        assert_eq!(found.notes(), [note]);
    }
}
