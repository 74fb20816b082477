//! Derives the rows of the report from the measurements of each function: self time, callers,
//! recursion.
//!
//! # Self time
//! The self time of a function is the time of all its calls minus that of the calls it made:
//! `total(f) - Σ total(f → g)`. Both are estimated from independent windows, so the variances add.
//! Self time cannot be negative, nor more than the total. Calls to a sampled function are seen in
//! its windows: if a function makes only a few long calls to such functions, perhaps none of them
//! is seen. Therefore, if any function was sampled, the self time of functions whose calls were all
//! timed has only an upper limit.
//!
//! # Recursion
//! A call inside another call to the same function must not count twice in its total. The total is
//! the time of the calls that came from other functions. If functions call each other in a cycle,
//! some of these calls are still inside another call to the function, and it is not known which.
//! Such a function's total is at most the time of the calls that lead into the cycle from outside.
//! If only a few of these were observed, their time has no upper limit. It is at least the time of
//! the calls to the function from outside of the cycle, its self time, and its longest call.

use std::collections::{HashMap, HashSet};

use crate::estimate::callers::{Arcs, CallerOf, Callers, From, part, part_of_counted};
use crate::estimate::cycles::cycles;
use crate::observe::function::FUNCTIONS;
use crate::observe::measured::{Missed, OpenCalls, Selection, Units};
use crate::observe::schedule::Schedule;
use crate::observe::thread::{self, Limits};
use crate::report::{Arc, Caller, Estimate, FunctionRef, FunctionReport, Latency};
use crate::session::unloaded::MissedCalls;
use crate::stacks::{FunctionTime, Times};

/// The minimum number of calls into a recursion, observed in windows, from which their time is
/// estimated. They may take much longer than the calls inside the recursion, which are most of the
/// observed ones; and if they do, windows are over before they return
/// ([`crate::observe::function`]), so only a few are observed in any case.
const FEW: f64 = 30.0;

/// Stands for callers that are not instrumented.
const NOT_INSTRUMENTED: &str = "[not instrumented]";

/// Open calls, and their callers.
#[derive(Default)]
struct Open {
    calls: HashMap<u32, OpenCalls>,
    callers: HashMap<u32, Callers>,
}

impl Open {
    fn now() -> Self {
        let mut open = Self::default();
        let mut outermost = HashSet::new();
        thread::open_calls(|thread, entry, Limits { least, most, time, .. }| {
            let Some(function) = FUNCTIONS.get(entry.function as usize) else { return };
            if entry.function == 0 {
                return;
            }
            let weight = f64::from(entry.weight.max(1.0));
            let calls = open.calls.entry(entry.function).or_default();
            if !function.is_exit_seen(entry.period) {
                // The call may have returned. Inside another call to the same function, it adds no
                // time, whether it has or not.
                if !thread.has_one_stack() {
                    return;
                }
                calls.missed.calls += weight;
                if outermost.insert((std::ptr::from_ref(thread), entry.function)) {
                    calls.missed.least += weight * least as f64;
                    calls.missed.most += weight * most as f64;
                }
                return;
            }
            calls.number += 1;
            calls.weighted += weight;
            // Long calls of a sampled function are open in many windows: without a weight, the time
            // is a lower bound.
            if outermost.insert((std::ptr::from_ref(thread), entry.function)) {
                let ticks = time.ticks as f64;
                calls.ticks += ticks;
                calls.below += time.below as f64;
                calls.above += time.above as f64;
                open.callers.entry(entry.function).or_default().call(entry.origin(), 1.0, ticks);
            }
        });
        open
    }
}

/// One function's figures, for the sums over arcs.
struct Row {
    index: u32,
    report: FunctionReport,
    /// The time of all calls, including nested calls to the same function.
    all: Option<Estimate>,
    windows: f64,
    /// Whether the function was measured all the time. If not, calls that it made at other times
    /// may have been measured.
    is_complete: bool,
}

