//! Division and remainder.
//!
//! DIV and IDIV take `rdx:rax` and fault where Wasm traps: on a divisor of zero, and on the one
//! quotient that overflows. Only the remainder by -1 must not fault, and is checked for. Division
//! by a constant uses a shift for a power of two, otherwise a multiplication by the reciprocal
//! (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994;
//! Hacker's Delight, chapter 10).

use crate::asm::{Alu, Cond, Mem, Reg, RegClass, Rm, Shift, Width};
use crate::compiler::abi::{SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Operand, Place, Val};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    DivS,
    DivU,
    RemS,
    RemU,
}

impl Division {
    fn signed(self) -> bool {
        matches!(self, Self::DivS | Self::RemS)
    }

    fn remainder(self) -> bool {
        matches!(self, Self::RemS | Self::RemU)
    }
}

impl FunctionCompiler<'_> {
    pub(crate) fn int_division(&mut self, what: Division, width: Width) {
        let right = self.pop();
        let left = self.pop();
        if let Val::Const(divisor) = right.val
            && self.division_by(what, width, &left, divisor)
        {
            return;
        }
        self.division(what, width, &left, &right);
    }

    fn division(&mut self, what: Division, width: Width, left: &Operand, right: &Operand) {
        let ty = Ty::int(width);
        // The divisor must be in neither `rax` nor `rdx`; a remainder by -1 needs it in a register.
        let in_the_way = |reg: Reg| matches!(reg, Reg::RAX | Reg::RDX);
        let divisor = match right.val {
            Val::Const(bits) => {
                self.asm.mov_imm(SCRATCH, bits);
                Rm::Reg(SCRATCH)
            }
            _ => match self.to_rm(right) {
                Rm::Reg(reg) if !in_the_way(reg) => Rm::Reg(reg),
                Rm::Mem(mem) if what != Division::RemS => Rm::Mem(mem),
                place => {
                    self.asm.mov(width, SCRATCH, place);
                    Rm::Reg(SCRATCH)
                }
            },
        };
        // The dividend first: it may be in `rdx`.
        let src = self.place(left);
        if src != Place::Reg(Reg::RAX) {
            self.take(Reg::RAX);
            self.move_value(ty, Place::Reg(Reg::RAX), src);
        } else {
            self.drop_copy(Reg::RAX);
        }
        self.take(Reg::RDX);
        let done = self.asm.new_label();
        if what == Division::RemS
            && let Rm::Reg(reg) = divisor
        {
            // Anything modulo -1 is 0; the quotient could overflow.
            let divide = self.asm.new_label();
            self.asm.alu_imm(Alu::Cmp, width, reg, -1);
            self.asm.jcc(Cond::NotEqual, divide);
            self.asm.mov_imm(Reg::RDX, 0);
            self.asm.jmp(done);
            self.asm.bind(divide);
        }
        if what.signed() {
            self.asm.sign_to_rdx(width);
            self.asm.idiv(width, divisor);
        } else {
            self.asm.zero(Reg::RDX);
            self.asm.div(width, divisor);
        }
        self.asm.bind(done);
        let result = if what.remainder() { Reg::RDX } else { Reg::RAX };
        self.push(ty, Val::Reg(result));
    }

    /// Division by a constant; returns false if it must trap or is not worth special code.
    fn division_by(&mut self, what: Division, width: Width, left: &Operand, divisor: u64) -> bool {
        let ty = Ty::int(width);
        if what.signed() {
            let divisor = if width == Width::W64 { divisor as i64 } else { i64::from(divisor as u32 as i32) };
            return self.signed_by(what, width, left, divisor);
        }
        if divisor == 0 {
            return false;
        }
        if divisor.is_power_of_two() {
            let dst = self.result_or(left);
            self.to_this(left, dst);
            let shift = divisor.trailing_zeros() as u8;
            if what == Division::DivU {
                if shift > 0 {
                    self.asm.shift_imm(Shift::Shr, width, dst, shift);
                }
            } else {
                self.and_low_bits(width, dst, divisor - 1);
            }
            self.push(ty, Val::Reg(dst));
            return true;
        }
        let src = self.to_own_or_local(left);
        let quotient = self.unsigned_quotient(width, src, divisor);
        self.finish_division(what, width, src, quotient, divisor);
        true
    }

    fn and_low_bits(&mut self, width: Width, dst: Reg, mask: u64) {
        if mask == u64::from(u32::MAX) {
            self.asm.mov(Width::W32, dst, dst);
        } else if let Ok(imm) = i32::try_from(mask) {
            self.asm.alu_imm(Alu::And, width, dst, imm);
        } else {
            self.asm.mov_imm(SCRATCH, mask);
            self.asm.alu(Alu::And, width, dst, SCRATCH);
        }
    }

    /// The operand in a register other than `rax` and `rdx` that is preserved until the end of the
    /// instruction.
    fn to_own_or_local(&mut self, operand: &Operand) -> Reg {
        let reg = self.to_reg(operand);
        if !matches!(reg, Reg::RAX | Reg::RDX) {
            return reg;
        }
        let other = self.alloc_neither_rax_nor_rdx();
        self.asm.mov(operand.ty.width(), other, reg);
        other
    }

    /// Allocates a register other than `rax` and `rdx`.
    fn alloc_neither_rax_nor_rdx(&mut self) -> Reg {
        self.alloc_of(self.temps(RegClass::General) & !Reg::RAX.bit() & !Reg::RDX.bit())
    }

    /// `src / divisor`, in `rax` or `rdx`, which no operand uses afterwards.
    fn unsigned_quotient(&mut self, width: Width, src: Reg, divisor: u64) -> Reg {
        self.take(Reg::RAX);
        let (multiplier, shift, add) = unsigned_magic(divisor, if width == Width::W64 { 64 } else { 32 });
        if width == Width::W32 {
            // The product fits into 64 bits, or is one bit longer.
            self.asm.mov_imm(Reg::RAX, multiplier);
            self.asm.imul(Width::W64, Reg::RAX, src);
            if !add {
                self.asm.shift_imm(Shift::Shr, Width::W64, Reg::RAX, 32 + shift);
                return Reg::RAX;
            }
            self.asm.shift_imm(Shift::Shr, Width::W64, Reg::RAX, 32);
            self.asm.mov(Width::W32, SCRATCH, src);
            self.asm.alu(Alu::Sub, Width::W32, SCRATCH, Reg::RAX);
            self.asm.shift_imm(Shift::Shr, Width::W32, SCRATCH, 1);
            self.asm.alu(Alu::Add, Width::W32, Reg::RAX, SCRATCH);
            self.asm.shift_imm(Shift::Shr, Width::W32, Reg::RAX, shift - 1);
            return Reg::RAX;
        }
        self.take(Reg::RDX);
        self.asm.mov_imm(Reg::RAX, multiplier);
        self.asm.mul(Width::W64, src);
        if add {
            self.asm.mov(Width::W64, SCRATCH, src);
            self.asm.alu(Alu::Sub, Width::W64, SCRATCH, Reg::RDX);
            self.asm.shift_imm(Shift::Shr, Width::W64, SCRATCH, 1);
            self.asm.alu(Alu::Add, Width::W64, Reg::RDX, SCRATCH);
            self.asm.shift_imm(Shift::Shr, Width::W64, Reg::RDX, shift - 1);
        } else if shift > 0 {
            self.asm.shift_imm(Shift::Shr, Width::W64, Reg::RDX, shift);
        }
        Reg::RDX
    }

    /// Computes the result from the quotient.
    fn finish_division(&mut self, what: Division, width: Width, src: Reg, quotient: Reg, divisor: u64) {
        let ty = Ty::int(width);
        if !what.remainder() {
            return self.push(ty, Val::Reg(quotient));
        }
        let imm = if width == Width::W64 {
            i32::try_from(divisor as i64).ok()
        } else {
            Some(divisor as u32 as i32)
        };
        match imm {
            Some(imm) => self.asm.imul_imm(width, quotient, quotient, imm),
            None => {
                self.asm.mov_imm(SCRATCH, divisor);
                self.asm.imul(width, quotient, SCRATCH);
            }
        }
        self.asm.neg(width, quotient);
        self.asm.alu(Alu::Add, width, quotient, src);
        self.push(ty, Val::Reg(quotient));
    }

    fn signed_by(&mut self, what: Division, width: Width, left: &Operand, divisor: i64) -> bool {
        let bits = width.bits();
        let ty = Ty::int(width);
        let magnitude = divisor.unsigned_abs();
        if magnitude <= 1 || divisor < 0 {
            // 0 and -1 may trap; 1 and other negative divisors are rare.
            return false;
        }
        let src = self.to_own_or_local(left);
        if magnitude.is_power_of_two() {
            // Negative numbers round towards zero: divisor - 1 is added before the shift.
            let shift = magnitude.trailing_zeros() as u8;
            self.take(Reg::RAX);
            self.asm.mov(width, Reg::RAX, src);
            self.asm.shift_imm(Shift::Sar, width, Reg::RAX, bits as u8 - 1);
            self.asm.shift_imm(Shift::Shr, width, Reg::RAX, bits as u8 - shift);
            self.asm.alu(Alu::Add, width, Reg::RAX, src);
            if !what.remainder() {
                self.asm.shift_imm(Shift::Sar, width, Reg::RAX, shift);
                self.push(ty, Val::Reg(Reg::RAX));
                return true;
            }
            // The bits that the shift would lose.
            self.asm.shift_imm(Shift::Shr, width, Reg::RAX, shift);
            self.asm.shift_imm(Shift::Shl, width, Reg::RAX, shift);
            self.asm.neg(width, Reg::RAX);
            self.asm.alu(Alu::Add, width, Reg::RAX, src);
            self.push(ty, Val::Reg(Reg::RAX));
            return true;
        }
        let (multiplier, shift) = signed_magic(magnitude, bits);
        self.take(Reg::RAX);
        let quotient = if width == Width::W64 {
            self.take(Reg::RDX);
            self.asm.mov_imm(Reg::RAX, multiplier as u64);
            self.asm.imul_wide(Width::W64, src);
            if multiplier < 0 {
                self.asm.alu(Alu::Add, Width::W64, Reg::RDX, src);
            }
            if shift > 0 {
                self.asm.shift_imm(Shift::Sar, Width::W64, Reg::RDX, shift);
            }
            Reg::RDX
        } else {
            self.asm.movsx(crate::asm::Size::B4, Width::W64, Reg::RAX, src);
            self.asm.imul_imm(Width::W64, Reg::RAX, Reg::RAX, multiplier as i32);
            self.asm.shift_imm(Shift::Shr, Width::W64, Reg::RAX, 32);
            if (multiplier as i32) < 0 {
                self.asm.alu(Alu::Add, Width::W32, Reg::RAX, src);
            }
            if shift > 0 {
                self.asm.shift_imm(Shift::Sar, Width::W32, Reg::RAX, shift);
            }
            Reg::RAX
        };
        // Adds one for negative dividends: the sign bit.
        self.asm.mov(width, SCRATCH, src);
        self.asm.shift_imm(Shift::Shr, width, SCRATCH, bits as u8 - 1);
        self.asm.lea(width, quotient, Mem::indexed(quotient, SCRATCH, 0, 0));
        self.finish_division(what, width, src, quotient, magnitude);
        true
    }
}

