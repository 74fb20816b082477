//! Values of the frame that probes pass to functions.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use wasm_jit_codegen::Lane;
use wasm_jit_codegen::{Access, Callee, Ty, Value, Wanted, access};
use wasmparser::Operator;

use super::wasm::WasmFn;
use super::{Callback, Kind, Location, Place, ProbeError, Recorder, ValueError};
use crate::code::CodeImage;
use crate::code::probed::{Argument, CalleeSource, RequestedKind, Use};
use crate::runtime::callback::call_back;
pub use crate::runtime::callback::{NO_FUNCTION, OTHER_FUNCTION};
use crate::types::{RefType, ValType};

/// A value that is passed to a probe function, or recorded.
///
/// [Native functions](super::NativeFn), [closures](super::Callback) and [records](super::Recorder)
/// get it as 64 bits. 32-bit integers are zero-extended, floats are passed as their bits, and
/// references as the engine represents them; a null reference is 0. Only single lanes of vectors
/// can be passed.
///
/// A [WebAssembly function](super::WasmFn) gets it as the parameter's type. A local or operand must
/// be of this type; an operand must not be a reference, except for [`Bound::Reference`], which is a
/// 64-bit integer. A constant can be of any type: it is the bits of the value (for a vector, the
/// lower half, and the rest is 0; for a reference, 0). The function, the offset and the address are
/// 32-bit integers (an address modulo 2^32) or 64-bit integers; [`Bound::Context`],
/// [`Bound::Instance`], [`Bound::Frame`] and [`Bound::ReturnAddress`] are 64-bit integers.
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
    /// An operand that is a reference, counted from the top of the stack, as a 64-bit number, which
    /// is 0 if and only if the reference is null.
    Reference(u32),
    /// A lane of a parameter or local that is a vector, by the local's index, as a 64-bit integer.
    LocalLane(u32, Lane),
    /// A lane of an operand that is a vector, counted from the top of the stack, as a 64-bit
    /// integer.
    OperandLane(u32, Lane),
    /// At the [exit](super::Place::Exit) of a function, a lane of a result that is a vector, by the
    /// result's index, as a 64-bit integer.
    ResultLane(u32, Lane),
    /// The address that the instruction accesses in its memory: the address operand plus the
    /// constant offset, modulo 2^64 (in a 64-bit memory, a sum beyond that traps). Only for loads,
    /// stores and atomic operations. An access beyond the end of the memory traps after the probe
    /// has fired.
    Address,
    /// At the [exit](super::Place::Exit) of a function, one of its results, by its index.
    Result(u32),
    /// The function that an indirect call (`call_indirect`, `call_ref`, and their tail calls) is
    /// about to call, by its index in the module of the running instance, imports included.
    /// [`OTHER_FUNCTION`] if the function has no index in the module, [`NO_FUNCTION`] if the table
    /// has no function at the index, or the reference is null. A `call_indirect` may trap because
    /// the function has another type, which [`Called`](super::Called) tells. Only for
    /// [closures](super::Kind::Callback).
    Callee,
    /// A number that identifies the frame among those that the thread has at the time.
    Frame,
    /// A number that identifies the running instance among those that exist. It may be reused when
    /// the instance is dropped.
    Context,
    /// The identity of the running instance
    /// ([`InstanceId::of_value`](super::InstanceId::of_value)).
    Instance,
    /// The return address of the function: the address in the code at which its caller continues.
    /// For a caller in the module, [`Module::function_at`](crate::Module::function_at) gives the
    /// function. After a tail call by another instance, it is an address in the engine, not in a
    /// function.
    ReturnAddress,
}

/// The arguments of a probe function, one for each of its parameters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Values(Arc<[Bound]>);

