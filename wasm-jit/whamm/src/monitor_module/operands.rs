//! The types of the operands and locals at a place of a program, as the validator finds them.
//!
//! They determine whether a rule matches before any function of the monitor is called for the
//! place.

use wasm_jit::{Module, ValType};
use wasmparser::{
    FuncToValidate, FuncValidator, FuncValidatorAllocations, FunctionBody, Parser, ValidPayload, Validator,
    ValidatorResources, WasmFeatures,
};

use super::names::{Parameter, Rule};

/// What is known about a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The value does not exist.
    Absent,
    /// A reference.
    Reference,
    /// A number of this type.
    Number(ValType),
    /// A vector.
    Vector,
    /// The type is unknown, because control never reaches the place.
    Unknown,
}

impl Known {
    fn of(ty: wasmparser::ValType) -> Self {
        match ty {
            wasmparser::ValType::I32 => Self::Number(ValType::I32),
            wasmparser::ValType::I64 => Self::Number(ValType::I64),
            wasmparser::ValType::F32 => Self::Number(ValType::F32),
            wasmparser::ValType::F64 => Self::Number(ValType::F64),
            wasmparser::ValType::V128 => Self::Vector,
            wasmparser::ValType::Ref(_) => Self::Reference,
        }
    }

    /// Whether the value can be passed to a parameter of this type.
    fn is(self, ty: ValType) -> bool {
        self == Self::Unknown || self == Self::Number(ty)
    }

    fn is_reference(self) -> bool {
        matches!(self, Self::Unknown | Self::Reference)
    }
}

/// The operands before each instruction of a function, up to the depth that rules ask for, and its
/// locals.
pub(super) struct Operands {
    /// The operands at each depth, for each instruction and after the last one.
    all: Vec<Known>,
    depth: usize,
    locals: Vec<Known>,
}

impl Operands {
    fn at(&self, instruction: usize, depth: u32) -> Known {
        let depth = Some(depth as usize).filter(|depth| *depth < self.depth);
        let at = depth.and_then(|depth| instruction.checked_mul(self.depth)?.checked_add(depth));
        at.and_then(|at| self.all.get(at)).copied().unwrap_or(Known::Unknown)
    }

    /// Whether the place has the values of a rule in these types, which are those of its function's
    /// parameters. Without an instruction, there are no operands.
    pub(super) fn fit(&self, rule: &Rule, types: &[ValType], instruction: Option<usize>) -> bool {
        let operand = |after: usize, depth: u32| {
            instruction.map_or(Known::Unknown, |instruction| self.at(instruction + after, depth))
        };
        rule.parameters.iter().zip(types).all(|(value, ty)| match value {
            Parameter::Argument(depth) => operand(0, *depth).is(*ty),
            Parameter::Reference(depth) => operand(0, *depth).is_reference(),
            Parameter::Result(depth) => operand(1, *depth).is(*ty),
            Parameter::Local(index) => self.locals.get(*index as usize).is_some_and(|known| known.is(*ty)),
            _ => true,
        })
    }
}

/// The functions that a program defines, to be validated once more.
pub(super) struct Functions<'m> {
    /// The functions in order; `None` once validated.
    all: Vec<Option<(FuncToValidate<ValidatorResources>, FunctionBody<'m>)>>,
    imported: usize,
    allocations: FuncValidatorAllocations,
    /// The number of operands for which rules ask.
    depth: usize,
}

/// The maximum depth of operands that rules can ask for: the types of deeper ones are not known.
const MAX_DEPTH: u32 = 64;

impl<'m> Functions<'m> {
    /// The functions of a program, if one of these rules asks for operands or locals.
    pub(super) fn of<'r>(program: &'m Module, rules: impl Iterator<Item = &'r Rule>) -> Option<Self> {
        let asked = |value: &Parameter| match value {
            Parameter::Argument(depth) | Parameter::Reference(depth) | Parameter::Result(depth) => {
                Some(depth.saturating_add(1).min(MAX_DEPTH))
            }
            Parameter::Local(_) => Some(0),
            _ => None,
        };
        let depth = rules.flat_map(|rule| &rule.parameters).filter_map(asked).max()? as usize;
        let mut validator = Validator::new_with_features(WasmFeatures::all());
        let mut all = Vec::new();
        for payload in Parser::new(0).parse_all(program.bytes()) {
            // The module was validated: there are no errors.
            if let ValidPayload::Func(function, body) = validator.payload(&payload.ok()?).ok()? {
                all.push(Some((function, body)));
            }
        }
        let imported = program.functions().count().checked_sub(all.len())?;
        Some(Self { all, imported, allocations: FuncValidatorAllocations::default(), depth })
    }

    /// The operands in a function; each function may be requested once.
    pub(super) fn operands(&mut self, function: u32) -> Option<Operands> {
        let own = (function as usize).checked_sub(self.imported)?;
        let (function, body) = self.all.get_mut(own)?.take()?;
        let mut validator = function.into_validator(std::mem::take(&mut self.allocations));
        let operands = operands(&mut validator, &body, self.depth);
        self.allocations = validator.into_allocations();
        operands
    }
}

fn operands(
    validator: &mut FuncValidator<ValidatorResources>,
    body: &FunctionBody<'_>,
    depth: usize,
) -> Option<Operands> {
    let mut reader = body.get_locals_reader().ok()?;
    for _ in 0..reader.get_count() {
        let at = reader.original_position();
        let (count, ty) = reader.read().ok()?;
        validator.define_locals(at, count, ty).ok()?;
    }
    let locals = 0..validator.len_locals();
    let locals = locals.map(|index| validator.get_local_type(index).map_or(Known::Absent, Known::of));
    let locals = locals.collect();
    let mut all = Vec::new();
    let mut reader = body.get_operators_reader().ok()?;
    loop {
        let is_reachable = validator.get_control_frame(0).is_some_and(|frame| !frame.unreachable);
        all.extend((0..depth).map(|depth| match validator.get_operand_type(depth) {
            _ if !is_reachable => Known::Unknown,
            Some(ty) => ty.map_or(Known::Unknown, Known::of),
            None => Known::Absent,
        }));
        if reader.eof() {
            return Some(Operands { all, depth, locals });
        }
        let at = reader.original_position();
        validator.op(at, &reader.read().ok()?).ok()?;
    }
}
