//! The code of inlined functions ([`inlined`](super::inlined)) in a stub.
//!
//! One pass over the operators with an abstract stack, whose values are constants or in registers.
//! Several values may share a register; one that is changed is copied before, if it is shared.
//! Arguments are loaded when they are first used. A register is free again when its value has been
//! read for the last time. A local that an arm of an `if` sets, and that is read after the `if`,
//! has a register of its own in both arms; nothing else outlives an arm except its result.
//!
//! A number in memory or a global that is increased by a constant takes one instruction, and a
//! comparison is used where its flags are.

use super::fold::{fold, fold_unary, holds};
use super::inlined::{Binary, Inlined, InlinedMemory, Op, Unary};
use super::list::{Saved, integer};
use super::values::{Source, Value};
use crate::asm::{Alu, Assembler, Cond, Label, Mem, Reg, Rm, Shift, Size, Width};
use crate::compiler::abi::{SCRATCH, Ty};
use crate::compiler::cached_locals::bits;

/// Why no code is generated.
pub(crate) enum Refused {
    /// The code needs more registers.
    Registers,
    /// The function is not suitable.
    Function,
}

/// The end of the accesses, as far as it is known: compared at the start, and before the first
/// access by an address that is not constant.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    constant: u64,
    offset: u32,
}

/// Whether the code can have such a value.
pub(crate) fn is_integer(ty: Ty) -> bool {
    matches!(ty, Ty::I32 | Ty::I64)
}

/// A value on the stack or of a local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sym {
    Const(u64),
    /// A value in a register: it holds one of the register's uses.
    Reg(Reg),
    /// An argument that has not been loaded yet. Only locals have such values.
    Argument,
}

/// What is known about the values in registers, as bits.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// They were compared with the memory's length.
    compared: u32,
    /// The upper half is zero.
    narrow: u32,
    /// They are not zero.
    nonzero: u32,
}

impl Facts {
    fn forget(&mut self, reg: Reg) {
        self.compared &= !reg.bit();
        self.narrow &= !reg.bit();
        self.nonzero &= !reg.bit();
    }

    /// What is known after one or the other.
    fn or(self, other: Self) -> Self {
        Self {
            compared: self.compared & other.compared,
            narrow: self.narrow & other.narrow,
            nonzero: self.nonzero & other.nonzero,
        }
    }
}

/// Where values are, at one point of the code.
#[derive(Clone)]
pub(crate) struct Values {
    stack: Vec<Sym>,
    locals: Vec<Sym>,
    /// Registers that hold nothing.
    free: u32,
    /// How many values are in each register.
    uses: [u8; 16],
    facts: Facts,
    /// Whether memory or a global was changed.
    has_effects: bool,
}

impl Values {
    pub(crate) fn new(pool: u32) -> Self {
        Self {
            stack: Vec::new(),
            locals: Vec::new(),
            free: pool,
            uses: [0; 16],
            facts: Facts::default(),
            has_effects: false,
        }
    }

    fn alloc(&mut self) -> Result<Reg, Refused> {
        let reg = bits(self.free).next().ok_or(Refused::Registers)?;
        self.free &= !reg.bit();
        self.facts.forget(reg);
        self.uses[reg.index()] = 1;
        Ok(reg)
    }

    fn release(&mut self, value: Sym) {
        if let Sym::Reg(reg) = value {
            let uses = &mut self.uses[reg.index()];
            *uses -= 1;
            if *uses == 0 {
                self.free |= reg.bit();
            }
        }
    }

    /// Another use of the same value.
    fn share(&mut self, value: Sym) -> Sym {
        if let Sym::Reg(reg) = value {
            self.uses[reg.index()] += 1;
        }
        value
    }

    /// Releases the values of all locals except these: nothing reads them.
    fn release_locals_except(&mut self, live: u64) {
        for local in 0..self.locals.len() {
            if live >> local & 1 == 0 {
                let value = std::mem::replace(&mut self.locals[local], Sym::Const(0));
                self.release(value);
            }
        }
    }

    fn push(&mut self, value: Sym) {
        self.stack.push(value);
    }

    fn pop(&mut self) -> Sym {
        self.stack.pop().expect("validated")
    }
}

/// A condition.
enum Test {
    Known(bool),
    Flags(Cond),
    /// The register is compared with 0: [`Cond::Equal`] or [`Cond::NotEqual`].
    Zero(Cond, Reg),
}

