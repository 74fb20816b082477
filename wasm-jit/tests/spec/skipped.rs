//! What is known not to pass, and why: the file `skipped.txt`.
//!
//! A line that is not indented is a reason; below it, indented, are the places it holds for:
//! `folder/*`, `folder/file`, or `folder/file:line`, where the line is that of a directive. `#`
//! starts a comment. A place has to be needed: at least one directive of it fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The list, and which of its places were needed.
#[derive(Debug)]
pub(crate) struct Skipped {
    places: HashMap<&'static str, Place>,
}

/// A line of it.
#[derive(Debug)]
pub(crate) struct Place {
    reason: &'static str,
    needed: AtomicBool,
}

impl Place {
    /// The reason; notes whether a directive has failed there.
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
                reason = Some(content);
                continue;
            }
            let reason = reason.unwrap_or_else(|| panic!("skipped.txt: no reason for {content}"));
            let before = places.insert(content.trim(), Place { reason, needed: AtomicBool::new(false) });
            assert!(before.is_none(), "skipped.txt: {} is there twice", content.trim());
        }
        Self { places }
    }

    /// The place that a whole file is skipped by.
    pub(crate) fn whole(&self, path: &str) -> Option<&Place> {
        let folder = path.rsplit_once('/').map_or(path, |(folder, _)| folder);
        self.places.get(path).or_else(|| self.places.get(format!("{folder}/*").as_str()))
    }

    /// Why the directive at this line, which has failed, may do so.
    pub(crate) fn line(&self, path: &str, line: usize) -> Option<&'static str> {
        self.places.get(format!("{path}:{line}").as_str()).map(|place| place.reason(true))
    }

    /// A message for each place where nothing failed.
    pub(crate) fn unused(&self) -> Vec<String> {
        let unused = self.places.iter().filter(|(_, place)| !place.needed.load(Ordering::Relaxed));
        let mut unused: Vec<String> = unused
            .map(|(name, place)| format!("skipped.txt: nothing fails in {name} any more ({})", place.reason))
            .collect();
        unused.sort();
        unused
    }
}
