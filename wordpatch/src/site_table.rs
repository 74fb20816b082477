//! The table of all sites that have been locked. The trap handler looks up whether an INT3 is ours,
//! and where the thread continues.
//!
//! Lookups are made in signal context, on any thread, at any instruction: they use atomics on
//! mapped memory only, no locks and no allocation.
//!
//! # Records
//! A record belongs to one address for the life of the process. Its state contains a counter, so
//! that a reader notices changes between two loads:
//!
//! ```text
//! free      no INT3 of ours is at the site                  → owned    one patch succeeds in the exchange
//! owned     one patch has acquired the site, no INT3 yet    → locked   copy and old bytes are in the record
//! locked    INT3 may be there; threads resume in the copy   → free     after the store that replaces INT3
//! ```
//!
//! A patch that can neither be completed nor undone gives its site up: the record stays as it is
//! until the text is gone ([`end_abandoned`]).
//!
//! # Layout
//! The table consists of segments, each eight times as large as the previous one. An address has
//! one set of [`WAYS`] records in each segment; its record is in the first segment whose set had
//! room when the site was first locked. Therefore records never move, and a lookup reads one set in
//! each segment in use. The memory for all segments is reserved at once, and allocated by the
//! kernel on first access: nothing is allocated or published when the table grows.
//!
//! # Fork
//! Until it calls [`unshare`](crate::text::unshare), a forked child executes its parent's text,
//! with the INT3s that the parent stores. Therefore the table is shared with the child, which reads
//! its parent's records but never writes one; `unshare` replaces it by a table with the same sites,
//! all free. One of its threads may have executed an INT3 of the parent shortly before, and finds
//! that it is gone.
//!
//! Rejected: one array with linear search (a batch of thousands makes every trap slow); reuse of
//! records (a child could not know which sites its parent had locked while it was copying the
//! text).

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

use crate::primitive::{AtomicPtr, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence, global};
use crate::text::{atfork, fork};
use crate::{Bytes, Error, MAX_PATCH};

/// Number of records in a set. Small in tests, so that segments become full.
const WAYS: usize = if cfg!(loom) {
    1
} else if cfg!(test) {
    2
} else {
    8
};
/// The first segment has eight sets, and each other one eight times as many as the previous one.
/// (Under loom: two sets, and twice as many.)
const GROWTH_BITS: u32 = if cfg!(loom) { 1 } else { 3 };
/// The largest number of segments to reserve: 2.4 million sites, 77 MB of address space. Fewer if
/// the kernel refuses that.
const MAX_SEGMENTS: usize = if cfg!(loom) { 2 } else { 6 };

/// The state of one site.
#[repr(C, align(32))]
#[derive(Debug)]
struct Record {
    /// The address; 0 if the record is unused.
    site: AtomicUsize,
    /// See [`State`].
    state: AtomicU64,
    /// The address at which threads continue while the site is locked.
    copy: AtomicUsize,
    /// The old bytes of the site, the first one in the lowest byte.
    old: AtomicU64,
}

/// A record's state: bits 0..2 the phase, 2 whether the owner has [given up](OwnedSite::abandon),
/// 4..8 the length of the old bytes, 8..12 the largest number of bytes that a lock has covered; the
/// remaining bits count how often the site was acquired.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free = 0,
    Owned = 1,
    Locked = 2,
}

const ABANDONED: u64 = 1 << 2;
const COUNT_SHIFT: u32 = 12;

impl State {
    fn new(count: u64, reach: usize, length: usize, phase: Phase) -> Self {
        Self(count << COUNT_SHIFT | (reach as u64) << 8 | (length as u64) << 4 | phase as u64)
    }

    fn is(self, phase: Phase) -> bool {
        self.0 & 3 == phase as u64
    }

    fn length(self) -> usize {
        (self.0 >> 4 & 0xf) as usize
    }

    fn reach(self) -> usize {
        (self.0 >> 8 & 0xf) as usize
    }

    fn count(self) -> u64 {
        self.0 >> COUNT_SHIFT
    }

    fn with(self, phase: Phase) -> Self {
        Self(self.0 & !(3 | ABANDONED) | phase as u64)
    }

    fn is_abandoned(self) -> bool {
        self.0 & ABANDONED != 0
    }
}

/// The start of the mapped table.
#[repr(C, align(64))]
struct Header {
    /// The number of segments with records.
    segments: AtomicUsize,
}

