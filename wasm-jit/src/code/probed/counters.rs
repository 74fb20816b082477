//! Counters: a quadword for each site that counts, and for each run of a counting version
//! ([`counting`](super::counting)), in each instance.
//!
//! Compiled code finds an instance's counters by an address before its context
//! ([`COUNTERS`](crate::vmctx::COUNTERS)), and adds to them without LOCK: a store runs on one
//! thread. Other threads read them. Addresses for the largest number of counters that the module
//! can have are reserved when its first probe is made, or when functions begin to wait for probes,
//! for all present and future instances, so that counters never move. If there are no instances at
//! that time, those that follow have their counters in the same mapping as their contexts, before
//! them, so that counting versions need no address ([`Counters::offset`]). What an instance has
//! counted is kept when it ends: in a sum over all instances, and, if a probe is limited to this
//! instance or its store, also for that.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use wasm_jit_codegen::Only;
use wordpatch::serialize_all_cores;

use super::counting::Cells;
use crate::code::CodeImage;
use crate::code::forks::{self, Locked};
use crate::vmctx::{COUNTERS, IN_FRONT};

/// The identity of an instance ([`Instance::id`](crate::Instance::id)). It is unique in the
/// process, and is not reused after the instance has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId(u64);

impl InstanceId {
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The identity that a probe function has received as
    /// [`Bound::Instance`](crate::probes::Bound::Instance).
    pub fn of_value(value: u64) -> Self {
        Self(value)
    }
}

/// The place at which an instance stores the address of its counters.
pub(crate) type Slot = AtomicPtr<AtomicU64>;

/// Memory of its own, which is zero at first. Pages are allocated when they are written.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory that belongs to its owner.
unsafe impl Send for Mapped {}

impl Mapped {
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value; nothing uses it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The counters of one instance.
#[derive(Debug)]
struct InstanceCounters {
    start: NonNull<AtomicU64>,
    bytes: usize,
    /// Their memory, unless it is that of the context.
    _own: Option<Mapped>,
}

// SAFETY: memory of atomics, which stays as long as this value.
unsafe impl Send for InstanceCounters {}

impl InstanceCounters {
    fn read(&self, cell: u32) -> u64 {
        let cell = cell as usize;
        assert!(8 * cell < self.bytes);
        // SAFETY: inside the memory, which is zero at first.
        unsafe { self.start.add(cell).as_ref() }.load(Ordering::Relaxed)
    }
}

/// Which of some pieces of code, in ascending order, are in use by threads that run stores with
/// these states; `None` if that is not known.
///
/// # Safety
/// The stores stay during the call. Nothing but their frames leads to the pieces any more, which do
/// not end with a call.
pub(crate) type CodeInUse = unsafe fn(&[Range<usize>], &[NonNull<()>]) -> Option<Vec<bool>>;

/// A store, as known to this part of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreRef {
    /// The unique number of the store.
    pub number: u64,
    /// The argument of [`CodeInUse`] for this store.
    pub state: NonNull<()>,
    pub code_in_use: CodeInUse,
}

// SAFETY: only the function uses the state, which takes it on any thread.
unsafe impl Send for StoreRef {}

/// An instance that is alive.
#[derive(Debug)]
struct Live {
    instance: u64,
    store: StoreRef,
    slot: NonNull<Slot>,
    cells: Option<InstanceCounters>,
}

// SAFETY: the slot is an atomic, and stays until the instance leaves, as the state does.
unsafe impl Send for Live {}

impl Live {
    fn is_in(&self, only: Only) -> bool {
        match only {
            Only::Instance(instance) => self.instance == instance,
            Only::Store(store) => self.store.number == store,
        }
    }

    fn equip(&mut self, bytes: usize, in_front: bool) -> io::Result<()> {
        if self.cells.is_none() {
            let own = if in_front { None } else { Some(Mapped::new(bytes)?) };
            let start = own.as_ref().map_or_else(
                // SAFETY: the instance has reserved this.
                || unsafe { self.slot.byte_sub((IN_FRONT as i32 + COUNTERS) as usize + bytes) }.cast(),
                |own| own.start.cast(),
            );
            // SAFETY: the instance has not left.
            unsafe { self.slot.as_ref() }.store(start.as_ptr(), Ordering::Release);
            self.cells = Some(InstanceCounters { start, bytes, _own: own });
        }
        Ok(())
    }
}

