//! Probes that are created and retired together, such as those of code that is compiled at run time
//! and freed.
//!
//! A provider [reserves](ReservedIds) consecutive ids and supplies an object that implements their
//! probes ([`Sites`]). The resulting [`Group`] owns the probes. When it is dropped, its ids are
//! *retired*: calls with such an id return [`Error::Retired`]. Retired ids are reused only when all
//! other ids have been used.
//!
//! Making and dropping a group takes locks and allocates; signal handlers must not do it.
//!
//! # From an id to its object
//! 1. Ids are allocated in blocks of 64 (`ids`). For each block in use, an `index` that is read
//!    without locks has the number of a slot.
//! 2. A slot holds the ids of its group, the object, and the number of calls in progress. A call
//!    increments that number first, then compares the ids. Slots are reused, but never freed, so a
//!    call with a retired id finds other ids, or none, and returns an error.
//! 3. Retiring a group clears the ids in the slot first, then reads the number of calls. Both sides
//!    store before they load, and these operations have one order for all threads: either the
//!    retiring thread sees the call, or the call sees that the ids are retired.
//! 4. If there is a call in progress, the object is kept until the next group is made or dropped.
//!    Dropping a group never waits: a call may have been made by a signal handler, or by a thread
//!    that is stopped.
//!
//! Nothing is stored about retired ids except the highest id that was ever allocated.
//!
//! # Example
//! Sites that a program tests. Sites in machine code are toggled by
//! [`CallSite`](callpatch::CallSite) or [`Switch`](callpatch::Switch), and reach the probe function
//! through a stub, which passes it the id ([`callpatch::stub`] has an example; `tests/jit.rs` of
//! this crate is a complete provider).
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use fastinst::group::{ReservedIds, Sites};
//! use fastinst::{Discovery, Error, ProbeFn, ProbeId, ProbeKind, ProbeMetadata, Toggle};
//!
//! /// Places of an interpreter, which tests a flag at each.
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
//! let group = ReservedIds::new(2)?.with_sites(Places(Default::default()));
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

/// Implements the probes of a group, which are identified by their index in it.
///
/// The methods may be called at any time by any thread, concurrently, and by signal handlers and
/// probe functions. Therefore an implementation does not lock, allocate or format, or its provider
/// documents that its probes must not be toggled there. Only probes that were
/// [announced](Group::announce) are passed to them.
///
/// The object is dropped with its group, or, if a call is in progress, when the next group is made
/// or dropped. A child that was forked while another thread was in a call may keep it for the life
/// of the process.
pub trait Sites: Send + Sync {
    /// Makes the site call `function` whenever it is executed, with the probe's id and two
    /// arguments that the provider documents.
    ///
    /// # Errors
    /// The site could not be toggled and is unchanged.
    ///
    /// # Safety
    /// As [`activate`](crate::activate).
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, Error>;

    /// Makes the site call nothing.
    ///
    /// # Errors
    /// As [`Sites::activate`].
    fn deactivate(&self, index: u32) -> Result<Toggle, Error>;