impl Test {
    fn negated(self) -> Self {
        match self {
            Self::Known(known) => Self::Known(!known),
            Self::Flags(cond) => Self::Flags(cond.opposite()),
            Self::Zero(cond, reg) => Self::Zero(cond.opposite(), reg),
        }
    }
}

/// A comparison with the length that the memory has now, for an address that may be beyond its
/// first length.
pub(crate) struct Longer {
    address: Reg,
    /// The end of the access, from the address.
    offset: u32,
    /// Where the comparison begins, and where control continues.
    start: Label,
    back: Label,
}

impl Longer {
    /// The comparison, outside of the function's code.
    pub(crate) fn emit(&self, memory: InlinedMemory, call: Label, asm: &mut Assembler<'_>) {
        asm.bind(self.start);
        compare_with_length(memory, self.address, self.offset, call, asm);
        asm.jmp(self.back);
    }
}

/// Continues at `call` if an access would be out of bounds.
fn compare_with_length(
    memory: InlinedMemory,
    address: Reg,
    offset: u32,
    call: Label,
    asm: &mut Assembler<'_>,
) {
    asm.mov_imm(SCRATCH, memory.length as u64);
    asm.mov(Width::W64, SCRATCH, Mem::base(SCRATCH, 0));
    asm.alu_imm(Alu::Sub, Width::W64, SCRATCH, offset as i32);
    asm.jcc(Cond::Below, call);
    asm.alu(Alu::Cmp, Width::W64, address, SCRATCH);
    asm.jcc(Cond::Above, call);
}

/// The code of one function in a stub.
pub(crate) struct Inliner<'a, 'c> {
    pub(crate) asm: &'a mut Assembler<'c>,
    pub(crate) inlined: &'a Inlined,
    pub(crate) parameters: &'a [Ty],
    pub(crate) arguments: &'a [Value],
    pub(crate) saved: &'a Saved,
    pub(crate) site: usize,
    /// Where the function is called.
    pub(crate) call: Label,
    pub(crate) known: Extents,
    pub(crate) found: Extents,
    pub(crate) values: Values,
    /// The locals that have a register of their own, because an arm sets them.
    pub(crate) pinned: u64,
    pub(crate) longer: Vec<Longer>,
}

impl Inliner<'_, '_> {
    /// The code of the function. It continues after its end, or at the call.
    pub(crate) fn function(&mut self) -> Result<(), Refused> {
        let inlined = self.inlined;
        if self.known.constant > inlined.memory.least {
            let end = i32::try_from(self.known.constant).map_err(|_| Refused::Function)?;
            self.asm.mov_imm(SCRATCH, inlined.memory.length as u64);
            self.asm.alu_imm(Alu::Cmp, Width::W64, Mem::base(SCRATCH, 0), end);
            self.asm.jcc(Cond::Below, self.call);
        }
        for local in 0..inlined.locals as usize {
            let value = match self.arguments.get(local) {
                None => Sym::Const(0),
                Some(value) => self.constant_argument(local, *value).unwrap_or(Sym::Argument),
            };
            self.values.locals.push(value);
        }
        // Loads may change the flags, so they do not come between a comparison and its arms.
        let set = set_in_arms(&inlined.body);
        for local in 0..self.arguments.len() {
            if set >> local & 1 != 0 && self.values.locals[local] == Sym::Argument {
                let reg = self.values.alloc()?;
                self.load_argument(local, reg)?;
                self.values.locals[local] = Sym::Reg(reg);
            }
        }
        self.list(&inlined.body)
    }

    fn constant_argument(&self, local: usize, value: Value) -> Option<Sym> {
        let Source::Const(bits) = value.source else { return None };
        let bits = bits.wrapping_add(value.plus);
        match self.parameters[local] {
            Ty::I32 => Some(Sym::Const(u64::from(bits as u32))),
            Ty::I64 => Some(Sym::Const(bits)),
            _ => None,
        }
    }

    fn load_argument(&mut self, local: usize, reg: Reg) -> Result<(), Refused> {
        let ty = self.parameters[local];
        if !is_integer(ty) {
            return Err(Refused::Function);
        }
        integer(reg, ty, self.arguments[local], self.saved, self.site, self.asm);
        if ty == Ty::I32 {
            self.values.facts.narrow |= reg.bit();
        }
        Ok(())
    }

