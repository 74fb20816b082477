//! The last report, requested by threads that end the process, and written by the service thread.
//!
//! Several threads may end the process at the same time: by fatal signals, or by calls to `exit`.
//! Each of them requests the report and waits for it, because the first one that continues ends the
//! process. The service thread writes one report for all of them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastinst::service;
use fastinst_sigsafe::futex;

use super::OVER;
use super::write::is_printing;
use crate::output;
use crate::stderr::stderr;

/// Numbers of reports that were requested and written.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// Set when the last report has been written.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Maximum time for which an exiting process waits for its report.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reason why the report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The process exits voluntarily.
    Exit,
    /// The process calls exec, which may fail.
    Exec,
    /// A fatal signal was delivered to the calling thread, which is in its handler.
    Signal,
}

/// Requests the report from the service thread, and waits for it for at most 10 s. A process that
/// exits waits longer while the reader of its report (a pager, for example) blocks the write, as it
/// would for its own output. Every process waits longer while others merge their reports before its
/// own. Returns immediately if the last report has been written.
///
/// The service thread writes it, because the caller may be a signal handler: it does not allocate,
/// and holds no lock. The service thread in turn uses neither the program's allocator nor its
/// streams.
pub fn finish(leaving: Leaving) {
    if CLOSED.load(Ordering::Acquire) {
        return;
    }
    if leaving != Leaving::Exec {
        OVER.store(true, Ordering::Release);
    }
    let wanted = REQUESTED.fetch_add(1, Ordering::AcqRel) + 1;
    service::notify();
    let mut deadline = Instant::now() + PATIENCE;
    let mut merged = output::merged_by_others();
    loop {
        let done = DONE.load(Ordering::Acquire);
        if done.wrapping_sub(wanted) < u32::MAX / 2 {
            return;
        }
        if Instant::now() < deadline {
            futex::wait(&DONE, done, deadline);
        } else if leaving == Leaving::Exit && is_printing() || merged != output::merged_by_others() {
            merged = output::merged_by_others();
            deadline = Instant::now() + PATIENCE;
        } else {
            stderr().write_now(
                b"fastinst: there is no report, or not all of it: it took more than 10 s to write\n",
            );
            return;
        }
    }
}

/// The number of the newest request, if its report has not been written.
pub(super) fn requested() -> Option<u32> {
    let requested = REQUESTED.load(Ordering::Acquire);
    (requested != DONE.load(Ordering::Relaxed)).then_some(requested)
}

/// Records that the last report has been written.
pub(super) fn close() {
    CLOSED.store(true, Ordering::Release);
}

/// Whether the last report has been written.
pub(super) fn is_closed() -> bool {
    CLOSED.load(Ordering::Acquire)
}

/// Records that all reports up to the one with this number have been written.
pub(super) fn done(number: u32) {
    DONE.store(number, Ordering::Release);
    futex::wake(&DONE);
}

/// Discards the parent's requests, in a forked child.
pub(super) fn forget_requests() {
    DONE.store(REQUESTED.load(Ordering::Relaxed), Ordering::Relaxed);
    CLOSED.store(false, Ordering::Relaxed);
}
