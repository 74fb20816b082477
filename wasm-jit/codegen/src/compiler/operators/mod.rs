//! Dispatches each operator to its code.

pub(super) mod access;
mod atomics;
mod branches;
pub(super) mod calls;
mod casts;
mod control;
mod division;
pub(super) mod exceptions;
mod float;
mod int;
mod locals;
mod memory;
mod objects;
mod references;
mod vector;
mod wide;

use wasmparser::Operator;

use self::atomics::Rmw;
use self::division::Division;
use self::float::{Extreme, Misfit, Relation, Signedness};
use crate::asm::{Alu, Cond, FloatOp, Precision, Rounding, Shift, Size, Width};
use crate::compiler::Limit;
use crate::compiler::abi::Ty;
use crate::compiler::control_stack::Kind;
use crate::compiler::function::FunctionCompiler;
use crate::vmctx::{Libcall, TrapCode};

impl FunctionCompiler<'_> {
    /// Compiles one reachable operator.
    pub(crate) fn operator(&mut self, operator: &Operator<'_>) -> Result<(), Limit> {
        use Misfit::{Saturate, Trap};
        use Operator as O;
        use Precision::{Double, Single};
        use Signedness::{Signed, Unsigned};
        use Size::{B1, B2, B4, B8};
        use Width::{W32, W64};
        match operator {
            O::Nop => {}
            O::Unreachable => {
                self.trap(TrapCode::Unreachable);
                self.stop();
            }
            O::Block { blockty } => self.open(Kind::Block, *blockty),
            O::Loop { blockty } => self.loop_start(*blockty),
            O::If { blockty } => self.if_start(*blockty),
            O::Else => self.else_start(),
            O::End => self.end(),
            O::Br { relative_depth } => self.br(*relative_depth),
            O::BrIf { relative_depth } => self.br_if(*relative_depth),
            O::BrOnNull { relative_depth } => self.br_on_null(*relative_depth),
            O::BrOnNonNull { relative_depth } => self.br_on_non_null(*relative_depth),
            O::BrTable { targets } => self.br_table(targets)?,
            O::Return => self.br(self.control.outermost()),
            O::Call { function_index } => self.call(*function_index),
            O::CallIndirect { type_index, table_index } => self.call_indirect(*table_index, *type_index),
            O::CallRef { type_index } => self.call_ref(*type_index),
            O::ReturnCallRef { type_index } => self.return_call_ref(*type_index),
            O::ReturnCall { function_index } => self.return_call(*function_index),
            O::ReturnCallIndirect { type_index, table_index } => {
                self.return_call_indirect(*table_index, *type_index)
            }

            O::TryTable { try_table } => self.try_table(try_table)?,
            O::Throw { tag_index } => self.throw(*tag_index),
            O::ThrowRef => self.throw_ref(),
            O::Try { blockty } => self.try_start(*blockty),
            O::Catch { tag_index } => self.catch(Some(*tag_index)),
            O::CatchAll => self.catch(None),
            O::Rethrow { relative_depth } => self.rethrow(*relative_depth),
            O::Delegate { relative_depth } => self.delegate(*relative_depth),

            O::Drop => {
                self.pop();
            }
            O::Select | O::TypedSelect { .. } => self.select(),
            O::LocalGet { local_index } => self.local_get(*local_index),
            O::LocalSet { local_index } => self.local_set(*local_index),
            O::LocalTee { local_index } => self.local_tee(*local_index),
            O::GlobalGet { global_index } => self.global_get(*global_index),
            O::GlobalSet { global_index } => self.global_set(*global_index),

            O::I32Const { value } => self.push_const(Ty::I32, u64::from(*value as u32)),
            O::I64Const { value } => self.push_const(Ty::I64, *value as u64),
            O::F32Const { value } => self.push_const(Ty::F32, u64::from(value.bits())),
            O::F64Const { value } => self.push_const(Ty::F64, value.bits()),
            O::RefNull { .. } => self.push_const(Ty::Ref, 0),
            O::RefIsNull => self.int_eqz(W64),
            O::RefEq => self.int_compare(Cond::Equal, W64),
            O::RefTestNonNull { hty } => self.ref_test(false, *hty),
            O::RefTestNullable { hty } => self.ref_test(true, *hty),
            O::RefCastNonNull { hty } => self.ref_cast(false, *hty),
            O::RefCastNullable { hty } => self.ref_cast(true, *hty),
            O::BrOnCast { relative_depth, to_ref_type, .. } => self.br_on_cast(*relative_depth, *to_ref_type),
            O::BrOnCastFail { relative_depth, to_ref_type, .. } => {
                self.br_on_cast_fail(*relative_depth, *to_ref_type);
            }
            // References have one representation on both sides.
            O::AnyConvertExtern | O::ExternConvertAny => {}
            O::RefI31 => self.ref_i31(),
            O::I31GetS => self.i31_get(Signed),
            O::I31GetU => self.i31_get(Unsigned),

            O::StructNew { struct_type_index } => self.struct_new(*struct_type_index),
            O::StructNewDefault { struct_type_index } => self.struct_new_default(*struct_type_index),
            O::StructGet { struct_type_index, field_index }
            | O::StructGetU { struct_type_index, field_index } => {
                self.struct_get(*struct_type_index, *field_index, Unsigned);
            }
            O::StructGetS { struct_type_index, field_index } => {
                self.struct_get(*struct_type_index, *field_index, Signed);
            }
            O::StructSet { struct_type_index, field_index } => {
                self.struct_set(*struct_type_index, *field_index);
            }
            O::ArrayNew { array_type_index } => self.array_new(*array_type_index),
            O::ArrayNewDefault { array_type_index } => self.array_new_default(*array_type_index),
            O::ArrayNewFixed { array_type_index, array_size } => {
                self.array_new_fixed(*array_type_index, *array_size);
            }
            O::ArrayNewData { array_type_index, array_data_index } => {
                self.array_new_data(*array_type_index, *array_data_index);
            }
            O::ArrayNewElem { array_type_index, array_elem_index } => {
                self.array_new_elem(*array_type_index, *array_elem_index);
            }
            O::ArrayGet { array_type_index } | O::ArrayGetU { array_type_index } => {
                self.array_get(*array_type_index, Unsigned);
            }
            O::ArrayGetS { array_type_index } => self.array_get(*array_type_index, Signed),
            O::ArraySet { array_type_index } => self.array_set(*array_type_index),
            O::ArrayLen => self.array_len(),
            O::ArrayFill { array_type_index } => self.array_fill(*array_type_index),
            O::ArrayCopy { .. } => self.array_copy(),
            O::ArrayInitData { array_type_index, array_data_index } => {
                self.array_init_data(*array_type_index, *array_data_index);
            }
            O::ArrayInitElem { array_type_index, array_elem_index } => {
                self.array_init_elem(*array_type_index, *array_elem_index);
            }
            O::RefAsNonNull => self.ref_as_non_null(),
            O::RefFunc { function_index } => self.ref_func(*function_index),

            O::I32Load { memarg } => self.load(Ty::I32, memarg),
            O::I64Load { memarg } => self.load(Ty::I64, memarg),
            O::F32Load { memarg } => self.load(Ty::F32, memarg),
            O::F64Load { memarg } => self.load(Ty::F64, memarg),
            O::I32Load8S { memarg } => self.load_part(Ty::I32, B1, Signed, memarg),
            O::I32Load8U { memarg } => self.load_part(Ty::I32, B1, Unsigned, memarg),
            O::I32Load16S { memarg } => self.load_part(Ty::I32, B2, Signed, memarg),
            O::I32Load16U { memarg } => self.load_part(Ty::I32, B2, Unsigned, memarg),
            O::I64Load8S { memarg } => self.load_part(Ty::I64, B1, Signed, memarg),
            O::I64Load8U { memarg } => self.load_part(Ty::I64, B1, Unsigned, memarg),
            O::I64Load16S { memarg } => self.load_part(Ty::I64, B2, Signed, memarg),
            O::I64Load16U { memarg } => self.load_part(Ty::I64, B2, Unsigned, memarg),
            O::I64Load32S { memarg } => self.load_part(Ty::I64, B4, Signed, memarg),
            O::I64Load32U { memarg } => self.load_part(Ty::I64, B4, Unsigned, memarg),
            O::I32Store { memarg } | O::F32Store { memarg } | O::I64Store32 { memarg } => {
                self.store(B4, memarg)
            }
            O::I64Store { memarg } | O::F64Store { memarg } => self.store(B8, memarg),
            O::I32Store8 { memarg } | O::I64Store8 { memarg } => self.store(B1, memarg),
            O::I32Store16 { memarg } | O::I64Store16 { memarg } => self.store(B2, memarg),
            O::MemorySize { mem } => self.memory_size(*mem),
            O::MemoryGrow { mem } => self.memory_grow(*mem),
            O::MemoryCopy { dst_mem, src_mem } => {
                self.bulk(Libcall::MemoryCopy, &[Self::two(*dst_mem, *src_mem)], 3)
            }
            O::MemoryFill { mem } => self.bulk(Libcall::MemoryFill, &[u64::from(*mem)], 3),
            O::MemoryInit { data_index, mem } => {
                self.bulk(Libcall::MemoryInit, &[Self::two(*mem, *data_index)], 3);
            }
            O::DataDrop { data_index } => self.bulk(Libcall::DataDrop, &[u64::from(*data_index)], 0),
            O::TableGet { table } => self.table_get(*table),
            O::TableSet { table } => self.table_set(*table),
            O::TableSize { table } => self.table_size(*table),
            O::TableGrow { table } => self.table_grow(*table),
            O::TableFill { table } => self.bulk(Libcall::TableFill, &[u64::from(*table)], 3),
            O::TableCopy { dst_table, src_table } => {
                self.bulk(Libcall::TableCopy, &[Self::two(*dst_table, *src_table)], 3);
            }
            O::TableInit { elem_index, table } => {
                self.bulk(Libcall::TableInit, &[Self::two(*table, *elem_index)], 3);
            }
            O::ElemDrop { elem_index } => self.bulk(Libcall::ElemDrop, &[u64::from(*elem_index)], 0),

            O::I32Eqz => self.int_eqz(W32),
            O::I64Eqz => self.int_eqz(W64),
            O::I32Eq => self.int_compare(Cond::Equal, W32),
            O::I32Ne => self.int_compare(Cond::NotEqual, W32),
            O::I32LtS => self.int_compare(Cond::Less, W32),
            O::I32LtU => self.int_compare(Cond::Below, W32),
            O::I32GtS => self.int_compare(Cond::Greater, W32),
            O::I32GtU => self.int_compare(Cond::Above, W32),
            O::I32LeS => self.int_compare(Cond::LessEqual, W32),
            O::I32LeU => self.int_compare(Cond::BelowEqual, W32),
            O::I32GeS => self.int_compare(Cond::GreaterEqual, W32),
            O::I32GeU => self.int_compare(Cond::AboveEqual, W32),
            O::I64Eq => self.int_compare(Cond::Equal, W64),
            O::I64Ne => self.int_compare(Cond::NotEqual, W64),
            O::I64LtS => self.int_compare(Cond::Less, W64),
            O::I64LtU => self.int_compare(Cond::Below, W64),
            O::I64GtS => self.int_compare(Cond::Greater, W64),
            O::I64GtU => self.int_compare(Cond::Above, W64),
            O::I64LeS => self.int_compare(Cond::LessEqual, W64),
            O::I64LeU => self.int_compare(Cond::BelowEqual, W64),
            O::I64GeS => self.int_compare(Cond::GreaterEqual, W64),
            O::I64GeU => self.int_compare(Cond::AboveEqual, W64),
            O::F32Eq => self.float_comparison(Relation::Equal, Ty::F32),
            O::F32Ne => self.float_comparison(Relation::NotEqual, Ty::F32),
            O::F32Lt => self.float_comparison(Relation::Less, Ty::F32),
            O::F32Gt => self.float_comparison(Relation::Greater, Ty::F32),
            O::F32Le => self.float_comparison(Relation::LessEqual, Ty::F32),
            O::F32Ge => self.float_comparison(Relation::GreaterEqual, Ty::F32),
            O::F64Eq => self.float_comparison(Relation::Equal, Ty::F64),
            O::F64Ne => self.float_comparison(Relation::NotEqual, Ty::F64),
            O::F64Lt => self.float_comparison(Relation::Less, Ty::F64),
            O::F64Gt => self.float_comparison(Relation::Greater, Ty::F64),
            O::F64Le => self.float_comparison(Relation::LessEqual, Ty::F64),
            O::F64Ge => self.float_comparison(Relation::GreaterEqual, Ty::F64),

            O::I32Clz => self.int_count(W32, |asm, dst, src| asm.lzcnt(W32, dst, src)),
            O::I32Ctz => self.int_count(W32, |asm, dst, src| asm.tzcnt(W32, dst, src)),
            O::I32Popcnt => self.int_count(W32, |asm, dst, src| asm.popcnt(W32, dst, src)),
            O::I64Clz => self.int_count(W64, |asm, dst, src| asm.lzcnt(W64, dst, src)),
            O::I64Ctz => self.int_count(W64, |asm, dst, src| asm.tzcnt(W64, dst, src)),
            O::I64Popcnt => self.int_count(W64, |asm, dst, src| asm.popcnt(W64, dst, src)),
            O::I32Add => self.int_alu(Alu::Add, W32),
            O::I32Sub => self.int_alu(Alu::Sub, W32),
            O::I32Mul => self.int_mul(W32),
            O::I32And => self.int_alu(Alu::And, W32),
            O::I32Or => self.int_alu(Alu::Or, W32),
            O::I32Xor => self.int_alu(Alu::Xor, W32),
            O::I64Add => self.int_alu(Alu::Add, W64),
            O::I64Sub => self.int_alu(Alu::Sub, W64),
            O::I64Mul => self.int_mul(W64),
            O::I64And => self.int_alu(Alu::And, W64),
            O::I64Or => self.int_alu(Alu::Or, W64),
            O::I64Xor => self.int_alu(Alu::Xor, W64),
            O::I32DivS => self.int_division(Division::DivS, W32),
            O::I32DivU => self.int_division(Division::DivU, W32),
            O::I32RemS => self.int_division(Division::RemS, W32),
            O::I32RemU => self.int_division(Division::RemU, W32),
            O::I64DivS => self.int_division(Division::DivS, W64),
            O::I64DivU => self.int_division(Division::DivU, W64),
            O::I64RemS => self.int_division(Division::RemS, W64),
            O::I64RemU => self.int_division(Division::RemU, W64),
            O::I32Shl => self.int_shift(Shift::Shl, W32),
            O::I32ShrS => self.int_shift(Shift::Sar, W32),
            O::I32ShrU => self.int_shift(Shift::Shr, W32),
            O::I32Rotl => self.int_shift(Shift::Rol, W32),
            O::I32Rotr => self.int_shift(Shift::Ror, W32),
            O::I64Shl => self.int_shift(Shift::Shl, W64),
            O::I64ShrS => self.int_shift(Shift::Sar, W64),
            O::I64ShrU => self.int_shift(Shift::Shr, W64),
            O::I64Rotl => self.int_shift(Shift::Rol, W64),
            O::I64Rotr => self.int_shift(Shift::Ror, W64),
            O::I64Add128 => self.wide_sum(Alu::Add, Alu::Adc),
            O::I64Sub128 => self.wide_sum(Alu::Sub, Alu::Sbb),
            O::I64MulWideS => self.wide_product(true),
            O::I64MulWideU => self.wide_product(false),
            O::I32WrapI64 => self.wrap(),
            O::I64ExtendI32U => self.extend_unsigned(),
            O::I64ExtendI32S | O::I64Extend32S => self.extend(B4, W64),
            O::I32Extend8S => self.extend(B1, W32),
            O::I32Extend16S => self.extend(B2, W32),
            O::I64Extend8S => self.extend(B1, W64),
            O::I64Extend16S => self.extend(B2, W64),

            O::F32Abs => self.float_abs(Single),
            O::F64Abs => self.float_abs(Double),
            O::F32Neg => self.float_neg(Single),
            O::F64Neg => self.float_neg(Double),
            O::F32Ceil => self.float_round(Rounding::Ceil, Single),
            O::F64Ceil => self.float_round(Rounding::Ceil, Double),
            O::F32Floor => self.float_round(Rounding::Floor, Single),
            O::F64Floor => self.float_round(Rounding::Floor, Double),
            O::F32Trunc => self.float_round(Rounding::Trunc, Single),
            O::F64Trunc => self.float_round(Rounding::Trunc, Double),
            O::F32Nearest => self.float_round(Rounding::Nearest, Single),
            O::F64Nearest => self.float_round(Rounding::Nearest, Double),
            O::F32Sqrt => self.float_sqrt(Single),
            O::F64Sqrt => self.float_sqrt(Double),
            O::F32Add => self.float_binary(FloatOp::Add, Single),
            O::F32Sub => self.float_binary(FloatOp::Sub, Single),
            O::F32Mul => self.float_binary(FloatOp::Mul, Single),
            O::F32Div => self.float_binary(FloatOp::Div, Single),
            O::F64Add => self.float_binary(FloatOp::Add, Double),
            O::F64Sub => self.float_binary(FloatOp::Sub, Double),
            O::F64Mul => self.float_binary(FloatOp::Mul, Double),
            O::F64Div => self.float_binary(FloatOp::Div, Double),
            O::F32Min => self.float_extreme(Extreme::Min, Ty::F32),
            O::F32Max => self.float_extreme(Extreme::Max, Ty::F32),
            O::F64Min => self.float_extreme(Extreme::Min, Ty::F64),
            O::F64Max => self.float_extreme(Extreme::Max, Ty::F64),
            O::F32Copysign => self.float_copysign(Single),
            O::F64Copysign => self.float_copysign(Double),
            O::F32DemoteF64 => self.float_convert(Ty::F64, Ty::F32),
            O::F64PromoteF32 => self.float_convert(Ty::F32, Ty::F64),
            O::I32TruncF32S => self.float_to_int(Ty::F32, Ty::I32, Signed, Trap),
            O::I32TruncF32U => self.float_to_int(Ty::F32, Ty::I32, Unsigned, Trap),
            O::I32TruncF64S => self.float_to_int(Ty::F64, Ty::I32, Signed, Trap),
            O::I32TruncF64U => self.float_to_int(Ty::F64, Ty::I32, Unsigned, Trap),
            O::I64TruncF32S => self.float_to_int(Ty::F32, Ty::I64, Signed, Trap),
            O::I64TruncF32U => self.float_to_int(Ty::F32, Ty::I64, Unsigned, Trap),
            O::I64TruncF64S => self.float_to_int(Ty::F64, Ty::I64, Signed, Trap),
            O::I64TruncF64U => self.float_to_int(Ty::F64, Ty::I64, Unsigned, Trap),
            O::I32TruncSatF32S => self.float_to_int(Ty::F32, Ty::I32, Signed, Saturate),
            O::I32TruncSatF32U => self.float_to_int(Ty::F32, Ty::I32, Unsigned, Saturate),
            O::I32TruncSatF64S => self.float_to_int(Ty::F64, Ty::I32, Signed, Saturate),
            O::I32TruncSatF64U => self.float_to_int(Ty::F64, Ty::I32, Unsigned, Saturate),
            O::I64TruncSatF32S => self.float_to_int(Ty::F32, Ty::I64, Signed, Saturate),
            O::I64TruncSatF32U => self.float_to_int(Ty::F32, Ty::I64, Unsigned, Saturate),
            O::I64TruncSatF64S => self.float_to_int(Ty::F64, Ty::I64, Signed, Saturate),
            O::I64TruncSatF64U => self.float_to_int(Ty::F64, Ty::I64, Unsigned, Saturate),
            O::F32ConvertI32S => self.float_from_int(Ty::I32, Signed, Ty::F32),
            O::F32ConvertI32U => self.float_from_int(Ty::I32, Unsigned, Ty::F32),
            O::F32ConvertI64S => self.float_from_int(Ty::I64, Signed, Ty::F32),
            O::F32ConvertI64U => self.float_from_int(Ty::I64, Unsigned, Ty::F32),
            O::F64ConvertI32S => self.float_from_int(Ty::I32, Signed, Ty::F64),
            O::F64ConvertI32U => self.float_from_int(Ty::I32, Unsigned, Ty::F64),
            O::F64ConvertI64S => self.float_from_int(Ty::I64, Signed, Ty::F64),
            O::F64ConvertI64U => self.float_from_int(Ty::I64, Unsigned, Ty::F64),
            O::I32ReinterpretF32 => self.reinterpret(Ty::I32),
            O::I64ReinterpretF64 => self.reinterpret(Ty::I64),
            O::F32ReinterpretI32 => self.reinterpret(Ty::F32),
            O::F64ReinterpretI64 => self.reinterpret(Ty::F64),

            O::AtomicFence { .. } => self.asm.mfence(),
            O::MemoryAtomicNotify { memarg } => self.atomic_notify(memarg),
            O::MemoryAtomicWait32 { memarg } => self.atomic_wait(W32, memarg),
            O::MemoryAtomicWait64 { memarg } => self.atomic_wait(W64, memarg),
            O::I32AtomicLoad { memarg } => self.atomic_load(Ty::I32, B4, memarg),
            O::I32AtomicLoad8U { memarg } => self.atomic_load(Ty::I32, B1, memarg),
            O::I32AtomicLoad16U { memarg } => self.atomic_load(Ty::I32, B2, memarg),
            O::I64AtomicLoad { memarg } => self.atomic_load(Ty::I64, B8, memarg),
            O::I64AtomicLoad8U { memarg } => self.atomic_load(Ty::I64, B1, memarg),
            O::I64AtomicLoad16U { memarg } => self.atomic_load(Ty::I64, B2, memarg),
            O::I64AtomicLoad32U { memarg } => self.atomic_load(Ty::I64, B4, memarg),
            O::I32AtomicStore { memarg } | O::I64AtomicStore32 { memarg } => self.atomic_store(B4, memarg),
            O::I32AtomicStore8 { memarg } | O::I64AtomicStore8 { memarg } => self.atomic_store(B1, memarg),
            O::I32AtomicStore16 { memarg } | O::I64AtomicStore16 { memarg } => self.atomic_store(B2, memarg),
            O::I64AtomicStore { memarg } => self.atomic_store(B8, memarg),
            O::I32AtomicRmwCmpxchg { memarg } => self.atomic_cmpxchg(Ty::I32, B4, memarg),
            O::I32AtomicRmw8CmpxchgU { memarg } => self.atomic_cmpxchg(Ty::I32, B1, memarg),
            O::I32AtomicRmw16CmpxchgU { memarg } => self.atomic_cmpxchg(Ty::I32, B2, memarg),
            O::I64AtomicRmwCmpxchg { memarg } => self.atomic_cmpxchg(Ty::I64, B8, memarg),
            O::I64AtomicRmw8CmpxchgU { memarg } => self.atomic_cmpxchg(Ty::I64, B1, memarg),
            O::I64AtomicRmw16CmpxchgU { memarg } => self.atomic_cmpxchg(Ty::I64, B2, memarg),
            O::I64AtomicRmw32CmpxchgU { memarg } => self.atomic_cmpxchg(Ty::I64, B4, memarg),
            _ if self.vector_operator(operator) => {}
            _ => match read_modify_write(operator) {
                Some((what, ty, size, memarg)) => self.atomic_rmw(what, ty, size, memarg),
                None => {
                    return Err(Limit {
                        function: self.index,
                        reason: "an operator that validation should have refused",
                    });
                }
            },
        }
        Ok(())
    }
}

