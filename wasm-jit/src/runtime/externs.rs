//! [`Extern`]: any item that is imported or exported.

use std::sync::Arc;

use super::func::Func;
use super::global::Global;
use super::memory::{Memory, SharedMemory};
use super::store::{AsContext, Handle, StoreOpaque};
use super::table::Table;
use super::tag::Tag;
use crate::module::{Item, Module};
use crate::types::{ExternType, GlobalType, MemoryType, Mutability, TableType, TagType};

/// A handle of an item that can be imported or exported.
#[derive(Clone, Debug)]
pub enum Extern {
    /// A function.
    Func(Func),
    /// A global.
    Global(Global),
    /// A table.
    Table(Table),
    /// A memory of one store.
    Memory(Memory),
    /// A memory that stores share.
    SharedMemory(SharedMemory),
    /// A tag.
    Tag(Tag),
}

impl Extern {
    /// The function, if the item is one.
    pub fn into_func(self) -> Option<Func> {
        if let Self::Func(func) = self { Some(func) } else { None }
    }

    /// The global, if the item is one.
    pub fn into_global(self) -> Option<Global> {
        if let Self::Global(global) = self { Some(global) } else { None }
    }

    /// The table, if the item is one.
    pub fn into_table(self) -> Option<Table> {
        if let Self::Table(table) = self { Some(table) } else { None }
    }

    /// The memory, if the item is one that is not shared.
    pub fn into_memory(self) -> Option<Memory> {
        if let Self::Memory(memory) = self { Some(memory) } else { None }
    }

    /// The memory, if the item is a shared one.
    pub fn into_shared_memory(self) -> Option<SharedMemory> {
        if let Self::SharedMemory(memory) = self { Some(memory) } else { None }
    }

    /// The tag, if the item is one.
    pub fn into_tag(self) -> Option<Tag> {
        if let Self::Tag(tag) = self { Some(tag) } else { None }
    }

    /// The item's type. The minimum of a memory or table is its current size.
    pub fn ty(&self, store: impl AsContext) -> ExternType {
        self.current_type(&store.as_context().0.opaque)
    }

    pub(crate) fn current_type(&self, store: &StoreOpaque) -> ExternType {
        match self {
            Self::Func(func) => ExternType::Func(func.type_in(store)),
            Self::Global(global) => ExternType::Global(global.data(store).ty),
            Self::Table(table) => ExternType::Table(table.current_type(store)),
            Self::Memory(memory) => ExternType::Memory(memory.inner(store).current_type()),
            Self::SharedMemory(memory) => ExternType::Memory(memory.0.current_type()),
            Self::Tag(tag) => ExternType::Tag(TagType::new(tag.type_in(store))),
        }
    }

    pub(crate) fn belongs_to(&self, store: &StoreOpaque) -> bool {
        match self {
            Self::Func(func) => func.belongs_to(store),
            Self::Global(global) => global.0.belongs_to(store),
            Self::Table(table) => table.0.belongs_to(store),
            Self::Memory(memory) => memory.0.belongs_to(store),
            Self::SharedMemory(_) => true,
            Self::Tag(tag) => tag.0.belongs_to(store),
        }
    }

    /// The memory at this index of a store, with the handle of its kind.
    pub(crate) fn of_memory(store: &StoreOpaque, index: u32) -> Self {
        let memory = &store.memories[index as usize];
        match memory.ty().is_shared() {
            true => Self::SharedMemory(SharedMemory(Arc::clone(memory))),
            false => Self::Memory(Memory(Handle::at(store, index))),
        }
    }

    /// Whether a module can import this as `item`; it must belong to the store.
    pub(crate) fn matches(&self, store: &StoreOpaque, module: &Module, item: Item) -> bool {
        let info = module.info();
        match (self, item) {
            (Self::Func(func), Item::Func(index)) => {
                let wanted = info.type_ids[info.functions[index as usize] as usize];
                store.engine.is_declared_subtype(func.type_id(store), wanted)
            }
            (Self::Global(global), Item::Global(index)) => {
                let (found, wanted) =
                    (global.data(store).ty, GlobalType::of(info.globals[index as usize], info));
                match (found.mutability(), wanted.mutability()) {
                    (Mutability::Const, Mutability::Const) => {
                        store.engine.is_subtype(&found.content(), &wanted.content())
                    }
                    _ => found == wanted,
                }
            }
            (Self::Table(table), Item::Table(index)) => {
                let (found, wanted) =
                    (table.current_type(store), TableType::of(info.tables[index as usize], info));
                found.element() == wanted.element()
                    && found.is_64() == wanted.is_64()
                    && limits_match((found.minimum(), found.maximum()), (wanted.minimum(), wanted.maximum()))
            }
            (Self::Memory(memory), Item::Memory(index)) => memory_matches(
                memory.inner(store).current_type(),
                MemoryType::of(info.memories[index as usize]),
            ),
            (Self::SharedMemory(memory), Item::Memory(index)) => {
                memory_matches(memory.0.current_type(), MemoryType::of(info.memories[index as usize]))
            }
            (Self::Tag(tag), Item::Tag(index)) => {
                tag.data(store).type_id.get() == info.type_ids[info.tags[index as usize] as usize]
            }
            _ => false,
        }
    }
}

fn memory_matches(found: MemoryType, wanted: MemoryType) -> bool {
    found.is_shared() == wanted.is_shared()
        && found.is_64() == wanted.is_64()
        && found.page_size() == wanted.page_size()
        && limits_match((found.minimum(), found.maximum()), (wanted.minimum(), wanted.maximum()))
}

/// Whether an item with the limits `found` (minimum and maximum) can be imported with the limits
/// `wanted`.
fn limits_match(found: (u64, Option<u64>), wanted: (u64, Option<u64>)) -> bool {
    let maximum_fits = match (found.1, wanted.1) {
        (_, None) => true,
        (Some(found), Some(wanted)) => found <= wanted,
        (None, Some(_)) => false,
    };
    found.0 >= wanted.0 && maximum_fits
}

macro_rules! from {
    ($($kind:ident)*) => {
        $(
            impl From<$kind> for Extern {
                fn from(item: $kind) -> Self {
                    Self::$kind(item)
                }
            }
        )*
    };
}

from!(Func Global Table Memory SharedMemory Tag);

/// An export of an instance.
#[derive(Clone, Debug)]
pub struct Export<'i> {
    pub(crate) name: &'i str,
    pub(crate) item: Extern,
}

impl<'i> Export<'i> {
    /// The name of the export.
    pub fn name(&self) -> &'i str {
        self.name
    }

    /// The exported item.
    pub fn into_extern(self) -> Extern {
        self.item
    }
}