/// The rows of the report, and the arcs between them.
pub(crate) fn of(
    schedule: &Schedule,
    caller_of: &mut CallerOf<'_>,
    units: &Units,
    times: Option<&Times<'_>>,
    unloaded: &MissedCalls,
) -> (Vec<FunctionReport>, Vec<Arc>) {
    let open = Open::now();
    let mut arcs = Arcs::default();
    let mut rows = Vec::new();
    for (index, measured) in (0..).zip(&schedule.functions).skip(1) {
        let observed = measured.observed();
        let mut strata = schedule.strata_now(index, &observed);
        unloaded.add_to(&mut strata, measured.object());
        let mut calls = open.calls.get(&index).copied().unwrap_or_default();
        let Missed { calls: missed, least, most } = calls.missed;
        if missed > 0.0 && strata.are_unusual(least / missed) {
            strata.timed_between(missed, least / missed, most / missed);
        } else {
            calls.missed = Missed::default();
        }
        let Some(report) = measured.report(&observed, &strata, &calls, units) else { continue };
        arcs.add(index, &observed.callers, caller_of);
        open.callers.get(&index).into_iter().for_each(|callers| arcs.add(index, callers, caller_of));
        let windows = if strata.is_exact() { f64::INFINITY } else { strata.windows() };
        let is_complete = measured.selection == Selection::Always;
        rows.push(Row { index, all: report.total_ns, report, windows, is_complete });
    }
    let mut edges: Vec<Edge> = edges(&rows, &arcs, units);
    let circles = circles(&edges);
    unlimit(&mut edges, &circles);
    finish(&mut rows, &edges, &circles, units);
    if let Some(times) = times {
        add_sampled_times(&mut rows, &mut edges, times, units);
    }
    let keys: HashMap<u32, FunctionRef> = rows.iter().map(|row| (row.index, row.report.key())).collect();
    let arcs = edges.into_iter().filter_map(|edge| {
        let caller = match edge.caller.and_then(|caller| keys.get(&caller)) {
            Some(key) => Caller::Function(key.clone()),
            None => Caller::Other(NOT_INSTRUMENTED.to_owned()),
        };
        let (calls, total_ns) = (edge.calls.or_least(), edge.total.map(Estimate::or_least));
        Some(Arc { caller, callee: keys.get(&edge.callee)?.clone(), calls, total_ns })
    });
    let arcs = arcs.collect();
    (rows.into_iter().map(|row| without_guesses(row.report)).collect(), arcs)
}

/// A row without values that may be wrong by any factor.
fn without_guesses(mut report: FunctionReport) -> FunctionReport {
    report.calls = report.calls.or_least();
    report.total_ns = report.total_ns.map(Estimate::or_least);
    report.self_ns = report.self_ns.map(Estimate::or_least);
    report
}

/// An arc with its estimates.
struct Edge {
    caller: Option<u32>,
    callee: u32,
    calls: Estimate,
    total: Option<Estimate>,
    /// The number of calls observed in windows, if that matters.
    seen: Option<f64>,
}

/// The recursions to which functions belong.
fn circles(edges: &[Edge]) -> HashMap<u32, u32> {
    cycles(edges.iter().filter_map(|edge| Some((edge.caller?, edge.callee))))
}

/// Removes the upper limits of the time of calls into recursions if only a few of them were
/// observed.
fn unlimit(edges: &mut [Edge], circles: &HashMap<u32, u32>) {
    for edge in edges {
        let circle = circles.get(&edge.callee);
        let leads_into = circle.is_some() && edge.caller.and_then(|caller| circles.get(&caller)) != circle;
        if leads_into && edge.seen.is_some_and(|seen| seen < FEW) {
            edge.total = edge.total.map(|total| Estimate { high: None, ..total });
        }
    }
}

