//! Stopping a program from another thread, at no cost to the program.
//!
//! Compiled code has no check for it: neither loops nor calls ask a flag or count fuel. A check
//! would be code that runs while nobody interrupts, in the hottest places there are; this engine's
//! rule is that what is off costs nothing, and whoever wants to count or look in a loop puts a
//! probe there. Instead, the thread is sent a signal:
//!
//! - Its handler finds the thread in compiled code, in a function: the thread leaves its activation
//!   at this very instruction. That is always possible, since `r14` leads to the store at every
//!   instruction of a function, and everything that the activation needs to be left is in the frame
//!   of its entry trampoline.
//! - Else it finds the thread in the runtime or in a host function, which must not be left in the
//!   middle. The request stays. It is met where the host function or the bulk operation returns
//!   ([`is_interrupted`](super::is_interrupted)), or by the next signal, which comes after a few
//!   milliseconds: a thread of its own repeats it until the request is met or withdrawn.
//!
//! A request stays until the outermost call has returned, so a host function that calls the program
//! and goes on after an interrupt does not hide it from its own caller. Only the activation of that
//! outermost call ends the request. A request that finds nothing running is met by the next call
//! into the store.
//!
//! The handler is installed without SA_RESTART: a system call in which a host function waits fails
//! with `EINTR`. The signal may come just before that call; then the next one ends it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::signals;

/// The signal by default: ignored by programs that do not know of it, and sent by the kernel for
/// out-of-band data only.
pub(crate) const DEFAULT_SIGNAL: i32 = libc::SIGURG;

/// The time from one signal to the next: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Who asks for an interrupt that was not met yet.
///
/// The lowest bit: a handle. The rest of the lower half: twice the number of timeouts. The upper
/// half numbers the rounds, which end when what was asked for is met or withdrawn: so a timeout
/// knows whether its request is still there, and withdraws no other's.
#[derive(Debug, Default)]
struct Requests(AtomicU64);

impl Requests {
    fn by_handle(&self) {
        self.0.fetch_or(1, Ordering::SeqCst);
    }

    /// Gives the round.
    fn by_timeout(&self) -> u64 {
        self.0.fetch_add(2, Ordering::SeqCst) >> 32
    }

    fn withdraw_timeout(&self, round: u64) {
        let without = |now: u64| (now >> 32 == round).then(|| now - 2);
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, without);
    }

    fn is_any(&self) -> bool {
        self.0.load(Ordering::SeqCst) as u32 != 0
    }

    fn end_round(&self) {
        let next = |now: u64| (now as u32 != 0).then(|| ((now >> 32) + 1) << 32);
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }
}

/// Of one store: who runs it, and whether it is to be interrupted.
#[derive(Debug)]
pub(crate) struct Interruption {
    requests: Requests,
    /// The thread in the store's outermost activation, as the kernel numbers threads, or 0.
    thread: AtomicI32,
    /// Activations inside one another.
    depth: AtomicU32,
    /// The outermost activation is being left because of the requests.
    ends_outermost: AtomicBool,
    signal: i32,
}

impl Interruption {
    /// Installs the handler for the signal, too.
    pub(crate) fn new(signal: i32) -> Arc<Self> {
        signals::install_interrupt(signal);
        Arc::new(Self {
            requests: Requests::default(),
            thread: AtomicI32::new(0),
            depth: AtomicU32::new(0),
            ends_outermost: AtomicBool::new(false),
            signal,
        })
    }

