//! The service thread: runs the later discoveries of the [providers](crate::provider), and a
//! periodic tick for a tool.
//!
//! It blocks all signals, so that handlers of the program never run on it, except for the signal
//! that a locked site raises, since the thread may execute such a site itself. At a fork it is
//! between two ticks (see [`before_fork`]), so that a child does not inherit its locks; the child
//! starts its own thread. What may block for any time, such as a write to a pipe, is done after a
//! tick ([`Work::after_tick`]): a fork does not wait for it.
//!
//! The thread opens files at any time. It has its own table of file descriptors if [`start`] is
//! asked for one ([`Descriptors::Own`]), so that the program gets the numbers that it would get
//! without it. One more thread remains in the table of the process then. It writes what the service
//! thread has for the program's streams
//! ([`with_descriptors_of_process`](crate::internal::with_descriptors_of_process)), and is the last
//! one if all threads of the program have ended: the last thread of all executes the exit handlers
//! of the process, which write what is left in its streams.
//!
//! A tool may have one more thread, its [companion](spawn_companion), for work that needs other
//! times or descriptors than the tick.

pub(crate) mod descriptors;
pub(crate) mod threads;

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastinst_sigsafe::futex::{wait, wake};

use descriptors::{LAST_THREAD, LastThread, leave_table};
use threads::{OWN_THREADS, clock_of, only_these_remain, own_thread_count, own_threads, thread_id};

use crate::discovery::Discovery;
use crate::error::Error;
use crate::group;
use crate::loaded;
use crate::processor_time::{of_clock, processor_time};
use crate::provider::registered;
use crate::registry::probe_count;

/// The number of notifications; the futex on which the thread sleeps.
static NOTIFICATIONS: AtomicU32 = AtomicU32::new(0);

/// How often the thread checks whether it is the last one, and, if nothing else wakes it, for
/// loaded and unloaded libraries.
const IDLE: Duration = Duration::from_millis(100);

/// Wakes the service thread, if there is one. May be called from signal handlers and probe
/// functions.
pub fn notify() {
    NOTIFICATIONS.fetch_add(1, Ordering::Release);
    wake(&NOTIFICATIONS);
}

/// The process whose service thread was started last; 0 for none. A forked child has none at first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this process has a service thread. Async-signal-safe.
pub(crate) fn is_running() -> bool {
    PROCESS.load(Ordering::Relaxed) == std::process::id()
}

/// The processor time that the service thread has spent on discovery, in nanoseconds.
static DISCOVERY: AtomicU64 = AtomicU64::new(0);

/// A discovery that takes less time has found nothing, and is not counted.
const NOTHING_NEW: Duration = Duration::from_micros(20);

/// If the other threads use less processor time than this between two checks, they may have ended.
const STANDS_STILL: Duration = Duration::from_micros(20);

/// The processor time that the service thread has spent on the discovery of probes so far. It is
/// the part of its processor time that depends on the size of the program and not on how long it
/// runs.
pub fn discovery_time() -> Duration {
    Duration::from_nanos(DISCOVERY.load(Ordering::Relaxed))
}

/// Held by the service thread while it works, and by a thread that forks.
static WORKING: Mutex<()> = Mutex::new(());

/// The reason for a call to [`Work::tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A period has passed, or there was a notification.
    Work,
    /// All other threads have ended; the process ends with this thread, after the call.
    Last,
}

/// The work of the thread in addition to discovery.
pub struct Tick {
    /// The time until the first tick.
    pub first: Duration,
    /// What is done in a tick, and after it.
    pub work: Box<dyn Work>,
}

/// A tool's part of the work.
pub trait Work: Send {
    /// Called when the time returned by the last call has passed, and after each notification.
    /// Returns the time until the next call. Forks wait until it has returned.
    fn tick(&mut self, wake: Wake) -> Duration;

    /// Called after each tick. Forks do not wait for it: it may block, but must not hold a lock,
    /// nor anything else that a child would inherit in the middle of a change.
    fn after_tick(&mut self) {}
}

/// The table of file descriptors that the service thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// That of the process: discovery callbacks use the program's files.
    OfProcess,
    /// The thread's own, which is empty: discovery callbacks must not use the program's files. It
    /// is that of the process if the kernel cannot make one (before Linux 5.9).
    Own,
}

