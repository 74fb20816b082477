//! `wasm_val_t`: values of C code, and their conversion to and from the engine's.

use std::rc::Rc;

use wasm_jit::{AnyRef, Error, HeapType, RefType, Val, ValType};

use crate::object::{Kind, Object};
use crate::store::SharedStore;
use crate::types::kind;
use crate::vector::{Element, Vector, export_vectors, store};

/// `wasm_val_t`. Owns its reference.
#[repr(C)]
pub(crate) struct Value {
    kind: u8,
    of: Payload,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Payload {
    i32: i32,
    i64: i64,
    /// The bits of an `f32`.
    f32: u32,
    /// The bits of an `f64`.
    f64: u64,
    reference: *mut Object,
}

// SAFETY: an `i32` of zero.
unsafe impl Element for Value {}

impl Value {
    fn new(kind: u8, of: Payload) -> Self {
        Self { kind, of }
    }

    pub(crate) fn zero() -> Self {
        Self::new(kind::I32, Payload { i64: 0 })
    }

    /// A value in the form for C code. A vector has no representation there: only its kind is set.
    pub(crate) fn of(store: &Rc<SharedStore>, value: &Val) -> Self {
        let of = match value {
            Val::I32(value) => Payload { i32: *value },
            Val::I64(value) => Payload { i64: *value },
            Val::F32(bits) => Payload { f32: *bits },
            Val::F64(bits) => Payload { f64: *bits },
            Val::V128(_) => Payload { i64: 0 },
            Val::FuncRef(_) | Val::ExternRef(_) | Val::ExnRef(_) | Val::AnyRef(_) => {
                Payload { reference: object(store, value).map_or(std::ptr::null_mut(), Box::into_raw) }
            }
        };
        Self::new(kind::of(value.ty()), of)
    }

    /// Converts the value to the engine's, as this type.
    ///
    /// # Errors
    /// [`Error::Host`], which describes the problem. The engine checks whether a reference is of
    /// exactly this type.
    pub(crate) fn to_engine(&self, store: &Rc<SharedStore>, ty: ValType) -> Result<Val, Error> {
        if let (ValType::Ref(ty), true) = (ty, kind::is_reference(self.kind)) {
            return reference(store, self.reference(), ty);
        }
        if self.kind != kind::of(ty) {
            return Err(Error::host(format!(
                "expected a value of type {ty}, found one of kind {}",
                self.kind
            )));
        }
        // SAFETY: C code has stored the value that the kind names.
        unsafe {
            Ok(match ty {
                ValType::I32 => Val::I32(self.of.i32),
                ValType::I64 => Val::I64(self.of.i64),
                ValType::F32 => Val::F32(self.of.f32),
                ValType::F64 => Val::F64(self.of.f64),
                ValType::V128 | ValType::Ref(_) => return Err(no_vectors()),
            })
        }
    }

    /// The object of a reference that is not null.
    fn reference(&self) -> Option<&Object> {
        if !kind::is_reference(self.kind) {
            return None;
        }
        // SAFETY: the kind says that this is a reference, whose object the value owns.
        unsafe { self.of.reference.as_ref() }
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        let of = match kind::is_reference(self.kind) {
            true => Payload {
                reference: self
                    .reference()
                    .map_or(std::ptr::null_mut(), |object| Box::into_raw(Box::new(object.clone()))),
            },
            false => self.of,
        };
        Self::new(self.kind, of)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if self.reference().is_some() {
            // SAFETY: the value owns the object, which was a box; this is the end of both.
            drop(unsafe { Box::from_raw(self.of.reference) });
        }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The reason why functions and globals of vectors are refused.
pub(crate) fn no_vectors() -> Error {
    Error::host("wasm.h has no values of type v128")
}

/// Converts a reference of C code to a value of this type.
///
/// # Errors
/// As [`Value::to_engine`].
pub(crate) fn reference(store: &Rc<SharedStore>, object: Option<&Object>, ty: RefType) -> Result<Val, Error> {
    let Some(object) = object else { return Ok(Val::null_ref(ty)) };
    if !Rc::ptr_eq(store, &object.store) {
        return Err(Error::WrongStore { what: "reference" });
    }
    Ok(match (ty.heap_type().top(), &object.kind) {
        (HeapType::Func, Kind::Func(func)) => (*func).into(),
        (HeapType::Extern, other) => other.to_extern().into(),
        (HeapType::Exn, Kind::Exception(exception)) => exception.value.clone().into(),
        (HeapType::Any, other) => AnyRef::from_extern(other.to_extern()).into(),
        _ => return Err(Error::host(format!("expected a reference of type {ty}, found another object"))),
    })
}

/// The object of a reference; `None` for null, and for values that are not references.
pub(crate) fn object(store: &Rc<SharedStore>, value: &Val) -> Option<Box<Object>> {
    let kind = match value {
        Val::FuncRef(func) => func.map(Kind::Func),
        Val::ExternRef(value) => value.clone().map(Kind::of_extern),
        Val::ExnRef(exception) => exception.clone().map(Kind::exception),
        Val::AnyRef(value) => value.clone().map(Kind::any),
        _ => None,
    };
    kind.map(|kind| Object::new(store, kind))
}

/// Converts values to the engine's, as these types.
///
/// # Errors
/// [`Error::ValueCount`] if the numbers differ, otherwise as [`Value::to_engine`].
pub(crate) fn to_engine(
    store: &Rc<SharedStore>,
    values: Option<&Vector<Value>>,
    types: impl ExactSizeIterator<Item = ValType>,
) -> Result<Vec<Val>, Error> {
    let values = values.map_or(&[][..], Vector::elements);
    if values.len() != types.len() {
        return Err(Error::ValueCount { what: "arguments", expected: types.len(), found: values.len() });
    }
    values.iter().zip(types).map(|(value, ty)| value.to_engine(store, ty)).collect()
}

export_vectors! {
    "val" crate::value::Value;
}

/// Deletes a value, which becomes the number 0, so that deleting it again has no effect.
#[unsafe(no_mangle)]
extern "C" fn wasm_val_delete(value: Option<&mut Value>) {
    if let Some(value) = value {
        *value = Value::zero();
    }
}

#[unsafe(no_mangle)]
extern "C" fn wasm_val_copy(out: Option<&mut std::mem::MaybeUninit<Value>>, value: Option<&Value>) {
    store(out, value.map_or_else(Value::zero, Value::clone));
}
