//! Checks the names in an expression before it is evaluated.

use wasm_jit::probes::Location;

use super::evaluate::constant;
use super::{Expression, Node};
use crate::Error;
use crate::code::Code;

impl Expression {
    /// Whether all names have a meaning at one of these locations at least; without locations,
    /// anywhere in the module.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub(crate) fn check(&self, code: &Code, locations: &[Location]) -> Result<(), Error> {
        let (first, others) = match locations.split_first() {
            Some((first, others)) => (Some(*first), others),
            None => (None, locations),
        };
        let checked = self.node.check(code, first);
        let is_known =
            checked.is_ok() || others.iter().any(|location| self.node.check(code, Some(*location)).is_ok());
        if is_known { Ok(()) } else { checked }
    }
}

impl Node {
    fn check(&self, code: &Code, location: Option<Location>) -> Result<(), Error> {
        match self {
            Self::Local(index) if !code.has_local(*index, location) => {
                let none = location.map_or("no function has a", |_| "the function has no");
                Err(Error::Value(format!("{none} local {index}")))
            }
            Self::Cast(ty, of) => ty.find(code).and_then(|_| of.check(code, location)),
            Self::Name(name) if !code.knows(name, location) && constant(name).is_none() => {
                Err(Error::Unknown { what: "variable, local or global", name: name.clone() })
            }
            Self::SizeOf(of) => {
                let is_type = of.type_name.as_ref().is_some_and(|ty| ty.size(code).is_some());
                match &of.expression {
                    _ if is_type => Ok(()),
                    Some(of) => of.check(code, location),
                    None => Err(of.unknown()),
                }
            }
            node => node.parts().iter().try_for_each(|part| part.check(code, location)),
        }
    }
}
