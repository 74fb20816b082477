//! The events that rules match, and the values that each binds.
//!
//! | event | bound |
//! | --- | --- |
//! | all of the program's code | `fid`, `fname`, `pc`, `opidx`, `at_func_end`, `localN` with a type bound |
//! | `wasm:opcode:NAME:MODE` | `immN`, `opname`, `bytecode`, `category_name`, `category_id` |
//! | `wasm:opcode:NAME:before`, `alt` and `block_alt` | `argN` from the top of the stack |
//! | `wasm:opcode:NAME:alt`, `wasm:opcode:BLOCK:block_alt` | `resN`, variables: the results of what is replaced, from the top of the stack |
//! | loads, stores, atomic operations, including those on vectors | `addr`, `effective_addr`, `offset`, `align`, `memory`, `data_size`, `is_write` |
//! | `br`, `br_if`, `br_table`, `br_on_null`, `br_on_non_null`, `if` | `taken` |
//! | `br_table` | `num_targets`, `targets[N]`, `default_target`, `target` |
//! | divisions and remainders of integers | `trap` |
//! | `call`, `return_call` | `target_fn_name`, `target_fn_type`, `target_imp_module`, `resolved_fid` |
//! | `memory.grow:after` | `failed` |
//! | `call_indirect`, `return_call_indirect` | `table_entry_idx` |
//! | `call_indirect`, `call_ref` and their tail calls | `target_fn_name`, `resolved_fid`, `target_funcref`, in this engine and in programs that are rewritten |
//! | `wasm:opcode:NAME:after` | `resN` |
//! | `wasm:func:entry`, `wasm:func:exit`, `wasm:block:start`, `wasm:block:end` | as for all code |
//! | `wasm:begin`, `wasm:end`, `wasm:report` | nothing |
//!
//! Events of native programs are in [`native`](super::native).

use super::WideBound;
use super::ast;
use super::bound::{
    Bound, NAMED, NATIVE_NUMBERED, NUMBERED, PROBE_ID, TARGETS, numbered, of_opcode, results,
};
use super::ir::Typed;
use super::native::{self, Provider};
use super::opcodes::{Known, OPCODES, Opcode};
use super::pattern::Pattern;
use super::types::Type;

/// When a rule's body runs, in relation to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Before,
    /// When control continues with the next instruction of the text.
    After,
    /// At each place where control continues; of a block, after its end.
    SemanticAfter,
    /// At the beginning of a block, inside it.
    Entry,
    /// After the end of a block.
    Exit,
    /// In place of the instruction.
    Alt,
    /// In place of a block, with everything in it.
    BlockAlt,
}

const MODES: [Mode; 7] =
    [Mode::Before, Mode::After, Mode::SemanticAfter, Mode::Entry, Mode::Exit, Mode::Alt, Mode::BlockAlt];

/// Instructions of the category `control` that `alt` replaces: those after which control continues
/// with the next instruction.
const REPLACEABLE: [&str; 5] = ["call", "call_indirect", "call_ref", "select", "typed_select"];

/// Blocks that `block_alt` replaces.
const REPLACEABLE_BLOCKS: [&str; 3] = ["block", "loop", "if"];

/// The number of numbered variables that are described individually.
const DESCRIBED: usize = 4;

/// Variables of memory accesses, whose types follow from that of the address operand.
pub(super) const ADDRESSES: [&str; 2] = ["addr", "effective_addr"];

/// Instructions that begin a block.
pub(super) const BLOCKS: [&str; 5] = ["block", "loop", "if", "try", "try_table"];

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
    /// A call to a native function begins, or ends.
    NativeEntry,
    NativeExit,
    Begin,
    End,
    Report,
}

