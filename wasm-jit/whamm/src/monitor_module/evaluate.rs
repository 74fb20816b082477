//! Evaluates functions of rules, to find those that only count.
//!
//! The functions of most monitors add a constant to a number whose address is known when the probe
//! is created: `memory[k] += c`, or a global. To find this out, the function is evaluated once for
//! the place: its parameters are the values that the rule binds there, constants where these are
//! known, and numbers that change are symbols. It counts if all control flow and all addresses are
//! known, nothing can trap, and everything that it stores is the previous contents plus a constant.
//! It may update several numbers, and call other functions of the monitor.
//!
//! If it depends on the operand that decides how the instruction continues, it is evaluated once
//! for each outcome: for a condition, once with an operand that is not 0, and once with 0 (a null
//! reference counts as 0); for a `br_table`, with each index, and with one that is larger than all.
//!
//! Functions that do anything else are called.

use std::collections::BTreeMap;

use wasm_jit::ValType;
use wasm_jit::probes::Bound;
use wasm_jit::wasmparser::{MemArg, MemArgTarget, Operator};

use super::contents::{Code, Contents, GlobalUse, Width, block_results};
use super::numbers::{binary, unary};

/// Maximum number of instructions that one evaluation executes.
const STEPS: u32 = 500;

/// Maximum depth of calls to the monitor's own functions.
const DEPTH: u32 = 16;

/// Maximum number of ways to continue that are evaluated.
const WAYS: u32 = 64;

/// A number in the monitor that is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cell {
    Memory { memory: u32, address: u64, width: Width },
    Global { index: u32, width: Width },
}

/// The amounts that one call adds, modulo the width of each number.
pub(super) type Adds = Box<[(Cell, u64)]>;

/// The ways in which an instruction continues, depending on its first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// The operand is not 0, or it is.
    Condition,
    /// The operand is a reference that is null, or it is not.
    Null,
    /// The operand is a reference that is not null, or it is.
    NotNull,
    /// The operand is less than the number of targets, or not.
    Table(u32),
}

impl Ways {
    /// The outcomes of an instruction; `None` if it makes no choice, or has more than [`WAYS`].
    pub(super) fn of(operator: &Operator<'_>) -> Option<Self> {
        match operator {
            Operator::BrIf { .. } | Operator::If { .. } | Operator::Select | Operator::TypedSelect { .. } => {
                Some(Self::Condition)
            }
            Operator::BrOnNull { .. } => Some(Self::Null),
            Operator::BrOnNonNull { .. } => Some(Self::NotNull),
            Operator::BrTable { targets } if targets.len() < WAYS => Some(Self::Table(targets.len())),
            _ => None,
        }
    }

    /// The operand for each outcome, in the order of [`Branches`](wasm_jit::probes::Branches).
    fn operands(self) -> impl Iterator<Item = Value> {
        // For an operand that is not 0, only the lower bound is known.
        let (first, known, last) = match self {
            Self::Condition | Self::NotNull => (Some(Value::AtLeast(1)), 0..0, Value::Known(0)),
            Self::Null => (Some(Value::Known(0)), 0..0, Value::AtLeast(1)),
            Self::Table(targets) => (None, 0..targets, Value::AtLeast(targets.into())),
        };
        first.into_iter().chain(known.map(|index| Value::Known(index.into()))).chain([last])
    }

    /// Whether a bound value is this operand when it is passed to a parameter of this type.
    pub(super) fn is_passed_as(self, value: Bound, parameter: ValType) -> bool {
        match self {
            Self::Condition | Self::Table(_) => value == Bound::Operand(0) && parameter == ValType::I32,
            Self::Null | Self::NotNull => value == Bound::Reference(0),
        }
    }
}

/// The known part of a value; the upper half of a 32-bit integer is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Known(u64),
    /// An unsigned lower bound.
    AtLeast(u64),
    /// The previous contents of a cell, plus a number.
    Now(Cell, u64),
    Unknown,
}

impl Value {
    fn known(self) -> Option<u64> {
        if let Self::Known(value) = self { Some(value) } else { None }
    }

    fn is_true(self) -> Option<bool> {
        match self {
            Self::Known(value) => Some(value != 0),
            Self::AtLeast(least) if least > 0 => Some(true),
            _ => None,
        }
    }
}

/// An argument of the function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Constant(u64),
    /// The operand that decides how the instruction continues.
    Choosing,
    Unknown,
}

