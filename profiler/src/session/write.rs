//! Writes the report of a session: everything measured so far, in the format and at the destination
//! of the options.
//!
//! 1. In a tick, under the locks of the service thread and of the session, for which a fork waits:
//!    [`Session::write`] makes the report, and writes it to its file.
//! 2. After the tick: [`Unwritten::write`] writes what goes to a stream, whose reader may block the
//!    write for any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use fastinst::{ProbeMetadata, provider};
use wordpatch::calibration;

use super::Session;
use super::merged;
use super::unloaded::MissedCalls;
use crate::binary::locations::{Locations, disambiguate};
use crate::error::Error;
use crate::estimate::callers::Origin;
use crate::estimate::summary;
use crate::observe::measured::Units;
use crate::observe::{fire, function, governor, own_time, thread};
use crate::options::Output;
use crate::output::{self, Identity, OwnFile, Stream, Target, Written, write_report};
use crate::processor_time;
use crate::report::{Arc, Cost, Format, FunctionReport, Report, View, text};
use crate::session::{clock, snapshot};
use crate::stacks::waiting::Preempted;
use crate::stacks::{self, Enclosing};
use crate::stderr::stderr;

/// The reason why a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The program ends.
    End,
    /// The process calls exec, which may fail.
    Exec,
    /// The user wants to know about a program that goes on.
    Snapshot,
}

/// Set in the process that the user started: only this process reports that there is nothing to
/// report.
pub(super) static SPEAKS_FOR_THE_RUN: AtomicBool = AtomicBool::new(false);

/// Marks this process as the first of its run.
pub fn speak_for_the_run() {
    SPEAKS_FOR_THE_RUN.store(true, Ordering::Relaxed);
}

impl Session {
    /// The memory that profiling uses, in bytes, except for what is only needed to write a report,
    /// and for the copies of rewritten text.
    fn memory(&self) -> usize {
        self.known.memory()
            + self.schedule.memory()
            + self.stacks.memory()
            + function::memory_of_links()
            + function::details::memory()
            + fastinst::internal::memory_bytes()
    }

    /// The report of everything measured so far.
    fn report(&mut self) -> Report {
        self.schedule.drain();
        thread::reclaim();
        // Calls in which threads have ended are samples, too.
        self.schedule.drain();
        self.take_early_calls();
        self.add_functions_without_probes();
        self.settle_unloaded();
        // Before the times are read of which those of functions are parts.
        self.stacks.finish();
        let ticks_per_ns = self.ticks_per_ns();
        let duration_ns = self.clock.elapsed().as_nanos() as u64;
        let thread_time = (thread::lived() as f64 / ticks_per_ns).max(duration_ns as f64);
        let units = Units { ticks_per_ns, resolution: fire::resolution(), thread_time };
        let missed = MissedCalls::of(self.calls_of_unloaded(), self.has_begun_late);
        let (mut functions, mut arcs) = self.summary(&units, &missed);
        let notes_of_merged = merged::settle(&mut functions, &mut arcs);
        disambiguate(&mut functions, &mut self.locations);
        let spent = self.governor.spent();
        Report {
            version: Report::VERSION,
            run: self.identity.run.to_string(),
            settings: self.settings.in_report(),
            command: self.command.clone(),
            pid: self.identity.pid,
            started_us: self.clock.started_us(),
            processes: 1,
            duration_ns,
            thread_time_ns: thread_time as u64,
            probes: fastinst::probe_count() as u64,
            toggles: fastinst::toggle_count() - self.toggles_before,
            samples: functions.iter().map(|function| function.samples).sum(),
            lost_samples: thread::lost(),
            stacks: self.stacks.taken(),
            cost: Cost {
                budget: self.settings.budget.fraction(),
                cpu_ns: spent.process as u64,
                probes_ns: spent.probes as u64,
                service_ns: spent.service as u64,
                toggles_ns: spent.toggles as u64,
                stacks_ns: spent.stacks as u64,
                startup_ns: spent.start as u64,
                report_ns: 0,
                error: spent.error(),
                memory_bytes: self.memory() as u64,
            },
            notes: (notes().into_iter().chain(self.note_of_change()))
                .chain(self.stacks.note().map(str::to_owned))
                .chain(self.stacks.note_of_depth())
                .chain(snapshot::note())
                .chain(missed.notes())
                .chain(notes_of_merged)
                .chain(if self.settings.filter.asks_for_files() {
                    self.locations.notes()
                } else {
                    Vec::new()
                })
                .chain(self.clock.note(governor::ticks_per_ns()))
                .chain(calibration::status().warning())
                .collect(),
            functions,
            arcs,
        }
    }

