//! [`Tag`]: the identity of a kind of exception.

use super::store::{AsContext, AsContextMut, Handle, StoreOpaque};
use crate::engine::TypeId;
use crate::error::Error;
use crate::types::{FuncType, TagType};
use crate::vmctx::MAX_RESULTS;

/// A tag of a store. There may be many of a large type, so they store only its id.
#[derive(Debug)]
pub(crate) struct TagData {
    pub type_id: TypeId,
    /// The number of quadwords of the values that exceptions of the tag carry.
    pub values: u32,
}

/// A handle of a tag. It must be used with the store that it belongs to; otherwise its methods
/// panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub(crate) Handle);

impl Tag {
    /// A new tag, distinct from all others.
    ///
    /// # Errors
    /// [`Error::InvalidType`] if the type has results, more than 1000 parameters, or
    /// refers to a type that the engine does not know, or that is of another kind.
    pub fn new(mut store: impl AsContextMut, ty: &TagType) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        if ty.ty().results().len() != 0 || ty.ty().params().len() > MAX_RESULTS {
            return Err(Error::InvalidType { of: "tag" });
        }
        let type_id = store.engine.register_type(ty.ty(), "tag")?;
        let values = ty.ty().value_words() as u32;
        let index = store.add_tag(TagData { type_id, values });
        Ok(Self(Handle::at(store, index)))
    }

    /// The tag's type.
    pub fn ty(&self, store: impl AsContext) -> TagType {
        TagType::new(self.type_in(&store.as_context().0.opaque))
    }

    #[track_caller]
    pub(crate) fn type_in(&self, store: &StoreOpaque) -> FuncType {
        store.engine.registered_type(self.data(store).type_id.get())
    }

    #[track_caller]
    pub(crate) fn data<'a>(&self, store: &'a StoreOpaque) -> &'a TagData {
        &store.tags[self.0.index_in(store)]
    }

    /// The number that identifies the tag in compiled code.
    #[track_caller]
    pub(crate) fn identity(&self, store: &StoreOpaque) -> usize {
        self.0.index_in(store) + 1
    }

    pub(crate) fn from_identity(store: &StoreOpaque, identity: usize) -> Self {
        Self(Handle::at(store, identity as u32 - 1))
    }
}

impl StoreOpaque {
    /// Returns its index.
    pub(crate) fn add_tag(&mut self, tag: TagData) -> u32 {
        self.tags.push(tag);
        self.tags.len() as u32 - 1
    }
}
