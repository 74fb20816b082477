//! Rules that act in place of an instruction or a block.
//!
//! ```text
//! i32.const 0  i32.const 0  i32.store REPLACEMENT
//! local.set $b  local.set $a                       operands
//! local.get $b  call $rule                         for each rule
//! i32.const 0  i32.load REPLACEMENT
//! if RESULT
//!     i32.const 0  i32.load REPLACEMENT + 8
//! else
//!     local.get $a  local.get $b
//!     INSTRUCTION, or the block with all that is in it
//! end
//! ```
//!
//! In the original of a block, labels outside of it are one block further away. The rules of what
//! is in the block are called there, and therefore not if it is replaced.

use wasm_encoder::reencode::Reencode;
use wasm_encoder::{BlockType, Catch, Instruction as I, MemArg, MemArgTarget, ValType};
use wasm_jit::probes::Place;
use wasm_jit::wasmparser::Operator;

use super::RewriteError;
use super::body::{Body, function_type, number, operands};
use crate::lang::{REPLACEMENT, REPLACEMENT_RESULT};
use crate::monitor_module::RuleMatch;

/// The rules that may replace an instruction.
pub(super) struct Replacing<'a> {
    calls: Vec<&'a RuleMatch>,
    /// The types of the operands that the instruction takes, or a rule wants, from the top.
    types: Vec<ValType>,
    /// How many of them the instruction takes.
    taken: usize,
}

