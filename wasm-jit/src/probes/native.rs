//! Probes that call functions of the host, with values of the frame as arguments.

use std::collections::HashMap;
use std::fmt;

use wasm_jit_codegen::{Access, MAX_ARGUMENTS, Value, Wanted, access};
use wasmparser::Operator;

use super::{Callback, Location, Place, ProbeError, ValueError};
use crate::code::CodeImage;
use crate::code::probed::{Argument, RequestedKind};
use crate::runtime::callback::call_back;
pub use crate::runtime::callback::{NO_FUNCTION, OTHER_FUNCTION};

/// A value that is passed to the function of a probe, as 64 bits.
///
/// Integers of 32 bits are zero-extended, floats are passed as their bits, and references as the
/// engine represents them; a null reference is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// A constant.
    Const(u64),
    /// The index of the function, imports included.
    Function,
    /// The offset of the instruction from the start of the function's body; 0 at the entry, the
    /// length of the body at the exit.
    Offset,
    /// A parameter or local, by its index.
    Local(u32),
    /// An operand, counted from the top of the stack.
    Operand(u32),
    /// The address that the instruction accesses in its memory: the address operand plus the
    /// constant offset. Only before loads, stores and atomic operations. An access beyond the end
    /// of the memory traps after the probe has fired.
    Address,
    /// At the [exit](super::Place::Exit) of a function, one of its results, by its index.
    Result(u32),
    /// The function that an indirect call (`call_indirect`, `return_call_indirect`) is about to
    /// call, by its index in the module of the running instance, imports included.
    /// [`OTHER_FUNCTION`] if the module does not know it by an index, [`NO_FUNCTION`] if the table
    /// has none at this index. The call may trap because the function has another type. Only for
    /// [closures](super::Kind::Callback).
    Callee,
    /// A number that identifies the frame among those that the thread has at the time.
    Frame,
    /// A number that identifies the running instance among those that exist. It may be reused when
    /// the instance is dropped.
    Context,
}

/// At most six values.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Values {
    values: [Bound; MAX_ARGUMENTS],
    count: usize,
}

impl Values {
    /// How many values a function can have at most.
    pub const MAX: usize = MAX_ARGUMENTS;

    /// The values, or `None` for more than [`Values::MAX`].
    pub fn new(values: &[Bound]) -> Option<Self> {
        let mut all = [Bound::Const(0); MAX_ARGUMENTS];
        all.get_mut(..values.len())?.copy_from_slice(values);
        Some(Self { values: all, count: values.len() })
    }

    /// The values, in order.
    pub fn as_slice(&self) -> &[Bound] {
        &self.values[..self.count]
    }
}

