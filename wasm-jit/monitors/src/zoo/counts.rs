//! Counters at all instructions.

use wasm_jit::probes::{Kind, Location, Place, ProbeSpec};

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

    /// How often each instruction was executed, in the order of the module. Functions that were not
    /// called are left out, and so are instructions that control never reaches.
    pub(super) fn all(&self) -> Vec<(Location, u64)> {
        let mut all = Vec::new();
        self.0.for_each(|probe| all.push((probe.spec().location, probe.count())));
        all
    }

    /// Whether the instructions of a function are counted: those that [`Counts::all`] leaves out
    /// were not executed.
    pub(super) fn observes(&self, function: u32) -> bool {
        self.0.observes(function)
    }

    pub(super) fn report_refused(&self, report: &mut Report) {
        self.0.report_refused(report);
    }
}
