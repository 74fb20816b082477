//! Whether the program has a processor at this moment, while the service thread has one.
//!
//! On a busy machine the service thread, when it wakes up, may take the processor from the program.
//! A window that opens then lies right after a context switch: in the microseconds in which the
//! program fills the caches again and makes few calls. Therefore the service thread leaves the
//! processor of a displaced program, and windows wait until the program runs.
//!
//! A program that waits is not displaced: what it would call is not known to be anything.

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use wordpatch::tsc;

use crate::{governor, thread};

/// Time in which a running program is seen to run, in nanoseconds.
const LOOK: f64 = 2e3;

/// Time after which a program that the service thread has made room for runs with full caches, in
/// nanoseconds.
const WARM_UP: f64 = 20e3;

/// Whether some thread is ready to run, and none that executes probes has a processor. Takes some
/// microseconds, and more if the service thread moves to another processor. For the service thread.
pub(crate) fn is_program_displaced() -> bool {
    if !has_processors() || runs_within(LOOK) {
        return false;
    }
    let threads = thread::live();
    let ready: Vec<usize> = threads.filter_map(processor_if_ready).collect();
    if let [processor] = ready[..] {
        leave(processor);
    }
    !ready.is_empty() && !(runs_within(WARM_UP) && runs_within(LOOK))
}

/// Whether the program can run while the service thread does.
pub(crate) fn has_processors() -> bool {
    processors().is_some_and(|processors| count(processors) > 1)
}

/// Whether the program takes at least half of this time.
fn runs_within(nanoseconds: f64) -> bool {
    let before = thread::processor_time();
    spin(nanoseconds);
    thread::processor_time() - before > nanoseconds / 2.0
}

pub(crate) fn spin(nanoseconds: f64) {
    let end = tsc::now() + (nanoseconds * governor::ticks_per_ns()) as u64;
    while tsc::now() < end {
        std::hint::spin_loop();
    }
}

/// The processors that the service thread may use, as it was started.
fn processors() -> Option<&'static CpuSet> {
    static PROCESSORS: OnceLock<Option<CpuSet>> = OnceLock::new();
    PROCESSORS.get_or_init(|| sched_getaffinity(Pid::from_raw(0)).ok()).as_ref()
}

fn count(processors: &CpuSet) -> usize {
    (0..CpuSet::count()).filter(|processor| processors.is_set(*processor).unwrap_or(false)).count()
}

/// The processor of a thread that is ready to run or runs (proc_pid_stat(5), fields 3 and 39).
fn processor_if_ready(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The second field is the name, which may contain anything.
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let is_ready = fields.next()? == "R";
    let processor = fields.nth(35)?.parse().ok()?;
    is_ready.then_some(processor)
}

/// Moves the service thread to another processor, if this is its own.
fn leave(processor: usize) {
    let Some(mut others) = processors().copied() else { return };
    if sched_getcpu() == Ok(processor) && others.unset(processor).is_ok() {
        // If the system refuses, the program waits a little longer.
        let _ = sched_setaffinity(Pid::from_raw(0), &others);
    }
}
