//! The meaning of names in a frame.

use wasm_jit::probes::Location;

use crate::Error;
use crate::code::Code;
use crate::dwarf::Dwarf;
use crate::dwarf::variables::Variable;
use crate::expression::Term;
use crate::frames::Scope;
use crate::value::Value;

impl Code {
    /// Whether a name denotes something at a location, or without one, somewhere.
    pub(crate) fn knows(&self, name: &str, location: Option<Location>) -> bool {
        let plain = name.strip_prefix('$');
        let of_source = |dwarf: &Dwarf| match location {
            Some(location) => dwarf.variable(self.module_offset(location), name).is_some(),
            None => dwarf.has_variable(name),
        };
        if plain.is_none() && self.dwarf().is_some_and(of_source) {
            return true;
        }
        let name = plain.unwrap_or(name);
        let is_local = |function: u32| self.local_of_name(function, name).is_some();
        self.global_of_name(name).is_some()
            || match location {
                Some(location) => is_local(location.function),
                None => self.own_functions().any(is_local),
            }
    }
}

impl Scope<'_, '_> {
    /// The source variables in scope, the innermost first, with their values as text.
    pub fn variables(&mut self) -> Vec<(String, Result<Value, Error>)> {
        let Some(dwarf) = self.code().dwarf() else { return Vec::new() };
        let variables = dwarf.variables(self.code().module_offset(self.location()));
        self.values(variables)
    }

    /// The parameters of the function in the source, with their values as text.
    pub fn parameters(&mut self) -> Vec<(String, Result<Value, Error>)> {
        let Some(dwarf) = self.code().dwarf() else { return Vec::new() };
        let parameters = dwarf.parameters(self.code().module_offset(self.location()));
        self.values(parameters)
    }

    fn values(&mut self, variables: Vec<Variable>) -> Vec<(String, Result<Value, Error>)> {
        let value = |variable: Variable| {
            let value = variable.object(self).and_then(|object| object.value(self));
            (variable.name, value)
        };
        variables.into_iter().map(value).collect()
    }

    /// Resolves a name in this frame.
    pub(crate) fn named(&mut self, name: &str) -> Result<Term, Error> {
        let function = self.location().function;
        let plain = name.strip_prefix('$');
        if plain.is_none()
            && let Some(dwarf) = self.code().dwarf()
            && let Some(variable) = dwarf.variable(self.code().module_offset(self.location()), name)
        {
            return variable.object(self).map(Term::Object);
        }
        let name = plain.unwrap_or(name);
        if let Some(local) = self.code().local_of_name(function, name) {
            return Ok(Term::Local(local));
        }
        if let Some(global) = self.code().global_of_name(name) {
            return Ok(Term::Global(global));
        }
        Err(Error::Unknown { what: "variable, local or global", name: name.to_owned() })
    }
}
