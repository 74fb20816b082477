//! The reference for values: which values there are at each place of a module, and a rewritten
//! module that records them.

use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt};
use wasm_encoder::{Encode, ValType};
use wasm_jit::Val;
use wasm_jit::probes::Bound;
use wasm_jit_codegen::access;
use wasmparser::{
    FuncValidator, Operator, Parser, ValidPayload, Validator, ValidatorResources, WasmFeatures,
};

use super::rewrite::{Counted, rewrite_by};

/// Deepest operand that is recorded.
const DEPTH: u32 = 5;
/// The types of what can be recorded.
const TYPES: [ValType; 4] = [ValType::I32, ValType::I64, ValType::F32, ValType::F64];

/// A value at a place: what it is, its type, and for an operand, the types of those above it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub bound: Bound,
    pub ty: ValType,
    above: Vec<ValType>,
    /// Of the operand.
    pub depth: u32,
    pub plus: u64,
}

impl Candidate {
    /// A value of its type.
    pub(crate) fn constant(&self, value: i32) -> Val {
        match self.ty {
            ValType::I32 => value.into(),
            ValType::I64 => i64::from(value).into(),
            ValType::F32 => (value as f32).into(),
            _ => f64::from(value).into(),
        }
    }
}

/// The types that a place has: those of the operands that the code there can access, and of locals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// The top one first.
    operands: Vec<ValType>,
    locals: Vec<ValType>,
    access: Option<(u32, u64)>,
}

fn numeric(ty: wasmparser::ValType) -> Option<ValType> {
    Some(match ty {
        wasmparser::ValType::I32 => ValType::I32,
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        _ => return None,
    })
}

impl Place {
    fn of(validator: &FuncValidator<ValidatorResources>, operator: Option<&Operator<'_>>) -> Self {
        let mut place = Self::default();
        for index in 0.. {
            let Some(ty) = validator.get_local_type(index) else { break };
            place.locals.push(numeric(ty).expect("locals are numbers"));
        }
        // Inside a loop, its code cannot access the operands below it.
        if matches!(operator, Some(Operator::Loop { .. }) | None) {
            return place;
        }
        let base = validator.get_control_frame(0).map_or(0, |frame| frame.height);
        for depth in 0..(validator.operand_stack_height() as usize - base).min(DEPTH as usize) {
            let ty = validator.get_operand_type(depth).flatten();
            let Some(ty) = ty.and_then(numeric) else { break };
            place.operands.push(ty);
        }
        place.access = operator.and_then(access).map(|access| (access.operand, access.offset));
        place
    }

    /// How many parameters and locals the function has.
    pub(crate) fn locals(&self) -> u32 {
        self.locals.len() as u32
    }

    /// Some of its values.
    pub(crate) fn choose(&self, count: usize, random: &mut SmallRng) -> Vec<Candidate> {
        let mut all = Vec::new();
        let operand = |depth: usize, bound, plus| Candidate {
            bound,
            ty: self.operands[depth],
            above: self.operands[..depth].to_vec(),
            depth: depth as u32,
            plus,
        };
        for depth in 0..self.operands.len() {
            all.push(operand(depth, Bound::Operand(depth as u32), 0));
        }
        if let Some((depth, offset)) = self.access {
            all.push(operand(depth as usize, Bound::Address, offset));
        }
        let operands = all.len();
        for (index, ty) in self.locals.iter().enumerate() {
            let bound = Bound::Local(index as u32);
            all.push(Candidate { bound, ty: *ty, above: Vec::new(), depth: 0, plus: 0 });
        }
        if all.is_empty() {
            return Vec::new();
        }
        let mut choose = || match random.random_range(0..2) {
            0 if operands > 0 => all[random.next_u32() as usize % operands].clone(),
            _ => all[random.next_u32() as usize % all.len()].clone(),
        };
        (0..count).map(|_| choose()).collect()
    }
}

/// The values at each place of a module; none where control never comes.
pub(crate) fn places(bytes: &[u8]) -> HashMap<Counted, Place> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut places = HashMap::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let ValidPayload::Func(function, body) = validator.payload(&payload.unwrap()).unwrap() else {
            continue;
        };
        let mut validator = function.into_validator(Default::default());
        let index = validator.index();
        let mut locals = body.get_locals_reader().unwrap();
        for _ in 0..locals.get_count() {
            let at = locals.original_position();
            let (count, ty) = locals.read().unwrap();
            validator.define_locals(at, count, ty).unwrap();
        }
        places.insert((index, None), Place::of(&validator, None));
        let mut reader = body.get_operators_reader().unwrap();
        while !reader.eof() {
            let at = reader.original_position();
            let operator = reader.read().unwrap();
            if validator.get_control_frame(0).is_some_and(|frame| !frame.unreachable) {
                places.insert((index, Some(at as u32)), Place::of(&validator, Some(&operator)));
            }
            validator.op(at, &operator).unwrap();
        }
    }
    places
}

