//! `wasm-jit run --count`: probes that count, and what they have counted.

use std::io::{self, Write};

use wasm_jit::Module;
use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeError, ProbeSpec};

use super::{Failure, units};

/// Probes that are on until this is dropped, each with the text that requested it.
#[derive(Debug)]
pub(super) struct Counts(Vec<(String, Probe)>);

impl Counts {
    /// Makes a probe for each `FUNCTION` or `FUNCTION:OFFSET`, and activates it.
    pub(super) fn of(module: &Module, places: &[String]) -> Result<Self, Failure> {
        let locations: Vec<Location> =
            places.iter().map(|place| location(module, place)).collect::<Result<_, _>>()?;
        let specs: Vec<ProbeSpec> =
            locations.into_iter().map(|location| ProbeSpec { location, kind: Kind::Count }).collect();
        let mut counts = Vec::new();
        for (place, probe) in places.iter().zip(module.probes(&specs)) {
            let about = |error| {
                let failure = match error {
                    // As the user wrote it: the offset is another one.
                    ProbeError::NoInstruction { .. } => Failure::new("no instruction begins there"),
                    ProbeError::Unreachable { .. } => Failure::new("the instruction is unreachable"),
                    error => Failure::new(error),
                };
                failure.about(format_args!("--count {place}"))
            };
            let probe = probe.map_err(about)?;
            probe.activate().map_err(about)?;
            counts.push((place.clone(), probe));
        }
        Ok(Self(counts))
    }

    /// Prints the counts to standard error, one per line.
    pub(super) fn print(&self) {
        let mut out = io::stderr().lock();
        for (place, probe) in &self.0 {
            // The exit code is valid even if nobody reads the counts.
            let _ = writeln!(out, "{:>12} {place}", probe.count());
        }
    }
}

/// Parses a location. Offsets are from the start of the module, as backtraces print them.
fn location(module: &Module, place: &str) -> Result<Location, Failure> {
    if let Some(function) = function(module, place) {
        return Ok(Location { function, place: Place::Entry });
    }
    let wrong = || Failure::new(format_args!("--count: there is no function `{place}` with code"));
    let (name, offset) = place.rsplit_once(':').ok_or_else(wrong)?;
    let function = function(module, name).ok_or_else(wrong)?;
    let offset = units::offset(offset)
        .map_err(|error| Failure { code: 2, message: format!("--count {place}: {error}") })?;
    let start = module.function(function).and_then(|found| found.body()).map_or(0, |body| body.range().start);
    // There is no instruction before the body, nor at its start.
    let offset = offset.saturating_sub(start as u32);
    Ok(Location { function, place: Place::Instruction { offset } })
}

/// The function of this name or index, if it has code.
pub(super) fn function(module: &Module, name: &str) -> Option<u32> {
    let mut functions = module.functions().filter(|function| function.body().is_some());
    let is_meant = |function: &wasm_jit::FunctionInfo<'_>| {
        function.name() == Some(name)
            || name.parse() == Ok(function.index())
            || function.exports().any(|export| export == name)
    };
    functions.find(is_meant).map(|function| function.index())
}
