//! [`Debugger`].

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use wasm_jit::probes::{Frame, GenericFn, GlobalProbe, Kind, Location};
use wasm_jit::{InterruptHandle, Module};

use crate::Error;
use crate::code::Code;
use crate::expression::Expression;
use crate::frames::{Scope, Stopped};
use crate::places::Places;
use crate::step::{Found, Plan, Resume, Site};
use crate::stop::{Breakpoint, Event, Outcome, Reason, Stop};
use crate::watch::Watch;

/// Maximum time of one attempt to find a thread in compiled code.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time between two looks.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Debugs the instances of a module, on all threads. When it is dropped, its probes are removed and
/// a stopped thread continues.
#[derive(Debug)]
pub struct Debugger {
    shared: Arc<Shared>,
    reports: Mutex<Receiver<Report>>,
}

/// The state that the program's threads use, as long as the debugger exists.
pub(crate) struct Shared {
    code: Code,
    state: Mutex<State>,
    /// Held by the thread that is stopped.
    turn: Mutex<()>,
    reports: Sender<Report>,
    /// The function that the probes call.
    hit: OnceLock<GenericFn>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

type Look = Box<dyn FnOnce(&mut Stopped<'_, '_>) + Send>;

/// An event on its way to whoever waits for it.
enum Report {
    /// With the number of the stop.
    Stopped(u64, Stop),
    Ended(Outcome),
}

/// The thread that is stopped.
struct Waiting {
    /// The number of its stop: that of all stops so far.
    stop: u64,
    commands: Sender<Command>,
}

/// For the stopped thread.
enum Command {
    Look(Look),
    Resume(Resume, Sender<Result<(), Error>>),
    Kill,
}

#[derive(Default)]
struct State {
    places: Places,
    breakpoints: BTreeMap<u32, Breakpoint>,
    watches: BTreeMap<u32, Arc<Watch>>,
    /// While something is watched.
    watch_probe: Option<GlobalProbe>,
    last_number: u32,
    plan: Option<Plan>,
    /// The places at which threads stop because of a requested pause.
    pause: Option<Vec<Location>>,
    stopped: Option<Waiting>,
    /// Number of stops so far.
    stops: u64,
    /// In the order in which they have stopped first.
    threads: Vec<ThreadId>,
    handles: Vec<InterruptHandle>,
    is_killed: bool,
}

/// The error with which calls of a program end that was [killed](Debugger::kill).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("killed by the debugger")]
pub struct Killed;

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn hit(&self) -> &GenericFn {
        self.hit.get().expect("made with it")
    }

    /// A thread has reached a place with a probe.
    fn come(&self, frame: &mut Frame<'_>) -> Result<(), wasm_jit::Error> {
        if self.state().is_killed {
            return Err(wasm_jit::Error::host(Killed));
        }
        let location = frame.location();
        if self.reasons(frame, location, false).is_empty() {
            return Ok(());
        }
        // While it waited, another thread's stop may have changed what it has come to.
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        match self.reasons(frame, location, true) {
            reasons if reasons.is_empty() => Ok(()),
            reasons => self.stop(frame, location, reasons),
        }
    }

