//! [`Pass`]: a re-execution of the run up to some moment, and its purpose.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::Location;

use crate::position::Position;
use crate::stop::Reason;
use crate::trail::Steps;

/// A re-execution of the program that the debugger requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repetition {
    /// The fuel of the store; the run ends when it is consumed.
    pub fuel: u64,
    /// The run may begin at any moment at which less than this amount of fuel was consumed, with
    /// the rest of the fuel, if the state equals that of the run from the beginning and no call to
    /// the program is active: earlier events are not observed.
    pub unobserved: u64,
}

/// A re-execution of the run.
#[derive(Debug)]
pub(crate) struct Pass {
    pub from: From,
    /// Where the pass ends; `None` if it ends with the run.
    pub until: Option<Position>,
    pub purpose: Purpose,
    progress: Mutex<Progress>,
}

/// Where a pass begins to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Start,
    /// Where the thread first reaches this location with less than this amount of fuel.
    Fuel {
        location: Location,
        less_than: u64,
    },
    /// After this position.
    Position(Position),
}

/// The purpose of a pass.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// Stops the thread at the end, for these reasons.
    Stop(Vec<Reason>),
    /// Stops the thread at the first instruction, for these reasons.
    StopAtStart(Vec<Reason>),
    /// Stops the thread where it fails, at the end of the run, for these reasons and that of the
    /// failure.
    StopAtFailure(Vec<Reason>),
    /// Runs with too little fuel, to find out where it ends.
    Exhaust,
    /// Records all instructions.
    Trail,
    /// Finds the last breakpoint or watchpoint that stops the thread.
    Search {
        /// Whether there are watchpoints.
        watches: bool,
    },
    /// Finds the last time that the thread reached one of these locations, at this depth.
    Passage {
        places: BTreeSet<Location>,
        depth: usize,
        /// Moments with more fuel than this are ignored.
        fuel: u64,
    },
}

/// The findings of a pass so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub has_begun: bool,
    /// Where the pass has begun to observe, if that was not at the start.
    pub begun_at: Option<Position>,
    /// Whether the thread has reached the end.
    pub is_complete: bool,
    /// The last instruction, if there are watchpoints.
    pub last: Option<Position>,
    pub steps: Steps,
    pub found: Option<Stopping>,
}

impl Progress {
    /// Records a moment at which the thread would stop.
    pub(crate) fn find(&mut self, position: Position, reasons: Vec<Reason>) {
        match &mut self.found {
            Some(found) if found.position == position => found.reasons.extend(reasons),
            found => *found = Some(Stopping { position, reasons }),
        }
    }
}

/// A moment at which the thread would stop.
#[derive(Clone, Debug)]
pub(crate) struct Stopping {
    pub position: Position,
    pub reasons: Vec<Reason>,
}

/// The reason why a pass ends before it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Pause,
    Kill,
    /// The program runs again, from its beginning to its end, and nothing stops it.
    Release,
}

impl Pass {
    pub(crate) fn new(from: From, until: Option<Position>, purpose: Purpose) -> Self {
        let progress = Progress { has_begun: from == From::Start, ..Progress::default() };
        Self { from, until, purpose, progress: Mutex::new(progress) }
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pass needs to see all instructions, once it has begun to observe.
    pub(crate) fn sees_all(&self) -> bool {
        match self.purpose {
            Purpose::Trail | Purpose::StopAtStart(_) => true,
            Purpose::Search { watches } => watches,
            Purpose::Stop(_) | Purpose::StopAtFailure(_) | Purpose::Exhaust | Purpose::Passage { .. } => {
                false
            }
        }
    }

    /// The maximum fuel with which the thread can reach a moment that the pass observes; `entries`
    /// has that of the watched frames' entries. Fuel never increases, so nothing after that is
    /// missed.
    pub(crate) fn fuel(&self, entries: impl IntoIterator<Item = u64>) -> u64 {
        let begin = match self.from {
            From::Fuel { less_than, .. } => less_than.saturating_sub(1),
            From::Position(position) => position.fuel,
            From::Start => match self.purpose {
                Purpose::Stop(_) | Purpose::StopAtFailure(_) => 0,
                Purpose::Exhaust => return 0,
                Purpose::Passage { fuel, .. } => fuel,
                _ => u64::MAX,
            },
        };
        let until = self.until.map(|position| position.fuel);
        until.into_iter().chain(entries).fold(begin, u64::max)
    }

    /// Whether the pass looks for breakpoints.
    pub(crate) fn is_search(&self) -> bool {
        matches!(self.purpose, Purpose::Search { .. })
    }

    /// The locations at which the pass needs probes.
    pub(crate) fn places(&self) -> Vec<Location> {
        let from = match self.from {
            From::Start => None,
            From::Fuel { location, .. } => Some(location),
            From::Position(position) => Some(position.location),
        };
        let until = self.until.map(|position| position.location);
        let mut places: Vec<Location> = from.into_iter().chain(until).collect();
        if let Purpose::Passage { places: passed, .. } = &self.purpose {
            places.extend(passed);
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use wasm_jit::probes::Place;

    use super::*;

    #[test]
    fn probes_are_passed_until_the_first_moment_of_interest() {
        let location = Location { function: 0, place: Place::Entry };
        let at = |fuel| Position { fuel, depth: 0, location };
        #[track_caller]
        fn check(from: From, until: Option<Position>, purpose: Purpose, entries: &[u64], expected: u64) {
            assert_eq!(Pass::new(from, until, purpose).fuel(entries.iter().copied()), expected);
        }
        let fuel = From::Fuel { location, less_than: 100 };
        check(From::Start, Some(at(7)), Purpose::Stop(Vec::new()), &[], 7);
        check(From::Start, Some(at(7)), Purpose::Stop(Vec::new()), &[3, 500], 500);
        check(fuel, Some(at(7)), Purpose::Trail, &[], 99);
        check(fuel, None, Purpose::Search { watches: true }, &[200, 3], 200);
        check(From::Position(at(50)), Some(at(50)), Purpose::Search { watches: false }, &[], 50);
        check(From::Start, Some(at(7)), Purpose::Search { watches: false }, &[], u64::MAX);
        let passage = |fuel| Purpose::Passage { places: BTreeSet::new(), depth: 0, fuel };
        check(From::Start, Some(at(7)), passage(u64::MAX), &[], u64::MAX);
        check(From::Start, Some(at(7)), passage(100), &[], 100);
        // Its fuel differs from that of other passes.
        check(From::Start, None, Purpose::Exhaust, &[500], 0);
    }
}
