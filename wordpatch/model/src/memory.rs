//! The bytes of code, and their versions that instruction fetch may still return.
//!
//! # The data side
//! x86-TSO (Sewell et al., in the paper's section 3): one memory, a first-in-first-out store buffer
//! for each processor, and a lock that excludes reads and buffered stores of the others. To this
//! the paper adds that "we can model a write that straddles cache lines as two write events", and
//! an atomic one as "a pair of events bracketed by lock and unlock"; instruction fetch ignores the
//! lock. Therefore the unit here is a [`Write`], which never crosses a boundary of the true fetch
//! window.
//!
//! # Instruction fetch
//! "Each processor logically issues an *instruction read* ... in a bounded time window before each
//! time it executes the instruction", one for each window that the instruction touches, in any
//! order; and "an adversarial micro-op cache marks a subset of read events as *elided*", which
//! return what an earlier read returned (paper, section 3). Here, a core keeps every version of a
//! window that it has read, and an elided read returns any of them, not only the last one, and in
//! any order.
//!
//! # Why cores are not modelled individually
//! * A core may read each window at any time, and its reads have no effect on others. Therefore a
//!   core that has read every version of every window can do everything that any other core can do.
//! * A core may forget versions at any time, but this only reduces what it can execute. Here, it
//!   forgets a version only when a wait forces it to.
//!
//! Therefore, one set of versions for each window represents all bytes that *some* core can still
//! execute: those that were in memory since the last wait that removed them. All combinations of
//! them are executed, so any number of cores per site is covered. (Threads differ only in their
//! position in the trap handler: [`crate::executor`].) Tests compare this with [`crate::cores`],
//! where cores are modelled individually.
//!
//! # Waits
//! T_max bounds the age of the bytes that a core executes. Thus, after a wait of T_max since a time
//! `s`, every version that any core may still execute was read after `s`. A wait guarantees this
//! and nothing else: reading the clock *marks* the versions that differ from memory at that time,
//! and the end of the wait removes them.
//! * This covers all executions: each event of an execution in real time that respects T_max is a
//!   transition here, in the same order. The length of T_max is irrelevant, and it may differ
//!   between cores.
//! * A version that is in memory when the clock is read may have been read by a core much earlier.
//!   The bytes are the same.
//! * `membarrier` guarantees the same: every core executes a serializing instruction between the
//!   call and its return, which ends its versions from before the call, and the clock was read
//!   before.

use crate::assumptions::Assumption;
use crate::code::Code;

/// The number of bytes of code that are modelled: half of them on either side of a boundary.
pub(crate) const ARENA: usize = 32;

/// The one-byte NOP.
const NOP: u8 = 0x90;

/// Bytes of code that become visible to every core in one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) address: usize,
    pub(crate) bytes: Code,
}

/// Divides `length` bytes at `address` into parts in different windows: address and length of each.
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

/// The events of a store of `bytes` at `address`.
pub(crate) fn events(window: usize, address: usize, bytes: &[u8]) -> Vec<Write> {
    let part = |(start, length): (usize, usize)| {
        let offset = start - address;
        Write { address: start, bytes: Code::new(&bytes[offset..offset + length]) }
    };
    parts(window, address, bytes.len()).into_iter().map(part).collect()
}

/// The memory that all processors share.
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

    /// The bytes at an address; NOPs outside the modelled memory.
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

/// The versions of a site's bytes in one window that cores may execute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Versions {
    pub(crate) address: usize,
    length: usize,
    /// The current version and stale ones, in the order of their bytes, each with a bit set of the
    /// waits whose end removes it.
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

    /// Adds the version that is in memory now, on machines without the assumption `dropped`.
    pub(crate) fn note(&mut self, memory: &Memory, dropped: Option<Assumption>) {
        let (old, new) = (self.now, memory.read(self.address, self.length));
        if new == old {
            return;
        }
        self.now = new;
        self.add(new);
        match dropped {
            Some(Assumption::StoresAreAtomic) => {
                for cut in 1..new.len() {
                    self.add(Code::new(&[&new[..cut], &old[cut..]].concat()));
                    self.add(Code::new(&[&old[..cut], &new[cut..]].concat()));
                }
            }
            Some(Assumption::FetchedBytesWereStored) => {
                let both: Vec<u8> = old.iter().zip(&*new).map(|(old, new)| old | new).collect();
                self.add(Code::new(&both));
            }
            _ => {}
        }
    }

    fn add(&mut self, bytes: Code) {
        match self.known.binary_search_by_key(&bytes, |(bytes, _)| *bytes) {
            // These bytes were there before: no wait can distinguish the two versions.
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

    /// Removes the versions with the mark of a wait that is over.
    pub(crate) fn remove(&mut self, mark: u64) {
        self.known.retain(|(_, marks)| marks & mark == 0);
    }

    /// Removes the marks of waits that have ended.
    pub(crate) fn clear(&mut self, marks: u64) {
        self.known.iter_mut().for_each(|(_, of)| *of &= !marks);
    }

    /// A version that differs from memory.
    pub(crate) fn outdated(&self) -> Option<Code> {
        self.all().find(|bytes| **bytes != self.now).copied()
    }
}