    /// Why a thread stops at a place. With `counts`, hits of breakpoints are counted.
    fn reasons(&self, frame: &mut Frame<'_>, location: Location, counts: bool) -> Vec<Reason> {
        let mut reasons = Vec::new();
        let mut candidates = Vec::new();
        let mut returned = None;
        {
            let state = &mut *self.state();
            let mut site = Site { code: &self.code, places: &mut state.places, hit: self.hit() };
            match state.plan.as_mut().map(|plan| plan.come(frame, location, &mut site)) {
                None | Some(Found::Nothing) => {}
                Some(Found::Done) => reasons.push(Reason::Step),
                Some(Found::Returned { results }) => returned = Some(results),
            }
            if state.pause.as_ref().is_some_and(|places| places.contains(&location)) {
                reasons.push(Reason::Pause);
            }
            for breakpoint in state.breakpoints.values() {
                if breakpoint.is_enabled && breakpoint.locations.contains(&location) {
                    candidates.push((breakpoint.number, breakpoint.condition.clone()));
                }
            }
        }
        if let Some(results) = returned {
            let results = (0..results as u32).rev().filter_map(|depth| frame.operand(depth).ok()).collect();
            reasons.push(Reason::Finished { results });
        }
        for (number, condition) in candidates {
            let value =
                condition.map(|condition| condition.evaluate(&mut Scope::innermost(frame, &self.code)));
            let problem = match value {
                Some(Ok(value)) if !value.is_true() => continue,
                Some(Err(error)) => Some(error.to_string()),
                _ => None,
            };
            let mut state = self.state();
            let Some(breakpoint) = state.breakpoints.get_mut(&number) else { continue };
            breakpoint.hits += u64::from(counts);
            if counts && breakpoint.ignore > 0 {
                breakpoint.ignore -= 1;
                continue;
            }
            reasons.push(Reason::Breakpoint { number, once: breakpoint.once, problem });
        }
        reasons
    }

