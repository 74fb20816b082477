//! Code that is compiled for tests only is not in the library for users.

use std::fs;

use tests::ensure_preload;

/// Both names are parts of symbols, which a release build keeps.
#[test]
fn the_library_has_no_hooks_for_fault_injection() {
    let library = fs::read(ensure_preload()).expect("the library can be read");
    let has = |name: &str| library.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    assert!(has("9wordpatch11outstanding"), "the library has no symbols to look for");
    assert!(!has("9wordpatch5fault"), "wordpatch was built with --cfg fault_injection");
}
