//! Functions with Rust types: [`TypedFunc`], and closures as host functions.

use std::marker::PhantomData;
use std::sync::Arc;

use super::any_ref::AnyRef;
use super::caller::Caller;
use super::collect;
use super::func::Func;
use super::host::{HostCall, HostFunc};
use super::references::ExternRef;
use super::store::{AsContextMut, StoreContextMut};
use super::value::{read_words, write_words};
use crate::error::Error;
use crate::exn_ref::ExnRef;
use crate::types::{HeapType, RefType, ValType};

/// The quadwords of 16 parameters or results, the maximum.
const MAX_WORDS: usize = 32;

/// A Rust type that represents a WebAssembly type.
///
/// # Safety
/// `lower` returns a value of this type.
pub unsafe trait WasmTy: Sized + 'static {
    /// The WebAssembly type of the values.
    #[doc(hidden)]
    const TYPE: ValType;

    /// The value in the representation of compiled code.
    #[doc(hidden)]
    fn lower<T: 'static>(self, store: &mut StoreContextMut<'_, T>) -> Result<u128, Error>;

    /// The value of this type with this representation in compiled code.
    ///
    /// # Safety
    /// `raw` is a value of this type in compiled code of this store, or was one and no collection
    /// has run since.
    #[doc(hidden)]
    unsafe fn lift<T: 'static>(raw: u128, store: &mut StoreContextMut<'_, T>) -> Self;
}

macro_rules! numbers {
    ($($ty:ty: $val:ident, $value:ident => $raw:expr, $back:ident => $lifted:expr;)*) => {
        $(
            // SAFETY: the types have the same numbers.
            unsafe impl WasmTy for $ty {
                const TYPE: ValType = ValType::$val;

                fn lower<T: 'static>(self, _: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
                    let $value = self;
                    Ok(u128::from($raw))
                }

                unsafe fn lift<T: 'static>(raw: u128, _: &mut StoreContextMut<'_, T>) -> Self {
                    let $back = raw as u64;
                    $lifted
                }
            }
        )*
    };
}

numbers! {
    i32: I32, value => u64::from(value as u32), raw => raw as i32;
    u32: I32, value => u64::from(value), raw => raw as u32;
    i64: I64, value => value as u64, raw => raw as i64;
    u64: I64, value => value, raw => raw;
    f32: F32, value => u64::from(value.to_bits()), raw => f32::from_bits(raw as u32);
    f64: F64, value => value.to_bits(), raw => f64::from_bits(raw);
}

/// The bits of a `v128`; lane 0 is in the lowest ones.
// SAFETY: the types have the same numbers.
unsafe impl WasmTy for u128 {
    const TYPE: ValType = ValType::V128;

    fn lower<T: 'static>(self, _: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
        Ok(self)
    }

    unsafe fn lift<T: 'static>(raw: u128, _: &mut StoreContextMut<'_, T>) -> Self {
        raw
    }
}

/// The next value of this type; moves on to the one after it.
///
/// # Safety
/// There is such a value.
unsafe fn next<A: WasmTy>(values: &mut *const u64) -> u128 {
    // SAFETY: the caller's obligation.
    let raw = unsafe { read_words(A::TYPE, *values) };
    *values = values.wrapping_add(A::TYPE.words());
    raw
}

/// Writes a value of this type, and moves on to the room after it.
///
/// # Safety
/// There is room for it.
unsafe fn put<A: WasmTy>(raw: u128, values: &mut *mut u64) {
    // SAFETY: the caller's obligation.
    unsafe { write_words(A::TYPE, raw, *values) };
    *values = values.wrapping_add(A::TYPE.words());
}

// SAFETY: the store lowers the reference.
unsafe impl WasmTy for Option<Func> {
    const TYPE: ValType = ValType::FUNCREF;

    fn lower<T: 'static>(self, store: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
        store.opaque().lower_func(self.as_ref()).map(u128::from)
    }

    unsafe fn lift<T: 'static>(raw: u128, store: &mut StoreContextMut<'_, T>) -> Self {
        store.opaque().lift_func(raw as u64)
    }
}

// SAFETY: the store lowers the reference.
unsafe impl WasmTy for Option<ExternRef> {
    const TYPE: ValType = ValType::EXTERNREF;

