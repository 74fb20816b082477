//! The parts of a function, and which of them were executed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use wasm_jit::probes::{Branches, Location, Place};

use super::branches::{Branch, Evidence, Outcome, branches_of};
use super::{Figures, Part};
use crate::builtin::graph::{Completion, Graph};

/// A function and its parts.
pub(super) struct Function {
    pub(super) index: u32,
    /// The offsets of the function's instructions.
    pub(super) offsets: Vec<u32>,
    /// The instructions of each basic block.
    blocks: Vec<Range<usize>>,
    pub(super) segments: Vec<Segment>,
    pub(super) branches: Vec<Branch>,
}

/// A range of instructions of a function.
pub(super) struct Segment {
    pub(super) instructions: Range<usize>,
    /// The location at which the completion of the segment is certain; `None` if control cannot
    /// reach it.
    pub(super) probe: Option<Location>,
    /// Whether the entire segment was executed.
    pub(super) is_covered: AtomicBool,
    /// The number of the segment's instructions that were executed before one trapped.
    pub(super) until_trap: AtomicU32,
}

/// The executed parts of a function, at one time.
pub(super) struct Covered {
    /// Indexed by instruction; `None` if control never reaches it.
    pub(super) instructions: Vec<Option<bool>>,
    /// For each branch, the instruction, and for each outcome the target and whether it has
    /// occurred.
    pub(super) branches: Vec<(usize, Vec<(usize, bool)>)>,
    pub(super) figures: Figures,
}

impl Function {
    pub(super) fn of(graph: &Graph<'_>, observes_branches: bool) -> Self {
        let reached = graph.reached();
        let segment = |instructions: Range<usize>| {
            let last = instructions.end - 1;
            let certain = |index: &usize| graph.completion(*index) == Completion::Certain;
            let at = (instructions.start..last).rev().find(|index| !certain(index));
            let at = at.map_or(instructions.start, |at| at + 1);
            let probe = reached[instructions.start].then(|| graph.location(at));
            Segment { instructions, probe, is_covered: false.into(), until_trap: 0.into() }
        };
        Self {
            index: graph.function,
            offsets: graph.flow.instructions.iter().map(|(offset, _)| *offset).collect(),
            blocks: graph.flow.blocks(),
            segments: graph.segments().into_iter().map(segment).collect(),
            branches: if observes_branches { branches_of(graph) } else { Vec::new() },
        }
    }

    pub(super) fn location(&self, instruction: usize) -> Location {
        let place = Place::Instruction { offset: self.offsets[instruction] };
        Location { function: self.index, place }
    }

    /// The index of the segment that contains an instruction.
    pub(super) fn segment_of(&self, instruction: usize) -> usize {
        self.segments.partition_point(|segment| segment.instructions.start <= instruction) - 1
    }

    /// The parts that were executed so far. `counted` returns the counts of the probe of a branch.
    pub(super) fn covered(&self, counted: &dyn Fn(usize) -> Option<Branches>) -> Covered {
        let mut instructions = vec![None; self.offsets.len()];
        for segment in self.segments.iter().filter(|segment| segment.probe.is_some()) {
            let executed = match segment.is_covered.load(Ordering::Relaxed) {
                true => usize::MAX,
                false => segment.until_trap.load(Ordering::Relaxed) as usize,
            };
            for (at, index) in segment.instructions.clone().enumerate() {
                instructions[index] = Some(at < executed);
            }
        }
        let is_covered = |index: usize| instructions.get(index).copied().flatten() == Some(true);
        let mut branches = Vec::new();
        for branch in &self.branches {
            if instructions[branch.instruction].is_none() {
                continue;
            }
            let counted = if branch.needs_probe() { counted(branch.instruction) } else { None };
            let was_seen = |(number, outcome): (usize, &Outcome)| match &outcome.seen {
                Evidence::ByTarget => is_covered(outcome.target),
                Evidence::ByProbe(earlier) => {
                    earlier.load(Ordering::Relaxed) || branch.has_seen(number, counted.as_ref())
                }
            };
            let outcomes = branch.outcomes.iter().enumerate();
            let outcomes = outcomes.map(|outcome| (outcome.1.target, was_seen(outcome))).collect();
            branches.push((branch.instruction, outcomes));
        }
        let part = |all: &mut dyn Iterator<Item = bool>| -> Part {
            all.fold([0, 0], |[executed, all], is_covered| [executed + u64::from(is_covered), all + 1])
        };
        let figures = Figures {
            instructions: part(&mut instructions.iter().copied().flatten()),
            blocks: part(&mut self.blocks.iter().filter_map(|block| instructions[block.start])),
            outcomes: part(
                &mut branches.iter().flat_map(|(_, outcomes): &(_, Vec<_>)| outcomes).map(|(_, seen)| *seen),
            ),
        };
        Covered { instructions, branches, figures }
    }
}
