//! The types of references on operand stacks.
//!
//! Compiled code does not distinguish them. They are found by validating the function again, once
//! for all of its instructions, when the first of them is asked for.

use std::collections::HashMap;

use wasmparser::types::CoreTypeId;
use wasmparser::{self as wp, FuncValidator, Operator, Parser, ValidPayload, Validator, ValidatorResources};

use crate::code::{CodeImage, FEATURES};
use crate::types::RefType;

/// The references on the operand stack before each instruction of a function.
#[derive(Debug, Default)]
pub(super) struct StackTypes {
    /// Each reference that an instruction leaves on the stack.
    references: Vec<Reference>,
    /// The topmost reference, by its number, before an instruction and those that follow, up to the
    /// next entry; in ascending order of positions.
    tops: Vec<(u32, Option<u32>)>,
}

/// A reference on the operand stack.
#[derive(Clone, Copy, Debug)]
struct Reference {
    /// The number of operands below it.
    height: u32,
    /// The next reference below it.
    below: Option<u32>,
    ty: RefType,
}

impl StackTypes {
    /// The type of the operand with this number of operands below it, if it is a reference.
    pub(super) fn get(&self, position: u32, height: usize) -> Option<RefType> {
        let after = self.tops.partition_point(|(from, _)| *from <= position);
        let (_, top) = self.tops[after.checked_sub(1)?];
        let reference = |number: u32| &self.references[number as usize];
        let downwards = std::iter::successors(top.map(reference), |above| above.below.map(reference));
        let mut downwards = downwards.skip_while(|reference| reference.height as usize > height);
        downwards.next().filter(|reference| reference.height as usize == height).map(|found| found.ty)
    }

    fn add_top(&mut self, position: u32, top: Option<u32>) {
        if self.tops.last().is_none_or(|(_, last)| *last != top) {
            self.tops.push((position, top));
        }
    }
}

impl CodeImage {
    /// The types of references on the operand stack of a function.
    pub(super) fn stack_types(&self, function: u32) -> StackTypes {
        let mut found = StackTypes::default();
        let mut validator = Validator::new_with_features(FEATURES);
        for payload in Parser::new(0).parse_all(&self.bytes) {
            let Ok(payload) = payload else { break };
            let Ok(ValidPayload::Func(of, body)) = validator.payload(&payload) else { continue };
            if of.index != function {
                continue;
            }
            let indices = self.type_indices(&validator);
            let mut operators = of.into_validator(Default::default());
            for (count, ty) in body.get_locals_reader().into_iter().flatten().flatten() {
                let _ = operators.define_locals(body.range().start, count, ty);
            }
            // By height: the number of the topmost reference there or below.
            let mut stack: Vec<Option<u32>> = Vec::new();
            let reader = body.get_operators_reader().into_iter();
            for (operator, at) in reader.flat_map(|reader| reader.into_iter_with_offsets()).flatten() {
                found.add_top(at as u32, stack.last().copied().flatten());
                let kept = kept_operands(&operators, &operator);
                if operators.op(at, &operator).is_err() {
                    break;
                }
                let height = operators.operand_stack_height() as usize;
                stack.truncate(kept.min(height));
                for at in stack.len()..height {
                    let below = stack.last().copied().flatten();
                    let ty = operators.get_operand_type(height - 1 - at).flatten();
                    stack.push(match ty.and_then(|ty| self.reference_type(&indices, ty)) {
                        None => below,
                        Some(ty) => {
                            found.references.push(Reference { height: at as u32, below, ty });
                            Some(found.references.len() as u32 - 1)
                        }
                    });
                }
            }
            break;
        }
        found
    }

    /// The indices of the module's types, by the numbers that a validator, which has read the
    /// declarations, has for them; of equal types, the first.
    fn type_indices(&self, validator: &Validator) -> HashMap<CoreTypeId, u32> {
        let mut indices = HashMap::new();
        if let Some(types) = validator.types(0) {
            for index in 0..self.module.type_ids.len() as u32 {
                indices.entry(types.core_type_at_in_module(index)).or_insert(index);
            }
        }
        indices
    }

    /// The type, if it is a reference type.
    fn reference_type(&self, indices: &HashMap<CoreTypeId, u32>, ty: wp::ValType) -> Option<RefType> {
        let wp::ValType::Ref(ty) = ty else { return None };
        match ty.heap_type() {
            wp::HeapType::Concrete(wp::UnpackedIndex::Id(id)) => {
                let index = wp::UnpackedIndex::Module(*indices.get(&id)?);
                let ty = wp::RefType::new(ty.is_nullable(), wp::HeapType::Concrete(index))?;
                RefType::from_wasm(ty, &self.module)
            }
            _ => RefType::from_wasm(ty, &self.module),
        }
    }
}