fn edges(rows: &[Row], arcs: &Arcs, units: &Units) -> Vec<Edge> {
    let by_index: HashMap<u32, &Row> = rows.iter().map(|row| (row.index, row)).collect();
    let mut sums: HashMap<u32, From> = HashMap::new();
    for ((_, callee), from) in &arcs.arcs {
        sums.entry(*callee).or_default().add(from);
    }
    let edge = |((caller, callee), from): (&(Option<u32>, u32), &From)| {
        let (row, sum) = (by_index.get(callee)?, &sums[callee]);
        let part_of = |whole: &Estimate, of_arc: f64, of_all: f64| {
            if row.windows.is_infinite() {
                return part_of_counted(whole, of_arc, of_all);
            }
            part(whole, if of_all > 0.0 { of_arc / of_all } else { 0.0 }, row.windows)
        };
        let calls = part_of(&row.report.calls, from.calls, sum.calls);
        let [of_arc, of_all] = [from.ticks, sum.ticks].map(|ticks| ticks / units.ticks_per_ns);
        let total = row.all.map(|all| bounded(part_of(&all, of_arc, of_all), true, units));
        let seen = row.windows.is_finite().then_some(from.seen);
        Some(Edge { caller: *caller, callee: *callee, calls, total, seen })
    };
    arcs.arcs.iter().filter_map(edge).collect()
}

/// Adds a figure to a sum, assuming independent errors.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    below: f64,
    above: Option<f64>,
    is_open: bool,
}

impl Sum {
    fn add(&mut self, estimate: &Estimate) {
        let estimate = estimate.or_least();
        self.value += estimate.value;
        self.below = self.below.hypot(estimate.value - estimate.low);
        match estimate.high {
            Some(high) => self.above = Some(self.above.unwrap_or(0.0).hypot(high - estimate.value)),
            None => self.is_open = true,
        }
    }

    fn high(&self) -> f64 {
        if self.is_open { f64::INFINITY } else { self.value + self.above.unwrap_or(0.0) }
    }
}

/// A total, which is at most the time of all threads. A sum over calls that may be nested can
/// exceed that; then it says nothing about the minimum time.
fn bounded(total: Estimate, may_be_nested: bool, units: &Units) -> Estimate {
    let low = if may_be_nested && total.value > units.thread_time { 0.0 } else { total.low };
    Estimate { low, ..total }.at_most(units.thread_time)
}

fn finish(rows: &mut [Row], edges: &[Edge], circles: &HashMap<u32, u32>, units: &Units) {
    let circle_of = |index: u32| circles.get(&index).copied();
    let mut callees: HashMap<u32, Sum> = HashMap::new();
    let mut from_others: HashMap<u32, Sum> = HashMap::new();
    let mut into_circle: HashMap<u32, Sum> = HashMap::new();
    let mut from_outside: HashMap<u32, Sum> = HashMap::new();
    for edge in edges {
        let Some(total) = &edge.total else { continue };
        if let Some(caller) = edge.caller {
            callees.entry(caller).or_default().add(total);
        }
        if edge.caller != Some(edge.callee) {
            from_others.entry(edge.callee).or_default().add(total);
        }
        if let Some(circle) = circle_of(edge.callee)
            && edge.caller.and_then(circle_of) != Some(circle)
        {
            into_circle.entry(circle).or_default().add(total);
            from_outside.entry(edge.callee).or_default().add(total);
        }
    }
    let any_is_sampled = rows.iter().any(|row| row.windows.is_finite());
    for row in rows {
        let Some(all) = row.all else { continue };
        let may_be_unseen = any_is_sampled && row.windows.is_infinite();
        let called = callees.get(&row.index).copied().unwrap_or_default();
        let own = all.value - called.value;
        let below = (all.value - all.low).hypot(called.above.unwrap_or(0.0));
        let low = if called.is_open || may_be_unseen { 0.0 } else { own - below };
        let above = all.high.map_or(f64::INFINITY, |high| (high - all.value).hypot(called.below));
        // If calls took longer than their caller, the times are wrong by that much at least.
        let above = above.max(-own);
        let own = Estimate::within(own, low, own.max(0.0) + above).at_most(units.thread_time);
        row.report.self_ns = row.is_complete.then_some(own);
        if let Some(circle) = circle_of(row.index) {
            row.report.recursive = true;
            let from = from_others.get(&row.index).copied().unwrap_or_default();
            let total = Estimate::within(from.value, from.value - from.below, from.high());
            let outside = from_outside.get(&row.index).copied().unwrap_or_default();
            let longest = row.report.latency_ns.as_ref().map_or(0.0, |latency| latency.max);
            let least = (outside.value - outside.below).max(own.low).max(longest);
            let total = Estimate { low: total.low.min(least), ..total };
            let most = into_circle.get(&circle).copied().unwrap_or_default();
            row.report.total_ns = Some(if most.value > 0.0 && most.high() < total.value {
                Estimate::within(most.value, (most.value - most.below).min(total.low), most.high())
            } else {
                total
            });
        }
        let is_recursive = row.report.recursive;
        row.report.total_ns = row.report.total_ns.map(|total| bounded(total, is_recursive, units));
        let total = row.report.total_ns.and_then(|total| total.high);
        if let (Some(own), Some(total)) = (row.report.self_ns, total) {
            row.report.self_ns = Some(own.at_most(total));
        }
    }
}

