//! A value that signal handlers on other threads use for a while.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The interval at which a thread checks whether the value of another one is withdrawn.
const PAUSE: Duration = Duration::from_micros(20);

/// At most one value, which belongs to the thread that has published it. Handlers use it while they
/// are counted as visitors.
pub(super) struct Published<T> {
    value: AtomicPtr<T>,
    pub(super) visitors: AtomicUsize,
}

impl<T: Sync> Published<T> {
    /// Without a value.
    pub(super) const fn new() -> Self {
        Self { value: AtomicPtr::new(null_mut()), visitors: AtomicUsize::new(0) }
    }

    /// Publishes a value until the guard is dropped, which waits for the handlers that use it.
    /// Waits until no other value is published.
    pub(super) fn publish<'v>(&'v self, value: &'v T) -> Publication<'v, T> {
        let value = std::ptr::from_ref(value).cast_mut();
        while self.value.compare_exchange(null_mut(), value, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            std::thread::sleep(PAUSE);
        }
        Publication(self)
    }

    /// Calls `act` with the value, if there is one. Async-signal-safe if `act` is.
    pub(super) fn visit(&self, act: impl FnOnce(&T)) {
        self.visitors.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a value stays as long as it is published, or has visitors.
        if let Some(value) = unsafe { self.value.load(Ordering::SeqCst).as_ref() } {
            act(value);
        }
        self.visitors.fetch_sub(1, Ordering::SeqCst);
    }

    /// In a forked child, before it does anything else: value and visitors are of threads that do
    /// not exist here.
    pub(super) fn in_child(&self) {
        self.value.store(null_mut(), Ordering::SeqCst);
        self.visitors.store(0, Ordering::SeqCst);
    }
}

/// A value that is published.
pub(super) struct Publication<'v, T>(&'v Published<T>);

impl<T> Drop for Publication<'_, T> {
    fn drop(&mut self) {
        self.0.value.store(null_mut(), Ordering::SeqCst);
        while self.0.visitors.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(published: &Published<i32>) -> Option<i32> {
        let mut found = None;
        published.visit(|value| found = Some(*value));
        found
    }

    #[test]
    fn a_value_is_visited_until_it_is_withdrawn() {
        let published = Published::new();
        assert_eq!(visited(&published), None);
        let publication = published.publish(&1);
        assert_eq!(visited(&published), Some(1));
        drop(publication);
        assert_eq!(visited(&published), None);
    }

    /// Another thread of the parent has published a value, and a handler uses it.
    #[test]
    fn a_forked_child_has_no_value_and_no_visitors() {
        let published = Published::new();
        std::mem::forget(published.publish(&1));
        published.visitors.fetch_add(1, Ordering::SeqCst);
        published.in_child();
        assert_eq!(visited(&published), None);
        drop(published.publish(&2));
    }
}
