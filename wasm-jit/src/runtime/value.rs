//! [`Val`], a value whose type is known at run time, and its representation in compiled code.
//!
//! In compiled code every value is eight bytes: an `i32` or `f32` in the lower four, zero-extended;
//! a reference as its kind says (`references.rs`, `exception.rs`, `objects.rs`), null as 0. A
//! `v128` is 16 bytes. *Lowering* a value converts it to this representation, *lifting* is the
//! reverse.

use std::ptr::NonNull;

use super::any_ref::{AnyRef, ArrayRef, I31, StructRef};
use super::func::Func;
use super::references::ExternRef;
use super::store::{AsContext, StoreOpaque};
use crate::error::{Error, Mismatch};
use crate::exn_ref::ExnRef;
use crate::types::{FuncTypeId, HeapType, RefType, ValType};
use crate::vmctx::VmFuncRef;

/// A WebAssembly value. Floats are represented by their bits, so that they are never changed.
#[derive(Clone, Debug)]
pub enum Val {
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// The bits of a 32-bit float.
    F32(u32),
    /// The bits of a 64-bit float.
    F64(u64),
    /// The bits of a 128-bit vector; lane 0 is in the lowest bits.
    V128(u128),
    /// A function, or null.
    FuncRef(Option<Func>),
    /// A host value, or null.
    ExternRef(Option<ExternRef>),
    /// An exception, or null.
    ExnRef(Option<ExnRef>),
    /// A structure, an array, an `i31`, a host value, or null.
    AnyRef(Option<AnyRef>),
}

macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident $unwrap:ident $type:ty = $pattern:pat => $value:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self) -> Option<$type> {
                if let $pattern = self { Some($value) } else { None }
            }

            /// The same value without the `Option`.
            ///
            /// # Panics
            /// If the value is of another type.
            #[track_caller]
            pub fn $unwrap(&self) -> $type {
                match self.$name() {
                    Some(value) => value,
                    None => panic!("the value is of type {}", self.ty()),
                }
            }
        )*
    };
}

impl Val {
    /// The value's type: for a reference, the most general type of its kind.
    pub fn ty(&self) -> ValType {
        match self {
            Self::I32(_) => ValType::I32,
            Self::I64(_) => ValType::I64,
            Self::F32(_) => ValType::F32,
            Self::F64(_) => ValType::F64,
            Self::V128(_) => ValType::V128,
            Self::FuncRef(_) => ValType::FUNCREF,
            Self::ExternRef(_) => ValType::EXTERNREF,
            Self::ExnRef(_) => ValType::EXNREF,
            Self::AnyRef(_) => ValType::ANYREF,
        }
    }

    /// Zero, or null. (Null is not a value of a non-nullable reference type.)
    pub fn default_for_ty(ty: ValType) -> Self {
        match ty {
            ValType::I32 => Self::I32(0),
            ValType::I64 => Self::I64(0),
            ValType::F32 => Self::F32(0),
            ValType::F64 => Self::F64(0),
            ValType::V128 => Self::V128(0),
            ValType::Ref(ty) => Self::null_ref(ty),
        }
    }

    /// The null reference of the kind of values that this type has.
    pub fn null_ref(ty: RefType) -> Self {
        match ty.heap_type().top() {
            HeapType::Func => Self::FuncRef(None),
            HeapType::Extern => Self::ExternRef(None),
            HeapType::Exn => Self::ExnRef(None),
            _ => Self::AnyRef(None),
        }
    }

    /// The value of this type with this representation; an error for a non-null reference, which
    /// only its store can lift.
    pub(crate) fn without_store(ty: ValType, bits: u128) -> Result<Self, RefType> {
        Ok(match ty {
            ValType::V128 => Self::V128(bits),
            ValType::I32 => Self::I32(bits as i32),
            ValType::I64 => Self::I64(bits as i64),
            ValType::F32 => Self::F32(bits as u32),
            ValType::F64 => Self::F64(bits as u64),
            ValType::Ref(ty) if bits == 0 => Self::null_ref(ty),
            ValType::Ref(ty) => return Err(ty),
        })
    }

