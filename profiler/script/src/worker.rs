//! The thread that executes the rules.
//!
//! It acquires no lock of the loader or of the program: a thread of the program may hold them while
//! it waits for room in its ring. Operations for which the C library needs such locks, such as the
//! `malloc` by which the engine determines the size of the thread's stack, are done before the
//! program runs. The worker blocks all signals, so that handlers of the program never run on it. At
//! a fork it is between two rounds, and the child starts its own worker.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fastinst::internal;
use fastinst_sigsafe::futex;
use profiler::session;
use wasm_jit::printable;
use wasm_jit_whamm::native::NativeMonitor;
use wordpatch::tsc;

use crate::observer::{self, Concluded};
use crate::output::Unwritten;
use crate::{control, process, ring, switch};

/// The time between two rounds, if no thread requests one earlier.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// The time between two searches for threads that have ended.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);

/// The maximum time for which a process that ends waits for its report while the worker does
/// nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum time for which [`start`] waits for the thread. It is used up only if the C library
/// does not let a new thread run before the caller's constructor has returned.
const UNTIL_IT_RUNS: Duration = Duration::from_secs(1);

/// The numbers of reports that were requested and written.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// The clock of the processor time of the thread.
static CLOCK: AtomicI32 = AtomicI32::new(0);

/// The name of the report's file as the user has given it, if it is not printed.
static OUTPUT: OnceLock<Option<String>> = OnceLock::new();

/// Sets the name of the report's file.
pub(crate) fn set_output(output: Option<&str>) {
    OUTPUT.get_or_init(|| output.map(str::to_owned));
}

/// Starts the thread, and waits until it is ready.
///
/// # Errors
/// A line for the user, if the thread cannot be started.
pub(crate) fn start() -> Result<(), String> {
    let seen = ring::NEWS.load(Ordering::Acquire);
    let is_ready = Arc::new(AtomicU32::new(0));
    let ready = Arc::clone(&is_ready);
    let spawned = wordpatch::internal::with_signals_blocked(|| {
        std::thread::Builder::new().name("fastinst-script".into()).spawn(move || {
            NativeMonitor::prepare_thread();
            CLOCK.store(clock_of_thread(), Ordering::Relaxed);
            ready.store(1, Ordering::Release);
            futex::wake(&ready);
            run(seen);
        })
    });
    spawned.map(drop).map_err(|error| format!("the thread of the script cannot be started: {error}"))?;
    let deadline = Instant::now() + UNTIL_IT_RUNS;
    while is_ready.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
        futex::wait(&is_ready, 0, deadline);
    }
    Ok(())
}

/// The clock of the processor time of the calling thread.
fn clock_of_thread() -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: the thread exists, and `clock` can be written.
    match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } {
        0 => clock,
        _ => libc::CLOCK_PROCESS_CPUTIME_ID,
    }
}

fn run(mut seen: u32) {
    let (mut last_reclaim, mut last_check) = (Instant::now(), Instant::now());
    loop {
        futex::wait(&ring::NEWS, seen, Instant::now() + PERIOD);
        seen = ring::NEWS.load(Ordering::Acquire);
        let requested = REQUESTED.load(Ordering::Acquire);
        if requested != DONE.load(Ordering::Relaxed) {
            report();
            DONE.store(requested, Ordering::Release);
            futex::wake(&DONE);
            continue;
        }
        if switch::take_request() {
            let early = observer::early_calls();
            let mut unwritten = Unwritten::default();
            if let Some(observer) = observer::lock().as_mut() {
                observer.add_early_calls(&early);
                unwritten = observer.toggle();
            }
            unwritten.write();
        }
        let mut observer = observer::lock();
        let mut failed = Vec::new();
        if let Some(observer) = observer.as_mut() {
            observer.unshare_text();
            observer.drain(false);
            failed = observer.detach_failed();
            if last_reclaim.elapsed() >= RECLAIM_EVERY {
                last_reclaim = Instant::now();
                observer.reclaim();
            }
        }
        drop(observer);
        failed.iter().for_each(Concluded::send);
        if last_check.elapsed() >= PERIOD {
            last_check = Instant::now();
            switch::check();
            if is_last_of_program() {
                process::without_thread();
                report();
                return;
            }
        }
    }
}

/// Whether `main` has ended by `pthread_exit` and only threads of this library remain: the worker,
/// those of the service, and those for clients. They must not keep the process alive.
fn is_last_of_program() -> bool {
    internal::only_these_remain(1 + internal::own_thread_count() + control::threads())
}

fn report() {
    let early = observer::early_calls();
    let (mut concluded, mut unwritten) = (Vec::new(), Unwritten::default());
    let mut observer = observer::lock();
    if let Some(observer) = observer.as_mut() {
        observer.drain(!ring::is_observing());
        observer.add_early_calls(&early);
        unwritten = observer.write();
        let reason = if process::is_over() { "the process has ended" } else { "the process calls exec" };
        concluded = observer.detach_all(reason);
    }
    drop(observer);
    unwritten.write();
    concluded.iter().for_each(Concluded::send);
}