    /// The rows of the report, and the arcs between them.
    fn summary(&mut self, units: &Units, missed: &MissedCalls) -> (Vec<FunctionReport>, Vec<Arc>) {
        let (bodies, waiting) = (self.bodies(), self.waiting(units.thread_time));
        let (times, mut enclosing) = self.stacks.report(waiting);
        let (known, measured) = (&self.known, &self.schedule.functions);
        let inlined_into = |callee: u32, site: &ProbeMetadata<'_>, enclosing: &mut Enclosing<'_>| {
            let is_loaded = fastinst::is_loaded(site.id);
            match is_loaded.then(|| enclosing.at(site.site_address)).flatten() {
                Some(function) => function,
                None => known.at(measured, site.body_start).filter(|owner| *owner != callee),
            }
        };
        let mut caller_of = |callee: u32, origin: Origin| {
            let site = origin.probe().and_then(fastinst::lasting_metadata);
            if let Some(function) = site.and_then(|site| inlined_into(callee, &site, &mut enclosing)) {
                return Some(function);
            }
            match origin.caller() {
                Ok(function) => Some(function),
                Err(address) => {
                    let in_call = enclosing.before(address).flatten();
                    in_call.or_else(|| bodies.function_at(address))
                }
            }
        };
        summary::of(&self.schedule, &mut caller_of, units, times.as_ref(), missed)
    }

    fn ticks_per_ns(&self) -> f64 {
        self.clock.ticks_per_ns(governor::ticks_per_ns())
    }

    /// The time for which the program's threads have waited, in nanoseconds, if they have lived for
    /// `thread_time`: they neither ran nor were preempted.
    fn waiting(&self, thread_time: f64) -> f64 {
        let seen = thread::seen();
        let ns = |ticks: u64| ticks as f64 / self.ticks_per_ns();
        let preempted = Preempted {
            ended: ns(seen.preempted_before_end),
            live: ns(seen.preempted - seen.preempted_before_end),
        };
        stacks::waiting::time(thread_time, own_time::processor_time(), preempted, thread::live())
    }

    /// Writes the report in the format and at the destination of the options, as far as that cannot
    /// block. If that fails, it is written to another file.
    pub(super) fn write(&mut self, occasion: Occasion) -> Unwritten {
        let begin = processor_time::of_thread();
        let unwritten = self.write_for(occasion);
        self.governor.reported(processor_time::of_thread() - begin);
        unwritten
    }

    fn write_for(&mut self, occasion: Occasion) -> Unwritten {
        let mut unwritten = Unwritten::of(self);
        if fastinst::probe_count() == 0 {
            unwritten.messages.extend(self.why_there_is_none());
            return unwritten;
        }
        let mut report = self.report();
        let took = output::time_to_write(&report);
        // Most forked children only call exec.
        if self.identity.is_fork_child && report.functions.is_empty() {
            return unwritten;
        }
        if occasion == Occasion::Snapshot {
            report.notes.push("written while the program was running".to_owned());
        } else if let Output::File { .. } = self.output
            && !std::mem::replace(&mut self.has_said_notes, true)
        {
            // Without what the user has asked for.
            let known = self.stacks.note().filter(|_| self.stacks.are_unwanted());
            let notes = report.notes.iter().filter(|note| known != Some(note.as_str()));
            unwritten.messages.extend(notes.map(|note| line(note)));
        }
        if let Output::Stderr | Output::File { format: Format::Text, .. } = &self.output {
            report.demangle();
            disambiguate(&mut report.functions, &mut self.locations);
        }
        report.cost.report_ns = took();
        match &self.output {
            Output::Stderr if stderr().is_there() => {
                unwritten.report = Some((Destination::Stderr, report));
            }
            // Standard error was closed or replaced, as is usual between fork and exec: nobody
            // could be told where the report of the few calls is.
            Output::Stderr if self.identity.is_fork_child && occasion == Occasion::Exec => {}
            Output::Stderr => self.written = unwritten.rescue(report),
            Output::File { template, format } => {
                let target = Target { template, format: *format, merge: self.merge };
                match write_report(&report, target, &self.identity, self.written.as_ref()) {
                    Ok(Written::File(file)) => self.written = Some(file),
                    Ok(Written::Apart(file, why)) => {
                        unwritten.messages.push(line(&why));
                        self.written = Some(file);
                    }
                    Ok(Written::Stream(stream)) => {
                        unwritten.report = Some((Destination::Stream(stream), report));
                    }
                    Err(error) => {
                        unwritten.failed(&error);
                        self.written = unwritten.rescue(report);
                    }
                }
            }
        }
        unwritten
    }

