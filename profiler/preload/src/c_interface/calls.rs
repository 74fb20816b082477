//! Calls by address, and by a lock-free handle.

use std::ffi::{c_int, c_void};

use callpatch::{CallSite, Clobbers, Shape, State, Strategy};

use super::{Code, OK, code, elements, report};

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_activate_call(address: *mut c_void, offset: u32) -> c_int {
    if address.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header requires the obligations of `activate_call`.
    code(unsafe { callpatch::activate_call(address.expose_provenance(), offset.cast_signed()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_deactivate_call(address: *mut c_void) -> c_int {
    if address.is_null() {
        return Code::Argument as c_int;
    }
    // SAFETY: the header requires the obligations of `deactivate_call`.
    code(unsafe { callpatch::deactivate_call(address.expose_provenance()) })
}

// A handle is a pointer to a boxed `CallSite`. Any number of threads may read it concurrently.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<CallSite>();
};

/// Returns a decoded site to the caller as a handle, or stores a null pointer; the site is `None`
/// if an argument is wrong.
///
/// # Safety
/// `handle` is null or can be written.
unsafe fn store_handle(
    decode: impl FnOnce() -> Option<Result<CallSite, callpatch::Error>>,
    handle: *mut *mut CallSite,
) -> c_int {
    if handle.is_null() {
        return Code::Argument as c_int;
    }
    let (site, code) = match decode() {
        Some(Ok(site)) => (Box::into_raw(Box::new(site)), OK),
        Some(Err(error)) => (std::ptr::null_mut(), Code::from(&error) as c_int),
        None => (std::ptr::null_mut(), Code::Argument as c_int),
    };
    // SAFETY: it is not null; the rest is the caller's obligation.
    unsafe { handle.write(site) };
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_decode(
    address: *mut c_void,
    clobbers: u32,
    handle: *mut *mut CallSite,
) -> c_int {
    let clobbers = match clobbers {
        0 => Some(Clobbers::Nothing),
        1 => Some(Clobbers::CallerSaved),
        _ => None,
    };
    let decode = || {
        let clobbers = clobbers.filter(|_| !address.is_null())?;
        // SAFETY: the header requires the obligations of `decode`.
        Some(unsafe { CallSite::decode(address.expose_provenance(), clobbers) })
    };
    // SAFETY: the header requires null, or space for a handle.
    unsafe { store_handle(decode, handle) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_decode_nop(
    address: *mut c_void,
    target: *const c_void,
    handle: *mut *mut CallSite,
) -> c_int {
    let decode = || {
        let are_set = !address.is_null() && !target.is_null();
        // SAFETY: the header requires the obligations of `at_nop`.
        are_set.then(|| unsafe { CallSite::at_nop(address.expose_provenance(), target.addr()) })
    };
    // SAFETY: the header requires null, or space for a handle.
    unsafe { store_handle(decode, handle) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_activate(site: *const CallSite) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    unsafe { site.as_ref() }.map_or(Code::Argument as c_int, |site| code(site.activate()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_deactivate(site: *const CallSite) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    unsafe { site.as_ref() }.map_or(Code::Argument as c_int, |site| code(site.deactivate()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_state(site: *const CallSite) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    let Some(site) = (unsafe { site.as_ref() }) else { return Code::Argument as c_int };
    match site.state() {
        Ok(State::Inactive) => 0,
        Ok(State::Active) => 1,
        Err(error) => Code::from(&error) as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_is_stale(site: *const CallSite) -> c_int {
    // SAFETY: the header requires a handle that is not released, of a site whose address is mapped.
    unsafe { site.as_ref().map_or(Code::Argument as c_int, |site| site.is_stale().into()) }
}

/// `callpatch_site_description` of the header.
#[repr(C)]
struct Description {
    address: *const c_void,
    target: *const c_void,
    displacement: i32,
    shape: u32,
    strategy: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_describe(site: *const CallSite, description: *mut Description) -> c_int {
    // SAFETY: the header requires a handle that is not released.
    let Some(site) = (unsafe { site.as_ref() }) else { return Code::Argument as c_int };
    if description.is_null() {
        return Code::Argument as c_int;
    }
    let described = Description {
        address: std::ptr::without_provenance(site.address()),
        target: std::ptr::without_provenance(site.target()),
        displacement: site.displacement(),
        shape: match site.shape() {
            Shape::Call => 0,
            Shape::Jump => 1,
            Shape::IndirectCall => 2,
            Shape::IndirectJump => 3,
        },
        strategy: match site.strategy() {
            Strategy::Nop => 0,
            Strategy::Skip => 1,
            Strategy::RetIsland => 2,
            Strategy::Load => 3,
            Strategy::Ret => 4,
        },
    };
    // SAFETY: the header requires space for a description.
    unsafe { description.write(described) };
    OK
}

/// `callpatch_retarget_request` of the header.
#[derive(Clone, Copy)]
#[repr(C)]
struct Retarget {
    site: *mut CallSite,
    target: *const c_void,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_retarget(
    requests: *const Retarget,
    count: usize,
    results: *mut c_int,
) -> c_int {
    // SAFETY: the header requires `count` requests.
    let Some(requests) = (unsafe { elements(requests, count) }) else { return Code::Argument as c_int };
    let site_and_target = |request: &Retarget| {
        // SAFETY: the header requires handles that are not released.
        let site = unsafe { request.site.as_ref() }?;
        (!request.target.is_null()).then(|| (*site, request.target.addr()))
    };
    let Some(sites) = requests.iter().map(site_and_target).collect::<Option<Vec<_>>>() else {
        return Code::Argument as c_int;
    };
    // SAFETY: the header requires the obligations of `retarget`.
    let retargeted = unsafe { callpatch::retarget(&sites) };
    let update = |(request, result): (&Retarget, Result<CallSite, callpatch::Error>)| {
        // SAFETY: the header requires that nothing else uses the handle during the call.
        code(result.map(|site| unsafe { request.site.write(site) }))
    };
    let codes: Vec<_> = requests.iter().zip(retargeted).map(update).collect();
    // SAFETY: the header requires space for `count` results.
    unsafe { report(&codes, results) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn callpatch_release(site: *mut CallSite) {
    if !site.is_null() {
        // SAFETY: the header requires a handle that is not released, and not used otherwise.
        drop(unsafe { Box::from_raw(site) });
    }
}