/// Replaces figures that are less certain than the times of sampled stacks, and adds arcs that only
/// these have shown.
fn add_sampled_times(rows: &mut [Row], edges: &mut Vec<Edge>, times: &Times<'_>, units: &Units) {
    for row in rows.iter_mut().filter(|row| row.is_complete) {
        let FunctionTime { total, own } = times.of(row.index);
        let report = &mut row.report;
        let timed = report.total_ns;
        let is_sampled = row.windows.is_finite();
        let total = narrower(timed, total.at_most(units.thread_time), is_sampled);
        report.total_ns = Some(total);
        if let (Some(timed), Some(latency)) = (timed, &mut report.latency_ns)
            && total.value < timed.value
            && total.high == timed.high
        {
            without_excess(latency, timed.value, &total);
        }
        if let Some(latency) = report.latency_ns.as_mut().filter(|_| !report.recursive) {
            latency.mean = consistent(latency.mean, &total, &report.calls);
        }
        let own = narrower(report.self_ns, own, is_sampled);
        report.self_ns = Some(total.high.map_or(own, |high| own.at_most(high)));
    }
    let known: HashSet<(Option<u32>, u32)> = edges.iter().map(|edge| (edge.caller, edge.callee)).collect();
    let unseen: HashSet<_> = times.arcs().filter(|arc| !known.contains(arc)).collect();
    edges.extend(unseen.into_iter().map(|(caller, callee)| Edge {
        caller,
        callee,
        calls: Estimate::at_least(0.0),
        total: None,
        seen: None,
    }));
    for edge in edges {
        let total = times.of_arc(edge.caller, edge.callee).at_most(units.thread_time);
        edge.total = Some(narrower(edge.total, total, edge.seen.is_some()));
    }
}

/// Corrects latencies whose sum was `timed`, but is found to be `total`: some of the calls may have
/// been shorter by the entire difference. The estimates assume that all were, in proportion.
fn without_excess(latency: &mut Latency, timed: f64, total: &Estimate) {
    let part = total.value / timed;
    let mean = latency.mean;
    latency.mean = Estimate {
        value: mean.value * part,
        low: mean.low.min(mean.value * (total.low / timed)),
        high: mean.high,
    };
    let excess = timed - total.low;
    for percentile in [&mut latency.p50, &mut latency.p90, &mut latency.p99] {
        percentile.low = percentile.low.min((percentile.value - excess).max(0.0));
        percentile.value = (percentile.value * part).max(percentile.low);
    }
    latency.max *= part;
    latency.min = latency.min.min((latency.min - excess).max(0.0));
}

