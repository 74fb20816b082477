//! The state of a WASI program, and its table of file descriptors.

use std::collections::BinaryHeap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::errno::Errno;
use super::stream::{Input, Output};

/// One program's view of the host. A clone belongs to the same program.
#[derive(Clone, Debug)]
pub struct WasiCtx {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    table: Mutex<Table>,
}

/// The target of a file descriptor.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Input(Input),
    Output(Output),
    File(File),
    Dir(Arc<Directory>),
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    pub dir: cap_std::fs::Dir,
    /// The directory's name, if it is preopened.
    pub preopen: Option<String>,
    /// Held while the position in the directory's entries is set and used.
    pub reading: Mutex<()>,
}

impl Directory {
    pub(crate) fn new(dir: cap_std::fs::Dir, preopen: Option<String>) -> Self {
        Self { dir, preopen, reading: Mutex::new(()) }
    }
}

/// Descriptors by number. A new descriptor gets the highest free number, as in Wasmtime: WASI
/// guarantees no order, and there are programs (yosys) that continue to print after closing
/// standard output; they would print into the file that has reused its number.
#[derive(Debug)]
pub(crate) struct Table {
    used: Vec<Option<Arc<Descriptor>>>,
    free: BinaryHeap<u32>,
    /// The maximum number of descriptors.
    most: u32,
}

impl Table {
    pub(crate) fn new(most: u32) -> Self {
        Self { used: Vec::new(), free: BinaryHeap::new(), most }
    }

    /// Whether there may be another descriptor.
    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.used.len() < self.most as usize
    }

    fn get(&self, fd: u32) -> Option<&Arc<Descriptor>> {
        self.used.get(fd as usize)?.as_ref()
    }

    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        let descriptor = Some(Arc::new(descriptor));
        if let Some(fd) = self.free.pop() {
            self.used[fd as usize] = descriptor;
            return Ok(fd);
        }
        if !self.has_room() {
            return Err(Errno::Mfile);
        }
        self.used.push(descriptor);
        Ok(self.used.len() as u32 - 1)
    }

    fn remove(&mut self, fd: u32) -> Option<Arc<Descriptor>> {
        let descriptor = self.used.get_mut(fd as usize)?.take()?;
        self.free.push(fd);
        Some(descriptor)
    }

    /// Returns the descriptor that `to` referred to before.
    fn renumber(&mut self, from: u32, to: u32) -> Option<Arc<Descriptor>> {
        self.get(to)?;
        let moved = Arc::clone(self.get(from)?);
        if from != to {
            self.remove(from);
        }
        self.used[to as usize].replace(moved)
    }
}

impl WasiCtx {
    pub(crate) fn new(args: Vec<Vec<u8>>, env: Vec<Vec<u8>>, table: Table) -> Self {
        Self { shared: Arc::new(Shared { args, env, table: Mutex::new(table) }) }
    }

    pub(crate) fn args(&self) -> &[Vec<u8>] {
        &self.shared.args
    }

    /// The environment's variables, each as `name=value`.
    pub(crate) fn env(&self) -> &[Vec<u8>] {
        &self.shared.env
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No call panics with the lock held while the table is inconsistent.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn descriptor(&self, fd: u32) -> Result<Arc<Descriptor>, Errno> {
        self.table().get(fd).cloned().ok_or(Errno::Badf)
    }

    /// Fails if there may not be another descriptor: before a file is opened for it.
    pub(crate) fn check_room(&self) -> Result<(), Errno> {
        if self.table().has_room() { Ok(()) } else { Err(Errno::Mfile) }
    }

    pub(crate) fn insert(&self, descriptor: Descriptor) -> Result<u32, Errno> {
        self.table().insert(descriptor)
    }

    /// The descriptor is closed by the last thread that uses it, without holding the lock.
    pub(crate) fn remove(&self, fd: u32) -> Result<(), Errno> {
        let removed = self.table().remove(fd);
        removed.map(drop).ok_or(Errno::Badf)
    }

    pub(crate) fn renumber(&self, from: u32, to: u32) -> Result<(), Errno> {
        let replaced = self.table().renumber(from, to);
        replaced.map(drop).ok_or(Errno::Badf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(table: &mut Table) -> u32 {
        table.insert(Descriptor::Output(Output::writer(std::io::sink()))).unwrap()
    }

    #[test]
    fn a_new_descriptor_gets_the_highest_freed_number() {
        let mut table = Table::new(6);
        for expected in 0..5 {
            assert_eq!(number(&mut table), expected);
        }
        assert!(table.remove(3).is_some());
        assert!(table.remove(1).is_some());
        assert!(table.remove(1).is_none(), "it is closed already");
        assert!(table.remove(99).is_none());
        assert_eq!([number(&mut table), number(&mut table), number(&mut table)], [3, 1, 5]);
        let more = Descriptor::Output(Output::writer(std::io::sink()));
        assert_eq!(table.insert(more), Err(Errno::Mfile));
    }

    #[test]
    fn renumbering_frees_the_old_number_only() {
        let mut table = Table::new(6);
        for _ in 0..4 {
            number(&mut table);
        }
        let moved = Arc::clone(table.get(3).unwrap());
        assert!(table.renumber(3, 1).is_some());
        assert!(Arc::ptr_eq(table.get(1).unwrap(), &moved));
        assert!(table.get(3).is_none());
        assert!(table.renumber(3, 1).is_none(), "nothing to move");
        assert!(table.renumber(1, 3).is_none(), "no such target");
        assert!(table.renumber(1, 1).is_some());
        assert!(table.get(1).is_some());
        assert_eq!([number(&mut table), number(&mut table)], [3, 4]);
    }
}
