//! What a probe is, to its users.

use std::ffi::CStr;

/// The number of a probe.
///
/// Probes that stay as long as the process are numbered densely from 0. The probes of a
/// [`Group`](crate::group::Group) have consecutive numbers from
/// [`FIRST_OF_GROUPS`](Self::FIRST_OF_GROUPS) up, which are reused only when all others have been
/// used. `u32::MAX` is never the number of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProbeId(pub u32);

impl ProbeId {
    /// The lowest number of a probe that may go away before the process ends.
    pub const FIRST_OF_GROUPS: Self = Self(1 << 24);
}

/// When a probe fires.
///
/// Kinds are open: those below [`FIRST_OF_PROVIDERS`](Self::FIRST_OF_PROVIDERS) mean the same for
/// all providers, and every provider may define others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProbeKind(pub u16);

impl ProbeKind {
    /// When its function is entered.
    pub const ENTRY: Self = Self(0);
    /// When its function returns, or an exception leaves it.
    pub const EXIT: Self = Self(1);
    /// The first kind whose meaning is defined by the provider of the probe.
    pub const FIRST_OF_PROVIDERS: Self = Self(256);
}

/// What a probe calls while it is active, on the thread that executes the site.
///
/// The first argument is the probe's id. The others are the provider's: for `cyg_profile` the
/// address that the function returns to, and the function's own address. A function may take fewer
/// arguments.
///
/// It is called where the compiler placed a call: the stack is aligned, and the registers that the
/// System V convention lets a callee change may be changed. It may run at any time in any thread,
/// also in a signal handler; it must not call code whose own active probes call it.
pub type ProbeFn = unsafe extern "C" fn(ProbeId, usize, usize);

/// What is known about a probe. For probes that stay as long as the process,
/// [`lasting_metadata`](crate::lasting_metadata) returns strings that do so, too.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ProbeMetadata<'a> {
    /// The probe.
    pub id: ProbeId,
    /// The name of its provider.
    pub provider: &'static CStr,
    /// When it fires, such as at the entry or at an exit of its function.
    pub kind: ProbeKind,
    /// The function's symbol as the linker knows it, or `[object+0xoffset]` where there is none.
    pub function_name: &'a CStr,
    /// Where the function starts. A function that was inlined has probes at many places, all with
    /// this address.
    pub function_address: usize,
    /// Where the site's instruction starts.
    pub site_address: usize,
    /// Where the code that holds the site starts: a function's code in memory, or a part of it, as
    /// unwind table or symbols have it. For a function that was inlined, this is the code of the
    /// function it was inlined into.
    pub body_start: usize,
    /// Where that code ends.
    pub body_end: usize,
    /// The file of the executable or library that holds the site, or the name of the module.
    pub object_path: &'a CStr,
    /// The lowest address of that object in memory: `function_address` less this is the same in
    /// every run.
    pub object_base: usize,
}

impl ProbeMetadata<'_> {
    /// Metadata with empty strings and with 0 for all addresses, for a provider to fill in.
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
        }
    }
}
