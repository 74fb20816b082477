//! Which locals live in registers: chosen for each region, a loop or the function around them.
//!
//! A local with a *home* in a region is in that register at every label of the region; all others
//! are in their slots. A loop starts with the homes of the region around it, so that nothing moves
//! for what both use; where registers are short, its own most used locals take those of the least
//! used ones. A use in an inner loop counts [`LOOP_WEIGHT`] times.
//!
//! Registers that the callee keeps are for regions with calls. The others are homes there only if
//! the uses outweigh saving and restoring around the calls.

use super::abi::{CALLEE_SAVED, CALLER_SAVED_HOMES, FLOAT_HOMES, Ty};
use super::scan::Access;
use crate::asm::Reg;

/// How many times more often an inner loop's code is assumed to run, as a shift.
const LOOP_WEIGHT: u32 = 3;
/// Deeper loops count no more.
const DEEPEST: u32 = 5;
/// Storing and loading around one call.
const CALL_COST: u32 = 2;
/// Uses that pay for saving a register of the callee's in prologue and epilogue.
const SAVE_COST: u32 = 5;
/// The same in a region that calls: what it calls takes longer than a use in memory, and loops
/// without calls inside have homes of their own.
const SAVE_COST_AROUND_CALLS: u32 = 40;
/// Accesses looked at in one region: with this many, more would change nothing, and nested loops
/// stay cheap.
const LOOKED_AT: usize = 20_000;
/// Loops deeper than this take the homes of the loop around them.
pub(super) const MAX_REGION_DEPTH: u32 = 12;

/// Registers of each kind that may be homes. With few of them, loops compete, and what is rare in
/// real programs is common in small random ones: see the package `wasm-jit-fuzz`.
const MAX_HOMES: usize = if cfg!(feature = "few-homes") { 1 } else { 16 };

/// A register's local.
pub(super) const NO_LOCAL: u32 = u32::MAX;

/// The homes of a region.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// By register: the local at home there.
    pub(super) local: [u32; 32],
    /// Registers that are homes.
    pub(super) homes: u32,
    /// Homes of locals that the region never writes.
    pub(super) unwritten: u32,
    /// Whether anything in it calls.
    pub(super) calls: bool,
}

impl Region {
    pub(super) fn none() -> Self {
        Self { local: [NO_LOCAL; 32], homes: 0, unwritten: 0, calls: false }
    }

    /// Registers and locals at home there.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Reg, u32)> + use<> {
        let local = self.local;
        bits(self.homes).map(move |reg| (reg, local[reg.0 as usize]))
    }

    fn give(&mut self, reg: Reg, local: u32) {
        self.local[reg.0 as usize] = local;
        self.homes |= reg.bit();
    }

    fn take(&mut self, reg: Reg) {
        self.local[reg.0 as usize] = NO_LOCAL;
        self.homes &= !reg.bit();
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

/// Chooses homes; kept from function to function for its memory.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    /// By local; all zero between two choices.
    weight: Vec<u32>,
    written: Vec<bool>,
    touched: Vec<u32>,
}