impl Values {
    /// The values in the order of the parameters.
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

/// The largest number of values of a closure: they are on the stack, whose limit is not checked.
const MAX_VALUES: usize = 1000;

/// What a function accepts for a parameter.
#[derive(Clone, Copy)]
enum Takes {
    /// A value of this type.
    Value(ValType),
    /// 64 bits of a value of this type.
    WordOf(ValType),
    /// 64 bits of any value.
    Word,
}

/// The properties of a function's body that determine the values of its probes.
pub(super) struct Body<'a> {
    image: &'a CodeImage,
    function: u32,
    /// The memory accesses of instructions, by position.
    accesses: Option<HashMap<u32, Access>>,
    /// The tables of indirect calls, by position.
    calls: Option<HashMap<u32, CalleeSource>>,
}

impl<'a> Body<'a> {
    pub(super) fn of(image: &'a CodeImage, function: u32) -> Self {
        Self { image, function, accesses: None, calls: None }
    }

    /// The positions in the binary module that can have probes: those of its instructions, its
    /// entry and its exit.
    pub(super) fn positions(&self) -> HashSet<u32> {
        let Range { start, end } = self.range();
        let body = self.image.body(self.function);
        let offsets =
            body.get_operators_reader().into_iter().flat_map(|reader| reader.into_iter_with_offsets());
        let offsets = offsets.flatten().map(|(_, at)| at as u32);
        offsets.chain([start, end]).collect()
    }

    /// The range of the body in the binary module.
    pub(super) fn range(&self) -> Range<u32> {
        self.image.body_range(self.function)
    }

    /// Whether no result of the function is in memory that all functions of a store share.
    pub(super) fn results_are_in_registers(&self) -> bool {
        let results = self.image.module.function_type(self.function).results();
        let floats = results.iter().filter(|ty| Ty::from(**ty).is_sse()).count();
        floats <= 2 && results.len() - floats <= 2
    }

    /// The request for a probe that calls a native function.
    pub(super) fn call(
        &mut self,
        callee: Callee,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let arguments = values.0.iter().map(|value| self.argument(*value, location, position, Takes::Word));
        Ok(RequestedKind::Call { callee, arguments: arguments.collect::<Result<_, _>>()? })
    }

    /// The request for a probe that calls a WebAssembly function.
    pub(super) fn call_wasm(
        &mut self,
        function: &WasmFn,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let parameters = function.parameters();
        let arguments = values.0.iter().zip(parameters);
        let arguments =
            arguments.map(|(value, ty)| self.argument(*value, location, position, Takes::Value(*ty)));
        Ok(RequestedKind::Call { callee: function.callee(), arguments: arguments.collect::<Result<_, _>>()? })
    }

    /// The request for a probe that calls a closure.
    pub(super) fn call_back(
        &mut self,
        callback: &Callback,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let types = callback.types();
        let mut callees = Vec::new();
        let mut arguments = Vec::with_capacity(values.0.len());
        for (number, &value) in values.0.iter().enumerate() {
            let argument = if value == Bound::Callee {
                callees.push((number, self.callee_source(location, position)?));
                Argument::Of(Wanted::Operand(0), Use::Value)
            } else {
                let takes = types.map_or(Takes::Word, |types| Takes::WordOf(types[number]));
                self.argument(value, location, position, takes)?
            };
            arguments.push(argument);
        }
        let mut called = None;
        if callback.takes_callee() {
            called = Some(self.callee_source(location, position)?);
            arguments.push(Argument::Of(Wanted::Operand(0), Use::Value));
        }
        let types = types.map(|types| types.iter().map(|ty| Ty::from(ty.to_wasm())).collect());
        let (routine, callback) = (call_back as *const () as usize, callback.clone());
        Ok(RequestedKind::Callback { routine, callback, arguments, callees: callees.into(), called, types })
    }

    /// The request for a probe that appends a record.
    pub(super) fn record(
        &mut self,
        recorder: &Recorder,
        values: &Values,
        location: Location,
        position: u32,
    ) -> Result<RequestedKind, ProbeError> {
        let words = values.0.iter().map(|value| self.argument(*value, location, position, Takes::Word));
        Ok(recorder.request(words.collect::<Result<_, _>>()?))
    }

