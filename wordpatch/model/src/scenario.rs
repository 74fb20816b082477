//! Scenarios (sites, executors and patchers), and the properties that are checked.
//!
//! # Properties
//! 1. *Safety.* A thread executes, at the site or out of line, only complete instructions that a
//!    patch has expected or stored ([`Violation::Mixture`]); no INT3 of ours is considered foreign
//!    ([`Violation::ForeignTrap`]).
//! 2. *Progress.* From every state, every patcher can still finish, and every executor can execute
//!    the instruction without steps of other threads (the [explorer](crate::explore) checks both).
//!    At least one of the patches of a site succeeds ([`Violation::AllPatchesFailed`]), unless
//!    waits are refused.
//! 3. *Result.* In the end, memory contains the result of the successful patches in some order, and
//!    failed ones have changed nothing ([`Violation::Unexplained`]); a site that stays locked
//!    because a wait was refused counts as its old bytes. After every patcher has waited, no core
//!    fetches other bytes ([`Violation::Stale`]). This does not include threads that were trapped
//!    before: they may execute the copy of the old instruction at any later time.
//! 4. *Forks.* A child that is forked at any time has a complete instruction at each site, after
//!    the old bytes of locked sites are restored ([`Violation::ForkedMixture`]).
//!
//! # Forks
//! As in `text/atfork.rs`: the forking thread waits until no patcher is in a step, and prevents
//! further steps; it records the locked sites with their old bytes; the child gets a copy of the
//! memory. Between the last two, patchers may do everything except steps.

use crate::assumptions::Assumption;
use crate::code::Code;
use crate::cores::Core;
use crate::executor::{self, Handler, Position};
use crate::explore::{Exploration, Flaw, Model, Transitions, explore};
use crate::job::{Change, Program};
use crate::memory::{ARENA, Memory, Versions, Write, parts};
use crate::patcher::{self, Patcher, Stores};
use std::rc::Rc;

/// Bytes that may be executed at a site.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Exactly these bytes.
    Whole(Code),
    /// These bytes, followed by any others: a dead operand, or bytes that are jumped over.
    Front(Code),
}

/// An instruction that is patched.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) address: usize,
    pub(crate) initial: Code,
    pub(crate) forms: Vec<Form>,
}

impl Site {
    /// Whether a thread may execute these bytes here.
    pub(crate) fn allows(&self, bytes: &Code) -> bool {
        self.forms.iter().any(|form| match form {
            Form::Whole(whole) => whole == bytes,
            Form::Front(front) => bytes.starts_with(front),
        })
    }
}

/// A violated property.
#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// These bytes were executed.
    Mixture(Code),
    /// An INT3 of ours was considered foreign.
    ForeignTrap,
    /// A thread with SIGTRAP blocked executed an INT3.
    Killed,
    /// All patches of this site failed.
    AllPatchesFailed(usize),
    /// In the end, a site contains these bytes, which are not the result of the successful patches
    /// in any order.
    Unexplained(Code),
    /// After the last wait a core may still execute these bytes.
    Stale(Code),
    /// A forked child's text contains these bytes.
    ForkedMixture(Code),
    /// The library has panicked.
    Panicked(Rc<str>),
}

/// A scenario to be explored.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The fetch window of the processors, which may differ from the one that patchers assume.
    pub(crate) window: usize,
    base: usize,
    pub(crate) sites: Vec<Site>,
    /// The site that each executor executes.
    pub(crate) executors: Vec<usize>,
    pub(crate) patchers: Vec<Program>,
    pub(crate) handler: Handler,
    pub(crate) stores: Stores,
    /// Whether a wait begins only when the store buffer is empty.
    pub(crate) waits_drain: bool,
    /// Whether cores are modelled individually.
    pub(crate) one_by_one: bool,
    /// Whether patchers read text byte by byte.
    pub(crate) reads_bytes: bool,
    pub(crate) dropped: Option<Assumption>,
    forks: bool,
    pub(crate) forks_in_steps: bool,
    must_be_seen: bool,
    may_all_fail: bool,
}

/// A patcher that owns a site, and the lock if there is one: the old bytes, and the instruction of
/// the out-of-line copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) patcher: u8,
    pub(crate) lock: Option<(Code, Code)>,
}

/// The versions of each site, in each of its windows.
type VersionsOfSites = Vec<Vec<Versions>>;

