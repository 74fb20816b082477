//! The functions that the library under exploration calls in place of the machine: reads and stores
//! of text, the site table, waits.
//!
//! A driver is a deterministic function of the answers to its [operations](Operation). Therefore it
//! needs no coroutine: to find its next operation after some answers, it is run from its beginning
//! in a *replay*, which gives it these answers again, and is unwound at the first operation without
//! an answer. Each function here returns `None` on a thread without a replay; the library then uses
//! the machine.
//!
//! While the driver is unwound, its guards are dropped and may request further operations. These
//! are not part of the execution: their answers make the guards end (nothing matches, every wait is
//! refused), and they are not recorded.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use crate::code::Code;

/// An operation that a driver requests. The text is that of `memory.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read bytes of text.
    Read {
        /// The address of the first byte.
        address: usize,
        /// The number of bytes.
        length: usize,
    },
    /// Compare bytes with `old` and replace them by `new` if they are equal, in one locked store.
    Exchange {
        /// The address of the first byte.
        address: usize,
        /// The expected bytes.
        old: Code,
        /// The new bytes.
        new: Code,
    },
    /// Acquire the record of a site in the table.
    Acquire {
        /// The site's address.
        site: usize,
    },
    /// Record that INT3 may be at the site.
    Lock {
        /// The site's address.
        site: usize,
        /// The bytes that INT3 and its successors replace.
        old: Code,
        /// The instruction of the out-of-line copy.
        copy: Code,
    },
    /// Release the record.
    Release {
        /// The site's address.
        site: usize,
    },
    /// Read from the record whether INT3 may be at the site.
    IsLocked {
        /// The site's address.
        site: usize,
    },
    /// Read the clock after all earlier stores, to start a wait.
    Clock,
    /// Poll whether no core executes bytes that were replaced before the clock was read.
    IsVisible {
        /// The time that was read.
        since: u64,
    },
    /// Wait for the assumed bound on staleness, since the clock was read. Cannot be refused.
    WaitForBound {
        /// The time that was read.
        since: u64,
    },
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The operation was done, or the answer is yes.
    Yes,
    /// The operation was not done, or the answer is no.
    No,
    /// The bytes that were found.
    Found(Code),
    /// The kernel refuses the operation.
    Refused,
}

impl Operation {
    /// The answer to an operation during unwinding.
    fn inert(&self) -> Answer {
        match self {
            Self::Read { length, .. } => Answer::Found(Code::zeros(*length)),
            Self::Exchange { old, .. } => Answer::Found(Code::zeros(old.len())),
            Self::Acquire { .. } => Answer::No,
            Self::Lock { .. }
            | Self::Release { .. }
            | Self::IsLocked { .. }
            | Self::Clock
            | Self::WaitForBound { .. } => Answer::Yes,
            Self::IsVisible { .. } => Answer::Refused,
        }
    }
}

/// The state of a driver after the known answers.
#[derive(Clone, Debug)]
pub(crate) enum Reached {
    /// It requests an operation.
    Asks {
        operation: Operation,
        /// Whether it currently excludes forks.
        in_step: bool,
        /// Whether it has not excluded forks at some time since its last operation.
        forkable: bool,
    },
    /// It has returned whether each change was made.
    Returned(Rc<[bool]>),
    /// It has panicked.
    Panicked(Rc<str>),
}

struct Replay {
    /// The operations that were answered, and how.
    answered: Vec<(Operation, Answer)>,
    next: usize,
    /// The first operation without an answer. Once there is one, the driver is being unwound.
    pending: Option<Operation>,
    /// The number of nested steps that exclude forks.
    steps: usize,
    forkable: bool,
    clock: u64,
}

thread_local! {
    static REPLAY: RefCell<Option<Replay>> = const { RefCell::new(None) };
    /// The number of replays that this thread has started.
    static REPLAYS: Cell<u64> = const { Cell::new(0) };
    /// The fetch window that the library assumes; 0 if the model does not set it.
    static WINDOW: Cell<usize> = const { Cell::new(0) };
    /// Instructions that were copied out of line. A copy is identified by its index.
    static COPIES: RefCell<Vec<Code>> = const { RefCell::new(Vec::new()) };
}

/// The payload with which a driver is unwound.
struct Suspended;

/// Runs `driver` with these answers, in a library that assumes this fetch window.
pub(crate) fn replay(
    answered: Vec<(Operation, Answer)>,
    window: usize,
    driver: &dyn Fn() -> Vec<bool>,
) -> Reached {
    REPLAYS.set(REPLAYS.get() + 1);
    let replay = Replay { answered, next: 0, pending: None, steps: 0, forkable: true, clock: 0 };
    assert!(REPLAY.replace(Some(replay)).is_none(), "a replay inside a replay");
    let result = with_window(window, || catch_unwind(AssertUnwindSafe(driver)));
    let replay = REPLAY.take().expect("the replay that was set above");
    match (result, replay.pending) {
        (Err(payload), Some(operation)) if payload.is::<Suspended>() => {
            // `steps` has not changed since the driver was suspended.
            Reached::Asks { operation, in_step: replay.steps > 0, forkable: replay.forkable }
        }
        (Ok(made), None) => {
            assert_eq!(replay.next, replay.answered.len(), "the driver is not deterministic");
            Reached::Returned(made.into())
        }
        (Err(payload), _) => Reached::Panicked(message(&*payload).into()),
        (Ok(_), Some(operation)) => panic!("the driver has caught the unwinding from {operation:?}"),
    }
}

fn message(payload: &dyn Any) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

/// Runs `act` in a library that assumes this fetch window.
pub fn with_window<R>(window: usize, act: impl FnOnce() -> R) -> R {
    let before = WINDOW.replace(window);
    let result = act();
    WINDOW.set(before);
    result
}

