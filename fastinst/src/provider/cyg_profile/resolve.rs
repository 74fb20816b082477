//! Determines the function of a site by executing the site.
//!
//! If the function cannot be determined from the code, the site is left on with [`resolve`] as its
//! probe function. The first execution passes the function's address as an argument; the probe is
//! added to a list, and the service thread completes the discovery. Until then, a site at an entry
//! stays on and counts, and one at an exit is off. Both remain so if there is no service thread:
//! discovery of probes was not requested. This is the paper's discovery on first invocation
//! (section 7), for the few sites that need it.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{arrivals, stubs};
use crate::permanent::{PROBES, Probe};
use crate::probe::{ProbeId, ProbeKind};
use crate::service;

/// Head of the list of resolved probes: an id plus one, 0 for none.
static RESOLVED: AtomicU32 = AtomicU32::new(0);

/// The probe function of a site whose function is not known. Like any probe function, it may run in
/// any context: it uses atomics only, and makes one system call.
pub(super) unsafe extern "C" fn resolve(id: ProbeId, _call_site: usize, this_fn: usize) {
    let Some(probe) = PROBES.get(id.0 as usize) else { return };
    let is_entry = probe.kind == ProbeKind::ENTRY;
    if is_entry {
        arrivals::add(this_fn);
    }
    let address = &probe.function().address;
    if address.compare_exchange(0, this_fn, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    if is_entry && service::is_running() {
        stubs::count_from_now_on(probe);
    } else if let Ok(site) = probe.site() {
        // After an error the site stays on, which costs time but is correct.
        let _ = site.switch.deactivate();
    }
    let mut head = RESOLVED.load(Ordering::Relaxed);
    loop {
        probe.cell().list.store(head, Ordering::Relaxed);
        match RESOLVED.compare_exchange_weak(head, id.0 + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => head = now,
        }
    }
    service::notify();
}

/// Calls `complete` for each probe that was resolved since the last call.
pub(super) fn take_resolved(mut complete: impl FnMut(&'static Probe)) {
    let mut next = RESOLVED.swap(0, Ordering::Acquire);
    while let Some(probe) = next.checked_sub(1).and_then(|id| PROBES.get(id as usize)) {
        next = probe.cell().list.load(Ordering::Relaxed);
        complete(probe);
    }
}

#[cfg(test)]
mod tests {
    use callpatch::State;

    use super::*;
    use crate::probe_in_tests::{self, alone};

    #[test]
    fn an_entry_that_nobody_asks_for_is_switched_off_when_it_is_executed() {
        let _alone = alone();
        let probe = probe_in_tests::probe();
        probe.function().address.store(0, Ordering::Relaxed);
        let run = |this_fn| {
            // SAFETY: any function may be passed.
            unsafe { resolve(probe.id(), 0, this_fn) };
            probe_in_tests::state_of(probe)
        };
        service::stopped_in_tests(|| assert_eq!(run(0x1234), State::Inactive));
        assert_eq!(probe.function().address.load(Ordering::Relaxed), 0x1234);
        // It is discovered when discovery is requested.
        let mut resolved = Vec::new();
        take_resolved(|probe| resolved.push(probe.id()));
        assert!(resolved.contains(&probe.id()));
    }
}