/// Maximum time for which [`start`] waits for the thread. It is only reached if the C library does
/// not let a new thread run before the caller's constructor has returned.
const UNTIL_IT_RUNS: Duration = Duration::from_secs(5);

/// Starts the service thread, and waits until it runs: the C library registers a new thread with
/// the kernel by system calls that the program may forbid at any time from now on (seccomp with
/// TSYNC).
///
/// # Errors
/// [`Error::Thread`].
pub fn start(tick: Option<Tick>, descriptors: Descriptors) -> Result<(), Error> {
    // Read here and not by the thread, so that notifications before it runs are not lost.
    let seen = NOTIFICATIONS.load(Ordering::Acquire);
    registered::service_starts();
    OWN_THREADS.iter().for_each(|id| id.store(0, Ordering::Relaxed));
    // Most children execute another program, which need not be instrumented.
    let last = (descriptors == Descriptors::Own && registered::has_code()).then(begin_last).flatten();
    let (last, last_starts) = last.unzip();
    let starts = begin("fastinst", move |begun| {
        let mut table = Table { wants_own: descriptors == Descriptors::Own && last.is_none(), last: None };
        LAST_THREAD.store(ptr::null_mut(), Ordering::Relaxed);
        OWN_THREADS[0].store(thread_id(), Ordering::Relaxed);
        last.into_iter().for_each(|last| table.leave(last));
        // Comes before anything that needs a lock of the loader, which the waiting thread may hold.
        begun.now();
        run(tick, seen, &mut table);
    })?
    .1;
    let deadline = Instant::now() + UNTIL_IT_RUNS;
    last_starts.into_iter().chain([starts]).for_each(|starts| starts.wait(deadline));
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    Ok(())
}

/// The table of descriptors of the service thread.
struct Table {
    /// Whether the thread leaves that of the process once there is code to observe.
    wants_own: bool,
    /// The thread that remains in that of the process, after this one has left it.
    last: Option<&'static LastThread>,
}

impl Table {
    /// Leaves the table of the process, in which the other thread remains. It ends if that is not
    /// possible.
    fn leave(&mut self, last: LastThread) {
        if leave_table().is_ok() {
            let last = &*Box::leak(Box::new(last));
            LAST_THREAD.store(ptr::from_ref(last).cast_mut(), Ordering::Relaxed);
            self.last = Some(last);
        }
    }

    /// Leaves the table of the process if a library with code to observe has been loaded.
    fn follow(&mut self) {
        if self.wants_own && registered::has_code() {
            self.wants_own = false;
            if let Some((last, starts)) = begin_last() {
                starts.wait(Instant::now() + UNTIL_IT_RUNS);
                self.leave(last);
            }
        }
    }
}

impl Drop for Table {
    /// The last thread ends after this one.
    fn drop(&mut self) {
        self.last.into_iter().for_each(LastThread::end);
    }
}

/// Starts the thread that shares the table of descriptors with the caller, and ends after the
/// service thread. `None` if there can be no further thread.
fn begin_last() -> Option<(LastThread, Starts)> {
    let (last, carry_out) = LastThread::new();
    let begun = begin("fastinst-last", move |begun| {
        OWN_THREADS[2].store(thread_id(), Ordering::Relaxed);
        begun.now();
        carry_out();
        OWN_THREADS[2].store(0, Ordering::Relaxed);
    });
    begun.ok().map(|(_, starts)| (last, starts))
}

/// Signals, when dropped, that a new thread has made all system calls that the program might
/// forbid.
pub struct Begun(Arc<AtomicU32>);

impl Begun {
    /// Lets the thread that has created this one continue.
    pub fn now(self) {}
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
        wake(&self.0);
    }
}

/// Starts a second thread for the tool, and waits until it signals that it has [begun](Begun::now),
/// before which it must not take locks of the loader. There can be only one. Like the service
/// thread, it has all signals blocked, does not count as a thread of the program, and does not keep
/// the process alive: it must end before the last call of [`Work::tick`] returns. A forked child
/// does not have it.
///
/// # Errors
/// [`Error::Thread`].
pub fn spawn_companion(
    name: &str,
    work: impl FnOnce(Begun) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    spawn(name, move |begun| {
        OWN_THREADS[1].store(thread_id(), Ordering::Relaxed);
        work(begun);
        OWN_THREADS[1].store(0, Ordering::Relaxed);
    })
}