/// The counters of a module.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Bytes that each instance reserves; none before the first probe.
    reserved: Option<usize>,
    /// Bytes of counters in front of the contexts of all instances, if they are there. Once there
    /// is a probe, code depends on it, and it does not change.
    in_front: Option<usize>,
    /// Number of counters in use.
    used: u32,
    live: Vec<Option<Live>>,
    free: Vec<usize>,
    /// By counter: the counts of instances that have ended.
    ended: Vec<u64>,
    /// By instance or store, and counter: the counters of probes that are not for all instances.
    watched: BTreeMap<(Only, u32), Watched>,
    /// For tests: how often counts were read.
    #[cfg(test)]
    reads: std::cell::Cell<usize>,
}

/// A counter of one instance, or of the instances of one store.
#[derive(Debug, Default)]
struct Watched {
    probes: usize,
    /// The count in instances that have ended.
    ended: u64,
}

impl Counters {
    /// Whether there are instances.
    pub(crate) fn has_instances(&self) -> bool {
        let state = self.lock_alone();
        state.live.iter().any(Option::is_some)
    }

    /// Whether this is one of the module's instances.
    pub(crate) fn has_instance(&self, instance: InstanceId) -> bool {
        let state = self.lock_alone();
        state.live.iter().flatten().any(|live| live.instance == instance.0)
    }
}

impl State {
    fn prepare(&mut self, bytes: usize) {
        let is_near = i32::try_from(IN_FRONT + bytes).is_ok();
        if self.reserved.is_none() && is_near && self.live.iter().all(Option::is_none) {
            self.in_front = Some(bytes);
        }
    }

    fn read(&self, cell: u32, only: Option<Only>) -> u64 {
        let live = self.live.iter().flatten().filter(|live| only.is_none_or(|only| live.is_in(only)));
        let ended = match only {
            None => self.ended.get(cell as usize).copied().unwrap_or_default(),
            Some(only) => self.watched.get(&(only, cell)).map_or(0, |watched| watched.ended),
        };
        let cells = live.filter_map(|live| live.cells.as_ref());
        cells.map(|cells| cells.read(cell)).fold(ended, u64::wrapping_add)
    }
}

impl Counters {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// For a thread that does not have the lock of changes, with which no thread forks.
    fn lock_alone(&self) -> Locked<'_, State> {
        forks::lock(&self.0)
    }

    /// Instances that are made from now on have `bytes`, a multiple of 16, of counters in front of
    /// their contexts, if there are none that have not.
    pub(super) fn prepare(&self, bytes: usize) {
        self.lock().prepare(bytes);
    }

    /// Reserves `bytes`, a multiple of 16, for each instance, unless this was already done.
    pub(super) fn enable(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.lock();
        if state.reserved.is_none() {
            state.prepare(bytes);
            let in_front = state.in_front.is_some();
            state.live.iter_mut().flatten().try_for_each(|live| live.equip(bytes, in_front))?;
            state.reserved = Some(bytes);
        }
        Ok(())
    }

    /// The offset of an instance's counters from its context, if it is the same for all instances.
    /// There is a probe.
    pub(super) fn offset(&self) -> Option<i32> {
        let bytes = self.lock().in_front?;
        Some(-((IN_FRONT + bytes) as i32))
    }

    /// Allocates this many neighbouring counters, and returns the first. Must be called under the
    /// lock of changes.
    pub(super) fn add(&self, count: u32) -> u32 {
        let mut state = self.lock();
        state.used += count;
        state.used - count
    }

    /// The counter that would be added next.
    pub(super) fn next(&self) -> u32 {
        self.lock().used
    }

    /// Keeps the counter of an instance, or of those of a store, when they end, as long as a probe
    /// uses it.
    pub(super) fn watch(&self, only: Only, cell: u32) {
        self.lock().watched.entry((only, cell)).or_default().probes += 1;
    }

    /// The reverse of [`Counters::watch`].
    pub(super) fn unwatch(&self, only: Only, cell: u32) {
        let watched = &mut self.lock().watched;
        let Some(of) = watched.get_mut(&(only, cell)) else { return };
        of.probes -= 1;
        if of.probes == 0 {
            watched.remove(&(only, cell));
        }
    }

    /// Which of some pieces of code, in ascending order, threads are executing or will return to;
    /// `None` if that is not known.
    ///
    /// # Safety
    /// Nothing but frames of instances leads to the pieces any more, which do not end with a call.
    pub(super) unsafe fn code_in_use(&self, pieces: &[Range<usize>]) -> Option<Vec<bool>> {
        // As long as this is locked, no instance leaves, and so no store ends.
        let state = self.lock();
        let stores = state.live.iter().flatten().map(|live| live.store);
        let Some(StoreRef { code_in_use, .. }) = stores.clone().next() else {
            serialize_all_cores().ok()?;
            return Some(vec![false; pieces.len()]);
        };
        let mut stores: Vec<NonNull<()>> = stores.map(|store| store.state).collect();
        stores.sort_unstable();
        stores.dedup();
        // SAFETY: see above; only stores with instances of the module execute its code.
        unsafe { code_in_use(pieces, &stores) }
    }

    /// For tests: how often counts were read.
    #[cfg(test)]
    pub(super) fn reads(&self) -> usize {
        self.lock().reads.get()
    }

    /// The count in all instances, including those that have ended: the sum of counters.
    pub(super) fn read(&self, cells: Cells, only: Option<Only>) -> u64 {
        let state = self.lock();
        #[cfg(test)]
        state.reads.set(state.reads.get() + 1);
        cells.into_iter().flatten().map(|cell| state.read(cell, only)).fold(0, u64::wrapping_add)
    }
}

