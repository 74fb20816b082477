//! Vectors. Every operator that may compute a NaN is followed by code that replaces it, so that all
//! bits of a vector can be observed.

use super::{F32, F64, Function, I32, I64, Ty, V128};

/// Integer operators with two operands.
const BINARY: [&str; 84] = [
    "v128.and",
    "v128.or",
    "v128.xor",
    "v128.andnot",
    "i8x16.add",
    "i8x16.sub",
    "i8x16.add_sat_s",
    "i8x16.add_sat_u",
    "i8x16.sub_sat_s",
    "i8x16.sub_sat_u",
    "i8x16.min_s",
    "i8x16.min_u",
    "i8x16.max_s",
    "i8x16.max_u",
    "i8x16.avgr_u",
    "i8x16.swizzle",
    "i8x16.narrow_i16x8_s",
    "i8x16.narrow_i16x8_u",
    "i8x16.eq",
    "i8x16.ne",
    "i8x16.lt_s",
    "i8x16.lt_u",
    "i8x16.gt_s",
    "i8x16.gt_u",
    "i8x16.le_s",
    "i8x16.le_u",
    "i8x16.ge_s",
    "i8x16.ge_u",
    "i16x8.add",
    "i16x8.sub",
    "i16x8.mul",
    "i16x8.add_sat_s",
    "i16x8.add_sat_u",
    "i16x8.sub_sat_s",
    "i16x8.sub_sat_u",
    "i16x8.min_s",
    "i16x8.min_u",
    "i16x8.max_s",
    "i16x8.max_u",
    "i16x8.avgr_u",
    "i16x8.q15mulr_sat_s",
    "i16x8.narrow_i32x4_s",
    "i16x8.narrow_i32x4_u",
    "i16x8.extmul_low_i8x16_s",
    "i16x8.extmul_high_i8x16_u",
    "i16x8.eq",
    "i16x8.ne",
    "i16x8.lt_s",
    "i16x8.lt_u",
    "i16x8.gt_u",
    "i16x8.le_s",
    "i16x8.ge_u",
    "i32x4.add",
    "i32x4.sub",
    "i32x4.mul",
    "i32x4.min_s",
    "i32x4.min_u",
    "i32x4.max_s",
    "i32x4.max_u",
    "i32x4.dot_i16x8_s",
    "i32x4.extmul_high_i16x8_s",
    "i32x4.extmul_low_i16x8_u",
    "i32x4.eq",
    "i32x4.ne",
    "i32x4.lt_s",
    "i32x4.lt_u",
    "i32x4.gt_s",
    "i32x4.gt_u",
    "i32x4.le_u",
    "i32x4.ge_s",
    "i64x2.add",
    "i64x2.sub",
    "i64x2.mul",
    "i64x2.extmul_low_i32x4_s",
    "i64x2.extmul_high_i32x4_u",
    "i64x2.eq",
    "i64x2.ne",
    "i64x2.lt_s",
    "i64x2.gt_s",
    "i64x2.le_s",
    "i64x2.ge_s",
    "i64x2.extmul_high_i32x4_s",
    "i64x2.extmul_low_i32x4_u",
    "i16x8.extmul_high_i8x16_s",
];

/// Integer operators with one operand, and those on floats that compute no NaN.
const UNARY: [&str; 38] = [
    "v128.not",
    "i8x16.abs",
    "i8x16.neg",
    "i8x16.popcnt",
    "i16x8.abs",
    "i16x8.neg",
    "i16x8.extend_low_i8x16_s",
    "i16x8.extend_low_i8x16_u",
    "i16x8.extend_high_i8x16_s",
    "i16x8.extend_high_i8x16_u",
    "i16x8.extadd_pairwise_i8x16_s",
    "i16x8.extadd_pairwise_i8x16_u",
    "i32x4.abs",
    "i32x4.neg",
    "i32x4.extend_low_i16x8_s",
    "i32x4.extend_low_i16x8_u",
    "i32x4.extend_high_i16x8_s",
    "i32x4.extend_high_i16x8_u",
    "i32x4.extadd_pairwise_i16x8_s",
    "i32x4.extadd_pairwise_i16x8_u",
    "i64x2.abs",
    "i64x2.neg",
    "i64x2.extend_low_i32x4_s",
    "i64x2.extend_low_i32x4_u",
    "i64x2.extend_high_i32x4_s",
    "i64x2.extend_high_i32x4_u",
    "f32x4.abs",
    "f32x4.neg",
    "f64x2.abs",
    "f64x2.neg",
    "i32x4.trunc_sat_f32x4_s",
    "i32x4.trunc_sat_f32x4_u",
    "i32x4.trunc_sat_f64x2_s_zero",
    "i32x4.trunc_sat_f64x2_u_zero",
    "f32x4.convert_i32x4_s",
    "f32x4.convert_i32x4_u",
    "f64x2.convert_low_i32x4_s",
    "f64x2.convert_low_i32x4_u",
];

