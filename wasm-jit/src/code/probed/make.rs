//! Makes probes: steps 1 and 2 of the algorithm in the module above, up to the activation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use wasm_jit_codegen::{CompiledFunction, CompiledSites, Counting, Instrumentation, NoValue, Sites};

use super::counting::{self, Choice, RunCells, Tally};
use super::stub_memory::Change;
use super::stubs::{Form, ProbeAction, Site};
use super::version::{Observations, SitePlace, ValueAtSite};
use super::{
    Changes, Entry, Function, FunctionState, MakeError, NoProbe, PLAIN, ProbeState, Request,
    VERSIONS_OF_A_KIND, Version,
};
use crate::code::CodeImage;

impl CodeImage {
    /// Makes probes in a function, which are off. Returns the number of each, or the reason why
    /// there is none.
    ///
    /// # Errors
    /// No probe is made.
    pub(crate) fn make_probes(
        self: &Arc<Self>,
        index: u32,
        requests: &[Request],
    ) -> Result<Vec<Result<usize, NoProbe>>, MakeError> {
        let sees_frame = requests.iter().any(|request| request.what.is_generic());
        self.make_probes_where(index, requests, sees_frame)
    }

    /// As [`CodeImage::make_probes`]; `end_accessors` says whether frames must end their accessors.
    pub(super) fn make_probes_where(
        self: &Arc<Self>,
        index: u32,
        requests: &[Request],
        end_accessors: bool,
    ) -> Result<Vec<Result<usize, NoProbe>>, MakeError> {
        self.ensure_compiled(index)?;
        let probed = self.probed();
        let changes = &mut *self.changes();
        self.counters.enable(self.counter_bytes()).map_err(MakeError::Counters)?;
        self.resolve_text(changes)?;
        let mut seen = Observations::default();
        for request in requests.iter().filter(|request| request.what.needs_state()) {
            seen.wanted.entry(request.position).or_default().extend(request.what.wanted());
        }
        let generic = requests.iter().filter(|request| request.what.is_generic());
        seen.located.extend(generic.map(|request| (request.position, None)));
        let compiled = self.observe(index, &mut seen)?;
        let Range { start: entry, end: exit } = self.body_range(index);
        let mut reach: HashMap<u32, bool> = HashMap::from([(entry, true), (exit, true)]);
        reach.extend(seen.instructions.iter().map(|(_, position, reachable)| (*position, *reachable)));
        // Values of one place follow each other in the order of its requests.
        let mut values: HashMap<u32, std::slice::Iter<'_, Result<ValueAtSite, NoValue>>> =
            seen.found.iter().map(|(position, (_, values))| (*position, values.iter())).collect();
        let mut what = |request: &Request| -> Result<ProbeAction, NoProbe> {
            match reach.get(&request.position) {
                None => return Err(NoProbe::NoInstruction),
                Some(false) => return Err(NoProbe::Unreachable),
                Some(true) => {}
            }
            let values = values.get_mut(&request.position).into_iter().flatten();
            let found: Vec<_> = values.take(request.what.wanted().count()).collect();
            let located = seen.located.get(&request.position).and_then(Option::as_ref);
            let place = (index, request.position, request.only);
            request.what.with_values(found, located, place, || self.choice(index, request.position))
        };
        let made: Vec<Result<(&Request, ProbeAction), NoProbe>> =
            requests.iter().map(|request| Ok((request, what(request)?))).collect();
        let mut places: BTreeMap<u32, Needs> = BTreeMap::new();
        for (request, what) in made.iter().flatten() {
            places.entry(request.position).or_default().add(what, request.position == exit);
        }
        if !places.is_empty() {
            let slot = &probed.functions[(index - self.module.imported_functions) as usize];
            let function = slot.get_or_init(Box::default);
            if function.versions[0].get().is_none() {
                self.prepare_original(index, function, (&compiled, &seen), changes)?;
            }
            let state = changes.functions.or_default(index);
            let counters = made.iter().flatten().filter(|(_, what)| *what == ProbeAction::Count).count();
            let is_chosen = places.values().any(|needs| needs.choice.is_some());
            let limit = self.module.settings.counter_stubs;
            let instructions = seen.instructions.len();
            state.is_counting |=
                is_chosen || counting::has_many(state.counters + counters, instructions, limit);
            self.lay_out(index, function, (&places, end_accessors), (&compiled, &seen), changes)
                .inspect_err(|_| changes.state(index).is_counting = function.has_counting())?;
        }
        self.locate_in_plain(index, seen.located.keys().chain(seen.found.keys()), changes)?;
        let mut add = |made: Result<(&Request, ProbeAction), NoProbe>| {
            let (&Request { position, only, .. }, what) = made?;
            if let Some((state, _)) = seen.found.get(&position) {
                let is_new = changes.site(index, position).more_mut().state.replace(*state).is_none();
                if is_new {
                    changes.stubs.add_place();
                }
            }
            let state = changes.state(index);
            state.counters += usize::from(what == ProbeAction::Count);
            if let Some(only) = only {
                let cells = state.counts(position, &what).flatten().flatten();
                cells.for_each(|cell| self.counters.watch(only, cell));
            }
            let number = changes.free.pop().unwrap_or(changes.probes.len());
            let tallies = vec![Tally::default(); what.counts().saturating_sub(1)].into();
            let (active, tally) = (false, Tally::default());
            let probe = ProbeState { function: index, position, what, only, active, tally, tallies };
            if number == changes.probes.len() {
                changes.probes.push(None);
            }
            changes.probes[number] = Some(probe);
            Ok(number)
        };
        let uses_accessors = |made: &&(&Request, ProbeAction)| made.1.is_generic();
        self.accessor_users.begin(made.iter().flatten().filter(uses_accessors).count());
        let made: Vec<Result<usize, NoProbe>> = made.into_iter().map(&mut add).collect();
        let mut numbers = made.iter().flatten().copied().peekable();
        if numbers.peek().is_some() {
            let probes = &mut changes.state(index).probes;
            // A tree that is built at once has full nodes.
            if probes.is_empty() { *probes = numbers.collect() } else { probes.extend(numbers) }
        }
        Ok(made)
    }