/// A bound variable of an event, for its description.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) ty: String,
    /// Whether it is known when the rule is matched.
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
            Self::Alt => "alt",
            Self::BlockAlt => "block_alt",
        }
    }

    /// Whether an instruction has events of this mode.
    fn is_of(self, opcode: &Opcode) -> bool {
        let name = opcode.name;
        match self {
            Self::Before => true,
            Self::After => !LAST.contains(&name) && !["br", "br_table", "return"].contains(&name),
            Self::SemanticAfter => !LAST.contains(&name),
            Self::Entry | Self::Exit => BLOCKS.contains(&name),
            Self::Alt => match opcode.category {
                "control" => REPLACEABLE.contains(&name),
                // Instructions on vectors and references are not replaced.
                "exn" | "simd" | "gc" => false,
                _ => name != "unreachable",
            },
            Self::BlockAlt => REPLACEABLE_BLOCKS.contains(&name),
        }
    }

    /// Whether the rule is called before the instruction, so that the operands are there.
    pub(super) fn has_operands(self) -> bool {
        self == Self::Before || self.replaces()
    }

    /// Whether the rule acts in place of the program's code.
    pub(super) fn replaces(self) -> bool {
        matches!(self, Self::Alt | Self::BlockAlt)
    }
}

impl Event {
    /// The name in rules, and in the names of a monitor module's exports.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Opcode(opcode, mode) => format!("wasm:opcode:{}:{}", opcode.name, mode.text()),
            Self::AnyOpcode(mode) => format!("wasm:opcode:*:{}", mode.text()),
            Self::FunctionEntry => "wasm:func:entry".to_owned(),
            Self::FunctionExit => "wasm:func:exit".to_owned(),
            Self::BlockStart => "wasm:block:start".to_owned(),
            Self::BlockEnd => "wasm:block:end".to_owned(),
            Self::NativeEntry => "native:func:entry".to_owned(),
            Self::NativeExit => "native:func:exit".to_owned(),
            Self::Begin => "wasm:begin".to_owned(),
            Self::End => "wasm:end".to_owned(),
            Self::Report => "wasm:report".to_owned(),
        }
    }

    /// The mode: when the event happens, in relation to its place.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Opcode(_, mode) | Self::AnyOpcode(mode) => *mode,
            _ => Mode::Before,
        }
    }

    /// Whether the event happens at places of the program's code.
    pub(super) fn has_site(&self) -> bool {
        !matches!(self, Self::Begin | Self::End | Self::Report)
    }

    /// Whether the event binds the targets of a `br_table`.
    pub(super) fn has_targets(&self) -> bool {
        matches!(self, Self::Opcode(opcode, _) if opcode.name == "br_table")
    }

    /// A bound variable. `bounds` are the rule's: types of operands and locals that differ from
    /// place to place.
    pub(super) fn bound(&self, name: &str, bounds: &[(String, Type)]) -> Bound {
        match self {
            Self::Begin | Self::End | Self::Report => return Bound::Unknown,
            Self::NativeEntry => return native::bound(name, false, bounds),
            Self::NativeExit => return native::bound(name, true, bounds),
            _ => {}
        }
        match name {
            "fid" | "pc" | "opidx" => return Bound::Value(Typed::request(Type::U32, name)),
            "at_func_end" => return Bound::Value(Typed::request(Type::Bool, name)),
            "fname" => return Bound::Value(Typed::request(Type::Str, name)),
            PROBE_ID => {
                return Bound::Unsupported(
                    "it is the argument of `dyninstr.remove_probe(probe_id)`, in rules of the mode `before` of scripts \
                     that run in `wasm-jit`; others have `@once`",
                );
            }
            _ => {}
        }
        let bound = |name: &str| bounds.iter().find(|(bound, _)| bound == name).map(|(_, ty)| ty.clone());
        // At the target of a branch, the frame may no longer exist.
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
        if matches!(self, Self::NativeEntry | Self::NativeExit) {
            return native::has_bound(name, matches!(self, Self::NativeExit)).then_some(true);
        }
        if ADDRESSES.contains(&name) {
            return self.address().map(|_| matches!(ty, Type::U32 | Type::U64));
        }
        let is_local = numbered(name, "local").is_some();
        if is_local && !matches!(self.bound(name, &[]), Bound::Unknown) {
            return Some(true);
        }
        let Self::Opcode(opcode, mode) = self else { return None };
        let (values, index) = match (numbered(name, "arg"), numbered(name, "res"), numbered(name, "imm")) {
            (Some(index), ..) if mode.has_operands() => (&opcode.operands, index),
            (_, Some(index), _) => (results(opcode, *mode)?, index),
            (.., Some(index)) => (&opcode.immediates, index),
            _ => return None,
        };
        Some(values.get(index)?.admits(ty))
    }

    /// The operand that is the address of a memory access, if the rule is called before the access.
    fn address(&self) -> Option<String> {
        let Self::Opcode(opcode, mode) = self else { return None };
        opcode.access.filter(|_| mode.has_operands()).map(|access| format!("arg{}", access.address))
    }

    /// The type bounds of a rule, once for each type that the address operand may have. A rule with
    /// the bound `effective_addr: u64` is called for 32-bit as well as 64-bit memories.
    pub(super) fn by_address(&self, bounds: &[(String, Type)]) -> Vec<Vec<(String, Type)>> {
        let is_bound = |name: &str| bounds.iter().any(|(bound, _)| bound == name);
        let Some(operand) = self.address().filter(|operand| !is_bound(operand)) else {
            return vec![bounds.to_vec()];
        };
        let mut asked = bounds.iter().filter(|(name, _)| ADDRESSES.contains(&name.as_str()));
        let types: &[Type] = match (asked.clone().next(), asked.all(|(_, ty)| *ty == Type::U64)) {
            (None, _) => return vec![bounds.to_vec()],
            (Some(_), true) => &[Type::U32, Type::U64],
            (Some(_), false) => &[Type::U32],
        };
        let with = |ty: &Type| [bounds, &[(operand.clone(), ty.clone())]].concat();
        types.iter().map(with).collect()
    }

    /// If a value without a type bound is the address or the size of a memory, or depends on one,
    /// so that the rule is called for 32-bit memories only: the bound for 64-bit memories.
    pub(super) fn wide_bound(&self, name: &str, bounds: &[(String, Type)]) -> Option<WideBound> {
        let Self::Opcode(opcode, mode) = self else { return None };
        let is_bound = |name: &str| bounds.iter().any(|(bound, _)| bound == name);
        if ADDRESSES.contains(&name) {
            let is_narrow = self.address().is_some_and(|operand| !is_bound(&operand));
            return is_narrow.then(|| WideBound { bound: format!("{name}: u64"), is_for_both: true });
        }
        // It depends on the result.
        let name = if name == "failed" { "res0" } else { name };
        let known = match (numbered(name, "arg"), numbered(name, "res")) {
            (Some(index), _) => opcode.operands.get(index),
            (_, Some(index)) => results(opcode, *mode).and_then(|results| results.get(index)),
            _ => None,
        };
        let Some(Known::Address(ty)) = known else { return None };
        let wide = if ty.is_signed() { Type::I64 } else { Type::U64 };
        let is_of_table = matches!(opcode.category, "table" | "control");
        let is_narrow = !is_of_table && !is_bound(name);
        is_narrow.then(|| WideBound { bound: format!("{name}: {wide}"), is_for_both: false })
    }

    /// Describes the variables that the event binds for a rule with these type bounds.
    pub(super) fn describe(&self, bounds: &[(String, Type)]) -> Vec<Description> {
        let mut all = Vec::new();
        let mut add = |name: String, more: &str, help: &'static str| {
            let (ty, is_static) = match self.bound(&name, bounds) {
                Bound::Value(value) => (value.ty.to_string(), super::split::is_static(&value)),
                Bound::NeedsType => ("by type bound".to_owned(), name.starts_with("imm")),
                Bound::Callee(callee) => (callee.ty().to_string(), false),
                Bound::Bits(_) => (Type::U32.to_string(), true),
                Bound::Unsupported(_) if name == TARGETS => (Type::U32.to_string(), true),
                Bound::Unknown | Bound::Unsupported(_) => return,
            };
            all.push(Description { name: name + more, ty, is_static, help });
        };
        for (name, help) in NAMED {
            add((*name).to_owned(), "", help);
        }
        let is_native = matches!(self, Self::NativeEntry | Self::NativeExit);
        for (prefix, help) in if is_native { NATIVE_NUMBERED } else { NUMBERED } {
            for index in 0..DESCRIBED {
                add(format!("{prefix}{index}"), "", help);
            }
            // The others as one.
            add(format!("{prefix}{DESCRIBED}"), " ..", help);
        }
        if self.has_targets() {
            add(TARGETS.to_owned(), "[N]", "label of the target with this index, or the default label");
        }
        if is_native {
            add("args.NAME".to_owned(), "", "argument of a native function, by its name");
        }
        all
    }
}

