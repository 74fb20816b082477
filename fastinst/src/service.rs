//! The service thread: has the [providers](provider) discover what comes later, and gives a
//! tool a regular tick.
//!
//! It blocks every signal, so that the program's handlers never run on it; all but that of a locked
//! site, which it may itself run through. At a fork it is between two rounds of work (see
//! [`before_fork`]), so a child inherits no lock of its; the child starts its own.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastinst_sigsafe::futex::{wait, wake};

use crate::discovery::Discovery;
use crate::error::Error;
use crate::group;
use crate::provider;
use crate::registry::probe_count;

/// Counts the notifications; what the thread sleeps on.
static NEWS: AtomicU32 = AtomicU32::new(0);

/// How often the thread looks whether it is alone, and for libraries that came and went where
/// nothing else wakes it.
const IDLE: Duration = Duration::from_millis(100);

/// Wakes the service thread, if there is one. May be called from a signal handler or a probe
/// function.
pub fn notify() {
    NEWS.fetch_add(1, Ordering::Release);
    wake(&NEWS);
}

/// Processor time that the service thread has spent on discovery, in nanoseconds.
static DISCOVERY: AtomicU64 = AtomicU64::new(0);

/// Looks that took less were for nothing, and are not counted as discovery.
const NOTHING_NEW: Duration = Duration::from_micros(20);

/// If the rest of the process takes less processor time between two looks, it may have ended.
const STANDS_STILL: Duration = Duration::from_micros(20);

/// Processor time that the service thread has spent on discovering probes so far: the part of it
/// that grows with the program, and not with the time that it runs.
pub fn discovery_time() -> Duration {
    Duration::from_nanos(DISCOVERY.load(Ordering::Relaxed))
}

/// Processor time of the calling thread.
fn processor_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: memory of the right type. A refusal leaves zero: then nothing is counted.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Held by the service thread while it works; forking takes it.
static WORKING: Mutex<()> = Mutex::new(());

/// Why [`Tick::call`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A period has passed, or somebody has notified.
    Work,
    /// Every other thread has ended; the process ends with this one, after the call.
    Last,
}

/// What the thread does beside discovery.
pub struct Tick {
    /// Time to the first call.
    pub first: Duration,
    /// Called when the time that the last call returned has passed, and after each notification.
    /// Returns the time to the next call.
    pub call: Box<dyn FnMut(Wake) -> Duration + Send>,
}

/// How long [`start`] waits for the thread at the most. Only where the C library keeps a new thread
/// from running until the caller's constructor is over is it waited for in vain.
const UNTIL_IT_RUNS: Duration = Duration::from_secs(1);

/// Starts the service thread, and waits until it runs: the C library registers a new thread with
/// the kernel, which a program may forbid at any time from now on (seccomp with TSYNC).
///
/// # Errors
/// [`Error::Thread`].
pub fn start(tick: Option<Tick>) -> Result<(), Error> {
    // Read here, not by the thread: who notifies before it runs is heard.
    let seen = NEWS.load(Ordering::Acquire);
    provider::service_starts();
    let runs = Arc::new(AtomicU32::new(0));
    let has_begun = Arc::clone(&runs);
    let spawned = wordpatch::with_signals_blocked(|| {
        std::thread::Builder::new().name("fastinst".into()).spawn(move || {
            has_begun.store(1, Ordering::Release);
            wake(&has_begun);
            // Before anything that needs a lock of the loader, which the waiting thread may hold.
            run(tick, seen);
        })
    });
    spawned.map(drop).map_err(|source| Error::Thread { source })?;
    let deadline = Instant::now() + UNTIL_IT_RUNS;
    while runs.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
        wait(&runs, 0, deadline);
    }
    Ok(())
}

fn run(mut tick: Option<Tick>, mut seen: u32) {
    let mut next = Instant::now() + tick.as_ref().map_or(IDLE, |tick| tick.first);
    let mut next_look = Instant::now() + IDLE;
    let mut ran = Duration::ZERO;
    let mut look_again = None;
    loop {
        wait(&NEWS, seen, look_again.map_or(next, |again| next.min(again)));
        seen = NEWS.load(Ordering::Acquire);
        let now = Instant::now();
        let _working = WORKING.lock().unwrap_or_else(|e| e.into_inner());
        let before = processor_time();
        // A refusal concerns one object, and is kept with it: see `provider::notes`.
        if let Ok(discovery) = Discovery::begin() {
            look_again = provider::discover(&discovery);
        }
        let looked = processor_time().saturating_sub(before);
        if looked > NOTHING_NEW {
            DISCOVERY.fetch_add(looked.as_nanos() as u64, Ordering::Relaxed);
        }
        let last = now >= next_look && {
            next_look = now + IDLE;
            let own = program_time();
            let has_run = own.saturating_sub(ran) > STANDS_STILL;
            ran = own;
            !has_run && is_last_thread()
        };
        let wake = if last { Wake::Last } else { Wake::Work };
        let pause = tick.as_mut().map_or(IDLE, |tick| (tick.call)(wake));
        // Nothing is profiled: a shell, say, that was started with the preload.
        let pause = if probe_count() == 0 { pause.max(IDLE) } else { pause };
        next = Instant::now() + pause;
        if last {
            return;
        }
    }
}

/// Processor time of all other threads of the process.
fn program_time() -> Duration {
    let all = clock(libc::CLOCK_PROCESS_CPUTIME_ID);
    all.saturating_sub(processor_time())
}