    /// Makes a version that has what these places need, unless the last version has it.
    fn lay_out(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        (places, end_accessors): (&BTreeMap<u32, Needs>, bool),
        original: (&CompiledFunction, &Observations),
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let number = function.made();
        let last = function.versions[number - 1].get().expect("the last that there is");
        let original_entry = self.at(self.function(index).entry) as usize;
        let entry_bytes = changes.read_entry(original_entry);
        let Changes { functions, probes, arenas, .. } = changes;
        let state = functions.or_default(index);
        self.add_sites(state, function, (places, probes), original.1);
        let is_counting = state.is_counting;
        let Range { start: entry, end: exit } = self.body_range(index);
        let has = |(position, needs): (&u32, &Needs)| {
            let is_settled = |place: &SitePlace| match needs.settled {
                true if *position == exit => last.sites.settles(exit),
                is_needed => !is_needed || place.settled,
            };
            let has_choice = || last.runs.as_ref().is_some_and(|runs| runs.counts_choice(*position));
            let counts = |run| last.runs.as_ref().is_some_and(|runs| runs.counts_run(run));
            (!needs.site(is_counting) || last.place(*position).is_some_and(is_settled))
                && (!needs.cells() || has_choice())
                && (!is_counting || state.runs_for(*position, needs).all(counts))
        };
        let ends_accessors = !end_accessors || last.ends_accessors();
        if last.runs.is_some() == is_counting && places.iter().all(has) && ends_accessors {
            return Ok(());
        }
        if state.entry.is_none() {
            state.entry = Some(Entry::new(original_entry, entry_bytes));
        }
        let made = function.versions[1..PLAIN].iter().filter_map(OnceLock::get);
        let made = made.filter(|made| made.runs.is_some() == is_counting).count();
        let is_last = made == VERSIONS_OF_A_KIND - 1 || self.module.settings.sites == CompiledSites::All;
        let mut used = places.clone();
        for probe in state.probes.iter().filter_map(|number| probes[*number].as_ref()) {
            used.entry(probe.position).or_default().add(&probe.what, probe.position == exit);
        }
        if (end_accessors || !state.kept_for.is_empty()) && !used.values().any(|needs| needs.settled) {
            // Versions with a settled site end accessors.
            let needs = used.entry(entry).or_default();
            (needs.site, needs.settled) = (true, true);
        }
        if is_last {
            let reachable = original.1.instructions.iter().filter(|(.., reachable)| *reachable);
            let all = reachable.map(|(_, position, _)| *position).chain([entry, exit]);
            for position in all {
                let choice = if is_counting { self.choice(index, position) } else { None };
                used.entry(position).or_default().choice = choice;
            }
        }
        self.add_sites(state, function, (&used, probes), original.1);
        let mut positions = used.iter().filter(|(_, needs)| needs.site(is_counting)).peekable();
        let sites = if is_last {
            Sites::All { settled: true }
        } else if positions.peek().is_none() {
            Sites::None
        } else {
            let (all, settled): (Vec<_>, Vec<_>) =
                positions.map(|(position, needs)| (*position, needs.settled.then_some(*position))).unzip();
            Sites::At { positions: all.into(), settled: settled.into_iter().flatten().collect() }
        };
        let counters = used.values().filter(|needs| needs.counter || needs.choice.is_some()).count();
        // Not in the first one only: the number of versions is limited.
        let counts_all = is_last || made > 0 || 2 * counters >= original.1.instructions.len();
        if is_counting && !counts_all && state.runs.is_none() {
            self.find_runs(index, state, probes)?;
        }
        let counting = is_counting.then(|| {
            let choices =
                used.keys().filter_map(|position| Some((*position, state.sites[position].more()?.choices?)));
            let first_cell = state.runs.as_ref().map_or_else(|| self.counters.next(), RunCells::first);
            let counted = (!counts_all).then(|| {
                let counted = used.iter().flat_map(|(position, needs)| state.runs_for(*position, needs));
                counted.collect::<BTreeSet<u32>>().into_iter().collect()
            });
            let counters = self.counters.offset();
            Counting { first_cell, choices: choices.collect(), runs: None, counted, counters }
        });
        let memory = (arenas, &self.probed().blocks);
        let sites = (sites, counting);
        let (seen, sites_made) = (Observations::default(), &state.sites);
        let (version, _) =
            Version::with_sites(self, (index, number), sites, Some(original), sites_made, memory, seen)?;
        if let Some(runs) = &version.runs
            && state.runs.is_none()
        {
            self.add_runs(runs.cells(), state, probes);
        }
        self.install(index, function, version, changes)?;
        if function.current.load(Ordering::Relaxed) != 0 {
            changes.change_version(index, function, number)?;
        }
        Ok(())
    }

