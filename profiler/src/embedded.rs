//! The profiler for an engine that compiles code at run time and has its own probes.
//!
//! The engine makes the probes; the profiler decides when they are on, through [`Probes`], and
//! analyses what they report. Observations, estimates, cost control and the report are those of a
//! [`crate::session`] of a process, with these differences:
//!
//! * An entry probe calls [`entered`] or, in some windows, [`counted`]; the probes of a function's
//!   exits call [`exited`]. They pass the [number](Profiler::number) of the function, and the
//!   address of the frame: an entry and an exit with the same frame address belong together.
//! * For a frame that is left in another way, by an exception or a trap, the engine calls [`left`].
//!   The call ends at that moment.
//! * There is no output: the engine may request a [report](Profiler::report) at any time.
//! * The engine may make the probes of a function at any time before the function's first call,
//!   also at that call, while the calls on the thread's stack are timed. Then it makes them inside
//!   [`interrupted`], as it does all that delays calls for the sake of probes. The time of this is
//!   excluded: entries of open calls are moved by it, as if the calls had begun so much later, so
//!   that no error is added to their latencies; windows that are open are extended by it, as by all
//!   time in probes; and the processor time counts as that of the start, which is paid for slowly.
//!
//! A process has one profiler at a time.
//!
//! # Threads
//! A thread named `latency` does the periodic work. It blocks all signals, and ends with the
//! [`Profiler`]. A [paused](Profiler::pause) profiler does nothing.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self as threads, JoinHandle};
use std::time::{Duration, Instant};

use fastinst::group::{Group, ReservedIds, Sites};
use fastinst::{Error as ProbeError, ProbeFn, ProbeId, ProbeKind, ProbeMetadata, Toggle};

use crate::error::Error;
use crate::estimate::callers::Origin;
use crate::estimate::summary;
use crate::observe::fire::{self, Calibrated};
use crate::observe::function::{FUNCTIONS, Function as State};
use crate::observe::governor::{self, Governor, Spent};
use crate::observe::measured::Units;
pub use crate::observe::probe_type::EntryProbe;
use crate::observe::retry::Retries;
use crate::observe::schedule::Schedule;
use crate::observe::{preemption, thread, waking};
use crate::output::Identity;
use crate::processor_time;
use crate::report::{Arc as CallArc, Caller, Cost, FunctionRef, FunctionReport, Report};
use crate::session::clock::Clock;
use crate::session::unloaded::MissedCalls;
use crate::session::{self, write};
use crate::settings::Settings;

/// The probes of an engine's functions. Functions are identified by their index, from 0.
///
/// Both methods may be called by any thread, by several threads at once, and by probe functions, in
/// particular [`entered`] and [`exited`]. Each returns whether something has changed; a probe that
/// cannot be toggled stays as it is. Probes that are made later get the state that was set last.
pub trait Probes: Send + Sync {
    /// Sets the state of the probe at a function's entry.
    fn switch_entry(&self, function: usize, to: EntryProbe) -> bool;

    /// Activates (`on`) or deactivates the probes at all exits of a function.
    fn switch_exits(&self, function: usize, on: bool) -> bool;
}

/// The description of a function in a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// The function's demangled name.
    pub name: String,
    /// The name of the module that contains the function.
    pub object: String,
    /// The function's address or offset in the module, which distinguishes functions.
    pub address: u64,
    /// The location of the function's definition, as `file:line`.
    pub location: Option<String>,
}

/// A function without instructions, whose probes the engine has made with the number
/// [`Profiler::number_of_empty`].
pub trait Empty {
    /// Sets the state of the entry probe. The exit probes are on if the entry is timed.
    fn switch(&mut self, entry: EntryProbe);

    /// Calls the function [`CALLS`] times.
    fn call(&mut self);
}

/// The number of calls that [`Empty::call`] makes.
pub const CALLS: u32 = fire::CALLS;

/// The number of the last profiler; 0 before the first. Probes of earlier ones have no effect.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Maximum sleep of the thread.
const NEVER: Duration = Duration::from_secs(3600);

/// The time for which [`Profiler::new`] waits for threads in probes of the previous profiler, and
/// [`Profiler::report`] for the thread's figures of the cost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The function index that a probe has passed, unless its profiler has ended.
#[inline(always)]
fn index_of(number: u64) -> Option<u32> {
    ((number >> 32) as u32 == GENERATION.load(Ordering::Relaxed)).then_some(number as u32)
}

/// Reports the entry of a function. Called by its probe with the function's
/// [number](Profiler::number), the address of the frame, and the address at which its caller
/// continues.
///
/// Callees must have frames at lower addresses than their callers on the same thread.
pub extern "C" fn entered(number: u64, frame: u64, return_address: u64) {
    if let Some(index) = index_of(number) {
        fire::entered(index, frame as usize, return_address as usize);
    }
}