    fn list(&mut self, ops: &[Op]) -> Result<(), Refused> {
        let mut at = 0;
        while let Some(op) = ops.get(at) {
            at += 1;
            at += self.op(op, &ops[at..])?;
        }
        Ok(())
    }

    /// Calls the function if the condition holds.
    fn call_instead(&mut self, cond: Cond) -> Result<(), Refused> {
        self.call_may_follow()?;
        self.asm.jcc(cond, self.call);
        Ok(())
    }

    /// Whether the function may be called at this point.
    fn call_may_follow(&self) -> Result<(), Refused> {
        if self.values.has_effects {
            return Err(Refused::Function);
        }
        Ok(())
    }

    /// Returns how many of the following operators it includes.
    fn op(&mut self, op: &Op, rest: &[Op]) -> Result<usize, Refused> {
        match *op {
            Op::Const(bits) => self.values.push(Sym::Const(bits)),
            Op::Get(local) => self.get(local as usize, false)?,
            Op::Take(local) => self.get(local as usize, true)?,
            Op::Set(local) => self.set(local as usize),
            Op::Tee(local) => {
                let value = self.values.pop();
                let shared = self.values.share(value);
                self.values.push(value);
                self.values.push(shared);
                self.set(local as usize);
            }
            Op::Drop => {
                let value = self.values.pop();
                self.values.release(value);
            }
            Op::Select => {
                let test = self.test_top(Width::W32);
                self.select(test)?;
            }
            Op::Unary(unary) => self.unary(unary)?,
            Op::Binary(binary, width) => self.binary(binary, width)?,
            Op::Compare(cond, width) => {
                let test = self.compare(cond, width)?;
                return self.use_test(test, rest);
            }
            Op::Eqz(width) => {
                let test = self.test_top(width).negated();
                return self.use_test(test, rest);
            }
            Op::Load { size, sign, offset } => return self.load(size, sign, offset, rest),
            Op::Store { size, offset } => self.store(size, offset)?,
            Op::GlobalGet(address, width) => return self.global_get(address, width, rest),
            Op::GlobalSet(address, width) => {
                let value = self.values.pop();
                let value = self.immediate_or_register(value, width.into())?;
                self.asm.mov_imm(SCRATCH, address as u64);
                self.write(width.into(), Mem::base(SCRATCH, 0), value);
            }
            Op::If { .. } => {
                let test = self.test_top(Width::W32);
                self.branch(test, op)?;
            }
            // It would always be called.
            Op::Call => return Err(Refused::Function),
        }
        Ok(0)
    }

    fn is_pinned(&self, local: usize) -> bool {
        self.pinned >> local & 1 != 0
    }

    /// Pushes the value of a local, perhaps for the last time.
    fn get(&mut self, local: usize, is_last: bool) -> Result<(), Refused> {
        let value = match self.values.locals[local] {
            Sym::Reg(reg) if self.is_pinned(local) => {
                let copy = self.values.alloc()?;
                self.asm.mov(Width::W64, copy, reg);
                self.values.push(Sym::Reg(copy));
                return Ok(());
            }
            Sym::Argument => {
                let reg = self.values.alloc()?;
                self.load_argument(local, reg)?;
                Sym::Reg(reg)
            }
            value => value,
        };
        if is_last {
            self.values.locals[local] = Sym::Const(0);
        } else {
            self.values.locals[local] = self.values.share(value);
        }
        self.values.push(value);
        Ok(())
    }

    /// Gives these locals registers of their own. Does not change the flags.
    fn pin(&mut self, locals: u64) -> Result<(), Refused> {
        let locals = locals & !self.pinned;
        for local in 0..self.values.locals.len() {
            if locals >> local & 1 != 0 {
                let reg = self.owned(self.values.locals[local])?;
                self.values.locals[local] = Sym::Reg(reg);
            }
        }
        self.pinned |= locals;
        Ok(())
    }

    fn set(&mut self, local: usize) {
        let value = self.values.pop();
        match self.values.locals[local] {
            Sym::Reg(own) if self.is_pinned(local) => {
                match value {
                    Sym::Const(bits) => self.asm.mov_imm(own, bits),
                    Sym::Reg(reg) => self.asm.mov(Width::W64, own, reg),
                    Sym::Argument => unreachable!("only of locals"),
                }
                self.values.facts.forget(own);
                self.values.release(value);
            }
            before => {
                self.values.release(before);
                self.values.locals[local] = value;
            }
        }
    }

