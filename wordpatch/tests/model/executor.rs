//! A processor that executes the instruction of one site again and again.
//!
//! # Fetch (paper, section 3)
//! * "Each processor logically issues an *instruction read* ... in a bounded time window before each time it executes the
//!   instruction", one for each window that the instruction touches. Here they come in either order, and anything may happen
//!   between them.
//! * "An adversarial micro-op cache marks a subset of read events as *elided*": such a read returns what the last read that was
//!   not elided returned. So each window has a *copy*; a read replaces it, an elided read uses it as it is.
//! * The bound on elided reads, T_max, is the executor's right to let a copy go at any time, and the waiting patcher's to
//!   insist on it: see [`super::patcher`].
//!
//! A copy that is in flight, for an instruction that was not executed yet, cannot be replaced: the executor has to execute the
//! instruction or abandon it first.
//!
//! # The trap
//! An executor that runs INT3 does what the trap handler does, one access of the site table at a time. It looks at the site's
//! record, and goes on in the copy if the site is locked; else it reads the site's byte, and runs the site again if that is no
//! INT3; else it looks at the record again, and takes the INT3 for somebody else's if nothing has changed. The copy runs
//! whenever the thread gets to it, which no wait of a patcher bounds.

use wordpatch::protocol::INT3;
use wordpatch::{Bytes, FetchWindow, Split};

use super::explore::Transitions;
use super::scenario::{Scenario, State, Violation};

/// The bytes of one window that an executor has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Copy {
    pub(crate) bytes: Bytes,
    /// For an instruction that is being fetched; else kept for later, by the micro-op cache.
    pub(crate) in_flight: bool,
    /// The patchers, one bit each, that wait until this copy is gone.
    pub(crate) too_old_for: u8,
}

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
    /// Going on in the out-of-line copy of these bytes.
    OutOfLine(Bytes),
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
pub(crate) enum Handler {
    /// As the trap handler of the crate.
    OutOfLine,
    /// As the paper has it: "these threads will go into a signal handler and spin until the patch has been completely applied".
    Spin,
    /// As the crate's, but an INT3 whose site is not locked is taken for somebody else's at once.
    Hasty,
}

/// One executor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Executor {
    /// The copies of the windows that the instruction touches; the second is never there if it touches one.
    pub(crate) copies: [Option<Copy>; 2],
    pub(crate) position: Position,
}

impl Executor {
    pub(crate) const NEW: Self = Self { copies: [None; 2], position: Position::Fetching };
}

/// The parts of an instruction that lie in different windows: address and length of each.
pub(crate) fn parts(true_window: FetchWindow, address: usize, length: usize) -> Vec<(usize, usize)> {
    match true_window.split(address, length) {
        Split::Inside => vec![(address, length)],
        Split::Crossing { front } => vec![(address, front), (address + front, length - front)],
    }
}

/// Adds what executor `me` can do.
pub(crate) fn transitions(
    scenario: &Scenario,
    state: &State,
    me: usize,
    out: &mut Transitions<State, Violation>,
) {
    match state.executors[me].position {
        Position::Fetching => fetch(scenario, state, me, out),
        _ => trap(scenario, state, me, out),
    }
    // Copies grow old wherever the thread is.
    for (part, copy) in state.executors[me].copies.iter().enumerate() {
        if let Some(Copy { bytes, in_flight: false, .. }) = copy {
            let mut next = state.clone();
            next.executors[me].copies[part] = None;
            out.push_by(me, false, format_args!("executor {me} forgets its copy {bytes}"), Ok(next));
        }
    }
}

fn fetch(scenario: &Scenario, state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    let site = &scenario.sites[scenario.executors[me]];
    let parts = parts(scenario.true_window, site.address, site.initial.len());
    for (part, (address, length)) in parts.iter().enumerate() {
        let copy = state.executors[me].copies[part];
        if copy.is_some_and(|copy| copy.in_flight) {
            continue;
        }
        let mut next = state.clone();
        let bytes = state.memory.read(*address, *length);
        next.executors[me].copies[part] = Some(Copy { bytes, in_flight: true, too_old_for: 0 });
        out.push_by(me, false, format_args!("executor {me} reads {bytes}"), Ok(next));
        if let Some(copy) = copy {
            let mut next = state.clone();
            next.executors[me].copies[part] = Some(Copy { in_flight: true, ..copy });
            out.push_by(
                me,
                false,
                format_args!("executor {me} elides a read and uses its copy {}", copy.bytes),
                Ok(next),
            );
        }
    }
    let in_flight: Vec<Bytes> = state.executors[me]
        .copies
        .iter()
        .flatten()
        .filter(|copy| copy.in_flight)
        .map(|copy| copy.bytes)
        .collect();
    if in_flight.is_empty() {
        return;
    }
    let mut landed = state.clone();
    landed.executors[me].copies.iter_mut().flatten().for_each(|copy| copy.in_flight = false);
    if in_flight.len() == parts.len() {
        let bytes = Bytes::new(&in_flight.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>());
        let bytes = bytes.expect("as long as the instruction");
        if bytes[0] == INT3 {
            let mut next = landed.clone();
            next.executors[me].position = Position::Trapped;
            out.push_by(me, false, format_args!("executor {me} executes {bytes}: INT3"), Ok(next));
        } else {
            let next = if site.allows(&bytes) { Ok(landed.clone()) } else { Err(Violation::Mixture(bytes)) };
            out.push_by(me, true, format_args!("executor {me} executes {bytes}"), next);
        }
    }
    out.push_by(me, false, format_args!("executor {me} abandons what it has fetched"), Ok(landed));
}

fn trap(scenario: &Scenario, state: &State, me: usize, out: &mut Transitions<State, Violation>) {
    let number = scenario.executors[me];
    let site = &scenario.sites[number];
    let at = |position| {
        let mut next = state.clone();
        next.executors[me].position = position;
        Ok(next)
    };
    match state.executors[me].position {
        Position::Fetching => {}
        Position::Trapped => match state.owners[number].and_then(|owner| owner.copy) {
            None => {
                let next = at(Position::NotLocked { changed: false });
                out.push_by(
                    me,
                    false,
                    format_args!("executor {me} in the handler finds the site not locked"),
                    next,
                );
            }
            Some(_) if scenario.handler == Handler::Spin => {
                out.push_by(me, false, format_args!("executor {me} spins"), at(Position::Trapped));
            }
            Some(copy) => {
                let next = at(Position::OutOfLine(copy));
                out.push_by(
                    me,
                    false,
                    format_args!("executor {me} in the handler finds the copy of {copy}"),
                    next,
                );
            }
        },
        Position::NotLocked { changed } => {
            let byte = state.memory.read(site.address, 1);
            let next = if byte[0] == INT3 { Position::StillInt3 { changed } } else { Position::Fetching };
            out.push_by(me, false, format_args!("executor {me} in the handler reads {byte}"), at(next));
        }
        Position::StillInt3 { changed } => {
            let again = changed && scenario.handler != Handler::Hasty;
            let next = if again { at(Position::Trapped) } else { Err(Violation::ForeignTrap) };
            out.push_by(
                me,
                false,
                format_args!("executor {me} in the handler looks at the record again"),
                next,
            );
        }
        Position::OutOfLine(bytes) => {
            let next =
                if site.allows(&bytes) { at(Position::Fetching) } else { Err(Violation::Mixture(bytes)) };
            out.push_by(me, true, format_args!("executor {me} executes the copy of {bytes}"), next);
        }
    }
}
