//! An interpreter for the instructions in the random programs, which records the state before each.

use wasm_jit::wasmparser::{BlockType, MemArg, Operator as O};
use wasm_jit::{Instruction, Module};

/// Maximum number of executed instructions.
const MAX_STEPS: usize = 20_000;

/// Size of the memory that the programs use, in bytes.
const MEMORY: usize = 1024;

/// An instruction about to be executed.
#[derive(Debug)]
pub(crate) struct Step {
    /// Offset in the module.
    pub(crate) offset: u32,
    pub(crate) locals: Vec<u64>,
    pub(crate) operands: Vec<u64>,
    /// The local that it accesses.
    pub(crate) access: Option<Access>,
}

/// An access to a local.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) local: u32,
    pub(crate) reads: bool,
}

struct Function<'m> {
    code: Vec<Instruction<'m>>,
    /// By instruction: the indices of its `end`, and of its `else` if it has one.
    ends: Vec<(usize, Option<usize>)>,
    locals: usize,
    results: usize,
}

pub(crate) struct Machine<'m> {
    functions: Vec<Function<'m>>,
    pub(crate) memory: Vec<u8>,
    pub(crate) trace: Vec<Step>,
}

/// An open block.
struct Block {
    /// The target of a branch.
    target: usize,
    is_loop: bool,
    results: usize,
    height: usize,
}

impl<'m> Machine<'m> {
    pub(crate) fn new(module: &'m Module) -> Self {
        let functions = module.functions().map(|function| {
            let body = function.body().expect("nothing is imported");
            let code: Vec<_> = body.instructions().collect();
            let mut ends = vec![(0, None); code.len()];
            let mut open = Vec::new();
            for (at, instruction) in code.iter().enumerate() {
                match instruction.operator() {
                    O::Block { .. } | O::Loop { .. } | O::If { .. } => open.push(at),
                    O::Else => ends[*open.last().unwrap()].1 = Some(at),
                    O::End => {
                        if let Some(start) = open.pop() {
                            ends[start].0 = at;
                            if let Some(otherwise) = ends[start].1 {
                                ends[otherwise].0 = at;
                            }
                        }
                    }
                    _ => {}
                }
            }
            let ty = function.ty();
            Function {
                code,
                ends,
                locals: ty.params().len() + body.locals().count(),
                results: ty.results().len(),
            }
        });
        Self { functions: functions.collect(), memory: vec![0; MEMORY], trace: Vec::new() }
    }