/// Multiplier, shift, and whether the dividend must be added (the multiplier has one more bit), for
/// an unsigned divisor that is not a power of two (Hacker's Delight, section 10-9).
fn unsigned_magic(divisor: u64, bits: u32) -> (u64, u8, bool) {
    let divisor = u128::from(divisor);
    let length = 128 - (divisor - 1).leading_zeros();
    // The least power that is precise enough.
    for shift in 0..=length {
        let power = 1_u128.checked_shl(bits + shift);
        let Some(power) = power.filter(|power| *power != 0) else { break };
        let multiplier = power.div_ceil(divisor);
        let error = multiplier * divisor - power;
        if error <= 1 << shift && multiplier >> bits == 0 {
            return (multiplier as u64, shift as u8, false);
        }
    }
    // 2^(bits + length) / divisor has bits + 1 bits; its highest is implied.
    let low = ((1_u128 << bits) * ((1_u128 << length) - divisor)) / divisor + 1;
    (low as u64, length as u8, true)
}

/// Multiplier and shift for a signed divisor of at least 2 (Hacker's Delight, section 10-4).
fn signed_magic(divisor: u64, bits: u32) -> (i64, u8) {
    let divisor = u128::from(divisor);
    let half = 1_u128 << (bits - 1);
    let largest = half - 1 - half % divisor;
    let mut power = u128::from(bits - 1);
    loop {
        power += 1;
        let two = 1_u128.checked_shl(power as u32).expect("at most twice the bits");
        let rest = divisor - two % divisor;
        if two > largest * rest || power >= u128::from(2 * bits - 1) {
            let multiplier = (two + rest) / divisor;
            let shift = (power as u32 - bits) as u8;
            let multiplier =
                if bits == 64 { multiplier as u64 as i64 } else { i64::from(multiplier as u32 as i32) };
            return (multiplier, shift);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{signed_magic, unsigned_magic};

    #[test]
    fn reciprocals_give_every_quotient_of_32_bits() {
        for divisor in (3_u32..400).chain([641, 1000, 65_537, 1_000_000_007, u32::MAX - 1, u32::MAX]) {
            for dividend in [
                0,
                1,
                divisor - 1,
                divisor,
                divisor.wrapping_add(1),
                12_345_678,
                u32::MAX / 2,
                u32::MAX - 1,
                u32::MAX,
            ] {
                if !divisor.is_power_of_two() {
                    let (multiplier, shift, add) = unsigned_magic(u64::from(divisor), 32);
                    let product = u128::from(multiplier) * u128::from(dividend);
                    let whole = if add { product + (u128::from(dividend) << 32) } else { product };
                    assert_eq!((whole >> (32 + shift)) as u32, dividend / divisor, "{dividend} / {divisor}");
                    if !add {
                        assert!(u64::try_from(product).is_ok(), "the product of {divisor} fits");
                    }
                }
                if let Ok(signed) = i32::try_from(divisor) {
                    let (multiplier, shift) = signed_magic(u64::from(divisor), 32);
                    let dividend = dividend as i32;
                    let mut quotient = ((i64::from(dividend) * multiplier) >> 32) as i32;
                    if multiplier < 0 {
                        quotient = quotient.wrapping_add(dividend);
                    }
                    quotient >>= shift;
                    quotient += (dividend as u32 >> 31) as i32;
                    assert_eq!(quotient, dividend / signed, "{dividend} / {signed}");
                }
            }
        }
    }
}
