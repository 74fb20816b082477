//! A profiling session: from the start of a process to its report.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastinst::ProbeMetadata;
use fastinst::provider::{self, Extent};
use fastinst::service::{self, Tick, Wake};
use fastinst_sigsafe::futex;
use wordpatch::calibration;

use crate::callers::Bodies;
use crate::clock::{self, Clock};
use crate::error::Error;
use crate::function::{FUNCTIONS, Function};
use crate::governor::Governor;
use crate::locations::{Locations, disambiguate};
use crate::measured::{Measured, Units};
use crate::options::{Counts, Discovery, Options, Output, RunId};
use crate::output::{Identity, Target, write_report};
use crate::probe_type::ProbeType;
use crate::report::{Cost, Report, View, text};
use crate::schedule::{Schedule, switch_on};
use crate::stderr::stderr;
use crate::{fire, governor, preemption, summary, thread};

/// Interval between two checks for threads that have ended.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);

/// Probes of programs with no more functions than this are made at the start, in at most some 50
/// ms.
const SMALL: usize = 8000;

/// Time between the start and the first tick.
const FIRST_TICK: Duration = Duration::from_millis(2);

struct Session {
    options: Options,
    identity: Identity,
    command: Vec<String>,
    clock: Clock,
    schedule: Schedule,
    governor: Governor,
    /// Source files, for filters and for functions with the same name.
    locations: Locations,
    /// Index of a function by object and offset in it: a library that is loaded again finds its
    /// functions here.
    indices: HashMap<(&'static CStr, usize), u32>,
    /// By function address: the index under which calls are counted that were made before its
    /// probes were ready.
    by_address: HashMap<usize, u32>,
    early_calls: HashMap<usize, u64>,
    bodies: Bodies,
    last_reclaim: Instant,
    toggles_before: u64,
    written: Option<PathBuf>,
    /// The reason why code cannot be found or patched in this process, if so.
    refusal: Option<String>,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// Set in a forked child until it has its own text.
static TEXT_IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Set in the process that the user started: only that one reports that there is nothing to report.
static SPEAKS_FOR_THE_RUN: AtomicBool = AtomicBool::new(false);

/// Marks this process as the first of its run.
pub fn speak_for_the_run() {
    SPEAKS_FOR_THE_RUN.store(true, Ordering::Relaxed);
}

/// Set when the last report was written: nothing is observed any more.
static OVER: AtomicBool = AtomicBool::new(false);

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
    // From now on it is known which stream it is.
    stderr();
    let before = governor::of_thread();
    fastinst::set_access(options.text.into());
    let discovery = options.discovery;
    let session = Session::new(options);
    preemption::start(governor::ticks_per_ns());
    if let Some(index) = FUNCTIONS.push_with(|_| Function::default()) {
        FUNCTIONS.get(index).into_iter().for_each(|function| fire::calibrate(index as u32, function));
    }
    *SESSION.lock().unwrap_or_else(|e| e.into_inner()) = Some(session);
    provider::begin(match discovery {
        Discovery::Auto => Extent::AllUpTo { functions: SMALL },
        Discovery::Eager => Extent::All,
        Discovery::Lazy => Extent::Executed,
    })
    .map_err(failed)?;
    fastinst::register_callback(discovered).map_err(failed)?;
    with_session(|session| session.governor.started(governor::of_thread() - before));
    start_service_thread().map_err(failed)
}

fn governor(options: &Options, ticks_per_ns: f64) -> Governor {
    Governor::new(options.budget.fraction(), options.counts == Counts::Exact, ticks_per_ns)
}

fn start_service_thread() -> Result<(), fastinst::Error> {
    service::start(Some(Tick { first: FIRST_TICK, call: Box::new(tick) }))
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
            governor: governor(&options, clock.estimate_ticks_per_ns()),
            options,
            command: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            clock,
            schedule: Schedule::new(),
            locations: Locations::default(),
            indices: HashMap::new(),
            by_address: HashMap::new(),
            early_calls: HashMap::new(),
            bodies: Bodies::default(),
            last_reclaim: Instant::now(),
            toggles_before: 0,
            written: None,
            refusal: refusal(),
        }
    }

    /// The index of a probe's function, which is created if it is new.
    fn function_of(&mut self, probe: &ProbeMetadata<'static>) -> Option<u32> {
        let key = (probe.object_path, probe.function_address.wrapping_sub(probe.object_base));
        if let Some(index) = self.indices.get(&key) {
            return Some(*index);
        }
        let index = FUNCTIONS.push_with(|_| Function::default())? as u32;
        FUNCTIONS.get(index as usize)?.reset();
        self.schedule.functions.push(Measured::new(probe.function_name, probe.object_path, key.1));
        self.indices.insert(key, index);
        self.by_address.insert(probe.function_address, index);
        // Its probes are switched on one by one as they are discovered.
        self.schedule.begin(index);
        Some(index)
    }

    /// Whether the user selected the function of a probe.
    fn wants(&mut self, probe: &ProbeMetadata<'_>) -> bool {
        let locations = &mut self.locations;
        let file = || {
            let object = Path::new(OsStr::from_bytes(probe.object_path.to_bytes()));
            let address = probe.function_address.wrapping_sub(probe.object_base) as u64;
            locations.of(object, address).map(|location| location.file)
        };
        self.options.filter.wants(probe.function_name, probe.object_path, file)
    }

    /// Adds the calls that were made before their function's probes were ready. They were counted,
    /// but not timed.
    fn take_early_calls(&mut self) {
        let early = &mut self.early_calls;
        provider::take_early_calls(|address, calls| *early.entry(address).or_default() += calls);
        let (functions, by_address) = (&mut self.schedule.functions, &self.by_address);
        early.retain(|address, calls| match by_address.get(address) {
            Some(index) => {
                functions[*index as usize].strata.counted_early(*calls);
                false
            }
            // Its probes have not been made yet.
            None => true,
        });
    }

    fn tick(&mut self) -> Duration {
        let begin = governor::of_thread();
        self.take_early_calls();
        let is_busy = self.schedule.tick();
        self.governor.adapt(self.schedule.demand());
        if self.last_reclaim.elapsed() >= RECLAIM_EVERY {
            self.last_reclaim = Instant::now();
            thread::reclaim();
        }
        let mean = self.governor.ticked(begin, is_busy);
        let pause = self.schedule.pause(mean);
        self.schedule.release();
        pause
    }

    /// The report of everything measured so far.
    fn report(&mut self) -> Report {
        self.schedule.drain();
        self.take_early_calls();
        let ticks_per_ns = self.clock.ticks_per_ns();
        let duration_ns = self.clock.elapsed().as_nanos() as u64;
        let thread_time = (thread::lived() as f64 / ticks_per_ns).max(duration_ns as f64);
        let units = Units { ticks_per_ns, resolution: fire::resolution(), thread_time };
        let (mut functions, arcs) = summary::of(&self.schedule, &self.bodies, &units);
        disambiguate(&mut functions, &mut self.locations);
        let spent = self.governor.spent();
        Report {
            version: Report::VERSION,
            run: self.identity.run.to_string(),
            command: self.command.clone(),
            pid: self.identity.pid,
            processes: 1,
            duration_ns,
            thread_time_ns: thread_time as u64,
            probes: fastinst::probe_count() as u64,
            toggles: fastinst::toggle_count() - self.toggles_before,
            samples: functions.iter().map(|function| function.samples).sum(),
            lost_samples: thread::lost(),
            cost: Cost {
                budget: self.options.budget.fraction(),
                cpu_ns: spent.process as u64,
                probes_ns: spent.probes as u64,
                service_ns: spent.service as u64,
                toggles_ns: spent.toggles as u64,
                startup_ns: spent.start as u64,
                error: spent.error(),
                memory_bytes: self.schedule.memory() as u64,
            },
            notes: notes().into_iter().chain(calibration::status().warning()).collect(),
            functions,
            arcs,
        }
    }

    /// Writes the report as the options say. If that fails, it is written to another file.
    fn write(&mut self) {
        if fastinst::probe_count() == 0 {
            self.write_why_there_is_none();
            return;
        }
        let report = self.report();
        let written = match &self.options.output {
            Output::Stderr => {
                if stderr().write(&text::render(&report, &on_stderr())) {
                    return;
                }
                // The stream was closed or is now another file.
                self.write_file(&report, RESCUE, crate::report::Format::Text)
            }
            Output::File { template, format } => {
                self.write_file(&report, template, *format).or_else(|error| {
                    stderr().write(&format!("fastinst: {error}\n"));
                    let rescued = self.write_file(&report, RESCUE, *format)?;
                    stderr().write(&format!("fastinst: the report is in {}\n", rescued.display()));
                    Ok(rescued)
                })
            }
        };
        if self.written.is_none() {
            report.notes.iter().for_each(|note| _ = stderr().write(&format!("fastinst: {note}\n")));
        }
        match written {
            Ok(path) => self.written = Some(path),
            // No file can be created: only the stream is left.
            Err(error) => {
                stderr().write(&format!("fastinst: {error}\n"));
                stderr().write(&text::render(&report, &on_stderr()));
            }
        }
    }

    /// Writes one line, in the process that the user started, unless its children may have had
    /// something to report.
    fn write_why_there_is_none(&self) {
        if !SPEAKS_FOR_THE_RUN.load(Ordering::Relaxed) || crate::process::has_made_children() {
            return;
        }
        let notes = notes();
        let reason = match (&self.refusal, notes.is_empty()) {
            (Some(refusal), _) => refusal.clone(),
            (None, true) => "no function of it was compiled with -finstrument-functions".to_owned(),
            (None, false) => notes.join("; "),
        };
        let (pid, executable) = (self.identity.pid, self.identity.executable.display());
        let why = format!("fastinst: nothing to report for process {pid} ({executable}): {reason}\n");
        stderr().write(&why);
    }

    fn write_file(
        &self,
        report: &Report,
        template: &str,
        format: crate::report::Format,
    ) -> Result<PathBuf, Error> {
        let target = Target { template, format, merge: self.options.merge };
        write_report(report, target, &self.identity, self.written.as_deref())
    }
}