    /// How an indirect call names its callee.
    fn callee_source(&mut self, location: Location, position: u32) -> Result<CalleeSource, ProbeError> {
        let calls = || indirect_calls(self.image, self.function);
        let by = self.calls.get_or_insert_with(calls).get(&position).copied();
        by.ok_or_else(|| self.error(Bound::Callee, location, ValueError::NoCallee))
    }

    fn error(&self, value: Bound, location: Location, reason: ValueError) -> ProbeError {
        let offset = self.offset(location);
        ProbeError::Value { value, function: self.function, offset, reason }
    }

    fn local_type(&self, index: u32) -> Option<ValType> {
        let ty = self.image.local_type(self.function, index)?;
        Some(ValType::of(ty, &self.image.module))
    }

    /// The type of a result, where the results are.
    fn result_type(&self, index: u32, location: Location) -> Option<ValType> {
        let results = self.image.module.function_type(self.function).results();
        let result = results.get(index as usize).filter(|_| location.place == Place::Exit)?;
        Some(ValType::of(*result, &self.image.module))
    }

    fn offset(&self, location: Location) -> u32 {
        location.offset(self.range().len() as u32)
    }

    /// The argument for a parameter.
    fn argument(
        &mut self,
        value: Bound,
        location: Location,
        position: u32,
        takes: Takes,
    ) -> Result<Argument, ProbeError> {
        let offset = self.offset(location);
        let parameter = match takes {
            Takes::Value(ty) | Takes::WordOf(ty) => Some(ty),
            Takes::Word => None,
        };
        let error = |reason| ProbeError::Value { value, function: self.function, offset, reason };
        let has_type = |ty: ValType| match parameter {
            Some(parameter) if !ty.matches(&parameter) => Err(error(ValueError::Type { parameter })),
            _ if ty == ValType::V128 && !matches!(takes, Takes::Value(_)) => Err(error(ValueError::Vector)),
            _ => Ok(()),
        };
        let has_lanes = |ty: ValType| match ty {
            ValType::V128 => Ok(()),
            _ => Err(error(ValueError::NotVector)),
        };
        let constant = |value: u64| Argument::Known(Value::constant(value));
        Ok(match value {
            Bound::Const(value) => constant(value),
            Bound::Function => constant(self.function.into()),
            Bound::Offset => constant(offset.into()),
            Bound::Context => Argument::Known(Value::CONTEXT),
            Bound::Frame => Argument::Known(Value::FRAME),
            Bound::Instance => Argument::Known(Value::INSTANCE),
            Bound::ReturnAddress => Argument::Known(Value::RETURN_ADDRESS),
            Bound::Result(index) => {
                let ty = self.result_type(index, location).ok_or_else(|| error(ValueError::NoResult))?;
                has_type(ty)?;
                Argument::Of(Wanted::Result(index), Use::Value)
            }
            Bound::ResultLane(index, lane) => {
                has_lanes(self.result_type(index, location).ok_or_else(|| error(ValueError::NoResult))?)?;
                Argument::Of(Wanted::Result(index), Use::Lane(lane))
            }
            Bound::Callee => return Err(error(ValueError::NoCallee)),
            Bound::Operand(_)
            | Bound::OperandLane(..)
            | Bound::Reference(_)
            | Bound::Local(_)
            | Bound::LocalLane(..)
                if location.place == Place::Exit =>
            {
                return Err(error(ValueError::AtExit));
            }
            Bound::OperandLane(depth, lane) => Argument::Of(Wanted::Operand(depth), Use::Lane(lane)),
            Bound::Operand(depth) => Argument::Of(Wanted::Operand(depth), Use::Value),
            Bound::Reference(depth) => Argument::Of(Wanted::Operand(depth), Use::Reference),
            Bound::Local(index) => {
                let ty = self.local_type(index).ok_or_else(|| error(ValueError::NoLocal))?;
                let is_parameter =
                    (index as usize) < self.image.module.function_type(self.function).params().len();
                has_type(match ty {
                    // Null before the program has assigned it.
                    ValType::Ref(ty) if !is_parameter => ValType::Ref(RefType::new(true, ty.heap_type())),
                    other => other,
                })?;
                Argument::Of(Wanted::Local(index), Use::Value)
            }
            Bound::LocalLane(index, lane) => {
                has_lanes(self.local_type(index).ok_or_else(|| error(ValueError::NoLocal))?)?;
                Argument::Of(Wanted::Local(index), Use::Lane(lane))
            }
            Bound::Address => {
                let of_body = || accesses(self.image, self.function);
                let access = self.accesses.get_or_insert_with(of_body).get(&position);
                let access = access.ok_or_else(|| error(ValueError::NoAccess))?;
                Argument::Of(Wanted::Operand(access.operand), Use::Address(access.offset))
            }
        })
    }
}