    /// Calls a function with these arguments, and returns its results; `None` if that takes too
    /// long.
    pub(crate) fn call(&mut self, function: usize, arguments: &[u64]) -> Option<Vec<u64>> {
        let Function { locals, results, code, .. } = &self.functions[function];
        let (results, end) = (*results, code.len() - 1);
        let mut locals: Vec<u64> =
            arguments.iter().copied().chain(std::iter::repeat(0)).take(*locals).collect();
        let mut stack: Vec<u64> = Vec::new();
        let mut blocks = vec![Block { target: end + 1, is_loop: false, results, height: 0 }];
        let mut at = 0;
        while at <= end {
            let (block_end, otherwise) = self.functions[function].ends[at];
            let instruction = &self.functions[function].code[at];
            let operator = instruction.operator().clone();
            let access = match operator {
                O::LocalGet { local_index: local } => Some(Access { local, reads: true }),
                O::LocalSet { local_index: local } | O::LocalTee { local_index: local } => {
                    Some(Access { local, reads: false })
                }
                _ => None,
            };
            let (offset, operands) = (instruction.offset() as u32, stack.clone());
            if self.trace.len() == MAX_STEPS {
                return None;
            }
            self.trace.push(Step { offset, locals: locals.clone(), operands, access });
            let mut branch = None;
            at += 1;
            match operator {
                O::Block { blockty } | O::Loop { blockty } => {
                    let is_loop = matches!(operator, O::Loop { .. });
                    let target = if is_loop { at } else { block_end + 1 };
                    let results = if is_loop { 0 } else { results_of(blockty) };
                    blocks.push(Block { target, is_loop, results, height: stack.len() });
                }
                O::If { blockty } => {
                    let taken = stack.pop().unwrap() as u32 != 0;
                    let (target, results) = (block_end + 1, results_of(blockty));
                    match (taken, otherwise) {
                        (false, None) => at = target,
                        (false, Some(otherwise)) => at = otherwise + 1,
                        (true, _) => {}
                    }
                    if taken || otherwise.is_some() {
                        blocks.push(Block { target, is_loop: false, results, height: stack.len() });
                    }
                }
                O::Else => {
                    at = block_end + 1;
                    blocks.pop();
                }
                O::End => {
                    blocks.pop();
                }
                O::Br { relative_depth } => branch = Some(relative_depth),
                O::BrIf { relative_depth } => {
                    branch = (stack.pop().unwrap() as u32 != 0).then_some(relative_depth);
                }
                O::BrTable { ref targets } => {
                    let index = stack.pop().unwrap() as u32;
                    let target = targets.targets().nth(index as usize).map(Result::unwrap);
                    branch = Some(target.unwrap_or(targets.default()));
                }
                O::Return => branch = Some(blocks.len() as u32 - 1),
                O::Call { function_index } => {
                    let params = self.params(function_index as usize);
                    let arguments = stack.split_off(stack.len() - params);
                    stack.extend(self.call(function_index as usize, &arguments)?);
                }
                O::LocalGet { local_index } => stack.push(locals[local_index as usize]),
                O::LocalSet { local_index } => locals[local_index as usize] = stack.pop().unwrap(),
                O::LocalTee { local_index } => locals[local_index as usize] = *stack.last().unwrap(),
                O::Drop => drop(stack.pop()),
                O::Select => {
                    let condition = stack.pop().unwrap() as u32;
                    let other = stack.pop().unwrap();
                    if condition == 0 {
                        *stack.last_mut().unwrap() = other;
                    }
                }
                ref plain => self.plain(plain, &mut stack),
            }
            if let Some(depth) = branch {
                let index = blocks.len() - 1 - depth as usize;
                let Block { target, is_loop, results, height } = blocks[index];
                let values = stack.split_off(stack.len() - results);
                stack.truncate(height);
                stack.extend(values);
                blocks.truncate(if is_loop { index + 1 } else { index });
                at = target;
            }
        }
        Some(stack.split_off(stack.len() - results))
    }

    fn params(&self, function: usize) -> usize {
        // `main` has no parameters, all others have three.
        if function == 0 { 0 } else { 3 }
    }

    fn place(&self, arg: &MemArg, stack: &mut Vec<u64>, size: usize) -> std::ops::Range<usize> {
        let start = (stack.pop().unwrap() as u32 as u64 + arg.offset) as usize;
        start..start + size
    }

