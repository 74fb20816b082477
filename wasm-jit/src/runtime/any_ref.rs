//! References to structures, arrays and `i31`: [`AnyRef`], [`StructRef`], [`ArrayRef`], [`I31`].
//!
//! A handle keeps its object alive: the store has a weak reference to each handle's root, and the
//! collector treats the objects whose roots still exist as reachable.

use std::sync::Arc;

use wasm_jit_codegen::objects::{ARRAY_ELEMENTS, Field};

use super::collect;
use super::objects::{Object, Referent, Room};
use super::references::ExternRef;
use super::store::{AsContext, AsContextMut, StoreOpaque};
use super::value::Val;
use crate::engine::{KnownType, TypeId};
use crate::error::Error;
use crate::object_type::{ObjectType, lower_i31, storage, struct_layout};
use crate::store_id::StoreId;
use crate::types::{ArrayType, FieldType, HeapType, Mutability, StructType};

/// A 31-bit integer that is a reference: `i31`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct I31(u32);

impl I31 {
    /// The lower 31 bits of `value`, as `ref.i31` takes them.
    pub fn wrapping(value: i32) -> Self {
        Self(value as u32 & 0x7fff_ffff)
    }

    /// The value, sign-extended.
    pub fn signed(self) -> i32 {
        (self.0 << 1) as i32 >> 1
    }

    /// The value, zero-extended.
    pub fn unsigned(self) -> u32 {
        self.0
    }
}

/// The handle of an object.
#[derive(Clone, Debug)]
struct ObjectHandle {
    store: StoreId,
    address: usize,
    /// Keeps the object alive.
    _root: Arc<()>,
}

impl ObjectHandle {
    /// # Panics
    /// If it belongs to another store.
    #[track_caller]
    fn object(&self, store: &StoreOpaque) -> Object {
        store.check(self.store);
        // SAFETY: the handle keeps it alive, and it belongs to the store.
        unsafe { Object::at(self.address) }
    }
}

/// A value of type `anyref` other than null. A clone refers to the same object.
#[derive(Clone, Debug)]
pub struct AnyRef(Kind);

#[derive(Clone, Debug)]
enum Kind {
    I31(I31),
    Object(ObjectHandle),
    Host(ExternRef),
}

impl AnyRef {
    /// A host value as a value of type `any`: `any.convert_extern`.
    pub fn from_extern(value: ExternRef) -> Self {
        match value.data().downcast_ref::<Self>() {
            Some(any) => any.clone(),
            None => Self(Kind::Host(value)),
        }
    }

    /// The same value as a host value: `extern.convert_any`. If it did not come from the host, the
    /// data of the result is this `AnyRef`.
    pub fn to_extern(&self) -> ExternRef {
        match &self.0 {
            Kind::Host(value) => value.clone(),
            Kind::I31(_) | Kind::Object(_) => ExternRef::new(self.clone()),
        }
    }

    /// The integer, if it is an `i31`.
    pub fn as_i31(&self) -> Option<I31> {
        if let Kind::I31(value) = self.0 { Some(value) } else { None }
    }

    /// The structure, if the value is one.
    ///
    /// # Panics
    /// If the value is an object of another store. The same holds for the other methods that take a
    /// store.
    pub fn as_struct(&self, store: impl AsContext) -> Option<StructRef> {
        let handle = self.handle()?;
        let is_struct = matches!(self.ty(store), HeapType::ConcreteStruct(_));
        is_struct.then(|| StructRef(handle.clone()))
    }

    /// The array, if the value is one.
    pub fn as_array(&self, store: impl AsContext) -> Option<ArrayRef> {
        let handle = self.handle()?;
        let is_array = matches!(self.ty(store), HeapType::ConcreteArray(_));
        is_array.then(|| ArrayRef(handle.clone()))
    }

    /// The host value, if the value came from the host.
    pub fn as_extern(&self) -> Option<&ExternRef> {
        if let Kind::Host(value) = &self.0 { Some(value) } else { None }
    }

    /// The concrete type of a structure or array, or the type of an `i31` or a host value.
    pub fn ty(&self, store: impl AsContext) -> HeapType {
        self.type_in(&store.as_context().0.opaque)
    }

    /// Whether both are the same value, as `ref.eq` compares them.
    pub fn same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::I31(one), Kind::I31(other)) => one == other,
            (Kind::Object(one), Kind::Object(other)) => {
                (one.store, one.address) == (other.store, other.address)
            }
            (Kind::Host(one), Kind::Host(other)) => one.same(other),
            _ => false,
        }
    }

    fn handle(&self) -> Option<&ObjectHandle> {
        if let Kind::Object(handle) = &self.0 { Some(handle) } else { None }
    }

    #[track_caller]
    pub(crate) fn type_in(&self, store: &StoreOpaque) -> HeapType {
        match &self.0 {
            Kind::I31(_) => HeapType::I31,
            Kind::Object(handle) => store.heap_type(handle.object(store)),
            Kind::Host(_) => HeapType::Any,
        }
    }

    /// Refuses an object of another store.
    pub(crate) fn check_store(&self, store: &StoreOpaque) -> Result<(), Error> {
        match &self.0 {
            Kind::Object(handle) if handle.store != store.id => Err(Error::WrongStore { what: "object" }),
            _ => Ok(()),
        }
    }

    /// The lowered value, if it belongs to this store.
    pub(crate) fn lower(&self, store: &mut StoreOpaque) -> Result<u64, Error> {
        self.check_store(store)?;
        match &self.0 {
            Kind::I31(value) => Ok(lower_i31(value.0)),
            Kind::Object(handle) => Ok(handle.address as u64),
            Kind::Host(value) => store.lower_extern(Some(value)),
        }
    }
}

