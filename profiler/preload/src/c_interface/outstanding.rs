//! Handles of started batches, and the finisher.
//!
//! A handle is a box, which its owner releases with `wordpatch_finish_all` or `wordpatch_detach`.
//! Until then any number of threads may advance the batch through it.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use wordpatch::{Error, Finisher, Outstanding, State};

use super::patches::{Request, patches_of};
use super::{Code, OK, code, report};

/// `wordpatch_outstanding` of the header.
struct Handle {
    outstanding: Outstanding,
    /// Number of requests of the batch.
    count: usize,
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Handle>();
    is_shared::<Finisher>();
};

const fn number(state: State) -> c_int {
    match state {
        State::FirstWait => 0,
        State::SecondWait => 1,
        State::Finished => 2,
    }
}

fn state_or_code(state: Result<State, Error>) -> c_int {
    state.map_or_else(|error| Code::from(&error) as c_int, number)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_start_patch_all(
    requests: *const Request,
    count: usize,
    handle: *mut *mut Handle,
) -> c_int {
    if handle.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header requires space for a handle.
    unsafe { handle.write(std::ptr::null_mut()) };
    // SAFETY: the header requires `count` requests, and `length` readable bytes at both pointers of
    // each.
    let Some(patches) = (unsafe { patches_of(requests, count) }) else { return Code::Argument as c_int };
    // SAFETY: the header requires the obligations of `start_patch_all`.
    let outstanding = unsafe { wordpatch::start_patch_all(&patches) };
    let started = Box::into_raw(Box::new(Handle { outstanding, count: patches.len() }));
    // SAFETY: as above.
    unsafe { handle.write(started) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_outstanding_state(handle: *const Handle) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    unsafe { handle.as_ref() }.map_or(Code::Argument as c_int, |handle| number(handle.outstanding.state()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_try_finish(handle: *const Handle) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    unsafe { handle.as_ref() }
        .map_or(Code::Argument as c_int, |handle| state_or_code(handle.outstanding.try_finish()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_wait(handle: *const Handle, nanoseconds: u64) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    let Some(handle) = (unsafe { handle.as_ref() }) else { return Code::Argument as c_int };
    // At most 584 years, so no clock overflows.
    let deadline = Instant::now() + Duration::from_nanos(nanoseconds);
    state_or_code(handle.outstanding.wait(deadline))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_finish_all(handle: *mut Handle, results: *mut c_int) -> c_int {
    if handle.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header requires a handle that is not released, and not used otherwise.
    let Handle { outstanding, count } = *unsafe { Box::from_raw(handle) };
    let mut codes: Vec<_> = outstanding.finish_all().into_iter().map(code).collect();
    if codes.len() != count {
        // `wordpatch_finish_patch` has already reported errors of the batch, which the header
        // forbids: the remaining results cannot be attributed.
        codes = vec![Code::Argument as c_int; count];
    }
    // SAFETY: the header requires space for `count` results.
    unsafe { report(&codes, results) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_detach(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: the header requires a handle that is not released, and not used otherwise.
        let handle = unsafe { Box::from_raw(handle) };
        handle.outstanding.detach();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_start_finisher(finisher: *mut *mut Finisher) -> c_int {
    if finisher.is_null() {
        return Code::Argument as c_int;
    }
    let (pointer, code) = match Finisher::start() {
        Ok(started) => (Box::into_raw(Box::new(started)), OK),
        Err(error) => (std::ptr::null_mut(), Code::from(&error) as c_int),
    };
    // SAFETY: the header requires space for a finisher.
    unsafe { finisher.write(pointer) };
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_take_over(finisher: *const Finisher, handle: *const Handle) -> c_int {
    // SAFETY: the header requires a finisher that is not stopped and a handle that is not released.
    match unsafe { (finisher.as_ref(), handle.as_ref()) } {
        (Some(finisher), Some(handle)) => code(finisher.take_over(&handle.outstanding)),
        _ => Code::Argument as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordpatch_stop_finisher(finisher: *mut Finisher) {
    if !finisher.is_null() {
        // SAFETY: the header requires a finisher that is not stopped, and not used otherwise.
        drop(unsafe { Box::from_raw(finisher) });
    }
}
