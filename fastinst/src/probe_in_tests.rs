//! Probes for the unit tests, at calls that are never executed.

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use callpatch::{CallSite, Clobbers, Switch};
use wordpatch::near::NearBlock;

use crate::permanent::{Cell, ObjectInfo, PROBES, Probe};
use crate::probe::ProbeKind;

/// Excludes other tests: the table of probes, its counters and the callbacks are global.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TEST: Mutex<()> = Mutex::new(());
    TEST.lock().unwrap_or_else(|e| e.into_inner())
}

/// A name, which makes a probe discovered.
pub(crate) fn name() -> *mut c_char {
    c"function".as_ptr().cast_mut()
}

/// An active call to the byte after it, which is never executed.
pub(crate) fn call_site() -> &'static Switch {
    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];
    let anchor = call_site as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), CALL.len(), 0).expect("a block of text");
    block.code_mut()[..CALL.len()].copy_from_slice(&CALL);
    let code = block.seal().expect("text can be sealed").code;
    // SAFETY: a call in text that belongs to this module and is never executed.
    let site = unsafe { CallSite::decode(code, Clobbers::Nothing) }.expect("a call");
    Box::leak(Box::new(site.switch()))
}

/// A new probe, switched on, with no name yet.
pub(crate) fn probe() -> &'static Probe {
    let site = call_site();
    let cell =
        Cell { function: AtomicUsize::new(0), number: AtomicU32::new(0), next_resolved: AtomicU32::new(0) };
    let cell: &'static Cell = Box::leak(Box::new(cell));
    let object = Box::leak(Box::new(ObjectInfo {
        provider: c"tests",
        path: c"/object",
        base: 0x1000,
        of_functions: None,
    }));
    let make = |number: usize| {
        cell.number.store(number as u32, Ordering::Relaxed);
        Probe {
            site: AtomicPtr::new(std::ptr::from_ref(site).cast_mut()),
            cell,
            function_address: AtomicUsize::new(1),
            name: AtomicPtr::new(std::ptr::null_mut()),
            object: AtomicPtr::new(object),
            site_offset: 2,
            body: 1..10,
            kind: ProbeKind::ENTRY,
            wanted: AtomicBool::new(false),
        }
    };
    PROBES.push_with(make).and_then(|number| PROBES.get(number)).expect("there is room")
}
