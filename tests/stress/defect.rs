//! Defects that are injected on request: a scenario that does not detect them tests nothing.

use std::hint::spin_loop;

use wordpatch::{FetchModel, Split, State, TextRef, start_patch};

use crate::options::Defect;
use crate::run::Run;
use crate::sites::{LENGTH, Value, bytes_at};

/// Injects the requested defect, if any, into these sites; runs on a separate thread.
pub(crate) fn inject(run: &Run, sites: &[usize]) {
    let Some(defect) = run.defect else { return };
    let worker = run.worker("the injected defect");
    match defect {
        Defect::Overwrite => {
            while worker.continues() {
                for site in sites {
                    let loaded = bytes_at(*site);
                    (0..2_000).for_each(|_| spin_loop());
                    write_by_bytes(*site, &loaded);
                }
            }
        }
        Defect::Tear => {
            while worker.continues() {
                for site in sites {
                    let loaded = bytes_at(*site);
                    write_by_bytes(*site, &Value(loaded[1]).next().form());
                    write_by_bytes(*site, &loaded);
                }
            }
        }
        Defect::Lock => while worker.continues() && !sites.iter().any(|site| lock(*site)) {},
        Defect::Writable => {
            let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address that the kernel chooses.
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, all, kind, -1, 0) };
        }
        Defect::Hang => {
            worker.beat();
            loop {
                std::thread::park();
            }
        }
        // Injected by `wasm.rs`.
        Defect::Switch | Defect::Leak => {}
    }
}

/// Writes a site byte by byte, which is the defect.
fn write_by_bytes(site: usize, bytes: &[u8; LENGTH]) {
    // SAFETY: the sites stay mapped.
    let Ok(place) = (unsafe { TextRef::resolve(site, LENGTH) }) else { return };
    let Some(view) = place.writable_view() else { return };
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: inside the writable alias of the site.
        unsafe { view.add(i).write_volatile(*byte) };
    }
}

/// Starts a patch of the current bytes, and abandons it; returns whether the site is now locked.
fn lock(site: usize) -> bool {
    if FetchModel::in_force().window.split(site, LENGTH) == Split::Inside {
        return false;
    }
    let old = bytes_at(site);
    let new = Value(old[1]).next().form();
    // SAFETY: the sites stay mapped, and hold one instruction that may be any of the values.
    match unsafe { start_patch(site, &old, &new) } {
        Ok(patch) if patch.state() != State::Finished => {
            patch.detach();
            true
        }
        _ => false,
    }
}
