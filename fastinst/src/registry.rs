//! Probes by id. Those that stay as long as the process are in a table, which is appended to under
//! discovery's lock, and read and switched without locks. The others belong to a
//! [`group`].

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use callpatch::{Switch, Toggle};
use fastinst_sigsafe::Segments;

use crate::error::Error;
use crate::group;
use crate::probe::{ProbeFn, ProbeId, ProbeKind, ProbeMetadata};

/// A probe that stays: a call that a compiler has placed and that was led to a stub of ours.
pub(crate) struct Probe {
    /// The site; with [`UNLOADED`] added when its library was unloaded. Old values are never freed:
    /// a thread may be using them.
    pub(crate) site: AtomicPtr<Switch>,
    /// What the stub reads.
    pub(crate) cell: &'static Cell,
    /// The function that the probe belongs to; 0 until known.
    pub(crate) function_address: AtomicUsize,
    /// The function's name, a C string that lives as long as the process. Null until discovery has
    /// looked it up; then the callbacks know nothing of the probe.
    pub(crate) name: AtomicPtr<c_char>,
    pub(crate) object: &'static ObjectInfo,
    /// Where the site is, and the code that holds it, from the object's lowest address.
    pub(crate) site_offset: u32,
    pub(crate) body: Range<u32>,
    pub(crate) kind: ProbeKind,
    /// Whether the user wants it active: what a library that is loaded again begins with.
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
    /// Next probe in the list of those whose function was found out by executing them.
    pub(crate) next_resolved: AtomicU32,
}

/// An object as its probes' metadata tell.
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

/// Marks the site of a library that was unloaded: sites are aligned.
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
        // SAFETY: leaked, and without the mark it is the site itself.
        Ok(unsafe { &*site })
    }

    /// Its library was unloaded.
    pub(crate) fn unload(&self) {
        let site = self.site.load(Ordering::Relaxed);
        self.site.store(site.map_addr(|address| address | UNLOADED), Ordering::Release);
    }

    /// The site that it had before its library was unloaded.
    pub(crate) fn previous_site(&self) -> Option<&'static Switch> {
        let site = self.site.load(Ordering::Acquire);
        let was_unloaded = site.addr() & UNLOADED != 0;
        // SAFETY: leaked.
        was_unloaded.then(|| unsafe { &*site.map_addr(|address| address & !UNLOADED) })
    }

    /// Where the site's instruction starts.
    pub(crate) fn site_address(&self) -> usize {
        self.object.base + self.site_offset as usize
    }

    /// Gives it its site after its library was loaded again, which has led it to the stub again.
    pub(crate) fn come_back(&self, site: &'static Switch) {
        self.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Release);
        if self.function_address.load(Ordering::Relaxed) == 0 {
            let _ = site.activate();
        } else {
            self.restore();
        }
    }

    /// Has the site's code be what the user wants, whatever threads are at switching it.
    pub(crate) fn restore(&self) {
        loop {
            let Ok(site) = self.site() else { return };
            let wanted = self.wanted.load(Ordering::Acquire);
            // A refusal concerns foreign bytes; the user's next activate or deactivate gives it.
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
        })
    }
}

