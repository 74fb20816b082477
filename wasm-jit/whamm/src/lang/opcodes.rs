//! The instructions that rules of `wasm:opcode` can match: operands, results, immediates and
//! category of each, as far as they are the same wherever the instruction occurs.

use std::sync::LazyLock;

use super::types::Type;

/// An instruction.
#[derive(Debug)]
pub(super) struct Opcode {
    /// As in the text format.
    pub(super) name: &'static str,
    pub(super) category: &'static str,
    /// Number of the category.
    pub(super) category_id: u32,
    /// Operands from the top of the stack.
    pub(super) operands: Values,
    pub(super) results: Values,
    pub(super) immediates: Values,
    /// The access to memory, of loads and stores.
    pub(super) access: Option<Access>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) bytes: u32,
    pub(super) is_write: bool,
    /// Number of the operand that is the address.
    pub(super) address: usize,
}

/// Types of operands, results or immediates.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// `None` is a type that differs from place to place.
    pub(super) known: Vec<Option<Type>>,
    /// There may be more, of types that differ.
    pub(super) more: bool,
}

impl Values {
    pub(super) const NONE: Self = Self { known: Vec::new(), more: false };

    /// The type of one of them: `None` is none that is known, `Some(None)` one that differs.
    pub(super) fn get(&self, index: usize) -> Option<Option<&Type>> {
        match self.known.get(index) {
            Some(ty) => Some(ty.as_ref()),
            None => self.more.then_some(None),
        }
    }

