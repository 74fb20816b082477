//! A type at run time: what compiled code compares, and where the collector finds references in
//! objects.

use std::ptr;
use std::sync::{Arc, Weak};

use wasm_jit_codegen::objects::{I31_BIT, Storage, StructLayout};

use crate::types::{ArrayType, FieldType, HeapType, RefType, StorageType, StructType, ValType};
use crate::vmctx::{NEAR_ANCESTORS, VmKind, VmType};

/// What the collector needs to know about the objects of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectLayout {
    /// A function type: it has no objects in the heap.
    Function,
    /// A structure.
    Struct {
        /// The size of the structure in bytes, a multiple of 8.
        size: u32,
        /// The offsets of fields of the `any` and `extern` hierarchies. Each holds null, a host
        /// value, an `i31`, or the address of an object.
        references: Box<[u32]>,
        /// The offsets of fields that hold null or the address of an exception.
        exceptions: Box<[u32]>,
    },
    /// An array.
    Array {
        /// The binary logarithm of the size of an element.
        element_log2: u8,
        /// What the elements are.
        elements: Elements,
    },
}

/// What the collector needs to know about a field or element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// The field does not refer to anything that is collected.
    Plain,
    /// As the `references` of a structure.
    References,
    /// As the `exceptions` of a structure.
    Exceptions,
}

/// A type at run time. It does not move.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ObjectType {
    /// The part that compiled code reads; objects have its address.
    pub vm: VmType,
    /// The part that the collector reads.
    pub layout: ObjectLayout,
    /// Owns what `vm` refers to.
    far_ancestors: Box<[*const VmType]>,
    _supertype: Option<Arc<Self>>,
}

// SAFETY: it does not change, and keeps alive what its pointers refer to.
unsafe impl Send for ObjectType {}
// SAFETY: as above.
unsafe impl Sync for ObjectType {}

impl ObjectType {
    /// A type with this id.
    pub(crate) fn new(
        id: u32,
        kind: VmKind,
        layout: ObjectLayout,
        supertype: Option<Arc<Self>>,
    ) -> Arc<Self> {
        let depth = supertype.as_ref().map_or(0, |supertype| supertype.vm.depth + 1);
        let known = supertype.as_ref().map_or(&[][..], |supertype| &supertype.far_ancestors);
        let has_far = depth as usize >= NEAR_ANCESTORS;
        let far_ancestors = known.iter().copied().chain(has_far.then_some(ptr::null())).collect();
        let ancestors = supertype.as_ref().map_or([ptr::null(); NEAR_ANCESTORS], |it| it.vm.ancestors);
        let vm = VmType { ancestors, far_ancestors: ptr::null(), depth, kind, id };
        Arc::new_cyclic(|this: &Weak<Self>| {
            let mut ty = Self { vm, layout, far_ancestors, _supertype: supertype };
            // The head of the type, which comes first.
            let own: *const VmType = this.as_ptr().cast();
            match (depth as usize).checked_sub(NEAR_ANCESTORS) {
                None => ty.vm.ancestors[depth as usize] = own,
                Some(far) => ty.far_ancestors[far] = own,
            }
            ty.vm.far_ancestors = ty.far_ancestors.as_ptr();
            ty
        })
    }

    /// Where structures of a type have references.
    pub(crate) fn of_struct(ty: &StructType) -> ObjectLayout {
        let layout = struct_layout(ty);
        let offsets = |wanted: Elements| {
            let fields = ty.fields().iter().zip(&layout.fields);
            fields.filter(|(ty, _)| elements(ty) == wanted).map(|(_, field)| field.offset).collect()
        };
        ObjectLayout::Struct {
            size: layout.size,
            references: offsets(Elements::References),
            exceptions: offsets(Elements::Exceptions),
        }
    }

    /// Where arrays of a type have references.
    pub(crate) fn of_array(ty: &ArrayType) -> ObjectLayout {
        let element = ty.element();
        ObjectLayout::Array { element_log2: storage(&element).log2(), elements: elements(&element) }
    }
}

/// The layout of structures of a type.
pub(crate) fn struct_layout(ty: &StructType) -> StructLayout {
    StructLayout::new(ty.fields().iter().map(storage))
}

/// How a field is stored.
pub(crate) fn storage(field: &FieldType) -> Storage {
    match field.storage() {
        StorageType::I8 => Storage::I8,
        StorageType::I16 => Storage::I16,
        StorageType::Val(ty) => Storage::Value(ty.to_wasm()),
    }
}

/// How the collector treats a field.
fn elements(field: &FieldType) -> Elements {
    match field.storage() {
        StorageType::Val(ValType::Ref(ty)) if ty.heap_type().top() == HeapType::Exn => Elements::Exceptions,
        StorageType::Val(ValType::Ref(ty)) if is_collected(ty) => Elements::References,
        _ => Elements::Plain,
    }
}

/// Whether a value of this type may be subject to collection: functions live as long as their
/// store.
pub(crate) fn is_collected(ty: RefType) -> bool {
    ty.heap_type().top() != HeapType::Func
}

/// The word of an `i31`, of which the lower 31 bits of `value` are used.
pub(crate) fn lower_i31(value: u32) -> u64 {
    u64::from(value << 1) | I31_BIT
}
