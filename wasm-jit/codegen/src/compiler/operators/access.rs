//! The memory accesses of operators.

use wasmparser::{MemArg, Operator};

use super::read_modify_write;

/// Where an operator accesses a memory: at the sum of an operand and a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The operand that is the address, counted from the top of the stack.
    pub operand: u32,
    /// The constant that is added to the operand, in bytes.
    pub offset: u64,
}

/// The access of a load, a store, or an atomic operation.
#[must_use]
pub fn access(operator: &Operator<'_>) -> Option<Access> {
    use Operator as O;
    let (operand, memarg): (u32, &MemArg) = match operator {
        O::I32Load { memarg }
        | O::I64Load { memarg }
        | O::F32Load { memarg }
        | O::F64Load { memarg }
        | O::I32Load8S { memarg }
        | O::I32Load8U { memarg }
        | O::I32Load16S { memarg }
        | O::I32Load16U { memarg }
        | O::I64Load8S { memarg }
        | O::I64Load8U { memarg }
        | O::I64Load16S { memarg }
        | O::I64Load16U { memarg }
        | O::I64Load32S { memarg }
        | O::I64Load32U { memarg }
        | O::V128Load { memarg }
        | O::V128Load8x8S { memarg }
        | O::V128Load8x8U { memarg }
        | O::V128Load16x4S { memarg }
        | O::V128Load16x4U { memarg }
        | O::V128Load32x2S { memarg }
        | O::V128Load32x2U { memarg }
        | O::V128Load8Splat { memarg }
        | O::V128Load16Splat { memarg }
        | O::V128Load32Splat { memarg }
        | O::V128Load64Splat { memarg }
        | O::V128Load32Zero { memarg }
        | O::V128Load64Zero { memarg }
        | O::I32AtomicLoad { memarg }
        | O::I32AtomicLoad8U { memarg }
        | O::I32AtomicLoad16U { memarg }
        | O::I64AtomicLoad { memarg }
        | O::I64AtomicLoad8U { memarg }
        | O::I64AtomicLoad16U { memarg }
        | O::I64AtomicLoad32U { memarg } => (0, memarg),
        O::I32Store { memarg }
        | O::I64Store { memarg }
        | O::F32Store { memarg }
        | O::F64Store { memarg }
        | O::I32Store8 { memarg }
        | O::I32Store16 { memarg }
        | O::I64Store8 { memarg }
        | O::I64Store16 { memarg }
        | O::I64Store32 { memarg }
        | O::V128Store { memarg }
        | O::V128Load8Lane { memarg, .. }
        | O::V128Load16Lane { memarg, .. }
        | O::V128Load32Lane { memarg, .. }
        | O::V128Load64Lane { memarg, .. }
        | O::V128Store8Lane { memarg, .. }
        | O::V128Store16Lane { memarg, .. }
        | O::V128Store32Lane { memarg, .. }
        | O::V128Store64Lane { memarg, .. }
        | O::I32AtomicStore { memarg }
        | O::I32AtomicStore8 { memarg }
        | O::I32AtomicStore16 { memarg }
        | O::I64AtomicStore { memarg }
        | O::I64AtomicStore8 { memarg }
        | O::I64AtomicStore16 { memarg }
        | O::I64AtomicStore32 { memarg }
        | O::MemoryAtomicNotify { memarg } => (1, memarg),
        O::MemoryAtomicWait32 { memarg }
        | O::MemoryAtomicWait64 { memarg }
        | O::I32AtomicRmwCmpxchg { memarg }
        | O::I32AtomicRmw8CmpxchgU { memarg }
        | O::I32AtomicRmw16CmpxchgU { memarg }
        | O::I64AtomicRmwCmpxchg { memarg }
        | O::I64AtomicRmw8CmpxchgU { memarg }
        | O::I64AtomicRmw16CmpxchgU { memarg }
        | O::I64AtomicRmw32CmpxchgU { memarg } => (2, memarg),
        _ => (1, read_modify_write(operator)?.3),
    };
    Some(Access { operand, offset: memarg.offset })
}
