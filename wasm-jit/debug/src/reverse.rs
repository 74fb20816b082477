//! Reverse execution: a repeatable run is executed again, up to an earlier moment.
//!
//! A thread cannot go back. But if every run of the program executes the same instructions, the
//! debugger can end the run, find out which moment was meant, and run the program again up to that
//! moment. Each re-execution is a [`Pass`]:
//!
//! 1. **To a position** ([`Purpose::Stop`]): the program runs at full speed, with a probe at the
//!    location. The thread may reach the location several times; the position identifies the one
//!    that is meant.
//! 2. **The last breakpoint or changed value** before a position ([`Purpose::Search`]): each moment
//!    that would stop the thread is recorded, until the thread reaches the position. The last part
//!    of the run is searched first, then longer parts before it.
//! 3. **The last instruction** before a position: all instructions of the last part of the run are
//!    recorded ([`Purpose::Trail`]). To find where this part begins, the run gets that much less
//!    fuel and runs at full speed ([`Purpose::Exhaust`]): the next pass has a probe where it
//!    trapped. The trail is kept for further steps.
//!
//! Steps over calls, and to the beginning of lines, are found in the trail; if a call is longer
//! than the trail, a pass looks for its instruction ([`Purpose::Passage`]), in the last part of the
//! run first.
//!
//! A location in a hot loop may be reached millions of times before the moment of interest. Fuel
//! only decreases, so the pass ([`Pass::fuel`]) gives the probes' stubs a threshold
//! ([`FuelThreshold`]): while more fuel is left, they do not call the debugger. A search of the
//! complete run has no such limit, because any moment may be the one it looks for.
//!
//! # Snapshots
//! The host may begin a pass at a later moment that is still before everything that the pass
//! observes ([`Repetition`]): where no call to the program is active, the state consists of
//! memories, tables and globals. Replays do so (`Snapshots` in `wasm-jit-replay`).
//!
//! Most commands are a single call to `_start` from the first moment to the last, so that a
//! snapshot would have to include frames. Snapshots do not include frames, because:
//! - **Forked processes**, as in ocamldebug and gdb, have the entire state. But a child has none of
//!   the debugger's threads, one of which stops the program while another one talks to the user,
//!   who sends closures to a thread; and it shares the text with its parent, so it cannot toggle
//!   probes before it has its own text (`wordpatch::text::unshare`), a copy for each child.
//! - **A copy of the stack** has frames of the host between those of WebAssembly: those of each
//!   host function that has called the program, of the call to `_start`, and of the engine at each
//!   (`runtime/activation.rs`, with the stack limit, the links of activations and the end of what
//!   it lends). They own memory and hold references: after the run has continued, the values to
//!   which the copied bytes refer are changed or freed, so restoring the bytes is undefined
//!   behaviour, whatever is done for the program. Frames of WebAssembly have return addresses in
//!   versions of code that are freed when no thread is in them, and conservative roots of the
//!   collector.
//! - **Values of frames** can be read at calls
//!   ([`Frame::caller`](wasm_jit::probes::Frame::caller)), and plain versions have each value in
//!   its slot. But nothing can enter a function in its middle, and the host functions between two
//!   activations would also have to be entered in their middle. It would take a version of each
//!   function with an entry at each call, values from a buffer, and hosts that are state machines;
//!   a replay's host could be one.
//!
//! All passes run on threads that the program's host starts; one thread of the debugger controls
//! them. The last pass stops the program at its destination.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(doc)]
use wasm_jit::probes::FuelThreshold;
use wasm_jit::probes::{Location, Place};

use crate::Error;
use crate::pass::{From, Pass, Purpose, Repetition, Request, Stopping};
use crate::position::{Point, Position};
use crate::shared::{Back, Command, Present, Repeats, Report, Shared};
use crate::stop::{Outcome, Reason};
use crate::trail::{Before, Trail};

