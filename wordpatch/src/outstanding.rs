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

use crate::batch::{acquire_all, check_all, give_up, have_waited, renew_stale, store_all};
use crate::in_flight::InFlightPatch;
use crate::primitive::{Arc, AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, global, thread};
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
pub(crate) struct Flight {
    ways: Vec<Result<InFlightPatch, Error>>,
    /// Numbers of the patches whose error `finish_patch` has told, and taken.
    told: Vec<usize>,
    /// After the last store.
    stored_at: u64,
}

type Table = Option<HashMap<usize, Arc<Shared>>>;

global! {
    /// Batches that are not finished, or have an error to tell, by the addresses of their patches.
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
    let refused = {
        let mut flight = outstanding.shared.lock();
        let refused = flight.ways[0].is_err();
        refused.then(|| flight.ways.pop().expect("one patch"))
    };
    match refused {
        Some(Err(error)) => Err(error),
        _ => Ok(outstanding),
    }
}

/// Begins what [`patch_all`](crate::patch_all) does, as [`start_patch`]. Patches that are refused
/// at once are told of at the end, by [`Outstanding::finish_all`].
///
/// # Safety
/// The obligations of [`start_patch`], for each.
pub unsafe fn start_patch_all(patches: &[Patch<'_>]) -> Outstanding {
    // SAFETY: the caller's obligations.
    let mut ways = unsafe { check_all(patches) };
    acquire_all(&mut ways);
    let mut stored_at = store_all(&mut ways);
    // SAFETY: as above.
    if unsafe { renew_stale(patches, &mut ways) } {
        acquire_all(&mut ways);
        // What waited before waits still.
        stored_at = store_all(&mut ways).or(stored_at);
    }
    let is_waiting = |way: &Result<InFlightPatch, Error>| way.as_ref().is_ok_and(InFlightPatch::is_waiting);
    let waiting: Vec<usize> = patches
        .iter()
        .zip(&ways)
        .filter(|(_, way)| is_waiting(way))
        .map(|(patch, _)| patch.address)
        .collect();
    let state = if waiting.is_empty() { State::Finished } else { State::FirstWait };
    let shared = Arc::new(Shared {
        process: Generation::now(),
        state: AtomicU8::new(state as u8),
        is_left: AtomicBool::new(false),
        addresses: patches.iter().map(|patch| patch.address).collect(),
        flight: Mutex::new(Flight { ways, told: Vec::new(), stored_at: stored_at.unwrap_or(0) }),
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
/// What [`Outstanding::finish_all`] says of this patch, told once.
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
    let place = number - flight.told.iter().filter(|told| **told < number).count();
    if flight.told.contains(&number) || flight.ways.get(place).is_none_or(Result::is_ok) {
        return Ok(true);
    }
    flight.told.push(number);
    let error = flight.ways.remove(place);
    drop(flight);
    shared.forget(&[address]);
    error.map(|_| true)
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
    /// them. An error that [`finish_patch`] has told is left out.
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
        let ways = std::mem::take(&mut flight.ways);
        drop(flight);
        self.shared.forget(&self.shared.addresses);
        ways.into_iter().map(|way| way.map(drop)).collect()
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
        if self.state() == State::Finished {
            return State::Finished;
        }
        match serialize::is_visible_since(flight.stored_at) {
            Ok(false) => {}
            Ok(true) => self.step(flight),
            Err(refusal) => self.refuse(flight, &refusal),
        }
        self.state()
    }

    /// The wait is over: the next stores.
    pub(crate) fn step(&self, flight: &mut Flight) {
        have_waited(&mut flight.ways);
        self.settle(flight);
    }

    /// The wait is refused.
    pub(crate) fn refuse(&self, flight: &mut Flight, refusal: &Error) {
        give_up(&mut flight.ways, refusal);
        self.settle(flight);
    }

    /// Makes the stores up to the next wait, and takes note of where that is.
    fn settle(&self, flight: &mut Flight) {
        let state = match store_all(&mut flight.ways) {
            Some(stored_at) => {
                flight.stored_at = stored_at;
                State::SecondWait
            }
            None => State::Finished,
        };
        if state == State::Finished {
            // The others were finished, and looked at, when the batch was started.
            let waited = |way: &&InFlightPatch| way.waits();
            if !InFlightPatch::are_there(flight.ways.iter().flatten().filter(waited)) {
                for way in &mut flight.ways {
                    if let Ok(done) = way
                        && waited(&&*done)
                        && !InFlightPatch::are_there(std::iter::once(&*done))
                    {
                        *way = Err(Error::TextGone { address: done.address() });
                    }
                }
            }
            let done: Vec<usize> = self
                .addresses
                .iter()
                .zip(&flight.ways)
                .filter(|(_, way)| way.is_ok())
                .map(|(at, _)| *at)
                .collect();
            self.forget(&done);
        }
        self.state.store(state as u8, Ordering::Release);
    }

    /// Finishes it, with its waits.
    fn finish(&self, flight: &mut Flight) {
        while self.state() != State::Finished {
            match serialize::wait_since(flight.stored_at) {
                Ok(()) => self.step(flight),
                Err(refusal) => self.refuse(flight, &refusal),
            }
        }
    }
}

impl Flight {
    pub(crate) fn stored_at(&self) -> u64 {
        self.stored_at
    }
}
