//! Where control goes in a function.
//!
//! A branch to the end of a block, or the false branch of an `if` without `else`, continues after
//! the block's `end`, which it does not execute. An `end`, `else` or `catch` is executed when
//! control reaches it from the preceding instruction.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use wasm_jit::FunctionBody;
use wasm_jit::probes::Place;
use wasm_jit::wasmparser::{Catch, Operator};

/// The instructions of a function, and where control goes from each.
///
/// A branch to the end of a block, or the false branch of an `if` without `else`, continues after
/// the block's `end`, which it does not execute. Exceptions and traps are not in it: handlers of
/// exceptions in the legacy form follow no instruction, and those of `try_table` are ordinary
/// labels.
#[derive(Debug)]
#[non_exhaustive]
pub struct Flow<'m> {
    /// The instructions in order, each with its offset from the start of the body.
    pub instructions: Vec<(u32, Operator<'m>)>,
    /// For each instruction, the indices of the instructions at which control may continue: for an
    /// `if`, the true branch first; for a `br_table`, in the order of its targets, the default one
    /// last. The index of the exit is the number of instructions.
    pub successors: Vec<Vec<usize>>,
    /// The indices of the instructions at which control continues when the function catches an
    /// exception.
    pub handlers: BTreeSet<usize>,
    /// Those at which control arrives from outside, and the blocks whose exceptions are caught
    /// there.
    entered: BTreeMap<usize, Vec<usize>>,
    /// Loops that are repeated by an exception that is caught in them. A loop may be both.
    repeated: BTreeSet<usize>,
}

/// A block that is open.
struct Open {
    start: usize,
    is_loop: bool,
    /// Where control continues after its end, and the instructions that go there.
    after: Vec<(usize, usize)>,
    /// The `try_table` of which a handler continues there.
    catches_after: Vec<usize>,
    /// The number of the successor of an `if` that is its false branch, until there is an `else`.
    false_branch: Option<usize>,
}

