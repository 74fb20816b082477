//! Single lanes of vectors, and shuffles.

use wasmparser::Operator;

use super::int::UPPER_HALF;
use super::splat;
use crate::asm::{Reg, RegClass, Rm, Size, VectorImmOp as Imm, VectorOp as V, Width};
use crate::compiler::abi::{FLOAT_SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::operators::float::Signedness;
use crate::compiler::state::{Operand, Val};

/// The width of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    I8,
    I16,
    I32,
    I64,
}

impl Lane {
    pub(crate) fn bits(self) -> u32 {
        8 << self as u32
    }
}

/// The byte indices of a shuffle: 0 to 15 select bytes of the first operand, 16 to 31 those of the
/// second.
type Lanes = [u8; 16];

impl FunctionCompiler<'_> {
    /// Compiles one of these operators. Returns whether it is one.
    pub(crate) fn vector_lane(&mut self, operator: &Operator<'_>) -> bool {
        use Lane::{I8, I16, I32, I64};
        use Operator as O;
        use Signedness::{Signed, Unsigned};
        match operator {
            O::V128Const { value } => self.push_vector_const(value.i128() as u128),
            O::I8x16Shuffle { lanes } => self.shuffle(*lanes),
            O::I8x16Swizzle => self.swizzle(),
            O::I8x16Splat => self.splat(I8, V::PBROADCASTB),
            O::I16x8Splat => self.splat(I16, V::PBROADCASTW),
            O::I32x4Splat => self.splat(I32, V::PBROADCASTD),
            O::I64x2Splat => self.splat(I64, V::PBROADCASTQ),
            O::F32x4Splat => self.splat(I32, V::BROADCASTSS),
            O::F64x2Splat => self.splat(I64, V::MOVDDUP),
            O::I8x16ExtractLaneS { lane } => self.extract(I8, *lane, Signed),
            O::I8x16ExtractLaneU { lane } => self.extract(I8, *lane, Unsigned),
            O::I16x8ExtractLaneS { lane } => self.extract(I16, *lane, Signed),
            O::I16x8ExtractLaneU { lane } => self.extract(I16, *lane, Unsigned),
            O::I32x4ExtractLane { lane } => self.extract(I32, *lane, Unsigned),
            O::I64x2ExtractLane { lane } => self.extract(I64, *lane, Unsigned),
            O::F32x4ExtractLane { lane } => self.extract_float(Ty::F32, *lane),
            O::F64x2ExtractLane { lane } => self.extract_float(Ty::F64, *lane * UPPER_HALF),
            O::I8x16ReplaceLane { lane } => self.replace(Imm::PINSRB, *lane),
            O::I16x8ReplaceLane { lane } => self.replace(Imm::PINSRW, *lane),
            O::I32x4ReplaceLane { lane } => self.replace(Imm::PINSRD, *lane),
            O::I64x2ReplaceLane { lane } => self.replace(Imm::PINSRQ, *lane),
            O::F32x4ReplaceLane { lane } => self.replace(Imm::INSERTPS, lane << 4),
            O::F64x2ReplaceLane { lane } => self.replace_double(*lane),
            _ => return false,
        }
        true
    }

    fn splat(&mut self, lane: Lane, broadcast: V) {
        let operand = self.pop();
        if let Val::Const(bits) = operand.val {
            return self.push_vector_const(splat(lane, bits));
        }
        let src = match (self.to_rm(&operand), lane) {
            (Rm::Reg(reg), _) if !reg.is_float() => {
                let width = if lane == Lane::I64 { Width::W64 } else { Width::W32 };
                self.asm.float_from_bits(width, FLOAT_SCRATCH, reg);
                Rm::Reg(FLOAT_SCRATCH)
            }
            (src, _) => src,
        };
        let dst = self.result(RegClass::Sse);
        self.asm.vector_unary(broadcast, dst, src);
        self.push_vector(dst);
    }

    fn extract(&mut self, lane: Lane, index: u8, signedness: Signedness) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result(RegClass::General);
        let (ty, sized) = match lane {
            Lane::I8 => (Ty::I32, Some((Imm::PEXTRB, Size::B1))),
            Lane::I16 => (Ty::I32, Some((Imm::PEXTRW, Size::B2))),
            Lane::I32 => (Ty::I32, None),
            Lane::I64 => (Ty::I64, None),
        };
        match sized {
            Some((extract, size)) => {
                self.asm.vector_extract(extract, dst, src, index);
                if signedness == Signedness::Signed {
                    self.asm.movsx(size, Width::W32, dst, dst);
                }
            }
            None if index == 0 => self.asm.float_to_bits(ty.width(), dst, src),
            None => {
                let extract = if lane == Lane::I32 { Imm::PEXTRD } else { Imm::PEXTRQ };
                self.asm.vector_extract(extract, dst, src, index);
            }
        }
        self.push(ty, Val::Reg(dst));
    }

    /// Extracts a lane by moving it to the front.
    fn extract_float(&mut self, ty: Ty, shuffle: u8) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        match shuffle {
            0 if dst == src => {}
            0 => self.asm.float_mov(dst, src),
            _ => self.asm.vector_unary_imm(Imm::PSHUFD, dst, src, shuffle),
        }
        self.push(ty, Val::Reg(dst));
    }

    fn replace(&mut self, insert: Imm, imm: u8) {
        let (value, vector) = (self.pop(), self.pop());
        let left = self.to_reg(&vector);
        let right = self.to_rm_with_imm(&value);
        let dst = self.result_or(&vector);
        self.asm.vector_imm(insert, dst, left, right, imm);
        self.push_vector(dst);
    }

    fn replace_double(&mut self, lane: u8) {
        let (value, vector) = (self.pop(), self.pop());
        let (left, right) = (self.to_reg(&vector), self.to_reg(&value));
        let dst = self.result_or(&vector);
        let op = if lane == 0 { V::MOVSD } else { V::UNPCKLPD };
        self.asm.vector(op, dst, left, right);
        self.push_vector(dst);
    }

    /// PSHUFB gives 0 if the upper bit of an index is set, and takes the index modulo 16 otherwise.
    /// A saturating addition sets the bit for indices of 16 or more, if there may be any.
    pub(crate) fn swizzle(&mut self) {
        let (indices, vector) = (self.pop(), self.pop());
        let is_inside = self.has_small_bytes(&indices);
        let src = self.to_reg(&vector);
        if let Some(indices) = self.constant_of(&indices) {
            return self.shuffle_one(src, indices.to_le_bytes().map(or_zero));
        }
        let mut indices = self.to_reg(&indices);
        if !is_inside {
            let upper = self.constant(splat(Lane::I8, 0x70), 16);
            self.asm.vector(V::PADDUSB, FLOAT_SCRATCH, indices, upper);
            indices = FLOAT_SCRATCH;
        }
        let dst = self.result(RegClass::Sse);
        self.asm.vector(V::PSHUFB, dst, src, indices);
        self.push_vector(dst);
    }

    /// PSHUFB with constant indices.
    fn shuffle_one(&mut self, src: Reg, indices: Lanes) {
        let dst = self.result(RegClass::Sse);
        if let Some(doublewords) = doublewords(indices) {
            self.asm.vector_unary_imm(Imm::PSHUFD, dst, src, doublewords);
        } else {
            let indices = self.constant(u128::from_le_bytes(indices), 16);
            self.asm.vector(V::PSHUFB, dst, src, indices);
        }
        self.push_vector(dst);
    }

    /// One instruction for the patterns that programs use, and if one operand is zero; two for two
    /// doublewords of each operand. In general, each operand is shuffled, with zeros where the
    /// other one supplies the byte.
    fn shuffle(&mut self, mut lanes: Lanes) {
        let (second, first) = (self.pop(), self.pop());
        let is_same = |a: &Operand, b: &Operand| match (a.val, b.val) {
            (Val::Local(a), Val::Local(b)) => a == b,
            _ => false,
        };
        if is_same(&first, &second) {
            lanes = lanes.map(|lane| lane & 15);
        }
        if lanes.iter().all(|lane| *lane < 16) {
            let src = self.to_reg(&first);
            return self.shuffle_one(src, lanes);
        }
        if lanes.iter().all(|lane| *lane >= 16) {
            let src = self.to_reg(&second);
            return self.shuffle_one(src, lanes.map(|lane| lane - 16));
        }
        let reversed = lanes.map(|lane| lane ^ 16);
        for (lanes, source, other) in [(lanes, &first, &second), (reversed, &second, &first)] {
            if self.constant_of(other) == Some(0) {
                let src = self.to_reg(source);
                return self.shuffle_one(src, lanes.map(or_zero));
            }
        }
        let operands = [self.to_reg(&first), self.to_reg(&second)];
        for (lanes, [first, second]) in [(lanes, operands), (reversed, [operands[1], operands[0]])] {
            if let Some(pattern) = Pattern::of(lanes) {
                let dst = self.result(RegClass::Sse);
                match pattern {
                    Pattern::Interleave(op) => self.asm.vector(op, dst, first, second),
                    // Its first operand is the upper half of the two.
                    Pattern::Align(by) => self.asm.vector_imm(Imm::PALIGNR, dst, second, first, by),
                    Pattern::Blend(words) => self.asm.vector_imm(Imm::PBLENDW, dst, first, second, words),
                    Pattern::Shuffle(imm) => self.asm.vector_imm(Imm::SHUFPS, dst, first, second, imm),
                }
                return self.push_vector(dst);
            }
        }
        if let Some([gather, order]) = two_of_each(lanes) {
            let dst = self.result(RegClass::Sse);
            self.asm.vector_imm(Imm::SHUFPS, FLOAT_SCRATCH, operands[0], operands[1], gather);
            self.asm.vector_unary_imm(Imm::PSHUFD, dst, FLOAT_SCRATCH, order);
            return self.push_vector(dst);
        }
        let indices = [lanes, reversed].map(|lanes| lanes.map(or_zero));
        let [of_first, of_second] = indices.map(|of| self.constant(u128::from_le_bytes(of), 16));
        let other = self.alloc(RegClass::Sse);
        self.asm.vector(V::PSHUFB, FLOAT_SCRATCH, operands[0], of_first);
        self.asm.vector(V::PSHUFB, other, operands[1], of_second);
        let dst = self.result_in(other);
        self.asm.vector(V::POR, dst, FLOAT_SCRATCH, other);
        self.push_vector(dst);
    }
}

