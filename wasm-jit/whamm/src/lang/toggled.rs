//! Rules whose predicates depend on variables that seldom change: their probes are on only while
//! the predicate can hold, so that the program pays nothing otherwise.
//!
//! The paper (section 7) proposes this for engines in which inserting probes is cheap.
//!
//! # What is added to a script
//! The conditions of a predicate that depend only on variables of the script, and are joined by
//! `&&`, form the condition of a *group*. Rules with the same condition share the group. A word of
//! memory says whether the group's probes are on; at first they are off. After each assignment to a
//! variable of the condition, and once when the monitor starts, there is
//!
//! ```text
//! if (condition != is_on) {
//!     is_on = condition;
//!     switch(group, is_on);
//! }
//! ```
//!
//! where `switch` is a function that this engine provides to monitors ([`crate::monitor_module`]).
//! The check in the rule's function stays. The events on which a rule acts are therefore the same
//! in all engines: switching its probes off only saves the cost of events on which it would not
//! act.
//!
//! # Which rules
//! Those with the annotation `@toggle`, and others if the variables are assigned in rules that are
//! executed rarely compared to the events that are saved, as far as the script shows this: when the
//! monitor starts, at entries and exits of functions, and in the rule itself (which then switches
//! itself off). If this guess is wrong, and switching takes much of the time, the engine leaves the
//! probes on.

use std::collections::{BTreeSet, HashMap};

use super::ast::BinaryOp;
use super::events::Mode;
use super::ir::{Body, Import, Kind, Place, Probe, Program, Statement, Typed, visit};
use super::split::{is_pure, split};
use super::types::Type;

/// The events with rules that are assumed to be executed rarely.
const RARE: [&str; 2] = ["wasm:func:entry", "wasm:func:exit"];

/// The maximum number of groups of a script; further predicates are checked without groups.
pub(super) const MAX_GROUPS: usize = 256;

/// An address of a variable, or a component of it.
type Address = u32;

/// The part of a condition that depends only on variables of the script, and on at least one.
pub(super) fn condition(predicate: &Typed) -> Option<Typed> {
    let mut terms = Vec::new();
    conjuncts(predicate, &mut terms);
    terms.retain(|term| is_of_script(term));
    let condition = terms.into_iter().cloned().reduce(|all, term| Typed::binary(BinaryOp::And, all, term))?;
    (!addresses(&condition).is_empty()).then_some(condition)
}

/// The conditions of the parts of a probe that can be switched.
fn conditions(probe: &Probe) -> impl Iterator<Item = Typed> {
    let parts = split(probe.predicate.as_ref()).into_iter();
    parts.filter_map(|part| part.at_run.as_ref().and_then(condition))
}

/// Whether a probe can be switched, or its predicate never holds.
pub(super) fn can_toggle(probe: &Probe) -> bool {
    split(probe.predicate.as_ref()).is_empty() || conditions(probe).next().is_some()
}

fn conjuncts<'a>(expr: &'a Typed, terms: &mut Vec<&'a Typed>) {
    match &expr.kind {
        Kind::Binary(BinaryOp::And, left, right) => {
            conjuncts(left, terms);
            conjuncts(right, terms);
        }
        _ => terms.push(expr),
    }
}

/// Whether an expression can be evaluated anywhere, at any time.
fn is_of_script(expr: &Typed) -> bool {
    let is_plain = match &expr.kind {
        Kind::Const(_) | Kind::Variable(Place::Absolute(_), _) => {
            expr.ty == Type::Bool || expr.ty.is_integer() || expr.ty.is_float()
        }
        Kind::Binary(..) | Kind::Unary(..) | Kind::Cast(_) | Kind::Ternary(..) => is_pure(expr),
        _ => false,
    };
    is_plain && expr.children().into_iter().all(is_of_script)
}

/// The addresses of the variables in a condition.
fn addresses(expr: &Typed) -> BTreeSet<Address> {
    let own = match expr.kind {
        Kind::Variable(Place::Absolute(address), component) => Some(address + 8 * component),
        _ => None,
    };
    own.into_iter().chain(expr.children().into_iter().flat_map(addresses)).collect()
}

