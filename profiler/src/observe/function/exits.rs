//! Decides how long a function's exit probes stay on.
//!
//! They stay on until the calls of an observation have returned. In this time, each exit of another
//! call, a *stray* exit, costs time. Therefore their number is limited, and calls that are still
//! open at the limit are *cut off*. Some windows, drawn beforehand, are *patient*: they tolerate
//! many stray exits, so that their calls can represent those that others cut off.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use fastinst::ProbeId;
use wordpatch::tsc;

use super::{Function, Observation, ProbeSet, cut_off};
use crate::observe::probe_type::ProbeType;
use crate::observe::switching::Phase;

/// The number of exits of unobserved calls after which the exit probes are deactivated, even if
/// observed calls are open: waiting for the outer calls of a recursive function could be expensive.
/// They take a few tenths of a millisecond while a function is on.
pub(super) const STRAY_EXITS: i32 = 20_000;

/// The same number in a window that is not patient, where few entries are expected. Calls that are
/// open then are *cut off*.
pub(super) const STRAY_EXITS_IN_WINDOW: i32 = 200;

/// The number of further stray exits that a patient window tolerates after the calls of other
/// windows would be cut off.
const LATE: i32 = STRAY_EXITS - STRAY_EXITS_IN_WINDOW;

impl Function {
    /// Sets the number of stray exits that are tolerated, at the beginning of an observation.
    pub(super) fn tolerate_strays(&self, kind: Observation) {
        if self.exit_switch.phase() != Phase::On {
            self.late_before.store(0, Relaxed);
        }
        // Late calls of a patient window are waited for in the next window, too.
        let is_waiting = self.late_before.load(Relaxed) != 0;
        let is_patient = kind == Observation::Window { is_patient: true } && !is_waiting;
        let is_usual = kind == Observation::Window { is_patient: false } && !is_waiting;
        self.is_patient.store(is_patient, Relaxed);
        self.strays_left.store(if is_usual { STRAY_EXITS_IN_WINDOW } else { STRAY_EXITS }, Relaxed);
    }

    /// Deactivates the exit probes after the end of an observation, unless a call is open.
    pub(super) fn end_exits_if_unused(&self, observation: u32) {
        // SeqCst: pairs with `left`.
        if self.open.load(SeqCst) == 0 {
            self.end_exits(self.exit_period(), || self.is_over(observation));
        }
    }

    /// The number of the exit period: the exit probes stay on while it does not change.
    #[inline]
    pub(crate) fn exit_period(&self) -> u32 {
        self.exit_switch.period()
    }

    /// Whether the exit of a call that was entered in this exit period will be seen.
    #[inline]
    pub(crate) fn is_exit_seen(&self, period: u32) -> bool {
        self.exit_switch.is_on_in(period)
    }

    /// Records that an observed call has returned, or was left in another way. The last such call
    /// of an observation that is over deactivates the exit probes.
    #[inline]
    pub(crate) fn left(&self, period: u32) {
        if period != self.exit_period() {
            return;
        }
        // SeqCst: either this load sees that the observation is over, or the thread that ends it
        // sees that no call is open.
        if self.open.fetch_sub(1, SeqCst) == 1 {
            let entries = self.entry_switch.now_ordered();
            if entries.are_over() {
                self.end_exits(period, || self.is_over(entries.observation));
            }
        }
    }

    /// Handles an exit at the time `now` whose entry was not observed, in the same way as
    /// [`Function::unobserved_entry`].
    #[inline]
    pub(crate) fn unobserved_exit(&self, id: ProbeId, now: u64) {
        match self.exit_switch.phase() {
            Phase::Off => self.exit_switch.while_off(|| _ = fastinst::deactivate(id)),
            _ => self.stray_exit(now),
        }
    }

    /// Handles an exit whose entry was not observed, while the exit probes are on.
    #[inline]
    pub(crate) fn stray_exit(&self, now: u64) {
        // A window that opens soon has no observed calls yet, and needs the probes.
        let opens = self.opens.load(Acquire);
        if now < opens && opens < u64::MAX {
            return;
        }
        let observation = self.observation();
        match self.strays_left.fetch_sub(1, Relaxed) {
            0 => {
                let is_due = || self.entry_switch.now_ordered().observation == observation;
                self.end_exits(self.exit_period(), is_due);
            }
            // Other windows end their exit period here.
            LATE if self.is_patient.load(Relaxed) => self.late_before.store(now, Relaxed),
            _ => {}
        }
    }

    #[cold]
    pub(super) fn end_exits(&self, period: u32, is_due: impl Fn() -> bool) {
        // Before the end, so that earlier exits were seen.
        let now = tsc::now();
        self.exit_switch.end(period, is_due, || {
            if self.open.load(Relaxed) > 0 {
                cut_off::note(self, period, now);
            }
            self.switch_off(ProbeType::Exit, ProbeSet::Executed);
        });
    }

    /// The time until which the exit of a call that was entered in this exit period would have been
    /// seen, if the period is over, and the time is known: unless the call was left in another way,
    /// it was open then.
    pub(crate) fn exits_seen_until(&self, period: u32) -> Option<u64> {
        cut_off::noted(self, period)
    }

    /// Whether a call that was entered at this time would have been cut off if its window had not
    /// been patient ([`super::Window::is_patient`]). Such windows are a part of all windows, so the
    /// call also represents calls that were cut off.
    #[inline]
    pub(crate) fn is_late(&self, entered: u64) -> bool {
        entered < self.late_before.load(Relaxed)
    }
}
