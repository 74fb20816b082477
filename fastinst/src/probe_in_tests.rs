//! A probe of the unit tests' own, at a call that nobody executes.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

use callpatch::{CallSite, Clobbers};
use wordpatch::near::NearBlock;

use crate::probe::{ProbeId, ProbeType};
use crate::registry::{CStrBox, PROBES, Probe};

/// The table of probes, its counters and the callbacks are global: one test at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TEST: Mutex<()> = Mutex::new(());
    TEST.lock().unwrap_or_else(|e| e.into_inner())
}

/// A name, for a probe that is discovered.
pub(crate) fn name() -> *mut CStrBox {
    Box::into_raw(Box::new(CStrBox(c"function")))
}

/// An active call to the byte after it, which nobody executes.
pub(crate) fn call_site() -> &'static CallSite {
    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];
    let anchor = call_site as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), CALL.len(), 0).expect("a block of text");
    block.code_mut()[..CALL.len()].copy_from_slice(&CALL);
    let code = block.seal().expect("text can be sealed").code;
    // SAFETY: a call in text of this module's own, which nobody executes.
    Box::leak(Box::new(unsafe { CallSite::decode(code, Clobbers::Nothing) }.expect("a call")))
}

/// A new probe that is switched on, with no name yet.
pub(crate) fn probe() -> &'static Probe {
    let site = call_site();
    let make = |number: usize| Probe {
        id: ProbeId(number as u32),
        kind: ProbeType::Entry,
        site: AtomicPtr::new(std::ptr::from_ref(site).cast_mut()),
        site_address: site.address(),
        body: site.address()..site.address() + 5,
        function_cell: Box::leak(Box::new(AtomicUsize::new(0))),
        function_address: AtomicUsize::new(1),
        name: AtomicPtr::new(std::ptr::null_mut()),
        object_path: c"/object",
        object_base: 0,
        wanted: AtomicBool::new(false),
        next_resolved: AtomicU32::new(0),
    };
    PROBES.push_with(make).and_then(|number| PROBES.get(number)).expect("there is room")
}
