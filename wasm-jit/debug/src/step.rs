//! Steps: the locations to which a thread may go next, and which of them end the step.
//!
//! Frames are compared by their [numbers](Frame::numbers), which takes the same time however deep
//! the stack is. A frame may get another number when it makes a tail call, but its caller waits and
//! does not. Therefore the frame of a step is the one whose caller has the caller's number, and the
//! frames outside of it are those that waited when the step began.

use std::collections::BTreeSet;
use std::thread::ThreadId;

use wasm_jit::probes::{Frame, GenericFn, Location};
use wasm_jit_hooks::CallForm;

use crate::Error;
use crate::code::{Body, Code};
use crate::inlined::Level;
use crate::places::Places;

/// The way in which a stopped thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resume {
    /// Until something else stops it.
    Continue,
    /// To the next instruction, even in a function that is called.
    StepInstruction,
    /// To the next instruction of this frame, or of a caller when this frame ends.
    NextInstruction,
    /// To another line of the source, even in a function that is called, or whose call is inlined;
    /// where lines are unknown, to the next instruction.
    Step,
    /// To another line of the source in this frame, or to its caller when this frame ends. The
    /// frame is the innermost one [of the source](crate::Stopped::levels): inlined calls are
    /// stepped over.
    Next,
    /// Until a frame of the code has ended.
    Finish {
        /// The frame, counted from the innermost one, which is 0.
        level: usize,
    },
    /// Until the thread has left the code of an inlined call.
    FinishInlined {
        /// The frame of the call.
        level: Level,
    },
}

/// The meaning of a location for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Ends the step if the frame reaches it.
    Here,
    /// Ends the step if the frame has ended.
    Outer,
    /// A call by the frame; the step enters the callee.
    Call,
    /// The start of a callee that the frame calls, or tail-calls if `is_tail`.
    Into { is_tail: bool },
}

/// The result of a step at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Done,
    /// The frame has returned, with this number of results on its caller's stack.
    Returned {
        results: usize,
    },
}

/// A step that has begun.
#[derive(Debug)]
pub(crate) struct Plan {
    thread: ThreadId,
    /// The number of the frame's caller, if it has one.
    caller: Option<u64>,
    /// The numbers of all frames outside of the frame of the step, in ascending order.
    waiting: Vec<u64>,
    places: Vec<(Location, Role)>,
    /// Whether functions without lines are not stepped into.
    by_line: bool,
    /// The location to which the frame returns, and the number of its results there.
    returns: Option<(Location, usize)>,
}

/// The state that a plan needs to place probes.
pub(crate) struct Site<'a> {
    pub code: &'a Code,
    pub places: &'a mut Places,
    pub hit: &'a GenericFn,
}