/// The selection for standard error: a terminal does not need thousands of rows.
fn on_stderr() -> View {
    let limit = std::io::stderr().is_terminal().then_some(text::ROWS_ON_A_TERMINAL);
    View { limit, hint: "fastinst record -o FILE.json keeps all of them", ..View::default() }
}

/// The reason why code cannot be found or patched, if there is one.
fn refusal() -> Option<String> {
    const MAPS: &str = "/proc/self/maps";
    let error = std::fs::File::open(MAPS).err()?;
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "allow more open files (ulimit -n)",
        _ => "mount /proc",
    };
    Some(format!("{MAPS} cannot be read ({error}), and code cannot be found without it; {remedy}"))
}

/// The file for a report that cannot be written elsewhere.
const RESCUE: &str = "/tmp/fastinst.%e.%p.txt";

fn notes() -> Vec<String> {
    let mut notes = provider::notes();
    if !clock::tsc_is_invariant() {
        notes.push(
            "the TSC of this machine is not invariant: latencies may be off while its frequency changes"
                .into(),
        );
    }
    notes
}

/// Called for every probe: assigns it to its function, and switches it on if the others are on.
/// Only functions whose code is never unloaded as a group are observed: a report names them when
/// the process ends.
fn discovered(probe: &ProbeMetadata<'_>) {
    let Some(kind) = ProbeType::of(probe.kind) else { return };
    let Some(probe) = fastinst::lasting_metadata(probe.id) else { return };
    let is_on = with_session(|session| {
        if !session.wants(&probe) {
            return None;
        }
        let index = session.function_of(&probe)?;
        Function::adopt(index, probe.id, kind)?;
        session.schedule.functions[index as usize].probes += 1;
        if kind == ProbeType::Entry && probe.function_address == probe.body_start {
            session.bodies.insert(probe.body_start, probe.body_end, index);
        }
        FUNCTIONS.get(index as usize).map(|function| function.has_on(kind))
    });
    if is_on.flatten() == Some(true) && !OVER.load(Ordering::Relaxed) {
        switch_on(probe.id, kind);
    }
}

