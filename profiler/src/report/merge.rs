//! Merges reports of the processes of a run, or of several runs.
//!
//! Values are added, and so are the ends of their intervals: errors of sampling would partly cancel
//! out, but those of the clock and of the cost of probes have the same sign in every process of a
//! program, and a report does not state them separately. A percentile of all calls is between the
//! smallest and the largest percentile of the parts: that is its interval, and its value is their
//! mean, weighted by the calls.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Arc, Caller, Cost, Estimate, FunctionRef, FunctionReport, Latency, OffCpu, Report};

impl Report {
    /// Adds the measurements of other processes. Command and process id become those of the run's
    /// first process, if the other report has it; the run stays that of this report.
    ///
    /// Functions are identified by object and address, so the reports must be those of the same
    /// builds: see [`Report::conflict`].
    pub fn merge(&mut self, other: Report) {
        if self.settings != other.settings {
            self.add_note(
                "the reports that were merged have different settings: a function may have been measured in \
                 some of them only"
                    .to_owned(),
            );
        }
        let is_first_of_run = other.run == self.run && other.run.ends_with(&format!(".{}", other.pid));
        // A process that has called exec has several reports.
        if is_first_of_run && (other.pid != self.pid || other.started_us < self.started_us) {
            (self.pid, self.command, self.started_us) = (other.pid, other.command, other.started_us);
        }
        self.processes = self.processes.saturating_add(other.processes);
        self.duration_ns = self.duration_ns.max(other.duration_ns);
        self.thread_time_ns = self.thread_time_ns.saturating_add(other.thread_time_ns);
        self.probes = self.probes.max(other.probes);
        self.toggles = self.toggles.saturating_add(other.toggles);
        self.samples = self.samples.saturating_add(other.samples);
        self.lost_samples = self.lost_samples.saturating_add(other.lost_samples);
        self.stacks = self.stacks.saturating_add(other.stacks);
        self.cost = self.cost.plus(&other.cost);
        other.notes.into_iter().for_each(|note| self.add_note(note));
        add_by_key(&mut self.functions, other.functions, FunctionReport::key, FunctionReport::merge);
        let key = |arc: &Arc| -> (Caller, FunctionRef) { (arc.caller.clone(), arc.callee.clone()) };
        add_by_key(&mut self.arcs, other.arcs, key, |arc, other| {
            arc.calls = arc.calls.plus(&other.calls);
            arc.total_ns = plus(arc.total_ns, other.total_ns);
        });
    }

    fn add_note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A function of this report whose object and address belong to a function with another name in
    /// the other report, which is the second result: the reports are of different builds of the
    /// object, and cannot be merged.
    #[must_use]
    pub fn conflict<'a>(&'a self, other: &'a Report) -> Option<(&'a FunctionReport, &'a FunctionReport)> {
        let key = |function: &'a FunctionReport| (function.object.as_str(), function.address);
        let own: HashMap<_, _> = self.functions.iter().map(|function| (key(function), function)).collect();
        let pairs = other.functions.iter().filter_map(|other| Some((*own.get(&key(other))?, other)));
        pairs.into_iter().find(|(own, other)| own.name != other.name)
    }
}

/// Merges items with the same key, and appends the others.
fn add_by_key<T, K: Eq + Hash>(
    items: &mut Vec<T>,
    others: Vec<T>,
    key: impl Fn(&T) -> K,
    merge: impl Fn(&mut T, T),
) {
    let mut places: HashMap<K, usize> = items.iter().enumerate().map(|(at, item)| (key(item), at)).collect();
    for other in others {
        let end = items.len();
        match *places.entry(key(&other)).or_insert(end) {
            place if place == end => items.push(other),
            place => merge(&mut items[place], other),
        }
    }
}

