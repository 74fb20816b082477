//! Structures, arrays and `i31`: their allocation and their fields.
//!
//! A small object whose size is known is allocated by compiled code: it is written at the next free
//! address of the store's span, and only then is the start of the span advanced. A thread that
//! leaves here because of a trap or an interrupt therefore leaves no half-written object in the
//! heap. If the span is used up, [`Libcall::MakeRoom`] finds another one and preserves all
//! registers, so the fast path spills nothing. Other objects are allocated by the runtime.
//!
//! The layout of objects is in [`crate::objects`].

use super::float::Signedness;
use crate::asm::{Alu, Cond, Mem, Reg, RegClass, Shift, Size, Width};
use crate::compiler::abi::{CONTEXT, SCRATCH, Ty};
use crate::compiler::cold::Cold;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Operand, Place, Val, immediate};
use crate::objects::{
    ARRAY_ELEMENTS, ARRAY_LENGTH, FIRST_FIELD, I31_BIT, MAX_SMALL_OBJECT, Storage, array_size,
};
use crate::vmctx::{ELEMENT, HEAP_END, HEAP_NEXT, Libcall, STORE, TrapCode};

/// Structures up to this size are zeroed by compiled code.
const MAX_ZEROED: u32 = 128;

impl FunctionCompiler<'_> {
    // Structures.

    pub(crate) fn struct_new(&mut self, ty: u32) {
        let module = self.module;
        let layout = module.struct_layout(ty);
        let count = layout.fields.len() as u32;
        let object = if layout.size > MAX_SMALL_OBJECT {
            self.struct_new_default(ty);
            let object = self.pop_answer();
            self.store_fields(object, count, |field| layout.fields[field as usize].into());
            object
        } else {
            self.new_small(ty, layout.size, |compiler, object| {
                compiler.store_fields(object, count, |field| layout.fields[field as usize].into());
            })
        };
        self.truncate(self.stack.height() - count);
        self.push(Ty::Ref, Val::Reg(object));
    }

    pub(crate) fn struct_new_default(&mut self, ty: u32) {
        let size = self.module.struct_layout(ty).size;
        if size > MAX_ZEROED {
            self.bulk(Libcall::StructNew, &[u64::from(ty)], 0);
            return self.push_answer(Ty::Ref);
        }
        let object = self.new_small(ty, size, |compiler, object| {
            for at in (FIRST_FIELD..size).step_by(8) {
                compiler.asm.mov_store_imm(Size::B8, Mem::base(object, at as i32), 0);
            }
        });
        self.push(Ty::Ref, Val::Reg(object));
    }

    /// `struct.get`, with the extension of packed fields.
    pub(crate) fn struct_get(&mut self, ty: u32, field: u32, signedness: Signedness) {
        let field = self.module.struct_layout(ty).fields[field as usize];
        let reference = self.pop();
        let object = self.object(&reference);
        self.load_element(field.storage, signedness, Mem::base(object, field.offset as i32));
    }

    pub(crate) fn struct_set(&mut self, ty: u32, field: u32) {
        let field = self.module.struct_layout(ty).fields[field as usize];
        let value = self.pop();
        let reference = self.pop();
        let object = self.object(&reference);
        self.store_element(field.storage, &value, Mem::base(object, field.offset as i32));
    }

    // Arrays.

    pub(crate) fn array_new(&mut self, ty: u32) {
        let length = self.pop();
        let value = self.pop();
        self.set_element(&value);
        self.push(length.ty, length.val);
        self.bulk(Libcall::ArrayNew, &[u64::from(ty)], 1);
        self.push_answer(Ty::Ref);
    }

    pub(crate) fn array_new_default(&mut self, ty: u32) {
        let zero = Operand { ty: self.module.array_element(ty).unpacked().into(), val: Val::Const(0) };
        self.set_element(&zero);
        self.bulk(Libcall::ArrayNew, &[u64::from(ty)], 1);
        self.push_answer(Ty::Ref);
    }

    pub(crate) fn array_new_fixed(&mut self, ty: u32, length: u32) {
        let storage = self.module.array_element(ty);
        let size = array_size(storage.log2(), length);
        let element =
            move |index| Element { storage, offset: ARRAY_ELEMENTS + (storage.bytes() * index) as i32 };
        let object = if size > u64::from(MAX_SMALL_OBJECT) {
            self.push_const(Ty::I32, u64::from(length));
            self.array_new_default(ty);
            let object = self.pop_answer();
            self.store_fields(object, length, element);
            object
        } else {
            self.new_small(ty, size as u32, |compiler, object| {
                let mem = Mem::base(object, ARRAY_LENGTH);
                // Writes the full quadword, although the upper half is never read.
                compiler.asm.mov_store_imm(Size::B8, mem, length as i32);
                compiler.store_fields(object, length, element);
            })
        };
        self.truncate(self.stack.height() - length);
        self.push(Ty::Ref, Val::Reg(object));
    }

    pub(crate) fn array_new_data(&mut self, ty: u32, segment: u32) {
        self.bulk(Libcall::ArrayNewData, &[Self::two(ty, segment)], 2);
        self.push_answer(Ty::Ref);
    }

    pub(crate) fn array_new_elem(&mut self, ty: u32, segment: u32) {
        self.bulk(Libcall::ArrayNewElem, &[Self::two(ty, segment)], 2);
        self.push_answer(Ty::Ref);
    }

    pub(crate) fn array_get(&mut self, ty: u32, signedness: Signedness) {
        let storage = self.module.array_element(ty);
        let index = self.pop();
        let reference = self.pop();
        let mem = self.array_place(storage, &reference, &index);
        self.load_element(storage, signedness, mem);
    }

    pub(crate) fn array_set(&mut self, ty: u32) {
        let storage = self.module.array_element(ty);
        let value = self.pop();
        let index = self.pop();
        let reference = self.pop();
        let mem = self.array_place(storage, &reference, &index);
        self.store_element(storage, &value, mem);
    }

    pub(crate) fn array_len(&mut self) {
        let reference = self.pop();
        let array = self.object(&reference);
        self.load_element(
            Storage::Value(wasmparser::ValType::I32),
            Signedness::Unsigned,
            Mem::base(array, ARRAY_LENGTH),
        );
    }

    pub(crate) fn array_fill(&mut self, ty: u32) {
        let length = self.pop();
        let value = self.pop();
        self.set_element(&value);
        self.push(length.ty, length.val);
        self.bulk(Libcall::ArrayFill, &[u64::from(ty)], 3);
    }

    pub(crate) fn array_copy(&mut self) {
        self.pop_length();
        self.bulk(Libcall::ArrayCopy, &[], 4);
    }

    pub(crate) fn array_init_data(&mut self, ty: u32, segment: u32) {
        self.pop_length();
        self.bulk(Libcall::ArrayInitData, &[Self::two(ty, segment)], 3);
    }

    pub(crate) fn array_init_elem(&mut self, ty: u32, segment: u32) {
        self.pop_length();
        self.bulk(Libcall::ArrayInitElem, &[Self::two(ty, segment)], 3);
    }

    // i31.

    pub(crate) fn ref_i31(&mut self) {
        let value = self.pop();
        let value_reg = self.to_reg(&value);
        let dst = self.result_or(&value);
        // The upper bit is lost, and the upper half of the register becomes 0.
        self.asm.lea(Width::W32, dst, Mem::indexed(value_reg, value_reg, 0, I31_BIT as i32));
        self.push(Ty::Ref, Val::Reg(dst));
    }

    pub(crate) fn i31_get(&mut self, signedness: Signedness) {
        let reference = self.pop();
        let source = self.object(&reference);
        let dst = self.result_or(&reference);
        if dst != source {
            self.asm.mov(Width::W32, dst, source);
        }
        let shift = match signedness {
            Signedness::Signed => Shift::Sar,
            Signedness::Unsigned => Shift::Shr,
        };
        self.asm.shift_imm(shift, Width::W32, dst, 1);
        self.push(Ty::I32, Val::Reg(dst));
    }

    // The parts of them.

    /// The reference in a register that must not be written; traps if it is null.
    fn object(&mut self, reference: &Operand) -> Reg {
        let object = self.to_reg(reference);
        self.test_zero(Width::W64, object);
        self.trap_if(Cond::Equal, TrapCode::NullReference);
        object
    }

    /// The location of an array's element; traps if there is none.
    fn array_place(&mut self, storage: Storage, reference: &Operand, index: &Operand) -> Mem {
        let array = self.object(reference);
        let bytes = storage.bytes();
        if let Val::Const(number) = index.val {
            let number = number as u32;
            let offset = u64::from(number) * u64::from(bytes) + ARRAY_ELEMENTS as u64;
            if let Ok(offset) = i32::try_from(offset) {
                self.asm.alu_imm(Alu::Cmp, Width::W32, Mem::base(array, ARRAY_LENGTH), number as i32);
                self.trap_if(Cond::BelowEqual, TrapCode::ArrayOutOfBounds);
                return Mem::base(array, offset);
            }
        }
        let index = self.to_reg(index);
        let is_scaled = bytes <= 8;
        let masks = self.module.settings.masks_indices;
        let own = (masks || !is_scaled).then(|| self.alloc(RegClass::General));
        self.asm.alu(Alu::Cmp, Width::W32, index, Mem::base(array, ARRAY_LENGTH));
        self.trap_if(Cond::AboveEqual, TrapCode::ArrayOutOfBounds);
        let index = match own {
            Some(own) if masks => {
                self.mask_if_not_below(own, index);
                own
            }
            _ => index,
        };
        match own {
            Some(own) if !is_scaled => {
                // The double index, as eight bytes are the largest scale.
                self.asm.lea(Width::W64, own, Mem::indexed(index, index, 0, 0));
                Mem::indexed(array, own, 3, ARRAY_ELEMENTS)
            }
            _ => Mem::indexed(array, index, storage.log2(), ARRAY_ELEMENTS),
        }
    }

    /// Pushes the value in a memory operand.
    fn load_element(&mut self, storage: Storage, signedness: Signedness, mem: Mem) {
        let ty = Ty::from(storage.unpacked());
        let size = match storage {
            Storage::I8 => Size::B1,
            Storage::I16 => Size::B2,
            Storage::Value(_) => return self.push_from(ty, mem),
        };
        let dst = self.result(RegClass::General);
        match signedness {
            Signedness::Signed => self.asm.movsx(size, Width::W32, dst, mem),
            Signedness::Unsigned => self.asm.movzx(size, dst, mem),
        }
        self.push(ty, Val::Reg(dst));
    }

    /// Writes a value to a memory operand.
    fn store_element(&mut self, storage: Storage, value: &Operand, mem: Mem) {
        let src = match self.place(value) {
            Place::Mem(_) => Place::Reg(self.to_reg(value)),
            src => src,
        };
        self.write(storage, value.ty, mem, src);
    }

    /// Writes a value, through a scratch register if it is in memory.
    fn write(&mut self, storage: Storage, ty: Ty, mem: Mem, src: Place) {
        let size = match storage {
            Storage::I8 => Size::B1,
            Storage::I16 => Size::B2,
            Storage::Value(_) => return self.move_value(ty, Place::Mem(mem), src),
        };
        match src {
            Place::Reg(src) => self.asm.mov_store(size, mem, src),
            Place::Const(bits) => self.asm.mov_store_imm(size, mem, narrow(size, bits)),
            Place::Mem(src) => {
                self.asm.mov(Width::W32, SCRATCH, src);
                self.asm.mov_store(size, mem, SCRATCH);
            }
        }
    }

    /// Writes the top operands, which stay on the stack, into an object.
    fn store_fields(&mut self, object: Reg, count: u32, field: impl Fn(u32) -> Element) {
        let base = self.stack.height() - count;
        for index in 0..count {
            let operand = self.peek(base + index);
            let src = self.place(&operand);
            let Element { storage, offset } = field(index);
            self.write(storage, operand.ty, Mem::base(object, offset), src);
        }
    }

    /// Allocates a small object, in a new register, and writes its type; `write` writes everything
    /// else, and changes only the scratch registers.
    fn new_small(&mut self, ty: u32, size: u32, write: impl FnOnce(&mut Self, Reg)) -> Reg {
        self.frame.note_call(0);
        let object = self.alloc(RegClass::General);
        let next = self.alloc(RegClass::General);
        let (again, slow) = (self.asm.new_label(), self.asm.new_label());
        self.asm.bind(again);
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        self.asm.mov(Width::W64, object, Mem::base(SCRATCH, HEAP_NEXT));
        self.asm.lea(Width::W64, next, Mem::base(object, size as i32));
        self.asm.alu(Alu::Cmp, Width::W64, next, Mem::base(SCRATCH, HEAP_END));
        self.asm.jcc(Cond::Above, slow);
        self.cold.push(Cold::MakeRoom {
            label: slow,
            size,
            back: again,
            position: self.instruction.position,
        });
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, self.layout.ty(ty)));
        self.asm.mov_store(Size::B8, Mem::base(object, 0), SCRATCH);
        write(self, object);
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        self.asm.mov_store(Size::B8, Mem::base(SCRATCH, HEAP_NEXT), next);
        object
    }

    /// Pops the object that a libcall has just created: it is still in the register.
    fn pop_answer(&mut self) -> Reg {
        self.pop();
        Reg::RAX
    }

    /// Pops the number of elements that an operation of the runtime concerns.
    fn pop_length(&mut self) {
        let length = self.pop();
        self.set_element(&length);
    }

    /// Records a value for the runtime.
    fn set_element(&mut self, value: &Operand) {
        let reg = self.to_reg(value);
        self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        // The full register of an `i32`, whose upper half is 0.
        let ty = if value.ty == Ty::I32 { Ty::I64 } else { value.ty };
        self.move_value(ty, Place::Mem(Mem::base(SCRATCH, ELEMENT)), Place::Reg(reg));
    }
}

/// Where a field or element is, and how it is stored.
#[derive(Clone, Copy)]
struct Element {
    storage: Storage,
    offset: i32,
}

impl From<crate::objects::Field> for Element {
    fn from(field: crate::objects::Field) -> Self {
        Self { storage: field.storage, offset: field.offset as i32 }
    }
}

/// The lowest bits, as an immediate of this size.
fn narrow(size: Size, bits: u64) -> i32 {
    match size {
        Size::B1 => i32::from(bits as u8 as i8),
        Size::B2 => i32::from(bits as u16 as i16),
        _ => immediate(Ty::I32, bits).expect("all of 32 bits are an immediate"),
    }
}
