//! A processor that runs drivers of the library: [jobs](crate::job), one operation at a time.
//!
//! # Stores
//! The library's stores are locked compare-exchanges: each begins when the store buffer is empty,
//! and reads, compares and writes atomically. A store that crosses a boundary of the true window
//! (which the library makes only if it assumes a larger one) is two events under the bus lock, in
//! either order. [`Stores`] has other kinds, for defects.
//!
//! # The site table
//! A record is acquired by one exchange; locking and releasing it are stores. A trapped thread
//! reads it: see [`crate::executor`].
//!
//! # Waits
//! Reading the clock marks versions, and the end of the wait removes them: see [`crate::memory`]. A
//! wait may end at any time after the clock was read, since cores may forget at any time; it does
//! not affect versions that other patchers have stored in between.

use crate::assumptions::Assumption;
use crate::code::Code;
use crate::environment::{Answer, Operation, Reached};
use crate::explore::Transitions;
use crate::job::{Job, Program};
use crate::memory::{Write, events};
use crate::scenario::{Owner, Scenario, State, Violation};

/// The kind of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Those of the library.
    CompareExchange,
    /// A plain store of the bytes, through the store buffer; nothing is compared.
    Plain,
    /// Not atomic for neighbouring bytes: the aligned word is loaded, and stored with the new
    /// bytes.
    WholeWord,
}

/// A store that is not visible yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Buffered {
    Text(Write),
    /// The record of the site with this number.
    Record(usize, Option<Owner>),
}

/// The progress of a patcher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Patcher {
    job: usize,
    node: usize,
    /// The bytes that were read so far, if text is read byte by byte, or the loaded word of
    /// [`Stores::WholeWord`].
    loaded: Option<Code>,
    /// The oldest first.
    buffer: Vec<Buffered>,
    /// The changes that were made, one bit each, in the order of the program.
    made: u64,
    refused: bool,
}

/// The maximum number of waits of a job.
const MAX_WAITS: u64 = 16;

/// The mark of a wait.
fn mark(me: usize, job: &Job, since: u64) -> u64 {
    assert!(since <= MAX_WAITS && me < 64 / MAX_WAITS as usize, "too many waits: {job}");
    1 << (me as u64 * MAX_WAITS + since - 1)
}

impl Patcher {
    /// A patcher before its first call.
    pub(crate) fn new(program: &Program) -> Self {
        let start = program.jobs.first().map_or(0, Job::start);
        Self { node: start, ..Self::default() }
    }

    fn job<'p>(&self, program: &'p Program) -> Option<&'p Job> {
        program.jobs.get(self.job)
    }

    /// Whether all calls have returned and all stores are visible.
    pub(crate) fn has_finished(&self, program: &Program) -> bool {
        self.job(program).is_none() && self.buffer.is_empty()
    }

    /// Whether it has made change number `change` of the program.
    pub(crate) fn has_made(&self, change: usize) -> bool {
        self.made & 1 << change != 0
    }

    /// Whether a thread of this process may fork now.
    pub(crate) fn lets_fork(&self, program: &Program) -> bool {
        match self.job(program).map(|job| job.reached(self.node)) {
            Some(Reached::Asks { forkable, .. }) => forkable,
            _ => true,
        }
    }
}

/// Gives an answer to patcher `me`. If its call has returned, the next one begins.
fn answer(scenario: &Scenario, mut state: State, me: usize, answer: Answer) -> Result<State, Violation> {
    let program = &scenario.patchers[me];
    let patcher = &mut state.patchers[me];
    let job = patcher.job(program).expect("a call that has requested an operation");
    patcher.node = job.after(patcher.node, answer);
    patcher.loaded = None;
    settle(scenario, state, me)
}

