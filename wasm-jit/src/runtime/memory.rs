//! [`Memory`] and [`SharedMemory`]: handles of linear memories of one store, and of memories that
//! threads share.

use std::sync::Arc;

use super::observe::WriteAnnouncer;
use super::store::{AsContext, AsContextMut, Handle, StoreContext, StoreContextMut, StoreOpaque};
use crate::error::Error;
use crate::linear_memory::{Extent, LinearMemory, copy_atomically};
use crate::types::MemoryType;

/// A handle of a memory that belongs to one store. It must be used with that store; otherwise its
/// methods panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory(pub(crate) Handle);

impl Memory {
    /// A new memory, zeroed.
    ///
    /// # Errors
    /// [`Error::InvalidType`] for a shared memory (see [`SharedMemory`]) and for invalid limits,
    /// [`Error::StoreLimit`], [`Error::Memory`].
    pub fn new(mut store: impl AsContextMut, ty: MemoryType) -> Result<Self, Error> {
        if ty.is_shared() {
            return Err(Error::InvalidType { of: "memory" });
        }
        let store = &mut store.as_context_mut().into_inner().opaque;
        store.create_memory(ty).map(|index| Self(Handle::at(store, index)))
    }

    /// The memory's type, with the minimum that it was created with.
    pub fn ty(&self, store: impl AsContext) -> MemoryType {
        self.inner(&store.as_context().0.opaque).ty()
    }

    /// The memory's current size in pages.
    pub fn size(&self, store: impl AsContext) -> u64 {
        self.inner(&store.as_context().0.opaque).pages()
    }

    /// The memory's current size in bytes.
    pub fn data_size(&self, store: impl AsContext) -> usize {
        self.inner(&store.as_context().0.opaque).length() as usize
    }

    /// The address of the memory, which never moves. Compiled code changes the contents. From now
    /// on, a [`WriteLog`](super::WriteLog) copies the complete memory each time it starts.
    pub fn data_ptr(&self, store: impl AsContext) -> *mut u8 {
        let store = store.as_context();
        let memory = self.inner(&store.0.opaque);
        memory.expose();
        store.0.opaque.writes.add_all(*self, self.data(store));
        memory.base()
    }

    /// The address of the memory, for a host function that announces each write before it writes
    /// through the address, and that does not keep the address.
    pub fn announced(&self, store: impl AsContext) -> (*mut u8, WriteAnnouncer) {
        let store = &store.as_context().0.opaque;
        (self.inner(store).base(), WriteAnnouncer::of(store, *self))
    }

    /// The memory's contents, from address 0.
    pub fn data<'a, T: 'static>(&self, store: impl Into<StoreContext<'a, T>>) -> &'a [u8] {
        let store = &store.into().0.opaque;
        let memory = self.inner(store);
        // SAFETY: this many bytes are accessible. The memory is not shared, and its store is
        // borrowed: nothing writes to it.
        unsafe { std::slice::from_raw_parts(memory.base(), memory.length() as usize) }
    }

    /// The memory's contents, mutable.
    pub fn data_mut<'a, T: 'static>(&self, store: impl Into<StoreContextMut<'a, T>>) -> &'a mut [u8] {
        self.data_and_store_mut(store).0
    }

    /// The memory's contents, mutable, and the embedder's data.
    pub fn data_and_store_mut<'a, T: 'static>(
        &self,
        store: impl Into<StoreContextMut<'a, T>>,
    ) -> (&'a mut [u8], &'a mut T) {
        let store = store.into().into_inner();
        store.opaque.writes.add_all(*self, self.data(StoreContext(store)));
        let memory = self.inner(&store.opaque);
        // SAFETY: this many bytes are accessible. The memory is not shared, and its store is
        // borrowed exclusively: nothing else reads or writes it. The embedder's data do not give
        // access to it either.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base(), memory.length() as usize) };
        (bytes, &mut store.data)
    }

    /// Copies bytes from the memory, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range is not inside the memory.
    pub fn read(&self, store: impl AsContext, offset: usize, buffer: &mut [u8]) -> Result<(), Error> {
        let data = self.data(store.as_context());
        let range = range_in(data.len(), offset, buffer.len())?;
        buffer.copy_from_slice(&data[range]);
        Ok(())
    }

    /// Copies bytes into the memory, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range is not inside the memory.
    pub fn write(&self, mut store: impl AsContextMut, offset: usize, buffer: &[u8]) -> Result<(), Error> {
        let store = store.as_context_mut().into_inner();
        let data = self.data(StoreContext(store));
        let range = range_in(data.len(), offset, buffer.len())?;
        store.opaque.writes.add_bytes(*self, offset, &data[range]);
        let to = self.inner(&store.opaque).base();
        // SAFETY: the range is inside the memory, which is not shared, and whose store is borrowed
        // exclusively: the buffer is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), to.add(offset), buffer.len()) };
        Ok(())
    }

    /// Adds zeroed pages; returns their previous number.
    ///
    /// # Errors
    /// [`Error::Grow`] if the memory cannot grow by this many pages.
    pub fn grow(&self, mut store: impl AsContextMut, pages: u64) -> Result<u64, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let size = self.inner(store).pages();
        let grown = store.grow_memory(self.0.index_in(store) as u32, pages);
        let memory = self.inner(store);
        if memory.is_exposed() {
            // SAFETY: this many bytes are accessible. The memory is not shared, and its store is
            // borrowed: nothing writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(memory.base(), memory.length() as usize) };
            // The host may write to the new pages through the address that it has got.
            store.writes.add_all(*self, bytes);
        }
        grown.ok_or(Error::Grow { of: "memory", size, by: pages })
    }

    #[track_caller]
    pub(crate) fn inner<'a>(&self, store: &'a StoreOpaque) -> &'a LinearMemory {
        &store.memories[self.0.index_in(store)]
    }
}