fn spawn(name: &str, work: impl FnOnce(Begun) + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let (thread, starts) = begin(name, work)?;
    starts.wait(Instant::now() + UNTIL_IT_RUNS);
    Ok(thread)
}

/// A thread that has been created, and may not have begun.
struct Starts(Arc<AtomicU32>);

impl Starts {
    /// Waits until the thread has begun.
    fn wait(self, deadline: Instant) {
        while self.0.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
            wait(&self.0, 0, deadline);
        }
    }
}

fn begin(name: &str, work: impl FnOnce(Begun) + Send + 'static) -> Result<(JoinHandle<()>, Starts), Error> {
    let runs = Arc::new(AtomicU32::new(0));
    let begun = Begun(Arc::clone(&runs));
    let spawned = wordpatch::internal::with_signals_blocked(|| {
        std::thread::Builder::new().name(name.into()).spawn(move || work(begun))
    });
    let thread = spawned.map_err(|source| Error::Thread { source })?;
    Ok((thread, Starts(runs)))
}

/// The processor time of the [companion](spawn_companion) so far; 0 if there is none.
pub fn companion_time() -> Duration {
    match own_threads()[1] {
        0 => Duration::ZERO,
        thread => of_clock(clock_of(thread)),
    }
}

fn run(mut tick: Option<Tick>, mut seen: u32, table: &mut Table) {
    let mut next = Instant::now() + tick.as_ref().map_or(IDLE, |tick| tick.first);
    let mut next_look = Instant::now() + IDLE;
    let mut ran = Duration::ZERO;
    let mut look_again = None;
    loop {
        wait(&NOTIFICATIONS, seen, look_again.map_or(next, |again| next.min(again)));
        seen = NOTIFICATIONS.load(Ordering::Acquire);
        let now = Instant::now();
        let working = WORKING.lock().unwrap_or_else(|e| e.into_inner());
        table.follow();
        let before = processor_time();
        // Errors concern single objects, and are stored with them: see `provider::notes`.
        if let Ok(discovery) = Discovery::begin() {
            look_again = registered::discover(&discovery);
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
            !has_run && only_these_remain(own_thread_count())
        };
        let wake = if last { Wake::Last } else { Wake::Work };
        let pause = tick.as_mut().map_or(IDLE, |tick| tick.work.tick(wake));
        drop(working);
        tick.iter_mut().for_each(|tick| tick.work.after_tick());
        // Nothing is profiled, for example in a shell that was started with the preload.
        let pause = if probe_count() == 0 { pause.max(IDLE) } else { pause };
        next = Instant::now() + pause;
        if last {
            return;
        }
    }
}

/// Processor time of all other threads of the process.
fn program_time() -> Duration {
    let all = of_clock(libc::CLOCK_PROCESS_CPUTIME_ID);
    all.saturating_sub(processor_time() + companion_time())
}

/// The locks that a process holds while it forks.
#[must_use = "the locks are released when it is dropped"]
pub struct ForkGuard {
    _working: std::sync::MutexGuard<'static, ()>,
    _discovery: Option<Discovery>,
    _groups: group::Hold,
    _held: HeldAcrossFork,
}

thread_local! {
    static FORKS: Cell<bool> = const { Cell::new(false) };
    /// The process in which the thread last forked without a guard; 0 for none.
    static FORKED_WITHOUT: Cell<u32> = const { Cell::new(0) };
}

/// Exists while the calling thread has a [`ForkGuard`].
struct HeldAcrossFork;

impl HeldAcrossFork {
    fn new() -> Self {
        FORKS.set(true);
        Self
    }
}

impl Drop for HeldAcrossFork {
    fn drop(&mut self) {
        FORKS.set(false);
    }
}

/// Whether the calling thread has a [`ForkGuard`]: another thread may fork without one.
pub fn is_forking() -> bool {
    FORKS.get()
}

