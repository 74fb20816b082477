//! `loops`: how often each loop was entered, and how many iterations it had.
//!
//! A counter at each loop, which all of its iterations come to. Another one in front of it, if what
//! is there can only continue with the loop; else counters at the branches to it.

use std::cmp::Reverse;

use wasm_jit::probes::{Branches, Kind, Location, Place, Probe, ProbeError, ProbeSpec};
use wasm_jit::wasmparser::Operator;

use super::graph::{Completion, Graph};
use crate::{Cell, Description, Error, Monitor, Program, Report, Setup, Table, switch};

pub(super) const DESCRIPTION: Description = Description {
    name: "loops",
    summary: "How often each loop was entered, and its iterations",
    details: "The first iteration begins when control enters the loop, each further one with a branch to its start. \
              The mean is that of iterations for each time the loop was entered.",
    options: &[],
    example: "loops app.wasm",
    start,
};

struct Loops {
    loops: Vec<Loop>,
    probes: Vec<Probe>,
}

struct Loop {
    location: Location,
    /// How deep it is in others.
    depth: usize,
    /// Its probe, by number.
    iterations: usize,
    entered: Entered,
}

/// How the number of times is known that a loop was entered.
enum Entered {
    /// This probe counts it.
    Counted(usize),
    /// These branches to the loop repeat it: the probe of each, and which of its ways do.
    Repeated(Vec<(usize, Vec<usize>)>),
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let (mut specs, mut loops) = (Vec::new(), Vec::new());
    for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
        let predecessors = graph.predecessors();
        let mut open: Vec<bool> = Vec::new();
        for (index, before) in predecessors.iter().take(graph.len()).enumerate() {
            match &graph.flow.instructions[index].1 {
                Operator::Loop { .. } => {
                    let mut add = |location, kind| {
                        specs.push(ProbeSpec { location, kind });
                        specs.len() - 1
                    };
                    let iterations = add(graph.location(index), Kind::Count);
                    let entered = entered(&graph, index, before, &mut add);
                    let depth = open.iter().filter(|is_loop| **is_loop).count();
                    loops.push(Loop { location: graph.location(index), depth, iterations, entered });
                    open.push(true);
                }
                Operator::Block { .. }
                | Operator::If { .. }
                | Operator::Try { .. }
                | Operator::TryTable { .. } => {
                    open.push(false);
                }
                Operator::End | Operator::Delegate { .. } => _ = open.pop(),
                _ => {}
            }
        }
    }
    let mut probes = Vec::new();
    // The number of each among those that there are.
    let mut numbers = Vec::new();
    for probe in setup.module.probes(&specs) {
        match probe {
            Err(ProbeError::Unreachable { .. }) => numbers.push(None),
            probe => {
                numbers.push(Some(probes.len()));
                probes.push(probe?);
            }
        }
    }
    let reached = |mut known: Loop| {
        known.iterations = numbers[known.iterations]?;
        known.entered = match known.entered {
            Entered::Counted(probe) => Entered::Counted(numbers[probe]?),
            Entered::Repeated(branches) => {
                let reached = branches.into_iter().filter_map(|(probe, ways)| Some((numbers[probe]?, ways)));
                Entered::Repeated(reached.collect())
            }
        };
        Some(known)
    };
    Ok(Box::new(Loops { loops: loops.into_iter().filter_map(reached).collect(), probes }))
}

/// How the entries of the loop at `index` are counted, with probes that `add` adds.
fn entered(
    graph: &Graph<'_>,
    index: usize,
    predecessors: &[(usize, usize)],
    add: &mut dyn FnMut(Location, Kind) -> usize,
) -> Entered {
    let outside: Vec<usize> =
        predecessors.iter().map(|(from, _)| *from).filter(|from| *from < index).collect();
    if let [from] = outside[..]
        && graph.flow.successors[from] == [index]
        && graph.completion(from) == Completion::Certain
        && !graph.is_handler(index)
    {
        return Entered::Counted(add(graph.location(from), Kind::Count));
    }
    let mut branches: Vec<(usize, Vec<usize>)> = Vec::new();
    for (from, way) in predecessors.iter().filter(|(from, _)| *from > index) {
        match branches.last_mut() {
            Some((last, ways)) if last == from => ways.push(*way),
            _ => branches.push((*from, vec![*way])),
        }
    }
    let probe = |(from, ways): (usize, Vec<usize>)| {
        let kind = if graph.flow.successors[from].len() > 1 { Kind::CountBranch } else { Kind::Count };
        (add(graph.location(from), kind), ways)
    };
    Entered::Repeated(branches.into_iter().map(probe).collect())
}

impl Loops {
    /// How often a loop was entered, and its iterations.
    fn counts(&self, known: &Loop) -> (u64, u64) {
        let probe = |number: usize| &self.probes[number];
        let iterations = probe(known.iterations).count();
        let entered = match &known.entered {
            Entered::Counted(number) => probe(*number).count(),
            Entered::Repeated(branches) => {
                let repeated = branches.iter().map(|(number, ways)| match probe(*number).branches() {
                    // The way that is taken is the first one.
                    Some(Branches::Condition { taken, not_taken }) => {
                        ways.iter().map(|way| if *way == 0 { taken } else { not_taken }).sum()
                    }
                    Some(Branches::Table { targets, default }) => {
                        ways.iter().map(|way| targets.get(*way).copied().unwrap_or(default)).sum()
                    }
                    _ => probe(*number).count(),
                });
                iterations.saturating_sub(repeated.sum())
            }
        };
        // One that is interrupted in front of its first iteration was not entered.
        (entered.min(iterations), iterations)
    }
}

impl Monitor for Loops {
    fn activate(&self) -> Result<(), Error> {
        switch(&self.probes, true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        switch(&self.probes, false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let mut rows: Vec<_> = self.loops.iter().map(|known| (self.counts(known), known)).collect();
        report.value("entered", rows.iter().map(|((entered, _), _)| entered).sum::<u64>());
        report.value("iterations", rows.iter().map(|((_, iterations), _)| iterations).sum::<u64>());
        rows.retain(|((_, iterations), _)| *iterations > 0);
        rows.sort_by_key(|((_, iterations), known)| (Reverse(*iterations), known.location));
        let mut table =
            Table::new("by_loop", ["iterations", "entered", "mean", "depth", "offset", "function", "source"]);
        for ((entered, iterations), Loop { location, depth, .. }) in rows {
            let Place::Instruction { offset } = location.place else { continue };
            let mean =
                if entered == 0 { Cell::None } else { Cell::Float(iterations as f64 / entered as f64, 1) };
            table.row([
                iterations.into(),
                entered.into(),
                mean,
                (*depth).into(),
                program.offset(location.function, offset),
                program.name(location.function),
                program.line(location.function, offset),
            ]);
        }
        report.table(table);
    }
}
