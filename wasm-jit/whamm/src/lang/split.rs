//! Splits a predicate into the parts that are known when a rule is matched, and the rest.
//!
//! As in section 4.1 of the paper: the static conditions of a predicate are its largest parts of
//! type `bool` that depend on nothing but the place. For each combination of their outcomes, the
//! remaining predicate is folded. Combinations with the same rest become one probe, whose static
//! predicate is that one of them holds; combinations whose rest is `false` become none. For `fid ==
//! 3 || arg0 == 1` there are two probes: without a condition in function 3, and with `arg0 == 1`
//! elsewhere. Each place is matched by at most one of them.
//!
//! A part that may trap, calls a function or reads a variable stays in the rest.

use super::ast::{BinaryOp, UnaryOp};
use super::ir::{Const, Kind, Typed};
use super::native::OF_CALLS;
use super::types::Type;

/// The maximum number of static conditions of a predicate that become predicates of probes: there
/// may be a probe for each combination of their outcomes.
const MAX_CONDITIONS: usize = 4;

/// A probe for a part of the matching places.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// The condition that holds where the probe belongs; none if it belongs everywhere.
    pub(super) at_match: Option<Typed>,
    /// The condition that is checked whenever the probe is hit.
    pub(super) at_run: Option<Typed>,
}

/// Splits a predicate.
pub(super) fn split(predicate: Option<&Typed>) -> Vec<Part> {
    let Some(predicate) = predicate else { return vec![Part { at_match: None, at_run: None }] };
    let mut conditions = Vec::new();
    collect(predicate, &mut conditions);
    conditions.truncate(MAX_CONDITIONS);
    // The combinations, by the predicate that remains.
    let mut rests: Vec<(Typed, Vec<u32>)> = Vec::new();
    for outcomes in 0..1_u32 << conditions.len() {
        let rest = substitute(predicate, &conditions, outcomes);
        if rest.as_bool() == Some(false) {
            continue;
        }
        match rests.iter_mut().find(|(known, _)| *known == rest) {
            Some((_, all)) => all.push(outcomes),
            None => rests.push((rest, vec![outcomes])),
        }
    }
    let part = |(rest, all): (Typed, Vec<u32>)| Part {
        at_match: one_of(&conditions, &all),
        at_run: (rest.as_bool() != Some(true)).then_some(rest),
    };
    rests.into_iter().map(part).collect()
}

/// Whether a predicate is false at every place, as far as its constants show: names of instructions
/// are constants.
pub(super) fn never_holds(predicate: &Typed) -> bool {
    match &predicate.kind {
        Kind::Binary(BinaryOp::And, left, right) => {
            never_holds(left) || never_holds(right) && has_no_effects(left)
        }
        Kind::Binary(BinaryOp::Or, left, right) => never_holds(left) && never_holds(right),
        _ => predicate.as_bool() == Some(false),
    }
}

/// Collects the largest static conditions that are not constants.
fn collect(expr: &Typed, conditions: &mut Vec<Typed>) {
    if expr.ty == Type::Bool && is_pure(expr) && is_static(expr) {
        if expr.as_bool().is_none() && !conditions.contains(expr) {
            conditions.push(expr.clone());
        }
        return;
    }
    for child in expr.children() {
        collect(child, conditions);
    }
}

fn outcome(conditions: &[Typed], outcomes: u32, expr: &Typed) -> Option<bool> {
    let index = conditions.iter().position(|condition| condition == expr)?;
    Some(outcomes & 1 << index != 0)
}

