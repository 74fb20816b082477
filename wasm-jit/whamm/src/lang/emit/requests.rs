//! The values that a function gets from the engine.

use wasm_encoder::ValType;

use super::super::ir::{Kind, Place, Statement, Typed};
use super::super::types::Type;

/// A parameter that the engine passes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Requested {
    /// A number: its name and type.
    Value(String, Type),
    /// A string: the address of its entry.
    Text(String),
    /// The result of a function that is called at match time.
    AtMatch(Typed),
}

/// The name of a value that is computed at match time, among requests.
pub(super) fn key(value: &Typed) -> String {
    format!("@{value:?}")
}

impl Requested {
    pub(super) fn parameter(&self) -> ValType {
        match self {
            Self::Value(_, ty) => ty.scalar().unwrap_or(ValType::I32),
            Self::Text(_) => ValType::I32,
            Self::AtMatch(value) => value.ty.scalar().unwrap_or(ValType::I32),
        }
    }

    /// The key by which expressions refer to it.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Value(name, _) | Self::Text(name) => name.clone(),
            Self::AtMatch(value) => key(value),
        }
    }
}

/// Adds the values that an expression requests, in order of first use. At match time, values that
/// are computed then are a part of the expression.
pub(super) fn requests(expr: &Typed, at_match: bool, all: &mut Vec<Requested>) {
    let requested = match &expr.kind {
        Kind::Request(name) if expr.ty == Type::Str => Some(Requested::Text(name.clone())),
        Kind::Request(name) => Some(Requested::Value(name.clone(), expr.ty.clone())),
        Kind::AtMatch(value) if !at_match => Some(Requested::AtMatch((**value).clone())),
        _ => None,
    };
    match requested {
        Some(requested) if !all.contains(&requested) => all.push(requested),
        Some(_) => {}
        None => expr.children().into_iter().for_each(|child| requests(child, at_match, all)),
    }
}

pub(super) fn requests_of(statements: &[Statement], at_match: bool, all: &mut Vec<Requested>) {
    any(statements, &mut |value| {
        requests(value, at_match, all);
        false
    });
}

/// Whether the condition holds for a value of these statements; stops at the first one.
pub(in super::super) fn any(statements: &[Statement], holds: &mut dyn FnMut(&Typed) -> bool) -> bool {
    statements.iter().any(|statement| {
        statement.values().into_iter().any(&mut *holds)
            || match statement {
                Statement::If { yes, no, .. } => any(yes, holds) || any(no, holds),
                Statement::While { body, .. } => any(body, holds),
                _ => false,
            }
    })
}

/// Whether a value is, or depends on, a variable in storage for which the condition holds.
pub(super) fn reads(value: &Typed, is_such: fn(Place) -> bool) -> bool {
    let is_own = match &value.kind {
        Kind::Variable(place, _) | Kind::MapGet(place, _) => is_such(*place),
        _ => false,
    };
    is_own || value.children().into_iter().any(|value| reads(value, is_such))
}

/// Whether a variable in storage for which the condition holds is set.
pub(super) fn sets(statements: &[Statement], is_such: fn(Place) -> bool) -> bool {
    statements.iter().any(|statement| match statement {
        Statement::Set { place, .. }
        | Statement::SetMap { map: place, .. }
        | Statement::AddMap { map: place, .. } => is_such(*place),
        Statement::If { yes, no, .. } => sets(yes, is_such) || sets(no, is_such),
        Statement::While { body, .. } => sets(body, is_such),
        _ => false,
    })
}
