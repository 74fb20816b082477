//! The table of sites that were ever locked: where the trap handler finds out whose an INT3 is, and
//! where the thread goes on.
//!
//! Looked up in signal context, on any thread, at any instruction: atomics on mapped memory only;
//! no locks, no allocation.
//!
//! # A record
//! belongs to one address for as long as the process lives. Its state counts, so that a reader sees
//! whether anything has happened in between:
//!
//! ```text
//! free      no INT3 of ours stands there                    → owned    one patch wins the exchange
//! owned     one patch has the site for itself, no INT3 yet  → locked   copy and old bytes are in the record
//! locked    INT3 may stand there; threads go on in the copy → free     after the store that takes INT3 away
//! ```
//!
//! # Where a record is
//! The table is a row of segments, each eight times as large as the one before. An address has one
//! set of [`WAYS`] records in each; its record is in the first that had room when it was first
//! locked. So nothing ever moves, and a reader looks at one set in each segment that is in use. The
//! memory for all segments is reserved at once and filled by the kernel as it is touched: nothing
//! has to be allocated or published when the table grows.
//!
//! # Fork
//! A forked child executes its parent's text, and meets the INT3s that its parent stores, until
//! [`unshare`](crate::text::unshare). So the table is shared with the child, which sees its
//! parent's records but never writes one; `unshare` gives it an empty table of its own.
//!
//! Rejected: one array searched from the front (a batch of thousands makes every trap slow);
//! records that are given back (a child could not tell which sites its parent had locked while it
//! was copying the text).

use std::io;
use std::ops::Range;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::primitive::{AtomicPtr, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence, global};
use crate::text::{atfork, fork};
use crate::{Bytes, Error, MAX_PATCH};

/// Records in a set. Few under test, so that segments fill.
const WAYS: usize = if cfg!(loom) {
    1
} else if cfg!(test) {
    2
} else {
    8
};
/// Each segment has eight times the sets of the one before; the first has eight. (Twice and two
/// under loom.)
const GROWTH_BITS: u32 = if cfg!(loom) { 1 } else { 3 };
/// As many as the address space allows, but not more: 2.4 million sites, 77 MB of addresses.
const MAX_SEGMENTS: usize = if cfg!(loom) { 2 } else { 6 };

/// What is known about one site.
#[repr(C, align(32))]
#[derive(Debug)]
struct Record {
    /// The address; 0 as long as the record is nobody's.
    site: AtomicUsize,
    /// See [`State`].
    state: AtomicU64,
    /// Where threads go on while the site is locked.
    copy: AtomicUsize,
    /// The bytes that were there before, the first in the lowest place.
    old: AtomicU64,
}

/// A record's state: bits 0..2 the phase, 4..8 the length of the old bytes, 8..12 the most bytes
/// that a lock ever covered, the rest counts how often the site was owned.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free = 0,
    Owned = 1,
    Locked = 2,
}

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
        Self(self.0 & !3 | phase as u64)
    }
}

/// The start of the mapped table.
#[repr(C, align(64))]
struct Header {
    /// How many segments hold records.
    segments: AtomicUsize,
}

global! {
    static TABLE: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
    /// How many segments the mapping has room for.
    static RESERVED: AtomicUsize = AtomicUsize::new(0);
    /// Held while a record is given to a site.
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

/// loom's atomics are more than their values: they have to be made, and go away with the execution.
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

/// Reserves the table, if that was not done before.
pub(crate) fn reserve() -> Result<(), Error> {
    let _appending = hold();
    reserved().map(drop)
}

/// The table, reserved now if it was not before. The caller holds `APPENDING`.
fn reserved() -> Result<&'static Header, Error> {
    if let Some(header) = header() {
        return Ok(header);
    }
    fork::watch()?;
    atfork::follow();
    let mut refusal = nix::errno::Errno::ENOMEM;
    for segments in (1..=MAX_SEGMENTS).rev() {
        match map(segments) {
            Ok(table) => {
                RESERVED.store(segments, Ordering::Relaxed);
                // Release: the handler's Acquire finds zeroed memory, and how much of it.
                TABLE.store(table, Ordering::Release);
                // SAFETY: mapped for ever, zeroed, and a `Header` may be all zero.
                return Ok(unsafe { &*table });
            }
            Err(errno) => refusal = errno,
        }
    }
    Err(Error::MemoryMap { address: 0, source: io::Error::from(refusal) })
}

fn header() -> Option<&'static Header> {
    // SAFETY: null, or mapped for ever by `reserve`.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// The records of a segment that can be those of `site`.
