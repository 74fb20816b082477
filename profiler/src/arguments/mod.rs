//! Arguments and results of instrumented functions: which parameters a function has, and where a
//! probe at its entry finds their values; which type its result has, and where a probe at its exit
//! finds that.
//!
//! # Arguments
//! The call of `__cyg_profile_func_enter` is not the first instruction of a function. Before it,
//! code has set up the frame, and has put two other values into the registers of the first two
//! arguments. So the conventions of calls do not say where an argument is; debugging information
//! does (`DW_AT_location` of the formal parameter, at the call), and the code itself:
//!
//! 1. `functions` finds the function in the debugging information, its parameters and their
//!    types, and the innermost scope that contains the probe: an inlined function has its
//!    parameters at each place.
//! 2. `location` translates the location that holds *during* the call: at the address before the
//!    one to which it returns. What a register contains then, the call preserves, or the probe sees
//!    before it is overwritten.
//! 3. That is not enough: compilers give up a location that they need no longer; clang says that a
//!    parameter is in a register which the probe's stub overwrites; and without optimization clang
//!    calls the probe before it stores the parameters where the location says. `copies` follows
//!    the values of registers and stack slots through the straight-line code from the start of the
//!    function, and finds another copy of the same value.
//!
//! A value that is in none of these places is [`Unavailable`]. Nothing is guessed: without
//! debugging information, the registers of the first arguments may be those of fewer parameters, or
//! of parameters that the compiler has removed.
//!
//! # Results
//! The call of `__cyg_profile_func_exit` comes before the function's epilogue, and changes the
//! registers of results. `results` follows the code from the call to the `ret`, and finds where the
//! result is meanwhile, or how that code computes it (`computation`). Its type is `DW_AT_type` of
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

/// The type of a parameter, if it is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarType {
    /// An integer, an enumeration, or a pointer or reference as its address.
    Integer {
        /// Its size: 1, 2, 4 or 8.
        bytes: u8,
        /// Whether it has a sign.
        is_signed: bool,
    },
    /// A boolean of one byte, 0 or 1.
    Bool,
    /// A float of 4 bytes.
    Float,
    /// A float of 8 bytes.
    Double,
}

impl ScalarType {
    /// Its size in bytes.
    pub fn bytes(self) -> u8 {
        match self {
            Self::Integer { bytes, .. } => bytes,
            Self::Bool => 1,
            Self::Float => 4,
            Self::Double => 8,
        }
    }

    /// A value of this type, whose lower bytes these are: integers extended to 64 bits, floats as
    /// their bits.
    pub fn extend(self, bits: u64) -> u64 {
        let unused = 64 - 8 * u32::from(self.bytes());
        match self {
            Self::Integer { is_signed: true, .. } => (((bits << unused) as i64) >> unused) as u64,
            // Bits 1 to 7 are 0 by the convention of calls.
            Self::Bool => bits & 1,
            _ => bits << unused >> unused,
        }
    }
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the source; parameters may have none.
    pub name: Option<String>,
    /// Its type; `None` if it is no number: a structure, a vector, a number of more than 8 bytes.
    pub ty: Option<ScalarType>,
}

/// A register of the processor, by its number in DWARF.
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

    /// The number of a general-purpose register in DWARF: RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP,
    /// then R8 to R15.
    pub fn general(self) -> Option<u8> {
        (self.0 < 16).then_some(self.0 as u8)
    }

    /// The number of a vector register, XMM0 to XMM15.
    pub fn vector(self) -> Option<u8> {
        (Self::XMM0.0..Self::XMM0.0 + 16).contains(&self.0).then(|| (self.0 - Self::XMM0.0) as u8)
    }

    /// Whether it stands for the address to which the call of the probe returns.
    pub fn is_return_address(self) -> bool {
        self == Self::RETURN_ADDRESS
    }

    /// Whether a probe function finds the value that the register had at the site. The stub of a
    /// probe writes RDX and RDI; RSI is the compiler's own argument.
    fn is_seen(self) -> bool {
        ![Self::RDX, Self::RSI, Self::RDI].contains(&self)
            && (self.general().is_some() || self.vector().is_some_and(|number| number < 8))
    }
}

/// Where a probe finds a value, in relation to the moment before the call of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The value is known.
    Constant(u64),
    /// A register, any general-purpose one except RDX, RSI and RDI, or XMM0 to XMM7, or the return
    /// address of the call. The number is added to it.
    Register(Register, i64),
    /// In memory, at a distance from RSP or RBP.
    Memory(Register, i32),
    /// The code after the call computes it.
    Computed(Computation),
}

/// How a probe gets the value of a parameter, or of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Where it is.
    pub source: Source,
    /// Its type.
    pub ty: ScalarType,
}

/// The reason why a value is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The object's file has no debugging information.
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
    /// The parameter, or the result, is no number of up to 8 bytes.
    NoNumber,
    /// The function was inlined: its code does not return, but continues with that of its caller.
    Inlined,
    /// The compiler does not keep the value until the probe.
    NotKept,
    /// The code after the probe does not show where the result is: there are branches, calls, or
    /// instructions that are not supported, or the function does not return there.
    NotInCode,
    /// The compiler keeps it in a form that is not supported: computed from several others, or in
    /// pieces.
    Unsupported,
    /// More arguments of the function are asked for than a probe can fetch.
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
            Self::Unsupported => "the compiler keeps it in a form that is not supported",
            Self::TooMany => "too many arguments of one function are asked for",
        })
    }
}

/// The place of a probe in an object. Addresses are relative to the lowest address of the object,
/// as [`crate::report::FunctionReport::address`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The function.
    pub function: u64,
    /// The call of the instrumentation function.
    pub call: u64,
}

/// The objects in which functions were looked up.
#[derive(Default)]
pub struct Objects {
    functions: HashMap<PathBuf, Result<Functions, Unavailable>>,
}

impl Objects {
    /// The parameters of a function, in the order of the source; in methods of C++, `this` is the
    /// first. The first call for an object reads its debugging information, which may take seconds
    /// for a large one.
    ///
    /// # Errors
    /// The debugging information does not contain the function.
    pub fn parameters(&mut self, object: &Path, function: u64) -> Result<Vec<Parameter>, Unavailable> {
        self.of(object)?.parameters(function)
    }

    /// Where a probe at an entry finds a parameter, by its position in
    /// [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// The reason why its value is not known there.
    pub fn fetch(&mut self, object: &Path, entry: Site, parameter: usize) -> Result<Fetch, Unavailable> {
        self.of(object)?.fetch(entry, parameter)
    }

    /// The type of a function's result; `None` if it has none, or one that is no number. The first
    /// call for an object takes as long as that of [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// The debugging information does not contain the function.
    pub fn result(&mut self, object: &Path, function: u64) -> Result<Option<ScalarType>, Unavailable> {
        self.of(object)?.result(function)
    }

    /// Where a probe at an exit finds the result of the function.
    ///
    /// # Errors
    /// The reason why it is not known there.
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
