//! The memory of the stubs of lists: its limit, and blocks that were freed.
//!
//! Blocks never move, because signal handlers read the table of blocks. A freed block is reused by
//! a stub that fits into it.

use std::collections::{BTreeMap, HashMap};

use super::MakeError;
use super::blocks::ALIGNMENT;
use crate::code::CodeImage;

/// Bytes in use below which nothing is freed.
const MINIMUM: usize = 512 << 10;
/// Bytes that each place adds to the limit: enough for one probe of any kind.
const BYTES_OF_PLACE: usize = 512;
/// Idle lists with recorders below which nothing is freed because of them: a recorder that no probe
/// uses any more has a number, of which there are few, and 16 KiB for each store.
const MIN_RECORDERS: usize = 64;
/// The number of attempts that may free nothing before further attempts become rarer.
const SOON_FAILURES: u32 = 8;
const MAX_DOUBLINGS: u32 = 20;

/// Why a site gets another list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A probe is switched on.
    Activation,
    /// A probe is switched off, for which as much again as the limit may be used.
    Deactivation,
    /// A probe is removed, which must not fail: there is no limit.
    Removal,
}

/// What decides whether stubs fit that do not change themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryState {
    pub limit: usize,
    changes: u64,
}

#[derive(Debug, Default)]
pub(super) struct StubMemory {
    /// Bytes that were appended to arenas.
    appended: usize,
    /// Of these, the bytes of freed blocks.
    free_bytes: usize,
    /// Freed blocks, by their size.
    free: BTreeMap<usize, Vec<usize>>,
    /// Sizes of blocks that have a shorter stub now.
    sizes: HashMap<usize, usize>,
    /// Bytes in use at which unneeded stubs are freed, if more than [`MINIMUM`].
    reclaim_at: usize,
    /// Idle lists with recorders, when they were counted last, and since then; and the number at
    /// which unneeded stubs are freed, if more than [`MIN_RECORDERS`].
    idle_recorders: usize,
    reclaim_recorders_at: usize,
    /// Places that have or had probes which call functions.
    places: usize,
    /// The number of changes after which a stub that was refused may fit.
    changes: u64,
    /// The number of stubs that do not fit and are refused without another attempt to free some.
    skipped: u32,
    /// Attempts that have freed nothing since the last one that has freed something.
    failures: u32,
    /// For tests: the limit.
    #[cfg(test)]
    pub limit: Option<usize>,
    /// For tests: number of attempts.
    #[cfg(test)]
    pub attempts: u32,
}

fn size_of(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

impl StubMemory {
    /// The limit for probes that are switched on.
    fn limit(&self, image: &CodeImage) -> usize {
        #[cfg(test)]
        if let Some(limit) = self.limit {
            return limit;
        }
        (16 << 20) + 32 * image.code_length() + BYTES_OF_PLACE * self.places
    }

    /// Counts one more place with probes that call functions.
    pub(super) fn add_place(&mut self) {
        self.places += 1;
    }

    /// As long as this is the same, the same stubs are refused, unless idle lists can be freed.
    pub(super) fn state(&self, image: &CodeImage) -> MemoryState {
        MemoryState { limit: self.limit(image), changes: self.changes }
    }

    /// Records that a site has another form.
    pub(super) fn form_changed(&mut self) {
        self.changes += 1;
    }

    pub(super) fn in_use(&self) -> usize {
        self.appended - self.free_bytes
    }

    /// Whether stubs should be freed before more are made.
    pub(super) fn is_reclaim_due(&self) -> bool {
        self.in_use() >= self.reclaim_at.max(MINIMUM)
            || self.idle_recorders >= self.reclaim_recorders_at.max(MIN_RECORDERS)
    }

    /// Whether stubs should be freed for one that does not fit. After several attempts that freed
    /// nothing, the intervals between attempts grow, since each may wait for threads that do not
    /// respond.
    pub(super) fn may_reclaim(&mut self) -> bool {
        let is_next = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_next
    }

    /// Records whether an attempt to free stubs for one that does not fit has freed any.
    pub(super) fn tried(&mut self, has_freed: bool) {
        #[cfg(test)]
        {
            self.attempts += 1;
        }
        self.failures = if has_freed { 0 } else { self.failures.saturating_add(1) };
        let doublings = self.failures.saturating_sub(SOON_FAILURES).min(MAX_DOUBLINGS);
        self.skipped = (1 << doublings) - 1;
    }

    /// Records that stubs were freed as far as possible, and how many of the lists that are still
    /// idle have recorders.
    pub(super) fn reclaimed(&mut self, idle_recorders: usize) {
        self.reclaim_at = 2 * self.in_use();
        (self.idle_recorders, self.reclaim_recorders_at) = (idle_recorders, 2 * idle_recorders);
    }

    /// Records that there is one more list whose stubs may be freed.
    pub(super) fn list_is_idle(&mut self, has_recorder: bool) {
        self.skipped = 0;
        self.changes += 1;
        self.idle_recorders += usize::from(has_recorder);
    }

    /// A freed block for `length` bytes, of which at most half remain unused.
    pub(super) fn reuse(&mut self, length: usize) -> Option<usize> {
        let needed = size_of(length);
        let (&size, starts) = self.free.range_mut(needed..=2 * needed).next()?;
        let start = starts.pop()?;
        if starts.is_empty() {
            self.free.remove(&size);
        }
        self.free_bytes -= size;
        if size != needed {
            self.sizes.insert(start, size);
        }
        Some(start)
    }

    /// Whether a stub of `length` bytes may be appended. As freed blocks may be of the wrong sizes,
    /// the limit is for what is in use, and four times as much may be appended.
    pub(super) fn check(&self, length: usize, image: &CodeImage, change: Change) -> Result<(), MakeError> {
        let limit = self.limit(image);
        let may_use = match change {
            Change::Activation => limit,
            Change::Deactivation => 2 * limit,
            Change::Removal => usize::MAX,
        };
        let (in_use, appended) = (self.in_use() + size_of(length), self.appended + size_of(length));
        if in_use > may_use || appended > may_use.saturating_mul(4) {
            return Err(MakeError::StubMemory { limit });
        }
        Ok(())
    }

    /// Counts a stub of `length` bytes that was appended.
    pub(super) fn add(&mut self, length: usize) {
        self.appended += size_of(length);
    }

    /// Frees the stub at this address, which nothing leads to.
    pub(super) fn give_back(&mut self, image: &CodeImage, start: usize) {
        let blocks = &image.probed().blocks;
        if let Some(block) = blocks.find(start) {
            blocks.clear(start);
            image.shown.version_freed(start);
            self.free(start, block.end - block.start);
        }
    }

    /// Frees the block of a stub of `length` bytes.
    pub(super) fn free(&mut self, start: usize, length: usize) {
        let size = self.sizes.remove(&start).unwrap_or(size_of(length));
        self.free.entry(size).or_default().push(start);
        self.free_bytes += size;
        self.changes += 1;
    }
}