/// Checks the requirements on the values of a kind that do not depend on the code: their number,
/// and that they can be passed to their parameters. Errors name the place.
pub(super) fn check(kind: &Kind, function: u32, offset: u32) -> Result<(), ProbeError> {
    let (parameters, types) = match kind {
        Kind::Native { function, .. } | Kind::Shortcut { function, .. } => {
            (Some(function.parameters()), None)
        }
        Kind::Record { recorder, .. } => (Some(recorder.words()), None),
        Kind::Wasm { function, .. } => (Some(function.parameters().len()), Some(function.parameters())),
        Kind::Callback { function, .. } => (function.types().map(<[_]>::len), function.types()),
        Kind::Empty | Kind::Count | Kind::CountBranch | Kind::Generic(_) => (None, None),
    };
    let values = kind.values();
    if matches!(kind, Kind::Callback { .. }) && values.len() > MAX_VALUES {
        return Err(ProbeError::TooManyValues { limit: MAX_VALUES });
    }
    if let Some(parameters) = parameters
        && parameters != values.len()
    {
        return Err(ProbeError::Parameters { parameters, values: values.len() });
    }
    for (&value, &parameter) in values.iter().zip(types.into_iter().flatten()) {
        if !may_fit(value, parameter) {
            return Err(ProbeError::Value {
                value,
                function,
                offset,
                reason: ValueError::Type { parameter },
            });
        }
    }
    Ok(())
}

/// Whether there are places at which a value can be passed as a parameter of this type; if the
/// value's type does not depend on the code, whether it can be passed at all.
fn may_fit(value: Bound, parameter: ValType) -> bool {
    match value {
        Bound::Const(0) => !matches!(parameter, ValType::Ref(ty) if !ty.is_nullable()),
        Bound::Const(_) => !matches!(parameter, ValType::Ref(_)),
        Bound::Function | Bound::Offset | Bound::Address => {
            matches!(parameter, ValType::I32 | ValType::I64)
        }
        Bound::Context
        | Bound::Instance
        | Bound::Frame
        | Bound::ReturnAddress
        | Bound::Reference(_)
        | Bound::LocalLane(..)
        | Bound::OperandLane(..)
        | Bound::ResultLane(..) => parameter == ValType::I64,
        Bound::Local(_) | Bound::Operand(_) | Bound::Result(_) | Bound::Callee => true,
    }
}

/// The instructions of a function that access a memory, by their positions.
fn accesses(image: &CodeImage, function: u32) -> HashMap<u32, Access> {
    by_position(image, function, access)
}

/// How the indirect calls of a function name their callees, by their positions.
pub(super) fn indirect_calls(image: &CodeImage, function: u32) -> HashMap<u32, CalleeSource> {
    by_position(image, function, |operator| match operator {
        Operator::CallIndirect { table_index, type_index }
        | Operator::ReturnCallIndirect { table_index, type_index } => {
            Some(CalleeSource::Table { table: *table_index, ty: *type_index })
        }
        Operator::CallRef { .. } | Operator::ReturnCallRef { .. } => Some(CalleeSource::Reference),
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