/// The seven forms of each atomic operation.
pub(crate) fn read_modify_write<'o>(
    operator: &'o Operator<'_>,
) -> Option<(Rmw, Ty, Size, &'o wasmparser::MemArg)> {
    macro_rules! forms {
        ($($what:ident: $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident;)*) => {
            Some(match operator {
                $(
                    Operator::$a { memarg } => (Rmw::$what, Ty::I32, Size::B4, memarg),
                    Operator::$b { memarg } => (Rmw::$what, Ty::I32, Size::B1, memarg),
                    Operator::$c { memarg } => (Rmw::$what, Ty::I32, Size::B2, memarg),
                    Operator::$d { memarg } => (Rmw::$what, Ty::I64, Size::B8, memarg),
                    Operator::$e { memarg } => (Rmw::$what, Ty::I64, Size::B1, memarg),
                    Operator::$f { memarg } => (Rmw::$what, Ty::I64, Size::B2, memarg),
                    Operator::$g { memarg } => (Rmw::$what, Ty::I64, Size::B4, memarg),
                )*
                _ => return None,
            })
        };
    }
    forms! {
        Add: I32AtomicRmwAdd I32AtomicRmw8AddU I32AtomicRmw16AddU
            I64AtomicRmwAdd I64AtomicRmw8AddU I64AtomicRmw16AddU I64AtomicRmw32AddU;
        Sub: I32AtomicRmwSub I32AtomicRmw8SubU I32AtomicRmw16SubU
            I64AtomicRmwSub I64AtomicRmw8SubU I64AtomicRmw16SubU I64AtomicRmw32SubU;
        And: I32AtomicRmwAnd I32AtomicRmw8AndU I32AtomicRmw16AndU
            I64AtomicRmwAnd I64AtomicRmw8AndU I64AtomicRmw16AndU I64AtomicRmw32AndU;
        Or: I32AtomicRmwOr I32AtomicRmw8OrU I32AtomicRmw16OrU
            I64AtomicRmwOr I64AtomicRmw8OrU I64AtomicRmw16OrU I64AtomicRmw32OrU;
        Xor: I32AtomicRmwXor I32AtomicRmw8XorU I32AtomicRmw16XorU
            I64AtomicRmwXor I64AtomicRmw8XorU I64AtomicRmw16XorU I64AtomicRmw32XorU;
        Exchange: I32AtomicRmwXchg I32AtomicRmw8XchgU I32AtomicRmw16XchgU
            I64AtomicRmwXchg I64AtomicRmw8XchgU I64AtomicRmw16XchgU I64AtomicRmw32XchgU;
    }
}