impl Plan {
    /// A step of the thread that is stopped in the frame, given the locations of its frames.
    ///
    /// # Errors
    /// There can be no probes; none remains active.
    pub(crate) fn new(
        resume: Resume,
        frame: &mut Frame<'_>,
        locations: &[Option<Location>],
        site: &mut Site<'_>,
    ) -> Result<Option<Self>, Error> {
        let level = match resume {
            Resume::Continue => return Ok(None),
            Resume::Finish { level } | Resume::FinishInlined { level: Level { frame: level, .. } } => level,
            _ => 0,
        };
        let here = locations.get(level).ok_or(Error::NoFrame { level })?;
        let here = here.ok_or(Error::OtherModule { level })?;
        let mut waiting: Vec<u64> = frame.numbers().skip(level + 1).collect();
        let caller = waiting.first().copied();
        waiting.sort_unstable();
        let line = site.code.line(here);
        let by_line = matches!(resume, Resume::Step | Resume::Next) && line.is_some();
        let into = matches!(resume, Resume::Step | Resume::StepInstruction);
        let thread = std::thread::current().id();
        let mut plan = Self { thread, caller, waiting, places: Vec::new(), by_line, returns: None };
        let mut wanted: Vec<(Location, Role)> = Vec::new();
        let body = site.code.body(here.function)?;
        let index = body.index(here.place);
        let at = |index: usize| Some(Location { function: here.function, place: body.place(index)? });
        if matches!(resume, Resume::Finish { .. }) {
            let results = site.code.module().function(here.function).map_or(0, |of| of.ty().results().len());
            let caller = locations.get(level + 1).copied().flatten();
            let caller = caller.filter(|caller| may_call(site.code, *caller, here.function));
            plan.returns = caller.and_then(|caller| Some((after(site.code, caller)?, results)));
        } else if let Resume::FinishInlined { level } = resume {
            let left =
                after_inlined(site.code, &body, here, level).ok_or(Error::NoFrame { level: level.frame })?;
            wanted.extend(left.into_iter().filter_map(at).map(|location| (location, Role::Here)));
        } else if by_line {
            let inlined = site.code.inlined(here.function);
            let around = site.code.calls_inlined_at(here);
            let is_other = |index: &usize| {
                at(*index).is_some_and(|location| {
                    let offset = site.code.module_offset(location);
                    let starts = site.code.dwarf().is_some_and(|dwarf| dwarf.is_statement(offset));
                    let is_callee = || !around.starts_with(&inlined.at(offset));
                    starts && site.code.line(location) != line && (into || !is_callee())
                })
            };
            let others = (0..body.offsets.len()).filter(is_other).filter_map(at);
            wanted.extend(others.map(|location| (location, Role::Here)));
            if into {
                let calls = body.calls.keys().filter_map(|index| at(*index));
                let calls = calls.filter(|location| site.code.line(*location) == line);
                wanted.extend(calls.map(|location| (location, Role::Call)));
            }
        } else {
            let next = body.successors.get(index).into_iter().flatten();
            let next = next.chain(&body.handlers).filter_map(|index| at(*index));
            wanted.extend(next.map(|location| (location, Role::Here)));
        }
        wanted.extend(outer(site.code, &locations[level + 1..]).map(|location| (location, Role::Outer)));
        for (location, role) in wanted {
            if let Err(error) = plan.add(site, location, role) {
                plan.end(site.places);
                return Err(error);
            }
        }
        // The probe of this call has fired already.
        if into && let Some(called) = body.calls.get(&index) {
            let called = *called;
            if let Err(error) = plan.call(frame, called, site) {
                plan.end(site.places);
                return Err(error);
            }
        }
        Ok(Some(plan))
    }

    fn add(&mut self, site: &mut Site<'_>, location: Location, role: Role) -> Result<(), Error> {
        if !self.places.contains(&(location, role)) && site.places.want(site.code, site.hit, location)? {
            self.places.push((location, role));
        }
        Ok(())
    }

    /// The frame is about to make a call, which the step enters.
    fn call(&mut self, frame: &mut Frame<'_>, called: CallForm, site: &mut Site<'_>) -> Result<(), Error> {
        let callee = called.callee.map(u64::from).or_else(|| frame.callee());
        let callee = callee.and_then(|callee| u32::try_from(callee).ok());
        let Some(callee) = callee.filter(|callee| site.code.has_body(*callee)) else { return Ok(()) };
        let mut first = site.code.first(callee)?;
        if !self.by_line {
            first.place = site.code.body(callee)?.place(0).unwrap_or(first.place);
        } else if site.code.line(first).is_none() {
            return Ok(());
        }
        self.add(site, first, Role::Into { is_tail: called.is_tail })
    }

