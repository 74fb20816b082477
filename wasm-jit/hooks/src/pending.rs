//! Instructions that have begun and not yet completed, for the frames of each thread.
//!
//! The value of a load, and the completion of an instruction, are observed by probes at the
//! instructions that may follow. Such a probe fires on every path to its place, so it must know
//! which one control took: the probe at the first instruction makes a record here, and the probe at
//! the next one takes it.
//!
//! An instruction that throws, and whose exception the frame catches, leaves its record behind. It
//! is removed by the next record of this frame, or of an outer frame: deeper frames have ended by
//! then. On stacks of coroutines, which lie elsewhere, a record may be removed before its
//! instruction has completed; its event is then lost. A frame that is left by a trap, an exception
//! or an interrupt has no records any more: the next frame may have the same number.

use std::cell::RefCell;
use std::sync::Arc;

use wasm_jit::Module;
use wasm_jit::probes::UnwoundWatch;

use crate::of_hooks::{HookKey, OfHooks};
use crate::period::Period;

/// The records of a hook.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    key: HookKey,
    period: Period,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    frame: u64,
    site: usize,
    value: u64,
    /// The [`Period`] in which it was made.
    period: u64,
}

thread_local! {
    /// The frames in descending order: the innermost last.
    static RECORDS: RefCell<OfHooks<Vec<Record>>> = RefCell::default();
}

impl Records {
    /// New records of a hook, which has to keep the watch.
    pub(crate) fn new(module: &Module) -> (Self, UnwoundWatch) {
        let alive = Arc::new(());
        let records = Self::while_alive(&alive);
        let watch = records.watch(module, alive);
        (records, watch)
    }

    fn while_alive(alive: &Arc<()>) -> Self {
        Self { key: HookKey::new(alive), period: Period::default() }
    }

    /// The current period of the hook.
    pub(crate) fn period(&self) -> Period {
        self.period.clone()
    }

    /// Records that an instruction of a frame has begun.
    pub(crate) fn begin(&self, frame: u64, site: usize, value: u64) {
        // Programs that run while their thread ends have no records.
        let _ = RECORDS.try_with_borrow_mut(|all| {
            let records = all.entry(&self.key);
            while records.pop_if(|record| record.frame <= frame).is_some() {}
            records.push(Record { frame, site, value, period: self.period.current() });
        });
    }

    /// Called when control has reached an instruction that follows these: returns the one of them
    /// that has begun in this frame and in this period of the hook, if any.
    pub(crate) fn complete(&self, frame: u64, sites: &[usize]) -> Option<(usize, u64)> {
        let taken = RECORDS.try_with_borrow_mut(|all| {
            let records = all.get(&self.key)?;
            while records.pop_if(|record| record.frame < frame).is_some() {}
            let is_it = |record: &mut Record| record.frame == frame && sites.contains(&record.site);
            let record = records.pop_if(is_it)?;
            (record.period == self.period.current()).then_some((record.site, record.value))
        });
        taken.ok().flatten()
    }

    /// Forgets the records of frames that are left otherwise than by returning, as long as the
    /// result exists.
    fn watch(&self, module: &Module, alive: Arc<()>) -> UnwoundWatch {
        let records = self.clone();
        module.watch_unwound(move |left| {
            let _ = &alive;
            records.forget(left.frame);
        })
    }

    /// Removes the records of a frame that has been left, and of deeper ones.
    fn forget(&self, frame: u64) {
        let _ = RECORDS.try_with_borrow_mut(|all| {
            if let Some(records) = all.get(&self.key) {
                while records.pop_if(|record| record.frame <= frame).is_some() {}
            }
        });
    }
}

/// As `LocalKey::with_borrow_mut`, or an error where that panics.
trait TryBorrow<T> {
    fn try_with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> Result<R, ()>;
}

impl<T: 'static> TryBorrow<T> for std::thread::LocalKey<RefCell<T>> {
    fn try_with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> Result<R, ()> {
        let borrow = |cell: &RefCell<T>| cell.try_borrow_mut().map(|mut all| f(&mut all));
        self.try_with(borrow).map_err(|_| ())?.map_err(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_frames_that_have_ended_are_removed() {
        let alive = Arc::new(());
        let records = Records::while_alive(&alive);
        records.begin(100, 1, 10);
        records.begin(80, 2, 20);
        assert_eq!(records.complete(80, &[1]), None);
        assert_eq!(records.complete(80, &[1, 2]), Some((2, 20)));
        records.begin(80, 2, 20);
        assert_eq!(records.complete(100, &[1]), Some((1, 10)));
        assert_eq!(records.complete(80, &[2]), None, "its frame has ended");
        records.begin(100, 3, 30);
        records.begin(100, 4, 40);
        assert_eq!(records.complete(100, &[3]), None, "it has trapped");
        assert_eq!(Records::while_alive(&alive).complete(100, &[4]), None);
        assert_eq!(records.complete(100, &[4]), Some((4, 40)));
        records.begin(100, 1, 10);
        records.begin(80, 2, 20);
        records.forget(80);
        assert_eq!(records.complete(80, &[2]), None, "it was left");
        assert_eq!(records.complete(100, &[1]), Some((1, 10)));
    }

    #[test]
    fn records_of_hooks_that_have_ended_are_removed() {
        let mut closures = Vec::new();
        for hook in 0..100 {
            let alive = Arc::new(());
            let records = Records::while_alive(&alive);
            records.begin(100, hook, 0);
            closures.push(records);
        }
        assert_eq!(RECORDS.with_borrow(OfHooks::len), 1);
    }
}
