//! What can use accessors of frames: the generic probes of an image, and its trap watches.
//!
//! While an image has some, functions whose frames got accessors in their closures keep versions
//! that end accessors ([`frames`](super::frames)): functions of the image itself, and of others
//! whose frames were among the callers. When the last user ends, all of these functions may return
//! to their originals. The time from the first user to the last is a *period*. A function may keep
//! a version for periods of several images.
//!
//! A closure may still be running when its probe is removed. If it then asks for an accessor and
//! there are no other users, no function keeps a version: the accessor ends when its frame arrives
//! at a transfer point, or with its frame.
//!
//! # Locks
//! The lock of users is taken after that of changes of any image, or alone. When a period ends, the
//! functions are changed without it, one image after the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::code::CodeImage;
use crate::code::forks::{self, Locked};

/// A period that never ends.
pub(super) const FOR_EVER: u64 = u64::MAX;

/// The users of accessors that belong to an image.
#[derive(Debug, Default)]
pub(crate) struct AccessorUsers {
    /// The number of the present period, which is unique in the process; 0 if there is none.
    period: AtomicU64,
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    count: usize,
    /// The functions that keep a version for the present period.
    kept: Vec<(Weak<CodeImage>, u32)>,
}

impl AccessorUsers {
    fn lock(&self) -> Locked<'_, Users> {
        forks::lock(&self.users)
    }

    /// Adds users.
    pub(crate) fn begin(&self, count: usize) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if count == 0 {
            return;
        }
        let mut users = self.lock();
        if users.count == 0 {
            self.period.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Release);
        }
        users.count += count;
    }

    /// The number of the present period, or 0.
    pub(super) fn period(&self) -> u64 {
        self.period.load(Ordering::Acquire)
    }

    /// Records that a function keeps a version for the present period. `keep` gets the number of
    /// the period, and returns whether the function did not do so before. Returns the number, or 0
    /// if there is no period: then nothing is done.
    pub(super) fn keep(&self, image: &Arc<CodeImage>, index: u32, keep: impl FnOnce(u64) -> bool) -> u64 {
        let mut users = self.lock();
        let period = self.period();
        if period != 0 && keep(period) {
            let kept = &mut users.kept;
            if kept.len() == kept.capacity() {
                kept.retain(|(image, _)| image.strong_count() > 0);
            }
            kept.push((Arc::downgrade(image), index));
        }
        period
    }
}