/// The state of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) memory: Memory,
    versions: VersionsOfSites,
    /// As `versions`, for a core that waits do not reach.
    out_of_reach: Option<VersionsOfSites>,
    /// The core of each executor, if cores are modelled individually. The versions above are then
    /// unused.
    pub(crate) cores: Vec<Core>,
    /// The record of each site in the table: its owner, if there is one.
    pub(crate) owners: Vec<Option<Owner>>,
    pub(crate) executors: Vec<Position>,
    pub(crate) patchers: Vec<Patcher>,
    /// The old bytes of the locked sites that a forking thread has recorded.
    pub(crate) fork: Option<Vec<Option<Code>>>,
}

impl State {
    pub(crate) fn versions_of(&self, scenario: &Scenario, executor: usize) -> &VersionsOfSites {
        let is_last = executor + 1 == scenario.executors.len();
        self.out_of_reach.as_ref().filter(|_| is_last).unwrap_or(&self.versions)
    }

    pub(crate) fn each_versions(&mut self, act: impl FnMut(&mut Versions)) {
        let all = self.versions.iter_mut().chain(self.out_of_reach.iter_mut().flatten());
        all.flatten().for_each(act);
    }

    /// Calls `act` for the versions that waits reach.
    pub(crate) fn each_versions_in_reach(&mut self, act: impl FnMut(&mut Versions)) {
        self.versions.iter_mut().flatten().for_each(act);
    }

    /// Makes a write visible.
    pub(crate) fn apply(&mut self, scenario: &Scenario, write: &Write) {
        self.memory.apply(write);
        let memory = self.memory.clone();
        self.each_versions(|versions| versions.note(&memory, scenario.dropped));
    }

    /// Changes a site's record, which trapped threads notice when they read it again.
    pub(crate) fn set_owner(&mut self, site: usize, owner: Option<Owner>) {
        self.owners[site] = owner;
        self.executors.iter_mut().for_each(Position::notice);
    }
}

impl Scenario {
    /// Code on both sides of `boundary`, on processors with this fetch window.
    pub fn new(window: usize, boundary: usize) -> Self {
        assert_eq!(boundary % 8, 0);
        Self {
            window,
            base: boundary - ARENA / 2,
            sites: Vec::new(),
            executors: Vec::new(),
            patchers: Vec::new(),
            handler: Handler::OutOfLine,
            stores: Stores::CompareExchange,
            waits_drain: true,
            one_by_one: false,
            reads_bytes: false,
            dropped: None,
            forks: false,
            forks_in_steps: false,
            must_be_seen: false,
            may_all_fail: false,
        }
    }

    /// Adds an instruction, and this number of threads that execute it.
    pub fn site(mut self, address: usize, initial: &[u8], executors: usize) -> Self {
        self.executors.extend(std::iter::repeat_n(self.sites.len(), executors));
        let initial = Code::new(initial);
        self.sites.push(Site { address, initial, forms: vec![Form::Whole(initial)] });
        self
    }

    /// Adds a patcher. Its new bytes may be executed at their sites.
    pub fn patcher(mut self, program: Program) -> Self {
        for Change { site, new, .. } in program.jobs.iter().flat_map(|job| job.changes()) {
            self.sites[*site].forms.push(Form::Whole(*new));
        }
        self.may_all_fail |= program.refusable;
        self.patchers.push(program);
        self
    }

    /// Allows another form to be executed at the last site.
    pub fn allowing(mut self, form: Form) -> Self {
        self.sites.last_mut().expect("a site").forms.push(form);
        self
    }

    /// Uses another trap handler.
    pub fn handler(self, handler: Handler) -> Self {
        Self { handler, ..self }
    }

    /// Uses another kind of stores.
    pub fn storing(self, stores: Stores) -> Self {
        Self { stores, ..self }
    }

    /// Lets waits begin while stores are still in the buffer.
    pub fn waits_do_not_drain(self) -> Self {
        Self { waits_drain: false, ..self }
    }

    /// Models an individual core for each executor (`cores.rs`).
    pub fn core_by_core(self) -> Self {
        Self { one_by_one: true, ..self }
    }

    /// Lets patchers read text one byte at a time, as the library does.
    pub fn reading_bytes(self) -> Self {
        Self { reads_bytes: true, ..self }
    }

    /// Adds a thread that forks at any time.
    pub fn forking(self) -> Self {
        Self { forks: true, ..self }
    }

    /// Adds a thread that forks at any time, even during steps.
    pub fn forking_in_steps(self) -> Self {
        Self { forks_in_steps: true, ..self.forking() }
    }

