//! Names and immediates of instructions.

use wasm_jit::wasmparser::Operator;

macro_rules! visitors {
    ($( @$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($ann:tt)*) )*) => {
        /// The name of an instruction's visitor: `visit_i32_add`.
        fn visitor(operator: &Operator<'_>) -> &'static str {
            match operator {
                $( Operator::$op { .. } => stringify!($visit), )*
                _ => "visit_",
            }
        }

        const VISITORS: &[&str] = &[$( stringify!($visit) ),*];

        /// The number of results that an instruction pushes, if it is the same at every occurrence.
        pub(super) fn pushed(operator: &Operator<'_>) -> Option<u32> {
            let described = match operator {
                $( Operator::$op { .. } => stringify!($($ann)*), )*
                _ => "",
            };
            // arity 2 -> 1
            described.split_once("->")?.1.trim().parse().ok()
        }

        const PROPOSALS: &[&str] = &[$( stringify!($proposal) ),*];

        /// The arity of each instruction, as in `arity memarg 2 -> 1`.
        const ARITIES: &[&str] = &[$( stringify!($($ann)*) ),*];
    };
}
wasm_jit::wasmparser::for_each_operator!(visitors);

/// Parts of names that are followed by a dot.
const PREFIXES: &[&str] = &[
    "i32", "i64", "f32", "f64", "v128", "i8x16", "i16x8", "i32x4", "i64x2", "f32x4", "f64x2", "local",
    "global", "table", "memory", "data", "elem", "ref", "struct", "array", "i31", "any", "extern", "atomic",
];

/// The name of an instruction in the text format, from that of its visitor.
fn mnemonic(visitor: &str) -> String {
    let name = visitor.strip_prefix("visit_").unwrap_or(visitor);
    match name {
        "ref_test_non_null" => return "ref.test".to_owned(),
        "ref_test_nullable" => return "ref.test_null".to_owned(),
        "ref_cast_non_null" => return "ref.cast".to_owned(),
        "ref_cast_nullable" => return "ref.cast_null".to_owned(),
        _ => {}
    }
    let Some((prefix, rest)) = name.split_once('_').filter(|(prefix, _)| PREFIXES.contains(prefix)) else {
        return name.to_owned();
    };
    // i32.atomic.rmw8.add_u
    let rest = match rest.strip_prefix("atomic_") {
        Some(atomic) => match atomic.split_once('_') {
            Some((rmw, operation)) if rmw.starts_with("rmw") => format!("atomic.{rmw}.{operation}"),
            _ => format!("atomic.{atomic}"),
        },
        None => rest.to_owned(),
    };
    format!("{prefix}.{rest}")
}

/// The name of an instruction in the text format; a `select` with a type is `typed_select`.
pub(super) fn name(operator: &Operator<'_>) -> String {
    mnemonic(visitor(operator))
}

/// Whether an instruction has this name.
pub(super) fn exists(name: &str) -> bool {
    VISITORS.iter().any(|visitor| mnemonic(visitor) == name)
}

/// The names of the instructions of these proposals, with the numbers of their operands, where
/// these are the same at every occurrence.
pub(crate) fn of_proposals(proposals: &[&str]) -> impl Iterator<Item = (String, Option<usize>)> {
    let all = PROPOSALS.iter().zip(VISITORS).zip(ARITIES);
    let all = all.filter(|((proposal, _), _)| proposals.contains(proposal));
    all.map(|((_, visitor), arity)| {
        let operands = arity.split_once("->").and_then(|(before, _)| before.split_whitespace().last());
        (mnemonic(visitor), operands.and_then(|operands| operands.parse().ok()))
    })
}

/// An immediate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Immediate {
    Integer(u64),
    F32(u32),
    F64(u64),
}

/// The immediates of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) align: u64,
    pub(super) memory: u64,
    pub(super) offset: u64,
}

/// The immediates of an instruction in the order of the binary format; none if they are types or
/// vectors of bytes.
pub(super) fn immediates(operator: &Operator<'_>, bytes: &[u8]) -> Vec<Immediate> {
    match operator {
        Operator::I32Const { value } => return vec![Immediate::Integer(*value as i64 as u64)],
        Operator::I64Const { value } => return vec![Immediate::Integer(*value as u64)],
        Operator::F32Const { value } => return vec![Immediate::F32(value.bits())],
        Operator::F64Const { value } => return vec![Immediate::F64(value.bits())],
        Operator::BrTable { targets } => {
            let targets = targets.targets().flatten().chain([targets.default()]);
            return targets.map(|target| Immediate::Integer(target.into())).collect();
        }
        Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::If { .. }
        | Operator::Try { .. }
        | Operator::TryTable { .. }
        | Operator::TypedSelect { .. }
        | Operator::RefNull { .. }
        | Operator::V128Const { .. } => return Vec::new(),
        _ => {}
    }
    numbers(bytes).into_iter().map(Immediate::Integer).collect()
}

