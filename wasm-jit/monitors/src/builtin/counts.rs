//! Counts of all instructions.
//!
//! A counter is at the first instruction of each sequence that is executed completely once it has
//! begun. Its instructions share the counter: counters are switched one after the other, so those
//! of a running program would differ. Programs that consume fuel may end at any instruction: they
//! have a counter at each.

use std::ops::Range;

use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Instruction, Module, Store};

use super::graph::Graph;
use super::listing::Listing;
use crate::{Error, LazyProbes, Report, Setup};

/// The counts of each instruction of the chosen functions.
pub(super) struct Counts {
    module: Module,
    consumes_fuel: bool,
    probes: LazyProbes,
}

impl Counts {
    pub(super) fn of(setup: &Setup<'_>) -> Self {
        let module = setup.module.clone();
        // Only stores of engines whose programs consume fuel have some.
        let consumes_fuel = Store::new(module.engine(), ()).get_fuel().is_ok();
        let probes = LazyProbes::new(setup, move |function| {
            let Some(graph) = Graph::of(function) else { return Vec::new() };
            let first = sequences(&graph, consumes_fuel).into_iter().map(|run| graph.location(run.start));
            first.map(|location| ProbeSpec { location, kind: Kind::Count }).collect()
        });
        Self { module, consumes_fuel, probes }
    }

    pub(super) fn switch(&self, on: bool) -> Result<(), Error> {
        self.probes.switch(on)
    }

    /// The number of executions of each instruction, in module order. Functions that were not
    /// called and instructions that control never reaches are left out.
    pub(super) fn all(&self) -> Vec<(Location, u64)> {
        let mut all = Vec::new();
        for function in self.probes.functions() {
            let Some(graph) = self.module.function(function).and_then(|info| Graph::of(&info)) else {
                continue;
            };
            for run in sequences(&graph, self.consumes_fuel) {
                if let Some(count) = self.probes.get(graph.location(run.start), Probe::count) {
                    all.extend(run.map(|index| (graph.location(index), count)));
                }
            }
        }
        all
    }

    /// Whether the instructions of a function are counted. If so, those that [`Counts::all`] leaves
    /// out were not executed.
    pub(super) fn observes(&self, function: u32) -> bool {
        self.probes.observes(function)
    }

    pub(super) fn report_refused(&self, report: &mut Report) {
        self.probes.report_refused(report);
    }
}

/// The instructions of a function, by their counters.
fn sequences(graph: &Graph<'_>, consumes_fuel: bool) -> Vec<Range<usize>> {
    if consumes_fuel { (0..graph.len()).map(|index| index..index + 1).collect() } else { graph.runs() }
}

/// Visits the instructions that were executed, in module order, with their numbers of executions.
pub(super) fn for_each_executed(
    counts: &[(Location, u64)],
    module: &Module,
    mut visit: impl FnMut(&Instruction<'_>, u64),
) {
    for of_function in counts.chunk_by(|(one, _), (other, _)| one.function == other.function) {
        let Some(function) = module.function(of_function[0].0.function) else { continue };
        let Some(body) = function.body() else { continue };
        let start = body.range().start;
        let mut rest = of_function.iter().peekable();
        for found in body.instructions() {
            let place = Place::Instruction { offset: (found.offset() - start) as u32 };
            if let Some((_, count)) = rest.next_if(|(location, _)| location.place == place)
                && *count > 0
            {
                visit(&found, *count);
            }
        }
    }
}

/// The texts of the instructions that were executed.
pub(super) fn listing(counts: &[(Location, u64)], module: &Module) -> Listing {
    let executed = counts.iter().filter(|(_, count)| *count > 0);
    Listing::of(module, executed.filter_map(|(location, _)| instruction(*location)))
}

/// A function and an offset in its body.
pub(super) fn instruction(location: Location) -> Option<(u32, u32)> {
    match location.place {
        Place::Instruction { offset } => Some((location.function, offset)),
        _ => None,
    }
}
