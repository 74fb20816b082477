//! The profiler for an engine that compiles code while it runs, and has probes of its own.
//!
//! The engine makes the probes; the profiler decides when they are on, by [`Probes`], and analyses
//! what they report. Observations, estimates, the control of the cost and the report are those of a
//! [`crate::session`] of a process; the differences are:
//!
//! * An entry probe calls [`entered`], or, in some windows, [`counted`]; the probes of a function's
//!   exits call [`exited`]. They pass the [number](Profiler::number) of the function, and the
//!   address of the frame: an entry and an exit belong together if it is the same.
//! * For a frame that is left in another way, by an exception or a trap, the engine calls [`left`].
//!   The call counts until then.
//! * There is no output: the engine asks for a [report](Profiler::report) at any time.
//!
//! A process has one profiler at a time.
//!
//! # Threads
//! A thread named `latency` does what is due. It blocks all signals, and ends with the
//! [`Profiler`]. A profiler that is [paused](Profiler::pause) does nothing.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self as threads, JoinHandle};
use std::time::{Duration, Instant};

use fastinst::group::{Group, ReservedIds, Sites};
use fastinst::{Error as ProbeError, ProbeFn, ProbeId, ProbeKind, ProbeMetadata, Toggle};

use crate::clock::Clock;
use crate::error::Error;
use crate::fire::{self, Calibrated};
use crate::function::{FUNCTIONS, Function as State};
use crate::governor::{self, Governor, Spent};
use crate::measured::Units;
use crate::output::Identity;
pub use crate::probe_type::EntryProbe;
use crate::reclaiming::Reclaiming;
use crate::report::{Arc as CallArc, Caller, Cost, FunctionRef, FunctionReport, Report};
use crate::retry::Retries;
use crate::schedule::Schedule;
use crate::session::{self, write};
use crate::settings::Settings;
use crate::{preemption, summary, thread, waking};

/// The probes of an engine's functions, by the number of a function among them.
///
/// Both are called by any thread, by several at once, and by functions of probes, [`entered`] and
/// [`exited`] in particular. Each returns whether something has changed; a probe that cannot be
/// switched stays as it is.
pub trait Probes: Send + Sync {
    /// Switches the probe at a function's entry.
    fn switch_entry(&self, function: usize, to: EntryProbe) -> bool;

    /// Switches the probes at all exits of a function.
    fn switch_exits(&self, function: usize, on: bool) -> bool;
}

/// What a report says about a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its name, demangled.
    pub name: String,
    /// The module that it is in.
    pub object: String,
    /// Its address or offset in the module, by which functions are told apart.
    pub address: u64,
    /// Where it is defined, as `file:line`.
    pub location: Option<String>,
}

/// A function with no instructions, whose probes the engine has made with the number
/// [`Profiler::number_of_empty`].
pub trait Empty {
    /// Switches its probes. Those of its exits are on if its entry is timed.
    fn switch(&mut self, entry: EntryProbe);

    /// Calls it [`CALLS`] times.
    fn call(&mut self);
}

/// The calls of an [`Empty`] function.
pub const CALLS: u32 = fire::CALLS;

/// The number of the last profiler; 0 before the first. Probes of earlier ones have no effect.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Longest sleep of the thread.
const NEVER: Duration = Duration::from_secs(3600);

/// How long [`Profiler::new`] waits for threads that are in probes of the one before, and
/// [`Profiler::report`] for what the thread says about the cost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The index that a probe has passed, unless its profiler has ended.
#[inline(always)]
fn index_of(number: u64) -> Option<u32> {
    ((number >> 32) as u32 == GENERATION.load(Ordering::Relaxed)).then_some(number as u32)
}

/// A function was entered: called by its probe with the function's [number](Profiler::number), the
/// address of the frame, and the address at which its caller continues.
///
/// Frames that a thread has called have lower addresses than the frames that called them.
pub extern "C" fn entered(number: u64, frame: u64, return_address: u64) {
    if let Some(index) = index_of(number) {
        fire::entered(index, frame as usize, return_address as usize);
    }
}

