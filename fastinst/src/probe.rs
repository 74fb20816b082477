//! The public types that describe probes.

use std::ffi::CStr;

/// The id of a probe.
///
/// Permanent probes, which exist as long as the process, are numbered densely from 0. The probes of
/// a [`Group`](crate::group::Group) have consecutive numbers at or above
/// [`FIRST_OF_GROUPS`](Self::FIRST_OF_GROUPS), which are reused only when all others have been
/// used. `u32::MAX` is never the id of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProbeId(pub u32);

impl ProbeId {
    /// The lowest id of a probe that may be removed before the process ends.
    pub const FIRST_OF_GROUPS: Self = Self(1 << 24);
}

/// The event at which a probe fires.
///
/// The set of kinds is open: those below [`FIRST_OF_PROVIDERS`](Self::FIRST_OF_PROVIDERS) have the
/// same meaning for all providers, and every provider may define others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProbeKind(pub u16);

impl ProbeKind {
    /// The function is entered.
    pub const ENTRY: Self = Self(0);
    /// The function returns, or an exception leaves it.
    pub const EXIT: Self = Self(1);
    /// The first kind whose meaning is defined by the provider of the probe.
    pub const FIRST_OF_PROVIDERS: Self = Self(256);
}

/// The function that an active probe calls, on the thread that executes the site.
///
/// The first argument is the probe's id. The provider defines the others: for `cyg_profile`, they
/// are the return address of the function and the address of the function. A probe function may
/// take fewer arguments.
///
/// It is called where the compiler placed a call: the stack is aligned, and the function may change
/// the registers that are caller-saved in the System V calling convention. It may run at any time
/// in any thread, including in a signal handler; it must not call code whose active probes call it.
pub type ProbeFn = unsafe extern "C" fn(ProbeId, usize, usize);

/// The description of a probe. For permanent probes, the strings returned by
/// [`lasting_metadata`](crate::lasting_metadata) are permanent as well.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ProbeMetadata<'a> {
    /// The id of the probe.
    pub id: ProbeId,
    /// The name of the probe's provider.
    pub provider: &'static CStr,
    /// The event at which the probe fires, such as the entry or an exit of its function.
    pub kind: ProbeKind,
    /// The function's symbol in the object file (not demangled), or `[object+0xoffset]` if it has
    /// none.
    pub function_name: &'a CStr,
    /// The address of the function. An inlined function has probes at many sites, all with this
    /// address, which may be in another object: an inline function of C++ can be defined in a
    /// library.
    pub function_address: usize,
    /// The address of the site's instruction.
    pub site_address: usize,
    /// The start of the code that contains the site: the code of a function, or a part of it,
    /// according to the unwind table or the symbols. For an inlined function, this is the code of
    /// the function into which it was inlined.
    pub body_start: usize,
    /// The end of the code that starts at `body_start`.
    pub body_end: usize,
    /// The file of the executable or library that defines the function, or the name of the module.
    pub object_path: &'a CStr,
    /// The lowest address of that object in memory: `function_address` minus this address is the
    /// same in every run.
    pub object_base: usize,
    /// The location in the module, for code that is compiled from a module at run time.
    pub module_place: Option<ModulePlace>,
}

/// A location in a module from which code is compiled at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModulePlace {
    /// The index of the function.
    pub function_index: u32,
    /// The offset of the instruction from the start of the function; 0 at its entry or exit.
    pub offset: u32,
    /// The instruction's opcode, as the provider represents it; `None` at an entry or exit.
    pub opcode: Option<u32>,
}

impl ProbeMetadata<'_> {
    /// Creates metadata with empty strings and 0 for all addresses, to be completed by the
    /// provider.
    pub fn new(id: ProbeId, provider: &'static CStr, kind: ProbeKind) -> Self {
        Self {
            id,
            provider,
            kind,
            function_name: c"",
            function_address: 0,
            site_address: 0,
            body_start: 0,
            body_end: 0,
            object_path: c"",
            object_base: 0,
            module_place: None,
        }
    }
}