    /// A thread has reached a location.
    pub(crate) fn come(&mut self, frame: &mut Frame<'_>, location: Location, site: &mut Site<'_>) -> Found {
        if std::thread::current().id() != self.thread {
            return Found::Nothing;
        }
        let of_place = |(place, _): &&(Location, Role)| *place == location;
        let roles: Vec<Role> = self.places.iter().filter(of_place).map(|(_, role)| *role).collect();
        let ends = |role: &Role| match role {
            Role::Here | Role::Into { is_tail: true } => self.is_around(frame, 0),
            Role::Outer => self.waiting.binary_search(&frame.number()).is_ok(),
            Role::Into { is_tail: false } => self.is_around(frame, 1),
            Role::Call => false,
        };
        if roles.iter().any(ends) {
            return match self.returns {
                Some((place, results)) if place == location => Found::Returned { results },
                _ => Found::Done,
            };
        }
        if roles.contains(&Role::Call) && self.is_around(frame, 0) {
            let body = site.code.body(location.function);
            let called = body.ok().and_then(|body| body.calls.get(&body.index(location.place)).copied());
            if let Some(called) = called {
                // A callee that cannot be probed is stepped over.
                let _ = self.call(frame, called, site);
            }
        }
        Found::Nothing
    }

    /// Whether the frame of the step is the one that is `level` frames outside of this one.
    fn is_around(&self, frame: &Frame<'_>, level: usize) -> bool {
        let mut numbers = frame.numbers().skip(level);
        numbers.next().is_some() && numbers.next() == self.caller
    }

    /// Deactivates the probes of the step.
    pub(crate) fn end(&self, places: &mut Places) {
        self.places.iter().for_each(|(location, _)| places.unwant(*location));
    }
}

/// The instructions to which control goes from the code of an inlined call, as indices; `None` if
/// the frame is not one of an inlined call.
fn after_inlined(code: &Code, body: &Body, here: Location, level: Level) -> Option<BTreeSet<usize>> {
    let inlined = code.inlined(here.function);
    let around = code.calls_inlined_at(here);
    let call = inlined.get(around[around.len().checked_sub(level.inner + 1)?]);
    let start = code.start(here.function);
    let is_inside = |index: usize| {
        body.offsets.get(index).is_some_and(|offset| call.contains(start + u64::from(*offset)))
    };
    let inside = (0..body.offsets.len()).filter(|index| is_inside(*index));
    // Exceptions may be caught outside of the call.
    let next = inside.flat_map(|index| &body.successors[index]).chain(&body.handlers).copied();
    Some(next.filter(|index| !is_inside(*index)).collect())
}

/// Whether the call at which a frame waits may be that of this function, directly or by tail calls
/// of others. Otherwise there is a host function between the two frames, which has results of its
/// own.
fn may_call(code: &Code, caller: Location, function: u32) -> bool {
    let results = |function: u32| {
        let info = code.module().function(function);
        info.map(|info| info.ty().results().collect::<Vec<_>>())
    };
    let Ok(body) = code.body(caller.function) else { return false };
    match body.calls.get(&body.index(caller.place)) {
        Some(CallForm { callee: Some(callee), .. }) => {
            code.has_body(*callee) && results(*callee) == results(function)
        }
        // The callee of an indirect call is not known any more.
        Some(CallForm { callee: None, .. }) => true,
        None => false,
    }
}

/// The location at which a frame continues when its callee returns.
fn after(code: &Code, caller: Location) -> Option<Location> {
    let body = code.body(caller.function).ok()?;
    let place = body.place(body.index(caller.place) + 1)?;
    Some(Location { function: caller.function, place })
}

/// The locations at which waiting frames may continue: for the innermost one, after its call; for
/// all of them, where they catch exceptions.
fn outer(code: &Code, waiting: &[Option<Location>]) -> impl Iterator<Item = Location> {
    let returns = waiting.iter().flatten().next().and_then(|caller| after(code, *caller));
    let functions: BTreeSet<u32> = waiting.iter().flatten().map(|location| location.function).collect();
    let mut found: Vec<Location> = returns.into_iter().collect();
    for function in functions {
        let Ok(body) = code.body(function) else { continue };
        let places = body.handlers.iter().filter_map(|index| body.place(*index));
        found.extend(places.map(|place| Location { function, place }));
    }
    found.into_iter()
}
