//! The state of the compiler at a point of the code: where every operand and every local is.
//!
//! An *operand* of the abstract stack is a constant, a register, an alias of a local, a flag, a
//! memory operand that has not been loaded yet, or its slot in the frame. A *local* is in its slot,
//! in a register, or in both. Registers are allocated to operands on demand; when none is free, the
//! lowest operand is spilled to its slot.
//!
//! Two rules make control flow cheap:
//! - A local that is not register-cached (see `cached_locals.rs`) is up to date in its slot at
//!   every label and call. Between them a register may hold a copy, also one that is newer than the
//!   slot.
//! - At a label, every local that the label's region caches is in its cache register, and all
//!   operands below the label's own are in their slots or constants.
//!
//! This file has the types and the operations on operands. `register_file.rs` tracks which
//! registers are in use, `registers.rs` allocates them, `operators/locals.rs` reads and writes
//! locals.

use super::abi::{CONTEXT, FLOAT_SCRATCH, SCRATCH, Ty};
use super::cached_locals::Float;
use super::function::FunctionCompiler;
use super::register_file::Holder;
use crate::asm::{Cond, Mem, Reg, RegClass, Rm, Size, Width};

/// Aliases of a local are at most this far below the top of the stack: a write to a local searches
/// for them.
const MAX_ALIAS_DEPTH: u32 = 64;

/// A condition in the flags: the result of a comparison, except in the last variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flag {
    Int(Cond),
    /// Equal and ordered.
    FloatEqual,
    /// Not equal or unordered.
    FloatNotEqual,
    /// Whether a value is not zero, if the value is used for nothing else and is not in a register.
    NonZero,
}

impl Flag {
    pub(super) fn opposite(self) -> Self {
        match self {
            Self::Int(cond) => Self::Int(cond.opposite()),
            Self::FloatEqual => Self::FloatNotEqual,
            Self::FloatNotEqual => Self::FloatEqual,
            Self::NonZero => Self::Int(Cond::Equal),
        }
    }
}

/// The location of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Val {
    /// A constant, by its bits; a vector, by its number among the function's constants
    /// ([`Vectors`]).
    Const(u64),
    Reg(Reg),
    /// An alias of a local.
    Local(u32),
    /// In its own slot.
    Slot,
    /// In a slot: the state of an operand after it was popped.
    Frame(i32),
    /// Loaded by the next instruction.
    Load(Mem),
    /// A register shifted left by this many bits, by the next instruction.
    Scaled(Reg, u8),
    /// Used by the next instruction.
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
    /// The register that caches the local in the current region.
    pub(super) cache_reg: Option<Reg>,
    /// A register that holds the local's value.
    pub(super) reg: Option<Reg>,
    /// Whether the local's slot holds its value.
    pub(super) in_slot: bool,
    /// The number of operands that are aliases of the local.
    pub(super) aliases: u32,
    /// The constant that the local holds, if that is known.
    pub(super) constant: Option<HeldConstant>,
}

impl Local {
    /// Caches the local in this register, or in none.
    pub(super) fn cache(&mut self, reg: Option<Reg>, in_slot: bool) {
        self.cache_reg = reg;
        self.reg = reg;
        self.in_slot = in_slot;
    }

    /// The number of the constant that the local is known to hold here, after this many labels.
    pub(super) fn known(&self, labels: u32) -> Option<u64> {
        let held = self.constant.filter(|held| held.label.is_none_or(|label| label == labels))?;
        Some(held.number)
    }
}

/// A constant that a local of vector type has been set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldConstant {
    /// The constant's number among those of the function.
    pub(super) number: u64,
    /// The number of the last label before the local was set: after the next label, the local may
    /// hold another value. `None` inside a loop that begins with the constant and never writes the
    /// local: the constant is known everywhere in the loop, since a value that a probe writes
    /// anywhere in the loop is what the next iteration begins with.
    pub(super) label: Option<u32>,
}

