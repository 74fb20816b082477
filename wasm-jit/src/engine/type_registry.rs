//! The function, structure and array types that an engine knows.
//!
//! WebAssembly compares types by their recursion groups: two types are the same if they are at the
//! same position in equal groups. Two groups are equal if their types have the same contents and
//! supertypes, where a reference to a type of the group itself is compared by that type's position,
//! and any other reference by the type. Therefore a group is looked up by its types, in which
//! references of the first kind are replaced by positions ([`GroupValType::Own`]), and references
//! of the second kind by ids, which are known by then. Equal types have equal ids, whichever module
//! they come from, and one [`ObjectType`], whose address is what compiled code compares. A type
//! that is not declared in a group is a group of its own.
//!
//! A group is forgotten with its last user: a [`TypeId`](super::TypeId), or a group that mentions
//! one of its types. Ids are assigned in ascending order, so that the id of a forgotten type is not
//! soon reused, and all engines of the process count together, so that the ids of one engine are
//! unknown to the others. After 2^32 types the count wraps, and an id of another engine, or of a
//! forgotten type, may be that of a known type. Memory safety does not depend on it: an id is
//! looked up, with its kind, in the engine that uses it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::CodeImage;
use crate::object_type::{ObjectLayout, ObjectType};
use crate::types::{
    ArrayType, FieldType, FuncType, FuncTypeId, HeapType, Mutability, RefType, StorageType, StructType,
    ValType,
};
use crate::vmctx::VmKind;

/// The type of a value in a group that has no ids yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GroupValType {
    /// It does not refer to the group.
    Known(ValType),
    /// A reference to the type at this position in the group.
    Own { nullable: bool, place: u32 },
}

/// What a field holds, in a group that has no ids yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GroupStorage {
    I8,
    I16,
    Val(GroupValType),
}

/// A field or element, in a group that has no ids yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupField {
    pub storage: GroupStorage,
    pub mutability: Mutability,
}

/// What a type describes, in a group that has no ids yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GroupComposite {
    /// Functions: the parameters, then the results.
    Func { types: Box<[GroupValType]>, params: usize },
    /// Structures.
    Struct(Box<[GroupField]>),
    /// Arrays.
    Array(GroupField),
}

/// A type that another one is declared to be a subtype of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GroupSupertype {
    /// The type with this id.
    Known(u32),
    /// The type at this position in the group, before that of the subtype.
    Own(u32),
}

/// A type in a group that has no ids yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupType {
    pub composite: GroupComposite,
    pub is_final: bool,
    pub supertype: Option<GroupSupertype>,
}

impl GroupType {
    /// A type without supertypes and subtypes.
    pub(crate) fn of(composite: GroupComposite) -> Self {
        Self { composite, is_final: true, supertype: None }
    }

    fn kind(&self) -> VmKind {
        match self.composite {
            GroupComposite::Func { .. } => VmKind::Func,
            GroupComposite::Struct(_) => VmKind::Struct,
            GroupComposite::Array(_) => VmKind::Array,
        }
    }
}

impl From<&FuncType> for GroupType {
    fn from(ty: &FuncType) -> Self {
        let types = ty.params().chain(ty.results()).map(GroupValType::Known).collect();
        Self::of(GroupComposite::Func { types, params: ty.params().len() })
    }
}

impl From<FieldType> for GroupField {
    fn from(ty: FieldType) -> Self {
        let storage = match ty.storage() {
            StorageType::I8 => GroupStorage::I8,
            StorageType::I16 => GroupStorage::I16,
            StorageType::Val(ty) => GroupStorage::Val(GroupValType::Known(ty)),
        };
        Self { storage, mutability: ty.mutability() }
    }
}

/// A recursion group.
type GroupTypes = Arc<[GroupType]>;

#[derive(Debug, Default)]
pub(super) struct TypeRegistry {
    /// The first id of each group.
    known: HashMap<GroupTypes, u32>,
    /// The groups, by their first ids.
    groups: HashMap<u32, Group>,
    types: HashMap<u32, TypeEntry>,
}

/// The next id of a type, of any engine.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct Group {
    types: GroupTypes,
    ids: Box<[u32]>,
    /// The first ids of the groups that this one mentions; each of them counts this group as one
    /// user for each entry.
    mentions: Box<[u32]>,
    users: usize,
    /// Whether the engine itself is one of the users.
    is_kept: bool,
}

/// A type that the engine knows.
#[derive(Clone, Debug)]
pub(crate) enum KnownType {
    Func(FuncType),
    Struct(StructType),
    Array(ArrayType),
}

