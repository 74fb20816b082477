//! Counters at all instructions.

use wasm_jit::probes::{Kind, Location, Place, ProbeSpec};
use wasm_jit::{Instruction, Module};

use super::listing::Listing;
use crate::{Error, LazyProbes, Report, Setup};

/// Probes that count each instruction of the chosen functions.
pub(super) struct Counts(LazyProbes);

impl Counts {
    pub(super) fn of(setup: &Setup<'_>) -> Self {
        Self(LazyProbes::new(setup, |function| {
            let Some(body) = function.body() else { return Vec::new() };
            let start = body.range().start;
            let spec = |offset: usize| {
                let place = Place::Instruction { offset: (offset - start) as u32 };
                ProbeSpec { location: Location { function: function.index(), place }, kind: Kind::Count }
            };
            body.instructions().map(|instruction| spec(instruction.offset())).collect()
        }))
    }

    pub(super) fn switch(&self, on: bool) -> Result<(), Error> {
        self.0.switch(on)
    }

    /// The number of executions of each instruction, in module order. Functions that were not
    /// called and instructions that control never reaches are left out.
    pub(super) fn all(&self) -> Vec<(Location, u64)> {
        let mut all = Vec::new();
        self.0.for_each(|probe| all.push((probe.spec().location, probe.count())));
        all
    }

    /// Whether the instructions of a function are counted. If so, those that [`Counts::all`] leaves
    /// out were not executed.
    pub(super) fn observes(&self, function: u32) -> bool {
        self.0.observes(function)
    }

    pub(super) fn report_refused(&self, report: &mut Report) {
        self.0.report_refused(report);
    }
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
