//! Switching probes on and off, and reading their counts.
//!
//! Probes of one place share its counters, which count while one of the probes is on, or always.
//! The count of a probe is the increase of the counters while the probe was on
//! ([`counting`](super::counting)).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use wasm_jit_codegen::Callee;

use super::counting::Tally;
use super::stub_memory::Change;
use super::stubs::{Call, ProbeAction};
use super::{Changes, MakeError, ProbeState};
use crate::code::CodeImage;

impl CodeImage {
    /// Switches a probe on.
    ///
    /// # Errors
    /// It stays off.
    pub(crate) fn activate_probe(self: &Arc<Self>, number: usize) -> Result<(), MakeError> {
        self.activate(&mut self.changes(), number)
    }

    /// Switches on a probe that calls a function, and makes it call this function from now on.
    /// Returns whether the probe was off.
    ///
    /// # Errors
    /// It stays as it is.
    pub(crate) fn activate_call(self: &Arc<Self>, number: usize, function: usize) -> Result<bool, MakeError> {
        let changes = &mut *self.changes();
        let &mut ProbeState { function: index, position, ref mut what, active, .. } = changes.probe(number);
        let before = what.clone();
        if let ProbeAction::Call(call) = what
            && call.callee != Callee::Native(function)
        {
            let Call { arguments, only, .. } = &**call;
            let (callee, arguments) = (Callee::Native(function), arguments.clone());
            *call = Arc::new(Call { callee, arguments, only: *only });
        }
        let done = if active {
            let of = self.probed().function(self, index).expect("the function is probed");
            changes.apply(self, (index, position), of, Change::Activation)
        } else {
            self.activate(changes, number)
        };
        if done.is_err() {
            changes.probe(number).what = before;
        }
        done.map(|()| !active)
    }

    /// The site of an instruction in the last version of a function, and the code of that version.
    pub(super) fn site_address(&self, index: u32, position: u32) -> (usize, (usize, usize)) {
        let function = self.probed().function(self, index).expect("the function is probed");
        let version = function.versions[function.made() - 1].get().expect("the last that there is");
        let place = version.place(position).expect("the site was made");
        // The stubs of an original are elsewhere.
        let end = if version.number == 0 { version.end } else { version.stubs_end };
        (version.at(place.code), (version.at(version.entry), version.at(end)))
    }

    fn activate(self: &Arc<Self>, changes: &mut Changes, number: usize) -> Result<(), MakeError> {
        let &mut ProbeState { function: index, position, active, .. } = changes.probe(number);
        if active {
            return Ok(());
        }
        let function = self.probed().function(self, index).expect("the function is probed");
        changes.site(index, position).active.push(number);
        let last = function.made() - 1;
        changes.begin_counts(&self.counters, number);
        let on = changes.apply(self, (index, position), function, Change::Activation);
        let on = on.and_then(|()| Ok(changes.change_version(index, function, last)?));
        if on.is_err() {
            changes.site(index, position).active.remove(number);
            let _ = changes.apply(self, (index, position), function, Change::Deactivation);
            return on;
        }
        changes.state(index).active += 1;
        changes.probe(number).active = true;
        Ok(())
    }

    /// Switches a probe off. A function without active probes returns to its original: always, or
    /// unless it has returned [often](super::returns) before. Returns whether the probe was on.
    ///
    /// # Errors
    /// It stays on; or, with `always`, it is off, but its function has not returned.
    pub(crate) fn deactivate_probe(self: &Arc<Self>, number: usize, always: bool) -> Result<bool, MakeError> {
        let changes = &mut *self.changes();
        let was_on = changes.probe(number).active;
        self.deactivate(changes, number, Change::Deactivation)?;
        let index = changes.probe(number).function;
        let function = self.probed().function(self, index).expect("the function is probed");
        let state = changes.state(index);
        if state.may_return()
            && function.current.load(Ordering::Relaxed) != 0
            && (always || state.returns.admit(Instant::now()))
        {
            let returned = changes.change_version(index, function, 0);
            if always {
                returned?;
            }
        }
        Ok(was_on)
    }

