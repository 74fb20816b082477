//! Probes that come and go together: those of code that is compiled while the process runs, and
//! freed again.
//!
//! A provider [reserves](ReservedIds) consecutive ids and says what answers for them, an object
//! that implements [`Sites`]. The [`Group`] that it gets is the probes' life: when it is dropped,
//! its ids are *retired*. They answer [`Error::Retired`] from then on, and are given out again only
//! when all others have been.
//!
//! # How an id finds its object
//! 1. Ids are taken in blocks of 64 ([`ids`]). The [`index`] has the number of a slot for each
//!    block in use, and is read without locks.
//! 2. A slot holds the group's ids, its object, and how many calls are under way. A call adds
//!    itself to these first, then compares the ids. A slot is used again, never freed, so that a
//!    late call finds other ids there, or none, and does no harm.
//! 3. To retire a group, its ids are taken out of the slot first, then the calls are looked at.
//!    Both sides store before they load, in one order for all threads: a call that has found its
//!    ids is seen here, and one that is not seen finds no ids.
//! 4. If there is a call, the object stays until a group is made or dropped next. So nobody waits:
//!    a call may be made by a signal handler, or by a thread that is stopped.
//!
//! What is kept for retired groups is nothing but the number of the last id that was ever given
//! out.
//!
//! # Example
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use callpatch::Toggle;
//! use fastinst::group::{ReservedIds, Sites};
//! use fastinst::{Discovery, Error, ProbeFn, ProbeId, ProbeKind, ProbeMetadata};
//!
//! /// Places of an interpreter, which looks at a flag for each.
//! struct Places([AtomicBool; 2]);
//!
//! impl Sites for Places {
//!     unsafe fn activate(&self, index: u32, _: ProbeFn) -> Result<Toggle, Error> {
//!         let was_on = self.0[index as usize].swap(true, Ordering::Relaxed);
//!         Ok(if was_on { Toggle::Unchanged } else { Toggle::Changed })
//!     }
//!
//!     fn deactivate(&self, index: u32) -> Result<Toggle, Error> {
//!         let was_on = self.0[index as usize].swap(false, Ordering::Relaxed);
//!         Ok(if was_on { Toggle::Changed } else { Toggle::Unchanged })
//!     }
//!
//!     fn metadata(&self, _index: u32, id: ProbeId) -> ProbeMetadata<'_> {
//!         ProbeMetadata::new(id, c"interpreter", ProbeKind::FIRST_OF_PROVIDERS)
//!     }
//! }
//!
//! unsafe extern "C" fn nothing(_: ProbeId, _: usize, _: usize) {}
//!
//! let group = ReservedIds::new(2)?.answered_by(Places(Default::default()));
//! group.announce(&Discovery::begin()?, 0);
//! let id = group.id(0);
//! // SAFETY: the function may be called at any time.
//! unsafe { fastinst::activate(id, nothing)? };
//! drop(group);
//! assert!(matches!(fastinst::deactivate(id), Err(Error::Retired { .. })));
//! # Ok::<(), Error>(())
//! ```

mod ids;
mod index;

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use callpatch::Toggle;
use fastinst_sigsafe::Segments;

use crate::discovery::Discovery;
use crate::error::Error;
use crate::probe::{ProbeFn, ProbeId, ProbeMetadata};
use ids::{BLOCK, BLOCKS, Ids};
use index::{FreeLeaves, Index};

/// What answers for the probes of a group. They are numbered from 0 here.
///
/// Calls come at any time, from any thread, from signal handlers and probe functions too, and while
/// others are under way: implementations neither lock, nor allocate, nor format, and say so where
/// they must. No call comes for a probe that was not [announced](Group::announce), and none when
/// the object is being dropped.
///
/// The object is dropped by the thread that drops the group, or by one that makes or drops another
/// group later, if a call was under way. In a child that was forked during a call of another
/// thread, it may stay for ever.
pub trait Sites: Send + Sync {
    /// Has `function` called whenever the site is executed: with the probe's id and two arguments
    /// that the provider documents.
    ///
    /// # Errors
    /// The site could not be switched, and is as it was.
    ///
    /// # Safety
    /// As [`activate`](crate::activate).
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, Error>;

    /// Has the site call nothing from now on.
    ///
    /// # Errors
    /// As [`Sites::activate`].
    fn deactivate(&self, index: u32) -> Result<Toggle, Error>;