    /// Notes, as long as the guard lives, that this thread runs the store.
    pub(super) fn run(&self) -> Running<'_> {
        if self.depth.fetch_add(1, Ordering::Relaxed) == 0 {
            // SAFETY: takes nothing and touches no memory.
            let thread = unsafe { libc::gettid() };
            self.thread.store(thread, Ordering::SeqCst);
        }
        Running(self)
    }

    /// Whether there is a request; then the innermost activation must be left for it.
    /// Async-signal-safe, on the thread that runs the store.
    pub(super) fn acknowledge(&self) -> bool {
        let requested = self.requests.is_any();
        if requested && self.depth.load(Ordering::Relaxed) <= 1 {
            self.ends_outermost.store(true, Ordering::Relaxed);
        }
        requested
    }

    /// Whether there is a request.
    pub(super) fn is_requested(&self) -> bool {
        self.requests.is_any()
    }

    /// Whether a request was not met yet, by a thread that is running.
    fn is_waited_for(&self) -> bool {
        self.requests.is_any() && self.thread.load(Ordering::SeqCst) != 0
    }

    /// Sends the signal to whoever runs the store.
    fn poke(&self) {
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            // A thread that has left the store meanwhile takes a signal that means nothing to it;
            // one that has ended takes none. SAFETY: sends a signal for which a handler is
            // installed.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, self.signal) };
        }
    }
}

/// This thread runs the store.
pub(super) struct Running<'a>(&'a Interruption);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.0.depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.thread.store(0, Ordering::SeqCst);
            if self.0.ends_outermost.swap(false, Ordering::Relaxed) {
                self.0.requests.end_round();
            }
        }
    }
}

/// Stops the program of a store, from any thread. Clones stop the same store.
#[derive(Clone, Debug)]
pub struct InterruptHandle {
    interruption: Arc<Interruption>,
}

impl InterruptHandle {
    pub(crate) fn new(interruption: &Arc<Interruption>) -> Self {
        Self { interruption: interruption.clone() }
    }

    /// Asks for the store's program to be stopped: the call that runs it gives the trap
    /// [`Trap::Interrupt`](super::Trap::Interrupt), and so do the calls around it, if host
    /// functions have called the program in turn. The request is met when the outermost one has
    /// returned. Returns at once. Compiled code stops within some ten microseconds; a host function
    /// goes on, but a system call that it waits in fails with `EINTR`, and the program stops where
    /// it returns. If nothing runs in the store, the next call is stopped before it begins. Not for
    /// signal handlers.
    pub fn interrupt(&self) {
        self.interruption.requests.by_handle();
        self.interruption.poke();
        // Where the repeating thread cannot be started, one signal has to do.
        let _ = repeater().map(|repeater| repeater.add(Due::again(&self.interruption, FIRST_PAUSE)));
    }

    /// [`InterruptHandle::interrupt`] when so much time has passed, unless the guard is dropped
    /// before.
    ///
    /// # Errors
    /// When the thread that watches the time cannot be started.
    pub fn interrupt_after(&self, time: Duration) -> io::Result<Timeout> {
        let timer = Arc::new(Timer::default());
        // A time beyond what the clock can tell never comes.
        if let Some(at) = Instant::now().checked_add(time) {
            let interruption = Arc::downgrade(&self.interruption);
            repeater()?.add(Due { at, pause: FIRST_PAUSE, interruption, timer: Some(timer.clone()) });
        }
        Ok(Timeout { handle: self.clone(), timer })
    }

    /// Withdraws what was asked for and not met yet, by this handle, its clones and timeouts.
    pub fn withdraw(&self) {
        self.interruption.requests.end_round();
    }
}

/// An interrupt that is to come; none comes once it is dropped, and if it has come and was not met,
/// it is withdrawn. In a forked child, those of its parent do not come.
#[derive(Debug)]
#[must_use = "dropping it cancels the timeout"]
pub struct Timeout {
    handle: InterruptHandle,
    timer: Arc<Timer>,
}

impl Timeout {
    /// Whether the time has passed, and the interrupt was asked for.
    pub fn has_fired(&self) -> bool {
        self.timer.fired_in.get().is_some()
    }
}

impl Drop for Timeout {
    fn drop(&mut self) {
        if let Some(repeater) = started() {
            let is_own = |due: &Due| due.timer.as_ref().is_some_and(|timer| Arc::ptr_eq(timer, &self.timer));
            repeater.dues().retain(|due| !is_own(due));
        }
        if let Some(round) = self.timer.fired_in.get() {
            self.handle.interruption.requests.withdraw_timeout(*round);
        }
    }
}

