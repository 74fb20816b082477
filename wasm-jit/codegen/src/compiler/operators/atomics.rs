//! Atomic operations of the threads proposal.
//!
//! On x86, every aligned plain load and store is atomic; a sequentially consistent store is XCHG.

use wasmparser::MemArg;

use super::memory::memory_of;
use crate::asm::{Alu, Cond, Mem, Reg, RegClass, Size, Width};
use crate::compiler::abi::{SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Operand, Place, Val};
use crate::vmctx::{Libcall, TrapCode};

/// Read-modify-write operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rmw {
    Add,
    Sub,
    And,
    Or,
    Xor,
    Exchange,
}

impl FunctionCompiler<'_> {
    /// The address of an atomic access, which traps if misaligned.
    fn atomic_address(&mut self, operand: &Operand, size: Size, arg: &MemArg) -> Mem {
        if self.module.checks_bounds(memory_of(arg)) && size != Size::B1 {
            // Checked before the bounds.
            self.to_this(operand, SCRATCH);
            self.asm.alu_imm(Alu::Add, Width::W32, SCRATCH, arg.offset as i32 & 7);
            self.trap_if_unaligned(size);
            return self.address_in_one(operand, arg, size);
        }
        let mem = self.address_in_one(operand, arg, size);
        if size != Size::B1 {
            // The base is aligned, so the low bits are those of the address.
            self.asm.lea(Width::W64, SCRATCH, mem);
            self.trap_if_unaligned(size);
        }
        mem
    }

    /// Traps if the address in the scratch register is not a multiple of the size.
    fn trap_if_unaligned(&mut self, size: Size) {
        self.asm.test_imm(Width::W32, SCRATCH, size.bytes() as i32 - 1);
        self.trap_if(Cond::NotEqual, TrapCode::UnalignedAtomic);
    }

    pub(crate) fn atomic_load(&mut self, ty: Ty, size: Size, arg: &MemArg) {
        let operand = self.pop();
        let mem = self.atomic_address(&operand, size, arg);
        let dst = self.alloc(RegClass::General);
        self.asm.movzx(size, dst, mem);
        self.push(ty, Val::Reg(dst));
    }

    pub(crate) fn atomic_store(&mut self, size: Size, arg: &MemArg) {
        let value = self.pop();
        let operand = self.pop();
        let mem = self.atomic_address(&operand, size, arg);
        let value = self.to_own_reg(&value);
        self.asm.xchg_mem(size, mem, value);
    }

    pub(crate) fn atomic_rmw(&mut self, what: Rmw, ty: Ty, size: Size, arg: &MemArg) {
        let value = self.pop();
        let operand = self.pop();
        if matches!(what, Rmw::And | Rmw::Or | Rmw::Xor) {
            return self.atomic_loop(what, &value, &operand, ty, size, arg);
        }
        let mem = self.atomic_address(&operand, size, arg);
        let value = self.to_own_reg(&value);
        match what {
            Rmw::Exchange => self.asm.xchg_mem(size, mem, value),
            _ => {
                if what == Rmw::Sub {
                    self.asm.neg(ty.width(), value);
                }
                self.asm.lock_xadd(size, mem, value);
            }
        }
        self.zero_extend(size, value);
        self.push(ty, Val::Reg(value));
    }

    /// Zero-extends the old value of a partial access.
    fn zero_extend(&mut self, size: Size, reg: Reg) {
        if matches!(size, Size::B1 | Size::B2) {
            self.asm.movzx(size, reg, reg);
        }
    }

    /// An operation for which no instruction returns the old value: retries CMPXCHG until no other
    /// store intervened.
    fn atomic_loop(
        &mut self,
        what: Rmw,
        value: &Operand,
        operand: &Operand,
        ty: Ty,
        size: Size,
        arg: &MemArg,
    ) {
        let (value, operand) = self.out_of_rax(value, operand);
        self.take(Reg::RAX);
        let mem = self.atomic_address(&operand, size, arg);
        let value = self.to_reg(&value);
        let again = self.asm.new_label();
        self.asm.movzx(size, Reg::RAX, mem);
        self.asm.bind(again);
        self.asm.mov(Width::W64, SCRATCH, Reg::RAX);
        let alu = match what {
            Rmw::And => Alu::And,
            Rmw::Or => Alu::Or,
            _ => Alu::Xor,
        };
        self.asm.alu(alu, Width::W64, SCRATCH, value);
        self.asm.lock_cmpxchg(size, mem, SCRATCH);
        self.asm.jcc(Cond::NotEqual, again);
        self.zero_extend(size, Reg::RAX);
        self.push(ty, Val::Reg(Reg::RAX));
    }

    /// Moves operands out of `rax`, which CMPXCHG uses.
    fn out_of_rax(&mut self, a: &Operand, b: &Operand) -> (Operand, Operand) {
        let mut moved = [*a, *b];
        for operand in &mut moved {
            if self.current_reg(operand) == Some(Reg::RAX) {
                let other = self.alloc(RegClass::General);
                self.move_value(operand.ty, Place::Reg(other), Place::Reg(Reg::RAX));
                operand.val = Val::Reg(other);
            }
        }
        (moved[0], moved[1])
    }

    pub(crate) fn atomic_cmpxchg(&mut self, ty: Ty, size: Size, arg: &MemArg) {
        let replacement = self.pop();
        let expected = self.pop();
        let operand = self.pop();
        let (replacement, operand) = self.out_of_rax(&replacement, &operand);
        if self.current_reg(&expected) != Some(Reg::RAX) {
            self.take(Reg::RAX);
        } else if self.owns(&expected).is_none() {
            // A copy of a local, which is about to be overwritten.
            self.drop_copy(Reg::RAX);
        }
        self.to_this(&expected, Reg::RAX);
        // Its previous register is no longer needed: only four registers are guaranteed, and this
        // uses three already.
        if let Some(before) = self.current_reg(&expected).filter(|before| *before != Reg::RAX) {
            self.registers.unpin(before);
        }
        let mem = self.atomic_address(&operand, size, arg);
        let replacement = self.to_reg(&replacement);
        // A partial value is compared partially; if equal, `rax` keeps the expected value's upper
        // bits.
        self.asm.lock_cmpxchg(size, mem, replacement);
        self.zero_extend(size, Reg::RAX);
        if size == Size::B4 && ty.width() == Width::W64 {
            self.asm.mov(Width::W32, Reg::RAX, Reg::RAX);
        }
        self.push(ty, Val::Reg(Reg::RAX));
    }

    /// The address including the offset, for the runtime, below the operands that follow it.
    fn effective_address(&mut self, above: usize, arg: &MemArg) {
        let rest: Vec<Operand> = (0..above).map(|_| self.pop()).collect();
        let operand = self.pop();
        let whole = self.alloc(RegClass::General);
        self.to_this(&operand, whole);
        if arg.offset != 0 {
            self.asm.mov_imm(SCRATCH, arg.offset);
            self.add_to_address(memory_of(arg), whole, SCRATCH);
        }
        self.push(Ty::I64, Val::Reg(whole));
        for Operand { ty, val } in rest.into_iter().rev() {
            // Back at the height of its slot.
            let val = if let Val::Frame(_) = val { Val::Slot } else { val };
            self.push(ty, val);
        }
    }

    pub(crate) fn atomic_wait(&mut self, width: Width, arg: &MemArg) {
        self.effective_address(2, arg);
        let libcall = if width == Width::W64 { Libcall::AtomicWait64 } else { Libcall::AtomicWait32 };
        self.bulk(libcall, &[u64::from(memory_of(arg))], 3);
        self.push_answer(Ty::I32);
    }

    pub(crate) fn atomic_notify(&mut self, arg: &MemArg) {
        self.effective_address(1, arg);
        self.bulk(Libcall::AtomicNotify, &[u64::from(memory_of(arg))], 2);
        self.push_answer(Ty::I32);
    }
}
