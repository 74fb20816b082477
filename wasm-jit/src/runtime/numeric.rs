//! [`NumericFunc`]: functions whose parameters and results are numbers, called without conversions.

use super::func::Func;
use super::store::{AsContext, AsContextMut};
use crate::error::{Error, Mismatch};
use crate::types::{FuncType, ValType};

/// A function whose parameters and results are integers and floats, called with the bits of its
/// arguments.
///
/// For callers that get functions of many types at run time and call them often: [`Func::call`]
/// allocates and compares types, [`TypedFunc`](crate::TypedFunc) needs the types when the caller is
/// compiled.
///
/// # Example
/// ```
/// use wasm_jit::{Engine, Instance, Module, NumericFunc, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (func (export \"add\") (param i64 i32) (result i64)
///     (i64.add (local.get 0) (i64.extend_i32_u (local.get 1)))))")?;
/// let mut store = Store::new(&engine, ());
/// let add = Instance::new(&mut store, &module, &[])?.get_func(&store, "add").expect("it is exported");
/// let add = NumericFunc::new(&store, add)?;
/// let mut values = [40, 2];
/// add.call(&mut store, &mut values)?;
/// assert_eq!(values[0], 42);
/// # Ok::<(), wasm_jit::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NumericFunc {
    func: Func,
    /// The larger of the numbers of parameters and results.
    words: usize,
}

impl NumericFunc {
    /// The function, if it has neither vectors nor references as parameters or results.
    ///
    /// # Errors
    /// [`Error::FuncType`] if the function has vectors or references. `expected` then lists the
    /// numbers among its types.
    ///
    /// # Panics
    /// If the function belongs to another store.
    pub fn new(store: impl AsContext, func: Func) -> Result<Self, Error> {
        let found = func.ty(store);
        let is_number =
            |ty: &ValType| matches!(ty, ValType::I32 | ValType::I64 | ValType::F32 | ValType::F64);
        if found.params().chain(found.results()).all(|ty| is_number(&ty)) {
            return Ok(Self { func, words: found.value_words() });
        }
        let expected = FuncType::new(found.params().filter(is_number), found.results().filter(is_number));
        Err(Error::FuncType(Box::new(Mismatch { expected, found })))
    }

    /// Calls the function. The first of the values are the arguments, and are replaced by the
    /// results: a 32-bit integer or float is in the lower half, and the upper half of such an
    /// argument is ignored.
    ///
    /// # Errors
    /// [`Error::ValueCount`] if there are fewer values than parameters or results. Any other error
    /// is the reason why the program stopped.
    ///
    /// # Panics
    /// If the function belongs to another store, and when a host function panics.
    pub fn call(&self, mut store: impl AsContextMut, values: &mut [u64]) -> Result<(), Error> {
        if values.len() < self.words {
            return Err(Error::ValueCount { what: "values", expected: self.words, found: values.len() });
        }
        // SAFETY: there are enough values, and any bits are values of numbers.
        unsafe { self.func.call_raw(store.as_context_mut().into_inner(), values.as_mut_ptr()) }
    }
}
