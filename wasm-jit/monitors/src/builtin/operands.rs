//! The operands of instructions, with their types.

use std::fmt;

use wasm_jit::probes::{Bound, Lane};
use wasm_jit::wasmparser::{
    BinaryReader, FuncToValidate, FuncValidator, FunctionBody, Operator, Parser, Payload, ValType, Validator,
    ValidatorResources, WasmFeatures, WasmModuleResources,
};
use wasm_jit::{FunctionInfo, Module};

/// Determines the types of operands.
pub(super) struct OperandTypes {
    /// The declarations of the module; `None` if no function has a body.
    declarations: Option<ValidatorResources>,
}

impl OperandTypes {
    pub(super) fn of(module: &Module) -> Self {
        let mut validator = Validator::new_with_features(WasmFeatures::all());
        // The module was validated, so there are no errors.
        for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
            let Payload::CodeSectionEntry(body) = &payload else {
                let _ = validator.payload(&payload);
                continue;
            };
            let first = validator.code_section_entry(body);
            return Self { declarations: first.ok().map(|first| first.resources) };
        }
        Self { declarations: None }
    }

    /// Visits the instructions of a function in order, with their offsets from the start of the
    /// function's body, the types of the operands that they take (the last one is on top of the
    /// stack), and, for calls, the types of the results.
    pub(super) fn visit(
        &self,
        function: &FunctionInfo<'_>,
        mut visit: impl FnMut(u32, &Operator<'_>, Vec<Option<ValType>>, Vec<Option<ValType>>),
    ) {
        let (Some(declarations), Some(body)) = (&self.declarations, function.body()) else { return };
        let Some(ty) = declarations.type_index_of_function(function.index()) else { return };
        let (resources, features) = (declarations.clone(), WasmFeatures::all());
        let to_validate = FuncToValidate { resources, index: function.index(), ty, features };
        let mut validator = to_validate.into_validator(Default::default());
        let start = body.range().start;
        let locals = FunctionBody::new(BinaryReader::new(body.bytes(), start as u64));
        if validator.read_locals(&mut locals.get_binary_reader()).is_err() {
            return;
        }
        for instruction in body.instructions() {
            let (operator, offset) = (instruction.operator(), instruction.offset());
            let (taken, left) = operator.operator_arity(&validator).unwrap_or_default();
            let types = |validator: &FuncValidator<ValidatorResources>, count: u32| {
                let types =
                    (0..count).rev().map(|depth| validator.get_operand_type(depth as usize).flatten());
                types.collect::<Vec<_>>()
            };
            let operands = types(&validator, taken);
            if validator.op(offset as u64, operator).is_err() {
                break;
            }
            let is_call = matches!(
                operator,
                Operator::Call { .. } | Operator::CallIndirect { .. } | Operator::CallRef { .. }
            );
            let results = if is_call { types(&validator, left) } else { Vec::new() };
            visit((offset - start) as u32, operator, operands, results);
        }
    }
}

/// The words that probes pass for operands of these types, in this order: both lanes of a vector.
/// `above` more operands are on top of the last one.
pub(super) fn bounds(types: &[Option<ValType>], above: u32) -> impl Iterator<Item = Bound> {
    let depths = (0..types.len() as u32).rev().map(move |depth| depth + above);
    types.iter().zip(depths).flat_map(|(ty, depth)| match ty {
        Some(ValType::V128) => {
            vec![Bound::OperandLane(depth, Lane::Low), Bound::OperandLane(depth, Lane::High)]
        }
        _ => vec![Bound::Operand(depth)],
    })
}

/// The operands of these types, from the words that probes have passed. There may be more words, of
/// unknown types.
pub(super) fn operands<'a>(
    types: &'a [Option<ValType>],
    mut words: &'a [u64],
) -> impl Iterator<Item = Operand<'a>> {
    let mut types = types.iter().copied();
    std::iter::from_fn(move || {
        let ty = types.next().flatten();
        let length = if ty == Some(ValType::V128) { 2 } else { 1 };
        let (words_of, rest) = words.split_at_checked(length)?;
        words = rest;
        Some(Operand { words: words_of, ty })
    })
}

/// The same as text, separated by commas.
pub(super) fn listed(types: &[Option<ValType>], words: &[u64]) -> String {
    operands(types, words).map(|operand| operand.to_string()).collect::<Vec<_>>().join(", ")
}

/// A value as probes pass it: vectors have two words, the low lane first.
pub(super) struct Operand<'a> {
    words: &'a [u64],
    ty: Option<ValType>,
}

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.words[0];
        match self.ty {
            Some(ValType::I32) => write!(f, "{}", word as i32),
            Some(ValType::I64) => write!(f, "{}", word as i64),
            Some(ValType::F32) => write!(f, "{:?}", f32::from_bits(word as u32)),
            Some(ValType::F64) => write!(f, "{:?}", f64::from_bits(word)),
            Some(ValType::Ref(_)) if word == 0 => f.write_str("null"),
            Some(ValType::Ref(_)) => f.write_str("ref"),
            Some(ValType::V128) => write!(f, "{:#018x}{word:016x}", self.words[1]),
            None => write!(f, "{word:#x}"),
        }
    }
}
