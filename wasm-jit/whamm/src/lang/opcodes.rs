//! The instructions that rules of `wasm:opcode` can match: operands, results, immediates and
//! category of each, where these are the same at every occurrence.

use std::collections::HashMap;
use std::sync::LazyLock;

use wasm_encoder::ValType;

use super::types::Type;
use super::vectors;
use crate::monitor_module::encodings;

/// An instruction.
#[derive(Debug)]
pub(super) struct Opcode {
    /// The name in the text format.
    pub(super) name: &'static str,
    pub(super) category: &'static str,
    /// Number of the category.
    pub(super) category_id: u32,
    /// The opcode in the binary format; a prefix is the higher byte.
    pub(super) encoding: u32,
    /// The operands, from the top of the stack.
    pub(super) operands: Values,
    pub(super) results: Values,
    pub(super) immediates: Values,
    /// The memory access of loads and stores.
    pub(super) access: Option<Access>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) bytes: u32,
    pub(super) is_write: bool,
    /// The number of the operand that is the address.
    pub(super) address: usize,
}

/// What is known about an operand, a result or an immediate.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Known {
    Is(Type),
    /// An address, index or size: of this type, or 64-bit if the memory or table is.
    Address(Type),
    /// The type differs from place to place.
    Differs,
    /// A vector or a reference, which is not a value of the language.
    Opaque,
}

impl Known {
    /// The type, if a rule need not state it.
    pub(super) fn ty(&self) -> Option<&Type> {
        match self {
            Self::Is(ty) | Self::Address(ty) => Some(ty),
            Self::Differs | Self::Opaque => None,
        }
    }

    /// Whether it may be a value of this type.
    pub(super) fn admits(&self, ty: &Type) -> bool {
        match self {
            Self::Is(known) => known.scalar() == ty.scalar(),
            Self::Address(known) => known.scalar() == ty.scalar() || ty.scalar() == Some(ValType::I64),
            Self::Differs => true,
            Self::Opaque => false,
        }
    }
}

/// Operands, results or immediates.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) known: Vec<Known>,
    /// Whether there may be more, whose types differ from place to place.
    pub(super) more: bool,
}

impl Values {
    pub(super) const NONE: Self = Self { known: Vec::new(), more: false };

    /// What is known about one of them; `None` if it does not exist.
    pub(super) fn get(&self, index: usize) -> Option<&Known> {
        self.known.get(index).or(self.more.then_some(&Known::Differs))
    }

    /// Parses letters, which are the types: `a` for an address and `j` for a signed one, `v` for a
    /// vector or a reference, `?` for a type that differs, `*` for any number of those.
    fn parse(letters: &str) -> Self {
        let mut values = Self::default();
        for letter in letters.chars() {
            values.known.push(match letter {
                'i' => Known::Is(Type::I32),
                'u' => Known::Is(Type::U32),
                'I' => Known::Is(Type::I64),
                'U' => Known::Is(Type::U64),
                'f' => Known::Is(Type::F32),
                'F' => Known::Is(Type::F64),
                'a' => Known::Address(Type::U32),
                'j' => Known::Address(Type::I32),
                'v' => Known::Opaque,
                '*' => {
                    values.more = true;
                    continue;
                }
                _ => Known::Differs,
            });
        }
        values
    }
}