/// The expression with the outcomes of conditions in their place, folded.
fn substitute(expr: &Typed, conditions: &[Typed], outcomes: u32) -> Typed {
    if let Some(value) = outcome(conditions, outcomes, expr) {
        return Typed::bool(value);
    }
    let again = |expr: &Typed| substitute(expr, conditions, outcomes);
    let kind = match &expr.kind {
        Kind::Unary(op, operand) => return Typed::unary(*op, again(operand)),
        Kind::Binary(op, left, right) => {
            let (left, right) = (again(left), again(right));
            // The outcome does not depend on the left operand, which has no effects.
            return match (op, right.as_bool()) {
                (BinaryOp::And, Some(false)) | (BinaryOp::Or, Some(true)) if has_no_effects(&left) => right,
                _ => Typed::binary(*op, left, right),
            };
        }
        Kind::Cast(operand) => return Typed::cast(again(operand), expr.ty.clone()),
        Kind::Ternary(condition, yes, no) => {
            return Typed::ternary(again(condition), again(yes), again(no));
        }
        Kind::MapGet(map, key) => Kind::MapGet(*map, Box::new(again(key))),
        Kind::Counter(counters, key) => Kind::Counter(*counters, Box::new(again(key))),
        Kind::Call(function, arguments) => Kind::Call(*function, arguments.iter().map(again).collect()),
        Kind::Tuple(fields) => Kind::Tuple(fields.iter().map(again).collect()),
        Kind::Library(function, arguments) => Kind::Library(*function, arguments.iter().map(again).collect()),
        Kind::Text(op, text, pattern) => Kind::Text(*op, Box::new(again(text)), Box::new(again(pattern))),
        Kind::Target(targets, index) => Kind::Target(Box::new(again(targets)), Box::new(again(index))),
        Kind::Transfer(transfer, operands) => Kind::Transfer(*transfer, operands.iter().map(again).collect()),
        Kind::Address(text) => Kind::Address(Box::new(again(text))),
        Kind::Length(text) => Kind::Length(Box::new(again(text))),
        Kind::Log2(number) => return Typed::log2(again(number)),
        Kind::Bucket(buckets, number) => return Typed::bucket(*buckets, again(number)),
        // It is computed when the rule is matched.
        leaf @ (Kind::Const(_) | Kind::Variable(..) | Kind::Request(_) | Kind::AtMatch(_)) => leaf.clone(),
    };
    Typed::new(expr.ty.clone(), kind)
}

/// The condition that one of these combinations holds; none if it always does.
fn one_of(conditions: &[Typed], combinations: &[u32]) -> Option<Typed> {
    if combinations.len() == 1 << conditions.len() {
        return None;
    }
    // Irrelevant conditions are left out, by merging combinations that differ in only one.
    let mut terms: Vec<(u32, u32)> = combinations.iter().map(|outcomes| (*outcomes, u32::MAX)).collect();
    while let Some((first, second, bit)) = mergeable(&terms, conditions.len()) {
        let (outcomes, mask) = terms[first];
        terms[first] = (outcomes & !bit, mask & !bit);
        terms.remove(second);
    }
    let term = |(outcomes, mask): (u32, u32)| {
        let parts = conditions.iter().enumerate().filter(|(index, _)| mask & 1 << index != 0);
        let literal = |(index, condition): (usize, &Typed)| match outcomes & 1 << index != 0 {
            true => condition.clone(),
            false => Typed::unary(UnaryOp::Not, condition.clone()),
        };
        let and = |all, one| Typed::binary(BinaryOp::And, all, one);
        parts.map(literal).fold(Typed::bool(true), and)
    };
    let or = |all, one| Typed::binary(BinaryOp::Or, all, one);
    Some(terms.into_iter().map(term).fold(Typed::bool(false), or))
}

/// Two terms that differ in the outcome of one condition, and that condition.
fn mergeable(terms: &[(u32, u32)], conditions: usize) -> Option<(usize, usize, u32)> {
    for (first, (a, mask)) in terms.iter().enumerate() {
        for (second, (b, other)) in terms.iter().enumerate().skip(first + 1) {
            let difference = (a ^ b) & mask;
            if mask == other && difference.count_ones() == 1 && difference < 1 << conditions {
                return Some((first, second, difference));
            }
        }
    }
    None
}

/// Whether a value is known when a rule is matched.
pub(super) fn is_static(expr: &Typed) -> bool {
    match &expr.kind {
        Kind::Const(_) => true,
        Kind::Request(name) => {
            !["arg", "ref", "res", "local", "frame", "callee"].iter().any(|prefix| name.starts_with(prefix))
                && !OF_CALLS.contains(&name.as_str())
        }
        Kind::AtMatch(_) => true,
        Kind::Variable(..)
        | Kind::MapGet(..)
        | Kind::Counter(..)
        | Kind::Call(..)
        | Kind::Library(..)
        | Kind::Transfer(..)
        | Kind::Address(_) => false,
        _ => expr.children().into_iter().all(is_static),
    }
}

/// Whether a value comes from the engine.
pub(super) fn has_request(expr: &Typed) -> bool {
    matches!(expr.kind, Kind::Request(_)) || expr.children().into_iter().any(has_request)
}

/// Whether an expression may be evaluated where it would not be executed.
pub(super) fn is_pure(expr: &Typed) -> bool {
    let traps = match &expr.kind {
        Kind::Binary(op, left, right) => may_trap(*op, left, right),
        Kind::Transfer(..) => true,
        _ => false,
    };
    !traps && expr.children().into_iter().all(is_pure)
}