/// Reports that a function is about to return, or to end in a tail call. Called by its probes with
/// the same values as [`entered`].
pub extern "C" fn exited(number: u64, frame: u64) {
    if let Some(index) = index_of(number) {
        fire::exited(index, frame as usize);
    }
}

/// Reports the entry of a function. Called instead of [`entered`] if the entry probe is a counting
/// one.
pub extern "C" fn counted(number: u64) {
    if let Some(function) = index_of(number).and_then(|index| FUNCTIONS.get(index as usize)) {
        function.count();
    }
}

/// Reports that the thread is about to leave the frame at this address, and all frames that it has
/// called, without executing an exit. Does nothing for a frame whose exit was executed.
pub fn left(frame: u64) {
    fire::left(frame as usize);
}

/// Whether a profiler is started and not paused.
static IS_OBSERVING: AtomicBool = AtomicBool::new(false);

/// Calls a function that makes probes, or waits for another thread that does, while calls of this
/// thread are open that may be observed: see the [module documentation](self). Calls of it must not
/// be nested.
pub fn interrupted(function: &mut dyn FnMut()) {
    match IS_OBSERVING.load(Ordering::Relaxed) {
        true => fire::interrupted(function),
        false => function(),
    }
}

/// The ids of the functions' probes: two for each function.
struct Ids(Weak<dyn Probes>);

impl Ids {
    fn switch(&self, index: u32, function: Option<ProbeFn>) -> Toggle {
        let (number, is_exit) = (index as usize / 2, index % 2 == 1);
        let switched = |probes: Arc<dyn Probes>| match function {
            _ if is_exit => probes.switch_exits(number, function.is_some()),
            None => probes.switch_entry(number, EntryProbe::Off),
            Some(function) if fire::is_counting(function) => probes.switch_entry(number, EntryProbe::Counted),
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
        // Not a kind that a session of the process observes.
        ProbeMetadata::new(id, c"embedded", ProbeKind::FIRST_OF_PROVIDERS)
    }
}

/// The profiler of an engine, which ends when it is dropped.
pub struct Profiler {
    shared: Arc<Shared>,
    settings: Settings,
    /// The generation in its functions' numbers.
    generation: u32,
    count: usize,
    /// The processor time of the process before the profiler was made.
    before: f64,
    started: Mutex<Option<Started>>,
}

/// The state that [`Profiler::start`] creates.
struct Started {
    _ids: Group,
    thread: JoinHandle<()>,
}

struct Shared {
    running: Mutex<Option<Running>>,
    /// Signals that an answer has arrived.
    answered: Condvar,
}

/// The state of a started profiler.
struct Running {
    identity: Identity,
    command: Vec<String>,
    clock: Clock,
    schedule: Schedule,
    governor: Governor,
    retries: Retries,
    toggles_before: u64,
    lost_before: u64,
    /// Time that does not count.
    excluded: Past,
    /// The moment of the pause, if the profiler is paused.
    paused: Option<Past>,
    /// The numbers of answers that were requested, and given.
    asked: u64,
    answered: u64,
    spent: Spent,
    is_over: bool,
}

/// Elapsed time: on the clock, of all threads in ticks, and of the processor in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    elapsed: Duration,
    lived: u64,
    processor: f64,
}

