//! WebAssembly functions that stubs execute inline instead of calling them.
//!
//! A stub knows the instance of such a function: the addresses of its memory and globals are
//! constants of the stub, and its arguments remain where the site has them. A short function
//! therefore takes a few instructions, and only the registers that these change are saved
//! (`stub_inline`).
//!
//! # Which functions
//! Functions of at most [`MAX_OPERATORS`] operators, which are
//!
//! - constants, parameters and locals, `drop`, `select` and `nop`;
//! - integer arithmetic, comparisons and conversions, except for divisions (unsigned ones by powers
//!   of two are included) and rotations by a number that is not constant;
//! - loads and stores of integers in memory 0, if it has 32-bit addresses;
//! - `global.get` and `global.set` of integers;
//! - `if` and `else` without parameters and with at most one result.
//!
//! An arm of an `if` may contain other operators. Instead of such an arm, the stub calls the
//! function, from its start.
//!
//! # Traps
//! Inlined code does not trap. Before an access it compares the address with the length of the
//! memory, and if the access would trap, the stub calls the function, which then traps itself.
//! Traps, backtraces and handlers therefore need not know about inlined code. The function starts
//! again, which is correct only if it has not changed memory or a global: a function that compares
//! an address after it has changed something is not inlined. Constant addresses are compared once,
//! at the start, or not at all if the memory was already large enough when the probe was made:
//! memories do not shrink. Other addresses are compared with the length that the memory had then,
//! and only larger ones with its length.
//!
//! # Equivalence to a call
//! - An interrupt finds the thread in the program's stub, at the probe's instruction.
//! - If a probe has been made in the module of the function, or a first call is watched, the
//!   function is called from then on: the stub reads a flag in the module's code.
//! - Functions of modules with sites from the start, with masked indices, or that consume fuel are
//!   not inlined.
//! - Inlined code needs no stack, so it does not overflow the stack.

use std::hash::{Hash, Hasher};

use wasmparser::{BlockType, FunctionBody, MemArg, MemArgTarget, Operator, OperatorsReader, ValType};

use crate::asm::{Alu, Cond, Size, Width};
use crate::module::{CompiledSites, ModuleInfo};

/// Maximum number of operators of an inlined function.
const MAX_OPERATORS: usize = 192;
/// Maximum length of the body of an inlined function, in bytes.
const MAX_LENGTH: u64 = 512;
/// Maximum number of parameters and locals of an inlined function.
const MAX_LOCALS: u32 = 64;

/// A function that stubs may execute inline. Two values are equal if they are the same function.
#[derive(Debug)]
pub struct Inlined {
    func_ref: usize,
    /// The address of a `u32` that is not 0 if the function must be called.
    pub(crate) must_call: usize,
    pub(crate) memory: InlinedMemory,
    pub(crate) body: Box<[Op]>,
    /// Number of parameters and locals.
    pub(crate) locals: u32,
}

impl PartialEq for Inlined {
    fn eq(&self, other: &Self) -> bool {
        self.func_ref == other.func_ref
    }
}

impl Eq for Inlined {}

impl Hash for Inlined {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.func_ref.hash(state);
    }
}

/// The memory 0 of an instance. If there is none, nothing reads this.
#[derive(Clone, Copy, Debug, Default)]
pub struct InlinedMemory {
    /// The address of the memory.
    pub base: usize,
    /// The address of the memory's length in bytes, a quadword.
    pub length: usize,
    /// A lower bound of the length, in bytes.
    pub least: u64,
}

/// The instance of an inlined function: addresses that are valid as long as its store exists.
#[derive(Clone, Copy, Debug)]
pub struct InlinedInstance {
    /// The address of the function's [`VmFuncRef`](crate::vmctx::VmFuncRef).
    pub func_ref: usize,
    /// The address of a `u32` that is not 0 if the functions of the module must be called.
    pub must_call: usize,
    /// The instance's memory 0.
    pub memory: InlinedMemory,
}

