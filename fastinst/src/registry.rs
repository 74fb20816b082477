//! Probes by id. Permanent probes are in a table, which is appended to under the lock of discovery,
//! and read and switched without locks. The others belong to a [`group`].

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use callpatch::{Switch, Toggle};
use fastinst_sigsafe::Segments;

use crate::error::Error;
use crate::group;
use crate::probe::{ProbeFn, ProbeId, ProbeKind, ProbeMetadata};

/// A permanent probe: a call inserted by a compiler, which was retargeted to one of our stubs.
pub(crate) struct Probe {
    /// The site, tagged with [`UNLOADED`] if its library was unloaded. Old values are never freed:
    /// a thread may be using them.
    pub(crate) site: AtomicPtr<Switch>,
    /// The data that the stub reads.
    pub(crate) cell: &'static Cell,
    /// The function of the probe; 0 until it is known.
    pub(crate) function_address: AtomicUsize,
    /// The function's name, a C string that lives as long as the process. Null until discovery has
    /// looked it up; until then, the probe is not announced to callbacks.
    pub(crate) name: AtomicPtr<c_char>,
    pub(crate) object: &'static ObjectInfo,
    /// The offset of the site, and of the code that contains it, from the object's lowest address.
    pub(crate) site_offset: u32,
    pub(crate) body: Range<u32>,
    pub(crate) kind: ProbeKind,
    /// Whether the user has requested it to be active: the initial state when its library is loaded
    /// again.
    pub(crate) wanted: AtomicBool,
}

const _: () = assert!(size_of::<Probe>() <= 56, "there may be a million of them");

/// A stub's data: see [`callpatch::stub`].
#[repr(C)]
pub(crate) struct Cell {
    /// The probe function. Written with one atomic store.
    pub(crate) function: AtomicUsize,
    /// The probe's id.
    pub(crate) number: AtomicU32,
    /// Next probe in the list of those whose functions were determined by executing them.
    pub(crate) next_resolved: AtomicU32,
}

/// The part of the metadata that the probes of an object share.
#[derive(Debug)]
pub(crate) struct ObjectInfo {
    /// The name of the provider that found them.
    pub(crate) provider: &'static CStr,
    pub(crate) path: &'static CStr,
    pub(crate) base: usize,
}

pub(crate) static PROBES: Segments<Probe> = Segments::new();

const _: () = assert!(Segments::<Probe>::LIMIT <= ProbeId::FIRST_OF_GROUPS.0 as usize);

static TOGGLES: AtomicU64 = AtomicU64::new(0);

/// The tag of sites in unloaded libraries. Sites are aligned, so the bit is free.
const UNLOADED: usize = 1;

const _: () = assert!(align_of::<Switch>() > UNLOADED);

impl Probe {
    pub(crate) fn id(&self) -> ProbeId {
        ProbeId(self.cell.number.load(Ordering::Relaxed))
    }