    /// An instruction that takes operands and returns one result, or stores.
    fn plain(&mut self, operator: &O<'_>, stack: &mut Vec<u64>) {
        macro_rules! binary {
            ($ty:ty, $operation:expr) => {{
                let (right, left) = (stack.pop().unwrap() as $ty, stack.pop().unwrap() as $ty);
                let operation: fn($ty, $ty) -> u64 = $operation;
                operation(left, right)
            }};
        }
        macro_rules! float {
            ($operation:expr) => {{
                let (right, left) =
                    (f64::from_bits(stack.pop().unwrap()), f64::from_bits(stack.pop().unwrap()));
                let operation: fn(f64, f64) -> u64 = $operation;
                operation(left, right)
            }};
        }
        let pop_wide = |stack: &mut Vec<u64>| {
            let (high, low) = (stack.pop().unwrap(), stack.pop().unwrap());
            u128::from(high) << 64 | u128::from(low)
        };
        // Pushes the low half of the result; the value is the high one.
        macro_rules! wide {
            ($operation:expr) => {{
                let (right, left) = (pop_wide(stack), pop_wide(stack));
                let operation: fn(u128, u128) -> u128 = $operation;
                let result = operation(left, right);
                stack.push(result as u64);
                (result >> 64) as u64
            }};
        }
        let value = match operator {
            O::I32Const { value } => u64::from(*value as u32),
            O::I64Const { value } => *value as u64,
            O::F64Const { value } => value.bits(),
            O::I32Add => binary!(u32, |a, b| a.wrapping_add(b).into()),
            O::I32Sub => binary!(u32, |a, b| a.wrapping_sub(b).into()),
            O::I32Mul => binary!(u32, |a, b| a.wrapping_mul(b).into()),
            O::I32And => binary!(u32, |a, b| (a & b).into()),
            O::I32Or => binary!(u32, |a, b| (a | b).into()),
            O::I32Xor => binary!(u32, |a, b| (a ^ b).into()),
            O::I32Shl => binary!(u32, |a, b| a.wrapping_shl(b).into()),
            O::I32ShrU => binary!(u32, |a, b| a.wrapping_shr(b).into()),
            O::I32ShrS => binary!(u32, |a, b| ((a as i32).wrapping_shr(b) as u32).into()),
            O::I32DivU => binary!(u32, |a, b| (a / b).into()),
            O::I32RemU => binary!(u32, |a, b| (a % b).into()),
            O::I32Eq => binary!(u32, |a, b| (a == b).into()),
            O::I32Ne => binary!(u32, |a, b| (a != b).into()),
            O::I32LtS => binary!(u32, |a, b| ((a as i32) < b as i32).into()),
            O::I32LtU => binary!(u32, |a, b| (a < b).into()),
            O::I32GtS => binary!(u32, |a, b| (a as i32 > b as i32).into()),
            O::I32LeU => binary!(u32, |a, b| (a <= b).into()),
            O::I32GeS => binary!(u32, |a, b| (a as i32 >= b as i32).into()),
            O::I32Eqz => u64::from(stack.pop().unwrap() as u32 == 0),
            O::I64Add => binary!(u64, |a, b| a.wrapping_add(b)),
            O::I64Sub => binary!(u64, |a, b| a.wrapping_sub(b)),
            O::I64Mul => binary!(u64, |a, b| a.wrapping_mul(b)),
            O::I64And => binary!(u64, |a, b| a & b),
            O::I64Xor => binary!(u64, |a, b| a ^ b),
            O::I64Shl => binary!(u64, |a, b| a.wrapping_shl(b as u32)),
            O::I64Eq => binary!(u64, |a, b| (a == b).into()),
            O::I64LtS => binary!(u64, |a, b| ((a as i64) < b as i64).into()),
            O::I64GtU => binary!(u64, |a, b| (a > b).into()),
            O::I64Eqz => u64::from(stack.pop().unwrap() == 0),
            O::I64Add128 => wide!(|a, b| a.wrapping_add(b)),
            O::I64Sub128 => wide!(|a, b| a.wrapping_sub(b)),
            O::I64MulWideU => {
                let (right, left) = (stack.pop().unwrap(), stack.pop().unwrap());
                let product = u128::from(left) * u128::from(right);
                stack.push(product as u64);
                (product >> 64) as u64
            }
            O::I64MulWideS => {
                let (right, left) = (stack.pop().unwrap() as i64, stack.pop().unwrap() as i64);
                let product = i128::from(left) * i128::from(right);
                stack.push(product as u64);
                (product >> 64) as u64
            }
            O::I32WrapI64 => u64::from(stack.pop().unwrap() as u32),
            O::I64ExtendI32U => u64::from(stack.pop().unwrap() as u32),
            O::I64ExtendI32S => i64::from(stack.pop().unwrap() as i32) as u64,
            O::F64Add => float!(|a, b| (a + b).to_bits()),
            O::F64Sub => float!(|a, b| (a - b).to_bits()),
            O::F64Mul => float!(|a, b| (a * b).to_bits()),
            O::F64Lt => float!(|a, b| (a < b).into()),
            O::F64Eq => float!(|a, b| (a == b).into()),
            O::F64Ne => float!(|a, b| (a != b).into()),
            O::F64ConvertI32S => f64::from(stack.pop().unwrap() as i32).to_bits(),
            O::I32Load { memarg } => {
                let place = self.place(memarg, stack, 4);
                u32::from_le_bytes(self.memory[place].try_into().unwrap()).into()
            }
            O::I64Load { memarg } | O::F64Load { memarg } => {
                let place = self.place(memarg, stack, 8);
                u64::from_le_bytes(self.memory[place].try_into().unwrap())
            }
            O::I32Store { memarg } => {
                let value = stack.pop().unwrap() as u32;
                let place = self.place(memarg, stack, 4);
                return self.memory[place].copy_from_slice(&value.to_le_bytes());
            }
            O::I64Store { memarg } | O::F64Store { memarg } => {
                let value = stack.pop().unwrap();
                let place = self.place(memarg, stack, 8);
                return self.memory[place].copy_from_slice(&value.to_le_bytes());
            }
            other => panic!("{other:?} does not occur in these programs"),
        };
        stack.push(value);
    }
}

fn results_of(ty: BlockType) -> usize {
    match ty {
        BlockType::Empty => 0,
        BlockType::Type(_) => 1,
        BlockType::FuncType(_) => panic!("does not occur in these programs"),
    }
}