impl<const N: usize> From<[Bound; N]> for Values {
    /// Does not compile for more than [`Values::MAX`].
    fn from(values: [Bound; N]) -> Self {
        const { assert!(N <= MAX_ARGUMENTS, "at most six values") };
        Self::new(&values).expect("the number is right")
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// A function that probes may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeFn {
    address: usize,
    parameters: usize,
}

impl NativeFn {
    /// A function of at most six parameters of the type `u64`.
    ///
    /// The thread that executes the probe's place calls it in the middle of the program, with no
    /// lock of the engine held. It may make, activate, deactivate and drop probes, including the
    /// one that fires: the probes of this event stay as they were when it began. It may run other
    /// stores. An [interrupt](crate::Store::interrupt_handle) of the store takes effect after it
    /// has returned.
    ///
    /// # Example
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use wasm_jit::probes::{Bound, Kind, Location, NativeFn, Place, ProbeSpec};
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// static LARGEST: AtomicU64 = AtomicU64::new(0);
    ///
    /// extern "C" fn record(value: u64) {
    ///     LARGEST.fetch_max(value, Ordering::Relaxed);
    /// }
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (func $count (export \"count\") (param i32)
    ///     (if (local.get 0) (then (call $count (i32.sub (local.get 0) (i32.const 1)))))))")?;
    /// // SAFETY: the function does not unwind, and is part of the program.
    /// let function = unsafe { NativeFn::new(record as extern "C" fn(u64)) };
    /// let probe = module.probe(ProbeSpec {
    ///     location: Location { function: 0, place: Place::Entry },
    ///     kind: Kind::Native { function, values: [Bound::Local(0)].into() },
    /// })?;
    /// probe.activate()?;
    /// let mut store = Store::new(&engine, ());
    /// let count = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, ()>(&mut store, "count")?;
    /// count.call(&mut store, 7)?;
    /// assert_eq!(LARGEST.load(Ordering::Relaxed), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The caller must make sure that, for every probe with this function:
    /// - the function can be called, with any values, at any time, by any number of threads, from
    ///   the probe's first activation until the module's code is freed: until there is no
    ///   [`Module`](crate::Module), no [`Probe`](super::Probe), no instance of it in a store, and
    ///   no [`WasmBacktrace`](crate::WasmBacktrace) that refers to it. Deactivating or dropping the
    ///   probe is not enough: another thread may be about to call it;
    /// - it returns, and does not unwind;
    /// - it uses at most 128 KiB of the stack;
    /// - it does not access the store whose program runs, or its instances, in any way, except for
    ///   memory that is shared between threads, as other threads access it.
    pub unsafe fn new<F: NativeFunction>(function: F) -> Self {
        Self { address: function.address(), parameters: F::PARAMETERS }
    }
}

/// The types of functions that probes can call: `extern "C" fn(u64, ...)`, safe or unsafe, with at
/// most six parameters.
pub trait NativeFunction: sealed::Address {
    /// How many parameters it has.
    const PARAMETERS: usize;
}

mod sealed {
    pub trait Address: Copy {
        fn address(self) -> usize;
    }
}

macro_rules! native_functions {
    ($($count:literal: $($parameter:ident)*;)*) => {$(
        native_functions! { @one $count, extern "C" fn($($parameter),*) }
        native_functions! { @one $count, unsafe extern "C" fn($($parameter),*) }
    )*};
    (@one $count:literal, $function:ty) => {
        impl sealed::Address for $function {
            fn address(self) -> usize {
                self as *const () as usize
            }
        }
        impl NativeFunction for $function {
            const PARAMETERS: usize = $count;
        }
    };
}

native_functions! {
    0: ;
    1: u64;
    2: u64 u64;
    3: u64 u64 u64;
    4: u64 u64 u64 u64;
    5: u64 u64 u64 u64 u64;
    6: u64 u64 u64 u64 u64 u64;
}

/// What the body of a function says about the values of its probes.
pub(super) struct Body<'a> {
    image: &'a CodeImage,
    function: u32,
    /// Parameters and locals.
    locals: Option<u32>,
    /// By position.
    accesses: Option<HashMap<u32, Access>>,
    /// The tables of indirect calls, by position.
    calls: Option<HashMap<u32, u32>>,
}

impl<'a> Body<'a> {
    pub(super) fn of(image: &'a CodeImage, function: u32) -> Self {
        Self { image, function, locals: None, accesses: None, calls: None }
    }

    /// The request for a probe that calls a function.
    pub(super) fn call(
        &mut self,
        native: NativeFn,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let NativeFn { address, parameters } = native;
        if parameters != values.count {
            return Err(ProbeError::Parameters { parameters, values: values.count });
        }
        let (arguments, callees) = self.arguments(values, location, position)?;
        if !callees.is_empty() {
            let (function, offset) = (self.function, location.offset(self.length()));
            let reason = ValueError::NoCallee;
            return Err(ProbeError::Value { value: Bound::Callee, function, offset, reason });
        }
        Ok(RequestedKind::Call { function: address, arguments })
    }

    /// The request for a probe that calls a closure.
    pub(super) fn call_back(
        &mut self,
        callback: &Callback,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let (arguments, callees) = self.arguments(values, location, position)?;
        let (routine, callback) = (call_back as *const () as usize, callback.clone());
        Ok(RequestedKind::CallBack { routine, callback, arguments, callees: callees.into() })
    }