/// An instance's membership in the counters of its module, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Counting {
    image: Arc<CodeImage>,
    number: usize,
    instance: u64,
    store: u64,
}

/// An instance that is about to join. Until then, nothing changes about where instances have their
/// counters.
pub(crate) struct Joining<'a> {
    image: &'a Arc<CodeImage>,
    state: Locked<'a, State>,
}

impl<'a> Joining<'a> {
    pub(crate) fn of(image: &'a Arc<CodeImage>) -> Self {
        Self { image, state: image.counters.lock_alone() }
    }

    /// Makes the memory of the instance by `make`, which gets the number of bytes of counters in
    /// front of the [`IN_FRONT`] bytes before its context. They are zero.
    ///
    /// # Errors
    /// That of `make`. If there are no probes yet, the module does without counters there.
    pub(crate) fn make<T>(&mut self, make: impl Fn(usize) -> io::Result<T>) -> io::Result<T> {
        let made = make(self.state.in_front.unwrap_or(0));
        if made.is_err() && self.state.reserved.is_none() && self.state.in_front.take().is_some() {
            return make(0);
        }
        made
    }

    /// Adds an instance of the store of this number, which keeps the address of its counters at
    /// `slot`. The instance gets a unique number.
    ///
    /// # Errors
    /// The system refuses to reserve addresses.
    ///
    /// # Safety
    /// The slot, the memory in front of it and the store's state stay until the result is dropped,
    /// no code of the instance runs afterwards, and the state is one for the function.
    pub(crate) unsafe fn join(mut self, store: StoreRef, slot: NonNull<Slot>) -> io::Result<Counting> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let instance = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = &mut *self.state;
        let mut live = Live { instance, store, slot, cells: None };
        if let Some(bytes) = state.reserved {
            live.equip(bytes, state.in_front.is_some())?;
        }
        let number = state.free.pop().unwrap_or(state.live.len());
        if number == state.live.len() {
            state.live.push(None);
        }
        state.live[number] = Some(live);
        Ok(Counting { image: self.image.clone(), number, instance, store: store.number })
    }
}

impl Counting {
    pub(crate) fn instance(&self) -> InstanceId {
        InstanceId(self.instance)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let state = &mut *self.image.counters.lock_alone();
        let cells = state.live[self.number].take().and_then(|live| live.cells);
        state.free.push(self.number);
        let Some(cells) = cells else { return };
        for only in [Only::Instance(self.instance), Only::Store(self.store)] {
            for ((_, cell), watched) in state.watched.range_mut((only, 0)..=(only, u32::MAX)) {
                watched.ended = watched.ended.wrapping_add(cells.read(*cell));
            }
        }
        let used = state.used as usize;
        state.ended.resize(used, 0);
        for (cell, ended) in state.ended.iter_mut().enumerate() {
            *ended = ended.wrapping_add(cells.read(cell as u32));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::probes::{Kind, Location, Place, ProbeSpec};
    use crate::{Engine, Instance, Module, Store};

    #[test]
    fn counters_are_in_front_of_contexts_if_all_instances_have_room_there() {
        for has_earlier_instance in [false, true] {
            let module = Module::new(&Engine::default(), "(module (func))").unwrap();
            let mut store = Store::new(module.engine(), ());
            if has_earlier_instance {
                Instance::new(&mut store, &module, &[]).unwrap();
            }
            let location = Location { function: 0, place: Place::Entry };
            let _probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
            assert_eq!(module.code().counters.offset().is_none(), has_earlier_instance);
        }
    }
}
