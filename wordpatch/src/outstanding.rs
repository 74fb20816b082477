//! The asynchronous driver of the protocol (paper, Figures 6 and 7): a patch is begun, and advanced
//! when it is polled.
//!
//! ```text
//! state           text                   next step
//! FirstWait       cc 11 22 | 33 44       the back part is stored, after a wait since the store of the lock
//! SecondWait      cc 11 22 | 44 00       the front part is stored, after a wait since the previous step
//! Finished        0f 1f 44 | 44 00
//! ```
//!
//! If T_max is known, the time-stamp counter shows whether a wait is over, and polling never
//! blocks. Under [`WaitPolicy::Membarrier`](crate::WaitPolicy), the step itself calls `membarrier`:
//! it blocks for one inter-processor interrupt, never for another patch.
//!
//! Unfinished patches are in a table by address, for [`finish_patch`]. A patch can be finished by
//! its handle, by `finish_patch`, or by a [`Finisher`](crate::Finisher). A step is made under the
//! patch's own lock; if another thread holds it, polling returns at once, as in Figure 7.

use std::collections::HashMap;
use std::sync::TryLockError;
use std::time::Instant;

use crate::batch::{acquire_all, check_all, renew_stale};
use crate::in_flight::InFlightPatch;
use crate::primitive::{Arc, AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering, global, thread};
use crate::since::Since;
use crate::stepwise::{Stepwise as _, end_wait, store_all};
use crate::text::fork::Generation;
use crate::{Error, Patch, serialize};

/// The progress of an outstanding patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// The site is locked; the INT3 is followed by the rest of the old instruction.
    FirstWait = 0,
    /// The site is locked; the back part is that of the new instruction.
    SecondWait = 1,
    /// All steps are made, or the patch has failed.
    Finished = 2,
}

/// A patch, or a batch, that was begun: see [`start_patch`]. All patches of a batch are in the same
/// state, except those that need only one store, which are finished from the start.
///
/// Dropping the handle finishes the patch, which blocks for at most two waits, unless the patch was
/// handed over to a [`Finisher`](crate::Finisher) or [detached](Outstanding::detach).
#[must_use = "dropping it finishes the patches, and blocks for their waits"]
#[derive(Debug)]
pub struct Outstanding {
    shared: Arc<Shared>,
}

/// The part that the handle, the table and the finisher share.
#[derive(Debug)]
pub(crate) struct Shared {
    process: Generation,
    /// The addresses of all patches, in the order of the batch.
    addresses: Vec<usize>,
    /// The [`State`], which can be read without the lock.
    state: AtomicU8,
    /// Whether dropping the handle leaves the patch unfinished.
    is_left: AtomicBool,
    progress: Mutex<Progress>,
}

/// The patches of a batch, under the lock.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Some of the patches must wait.
    Waiting {
        /// The patches that are in flight or finished, and the errors of the others.
        patches: Vec<Result<InFlightPatch, Error>>,
        /// When the wait has begun, after the last store.
        since: Since,
    },
    /// All steps are made.
    Finished(Vec<Outcome>),
}

/// The outcome of a patch.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The patch was made.
    Made,
    /// The patch has failed, and the error has not been reported yet.
    Failed(Error),
    /// The patch has failed, and the error has been reported.
    Reported,
}

type Table = Option<HashMap<usize, Vec<Arc<Shared>>>>;

global! {
    /// Batches that are not finished, or have an error to report, by the addresses of their
    /// patches. Several can have a patch with the same address: of a patch of several instructions,
    /// only those that change are locked.
    static TABLE: Mutex<Table> = Mutex::new(None);
}

/// Keeps the table locked during a fork.
pub(crate) type Hold = MutexGuard<'static, Table>;