impl Past {
    fn now(clock: &Clock) -> Self {
        Self { elapsed: clock.elapsed(), lived: thread::lived(), processor: processor_time::of_process() }
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
    /// Creates the profiler of this process, for `count` functions. The engine then makes the
    /// probes and [starts](Profiler::start) the profiler; the processor time in between is part of
    /// the cost.
    ///
    /// The memory of the functions, about 400 bytes for each, is reused by the next profiler.
    ///
    /// # Errors
    /// [`Error::IsRunning`]; [`Error::BadValue`] for the budget.
    pub fn new(count: usize, settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        if session::is_running() || waking::begin() {
            return Err(Error::IsRunning);
        }
        let before = processor_time::of_process();
        let generation = GENERATION.fetch_add(1, Ordering::AcqRel) + 1;
        let shared = Shared { running: Mutex::new(None), answered: Condvar::new() };
        // From here on, dropping it ends the profiler.
        let profiler =
            Self { shared: Arc::new(shared), settings, generation, count, before, started: Mutex::default() };
        // A thread in a probe of the previous profiler may be about to change a function.
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

    /// The number that the probes of a function pass to [`entered`], [`exited`] and [`counted`].
    pub fn number(&self, function: usize) -> u64 {
        // The first number stands for the calibration.
        u64::from(self.generation) << 32 | (function as u64 + 1)
    }

    /// The number that the probes of an [`Empty`] function pass.
    pub fn number_of_empty(&self) -> u64 {
        u64::from(self.generation) << 32
    }

    /// Starts observing the functions. First measures the cost of probes with those of `empty`. All
    /// probes must be off.
    ///
    /// # Errors
    /// [`Error::Start`].
    ///
    /// # Panics
    /// If the profiler was started before.
    pub fn start(&self, probes: &Arc<dyn Probes>, empty: &mut dyn Empty) -> Result<(), Error> {
        let failed = |source| Error::Start { source };
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(started.is_none(), "it was started");
        let ids = self.make_ids(probes).map_err(failed)?;
        let clock = Clock::start();
        let mut governor = session::governor(&self.settings, clock.estimate_ticks_per_ns());
        preemption::start(governor::ticks_per_ns());
        if let Some(function) = FUNCTIONS.get(0) {
            fire::calibrate_with(0, function, &mut Calibration(empty));
        }
        let start = processor_time::of_process() - self.before;
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
            retries: Retries::new(),
            toggles_before: fastinst::toggle_count(),
            lost_before: thread::lost(),
            paused: None,
            asked: 0,
            answered: 0,
            spent: Spent::default(),
            is_over: false,
        };
        let before = processor_time::of_thread();
        running.schedule.begin_all();
        running.governor.started(start + processor_time::of_thread() - before);
        *self.shared.lock() = Some(running);
        let shared = self.shared.clone();
        let seen = waking::count();
        let thread = wordpatch::internal::with_signals_blocked(|| {
            threads::Builder::new().name("latency".to_owned()).spawn(move || shared.serve(seen))
        });
        let thread = thread.map_err(|source| Error::Start { source: ProbeError::Thread { source } })?;
        IS_OBSERVING.store(true, Ordering::Relaxed);
        *started = Some(Started { _ids: ids, thread });
        Ok(())
    }

    /// Registers ids for the functions' probes.
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

    /// Deactivates all probes. Measurements are kept; the time until [`Profiler::resume`] does not
    /// count. Does nothing if the profiler is paused.
    pub fn pause(&self) {
        if let Some(running) = self.shared.lock().as_mut() {
            running.pause();
        }
    }

    /// Continues observing the functions after [`Profiler::pause`].
    pub fn resume(&self) {
        if let Some(running) = self.shared.lock().as_mut() {
            running.resume();
        }
        waking::notify();
    }

    /// The measurements so far. `function_at` maps the return address of a call to the calling
    /// function; `describe` returns the description of a function in the report.
    pub fn report(
        &self,
        function_at: &dyn Fn(usize) -> Option<usize>,
        describe: &dyn Fn(usize) -> Function,
    ) -> Report {
        let mut running = self.shared.lock();
        let Some(asking) = running.as_mut() else {
            return Report::of_nothing(std::process::id());
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
            None => Report::of_nothing(std::process::id()),
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

    /// Does the periodic work, until the profiler ends.
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
        let begin = processor_time::of_thread();
        let is_busy = self.schedule.tick();
        self.governor.adapt(self.schedule.demand());
        let mean = self.governor.ticked(begin, is_busy);
        let pause = self.schedule.pause(mean);
        self.retries.end_tick(&mut self.schedule, &mut self.governor, pause)
    }

    fn pause(&mut self) {
        if self.paused.is_none() {
            IS_OBSERVING.store(false, Ordering::Relaxed);
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
            IS_OBSERVING.store(true, Ordering::Relaxed);
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
        let ticks_per_ns = self.clock.ticks_per_ns(governor::ticks_per_ns());
        let now = self.paused.unwrap_or_else(|| Past::now(&self.clock)).since(self.excluded);
        let duration_ns = now.elapsed.as_nanos() as u64;
        let thread_time = (now.lived as f64 / ticks_per_ns).max(duration_ns as f64);
        let units = Units { ticks_per_ns, resolution: fire::resolution(), thread_time };
        let mut caller_of = |_, origin: Origin| Some(function_at(origin.caller().err()?)? as u32 + 1);
        let (mut functions, mut arcs) =
            summary::of(&self.schedule, &mut caller_of, &units, None, &MissedCalls::none());
        name(&mut functions, &mut arcs, describe);
        let Spent { process, probes, service, toggles, stacks, start } = self.spent;
        Report {
            version: Report::VERSION,
            run: self.identity.run.to_string(),
            command: self.command.clone(),
            pid: self.identity.pid,
            started_us: self.clock.started_us(),
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
                report_ns: 0,
                error: self.spent.error(),
                memory_bytes: self.schedule.memory() as u64,
            },
            settings: settings.in_report(),
            notes: write::notes().into_iter().chain(self.clock.note(governor::ticks_per_ns())).collect(),
            functions,
            arcs,
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
