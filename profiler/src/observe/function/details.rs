//! The part of a function's state that most functions of a large program do not need.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use fastinst_sigsafe::pool::{Pool, Zeroed};

use super::lost::Lost;

/// The state of a function that is called more than a few times, or has long calls. Times are in
/// ticks.
#[repr(align(64))]
pub(super) struct Details {
    /// The time at which the limit was reached.
    pub(super) ended: AtomicU64,
    /// For a window whose times are not determined yet: the own time after which it opens, and its
    /// length.
    pub(super) delay: AtomicU64,
    pub(super) length: AtomicU64,
    /// The time that the program's only thread had spent in probes when the window was begun.
    pub(super) spent_by_then: AtomicU64,
    /// The time that a thread had lost when the window opened, or shortly before; and the time that
    /// it spent in probes from then until the window closed.
    pub(super) before: Lost,
    pub(super) overhead: AtomicU64,
    /// The observation whose limit was reached.
    pub(super) exceeded_in: AtomicU32,
    /// The time at which the allowance was refilled; 0 if it has not been since the function was
    /// switched on.
    pub(super) refilled: AtomicU64,
    /// The part of the allowance that was added because the function is called rarely.
    pub(super) for_rare: AtomicU32,
    /// The time of long calls that have returned since.
    pub(super) inside: AtomicU64,
    /// The time of the entry in the middle between the last refill and the limit, and the time that
    /// its thread had lost by then.
    pub(super) middle_at: AtomicU64,
    pub(super) middle_lost: Lost,
    /// The program's own time between the middle and the limit.
    pub(super) own_since_middle: AtomicU64,
}

impl Details {
    const fn new() -> Self {
        Self {
            ended: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            length: AtomicU64::new(0),
            spent_by_then: AtomicU64::new(0),
            before: Lost::new(),
            overhead: AtomicU64::new(0),
            exceeded_in: AtomicU32::new(0),
            refilled: AtomicU64::new(0),
            for_rare: AtomicU32::new(0),
            inside: AtomicU64::new(0),
            middle_at: AtomicU64::new(0),
            middle_lost: Lost::new(),
            own_since_middle: AtomicU64::new(0),
        }
    }
}

// SAFETY: atomic numbers, aligned to a cache line.
unsafe impl Zeroed for Details {}

static DETAILS: Pool<Details> = Pool::new();

/// Used by all functions for which there is no memory: their figures are mixed up then.
static SHARED: Details = Details::new();

static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// The note in a report whose figures may be wrong because memory was missing.
pub(crate) fn note() -> Option<&'static str> {
    IS_SHARED
        .load(Relaxed)
        .then_some("memory could not be allocated: figures of functions that are called often are wrong")
}

/// Bytes of memory of the details of all functions.
pub(crate) fn memory() -> usize {
    DETAILS.memory()
}

/// The details of one function, if it has any.
#[derive(Default)]
pub(super) struct Detailed(AtomicPtr<Details>);

impl Detailed {
    /// The details, if they were needed before.
    #[inline]
    pub(super) fn get(&self) -> Option<&'static Details> {
        // SAFETY: null or details, which are never freed. Acquire: pairs with the Release in
        // `make`.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// The details, which are made if there are none. Probes call this.
    #[inline]
    pub(super) fn get_or_make(&self) -> &'static Details {
        self.get().unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> &'static Details {
        let new = DETAILS.take().unwrap_or_else(|| {
            IS_SHARED.store(true, Relaxed);
            &SHARED
        });
        let pointer = ptr::from_ref(new).cast_mut();
        match self.0.compare_exchange(ptr::null_mut(), pointer, AcqRel, Acquire) {
            Ok(_) => new,
            // SAFETY: made by another thread at the same time, and never freed.
            Err(other) => unsafe { &*other },
        }
    }
}
