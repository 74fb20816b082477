//! Uses `fastinst` as a Rust program does, on a library that is loaded into the test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastinst::provider::cyg_profile;
use fastinst::{Error, ProbeFn, ProbeId, activate_all, deactivate, deactivate_all};
use tests::load_plugin;

static FIRED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: ProbeId, _: usize, _: usize) {
    FIRED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn all_probes_of_a_library_switched_in_one_call() {
    let run = load_plugin();
    cyg_profile::start().expect("the provider starts");
    let found: Arc<Mutex<Vec<ProbeId>>> = Arc::default();
    let list = found.clone();
    let add = move |probe: &fastinst::ProbeMetadata<'_>| {
        let body = probe.body_start..probe.body_end;
        assert!(body.contains(&probe.site_address) && body.len() < 1000, "{probe:?}");
        assert_eq!(body.start, probe.function_address, "nothing is inlined: {probe:?}");
        list.lock().expect("no panic").push(probe.id);
    };
    fastinst::register_callback(add).expect("a callback can be registered");
    let probes = std::mem::take(&mut *found.lock().expect("no panic"));
    // Three functions: one is called once, one ten times, and one twenty times.
    assert!(probes.len() >= 6, "{} probes", probes.len());
    let fired = || {
        FIRED.store(0, Ordering::Relaxed);
        run(10);
        FIRED.load(Ordering::Relaxed)
    };
    assert_eq!(fired(), 0);

    let unknown = ProbeId(u32::MAX);
    let mut on: Vec<(ProbeId, ProbeFn)> = probes.iter().map(|id| (*id, count as ProbeFn)).collect();
    on.insert(1, (unknown, count));
    let toggles = fastinst::toggle_count();
    // SAFETY: `count` is never unloaded, and has no probes of its own.
    let results = unsafe { activate_all(&on) };
    assert!(matches!(results[1], Err(Error::UnknownProbe { id }) if id == unknown));
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), probes.len());
    assert_eq!(fastinst::toggle_count() - toggles, probes.len() as u64);
    assert_eq!(fired(), 2 * (1 + 10 + 20), "each call passes an entry and an exit");

    deactivate(probes[0]).expect("switched off");
    let toggles = fastinst::toggle_count();
    assert!(deactivate_all(&probes).iter().all(Result::is_ok));
    assert_eq!(fastinst::toggle_count() - toggles, probes.len() as u64 - 1, "one was off already");
    assert_eq!(fired(), 0);
}