pub(crate) fn hold() -> Hold {
    TABLE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Starts a [`patch`](crate::patch), and returns after the first store. A patch inside one fetch
/// window is then finished; other patches are in [`State::FirstWait`]. Threads that execute the
/// instruction take traps until the patch is finished, so finish it soon. Any number of patches may
/// be outstanding, started by any threads.
///
/// # Example
/// ```
/// use std::time::{Duration, Instant};
///
/// use wordpatch::code_memory::CodeBuffer;
/// use wordpatch::{Finisher, State};
///
/// // mov eax, 0x01010101; ret: at the end of a cache line, so that the instruction crosses it.
/// let mut buffer = CodeBuffer::new(4096)?;
/// buffer.append(&[0xcc; 62], 64);
/// let offset = buffer.append(&[0xb8, 1, 1, 1, 1, 0xc3], 1).expect("there is room");
/// let memory = buffer.seal()?;
/// let address = memory.address() + offset;
/// let moves = [1_u8, 2, 3].map(|byte| [0xb8, byte, byte, byte, byte]);
///
/// // SAFETY: 1. an instruction starts there, in our own code, which stays mapped; 2. every caller can use the new value;
/// // 3. no thread blocks SIGTRAP, and nothing branches into the middle of it; 4. it does not fault.
/// let patch = unsafe { wordpatch::start_patch(address, &moves[0], &moves[1])? };
/// while patch.try_finish()? != State::Finished {
///     // Other work.
/// }
/// patch.finish()?;
///
/// // A finisher is a thread that does the rest.
/// let finisher = Finisher::start()?;
/// // SAFETY: as above.
/// let patch = unsafe { wordpatch::start_patch(address, &moves[1], &moves[2])? };
/// finisher.take_over(&patch)?;
/// assert_eq!(patch.wait(Instant::now() + Duration::from_secs(60))?, State::Finished);
/// # Ok::<(), wordpatch::Error>(())
/// ```
///
/// # Errors
/// As [`patch`](crate::patch). The later steps can fail only if other code has written to the
/// locked site, or if the kernel begins to refuse `membarrier`.
///
/// # Safety
/// 1. The obligations of [`patch`](crate::patch), until the patch is finished.
/// 2. The text may be unmapped before the patch is finished, and something else mapped there, which
///    is reported as [`Error::TextGone`]. This is not permitted if text access is by mprotect, a
///    debugger has copied the page (see [`TextAccess::Private`](crate::TextAccess::Private)), or
///    the caller has mapped the text writable.
pub unsafe fn start_patch(address: usize, expected: &[u8], replacement: &[u8]) -> Result<Outstanding, Error> {
    // SAFETY: the caller's obligations.
    let outstanding = unsafe { start_patch_all(&[Patch { address, expected, replacement }]) };
    let refused = outstanding.shared.lock().report(0);
    refused.map(|()| outstanding)
}

/// Starts [`patch_all`](crate::patch_all), as [`start_patch`] does for one patch. The errors of
/// patches that are refused at once are also returned by [`Outstanding::finish_all`].
///
/// # Safety
/// The obligations of [`start_patch`], for each.
pub unsafe fn start_patch_all(patches: &[Patch<'_>]) -> Outstanding {
    // SAFETY: the caller's obligations.
    let mut results = unsafe { check_all(patches) };
    acquire_all(&mut results);
    let mut since = store_all(&mut results);
    // SAFETY: as above.
    if unsafe { renew_stale(patches, &mut results) } {
        acquire_all(&mut results);
        // Patches that had to wait before still have to.
        since = store_all(&mut results).or(since);
    }
    let is_waiting = |result: &Result<InFlightPatch, Error>| result.as_ref().is_ok_and(|it| it.is_waiting());
    let waiting: Vec<usize> = patches
        .iter()
        .zip(&results)
        .filter(|(_, result)| is_waiting(result))
        .map(|(patch, _)| patch.address)
        .collect();
    let (state, progress) = match since.filter(|_| !waiting.is_empty()) {
        Some(since) => (State::FirstWait, Progress::Waiting { patches: results, since }),
        None => (State::Finished, Progress::finished(results)),
    };
    let shared = Arc::new(Shared {
        process: Generation::now(),
        state: AtomicU8::new(state as u8),
        is_left: AtomicBool::new(false),
        addresses: patches.iter().map(|patch| patch.address).collect(),
        progress: Mutex::new(progress),
    });
    if !waiting.is_empty() {
        let mut table = hold();
        let table = table.get_or_insert_default();
        for address in waiting {
            table.entry(address).or_default().push(Arc::clone(&shared));
        }
    }
    Outstanding { shared }
}

/// Advances the patches of `address`, regardless of which thread has started it (paper, Figure 7).
/// Returns `true` if they are finished or there is no outstanding patch; `false` if a wait is
/// not over, or another thread is advancing it. Never blocks if T_max is known, otherwise for a
/// `membarrier`. All patches of a batch are advanced together. A patch is outstanding from the
/// return of [`start_patch`] on.
///
/// # Errors
/// The error that [`Outstanding::finish_all`] would return for this patch. It is reported once.
pub fn finish_patch(address: usize) -> Result<bool, Error> {
    let batches = hold().as_ref().and_then(|table| table.get(&address)).cloned().unwrap_or_default();
    let mut is_finished = true;
    for shared in batches {
        is_finished &= finish_patch_of(&shared, address)?;
    }
    Ok(is_finished)
}

/// As [`finish_patch`], for the patch in this batch.
fn finish_patch_of(shared: &Shared, address: usize) -> Result<bool, Error> {
    let mut progress = match shared.try_lock() {
        Ok(Some(progress)) => progress,
        Ok(None) => return Ok(false),
        Err(forked) => {
            shared.forget(&[address]);
            return Err(forked);
        }
    };
    if shared.advance(&mut progress) != State::Finished {
        return Ok(false);
    }
    let number = shared.addresses.iter().position(|of| *of == address).expect("it is in the table");
    let reported = progress.report(number);
    drop(progress);
    if reported.is_err() {
        shared.forget(&[address]);
    }
    reported.map(|()| true)
}

impl Outstanding {
    /// The address of the first patch.
    pub(crate) fn address(&self) -> usize {
        self.shared.addresses.first().copied().unwrap_or(0)
    }

    /// The current state of the patch. Loads one byte; does not advance the patch.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Advances the patch if its wait is over, and returns its state. Never blocks if T_max is
    /// known, otherwise for a `membarrier`.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, if the parent has started the patch.
    pub fn try_finish(&self) -> Result<State, Error> {
        Ok(match self.shared.try_lock()? {
            Some(mut progress) => self.shared.advance(&mut progress),
            None => self.state(),
        })
    }

    /// Advances the patch until it is finished or the `deadline` has passed, and returns its state.
    /// Yields the processor between two attempts.
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

    /// Finishes the patch. Blocks for at most two waits.
    ///
    /// # Errors
    /// The first error of [`Outstanding::finish_all`].
    pub fn finish(self) -> Result<(), Error> {
        self.finish_all().into_iter().collect()
    }

    /// Finishes the patches, and returns their results, in the order of the batch, without those
    /// that [`finish_patch`] has reported. Blocks for at most two waits.
    ///
    /// The errors are those of [`patch`](crate::patch), [`Error::TextGone`], and [`Error::Forked`]
    /// for patches that the parent process had not finished when it forked.
    #[must_use = "each patch may have failed"]
    pub fn finish_all(self) -> Vec<Result<(), Error>> {
        if !self.shared.process.is_current() {
            // A thread of the parent may have held the lock when it forked.
            return self
                .shared
                .addresses
                .iter()
                .map(|address| Err(Error::Forked { address: *address }))
                .collect();
        }
        let mut progress = self.shared.lock();
        self.shared.finish(&mut progress);
        let outcomes = progress.take_outcomes();
        drop(progress);
        self.shared.forget(&self.shared.addresses);
        outcomes.into_iter().filter_map(Outcome::result).collect()
    }

    /// Detaches the patches: they can then be finished only by [`finish_patch`], not by dropping
    /// the handle.
    pub fn detach(self) {
        self.shared.is_left.store(true, Ordering::Relaxed);
    }

    /// Hands the patches over to a finisher, unless that was done before or they are detached.
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
        let mut progress = self.shared.lock();
        self.shared.finish(&mut progress);
        drop(progress);
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

    /// Removes those addresses from the table that belong to this batch.
    fn forget(&self, addresses: &[usize]) {
        let mut table = hold();
        let Some(table) = table.as_mut() else { return };
        for address in addresses {
            let Some(batches) = table.get_mut(address) else { continue };
            batches.retain(|other| !std::ptr::eq(Arc::as_ptr(other), self));
            if batches.is_empty() {
                table.remove(address);
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the lock, unless another thread has it.
    fn try_lock(&self) -> Result<Option<MutexGuard<'_, Progress>>, Error> {
        if !self.process.is_current() {
            return Err(Error::Forked { address: self.addresses.first().copied().unwrap_or(0) });
        }
        match self.progress.try_lock() {
            Ok(progress) => Ok(Some(progress)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Makes the next step if its wait is over.
    fn advance(&self, progress: &mut Progress) -> State {
        if let Progress::Waiting { since, .. } = progress {
            match serialize::is_visible_since(since) {
                Ok(false) => {}
                Ok(true) => self.step(progress, &Ok(())),
                Err(refusal) => self.step(progress, &Err(refusal)),
            }
        }
        self.state()
    }

    /// Makes the next stores, given the result of the wait. Does nothing if the batch is finished.
    pub(crate) fn step(&self, progress: &mut Progress, waited: &Result<(), Error>) {
        let Progress::Waiting { patches, since } = progress else { return };
        end_wait(patches, waited);
        let state = match store_all(patches) {
            Some(now) => {
                *since = now;
                State::SecondWait
            }
            None => {
                let mut patches = std::mem::take(patches);
                fail_unmapped(&mut patches);
                let numbered = self.addresses.iter().zip(&patches);
                let done: Vec<usize> =
                    numbered.filter(|(_, result)| result.is_ok()).map(|(address, _)| *address).collect();
                self.forget(&done);
                *progress = Progress::finished(patches);
                State::Finished
            }
        };
        self.state.store(state as u8, Ordering::Release);
    }

    /// Makes all remaining waits and stores.
    fn finish(&self, progress: &mut Progress) {
        while let Progress::Waiting { since, .. } = progress {
            let waited = serialize::wait_since(*since);
            self.step(progress, &waited);
        }
    }
}

/// Makes patches fail whose text has been unmapped. Patches without a wait were finished and
/// checked when the batch was started.
fn fail_unmapped(patches: &mut [Result<InFlightPatch, Error>]) {
    let has_waited = |patch: &&InFlightPatch| patch.waits();
    if InFlightPatch::are_current(patches.iter().flatten().filter(has_waited)) {
        return;
    }
    for result in patches {
        if let Ok(patch) = result
            && patch.waits()
            && !InFlightPatch::are_current(std::iter::once(&*patch))
        {
            *result = Err(Error::TextGone { address: patch.address() });
        }
    }
}

impl Progress {
    /// The outcomes, if no patch must wait any more.
    fn finished(patches: Vec<Result<InFlightPatch, Error>>) -> Self {
        let outcome = |result: Result<InFlightPatch, Error>| match result {
            Ok(_) => Outcome::Made,
            Err(error) => Outcome::Failed(error),
        };
        Self::Finished(patches.into_iter().map(outcome).collect())
    }

    /// When the wait has begun, if any patch waits.
    pub(crate) fn since(&self) -> Option<Since> {
        match self {
            Self::Waiting { since, .. } => Some(*since),
            Self::Finished(_) => None,
        }
    }

    /// Reports the error of a finished patch, once.
    fn report(&mut self, number: usize) -> Result<(), Error> {
        match self {
            Self::Finished(outcomes) => outcomes.get_mut(number).map_or(Ok(()), Outcome::report),
            Self::Waiting { .. } => Ok(()),
        }
    }

    /// Removes and returns the outcomes of all patches.
    fn take_outcomes(&mut self) -> Vec<Outcome> {
        match self {
            Self::Finished(outcomes) => std::mem::take(outcomes),
            Self::Waiting { .. } => Vec::new(),
        }
    }
}

impl Outcome {
    /// Reports the error, unless it has been reported.
    fn report(&mut self) -> Result<(), Error> {
        match std::mem::replace(self, Self::Reported) {
            Self::Failed(error) => Err(error),
            before => {
                *self = before;
                Ok(())
            }
        }
    }

    /// The result for the caller; `None` if it has been reported.
    fn result(self) -> Option<Result<(), Error>> {
        match self {
            Self::Made => Some(Ok(())),
            Self::Failed(error) => Some(Err(error)),
            Self::Reported => None,
        }
    }
}
