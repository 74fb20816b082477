//! The debugger's probes: one for each instruction of the functions in which it may stop.

use std::collections::HashMap;

use wasm_jit::probes::{GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, deactivate_all};

use crate::Error;
use crate::code::Code;

/// Probes by function.
#[derive(Debug, Default)]
pub(crate) struct Places {
    functions: HashMap<u32, OfFunction>,
}

#[derive(Debug)]
struct OfFunction {
    /// Each with the number of requests for it to be active. Unreachable instructions have none.
    probes: HashMap<Place, (Probe, usize)>,
    /// The number of active places.
    active: usize,
    /// Whether calls to the function may be in its probed code.
    is_probed: bool,
}

impl Places {
    /// Makes the probes of a function, all off.
    ///
    /// # Errors
    /// The function has no code, or there can be no probes.
    pub(crate) fn prepare(&mut self, code: &Code, hit: &GenericFn, function: u32) -> Result<(), Error> {
        if self.functions.contains_key(&function) {
            return Ok(());
        }
        let body = code.body(function)?;
        let instructions = (0..body.offsets.len()).filter_map(|index| body.place(index));
        let spec =
            |place| ProbeSpec { location: Location { function, place }, kind: Kind::Generic(hit.clone()) };
        let specs: Vec<ProbeSpec> = std::iter::once(Place::Entry).chain(instructions).map(spec).collect();
        let mut probes = HashMap::new();
        for (spec, probe) in specs.iter().zip(code.module().probes(&specs)) {
            match probe {
                Ok(probe) => _ = probes.insert(spec.location.place, (probe, 0)),
                Err(ProbeError::Unreachable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.functions.insert(function, OfFunction { probes, active: 0, is_probed: false });
        Ok(())
    }

    /// Requests stops at a location. Returns whether there is code at it.
    ///
    /// # Errors
    /// As [`Places::prepare`].
    pub(crate) fn want(&mut self, code: &Code, hit: &GenericFn, location: Location) -> Result<bool, Error> {
        self.prepare(code, hit, location.function)?;
        let of = self.functions.get_mut(&location.function).expect("prepared");
        let Some((probe, wanted)) = of.probes.get_mut(&location.place) else { return Ok(false) };
        if *wanted == 0 {
            probe.activate()?;
            of.active += 1;
            of.is_probed = true;
        }
        *wanted += 1;
        Ok(true)
    }

    /// Requests stops at locations. Returns those that have code.
    ///
    /// # Errors
    /// As [`Places::prepare`]: then none of them is requested.
    pub(crate) fn want_all(
        &mut self,
        code: &Code,
        hit: &GenericFn,
        locations: &[Location],
    ) -> Result<Vec<Location>, Error> {
        let mut wanted = Vec::new();
        for location in locations {
            match self.want(code, hit, *location) {
                Ok(true) => wanted.push(*location),
                Ok(false) => {}
                Err(error) => {
                    wanted.into_iter().for_each(|location| self.unwant(location));
                    return Err(error);
                }
            }
        }
        Ok(wanted)
    }

    /// Withdraws one [`Places::want`] that has returned true.
    pub(crate) fn unwant(&mut self, location: Location) {
        let Some(of) = self.functions.get_mut(&location.function) else { return };
        let Some((probe, wanted)) = of.probes.get_mut(&location.place) else { return };
        *wanted = wanted.saturating_sub(1);
        // A site that cannot be patched, as in a forked child, fires without effect.
        if *wanted == 0 && probe.deactivate().is_ok() {
            of.active -= 1;
        }
    }

    /// Returns functions without active probes to their original code.
    pub(crate) fn settle(&mut self) {
        for of in self.functions.values_mut().filter(|of| of.is_probed && of.active == 0) {
            if let Some((probe, _)) = of.probes.values().next() {
                deactivate_all([probe]);
            }
            of.is_probed = false;
        }
    }
}
