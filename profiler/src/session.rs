//! A profiling session: from the start of a process to its report.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastinst::provider::cyg_profile;
use fastinst::service::{self, Tick, Wake};
use fastinst::{ProbeId, ProbeMetadata, ProbeType};
use wordpatch::{calibration, tsc};

use crate::clock::{self, Clock};
use crate::error::Error;
use crate::function::{FUNCTIONS, Function, SAMPLES, about_to_arm, take_full};
use crate::measured::Measured;
use crate::options::{Options, Output};
use crate::output::{Identity, write_report};
use crate::report::Report;
use crate::stderr::Stderr;
use crate::{cpu, fire, thread};

/// Ticks between two looks for threads that have ended.
const RECLAIM_EVERY: u32 = 100;

/// How many sites a tick switches on at the most. The functions that are left over wait for the next tick. With some 300
/// ticks of time for a site on and off again, and what is measured in between, this bounds what a program with very many
/// functions pays, to about three in a hundred of one processor.
const SITES_PER_TICK: usize = 1_000;

struct Session {
    /// Functions whose bursts are over, in order.
    full: VecDeque<u32>,
    options: Options,
    identity: Identity,
    command: Vec<String>,
    clock: Clock,
    /// By index of the function; the first stands for the calibration, which is not reported.
    functions: Vec<Measured>,
    /// Index of a function by object and place in it: a library that is loaded again finds its functions here.
    indices: HashMap<(&'static CStr, usize), u32>,
    last_tick: Instant,
    ticks: u32,
    toggles_before: u64,
    written: Option<PathBuf>,
    /// Where diagnostics and the text report go.
    stderr: Stderr,
    /// Why no code can be found or patched in this process, if so.
    refusal: Option<String>,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// Set in a forked child until its text is its own.
static TEXT_IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Set in the process that the user has started: only that one says that there is nothing to report.
static SPEAKS_FOR_THE_RUN: AtomicBool = AtomicBool::new(false);

/// This process is the first of its run.
pub fn speak_for_the_run() {
    SPEAKS_FOR_THE_RUN.store(true, Ordering::Relaxed);
}

/// No more bursts: the last report is written.
static OVER: AtomicBool = AtomicBool::new(false);

fn with_session<R>(act: impl FnOnce(&mut Session) -> R) -> Option<R> {
    SESSION.lock().unwrap_or_else(|e| e.into_inner()).as_mut().map(act)
}

/// Starts measuring. Blocks for the scan of the loaded objects.
///
/// # Errors
/// [`Error::Start`] when the provider or the service thread cannot be started.
pub fn start(options: Options) -> Result<(), Error> {
    let failed = |source| Error::Start { source };
    fastinst::set_access(options.text.into());
    SAMPLES.store(options.samples, Ordering::Relaxed);
    let session = Session::new(options);
    let period = session.options.epoch;
    if let Some(index) = FUNCTIONS.push_with(|_| Function::default()) {
        FUNCTIONS.get(index).into_iter().for_each(|function| fire::calibrate(index as u32, function));
    }
    *SESSION.lock().unwrap_or_else(|e| e.into_inner()) = Some(session);
    cyg_profile::start().map_err(failed)?;
    fastinst::register_callback(discovered).map_err(failed)?;
    start_daemon(period).map_err(failed)
}

fn start_daemon(period: Duration) -> Result<(), fastinst::Error> {
    service::start(Some(Tick { period, call: Box::new(tick) }))
}

impl Session {
    fn new(options: Options) -> Self {
        let executable = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let arguments = command.strip_suffix(b"\0").unwrap_or(&command).split(|byte| *byte == 0);
        Self {
            identity: Identity {
                pid: std::process::id(),
                executable,
                started: options.run.unwrap_or_else(crate::process::started_at),
                is_fork_child: false,
            },
            options,
            command: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            clock: Clock::start(),
            functions: vec![Measured::new(c"", c"", 0)],
            full: VecDeque::new(),
            indices: HashMap::new(),
            last_tick: Instant::now(),
            ticks: 0,
            toggles_before: 0,
            written: None,
            stderr: Stderr::now(),
            refusal: refusal(),
        }
    }

    /// The index of a probe's function, which is made if it is new.
    fn function_of(&mut self, probe: &ProbeMetadata) -> Option<u32> {
        let key = (probe.object_path, probe.function_address.wrapping_sub(probe.object_base));
        if let Some(index) = self.indices.get(&key) {
            return Some(*index);
        }
        let index = FUNCTIONS.push_with(|_| Function::default())? as u32;
        // Its probes are switched on one by one as they are adopted.
        FUNCTIONS.get(index as usize)?.arm(index, |_, _| {});
        self.functions.push(Measured::new(probe.function_name, probe.object_path, probe.function_address));
        self.indices.insert(key, index);
        about_to_arm(self.indices.len());
        Some(index)
    }

    fn drain(&mut self) {
        let functions = &mut self.functions;
        thread::drain(|sample| {
            if let Some(measured) = functions.get_mut(sample.function as usize) {
                measured.sample(&sample);
            }
        });
    }

    /// Takes what the burst of a function tells.
    fn end_burst(&mut self, index: u32) -> Option<&'static Function> {
        let function = FUNCTIONS.get(index as usize)?;
        let end = function.burst_end();
        let stopped = end.counted.and_then(|counted| counted.stopped);
        let ran = stopped.and_then(|stopped| {
            let [from, to] = stopped.ran?;
            let now = cpu::of_program_with(stopped.moment.thread)?;
            let per_ns = self.clock.ticks_per_ns();
            Some([to.saturating_sub(from), now.saturating_sub(to)].map(|ns| ns as f64 * per_ns))
        });
        self.functions.get_mut(index as usize)?.estimator.burst(&end, tsc::now(), ran);
        Some(function)
    }

    fn epoch(&mut self) {
        self.full.extend(take_full());
        about_to_arm(self.full.len());
        let mut sites = 0;
        while sites < SITES_PER_TICK
            && let Some(index) = self.full.pop_front()
        {
            if let Some(function) = self.end_burst(index) {
                function.arm(index, switch_on);
                sites += function.sites();
            }
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(RECLAIM_EVERY) {
            self.drain();
            thread::reclaim();
        }
    }

    /// Everything measured so far.
    fn report(&mut self) -> Report {
        self.drain();
        for index in 1..self.functions.len() as u32 {
            if let Some(function) = self.end_burst(index) {
                // What was told must not be told again, should the session go on.
                if function.burst_end().full.is_some() {
                    function.arm(index, switch_on);
                } else {
                    function.arm(index, |_, _| {});
                }
            }
        }
        let ticks_per_ns = self.clock.ticks_per_ns();
        let functions: Vec<_> =
            self.functions[1..].iter().filter_map(|measured| measured.report(ticks_per_ns)).collect();
        Report {
            version: Report::VERSION,
            command: self.command.clone(),
            pid: self.identity.pid,
            duration_ns: self.clock.elapsed().as_nanos() as u64,
            probes: fastinst::probe_count() as u64,
            toggles: fastinst::toggle_count() - self.toggles_before,
            samples: functions.iter().map(|function| function.samples).sum(),
            lost_samples: thread::lost(),
            notes: notes().into_iter().chain(calibration::status().warning()).collect(),
            functions,
        }
    }

    /// Writes the report where the options say. What cannot be written there is not lost: it goes to a file beside.
    fn write(&mut self) {
        if fastinst::probe_count() == 0 {
            self.write_why_there_is_none();
            return;
        }
        let report = self.report();
        let written = match &self.options.output {
            Output::Stderr => {
                if self.stderr.write(&crate::report::text::render(&report, None)) {
                    return;
                }
                // The stream was closed or is another file by now.
                self.write_file(&report, RESCUE, crate::report::Format::Text)
            }
            Output::File { template, format } => {
                self.write_file(&report, template, *format).or_else(|error| {
                    self.stderr.write(&format!("fastinst: {error}\n"));
                    let rescued = self.write_file(&report, RESCUE, *format)?;
                    self.stderr.write(&format!("fastinst: the report is in {}\n", rescued.display()));
                    Ok(rescued)
                })
            }
        };
        if self.written.is_none() {
            report.notes.iter().for_each(|note| _ = self.stderr.write(&format!("fastinst: {note}\n")));
        }
        match written {
            Ok(path) => self.written = Some(path),
            // No file can be made: all that is left is the stream.
            Err(error) => {
                self.stderr.write(&format!("fastinst: {error}\n"));
                self.stderr.write(&crate::report::text::render(&report, None));
            }
        }
    }

    /// One line, from the process that the user has started, unless its children may have had something to report.
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
        self.stderr.write(&why);
    }

    fn write_file(
        &self,
        report: &Report,
        template: &str,
        format: crate::report::Format,
    ) -> Result<PathBuf, Error> {
        write_report(report, template, format, &self.identity, self.written.as_deref())
    }
}

/// What finding and patching code cannot do without, if it is missing.
fn refusal() -> Option<String> {
    const MAPS: &str = "/proc/self/maps";
    let error = std::fs::File::open(MAPS).err()?;
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "allow more open files (ulimit -n)",
        _ => "mount /proc",
    };
    Some(format!("{MAPS} cannot be read ({error}), and code cannot be found without it; {remedy}"))
}

