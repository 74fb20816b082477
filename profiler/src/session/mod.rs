//! A profiling session: from the start of a process to its report.
//!
//! Probes are assigned to functions as they are discovered (`probes.rs`), observed in the ticks of
//! the service thread (`schedule.rs`), and reported (`write.rs`) when the process ends
//! (`finish.rs`). A forked child starts its own session. The settings can be changed at any time
//! (`reconfigure.rs`).

pub(crate) mod clock;
mod finish;
mod known;
pub mod merged;
mod probes;
mod reconfigure;
pub(crate) mod snapshot;
pub(crate) mod unloaded;
pub(crate) mod write;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fastinst::internal;
use fastinst::provider::{self, Extent};
use fastinst::service::{self, Descriptors, Tick, Wake, Work};

pub use finish::{Leaving, finish};
pub use reconfigure::{reconfigure, settings};
pub use write::{is_printing, print, say, speak_for_the_run};

use known::KnownFunctions;
use probes::Unloaded;
use reconfigure::Change;
use write::{Occasion, Unwritten};

use crate::binary::locations::Locations;
use crate::error::Error;
use crate::observe::function::{FUNCTIONS, Function};
use crate::observe::governor::Governor;
use crate::observe::retry::Retries;
use crate::observe::schedule::Schedule;
use crate::observe::{fire, governor, preemption, thread};
use crate::options::{Discovery, Options, Output, RunId};
use crate::output;
use crate::output::{Identity, OwnFile};
use crate::processor_time;
use crate::session::clock::Clock;
use crate::session::snapshot::Snapshots;
use crate::settings::Settings;
use crate::stacks::Stacks;
use crate::stderr::stderr;

/// The probes of programs with at most this number of functions are made at the start, which takes
/// about 50 ms at most.
const SMALL: usize = 8000;

/// Time between the start and the first tick.
pub(crate) const FIRST_TICK: Duration = Duration::from_millis(2);

struct Session {
    /// The destination of the report.
    output: Output,
    merge: bool,
    /// The settings in force.
    settings: Settings,
    change: Option<Change>,
    identity: Identity,
    command: Vec<String>,
    clock: Clock,
    schedule: Schedule,
    governor: Governor,
    stacks: Stacks,
    /// Source files, for filters and for functions with the same name.
    locations: Locations,
    known: KnownFunctions,
    early_calls: HashMap<usize, probes::Early>,
    /// The size of `known` when the functions of early calls were last looked up.
    known_at_early_calls: usize,
    /// The number of early calls that may belong to any function of a library that was unloaded, or
    /// of one that was loaded in its place.
    calls_of_unloaded: u64,
    unloaded: Unloaded,
    /// Whether this is a forked child that could not be observed from the fork on.
    has_begun_late: bool,
    retries: Retries,
    toggles_before: u64,
    written: Option<OwnFile>,
    snapshots: Snapshots,
    /// Whether the notes of a report that went to a file were written to standard error.
    has_said_notes: bool,
    /// The reason why code cannot be found or patched in this process, if so.
    refusal: Option<String>,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// Set in a forked child until it has its own text.
static TEXT_IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Set when the last report is requested: nothing is observed any more.
static OVER: AtomicBool = AtomicBool::new(false);

/// Set once there is a session.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

fn with_session<R>(act: impl FnOnce(&mut Session) -> R) -> Option<R> {
    SESSION.lock().unwrap_or_else(|e| e.into_inner()).as_mut().map(act)
}

/// Starts measuring what the registered [providers](fastinst::provider) find. Blocks while the
/// loaded objects are inspected.
///
/// # Errors
/// [`Error::Start`] if the provider or the service thread cannot be started.
pub fn start(options: Options) -> Result<(), Error> {
    let failed = |source| Error::Start { source };
    // Identifies the stream.
    stderr();
    let before = processor_time::of_thread();
    fastinst::set_access(options.text.into());
    let discovery = options.discovery;
    let session = Session::new(options);
    preemption::start(governor::ticks_per_ns());
    if let Some(index) = FUNCTIONS.push_with(|_| Function::default()) {
        FUNCTIONS.get(index).into_iter().for_each(|function| fire::calibrate(index as u32, function));
    }
    *SESSION.lock().unwrap_or_else(|e| e.into_inner()) = Some(session);
    IS_RUNNING.store(true, Ordering::Release);
    provider::begin(match discovery {
        Discovery::Auto => Extent::AllUpTo { functions: SMALL },
        Discovery::Eager => Extent::All,
        Discovery::Lazy => Extent::Executed,
    })
    .map_err(failed)?;
    fastinst::register_callback(probes::discovered).map_err(failed)?;
    with_session(|session| session.governor.started(processor_time::of_thread() - before));
    start_service_thread().map_err(failed)?;
    sample_stacks();
    Ok(())
}

/// Begins to sample stacks, unless that was done. Does nothing in a process without instrumented
/// code, such as most children of a program, nor before the service thread exists, which would be
/// sampled as well.
fn sample_stacks() {
    // Without our lock: callbacks of the provider, which holds its own lock, take it.
    if internal::has_code() {
        with_session(|session| {
            let budget = session.settings.budget.fraction().filter(|_| !session.settings.is_exact());
            session.stacks.start(budget);
        });
    }
}

pub(crate) fn governor(settings: &Settings, ticks_per_ns: f64) -> Governor {
    Governor::new(settings.budget.fraction(), settings.is_exact(), ticks_per_ns)
}

fn start_service_thread() -> Result<(), fastinst::Error> {
    let tick = Tick { first: FIRST_TICK, work: Box::new(Ticks::default()) };
    service::start(Some(tick), Descriptors::Own)
}

impl Session {
    fn new(options: Options) -> Self {
        let executable = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let arguments = command.strip_suffix(b"\0").unwrap_or(&command).split(|byte| *byte == 0);
        let clock = Clock::start();
        Self {
            identity: Identity {
                pid: std::process::id(),
                executable,
                run: options.run.unwrap_or_else(RunId::begins_here),
                is_fork_child: false,
            },
            governor: governor(&options.settings, clock.estimate_ticks_per_ns()),
            output: options.output,
            merge: options.merge,
            settings: options.settings,
            change: None,
            command: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            clock,
            schedule: Schedule::new(),
            stacks: Stacks::new(options.stacks),
            locations: Locations::of_process(SystemTime::now()),
            known: KnownFunctions::default(),
            early_calls: HashMap::new(),
            known_at_early_calls: 0,
            calls_of_unloaded: 0,
            unloaded: Unloaded::default(),
            has_begun_late: false,
            retries: Retries::new(),
            toggles_before: 0,
            written: None,
            refusal: write::refusal(),
            snapshots: Snapshots::begin(options.snapshot),
            has_said_notes: false,
        }
    }

