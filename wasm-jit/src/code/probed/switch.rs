//! Switching probes on and off, and reading their counts.
//!
//! Probes of one place share its counters, which count while one of the probes is on, or always.
//! The count of a probe is the increase of the counters while the probe was on
//! ([`counting`](super::counting)).

use std::sync::Arc;

use wasm_jit_codegen::Callee;

use super::counting::Tally;
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
            changes.apply(self, (index, position), of, true)
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
        let on = changes.apply(self, (index, position), function, true);
        let on = on.and_then(|()| Ok(changes.change_version(index, function, last)?));
        if on.is_err() {
            changes.site(index, position).active.remove(number);
            let _ = changes.apply(self, (index, position), function, false);
            return on;
        }
        changes.state(index).active += 1;
        changes.probe(number).active = true;
        Ok(())
    }

    /// Switches a probe off. With `settle`, a function without active probes returns to its
    /// original. Returns whether it was on.
    ///
    /// # Errors
    /// It stays on.
    pub(crate) fn deactivate_probe(self: &Arc<Self>, number: usize, settle: bool) -> Result<bool, MakeError> {
        let changes = &mut *self.changes();
        let was_on = changes.probe(number).active;
        self.deactivate(changes, number)?;
        let index = changes.probe(number).function;
        if settle && changes.state(index).may_return() {
            let function = self.probed().function(self, index).expect("the function is probed");
            changes.change_version(index, function, 0)?;
        }
        Ok(was_on)
    }

    fn deactivate(self: &Arc<Self>, changes: &mut Changes, number: usize) -> Result<(), MakeError> {
        let &mut ProbeState { function: index, position, active, .. } = changes.probe(number);
        if !active {
            return Ok(());
        }
        let function = self.probed().function(self, index).expect("the function is probed");
        let site = changes.site(index, position);
        let place = site.active.remove(number).expect("it is on");
        if let Err(error) = changes.apply(self, (index, position), function, false) {
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
        let changes = &mut *self.changes();
        if changes.probe(number).active {
            return changes.read_counts(&self.counters, number, |_, count| show(count));
        }
        let probe = changes.probe(number);
        let tallies = std::iter::once(&probe.tally).chain(&probe.tallies).take(probe.what.counts());
        tallies.for_each(|tally| show(tally.counted()));
    }

    /// Removes a probe. A function without any returns to its original.
    pub(crate) fn remove_probe(self: &Arc<Self>, number: usize) {
        let changes = &mut *self.changes();
        if self.deactivate(changes, number).is_err() {
            // The site cannot be patched, as in a forked child. It stays as it is until its next
            // change.
            let &mut ProbeState { function, position, .. } = changes.probe(number);
            changes.site(function, position).active.remove(number);
            changes.state(function).active -= 1;
        }
        let Some(probe) = changes.probes[number].take() else { return };
        changes.free.push(number);
        let state = changes.state(probe.function);
        if let Some(only) = probe.only {
            let cells = state.counts(probe.position, &probe.what).flatten().flatten();
            cells.for_each(|cell| self.counters.unwatch(only, cell));
        }
        state.probes.remove(&number);
        state.counters -= usize::from(probe.what == ProbeAction::Count);
        if state.probes.is_empty() && state.may_return() {
            let function = self.probed().function(self, probe.function).expect("the function is probed");
            let _ = changes.change_version(probe.function, function, 0);
        }
    }
}