/// The amounts that a rule's function adds with these arguments: always, or for each of the
/// outcomes; `None` if it has any other effect.
///
/// `steps` is reduced by the number of executed instructions; the evaluation fails when it
/// reaches 0.
pub(super) fn evaluate(
    contents: &mut Contents<'_>,
    function: u32,
    arguments: &[Argument],
    ways: Option<Ways>,
    steps: &mut u32,
) -> Option<Box<[Adds]>> {
    let mut with = |operand: Value| {
        let argument = |argument: &Argument| match argument {
            Argument::Constant(value) => Value::Known(*value),
            Argument::Choosing => operand,
            Argument::Unknown => Value::Unknown,
        };
        let most = STEPS.min(*steps);
        let mut evaluation = Evaluation { contents: &mut *contents, now: BTreeMap::new(), steps: most };
        let done = evaluation.call(function, arguments.iter().map(argument).collect(), DEPTH);
        *steps -= most - evaluation.steps;
        done.and_then(|_| evaluation.adds())
    };
    if let Some(adds) = with(Value::Unknown) {
        return Some([adds].into());
    }
    ways.filter(|_| arguments.iter().any(|argument| matches!(argument, Argument::Choosing)))?
        .operands()
        .map(with)
        .collect()
}

struct Evaluation<'a, 'm> {
    contents: &'a mut Contents<'m>,
    /// The stored values, as differences to the previous contents.
    now: BTreeMap<Cell, u64>,
    steps: u32,
}

/// A block that is being executed.
struct Label {
    /// The index of the `loop`, or of the `end`.
    at: usize,
    is_loop: bool,
    /// The height of the stack, without the block's values.
    height: usize,
    values: usize,
}

/// A function that is being executed.
struct Activation {
    locals: Vec<Value>,
    stack: Vec<Value>,
    labels: Vec<Label>,
    /// The next instruction.
    next: usize,
}

impl Activation {
    fn pop(&mut self) -> Option<Value> {
        self.stack.pop()
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn enter(&mut self, at: usize, values: usize, is_loop: bool) {
        self.labels.push(Label { at, is_loop, height: self.stack.len(), values });
    }

    /// Continues at a label.
    fn branch(&mut self, depth: u32) -> Option<()> {
        let number = self.labels.len().checked_sub(1 + depth as usize)?;
        let Label { at, is_loop, height, values } = self.labels[number];
        let kept = if is_loop { 0 } else { values };
        let values = self.stack.split_off(self.stack.len().checked_sub(kept)?);
        self.stack.truncate(height);
        self.stack.extend(values);
        // The `end` removes its label.
        self.labels.truncate(number + 1);
        self.next = if is_loop { at + 1 } else { at };
        Some(())
    }
}

impl Evaluation<'_, '_> {
    /// Executes a function and returns its results. `None` if that is not possible, or it may have
    /// another effect.
    fn call(&mut self, function: u32, arguments: Vec<Value>, depth: u32) -> Option<Vec<Value>> {
        let depth = depth.checked_sub(1)?;
        let code = self.contents.code(function)?;
        let mut locals = arguments;
        // Locals of other types than integers are used by unsupported instructions only.
        locals.resize(locals.len() + code.locals, Value::Known(0));
        let mut run = Activation { locals, stack: Vec::new(), labels: Vec::new(), next: 0 };
        run.enter(code.instructions.len() - 1, code.results, false);
        while !run.labels.is_empty() {
            self.steps = self.steps.checked_sub(1)?;
            let number = run.next;
            run.next += 1;
            let operator = code.instructions.get(number)?.operator();
            if self.control(operator, number, &code, &mut run)? {
                continue;
            }
            match operator {
                Operator::Call { function_index } => {
                    let parameters = self.contents.parameters(*function_index)?;
                    let arguments = run.stack.split_off(run.stack.len().checked_sub(parameters)?);
                    run.stack.extend(self.call(*function_index, arguments, depth)?);
                }
                _ => self.data(operator, &mut run)?,
            }
        }
        Some(run.stack)
    }

    /// Executes a control instruction; `Some(false)` if it is not one that can be executed.
    fn control(
        &mut self,
        operator: &Operator<'_>,
        number: usize,
        code: &Code<'_>,
        run: &mut Activation,
    ) -> Option<bool> {
        match operator {
            Operator::Nop => {}
            Operator::Block { blockty } => {
                run.enter(code.ends.get(&number)?.1, block_results(*blockty)?, false)
            }
            Operator::Loop { blockty } => run.enter(number, block_results(*blockty)?, true),
            Operator::If { blockty } => {
                let (part, end) = *code.ends.get(&number)?;
                let holds = run.pop()?.is_true()?;
                run.enter(end, block_results(*blockty)?, false);
                if !holds {
                    // After the `else`, or at the `end`.
                    run.next = if part == end { end } else { part + 1 };
                }
            }
            Operator::Else => run.next = code.ends.get(&number)?.1,
            Operator::End => drop(run.labels.pop()),
            Operator::Br { relative_depth } => run.branch(*relative_depth)?,
            Operator::BrIf { relative_depth } => {
                if run.pop()?.is_true()? {
                    run.branch(*relative_depth)?;
                }
            }
            Operator::BrTable { targets } => {
                let (index, count) = (run.pop()?, targets.len());
                let target = match index {
                    Value::Known(index) if index < count.into() => {
                        targets.targets().nth(index as usize)?.ok()?
                    }
                    Value::Known(_) => targets.default(),
                    Value::AtLeast(least) if least >= count.into() => targets.default(),
                    _ => return None,
                };
                run.branch(target)?;
            }
            Operator::Return => run.branch(run.labels.len() as u32 - 1)?,
            _ => return Some(false),
        }
        Some(true)
    }