fn range_in(size: usize, offset: usize, length: usize) -> Result<std::ops::Range<usize>, Error> {
    match offset.checked_add(length).filter(|end| *end <= size) {
        Some(end) => Ok(offset..end),
        None => Err(out_of_bounds(size, offset, length)),
    }
}

fn out_of_bounds(size: usize, offset: usize, length: usize) -> Error {
    Error::OutOfBounds { of: "memory", offset: offset as u64, length: length as u64, size: size as u64 }
}

impl StoreOpaque {
    /// Returns its index.
    pub(crate) fn create_memory(&mut self, ty: MemoryType) -> Result<u32, Error> {
        if !self.limits.allows_memory(ty.minimum_bytes()) {
            return Err(Error::limit("memory"));
        }
        let extent = if self.engine.checks_bounds() { Extent::Exact } else { Extent::reserved_for(ty) };
        Ok(self.add_memory(Arc::new(LinearMemory::new(ty, extent)?)))
    }

    /// Returns its index.
    pub(crate) fn add_memory(&mut self, memory: Arc<LinearMemory>) -> u32 {
        self.memories.push(memory);
        self.memories.len() as u32 - 1
    }

    /// Adds pages to a memory, within the limits; returns their previous number.
    pub(crate) fn grow_memory(&mut self, memory: u32, pages: u64) -> Option<u64> {
        self.memories[memory as usize].grow(pages, |bytes| self.limits.allows_memory(bytes))
    }
}

/// A memory that any number of stores and threads may use. A clone refers to the same memory.
#[derive(Clone, Debug)]
pub struct SharedMemory(pub(crate) Arc<LinearMemory>);

impl SharedMemory {
    /// A new memory, zeroed.
    ///
    /// # Errors
    /// [`Error::InvalidType`] for a memory that is not shared and for invalid limits,
    /// [`Error::Memory`].
    pub fn new(ty: MemoryType) -> Result<Self, Error> {
        if !ty.is_shared() {
            return Err(Error::InvalidType { of: "memory" });
        }
        // Without a reservation, only modules compiled with bounds checks can use it.
        let memory = match LinearMemory::new(ty, Extent::reserved_for(ty)) {
            Err(Error::Memory { .. }) => LinearMemory::new(ty, Extent::Exact),
            memory => memory,
        };
        memory.map(|memory| Self(Arc::new(memory)))
    }

    /// The memory's type, with the minimum that it was created with.
    pub fn ty(&self) -> MemoryType {
        self.0.ty()
    }

    /// The memory's current size in pages.
    pub fn size(&self) -> u64 {
        self.0.pages()
    }

    /// The memory's current size in bytes.
    pub fn data_size(&self) -> usize {
        self.0.length() as usize
    }

    /// The address of the memory, which never moves. Other threads may read and write the contents
    /// at any time: use atomic accesses.
    pub fn data_ptr(&self) -> *mut u8 {
        self.0.base()
    }

    /// Adds zeroed pages; returns their previous number.
    ///
    /// # Errors
    /// [`Error::Grow`] if the memory cannot grow by this many pages.
    pub fn grow(&self, pages: u64) -> Result<u64, Error> {
        self.0.grow(pages, |_| true).ok_or(Error::Grow { of: "memory", size: self.size(), by: pages })
    }

    /// Copies bytes from the memory, starting at `offset`. If other threads write at the same time,
    /// each byte is an old or a new one.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range is not inside the memory.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) -> Result<(), Error> {
        let from = self.range(offset, buffer.len())?;
        // SAFETY: this many bytes are accessible, and there is no reference to them; the buffer is
        // borrowed exclusively.
        unsafe { copy_atomically(from, buffer.as_mut_ptr(), buffer.len()) };
        Ok(())
    }

    /// Copies bytes into the memory, starting at `offset`, each byte atomically.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range is not inside the memory.
    pub fn write(&self, offset: usize, buffer: &[u8]) -> Result<(), Error> {
        let to = self.range(offset, buffer.len())?;
        // Atomic accesses require writable memory, even for reads.
        let mut copy = [0; 1024];
        for (number, chunk) in buffer.chunks(copy.len()).enumerate() {
            copy[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: as in `read`; the chunk is inside the range.
            unsafe { copy_atomically(copy.as_ptr(), to.add(number * copy.len()), chunk.len()) };
        }
        Ok(())
    }

    fn range(&self, offset: usize, length: usize) -> Result<*mut u8, Error> {
        let range = self.0.range(offset as u64, length as u64);
        range.ok_or_else(|| out_of_bounds(self.data_size(), offset, length))
    }
}
