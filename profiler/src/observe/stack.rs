//! Determines whether all probes of a thread have fired on one stack, the thread's own.
//!
//! What is concluded from the nesting of calls ([`crate::observe::pairing`]) holds on one stack
//! only. A thread that runs coroutines, or signal handlers on an alternate stack, has several.
//! Therefore each thread keeps the lowest and the highest stack pointer of its probes, and for any
//! conclusion both must be in the thread's stack. The service thread determines where that is when
//! a thread first needs it: the kernel's table of mappings is too expensive to be read for every
//! thread.
//!
//! The stack of a thread that the C library has created is the mapping of its thread control block,
//! below that block. The stack of the initial thread has the auxiliary data of the process at its
//! end; the kernel keeps 128 MiB below free for it (`mmap_base` of Linux).

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The space that the kernel keeps free for the stack of the initial thread, in bytes.
const OF_INITIAL_THREAD: usize = 128 << 20;

/// All zero is the initial state.
#[derive(Debug)]
pub(crate) struct Stack {
    /// The complement of the lowest stack pointer of a probe, and the highest one. Written by the
    /// thread.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// The address of the thread control block. Written by the thread, when the rest is reset.
    thread_control_block: AtomicUsize,
    /// One of [`state`], or an address, by the thread and by the service thread.
    state: AtomicUsize,
    /// The end of the stack: the first address after it.
    end: AtomicUsize,
}

/// The number of stacks on which a thread's probes have fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// Until the service thread has determined where the thread's own stack is.
    NotKnownYet,
    One,
    /// Also if the thread's own stack was not found.
    Several,
}

/// The state of the search for the stack; any other number is its lowest address.
mod state {
    pub(super) const UNUSED: usize = 0;
    pub(super) const WANTED: usize = 1;
    pub(super) const UNKNOWN: usize = 2;
}

impl Stack {
    /// Called by the thread at its first probe.
    pub(crate) fn begin(&self, thread_control_block: usize) {
        self.lowest.store(0, Relaxed);
        self.highest.store(0, Relaxed);
        self.state.store(state::UNUSED, Relaxed);
        self.thread_control_block.store(thread_control_block, Relaxed);
    }

    /// Called by the thread: one of its probes has fired with this stack pointer.
    #[inline(always)]
    pub(crate) fn used(&self, stack_pointer: usize) {
        if !stack_pointer > self.lowest.load(Relaxed) || stack_pointer > self.highest.load(Relaxed) {
            self.extend(stack_pointer);
        }
    }

    #[cold]
    fn extend(&self, stack_pointer: usize) {
        self.lowest.store(self.lowest.load(Relaxed).max(!stack_pointer), Relaxed);
        self.highest.store(self.highest.load(Relaxed).max(stack_pointer), Relaxed);
    }

    /// Whether all probes have certainly fired on the thread's own stack.
    pub(crate) fn number(&self) -> Number {
        // Acquire: pairs with the Release in `find`.
        match self.state.load(Acquire) {
            state::UNUSED => {
                self.state.store(state::WANTED, Release);
                Number::NotKnownYet
            }
            state::WANTED => Number::NotKnownYet,
            state::UNKNOWN => Number::Several,
            start => {
                let used = !self.lowest.load(Relaxed)..self.highest.load(Relaxed);
                let is_only = start <= used.start && used.end < self.end.load(Relaxed);
                if is_only { Number::One } else { Number::Several }
            }
        }
    }

    /// Determines where the stack is, if the thread needs it. Returns whether it has done so, which
    /// takes some tenths of a millisecond. Called by the service thread.
    pub(crate) fn find_if_wanted(&self) -> bool {
        // Acquire: the thread has called `begin` before.
        let is_wanted = self.state.load(Acquire) == state::WANTED;
        if is_wanted {
            self.find();
        }
        is_wanted
    }

    /// Whether all probes have certainly fired on the thread's own stack, whose place is determined
    /// if it is not known yet. Called by the service thread.
    pub(crate) fn is_only_now(&self) -> bool {
        if matches!(self.state.load(Acquire), state::UNUSED | state::WANTED) {
            self.find();
        }
        self.number() == Number::One
    }

    #[cold]
    fn find(&self) {
        let probe = self.highest.load(Relaxed);
        let contains_it = |stack: &Range<usize>| stack.contains(&probe);
        let stack = Some(of_initial_thread())
            .filter(contains_it)
            .or_else(|| of_thread(self.thread_control_block.load(Relaxed)).filter(contains_it));
        let start = stack.map_or(state::UNKNOWN, |stack| {
            self.end.store(stack.end, Relaxed);
            stack.start
        });
        // Release: the end first.
        self.state.store(start, Release);
    }
}

/// The part of the mapping of a thread control block that is below the block.
fn of_thread(thread_control_block: usize) -> Option<Range<usize>> {
    let mapping = region::query(std::ptr::without_provenance::<u8>(thread_control_block)).ok()?;
    Some(mapping.as_range().start..thread_control_block)
}

/// The stack of the initial thread, up to the name of the executable, which the kernel has put
/// there.
fn of_initial_thread() -> Range<usize> {
    // SAFETY: reads the auxiliary vector.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    name.saturating_sub(OF_INITIAL_THREAD)..name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> usize {
        let local = 0_u8;
        std::ptr::from_ref(std::hint::black_box(&local)).addr()
    }

    fn begun() -> Stack {
        let stack = Stack {
            lowest: AtomicUsize::new(7),
            highest: AtomicUsize::new(7),
            thread_control_block: AtomicUsize::new(0),
            state: AtomicUsize::new(state::UNKNOWN),
            end: AtomicUsize::new(0),
        };
        // SAFETY: the address of the calling thread's control block.
        stack.begin(unsafe { libc::pthread_self() } as usize);
        stack
    }

    #[test]
    fn a_thread_is_on_its_own_stack_or_on_another() {
        let check = || {
            let stack = begun();
            stack.used(here());
            assert_eq!(stack.number(), Number::NotKnownYet, "it was not needed before");
            assert!(stack.find_if_wanted() && stack.number() == Number::One);
            assert!(!stack.find_if_wanted(), "once is enough");
            let elsewhere = Box::new(0_u8);
            stack.used(std::ptr::from_ref(&*elsewhere).addr());
            stack.used(here());
            assert_eq!(stack.number(), Number::Several, "it was on another stack");
        };
        // The test's own thread is created by the C library, too.
        check();
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn a_thread_that_begins_on_another_stack_has_no_known_one() {
        let stack = begun();
        let elsewhere = vec![0_u8; 1 << 20];
        stack.used(elsewhere.as_ptr().addr() + (1 << 19));
        assert!(!stack.is_only_now() && !stack.is_only_now());
        assert_eq!((stack.state.load(Relaxed), stack.number()), (state::UNKNOWN, Number::Several));
    }

    #[test]
    fn the_stack_of_the_initial_thread_has_the_auxiliary_data() {
        let stack = of_initial_thread();
        // SAFETY: reads the auxiliary vector.
        let data = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
        assert!(stack.contains(&data) && !stack.contains(&here()), "this is not the initial thread");
    }
}
