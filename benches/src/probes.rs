//! The probes of this process.

use std::sync::{Arc, Mutex};

use fastinst::ProbeMetadata;

/// All permanent probes that are known now, in the order of discovery.
///
/// # Panics
/// When called from a callback of fastinst.
#[must_use]
pub fn discovered() -> Vec<ProbeMetadata<'static>> {
    let found: Arc<Mutex<Vec<ProbeMetadata<'static>>>> = Arc::default();
    let list = found.clone();
    let collect = move |probe: &ProbeMetadata<'_>| {
        list.lock().expect("no callback has failed").extend(fastinst::lasting_metadata(probe.id));
    };
    fastinst::register_callback(collect).expect("not called from a callback");
    std::mem::take(&mut *found.lock().expect("no callback has failed"))
}