    /// A thread is about to execute an instruction while something is watched.
    fn watched(&self, frame: &mut Frame<'_>) -> Result<(), wasm_jit::Error> {
        let watches: Vec<Arc<Watch>> = {
            let state = self.state();
            if state.is_killed {
                return Err(wasm_jit::Error::host(Killed));
            }
            let is_enabled =
                |number: &u32| state.breakpoints.get(number).is_some_and(|breakpoint| breakpoint.is_enabled);
            state
                .watches
                .iter()
                .filter(|(number, _)| is_enabled(number))
                .map(|(_, watch)| watch.clone())
                .collect()
        };
        let reasons: Vec<Reason> =
            watches.iter().filter_map(|watch| watch.check(frame, &self.code)).collect();
        if reasons.is_empty() {
            return Ok(());
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        {
            let state = &mut *self.state();
            for reason in &reasons {
                match reason {
                    Reason::Watch { number, .. } => {
                        if let Some(breakpoint) = state.breakpoints.get_mut(number) {
                            breakpoint.hits += 1;
                        }
                    }
                    Reason::OutOfScope { number, .. } => state.delete(*number),
                    _ => {}
                }
            }
        }
        let location = frame.location();
        self.stop(frame, location, reasons)
    }

    /// Stops the thread until it is resumed.
    fn stop(
        &self,
        frame: &mut Frame<'_>,
        location: Location,
        reasons: Vec<Reason>,
    ) -> Result<(), wasm_jit::Error> {
        let (sender, commands) = channel();
        let locations = frame.locations();
        let (number, thread) = {
            let state = &mut *self.state();
            state.end_plans();
            for reason in &reasons {
                if let Reason::Breakpoint { number, once: true, .. } = reason {
                    state.delete(*number);
                }
            }
            state.stops += 1;
            state.stopped = Some(Waiting { stop: state.stops, commands: sender });
            let id = std::thread::current().id();
            let known = state.threads.iter().position(|thread| *thread == id);
            let thread = known.unwrap_or_else(|| {
                state.threads.push(id);
                state.threads.len() - 1
            });
            (state.stops, thread as u32 + 1)
        };
        let depth = locations.len().saturating_sub(1);
        let stop = Stop { location, depth, reasons, thread };
        // There is no receiver: the debugger is being dropped.
        if self.reports.send(Report::Stopped(number, stop)).is_err() {
            return Ok(());
        }
        while let Ok(command) = commands.recv() {
            match command {
                Command::Look(look) => look(&mut Stopped { frame, code: &self.code, locations: &locations }),
                Command::Resume(resume, reply) => {
                    let state = &mut *self.state();
                    let mut site = Site { code: &self.code, places: &mut state.places, hit: self.hit() };
                    match Plan::new(resume, frame, &locations, &mut site) {
                        Ok(plan) => {
                            state.plan = plan;
                            state.stopped = None;
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
    /// Ends the step and the pause that are under way.
    fn end_plans(&mut self) {
        if let Some(plan) = self.plan.take() {
            plan.end(&mut self.places);
        }
        for location in self.pause.take().unwrap_or_default() {
            self.places.unwant(location);
        }
    }

    fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    fn delete(&mut self, number: u32) {
        let Some(breakpoint) = self.breakpoints.remove(&number) else { return };
        if breakpoint.is_enabled {
            breakpoint.locations.iter().for_each(|location| self.places.unwant(*location));
        }
        self.watches.remove(&number);
        self.end_watching();
    }

    /// Removes the probe for watchpoints when there are none.
    fn end_watching(&mut self) {
        let is_enabled = |number: &u32| self.breakpoints.get(number).is_some_and(|of| of.is_enabled);
        if !self.watches.keys().any(is_enabled)
            && let Some(probe) = &self.watch_probe
        {
            // If code cannot be patched, as in a forked child, its probes fire without effect.
            let _ = probe.deactivate();
        }
    }
}

impl Debugger {
    /// A debugger of a module. Nothing changes for the module's programs before there is a
    /// breakpoint.
    pub fn new(module: &Module) -> Self {
        let (reports, received) = channel();
        let shared = Arc::new(Shared {
            code: Code::of(module),
            state: Mutex::default(),
            turn: Mutex::default(),
            reports,
            hit: OnceLock::new(),
        });
        // Probes keep their closure as long as the code: it must not keep the debugger.
        let weak = Arc::downgrade(&shared);
        shared.hit.get_or_init(|| GenericFn::new(with(weak, Shared::come)));
        Self { shared, reports: Mutex::new(received) }
    }

    /// The module.
    pub fn code(&self) -> &Code {
        &self.shared.code
    }

    /// Adds a breakpoint at the [places](Code::places) that a text means. It stops threads in front
    /// of the instruction if the condition, evaluated in the frame, is not 0, or has no value; if
    /// `once`, it is deleted then. Returns its number.
    ///
    /// # Errors
    /// The errors of [`Code::places`]; [`Error::Probe`].
    pub fn add_breakpoint(
        &self,
        text: &str,
        condition: Option<Expression>,
        once: bool,
    ) -> Result<u32, Error> {
        let locations = self.shared.code.places(text)?;
        self.add_breakpoint_at(text, locations, condition, once)
    }

    /// As [`Debugger::add_breakpoint`], at known places.
    ///
    /// # Errors
    /// [`Error::Probe`], [`Error::NoInstruction`] if none of them can be reached.
    pub fn add_breakpoint_at(
        &self,
        text: &str,
        mut locations: Vec<Location>,
        condition: Option<Expression>,
        once: bool,
    ) -> Result<u32, Error> {
        let shared = &*self.shared;
        let first = locations.first().map_or(0, |location| shared.code.module_offset(*location));
        let state = &mut *shared.state();
        let mut wanted: Vec<Location> = Vec::new();
        for location in std::mem::take(&mut locations) {
            match state.places.want(&shared.code, shared.hit(), location) {
                Ok(true) => wanted.push(location),
                Ok(false) => {}
                Err(error) => {
                    wanted.into_iter().for_each(|location| state.places.unwant(location));
                    return Err(error);
                }
            }
        }
        if wanted.is_empty() {
            return Err(Error::NoInstruction { offset: first });
        }
        let number = state.number();
        let breakpoint = Breakpoint {
            number,
            text: text.to_owned(),
            is_watch: false,
            locations: wanted,
            condition: condition.map(Arc::new),
            once,
            is_enabled: true,
            hits: 0,
            ignore: 0,
        };
        state.breakpoints.insert(number, breakpoint);
        Ok(number)
    }

    /// Watches an expression: threads stop when an instruction has changed its value. If it names
    /// locals, operands or variables of a function, it belongs to a frame of the thread that is
    /// stopped, counted from the innermost one, and ends with it. Returns its number.
    ///
    /// # Errors
    /// [`Error::Running`] if it belongs to a frame; [`Error::Access`], [`Error::Probe`].
    pub fn add_watch(&self, expression: Expression, level: usize) -> Result<u32, Error> {
        let expression = Arc::new(expression);
        let is_global = |name: &str| {
            let code = &self.shared.code;
            let plain = name.strip_prefix('$').unwrap_or(name);
            let is_static = || code.dwarf().is_some_and(|dwarf| dwarf.static_variable(name).is_some());
            code.global_of_name(plain).is_some() || is_static()
        };
        let is_of_frame = expression.is_of_frame(is_global);
        let number = self.shared.state().number();
        let shared = self.shared.clone();
        let watched = expression.clone();
        // Frames that exist get code with probes when their callee returns.
        let begun = self.inspect(move |stopped| -> Result<Watch, Error> {
            for location in stopped.locations().iter().flatten() {
                shared.state().places.prepare(&shared.code, shared.hit(), location.function)?;
            }
            let mut scope = stopped.frame(level)?;
            watched.evaluate(&mut scope)?;
            let frame = match is_of_frame {
                true => Some((std::thread::current().id(), scope.accessor()?)),
                false => None,
            };
            let watch = Watch::new(number, watched, frame);
            watch.begin(&mut scope);
            Ok(watch)
        });
        let watch = match begun {
            Ok(watch) => watch?,
            Err(Error::Running) if !is_of_frame => Watch::new(number, expression.clone(), None),
            Err(error) => return Err(error),
        };
        let state = &mut *self.shared.state();
        self.watch(state)?;
        let breakpoint = Breakpoint {
            number,
            text: expression.text().to_owned(),
            is_watch: true,
            locations: Vec::new(),
            condition: None,
            once: false,
            is_enabled: true,
            hits: 0,
            ignore: 0,
        };
        state.breakpoints.insert(number, breakpoint);
        state.watches.insert(number, Arc::new(watch));
        Ok(number)
    }

    /// Switches on the probe for watchpoints.
    fn watch(&self, state: &mut State) -> Result<(), Error> {
        if state.watch_probe.is_none() {
            let closure = GenericFn::new(with(Arc::downgrade(&self.shared), Shared::watched));
            state.watch_probe = Some(self.shared.code.module().global_probe(Kind::Generic(closure))?);
        }
        if let Some(probe) = &state.watch_probe {
            probe.activate()?;
        }
        Ok(())
    }

    /// All breakpoints and watchpoints, by their numbers.
    pub fn breakpoints(&self) -> Vec<Breakpoint> {
        self.shared.state().breakpoints.values().cloned().collect()
    }

    /// Deletes a breakpoint or watchpoint.
    ///
    /// # Errors
    /// [`Error::NoBreakpoint`].
    pub fn delete(&self, number: u32) -> Result<(), Error> {
        let mut state = self.shared.state();
        if !state.breakpoints.contains_key(&number) {
            return Err(Error::NoBreakpoint { number });
        }
        state.delete(number);
        Ok(())
    }

    /// Switches a breakpoint or watchpoint on or off.
    ///
    /// # Errors
    /// [`Error::NoBreakpoint`], [`Error::Probe`].
    pub fn enable(&self, number: u32, is_enabled: bool) -> Result<(), Error> {
        let shared = &*self.shared;
        let state = &mut *shared.state();
        let breakpoint = state.breakpoints.get_mut(&number).ok_or(Error::NoBreakpoint { number })?;
        if breakpoint.is_enabled == is_enabled {
            return Ok(());
        }
        if is_enabled {
            for location in &breakpoint.locations {
                state.places.want(&shared.code, shared.hit(), *location)?;
            }
        } else {
            breakpoint.locations.iter().for_each(|location| state.places.unwant(*location));
        }
        breakpoint.is_enabled = is_enabled;
        if breakpoint.is_watch && is_enabled {
            self.watch(state)?;
        } else {
            state.end_watching();
        }
        Ok(())
    }

    /// Ignores the next hits of a breakpoint.
    ///
    /// # Errors
    /// [`Error::NoBreakpoint`].
    pub fn ignore(&self, number: u32, hits: u64) -> Result<(), Error> {
        let mut state = self.shared.state();
        let breakpoint = state.breakpoints.get_mut(&number).ok_or(Error::NoBreakpoint { number })?;
        breakpoint.ignore = hits;
        Ok(())
    }

    /// Changes the condition of a breakpoint.
    ///
    /// # Errors
    /// [`Error::NoBreakpoint`].
    pub fn set_condition(&self, number: u32, condition: Option<Expression>) -> Result<(), Error> {
        let mut state = self.shared.state();
        let breakpoint = state.breakpoints.get_mut(&number).ok_or(Error::NoBreakpoint { number })?;
        breakpoint.condition = condition.map(Arc::new);
        Ok(())
    }

    /// Makes a store's thread known, so that [`Debugger::pause`] can stop it.
    pub fn add_thread(&self, handle: InterruptHandle) {
        self.shared.state().handles.push(handle);
    }

    /// Stops a thread that runs, at the next place where it enters a function, repeats a loop or
    /// returns from a call. A thread that waits in a host function stops afterwards; one that is
    /// stopped, after it has been resumed. Returns at once; the stop is an [`Event`].
    pub fn pause(&self) {
        let mut state = self.shared.state();
        if state.pause.is_some() {
            return;
        }
        state.pause = Some(Vec::new());
        drop(state);
        let weak = Arc::downgrade(&self.shared);
        // Without the thread, it stops at the next place where something else stops it.
        let _ = std::thread::Builder::new().name("debugger".to_owned()).spawn(move || pause(&weak));
    }

    /// Waits until something happens. A stop that the thread was resumed from before anybody waited
    /// for it is no event any more.
    pub fn wait(&self) -> Event {
        let reports = self.reports.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            let report = reports.recv().expect("the debugger has a sender");
            if let Some(event) = self.event(report) {
                return event;
            }
        }
    }

    /// As [`Debugger::wait`], for at most this time.
    pub fn wait_for(&self, time: Duration) -> Option<Event> {
        let reports = self.reports.lock().unwrap_or_else(|e| e.into_inner());
        let end = Instant::now() + time;
        loop {
            let report = reports.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
            if let Some(event) = self.event(report) {
                return Some(event);
            }
        }
    }

    /// The event, unless it is a stop that has ended.
    fn event(&self, report: Report) -> Option<Event> {
        match report {
            Report::Stopped(number, stop) => {
                let state = self.shared.state();
                let is_current = state.stopped.as_ref().is_some_and(|waiting| waiting.stop == number);
                is_current.then_some(Event::Stopped(stop))
            }
            Report::Ended(outcome) => Some(Event::Ended(outcome)),
        }
    }

    /// Whether a thread is stopped.
    pub fn is_stopped(&self) -> bool {
        self.shared.state().stopped.is_some()
    }

    /// Runs a closure on the thread that is stopped.
    ///
    /// # Errors
    /// [`Error::Running`].
    pub fn inspect<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Stopped<'_, '_>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (sender, result) = channel();
        let look: Look = Box::new(move |stopped| _ = sender.send(look(stopped)));
        self.send(Command::Look(look))?;
        result.recv().map_err(|_| Error::Running)
    }

    /// Lets the stopped thread continue.
    ///
    /// # Errors
    /// [`Error::Running`]; [`Error::NoFrame`], [`Error::OtherModule`], [`Error::Probe`]: the thread
    /// is still stopped.
    pub fn resume(&self, resume: Resume) -> Result<(), Error> {
        let (sender, result) = channel();
        self.send(Command::Resume(resume, sender))?;
        result.recv().map_err(|_| Error::Running)?
    }

    /// Ends the calls of the program's threads with the error [`Killed`]: at once of the one that
    /// is stopped, of others where they come to a probe of the debugger.
    pub fn kill(&self) {
        let stopped = {
            let mut state = self.shared.state();
            state.is_killed = true;
            state.end_plans();
            state.stopped.take()
        };
        if let Some(stopped) = stopped {
            let _ = stopped.commands.send(Command::Kill);
        }
    }

    /// A new run of the program begins, after one that has ended.
    pub fn begin(&self) {
        let mut state = self.shared.state();
        // A pause that was wanted while nothing ran.
        state.end_plans();
        state.is_killed = false;
        state.handles.clear();
        state.threads.clear();
    }

    /// The program has ended: whoever runs it says so.
    pub fn ended(&self, outcome: Outcome) {
        {
            let mut state = self.shared.state();
            state.end_plans();
            state.places.settle();
            let of_frames: Vec<u32> = state
                .watches
                .iter()
                .filter(|(_, of)| of.frame.is_some())
                .map(|(number, _)| *number)
                .collect();
            of_frames.into_iter().for_each(|number| state.delete(number));
        }
        let _ = self.shared.reports.send(Report::Ended(outcome));
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        let state = self.shared.state();
        let stopped = state.stopped.as_ref().ok_or(Error::Running)?;
        stopped.commands.send(command).map_err(|_| Error::Running)
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopped = None;
        state.end_plans();
        state.breakpoints.clear();
        state.watches.clear();
        state.watch_probe = None;
        state.places = Places::default();
    }
}

/// A closure for probes, which does nothing when the debugger has ended.
fn with(
    shared: Weak<Shared>,
    come: fn(&Shared, &mut Frame<'_>) -> Result<(), wasm_jit::Error>,
) -> impl Fn(&mut Frame<'_>) -> Result<(), wasm_jit::Error> {
    move |frame| match shared.upgrade() {
        Some(shared) => come(&shared, frame),
        None => Ok(()),
    }
}

/// Places probes in the functions that threads are found in, until one has stopped.
fn pause(shared: &Weak<Shared>) {
    let mut time = Duration::from_millis(1);
    let mut seen = Vec::new();
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let handles = shared.state().handles.clone();
        for handle in &handles {
            let Some(function) = shared.code.module().running_function(handle, LOOK) else { continue };
            let state = &mut *shared.state();
            let Some(mut places) = state.pause.take() else { return };
            if !seen.contains(&function) {
                seen.push(function);
                for location in pause_places(&shared.code, function) {
                    if let Ok(true) = state.places.want(&shared.code, shared.hit(), location) {
                        places.push(location);
                    }
                }
            }
            state.pause = Some(places);
        }
        if shared.state().pause.is_none() {
            return;
        }
        drop(shared);
        std::thread::sleep(time);
        time = (2 * time).min(MAX_PAUSE);
    }
}

/// Places that a thread soon reaches that executes a function: its start, its loops, and the places
/// its calls return to. Its frames get the code with probes at the latter two.
fn pause_places(code: &Code, function: u32) -> Vec<Location> {
    let (Ok(body), Ok(first)) = (code.body(function), code.first(function)) else { return Vec::new() };
    let calls = body.calls.keys().map(|index| index + 1);
    let loops = body.loops.iter().flat_map(|index| [*index, index + 1]);
    let places = loops.chain(calls).chain(body.handlers.iter().copied());
    let places = places.filter_map(|index| body.place(index)).map(|place| Location { function, place });
    let mut places: Vec<Location> = places.chain([first]).collect();
    places.sort();
    places.dedup();
    places
}