fn set(header: &'static Header, segment: usize, site: usize) -> &'static [Record] {
    let hash = (site as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (hash >> (64 - GROWTH_BITS * (segment as u32 + 1))) as usize;
    let index = first_record(segment) + number * WAYS;
    let records = std::ptr::from_ref(header).wrapping_add(1).cast::<Record>();
    // SAFETY: `segment` is below RESERVED, for which `map` made room behind the header; all zero is
    // a valid record, and records change by atomics only.
    unsafe { std::slice::from_raw_parts(records.add(index), WAYS) }
}

fn find(site: usize) -> Option<&'static Record> {
    let header = header()?;
    // A child sees its parent's count; both have the same room.
    let segments = header.segments.load(Ordering::Acquire).min(RESERVED.load(Ordering::Relaxed));
    (0..segments)
        .flat_map(|segment| set(header, segment, site))
        .find(|record| record.site.load(Ordering::Acquire) == site)
}

/// The site's record, which it is given if it has none.
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

/// In the place of a record of the model's.
#[cfg(model)]
static NOBODYS: Record = Record {
    site: AtomicUsize::new(0),
    state: AtomicU64::new(0),
    copy: AtomicUsize::new(0),
    old: AtomicU64::new(0),
};

/// The right to be the only multi-step patch of a site. Ends when dropped; a lock must have been
/// taken away by then.
#[derive(Debug)]
pub(crate) struct OwnedSite {
    record: &'static Record,
    state: u64,
    /// The site, if its record is one of the model's.
    #[cfg(model)]
    modelled: Option<usize>,
}

impl OwnedSite {
    /// Takes the site.
    ///
    /// # Errors
    /// [`Error::Contended`] when another patch has it; [`Error::SharedWithParent`],
    /// [`Error::TableFull`], [`Error::MemoryMap`].
    pub(crate) fn take(site: usize) -> Result<Self, Error> {
        #[cfg(model)]
        if let Some(is_free) = wordpatch_model::environment::take(site) {
            let owned = || Self { record: &NOBODYS, state: 0, modelled: Some(site) };
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

    /// To be called before INT3 is stored: threads that meet it go on at `copy`, and `old` is what
    /// stands there until the patch is over.
    pub(crate) fn lock(&mut self, copy: usize, old: &Bytes) {
        #[cfg(model)]
        if let Some(site) = self.modelled {
            wordpatch_model::environment::lock(site, copy, old);
            return;
        }
        let mut word = [0; MAX_PATCH];
        word[..old.len()].copy_from_slice(old);
        // Release: whoever reads one of them while it still believes in the lock before, and looks
        // again, sees that the site was taken since; and the copy is filled.
        self.record.copy.store(copy, Ordering::Release);
        self.record.old.store(u64::from_le_bytes(word), Ordering::Release);
        let state = State(self.state);
        let locked = State::new(state.count(), state.reach().max(old.len()), old.len(), Phase::Locked);
        self.state = locked.0;
        // Release: pairs with the Acquire of whoever sees the site locked, and then reads copy and
        // old bytes.
        self.record.state.store(locked.0, Ordering::Release);
    }

    /// Leaves the site as it is, for good: no other patch gets it. If it is locked, threads go on
    /// in the copy.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
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

/// What an INT3 that was met at a site means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int3 {
    /// A patch holds the site; threads go on at `copy`.
    Locked {
        /// Where the old instruction stands out of line.
        copy: usize,
    },
    /// It is gone: the patch was finished meanwhile.
    Gone,
    /// Somebody else's breakpoint.
    Foreign,
}

/// Whether the site was ever locked. For the trap handler, as all of the lookup.
pub(crate) fn is_known(site: usize) -> bool {
    // Records of nobody have the address 0.
    site != 0 && find(site).is_some()
}

/// Tells whose the INT3 at `site` is; `is_int3` reads the site.
///
/// INT3 stands there only while the record is locked. So an INT3 that is read while the record was
/// not locked, and has not changed since before, is not ours.
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
            // Another patch may have taken the site before its copy was read.
            if state_of(record) == state {
                return Int3::Locked { copy };
            }
            continue;
        }
        if !is_int3() {
            return Int3::Gone;
        }
        // Acquire, however the byte was read: the store of an INT3 of ours is behind the one that
        // locked the record.
        fence(Ordering::Acquire);
        if find(site).map(state_of) == before {
            return Int3::Foreign;
        }
    }
}

/// Sites inside `range` that were ever locked.
fn records(range: &Range<usize>) -> impl Iterator<Item = (usize, &'static Record)> {
    let all = header().into_iter().flat_map(|header| {
        let records = std::ptr::from_ref(header).wrapping_add(1).cast::<Record>();
        let segments = header.segments.load(Ordering::Acquire).min(RESERVED.load(Ordering::Relaxed));
        // SAFETY: as in `set`.
        unsafe { std::slice::from_raw_parts(records, first_record(segments)) }
    });
    let range = range.clone();
    all.map(|record| (record.site.load(Ordering::Acquire), record))
        .filter(move |(site, _)| range.contains(site))
}