/// The probe, unless the callbacks know nothing of it.
#[inline]
fn discovered(probe: &'static Probe, id: ProbeId) -> Result<&'static Probe, Error> {
    if probe.name.load(Ordering::Acquire).is_null() { Err(Error::Undiscovered { id }) } else { Ok(probe) }
}

/// Gives whether code was changed.
#[inline]
fn switch(
    probe: &Probe,
    toggle: impl Fn(&Switch) -> Result<Toggle, callpatch::Error>,
) -> Result<bool, Error> {
    loop {
        let site = probe.site()?;
        match toggle(site) {
            Ok(toggle) => return Ok(toggle == Toggle::Changed),
            // The library went away in between: the site's pages were given back. Each turn takes
            // another unloading.
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

/// Has `function` called whenever the probe's site is executed. For a probe that is active already,
/// this changes the function and no code.
///
/// The probe of a library that is unloaded now is active when the library is loaded again at the
/// same address.
///
/// Two atomic stores; does not block, lock or allocate, and may be called from a signal handler or
/// from a probe function. Other threads see the change within T_max. (The
/// provider of a [group] may document something else for its probes.)
///
/// # Errors
/// [`Error::UnknownProbe`], [`Error::Undiscovered`], [`Error::Unloaded`], [`Error::Retired`], or
/// the site holds foreign bytes.
///
/// # Safety
/// `function` must stay callable for as long as any thread may execute the site, and keep the
/// contract of [`ProbeFn`].
pub unsafe fn activate(id: ProbeId, function: ProbeFn) -> Result<(), Error> {
    // SAFETY: the caller's obligation.
    count(unsafe { switch_on(id, function) }?.into());
    Ok(())
}

/// Has the probe's site call nothing from now on. One atomic store, otherwise as [`activate`].
///
/// # Errors
/// As [`activate`].
pub fn deactivate(id: ProbeId) -> Result<(), Error> {
    count(switch_off(id)?.into());
    Ok(())
}

/// [`activate`] for many probes, in order; says for each what it would say. A probe that fails
/// leaves the others switched. There is nothing to wait for, so this saves little: the calls are
/// not atomic as a whole. Allocates the results: not for signal handlers.
///
/// # Safety
/// As [`activate`], for each.
pub unsafe fn activate_all(probes: &[(ProbeId, ProbeFn)]) -> Vec<Result<(), Error>> {
    // SAFETY: the caller's obligation.
    all(probes.iter().map(|(id, function)| unsafe { switch_on(*id, *function) }))
}

/// [`deactivate`] for many probes, as [`activate_all`].
pub fn deactivate_all(probes: &[ProbeId]) -> Vec<Result<(), Error>> {
    all(probes.iter().map(|id| switch_off(*id)))
}

/// The results of many switches, counted at once.
fn all(switches: impl Iterator<Item = Result<bool, Error>>) -> Vec<Result<(), Error>> {
    let mut toggles = 0;
    let results = switches.map(|switched| switched.map(|changed| toggles += u64::from(changed))).collect();
    count(toggles);
    results
}

/// The number of probes that stay as long as the process. Their ids are below it.
pub fn probe_count() -> usize {
    PROBES.len()
}

/// How many times code was changed by [`activate`] and [`deactivate`].
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

/// The metadata of a probe that stays as long as the process; `None` for probes of groups, and
/// before the discovery of the probe.
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

    /// Switches it on, and gives how many times code was changed.
    fn activated(probe: &Probe, function: ProbeFn) -> u64 {
        let before = toggle_count();
        // SAFETY: nobody executes the site.
        unsafe { activate(probe.id(), function) }.unwrap();
        toggle_count() - before
    }

    fn deactivated(probe: &Probe) -> u64 {
        let before = toggle_count();
        deactivate(probe.id()).unwrap();
        toggle_count() - before
    }

    #[test]
    fn a_probe_is_switched_off_and_on_and_code_is_changed_only_then() {
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
    fn many_probes_are_switched_and_counted_at_once() {
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
    fn a_probe_that_is_not_discovered_stays_as_it_is() {
        let _alone = alone();
        let probe = probe();
        // SAFETY: nobody executes the site.
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

    /// A library that is loaded again while its probe is being switched: the new site is switched,
    /// not the old one.
    #[test]
    fn a_site_that_is_replaced_meanwhile_is_switched_in_its_new_place() {
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
        // The same error of a site that stays is the caller's.
        assert!(matches!(switch(probe, |_| Err(foreign())), Err(Error::Call(_))));
        // And one of a library that stays away says so.
        let unload = |_: &Switch| {
            probe.unload();
            Err(foreign())
        };
        assert!(matches!(switch(probe, unload), Err(Error::Unloaded { id }) if id == probe.id()));
    }
}