    fn lower<T: 'static>(self, store: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
        store.opaque().lower_extern(self.as_ref()).map(u128::from)
    }

    unsafe fn lift<T: 'static>(raw: u128, store: &mut StoreContextMut<'_, T>) -> Self {
        store.opaque().lift_extern(raw as u64)
    }
}

/// A non-null reference: `(ref extern)`.
// SAFETY: the store lowers the reference, which is not null.
unsafe impl WasmTy for ExternRef {
    const TYPE: ValType = ValType::Ref(RefType::new(false, HeapType::Extern));

    fn lower<T: 'static>(self, store: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
        store.opaque().lower_extern(Some(&self)).map(u128::from)
    }

    unsafe fn lift<T: 'static>(raw: u128, store: &mut StoreContextMut<'_, T>) -> Self {
        store.opaque().lift_extern(raw as u64).expect("a value of a type without null")
    }
}

// SAFETY: the store lowers the reference.
unsafe impl WasmTy for Option<ExnRef> {
    const TYPE: ValType = ValType::EXNREF;

    fn lower<T: 'static>(self, store: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
        self.map_or(Ok(0), |exception| exception.lower(store.opaque())).map(u128::from)
    }

    unsafe fn lift<T: 'static>(raw: u128, store: &mut StoreContextMut<'_, T>) -> Self {
        (raw != 0).then(|| store.opaque().root_exception(raw as usize))
    }
}

// SAFETY: the store lowers the reference.
unsafe impl WasmTy for Option<AnyRef> {
    const TYPE: ValType = ValType::ANYREF;

    fn lower<T: 'static>(self, store: &mut StoreContextMut<'_, T>) -> Result<u128, Error> {
        self.map_or(Ok(0), |value| value.lower(store.opaque())).map(u128::from)
    }

    unsafe fn lift<T: 'static>(raw: u128, store: &mut StoreContextMut<'_, T>) -> Self {
        store.opaque().lift_any(raw as u64)
    }
}

/// Parameters of a [`TypedFunc`]: one type, or a tuple of up to 16.
///
/// # Safety
/// `lower` writes a value of each of the types, in this order, and there are at most 16.
pub unsafe trait WasmParams {
    /// The types of the parameters.
    #[doc(hidden)]
    fn types() -> Vec<ValType>;

    /// Writes the arguments in the representation of compiled code.
    #[doc(hidden)]
    fn lower<T: 'static>(
        self,
        store: &mut StoreContextMut<'_, T>,
        values: &mut [u64; MAX_WORDS],
    ) -> Result<(), Error>;
}

/// Results of a [`TypedFunc`] or of a host function: none, one type, or a tuple of up to 16.
///
/// # Safety
/// `lower` writes a value of each of the types, in this order, and there are at most 16.
pub unsafe trait WasmResults: Sized {
    /// The types of the results.
    #[doc(hidden)]
    fn types() -> Vec<ValType>;

    /// Reads the results from the representation of compiled code.
    ///
    /// # Safety
    /// The values are of these types, each as required by [`WasmTy::lift`].
    #[doc(hidden)]
    unsafe fn lift<T: 'static>(store: &mut StoreContextMut<'_, T>, values: &[u64; MAX_WORDS]) -> Self;

    /// Writes the results in the representation of compiled code.
    ///
    /// # Safety
    /// There is room for the values of all types.
    #[doc(hidden)]
    unsafe fn lower<T: 'static>(
        self,
        store: &mut StoreContextMut<'_, T>,
        values: *mut u64,
    ) -> Result<(), Error>;
}

/// The return type of a host function: results, or a `Result` of them.
pub trait WasmRet {
    /// The types of the results.
    #[doc(hidden)]
    type Results: WasmResults;

    /// The results, or the error of the function.
    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Results, Error>;
}

impl<R: WasmResults> WasmRet for R {
    type Results = R;

    fn into_result(self) -> Result<R, Error> {
        Ok(self)
    }
}

impl<R: WasmResults> WasmRet for Result<R, Error> {
    type Results = R;

    fn into_result(self) -> Result<R, Error> {
        self
    }
}

