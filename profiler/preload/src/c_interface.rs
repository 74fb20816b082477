//! The C interface: `fastinst/include/fastinst.h` says what each function does.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use fastinst::provider::cyg_profile;
use fastinst::{ProbeFn, ProbeId, ProbeMetadata, ProbeType};
use profiler::error::Error;
use profiler::options::Options;
use profiler::session;
use wordpatch::{Outstanding, Patch, calibration};

const OK: c_int = 0;

/// The errors of the header: number and text.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Code {
    Argument = -1,
    NoProbe = -2,
    Undiscovered = -3,
    Unloaded = -4,
    ForeignBytes = -5,
    NotText = -6,
    Contended = -7,
    Layout = -8,
    OutOfReach = -9,
    NotACall = -10,
    Immovable = -11,
    InCallback = -12,
    System = -13,
}

const TEXTS: [(Code, &CStr); 13] = [
    (Code::Argument, c"an argument is null or out of range"),
    (Code::NoProbe, c"there is no probe with this id"),
    (Code::Undiscovered, c"the probe is not discovered before its site has been executed once"),
    (Code::Unloaded, c"the library that holds the probe was unloaded"),
    (Code::ForeignBytes, c"other bytes than expected stand at the address"),
    (Code::NotText, c"the address is not mapped readable and executable"),
    (Code::Contended, c"another thread is patching the same instruction; try again"),
    (Code::Layout, c"a patch replaces 1 to 8 bytes, and each instruction by one of the same length"),
    (Code::OutOfReach, c"the target, or memory for a stub, is out of reach of a 32-bit displacement"),
    (Code::NotACall, c"no call that can be toggled stands at the address"),
    (Code::Immovable, c"the instruction crosses a fetch window and cannot be run out of line"),
    (Code::InCallback, c"a discovery callback must not register callbacks"),
    (Code::System, c"the system refused a mapping, a protection, membarrier, a signal handler or a thread"),
];

impl From<&wordpatch::Error> for Code {
    fn from(error: &wordpatch::Error) -> Self {
        use wordpatch::Error as E;
        match error {
            E::Length { .. }
            | E::LayoutChanged { .. }
            | E::SeveralInstructions { .. }
            | E::Undecodable { .. } => Self::Layout,
            E::Mismatch { .. } | E::ForeignBreakpoint { .. } => Self::ForeignBytes,
            E::Contended { .. } | E::Overlap { .. } | E::SharedWithParent { .. } | E::Forked { .. } => {
                Self::Contended
            }
            E::NotMapped { .. } | E::NotExecutable { .. } | E::TextGone { .. } => Self::NotText,
            E::Immovable { .. } => Self::Immovable,
            E::OutOfReach { .. } => Self::OutOfReach,
            _ => Self::System,
        }
    }
}

impl From<&callpatch::Error> for Code {
    fn from(error: &callpatch::Error) -> Self {
        use callpatch::Error as E;
        match error {
            E::NotACall { .. } | E::StraddlingNop { .. } => Self::NotACall,
            E::OutOfReach { .. } => Self::OutOfReach,
            E::Foreign { .. } => Self::ForeignBytes,
            E::Text(error) => error.into(),
            _ => Self::System,
        }
    }
}

impl From<&fastinst::Error> for Code {
    fn from(error: &fastinst::Error) -> Self {
        use fastinst::Error as E;
        match error {
            E::UnknownProbe { .. } => Self::NoProbe,
            E::Undiscovered { .. } => Self::Undiscovered,
            E::Unloaded { .. } => Self::Unloaded,
            E::CalledFromCallback => Self::InCallback,
            E::Call(error) => error.into(),
            E::Text(error) => error.into(),
            _ => Self::System,
        }
    }
}

fn code<T, E>(result: Result<T, E>) -> c_int
where
    for<'a> Code: From<&'a E>,
{
    result.map_or_else(|error| Code::from(&error) as c_int, |_| OK)
}

/// Makes the sites of the loaded objects probes, switched off: the library without the profiler.
pub(crate) fn start(options: &Options) -> Result<(), Error> {
    fastinst::set_access(options.text.into());
    cyg_profile::start().map_err(|source| Error::Start { source })?;
    if let Some(warning) = calibration::status().warning() {
        session::say(&warning);
    }
    wordpatch::text::follow_forks();
    // SAFETY: the functions are never unloaded, and keep to what may be done around a fork.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    Ok(())
}

/// A forked child's probes are its own from here on.
extern "C" fn in_child() {
    // SAFETY: the child has this one thread. A refusal shows in the calls that follow.
    let _ = unsafe { wordpatch::text::unshare() };
}

/// `fastinst_probe_metadata` of the header.
#[repr(C)]
struct Metadata {
    probe_id: u32,
    kind: ProbeType,
    function_name: *const c_char,
    function_address: *const c_void,
    site_address: *const c_void,
    object_path: *const c_char,
}

impl From<&ProbeMetadata> for Metadata {
    fn from(probe: &ProbeMetadata) -> Self {
        Self {
            probe_id: probe.id.0,
            kind: probe.kind,
            function_name: probe.function_name.as_ptr(),
            function_address: std::ptr::without_provenance(probe.function_address),
            site_address: std::ptr::without_provenance(probe.site_address),
            object_path: probe.object_path.as_ptr(),
        }
    }
}

type Callback = unsafe extern "C" fn(*const Metadata, *mut c_void);

