//! Requests for probes.

use std::any::Any;
use std::sync::Arc;

use wasm_jit_codegen::{At, Callee, Lane, Located, NoValue, Only, Ty, Value, Wanted};

use super::buffers::RecordBuffers;
use super::callback::{BoundCallback, Callback, CalleeSource};
use super::counting::Choice;
use super::stubs::{Call, Generic, ProbeAction, Record};
use super::version::ValueAtSite;

/// A request for a probe.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The position in the module.
    pub position: u32,
    pub what: RequestedKind,
    /// The instances for which it is, if not for all.
    pub only: Option<Only>,
}

#[derive(Clone, Debug)]
pub(crate) enum RequestedKind {
    Nothing,
    Count,
    CountChoice,
    Call {
        callee: Callee,
        arguments: Vec<Argument>,
    },
    Callback {
        /// As in the [`BoundCallback`].
        routine: usize,
        callback: Callback,
        arguments: Vec<Argument>,
        /// As in the [`BoundCallback`].
        callees: Box<[(usize, CalleeSource)]>,
        called: Option<CalleeSource>,
        /// The types of the values, if operands of other types are refused.
        types: Option<Box<[Ty]>>,
    },
    Generic {
        fire: usize,
        /// As in [`Generic`].
        fuel: Option<usize>,
        closure: Arc<dyn Any + Send + Sync>,
    },
    Record {
        /// As in [`Record`].
        make_room: usize,
        buffers: Arc<RecordBuffers>,
        values: Vec<Argument>,
    },
}

/// An argument of a function that a probe calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Known(Value),
    /// A value of the frame.
    Of(Wanted, Use),
}

/// What a value of the frame is passed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Itself, to a parameter of its type.
    Value,
    /// A lane of a vector, as a 64-bit integer.
    Lane(Lane),
    /// An address: the sum of the value and this offset.
    Address(u64),
    /// A reference, as a 64-bit integer.
    Reference,
}

impl RequestedKind {
    /// The values that are passed or recorded.
    fn arguments(&self) -> &[Argument] {
        match self {
            Self::Call { arguments, .. } | Self::Callback { arguments, .. } => arguments,
            Self::Record { values, .. } => values,
            Self::Nothing | Self::Count | Self::CountChoice | Self::Generic { .. } => &[],
        }
    }

    /// The values of the frame that are requested.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Wanted> {
        self.arguments().iter().filter_map(|argument| match argument {
            Argument::Known(_) => None,
            Argument::Of(wanted, _) => Some(*wanted),
        })
    }

    /// Whether the probe's stub needs the state at its place.
    pub(super) fn needs_state(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Count | Self::CountChoice)
    }

    /// Whether the probe has access to the frame.
    pub(super) fn is_generic(&self) -> bool {
        matches!(self, Self::Generic { .. })
    }

    /// The action of a probe whose values were found, in order; for a generic probe, all values of
    /// the place.
    ///
    /// # Errors
    /// All but [`NoProbe::NoInstruction`] and [`NoProbe::Unreachable`].
    pub(super) fn with_values<'a>(
        &self,
        found: impl IntoIterator<Item = &'a Result<ValueAtSite, NoValue>>,
        located: Option<&Arc<Located>>,
        (function, position, only): (u32, u32, Option<Only>),
        choice: impl FnOnce() -> Option<Choice>,
    ) -> Result<ProbeAction, NoProbe> {
        let mut found = found.into_iter();
        match self {
            Self::Nothing => return Ok(ProbeAction::Nothing),
            Self::Count => return Ok(ProbeAction::Count),
            Self::CountChoice => return choice().map(ProbeAction::CountChoice).ok_or(NoProbe::NoChoice),
            Self::Call { .. } | Self::Callback { .. } | Self::Record { .. } => {}
            Self::Generic { fire, fuel, closure } => {
                let located = located.expect("the place was shown").clone();
                let (fire, fuel, closure) = (*fire, *fuel, closure.clone());
                let in_buffer = located.operands.iter().filter_map(|operand| match operand.at {
                    At::Result(index) => Some((index + operand.ty.words()) as usize),
                    _ => None,
                });
                let results = in_buffer.max().unwrap_or(0);
                let generic = Generic { fire, closure, function, position, only, fuel, located, results };
                return Ok(ProbeAction::Generic(Arc::new(generic)));
            }
        }
        let (parameters, takes_vectors) = match self {
            Self::Call { callee: Callee::Wasm { parameters, .. }, .. } => (Some(&parameters[..]), true),
            Self::Callback { types, .. } => (types.as_deref(), false),
            _ => (None, false),
        };
        let value = |(number, argument): (usize, &Argument)| {
            let (wanted, used) = match argument {
                Argument::Known(value) => return Ok(*value),
                Argument::Of(wanted, used) => (*wanted, *used),
            };
            let found = found.next().expect("one for each").map_err(|no| NoProbe::NoValue(wanted, no))?;
            if used == Use::Value && found.operand == Some(Ty::V128) && !takes_vectors {
                return Err(NoProbe::Vector(number));
            }
            let fits = match (used, parameters, found.operand) {
                // The types of references are not known here.
                (Use::Value, Some(parameters), Some(ty)) => parameters[number] == ty && ty != Ty::Ref,
                (Use::Reference, _, operand) => operand == Some(Ty::Ref),
                (Use::Lane(_), _, Some(ty)) => ty == Ty::V128,
                // Addresses, locals and results were checked.
                _ => true,
            };
            match used {
                Use::Reference if !fits => Err(NoProbe::NotReference(number)),
                Use::Lane(_) if !fits => Err(NoProbe::NotVector(number)),
                _ if !fits => Err(NoProbe::Type(number)),
                Use::Address(offset) => Ok(found.value.plus(offset)),
                Use::Lane(lane) => Ok(found.value.lane(lane)),
                Use::Value | Use::Reference => Ok(found.value),
            }
        };
        let values = self.arguments().iter().enumerate().map(value).collect::<Result<_, _>>()?;
        Ok(match self {
            Self::Callback { routine, callback, callees, called, .. } => {
                let (routine, called) = (*routine, *called);
                let (callback, callees) = (callback.clone(), callees.clone());
                ProbeAction::Callback(Arc::new(BoundCallback {
                    routine,
                    callback,
                    values,
                    callees,
                    called,
                    only,
                }))
            }
            Self::Call { callee, .. } => {
                ProbeAction::Call(Arc::new(Call { callee: callee.clone(), arguments: values, only }))
            }
            Self::Record { make_room, buffers, .. } => {
                let (make_room, buffers) = (*make_room, buffers.clone());
                ProbeAction::Record(Arc::new(Record { make_room, buffers, values, only }))
            }
            _ => unreachable!("without values"),
        })
    }
}

/// Why there is no probe at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoProbe {
    /// No instruction begins there.
    NoInstruction,
    /// The instruction is unreachable.
    Unreachable,
    /// The instruction makes no choice that can be counted.
    NoChoice,
    /// A value is not available.
    NoValue(Wanted, NoValue),
    /// The operand for this argument has another type than the parameter, or is a reference.
    Type(usize),
    /// The operand for this argument must be a reference, and is not.
    NotReference(usize),
    /// The value for this argument must be a vector, and is not.
    NotVector(usize),
    /// The value for this argument is a vector, which the function cannot take.
    Vector(usize),
}