    /// A register with the value, which takes over its use.
    fn in_register(&mut self, value: Sym) -> Result<Reg, Refused> {
        match value {
            Sym::Reg(reg) => Ok(reg),
            Sym::Const(bits) => {
                let reg = self.values.alloc()?;
                self.asm.mov_imm(reg, bits);
                Ok(reg)
            }
            Sym::Argument => unreachable!("only of locals"),
        }
    }

    /// As [`Self::in_register`], but no other value is in the register.
    fn owned(&mut self, value: Sym) -> Result<Reg, Refused> {
        let reg = self.in_register(value)?;
        if self.values.uses[reg.index()] == 1 {
            self.values.facts.forget(reg);
            return Ok(reg);
        }
        let copy = self.values.alloc()?;
        self.asm.mov(Width::W64, copy, reg);
        self.values.release(Sym::Reg(reg));
        Ok(copy)
    }

    fn alu(&mut self, what: Alu, width: Width, left: Reg, right: Sym) {
        match right {
            Sym::Reg(reg) => self.asm.alu(what, width, left, reg),
            Sym::Const(bits) => match immediate(bits, width.into()) {
                Some(imm) => self.asm.alu_imm(what, width, left, imm),
                None => {
                    self.asm.mov_imm(SCRATCH, bits);
                    self.asm.alu(what, width, left, SCRATCH);
                }
            },
            Sym::Argument => unreachable!("only of locals"),
        }
        self.values.release(right);
    }

    fn unary(&mut self, unary: Unary) -> Result<(), Refused> {
        let value = match self.values.pop() {
            Sym::Const(bits) => Sym::Const(fold_unary(unary, bits)),
            value => {
                let is_narrow = matches!(value, Sym::Reg(reg) if self.values.facts.narrow & reg.bit() != 0);
                if unary == Unary::Wrap && is_narrow {
                    self.values.push(value);
                    return Ok(());
                }
                let reg = self.owned(value)?;
                if matches!(unary, Unary::Wrap) {
                    self.values.facts.narrow |= reg.bit();
                }
                match unary {
                    Unary::Clz(width) => self.asm.lzcnt(width, reg, reg),
                    Unary::Ctz(width) => self.asm.tzcnt(width, reg, reg),
                    Unary::Popcnt(width) => self.asm.popcnt(width, reg, reg),
                    Unary::Wrap => self.asm.mov(Width::W32, reg, reg),
                    Unary::Extend(size, width) => self.asm.movsx(size, width, reg, reg),
                }
                Sym::Reg(reg)
            }
        };
        self.values.push(value);
        Ok(())
    }

    fn binary(&mut self, binary: Binary, width: Width) -> Result<(), Refused> {
        let (mut right, mut left) = (self.values.pop(), self.values.pop());
        if let (Sym::Const(left), Sym::Const(right)) = (left, right)
            && let Some(value) = fold(binary, width, left, right)
        {
            self.values.push(Sym::Const(value));
            return Ok(());
        }
        let commutes =
            !matches!(binary, Binary::Alu(Alu::Sub)) && matches!(binary, Binary::Alu(_) | Binary::Mul);
        if commutes && matches!(left, Sym::Const(_)) {
            (left, right) = (right, left);
        }
        let reg = self.owned(left)?;
        self.values.push(Sym::Reg(reg));
        if width == Width::W32 {
            self.values.facts.narrow |= reg.bit();
        }
        let count = |bits: u64| (bits & u64::from(width.bits() - 1)) as u8;
        match (binary, right) {
            (Binary::Alu(what), right) => {
                self.alu(what, width, reg, right);
                return Ok(());
            }
            (Binary::Mul, Sym::Reg(right)) => self.asm.imul(width, reg, right),
            (Binary::Mul, Sym::Const(bits)) if bits.is_power_of_two() => {
                self.asm.shift_imm(Shift::Shl, width, reg, bits.trailing_zeros() as u8);
            }
            (Binary::Mul, Sym::Const(bits)) => match immediate(bits, width.into()) {
                Some(imm) => self.asm.imul_imm(width, reg, reg, imm),
                None => {
                    self.asm.mov_imm(SCRATCH, bits);
                    self.asm.imul(width, reg, SCRATCH);
                }
            },
            (Binary::Shl, Sym::Const(bits)) => self.asm.shift_imm(Shift::Shl, width, reg, count(bits)),
            (Binary::ShrU, Sym::Const(bits)) => self.asm.shift_imm(Shift::Shr, width, reg, count(bits)),
            (Binary::ShrS, Sym::Const(bits)) => self.asm.shift_imm(Shift::Sar, width, reg, count(bits)),
            (Binary::Rotl, Sym::Const(bits)) => self.asm.shift_imm(Shift::Rol, width, reg, count(bits)),
            (Binary::Rotr, Sym::Const(bits)) => self.asm.shift_imm(Shift::Ror, width, reg, count(bits)),
            (Binary::Shl, Sym::Reg(by)) => self.asm.shift_by(Shift::Shl, width, reg, reg, by),
            (Binary::ShrU, Sym::Reg(by)) => self.asm.shift_by(Shift::Shr, width, reg, reg, by),
            (Binary::ShrS, Sym::Reg(by)) => self.asm.shift_by(Shift::Sar, width, reg, reg, by),
            (Binary::DivU, Sym::Const(bits)) if bits.is_power_of_two() => {
                self.asm.shift_imm(Shift::Shr, width, reg, bits.trailing_zeros() as u8);
            }
            (Binary::RemU, Sym::Const(bits)) if bits.is_power_of_two() => {
                self.alu(Alu::And, width, reg, Sym::Const(bits - 1));
            }
            _ => return Err(Refused::Function),
        }
        self.values.release(right);
        Ok(())
    }

