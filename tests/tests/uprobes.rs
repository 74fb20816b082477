//! Programs with uprobes of the kernel on instrumented functions, such as those of `bpftrace` and
//! `perf probe`.

use tests::Compiler::Gcc;
use tests::{bare, compile, ensure_preload, run};

/// The exit code of the fixture if there are no uprobes.
const SKIPPED: i32 = 77;

/// Our mappings are not those of the probed file, so the kernel would send the traps of INT3s in
/// them to the program.
#[test]
fn a_program_with_a_uprobe_runs_as_before() {
    let binary = compile("fixtures/uprobe.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &["start"]));
    if without.status.code() == Some(SKIPPED) {
        eprintln!("skipped: this kernel does not let us place uprobes: {}", without.stderr);
        return;
    }
    assert_eq!(String::from_utf8_lossy(&without.stdout), "5 calls\n", "{}", without.stderr);
    let library = ensure_preload().to_str().expect("a path in UTF-8");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    for options in ["", "tool=none", "text=alias", "tool=none:text=alias", "text=mprotect"] {
        let report = folder.path().join("report.json");
        let options = format!("output={}:{options}", report.display());
        let with = run(&mut bare(&binary, &["start", library, options.trim_end_matches(':')]));
        with.assert_same(&without, &options);
    }
}
