//! A thread that executes the instruction of one site repeatedly.
//!
//! At the site, it executes any combination of the versions that a core may still have of the
//! windows of the instruction: see [`crate::memory`].
//!
//! # The trap
//! A thread that executes INT3 makes the steps of the trap handler, one access of the site table at
//! a time. It reads the site's record, and continues in the copy if the site is locked. Otherwise
//! it reads the site's byte, and executes the site again if that is not INT3. Otherwise it reads
//! the record again, and considers the INT3 foreign if the record has not changed. The copy is
//! executed at any later time, which no wait of a patcher bounds. (The `interleavings` of wordpatch
//! run the actual handler and table in every order of their memory accesses.)

use crate::assumptions::Assumption;
use crate::code::Code;
use crate::cores;
use crate::explore::Transitions;
use crate::scenario::{Scenario, State, Violation};

/// The one-byte breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

/// The position of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Position {
    /// At the site.
    Fetching,
    /// INT3 was executed.
    Trapped,
    /// The site's record was not locked; `changed` if it has changed since.
    NotLocked { changed: bool },
    /// After that, an INT3 was read at the site.
    StillInt3 { changed: bool },
    /// In the out-of-line copy of this instruction.
    OutOfLine(Code),
}

impl Position {
    /// Records that the site's record has changed, which the thread sees when it reads it again.
    pub(crate) fn notice(&mut self) {
        if let Self::NotLocked { changed } | Self::StillInt3 { changed } = self {
            *changed = true;
        }
    }
}

/// The handler of trapped threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// The library's.
    OutOfLine,
    /// The paper's: "these threads will go into a signal handler and spin until the patch has been
    /// completely applied".
    Spin,
    /// The library's, but an INT3 at a site that is not locked is considered foreign at once.
    Hasty,
}

/// Adds the transitions of executor `me`.
pub(crate) fn transitions(
    scenario: &Scenario,
    state: &State,
    me: usize,
    out: &mut Transitions<State, Violation>,
) {
    match state.executors[me] {
        Position::Fetching if scenario.one_by_one => cores::fetch(scenario, state, me, out),
        Position::Fetching => fetch(scenario, state, me, out),
        _ => trap(scenario, state, me, out),
    }
    if scenario.one_by_one {
        cores::forget(state, me, out);
    }
}

fn fetch(scenario: &Scenario, state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    let number = scenario.executors[me];
    let site = &scenario.sites[number];
    let mut combinations = vec![Code::new(&[])];
    for versions in &state.versions_of(scenario, me)[number] {
        let longer = |front: &Code| versions.all().map(|part| front.followed_by(part)).collect::<Vec<_>>();
        combinations = combinations.iter().flat_map(longer).collect();
    }
    let mut executes = false;
    for bytes in combinations {
        let text = format_args!("executor {me} executes {bytes}");
        if bytes[0] == INT3 {
            let next = if scenario.dropped == Some(Assumption::SigtrapIsDelivered) {
                Err(Violation::Killed)
            } else {
                Ok(at(state, me, Position::Trapped))
            };
            out.push_by(me, text, next);
        } else if !site.allows(&bytes) {
            out.push_by(me, text, Err(Violation::Mixture(bytes)));
        } else if !std::mem::replace(&mut executes, true) {
            out.push_arrival(me, text, Ok(state.clone()));
        }
        if scenario.dropped == Some(Assumption::NoJumpIntoInstruction) {
            for entry in 1..bytes.len() {
                // A branch there expects the tail of the old instruction.
                let tail = Code::new(&bytes[entry..]);
                if tail[..] != site.initial[entry..] {
                    let text = format_args!("executor {me} enters the middle and executes {tail}");
                    out.push_by(me, text, Err(Violation::Mixture(tail)));
                }
            }
        }
    }
}

fn at(state: &State, me: usize, position: Position) -> State {
    let mut next = state.clone();
    next.executors[me] = position;
    next
}

fn trap(scenario: &Scenario, state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    let number = scenario.executors[me];
    let site = &scenario.sites[number];
    let at = |position| Ok(at(state, me, position));
    match state.executors[me] {
        Position::Fetching => {}
        Position::Trapped => match state.owners[number].and_then(|owner| owner.lock) {
            None => {
                let text = format_args!("executor {me} in the handler finds the site not locked");
                out.push_by(me, text, at(Position::NotLocked { changed: false }));
            }
            Some(_) if scenario.handler == Handler::Spin => {
                out.push_by(me, format_args!("executor {me} spins"), at(Position::Trapped));
            }
            Some((_, copy)) => {
                let text = format_args!("executor {me} in the handler finds the copy of {copy}");
                out.push_by(me, text, at(Position::OutOfLine(copy)));
            }
        },
        Position::NotLocked { changed } => {
            let byte = state.memory.read(site.address, 1);
            let next = if byte[0] == INT3 { Position::StillInt3 { changed } } else { Position::Fetching };
            out.push_by(me, format_args!("executor {me} in the handler reads {byte}"), at(next));
        }
        Position::StillInt3 { changed } => {
            let again = changed && scenario.handler != Handler::Hasty;
            let next = if again { at(Position::Trapped) } else { Err(Violation::ForeignTrap) };
            let text = format_args!("executor {me} in the handler reads the record again");
            out.push_by(me, text, next);
        }
        Position::OutOfLine(bytes) => {
            if scenario.dropped == Some(Assumption::HandlerReturnSerializes) {
                // The core may have fetched earlier contents of the copy's memory.
                let before = Code::new(&vec![INT3; bytes.len()]);
                let text = format_args!("executor {me} executes what stood at the copy's place: {before}");
                out.push_by(me, text, Err(Violation::Mixture(before)));
            }
            let next =
                if site.allows(&bytes) { at(Position::Fetching) } else { Err(Violation::Mixture(bytes)) };
            out.push_arrival(me, format_args!("executor {me} executes the copy of {bytes}"), next);
        }
    }
}