/// How many operands an instruction leaves as they are, from the bottom of the stack; in
/// unreachable code, perhaps more than there are.
fn kept_operands(operators: &FuncValidator<ValidatorResources>, operator: &Operator<'_>) -> usize {
    use Operator::{Catch, CatchAll, Delegate, Else, End};
    // The end of a block, or of a part of it, takes all operands of the block.
    if matches!(operator, Catch { .. } | CatchAll | Delegate { .. } | Else | End) {
        return operators.get_control_frame(0).map_or(0, |frame| frame.height);
    }
    let height = operators.operand_stack_height() as usize;
    operator.operator_arity(operators).map_or(0, |(taken, _)| height.saturating_sub(taken as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Module};

    /// The types at a position as validation up to there gives them.
    fn validated(image: &CodeImage, function: u32, position: u32) -> Vec<Option<RefType>> {
        let mut validator = Validator::new_with_features(FEATURES);
        for payload in Parser::new(0).parse_all(&image.bytes) {
            let Ok(ValidPayload::Func(of, body)) = validator.payload(&payload.unwrap()) else { continue };
            if of.index != function {
                continue;
            }
            let indices = image.type_indices(&validator);
            let mut operators = of.into_validator(Default::default());
            for local in body.get_locals_reader().unwrap() {
                let (count, ty) = local.unwrap();
                operators.define_locals(0, count, ty).unwrap();
            }
            for item in body.get_operators_reader().unwrap().into_iter_with_offsets() {
                let (operator, at) = item.unwrap();
                if at >= u64::from(position) {
                    break;
                }
                operators.op(at, &operator).unwrap();
            }
            let height = operators.operand_stack_height() as usize;
            let types = (0..height).rev().map(|depth| operators.get_operand_type(depth).unwrap());
            return types.map(|ty| ty.and_then(|ty| image.reference_type(&indices, ty))).collect();
        }
        panic!("no function {function}")
    }

    #[test]
    fn one_pass_finds_the_types_before_each_instruction() {
        let text = "(module
            (type $s (struct (field (mut i32))))
            (type $same (struct (field (mut i32))))
            (type $a (array (mut (ref null $s))))
            (type $f (func (param i32 (ref null $s) externref) (result externref i32 (ref null $s))))
            (table 2 funcref)
            (tag $t (param externref (ref null $s)))
            (global $g (mut (ref null $same)) (ref.null $s))
            (func $rotate (type $f) (local.get 2) (local.get 0) (local.get 1))
            (func (export \"run\") (param $x i32) (param $e externref) (result i32)
                (local $r (ref null $s)) (local $l i64)
                (i64.const 1) (local.get $e) (ref.null $a)
                (struct.new $s (local.get $x)) (local.tee $r)
                (call $rotate (local.get $x) (global.get $g) (local.get $e))
                (local.set $r) (local.set $x) (drop)
                (block (param (ref null $s)) (result anyref) (br_if 0 (i32.const 1)) (br 0))
                (loop (param anyref) (result anyref)
                    (if (param anyref) (result anyref) (local.get $x)
                        (then (drop) (ref.null none) (br_if 1 (i32.const 0)))
                        (else (drop) (ref.null i31) (drop) (ref.func $rotate) (drop)
                            (array.new_fixed $a 2 (local.get $r) (local.get $r)))))
                (select (result eqref) (ref.null eq) (ref.i31 (local.get $x)) (local.get $x))
                (block $null
                    (drop (br_on_null $null (local.get $r)))
                    (drop (call_ref $f (local.get $x) (local.get $r) (local.get $e) (ref.func $rotate)))
                    (drop) (drop))
                (block $caught (result externref (ref null $s))
                    (try_table (catch $t $caught) (throw $t (local.get $e) (local.get $r)))
                    (unreachable) (ref.null $s) (br 0))
                (drop) (drop) (drop) (drop) (drop) (drop) (drop)
                (call_indirect (type $f) (local.get $x) (local.get $r) (local.get $e) (i32.const 0))
                (return_call 2 (ref.null $same))
                (drop) (drop) (drop))
            (func (param (ref null $s)) (result i32) (i32.const 1))
            (elem declare func $rotate))";
        let module = Module::new(&Engine::default(), text).unwrap();
        let legacy = "(module (tag $t (param externref)) (func (param externref)
            local.get 0
            ref.null func
            try (param funcref) (result externref)
                drop
                local.get 0
                try
                    local.get 0
                    throw $t
                delegate 0
            catch $t
                ref.null func
                drop
            catch_all
                ref.null extern
            end
            drop
            drop))";
        let legacy = Module::new(&Engine::default(), legacy).unwrap();
        let mut references = 0;
        for module in [&module, &legacy] {
            let image = module.code();
            for function in image.indices() {
                let types = image.stack_types(function);
                for item in image.body(function).get_operators_reader().unwrap().into_iter_with_offsets() {
                    let (operator, at) = item.unwrap();
                    let expected = validated(image, function, at as u32);
                    let found: Vec<_> =
                        (0..expected.len()).map(|height| types.get(at as u32, height)).collect();
                    assert_eq!(found, expected, "before {operator:?} at {at:#x} of function {function}");
                    assert_eq!(types.get(at as u32, expected.len()), None, "above the stack");
                    references += expected.iter().flatten().count();
                }
            }
        }
        assert!(references > 100, "{references}");
    }

    /// Instructions share what they leave on the stack: memory and time are proportional to the
    /// length of the function, not to that of all stacks.
    #[test]
    fn deep_stacks_are_shared() {
        const DEPTH: usize = 10_000;
        let (push, pop) = ("(ref.null func)".repeat(DEPTH), "(drop)".repeat(DEPTH));
        let module = Module::new(&Engine::default(), format!("(module (func {push} {pop}))")).unwrap();
        let image = module.code();
        let types = image.stack_types(0);
        assert_eq!(types.references.len(), DEPTH);
        assert_eq!(types.tops.len(), 2 * DEPTH + 1);
        let end = image.body_range(0).end - 1;
        assert_eq!(types.get(end, 0), None);
        assert_eq!(types.get(end - 1, 0), Some(RefType::FUNCREF));
    }
}