/// The initial length of a trail, in units of fuel: see [`trail_length`].
const TRAIL: u64 = 1 << 14;
/// The number of frames up to which trails have this length.
const DEEP: usize = 1 << 7;
/// The minimum initial length of a trail.
const SHORT: u64 = 1 << 6;
/// The length of the last part of the run, in which breakpoints and changed values are searched
/// first, in units of fuel.
const SEARCHED: u64 = 1 << 16;
/// The length of the last part of the run, in which the call of a frame is searched first, in units
/// of fuel.
const NEAR: u64 = 1 << 22;
/// The factor by which the next part is longer, if the first one is not long enough.
const LONGER: u64 = 16;
/// The same factor if all instructions of the part are seen: a part that is too long takes more
/// time than the passes that find it.
const LONGER_WATCHED: u64 = 4;

/// The way in which a program with a repeatable run goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reverse {
    /// To the last moment at which something would have stopped the program.
    Continue,
    /// To the instruction that was executed last.
    StepInstruction,
    /// To the last instruction of this frame, or of a caller if this frame has none.
    NextInstruction,
    /// To the beginning of the source line that was executed last, even in a function that was
    /// called; where lines are unknown, to the last instruction.
    Step,
    /// To the beginning of the line that was executed last in this frame, or in a caller; calls
    /// that are inlined are stepped over.
    Next,
    /// To the call of a frame's function.
    Finish {
        /// The frame, counted from the innermost one, which is 0.
        level: usize,
    },
}

/// The reason why there is no result.
enum Halt {
    Error(Error),
    Requested(Request),
}

impl std::convert::From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The call of the frame to which the program goes back.
#[derive(Clone, Copy, Debug)]
struct Call {
    location: Location,
    depth: usize,
}

/// The moment to which the program goes back.
enum Target {
    Position(Stopping),
    /// The start of the run: there is no earlier moment.
    Start,
}

impl Shared {
    /// Begins to go back; the program is stopped or has ended.
    ///
    /// # Errors
    /// [`Error::NotRepeatable`], [`Error::Running`]; [`Error::NoFrame`], [`Error::OtherModule`].
    pub(crate) fn reverse(self: &Arc<Self>, how: Reverse, times: u64) -> Result<(), Error> {
        let repeats = self.repeats.get().ok_or(Error::NotRepeatable)?;
        let state = &mut *self.state();
        let present = state.present.clone().ok_or(Error::Running)?;
        let call = match how {
            Reverse::Finish { level } => Some(call_of(&present, level)?),
            _ => None,
        };
        if repeats.fuel == 0 {
            return Err(Error::NotRepeatable);
        }
        let (ends, ended) = channel();
        let shared = self.clone();
        let was_alive = state.stopped.is_some();
        let go = move || {
            Journey { shared: &shared, repeats: shared.repeats.get().expect("checked"), ended }
                .go(&present, was_alive, how, call, times)
        };
        let thread = std::thread::Builder::new().name("reverse".to_owned()).spawn(go);
        thread.map_err(|error| Error::Value(format!("no thread to go back: {error}")))?;
        state.back = Some(Back { ends, request: None });
        state.present = None;
        state.is_killed = true;
        state.end_plans();
        if let Some(stopped) = state.stopped.take() {
            let _ = stopped.commands.send(Command::Kill);
        }
        Ok(())
    }
}

fn call_of(present: &Present, level: usize) -> Result<Call, Error> {
    let none = Error::NoFrame { level: level + 1 };
    let depth = present.locations.len().checked_sub(level + 2).ok_or(none)?;
    let location = present.locations[level + 1].ok_or(Error::OtherModule { level: level + 1 })?;
    Ok(Call { location, depth })
}

/// The state of going back.
struct Journey<'s> {
    shared: &'s Arc<Shared>,
    repeats: &'s Repeats,
    /// Receives the outcomes of passes.
    ended: Receiver<Outcome>,
}

