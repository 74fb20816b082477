//! The driver of changes of text with several stores and waits between them, such as patches. It
//! drives any number of changes at a time.
//!
//! 1. Each change makes its stores up to its next wait.
//! 2. One wait for all, from the last of these stores.
//! 3. Repeat from 1 until no change must wait.
//!
//! A change that fails is removed; the others continue.

use crate::since::Since;
use crate::text::atfork;
use crate::{Error, serialize};

/// A change of text in steps: stores, with [waits](crate::wait_for_visibility) between and after
/// them.
pub trait Stepwise {
    /// The error with which a change fails.
    type Error;

    /// Makes the stores up to the next wait, or all remaining ones.
    ///
    /// # Errors
    /// The change has failed, and is dropped.
    fn store(&mut self) -> Result<(), Self::Error>;

    /// Whether a wait comes next.
    fn is_waiting(&self) -> bool;

    /// Records that the current wait is over.
    fn end_wait(&mut self);

    /// Records that the current wait has failed with this error. Afterwards the change no longer
    /// waits.
    ///
    /// # Errors
    /// The change has failed, and is dropped. Without an error, it is complete.
    fn give_up(&mut self, refusal: Error) -> Result<(), Self::Error>;

    /// Whether the change stores INT3 in one of its steps. If so, no thread may fork while it makes
    /// stores.
    fn uses_int3(&self) -> bool {
        false
    }
}

/// Makes all these changes, which share each wait if several must wait. Changes that fail are
/// replaced by their errors. Blocks for the number of waits of the change that has the most.
///
/// Must not be called from a signal handler or a probe function.
pub fn finish_all<S: Stepwise>(changes: &mut [Result<S, S::Error>]) {
    while let Some(since) = store_all(changes) {
        end_wait(changes, &serialize::wait_since(since));
    }
}

/// Step 1. Returns the beginning of the wait, after the last of these stores, if any change must
/// wait now.
pub(crate) fn store_all<S: Stepwise>(changes: &mut [Result<S, S::Error>]) -> Option<Since> {
    let mut is_any_waiting = false;
    let _step = changes.iter().flatten().any(S::uses_int3).then(atfork::step);
    for change in changes {
        if let Ok(in_flight) = change {
            match in_flight.store() {
                Ok(()) => is_any_waiting |= in_flight.is_waiting(),
                Err(error) => *change = Err(error),
            }
        }
    }
    is_any_waiting.then(Since::now)
}

/// Records the result of step 2.
pub(crate) fn end_wait<S: Stepwise>(changes: &mut [Result<S, S::Error>], waited: &Result<(), Error>) {
    let Err(refusal) = waited else {
        changes.iter_mut().flatten().filter(|change| change.is_waiting()).for_each(S::end_wait);
        return;
    };
    let _step = changes.iter().flatten().any(S::uses_int3).then(atfork::step);
    for change in changes {
        if let Ok(in_flight) = change
            && in_flight.is_waiting()
            && let Err(error) = in_flight.give_up(Error::of_refusal(refusal))
        {
            *change = Err(error);
        }
    }
}