    fn deactivate(
        self: &Arc<Self>,
        changes: &mut Changes,
        number: usize,
        change: Change,
    ) -> Result<(), MakeError> {
        let &mut ProbeState { function: index, position, active, .. } = changes.probe(number);
        if !active {
            return Ok(());
        }
        let function = self.probed().function(self, index).expect("the function is probed");
        let site = changes.site(index, position);
        let place = site.active.remove(number).expect("it is on");
        if let Err(error) = changes.apply(self, (index, position), function, change) {
            changes.site(index, position).active.insert(place, number);
            return Err(error);
        }
        changes.state(index).active -= 1;
        changes.read_counts(&self.counters, number, Tally::end);
        changes.probe(number).active = false;
        Ok(())
    }

    /// The counts of a probe: one, or for a choice, one for each way to continue.
    pub(crate) fn probe_counts(&self, number: usize, mut show: impl FnMut(u64)) {
        let changes = &mut *self.state();
        if changes.probe(number).active {
            return changes.read_counts(&self.counters, number, |_, count| show(count));
        }
        let probe = changes.probe(number);
        let tallies = std::iter::once(&probe.tally).chain(&probe.tallies).take(probe.what.counts());
        tallies.for_each(|tally| show(tally.counted()));
    }

    /// Removes a probe. A function without active ones returns to its original, and so do those
    /// that kept their versions for accessors, after the last probe that can use these.
    pub(crate) fn remove_probe(self: &Arc<Self>, number: usize) {
        let used_accessors = self.remove(&mut self.changes(), number);
        if used_accessors {
            self.end_accessor_user();
        }
    }

    /// As [`CodeImage::remove_probe`], except for versions that are kept. Returns whether the probe
    /// could use accessors.
    fn remove(self: &Arc<Self>, changes: &mut Changes, number: usize) -> bool {
        if self.deactivate(changes, number, Change::Removal).is_err() {
            // The site cannot be changed, as in a forked child, or there is no memory for its stub:
            // it leads to the probe until the next change.
            let &mut ProbeState { function, position, .. } = changes.probe(number);
            changes.site(function, position).active.remove(number);
            changes.state(function).active -= 1;
            changes.unfinished.insert((function, Some(position)));
        }
        let probe = changes.probes[number].take().expect("it has not been removed");
        changes.free.push(number);
        let state = changes.state(probe.function);
        if let Some(only) = probe.only {
            let cells = state.counts(probe.position, &probe.what).flatten().flatten();
            cells.for_each(|cell| self.counters.unwatch(only, cell));
        }
        state.probes.remove(&number);
        state.counters -= usize::from(probe.what == ProbeAction::Count);
        changes.return_if_unused(self, probe.function);
        probe.what.is_generic()
    }
}

impl Changes {
    /// Makes a function return to its original if it may: now, or with the next change.
    pub(super) fn return_if_unused(&mut self, image: &Arc<CodeImage>, index: u32) {
        if self.finish(image, (index, None)).is_err() {
            self.unfinished.insert((index, None));
        }
    }

    /// Makes the changes of code that were refused when probes were removed, up to the first that
    /// is refused again.
    pub(super) fn finish_removals(&mut self, image: &Arc<CodeImage>) {
        while let Some(unfinished) = self.unfinished.pop_first() {
            if self.finish(image, unfinished).is_err() {
                self.unfinished.insert(unfinished);
                return;
            }
        }
    }