/// Records the results of calls that have returned.
fn settle(scenario: &Scenario, mut state: State, me: usize) -> Result<State, Violation> {
    let program = &scenario.patchers[me];
    loop {
        let patcher = &mut state.patchers[me];
        let Some(job) = patcher.job(program) else { return Ok(state) };
        match job.reached(patcher.node) {
            Reached::Asks { operation: Operation::Read { address, length }, .. }
                if !scenario.has_site_in(address, length) =>
            {
                // These bytes are never written, so the time of the read is irrelevant.
                let found = Answer::Found(state.memory.read(address, length));
                patcher.node = job.after(patcher.node, found);
            }
            Reached::Asks { .. } => return Ok(state),
            Reached::Panicked(message) => return Err(Violation::Panicked(message)),
            Reached::Returned(made) => {
                assert_eq!(made.len(), job.changes().len(), "{job}");
                let first: usize = program.jobs[..patcher.job].iter().map(|job| job.changes().len()).sum();
                let bits = made.iter().enumerate().filter(|(_, made)| **made);
                patcher.made |= bits.fold(0, |bits, (number, _)| bits | 1 << (first + number));
                patcher.job += 1;
                patcher.node = program.jobs.get(patcher.job).map_or(0, Job::start);
                let mine = ((1 << MAX_WAITS) - 1) << (me as u64 * MAX_WAITS);
                state.each_versions(|versions| versions.clear(mine));
                let State { cores, memory, .. } = &mut state;
                cores.iter_mut().for_each(|core| core.clear(memory, mine));
            }
        }
    }
}

/// Adds the transitions of patcher `me`.
pub(crate) fn transitions(
    scenario: &Scenario,
    state: &State,
    me: usize,
    out: &mut Transitions<State, Violation>,
) {
    let (program, patcher) = (&scenario.patchers[me], &state.patchers[me]);
    let lock = state.memory.locked_by;
    if lock.is_some_and(|holder| usize::from(holder) != me) {
        return;
    }
    if !patcher.buffer.is_empty() {
        let reorders = scenario.dropped == Some(Assumption::StoresKeepOrder);
        let visible = if reorders { patcher.buffer.len() } else { 1 };
        for number in 0..visible {
            becomes_visible(scenario, state, me, number, out);
        }
        if lock.is_some() {
            return;
        }
    }
    let Some(job) = patcher.job(program) else { return };
    let Reached::Asks { operation, in_step, .. } = job.reached(patcher.node) else {
        out.push(format_args!("patcher {me} returns"), settle(scenario, state.clone(), me));
        return;
    };
    if in_step && state.fork.is_some() && !scenario.forks_in_steps {
        return;
    }
    let at = format!("patcher {me}");
    let site = |address| scenario.site_at(address);
    match operation {
        Operation::Read { address, length } => read(scenario, state, me, (address, length), out),
        Operation::Exchange { address, old, new } => store(scenario, state, me, address, (&old, &new), out),
        Operation::Acquire { .. } | Operation::Lock { .. } | Operation::Release { .. }
            if job.skips_ownership =>
        {
            out.push(
                format_args!("{at} skips the site's record"),
                answer(scenario, state.clone(), me, Answer::Yes),
            );
        }
        // A locked exchange.
        Operation::Acquire { .. } if !patcher.buffer.is_empty() => {}
        Operation::Acquire { site: address } => {
            let mut next = state.clone();
            let number = site(address);
            let free = next.owners[number].is_none();
            if free {
                next.set_owner(number, Some(Owner { patcher: me as u8, lock: None }));
            }
            let given = if free { Answer::Yes } else { Answer::No };
            out.push(
                format_args!("{at} acquires the site at {address:#x}: {given:?}"),
                answer(scenario, next, me, given),
            );
        }
        Operation::Lock { site: address, old, copy } => {
            let owner = Owner { patcher: me as u8, lock: Some((old, copy)) };
            let next = record(scenario, state, me, site(address), Some(owner));
            out.push(
                format_args!("{at} locks {old}, with a copy of {copy}"),
                answer(scenario, next, me, Answer::Yes),
            );
        }
        Operation::Release { site: address } => {
            let next = record(scenario, state, me, site(address), None);
            out.push(
                format_args!("{at} releases the site at {address:#x}"),
                answer(scenario, next, me, Answer::Yes),
            );
        }
        Operation::IsLocked { site: address } => {
            let is_locked = state.owners[site(address)].is_some_and(|owner| owner.lock.is_some());
            let given = if is_locked { Answer::Yes } else { Answer::No };
            out.push(
                format_args!("{at} reads whether {address:#x} is locked: {given:?}"),
                answer(scenario, state.clone(), me, given),
            );
        }
        Operation::Clock if scenario.waits_drain && !patcher.buffer.is_empty() => {}
        Operation::Clock => {
            let mut next = state.clone();
            let mark = mark(me, job, job.clocks(patcher.node) + 1);
            next.each_versions(|versions| versions.mark(mark));
            let State { cores, memory, .. } = &mut next;
            cores.iter_mut().for_each(|core| core.mark(memory, mark));
            out.push(format_args!("{at} reads the clock"), answer(scenario, next, me, Answer::Yes));
        }
        Operation::WaitForBound { since } => {
            let mut next = state.clone();
            if scenario.dropped != Some(Assumption::StalenessIsBounded) {
                let mark = mark(me, job, since);
                next.each_versions_in_reach(|versions| versions.remove(mark));
            }
            out.push(format_args!("{at} has waited for the bound"), answer(scenario, next, me, Answer::Yes));
        }
        Operation::IsVisible { since } => is_visible(scenario, state, me, since, out),
    }
}