/// A function is about to return, or to end in a tail call: called by its probes as [`entered`].
pub extern "C" fn exited(number: u64, frame: u64) {
    if let Some(index) = index_of(number) {
        fire::exited(index, frame as usize);
    }
}

/// A function was entered: called in place of [`entered`].
pub extern "C" fn counted(number: u64) {
    if let Some(function) = index_of(number).and_then(|index| FUNCTIONS.get(index as usize)) {
        function.count();
    }
}

/// The thread is about to leave the frame at this address without executing an exit, and all frames
/// that it has called. Does nothing for a frame whose exit was executed.
pub fn left(frame: u64) {
    fire::left(frame as usize);
}

/// The ids of the functions' probes: two for each.
struct Ids(Weak<dyn Probes>);

impl Ids {
    fn switch(&self, index: u32, function: Option<ProbeFn>) -> Toggle {
        let (number, is_exit) = (index as usize / 2, index % 2 == 1);
        let switched = |probes: Arc<dyn Probes>| match function {
            _ if is_exit => probes.switch_exits(number, function.is_some()),
            None => probes.switch_entry(number, EntryProbe::Off),
            Some(function) if std::ptr::fn_addr_eq(function, fire::COUNT) => {
                probes.switch_entry(number, EntryProbe::Counted)
            }
            Some(_) => probes.switch_entry(number, EntryProbe::Timed),
        };
        match self.0.upgrade().is_some_and(switched) {
            true => Toggle::Changed,
            false => Toggle::Unchanged,
        }
    }
}

impl Sites for Ids {
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, ProbeError> {
        Ok(self.switch(index, Some(function)))
    }

    fn deactivate(&self, index: u32) -> Result<Toggle, ProbeError> {
        Ok(self.switch(index, None))
    }

    fn metadata(&self, _: u32, id: ProbeId) -> ProbeMetadata<'_> {
        // No kind that a session of the process observes.
        ProbeMetadata::new(id, c"embedded", ProbeKind::FIRST_OF_PROVIDERS)
    }
}

/// The profiler of an engine. It ends when this is dropped.
pub struct Profiler {
    shared: Arc<Shared>,
    settings: Settings,
    /// Of its functions' numbers.
    generation: u32,
    count: usize,
    /// Processor time of the process before it was made.
    before: f64,
    started: Mutex<Option<Started>>,
}

/// What [`Profiler::start`] has made.
struct Started {
    _ids: Group,
    thread: JoinHandle<()>,
}

struct Shared {
    running: Mutex<Option<Running>>,
    /// What was asked for is there.
    answered: Condvar,
}

/// What a profiler has that was started.
struct Running {
    identity: Identity,
    command: Vec<String>,
    clock: Clock,
    schedule: Schedule,
    governor: Governor,
    reclaiming: Reclaiming,
    retries: Retries,
    toggles_before: u64,
    lost_before: u64,
    /// Time that does not count.
    excluded: Past,
    /// When it was paused, if it is.
    paused: Option<Past>,
    /// Numbers of answers that were asked for, and given.
    asked: u64,
    answered: u64,
    spent: Spent,
    is_over: bool,
}

/// Time that has passed: on the clock, of all threads in ticks, and of the processor in
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    elapsed: Duration,
    lived: u64,
    processor: f64,
}

impl Past {
    fn now(clock: &Clock) -> Self {
        Self { elapsed: clock.elapsed(), lived: thread::lived(), processor: governor::of_process() }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            lived: self.lived.saturating_sub(earlier.lived),
            processor: (self.processor - earlier.processor).max(0.0),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            elapsed: self.elapsed + other.elapsed,
            lived: self.lived + other.lived,
            processor: self.processor + other.processor,
        }
    }
}