/// The numbers after the opcode.
fn numbers(bytes: &[u8]) -> Vec<u64> {
    let mut rest = &bytes[1..];
    if matches!(bytes[0], 0xfb..=0xfe) {
        number(&mut rest);
    }
    let mut found = Vec::new();
    while !rest.is_empty() {
        found.push(number(&mut rest));
    }
    found
}

/// A number in LEB128.
fn number(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The flag of a memory access that says that the index of a memory follows; the bits below it are
/// the alignment.
const HAS_MEMORY: u64 = 1 << 6;

/// The memory access of an instruction, if it is a load, store or atomic operation.
pub(super) fn access(operator: &Operator<'_>, bytes: &[u8]) -> Option<Access> {
    let name = visitor(operator);
    let accesses = name != "visit_atomic_fence"
        && ["_load", "_store", "_atomic_"].iter().any(|part| name.contains(part));
    if !accesses {
        return None;
    }
    let numbers = numbers(bytes);
    let [flags, rest @ ..] = &numbers[..] else { return None };
    let (memory, offset) = match flags & HAS_MEMORY {
        0 => (0, *rest.first()?),
        _ => (*rest.first()?, *rest.get(1)?),
    };
    Some(Access { align: flags & (HAS_MEMORY - 1), memory, offset })
}

#[cfg(test)]
mod tests {
    use wasm_jit::{Engine, Module};

    use super::*;

    #[test]
    fn names_are_those_of_the_text_format() {
        for (visitor, expected) in [
            ("visit_i32_load8_u", "i32.load8_u"),
            ("visit_i32_trunc_sat_f32_s", "i32.trunc_sat_f32_s"),
            ("visit_i64_atomic_rmw32_cmpxchg_u", "i64.atomic.rmw32.cmpxchg_u"),
            ("visit_i32_atomic_load", "i32.atomic.load"),
            ("visit_memory_atomic_wait32", "memory.atomic.wait32"),
            ("visit_atomic_fence", "atomic.fence"),
            ("visit_br_on_null", "br_on_null"),
            ("visit_call_indirect", "call_indirect"),
            ("visit_local_get", "local.get"),
            ("visit_i8x16_add_sat_s", "i8x16.add_sat_s"),
        ] {
            assert_eq!(mnemonic(visitor), expected);
            assert!(VISITORS.contains(&visitor) && exists(expected), "{visitor}");
        }
        assert!(!exists("i32_add") && !exists(""));
    }

    #[test]
    fn immediates_are_read_from_the_bytes() {
        let module = Module::new(
            &Engine::default(),
            "(module (memory 1) (table 3 funcref) (func (param i32)
                (block (br_table 0 1 0 (local.get 0)))
                (drop (i32.load16_u offset=1000 align=1 (i32.const -1)))
                (call_indirect (param) (i32.const 0)) (drop (f32.const 1)) (memory.fill (local.get 0)
                    (local.get 0) (local.get 0))))",
        );
        let module = module.unwrap();
        let body = module.function(0).unwrap().body().unwrap();
        let of = |wanted: &str| {
            let mut all = body.instructions();
            let found = all.find(|instruction| name(instruction.operator()) == wanted).unwrap();
            (immediates(found.operator(), found.bytes()), access(found.operator(), found.bytes()))
        };
        let integers =
            |values: &[u64]| values.iter().map(|value| Immediate::Integer(*value)).collect::<Vec<_>>();
        assert_eq!(of("br_table"), (integers(&[0, 1, 0]), None));
        assert_eq!(of("i32.const"), (integers(&[u64::MAX]), None));
        assert_eq!(of("call_indirect"), (integers(&[1, 0]), None));
        assert_eq!(of("f32.const"), (vec![Immediate::F32(1.0f32.to_bits())], None));
        assert_eq!(of("memory.fill"), (integers(&[0]), None));
        let access = Access { align: 0, memory: 0, offset: 1000 };
        assert_eq!(of("i32.load16_u"), (integers(&[0, 1000]), Some(access)));
        assert_eq!(of("block").0, []);
    }
}