/// The result of matching a rule.
#[derive(Debug)]
pub(super) enum Matched {
    Events {
        events: Vec<Event>,
        /// All instructions, by a pattern such as `*`: a single export may stand for them.
        any: Option<Event>,
    },
    /// Nothing matches; the text says what could match.
    Nothing(String),
}

/// Events of a provider that a rule matches, by its two to four parts.
pub(super) fn matching(parts: &[ast::Ident], of: Provider) -> Matched {
    let mut patterns = Vec::new();
    for part in parts {
        match Pattern::parse(&part.name) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => {
                return Matched::Nothing(format!("the pattern `{}` is malformed: {}", part.name, error.msg));
            }
        }
    }
    let any_name = Pattern::default();
    let pattern = |index: usize| patterns.get(index).unwrap_or(&any_name);
    let (provider, package, event) = (pattern(0), pattern(1), pattern(2));
    let part = |index: usize| parts.get(index).map_or("", |part| part.name.as_str());
    let shown = |index: usize| shortened(part(index));
    let matches = [Provider::Wasm, Provider::Native].map(|each| provider.matches(each.name()));
    match (of, matches) {
        (_, [false, false]) => {
            return Matched::Nothing(format!(
                "there is no provider `{}`; there are `wasm`, and `native` in scripts for native programs",
                shown(0)
            ));
        }
        (Provider::Wasm, [false, true]) => {
            return Matched::Nothing(
                "`native` is about programs that `fastinst run` runs; here there is `wasm`".to_owned(),
            );
        }
        (Provider::Native, [true, false]) => {
            return Matched::Nothing(
                "`wasm` is about programs that `wasm-jit run` runs; here there is `native`".to_owned(),
            );
        }
        (Provider::Native, _) => return native::matching(parts, &patterns),
        (Provider::Wasm, _) => {}
    }
    if parts.len() == 2 {
        let events: Vec<_> = [Event::Begin, Event::End, Event::Report]
            .into_iter()
            .filter(|event| package.matches(&event.text()["wasm:".len()..]))
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
    let mode = patterns.get(3);
    let mut events = Vec::new();
    let mut any = None;
    let is_opcode = package.matches("opcode");
    if let (true, Some(mode)) = (is_opcode, mode) {
        // Modes that change the program must be named.
        let is_meant = |each: &Mode| match each.replaces() {
            true => part(3) == each.text(),
            false => mode.matches(each.text()),
        };
        let modes: Vec<_> = MODES.into_iter().filter(is_meant).collect();
        // A block that is named is replaced as a whole.
        let replaces_blocks =
            modes == [Mode::Alt] && !part(2).contains(['*', '?', '[']) && !part(2).is_empty();
        if modes.is_empty() {
            let known = MODES.map(|mode| format!("`{}`", mode.text())).join(", ");
            return Matched::Nothing(format!("there is no mode `{}`; there are {known}", shown(3)));
        }
        for mode in &modes {
            let matching = OPCODES.iter().filter(|opcode| event.matches(opcode.name));
            let having = matching.filter(|opcode| mode.is_of(opcode));
            events.extend(having.map(|opcode| Event::Opcode(opcode, *mode)));
        }
        if replaces_blocks {
            let blocks = OPCODES.iter().filter(|opcode| event.matches(opcode.name));
            let replaced = blocks.filter(|opcode| Mode::BlockAlt.is_of(opcode));
            events.extend(replaced.map(|opcode| Event::Opcode(opcode, Mode::BlockAlt)));
        }
        if let ([Mode::Before], "*" | "") = (modes.as_slice(), part(2)) {
            any = Some(Event::AnyOpcode(Mode::Before));
        }
    }
    if part(3).is_empty() {
        for (of, name, each) in [
            ("func", "entry", Event::FunctionEntry),
            ("func", "exit", Event::FunctionExit),
            ("block", "start", Event::BlockStart),
            ("block", "end", Event::BlockEnd),
        ] {
            if package.matches(of) && event.matches(name) {
                events.push(each);
            }
        }
    }
    if !events.is_empty() {
        return Matched::Events { events, any };
    }
    Matched::Nothing(match () {
        () if !["opcode", "func", "block"].iter().any(|known| package.matches(known)) => {
            format!("there is no package `{}`; there are `opcode`, `func` and `block`", shown(1))
        }
        () if is_opcode && mode.is_none() => {
            "rules of instructions have a mode: `wasm:opcode:call:before`".to_owned()
        }
        () if is_opcode && OPCODES.iter().any(|opcode| event.matches(opcode.name)) => format!(
            "`{}` does not have the mode `{}`: blocks have `entry` and `exit`, control does not continue after a \
             jump, and `alt` replaces what always continues with the next instruction, `block_alt` a `block`, \
             `loop` or `if`",
            shown(2),
            shown(3)
        ),
        () if is_opcode => match nearest(part(2)) {
            Some(name) => format!("there is no instruction `{}`; there is `{name}`", shown(2)),
            None => format!("there is no instruction `{}`", shown(2)),
        },
        () if !part(3).is_empty() => "this package has no modes".to_owned(),
        () => "there are `wasm:func:entry`, `wasm:func:exit`, `wasm:block:start` and `wasm:block:end`"
            .to_owned(),
    })
}

