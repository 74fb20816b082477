//! Decides which thread may toggle a function's probes.
//!
//! The service thread activates probes. They are deactivated by whichever thread finds that the
//! observation is over, and this thread may be preempted between its decision and the rewriting of
//! the code, for as long as the scheduler likes. If the next observation began in that time, its
//! probes would then be deactivated, and its calls would be missed unnoticed. The same holds for
//! the thread that determines the times of a window: stored late, they would end the next
//! observation.
//!
//! Therefore the state of each kind of probes includes that a thread is *about to change* it. A
//! thread enters this state by a compare-and-swap that names the observation, so a thread that
//! decided long ago does nothing; only the thread that has entered it leaves it; and the service
//! thread begins nothing until then, but tries again later. No thread waits.
//!
//! While the probes are off, a thread may deactivate a single probe that has not been executed
//! before ([`crate::observe::function`]), by the same steps.

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The state of a function's probes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Off,
    On,
    /// On, while the service thread prepares the next observation: no thread may deactivate them.
    Held,
    /// On, while a thread determines the times of the window.
    Placing,
    SwitchingOff,
    /// On, to count calls ([`crate::observe::counting`]).
    Counting,
}

const PHASES: [Phase; 6] =
    [Phase::Off, Phase::On, Phase::Held, Phase::Placing, Phase::SwitchingOff, Phase::Counting];

/// The number of bits of a phase.
const BITS: u32 = 3;

/// The entry probes of one observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    /// The number of the observation; 0 before the first one.
    pub(crate) observation: u32,
    pub(crate) phase: Phase,
}

impl Entries {
    /// Whether the observation is over: its last entry was counted.
    pub(crate) fn are_over(self) -> bool {
        matches!(self.phase, Phase::Off | Phase::SwitchingOff | Phase::Counting)
    }

    fn in_phase(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    fn word(self) -> u64 {
        u64::from(self.observation) << BITS | self.phase as u64
    }

    fn of_word(word: u64) -> Self {
        Self { observation: (word >> BITS) as u32, phase: PHASES[(word & ((1 << BITS) - 1)) as usize] }
    }
}

/// The state of a function's entry probes, and the number of the observation.
#[derive(Debug, Default)]
pub(crate) struct EntrySwitch(AtomicU64);

impl EntrySwitch {
    #[inline]
    pub(crate) fn now(&self) -> Entries {
        Entries::of_word(self.0.load(Acquire))
    }

    /// As [`EntrySwitch::now`], in one order with all other steps of the two kinds of probes.
    pub(crate) fn now_ordered(&self) -> Entries {
        Entries::of_word(self.0.load(SeqCst))
    }

    fn step(&self, from: Entries, to: Entries) -> bool {
        self.0.compare_exchange(from.word(), to.word(), SeqCst, SeqCst).is_ok()
    }

    fn set(&self, to: Entries) {
        self.0.store(to.word(), SeqCst);
    }

    /// Keeps the probes in their state, which is [`Phase::Off`] or [`Phase::Held`] in the returned
    /// value; `None` while a thread is about to change it. Called by the service thread.
    pub(crate) fn hold(&self) -> Option<Entries> {
        loop {
            let now = self.now_ordered();
            let held = now.in_phase(Phase::Held);
            match now.phase {
                Phase::Held => return Some(now),
                Phase::Placing | Phase::SwitchingOff | Phase::Counting => return None,
                Phase::On if self.step(now, held) => return Some(held),
                Phase::Off if self.step(now, held) => return Some(now),
                Phase::On | Phase::Off => {}
            }
        }
    }

    /// Begins an observation, after [`EntrySwitch::hold`]. Called by the service thread.
    pub(crate) fn begin(&self, observation: u32) {
        self.set(Entries { observation, phase: Phase::On });
    }

    /// Reverts [`EntrySwitch::begin`], so that the probes are as they were. The number of the
    /// observation is not used again.
    pub(crate) fn cancel(&self, observation: u32, before: Entries) {
        self.set(Entries { observation, phase: before.phase });
    }

    /// Determines the times of a window by `act`, unless another thread does so, or the window is
    /// over.
    pub(crate) fn place(&self, observation: u32, act: impl FnOnce()) {
        let on = Entries { observation, phase: Phase::On };
        if self.step(on, on.in_phase(Phase::Placing)) {
            act();
            self.set(on);
        }
    }

    /// Ends an observation by `act`, which deactivates the probes, unless it is already over.
    /// Returns whether this thread has done it.
    pub(crate) fn end(&self, observation: u32, act: impl FnOnce()) -> bool {
        let on = Entries { observation, phase: Phase::On };
        self.end_from(on, act)
    }

