//! Changes of the settings while the program runs.
//!
//! 1. [`reconfigure`] swaps the pointer to the next settings, wakes the service thread, and waits.
//! 2. At the beginning of its tick, the service thread takes the pointer, and replaces the
//!    session's settings by these. It is the only thread that does so, because its processor time
//!    counts as cost of profiling, and a fork waits until it is between two ticks.
//! 3. It changes the budget, ends the observations of functions that are no longer selected
//!    (keeping their results), creates functions for probes that are selected now, and begins to
//!    observe these.
//!
//! Probes do not read the settings. A function that is not measured has its probes off, and the
//! intensity was already in separate variables ([`crate::observe::governor::intensity`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastinst::service;
use fastinst_sigsafe::futex;

use super::probes::all_probes;
use super::{OVER, Session, is_running, with_session};
use crate::error::Error;
use crate::observe::function::Function;
use crate::observe::measured::{Measured, Selection};
use crate::observe::probe_type::ProbeType;
use crate::options::Counts;
use crate::settings::Settings;

/// Settings that the service thread has not taken yet, or null. The pointer owns them.
static NEXT: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());

/// Numbers of settings that were passed to [`reconfigure`], and that are in force.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
static APPLIED: AtomicU32 = AtomicU32::new(0);

/// Maximum time for which [`reconfigure`] waits for the service thread.
const PATIENCE: Duration = Duration::from_secs(10);

/// A change of the settings, for the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// The number of changes so far.
    pub(super) number: u32,
    /// The time of the last change since the start of the session.
    pub(super) after: Duration,
}

/// Replaces the settings in force. The environment is not changed: programs that this process
/// starts later have the settings of the start, forked children have the new ones.
///
/// * The budget applies to strata that begin from now on. If the former budget was very small, the
///   strata in progress may last for many seconds. A deficit from before is compensated, a surplus
///   is forfeited.
/// * With [`Counts::Exact`], every call is counted from now on; with [`Counts::Sampled`], functions
///   that are called often are sampled again.
/// * When this function returns, the entry probes of functions that the filter excludes are off;
///   their exit probes are off once all observed calls have returned. The report contains the
///   measurements of these functions, with a note. Functions that the filter newly includes are
///   observed from now on; the others are not interrupted.
///
/// Blocks until the service thread has applied the settings: usually less than a millisecond, and
/// about 2 us for each function if the filter changes; 10 s at most. Other threads of the program
/// are not stopped. If several threads call it at the same time, one of their settings is in force
/// afterwards. Must not be called from signal handlers, nor on the service thread, on which
/// callbacks for probes may run.
///
/// # Errors
/// [`Error::BadValue`] if the budget is not above 0 and at most 1, [`Error::NotRunning`] without
/// [`start`](super::start), [`Error::NotReconfigured`] if the service thread did not answer.
///
/// # Example
/// ```no_run
/// use profiler::filter::{Filter, Patterns};
/// use profiler::session::reconfigure;
/// use profiler::settings::Settings;
///
/// let filter = Filter { skip: Patterns::parse("skip", "hash_*")?, ..Filter::default() };
/// reconfigure(Settings { filter, ..Settings::default() })?;
/// # Ok::<(), profiler::error::Error>(())
/// ```
pub fn reconfigure(settings: Settings) -> Result<(), Error> {
    settings.check()?;
    if !is_running() {
        return Err(Error::NotRunning);
    }
    drop(swap(Some(Box::new(settings))));
    // Release: a thread that sees the number also sees these settings, or newer ones.
    let wanted = REQUESTED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    service::notify();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let applied = APPLIED.load(Ordering::Acquire);
        if applied.wrapping_sub(wanted) < u32::MAX / 2 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::NotReconfigured { seconds: PATIENCE.as_secs() });
        }
        futex::wait(&APPLIED, applied, deadline);
    }
}

/// The settings in force: those of the start, or of the last applied [`reconfigure`]. `None`
/// without [`start`](super::start).
///
/// Blocks while the service thread is working, usually for less than a millisecond, or making a
/// report. Must not be called from signal handlers or probe functions.
pub fn settings() -> Option<Settings> {
    with_session(|session| session.settings.clone())
}