    fn compare(&mut self, mut cond: Cond, width: Width) -> Result<Test, Refused> {
        let (mut right, mut left) = (self.values.pop(), self.values.pop());
        if let (Sym::Const(left), Sym::Const(right)) = (left, right) {
            return Ok(Test::Known(holds(cond, width, left, right)));
        }
        if matches!(left, Sym::Const(_)) {
            (left, right, cond) = (right, left, cond.swapped());
        }
        let reg = self.in_register(left)?;
        if let Sym::Const(bits @ 0x1_0000_0000..) = right
            && self.values.facts.narrow & reg.bit() != 0
            && matches!(cond, Cond::Above | Cond::AboveEqual | Cond::Below | Cond::BelowEqual)
        {
            self.values.release(Sym::Reg(reg));
            return Ok(Test::Known(holds(cond, width, 0, bits)));
        }
        self.alu(Alu::Cmp, width, reg, right);
        self.values.release(Sym::Reg(reg));
        Ok(Test::Flags(cond))
    }

    /// Whether the top operand is not 0.
    fn test_top(&mut self, width: Width) -> Test {
        match self.values.pop() {
            Sym::Const(bits) => Test::Known(bits != 0),
            Sym::Reg(reg) => {
                self.values.release(Sym::Reg(reg));
                if self.values.facts.nonzero & reg.bit() != 0 {
                    return Test::Known(true);
                }
                self.asm.test(width, reg, reg);
                Test::Zero(Cond::NotEqual, reg)
            }
            Sym::Argument => unreachable!("only of locals"),
        }
    }

    /// Uses a condition in the operators that follow, or pushes it.
    fn use_test(&mut self, mut test: Test, rest: &[Op]) -> Result<usize, Refused> {
        let mut at = 0;
        while let Some(Op::Eqz(_)) = rest.get(at) {
            test = test.negated();
            at += 1;
        }
        match rest.get(at) {
            Some(op @ Op::If { .. }) => {
                self.branch(test, op)?;
                return Ok(at + 1);
            }
            Some(Op::Select) => {
                self.select(test)?;
                return Ok(at + 1);
            }
            _ => {}
        }
        let value = match test {
            Test::Known(known) => Sym::Const(known.into()),
            Test::Flags(cond) | Test::Zero(cond, _) => {
                let reg = self.values.alloc()?;
                self.asm.setcc(cond, reg);
                self.asm.movzx(Size::B1, reg, reg);
                self.values.facts.narrow |= reg.bit();
                Sym::Reg(reg)
            }
        };
        self.values.push(value);
        Ok(at)
    }