    /// The bytes of the largest number of counters that an instance can have.
    pub(super) fn counter_bytes(&self) -> usize {
        let Range { start: first, end } = self.indices();
        let code = (first..end).last().map(|last| self.body_range(last).end - self.body_range(first).start);
        // Counters of sites, runs and choices: less than three for each byte, and one for the exit
        // of the last function.
        (24 * code.unwrap_or(0) as usize + 64).next_multiple_of(16)
    }

    /// Finds the runs of a function that has no counting version yet.
    fn find_runs(
        &self,
        index: u32,
        state: &mut FunctionState,
        probes: &[Option<ProbeState>],
    ) -> Result<(), MakeError> {
        let counting = Counting { counted: Some(Box::default()), ..Counting::default() };
        let mut seen = Observations::default();
        let instrumentation = Instrumentation { sites: &Sites::None, counting: Some(&counting) };
        self.compile_again(index, instrumentation, &mut seen)?;
        let exit = self.body_range(index).end;
        self.add_runs(RunCells::new(self.counters.next(), exit, &seen.runs), state, probes);
        Ok(())
    }

    /// Adds the cells of a function's runs, the first of which is the next counter.
    fn add_runs(&self, runs: RunCells, state: &mut FunctionState, probes: &[Option<ProbeState>]) {
        let runs = state.runs.insert(runs);
        self.counters.add(runs.count());
        let state = &*state;
        // Counters that are not for all instances get one more cell each.
        let own = state.probes.iter().filter_map(|number| probes[*number].as_ref());
        let counters = own.filter(|probe| probe.what == ProbeAction::Count);
        for (only, position) in counters.filter_map(|probe| Some((probe.only?, probe.position))) {
            let [_, run, ..] = state.cells(position);
            run.iter().for_each(|cell| self.counters.watch(only, *cell));
        }
    }

    /// Adds a version to those of its function, with the probes that are on.
    ///
    /// # Errors
    /// The version is given up: another one may be written where it was.
    pub(super) fn install(
        self: &Arc<Self>,
        index: u32,
        function: &Function,
        version: Version,
        changes: &mut Changes,
    ) -> Result<(), MakeError> {
        let number = version.number;
        // A version is found only after it is complete, so its block comes before those of stubs.
        self.probed().blocks.put(version.block(index));
        if let Err(error) = changes.equip(self, index, &version) {
            // Nothing has led to it and its stubs.
            let Changes { functions, stubs, arenas, .. } = changes;
            let state = functions.get_mut(index).expect("the function is probed");
            let made = state.sites.values_mut().flat_map(|site| site.take_stubs(number));
            made.for_each(|start| stubs.give_back(self, start));
            self.probed().blocks.clear(version.base);
            arenas.give_up(version.memory);
            return Err(error);
        }
        let place = version.place_of_code(index);
        let _ = function.versions[number].set(Box::new(version));
        self.shown.version_made(&place);
        Ok(())
    }