impl<'m> Flow<'m> {
    /// Finds the control flow of a function from its body.
    pub fn of(body: FunctionBody<'m>) -> Self {
        let start = body.range().start;
        let instructions: Vec<(u32, Operator<'m>)> = body
            .instructions()
            .map(|instruction| ((instruction.offset() - start) as u32, instruction.operator().clone()))
            .collect();
        let successors = Vec::with_capacity(instructions.len());
        let mut flow = Self {
            successors,
            handlers: BTreeSet::new(),
            entered: BTreeMap::new(),
            repeated: BTreeSet::new(),
            instructions,
        };
        let mut open = vec![Open {
            start: 0,
            is_loop: false,
            after: Vec::new(),
            catches_after: Vec::new(),
            false_branch: None,
        }];
        for index in 0..flow.instructions.len() {
            flow.add(index, &mut open);
        }
        flow.handlers = flow.entered.keys().chain(&flow.repeated).copied().collect();
        flow
    }

    /// Adds the successors of an instruction; those that are not known yet are added at the end of
    /// their block.
    fn add(&mut self, index: usize, open: &mut Vec<Open>) {
        let next = index + 1;
        let depth = |depth: u32, open: &[Open]| open.len() - 1 - depth as usize;
        // The successor with this number is the label.
        let label = |number: usize, block: usize, open: &mut [Open]| {
            let block = &mut open[block];
            if !block.is_loop {
                block.after.push((index, number));
            }
            block.start
        };
        let operator = self.instructions[index].1.clone();
        let successors = match operator {
            Operator::Block { .. } | Operator::TryTable { .. } | Operator::Try { .. } => {
                if let Operator::TryTable { try_table } = &operator {
                    for catch in &try_table.catches {
                        self.add_handler(*catch, index, open);
                    }
                }
                open.push(Open {
                    start: index,
                    is_loop: false,
                    after: Vec::new(),
                    catches_after: Vec::new(),
                    false_branch: None,
                });
                vec![next]
            }
            Operator::Loop { .. } => {
                open.push(Open {
                    start: index,
                    is_loop: true,
                    after: Vec::new(),
                    catches_after: Vec::new(),
                    false_branch: None,
                });
                vec![next]
            }
            Operator::If { .. } => {
                open.push(Open {
                    start: index,
                    is_loop: false,
                    after: Vec::new(),
                    catches_after: Vec::new(),
                    false_branch: Some(index),
                });
                vec![next, next]
            }
            Operator::Else | Operator::Catch { .. } | Operator::CatchAll => {
                let block = open.last_mut().expect("validated");
                if !matches!(operator, Operator::Else) {
                    self.entered.entry(next).or_default().push(block.start);
                }
                if let Some(condition) = block.false_branch.take() {
                    self.successors[condition][1] = next;
                }
                vec![label(0, open.len() - 1, open)]
            }
            Operator::End | Operator::Delegate { .. } => {
                let block = open.pop().expect("validated");
                if let Some(condition) = block.false_branch {
                    self.successors[condition][1] = next;
                }
                if !block.catches_after.is_empty() {
                    self.entered.entry(next).or_default().extend(block.catches_after);
                }
                for (from, number) in block.after {
                    self.successors[from][number] = next;
                }
                vec![next]
            }
            Operator::Br { relative_depth } => vec![label(0, depth(relative_depth, open), open)],
            Operator::BrIf { relative_depth }
            | Operator::BrOnNull { relative_depth }
            | Operator::BrOnNonNull { relative_depth }
            | Operator::BrOnCast { relative_depth, .. }
            | Operator::BrOnCastFail { relative_depth, .. } => {
                vec![label(0, depth(relative_depth, open), open), next]
            }
            Operator::BrTable { targets } => {
                let all =
                    targets.targets().map(|target| target.expect("validated")).chain([targets.default()]);
                let all: Vec<u32> = all.collect();
                let to = |(number, target)| label(number, depth(target, open), open);
                all.into_iter().enumerate().map(to).collect()
            }
            Operator::Return => vec![label(0, 0, open)],
            Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::ReturnCallRef { .. }
            | Operator::Unreachable
            | Operator::Throw { .. }
            | Operator::ThrowRef
            | Operator::Rethrow { .. } => Vec::new(),
            _ => vec![next],
        };
        self.successors.push(successors);
    }

    /// Adds where a handler of the `try_table` at `index` continues, whose block is not open yet.
    fn add_handler(&mut self, catch: Catch, index: usize, open: &mut [Open]) {
        let (Catch::One { label, .. }
        | Catch::OneRef { label, .. }
        | Catch::All { label }
        | Catch::AllRef { label }) = catch;
        let block = open.len() - 1 - label as usize;
        match open[block].is_loop {
            true => _ = self.repeated.insert(open[block].start),
            // Several handlers of one block may continue there.
            false if open[block].catches_after.last() == Some(&index) => {}
            false => open[block].catches_after.push(index),
        }
    }

    /// Whether control arrives at an instruction from a caught exception, except from one that is
    /// caught in the loop that the instruction begins.
    pub fn is_entered_by_handler(&self, index: usize) -> bool {
        self.entered.contains_key(&index)
    }

    /// The blocks, `try_table` or `try`, of which a caught exception arrives at an instruction,
    /// except those in the loop that the instruction begins.
    pub fn catching(&self, index: usize) -> impl Iterator<Item = usize> {
        self.entered.get(&index).into_iter().flatten().copied()
    }

    /// Whether an instruction is a loop that is repeated when an exception is caught in it.
    pub fn is_repeated_by_handler(&self, index: usize) -> bool {
        self.repeated.contains(&index)
    }

    /// For each instruction, whether a basic block begins with it: the first instruction, each
    /// `loop`, the targets of branches and handlers, and each instruction after one that may
    /// continue elsewhere.
    ///
    /// An instruction that may trap or throw does not end a block, since control does not come
    /// back.
    pub fn leaders(&self) -> Vec<bool> {
        // With the exit, where branches continue too.
        let mut leaders = vec![false; self.instructions.len() + 1];
        leaders[0] = true;
        self.handlers.iter().for_each(|handler| leaders[*handler] = true);
        for (index, successors) in self.successors.iter().enumerate() {
            leaders[index] |= matches!(self.instructions[index].1, Operator::Loop { .. });
            if successors[..] != [index + 1] {
                leaders[index + 1] = true;
                successors.iter().for_each(|next| leaders[*next] = true);
            }
        }
        leaders.truncate(self.instructions.len());
        leaders
    }

    /// The basic blocks in order, as ranges of instruction indices.
    pub fn blocks(&self) -> Vec<Range<usize>> {
        let leaders = self.leaders();
        let starts: Vec<usize> = (0..leaders.len()).filter(|index| leaders[*index]).collect();
        let ends = starts.iter().skip(1).copied().chain([leaders.len()]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// The place of an instruction, or of the exit.
    pub fn place(&self, index: usize) -> Place {
        match self.instructions.get(index) {
            Some((offset, _)) => Place::Instruction { offset: *offset },
            None => Place::Exit,
        }
    }

    /// The offset of an instruction from the start of the body; for the exit, the length of the
    /// body.
    pub fn offset(&self, index: usize) -> u32 {
        // The last instruction is an `end`, of one byte.
        let end = || self.instructions.last().map_or(0, |(offset, _)| offset + 1);
        self.instructions.get(index).map_or_else(end, |(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use wasm_jit::{Engine, Module};

    use super::*;

    /// The successors of the instructions of a function, by their indices.
    fn check(body: &str, expected: &[&[usize]]) {
        let module =
            Module::new(&Engine::default(), format!("(module (tag $e) (func (param i32) {body}))")).unwrap();
        let flow = Flow::of(module.function(0).unwrap().body().unwrap());
        assert_eq!(flow.successors, expected, "{:?}", flow.instructions);
        assert_eq!(flow.place(flow.instructions.len()), Place::Exit);
        let body = module.function(0).unwrap().body().unwrap();
        assert_eq!(flow.offset(flow.instructions.len()) as usize, body.range().len());
    }

    #[test]
    fn branches_continue_after_the_end_or_at_the_loop() {
        check("block br 0 end", &[&[1], &[3], &[3], &[4]]);
        check("loop local.get 0 br_if 0 end", &[&[1], &[2], &[0, 3], &[4], &[5]]);
        check(
            "block loop local.get 0 br_table 0 1 2 end end",
            &[&[1], &[2], &[3], &[1, 6, 7], &[5], &[6], &[7]],
        );
        check("return", &[&[2], &[2]]);
        check("unreachable", &[&[], &[2]]);
    }

    #[test]
    fn conditions_continue_in_their_parts() {
        check("local.get 0 if nop else nop nop end", &[&[1], &[2, 4], &[3], &[7], &[5], &[6], &[7], &[8]]);
        check("local.get 0 if nop end nop", &[&[1], &[2, 4], &[3], &[4], &[5], &[6]]);
        check("local.get 0 if br 0 else br 1 end", &[&[1], &[2, 4], &[6], &[6], &[7], &[6], &[7]]);
    }

    #[test]
    fn handlers_continue_in_their_clause_or_at_their_label() {
        #[track_caller]
        fn check(body: &str, expected: &[usize]) {
            let module = format!("(module (tag $e) (func (param i32) {body}))");
            let module = Module::new(&Engine::default(), module).unwrap();
            let flow = Flow::of(module.function(0).unwrap().body().unwrap());
            assert_eq!(Vec::from_iter(flow.handlers), expected, "{:?}", flow.instructions);
        }
        check("try nop catch $e nop catch_all nop end", &[3, 5]);
        check("block try_table (catch $e 0) throw $e end end", &[5]);
        check("loop try_table (catch_all 0) throw $e end end", &[0]);
        check("try_table (catch $e 0) throw $e end", &[4]);
        check("try try nop delegate 0 catch_all nop end", &[5]);
    }

    #[test]
    fn handlers_in_a_loop_repeat_it_and_others_enter_it() {
        #[track_caller]
        fn check(body: &str, expected: (bool, bool)) {
            let module = format!("(module (tag $e) (func (param i32) {body}))");
            let module = Module::new(&Engine::default(), module).unwrap();
            let flow = Flow::of(module.function(0).unwrap().body().unwrap());
            let is_loop = |(_, operator): &(u32, Operator<'_>)| matches!(operator, Operator::Loop { .. });
            let index = flow.instructions.iter().position(is_loop).unwrap();
            assert_eq!(
                (flow.is_entered_by_handler(index), flow.is_repeated_by_handler(index)),
                expected,
                "{body}"
            );
        }
        check("loop try_table (catch_all 0) throw $e end end", (false, true));
        check("block try_table (catch_all 0) throw $e end end loop end", (true, false));
        check("try nop catch $e loop end end", (true, false));
        check(
            "block try_table (catch_all 0) throw $e end end loop try_table (catch $e 0) end end",
            (true, true),
        );
        check("loop block try_table (catch_all 0) throw $e end end end", (false, false));
    }

    #[test]
    fn handlers_are_not_successors_of_bodies() {
        check("try nop catch $e nop catch_all nop end", &[&[1], &[2], &[7], &[4], &[7], &[6], &[7], &[8]]);
        check("block try_table (catch $e 0) throw $e end end", &[&[1], &[2], &[], &[4], &[5], &[6]]);
    }

    #[test]
    fn blocks_end_where_control_divides_or_joins() {
        #[track_caller]
        fn check(body: &str, expected: &[(usize, usize)]) {
            let module = format!("(module (tag $e) (func (param i32) {body}))");
            let module = Module::new(&Engine::default(), module).unwrap();
            let flow = Flow::of(module.function(0).unwrap().body().unwrap());
            let blocks: Vec<_> = flow.blocks().into_iter().map(|block| (block.start, block.end)).collect();
            assert_eq!(blocks, expected, "{:?}", flow.instructions);
        }
        check("nop nop", &[(0, 3)]);
        check("loop local.get 0 br_if 0 end nop", &[(0, 3), (3, 6)]);
        check("nop loop nop end", &[(0, 1), (1, 5)]);
        check("local.get 0 if nop else nop nop end nop", &[(0, 2), (2, 4), (4, 7), (7, 9)]);
        check("block local.get 0 br_if 0 nop end nop", &[(0, 3), (3, 5), (5, 7)]);
        check("nop return nop", &[(0, 2), (2, 4)]);
        // An exception continues at its label, and not after the end of other blocks.
        check("block try_table (catch $e 0) nop end nop end block end nop", &[(0, 6), (6, 10)]);
        check("try nop catch $e nop end nop", &[(0, 3), (3, 5), (5, 7)]);
        check("try try nop delegate 0 catch_all nop end", &[(0, 5), (5, 7), (7, 8)]);
    }
}
