//! Numbers of a monitor that the engine updates by counting.
//!
//! Where the function of a rule only [adds](super::evaluate) to numbers of the monitor, it is not
//! called: the place gets a probe that [counts](wasm_jit::probes::Kind::Count). The count is
//! multiplied by the amounts that a call adds, and added to the numbers before anything can read
//! them. In this way, a monitor that counts every instruction costs one addition for each
//! straight-line run of instructions, and is exact even if a trap ends the run. Adding to the
//! monitor's memory at each place instead would cost an addition for each instruction, since each
//! may have its own number, or several; and the program's code would contain addresses of another
//! instance's memory.
//!
//! This is the same as calling the function, because
//!
//! - additions modulo a power of two may be done in any order, and together;
//! - the numbers are in a memory of one thread, or in a global, that the monitor does not import.
//!   Memories do not shrink, so an address that was in one remains there. Two numbers that share
//!   bytes are the same one, or the memory is left to functions ([`choose`]);
//! - no function that is called while the program runs can [reach](super::reach) them. Otherwise,
//!   all functions that use this memory, or global, are called, except for those of rules for which
//!   the compiler of scripts knows that nothing reads what they add to ([`crate::sums`]);
//! - the probes count in the instances in which calls would happen: those of the monitor's store,
//!   or all of the module if the monitor is [shared](super::shared);
//! - hosts, and rules for the end, see them after [`settle`](Counting::settle).
//!
//! There are three differences. A function that is not called cannot overflow the stack; probes in
//! it do not fire; and if another function of the same place ends the program's call by a trap
//! before this one would have been called, this one is counted nevertheless.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasm_jit::probes::{Bound, Branches, Location, Probe, Values, WasmFn};
use wasm_jit::{AsContextMut, Instance, Val, ValType};

use super::contents::{Contents, Width};
use super::evaluate::{Adds, Argument, Cell, Ways, evaluate, overlap};
use super::reach::Reach;

/// Limit of instructions that are evaluated without a result for a rule; after that, the rule's
/// function is called at all remaining places. This bounds the evaluation to about a millisecond.
const FAILING_STEPS: u32 = 100_000;

/// A rule at a place.
#[derive(Debug)]
pub(crate) struct RuleMatch {
    /// The number of the rule.
    pub(crate) rule: usize,
    pub(crate) location: Location,
    /// The arguments of the rule's function.
    pub(crate) values: Values,
    /// The choice that the instruction makes, if it makes one.
    pub(super) ways: Option<Ways>,
    /// The amounts that a call adds, always or for each way to continue, if the function only adds
    /// and need not be called (see [`choose`]).
    pub(super) adds: Option<Arc<[Adds]>>,
    /// The group that switches the probe, if one does.
    pub(super) group: Option<u32>,
    /// Whether the function asks for the function that is about to be called.
    pub(super) asks_for_callee: bool,
}

/// Determines which functions only add, and decides which of them are called nevertheless. The
/// functions are those of the rules, with their indices in the monitor; `are_sums` says which rules
/// only add to numbers that nothing else uses.
pub(super) fn choose(
    found: &mut [RuleMatch],
    functions: &[(WasmFn, Option<u32>)],
    are_sums: &[bool],
    contents: &mut Contents<'_>,
) {
    let mut steps = vec![FAILING_STEPS; functions.len()];
    // By rule, the place before: many have the same values.
    let mut last: Vec<Option<usize>> = vec![None; functions.len()];
    for number in 0..found.len() {
        let RuleMatch { rule, ways, ref values, group, .. } = found[number];
        if group.is_some() {
            // The function itself requests when it is switched.
            continue;
        }
        let before = last[rule].replace(number).map(|before| &found[before]);
        found[number].adds = match before.filter(|before| before.values == *values && before.ways == ways) {
            Some(before) => before.adds.clone(),
            None => {
                let mut left = steps[rule];
                let adds = found[number].evaluate(&functions[rule], contents, &mut left).map(Arc::from);
                if adds.is_none() {
                    steps[rule] = left;
                }
                adds
            }
        };
    }
    let mut cells: Vec<Cell> = found.iter().flat_map(RuleMatch::cells).copied().collect();
    cells.sort_unstable();
    cells.dedup();
    let mut reach = Reach::default();
    for of_memory in cells.chunk_by(|one, next| one.memory() == next.memory()) {
        if let (Some(memory), true) = (of_memory[0].memory(), overlap(of_memory)) {
            reach.add_memory(memory);
        }
    }
    let mut called = vec![false; functions.len()];
    loop {
        for RuleMatch { rule, .. } in found.iter().filter(|found| found.adds.is_none()) {
            if !std::mem::replace(&mut called[*rule], true) {
                match functions[*rule].1 {
                    Some(function) => reach.add(contents, function),
                    None => reach.add_everything(),
                }
            }
        }
        let mut is_settled = true;
        for found in found.iter_mut().filter(|found| !are_sums[found.rule]) {
            if found.cells().any(|cell| reach.has(cell)) {
                found.adds = None;
                is_settled &= called[found.rule];
            }
        }
        if is_settled {
            return;
        }
    }
}

