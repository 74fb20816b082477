//! Who executes and who patches what, and what must never be.
//!
//! # Properties
//! 1. *Safety.* What an executor executes, at the site or out of line, is a complete instruction that was meant to stand there at
//!    some time ([`Violation::Mixture`]); no INT3 of ours is taken for somebody else's
//!    ([`Violation::ForeignTrap`]).
//! 2. *Progress.* From every state, every patcher can still finish, and every executor can execute the instruction while all
//!    others stand still (the [explorer](super::explore) shows both). Of the patches of a site, at least one succeeds
//!    ([`Violation::NobodySucceeded`]).
//! 3. *Result.* In the end the memory holds what the successful patches make of it in some order, the failed ones having
//!    changed nothing ([`Violation::Unexplained`]); and once every patcher has waited, no executor fetches anything
//!    else ([`Violation::Stale`]). This says nothing of a thread that was trapped before: it runs the old instruction's copy
//!    whenever it gets to it.
//!
//! # Why few processors are enough
//! Executors change nothing that another one sees; a wait that an executor holds up can always go on. So what one of several
//! executors runs into, a single one runs into as well. A thread that executes several sites is, to the memory, one executor
//! for each. Windows behind the patched bytes of a long instruction never change, and need not be read.

use wordpatch::{Bytes, FetchWindow};

use super::executor::{self, Executor, Handler};
use super::explore::{Exploration, Flaw, Model, Transitions, explore};
use super::memory::{ARENA, Memory};
use super::patcher::{self, Patcher};
use super::program::Program;

/// What may stand at a site and be executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// These bytes.
    Whole(Bytes),
    /// These bytes, and any others behind them: the rest is an operand that does not matter, or is jumped over.
    Front(Bytes),
}

/// An instruction that is patched.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) address: usize,
    pub(crate) initial: Bytes,
    pub(crate) forms: Vec<Form>,
}

impl Site {
    /// Whether a thread may execute these bytes here.
    pub(crate) fn allows(&self, bytes: &Bytes) -> bool {
        self.forms.iter().any(|form| match form {
            Form::Whole(whole) => whole == bytes,
            Form::Front(front) => bytes.starts_with(front),
        })
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Violation {
    /// These bytes were executed.
    Mixture(Bytes),
    /// An INT3 of ours was taken for a debugger's.
    ForeignTrap,
    /// Every patch of this site failed.
    NobodySucceeded(usize),
    /// In the end these bytes stand at a site, which no order of the successful patches explains.
    Unexplained(Bytes),
    /// After the last wait an executor may still execute these bytes.
    Stale(Bytes),
}

/// One situation that is explored.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// The fetch window that the processors have, whatever the patchers assume.
    pub(crate) true_window: FetchWindow,
    base: usize,
    pub(crate) sites: Vec<Site>,
    /// The site that each executor executes.
    pub(crate) executors: Vec<usize>,
    pub(crate) patchers: Vec<Program>,
    pub(crate) handler: Handler,
    must_be_seen: bool,
}

/// A patcher that owns a site, and what trapped threads execute if it has locked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) patcher: u8,
    pub(crate) copy: Option<Bytes>,
}

/// Everything that changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) memory: Memory,
    /// The record of each site in the table: who owns it, if anybody.
    pub(crate) owners: Vec<Option<Owner>>,
    pub(crate) executors: Vec<Executor>,
    pub(crate) patchers: Vec<Patcher>,
}

impl Scenario {
    /// Code on both sides of `boundary`, on processors with this fetch window.
    pub(crate) fn new(true_window: FetchWindow, boundary: usize) -> Self {
        assert_eq!(boundary % 8, 0);
        Self {
            true_window,
            base: boundary - ARENA / 2,
            sites: Vec::new(),
            executors: Vec::new(),
            patchers: Vec::new(),
            handler: Handler::OutOfLine,
            must_be_seen: false,
        }
    }

    /// An instruction, and as many executors of it.
    pub(crate) fn site(mut self, address: usize, initial: &Bytes, executors: usize) -> Self {
        self.executors.extend(std::iter::repeat_n(self.sites.len(), executors));
        self.sites.push(Site { address, initial: *initial, forms: vec![Form::Whole(*initial)] });
        self
    }

    /// A patcher. What it makes of a site may be executed there.
    pub(crate) fn patcher(mut self, program: Program) -> Self {
        for (site, _, new) in program.jobs.iter().flat_map(|job| &job.changes) {
            self.sites[*site].forms.push(Form::Whole(*new));
        }
        self.patchers.push(program);
        self
    }

    /// Another form that may be executed at the last site.
    pub(crate) fn allowing(mut self, form: Form) -> Self {
        self.sites.last_mut().expect("a site").forms.push(form);
        self
    }

    /// With another trap handler.
    pub(crate) fn handler(self, handler: Handler) -> Self {
        Self { handler, ..self }
    }