/// For each site inside `range` that was ever locked: the bytes that stand there when no patch of
/// it is under way, or the old ones as long as one is. `read` reads so many bytes at a site; nobody
/// but the owners of these records may write them.
pub(crate) fn settled(
    range: &Range<usize>,
    read: impl Fn(usize, usize) -> Bytes,
    mut each: impl FnMut(usize, Bytes),
) {
    for (site, record) in records(range) {
        loop {
            let state = State(record.state.load(Ordering::Acquire));
            if state.reach() == 0 {
                break;
            }
            let mut bytes = read(site, state.reach()).to_vec();
            if state.is(Phase::Locked) {
                let old = record.old.load(Ordering::Acquire).to_le_bytes();
                bytes[..state.length()].copy_from_slice(&old[..state.length()]);
            }
            // As in `meaning_of_int3`: what `read` has found of a later lock makes its state
            // visible.
            fence(Ordering::Acquire);
            if record.state.load(Ordering::Acquire) == state.0 {
                each(site, Bytes::new(&bytes).expect("as many as were read"));
                break;
            }
        }
    }
}

/// Whether any site has a record.
pub(crate) fn has_records() -> bool {
    header().is_some_and(|header| header.segments.load(Ordering::Acquire) > 0)
}

/// The sites that are locked now, with their old bytes. Nobody may lock or unlock one meanwhile.
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

/// In a forked child: puts an empty table in the place of the one that it shares with its parent.
/// No INT3 of the parent may stand in the child's text any more.
pub(crate) fn renew_in_child() -> Result<(), Error> {
    let Some(table) = std::ptr::NonNull::new(TABLE.load(Ordering::Acquire)) else { return Ok(()) };
    let length = mapped_length(RESERVED.load(Ordering::Relaxed)).try_into().expect("not empty");
    let address = table.addr();
    // SAFETY: replaces our own mapping by one of the same length, in one step; zeroed records are
    // valid, and readers find every site without a record.
    unsafe { mmap_anonymous(Some(address), length, READ_WRITE, SHARED | MapFlags::MAP_FIXED) }
        .map_err(|errno| Error::MemoryMap { address: address.get(), source: io::Error::from(errno) })?;
    Ok(())
}

/// The table, kept from every other thread that appends, across a fork.
pub(crate) type Hold = MutexGuard<'static, ()>;

pub(crate) fn hold() -> Hold {
    APPENDING.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; 3] = [1, 2, 3];

    fn locked_site(site: usize) -> OwnedSite {
        let mut owned = OwnedSite::take(site).unwrap();
        owned.lock(site + 1, &Bytes::new(&OLD).unwrap());
        owned
    }

    #[test]
    fn a_site_is_owned_by_one_and_can_be_had_again() {
        let site = 0x1_0000_0001;
        let first = OwnedSite::take(site).unwrap();
        assert!(matches!(OwnedSite::take(site), Err(Error::Contended { address }) if address == site));
        drop(first);
        drop(OwnedSite::take(site).unwrap());
    }

    #[test]
    fn an_int3_is_ours_only_while_the_site_is_locked() {
        let site = 0x2_0000_0001;
        assert_eq!(meaning_of_int3(site, || true), Int3::Foreign);
        let mut owned = OwnedSite::take(site).unwrap();
        assert_eq!(meaning_of_int3(site, || true), Int3::Foreign);
        owned.lock(7, &Bytes::new(&OLD).unwrap());
        assert_eq!(meaning_of_int3(site, || true), Int3::Locked { copy: 7 });
        drop(owned);
        assert_eq!(meaning_of_int3(site, || false), Int3::Gone);
        assert_eq!(meaning_of_int3(site, || true), Int3::Foreign);
    }

    /// A patch that locks and unlocks between the look at the record and the look at the text.
    #[test]
    fn an_int3_of_a_patch_that_came_in_between_is_not_foreign() {
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
    fn a_site_is_settled_at_its_old_bytes_while_it_is_locked() {
        let site = 0x6_0000_0001;
        let settle = || {
            let mut found = Vec::new();
            let read = |_, length| Bytes::new(&[9; 8][..length]).unwrap();
            settled(&(site..site + 1), read, |site, bytes| found.push((site, bytes.to_vec())));
            found
        };
        assert_eq!(settle(), []);
        let mut owned = OwnedSite::take(site).unwrap();
        owned.lock(7, &Bytes::new(&[1, 2, 3, 4, 5]).unwrap());
        drop(owned);
        assert_eq!(settle(), [(site, vec![9; 5])]);
        let owned = locked_site(site);
        assert_eq!(
            settle(),
            [(site, vec![1, 2, 3, 9, 9])],
            "what an earlier patch may have changed is looked at too"
        );
        drop(owned);
    }
}