/// Waits until the service thread, calls of `register_callback`, and threads that create or drop a
/// [group] have finished their work, and blocks all of them until the guard is dropped. It is
/// called through `pthread_atfork`; parent and child each drop the guard, on the forking thread.
///
/// `None` if the thread forks in a callback of `dl_iterate_phdr(3)`, for whose end the others may
/// be waiting. The child must then leave their data alone, whatever their state is.
pub fn before_fork() -> Option<ForkGuard> {
    let process = FORKED_WITHOUT.get();
    if process != 0 && process != std::process::id() {
        // This is the child of such a fork: nobody will release the locks.
        return None;
    }
    if loaded::is_locked_by_caller() {
        FORKED_WITHOUT.set(std::process::id());
        return None;
    }
    let working = WORKING.lock().unwrap_or_else(|e| e.into_inner());
    let discovery = Discovery::begin().ok();
    let groups = group::hold();
    Some(ForkGuard {
        _working: working,
        _discovery: discovery,
        _groups: groups,
        _held: HeldAcrossFork::new(),
    })
}

/// Runs `act` as if there were no service thread.
#[cfg(test)]
pub(crate) fn stopped_in_tests(act: impl FnOnce()) {
    let process = PROCESS.swap(0, Ordering::Relaxed);
    act();
    PROCESS.store(process, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32};

    use super::*;
    use crate::probe_in_tests::alone;

    /// Longer than any test: anything that happens earlier is caused by a notification.
    const NEVER: Duration = Duration::from_secs(36_000);

    /// Calls a function in each tick, and another one after it.
    struct Calls<T, A>(T, A);

    impl<T: FnMut(Wake) + Send, A: FnMut() + Send> Work for Calls<T, A> {
        fn tick(&mut self, wake: Wake) -> Duration {
            (self.0)(wake);
            NEVER
        }

        fn after_tick(&mut self) {
            (self.1)();
        }
    }

    fn start_with(tick: impl FnMut(Wake) + Send + 'static) {
        start_with_both(tick, || {});
    }

    fn start_with_both(tick: impl FnMut(Wake) + Send + 'static, after_tick: impl FnMut() + Send + 'static) {
        let tick = Tick { first: NEVER, work: Box::new(Calls(tick, after_tick)) };
        start(Some(tick), Descriptors::OfProcess).unwrap();
    }

    #[test]
    fn a_notification_before_the_thread_runs_is_not_lost() {
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

    /// The C library has finished the set-up of the thread by then, which the program may forbid
    /// later.
    #[test]
    fn the_thread_runs_when_start_returns() {
        let _alone = alone();
        let waiting = || {
            let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            names
                .filter(|task| {
                    std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "fastinst\n")
                })
                .count()
        };
        // Naming the thread is the last action of the standard library before the thread runs.
        let is_seen = |_: &i32| {
            let before = waiting();
            start_with(|_| {});
            waiting() == before + 1
        };
        let seen = (0..100).filter(is_seen).count();
        // The kernel may skip a thread in the list when another thread of the test program exits.
        assert!(seen >= 98, "only {seen} of 100 threads ran");
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
    fn no_tick_starts_while_the_process_forks() {
        let _alone = alone();
        let has_ticked = Arc::new(AtomicBool::new(false));
        let ticks = Arc::clone(&has_ticked);
        start_with(move |_| ticks.store(true, Ordering::SeqCst));
        let guard = before_fork();
        has_ticked.store(false, Ordering::SeqCst);
        notify();
        // After the notification, the thread either waits for another futex than `NOTIFICATIONS`,
        // or it works.
        let is_kept_out = || waited_for().iter().any(|address| *address != NOTIFICATIONS.as_ptr() as usize);
        while !is_kept_out() && !has_ticked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!has_ticked.load(Ordering::SeqCst), "a tick has started");
        drop(guard);
        while !has_ticked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_fork_does_not_wait_for_what_follows_a_tick() {
        let _alone = alone();
        let [is_blocked, may_go_on] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (blocks, goes_on) = (Arc::clone(&is_blocked), Arc::clone(&may_go_on));
        start_with_both(
            |_| {},
            move || {
                blocks.store(true, Ordering::SeqCst);
                while !goes_on.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            },
        );
        notify();
        while !is_blocked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(before_fork());
        may_go_on.store(true, Ordering::SeqCst);
    }

    /// Otherwise the work of the thread would stay unfinished in the child, under a lock that no
    /// thread of the child releases.
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
                // SAFETY: returns a number.
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
        assert!(!forked_meanwhile.load(Ordering::SeqCst), "forked during a tick");
    }
}
