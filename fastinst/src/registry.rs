//! Probes by id: the operations that a program uses. Permanent probes are in a table
//! ([`crate::permanent`]); the others belong to a [`group`].

use std::sync::atomic::{AtomicU64, Ordering};

use callpatch::{Switch, Toggle};

use crate::discovery::Discovery;
use crate::error::Error;
use crate::group;
use crate::merged;
use crate::permanent::{self, PROBES, Probe};
use crate::probe::{ProbeFn, ProbeId, ProbeMetadata};

static TOGGLES: AtomicU64 = AtomicU64::new(0);

/// The probe, or an error if it was not announced to callbacks.
#[inline]
fn discovered(probe: &'static Probe, id: ProbeId) -> Result<&'static Probe, Error> {
    if probe.is_discovered() { Ok(probe) } else { Err(Error::Undiscovered { id }) }
}

/// Toggles the site of a probe. Returns whether code was changed.
#[inline]
fn switch(
    probe: &Probe,
    toggle: impl Fn(&Switch) -> Result<Toggle, callpatch::Error>,
) -> Result<bool, Error> {
    loop {
        let site = probe.site()?;
        match toggle(&site.switch) {
            Ok(toggle) => return Ok(toggle == Toggle::Changed),
            // The library was unloaded in the meantime: the pages of the site's alias were
            // released, or, without an alias, the text was found changed or unmapped. Each
            // iteration requires another unloading.
            Err(_) if probe.site()?.text != site.text => {}
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
    // Before the code: a thread that executes the new code finds the new function.
    merged::set_function(probe, function);
    // `permanent::start_again` waits until it is visible, so that no fence is needed here.
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
/// active again. The same holds if it is activated while the library is unloaded.
///
/// Makes a few atomic operations, of which one changes code; never allocates, and may be called
/// from signal handlers and probe functions. Blocks and enters the kernel only if text access is by
/// mprotect, if a debugger has copied the page, or while text is moved after a fork
/// ([`TextRef::compare_exchange`](wordpatch::TextRef::compare_exchange) has the details). Other
/// threads see the change within T_max. (The provider of a [group] may document something else for
/// its probes.)
///
/// # Errors
/// [`Error::UnknownProbe`], [`Error::Undiscovered`], [`Error::Retired`], without an effect.
/// [`Error::Unloaded`], or [`Error::Call`] because the site holds foreign bytes or cannot be
/// written: the code is unchanged, but the request remains, and takes effect when the library is
/// loaded again. [`deactivate`] withdraws it, even if it returns an error as well.
///
/// # Safety
/// `function` must stay callable for as long as any thread may execute the site (also after
/// [`Error::Unloaded`] and [`Error::Call`], until the probe is deactivated), and comply with the
/// contract of [`ProbeFn`].
pub unsafe fn activate(id: ProbeId, function: ProbeFn) -> Result<(), Error> {
    // SAFETY: the caller's obligation.
    count(unsafe { switch_on(id, function) }?.into());
    Ok(())
}

/// Deactivates the probe, so that its site calls nothing. Otherwise as [`activate`].
///
/// # Errors
/// As [`activate`]. After [`Error::Unloaded`], the probe is inactive when its library is loaded
/// again.
pub fn deactivate(id: ProbeId) -> Result<(), Error> {
    count(switch_off(id)?.into());
    Ok(())
}

/// Activates many probes, in order, and returns the result of [`activate`] for each. The failure of
/// one probe does not affect the others. The batch is not atomic, and saves little time, since a
/// single activation does not wait for anything. Allocates the results: must not be called from
/// signal handlers.
///
/// # Safety
/// As [`activate`], for each probe.
#[must_use = "each probe may have failed"]
pub unsafe fn activate_all(probes: &[(ProbeId, ProbeFn)]) -> Vec<Result<(), Error>> {
    // SAFETY: the caller's obligation.
    all(probes.iter().map(|(id, function)| unsafe { switch_on(*id, *function) }))
}

/// Deactivates many probes, in order. Otherwise as [`activate_all`].
#[must_use = "each probe may have failed"]
pub fn deactivate_all(probes: &[ProbeId]) -> Vec<Result<(), Error>> {
    all(probes.iter().map(|id| switch_off(*id)))
}

/// Collects the results of many toggles, and counts them in one operation.
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
/// during the call, even if the probe is retired.
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

/// Whether the library of a permanent probe was loaded when its provider last looked. False for
/// probes of groups.
///
/// Does not lock or allocate; signal handlers may call it.
pub fn is_loaded(id: ProbeId) -> bool {
    PROBES.get(id.0 as usize).is_some_and(Probe::is_loaded)
}

/// A number that is larger each time that [`is_loaded`] may have changed.
pub fn load_count() -> u64 {
    permanent::LOADS.load(Ordering::Acquire)
}

/// Registers a callback. It is called for every known probe before this function returns, on this
/// thread, and for every probe that is discovered later, on the thread that discovers it. A
/// callback may activate and deactivate probes; it must not register callbacks.
///
/// If a callback panics, so does the function that has discovered the probe; callbacks that were
/// registered later are not called for this probe.
///
/// Blocks while another thread discovers probes.
///
/// # Errors
/// [`Error::CalledFromCallback`].
pub fn register_callback(callback: impl Fn(&ProbeMetadata<'_>) + Send + 'static) -> Result<(), Error> {
    let mut discovery = Discovery::begin()?;
    PROBES.iter().filter_map(Probe::metadata).for_each(|metadata| callback(&metadata));
    group::for_each_announced(&callback);
    discovery.add(Box::new(callback));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex};

    use callpatch::State;

    use super::*;
    use crate::probe_in_tests::{alone, call_site, discover, probe, state_of};

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
        discover(probe);
        let state = || (state_of(probe), probe.wanted.load(Ordering::Relaxed));
        assert_eq!((deactivated(probe), state()), (1, (State::Inactive, false)));
        assert_eq!((deactivated(probe), state()), (0, (State::Inactive, false)));
        assert_eq!((activated(probe, first), state()), (1, (State::Active, true)));
        assert_eq!(probe.cell().function.load(Ordering::Relaxed), first as *const () as usize);
        assert_eq!((activated(probe, second), state()), (0, (State::Active, true)), "data, not code");
        assert_eq!(probe.cell().function.load(Ordering::Relaxed), second as *const () as usize);
        assert_eq!((deactivated(probe), state()), (1, (State::Inactive, false)));
    }

    /// A request for a probe of an unloaded library is an error, but takes effect when the library
    /// is loaded again.
    #[test]
    fn requests_during_the_absence_of_a_library_are_kept_and_withdrawn() {
        let _alone = alone();
        let probe = probe();
        discover(probe);
        probe.function().address.store(1, Ordering::Relaxed);
        deactivated(probe);
        for (requests, expected) in [(&[true][..], State::Active), (&[true, false], State::Inactive)] {
            probe.unload();
            for on in requests {
                let refused = match on {
                    // SAFETY: the site is never executed.
                    true => unsafe { activate(probe.id(), first) },
                    false => deactivate(probe.id()),
                };
                assert!(matches!(refused, Err(Error::Unloaded { .. })), "{refused:?}");
            }
            probe.revive();
            permanent::start_again(&[probe]);
            assert_eq!(state_of(probe), expected);
            assert_eq!(probe.cell().function.load(Ordering::Relaxed), first as *const () as usize);
        }
    }

    /// The request is still in the store buffer of its processor when it finds the probe unloaded.
    #[test]
    fn a_request_is_not_lost_while_its_library_returns() {
        // Of 3,000,000 without a wait, 17 were lost.
        let rounds = if std::env::var_os("LONG_TESTS").is_some() { 3_000_000 } else { 20_000 };
        let _alone = alone();
        let probe = probe();
        discover(probe);
        probe.function().address.store(1, Ordering::Relaxed);
        let begun = [const { AtomicUsize::new(0) }; 2];
        // Both begin a round at the same time.
        let begin = |own: usize, round: usize| {
            begun[own].store(round, Ordering::Release);
            for spin in 0.. {
                if begun[1 - own].load(Ordering::Acquire) >= round {
                    break;
                }
                if spin % 1_000 == 999 {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    begin(0, 2 * round);
                    // SAFETY: the site is never executed.
                    let _ = unsafe { activate(probe.id(), first) };
                    begin(0, 2 * round + 1);
                }
            });
            let mut lost = 0;
            for round in 1..=rounds {
                deactivated(probe);
                probe.unload();
                begin(1, 2 * round);
                probe.revive();
                permanent::start_again(&[probe]);
                begin(1, 2 * round + 1);
                lost += usize::from(state_of(probe) != State::Active);
            }
            assert_eq!(lost, 0, "of {rounds}");
        });
    }

    #[test]
    fn batches_switch_and_count_every_probe() {
        let _alone = alone();
        let probes: [&Probe; 2] = [probe(), probe()];
        probes.into_iter().for_each(discover);
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
        assert_eq!(state_of(probe), State::Active);
        assert_eq!(probe.cell().function.load(Ordering::Relaxed), 0);
        assert!(matches!(with_metadata(probe.id(), |_| ()), Err(Error::Undiscovered { .. })));
        assert!(lasting_metadata(probe.id()).is_none());
        discover(probe);
        assert!(with_metadata(probe.id(), |metadata| metadata.function_name == c"function").unwrap());
        assert_eq!(lasting_metadata(probe.id()).unwrap().function_name, c"function");
    }

    /// If a library is loaded again while its probe is being toggled, the new site is toggled, not
    /// the old one.
    #[test]
    fn the_new_site_is_switched_if_the_site_is_replaced_meanwhile() {
        let _alone = alone();
        let probe = probe();
        let (old, (new, _, _)) = (probe.site().unwrap().switch, call_site());
        let foreign =
            || callpatch::Error::NotACall { address: 0, found: wordpatch::Bytes::new(&[0]).unwrap() };
        let toggle = |site: &Switch| {
            if site.is_equivalent(&old) {
                probe.move_in_tests(&new);
                return Err(foreign());
            }
            site.deactivate()
        };
        assert!(switch(probe, toggle).unwrap());
        assert_eq!((old.state().unwrap(), state_of(probe)), (State::Active, State::Inactive));
        // If the site stays the same, the error is returned to the caller.
        assert!(matches!(switch(probe, |_| Err(foreign())), Err(Error::Call(_))));
        // If the library is not loaded again, the error is that it was unloaded.
        let unload = |_: &Switch| {
            probe.unload();
            Err(foreign())
        };
        assert!(matches!(switch(probe, unload), Err(Error::Unloaded { id }) if id == probe.id()));
    }

    #[test]
    fn each_callback_is_called_once_for_each_earlier_and_later_probe() {
        let _alone = alone();
        let known = probe();
        discover(known);
        let nameless = probe();
        let reported: [Arc<Mutex<Vec<ProbeId>>>; 2] = Default::default();
        for list in &reported {
            let list = Arc::clone(list);
            register_callback(move |probe| list.lock().unwrap().push(probe.id)).unwrap();
        }
        let times = |number: usize, probe: &Probe| {
            reported[number].lock().unwrap().iter().filter(|id| **id == probe.id()).count()
        };
        for number in [0, 1] {
            assert_eq!((times(number, known), times(number, nameless)), (1, 0));
        }
        let discovery = Discovery::begin().unwrap();
        nameless.announce(&discovery);
        discover(nameless);
        nameless.announce(&discovery);
        drop(discovery);
        for number in [0, 1] {
            assert_eq!((times(number, known), times(number, nameless)), (1, 1));
        }
    }

    #[test]
    fn registration_fails_inside_a_callback_and_succeeds_after_it() {
        let _alone = alone();
        discover(probe());
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        register_callback(move |_| {
            if matches!(register_callback(|_| {}), Err(Error::CalledFromCallback)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_ne!(refused.load(Ordering::Relaxed), 0);
        register_callback(|_| {}).unwrap();
    }
}