    /// Executes an instruction on values.
    fn data(&mut self, operator: &Operator<'_>, run: &mut Activation) -> Option<()> {
        let value = match operator {
            Operator::Drop => {
                run.pop()?;
                return Some(());
            }
            Operator::Select | Operator::TypedSelect { .. } => {
                let (condition, no, yes) = (run.pop()?, run.pop()?, run.pop()?);
                match condition.is_true() {
                    Some(true) => yes,
                    Some(false) => no,
                    None => Value::Unknown,
                }
            }
            Operator::LocalGet { local_index } => *run.locals.get(*local_index as usize)?,
            Operator::LocalSet { local_index } => {
                *run.locals.get_mut(*local_index as usize)? = run.pop()?;
                return Some(());
            }
            Operator::LocalTee { local_index } => {
                let value = run.pop()?;
                *run.locals.get_mut(*local_index as usize)? = value;
                value
            }
            Operator::I32Const { value } => Value::Known(*value as u32 as u64),
            Operator::I64Const { value } => Value::Known(*value as u64),
            Operator::GlobalGet { global_index } => match self.contents.global(*global_index) {
                GlobalUse::Constant(value) => Value::Known(value),
                GlobalUse::Own(width) => self.read(Cell::Global { index: *global_index, width }),
                GlobalUse::Other => Value::Unknown,
            },
            Operator::GlobalSet { global_index } => {
                let GlobalUse::Own(width) = self.contents.global(*global_index) else { return None };
                let value = run.pop()?;
                return self.write(Cell::Global { index: *global_index, width }, value);
            }
            Operator::I32Load { memarg } => {
                let cell = self.cell(memarg, run.pop()?, Width::W32)?;
                self.read(cell)
            }
            Operator::I64Load { memarg } => {
                let cell = self.cell(memarg, run.pop()?, Width::W64)?;
                self.read(cell)
            }
            Operator::I32Store { memarg } => {
                let (value, address) = (run.pop()?, run.pop()?);
                let cell = self.cell(memarg, address, Width::W32)?;
                return self.write(cell, value);
            }
            Operator::I64Store { memarg } => {
                let (value, address) = (run.pop()?, run.pop()?);
                let cell = self.cell(memarg, address, Width::W64)?;
                return self.write(cell, value);
            }
            _ => {
                let last = run.pop()?;
                match unary(operator, last) {
                    Some(value) => value,
                    None => binary(operator, run.pop()?, last)?,
                }
            }
        };
        run.push(value);
        Some(())
    }

    /// The number at a known address, which must be in the memory.
    fn cell(&self, memarg: &MemArg, address: Value, width: Width) -> Option<Cell> {
        let address = address.known()?.checked_add(memarg.offset)?;
        let MemArgTarget::Memory(memory) = memarg.target else { return None };
        self.contents.has(memory, address, width.bytes()).then_some(Cell::Memory { memory, address, width })
    }

    fn read(&self, cell: Cell) -> Value {
        Value::Now(cell, self.now.get(&cell).copied().unwrap_or(0))
    }

    fn write(&mut self, cell: Cell, value: Value) -> Option<()> {
        match value {
            Value::Now(of, more) if of == cell => {
                self.now.insert(cell, more);
                Some(())
            }
            _ => None,
        }
    }

    /// The amounts that were added; `None` if numbers overlap.
    fn adds(self) -> Option<Adds> {
        let cells: Vec<Cell> = self.now.keys().copied().collect();
        if overlap(&cells) {
            return None;
        }
        Some(self.now.into_iter().filter(|(_, more)| *more != 0).collect())
    }
}

/// Whether two of these cells, in order, share bytes.
pub(super) fn overlap<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> bool {
    let mut end = None;
    cells.into_iter().any(|cell| {
        let Cell::Memory { memory, address, width } = *cell else { return false };
        let before = end.replace((memory, address + width.bytes()));
        before.is_some_and(|(of, end)| of == memory && address < end)
    })
}
