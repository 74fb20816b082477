//! The types of the operands and locals at a place of a program, as the validator finds them.
//!
//! They determine whether a rule matches before any function of the monitor is called for the
//! place.

use wasm_jit::{Module, ValType};
use wasmparser::{
    BlockType, CompositeInnerType, FuncToValidate, FuncValidator, FuncValidatorAllocations, FunctionBody,
    Operator, Parser, ValidPayload, Validator, ValidatorResources, WasmFeatures, WasmModuleResources,
};

use super::names::{Parameter, Replaced, Rule};

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

/// The values on the stack before each instruction of a function, up to the depth that rules ask
/// for, the numbers of those that the instructions take, and the function's locals.
pub(super) struct Operands {
    /// The operands at each depth, for each instruction and after the last one.
    all: Vec<Known>,
    depth: usize,
    /// The number of operands that each instruction takes.
    taken: Vec<u32>,
    /// The results of each instruction, or of the block that it begins, if a rule replaces them;
    /// `None` if control never reaches it.
    replaced: Vec<Option<Vec<wasmparser::ValType>>>,
    locals: Vec<Known>,
}

impl Operands {
    fn at(&self, instruction: usize, depth: u32) -> Known {
        let depth = Some(depth as usize).filter(|depth| *depth < self.depth);
        let at = depth.and_then(|depth| instruction.checked_mul(self.depth)?.checked_add(depth));
        at.and_then(|at| self.all.get(at)).copied().unwrap_or(Known::Unknown)
    }

    /// An operand that the instruction takes. Deeper values on the stack are not its own.
    fn argument(&self, instruction: usize, depth: u32) -> Known {
        match self.taken.get(instruction) {
            Some(taken) if depth >= *taken => Known::Absent,
            _ => self.at(instruction, depth),
        }
    }

    /// Whether the instruction has the results that a rule computes in its place.
    fn has_results(&self, instruction: usize, wanted: &[Replaced]) -> bool {
        let Some(Some(results)) = self.replaced.get(instruction) else { return true };
        let is_such = |(wanted, ty): (&Replaced, &wasmparser::ValType)| match wanted {
            Replaced::Number(wanted) => Known::of(*ty) == Known::Number(*wanted),
            Replaced::Reference => matches!(ty, wasmparser::ValType::Ref(ty) if ty.is_nullable()),
        };
        wanted.len() == results.len() && wanted.iter().zip(results.iter().rev()).all(is_such)
    }

    /// Whether the place has the values of a rule in these types, which are those of its function's
    /// parameters. Without an instruction, there are no operands.
    pub(super) fn fit(&self, rule: &Rule, types: &[ValType], instruction: Option<usize>) -> bool {
        let argument =
            |depth| instruction.map_or(Known::Unknown, |instruction| self.argument(instruction, depth));
        let result =
            |depth| instruction.map_or(Known::Unknown, |instruction| self.at(instruction + 1, depth));
        rule.parameters.iter().zip(types).all(|(value, ty)| match value {
            Parameter::Argument(depth) => argument(*depth).is(*ty),
            Parameter::Reference(depth) => argument(*depth).is_reference(),
            Parameter::Result(depth) => result(*depth).is(*ty),
            Parameter::Local(index) => self.locals.get(*index as usize).is_some_and(|known| known.is(*ty)),
            Parameter::Replaced(Some(wanted)) => {
                instruction.is_none_or(|instruction| self.has_results(instruction, wanted))
            }
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
    /// Whether a rule computes results in place of an instruction.
    replaces: bool,
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
            Parameter::Local(_) | Parameter::Replaced(Some(_)) => Some(0),
            _ => None,
        };
        let mut replaces = false;
        let parameters = rules.flat_map(|rule| &rule.parameters);
        let parameters =
            parameters.inspect(|value| replaces |= matches!(value, Parameter::Replaced(Some(_))));
        let depth = parameters.filter_map(asked).max()? as usize;
        let mut validator = Validator::new_with_features(WasmFeatures::all());
        let mut all = Vec::new();
        for payload in Parser::new(0).parse_all(program.bytes()) {
            // The module was validated: there are no errors.
            if let ValidPayload::Func(function, body) = validator.payload(&payload.ok()?).ok()? {
                all.push(Some((function, body)));
            }
        }
        let imported = program.functions().count().checked_sub(all.len())?;
        Some(Self { all, imported, allocations: FuncValidatorAllocations::default(), depth, replaces })
    }

    /// The operands in a function; each function may be requested once.
    pub(super) fn operands(&mut self, function: u32) -> Option<Operands> {
        let own = (function as usize).checked_sub(self.imported)?;
        let (function, body) = self.all.get_mut(own)?.take()?;
        let mut validator = function.into_validator(std::mem::take(&mut self.allocations));
        let operands = operands(&mut validator, &body, self.depth, self.replaces);
        self.allocations = validator.into_allocations();
        operands
    }
}

fn operands(
    validator: &mut FuncValidator<ValidatorResources>,
    body: &FunctionBody<'_>,
    depth: usize,
    replaces: bool,
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
    let (mut all, mut taken, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
    let mut reader = body.get_operators_reader().ok()?;
    loop {
        let is_reachable = validator.get_control_frame(0).is_some_and(|frame| !frame.unreachable);
        all.extend((0..depth).map(|depth| match validator.get_operand_type(depth) {
            _ if !is_reachable => Known::Unknown,
            Some(ty) => ty.map_or(Known::Unknown, Known::of),
            None => Known::Absent,
        }));
        if reader.eof() {
            return Some(Operands { all, depth, taken, replaced, locals });
        }
        let at = reader.original_position();
        let operator = reader.read().ok()?;
        let count = operator.operator_arity(&*validator).map_or(0, |(taken, _)| taken);
        taken.push(count);
        validator.op(at, &operator).ok()?;
        if replaces {
            replaced.push(is_reachable.then(|| results(validator, &operator)));
        }
    }
}

/// The types of the results of an instruction that has been validated, or of the block that it has
/// begun.
pub(crate) fn results(
    validator: &FuncValidator<ValidatorResources>,
    operator: &Operator<'_>,
) -> Vec<wasmparser::ValType> {
    let block = match operator {
        Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => *blockty,
        // After the last `end` there is no block.
        _ if validator.get_control_frame(0).is_none() => return Vec::new(),
        _ => {
            let count = operator.operator_arity(validator).map_or(0, |(_, results)| results);
            let ty = |depth| validator.get_operand_type(depth).flatten();
            return (0..count as usize).rev().filter_map(ty).collect();
        }
    };
    match block {
        BlockType::Empty => Vec::new(),
        BlockType::Type(ty) => vec![ty],
        BlockType::FuncType(ty) => {
            match validator.resources().sub_type_at(ty).map(|ty| &ty.composite_type.inner) {
                Some(CompositeInnerType::Func(ty)) => ty.results().to_vec(),
                _ => Vec::new(),
            }
        }
    }
}
