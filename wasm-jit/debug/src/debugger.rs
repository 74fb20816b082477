//! [`Debugger`]: breakpoints, watchpoints, and control of the program's threads.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use wasm_jit::probes::Location;
use wasm_jit::{InterruptHandle, Module};

use crate::Error;
use crate::code::Code;
use crate::expression::Expression;
use crate::frames::Stopped;
use crate::inlined::Level;
use crate::pass::{Repetition, Request};
use crate::position::Point;
use crate::reverse::Reverse;
use crate::shared::{Command, Present, Repeats, Report, Shared, State};
use crate::step::Resume;
use crate::stop::{Breakpoint, Event, Outcome, Unwatched};
use crate::watch::{Watch, WatchedFrame};

/// Maximum time of one attempt to find the function that a thread executes.
const LOOK: Duration = Duration::from_millis(5);
/// Maximum time between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Debugs the instances of a module, on all threads. Dropping it removes its probes, and lets a
/// stopped thread continue.
#[derive(Debug)]
pub struct Debugger {
    shared: Arc<Shared>,
    reports: Mutex<Receiver<Report>>,
}

/// A thread that a debugger can pause: see [`Debugger::add_thread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PausableThread(u64);

impl Debugger {
    /// A debugger for a module. The module's programs are not affected until there is a breakpoint.
    pub fn new(module: &Module) -> Self {
        let (reports, received) = channel();
        let shared = Shared::new(Code::of(module), reports);
        Self { shared, reports: Mutex::new(received) }
    }

    /// The code and the names of the module.
    pub fn code(&self) -> &Code {
        &self.shared.code
    }

    /// Adds a breakpoint at the [locations](Code::places) that a text denotes. It stops threads
    /// before the instruction if the condition, evaluated in the frame, is not 0, or has no value;
    /// if `once`, it is then deleted. Returns its number.
    ///
    /// # Errors
    /// As [`Code::places`]; [`Error::Unknown`] if a name in the condition has no meaning at any of
    /// the locations; [`Error::Probe`].
    pub fn add_breakpoint(
        &self,
        text: &str,
        condition: Option<Expression>,
        once: bool,
    ) -> Result<u32, Error> {
        let locations = self.shared.code.places(text)?;
        self.add_breakpoint_at(text, locations, condition, once)
    }

