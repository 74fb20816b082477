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

/// Maximum number of other functions of a probe that are recorded.
const MAX_OTHERS: usize = 8;

/// A probe that is checked.
struct Checked {
    probe: ProbeId,
    /// The probe function at which the check continues.
    function: AtomicUsize,
    /// The other functions that have executed the site, in this order.
    others: [Other; MAX_OTHERS],
}

/// Another function at a site.
#[derive(Default)]
struct Other {
    /// Its address; 0 if there is none.
    address: AtomicUsize,
    /// Its name, a C string that lives as long as the process; null until it is looked up.
    name: AtomicPtr<c_char>,
}

impl Checked {
    /// The other functions.
    fn others(&self) -> impl Iterator<Item = (usize, &Other)> {
        let others = self.others.iter().map(|other| (other.address.load(Ordering::Relaxed), other));
        others.take_while(|(address, _)| *address != 0)
    }

    /// Records another function. Only the first time changes memory that threads share.
    fn note(&self, found: usize) {
        for other in &self.others {
            let address = match other.address.load(Ordering::Relaxed) {
                0 => other.address.compare_exchange(0, found, Ordering::Relaxed, Ordering::Relaxed),
                address => Err(address),
            };
            match address {
                Ok(_) => return service::notify(),
                Err(address) if address == found => return,
                Err(_) => {}
            }
        }
    }
}

static CHECKED: Segments<Checked> = Segments::new();

/// A function that executes the site of a probe of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedSite {
    /// The probe. Its metadata name the function that executed the site first.
    pub probe: ProbeId,
    /// The address of the other function.
    pub other: usize,
    /// The name of that function; `None` if it is not known (yet).
    pub name: Option<&'static CStr>,
}

/// The sites that several functions have executed while their probes were active: their probes fire
/// for all of these functions. An entry for each function but the first, of which eight are
/// recorded for each probe. Does not block.
#[must_use]
pub fn merged_sites() -> Vec<MergedSite> {
    let merged = |checked: &'static Checked| {
        checked.others().map(|(address, other)| {
            let name = other.name.load(Ordering::Acquire);
            // SAFETY: a C string that lives as long as the process, if not null.
            let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
            MergedSite { probe: checked.probe, other: address, name }
        })
    };
    CHECKED.iter().flat_map(merged).collect()
}

/// Looks up the names of functions that have been found since the last call.
pub(crate) fn look_up_names(mut name: impl FnMut(usize) -> Option<&'static CStr>) {
    for (address, other) in CHECKED.iter().flat_map(Checked::others) {
        if other.name.load(Ordering::Relaxed).is_null() {
            let found = name(address).map_or(std::ptr::null(), CStr::as_ptr);
            other.name.store(found.cast_mut(), Ordering::Release);
        }
    }
}

/// Has a probe checked from its next activation on. If there is no memory for it, it is not
/// checked.
pub(crate) fn watch(probe: &Probe) {
    let checked = |_| Checked {
        probe: probe.id(),
        function: AtomicUsize::new(NOTHING as usize),
        others: Default::default(),
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