    /// Every executor must have seen the result when the patchers have finished; as it must, too, if all of them wait at their end.
    pub(crate) fn seen_at_the_end(self) -> Self {
        Self { must_be_seen: true, ..self }
    }

    /// Explores it; nothing must be wrong. Returns the number of states.
    #[track_caller]
    pub(crate) fn holds(&self) -> usize {
        let Exploration { states, counterexample } = explore(self);
        if let Some(counterexample) = counterexample {
            panic!("{:#x?}\n{counterexample}", self.sites);
        }
        states
    }

    /// Explores it; this must be wrong. Prints the shortest way there.
    #[track_caller]
    pub(crate) fn fails(&self, expected: impl Fn(&Flaw<Violation>) -> bool) {
        let Exploration { states, counterexample } = explore(self);
        let counterexample = counterexample.expect("a defect that is found");
        println!("after {states} states:\n{counterexample}");
        assert!(expected(&counterexample.flaw), "another flaw than expected:\n{counterexample}");
    }

    /// Whether the successful patches of `site`, in some order, lead from its first bytes to `now`.
    fn explains(&self, state: &State, site: usize, now: &Bytes) -> bool {
        let patches: Vec<Vec<(Bytes, Bytes)>> = (self.patchers.iter().zip(&state.patchers))
            .map(|(program, patcher)| {
                let jobs = program.jobs.iter().enumerate().filter(|(number, _)| patcher.has_done(*number));
                let changes = jobs.flat_map(|(_, job)| &job.changes).filter(|(number, ..)| *number == site);
                changes.map(|(_, old, new)| (*old, *new)).collect()
            })
            .collect();
        let queues: Vec<&[(Bytes, Bytes)]> = patches.iter().map(Vec::as_slice).collect();
        some_order_leads(self.sites[site].initial, *now, &queues)
    }

    /// Whether some patch of the site was tried, and none succeeded.
    fn all_failed(&self, state: &State, site: usize) -> bool {
        let tried = self.patchers.iter().zip(&state.patchers).flat_map(|(program, patcher)| {
            let jobs = program.jobs.iter().enumerate();
            let here = jobs.filter(|(_, job)| job.changes.iter().any(|(number, ..)| *number == site));
            here.map(|(number, _)| patcher.has_done(number))
        });
        let outcomes: Vec<bool> = tried.collect();
        !outcomes.is_empty() && !outcomes.contains(&true)
    }

    /// Whether the end is the time to look for stale copies.
    fn must_be_seen(&self) -> bool {
        let ends_with_wait =
            |program: &Program| program.jobs.last().is_some_and(|job| job.changes.is_empty());
        self.must_be_seen || self.patchers.iter().all(ends_with_wait)
    }
}

fn some_order_leads(from: Bytes, to: Bytes, queues: &[&[(Bytes, Bytes)]]) -> bool {
    if queues.iter().all(|queue| queue.is_empty()) {
        return from == to;
    }
    (0..queues.len()).any(|first| match queues[first] {
        [(old, new), rest @ ..] if *old == from => {
            let mut queues = queues.to_vec();
            queues[first] = rest;
            some_order_leads(*new, to, &queues)
        }
        _ => false,
    })
}

impl Model for Scenario {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> State {
        let mut memory = Memory::new(self.base);
        for site in &self.sites {
            memory.apply(&super::memory::Write { address: site.address, bytes: site.initial });
        }
        State {
            memory,
            owners: vec![None; self.sites.len()],
            executors: vec![Executor::NEW; self.executors.len()],
            patchers: vec![Patcher::default(); self.patchers.len()],
        }
    }

    fn transitions(&self, state: &State, out: &mut Transitions<State, Violation>) {
        (0..self.patchers.len()).for_each(|me| patcher::transitions(self, state, me, out));
        (0..self.executors.len()).for_each(|me| executor::transitions(self, state, me, out));
    }

    fn judge(&self, state: &State) -> Option<Violation> {
        if !self.is_end(state) {
            return None;
        }
        for (number, site) in self.sites.iter().enumerate() {
            let now = state.memory.read(site.address, site.initial.len());
            if !self.explains(state, number, &now) {
                return Some(Violation::Unexplained(now));
            }
            if self.all_failed(state, number) {
                return Some(Violation::NobodySucceeded(number));
            }
        }
        if !self.must_be_seen() {
            return None;
        }
        for (executor, site) in state.executors.iter().zip(&self.executors) {
            let site = &self.sites[*site];
            let places = executor::parts(self.true_window, site.address, site.initial.len());
            for (copy, (address, length)) in executor.copies.iter().zip(places) {
                if let Some(copy) = copy.filter(|copy| copy.bytes != state.memory.read(address, length)) {
                    return Some(Violation::Stale(copy.bytes));
                }
            }
        }
        None
    }

    fn is_end(&self, state: &State) -> bool {
        self.patchers.iter().zip(&state.patchers).all(|(program, patcher)| patcher.has_finished(program))
    }

    fn independent(&self) -> usize {
        self.executors.len()
    }
}
