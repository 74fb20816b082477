//! [`StoreLimits`]: how much the instances of a store may use.

use crate::error::Error;

/// Limits of a store. By default there are none but those of WebAssembly and of the machine.
#[derive(Clone, Debug, Default)]
pub struct StoreLimits {
    memory_size: Option<u64>,
    table_elements: Option<u64>,
    exceptions_size: Option<u64>,
    instances: Option<usize>,
}

impl StoreLimits {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Each memory has at most so many bytes. To grow beyond fails as `memory.grow` does.
    pub fn memory_size(mut self, bytes: u64) -> Self {
        self.memory_size = Some(bytes);
        self
    }

    /// Each table has at most so many elements. To grow beyond fails as `table.grow` does.
    pub fn table_elements(mut self, elements: u64) -> Self {
        self.table_elements = Some(elements);
        self
    }

    /// The exceptions that are still reached have at most so many bytes, all together; each has
    /// some twenty, and eight for each value. To throw one more ends the call with
    /// [`Error::StoreLimit`].
    pub fn exceptions_size(mut self, bytes: u64) -> Self {
        self.exceptions_size = Some(bytes);
        self
    }

    /// There are at most so many instances.
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

    /// Whether there may be one instance more.
    pub(crate) fn check_instances(&self, existing: usize) -> Result<(), Error> {
        match self.instances.is_none_or(|limit| existing < limit) {
            true => Ok(()),
            false => Err(Error::StoreLimit { what: "instances" }),
        }
    }
}