global! {
    static TABLE: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
    /// The number of segments that the mapping has room for.
    static RESERVED: AtomicUsize = AtomicUsize::new(0);
    /// Held while a record is assigned to a site.
    static APPENDING: Mutex<()> = Mutex::new(());
}

/// Sets in the segment.
const fn sets(segment: usize) -> usize {
    1 << (GROWTH_BITS as usize * (segment + 1))
}

/// Index of the segment's first record.
const fn first_record(segment: usize) -> usize {
    let mut first = 0;
    let mut before = 0;
    while before < segment {
        first += sets(before) * WAYS;
        before += 1;
    }
    first
}

const fn mapped_length(segments: usize) -> usize {
    (size_of::<Header>() + first_record(segments) * size_of::<Record>()).next_multiple_of(4096)
}

const SHARED: MapFlags = MapFlags::MAP_SHARED.union(MapFlags::MAP_NORESERVE);
const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

#[cfg(not(loom))]
fn map(segments: usize) -> nix::Result<*mut Header> {
    let length = mapped_length(segments).try_into().expect("not empty");
    // SAFETY: a new mapping at an address that the kernel chooses.
    let table = unsafe { mmap_anonymous(None, length, READ_WRITE, SHARED) }?;
    Ok(table.as_ptr().cast())
}

/// Under loom, atomics must be constructed, and are dropped at the end of the execution.
#[cfg(loom)]
fn map(segments: usize) -> nix::Result<*mut Header> {
    #[repr(C)]
    struct Memory {
        header: Header,
        records: [Record; first_record(MAX_SEGMENTS)],
    }
    fn record() -> Record {
        Record {
            site: AtomicUsize::new(0),
            state: AtomicU64::new(0),
            copy: AtomicUsize::new(0),
            old: AtomicU64::new(0),
        }
    }
    global! {
        static MEMORY: Memory = Memory {
            header: Header { segments: AtomicUsize::new(0) },
            records: std::array::from_fn(|_| record()),
        };
    }
    assert_eq!(segments, MAX_SEGMENTS);
    Ok(std::ptr::from_ref::<Memory>(&MEMORY).cast_mut().cast())
}

/// Reserves the table, unless it has been reserved before.
pub(crate) fn reserve() -> Result<(), Error> {
    let _appending = hold();
    reserved().map(drop)
}

/// The table, which is reserved on first use. The caller holds `APPENDING`.
fn reserved() -> Result<&'static Header, Error> {
    if let Some(header) = header() {
        return Ok(header);
    }
    // A fork then waits for the rest, since the caller holds a lock that it takes.
    atfork::follow();
    fork::watch()?;
    let mut refusal = nix::errno::Errno::ENOMEM;
    for segments in (1..=MAX_SEGMENTS).rev() {
        match map(segments) {
            Ok(table) => {
                RESERVED.store(segments, Ordering::Relaxed);
                // Release: pairs with the handler's Acquire, which then finds zeroed memory and its
                // size.
                TABLE.store(table, Ordering::Release);
                // SAFETY: never unmapped, zeroed, and a `Header` may be all zero.
                return Ok(unsafe { &*table });
            }
            Err(errno) => refusal = errno,
        }
    }
    Err(Error::MemoryMap { address: 0, source: io::Error::from(refusal) })
}

fn header() -> Option<&'static Header> {
    // SAFETY: null, or a mapping by `reserve` that is never unmapped.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// The records of a segment that can be those of `site`.
fn set(header: &'static Header, segment: usize, site: usize) -> &'static [Record] {
    let hash = (site as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (hash >> (64 - GROWTH_BITS * (segment as u32 + 1))) as usize;
    let index = first_record(segment) + number * WAYS;
    let records = std::ptr::from_ref(header).wrapping_add(1).cast::<Record>();
    // SAFETY: `segment` is below RESERVED, for which `map` has reserved memory after the header;
    // all zero is a valid record, and records are changed by atomics only.
    unsafe { std::slice::from_raw_parts(records.add(index), WAYS) }
}

fn find(site: usize) -> Option<&'static Record> {
    let header = header()?;
    // A child reads its parent's count; the size of the mapping is the same in both.
    let segments = header.segments.load(Ordering::Acquire).min(RESERVED.load(Ordering::Relaxed));
    (0..segments)
        .flat_map(|segment| set(header, segment, site))
        .find(|record| record.site.load(Ordering::Acquire) == site)
}

/// The site's record; assigns a free one if it has none.
fn find_or_append(site: usize) -> Result<&'static Record, Error> {
    if let Some(record) = find(site) {
        return Ok(record);
    }
    let _appending = hold();
    let header = reserved()?;
    if let Some(record) = find(site) {
        return Ok(record);
    }
    for segment in 0..RESERVED.load(Ordering::Relaxed) {
        let free = |record: &&Record| record.site.load(Ordering::Relaxed) == 0;
        if let Some(record) = set(header, segment, site).iter().find(free) {
            record.site.store(site, Ordering::Release);
            header.segments.fetch_max(segment + 1, Ordering::Release);
            return Ok(record);
        }
    }
    Err(Error::TableFull)
}

