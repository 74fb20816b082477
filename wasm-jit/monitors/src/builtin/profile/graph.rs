//! The figures of functions and of the calls between them, and their text form.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use wasm_jit::printable;

use super::ArcData;
use crate::builtin::contexts::{Estimate, HOST, Merged, name};
use crate::{Cell, Program, Table};

/// Functions and the calls between them. Times are in milliseconds.
pub(super) struct Graph {
    /// The functions, by decreasing total time.
    pub(super) functions: Vec<Function>,
    pub(super) arcs: Vec<CallArc>,
    pub(super) total: f64,
    /// The number of calls in contexts for which there was no memory.
    pub(super) left_out: u64,
    /// The accuracy of times that come from samples.
    pub(super) estimate: Option<Estimate>,
}

#[derive(Default)]
pub(super) struct Function {
    name: Arc<str>,
    own: f64,
    total: f64,
    sampled: Sampled,
    pub(super) calls: u64,
    /// The number of calls made while the function was already being executed.
    pub(super) recursive: u64,
    /// The number of the cycle of calls to which the function belongs.
    cycle: Option<usize>,
}

/// Calls from one function to another, given by their positions among the functions.
pub(super) struct CallArc {
    /// `None` stands for the host.
    caller: Option<usize>,
    callee: usize,
    figures: Figures,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    calls: u64,
    recursive: u64,
    own: f64,
    children: f64,
    /// Whether these calls call other functions.
    has_children: bool,
    samples: u64,
}

/// The parts of a function's times that come from samples, and the number of these samples.
#[derive(Clone, Copy, Default)]
struct Sampled {
    own: f64,
    total: f64,
    own_samples: u64,
    total_samples: u64,
}

impl Graph {
    pub(super) fn new(merged: &Merged, given: &BTreeMap<(u32, u32), ArcData>, program: &Program<'_>) -> Self {
        let times = merged.times();
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let mut functions: BTreeMap<u32, Function> = BTreeMap::new();
        let mut arcs: BTreeMap<(u32, u32), Figures> = BTreeMap::new();
        let mut cycles = Cycles::default();
        let order = merged.depth_first(&times);
        let callers: BTreeSet<u32> = order.iter().map(|(at, _)| merged.nodes[*at as usize].parent).collect();
        for (at, _) in order {
            let node = &merged.nodes[at as usize];
            let (own, total) = (ms(times.own[at as usize]), ms(times.total[at as usize]));
            let function = functions.entry(node.function).or_default();
            function.own += own;
            // No function occurs twice on a path.
            function.total += total;
            function.calls += node.calls;
            let (own_samples, total_samples) = times.samples(at);
            let sampled = &mut function.sampled;
            sampled.own += own;
            sampled.total += total;
            sampled.own_samples += own_samples;
            sampled.total_samples += total_samples;
            let arc = arcs.entry((merged.nodes[node.parent as usize].function, node.function)).or_default();
            arc.calls += node.calls;
            arc.own += own;
            arc.samples += total_samples;
            arc.has_children |= callers.contains(&at);
            arc.children += ms(times.total[at as usize] - times.own[at as usize]);
            for (target, calls) in node.back.iter().filter(|(_, calls)| **calls > 0) {
                let callee = merged.nodes[*target as usize].function;
                functions.entry(callee).or_default().recursive += calls;
                arcs.entry((node.function, callee)).or_default().recursive += calls;
                let mut between = at;
                while between != *target {
                    cycles.join(merged.nodes[between as usize].function, callee);
                    between = merged.nodes[between as usize].parent;
                }
            }
        }
        let estimate = times.sampled.as_ref().map(|sampled| sampled.estimate);
        let mut total = ms(times.total[0]);
        total += add_given(given, &mut functions, &mut arcs);
        let cycles = cycles.numbers();
        for (index, function) in &mut functions {
            function.name = name(program, *index);
            function.cycle = cycles.get(index).copied();
        }
        let mut sorted: Vec<(u32, Function)> = functions.into_iter().collect();
        sorted.sort_by(|a, b| b.1.total.total_cmp(&a.1.total).then(a.0.cmp(&b.0)));
        let places: HashMap<u32, usize> =
            sorted.iter().enumerate().map(|(at, (index, _))| (*index, at)).collect();
        let arcs = arcs.into_iter().map(|((caller, callee), figures)| CallArc {
            caller: places.get(&caller).copied(),
            callee: places[&callee],
            figures,
        });
        let arcs = arcs.collect();
        Self {
            functions: sorted.into_iter().map(|(_, function)| function).collect(),
            arcs,
            total,
            left_out: merged.left_out(),
            estimate,
        }
    }

