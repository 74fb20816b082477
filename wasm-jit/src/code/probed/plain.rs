//! Plain versions of functions: frames continue in them after values were changed that have no
//! location in the optimized code (`wasm_jit_codegen::Sites::Plain`).
//!
//! They are compiled when the first such value of the function is changed: one that counts, if the
//! frame is in a counting version, and one that does not. One for which there is no memory is not
//! compiled again before there may be some. They have sites at all places, whose
//! forms follow the probes as in all other versions. They are never the current version: a frame
//! that has become plain stays plain until its function returns.
//!
//! # A frame becomes plain
//! 1. It waits: for a generic probe, in whose stub it is, or for a call.
//! 2. Its values are read, and stored where the plain version has them ([`Plain::located`]).
//! 3. From the stub, it continues in the stub that the same list has in the plain version, after
//!    the same probe, so that the other probes of the list fire and see the new values. From a
//!    call, it returns to the same point of the plain version ([`Plain::return_address`]).
//!
//! A frame in the middle of a straight-line run has already counted the run, whichever version it
//! was in, and the rest of the run is the same in the plain version. If the function has no
//! counting versions yet, the outcomes of the frame's later branches are not counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasm_jit_codegen::{
    CompiledFunction, Counting, GenericPart, Instrumentation, Located, Observer, Position, Sites, State,
};

use super::counting::RunCells;
use super::stub_memory::Change;
use super::stubs::{Form, generate};
use super::version::Observations;
use super::{Changes, MakeError, Needs, PLAIN, Version};
use crate::code::{CodeImage, ObserveError, forks};

/// The state in which a frame that becomes plain continues.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub return_address: usize,
    /// The locations of its values.
    pub located: Arc<Located>,
    pub frame_size: u32,
}

/// The return addresses of calls, and the locations of values during the calls.
#[derive(Debug, Default)]
struct Returns {
    /// The instruction whose code is compiled.
    position: u32,
    /// Transfer points: the instructions, and where they are in the code.
    points: Vec<(u32, u32)>,
    calls: Vec<(u32, Located)>,
}

impl Observer for Returns {
    fn instruction(&mut self, position: Position, _: &State<'_>) {
        self.position = position.wasm;
    }

    fn more_code(&mut self, position: Position) {
        self.position = position.wasm;
    }

    /// The code of transfer points does not become longer: each ends with a NOP.
    fn moved(&mut self, _: u32, _: u32) {}

    fn transfer(&mut self, code: u32) {
        self.points.push((self.position, code));
    }

    fn call(&mut self, wasm: u32, state: &State<'_>) {
        self.calls.push((wasm, state.located(self.calls.last().map(|(_, located)| located))));
    }
}

impl Returns {
    /// The instruction that has a point there, and the number of the point among its own.
    fn find(&self, code: u32) -> Option<(u32, usize)> {
        let (position, _) = *self.points.iter().find(|(_, point)| *point == code)?;
        let mut own = self.points.iter().filter(|(of, _)| *of == position);
        Some((position, own.position(|(_, point)| *point == code)?))
    }

    /// The point of an instruction.
    fn point(&self, (position, number): (u32, usize)) -> Option<u32> {
        let mut own = self.points.iter().filter(|(of, _)| *of == position);
        own.nth(number).map(|(_, code)| *code)
    }
}

impl CodeImage {
    /// The continuation of a frame that waits in the stub of a generic probe, and becomes plain.
    ///
    /// # Errors
    /// There is no plain version.
    pub(crate) fn plain_at_site(
        self: &Arc<Self>,
        index: u32,
        return_address: usize,
    ) -> Result<Plain, MakeError> {
        let found = || forks::lock(&self.probed().found.plain);
        if let Some(plain) = found().get(&return_address) {
            return Ok(plain.clone());
        }
        let differs = || MakeError::from(ObserveError::Differs { function: index });
        let (block, from) = self.sited_at(return_address - 1).ok_or_else(differs)?;
        let position = block.stub.ok_or_else(differs)?;
        let changes = &mut *self.changes();
        let plain = self.plain_version(index, from.runs.is_some(), changes)?;
        let site = changes.site(index, position);
        let of_block = site.lists().find(|(_, list)| list.stubs[from.number] == block.start);
        let list = of_block.map(|(number, _)| number).ok_or_else(differs)?;
        changes.make_stub(self, (index, plain), position, Form::List(list), Change::Activation)?;
        let site = changes.functions.site(index, position).expect("just found");
        let start = site.list(list).stubs[plain.number];
        let parts = |version: &Version| -> Result<Vec<GenericPart>, MakeError> {
            let place = version.place(position).ok_or_else(differs)?;
            Ok(generate(self, (index, version), place, (site, list)).generic)
        };
        let inside = |part: &GenericPart| block.start + part.inside as usize == return_address;
        let number = parts(from)?.iter().position(inside).ok_or_else(differs)?;
        let plain = Plain {
            return_address: start + parts(plain)?[number].resume as usize,
            located: site.more().and_then(|more| more.plain.clone()).ok_or_else(differs)?,
            frame_size: plain.frame_size,
        };
        found().insert(return_address, plain.clone());
        Ok(plain)
    }

