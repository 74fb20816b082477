//! What a probe is, to its users.

use std::ffi::CStr;

/// The number of a probe: dense, from 0, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProbeId(pub u32);

/// When a probe fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ProbeType {
    /// When its function is entered.
    Entry = 0,
    /// When its function returns, or an exception leaves it.
    Exit = 1,
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

/// What is known about a probe. The strings live as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct ProbeMetadata {
    /// The probe.
    pub id: ProbeId,
    /// Whether it fires at the entry or at an exit of its function.
    pub kind: ProbeType,
    /// The function's symbol as the linker knows it, or `[object+0xoffset]` where there is none.
    pub function_name: &'static CStr,
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
    /// The file of the executable or library that holds the site.
    pub object_path: &'static CStr,
    /// The lowest address of that object in memory: `function_address` less this is the same in
    /// every run.
    pub object_base: usize,
}
