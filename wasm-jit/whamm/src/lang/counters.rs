//! Counters in place of map entries, for keys that are known when a rule is matched.
//!
//! In a rule for `wasm:opcode:*:before`, `times[opname]++` has the same key whenever the rule is
//! executed at a location. Instead of looking the key up each time, the rule adds one to a
//! *counter*, whose address is a constant of the location:
//!
//! 1. When the rule is matched with a location, the counter of the key and the amount is looked up
//!    in the map of counters, or made. This is a call at match time, as with `@static`, so that the
//!    order of counters is that of the locations.
//! 2. At each event, the rule adds one to the counter. If it does nothing else, the engine counts
//!    for it ([`crate::monitor_module`]), and no function is called.
//! 3. Before rules of the end are executed or the report is printed, a function adds each count,
//!    multiplied by its amount, to the value of the key in the map, and sets the count to zero.
//!    [`Script::report`](super::Script::report) does the same without changing anything. Counters
//!    that are zero are left out: a key that no event has added is not in the map.
//!
//! Additions modulo a power of two may be done in any order, and together, so that the values are
//! the same; only the order of keys is another one. Sums of floats depend on the order, and are not
//! replaced.
//!
//! # Which statements
//! Those that add a constant of the location (`m[k]++`, `m[k]--`, `m[k] = m[k] + c` and so on) to
//! an integer of a map that exists once, under a key that is a constant of the location. Nothing
//! else may use the map between the first event and the end, except for additions under other keys.
//! Annotations and conditions make no difference: the rule adds to the counter where it would have
//! added to the map. Of a rule with many such statements, the first ones are replaced.

use std::collections::{BTreeMap, BTreeSet};

use super::ast::{BinaryOp, UnaryOp};
use super::ir::{CountedMap, Kind, Place, Program, Statement, Typed};
use super::split::{is_pure, is_static};
use super::types::Type;

/// The maximum number of counters of a rule at a location. Each is looked up at match time, even if
/// the rule never comes to the statement.
const MAX_COUNTERS: usize = 16;

/// The address of a map.
type Address = u32;

/// Replaces additions to maps.
pub(super) fn add(program: &mut Program) {
    let used = used(program);
    let mut counted: BTreeMap<Address, CountedMap> = BTreeMap::new();
    let mut size = program.static_size;
    let mut counters_of = |map: Address, key: &Type, value: &Type| {
        let made = || {
            let counters = size;
            size += Type::MAP_SIZE;
            CountedMap { map, counters, key: key.clone(), value: value.clone() }
        };
        counted.entry(map).or_insert_with(made).counters
    };
    for probe in &mut program.probes {
        let mut left = MAX_COUNTERS;
        replace(&mut probe.body.statements, &used, &mut left, &mut counters_of);
    }
    program.static_size = size;
    program.counted = counted.into_values().collect();
}

/// An addition to a value of a map, under a key.
struct Addition<'a> {
    map: Place,
    key: &'a Typed,
    amount: Typed,
}

/// Whether a value may have effects, so that it matters how often, and when, it is computed.
fn has_effects(value: &Typed) -> bool {
    matches!(value.kind, Kind::Call(..) | Kind::Library(..) | Kind::Transfer(..))
        || value.children().into_iter().any(has_effects)
}

/// The addition that a statement makes, if it does nothing else.
fn addition(statement: &Statement) -> Option<Addition<'_>> {
    match statement {
        Statement::AddMap { map, key, amount } => Some(Addition { map: *map, key, amount: amount.clone() }),
        Statement::SetMap { key, value, .. } if has_effects(key) || has_effects(value) => None,
        Statement::SetMap { map, key, value } => {
            let Kind::Binary(op, left, right) = &value.kind else { return None };
            let is_old =
                |value: &Typed| matches!(&value.kind, Kind::MapGet(of, read) if of == map && **read == *key);
            let amount = match op {
                BinaryOp::Add if is_old(left) => (**right).clone(),
                BinaryOp::Add if is_old(right) => (**left).clone(),
                BinaryOp::Sub if is_old(left) => Typed::unary(UnaryOp::Negate, (**right).clone()),
                _ => return None,
            };
            Some(Addition { map: *map, key, amount })
        }
        _ => None,
    }
}

/// Whether a value is the same at each event of a location, and computing it has no effect.
fn is_known(value: &Typed) -> bool {
    fn calls(value: &Typed) -> bool {
        matches!(value.kind, Kind::AtMatch(_)) || value.children().into_iter().any(calls)
    }
    is_static(value) && is_pure(value) && !calls(value)
}

impl Addition<'_> {
    fn is_known(&self) -> bool {
        self.amount.ty.is_integer() && is_known(self.key) && is_known(&self.amount)
    }

    /// The values that the statement uses.
    fn uses(&self) -> [&Typed; 2] {
        [self.key, &self.amount]
    }
}

/// The maps that are read, or changed in another way than by additions, between the first event and
/// the end.
fn used(program: &Program) -> BTreeSet<Address> {
    let mut used = BTreeSet::new();
    program.visit_during_run(&mut |statement| used_by(statement, &mut used));
    program.predicates().for_each(|condition| read_by(condition, &mut used));
    used
}

/// Adds what a statement uses, without the statements inside of it.
fn used_by(statement: &Statement, used: &mut BTreeSet<Address>) {
    if let Some(addition) = addition(statement) {
        return addition.uses().into_iter().for_each(|value| read_by(value, used));
    }
    if let Statement::SetMap { map: Place::Absolute(map), .. } = statement {
        used.insert(*map);
    }
    statement.values().into_iter().for_each(|value| read_by(value, used));
}

fn read_by(value: &Typed, used: &mut BTreeSet<Address>) {
    if let Kind::MapGet(Place::Absolute(map), _) = value.kind {
        used.insert(map);
    }
    value.children().into_iter().for_each(|child| read_by(child, used));
}

/// Replaces additions in statements, at most `left`; `counters_of` returns the map of counters of a
/// map.
fn replace(
    statements: &mut [Statement],
    used: &BTreeSet<Address>,
    left: &mut usize,
    counters_of: &mut impl FnMut(Address, &Type, &Type) -> Address,
) {
    for statement in statements {
        if let Some(addition) = addition(statement)
            && let Place::Absolute(map) = addition.map
            && !used.contains(&map)
            && addition.is_known()
            && *left > 0
        {
            *left -= 1;
            let Addition { key, amount, .. } = addition;
            let counters = Place::Absolute(counters_of(map, &key.ty, &amount.ty));
            let ty = Type::Tuple(vec![key.ty.clone(), Type::U64]);
            let both = Kind::Tuple(vec![key.clone(), Typed::cast(amount, Type::U64)]);
            let counter = Kind::Counter(counters, Box::new(Typed::new(ty, both)));
            let at_match = Kind::AtMatch(Box::new(Typed::new(Type::U32, counter)));
            *statement = Statement::Count(Typed::new(Type::U32, at_match));
            continue;
        }
        match statement {
            Statement::If { yes, no, .. } => {
                replace(yes, used, left, counters_of);
                replace(no, used, left, counters_of);
            }
            Statement::While { body, .. } => replace(body, used, left, counters_of),
            _ => {}
        }
    }
}