    /// The metadata of the probe, whose id is `id`.
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

/// A group's object, and a bitmap of the probes that were announced.
struct Body {
    sites: Box<dyn Sites>,
    /// One bit per probe.
    announced: Box<[AtomicU64]>,
}

impl Body {
    fn is_announced(&self, index: u32) -> bool {
        // Acquire: pairs with the Release of `announce`.
        let word = self.announced[(index / u64::BITS) as usize].load(Ordering::Acquire);
        word >> (index % u64::BITS) & 1 != 0
    }
}

/// A slot for a group. Slots are reused, and never freed.
struct Slot {
    /// The first id in the upper half, the number of ids in the lower half; 0 for no group.
    ids: AtomicU64,
    /// The number of calls in progress, which may be using the body.
    calls: AtomicU32,
    /// Null while the ids are only reserved.
    body: AtomicPtr<Body>,
}

impl Slot {
    fn free(_: usize) -> Self {
        Self { ids: AtomicU64::new(0), calls: AtomicU32::new(0), body: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Begins a call: the body of the group that is now in the slot is kept until the call ends.
    fn enter(&self) -> Call<'_> {
        // SeqCst, here and where ids are retired: the store of either side comes before its load.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let ids = self.ids.load(Ordering::SeqCst);
        Call { slot: self, first: (ids >> 32) as u32, count: ids as u32 }
    }
}

/// A call in progress, with the ids that it has read from the slot; they are empty if there was no
/// group.
struct Call<'a> {
    slot: &'a Slot,
    first: u32,
    count: u32,
}

impl Call<'_> {
    /// The object, and the index of the probe.
    fn resolve(&self, id: ProbeId) -> Result<(&dyn Sites, u32), Error> {
        let index = id.0.wrapping_sub(self.first);
        if index >= self.count {
            let is_unused = index < self.count.next_multiple_of(BLOCK);
            return Err(if is_unused { Error::UnknownProbe { id } } else { Error::Retired { id } });
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
        // SAFETY: null, or the body of a group that was not retired yet when this call was counted.
        // Such a body is not freed before the call ends.
        unsafe { self.slot.body.load(Ordering::Acquire).as_ref() }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Release: pairs with the load in `reclaim`; the call's accesses come before the body is
        // freed.
        self.slot.calls.fetch_sub(1, Ordering::Release);
    }
}

static SLOTS: Segments<Slot, 64, 65536> = Segments::new();
static INDEX: Index = Index::new();

/// No id at or above this number has ever been allocated.
static NEVER_ALLOCATED: AtomicU32 = AtomicU32::new(BLOCKS.start * BLOCK);

/// The state that is changed under a lock.
pub(crate) struct Groups {
    ids: Ids,
    free_leaves: FreeLeaves,
    free: Vec<u32>,
    /// Slots of retired groups whose bodies have not been freed.
    retiring: Vec<u32>,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups {
    ids: Ids::new(BLOCKS),
    free_leaves: FreeLeaves::new(),
    free: Vec::new(),
    retiring: Vec::new(),
});

/// Prevents groups from being made and dropped, across a fork.
pub(crate) type Hold = MutexGuard<'static, Groups>;

pub(crate) fn hold() -> Hold {
    GROUPS.lock().unwrap_or_else(|e| e.into_inner())
}

fn slot(number: u32) -> &'static Slot {
    SLOTS.get(number as usize).expect("slots stay")
}

impl Groups {
    /// A slot with `count` consecutive ids, and the first of them.
    fn allocate(&mut self, count: u32) -> Option<(u32, u32)> {
        let number = self.free.pop().or_else(|| SLOTS.push_with(Slot::free).map(|slot| slot as u32))?;
        let blocks = count.div_ceil(BLOCK);
        let Some(first_block) = self.ids.allocate(blocks) else {
            self.free.push(number);
            return None;
        };
        let first = first_block * BLOCK;
        NEVER_ALLOCATED.fetch_max(first + blocks * BLOCK, Ordering::Relaxed);
        slot(number).ids.store(u64::from(first) << 32 | u64::from(count), Ordering::SeqCst);
        for block in first_block..first_block + blocks {
            INDEX.insert(&mut self.free_leaves, block, number);
        }
        Some((number, first))
    }

    /// Takes the bodies of retired groups that are no longer used by any call, to be dropped
    /// without the lock.
    fn reclaim(&mut self) -> Vec<Body> {
        let mut bodies = Vec::new();
        self.retiring.retain(|number| {
            let slot = slot(*number);
            if slot.calls.load(Ordering::SeqCst) != 0 {
                return true;
            }
            let body = slot.body.swap(std::ptr::null_mut(), Ordering::Relaxed);
            if !body.is_null() {
                // SAFETY: from `with_sites`, and removed only once. Calls that used it have ended;
                // a later call finds no ids.
                bodies.push(*unsafe { Box::from_raw(body) });
            }
            self.free.push(*number);
            false
        });
        bodies
    }
}

