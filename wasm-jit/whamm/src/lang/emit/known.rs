//! What static predicates require, for the section that describes them.

use wasm_encoder::ValType;

use super::super::ast::BinaryOp;
use super::super::ir::{Const, Kind, Typed};
use super::requests::Requested;
use crate::conditions::{Condition, Constants};

/// Whether a predicate calls functions when it is matched, whose effects need not be known.
pub(super) fn calls_at_match(predicate: &Typed) -> bool {
    matches!(predicate.kind, Kind::AtMatch(_)) || predicate.children().into_iter().any(calls_at_match)
}

/// The conditions without which a predicate is false: parts of the form `fid == 3`, or `fid == 3 ||
/// fid == 4`, that are joined by `&&`.
pub(super) fn conditions(predicate: &Typed, requested: &[Requested]) -> Vec<Condition> {
    if let Kind::Binary(BinaryOp::And, left, right) = &predicate.kind {
        let mut all = conditions(left, requested);
        all.extend(conditions(right, requested));
        return all;
    }
    let condition = || {
        let (value, ty, mut found) = one_of(predicate)?;
        let parameter = requested.iter().position(|requested| requested.key() == value)? as u32;
        let integers = |found: Vec<&Const>| {
            let number =
                |value: &Const| if let Const::Int(value) = value { Some(*value as u64) } else { None };
            found.into_iter().map(number).collect::<Option<Vec<u64>>>()
        };
        found.dedup();
        let constants = match ty {
            None => {
                let text =
                    |value: &Const| if let Const::Str(text) = value { Some(text.clone()) } else { None };
                Constants::Text(found.into_iter().map(text).collect::<Option<_>>()?)
            }
            Some(ValType::I32) => {
                let numbers = integers(found)?.into_iter().map(|number| u64::from(number as u32));
                Constants::Integers32(numbers.collect())
            }
            Some(ValType::I64) => Constants::Integers64(integers(found)?),
            Some(_) => return None,
        };
        Some(Condition { parameter, constants })
    };
    condition().into_iter().collect()
}

/// The value that an expression compares with constants, its type if it is not a string, and these.
fn one_of(expr: &Typed) -> Option<(&str, Option<ValType>, Vec<&Const>)> {
    let Kind::Binary(op, left, right) = &expr.kind else { return None };
    match (op, &left.kind, &right.kind) {
        (BinaryOp::Or, ..) => {
            let (value, ty, mut constants) = one_of(left)?;
            let (other, _, more) = one_of(right)?;
            constants.extend(more);
            (value == other).then_some((value, ty, constants))
        }
        (BinaryOp::Eq, Kind::Request(value), Kind::Const(constant))
        | (BinaryOp::Eq, Kind::Const(constant), Kind::Request(value)) => {
            Some((value, left.ty.scalar(), vec![constant]))
        }
        _ => None,
    }
}
