//! The order of functions in a table.

use std::cmp::Ordering;
use std::str::FromStr;

use super::{Estimate, FunctionReport, Latency, Report};
use crate::error::Error;

/// The sort key of functions, in descending order. For an estimate it is the lower bound, so that
/// uncertain figures are not ranked by a guess. Functions without the figure come last; ties are
/// ordered by name, then address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortKey {
    /// Time in all calls, including callees.
    #[default]
    Total,
    /// Time in all calls, excluding callees.
    SelfTime,
    /// Number of calls.
    Calls,
    /// Mean latency.
    Mean,
    /// Median latency.
    P50,
    /// 90th percentile.
    P90,
    /// 99th percentile.
    P99,
    /// Longest latency.
    Max,
    /// Time that preempted calls waited for a processor.
    OffCpu,
    /// The name, from A to Z.
    Name,
}

impl SortKey {
    /// The names accepted by the parser.
    pub const NAMES: [(&'static str, SortKey); 10] = [
        ("total", SortKey::Total),
        ("self", SortKey::SelfTime),
        ("calls", SortKey::Calls),
        ("mean", SortKey::Mean),
        ("p50", SortKey::P50),
        ("p90", SortKey::P90),
        ("p99", SortKey::P99),
        ("max", SortKey::Max),
        ("off-cpu", SortKey::OffCpu),
        ("name", SortKey::Name),
    ];

    /// The value by which a function is ranked.
    fn rank(self, function: &FunctionReport) -> f64 {
        let certain = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.low);
        let latency = |pick: fn(&Latency) -> f64| function.latency_ns.as_ref().map(pick);
        let rank = match self {
            SortKey::Total => certain(function.total_ns),
            SortKey::SelfTime => certain(function.self_ns),
            SortKey::Calls => certain(Some(function.calls)),
            SortKey::Mean => latency(|latency| latency.mean.low),
            SortKey::P50 => latency(|latency| latency.p50.low),
            SortKey::P90 => latency(|latency| latency.p90.low),
            SortKey::P99 => latency(|latency| latency.p99.low),
            SortKey::Max => latency(|latency| latency.max),
            SortKey::OffCpu => function.off_cpu.map(|off_cpu| off_cpu.ns as f64),
            SortKey::Name => None,
        };
        rank.unwrap_or(-1.0)
    }

    fn compare(self, left: &FunctionReport, right: &FunctionReport) -> Ordering {
        let by_name = || (&left.name, left.address).cmp(&(&right.name, right.address));
        self.rank(right).total_cmp(&self.rank(left)).then_with(by_name)
    }
}

impl FromStr for SortKey {
    type Err = Error;

    fn from_str(value: &str) -> Result<SortKey, Error> {
        let found = SortKey::NAMES.iter().find(|(name, _)| *name == value);
        found.map(|(_, key)| *key).ok_or_else(|| Error::BadValue {
            key: "sort",
            value: value.to_owned(),
            allowed: SortKey::NAMES.map(|(name, _)| name).join(", "),
        })
    }
}

impl Report {
    /// The functions, ordered by `key`.
    #[must_use]
    pub fn sorted(&self, key: SortKey) -> Vec<&FunctionReport> {
        let mut sorted: Vec<&FunctionReport> = self.functions.iter().collect();
        sorted.sort_by(|left, right| key.compare(left, right));
        sorted
    }

    /// The functions, ordered by total time.
    #[must_use]
    pub fn ranked(&self) -> Vec<&FunctionReport> {
        self.sorted(SortKey::Total)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::*;

    #[test]
    fn functions_are_ranked_by_what_is_certain_then_name_then_address() {
        let function = |name: &str, address, total_ns| FunctionReport {
            name: name.to_owned(),
            address,
            total_ns,
            ..example().functions[1].clone()
        };
        let five = Some(Estimate::exact(5.0));
        let report = Report {
            functions: vec![
                function("guess", 6, Some(Estimate::within(1e9, 1.0, 2e9))),
                function("unknown", 8, None),
                function("nothing", 7, Some(Estimate::exact(0.0))),
                function("b", 2, five),
                function("b", 1, five),
                function("z", 3, Some(Estimate::within(10.0, 9.0, 11.0))),
                function("a", 9, five),
                function("most", 4, Some(Estimate::at_least(20.0))),
            ],
            ..example()
        };
        let order: Vec<u64> = report.ranked().iter().map(|function| function.address).collect();
        assert_eq!(order, [4, 3, 9, 1, 2, 6, 7, 8]);
    }

    #[test]
    fn every_column_can_be_sorted_by() {
        #[track_caller]
        fn check(key: &str, expected: [&str; 5]) {
            let report = example();
            let order = report.sorted(key.parse().unwrap());
            let names: Vec<&str> = order.iter().map(|function| function.name.as_str()).collect();
            assert_eq!(names, expected, "{key}");
        }
        const INSERT: &str = "Tree::insert(int)";
        check("total", ["main", "hash", INSERT, "leaf", "fini"]);
        check("self", ["hash", "main", INSERT, "leaf", "fini"]);
        check("calls", ["hash", "leaf", INSERT, "fini", "main"]);
        for key in ["mean", "p50", "p90", "p99"] {
            check(key, ["main", INSERT, "hash", "leaf", "fini"]);
        }
        check("max", ["main", "hash", INSERT, "leaf", "fini"]);
        check("off-cpu", ["hash", "main", INSERT, "fini", "leaf"]);
        check("name", [INSERT, "fini", "hash", "leaf", "main"]);
        let error = "p95".parse::<SortKey>().unwrap_err().to_string();
        assert_eq!(error, "sort=p95: expected total, self, calls, mean, p50, p90, p99, max, off-cpu, name");
    }
}