/// A shuffle of two operands that is one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Interleave(V),
    Align(u8),
    Blend(u8),
    Shuffle(u8),
}

impl Pattern {
    fn of(lanes: Lanes) -> Option<Self> {
        const INTERLEAVE: [(V, usize, bool); 8] = [
            (V::PUNPCKLBW, 1, false),
            (V::PUNPCKLWD, 2, false),
            (V::PUNPCKLDQ, 4, false),
            (V::PUNPCKLQDQ, 8, false),
            (V::PUNPCKHBW, 1, true),
            (V::PUNPCKHWD, 2, true),
            (V::PUNPCKHDQ, 4, true),
            (V::PUNPCKHQDQ, 8, true),
        ];
        for (op, size, upper) in INTERLEAVE {
            let start = if upper { 8 } else { 0 };
            let lane = |at: usize| start + 16 * (at / size % 2) + at / (2 * size) * size + at % size;
            if (0..16).all(|at| usize::from(lanes[at]) == lane(at)) {
                return Some(Self::Interleave(op));
            }
        }
        if (0..16).all(|at| lanes[at] == lanes[0] + at as u8) {
            return Some(Self::Align(lanes[0]));
        }
        let word = |at: usize| [2 * at, 2 * at + 1].map(|byte| lanes[byte]);
        let of_first = |at: usize| word(at) == [2 * at as u8, 2 * at as u8 + 1];
        let of_second = |at: usize| word(at) == [2 * at as u8 + 16, 2 * at as u8 + 17];
        if (0..8).all(|at| of_first(at) || of_second(at)) {
            return Some(Self::Blend((0..8).filter(|at| of_second(*at)).map(|at| 1 << at).sum()));
        }
        let is_split = (0..16).all(|at| (lanes[at] >= 16) == (at >= 8));
        is_split.then(|| doublewords(lanes.map(|lane| lane & 15)).map(Self::Shuffle)).flatten()
    }
}