/// The result of an operation, all bytes of which are less than 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SmallBytes {
    pub(super) reg: Reg,
    /// The end of the code that has computed the result: it is known only there.
    pub(super) at: u32,
}

/// The source or destination of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Reg(Reg),
    Mem(Mem),
    Const(u64),
}

impl FunctionCompiler<'_> {
    /// Inlined where the variant of `val` is known, so that the operand is written to the stack
    /// directly: a copy would be read before the processor has finished writing it.
    #[inline(always)]
    pub(super) fn push(&mut self, ty: Ty, val: Val) {
        let height = self.stack.height();
        if height >= MAX_ALIAS_DEPTH {
            self.end_alias(height - MAX_ALIAS_DEPTH);
        }
        match val {
            Val::Reg(reg) if self.region().cached & reg.bit() == 0 => {
                self.registers.hold(reg, Holder::Operand(height));
            }
            Val::Local(local) => self.locals[local as usize].aliases += 1,
            _ => {}
        }
        self.stack.push(Operand { ty, val });
    }

    /// Spills an operand that is an alias of a local.
    #[cold]
    fn end_alias(&mut self, height: u32) {
        if matches!(self.stack.at(height).val, Val::Local(_)) {
            self.spill_operand(height);
        }
    }

    pub(super) fn push_const(&mut self, ty: Ty, bits: u64) {
        self.push(ty, Val::Const(bits));
    }

    /// Pops the top operand; its register stays pinned until the next instruction.
    ///
    /// The operand may have just been pushed: it is read field by field, as it was written (see
    /// [`Self::push`]).
    pub(super) fn pop(&mut self) -> Operand {
        let Operand { ty, val } = self.stack.top();
        let (ty, height) = (*ty, self.stack.height() - 1);
        let val = match *val {
            Val::Const(bits) => Val::Const(bits),
            Val::Reg(reg) => {
                self.release(reg, height);
                Val::Reg(reg)
            }
            Val::Local(local) => {
                self.locals[local as usize].aliases -= 1;
                if let Some(reg) = self.locals[local as usize].reg {
                    self.registers.pin(reg);
                }
                Val::Local(local)
            }
            Val::Slot => Val::Frame(self.frame.operand_slot(height).disp()),
            Val::Frame(disp) => Val::Frame(disp),
            Val::Load(mem) => {
                for reg in mem.registers() {
                    self.release(reg, height);
                }
                Val::Load(mem)
            }
            Val::Scaled(reg, scale) => {
                self.release(reg, height);
                Val::Scaled(reg, scale)
            }
            Val::Flag(flag) => Val::Flag(flag),
        };
        self.stack.drop_top();
        Operand { ty, val }
    }

    /// Releases the register of the operand that is being popped from this height, and pins it.
    fn release(&mut self, reg: Reg, height: u32) {
        if self.registers.holder(reg) == Holder::Operand(height) {
            self.registers.hold(reg, Holder::Free);
        }
        self.registers.pin(reg);
    }

    /// The operand's own register, which may be written, if it has one.
    pub(super) fn owns(&self, operand: &Operand) -> Option<Reg> {
        match operand.val {
            Val::Reg(reg) if self.region().cached & reg.bit() == 0 => Some(reg),
            _ => None,
        }
    }

    /// The register that an operand is in, if it is in a register.
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
            // A local that is only in its slot will be loaded into its cache register.
            Val::Local(local) if self.locals[local as usize].cache_reg == Some(reg) => true,
            _ => self.current_reg(operand) == Some(reg),
        }
    }

    /// The operand as the source of a move. Emits no code, except for a pending operation of the
    /// next instruction.
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
                if let Some(reg) = self.holding(operand) {
                    return reg;
                }
                let reg = self.alloc(operand.ty.class());
                self.to_this(operand, reg);
                reg
            }
        }
    }

    /// The register that holds the constant that the operand is.
    fn holding(&self, operand: &Operand) -> Option<Reg> {
        let Val::Const(bits) = operand.val else { return None };
        self.region().holding(Float { ty: operand.ty, bits })
    }

    /// The operand in a register that may be written.
    pub(super) fn to_own_reg(&mut self, operand: &Operand) -> Reg {
        if let Some(reg) = self.owns(operand) {
            return reg;
        }
        let reg = self.alloc(operand.ty.class());
        self.to_this(operand, reg);
        reg
    }

    /// Moves the operand into this register. Preserves the flags, unless they are the operand.
    pub(super) fn to_this(&mut self, operand: &Operand, reg: Reg) {
        match operand.val {
            Val::Scaled(index, scale) => self.asm.lea(operand.ty.width(), reg, Mem::scaled(index, scale, 0)),
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
            Val::Const(number) if operand.ty == Ty::V128 => match self.vectors.get(number) {
                0 | u128::MAX => Rm::Reg(self.to_reg(operand)),
                bits => Rm::Mem(self.constant(bits, 16)),
            },
            Val::Const(bits) if operand.ty.is_sse() && bits != 0 => match self.holding(operand) {
                Some(reg) => Rm::Reg(reg),
                None => Rm::Mem(self.constant(u128::from(bits), size_of(operand.ty).bytes())),
            },
            Val::Local(local) => match self.locals[local as usize] {
                Local { reg: None, cache_reg: None, .. } => Rm::Mem(self.frame.local_slot(local)),
                _ => Rm::Reg(self.local_reg(local)),
            },
            _ => Rm::Reg(self.to_reg(operand)),
        }
    }

    /// The flag as 0 or 1.
    fn flag_to_reg(&mut self, flag: Flag, reg: Reg) {
        match flag {
            Flag::Int(cond) => self.asm.setcc(cond, reg),
            Flag::NonZero => unreachable!("the next instruction takes a condition"),
            Flag::FloatEqual => {
                self.asm.setcc(Cond::NotParity, SCRATCH);
                self.asm.setcc(Cond::Equal, reg);
                self.asm.alu(crate::asm::Alu::And, Width::W32, reg, SCRATCH);
            }
            Flag::FloatNotEqual => {
                self.asm.setcc(Cond::Parity, SCRATCH);
                self.asm.setcc(Cond::NotEqual, reg);
                self.asm.alu(crate::asm::Alu::Or, Width::W32, reg, SCRATCH);
            }
        }
        self.asm.movzx(Size::B1, reg, reg);
    }

    /// Loads the address of the libcall table, and returns the address of an entry.
    pub(super) fn libcall_entry(&mut self, libcall: crate::vmctx::Libcall) -> Mem {
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, crate::vmctx::LIBCALLS));
        Mem::base(SCRATCH, 8 * libcall as i32)
    }
}

