//! The functions that instrumented code calls. A site that is a probe calls its stub instead; calls
//! that arrive here come from sites that are not (yet) probes.
//!
//! May run at any time: in IFUNC resolvers before this library is relocated, before its
//! constructor, in exiting threads.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use fastinst::ProbeKind;
use fastinst::provider::cyg_profile::arrival;
use profiler::session;

/// Jumps to [`entry`] with a third argument: the return address, which is on top of the stack.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn __cyg_profile_func_enter(_this_fn: *mut c_void, _call_site: *mut c_void) {
    naked_asm!("mov rdx, qword ptr [rsp]", "jmp {entry}", entry = sym entry)
}

/// The same for [`exit`].
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn __cyg_profile_func_exit(_this_fn: *mut c_void, _call_site: *mut c_void) {
    naked_asm!("mov rdx, qword ptr [rsp]", "jmp {exit}", exit = sym exit)
}

extern "C" fn entry(this_fn: usize, _call_site: usize, return_address: usize) {
    session::before_probes(|| arrival(ProbeKind::ENTRY, this_fn, return_address));
}

extern "C" fn exit(this_fn: usize, _call_site: usize, return_address: usize) {
    session::before_probes(|| arrival(ProbeKind::EXIT, this_fn, return_address));
}

/// Whether the objects of this process call the functions above, rather than functions of the same
/// names that the program or another preloaded library defines for another purpose.
pub(crate) fn is_in_charge() -> bool {
    static OWN: u8 = 0;
    // Compared by object, because the functions' addresses here are also those of the first
    // definition in the process.
    let object_of = |address: *const c_void| {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: writes into memory of the right type; all zero is valid too.
        unsafe {
            libc::dladdr(address, info.as_mut_ptr());
            info.assume_init().dli_fbase
        }
    };
    [c"__cyg_profile_func_enter", c"__cyg_profile_func_exit"].iter().all(|name| {
        // SAFETY: the name is a C string.
        let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        object_of(first) == object_of((&raw const OWN).cast())
    })
}
