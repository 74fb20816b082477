//! Exit codes and diagnostics of mistakes, as the help describes them.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

fn run(place: &TempDir, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastinst"));
    command.env_remove("LD_PRELOAD").env_remove("FASTINST_OPTIONS");
    command.args(arguments.split(' ')).current_dir(place.path()).output().unwrap()
}

#[test]
fn mistakes_have_the_exit_codes_of_the_help() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("calls.mm"), "native:func:entry { report var n: u64; n++; }\n").unwrap();
    fs::write(place.path().join("bad.mm"), "native:func:entry { n++; }\n").unwrap();
    let check = |arguments: &str, code: i32, says: &str| {
        let output = run(&place, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
        assert!(said.contains(says), "{arguments}: {said}");
    };
    check("run -- /bin/true", 2, "there is no script: fastinst run SCRIPT -- PROGRAM; or with --control");
    check("run bad.mm -- /bin/true", 2, "bad.mm is not a valid script");
    check("run missing.mm -- /bin/true", 2, "missing.mm");
    let endings =
        "output=c.xml: expected a file name that ends in .txt, .json, .csv or .folded; or state the format";
    check("run -o c.xml calls.mm -- /bin/true", 2, endings);
    check("attach 1 calls.mm -o c.xml", 2, endings);
    let stacks = "calls.mm: the format `folded` shows maps with a stack in the key and integers as values";
    check("run -o c.folded calls.mm -- /bin/true", 2, stacks);
    check("attach 1 calls.mm --format folded", 2, stacks);
    let by_stack = "native:func:entry { report var n: map<(u32, stack), u64>; n[(fid, stack)]++; }\n";
    fs::write(place.path().join("stacks.mm"), by_stack).unwrap();
    check("run --library /nosuch -o c.folded stacks.mm -- /bin/true", 125, "/nosuch");
    check("run --library /nosuch calls.mm -- /bin/true", 125, "/nosuch");
    check("run --library /nosuch -o c.xml --format text calls.mm -- /bin/true", 125, "/nosuch");
    check("record --library /nosuch -- /bin/true", 125, "/nosuch");
    check("run calls.mm -- ./missing", 127, "missing");
    check("record -- ./missing", 127, "missing");
    check("attach abc calls.mm", 2, "expected the id of a process, such as 4242");
    check("attach 0 calls.mm", 2, "expected the id of a process");
    check("attach 4194305 calls.mm", 1, "4194305");
    check("report missing.json", 1, "missing.json");
    check("report missing.json --sort nothing", 2, "expected total, self,");
    check("info missing", 1, "missing");
}

/// For example, because the disk is full.
#[test]
fn a_diagnostic_that_cannot_be_written_does_not_change_the_exit_code() {
    let place = TempDir::new().unwrap();
    for (arguments, code) in [("report missing.json", 1), ("record --library /nosuch -- /bin/true", 125)] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastinst"));
        command.env_remove("LD_PRELOAD").env_remove("FASTINST_OPTIONS");
        let status =
            command.args(arguments.split(' ')).current_dir(place.path()).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments}");
    }
}
