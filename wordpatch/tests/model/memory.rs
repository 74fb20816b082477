//! The bytes of code, and what the data side does to them.
//!
//! x86-TSO (Sewell et al., in the paper's section 3): one memory, a first-in-first-out store buffer for each processor, and a
//! lock that keeps the others' reads and buffers out. To this the paper adds that "we can model a write that straddles cache
//! lines as two write events", and an atomic one as "a pair of events bracketed by lock and unlock"; instruction fetch ignores
//! the lock. So the unit here is a [`Write`]: at most eight bytes, never across a boundary of the true fetch window.

use wordpatch::{Bytes, FetchWindow, Split};

/// How many bytes of code are modelled: eight on either side of a boundary.
pub(crate) const ARENA: usize = 16;

/// Bytes of code that become visible to every processor in one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) address: usize,
    pub(crate) bytes: Bytes,
}

/// The events that a store of `bytes` at `address` is made of.
pub(crate) fn events(true_window: FetchWindow, address: usize, bytes: &[u8]) -> Vec<Write> {
    let write = |address, bytes| Write { address, bytes: Bytes::new(bytes).expect("1 to 8 bytes") };
    match true_window.split(address, bytes.len()) {
        Split::Inside => vec![write(address, bytes)],
        Split::Crossing { front } => {
            vec![write(address, &bytes[..front]), write(address + front, &bytes[front..])]
        }
    }
}

/// What all processors share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    base: usize,
    bytes: [u8; ARENA],
    /// The processor that holds the bus lock.
    pub(crate) locked_by: Option<u8>,
}

impl Memory {
    /// Memory from `base` on, filled with one-byte NOPs.
    pub(crate) fn new(base: usize) -> Self {
        Self { base, bytes: [0x90; ARENA], locked_by: None }
    }

    /// What stands there.
    pub(crate) fn read(&self, address: usize, length: usize) -> Bytes {
        let start = address - self.base;
        Bytes::new(&self.bytes[start..start + length]).expect("1 to 8 bytes")
    }

    /// What a processor reads there whose own stores in `buffer` are not visible to the others yet.
    pub(crate) fn read_through(&self, buffer: &[Write], address: usize, length: usize) -> Bytes {
        let mut view = self.clone();
        buffer.iter().for_each(|write| view.apply(write));
        view.read(address, length)
    }

    /// Makes a write visible.
    pub(crate) fn apply(&mut self, write: &Write) {
        let start = write.address - self.base;
        self.bytes[start..start + write.bytes.len()].copy_from_slice(&write.bytes);
    }
}