impl From<I31> for AnyRef {
    fn from(value: I31) -> Self {
        Self(Kind::I31(value))
    }
}

impl From<StructRef> for AnyRef {
    fn from(value: StructRef) -> Self {
        Self(Kind::Object(value.0))
    }
}

impl From<ArrayRef> for AnyRef {
    fn from(value: ArrayRef) -> Self {
        Self(Kind::Object(value.0))
    }
}

/// A structure. A clone refers to the same structure. It must be used with the store that it
/// belongs to; otherwise its methods panic.
#[derive(Clone, Debug)]
pub struct StructRef(ObjectHandle);

impl StructRef {
    /// A structure with these fields.
    ///
    /// # Errors
    /// [`Error::ValueCount`], [`Error::ValueType`] and [`Error::WrongStore`] concern the fields;
    /// [`Error::InvalidType`]: the store's engine does not know the type; [`Error::StoreLimit`].
    pub fn new(mut store: impl AsContextMut, ty: &StructType, fields: &[Val]) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (expected, found) = (ty.fields().len(), fields.len());
        if expected != found {
            return Err(Error::ValueCount { what: "fields", expected, found });
        }
        let is =
            |known: &KnownType| matches!(known, KnownType::Struct(known) if known.fields() == ty.fields());
        let known = store.keep_type(store.engine.use_object_type(ty.id(), is)?);
        let object = store.new_struct(&known, Room::of(collect::From::Host))?;
        // From here on nothing collects.
        for ((value, ty), field) in fields.iter().zip(ty.fields()).zip(&struct_layout(ty).fields) {
            let word = store.lower(ty.storage().unpacked(), value)?;
            // SAFETY: the structure has this field.
            unsafe { object.write(field.offset as usize, field.storage.bytes(), word) };
        }
        Ok(Self(store.root_object(object)))
    }

    /// The structure's type.
    pub fn ty(&self, store: impl AsContext) -> StructType {
        let store = &store.as_context().0.opaque;
        self.type_in(store)
    }

    /// The value of the field with this index, or `None` if there is no such field. A packed field
    /// is zero-extended.
    pub fn field(&self, mut store: impl AsContextMut, index: usize) -> Option<Val> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (object, ty) = (self.0.object(store), self.type_in(store));
        let Field { offset, storage } = *struct_layout(&ty).fields.get(index)?;
        // SAFETY: the structure has this field.
        let word = unsafe { object.read(offset as usize, storage.bytes()) };
        Some(store.lift(ty.fields()[index].storage().unpacked(), word))
    }

    /// Sets the field with this index. A packed field keeps the lowest bits of the value.
    ///
    /// # Errors
    /// [`Error::ConstantField`]; [`Error::OutOfBounds`] if there is no such field;
    /// [`Error::ValueType`] and [`Error::WrongStore`] concern the value.
    pub fn set_field(&self, mut store: impl AsContextMut, index: usize, value: &Val) -> Result<(), Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (object, ty) = (self.0.object(store), self.type_in(store));
        let Some(Field { offset, .. }) = struct_layout(&ty).fields.get(index).copied() else {
            return Err(beyond("structure", index as u64, ty.fields().len() as u64));
        };
        write(store, object, offset as usize, &ty.fields()[index], value)
    }

    fn type_in(&self, store: &StoreOpaque) -> StructType {
        store.struct_type(self.0.object(store)).expect("a handle of a structure")
    }
}

/// An array. A clone refers to the same array. It must be used with the store that it belongs to;
/// otherwise its methods panic.
#[derive(Clone, Debug)]
pub struct ArrayRef(ObjectHandle);

