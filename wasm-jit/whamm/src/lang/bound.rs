//! The variables that events bind: their types, and how they derive from the values that the engine
//! passes.

use super::ast::BinaryOp;
use super::events::{BLOCKS, Mode};
use super::ir::Typed;
use super::opcodes::{Known, Opcode, Values};
use super::types::Type;

/// The index in the table of an indirect call.
pub(super) const TABLE_INDEX: &str = "table_entry_idx";

/// The probe that has fired.
pub(super) const PROBE_ID: &str = "probe_id";

/// The targets of a `br_table`, by their indices.
pub(super) const TARGETS: &str = "targets";

/// Names of bound variables, with descriptions.
pub(super) const NAMED: &[(&str, &str)] = &[
    ("fid", "number of the function"),
    ("fname", "name of the function: that in the name section, or empty; demangled in native programs"),
    ("pc", "offset of the instruction in the function, in bytes"),
    ("opidx", "offset of the instruction in the function, in instructions"),
    ("at_func_end", "whether it is the last `end` of the function"),
    ("opname", "name of the instruction"),
    ("bytecode", "its opcode in the binary format: 0x6a, or with a prefix 0xfc0a; of any integer type"),
    ("category_name", "its category, such as load"),
    ("category_id", "number of its category"),
    ("addr", "address operand"),
    ("effective_addr", "address operand plus offset, or the largest number of the type"),
    ("offset", "static offset"),
    ("align", "alignment, as an exponent of two"),
    ("memory", "number of the memory"),
    ("data_size", "bytes that are accessed"),
    ("is_write", "whether it writes"),
    ("failed", "whether the memory has not grown"),
    ("taken", "whether the branch is taken"),
    ("trap", "whether it is about to trap"),
    ("target_fn_name", "name of the function that is called; that of an import"),
    ("target_fn_type", "local, or import"),
    ("target_imp_module", "module of the imported function that is called, or empty"),
    ("resolved_fid", "number of the function that is called"),
    ("target_funcref", "the function that is called, for `resolve_funcref`"),
    (TABLE_INDEX, "index in the table of the function that is called"),
    ("num_targets", "number of targets without the default"),
    ("default_target", "the default target"),
    ("target", "index of the target that is taken"),
    ("instr_count", "number of instructions of the block"),
    ("object", "file of the executable or library that contains the function"),
    ("probe_id", "number of the probe that has fired"),
    ("tid", "kernel's number of the thread"),
    ("ticks", "time-stamp counter"),
    ("ns", "time since the start of the script, in nanoseconds"),
    ("depth", "number of open calls of the observed functions in the thread, with this one"),
    ("duration", "duration of the call, in nanoseconds"),
    ("stack", "open calls of the observed functions in the thread, with this one"),
];

/// Names that are followed by a number, in native programs.
pub(super) const NATIVE_NUMBERED: &[(&str, &str)] =
    &[("arg", "argument of the function, from the first"), ("res", "result of the function")];

/// Names that are followed by a number.
pub(super) const NUMBERED: &[(&str, &str)] = &[
    ("arg", "operand, from the top of the stack"),
    ("res", "result, from the top of the stack"),
    ("imm", "immediate"),
    ("local", "local variable of the function"),
];

/// What is known about the callee of an indirect call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    Number,
    Name,
    Reference,
}

impl Callee {
    pub(super) fn ty(self) -> Type {
        match self {
            Self::Number => Type::I32,
            Self::Name => Type::Str,
            Self::Reference => Type::FuncRef,
        }
    }
}

/// The meaning of a name.
#[derive(Debug)]
pub(super) enum Bound {
    Value(Typed),
    /// A constant that is used like a literal: it has the type that is expected, if its bits fit.
    Bits(u32),
    Callee(Callee),
    /// The type differs from place to place: the rule must state it by a type bound.
    NeedsType,
    Unsupported(&'static str),
    Unknown,
}

/// The number in a name such as `arg0`.
pub(super) fn numbered(name: &str, prefix: &str) -> Option<usize> {
    let digits = name.strip_prefix(prefix)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|index| is_number && *index < 1000)
}

