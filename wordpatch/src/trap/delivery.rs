//! A delivery of the signal: its frame, and the entries that it has passed.
//!
//! A delivery begins when the signal first reaches an entry, and ends when that call returns or a
//! handler makes a non-local exit. During this time, a slot, found by the thread's id, contains the
//! delivery's state for the entries that are called from there. A handler without SA_SIGINFO does
//! not pass on the pointers, so they are in the slot.
//!
//! # Stale slots
//! After a non-local exit, the slot is not cleared. Therefore a slot is valid only
//! 1. for a call from deeper in the stack than the call that filled it;
//! 2. if the frame that it names contains our [`TAG`]: the kernel clears that word for each signal.
//!    This matters if the next signal is delivered at the same stack depth.
//!
//! A slot belongs to a thread until that thread's outermost delivery returns, or the thread ends.
//! If all [`SLOTS`] are in use by live threads, a delivery has no slot, and cycles of handlers are
//! not broken.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use super::chain::{self, Entry};
use super::frame::{self, Context};
use crate::thread_id::thread_id;

/// Marks the frame of a delivery that a slot describes.
const TAG: u64 = u64::from_le_bytes(*b"int3 fwd");

const SLOTS: usize = 128;

/// The stack, in bytes, that a handler may use between two entries.
const REACH: usize = 1 << 20;

/// The state of a thread's current delivery. Only this thread changes it, but it may be interrupted
/// at any instruction by a delivery that uses the same slot and restores it.
struct Slot {
    /// The thread's id, or 0.
    thread: AtomicI32,
    /// The stack pointer at the call of the first entry; 0 if the other fields are not valid.
    stack: AtomicUsize,
    /// The context in the kernel's frame, or null if it is unknown.
    context: AtomicUsize,
    info: AtomicUsize,
    /// Bit N: entry N has been passed.
    passed: AtomicU32,
}

static TABLE: [Slot; SLOTS] = [const { Slot::free() }; SLOTS];

/// The contents of a slot.
#[derive(Clone, Copy)]
struct State {
    stack: usize,
    context: usize,
    info: usize,
    passed: u32,
}

impl State {
    const NONE: Self = Self { stack: 0, context: 0, info: 0, passed: 0 };

    /// Whether a call with this stack pointer may have been made inside the delivery.
    fn encloses(&self, stack: usize) -> bool {
        stack < self.stack && self.stack - stack <= REACH
    }
}

impl Slot {
    const fn free() -> Self {
        Self {
            thread: AtomicI32::new(0),
            stack: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            info: AtomicUsize::new(0),
            passed: AtomicU32::new(0),
        }
    }

    fn load(&self) -> State {
        State {
            stack: self.stack.load(Ordering::Acquire),
            context: self.context.load(Ordering::Acquire),
            info: self.info.load(Ordering::Acquire),
            passed: self.passed.load(Ordering::Acquire),
        }
    }

    /// A delivery that interrupts this finds the slot either empty or complete.
    fn store(&self, state: State) {
        self.stack.store(0, Ordering::Release);
        self.context.store(state.context, Ordering::Release);
        self.info.store(state.info, Ordering::Release);
        self.passed.store(state.passed, Ordering::Release);
        self.stack.store(state.stack, Ordering::Release);
    }
}

fn slot_of(thread: libc::pid_t) -> Option<&'static Slot> {
    TABLE.iter().find(|slot| slot.thread.load(Ordering::Relaxed) == thread)
}

/// This thread's slot: the one that it has, a free one, or that of a thread that ended in the
/// middle of a delivery.
fn claim() -> Option<&'static Slot> {
    let thread = thread_id();
    let take = |slot: &&Slot, from| {
        slot.thread.compare_exchange(from, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    slot_of(thread).or_else(|| TABLE.iter().find(|slot| take(slot, 0))).or_else(|| {
        TABLE.iter().find(|slot| {
            let owner = slot.thread.load(Ordering::Relaxed);
            has_ended(owner) && {
                let taken = take(slot, owner);
                if taken {
                    slot.store(State::NONE);
                }
                taken
            }
        })
    })
}

fn has_ended(thread: libc::pid_t) -> bool {
    // SAFETY: all are async-signal-safe; signal 0 only checks that the thread exists. `errno`,
    // which is the interrupted thread's, is restored.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let has_ended =
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) != 0 && *errno == libc::ESRCH;
        *errno = before;
        has_ended
    }
}

