//! `calltree`: the calling contexts of functions, with times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use wasm_jit::printable;

use super::contexts::{CONTEXTS_OPTION, Contexts, Measure, Merged, TIMES_OPTION, Times, name};
use super::stacks::{Function, Node, Stacks};
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "calltree",
    summary: "Calls and times of functions, by the paths on which they were called",
    details: "A node of the tree is a function on one path of calls from the host. Calls of a function that is \
              already on the path, as in recursion, lead back to its node there, and are counted as recursive; so \
              the tree is no deeper than there are functions. The time of a node is that of its function itself \
              (self) and with all nodes below it (total); totals of a function contain no time twice. The callee \
              of a tail call is below its caller; if it is one of the host, its time is that of the function to which it \
              returns. Functions of the host have nodes, and functions of other modules that are called by a \
              table or a reference (MODULE::NAME), but not calls that trap because there is no function or one of \
              another type; the time between calls of the program \
              is not measured. Times are wall-clock times, of all threads together. The cost of \
              observing a call is measured at the start and subtracted, and so is the time in which a thread makes \
              the probes of a function that is called for the first time, also those of other monitors; the rest, such as registers that \
              the program could not use, makes functions with many calls look more expensive than they are. \
              With times=sampled, calls and paths are as exact, but times are estimates from the functions that \
              run at random instants (the report states the mean time between two samples, and the effective \
              one, which is longer if samples were late, and determines the errors), and contain the cost of observing, which is smaller: some nanoseconds for \
              each call. Of a run of a few milliseconds, nothing but bounds is known. \
              Calls of functions that were entered before the monitor was switched on begin at the host. Files: \
              a flame graph (svg), folded stacks, pprof, speedscope.",
    options: &[TIMES_OPTION, CONTEXTS_OPTION],
    example: "calltree --monitor-out report app.wasm",
    start: |setup| {
        let rows = setup.options.parse("rows", "a number")?.unwrap_or(ROWS);
        Ok(Box::new(Calltree { contexts: Contexts::of(setup, Measure::of(setup)?)?, rows }))
    },
};

/// The number of nodes that the tree shows.
const ROWS: usize = 40;

struct Calltree {
    contexts: Contexts,
    rows: usize,
}

/// The observed calls.
struct Observed<'a, 'm> {
    merged: Merged,
    times: Times,
    /// The nodes with calls, and their depths; parents before their children.
    order: Vec<(u32, usize)>,
    /// The number of calls that lead back to each node.
    recursive: Vec<u64>,
    program: &'a Program<'m>,
}

impl Monitor for Calltree {
    fn activate(&self) -> Result<(), Error> {
        self.contexts.activate()
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.contexts.deactivate()
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let observed = Observed::of(self.contexts.merged(), program);
        let Observed { merged, times, order, recursive, .. } = &observed;
        let calls = |node: &u32| merged.nodes[*node as usize].calls + recursive[*node as usize];
        report.value("calls", order.iter().map(|(node, _)| calls(node)).sum::<u64>());
        report.value("nanoseconds", times.total[0]);
        report.value("nanoseconds subtracted", times.subtracted + self.contexts.delays());
        report.value("contexts_called", order.len());
        report.value("threads", merged.threads);
        if let Some(sampled) = &times.sampled {
            sampled.estimate.add_to(report);
        }
        if merged.left_out() > 0 {
            report.value("calls left out", merged.left_out());
        }
        report.text(observed.tree(self.rows));
        report.table(observed.functions());
        report.table(observed.contexts());
        self.contexts.report_refused(report);
        observed.stacks().add_files(report);
    }
}

/// A time in milliseconds, as shown in the tree: with its error if it is sampled.
fn milliseconds(times: &Times, nanoseconds: u64) -> String {
    match &times.sampled {
        None => format!("{:>12.3}", nanoseconds as f64 / 1e6),
        Some(sampled) => {
            let [time, error] = sampled.estimate.milliseconds(nanoseconds as f64);
            format!("{time:>12} {error:>9}")
        }
    }
}

/// The columns of a time with this name.
fn time_columns(times: &Times, name: &str) -> Vec<String> {
    let more: &[&str] =
        if times.sampled.is_some() { &[" ns", " ns low", " ns high", " samples"] } else { &[" ns"] };
    more.iter().map(|of| format!("{name}{of}")).collect()
}

