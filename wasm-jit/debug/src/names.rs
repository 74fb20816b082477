//! The meaning of names in a frame.

use std::sync::Arc;

use wasm_jit::probes::Location;

use crate::Error;
use crate::code::Code;
use crate::dwarf::Dwarf;
use crate::dwarf::variables::Variable;
use crate::expression::{Expression, Term};
use crate::frames::Scope;
use crate::value::Value;

impl Code {
    /// Whether a name denotes something at a location, or without one, somewhere.
    pub(crate) fn knows(&self, name: &str, location: Option<Location>) -> bool {
        let plain = name.strip_prefix('$');
        let of_source = |dwarf: &Dwarf| match location {
            Some(location) => dwarf.variable(self.module_offset(location), 0, name).is_some(),
            None => dwarf.has_variable(name) || dwarf.static_variable(name).is_some(),
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

impl Code {
    /// The static variable that a name denotes in a frame at a location, further in than which this
    /// number of calls is inlined, or without one, outside of functions.
    pub(crate) fn static_of(&self, name: &str, frame: Option<(Location, usize)>) -> Option<Arc<Variable>> {
        let dwarf = self.dwarf()?;
        let found = match frame {
            Some((location, inner)) => dwarf.variable(self.module_offset(location), inner, name),
            None => dwarf.static_variable(name),
        };
        found.filter(|variable| dwarf.is_static(variable)).map(Arc::new)
    }

    /// Whether a name that is not that of a static variable denotes a global in such a frame, or
    /// without one, outside of functions.
    pub(crate) fn is_global(&self, name: &str, frame: Option<(Location, usize)>) -> bool {
        let plain = name.strip_prefix('$');
        let is_local = frame.is_some_and(|(location, inner)| {
            let offset = self.module_offset(location);
            let variable = || self.dwarf().and_then(|dwarf| dwarf.variable(offset, inner, name));
            (plain.is_none() && variable().is_some())
                || self.local_of_name(location.function, plain.unwrap_or(name)).is_some()
        });
        !is_local && self.global_of_name(plain.unwrap_or(name)).is_some()
    }

    /// The names of the static variables outside of functions, with all of their components.
    pub fn static_names(&self) -> Vec<String> {
        let names = self.dwarf().map(|dwarf| dwarf.index().static_names().map(str::to_owned).collect());
        names.unwrap_or_default()
    }

    /// The names of the files of the source, without directories.
    pub fn source_files(&self) -> Vec<String> {
        self.dwarf().map(|dwarf| dwarf.files().map(str::to_owned).collect()).unwrap_or_default()
    }
}

impl Scope<'_, '_> {
    /// The names of variables, locals and globals in this frame, as expressions have them.
    pub fn names(&mut self) -> Vec<String> {
        let (code, location, inner) = (self.code(), self.location(), self.inner());
        let mut names = Vec::new();
        if let Some(dwarf) = code.dwarf() {
            let offset = code.module_offset(location);
            names.extend(dwarf.variables(offset, inner).into_iter().map(|variable| variable.name));
            names.extend(dwarf.index().statics_of(&dwarf.around(offset, inner)).map(str::to_owned));
            names.extend(dwarf.index().static_names().map(str::to_owned));
        }
        let local = |index| match code.local_name(location.function, index) {
            Some(name) => format!("${name}"),
            None => format!("$local{index}"),
        };
        names.extend((0..code.locals(location.function)).map(local));
        names.extend(code.global_names().map(|name| format!("${name}")));
        names
    }

    /// The names of the members of what an expression denotes.
    ///
    /// # Errors
    /// As [`Expression::evaluate`].
    pub fn member_names(&mut self, of: &Expression) -> Result<Vec<String>, Error> {
        of.member_names(self)
    }

    /// The source variables in scope, in the order of their declarations, with their values as
    /// text.
    pub fn variables(&mut self) -> Vec<(String, Result<Value, Error>)> {
        let Some(dwarf) = self.code().dwarf() else { return Vec::new() };
        let variables = dwarf.variables(self.code().module_offset(self.location()), self.inner());
        self.values(variables)
    }

    /// The parameters of the function in the source, with their values as text.
    pub fn parameters(&mut self) -> Vec<(String, Result<Value, Error>)> {
        let Some(dwarf) = self.code().dwarf() else { return Vec::new() };
        let parameters = dwarf.parameters(self.code().module_offset(self.location()), self.inner());
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
            && let Some(variable) =
                dwarf.variable(self.code().module_offset(self.location()), self.inner(), name)
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
