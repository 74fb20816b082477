//! Rules that act in place of an instruction or a block.
//!
//! ```text
//! i32.const 0  i32.const 0  i32.store REPLACEMENT
//! local.set $b  local.set $a                       operands
//! local.get $b  call $rule                         for each rule
//! i32.const 0  i32.load REPLACEMENT
//! if RESULTS
//!     i32.const 0  i32.load REPLACEMENT  i32.const 2  i32.eq     for each alternative
//!     if RESULTS
//!         local.get $a  local.get $b  call $alternative
//!     else
//!         i32.const 0  i32.load REPLACEMENT + 8    for each result
//!     end
//! else
//!     local.get $a  local.get $b
//!     INSTRUCTION, or the block with all that is in it
//! end
//! ```
//!
//! Within the original block, labels outside it are one block further out. The rules for
//! instructions inside the block are called there, and therefore not if the block is replaced.

use wasm_encoder::reencode::Reencode;
use wasm_encoder::{Catch, Instruction as I, MemArg, MemArgTarget, ValType};
use wasm_jit::probes::Place;
use wasm_jit::wasmparser::Operator;
use wasmparser::{CompositeInnerType, FuncType, FuncValidator, ValidatorResources, WasmModuleResources};

use super::RewriteError;
use super::added;
use super::body::{Body, number};
use crate::lang::{FIRST_ALTERNATIVE, REPLACEMENT, REPLACEMENT_RESULT};
use crate::monitor_module::{Replaced, RuleMatch, results_of};

/// The rules that may replace an instruction, with the operands that they need.
pub(super) struct Replacing<'a> {
    calls: Vec<&'a RuleMatch>,
    place: Place,
    /// The types of the operands that the instruction takes, from the top.
    types: Vec<ValType>,
    /// The same types, as the validator names them.
    taken: Vec<wasmparser::ValType>,
}