impl FunctionReport {
    fn merge(&mut self, other: FunctionReport) {
        self.latency_ns = match (self.latency_ns, other.latency_ns) {
            (Some(latency), Some(others)) => Some(latency.mixed(&self.calls, &others, &other.calls)),
            (Some(latency), None) => Some(latency.of_a_part(&other.calls)),
            (None, Some(others)) => Some(others.of_a_part(&self.calls)),
            (None, None) => None,
        };
        self.samples += other.samples;
        self.calls = self.calls.plus(&other.calls);
        self.total_ns = plus(self.total_ns, other.total_ns);
        self.self_ns = plus(self.self_ns, other.self_ns);
        self.recursive |= other.recursive;
        self.open_calls += other.open_calls;
        self.location = self.location.take().or(other.location);
        self.off_cpu = match (self.off_cpu, other.off_cpu) {
            (Some(one), Some(two)) => {
                Some(OffCpu { samples: one.samples + two.samples, ns: one.ns.saturating_add(two.ns) })
            }
            (one, two) => one.or(two),
        };
    }
}

/// The sum of two figures, one of which may be unknown.
fn plus(one: Option<Estimate>, two: Option<Estimate>) -> Option<Estimate> {
    match (one, two) {
        (Some(one), Some(two)) => Some(one.plus(&two)),
        (one, two) => one.or(two).map(|known| Estimate { high: None, ..known }),
    }
}

impl Latency {
    /// The latency of these calls and of others, of which nothing is known but their number.
    fn of_a_part(self, others: &Estimate) -> Latency {
        if others.high == Some(0.0) {
            return self;
        }
        let unlimited = |known: Estimate| Estimate { low: 0.0, high: None, ..known };
        Latency {
            mean: unlimited(self.mean),
            p50: unlimited(self.p50),
            p90: unlimited(self.p90),
            p99: unlimited(self.p99),
            ..self
        }
    }

    /// The latency of the calls of both reports.
    fn mixed(&self, calls: &Estimate, other: &Latency, other_calls: &Estimate) -> Latency {
        let sum = calls.value + other_calls.value;
        let weight = if sum > 0.0 { calls.value / sum } else { 0.5 };
        let mixed = |one: f64, two: f64| weight * one + (1.0 - weight) * two;
        let percentile = |one: &Estimate, two: &Estimate| {
            let value = mixed(one.value, two.value);
            let high = one.high.zip(two.high).map_or(f64::INFINITY, |(one, two)| one.max(two));
            Estimate::within(value, one.low.min(two.low), high)
        };
        // The effect of the error of the weights on the difference between the means.
        let uncertain_weight = match (calls.half_width(), other_calls.half_width()) {
            (Some(one), Some(two)) if sum > 0.0 => {
                let slope = (self.mean.value - other.mean.value).abs() / sum;
                slope * ((1.0 - weight) * one + weight * two)
            }
            // All calls may be in either part.
            _ => (self.mean.value - other.mean.value).abs(),
        };
        let value = mixed(self.mean.value, other.mean.value);
        let low = mixed(self.mean.low, other.mean.low) - uncertain_weight;
        let high = self.mean.high.zip(other.mean.high);
        let high = high.map_or(f64::INFINITY, |(one, two)| mixed(one, two) + uncertain_weight);
        Latency {
            min: self.min.min(other.min),
            mean: Estimate::within(value, low, high),
            p50: percentile(&self.p50, &other.p50),
            p90: percentile(&self.p90, &other.p90),
            p99: percentile(&self.p99, &other.p99),
            max: self.max.max(other.max),
            below_resolution: if weight >= 0.5 { self.below_resolution } else { other.below_resolution },
            resolution: self.resolution.max(other.resolution),
        }
    }
}

