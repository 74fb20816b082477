//! Statistics of estimates compared with the truth.

use std::collections::HashMap;

use super::report::{Estimate, Oracle, Range, Report};

/// A share of a number of things.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Number of hits.
    pub hits: usize,
    /// Total number.
    pub of: usize,
}

impl Share {
    /// Counts one thing.
    pub fn add(&mut self, hit: bool) {
        self.of += 1;
        self.hits += usize::from(hit);
    }

    /// Adds the counts of another share.
    pub fn merge(&mut self, other: Share) {
        self.hits += other.hits;
        self.of += other.of;
    }

    /// In percent; `None` if the total is 0.
    pub fn percent(self) -> Option<f64> {
        (self.of > 0).then(|| 100.0 * self.hits as f64 / self.of as f64)
    }
}

/// Comparison of the numbers of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calls {
    /// Functions of both the report and the oracle whose true number is known.
    pub rows: usize,
    /// Intervals that contain the truth, of all rows with both bounds.
    pub coverage: Share,
    /// Intervals that contain the truth, of rows that were estimated rather than counted.
    pub estimated: Share,
    /// Rows that claim to be exact, and are not.
    pub exact_wrong: usize,
    /// Rows with a lower limit only, and those that are correct.
    pub at_least: Share,
    /// Rows with an interval that are off by a factor of more than 2.
    pub off: usize,
    /// Rows that are off by a factor of more than 2 although they state an error below 50 %.
    pub confident: usize,
    /// Functions that were called and are missing in the report.
    pub missing: usize,
    /// Rows whose total exceeds the time of all threads.
    pub over: usize,
}

impl Calls {
    /// Compares a report with the numbers of the oracle.
    pub fn compare(report: &Report, truths: &HashMap<u64, Range>) -> Self {
        let mut calls = Self::default();
        for (address, &truth) in truths {
            let Some(row) = report.rows.get(address) else {
                calls.missing += 1;
                continue;
            };
            calls.rows += 1;
            let covers = row.calls.covers(truth);
            if row.calls.high.is_none() {
                calls.at_least.add(covers);
                continue;
            }
            calls.coverage.add(covers);
            if row.calls.is_exact() {
                calls.exact_wrong += usize::from(!covers);
            } else {
                calls.estimated.add(covers);
            }
            let off = row.calls.is_off_by_2(truth);
            calls.off += usize::from(off);
            calls.confident += usize::from(off && row.calls.stated_error().is_some_and(|error| error < 0.5));
        }
        let most = report.thread_time_ns * 1.001;
        calls.over =
            report.rows.values().filter(|row| row.total_ns.is_some_and(|total| total.value > most)).count();
        calls
    }
}

/// Ranks, largest value first; values within 2 % of the largest of a group share the mean of its
/// ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    let mut ranks = vec![0.0; values.len()];
    let mut begin = 0;
    while begin < order.len() {
        let largest = values[order[begin]];
        let length =
            order[begin..].iter().take_while(|&&index| values[index] >= 0.98 * largest).count().max(1);
        for &index in &order[begin..begin + length] {
            ranks[index] = begin as f64 + (length - 1) as f64 / 2.0;
        }
        begin += length;
    }
    ranks
}

/// Spearman's rank correlation of pairs; 1 if all ranks on both sides are tied.
pub fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let (left, right): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    let (left, right) = (ranks(&left), ranks(&right));
    let mean = (pairs.len().max(1) - 1) as f64 / 2.0;
    let product =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum() };
    let variance = product(&left, &left) * product(&right, &right);
    if variance > 0.0 { product(&left, &right) / variance.sqrt() } else { f64::from(left == right) }
}

/// The rank correlation of the functions with the largest true totals.
pub fn top_by_total(report: &Report, oracle: &Oracle, number: usize) -> f64 {
    top_of(oracle, number, |address| Some(report.rows.get(&address)?.total_ns?.value))
}

/// As [`top_by_total`], of totals by address.
pub fn top_of(oracle: &Oracle, number: usize, total: impl Fn(u64) -> Option<f64>) -> f64 {
    let mut order: Vec<_> = oracle.functions.iter().collect();
    order.sort_by(|a, b| b.1.total.total_cmp(&a.1.total).then(a.0.cmp(b.0)));
    let pairs: Vec<_> = order
        .iter()
        .take(number)
        .map(|(address, truth)| (truth.total, total(**address).unwrap_or(0.0)))
        .collect();
    rank_correlation(&pairs)
}

