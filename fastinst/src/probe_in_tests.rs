//! Probes for the unit tests, at calls that are never executed.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use callpatch::stub::CELL_SIZE;
use callpatch::{CallSite, Clobbers, PackedSite, SiteText, State};
use wordpatch::near::NearBlock;

use crate::permanent::{Cell, NewProbe, ObjectInfo, Probe, SiteFunction};
use crate::probe::ProbeKind;

/// Excludes other tests: the table of probes, its counters and the callbacks are global.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TEST: Mutex<()> = Mutex::new(());
    TEST.lock().unwrap_or_else(|e| e.into_inner())
}

/// Gives a probe a name, which makes it discovered.
pub(crate) fn discover(probe: &Probe) {
    probe.function().name.store(c"function".as_ptr().cast_mut(), Ordering::Release);
    probe.discover();
}

/// The state of a probe's site.
pub(crate) fn state_of(probe: &Probe) -> State {
    probe.site().expect("it is loaded").switch.state().expect("a call, on or off")
}

/// The offset of the call from the base of its text.
const OFFSET: u32 = 2;

/// An active call to the byte after it, which is never executed, and the data of a stub.
pub(crate) fn call_site() -> (SiteText, PackedSite, &'static Cell) {
    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];
    let anchor = call_site as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), CALL.len(), CELL_SIZE).expect("a block of text");
    let cell = std::ptr::with_exposed_provenance(block.data_address());
    block.code_mut()[..CALL.len()].copy_from_slice(&CALL);
    let code = block.seal().expect("text can be sealed").code;
    // SAFETY: a call in text that belongs to this module and is never executed.
    let site = unsafe { CallSite::decode(code, Clobbers::Nothing) }.expect("a call");
    let (text, site) = site.pack(code - OFFSET as usize).expect("it does not cross a window");
    // SAFETY: data of the block, which stays mapped, zeroed and aligned.
    (text, site, unsafe { &*cell })
}

/// A new probe, switched on, with no name yet.
pub(crate) fn probe() -> &'static Probe {
    let (text, site, cell) = call_site();
    let object = Box::leak(Box::new(ObjectInfo {
        provider: c"tests",
        path: c"/object",
        base: text.base(),
        of_functions: None,
    }));
    let function = SiteFunction::add(1, object, 1..10).expect("there is room");
    Probe::add(&NewProbe { text, site, site_offset: OFFSET, cell, function, kind: ProbeKind::ENTRY })
        .expect("there is room")
}