    /// gprof's flat profile, in the form of the thesis's Figure 5.3.
    pub(super) fn flat(&self, rows: usize) -> String {
        let mut order: Vec<&Function> = self.functions.iter().collect();
        order.sort_by(|a, b| b.own.total_cmp(&a.own));
        let error = if self.estimate.is_some() { format!(" {:>9}", "±") } else { String::new() };
        let mut out = format!(
            "{}{:>6} {:>12}{error} {:>12}{error} {:>14} {:>12} {:>13}  name\n",
            self.estimate.map_or(String::new(), |estimate| estimate.explanation()),
            "%",
            "cumulative",
            "self",
            "called",
            "self ms/call",
            "total ms/call"
        );
        for function in order.iter().take(rows) {
            let calls = (function.calls + function.recursive).max(1) as f64;
            let _ = writeln!(
                out,
                "{:>6.2} {} {} {:>14} {:>12.3} {:>13.3}  {}",
                self.percent(function.own),
                self.with_error(function.total, function.sampled.total),
                self.with_error(function.own, function.sampled.own),
                called(function.calls, function.recursive),
                function.own / calls,
                function.total / calls,
                function.label(),
            );
        }
        left_out(&mut out, order.len(), rows);
        out
    }

    /// gprof's call graph, in the form of the thesis's Figure 5.4.
    pub(super) fn call_graph(&self, rows: usize) -> String {
        let mut out = format!(
            "{}{:<7} {:>6} {:>12} {:>12} {:>20}  name\n",
            self.estimate.map_or(String::new(), |estimate| estimate.explanation_of_errors()),
            "index",
            "% time",
            "self",
            "children",
            "called"
        );
        let mut callers: Vec<Vec<&CallArc>> = self.functions.iter().map(|_| Vec::new()).collect();
        let mut callees: Vec<Vec<&CallArc>> = self.functions.iter().map(|_| Vec::new()).collect();
        for arc in &self.arcs {
            callers[arc.callee].push(arc);
            if let Some(caller) = arc.caller {
                callees[caller].push(arc);
            }
        }
        for (at, function) in self.functions.iter().enumerate().take(rows) {
            callers[at].sort_by(|a, b| a.time().total_cmp(&b.time()));
            callees[at].sort_by(|a, b| b.time().total_cmp(&a.time()));
            // The line of a function that calls itself says so.
            let is_other = |arc: &&&CallArc| arc.caller != Some(arc.callee);
            for arc in callers[at].iter().filter(is_other) {
                match arc.caller {
                    None if callers[at].iter().filter(is_other).count() == 1 => {
                        let _ = writeln!(out, "{:62}<spontaneous>", "");
                    }
                    None => self.line(&mut out, arc, "<spontaneous>"),
                    Some(caller) => self.line(&mut out, arc, &self.reference(caller)),
                }
            }
            let _ = writeln!(
                out,
                "{:<7} {:>6.2} {:>12} {:>12} {:>20}  {} [{at}]",
                format!("[{at}]"),
                self.percent(function.total),
                self.time(function.own, true),
                self.time(function.total - function.own, callees[at].iter().any(|arc| is_other(&arc))),
                called(function.calls, function.recursive),
                function.label(),
            );
            for arc in callees[at].iter().filter(is_other) {
                self.line(&mut out, arc, &self.reference(arc.callee));
            }
            out.push_str("-----------------------------------------------\n");
        }
        left_out(&mut out, self.functions.len(), rows);
        out
    }

    /// The line of a caller or callee.
    fn line(&self, out: &mut String, arc: &CallArc, name: &str) {
        let Figures { calls, recursive, own, children, has_children, .. } = arc.figures;
        // The time of recursive calls belongs to another line.
        let (own, children) = (self.time(own, calls > 0), self.time(children, calls > 0 && has_children));
        let called = match (calls, recursive) {
            (0, recursive) => recursive.to_string(),
            (calls, recursive) => {
                format!("{}/{}", called(calls, recursive), self.functions[arc.callee].calls)
            }
        };
        let _ = writeln!(out, "{:14} {own:>12} {children:>12} {called:>20}      {name}", "");
    }

    /// A time in milliseconds, as text. If no sample has found it but it `may_be` larger, it is
    /// shown as an upper bound.
    fn time(&self, time: f64, may_be: bool) -> String {
        match &self.estimate {
            Some(estimate) if time <= 0.0 && may_be => {
                let [bound, _] = estimate.milliseconds(0.0);
                bound
            }
            _ => format!("{time:.3}"),
        }
    }

