//! The host of Dart's formatter: values of JavaScript, and operations on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use regress::{Flags, Regex};
use wasm_jit::{Caller, Error, Extern, ExternRef, Func, Val};

/// A value of JavaScript. Its null is a null reference.
#[derive(Clone)]
pub(super) enum Js {
    Undefined,
    Bool(bool),
    Number(f64),
    /// In UTF-16.
    Text(Arc<[u16]>),
    Array(Arc<Mutex<Array>>),
    Object(Arc<Mutex<HashMap<&'static str, Val>>>),
    Pattern(Arc<Mutex<Pattern>>),
    /// A closure of Dart.
    Function(Val),
    /// The object with this name.
    Math,
}

#[derive(Default)]
pub(super) struct Array {
    pub(super) items: Vec<Val>,
    /// Where the match began, of the result of one.
    pub(super) index: usize,
}

pub(super) struct Pattern {
    regex: Regex,
    pub(super) flags: String,
    pub(super) last: usize,
}

/// The state of the host.
#[derive(Default)]
pub(super) struct Host {
    /// What main has left for its caller.
    pub(super) formatter: Option<Val>,
    /// From the host's representation of references to the module's, and back.
    pub(super) conversions: Option<(Func, Func)>,
}

pub(super) type Call<'a> = Caller<'a, Host>;
pub(super) type HostFunction = fn(Call<'_>, &[Val], &mut [Val]) -> Result<(), Error>;

impl Pattern {
    pub(super) fn new(source: &str, flags: String) -> Result<Self, String> {
        let regex =
            Regex::with_flags(source, Flags::from(flags.as_str())).map_err(|error| error.to_string())?;
        Ok(Self { regex, flags, last: 0 })
    }
}

impl Js {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.encode_utf16().collect())
    }

    pub(super) fn array(items: impl IntoIterator<Item = Val>) -> Self {
        Self::Array(Arc::new(Mutex::new(Array { items: items.into_iter().collect(), index: 0 })))
    }

    /// The value of a reference that this host has made.
    pub(super) fn of(value: &Val) -> Option<Self> {
        let Val::ExternRef(Some(reference)) = value else { return None };
        reference.data().downcast_ref::<Self>().cloned()
    }
}

impl From<Js> for Val {
    fn from(value: Js) -> Self {
        Self::ExternRef(Some(ExternRef::new(value)))
    }
}

/// The text of a string, or of a number or a boolean converted to one.
pub(super) fn string(value: &Val) -> String {
    match Js::of(value) {
        Some(Js::Text(text)) => String::from_utf16_lossy(&text),
        Some(Js::Number(number)) => number.to_string(),
        Some(Js::Bool(truth)) => truth.to_string(),
        Some(Js::Undefined) => "undefined".to_owned(),
        None if matches!(value, Val::ExternRef(None)) => "null".to_owned(),
        _ => panic!("{value:?} has no text"),
    }
}

pub(super) fn units(value: &Val) -> Arc<[u16]> {
    match Js::of(value) {
        Some(Js::Text(text)) => text,
        _ => panic!("{value:?} is no string"),
    }
}

pub(super) fn number(value: &Val) -> f64 {
    match (value, Js::of(value)) {
        (Val::I32(number), _) => f64::from(*number),
        (Val::F64(bits), _) => f64::from_bits(*bits),
        (_, Some(Js::Number(number))) => number,
        (_, Some(Js::Bool(truth))) => f64::from(u8::from(truth)),
        _ => panic!("{value:?} is no number"),
    }
}

pub(super) fn array(value: &Val) -> Arc<Mutex<Array>> {
    match Js::of(value) {
        Some(Js::Array(array)) => array,
        _ => panic!("{value:?} is no array"),
    }
}

pub(super) fn pattern(value: &Val) -> Arc<Mutex<Pattern>> {
    match Js::of(value) {
        Some(Js::Pattern(pattern)) => pattern,
        _ => panic!("{value:?} is no regular expression"),
    }
}

/// What the lock protects: the tests' host has one thread.
pub(super) fn locked<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().expect("no thread panicked")
}

pub(super) fn text(units: &[u16]) -> Val {
    Js::Text(units.into()).into()
}

pub(super) fn truth(value: bool) -> Val {
    Val::I32(value.into())
}

/// Where `wanted` begins in `text`, of the positions in this order.
pub(super) fn find(text: &[u16], wanted: &[u16], mut positions: impl Iterator<Item = usize>) -> Val {
    let found = positions.find(|at| text.get(*at..).is_some_and(|rest| rest.starts_with(wanted)));
    Val::from(found.map_or(-1.0, |at| at as f64))
}

/// The parts of `text` between the occurrences of `separator`.
pub(super) fn split(text: &[u16], separator: &[u16]) -> Vec<Val> {
    if separator.is_empty() {
        return text.iter().map(|unit| self::text(&[*unit])).collect();
    }
    let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
    while at + separator.len() <= text.len() {
        if text[at..].starts_with(separator) {
            parts.push(self::text(&text[from..at]));
            at += separator.len();
            from = at;
        } else {
            at += 1;
        }
    }
    parts.push(self::text(&text[from..]));
    parts
}

/// The next match: an array of its groups, or null.
pub(super) fn exec(pattern: &mut Pattern, units: &[u16]) -> Val {
    let global = pattern.flags.contains('g');
    let from = if global { pattern.last } else { 0 };
    let found = (from <= units.len()).then(|| pattern.regex.find_from_utf16(units, from).next()).flatten();
    let Some(found) = found else {
        pattern.last = 0;
        return Val::ExternRef(None);
    };
    if global {
        pattern.last = found.end();
    }
    let groups = found.groups().map(|group| group.map_or(Js::Undefined.into(), |range| text(&units[range])));
    Js::Array(Arc::new(Mutex::new(Array { items: groups.collect(), index: found.start() }))).into()
}

/// Calls a function that the module exports.
pub(super) fn call_export(
    caller: &mut Call<'_>,
    name: &str,
    arguments: &[Val],
    results: &mut [Val],
) -> Result<(), Error> {
    let Some(Extern::Func(function)) = caller.get_export(name) else { panic!("{name} is exported") };
    function.call(caller, arguments, results)
}

/// A reference as the module's exports take it.
pub(super) fn externalized(caller: &mut Call<'_>, value: &Val) -> Result<Val, Error> {
    let (_, externalize) = caller.data().conversions.expect("set before the module is instantiated");
    let mut converted = [Val::ExternRef(None)];
    externalize.call(caller, std::slice::from_ref(value), &mut converted)?;
    let [converted] = converted;
    Ok(converted)
}
