//! [`ExnRef`]: the handle of an exception. Its methods are in `runtime/exception.rs`.

use std::sync::Arc;

use crate::store_id::StoreId;

/// An exception, held by the host. A clone refers to the same exception.
#[derive(Clone, Debug)]
pub struct ExnRef {
    pub(crate) store: StoreId,
    pub(crate) address: usize,
    /// Keeps the exception alive: the store has a weak reference to it.
    pub(crate) _root: Arc<()>,
}