/// Replaces the next settings, and returns those that were not taken.
fn swap(next: Option<Box<Settings>>) -> Option<Box<Settings>> {
    let previous = NEXT.swap(next.map_or(std::ptr::null_mut(), Box::into_raw), Ordering::AcqRel);
    // SAFETY: every pointer that is not null was made by `into_raw`, and each is returned by one
    // swap only.
    (!previous.is_null()).then(|| unsafe { Box::from_raw(previous) })
}

impl Session {
    /// Applies new settings, if there are any. Called by the service thread.
    pub(super) fn take_new_settings(&mut self) {
        let requested = REQUESTED.load(Ordering::Acquire);
        if requested == APPLIED.load(Ordering::Relaxed) {
            return;
        }
        if let Some(settings) = swap(None) {
            self.apply(*settings);
        }
        APPLIED.store(requested, Ordering::Release);
        futex::wake(&APPLIED);
    }

    fn apply(&mut self, settings: Settings) {
        let before = std::mem::replace(&mut self.settings, settings);
        let number = self.change.map_or(0, |change| change.number) + 1;
        self.change = Some(Change { number, after: self.clock.elapsed() });
        let counts = self.settings.counts_in_force();
        if before.budget != self.settings.budget || before.counts_in_force() != counts {
            let budget = self.settings.budget.fraction();
            self.governor.change(budget, counts == Counts::Exact, self.schedule.demand());
        }
        if OVER.load(Ordering::Relaxed) {
            return;
        }
        self.schedule.take_all();
        if before.filter != self.settings.filter {
            self.select();
        }
        if before.counts_in_force() != counts {
            self.schedule.begin_again(counts);
        }
    }

    /// Applies the filter to all known functions and probes.
    fn select(&mut self) {
        let known = self.schedule.functions.len();
        let mut again = Vec::new();
        for index in 1..known as u32 {
            let measured = &self.schedule.functions[index as usize];
            let (selection, address) = (measured.selection, measured.address);
            match (selection, self.wants(measured.name(), measured.object(), address)) {
                (Selection::Always | Selection::Partly, false) => self.schedule.exclude(index),
                (Selection::Excluded, true) => again.push(index),
                (Selection::Always | Selection::Partly, true) | (Selection::Excluded, false) => {}
            }
        }
        self.schedule.forget_what_is_not_due();
        self.take_early_calls();
        let mut wanted: HashMap<usize, bool> = HashMap::new();
        for id in all_probes() {
            if Function::of_probe(id).is_some() {
                continue;
            }
            let Some(probe) = fastinst::lasting_metadata(id) else { continue };
            let Some(kind) = ProbeType::of(probe.kind) else { continue };
            let offset = probe.function_address.wrapping_sub(probe.object_base);
            let is_wanted = *wanted
                .entry(probe.function_address)
                .or_insert_with(|| self.wants(probe.function_name, probe.object_path, offset));
            if is_wanted
                && let Some(index) = self.adopt(&probe, kind)
                && index as usize >= known
            {
                self.schedule.functions[index as usize].selection = Selection::Partly;
                // They were not selected.
                self.early_calls.remove(&probe.function_address);
            }
        }
        // They have all their probes now.
        again.into_iter().for_each(|index| self.schedule.include(index));
    }

    /// The note in the report about changes of the settings.
    pub(super) fn note_of_change(&self) -> Option<String> {
        let Change { number, after } = self.change?;
        let items = self.settings.to_items();
        let settings = if items.is_empty() { "the defaults".to_owned() } else { items.join(":") };
        let times = if number == 1 { String::new() } else { format!(" {number} times, last") };
        let partly = |measured: &Measured| measured.selection != Selection::Always;
        let functions = self.schedule.functions.iter().filter(|measured| partly(measured)).count();
        let part = match functions {
            0 => String::new(),
            _ => {
                format!("; the figures of {functions} functions cover only the time while they were selected")
            }
        };
        Some(format!(
            "the settings were changed{times} after {:.3}s, to {settings}{part}",
            after.as_secs_f64()
        ))
    }
}
