//! Loads, stores, globals, tables.
//!
//! An access to a 32-bit memory needs no check: the base plus a 32-bit index plus a 32-bit offset
//! stays inside the reserved range, and an access beyond the memory's size faults. If there is no
//! such reservation ([`ModuleInfo::checks_bounds`](crate::module::ModuleInfo::checks_bounds)), the
//! end of the access is compared with the memory's length. In a 64-bit memory, the sum of index and
//! offset may overflow, which traps; if it is computed at compile time, it saturates, and is then
//! larger than any memory.

use wasmparser::{MemArg, MemArgTarget};

use super::float::Signedness;
use crate::asm::{Alu, Cond, Mem, Reg, RegClass, Shift, Size, Width};
use crate::compiler::abi::{CONTEXT, MEMORY, SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::instruction::Next;
use crate::compiler::register_file::Holder;
use crate::compiler::state::{Operand, Place, Val, immediate};
use crate::vmctx::{
    FUNC_REF_SIZE, FUNC_REFS, Libcall, MEMORY_BASE, MEMORY_LENGTH, TABLE_ELEMENTS, TABLE_LENGTH, TrapCode,
};

impl FunctionCompiler<'_> {
    /// The register with a memory's base.
    fn memory_base(&mut self, memory: u32) -> Reg {
        if memory == 0 {
            return MEMORY;
        }
        let base = self.alloc(RegClass::General);
        self.asm.mov(Width::W64, base, Mem::base(CONTEXT, self.layout.memory(memory) + MEMORY_BASE));
        base
    }

    /// Traps if `reg` + `end` exceeds the memory's length.
    fn check_bounds(&mut self, memory: u32, reg: Reg, end: i32) {
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, self.layout.memory(memory) + MEMORY_LENGTH));
        self.asm.mov(Width::W64, SCRATCH, Mem::base(SCRATCH, 0));
        if end != 0 {
            self.asm.alu_imm(Alu::Sub, Width::W64, SCRATCH, end);
        }
        if i64::from(end) as u64 > self.least_length(memory) {
            self.trap_if(Cond::Below, TrapCode::MemoryOutOfBounds);
        }
        self.asm.alu(Alu::Cmp, Width::W64, SCRATCH, reg);
        self.trap_if(Cond::Below, TrapCode::MemoryOutOfBounds);
    }

    /// Traps if the end of an access of `bytes` bytes, in this register, exceeds the memory's
    /// length; otherwise turns it into the start address.
    fn check_end(&mut self, memory: u32, end: Reg, bytes: u32) {
        self.check_bounds(memory, end, 0);
        let masks = self.module.settings.masks_indices;
        if masks {
            self.asm.alu(Alu::Sbb, Width::W64, SCRATCH, SCRATCH);
            self.asm.not(Width::W64, SCRATCH);
        }
        self.asm.alu_imm(Alu::Sub, Width::W64, end, bytes as i32);
        if masks {
            self.asm.alu(Alu::And, Width::W64, end, SCRATCH);
        }
    }

    /// The minimum length of a memory, in bytes.
    fn least_length(&self, memory: u32) -> u64 {
        let page = 1 << self.module.page_size_log2(memory);
        self.module.memories[memory as usize].initial.saturating_mul(page)
    }

    /// `reg += add`, an address in a memory; traps if that overflows.
    pub(crate) fn add_to_address(&mut self, memory: u32, reg: Reg, add: Reg) {
        self.asm.alu(Alu::Add, Width::W64, reg, add);
        if self.module.memories[memory as usize].memory64 {
            self.trap_if(Cond::Below, TrapCode::MemoryOutOfBounds);
        }
    }

    /// The address of an access of `bytes` bytes.
    pub(crate) fn address(&mut self, operand: &Operand, arg: &MemArg, bytes: u32) -> Mem {
        let memory = memory_of(arg);
        let base = self.memory_base(memory);
        let checks_bounds = self.module.checks_bounds(memory);
        if let Val::Const(index) = operand.val {
            let whole = index.saturating_add(arg.offset);
            let end = whole.saturating_add(u64::from(bytes));
            // A memory never shrinks.
            if checks_bounds && end > self.least_length(memory) {
                let far = self.alloc(RegClass::General);
                self.asm.mov_imm(far, end);
                self.check_end(memory, far, bytes);
                return Mem::indexed(base, far, 0, 0);
            }
            if let Ok(disp) = i32::try_from(whole) {
                return Mem::base(base, disp);
            }
            let far = self.alloc(RegClass::General);
            self.asm.mov_imm(far, whole);
            return Mem::indexed(base, far, 0, 0);
        }
        let index = self.to_reg(operand);
        if let Ok(disp) = i32::try_from(arg.offset) {
            if !checks_bounds {
                return Mem::indexed(base, index, 0, disp);
            }
            if let Some(end) = disp.checked_add(bytes as i32)
                && !self.module.settings.masks_indices
            {
                self.check_bounds(memory, index, end);
                return Mem::indexed(base, index, 0, disp);
            }
        }
        let far = self.alloc(RegClass::General);
        if checks_bounds {
            self.asm.mov_imm(far, arg.offset.saturating_add(u64::from(bytes)));
            self.add_to_address(memory, far, index);
            self.check_end(memory, far, bytes);
        } else {
            self.asm.mov_imm(far, arg.offset);
            self.asm.alu(Alu::Add, Width::W64, far, index);
        }
        Mem::indexed(base, far, 0, 0)
    }

    /// As [`Self::address`], using at most one register besides the operand's, for instructions
    /// that need the others.
    pub(crate) fn address_in_one(&mut self, operand: &Operand, arg: &MemArg, size: Size) -> Mem {
        let memory = memory_of(arg);
        let checks_bounds = self.module.checks_bounds(memory);
        let near = i32::try_from(arg.offset).ok();
        if memory == 0 && near.is_some() && !(checks_bounds && self.module.settings.masks_indices) {
            return self.address(operand, arg, size.bytes());
        }
        let whole = self.to_own_reg(operand);
        let mut disp = near.unwrap_or(0);
        if checks_bounds {
            self.asm.mov_imm(SCRATCH, arg.offset.saturating_add(u64::from(size.bytes())));
            self.add_to_address(memory, whole, SCRATCH);
            self.check_end(memory, whole, size.bytes());
            disp = 0;
        } else if near.is_none() {
            self.asm.mov_imm(SCRATCH, arg.offset);
            self.asm.alu(Alu::Add, Width::W64, whole, SCRATCH);
        }
        if memory == 0 {
            return Mem::indexed(MEMORY, whole, 0, disp);
        }
        let base = Mem::base(CONTEXT, self.layout.memory(memory) + MEMORY_BASE);
        self.asm.alu(Alu::Add, Width::W64, whole, base);
        Mem::base(whole, disp)
    }

    /// Pushes a load that the next instruction performs.
    fn push_load(&mut self, ty: Ty, mem: Mem) {
        let height = self.stack.height();
        for reg in mem.registers() {
            let caches_local = self.region().cached & reg.bit() != 0;
            if !caches_local && reg != MEMORY && reg != CONTEXT && self.registers.holder(reg) == Holder::Free
            {
                self.registers.hold(reg, Holder::Operand(height));
            }
        }
        self.push(ty, Val::Load(mem));
    }

    /// Whether the next instruction can take a value of this type from memory.
    fn next_takes_memory(&self, ty: Ty) -> bool {
        match (self.instruction.next, ty) {
            (Next::Int { width } | Next::Add { width }, Ty::I32 | Ty::I64) => width == ty.width(),
            (Next::Float { precision }, Ty::F32 | Ty::F64) => precision == ty.precision(),
            _ => false,
        }
    }

    /// A load of a full value.
    pub(crate) fn load(&mut self, ty: Ty, arg: &MemArg) {
        let operand = self.pop();
        let size = Size::from(ty.width());
        let mem = self.address(&operand, arg, size.bytes());
        if self.next_takes_memory(ty) {
            return self.push_load(ty, mem);
        }
        let dst = match (self.target(ty.class()), self.owns(&operand)) {
            (Some(target), _) => target,
            (None, Some(own)) if !ty.is_sse() => own,
            _ => self.alloc(ty.class()),
        };
        self.move_value(ty, Place::Reg(dst), Place::Mem(mem));
        self.push(ty, Val::Reg(dst));
    }

    /// A load of a partial value, extended.
    pub(crate) fn load_part(&mut self, ty: Ty, size: Size, signedness: Signedness, arg: &MemArg) {
        let operand = self.pop();
        let mem = self.address(&operand, arg, size.bytes());
        let dst = self.result_or(&operand);
        match signedness {
            Signedness::Signed => self.asm.movsx(size, ty.width(), dst, mem),
            Signedness::Unsigned => self.asm.movzx(size, dst, mem),
        }
        self.push(ty, Val::Reg(dst));
    }

    /// A store of the value's lowest bytes.
    pub(crate) fn store(&mut self, size: Size, arg: &MemArg) {
        let value = self.pop();
        let operand = self.pop();
        let mem = self.address(&operand, arg, size.bytes());
        if let Val::Const(bits) = value.val
            && let Some(imm) = immediate(Ty::int(size.width()), bits)
        {
            return self.asm.mov_store_imm(size, mem, imm);
        }
        let src = self.to_reg(&value);
        if src.is_float() {
            self.asm.float_store(size.width().into(), mem, src);
        } else {
            self.asm.mov_store(size, mem, src);
        }
    }

    pub(crate) fn memory_size(&mut self, memory: u32) {
        let dst = self.alloc(RegClass::General);
        self.asm.mov(Width::W64, dst, Mem::base(CONTEXT, self.layout.memory(memory) + MEMORY_LENGTH));
        self.asm.mov(Width::W64, dst, Mem::base(dst, 0));
        let page = self.module.page_size_log2(memory);
        if page != 0 {
            self.asm.shift_imm(Shift::Shr, Width::W64, dst, page);
        }
        self.push(self.memory_index(memory), Val::Reg(dst));
    }

    /// The type of a memory's addresses and sizes.
    fn memory_index(&self, memory: u32) -> Ty {
        if self.module.memories[memory as usize].memory64 { Ty::I64 } else { Ty::I32 }
    }

    /// The type of a table's indices and sizes.
    fn table_index(&self, table: u32) -> Ty {
        if self.module.tables[table as usize].table64 { Ty::I64 } else { Ty::I32 }
    }

    // Globals.

    fn global_place(&mut self, global: u32) -> Mem {
        let place = Mem::base(CONTEXT, self.layout.global(global));
        if global >= self.module.imported_globals {
            return place;
        }
        let address = self.alloc(RegClass::General);
        self.asm.mov(Width::W64, address, place);
        Mem::base(address, 0)
    }

    pub(crate) fn global_get(&mut self, global: u32) {
        let ty = Ty::from(self.module.globals[global as usize].content_type);
        let place = self.global_place(global);
        self.push_from(ty, place);
    }

    /// Pushes the value in a memory operand, from which the next instruction may load it.
    pub(crate) fn push_from(&mut self, ty: Ty, place: Mem) {
        if self.next_takes_memory(ty) {
            return self.push_load(ty, place);
        }
        let dst = self.result(ty.class());
        self.move_value(ty, Place::Reg(dst), Place::Mem(place));
        self.push(ty, Val::Reg(dst));
    }

    pub(crate) fn global_set(&mut self, global: u32) {
        let operand = self.pop();
        let place = self.global_place(global);
        let src = match self.place(&operand) {
            Place::Mem(_) => Place::Reg(self.to_reg(&operand)),
            src => src,
        };
        self.move_value(operand.ty, Place::Mem(place), src);
    }

    // Tables.

    /// The address of a table's element; traps if out of bounds.
    pub(crate) fn element(&mut self, table: u32, index: &Operand, trap: TrapCode) -> Mem {
        let index = self.to_reg(index);
        let elements = self.alloc(RegClass::General);
        let masked = self.module.settings.masks_indices.then(|| self.alloc(RegClass::General));
        self.asm.mov(Width::W64, elements, Mem::base(CONTEXT, self.layout.table(table)));
        self.asm.alu(Alu::Cmp, Width::W64, index, Mem::base(elements, TABLE_LENGTH));
        self.trap_if(Cond::AboveEqual, trap);
        let index = match masked {
            Some(masked) => {
                self.mask_if_not_below(masked, index);
                masked
            }
            None => index,
        };
        self.asm.mov(Width::W64, elements, Mem::base(elements, TABLE_ELEMENTS));
        Mem::indexed(elements, index, 3, 0)
    }

    /// The index, or 0 if the last comparison found that it is not below its bound: a data
    /// dependency, which the processor does not predict.
    pub(crate) fn mask_if_not_below(&mut self, masked: Reg, index: Reg) {
        self.asm.alu(Alu::Sbb, Width::W64, masked, masked);
        self.asm.alu(Alu::And, Width::W64, masked, index);
    }

    pub(crate) fn table_get(&mut self, table: u32) {
        let index = self.pop();
        let place = self.element(table, &index, TrapCode::TableOutOfBounds);
        let dst = self.result(RegClass::General);
        self.asm.mov(Width::W64, dst, place);
        self.push(Ty::Ref, Val::Reg(dst));
    }

    pub(crate) fn table_set(&mut self, table: u32) {
        let value = self.pop();
        let index = self.pop();
        let place = self.element(table, &index, TrapCode::TableOutOfBounds);
        let value = self.to_reg(&value);
        self.asm.mov_store(Size::B8, place, value);
    }

    pub(crate) fn table_size(&mut self, table: u32) {
        let dst = self.alloc(RegClass::General);
        self.asm.mov(Width::W64, dst, Mem::base(CONTEXT, self.layout.table(table)));
        self.asm.mov(Width::W64, dst, Mem::base(dst, TABLE_LENGTH));
        self.push(self.table_index(table), Val::Reg(dst));
    }

    pub(crate) fn ref_func(&mut self, function: u32) {
        let dst = self.alloc(RegClass::General);
        self.asm.mov(Width::W64, dst, Mem::base(CONTEXT, FUNC_REFS));
        self.asm.alu_imm(Alu::Add, Width::W64, dst, function as i32 * FUNC_REF_SIZE);
        self.push(Ty::Ref, Val::Reg(dst));
    }

    // Operations of the runtime.

    /// A libcall with these constants, followed by the top operands, which it pops.
    pub(crate) fn bulk(&mut self, libcall: Libcall, constants: &[u64], operands: usize) {
        self.libcall(libcall, constants, operands);
        self.check_answer();
    }

    /// Packs two indices into one argument.
    pub(crate) fn two(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    pub(crate) fn memory_grow(&mut self, memory: u32) {
        self.bulk(Libcall::MemoryGrow, &[u64::from(memory)], 1);
        self.push_answer(self.memory_index(memory));
    }

    pub(crate) fn table_grow(&mut self, table: u32) {
        self.bulk(Libcall::TableGrow, &[u64::from(table)], 2);
        self.push_answer(self.table_index(table));
    }

    /// Pushes the result of a libcall, in `rax`.
    pub(crate) fn push_answer(&mut self, ty: Ty) {
        self.registers.pin(Reg::RAX);
        self.push(ty, Val::Reg(Reg::RAX));
    }
}

/// The memory that an access refers to.
pub(crate) fn memory_of(arg: &MemArg) -> u32 {
    match arg.target {
        MemArgTarget::Memory(memory) => memory,
        MemArgTarget::Array(_) => unreachable!("validation refuses shared arrays"),
    }
}