fn is_visible(
    scenario: &Scenario,
    state: &State,
    me: usize,
    since: u64,
    out: &mut Transitions<State, Violation>,
) {
    let (program, patcher) = (&scenario.patchers[me], &state.patchers[me]);
    let job = patcher.job(program).expect("a call that polls");
    if !patcher.refused {
        let mut next = state.clone();
        let skipped = job.skipped_wait.is_some_and(|which| which as u64 + 1 == since);
        let mut is_over = true;
        if !skipped && scenario.dropped != Some(Assumption::WaitsEndStaleness) {
            let mark = mark(me, job, since);
            next.each_versions_in_reach(|versions| versions.remove(mark));
            is_over = !state.cores.iter().any(|core| core.holds_up(mark));
        }
        if is_over {
            out.push(format_args!("patcher {me} has waited"), answer(scenario, next, me, Answer::Yes));
        }
        if program.polls && job.polls(patcher.node) == 0 {
            let next = answer(scenario, state.clone(), me, Answer::No);
            out.push(format_args!("patcher {me} has not waited long enough"), next);
        }
    }
    if program.refusable {
        let mut next = state.clone();
        next.patchers[me].refused = true;
        out.push(format_args!("patcher {me} is refused a wait"), answer(scenario, next, me, Answer::Refused));
    }
}

fn read(
    scenario: &Scenario,
    state: &State,
    me: usize,
    (address, length): (usize, usize),
    out: &mut Transitions<State, Violation>,
) {
    let patcher = &state.patchers[me];
    let mut view = state.memory.clone();
    for store in &patcher.buffer {
        if let Buffered::Text(write) = store {
            view.apply(write);
        }
    }
    if !scenario.reads_bytes {
        let found = view.read(address, length);
        out.push(
            format_args!("patcher {me} reads {found}"),
            answer(scenario, state.clone(), me, Answer::Found(found)),
        );
        return;
    }
    let known = patcher.loaded.unwrap_or(Code::new(&[]));
    let found = known.followed_by(&view.read(address + known.len(), 1));
    let text = format_args!("patcher {me} reads up to {found}");
    if found.len() == length {
        out.push(text, answer(scenario, state.clone(), me, Answer::Found(found)));
    } else {
        let mut next = state.clone();
        next.patchers[me].loaded = Some(found);
        out.push(text, Ok(next));
    }
}

/// A store to a record, after all earlier stores.
fn record(scenario: &Scenario, state: &State, me: usize, site: usize, owner: Option<Owner>) -> State {
    let mut next = state.clone();
    if scenario.stores == Stores::CompareExchange && scenario.dropped != Some(Assumption::StoresKeepOrder) {
        next.set_owner(site, owner);
    } else {
        next.patchers[me].buffer.push(Buffered::Record(site, owner));
    }
    next
}

