//! Register-cached locals: which locals are kept in which registers, chosen for each region. A
//! region is a loop, or the function around all loops.
//!
//! A *register-cached* local is in its *cache register* at every label of the region; all other
//! locals are in their slots. A loop starts with the cache registers of the region around it, so
//! that nothing moves for locals that both use. If registers are short, the most used locals of the
//! loop replace the least used ones. Each inner loop around a use multiplies its weight by
//! 2^[`LOOP_WEIGHT`]; a use in code that a branch hint marks as unlikely does not count. Locals
//! that a loop without calls reads before it writes them count more ([`CARRIED`]).
//!
//! In straight code, which has few labels, no local is cached in a general caller-saved register:
//! copies of locals (`locals.rs`), of which each register holds one after the other, make better
//! use of them.
//!
//! In an innermost loop without calls, the float registers that are left hold the loop's first
//! constants, which would otherwise be loaded in each iteration.
//!
//! Callee-saved registers are used in regions with calls. Caller-saved registers are used there
//! only if the local's uses outweigh saving and restoring it around the calls. A region whose calls
//! are all unlikely is treated as a region without calls.

use super::abi::{CALLEE_SAVED, CALLER_SAVED_CACHE, FLOAT_CACHE, Ty};
use super::scan::Access;
use crate::asm::Reg;

/// How much more often an inner loop is assumed to run, as a shift.
const LOOP_WEIGHT: u32 = 3;
/// The weight of a use stops growing at this depth.
const MAX_WEIGHTED_DEPTH: u32 = 5;
/// Cost of storing and loading a local around one call.
const CALL_COST: u32 = 2;
/// Number of uses that pays for saving a callee-saved register in the prologue and restoring it in
/// the epilogue.
const SAVE_COST: u32 = 5;
/// As `SAVE_COST`, in a region with calls: the callee takes longer than an access to memory, and
/// inner loops without calls choose their own cache registers.
const SAVE_COST_AROUND_CALLS: u32 = 40;
/// How many accesses more a local counts for a loop that carries its value from one iteration to
/// the next: in a slot, the value would delay each iteration by a store and a load.
const CARRIED: u32 = 4;
/// Accesses examined in one region. More would not change the choice, and the limit keeps nested
/// loops cheap to compile.
const MAX_ACCESSES: usize = 20_000;
/// The number of constants that a loop holds in registers.
const MAX_FLOATS: usize = 4;
/// Loops nested deeper than this use the cache registers of the loop around them.
pub(super) const MAX_REGION_DEPTH: u32 = 12;

/// The number of accesses for each label from which on a region's code counts as straight. Copies
/// of locals live until the next label at most.
const STRAIGHT: usize = 400;

/// Registers of each kind that may cache locals. With few of them, loops compete for registers, and
/// cases that are rare in real programs become common in small random ones: see the package
/// `wasm-jit-fuzz`.
const MAX_CACHED: usize = if cfg!(feature = "few-cached-locals") { 1 } else { 16 };

/// Marks a register that caches no local.
pub(super) const NO_LOCAL: u32 = u32::MAX;

/// A float constant, by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Float {
    pub(super) ty: Ty,
    pub(super) bits: u64,
}

/// The register-cached locals of a region.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// The local that each register caches.
    pub(super) local: [u32; 32],
    /// Registers that cache locals or hold constants.
    pub(super) cached: u32,
    /// The constants that registers hold throughout the region.
    pub(super) floats: Vec<(Reg, Float)>,
    /// Registers that cache locals which the region never writes.
    pub(super) unwritten: u32,
    /// Registers among these whose locals have held constants since the loop began, but not since
    /// an enclosing loop began.
    pub(super) constants: u32,
    /// Whether the region contains a call.
    pub(super) calls: bool,
}

impl Region {
    pub(super) fn none() -> Self {
        Self {
            local: [NO_LOCAL; 32],
            cached: 0,
            floats: Vec::new(),
            unwritten: 0,
            constants: 0,
            calls: false,
        }
    }

