//! What rules can match, and what each event binds.
//!
//! | event | bound |
//! | --- | --- |
//! | all of the program's code | `fid`, `fname`, `pc`, `opidx`, `at_func_end`, `localN` with a type bound |
//! | `wasm:opcode:NAME:MODE` | `immN`, `opname`, `category_name`, `category_id` |
//! | `wasm:opcode:NAME:before` | `argN` from the top of the stack |
//! | loads, stores, atomic operations | `addr`, `effective_addr`, `offset`, `align`, `memory`, `data_size`, `is_write` |
//! | `br`, `br_if`, `br_table`, `if` | `taken` |
//! | `br_table` | `num_targets`, `default_target`, `target` |
//! | divisions and remainders of integers | `trap` |
//! | `call`, `return_call` | `target_fn_name`, `target_fn_type`, `target_imp_module`, `resolved_fid` |
//! | `wasm:opcode:NAME:after` | `resN` |
//! | `wasm:func:entry`, `wasm:func:exit`, `wasm:block:start`, `wasm:block:end` | as for all code |
//! | `wasm:begin`, `wasm:end`, `wasm:report` | nothing |

use super::ast::BinaryOp;
use super::ir::Typed;
use super::opcodes::{OPCODES, Opcode, Values};
use super::types::Type;
use super::{ast, glob};

/// When a rule's body runs, in relation to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Before,
    /// Where control goes on to the next instruction of the text.
    After,
    /// Wherever control goes on; of a block, after its end.
    SemanticAfter,
    /// Inside of a block, at its beginning.
    Entry,
    /// After the end of a block.
    Exit,
}

const MODES: [Mode; 5] = [Mode::Before, Mode::After, Mode::SemanticAfter, Mode::Entry, Mode::Exit];

/// Instructions that begin a block.
const BLOCKS: [&str; 5] = ["block", "loop", "if", "try", "try_table"];

/// Instructions after which control does not continue in the function.
const LAST: [&str; 8] = [
    "unreachable",
    "return_call",
    "return_call_indirect",
    "return_call_ref",
    "throw",
    "throw_ref",
    "rethrow",
    "delegate",
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Opcode(&'static Opcode, Mode),
    /// Any instruction: what is bound for all of them.
    AnyOpcode(Mode),
    FunctionEntry,
    FunctionExit,
    BlockStart,
    BlockEnd,
    Begin,
    End,
    Report,
}

/// A bound variable of an event, for its description.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) ty: String,
    /// Known when the rule is matched.
    pub(super) is_static: bool,
    pub(super) help: &'static str,
}

impl Mode {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::SemanticAfter => "semantic_after",
            Self::Entry => "entry",
            Self::Exit => "exit",
        }
    }

    /// Whether an instruction has it.
    fn is_of(self, opcode: &str) -> bool {
        match self {
            Self::Before => true,
            Self::After => !LAST.contains(&opcode) && !["br", "br_table", "return"].contains(&opcode),
            Self::SemanticAfter => !LAST.contains(&opcode),
            Self::Entry | Self::Exit => BLOCKS.contains(&opcode),
        }
    }
}

