//! Retargeting of call sites, in batches and without traps.
//!
//! ```text
//! call that straddles 3|2, from d to n; Load strategy (the others differ in the first byte or two)
//!
//! old        e8 d0 d1 | d2 d3
//! 1 store    b8 d0 d1 | d2 d3    inactive: the operand is dead from now on
//! 2 wait                         without it, a core that still runs the old call may mix d and n
//! 3 store    b8 n0 n1 | n2 n3    the operand, one window at a time
//! 4 wait                         without it, a core that runs the new call may mix n and d
//! 5 result   b8 n0 n1 | n2 n3    an inactive site with a new target
//! ```
//!
//! A site inside one window, or a 1|4 site that uses a RET island, needs one store and no wait. All
//! sites are inactive afterwards.
//!
//! A site that must not miss an execution stays active ([`retarget_as`]). Then the call itself
//! changes, first after the boundary:
//!
//! ```text
//! old        e8 d0 d1 | d2 d3
//! 1 store    e8 d0 d1 | n2 n3    a call of a third address, which the caller provides
//! 2 wait                         without it, a core that runs the old call may mix d2 d3 and n0 n1
//! 3 store    e8 n0 n1 | n2 n3    the new call
//! 4 wait                         without it, the next change of n2 n3 may meet d0 d1
//! ```
//!
//! If only the bytes on one side differ, one store is sufficient, and the third address is not
//! needed: inside one window, at 1|4, and wherever the operands agree on one side.

use std::ops::Range;

use wordpatch::internal::{Stepwise, finish_all, wait_for_assumed_bound};
use wordpatch::{Bytes, Split};

use crate::encoding;
use crate::error::Error;
use crate::site::CallSite;
use crate::strategy::Strategy;
use crate::switch::State;

/// Makes each site inactive and sets its operand to a new target: the callee of a direct call, or
/// the pointer of an indirect one. For each site, in order, returns the site with its new target,
/// or the reason why it has kept the old one. Blocks for two waits if any site needs them,
/// regardless of the number of sites.
///
/// A site whose wait fails (with an error of
/// [`wait_for_visibility`](wordpatch::wait_for_visibility)) keeps its old target and is inactive.
/// If the second wait fails after the first one succeeded, the old operand is restored, and the
/// call blocks for [`wait_for_assumed_bound`].
///
/// # Safety
/// 1. The program must be correct when each site calls its new target: a function with the same
///    calling convention, or a pointer to one, for as long as the site can be executed.
/// 2. During the call, no other thread retargets the same site, or toggles it by a copy: it would
///    activate a call with a partly stored operand.
/// 3. Other copies of a retargeted site must not be toggled any more: they hold the old operand.
#[must_use = "each call may have failed"]
pub unsafe fn retarget(sites: &[(CallSite, usize)]) -> Vec<Result<CallSite, Error>> {
    let sites: Vec<_> = sites.iter().map(|(site, target)| (*site, *target, State::Inactive)).collect();
    // SAFETY: the caller's obligations; no site stays active.
    unsafe { retarget_as(&sites) }
}

/// As [`retarget`], for sites of which some stay active: those with [`State::Active`] make a call
/// whenever they are executed: to the old target, the new one or, in between,
/// [`CallSite::intermediate_target`]. These sites must be active; a site that is not active, or
/// fails, keeps its old target and its state.
///
/// # Safety
/// As [`retarget`], including the second obligation for sites that stay active. The program must
/// also be correct when a site that stays active calls its intermediate target.
#[must_use = "each call may have failed"]
pub unsafe fn retarget_as(sites: &[(CallSite, usize, State)]) -> Vec<Result<CallSite, Error>> {
    // SAFETY: the sites' text is mapped, by the contract of `CallSite::decode`.
    let prepare =
        |(site, target, keeps): &(CallSite, usize, State)| unsafe { Retarget::new(*site, *target, *keeps) };
    let mut sites: Vec<Result<Retarget, Error>> = sites.iter().map(prepare).collect();
    finish_all(&mut sites);
    if sites.iter().flatten().any(|site| matches!(site.phase, Phase::Undone(_))) {
        // A core may have fetched bytes of the new operand, and the caller may activate the site
        // with the old one immediately.
        wait_for_assumed_bound();
    }
    sites.into_iter().map(|site| site.and_then(Retarget::result)).collect()
}