    /// What is known about the probe, which has this id.
    fn metadata(&self, index: u32, id: ProbeId) -> ProbeMetadata<'_>;
}

impl<T: Sites + ?Sized> Sites for Arc<T> {
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, Error> {
        // SAFETY: the caller's obligation.
        unsafe { (**self).activate(index, function) }
    }

    fn deactivate(&self, index: u32) -> Result<Toggle, Error> {
        (**self).deactivate(index)
    }

    fn metadata(&self, index: u32, id: ProbeId) -> ProbeMetadata<'_> {
        (**self).metadata(index, id)
    }
}

/// A group's object, and which of its probes are known to callbacks.
struct Body {
    sites: Box<dyn Sites>,
    /// A bit for each probe.
    announced: Box<[AtomicU64]>,
}

impl Body {
    fn is_announced(&self, index: u32) -> bool {
        // Acquire: pairs with the Release of `announce`.
        let word = self.announced[(index / u64::BITS) as usize].load(Ordering::Acquire);
        word >> (index % u64::BITS) & 1 != 0
    }
}

/// Where a group is found. Slots are used again, and never freed.
struct Slot {
    /// The first id in the upper half, how many in the lower one. 0 for no group.
    ids: AtomicU64,
    /// Calls that may be using the body.
    calls: AtomicU32,
    /// Null until the ids are answered for.
    body: AtomicPtr<Body>,
}

impl Slot {
    fn free(_: usize) -> Self {
        Self { ids: AtomicU64::new(0), calls: AtomicU32::new(0), body: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Keeps the body of the group that the slot has now.
    fn enter(&self) -> Call<'_> {
        // SeqCst, here and in `retire`: the store of either side comes before its load.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let ids = self.ids.load(Ordering::SeqCst);
        Call { slot: self, first: (ids >> 32) as u32, count: ids as u32 }
    }
}

/// A call under way, and the group that it has found: no probes, if there was none.
struct Call<'a> {
    slot: &'a Slot,
    first: u32,
    count: u32,
}

impl Call<'_> {
    /// The object, and the number of the probe there.
    fn resolve(&self, id: ProbeId) -> Result<(&dyn Sites, u32), Error> {
        let index = id.0.wrapping_sub(self.first);
        if index >= self.count {
            let is_behind = index < self.count.next_multiple_of(BLOCK);
            return Err(if is_behind { Error::UnknownProbe { id } } else { Error::Retired { id } });
        }
        match self.body().filter(|body| body.is_announced(index)) {
            Some(body) => Ok((&*body.sites, index)),
            None => Err(Error::Undiscovered { id }),
        }
    }

    fn body(&self) -> Option<&Body> {
        if self.count == 0 {
            return None;
        }
        // SAFETY: null, or the body of a group that was not retired when this call had added
        // itself, so that it is not freed before the call is over.
        unsafe { self.slot.body.load(Ordering::Acquire).as_ref() }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Release: what the call has done comes before the body is freed.
        self.slot.calls.fetch_sub(1, Ordering::Release);
    }
}

static SLOTS: Segments<Slot, 64, 65536> = Segments::new();
static INDEX: Index = Index::new();

/// Ids below this number have been given out.
static GIVEN_OUT: AtomicU32 = AtomicU32::new(BLOCKS.start * BLOCK);

/// What is changed by one thread at a time.
pub(crate) struct Groups {
    ids: Ids,
    free_leaves: FreeLeaves,
    free: Vec<u32>,
    /// Slots of groups that were retired during a call.
    retiring: Vec<u32>,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups {
    ids: Ids::new(BLOCKS),
    free_leaves: FreeLeaves::new(),
    free: Vec::new(),
    retiring: Vec::new(),
});

/// Keeps groups from being made and dropped, across a fork.
pub(crate) type Hold = MutexGuard<'static, Groups>;

pub(crate) fn hold() -> Hold {
    GROUPS.lock().unwrap_or_else(|e| e.into_inner())
}

fn slot(number: u32) -> &'static Slot {
    SLOTS.get(number as usize).expect("slots stay")
}

impl Groups {
    /// Takes the bodies of retired groups that no call uses any more. They are to be dropped
    /// without the lock.
    fn reclaim(&mut self) -> Vec<Box<Body>> {
        let mut bodies = Vec::new();
        self.retiring.retain(|number| {
            let slot = slot(*number);
            if slot.calls.load(Ordering::SeqCst) != 0 {
                return true;
            }
            let body = slot.body.swap(std::ptr::null_mut(), Ordering::Relaxed);
            if !body.is_null() {
                // SAFETY: from `answered_by`, taken out once. A call that used it has been over
                // since; one that comes finds no ids.
                bodies.push(unsafe { Box::from_raw(body) });
            }
            self.free.push(*number);
            false
        });
        bodies
    }
}

