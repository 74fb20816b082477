//! [`Shared`]: what the debugger and the program's threads have in common, and what a thread does
//! at a probe.

mod passes;

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::ThreadId;

use wasm_jit::InterruptHandle;
use wasm_jit::probes::{Ending, Frame, FuelThreshold, GenericFn, GlobalProbe, Kind, Location, TrapWatch};

use crate::Error;
use crate::code::Code;
use crate::expression::Expression;
use crate::frames::{Changes, Scope, Stopped};
use crate::pass::{From, Pass, Purpose, Repetition, Request};
use crate::places::Places;
use crate::position::{Point, Position};
use crate::step::{Found, Plan, Resume, Site};
use crate::stop::{Breakpoint, Outcome, Reason, Stop, Unwatched};
use crate::trail::Trail;
use crate::watch::{Watch, WatchedFrame};

/// The state that the program's threads use during the lifetime of the debugger.
pub(crate) struct Shared {
    pub code: Code,
    state: Mutex<State>,
    /// Held by the stopped thread.
    turn: Mutex<()>,
    pub reports: Sender<Report>,
    /// The function that the probes call.
    hit: OnceLock<GenericFn>,
    /// Set if the program's run is repeatable.
    pub repeats: OnceLock<Repeats>,
    /// Whether the program exits by an error of the host.
    pub is_exit: OnceLock<Box<IsExit>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// Starts the program again.
pub(crate) type Start = dyn Fn(Repetition) -> Result<(), String> + Send + Sync;

/// Whether the program exits by an error.
pub(crate) type IsExit = dyn Fn(&wasm_jit::Error) -> bool + Send + Sync;

/// A repeatable run.
pub(crate) struct Repeats {
    /// The fuel of a complete run.
    pub fuel: u64,
    pub start: Box<Start>,
}

pub(crate) type Look = Box<dyn FnOnce(&mut Stopped<'_, '_>) + Send>;

/// An event for the thread that waits for it.
pub(crate) enum Report {
    /// The number of the stop, and the stop.
    Stopped(u64, Stop),
    Ended(Outcome),
}

/// The stopped thread.
pub(crate) struct Waiting {
    /// The number of its stop, counted from the first stop of the debugger.
    pub stop: u64,
    pub commands: Sender<Command>,
}

/// A command for the stopped thread.
pub(crate) enum Command {
    Look(Look),
    Resume(Resume, Sender<Result<(), Error>>),
    Kill,
}

/// The present position of a program whose run is repeatable, and that is not running.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub point: Point,
    /// The locations of the frames.
    pub locations: Vec<Option<Location>>,
    /// The outcome, if the program has ended.
    pub outcome: Option<Outcome>,
}

#[derive(Default)]
pub(crate) struct State {
    pub places: Places,
    pub breakpoints: BTreeMap<u32, Breakpoint>,
    pub watches: BTreeMap<u32, Arc<Watch>>,
    /// Sees all instructions, while there are watchpoints or a pass needs it.
    everywhere: Option<GlobalProbe>,
    /// Set while traps stop threads.
    pub traps: Option<TrapWatch>,
    /// The functions that it does not cover, and the reasons, since it was activated.
    unseen: BTreeMap<u32, String>,
    last_number: u32,
    pub plan: Option<Plan>,
    /// The locations at which threads stop because of a requested pause.
    pub pause: Option<Vec<Location>>,
    pub stopped: Option<Waiting>,
    /// The number of stops so far.
    stops: u64,
    /// In the order of their first stops.
    pub threads: Vec<ThreadId>,
    /// Of the threads that can be paused, by number.
    pub handles: BTreeMap<u64, InterruptHandle>,
    pub last_handle: u64,
    pub is_killed: bool,
    /// Whether the program was killed where it was about to end: then its own error is not
    /// reported.
    pub is_killed_at_end: bool,
    pub present: Option<Present>,
    /// Set while the program goes back.
    pub back: Option<Back>,
    /// The purpose of the run, if it is a re-execution.
    pub pass: Option<Arc<Pass>>,
    /// The locations that have probes for the pass.
    pass_places: Vec<Location>,
    /// With more fuel than this, the probes do nothing, until a pass reaches what it looks for.
    threshold: Arc<FuelThreshold>,
    /// Whether the probes of breakpoints are off during a pass.
    are_breakpoints_off: bool,
    /// The known part of the run, kept for later requests.
    pub trail: Option<Trail>,
    /// Whether the debugger has ended.
    pub is_over: bool,
    /// How often the program was released: a thread that was about to stop does not stop then.
    releases: u64,
}