/// The types of the locals that rewritten functions get.
fn temporaries() -> Vec<ValType> {
    (0..DEPTH + 1).flat_map(|_| TYPES).collect()
}

impl Place {
    /// One of them, for an operand.
    fn temporary(&self, depth: u32, ty: ValType) -> u32 {
        let number = TYPES.iter().position(|known| *known == ty).unwrap();
        self.locals.len() as u32 + 4 * depth + number as u32
    }
}

const GET: u8 = 0x20;
const SET: u8 = 0x21;
const TEE: u8 = 0x22;

fn op(out: &mut Vec<u8>, code: u8, index: u32) {
    out.push(code);
    index.encode(out);
}

/// A step of the record of a place.
pub(crate) fn add(record: u64, value: u64) -> u64 {
    record.wrapping_mul(31).wrapping_add(value)
}

/// The module, which adds the values of each place to the record of the place, `count n`.
pub(crate) fn recording(
    bytes: &[u8],
    places: &HashMap<Counted, Place>,
    values: &HashMap<Counted, Vec<Candidate>>,
) -> (Vec<u8>, Vec<Counted>) {
    rewrite_by(bytes, &temporaries(), |out, place, global| {
        let Some(chosen) = values.get(&place) else { return };
        let temporary = |depth: u32, ty: ValType| places[&place].temporary(depth, ty);
        for value in chosen {
            let local = match value.bound {
                Bound::Local(index) => index,
                _ => {
                    for (depth, ty) in value.above.iter().enumerate() {
                        op(out, SET, temporary(depth as u32, *ty));
                    }
                    let own = temporary(value.depth, value.ty);
                    op(out, TEE, own);
                    for (depth, ty) in value.above.iter().enumerate().rev() {
                        op(out, GET, temporary(depth as u32, *ty));
                    }
                    own
                }
            };
            op(out, 0x23, global);
            // i64.const 31, i64.mul
            out.extend([0x42, 31, 0x7e]);
            op(out, GET, local);
            match value.ty {
                // i64.extend_i32_u, after i32.reinterpret_f32; i64.reinterpret_f64
                ValType::I32 => out.push(0xad),
                ValType::F32 => out.extend([0xbc, 0xad]),
                ValType::F64 => out.push(0xbd),
                _ => {}
            }
            out.push(0x42);
            (value.plus as i64).encode(out);
            // i64.add, twice
            out.extend([0x7c, 0x7c]);
            op(out, 0x24, global);
        }
    })
}

/// The module, which writes a value at each of these places when it comes there for the first
/// times.
pub(crate) fn writing(
    bytes: &[u8],
    places: &HashMap<Counted, Place>,
    writes: &HashMap<Counted, (Candidate, i32)>,
    times: u64,
) -> Vec<u8> {
    let emit = |out: &mut Vec<u8>, place: Counted, global: u32| {
        let Some((value, new)) = writes.get(&place) else { return };
        let temporary = |depth: u32, ty: ValType| places[&place].temporary(depth, ty);
        for (depth, ty) in value.above.iter().enumerate() {
            op(out, SET, temporary(depth as u32, *ty));
        }
        let is_operand = matches!(value.bound, Bound::Operand(_));
        let local = match value.bound {
            Bound::Local(index) => index,
            _ => temporary(value.depth, value.ty),
        };
        if is_operand {
            op(out, SET, local);
        }
        // global.get, i64.const, i64.lt_u, if
        op(out, 0x23, global);
        out.push(0x42);
        (times as i64).encode(out);
        out.extend([0x54, 0x04, 0x40]);
        match value.constant(*new) {
            Val::I32(new) => {
                out.push(0x41);
                new.encode(out);
            }
            Val::I64(new) => {
                out.push(0x42);
                new.encode(out);
            }
            Val::F32(bits) => {
                out.push(0x43);
                out.extend(bits.to_le_bytes());
            }
            Val::F64(bits) => {
                out.push(0x44);
                out.extend(bits.to_le_bytes());
            }
            other => panic!("{other:?}"),
        }
        op(out, SET, local);
        out.push(0x0b);
        if is_operand {
            op(out, GET, local);
        }
        for (depth, ty) in value.above.iter().enumerate().rev() {
            op(out, GET, temporary(depth as u32, *ty));
        }
        // global.get, i64.const 1, i64.add, global.set
        op(out, 0x23, global);
        out.extend([0x42, 1, 0x7c]);
        op(out, 0x24, global);
    };
    rewrite_by(bytes, &temporaries(), emit).0
}