/// Makes store number `number` of the buffer visible.
fn becomes_visible(
    scenario: &Scenario,
    state: &State,
    me: usize,
    number: usize,
    out: &mut Transitions<State, Violation>,
) {
    let mut next = state.clone();
    let store = next.patchers[me].buffer.remove(number);
    if next.patchers[me].buffer.is_empty() {
        next.memory.locked_by = None;
    }
    match store {
        Buffered::Text(write) => {
            next.apply(scenario, &write);
            out.push(
                format_args!("patcher {me}: {} at {:#x} is visible", write.bytes, write.address),
                Ok(next),
            );
        }
        Buffered::Record(site, owner) => {
            next.set_owner(site, owner);
            out.push(format_args!("patcher {me}: the record of site {site} is visible"), Ok(next));
        }
    }
}

fn store(
    scenario: &Scenario,
    state: &State,
    me: usize,
    address: usize,
    (old, new): (&Code, &Code),
    out: &mut Transitions<State, Violation>,
) {
    let patcher = &state.patchers[me];
    let plain = |text: std::fmt::Arguments<'_>, out: &mut Transitions<State, Violation>| {
        let writes = events(scenario.window, address, new);
        push_in_either_order(scenario, &writes, state, me, text, out);
    };
    match scenario.stores {
        Stores::CompareExchange if scenario.dropped == Some(Assumption::StoresKeepOrder) => {
            let found = state.memory.read(address, old.len());
            if found == *old {
                plain(format_args!("patcher {me} issues a store of {new} over {old}"), out);
            } else if patcher.buffer.is_empty() {
                out.push(
                    format_args!("patcher {me} would store {new} over {old}, finds {found}"),
                    answer(scenario, state.clone(), me, Answer::Found(found)),
                );
            }
        }
        // A locked instruction begins when the store buffer has been drained.
        Stores::CompareExchange if !patcher.buffer.is_empty() => {}
        Stores::CompareExchange => {
            let found = state.memory.read(address, old.len());
            if found != *old {
                out.push(
                    format_args!("patcher {me} would store {new} over {old}, finds {found}"),
                    answer(scenario, state.clone(), me, Answer::Found(found)),
                );
                return;
            }
            let writes = events(scenario.window, address, new);
            let text = format_args!("patcher {me} stores {new} over {old}");
            if let [write] = &writes[..] {
                let mut next = state.clone();
                next.apply(scenario, write);
                out.push(text, answer(scenario, next, me, Answer::Yes));
            } else {
                let mut next = state.clone();
                next.memory.locked_by = Some(me as u8);
                push_in_either_order(scenario, &writes, &next, me, text, out);
            }
        }
        Stores::Plain => plain(format_args!("patcher {me} issues a store of {new}"), out),
        Stores::WholeWord => {
            let word = address & !7;
            let Some(loaded) = patcher.loaded else {
                let mut next = state.clone();
                let loaded = state.memory.read(word, 8);
                next.patchers[me].loaded = Some(loaded);
                out.push(format_args!("patcher {me} loads the word {loaded}"), Ok(next));
                return;
            };
            let mut bytes = loaded.to_vec();
            bytes[address - word..address - word + new.len()].copy_from_slice(new);
            let write = Write { address: word, bytes: Code::new(&bytes) };
            let text = format_args!("patcher {me} issues a store of the word {}", write.bytes);
            push_in_either_order(scenario, &[write], state, me, text, out);
        }
    }
}

/// Adds the parts of a store to the buffer in either order: which window is written first is not
/// defined.
fn push_in_either_order(
    scenario: &Scenario,
    writes: &[Write],
    state: &State,
    me: usize,
    text: std::fmt::Arguments<'_>,
    out: &mut Transitions<State, Violation>,
) {
    let mut writes: Vec<Buffered> = writes.iter().map(|write| Buffered::Text(*write)).collect();
    for _ in 0..writes.len() {
        let mut next = state.clone();
        next.patchers[me].buffer.extend(&writes);
        out.push(text, answer(scenario, next, me, Answer::Yes));
        writes.rotate_left(1);
    }
}