    /// A time with its error, if a part of it is sampled; all in milliseconds.
    fn with_error(&self, time: f64, sampled: f64) -> String {
        let Some(estimate) = &self.estimate else { return format!("{time:>12.3}") };
        let [_, error] = estimate.milliseconds(sampled * 1e6);
        format!("{:>12} {error:>9}", self.time(time, true))
    }

    /// The table cells of a time.
    fn cells(&self, time: f64, sampled: f64, samples: u64) -> Vec<Cell> {
        let mut cells = vec![Cell::Float(time, 6)];
        if let Some(estimate) = &self.estimate {
            let (low, high) = estimate.interval(sampled * 1e6);
            let [low, high] = [low, high].map(|end| (time + end / 1e6 - sampled).max(0.0));
            cells.extend([Cell::Float(low, 6), Cell::Float(high, 6), samples.into()]);
        }
        cells
    }

    fn reference(&self, function: usize) -> String {
        format!("{} [{function}]", self.functions[function].label())
    }

    fn percent(&self, time: f64) -> f64 {
        if self.total > 0.0 { 100.0 * time / self.total } else { 0.0 }
    }

    pub(super) fn function_table(&self) -> Table {
        let columns: &[&str] = match &self.estimate {
            None => &["self ms", "cumulative ms"],
            Some(_) => &[
                "self ms",
                "self ms low",
                "self ms high",
                "self samples",
                "cumulative ms",
                "cumulative ms low",
                "cumulative ms high",
                "cumulative samples",
            ],
        };
        let others = ["called", "recursive calls", "cycle", "function"];
        let columns = ["index"].into_iter().chain(columns.iter().copied()).chain(others);
        let mut table = Table::new("functions", columns).hidden();
        for (at, function) in self.functions.iter().enumerate() {
            let sampled = &function.sampled;
            let mut row = vec![at.into()];
            row.extend(self.cells(function.own, sampled.own, sampled.own_samples));
            row.extend(self.cells(function.total, sampled.total, sampled.total_samples));
            row.extend([
                function.calls.into(),
                function.recursive.into(),
                function.cycle.into(),
                Cell::Text(function.name.clone()),
            ]);
            table.row(row);
        }
        table
    }

    pub(super) fn arc_table(&self) -> Table {
        let columns = ["caller", "callee", "called", "recursive calls", "self ms", "children ms"];
        let columns = columns.into_iter().chain(self.estimate.map(|_| "samples"));
        let mut table = Table::new("arcs", columns).hidden();
        let mut arcs: Vec<&CallArc> = self.arcs.iter().collect();
        arcs.sort_by(|a, b| b.time().total_cmp(&a.time()));
        for arc in arcs {
            let Figures { calls, recursive, own, children, samples, .. } = arc.figures;
            let row = [
                arc.caller
                    .map_or("<spontaneous>".into(), |caller| Cell::Text(self.functions[caller].name.clone())),
                Cell::Text(self.functions[arc.callee].name.clone()),
                calls.into(),
                recursive.into(),
                Cell::Float(own, 6),
                Cell::Float(children, 6),
            ];
            table.row(row.into_iter().chain(self.estimate.map(|_| samples.into())));
        }
        table
    }
}

impl CallArc {
    fn time(&self) -> f64 {
        self.figures.own + self.figures.children
    }
}

impl Function {
    fn label(&self) -> String {
        let name = printable(&self.name);
        match self.cycle {
            Some(cycle) => format!("{name} <cycle {cycle}>"),
            None => name.into_owned(),
        }
    }
}

fn called(calls: u64, recursive: u64) -> String {
    if recursive > 0 { format!("{calls}+{recursive}") } else { calls.to_string() }
}

fn left_out(out: &mut String, functions: usize, rows: usize) {
    if functions > rows {
        let _ = writeln!(out, "  and {} more functions (option rows=N)", functions - rows);
    }
}