/// Compares an estimate with the measured value; not counted if the report states none.
pub fn check(share: &mut Share, estimate: Option<Estimate>, truth: Range) {
    if let Some(estimate) = estimate.filter(|estimate| estimate.high.is_some()) {
        share.add(estimate.covers(truth));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figure(value: f64, low: f64, high: impl Into<Option<f64>>) -> Estimate {
        Estimate { value, low, high: high.into() }
    }

    fn exactly(value: f64) -> Range {
        Range::of([value])
    }

    #[test]
    fn interval_covers_values_inside_it() {
        assert!(figure(10.0, 8.0, 12.0).covers(exactly(12.0)));
        assert!(!figure(10.0, 8.0, 12.0).covers(exactly(13.0)));
        assert!(figure(10.0, 8.0, 12.0).covers(Range::of([13.0, 11.0])));
        assert!(figure(10.0, 10.0, None).covers(exactly(1e9)));
        assert!(!figure(10.0, 10.0, None).covers(exactly(9.0)));
        assert!(!figure(10.0, 10.0, 10.0).covers(exactly(11.0)), "an exact figure is exact");
    }

    #[test]
    fn off_by_more_than_2_either_way() {
        for (value, off) in [(201.0, true), (200.0, false), (50.0, false), (49.0, true)] {
            assert_eq!(figure(value, 0.0, 1e9).is_off_by_2(exactly(100.0)), off, "{value}");
        }
    }

    #[test]
    fn ranks_of_reversed_order_and_of_ties() {
        let up = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)];
        let down = [(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)];
        assert!((rank_correlation(&up) - 1.0).abs() < 1e-9);
        assert!((rank_correlation(&down) + 1.0).abs() < 1e-9);
        // The first two are equal within 2 %.
        let tied = [(100.0, 99.0), (99.0, 100.0), (50.0, 49.0), (0.0, 0.0)];
        assert!((rank_correlation(&tied) - 1.0).abs() < 1e-9);
        assert!(rank_correlation(&[(100.0, 0.0), (50.0, 50.0), (10.0, 10.0)]) < 0.0);
    }

    #[test]
    fn report_against_true_numbers() {
        let report = Report::of(&json!({
            "version": 3, "thread_time_ns": 1e9, "duration_ns": 1e9, "probes": 8,
            "cost": {"budget": 0.01, "cpu_ns": 1.02e9, "probes_ns": 1e7, "service_ns": 5e6, "toggles_ns": 1e6, "startup_ns": 4e6,
                     "error": 0.1, "memory_bytes": 100_000},
            "functions": [
                {"name": "exact", "object": "a", "address": "0x10", "samples": 3, "calls": {"value": 3, "low": 3, "high": 3},
                 "total_ns": {"value": 1.1e9, "low": 1.1e9, "high": 1.1e9}, "self_ns": null, "recursive": false, "open_calls": 0,
                 "latency_ns": {"min": 1, "mean": {"value": 5, "low": 5, "high": 5}, "p50": {"value": 5, "low": 4, "high": 6},
                                "p90": null, "max": 9, "below_resolution": true, "resolution": 20}, "off_cpu": null},
                {"name": "good", "object": "a", "address": "0x20", "calls": {"value": 100, "low": 80, "high": 120}},
                {"name": "confident", "object": "a", "address": "0x30", "calls": {"value": 100, "low": 90, "high": 110}},
                {"name": "modest", "object": "a", "address": "0x40", "calls": {"value": 100, "low": 10, "high": 500}},
                {"name": "open", "object": "a", "address": "0x50", "calls": {"value": 10, "low": 10, "high": null}},
                {"name": "miscounted", "object": "a", "address": "0x70", "calls": {"value": 10, "low": 10, "high": 10}},
            ],
        }));
        let report = report.expect("a report");
        let latency = report.rows[&0x10].latency.expect("a latency");
        assert_eq!((latency.p50, latency.p90), (Some(figure(5.0, 4.0, 6.0)), None));
        assert!(latency.below_resolution);
        assert!((report.stated_cost.expect("a cost") - 0.02).abs() < 1e-9);
        let truths = [
            (0x10, 3.0),
            (0x20, 115.0),
            (0x30, 300.0),
            (0x40, 300.0),
            (0x50, 99.0),
            (0x60, 1.0),
            (0x70, 11.0),
        ];
        let truths = truths.map(|(address, calls)| (address, exactly(calls))).into_iter().collect();
        let calls = Calls::compare(&report, &truths);
        let expected = Calls {
            rows: 6,
            coverage: Share { hits: 3, of: 5 },
            estimated: Share { hits: 2, of: 3 },
            exact_wrong: 1,
            at_least: Share { hits: 1, of: 1 },
            off: 2,
            confident: 1,
            missing: 1,
            over: 1,
        };
        assert_eq!(calls, expected);
        assert!(Report::of(&json!({"version": 1})).is_err());
    }
}
