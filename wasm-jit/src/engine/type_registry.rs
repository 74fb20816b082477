//! The function types that an engine knows.
//!
//! WebAssembly compares types by their recursion groups: two types are the same if they are at the
//! same place in equal groups. A group is equal to another one if its types have the same
//! parameters and results, where a reference to a type of the group itself is compared by that
//! type's place, and any other one by the type. So a group is looked up by its types with
//! references of the first kind replaced by places ([`GroupValType::Own`]), and of the second kind
//! by ids, which are known by then. Equal types have equal ids, whichever module they come from:
//! compiled code compares ids only. A type that is not declared in a group is one of its own.
//!
//! A group is forgotten with its last user: a [`TypeId`](super::TypeId), or a group that mentions
//! one of its types. Ids are given in ascending order, so that one of a forgotten type is not given
//! to another one soon.

use std::collections::HashMap;
use std::sync::Arc;

use crate::code::CodeImage;
use crate::types::{FuncType, FuncTypeId, HeapType, RefType, ValType};

/// The type of a parameter or result in a group that has no ids yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GroupValType {
    /// It does not refer to the group.
    Known(ValType),
    /// A reference to a function of the type at this place of the group.
    Own { nullable: bool, place: u32 },
}

/// A function type in a group that has no ids yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupFuncType {
    /// The parameters, then the results.
    pub types: Box<[GroupValType]>,
    pub params: usize,
}

impl From<&FuncType> for GroupFuncType {
    fn from(ty: &FuncType) -> Self {
        Self {
            types: ty.params().chain(ty.results()).map(GroupValType::Known).collect(),
            params: ty.params().len(),
        }
    }
}

/// A recursion group.
type GroupTypes = Arc<[GroupFuncType]>;

#[derive(Debug, Default)]
pub(super) struct TypeRegistry {
    /// The first id of each group.
    known: HashMap<GroupTypes, u32>,
    /// By their first ids.
    groups: HashMap<u32, Group>,
    types: HashMap<u32, TypeEntry>,
    /// Where the search for an unused id begins.
    next: u32,
}

#[derive(Debug)]
struct Group {
    types: GroupTypes,
    ids: Box<[u32]>,
    /// Groups that it mentions, by their first ids; each counts it as one user for each entry.
    mentions: Box<[u32]>,
    users: usize,
    /// Whether the engine itself is one of them.
    is_kept: bool,
}

#[derive(Debug)]
pub(super) struct TypeEntry {
    pub ty: FuncType,
    /// The first id of its group.
    group: u32,
    /// Trampolines for host functions.
    pub trampolines: Option<Arc<CodeImage>>,
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
    pub(super) fn add_group(&mut self, types: Vec<GroupFuncType>) -> Box<[u32]> {
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
            let known = self.get(id).is_some_and(|entry| entry.ty == *ty);
            return known.then(|| self.add_user(id));
        }
        let mentioned = ty.params().chain(ty.results()).filter_map(concrete);
        if !mentioned.into_iter().all(|id| self.types.contains_key(&id)) {
            return None;
        }
        Some(self.add_group(vec![ty.into()])[0])
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

    /// Removes a user. Returns the types that nothing uses any more.
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
        let ids: Box<[u32]> = types.iter().map(|_| self.unused_id()).collect();
        let first = ids[0];
        let mut mentions = Vec::new();
        for (id, GroupFuncType { types: of_type, params }) in ids.iter().zip(types.iter()) {
            let mut refers_to_group = types.len() > 1;
            let known = |ty: &GroupValType| match *ty {
                GroupValType::Known(ty) => {
                    mentions.extend(concrete(ty).map(|id| self.types[&id].group));
                    ty
                }
                GroupValType::Own { nullable, place } => {
                    refers_to_group = true;
                    let own = FuncTypeId(ids[place as usize]);
                    ValType::Ref(RefType::new(nullable, HeapType::ConcreteFunc(own)))
                }
            };
            let of_type: Arc<[ValType]> = of_type.iter().map(known).collect();
            let ty = FuncType::recursive(of_type, *params, refers_to_group.then_some(FuncTypeId(*id)));
            self.types.insert(*id, TypeEntry { ty, group: first, trampolines: None });
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

    fn unused_id(&mut self) -> u32 {
        assert!(self.types.len() < u32::MAX as usize, "fewer than 2^32 function types");
        loop {
            let id = self.next;
            self.next = id.wrapping_add(1);
            if !self.types.contains_key(&id) {
                return id;
            }
        }
    }
}

/// The function type that a type refers to.
fn concrete(ty: ValType) -> Option<u32> {
    match ty {
        ValType::Ref(ty) => match ty.heap_type() {
            HeapType::ConcreteFunc(FuncTypeId(id)) => Some(id),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_in_use_are_skipped_after_the_last_one() {
        let mut registry = TypeRegistry::default();
        let mut add = |params: usize| {
            registry.next = registry.next.max(u32::MAX - 1);
            registry.add(&FuncType::new(vec![ValType::I32; params], [])).expect("it refers to no type")
        };
        assert_eq!([add(0), add(1)], [u32::MAX - 1, u32::MAX]);
        registry.next = u32::MAX - 1;
        assert_eq!(registry.add(&FuncType::new([], [ValType::I64])), Some(0));
    }
}
