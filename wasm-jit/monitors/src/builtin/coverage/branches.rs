//! Branches, and where they may continue.

use std::sync::atomic::AtomicBool;

use wasm_jit::probes::Branches;
use wasm_jit::wasmparser::Operator;

use crate::builtin::graph::Graph;

/// A branch with more than one outcome.
pub(super) struct Branch {
    /// Index of the branch instruction.
    pub(super) instruction: usize,
    /// Indexed by successor: the index of its outcome.
    by_successor: Vec<usize>,
    pub(super) outcomes: Vec<Outcome>,
}

/// A point at which control may continue after a branch.
pub(super) struct Outcome {
    /// The index of the instruction, or the exit.
    pub(super) target: usize,
    pub(super) seen: Evidence,
}

/// What shows that an outcome has occurred.
pub(super) enum Evidence {
    /// The execution of the target's first instruction, which is executed only after this outcome.
    ByTarget,
    /// The branch's probe, which counts, or an earlier run.
    ByProbe(AtomicBool),
}

/// The branches of a function with more than one outcome.
pub(super) fn branches_of(graph: &Graph<'_>) -> Vec<Branch> {
    let predecessors = graph.predecessors();
    let mut branches = Vec::new();
    for (index, (_, operator)) in graph.flow.instructions.iter().enumerate() {
        let is_condition = match operator {
            // The first successor follows if the condition holds.
            Operator::BrIf { .. }
            | Operator::If { .. }
            | Operator::BrOnNull { .. }
            | Operator::BrOnNonNull { .. }
            | Operator::BrOnCast { .. }
            | Operator::BrOnCastFail { .. } => true,
            // The successors are ordered by the operand, the default last.
            Operator::BrTable { .. } => false,
            _ => continue,
        };
        let successors = &graph.flow.successors[index];
        let mut targets: Vec<usize> = successors.clone();
        if !is_condition {
            targets.sort_unstable();
            targets.dedup();
        }
        if targets.len() < 2 {
            continue;
        }
        let is_loop =
            |target: usize| matches!(graph.flow.instructions.get(target), Some((_, Operator::Loop { .. })));
        // A loop is first entered from outside.
        let comes_only_from = |target: usize| {
            let from = predecessors[target].iter().filter(|(from, _)| !is_loop(target) || *from < target);
            let edges =
                if is_condition { 1 } else { successors.iter().filter(|next| **next == target).count() };
            !graph.is_handler(target)
                && target < graph.len()
                && !(is_loop(target) && index >= target)
                && from.clone().all(|(from, _)| *from == index)
                && from.count() == edges
        };
        let outcome = |target: &usize| {
            let seen = if comes_only_from(*target) {
                Evidence::ByTarget
            } else {
                Evidence::ByProbe(AtomicBool::new(false))
            };
            Outcome { target: *target, seen }
        };
        let by_target = |next: &usize| targets.binary_search(next).expect("among them");
        branches.push(Branch {
            instruction: index,
            by_successor: if is_condition { vec![0, 1] } else { successors.iter().map(by_target).collect() },
            outcomes: targets.iter().map(outcome).collect(),
        });
    }
    branches
}

impl Branch {
    /// Whether some outcomes cannot be derived from the instructions that were executed.
    pub(super) fn needs_probe(&self) -> bool {
        self.outcomes.iter().any(|outcome| matches!(outcome.seen, Evidence::ByProbe(_)))
    }

    /// Whether an outcome has occurred, given the counts of the branch's probe.
    pub(super) fn has_seen(&self, outcome: usize, counted: Option<&Branches>) -> bool {
        let ways: Vec<u64> = match counted {
            Some(Branches::Condition { taken, not_taken }) => vec![*taken, *not_taken],
            Some(Branches::Table { targets, default }) => targets.iter().chain([default]).copied().collect(),
            _ => Vec::new(),
        };
        self.by_successor.iter().zip(ways).any(|(of, count)| *of == outcome && count > 0)
    }
}