impl<'a, R: Reencode<Error = std::convert::Infallible>> Body<'a, '_, R> {
    /// The rules that may replace an instruction, before that is validated.
    pub(super) fn replacement(
        &mut self,
        operator: &Operator<'_>,
        place: Place,
    ) -> Result<Option<Replacing<'a>>, RewriteError> {
        let Some(found) = self.replacing.remove(&place) else { return Ok(None) };
        let Some((taken, _)) = operator.operator_arity(&*self.validator) else { return Ok(None) };
        if !self.is_reachable() {
            return Ok(None);
        }
        let mut calls = Vec::new();
        for each in found {
            if self.fits(each)? {
                calls.push(each);
            }
        }
        let taken = taken as usize;
        let mut types = Vec::new();
        for depth in 0..taken.max(operands(&calls)) {
            let Some(ty) = self.operand(depth)? else { return Ok(None) };
            types.push(ty);
        }
        let sets_local = matches!(operator, Operator::LocalSet { .. } | Operator::LocalTee { .. });
        if sets_local && matches!(types[0], ValType::Ref(_)) {
            // One that cannot be null would have a value in a part of the code only.
            return Ok(None);
        }
        Ok(Some(Replacing { calls, types, taken }))
    }

    /// Calls the rules that replace an instruction with such a result, which has been validated.
    /// Begins what is executed otherwise; returns whether there is something else.
    pub(super) fn begin_replacement(
        &mut self,
        replacing: Replacing<'_>,
        operator: &Operator<'_>,
    ) -> Result<bool, RewriteError> {
        let Replacing { mut calls, types, taken } = replacing;
        let results = self.results(operator)?;
        let is_of_result = |each: &&RuleMatch| {
            let replacement = self.rules[each.rule].replacement;
            let wanted = replacement.and_then(|replacement| replacement.result);
            wanted.as_ref().map(number).as_slice() == results
        };
        calls.retain(is_of_result);
        if calls.is_empty() {
            return Ok(false);
        }
        let (flag, result) = (self.word(0), self.word(REPLACEMENT_RESULT));
        let mut locals = Vec::new();
        for (depth, ty) in types.iter().enumerate() {
            locals.push(self.scratch(*ty, depth));
        }
        let zero = I::I32Const(0);
        [&zero, &zero, &I::I32Store(flag)].into_iter().for_each(|code| self.push(code));
        locals.iter().for_each(|local| self.push(&I::LocalSet(*local)));
        // Those that only rules want.
        locals[taken..].iter().rev().for_each(|local| self.push(&I::LocalGet(*local)));
        self.call(&calls, |depth| locals[depth]);
        let block_type = results.first().map_or(BlockType::Empty, |ty| BlockType::Result(*ty));
        [&zero, &I::I32Load(flag), &I::If(block_type)].into_iter().for_each(|code| self.push(code));
        if let Some(ty) = results.first() {
            let load = match ty {
                ValType::I64 => I::I64Load(result),
                ValType::F32 => I::F32Load(result),
                ValType::F64 => I::F64Load(result),
                _ => I::I32Load(result),
            };
            [&zero, &load].into_iter().for_each(|code| self.push(code));
        }
        self.push(&I::Else);
        locals[..taken].iter().rev().for_each(|local| self.push(&I::LocalGet(*local)));
        Ok(true)
    }

    /// The types of the results of an instruction that has been validated, or of the block that it
    /// has begun.
    fn results(&self, operator: &Operator<'_>) -> Result<Vec<ValType>, RewriteError> {
        let block = match operator {
            Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => blockty,
            _ => {
                let count = operator.operator_arity(&*self.validator).map_or(0, |(_, results)| results);
                let types = (0..count as usize).rev().map(|depth| self.operand(depth).transpose());
                return types.flatten().collect();
            }
        };
        match block {
            wasmparser::BlockType::Empty => Ok(Vec::new()),
            wasmparser::BlockType::Type(ty) => Ok(vec![self.defined.value_type(*ty)?]),
            ty @ wasmparser::BlockType::FuncType(_) => {
                let results = function_type(self.validator, *ty).map_or(&[][..], |ty| ty.results());
                results.iter().map(|ty| self.defined.value_type(*ty)).collect()
            }
        }
    }

    fn word(&self, offset: u32) -> MemArg {
        let target = MemArgTarget::Memory(self.numbers.memory);
        MemArg { offset: u64::from(REPLACEMENT + offset), align: 2, target, ordering: None }
    }

    /// After an instruction that may be replaced: ends the original, unless it is a block, which
    /// has begun with this number of blocks around it.
    pub(super) fn begin_original(&mut self, operator: &Operator<'_>, depth: u32) {
        match operator {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                self.replaceable.push(depth);
            }
            _ => self.push(&I::End),
        }
    }

    /// Ends the original of a block if the block has just ended.
    pub(super) fn end_original(&mut self) {
        let depth = self.validator.control_stack_height();
        while self.replaceable.pop_if(|around| *around == depth).is_some() {
            self.push(&I::End);
        }
    }

    /// Adapts the labels of an instruction that has this number of blocks around it to the blocks
    /// that were added for originals.
    pub(super) fn move_labels(&self, instruction: &mut I<'_>, depth: u32) {
        if self.replaceable.is_empty() {
            return;
        }
        let moved = |label: u32| {
            // The number of blocks around the label's.
            let around = depth - 1 - label;
            label + self.replaceable.iter().filter(|added| **added > around).count() as u32
        };
        match instruction {
            I::Br(label)
            | I::BrIf(label)
            | I::BrOnNull(label)
            | I::BrOnNonNull(label)
            | I::Rethrow(label) => {
                *label = moved(*label);
            }
            I::BrOnCast { relative_depth, .. }
            | I::BrOnCastFail { relative_depth, .. }
            | I::BrOnCastDescEq { relative_depth, .. }
            | I::BrOnCastDescEqFail { relative_depth, .. } => *relative_depth = moved(*relative_depth),
            I::BrTable(labels, default) => {
                labels.to_mut().iter_mut().for_each(|label| *label = moved(*label));
                *default = moved(*default);
            }
            I::TryTable(_, catches) => {
                for catch in catches.to_mut() {
                    let (Catch::One { label, .. }
                    | Catch::OneRef { label, .. }
                    | Catch::All { label }
                    | Catch::AllRef { label }) = catch;
                    *label = moved(*label);
                }
            }
            // Its label is one outside of the `try` that it ends.
            I::Delegate(label) => *label = moved(*label + 1) - 1,
            _ => {}
        }
    }
}