impl Event {
    /// As in a rule, and in the names of a monitor module's exports.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Opcode(opcode, mode) => format!("wasm:opcode:{}:{}", opcode.name, mode.text()),
            Self::AnyOpcode(mode) => format!("wasm:opcode:*:{}", mode.text()),
            Self::FunctionEntry => "wasm:func:entry".to_owned(),
            Self::FunctionExit => "wasm:func:exit".to_owned(),
            Self::BlockStart => "wasm:block:start".to_owned(),
            Self::BlockEnd => "wasm:block:end".to_owned(),
            Self::Begin => "wasm:begin".to_owned(),
            Self::End => "wasm:end".to_owned(),
            Self::Report => "wasm:report".to_owned(),
        }
    }

    /// When it happens, in relation to its place.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Opcode(_, mode) | Self::AnyOpcode(mode) => *mode,
            _ => Mode::Before,
        }
    }

    /// Whether it happens at places of the program's code.
    pub(super) fn has_site(&self) -> bool {
        !matches!(self, Self::Begin | Self::End | Self::Report)
    }

    /// A bound variable. `bounds` are the rule's: types of operands and locals that differ from
    /// place to place.
    pub(super) fn bound(&self, name: &str, bounds: &[(String, Type)]) -> Bound {
        if !self.has_site() {
            return Bound::Unknown;
        }
        match name {
            "fid" | "pc" | "opidx" => return Bound::Value(Typed::request(Type::U32, name)),
            "at_func_end" => return Bound::Value(Typed::request(Type::Bool, name)),
            "fname" => return Bound::Value(Typed::request(Type::Str, name)),
            "probe_id" => return Bound::Unsupported("probes have no numbers here"),
            _ => {}
        }
        let bound = |name: &str| bounds.iter().find(|(bound, _)| bound == name).map(|(_, ty)| ty.clone());
        // Where a branch leads, there may be no frame any more.
        let has_locals = !matches!(self, Self::FunctionExit) && self.mode() != Mode::SemanticAfter;
        if numbered(name, "local").is_some() && has_locals {
            return match bound(name) {
                Some(ty) => Bound::Value(Typed::request(ty, name)),
                None => Bound::NeedsType,
            };
        }
        match self {
            Self::Opcode(opcode, mode) => of_opcode(opcode, *mode, name, &bound),
            Self::BlockEnd if name == "instr_count" => Bound::Value(Typed::request(Type::U32, name)),
            _ => Bound::Unknown,
        }
    }

    /// Whether a type bound can ever hold: `None` if the event has no such value.
    pub(super) fn admits(&self, name: &str, ty: &Type) -> Option<bool> {
        let is_local = numbered(name, "local").is_some();
        if is_local && !matches!(self.bound(name, &[]), Bound::Unknown) {
            return Some(true);
        }
        let Self::Opcode(opcode, mode) = self else { return None };
        let (values, index) = match (numbered(name, "arg"), numbered(name, "res"), numbered(name, "imm")) {
            (Some(index), ..) if *mode == Mode::Before => (&opcode.operands, index),
            (_, Some(index), _) if *mode == Mode::After => (results(opcode), index),
            (.., Some(index)) => (&opcode.immediates, index),
            _ => return None,
        };
        let known = values.get(index)?;
        Some(known.is_none_or(|known| known.scalar() == ty.scalar()))
    }

    /// The variables that it binds.
    pub(super) fn describe(&self) -> Vec<Description> {
        let mut all = Vec::new();
        let mut add = |name: String, help: &'static str| {
            let (ty, is_static) = match self.bound(&name, &[]) {
                Bound::Value(value) => (value.ty.to_string(), super::split::is_static(&value)),
                Bound::NeedsType => ("by type bound".to_owned(), name.starts_with("imm")),
                Bound::Unknown | Bound::Unsupported(_) => return,
            };
            all.push(Description { name, ty, is_static, help });
        };
        for (name, help) in NAMED {
            add((*name).to_owned(), help);
        }
        for (prefix, help) in NUMBERED {
            for index in 0..4 {
                add(format!("{prefix}{index}"), help);
            }
        }
        all
    }
}

const NAMED: &[(&str, &str)] = &[
    ("fid", "number of the function"),
    ("fname", "name of the function in the name section, or empty"),
    ("pc", "offset of the instruction in the function, in bytes"),
    ("opidx", "offset of the instruction in the function, in instructions"),
    ("at_func_end", "whether it is the last `end` of the function"),
    ("opname", "name of the instruction"),
    ("category_name", "its category, such as load"),
    ("category_id", "number of its category"),
    ("addr", "address operand"),
    ("effective_addr", "address operand plus offset"),
    ("offset", "static offset"),
    ("align", "alignment, as an exponent of two"),
    ("memory", "number of the memory"),
    ("data_size", "bytes that are accessed"),
    ("is_write", "whether it writes"),
    ("taken", "whether the branch is taken"),
    ("trap", "whether it is about to trap"),
    ("target_fn_name", "name of the function that is called; that of an import"),
    ("target_fn_type", "local, or import"),
    ("target_imp_module", "module of the imported function that is called, or empty"),
    ("resolved_fid", "number of the function that is called"),
    ("num_targets", "number of targets without the default"),
    ("default_target", "the default target"),
    ("target", "index of the target that is taken"),
    ("instr_count", "number of instructions of the block"),
];

const NUMBERED: &[(&str, &str)] = &[
    ("arg", "operand, from the top of the stack"),
    ("res", "result, from the top of the stack"),
    ("imm", "immediate"),
    ("local", "local variable of the function"),
];

/// What a name is bound to.
#[derive(Debug)]
pub(super) enum Bound {
    Value(Typed),
    /// Its type differs from place to place: the rule must have a type bound.
    NeedsType,
    Unsupported(&'static str),
    Unknown,
}

/// The number of `arg0` and the like.
pub(super) fn numbered(name: &str, prefix: &str) -> Option<usize> {
    let digits = name.strip_prefix(prefix)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|index| is_number && *index < 1000)
}