    /// Whether the value is a null reference.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::FuncRef(None) | Self::ExternRef(None) | Self::ExnRef(None) | Self::AnyRef(None))
    }

    /// Whether the value is of type `ty`: for a reference, the result of `ref.test`. A reference of
    /// another store is of no type.
    pub fn is_of_type(&self, store: impl AsContext, ty: &ValType) -> bool {
        store.as_context().0.opaque.check_type(*ty, self).is_ok()
    }

    accessors! {
        /// The integer, if it is an `i32`.
        i32 unwrap_i32 i32 = Self::I32(value) => *value;
        /// The integer, if it is an `i64`.
        i64 unwrap_i64 i64 = Self::I64(value) => *value;
        /// The number, if it is an `f32`.
        f32 unwrap_f32 f32 = Self::F32(bits) => f32::from_bits(*bits);
        /// The number, if it is an `f64`.
        f64 unwrap_f64 f64 = Self::F64(bits) => f64::from_bits(*bits);
        /// The bits, if it is a `v128`.
        v128 unwrap_v128 u128 = Self::V128(bits) => *bits;
        /// The function or null, if it is a `funcref`.
        func_ref unwrap_func_ref Option<&Func> = Self::FuncRef(func) => func.as_ref();
        /// The host value or null, if it is an `externref`.
        extern_ref unwrap_extern_ref Option<&ExternRef> = Self::ExternRef(reference) => reference.as_ref();
        /// The exception or null, if it is an `exnref`.
        exn_ref unwrap_exn_ref Option<&ExnRef> = Self::ExnRef(exception) => exception.as_ref();
        /// The value or null, if it is an `anyref`.
        any_ref unwrap_any_ref Option<&AnyRef> = Self::AnyRef(value) => value.as_ref();
    }
}

macro_rules! conversions {
    ($($from:ty => $value:ident $val:expr;)*) => {
        $(
            impl From<$from> for Val {
                fn from($value: $from) -> Self {
                    $val
                }
            }
        )*
    };
}

conversions! {
    i32 => value Self::I32(value);
    u32 => value Self::I32(value as i32);
    i64 => value Self::I64(value);
    u64 => value Self::I64(value as i64);
    f32 => value Self::F32(value.to_bits());
    f64 => value Self::F64(value.to_bits());
    u128 => value Self::V128(value);
    Func => value Self::FuncRef(Some(value));
    ExternRef => value Self::ExternRef(Some(value));
    ExnRef => value Self::ExnRef(Some(value));
    AnyRef => value Self::AnyRef(Some(value));
    StructRef => value Self::AnyRef(Some(value.into()));
    ArrayRef => value Self::AnyRef(Some(value.into()));
    I31 => value Self::AnyRef(Some(value.into()));
}

/// Appends the quadwords of a value of this type.
fn push_words(bits: u128, ty: ValType, words: &mut Vec<u64>) {
    words.push(bits as u64);
    if ty == ValType::V128 {
        words.push((bits >> 64) as u64);
    }
}

/// A value of this type in compiled code.
///
/// # Safety
/// There are [`words`](ValType::words) quadwords of such a value.
pub(crate) unsafe fn read_words(ty: ValType, words: *const u64) -> u128 {
    // SAFETY: the caller's obligation.
    unsafe {
        let low = u128::from(words.read());
        if ty == ValType::V128 { low | u128::from(words.add(1).read()) << 64 } else { low }
    }
}

/// Writes a value of this type.
///
/// # Safety
/// There is room for [`words`](ValType::words) quadwords.
pub(crate) unsafe fn write_words(ty: ValType, bits: u128, words: *mut u64) {
    // SAFETY: the caller's obligation.
    unsafe {
        words.write(bits as u64);
        if ty == ValType::V128 {
            words.add(1).write((bits >> 64) as u64);
        }
    }
}