    /// As [`Debugger::add_breakpoint`], at given locations.
    ///
    /// # Errors
    /// [`Error::Probe`], [`Error::NoInstruction`] if no location can be reached,
    /// [`Error::Unknown`].
    pub fn add_breakpoint_at(
        &self,
        text: &str,
        locations: Vec<Location>,
        condition: Option<Expression>,
        once: bool,
    ) -> Result<u32, Error> {
        let shared = &*self.shared;
        if let Some(condition) = &condition {
            condition.check(&shared.code, &locations)?;
        }
        let first = locations.first().map_or(0, |location| shared.code.module_offset(*location));
        let state = &mut *shared.state();
        let wanted = state.places.want_all(&shared.code, shared.hit(), &locations)?;
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

    /// Watches an expression: threads stop when an instruction has changed its value. Names denote
    /// what they denote in the frame at this level of the stopped thread (0 is the innermost),
    /// wherever the value changes. If there are locals, operands or variables of the frame among
    /// them, the watchpoint ends with the frame. Globals, and memories that are not shared, are
    /// those of the frame's instance or, if no thread is stopped, of the first instance that
    /// executes an instruction; threads do not stop in other instances. The condition is as for
    /// [`Debugger::set_condition`]. Returns the number of the watchpoint.
    ///
    /// # Errors
    /// [`Error::Constant`]; [`Error::Unknown`] about the condition; [`Error::Running`] if the
    /// expression belongs to a frame; [`Error::Outside`] if no thread is stopped, otherwise as
    /// [`Expression::evaluate`]; [`Error::Probe`].
    pub fn add_watch(
        &self,
        expression: Expression,
        condition: Option<Expression>,
        level: impl Into<Level>,
    ) -> Result<u32, Error> {
        let level = level.into();
        if let Some(condition) = &condition {
            condition.check(&self.shared.code, &[])?;
        }
        if !expression.may_change() {
            return Err(Error::Constant { text: expression.text().to_owned() });
        }
        let expression = Arc::new(expression);
        let shared = self.shared.clone();
        let (given, given_condition) = (expression.clone(), condition.clone());
        // Existing frames get code with probes when their callee returns.
        let begun = self.inspect(move |stopped| -> Result<(Watch, Option<Expression>), Error> {
            shared.prepare(stopped.locations())?;
            let mut scope = stopped.frame(level)?;
            let (location, inner) = (scope.location(), scope.inner());
            let named_in = Some((location, inner));
            let find = |name: &str| shared.code.static_of(name, named_in);
            let watched = Arc::new(given.bound(&find));
            watched.evaluate(&mut scope)?;
            let is_of_frame = watched.is_of_frame(|name| shared.code.is_global(name, named_in));
            let frame = match is_of_frame {
                true => {
                    let seen = shared.state().present.as_ref().map(|present| present.point);
                    let function = (location.function, shared.code.inlined_function(location, inner));
                    Some(WatchedFrame::new(function, scope.depth()?, seen, scope.accessor()?))
                }
                false => None,
            };
            // Only now: an expression without a value uses up no number.
            let number = shared.state().number();
            let watch = Watch::new(number, watched, frame, named_in, &shared.code);
            watch.begin(&mut scope)?;
            Ok((watch, given_condition.map(|condition| condition.bound(&find))))
        });
        let code = &self.shared.code;
        let find = |name: &str| code.static_of(name, None);
        let bound = expression.bound(&find);
        let (watch, condition) = match begun {
            Ok(begun) => begun?,
            Err(Error::Running) if !bound.is_of_frame(|name| code.is_global(name, None)) => {
                if let Some((address, size)) =
                    expression.address_outside(|memory| code.memory_at_start(memory))
                {
                    return Err(Error::Outside { address, size });
                }
                let watch = Watch::new(self.shared.state().number(), Arc::new(bound), None, None, code);
                (watch, condition.map(|condition| condition.bound(&find)))
            }
            Err(error) => return Err(error),
        };
        let number = watch.number;
        let state = &mut *self.shared.state();
        self.shared.see_all(state)?;
        let breakpoint = Breakpoint {
            number,
            text: expression.text().to_owned(),
            is_watch: true,
            locations: Vec::new(),
            condition: condition.map(Arc::new),
            once: false,
            is_enabled: true,
            hits: 0,
            ignore: 0,
        };
        state.breakpoints.insert(number, breakpoint);
        state.watches.insert(number, Arc::new(watch));
        Ok(number)
    }

    /// The functions that the watchpoints do not observe, as far as known: this is found out when a
    /// function is called. Stops and ends [report](crate::Stop::unwatched) them, too.
    pub fn unwatched(&self) -> Option<Unwatched> {
        self.shared.state().unseen()
    }

    /// Makes traps, other errors, and exceptions that the program does not catch, stop their
    /// thread, or makes them not do so, as before the first call. The thread stops at the
    /// instruction ([`Reason::Trapped`](crate::Reason::Trapped),
    /// [`Reason::Thrown`](crate::Reason::Thrown), [`Reason::Failed`](crate::Reason::Failed)), at
    /// the call of the host function that has failed, or at the call for which the stack has no
    /// room. All frames can be read; operands of the instruction itself may have no value. When the
    /// thread is resumed, in whatever way, the program ends as it would have ended; if it is
    /// [killed](Debugger::kill), this is reported as the outcome. A program that can [go
    /// back](Debugger::reverse) goes back to the instruction by a step.
    ///
    /// An exception counts as not caught if it leaves the function that the host has called, even
    /// if that host function was called by the program and passes the exception on to it.
    pub fn catch_traps(&self, is_on: bool) {
        let traps = is_on.then(|| self.shared.catch_traps());
        // The previous one ends after the lock is released.
        let _before = std::mem::replace(&mut self.shared.state().traps, traps);
    }

    /// Says by which errors of host functions the program exits as it intends to: [they do
    /// not stop](Debugger::catch_traps) it. Has no effect if it was called before; without it, all
    /// errors stop it.
    pub fn exits_by(&self, is_exit: impl Fn(&wasm_jit::Error) -> bool + Send + Sync + 'static) {
        let _ = self.shared.is_exit.set(Box::new(is_exit));
    }

    /// Whether traps stop threads.
    pub fn catches_traps(&self) -> bool {
        self.shared.state().traps.is_some()
    }

    /// The number of threads of this run that have stopped so far. They are numbered from 1.
    pub fn threads(&self) -> u32 {
        self.shared.state().threads.len() as u32
    }

    /// All breakpoints and watchpoints, in the order of their numbers.
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

    /// Enables or disables a breakpoint or watchpoint.
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
            state.places.want_all(&shared.code, shared.hit(), &breakpoint.locations)?;
        } else {
            breakpoint.locations.iter().for_each(|location| state.places.unwant(*location));
        }
        breakpoint.is_enabled = is_enabled;
        if breakpoint.is_watch && is_enabled {
            self.shared.see_all(state)?;
        } else {
            state.end_watching();
        }
        Ok(())
    }

    /// Ignores the next `hits` hits of a breakpoint or watchpoint.
    ///
    /// # Errors
    /// [`Error::NoBreakpoint`].
    pub fn ignore(&self, number: u32, hits: u64) -> Result<(), Error> {
        let mut state = self.shared.state();
        let breakpoint = state.breakpoints.get_mut(&number).ok_or(Error::NoBreakpoint { number })?;
        breakpoint.ignore = hits;
        Ok(())
    }

    /// Changes the condition of a breakpoint or watchpoint. The condition of a watchpoint is
    /// evaluated in the frame of the watched expression, after the instruction that has changed its
    /// value. Names of static variables in it denote what they denote where the watchpoint was set.
    ///
    /// # Errors
    /// [`Error::NoBreakpoint`]; [`Error::Unknown`] if a name in the condition has no meaning at any
    /// of the locations, or for a watchpoint, anywhere.
    pub fn set_condition(&self, number: u32, condition: Option<Expression>) -> Result<(), Error> {
        let code = &self.shared.code;
        let state = &mut *self.shared.state();
        let breakpoint = state.breakpoints.get_mut(&number).ok_or(Error::NoBreakpoint { number })?;
        if let Some(condition) = &condition {
            condition.check(code, &breakpoint.locations)?;
        }
        let condition = condition.map(|condition| match state.watches.get(&number) {
            Some(watch) => condition.bound(&|name| code.static_of(name, watch.named_in)),
            None => condition,
        });
        breakpoint.condition = condition.map(Arc::new);
        Ok(())
    }

    /// Registers the thread of a store, so that [`Debugger::pause`] can stop it, until the next
    /// [run](Debugger::begin).
    pub fn add_thread(&self, handle: InterruptHandle) -> PausableThread {
        let mut state = self.shared.state();
        if state.is_killed {
            handle.interrupt();
        }
        state.last_handle += 1;
        let number = state.last_handle;
        state.handles.insert(number, handle);
        PausableThread(number)
    }

    /// Forgets a thread, which has ended before the program.
    pub fn remove_thread(&self, thread: PausableThread) {
        self.shared.state().handles.remove(&thread.0);
    }

    /// Stops a running thread at the next point where it enters a function, repeats a loop or
    /// returns from a call. A thread that waits in a host function stops after the wait; a stopped
    /// thread stops again after it has been resumed. A program that [goes back](Debugger::reverse)
    /// stops where it was. Returns at once; the stop is an [`Event`].
    pub fn pause(&self) {
        let mut state = self.shared.state();
        if state.back.is_some() {
            request(&mut state, Request::Pause);
            return;
        }
        if state.pause.is_some() {
            return;
        }
        state.pause = Some(Vec::new());
        drop(state);
        let weak = Arc::downgrade(&self.shared);
        // Without the thread, it stops when something else stops it.
        let _ = std::thread::Builder::new().name("debugger".to_owned()).spawn(move || pause(&weak));
    }

    /// Waits for an event. A stop whose thread was resumed before anything waited for it is no
    /// longer an event.
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
    ///
    /// # Panics
    /// If the closure does. The program is still stopped then.
    pub fn inspect<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Stopped<'_, '_>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (sender, result) = channel();
        // A panic must not leave the program's frames.
        let look = move |stopped: &mut Stopped<'_, '_>| catch_unwind(AssertUnwindSafe(|| look(stopped)));
        self.send(Command::Look(Box::new(move |stopped| _ = sender.send(look(stopped)))))?;
        match result.recv().map_err(|_| Error::Running)? {
            Ok(found) => Ok(found),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Resumes the stopped thread.
    ///
    /// # Errors
    /// [`Error::Running`]; [`Error::NoFrame`], [`Error::OtherModule`], [`Error::Probe`], in which
    /// cases the thread is still stopped.
    pub fn resume(&self, resume: Resume) -> Result<(), Error> {
        let (sender, result) = channel();
        self.send(Command::Resume(resume, sender))?;
        result.recv().map_err(|_| Error::Running)?
    }

    /// Ends the calls of the program's threads with the error [`Killed`](crate::Killed):
    /// immediately for the stopped thread, for the others when they reach a probe of the debugger.
    pub fn kill(&self) {
        let stopped = {
            let mut state = self.shared.state();
            request(&mut state, Request::Kill);
            state.kill();
            state.end_plans();
            state.stopped.take()
        };
        if let Some(stopped) = stopped {
            let _ = stopped.commands.send(Command::Kill);
        }
    }

    /// Detaches from the program, whatever it does: deletes all breakpoints and watchpoints, ends
    /// steps and pauses, no longer [stops at traps](Debugger::catch_traps), and lets a stopped
    /// thread continue. A program that [goes back](Debugger::reverse) runs once more, to its end.
    /// Nothing stops the program until there is another request.
    pub fn release(&self) {
        let traps = {
            let state = &mut *self.shared.state();
            request(state, Request::Release);
            state.release(&self.shared.code, self.shared.hit())
        };
        // After the lock is released.
        drop(traps);
    }

    /// Begins a new run of the program, after one that has ended.
    pub fn begin(&self) {
        let mut state = self.shared.state();
        // A pause that was requested while nothing was running.
        state.end_plans();
        // The state of a run that has ended.
        let watches = state.watches.iter().filter(|(_, of)| of.frame.is_some());
        let of_frames: Vec<u32> = watches.map(|(number, _)| *number).collect();
        of_frames.into_iter().for_each(|number| state.delete(number));
        state.begin();
    }

    /// Reports that the program has ended; called by the code that runs it. If its run is
    /// repeatable, the outcome has the [fuel](Outcome::with_fuel) that is left.
    pub fn ended(&self, outcome: Outcome) {
        let mut outcome = outcome;
        {
            let state = &mut *self.shared.state();
            state.end_plans();
            if std::mem::take(&mut state.is_killed_at_end) {
                outcome = Outcome { fuel: outcome.fuel, ..Outcome::returned("killed") };
            }
            outcome.unwatched = state.unseen();
            if let Some(back) = &state.back {
                // Nothing waits for it if the debugger ends.
                let _ = back.ends.send(outcome);
                return;
            }
            if state.pass.is_some() && !state.is_killed {
                let problem = Error::NotRepeated { outcome: outcome.text.clone() };
                outcome = Outcome { text: problem.to_string(), has_failed: true, code: 1, ..outcome };
            }
            // A breakpoint whose probe cannot be activated does not stop the next run.
            let _ = state.end_pass(&self.shared.code, self.shared.hit());
            state.places.settle();
            match self.can_reverse() {
                true if state.is_killed => state.present = None,
                true => {
                    let (point, of) = (Point::End { fuel: outcome.fuel }, outcome.clone());
                    state.present = Some(Present { point, locations: Vec::new(), outcome: Some(of) });
                }
                // Otherwise, the next run finds the frames of watched expressions again.
                false => {
                    let watches = state.watches.iter().filter(|(_, of)| of.frame.is_some());
                    let of_frames: Vec<u32> = watches.map(|(number, _)| *number).collect();
                    of_frames.into_iter().for_each(|number| state.delete(number));
                }
            }
        }
        let _ = self.shared.reports.send(Report::Ended(outcome));
    }

    /// Declares that the program's run is repeatable: every run executes the same instructions on
    /// the same values, as runs of a recorded program do. From now on the program can [go
    /// back](Debugger::reverse), and its values cannot be changed.
    ///
    /// `start` starts the program again on a new thread, as the [`Repetition`] says; the program's
    /// engine must [count fuel](wasm_jit::Config::consume_fuel). The thread first calls
    /// [`Debugger::add_thread`], and finally [`Debugger::ended`]. `fuel` is that of a complete run.
    /// Code cannot count more than [`i64::MAX`]: going back is then slower. Has no effect if it was
    /// called before.
    pub fn allow_reverse(
        &self,
        fuel: u64,
        start: impl Fn(Repetition) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let _ = self.shared.repeats.set(Repeats { fuel, start: Box::new(start) });
    }

    /// Whether the program can [go back](Debugger::reverse).
    pub fn can_reverse(&self) -> bool {
        self.shared.repeats.get().is_some()
    }

    /// Goes back `times` times; the program must be stopped or have ended. It then stops before an
    /// instruction that was executed earlier, with the values that it had at that time, or where
    /// its run began ([`Reason::HistoryStart`](crate::Reason::HistoryStart)). Breakpoints and
    /// watchpoints stop it on the way; ignored hits are not counted.
    ///
    /// Returns at once; the stop is an [`Event`]. The program is run again, usually two to four
    /// times.
    ///
    /// # Errors
    /// [`Error::NotRepeatable`] before [`Debugger::allow_reverse`]; [`Error::Running`];
    /// [`Error::NoFrame`] and [`Error::OtherModule`] if the frame has no caller to go to; the
    /// program is then still where it was.
    pub fn reverse(&self, how: Reverse, times: u64) -> Result<(), Error> {
        self.shared.reverse(how, times)
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        let state = self.shared.state();
        let stopped = state.stopped.as_ref().ok_or(Error::Running)?;
        stopped.commands.send(command).map_err(|_| Error::Running)
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        self.shared.state().end();
    }
}

/// Ends going back.
fn request(state: &mut State, request: Request) {
    if let Some(back) = &mut state.back {
        back.request = Some(request);
        state.kill();
        state.handles.values().for_each(InterruptHandle::interrupt);
    }
}

/// Places probes in the functions in which threads are found, until one has stopped.
fn pause(shared: &Weak<Shared>) {
    let mut time = Duration::from_millis(1);
    let mut seen = Vec::new();
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let handles = shared.state().handles.clone();
        for handle in handles.values() {
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

/// Places that a thread executing a function soon reaches: its start, its loops, and the places to
/// which its calls return. Its frames get the code with probes at the latter two.
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