fn of_opcode(opcode: &Opcode, mode: Mode, name: &str, bound: &dyn Fn(&str) -> Option<Type>) -> Bound {
    match name {
        "opname" => return Bound::Value(Typed::string(opcode.name)),
        "category_name" => return Bound::Value(Typed::string(opcode.category)),
        "category_id" => return Bound::Value(Typed::int(Type::U32, i128::from(opcode.category_id))),
        "bytecode" => return Bound::Unsupported("the encoding of instructions is not bound"),
        _ => {}
    }
    for (prefix, values, is_bound) in [
        ("arg", &opcode.operands, mode == Mode::Before),
        // Those of branches are on the stack wherever they lead.
        ("res", results(opcode), mode == Mode::After),
        ("imm", &opcode.immediates, true),
    ] {
        let Some(index) = numbered(name, prefix).filter(|_| is_bound) else { continue };
        return match (values.get(index), bound(name)) {
            (None, _) => Bound::Unknown,
            (Some(_), Some(ty)) => Bound::Value(Typed::request(ty, name)),
            (Some(Some(ty)), None) => Bound::Value(Typed::request(ty.clone(), name)),
            (Some(None), None) => Bound::NeedsType,
        };
    }
    if let Some(access) = opcode.access {
        let address = || Typed::request(Type::U32, &format!("arg{}", access.address));
        let offset = || Typed::request(Type::U64, "offset");
        match name {
            "data_size" => return Bound::Value(Typed::int(Type::U32, i128::from(access.bytes))),
            "is_write" => return Bound::Value(Typed::bool(access.is_write)),
            "offset" => return Bound::Value(offset()),
            "align" | "memory" => return Bound::Value(Typed::request(Type::U32, name)),
            "addr" if mode == Mode::Before => return Bound::Value(address()),
            "effective_addr" if mode == Mode::Before => {
                let offset = Typed::cast(offset(), Type::U32);
                return Bound::Value(Typed::binary(BinaryOp::Add, address(), offset));
            }
            _ => {}
        }
    }
    match (opcode.name, name) {
        ("br" | "br_table", "taken") => Bound::Value(Typed::bool(true)),
        ("br_if" | "if", "taken") if mode == Mode::Before => {
            let zero = Typed::int(Type::U32, 0);
            Bound::Value(Typed::binary(BinaryOp::Ne, Typed::request(Type::U32, "arg0"), zero))
        }
        ("br_table", "num_targets" | "default_target") => Bound::Value(Typed::request(Type::U32, name)),
        ("br_table", "target") if mode == Mode::Before => {
            let index = || Typed::request(Type::U32, "arg0");
            let targets = || Typed::request(Type::U32, "num_targets");
            let inside = Typed::binary(BinaryOp::Lt, index(), targets());
            Bound::Value(Typed::ternary(inside, index(), targets()))
        }
        (division, "trap") if mode == Mode::Before => trap(division),
        ("call" | "return_call", "target_fn_name" | "target_imp_module" | "target_fn_type") => {
            Bound::Value(Typed::request(Type::Str, name))
        }
        ("call" | "return_call" | "ref.func", "resolved_fid") => {
            Bound::Value(Typed::cast(Typed::request(Type::U32, "imm0"), Type::I32))
        }
        (
            "call_indirect" | "return_call_indirect" | "call_ref" | "return_call_ref",
            "target_fn_name" | "target_imp_module" | "target_fn_type" | "resolved_fid",
        ) => Bound::Unsupported(
            "the function is not known before the call; the next `wasm:func:entry` is that of a function of the program",
        ),
        _ => Bound::Unknown,
    }
}

/// The results that an instruction pushes.
fn results(opcode: &Opcode) -> &Values {
    static NONE: Values = Values::NONE;
    match opcode.name {
        name if BLOCKS.contains(&name) || name.starts_with("br") => &NONE,
        "else" | "end" | "catch" | "catch_all" => &NONE,
        _ => &opcode.results,
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
        // The quotient of the least number and -1 is out of range.
        "div_s" => {
            let overflows = Typed::binary(BinaryOp::And, is("arg0", &signed, -1), is("arg1", &signed, least));
            Typed::binary(BinaryOp::Or, is("arg0", &signed, 0), overflows)
        }
        _ => return Bound::Unknown,
    })
}