impl StoreOpaque {
    /// The representation of a value in compiled code; it must be of this type and belong to this
    /// store. Never runs the collector.
    pub(crate) fn lower(&mut self, ty: ValType, value: &Val) -> Result<u128, Error> {
        if value.ty() != ty {
            self.check_type(ty, value)?;
        }
        let word = match value {
            Val::V128(bits) => return Ok(*bits),
            Val::I32(value) => u64::from(*value as u32),
            Val::I64(value) => *value as u64,
            Val::F32(bits) => u64::from(*bits),
            Val::F64(bits) => *bits,
            Val::FuncRef(func) => self.lower_func(func.as_ref())?,
            Val::ExternRef(reference) => self.lower_extern(reference.as_ref())?,
            Val::ExnRef(exception) => exception.as_ref().map_or(Ok(0), |exception| exception.lower(self))?,
            Val::AnyRef(value) => value.as_ref().map_or(Ok(0), |value| value.lower(self))?,
        };
        Ok(word.into())
    }

    /// Refuses a value that is not of this type.
    pub(crate) fn check_type(&self, expected: ValType, value: &Val) -> Result<(), Error> {
        let concrete = |func: &Func| -> Result<HeapType, Error> {
            // A function of another store is refused here.
            func.lower(self)?;
            Ok(HeapType::ConcreteFunc(FuncTypeId(func.type_id(self))))
        };
        let found = match value {
            Val::FuncRef(Some(func)) => ValType::Ref(RefType::new(false, concrete(func)?)),
            Val::ExternRef(Some(_)) => ValType::Ref(RefType::new(false, HeapType::Extern)),
            Val::ExnRef(Some(_)) => ValType::Ref(RefType::new(false, HeapType::Exn)),
            Val::AnyRef(Some(value)) => {
                value.check_store(self)?;
                ValType::Ref(RefType::new(false, value.type_in(self)))
            }
            other => other.ty(),
        };
        let fits = match (expected, found) {
            // Null is a value of all nullable types of its kind.
            (ValType::Ref(expected), ValType::Ref(found)) if value.is_null() => {
                expected.is_nullable() && expected.heap_type().top() == found.heap_type()
            }
            _ => self.engine.is_subtype(&found, &expected),
        };
        if fits { Ok(()) } else { Err(Error::ValueType(Mismatch { expected, found })) }
    }

    pub(crate) fn lower_func(&self, func: Option<&Func>) -> Result<u64, Error> {
        func.map_or(Ok(0), |func| func.lower(self))
    }

    pub(crate) fn lower_extern(&mut self, reference: Option<&ExternRef>) -> Result<u64, Error> {
        let Some(reference) = reference else { return Ok(0) };
        match reference.data().downcast_ref::<AnyRef>() {
            Some(any) => any.lower(self),
            None => Ok(self.extern_refs.lifted_last(reference).unwrap_or_else(|| {
                self.heap.add_external(reference.size());
                self.extern_refs.lower(reference.clone())
            })),
        }
    }

    /// Appends the representations of these values.
    pub(crate) fn lower_all(
        &mut self,
        what: &'static str,
        values: &[Val],
        types: impl ExactSizeIterator<Item = ValType>,
        raw: &mut Vec<u64>,
    ) -> Result<(), Error> {
        if values.len() != types.len() {
            return Err(Error::ValueCount { what, expected: types.len(), found: values.len() });
        }
        for (value, ty) in values.iter().zip(types) {
            push_words(self.lower(ty, value)?, ty, raw);
        }
        Ok(())
    }

    /// The value of this type with this representation.
    pub(crate) fn lift(&mut self, ty: ValType, bits: u128) -> Val {
        Val::without_store(ty, bits).unwrap_or_else(|reference| {
            let raw = bits as u64;
            match reference.heap_type().top() {
                HeapType::Func => Val::FuncRef(self.lift_func(raw)),
                HeapType::Extern => Val::ExternRef(self.lift_extern(raw)),
                HeapType::Exn => Val::ExnRef(Some(self.root_exception(raw as usize))),
                _ => Val::AnyRef(self.lift_any(raw)),
            }
        })
    }

    pub(crate) fn lift_func(&self, raw: u64) -> Option<Func> {
        NonNull::new(raw as *mut VmFuncRef).map(|func| Func::at(self, func))
    }
}
