//! The vector operators that take one instruction.

use wasmparser::Operator;

use crate::asm::{Rounding, VectorImmOp as Imm, VectorOp as V};

/// The instruction of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum One {
    Binary(V),
    /// An instruction for which the order of the operands does not matter.
    Commuting(V),
    /// An instruction that takes the operands in reverse order.
    Swapped(V),
    /// CMPPS or CMPPD with this predicate.
    Compare(Imm, u8),
    Unary(V),
    Round(Imm, Rounding),
}

/// Predicates of CMPPS and CMPPD: ordered, except for the last one.
const EQ: u8 = 0;
const LT: u8 = 1;
const LE: u8 = 2;
const GE: u8 = 0xd;
const GT: u8 = 0xe;
const NE: u8 = 4;
/// Unordered.
pub(crate) const UNORDERED: u8 = 3;

macro_rules! table {
    ($($form:ident: $($op:ident $instruction:ident $($argument:ident)?),*;)*) => {
        /// The instruction of an operator, if it is only one.
        pub(crate) fn one_instruction(operator: &Operator<'_>) -> Option<One> {
            Some(match operator {
                $($(Operator::$op => table!(@$form $instruction $($argument)?),)*)*
                _ => return None,
            })
        }
    };
    (@binary $instruction:ident) => { One::Binary(V::$instruction) };
    (@commuting $instruction:ident) => { One::Commuting(V::$instruction) };
    (@swapped $instruction:ident) => { One::Swapped(V::$instruction) };
    (@unary $instruction:ident) => { One::Unary(V::$instruction) };
    (@compare $instruction:ident $predicate:ident) => { One::Compare(Imm::$instruction, $predicate) };
    (@round $instruction:ident $how:ident) => { One::Round(Imm::$instruction, Rounding::$how) };
}

table! {
    // Additions and products of floats do not commute: of two NaNs, the first one is the result.
    commuting: V128And PAND, V128Or POR, V128Xor PXOR,
        I8x16Eq PCMPEQB, I16x8Eq PCMPEQW, I32x4Eq PCMPEQD, I64x2Eq PCMPEQQ,
        I8x16Add PADDB, I8x16AddSatS PADDSB, I8x16AddSatU PADDUSB,
        I8x16MinS PMINSB, I8x16MinU PMINUB, I8x16MaxS PMAXSB, I8x16MaxU PMAXUB, I8x16AvgrU PAVGB,
        I16x8Add PADDW, I16x8AddSatS PADDSW, I16x8AddSatU PADDUSW, I16x8Mul PMULLW,
        I16x8MinS PMINSW, I16x8MinU PMINUW, I16x8MaxS PMAXSW, I16x8MaxU PMAXUW, I16x8AvgrU PAVGW,
        I32x4Add PADDD, I32x4Mul PMULLD, I32x4DotI16x8S PMADDWD,
        I32x4MinS PMINSD, I32x4MinU PMINUD, I32x4MaxS PMAXSD, I32x4MaxU PMAXUD,
        I64x2Add PADDQ;
    binary: I8x16GtS PCMPGTB, I16x8GtS PCMPGTW, I32x4GtS PCMPGTD, I64x2GtS PCMPGTQ,
        I8x16NarrowI16x8S PACKSSWB, I8x16NarrowI16x8U PACKUSWB,
        I16x8NarrowI32x4S PACKSSDW, I16x8NarrowI32x4U PACKUSDW,
        I8x16Sub PSUBB, I8x16SubSatS PSUBSB, I8x16SubSatU PSUBUSB,
        I16x8Sub PSUBW, I16x8SubSatS PSUBSW, I16x8SubSatU PSUBUSW,
        I32x4Sub PSUBD, I64x2Sub PSUBQ,
        F32x4Add ADDPS, F32x4Sub SUBPS, F32x4Mul MULPS, F32x4Div DIVPS,
        F64x2Add ADDPD, F64x2Sub SUBPD, F64x2Mul MULPD, F64x2Div DIVPD;
    // MINPS and MAXPS return the second operand if neither is less than the other.
    swapped: I8x16LtS PCMPGTB, I16x8LtS PCMPGTW, I32x4LtS PCMPGTD, I64x2LtS PCMPGTQ, V128AndNot PANDN,
        F32x4PMin MINPS, F32x4PMax MAXPS, F64x2PMin MINPD, F64x2PMax MAXPD;
    compare: F32x4Eq CMPPS EQ, F32x4Ne CMPPS NE, F32x4Lt CMPPS LT, F32x4Gt CMPPS GT, F32x4Le CMPPS LE,
        F32x4Ge CMPPS GE, F64x2Eq CMPPD EQ, F64x2Ne CMPPD NE, F64x2Lt CMPPD LT, F64x2Gt CMPPD GT,
        F64x2Le CMPPD LE, F64x2Ge CMPPD GE;
    unary: I8x16Abs PABSB, I16x8Abs PABSW, I32x4Abs PABSD,
        I16x8ExtendLowI8x16S PMOVSXBW, I16x8ExtendLowI8x16U PMOVZXBW,
        I32x4ExtendLowI16x8S PMOVSXWD, I32x4ExtendLowI16x8U PMOVZXWD,
        I64x2ExtendLowI32x4S PMOVSXDQ, I64x2ExtendLowI32x4U PMOVZXDQ,
        F32x4Sqrt SQRTPS, F64x2Sqrt SQRTPD, F32x4ConvertI32x4S CVTDQ2PS, F64x2ConvertLowI32x4S CVTDQ2PD,
        F32x4DemoteF64x2Zero CVTPD2PS, F64x2PromoteLowF32x4 CVTPS2PD;
    round: F32x4Ceil ROUNDPS Ceil, F32x4Floor ROUNDPS Floor, F32x4Trunc ROUNDPS Trunc,
        F32x4Nearest ROUNDPS Nearest, F64x2Ceil ROUNDPD Ceil, F64x2Floor ROUNDPD Floor,
        F64x2Trunc ROUNDPD Trunc, F64x2Nearest ROUNDPD Nearest;
}