/// A site that is being retargeted.
struct Retarget {
    /// The site with its old target, marked as staying mapped.
    old: CallSite,
    /// The site with its new target, which is returned to the caller, without that mark.
    new: CallSite,
    /// The state of the site during the change and after it.
    keeps: State,
    phase: Phase,
}

impl CallSite {
    /// The target of the call between the two stores of [`retarget_as`], if the site stays active
    /// and the operands differ on both sides of a window boundary.
    pub fn intermediate_target(&self, target: usize) -> Option<usize> {
        let displacement = encoding::displacement(self.shape, self.address(), target)?;
        let new = encoding::active(self.shape, displacement);
        let [front, back] = parts(self);
        if self.instruction[front.clone()] == new[front.clone()]
            || self.instruction[back.clone()] == new[back.clone()]
        {
            return None;
        }
        let mixed = [&self.instruction[front], &new[back]].concat();
        let operand = mixed[self.shape.operand_offset()..].try_into().expect("four bytes");
        let next = self.address() + self.shape.len();
        Some(next.wrapping_add_signed(i32::from_le_bytes(operand) as isize))
    }
}

/// The bytes of a site before and after the boundary of a fetch window.
fn parts(site: &CallSite) -> [Range<usize>; 2] {
    let length = site.shape.len();
    let front = match site.window.split(site.address(), length) {
        Split::Inside => length,
        Split::Crossing { front } => front,
    };
    [0..front, front..length]
}

/// The progress of a site.
enum Phase {
    /// Nothing has been stored.
    Prepared,
    /// Step 1 is done; step 2 is next.
    Inactive,
    /// The site stays active, and calls its intermediate target; step 2 is next.
    Between,
    /// No core runs the old call any more: the operand, or the rest of it, can be stored.
    Dead,
    /// Step 3 is done; step 4 is next.
    Stored,
    /// Step 3 has failed, and the old operand was restored; step 4 is next.
    Restored(Error),
    /// The site has its new target.
    Done,
    /// The site has kept its old target. A wait was made after the operand was stored.
    Failed(Error),
    /// As `Failed`, but that wait failed.
    Undone(Error),
}

impl Retarget {
    /// Prepares the site with its new target. Writes nothing to the code.
    ///
    /// # Safety
    /// The site's text must stay mapped.
    unsafe fn new(old: CallSite, target: usize, keeps: State) -> Result<Self, Error> {
        let address = old.address();
        let displacement = encoding::displacement(old.shape, address, target)
            .ok_or(Error::OutOfReach { address, target })?;
        let call = encoding::active(old.shape, displacement);
        // SAFETY: the caller's obligation.
        let new = unsafe { CallSite::new(old.text, old.shape, call, old.clobbers, old.window)? };
        // SAFETY: as above.
        Ok(Self { old: unsafe { old.staying_mapped() }, new, keeps, phase: Phase::Prepared })
    }

    /// Whether the inactive form contains the operand of the call, which is dead then. The inactive
    /// forms of the other two strategies do not contain it.
    fn has_dead_operand(&self) -> bool {
        matches!(self.new.strategy, Strategy::Skip | Strategy::Load | Strategy::Ret)
    }

    /// Replaces a part of the call of a site that stays active, by one store.
    fn exchange(&self, part: Range<usize>, from: &CallSite, to: &CallSite) -> Result<(), Error> {
        let [from, to] = [from, to].map(|site| &site.instruction[part.clone()]);
        if from == to {
            return Ok(());
        }
        let (from, to) = (encoding::bytes(from), encoding::bytes(to));
        // SAFETY: the part is in one window. Every core sees the other part as it is, by the waits,
        // and each combination of the two that occurs is a call that the caller has allowed.
        unsafe { self.old.text.compare_exchange(self.old.window, part.start, &from, &to)? };
        Ok(())
    }