impl KnownType {
    /// The function type, if the type describes functions.
    pub(super) fn func(&self) -> Option<&FuncType> {
        if let Self::Func(ty) = self { Some(ty) } else { None }
    }
}

#[derive(Debug)]
pub(super) struct TypeEntry {
    pub ty: KnownType,
    pub supertype: Option<u32>,
    pub object_type: Arc<ObjectType>,
    /// The first id of its group.
    group: u32,
    /// Trampolines for host functions.
    pub trampolines: Option<Arc<CodeImage>>,
}

impl TypeEntry {
    fn kind(&self) -> VmKind {
        self.object_type.vm.kind
    }
}

impl TypeRegistry {
    /// A known type.
    pub(super) fn get(&self, id: u32) -> Option<&TypeEntry> {
        self.types.get(&id)
    }

    /// A type that is in use.
    ///
    /// # Panics
    /// If it is not known.
    pub(super) fn entry(&mut self, id: u32) -> &mut TypeEntry {
        self.types.get_mut(&id).expect("an id that is known is in use")
    }

    /// The ids of a group's types, each with one user more. The types that it refers to are known.
    pub(super) fn add_group(&mut self, types: Vec<GroupType>) -> Box<[u32]> {
        let first = match self.known.get(types.as_slice()) {
            Some(first) => *first,
            None => self.insert(types.into()),
        };
        let group = self.group(first);
        group.users += group.ids.len();
        group.ids.clone()
    }

    /// The id of a type, with one user more. `None` if it refers to a type that is not known.
    pub(super) fn add(&mut self, ty: &FuncType) -> Option<u32> {
        if let Some(FuncTypeId(id)) = ty.recursive_id() {
            let known = self.get(id).is_some_and(|entry| entry.ty.func() == Some(ty));
            return known.then(|| self.add_user(id));
        }
        self.add_alone(ty.into(), ty.params().chain(ty.results()))
    }

    /// The id of a type that is a group of its own, with one user more. `None` if these types,
    /// which it mentions, refer to one that is not known.
    pub(super) fn add_alone(
        &mut self,
        ty: GroupType,
        mut mentioned: impl Iterator<Item = ValType>,
    ) -> Option<u32> {
        mentioned.all(|ty| self.knows(ty)).then(|| self.add_group(vec![ty])[0])
    }

    /// Whether a type refers to no concrete type, or to a known one of the kind that it says.
    pub(super) fn knows(&self, ty: ValType) -> bool {
        concrete(ty).is_none_or(|(kind, id)| self.get(id).is_some_and(|entry| entry.kind() == kind))
    }

    /// Whether a type is another one, or was declared as a subtype of it.
    pub(super) fn is_subtype(&self, id: u32, of: u32) -> bool {
        let supertype = |id: &u32| self.get(*id)?.supertype;
        std::iter::successors(Some(id), supertype).any(|id| id == of)
    }

    /// Adds a user of a type that is in use. Returns its id.
    pub(super) fn add_user(&mut self, id: u32) -> u32 {
        let group = self.entry(id).group;
        self.group(group).users += 1;
        id
    }

    /// Makes the engine itself a user of a type that is in use.
    pub(super) fn keep(&mut self, id: u32) {
        let group = self.entry(id).group;
        let group = self.group(group);
        if !std::mem::replace(&mut group.is_kept, true) {
            group.users += 1;
        }
    }

    /// Removes a user. Returns the types that are no longer used.
    #[must_use]
    pub(super) fn remove_user(&mut self, id: u32) -> Vec<TypeEntry> {
        let mut forgotten = Vec::new();
        // A chain of groups may be long.
        let mut left = vec![self.entry(id).group];
        while let Some(first) = left.pop() {
            let group = self.group(first);
            group.users -= 1;
            if group.users > 0 {
                continue;
            }
            let Group { types, ids, mentions, .. } = self.groups.remove(&first).expect("just found");
            self.known.remove(&types);
            forgotten.extend(ids.iter().filter_map(|id| self.types.remove(id)));
            left.extend(mentions);
        }
        forgotten
    }