/// Ids without probes: calls with them return [`Error::Undiscovered`]. Dropping this retires them.
#[derive(Debug)]
#[must_use = "ids are retired when this is dropped"]
pub struct ReservedIds {
    slot: u32,
    first: u32,
    count: u32,
}

impl ReservedIds {
    /// Allocates `count` consecutive ids, in complete blocks of 64.
    ///
    /// # Errors
    /// [`Error::TooManyProbes`]: there are not enough consecutive free ids, or too many groups.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(count: u32) -> Result<Self, Error> {
        assert!(count > 0, "a group without probes");
        let mut groups = hold();
        let bodies = groups.reclaim();
        let allocated = groups.allocate(count);
        drop(groups);
        drop(bodies);
        let (slot, first) = allocated.ok_or(Error::TooManyProbes { limit: BLOCKS.len() * BLOCK as usize })?;
        Ok(Self { slot, first, count })
    }

    /// The reserved ids.
    pub fn range(&self) -> Range<u32> {
        self.first..self.first + self.count
    }

    /// Turns the ids into a group whose probes `sites` implements. None of them is announced yet.
    pub fn with_sites(self, sites: impl Sites + 'static) -> Group {
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
        // Before the calls in progress are read: later calls find no ids.
        slot(self.slot).ids.store(0, Ordering::SeqCst);
        let first_block = self.first / BLOCK;
        for block in first_block..first_block + self.count.div_ceil(BLOCK) {
            INDEX.remove(&mut groups.free_leaves, block);
        }
        groups.ids.free(first_block);
        groups.retiring.push(self.slot);
        let bodies = groups.reclaim();
        drop(groups);
        drop(bodies);
    }
}

/// Probes with consecutive ids, which exist as long as this value.
#[derive(Debug)]
#[must_use = "the probes are retired when this is dropped"]
pub struct Group {
    ids: ReservedIds,
}

impl Group {
    /// The ids of the group's probes.
    pub fn range(&self) -> Range<u32> {
        self.ids.range()
    }

    /// The id of the probe with this index in the group.
    ///
    /// # Panics
    /// If the group has no such probe.
    pub fn id(&self, index: u32) -> ProbeId {
        assert!(index < self.ids.count, "probe {index} of {}", self.ids.count);
        ProbeId(self.ids.first + index)
    }

    /// Announces a probe of the group: from now on it can be toggled, and every callback is called
    /// once for it, now or when the callback is registered. Does nothing for a probe that was
    /// announced before.
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
            discovery.announce(&body.sites.metadata(index, id));
        }
    }
}