impl<'a, R: Reencode<Error = std::convert::Infallible>> Body<'a, '_, R> {
    /// Finds the rules that may replace an instruction, before the instruction is validated.
    pub(super) fn replacement(
        &mut self,
        operator: &Operator<'_>,
        place: Place,
    ) -> Result<Option<Replacing<'a>>, RewriteError> {
        let Some(found) = self.replacing.remove(&place) else { return Ok(None) };
        let Some((count, _)) = operator.operator_arity(&*self.validator) else { return Ok(None) };
        if !self.is_reachable() {
            return Ok(None);
        }
        let mut calls = Vec::new();
        for each in found {
            if self.fits(each)? {
                calls.push(each);
            }
        }
        let (mut types, mut taken) = (Vec::new(), Vec::new());
        for depth in 0..count as usize {
            let Some(ty) = self.validator.get_operand_type(depth).flatten() else { return Ok(None) };
            types.push(self.defined.value_type(ty)?);
            taken.push(ty);
        }
        let sets_local = matches!(operator, Operator::LocalSet { .. } | Operator::LocalTee { .. });
        if sets_local && matches!(types[0], ValType::Ref(_)) {
            // One that cannot be null would have a value in a part of the code only.
            return Ok(None);
        }
        Ok(Some(Replacing { calls, place, types, taken }))
    }

    /// Calls the rules that replace an instruction, which has been validated and has these results.
    /// Begins the original, to be executed otherwise; returns whether there is one.
    pub(super) fn begin_replacement(
        &mut self,
        replacing: Replacing<'_>,
        operator: &Operator<'_>,
    ) -> Result<bool, RewriteError> {
        let Replacing { mut calls, place, types, taken } = replacing;
        let validated = results_of(self.validator, operator);
        let mut results = Vec::new();
        for ty in &validated {
            results.push(self.defined.value_type(*ty)?);
        }
        calls.retain(|each| self.replaces(each, &results));
        if calls.is_empty() {
            return Ok(false);
        }
        let flag = self.word(0);
        let mut locals = Vec::new();
        for (depth, ty) in types.iter().enumerate() {
            locals.push(self.scratch(*ty, depth));
        }
        let zero = I::I32Const(0);
        [&zero, &zero, &I::I32Store(flag)].into_iter().for_each(|code| self.push(code));
        locals.iter().for_each(|local| self.push(&I::LocalSet(*local)));
        self.call(&calls, |depth| locals[depth]);
        let block_type = self.types.of(&results);
        [&zero, &I::I32Load(flag), &I::If(block_type)].into_iter().for_each(|code| self.push(code));
        let rules = self.rules;
        let replacements = || calls.iter().filter_map(|each| rules[each.rule].replacement.as_ref());
        let mut alternatives: Vec<u32> =
            replacements().flat_map(|rule| &rule.alternatives).copied().collect();
        alternatives.sort_unstable();
        alternatives.dedup();
        // The operand that selects the callee is not an argument.
        let callee = match operator {
            Operator::CallIndirect { .. } | Operator::CallRef { .. } => 1,
            _ => 0,
        };
        for number in &alternatives {
            let arguments: Vec<_> = taken[callee..].iter().rev().copied().collect();
            let function = self.alternative(*number, place, &arguments, &validated)?;
            let wanted = I::I32Const((FIRST_ALTERNATIVE + number).cast_signed());
            let code = [&zero, &I::I32Load(flag), &wanted, &I::I32Eq, &I::If(block_type)];
            code.into_iter().for_each(|code| self.push(code));
            locals[callee..].iter().rev().for_each(|local| self.push(&I::LocalGet(*local)));
            if self.proc_exit.contains(&function) {
                self.push(&I::Call(added::report(self.numbers)));
            }
            self.push(&I::Call(self.numbers.of_program(function)));
            self.push(&I::Else);
        }
        if replacements().any(|rule| rule.results.is_some()) {
            // The first one is deepest on the stack.
            for (index, ty) in results.iter().rev().enumerate().rev() {
                self.push_result(*ty, index as u32);
            }
        } else {
            // The rules only call alternatives.
            self.push(&I::Unreachable);
        }
        alternatives.iter().for_each(|_| self.push(&I::End));
        self.push(&I::Else);
        locals.iter().rev().for_each(|local| self.push(&I::LocalGet(*local)));
        Ok(true)
    }

    /// Whether a rule replaces an instruction or block that has these results.
    fn replaces(&self, each: &RuleMatch, results: &[ValType]) -> bool {
        let Some(replacement) = &self.rules[each.rule].replacement else { return false };
        let Some(wanted) = &replacement.results else { return true };
        let is_such = |(wanted, ty): (&Replaced, &ValType)| match (wanted, ty) {
            (Replaced::Number(wanted), ty) => number(wanted) == *ty,
            (Replaced::Reference, ValType::Ref(ty)) => ty.nullable,
            (Replaced::Reference, _) => false,
        };
        wanted.len() == results.len() && wanted.iter().zip(results.iter().rev()).all(is_such)
    }

    /// Pushes a result that rules have computed, by its index from the top of the stack.
    fn push_result(&mut self, ty: ValType, index: u32) {
        let result = self.word(REPLACEMENT_RESULT + 8 * index);
        let load = match ty {
            ValType::Ref(ty) => return self.push(&I::RefNull(ty.heap_type)),
            ValType::I64 => I::I64Load(result),
            ValType::F32 => I::F32Load(result),
            ValType::F64 => I::F64Load(result),
            _ => I::I32Load(result),
        };
        [&I::I32Const(0), &load].into_iter().for_each(|code| self.push(code));
    }

    /// The alternative function for an instruction or block that has these operands and results.
    fn alternative(
        &self,
        number: u32,
        place: Place,
        operands: &[wasmparser::ValType],
        results: &[wasmparser::ValType],
    ) -> Result<u32, RewriteError> {
        let function = self.alternatives.function(number)?;
        let resources = self.validator.resources();
        let fits = |from: &[wasmparser::ValType], to: &[wasmparser::ValType]| {
            from.len() == to.len() && from.iter().zip(to).all(|(from, to)| resources.is_subtype(*from, *to))
        };
        let ty = signature(self.validator, function);
        if ty.is_some_and(|ty| fits(operands, ty.params()) && fits(ty.results(), results)) {
            return Ok(function);
        }
        let of_type = |ty: &FuncType| text(ty.params(), ty.results());
        Err(RewriteError::Type {
            alternative: self.alternatives.text(number),
            ty: ty.map_or_else(String::new, of_type),
            expected: text(operands, results),
            function: self.validator.index(),
            offset: if let Place::Instruction { offset } = place { offset } else { 0 },
        })
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

/// The type of a function.
fn signature(validator: &FuncValidator<ValidatorResources>, function: u32) -> Option<&FuncType> {
    let resources = validator.resources();
    let ty = resources.sub_type_at_id(resources.type_id_of_function(function)?);
    match &ty.composite_type.inner {
        CompositeInnerType::Func(ty) => Some(ty),
        _ => None,
    }
}

/// The text of a type, for messages.
fn text(parameters: &[wasmparser::ValType], results: &[wasmparser::ValType]) -> String {
    let list =
        |types: &[wasmparser::ValType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("({}) -> ({})", list(parameters), list(results))
}