/// The record of sites whose state is in the model.
#[cfg(model)]
static UNUSED: Record = Record {
    site: AtomicUsize::new(0),
    state: AtomicU64::new(0),
    copy: AtomicUsize::new(0),
    old: AtomicU64::new(0),
};

/// Exclusive ownership of a site by a patch of several steps, until it is dropped. INT3 must not be
/// at the site any more when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnedSite {
    record: &'static Record,
    state: u64,
    /// The site, if its state is in the model.
    #[cfg(model)]
    modelled: Option<usize>,
}

impl OwnedSite {
    /// Acquires the site.
    ///
    /// # Errors
    /// [`Error::Contended`] if another patch owns it; [`Error::SharedWithParent`],
    /// [`Error::TableFull`], [`Error::MemoryMap`].
    pub(crate) fn acquire(site: usize) -> Result<Self, Error> {
        #[cfg(model)]
        if let Some(is_free) = wordpatch_model::environment::acquire(site) {
            let owned = || Self { record: &UNUSED, state: 0, modelled: Some(site) };
            return is_free.then(owned).ok_or(Error::Contended { address: site });
        }
        if fork::is_unprepared_child() {
            return Err(Error::SharedWithParent { address: site });
        }
        let record = find_or_append(site)?;
        let free = State(record.state.load(Ordering::Acquire));
        let owned = State::new(free.count() + 1, free.reach(), 0, Phase::Owned);
        if !free.is(Phase::Free)
            || record.state.compare_exchange(free.0, owned.0, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Err(Error::Contended { address: site });
        }
        Ok(Self {
            record,
            state: owned.0,
            #[cfg(model)]
            modelled: None,
        })
    }

    /// Locks the site, before INT3 is stored there: threads that execute the INT3 continue at
    /// `copy`. `old` are the bytes of the site until the patch is complete.
    pub(crate) fn lock(&mut self, copy: usize, old: &Bytes) {
        #[cfg(model)]
        if let Some(site) = self.modelled {
            wordpatch_model::environment::lock(site, copy, old);
            return;
        }
        let mut word = [0; MAX_PATCH];
        word[..old.len()].copy_from_slice(old);
        // Release: pairs with the Acquire loads of readers. A reader that has loaded the state of
        // an earlier lock, and loads one of these values, finds a changed state when it loads it
        // again. Also, the copy is written before its address.
        self.record.copy.store(copy, Ordering::Release);
        self.record.old.store(u64::from_le_bytes(word), Ordering::Release);
        let state = State(self.state);
        let locked = State::new(state.count(), state.reach().max(old.len()), old.len(), Phase::Locked);
        self.state = locked.0;
        // Release: pairs with the Acquire load of the state by a reader, which then reads the
        // copy's address and the old bytes.
        self.record.state.store(locked.0, Ordering::Release);
    }

