//! The locks of this crate and forks: a child that is created while another thread holds a lock
//! would never find it released.

use std::cell::Cell;

use wordpatch::internal;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, which may take this crate's locks, and during which no other thread forks: `fork`
/// waits until it is done. Calls may be nested.
pub(crate) fn without_forks<R>(act: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
    // wordpatch's lock must not be entered twice by one thread. The model has no forks here.
    if cfg!(model) || IS_INSIDE.get() {
        return act();
    }
    internal::follow_forks();
    internal::without_forks(|| {
        IS_INSIDE.set(true);
        let _leave = Leave;
        act()
    })
}