    /// Cache registers and their locals.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Reg, u32)> {
        let locals = bits(self.cached).map(|reg| (reg, self.cached_by(reg)));
        locals.filter(|(_, local)| *local != NO_LOCAL)
    }

    /// The local that the register caches; [`NO_LOCAL`] if it holds a constant.
    pub(super) fn cached_by(&self, reg: Reg) -> u32 {
        self.local[reg.0 as usize]
    }

    /// Lets registers that are left hold the first of these constants.
    pub(super) fn hold(&mut self, constants: &[Float]) {
        for float in constants {
            let free = FLOAT_CACHE.iter().rev().find(|reg| self.cached & reg.bit() == 0);
            let Some(reg) = free.filter(|_| self.floats.len() < MAX_FLOATS) else { return };
            if self.holding(*float).is_none() {
                self.floats.push((*reg, *float));
                self.cached |= reg.bit();
            }
        }
    }

    /// The register that holds a constant.
    pub(super) fn holding(&self, float: Float) -> Option<Reg> {
        self.floats.iter().find(|(_, held)| *held == float).map(|(reg, _)| *reg)
    }

    fn assign(&mut self, reg: Reg, local: u32) {
        self.local[reg.0 as usize] = local;
        self.cached |= reg.bit();
    }

    fn unassign(&mut self, reg: Reg) {
        self.local[reg.0 as usize] = NO_LOCAL;
        self.cached &= !reg.bit();
    }
}

/// The registers of a set, in ascending order.
pub(super) fn bits(mut set: u32) -> impl Iterator<Item = Reg> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (lowest < 32).then_some(Reg(lowest as u8))
    })
}

/// The regions that the code so far has, and the one that the current state belongs to. Reused from
/// function to function for its allocation.
#[derive(Debug, Default)]
pub(super) struct Regions {
    all: Vec<Region>,
    current: usize,
}

impl Regions {
    /// Begins with the region of a function, which has no register-cached locals until they are
    /// chosen.
    pub(super) fn begin(&mut self) {
        self.all.clear();
        self.all.push(Region::none());
        self.current = 0;
    }

    /// Sets the region of the function.
    pub(super) fn set_outermost(&mut self, region: Region) {
        self.all[0] = region;
    }

    /// Adds the region of a loop, and returns its index.
    pub(super) fn add(&mut self, region: Region) -> usize {
        self.all.push(region);
        self.all.len() - 1
    }

    pub(super) fn at(&self, index: usize) -> &Region {
        &self.all[index]
    }

    pub(super) fn current(&self) -> &Region {
        &self.all[self.current]
    }

    pub(super) fn current_index(&self) -> usize {
        self.current
    }

    /// Records that the state is that of this region from here.
    pub(super) fn enter(&mut self, index: usize) {
        self.current = index;
    }

    /// All registers that cache locals somewhere in the function.
    pub(super) fn all_cached(&self) -> u32 {
        self.all.iter().fold(0, |set, region| set | region.cached)
    }
}

/// A function, or a loop in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) accesses: &'a [Access],
    /// Number of loops around its code, including itself.
    pub(super) depth: u32,
    /// The number of blocks that begin in it.
    pub(super) blocks: u32,
}

impl Part<'_> {
    /// Whether its code has few labels: see [`STRAIGHT`].
    fn is_straight(&self) -> bool {
        self.accesses.len() / (1 + self.blocks as usize) >= STRAIGHT
    }
}

/// Chooses register-cached locals; reused from function to function for its allocations.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    /// The uses of each local; none between two choices.
    uses: Vec<Uses>,
    touched: Vec<u32>,
}

/// How a region uses a local.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    weight: u32,
    is_written: bool,
    /// Whether the first access is a read.
    is_read_first: bool,
}