#[derive(Debug, Default)]
struct Timer {
    /// The round of requests that it has fired in.
    fired_in: OnceLock<u64>,
}

/// What the repeating thread is to do next for a store.
#[derive(Debug)]
struct Due {
    at: Instant,
    /// From this time to the next.
    pause: Duration,
    interruption: Weak<Interruption>,
    /// Of a timeout: it has not come yet.
    timer: Option<Arc<Timer>>,
}

impl Due {
    fn again(interruption: &Arc<Interruption>, pause: Duration) -> Self {
        let interruption = Arc::downgrade(interruption);
        Self { at: Instant::now() + pause, pause, interruption, timer: None }
    }

    /// Sends the signal, and says when to do so again.
    fn act(self) -> Option<Self> {
        let interruption = self.interruption.upgrade()?;
        match &self.timer {
            Some(timer) => {
                timer.fired_in.get_or_init(|| interruption.requests.by_timeout());
                interruption.poke();
                Some(Self::again(&interruption, FIRST_PAUSE))
            }
            None if interruption.is_waited_for() => {
                interruption.poke();
                Some(Self::again(&interruption, (2 * self.pause).min(MAX_PAUSE)))
            }
            None => None,
        }
    }
}

/// The thread that repeats signals, and what it has to do.
#[derive(Debug)]
struct Repeater {
    dues: Mutex<Vec<Due>>,
    added: Condvar,
}

impl Repeater {
    fn dues(&self) -> MutexGuard<'_, Vec<Due>> {
        self.dues.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// In place of what was to be repeated for the same store, unless it is a timeout.
    fn add(&self, due: Due) {
        let mut dues = self.dues();
        if due.timer.is_none() {
            dues.retain(|other| other.timer.is_some() || !other.interruption.ptr_eq(&due.interruption));
        }
        dues.push(due);
        drop(dues);
        self.added.notify_one();
    }

    fn run(&self) -> ! {
        let mut dues = self.dues();
        loop {
            let now = Instant::now();
            let come: Vec<Due> = dues.extract_if(.., |due| due.at <= now).collect();
            dues.extend(come.into_iter().filter_map(Due::act));
            let next = dues.iter().map(|due| due.at).min();
            dues = match next {
                Some(at) => {
                    let time = at.saturating_duration_since(Instant::now());
                    self.added.wait_timeout(dues, time).unwrap_or_else(|e| e.into_inner()).0
                }
                None => self.added.wait(dues).unwrap_or_else(|e| e.into_inner()),
            };
        }
    }
}

/// The repeating thread, and the process that it is a thread of.
static REPEATER: Mutex<Option<(u32, &Repeater)>> = Mutex::new(None);

/// That of this process. A forked child has none of its parent's threads.
fn of_this_process(repeater: Option<(u32, &'static Repeater)>) -> Option<&'static Repeater> {
    repeater.filter(|(process, _)| *process == std::process::id()).map(|(_, repeater)| repeater)
}

fn started() -> Option<&'static Repeater> {
    of_this_process(*REPEATER.lock().unwrap_or_else(|e| e.into_inner()))
}

/// The process's repeating thread, started when it is first needed. The program's signals do not
/// come to it.
fn repeater() -> io::Result<&'static Repeater> {
    let mut current = REPEATER.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(repeater) = of_this_process(*current) {
        return Ok(repeater);
    }
    let repeater: &Repeater = Box::leak(Box::new(Repeater { dues: Mutex::default(), added: Condvar::new() }));
    let thread = std::thread::Builder::new().name("wasm-interrupt".into()).stack_size(64 << 10);
    wordpatch::with_signals_blocked(|| thread.spawn(|| repeater.run()))?;
    *current = Some((std::process::id(), repeater));
    Ok(repeater)
}
