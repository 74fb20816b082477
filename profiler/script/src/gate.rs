//! Gates: suppress the events of a probe for the rest of a sampling period, once all of its rules,
//! which must all be sampled by time, have acted in this period.
//!
//! A probe whose gate is closed writes no event, so that the program does not wait for rules. The
//! probe stays on: switching it twice in each period would take longer than calling it a few times.
//!
//! The rules decide by the time stamps of events which of them are sampled; a gate only saves the
//! cost of events that no rule will sample. It may therefore be open when it could be closed, but
//! is never closed for an event in the next period.
//!
//! [`is_closed`] runs in probe functions, including in signal handlers: it reads two tables without
//! locks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fastinst::ProbeId;
use fastinst_sigsafe::Segments;

/// The number of gates. Further rules have none.
const GATES: usize = 64;

/// The gate that is never closed.
const OPEN: usize = 0;

/// For each gate: events with smaller time stamps are not needed.
static CLOSED_UNTIL: [AtomicU64; GATES] = [const { AtomicU64::new(0) }; GATES];

/// The gates of probes, by probe number. Probes without an entry have the open gate.
static OF_PROBES: Segments<AtomicU32> = Segments::new();

/// Whether the event of a probe at this time is not needed.
#[inline(always)]
pub(crate) fn is_closed(id: ProbeId, ticks: u64) -> bool {
    let Some(gate) = OF_PROBES.get(id.0 as usize) else { return false };
    // Relaxed: an outdated value is one of a moment ago, or the gate is the probe's previous one,
    // which is opened before it gets a new owner.
    let gate = gate.load(Ordering::Relaxed) as usize;
    CLOSED_UNTIL.get(gate).is_some_and(|until| ticks < until.load(Ordering::Relaxed))
}

/// A rule that is sampled by time: the number of its script, and its group.
pub(crate) type Owner = (Option<u64>, u32);

/// The owners of gates.
#[derive(Debug)]
pub(crate) struct Gates([Option<Owner>; GATES]);

impl Default for Gates {
    fn default() -> Self {
        CLOSED_UNTIL.iter().for_each(|until| until.store(0, Ordering::Relaxed));
        Self([None; GATES])
    }
}

impl Gates {
    /// Assigns the gate of a rule to a probe, or the open gate.
    pub(crate) fn assign(&mut self, id: ProbeId, owner: Option<Owner>) {
        let gate = owner.and_then(|owner| self.of(owner)).unwrap_or(OPEN);
        let number = id.0 as usize;
        if gate == OPEN && OF_PROBES.len() <= number {
            return;
        }
        while OF_PROBES.len() <= number {
            if OF_PROBES.push_with(|_| AtomicU32::new(OPEN as u32)).is_none() {
                return;
            }
        }
        if let Some(of_probe) = OF_PROBES.get(number) {
            of_probe.store(gate as u32, Ordering::Relaxed);
        }
    }

    /// The gate of a rule.
    fn of(&mut self, owner: Owner) -> Option<usize> {
        let gate = self.find(Some(owner)).or_else(|| self.find(None))?;
        self.0[gate] = Some(owner);
        Some(gate)
    }

    /// The first gate of this owner, or the first that is free.
    fn find(&self, owner: Option<Owner>) -> Option<usize> {
        (1..GATES).find(|gate| self.0[*gate] == owner)
    }

    /// Closes the gate of a rule for events before this time.
    pub(crate) fn close(&self, owner: Owner, until: u64) {
        if let Some(gate) = self.find(Some(owner)) {
            CLOSED_UNTIL[gate].store(until, Ordering::Relaxed);
        }
    }

    /// Frees the gates of a script that has ended; its probes already have other gates.
    pub(crate) fn free(&mut self, script: Option<u64>) {
        for (gate, owner) in self.0.iter_mut().enumerate() {
            if owner.is_some_and(|(number, _)| number == script) {
                *owner = None;
                CLOSED_UNTIL[gate].store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_closed_for_the_probes_of_a_rule() {
        let mut gates = Gates::default();
        let [plain, first, second] = [0, 1, 2].map(ProbeId);
        let (one, other) = ((None, 32), (Some(3), 32));
        gates.assign(plain, None);
        gates.assign(first, Some(one));
        gates.assign(second, Some(other));
        gates.close(one, 100);
        let closed = |ticks| [plain, first, second].map(|probe| is_closed(probe, ticks));
        assert_eq!(closed(99), [false, true, false]);
        assert_eq!(closed(100), [false; 3]);
        gates.close(other, 200);
        assert_eq!(closed(99), [false, true, true]);
        // Another rule needs all events of a probe.
        gates.assign(first, None);
        assert_eq!(closed(99), [false, false, true]);
        gates.free(Some(3));
        assert_eq!(closed(99), [false; 3]);
        gates.close(other, 200);
        assert_eq!(closed(99), [false; 3]);
        // The number of gates is limited.
        for group in 0..2 * GATES as u32 {
            gates.assign(first, Some((Some(4), group)));
        }
        gates.close((Some(4), 2 * GATES as u32 - 1), 500);
        assert_eq!(closed(499), [false; 3]);
        // The state in which a forked child begins.
        gates.assign(first, Some(one));
        gates.close(one, 500);
        assert_eq!(closed(499), [false, true, false]);
        let _ = Gates::default();
        assert_eq!(closed(499), [false; 3]);
    }
}