impl Profiler {
    /// The profiler of this process, for `count` functions. Probes are made next, then it is
    /// [started](Profiler::start); processor time from now until then is part of the cost.
    ///
    /// The memory of all functions of a process, some 400 bytes for each, is used again by the next
    /// profiler.
    ///
    /// # Errors
    /// [`Error::IsRunning`]; [`Error::BadValue`] of the budget.
    pub fn new(count: usize, settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        if session::is_running() || waking::begin() {
            return Err(Error::IsRunning);
        }
        let before = governor::of_process();
        let generation = GENERATION.fetch_add(1, Ordering::AcqRel) + 1;
        let shared = Shared { running: Mutex::new(None), answered: Condvar::new() };
        // From here on, dropping it ends it.
        let profiler =
            Self { shared: Arc::new(shared), settings, generation, count, before, started: Mutex::default() };
        // A thread that is in a probe of the last one may be about to change a function.
        let deadline = Instant::now() + PATIENCE;
        while thread::is_any_inside() {
            if Instant::now() > deadline {
                return Err(Error::IsRunning);
            }
            threads::yield_now();
        }
        while FUNCTIONS.len() <= count && FUNCTIONS.push_with(|_| State::default()).is_some() {}
        FUNCTIONS.iter().for_each(State::reset);
        thread::drain(|_| {});
        Ok(profiler)
    }

    /// What the probes of a function pass to [`entered`], [`exited`] and [`counted`].
    pub fn number(&self, function: usize) -> u64 {
        // The first stands for the calibration.
        u64::from(self.generation) << 32 | (function as u64 + 1)
    }

    /// What the probes of an [`Empty`] function pass.
    pub fn number_of_empty(&self) -> u64 {
        u64::from(self.generation) << 32
    }

    /// Observes the functions from now on. First measures what probes cost, by those of `empty`.
    /// The probes are all off.
    ///
    /// # Errors
    /// [`Error::Start`].
    ///
    /// # Panics
    /// If it was started before.
    pub fn start(&self, probes: &Arc<dyn Probes>, empty: &mut dyn Empty) -> Result<(), Error> {
        let failed = |source| Error::Start { source };
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(started.is_none(), "it was started");
        let ids = self.make_ids(probes).map_err(failed)?;
        let clock = Clock::start();
        let mut governor = session::governor(&self.settings, clock.estimate_ticks_per_ns());
        preemption::start(governor::ticks_per_ns());
        if let Some(function) = FUNCTIONS.get(0) {
            fire::calibrate_with(function, &mut Calibration(empty));
        }
        let start = governor::of_process() - self.before;
        governor.forget(start);
        governor.started(start);
        let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let arguments = command.strip_suffix(b"\0").unwrap_or(&command).split(|byte| *byte == 0);
        let mut running = Running {
            identity: Identity {
                pid: std::process::id(),
                executable: std::fs::read_link("/proc/self/exe").unwrap_or_default(),
                run: crate::options::RunId::begins_here(),
                is_fork_child: false,
            },
            command: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            excluded: Past { lived: thread::lived(), ..Past::default() },
            clock,
            schedule: Schedule::of_engine(self.count),
            governor,
            reclaiming: Reclaiming::new(),
            retries: Retries::new(),
            toggles_before: fastinst::toggle_count(),
            lost_before: thread::lost(),
            paused: None,
            asked: 0,
            answered: 0,
            spent: Spent::default(),
            is_over: false,
        };
        let before = governor::of_thread();
        running.schedule.begin_all();
        running.governor.started(start + governor::of_thread() - before);
        *self.shared.lock() = Some(running);
        let shared = self.shared.clone();
        let seen = waking::count();
        let thread = wordpatch::with_signals_blocked(|| {
            threads::Builder::new().name("latency".to_owned()).spawn(move || shared.serve(seen))
        });
        let thread = thread.map_err(|source| Error::Start { source: ProbeError::Thread { source } })?;
        *started = Some(Started { _ids: ids, thread });
        Ok(())
    }