/// Relaxed operators that compute no NaN, and their numbers of operands.
const RELAXED: [(&str, usize); 12] = [
    ("i8x16.relaxed_swizzle", 2),
    ("i32x4.relaxed_trunc_f32x4_s", 1),
    ("i32x4.relaxed_trunc_f32x4_u", 1),
    ("i32x4.relaxed_trunc_f64x2_s_zero", 1),
    ("i32x4.relaxed_trunc_f64x2_u_zero", 1),
    ("i8x16.relaxed_laneselect", 3),
    ("i16x8.relaxed_laneselect", 3),
    ("i32x4.relaxed_laneselect", 3),
    ("i64x2.relaxed_laneselect", 3),
    ("i16x8.relaxed_q15mulr_s", 2),
    ("i16x8.relaxed_dot_i8x16_i7x16_s", 2),
    ("i32x4.relaxed_dot_i8x16_i7x16_add_s", 3),
];

const SHAPES: [&str; 4] = ["i8x16", "i16x8", "i32x4", "i64x2"];
const FLOAT_SHAPES: [&str; 2] = ["f32x4", "f64x2"];

/// The shape with lanes of a type.
fn shape(ty: Ty) -> &'static str {
    match ty {
        I32 => "i32x4",
        I64 => "i64x2",
        F32 => "f32x4",
        F64 => "f64x2",
        V128 => unreachable!("vectors are no lanes"),
    }
}

