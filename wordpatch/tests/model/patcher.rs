//! A processor that carries out a [program](super::program), and the wait.
//!
//! # The wait, without a clock
//! T_max bounds the age of what an executor executes: the age of an elided read, and the "bounded time window" between a read and
//! the execution. So whoever waits for T_max after a moment `s` knows, when the wait is over, that every copy which any
//! executor may still execute was read after `s`. That, and nothing else, is what a wait gives the protocol, and it is
//! all that is modelled: a wait *begins* when the patcher's own stores are visible, and marks the copies that are out of date then;
//! it *ends* when no marked copy is left.
//!
//! * Nothing is missed. Take any run in real time that keeps to T_max. Each of its events is a transition here, in the same
//!   order, and at the moment a wait ends there is no copy left from before its beginning. How long T_max is, and how the
//!   time is shared out between the processors, does not matter, so all of that is covered at once.
//! * Copies that are equal to the memory need no mark: the executor might as well have read them just now, and no later event
//!   can tell the difference.
//! * Every wait can end, since an executor may always forget a copy, and abandon or execute what is in flight.
//! * `membarrier` gives the same. Every processor executes a core-serializing instruction between the call and the return, which
//!   ends its copies from before. Not all at one moment: what one processor reads anew may be outdated again by another
//!   patcher before the call returns, and that is not marked here either.

use wordpatch::Bytes;
use wordpatch::protocol::Step;

use super::executor::parts;
use super::explore::Transitions;
use super::memory::{Write, events};
use super::program::{Action, Job, Program, Stores};
use super::scenario::{Owner, Scenario, State, Violation};

/// How far a patcher is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Patcher {
    job: u8,
    action: u8,
    /// Whether the wait it is at has begun.
    waiting: bool,
    /// The word it will store back.
    loaded: Option<Bytes>,
    /// Stores that are not visible yet, the oldest first.
    buffer: Vec<Write>,
    /// The jobs that succeeded, one bit each.
    succeeded: u8,
}

impl Patcher {
    /// The job at hand, if there is one.
    pub(crate) fn job<'p>(&self, program: &'p Program) -> Option<&'p Job> {
        program.jobs.get(usize::from(self.job))
    }

    /// Whether nothing is left to do.
    pub(crate) fn has_finished(&self, program: &Program) -> bool {
        self.job(program).is_none() && self.buffer.is_empty()
    }

    /// Whether this job succeeded.
    pub(crate) fn has_done(&self, job: usize) -> bool {
        self.succeeded & 1 << job != 0
    }

    fn go_on(&mut self, program: &Program) {
        self.action += 1;
        self.waiting = false;
        self.loaded = None;
        if self.job(program).is_some_and(|job| job.actions.len() == usize::from(self.action)) {
            self.succeeded |= 1 << self.job;
            self.job += 1;
            self.action = 0;
        }
    }
}

/// The record of a site has changed: whoever looks twice sees it.
fn notice(state: &mut State) {
    state.executors.iter_mut().for_each(|executor| executor.position.notice());
}

/// Ends the job with an error; the guard gives the site back.
fn give_up(state: &mut State, me: usize) {
    let mine = |owner: &&mut Option<Owner>| owner.is_some_and(|owner| owner.patcher == me as u8);
    if let Some(owner) = state.owners.iter_mut().find(mine) {
        *owner = None;
        notice(state);
    }
    let patcher = &mut state.patchers[me];
    patcher.job += 1;
    patcher.action = 0;
}

/// Adds what patcher `me` can do.
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
    if let Some(write) = patcher.buffer.first() {
        let mut next = state.clone();
        next.patchers[me].buffer.remove(0);
        next.memory.apply(write);
        if next.patchers[me].buffer.is_empty() {
            next.memory.locked_by = None;
        }
        out.push(format_args!("patcher {me}: {} is visible", write.bytes), Ok(next));
        if lock.is_some() {
            return;
        }
    }
    let Some(job) = patcher.job(program) else { return };
    let mut next = state.clone();
    match &job.actions[usize::from(patcher.action)] {
        Action::Check(address, old) => {
            let found = state.memory.read_through(&patcher.buffer, *address, old.len());
            if found == *old {
                next.patchers[me].go_on(program)
            } else {
                give_up(&mut next, me)
            }
            out.push(format_args!("patcher {me} wants {old}, finds {found}"), Ok(next));
        }
        Action::Take(site) => {
            let owner = state.owners[*site];
            if owner.is_none() {
                next.owners[*site] = Some(Owner { patcher: me as u8, copy: None });
                notice(&mut next);
                next.patchers[me].go_on(program);
            } else {
                give_up(&mut next, me);
            }
            out.push(format_args!("patcher {me} takes the site, which {owner:?} owns"), Ok(next));
        }
        Action::Lock(site) => {
            next.owners[*site] = Some(Owner { patcher: me as u8, copy: job.copy });
            notice(&mut next);
            next.patchers[me].go_on(program);
            out.push(format_args!("patcher {me} locks the site in the table"), Ok(next));
        }
        Action::Release(site) => {
            if patcher.buffer.is_empty() {
                next.owners[*site] = None;
                notice(&mut next);
                next.patchers[me].go_on(program);
                out.push(format_args!("patcher {me} gives the site back"), Ok(next));
            }
        }
        Action::Do(_, Step::Wait) => wait(scenario, state, me, out),
        Action::Do(address, Step::Store { offset, old, new }) => {
            store(scenario, state, me, address + offset, (old, new), out);
        }
    }
}

