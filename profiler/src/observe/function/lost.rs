//! The time that a thread has lost to probes and preemption.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::OwnTime;

/// The time that a thread had lost at a certain moment: time that is not the program's own.
pub(super) struct Lost {
    /// [`OwnTime::number`], or 0 for none.
    thread: AtomicUsize,
    spent: AtomicU64,
    preempted: AtomicU64,
}

impl Lost {
    pub(super) const fn new() -> Self {
        Self { thread: AtomicUsize::new(0), spent: AtomicU64::new(0), preempted: AtomicU64::new(0) }
    }

    /// Records the time. Only for one thread at a time.
    pub(super) fn note(&self, thread: &impl OwnTime) {
        self.note_times(thread);
        self.thread.store(thread.number(), Relaxed);
    }

    /// Records the time unless there is a note of another thread, which may be writing it.
    pub(super) fn note_if_first(&self, thread: &impl OwnTime) {
        let own = thread.number();
        match self.thread.compare_exchange(0, own, Relaxed, Relaxed) {
            Err(other) if other != own => {}
            // Only the thread itself reads them.
            _ => self.note_times(thread),
        }
    }

    fn note_times(&self, thread: &impl OwnTime) {
        self.spent.store(thread.spent(), Relaxed);
        self.preempted.store(thread.preempted(), Relaxed);
    }

    pub(super) fn forget(&self) {
        self.thread.store(0, Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.thread.load(Relaxed) == 0
    }

    /// The time that the thread has spent in probes since then, and for which it was preempted;
    /// `None` for any other thread.
    pub(super) fn since(&self, thread: &impl OwnTime) -> Option<(u64, u64)> {
        let since = |now: u64, before: &AtomicU64| now.saturating_sub(before.load(Relaxed));
        (self.thread.load(Relaxed) == thread.number())
            .then(|| (since(thread.spent(), &self.spent), since(thread.preempted(), &self.preempted)))
    }
}