impl Cost {
    fn plus(&self, other: &Cost) -> Cost {
        let [one, two] = [self, other].map(|cost| cost.estimated_ns() as f64);
        let error = (self.error * one + other.error * two) / (one + two);
        Cost {
            // The larger one; `None` means no limit.
            budget: self.budget.zip(other.budget).map(|(one, two)| one.max(two)),
            cpu_ns: self.cpu_ns.saturating_add(other.cpu_ns),
            probes_ns: self.probes_ns.saturating_add(other.probes_ns),
            service_ns: self.service_ns.saturating_add(other.service_ns),
            toggles_ns: self.toggles_ns.saturating_add(other.toggles_ns),
            stacks_ns: self.stacks_ns.saturating_add(other.stacks_ns),
            startup_ns: self.startup_ns.saturating_add(other.startup_ns),
            report_ns: self.report_ns.saturating_add(other.report_ns),
            error: if error.is_finite() { error } else { 0.0 },
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::*;

    fn merged(change: impl Fn(&mut Report)) -> Report {
        let mut other = example();
        change(&mut other);
        let mut report = example();
        report.merge(other);
        report
    }

    fn function<'a>(report: &'a Report, name: &str) -> &'a FunctionReport {
        report.functions.iter().find(|function| function.name == name).unwrap()
    }

    #[test]
    fn a_report_merged_with_itself_has_twice_of_everything() {
        let report = merged(|other| {
            other.pid = 1;
            other.duration_ns = 1;
            other.notes = vec!["note".to_owned()];
        });
        let single = example();
        assert_eq!((report.pid, report.processes, report.duration_ns), (4242, 2, single.duration_ns));
        assert_eq!(report.thread_time_ns, 2 * single.thread_time_ns);
        assert_eq!((report.probes, report.samples), (single.probes, 2 * single.samples));
        assert_eq!(report.notes, ["note"]);
        assert_eq!((report.functions.len(), report.arcs.len()), (single.functions.len(), single.arcs.len()));
        assert_eq!(report.cost.total_ns(), 2 * single.cost.total_ns());
        assert!((report.cost.error - single.cost.error).abs() < 1e-9);
        let main = function(&report, "main");
        assert_eq!((main.calls, main.total_ns), (Estimate::exact(2.0), Some(Estimate::exact(4.2e9))));
        assert_eq!((main.samples, main.open_calls), (2, 2));
        let (hash, of_one) = (function(&report, "hash"), function(&single, "hash"));
        assert_eq!(hash.calls.value, 2.0 * of_one.calls.value);
        assert_eq!(hash.calls.half_width().unwrap(), 2.0 * of_one.calls.half_width().unwrap());
        assert_eq!(hash.off_cpu, Some(OffCpu { samples: 6, ns: 24_800_000 }));
        let (latency, of_one) = (hash.latency_ns.unwrap(), of_one.latency_ns.unwrap());
        assert_eq!((latency.p90, latency.min, latency.max), (of_one.p90, of_one.min, of_one.max));
        assert_eq!(function(&report, "Tree::insert(int)").calls, Estimate::at_least(10_000.0));
        assert_eq!(report.arcs[1].calls, Estimate::exact(2.0));
    }

    #[test]
    fn the_process_that_the_run_began_with_names_the_report() {
        let with_pid = |pid: u32, run: &str| Report {
            pid,
            run: run.to_owned(),
            command: vec![pid.to_string()],
            ..example()
        };
        let check = |runs: [&str; 3], expected: u32| {
            let mut report = with_pid(5, runs[0]);
            report.merge(with_pid(4, runs[1]));
            report.merge(with_pid(6, runs[2]));
            assert_eq!((report.pid, report.command), (expected, vec![expected.to_string()]));
        };
        check(["1.4"; 3], 4);
        check(["1.6"; 3], 6);
        check(["1.5"; 3], 5);
        check(["1.14"; 3], 5);
        check(["1.5", "1.4", "1.6"], 5);
    }

