//! Moves of a text to other pages while threads store into it.
//!
//! A store that reaches the old pages after its bytes were copied would be lost. No store waits for
//! a move beforehand; instead, each compares the number of moves before and after it ([`MOVES`]),
//! and is repeated if there was one in between. The number is odd during a move: then it is
//! repeated after the end of the move, for which the thread waits, a millisecond for 4 MB of text.
//!
//! A move excludes changes of the protection of pages ([`protect::Turn`]), since the pages may be
//! replaced meanwhile.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::{MAPPINGS, TextMapping};
use super::{alias, atfork, fork, protect};
use crate::{Error, site_table};

/// Number of beginnings and ends of moves.
static MOVES: AtomicU32 = AtomicU32::new(0);

/// A moment between two moves, or in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(u32);

impl Moment {
    /// Now.
    #[inline(always)]
    pub(super) fn now() -> Self {
        Self(MOVES.load(Ordering::Acquire))
    }

    /// Whether no text was moved since, and none is now. The store in between must be a locked
    /// instruction: then either this load finds the move, or the move copies what was stored.
    #[inline(always)]
    pub(super) fn is_undisturbed(self) -> bool {
        self.0.is_multiple_of(2) && self == Self::now()
    }
}

/// A move. There is one at a time.
pub(super) struct Move {
    _turn: protect::Turn,
}

impl Move {
    /// Begins to move the text that contains `address`.
    ///
    /// # Errors
    /// [`Error::Contended`].
    pub(super) fn begin(address: usize) -> Result<Self, Error> {
        let turn = protect::acquire().ok_or(Error::Contended { address })?;
        // A locked instruction: the copy is made after it.
        MOVES.fetch_add(1, Ordering::SeqCst);
        Ok(Self { _turn: turn })
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        MOVES.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits for the end of a move, for a store at `address`.
///
/// # Errors
/// [`Error::Contended`] after ten seconds.
pub(super) fn wait(address: usize) -> Result<(), Error> {
    protect::acquire().map(drop).ok_or(Error::Contended { address })
}

/// Makes a store, and repeats it until no text is moved during it. `store` returns whether it has
/// changed anything; so does this, for all repetitions together.
#[inline(always)]
pub(super) fn despite_moves(
    address: usize,
    mut store: impl FnMut() -> Result<bool, Error>,
) -> Result<bool, Error> {
    let begin = Moment::now();
    let stored = store();
    if begin.is_undisturbed() { stored } else { repeat(address, stored, &mut store) }
}

#[cold]
fn repeat(
    address: usize,
    mut stored: Result<bool, Error>,
    store: &mut dyn FnMut() -> Result<bool, Error>,
) -> Result<bool, Error> {
    loop {
        wait(address)?;
        let begin = Moment::now();
        stored = match (stored, store()) {
            (Ok(earlier), Ok(later)) => Ok(earlier | later),
            // Not lost, or followed by a store of another thread.
            (Ok(earlier), Err(Error::Mismatch { .. })) => Ok(earlier),
            (_, later) => later,
        };
        if begin.is_undisturbed() {
            return stored;
        }
    }
}

/// Gives this process new pages for the mappings in `text` that children may share with it, with
/// the same bytes, while other threads execute the text and store into it. Children that it forked
/// before keep the old pages, which no longer change: they may contain no call to memory that this
/// process maps later. Blocks while the text is copied.
///
/// # Errors
/// [`Error::AliasRefused`]; [`Error::MemoryMap`] if `/proc` cannot be read;
/// [`Error::SharedWithParent`] in a forked child before [`unshare`](super::unshare);
/// [`Error::Contended`] if an instruction there is being [patched](crate::patch): the children
/// would keep its INT3.
///
/// # Safety
/// The text stays mapped during the call. The calling thread has no
/// [`NoForks`](crate::internal::NoForks).
pub unsafe fn leave_text_to_children(text: &Range<usize>) -> Result<(), Error> {
    let _no_steps = atfork::no_steps();
    let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let is_shared = |m: &&mut TextMapping| {
        let is_meant = text.start < m.range.end && m.range.start < text.end;
        is_meant && m.copied && m.written.is_none() && m.forks != fork::forks()
    };
    for mapping in mappings.iter_mut().filter(is_shared) {
        let address = mapping.range.start;
        if fork::is_unprepared_child() {
            return Err(Error::SharedWithParent { address });
        }
        if site_table::locked().iter().any(|(site, _)| mapping.range.contains(site)) {
            return Err(Error::Contended { address });
        }
        let writable = mapping.writable.expect("a copied mapping has a writable view");
        let files = alias::Files::now().map_err(|source| Error::MemoryMap { address, source })?;
        let shown = files.shown(&mapping.range, writable);
        let _move = Move::begin(address)?;
        // SAFETY: alias and text are mapped, by the caller's obligation; stores are repeated.
        unsafe { alias::replace_beside_stores(&mapping.range, writable, &shown, mapping.is_private)? };
        mapping.forks = fork::forks();
    }
    Ok(())
}