impl Function<'_> {
    pub(super) fn vector_constant(&mut self) -> String {
        let value = self.random.choose(&[
            "i32x4 0 0 0 0",
            "i32x4 -1 -1 -1 -1",
            "i8x16 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
            "i8x16 15 0 16 127 128 255 3 2 1 0 200 100 50 25 12 6",
            "i16x8 0x7fff 0x8000 0 1 -1 255 256 -256",
            "i32x4 0x7fffffff 0x80000000 1 -2",
            "i64x2 0x8000000000000000 1",
            "i64x2 0x7fffffffffffffff -1",
            "f32x4 1.5 -0 inf 2147483648",
            "f32x4 nan -1 4294967296 0x1p-126",
            "f64x2 -2.5 1e300",
            "f64x2 nan -inf",
        ]);
        format!("(v128.const {value})")
    }

    fn vectors(&mut self, count: usize, depth: usize) -> String {
        (0..count).map(|_| format!(" {}", self.expression(V128, depth + 1))).collect()
    }

    /// The vector of this shape, without its NaNs.
    fn without_nans(&mut self, shape: &str, value: &str) -> String {
        let Some(local) = self.local(V128) else { return self.vector_constant() };
        let nan = match shape {
            "f32x4" => "f32x4 nan nan nan nan",
            _ => "f64x2 nan nan",
        };
        format!(
            "(block (result v128) (local.set {local} {value}) (local.tee {local} (v128.bitselect (local.get {local}) \
             (v128.const {nan}) ({shape}.eq (local.get {local}) (local.get {local})))))"
        )
    }

    /// An operator with two operands or more.
    pub(super) fn vector_binary(&mut self, depth: usize) -> String {
        match self.random.below(12) {
            0..=3 => format!("({}{})", self.random.choose(&BINARY), self.vectors(2, depth)),
            4 => {
                let (shape, what) =
                    (self.random.choose(&SHAPES), self.random.choose(&["shl", "shr_s", "shr_u"]));
                let (value, count) = (self.expression(V128, depth + 1), self.expression(I32, depth + 1));
                format!("({shape}.{what} {value} {count})")
            }
            5 => {
                let lanes: String = (0..16).map(|_| format!(" {}", self.random.below(32))).collect();
                format!("(i8x16.shuffle{lanes}{})", self.vectors(2, depth))
            }
            6 => format!("(v128.bitselect{})", self.vectors(3, depth)),
            7 => {
                let ty = self.random.choose(&[I32, I32, I32, I64, F32, F64]);
                let (shape, lanes) = match ty {
                    I32 => self.random.choose(&[("i8x16", 16), ("i16x8", 8), ("i32x4", 4)]),
                    I64 | F64 => (shape(ty), 2),
                    _ => (shape(ty), 4),
                };
                let (vector, lane) = (self.expression(V128, depth + 1), self.lane(ty, depth));
                format!("({shape}.replace_lane {} {vector} {lane})", self.random.below(lanes))
            }
            8 => {
                let (shape, what) = (
                    self.random.choose(&FLOAT_SHAPES),
                    self.random.choose(&["eq", "ne", "lt", "gt", "le", "ge", "pmin", "pmax"]),
                );
                format!("({shape}.{what}{})", self.vectors(2, depth))
            }
            9 if self.features.relaxed_simd => {
                let (operator, operands) = self.random.choose(&RELAXED);
                format!("({operator}{})", self.vectors(operands, depth))
            }
            10 if self.features.relaxed_simd => {
                let (what, operands) = self.random.choose(&[
                    ("relaxed_madd", 3),
                    ("relaxed_nmadd", 3),
                    ("relaxed_min", 2),
                    ("relaxed_max", 2),
                ]);
                let shape = self.random.choose(&FLOAT_SHAPES);
                let value = format!("({shape}.{what}{})", self.vectors(operands, depth));
                self.without_nans(shape, &value)
            }
            _ => {
                let (shape, what) = (
                    self.random.choose(&FLOAT_SHAPES),
                    self.random.choose(&["add", "sub", "mul", "div", "min", "max"]),
                );
                let value = format!("({shape}.{what}{})", self.vectors(2, depth));
                self.without_nans(shape, &value)
            }
        }
    }

    /// An operator with one operand.
    pub(super) fn vector_unary(&mut self, depth: usize) -> String {
        match self.random.below(8) {
            0..=3 => format!("({}{})", self.random.choose(&UNARY), self.vectors(1, depth)),
            4 | 5 => {
                let ty = self.random.choose(&[I32, I32, I32, I64, F32, F64]);
                let shape = if ty == I32 { self.random.choose(&SHAPES[..3]) } else { shape(ty) };
                format!("({shape}.splat {})", self.lane(ty, depth))
            }
            _ => {
                let (shape, what) = self.random.choose(&[
                    ("f32x4", "sqrt"),
                    ("f32x4", "ceil"),
                    ("f32x4", "floor"),
                    ("f32x4", "trunc"),
                    ("f32x4", "nearest"),
                    ("f32x4", "demote_f64x2_zero"),
                    ("f64x2", "sqrt"),
                    ("f64x2", "ceil"),
                    ("f64x2", "floor"),
                    ("f64x2", "trunc"),
                    ("f64x2", "nearest"),
                    ("f64x2", "promote_low_f32x4"),
                ]);
                let value = format!("({shape}.{what}{})", self.vectors(1, depth));
                self.without_nans(shape, &value)
            }
        }
    }

    /// A number that becomes a lane.
    fn lane(&mut self, ty: Ty, depth: usize) -> String {
        match ty {
            I32 | I64 => self.expression(ty, depth + 1),
            _ => self.visible(ty),
        }
    }

    /// A number of a type that is computed from a vector.
    pub(super) fn number_of_vector(&mut self, ty: Ty, depth: usize) -> String {
        let vector = self.expression(V128, depth + 1);
        let operator = match ty {
            I32 => match self.random.below(6) {
                0 => "v128.any_true".to_owned(),
                1 => format!("{}.all_true", self.random.choose(&SHAPES)),
                2 => format!("{}.bitmask", self.random.choose(&SHAPES)),
                3 => format!("i32x4.extract_lane {}", self.random.below(4)),
                _ => {
                    let (shape, lanes) = self.random.choose(&[("i8x16", 16), ("i16x8", 8)]);
                    let sign = self.random.choose(&["s", "u"]);
                    format!("{shape}.extract_lane_{sign} {}", self.random.below(lanes))
                }
            },
            F32 => format!("f32x4.extract_lane {}", self.random.below(4)),
            _ => format!("{}.extract_lane {}", shape(ty), self.random.below(2)),
        };
        format!("({operator} {vector})")
    }

    pub(super) fn vector_load(&mut self) -> String {
        let (place, address) = self.access();
        if self.random.one_in(4) {
            let (bits, lanes) = self.random.choose(&[(8, 16), (16, 8), (32, 4), (64, 2)]);
            let lane = self.random.below(lanes);
            return format!("(v128.load{bits}_lane{place} {lane} {address} {})", self.expression(V128, 2));
        }
        let load = self.random.choose(&[
            "load",
            "load",
            "load",
            "load8x8_s",
            "load8x8_u",
            "load16x4_s",
            "load16x4_u",
            "load32x2_s",
            "load32x2_u",
            "load8_splat",
            "load16_splat",
            "load32_splat",
            "load64_splat",
            "load32_zero",
            "load64_zero",
        ]);
        format!("(v128.{load}{place} {address})")
    }

    pub(super) fn vector_store(&mut self) -> String {
        let ((place, address), value) = (self.access(), self.expression(V128, 0));
        if self.random.one_in(2) {
            return format!("(v128.store{place} {address} {value})");
        }
        let (bits, lanes) = self.random.choose(&[(8, 16), (16, 8), (32, 4), (64, 2)]);
        format!("(v128.store{bits}_lane{place} {} {address} {value})", self.random.below(lanes))
    }
}