/// The pointer that a callback gets back. The header says that it is used on other threads.
#[derive(Clone, Copy)]
struct UserData(*mut c_void);

// SAFETY: it is only handed back to the caller's own callback.
unsafe impl Send for UserData {}

impl UserData {
    fn get(self) -> *mut c_void {
        self.0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_register_callback(callback: Option<Callback>, user_data: *mut c_void) -> c_int {
    static SERVICE: Once = Once::new();
    let Some(callback) = callback else { return Code::Argument as c_int };
    let user_data = UserData(user_data);
    let registered = fastinst::register_callback(move |probe| {
        // SAFETY: the header asks for a function that may be called with its user data, on any thread, for ever.
        unsafe { callback(&Metadata::from(probe), user_data.get()) }
    });
    if registered.is_err() {
        return code(registered);
    }
    let mut started = Ok(());
    // Libraries that are loaded later are discovered by the service thread; the profiler has started one already.
    SERVICE.call_once(|| {
        if !profiler::session::is_running() {
            started = fastinst::service::start(None);
        }
    });
    code(started)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_activate(id: u32, function: Option<unsafe extern "C" fn(ProbeId)>) -> c_int {
    let Some(function) = function else { return Code::Argument as c_int };
    // SAFETY: a function that takes fewer arguments may be called with more under the System V convention.
    let function = unsafe { std::mem::transmute::<unsafe extern "C" fn(ProbeId), ProbeFn>(function) };
    // SAFETY: the header asks for a function that stays callable.
    code(unsafe { fastinst::activate(ProbeId(id), function) })
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_deactivate(id: u32) -> c_int {
    code(fastinst::deactivate(ProbeId(id)))
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_probe_count() -> usize {
    fastinst::probe_count()
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_strerror(error: c_int) -> *const c_char {
    if error == OK {
        return c"success".as_ptr();
    }
    let text =
        TEXTS.iter().find(|(code, _)| *code as c_int == error).map_or(c"unknown error", |(_, text)| text);
    text.as_ptr()
}

/// `wordpatch_patch_request` of the header.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    address: *mut c_void,
    expected: *const u8,
    replacement: *const u8,
    length: usize,
}

impl Request {
    /// The patch that is asked for, if nothing of it is null or out of range.
    ///
    /// # Safety
    /// `length` bytes must be readable at both, for as long as the patch is used.
    unsafe fn patch<'a>(&self) -> Option<Patch<'a>> {
        let Self { address, expected, replacement, length } = *self;
        let is_null = address.is_null() || expected.is_null() || replacement.is_null();
        if is_null || !(1..=wordpatch::MAX_PATCH).contains(&length) {
            return None;
        }
        // SAFETY: the caller's obligation.
        let (expected, replacement) = unsafe {
            (std::slice::from_raw_parts(expected, length), std::slice::from_raw_parts(replacement, length))
        };
        Some(Patch { address: address.expose_provenance(), expected, replacement })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_patch(
    address: *mut c_void,
    expected: *const u8,
    replacement: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the header asks for `length` readable bytes at both.
    let patch = unsafe { Request { address, expected, replacement, length }.patch() };
    let Some(Patch { address, expected, replacement }) = patch else { return Code::Argument as c_int };
    // SAFETY: the header's conditions are those of `patch`.
    code(unsafe { wordpatch::patch(address, expected, replacement) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_patch_all(
    requests: *const Request,
    count: usize,
    results: *mut c_int,
) -> c_int {
    if requests.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header asks for `count` requests.
    let requests = unsafe { std::slice::from_raw_parts(requests, count) };
    // SAFETY: the header asks for `length` readable bytes at both of each.
    let patches: Option<Vec<_>> = requests.iter().map(|request| unsafe { request.patch() }).collect();
    let Some(patches) = patches else { return Code::Argument as c_int };
    // SAFETY: the header's conditions are those of `patch_all`.
    let codes: Vec<_> = unsafe { wordpatch::patch_all(&patches) }.into_iter().map(code).collect();
    if !results.is_null() {
        // SAFETY: the header asks for room for `count` results.
        unsafe { results.copy_from_nonoverlapping(codes.as_ptr(), count) };
    }
    codes.into_iter().find(|code| *code != OK).unwrap_or(OK)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_start_patch(
    address: *mut c_void,
    expected: *const u8,
    replacement: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the header asks for `length` readable bytes at both.
    let patch = unsafe { Request { address, expected, replacement, length }.patch() };
    let Some(Patch { address, expected, replacement }) = patch else { return Code::Argument as c_int };
    // SAFETY: the header's conditions are those of `start_patch`.
    code(unsafe { wordpatch::start_patch(address, expected, replacement) }.map(Outstanding::detach))
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_finish_patch(address: *mut c_void) -> c_int {
    match wordpatch::finish_patch(address.addr()) {
        Ok(is_finished) => is_finished.into(),
        Err(error) => Code::from(&error) as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_activate_call(address: *mut c_void, offset: u32) -> c_int {
    if address.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header's conditions are those of `activate_call`.
    code(unsafe { callpatch::activate_call(address.expose_provenance(), offset.cast_signed()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_deactivate_call(address: *mut c_void) -> c_int {
    if address.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header's conditions are those of `deactivate_call`.
    code(unsafe { callpatch::deactivate_call(address.expose_provenance()) })
}