/// The vectors that are constants of a function. Number 0 is zero, as in other types.
#[derive(Debug, Default)]
pub(super) struct Vectors(Vec<u128>);

impl Vectors {
    /// The number of a constant.
    pub(super) fn number(&mut self, bits: u128) -> u64 {
        if bits == 0 {
            return 0;
        }
        self.0.push(bits);
        self.0.len() as u64
    }

    /// The constant of this number.
    pub(super) fn get(&self, number: u64) -> u128 {
        number.checked_sub(1).map_or(0, |index| self.0[index as usize])
    }
}

/// The integer that the zero flag compares with zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ZeroFlag {
    pub(super) reg: Reg,
    pub(super) width: Width,
    /// The end of the code that has set the flag: it is known only there.
    pub(super) at: u32,
}

/// The size of a value in its slot.
pub(super) fn size_of(ty: Ty) -> Size {
    ty.width().into()
}

/// The bits as an immediate that is sign-extended to the type's size.
pub(super) fn immediate(ty: Ty, bits: u64) -> Option<i32> {
    match ty.width() {
        Width::W64 => i32::try_from(bits as i64).ok(),
        Width::W32 => Some(bits as u32 as i32),
    }
}

/// The scratch register of a class.
pub(super) fn scratch(class: RegClass) -> Reg {
    match class {
        RegClass::General => SCRATCH,
        RegClass::Sse => FLOAT_SCRATCH,
    }
}