impl RuleMatch {
    fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.adds.iter().flat_map(|adds| adds.iter()).flatten().map(|(cell, _)| cell)
    }

    /// The amounts that a call adds, if the function only adds.
    fn evaluate(
        &self,
        (function, index): &(WasmFn, Option<u32>),
        contents: &mut Contents<'_>,
        steps: &mut u32,
    ) -> Option<Box<[Adds]>> {
        let values = self.values.as_slice().iter().zip(function.parameters());
        let argument = |(value, parameter): (&Bound, &ValType)| match value {
            Bound::Const(value) => Some(Argument::Constant(*value)),
            Bound::Frame => Some(Argument::Unknown),
            value if self.ways.is_some_and(|ways| ways.is_passed_as(*value, *parameter)) => {
                Some(Argument::Choosing)
            }
            // A place that lacks the value, or has it in another type, is not a match.
            _ => None,
        };
        let arguments = values.map(argument).collect::<Option<Vec<Argument>>>()?;
        evaluate(contents, (*index)?, &arguments, self.ways, steps)
    }
}

impl Cell {
    fn memory(&self) -> Option<u32> {
        match self {
            Self::Memory { memory, .. } => Some(*memory),
            Self::Global { .. } => None,
        }
    }

    fn add(self, amount: u64, instance: &Instance, mut store: impl AsContextMut) {
        match self {
            Self::Global { index, .. } => {
                let global = instance.global(&store, index).expect("the monitor has it");
                let sum = match global.get(&mut store) {
                    Val::I32(value) => Val::I32(value.wrapping_add(amount as i32)),
                    Val::I64(value) => Val::I64(value.wrapping_add(amount as i64)),
                    other => unreachable!("the global is an integer, not {other:?}"),
                };
                global.set(&mut store, sum).expect("the global can be changed");
            }
            Self::Memory { memory, address, width } => {
                let memory = instance.memory(&store, memory).expect("the monitor has it");
                let bytes = &mut memory.data_mut(store.as_context_mut())[address as usize..];
                match width {
                    Width::W32 => add_to(bytes, |bytes| {
                        u32::from_le_bytes(bytes).wrapping_add(amount as u32).to_le_bytes()
                    }),
                    Width::W64 => {
                        add_to(bytes, |bytes| u64::from_le_bytes(bytes).wrapping_add(amount).to_le_bytes())
                    }
                }
            }
        }
    }
}

fn add_to<const N: usize>(bytes: &mut [u8], sum: impl FnOnce([u8; N]) -> [u8; N]) {
    let number = bytes.first_chunk_mut::<N>().expect("memories do not get smaller");
    *number = sum(*number);
}

/// A probe that counts for a rule.
#[derive(Debug)]
pub(super) struct Counting {
    probe: Probe,
    /// The amounts by which each count is multiplied.
    adds: Arc<[Adds]>,
    /// The part of each count that has already been added.
    settled: Box<[u64]>,
}

impl Counting {
    pub(super) fn new(probe: Probe, adds: Arc<[Adds]>) -> Self {
        let settled = vec![0; adds.len()].into();
        Self { probe, adds, settled }
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.probe
    }

    /// The counts, in the order of what each adds.
    fn counts(&self) -> Vec<u64> {
        match self.probe.branches() {
            None => vec![self.probe.count()],
            Some(Branches::Condition { taken, not_taken }) => vec![taken, not_taken],
            Some(Branches::Table { targets, default }) => targets.into_iter().chain([default]).collect(),
            Some(_) => unreachable!("there are no other branches"),
        }
    }

    /// Adds what was counted since the last call to the monitor's numbers.
    pub(super) fn settle(all: &mut [Self], instance: &Instance, mut store: impl AsContextMut) {
        let mut sums: BTreeMap<Cell, u64> = BTreeMap::new();
        for counting in all {
            let counts = counting.counts();
            for ((count, settled), adds) in counts.into_iter().zip(&mut counting.settled).zip(&*counting.adds)
            {
                // The count decreases if an instruction was counted with its run, but not executed.
                let more = count.wrapping_sub(std::mem::replace(settled, count));
                for (cell, amount) in adds.iter().filter(|_| more != 0) {
                    let sum = sums.entry(*cell).or_default();
                    *sum = sum.wrapping_add(more.wrapping_mul(*amount));
                }
            }
        }
        for (cell, sum) in sums {
            cell.add(sum, instance, &mut store);
        }
    }
}