/// The fetch window that the library must assume on this thread.
pub fn window() -> Option<usize> {
    Some(WINDOW.get()).filter(|window| *window != 0)
}

fn ask(operation: Operation) -> Option<Answer> {
    enum Step {
        Answer(Answer),
        Suspend,
    }
    let what = REPLAY.with_borrow_mut(|replay| {
        let replay = replay.as_mut()?;
        if replay.pending.is_some() || std::thread::panicking() {
            return Some(Step::Answer(operation.inert()));
        }
        let Some((asked, answer)) = replay.answered.get(replay.next) else {
            replay.pending = Some(operation);
            return Some(Step::Suspend);
        };
        assert_eq!(*asked, operation, "the driver is not deterministic");
        replay.next += 1;
        replay.forkable = replay.steps == 0;
        Some(Step::Answer(*answer))
    })?;
    match what {
        Step::Answer(answer) => Some(answer),
        Step::Suspend => resume_unwind(Box::new(Suspended)),
    }
}

/// Reads bytes.
pub fn read(address: usize, length: usize) -> Option<Code> {
    match ask(Operation::Read { address, length })? {
        Answer::Found(found) => Some(found),
        other => unreachable!("{other:?}"),
    }
}

/// Replaces `old` by `new`, or returns the bytes found.
pub fn exchange(address: usize, old: &[u8], new: &[u8]) -> Option<Result<(), Code>> {
    match ask(Operation::Exchange { address, old: Code::new(old), new: Code::new(new) })? {
        Answer::Found(found) => Some(Err(found)),
        _ => Some(Ok(())),
    }
}

/// Acquires a site's record; returns whether it was free.
pub fn acquire(site: usize) -> Option<bool> {
    Some(ask(Operation::Acquire { site })? == Answer::Yes)
}

/// Records that INT3 may replace `old` at the site, and that threads continue in `copy` (of
/// [`copy_of`]).
pub fn lock(site: usize, copy: usize, old: &[u8]) -> Option<()> {
    let copy = COPIES.with_borrow(|copies| copies.get(copy).copied())?;
    ask(Operation::Lock { site, old: Code::new(old), copy }).map(drop)
}

/// Releases the record.
pub fn release(site: usize) -> Option<()> {
    ask(Operation::Release { site }).map(drop)
}

/// Whether the record is locked: INT3 may be at the site.
pub fn is_locked(site: usize) -> Option<bool> {
    Some(ask(Operation::IsLocked { site })? == Answer::Yes)
}

/// The index of the out-of-line copy of this instruction.
pub fn copy_of(instruction: &[u8]) -> Option<usize> {
    if REPLAY.with_borrow(Option::is_none) {
        return None;
    }
    let instruction = Code::new(instruction);
    COPIES.with_borrow_mut(|copies| {
        let known = copies.iter().position(|copy| *copy == instruction);
        Some(known.unwrap_or_else(|| {
            copies.push(instruction);
            copies.len() - 1
        }))
    })
}

/// The time, after all earlier stores.
pub fn clock() -> Option<u64> {
    ask(Operation::Clock)?;
    REPLAY.with_borrow_mut(|replay| {
        let replay = replay.as_mut()?;
        replay.clock += 1;
        Some(replay.clock)
    })
}

/// The kernel has refused a wait.
#[derive(Debug)]
pub struct Refused;

/// Whether no core executes bytes that were replaced before this time.
pub fn is_visible(since: u64) -> Option<Result<bool, Refused>> {
    Some(match ask(Operation::IsVisible { since })? {
        Answer::Refused => Err(Refused),
        answer => Ok(answer == Answer::Yes),
    })
}

/// Waits for the assumed bound on staleness after this time.
pub fn wait_for_bound(since: u64) -> Option<()> {
    ask(Operation::WaitForBound { since }).map(drop)
}

/// Excludes forks from now on. Returns whether a driver is being replayed.
pub fn step_begins() -> bool {
    change_steps(1)
}

/// Ends the exclusion of forks. Returns whether a driver is being replayed.
pub fn step_ends() -> bool {
    change_steps(-1)
}

fn change_steps(by: isize) -> bool {
    REPLAY.with_borrow_mut(|replay| {
        let Some(replay) = replay.as_mut().filter(|replay| replay.pending.is_none()) else { return false };
        replay.steps = replay.steps.checked_add_signed(by).expect("steps end once");
        replay.forkable |= replay.steps == 0;
        true
    })
}

/// A static that is new in each replay, and on each thread.
#[derive(Debug)]
pub struct PerReplay<T: 'static> {
    make: fn() -> T,
}

impl<T> PerReplay<T> {
    /// A static whose initial value is that of `make`.
    pub const fn new(make: fn() -> T) -> Self {
        Self { make }
    }
}

impl<T: 'static> Deref for PerReplay<T> {
    type Target = T;

    /// Values are never freed, because guards of them may outlive the replay. There are few of
    /// them, and replays are short.
    fn deref(&self) -> &T {
        type Values = HashMap<usize, (u64, &'static dyn Any)>;
        thread_local! {
            static VALUES: RefCell<Values> = RefCell::default();
        }
        let (key, now) = (std::ptr::from_ref(self).addr(), REPLAYS.get());
        let known = VALUES.with_borrow(|values| values.get(&key).copied());
        let value = match known {
            Some((of, value)) if of == now => value,
            _ => {
                let new: &'static dyn Any = Box::leak(Box::new((self.make)()));
                VALUES.with_borrow_mut(|values| values.insert(key, (now, new)));
                new
            }
        };
        value.downcast_ref().expect("one static, one type")
    }
}