    fn end_from(&self, now: Entries, act: impl FnOnce()) -> bool {
        let is_mine = self.step(now, now.in_phase(Phase::SwitchingOff));
        if is_mine {
            act();
            self.set(now.in_phase(Phase::Off));
        }
        is_mine
    }

    /// Ends the current observation, if any; returns whether the probes are off. They are not while
    /// another thread is about to change them. Called by the service thread.
    pub(crate) fn end_any(&self, act: impl FnOnce()) -> bool {
        match self.hold() {
            Some(off) if off.phase == Phase::Off => {
                self.set(off);
                true
            }
            Some(held) => self.end_from(held, act),
            None => false,
        }
    }

    /// Begins to count calls by `act`, which activates the probes. Returns false, and does nothing,
    /// unless they are off. Called by the service thread.
    pub(crate) fn begin_counting(&self, act: impl FnOnce()) -> bool {
        let now = self.now_ordered();
        let can_begin = now.phase == Phase::Off && self.step(now, now.in_phase(Phase::Counting));
        if can_begin {
            act();
        }
        can_begin
    }

    /// Ends what [`EntrySwitch::begin_counting`] has begun, by `act`, which deactivates the probes.
    pub(crate) fn end_counting(&self, act: impl FnOnce()) {
        act();
        self.set(self.now().in_phase(Phase::Off));
    }

    /// Executes `act`, which deactivates a single probe, while all executed probes are off; does
    /// nothing if they are not.
    #[cold]
    pub(crate) fn while_off(&self, act: impl FnOnce()) {
        let now = self.now_ordered();
        if now.phase == Phase::Off {
            self.end_from(now, act);
        }
    }

    /// Marks the probes as off, whatever other threads were doing: for a forked child, which has no
    /// other threads.
    pub(crate) fn reset(&self) {
        self.set(self.now().in_phase(Phase::Off));
    }
}

/// The state of a function's exit probes.
///
/// They are on for *periods*, each of which has a number. A call that was entered in one period and
/// is left in another may have been left in between without being seen.
#[derive(Debug, Default)]
pub(crate) struct ExitSwitch(AtomicU32);

/// The states of a period, its number modulo 4: off, on, being deactivated, being activated.
const ON: u32 = 1;
const SWITCHING_OFF: u32 = 2;
const SWITCHING_ON: u32 = 3;
const PERIOD: u32 = 4;

impl ExitSwitch {
    /// The number of the period: the exit probes stay on while it does not change.
    #[inline]
    pub(crate) fn period(&self) -> u32 {
        self.0.load(SeqCst)
    }

    /// Whether the period with this number is the current one, and the exit probes are on in it.
    pub(crate) fn is_on_in(&self, period: u32) -> bool {
        period % PERIOD == ON && period == self.period()
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.period() % PERIOD {
            0 => Phase::Off,
            ON => Phase::On,
            SWITCHING_OFF => Phase::SwitchingOff,
            _ => Phase::Held,
        }
    }

