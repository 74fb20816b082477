//! The places where control continues after an instruction, for rules whose mode is not `before`.

use wasm_jit::Module;
use wasm_jit::probes::Place;
use wasm_jit::wasmparser::{CompositeInnerType, Operator, Parser, Payload};
use wasm_jit_hooks::Flow;

use super::instructions::pushed;

/// When the function of a rule is called, in relation to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Before,
    After,
    SemanticAfter,
    Entry,
    Exit,
    /// In place of the instruction, or block, in a program that is [rewritten](crate::rewrite).
    Alt,
    BlockAlt,
}

impl Mode {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "before" => Self::Before,
            "after" => Self::After,
            "semantic_after" => Self::SemanticAfter,
            "entry" => Self::Entry,
            "exit" => Self::Exit,
            "alt" => Self::Alt,
            "block_alt" => Self::BlockAlt,
            _ => return None,
        })
    }

    /// Whether the rule is called before the instruction, so that its operands exist.
    pub(super) fn has_operands(self) -> bool {
        self == Self::Before || self.replaces()
    }

    /// Whether the rule changes the program.
    pub(super) fn replaces(self) -> bool {
        matches!(self, Self::Alt | Self::BlockAlt)
    }
}

/// The control flow between the instructions of a function, by their indices. The index of the end
/// of the call is the number of instructions.
pub(super) struct Continuations {
    offsets: Vec<u32>,
    successors: Vec<Vec<usize>>,
    predecessors: Vec<Vec<usize>>,
    is_loop: Vec<bool>,
    /// For instructions that begin a block: the index of what follows the block's end.
    after_block: Vec<Option<usize>>,
    /// Whether an instruction is where an exception handler continues.
    is_handler: Vec<bool>,
}

impl Continuations {
    pub(super) fn of(flow: &Flow<'_>) -> Self {
        let count = flow.instructions.len();
        let mut all = Self {
            offsets: flow.instructions.iter().map(|(offset, _)| *offset).collect(),
            successors: flow.successors.clone(),
            predecessors: vec![Vec::new(); count + 1],
            is_loop: vec![false; count + 1],
            after_block: vec![None; count],
            is_handler: vec![false; count + 1],
        };
        for handler in &flow.handlers {
            all.is_handler[*handler] = true;
        }
        let mut open = Vec::new();
        for (index, (_, operator)) in flow.instructions.iter().enumerate() {
            for successor in &flow.successors[index] {
                all.predecessors[*successor].push(index);
            }
            match operator {
                Operator::Block { .. }
                | Operator::Loop { .. }
                | Operator::If { .. }
                | Operator::Try { .. }
                | Operator::TryTable { .. } => {
                    all.is_loop[index] = matches!(operator, Operator::Loop { .. });
                    open.push(index);
                }
                Operator::End | Operator::Delegate { .. } => {
                    // The last `end` of the function closes no block.
                    if let Some(block) = open.pop() {
                        all.after_block[block] = Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        all
    }

    /// The places at which the function of a rule for an instruction is called.
    pub(super) fn places(&self, index: usize, mode: Mode) -> impl Iterator<Item = Place> + '_ {
        let mut found = self.indices(index, mode);
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|index| match self.offsets.get(index) {
            Some(offset) => Place::Instruction { offset: *offset },
            None => Place::Exit,
        })
    }

    fn indices(&self, index: usize, mode: Mode) -> Vec<usize> {
        let block = self.after_block[index];
        match mode {
            Mode::Before | Mode::Alt | Mode::BlockAlt => vec![index],
            // After the last `end`, there is no instruction; after an `else`, which ends the first
            // part of an `if`, control never continues with the next one.
            Mode::After => {
                let next = index + 1;
                let is_next = next < self.offsets.len() && self.successors[index].contains(&next);
                is_next.then_some(next).into_iter().collect()
            }
            Mode::Entry => block.map(|_| index + 1).into_iter().collect(),
            Mode::Exit => block.into_iter().collect(),
            Mode::SemanticAfter => match block {
                Some(after) => vec![after],
                None => self.successors[index].clone(),
            },
        }
    }

    /// Whether control may reach these places in another way than the mode means.
    pub(super) fn is_shared(&self, index: usize, mode: Mode) -> bool {
        let of_branch = mode == Mode::SemanticAfter && self.after_block[index].is_none();
        self.indices(index, mode).into_iter().any(|next| {
            let mut origins = self.predecessors[next].iter();
            match of_branch {
                // Calls begin at the first instruction.
                true => next == 0 || self.is_handler[next] || origins.any(|origin| *origin != index),
                // Between two instructions, only the branches of the loop that follows are not
                // meant.
                false => self.is_loop[next] && origins.any(|origin| *origin >= next),
            }
        })
    }
}

/// The number of results of an instruction that can be observed after it.
pub(super) fn results(program: &Module, operator: &Operator<'_>) -> u32 {
    match operator {
        Operator::Call { function_index } => {
            program.function(*function_index).map_or(0, |function| function.ty().results().len() as u32)
        }
        Operator::CallIndirect { type_index, .. } | Operator::CallRef { type_index } => {
            results_of_type(program, *type_index)
        }
        Operator::Select | Operator::TypedSelect { .. } => 1,
        _ => pushed(operator).unwrap_or(0),
    }
}

fn results_of_type(program: &Module, wanted: u32) -> u32 {
    for payload in Parser::new(0).parse_all(program.bytes()) {
        let Ok(Payload::TypeSection(section)) = payload else { continue };
        let types = section.into_iter().flatten().flat_map(|group| group.into_types());
        let found = types.into_iter().nth(wanted as usize);
        return found.map_or(0, |ty| match ty.composite_type.inner {
            CompositeInnerType::Func(ty) => ty.results().len() as u32,
            _ => 0,
        });
    }
    0
}
