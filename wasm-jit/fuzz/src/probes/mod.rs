//! The probes of a case: at random places, of random kinds ([`kinds`]), with functions of their
//! store ([`monitor`]), and changed at random ([`set`]).
//!
//! The thread that runs a program knows its probes, since probe functions and host functions change
//! some of them.

pub(crate) mod expected;
mod kinds;
mod monitor;
mod set;

use std::cell::RefCell;
use std::sync::Arc;

use crate::random::Random;
pub(crate) use set::{Phase, Set};

thread_local! {
    /// The probes of the program that this thread runs, if they are to be switched.
    static CURRENT: RefCell<Option<(Arc<Set>, Random)>> = const { RefCell::new(None) };
}

/// While it exists, this thread runs a program with these probes.
pub(crate) struct Running;

impl Running {
    pub(crate) fn new(set: &Arc<Set>, random: Random) -> Self {
        CURRENT.set(Some((set.clone(), random)));
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// Lets the thread that runs a program switch some of its probes, at random.
pub(crate) fn change_sometimes() {
    with_current(|set, random| {
        if set.is_changing() && random.one_in(8) {
            set.change(random);
        }
    });
}

/// Whether the probes of the program that this thread runs are switched while it runs.
fn is_changing() -> bool {
    let mut is_changing = false;
    with_current(|set, _| is_changing = set.is_changing());
    is_changing
}

/// Calls a function with the probes of the program that this thread runs.
fn with_current(function: impl FnOnce(&Set, &mut Random)) {
    CURRENT.with_borrow_mut(|current| {
        if let Some((set, random)) = current {
            function(set, random);
        }
    });
}
