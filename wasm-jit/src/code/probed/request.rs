//! Probes that are asked for.

use std::any::Any;
use std::sync::Arc;

use wasm_jit_codegen::{Located, NoValue, Value, Wanted};

use super::stubs::{Call, Generic, What};

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
    Call { function: usize, arguments: Vec<Argument> },
    Generic { fire: usize, closure: Arc<dyn Any + Send + Sync> },
}

/// An argument of a function that a probe calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Known(Value),
    /// A value of the frame, and what is added to it.
    Of(Wanted, u64),
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
        matches!(self, Self::Call { .. } | Self::Generic { .. })
    }

    /// Whether it sees the frame.
    pub(super) fn is_generic(&self) -> bool {
        matches!(self, Self::Generic { .. })
    }

    /// What a probe does whose values are in these places, in order.
    pub(super) fn with_values(
        &self,
        values: impl IntoIterator<Item = Value>,
        located: Option<&Arc<Located>>,
        (index, position, instance): (u32, u32, Option<u64>),
    ) -> What {
        let mut values = values.into_iter();
        match self {
            Self::Nothing => What::Nothing,
            Self::Count => What::Count,
            Self::Call { function, arguments } => {
                let argument = |argument: &Argument| match argument {
                    Argument::Known(value) => *value,
                    Argument::Of(_, plus) => values.next().expect("one for each").plus(*plus),
                };
                let arguments = arguments.iter().map(argument).collect();
                What::Call(Arc::new(Call { function: *function, arguments, instance }))
            }
            Self::Generic { fire, closure } => {
                let located = located.expect("the place was shown").clone();
                let (fire, closure, function) = (*fire, closure.clone(), index);
                What::Generic(Arc::new(Generic { fire, closure, function, position, instance, located }))
            }
        }
    }
}

/// Why there is no probe at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoProbe {
    /// No instruction begins there.
    NoInstruction,
    /// No control comes there.
    Unreachable,
    /// A value cannot be had.
    NoValue(Wanted, NoValue),
}