/// The index of a byte for PSHUFB: for one of 16 or more, an index for which it gives 0.
fn or_zero(lane: u8) -> u8 {
    if lane < 16 { lane } else { 0x80 }
}

/// The lanes as doubleword indices, 4 or more for the second vector; `None` if they do not form
/// entire doublewords.
fn whole_doublewords(lanes: Lanes) -> Option<[u8; 4]> {
    let mut all = [0; 4];
    for (four, doubleword) in lanes.chunks_exact(4).zip(&mut all) {
        let first = four[0];
        let is_whole = first.is_multiple_of(4) && first < 32;
        if !is_whole || (0..4).any(|byte| four[byte] != first + byte as u8) {
            return None;
        }
        *doubleword = first / 4;
    }
    Some(all)
}

/// Four indices as an immediate.
fn packed(indices: [u8; 4]) -> u8 {
    (0..4).fold(0, |imm, at| imm | indices[at] << (2 * at))
}

/// The immediate of PSHUFD, if the lanes are entire doublewords of one vector.
fn doublewords(lanes: Lanes) -> Option<u8> {
    whole_doublewords(lanes).filter(|all| all.iter().all(|doubleword| *doubleword < 4)).map(packed)
}

/// The immediates of SHUFPS, which gathers two doublewords of each vector, and of PSHUFD, which
/// orders them.
fn two_of_each(lanes: Lanes) -> Option<[u8; 2]> {
    let all = whole_doublewords(lanes)?;
    let (mut gathered, mut order) = ([0; 4], [0; 4]);
    let mut next = [0, 2];
    for (doubleword, at) in all.into_iter().zip(&mut order) {
        let (vector, end) = if doubleword < 4 { (0, 2) } else { (1, 4) };
        if next[vector] == end {
            return None;
        }
        gathered[next[vector]] = doubleword % 4;
        *at = next[vector] as u8;
        next[vector] += 1;
    }
    Some([packed(gathered), packed(order)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_that_are_one_instruction_are_found() {
        let counting = |from: u8| std::array::from_fn(|at| from + at as u8);
        let check = |lanes: Lanes, pattern| assert_eq!(Pattern::of(lanes), pattern, "{lanes:?}");
        check(counting(3), Some(Pattern::Align(3)));
        check(
            [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23],
            Some(Pattern::Interleave(V::PUNPCKLBW)),
        );
        check(
            [8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31],
            Some(Pattern::Interleave(V::PUNPCKHWD)),
        );
        check([0, 1, 18, 19, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 30, 31], Some(Pattern::Blend(0b1000_0010)));
        check(
            [4, 5, 6, 7, 0, 1, 2, 3, 28, 29, 30, 31, 16, 17, 18, 19],
            Some(Pattern::Shuffle(0b00_11_00_01)),
        );
        check([0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 24], None);
        assert_eq!(doublewords(counting(0)), Some(0b11_10_01_00));
        assert_eq!(doublewords(counting(1)), None);
        // Doublewords 1 and 4, then 3 and 6.
        let alternating = [4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27];
        assert_eq!(two_of_each(alternating), Some([0b10_00_11_01, 0b11_01_10_00]));
        assert_eq!(two_of_each([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19]), None);
    }
}
