//! Events of native programs: calls to the functions that a compiler has instrumented.
//!
//! | event | occurs when |
//! | --- | --- |
//! | `native:func:entry`, `native:func:exit` | a call to a function begins or ends |
//! | `native:begin`, `native:end` | as those of `wasm` |
//! | `native:report` | after `native:end`; the report is then made, from the variables as they are |
//!
//! A place is the entry of a function, or all of its exits together. The bound variables are
//! [`NAMED`](super::bound::NAMED): names are known when a function is discovered; all others belong
//! to one call.
//!
//! Arguments, `arg0` or `args.size`, and at exits the result `res0`, get their type from a bound of
//! the rule, which is a part of their name in exports: `args.size.u64`.

use super::ast;
use super::bound::{Bound, numbered};
use super::events::{Event, Matched};
use super::ir::Typed;
use super::pattern::Pattern;
use super::types::Type;

/// The kind of programs that the rules of a script observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    Wasm,
    Native,
}

impl Provider {
    /// The name in rules.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Native => "native",
        }
    }

    /// An example of a rule that states the type of a variable.
    pub(super) fn with_bound(self, name: &str) -> String {
        match self {
            Self::Wasm => format!("wasm:opcode:NAME({name}: i32):before"),
            Self::Native if is_argument(name) => format!("native:func:entry({name}: i32)"),
            Self::Native => format!("native:func:exit({name}: i32)"),
        }
    }
}

/// Variables that differ from call to call.
pub(super) const OF_CALLS: [&str; 7] = ["probe_id", "tid", "ticks", "ns", "depth", "duration", "stack"];

/// Whether a name refers to an argument, by position or by name.
pub(super) fn is_argument(name: &str) -> bool {
    numbered(name, "arg").is_some() || name.starts_with("args.")
}

/// The name of a function's only result.
const RESULT: &str = "res0";

/// Whether a name refers to a value whose type differs from function to function: an argument, or
/// at exits the result.
pub(super) fn has_bound(name: &str, is_exit: bool) -> bool {
    is_argument(name) || is_exit && name == RESULT
}

/// An argument or a result that has this type.
pub(super) fn typed(name: &str, ty: &Type) -> String {
    format!("{name}.{ty}")
}

/// A bound variable. `bounds` are the types of arguments and results that the rule states.
pub(super) fn bound(name: &str, is_exit: bool, bounds: &[(String, Type)]) -> Bound {
    if has_bound(name, is_exit) {
        return match bounds.iter().find(|(bound, _)| bound == name) {
            Some((_, ty)) => Bound::Value(Typed::request(ty.clone(), &typed(name, ty))),
            None => Bound::NeedsType,
        };
    }
    let ty = match name {
        "fid" | "probe_id" | "tid" | "depth" => Type::U32,
        "ticks" | "ns" => Type::U64,
        "duration" if is_exit => Type::U64,
        "stack" => Type::Stack,
        "fname" | "object" => Type::Str,
        "retval" if is_exit => return Bound::Unsupported("the result of a function is `res0`"),
        _ => return Bound::Unknown,
    };
    Bound::Value(Typed::request(ty, name))
}

/// The events that a rule of the provider `native` matches, by its parts.
pub(super) fn matching(parts: &[ast::Ident], patterns: &[Pattern]) -> Matched {
    let any = Pattern::default();
    let pattern = |index: usize| patterns.get(index).unwrap_or(&any);
    let part = |index: usize| parts.get(index).map_or("", |part| part.name.as_str());
    let (package, event) = (pattern(1), pattern(2));
    let candidates: &[(&str, &str, Event)] = match parts.len() {
        2 => &[("begin", "", Event::Begin), ("end", "", Event::End), ("report", "", Event::Report)],
        _ => &[("func", "entry", Event::NativeEntry), ("func", "exit", Event::NativeExit)],
    };
    let matches = |(of, name, _): &&(&str, &str, Event)| package.matches(of) && event.matches(name);
    let events: Vec<Event> = candidates.iter().filter(matches).map(|(.., event)| *event).collect();
    if !part(3).is_empty() {
        return Matched::Nothing("rules of native programs have no modes: `native:func:entry`".to_owned());
    }
    if !events.is_empty() {
        return Matched::Events { events, any: None };
    }
    Matched::Nothing(match parts.len() {
        2 => "rules of two parts are `native:begin`, `native:end` and `native:report`; others are \
              `native:func:entry` and `native:func:exit`"
            .to_owned(),
        _ if !package.matches("func") => format!("there is no package `{}`; there is `func`", part(1)),
        _ => format!("there is no event `{}`; there are `entry` and `exit`", part(2)),
    })
}
