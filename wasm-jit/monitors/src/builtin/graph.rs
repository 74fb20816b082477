//! Basic blocks of functions, and control flow between them.

use std::ops::Range;

use wasm_jit::FunctionInfo;
use wasm_jit::probes::{Bound, Location, Place};
use wasm_jit::wasmparser::Operator;
use wasm_jit_hooks::{AccessInfo, AccessKind, Flow, accesses};

/// A function's instructions and basic blocks.
pub(super) struct Graph<'m> {
    pub(super) function: u32,
    pub(super) flow: Flow<'m>,
    /// By instruction: whether a basic block begins with it.
    leaders: Vec<bool>,
}

/// Whether an instruction is certain to complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    /// It always completes.
    Certain,
    /// It may trap.
    MayTrap,
    /// It may do anything: call functions, throw, wait.
    Uncertain,
}

#[cfg(test)]
thread_local! {
    /// The number of graphs that the thread has made.
    pub(super) static GRAPHS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<'m> Graph<'m> {
    /// The graph of a function, if it has a body.
    pub(super) fn of(function: &FunctionInfo<'m>) -> Option<Self> {
        #[cfg(test)]
        GRAPHS.set(GRAPHS.get() + 1);
        let body = function.body()?;
        let flow = Flow::of(body);
        let leaders = flow.leaders();
        Some(Self { function: function.index(), flow, leaders })
    }

    /// The location of an instruction.
    pub(super) fn location(&self, index: usize) -> Location {
        Location {
            function: self.function,
            place: Place::Instruction { offset: self.flow.instructions[index].0 },
        }
    }

    /// The number of instructions.
    pub(super) fn len(&self) -> usize {
        self.flow.instructions.len()
    }

    /// The parts of basic blocks that are executed completely if their last instruction is
    /// executed. The first instruction of a part is executed only after all instructions before it
    /// have completed: parts end after instructions whose completion is uncertain.
    pub(super) fn segments(&self) -> Vec<Range<usize>> {
        self.parts(|completion| completion == Completion::Uncertain)
    }

    /// The parts of basic blocks of which all instructions are executed equally often: parts end
    /// after instructions that may not complete.
    pub(super) fn runs(&self) -> Vec<Range<usize>> {
        self.parts(|completion| completion != Completion::Certain)
    }

    /// The parts of basic blocks that end after instructions whose completion is as chosen.
    fn parts(&self, ends: impl Fn(Completion) -> bool) -> Vec<Range<usize>> {
        let begins = |index: usize| self.leaders[index] || index > 0 && ends(self.completion(index - 1));
        let starts: Vec<usize> = (0..self.len()).filter(|index| begins(*index)).collect();
        let ends = starts.iter().skip(1).copied().chain([self.len()]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// Whether an instruction follows the one before it in a basic block.
    pub(super) fn is_in_block_of_previous(&self, index: usize) -> bool {
        !self.leaders[index]
    }

    /// Whether an instruction completes once control has reached it. A loop may be interrupted.
    pub(super) fn completion(&self, index: usize) -> Completion {
        use Operator as O;
        let operator = &self.flow.instructions[index].1;
        let is_simple = |access: &AccessInfo| {
            let is_access = !matches!(access.kind, AccessKind::Wait | AccessKind::Notify);
            matches!(access.size, Bound::Const(_)) && is_access
        };
        match operator {
            O::Loop { .. } => return Completion::MayTrap,
            O::I32DivS | O::I32DivU | O::I32RemS | O::I32RemU => return Completion::MayTrap,
            O::I64DivS | O::I64DivU | O::I64RemS | O::I64RemU => return Completion::MayTrap,
            O::I32TruncF32S | O::I32TruncF32U | O::I32TruncF64S | O::I32TruncF64U => {
                return Completion::MayTrap;
            }
            O::I64TruncF32S | O::I64TruncF32U | O::I64TruncF64S | O::I64TruncF64U => {
                return Completion::MayTrap;
            }
            O::StructGet { .. } | O::StructGetS { .. } | O::StructGetU { .. } | O::StructSet { .. } => {
                return Completion::MayTrap;
            }
            O::ArrayGet { .. } | O::ArrayGetS { .. } | O::ArrayGetU { .. } | O::ArraySet { .. } => {
                return Completion::MayTrap;
            }
            O::ArrayLen | O::I31GetS | O::I31GetU | O::RefCastNonNull { .. } | O::RefCastNullable { .. } => {
                return Completion::MayTrap;
            }
            // There may be no memory, and the collector may run.
            O::StructNew { .. } | O::StructNewDefault { .. } => return Completion::Uncertain,
            O::ArrayNew { .. } | O::ArrayNewDefault { .. } | O::ArrayNewFixed { .. } => {
                return Completion::Uncertain;
            }
            O::ArrayNewData { .. } | O::ArrayNewElem { .. } | O::ArrayInitData { .. } => {
                return Completion::Uncertain;
            }
            O::ArrayInitElem { .. } | O::ArrayFill { .. } | O::ArrayCopy { .. } => {
                return Completion::Uncertain;
            }
            O::Call { .. } | O::CallIndirect { .. } | O::CallRef { .. } => return Completion::Uncertain,
            O::ReturnCall { .. } | O::ReturnCallIndirect { .. } | O::ReturnCallRef { .. } => {
                return Completion::Uncertain;
            }
            O::Throw { .. } | O::ThrowRef | O::Rethrow { .. } | O::Unreachable => {
                return Completion::Uncertain;
            }
            O::MemoryGrow { .. } | O::DataDrop { .. } | O::ElemDrop { .. } | O::RefAsNonNull => {
                return Completion::Uncertain;
            }
            O::TableGet { .. } | O::TableSet { .. } | O::TableGrow { .. } => return Completion::Uncertain,
            O::TableFill { .. } | O::TableCopy { .. } | O::TableInit { .. } => return Completion::Uncertain,
            _ => {}
        }
        let accesses = accesses(operator);
        match accesses.iter().all(is_simple) {
            true if accesses.is_empty() => Completion::Certain,
            true => Completion::MayTrap,
            false => Completion::Uncertain,
        }
    }

    /// For each instruction, and the exit: the instructions that continue there, each with the
    /// index of the successor.
    pub(super) fn predecessors(&self) -> Vec<Vec<(usize, usize)>> {
        let mut predecessors = vec![Vec::new(); self.len() + 1];
        let mut reached = vec![false; self.len() + 1];
        let mut open: Vec<usize> = [0].into_iter().chain(self.flow.handlers.iter().copied()).collect();
        while let Some(index) = open.pop() {
            if index == self.len() || std::mem::replace(&mut reached[index], true) {
                continue;
            }
            for (number, next) in self.flow.successors[index].iter().enumerate() {
                predecessors[*next].push((index, number));
                open.push(*next);
            }
        }
        predecessors
    }

    /// By instruction: whether control may reach it.
    pub(super) fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.len()];
        let mut open = vec![0];
        let mut handlers = Some(&self.flow.handlers);
        while let Some(index) = open.pop() {
            if index == self.len() || std::mem::replace(&mut reached[index], true) {
                continue;
            }
            open.extend(&self.flow.successors[index]);
            let operator = &self.flow.instructions[index].1;
            if matches!(operator, Operator::Try { .. } | Operator::TryTable { .. }) {
                open.extend(handlers.take().into_iter().flatten());
            }
        }
        reached
    }

    /// Whether control may reach an instruction from a caught exception.
    pub(super) fn is_handler(&self, index: usize) -> bool {
        self.flow.handlers.contains(&index)
    }
}

#[cfg(test)]
mod tests {
    use wasm_jit::probes::{Kind, ProbeError, ProbeSpec};
    use wasm_jit::{Engine, Module};

    use super::*;

    /// The compiler agrees.
    #[test]
    fn control_comes_to_what_can_have_probes() {
        let bodies = [
            "block br 0 nop end nop",
            "loop br 0 nop end nop",
            "block block br 1 end nop end nop",
            "local.get 0 if return else unreachable end nop",
            "local.get 0 if unreachable end nop",
            "local.get 0 if br 0 nop else nop end nop",
            "block local.get 0 br_table 0 1 0 end return block end",
            "block try_table (catch_all 0) throw $e end nop end nop",
            "return block try_table (catch_all 0) throw $e end nop end nop",
            "block try_table (catch_all 0) br 1 nop end nop end nop",
            "try throw $e nop catch $e nop catch_all unreachable nop end nop",
            "return try throw $e catch_all nop end nop",
            "try unreachable delegate 0 nop",
        ];
        for body in bodies {
            let text = format!("(module (tag $e) (func (param i32) {body}))");
            let module = Module::new(&Engine::default(), text).unwrap();
            let graph = Graph::of(&module.function(0).unwrap()).unwrap();
            let specs: Vec<_> = (0..graph.len())
                .map(|index| ProbeSpec { location: graph.location(index), kind: Kind::Empty })
                .collect();
            let made = module.probes(&specs).into_iter();
            let reached = made.map(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. })));
            assert_eq!(graph.reached(), reached.collect::<Vec<_>>(), "{body}");
        }
    }
}