/// A pattern for a message.
fn shortened(pattern: &str) -> String {
    const LENGTH: usize = 100;
    match pattern.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}..", &pattern[..end]),
        None => pattern.to_owned(),
    }
}

/// The name of the instruction that is most similar to a misspelt one.
fn nearest(name: &str) -> Option<&'static str> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['.', '_'], "");
    let wanted = plain(name);
    OPCODES.iter().map(|opcode| opcode.name).find(|known| plain(known) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_patterns_are_shortened() {
        let name = "é".repeat(1000);
        let parts = ["wasm", "opcode", &name, "before"];
        let parts = parts.map(|name| ast::Ident { name: name.to_owned(), span: 0..0 });
        let Matched::Nothing(help) = matching(&parts, Provider::Wasm) else { panic!("it matches") };
        assert_eq!(help, format!("there is no instruction `{}..`", "é".repeat(100)));
    }

    #[test]
    fn a_malformed_pattern_is_reported() {
        let parts = ["wasm", "opcode", "i32.[ab", "before"];
        let parts = parts.map(|name| ast::Ident { name: name.to_owned(), span: 0..0 });
        let Matched::Nothing(help) = matching(&parts, Provider::Wasm) else { panic!("it matches") };
        assert!(help.starts_with("the pattern `i32.[ab` is malformed: "), "{help}");
    }
}