    /// The continuation of a frame that waits for a call, and becomes plain.
    ///
    /// # Errors
    /// There is no plain version.
    pub(crate) fn plain_at_call(
        self: &Arc<Self>,
        index: u32,
        return_address: usize,
    ) -> Result<Plain, MakeError> {
        let found = || forks::lock(&self.probed().found.plain);
        if let Some(plain) = found().get(&return_address) {
            return Ok(plain.clone());
        }
        let differs = || MakeError::from(ObserveError::Differs { function: index });
        // The frame has an accessor, so it returns to a version.
        let (_, from) = self.version_at(return_address - 1).ok_or_else(differs)?;
        let changes = &mut *self.changes();
        let plain = self.plain_version(index, from.runs.is_some(), changes)?;
        let returns = |version: &Version| -> Result<(Returns, CompiledFunction), MakeError> {
            let mut returns = Returns::default();
            let (_, again) = self.compile_again(index, version.instrumentation(), &mut returns)?;
            Ok((returns, again))
        };
        let (old, again) = returns(from)?;
        let code = (return_address - from.at(from.entry)) as u32 + again.entry;
        let point = old.find(code).ok_or_else(differs)?;
        let (new, _) = returns(plain)?;
        let code = new.point(point).ok_or_else(differs)?;
        let (_, located) = new.calls.into_iter().find(|(at, _)| *at == point.0).ok_or_else(differs)?;
        let plain = Plain {
            return_address: plain.at(code),
            located: Arc::new(located),
            frame_size: plain.frame_size,
        };
        found().insert(return_address, plain.clone());
        Ok(plain)
    }

    /// Whether an address in a function is in a plain version, or in a stub of one.
    pub(crate) fn is_plain_at(&self, index: u32, pc: usize) -> bool {
        // Few functions have a plain version, which saves the search.
        let function = self.probed().function(self, index);
        let mut plain = function.into_iter().flat_map(|function| &function.versions[PLAIN..]);
        plain.any(|version| version.get().is_some())
            && self.version_at(pc).is_some_and(|(_, version)| version.is_plain())
    }

    /// A plain version of a function that is probed, or whose frames have accessors.
    fn plain_version(
        self: &Arc<Self>,
        index: u32,
        is_counting: bool,
        changes: &mut Changes,
    ) -> Result<&Version, MakeError> {
        let function = self.probed().function(self, index).expect("the function is probed");
        let number = PLAIN + usize::from(is_counting);
        if let Some(version) = function.versions[number].get() {
            return Ok(version);
        }
        let memory = changes.stubs.state(self);
        if changes.functions.or_default(index).plain_refused == Some(memory)
            && (changes.idle.is_empty() || !changes.stubs.may_reclaim())
        {
            return Err(MakeError::StubMemory { limit: memory.limit });
        }
        let mut original = Observations::default();
        let compiled = self.observe(index, &mut original)?;
        let sites = Sites::Plain { saved: compiled.saved };
        let mut all = Observations::default();
        self.compile_again(index, Instrumentation { sites: &sites, counting: None }, &mut all)?;
        let needs = |position: u32| {
            let choice = if is_counting { self.choice(index, position) } else { None };
            Needs { choice, ..Needs::default() }
        };
        let places: BTreeMap<u32, Needs> =
            all.sites.iter().map(|(site, _)| (site.wasm, needs(site.wasm))).collect();
        let Changes { functions, arenas, probes, .. } = changes;
        let state = functions.or_default(index);
        self.add_sites(state, function, (&places, probes), &original);
        let counting = state.runs.as_ref().filter(|_| is_counting).map(|runs| {
            let choices = places.keys();
            let choices =
                choices.filter_map(|position| Some((*position, state.sites[position].more()?.choices?)));
            let (first_cell, runs) = (RunCells::first(runs), Some(runs.starts()));
            let counters = self.counters.offset();
            Counting { first_cell, choices: choices.collect(), runs, counted: None, counters }
        });
        let called =
            state.sites.iter().filter(|(_, site)| site.more().is_some_and(|more| more.state.is_some()));
        let located = called.map(|(position, _)| (*position, None)).collect();
        let seen = Observations { located, ..Observations::default() };
        let memory = (arenas, &self.probed().blocks);
        let place = (index, number);
        let (version, located) =
            Version::with_sites(self, place, (sites, counting), None, &state.sites, memory, seen)?;
        for (position, located) in located {
            changes.site(index, position).more_mut().plain = located;
        }
        let installed = self.install(index, function, version, changes);
        if let Err(MakeError::StubMemory { .. }) = installed {
            changes.state(index).plain_refused = Some(changes.stubs.state(self));
        }
        installed?;
        Ok(function.versions[number].get().expect("just made"))
    }

    /// Finds the values of places in the plain versions of a function, if it has any.
    pub(super) fn locate_in_plain<'a>(
        &self,
        index: u32,
        positions: impl Iterator<Item = &'a u32>,
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let function = self.probed().function(self, index);
        let mut plain = function.into_iter().flat_map(|function| &function.versions[PLAIN..]);
        let Some(plain) = plain.find_map(|version| version.get()) else { return Ok(()) };
        let located = positions.map(|position| (*position, None)).collect();
        let mut seen = Observations { located, ..Observations::default() };
        if seen.located.is_empty() {
            return Ok(());
        }
        self.compile_again(index, Instrumentation { sites: &plain.sites, counting: None }, &mut seen)?;
        for (position, located) in seen.located {
            if let Some(site) = changes.functions.site_mut(index, position) {
                site.more_mut().plain = located;
            }
        }
        Ok(())
    }
}