/// A variable of an instruction. `bound` has the types that the rule states.
pub(super) fn of_opcode(
    opcode: &Opcode,
    mode: Mode,
    name: &str,
    bound: &dyn Fn(&str) -> Option<Type>,
) -> Bound {
    match name {
        "opname" => return Bound::Value(Typed::string(opcode.name)),
        "category_name" => return Bound::Value(Typed::string(opcode.category)),
        "category_id" => return Bound::Value(Typed::int(Type::U32, i128::from(opcode.category_id))),
        "bytecode" => return Bound::Bits(opcode.encoding),
        _ => {}
    }
    for (prefix, values) in [
        ("arg", Some(&opcode.operands).filter(|_| mode.has_operands())),
        ("res", results(opcode, mode)),
        ("imm", Some(&opcode.immediates)),
    ] {
        let (Some(index), Some(values)) = (numbered(name, prefix), values) else { continue };
        return match (values.get(index), bound(name)) {
            (None, _) => Bound::Unknown,
            (Some(Known::Opaque), None) => {
                Bound::Unsupported("it is a vector or a reference, which scripts do not have")
            }
            (Some(_), Some(Type::Ref)) => Bound::Unsupported(
                "a rule cannot compute a reference: this result is null, or that of a function that it calls by `alt_call_by_name`",
            ),
            (Some(_), Some(ty)) => Bound::Value(Typed::request(ty, name)),
            (Some(known), None) => match known.ty() {
                Some(ty) => Bound::Value(Typed::request(ty.clone(), name)),
                None => Bound::NeedsType,
            },
        };
    }
    if let Some(access) = opcode.access {
        let offset = || Typed::request(Type::U64, "offset");
        match name {
            "data_size" => return Bound::Value(Typed::int(Type::U32, i128::from(access.bytes))),
            "is_write" => return Bound::Value(Typed::bool(access.is_write)),
            "offset" => return Bound::Value(offset()),
            "align" | "memory" => return Bound::Value(Typed::request(Type::U32, name)),
            "addr" | "effective_addr" if mode.has_operands() => {
                let operand = format!("arg{}", access.address);
                let is_wide = bound(&operand).is_some_and(|ty| ty.bits() == Some(64));
                let of_memory = if is_wide { Type::U64 } else { Type::U32 };
                let ty = bound(name).unwrap_or_else(|| of_memory.clone());
                if is_wide && ty != Type::U64 {
                    return Bound::Unsupported("the address has 64 bits: its type is `u64`");
                }
                let address = Typed::cast(Typed::request(of_memory, &operand), ty.clone());
                let is_sum = name == "effective_addr";
                return Bound::Value(if is_sum { sum(address, offset(), ty) } else { address });
            }
            _ => {}
        }
    }
    match (opcode.name, name) {
        ("br" | "br_table", "taken") => Bound::Value(Typed::bool(true)),
        ("br_if" | "if", "taken") if mode.has_operands() => {
            let zero = Typed::int(Type::U32, 0);
            Bound::Value(Typed::binary(BinaryOp::Ne, Typed::request(Type::U32, "arg0"), zero))
        }
        ("br_on_null" | "br_on_non_null", "taken") if mode.has_operands() => {
            let decides = if opcode.name == "br_on_null" { BinaryOp::Eq } else { BinaryOp::Ne };
            let reference = Typed::request(Type::U64, "ref0");
            Bound::Value(Typed::binary(decides, reference, Typed::int(Type::U64, 0)))
        }
        ("memory.grow", "failed") if mode == Mode::After => {
            let ty = bound("res0").unwrap_or(Type::I32);
            Bound::Value(Typed::binary(BinaryOp::Eq, Typed::request(ty.clone(), "res0"), Typed::int(ty, -1)))
        }
        ("br_table", "num_targets" | "default_target") => Bound::Value(Typed::request(Type::U32, name)),
        ("br_table", TARGETS) => Bound::Unsupported("it has an index: `targets[0]`"),
        ("br_table", "target") if mode.has_operands() => {
            let index = || Typed::request(Type::U32, "arg0");
            let targets = || Typed::request(Type::U32, "num_targets");
            let inside = Typed::binary(BinaryOp::Lt, index(), targets());
            Bound::Value(Typed::ternary(inside, index(), targets()))
        }
        (division, "trap") if mode.has_operands() => trap(division),
        ("call" | "return_call", "target_fn_name" | "target_imp_module" | "target_fn_type") => {
            Bound::Value(Typed::request(Type::Str, name))
        }
        ("call" | "return_call" | "ref.func", "resolved_fid") => {
            Bound::Value(Typed::cast(Typed::request(Type::U32, "imm0"), Type::I32))
        }
        ("call_indirect" | "return_call_indirect" | "call_ref" | "return_call_ref", name) => match name {
            "resolved_fid" if mode.has_operands() => Bound::Callee(Callee::Number),
            "target_fn_name" if mode.has_operands() => Bound::Callee(Callee::Name),
            "target_funcref" if mode.has_operands() => Bound::Callee(Callee::Reference),
            TABLE_INDEX if mode.has_operands() && opcode.name.ends_with("call_indirect") => {
                let ty = bound("arg0").unwrap_or(Type::U32);
                Bound::Value(Typed::cast(Typed::request(ty, "arg0"), Type::I32))
            }
            "resolved_fid" | "target_fn_name" | "target_imp_module" | "target_fn_type" => Bound::Unsupported(
                "of a function that is called indirectly, `resolved_fid` and `target_fn_name` are known, before the call",
            ),
            _ => Bound::Unknown,
        },
        _ => Bound::Unknown,
    }
}

