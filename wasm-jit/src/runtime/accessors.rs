//! The accessors of a store: which frames have one, and whether these frames still exist.
//!
//! Accessors are in the store as long as it lives; ended accessors are reused, with another number.
//! The accessors of existing frames form a list from the innermost frame outwards, which compiled
//! code and unwinding shorten: see `trap::accessors`.

use std::sync::atomic::AtomicPtr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::trap::Waiting;
use crate::vmctx::{NO_ACCESSOR, VmAccessor, VmStoreContext};

/// The number of accessors that there may be before ended ones are reused.
const FEW: usize = 16;

/// The identity of a frame, in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameId {
    /// The index of its accessor.
    accessor: u32,
    /// Never used for another frame of the store.
    number: u64,
}

#[derive(Debug)]
struct Accessor {
    /// Does not move: compiled code has its address.
    vm: Box<VmAccessor>,
    number: u64,
}

/// All accessors of a store.
#[derive(Debug, Default)]
pub(crate) struct Accessors {
    all: Vec<Accessor>,
    free: Vec<u32>,
    numbers: u64,
    /// The number of accessors at which the next search for ended ones begins.
    limit: usize,
}

impl Accessors {
    /// The frame pointer of a frame, if it still exists.
    pub(crate) fn frame(&self, id: FrameId) -> Option<usize> {
        let accessor = self.all.get(id.accessor as usize).filter(|accessor| accessor.number == id.number)?;
        Some(accessor.vm.fp.load(Relaxed)).filter(|fp| *fp != 0)
    }

    /// The identity of a frame, which must be reachable by the walk from the innermost frame
    /// outwards.
    ///
    /// # Safety
    /// The context is that of the store to which `self` and the frames belong, and which the thread
    /// runs.
    pub(crate) unsafe fn of(
        &mut self,
        vm: *mut VmStoreContext,
        frames: impl IntoIterator<Item = Waiting>,
        fp: usize,
    ) -> Option<FrameId> {
        let mut before: Option<&VmAccessor> = None;
        // SAFETY: the caller's obligation; accessors live as long as their store.
        let mut next = unsafe { &*(*vm).accessors };
        for frame in frames {
            let has_one = next.fp.load(Relaxed) == frame.fp;
            if frame.fp == fp {
                let (before, next): (Option<*const VmAccessor>, *const VmAccessor) =
                    (before.map(std::ptr::from_ref), next);
                if has_one {
                    // SAFETY: as above.
                    return Some(self.id(unsafe { (*next).index }));
                }
                let accessor = self.unused();
                let one = &self.all[accessor];
                one.vm.next.store(next.cast_mut(), Relaxed);
                one.vm.activation_fp.store(frame.activation_fp, Relaxed);
                one.vm.fp.store(fp, Relaxed);
                // SAFETY: as above.
                unsafe {
                    match before {
                        Some(before) => (*before).next.store((&raw const *one.vm).cast_mut(), Relaxed),
                        None => (*vm).accessors = &raw const *one.vm,
                    }
                }
                return Some(self.id(accessor));
            }
            if has_one {
                before = Some(next);
                // SAFETY: as above; only the end has no next one, and no frame has it.
                next = unsafe { &*next.next.load(Relaxed) };
            }
        }
        None
    }

    fn id(&self, accessor: usize) -> FrameId {
        FrameId { accessor: accessor as u32, number: self.all[accessor].number }
    }

    /// An accessor that belongs to no frame, with a new number.
    fn unused(&mut self) -> usize {
        if self.free.is_empty() && self.all.len() >= self.limit.max(FEW) {
            let ended = self.all.iter().enumerate().filter(|(_, one)| one.vm.fp.load(Relaxed) == 0);
            self.free.extend(ended.map(|(number, _)| number as u32));
            self.limit = 2 * (self.all.len() - self.free.len());
        }
        self.numbers += 1;
        let number = self.numbers;
        if let Some(ended) = self.free.pop() {
            self.all[ended as usize].number = number;
            return ended as usize;
        }
        let vm = VmAccessor {
            fp: AtomicUsize::new(0),
            next: AtomicPtr::new((&raw const NO_ACCESSOR).cast_mut()),
            activation_fp: AtomicUsize::new(0),
            index: self.all.len(),
        };
        self.all.push(Accessor { vm: Box::new(vm), number });
        self.all.len() - 1
    }
}
