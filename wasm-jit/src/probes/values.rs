//! Values of the frame, which probes pass to functions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use wasm_jit_codegen::{Access, Value, Wanted, access};

use super::native::NativeFn;
use super::wasm::WasmFn;
use super::{Location, ProbeError, ValueError};
use crate::code::CodeImage;
use crate::code::probed::{Argument, RequestedKind};
use crate::types::ValType;

/// A value that is passed to the function of a probe.
///
/// To a [native function](super::NativeFn), it is passed as 64 bits. Integers of 32 bits are
/// zero-extended, floats are passed as their bits, and references as the engine represents them; a
/// null reference is 0.
///
/// To a [function of WebAssembly](super::WasmFn), it is passed as the parameter's type. A local or
/// operand must be of this type; an operand must not be a reference. A constant can be of any type:
/// it is the bits of the value, and of a reference 0. The function, the offset and the address are
/// integers of 32 bits (an address modulo 2^32) or 64 bits; [`Bound::Context`] is one of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// A constant.
    Const(u64),
    /// The index of the function, imports included.
    Function,
    /// The offset of the instruction from the start of the function's body; 0 at the entry.
    Offset,
    /// A parameter or local, by its index.
    Local(u32),
    /// An operand, counted from the top of the stack.
    Operand(u32),
    /// The address that the instruction accesses in its memory: the address operand plus the
    /// constant offset. Only before loads, stores and atomic operations. An access beyond the end
    /// of the memory traps after the probe has fired.
    Address,
    /// A number that identifies the running instance among those that exist. It may be reused when
    /// the instance is dropped.
    Context,
}

/// The arguments of a probe's function, one for each of its parameters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Values(Arc<[Bound]>);

impl Values {
    /// The values, in order.
    pub fn as_slice(&self) -> &[Bound] {
        &self.0
    }
}

impl From<&[Bound]> for Values {
    fn from(values: &[Bound]) -> Self {
        Self(values.into())
    }
}

impl<const N: usize> From<[Bound; N]> for Values {
    fn from(values: [Bound; N]) -> Self {
        Self(values.into())
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// What the body of a function says about the values of its probes.
pub(super) struct Body<'a> {
    image: &'a CodeImage,
    function: u32,
    /// Parameters and locals: see [`locals`].
    locals: Option<Vec<(u32, ValType)>>,
    /// By position.
    accesses: Option<HashMap<u32, Access>>,
}

impl<'a> Body<'a> {
    pub(super) fn of(image: &'a CodeImage, function: u32) -> Self {
        Self { image, function, locals: None, accesses: None }
    }

    /// The request for a probe that calls a native function.
    pub(super) fn call(
        &mut self,
        native: NativeFn,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        check_count(native.parameters(), values)?;
        let arguments = values.0.iter().map(|value| self.argument(*value, location, position, None));
        Ok(RequestedKind::Call { callee: native.callee(), arguments: arguments.collect::<Result<_, _>>()? })
    }

    /// The request for a probe that calls a function of WebAssembly.
    pub(super) fn call_wasm(
        &mut self,
        function: &WasmFn,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let parameters = function.parameters();
        check_count(parameters.len(), values)?;
        let arguments = values.0.iter().zip(parameters);
        let arguments =
            arguments.map(|(value, parameter)| self.argument(*value, location, position, Some(*parameter)));
        Ok(RequestedKind::Call { callee: function.callee(), arguments: arguments.collect::<Result<_, _>>()? })
    }

    /// The argument for a parameter, of this type if that matters.
    fn argument(
        &mut self,
        value: Bound,
        location: Location,
        position: u32,
        parameter: Option<ValType>,
    ) -> Result<Argument, ProbeError> {
        let offset = location.offset();
        let error = |reason| ProbeError::Value { value, function: self.function, offset, reason };
        let check = |fits: fn(ValType) -> bool| match parameter {
            Some(parameter) if !fits(parameter) => Err(error(ValueError::Type { parameter })),
            _ => Ok(()),
        };
        let constant = |value: u64| Argument::Known(Value::constant(value));
        let is_integer = |ty| matches!(ty, ValType::I32 | ValType::I64);
        Ok(match value {
            Bound::Const(value) => {
                check(if value == 0 { |_| true } else { |ty| !matches!(ty, ValType::Ref(_)) })?;
                constant(value)
            }
            Bound::Function => {
                check(is_integer)?;
                constant(self.function.into())
            }
            Bound::Offset => {
                check(is_integer)?;
                constant(offset.into())
            }
            Bound::Context => {
                check(|ty| ty == ValType::I64)?;
                Argument::Known(Value::CONTEXT)
            }
            Bound::Operand(depth) => Argument::Of(Wanted::Operand(depth), None),
            Bound::Local(index) => {
                let locals = self.locals.get_or_insert_with(|| locals(self.image, self.function));
                let before = locals.partition_point(|(end, _)| *end <= index);
                let &(_, ty) = locals.get(before).ok_or_else(|| error(ValueError::NoLocal))?;
                if let Some(parameter) = parameter.filter(|parameter| *parameter != ty) {
                    return Err(error(ValueError::Type { parameter }));
                }
                Argument::Of(Wanted::Local(index), None)
            }
            Bound::Address => {
                check(is_integer)?;
                let of_body = || accesses(self.image, self.function);
                let access = self.accesses.get_or_insert_with(of_body).get(&position);
                let access = access.ok_or_else(|| error(ValueError::NoAccess))?;
                Argument::Of(Wanted::Operand(access.operand), Some(access.offset))
            }
        })
    }
}

fn check_count(parameters: usize, values: &Values) -> Result<(), ProbeError> {
    let values = values.0.len();
    if parameters == values { Ok(()) } else { Err(ProbeError::Parameters { parameters, values }) }
}

/// The types of a function's parameters and locals, each with the index after the last one of them.
fn locals(image: &CodeImage, function: u32) -> Vec<(u32, ValType)> {
    let parameters = image.module.function_type(function).params().iter().map(|ty| (1, *ty));
    let declared = image.body(function).get_locals_reader().into_iter().flatten().flatten();
    let mut end = 0;
    let range = |(count, ty)| {
        end += count;
        (end, ValType::of(ty))
    };
    parameters.chain(declared).map(range).collect()
}

/// The instructions of a function that access a memory, by their positions.
fn accesses(image: &CodeImage, function: u32) -> HashMap<u32, Access> {
    let body = image.body(function);
    let operators = body.get_operators_reader().into_iter();
    let operators = operators.flat_map(|reader| reader.into_iter_with_offsets()).flatten();
    operators.filter_map(|(operator, at)| Some((at as u32, access(&operator)?))).collect()
}
