//! Finds the pieces of unlinked code that threads are still executing or will return to. The others
//! may be freed.
//!
//! # The algorithm
//! 1. Every core executes a serializing instruction ([`serialize_all_cores`]). Everything that led
//!    to the pieces was changed before, so no thread enters them from now on.
//! 2. A store in which nothing runs has no thread in the pieces. A thread that runs a store records
//!    this before it enters code ([`RunningStack`](super::state::RunningStack)), so a thread whose
//!    record is not seen here enters code after step 1.
//! 3. The other stores' threads get the engine's signal. Its handler looks at the program counter,
//!    at the registers (a tail call moves its return address through one), at every word of the
//!    store's stack from the stack pointer up, and at the frames of enclosing activations on other
//!    stacks. A word that is an address in a piece counts as a return address. Frames therefore
//!    need no maps, and host frames in between do not matter.
//! 4. If one of the threads does not answer in time, nothing is known: it may have blocked the
//!    signal, may not have been scheduled, or may be in a host function that runs on a separate
//!    stack.
//!
//! A thread pays nothing for this until it is asked, except four stores for each outermost call,
//! which record the thread that runs the store, and its process.
//!
//! In a forked child, stores that other threads of the parent were running stay as they are, but no
//! thread is in them ([`forked`]).

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wordpatch::serialize_all_cores;

use super::published::Published;
use super::state::current_thread;
use super::{Activation, ExecutionState, forked, own_signal, signals};
use crate::code::forks;

/// The maximum time to wait for answers. A thread that is scheduled answers within a few
/// microseconds.
const PATIENCE: Duration = Duration::from_millis(100);

/// The interval at which answers are checked.
const PAUSE: Duration = Duration::from_micros(20);

/// The current question.
static ASKED: Published<Question> = Published::new();

/// A piece of code.
#[derive(Debug)]
struct Piece {
    addresses: Range<usize>,
    is_used: AtomicBool,
}

/// A store that runs.
#[derive(Debug)]
struct Running {
    store: NonNull<ExecutionState>,
    thread: i32,
    has_answered: AtomicBool,
}

// SAFETY: of a store, other threads read atomics and a field that never changes; the rest is read
// by the thread that runs the store.
unsafe impl Sync for Running {}

#[derive(Debug)]
struct Question {
    /// The pieces, in ascending order.
    pieces: Vec<Piece>,
    stores: Vec<Running>,
}

/// Whether each of these pieces of code, which are in ascending order and do not end with a call,
/// is in use by a thread that runs one of these stores. `None` if that is not known. Waits for the
/// threads, at most about 100 ms; a system call in which one of them waits fails with `EINTR`.
///
/// # Safety
/// Each state is the [`ExecutionState`] of a store that stays alive during the call. Only frames of
/// these stores lead to the pieces.
pub(crate) unsafe fn code_in_use(pieces: &[Range<usize>], stores: &[NonNull<()>]) -> Option<Vec<bool>> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = forks::lock(&TURN);
    serialize_all_cores().ok()?;
    let running = |store: &NonNull<()>| {
        let store: NonNull<ExecutionState> = store.cast();
        // SAFETY: the caller's obligation.
        let record = unsafe { &(*store.as_ptr()).stack };
        record.may_run().then(|| Running {
            store,
            thread: record.thread(),
            has_answered: AtomicBool::new(false),
        })
    };
    let question = Question {
        pieces: pieces
            .iter()
            .map(|piece| Piece { addresses: piece.clone(), is_used: AtomicBool::new(false) })
            .collect(),
        stores: stores.iter().filter_map(running).collect(),
    };
    // This thread is in the runtime: frames of its stores are above this one.
    question.answer(current_thread(), &[], std::ptr::from_ref(&question).addr());
    let is_known = question.is_answered() || question.ask();
    is_known.then(|| question.pieces.into_iter().map(|piece| piece.is_used.into_inner()).collect())
}

impl Question {
    /// Asks the threads that have not answered. Returns whether all have.
    fn ask(&self) -> bool {
        let start = Instant::now();
        let asked = ASKED.publish(self);
        for running in self.stores.iter().filter(|running| !running.has_answered()) {
            // SAFETY: the store stays as long as the question is asked, and the field never
            // changes.
            let signal = unsafe { (*running.store.as_ptr()).signal };
            signals::install_interrupt(signal);
            own_signal::send(forked::kernel_id(running.thread), signal);
        }
        while !self.is_answered() && start.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
        drop(asked);
        self.is_answered()
    }

    /// Whether all stores' threads have answered, or have left the stores.
    fn is_answered(&self) -> bool {
        self.stores.iter().all(Running::has_answered)
    }