/// A closure that can be a host function of a store whose data have type `T`.
///
/// Implemented for closures and functions of up to 16 parameters of types that implement
/// [`WasmTy`], optionally preceded by a [`Caller`].
///
/// # Safety
/// The wrapped closure treats the store as one whose data have type `T`.
pub unsafe trait IntoFunc<T: 'static, P, R>: Send + Sync + 'static {
    /// The wrapped closure.
    #[doc(hidden)]
    fn into_host_func(self) -> HostFunc;
}

// SAFETY: one value of one type.
unsafe impl<A: WasmTy> WasmParams for A {
    fn types() -> Vec<ValType> {
        vec![A::TYPE]
    }

    fn lower<T: 'static>(
        self,
        store: &mut StoreContextMut<'_, T>,
        values: &mut [u64; MAX_WORDS],
    ) -> Result<(), Error> {
        let raw = WasmTy::lower(self, store)?;
        // SAFETY: there is room for 16 values.
        unsafe { put::<A>(raw, &mut values.as_mut_ptr()) };
        Ok(())
    }
}

// SAFETY: one value of one type.
unsafe impl<A: WasmTy> WasmResults for A {
    fn types() -> Vec<ValType> {
        vec![A::TYPE]
    }

    unsafe fn lift<T: 'static>(store: &mut StoreContextMut<'_, T>, values: &[u64; MAX_WORDS]) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { WasmTy::lift(next::<A>(&mut values.as_ptr()), store) }
    }

    unsafe fn lower<T: 'static>(
        self,
        store: &mut StoreContextMut<'_, T>,
        values: *mut u64,
    ) -> Result<(), Error> {
        let raw = WasmTy::lower(self, store)?;
        // SAFETY: the caller's obligation.
        unsafe { put::<A>(raw, &mut { values }) };
        Ok(())
    }
}