    fn step(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// Begins a period by `act`, which activates the probes. Returns false, and does nothing,
    /// unless they are off. Called by the service thread.
    pub(crate) fn begin(&self, act: impl FnOnce()) -> bool {
        let period = self.period();
        let can_begin = period.is_multiple_of(PERIOD) && self.step(period, period | SWITCHING_ON);
        if can_begin {
            act();
            self.0.store(period.wrapping_add(PERIOD + ON), SeqCst);
        }
        can_begin
    }

    /// As [`EntrySwitch::while_off`].
    #[cold]
    pub(crate) fn while_off(&self, act: impl FnOnce()) {
        let period = self.period();
        if period.is_multiple_of(PERIOD) && self.step(period, period | SWITCHING_OFF) {
            act();
            self.0.store(period.wrapping_add(PERIOD), SeqCst);
        }
    }

    /// Ends a period by `act`, which deactivates the probes, unless it is over or `is_due` denies
    /// it. The number of the period changes before the code does, so that an exit that is missed
    /// belongs to an earlier one.
    pub(crate) fn end(&self, period: u32, is_due: impl Fn() -> bool, act: impl FnOnce()) {
        let switching = period - period % PERIOD + SWITCHING_OFF;
        if period % PERIOD != ON || !is_due() || !self.step(period, switching) {
            return;
        }
        // SeqCst: either this thread sees that the next observation has begun, which needs the
        // probes, or the service thread sees that they are being deactivated.
        if is_due() {
            act();
            self.0.store((period - ON).wrapping_add(PERIOD), SeqCst);
        } else {
            self.0.store(period, SeqCst);
        }
    }

    /// As [`EntrySwitch::reset`].
    pub(crate) fn reset(&self) {
        self.0.store((self.period() | (PERIOD - 1)).wrapping_add(1), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_decided_in_an_earlier_observation_does_nothing() {
        let entries = EntrySwitch::default();
        entries.begin(1);
        entries.begin(2);
        assert!(!entries.end(1, || panic!("not its observation")));
        assert!(entries.end(2, || {}));
        assert!(!entries.end(2, || panic!("it is over")));
    }

    #[test]
    fn nothing_begins_while_entry_probes_are_being_switched_off() {
        let entries = EntrySwitch::default();
        entries.begin(1);
        assert!(entries.end(1, || {
            assert!(entries.now().are_over());
            assert_eq!(entries.hold(), None);
            assert!(!entries.end_any(|| panic!("another thread does")));
        }));
        assert_eq!(entries.hold(), Some(Entries { observation: 1, phase: Phase::Off }));
    }

    #[test]
    fn nothing_begins_or_ends_while_the_times_of_a_window_are_determined() {
        let entries = EntrySwitch::default();
        entries.begin(1);
        entries.place(0, || panic!("not its observation"));
        entries.place(1, || {
            assert!(!entries.now().are_over());
            assert_eq!(entries.hold(), None);
            assert!(!entries.end(1, || panic!("not now")));
            entries.place(1, || panic!("another thread does"));
        });
        assert!(entries.end(1, || {}));
    }

    #[test]
    fn probes_that_are_held_are_not_switched_off_by_others() {
        let entries = EntrySwitch::default();
        entries.begin(1);
        let held = entries.hold().expect("on");
        assert_eq!(held.phase, Phase::Held);
        assert!(!entries.end(1, || panic!("held")));
        entries.begin(2);
        entries.cancel(2, held);
        assert!(!entries.end(2, || panic!("held again")));
        assert!(entries.end_any(|| {}));
        assert_eq!(entries.now(), Entries { observation: 2, phase: Phase::Off });
    }

    #[test]
    fn the_next_observation_keeps_the_exit_probes() {
        let exits = ExitSwitch::default();
        assert!(exits.begin(|| assert_eq!(exits.phase(), Phase::Held)));
        assert!(!exits.begin(|| panic!("they are on")));
        let period = exits.period();
        // Due at first, and no longer when the state has been entered.
        let asked = std::cell::Cell::new(0);
        let is_due = || {
            asked.set(asked.get() + 1);
            assert_eq!(exits.phase(), if asked.get() == 1 { Phase::On } else { Phase::SwitchingOff });
            asked.get() == 1
        };
        exits.end(period, is_due, || panic!("not due"));
        assert_eq!((exits.period(), asked.get()), (period, 2));

        exits.end(period, || true, || assert_ne!(exits.period(), period));
        assert_eq!(exits.phase(), Phase::Off);
        exits.end(period, || true, || panic!("it is over"));
        assert!(exits.begin(|| {}));
        exits.end(period, || true, || panic!("not this period"));
        assert_eq!(exits.phase(), Phase::On);
        exits.reset();
        assert_eq!(exits.phase(), Phase::Off);
    }

    #[test]
    fn a_single_probe_is_switched_off_only_while_all_are() {
        let entries = EntrySwitch::default();
        let switched = std::cell::Cell::new(0);
        entries.while_off(|| {
            assert_eq!(entries.hold(), None, "nothing begins meanwhile");
            assert!(!entries.begin_counting(|| panic!("nor does counting")));
            entries.while_off(|| panic!("another thread does"));
            switched.set(1);
        });
        assert_eq!(switched.get(), 1);
        let before = entries.hold().expect("they are off");
        entries.while_off(|| panic!("held"));
        entries.cancel(1, before);
        entries.while_off(|| switched.set(2));
        assert_eq!(switched.get(), 2, "they are off again");
        entries.begin(2);
        entries.while_off(|| panic!("they are on"));
        assert!(entries.end_any(|| {}) && entries.begin_counting(|| {}));
        entries.while_off(|| panic!("they count"));
        assert_eq!(entries.hold(), None);
        entries.end_counting(|| assert!(entries.now().are_over()));
        entries.while_off(|| switched.set(3));
        assert_eq!(switched.get(), 3);

        let exits = ExitSwitch::default();
        let period = exits.period();
        exits.while_off(|| {
            assert!(!exits.begin(|| panic!("nothing begins meanwhile")));
            exits.while_off(|| panic!("another thread does"));
            switched.set(4);
        });
        assert_eq!((switched.get(), exits.phase()), (4, Phase::Off));
        assert_ne!(exits.period(), period);
        assert!(exits.begin(|| exits.while_off(|| panic!("they are being switched on"))));
        exits.while_off(|| panic!("they are on"));
    }
}