    /// A thread answers for the stores that it runs, with these registers, the program counter
    /// among them, and the stack pointer `sp`. Async-signal-safe.
    fn answer(&self, thread: i32, registers: &[libc::greg_t], sp: usize) {
        for running in self.stores.iter().filter(|running| running.thread == thread) {
            if running.has_answered() {
                continue;
            }
            // SAFETY: the stores stay as long as the question is asked, and this thread runs the
            // store, so nothing else changes its state.
            let store = unsafe { running.store.as_ref() };
            if store.stack.contains(sp) {
                registers.iter().for_each(|register| self.word(*register as usize));
                // A trap that has been found, and is about to be recorded.
                self.word(store.vm.raised_pc);
                store.vm.raised_registers.iter().for_each(|register| self.word(*register as usize));
                self.words(sp..store.stack.top());
                // SAFETY: an activation is on the stack of the `enter` that waits for the nested
                // one.
                let outer = |activation: *const Activation| unsafe { activation.as_ref() };
                for activation in std::iter::successors(outer(store.outer), |inner| outer(inner.outer())) {
                    let (start, end) = activation.frames();
                    if !(sp..store.stack.top()).contains(&start) {
                        self.words(start..end);
                    }
                }
                running.has_answered.store(true, Ordering::Release);
            }
        }
    }

    /// Looks at the words of frames of this thread.
    fn words(&self, frames: Range<usize>) {
        for address in (frames.start.next_multiple_of(8)..frames.end & !7).step_by(8) {
            // SAFETY: mapped: between a stack pointer of the thread, and an address in an outer
            // frame of the same stack. The handler's own words may change at the same time.
            self.word(unsafe { std::ptr::with_exposed_provenance::<usize>(address).read_volatile() });
        }
    }

    /// Looks at a word that may be a code address.
    fn word(&self, word: usize) {
        let after = self.pieces.partition_point(|piece| piece.addresses.start <= word);
        let piece = after.checked_sub(1).map(|at| &self.pieces[at]);
        if let Some(piece) = piece.filter(|piece| piece.addresses.contains(&word)) {
            piece.is_used.store(true, Ordering::Relaxed);
        }
    }
}

impl Running {
    fn has_answered(&self) -> bool {
        // SAFETY: the store stays as long as the question is asked.
        let record = unsafe { &(*self.store.as_ptr()).stack };
        // A store that has been left since it was found running needs no answer.
        if record.top() == 0 || record.thread() != self.thread {
            self.has_answered.store(true, Ordering::Release);
        }
        self.has_answered.load(Ordering::Acquire)
    }
}

/// Answers the current question, if there is one, on a thread that a signal has found with these
/// registers. If the stack pointer is in the thread's alternate signal stack, another handler was
/// interrupted, and the location of the other frames is unknown. Async-signal-safe.
pub(super) fn answer(registers: &[libc::greg_t], alternate: &libc::stack_t) {
    let sp = registers[libc::REG_RSP as usize] as usize;
    if (alternate.ss_sp.addr()..alternate.ss_sp.addr() + alternate.ss_size).contains(&sp) {
        return;
    }
    ASKED.visit(|question| question.answer(forked::current_thread_in_handler(), registers, sp));
}

