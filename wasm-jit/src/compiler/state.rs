//! What the compiler knows at a point of the code: where every operand and every local is.
//!
//! An *operand* of the abstract stack is a constant, a register, another name for a local, a flag, a place in memory about to be
//! loaded, or its slot in the frame. A *local* is in its slot, or in a register, or in both. Registers
//! are given to operands as they are needed; when none is left, the lowest operand goes to its slot.
//!
//! Two rules make control flow cheap:
//! - A local without a home (see `homes.rs`) is always up to date in its slot. A register may hold a copy, until the next label.
//! - At a label, every local with a home in the label's region is in that register, and all operands below the label's own are
//!   in their slots or constants.
//!
//! Registers of operands that an instruction has taken from the stack, and those that it has just been given, are *pinned*: not
//! given out again until the next instruction.

use super::abi::{CONTEXT, FLOAT_SCRATCH, FLOAT_TEMPS, INT_TEMPS, SCRATCH, SLOTS, Ty};
use super::function::FunctionCompiler;
use super::homes::{Region, bits, is_callee_saved};
use crate::asm::{Cond, Label, Mem, Reg, Rm, Size};

/// Operands that are another name for a local lie at most so far below the top: whoever writes a local looks for them.
const DEEPEST_ALIAS: u32 = 64;

/// Constants that are looked through for the same one.
const RECENT_CONSTANTS: usize = 16;

/// Data behind the code of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constant {
    pub(super) bits: u128,
    pub(super) size: u32,
    pub(super) label: Label,
}

/// A comparison whose result is in the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    Int(Cond),
    /// Equal and ordered.
    FloatEqual,
    /// Not equal or unordered.
    FloatNotEqual,
}

impl Flag {
    pub(super) fn opposite(self) -> Self {
        match self {
            Self::Int(cond) => Self::Int(cond.opposite()),
            Self::FloatEqual => Self::FloatNotEqual,
            Self::FloatNotEqual => Self::FloatEqual,
        }
    }
}

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Val {
    /// Its bits.
    Const(u64),
    Reg(Reg),
    /// The same as a local.
    Local(u32),
    /// In its own slot.
    Slot,
    /// In a slot: what an operand is after it was taken off the stack.
    Frame(i32),
    /// To be loaded by the instruction that comes next.
    Load(Mem),
    /// A register shifted left by so many bits, by the instruction that comes next.
    Scaled(Reg, u8),
    /// To be used by the instruction that comes next.
    Flag(Flag),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) ty: Ty,
    pub(super) val: Val,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) ty: Ty,
    /// Its home in the current region.
    pub(super) home: Option<Reg>,
    /// A register that holds its value.
    pub(super) reg: Option<Reg>,
    /// Whether its slot holds its value.
    pub(super) in_slot: bool,
    /// Operands that are another name for it.
    pub(super) aliases: u32,
}

/// What a register is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Free,
    /// A copy of a local without a home.
    Copy(u32),
    /// The operand at this height.
    Operand(u32),
}

/// Where something is moved from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Reg(Reg),
    Mem(Mem),
    Const(u64),
}

