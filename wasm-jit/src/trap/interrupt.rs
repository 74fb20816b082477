//! Interrupts: stopping a program from another thread, at no cost to the program.
//!
//! Compiled code has no check for interrupts: neither loops nor calls test a flag or count fuel.
//! Such a check would run in the hottest code even if nothing ever interrupts; it is a rule of this
//! engine that a feature which is off costs nothing, and loops can be counted or observed with
//! probes. Instead, the thread is sent a signal:
//!
//! - If the handler finds the thread in a compiled function, the thread leaves its activation at
//!   this instruction. That is always possible, because `r14` leads to the store at every
//!   instruction of a function, and the frame of the activation's entry trampoline contains
//!   everything that is needed to leave it.
//! - Otherwise the thread is in the runtime, in a host function, or in a probe function, which must
//!   not be interrupted in the middle. The request stays pending. It takes effect when the host
//!   function or the bulk operation returns ([`is_interrupted`](super::is_interrupted)) or the
//!   probe's stub ends ([`INTERRUPT_CHECK`](crate::vmctx::INTERRUPT_CHECK)), or at the next signal,
//!   a few milliseconds later: a separate thread repeats the signal until the request is met or
//!   withdrawn.
//!
//! A signal has no effect between steps of probes that are executed
//! [together](crate::probes::Step::Together) either: the next signal most likely finds the thread
//! elsewhere.
//!
//! A request stays pending until the outermost call has returned, so a host function that calls the
//! program and continues after an interrupt does not hide it from its own caller. Only the
//! activation of that outermost call ends the request. If nothing is running, the next call into
//! the store is interrupted.
//!
//! The handler is installed without SA_RESTART: a system call in which a host function waits fails
//! with `EINTR`. If the signal arrives just before that call, the next signal ends it.

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::{ExecutionState, own_signal, signals};
use crate::code::forks;

/// The default signal: its default action is to be ignored, and the kernel sends it for out-of-band
/// data only.
pub(crate) const DEFAULT_SIGNAL: i32 = libc::SIGURG;

/// The initial time between signals, which is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// The pending requests for an interrupt.
///
/// The lowest bit is the request of a handle, and the other bits of the lower half count the
/// requests of timeouts. The upper half counts rounds; a round ends when all requests have been met
/// or withdrawn. A timeout therefore knows whether its request is still pending, and never
/// withdraws that of another one.
#[derive(Debug, Default)]
struct Requests(AtomicU64);

impl Requests {
    fn by_handle(&self) {
        self.0.fetch_or(1, Ordering::SeqCst);
    }

    /// Adds the request of a timeout; returns its round.
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

/// Interrupt state of one store: the thread that runs it, and the requests.
#[derive(Debug)]
pub(crate) struct Interruption {
    requests: Requests,
    /// The kernel's id of the thread in the store's outermost activation, or 0.
    thread: AtomicI32,
    /// The state of the store while it runs, or null.
    store: AtomicPtr<ExecutionState>,
    /// Number of nested activations.
    depth: AtomicU32,
    /// The outermost activation is being left because of the requests.
    ends_outermost: AtomicBool,
    /// Where the last signal found the thread in compiled code, or where the thread will return to
    /// from a host function, if that is [asked for](super::Look); or 0.
    found_at: AtomicUsize,
    signal: i32,
}

impl Interruption {
    /// The state of a store that can be interrupted by this signal. Installs the handler for the
    /// signal.
    pub(crate) fn new(signal: i32) -> Arc<Self> {
        signals::install_interrupt(signal);
        Arc::new(Self {
            requests: Requests::default(),
            thread: AtomicI32::new(0),
            store: AtomicPtr::new(null_mut()),
            depth: AtomicU32::new(0),
            ends_outermost: AtomicBool::new(false),
            found_at: AtomicUsize::new(0),
            signal,
        })
    }

    /// The requests as compiled code sees them.
    pub(super) fn requests(&self) -> *const AtomicU64 {
        &raw const self.requests.0
    }

    /// Records that this thread runs the store, as long as the guard lives.
    pub(super) fn run(&self, store: *mut ExecutionState) -> Running<'_> {
        if self.depth.fetch_add(1, Ordering::Relaxed) == 0 {
            // SAFETY: takes nothing and touches no memory.
            let thread = unsafe { libc::gettid() };
            self.store.store(store, Ordering::SeqCst);
            self.thread.store(thread, Ordering::SeqCst);
        }
        Running(self)
    }

    /// Whether there is a request, in which case the innermost activation must be left.
    /// Async-signal-safe, on the thread that runs the store.
    pub(super) fn acknowledge(&self) -> bool {
        let requested = self.requests.is_any();
        if requested && self.depth.load(Ordering::Relaxed) <= 1 {
            self.ends_outermost.store(true, Ordering::Relaxed);
        }
        requested
    }

    /// Records where the signal has found the thread. Async-signal-safe.
    pub(super) fn find(&self, pc: usize) {
        self.found_at.store(pc, Ordering::SeqCst);
    }

    /// What was recorded since this was last called, or 0.
    pub(super) fn found_at(&self) -> usize {
        self.found_at.swap(0, Ordering::SeqCst)
    }

    /// The state of the store if this thread runs it. Async-signal-safe.
    pub(super) fn store_of_this_thread(&self) -> Option<*const ExecutionState> {
        // SAFETY: takes nothing and touches no memory.
        let thread = unsafe { libc::gettid() };
        let store = self.store.load(Ordering::SeqCst);
        // The thread is recorded after the store, and removed before it.
        (self.thread.load(Ordering::SeqCst) == thread && !store.is_null()).then_some(store.cast_const())
    }

