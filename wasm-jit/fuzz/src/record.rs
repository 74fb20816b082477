//! The observable behaviour of a run, and its comparison.
//!
//! Values are compared bit by bit: wasm-smith makes every module canonicalize its NaNs. Three
//! differences are permitted. Engines have stacks of different sizes, so nothing is compared after
//! the call that exhausted one of them. An index beyond the end of a table is one kind of trap,
//! whether an access or a call caused it. And an atomic access may be both misaligned and out of
//! bounds: either may be reported.

use std::fmt;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    I32,
    I64,
    F32,
    F64,
    V128,
    Func,
    Extern,
    Exn,
    Any,
    /// A type in the hierarchy of `any` for which the host has only null.
    NullAny,
    /// The same of `extern`'s.
    NullExtern,
}

/// A value, as far as it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// The bits of a 32-bit float.
    F32(u32),
    /// The bits of a 64-bit float.
    F64(u64),
    /// The bits of a vector.
    V128(u128),
    /// A null reference.
    Null(Type),
    /// Any function.
    Func,
    /// A number by which the host identifies its value.
    Extern(u32),
    /// An `i31`, sign-extended.
    I31(i32),
    /// Any structure or array.
    Object,
    /// Any exception.
    Exn,
}

impl Type {
    /// The type's zero, or null.
    #[must_use]
    pub fn zero(self) -> Value {
        match self {
            Self::I32 => Value::I32(0),
            Self::I64 => Value::I64(0),
            Self::F32 => Value::F32(0),
            Self::F64 => Value::F64(0),
            Self::V128 => Value::V128(0),
            Self::Func | Self::Extern | Self::Exn | Self::Any => Value::Null(self),
            Self::NullAny => Value::Null(Self::Any),
            Self::NullExtern => Value::Null(Self::Extern),
        }
    }
}

/// The reason of a trap.
#[derive(Clone, Copy, Debug, Eq)]
#[allow(missing_docs)]
pub enum Trap {
    Unreachable,
    MemoryOutOfBounds,
    TableOutOfBounds,
    IndirectCallToNull,
    BadSignature,
    IntegerOverflow,
    IntegerDivisionByZero,
    BadConversionToInteger,
    UnalignedAtomic,
    NullReference,
    CastFailure,
    ArrayOutOfBounds,
    AtomicWaitNonSharedMemory,
}

impl PartialEq for Trap {
    fn eq(&self, other: &Self) -> bool {
        let kind = |trap: &Self| match trap {
            Self::UnalignedAtomic => Self::MemoryOutOfBounds as u8,
            other => *other as u8,
        };
        kind(self) == kind(other)
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned these results.
    Returned(Vec<Value>),
    /// It trapped.
    Trapped(Trap),
    /// An uncaught exception.
    Threw,
    /// The stack or another resource was exhausted.
    Exhausted,
    /// An error that a valid program cannot cause.
    Error(String),
}

/// An observed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The instantiation of the module.
    Instantiated(Outcome),
    /// A host function was called.
    Host {
        /// The name of the import.
        name: String,
        /// Its arguments.
        arguments: Vec<Value>,
    },
    /// An exported function was called.
    Called {
        /// The name of the export.
        name: String,
        /// Its arguments.
        arguments: Vec<Value>,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The fuel consumed by a call that has returned.
    Consumed(u64),
    /// The final length in bytes and checksum of an exported memory.
    Memory(String, u64, u32),
    /// The final value of an exported global.
    Global(String, Value),
    /// The final elements of an exported table.
    Table(String, Vec<Value>),
}

/// All events, in order; exports are called and inspected in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The events.
    pub events: Vec<Event>,
}

impl Event {
    /// The final contents of an exported memory.
    #[must_use]
    pub fn memory(name: String, bytes: &[u8]) -> Self {
        Self::Memory(name, bytes.len() as u64, crc32fast::hash(bytes))
    }
}

/// A difference between two records.
#[derive(Debug)]
pub struct Difference {
    /// Number of the event.
    pub at: usize,
    /// The event in the engine under test.
    pub ours: Option<Event>,
    /// The event in the reference engine.
    pub theirs: Option<Event>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show =
            |event: &Option<Event>| event.as_ref().map_or("nothing".to_owned(), |event| format!("{event:?}"));
        write!(f, "event {}:\n  ours:   {}\n  theirs: {}", self.at, show(&self.ours), show(&self.theirs))
    }
}

impl Value {
    /// The value, with any NaN replaced by that of constants.
    fn with_same_nan(self) -> Self {
        match self {
            Self::F32(bits) if f32::from_bits(bits).is_nan() => Self::F32(0x7fc0_0000),
            Self::F64(bits) if f64::from_bits(bits).is_nan() => Self::F64(0x7ff8_0000_0000_0000),
            other => other,
        }
    }
}

impl Record {
    /// Whether a stack or another resource was exhausted, so that engines may differ.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.events.iter().any(is_exhausted)
    }

    /// The same record with all NaNs replaced by one.
    #[must_use]
    pub fn with_same_nans(mut self) -> Self {
        for event in &mut self.events {
            if let Event::Called { outcome: Outcome::Returned(values), .. } = event {
                values.iter_mut().for_each(|value| *value = value.with_same_nan());
            }
        }
        self
    }
}

/// The first difference that is not permitted.
#[must_use]
pub fn difference(ours: &Record, theirs: &Record) -> Option<Difference> {
    for at in 0..ours.events.len().max(theirs.events.len()) {
        let (our, their) = (ours.events.get(at), theirs.events.get(at));
        if our == their {
            // Both exhausted: possibly at different points.
            if our.is_some_and(is_exhausted) {
                return None;
            }
            continue;
        }
        // The engine with the smaller stack has recorded fewer host calls at that point.
        let rest = [&ours.events[at.min(ours.events.len())..], &theirs.events[at.min(theirs.events.len())..]];
        let next_end =
            |events: &[Event]| events.iter().find(|event| !matches!(event, Event::Host { .. })).cloned();
        if rest.into_iter().any(|events| next_end(events).as_ref().is_some_and(is_exhausted)) {
            return None;
        }
        return Some(Difference { at, ours: our.cloned(), theirs: their.cloned() });
    }
    None
}

fn is_exhausted(event: &Event) -> bool {
    matches!(
        event,
        Event::Instantiated(Outcome::Exhausted) | Event::Called { outcome: Outcome::Exhausted, .. }
    )
}