/// The cells of a time, which has this number of samples.
fn time_cells(times: &Times, nanoseconds: u64, samples: u64) -> Vec<Cell> {
    let mut cells = vec![nanoseconds.into()];
    if let Some(sampled) = &times.sampled {
        let (low, high) = sampled.estimate.interval(nanoseconds as f64);
        cells.extend([(low.floor() as u64).into(), (high.ceil() as u64).into(), samples.into()]);
    }
    cells
}

impl<'a, 'm> Observed<'a, 'm> {
    fn of(merged: Merged, program: &'a Program<'m>) -> Self {
        let times = merged.times();
        let (order, recursive) = (merged.depth_first(&times), merged.recursive_calls());
        Self { merged, times, order, recursive, program }
    }

    fn name(&self, function: u32) -> Arc<str> {
        name(self.program, function)
    }

    /// The tree as text: the nodes with the longest times.
    fn tree(&self, rows: usize) -> String {
        let Self { merged, times, order, .. } = self;
        let mut longest: Vec<u64> = order.iter().map(|(node, _)| times.total[*node as usize]).collect();
        longest.sort_unstable_by(|a, b| b.cmp(a));
        let shortest = longest.get(rows.saturating_sub(1)).copied().unwrap_or(0);
        let mut out = match &times.sampled {
            None => format!("{:>12} {:>7} {:>12} {:>12}  tree\n", "total ms", "share", "self ms", "calls"),
            Some(sampled) => format!(
                "{}{:>12} {:>9} {:>7} {:>12} {:>9} {:>12}  tree\n",
                sampled.estimate.explanation(),
                "total ms",
                "±",
                "share",
                "self ms",
                "±",
                "calls"
            ),
        };
        let long = order.iter().filter(|(node, _)| times.total[*node as usize] >= shortest).take(rows);
        for (node, depth) in long {
            let at = *node as usize;
            let share = 100.0 * times.total[at] as f64 / times.total[0].max(1) as f64;
            let (total, own) = (milliseconds(times, times.total[at]), milliseconds(times, times.own[at]));
            let recursive = match self.recursive[at] {
                0 => String::new(),
                calls => format!(" (+{calls} recursive)"),
            };
            let _ = writeln!(
                out,
                "{total} {share:>6.1}% {own} {:>12}  {:indent$}{}{recursive}",
                merged.nodes[at].calls,
                "",
                printable(&self.name(merged.nodes[at].function)),
                indent = 2 * depth.min(&40),
            );
        }
        if rows < order.len() {
            let _ = writeln!(out, "  and {} more contexts (option rows=N)", order.len() - rows);
        }
        out
    }

    /// The functions, each summed over all of its contexts.
    fn functions(&self) -> Table {
        #[derive(Default)]
        struct Sum {
            own: u64,
            total: u64,
            own_samples: u64,
            total_samples: u64,
            calls: u64,
            recursive: u64,
            contexts: u64,
        }
        let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
        for (node, _) in &self.order {
            let at = *node as usize;
            let sum = sums.entry(self.merged.nodes[at].function).or_default();
            sum.own += self.times.own[at];
            // No function occurs twice on a path.
            sum.total += self.times.total[at];
            let (own, total) = self.times.samples(*node);
            sum.own_samples += own;
            sum.total_samples += total;
            sum.calls += self.merged.nodes[at].calls + self.recursive[at];
            sum.recursive += self.recursive[at];
            sum.contexts += 1;
        }
        let mut sums: Vec<(u32, Sum)> = sums.into_iter().collect();
        sums.sort_by_key(|(function, sum)| (Reverse(sum.own), *function));
        let times = &self.times;
        let mut columns = time_columns(times, "self");
        columns.push("share".to_owned());
        columns.extend(time_columns(times, "total"));
        columns.extend(["calls", "recursive calls", "contexts", "function"].map(str::to_owned));
        let mut table = Table::new("functions", columns.iter().map(String::as_str));
        for (function, Sum { own, total, own_samples, total_samples, calls, recursive, contexts }) in sums {
            let mut row = time_cells(times, own, own_samples);
            row.push(Cell::share(own, times.total[0]));
            row.extend(time_cells(times, total, total_samples));
            row.extend([calls.into(), recursive.into(), contexts.into(), Cell::Text(self.name(function))]);
            table.row(row);
        }
        table
    }