    /// Gives the functions ids.
    fn make_ids(&self, probes: &Arc<dyn Probes>) -> Result<Group, ProbeError> {
        let count = 2 * self.count.max(1);
        let limit = u32::MAX as usize;
        let count = u32::try_from(count).map_err(|_| ProbeError::TooManyProbes { limit })?;
        // A call in progress may keep the ids for some time, but not the engine's code.
        let ids = ReservedIds::new(count)?.with_sites(Ids(Arc::downgrade(probes)));
        let discovery = fastinst::Discovery::begin()?;
        (0..count).for_each(|index| ids.announce(&discovery, index));
        drop(discovery);
        for function in 0..self.count {
            if let Some(state) = FUNCTIONS.get(function + 1) {
                state.set_ids(Some(ids.id(2 * function as u32)));
            }
        }
        Ok(ids)
    }

    /// Switches all probes off. What was measured is kept; the time until it is
    /// [resumed](Profiler::resume) does not count. Does nothing if it is paused.
    pub fn pause(&self) {
        if let Some(running) = self.shared.lock().as_mut() {
            running.pause();
        }
    }

    /// Observes the functions again after a [pause](Profiler::pause).
    pub fn resume(&self) {
        if let Some(running) = self.shared.lock().as_mut() {
            running.resume();
        }
        waking::notify();
    }

    /// What was measured so far. `function_at` says which function has made a call, by the return
    /// address; `describe` what the report says about a function.
    pub fn report(
        &self,
        function_at: &dyn Fn(usize) -> Option<usize>,
        describe: &dyn Fn(usize) -> Function,
    ) -> Report {
        let mut running = self.shared.lock();
        let Some(asking) = running.as_mut() else {
            return Running::nothing();
        };
        asking.asked += 1;
        let wanted = asking.asked;
        waking::notify();
        let is_missing = |running: &mut Option<Running>| {
            running.as_ref().is_some_and(|running| running.answered < wanted && !running.is_over)
        };
        let waited = self.shared.answered.wait_timeout_while(running, PATIENCE, is_missing);
        let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match running.as_mut() {
            Some(running) => running.report(&self.settings, self.count, function_at, describe),
            None => Running::nothing(),
        }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.pause();
        if let Some(running) = self.shared.lock().as_mut() {
            running.is_over = true;
        }
        for function in FUNCTIONS.iter().skip(1) {
            function.set_ids(None);
        }
        waking::notify();
        let started = self.started.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Started { thread, .. }) = started {
            let _ = thread.join();
        }
        // Probes that fire from now on have no effect.
        GENERATION.fetch_add(1, Ordering::AcqRel);
        waking::end();
    }
}

impl fmt::Debug for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiler").field("functions", &self.count).finish_non_exhaustive()
    }
}

struct Calibration<'a>(&'a mut dyn Empty);

impl Calibrated for Calibration<'_> {
    fn switch(&mut self, entry: EntryProbe) {
        self.0.switch(entry);
    }

    fn call(&mut self) {
        self.0.call();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is due, until the profiler ends.
    fn serve(&self, mut seen: u32) {
        let mut next = Instant::now() + session::FIRST_TICK;
        loop {
            seen = waking::wait(seen, next);
            let mut running = self.lock();
            let Some(running) = running.as_mut().filter(|running| !running.is_over) else { return };
            next = Instant::now() + running.tick();
            if running.answered < running.asked {
                running.spent = running.governor.spent();
                running.answered = running.asked;
                self.answered.notify_all();
            }
        }
    }
}

impl Running {
    /// Returns the time to the next tick.
    fn tick(&mut self) -> Duration {
        if self.paused.is_some() {
            return NEVER;
        }
        if let Some(next) = self.retries.retry(&mut self.schedule, &mut self.governor) {
            return next;
        }
        let begin = governor::of_thread();
        let is_busy = self.schedule.tick();
        self.governor.adapt(self.schedule.demand());
        self.reclaiming.tick();
        let mean = self.governor.ticked(begin, is_busy);
        let pause = self.schedule.pause(mean);
        self.retries.end_tick(&mut self.schedule, &mut self.governor, pause)
    }

