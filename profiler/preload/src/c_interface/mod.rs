//! The C interface: documented in `fastinst/include/fastinst.h`.
//!
//! | module | part of the header |
//! | --- | --- |
//! | [`probes`] | `fastinst_`: probes and their discovery |
//! | [`patches`] | `wordpatch_`: patches by address, synchronous or started |
//! | [`outstanding`] | `wordpatch_`: handles of started batches, and the finisher |
//! | [`process`] | `wordpatch_`: the fetch model, waits, threads, forked children, unmapped text |
//! | [`calls`] | `callpatch_`: calls by address and by handle |
//!
//! No panic crosses the interface: the functions are `extern "C"`, which aborts instead.

mod calls;
mod outstanding;
mod patches;
mod probes;
mod process;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};

use fastinst::provider::{self, Extent};
use fastinst::service::{ForkGuard, before_fork, is_forking};
use profiler::error::Error;
use profiler::options::Options;
use profiler::session;
use wordpatch::calibration;

const OK: c_int = 0;

/// The errors of the header: numbers and messages.
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
    SigtrapBlocked = -14,
    SharedWithParent = -15,
    Forked = -16,
    Retired = -17,
}

const TEXTS: [(Code, &CStr); 17] = [
    (Code::Argument, c"an argument is null or out of range"),
    (Code::NoProbe, c"there is no probe with this id"),
    (Code::Undiscovered, c"the probe is not discovered before its site has been executed once"),
    (Code::Unloaded, c"the library that holds the probe was unloaded"),
    (Code::ForeignBytes, c"the address holds other bytes than expected"),
    (Code::NotText, c"the address is not mapped readable and executable"),
    (Code::Contended, c"another thread is patching the same instruction; try again"),
    (Code::Layout, c"a patch replaces 1 to 8 bytes, and each instruction by one of the same length"),
    (Code::OutOfReach, c"the target, or memory for a stub, is out of reach of a 32-bit displacement"),
    (Code::NotACall, c"there is no call at the address that can be toggled"),
    (Code::Immovable, c"the instruction crosses a fetch window and cannot be executed out of line"),
    (Code::InCallback, c"a discovery callback must not register callbacks"),
    (Code::System, c"the system refused a mapping, a protection, membarrier, a signal handler or a thread"),
    (Code::SigtrapBlocked, c"a thread has SIGTRAP blocked; unblock it before patching"),
    (Code::SharedWithParent, c"the code is shared with the parent process; call wordpatch_unshare"),
    (Code::Forked, c"the patch or finisher belongs to the parent process"),
    (Code::Retired, c"the module that held the probe is gone"),
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
            E::Contended { .. } | E::Overlap { .. } => Self::Contended,
            E::NotMapped { .. } | E::NotExecutable { .. } | E::TextGone { .. } => Self::NotText,
            E::Immovable { .. } => Self::Immovable,
            E::OutOfReach { .. } => Self::OutOfReach,
            E::SigtrapBlocked { .. } => Self::SigtrapBlocked,
            E::SharedWithParent { .. } => Self::SharedWithParent,
            E::Forked { .. } => Self::Forked,
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
            E::Retired { .. } => Self::Retired,
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

/// Reports the results of an array of requests: copies them to `results` unless it is null, and
/// returns the first error, or 0.
///
/// # Safety
/// `results` is null, or has space for as many numbers as there are `codes`.
unsafe fn report(codes: &[c_int], results: *mut c_int) -> c_int {
    if !results.is_null() {
        // SAFETY: the caller's obligation.
        unsafe { results.copy_from_nonoverlapping(codes.as_ptr(), codes.len()) };
    }
    codes.iter().copied().find(|code| *code != OK).unwrap_or(OK)
}

/// The `count` elements of the caller's array; `None` for a null pointer, unless the array is
/// empty.
///
/// # Safety
/// `array` is null, or points to `count` elements that are not changed while the result is used.
unsafe fn elements<'a, T>(array: *const T, count: usize) -> Option<&'a [T]> {
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: the caller's obligation.
    (!array.is_null()).then(|| unsafe { std::slice::from_raw_parts(array, count) })
}

/// Copies text to a buffer as `snprintf` does: as much as fits into `size` bytes with the final
/// NUL; returns the length of the complete text.
///
/// # Safety
/// `buffer` is null, or has space for `size` bytes.
unsafe fn copy_text(text: &str, buffer: *mut c_char, size: usize) -> usize {
    if !buffer.is_null() && size > 0 {
        let length = text.len().min(size - 1);
        // SAFETY: `length + 1` is at most `size`, for which the buffer has space.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
            buffer.add(length).write(0);
        }
    }
    text.len()
}

/// Discovers the sites of the loaded objects and makes them probes, initially off: the library
/// without the profiler.
pub(crate) fn start(options: &Options) -> Result<(), Error> {
    fastinst::set_access(options.text.into());
    provider::begin(Extent::All).map_err(|source| Error::Start { source })?;
    if let Some(warning) = calibration::status().warning() {
        session::say(&warning);
    }
    // First, so that its handlers hold no locks while ours wait for the service thread.
    wordpatch::internal::follow_forks();
    // SAFETY: the functions are never unloaded, and do only what is permitted around a fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    Ok(())
}

/// What the forking thread holds, so that the child inherits no lock of another thread.
type Locks = (probes::Hold, ForkGuard);

struct Held(UnsafeCell<Option<Locks>>);

// SAFETY: only a thread that has a fork guard accesses it, and there is one guard at a time.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn prepare() {
    let hold = probes::hold();
    if let Some(guard) = before_fork() {
        // SAFETY: see `Held`.
        unsafe { *HELD.0.get() = Some((hold, guard)) };
    }
}

/// The locks, unless the thread forks without them. Removed before they are dropped: dropping
/// permits the next fork.
fn take_locks() -> Option<Locks> {
    // SAFETY: see `Held`.
    is_forking().then(|| unsafe { (*HELD.0.get()).take() }).flatten()
}

extern "C" fn in_parent() {
    drop(take_locks());
}

/// Gives a forked child its own probes and service thread.
extern "C" fn in_child() {
    // Without locks, its text stays that of the parent, which later calls report.
    let Some(locks) = take_locks() else { return };
    drop(locks);
    // SAFETY: the child has only this thread. If it fails, later calls report it.
    let _ = unsafe { wordpatch::text::unshare() };
    probes::restart_service_in_child();
}

/// `FASTINST_VERSION` of the header.
const VERSION: u32 = 1_000_000 * part(env!("CARGO_PKG_VERSION_MAJOR"))
    + 1_000 * part(env!("CARGO_PKG_VERSION_MINOR"))
    + part(env!("CARGO_PKG_VERSION_PATCH"));

const fn part(number: &str) -> u32 {
    match u32::from_str_radix(number, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo gives numbers"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_version() -> u32 {
    VERSION
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