    /// All contexts, each with the row of its caller.
    fn contexts(&self) -> Table {
        let mut rows: HashMap<u32, usize> = HashMap::new();
        let times = &self.times;
        let mut columns = ["row", "caller", "depth", "calls", "recursive calls"].map(str::to_owned).to_vec();
        columns.extend(time_columns(times, "self"));
        columns.extend(time_columns(times, "total"));
        columns.push("function".to_owned());
        let mut table = Table::new("contexts", columns.iter().map(String::as_str)).hidden();
        for (row, (node, depth)) in self.order.iter().enumerate() {
            let at = *node as usize;
            let context = &self.merged.nodes[at];
            rows.insert(*node, row);
            let mut cells: Vec<Cell> = vec![
                row.into(),
                rows.get(&context.parent).copied().into(),
                (*depth).into(),
                context.calls.into(),
                self.recursive[at].into(),
            ];
            let (own, total) = times.samples(*node);
            cells.extend(time_cells(times, times.own[at], own));
            cells.extend(time_cells(times, times.total[at], total));
            cells.push(Cell::Text(self.name(context.function)));
            table.row(cells);
        }
        table
    }

    fn stacks(&self) -> Stacks {
        let mut numbers: HashMap<u32, usize> = HashMap::new();
        let mut places: HashMap<u32, usize> = HashMap::new();
        let (mut functions, mut nodes) = (Vec::new(), Vec::new());
        for (node, _) in &self.order {
            let at = *node as usize;
            let context = &self.merged.nodes[at];
            let function = *numbers.entry(context.function).or_insert_with(|| {
                let found = self.program.symbols.lookup(context.function, 0);
                let source = found.first().and_then(|found| Some((found.file()?.to_owned(), found.line()?)));
                functions.push(Function { name: self.name(context.function), source });
                functions.len() - 1
            });
            places.insert(*node, nodes.len());
            nodes.push(Node {
                parent: places.get(&context.parent).copied(),
                function,
                weight: self.times.own[at],
                count: context.calls + self.recursive[at],
            });
        }
        let sampled = self.times.sampled.as_ref().map(|sampled| sampled.estimate.summary());
        Stacks { what: "time", sampled, unit: "nanoseconds", counted: "calls", functions, nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::text;

    #[test]
    fn sampled_times_have_errors_and_bounds() {
        let (module, contexts) = Contexts::example();
        let calltree = Calltree { contexts, rows: ROWS };
        let mut report = Report::new("calltree");
        calltree.report(&Program::new(&module), &mut report);
        let expected = "\
calltree
  calls                             10
  nanoseconds                       5000000
  contexts_called                   5
  threads                           1
  times                             sampled
  samples                           5
  nanoseconds per sample            1000000
  effective nanoseconds per sample  1000000

Times are sampled: 5 samples, one per 1.000 ms of a thread on average; calls are exact.
A time is followed by its 95 % error (±); <= is an upper bound, without a sample.
    total ms         ±   share      self ms         ±        calls  tree
       5.000     1.086  100.0%        1.000     1.471            1  run
       3.000     1.629   60.0%     <= 3.000                      1    down (+2 recursive)
       3.000     1.629   60.0%        3.000     1.629            3      work
       1.000     1.471   20.0%        1.000     1.471            1    work
    <= 3.000              0.0%     <= 3.000                      2    idle

functions
  self ns  self ns low  self ns high  self samples  share  total ns  total ns low  total ns high  total samples  calls  recursive calls  contexts  function
  4000000      1877641       4818885             4  80.0%   4000000       1877641        4818885              4      4                0         2  work
  1000000       181115       3122359             1  20.0%   5000000       2827542        5000000              5      1                0         1  run
        0            0       3000000             0   0.0%         0             0        3000000              0      2                0         1  idle
        0            0       3000000             0   0.0%   3000000       1153599        4411909              3      3                2         1  down";
        // The time spent on making probes differs from run to run.
        let printed = text::print(&report, text::Length::Complete);
        let printed: Vec<&str> = printed.lines().filter(|line| !line.contains("subtracted")).collect();
        assert_eq!(printed.join("\n"), expected);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["functions"][0],
            serde_json::json!({
                "function": "work", "calls": 4, "recursive_calls": 0, "contexts": 2, "share": 0.8,
                "self_ns": 4_000_000, "self_ns_low": 1_877_641, "self_ns_high": 4_818_885, "self_samples": 4,
                "total_ns": 4_000_000, "total_ns_low": 1_877_641, "total_ns_high": 4_818_885, "total_samples": 4,
            })
        );
        let names: Vec<&str> = report.files().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["svg", "sampled.folded", "pprof", "speedscope.json"]);
        let folded = "run 1000000\nrun;down;work 3000000\nrun;work 1000000\n";
        assert_eq!(report.files()[1].1, folded.as_bytes());
    }
}
