//! Integer operations.

use crate::asm::{Alu, Cond, Mem, Reg, RegClass, Rm, Shift, Size, Width};
use crate::compiler::abi::Ty;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::instruction::{Next, Taker};
use crate::compiler::state::{Flag, Local, Operand, Val, ZeroFlag, immediate, size_of};

impl FunctionCompiler<'_> {
    /// The constants, if both operands are constant.
    fn constants(left: &Operand, right: &Operand) -> Option<(u64, u64)> {
        match (left.val, right.val) {
            (Val::Const(left), Val::Const(right)) => Some((left, right)),
            _ => None,
        }
    }

    /// `add`, `sub`, `and`, `or`, `xor`.
    pub(crate) fn int_alu(&mut self, what: Alu, width: Width) {
        let ty = Ty::int(width);
        let mut right = self.pop();
        let mut left = self.pop();
        if let Some((a, b)) = Self::constants(&left, &right) {
            let bits = match what {
                Alu::Add => a.wrapping_add(b),
                Alu::Sub => a.wrapping_sub(b),
                Alu::And => a & b,
                Alu::Or => a | b,
                Alu::Xor => a ^ b,
                Alu::Adc | Alu::Sbb | Alu::Cmp => unreachable!("not an operator"),
            };
            return self.push_const(ty, if width == Width::W64 { bits } else { u64::from(bits as u32) });
        }
        let commutes = what != Alu::Sub;
        let better_swapped =
            matches!(left.val, Val::Const(_)) || self.owns(&left).is_none() && self.owns(&right).is_some();
        if commutes && better_swapped && !matches!(right.val, Val::Load(_) | Val::Scaled(..)) {
            std::mem::swap(&mut left, &mut right);
        }
        if commutes && matches!(left.val, Val::Const(_)) {
            std::mem::swap(&mut left, &mut right);
        }
        if what == Alu::And && self.and_as_flag(&left, &right, width) {
            return;
        }
        if what == Alu::And && self.and_as_extension(&left, &right, width) {
            return;
        }
        let target = self.target(RegClass::General);
        // In place: the target is the left operand, or the right one of a commutative operation.
        if let Some(target) = target {
            if commutes && self.current_reg(&right) == Some(target) && self.current_reg(&left) != Some(target)
            {
                std::mem::swap(&mut left, &mut right);
            }
            let free_to_write = !self.depends_on(&right, target) || self.current_reg(&left) == Some(target);
            if free_to_write && (self.current_reg(&left) == Some(target) || what != Alu::Add) {
                self.to_this(&left, target);
                self.alu_with(what, width, target, &right);
                return self.push(ty, Val::Reg(target));
            }
        }
        if what == Alu::Add && self.add_by_lea(&left, &right, width, target) {
            return;
        }
        let dst = match (target, self.owns(&left)) {
            (Some(target), _) if !self.depends_on(&right, target) => target,
            (_, Some(own)) => own,
            _ => self.alloc(RegClass::General),
        };
        self.to_this(&left, dst);
        self.alu_with(what, width, dst, &right);
        self.push(ty, Val::Reg(dst));
    }

    /// `dst = dst op right`
    fn alu_with(&mut self, what: Alu, width: Width, dst: Reg, right: &Operand) {
        match right.val {
            Val::Const(bits) => match immediate(Ty::int(width), bits) {
                Some(imm) => self.asm.alu_imm(what, width, dst, imm),
                None => {
                    let constant = self.constant(u128::from(bits), 8);
                    self.asm.alu(what, width, dst, constant);
                }
            },
            Val::Scaled(index, scale) => {
                self.asm.lea(width, dst, Mem::indexed(dst, index, scale, 0));
                return;
            }
            _ => {
                let right = self.to_rm(right);
                self.asm.alu(what, width, dst, right);
            }
        }
        self.zero_flag = Some(ZeroFlag { reg: dst, width, at: self.asm.offset() });
    }

    /// Sets the zero flag for the register; no code is needed directly after the operation that set
    /// its value.
    pub(crate) fn test_zero(&mut self, width: Width, reg: Reg) {
        if self.zero_flag != Some(ZeroFlag { reg, width, at: self.asm.offset() }) {
            self.asm.test(width, reg, reg);
        }
    }

    /// An addition into a register other than the operands', by LEA.
    fn add_by_lea(&mut self, left: &Operand, right: &Operand, width: Width, target: Option<Reg>) -> bool {
        if matches!(left.val, Val::Load(_) | Val::Frame(_)) {
            return false;
        }
        // A copy of the local needs a register, as well as the result.
        if let Val::Local(local) = left.val
            && !matches!(right.val, Val::Const(_))
            && let Local { reg: None, cache_reg: None, .. } = self.locals[local as usize]
            && self.registers.free(self.temps(RegClass::General)).count_ones() < 2
        {
            return false;
        }
        if let Val::Const(bits) = right.val
            && immediate(Ty::int(width), bits).is_none()
        {
            return false;
        }
        if target.is_none() && self.owns(left).is_some() {
            return false;
        }
        let base = match left.val {
            Val::Scaled(..) | Val::Const(_) => return false,
            _ => self.to_reg(left),
        };
        let mem = match right.val {
            Val::Const(bits) => Mem::base(base, bits as u32 as i32),
            Val::Scaled(index, scale) => Mem::indexed(base, index, scale, 0),
            _ => match self.to_rm(right) {
                Rm::Reg(right) => Mem::indexed(base, right, 0, 0),
                Rm::Mem(right) => {
                    let dst = target.filter(|target| !right.registers().any(|reg| reg == *target));
                    let dst = dst.unwrap_or_else(|| self.alloc(RegClass::General));
                    if dst != base {
                        self.asm.mov(width, dst, base);
                    }
                    self.asm.alu(Alu::Add, width, dst, right);
                    self.push(Ty::int(width), Val::Reg(dst));
                    return true;
                }
            },
        };
        let dst = target
            .or_else(|| self.owns(left))
            .or_else(|| self.owns(right))
            .unwrap_or_else(|| self.alloc(RegClass::General));
        self.asm.lea(width, dst, mem);
        self.push(Ty::int(width), Val::Reg(dst));
        true
    }

    /// `and` that keeps the lowest bytes. Not for a pending load: all of its bytes must be inside
    /// the memory.
    fn and_as_extension(&mut self, left: &Operand, right: &Operand, width: Width) -> bool {
        if matches!(left.val, Val::Load(_)) {
            return false;
        }
        let size = match right.val {
            Val::Const(0xff) => Size::B1,
            Val::Const(0xffff) => Size::B2,
            Val::Const(0xffff_ffff) if width == Width::W64 => Size::B4,
            _ => return false,
        };
        let src = self.to_rm(left);
        let dst = self.result_or(left);
        self.asm.movzx(size, dst, src);
        self.push(Ty::int(width), Val::Reg(dst));
        true
    }

    /// `and` whose result is used as a condition only.
    fn and_as_flag(&mut self, left: &Operand, right: &Operand, width: Width) -> bool {
        if width == Width::W64 || !self.instruction.next.takes_condition() {
            return false;
        }
        self.prepare_condition();
        match right.val {
            _ if self.instruction.next_is_settled => self.settle_and(left, right),
            Val::Const(bits) => {
                let left = self.to_rm(left);
                self.asm.test_imm(Width::W32, left, bits as i32);
            }
            _ => {
                let left = self.to_reg(left);
                let right = self.to_reg(right);
                self.asm.test(Width::W32, left, right);
            }
        }
        self.push(Ty::I32, Val::Flag(Flag::NonZero));
        true
    }

    pub(crate) fn int_mul(&mut self, width: Width) {
        let ty = Ty::int(width);
        let mut right = self.pop();
        let mut left = self.pop();
        if let Some((a, b)) = Self::constants(&left, &right) {
            let bits = a.wrapping_mul(b);
            return self.push_const(ty, if width == Width::W64 { bits } else { u64::from(bits as u32) });
        }
        if matches!(left.val, Val::Const(_)) || self.owns(&left).is_none() && self.owns(&right).is_some() {
            std::mem::swap(&mut left, &mut right);
        }
        if let Val::Const(bits) = right.val
            && let Some(imm) = immediate(ty, bits)
        {
            return self.mul_by(&left, imm, width);
        }
        let target = self.target(RegClass::General);
        if let Some(target) = target
            && self.current_reg(&right) == Some(target)
        {
            std::mem::swap(&mut left, &mut right);
        }
        let dst = match (target, self.owns(&left)) {
            (Some(target), _)
                if self.current_reg(&left) == Some(target) || !self.depends_on(&right, target) =>
            {
                target
            }
            (_, Some(own)) => own,
            _ => self.alloc(RegClass::General),
        };
        let right = match right.val {
            // It does not fit an immediate.
            Val::Const(bits) => Rm::Mem(self.constant(u128::from(bits), size_of(ty).bytes())),
            _ => self.to_rm(&right),
        };
        self.to_this(&left, dst);
        self.asm.imul(width, dst, right);
        self.push(ty, Val::Reg(dst));
    }

    fn mul_by(&mut self, left: &Operand, imm: i32, width: Width) {
        let ty = Ty::int(width);
        let src = self.to_rm(left);
        let dst = self.result_or(left);
        match (imm, src) {
            (3 | 5 | 9, Rm::Reg(src)) => {
                let scale = (imm - 1).trailing_zeros() as u8;
                self.asm.lea(width, dst, Mem::indexed(src, src, scale, 0));
            }
            _ if imm > 0 && imm.count_ones() == 1 => {
                self.asm.mov(width, dst, src);
                self.asm.shift_imm(Shift::Shl, width, dst, imm.trailing_zeros() as u8);
            }
            _ => self.asm.imul_imm(width, dst, src, imm),
        }
        self.push(ty, Val::Reg(dst));
    }

    pub(crate) fn int_shift(&mut self, what: Shift, width: Width) {
        let ty = Ty::int(width);
        let right = self.pop();
        let left = self.pop();
        let bits = if width == Width::W64 { 63 } else { 31 };
        if let Val::Const(count) = right.val {
            let count = count as u8 & bits;
            if let Val::Const(value) = left.val {
                return self.push_const(ty, shifted(what, width, value, u32::from(count)));
            }
            if what == Shift::Shl
                && (1..=3).contains(&count)
                && self.instruction.next == (Next::Add { width })
            {
                let index = self.to_reg(&left);
                if self.owns(&left).is_some() || !matches!(left.val, Val::Local(_)) {
                    self.registers
                        .hold(index, crate::compiler::register_file::Holder::Operand(self.stack.height()));
                }
                return self.push(ty, Val::Scaled(index, count));
            }
            let target = self.target(RegClass::General);
            let moves = target.is_some() && self.current_reg(&left) != target;
            if matches!(what, Shift::Rol | Shift::Ror) && (moves || self.owns(&left).is_none()) {
                let count = if what == Shift::Rol { (bits + 1 - count) & bits } else { count };
                let src = self.to_rm(&left);
                let dst = target.unwrap_or_else(|| self.alloc(RegClass::General));
                self.asm.rorx(width, dst, src, count);
                return self.push(ty, Val::Reg(dst));
            }
            let dst = target.or_else(|| self.owns(&left)).unwrap_or_else(|| self.alloc(RegClass::General));
            if what == Shift::Shl
                && (1..=3).contains(&count)
                && let Some(src) = self.current_reg(&left).filter(|src| *src != dst)
            {
                // One instruction instead of two.
                let mem = if count == 1 { Mem::indexed(src, src, 0, 0) } else { Mem::scaled(src, count, 0) };
                self.asm.lea(width, dst, mem);
                return self.push(ty, Val::Reg(dst));
            }
            self.to_this(&left, dst);
            if count != 0 {
                self.asm.shift_imm(what, width, dst, count);
            }
            return self.push(ty, Val::Reg(dst));
        }
        if matches!(what, Shift::Rol | Shift::Ror) {
            return self.rotate_by(what, width, &left, &right);
        }
        let count = self.to_reg(&right);
        let src = self.to_rm(&left);
        let dst = self.result_or(&left);
        self.asm.shift_by(what, width, dst, src, count);
        self.push(ty, Val::Reg(dst));
    }

    /// The cache register of the local that the next instruction sets, or the operand's own
    /// register, or a new one.
    pub(crate) fn result_or(&mut self, operand: &Operand) -> Reg {
        let class = operand.ty.class();
        self.target(class).or_else(|| self.owns(operand)).unwrap_or_else(|| self.alloc(class))
    }

    /// Rotations take their count in `cl` only.
    fn rotate_by(&mut self, what: Shift, width: Width, left: &Operand, right: &Operand) {
        let ty = Ty::int(width);
        let in_cl = self.current_reg(right) == Some(Reg::RCX);
        let mut left = *left;
        if !in_cl {
            if self.depends_on(&left, Reg::RCX) {
                let moved = self.alloc(RegClass::General);
                self.to_this(&left, moved);
                left.val = Val::Reg(moved);
            }
            self.take(Reg::RCX);
            self.to_this(right, Reg::RCX);
        }
        let dst = match self.owns(&left) {
            Some(own) if own != Reg::RCX => own,
            _ => self.alloc(RegClass::General),
        };
        self.to_this(&left, dst);
        self.asm.shift_cl(what, width, dst);
        self.push(ty, Val::Reg(dst));
    }

    /// `clz`, `ctz`, `popcnt`.
    pub(crate) fn int_count(
        &mut self,
        width: Width,
        count: impl FnOnce(&mut crate::asm::Assembler<'_>, Reg, Rm),
    ) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let dst = self.result(RegClass::General);
        count(&mut self.asm, dst, src);
        self.push(Ty::int(width), Val::Reg(dst));
    }

    // Comparisons.

    /// Before a comparison: stores what the branch that may follow would store after it. The
    /// processor fuses the two only if nothing is in between.
    pub(crate) fn prepare_condition(&mut self) {
        let Next::Condition(taker) = self.instruction.next else { return };
        let stores = match taker {
            Taker::BrIf(depth) => !self.leaves_region(depth),
            Taker::If | Taker::Eqz => true,
            Taker::Select => false,
        };
        if stores {
            self.store_copies();
        }
    }

    pub(crate) fn int_compare(&mut self, cond: Cond, width: Width) {
        self.prepare_condition();
        let mut right = self.pop();
        let mut left = self.pop();
        let mut cond = cond;
        if matches!(left.val, Val::Const(_)) && !matches!(right.val, Val::Const(_)) {
            std::mem::swap(&mut left, &mut right);
            cond = cond.swapped();
        }
        match right.val {
            Val::Const(bits) if immediate(Ty::int(width), bits).is_some() => {
                let imm = immediate(Ty::int(width), bits).expect("just seen");
                match self.to_rm(&left) {
                    Rm::Reg(reg) if imm == 0 && matches!(cond, Cond::Equal | Cond::NotEqual) => {
                        self.test_zero(width, reg);
                    }
                    Rm::Reg(reg) if imm == 0 => self.asm.test(width, reg, reg),
                    left => self.asm.alu_imm(Alu::Cmp, width, left, imm),
                }
            }
            _ => {
                let left = self.to_reg(&left);
                let right = self.to_rm(&right);
                self.asm.alu(Alu::Cmp, width, left, right);
            }
        }
        self.push_flag(Flag::Int(cond));
    }

    pub(crate) fn int_eqz(&mut self, width: Width) {
        let operand = self.pop();
        match operand.val {
            Val::Flag(flag) => return self.push_flag(flag.opposite()),
            Val::Const(bits) => return self.push_const(Ty::I32, u64::from(bits == 0)),
            _ => {}
        }
        self.prepare_condition();
        match self.to_rm(&operand) {
            Rm::Reg(reg) => self.test_zero(width, reg),
            place => self.asm.alu_imm(Alu::Cmp, width, place, 0),
        }
        self.push_flag(Flag::Int(Cond::Equal));
    }

    /// Pushes a condition: it stays in the flags if the next instruction uses it.
    pub(crate) fn push_flag(&mut self, flag: Flag) {
        let operand = Operand { ty: Ty::I32, val: Val::Flag(flag) };
        if self.instruction.next.takes_condition() {
            return self.push(Ty::I32, operand.val);
        }
        // The operands of the comparison are no longer needed, nor are their registers.
        self.registers.unpin_all();
        let dst = self.result(RegClass::General);
        self.to_this(&operand, dst);
        self.push(Ty::I32, Val::Reg(dst));
    }

    // Conversions between integers.

    pub(crate) fn wrap(&mut self) {
        let operand = self.pop();
        if let Val::Const(bits) = operand.val {
            return self.push_const(Ty::I32, u64::from(bits as u32));
        }
        let src = self.to_rm(&operand);
        let dst = self.result_or(&operand);
        self.asm.mov(Width::W32, dst, src);
        self.push(Ty::I32, Val::Reg(dst));
    }

    /// Sign extension from `size` to 32 or 64 bits.
    pub(crate) fn extend(&mut self, size: Size, width: Width) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let dst = self.result_or(&operand);
        self.asm.movsx(size, width, dst, src);
        self.push(Ty::int(width), Val::Reg(dst));
    }

    /// An `i32` in a register is already zero-extended.
    pub(crate) fn extend_unsigned(&mut self) {
        let operand = self.pop();
        if let Val::Const(bits) = operand.val {
            return self.push_const(Ty::I64, bits);
        }
        if let Some(own) = self.owns(&operand) {
            return self.push(Ty::I64, Val::Reg(own));
        }
        let src = self.to_rm(&operand);
        let dst = self.result(RegClass::General);
        if src != Rm::Reg(dst) {
            self.asm.mov(Width::W32, dst, src);
        }
        self.push(Ty::I64, Val::Reg(dst));
    }

    // Selection.

    pub(crate) fn select(&mut self) {
        let condition = self.pop();
        let mut on_false = self.pop();
        let on_true = self.pop();
        let ty = on_true.ty;
        if let Val::Const(bits) = condition.val {
            self.count_known(u32::from(bits as u32 != 0));
            let chosen = if bits as u32 != 0 { on_true } else { on_false };
            let dst = self.to_own_reg(&chosen);
            return self.push(ty, Val::Reg(dst));
        }
        if ty.is_sse() {
            return self.select_by_branch(&condition, &on_true, &on_false);
        }
        // Everything that may change the flags or move operands comes before the comparison; moves
        // preserve the flags.
        if let Val::Flag(Flag::FloatEqual | Flag::FloatNotEqual) = condition.val {
            return self.select_by_branch(&condition, &on_true, &on_false);
        }
        let target = self.target(RegClass::General);
        let blocked = |this: &Self, reg| this.depends_on(&on_false, reg) || this.depends_on(&condition, reg);
        let dst = match (target, self.owns(&on_true)) {
            (Some(target), _) if self.current_reg(&on_true) == Some(target) || !blocked(self, target) => {
                target
            }
            (_, Some(own)) => own,
            _ => self.alloc(RegClass::General),
        };
        if matches!(on_false.val, Val::Const(_)) {
            let reg = self.to_reg(&on_false);
            on_false.val = Val::Reg(reg);
        }
        let cond = match condition.val {
            Val::Flag(Flag::Int(cond)) => cond,
            Val::Flag(Flag::NonZero) => Cond::NotEqual,
            _ => {
                let reg = self.to_reg(&condition);
                self.asm.test(Width::W32, reg, reg);
                Cond::NotEqual
            }
        };
        self.count_condition(Flag::Int(cond));
        let other = self.to_rm(&on_false);
        self.to_this(&on_true, dst);
        self.asm.cmov(cond.opposite(), ty.width(), dst, other);
        self.push(ty, Val::Reg(dst));
    }

    /// Selection by a jump over a move.
    fn select_by_branch(&mut self, condition: &Operand, on_true: &Operand, on_false: &Operand) {
        let ty = on_true.ty;
        let class = ty.class();
        let dst = match self.owns(on_true) {
            Some(own) => own,
            None => self.alloc(class),
        };
        let flag = match condition.val {
            Val::Flag(flag) => flag,
            _ => {
                let reg = self.to_reg(condition);
                self.asm.test(Width::W32, reg, reg);
                Flag::Int(Cond::NotEqual)
            }
        };
        self.count_condition(flag);
        // Constants and memory operands are loaded without changing the flags.
        let src = self.place(on_true);
        self.move_value(ty, crate::compiler::state::Place::Reg(dst), src);
        let done = self.asm.new_label();
        self.jump_if(flag, done);
        let src = self.place(on_false);
        self.move_value(ty, crate::compiler::state::Place::Reg(dst), src);
        self.asm.bind(done);
        self.push(ty, Val::Reg(dst));
    }
}

fn shifted(what: Shift, width: Width, value: u64, count: u32) -> u64 {
    if width == Width::W64 {
        match what {
            Shift::Rol => value.rotate_left(count),
            Shift::Ror => value.rotate_right(count),
            Shift::Shl => value << count,
            Shift::Shr => value >> count,
            Shift::Sar => (value as i64 >> count) as u64,
        }
    } else {
        let value = value as u32;
        u64::from(match what {
            Shift::Rol => value.rotate_left(count),
            Shift::Ror => value.rotate_right(count),
            Shift::Shl => value << count,
            Shift::Shr => value >> count,
            Shift::Sar => (value as i32 >> count) as u32,
        })
    }
}
