//! Locals: reads, writes, saving and loading of register-cached locals.
//!
//! A local that is not register-cached is up to date in its slot at every label and call. A
//! register may hold a copy until the next label. A new value is stored when its register is needed
//! or before control reaches a label or a callee, and not at all if the local is set before. A
//! register-cached local is in its cache register at every label of the region; between labels,
//! after a call, it may be only in its slot, until it is used or until the next label.

use crate::asm::{Reg, RegClass};
use crate::compiler::cached_locals::{NO_LOCAL, Region, bits, is_callee_saved};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::instruction::Next;
use crate::compiler::register_file::Holder;
use crate::compiler::state::{Local, Place, Val};

impl FunctionCompiler<'_> {
    pub(crate) fn local_get(&mut self, local: u32) {
        self.push(self.locals[local as usize].ty, Val::Local(local));
    }

    pub(crate) fn local_set(&mut self, local: u32) {
        let operand = self.pop();
        if operand.val == Val::Local(local) {
            return;
        }
        self.materialize_aliases(local);
        self.locals[local as usize].constant = self.held_constant(&operand);
        let Local { ty, cache_reg, .. } = self.locals[local as usize];
        match cache_reg {
            Some(cache_reg) => {
                self.to_this(&operand, cache_reg);
                self.locals[local as usize].reg = Some(cache_reg);
                self.locals[local as usize].in_slot = false;
            }
            None => {
                let place = self.place(&operand);
                if let Some(old) = self.locals[local as usize].reg.take() {
                    self.registers.hold(old, Holder::Free);
                }
                let own = match place {
                    Place::Reg(reg) if self.registers.holder(reg) == Holder::Free => Some(reg),
                    _ => None,
                };
                let own = own.filter(|reg| self.region().cached & reg.bit() == 0);
                self.locals[local as usize].reg = own;
                self.locals[local as usize].in_slot = own.is_none();
                match own {
                    Some(reg) => self.registers.hold_newer(reg, local),
                    None => {
                        let slot = self.frame.local_slot(local);
                        self.move_value(ty, Place::Mem(slot), place);
                    }
                }
            }
        }
    }

    pub(crate) fn local_tee(&mut self, local: u32) {
        self.local_set(local);
        self.local_get(local);
    }

    /// A register for the current instruction's result: the cache register of the local that the
    /// next instruction sets, if it has one of this kind, else a new one.
    pub(crate) fn result(&mut self, class: RegClass) -> Reg {
        self.target(class).unwrap_or_else(|| self.alloc(class))
    }

    /// As [`Self::result`], but with this register of the current instruction instead of a new one.
    pub(crate) fn result_in(&mut self, own: Reg) -> Reg {
        self.target(own.class()).unwrap_or(own)
    }

    /// The cache register of the local that the next instruction sets, ready to be written. The
    /// operands of the current instruction must have been popped.
    pub(crate) fn target(&mut self, class: RegClass) -> Option<Reg> {
        let Next::SetLocal(local) = self.instruction.next else { return None };
        let cache_reg = self.locals[local as usize].cache_reg?;
        if cache_reg.class() != class {
            return None;
        }
        self.materialize_aliases(local);
        // Its old value is overwritten by the first write.
        self.settle_old_value(local);
        Some(cache_reg)
    }

    /// The current location of a local.
    pub(crate) fn local_place(&self, local: u32) -> Place {
        self.locals[local as usize].reg.map_or_else(|| Place::Mem(self.frame.local_slot(local)), Place::Reg)
    }

    /// A register with the local's value, pinned: its cache register, or one with a copy.
    pub(crate) fn local_reg(&mut self, local: u32) -> Reg {
        let Local { ty, cache_reg, reg, .. } = self.locals[local as usize];
        if let Some(reg) = reg {
            self.registers.pin(reg);
            return reg;
        }
        let slot = self.frame.local_slot(local);
        let reg = match cache_reg {
            Some(cache_reg) => cache_reg,
            None => {
                let reg = self.alloc(ty.class());
                self.registers.hold(reg, Holder::Copy(local));
                reg
            }
        };
        self.registers.pin(reg);
        self.move_value(ty, Place::Reg(reg), Place::Mem(slot));
        self.locals[local as usize].reg = Some(reg);
        reg
    }

    /// Gives operands that are aliases of the local their own registers, before the local is
    /// written.
    pub(crate) fn materialize_aliases(&mut self, local: u32) {
        let mut left = self.locals[local as usize].aliases;
        for height in (0..self.stack.len()).rev() {
            if left == 0 {
                break;
            }
            if self.stack[height].val != Val::Local(local) {
                continue;
            }
            left -= 1;
            let Local { ty, cache_reg, reg, .. } = self.locals[local as usize];
            let own = match reg {
                // The copy becomes the operand's register: that of the last one, since the slot may
                // not have the value.
                Some(reg) if cache_reg.is_none() && left == 0 => {
                    self.locals[local as usize].reg = None;
                    reg
                }
                _ => {
                    let own = self.alloc(ty.class());
                    // The allocation may have spilled this operand.
                    if self.stack[height].val != Val::Local(local) {
                        continue;
                    }
                    let place = self.local_place(local);
                    self.move_value(ty, Place::Reg(own), place);
                    own
                }
            };
            self.locals[local as usize].aliases -= 1;
            self.stack.set(height as u32, Val::Reg(own));
            self.registers.hold(own, Holder::Operand(height as u32));
            self.registers.unpin(own);
        }
    }

    /// Stores the copies that are newer than the locals' slots. Preserves the flags.
    #[inline(always)]
    pub(crate) fn store_copies(&mut self) {
        if self.registers.newer() != 0 {
            self.store_newer_copies();
        }
    }

    fn store_newer_copies(&mut self) {
        for reg in bits(self.registers.newer()) {
            if let Holder::Copy(local) = self.registers.holder(reg) {
                self.store_local(local);
            }
        }
        self.registers.all_stored();
    }

    /// Counts all copies as stored, where the code is not reachable.
    pub(crate) fn forget_copies(&mut self) {
        for reg in bits(self.registers.newer()) {
            if let Holder::Copy(local) = self.registers.holder(reg) {
                self.locals[local as usize].in_slot = true;
            }
        }
        self.registers.all_stored();
    }

    /// Brings the slot of a local up to date.
    pub(crate) fn store_local(&mut self, local: u32) {
        let Local { ty, reg, in_slot, .. } = self.locals[local as usize];
        if let Some(reg) = reg
            && !in_slot
        {
            let slot = self.frame.local_slot(local);
            self.move_value(ty, Place::Mem(slot), Place::Reg(reg));
            self.locals[local as usize].in_slot = true;
        }
    }

    /// Before a conditional branch: brings all locals to where labels expect them. Preserves the
    /// flags.
    pub(crate) fn locals_for_branch(&mut self) {
        self.store_copies();
        self.load_cached_locals();
    }

    /// Loads all register-cached locals that are only in their slots.
    pub(crate) fn load_cached_locals(&mut self) {
        if !std::mem::take(&mut self.may_be_unloaded) {
            return;
        }
        let (not_loaded, _) = self.cached_state();
        for reg in bits(not_loaded) {
            let local = self.region().cached_by(reg);
            let slot = self.frame.local_slot(local);
            self.move_value(self.locals[local as usize].ty, Place::Reg(reg), Place::Mem(slot));
            self.locals[local as usize].reg = Some(reg);
        }
    }

    /// Before a call: saves all values in registers that the callee may clobber. Inside a `try` no
    /// value stays in a register only, because the handler finds values in the frame.
    pub(crate) fn save_registers(&mut self) {
        self.may_be_unloaded = true;
        let in_try = self.try_regions.innermost().is_some();
        for reg in bits(self.region().cached) {
            let local = self.region().cached_by(reg);
            if local == NO_LOCAL {
                continue;
            }
            let kept = is_callee_saved(reg);
            if !kept || in_try {
                self.store_local(local);
            }
            if !kept {
                self.locals[local as usize].reg = None;
                self.locals[local as usize].in_slot = true;
            }
        }
        self.drop_copies();
        for reg in bits(self.registers.held()) {
            if let Holder::Operand(height) = self.registers.holder(reg) {
                self.spill_operand(height);
            }
        }
    }

    /// Sets the state at a label of a region: register-cached locals in their registers, no copies.
    pub(crate) fn enter_state(&mut self, region: usize, in_slot: u32) {
        self.zero_flag = None;
        self.small_bytes = None;
        self.may_be_unloaded = false;
        self.labels += 1;
        assert_eq!(self.registers.newer(), 0, "copies are stored before a label");
        self.drop_copies();
        if region != self.regions.current_index() {
            for (_, local) in self.regions.current().iter() {
                self.locals[local as usize].cache(None, true);
            }
            self.regions.enter(region);
        }
        for (reg, local) in self.regions.current().iter() {
            self.locals[local as usize].cache(Some(reg), in_slot & reg.bit() != 0);
        }
    }

    pub(crate) fn region(&self) -> &Region {
        self.regions.current()
    }

    /// The cache registers whose locals are only in their slots, and those whose locals are up to
    /// date in their slots.
    pub(crate) fn cached_state(&self) -> (u32, u32) {
        let (mut not_loaded, mut in_slot) = (0, 0);
        for (reg, local) in self.region().iter() {
            let local = &self.locals[local as usize];
            not_loaded |= if local.reg.is_none() { reg.bit() } else { 0 };
            in_slot |= if local.in_slot { reg.bit() } else { 0 };
        }
        (not_loaded, in_slot)
    }
}
