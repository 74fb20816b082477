//! Individual cores, to check the claim of [`crate::memory`] that one set of versions represents
//! all cores.
//!
//! Each executor has its own core, which reads windows, keeps versions of them, elides reads,
//! executes or abandons the bytes that it has fetched, and forgets versions. It keeps any number of
//! versions of each window, and an elided read may return any of them. This has many more states;
//! tests compare the verdicts.

use crate::code::Code;
use crate::executor::{INT3, Position};
use crate::explore::Transitions;
use crate::memory::{Memory, parts};
use crate::scenario::{Scenario, State, Violation};

/// The versions of the bytes of one window that a core has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fetched {
    address: usize,
    length: usize,
    /// Versions in the order of their bytes, each with a bit set of the waits that it delays.
    kept: Vec<(Code, u64)>,
    /// The version that will be part of the next instruction.
    in_flight: Option<(Code, u64)>,
}

/// The versions of its site's bytes that a core has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Core(Vec<Fetched>);

impl Core {
    /// A core that executes these bytes and has fetched none of them.
    pub(crate) fn new(window: usize, address: usize, length: usize) -> Self {
        let fetched = |(address, length)| Fetched { address, length, kept: Vec::new(), in_flight: None };
        Self(parts(window, address, length).into_iter().map(fetched).collect())
    }

    fn each(&mut self, memory: &Memory, mut act: impl FnMut(bool, &mut u64)) {
        for Fetched { address, length, kept, in_flight } in &mut self.0 {
            let now = memory.read(*address, *length);
            kept.iter_mut().chain(in_flight).for_each(|(bytes, marks)| act(*bytes == now, marks));
        }
    }

    /// Marks the versions that are outdated when a wait begins.
    pub(crate) fn mark(&mut self, memory: &Memory, mark: u64) {
        self.each(memory, |is_now, marks| if is_now { *marks &= !mark } else { *marks |= mark });
    }

    /// Removes the marks of waits that have ended.
    pub(crate) fn clear(&mut self, memory: &Memory, of: u64) {
        self.each(memory, |_, marks| *marks &= !of);
    }

    /// Whether the wait with this mark is not over.
    pub(crate) fn holds_up(&self, mark: u64) -> bool {
        let all = self.0.iter().flat_map(|fetched| fetched.kept.iter().chain(&fetched.in_flight));
        all.into_iter().any(|(_, marks)| marks & mark != 0)
    }

    /// A version that differs from memory, if there is one.
    pub(crate) fn outdated(&self, memory: &Memory) -> Option<Code> {
        self.0.iter().find_map(|Fetched { address, length, kept, .. }| {
            let now = memory.read(*address, *length);
            kept.iter().map(|(bytes, _)| *bytes).find(|bytes| *bytes != now)
        })
    }
}

/// Adds the transitions of the core of executor `me` that do not depend on the thread's position.
pub(crate) fn forget(state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    for (part, fetched) in state.cores[me].0.iter().enumerate() {
        for (number, (bytes, _)) in fetched.kept.iter().enumerate() {
            let mut next = state.clone();
            next.cores[me].0[part].kept.remove(number);
            out.push_by(me, format_args!("core {me} forgets {bytes}"), Ok(next));
        }
    }
}

/// Adds the transitions of executor `me` at its site.
pub(crate) fn fetch(scenario: &Scenario, state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    let site = &scenario.sites[scenario.executors[me]];
    for (part, Fetched { address, length, kept, in_flight }) in state.cores[me].0.iter().enumerate() {
        if in_flight.is_some() {
            continue;
        }
        let mut next = state.clone();
        let now = state.memory.read(*address, *length);
        let fetched = &mut next.cores[me].0[part];
        fetched.in_flight = Some((now, 0));
        match fetched.kept.binary_search_by_key(&now, |(bytes, _)| *bytes) {
            Ok(place) => fetched.kept[place].1 = 0,
            Err(place) => fetched.kept.insert(place, (now, 0)),
        }
        out.push_by(me, format_args!("core {me} reads {now}"), Ok(next));
        for version in kept {
            let mut next = state.clone();
            next.cores[me].0[part].in_flight = Some(*version);
            out.push_by(me, format_args!("core {me} elides a read and uses {}", version.0), Ok(next));
        }
    }
    let in_flight: Vec<Code> =
        state.cores[me].0.iter().filter_map(|fetched| fetched.in_flight).map(|(bytes, _)| bytes).collect();
    if in_flight.is_empty() {
        return;
    }
    let mut landed = state.clone();
    landed.cores[me].0.iter_mut().for_each(|fetched| fetched.in_flight = None);
    if in_flight.len() == state.cores[me].0.len() {
        let bytes = Code::new(&in_flight.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>());
        let text = format_args!("core {me} executes {bytes}");
        if bytes[0] == INT3 {
            let mut next = landed.clone();
            next.executors[me] = Position::Trapped;
            out.push_by(me, text, Ok(next));
        } else {
            let next = if site.allows(&bytes) { Ok(landed.clone()) } else { Err(Violation::Mixture(bytes)) };
            out.push_arrival(me, text, next);
        }
    }
    out.push_by(me, format_args!("core {me} abandons what it has fetched"), Ok(landed));
}