    /// Keeps the site in its state as long as its text exists: no other patch can acquire it. If it
    /// is locked, threads that execute the INT3 continue in the copy. In a forked child, which may
    /// drop a patch of its parent, this has no effect.
    pub(crate) fn abandon(self) {
        let site = std::mem::ManuallyDrop::new(self);
        #[cfg(model)]
        if site.modelled.is_some() {
            return;
        }
        if !fork::is_unprepared_child() {
            let _ = site.record.state.compare_exchange(
                site.state,
                site.state | ABANDONED,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
    }
}

impl Drop for OwnedSite {
    fn drop(&mut self) {
        #[cfg(model)]
        if let Some(site) = self.modelled {
            wordpatch_model::environment::release(site);
            return;
        }
        self.record.state.store(State(self.state).with(Phase::Free).0, Ordering::Release);
    }
}

/// The origin of an INT3 that was executed at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int3 {
    /// A patch has locked the site; threads continue at `copy`.
    Locked {
        /// The address of the out-of-line copy of the old instruction.
        copy: usize,
    },
    /// The INT3 has been replaced, because the patch was completed in the meantime.
    Gone,
    /// A breakpoint that is not ours.
    Foreign,
}

/// Whether the site has ever been locked. Async-signal-safe.
pub(crate) fn is_known(site: usize) -> bool {
    // Unused records have the address 0.
    site != 0 && find(site).is_some()
}

/// Determines the origin of an INT3 at `site`; `is_int3` reads the site. Async-signal-safe.
///
/// An INT3 of ours is at the site only while the record is locked. Therefore, if the record is not
/// locked, and its state is the same before and after an INT3 is read, the INT3 is not ours.
pub(crate) fn meaning_of_int3(site: usize, is_int3: impl Fn() -> bool) -> Int3 {
    #[cfg(model)]
    if let Some(is_locked) = wordpatch_model::environment::is_locked(site) {
        return match is_locked {
            true => Int3::Locked { copy: 0 },
            false if is_int3() => Int3::Foreign,
            false => Int3::Gone,
        };
    }
    loop {
        let record = find(site);
        let state_of = |record: &Record| record.state.load(Ordering::Acquire);
        let before = record.map(state_of);
        if let (Some(record), Some(state)) = (record, before)
            && State(state).is(Phase::Locked)
        {
            let copy = record.copy.load(Ordering::Acquire);
            // Another patch may have acquired the site before its copy was read.
            if state_of(record) == state {
                return Int3::Locked { copy };
            }
            continue;
        }
        if !is_int3() {
            return Int3::Gone;
        }
        // Acquire, regardless of how the byte was read: the record is locked before an INT3 of ours
        // is stored, so the load below sees the lock.
        fence(Ordering::Acquire);
        if find(site).map(state_of) == before {
            return Int3::Foreign;
        }
    }
}

/// The records of a table, in the segments in use.
fn all_records(header: &Header) -> &[Record] {
    let records = std::ptr::from_ref(header).wrapping_add(1).cast::<Record>();
    let segments = header.segments.load(Ordering::Acquire).min(RESERVED.load(Ordering::Relaxed));
    // SAFETY: as in `set`.
    unsafe { std::slice::from_raw_parts(records, first_record(segments)) }
}

/// The sites inside `range` that have ever been locked.
fn records(range: &Range<usize>) -> impl Iterator<Item = (usize, &'static Record)> {
    let all = header().into_iter().flat_map(all_records);
    let range = range.clone();
    all.map(|record| (record.site.load(Ordering::Acquire), record))
        .filter(move |(site, _)| range.contains(site))
}

/// Whether a site inside `range` was given up.
pub(crate) fn has_abandoned(range: &Range<usize>) -> bool {
    records(range).any(|(_, record)| State(record.state.load(Ordering::Acquire)).is_abandoned())
}

/// Frees the sites inside `range` that were given up, except for those that are `in_use`: their
/// text is gone.
pub(crate) fn end_abandoned(range: &Range<usize>, in_use: impl Fn(usize) -> bool) {
    if fork::is_unprepared_child() {
        return;
    }
    for (site, record) in records(range) {
        let state = State(record.state.load(Ordering::Acquire));
        if state.is_abandoned() && !in_use(site) {
            let free = state.with(Phase::Free);
            let _ = record.state.compare_exchange(state.0, free.0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Calls `each` for all sites inside `range` that have ever been locked, with the bytes of the
/// site, or the old bytes if it is locked. A site that crosses the end of the range was locked in
/// an earlier mapping there, and is left out. `read` reads a number of bytes at a site; only the
/// owners of these records may write them.
pub(crate) fn settled(
    range: &Range<usize>,
    read: impl Fn(usize, usize) -> Bytes,
    mut each: impl FnMut(usize, Bytes),
) {
    for (site, record) in records(range) {
        loop {
            let state = State(record.state.load(Ordering::Acquire));
            if state.reach() == 0 || site + state.reach() > range.end {
                break;
            }
            let mut bytes = read(site, state.reach()).to_vec();
            if state.is(Phase::Locked) {
                let old = record.old.load(Ordering::Acquire).to_le_bytes();
                bytes[..state.length()].copy_from_slice(&old[..state.length()]);
            }
            // As in `meaning_of_int3`: if `read` has returned a byte stored under a later lock, the
            // state of that lock is visible.
            fence(Ordering::Acquire);
            if record.state.load(Ordering::Acquire) == state.0 {
                each(site, Bytes::new(&bytes).expect("the length is unchanged"));
                break;
            }
        }
    }
}

/// Whether any site has a record.
pub(crate) fn has_records() -> bool {
    header().is_some_and(|header| header.segments.load(Ordering::Acquire) > 0)
}

/// The sites that are currently locked, with their old bytes. No site may be locked or unlocked
/// during the call.
pub(crate) fn locked() -> Vec<(usize, Bytes)> {
    let is_locked = |record: &Record| State(record.state.load(Ordering::Acquire)).is(Phase::Locked);
    let mut locked = Vec::new();
    for (site, record) in records(&(0..usize::MAX)).filter(|(_, record)| is_locked(record)) {
        let length = State(record.state.load(Ordering::Acquire)).length();
        let old = record.old.load(Ordering::Acquire).to_le_bytes();
        locked.extend(Bytes::new(&old[..length]).map(|old| (site, old)));
    }
    locked
}

/// Replaces, in a forked child, the table that it shares with its parent, in one step, by one in
/// which the same sites are free: a thread that has executed an INT3 of the parent finds that it is
/// gone. The child's text must no longer contain an INT3 of the parent.
pub(crate) fn renew_in_child() -> Result<(), Error> {
    let Some(table) = NonNull::new(TABLE.load(Ordering::Acquire)) else { return Ok(()) };
    let refused = |errno| Error::MemoryMap { address: table.addr().get(), source: io::Error::from(errno) };
    let reserved = RESERVED.load(Ordering::Relaxed);
    let own = map(reserved).map_err(refused)?;
    // SAFETY: the table is mapped; the new one is as long, and zeroed, which is valid.
    let (header, own_header) = unsafe { (table.as_ref(), &*own) };
    own_header.segments.store(header.segments.load(Ordering::Acquire).min(reserved), Ordering::Relaxed);
    for (record, own) in all_records(header).iter().zip(all_records(own_header)) {
        let site = record.site.load(Ordering::Acquire);
        if site != 0 {
            let state = State(record.state.load(Ordering::Acquire));
            own.state.store(state.with(Phase::Free).0, Ordering::Relaxed);
            own.site.store(site, Ordering::Relaxed);
        }
    }
    let own = NonNull::new(own).expect("a mapping").cast();
    let length = mapped_length(reserved);
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: both mappings are ours, and of this length. Readers find the table of the parent, or
    // the child's.
    if let Err(errno) = unsafe { mremap(own, length, length, flags, Some(table.cast())) } {
        // SAFETY: the new mapping has not been moved, and is not in use.
        let _ = unsafe { munmap(own, length) };
        return Err(refused(errno));
    }
    Ok(())
}

/// Prevents other threads from appending to the table during a fork.
pub(crate) type Hold = MutexGuard<'static, ()>;

pub(crate) fn hold() -> Hold {
    APPENDING.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; 3] = [1, 2, 3];

    fn locked_site(site: usize) -> OwnedSite {
        let mut owned = OwnedSite::acquire(site).unwrap();
        owned.lock(site + 1, &Bytes::new(&OLD).unwrap());
        owned
    }

    #[test]
    fn a_site_has_one_owner_and_can_be_acquired_again() {
        let site = 0x1_0000_0001;
        let first = OwnedSite::acquire(site).unwrap();
        assert!(matches!(OwnedSite::acquire(site), Err(Error::Contended { address }) if address == site));
        drop(first);
        drop(OwnedSite::acquire(site).unwrap());
    }

    #[test]
    fn an_int3_is_ours_only_while_the_site_is_locked() {
        let site = 0x2_0000_0001;
        assert_eq!(meaning_of_int3(site, || true), Int3::Foreign);
        let mut owned = OwnedSite::acquire(site).unwrap();
        assert_eq!(meaning_of_int3(site, || true), Int3::Foreign);
        owned.lock(7, &Bytes::new(&OLD).unwrap());
        assert_eq!(meaning_of_int3(site, || true), Int3::Locked { copy: 7 });
        drop(owned);
        assert_eq!(meaning_of_int3(site, || false), Int3::Gone);
        assert_eq!(meaning_of_int3(site, || true), Int3::Foreign);
    }

    /// A patch locks and unlocks the site between the load of the record and that of the text.
    #[test]
    fn an_int3_of_a_patch_made_meanwhile_is_not_foreign() {
        let site = 0x3_0000_0001;
        let reads = std::cell::Cell::new(0);
        let meaning = meaning_of_int3(site, || {
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                drop(locked_site(site));
            }
            reads.get() == 1
        });
        assert_eq!(meaning, Int3::Gone);
    }

    #[test]
    fn thousands_of_sites_are_locked_at_once_and_none_moves() {
        let sites: Vec<usize> = (0..5_000).map(|number| 0x4_0000_0000 + 13 * number).collect();
        let owned: Vec<OwnedSite> = sites.iter().map(|site| locked_site(*site)).collect();
        for site in &sites {
            assert_eq!(meaning_of_int3(*site, || true), Int3::Locked { copy: site + 1 });
        }
        let range = 0x4_0000_0000..0x5_0000_0000;
        assert_eq!(locked().iter().filter(|(site, _)| range.contains(site)).count(), sites.len());
        drop(owned);
        assert_eq!(meaning_of_int3(sites[0], || true), Int3::Foreign);
        assert_eq!(locked().iter().filter(|(site, _)| range.contains(site)).count(), 0, "free again");
    }

    #[test]
    fn sites_that_were_given_up_are_free_when_their_text_is_gone() {
        let (gone, there, outside) = (0x8_0000_0001, 0x8_0000_0101, 0x8_0000_0201);
        for site in [gone, there, outside] {
            locked_site(site).abandon();
        }
        let in_progress = locked_site(0x8_0000_0011);
        end_abandoned(&(gone..outside), |site| site == there);
        drop(OwnedSite::acquire(gone).unwrap());
        assert_eq!(meaning_of_int3(gone, || true), Int3::Foreign);
        for site in [there, outside, 0x8_0000_0011] {
            assert_eq!(meaning_of_int3(site, || true), Int3::Locked { copy: site + 1 });
            assert!(OwnedSite::acquire(site).is_err());
        }
        drop(in_progress);
    }

    /// As for a thread that has executed an INT3 of the parent before the child got its own text.
    #[cfg(not(loom))]
    #[test]
    fn a_child_knows_its_parents_sites_as_free_ones() {
        let sites = [0x7_0000_0001, 0x7_0000_0101, 0x7_0000_0201, 0x7_0000_0301, 0x7_0000_0401];
        let owned = sites.map(locked_site);
        // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_renewed = renew_in_child().is_ok() && locked().is_empty();
            let is_free = |site| {
                let gone = meaning_of_int3(site, || false) == Int3::Gone;
                is_known(site) && gone && meaning_of_int3(site, || true) == Int3::Foreign
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(is_renewed && sites.into_iter().all(is_free)))) }
        }
        let mut status = -1;
        // SAFETY: waits for the child, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        for (site, owned) in sites.into_iter().zip(owned) {
            assert_eq!(meaning_of_int3(site, || true), Int3::Locked { copy: site + 1 }, "in the parent");
            drop(owned);
        }
    }

    #[test]
    fn the_settled_bytes_of_a_locked_site_are_the_old_ones() {
        let site = 0x6_0000_0001;
        let settle = || {
            let mut found = Vec::new();
            let read = |_, length| Bytes::new(&[9; 8][..length]).unwrap();
            settled(&(site..site + 5), read, |site, bytes| found.push((site, bytes.to_vec())));
            found
        };
        assert_eq!(settle(), []);
        let mut owned = OwnedSite::acquire(site).unwrap();
        owned.lock(7, &Bytes::new(&[1, 2, 3, 4, 5]).unwrap());
        drop(owned);
        assert_eq!(settle(), [(site, vec![9; 5])]);
        let owned = locked_site(site);
        assert_eq!(
            settle(),
            [(site, vec![1, 2, 3, 9, 9])],
            "bytes that only an earlier patch has covered are read too"
        );
        drop(owned);
        let read = |_, _| panic!("the site crosses the end of the mapping");
        settled(&(site..site + 4), read, |_, _| ());
    }
}
