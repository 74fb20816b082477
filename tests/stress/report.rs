//! The counts of a scenario: a line of the table, and a JSON object, in which form the scenario's
//! process returns them.

use serde_json::{Value, json};

/// The counts of a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) scenario: String,
    pub(crate) seconds: f64,
    pub(crate) executions: u64,
    pub(crate) toggles: u64,
    pub(crate) torn: u64,
    pub(crate) lost: u64,
    pub(crate) hung: u64,
    pub(crate) other: u64,
    /// The violations, one line each, up to a limit.
    pub(crate) violations: Vec<String>,
}

impl Counts {
    pub(crate) fn is_clean(&self) -> bool {
        [self.torn, self.lost, self.hung, self.other] == [0; 4]
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "scenario": self.scenario,
            "seconds": self.seconds,
            "executions": self.executions,
            "toggles": self.toggles,
            "torn": self.torn,
            "lost": self.lost,
            "hung": self.hung,
            "other": self.other,
            "violations": self.violations,
        })
    }

    /// The inverse of [`Counts::json`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |key: &str| value[key].as_u64();
        let lines = value["violations"].as_array()?.iter();
        Some(Self {
            scenario: value["scenario"].as_str()?.to_owned(),
            seconds: value["seconds"].as_f64()?,
            executions: number("executions")?,
            toggles: number("toggles")?,
            torn: number("torn")?,
            lost: number("lost")?,
            hung: number("hung")?,
            other: number("other")?,
            violations: lines.filter_map(|line| line.as_str().map(str::to_owned)).collect(),
        })
    }

    /// Adds another round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.executions += other.executions;
        self.toggles += other.toggles;
        self.torn += other.torn;
        self.lost += other.lost;
        self.hung += other.hung;
        self.other += other.other;
        self.violations.extend_from_slice(&other.violations);
    }
}

/// The sum of all counts.
pub(crate) fn total(all: &[Counts]) -> Counts {
    let mut sum = Counts { scenario: "total".to_owned(), ..Counts::default() };
    all.iter().for_each(|counts| sum.add(counts));
    sum
}

/// The table, with its sum.
pub(crate) fn table(all: &[Counts]) -> String {
    let mut text = format!(
        "{:<13} {:>8} {:>14} {:>13} {:>6} {:>6} {:>5} {:>6}\n",
        "scenario", "seconds", "executions", "toggles", "torn", "lost", "hung", "other"
    );
    for counts in all.iter().chain([&total(all)]) {
        text += &format!(
            "{:<13} {:>8.1} {:>14} {:>13} {:>6} {:>6} {:>5} {:>6}\n",
            counts.scenario,
            counts.seconds,
            counts.executions,
            counts.toggles,
            counts.torn,
            counts.lost,
            counts.hung,
            counts.other
        );
    }
    text
}