/// An operator. 32-bit values are zero-extended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Const(u64),
    Get(u32),
    /// A `Get` after which nothing reads the value of the local.
    Take(u32),
    Set(u32),
    Tee(u32),
    Drop,
    Select,
    Unary(Unary),
    Binary(Binary, Width),
    Compare(Cond, Width),
    Eqz(Width),
    /// Sign-extends to the width, if there is one.
    Load {
        size: Size,
        sign: Option<Width>,
        offset: u32,
    },
    Store {
        size: Size,
        offset: u32,
    },
    /// Reads the global whose value has this address.
    GlobalGet(usize, Width),
    GlobalSet(usize, Width),
    If {
        has_result: bool,
        then: Box<[Op]>,
        otherwise: Box<[Op]>,
        /// The locals whose values are read after it, as bits.
        live: u64,
        /// Those of them that an arm sets.
        set: u64,
    },
    /// The function is called instead.
    Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Clz(Width),
    Ctz(Width),
    Popcnt(Width),
    Wrap,
    /// The lower half is sign-extended to 64 bits, the lowest byte or 16 bits to a width.
    Extend(Size, Width),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Alu(Alu),
    Mul,
    Shl,
    ShrS,
    ShrU,
    Rotl,
    Rotr,
    DivU,
    RemU,
}

/// Why an operator list ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Else,
    End,
}

impl Inlined {
    /// The function with this index, if it can be inlined. `global` returns the address of a
    /// global's value.
    pub fn new(
        module: &ModuleInfo,
        index: u32,
        body: &FunctionBody<'_>,
        instance: InlinedInstance,
        global: impl Fn(u32) -> usize,
    ) -> Option<Self> {
        let settings = &module.settings;
        let is_plain =
            !settings.uses_fuel && !settings.masks_indices && settings.sites == CompiledSites::None;
        if !is_plain || body.range().end - body.range().start > MAX_LENGTH {
            return None;
        }
        let mut locals = module.function_type(index).params().len() as u32;
        for group in body.get_locals_reader().ok()? {
            locals = locals.saturating_add(group.ok()?.0);
        }
        if locals > MAX_LOCALS {
            return None;
        }
        let operators = body.get_operators_reader().ok()?;
        let mut parser = Parser { module, global: &global, operators, count: 0 };
        let InlinedInstance { func_ref, must_call, memory } = instance;
        Some(Self { func_ref, must_call, memory, body: parser.function()?, locals })
    }
}

/// Finds the last uses of locals in a list of operators. `live` has the locals that are read after
/// the list. Returns those that it reads, or leaves as they are for what follows, and those that it
/// sets.
fn find_last_uses(ops: &mut [Op], mut live: u64) -> (u64, u64) {
    let mut all_set = 0;
    for op in ops.iter_mut().rev() {
        match op {
            Op::Get(local) => {
                let bit = 1 << *local;
                if live & bit == 0 {
                    *op = Op::Take(*local);
                }
                live |= bit;
            }
            Op::Set(local) | Op::Tee(local) => {
                let bit = 1 << *local;
                if live & bit == 0 && matches!(op, Op::Set(_)) {
                    *op = Op::Drop;
                }
                all_set |= bit;
                live &= !bit;
            }
            Op::If { then, otherwise, live: after, set, .. } => {
                *after = live;
                let (then_reads, then_sets) = find_last_uses(then, live);
                let (otherwise_reads, otherwise_sets) = find_last_uses(otherwise, live);
                *set = (then_sets | otherwise_sets) & live;
                all_set |= then_sets | otherwise_sets;
                live = then_reads | otherwise_reads;
            }
            // The function has its own locals.
            Op::Call => live = 0,
            _ => {}
        }
    }
    (live, all_set)
}

#[cfg(test)]
impl Inlined {
    /// A function with these operators.
    pub(crate) fn of_ops(instance: InlinedInstance, body: &[Op], locals: u32) -> Self {
        let InlinedInstance { func_ref, must_call, memory } = instance;
        let mut body: Box<[Op]> = body.into();
        find_last_uses(&mut body, 0);
        Self { func_ref, must_call, memory, body, locals }
    }
}

struct Parser<'a, G> {
    module: &'a ModuleInfo,
    global: &'a G,
    operators: OperatorsReader<'a>,
    count: usize,
}

