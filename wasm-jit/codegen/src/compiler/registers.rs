//! Registers for operands, and moves between registers and slots.
//!
//! Registers are allocated to operands on demand. When none is free, a copy of a local is dropped:
//! the one that is used last, as the scan of the function shows. Without copies, the lowest operand
//! is spilled to its slot. Registers of operands that an instruction has popped, and those just
//! allocated, are *pinned*: not allocated again until the next instruction.

use super::abi::{FLOAT_SCRATCH, FLOAT_TEMPS, INT_TEMPS, SCRATCH, Ty};
use super::cached_locals::bits;
use super::function::FunctionCompiler;
use super::register_file::Holder;
use super::state::{Operand, Place, Val, immediate, size_of};
use crate::asm::{Mem, Reg, RegClass};

/// The number of accesses to locals after an instruction that decide which copy it drops.
const LOOK_AHEAD: usize = 48;

impl FunctionCompiler<'_> {
    /// Moves a value, through `SCRATCH` or `FLOAT_SCRATCH` from memory to memory. Preserves the
    /// flags.
    pub(super) fn move_value(&mut self, ty: Ty, dst: Place, src: Place) {
        if ty == Ty::V128 {
            return self.move_vector(dst, src);
        }
        match (dst, src) {
            (Place::Reg(dst), Place::Reg(src)) if dst == src => {}
            (Place::Reg(dst), Place::Reg(src)) => match (dst.class(), src.class()) {
                (RegClass::Sse, RegClass::Sse) => self.asm.float_mov(dst, src),
                (RegClass::General, RegClass::General) => self.asm.mov(ty.width(), dst, src),
                (RegClass::Sse, RegClass::General) => self.asm.float_from_bits(ty.width(), dst, src),
                (RegClass::General, RegClass::Sse) => self.asm.float_to_bits(ty.width(), dst, src),
            },
            (Place::Reg(dst), Place::Mem(src)) if dst.is_float() => {
                self.asm.float_load(ty.precision(), dst, src)
            }
            (Place::Reg(dst), Place::Mem(src)) => self.asm.mov(ty.width(), dst, src),
            (Place::Reg(dst), Place::Const(0)) if dst.is_float() => self.asm.float_zero(dst),
            (Place::Reg(dst), Place::Const(bits)) if dst.is_float() => {
                let constant = self.constant(u128::from(bits), size_of(ty).bytes());
                self.asm.float_load(ty.precision(), dst, constant);
            }
            (Place::Reg(dst), Place::Const(bits)) => self.asm.mov_imm(dst, bits),
            (Place::Mem(dst), Place::Reg(src)) if src.is_float() => {
                self.asm.float_store(ty.precision(), dst, src)
            }
            (Place::Mem(dst), Place::Reg(src)) => self.asm.mov_store(size_of(ty), dst, src),
            (Place::Mem(dst), Place::Const(bits)) => match immediate(ty, bits) {
                Some(imm) => self.asm.mov_store_imm(size_of(ty), dst, imm),
                None => {
                    self.asm.mov_imm(SCRATCH, bits);
                    self.asm.mov_store(size_of(ty), dst, SCRATCH);
                }
            },
            (Place::Mem(dst), Place::Mem(src)) if dst == src => {}
            (Place::Mem(dst), Place::Mem(src)) => {
                self.asm.mov(ty.width(), SCRATCH, src);
                self.asm.mov_store(size_of(ty), dst, SCRATCH);
            }
            (Place::Const(_), _) => unreachable!("a constant is no destination"),
        }
    }

    /// Moves a vector, through `FLOAT_SCRATCH` from memory to memory.
    fn move_vector(&mut self, dst: Place, src: Place) {
        match (dst, src) {
            (dst, src) if dst == src => {}
            (Place::Reg(dst), Place::Reg(src)) => self.asm.float_mov(dst, src),
            (Place::Reg(dst), Place::Mem(src)) => self.asm.vector_load(dst, src),
            (Place::Reg(dst), Place::Const(number)) => match self.vectors.get(number) {
                0 => self.asm.float_zero(dst),
                u128::MAX => self.asm.vector_ones(dst),
                bits => {
                    let constant = self.constant(bits, 16);
                    self.asm.vector_load(dst, constant);
                }
            },
            (Place::Mem(dst), Place::Reg(src)) => self.asm.vector_store(dst, src),
            (Place::Mem(_), Place::Mem(_) | Place::Const(_)) => {
                self.move_vector(Place::Reg(FLOAT_SCRATCH), src);
                self.move_vector(dst, Place::Reg(FLOAT_SCRATCH));
            }
            (Place::Const(_), _) => unreachable!("a constant is no destination"),
        }
    }

    /// A constant of `size` bytes after the code.
    pub(super) fn constant(&mut self, bits: u128, size: u32) -> Mem {
        self.cold.constant(bits, size, &mut self.asm)
    }

    /// The registers that the region leaves for operands.
    pub(super) fn temps(&self, class: RegClass) -> u32 {
        let all = match class {
            RegClass::General => INT_TEMPS,
            RegClass::Sse => FLOAT_TEMPS,
        };
        all & !self.region().cached
    }

    /// Allocates a register for an operand, and pins it.
    pub(super) fn alloc(&mut self, class: RegClass) -> Reg {
        self.alloc_of(self.temps(class))
    }

    /// Allocates a register of the set, and pins it.
    pub(super) fn alloc_of(&mut self, set: u32) -> Reg {
        let reg = self.free_one(set);
        self.registers.pin(reg);
        reg
    }

    /// Frees one register of the set that is not pinned: a free one if possible, or else that of
    /// the least useful copy, or else that of the lowest operand.
    fn free_one(&mut self, set: u32) -> Reg {
        if let Some(free) = self.registers.free_of(set) {
            return free;
        }
        let unpinned = self.registers.unpinned(set);
        if let Some(reg) = self.least_useful_copy(unpinned & self.registers.copies()) {
            self.drop_copy(reg);
            return reg;
        }
        let operands = bits(unpinned).filter_map(|reg| match self.registers.holder(reg) {
            Holder::Operand(height) => Some((height, reg)),
            Holder::Free | Holder::Copy(_) => None,
        });
        let lowest = operands.min_by_key(|(height, _)| *height);
        let (height, reg) = lowest.expect("an instruction pins fewer registers than there are");
        self.spill_operand(height);
        reg
    }

    /// Of the copies in these registers, the one that is used last, or not at all.
    fn least_useful_copy(&mut self, mut copies: u32) -> Option<Reg> {
        let is_one = |set: u32| set & set.wrapping_sub(1) == 0;
        if is_one(copies) {
            return bits(copies).next();
        }
        let accesses = &self.scan.accesses;
        let now = self.instruction.position;
        let since = &accesses[self.past_accesses..];
        self.past_accesses += since.partition_point(|access| access.position() <= now);
        let ahead = accesses[self.past_accesses..].iter().take(LOOK_AHEAD);
        for access in ahead.take_while(|access| !access.is_call()) {
            if is_one(copies) {
                break;
            }
            let reg = self.locals[access.local() as usize].reg.filter(|reg| copies & reg.bit() != 0);
            let Some(reg) = reg else { continue };
            if access.writes() && self.registers.newer() & reg.bit() == 0 {
                return Some(reg);
            }
            copies &= !reg.bit();
        }
        let stored = copies & !self.registers.newer();
        bits(if stored != 0 { stored } else { copies }).next()
    }

    /// Forgets that a register holds a copy of a local. Preserves the flags.
    pub(super) fn drop_copy(&mut self, reg: Reg) {
        if let Holder::Copy(local) = self.registers.holder(reg) {
            if self.registers.newer() & reg.bit() != 0 {
                self.store_local(local);
            }
            self.locals[local as usize].reg = None;
            self.registers.hold(reg, Holder::Free);
        }
    }

    pub(super) fn drop_copies(&mut self) {
        for reg in bits(self.registers.copies()) {
            self.drop_copy(reg);
        }
    }

    /// Frees this register, which must not be a cache register, and pins it.
    pub(super) fn take(&mut self, reg: Reg) {
        match self.registers.holder(reg) {
            Holder::Free => {}
            Holder::Copy(_) => self.drop_copy(reg),
            Holder::Operand(height) => match self.registers.free_of(self.temps(reg.class()) & !reg.bit()) {
                Some(other) => {
                    let ty = self.stack.at(height).ty;
                    self.move_value(ty, Place::Reg(other), Place::Reg(reg));
                    self.stack.set(height, Val::Reg(other));
                    self.registers.hold(other, Holder::Operand(height));
                    self.registers.hold(reg, Holder::Free);
                }
                None => self.spill_operand(height),
            },
        }
        self.registers.pin(reg);
    }

    /// Stores an operand into its slot.
    pub(super) fn spill_operand(&mut self, height: u32) {
        let Operand { ty, val } = self.stack.at(height);
        let slot = self.frame.operand_slot(height);
        match val {
            Val::Slot | Val::Frame(_) | Val::Const(_) => return,
            Val::Reg(reg) => {
                self.move_value(ty, Place::Mem(slot), Place::Reg(reg));
                if self.registers.holder(reg) == Holder::Operand(height) {
                    self.registers.hold(reg, Holder::Free);
                }
            }
            Val::Local(local) => {
                let place = self.local_place(local);
                self.move_value(ty, Place::Mem(slot), place);
                self.locals[local as usize].aliases -= 1;
            }
            Val::Load(_) | Val::Scaled(..) | Val::Flag(_) => unreachable!("used by the next instruction"),
        }
        self.stack.set(height, Val::Slot);
    }

    /// Spills all operands to their slots, except for constants.
    pub(super) fn spill_operands(&mut self) {
        for height in self.stack.not_spilled() {
            self.spill_operand(height);
        }
        self.stack.set_all_spilled();
    }
}