/// The work of the service thread: when something is due, and whenever it is woken. Returns the
/// time to the next tick.
fn tick(wake: Wake) -> Duration {
    if TEXT_IS_SHARED.load(Ordering::Acquire) {
        unshare_text();
    }
    let finishing = REQUESTED.load(Ordering::Acquire) != DONE.load(Ordering::Relaxed);
    let next = with_session(|session| {
        let next = session.tick();
        if finishing || wake == Wake::Last && !OVER.swap(true, Ordering::Relaxed) {
            session.write();
        }
        if OVER.load(Ordering::Relaxed) {
            session.schedule.end();
        }
        next
    });
    if finishing {
        DONE.store(REQUESTED.load(Ordering::Acquire), Ordering::Release);
        futex::wake(&DONE);
    }
    next.unwrap_or(FIRST_TICK)
}

/// In a forked child: gives it its own text, and starts to observe there.
fn unshare_text() {
    // SAFETY: until this succeeds, every store to the text is refused with `SharedWithParent`.
    if unsafe { wordpatch::text::unshare() }.is_ok() {
        TEXT_IS_SHARED.store(false, Ordering::Release);
        with_session(|session| {
            session.schedule.drain();
            session.schedule.begin_all();
        });
    }
}

/// Numbers of reports that were requested and written.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// Maximum time for which an exiting process waits for its report.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the report is written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The process exits.
    Exit,
    /// The process becomes another program, unless the system refuses.
    Exec,
    /// A fatal signal was delivered to the calling thread, which is in its handler.
    Signal,
}

