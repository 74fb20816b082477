//! Writes the report of a session: everything measured so far, in the format and at the destination
//! of the options.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use fastinst::provider;
use wordpatch::calibration;

use super::Session;
use super::unloaded::MissedCalls;
use crate::error::Error;
use crate::locations::disambiguate;
use crate::measured::Units;
use crate::options::Output;
use crate::output::{Target, write_report};
use crate::report::{Cost, Format, Report, View, text};
use crate::settings::Settings;
use crate::stacks::waiting::Preempted;
use crate::stderr::stderr;
use crate::{clock, fire, function, governor, own_time, stacks, summary, thread};

/// The reason why a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The program ends, or is replaced.
    End,
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
            + fastinst::provider::memory_bytes()
    }

    /// The report of everything measured so far.
    fn report(&mut self) -> Report {
        self.schedule.drain();
        thread::reclaim();
        // Calls in which threads have ended are samples, too.
        self.schedule.drain();
        self.take_early_calls();
        self.add_functions_without_probes();
        let ticks_per_ns = self.clock.ticks_per_ns();
        let duration_ns = self.clock.elapsed().as_nanos() as u64;
        let thread_time = (thread::lived() as f64 / ticks_per_ns).max(duration_ns as f64);
        let units = Units { ticks_per_ns, resolution: fire::resolution(), thread_time };
        self.stacks.finish();
        let times = self.stacks.times(self.waiting(thread_time));
        let bodies = self.bodies();
        let function_at = |address| bodies.function_at(address);
        let missed = MissedCalls::of_unloaded(self.calls_of_unloaded());
        let (mut functions, arcs) =
            summary::of(&self.schedule, &function_at, &units, times.as_ref(), &missed);
        disambiguate(&mut functions, &mut self.locations);
        let spent = self.governor.spent();
        Report {
            version: Report::VERSION,
            run: self.identity.run.to_string(),
            settings: self.settings.in_report(),
            command: self.command.clone(),
            pid: self.identity.pid,
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
                error: spent.error(),
                memory_bytes: self.memory() as u64,
            },
            notes: (notes().into_iter().chain(self.note_of_change()))
                .chain(self.stacks.note().map(str::to_owned))
                .chain(missed.note())
                .chain(calibration::status().warning())
                .collect(),
            functions,
            arcs,
        }
    }

    /// The time for which the program's threads have waited, in nanoseconds, if they have lived for
    /// `thread_time`: they neither ran nor were preempted.
    fn waiting(&self, thread_time: f64) -> f64 {
        let seen = thread::seen();
        let ns = |ticks: u64| ticks as f64 / self.clock.ticks_per_ns();
        let preempted = Preempted {
            ended: ns(seen.preempted_before_end),
            live: ns(seen.preempted - seen.preempted_before_end),
        };
        stacks::waiting::time(thread_time, own_time::processor_time(), preempted, thread::live())
    }

    /// Writes the report in the format and at the destination of the options. If that fails, it is
    /// written to another file.
    pub(super) fn write(&mut self, occasion: Occasion) {
        let begin = governor::of_thread();
        self.write_for(occasion);
        self.governor.reported(begin);
    }

    fn write_for(&mut self, occasion: Occasion) {
        if fastinst::probe_count() == 0 {
            self.write_why_there_is_none();
            return;
        }
        let mut report = self.report();
        if occasion == Occasion::Snapshot {
            report.notes.push("written while the program was running".to_owned());
        }
        if let Output::Stderr | Output::File { format: Format::Text, .. } = &self.output {
            self.make_readable(&mut report);
        }
        let written = match &self.output {
            Output::Stderr => {
                if stderr().write(&text::render(&report, &on_stderr(&self.settings))) {
                    return;
                }
                // The stream was closed or is now another file.
                self.write_file(&report, RESCUE, Format::Text)
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
        if occasion == Occasion::End && !std::mem::replace(&mut self.has_said_notes, true) {
            report.notes.iter().for_each(|note| _ = stderr().write(&format!("fastinst: {note}\n")));
        }
        match written {
            Ok(path) => self.written = Some(path),
            // No file can be created: only the stream is left.
            Err(error) => {
                stderr().write(&format!("fastinst: {error}\n"));
                self.make_readable(&mut report);
                stderr().write(&text::render(&report, &on_stderr(&self.settings)));
            }
        }
    }

    /// Demangles names, for a report that is not to be read by `fastinst report`, which does this.
    fn make_readable(&mut self, report: &mut Report) {
        report.demangle();
        disambiguate(&mut report.functions, &mut self.locations);
    }

    /// Writes why there is no report, in one line, in the process that the user started, unless its
    /// children may have had something to report.
    fn write_why_there_is_none(&self) {
        if !SPEAKS_FOR_THE_RUN.load(Ordering::Relaxed) || crate::children::were_made() {
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

    fn write_file(&self, report: &Report, template: &str, format: Format) -> Result<PathBuf, Error> {
        let target = Target { template, format, merge: self.merge };
        write_report(report, target, &self.identity, self.written.as_deref())
    }
}

/// The selection for standard error: nobody needs thousands of rows on a terminal.
fn on_stderr(settings: &Settings) -> View {
    let is_terminal = std::io::stderr().is_terminal();
    let limit = settings.rows.or(is_terminal.then_some(text::ROWS_ON_A_TERMINAL));
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
    if !clock::tsc_is_invariant() {
        notes.push(
            "the TSC of this machine is not invariant: latencies may be off while its frequency changes"
                .into(),
        );
    }
    notes
}

/// Prints a line to the standard error stream of the start. Blocks while its reader does not read.
pub fn say(line: &str) {
    stderr().write(&format!("fastinst: {line}\n"));
}

/// Whether text is being written to the standard error stream of the start.
pub fn is_printing() -> bool {
    stderr().is_writing()
}

/// Writes text to the standard error stream of the start. Returns false if the program has closed
/// or replaced that. Blocks while its reader does not read.
pub fn print(text: &str) -> bool {
    stderr().write(text)
}