impl CodeImage {
    /// Removes a user of accessors. After the last one, the functions that kept versions for the
    /// image's users may return to their originals. Must not be called with the lock of changes of
    /// any image.
    pub(crate) fn end_accessor_user(&self) {
        let mut users = self.accessor_users.lock();
        users.count -= 1;
        if users.count > 0 {
            return;
        }
        let period = self.accessor_users.period.swap(0, Ordering::AcqRel);
        let kept = std::mem::take(&mut users.kept);
        drop(users);
        for (image, index) in kept {
            if let Some(image) = image.upgrade() {
                image.end_period(index, period);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    use crate::probes::{GenericFn, Kind, Location, Place, Probe, ProbeSpec};
    use crate::{Engine, Extern, Instance, Module, Store};

    const ENTRY: Location = Location { function: 0, place: Place::Entry };

    /// Whether no version of a function with sites is current.
    fn is_original(module: &Module, function: u32) -> bool {
        let image = module.code();
        image.probed().function(image, function).is_none_or(|of| of.current.load(Ordering::Relaxed) == 0)
    }

    /// A module, and one whose function 1 calls the former's function 0.
    fn callee_and_caller() -> (Module, Module) {
        let engine = Engine::default();
        let callee = Module::new(&engine, "(module (func (export \"leaf\")))").unwrap();
        let text = "(module (import \"\" \"leaf\" (func $leaf)) (func (export \"run\") (call $leaf)))";
        let caller = Module::new(&engine, text).unwrap();
        (callee, caller)
    }

    fn run(callee: &Module, caller: &Module) {
        let mut store = Store::new(callee.engine(), ());
        let of_callee = Instance::new(&mut store, callee, &[]).unwrap();
        let leaf = of_callee.get_func(&mut store, "leaf").unwrap();
        let instance = Instance::new(&mut store, caller, &[Extern::Func(leaf)]).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    }

    /// A probe that asks for accessors of its frame's callers.
    fn of_callers(module: &Module) -> Probe {
        let kind = Kind::Generic(GenericFn::new(|frame| Ok(frame.caller().map(drop)?)));
        let probe = module.probe(ProbeSpec { location: ENTRY, kind }).unwrap();
        probe.activate().unwrap();
        probe
    }

    #[test]
    fn functions_of_other_modules_return_after_the_last_generic_probe() {
        let (callee, caller) = callee_and_caller();
        let probes = [of_callers(&callee), of_callers(&callee)];
        run(&callee, &caller);
        assert!(!is_original(&caller, 1));
        let [first, second] = probes;
        drop(first);
        assert!(!is_original(&caller, 1));
        drop(second);
        assert!(is_original(&caller, 1) && is_original(&callee, 0));
        // The next period keeps it again.
        let again = of_callers(&callee);
        run(&callee, &caller);
        assert!(!is_original(&caller, 1));
        drop(again);
        assert!(is_original(&caller, 1));
    }

    /// A function that keeps its version for closures of two modules returns after both.
    #[test]
    fn functions_are_kept_for_each_module_with_closures() {
        let (callee, caller) = callee_and_caller();
        let own = caller.probe(ProbeSpec {
            location: Location { function: 1, place: Place::Entry },
            kind: Kind::Generic(GenericFn::new(|frame| Ok(frame.accessor().map(drop)?))),
        });
        let own = own.unwrap();
        own.activate().unwrap();
        let of_callee = of_callers(&callee);
        run(&callee, &caller);
        drop(own);
        assert!(!is_original(&caller, 1));
        drop(of_callee);
        assert!(is_original(&caller, 1));
    }

    #[test]
    fn functions_return_after_the_last_trap_watch() {
        let engine = Engine::default();
        let module = Module::new(&engine, "(module (func (export \"run\") unreachable))").unwrap();
        let watch = || module.watch_traps(|frame, _| _ = frame.accessor().unwrap());
        let watches = [watch(), watch()];
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
        run.call(&mut store, ()).unwrap_err();
        let [first, second] = watches;
        drop(first);
        assert!(!is_original(&module, 0));
        drop(second);
        assert!(is_original(&module, 0));
    }

    /// The closure of a probe that has been removed meanwhile keeps no version.
    #[test]
    fn accessors_after_the_last_generic_probe_keep_no_version() {
        let (callee, caller) = callee_and_caller();
        let probe: Arc<Mutex<Option<Probe>>> = Arc::default();
        let of_closure = probe.clone();
        let kind = Kind::Generic(GenericFn::new(move |frame| {
            drop(of_closure.lock().unwrap().take());
            let own = frame.accessor()?;
            let of_caller = frame.caller()?.expect("there is one");
            assert!(own.is_alive(frame) && of_caller.is_alive(frame));
            assert_eq!(frame.accessor()?, own);
            assert_eq!(own.caller(frame)?, Some(of_caller));
            Ok(())
        }));
        let made = callee.probe(ProbeSpec { location: ENTRY, kind }).unwrap();
        made.activate().unwrap();
        *probe.lock().unwrap() = Some(made);
        run(&callee, &caller);
        assert!(probe.lock().unwrap().is_none());
        assert!(is_original(&caller, 1) && is_original(&callee, 0));
    }

    /// Neither a probe that cannot use accessors, nor an id that is not in use, keeps versions.
    #[test]
    fn only_users_of_accessors_keep_versions() {
        let (callee, caller) = callee_and_caller();
        let id = callee.probe_id(ENTRY).unwrap();
        let count = caller
            .probe(ProbeSpec { location: Location { function: 1, place: Place::Entry }, kind: Kind::Count });
        let probe = of_callers(&callee);
        let kind = Kind::Generic(GenericFn::new(|frame| Ok(frame.accessor().map(drop)?)));
        let own = callee.probe(ProbeSpec { location: ENTRY, kind }).unwrap();
        own.activate().unwrap();
        run(&callee, &caller);
        assert!(!is_original(&callee, 0) && !is_original(&caller, 1));
        drop((probe, own));
        assert!(is_original(&callee, 0) && is_original(&caller, 1));
        assert!(fastinst::deactivate(id).is_ok() && count.is_ok());
    }
}