    /// Replaces a complete tick if none is due and there are no new settings: opens windows that
    /// have waited, and reads stack samples before their memory is full.
    fn part_of_tick(&mut self) -> Option<Duration> {
        if self.change.is_some() || governor::is_woken() || thread::have_many_begun() {
            return None;
        }
        let until_tick = self.retries.until_tick()?;
        let are_stacks_due = self.stacks.until_drain().is_some_and(|until| until.is_zero());
        if !are_stacks_due && self.schedule.until_release().is_none() {
            return None;
        }
        let begin = processor_time::of_thread();
        // A thread's memory for samples may be half full.
        self.schedule.drain();
        if are_stacks_due {
            self.drain_stacks();
        }
        self.governor.worked_apart(begin);
        let next = self.retries.retry(&mut self.schedule, &mut self.governor).unwrap_or(until_tick);
        Some(self.until_stacks(next))
    }

    fn drain_stacks(&mut self) {
        let begin = processor_time::of_thread();
        self.stacks.drain();
        self.governor.unwound(begin, self.stacks.cost());
    }

    /// The time for which the thread sleeps, if stacks need not be read earlier.
    fn until_stacks(&self, pause: Duration) -> Duration {
        self.stacks.until_drain().map_or(pause, |until| pause.min(until))
    }

