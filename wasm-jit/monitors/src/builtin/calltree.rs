//! `calltree`: the calling contexts of functions, with times.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::contexts::{CONTEXTS_OPTION, Contexts, Measure, Merged, Times, name};
use super::stacks::{Function, Node, Stacks};
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "calltree",
    summary: "Calls and times of functions, by the paths on which they were called",
    details: "A node of the tree is a function on one path of calls from the host. Calls of a function that is \
              already on the path, as in recursion, lead back to its node there, and are counted as recursive; so \
              the tree is no deeper than there are functions. The time of a node is that of its function itself \
              (self) and with all nodes below it (total); totals of a function contain no time twice. The callee \
              of a tail call is below its caller. Functions of the host have nodes; the time between calls of the program \
              is not measured. Times are wall-clock times, of all threads together. The cost of \
              observing a call is measured at the start and subtracted, and so is the time in which a thread makes \
              the probes of a function that is called for the first time; the rest, such as registers that \
              the program could not use, makes functions with many calls look more expensive than they are. \
              Calls of functions that were entered before the monitor was switched on begin at the host. Files: \
              a flame graph (svg), folded stacks, pprof, speedscope.",
    options: &[CONTEXTS_OPTION],
    example: "calltree --monitor-out report app.wasm",
    start: |setup| {
        let rows = setup.options.parse("rows", "a number")?.unwrap_or(ROWS);
        Ok(Box::new(Calltree { contexts: Contexts::of(setup, Measure::Times)?, rows }))
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
    /// The nodes that were used with their depths, parents before their children.
    order: Vec<(u32, usize)>,
    /// Calls that lead back to each node.
    recursive: Vec<u64>,
    program: &'a Program<'m>,
    names: RefCell<HashMap<u32, String>>,
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
        report.value("contexts", order.len());
        report.value("threads", merged.threads);
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

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

impl<'a, 'm> Observed<'a, 'm> {
    fn of(merged: Merged, program: &'a Program<'m>) -> Self {
        let times = merged.times();
        let (order, recursive) = (merged.depth_first(&times), merged.recursive_calls());
        Self { merged, times, order, recursive, program, names: RefCell::default() }
    }

    fn name(&self, function: u32) -> String {
        self.names.borrow_mut().entry(function).or_insert_with(|| name(self.program, function)).clone()
    }

    /// The tree as a text: the nodes of the longest times.
    fn tree(&self, rows: usize) -> String {
        let Self { merged, times, order, .. } = self;
        let mut longest: Vec<u64> = order.iter().map(|(node, _)| times.total[*node as usize]).collect();
        longest.sort_unstable_by(|a, b| b.cmp(a));
        let shortest = longest.get(rows.saturating_sub(1)).copied().unwrap_or(0);
        let mut out = format!("{:>12} {:>7} {:>12} {:>12}  tree\n", "total ms", "share", "self ms", "calls");
        let long = order.iter().filter(|(node, _)| times.total[*node as usize] >= shortest).take(rows);
        for (node, depth) in long {
            let at = *node as usize;
            let share = 100.0 * times.total[at] as f64 / times.total[0].max(1) as f64;
            let (total, own) = (milliseconds(times.total[at]), milliseconds(times.own[at]));
            let recursive = match self.recursive[at] {
                0 => String::new(),
                calls => format!(" (+{calls} recursive)"),
            };
            let _ = writeln!(
                out,
                "{total:>12.3} {share:>6.1}% {own:>12.3} {:>12}  {:indent$}{}{recursive}",
                merged.nodes[at].calls,
                "",
                self.name(merged.nodes[at].function),
                indent = 2 * depth.min(&40),
            );
        }
        if rows < order.len() {
            let _ = writeln!(out, "  and {} more contexts (option rows=N)", order.len() - rows);
        }
        out
    }

    /// Functions, over all of their contexts.
    fn functions(&self) -> Table {
        #[derive(Default)]
        struct Sum {
            own: u64,
            total: u64,
            calls: u64,
            recursive: u64,
            contexts: u64,
        }
        let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
        for (node, _) in &self.order {
            let at = *node as usize;
            let sum = sums.entry(self.merged.nodes[at].function).or_default();
            sum.own += self.times.own[at];
            // No function is twice on a path.
            sum.total += self.times.total[at];
            sum.calls += self.merged.nodes[at].calls + self.recursive[at];
            sum.recursive += self.recursive[at];
            sum.contexts += 1;
        }
        let mut sums: Vec<(u32, Sum)> = sums.into_iter().collect();
        sums.sort_by_key(|(function, sum)| (Reverse(sum.own), *function));
        let columns = ["self ns", "share", "total ns", "calls", "recursive calls", "contexts", "function"];
        let mut table = Table::new("functions", columns);
        for (function, Sum { own, total, calls, recursive, contexts }) in sums {
            table.row([
                own.into(),
                Cell::share(own, self.times.total[0]),
                total.into(),
                calls.into(),
                recursive.into(),
                contexts.into(),
                self.name(function).into(),
            ]);
        }
        table
    }

    /// All contexts, with the row of the caller.
    fn contexts(&self) -> Table {
        let mut rows: HashMap<u32, usize> = HashMap::new();
        let columns =
            ["row", "caller", "depth", "calls", "recursive calls", "self ns", "total ns", "function"];
        let mut table = Table::new("contexts", columns).hidden();
        for (row, (node, depth)) in self.order.iter().enumerate() {
            let at = *node as usize;
            let context = &self.merged.nodes[at];
            rows.insert(*node, row);
            table.row([
                row.into(),
                rows.get(&context.parent).copied().into(),
                (*depth).into(),
                context.calls.into(),
                self.recursive[at].into(),
                self.times.own[at].into(),
                self.times.total[at].into(),
                self.name(context.function).into(),
            ]);
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
        Stacks { what: "time", unit: "nanoseconds", counted: "calls", functions, nodes }
    }
}