/// Ids that nothing answers for yet: they are [`Error::Undiscovered`]. Dropped, they are retired.
#[derive(Debug)]
#[must_use = "ids are retired when this is dropped"]
pub struct ReservedIds {
    slot: u32,
    first: u32,
    count: u32,
}

impl ReservedIds {
    /// Takes so many consecutive ids. (Of every 64 that have begun, all are taken.)
    ///
    /// # Errors
    /// [`Error::TooManyProbes`]: there are not so many free ids in a row, or too many groups.
    ///
    /// # Panics
    /// If the number is 0.
    pub fn new(count: u32) -> Result<Self, Error> {
        assert!(count > 0, "a group of no probes");
        let limit = (BLOCKS.len() * BLOCK as usize).min(u32::MAX as usize);
        let mut groups = hold();
        let bodies = groups.reclaim();
        let blocks = count.div_ceil(BLOCK);
        let Some(number) = groups.free.pop().or_else(|| SLOTS.push_with(Slot::free).map(|slot| slot as u32))
        else {
            return Err(Error::TooManyProbes { limit });
        };
        let Some(first_block) = groups.ids.take(blocks) else {
            groups.free.push(number);
            return Err(Error::TooManyProbes { limit });
        };
        let first = first_block * BLOCK;
        GIVEN_OUT.fetch_max(first + blocks * BLOCK, Ordering::Relaxed);
        slot(number).ids.store(u64::from(first) << 32 | u64::from(count), Ordering::SeqCst);
        for block in first_block..first_block + blocks {
            INDEX.insert(&mut groups.free_leaves, block, number);
        }
        drop(groups);
        drop(bodies);
        Ok(Self { slot: number, first, count })
    }

    /// The ids.
    pub fn range(&self) -> Range<u32> {
        self.first..self.first + self.count
    }

    /// Makes them a group, of which `sites` has the probes. None of them is announced yet.
    pub fn answered_by(self, sites: impl Sites + 'static) -> Group {
        let words = self.count.div_ceil(u64::BITS);
        let body =
            Body { sites: Box::new(sites), announced: (0..words).map(|_| AtomicU64::new(0)).collect() };
        // Release: pairs with the Acquire of `Call::body`.
        slot(self.slot).body.store(Box::into_raw(Box::new(body)), Ordering::Release);
        Group { ids: self }
    }
}

impl Drop for ReservedIds {
    fn drop(&mut self) {
        let mut groups = hold();
        // First: a call that comes from here on finds no ids.
        slot(self.slot).ids.store(0, Ordering::SeqCst);
        let first_block = self.first / BLOCK;
        for block in first_block..first_block + self.count.div_ceil(BLOCK) {
            INDEX.remove(&mut groups.free_leaves, block);
        }
        groups.ids.give_back(first_block);
        groups.retiring.push(self.slot);
        let bodies = groups.reclaim();
        drop(groups);
        drop(bodies);
    }
}

/// Probes with consecutive ids, as long as this value lives.
#[derive(Debug)]
#[must_use = "the probes are retired when this is dropped"]
pub struct Group {
    ids: ReservedIds,
}

impl Group {
    /// The ids.
    pub fn range(&self) -> Range<u32> {
        self.ids.range()
    }

    /// The id of a probe of the group.
    ///
    /// # Panics
    /// If the group has no such probe.
    pub fn id(&self, index: u32) -> ProbeId {
        assert!(index < self.ids.count, "probe {index} of {}", self.ids.count);
        ProbeId(self.ids.first + index)
    }

    /// Makes a probe of the group known: from now on it can be switched, and every callback has
    /// been, or will be, called once for it. Does nothing for one that is known already.
    ///
    /// # Panics
    /// If the group has no such probe.
    pub fn announce(&self, discovery: &Discovery, index: u32) {
        let id = self.id(index);
        let call = slot(self.ids.slot).enter();
        let Some(body) = call.body() else { return };
        let bit = 1 << (index % u64::BITS);
        // Release: pairs with the Acquire of `is_announced`.
        let before = body.announced[(index / u64::BITS) as usize].fetch_or(bit, Ordering::Release);
        if before & bit == 0 {
            discovery.tell(&body.sites.metadata(index, id));
        }
    }
}

