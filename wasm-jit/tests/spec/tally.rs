//! Counts.

use std::collections::BTreeMap;
use std::fmt;

/// The results of directives.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By kind.
    pub passed: BTreeMap<&'static str, usize>,
    /// By reason.
    pub skipped: BTreeMap<&'static str, usize>,
    /// Messages that start with a position.
    pub failures: Vec<String>,
}

impl Tally {
    /// The result of a script that could not be run.
    pub(crate) fn failed(message: String) -> Self {
        Self { failures: vec![message], ..Self::default() }
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (kind, count) in other.passed {
            *self.passed.entry(kind).or_default() += count;
        }
        for (reason, count) in other.skipped {
            *self.skipped.entry(reason).or_default() += count;
        }
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "FAILED {failure}")?;
        }
        let assertions: usize =
            self.passed.iter().filter(|(kind, _)| kind.starts_with("assert_")).map(|(_, count)| count).sum();
        let commands: usize = self.passed.values().sum::<usize>() - assertions;
        let skipped: usize = self.skipped.values().sum();
        writeln!(f, "spec: {assertions} assertions and {commands} other commands passed:")?;
        for (kind, count) in &self.passed {
            writeln!(f, "    {count:7} {kind}")?;
        }
        writeln!(f, "spec: {skipped} directives skipped (tests/spec/skipped.txt):")?;
        for (reason, count) in &self.skipped {
            writeln!(f, "    {count:7} {reason}")?;
        }
        write!(f, "spec: {} failed", self.failures.len())
    }
}