/// Requests the report from the thread, and waits for it as long as the thread works on it, or the
/// reader of the report blocks it.
pub(crate) fn finish() {
    let wanted = REQUESTED.fetch_add(1, Ordering::AcqRel) + 1;
    ring::wake_worker();
    let mut progress = Progress::default();
    if wait(&DONE, wanted, PATIENCE, || progress.is_made()) {
        return;
    }
    let file = OUTPUT.get().and_then(Option::as_ref);
    let file = file.map_or(String::new(), |file| format!("; {} is not complete", printable(file)));
    session::say(&format!(
        "there is no report of the script, or not all of it: it was blocked for 10 s{file}"
    ));
}

/// Waits until the number that is `wanted` is done. False if it is not when nothing has progressed
/// for a time.
fn wait(done: &AtomicU32, wanted: u32, patience: Duration, mut progresses: impl FnMut() -> bool) -> bool {
    let mut deadline = Instant::now() + patience;
    loop {
        let number = done.load(Ordering::Acquire);
        if number.wrapping_sub(wanted) < u32::MAX / 2 {
            return true;
        }
        if Instant::now() < deadline {
            futex::wait(done, number, deadline);
        } else if progresses() {
            deadline = Instant::now() + patience;
        } else {
            return false;
        }
    }
}

/// The progress of the worker: the processor time that it takes. Rules have a limit, and the report
/// an end, so this is finite.
#[derive(Debug, Default)]
struct Progress {
    last: Option<(libc::time_t, libc::c_long)>,
}

impl Progress {
    /// Whether there was any since the last call.
    fn is_made(&mut self) -> bool {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` can be written. If the thread has ended, its clock does not exist.
        let result = unsafe { libc::clock_gettime(CLOCK.load(Ordering::Relaxed), &mut time) };
        let now = (result == 0).then_some((time.tv_sec, time.tv_nsec));
        session::is_printing() || now.is_some() && std::mem::replace(&mut self.last, now) != now
    }
}

/// In a forked child: discards the parent's requests.
pub(crate) fn forget_requests() {
    DONE.store(REQUESTED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Converts time stamps to nanoseconds. The rate is measured once, when it is first needed, over at
/// least [`Clock::MEASURED`]: the counter advances evenly.
#[derive(Debug)]
pub(crate) struct Clock {
    ticks: u64,
    instant: Instant,
    nanoseconds_per_tick: Option<f64>,
}

impl Clock {
    /// An error of a microsecond in one of the two readings is then 1 in 10,000.
    const MEASURED: Duration = Duration::from_millis(10);

    pub(crate) fn start() -> Self {
        let (ticks, instant) = Self::read();
        Self { ticks, instant, nanoseconds_per_tick: None }
    }

    /// Reads both clocks: the least disturbed of several attempts.
    fn read() -> (u64, Instant) {
        let read = || {
            let before = tsc::now();
            let instant = Instant::now();
            let width = tsc::now().wrapping_sub(before);
            (width, before.wrapping_add(width / 2), instant)
        };
        let (_, ticks, instant) = (0..8).map(|_| read()).min_by_key(|read| read.0).expect("eight attempts");
        (ticks, instant)
    }

    fn rate(&mut self) -> f64 {
        if let Some(rate) = self.nanoseconds_per_tick {
            return rate;
        }
        while self.instant.elapsed() < Self::MEASURED {
            std::thread::sleep(Self::MEASURED.saturating_sub(self.instant.elapsed()));
        }
        let (ticks, instant) = Self::read();
        let nanoseconds = instant.duration_since(self.instant).as_nanos() as f64;
        let rate = nanoseconds / ticks.wrapping_sub(self.ticks).max(1) as f64;
        self.nanoseconds_per_tick = Some(rate);
        rate
    }

    /// Converts a number of ticks to nanoseconds.
    pub(crate) fn nanoseconds(&mut self, ticks: u64) -> u64 {
        (ticks as f64 * self.rate()) as u64
    }

    /// The number of ticks for a time: slightly less, so that they never take longer.
    pub(crate) fn ticks(&mut self, nanoseconds: u64) -> u64 {
        // Rounding, here and in `nanoseconds`, is less than two ticks.
        ((nanoseconds as f64 / self.rate()) as u64).saturating_sub(2)
    }

    /// The time from one time stamp to another; 0 if the second is earlier.
    pub(crate) fn nanoseconds_between(&mut self, from: u64, to: u64) -> u64 {
        let since = to.wrapping_sub(from);
        if since.cast_signed() < 0 { 0 } else { self.nanoseconds(since) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_report_is_awaited_while_the_worker_works() {
        let (done, mut looks) = (AtomicU32::new(0), 0);
        let works = || {
            looks += 1;
            if looks == 3 {
                done.store(1, Ordering::Release);
            }
            true
        };
        assert!(wait(&done, 1, Duration::ZERO, works));
        assert_eq!(looks, 3);
        assert!(!wait(&done, 2, Duration::ZERO, || false));
    }

    #[test]
    fn processor_time_is_progress() {
        CLOCK.store(clock_of_thread(), Ordering::Relaxed);
        let mut progress = Progress::default();
        assert!(progress.is_made() && progress.is_made(), "the call itself takes time");
        CLOCK.store(libc::c_int::MIN + 6, Ordering::Relaxed);
        assert!(!progress.is_made(), "there is no such thread");
    }
}