impl<G: Fn(u32) -> usize> Parser<'_, G> {
    /// The operators of the function, if there are not too many.
    fn function(&mut self) -> Option<Box<[Op]>> {
        let (mut body, ended) = self.list(0)?;
        find_last_uses(&mut body, 0);
        (ended == Ended::End && self.count <= MAX_OPERATORS).then_some(body)
    }

    /// The operators up to the end of the function or of an arm. An arm with a [`Op::Call`] has no
    /// others: the function starts again.
    fn list(&mut self, depth: u32) -> Option<(Box<[Op]>, Ended)> {
        let mut all = Vec::new();
        let before = self.count;
        loop {
            self.count += 1;
            let operator = self.operators.read().ok()?;
            match operator {
                // 32-bit values are zero-extended.
                Operator::Nop | Operator::I64ExtendI32U => {}
                Operator::End => return Some((all.into(), Ended::End)),
                Operator::Else => return Some((all.into(), Ended::Else)),
                Operator::If { blockty } => {
                    let has_result = match blockty {
                        BlockType::Empty => false,
                        BlockType::Type(ValType::I32 | ValType::I64) => true,
                        _ => return None,
                    };
                    let (then, ended) = self.list(depth + 1)?;
                    let otherwise = match ended {
                        Ended::Else => self.list(depth + 1)?.0,
                        Ended::End => Box::default(),
                    };
                    all.push(Op::If { has_result, then, otherwise, live: 0, set: 0 });
                }
                operator => match self.op(&operator) {
                    Some(op) => all.push(op),
                    None if depth > 0 => {
                        self.count = before;
                        return Some(([Op::Call].into(), self.skip(&operator)?));
                    }
                    None => return None,
                },
            }
        }
    }

    /// Skips the rest of an arm, after this operator.
    fn skip(&mut self, operator: &Operator<'_>) -> Option<Ended> {
        let opens = |operator: &Operator<'_>| {
            matches!(
                operator,
                Operator::Block { .. }
                    | Operator::Loop { .. }
                    | Operator::If { .. }
                    | Operator::TryTable { .. }
            )
        };
        let mut depth = u32::from(opens(operator));
        loop {
            match self.operators.read().ok()? {
                Operator::End if depth == 0 => return Some(Ended::End),
                Operator::Else if depth == 0 => return Some(Ended::Else),
                Operator::End => depth -= 1,
                // The blocks of an older proposal end differently.
                Operator::Try { .. } => return None,
                operator => depth += u32::from(opens(&operator)),
            }
        }
    }

    fn op(&self, operator: &Operator<'_>) -> Option<Op> {
        use Operator as O;
        use Width::{W32, W64};
        let binary = |what, width| Some(Op::Binary(what, width));
        let alu = |what, width| binary(Binary::Alu(what), width);
        let unary = |what| Some(Op::Unary(what));
        let compare = |cond, width| Some(Op::Compare(cond, width));
        let place = |memarg: &MemArg| -> Option<u32> {
            let is_32 = memarg.target == MemArgTarget::Memory(0) && !self.module.memories[0].memory64;
            let offset = u32::try_from(memarg.offset).ok()?;
            (is_32 && offset < 1 << 30).then_some(offset)
        };
        let load = |memarg: &MemArg, size, sign| Some(Op::Load { size, sign, offset: place(memarg)? });
        let store = |memarg: &MemArg, size| Some(Op::Store { size, offset: place(memarg)? });
        let width_of = |global: u32| match self.module.globals[global as usize].content_type {
            ValType::I32 => Some(W32),
            ValType::I64 => Some(W64),
            _ => None,
        };
        match operator {
            O::I32Const { value } => Some(Op::Const(u64::from(*value as u32))),
            O::I64Const { value } => Some(Op::Const(*value as u64)),
            O::LocalGet { local_index } => Some(Op::Get(*local_index)),
            O::LocalSet { local_index } => Some(Op::Set(*local_index)),
            O::LocalTee { local_index } => Some(Op::Tee(*local_index)),
            O::Drop => Some(Op::Drop),
            O::Select => Some(Op::Select),
            O::GlobalGet { global_index } => {
                Some(Op::GlobalGet((self.global)(*global_index), width_of(*global_index)?))
            }
            O::GlobalSet { global_index } => {
                Some(Op::GlobalSet((self.global)(*global_index), width_of(*global_index)?))
            }

            O::I32Load { memarg } => load(memarg, Size::B4, None),
            O::I64Load { memarg } => load(memarg, Size::B8, None),
            O::I32Load8U { memarg } | O::I64Load8U { memarg } => load(memarg, Size::B1, None),
            O::I32Load16U { memarg } | O::I64Load16U { memarg } => load(memarg, Size::B2, None),
            O::I64Load32U { memarg } => load(memarg, Size::B4, None),
            O::I32Load8S { memarg } => load(memarg, Size::B1, Some(W32)),
            O::I32Load16S { memarg } => load(memarg, Size::B2, Some(W32)),
            O::I64Load8S { memarg } => load(memarg, Size::B1, Some(W64)),
            O::I64Load16S { memarg } => load(memarg, Size::B2, Some(W64)),
            O::I64Load32S { memarg } => load(memarg, Size::B4, Some(W64)),
            O::I32Store { memarg } | O::I64Store32 { memarg } => store(memarg, Size::B4),
            O::I64Store { memarg } => store(memarg, Size::B8),
            O::I32Store8 { memarg } | O::I64Store8 { memarg } => store(memarg, Size::B1),
            O::I32Store16 { memarg } | O::I64Store16 { memarg } => store(memarg, Size::B2),

            O::I32Add => alu(Alu::Add, W32),
            O::I64Add => alu(Alu::Add, W64),
            O::I32Sub => alu(Alu::Sub, W32),
            O::I64Sub => alu(Alu::Sub, W64),
            O::I32And => alu(Alu::And, W32),
            O::I64And => alu(Alu::And, W64),
            O::I32Or => alu(Alu::Or, W32),
            O::I64Or => alu(Alu::Or, W64),
            O::I32Xor => alu(Alu::Xor, W32),
            O::I64Xor => alu(Alu::Xor, W64),
            O::I32Mul => binary(Binary::Mul, W32),
            O::I64Mul => binary(Binary::Mul, W64),
            O::I32Shl => binary(Binary::Shl, W32),
            O::I64Shl => binary(Binary::Shl, W64),
            O::I32ShrS => binary(Binary::ShrS, W32),
            O::I64ShrS => binary(Binary::ShrS, W64),
            O::I32ShrU => binary(Binary::ShrU, W32),
            O::I64ShrU => binary(Binary::ShrU, W64),
            O::I32Rotl => binary(Binary::Rotl, W32),
            O::I64Rotl => binary(Binary::Rotl, W64),
            O::I32Rotr => binary(Binary::Rotr, W32),
            O::I64Rotr => binary(Binary::Rotr, W64),
            O::I32DivU => binary(Binary::DivU, W32),
            O::I64DivU => binary(Binary::DivU, W64),
            O::I32RemU => binary(Binary::RemU, W32),
            O::I64RemU => binary(Binary::RemU, W64),

            O::I32Clz => unary(Unary::Clz(W32)),
            O::I64Clz => unary(Unary::Clz(W64)),
            O::I32Ctz => unary(Unary::Ctz(W32)),
            O::I64Ctz => unary(Unary::Ctz(W64)),
            O::I32Popcnt => unary(Unary::Popcnt(W32)),
            O::I64Popcnt => unary(Unary::Popcnt(W64)),
            O::I32WrapI64 => unary(Unary::Wrap),
            O::I64ExtendI32S | O::I64Extend32S => unary(Unary::Extend(Size::B4, W64)),
            O::I32Extend8S => unary(Unary::Extend(Size::B1, W32)),
            O::I32Extend16S => unary(Unary::Extend(Size::B2, W32)),
            O::I64Extend8S => unary(Unary::Extend(Size::B1, W64)),
            O::I64Extend16S => unary(Unary::Extend(Size::B2, W64)),

            O::I32Eqz => Some(Op::Eqz(W32)),
            O::I64Eqz => Some(Op::Eqz(W64)),
            O::I32Eq => compare(Cond::Equal, W32),
            O::I64Eq => compare(Cond::Equal, W64),
            O::I32Ne => compare(Cond::NotEqual, W32),
            O::I64Ne => compare(Cond::NotEqual, W64),
            O::I32LtS => compare(Cond::Less, W32),
            O::I64LtS => compare(Cond::Less, W64),
            O::I32LtU => compare(Cond::Below, W32),
            O::I64LtU => compare(Cond::Below, W64),
            O::I32GtS => compare(Cond::Greater, W32),
            O::I64GtS => compare(Cond::Greater, W64),
            O::I32GtU => compare(Cond::Above, W32),
            O::I64GtU => compare(Cond::Above, W64),
            O::I32LeS => compare(Cond::LessEqual, W32),
            O::I64LeS => compare(Cond::LessEqual, W64),
            O::I32LeU => compare(Cond::BelowEqual, W32),
            O::I64LeU => compare(Cond::BelowEqual, W64),
            O::I32GeS => compare(Cond::GreaterEqual, W32),
            O::I64GeS => compare(Cond::GreaterEqual, W64),
            O::I32GeU => compare(Cond::AboveEqual, W32),
            O::I64GeU => compare(Cond::AboveEqual, W64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use wasmparser::{Parser as Reader, Payload};

    use super::*;

    /// The operators of the only function of a module.
    fn parsed(text: &str) -> Option<Box<[Op]>> {
        let binary = wat::parse_str(text).unwrap();
        let body = Reader::new(0).parse_all(&binary).find_map(|payload| match payload.unwrap() {
            Payload::CodeSectionEntry(body) => Some(body),
            _ => None,
        });
        let operators = body.unwrap().get_operators_reader().unwrap();
        let module = &ModuleInfo::default();
        Parser { module, global: &|_| 0, operators, count: 0 }.function()
    }

    fn if_else(then: &[Op], otherwise: &[Op], live: u64, set: u64) -> Op {
        Op::If { has_result: false, then: then.into(), otherwise: otherwise.into(), live, set }
    }

    /// What comes before the call is executed by the function, and needs neither room nor
    /// registers.
    #[test]
    fn arms_with_calls_have_no_other_operators() {
        let sets = "(local.set 2 (i32.const 1))".repeat(MAX_OPERATORS);
        let text = format!(
            "(module (func (param i32) (local i32 i32)
                (if (local.get 0) (then (local.set 1 (i32.const 7))) (else {sets} (call 0) (nop)))
                (drop (local.get 1)) (drop (local.get 2))))"
        );
        let arm = [Op::Const(7), Op::Set(1)];
        let expected = [Op::Take(0), if_else(&arm, &[Op::Call], 0b110, 0b10), Op::Take(1)];
        let ops = parsed(&text).unwrap();
        assert_eq!(ops[..3], expected);
        assert!(parsed(&text.replace("(call 0)", "")).is_none());
    }

    #[test]
    fn values_are_taken_by_the_last_operator_that_reads_them() {
        // In an arm, if the other one does not need the value, and what follows does not.
        let text = "(module (func (param i32 i32) (local i32)
            (if (local.get 0)
                (then (local.set 2 (local.get 0)) (drop (local.get 2)) (local.set 0 (i32.const 1)))
                (else (drop (local.get 1)) (local.set 2 (i32.const 2))))
            (drop (local.get 1)) (drop (local.get 0)) (local.set 0 (i32.const 3))))";
        let then = [Op::Take(0), Op::Set(2), Op::Take(2), Op::Drop, Op::Const(1), Op::Set(0)];
        let otherwise = [Op::Get(1), Op::Drop, Op::Const(2), Op::Drop];
        let expected = [
            Op::Get(0),
            if_else(&then, &otherwise, 0b11, 0b1),
            Op::Take(1),
            Op::Drop,
            Op::Take(0),
            Op::Drop,
            Op::Const(3),
            Op::Drop,
        ];
        assert_eq!(*parsed(text).unwrap(), expected);
    }
}
