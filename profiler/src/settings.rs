//! The settings that can be changed while the profiler runs.
//!
//! [`Settings`] are one immutable value. The service thread and the report read it through one
//! pointer of the session; [`session::reconfigure`](crate::session::reconfigure) replaces the
//! entire value. [`Options`](crate::options::Options) has the settings that are fixed at the start.

use crate::error::Error;
use crate::filter::Filter;
use crate::options::{Budget, Counts, escape};

/// The settings of what is measured, what it may cost, and how much of it a table shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The maximum cost of profiling. Default: 1 % of the program's processor time.
    pub budget: Budget,
    /// How calls are counted. Default: sampled.
    pub counts: Counts,
    /// The functions that are measured. Default: all.
    pub filter: Filter,
    /// The maximum number of rows of the table on standard error. Default: a screenful on a
    /// terminal, no limit elsewhere.
    pub rows: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            budget: Budget::Fraction(0.01),
            counts: Counts::Sampled,
            filter: Filter::default(),
            rows: None,
        }
    }
}

impl Settings {
    /// Checks settings that were not parsed.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the budget is not a fraction above 0 and at most 1.
    pub fn check(&self) -> Result<(), Error> {
        match self.budget {
            // The written form has this range and precision.
            Budget::Fraction(_) => self.budget.to_string().parse::<Budget>().map(drop),
            Budget::Unlimited => Ok(()),
        }
    }

    /// Whether every call is counted and timed: because of [`Counts::Exact`], or because there is
    /// no budget that would be exceeded.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.counts == Counts::Exact || self.budget == Budget::Unlimited
    }

    /// How calls are actually counted.
    pub(crate) fn counts_in_force(&self) -> Counts {
        if self.is_exact() { Counts::Exact } else { self.counts }
    }

    /// The settings as shown in a report, in the form of options: budget and way of counting, and
    /// the filter if there is one.
    pub(crate) fn in_report(&self) -> String {
        let mut items =
            vec![format!("budget={}", self.budget), format!("counts={}", self.counts_in_force().name())];
        items.extend(self.filter_items());
        items.join(":")
    }

    /// The options that differ from the defaults, as `key=value`.
    pub(crate) fn to_items(&self) -> Vec<String> {
        let default = Self::default();
        let mut items = Vec::new();
        if self.budget != default.budget {
            items.push(format!("budget={}", self.budget));
        }
        if self.counts != default.counts {
            items.push(format!("counts={}", self.counts.name()));
        }
        items.extend(self.filter_items());
        items
    }

    fn filter_items(&self) -> impl Iterator<Item = String> {
        let patterns = [("only", &self.filter.only), ("skip", &self.filter.skip)];
        let item = |(key, patterns)| format!("{key}={}", escape(&format!("{patterns}")));
        patterns.into_iter().filter(|(_, patterns)| !patterns.is_empty()).map(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_budget_every_call_is_observed() {
        let check = |budget, counts, expected: &str| {
            let settings = Settings { budget, counts, ..Settings::default() };
            assert_eq!(settings.in_report(), expected);
            assert_eq!(settings.is_exact(), expected.ends_with("exact"));
        };
        check(Budget::Fraction(0.05), Counts::Sampled, "budget=5%:counts=sampled");
        check(Budget::Fraction(0.05), Counts::Exact, "budget=5%:counts=exact");
        check(Budget::Unlimited, Counts::Sampled, "budget=none:counts=exact");
    }

    #[test]
    fn a_budget_that_could_not_be_written_is_refused() {
        let check =
            |budget| Settings { budget, ..Settings::default() }.check().map_err(|error| error.to_string());
        for budget in [Budget::Fraction(1.0), Budget::Fraction(1e-8), Budget::Unlimited] {
            assert_eq!(check(budget), Ok(()), "{budget:?}");
        }
        for fraction in [0.0, -0.01, 1.1, f64::NAN, f64::INFINITY, 1e-9] {
            let error = check(Budget::Fraction(fraction)).unwrap_err();
            assert!(error.ends_with("a percentage above 0% and up to 100%, such as 1%, or none"), "{error}");
        }
    }
}