    fn length(&self) -> u32 {
        self.image.body_range(self.function).len() as u32
    }

    /// Where values come from; and those that are indices of functions in tables, with the tables.
    fn arguments(
        &mut self,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<(Vec<Argument>, Vec<(usize, u32)>), ProbeError> {
        let offset = location.offset(self.length());
        let is_exit = location.place == Place::Exit;
        let mut callees = Vec::new();
        let known = |value: u64| Argument::Known(Value::constant(value));
        let mut arguments = Vec::with_capacity(values.count);
        for &value in values.as_slice() {
            let error = |reason| ProbeError::Value { value, function: self.function, offset, reason };
            arguments.push(match value {
                Bound::Const(value) => known(value),
                Bound::Function => known(self.function.into()),
                Bound::Offset => known(offset.into()),
                Bound::Context => Argument::Known(Value::CONTEXT),
                Bound::Frame => Argument::Known(Value::FRAME),
                Bound::Result(index) => {
                    let results = self.image.module.function_type(self.function).results().len();
                    if !is_exit || index as usize >= results {
                        return Err(error(ValueError::NoResult));
                    }
                    Argument::Of(Wanted::Result(index), 0)
                }
                Bound::Operand(_) | Bound::Local(_) if is_exit => return Err(error(ValueError::AtExit)),
                Bound::Operand(depth) => Argument::Of(Wanted::Operand(depth), 0),
                Bound::Callee => {
                    let tables = || indirect_calls(self.image, self.function);
                    let table = self.calls.get_or_insert_with(tables).get(&position);
                    let table = *table.ok_or_else(|| error(ValueError::NoCallee))?;
                    callees.push((arguments.len(), table));
                    Argument::Of(Wanted::Operand(0), 0)
                }
                Bound::Local(index) => {
                    let count = *self.locals.get_or_insert_with(|| locals(self.image, self.function));
                    if index >= count {
                        return Err(error(ValueError::NoLocal));
                    }
                    Argument::Of(Wanted::Local(index), 0)
                }
                Bound::Address => {
                    let of_body = || accesses(self.image, self.function);
                    let access = self.accesses.get_or_insert_with(of_body).get(&position);
                    let access = access.ok_or_else(|| error(ValueError::NoAccess))?;
                    Argument::Of(Wanted::Operand(access.operand), access.offset)
                }
            });
        }
        Ok((arguments, callees))
    }
}

/// How many parameters and locals a function has.
fn locals(image: &CodeImage, function: u32) -> u32 {
    let parameters = image.module.function_type(function).params().len() as u32;
    let declared = image.body(function).get_locals_reader().into_iter().flatten().flatten();
    parameters + declared.map(|(count, _)| count).sum::<u32>()
}

/// The instructions of a function that access a memory, by their positions.
fn accesses(image: &CodeImage, function: u32) -> HashMap<u32, Access> {
    by_position(image, function, access)
}

/// The tables of the indirect calls of a function, by their positions.
fn indirect_calls(image: &CodeImage, function: u32) -> HashMap<u32, u32> {
    by_position(image, function, |operator| match operator {
        Operator::CallIndirect { table_index, .. } | Operator::ReturnCallIndirect { table_index, .. } => {
            Some(*table_index)
        }
        _ => None,
    })
}

/// What `of` says about the instructions of a function, by their positions.
fn by_position<T>(
    image: &CodeImage,
    function: u32,
    of: impl Fn(&Operator<'_>) -> Option<T>,
) -> HashMap<u32, T> {
    let body = image.body(function);
    let operators = body.get_operators_reader().into_iter();
    let operators = operators.flat_map(|reader| reader.into_iter_with_offsets()).flatten();
    operators.filter_map(|(operator, at)| Some((at as u32, of(&operator)?))).collect()
}
