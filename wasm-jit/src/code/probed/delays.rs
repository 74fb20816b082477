//! Calls that wait until probes are made: see [`on_delays`].

use std::cell::Cell;
use std::sync::OnceLock;

/// Receives a closure, which it must call once.
pub type Around = fn(&mut dyn FnMut());

/// A list that only grows: threads read it without a lock, and forked children at any time.
struct Link {
    around: Around,
    next: OnceLock<Box<Link>>,
}

static FIRST: OnceLock<Box<Link>> = OnceLock::new();

/// Lets threads call a function around the time for which a call of theirs waits until the closures
/// of [`Module::watch_first_calls`](crate::Module::watch_first_calls) return, whichever thread
/// calls them. Whoever measures the time of calls subtracts this time.
///
/// The function is called for all modules, for the rest of the process; this has no effect if it
/// was passed before.
pub fn on_delays(around: Around) {
    let mut place = &FIRST;
    loop {
        let link = place.get_or_init(|| Box::new(Link { around, next: OnceLock::new() }));
        if std::ptr::fn_addr_eq(link.around, around) {
            return;
        }
        place = &link.next;
    }
}

/// Calls a function that delays a call. A delay within a delay is part of the outer one.
pub(crate) fn delayed<T>(function: impl FnOnce() -> T) -> T {
    thread_local!(static IS_DELAYED: Cell<bool> = const { Cell::new(false) });
    if IS_DELAYED.replace(true) {
        return function();
    }
    let (mut function, mut result) = (Some(function), None);
    through(FIRST.get().map(Box::as_ref), &mut || result = function.take().map(|function| function()));
    IS_DELAYED.set(false);
    result.expect("each function calls its closure")
}

fn through(link: Option<&Link>, function: &mut dyn FnMut()) {
    match link {
        Some(link) => (link.around)(&mut || through(link.next.get().map(Box::as_ref), function)),
        None => function(),
    }
}