/// The result of matching a rule.
#[derive(Debug)]
pub(super) enum Matched {
    Events {
        events: Vec<Event>,
        /// All instructions, by a pattern such as `*`: a single export may stand for them.
        any: Option<Event>,
    },
    /// It cannot be supported, and why.
    Unsupported(String),
    /// Nothing matches, and what could.
    Nothing(String),
}

/// Events that a rule matches, by its two to four parts.
pub(super) fn matching(parts: &[ast::Ident]) -> Matched {
    let part = |index: usize| parts.get(index).map(|part| part.name.as_str());
    let provider = part(0).unwrap_or("");
    let package = part(1).unwrap_or("");
    if !glob::matches(provider, "wasm") {
        return Matched::Nothing(format!("there is no provider `{provider}`; there is `wasm`"));
    }
    if parts.len() == 2 {
        let events: Vec<_> = [Event::Begin, Event::End, Event::Report]
            .into_iter()
            .filter(|event| glob::matches(package, &event.text()["wasm:".len()..]))
            .collect();
        return match events.is_empty() {
            false => Matched::Events { events, any: None },
            true => Matched::Nothing(
                "rules of two parts are `wasm:begin`, `wasm:end` and `wasm:report`; others are as \
                 `wasm:opcode:call:before` or `wasm:func:entry`"
                    .to_owned(),
            ),
        };
    }
    let event = part(2).unwrap_or("");
    let mode = part(3);
    let mut events = Vec::new();
    let mut any = None;
    let is_opcode = glob::matches(package, "opcode");
    if let (true, Some(mode)) = (is_opcode, mode) {
        let modes: Vec<_> = MODES.into_iter().filter(|each| glob::matches(mode, each.text())).collect();
        if modes.is_empty() {
            return match ["alt", "block_alt"].contains(&mode) {
                true => Matched::Unsupported(format!(
                    "the mode `{mode}` changes the program, and monitors only observe it"
                )),
                false => {
                    let known = MODES.map(|mode| format!("`{}`", mode.text())).join(", ");
                    Matched::Nothing(format!("there is no mode `{mode}`; there are {known}"))
                }
            };
        }
        for mode in &modes {
            let matching = OPCODES.iter().filter(|opcode| glob::matches(event, opcode.name));
            let having = matching.filter(|opcode| mode.is_of(opcode.name));
            events.extend(having.map(|opcode| Event::Opcode(opcode, *mode)));
        }
        if let ([Mode::Before], "*" | "") = (modes.as_slice(), event) {
            any = Some(Event::AnyOpcode(Mode::Before));
        }
    }
    if mode.is_none_or(str::is_empty) {
        for (of, name, each) in [
            ("func", "entry", Event::FunctionEntry),
            ("func", "exit", Event::FunctionExit),
            ("block", "start", Event::BlockStart),
            ("block", "end", Event::BlockEnd),
        ] {
            if glob::matches(package, of) && glob::matches(event, name) {
                events.push(each);
            }
        }
    }
    if !events.is_empty() {
        return Matched::Events { events, any };
    }
    Matched::Nothing(match () {
        () if !["opcode", "func", "block"].iter().any(|known| glob::matches(package, known)) => {
            format!("there is no package `{package}`; there are `opcode`, `func` and `block`")
        }
        () if is_opcode && mode.is_none() => {
            "rules of instructions have a mode: `wasm:opcode:call:before`".to_owned()
        }
        () if is_opcode && OPCODES.iter().any(|opcode| glob::matches(event, opcode.name)) => {
            let mode = mode.unwrap_or_default();
            format!(
                "`{event}` does not have the mode `{mode}`: blocks have `entry` and `exit`, and control \
                does not continue after a jump"
            )
        }
        () if is_opcode => match nearest(event) {
            Some(name) => format!("there is no instruction `{event}`; there is `{name}`"),
            None => format!("there is no instruction `{event}`"),
        },
        () if mode.is_some_and(|mode| !mode.is_empty()) => "this package has no modes".to_owned(),
        () => "there are `wasm:func:entry`, `wasm:func:exit`, `wasm:block:start` and `wasm:block:end`"
            .to_owned(),
    })
}

/// The name of an instruction that a misspelt one resembles.
fn nearest(name: &str) -> Option<&'static str> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['.', '_'], "");
    let wanted = plain(name);
    OPCODES.iter().map(|opcode| opcode.name).find(|known| plain(known) == wanted)
}