/// Where a report goes that has no other place.
const RESCUE: &str = "/tmp/fastinst.%e.%p.txt";

fn notes() -> Vec<String> {
    let mut notes = cyg_profile::notes();
    if !clock::tsc_is_invariant() {
        notes.push(
            "the TSC of this machine is not invariant: latencies may be off while its frequency changes"
                .into(),
        );
    }
    notes
}

fn switch_on(id: ProbeId, kind: ProbeType) {
    let function = match kind {
        ProbeType::Entry => fire::ENTRY,
        ProbeType::Exit => fire::EXIT,
    };
    // A refusal concerns a library that was unloaded, or a site that something else has patched: nothing to measure there.
    // SAFETY: the probe functions are never unloaded, and keep the contract of `ProbeFn`.
    let _ = unsafe { fastinst::activate(id, function) };
}

/// Told of every probe: makes it one of its function's, and switches it on if the others are.
fn discovered(probe: &ProbeMetadata) {
    let is_on = with_session(|session| {
        let index = session.function_of(probe)?;
        Function::adopt(index, probe.id, probe.kind)?;
        FUNCTIONS.get(index as usize).map(|function| function.is_on(probe.kind))
    });
    if is_on.flatten() == Some(true) && !OVER.load(Ordering::Relaxed) {
        switch_on(probe.id, probe.kind);
    }
}