impl Chooser {
    /// The homes for a region of these accesses inside `depth` loops. `arrives` tells the register
    /// in which a parameter arrives, in the outermost region.
    pub(super) fn choose(
        &mut self,
        accesses: &[Access],
        depth: u32,
        outer: &Region,
        ty: impl Fn(u32) -> Ty,
        arrives: impl Fn(u32) -> Option<Reg>,
        locals: usize,
    ) -> Region {
        if self.weight.len() < locals {
            self.weight.resize(locals, 0);
            self.written.resize(locals, false);
        }
        let mut calls = 0_u32;
        let mut calls_here = 0_u32;
        let all_seen = accesses.len() <= LOOKED_AT;
        for access in accesses.iter().take(LOOKED_AT) {
            let weight = 1 << (LOOP_WEIGHT * access.depth().saturating_sub(depth).min(DEEPEST));
            if access.is_call() {
                calls = calls.saturating_add(weight);
                calls_here += u32::from(access.depth() == depth);
                continue;
            }
            let local = access.local() as usize;
            if self.weight[local] == 0 {
                self.touched.push(local as u32);
            }
            self.weight[local] = self.weight[local].saturating_add(weight);
            self.written[local] |= access.writes();
        }
        let has_calls = calls > 0 || accesses.iter().skip(LOOKED_AT).any(|access| access.is_call());
        let mut region = Region { calls: has_calls, unwritten: 0, ..outer.clone() };
        let cost = CALL_COST.saturating_mul(calls);
        if has_calls {
            for (reg, local) in outer.iter() {
                if !is_callee_saved(reg) && self.weight[local as usize] <= cost {
                    region.take(reg);
                }
            }
        }
        let mut wanted: Vec<u32> = std::mem::take(&mut self.touched);
        wanted.sort_unstable_by_key(|local| (std::cmp::Reverse(self.weight[*local as usize]), *local));
        for &local in &wanted {
            if region.iter().any(|(_, at_home)| at_home == local) {
                continue;
            }
            let weight = self.weight[local as usize];
            // Until the first loop or call, a parameter costs nothing where it arrives.
            let arrival = arrives(local).filter(|_| calls_here == 0);
            let cost = if arrival.is_some() { 0 } else { cost };
            if weight < 2 && arrival.is_none() {
                break;
            }
            if let Some(reg) = self.place(&region, ty(local), weight, cost, has_calls, arrival) {
                region.give(reg, local);
            }
        }
        for (reg, local) in region.iter() {
            if all_seen && !self.written[local as usize] {
                region.unwritten |= reg.bit();
            }
        }
        for local in wanted.drain(..) {
            self.weight[local as usize] = 0;
            self.written[local as usize] = false;
        }
        self.touched = wanted;
        region
    }

    /// The register for a local that has none, which may be another's home still.
    fn place(
        &self,
        region: &Region,
        ty: Ty,
        weight: u32,
        cost: u32,
        calls: bool,
        arrival: Option<Reg>,
    ) -> Option<Reg> {
        let free = |reg: &Reg| region.homes & reg.bit() == 0;
        let callee_saved = CALLEE_SAVED.map(|(reg, _)| reg);
        let (kept, lost): (&[Reg], &[Reg]) =
            if ty.is_float() { (&[], &FLOAT_HOMES) } else { (&callee_saved, &CALLER_SAVED_HOMES) };
        let (kept, lost) = (&kept[..kept.len().min(MAX_HOMES)], &lost[..lost.len().min(MAX_HOMES)]);
        let saved = weight > if calls { SAVE_COST_AROUND_CALLS } else { SAVE_COST };
        let may_be_lost = !calls || weight > cost;
        if calls
            && saved
            && let Some(reg) = kept.iter().find(|reg| free(reg))
        {
            return Some(*reg);
        }
        if may_be_lost {
            if let Some(reg) = arrival.filter(|reg| lost.contains(reg) && free(reg)) {
                return Some(reg);
            }
            if weight >= 2
                && let Some(reg) = lost.iter().rev().find(|reg| free(reg))
            {
                return Some(*reg);
            }
        }
        if saved && let Some(reg) = kept.iter().find(|reg| free(reg)) {
            return Some(*reg);
        }
        // Whose uses here are the fewest.
        let candidates = kept.iter().filter(|_| saved).chain(lost.iter().filter(|_| may_be_lost));
        let uses = |reg: &&Reg| self.weight[region.local[reg.0 as usize] as usize];
        candidates.filter(|reg| !free(reg)).min_by_key(uses).filter(|reg| uses(reg) < weight).copied()
    }
}

/// Whether a callee keeps it.
pub(super) fn is_callee_saved(reg: Reg) -> bool {
    CALLEE_SAVED.iter().any(|(kept, _)| *kept == reg)
}