    /// The numbers of types and of groups.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        assert_eq!(self.known.len(), self.groups.len());
        (self.types.len(), self.groups.len())
    }

    fn group(&mut self, first: u32) -> &mut Group {
        self.groups.get_mut(&first).expect("the group of a known type is known")
    }

    fn insert(&mut self, types: GroupTypes) -> u32 {
        let ids: Box<[u32]> = types.iter().map(|_| self.unused_id(&NEXT_ID)).collect();
        let first = ids[0];
        let mut mentions = Vec::new();
        for (id, ty) in ids.iter().zip(types.iter()) {
            // Whether the group is a part of its identity: of a function type, which the host could
            // otherwise create.
            let mut is_recursive = types.len() > 1 || !ty.is_final || ty.supertype.is_some();
            let mut val_type = |ty: GroupValType| match ty {
                GroupValType::Known(ty) => {
                    mentions.extend(concrete(ty).map(|(_, id)| self.types[&id].group));
                    ty
                }
                GroupValType::Own { nullable, place } => {
                    is_recursive = true;
                    let heap_type = HeapType::of_id(types[place as usize].kind(), ids[place as usize]);
                    ValType::Ref(RefType::new(nullable, heap_type))
                }
            };
            let mut field = |field: &GroupField| {
                let storage = match field.storage {
                    GroupStorage::I8 => StorageType::I8,
                    GroupStorage::I16 => StorageType::I16,
                    GroupStorage::Val(ty) => StorageType::Val(val_type(ty)),
                };
                FieldType::new(storage, field.mutability)
            };
            let (known, layout) = match &ty.composite {
                GroupComposite::Func { types, params } => {
                    let types: Arc<[ValType]> = types.iter().map(|ty| val_type(*ty)).collect();
                    let id = is_recursive.then_some(FuncTypeId(*id));
                    (KnownType::Func(FuncType::recursive(types, *params, id)), ObjectLayout::Function)
                }
                GroupComposite::Struct(fields) => {
                    let ty = StructType::known(*id, fields.iter().map(field).collect());
                    let layout = ObjectType::of_struct(&ty);
                    (KnownType::Struct(ty), layout)
                }
                GroupComposite::Array(element) => {
                    let ty = ArrayType::known(*id, field(element));
                    (KnownType::Array(ty), ObjectType::of_array(&ty))
                }
            };
            let supertype = ty.supertype.map(|supertype| match supertype {
                GroupSupertype::Known(id) => {
                    mentions.push(self.types[&id].group);
                    id
                }
                GroupSupertype::Own(place) => ids[place as usize],
            });
            let above = supertype.map(|id| self.types[&id].object_type.clone());
            let object_type = ObjectType::new(*id, ty.kind(), layout, above);
            let entry = TypeEntry { ty: known, supertype, object_type, group: first, trampolines: None };
            self.types.insert(*id, entry);
        }
        mentions.sort_unstable();
        mentions.dedup();
        for mentioned in &mentions {
            self.group(*mentioned).users += 1;
        }
        let group = Group { types: types.clone(), ids, mentions: mentions.into(), users: 0, is_kept: false };
        self.groups.insert(first, group);
        self.known.insert(types, first);
        first
    }

    /// An id that no type of the engine has.
    fn unused_id(&self, next: &AtomicU32) -> u32 {
        assert!(self.types.len() < u32::MAX as usize, "fewer than 2^32 types");
        loop {
            // Wraps around. The count orders nothing else.
            let id = next.fetch_add(1, Ordering::Relaxed);
            if !self.types.contains_key(&id) {
                return id;
            }
        }
    }
}

/// The concrete type that a type refers to: what it describes, and its id.
fn concrete(ty: ValType) -> Option<(VmKind, u32)> {
    if let ValType::Ref(ty) = ty { ty.heap_type().concrete() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_in_use_are_skipped_after_the_last_one() {
        let mut registry = TypeRegistry::default();
        let used = registry.add(&FuncType::new([], [])).expect("it refers to no type");
        assert_eq!(registry.unused_id(&AtomicU32::new(used)), used + 1);
        let next = AtomicU32::new(u32::MAX);
        assert_eq!(registry.unused_id(&next), u32::MAX);
        assert_eq!(registry.unused_id(&next), u32::from(used == 0));
    }

    #[test]
    fn a_known_type_is_of_one_kind() {
        let mut registry = TypeRegistry::default();
        let composites = [
            GroupComposite::Func { types: Box::default(), params: 0 },
            GroupComposite::Struct(Box::default()),
            GroupComposite::Array(FieldType::new(StorageType::I8, Mutability::Const).into()),
        ];
        let kinds = [VmKind::Func, VmKind::Struct, VmKind::Array];
        let ids = composites.map(|composite| registry.add_group(vec![GroupType::of(composite)])[0]);
        for (of, id) in kinds.iter().zip(ids) {
            for kind in kinds {
                let ty = ValType::Ref(RefType::new(true, HeapType::of_id(kind, id)));
                assert_eq!(registry.knows(ty), kind == *of, "{of:?} as {kind:?}");
                let mentions = registry.add(&FuncType::new([ty], []));
                assert_eq!(mentions.is_some(), kind == *of, "{of:?} as {kind:?}");
            }
        }
    }
}