/// Categories, with their instructions: `name`, `name(operands)`, `name(operands;results)` or
/// `name(operands;results;immediates)`; letters as in [`Values::parse`], operands from the top.
const TABLE: &[(&str, &str)] = &[
    (
        "arith",
        "i32.clz(i;i) i32.ctz(i;i) i32.popcnt(i;i) i32.add(ii;i) i32.sub(ii;i) i32.mul(ii;i) i32.div_s(ii;i) \
         i32.div_u(uu;u) i32.rem_s(ii;i) i32.rem_u(uu;u) i32.and(ii;i) i32.or(ii;i) i32.xor(ii;i) i32.shl(ii;i) \
         i32.shr_s(ii;i) i32.shr_u(uu;u) i32.rotl(ii;i) i32.rotr(ii;i) \
         i64.clz(I;I) i64.ctz(I;I) i64.popcnt(I;I) i64.add(II;I) i64.sub(II;I) i64.mul(II;I) i64.div_s(II;I) \
         i64.div_u(UU;U) i64.rem_s(II;I) i64.rem_u(UU;U) i64.and(II;I) i64.or(II;I) i64.xor(II;I) i64.shl(II;I) \
         i64.shr_s(II;I) i64.shr_u(UU;U) i64.rotl(II;I) i64.rotr(II;I) i64.add128(IIII;II) i64.sub128(IIII;II) \
         i64.mul_wide_s(II;II) i64.mul_wide_u(UU;UU) \
         f32.abs(f;f) f32.neg(f;f) f32.ceil(f;f) f32.floor(f;f) f32.trunc(f;f) f32.nearest(f;f) f32.sqrt(f;f) \
         f32.add(ff;f) f32.sub(ff;f) f32.mul(ff;f) f32.div(ff;f) f32.min(ff;f) f32.max(ff;f) f32.copysign(ff;f) \
         f64.abs(F;F) f64.neg(F;F) f64.ceil(F;F) f64.floor(F;F) f64.trunc(F;F) f64.nearest(F;F) f64.sqrt(F;F) \
         f64.add(FF;F) f64.sub(FF;F) f64.mul(FF;F) f64.div(FF;F) f64.min(FF;F) f64.max(FF;F) f64.copysign(FF;F)",
    ),
    (
        "atomic",
        "memory.atomic.notify(ia;i) memory.atomic.wait32(Iia;i) memory.atomic.wait64(IIa;i) atomic.fence \
         i32.atomic.load(a;i) i64.atomic.load(a;I) i32.atomic.load8_u(a;u) i32.atomic.load16_u(a;u) \
         i64.atomic.load8_u(a;U) i64.atomic.load16_u(a;U) i64.atomic.load32_u(a;U) \
         i32.atomic.store(ia) i64.atomic.store(Ia) i32.atomic.store8(ia) i32.atomic.store16(ia) \
         i64.atomic.store8(Ia) i64.atomic.store16(Ia) i64.atomic.store32(Ia) \
         i32.atomic.rmw.add(ia;i) i32.atomic.rmw8.add_u(ia;i) i32.atomic.rmw16.add_u(ia;i) \
         i64.atomic.rmw.add(Ia;I) i64.atomic.rmw8.add_u(Ia;I) i64.atomic.rmw16.add_u(Ia;I) \
         i64.atomic.rmw32.add_u(Ia;I) \
         i32.atomic.rmw.sub(ia;i) i32.atomic.rmw8.sub_u(ia;i) i32.atomic.rmw16.sub_u(ia;i) \
         i64.atomic.rmw.sub(Ia;I) i64.atomic.rmw8.sub_u(Ia;I) i64.atomic.rmw16.sub_u(Ia;I) \
         i64.atomic.rmw32.sub_u(Ia;I) \
         i32.atomic.rmw.and(ia;i) i32.atomic.rmw8.and_u(ia;i) i32.atomic.rmw16.and_u(ia;i) \
         i64.atomic.rmw.and(Ia;I) i64.atomic.rmw8.and_u(Ia;I) i64.atomic.rmw16.and_u(Ia;I) \
         i64.atomic.rmw32.and_u(Ia;I) \
         i32.atomic.rmw.or(ia;i) i32.atomic.rmw8.or_u(ia;i) i32.atomic.rmw16.or_u(ia;i) \
         i64.atomic.rmw.or(Ia;I) i64.atomic.rmw8.or_u(Ia;I) i64.atomic.rmw16.or_u(Ia;I) \
         i64.atomic.rmw32.or_u(Ia;I) \
         i32.atomic.rmw.xor(ia;i) i32.atomic.rmw8.xor_u(ia;i) i32.atomic.rmw16.xor_u(ia;i) \
         i64.atomic.rmw.xor(Ia;I) i64.atomic.rmw8.xor_u(Ia;I) i64.atomic.rmw16.xor_u(Ia;I) \
         i64.atomic.rmw32.xor_u(Ia;I) \
         i32.atomic.rmw.xchg(ia;i) i32.atomic.rmw8.xchg_u(ia;i) i32.atomic.rmw16.xchg_u(ia;i) \
         i64.atomic.rmw.xchg(Ia;I) i64.atomic.rmw8.xchg_u(Ia;I) i64.atomic.rmw16.xchg_u(Ia;I) \
         i64.atomic.rmw32.xchg_u(Ia;I) \
         i32.atomic.rmw.cmpxchg(iia;i) i32.atomic.rmw8.cmpxchg_u(iia;i) i32.atomic.rmw16.cmpxchg_u(iia;i) \
         i64.atomic.rmw.cmpxchg(IIa;I) i64.atomic.rmw8.cmpxchg_u(IIa;I) i64.atomic.rmw16.cmpxchg_u(IIa;I) \
         i64.atomic.rmw32.cmpxchg_u(IIa;I)",
    ),
    (
        "compare",
        "i32.eqz(i;i) i32.eq(ii;i) i32.ne(ii;i) i32.lt_s(ii;i) i32.lt_u(uu;i) i32.gt_s(ii;i) i32.gt_u(uu;i) \
         i32.le_s(ii;i) i32.le_u(uu;i) i32.ge_s(ii;i) i32.ge_u(uu;i) \
         i64.eqz(I;i) i64.eq(II;i) i64.ne(II;i) i64.lt_s(II;i) i64.lt_u(UU;i) i64.gt_s(II;i) i64.gt_u(UU;i) \
         i64.le_s(II;i) i64.le_u(UU;i) i64.ge_s(II;i) i64.ge_u(UU;i) \
         f32.eq(ff;i) f32.ne(ff;i) f32.lt(ff;i) f32.gt(ff;i) f32.le(ff;i) f32.ge(ff;i) \
         f64.eq(FF;i) f64.ne(FF;i) f64.lt(FF;i) f64.gt(FF;i) f64.le(FF;i) f64.ge(FF;i)",
    ),
    ("const", "i32.const(;i;i) i64.const(;I;I) f32.const(;f;f) f64.const(;F;F)"),
    (
        "control",
        "block(*) loop(*) if(u*) else(*) end(*) br(*;;u) br_if(u*;*;u) br_table(u*;;*) return(*) call(*;*;u) \
         call_indirect(a*;*;uu) return_call(*;;u) return_call_indirect(a*;;uu) call_ref(?*;*) \
         return_call_ref(?*) br_on_null(?*;*;u) br_on_non_null(?*;*;u) br_on_cast(?*) br_on_cast_fail(?*) \
         select(u??;?) typed_select(u??;?)",
    ),
    (
        "convert",
        "i32.wrap_i64(I;i) i32.trunc_f32_s(f;i) i32.trunc_f32_u(f;u) i32.trunc_f64_s(F;i) i32.trunc_f64_u(F;u) \
         i64.extend_i32_s(i;I) i64.extend_i32_u(u;U) i64.trunc_f32_s(f;I) i64.trunc_f32_u(f;U) \
         i64.trunc_f64_s(F;I) i64.trunc_f64_u(F;U) f32.convert_i32_s(i;f) f32.convert_i32_u(u;f) \
         f32.convert_i64_s(I;f) f32.convert_i64_u(U;f) f32.demote_f64(F;f) f64.convert_i32_s(i;F) \
         f64.convert_i32_u(u;F) f64.convert_i64_s(I;F) f64.convert_i64_u(U;F) f64.promote_f32(f;F) \
         i32.reinterpret_f32(f;i) i64.reinterpret_f64(F;I) f32.reinterpret_i32(i;f) f64.reinterpret_i64(I;F) \
         i32.extend8_s(i;i) i32.extend16_s(i;i) i64.extend8_s(I;I) i64.extend16_s(I;I) i64.extend32_s(I;I) \
         i32.trunc_sat_f32_s(f;i) i32.trunc_sat_f32_u(f;u) i32.trunc_sat_f64_s(F;i) i32.trunc_sat_f64_u(F;u) \
         i64.trunc_sat_f32_s(f;I) i64.trunc_sat_f32_u(f;U) i64.trunc_sat_f64_s(F;I) i64.trunc_sat_f64_u(F;U)",
    ),
    ("exn", "try_table(*) throw(*;;u) throw_ref(?) try(*) catch(;;u) catch_all delegate(;;u) rethrow(;;u)"),
    (
        "gc",
        "struct.new(*;v;u) struct.new_default(;v;u) struct.get(v;?;uu) struct.get_s(v;i;uu) struct.get_u(v;u;uu) \
         struct.set(?v;;uu) array.new(u?;v;u) array.new_default(u;v;u) array.new_fixed(*;v;uu) array.new_data(uu;v;uu) \
         array.new_elem(uu;v;uu) array.get(uv;?;u) array.get_s(uv;i;u) array.get_u(uv;u;u) array.set(?uv;;u) \
         array.len(v;u) array.fill(u?uv;;u) array.copy(uuvuv;;uu) array.init_data(uuuv;;uu) array.init_elem(uuuv;;uu) \
         ref.test(v;i) ref.test_null(v;i) ref.cast(v;v) ref.cast_null(v;v) any.convert_extern(v;v) \
         extern.convert_any(v;v) ref.i31(i;v) i31.get_s(v;i) i31.get_u(v;u)",
    ),
    ("global", "global.get(;?;u) global.set(?;;u)"),
    (
        "load",
        "i32.load(a;i) i64.load(a;I) f32.load(a;f) f64.load(a;F) i32.load8_s(a;i) i32.load8_u(a;u) \
         i32.load16_s(a;i) i32.load16_u(a;u) i64.load8_s(a;I) i64.load8_u(a;U) i64.load16_s(a;I) \
         i64.load16_u(a;U) i64.load32_s(a;I) i64.load32_u(a;U)",
    ),
    ("local", "local.get(;?;u) local.set(?;;u) local.tee(?;?;u)"),
    (
        "memory",
        "memory.size(;a;u) memory.grow(a;j;u) memory.init(uua) memory.copy(aaa) memory.fill(aua) data.drop(;;u)",
    ),
    ("misc", "unreachable nop drop(?)"),
    ("ref", "ref.null(;?) ref.is_null(?;i) ref.func(;?;u) ref.as_non_null(?;?) ref.eq(??;i)"),
    (
        "store",
        "i32.store(ia) i64.store(Ia) f32.store(fa) f64.store(Fa) i32.store8(ia) i32.store16(ia) i64.store8(Ia) \
         i64.store16(Ia) i64.store32(Ia)",
    ),
    (
        "table",
        "table.get(a;?;u) table.set(?a;;u) table.grow(a?;j;u) table.size(;a;u) table.fill(a?a;;u) table.copy(aaa) \
         table.init(uua) elem.drop(;;u)",
    ),
];

