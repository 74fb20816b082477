//! Functions for the entire process: the fetch model in force, waits, threads, forked children,
//! unmapped text.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

use wordpatch::calibration::{self, Status};
use wordpatch::text::{self, TextAccess};
use wordpatch::{Error, FetchModel, FetchWindow, TMax, WaitPolicy};

use super::{Code, OK, code, copy_text};

/// `wordpatch_fetch_model` of the header.
#[repr(C)]
struct Model {
    window: u32,
    is_t_max_known: c_int,
    t_max: u32,
    wait: u32,
    source: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_fetch_model_in_force(model: *mut Model) -> c_int {
    if model.is_null() {
        return Code::Argument as c_int;
    }
    let FetchModel { window, t_max, wait, source } = FetchModel::in_force();
    let found = Model {
        window: window as u32,
        is_t_max_known: t_max.is_some().into(),
        t_max: t_max.map_or(0, |t_max| t_max.0),
        wait: wait as u32,
        source: source as u32,
    };
    // SAFETY: the header requires space for the model.
    unsafe { model.write(found) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_force_fetch_model(window: u32, t_max: *const u32, wait: u32) -> c_int {
    let wait = [WaitPolicy::Membarrier, WaitPolicy::TMax, WaitPolicy::Both]
        .into_iter()
        .find(|policy| *policy as u32 == wait);
    let (Some(window), Some(wait)) = (FetchWindow::from_bytes(window as usize), wait) else {
        return Code::Argument as c_int;
    };
    // SAFETY: the header requires null, or a readable number.
    let t_max = unsafe { t_max.as_ref() }.map(|ticks| TMax(*ticks));
    // SAFETY: the header requires the obligations of `force`.
    unsafe { FetchModel::force(window, t_max, wait) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_calibration_path(buffer: *mut c_char, size: usize) -> usize {
    let path = match calibration::status() {
        Status::Absent => String::new(),
        Status::Loaded { path, .. } | Status::Refused { path, .. } => path.to_string_lossy().into_owned(),
    };
    // SAFETY: the header requires space for `size` bytes.
    unsafe { copy_text(&path, buffer, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_calibration_warning(buffer: *mut c_char, size: usize) -> usize {
    let warning = calibration::status().warning().unwrap_or_default();
    // SAFETY: the header requires space for `size` bytes.
    unsafe { copy_text(&warning, buffer, size) }
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_serialize_all_cores() -> c_int {
    code(wordpatch::serialize_all_cores())
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_wait_for_visibility() -> c_int {
    code(wordpatch::wait_for_visibility())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_check_sigtrap_unblocked(thread: *mut c_int) -> c_int {
    let checked = wordpatch::check_sigtrap_unblocked();
    if !thread.is_null() {
        let blocking = match &checked {
            Err(Error::SigtrapBlocked { thread }) => *thread,
            _ => 0,
        };
        // SAFETY: the header requires null, or space for a number.
        unsafe { thread.write(blocking) };
    }
    code(checked)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_unshare() -> c_int {
    // SAFETY: the header requires the obligations of `unshare`.
    code(unsafe { text::unshare() })
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_is_shared_with_parent() -> c_int {
    text::is_shared_with_parent().into()
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_copied_bytes() -> usize {
    text::copied_bytes()
}

/// `wordpatch_access` of the header: its numbers are those of [`TextAccess`].
#[unsafe(no_mangle)]
extern "C" fn wordpatch_set_text_access(access: u32) -> c_int {
    let known = [TextAccess::Alias, TextAccess::Mprotect, TextAccess::Private];
    let Some(access) = known.into_iter().find(|known| *known as u32 == access) else {
        return Code::Argument as c_int;
    };
    text::set_access(access);
    OK
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_text_access() -> c_int {
    text::access() as c_int
}

/// The address range of `length` bytes; `None` if it is empty, or exceeds the address space.
fn range(address: *const c_void, length: usize) -> Option<Range<usize>> {
    let start = address.addr();
    let end = start.checked_add(length)?;
    (!address.is_null() && length > 0).then_some(start..end)
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_forget_text(address: *const c_void, length: usize) -> c_int {
    let Some(range) = range(address, length) else { return Code::Argument as c_int };
    text::forget(&range);
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_release_text(address: *const c_void, length: usize) -> c_int {
    let Some(range) = range(address, length) else { return Code::Argument as c_int };
    // SAFETY: the header requires the obligation of `release`.
    unsafe { text::release(&range) };
    OK
}
