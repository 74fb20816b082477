//! [`Tag`]: what exceptions are told apart by.

use super::store::{AsContext, AsContextMut, StoreId, StoreOpaque};
use crate::error::Error;
use crate::types::{FuncType, TagType};
use crate::vmctx::MAX_RESULTS;

/// A tag of a store. There may be many of a large type, so they have its id only.
#[derive(Debug)]
pub(crate) struct TagData {
    pub type_id: u32,
    /// How many values its exceptions carry.
    pub values: u32,
}

/// A handle of a tag. It is used with the store it belongs to; with another, its functions panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    store: StoreId,
    index: u32,
}

impl Tag {
    /// A new tag, different from all others.
    ///
    /// # Errors
    /// [`Error::InvalidType`] if the type has results, or more than 1000 parameters.
    pub fn new(mut store: impl AsContextMut, ty: &TagType) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        if ty.ty().results().len() != 0 || ty.ty().params().len() > MAX_RESULTS {
            return Err(Error::InvalidType { of: "tag" });
        }
        let type_id = store.engine.register_type(&ty.ty().0);
        Ok(Self::create(store, TagData { type_id, values: ty.ty().params().len() as u32 }))
    }

    pub(crate) fn create(store: &mut StoreOpaque, data: TagData) -> Self {
        store.tags.push(data);
        Self { store: store.id, index: store.tags.len() as u32 - 1 }
    }

    /// Its type.
    pub fn ty(&self, store: impl AsContext) -> TagType {
        TagType::new(self.type_in(&store.as_context().0.opaque))
    }

    #[track_caller]
    pub(crate) fn type_in(&self, store: &StoreOpaque) -> FuncType {
        FuncType(store.engine.registered_type(self.data(store).type_id))
    }

    #[track_caller]
    pub(crate) fn data<'a>(&self, store: &'a StoreOpaque) -> &'a TagData {
        store.check(self.store);
        &store.tags[self.index as usize]
    }

    pub(crate) fn belongs_to(&self, store: &StoreOpaque) -> bool {
        self.store == store.id
    }

    pub(crate) fn at(store: &StoreOpaque, index: u32) -> Self {
        Self { store: store.id, index }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The number that compiled code knows the tag by.
    #[track_caller]
    pub(crate) fn identity(&self, store: &StoreOpaque) -> usize {
        store.check(self.store);
        self.index as usize + 1
    }

    pub(crate) fn from_identity(store: &StoreOpaque, identity: usize) -> Self {
        Self { store: store.id, index: identity as u32 - 1 }
    }
}
