//! Reports while the program runs: at a signal, or at an interval.
//!
//! A server does not end, so its report at the end is of little use. The service thread writes
//! these reports as it writes the last one: complete, about everything since the start, at the same
//! destination, where each replaces the one before. The program does not wait for them, except that
//! a fork waits while a report is being made, but not until a reader has read it.
//!
//! A signal is handled by one of the program's threads. Most system calls are restarted, but not
//! those that never are, like `nanosleep` or `epoll_wait` (signal(7)): these fail with `EINTR`, as
//! with any signal that has a handler. An interval disturbs nothing.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use fastinst::service;
use nix::sys::signal::Signal;

use crate::error::Error;

/// When reports are written while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// When the process gets this signal: one of [`Snapshot::SIGNALS`].
    Signal(Signal),
    /// At this interval.
    Every(Duration),
}

impl Snapshot {
    /// The permitted signals: those that programs are sent on purpose.
    pub const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
}

/// The units of intervals, in seconds, the largest first.
const UNITS: [(char, u64); 3] = [('h', 3600), ('m', 60), ('s', 1)];

/// The name of a signal without `SIG`.
fn short(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

impl Display for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Snapshot::Signal(signal) => formatter.write_str(short(*signal)),
            Snapshot::Every(interval) => write!(formatter, "{}s", interval.as_secs()),
        }
    }
}

impl FromStr for Snapshot {
    type Err = Error;

    /// A signal such as `USR1` or `SIGUSR1`, or an interval such as `30s`, `5m` or `1h`.
    fn from_str(value: &str) -> Result<Snapshot, Error> {
        let name = value.strip_prefix("SIG").unwrap_or(value);
        if let Some(signal) = Snapshot::SIGNALS.into_iter().find(|signal| short(*signal) == name) {
            return Ok(Snapshot::Signal(signal));
        }
        let interval = UNITS.into_iter().find_map(|(unit, seconds)| {
            let number: u64 = value.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(seconds)
        });
        // At most 31 days, so that it can be added to an `Instant`.
        match interval.filter(|seconds| (1..=31 * 24 * 3600).contains(seconds)) {
            Some(seconds) => Ok(Snapshot::Every(Duration::from_secs(seconds))),
            None => Err(Error::BadValue {
                key: "snapshot",
                value: value.to_owned(),
                allowed: "a signal (USR1, USR2, HUP or QUIT) or an interval such as 30s, 5m or 1h".to_owned(),
            }),
        }
    }
}

/// Whether a signal has requested a report that has not been begun.
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);

/// The signal that requests reports; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Requests a report, and does not wait for it. Async-signal-safe.
pub(crate) fn request() {
    IS_REQUESTED.store(true, Ordering::Release);
    service::notify();
}

/// Whether this signal requests a report. Async-signal-safe.
pub(crate) fn is_requested_by(signal: libc::c_int) -> bool {
    signal != 0 && SIGNAL.load(Ordering::Relaxed) == signal
}

/// Tells whether the action of a signal is the profiler's.
static HAS_OUR_ACTION: OnceLock<fn(libc::c_int) -> bool> = OnceLock::new();

/// Signals are handled from now on, by whoever can tell this.
pub(crate) fn are_handled(has_our_action: fn(libc::c_int) -> bool) {
    // The first one stays.
    let _ = HAS_OUR_ACTION.set(has_our_action);
}

/// Why the signal writes no report, if another handler has its place.
pub(crate) fn note() -> Option<String> {
    let signal = Signal::try_from(SIGNAL.load(Ordering::Relaxed)).ok()?;
    let (name, is_ours) = (short(signal), HAS_OUR_ACTION.get()?);
    (!is_ours(signal as libc::c_int)).then(|| {
        format!(
            "SIG{name} writes no report (snapshot={name}): the program handles or ignores it; use another signal or an interval"
        )
    })
}

/// The snapshots of a session.
#[derive(Debug)]
pub(crate) struct Snapshots {
    every: Option<Duration>,
    /// When the next one is due.
    next: Option<Instant>,
}

impl Snapshots {
    /// From now on, reports are due as the options say.
    pub(crate) fn begin(wanted: Option<Snapshot>) -> Self {
        let every = match wanted {
            Some(Snapshot::Signal(signal)) => {
                SIGNAL.store(signal as libc::c_int, Ordering::Relaxed);
                None
            }
            Some(Snapshot::Every(interval)) => Some(interval),
            None => None,
        };
        let mut snapshots = Self { every, next: None };
        snapshots.restart();
        snapshots
    }

    /// Begins again, in a forked child.
    pub(crate) fn restart(&mut self) {
        IS_REQUESTED.store(false, Ordering::Relaxed);
        self.next = self.every.map(|interval| Instant::now() + interval);
    }

    /// Whether a report is due; if so, the next one is due later.
    pub(crate) fn take_due(&mut self) -> bool {
        let is_late = self.next.is_some_and(|next| next <= Instant::now());
        if is_late {
            self.next = self.every.map(|interval| Instant::now() + interval);
        }
        IS_REQUESTED.swap(false, Ordering::Acquire) || is_late
    }

    /// The time for which the service thread sleeps, if no report is due earlier.
    pub(crate) fn until_next(&self, pause: Duration) -> Duration {
        self.next.map_or(pause, |next| pause.min(next.saturating_duration_since(Instant::now())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_and_intervals_have_names() {
        let check = |text: &str, expected: Snapshot, written: &str| {
            let parsed: Snapshot = text.parse().expect("valid");
            assert_eq!((parsed, parsed.to_string().as_str()), (expected, written));
            assert_eq!(written.parse::<Snapshot>().expect("valid"), expected);
        };
        check("USR1", Snapshot::Signal(Signal::SIGUSR1), "USR1");
        check("SIGQUIT", Snapshot::Signal(Signal::SIGQUIT), "QUIT");
        check("30s", Snapshot::Every(Duration::from_secs(30)), "30s");
        check("5m", Snapshot::Every(Duration::from_secs(300)), "300s");
        check("1h", Snapshot::Every(Duration::from_secs(3600)), "3600s");
        for wrong in ["", "KILL", "SEGV", "0s", "-1s", "1.5s", "30", "s", "99999999999999999999s", "800h"] {
            let error = wrong.parse::<Snapshot>().expect_err(wrong).to_string();
            assert!(error.starts_with(&format!("snapshot={wrong}: expected a signal")), "{error}");
        }
    }

    #[test]
    fn a_report_is_due_once_for_a_request_and_once_in_an_interval() {
        let mut at_signal = Snapshots::begin(Some(Snapshot::Signal(Signal::SIGUSR2)));
        assert!(is_requested_by(libc::SIGUSR2) && !is_requested_by(libc::SIGUSR1));
        assert!(!at_signal.take_due());
        request();
        request();
        assert_eq!([at_signal.take_due(), at_signal.take_due()], [true, false]);
        let mut at_interval = Snapshots::begin(Some(Snapshot::Every(Duration::from_secs(60))));
        let pause = Duration::from_millis(50);
        assert!(!at_interval.take_due() && at_interval.until_next(pause) == pause);
        at_interval.next = Some(Instant::now());
        assert!(at_interval.until_next(pause).is_zero());
        assert_eq!([at_interval.take_due(), at_interval.take_due()], [true, false]);
        assert!(at_interval.until_next(Duration::MAX) > Duration::from_secs(50));
    }
}