    /// The reason why there is no report, as one line, in the process that the user started, unless
    /// its children may have had something to report.
    fn why_there_is_none(&self) -> Option<String> {
        if !SPEAKS_FOR_THE_RUN.load(Ordering::Relaxed) || crate::process::children::were_made() {
            return None;
        }
        let notes = notes();
        let reason = match (&self.refusal, notes.is_empty()) {
            (Some(refusal), _) => refusal.clone(),
            (None, true) => "no function of it was compiled with -finstrument-functions".to_owned(),
            (None, false) => notes.join("; "),
        };
        let (pid, executable) = (self.identity.pid, self.identity.executable.display());
        Some(line(&format!("nothing to report for process {pid} ({executable}): {reason}")))
    }
}

/// A line for the user.
fn line(text: &str) -> String {
    format!("fastinst: {text}\n")
}

/// A stream for a report.
#[derive(Debug)]
enum Destination {
    Stderr,
    Stream(Stream),
}

/// What is to be written to streams, after the report was made. Needs nothing of the session, and
/// no locks.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// The report, unless it is in a file.
    report: Option<(Destination, Report)>,
    /// Lines for the user, and a table that cannot be written elsewhere.
    messages: Vec<String>,
    /// The format of the report, in another file as well.
    format: Format,
    identity: Identity,
    /// The file of an earlier report that was meant for standard error.
    previous: Option<OwnFile>,
    /// The number of rows on standard error.
    rows: Option<usize>,
}

impl Unwritten {
    fn of(session: &Session) -> Self {
        let (format, previous) = match &session.output {
            Output::Stderr => (Format::Text, session.written.clone()),
            Output::File { format, .. } => (*format, None),
        };
        let (identity, rows) = (session.identity.clone(), session.settings.rows);
        Self { report: None, messages: Vec::new(), format, identity, previous, rows }
    }

    /// Writes everything. Blocks while a reader does not read. Returns the report's file, if the
    /// stream has failed and there is one.
    pub(super) fn write(mut self) -> Option<OwnFile> {
        let mut file = None;
        if let Some((destination, report)) = self.report.take() {
            let result = match destination {
                Destination::Stderr => {
                    let took = output::time_to_write(&report);
                    let text = text::render_in(&report, &on_stderr(self.rows), took);
                    stderr().write(&text).then_some(()).ok_or(None)
                }
                Destination::Stream(stream) => stream.write().map_err(Some),
            };
            if let Err(error) = result {
                error.iter().for_each(|error| self.failed(error));
                file = self.rescue(report);
            }
        }
        self.messages.iter().for_each(|text| _ = stderr().write(text));
        file
    }

    fn failed(&mut self, error: &Error) {
        self.messages.push(line(&error.to_string()));
    }

    /// Writes a report that cannot be written to its destination to another file, and returns that
    /// file. If no file can be created, the report becomes a message.
    fn rescue(&mut self, mut report: Report) -> Option<OwnFile> {
        let target = Target { template: RESCUE, format: self.format, merge: false };
        let written = write_report(&report, target, &self.identity, self.previous.as_ref());
        let file = match &written {
            Ok(Written::File(file)) => Some(file.clone()),
            _ => None,
        };
        match written.and_then(Written::finish) {
            Ok(path) => {
                self.messages.push(line(&format!("the report is in {}", path.display())));
                file
            }
            Err(error) => {
                self.failed(&error);
                report.demangle();
                disambiguate(&mut report.functions, &mut Locations::of_process(SystemTime::UNIX_EPOCH));
                self.messages.push(text::render(&report, &on_stderr(self.rows)));
                None
            }
        }
    }
}

/// The selection for standard error: nobody needs thousands of rows on a terminal.
fn on_stderr(rows: Option<usize>) -> View {
    let limit = rows.or(stderr().is_terminal().then_some(text::ROWS_ON_A_TERMINAL));
    View { limit, hint: "fastinst record -o FILE.json keeps all of them", ..View::default() }
}

/// The reason why code cannot be found or patched, if there is one.
pub(super) fn refusal() -> Option<String> {
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

pub(crate) fn notes() -> Vec<String> {
    let mut notes = provider::notes();
    notes.extend(function::details::note().map(str::to_owned));
    notes.extend(clock::note_of_tsc().map(str::to_owned));
    notes.extend(fire::note());
    notes
}

/// Prints a line to the standard error stream of the start. Blocks while its reader does not read.
pub fn say(text: &str) {
    stderr().write(&line(text));
}

/// Whether text is being written to the standard error stream of the start, or a report to a
/// stream.
pub fn is_printing() -> bool {
    stderr().is_writing() || output::is_writing()
}

/// Writes text to the standard error stream of the start. Returns false if the program has closed
/// or replaced that. Blocks while its reader does not read.
pub fn print(text: &str) -> bool {
    stderr().write(text)
}
