//! The identity of a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of a store ([`Store::id`](crate::Store::id)). It is unique in the process, even
/// after the store has been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(u64);

impl StoreId {
    /// The number that compiled code finds in the store.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The identity of the store with this number.
    pub(crate) fn of_number(number: u64) -> Self {
        Self(number)
    }

    /// The identity of a new store.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