/// The program is going back, in several passes.
pub(crate) struct Back {
    /// Receives the outcome of each pass.
    pub ends: Sender<Outcome>,
    /// A request that was made in the meantime.
    pub request: Option<Request>,
}

/// The error with which calls of a [killed](crate::Debugger::kill) program end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("killed by the debugger")]
pub struct Killed;

impl Shared {
    pub(crate) fn new(code: Code, reports: Sender<Report>) -> Arc<Self> {
        let state = State::default();
        let threshold = state.threshold.clone();
        let shared = Arc::new(Self {
            code,
            state: Mutex::new(state),
            turn: Mutex::default(),
            reports,
            hit: OnceLock::new(),
            repeats: OnceLock::new(),
            is_exit: OnceLock::new(),
        });
        // Probes keep their closure as long as the code: the closure must not keep the debugger.
        let weak = Arc::downgrade(&shared);
        shared.hit.get_or_init(|| GenericFn::below_fuel(threshold, with(weak, Self::come)));
        shared
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn hit(&self) -> &GenericFn {
        self.hit.get().expect("made with it")
    }

    /// Activates the probe of all instructions.
    pub(crate) fn see_all(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        if state.everywhere.is_none() {
            let closure = GenericFn::new(with(Arc::downgrade(self), Self::see));
            state.everywhere = Some(self.code.module().global_probe(Kind::Generic(closure))?);
        }
        if let Some(probe) = &state.everywhere {
            probe.activate()?;
        }
        Ok(())
    }

    /// Makes the probes of the functions that have frames. The frames get code with probes when
    /// their callee returns.
    pub(crate) fn prepare(&self, locations: &[Option<Location>]) -> Result<(), Error> {
        locations
            .iter()
            .flatten()
            .try_for_each(|location| self.state().places.prepare(&self.code, self.hit(), location.function))
    }

    /// The pass to which the run belongs, and how often the program was released; an error ends the
    /// call of a thread that is killed.
    fn pass(&self) -> Result<(Option<Arc<Pass>>, u64), wasm_jit::Error> {
        let state = self.state();
        match state.is_killed {
            true => Err(wasm_jit::Error::host(Killed)),
            false => Ok((state.pass.clone(), state.releases)),
        }
    }

    /// A thread has reached a location with a probe.
    fn come(self: &Arc<Self>, frame: &mut Frame<'_>) -> Result<(), wasm_jit::Error> {
        let location = frame.location();
        let (pass, releases) = self.pass()?;
        if let Some(pass) = pass {
            return self.come_in_pass(&pass, releases, frame, location);
        }
        if self.reasons(frame, location, false).is_empty() {
            return Ok(());
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        // While it waited, another thread's stop may have changed the breakpoints here, or have
        // ended the program.
        self.pass()?;
        match self.reasons(frame, location, true) {
            reasons if reasons.is_empty() => Ok(()),
            reasons => self.stop(frame, location, reasons, releases),
        }
    }

    /// The reasons why a thread stops at a location. With `counts`, hits of breakpoints are
    /// counted.
    fn reasons(&self, frame: &mut Frame<'_>, location: Location, counts: bool) -> Vec<Reason> {
        let mut reasons = Vec::new();
        let mut returned = None;
        {
            let state = &mut *self.state();
            let mut site = Site { code: &self.code, places: &mut state.places, hit: self.hit() };
            match state.plan.as_mut().map(|plan| plan.come(frame, location, &mut site)) {
                None | Some(Found::Nothing) => {}
                Some(Found::Done) => reasons.push(Reason::Step),
                Some(Found::Returned { results }) => returned = Some(results),
            }
            // The thread stops even where there is no probe for the pause: a thread that soon
            // reaches the next probe may not be found in compiled code.
            if state.pause.is_some() {
                reasons.push(Reason::Pause);
            }
        }
        if let Some(results) = returned {
            let results = (0..results as u32).rev().filter_map(|depth| frame.operand(depth).ok()).collect();
            reasons.push(Reason::Finished { results });
        }
        for (number, once, problem) in self.breakpoints_at(frame, location) {
            let mut state = self.state();
            let Some(breakpoint) = state.breakpoints.get_mut(&number) else { continue };
            if counts && !breakpoint.hit() {
                continue;
            }
            reasons.push(Reason::Breakpoint { number, once, problem });
        }
        reasons
    }

    /// The breakpoints at a location whose condition holds or has no value: their numbers, whether
    /// they are for one stop, and why there is no value.
    fn breakpoints_at(&self, frame: &mut Frame<'_>, location: Location) -> Vec<(u32, bool, Option<String>)> {
        let candidates: Vec<_> = {
            let state = self.state();
            let all = state.breakpoints.values();
            let here = all.filter(|of| of.is_enabled && of.locations.contains(&location));
            here.map(|of| (of.number, of.once, of.condition.clone())).collect()
        };
        let mut holds = |condition: Option<Arc<Expression>>| {
            let scope = &mut Scope::innermost(frame, &self.code);
            match condition.map(|condition| condition.evaluate(scope)) {
                Some(Ok(value)) if !value.is_true() => None,
                Some(Err(error)) => Some(Some(error.to_string())),
                _ => Some(None),
            }
        };
        let found = candidates.into_iter().filter_map(|(number, once, condition)| {
            let problem = holds(condition)?;
            Some((number, once, problem))
        });
        found.collect()
    }

    /// The enabled watchpoints.
    fn watches(&self) -> Vec<Arc<Watch>> {
        self.watches_and_conditions().into_iter().map(|(watch, _)| watch).collect()
    }

    /// The enabled watchpoints, with their conditions.
    fn watches_and_conditions(&self) -> Vec<(Arc<Watch>, Option<Arc<Expression>>)> {
        let state = self.state();
        let enabled = state.watches.iter().filter_map(|(number, watch)| {
            let of = state.breakpoints.get(number).filter(|of| of.is_enabled)?;
            Some((watch.clone(), of.condition.clone()))
        });
        enabled.collect()
    }

    /// The reasons for which watchpoints stop the thread.
    fn changes(&self, frame: &mut Frame<'_>) -> Vec<Reason> {
        let all = self.watches_and_conditions().into_iter();
        all.filter_map(|(watch, condition)| watch.check(frame, &self.code, condition.as_deref())).collect()
    }

    /// A thread is about to execute an instruction while all instructions are seen.
    fn see(self: &Arc<Self>, frame: &mut Frame<'_>) -> Result<(), wasm_jit::Error> {
        let (pass, releases) = self.pass()?;
        if let Some(pass) = pass {
            return self.see_in_pass(&pass, releases, frame);
        }
        let mut reasons = self.changes(frame);
        if reasons.is_empty() && self.state().pause.is_none() {
            return Ok(());
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        self.pass()?;
        {
            let state = &mut *self.state();
            if state.pause.is_some() {
                reasons.push(Reason::Pause);
            }
            reasons.retain(|reason| match reason {
                Reason::Watch { number, .. } => state.breakpoints.get_mut(number).is_none_or(Breakpoint::hit),
                _ => true,
            });
        }
        // Another thread may have stopped for the pause in the meantime.
        if reasons.is_empty() {
            return Ok(());
        }
        let location = frame.location();
        self.stop(frame, location, reasons, releases)
    }

    /// Makes traps, errors, and exceptions that the program does not catch, stop threads.
    pub(crate) fn catch_traps(self: &Arc<Self>) -> TrapWatch {
        // The code keeps the closure for some time.
        let shared = Arc::downgrade(self);
        self.code.module().watch_traps(move |frame, ending| {
            if let Some(shared) = shared.upgrade() {
                shared.trapped(frame, &ending);
            }
        })
    }

    /// A thread has trapped, or failed in another way, and is about to leave its frames.
    fn trapped(self: &Arc<Self>, frame: &mut Frame<'_>, ending: &Ending<'_>) {
        let reason = match ending {
            Ending::Trap(trap) => Reason::Trapped { trap: *trap },
            Ending::Exception(exception) => Reason::Thrown { exception: exception.clone() },
            Ending::Error(error) if self.is_exit(error) => return,
            Ending::Error(error) => Reason::Failed { error: error.to_string() },
            _ => return,
        };
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let (pass, releases) = {
            let state = self.state();
            if state.traps.is_none() || state.is_killed {
                return;
            }
            (state.pass.clone(), state.releases)
        };
        let location = frame.location();
        let reasons = match pass.as_deref().map(|pass| &pass.purpose) {
            None => vec![reason],
            Some(Purpose::StopAtFailure(reasons)) => {
                // Without probes, breakpoints do not stop the next run.
                let others = self.arrive(frame, location, reasons.clone()).unwrap_or_default();
                others.into_iter().chain([reason]).collect()
            }
            // The others continue to the end of the run.
            Some(_) => return,
        };
        if self.stop(frame, location, reasons, releases).is_err() {
            // The program ends as it would have ended.
            self.state().is_killed_at_end = true;
        }
    }

    /// Whether the program exits by this error, or is killed.
    fn is_exit(&self, error: &wasm_jit::Error) -> bool {
        error.downcast_ref::<Killed>().is_some() || self.is_exit.get().is_some_and(|is_exit| is_exit(error))
    }

    /// Stops the thread until it is resumed, unless the program was released since `releases`.
    fn stop(
        &self,
        frame: &mut Frame<'_>,
        location: Location,
        reasons: Vec<Reason>,
        releases: u64,
    ) -> Result<(), wasm_jit::Error> {
        let (sender, commands) = channel();
        let locations = frame.locations();
        let is_ending = reasons.iter().any(Reason::is_ending);
        let (number, thread, unwatched) = {
            let state = &mut *self.state();
            if state.releases != releases {
                return Ok(());
            }
            // Before watching is ended by what has stopped the thread.
            let unwatched = state.unseen();
            state.end_plans();
            for reason in &reasons {
                if let Reason::Breakpoint { number, once: true, .. } | Reason::OutOfScope { number, .. } =
                    reason
                {
                    state.delete(*number);
                }
            }
            state.present = self.repeats.get().and_then(|_| {
                let point = match is_ending {
                    // After the last instruction.
                    true => Point::End { fuel: frame.fuel().ok() },
                    false => Point::At(Position::of(frame, location).ok()?),
                };
                Some(Present { point, locations: locations.clone(), outcome: None })
            });
            state.stops += 1;
            state.stopped = Some(Waiting { stop: state.stops, commands: sender });
            let id = std::thread::current().id();
            let known = state.threads.iter().position(|thread| *thread == id);
            let thread = known.unwrap_or_else(|| {
                state.threads.push(id);
                state.threads.len() - 1
            });
            (state.stops, thread as u32 + 1, unwatched)
        };
        let depth = locations.len().saturating_sub(1);
        let changes = match self.repeats.get() {
            _ if is_ending => Changes::Ending,
            Some(_) => Changes::Recorded,
            None => Changes::Allowed,
        };
        let stop = Stop { location, depth, reasons, thread, unwatched };
        // If there is no receiver, the debugger is being dropped.
        if self.reports.send(Report::Stopped(number, stop)).is_err() {
            return Ok(());
        }
        while let Ok(command) = commands.recv() {
            match command {
                Command::Look(look) => {
                    look(&mut Stopped { frame, code: &self.code, locations: &locations, changes });
                }
                Command::Resume(resume, reply) => {
                    // There is no next instruction.
                    let resume = if is_ending { Resume::Continue } else { resume };
                    let state = &mut *self.state();
                    let mut site = Site { code: &self.code, places: &mut state.places, hit: self.hit() };
                    match Plan::new(resume, frame, &locations, &mut site) {
                        Ok(plan) => {
                            state.plan = plan;
                            state.stopped = None;
                            state.present = None;
                            state.places.settle();
                            let _ = reply.send(Ok(()));
                            break;
                        }
                        Err(error) => _ = reply.send(Err(error)),
                    }
                }
                Command::Kill => return Err(wasm_jit::Error::host(Killed)),
            }
        }
        Ok(())
    }
}

impl State {
    /// Ends the current step and pause.
    pub(crate) fn end_plans(&mut self) {
        if let Some(plan) = self.plan.take() {
            plan.end(&mut self.places);
        }
        for location in self.pause.take().unwrap_or_default() {
            self.places.unwant(location);
        }
    }

    pub(crate) fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn delete(&mut self, number: u32) {
        let Some(breakpoint) = self.breakpoints.remove(&number) else { return };
        if breakpoint.is_enabled && !self.are_breakpoints_off {
            breakpoint.locations.iter().for_each(|location| self.places.unwant(*location));
        }
        self.watches.remove(&number);
        self.end_watching();
    }

    /// Deactivates the probe of all instructions if there are no watchpoints.
    pub(crate) fn end_watching(&mut self) {
        let is_enabled = |number: &u32| self.breakpoints.get(number).is_some_and(|of| of.is_enabled);
        if !self.watches.keys().any(is_enabled) {
            self.see_none();
        }
    }

    /// Deactivates the probe of all instructions.
    pub(crate) fn see_none(&mut self) {
        self.unseen.clear();
        if let Some(probe) = &self.everywhere {
            // If code cannot be patched, as in a forked child, its probes fire without effect.
            let _ = probe.deactivate();
            let _ = probe.refused();
        }
    }

    /// The functions whose instructions should be seen but are not, if any.
    pub(crate) fn unseen(&mut self) -> Option<Unwatched> {
        let refused = self.everywhere.as_ref().map(GlobalProbe::refused).unwrap_or_default();
        self.unseen.extend(refused.into_iter().map(|of| (of.function, of.error.to_string())));
        let (_, reason) = self.unseen.first_key_value()?;
        Some(Unwatched { functions: self.unseen.keys().copied().collect(), reason: reason.clone() })
    }

    /// Activates or deactivates the probes of breakpoints, which a pass does not need.
    fn set_breakpoints(&mut self, are_on: bool, code: &Code, hit: &GenericFn) -> Result<(), Error> {
        if std::mem::replace(&mut self.are_breakpoints_off, !are_on) != are_on {
            return Ok(());
        }
        let enabled = self.breakpoints.values().filter(|of| of.is_enabled);
        for location in enabled.flat_map(|of| &of.locations) {
            match are_on {
                true => _ = self.places.want(code, hit, *location)?,
                false => self.places.unwant(*location),
            }
        }
        Ok(())
    }

    /// Begins a pass, with probes at its locations, and at the entries of the frames of watched
    /// expressions, so that the pass finds these frames again. Returns the fuel with which the pass
    /// begins to observe.
    pub(crate) fn begin_pass(
        &mut self,
        pass: &Arc<Pass>,
        code: &Code,
        hit: &GenericFn,
    ) -> Result<u64, Error> {
        self.begin();
        self.pass = Some(pass.clone());
        let needs_breakpoints = pass.from == From::Start && pass.is_search();
        self.set_breakpoints(needs_breakpoints, code, hit)?;
        let frames = self.watches.values().filter_map(|watch| watch.frame.as_ref());
        let entries: Vec<Position> = frames.filter_map(WatchedFrame::entry).collect();
        let observed = pass.fuel(entries.iter().map(|entry| entry.fuel));
        self.threshold.set(observed);
        let entered = entries.into_iter().map(|entry| entry.location);
        for location in pass.places().into_iter().chain(entered) {
            if self.places.want(code, hit, location)? {
                self.pass_places.push(location);
            }
        }
        Ok(observed)
    }

    /// Removes a location that a pass no longer needs for one of its purposes.
    pub(crate) fn end_pass_place(&mut self, location: Location) {
        if let Some(index) = self.pass_places.iter().position(|place| *place == location) {
            self.pass_places.swap_remove(index);
            self.places.unwant(location);
        }
    }

    /// Ends the pass, if there is one.
    ///
    /// # Errors
    /// The probe of a breakpoint cannot be activated again.
    pub(crate) fn end_pass(&mut self, code: &Code, hit: &GenericFn) -> Result<(), Error> {
        self.pass = None;
        self.threshold.set(u64::MAX);
        for location in std::mem::take(&mut self.pass_places) {
            self.places.unwant(location);
        }
        self.set_breakpoints(true, code, hit)
    }

    /// Begins another run of the program.
    pub(crate) fn begin(&mut self) {
        self.is_killed = false;
        self.is_killed_at_end = false;
        self.handles.clear();
        self.threads.clear();
        self.present = None;
        for watch in self.watches.values() {
            watch.frame.iter().for_each(WatchedFrame::forget);
            // The last value is one of another run.
            watch.forget();
        }
    }

    /// Makes threads end their calls when they reach a probe.
    pub(crate) fn kill(&mut self) {
        self.is_killed = true;
        self.threshold.set(u64::MAX);
    }

    /// Deletes all breakpoints and watchpoints, ends the current step, pause and pass, and lets the
    /// stopped thread continue. Returns the watch of traps, to be dropped when the state is not
    /// locked.
    pub(crate) fn release(&mut self, code: &Code, hit: &GenericFn) -> Option<TrapWatch> {
        self.releases += 1;
        self.end_plans();
        if self.back.is_none() && self.pass.is_some() {
            // A breakpoint whose probe cannot be activated is deleted next.
            let _ = self.end_pass(code, hit);
        }
        let numbers: Vec<u32> = self.breakpoints.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.delete(number));
        self.places.settle();
        // A thread continues when nothing can send it commands.
        if self.stopped.take().is_some() {
            self.present = None;
        }
        self.traps.take()
    }

    /// Ends the debugger, and removes all of its probes from the code.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.is_killed |= self.pass.is_some();
        self.back = None;
        self.stopped = None;
        self.end_plans();
        self.breakpoints.clear();
        self.watches.clear();
        self.everywhere = None;
        self.traps = None;
        self.places = Places::default();
    }
}

/// A closure for probes, which does nothing once the debugger has ended.
fn with(
    shared: Weak<Shared>,
    come: fn(&Arc<Shared>, &mut Frame<'_>) -> Result<(), wasm_jit::Error>,
) -> impl Fn(&mut Frame<'_>) -> Result<(), wasm_jit::Error> {
    move |frame| match shared.upgrade() {
        Some(shared) => come(&shared, frame),
        None => Ok(()),
    }
}