impl Chooser {
    /// The register-cached locals of a region. `arrives` returns the register in which a parameter
    /// arrives, in the outermost region.
    pub(super) fn choose(
        &mut self,
        part: Part<'_>,
        outer: &Region,
        ty: impl Fn(u32) -> Ty,
        arrives: impl Fn(u32) -> Option<Reg>,
        locals: usize,
    ) -> Region {
        if self.uses.len() < locals {
            self.uses.resize(locals, Uses::default());
        }
        let Part { accesses, depth, .. } = part;
        let mut calls = 0_u32;
        let mut calls_here = 0_u32;
        let mut has_unlikely_calls = false;
        let all_examined = accesses.len() <= MAX_ACCESSES;
        for access in &accesses[..accesses.len().min(MAX_ACCESSES)] {
            let weight = 1 << (LOOP_WEIGHT * access.depth().saturating_sub(depth).min(MAX_WEIGHTED_DEPTH));
            let weight = if access.is_unlikely() { 0 } else { weight };
            if access.is_call() {
                has_unlikely_calls |= weight == 0;
                calls = calls.saturating_add(weight);
                calls_here += u32::from(weight > 0 && access.depth() == depth);
                continue;
            }
            let uses = &mut self.uses[access.local() as usize];
            if uses.weight == 0 {
                self.touched.push(access.local());
                uses.is_read_first = !access.writes();
            }
            uses.weight = uses.weight.saturating_add(weight);
            uses.is_written |= access.writes();
        }
        let has_calls = calls > 0 || accesses.iter().skip(MAX_ACCESSES).any(|access| access.is_call());
        let mut region =
            Region { calls: has_calls || has_unlikely_calls, unwritten: 0, constants: 0, ..outer.clone() };
        let cost = CALL_COST.saturating_mul(calls);
        if depth > 0 && !has_calls {
            self.prefer_carried();
        }
        if has_calls {
            for (reg, local) in outer.iter() {
                if !is_callee_saved(reg) && self.weight(local) <= cost {
                    region.unassign(reg);
                }
            }
        }
        let is_straight = part.is_straight();
        if is_straight {
            CALLER_SAVED_CACHE.into_iter().for_each(|reg| region.unassign(reg));
        }
        let mut wanted: Vec<u32> = std::mem::take(&mut self.touched);
        wanted.sort_unstable_by_key(|local| (std::cmp::Reverse(self.weight(*local)), *local));
        // A local occurs several times if none of its uses counts.
        wanted.dedup();
        for &local in &wanted {
            if region.iter().any(|(_, cached)| cached == local) {
                continue;
            }
            let weight = self.weight(local);
            // Until the first loop or call, keeping a parameter where it arrives costs nothing.
            let arrival = arrives(local).filter(|_| calls_here == 0);
            let cost = if arrival.is_some() { 0 } else { cost };
            if weight < 2 && arrival.is_none() {
                break;
            }
            let ty = ty(local);
            let may_be_clobbered = (!has_calls || weight > cost) && (ty.is_sse() || !is_straight);
            if let Some(reg) = self.place(&region, ty, weight, has_calls, may_be_clobbered, arrival) {
                region.assign(reg, local);
            }
        }
        if all_examined {
            let unwritten = region.iter().filter(|(_, local)| !self.uses[*local as usize].is_written);
            region.unwritten = unwritten.fold(0, |set, (reg, _)| set | reg.bit());
        }
        for local in wanted.drain(..) {
            self.uses[local as usize] = Uses::default();
        }
        self.touched = wanted;
        region
    }

    /// Adds [`CARRIED`] to the weights of the locals that are read before they are written.
    fn prefer_carried(&mut self) {
        for local in &self.touched {
            let uses = &mut self.uses[*local as usize];
            if uses.weight > 0 && uses.is_written && std::mem::take(&mut uses.is_read_first) {
                uses.weight = uses.weight.saturating_add(CARRIED);
            }
        }
    }

    fn weight(&self, local: u32) -> u32 {
        self.uses[local as usize].weight
    }

