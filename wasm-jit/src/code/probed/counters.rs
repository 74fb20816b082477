//! Counters: a quadword for each site that counts, in each instance.
//!
//! Compiled code finds an instance's counters by an address in front of its context
//! ([`COUNTERS`](crate::vmctx::COUNTERS)), and adds to them without LOCK: a store runs on one
//! thread. Other threads read them. Addresses for as many counters as the module can have are
//! reserved when the module's first probe is made, for all instances that there are and will be, so
//! that none of them moves. What an instance has counted is kept when it goes.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::code::CodeImage;

/// Where an instance has the address of its counters.
pub(crate) type Slot = AtomicPtr<AtomicU64>;

/// The counters of one instance. Pages come when they are written.
#[derive(Debug)]
struct Cells {
    start: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: memory of atomics that belongs to its owner.
unsafe impl Send for Cells {}

impl Cells {
    fn reserve(bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    fn read(&self, cell: u32) -> u64 {
        let cell = cell as usize;
        assert!(8 * cell < self.bytes);
        // SAFETY: inside the mapping, which is zero at first.
        unsafe { self.start.add(cell).as_ref() }.load(Ordering::Relaxed)
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its instance is gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// An instance that is alive.
#[derive(Debug)]
struct Live {
    slot: NonNull<Slot>,
    cells: Option<Cells>,
}

// SAFETY: the slot is an atomic, and stays until the instance leaves.
unsafe impl Send for Live {}

impl Live {
    fn equip(&mut self, bytes: usize) -> io::Result<()> {
        if self.cells.is_none() {
            let cells = Cells::reserve(bytes)?;
            // SAFETY: the instance has not left.
            unsafe { self.slot.as_ref() }.store(cells.start.as_ptr(), Ordering::Release);
            self.cells = Some(cells);
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
    /// How many counters are in use.
    used: u32,
    live: Vec<Option<Live>>,
    free: Vec<usize>,
    /// By counter: what instances have counted that are gone.
    gone: Vec<u64>,
}

impl Counters {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Reserves `bytes` for each instance, unless that was done.
    pub(super) fn enable(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.lock();
        if state.reserved.is_none() {
            state.live.iter_mut().flatten().try_for_each(|live| live.equip(bytes))?;
            state.reserved = Some(bytes);
        }
        Ok(())
    }

    /// A counter that is not in use yet.
    pub(super) fn add(&self) -> u32 {
        let mut state = self.lock();
        state.used += 1;
        state.used - 1
    }

    /// What all instances have counted, those included that are gone.
    pub(super) fn total(&self, cell: u32) -> u64 {
        let state = self.lock();
        let live = state.live.iter().flatten().filter_map(|live| live.cells.as_ref());
        let gone = state.gone.get(cell as usize).copied().unwrap_or_default();
        live.map(|cells| cells.read(cell)).fold(gone, u64::wrapping_add)
    }
}

/// An instance's place among those that count; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Counting {
    image: Arc<CodeImage>,
    number: usize,
}

impl Counting {
    /// An instance joins, which has the address of its counters at `slot`.
    ///
    /// # Errors
    /// The system refuses addresses.
    ///
    /// # Safety
    /// The slot stays until the result is dropped, and no code of the instance runs afterwards.
    pub(crate) unsafe fn join(image: &Arc<CodeImage>, slot: NonNull<Slot>) -> io::Result<Self> {
        let mut state = image.counters.lock();
        let mut live = Live { slot, cells: None };
        if let Some(bytes) = state.reserved {
            live.equip(bytes)?;
        }
        let number = state.free.pop().unwrap_or(state.live.len());
        if number == state.live.len() {
            state.live.push(None);
        }
        state.live[number] = Some(live);
        drop(state);
        Ok(Self { image: image.clone(), number })
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut state = self.image.counters.lock();
        let cells = state.live[self.number].take().and_then(|live| live.cells);
        state.free.push(self.number);
        let Some(cells) = cells else { return };
        let used = state.used as usize;
        state.gone.resize(used, 0);
        for (cell, gone) in state.gone.iter_mut().enumerate() {
            *gone = gone.wrapping_add(cells.read(cell as u32));
        }
    }
}