/// The mean latency with an interval that agrees with the total time and the number of calls. If
/// few calls take most of the time, the timed calls may have none of these. If the number of calls
/// has no upper limit, there may be more calls than the estimate, or longer ones.
fn consistent(mean: Estimate, total: &Estimate, calls: &Estimate) -> Estimate {
    let ratio = |time: Option<f64>, calls: Option<f64>| time.zip(calls).map(|(time, calls)| time / calls);
    let least = ratio(Some(total.low), calls.high);
    let most = ratio(total.high, Some(calls.low)).unwrap_or(f64::INFINITY);
    if mean.high.is_some_and(|high| high < least.unwrap_or(total.low / calls.value)) {
        Estimate::within(mean.value, mean.low, most)
    } else if mean.low > most {
        Estimate { low: least.unwrap_or(0.0), ..mean }
    } else {
        mean
    }
}

/// The more precise of two estimates. If neither has an upper limit, only the lower limit of both
/// together is used.
///
/// `one` comes from timed calls. On a busy machine, a thread that has waited gets no processor for
/// a while; this time is not part of latencies, but is found only by samples (`other`). If the
/// samples show significantly less, they are correct, and `one` is the upper limit.
///
/// If calls were timed in windows (`is_sampled`), the samples may also show more: windows agree
/// with each other, and none of them contains a call that is rare and takes seconds. Samples cannot
/// miss it, since they are taken in its time.
fn narrower(one: Option<Estimate>, other: Estimate, is_sampled: bool) -> Estimate {
    let Some(one) = one else { return other };
    if is_sampled && one.high.is_some_and(|most| other.low > most) {
        return other;
    }
    if let Some(most) = other.high
        && one.low > most + (most - other.value)
    {
        return Estimate { high: one.high, ..other };
    }
    let width = |estimate: &Estimate| estimate.high.map_or(f64::INFINITY, |high| high - estimate.low);
    let (best, rest) = if width(&one) <= width(&other) { (one, other) } else { (other, one) };
    if best.high.is_none() && rest.low > best.low { rest } else { best }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::strata::Strata;
    use crate::observe::measured::Measured;
    use crate::stacks::of_chains;

    #[test]
    fn means_agree_with_totals_and_calls() {
        let within = |low: f64, high: f64| Estimate::within((low + high) / 2.0, low, high);
        let calls = within(1e6, 2e6);
        let of_total = |low, high| consistent(within(200.0, 300.0), &within(low, high), &calls);
        assert_eq!(of_total(4e8, 5e8), within(200.0, 300.0), "200 to 500 by these");
        assert_eq!(of_total(8e8, 9e8), Estimate::within(250.0, 200.0, 900.0));
        assert_eq!(of_total(1e8, 1.5e8), Estimate::within(250.0, 50.0, 300.0));
        let of_guess = |calls: f64| {
            let guess = Estimate { value: calls, low: 1e6, high: None };
            consistent(within(200.0, 300.0), &within(8e8, 9e8), &guess)
        };
        assert_eq!(of_guess(3e6), within(200.0, 300.0), "267 or more");
        assert_eq!(of_guess(2e6), Estimate::within(250.0, 200.0, 900.0), "400, or more calls");
        let no_limit = consistent(within(200.0, 300.0), &Estimate::at_least(8e8), &calls);
        assert_eq!(no_limit, Estimate::within(250.0, 200.0, f64::INFINITY));
    }

    /// A row of a function that was called once, for `ticks` ticks.
    fn row(index: u32, ticks: f64, units: &Units) -> Row {
        row_of_calls(index, &[ticks], units)
    }

    /// A row of a function whose calls took these ticks.
    fn row_of_calls(index: u32, calls: &[f64], units: &Units) -> Row {
        let mut strata = Strata::default();
        strata.counted(calls.len() as u64, 1.0);
        calls.iter().for_each(|ticks| strata.timed(*ticks));
        let measured = Measured::new(c"function", c"object", index as usize);
        let report = measured
            .report(&measured.observed(), &strata, &OpenCalls::default(), units)
            .expect("it was called");
        Row { index, all: report.total_ns, report, windows: f64::INFINITY, is_complete: true }
    }

    /// The latencies of calls that took `max` nanoseconds each.
    fn latency(max: f64) -> Latency {
        let [mean, p50, p90, p99] = [Estimate::exact(max); 4];
        Latency { min: max, mean, p50, p90, p99, max, below_resolution: false, resolution: 10.0 }
    }

    fn edge(caller: u32, callee: u32, total: Estimate) -> Edge {
        let calls = Estimate::exact(1.0);
        Edge { caller: Some(caller), callee, calls, total: Some(total), seen: None }
    }

    /// A function of which every call was timed has waited for half of that time, and for a quarter
    /// of it was ready to run and had no processor.
    #[test]
    fn time_without_a_processor_after_a_wait_is_not_part_of_totals() {
        let timed = Estimate::exact(1e9);
        let sampled = Estimate::within(7.5e8, 7.2e8, 7.8e8);
        let total = narrower(Some(timed), sampled, false);
        assert_eq!(total, Estimate::within(7.5e8, 7.2e8, 1e9));
        for close in [Estimate::within(9.5e8, 9.2e8, 9.8e8), Estimate::within(1.1e9, 1.05e9, 1.15e9)] {
            assert_eq!(narrower(Some(timed), close, false), timed, "chance, or time that is in no call");
        }
        let exact = Estimate::exact;
        let mut latency = Latency { min: 4e8, mean: exact(5e8), p50: exact(4e8), ..latency(6e8) };
        without_excess(&mut latency, 1e9, &total);
        assert_eq!(latency.mean, Estimate::within(3.75e8, 3.6e8, 5e8));
        assert_eq!((latency.p50.low, latency.p90.low, latency.min), (1.2e8, 3.2e8, 1.2e8));
        assert_eq!((latency.p50.value, latency.p90.value, latency.max), (3e8, 4.5e8, 4.5e8));
        assert_eq!((latency.p50.high, latency.p90.high), (Some(4e8), Some(6e8)));
    }

    /// A function calls itself, a million times as often as another calls it. Few of the latter
    /// calls were observed, and these were short.
    #[test]
    fn the_time_of_recursive_calls_has_no_limit_if_few_were_observed_from_outside() {
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e9 };
        let check = |seen: f64, is_limited: bool| {
            let mut rows = [row(1, 1e9, &units), row(2, 5e8, &units)];
            let mut into = edge(1, 2, Estimate::within(1e3, 0.0, 1e4));
            into.seen = Some(seen);
            let mut edges = [into, edge(2, 2, Estimate::within(5e8, 4e8, 6e8))];
            let circles = circles(&edges);
            unlimit(&mut edges, &circles);
            finish(&mut rows, &edges, &circles, &units);
            let [caller, callee] = rows.map(|row| row.report);
            assert_eq!(callee.total_ns.unwrap().high == Some(1e4), is_limited, "{seen}: {callee:?}");
            assert_eq!(caller.self_ns.unwrap().low > 0.0, is_limited, "{seen}: {caller:?}");
        };
        check(FEW - 1.0, false);
        check(FEW, true);
    }

    /// Two functions call each other 1000 times, and the times of the nested calls add up to more
    /// than the run.
    #[test]
    fn a_sum_over_nested_calls_is_no_lower_bound() {
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e6 };
        let mut rows = [row(1, 5e8, &units), row(2, 5e8, &units)];
        let mut arcs = Arcs::default();
        arcs.arcs.insert((Some(1), 2), From { calls: 1000.0, ticks: 5e8, seen: 1000.0 });
        arcs.arcs.insert((Some(2), 1), From { calls: 1000.0, ticks: 5e8, seen: 1000.0 });
        let edges = edges(&rows, &arcs, &units);
        finish(&mut rows, &edges, &circles(&edges), &units);
        for row in rows {
            let total = row.report.total_ns.expect("it was timed");
            assert_eq!((total.low, total.high), (0.0, Some(1e6)));
        }
    }

    /// 1 calls 2, which calls 3, which calls 2, which calls 3: for 15, 13, 5 and 3 of the 15
    /// milliseconds. All calls to 3 come from the cycle, but one of them is in the other.
    #[test]
    fn calls_from_a_cycle_may_be_nested() {
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 2e7 };
        let timed = |index: u32, calls: &[f64]| {
            let mut row = row_of_calls(index, calls, &units);
            row.report.latency_ns = Some(latency(calls[0]));
            row
        };
        let mut rows = [timed(1, &[1.5e7]), timed(2, &[1.5e7, 5e6]), timed(3, &[1.3e7, 3e6])];
        let exact = Estimate::exact;
        let edges = [edge(1, 2, exact(1.5e7)), edge(2, 3, exact(1.6e7)), edge(3, 2, exact(5e6))];
        finish(&mut rows, &edges, &circles(&edges), &units);
        let [_, two, three] = rows.map(|row| row.report.total_ns.expect("it was timed"));
        assert!(two.low <= 1.5e7 && two.low > 1.4e7 && two.high >= Some(1.5e7), "{two:?}");
        assert!(three.low <= 1.3e7 && three.low > 1.2e7 && three.high >= Some(1.3e7), "{three:?}");
    }

    /// The callees' time is hardly known, and estimated as more than all of the caller's.
    #[test]
    fn self_time_is_at_most_the_total() {
        let units = Units { ticks_per_ns: 1.0, resolution: 0, thread_time: 1e9 };
        let mut rows = [row(1, 1000.0, &units), row(2, 100.0, &units)];
        let edges = [edge(1, 2, Estimate::within(3000.0, 0.0, 9000.0))];
        finish(&mut rows, &edges, &circles(&edges), &units);
        let own = rows[0].report.self_ns.expect("it was timed");
        assert_eq!((own.low, own.high), (0.0, Some(1000.0)));
        assert_eq!(rows[1].report.self_ns, Some(Estimate::exact(100.0)));
    }

    /// The cost of the probes in both is not known exactly.
    #[test]
    fn self_time_is_not_exactly_0_if_callees_took_longer() {
        let units = Units { ticks_per_ns: 1.0, resolution: 0, thread_time: 1e9 };
        let mut rows = [row(1, 1000.0, &units), row(2, 1020.0, &units)];
        let edges = [edge(1, 2, Estimate::exact(1020.0))];
        finish(&mut rows, &edges, &circles(&edges), &units);
        assert_eq!(rows[0].report.self_ns, Some(Estimate::within(0.0, 0.0, 20.0)));
    }

    /// A function that was called once makes long calls of one that is sampled, which no window has
    /// shown.
    #[test]
    fn calls_of_a_sampled_function_may_not_have_been_seen() {
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e9 };
        let own_of = |windows: f64| {
            let mut rows = [row(1, 1e9, &units), row(2, 100.0, &units)];
            rows[1].windows = windows;
            finish(&mut rows, &[], &HashMap::new(), &units);
            rows[0].report.self_ns.expect("it was timed")
        };
        assert_eq!(own_of(f64::INFINITY), Estimate::exact(1e9));
        assert_eq!((own_of(10.0).low, own_of(10.0).high), (0.0, Some(1e9)));
    }

    /// 1 was timed in every call and calls 2, which windows have hardly seen, and 3, which they
    /// have not seen at all.
    #[test]
    fn samples_of_stacks_replace_what_windows_do_not_know() {
        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e6 };
        let mut rows = [row(1, 1e6, &units), row(2, 100.0, &units), row(3, 0.0, &units)];
        rows[1].report.total_ns = Some(Estimate::at_least(100.0));
        rows[1].report.self_ns = Some(Estimate::within(5e3, 0.0, 9e5));
        rows[2].report.total_ns = None;
        rows[2].is_complete = false;
        let mut edges = vec![edge(1, 2, Estimate::at_least(50.0))];
        let tally = of_chains(&[(&[2, 1], 600), (&[3, 1], 300), (&[1], 100)]);
        let times = Times::new(&tally, None, 1e3, 1e6, 0.0).expect("there are enough samples");
        add_sampled_times(&mut rows, &mut edges, &times, &units);
        let [one, two, three] = rows.map(|row| row.report);
        assert_eq!(one.total_ns, Some(Estimate::exact(1e6)));
        assert!(one.self_ns.is_some_and(|own| own.value == 1e5 && own.low > 7e4), "{one:?}");
        let near = |estimate: Option<Estimate>, value: f64| {
            estimate.is_some_and(|estimate| estimate.value == value && estimate.relative_error() < Some(0.1))
        };
        assert!(near(two.total_ns, 6e5) && near(two.self_ns, 6e5), "{two:?}");
        assert_eq!(three.total_ns, None, "it was not measured all the time");
        let arcs: Vec<_> = edges.iter().map(|edge| (edge.caller, edge.callee)).collect();
        assert!(arcs.starts_with(&[(Some(1), 2)]) && arcs.contains(&(Some(1), 3)), "{arcs:?}");
        assert!(near(edges[0].total, 6e5), "{:?}", edges[0].total);
    }

    #[test]
    fn the_estimate_that_says_more_is_taken() {
        #[track_caller]
        fn check(one: Option<Estimate>, other: Estimate, expected: Estimate) {
            assert_eq!(narrower(one, other, true), expected);
        }
        let (narrow, wide) = (Estimate::within(10.0, 9.0, 11.0), Estimate::within(11.0, 5.0, 20.0));
        check(None, wide, wide);
        check(Some(wide), narrow, narrow);
        check(Some(narrow), wide, narrow);
        check(Some(Estimate::at_least(12.0)), wide, wide);
        check(Some(Estimate::at_least(3.0)), Estimate::at_least(4.0), Estimate::at_least(4.0));
        check(Some(Estimate::at_least(4.0)), Estimate::at_least(3.0), Estimate::at_least(4.0));
    }

    /// A call every 20 us takes 1 us, but one took 5 s.
    #[test]
    fn a_rare_long_call_that_windows_have_missed_is_in_the_total() {
        let (windows, samples) = (Estimate::within(5e8, 4.8e8, 5.2e8), Estimate::within(5.4e9, 4.8e9, 6e9));
        assert_eq!(narrower(Some(windows), samples, true), samples);
        let at_least = Estimate { value: 5.4e9, low: 4.8e9, high: None };
        assert_eq!(narrower(Some(windows), at_least, true), at_least);
        assert_eq!(narrower(Some(windows), samples, false), windows, "every call was timed");
        let near = Estimate::within(6e8, 5.1e8, 7e8);
        assert_eq!(narrower(Some(windows), near, true), windows, "chance");

        let units = Units { ticks_per_ns: 1.0, resolution: 1, thread_time: 1e6 };
        let mut rows = [row(1, 1e6, &units), row(2, 100.0, &units)];
        rows[1].windows = 50.0;
        rows[1].report.total_ns = Some(Estimate::within(1e4, 9.9e3, 1.01e4));
        rows[1].report.self_ns = rows[1].report.total_ns;
        let mut into = edge(1, 2, Estimate::within(1e4, 9.9e3, 1.01e4));
        into.seen = Some(1000.0);
        let mut edges = vec![into];
        let tally = of_chains(&[(&[2, 1], 600), (&[1], 400)]);
        let times = Times::new(&tally, None, 1e3, 1e6, 0.0).expect("there are enough samples");
        add_sampled_times(&mut rows, &mut edges, &times, &units);
        let found = [rows[1].report.total_ns, rows[1].report.self_ns, edges[0].total];
        for found in found.map(|estimate| estimate.expect("it was timed")) {
            assert!(found.low < 6e5 && found.value == 6e5 && found.high > Some(6e5), "{found:?}");
        }
    }
}