/// Whether an operation may trap.
pub(super) fn may_trap(op: BinaryOp, left: &Typed, right: &Typed) -> bool {
    matches!(op, BinaryOp::Div | BinaryOp::Rem)
        && left.ty.is_integer()
        && !matches!(right.kind, Kind::Const(Const::Int(divisor)) if divisor > 0)
}

/// Whether an expression need not be evaluated.
fn has_no_effects(expr: &Typed) -> bool {
    fn calls(expr: &Typed) -> bool {
        match &expr.kind {
            Kind::Call(..) | Kind::Library(..) => true,
            // The call is made whether the value is used or not.
            Kind::AtMatch(_) => false,
            _ => expr.children().into_iter().any(calls),
        }
    }
    is_pure(expr) && !calls(expr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, value: i128) -> Typed {
        Typed::binary(BinaryOp::Eq, Typed::request(Type::U32, name), Typed::int(Type::U32, value))
    }

    fn or(left: Typed, right: Typed) -> Typed {
        Typed::binary(BinaryOp::Or, left, right)
    }

    fn and(left: Typed, right: Typed) -> Typed {
        Typed::binary(BinaryOp::And, left, right)
    }

    #[track_caller]
    fn check(predicate: Typed, expected: &[(Option<Typed>, Option<Typed>)]) {
        let parts: Vec<_> =
            split(Some(&predicate)).into_iter().map(|part| (part.at_match, part.at_run)).collect();
        assert_eq!(parts, expected);
    }

    #[test]
    fn static_and_dynamic_parts() {
        let (fid, pc, arg) = (request("fid", 3), request("pc", 7), request("arg0", 1));
        let not = |condition: &Typed| Typed::unary(UnaryOp::Not, condition.clone());
        check(fid.clone(), &[(Some(fid.clone()), None)]);
        check(arg.clone(), &[(None, Some(arg.clone()))]);
        check(and(fid.clone(), arg.clone()), &[(Some(fid.clone()), Some(arg.clone()))]);
        check(
            and(and(fid.clone(), arg.clone()), pc.clone()),
            &[(Some(and(fid.clone(), pc.clone())), Some(arg.clone()))],
        );
        // Unconditional where the static part holds, and with the dynamic part elsewhere.
        check(
            or(fid.clone(), arg.clone()),
            &[(Some(not(&fid)), Some(arg.clone())), (Some(fid.clone()), None)],
        );
        check(Typed::bool(false), &[]);
        check(Typed::bool(true), &[(None, None)]);
    }

    /// The parts are disjoint, and together equal the predicate.
    #[test]
    fn every_place_has_the_predicate() {
        let leaves = [request("fid", 1), request("pc", 1), request("arg0", 1), request("imm0", 1)];
        let ops: [fn(Typed, Typed) -> Typed; 2] = [and, or];
        for shape in 0..512_u32 {
            let mut predicate = leaves[(shape & 3) as usize].clone();
            for step in 0..3 {
                let leaf = leaves[((shape >> (2 * step)) & 3) as usize].clone();
                let leaf = if shape >> 8 & 1 == 1 { Typed::unary(UnaryOp::Not, leaf) } else { leaf };
                predicate = ops[(shape >> (6 + step) & 1) as usize](predicate, leaf);
            }
            for values in 0..16_u32 {
                let is_so = |name: &str| {
                    let index = ["fid", "pc", "arg0", "imm0"].iter().position(|known| *known == name);
                    values & 1 << index.unwrap() != 0
                };
                let matched: Vec<_> = split(Some(&predicate))
                    .into_iter()
                    .filter(|part| part.at_match.as_ref().is_none_or(|condition| evaluate(condition, &is_so)))
                    .collect();
                assert!(matched.len() <= 1);
                let found = matched.first().is_some_and(|part| {
                    part.at_run.as_ref().is_none_or(|condition| evaluate(condition, &is_so))
                });
                assert_eq!(found, evaluate(&predicate, &is_so), "{predicate:?} {values:b}");
            }
        }
    }

    fn evaluate(expr: &Typed, is_so: &dyn Fn(&str) -> bool) -> bool {
        match &expr.kind {
            Kind::Const(Const::Bool(value)) => *value,
            Kind::Unary(_, operand) => !evaluate(operand, is_so),
            Kind::Binary(BinaryOp::And, left, right) => evaluate(left, is_so) && evaluate(right, is_so),
            Kind::Binary(BinaryOp::Or, left, right) => evaluate(left, is_so) || evaluate(right, is_so),
            Kind::Binary(BinaryOp::Eq, left, _) => match &left.kind {
                Kind::Request(name) => is_so(name),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}
