//! Patches by address: synchronous, in batches, and started to be finished later.

use std::ffi::{c_int, c_void};

use wordpatch::{Outstanding, Patch};

use super::{Code, code, elements, report};

/// `wordpatch_patch_request` of the header.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Request {
    address: *mut c_void,
    expected: *const u8,
    replacement: *const u8,
    length: usize,
}

impl Request {
    /// The requested patch, unless part of it is null or out of range.
    ///
    /// # Safety
    /// `length` bytes must be readable at both pointers, as long as the patch is used.
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

/// The patches of an array of requests, unless part of it is null or out of range.
///
/// # Safety
/// `requests` is null or points to `count` requests, and `length` bytes are readable at both
/// pointers of each, as long as the patches are used.
pub(super) unsafe fn patches_of<'a>(requests: *const Request, count: usize) -> Option<Vec<Patch<'a>>> {
    // SAFETY: the caller's obligation.
    let requests = unsafe { elements(requests, count) }?;
    // SAFETY: the caller's obligation.
    requests.iter().map(|request| unsafe { request.patch() }).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_patch(
    address: *mut c_void,
    expected: *const u8,
    replacement: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the header requires `length` readable bytes at both pointers.
    let patch = unsafe { Request { address, expected, replacement, length }.patch() };
    let Some(Patch { address, expected, replacement }) = patch else { return Code::Argument as c_int };
    // SAFETY: the header requires the obligations of `patch`.
    code(unsafe { wordpatch::patch(address, expected, replacement) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_patch_all(
    requests: *const Request,
    count: usize,
    results: *mut c_int,
) -> c_int {
    // SAFETY: the header requires `count` requests, and `length` readable bytes at both pointers of
    // each.
    let Some(patches) = (unsafe { patches_of(requests, count) }) else { return Code::Argument as c_int };
    // SAFETY: the header requires the obligations of `patch_all`.
    let codes: Vec<_> = unsafe { wordpatch::patch_all(&patches) }.into_iter().map(code).collect();
    // SAFETY: the header requires space for `count` results.
    unsafe { report(&codes, results) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_start_patch(
    address: *mut c_void,
    expected: *const u8,
    replacement: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the header requires `length` readable bytes at both pointers.
    let patch = unsafe { Request { address, expected, replacement, length }.patch() };
    let Some(Patch { address, expected, replacement }) = patch else { return Code::Argument as c_int };
    // SAFETY: the header requires the obligations of `start_patch`.
    code(unsafe { wordpatch::start_patch(address, expected, replacement) }.map(Outstanding::detach))
}

#[unsafe(no_mangle)]
extern "C" fn wordpatch_finish_patch(address: *mut c_void) -> c_int {
    match wordpatch::finish_patch(address.addr()) {
        Ok(is_finished) => is_finished.into(),
        Err(error) => Code::from(&error) as c_int,
    }
}