    fn select(&mut self, test: Test) -> Result<(), Refused> {
        let (right, left) = (self.values.pop(), self.values.pop());
        let (chosen, other) = match test {
            Test::Known(true) => (left, right),
            Test::Known(false) => (right, left),
            Test::Flags(cond) | Test::Zero(cond, _) => {
                // None of these moves changes the flags.
                let right = self.in_register(right)?;
                let left = self.owned(left)?;
                self.asm.cmov(cond.opposite(), Width::W64, left, right);
                (Sym::Reg(left), Sym::Reg(right))
            }
        };
        self.values.release(other);
        self.values.push(chosen);
        Ok(())
    }

    /// An `if` with this condition.
    fn branch(&mut self, test: Test, op: &Op) -> Result<(), Refused> {
        let Op::If { has_result, then, otherwise, live, set } = op else { unreachable!("no `if`") };
        match test {
            Test::Known(known) => self.list(if known { then } else { otherwise })?,
            test if **then == [Op::Call] => {
                self.call_if(test)?;
                self.list(otherwise)?;
            }
            test if **otherwise == [Op::Call] => {
                self.call_if(test.negated())?;
                self.list(then)?;
            }
            Test::Flags(cond) | Test::Zero(cond, _) => {
                self.arms(cond, *has_result, [then, otherwise], *set)?;
            }
        }
        self.values.release_locals_except(live | self.pinned);
        Ok(())
    }

    /// Calls the function if the condition, which is not known, holds.
    fn call_if(&mut self, test: Test) -> Result<(), Refused> {
        match test {
            Test::Known(_) => Err(Refused::Function),
            Test::Flags(cond) => self.call_instead(cond),
            Test::Zero(cond, reg) => {
                self.call_instead(cond)?;
                if cond == Cond::Equal {
                    self.values.facts.nonzero |= reg.bit();
                }
                Ok(())
            }
        }
    }

    fn arms(&mut self, cond: Cond, has_result: bool, arms: [&[Op]; 2], set: u64) -> Result<(), Refused> {
        let pinned = self.pinned;
        self.pin(set)?;
        let result = if has_result { Some(self.values.alloc()?) } else { None };
        let (other, end) = (self.asm.new_label(), self.asm.new_label());
        self.asm.jcc(cond.opposite(), other);
        let before = self.values.clone();
        let (mut facts, mut has_effects) = (before.facts, before.has_effects);
        // An arm does not take the last use of what is read after it, and sets only pinned locals.
        for (is_first, ops) in [true, false].into_iter().zip(arms) {
            self.values = before.clone();
            self.list(ops)?;
            if let Some(result) = result {
                match self.values.pop() {
                    Sym::Const(bits) => self.asm.mov_imm(result, bits),
                    Sym::Reg(reg) => self.asm.mov(Width::W64, result, reg),
                    Sym::Argument => unreachable!("only of locals"),
                }
            }
            has_effects |= self.values.has_effects;
            facts = facts.or(self.values.facts);
            if is_first {
                if !arms[1].is_empty() {
                    self.asm.jmp(end);
                }
                self.asm.bind(other);
            }
        }
        self.asm.bind(end);
        self.values = Values { facts, has_effects, ..before };
        self.pinned = pinned;
        if let Some(result) = result {
            self.values.push(Sym::Reg(result));
        }
        Ok(())
    }

    /// The memory operand of an access. Changes the scratch register, which the operand may use.
    fn place(&mut self, address: Sym, size: Size, offset: u32) -> Result<Mem, Refused> {
        let memory = self.inlined.memory;
        match address {
            Sym::Const(bits) => {
                let at = bits + u64::from(offset);
                self.found.constant = self.found.constant.max(at + u64::from(size.bytes()));
                self.asm.mov_imm(SCRATCH, (memory.base as u64).wrapping_add(at));
                Ok(Mem::base(SCRATCH, 0))
            }
            Sym::Reg(reg) => {
                self.found.offset = self.found.offset.max(offset + size.bytes());
                if self.values.facts.compared & reg.bit() == 0 {
                    self.compare_address(reg)?;
                    self.values.facts.compared |= reg.bit();
                }
                self.asm.mov_imm(SCRATCH, memory.base as u64);
                Ok(Mem::indexed(SCRATCH, reg, 0, offset as i32))
            }
            Sym::Argument => unreachable!("only of locals"),
        }
    }