    pub(crate) fn site(&self) -> Result<&'static Switch, Error> {
        // Acquire: pairs with the Release that published the site.
        let site = self.site.load(Ordering::Acquire);
        if site.addr() & UNLOADED != 0 {
            return Err(Error::Unloaded { id: self.id() });
        }
        // SAFETY: leaked, and an untagged pointer is that of the site itself.
        Ok(unsafe { &*site })
    }

    /// Marks the library of the probe as unloaded.
    pub(crate) fn unload(&self) {
        let site = self.site.load(Ordering::Relaxed);
        self.site.store(site.map_addr(|address| address | UNLOADED), Ordering::Release);
    }

    /// The site from before the library was unloaded.
    pub(crate) fn previous_site(&self) -> Option<&'static Switch> {
        let site = self.site.load(Ordering::Acquire);
        let was_unloaded = site.addr() & UNLOADED != 0;
        // SAFETY: leaked.
        was_unloaded.then(|| unsafe { &*site.map_addr(|address| address & !UNLOADED) })
    }

    /// The address of the site's instruction.
    pub(crate) fn site_address(&self) -> usize {
        self.object.base + self.site_offset as usize
    }

    /// Assigns the new site after the library was loaded again and the site was retargeted to the
    /// stub.
    pub(crate) fn reassign(&self, site: &'static Switch) {
        self.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Release);
        if self.function_address.load(Ordering::Relaxed) == 0 {
            let _ = site.activate();
        } else {
            self.restore();
        }
    }

    /// Brings the code of the site to the state that the user has requested, even while other
    /// threads switch it.
    pub(crate) fn restore(&self) {
        loop {
            let Ok(site) = self.site() else { return };
            let wanted = self.wanted.load(Ordering::Acquire);
            // An error concerns foreign bytes; the user's next activate or deactivate returns it.
            let _ = if wanted { site.activate() } else { site.deactivate() };
            if self.wanted.load(Ordering::Acquire) == wanted {
                return;
            }
        }
    }

    pub(crate) fn metadata(&self) -> Option<ProbeMetadata<'static>> {
        let name = self.name.load(Ordering::Acquire);
        if name.is_null() {
            return None;
        }
        let address = |offset: u32| self.object.base + offset as usize;
        Some(ProbeMetadata {
            id: self.id(),
            provider: self.object.provider,
            kind: self.kind,
            // SAFETY: a C string that is never freed, published with Release.
            function_name: unsafe { CStr::from_ptr(name) },
            function_address: self.function_address.load(Ordering::Relaxed),
            site_address: self.site_address(),
            body_start: address(self.body.start),
            body_end: address(self.body.end),
            object_path: self.object.path,
            object_base: self.object.base,
            module_place: None,
        })
    }
}

