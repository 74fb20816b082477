//! Arguments and results of instrumented functions: the parameters of a function and the locations
//! at which an entry probe finds their values; the type of its result and the location at which an
//! exit probe finds it.
//!
//! # Arguments
//! The call to `__cyg_profile_func_enter` is not the first instruction of a function. Before it,
//! code has set up the frame, and has put two other values into the registers of the first two
//! arguments. Therefore the calling convention does not tell where an argument is; debugging
//! information does (`DW_AT_location` of the formal parameter, at the call), and so does the code
//! itself:
//!
//! 1. `functions` finds the function in the debugging information, its parameters and their types,
//!    and the innermost scope that contains the probe: an inlined function has its parameters at
//!    each location.
//! 2. `location` translates the location that is valid *during* the call, that is, at the address
//!    before the one to which it returns. The contents of such a register are preserved by the
//!    call, or the probe sees them before they are overwritten.
//! 3. That is not sufficient: compilers drop a location that they no longer need; clang may place a
//!    parameter in a register that the probe's stub overwrites; and without optimization clang
//!    calls the probe before it stores the parameters at their locations. `copies` follows the
//!    values of registers and stack slots through the straight-line code from the start of the
//!    function, and finds another copy of the same value.
//!
//! A value that is in none of these locations is [`Unavailable`]. Nothing is guessed: without
//! debugging information, the registers of the first arguments may belong to fewer parameters, or
//! to parameters that the compiler has removed.
//!
//! # Results
//! The call to `__cyg_profile_func_exit` comes before the function's epilogue, and changes the
//! result registers. `results` follows the code from the call to the `ret`, and finds where the
//! result is at the call, or how that code computes it (`computation`). Its type is `DW_AT_type` of
//! the function.
//!
//! Nothing here runs in probes: a [`Fetch`] is what a probe executes.

mod computation;
mod copies;
mod functions;
mod location;
mod object;
mod results;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use self::computation::Computation;
use self::functions::Functions;

/// The type of a parameter or result, if it is a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarType {
    /// An integer, an enumeration, or a pointer or reference as its address.
    Integer {
        /// The size in bytes: 1, 2, 4 or 8.
        bytes: u8,
        /// Whether the integer is signed.
        is_signed: bool,
    },
    /// A one-byte boolean: 0 or 1.
    Bool,
    /// A 4-byte float.
    Float,
    /// An 8-byte float.
    Double,
}

impl ScalarType {
    /// The size of a value of this type, in bytes.
    pub fn bytes(self) -> u8 {
        match self {
            Self::Integer { bytes, .. } => bytes,
            Self::Bool => 1,
            Self::Float => 4,
            Self::Double => 8,
        }
    }

    /// The value of this type that has these lower bytes: integers are extended to 64 bits, floats
    /// are their bits.
    pub fn extend(self, bits: u64) -> u64 {
        let unused = 64 - 8 * u32::from(self.bytes());
        match self {
            Self::Integer { is_signed: true, .. } => (((bits << unused) as i64) >> unused) as u64,
            // By the calling convention, bits 1 to 7 are 0.
            Self::Bool => bits & 1,
            _ => bits << unused >> unused,
        }
    }
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The parameter's name in the source, if it has one.
    pub name: Option<String>,
    /// The parameter's type; `None` if it is not a scalar of up to 8 bytes: a structure, a vector,
    /// a larger number.
    pub ty: Option<ScalarType>,
}

/// A register of the processor, identified by its DWARF number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(u16);

impl Register {
    const RDX: Self = Self(1);
    const RSI: Self = Self(4);
    const RDI: Self = Self(5);
    const RBP: Self = Self(6);
    const RSP: Self = Self(7);
    const RETURN_ADDRESS: Self = Self(16);
    const XMM0: Self = Self(17);

    /// The DWARF number, if this is a general-purpose register: RAX, RDX, RCX, RBX, RSI, RDI, RBP,
    /// RSP, then R8 to R15.
    pub fn general(self) -> Option<u8> {
        (self.0 < 16).then_some(self.0 as u8)
    }

    /// The number of the vector register, XMM0 to XMM15, if this is one.
    pub fn vector(self) -> Option<u8> {
        (Self::XMM0.0..Self::XMM0.0 + 16).contains(&self.0).then(|| (self.0 - Self::XMM0.0) as u8)
    }

    /// Whether this stands for the address to which the call to the probe returns.
    pub fn is_return_address(self) -> bool {
        self == Self::RETURN_ADDRESS
    }

    /// Whether a probe function finds the value that the register had at the site. The stub of a
    /// probe overwrites RDX and RDI; RSI is an argument that the compiler passes to the probe.
    fn is_seen(self) -> bool {
        ![Self::RDX, Self::RSI, Self::RDI].contains(&self)
            && (self.general().is_some() || self.vector().is_some_and(|number| number < 8))
    }
}