    /// Step 1 of a site that stays active, or all of it if one store suffices.
    fn begin_active(&mut self) -> Result<(), Error> {
        if self.old.state()? == State::Inactive {
            let (address, edit) = (self.old.address() + self.old.edit.offset, &self.old.edit);
            return Err(Error::Foreign { address, expected: edit.active, found: edit.inactive });
        }
        let [front, back] = parts(&self.old);
        let crosses_a_window = !back.is_empty();
        let fronts_are_equal = self.old.instruction[front.clone()] == self.new.instruction[front.clone()];
        self.exchange(back.clone(), &self.old, &self.new)?;
        self.phase = if self.old.instruction[back.clone()] == self.new.instruction[back] {
            self.exchange(front, &self.old, &self.new)?;
            if crosses_a_window { Phase::Stored } else { Phase::Done }
        } else if fronts_are_equal {
            Phase::Stored
        } else {
            Phase::Between
        };
        Ok(())
    }

    /// The stores of step 3: offset, old byte, new byte. Bytes that belong to the inactive form are
    /// written by `activate`.
    fn operand_stores(&self) -> impl Iterator<Item = (usize, Bytes, Bytes)> {
        let Self { old, new, .. } = self;
        let byte = |of: &Bytes, offset: usize| encoding::bytes(&of[offset..=offset]);
        let first = new.shape.operand_offset().max(new.edit.inactive.len());
        (first..new.shape.len())
            .map(move |offset| (offset, byte(&old.instruction, offset), byte(&new.instruction, offset)))
    }

    /// Step 3: writes the new operand.
    fn store_operand(&self) -> Result<(), Error> {
        if self.keeps == State::Active {
            let [front, _] = parts(&self.old);
            return self.exchange(front, &self.old, &self.new);
        }
        for (offset, from, to) in self.operand_stores() {
            // SAFETY: no thread executes these bytes as a live operand: the site is inactive, and
            // every core has seen that since. A single byte crosses no window.
            unsafe { self.old.text.compare_exchange(self.old.window, offset, &from, &to)? };
        }
        Ok(())
    }

    /// Restores the old operand: undoes the stores of step 3 that were made. The operand is dead
    /// before and after, or that of a call which is allowed.
    fn restore_operand(&self) {
        if self.keeps == State::Active {
            let [front, back] = parts(&self.old);
            for part in [front, back] {
                // Bytes that another tool has stored in the meantime are left unchanged.
                let _ = self.exchange(part, &self.new, &self.old);
            }
            return;
        }
        for (offset, from, to) in self.operand_stores() {
            // SAFETY: as in `store_operand`. A byte that was not stored differs from `to` and is
            // left unchanged.
            let _ = unsafe { self.old.text.compare_exchange(self.old.window, offset, &to, &from) };
        }
    }

    /// The site with its new target, or the reason why it has kept the old one.
    fn result(self) -> Result<CallSite, Error> {
        match self.phase {
            Phase::Restored(error) | Phase::Failed(error) | Phase::Undone(error) => Err(error),
            _ => Ok(self.new),
        }
    }
}

impl Stepwise for Retarget {
    type Error = Error;

    /// Steps 1 and 3. An operand that cannot be stored completely is restored, and its site waits
    /// nevertheless: a core may have fetched the new bytes before that.
    fn store(&mut self) -> Result<(), Error> {
        if let (Phase::Prepared, State::Active) = (&self.phase, self.keeps) {
            return self.begin_active();
        }
        if let Phase::Prepared = self.phase {
            self.old.deactivate()?;
            self.phase = if self.has_dead_operand() { Phase::Inactive } else { Phase::Done };
        }
        if let Phase::Dead = self.phase {
            self.phase = match self.store_operand() {
                Ok(()) => Phase::Stored,
                Err(error) => {
                    self.restore_operand();
                    Phase::Restored(error)
                }
            };
        }
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Inactive | Phase::Between | Phase::Stored | Phase::Restored(_))
    }

    fn end_wait(&mut self) {
        assert!(self.is_waiting());
        self.phase = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Inactive | Phase::Between => Phase::Dead,
            Phase::Stored => Phase::Done,
            Phase::Restored(error) => Phase::Failed(error),
            other => other,
        };
    }

    /// In step 2, an inactive site fails immediately. In step 4, or if it stays active, its operand
    /// is restored first.
    fn give_up(&mut self, refusal: wordpatch::Error) -> Result<(), Error> {
        assert!(self.is_waiting());
        self.phase = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Inactive => return Err(refusal.into()),
            Phase::Between | Phase::Stored => {
                self.restore_operand();
                Phase::Undone(refusal.into())
            }
            Phase::Restored(error) => Phase::Undone(error),
            other => other,
        };
        Ok(())
    }
}
