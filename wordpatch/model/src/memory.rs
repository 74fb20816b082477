//! The bytes of code, and what instruction fetch may still give of them.
//!
//! # The data side
//! x86-TSO (Sewell et al., in the paper's section 3): one memory, a first-in-first-out store buffer
//! for each processor, and a lock that keeps the others' reads and buffers out. To this the paper
//! adds that "we can model a write that straddles cache lines as two write events", and an atomic
//! one as "a pair of events bracketed by lock and unlock"; instruction fetch ignores the lock. So
//! the unit here is a [`Write`]: never across a boundary of the true fetch window.
//!
//! # Instruction fetch
//! "Each processor logically issues an *instruction read* ... in a bounded time window before each
//! time it executes the instruction", one for each window that the instruction touches, in any
//! order; and "an adversarial micro-op cache marks a subset of read events as *elided*", which
//! return what an earlier read returned (paper, section 3). Here a core keeps every version of a
//! window that it has read, and an elided read returns any of them: not only the last, and not in
//! the order in which they stood in memory.
//!
//! # Why no core is modelled one by one
//! * A core may read each window whenever it likes, and nothing that it reads is seen by anybody.
//!   So a core that has read every version of every window while it stood there can do all that any
//!   other core can do.
//! * A core may forget versions at any time, but what it can execute only becomes less by it. So it
//!   forgets only what a wait forces it to forget.
//!
//! What *some* core can still execute is thus one set of versions for each window: those that stood
//! there since the last wait that removed them. All combinations of them are executed, so any
//! number of cores for each site is covered. (What differs from one thread to the next is where it
//! is in the trap handler: [`crate::executor`].) Tests compare this with [`crate::cores`], where
//! each core is explored by itself.
//!
//! # A wait
//! T_max bounds the age of what a core executes. So whoever waits for T_max after a moment `s`
//! knows that every version which any core may still execute was read after `s`. This, and nothing
//! else, is what a wait gives: reading the clock *marks* the versions that do not stand in memory
//! then, the end of the wait removes them.
//! * Nothing is missed: of any run in real time that keeps to T_max, each event is a transition
//!   here, in the same order. How long T_max is, and whether it is the same on all cores, does not
//!   matter.
//! * A version that stands in memory when the clock is read may be one that a core has read long
//!   ago. It is the same bytes.
//! * `membarrier` gives the same: every core executes a serializing instruction between the call
//!   and its return, which ends its versions from before the call, and the clock was read before.

use crate::assumptions::Assumption;
use crate::code::Code;

/// How many bytes of code are modelled: as many on either side of a boundary.
pub(crate) const ARENA: usize = 32;

/// The one-byte NOP.
const NOP: u8 = 0x90;

/// Bytes of code that become visible to every core in one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) address: usize,
    pub(crate) bytes: Code,
}

/// The parts of `length` bytes at `address` that lie in different windows: address and length of
/// each.
pub(crate) fn parts(window: usize, address: usize, length: usize) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let (mut start, end) = (address, address + length);
    while start < end {
        let next = ((start & !(window - 1)) + window).min(end);
        parts.push((start, next - start));
        start = next;
    }
    parts
}

/// The events that a store of `bytes` at `address` is made of.
pub(crate) fn events(window: usize, address: usize, bytes: &[u8]) -> Vec<Write> {
    let part = |(start, length): (usize, usize)| {
        let offset = start - address;
        Write { address: start, bytes: Code::new(&bytes[offset..offset + length]) }
    };
    parts(window, address, bytes.len()).into_iter().map(part).collect()
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
        Self { base, bytes: [NOP; ARENA], locked_by: None }
    }

    /// What stands there. Beyond the bytes that are modelled, NOPs.
    pub(crate) fn read(&self, address: usize, length: usize) -> Code {
        let byte = |address: usize| {
            let offset = address.checked_sub(self.base);
            offset.and_then(|offset| self.bytes.get(offset)).copied().unwrap_or(NOP)
        };
        Code::new(&(address..address + length).map(byte).collect::<Vec<u8>>())
    }

    /// Makes a write visible.
    pub(crate) fn apply(&mut self, write: &Write) {
        let start = write.address - self.base;
        self.bytes[start..start + write.bytes.len()].copy_from_slice(&write.bytes);
    }
}

/// What cores may execute of one site's bytes in one window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Versions {
    pub(crate) address: usize,
    length: usize,
    /// The version that stands in memory, and since then: each with the waits, one bit each, whose
    /// end removes it. In order of their bytes.
    known: Vec<(Code, u64)>,
    now: Code,
}

impl Versions {
    pub(crate) fn new(address: usize, bytes: Code) -> Self {
        Self { address, length: bytes.len(), known: vec![(bytes, 0)], now: bytes }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Code> {
        self.known.iter().map(|(bytes, _)| bytes)
    }

    /// Takes note of what stands in memory now, on machines that do not keep to `dropped`.
    pub(crate) fn note(&mut self, memory: &Memory, dropped: Option<Assumption>) {
        let (old, new) = (self.now, memory.read(self.address, self.length));
        if new == old {
            return;
        }
        self.now = new;
        self.add(new);
        match dropped {
            Some(Assumption::StoresAreWhole) => {
                for cut in 1..new.len() {
                    self.add(Code::new(&[&new[..cut], &old[cut..]].concat()));
                    self.add(Code::new(&[&old[..cut], &new[cut..]].concat()));
                }
            }
            Some(Assumption::FetchedBytesStoodThere) => {
                let both: Vec<u8> = old.iter().zip(&*new).map(|(old, new)| old | new).collect();
                self.add(Code::new(&both));
            }
            _ => {}
        }
    }

    fn add(&mut self, bytes: Code) {
        match self.known.binary_search_by_key(&bytes, |(bytes, _)| *bytes) {
            // It stands there again: no wait can tell it from the one before.
            Ok(place) => self.known[place].1 = 0,
            Err(place) => self.known.insert(place, (bytes, 0)),
        }
    }

    /// A wait begins, which has this mark.
    pub(crate) fn mark(&mut self, mark: u64) {
        for (bytes, marks) in &mut self.known {
            if *bytes == self.now {
                *marks &= !mark;
            } else {
                *marks |= mark;
            }
        }
    }

    /// The wait with this mark is over.
    pub(crate) fn remove(&mut self, mark: u64) {
        self.known.retain(|(_, marks)| marks & mark == 0);
    }

    /// Nobody waits for these any more.
    pub(crate) fn clear(&mut self, marks: u64) {
        self.known.iter_mut().for_each(|(_, of)| *of &= !marks);
    }

    /// A version that does not stand in memory.
    pub(crate) fn outdated(&self) -> Option<Code> {
        self.all().find(|bytes| **bytes != self.now).copied()
    }
}