/// Calls `act` for each probe that was announced. Under the right of discovery, so that none is
/// announced meanwhile.
pub(crate) fn for_each_announced(act: impl Fn(&ProbeMetadata<'_>)) {
    for slot in SLOTS.iter() {
        let call = slot.enter();
        let Some(body) = call.body() else { continue };
        for index in (0..call.count).filter(|index| body.is_announced(*index)) {
            act(&body.sites.metadata(index, ProbeId(call.first + index)));
        }
    }
}

/// Calls `act` with what answers for the probe, and its number there.
fn with_sites<R>(id: ProbeId, act: impl FnOnce(&dyn Sites, u32) -> R) -> Result<R, Error> {
    if !(BLOCKS.start * BLOCK..GIVEN_OUT.load(Ordering::Relaxed)).contains(&id.0) {
        return Err(Error::UnknownProbe { id });
    }
    let slot = INDEX.get(id.0 / BLOCK).and_then(|number| SLOTS.get(number as usize));
    let Some(slot) = slot else { return Err(Error::Retired { id }) };
    let call = slot.enter();
    let (sites, index) = call.resolve(id)?;
    Ok(act(sites, index))
}

/// Returns whether code was changed.
///
/// # Safety
/// As [`crate::activate`].
#[cold]
pub(crate) unsafe fn activate(id: ProbeId, function: ProbeFn) -> Result<bool, Error> {
    // SAFETY: the caller's obligation.
    let toggle = with_sites(id, |sites, index| unsafe { sites.activate(index, function) })??;
    Ok(toggle == Toggle::Changed)
}

/// Returns whether code was changed.
#[cold]
pub(crate) fn deactivate(id: ProbeId) -> Result<bool, Error> {
    let toggle = with_sites(id, |sites, index| sites.deactivate(index))??;
    Ok(toggle == Toggle::Changed)
}

#[cold]
pub(crate) fn with_metadata<R>(id: ProbeId, read: impl FnOnce(&ProbeMetadata<'_>) -> R) -> Result<R, Error> {
    with_sites(id, |sites, index| read(&sites.metadata(index, id)))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::probe::ProbeKind;
    use crate::probe_in_tests::alone;

    /// How many objects there are.
    static ALIVE: AtomicUsize = AtomicUsize::new(0);

    /// Sites that are flags. While `inside` is locked by a test, a call of `deactivate` waits.
    struct Flags {
        on: Vec<AtomicU32>,
        name: CString,
        waits: Arc<Mutex<()>>,
        is_inside: Arc<AtomicU32>,
    }

    impl Flags {
        fn new(count: u32) -> Self {
            ALIVE.fetch_add(1, Ordering::Relaxed);
            Self {
                on: (0..count).map(|_| AtomicU32::new(0)).collect(),
                name: CString::new(format!("flags of {count}")).unwrap(),
                waits: Arc::default(),
                is_inside: Arc::default(),
            }
        }
    }

    impl Drop for Flags {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn toggled(before: u32, now: u32) -> Result<Toggle, Error> {
        Ok(if before == now { Toggle::Unchanged } else { Toggle::Changed })
    }

    impl Sites for Flags {
        unsafe fn activate(&self, index: u32, _: ProbeFn) -> Result<Toggle, Error> {
            toggled(self.on[index as usize].swap(1, Ordering::Relaxed), 1)
        }

        fn deactivate(&self, index: u32) -> Result<Toggle, Error> {
            self.is_inside.store(1, Ordering::Release);
            drop(self.waits.lock());
            toggled(self.on[index as usize].swap(0, Ordering::Relaxed), 0)
        }

        fn metadata(&self, index: u32, id: ProbeId) -> ProbeMetadata<'_> {
            let mut metadata = ProbeMetadata::new(id, c"flags", ProbeKind::FIRST_OF_PROVIDERS);
            (metadata.function_name, metadata.site_address) = (&self.name, index as usize);
            metadata
        }
    }

    unsafe extern "C" fn nothing(_: ProbeId, _: usize, _: usize) {}

    fn on(id: ProbeId) -> Result<(), Error> {
        // SAFETY: nobody calls the function.
        unsafe { crate::activate(id, nothing) }
    }

    fn group(count: u32) -> Group {
        ReservedIds::new(count).unwrap().answered_by(Flags::new(count))
    }

    fn announce(group: &Group, index: u32) {
        group.announce(&Discovery::begin().unwrap(), index);
    }

    #[test]
    fn what_each_call_answers_in_the_life_of_a_probe() {
        let _alone = alone();
        let ids = ReservedIds::new(65).unwrap();
        let (id, last) = (ProbeId(ids.range().start), ProbeId(ids.range().end - 1));
        let behind = ProbeId(last.0 + 1);
        let undiscovered = |result: Result<(), Error>| matches!(result, Err(Error::Undiscovered { id: refused }) if refused == id);
        assert!(undiscovered(on(id)), "nothing answers");
        let group = ids.answered_by(Flags::new(65));
        assert!(undiscovered(on(id)), "it is not announced");
        assert!(undiscovered(crate::deactivate(id)));
        assert!(undiscovered(crate::with_metadata(id, |_| ())));
        announce(&group, 0);
        announce(&group, 64);
        let toggles = crate::toggle_count();
        on(id).unwrap();
        on(id).unwrap();
        crate::deactivate(id).unwrap();
        crate::deactivate(last).unwrap();
        assert_eq!(crate::toggle_count() - toggles, 2);
        let read = |metadata: &ProbeMetadata<'_>| {
            (metadata.id, metadata.site_address, metadata.function_name.to_owned())
        };
        assert_eq!(crate::with_metadata(last, read).unwrap(), (last, 64, c"flags of 65".to_owned()));
        assert!(crate::lasting_metadata(id).is_none());
        for unknown in [behind, ProbeId(u32::MAX), ProbeId(crate::probe_count() as u32)] {
            assert!(matches!(on(unknown), Err(Error::UnknownProbe { id }) if id == unknown));
        }
        drop(group);
        for retired in [id, last] {
            let is_retired =
                |result| matches!(result, Err(Error::Retired { id: refused }) if refused == retired);
            assert!(is_retired(on(retired)));
            assert!(is_retired(crate::deactivate(retired)));
            assert!(is_retired(crate::with_metadata(retired, |_| ())));
        }
    }

    #[test]
    fn every_callback_is_called_once_for_each_announced_probe() {
        let _alone = alone();
        let group = group(3);
        announce(&group, 1);
        let told: Arc<Mutex<Vec<ProbeId>>> = Arc::default();
        let list = Arc::clone(&told);
        crate::register_callback(move |probe| {
            if probe.provider == c"flags" {
                list.lock().unwrap().push(probe.id);
            }
        })
        .unwrap();
        announce(&group, 1);
        announce(&group, 0);
        assert_eq!(*told.lock().unwrap(), [group.id(1), group.id(0)]);
    }

    #[test]
    fn an_object_stays_while_it_is_called_and_goes_with_the_next_group() {
        let _alone = alone();
        let before = ALIVE.load(Ordering::Relaxed);
        let flags = Flags::new(1);
        let (waits, is_inside) = (Arc::clone(&flags.waits), Arc::clone(&flags.is_inside));
        let group_in_use = ReservedIds::new(1).unwrap().answered_by(flags);
        announce(&group_in_use, 0);
        let id = group_in_use.id(0);
        std::thread::scope(|scope| {
            let keeps_it_inside = waits.lock().unwrap();
            let call = scope.spawn(move || crate::deactivate(id));
            while is_inside.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            drop(group_in_use);
            assert!(matches!(on(id), Err(Error::Retired { .. })));
            drop(group(1));
            assert_eq!(ALIVE.load(Ordering::Relaxed) - before, 1, "it is being called");
            drop(keeps_it_inside);
            call.join().unwrap().unwrap();
        });
        drop(ReservedIds::new(1).unwrap());
        assert_eq!(ALIVE.load(Ordering::Relaxed), before);
    }

    #[test]
    fn what_goes_leaves_nothing_behind() {
        let _alone = alone();
        let (stays, slots) = (group(1), SLOTS.len());
        let in_use = hold().ids.in_use();
        let mut last = stays.id(0);
        for count in 1..10_000 {
            let group = group(count % 200 + 1);
            announce(&group, 0);
            on(group.id(0)).unwrap();
            assert!(group.id(0) > last, "no id is used again");
            last = group.id(0);
        }
        assert_eq!(hold().ids.in_use(), in_use);
        assert!(SLOTS.len() <= slots + 1);
        assert!(matches!(on(last), Err(Error::Retired { .. })));
        drop(stays);
    }
}
