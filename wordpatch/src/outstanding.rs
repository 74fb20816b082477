//! The asynchronous driver of the protocol (paper, Figures 6 and 7): a patch is begun, and
//! furthered whenever somebody looks whether it can be.
//!
//! ```text
//! state           in the text            becomes the next one when
//! FirstWait       cc 11 22 | 33 44       the wait since the lock was stored is over: the back part is stored
//! SecondWait      cc 11 22 | 44 00       the wait since then is over: the front part is stored
//! Finished        0f 1f 44 | 44 00
//! ```
//!
//! Where T_max is known, whether a wait is over is read from the time-stamp counter, and nothing
//! ever blocks. Under [`WaitPolicy::Membarrier`](crate::WaitPolicy) the step itself makes the
//! `membarrier`: it blocks for one inter-processor interrupt, never for another patch.
//!
//! The patches that are not finished are in a table by address, for [`finish_patch`]. A patch that
//! was begun is finished by whoever comes first: its handle, `finish_patch`, or a
//! [`Finisher`](crate::Finisher). A step is made under the patch's own lock, and who finds it held
//! goes away, as in Figure 7.

use std::collections::HashMap;
use std::sync::TryLockError;
use std::time::Instant;

use crate::batch::{acquire_all, check_all, renew_stale};
use crate::in_flight::InFlightPatch;
use crate::primitive::{Arc, AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, global, thread};
use crate::stepwise::{Stepwise as _, end_wait, store_all};
use crate::text::fork::Generation;
use crate::{Error, Patch, serialize};

/// How far a patch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// The site is locked; the old instruction stands behind the INT3.
    FirstWait = 0,
    /// The site is locked; the new back part stands behind the INT3.
    SecondWait = 1,
    /// Nothing is left to be done.
    Finished = 2,
}

/// A patch, or a batch, that was begun: see [`start_patch`]. All patches of a batch are in the same
/// state, but those that need one store only, which are finished from the start.
///
/// Dropping it finishes it, which blocks for two waits at most; unless it was left to a
/// [`Finisher`](crate::Finisher) or [detached](Outstanding::detach).
#[derive(Debug)]
pub struct Outstanding {
    shared: Arc<Shared>,
}

/// What handle, table and finisher share.
#[derive(Debug)]
pub(crate) struct Shared {
    process: Generation,
    /// Of every patch, in the order of the batch.
    addresses: Vec<usize>,
    /// The [`State`], for whoever does not hold the lock.
    state: AtomicU8,
    /// Whether somebody else will finish it.
    is_left: AtomicBool,
    flight: Mutex<Flight>,
}

/// The patches of a batch, under the lock.
#[derive(Debug)]
pub(crate) enum Flight {
    /// Some of them wait.
    Waiting {
        /// Those that are in flight or finished, and the errors of the others.
        patches: Vec<Result<InFlightPatch, Error>>,
        /// After the last store.
        stored_at: u64,
    },
    /// Nothing is left to be done.
    Finished(Vec<Outcome>),
}

/// What became of a patch.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is made.
    Made,
    /// It has failed; nobody was told the error yet.
    Failed(Error),
    /// It has failed, and the error was reported.
    Reported,
}

type Table = Option<HashMap<usize, Arc<Shared>>>;

global! {
    /// Batches that are not finished, or have an error to report, by the addresses of their
    /// patches.
    static TABLE: Mutex<Table> = Mutex::new(None);
}

/// The table, kept from every other thread across a fork.
pub(crate) type Hold = MutexGuard<'static, Table>;

