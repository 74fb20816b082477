//! Progress of a run: a bar on a terminal, a line for each part elsewhere; and interruption by
//! SIGINT.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::plan::expected_milliseconds;
use crate::survey::Observer;
use crate::trial::{Spec, Trial};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Installs handlers for SIGINT and SIGTERM that set the flag of [`is_interrupted`].
pub(super) fn end_at_signals() {
    let action = SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores to an atomic. If it cannot be installed, the signal ends the
        // program as usual.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

/// Whether one of these signals was delivered.
pub(super) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Shows the progress of a run on standard error.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    ticks_per_millisecond: f64,
    /// Total milliseconds of the parts that have been started.
    begun: u64,
    /// Total milliseconds of the trials that have ended.
    done: u64,
    tears: u64,
}

impl Progress {
    /// For a run of about this duration. SIGINT or SIGTERM ends it after the current trial.
    pub(super) fn new(milliseconds: u64, ticks_per_us: f64) -> Self {
        end_at_signals();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix:14} [{bar:30}] {percent:>3} %, {msg}");
            let bar = ProgressBar::new(milliseconds).with_style(style.expect("a fixed template"));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, ticks_per_millisecond: ticks_per_us * 1e3, begun: 0, done: 0, tears: 0 }
    }

    /// Clears the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Progress {
    fn part(&mut self, name: &'static str, specs: &[Spec]) {
        let milliseconds: u64 =
            specs.iter().map(|spec| expected_milliseconds(spec, self.ticks_per_millisecond)).sum();
        // Parts whose length was not known at the start extend the bar.
        self.begun += milliseconds;
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(name);
                bar.set_length(bar.length().unwrap_or(0).max(self.begun));
            }
            None => {
                let time = HumanDuration(Duration::from_millis(milliseconds));
                super::say(&format!("{name}: {} trials, about {time}", specs.len()));
            }
        }
    }

    fn trial(&mut self, trial: &Trial) -> Result<(), Error> {
        self.done += expected_milliseconds(&trial.spec, self.ticks_per_millisecond);
        self.tears += trial.tears;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            let left = bar.length().unwrap_or(0).saturating_sub(self.done);
            bar.set_message(format!(
                "{} left, {} tears so far",
                HumanDuration(Duration::from_millis(left)),
                self.tears
            ));
        }
        if is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