    fn tick(&mut self) -> Duration {
        let begin = processor_time::of_thread();
        self.take_new_settings();
        self.take_early_calls();
        self.drain_stacks();
        let is_busy = self.schedule.tick();
        self.governor.adapt(self.schedule.demand());
        let mean = self.governor.ticked(begin, is_busy);
        let pause = self.schedule.pause(mean);
        let pause = self.retries.end_tick(&mut self.schedule, &mut self.governor, pause);
        self.until_stacks(pause)
    }
}

/// The work of the service thread.
#[derive(Debug, Default)]
struct Ticks {
    /// The number of the request that is answered after the tick.
    request: Option<u32>,
    unwritten: Option<Unwritten>,
    /// Whether the last report is written after the tick.
    is_last: bool,
    /// The file of a report whose stream has failed after the last tick.
    rescued: Option<OwnFile>,
    /// The processor time that writing has taken after the last tick, in nanoseconds.
    wrote: f64,
}

impl Work for Ticks {
    /// Called when something is due, and whenever the thread is woken. Returns the time to the next
    /// tick.
    fn tick(&mut self, wake: Wake) -> Duration {
        if TEXT_IS_SHARED.load(Ordering::Acquire) {
            unshare_text(true);
        }
        self.request = finish::requested();
        if wake == Wake::Last {
            OVER.store(true, Ordering::Relaxed);
        }
        // After the request: what a thread does before it ends the process is in the last report.
        let is_over = OVER.load(Ordering::Acquire);
        let is_due = with_session(|session| session.snapshots.take_due()) == Some(true);
        let occasion = match self.request {
            _ if finish::is_closed() => None,
            Some(_) if is_over => Some(Occasion::End),
            None if wake == Wake::Last => Some(Occasion::End),
            Some(_) => Some(Occasion::Exec),
            None => (is_due && has_probes() && !is_over).then_some(Occasion::Snapshot),
        };
        if occasion.is_some() {
            // Code that was executed shortly before has no probes yet; once it has, its functions
            // get rows for the calls that were counted. An error means that there are no more
            // probes.
            let _ = provider::begin(Extent::Executed);
        }
        // This happens in a forked child (most of them call exec before their first tick), and if
        // instrumented code was loaded after the start. For a last report there would be no
        // samples, and on a busy machine the process would wait for one more thread to begin.
        if occasion != Some(Occasion::End) {
            sample_stacks();
        }
        let next = with_session(|session| {
            session.written = self.rescued.take().or(session.written.take());
            session.governor.reported(std::mem::take(&mut self.wrote));
            session.settle_unloaded();
            if self.request.is_none()
                && occasion.is_none()
                && wake == Wake::Work
                && let Some(next) = session.part_of_tick()
            {
                return session.snapshots.until_next(next);
            }
            let next = session.tick();
            self.unwritten = occasion.map(|occasion| session.write(occasion));
            self.is_last = occasion == Some(Occasion::End);
            if self.is_last {
                session.schedule.end();
            }
            if wake == Wake::Last {
                session.stacks.end_companion();
            }
            session.snapshots.until_next(next)
        });
        next.unwrap_or(FIRST_TICK)
    }

    fn after_tick(&mut self) {
        if let Some(unwritten) = self.unwritten.take() {
            let begin = processor_time::of_thread();
            self.rescued = unwritten.write();
            self.wrote = processor_time::of_thread() - begin;
        }
        if std::mem::take(&mut self.is_last) {
            finish::close();
        }
        self.request.take().into_iter().for_each(finish::done);
    }
}

/// Gives a forked child its own text, and starts to observe there: late, if the program has run in
/// the child since the fork.
fn unshare_text(is_late: bool) {
    // SAFETY: until this succeeds, every store to the text is refused with `SharedWithParent`.
    if unsafe { wordpatch::text::unshare() }.is_ok() {
        TEXT_IS_SHARED.store(false, Ordering::Release);
        with_session(|session| {
            session.has_begun_late = is_late;
            session.schedule.drain();
            session.schedule.begin_all();
        });
    }
}

/// Whether [`start`] was called and its session exists. Takes no lock.
pub fn is_running() -> bool {
    IS_RUNNING.load(Ordering::Acquire)
}

/// Calls `act`, the handler of a call whose probes have not been made yet: if the calling thread
/// has open calls that are being timed, their latencies do not include its time; it is a cost of
/// the start. Takes no lock, may be called in a signal handler, and before this library is
/// relocated.
#[inline]
pub fn before_probes(act: impl FnOnce()) {
    // Before that, there are no probes, and thread-local data need not be accessible.
    if IS_RUNNING.load(Ordering::Relaxed) { fire::before_probes(act) } else { act() }
}

/// Whether there is anything to report.
pub fn has_probes() -> bool {
    fastinst::probe_count() > 0
}

/// Text up to this size is copied while the child is created; for more, the child waits for its
/// first tick, because most children call exec before it. About a millisecond.
const COPIED_AT_ONCE: usize = 4 << 20;

/// Starts again in a forked child, with the parent's functions and without its measurements.
pub(crate) fn restart_in_child() {
    thread::after_fork_in_child();
    finish::forget_requests();
    OVER.store(false, Ordering::Relaxed);
    output::forget_in_child();
    fire::restart();
    write::SPEAKS_FOR_THE_RUN.store(false, Ordering::Relaxed);
    TEXT_IS_SHARED.store(true, Ordering::Release);
    let is_running = with_session(|session| {
        session.clock = Clock::start();
        session.toggles_before = fastinst::toggle_count();
        session.written = None;
        session.snapshots.restart();
        session.has_said_notes = false;
        session.early_calls.clear();
        session.calls_of_unloaded = 0;
        session.has_begun_late = false;
        internal::take_early_calls(|_, _| {});
        session.identity.pid = std::process::id();
        session.identity.is_fork_child = true;
        session.change = None;
        session.governor = governor(&session.settings, governor::ticks_per_ns());
        session.schedule.restart();
        session.stacks.restart();
    });
    if wordpatch::text::copied_bytes() <= COPIED_AT_ONCE {
        unshare_text(false);
    }
    // Without a service thread the child is not profiled, but otherwise works.
    is_running.into_iter().for_each(|()| _ = start_service_thread());
}