/// The numbers of categories are those of the alphabetical order of all that the language knows.
const CATEGORIES: [&str; 17] = [
    "arith", "atomic", "compare", "const", "control", "convert", "exn", "gc", "global", "load", "local",
    "memory", "misc", "ref", "simd", "store", "table",
];

/// All instructions.
pub(super) static OPCODES: LazyLock<Vec<Opcode>> = LazyLock::new(|| {
    let encodings = encodings();
    let of_category = |(category, entries): &(&'static str, &'static str)| {
        entries.split_whitespace().map(|entry| opcode(category, entry, &encodings)).collect::<Vec<_>>()
    };
    let vectors = vectors::entries().map(|entry| opcode("simd", entry.leak(), &encodings));
    TABLE.iter().flat_map(of_category).chain(vectors).collect()
});

fn opcode(category: &'static str, entry: &'static str, encodings: &HashMap<String, u32>) -> Opcode {
    let position = CATEGORIES.iter().position(|known| *known == category);
    let (name, types) = entry.split_once('(').unwrap_or((entry, ")"));
    let mut types = types.trim_end_matches(')').split(';').map(Values::parse);
    let mut next = || types.next().unwrap_or_default();
    Opcode {
        name,
        category,
        category_id: position.map_or(u32::MAX, |position| position as u32),
        encoding: encodings.get(name).copied().unwrap_or(0),
        operands: next(),
        results: next(),
        immediates: next(),
        access: access(name),
    }
}