/// Whether no thread but the calling one is left: main has left by `pthread_exit`, and so have the
/// others. The process must not live on for our sake; when this thread returns, the C library ends
/// it as it does with any last thread.
fn is_last_thread() -> bool {
    // A directory has a link for each of its folders, one a thread, beside its own two. The main
    // thread stays as a zombie.
    let threads =
        std::fs::metadata("/proc/self/task").map_or(u64::MAX, |task| task.nlink().saturating_sub(2));
    threads <= 2
        && std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| {
            stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
        })
}

/// What a process holds while it forks.
pub struct ForkGuard {
    _working: std::sync::MutexGuard<'static, ()>,
    _discovery: Option<Discovery>,
    _groups: group::Hold,
}

/// Waits until neither the service thread, nor a caller of `register_callback`, nor one that makes
/// or drops a [group] is at work, and keeps all of them out until the guard is
/// dropped: for `pthread_atfork`, where parent and child each drop it.
pub fn before_fork() -> ForkGuard {
    let working = WORKING.lock().unwrap_or_else(|e| e.into_inner());
    let discovery = Discovery::begin().ok();
    ForkGuard { _working: working, _discovery: discovery, _groups: group::hold() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32};

    use super::*;
    use crate::probe_in_tests::alone;

    /// Longer than any test: what happens sooner does so because of a notification.
    const NEVER: Duration = Duration::from_secs(36_000);

    fn start_with(mut call: impl FnMut(Wake) + Send + 'static) {
        let call = move |wake| {
            call(wake);
            NEVER
        };
        start(Some(Tick { first: NEVER, call: Box::new(call) })).unwrap();
    }

    #[test]
    fn a_notification_before_the_thread_runs_is_heard() {
        let _alone = alone();
        for _ in 0..20 {
            let is_heard = Arc::new(AtomicBool::new(false));
            let hears = Arc::clone(&is_heard);
            start_with(move |_| hears.store(true, Ordering::Release));
            notify();
            while !is_heard.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }

    /// What the C library does for a new thread is done by then: the program may forbid it.
    #[test]
    fn the_thread_runs_when_it_was_started() {
        let _alone = alone();
        let waiting = || {
            let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            names
                .filter(|task| {
                    std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "fastinst\n")
                })
                .count()
        };
        for _ in 0..100 {
            // The name is the last that the standard library gives to a thread before it runs.
            let before = waiting();
            start_with(|_| {});
            assert_eq!(waiting(), before + 1, "the thread does not run yet");
        }
    }

    /// Whether the thread waits for a lock.
    fn waits_for_a_lock(thread: i32) -> bool {
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_futex.to_string())
    }

    /// The address of the futex that each thread of the service waits for.
    fn waited_for() -> Vec<usize> {
        let address = |task: std::path::PathBuf| {
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            let call = std::fs::read_to_string(task.join("syscall")).ok()?;
            let mut words = call.split(' ');
            let is_futex = words.next() == Some(&libc::SYS_futex.to_string());
            let address = words.next()?.strip_prefix("0x")?;
            usize::from_str_radix(address, 16).ok().filter(|_| is_futex && name == "fastinst\n")
        };
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter_map(|task| address(task.path())).collect()
    }

    #[test]
    fn no_tick_begins_while_the_process_forks() {
        let _alone = alone();
        let has_ticked = Arc::new(AtomicBool::new(false));
        let ticks = Arc::clone(&has_ticked);
        start_with(move |_| ticks.store(true, Ordering::SeqCst));
        let guard = before_fork();
        has_ticked.store(false, Ordering::SeqCst);
        notify();
        // Notified, the thread waits for something else than news, or it works.
        let is_kept_out = || waited_for().iter().any(|address| *address != NEWS.as_ptr() as usize);
        while !is_kept_out() && !has_ticked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!has_ticked.load(Ordering::SeqCst), "a tick has begun");
        drop(guard);
        while !has_ticked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// What the thread is at work on when the process forks would stay undone in the child, under a
    /// lock that nobody holds.
    #[test]
    fn a_fork_waits_for_the_end_of_a_tick() {
        let _alone = alone();
        let forker = Arc::new(AtomicI32::new(0));
        let (has_forked, forked_meanwhile, is_over) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (tick_forker, tick_forked, tick_meanwhile, tick_over) = (
            Arc::clone(&forker),
            Arc::clone(&has_forked),
            Arc::clone(&forked_meanwhile),
            Arc::clone(&is_over),
        );
        start_with(move |_| {
            if tick_over.load(Ordering::SeqCst) {
                return;
            }
            let (forker, has_forked) = (Arc::clone(&tick_forker), Arc::clone(&tick_forked));
            std::thread::spawn(move || {
                // SAFETY: gives a number.
                forker.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                drop(before_fork());
                has_forked.store(true, Ordering::SeqCst);
            });
            while !waits_for_a_lock(tick_forker.load(Ordering::SeqCst)) {
                if tick_forked.load(Ordering::SeqCst) {
                    tick_meanwhile.store(true, Ordering::SeqCst);
                    break;
                }
                std::thread::yield_now();
            }
            tick_over.store(true, Ordering::SeqCst);
        });
        notify();
        while !(has_forked.load(Ordering::SeqCst) && is_over.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        assert!(!forked_meanwhile.load(Ordering::SeqCst), "forked in the middle of a tick");
    }
}
