//! Probes: discovery, metadata, activation.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastinst::provider::{self, Extent};
use fastinst::service::Descriptors;
use fastinst::{ModulePlace, ProbeFn, ProbeId, ProbeMetadata};

use super::{Code, code, copy_text, elements, report};

/// `fastinst_probe_metadata` of the header.
#[repr(C)]
struct Metadata {
    probe_id: u32,
    kind: u32,
    function_name: *const c_char,
    function_address: *const c_void,
    site_address: *const c_void,
    object_path: *const c_char,
    object_base: *const c_void,
    provider: *const c_char,
    has_module_place: u32,
    function_index: u32,
    offset: u32,
    opcode: u32,
}

impl From<&ProbeMetadata<'_>> for Metadata {
    fn from(probe: &ProbeMetadata<'_>) -> Self {
        let none = ModulePlace { function_index: 0, offset: 0, opcode: Some(0) };
        let place = probe.module_place.unwrap_or(none);
        Self {
            probe_id: probe.id.0,
            kind: probe.kind.0.into(),
            function_name: probe.function_name.as_ptr(),
            function_address: std::ptr::without_provenance(probe.function_address),
            site_address: std::ptr::without_provenance(probe.site_address),
            object_path: probe.object_path.as_ptr(),
            object_base: std::ptr::without_provenance(probe.object_base),
            provider: probe.provider.as_ptr(),
            has_module_place: probe.module_place.is_some().into(),
            function_index: place.function_index,
            offset: place.offset,
            opcode: place.opcode.unwrap_or(u32::MAX),
        }
    }
}

type Callback = unsafe extern "C" fn(*const Metadata, *mut c_void);

/// `fastinst_probe_fn` of the header.
type PlainFn = unsafe extern "C" fn(ProbeId);

/// The probe function in the form that the lower layer calls, with two additional arguments.
fn with_all_arguments(function: PlainFn) -> ProbeFn {
    // SAFETY: a function that takes fewer arguments may be called with more under the System V
    // convention.
    unsafe { std::mem::transmute::<PlainFn, ProbeFn>(function) }
}

/// The pointer that is passed to a callback. The header states that it is used on other threads.
#[derive(Clone, Copy)]
struct UserData(*mut c_void);

// SAFETY: it is only passed to the caller's own callback.
unsafe impl Send for UserData {}

impl UserData {
    fn get(self) -> *mut c_void {
        self.0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_register_callback(callback: Option<Callback>, user_data: *mut c_void) -> c_int {
    let Some(callback) = callback else { return Code::Argument as c_int };
    let user_data = UserData(user_data);
    // The profiler discovers executed functions only; the header guarantees all probes.
    if let Err(error) = provider::begin(Extent::All) {
        return code(Err::<(), _>(error));
    }
    let registered = fastinst::register_callback(move |probe| {
        // SAFETY: the header requires a function that may be called with its user data, on any
        // thread, at any later time.
        unsafe { callback(&Metadata::from(probe), user_data.get()) }
    });
    if registered.is_err() {
        return code(registered);
    }
    code(start_service())
}

/// Whether this process has a service thread of the interface's own.
static IS_STARTED: Mutex<bool> = Mutex::new(false);

/// Keeps the service thread from being started during a fork.
pub(super) type Hold = MutexGuard<'static, bool>;

pub(super) fn hold() -> Hold {
    IS_STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the service thread, which discovers libraries that are loaded later; the profiler has
/// already started it. After a failure, the next registration tries again.
fn start_service() -> Result<(), fastinst::Error> {
    let mut is_started = hold();
    if !*is_started && !profiler::session::is_running() {
        fastinst::service::start(None, Descriptors::OfProcess)?;
        *is_started = true;
    }
    Ok(())
}

/// Starts the service thread in a forked child, whose parent had one.
pub(super) fn restart_service_in_child() {
    let had_one = std::mem::take(&mut *hold());
    if had_one {
        // Without it the child discovers nothing until its next registration, which tries again.
        let _ = start_service();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_activate(id: u32, function: Option<PlainFn>) -> c_int {
    let Some(function) = function else { return Code::Argument as c_int };
    // SAFETY: the header requires a function that stays callable.
    code(unsafe { fastinst::activate(ProbeId(id), with_all_arguments(function)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_activate_with_caller(id: u32, function: Option<ProbeFn>) -> c_int {
    let Some(function) = function else { return Code::Argument as c_int };
    // SAFETY: the header requires a function that stays callable.
    code(unsafe { fastinst::activate(ProbeId(id), function) })
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_deactivate(id: u32) -> c_int {
    code(fastinst::deactivate(ProbeId(id)))
}

/// `fastinst_activation` of the header.
#[derive(Clone, Copy)]
#[repr(C)]
struct Activation {
    id: u32,
    function: Option<PlainFn>,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_activate_all(
    activations: *const Activation,
    count: usize,
    results: *mut c_int,
) -> c_int {
    // SAFETY: the header requires `count` activations.
    let activations = unsafe { elements(activations, count) };
    let with_function = |activation: &Activation| {
        activation.function.map(|function| (ProbeId(activation.id), with_all_arguments(function)))
    };
    let Some(probes) = activations.and_then(|all| all.iter().map(with_function).collect::<Option<Vec<_>>>())
    else {
        return Code::Argument as c_int;
    };
    // SAFETY: the header requires functions that stay callable.
    let codes: Vec<_> = unsafe { fastinst::activate_all(&probes) }.into_iter().map(code).collect();
    // SAFETY: the header requires space for `count` results.
    unsafe { report(&codes, results) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_deactivate_all(ids: *const u32, count: usize, results: *mut c_int) -> c_int {
    // SAFETY: the header requires `count` ids.
    let Some(ids) = (unsafe { elements(ids, count) }) else { return Code::Argument as c_int };
    let ids: Vec<_> = ids.iter().copied().map(ProbeId).collect();
    let codes: Vec<_> = fastinst::deactivate_all(&ids).into_iter().map(code).collect();
    // SAFETY: the header requires space for `count` results.
    unsafe { report(&codes, results) }
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_probe_count() -> usize {
    fastinst::probe_count()
}

#[unsafe(no_mangle)]
extern "C" fn fastinst_toggle_count() -> u64 {
    fastinst::toggle_count()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_metadata(id: u32, metadata: *mut Metadata) -> c_int {
    if metadata.is_null() {
        return Code::Argument as c_int;
    }
    code(fastinst::with_metadata(ProbeId(id), |known| {
        // SAFETY: the header requires space for the metadata.
        unsafe { metadata.write(Metadata::from(known)) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastinst_notes(buffer: *mut c_char, size: usize) -> usize {
    // SAFETY: the header requires space for `size` bytes.
    unsafe { copy_text(&provider::notes().join("\n"), buffer, size) }
}