    #[test]
    fn the_program_that_a_process_has_executed_first_names_the_report() {
        let started_at = |time: u64| Report {
            run: "1.5".to_owned(),
            pid: 5,
            started_us: time,
            command: vec![time.to_string()],
            ..example()
        };
        for times in [[1, 2], [2, 1]] {
            let mut report = started_at(times[0]);
            report.merge(started_at(times[1]));
            assert_eq!((report.started_us, report.command), (1, vec!["1".to_owned()]));
        }
    }

    #[test]
    fn functions_of_different_builds_are_found() {
        let report = example();
        let mut other = example();
        other.functions[0].address += 16;
        assert_eq!(report.conflict(&other), None);
        other.functions[1].name = "rebuilt".to_owned();
        let (one, two) = report.conflict(&other).unwrap();
        assert_eq!((one.name.as_str(), two.name.as_str()), ("fini", "rebuilt"));
    }

    #[test]
    fn different_settings_are_noted_once() {
        let mut report = merged(|_| {});
        assert!(report.notes.is_empty());
        for _ in 0..2 {
            report.merge(Report { settings: "only=main".to_owned(), ..example() });
        }
        assert!(
            matches!(&report.notes[..], [note] if note.contains("different settings")),
            "{:?}",
            report.notes
        );
    }

    #[test]
    fn percentiles_are_between_those_of_the_parts() {
        let report = merged(|other| {
            let hash = &mut other.functions[0];
            hash.calls = Estimate::exact(hash.calls.value * 3.0);
            let latency = hash.latency_ns.as_mut().unwrap();
            (latency.p50, latency.mean) = (Estimate::exact(192.5), Estimate::exact(196.04));
            (latency.min, latency.max) = (1.0, 90_000.0);
        });
        let latency = function(&report, "hash").latency_ns.unwrap();
        assert_eq!((latency.min, latency.max), (1.0, 90_000.0));
        assert!((latency.p50.value - 167.5).abs() < 1e-6, "{latency:?}");
        assert!(latency.p50.low < 92.5 && latency.p50.high == Some(192.5), "{latency:?}");
        assert!((latency.mean.value - 171.04).abs() < 1e-6, "{latency:?}");
        // A quarter of the first mean's error; and the first's calls are known to 9 %, which
        // changes the weight by 2 %.
        let error = latency.mean.half_width().unwrap();
        assert!((1.5..2.5).contains(&error), "{error}");
    }

    /// A child has called the function once, before its probe was ready.
    #[test]
    fn calls_of_which_none_was_timed_may_have_taken_any_time() {
        let latency_with = |calls: Estimate| {
            let report = merged(|other| {
                (other.functions[0].calls, other.functions[0].latency_ns) = (calls, None);
            });
            function(&report, "hash").latency_ns.unwrap()
        };
        let timed = function(&example(), "hash").latency_ns.unwrap();
        assert_eq!(latency_with(Estimate::exact(0.0)), timed);
        let latency = latency_with(Estimate::exact(1.0));
        assert_eq!((latency.min, latency.max), (timed.min, timed.max));
        for (unlimited, timed) in
            [(latency.mean, timed.mean), (latency.p50, timed.p50), (latency.p99, timed.p99)]
        {
            assert_eq!((unlimited.value, unlimited.low, unlimited.high), (timed.value, 0.0, None));
        }
    }

    #[test]
    fn what_one_part_does_not_know_has_no_upper_bound() {
        let report = merged(|other| {
            other.functions[0].total_ns = None;
            other.functions[0].calls = Estimate::at_least(10.0);
            other.functions[2].name = "another".to_owned();
            other.functions[2].address = 1;
            other.arcs.clear();
        });
        let hash = function(&report, "hash");
        assert_eq!(
            hash.total_ns.map(|total| (total.value, total.low, total.high)),
            Some((1_185_650_000.0, 1.1e9, None))
        );
        assert_eq!(hash.calls.high, None);
        assert!(hash.calls.low > 11_000_000.0);
        assert_eq!(report.functions.len(), example().functions.len() + 1);
        assert_eq!(report.arcs, example().arcs);
    }
}