/// Calls `act` for each announced probe. The caller holds the right of discovery, so none is
/// announced during the call.
pub(crate) fn for_each_announced(act: impl Fn(&ProbeMetadata<'_>)) {
    for slot in SLOTS.iter() {
        let call = slot.enter();
        let Some(body) = call.body() else { continue };
        for index in (0..call.count).filter(|index| body.is_announced(*index)) {
            act(&body.sites.metadata(index, ProbeId(call.first + index)));
        }
    }
}

/// Calls `act` with the object that implements the probe, and the probe's index.
fn resolve<R>(id: ProbeId, act: impl FnOnce(&dyn Sites, u32) -> R) -> Result<R, Error> {
    if !(BLOCKS.start * BLOCK..NEVER_ALLOCATED.load(Ordering::Relaxed)).contains(&id.0) {
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
    let toggle = resolve(id, |sites, index| unsafe { sites.activate(index, function) })??;
    Ok(toggle == Toggle::Changed)
}

/// Returns whether code was changed.
#[cold]
pub(crate) fn deactivate(id: ProbeId) -> Result<bool, Error> {
    let toggle = resolve(id, |sites, index| sites.deactivate(index))??;
    Ok(toggle == Toggle::Changed)
}

#[cold]
pub(crate) fn with_metadata<R>(id: ProbeId, read: impl FnOnce(&ProbeMetadata<'_>) -> R) -> Result<R, Error> {
    resolve(id, |sites, index| read(&sites.metadata(index, id)))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::probe::ProbeKind;
    use crate::probe_in_tests::alone;

    /// The number of existing objects.
    static ALIVE: AtomicUsize = AtomicUsize::new(0);

    /// Sites that are flags. While a test holds the lock `waits`, calls of `deactivate` wait.
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
        // SAFETY: the function is never called.
        unsafe { crate::activate(id, nothing) }
    }

    fn group(count: u32) -> Group {
        ReservedIds::new(count).unwrap().with_sites(Flags::new(count))
    }

    fn announce(group: &Group, index: u32) {
        group.announce(&Discovery::begin().unwrap(), index);
    }

    #[test]
    fn the_result_of_each_call_during_the_life_of_a_probe() {
        let _alone = alone();
        let ids = ReservedIds::new(65).unwrap();
        let (id, last) = (ProbeId(ids.range().start), ProbeId(ids.range().end - 1));
        let after = ProbeId(last.0 + 1);
        let undiscovered = |result: Result<(), Error>| matches!(result, Err(Error::Undiscovered { id: refused }) if refused == id);
        assert!(undiscovered(on(id)), "there are no sites");
        let group = ids.with_sites(Flags::new(65));
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
        for unknown in [after, ProbeId(u32::MAX), ProbeId(crate::probe_count() as u32)] {
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
        let reported: Arc<Mutex<Vec<ProbeId>>> = Arc::default();
        let list = Arc::clone(&reported);
        crate::register_callback(move |probe| {
            if probe.provider == c"flags" {
                list.lock().unwrap().push(probe.id);
            }
        })
        .unwrap();
        announce(&group, 1);
        announce(&group, 0);
        assert_eq!(*reported.lock().unwrap(), [group.id(1), group.id(0)]);
    }

    #[test]
    fn an_object_in_use_is_dropped_with_the_next_group() {
        let _alone = alone();
        let before = ALIVE.load(Ordering::Relaxed);
        let flags = Flags::new(1);
        let (waits, is_inside) = (Arc::clone(&flags.waits), Arc::clone(&flags.is_inside));
        let group_in_use = ReservedIds::new(1).unwrap().with_sites(flags);
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

    /// A late call has read the index before the group was dropped.
    #[test]
    fn a_late_call_finds_no_ids_or_those_of_another_group() {
        let _alone = alone();
        let first = group(1);
        announce(&first, 0);
        let (id, number) = (first.id(0), first.ids.slot);
        let is_retired = || matches!(slot(number).enter().resolve(id), Err(Error::Retired { id: refused }) if refused == id);
        assert!(!is_retired() && slot(number).enter().resolve(id).is_ok());
        drop(first);
        assert!(is_retired());
        let second = group(1);
        announce(&second, 0);
        assert_eq!(second.ids.slot, number, "slots are reused");
        assert!(is_retired());
    }

    #[test]
    fn dropped_groups_leave_nothing_behind() {
        let _alone = alone();
        let (stays, slots) = (group(1), SLOTS.len());
        let in_use = hold().ids.in_use();
        let mut last = stays.id(0);
        for count in 1..10_000 {
            let group = group(count % 200 + 1);
            announce(&group, 0);
            on(group.id(0)).unwrap();
            assert!(group.id(0) > last, "no id is reused");
            last = group.id(0);
        }
        assert_eq!(hold().ids.in_use(), in_use);
        assert!(SLOTS.len() <= slots + 1);
        assert!(matches!(on(last), Err(Error::Retired { .. })));
        drop(stays);
    }
}
