//! `loops`: how often each loop was entered, and how many iterations it had.
//!
//! A counter is at each loop, where each of its iterations begins. The entries are counted before
//! the loop. If control may not come from there into the loop, there are also counters at the
//! branches to the loop, which begin all other iterations.
//!
//! Counters are switched one after the other, while threads execute the loop. No figure may be the
//! difference of two counters alone: each switch would leave an error in it, as large as the number
//! of iterations between the switches of the two.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wasm_jit::probes::{Branches, Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::wasmparser::Operator;

use super::graph::{Completion, Graph};
use crate::{Cell, Description, Error, LazyProbes, Monitor, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "loops",
    summary: "How often each loop was entered, and its iterations",
    details: "The first iteration begins when control enters the loop, each further one with a branch to its start, \
              or with an exception whose handler is there. The mean is that of iterations for each time the loop was \
              entered. The entries of a loop that exceptions repeat are unknown if the instruction before it may not \
              complete. Of a loop that is being executed when the monitor is switched on, the remaining iterations \
              are counted and the entry is not. The figures are exact when no thread executes the loop. If one \
              executes it while the monitor is switched or reports, the entries may include attempts that ended \
              before the loop, by a trap or an exception of the instruction before it.",
    options: &[],
    example: "loops app.wasm",
    start,
};

struct Loops(LazyProbes);

struct Loop {
    /// The location of the loop, and of its probe.
    location: Location,
    /// The loop's nesting depth.
    depth: usize,
    entered: Entered,
}

/// How the number of entries of a loop is obtained.
enum Entered {
    /// It is entered after these instructions, and only then.
    After(Vec<Way>),
    /// It is entered after the instructions `attempted` unless they fail, or by an exception that
    /// is caught there, and repeated by the branches `repeated` only.
    AtMost { attempted: Vec<Way>, repeated: Vec<Way> },
    /// It is repeated by exceptions, and entered from where no counter tells whether it is.
    Unknown,
}

/// The location of an instruction, and those of its outcomes that lead to the loop.
type Way = (Location, Vec<usize>);

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let probes = LazyProbes::new(setup, |function| {
        let Some(graph) = Graph::of(function) else { return Vec::new() };
        let mut specs: BTreeMap<Location, Kind> = BTreeMap::new();
        for Loop { location, entered, .. } in loops(&graph) {
            specs.insert(location, Kind::Count);
            let ways = match entered {
                Entered::After(ways) => ways,
                Entered::AtMost { attempted, repeated } => [attempted, repeated].concat(),
                Entered::Unknown => continue,
            };
            specs.extend(ways.into_iter().map(|(location, _)| (location, counter(&graph, location))));
        }
        specs.into_iter().map(|(location, kind)| ProbeSpec { location, kind }).collect()
    });
    Ok(Box::new(Loops(probes)))
}

/// The kind of counter for a branch: one count for each outcome, if it has several.
fn counter(graph: &Graph<'_>, location: Location) -> Kind {
    let Place::Instruction { offset } = location.place else { return Kind::Count };
    let index = graph.flow.instructions.partition_point(|(at, _)| *at < offset);
    if graph.flow.successors[index].len() > 1 { Kind::CountBranch } else { Kind::Count }
}

