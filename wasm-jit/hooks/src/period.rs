//! [`Period`]: tells what was recorded before an observer was switched off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The current period of something that observes a program: an odd number while it is on, an even
/// one while it is off. What was recorded in an earlier period may have ended unobserved, and
/// frames of that time may have the same [numbers](wasm_jit::probes::Frame::number) as later ones.
/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Period(Arc<AtomicU64>);

impl Period {
    /// The number of the period.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether another period has begun or ended since `seen` was its number, which is updated:
    /// what has begun then is to be forgotten.
    pub fn has_changed(&self, seen: &mut u64) -> bool {
        let current = self.current();
        std::mem::replace(seen, current) != current
    }

    /// Called before the observer is switched on; has no effect if it is on.
    pub fn begin(&self) {
        self.0.fetch_or(1, Ordering::Relaxed);
    }

    /// Called when the observer is switched off; has no effect if it is off.
    pub fn end(&self) {
        let next = |period: u64| (period % 2 == 1).then(|| period + 1);
        // Fails if it is off.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}
