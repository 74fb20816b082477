//! A thread that executes the instruction of one site again and again.
//!
//! At the site, it executes any combination of the versions that a core may still have of the
//! windows which the instruction touches: see [`crate::memory`].
//!
//! # The trap
//! A thread that runs INT3 does what the trap handler does, one access of the site table at a time.
//! It looks at the site's record, and goes on in the copy if the site is locked; else it reads the
//! site's byte, and runs the site again if that is no INT3; else it looks at the record again, and
//! takes the INT3 for somebody else's if nothing has changed. The copy runs whenever the thread
//! gets to it, which no wait of a patcher bounds. (The library's own handler and table are run in
//! every order of their memory accesses by its `interleavings`.)

use crate::assumptions::Assumption;
use crate::code::Code;
use crate::cores;
use crate::explore::Transitions;
use crate::scenario::{Scenario, State, Violation};

/// The one-byte breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

/// Where the thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Position {
    /// At the site.
    Fetching,
    /// INT3 was executed.
    Trapped,
    /// The site's record was not locked; `changed` if it is another now.
    NotLocked { changed: bool },
    /// Then an INT3 was read there.
    StillInt3 { changed: bool },
    /// Going on in the out-of-line copy of this instruction.
    OutOfLine(Code),
}

impl Position {
    /// A record changes: whoever looks at it again will see that.
    pub(crate) fn notice(&mut self) {
        if let Self::NotLocked { changed } | Self::StillInt3 { changed } = self {
            *changed = true;
        }
    }
}

/// What a trapped thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// As the library's.
    OutOfLine,
    /// As the paper has it: "these threads will go into a signal handler and spin until the patch
    /// has been completely applied".
    Spin,
    /// As the library's, but an INT3 whose site is not locked is taken for somebody else's at once.
    Hasty,
}

/// Adds what executor `me` can do.
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
        if scenario.dropped == Some(Assumption::NobodyEntersTheMiddle) {
            for entry in 1..bytes.len() {
                // Whoever branches there means the end of the old instruction.
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
            let text = format_args!("executor {me} in the handler looks at the record again");
            out.push_by(me, text, next);
        }
        Position::OutOfLine(bytes) => {
            if scenario.dropped == Some(Assumption::HandlerReturnSerializes) {
                // What stood at the copy's place before, which this core has fetched.
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