    /// The register for a local that has none; it may be one that caches another local.
    fn place(
        &self,
        region: &Region,
        ty: Ty,
        weight: u32,
        calls: bool,
        may_be_clobbered: bool,
        arrival: Option<Reg>,
    ) -> Option<Reg> {
        let free = |reg: &Reg| region.cached & reg.bit() == 0;
        let callee_saved = CALLEE_SAVED.map(|(reg, _)| reg);
        let (kept, clobbered): (&[Reg], &[Reg]) =
            if ty.is_sse() { (&[], &FLOAT_CACHE) } else { (&callee_saved, &CALLER_SAVED_CACHE) };
        let kept = &kept[..kept.len().min(MAX_CACHED)];
        let clobbered = &clobbered[..clobbered.len().min(MAX_CACHED)];
        let saved = weight > if calls { SAVE_COST_AROUND_CALLS } else { SAVE_COST };
        if calls
            && saved
            && let Some(reg) = kept.iter().find(|reg| free(reg))
        {
            return Some(*reg);
        }
        if may_be_clobbered {
            if let Some(reg) = arrival.filter(|reg| clobbered.contains(reg) && free(reg)) {
                return Some(reg);
            }
            if weight >= 2
                && let Some(reg) = clobbered.iter().rev().find(|reg| free(reg))
            {
                return Some(*reg);
            }
        }
        if saved && let Some(reg) = kept.iter().find(|reg| free(reg)) {
            return Some(*reg);
        }
        // Replaces the local with the fewest uses here.
        let candidates = kept.iter().filter(|_| saved).chain(clobbered.iter().filter(|_| may_be_clobbered));
        let uses = |reg: &&Reg| self.weight(region.local[reg.0 as usize]);
        candidates.filter(|reg| !free(reg)).min_by_key(uses).filter(|reg| uses(reg) < weight).copied()
    }
}

/// Whether the register is callee-saved.
pub(super) fn is_callee_saved(reg: Reg) -> bool {
    CALLEE_SAVED.iter().any(|(kept, _)| *kept == reg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::scan::CALL;

    /// The registers that cache locals, if there are this many reads and blocks.
    fn cached(reads: usize, blocks: u32, ty: Ty) -> u32 {
        let read = |at: usize| Access::new(at as u32 % 20, false, 0, false, at as u32);
        let accesses: Vec<Access> = (0..reads).map(read).collect();
        let part = Part { accesses: &accesses, depth: 0, blocks };
        Chooser::default().choose(part, &Region::none(), |_| ty, |_| None, 20).cached
    }

    /// Whether a region caches a local with these two accesses, and one that is written and then
    /// read twice, if others are accessed like the latter. `true` stands for a write.
    fn cached_of(first: [bool; 2], depth: u32, has_call: bool) -> [bool; 2] {
        let last = FLOAT_CACHE.len() as u32;
        let others = (1..=last).flat_map(|local| [true, false, false].map(|write| (local, write)));
        let first = first.map(|write| (0, write));
        let accesses = others.chain(first).chain(has_call.then_some((CALL, false))).zip(0..);
        let accesses = accesses.map(|((what, write), at)| Access::new(what, write, depth, false, at));
        let accesses: Vec<Access> = accesses.collect();
        let part = Part { accesses: &accesses, depth, blocks: 1 };
        let region = Chooser::default().choose(part, &Region::none(), |_| Ty::F64, |_| None, 20);
        [0, last].map(|local| region.iter().any(|(_, cached)| cached == local))
    }

    #[test]
    fn values_that_a_loop_carries_are_preferred() {
        let (carried, other) = ([true, false], [false, true]);
        assert_eq!(cached_of([false, true], 1, false), carried);
        assert_eq!(cached_of([true, false], 1, false), other);
        assert_eq!(cached_of([false, false], 1, false), other);
        assert_eq!(cached_of([false, true], 0, false), other);
        assert_eq!(cached_of([false, true], 1, true), other);
    }

    #[test]
    fn straight_code_leaves_registers_to_copies() {
        let kept = CALLEE_SAVED.iter().fold(0, |set, (reg, _)| set | reg.bit());
        let all = CALLER_SAVED_CACHE.iter().fold(kept, |set, reg| set | reg.bit());
        assert_eq!(cached(STRAIGHT, 0, Ty::I64), kept);
        assert_eq!(cached(STRAIGHT - 1, 0, Ty::I64), all);
        assert_eq!(cached(3 * STRAIGHT, 2, Ty::I64), kept);
        assert_eq!(cached(3 * STRAIGHT - 1, 2, Ty::I64), all);
        assert_eq!(cached(STRAIGHT, 0, Ty::F64), FLOAT_CACHE.iter().fold(0, |set, reg| set | reg.bit()));
    }
}
