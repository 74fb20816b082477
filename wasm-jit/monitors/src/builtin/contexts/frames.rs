//! [`Frames`]: the frames that a thread has entered and not left.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ROOT;
use super::state::State;
use super::tree::Node;

/// A frame that was entered and not left, or a call from such a frame to the host.
#[repr(C)]
pub(super) struct Frame {
    /// See [`Frames`].
    pub(super) key: AtomicU64,
    /// The address of the frame's node.
    pub(super) node: AtomicU64,
    /// The number of the frame's node.
    pub(super) number: AtomicU64,
}

/// The size of a frame in bytes.
pub(super) const FRAME: i32 = size_of::<Frame>() as i32;
const _: () = assert!(offset_of!(Frame, key) == 0 && FRAME == 24);

/// The frames of a thread, the innermost last.
///
/// Their keys decrease: the key of a frame is its address. The key of a call to the host is the
/// address of the calling frame minus 1, where no other frame can be. The first key is that of the
/// host at the root, which is never left.
pub(super) struct Frames(Box<[Frame]>);

impl Frames {
    /// Contains only the root.
    pub(super) fn new(root: &Node, state: &State) -> Self {
        let frames = Self(vacant(256));
        let first = &frames.0[0];
        first.key.store(u64::MAX, Ordering::Relaxed);
        first.node.store(root.address(), Ordering::Relaxed);
        first.number.store(ROOT.into(), Ordering::Relaxed);
        frames.place(0, state);
        frames
    }

    /// The key of a call to the host by the frame at an address.
    pub(super) fn host_key(address: u64) -> u64 {
        address.wrapping_sub(1)
    }

    fn address(&self, index: usize) -> u64 {
        (&raw const self.0[index]).expose_provenance() as u64
    }

    /// Records in `state` that the frames are here, and that this frame is the innermost one.
    fn place(&self, innermost: usize, state: &State) {
        state.last_frame.store(self.address(self.0.len() - 1), Ordering::Relaxed);
        state.innermost.store(self.address(innermost), Ordering::Relaxed);
    }

    #[inline(always)]
    fn index(&self, state: &State) -> usize {
        ((state.innermost.load(Ordering::Relaxed) - self.address(0)) / FRAME as u64) as usize
    }

    /// The number of the innermost frame's node.
    #[inline(always)]
    pub(super) fn innermost(&self, state: &State) -> u32 {
        self.0[self.index(state)].number.load(Ordering::Relaxed) as u32
    }

    /// Removes the frames with keys below this one.
    #[inline(always)]
    pub(super) fn pop_below(&self, key: u64, state: &State) {
        let mut index = self.index(state);
        // The first one has the largest of all keys.
        while self.0[index].key.load(Ordering::Relaxed) < key {
            index -= 1;
        }
        state.innermost.store(self.address(index), Ordering::Relaxed);
    }

    /// Adds a frame, whose key is below that of the innermost one.
    #[inline(always)]
    pub(super) fn push(&mut self, key: u64, (number, node): (u32, &Node), state: &State) {
        let index = self.index(state) + 1;
        if index == self.0.len() {
            self.grow(state);
        }
        let frame = &self.0[index];
        frame.key.store(key, Ordering::Relaxed);
        frame.node.store(node.address(), Ordering::Relaxed);
        frame.number.store(number.into(), Ordering::Relaxed);
        state.innermost.store(self.address(index), Ordering::Relaxed);
    }

    #[cold]
    fn grow(&mut self, state: &State) {
        let innermost = self.index(state);
        let larger = vacant(2 * self.0.len());
        for (to, from) in larger.iter().zip(&self.0) {
            to.key.store(from.key.load(Ordering::Relaxed), Ordering::Relaxed);
            to.node.store(from.node.load(Ordering::Relaxed), Ordering::Relaxed);
            to.number.store(from.number.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.0 = larger;
        self.place(innermost, state);
    }

    /// Removes all frames except the root.
    pub(super) fn clear(&self, state: &State) {
        self.place(0, state);
    }
}

fn vacant(length: usize) -> Box<[Frame]> {
    let vacant = || Frame { key: AtomicU64::new(0), node: AtomicU64::new(0), number: AtomicU64::new(0) };
    std::iter::repeat_with(vacant).take(length).collect()
}
