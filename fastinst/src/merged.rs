//! Sites at which the compiler has merged the calls of several functions.
//!
//! Two calls of an instrumentation function that differ only in the function's address may become
//! one, which gets the address from a register: GCC and Clang do this with inlined functions that
//! are alike, such as constructors. The probe of such a site belongs to the function that executed
//! it first, but fires for the others, too.
//!
//! Only an execution tells. Probes whose function was determined by executing them are therefore
//! checked at every execution ([`CHECK`]), which takes a few nanoseconds. A program has few of
//! them: the addresses of most functions are constants in the code.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use fastinst_sigsafe::Segments;

use crate::permanent::{PROBES, Probe};
use crate::probe::{ProbeFn, ProbeId};
use crate::service;

/// A probe that is checked.
struct Checked {
    probe: ProbeId,
    /// The probe function at which the check continues.
    function: AtomicUsize,
    /// The address of the first other function that has executed the site; 0 if there is none.
    other: AtomicUsize,
    /// The name of that function, a C string that lives as long as the process; null until it is
    /// looked up.
    name: AtomicPtr<c_char>,
}

impl Checked {
    /// Records another function. Only the first time changes memory that threads share.
    fn note(&self, other: usize) {
        let is_first = self.other.load(Ordering::Relaxed) == 0
            && self.other.compare_exchange(0, other, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first {
            service::notify();
        }
    }
}

static CHECKED: Segments<Checked> = Segments::new();

/// A probe at a site that several functions execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedSite {
    /// The probe. Its metadata name the function that executed the site first.
    pub probe: ProbeId,
    /// The address of another function that has executed it.
    pub other: usize,
    /// The name of that function; `None` if it is not known (yet).
    pub name: Option<&'static CStr>,
}

/// The sites that several functions have executed while their probes were active: their probes fire
/// for all of these functions. Does not block.
#[must_use]
pub fn merged_sites() -> Vec<MergedSite> {
    let merged = |checked: &Checked| {
        let other = checked.other.load(Ordering::Relaxed);
        let name = checked.name.load(Ordering::Acquire);
        // SAFETY: a C string that lives as long as the process, if not null.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        (other != 0).then_some(MergedSite { probe: checked.probe, other, name })
    };
    CHECKED.iter().filter_map(merged).collect()
}

/// Looks up the names of functions that have been found since the last call.
pub(crate) fn look_up_names(mut name: impl FnMut(usize) -> Option<&'static CStr>) {
    for checked in CHECKED.iter() {
        let other = checked.other.load(Ordering::Relaxed);
        if other != 0 && checked.name.load(Ordering::Relaxed).is_null() {
            let found = name(other).map_or(std::ptr::null(), CStr::as_ptr);
            checked.name.store(found.cast_mut(), Ordering::Release);
        }
    }
}

/// Has a probe checked from its next activation on. If there is no memory for it, it is not
/// checked.
pub(crate) fn watch(probe: &Probe) {
    let checked = |_| Checked {
        probe: probe.id(),
        function: AtomicUsize::new(NOTHING as usize),
        other: AtomicUsize::new(0),
        name: AtomicPtr::default(),
    };
    let number = CHECKED.push_with(checked).map_or(0, |number| number as u32 + 1);
    probe.cell().list.store(number, Ordering::Release);
}

/// Sets the function of a probe that was discovered. Release: a thread that finds this function has
/// everything that was stored before.
#[inline]
pub(crate) fn set_function(probe: &Probe, function: ProbeFn) {
    let cell = probe.cell();
    let function = function as usize;
    match checked(cell.list.load(Ordering::Acquire)) {
        None => cell.function.store(function, Ordering::Release),
        Some(checked) => {
            checked.function.store(function, Ordering::Release);
            cell.function.store(CHECK as usize, Ordering::Release);
        }
    }
}

#[inline]
fn checked(number: u32) -> Option<&'static Checked> {
    CHECKED.get(number.checked_sub(1)? as usize)
}

const CHECK: ProbeFn = check;
const NOTHING: ProbeFn = nothing;

unsafe extern "C" fn nothing(_id: ProbeId, _call_site: usize, _this_fn: usize) {}

/// Checks the function, and continues at the probe function as if the stub had: with the same
/// arguments and the same stack. Of the registers that a callee may change, only the arguments are
/// live.
#[unsafe(naked)]
unsafe extern "C" fn check(id: ProbeId, call_site: usize, this_fn: usize) {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {compare}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        compare = sym compare,
    )
}

/// Records the function if it is not that of the probe. Returns the address of the probe function.
/// Like any probe function, it may run in any context.
extern "C" fn compare(id: ProbeId, _call_site: usize, this_fn: usize) -> usize {
    let found = PROBES.get(id.0 as usize).and_then(|probe| {
        let checked = checked(probe.cell().list.load(Ordering::Acquire))?;
        if probe.function().address.load(Ordering::Relaxed) != this_fn {
            checked.note(this_fn);
        }
        Some(checked.function.load(Ordering::Acquire))
    });
    found.unwrap_or(NOTHING as usize)
}
