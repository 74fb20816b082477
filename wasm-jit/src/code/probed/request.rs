//! Probes that are asked for.

use std::sync::Arc;

use wasm_jit_codegen::{Callee, NoValue, Ty, Value, Wanted};

use super::counting::Choice;
use super::stubs::{Call, What};
use super::version::Found;

/// A probe that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The position in the module.
    pub position: u32,
    pub what: RequestedKind,
    /// The number of the instance for which it is, if not for all.
    pub instance: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) enum RequestedKind {
    Nothing,
    Count,
    CountChoice,
    Call { callee: Callee, arguments: Vec<Argument> },
}

/// An argument of a function that a probe calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Known(Value),
    /// A value of the frame, and what is added to it to get an address.
    Of(Wanted, Option<u64>),
}

impl RequestedKind {
    /// The values of the frame that are asked for.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let arguments = if let Self::Call { arguments, .. } = self { &arguments[..] } else { &[] };
        arguments.iter().filter_map(|argument| match argument {
            Argument::Known(_) => None,
            Argument::Of(wanted, _) => Some(*wanted),
        })
    }

    pub(super) fn calls(&self) -> bool {
        matches!(self, Self::Call { .. })
    }

    /// What a probe does whose values were found, in order.
    ///
    /// # Errors
    /// [`NoProbe::NoChoice`], [`NoProbe::NoValue`], [`NoProbe::Type`].
    pub(super) fn with_values<'a>(
        &self,
        found: impl IntoIterator<Item = &'a Result<Found, NoValue>>,
        instance: Option<u64>,
        choice: impl FnOnce() -> Option<Choice>,
    ) -> Result<What, NoProbe> {
        let mut found = found.into_iter();
        let (callee, arguments) = match self {
            Self::Nothing => return Ok(What::Nothing),
            Self::Count => return Ok(What::Count),
            Self::CountChoice => return choice().map(What::CountChoice).ok_or(NoProbe::NoChoice),
            Self::Call { callee, arguments } => (callee, arguments),
        };
        let value = |(number, argument): (usize, &Argument)| {
            let (wanted, plus) = match argument {
                Argument::Known(value) => return Ok(*value),
                Argument::Of(wanted, plus) => (*wanted, *plus),
            };
            let found = found.next().expect("one for each").map_err(|no| NoProbe::NoValue(wanted, no))?;
            match (callee, found.operand) {
                // Addresses were checked; the types of references are not known here.
                (Callee::Wasm { parameters, .. }, Some(ty))
                    if plus.is_none() && (parameters[number] != ty || ty == Ty::Ref) =>
                {
                    Err(NoProbe::Type(number))
                }
                _ => Ok(found.value.plus(plus.unwrap_or(0))),
            }
        };
        let arguments = arguments.iter().enumerate().map(value).collect::<Result<_, _>>()?;
        Ok(What::Call(Arc::new(Call { callee: callee.clone(), arguments, instance })))
    }
}

/// Why there is no probe at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoProbe {
    /// No instruction begins there.
    NoInstruction,
    /// No control comes there.
    Unreachable,
    /// The instruction does not choose.
    NoChoice,
    /// A value cannot be had.
    NoValue(Wanted, NoValue),
    /// The operand for this argument has another type than the parameter, or is a reference.
    Type(usize),
}