pub(crate) fn hold() -> Hold {
    TABLE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Begins what [`patch`](crate::patch) does, and returns after the first store: at the end for a
/// patch inside one fetch window, else in [`State::FirstWait`]. Threads that execute the
/// instruction take traps until the patch is finished, so finish it soon. Many may be outstanding,
/// from any threads.
///
/// # Errors
/// Those of [`patch`](crate::patch). The later steps can fail only where somebody else has written
/// the locked site, or the kernel takes `membarrier` away.
///
/// # Safety
/// 1. The obligations of [`patch`](crate::patch), until the patch is finished.
/// 2. The text may be unmapped meanwhile, and something else mapped there ([`Error::TextGone`]
///    tells), unless text access is by mprotect, a debugger has copied the page (see
///    [`TextAccess::Private`](crate::TextAccess::Private)), or the caller has mapped the text
///    writable.
pub unsafe fn start_patch(address: usize, expected: &[u8], replacement: &[u8]) -> Result<Outstanding, Error> {
    // SAFETY: the caller's obligations.
    let outstanding = unsafe { start_patch_all(&[Patch { address, expected, replacement }]) };
    let refused = outstanding.shared.lock().report(0);
    refused.map(|()| outstanding)
}

/// Begins what [`patch_all`](crate::patch_all) does, as [`start_patch`]. Patches that are refused
/// at once are told of at the end, by [`Outstanding::finish_all`].
///
/// # Safety
/// The obligations of [`start_patch`], for each.
pub unsafe fn start_patch_all(patches: &[Patch<'_>]) -> Outstanding {
    // SAFETY: the caller's obligations.
    let mut results = unsafe { check_all(patches) };
    acquire_all(&mut results);
    let mut stored_at = store_all(&mut results);
    // SAFETY: as above.
    if unsafe { renew_stale(patches, &mut results) } {
        acquire_all(&mut results);
        // What waited before waits still.
        stored_at = store_all(&mut results).or(stored_at);
    }
    let is_waiting = |result: &Result<InFlightPatch, Error>| result.as_ref().is_ok_and(|it| it.is_waiting());
    let waiting: Vec<usize> = patches
        .iter()
        .zip(&results)
        .filter(|(_, result)| is_waiting(result))
        .map(|(patch, _)| patch.address)
        .collect();
    let (state, flight) = match stored_at.filter(|_| !waiting.is_empty()) {
        Some(stored_at) => (State::FirstWait, Flight::Waiting { patches: results, stored_at }),
        None => (State::Finished, Flight::finished(results)),
    };
    let shared = Arc::new(Shared {
        process: Generation::now(),
        state: AtomicU8::new(state as u8),
        is_left: AtomicBool::new(false),
        addresses: patches.iter().map(|patch| patch.address).collect(),
        flight: Mutex::new(flight),
    });
    if !waiting.is_empty() {
        let mut table = hold();
        let table = table.get_or_insert_default();
        table.extend(waiting.into_iter().map(|address| (address, Arc::clone(&shared))));
    }
    Outstanding { shared }
}

/// Tries to further the patch of `address`, whoever has begun it (paper, Figure 7): gives `true`
/// when none of it is left to be done, also where no patch is outstanding; `false` when its wait is
/// not over, or another thread is at it. Never blocks where T_max is known; else for a
/// `membarrier`. A batch is furthered as a whole.
///
/// # Errors
/// What [`Outstanding::finish_all`] says of this patch, reported once.
pub fn finish_patch(address: usize) -> Result<bool, Error> {
    let Some(shared) = hold().as_ref().and_then(|table| table.get(&address)).map(Arc::clone) else {
        return Ok(true);
    };
    let mut flight = match shared.try_lock() {
        Ok(Some(flight)) => flight,
        Ok(None) => return Ok(false),
        Err(forked) => {
            shared.forget(&[address]);
            return Err(forked);
        }
    };
    if shared.further(&mut flight) != State::Finished {
        return Ok(false);
    }
    let number = shared.addresses.iter().position(|of| *of == address).expect("it is in the table");
    let reported = flight.report(number);
    drop(flight);
    if reported.is_err() {
        shared.forget(&[address]);
    }
    reported.map(|()| true)
}

impl Outstanding {
    /// Where the first of its patches is.
    pub(crate) fn address(&self) -> usize {
        self.shared.addresses.first().copied().unwrap_or(0)
    }

    /// How far it has come. Reads a byte; does not further it.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Furthers it if its wait is over, and says where it is then. Never blocks where T_max is
    /// known; else for a `membarrier`.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, where it is not this process's patch.
    pub fn try_finish(&self) -> Result<State, Error> {
        Ok(match self.shared.try_lock()? {
            Some(mut flight) => self.shared.further(&mut flight),
            None => self.state(),
        })
    }

    /// Furthers it until it is finished, but not beyond `deadline`, and says where it is then.
    /// Gives the processor away between two looks.
    ///
    /// # Errors
    /// As [`Outstanding::try_finish`].
    pub fn wait(&self, deadline: Instant) -> Result<State, Error> {
        loop {
            let state = self.try_finish()?;
            if state == State::Finished || Instant::now() >= deadline {
                return Ok(state);
            }
            thread::yield_now();
        }
    }

    /// Finishes it. Blocks for two waits at most.
    ///
    /// # Errors
    /// The first of [`Outstanding::finish_all`].
    pub fn finish(self) -> Result<(), Error> {
        self.finish_all().into_iter().collect()
    }

    /// Finishes it, and says of each patch, in the order of the batch, what became of it. Blocks
    /// for two waits at most.
    ///
    /// The errors are those of [`patch`](crate::patch), [`Error::TextGone`], and [`Error::Forked`]
    /// for the patches that were not finished when this process was forked from the one that began
    /// them. An error that [`finish_patch`] has reported is left out.
    pub fn finish_all(self) -> Vec<Result<(), Error>> {
        if !self.shared.process.is_current() {
            // The lock may be held for ever by a thread of the parent.
            return self
                .shared
                .addresses
                .iter()
                .map(|address| Err(Error::Forked { address: *address }))
                .collect();
        }
        let mut flight = self.shared.lock();
        self.shared.finish(&mut flight);
        let outcomes = flight.take_outcomes();
        drop(flight);
        self.shared.forget(&self.shared.addresses);
        outcomes.into_iter().filter_map(Outcome::result).collect()
    }

    /// Leaves it to [`finish_patch`]: dropping it does nothing any more.
    pub fn detach(self) {
        self.shared.is_left.store(true, Ordering::Relaxed);
    }

    /// Leaves it to a finisher, unless one has it.
    pub(crate) fn leave_to_finisher(&self) -> Option<Arc<Shared>> {
        let had_been_left = self.shared.is_left.swap(true, Ordering::Relaxed);
        (!had_been_left).then(|| Arc::clone(&self.shared))
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        if self.shared.is_left.load(Ordering::Relaxed) || !self.shared.process.is_current() {
            return;
        }
        let mut flight = self.shared.lock();
        self.shared.finish(&mut flight);
        drop(flight);
        self.shared.forget(&self.shared.addresses);
    }
}

impl Shared {
    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::FirstWait,
            1 => State::SecondWait,
            _ => State::Finished,
        }
    }

    /// Takes addresses out of the table, as far as they are this batch's.
    fn forget(&self, addresses: &[usize]) {
        let mut table = hold();
        let Some(table) = table.as_mut() else { return };
        for address in addresses {
            if table.get(address).is_some_and(|other| std::ptr::eq(Arc::as_ptr(other), self)) {
                table.remove(address);
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The lock, unless another thread has it.
    fn try_lock(&self) -> Result<Option<MutexGuard<'_, Flight>>, Error> {
        if !self.process.is_current() {
            return Err(Error::Forked { address: self.addresses.first().copied().unwrap_or(0) });
        }
        match self.flight.try_lock() {
            Ok(flight) => Ok(Some(flight)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Makes the next step if its wait is over.
    fn further(&self, flight: &mut Flight) -> State {
        if let Flight::Waiting { stored_at, .. } = flight {
            match serialize::is_visible_since(*stored_at) {
                Ok(false) => {}
                Ok(true) => self.step(flight, &Ok(())),
                Err(refusal) => self.step(flight, &Err(refusal)),
            }
        }
        self.state()
    }

    /// The next stores, after a wait that has ended like this. Does nothing when there are none.
    pub(crate) fn step(&self, flight: &mut Flight, waited: &Result<(), Error>) {
        let Flight::Waiting { patches, stored_at } = flight else { return };
        end_wait(patches, waited);
        let state = match store_all(patches) {
            Some(now) => {
                *stored_at = now;
                State::SecondWait
            }
            None => {
                let mut patches = std::mem::take(patches);
                fail_those_gone(&mut patches);
                let numbered = self.addresses.iter().zip(&patches);
                let done: Vec<usize> =
                    numbered.filter(|(_, result)| result.is_ok()).map(|(address, _)| *address).collect();
                self.forget(&done);
                *flight = Flight::finished(patches);
                State::Finished
            }
        };
        self.state.store(state as u8, Ordering::Release);
    }

    /// Finishes it, with its waits.
    fn finish(&self, flight: &mut Flight) {
        while let Flight::Waiting { stored_at, .. } = flight {
            let waited = serialize::wait_since(*stored_at);
            self.step(flight, &waited);
        }
    }
}

/// Has those patches fail whose text is gone. Those without a wait were finished, and looked at,
/// when the batch was started.
fn fail_those_gone(patches: &mut [Result<InFlightPatch, Error>]) {
    let has_waited = |patch: &&InFlightPatch| patch.waits();
    if InFlightPatch::are_there(patches.iter().flatten().filter(has_waited)) {
        return;
    }
    for result in patches {
        if let Ok(patch) = result
            && patch.waits()
            && !InFlightPatch::are_there(std::iter::once(&*patch))
        {
            *result = Err(Error::TextGone { address: patch.address() });
        }
    }
}

impl Flight {
    /// When no patch has to wait any more.
    fn finished(patches: Vec<Result<InFlightPatch, Error>>) -> Self {
        let outcome = |result: Result<InFlightPatch, Error>| match result {
            Ok(_) => Outcome::Made,
            Err(error) => Outcome::Failed(error),
        };
        Self::Finished(patches.into_iter().map(outcome).collect())
    }

    /// When the last store was made, if any patch waits.
    pub(crate) fn stored_at(&self) -> Option<u64> {
        match self {
            Self::Waiting { stored_at, .. } => Some(*stored_at),
            Self::Finished(_) => None,
        }
    }

    /// The error of a finished patch, the first time that it is asked for.
    fn report(&mut self, number: usize) -> Result<(), Error> {
        match self {
            Self::Finished(outcomes) => outcomes.get_mut(number).map_or(Ok(()), Outcome::report),
            Self::Waiting { .. } => Ok(()),
        }
    }

    /// What became of each patch, for the last time.
    fn take_outcomes(&mut self) -> Vec<Outcome> {
        match self {
            Self::Finished(outcomes) => std::mem::take(outcomes),
            Self::Waiting { .. } => Vec::new(),
        }
    }
}

impl Outcome {
    /// The error, if it was not reported yet.
    fn report(&mut self) -> Result<(), Error> {
        match std::mem::replace(self, Self::Reported) {
            Self::Failed(error) => Err(error),
            before => {
                *self = before;
                Ok(())
            }
        }
    }

    /// As the caller gets it; none if it was reported before.
    fn result(self) -> Option<Result<(), Error>> {
        match self {
            Self::Made => Some(Ok(())),
            Self::Failed(error) => Some(Err(error)),
            Self::Reported => None,
        }
    }
}
