//! Programs whose section headers were removed, which the loader does not need.

use std::fs;

use tests::Compiler::Gcc;
use tests::{bare, compile, preloaded, run};

/// Fields of the ELF header: offset and number of section headers, and the index of their names.
const FIELDS: [std::ops::Range<usize>; 2] = [0x28..0x30, 0x3c..0x40];

#[test]
fn a_program_without_section_headers_is_named_as_such() {
    let binary = compile("fixtures/uprobe.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let stripped = folder.path().join("stripped");
    // Keeps the permissions.
    fs::copy(&binary, &stripped).expect("a binary can be copied");
    let mut bytes = fs::read(&stripped).expect("it can be read");
    FIELDS.into_iter().for_each(|field| bytes[field].fill(0));
    fs::write(&stripped, bytes).expect("it can be written");
    let without = run(&mut bare(&stripped, &["run"]));
    assert_eq!(String::from_utf8_lossy(&without.stdout), "5 calls\n", "{}", without.stderr);
    let with = run(&mut preloaded(&stripped, &["run"], "output=stderr"));
    assert_eq!((&with.stdout, with.status), (&without.stdout, without.status), "{}", with.stderr);
    assert!(with.stderr.contains("nothing to report"), "{}", with.stderr);
    assert!(with.stderr.contains("has no section headers"), "{}", with.stderr);
}