/// Adds given calls, whose times are those of the callees including all that these call. Returns
/// the time of the calls from the host.
fn add_given(
    given: &BTreeMap<(u32, u32), ArcData>,
    functions: &mut BTreeMap<u32, Function>,
    arcs: &mut BTreeMap<(u32, u32), Figures>,
) -> f64 {
    let mut total = 0.0;
    // Functions are numbered from 1; 0 is the host, which is not called.
    let index = |number: u32| number.checked_sub(1).unwrap_or(HOST);
    let used = given.iter().filter(|((_, callee), arc)| *callee != 0 && (arc.calls > 0 || arc.time > 0.0));
    for ((caller, callee), arc) in used.clone() {
        let function = functions.entry(index(*callee)).or_default();
        if caller == callee {
            function.recursive += arc.calls;
            continue;
        }
        function.calls += arc.calls;
        function.total += arc.time;
        function.own += arc.time;
        match *caller {
            0 => total += arc.time,
            _ => functions.entry(index(*caller)).or_default().own -= arc.time,
        }
    }
    // A caller whose self time was not given.
    functions.values_mut().for_each(|function| function.own = function.own.max(0.0));
    for ((caller, callee), given) in used {
        let arc = arcs.entry((index(*caller), index(*callee))).or_default();
        if caller == callee {
            arc.recursive += given.calls;
            continue;
        }
        arc.calls += given.calls;
        // Only here, the parts are estimated, in the same proportion as those of all calls to the
        // function.
        let function = &functions[&index(*callee)];
        let own =
            if function.total > 0.0 { given.time * (function.own / function.total).min(1.0) } else { 0.0 };
        arc.own += own;
        arc.children += given.time - own;
    }
    total
}

/// Functions that call each other, each mapped to another one of the same cycle.
#[derive(Default)]
struct Cycles(BTreeMap<u32, u32>);

impl Cycles {
    fn find(&self, function: u32) -> u32 {
        let mut at = function;
        while let Some(next) = self.0.get(&at)
            && *next != at
        {
            at = *next;
        }
        at
    }

    fn join(&mut self, a: u32, b: u32) {
        let (first, second) = (self.find(a), self.find(b));
        self.0.insert(a, self.0.get(&a).copied().unwrap_or(a));
        self.0.insert(b, self.0.get(&b).copied().unwrap_or(b));
        self.0.insert(first.max(second), first.min(second));
    }

    /// The number of the cycle of each function.
    fn numbers(&self) -> HashMap<u32, usize> {
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for function in self.0.keys() {
            members.entry(self.find(*function)).or_default().push(*function);
        }
        // A function that only calls itself is not a cycle.
        let cycles = members.into_values().filter(|members| members.len() > 1);
        let numbered =
            cycles.zip(1..).flat_map(|(members, number)| members.into_iter().map(move |of| (of, number)));
        numbered.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::contexts::Contexts;

    #[test]
    fn sampled_times_have_errors_and_bounds() {
        let (module, contexts) = Contexts::example();
        let graph = Graph::new(&contexts.merged(), &BTreeMap::new(), &Program::new(&module));
        let flat = "\
Times are sampled: 5 samples, one per 1.000 ms of a thread on average; calls are exact.
A time is followed by its 95 % error (±); <= is an upper bound, without a sample.
     %   cumulative         ±         self         ±         called self ms/call total ms/call  name
 80.00        4.000     1.471        4.000     1.471              4        1.000         1.000  work
 20.00        5.000     1.086        1.000     1.471              1        1.000         5.000  run
  0.00        3.000     1.629     <= 3.000                      1+2        0.000         1.000  down
  0.00     <= 3.000               <= 3.000                        2        0.000         0.000  idle
";
        assert_eq!(graph.flat(20), flat);
        let arcs = "\
Times are sampled: 5 samples, one per 1.000 ms of a thread on average; calls are exact.
A time t has a 95 % error (±) of at most about 2 * sqrt(t * 1.000 ms); <= is an upper bound, without a sample.
index   % time         self     children               called  name
                                                              <spontaneous>
[0]     100.00        1.000        4.000                    1  run [0]
                   <= 3.000        3.000                  1/1      down [2]
                      1.000        0.000                  1/4      work [1]
                   <= 3.000        0.000                  2/2      idle [3]
-----------------------------------------------
                      1.000        0.000                  1/4      run [0]
                      3.000        0.000                  3/4      down [2]
[1]      80.00        4.000        0.000                    4  work [1]
-----------------------------------------------
                   <= 3.000        3.000                  1/1      run [0]
[2]      60.00     <= 3.000        3.000                  1+2  down [2]
                      3.000        0.000                  3/4      work [1]
-----------------------------------------------
                   <= 3.000        0.000                  2/2      run [0]
[3]       0.00     <= 3.000        0.000                    2  idle [3]
-----------------------------------------------
";
        assert_eq!(graph.call_graph(20), arcs);
    }
}
