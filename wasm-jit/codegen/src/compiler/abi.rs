//! Register roles, and the locations of a function's arguments and results.

use wasmparser::{FuncType, ValType};

use crate::asm::{Precision, Reg, RegClass, Width};

/// Arguments that are integers or references.
pub(crate) const INT_ARGS: [Reg; 6] = [Reg::RDI, Reg::RSI, Reg::R8, Reg::R9, Reg::RCX, Reg::RDX];
/// Arguments that are floats.
pub(crate) const FLOAT_ARGS: [Reg; 8] =
    [Reg::xmm(0), Reg::xmm(1), Reg::xmm(2), Reg::xmm(3), Reg::xmm(4), Reg::xmm(5), Reg::xmm(6), Reg::xmm(7)];
const INT_RESULTS: [Reg; 2] = [Reg::RAX, Reg::RDX];
const FLOAT_RESULTS: [Reg; 2] = [Reg::xmm(0), Reg::xmm(1)];

/// Arguments of a libcall: the first integer arguments of the C convention.
pub(super) const C_ARGS: [Reg; 5] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::R8];

/// The running instance's context.
pub(super) const CONTEXT: Reg = Reg::R14;
/// The base of the instance's memory 0.
pub(super) const MEMORY: Reg = Reg::R15;
/// Never live between two Wasm instructions.
pub(super) const SCRATCH: Reg = Reg::R11;
pub(super) const FLOAT_SCRATCH: Reg = Reg::xmm(15);

/// Registers that cache locals across calls, with the offset from `rbp` of the caller's value.
pub(super) const CALLEE_SAVED: [(Reg, i32); 3] = [(Reg::RBX, -16), (Reg::R12, -24), (Reg::R13, -32)];
/// Registers that cache locals and are clobbered by calls; the first four arguments arrive in them.
pub(super) const CALLER_SAVED_CACHE: [Reg; 4] = [Reg::RDI, Reg::RSI, Reg::R8, Reg::R9];
pub(super) const FLOAT_CACHE: [Reg; 9] = [
    Reg::xmm(14),
    Reg::xmm(13),
    Reg::xmm(12),
    Reg::xmm(11),
    Reg::xmm(10),
    Reg::xmm(9),
    Reg::xmm(8),
    Reg::xmm(7),
    Reg::xmm(6),
];

/// General registers for operands: includes [`CALLER_SAVED_CACHE`], where the region does not cache
/// locals in them.
pub(super) const INT_TEMPS: u32 = Reg::RAX.bit()
    | Reg::RCX.bit()
    | Reg::RDX.bit()
    | Reg::R10.bit()
    | Reg::RDI.bit()
    | Reg::RSI.bit()
    | Reg::R8.bit()
    | Reg::R9.bit();
/// All SSE registers except the scratch register.
pub(super) const FLOAT_TEMPS: u32 = 0x7fff_0000;

/// The start of the slots of locals, from `rbp`: below the context and the saved registers.
pub(super) const SLOTS: i32 = -32;

/// The parts of a value's type that the code depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// A 32-bit integer.
    I32,
    /// A 64-bit integer.
    I64,
    /// A 32-bit float.
    F32,
    /// A 64-bit float.
    F64,
    /// A reference.
    Ref,
    /// A 128-bit vector.
    V128,
}

impl Ty {
    /// Whether values of this type are in SSE registers.
    #[must_use]
    pub fn is_sse(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::V128)
    }

    /// The number of quadwords that a value has in an array, on the stack, and in an exception.
    #[must_use]
    pub fn words(self) -> u32 {
        if self == Self::V128 { 2 } else { 1 }
    }

    /// The class of the registers for its values.
    pub(crate) fn class(self) -> RegClass {
        if self.is_sse() { RegClass::Sse } else { RegClass::General }
    }

    /// The width of a value of this type, or of each half of a vector.
    #[must_use]
    pub fn width(self) -> Width {
        match self {
            Self::I32 | Self::F32 => Width::W32,
            Self::I64 | Self::F64 | Self::Ref | Self::V128 => Width::W64,
        }
    }

    /// The integer type of a width.
    pub(super) fn int(width: Width) -> Self {
        match width {
            Width::W32 => Self::I32,
            Width::W64 => Self::I64,
        }
    }

    /// The type of floats of this format.
    pub(super) fn float(precision: Precision) -> Self {
        match precision {
            Precision::Single => Self::F32,
            Precision::Double => Self::F64,
        }
    }

    /// The format of a float of its width.
    pub(super) fn precision(self) -> Precision {
        self.width().into()
    }
}

impl From<ValType> for Ty {
    fn from(ty: ValType) -> Self {
        match ty {
            ValType::I32 => Self::I32,
            ValType::I64 => Self::I64,
            ValType::F32 => Self::F32,
            ValType::F64 => Self::F64,
            ValType::Ref(_) => Self::Ref,
            ValType::V128 => Self::V128,
        }
    }
}

/// The location of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgPlace {
    Reg(Reg),
    /// Index among the quadwords of arguments on the stack.
    Stack(u32),
}

/// Assigns locations to arguments, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArgPlaces {
    ints: usize,
    floats: usize,
    stack: u32,
}

impl ArgPlaces {
    pub(super) fn next(&mut self, ty: Ty) -> ArgPlace {
        let (regs, used): (&[Reg], _) =
            if ty.is_sse() { (&FLOAT_ARGS, &mut self.floats) } else { (&INT_ARGS, &mut self.ints) };
        if let Some(reg) = regs.get(*used) {
            *used += 1;
            return ArgPlace::Reg(*reg);
        }
        let index = self.stack;
        self.stack += ty.words();
        ArgPlace::Stack(index)
    }
}

/// Bytes of arguments on the stack, which the callee removes.
pub(super) fn stack_bytes(ty: &FuncType) -> u32 {
    argument_bytes(ty.params().iter().map(|param| (*param).into()))
}

/// As [`stack_bytes`], for parameters of these types.
pub(super) fn argument_bytes(parameters: impl Iterator<Item = Ty>) -> u32 {
    let mut places = ArgPlaces::default();
    parameters.for_each(|ty| {
        places.next(ty);
    });
    (8 * places.stack).next_multiple_of(16)
}

/// The types of values, each with the index of its first quadword among theirs.
pub(super) fn with_index(types: &[ValType]) -> impl Iterator<Item = (u32, Ty)> {
    let mut next = 0;
    types.iter().map(move |ty| {
        let (index, ty) = (next, Ty::from(*ty));
        next += ty.words();
        (index, ty)
    })
}

/// The number of quadwords that values of these types have.
pub(super) fn words(types: &[ValType]) -> u32 {
    types.iter().map(|ty| Ty::from(*ty).words()).sum()
}

/// The location of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultPlace {
    Reg(Reg),
    /// In the store's buffer, at this index: that of the first quadword after those of the previous
    /// results.
    Buffer(u32),
}

/// The locations of a function's results, in order.
pub(super) fn result_places(results: &[ValType]) -> impl Iterator<Item = (Ty, ResultPlace)> {
    let (mut ints, mut floats) = (0, 0);
    with_index(results).map(move |(index, ty)| {
        let (regs, used): (&[Reg], &mut usize) =
            if ty.is_sse() { (&FLOAT_RESULTS, &mut floats) } else { (&INT_RESULTS, &mut ints) };
        let place = regs.get(*used).map_or(ResultPlace::Buffer(index), |reg| ResultPlace::Reg(*reg));
        *used += 1;
        (ty, place)
    })
}