/// The daemon's work: after each period, and whenever it is woken.
fn tick(wake: Wake) {
    if TEXT_IS_SHARED.load(Ordering::Acquire) {
        take_text_over();
    }
    let finishing = REQUESTED.load(Ordering::Acquire) != DONE.load(Ordering::Relaxed);
    with_session(|session| {
        session.drain();
        // Being woken is no tick: it would come when the program is busy.
        if !OVER.load(Ordering::Relaxed) && session.last_tick.elapsed() >= session.options.epoch.mul_f64(0.9)
        {
            session.last_tick = Instant::now();
            session.epoch();
        }
        if finishing || wake == Wake::Last && !OVER.swap(true, Ordering::Relaxed) {
            session.write();
        }
    });
    if finishing {
        DONE.store(REQUESTED.load(Ordering::Acquire), Ordering::Release);
        service::wake(&DONE);
    }
}

/// In a forked child: gives it text of its own, and begins the bursts there.
fn take_text_over() {
    // SAFETY: until this succeeds, every store to the text is refused with `SharedWithParent`.
    if unsafe { wordpatch::text::unshare() }.is_ok() {
        TEXT_IS_SHARED.store(false, Ordering::Release);
        with_session(|session| {
            session.drain();
            for index in 1..session.functions.len() as u32 {
                // The code is in whatever state the parent had it in.
                session.end_burst(index).into_iter().for_each(|function| function.arm(index, switch_on));
            }
        });
    }
}

/// How many reports were asked for, and how many were written.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// How long a dying process waits for its report at the most.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the daemon write the report, and waits for it. `last` says that the process ends for certain.
///
/// The daemon does it, since the caller may be a signal handler: it allocates nothing, and holds no lock. The daemon in turn
/// uses nothing of the program's: not its allocator, nor its streams.
pub fn finish(last: bool) {
    if last && OVER.swap(true, Ordering::Relaxed) {
        return;
    }
    let wanted = REQUESTED.fetch_add(1, Ordering::AcqRel) + 1;
    service::notify();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let done = DONE.load(Ordering::Acquire);
        if done.wrapping_sub(wanted) < u32::MAX / 2 || Instant::now() >= deadline {
            return;
        }
        service::wait(&DONE, done, deadline);
    }
}

/// Whether [`start`] has succeeded.
pub fn is_running() -> bool {
    with_session(|_| ()).is_some()
}

/// Whether there is anything that a report could hold.
pub fn has_probes() -> bool {
    fastinst::probe_count() > 0
}

/// Text up to this size is copied while the child is made; for more, the child waits for its first tick, since most children
/// call exec before it. About a millisecond.
const COPIED_AT_ONCE: usize = 4 << 20;

/// In a forked child: begins anew, with the parent's functions and nothing of what the parent measured.
pub(crate) fn restart_in_child() {
    thread::after_fork_in_child();
    DONE.store(REQUESTED.load(Ordering::Relaxed), Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    SPEAKS_FOR_THE_RUN.store(false, Ordering::Relaxed);
    TEXT_IS_SHARED.store(true, Ordering::Release);
    take_full();
    let period = with_session(|session| {
        session.clock = Clock::start();
        session.last_tick = Instant::now();
        session.toggles_before = fastinst::toggle_count();
        session.written = None;
        session.full.clear();
        session.identity.pid = std::process::id();
        session.identity.is_fork_child = true;
        for measured in &mut session.functions {
            *measured = Measured::new(measured.name, measured.object, measured.address);
        }
        for (index, function) in (0..).zip(FUNCTIONS.iter()) {
            function.forget();
            function.arm(index, |_, _| {});
        }
        session.options.epoch
    });
    if wordpatch::text::copied_bytes() <= COPIED_AT_ONCE {
        take_text_over();
    }
    // Without a thread the child is not profiled, and not disturbed either.
    period.into_iter().for_each(|period| _ = start_daemon(period));
}

/// Says something to the user, on the standard error stream of the start.
pub fn say(line: &str) {
    let text = format!("fastinst: {line}\n");
    if with_session(|session| session.stderr.write(&text)).is_none() {
        Stderr::now().write(&text);
    }
}