/// A delivery that has reached an entry.
pub(super) struct Delivery {
    info: *mut libc::siginfo_t,
    context: *mut Context,
    /// Whether the pointers are those of the kernel's frame.
    is_known: bool,
    stack: usize,
}

/// The slot that [`Delivery::enter`] has changed, and its contents before.
pub(super) struct Entered {
    slot: &'static Slot,
    before: State,
}

impl Delivery {
    /// Finds the frame of the delivery, in the arguments or in the thread's slot.
    ///
    /// # Safety
    /// `info` and `context` must be the entry's arguments, and `stack` the stack pointer on entry.
    pub(super) unsafe fn identify(
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        stack: usize,
    ) -> Self {
        let context = context.cast();
        let is_known = frame::is_call_by_kernel(context, stack) || frame::is_frame(info, context);
        let given = Self { info, context, is_known, stack };
        if is_known {
            return given;
        }
        let enclosing = slot_of(thread_id()).map(Slot::load).filter(|state| state.encloses(stack));
        match enclosing.filter(|state| state.context != 0) {
            Some(state) => Self {
                info: std::ptr::with_exposed_provenance_mut(state.info),
                context: std::ptr::with_exposed_provenance_mut(state.context),
                is_known: true,
                stack,
            },
            None => given,
        }
    }

    pub(super) fn context(&mut self) -> Option<&mut Context> {
        // SAFETY: the kernel's frame, on this thread's stack until the handler that it called has
        // returned.
        self.is_known.then(|| unsafe { &mut *self.context })
    }

    /// The kernel's information about the signal. `None` if the kernel has called a handler without
    /// SA_SIGINFO: then it does not write `info`.
    pub(super) fn info(&self) -> Option<libc::siginfo_t> {
        // SAFETY: as in `context`.
        let info = self.is_known.then(|| unsafe { self.info.read() });
        info.filter(|info| info.si_signo == libc::SIGTRAP)
    }

    /// The signal's code, if it is known.
    pub(super) fn code(&self) -> Option<libc::c_int> {
        self.info().map(|info| info.si_code)
    }

    /// The arguments for calling a handler.
    pub(super) fn pointers(&self) -> (*mut libc::siginfo_t, *mut libc::c_void) {
        (self.info, self.context.cast())
    }