/// Requests the report from the service thread, and waits for it, at most 10 s. A process that
/// exits waits longer while its report is being read from a pipe (by a pager, say), as it does with
/// its own output.
///
/// The service thread writes it, because the caller may be a signal handler: it does not allocate,
/// and holds no lock. The service thread in turn uses neither the program's allocator nor its
/// streams.
pub fn finish(leaving: Leaving) {
    if leaving != Leaving::Exec && OVER.swap(true, Ordering::Relaxed) {
        return;
    }
    let wanted = REQUESTED.fetch_add(1, Ordering::AcqRel) + 1;
    service::notify();
    let mut deadline = Instant::now() + PATIENCE;
    loop {
        let done = DONE.load(Ordering::Acquire);
        if done.wrapping_sub(wanted) < u32::MAX / 2 {
            return;
        }
        if Instant::now() < deadline {
            futex::wait(&DONE, done, deadline);
        } else if leaving == Leaving::Exit && stderr().is_writing() {
            deadline = Instant::now() + PATIENCE;
        } else {
            stderr().write_now(
                b"fastinst: there is no report, or not all of it: it took more than 10 s to write\n",
            );
            return;
        }
    }
}

/// Whether [`start`] has succeeded.
pub fn is_running() -> bool {
    with_session(|_| ()).is_some()
}

/// Whether there is anything to report.
pub fn has_probes() -> bool {
    fastinst::probe_count() > 0
}

/// Text up to this size is copied while the child is created; for more, the child waits for its
/// first tick, because most children call exec before it. About a millisecond.
const COPIED_AT_ONCE: usize = 4 << 20;

/// In a forked child: starts again, with the parent's functions and without its measurements.
pub(crate) fn restart_in_child() {
    thread::after_fork_in_child();
    DONE.store(REQUESTED.load(Ordering::Relaxed), Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    SPEAKS_FOR_THE_RUN.store(false, Ordering::Relaxed);
    TEXT_IS_SHARED.store(true, Ordering::Release);
    let is_running = with_session(|session| {
        session.clock = Clock::start();
        session.last_reclaim = Instant::now();
        session.toggles_before = fastinst::toggle_count();
        session.written = None;
        session.early_calls.clear();
        provider::take_early_calls(|_, _| {});
        session.identity.pid = std::process::id();
        session.identity.is_fork_child = true;
        session.governor = governor(&session.options, governor::ticks_per_ns());
        session.schedule.restart();
    });
    if wordpatch::text::copied_bytes() <= COPIED_AT_ONCE {
        unshare_text();
    }
    // Without a service thread the child is not profiled, but otherwise works.
    is_running.into_iter().for_each(|()| _ = start_service_thread());
}

/// Prints a line to the standard error stream of the start.
pub fn say(line: &str) {
    stderr().write(&format!("fastinst: {line}\n"));
}
