//! Probes that are asked for.

use std::sync::Arc;

use wasm_jit_codegen::{NoValue, Value, Wanted};

use super::callback::{CallBack, Callback};
use super::stubs::{Call, What};

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
    Call {
        function: usize,
        arguments: Vec<Argument>,
    },
    CallBack {
        /// As in the [`CallBack`].
        routine: usize,
        callback: Callback,
        arguments: Vec<Argument>,
        /// As in the [`CallBack`].
        callees: Box<[(usize, u32)]>,
    },
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
        let arguments = match self {
            Self::Call { arguments, .. } | Self::CallBack { arguments, .. } => &arguments[..],
            Self::Nothing | Self::Count => &[],
        };
        arguments.iter().filter_map(|argument| match argument {
            Argument::Known(_) => None,
            Argument::Of(wanted, _) => Some(*wanted),
        })
    }

    pub(super) fn calls(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::CallBack { .. })
    }

    /// What a probe does whose values are in these places, in order.
    pub(super) fn with_values(&self, values: impl IntoIterator<Item = Value>, instance: Option<u64>) -> What {
        let mut values = values.into_iter();
        let mut placed = |arguments: &[Argument]| {
            let argument = |argument: &Argument| match argument {
                Argument::Known(value) => *value,
                Argument::Of(_, plus) => values.next().expect("one for each").plus(*plus),
            };
            arguments.iter().map(argument).collect()
        };
        match self {
            Self::Nothing => What::Nothing,
            Self::Count => What::Count,
            Self::Call { function, arguments } => {
                What::Call(Arc::new(Call { function: *function, arguments: placed(arguments), instance }))
            }
            Self::CallBack { routine, callback, arguments, callees } => {
                let routine = *routine;
                let (callback, callees) = (callback.clone(), callees.clone());
                let values = placed(arguments);
                What::CallBack(Arc::new(CallBack { routine, callback, values, callees, instance }))
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