    /// The slot that already describes this delivery.
    fn slot(&mut self) -> Option<&'static Slot> {
        let slot = slot_of(thread_id())?;
        let state = slot.load();
        let context = if self.is_known { self.context.addr() } else { 0 };
        let is_current = self.context().is_none_or(|context| context.link == TAG);
        (state.encloses(self.stack) && state.context == context && is_current).then_some(slot)
    }

    /// The entry whose action receives the trap after it has reached the entry `number`, or `None`
    /// if no action is left; and the entries passed.
    pub(super) fn next(&mut self, number: usize) -> (Option<&'static Entry>, u32) {
        let slot = self.slot();
        let mut passed = match slot {
            Some(slot) => slot.passed.load(Ordering::Acquire),
            None if frame::is_call_by_kernel(self.context, self.stack) => 0,
            None => chain::passed_by_handler(),
        };
        let next = chain::next(number, &mut passed);
        if let Some(slot) = slot {
            slot.passed.store(passed, Ordering::Release);
        }
        (next, passed)
    }

    /// Records this delivery for the entries that are reached before [`leave`](Self::leave), unless
    /// it is recorded already.
    pub(super) fn enter(&mut self, passed: u32) -> Option<Entered> {
        if self.slot().is_some() {
            return None;
        }
        let slot = claim()?;
        let before = slot.load();
        let (context, info) =
            if self.is_known { (self.context, self.info) } else { (null_mut(), null_mut()) };
        slot.store(State {
            stack: self.stack,
            context: context.expose_provenance(),
            info: info.expose_provenance(),
            passed,
        });
        if let Some(context) = self.context() {
            context.link = TAG;
        }
        Some(Entered { slot, before })
    }

    /// Restores the slot after the handler has returned.
    pub(super) fn leave(&mut self, entered: Option<Entered>) {
        let Some(Entered { slot, before }) = entered else { return };
        if let Some(context) = self.context() {
            context.link = 0;
        }
        if before.encloses(self.stack) {
            slot.store(before);
        } else {
            slot.store(State::NONE);
            slot.thread.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, Mutex, MutexGuard};

    /// Locks the table for one test.
    fn whole_table() -> MutexGuard<'static, ()> {
        static TESTS: Mutex<()> = Mutex::new(());
        TESTS.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The kernel's frame on the stack.
    #[repr(C, align(16))]
    struct Frame {
        context: Context,
        info: libc::siginfo_t,
    }

    impl Frame {
        fn new() -> Self {
            // SAFETY: all zero is valid.
            Self { context: Context::at(0, 0), info: unsafe { std::mem::zeroed() } }
        }

        /// The delivery of this frame to an entry that is called with the stack pointer `stack`.
        fn delivery(&mut self, stack: usize) -> Delivery {
            let context = &raw mut self.context;
            // SAFETY: the pointers are those of one frame; the stack pointer is only compared.
            unsafe { Delivery::identify(&raw mut self.info, context.cast(), stack) }
        }
    }

    #[test]
    fn calls_from_deeper_in_the_stack_belong_to_a_delivery() {
        const STACK: usize = 1 << 30;
        let state = State { stack: STACK, ..State::NONE };
        assert!(state.encloses(STACK - 8) && state.encloses(STACK - REACH));
        assert!(!state.encloses(STACK), "the next signal may be delivered at the same depth");
        assert!(!state.encloses(STACK + 8));
        assert!(!state.encloses(STACK - REACH - 8), "another stack");
        assert!(!State::NONE.encloses(8));
    }

    /// The kernel does not write `info` when it calls a handler without SA_SIGINFO.
    #[test]
    fn the_code_is_known_if_the_info_is_of_this_signal() {
        let mut frame = Frame::new();
        frame.info.si_code = libc::SI_TKILL;
        for (signal, code) in [(libc::SIGTRAP, Some(libc::SI_TKILL)), (0, None), (libc::SIGUSR1, None)] {
            frame.info.si_signo = signal;
            assert_eq!(frame.delivery(0x9000_0000).code(), code, "{signal}");
        }
    }

    #[test]
    fn a_slot_belongs_to_a_thread_until_its_outermost_delivery_returns() {
        let _table = whole_table();
        let slot = || slot_of(thread_id());
        let (mut outer, mut inner) = (Frame::new(), Frame::new());
        let mut first = outer.delivery(0x9000_0000);
        let entered_first = first.enter(1);
        assert!(entered_first.is_some());
        let mut second = inner.delivery(0x8fff_0000);
        let entered_second = second.enter(2);
        assert!(entered_second.is_some());
        // A handler passes the second delivery on.
        let mut passed_on = inner.delivery(0x8ffe_0000);
        assert!(passed_on.enter(4).is_none(), "it is recorded already");
        passed_on.leave(None);
        assert_eq!(slot().unwrap().load().passed, 2);
        second.leave(entered_second);
        let left = slot().expect("the first one has not returned").load();
        assert_eq!((left.passed, left.context), (1, (&raw const outer.context).addr()));
        let slot_of_first = slot().unwrap();
        first.leave(entered_first);
        assert!(slot().is_none());
        assert_eq!(slot_of_first.load().stack, 0);
        assert_eq!((outer.context.link, inner.context.link), (0, 0));
    }

    #[test]
    fn slots_are_acquired_only_from_threads_that_have_ended() {
        let _table = whole_table();
        let (claimed, looked) = (Barrier::new(SLOTS + 1), Barrier::new(SLOTS + 1));
        let threads: Vec<libc::pid_t> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..SLOTS)
                .map(|_| {
                    scope.spawn(|| {
                        let slot = claim();
                        claimed.wait();
                        looked.wait();
                        let state = State { stack: usize::MAX, context: 8, info: 8, passed: 1 };
                        slot.expect("there is one for each").store(state);
                        thread_id()
                    })
                })
                .collect();
            claimed.wait();
            assert!(claim().is_none(), "every slot belongs to a thread that is alive");
            looked.wait();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // A thread that was joined may still be ending in the kernel.
        while !threads.iter().all(|thread| has_ended(*thread)) {
            std::thread::yield_now();
        }
        let slot = claim().expect("no owner is alive");
        assert_eq!(slot.thread.load(Ordering::Relaxed), thread_id());
        assert_eq!(slot.load().stack, 0, "the other thread's state is cleared");
        slot.thread.store(0, Ordering::Relaxed);
    }
}