    fn pause(&mut self) {
        if self.paused.is_none() {
            self.schedule.suspend_all();
            self.paused = Some(Past::now(&self.clock));
        }
    }

    fn resume(&mut self) {
        if let Some(since) = self.paused.take() {
            let paused = Past::now(&self.clock).since(since);
            self.excluded = self.excluded.plus(paused);
            self.governor.was_paused(paused.processor);
            self.schedule.begin_all();
        }
    }

    fn report(
        &mut self,
        settings: &Settings,
        count: usize,
        function_at: &dyn Fn(usize) -> Option<usize>,
        describe: &dyn Fn(usize) -> Function,
    ) -> Report {
        self.schedule.drain();
        let ticks_per_ns = self.clock.ticks_per_ns();
        let now = self.paused.unwrap_or_else(|| Past::now(&self.clock)).since(self.excluded);
        let duration_ns = now.elapsed.as_nanos() as u64;
        let thread_time = (now.lived as f64 / ticks_per_ns).max(duration_ns as f64);
        let units = Units { ticks_per_ns, resolution: fire::resolution(), thread_time };
        let index_at = |address| Some(function_at(address)? as u32 + 1);
        let (mut functions, mut arcs) = summary::of(&self.schedule, &index_at, &units, None);
        name(&mut functions, &mut arcs, describe);
        let Spent { process, probes, service, toggles, stacks, start } = self.spent;
        Report {
            version: Report::VERSION,
            run: self.identity.run.to_string(),
            command: self.command.clone(),
            pid: self.identity.pid,
            processes: 1,
            duration_ns,
            thread_time_ns: thread_time as u64,
            probes: 2 * count as u64,
            toggles: fastinst::toggle_count() - self.toggles_before,
            samples: functions.iter().map(|function| function.samples).sum(),
            lost_samples: thread::lost() - self.lost_before,
            stacks: 0,
            cost: Cost {
                budget: settings.budget.fraction(),
                cpu_ns: process as u64,
                probes_ns: probes as u64,
                service_ns: service as u64,
                toggles_ns: toggles as u64,
                stacks_ns: stacks as u64,
                startup_ns: start as u64,
                error: self.spent.error(),
                memory_bytes: self.schedule.memory() as u64,
            },
            settings: settings.in_report(),
            notes: write::notes(),
            functions,
            arcs,
        }
    }

    /// The report of a profiler that was not started.
    fn nothing() -> Report {
        Report {
            version: Report::VERSION,
            run: String::new(),
            command: Vec::new(),
            pid: std::process::id(),
            processes: 1,
            duration_ns: 0,
            thread_time_ns: 0,
            probes: 0,
            toggles: 0,
            samples: 0,
            lost_samples: 0,
            stacks: 0,
            cost: Cost::default(),
            settings: String::new(),
            notes: Vec::new(),
            functions: Vec::new(),
            arcs: Vec::new(),
        }
    }
}

/// Names functions, whose addresses are their indices so far.
fn name(functions: &mut [FunctionReport], arcs: &mut [CallArc], describe: &dyn Fn(usize) -> Function) {
    let of = |address: u64| describe(address as usize - 1);
    for function in functions {
        let Function { name, object, address, location } = of(function.address);
        (function.name, function.object) = (name, object);
        (function.address, function.location) = (address, location);
    }
    let rename = |function: &mut FunctionRef| {
        let Function { object, address, .. } = of(function.address);
        *function = FunctionRef { object, address };
    };
    for arc in arcs {
        rename(&mut arc.callee);
        if let Caller::Function(caller) = &mut arc.caller {
            rename(caller);
        }
    }
}