    /// Gives a site the form that its probes require, or lets a function return to its original.
    fn finish(&mut self, image: &Arc<CodeImage>, (index, site): (u32, Option<u32>)) -> Result<(), MakeError> {
        let function = image.probed().function(image, index).expect("the function is probed");
        match site {
            Some(position) => self.apply(image, (index, position), function, Change::Removal),
            None if self.state(index).may_return() => Ok(self.change_version(index, function, 0)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::probes::{GenericFn, Kind, Location, Place, Probe, ProbeSpec, activate_all, deactivate_all};
    use crate::{Engine, Instance, Module, Store};

    fn module() -> Module {
        Module::new(&Engine::default(), "(module (func (export \"f\") nop nop nop nop nop nop))").unwrap()
    }

    /// Counters at all instructions: in stubs, or in a counting version.
    fn probes(module: &Module, count: usize) -> Vec<Probe> {
        let body = module.function(0).unwrap().body().unwrap();
        let spec = |offset: usize| ProbeSpec {
            location: Location {
                function: 0,
                place: Place::Instruction { offset: (offset - body.range().start) as u32 },
            },
            kind: Kind::Count,
        };
        let specs: Vec<ProbeSpec> = body.instructions().take(count).map(|at| spec(at.offset())).collect();
        module.probes(&specs).into_iter().map(Result::unwrap).collect()
    }

    fn is_original(module: &Module) -> bool {
        let image = module.code();
        image.probed().function(image, 0).unwrap().current.load(Ordering::Relaxed) == 0
    }

    /// The last active probe takes its function back to the original, however it ends to be active.
    #[test]
    fn functions_without_active_probes_return_to_their_originals() {
        for count in [2, 6] {
            let module = module();
            let mut probes = probes(&module, count);
            assert!(is_original(&module));
            probes[0].activate().unwrap();
            probes[1].activate().unwrap();
            probes[1].deactivate().unwrap();
            assert!(!is_original(&module));
            probes[0].deactivate().unwrap();
            assert!(is_original(&module));
            probes[0].activate().unwrap();
            assert!(!is_original(&module));
            drop(probes.remove(0));
            assert!(is_original(&module));
        }
    }

    #[test]
    fn probes_of_fastinst_take_their_function_back() {
        unsafe extern "C" fn nothing(_: fastinst::ProbeId, _: usize, _: usize) {}
        let module = module();
        let id = module.probe_id(Location { function: 0, place: Place::Entry }).unwrap();
        // SAFETY: the function does nothing.
        unsafe { fastinst::activate(id, nothing) }.unwrap();
        assert!(!is_original(&module));
        fastinst::deactivate(id).unwrap();
        assert!(is_original(&module));
    }

    /// A function whose frames had accessors returns after the last probe that can use these.
    #[test]
    fn functions_with_accessors_return_after_the_last_generic_probe() {
        let module = module();
        let closure = GenericFn::new(|frame| Ok(frame.accessor().map(drop)?));
        let location = Location { function: 0, place: Place::Entry };
        let kind = Kind::Generic(closure);
        let of_frame = module.probe(ProbeSpec { location, kind: kind.clone() }).unwrap();
        let other = module.probe(ProbeSpec { location, kind }).unwrap();
        let counter = probes(&module, 1);
        of_frame.activate().unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_func(&mut store, "f").unwrap().call(&mut store, &[], &mut []).unwrap();
        drop(of_frame);
        assert!(!is_original(&module));
        drop(other);
        assert!(is_original(&module));
        drop(counter);
    }

    /// A probe that is toggled all the time stays in its version, until others end that.
    #[test]
    fn frequent_toggles_do_not_change_the_version_each_time() {
        let module = module();
        let probes = probes(&module, 2);
        let toggle = |_: &i32| {
            probes[0].activate().unwrap();
            probes[0].deactivate().unwrap();
            is_original(&module)
        };
        // In the time that this takes, an interval or two may end.
        let returns = (0..10_000).filter(toggle).count();
        assert!((16..5_000).contains(&returns), "{returns}");
        let stays = (0..1_000_000).find(|number| !toggle(number));
        assert!(stays.is_some());
        deactivate_all(&probes).into_iter().for_each(|off| off.unwrap());
        assert!(is_original(&module));
        let stays = (0..1_000_000).find(|number| !toggle(number));
        assert!(stays.is_some());
        activate_all(&probes[1..]).into_iter().for_each(|on| on.unwrap());
        deactivate_all(&probes[1..]).into_iter().for_each(|off| off.unwrap());
        assert!(is_original(&module));
    }
}
