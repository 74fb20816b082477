//! `hotness`: how often each instruction was executed, and the hottest paths.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;

use wasm_jit::probes::Location;

use super::counts::{self, Counts};
use super::graph::{Completion, Graph};
use super::listing::{Listing, write_annotated};
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "hotness",
    summary: "How often each instruction was executed, and the hottest paths",
    details: "A path is a sequence of instructions without a branch into or out of it that was taken: all of \
              them were executed equally often, unless a trap or an exception has ended it early, or the monitor \
              was switched meanwhile: each sequence without a branch, a call or an instruction that may trap has \
              one count, and the counts of several are switched one after the other. Paths are ranked by the \
              number of instructions that were executed in them. The file listing.wat has the module's text with the counts, the file \
              listing.asm the machine code of the functions that were executed: that of several instructions is \
              listed at the last one.",
    options: &[],
    example: "hotness{function=main,rows=50} app.wasm",
    start: |setup| Ok(Box::new(Hotness(Counts::of(setup)))),
};

struct Hotness(Counts);

/// Successive instructions of a function between which no branch was taken.
struct Path {
    function: u32,
    offsets: Vec<u32>,
    /// How often the first instruction was executed.
    count: u64,
    /// The number of instructions executed in the path.
    executed: u64,
}

impl Monitor for Hotness {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let counts = self.0.all();
        let listing = counts::listing(&counts, program.module);
        let total = counts.iter().map(|(_, count)| count).sum();
        report.value("instructions", total);
        report.table(paths(program, &listing, &counts, total));
        report.table(instructions(program, &listing, &counts, total));
        self.0.report_refused(report);
        let count = |function, offset| {
            let at = counts.binary_search_by_key(&(function, offset), |(location, _)| key(*location));
            at.ok().map(|at| counts[at].1).or_else(|| self.0.observes(function).then_some(0))
        };
        report.file("listing.wat", |out| write_annotated(program.module, count, out));
        report.file("listing.asm", |out| {
            let executed: BTreeSet<u32> = counts
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(location, _)| location.function)
                .collect();
            let is_wanted = |function: u32, _: Option<&str>| executed.contains(&function);
            match program.module.write_objdump_with_figures(is_wanted, count, out) {
                // Not of `out`.
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    writeln!(out, "The machine code cannot be listed: {error}")
                }
                written => written,
            }
        });
    }
}

/// A function and an offset in its body.
fn key(location: Location) -> (u32, u32) {
    counts::instruction(location).unwrap_or((location.function, 0))
}

/// The paths of a function, given the counts of its instructions.
fn paths_of(graph: &Graph<'_>, counts: &[(Location, u64)]) -> Vec<Path> {
    // By instruction; 0 for those that control never reaches, and for the exit.
    let mut executed = vec![0; graph.len() + 1];
    let index = |offset: u32| graph.flow.instructions.binary_search_by_key(&offset, |(offset, _)| *offset);
    for (location, count) in counts {
        if let Ok(index) = index(key(*location).1) {
            executed[index] = *count;
        }
    }
    let predecessors = graph.predecessors();
    // Whether all executions of an instruction continued with the other one, and it had no other
    // predecessor. In a basic block, no count is needed to know; elsewhere they are equal.
    let continues = |from: usize, to: usize| {
        if to == from + 1 && graph.is_in_block_of_previous(to) {
            return true;
        }
        let successors = &graph.flow.successors[from];
        let is_only_successor = successors.iter().all(|successor| *successor == to)
            && graph.completion(from) == Completion::Certain;
        let is_only_predecessor = !graph.is_handler(to)
            && predecessors[to].iter().all(|(other, _)| *other == from || executed[*other] == 0);
        successors.contains(&to)
            && executed[from] == executed[to]
            && (is_only_successor || is_only_predecessor)
    };
    let mut paths: Vec<Path> = Vec::new();
    let mut last = None;
    for (index, (offset, _)) in graph.flow.instructions.iter().enumerate() {
        if executed[index] == 0 {
            continue;
        }
        match paths.last_mut().zip(last) {
            Some((path, last)) if continues(last, index) => {
                path.offsets.push(*offset);
                path.executed += executed[index];
            }
            _ => {
                let (function, count) = (graph.function, executed[index]);
                paths.push(Path { function, offsets: vec![*offset], count, executed: count });
            }
        }
        last = Some(index);
    }
    paths
}

fn paths(program: &Program<'_>, listing: &Listing, counts: &[(Location, u64)], total: u64) -> Table {
    let mut paths: Vec<Path> = Vec::new();
    for of_function in counts.chunk_by(|(one, _), (other, _)| one.function == other.function) {
        let info = program.module.function(of_function[0].0.function);
        let Some(graph) = info.as_ref().and_then(Graph::of) else { continue };
        paths.extend(paths_of(&graph, of_function));
    }
    paths.sort_by_key(|path| Reverse(path.executed));
    let columns = ["executed", "share", "times", "length", "from", "to", "function", "begins with", "source"];
    let mut table = Table::new("paths", columns);
    for path in paths {
        let Path { function, offsets, count, executed } = &path;
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        // Some instructions have no line.
        let lines = offsets.iter().map(|offset| program.line(*function, *offset));
        table.row([
            (*executed).into(),
            Cell::share(*executed, total),
            (*count).into(),
            offsets.len().into(),
            program.offset(*function, first),
            program.offset(*function, last),
            program.name(*function),
            listing.cell(program, *function, first),
            lines.into_iter().find(|line| *line != Cell::None).unwrap_or(Cell::None),
        ]);
    }
    table
}

fn instructions(program: &Program<'_>, listing: &Listing, counts: &[(Location, u64)], total: u64) -> Table {
    let mut counts: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(location, count)| (Reverse(*count), key(*location)));
    let mut table =
        Table::new("by_instruction", ["times", "share", "offset", "function", "instruction", "source"]);
    for (location, count) in counts {
        let (function, offset) = key(*location);
        table.row([
            (*count).into(),
            Cell::share(*count, total),
            program.offset(function, offset),
            program.name(function),
            listing.cell(program, function, offset),
            program.line(function, offset),
        ]);
    }
    table
}