    /// Calls the function if an access at this address may be out of bounds. Addresses below the
    /// length that the memory had at first are compared with a constant.
    fn compare_address(&mut self, address: Reg) -> Result<(), Refused> {
        self.call_may_follow()?;
        let (memory, offset) = (self.inlined.memory, self.known.offset);
        let first = memory.least.checked_sub(offset.into()).and_then(|first| i32::try_from(first).ok());
        let Some(first) = first else {
            compare_with_length(memory, address, offset, self.call, self.asm);
            return Ok(());
        };
        let (start, back) = (self.asm.new_label(), self.asm.new_label());
        self.asm.alu_imm(Alu::Cmp, Width::W64, address, first);
        self.asm.jcc(Cond::Above, start);
        self.asm.bind(back);
        self.longer.push(Longer { address, offset, start, back });
        Ok(())
    }

    fn load(&mut self, size: Size, sign: Option<Width>, offset: u32, rest: &[Op]) -> Result<usize, Refused> {
        let address = self.values.pop();
        // A number in memory that is changed: one instruction.
        if let [Op::Const(bits), Op::Binary(Binary::Alu(what), width), Op::Store { size: to, offset: at }, ..] =
            rest
            && (sign, *to, *at, Size::from(*width)) == (None, size, offset, size)
            && self.values.stack.last() == Some(&address)
            && let Some(imm) = immediate(*bits, size)
        {
            let place = self.place(address, size, offset)?;
            self.asm.alu_imm(*what, *width, place, imm);
            self.values.has_effects = true;
            self.values.release(address);
            let same = self.values.pop();
            self.values.release(same);
            return Ok(3);
        }
        let place = self.place(address, size, offset)?;
        self.values.release(address);
        let reg = self.values.alloc()?;
        match sign {
            Some(width) => self.asm.movsx(size, width, reg, place),
            None => self.asm.movzx(size, reg, place),
        }
        if sign.is_none() && size != Size::B8 {
            self.values.facts.narrow |= reg.bit();
        }
        self.values.push(Sym::Reg(reg));
        Ok(0)
    }

    fn store(&mut self, size: Size, offset: u32) -> Result<(), Refused> {
        let (value, address) = (self.values.pop(), self.values.pop());
        let value = self.immediate_or_register(value, size)?;
        let place = self.place(address, size, offset)?;
        self.values.release(address);
        self.write(size, place, value);
        Ok(())
    }

    /// The value in a form that a store can take.
    fn immediate_or_register(&mut self, value: Sym, size: Size) -> Result<Sym, Refused> {
        match value {
            Sym::Const(bits) if immediate(bits, size).is_some() => Ok(value),
            value => self.in_register(value).map(Sym::Reg),
        }
    }

    fn write(&mut self, size: Size, place: Mem, value: Sym) {
        match value {
            Sym::Reg(reg) => self.asm.mov_store(size, place, reg),
            Sym::Const(bits) => {
                let imm = immediate(bits, size).expect("it is in a register otherwise");
                self.asm.mov_store_imm(size, place, imm);
            }
            Sym::Argument => unreachable!("only of locals"),
        }
        self.values.release(value);
        self.values.has_effects = true;
    }

    fn global_get(&mut self, address: usize, width: Width, rest: &[Op]) -> Result<usize, Refused> {
        self.asm.mov_imm(SCRATCH, address as u64);
        let place = Mem::base(SCRATCH, 0);
        if let [Op::Const(bits), Op::Binary(Binary::Alu(what), of), Op::GlobalSet(to, _), ..] = rest
            && (*to, *of) == (address, width)
            && let Some(imm) = immediate(*bits, width.into())
        {
            self.asm.alu_imm(*what, width, place, imm);
            self.values.has_effects = true;
            return Ok(3);
        }
        let reg = self.values.alloc()?;
        self.asm.mov(width, reg, Rm::Mem(place));
        self.values.push(Sym::Reg(reg));
        Ok(0)
    }
}

/// The locals that need a register of their own at some `if`.
fn set_in_arms(ops: &[Op]) -> u64 {
    let of_op = |op: &Op| match op {
        Op::If { then, otherwise, set, .. } => set | set_in_arms(then) | set_in_arms(otherwise),
        _ => 0,
    };
    ops.iter().map(of_op).fold(0, |all, set| all | set)
}

/// The bits as an immediate operand of an instruction of this size, if they fit.
fn immediate(bits: u64, size: Size) -> Option<i32> {
    match size {
        Size::B8 => i32::try_from(bits as i64).ok(),
        _ => Some(bits as i32),
    }
}