    /// Uses machines, or callers, that violate this assumption.
    pub fn without(self, assumption: Assumption) -> Self {
        Self { dropped: Some(assumption), ..self }
    }

    /// Requires that every core has seen the result when the patchers have finished. (This is
    /// always checked if all of them wait at their end.)
    pub fn seen_at_the_end(self) -> Self {
        Self { must_be_seen: true, ..self }
    }

    /// Permits all patches to fail.
    pub fn where_all_may_fail(self) -> Self {
        Self { may_all_fail: true, ..self }
    }

    /// Explores the scenario; panics if there is a flaw. Prints the number of states.
    #[track_caller]
    pub fn holds(&self) {
        let Exploration { states, counterexample } = explore(self);
        if let Some(counterexample) = counterexample {
            panic!("{:#x?}\n{counterexample}", self.sites);
        }
        println!("holds: {states} states");
    }

    /// Explores the scenario; panics unless the expected flaw is found. Prints the shortest path to
    /// it.
    #[track_caller]
    pub fn fails(&self, expected: impl Fn(&Flaw<Violation>) -> bool) {
        let Exploration { states, counterexample } = explore(self);
        let counterexample = counterexample.expect("a flaw");
        let without = self.dropped.map(|dropped| format!(" without {dropped:?}")).unwrap_or_default();
        println!(
            "{counterexample}\nfails{without}: {} steps, after {states} states",
            counterexample.trace.len()
        );
        assert!(expected(&counterexample.flaw), "an unexpected flaw:\n{counterexample}");
    }

    /// The number of the site at this address.
    pub(crate) fn site_at(&self, address: usize) -> usize {
        let number = self.sites.iter().position(|site| site.address == address);
        number.unwrap_or_else(|| panic!("no site at {address:#x}"))
    }

    /// Whether a site contains any of these addresses.
    pub(crate) fn has_site_in(&self, address: usize, length: usize) -> bool {
        let end = |site: &Site| site.address + site.initial.len();
        self.sites.iter().any(|site| site.address < address + length && address < end(site))
    }

    /// Whether the successful patches of `site`, in some order, lead from its first bytes to `now`.
    fn explains(&self, state: &State, site: usize, now: &Code) -> bool {
        let patches: Vec<Vec<Change>> = (self.patchers.iter().zip(&state.patchers))
            .map(|(program, patcher)| {
                let changes = program.jobs.iter().flat_map(|job| job.changes()).enumerate();
                let made =
                    changes.filter(|(number, change)| change.site == site && patcher.has_made(*number));
                made.map(|(_, change)| *change).collect()
            })
            .collect();
        let queues: Vec<&[Change]> = patches.iter().map(Vec::as_slice).collect();
        some_order_leads(self.sites[site].initial, *now, &queues)
    }

    /// Whether some patch of the site was tried, and none succeeded.
    fn all_failed(&self, state: &State, site: usize) -> bool {
        let tried = self.patchers.iter().zip(&state.patchers).flat_map(|(program, patcher)| {
            let changes = program.jobs.iter().flat_map(|job| job.changes()).enumerate();
            let here = changes.filter(|(_, change)| change.site == site);
            here.map(|(number, _)| patcher.has_made(number))
        });
        let outcomes: Vec<bool> = tried.collect();
        !outcomes.is_empty() && !outcomes.contains(&true)
    }

    /// Whether stale versions are a violation in the end.
    fn must_be_seen(&self) -> bool {
        let ends_with_wait =
            |program: &Program| program.jobs.last().is_some_and(|job| job.changes().is_empty());
        self.must_be_seen || self.patchers.iter().all(ends_with_wait)
    }

    /// The old bytes of the sites that are locked.
    fn locked(&self, state: &State) -> Vec<Option<Code>> {
        let old = |owner: &Option<Owner>| owner.and_then(|owner| owner.lock).map(|(old, _)| old);
        state.owners.iter().map(old).collect()
    }

    /// The instruction at site `number` after the old bytes of these locked sites are restored.
    fn restored(&self, state: &State, locked: &[Option<Code>], number: usize) -> Code {
        let mut memory = state.memory.clone();
        for (site, old) in self.sites.iter().zip(locked) {
            if let Some(bytes) = *old {
                memory.apply(&Write { address: site.address, bytes });
            }
        }
        let site = &self.sites[number];
        memory.read(site.address, site.initial.len())
    }