/// The loops that control may reach.
fn loops(graph: &Graph<'_>) -> Vec<Loop> {
    let (predecessors, reached) = (graph.predecessors(), graph.reached());
    let mut loops = Vec::new();
    let mut open: Vec<bool> = Vec::new();
    for (index, before) in predecessors.iter().take(graph.len()).enumerate() {
        match &graph.flow.instructions[index].1 {
            Operator::Loop { .. } => {
                if reached[index] {
                    let depth = open.iter().filter(|is_loop| **is_loop).count();
                    let entered = entered(graph, index, before);
                    loops.push(Loop { location: graph.location(index), depth, entered });
                }
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
    loops
}

/// How entries of the loop at `index` are counted.
fn entered(graph: &Graph<'_>, index: usize, predecessors: &[(usize, usize)]) -> Entered {
    let flow = &graph.flow;
    let outside = || predecessors.iter().filter(|(from, _)| *from < index);
    if index == 0 {
        // Nothing is executed before a function's first instruction but its entry.
        let entry = Location { function: graph.function, place: Place::Entry };
        return Entered::After(vec![(entry, Vec::new())]);
    }
    let is_counted = outside().all(|(from, _)| graph.completion(*from) == Completion::Certain)
        && !flow.is_entered_by_handler(index);
    match flow.is_repeated_by_handler(index) {
        _ if is_counted => Entered::After(ways(graph, outside())),
        true => Entered::Unknown,
        false => {
            let mut attempted = ways(graph, outside());
            // A block catches at most one exception each time that it is entered.
            attempted.extend(flow.catching(index).map(|block| (graph.location(block), vec![0])));
            let repeated = ways(graph, predecessors.iter().filter(|(from, _)| *from > index));
            Entered::AtMost { attempted, repeated }
        }
    }
}

/// Predecessors of a loop by their locations.
fn ways<'a>(graph: &Graph<'_>, predecessors: impl Iterator<Item = &'a (usize, usize)>) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for (from, way) in predecessors {
        let location = graph.location(*from);
        match ways.last_mut() {
            Some((last, ways)) if *last == location => ways.push(*way),
            _ => ways.push((location, vec![*way])),
        }
    }
    ways
}

impl Loops {
    fn count(&self, location: Location) -> u64 {
        self.0.get(location, Probe::count).unwrap_or(0)
    }

    /// How often these instructions have continued at the loop.
    fn taken(&self, ways: &[Way]) -> u64 {
        let taken = ways.iter().map(|(location, ways)| {
            match self.0.get(*location, Probe::branches).flatten() {
                // The first outcome is the branch that is taken.
                Some(Branches::Condition { taken, not_taken }) => {
                    ways.iter().map(|way| if *way == 0 { taken } else { not_taken }).sum()
                }
                Some(Branches::Table { targets, default }) => {
                    ways.iter().map(|way| targets.get(*way).copied().unwrap_or(default)).sum()
                }
                _ => self.count(*location),
            }
        });
        taken.sum()
    }

    /// The number of times that a loop was entered, if it is known, and the number of its
    /// iterations.
    fn counts(&self, known: &Loop) -> (Option<u64>, u64) {
        let iterations = || self.count(known.location);
        let (entered, iterations) = match &known.entered {
            // The entry is counted before the iteration.
            Entered::After(ways) => {
                let iterations = iterations();
                (self.taken(ways), iterations)
            }
            Entered::AtMost { attempted, repeated } => {
                // The counters of repetitions are activated after that of the iterations,
                // deactivated before it and read before it: the difference is not less than the
                // number of entries, and equals it if no iteration was in between.
                let repeated = self.taken(repeated);
                let iterations = iterations();
                (self.taken(attempted).min(iterations.saturating_sub(repeated)), iterations)
            }
            Entered::Unknown => return (None, iterations()),
        };
        // A loop that is interrupted before its first iteration was not entered.
        (Some(entered.min(iterations)), iterations)
    }
}

impl Monitor for Loops {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let called = self.0.functions().into_iter();
        let graphs = called.filter_map(|function| Graph::of(&program.module.function(function)?));
        let mut rows: Vec<_> = graphs
            .flat_map(|graph| loops(&graph))
            .map(|known| (self.counts(&known), known))
            .filter(|((_, iterations), _)| *iterations > 0)
            .collect();
        report.value("entered", rows.iter().filter_map(|((entered, _), _)| *entered).sum::<u64>());
        report.value("iterations", rows.iter().map(|((_, iterations), _)| iterations).sum::<u64>());
        let unknown = rows.iter().filter(|((entered, _), _)| entered.is_none()).count();
        if unknown > 0 {
            report.value("loops with unknown entries", unknown);
        }
        rows.sort_by_key(|((_, iterations), known)| (Reverse(*iterations), known.location));
        let mut table =
            Table::new("by_loop", ["iterations", "entered", "mean", "depth", "offset", "function", "source"]);
        for ((entered, iterations), Loop { location, depth, .. }) in rows {
            let Place::Instruction { offset } = location.place else { continue };
            let mean = match entered {
                None | Some(0) => Cell::None,
                Some(entered) => Cell::Float(iterations as f64 / entered as f64, 1),
            };
            table.row([
                iterations.into(),
                entered.into(),
                mean,
                depth.into(),
                program.offset(location.function, offset),
                program.name(location.function),
                program.line(location.function, offset),
            ]);
        }
        report.table(table);
        self.0.report_refused(report);
    }
}
