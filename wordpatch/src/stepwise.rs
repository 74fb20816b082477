//! The driver of changes of text that take several stores: patches, and whatever else puts waits
//! between its stores, many at a time.
//!
//! 1. Each change makes its stores up to its next wait.
//! 2. One wait for all, from the last of these stores.
//! 3. On with 1, until none has to wait.
//!
//! A change that fails drops out; the others go on.

use crate::text::atfork;
use crate::{Error, serialize, tsc};

/// A change of text in steps: stores, with [waits](crate::wait_for_visibility) between and after
/// them.
pub trait Stepwise {
    /// Why such a change fails.
    type Error;

    /// Makes the stores up to the next wait, or up to the end.
    ///
    /// # Errors
    /// The change has failed, and is dropped.
    fn store(&mut self) -> Result<(), Self::Error>;

    /// Whether a wait comes next.
    fn is_waiting(&self) -> bool;

    /// Takes note that the wait that comes next is over.
    fn end_wait(&mut self);

    /// Takes note that the wait that comes next is refused, by this error. Afterwards the change
    /// no longer waits.
    ///
    /// # Errors
    /// The change has failed, and is dropped. Without an error, it stands as it is.
    fn give_up(&mut self, refusal: Error) -> Result<(), Self::Error>;

    /// Whether it stores INT3 on its way. Then no thread may fork while stores are made.
    fn uses_int3(&self) -> bool {
        false
    }
}

/// Makes all these changes, and pays each wait once for all of them. Those that fail become their
/// errors. Blocks for as many waits as the change with the most has.
///
/// Must not be called from a signal handler or a probe function.
pub fn finish_all<S: Stepwise>(changes: &mut [Result<S, S::Error>]) {
    while let Some(stored_at) = store_all(changes) {
        end_wait(changes, &serialize::wait_since(stored_at));
    }
}

/// Step 1. Returns a time after the last of these stores, if any change has to wait now.
pub(crate) fn store_all<S: Stepwise>(changes: &mut [Result<S, S::Error>]) -> Option<u64> {
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
    is_any_waiting.then(tsc::now_after_all)
}

/// After step 2, which has ended like this.
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