/// The addresses to which an assignment may write.
fn assigned(statement: &Statement) -> std::ops::Range<Address> {
    match statement {
        Statement::Set { place: Place::Absolute(address), component, value } => {
            let start = address + 8 * component;
            start..start + 8 * value.ty.components().len() as u32
        }
        _ => 0..0,
    }
}

/// The addresses that a body assigns to.
fn assigned_in(body: &Body) -> BTreeSet<Address> {
    let mut all = BTreeSet::new();
    visit(&body.statements, &mut |statement| all.extend(assigned(statement).step_by(8)));
    all
}

/// Finds the groups of a script, and adds the statements that switch them.
pub(super) fn add(program: &mut Program) {
    let mut groups: Vec<Typed> = Vec::new();
    let often = assigned_often(program);
    for probe in program.probes.iter().filter(|probe| probe.mode == Mode::Before) {
        for condition in conditions(probe) {
            let is_chosen = probe.is_toggled || is_rarely_assigned(&often, probe, &addresses(&condition));
            if is_chosen && !groups.contains(&condition) && groups.len() < MAX_GROUPS {
                groups.push(condition);
            }
        }
    }
    if groups.is_empty() {
        return;
    }
    let switch = program.import(Import::switch());
    for (number, condition) in groups.iter().enumerate() {
        let state = Place::Absolute(program.static_size);
        program.static_size += Type::U32.size();
        let update = update(number, condition, state, switch);
        let of = addresses(condition);
        let functions = program.functions.iter_mut().map(|function| &mut function.body);
        let probes = program.probes.iter_mut().map(|probe| &mut probe.body);
        for body in functions.chain(probes).chain(&mut program.begin) {
            follow(&mut body.statements, &of, &update);
        }
        // The initial values, when all of them are set.
        program.begin.push(Body { statements: vec![update], ..Body::default() });
    }
    program.groups = groups;
}

/// The addresses that are assigned in functions, and those in rules that may be executed often,
/// with these rules.
#[derive(Default)]
struct AssignedOften {
    in_functions: BTreeSet<Address>,
    in_rules: HashMap<Address, BTreeSet<usize>>,
}

fn assigned_often(program: &Program) -> AssignedOften {
    let mut often = AssignedOften::default();
    often.in_functions.extend(program.functions.iter().flat_map(|function| assigned_in(&function.body)));
    for probe in program.probes.iter().filter(|probe| !RARE.contains(&probe.event.as_str())) {
        for address in assigned_in(&probe.body) {
            often.in_rules.entry(address).or_default().insert(probe.rule);
        }
    }
    often
}

/// Whether variables are assigned only where the program seldom comes, or in the probe itself.
fn is_rarely_assigned(often: &AssignedOften, probe: &Probe, of: &BTreeSet<Address>) -> bool {
    of.iter().all(|address| {
        let rules = often.in_rules.get(address);
        !often.in_functions.contains(address)
            && rules.is_none_or(|rules| rules.iter().all(|rule| *rule == probe.rule))
    })
}

/// Switches a group if its condition has changed.
fn update(group: usize, condition: &Typed, state: Place, switch: usize) -> Statement {
    let is_on = Typed::new(Type::U32, Kind::Variable(state, 0));
    let new = Typed::cast(condition.clone(), Type::U32);
    let group = Typed::int(Type::U32, group as i128);
    let call = Typed::new(Type::UNIT, Kind::Library(switch, vec![group, is_on.clone()]));
    Statement::If {
        condition: Typed::binary(BinaryOp::Ne, new.clone(), is_on),
        yes: vec![Statement::Set { place: state, component: 0, value: new }, Statement::Call(call)],
        no: Vec::new(),
    }
}

/// Adds a statement after each assignment to one of these variables.
fn follow(statements: &mut Vec<Statement>, of: &BTreeSet<Address>, update: &Statement) {
    for mut statement in std::mem::take(statements) {
        match &mut statement {
            Statement::If { yes, no, .. } => {
                follow(yes, of, update);
                follow(no, of, update);
            }
            Statement::While { body, .. } => follow(body, of, update),
            _ => {}
        }
        let is_assignment = assigned(&statement).step_by(8).any(|address| of.contains(&address));
        statements.push(statement);
        if is_assignment {
            statements.push(update.clone());
        }
    }
}