    /// Makes these places sites, unless they are sites already.
    pub(super) fn add_sites(
        &self,
        state: &mut FunctionState,
        function: &Function,
        (places, probes): (&BTreeMap<u32, Needs>, &[Option<ProbeState>]),
        original: &Observations,
    ) {
        let add_cell = |position| {
            let cell = self.counters.add(1);
            let versions = function.versions.iter().filter_map(OnceLock::get);
            let counting = versions.filter_map(|version| version.runs.as_ref());
            counting.for_each(|runs| runs.set_cell(position, cell));
            cell
        };
        let new = |position| Site::new(add_cell(position));
        if state.sites.is_empty() {
            // A tree that is built at once has full nodes.
            state.sites = places.keys().map(|position| (*position, new(*position))).collect();
        }
        for (&position, &Needs { choice, .. }) in places {
            let site = state.sites.entry(position).or_insert_with(|| new(position));
            let Some(choice) = choice else { continue };
            let more = site.more_mut();
            more.next = original.next(position);
            if choice.cells() > 0 {
                more.choices.get_or_insert_with(|| self.counters.add(choice.cells()));
            }
            if let Choice::Branch { .. } = choice
                && more.taken_back.is_none()
            {
                let cell = *more.taken_back.insert(add_cell(position));
                let own = state.probes.iter().filter_map(|number| probes[*number].as_ref());
                let counters =
                    own.filter(|probe| (probe.position, &probe.what) == (position, &ProbeAction::Count));
                counters.filter_map(|probe| probe.only).for_each(|only| self.counters.watch(only, cell));
            }
        }
    }
}

/// The needs of a place's probes in a version.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    pub counter: bool,
    /// A site, even in a counting version.
    pub site: bool,
    /// A settled site.
    pub settled: bool,
    pub choice: Option<Choice>,
}

impl Needs {
    fn add(&mut self, what: &ProbeAction, is_exit: bool) {
        match what {
            ProbeAction::Nothing => self.site = true,
            ProbeAction::Count => {
                self.counter = true;
                // The exit is in no run.
                self.site |= is_exit;
            }
            ProbeAction::CountChoice(choice) => self.choice = Some(*choice),
            // At the exit, the results are in their locations, but the locals are not.
            ProbeAction::Call(_) | ProbeAction::Callback(_) | ProbeAction::Record(_) => {
                (self.site, self.settled) = (true, self.settled || !is_exit)
            }
            ProbeAction::Generic(_) => (self.site, self.settled) = (true, true),
        }
    }

    /// Whether there must be a site.
    fn site(&self, is_counting: bool) -> bool {
        self.site || (self.counter && !is_counting)
    }

    /// Whether there must be cells of the instruction.
    fn cells(&self) -> bool {
        self.choice.is_some_and(|choice| choice.cells() > 0)
    }
}

impl Changes {
    /// Gives the sites of a version, which are off, the forms that they have in the others.
    fn equip(&mut self, image: &Arc<CodeImage>, index: u32, version: &Version) -> Result<(), MakeError> {
        for place in &version.places {
            let form = self.site(index, place.position).form;
            if form == Form::Off {
                continue;
            }
            self.make_stub(image, (index, version), place.position, form, Change::Activation)?;
            let site = self.functions.site(index, place.position).expect("the site was made");
            let bytes = version.bytes(place, form, site, Form::Off);
            self.exchange(version.at(place.code), &place.off(), &bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use wordpatch::Bytes;

    use super::super::PLAIN;
    use crate::probes::{Callback, Kind, Location, Place, ProbeSpec};
    use crate::{Engine, Module};

    /// A version that has been made when the change to it fails is used later, and no other kind of
    /// version follows it.
    #[test]
    fn changes_of_version_that_fail_do_not_use_up_the_versions() {
        let text = format!("(module (func (export \"f\") {}))", "nop ".repeat(6));
        let module = Module::new(&Engine::default(), text).unwrap();
        let body = module.function(0).unwrap().body().unwrap();
        let location = |offset: usize| Location {
            function: 0,
            place: Place::Instruction { offset: (offset - body.range().start) as u32 },
        };
        let places: Vec<Location> = body.instructions().map(|at| location(at.offset())).collect();
        let counters: Vec<ProbeSpec> =
            places.iter().map(|at| ProbeSpec { location: *at, kind: Kind::Count }).collect();
        let kind = Kind::Callback { function: Callback::new(|_| ()), values: [].into() };
        let calls = ProbeSpec { location: places[0], kind };
        let probe = module.probe(calls.clone()).unwrap();
        probe.activate().unwrap();
        let image = module.code();
        let made = || image.probed().function(image, 0).unwrap().made();
        assert_eq!(made(), 2);
        for round in 0..PLAIN {
            // The jump to the next version is not stored.
            image.changes().state(0).entry.as_mut().unwrap().stands = Bytes::new(&[0x90; 5]).unwrap();
            let counters = module.probes(&counters);
            assert!(round > 0 || counters.iter().all(Result::is_err), "{counters:?}");
            drop(module.probe(calls.clone()).unwrap());
        }
        assert_eq!(made(), 3);
        let plain = &image.probed().function(image, 0).unwrap().versions[PLAIN..];
        assert!(plain.iter().all(|version: &OnceLock<_>| version.get().is_none()));
    }
}
