//! Known failures and their reasons: the file `skipped.txt`.
//!
//! A line that is not indented is a reason, which names the version of the standard that supersedes
//! the tests, or the open proposal that they concern; below it, indented, are the tests it applies
//! to: `folder/*`, `folder/file`, or `folder/file:line`, where the line is that of a directive. `#`
//! starts a comment. Every entry must be needed: at least one of its directives fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The list, with a record of the entries that were needed.
#[derive(Debug)]
pub(crate) struct Skipped {
    places: HashMap<&'static str, Place>,
}

/// An entry.
#[derive(Debug)]
pub(crate) struct Place {
    reason: &'static str,
    needed: AtomicBool,
}

impl Place {
    /// The reason; records whether a directive failed.
    pub(crate) fn reason(&self, failed: bool) -> &'static str {
        self.needed.fetch_or(failed, Ordering::Relaxed);
        self.reason
    }
}

impl Skipped {
    pub(crate) fn read() -> Self {
        let mut places = HashMap::new();
        let mut reason = None;
        for line in include_str!("skipped.txt").lines() {
            let content = line.split('#').next().unwrap_or_default().trim_end();
            if content.is_empty() {
                continue;
            }
            if !content.starts_with(' ') {
                let names_one = content.contains("WebAssembly ") || content.contains("proposal");
                assert!(names_one, "skipped.txt: `{content}` names neither a standard nor a proposal");
                reason = Some(content);
                continue;
            }
            let reason = reason.unwrap_or_else(|| panic!("skipped.txt: no reason for {content}"));
            let before = places.insert(content.trim(), Place { reason, needed: AtomicBool::new(false) });
            assert!(before.is_none(), "skipped.txt: {} is listed twice", content.trim());
        }
        Self { places }
    }

    /// The entry that skips a whole file.
    pub(crate) fn whole(&self, path: &str) -> Option<&Place> {
        let folder = path.rsplit_once('/').map_or(path, |(folder, _)| folder);
        self.places.get(path).or_else(|| self.places.get(format!("{folder}/*").as_str()))
    }

    /// The reason why the failed directive at this line may fail.
    pub(crate) fn line(&self, path: &str, line: usize) -> Option<&'static str> {
        self.places.get(format!("{path}:{line}").as_str()).map(|place| place.reason(true))
    }

    /// A message for each entry for which nothing failed.
    pub(crate) fn unused(&self) -> Vec<String> {
        let unused = self.places.iter().filter(|(_, place)| !place.needed.load(Ordering::Relaxed));
        let mut unused: Vec<String> = unused
            .map(|(name, place)| format!("skipped.txt: nothing fails in {name} any more ({})", place.reason))
            .collect();
        unused.sort();
        unused
    }
}