    /// Whether there is a request.
    pub(super) fn is_requested(&self) -> bool {
        self.requests.is_any()
    }

    /// Whether a request is pending for a thread that is running.
    fn is_waited_for(&self) -> bool {
        self.requests.is_any() && self.thread.load(Ordering::SeqCst) != 0
    }

    /// Sends the signal to the thread that runs the store.
    pub(super) fn poke(&self) {
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            // If the thread has left the store in the meantime, the signal has no effect on it; if
            // it has ended, it gets none.
            own_signal::send(thread, self.signal);
        }
    }
}

/// Marks that this thread runs the store.
pub(super) struct Running<'a>(&'a Interruption);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.0.depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.thread.store(0, Ordering::SeqCst);
            self.0.store.store(null_mut(), Ordering::SeqCst);
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

    /// Requests that the store's program be stopped: the call that runs it returns the trap
    /// [`Trap::Interrupt`](super::Trap::Interrupt), as do the enclosing calls, if host functions
    /// called the program in turn. The request ends when the outermost call has returned. Returns
    /// immediately. Compiled code stops within about ten microseconds, or within milliseconds if
    /// the signal finds it in a probe's stub; a host function continues, but a system call in which
    /// it waits fails with `EINTR`, and the program stops when the function returns. If nothing
    /// runs in the store, the next call is stopped before it begins. Must not be called in a signal
    /// handler.
    pub fn interrupt(&self) {
        self.interruption.requests.by_handle();
        self.interruption.poke();
        // Without the repeating thread, only one signal is sent.
        let _ = repeater().map(|repeater| repeater.add(Due::again(&self.interruption, FIRST_PAUSE)));
    }

    /// Calls [`InterruptHandle::interrupt`] after this time, unless the guard is dropped before.
    ///
    /// # Errors
    /// The timer thread cannot be started.
    pub fn interrupt_after(&self, time: Duration) -> io::Result<Timeout> {
        let timer = Arc::new(Timer::default());
        // A time that the clock cannot represent never comes.
        if let Some(at) = Instant::now().checked_add(time) {
            let interruption = Arc::downgrade(&self.interruption);
            repeater()?.add(Due { at, pause: FIRST_PAUSE, interruption, timer: Some(timer.clone()) });
        }
        Ok(Timeout { handle: self.clone(), timer })
    }

    pub(super) fn interruption(&self) -> &Interruption {
        &self.interruption
    }

    /// Withdraws the pending requests of this handle, its clones and timeouts.
    pub fn withdraw(&self) {
        self.interruption.requests.end_round();
    }
}

/// A scheduled interrupt. Dropping it cancels the interrupt, or withdraws it if it is pending. In a
/// forked child, timeouts of the parent do not fire.
#[derive(Debug)]
#[must_use = "dropping it cancels the timeout"]
pub struct Timeout {
    handle: InterruptHandle,
    timer: Arc<Timer>,
}

impl Timeout {
    /// Whether the time has passed, and the interrupt was requested.
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
    /// The round of requests in which the timeout has fired.
    fired_in: OnceLock<u64>,
}

/// The next action of the repeating thread for a store.
#[derive(Debug)]
struct Due {
    at: Instant,
    /// The time until the next action after this one.
    pause: Duration,
    interruption: Weak<Interruption>,
    /// The timer, if this is a timeout that has not fired yet.
    timer: Option<Arc<Timer>>,
}

impl Due {
    fn again(interruption: &Arc<Interruption>, pause: Duration) -> Self {
        let interruption = Arc::downgrade(interruption);
        Self { at: Instant::now() + pause, pause, interruption, timer: None }
    }

    /// Sends the signal; returns the next action.
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

/// The thread that repeats signals, and its pending actions.
#[derive(Debug)]
struct Repeater {
    dues: Mutex<Vec<Due>>,
    added: Condvar,
}

impl Repeater {
    fn dues(&self) -> MutexGuard<'_, Vec<Due>> {
        self.dues.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Replaces the pending repetition for the same store, unless it is a timeout.
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

/// The repeating thread, with the process that it belongs to.
static REPEATER: Mutex<Option<(u32, &Repeater)>> = Mutex::new(None);

/// The thread, if it belongs to this process. A forked child has none of its parent's threads.
fn of_this_process(repeater: Option<(u32, &'static Repeater)>) -> Option<&'static Repeater> {
    repeater.filter(|(process, _)| *process == std::process::id()).map(|(_, repeater)| repeater)
}

fn started() -> Option<&'static Repeater> {
    of_this_process(*forks::lock(&REPEATER))
}

/// The process's repeating thread, started on first use. It blocks all signals of the program. No
/// thread forks while it is started: the child would find the lock held for ever.
fn repeater() -> io::Result<&'static Repeater> {
    let mut current = forks::lock(&REPEATER);
    if let Some(repeater) = of_this_process(*current) {
        return Ok(repeater);
    }
    let repeater: &Repeater = Box::leak(Box::new(Repeater { dues: Mutex::default(), added: Condvar::new() }));
    let thread = std::thread::Builder::new().name("wasm-interrupt".into()).stack_size(64 << 10);
    wordpatch::internal::with_signals_blocked(|| thread.spawn(|| repeater.run()))?;
    *current = Some((std::process::id(), repeater));
    Ok(repeater)
}
