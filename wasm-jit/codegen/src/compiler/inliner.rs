//! The code of inlined functions ([`inlined`](super::inlined)) in a stub.
//!
//! One pass over the operators with an abstract stack, whose values are constants or in registers.
//! Several values may share a register; one that is changed is copied before, if it is shared.
//! Arguments are loaded when they are first used. A register is free again when its value has been
//! read for the last time. A local that an arm of an `if` sets, and that is read after the `if`, has
//! a register of its own in both arms; nothing else outlives an arm except its result.
//!
//! A number in memory or a global that is increased by a constant takes one instruction, and a
//! comparison is used where its flags are.

use super::abi::{SCRATCH, Ty};
use super::cached_locals::bits;
use super::inlined::{Binary, Inlined, Op, Unary};
use super::stub_list::{Saved, integer};
use super::values::{Source, Value};
use crate::asm::{Alu, Assembler, Cond, Label, Mem, Reg, Rm, Shift, Size, Width};

/// Why no code is generated.
pub(super) enum Refused {
    /// The code needs more registers.
    Registers,
    /// The function is not suitable.
    Function,
}

/// The end of the accesses, as far as it is known: compared at the start, and before the first
/// access by an address that is not constant.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extents {
    constant: u64,
    offset: u32,
}

/// Whether the code can have such a value.
pub(super) fn is_integer(ty: Ty) -> bool {
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

/// Where values are, at one point of the code.
#[derive(Clone)]
pub(super) struct Values {
    stack: Vec<Sym>,
    locals: Vec<Sym>,
    /// Registers that hold nothing.
    free: u32,
    /// How many values are in each register.
    uses: [u8; 16],
    /// The registers that were compared with the memory's length.
    compared: u32,
    /// Whether memory or a global was changed.
    has_effects: bool,
}

impl Values {
    pub(super) fn new(pool: u32) -> Self {
        Self {
            stack: Vec::new(),
            locals: Vec::new(),
            free: pool,
            uses: [0; 16],
            compared: 0,
            has_effects: false,
        }
    }

    fn alloc(&mut self) -> Result<Reg, Refused> {
        let reg = bits(self.free).next().ok_or(Refused::Registers)?;
        self.free &= !reg.bit();
        self.compared &= !reg.bit();
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

    /// Keeps the registers of the stack and of these locals as they are, until the state is
    /// replaced.
    fn keep(&mut self, locals: u64) {
        let of_locals = self.locals.iter().enumerate().filter(|(local, _)| locals >> local & 1 != 0);
        for value in self.stack.iter().chain(of_locals.map(|(_, value)| value)) {
            if let Sym::Reg(reg) = value {
                self.uses[reg.index()] += 1;
            }
        }
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
}

/// The code of one function in a stub.
pub(super) struct Inliner<'a, 'c> {
    pub(super) asm: &'a mut Assembler<'c>,
    pub(super) inlined: &'a Inlined,
    pub(super) parameters: &'a [Ty],
    pub(super) arguments: &'a [Value],
    pub(super) saved: &'a Saved,
    pub(super) site: usize,
    /// Where the function is called.
    pub(super) call: Label,
    pub(super) known: Extents,
    pub(super) found: Extents,
    pub(super) values: Values,
    /// The locals that have a register of their own, because an arm sets them.
    pub(super) pinned: u64,
}

impl Inliner<'_, '_> {
    /// The code of the function. It continues after its end, or at the call.
    pub(super) fn function(&mut self) -> Result<(), Refused> {
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
        if self.values.has_effects {
            return Err(Refused::Function);
        }
        self.asm.jcc(cond, self.call);
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
                let test = self.test_top();
                self.select(test)?;
            }
            Op::Unary(unary) => self.unary(unary)?,
            Op::Binary(binary, width) => self.binary(binary, width)?,
            Op::Compare(cond, width) => {
                let test = self.compare(cond, width)?;
                return self.use_test(test, rest);
            }
            Op::Eqz(width) => {
                let test = match self.values.pop() {
                    Sym::Const(bits) => Test::Known(bits == 0),
                    value => {
                        let reg = self.in_register(value)?;
                        self.asm.test(width, reg, reg);
                        self.values.release(Sym::Reg(reg));
                        Test::Flags(Cond::Equal)
                    }
                };
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
                let test = self.test_top();
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
                self.values.compared &= !own.bit();
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
            self.values.compared &= !reg.bit();
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
                let reg = self.owned(value)?;
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
        let count = |bits: u64| (bits & u64::from(width.bits() - 1)) as u8;
        match (binary, right) {
            (Binary::Alu(what), right) => {
                self.alu(what, width, reg, right);
                return Ok(());
            }
            (Binary::Mul, Sym::Reg(right)) => self.asm.imul(width, reg, right),
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
        self.alu(Alu::Cmp, width, reg, right);
        self.values.release(Sym::Reg(reg));
        Ok(Test::Flags(cond))
    }

    /// Whether the top operand is not 0.
    fn test_top(&mut self) -> Test {
        match self.values.pop() {
            Sym::Const(bits) => Test::Known(bits != 0),
            Sym::Reg(reg) => {
                self.asm.test(Width::W32, reg, reg);
                self.values.release(Sym::Reg(reg));
                Test::Flags(Cond::NotEqual)
            }
            Sym::Argument => unreachable!("only of locals"),
        }
    }

    /// Uses a condition in the operators that follow, or pushes it.
    fn use_test(&mut self, mut test: Test, rest: &[Op]) -> Result<usize, Refused> {
        let mut at = 0;
        while let Some(Op::Eqz(_)) = rest.get(at) {
            test = match test {
                Test::Known(known) => Test::Known(!known),
                Test::Flags(cond) => Test::Flags(cond.opposite()),
            };
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
            Test::Flags(cond) => {
                let reg = self.values.alloc()?;
                self.asm.setcc(cond, reg);
                self.asm.movzx(Size::B1, reg, reg);
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
            Test::Flags(cond) => {
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
            Test::Flags(cond) if **then == [Op::Call] => {
                self.call_instead(cond)?;
                self.list(otherwise)?;
            }
            Test::Flags(cond) if **otherwise == [Op::Call] => {
                self.call_instead(cond.opposite())?;
                self.list(then)?;
            }
            Test::Flags(cond) => self.arms(cond, *has_result, [then, otherwise], *live, *set)?,
        }
        self.values.release_locals_except(live | self.pinned);
        Ok(())
    }

    fn arms(
        &mut self,
        cond: Cond,
        has_result: bool,
        arms: [&[Op]; 2],
        live: u64,
        set: u64,
    ) -> Result<(), Refused> {
        let pinned = self.pinned;
        self.pin(set)?;
        let result = if has_result { Some(self.values.alloc()?) } else { None };
        let (other, end) = (self.asm.new_label(), self.asm.new_label());
        self.asm.jcc(cond.opposite(), other);
        let before = self.values.clone();
        let (mut compared, mut has_effects) = (before.compared, before.has_effects);
        for (is_first, ops) in [true, false].into_iter().zip(arms) {
            self.values = before.clone();
            self.values.keep(live);
            self.list(ops)?;
            if let Some(result) = result {
                match self.values.pop() {
                    Sym::Const(bits) => self.asm.mov_imm(result, bits),
                    Sym::Reg(reg) => self.asm.mov(Width::W64, result, reg),
                    Sym::Argument => unreachable!("only of locals"),
                }
            }
            has_effects |= self.values.has_effects;
            compared &= self.values.compared;
            if is_first {
                if !arms[1].is_empty() {
                    self.asm.jmp(end);
                }
                self.asm.bind(other);
            }
        }
        self.asm.bind(end);
        self.values = Values { compared, has_effects, ..before };
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
                if self.values.compared & reg.bit() == 0 {
                    self.asm.mov_imm(SCRATCH, memory.length as u64);
                    self.asm.mov(Width::W64, SCRATCH, Mem::base(SCRATCH, 0));
                    self.asm.alu_imm(Alu::Sub, Width::W64, SCRATCH, self.known.offset as i32);
                    if u64::from(self.known.offset) > memory.least {
                        self.call_instead(Cond::Below)?;
                    }
                    self.asm.alu(Alu::Cmp, Width::W64, reg, SCRATCH);
                    self.call_instead(Cond::Above)?;
                    self.values.compared |= reg.bit();
                }
                self.asm.mov_imm(SCRATCH, memory.base as u64);
                Ok(Mem::indexed(SCRATCH, reg, 0, offset as i32))
            }
            Sym::Argument => unreachable!("only of locals"),
        }
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

/// The value of an operator, if it has one without a trap.
fn fold(binary: Binary, width: Width, left: u64, right: u64) -> Option<u64> {
    let count = (right & u64::from(width.bits() - 1)) as u32;
    let is_32 = width == Width::W32;
    let value = match binary {
        Binary::Alu(Alu::Add) => left.wrapping_add(right),
        Binary::Alu(Alu::Sub) => left.wrapping_sub(right),
        Binary::Alu(Alu::And) => left & right,
        Binary::Alu(Alu::Or) => left | right,
        Binary::Alu(Alu::Xor) => left ^ right,
        Binary::Alu(Alu::Adc | Alu::Sbb | Alu::Cmp) => return None,
        Binary::Mul => left.wrapping_mul(right),
        Binary::Shl => left << count,
        Binary::ShrU => left >> count,
        Binary::ShrS if is_32 => (left as i32 >> count) as u64,
        Binary::ShrS => (left as i64 >> count) as u64,
        Binary::Rotl if is_32 => u64::from((left as u32).rotate_left(count)),
        Binary::Rotl => left.rotate_left(count),
        Binary::Rotr if is_32 => u64::from((left as u32).rotate_right(count)),
        Binary::Rotr => left.rotate_right(count),
        Binary::DivU => left.checked_div(right)?,
        Binary::RemU => left.checked_rem(right)?,
    };
    Some(if is_32 { u64::from(value as u32) } else { value })
}

fn fold_unary(unary: Unary, bits: u64) -> u64 {
    let narrow = |value: u64, width| if width == Width::W32 { u64::from(value as u32) } else { value };
    match unary {
        Unary::Clz(Width::W32) => (bits as u32).leading_zeros().into(),
        Unary::Clz(Width::W64) => bits.leading_zeros().into(),
        Unary::Ctz(Width::W32) => (bits as u32).trailing_zeros().into(),
        Unary::Ctz(Width::W64) => bits.trailing_zeros().into(),
        Unary::Popcnt(width) => narrow(bits, width).count_ones().into(),
        Unary::Wrap => u64::from(bits as u32),
        Unary::Extend(Size::B1, width) => narrow(bits as i8 as u64, width),
        Unary::Extend(Size::B2, width) => narrow(bits as i16 as u64, width),
        Unary::Extend(_, width) => narrow(bits as i32 as u64, width),
    }
}

/// Whether a comparison holds.
fn holds(cond: Cond, width: Width, left: u64, right: u64) -> bool {
    let signed = |bits: u64| if width == Width::W32 { i64::from(bits as i32) } else { bits as i64 };
    let ([low, high], [first, second]) = ([left, right], [signed(left), signed(right)]);
    match cond {
        Cond::Equal => low == high,
        Cond::NotEqual => low != high,
        Cond::Below => low < high,
        Cond::BelowEqual => low <= high,
        Cond::Above => low > high,
        Cond::AboveEqual => low >= high,
        Cond::Less => first < second,
        Cond::LessEqual => first <= second,
        Cond::Greater => first > second,
        Cond::GreaterEqual => first >= second,
        _ => unreachable!("no comparison of integers"),
    }
}