    fn fork(&self, state: &State, out: &mut Transitions<State, Violation>) {
        if state.fork.is_some() {
            out.push(format_args!("the fork is over"), Ok(State { fork: None, ..state.clone() }));
            return;
        }
        let mut patchers = self.patchers.iter().zip(&state.patchers);
        if self.forks_in_steps || patchers.all(|(program, patcher)| patcher.lets_fork(program)) {
            let noted = self.locked(state);
            let text = format_args!("a thread forks, and finds locked: {noted:?}");
            out.push(text, Ok(State { fork: Some(noted.clone()), ..state.clone() }));
        }
    }

    /// Adds a foreign write to the last byte of each site.
    fn write_by_others(&self, state: &State, out: &mut Transitions<State, Violation>) {
        for site in &self.sites {
            let write = Write { address: site.address + site.initial.len() - 1, bytes: Code::new(&[0xf4]) };
            let mut next = state.clone();
            next.apply(self, &write);
            out.push(format_args!("a foreign store of {}", write.bytes), Ok(next));
        }
    }
}

fn some_order_leads(from: Code, to: Code, queues: &[&[Change]]) -> bool {
    if queues.iter().all(|queue| queue.is_empty()) {
        return from == to;
    }
    (0..queues.len()).any(|first| {
        let [change, rest @ ..] = queues[first] else { return false };
        let Some(next) = change.apply(&from) else { return false };
        let mut queues = queues.to_vec();
        queues[first] = rest;
        some_order_leads(next, to, &queues)
    })
}

impl Model for Scenario {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> State {
        let mut memory = Memory::new(self.base);
        for site in &self.sites {
            memory.apply(&Write { address: site.address, bytes: site.initial });
        }
        let versions = |site: &Site| {
            let parts = parts(self.window, site.address, site.initial.len());
            parts
                .into_iter()
                .map(|(start, length)| Versions::new(start, memory.read(start, length)))
                .collect()
        };
        let versions: VersionsOfSites = self.sites.iter().map(versions).collect();
        let core = |site: &usize| {
            let Site { address, initial, .. } = &self.sites[*site];
            Core::new(self.window, *address, initial.len())
        };
        let out_of_reach = self.dropped == Some(Assumption::WaitsReachEveryCore);
        State {
            out_of_reach: out_of_reach.then(|| versions.clone()),
            versions,
            cores: if self.one_by_one { self.executors.iter().map(core).collect() } else { Vec::new() },
            owners: vec![None; self.sites.len()],
            executors: vec![Position::Fetching; self.executors.len()],
            patchers: self.patchers.iter().map(Patcher::new).collect(),
            memory,
            fork: None,
        }
    }

    fn transitions(&self, state: &State, out: &mut Transitions<State, Violation>) {
        (0..self.patchers.len()).for_each(|me| patcher::transitions(self, state, me, out));
        (0..self.executors.len()).for_each(|me| executor::transitions(self, state, me, out));
        if self.forks {
            self.fork(state, out);
        }
        if self.dropped == Some(Assumption::NoForeignStores) {
            self.write_by_others(state, out);
        }
    }

    fn judge(&self, state: &State) -> Option<Violation> {
        if let Some(noted) = &state.fork {
            for (number, site) in self.sites.iter().enumerate() {
                let bytes = self.restored(state, noted, number);
                if !site.allows(&bytes) {
                    return Some(Violation::ForkedMixture(bytes));
                }
            }
        }
        if !self.is_end(state) {
            return None;
        }
        let locked = self.locked(state);
        for number in 0..self.sites.len() {
            let now = self.restored(state, &locked, number);
            if !self.explains(state, number, &now) {
                return Some(Violation::Unexplained(now));
            }
            if !self.may_all_fail && self.all_failed(state, number) {
                return Some(Violation::AllPatchesFailed(number));
            }
        }
        if self.must_be_seen() && !self.may_all_fail {
            if self.one_by_one {
                let outdated = |core: &Core| core.outdated(&state.memory);
                return state.cores.iter().find_map(outdated).map(Violation::Stale);
            }
            let mut versions = state.versions.iter().chain(state.out_of_reach.iter().flatten()).flatten();
            return versions.find_map(Versions::outdated).map(Violation::Stale);
        }
        None
    }

    fn is_end(&self, state: &State) -> bool {
        let mut patchers = self.patchers.iter().zip(&state.patchers);
        patchers.all(|(program, patcher)| patcher.has_finished(program))
    }

    fn independent(&self) -> usize {
        self.executors.len()
    }
}