fn store(
    scenario: &Scenario,
    state: &State,
    me: usize,
    address: usize,
    (old, new): (&Bytes, &Bytes),
    out: &mut Transitions<State, Violation>,
) {
    let (program, patcher) = (&scenario.patchers[me], &state.patchers[me]);
    let mut next = state.clone();
    match program.stores {
        // A locked instruction begins when the store buffer has been drained.
        Stores::CompareExchange if !patcher.buffer.is_empty() => {}
        Stores::CompareExchange => {
            let found = state.memory.read(address, old.len());
            if found != *old {
                give_up(&mut next, me);
                out.push(format_args!("patcher {me} would store {new} over {old}, finds {found}"), Ok(next));
                return;
            }
            next.patchers[me].go_on(program);
            let writes = events(scenario.true_window, address, new);
            if let [write] = &writes[..] {
                next.memory.apply(write);
                out.push(format_args!("patcher {me} stores {new} over {old}"), Ok(next));
            } else {
                next.memory.locked_by = Some(me as u8);
                push_in_either_order(
                    writes,
                    next,
                    me,
                    format_args!("patcher {me} stores {new} over {old}"),
                    out,
                );
            }
        }
        Stores::Plain => {
            next.patchers[me].go_on(program);
            let writes = events(scenario.true_window, address, new);
            push_in_either_order(writes, next, me, format_args!("patcher {me} issues a store of {new}"), out);
        }
        Stores::WholeWord => {
            let word = address & !7;
            let Some(loaded) = patcher.loaded else {
                let loaded = state.memory.read_through(&patcher.buffer, word, 8);
                next.patchers[me].loaded = Some(loaded);
                out.push(format_args!("patcher {me} loads the word {loaded}"), Ok(next));
                return;
            };
            let mut bytes = loaded.to_vec();
            bytes[address - word..address - word + new.len()].copy_from_slice(new);
            let bytes = Bytes::new(&bytes).expect("a word");
            next.patchers[me].go_on(program);
            next.patchers[me].buffer.push(Write { address: word, bytes });
            out.push(format_args!("patcher {me} issues a store of the word {bytes}"), Ok(next));
        }
    }
}

/// The parts of one store enter the buffer in either order: nothing says which window comes first.
fn push_in_either_order(
    mut writes: Vec<Write>,
    state: State,
    me: usize,
    text: std::fmt::Arguments<'_>,
    out: &mut Transitions<State, Violation>,
) {
    for _ in 0..writes.len() {
        let mut next = state.clone();
        next.patchers[me].buffer.extend(&writes);
        out.push(text, Ok(next));
        writes.rotate_left(1);
    }
}

fn wait(scenario: &Scenario, state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    let (program, patcher) = (&scenario.patchers[me], &state.patchers[me]);
    let mark = 1 << me;
    let mut next = state.clone();
    if patcher.waiting {
        let mut copies = state.executors.iter().flat_map(|executor| executor.copies.iter().flatten());
        if copies.all(|copy| copy.too_old_for & mark == 0) {
            next.patchers[me].go_on(program);
            out.push(format_args!("patcher {me} has waited"), Ok(next));
        }
        return;
    }
    if program.waits_drain && !patcher.buffer.is_empty() {
        return;
    }
    next.patchers[me].waiting = true;
    for (executor, site) in next.executors.iter_mut().zip(&scenario.executors) {
        let site = &scenario.sites[*site];
        let places = parts(scenario.true_window, site.address, site.initial.len());
        for (copy, (address, length)) in executor.copies.iter_mut().zip(places) {
            if let Some(copy) = copy.as_mut().filter(|copy| copy.bytes != state.memory.read(address, length))
            {
                copy.too_old_for |= mark;
            }
        }
    }
    out.push(format_args!("patcher {me} begins to wait"), Ok(next));
}