/// In a forked child, before it does anything else.
pub(super) fn in_child() {
    ASKED.in_child();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trap::DEFAULT_SIGNAL;

    const PIECES: [Range<usize>; 3] = [0x1000..0x1040, 0x1040..0x1060, 0x1080..0x1100];
    /// An address in none of the pieces.
    const ELSEWHERE: usize = 0x1070;

    fn question(store: &mut ExecutionState) -> Question {
        let piece = |addresses| Piece { addresses, is_used: AtomicBool::new(false) };
        let thread = current_thread();
        let store = NonNull::from(store);
        Question {
            pieces: PIECES.map(piece).into(),
            stores: vec![Running { store, thread, has_answered: AtomicBool::new(false) }],
        }
    }

    /// A store that this thread runs, on a stack that consists of these words.
    fn running(words: &[usize]) -> ExecutionState {
        let store = ExecutionState::new(DEFAULT_SIGNAL);
        let range = words.as_ptr_range();
        store.stack.change(range.start.addr() - 64, range.end.addr());
        store
    }

    /// Which pieces are used by a thread with this value in a register, whose stack pointer leads
    /// to the word with this number.
    fn used(store: &mut ExecutionState, register: usize, words: &[usize], from: usize) -> Option<[bool; 3]> {
        let question = question(store);
        question.answer(current_thread(), &[0, register as i64], words[from..].as_ptr().addr());
        let used = |piece: &Piece| piece.is_used.load(Ordering::Relaxed);
        question.is_answered().then(|| std::array::from_fn(|at| used(&question.pieces[at])))
    }

    #[test]
    fn a_thread_uses_the_code_that_it_executes() {
        let words = [ELSEWHERE; 4];
        let mut store = running(&words);
        assert_eq!(used(&mut store, ELSEWHERE, &words, 0), Some([false; 3]));
        assert_eq!(used(&mut store, 0x1040, &words, 0), Some([false, true, false]));
        assert_eq!(used(&mut store, 0x10ff, &words, 0), Some([false, false, true]));
        assert_eq!(used(&mut store, 0x1100, &words, 0), Some([false; 3]));
        assert_eq!(used(&mut store, 0xfff, &words, 0), Some([false; 3]));
    }

    #[test]
    fn a_thread_uses_the_code_that_it_returns_to() {
        let words = [0x1000, ELSEWHERE, 0x1085, 0];
        let mut store = running(&words);
        assert_eq!(used(&mut store, 0, &words, 0), Some([true, false, true]));
        assert_eq!(used(&mut store, 0, &words, 1), Some([false, false, true]), "frames that have ended");
        assert_eq!(used(&mut store, 0, &words, 3), Some([false; 3]));
    }

    #[test]
    fn the_place_of_a_trap_that_is_being_captured_is_in_use() {
        let words = [0; 2];
        let mut store = running(&words);
        store.vm.raised_pc = 0x1050;
        assert_eq!(used(&mut store, 0, &words, 0), Some([false, true, false]));
        store.vm.raised_registers[11] = 0x1000;
        assert_eq!(used(&mut store, 0, &words, 0), Some([true, true, false]));
    }

    #[test]
    fn enclosing_activations_may_be_on_another_stack() {
        let (words, others) = ([0; 2], [0x1000, 0x1040, 0x1080, ELSEWHERE]);
        let mut store = running(&words);
        let address = |number: usize| others[number..].as_ptr().addr();
        let activation = |from: usize, to: usize, outer| Activation {
            activation_fp: address(to),
            exit_fp: 0,
            exit_sp: address(from),
            outer,
        };
        let outermost = activation(2, 3, std::ptr::null());
        let outer = activation(0, 1, &outermost);
        store.outer = &outer;
        assert_eq!(used(&mut store, 0, &words, 0), Some([true, false, true]));
    }

    #[test]
    fn what_is_not_known_is_not_answered() {
        let words = [0; 4];
        let mut store = running(&words);
        let outside = [0; 2];
        assert_eq!(used(&mut store, 0, &outside, 0), None, "a host function on another stack");
        let question = question(&mut store);
        question.answer(current_thread() + 1, &[], words.as_ptr().addr());
        assert!(!question.is_answered(), "another thread's answer");
        store.stack.restore([0, 0]);
        assert!(question.is_answered(), "the store was left");
    }

    /// A store whose record says that this thread runs it, on its present stack, up to this word.
    fn running_here(above: &usize) -> ExecutionState {
        let store = ExecutionState::new(DEFAULT_SIGNAL);
        let top = std::ptr::from_ref(above).addr() + size_of::<usize>();
        store.stack.change(top - (1 << 20), top);
        store
    }

    /// A process forks while another thread is in the handler, and runs a store. In the child, only
    /// the store of the thread that has forked is in use.
    #[test]
    fn a_child_has_only_the_thread_that_has_forked() {
        forked::follow();
        let in_second_piece = 0x1048;
        let own = running_here(std::hint::black_box(&in_second_piece));
        let words = [0; 4];
        let of_another = std::thread::scope(|scope| {
            scope.spawn(|| (&raw const *Box::leak(Box::new(running(&words)))).expose_provenance()).join()
        });
        let stores = [(&raw const own).expose_provenance(), of_another.unwrap()];
        let used = || {
            let stores =
                stores.map(|store| NonNull::new(std::ptr::with_exposed_provenance_mut(store)).unwrap());
            // SAFETY: the stores stay, and no code is at these addresses.
            unsafe { code_in_use(&PIECES, &stores) }
        };
        let in_child = || {
            let has_no_visitor = ASKED.visitors.load(Ordering::SeqCst) == 0;
            let by_itself = used();
            let by_another = std::thread::scope(|scope| {
                // The thread that has forked may not be scheduled at first.
                scope.spawn(|| std::iter::repeat_with(used).find_map(|used| used)).join().unwrap()
            });
            has_no_visitor && [by_itself, by_another].into_iter().all(|used| used.is_some_and(|used| used[1]))
        };
        ASKED.visitors.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`, or is
        // killed if it hangs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(20);
                libc::_exit(i32::from(!in_child()))
            }
        }
        ASKED.visitors.fetch_sub(1, Ordering::SeqCst);
        let mut status = -1;
        // SAFETY: waits for the child, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