/// The probe, or an error if it was not announced to callbacks.
#[inline]
fn discovered(probe: &'static Probe, id: ProbeId) -> Result<&'static Probe, Error> {
    if probe.name.load(Ordering::Acquire).is_null() { Err(Error::Undiscovered { id }) } else { Ok(probe) }
}

/// Toggles the site of a probe. Returns whether code was changed.
#[inline]
fn switch(
    probe: &Probe,
    toggle: impl Fn(&Switch) -> Result<Toggle, callpatch::Error>,
) -> Result<bool, Error> {
    loop {
        let site = probe.site()?;
        match toggle(site) {
            Ok(toggle) => return Ok(toggle == Toggle::Changed),
            // The library was unloaded meanwhile, and the pages of the site were released. Each
            // iteration requires another unloading.
            Err(_) if !std::ptr::eq(probe.site()?, site) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// # Safety
/// As [`activate`].
#[inline]
unsafe fn switch_on(id: ProbeId, function: ProbeFn) -> Result<bool, Error> {
    let Some(probe) = PROBES.get(id.0 as usize) else {
        // SAFETY: the caller's obligation.
        return unsafe { group::activate(id, function) };
    };
    let probe = discovered(probe, id)?;
    // Release, and before the code: a thread that executes the new code finds the new function.
    probe.cell.function.store(function as usize, Ordering::Release);
    probe.wanted.store(true, Ordering::Release);
    switch(probe, Switch::activate)
}

#[inline]
fn switch_off(id: ProbeId) -> Result<bool, Error> {
    let Some(probe) = PROBES.get(id.0 as usize) else { return group::deactivate(id) };
    let probe = discovered(probe, id)?;
    probe.wanted.store(false, Ordering::Release);
    switch(probe, Switch::deactivate)
}

fn count(toggles: u64) {
    if toggles > 0 {
        TOGGLES.fetch_add(toggles, Ordering::Relaxed);
    }
}

/// Makes the probe call `function` whenever its site is executed. If the probe is already active,
/// only the function changes, and no code.
///
/// If the library of the probe is unloaded and later loaded again at the same address, the probe is
/// active again.
///
/// Makes two atomic stores; does not block, lock or allocate, and may be called from signal
/// handlers and probe functions. Other threads see the change within T_max. (The provider of a
/// [group] may document something else for its probes.)
///
/// # Errors
/// [`Error::UnknownProbe`], [`Error::Undiscovered`], [`Error::Unloaded`], [`Error::Retired`]; or an
/// error because the site holds foreign bytes.
///
/// # Safety
/// `function` must stay callable for as long as any thread may execute the site, and comply with
/// the contract of [`ProbeFn`].
pub unsafe fn activate(id: ProbeId, function: ProbeFn) -> Result<(), Error> {
    // SAFETY: the caller's obligation.
    count(unsafe { switch_on(id, function) }?.into());
    Ok(())
}

/// Deactivates the probe: its site calls nothing. One atomic store, otherwise as [`activate`].
///
/// # Errors
/// As [`activate`].
pub fn deactivate(id: ProbeId) -> Result<(), Error> {
    count(switch_off(id)?.into());
    Ok(())
}

/// Activates many probes, in order, and returns the result of [`activate`] for each. The failure of
/// one probe does not affect the others. The batch is not atomic, and since a single activation
/// does not wait for anything, it saves little time. Allocates the results: must not be called from
/// signal handlers.
///
/// # Safety
/// As [`activate`], for each.
pub unsafe fn activate_all(probes: &[(ProbeId, ProbeFn)]) -> Vec<Result<(), Error>> {
    // SAFETY: the caller's obligation.
    all(probes.iter().map(|(id, function)| unsafe { switch_on(*id, *function) }))
}

/// Deactivates many probes, in order. Otherwise as [`activate_all`].
pub fn deactivate_all(probes: &[ProbeId]) -> Vec<Result<(), Error>> {
    all(probes.iter().map(|id| switch_off(*id)))
}

/// Collects the results of many switches and counts the toggles in one operation.
fn all(switches: impl Iterator<Item = Result<bool, Error>>) -> Vec<Result<(), Error>> {
    let mut toggles = 0;
    let results = switches.map(|switched| switched.map(|changed| toggles += u64::from(changed))).collect();
    count(toggles);
    results
}

/// The number of permanent probes. Their ids are below it.
pub fn probe_count() -> usize {
    PROBES.len()
}

/// The number of times that [`activate`] and [`deactivate`] have changed code.
pub fn toggle_count() -> u64 {
    TOGGLES.load(Ordering::Relaxed)
}

/// Calls `read` with the metadata of a probe, and returns its result. The metadata stay valid
/// during the call, even if the probe is retired meanwhile.
///
/// Does not lock or allocate; signal handlers may call it.
///
/// # Errors
/// [`Error::UnknownProbe`], [`Error::Undiscovered`], [`Error::Retired`].
pub fn with_metadata<R>(id: ProbeId, read: impl FnOnce(&ProbeMetadata<'_>) -> R) -> Result<R, Error> {
    match PROBES.get(id.0 as usize) {
        Some(probe) => probe.metadata().map(|metadata| read(&metadata)).ok_or(Error::Undiscovered { id }),
        None => group::with_metadata(id, read),
    }
}

/// The metadata of a permanent probe; `None` for probes of groups, and before the discovery of the
/// probe.
///
/// Does not lock or allocate; signal handlers may call it.
pub fn lasting_metadata(id: ProbeId) -> Option<ProbeMetadata<'static>> {
    PROBES.get(id.0 as usize)?.metadata()
}

#[cfg(test)]
mod tests {
    use callpatch::State;

    use super::*;
    use crate::probe_in_tests::{alone, call_site, name, probe};

    unsafe extern "C" fn first(_: ProbeId, _: usize, _: usize) {}

    unsafe extern "C" fn second(_: ProbeId, _: usize, _: usize) {}

    /// Activates the probe. Returns the number of times that code was changed.
    fn activated(probe: &Probe, function: ProbeFn) -> u64 {
        let before = toggle_count();
        // SAFETY: the site is never executed.
        unsafe { activate(probe.id(), function) }.unwrap();
        toggle_count() - before
    }

    fn deactivated(probe: &Probe) -> u64 {
        let before = toggle_count();
        deactivate(probe.id()).unwrap();
        toggle_count() - before
    }

    #[test]
    fn code_changes_only_if_the_probe_was_in_the_other_state() {
        let _alone = alone();
        let probe = probe();
        probe.name.store(name(), Ordering::Release);
        let state = || (probe.site().unwrap().state().unwrap(), probe.wanted.load(Ordering::Relaxed));
        assert_eq!((deactivated(probe), state()), (1, (State::Inactive, false)));
        assert_eq!((deactivated(probe), state()), (0, (State::Inactive, false)));
        assert_eq!((activated(probe, first), state()), (1, (State::Active, true)));
        assert_eq!(probe.cell.function.load(Ordering::Relaxed), first as *const () as usize);
        assert_eq!((activated(probe, second), state()), (0, (State::Active, true)), "data, not code");
        assert_eq!(probe.cell.function.load(Ordering::Relaxed), second as *const () as usize);
        assert_eq!((deactivated(probe), state()), (1, (State::Inactive, false)));
    }

    #[test]
    fn batches_switch_and_count_every_probe() {
        let _alone = alone();
        let probes: [&Probe; 2] = [probe(), probe()];
        probes.iter().for_each(|probe| probe.name.store(name(), Ordering::Release));
        let before = toggle_count();
        let ids = probes.map(|probe| probe.id());
        let unknown = ProbeId(u32::MAX);
        let results = deactivate_all(&[ids[0], unknown, ids[1], ids[0]]);
        assert!(
            matches!(results[..], [Ok(()), Err(Error::UnknownProbe { id }), Ok(()), Ok(())] if id == unknown)
        );
        assert_eq!(toggle_count() - before, 2);
    }

    #[test]
    fn an_undiscovered_probe_cannot_be_switched() {
        let _alone = alone();
        let probe = probe();
        // SAFETY: the site is never executed.
        let refused = unsafe { activate(probe.id(), first) };
        assert!(matches!(refused, Err(Error::Undiscovered { id }) if id == probe.id()));
        assert!(matches!(deactivate(probe.id()), Err(Error::Undiscovered { .. })));
        assert_eq!(probe.site().unwrap().state().unwrap(), State::Active);
        assert_eq!(probe.cell.function.load(Ordering::Relaxed), 0);
        assert!(matches!(with_metadata(probe.id(), |_| ()), Err(Error::Undiscovered { .. })));
        assert!(lasting_metadata(probe.id()).is_none());
        probe.name.store(name(), Ordering::Release);
        assert!(with_metadata(probe.id(), |metadata| metadata.function_name == c"function").unwrap());
        assert_eq!(lasting_metadata(probe.id()).unwrap().function_name, c"function");
    }

    /// If a library is loaded again while its probe is being switched, the new site is switched,
    /// not the old one.
    #[test]
    fn the_new_site_is_switched_if_the_site_is_replaced_meanwhile() {
        let _alone = alone();
        let probe = probe();
        let (old, new) = (probe.site().unwrap(), call_site());
        let foreign =
            || callpatch::Error::NotACall { address: 0, found: wordpatch::Bytes::new(&[0]).unwrap() };
        let toggle = |site: &Switch| {
            if std::ptr::eq(site, old) {
                probe.site.store(std::ptr::from_ref(new).cast_mut(), Ordering::Release);
                return Err(foreign());
            }
            site.deactivate()
        };
        assert!(switch(probe, toggle).unwrap());
        assert_eq!((old.state().unwrap(), new.state().unwrap()), (State::Active, State::Inactive));
        // If the site stays the same, the error is returned to the caller.
        assert!(matches!(switch(probe, |_| Err(foreign())), Err(Error::Call(_))));
        // If the library is not loaded again, the error is that it was unloaded.
        let unload = |_: &Switch| {
            probe.unload();
            Err(foreign())
        };
        assert!(matches!(switch(probe, unload), Err(Error::Unloaded { id }) if id == probe.id()));
    }
}