impl FunctionCompiler<'_> {
    // Slots.

    pub(super) fn local_slot(&self, local: u32) -> Mem {
        Mem::base(Reg::RBP, SLOTS - 8 * (local as i32 + 1))
    }

    pub(super) fn operand_slot(&mut self, height: u32) -> Mem {
        self.slots_used = self.slots_used.max(height + 1);
        Mem::base(Reg::RBP, SLOTS - 8 * (self.locals.len() as i32 + height as i32 + 1))
    }

    // Moves.

    /// Moves a value; `SCRATCH` or `FLOAT_SCRATCH` helps from memory to memory. The flags stay.
    pub(super) fn move_value(&mut self, ty: Ty, dst: Place, src: Place) {
        match (dst, src) {
            (Place::Reg(dst), Place::Reg(src)) if dst == src => {}
            (Place::Reg(dst), Place::Reg(src)) => match (dst.is_float(), src.is_float()) {
                (true, true) => self.asm.float_mov(dst, src),
                (false, false) => self.asm.mov(ty.wide(), dst, src),
                (true, false) => self.asm.float_from_bits(ty.wide(), dst, src),
                (false, true) => self.asm.float_to_bits(ty.wide(), dst, src),
            },
            (Place::Reg(dst), Place::Mem(src)) if dst.is_float() => self.asm.float_load(ty.wide(), dst, src),
            (Place::Reg(dst), Place::Mem(src)) => self.asm.mov(ty.wide(), dst, src),
            (Place::Reg(dst), Place::Const(0)) if dst.is_float() => self.asm.float_zero(dst),
            (Place::Reg(dst), Place::Const(bits)) if dst.is_float() => {
                let constant = self.constant(u128::from(bits), size_of(ty).bytes());
                self.asm.float_load(ty.wide(), dst, constant);
            }
            (Place::Reg(dst), Place::Const(bits)) => self.asm.mov_imm(dst, bits),
            (Place::Mem(dst), Place::Reg(src)) if src.is_float() => self.asm.float_store(ty.wide(), dst, src),
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
                self.asm.mov(ty.wide(), SCRATCH, src);
                self.asm.mov_store(size_of(ty), dst, SCRATCH);
            }
            (Place::Const(_), _) => unreachable!("a constant is no destination"),
        }
    }

    /// A constant of so many bytes behind the code.
    pub(super) fn constant(&mut self, bits: u128, size: u32) -> Mem {
        let recent = self.constants.iter().rev().take(RECENT_CONSTANTS);
        let known = recent.clone().find(|known| known.bits == bits && known.size == size);
        let label = match known {
            Some(known) => known.label,
            None => {
                let label = self.asm.new_label();
                self.constants.push(Constant { bits, size, label });
                label
            }
        };
        Mem::data(label)
    }

    // Registers.

    /// Notes what a register is used for.
    pub(super) fn hold(&mut self, reg: Reg, holder: Holder) {
        self.holders[reg.0 as usize] = holder;
        match holder {
            Holder::Free => self.held &= !reg.bit(),
            Holder::Copy(_) | Holder::Operand(_) => self.held |= reg.bit(),
        }
    }

    fn temps(&self, float: bool) -> u32 {
        (if float { FLOAT_TEMPS } else { INT_TEMPS }) & !self.region().homes
    }

    pub(super) fn pin(&mut self, reg: Reg) {
        self.pinned |= reg.bit();
    }

    pub(super) fn unpin(&mut self, reg: Reg) {
        self.pinned &= !reg.bit();
    }

    /// A register for operands, pinned.
    pub(super) fn alloc(&mut self, float: bool) -> Reg {
        let usable = self.temps(float) & !self.pinned;
        let reg = self.free_one(usable);
        self.pin(reg);
        reg
    }

    /// One register of the set, made free: a free one, else that of a copy, else that of the lowest operand.
    fn free_one(&mut self, usable: u32) -> Reg {
        if let Some(free) = bits(usable & !self.held).next() {
            return free;
        }
        let mut copy = None;
        let mut lowest: Option<(u32, Reg)> = None;
        for reg in bits(usable) {
            match self.holders[reg.0 as usize] {
                Holder::Free => {}
                Holder::Copy(_) => copy = Some(reg),
                Holder::Operand(height) => {
                    if lowest.is_none_or(|(least, _)| height < least) {
                        lowest = Some((height, reg));
                    }
                }
            }
        }
        if let Some(reg) = copy {
            self.drop_copy(reg);
            return reg;
        }
        let (height, reg) = lowest.expect("an instruction pins fewer registers than there are");
        self.spill_operand(height);
        reg
    }

    /// Forgets that a register holds a copy of a local.
    pub(super) fn drop_copy(&mut self, reg: Reg) {
        if let Holder::Copy(local) = self.holders[reg.0 as usize] {
            self.locals[local as usize].reg = None;
            self.hold(reg, Holder::Free);
        }
    }

    pub(super) fn drop_copies(&mut self) {
        for reg in bits(self.held) {
            self.drop_copy(reg);
        }
    }

    /// Makes this register free, which is never a home, and pins it.
    pub(super) fn take(&mut self, reg: Reg) {
        match self.holders[reg.0 as usize] {
            Holder::Free => {}
            Holder::Copy(_) => self.drop_copy(reg),
            Holder::Operand(height) => {
                let others = self.temps(reg.is_float()) & !self.pinned & !reg.bit();
                let free = bits(others & !self.held).next();
                match free {
                    Some(other) => {
                        let ty = self.stack[height as usize].ty;
                        self.move_value(ty, Place::Reg(other), Place::Reg(reg));
                        self.stack[height as usize].val = Val::Reg(other);
                        self.hold(other, Holder::Operand(height));
                        self.hold(reg, Holder::Free);
                    }
                    None => self.spill_operand(height),
                }
            }
        }
        self.pin(reg);
    }

    /// Stores an operand into its slot.
    pub(super) fn spill_operand(&mut self, height: u32) {
        let Operand { ty, val } = self.stack[height as usize];
        let slot = self.operand_slot(height);
        match val {
            Val::Slot | Val::Frame(_) | Val::Const(_) => return,
            Val::Reg(reg) => {
                self.move_value(ty, Place::Mem(slot), Place::Reg(reg));
                if self.holders[reg.0 as usize] == Holder::Operand(height) {
                    self.hold(reg, Holder::Free);
                }
            }
            Val::Local(local) => {
                let place = self.local_place(local);
                self.move_value(ty, Place::Mem(slot), place);
                self.locals[local as usize].aliases -= 1;
            }
            Val::Load(_) | Val::Scaled(..) | Val::Flag(_) => unreachable!("used by the next instruction"),
        }
        self.stack[height as usize].val = Val::Slot;
    }

    // Locals.

    /// Where a local is right now.
    pub(super) fn local_place(&self, local: u32) -> Place {
        self.locals[local as usize].reg.map_or_else(|| Place::Mem(self.local_slot(local)), Place::Reg)
    }

    /// A register with the local's value, pinned: its home, or a copy.
    pub(super) fn local_reg(&mut self, local: u32) -> Reg {
        let Local { ty, home, reg, .. } = self.locals[local as usize];
        if let Some(reg) = reg {
            self.pin(reg);
            return reg;
        }
        let slot = self.local_slot(local);
        let reg = match home {
            Some(home) => home,
            None => {
                let reg = self.alloc(ty.is_float());
                self.hold(reg, Holder::Copy(local));
                reg
            }
        };
        self.pin(reg);
        self.move_value(ty, Place::Reg(reg), Place::Mem(slot));
        self.locals[local as usize].reg = Some(reg);
        reg
    }

    /// Gives operands that are another name for the local a value of their own, before it is written.
    pub(super) fn part_from_aliases(&mut self, local: u32) {
        let mut left = self.locals[local as usize].aliases;
        for height in (0..self.stack.len()).rev() {
            if left == 0 {
                break;
            }
            if self.stack[height].val != Val::Local(local) {
                continue;
            }
            left -= 1;
            let Local { ty, home, reg, .. } = self.locals[local as usize];
            let own = match reg {
                // The copy becomes the operand's.
                Some(reg) if home.is_none() => {
                    self.locals[local as usize].reg = None;
                    reg
                }
                _ => {
                    let own = self.alloc(ty.is_float());
                    // Giving it may have stored this very operand.
                    if self.stack[height].val != Val::Local(local) {
                        continue;
                    }
                    let place = self.local_place(local);
                    self.move_value(ty, Place::Reg(own), place);
                    own
                }
            };
            self.locals[local as usize].aliases -= 1;
            self.stack[height].val = Val::Reg(own);
            self.hold(own, Holder::Operand(height as u32));
            self.unpin(own);
        }
    }

    /// Whether a local's value may be used later.
    pub(super) fn is_live(&self, local: u32) -> bool {
        let last = self.scan.last_access[local as usize];
        self.locals[local as usize].aliases > 0 || last > self.position || last >= self.outermost_loop
    }

    /// Brings a local with a home up to date in its slot.
    pub(super) fn store_local(&mut self, local: u32) {
        let Local { ty, reg, in_slot, .. } = self.locals[local as usize];
        if let Some(reg) = reg
            && !in_slot
        {
            if self.is_live(local) {
                let slot = self.local_slot(local);
                self.move_value(ty, Place::Mem(slot), Place::Reg(reg));
            }
            self.locals[local as usize].in_slot = true;
        }
    }

    /// Brings every local into its home that is not there.
    pub(super) fn load_homes(&mut self) {
        for (reg, local) in self.region().iter() {
            if self.locals[local as usize].reg.is_some() {
                continue;
            }
            if self.is_live(local) {
                let slot = self.local_slot(local);
                self.move_value(self.locals[local as usize].ty, Place::Reg(reg), Place::Mem(slot));
            }
            self.locals[local as usize].reg = Some(reg);
        }
    }

    /// Before a call: nothing of value stays in registers that the callee may use. Inside a `try` nothing stays in registers
    /// only, since the handler finds values in the frame.
    pub(super) fn save_registers(&mut self) {
        let in_try = self.try_region.is_some();
        for (reg, local) in self.region().iter() {
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
        for reg in bits(self.held) {
            if let Holder::Operand(height) = self.holders[reg.0 as usize] {
                self.spill_operand(height);
            }
        }
    }

    /// The state at a label of a region: locals at home, no copies.
    pub(super) fn enter_state(&mut self, region: usize, in_slot: u32) {
        self.drop_copies();
        for (_, local) in self.region().iter() {
            let local = &mut self.locals[local as usize];
            *local = Local { home: None, reg: None, in_slot: true, ..*local };
        }
        self.current_region = region;
        for (reg, local) in self.region().iter() {
            let local = &mut self.locals[local as usize];
            *local = Local { home: Some(reg), reg: Some(reg), in_slot: in_slot & reg.bit() != 0, ..*local };
        }
    }

    pub(super) fn region(&self) -> &Region {
        &self.regions[self.current_region]
    }

    /// Homes whose locals are up to date in their slots too.
    pub(super) fn homes_in_slots(&self) -> u32 {
        let mut set = 0;
        for (reg, local) in self.region().iter() {
            if self.locals[local as usize].in_slot {
                set |= reg.bit();
            }
        }
        set
    }

    // Operands.

    pub(super) fn push(&mut self, ty: Ty, val: Val) {
        let height = self.stack.len() as u32;
        if height >= DEEPEST_ALIAS
            && matches!(self.stack[(height - DEEPEST_ALIAS) as usize].val, Val::Local(_))
        {
            self.spill_operand(height - DEEPEST_ALIAS);
        }
        match val {
            Val::Reg(reg) if self.region().homes & reg.bit() == 0 => {
                self.hold(reg, Holder::Operand(height));
            }
            Val::Local(local) => self.locals[local as usize].aliases += 1,
            _ => {}
        }
        self.stack.push(Operand { ty, val });
    }

    pub(super) fn push_const(&mut self, ty: Ty, bits: u64) {
        self.push(ty, Val::Const(bits));
    }

    /// Takes the top operand; its register stays its own until the next instruction.
    pub(super) fn pop(&mut self) -> Operand {
        let mut operand = self.stack.pop().expect("validated");
        let height = self.stack.len() as u32;
        self.spilled = self.spilled.min(height);
        match operand.val {
            Val::Reg(reg) | Val::Scaled(reg, _) => {
                if self.holders[reg.0 as usize] == Holder::Operand(height) {
                    self.hold(reg, Holder::Free);
                }
                self.pin(reg);
            }
            Val::Local(local) => {
                self.locals[local as usize].aliases -= 1;
                if let Some(reg) = self.locals[local as usize].reg {
                    self.pin(reg);
                }
            }
            Val::Slot => operand.val = Val::Frame(self.operand_slot(height).disp()),
            Val::Load(mem) => {
                for reg in mem.registers() {
                    if self.holders[reg.0 as usize] == Holder::Operand(height) {
                        self.hold(reg, Holder::Free);
                    }
                    self.pin(reg);
                }
            }
            Val::Const(_) | Val::Frame(_) | Val::Flag(_) => {}
        }
        operand
    }

    /// Whether the operand has a register of its own, which may be written.
    pub(super) fn owns(&self, operand: &Operand) -> Option<Reg> {
        match operand.val {
            Val::Reg(reg) if self.region().homes & reg.bit() == 0 => Some(reg),
            _ => None,
        }
    }

    /// The register that an operand is in, if it is in one.
    pub(super) fn current_reg(&self, operand: &Operand) -> Option<Reg> {
        match operand.val {
            Val::Reg(reg) => Some(reg),
            Val::Local(local) => self.locals[local as usize].reg,
            _ => None,
        }
    }

    /// Whether the operand's value depends on this register.
    pub(super) fn depends_on(&self, operand: &Operand, reg: Reg) -> bool {
        match operand.val {
            Val::Load(mem) => mem.registers().any(|used| used == reg),
            Val::Scaled(used, _) => used == reg,
            // A local that is in its slot only will be loaded into its home.
            Val::Local(local) if self.locals[local as usize].home == Some(reg) => true,
            _ => self.current_reg(operand) == Some(reg),
        }
    }

    /// The operand as the source of a move: no code is made, except for what the next instruction was to do.
    pub(super) fn place(&mut self, operand: &Operand) -> Place {
        match operand.val {
            Val::Const(bits) => Place::Const(bits),
            Val::Reg(reg) => Place::Reg(reg),
            Val::Local(local) => self.local_place(local),
            Val::Frame(disp) => Place::Mem(Mem::base(Reg::RBP, disp)),
            Val::Slot => unreachable!("still on the stack"),
            Val::Load(mem) => Place::Mem(mem),
            Val::Scaled(..) | Val::Flag(_) => Place::Reg(self.to_reg(operand)),
        }
    }

    /// The operand in a register, pinned, which may be a local's and must not be written.
    pub(super) fn to_reg(&mut self, operand: &Operand) -> Reg {
        match operand.val {
            Val::Reg(reg) => reg,
            Val::Local(local) => self.local_reg(local),
            _ => {
                let reg = self.alloc(operand.ty.is_float());
                self.to_this(operand, reg);
                reg
            }
        }
    }

    /// The operand in a register that may be written.
    pub(super) fn to_own_reg(&mut self, operand: &Operand) -> Reg {
        if let Some(reg) = self.owns(operand) {
            return reg;
        }
        let reg = self.alloc(operand.ty.is_float());
        self.to_this(operand, reg);
        reg
    }

    /// Moves the operand into this register. The flags stay, unless they are the operand.
    pub(super) fn to_this(&mut self, operand: &Operand, reg: Reg) {
        match operand.val {
            Val::Scaled(index, scale) => self.asm.lea(operand.ty.wide(), reg, Mem::scaled(index, scale, 0)),
            Val::Flag(flag) => self.flag_to_reg(flag, reg),
            _ => {
                let place = self.place(operand);
                self.move_value(operand.ty, Place::Reg(reg), place);
            }
        }
    }

    /// The operand as a source that may be memory.
    pub(super) fn to_rm(&mut self, operand: &Operand) -> Rm {
        match operand.val {
            Val::Frame(disp) => Rm::Mem(Mem::base(Reg::RBP, disp)),
            Val::Load(mem) => Rm::Mem(mem),
            Val::Const(bits) if operand.ty.is_float() && bits != 0 => {
                Rm::Mem(self.constant(u128::from(bits), size_of(operand.ty).bytes()))
            }
            Val::Local(local) => match self.locals[local as usize] {
                Local { reg: None, home: None, .. } => Rm::Mem(self.local_slot(local)),
                _ => Rm::Reg(self.local_reg(local)),
            },
            _ => Rm::Reg(self.to_reg(operand)),
        }
    }

    /// The flag as 0 or 1.
    fn flag_to_reg(&mut self, flag: Flag, reg: Reg) {
        match flag {
            Flag::Int(cond) => self.asm.setcc(cond, reg),
            Flag::FloatEqual => {
                self.asm.setcc(Cond::NotParity, SCRATCH);
                self.asm.setcc(Cond::Equal, reg);
                self.asm.alu(crate::asm::Alu::And, false, reg, SCRATCH);
            }
            Flag::FloatNotEqual => {
                self.asm.setcc(Cond::Parity, SCRATCH);
                self.asm.setcc(Cond::NotEqual, reg);
                self.asm.alu(crate::asm::Alu::Or, false, reg, SCRATCH);
            }
        }
        self.asm.movzx(Size::B1, reg, reg);
    }

    /// Loads a routine's address table, and gives the place of an entry.
    pub(super) fn libcall_entry(&mut self, libcall: crate::vmctx::Libcall) -> Mem {
        self.asm.mov(true, SCRATCH, Mem::base(CONTEXT, crate::vmctx::LIBCALLS));
        Mem::base(SCRATCH, 8 * libcall as i32)
    }
}

/// The size of a value in its slot.
pub(super) fn size_of(ty: Ty) -> Size {
    if ty.wide() { Size::B8 } else { Size::B4 }
}

/// The bits as an immediate that is sign-extended to the type's size.
pub(super) fn immediate(ty: Ty, bits: u64) -> Option<i32> {
    if ty.wide() { i32::try_from(bits as i64).ok() } else { Some(bits as u32 as i32) }
}

/// The scratch register of a kind.
pub(super) fn scratch(float: bool) -> Reg {
    if float { FLOAT_SCRATCH } else { SCRATCH }
}