impl ArrayRef {
    /// An array of `length` elements, all of which are `value`.
    ///
    /// # Errors
    /// [`Error::ValueType`] and [`Error::WrongStore`] concern the value; [`Error::InvalidType`]:
    /// the store's engine does not know the type; [`Error::StoreLimit`].
    pub fn new(
        mut store: impl AsContextMut,
        ty: &ArrayType,
        value: &Val,
        length: u32,
    ) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let array = Self::allocate(store, ty, length)?;
        let word = store.lower(ty.element().storage().unpacked(), value)?;
        // SAFETY: the array has these elements.
        unsafe { array.fill(0, length, storage(&ty.element()).bytes(), word) };
        Ok(Self(store.root_object(array)))
    }

    /// An array of these values.
    ///
    /// # Errors
    /// As for [`ArrayRef::new`].
    pub fn from_elements(
        mut store: impl AsContextMut,
        ty: &ArrayType,
        elements: &[Val],
    ) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let length = u32::try_from(elements.len());
        let length = length.map_err(|_| store.no_room())?;
        let array = Self::allocate(store, ty, length)?;
        for (index, value) in (0..).zip(elements) {
            let word = store.lower(ty.element().storage().unpacked(), value)?;
            // SAFETY: the array has this element.
            unsafe { array.fill(index, 1, storage(&ty.element()).bytes(), word) };
        }
        Ok(Self(store.root_object(array)))
    }

    /// An array of zeros. Nothing may collect before it is rooted.
    fn allocate(store: &mut StoreOpaque, ty: &ArrayType, length: u32) -> Result<Object, Error> {
        let is =
            |known: &KnownType| matches!(known, KnownType::Array(known) if known.element() == ty.element());
        let known = store.keep_type(store.engine.use_object_type(ty.id(), is)?);
        store.new_array(&known, length, Room::of(collect::From::Host))
    }

    /// The array's type.
    pub fn ty(&self, store: impl AsContext) -> ArrayType {
        self.type_in(&store.as_context().0.opaque)
    }

    /// The number of elements.
    pub fn len(&self, store: impl AsContext) -> u32 {
        self.0.object(&store.as_context().0.opaque).length()
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self, store: impl AsContext) -> bool {
        self.len(store) == 0
    }

    /// The element at an index, or `None` if it is out of bounds. A packed element is
    /// zero-extended.
    pub fn get(&self, mut store: impl AsContextMut, index: u32) -> Option<Val> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (object, ty) = (self.0.object(store), self.type_in(store));
        if index >= object.length() {
            return None;
        }
        // SAFETY: the array has this element.
        let word = unsafe { object.read(element_offset(&ty, index), storage(&ty.element()).bytes()) };
        Some(store.lift(ty.element().storage().unpacked(), word))
    }

    /// Sets the element at an index. A packed element keeps the lowest bits of the value.
    ///
    /// # Errors
    /// [`Error::ConstantField`]; [`Error::OutOfBounds`] if there is no such element;
    /// [`Error::ValueType`] and [`Error::WrongStore`] concern the value.
    pub fn set(&self, mut store: impl AsContextMut, index: u32, value: &Val) -> Result<(), Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        let (object, ty) = (self.0.object(store), self.type_in(store));
        if index >= object.length() {
            return Err(beyond("array", index.into(), object.length().into()));
        }
        write(store, object, element_offset(&ty, index), &ty.element(), value)
    }

    /// The object.
    #[track_caller]
    pub(super) fn object(&self, store: &StoreOpaque) -> Object {
        self.0.object(store)
    }

    pub(super) fn type_in(&self, store: &StoreOpaque) -> ArrayType {
        store.array_type(self.0.object(store)).expect("a handle of an array")
    }
}

/// Writes a field or element.
fn write(
    store: &mut StoreOpaque,
    object: Object,
    offset: usize,
    field: &FieldType,
    value: &Val,
) -> Result<(), Error> {
    let word = store.lower(field.storage().unpacked(), value)?;
    if field.mutability() == Mutability::Const {
        return Err(Error::ConstantField);
    }
    // SAFETY: the caller has found the field in the object's type.
    unsafe { object.write(offset, storage(field).bytes(), word) };
    Ok(())
}

/// The error of an access to a field or element that does not exist.
fn beyond(of: &'static str, offset: u64, size: u64) -> Error {
    Error::OutOfBounds { of, offset, length: 1, size }
}

fn element_offset(ty: &ArrayType, index: u32) -> usize {
    ARRAY_ELEMENTS as usize + index as usize * storage(&ty.element()).bytes() as usize
}

impl StoreOpaque {
    /// Keeps an object type in use as long as the store exists.
    fn keep_type(&mut self, ty: TypeId) -> Arc<ObjectType> {
        let object_type = ty.object_type().clone();
        self.object_types.entry(ty.get()).or_insert(ty);
        object_type
    }

    /// A handle of an object, which must be alive.
    fn root_object(&mut self, object: Object) -> ObjectHandle {
        let root = Arc::new(());
        self.object_roots.add(object.address(), &root);
        ObjectHandle { store: self.id, address: object.address(), _root: root }
    }

    /// The value of type `any` with this representation.
    pub(crate) fn lift_any(&mut self, word: u64) -> Option<AnyRef> {
        Some(AnyRef(match Referent::of(word) {
            Referent::Null => return None,
            Referent::I31(value) => Kind::I31(I31(value)),
            Referent::Host(word) => Kind::Host(self.extern_refs.lift(word)?),
            // SAFETY: compiled code holds references to live objects only.
            Referent::Object(address) => Kind::Object(self.root_object(unsafe { Object::at(address) })),
        }))
    }

    /// The value of type `extern` with this representation.
    pub(crate) fn lift_extern(&mut self, word: u64) -> Option<ExternRef> {
        match Referent::of(word) {
            Referent::Host(word) => self.extern_refs.lift(word),
            _ => self.lift_any(word).map(|any| any.to_extern()),
        }
    }
}