/// Where a probe finds a value, described by the state just before the call to the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The value is constant.
    Constant(u64),
    /// The value is a register plus a number. The register is a general-purpose one except RDX, RSI
    /// and RDI, or XMM0 to XMM7, or the return address of the call.
    Register(Register, i64),
    /// The value is in memory, at a distance in bytes from RSP or RBP.
    Memory(Register, i32),
    /// The code after the call computes the value.
    Computed(Computation),
}

/// How a probe fetches the value of a parameter or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The source of the value.
    pub source: Source,
    /// The type of the value.
    pub ty: ScalarType,
}

/// The reason why a value is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The object has no debugging information.
    NoDebugInformation,
    /// The debugging information contains functions and lines, but no parameters.
    NoParameters,
    /// The object's file, or its debugging information, cannot be read.
    Unreadable(String),
    /// The debugging information does not contain the function.
    UnknownFunction,
    /// The debugging information does not say where in the code of another function this one was
    /// inlined.
    UnknownPlace,
    /// The parameter or result is not a scalar of up to 8 bytes.
    NoNumber,
    /// The function was inlined: its code does not return, but continues with that of its caller.
    Inlined,
    /// The compiler does not keep the value until the probe.
    NotKept,
    /// The code after the probe does not show where the result is: there are branches, calls, or
    /// instructions that are not supported, or the function does not return there.
    NotInCode,
    /// The call has ended by an exception.
    Exception,
    /// The compiler keeps the value in a form that is not supported: computed from several others,
    /// or in pieces.
    Unsupported,
    /// More arguments of the function are requested than a probe can fetch.
    TooMany,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoDebugInformation => "there is no debugging information (-g)",
            Self::NoParameters => "the debugging information has no parameters (-g1)",
            Self::Unreadable(reason) => {
                return write!(f, "the debugging information cannot be read: {reason}");
            }
            Self::UnknownFunction => "the debugging information does not contain the function",
            Self::UnknownPlace => "the debugging information does not say where the function was inlined",
            Self::NoNumber => "it is no number of up to 8 bytes",
            Self::Inlined => "the function was inlined there",
            Self::NotKept => "the compiler does not keep it until the probe",
            Self::NotInCode => "the code after the probe does not show where it is",
            Self::Exception => "the call has ended by an exception",
            Self::Unsupported => "the compiler keeps it in a form that is not supported",
            Self::TooMany => "too many arguments of one function are asked for",
        })
    }
}

/// The location of a probe in an object. Addresses are relative to the lowest address of the
/// object, like [`crate::report::FunctionReport::address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The address of the function.
    pub function: u64,
    /// The address of the call to the instrumentation function.
    pub call: u64,
}

/// Looks up functions in objects, and caches the objects' debugging information.
#[derive(Default)]
pub struct Objects {
    functions: HashMap<PathBuf, Result<Functions, Unavailable>>,
}

impl Objects {
    /// The parameters of a function, in source order; in C++ methods, `this` is the first. The
    /// first call for an object reads its debugging information, which may take seconds for a large
    /// one.
    ///
    /// # Errors
    /// [`Unavailable`], if the debugging information does not contain the function.
    pub fn parameters(&mut self, object: &Path, function: u64) -> Result<Vec<Parameter>, Unavailable> {
        self.of(object)?.parameters(function)
    }

    /// How a probe at an entry fetches a parameter, given by its index in
    /// [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// [`Unavailable`], if the value is not available there.
    pub fn fetch(&mut self, object: &Path, entry: Site, parameter: usize) -> Result<Fetch, Unavailable> {
        self.of(object)?.fetch(entry, parameter)
    }

    /// The type of a function's result; `None` if it has none, or one that is not a scalar. The
    /// first call for an object takes as long as that of [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// [`Unavailable`], if the debugging information does not contain the function.
    pub fn result(&mut self, object: &Path, function: u64) -> Result<Option<ScalarType>, Unavailable> {
        self.of(object)?.result(function)
    }

    /// How a probe at an exit fetches the result of the function.
    ///
    /// # Errors
    /// [`Unavailable`], if the value is not available there.
    pub fn fetch_result(&mut self, object: &Path, exit: Site) -> Result<Fetch, Unavailable> {
        self.of(object)?.fetch_result(exit)
    }

    fn of(&mut self, object: &Path) -> Result<&mut Functions, Unavailable> {
        if !self.functions.contains_key(object) {
            self.functions.insert(object.to_owned(), Functions::read(object));
        }
        let functions = self.functions.get_mut(object).expect("it was inserted");
        functions.as_mut().map_err(|reason| reason.clone())
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.functions.keys()).finish()
    }
}
