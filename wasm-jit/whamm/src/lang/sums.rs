//! Finds rules that only add to numbers which nothing else uses while the program runs
//! ([`crate::sums`]).
//!
//! Such a rule writes to nothing but variables of its locations, [counters](super::counters), and
//! variables that exist once. Everything else that is executed between the first event and the end
//! also only adds to the latter (`n++`, `n = n + c`), and does not read them otherwise: additions
//! may be done in any order, and later.

use std::collections::BTreeSet;

use super::ast::BinaryOp;
use super::ir::{Kind, Place, Probe, Program, Statement, Transfer, Typed};

/// The address of a component of a variable.
type Address = u32;

/// The variables that are used otherwise than by additions.
pub(super) struct Used {
    addresses: BTreeSet<Address>,
    /// Whether the script reads its memory by addresses.
    everything: bool,
}

impl Used {
    pub(super) fn of(program: &Program) -> Self {
        let mut used = Self { addresses: BTreeSet::new(), everything: false };
        program.visit_during_run(&mut |statement| used.add(statement));
        program.predicates().for_each(|condition| used.read(condition));
        used
    }

    /// Whether a rule only adds to numbers that nothing else uses.
    pub(super) fn leaves(&self, probe: &Probe) -> bool {
        !self.everything && probe.mode.has_operands() && self.leaves_all(&probe.body.statements)
    }

    fn leaves_all(&self, statements: &[Statement]) -> bool {
        statements.iter().all(|statement| match statement {
            Statement::Set { place: Place::Site(_) | Place::Local(_), .. } | Statement::Count(_) => true,
            Statement::Set { place: Place::Absolute(address), component, value } => {
                components(*address, *component, value).all(|address| !self.addresses.contains(&address))
            }
            Statement::If { yes, no, .. } => self.leaves_all(yes) && self.leaves_all(no),
            _ => false,
        })
    }

    /// Adds what a statement uses, without the statements inside of it.
    fn add(&mut self, statement: &Statement) {
        if let Statement::Set { place: Place::Absolute(address), component, value } = statement {
            if let Some(amount) = addition(*address, *component, value) {
                return self.read(amount);
            }
            self.addresses.extend(components(*address, *component, value));
        }
        statement.values().into_iter().for_each(|value| self.read(value));
    }

    fn read(&mut self, value: &Typed) {
        match &value.kind {
            Kind::Variable(Place::Absolute(address), component) => {
                self.addresses.extend(components(*address, *component, value));
            }
            Kind::Transfer(Transfer::Copy { from: None, .. }, _) => self.everything = true,
            _ => {}
        }
        value.children().into_iter().for_each(|child| self.read(child));
    }
}

/// The addresses of the components of a value, the first of which is this one of a variable.
fn components(variable: Address, component: u32, value: &Typed) -> impl Iterator<Item = Address> {
    (component..).take(value.ty.components().len()).map(move |component| variable + 8 * component)
}

/// What is added to a component of a variable, if this value is a sum of the component and
/// something else.
fn addition(variable: Address, component: u32, value: &Typed) -> Option<&Typed> {
    let is_old = |value: &Typed| matches!(value.kind, Kind::Variable(Place::Absolute(of), at) if (of, at) == (variable, component));
    match &value.kind {
        Kind::Binary(op, left, right) if value.ty.is_integer() => match op {
            BinaryOp::Add | BinaryOp::Sub if is_old(left) => Some(right),
            BinaryOp::Add if is_old(right) => Some(left),
            _ => None,
        },
        _ => None,
    }
}