/// An address plus an offset, in the type of the address, saturating: if the sum does not fit,
/// there is no such address, and the access traps.
fn sum(address: Typed, offset: Typed, ty: Type) -> Typed {
    let largest = Typed::int(ty.clone(), if ty == Type::U64 { u64::MAX.into() } else { u32::MAX.into() });
    let offset = Typed::cast(offset, ty);
    // The limit depends on the place only.
    let limit = Typed::binary(BinaryOp::Sub, largest.clone(), offset.clone());
    let is_beyond = Typed::binary(BinaryOp::Gt, address.clone(), limit);
    Typed::ternary(is_beyond, largest, Typed::binary(BinaryOp::Add, address, offset))
}

/// The results that an instruction pushes, if the mode has some.
pub(super) fn results(opcode: &Opcode, mode: Mode) -> Option<&Values> {
    static NONE: Values = Values::NONE;
    static ANY: Values = Values { known: Vec::new(), more: true };
    match (mode, opcode.name) {
        (Mode::BlockAlt, _) => Some(&ANY),
        (Mode::Alt, _) => Some(&opcode.results),
        // The results of a branch are on the stack at all of its targets.
        (Mode::After, name) if BLOCKS.contains(&name) || name.starts_with("br") => Some(&NONE),
        (Mode::After, "else" | "end" | "catch" | "catch_all") => Some(&NONE),
        (Mode::After, _) => Some(&opcode.results),
        _ => None,
    }
}

/// Whether a division is about to trap.
fn trap(opcode: &str) -> Bound {
    let Some((ty, operation)) = opcode.split_once('.') else { return Bound::Unknown };
    let (signed, unsigned, least) = match ty {
        "i32" => (Type::I32, Type::U32, i128::from(i32::MIN)),
        "i64" => (Type::I64, Type::U64, i128::from(i64::MIN)),
        _ => return Bound::Unknown,
    };
    let is = |name: &str, ty: &Type, value: i128| {
        Typed::binary(BinaryOp::Eq, Typed::request(ty.clone(), name), Typed::int(ty.clone(), value))
    };
    Bound::Value(match operation {
        "div_u" | "rem_u" => is("arg0", &unsigned, 0),
        "rem_s" => is("arg0", &signed, 0),
        // The quotient of the least number divided by -1 is out of range.
        "div_s" => {
            let overflows = Typed::binary(BinaryOp::And, is("arg0", &signed, -1), is("arg1", &signed, least));
            Typed::binary(BinaryOp::Or, is("arg0", &signed, 0), overflows)
        }
        _ => return Bound::Unknown,
    })
}
