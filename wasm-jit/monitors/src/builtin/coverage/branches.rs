//! Branches, and where they may continue.

use std::sync::atomic::AtomicBool;

use wasm_jit::probes::Branches;
use wasm_jit::wasmparser::Operator;

use crate::builtin::graph::Graph;

/// A branch with more than one outcome.
pub(super) struct Branch {
    /// Its instruction.
    pub(super) instruction: usize,
    /// By number of the successor: which outcome that is.
    by_successor: Vec<usize>,
    pub(super) outcomes: Vec<Outcome>,
}

/// A place where a branch may continue.
pub(super) struct Outcome {
    /// The instruction, or the exit.
    pub(super) target: usize,
    pub(super) seen: Evidence,
}

/// The source of knowledge about an outcome.
pub(super) enum Evidence {
    /// The first instruction of the target is executed only after it.
    ByTarget,
    /// The branch has a probe that counts, or an earlier run has seen it.
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
            // The successors are by the operand, the default last.
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
        // A loop is executed first from outside.
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
    /// Whether not all of its outcomes are known from the instructions that were executed.
    pub(super) fn needs_probe(&self) -> bool {
        self.outcomes.iter().any(|outcome| matches!(outcome.seen, Evidence::ByProbe(_)))
    }

    /// Whether an outcome was seen, with what the branch's probe has counted.
    pub(super) fn has_seen(&self, outcome: usize, counted: Option<&Branches>) -> bool {
        let ways: Vec<u64> = match counted {
            Some(Branches::Condition { taken, not_taken }) => vec![*taken, *not_taken],
            Some(Branches::Table { targets, default }) => targets.iter().chain([default]).copied().collect(),
            _ => Vec::new(),
        };
        self.by_successor.iter().zip(ways).any(|(of, count)| *of == outcome && count > 0)
    }
}