/// The access of a load, store or atomic operation, by its name.
fn access(name: &str) -> Option<Access> {
    let (ty, operation) = name.split_once('.')?;
    let (width, address, is_write) = if let Some((_, width)) = operation.split_once("load") {
        // In accesses to a lane, the vector is above the address.
        (width, usize::from(width.ends_with("_lane")), false)
    } else if let Some((_, width)) = operation.split_once("store") {
        (width, 1, true)
    } else if let Some((_, width)) = operation.split_once("rmw") {
        (width, if name.contains("cmpxchg") { 2 } else { 1 }, true)
    } else {
        return None;
    };
    let digits: String = width.chars().take_while(char::is_ascii_digit).collect();
    let bits: u32 = match width[digits.len()..].starts_with('x') {
        // Half a vector, as eight 8-bit lanes.
        true => 64,
        false => digits.parse().or_else(|_| ty[1..].parse()).ok()?,
    };
    Some(Access { bytes: bits / 8, is_write, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_of_the_engine_can_be_matched() {
        const PROPOSALS: [&str; 14] = [
            "mvp",
            "sign_extension",
            "saturating_float_to_int",
            "bulk_memory",
            "reference_types",
            "tail_call",
            "exceptions",
            "legacy_exceptions",
            "threads",
            "simd",
            "relaxed_simd",
            "gc",
            "function_references",
            "wide_arithmetic",
        ];
        assert!(crate::monitor_module::of_proposals(&PROPOSALS).count() > 500);
        let missing: Vec<String> = crate::monitor_module::of_proposals(&PROPOSALS)
            .map(|(name, _)| name)
            // This one is never valid.
            .filter(|name| name != "typed_select_multi")
            .filter(|name| OPCODES.iter().all(|opcode| opcode.name != name))
            .collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn accesses_follow_from_names() {
        #[track_caller]
        fn check(name: &str, expected: Option<(u32, bool, usize)>) {
            let opcode = OPCODES.iter().find(|opcode| opcode.name == name).unwrap();
            let found = opcode.access.map(|access| (access.bytes, access.is_write, access.address));
            assert_eq!(found, expected, "{name}");
            if let Some((_, _, address)) = expected {
                assert_eq!(opcode.operands.get(address), Some(&Known::Address(Type::U32)), "{name}");
            }
        }
        check("i32.load", Some((4, false, 0)));
        check("f64.load", Some((8, false, 0)));
        check("i64.load16_s", Some((2, false, 0)));
        check("i64.store32", Some((4, true, 1)));
        check("i64.atomic.rmw8.add_u", Some((1, true, 1)));
        check("i32.atomic.rmw.cmpxchg", Some((4, true, 2)));
        check("v128.load", Some((16, false, 0)));
        check("v128.load8x8_s", Some((8, false, 0)));
        check("v128.load32_splat", Some((4, false, 0)));
        check("v128.load16_lane", Some((2, false, 1)));
        check("v128.store", Some((16, true, 1)));
        check("v128.store64_lane", Some((8, true, 1)));
        // Only accesses have an address, and all of them do.
        for opcode in &*OPCODES {
            let address = opcode.access.map(|access| opcode.operands.get(access.address));
            assert!(address.is_none_or(|known| known == Some(&Known::Address(Type::U32))), "{opcode:?}");
        }
        check("i32.add", None);
        check("memory.grow", None);
    }

    #[test]
    fn every_instruction_has_an_opcode() {
        let encoding = |name: &str| OPCODES.iter().find(|opcode| opcode.name == name).unwrap().encoding;
        for (name, expected) in [
            ("unreachable", 0),
            ("block", 2),
            ("else", 5),
            ("catch", 7),
            ("delegate", 0x18),
            ("end", 0xb),
            ("br_table", 0xe),
            ("select", 0x1b),
            ("typed_select", 0x1c),
            ("i32.add", 0x6a),
            ("memory.copy", 0xfc0a),
            ("struct.new", 0xfb00),
            ("v128.const", 0xfd0c),
            ("i8x16.relaxed_swizzle", 0xfd_0100),
            ("i64.atomic.rmw32.cmpxchg_u", 0xfe4e),
        ] {
            assert_eq!(encoding(name), expected, "{name}");
        }
        let mut all: Vec<_> = OPCODES.iter().map(|opcode| opcode.encoding).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), OPCODES.len(), "they are unique");
    }

    #[test]
    fn names_are_unique_and_categories_known() {
        let mut names: Vec<_> = OPCODES.iter().map(|opcode| opcode.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(OPCODES.iter().all(|opcode| opcode.category_id < 17));
    }
}
