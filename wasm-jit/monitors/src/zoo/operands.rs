//! The operands of instructions, with their types.

use std::fmt;

use wasm_jit::Module;
use wasm_jit::wasmparser::{
    BinaryReaderError, FuncValidator, FunctionBody, Operator, Parser, Payload, ValType, Validator,
    ValidatorResources, WasmFeatures,
};

/// Visits the instructions of all functions in order, with their offsets from the starts of the
/// functions' bodies, the types of the operands that they take (the last one is on top of the
/// stack), and how many they leave.
pub(super) fn each_instruction(
    module: &Module,
    mut visit: impl FnMut(u32, u32, &Operator<'_>, Vec<Option<ValType>>, u32),
) {
    let imported = module.functions().filter(|function| function.body().is_none()).count() as u32;
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut function = imported;
    let mut allocations = Default::default();
    // The module was validated, so there are no errors.
    for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
        let Payload::CodeSectionEntry(body) = &payload else {
            let _ = validator.payload(&payload);
            continue;
        };
        let Ok(to_validate) = validator.code_section_entry(body) else { return };
        let mut of_body = to_validate.into_validator(allocations);
        let start = body.range().start;
        if let (Ok(()), Ok(operators)) = (read_locals(&mut of_body, body), body.get_operators_reader()) {
            for (operator, offset) in operators.into_iter_with_offsets().flatten() {
                let (taken, left) = operator.operator_arity(&of_body).unwrap_or_default();
                let operands = (0..taken)
                    .rev()
                    .map(|depth| of_body.get_operand_type(depth as usize).flatten())
                    .collect();
                visit(function, (offset - start) as u32, &operator, operands, left);
                if of_body.op(offset, &operator).is_err() {
                    break;
                }
            }
        }
        allocations = of_body.into_allocations();
        function += 1;
    }
}

fn read_locals(
    validator: &mut FuncValidator<ValidatorResources>,
    body: &FunctionBody<'_>,
) -> Result<(), BinaryReaderError> {
    let mut reader = body.get_binary_reader();
    validator.read_locals(&mut reader)
}

/// A value, as probes pass it.
pub(super) struct Operand(pub(super) u64, pub(super) Option<ValType>);

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(ValType::I32) => write!(f, "{}", self.0 as i32),
            Some(ValType::I64) => write!(f, "{}", self.0 as i64),
            Some(ValType::F32) => write!(f, "{:?}", f32::from_bits(self.0 as u32)),
            Some(ValType::F64) => write!(f, "{:?}", f64::from_bits(self.0)),
            Some(ValType::Ref(_)) if self.0 == 0 => f.write_str("null"),
            Some(ValType::Ref(_)) => f.write_str("ref"),
            Some(ValType::V128) => f.write_str("v128"),
            None => write!(f, "{:#x}", self.0),
        }
    }
}