    /// From letters: the types, `?` for one that differs, `*` for any number of those.
    fn parse(letters: &str) -> Self {
        let mut values = Self::default();
        for letter in letters.chars() {
            let ty = match letter {
                'i' => Type::I32,
                'u' => Type::U32,
                'I' => Type::I64,
                'U' => Type::U64,
                'f' => Type::F32,
                'F' => Type::F64,
                '*' => {
                    values.more = true;
                    continue;
                }
                _ => {
                    values.known.push(None);
                    continue;
                }
            };
            values.known.push(Some(ty));
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
         i64.shr_s(II;I) i64.shr_u(UU;U) i64.rotl(II;I) i64.rotr(II;I) \
         f32.abs(f;f) f32.neg(f;f) f32.ceil(f;f) f32.floor(f;f) f32.trunc(f;f) f32.nearest(f;f) f32.sqrt(f;f) \
         f32.add(ff;f) f32.sub(ff;f) f32.mul(ff;f) f32.div(ff;f) f32.min(ff;f) f32.max(ff;f) f32.copysign(ff;f) \
         f64.abs(F;F) f64.neg(F;F) f64.ceil(F;F) f64.floor(F;F) f64.trunc(F;F) f64.nearest(F;F) f64.sqrt(F;F) \
         f64.add(FF;F) f64.sub(FF;F) f64.mul(FF;F) f64.div(FF;F) f64.min(FF;F) f64.max(FF;F) f64.copysign(FF;F)",
    ),
    (
        "atomic",
        "memory.atomic.notify(iu;i) memory.atomic.wait32(Iiu;i) memory.atomic.wait64(IIu;i) atomic.fence \
         i32.atomic.load(u;i) i64.atomic.load(u;I) i32.atomic.load8_u(u;u) i32.atomic.load16_u(u;u) \
         i64.atomic.load8_u(u;U) i64.atomic.load16_u(u;U) i64.atomic.load32_u(u;U) \
         i32.atomic.store(iu) i64.atomic.store(Iu) i32.atomic.store8(iu) i32.atomic.store16(iu) \
         i64.atomic.store8(Iu) i64.atomic.store16(Iu) i64.atomic.store32(Iu) \
         i32.atomic.rmw.add(iu;i) i32.atomic.rmw8.add_u(iu;i) i32.atomic.rmw16.add_u(iu;i) \
         i64.atomic.rmw.add(Iu;I) i64.atomic.rmw8.add_u(Iu;I) i64.atomic.rmw16.add_u(Iu;I) \
         i64.atomic.rmw32.add_u(Iu;I) \
         i32.atomic.rmw.sub(iu;i) i32.atomic.rmw8.sub_u(iu;i) i32.atomic.rmw16.sub_u(iu;i) \
         i64.atomic.rmw.sub(Iu;I) i64.atomic.rmw8.sub_u(Iu;I) i64.atomic.rmw16.sub_u(Iu;I) \
         i64.atomic.rmw32.sub_u(Iu;I) \
         i32.atomic.rmw.and(iu;i) i32.atomic.rmw8.and_u(iu;i) i32.atomic.rmw16.and_u(iu;i) \
         i64.atomic.rmw.and(Iu;I) i64.atomic.rmw8.and_u(Iu;I) i64.atomic.rmw16.and_u(Iu;I) \
         i64.atomic.rmw32.and_u(Iu;I) \
         i32.atomic.rmw.or(iu;i) i32.atomic.rmw8.or_u(iu;i) i32.atomic.rmw16.or_u(iu;i) \
         i64.atomic.rmw.or(Iu;I) i64.atomic.rmw8.or_u(Iu;I) i64.atomic.rmw16.or_u(Iu;I) \
         i64.atomic.rmw32.or_u(Iu;I) \
         i32.atomic.rmw.xor(iu;i) i32.atomic.rmw8.xor_u(iu;i) i32.atomic.rmw16.xor_u(iu;i) \
         i64.atomic.rmw.xor(Iu;I) i64.atomic.rmw8.xor_u(Iu;I) i64.atomic.rmw16.xor_u(Iu;I) \
         i64.atomic.rmw32.xor_u(Iu;I) \
         i32.atomic.rmw.xchg(iu;i) i32.atomic.rmw8.xchg_u(iu;i) i32.atomic.rmw16.xchg_u(iu;i) \
         i64.atomic.rmw.xchg(Iu;I) i64.atomic.rmw8.xchg_u(Iu;I) i64.atomic.rmw16.xchg_u(Iu;I) \
         i64.atomic.rmw32.xchg_u(Iu;I) \
         i32.atomic.rmw.cmpxchg(iiu;i) i32.atomic.rmw8.cmpxchg_u(iiu;i) i32.atomic.rmw16.cmpxchg_u(iiu;i) \
         i64.atomic.rmw.cmpxchg(IIu;I) i64.atomic.rmw8.cmpxchg_u(IIu;I) i64.atomic.rmw16.cmpxchg_u(IIu;I) \
         i64.atomic.rmw32.cmpxchg_u(IIu;I)",
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
         call_indirect(u*;*;uu) return_call(*;;u) return_call_indirect(u*;;uu) call_ref(?*;*) \
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
    ("global", "global.get(;?;u) global.set(?;;u)"),
    (
        "load",
        "i32.load(u;i) i64.load(u;I) f32.load(u;f) f64.load(u;F) i32.load8_s(u;i) i32.load8_u(u;u) \
         i32.load16_s(u;i) i32.load16_u(u;u) i64.load8_s(u;I) i64.load8_u(u;U) i64.load16_s(u;I) \
         i64.load16_u(u;U) i64.load32_s(u;I) i64.load32_u(u;U)",
    ),
    ("local", "local.get(;?;u) local.set(?;;u) local.tee(?;?;u)"),
    (
        "memory",
        "memory.size(;u;u) memory.grow(u;i;u) memory.init(uuu) memory.copy(uuu) memory.fill(uuu) data.drop(;;u)",
    ),
    ("misc", "unreachable nop drop(?)"),
    ("ref", "ref.null(;?) ref.is_null(?;i) ref.func(;?;u) ref.as_non_null(?;?) ref.eq(??;i)"),
    (
        "store",
        "i32.store(iu) i64.store(Iu) f32.store(fu) f64.store(Fu) i32.store8(iu) i32.store16(iu) i64.store8(Iu) \
         i64.store16(Iu) i64.store32(Iu)",
    ),
    (
        "table",
        "table.get(u;?;u) table.set(?u;;u) table.grow(u?;i;u) table.size(;u;u) table.fill(u?u;;u) table.copy(uuu) \
         table.init(uuu) elem.drop(;;u)",
    ),
];

/// Numbers of categories are alphabetical over all that the language knows, among them those of
/// instructions that cannot be matched.
const CATEGORIES: [&str; 17] = [
    "arith", "atomic", "compare", "const", "control", "convert", "exn", "gc", "global", "load", "local",
    "memory", "misc", "ref", "simd", "store", "table",
];

/// All instructions.
pub(super) static OPCODES: LazyLock<Vec<Opcode>> = LazyLock::new(|| {
    let of_category = |(category, entries): &(&'static str, &'static str)| {
        parse_category(category, entries).collect::<Vec<_>>()
    };
    TABLE.iter().flat_map(of_category).collect()
});

fn parse_category(category: &'static str, entries: &'static str) -> impl Iterator<Item = Opcode> {
    let position = CATEGORIES.iter().position(|known| *known == category);
    entries.split_whitespace().map(move |entry| {
        let (name, types) = entry.split_once('(').unwrap_or((entry, ")"));
        let mut types = types.trim_end_matches(')').split(';').map(Values::parse);
        let mut next = || types.next().unwrap_or_default();
        Opcode {
            name,
            category,
            category_id: position.map_or(u32::MAX, |position| position as u32),
            operands: next(),
            results: next(),
            immediates: next(),
            access: access(name),
        }
    })
}

/// The access of a load, store or atomic operation, by its name.
fn access(name: &str) -> Option<Access> {
    let (ty, operation) = name.split_once('.')?;
    let (width, address, is_write) = if let Some((_, width)) = operation.split_once("load") {
        (width, 0, false)
    } else if let Some((_, width)) = operation.split_once("store") {
        (width, 1, true)
    } else if let Some((_, width)) = operation.split_once("rmw") {
        (width, if name.contains("cmpxchg") { 2 } else { 1 }, true)
    } else {
        return None;
    };
    let digits: String = width.chars().take_while(char::is_ascii_digit).collect();
    let bits: u32 = digits.parse().or_else(|_| ty[1..].parse()).ok()?;
    Some(Access { bytes: bits / 8, is_write, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_of_the_engine_can_be_matched() {
        const PROPOSALS: [&str; 9] = [
            "mvp",
            "sign_extension",
            "saturating_float_to_int",
            "bulk_memory",
            "reference_types",
            "tail_call",
            "exceptions",
            "legacy_exceptions",
            "threads",
        ];
        assert!(crate::monitor_module::names_of(&PROPOSALS).count() > 250);
        let missing: Vec<String> = crate::monitor_module::names_of(&PROPOSALS)
            // It is never valid.
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
            // The address is an operand, of 32 bits.
            if let Some((_, _, address)) = expected {
                assert_eq!(opcode.operands.get(address), Some(Some(&Type::U32)), "{name}");
            }
        }
        check("i32.load", Some((4, false, 0)));
        check("f64.load", Some((8, false, 0)));
        check("i64.load16_s", Some((2, false, 0)));
        check("i64.store32", Some((4, true, 1)));
        check("i64.atomic.rmw8.add_u", Some((1, true, 1)));
        check("i32.atomic.rmw.cmpxchg", Some((4, true, 2)));
        check("i32.add", None);
        check("memory.grow", None);
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