macro_rules! tuple {
    ($($A:ident $a:ident)*) => {
        // SAFETY: one value for each type.
        unsafe impl<$($A: WasmTy),*> WasmParams for ($($A,)*) {
            fn types() -> Vec<ValType> {
                vec![$($A::TYPE),*]
            }

            #[allow(unused_variables, unused_mut, unused_assignments, reason = "of the empty tuple")]
            fn lower<T: 'static>(
                self,
                store: &mut StoreContextMut<'_, T>,
                values: &mut [u64; MAX_WORDS],
            ) -> Result<(), Error> {
                let ($($a,)*) = self;
                let mut at = values.as_mut_ptr();
                $(
                    let raw = $a.lower(store)?;
                    // SAFETY: there is room for 16 values.
                    unsafe { put::<$A>(raw, &mut at) };
                )*
                Ok(())
            }
        }

        // SAFETY: one value for each type.
        unsafe impl<$($A: WasmTy),*> WasmResults for ($($A,)*) {
            fn types() -> Vec<ValType> {
                vec![$($A::TYPE),*]
            }

            #[allow(unused_variables, unused_mut, clippy::unused_unit, reason = "of the empty tuple")]
            unsafe fn lift<T: 'static>(store: &mut StoreContextMut<'_, T>, values: &[u64; MAX_WORDS]) -> Self {
                let mut at = values.as_ptr();
                // SAFETY: as above.
                ($(unsafe { $A::lift(next::<$A>(&mut at), store) },)*)
            }

            #[allow(unused_variables, unused_mut, unused_assignments, reason = "of the empty tuple")]
            unsafe fn lower<T: 'static>(
                self,
                store: &mut StoreContextMut<'_, T>,
                values: *mut u64,
            ) -> Result<(), Error> {
                let ($($a,)*) = self;
                let mut at = values;
                $(
                    let raw = $a.lower(store)?;
                    // SAFETY: the caller's obligation.
                    unsafe { put::<$A>(raw, &mut at) };
                )*
                Ok(())
            }
        }

        // SAFETY: the type is passed along.
        unsafe impl<T, F, R, $($A),*> IntoFunc<T, ($($A,)*), R> for F
        where
            T: 'static,
            F: Fn($($A),*) -> R + Send + Sync + 'static,
            R: WasmRet,
            $($A: WasmTy,)*
        {
            fn into_host_func(self) -> HostFunc {
                let with_caller = move |_: Caller<'_, T> $(, $a: $A)*| self($($a),*);
                IntoFunc::<T, (Caller<'_, T>, $($A,)*), R>::into_host_func(with_caller)
            }
        }

        // SAFETY: the closure takes a caller of such a store.
        unsafe impl<T, F, R, $($A),*> IntoFunc<T, (Caller<'_, T>, $($A,)*), R> for F
        where
            T: 'static,
            F: Fn(Caller<'_, T> $(, $A)*) -> R + Send + Sync + 'static,
            R: WasmRet,
            $($A: WasmTy,)*
        {
            #[allow(unused_mut, unused_variables, reason = "without parameters")]
            fn into_host_func(self) -> HostFunc {
                let closure = move |call: HostCall, values: *mut u64| {
                    // SAFETY: the store's data have this type, and the store is lent to this call.
                    let mut caller = unsafe { Caller::<T>::new(call) };
                    // SAFETY: there is a value of its type for each parameter; no collection runs
                    // before all are read.
                    let mut at: *const u64 = values;
                    // SAFETY: as above.
                    $(let $a = unsafe { $A::lift(next::<$A>(&mut at), &mut caller.as_context_mut()) };)*
                    let results = self(caller $(, $a)*).into_result()?;
                    // SAFETY: as above; the closure has returned its borrow.
                    let mut caller = unsafe { Caller::<T>::new(call) };
                    let mut store = caller.as_context_mut();
                    collect::if_due(store.opaque(), collect::From::Host, &[]);
                    // SAFETY: there is room for a value for each result.
                    unsafe { results.lower(&mut store, values) }
                };
                let ty = crate::types::FuncType::new([$($A::TYPE),*], R::Results::types());
                HostFunc { ty, closure: Arc::new(closure) }
            }
        }
    };
}

tuple!();
tuple!(A a);
tuple!(A a B b);
tuple!(A a B b C c);
tuple!(A a B b C c D d);
tuple!(A a B b C c D d E e);
tuple!(A a B b C c D d E e G g);
tuple!(A a B b C c D d E e G g H h);
tuple!(A a B b C c D d E e G g H h I i);
tuple!(A a B b C c D d E e G g H h I i J j);
tuple!(A a B b C c D d E e G g H h I i J j K k);
tuple!(A a B b C c D d E e G g H h I i J j K k L l);
tuple!(A a B b C c D d E e G g H h I i J j K k L l M m);
tuple!(A a B b C c D d E e G g H h I i J j K k L l M m N n);
tuple!(A a B b C c D d E e G g H h I i J j K k L l M m N n O o);
tuple!(A a B b C c D d E e G g H h I i J j K k L l M m N n O o P p);
tuple!(A a B b C c D d E e G g H h I i J j K k L l M m N n O o P p Q q);

/// A function whose type was compared with Rust types when it was looked up, so that calls need no
/// check.
#[derive(Debug)]
pub struct TypedFunc<P, R> {
    func: Func,
    ty: PhantomData<fn(P) -> R>,
}

impl<P, R> Clone for TypedFunc<P, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, R> Copy for TypedFunc<P, R> {}

impl<P: WasmParams, R: WasmResults> TypedFunc<P, R> {
    /// A typed function; the caller has compared the types.
    pub(crate) fn new(func: Func) -> Self {
        Self { func, ty: PhantomData }
    }

    /// The function without Rust types.
    pub fn func(&self) -> &Func {
        &self.func
    }

    /// Calls the function with these arguments, and returns its results.
    ///
    /// # Errors
    /// [`Error::WrongStore`] for an argument of another store; any other error is the reason why
    /// the program stopped.
    ///
    /// # Panics
    /// If the function belongs to another store, and when a host function panics.
    pub fn call(&self, mut store: impl AsContextMut, params: P) -> Result<R, Error> {
        let mut store = store.as_context_mut();
        collect::if_due(store.opaque(), collect::From::Host, &[]);
        let mut values = [0; MAX_WORDS];
        params.lower(&mut store, &mut values)?;
        // SAFETY: the function has these types, of which there are at most `MAX_WORDS`.
        unsafe { self.func.call_raw(store.inner_mut(), values.as_mut_ptr()) }?;
        // SAFETY: they are now the function's results.
        Ok(unsafe { R::lift(&mut store, &values) })
    }
}