impl Journey<'_> {
    fn go(&self, present: &Present, was_alive: bool, how: Reverse, call: Option<Call>, times: u64) {
        if was_alive && self.ended.recv().is_err() {
            return;
        }
        let found = self.target(present.point, how, call, times);
        let start = |reasons| Pass::new(From::Start, None, Purpose::StopAtStart(reasons));
        let stop = |position, reasons| Pass::new(From::Start, Some(position), Purpose::Stop(reasons));
        let back = |reason| match (present.point, &present.outcome) {
            (Point::At(position), _) => Some(stop(position, vec![reason])),
            // It was stopped where it failed.
            (Point::End { .. }, None) if self.shared.state().traps.is_some() => {
                Some(Pass::new(From::Start, None, Purpose::StopAtFailure(vec![reason])))
            }
            (Point::End { .. }, _) => None,
        };
        let (last, problem) = match found {
            Ok(Target::Position(found)) => (Some(stop(found.position, found.reasons)), None),
            Ok(Target::Start) => (Some(start(vec![Reason::HistoryStart])), None),
            Err(Halt::Requested(Request::Kill)) => return self.killed(),
            Err(Halt::Requested(Request::Release)) => return self.released(),
            Err(Halt::Requested(Request::Pause)) => (back(Reason::Pause), None),
            Err(Halt::Error(error)) => {
                let problem = error.to_string();
                (back(Reason::NotReversed { problem: problem.clone() }), Some(problem))
            }
        };
        let outcome = |problem: Option<String>| match (problem, &present.outcome) {
            (Some(problem), _) => Outcome::failed(format!("it could not go back: {problem}"), 1),
            (None, Some(outcome)) => outcome.clone(),
            (None, None) => Outcome::returned("stopped"),
        };
        match last {
            // The program had ended before, and is still in that state.
            None => self.end(outcome(problem)),
            Some(pass) => match self.start(&Arc::new(pass), self.repeats.fuel, true) {
                Ok(()) => {}
                Err(Halt::Requested(Request::Release)) => self.released(),
                Err(Halt::Requested(_)) => self.killed(),
                Err(Halt::Error(error)) => self.end(outcome(Some(error.to_string()))),
            },
        }
    }

    /// Records that nothing runs any more.
    fn end(&self, outcome: Outcome) {
        let (point, of) = (Point::End { fuel: outcome.fuel }, outcome.clone());
        self.report(outcome, Some(Present { point, locations: Vec::new(), outcome: Some(of) }));
    }

    /// Records that nothing runs any more, and that there is no end from which the program could go
    /// back.
    fn killed(&self) {
        self.report(Outcome::returned("killed"), None);
    }

    /// Runs the program from its beginning to its end.
    fn released(&self) {
        {
            let state = &mut *self.shared.state();
            state.back = None;
            let _ = state.end_pass(&self.shared.code, self.shared.hit());
            state.begin();
            state.see_none();
            state.places.settle();
        }
        let whole = Repetition { fuel: self.repeats.fuel, unobserved: 0 };
        if let Err(problem) = (self.repeats.start)(whole) {
            self.end(Outcome::failed(problem, 1));
        }
    }

    fn report(&self, outcome: Outcome, present: Option<Present>) {
        {
            let state = &mut *self.shared.state();
            state.back = None;
            // A breakpoint whose probe cannot be activated does not stop the next run.
            let _ = state.end_pass(&self.shared.code, self.shared.hit());
            state.present = present;
        }
        let _ = self.shared.reports.send(Report::Ended(outcome));
    }

    /// Starts a pass. Users see the outcome of the last one only.
    fn start(&self, pass: &Arc<Pass>, fuel: u64, is_last: bool) -> Result<(), Halt> {
        let observed = {
            let state = &mut *self.shared.state();
            if state.is_over {
                return Err(Error::Running.into());
            }
            match state.back.as_ref().and_then(|back| back.request) {
                // The thread will be there soon.
                Some(Request::Pause) if is_last => {}
                Some(request) => return Err(Halt::Requested(request)),
                None => {}
            }
            if is_last {
                state.back = None;
            }
            let observed = state.begin_pass(pass, &self.shared.code, self.shared.hit())?;
            // This includes the probes of watchpoints.
            state.see_none();
            if pass.from == From::Start && pass.sees_all() {
                self.shared.see_all(state)?;
            }
            state.places.settle();
            observed
        };
        let unobserved = self.repeats.fuel.saturating_sub(observed);
        (self.repeats.start)(Repetition { fuel, unobserved }).map_err(Error::Value)?;
        Ok(())
    }

    /// Runs a pass to its end.
    fn run(&self, pass: &Arc<Pass>, fuel: u64) -> Result<Outcome, Halt> {
        let started = self.start(pass, fuel, false);
        let outcome = started.and_then(|()| Ok(self.ended.recv().map_err(|_| Error::Running)?));
        let state = &mut *self.shared.state();
        let ended = state.end_pass(&self.shared.code, self.shared.hit());
        let unseen = state.unseen();
        state.see_none();
        let outcome = outcome?;
        ended?;
        if let Some(request) = state.back.as_ref().and_then(|back| back.request) {
            return Err(Halt::Requested(request));
        }
        if let Some(unseen) = unseen {
            return Err(Error::Value(unseen.text(&self.shared.code)).into());
        }
        if pass.until.is_some() && fuel == self.repeats.fuel && !pass.progress().is_complete {
            return Err(Error::NotRepeated { outcome: outcome.text }.into());
        }
        Ok(outcome)
    }

    /// The moment to which the program goes, and the reasons why it stops there.
    fn target(&self, from: Point, how: Reverse, call: Option<Call>, times: u64) -> Result<Target, Halt> {
        self.find_entries()?;
        let mut point = from;
        let mut target = Target::Start;
        let times = if matches!(how, Reverse::Finish { .. }) { 1 } else { times.max(1) };
        for _ in 0..times {
            let (wanted, reason) = match how {
                Reverse::Continue => (None, None),
                Reverse::StepInstruction => (self.before(point)?, Some(Reason::Step)),
                Reverse::NextInstruction => (self.before_at(point, depth_of(point))?, Some(Reason::Step)),
                Reverse::Step => (self.line(point, false)?, Some(Reason::Step)),
                Reverse::Next => (self.line(point, true)?, Some(Reason::Step)),
                Reverse::Finish { .. } => {
                    let Call { location, depth } = call.expect("found for this");
                    (self.passage([location], depth, point)?, Some(Reason::Step))
                }
            };
            let after = wanted.map_or(From::Start, From::Position);
            match (self.search(after, point)?, wanted) {
                // If it is the same instruction, the stop also completes a step.
                (Some(mut found), wanted) => {
                    let is_wanted = wanted == Some(found.position);
                    found.reasons.extend(reason.filter(|_| is_wanted));
                    point = Point::At(found.position);
                    target = Target::Position(found);
                    if !is_wanted && how != Reverse::Continue {
                        break;
                    }
                }
                (None, Some(position)) => {
                    point = Point::At(position);
                    target = Target::Position(Stopping { position, reasons: reason.into_iter().collect() });
                }
                (None, None) => return Ok(Target::Start),
            }
        }
        Ok(target)
    }

    /// Finds the moments at which the frames of watched expressions were entered.
    fn find_entries(&self) -> Result<(), Halt> {
        let watches: Vec<_> = self.shared.state().watches.values().cloned().collect();
        for watch in watches {
            let Some(frame) = &watch.frame else { continue };
            let (None, Some(seen)) = (frame.entry(), frame.seen) else { continue };
            let entry = Location { function: frame.function, place: Place::Entry };
            let found = self.passage([entry], frame.depth, seen)?;
            *frame.entry.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
        Ok(())
    }

    /// The last moment before a point, and after the beginning, at which a breakpoint or watchpoint
    /// would stop the thread.
    fn search(&self, from: From, until: Point) -> Result<Option<Stopping>, Halt> {
        let (breakpoints, watches) = {
            let state = self.shared.state();
            let enabled = state.breakpoints.values().filter(|of| of.is_enabled);
            let (watches, breakpoints): (Vec<_>, Vec<_>) = enabled.partition(|of| of.is_watch);
            let places = breakpoints.into_iter().flat_map(|of| of.locations.iter().copied());
            (places.collect::<Vec<Location>>(), !watches.is_empty())
        };
        if breakpoints.is_empty() && !watches {
            return Ok(None);
        }
        let run = |from: From, until: Point| -> Result<(Option<Stopping>, Option<Position>), Halt> {
            let pass = Arc::new(Pass::new(from, until.position(), Purpose::Search { watches }));
            self.run(&pass, self.repeats.fuel)?;
            let progress = &mut *pass.progress();
            Ok((progress.found.take(), progress.begun_at))
        };
        if let From::Position(position) = from {
            let is_visited = !self.are_all_seen(position, until, |at| !breakpoints.contains(at))
                || breakpoints.iter().any(|location| location.place == Place::Entry);
            return if watches || is_visited { Ok(run(from, until)?.0) } else { Ok(None) };
        }
        let (mut length, mut rest) = (SEARCHED, until);
        loop {
            let (from, _) = self.less(until, length)?;
            let (found, begun_at) = run(from, rest)?;
            if found.is_some() || from == From::Start {
                return Ok(found);
            }
            rest = begun_at.map_or(rest, Point::At);
            length = length.saturating_mul(if watches { LONGER_WATCHED } else { LONGER });
        }
    }

    /// Whether the trail has all instructions from one position to another, and the condition holds
    /// for the locations between.
    fn are_all_seen(&self, from: Position, to: Point, holds: impl Fn(&Location) -> bool) -> bool {
        let state = self.shared.state();
        let between = state.trail.as_ref().and_then(|trail| trail.between(Point::At(from), to));
        between.is_some_and(|between| between.iter().all(|position| holds(&position.location)))
    }

    /// A location that the run reaches with this much more fuel than at a point, and the number of
    /// frames there; no number for the start.
    fn less(&self, point: Point, length: u64) -> Result<(From, usize), Halt> {
        let Some(fuel) = point.fuel() else { return Ok((From::Start, 0)) };
        let Some(given) = (self.repeats.fuel - fuel).checked_sub(length).filter(|given| *given > 0) else {
            return Ok((From::Start, 0));
        };
        // The last frame whose own instruction has failed.
        let left = Arc::new(Mutex::new(None));
        let frames = Arc::new(AtomicUsize::new(0));
        let (noted, counted) = (left.clone(), frames.clone());
        let watch = self.shared.code.module().watch_unwound(move |frame| {
            counted.fetch_add(1, Ordering::Relaxed);
            if !frame.is_call() {
                let offset = frame.offset().ok().flatten();
                let place = offset.map_or(Place::Entry, |offset| Place::Instruction { offset });
                let location = Location { function: frame.function, place };
                *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(location);
            }
        });
        let pass = Arc::new(Pass::new(From::Start, None, Purpose::Exhaust));
        self.run(&pass, given)?;
        drop(watch);
        let found = *left.lock().unwrap_or_else(PoisonError::into_inner);
        let less_than = self.repeats.fuel - given;
        let from = found.map_or(From::Start, |location| From::Fuel { location, less_than });
        Ok((from, frames.load(Ordering::Relaxed)))
    }

    /// Records the instructions up to a point.
    fn follow(&self, point: Point) -> Result<(), Halt> {
        let mut length = TRAIL;
        let (mut from, frames) = self.less(point, length)?;
        if trail_length(frames) < length {
            length = trail_length(frames);
            (from, _) = self.less(point, length)?;
        }
        loop {
            let pass = Arc::new(Pass::new(from, point.position(), Purpose::Trail));
            self.run(&pass, self.repeats.fuel)?;
            let steps = std::mem::take(&mut pass.progress().steps);
            let trail = steps.end(point, from == From::Start);
            let is_long_enough = trail.before(point) != Before::Unknown;
            self.shared.state().trail = Some(trail);
            if is_long_enough {
                return Ok(());
            }
            length = length.saturating_mul(LONGER);
            (from, _) = self.less(point, length)?;
        }
    }

    /// Looks up a point in the trail.
    fn known(&self, point: Point) -> Before {
        self.shared.state().trail.as_ref().map_or(Before::Unknown, |trail: &Trail| trail.before(point))
    }

    /// The instruction that was executed before a point.
    fn before(&self, point: Point) -> Result<Option<Position>, Halt> {
        loop {
            match self.known(point) {
                Before::At(position) => return Ok(Some(position)),
                Before::Start => return Ok(None),
                Before::Unknown => self.follow(point)?,
            }
        }
    }

    /// The last instruction before a point in a frame that is not deeper.
    fn before_at(&self, point: Point, depth: usize) -> Result<Option<Position>, Halt> {
        let mut at = point;
        loop {
            match self.known(at) {
                Before::At(position) if position.depth <= depth => return Ok(Some(position)),
                Before::At(position) => at = Point::At(position),
                Before::Start => return Ok(None),
                // Everything in the trail was called by the frame of the point.
                Before::Unknown if at != point => {
                    let found = match point {
                        Point::At(position) => self.passage(self.calls(position)?, depth, point)?,
                        Point::End { .. } => None,
                    };
                    if found.is_some() {
                        return Ok(found);
                    }
                    self.follow(at)?;
                }
                Before::Unknown => self.follow(at)?,
            }
        }
    }

    /// The calls in the function of a position.
    fn calls(&self, position: Position) -> Result<Vec<Location>, Error> {
        let function = position.location.function;
        let body = self.shared.code.body(function)?;
        let places = body.calls.keys().filter_map(|index| body.place(*index));
        Ok(places.map(|place| Location { function, place }).collect())
    }

    /// The last time before a point that the thread reached one of these locations, in a frame of
    /// this depth. The last part of the run is searched first: the moment may be near, and in the
    /// entire run there may be many such moments.
    fn passage(
        &self,
        places: impl IntoIterator<Item = Location>,
        depth: usize,
        until: Point,
    ) -> Result<Option<Position>, Halt> {
        let places: BTreeSet<Location> = places.into_iter().collect();
        let near =
            until.fuel().map(|left| left.saturating_add(NEAR)).filter(|fuel| *fuel < self.repeats.fuel);
        for fuel in near.into_iter().chain([u64::MAX]) {
            let purpose = Purpose::Passage { places: places.clone(), depth, fuel };
            let pass = Arc::new(Pass::new(From::Start, until.position(), purpose));
            self.run(&pass, self.repeats.fuel)?;
            let found = pass.progress().found.take();
            if found.is_some() {
                return Ok(found.map(|found| found.position));
            }
        }
        Ok(None)
    }

    /// The beginning of the line that was executed before a point; with `over`, lines of called
    /// functions are ignored.
    fn line(&self, point: Point, over: bool) -> Result<Option<Position>, Halt> {
        let line = |position: Position| self.shared.code.line(position.location);
        let calls = |position: Position| self.shared.code.calls_inlined_at(position.location);
        let before = |position: Position| -> Result<Option<Position>, Halt> {
            let mut point = Point::At(position);
            let around = calls(position);
            if over {
                loop {
                    match self.before_at(point, position.depth)? {
                        // In a call that is inlined: it is stepped over.
                        Some(found)
                            if found.depth == position.depth
                                && found.location.function == position.location.function
                                && !around.starts_with(&calls(found)) =>
                        {
                            point = Point::At(found);
                        }
                        found => return Ok(found),
                    }
                }
            }
            // Functions without lines are stepped over.
            match self.before(point)? {
                Some(found) if found.depth > position.depth && line(found).is_none() => {
                    self.before_at(point, position.depth)
                }
                found => Ok(found),
            }
        };
        let first = match point {
            Point::At(position) if line(position).is_some() => before(position)?,
            // Without lines, it is a step of one instruction.
            Point::At(position) if over => return self.before_at(point, position.depth),
            Point::At(_) => return self.before(point),
            Point::End { .. } => self.before(point)?,
        };
        let Some(mut at) = first else { return Ok(None) };
        let is_end = matches!(point, Point::End { .. });
        while line(at).is_none() {
            match before(at)? {
                Some(found) => at = found,
                None => return if is_end { self.before(point) } else { Ok(Some(at)) },
            }
        }
        loop {
            let Some(found) = before(at)? else { return Ok(Some(at)) };
            let is_same = found.depth == at.depth
                && found.location.function == at.location.function
                && line(found) == line(at);
            let is_inner = found.depth > at.depth;
            if !is_same && !is_inner {
                return Ok(Some(at));
            }
            at = found;
        }
    }
}

/// The initial length of a trail that begins with this number of frames on the stack. At each of
/// its instructions, they are counted.
fn trail_length(frames: usize) -> u64 {
    (TRAIL / (1 + frames / DEEP) as u64).max(SHORT)
}

/// The depth of the frame; unlimited at the end of the run.
fn depth_of(point: Point) -> usize {
    point.position().map_or(usize::MAX, |position| position.depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trails_with_many_frames_are_short() {
        assert_eq!([0, 100].map(trail_length), [TRAIL; 2]);
        assert_eq!([1_000, 10_000, 100_000, usize::MAX].map(trail_length), [2048, 207, 64, 64]);
    }
}
