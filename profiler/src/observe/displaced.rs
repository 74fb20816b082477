//! Whether the program has a processor at the moment, while the service thread has one.
//!
//! On a busy machine, the service thread may take the program's processor when it wakes up. A
//! window that is opened then begins right after a context switch, when the program refills the
//! caches and makes few calls: measured with two competitors on two processors, windows of a few
//! microseconds found a fifth of the calls. The service thread therefore moves to another
//! processor, and windows are opened only while the program runs.
//!
//! A program whose threads all wait is not displaced.

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use wordpatch::tsc;

use crate::observe::{governor, task_stat, thread};

/// The time after which a running program is recognized by its processor time, in nanoseconds.
const LOOK: f64 = 2e3;

/// The time for which the program runs, after the service thread has left its processor, before a
/// window is opened, in nanoseconds.
const WARM_UP: f64 = 20e3;

/// Programs with more threads are not examined, which takes about 10 us for each thread that does
/// not run.
const MAX_THREADS: usize = 8;

/// Whether threads that execute probes are ready to run, and none of them has a processor. Takes a
/// few microseconds if one has a processor, otherwise some tens of microseconds, and moves the
/// service thread to another processor if that helps. Called by the service thread.
pub(crate) fn is_program_displaced() -> bool {
    if !is_known() || runs_within(LOOK) {
        return false;
    }
    let threads = thread::live();
    let ready: Vec<usize> = threads.filter_map(processor_if_ready).collect();
    if let [processor] = ready[..] {
        leave(processor);
    }
    let is_waiting = ready.is_empty();
    !(is_waiting || runs_within(WARM_UP) && runs_within(LOOK))
}

/// Whether the program, which was displaced a moment ago, still is, and does not wait by now. Takes
/// a few microseconds.
pub(crate) fn is_still_displaced() -> bool {
    is_known() && !runs_within(LOOK)
}

/// Whether displacement is examined at all.
fn is_known() -> bool {
    has_processors() && thread::live().count() <= MAX_THREADS
}

/// Whether the program can run while the service thread does.
pub(crate) fn has_processors() -> bool {
    processors().is_some()
}

/// Waits for this time. Returns whether the program ran for at least half of it.
fn runs_within(nanoseconds: f64) -> bool {
    let before = thread::processor_time();
    spin(nanoseconds);
    thread::processor_time() - before > nanoseconds / 2.0
}

/// Waits actively.
pub(crate) fn spin(nanoseconds: f64) {
    let end = tsc::now() + (nanoseconds * governor::ticks_per_ns()) as u64;
    while tsc::now() < end {
        std::hint::spin_loop();
    }
}

/// The processors that the service thread was allowed to use when it first asked, if there are
/// several.
fn processors() -> Option<&'static CpuSet> {
    static PROCESSORS: OnceLock<Option<CpuSet>> = OnceLock::new();
    let several = |processors: &CpuSet| number(processors) > 1;
    PROCESSORS.get_or_init(|| sched_getaffinity(Pid::from_raw(0)).ok().filter(several)).as_ref()
}

/// The number of these processors; 1 if it is not known.
pub(crate) fn number_of_processors() -> usize {
    processors().map_or(1, number)
}

fn number(processors: &CpuSet) -> usize {
    (0..CpuSet::count()).filter(|processor| processors.is_set(*processor).unwrap_or(false)).count()
}

/// The processor of a thread that is running or ready to run (proc_pid_stat(5), fields 3 and 39).
fn processor_if_ready(thread: u32) -> Option<usize> {
    let stat = task_stat::read(thread).ok()?;
    let mut fields = task_stat::fields(&stat)?;
    let is_ready = fields.next()? == "R";
    let processor = fields.nth(35)?.parse().ok()?;
    is_ready.then_some(processor)
}

/// Moves the service thread to another processor, if it is on this one.
fn leave(processor: usize) {
    let Some(mut others) = processors().copied() else { return };
    if sched_getcpu() == Ok(processor) && others.unset(processor).is_ok() {
        // If the system refuses, windows wait until the program runs.
        let _ = sched_setaffinity(Pid::from_raw(0), &others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_ready_on_its_processor() {
        // The thread may migrate between the two.
        let found = (0..100).any(|_| {
            let own = nix::unistd::gettid().as_raw() as u32;
            processor_if_ready(own).is_some_and(|processor| sched_getcpu() == Ok(processor))
        });
        assert!(found);
    }

    #[test]
    fn a_thread_that_waits_is_not_ready() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (send_id, receive_id) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            send_id.send(nix::unistd::gettid().as_raw() as u32).expect("the test waits");
            receive.recv().expect("the test sends");
        });
        let id = receive_id.recv().expect("the thread sends");
        while processor_if_ready(id).is_some() {
            std::thread::yield_now();
        }
        send.send(()).expect("the thread waits");
        thread.join().expect("it ends");
        // The kernel reports the end to `join` shortly before the thread is gone.
        while processor_if_ready(id).is_some() {
            std::thread::yield_now();
        }
    }
}
