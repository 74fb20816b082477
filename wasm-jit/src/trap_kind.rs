//! [`Trap`]: the reasons why WebAssembly code traps.

use crate::vmctx::TrapCode;

/// Why WebAssembly code trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trap {
    /// The program's stack exceeded [`Config::max_wasm_stack`](crate::Config::max_wasm_stack), or
    /// the thread's stack.
    StackOverflow,
    /// A load, store or bulk operation reached beyond the memory.
    MemoryOutOfBounds,
    /// An atomic access at an address that is not a multiple of its width.
    HeapMisaligned,
    /// A table operation reached beyond the table.
    TableOutOfBounds,
    /// `call_indirect` with an index beyond the table.
    UndefinedElement,
    /// A call to a null reference in a table.
    IndirectCallToNull,
    /// `call_indirect` to a function of another type.
    BadSignature,
    /// The quotient of an integer division is not representable, or a float is out of range of the
    /// integer type.
    IntegerOverflow,
    /// An integer was divided by zero.
    IntegerDivisionByZero,
    /// NaN was converted to an integer.
    BadConversionToInteger,
    /// A call to an imported function that is not defined
    /// ([`Linker::define_unknown_imports_as_traps`](crate::Linker::define_unknown_imports_as_traps)).
    UnknownFunction,
    /// `unreachable` was executed.
    UnreachableCodeReached,
    /// The program was stopped by an [`InterruptHandle`](crate::InterruptHandle).
    Interrupt,
    /// `memory.atomic.wait` on a memory that is not shared.
    AtomicWaitNonSharedMemory,
    /// An instruction got a null reference that it does not accept.
    NullReference,
    /// `ref.cast` of a reference of another type.
    CastFailure,
    /// An access reached beyond an array.
    ArrayOutOfBounds,
    /// An access reached beyond a string of the host (`wasm-jit-js-string`).
    StringOutOfBounds,
    /// A number was used as a code point, but is not one.
    InvalidCodePoint,
    /// The store's fuel does not suffice for the next instructions
    /// ([`Store::set_fuel`](crate::Store::set_fuel)).
    OutOfFuel,
}

impl std::fmt::Display for Trap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::StackOverflow => "wasm trap: call stack exhausted",
            Self::MemoryOutOfBounds => "wasm trap: out of bounds memory access",
            Self::HeapMisaligned => "wasm trap: unaligned atomic",
            Self::TableOutOfBounds => "wasm trap: out of bounds table access",
            Self::UndefinedElement => "wasm trap: undefined element",
            Self::IndirectCallToNull => "wasm trap: uninitialized element",
            Self::BadSignature => "wasm trap: indirect call type mismatch",
            Self::IntegerOverflow => "wasm trap: integer overflow",
            Self::IntegerDivisionByZero => "wasm trap: integer divide by zero",
            Self::BadConversionToInteger => "wasm trap: invalid conversion to integer",
            Self::UnknownFunction => "wasm trap: call to an undefined import",
            Self::UnreachableCodeReached => "wasm trap: wasm `unreachable` instruction executed",
            Self::Interrupt => "wasm trap: interrupt",
            Self::AtomicWaitNonSharedMemory => "wasm trap: atomic wait on non-shared memory",
            Self::NullReference => "wasm trap: null reference",
            Self::CastFailure => "wasm trap: cast failure",
            Self::ArrayOutOfBounds => "wasm trap: out of bounds array access",
            Self::StringOutOfBounds => "wasm trap: out of bounds string access",
            Self::InvalidCodePoint => "wasm trap: invalid code point",
            Self::OutOfFuel => "wasm trap: all fuel consumed",
        })
    }
}

impl std::error::Error for Trap {}

impl From<TrapCode> for Trap {
    fn from(code: TrapCode) -> Self {
        match code {
            TrapCode::Unreachable => Self::UnreachableCodeReached,
            TrapCode::StackOverflow => Self::StackOverflow,
            TrapCode::TableOutOfBounds => Self::TableOutOfBounds,
            TrapCode::UndefinedElement => Self::UndefinedElement,
            TrapCode::UninitializedElement => Self::IndirectCallToNull,
            TrapCode::IndirectCallType => Self::BadSignature,
            TrapCode::NullReference => Self::NullReference,
            TrapCode::IntegerOverflow => Self::IntegerOverflow,
            TrapCode::InvalidConversion => Self::BadConversionToInteger,
            TrapCode::UnalignedAtomic => Self::HeapMisaligned,
            TrapCode::IntegerDivisionByZero => Self::IntegerDivisionByZero,
            TrapCode::MemoryOutOfBounds => Self::MemoryOutOfBounds,
            TrapCode::OutOfFuel => Self::OutOfFuel,
            TrapCode::CastFailure => Self::CastFailure,
            TrapCode::ArrayOutOfBounds => Self::ArrayOutOfBounds,
        }
    }
}
