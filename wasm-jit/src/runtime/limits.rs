//! [`StoreLimits`]: limits on the resources of a store's instances.

use crate::error::Error;

/// Limits of a store. By default there are none except those of WebAssembly and of the machine.
#[derive(Clone, Debug, Default)]
pub struct StoreLimits {
    memory_size: Option<u64>,
    table_elements: Option<u64>,
    exceptions_size: Option<u64>,
    heap_size: Option<u64>,
    instances: Option<usize>,
}

impl StoreLimits {
    /// No limits except those of WebAssembly and of the machine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maximum size of each memory, in bytes. Growing beyond it fails as `memory.grow` does.
    pub fn memory_size(mut self, bytes: u64) -> Self {
        self.memory_size = Some(bytes);
        self
    }

    /// Maximum number of elements of each table. Growing beyond it fails as `table.grow` does.
    pub fn table_elements(mut self, elements: u64) -> Self {
        self.table_elements = Some(elements);
        self
    }

    /// Maximum total size of all reachable exceptions, in bytes: about twenty for each, and eight
    /// for each of its values. Throwing an exception beyond it ends the call with
    /// [`Error::StoreLimit`].
    pub fn exceptions_size(mut self, bytes: u64) -> Self {
        self.exceptions_size = Some(bytes);
        self
    }

    /// Maximum size of the garbage-collected heap in bytes, including the declared sizes of host
    /// values ([`ExternRef::with_size`](crate::ExternRef::with_size)). An allocation that would
    /// exceed it even after a collection ends the call with [`Error::StoreLimit`].
    pub fn heap_size(mut self, bytes: u64) -> Self {
        self.heap_size = Some(bytes);
        self
    }

    /// Maximum number of instances in the store. Instantiation beyond it fails with
    /// [`Error::StoreLimit`].
    pub fn instances(mut self, instances: usize) -> Self {
        self.instances = Some(instances);
        self
    }

    pub(crate) fn allows_memory(&self, bytes: u64) -> bool {
        self.memory_size.is_none_or(|limit| bytes <= limit)
    }

    pub(crate) fn allows_table(&self, elements: u64) -> bool {
        self.table_elements.is_none_or(|limit| elements <= limit)
    }

    pub(crate) fn allows_exceptions(&self, bytes: u64) -> bool {
        self.exceptions_size.is_none_or(|limit| bytes <= limit)
    }

    /// Maximum memory of the heap.
    pub(crate) fn heap(&self) -> u64 {
        self.heap_size.unwrap_or(u64::MAX)
    }

    /// Whether another instance is permitted.
    pub(crate) fn check_instances(&self, existing: usize) -> Result<(), Error> {
        match self.instances.is_none_or(|limit| existing < limit) {
            true => Ok(()),
            false => Err(Error::limit("instances")),
        }
    }
}
