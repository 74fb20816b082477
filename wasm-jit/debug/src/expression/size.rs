//! `sizeof`.

use super::evaluate::Term;
use super::{Load, Node};
use crate::Error;
use crate::code::Code;
use crate::dwarf::types::Type;
use crate::frames::Scope;
use crate::value::Value;

/// The operand of `sizeof`, which may be an expression, a type, or a name that is either.
#[derive(Clone, Debug)]
pub(crate) struct SizeOperand {
    pub expression: Option<Node>,
    pub type_name: Option<TypeName>,
}

/// The name of a type.
#[derive(Clone, Debug)]
pub(crate) struct TypeName {
    pub name: String,
    /// The number of `*` after it.
    pub stars: usize,
}

impl SizeOperand {
    /// The size in bytes. As in C, a variable hides a type of its name.
    pub(crate) fn evaluate(&self, scope: &mut Scope<'_, '_>) -> Result<u64, Error> {
        let of = match &self.expression {
            Some(of) => of.size(scope),
            None => Err(self.unknown()),
        };
        match of {
            Err(Error::Unknown { .. }) => {
                let ty = self.type_name.as_ref().and_then(|ty| ty.size(scope.code()));
                ty.map_or_else(|| Err(of.err().unwrap_or_else(|| self.unknown())), Ok)
            }
            of => of,
        }
    }

    /// The error if the operand is a type that is not known.
    pub(super) fn unknown(&self) -> Error {
        let name = self.type_name.as_ref().map(|ty| ty.name.clone()).unwrap_or_default();
        Error::Unknown { what: "type", name }
    }
}

impl TypeName {
    /// The size in bytes; `None` if the program has no such type.
    pub(super) fn size(&self, code: &Code) -> Option<u64> {
        let name = self.name.as_str();
        if self.stars > 0 && name == "void" {
            return Some(code.address_size());
        }
        let of_source = code.dwarf().and_then(|dwarf| dwarf.size_of_name(name));
        let size = of_source.or_else(|| match name {
            "v128" => Some(16),
            _ => Load::of(name).map(|load| load.size() as u64),
        })?;
        Some(if self.stars > 0 { code.address_size() } else { size })
    }

    /// Whether it can only be a type: of one word alone, this is known for those of C.
    pub(super) fn is_type(&self) -> bool {
        const TYPES: [&str; 10] =
            ["bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned", "void"];
        self.stars > 0 || self.name.contains(' ') || TYPES.contains(&self.name.as_str())
    }

    /// The type.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub(super) fn find(&self, code: &Code) -> Result<Type, Error> {
        let found = match code.dwarf() {
            Some(_) if self.name == "void" => Some(Type::void()),
            Some(dwarf) => dwarf.type_of_name(&self.name),
            None => None,
        };
        let unknown = || Error::Unknown { what: "type of the source", name: self.name.clone() };
        found.map(|ty| ty.pointer(self.stars)).ok_or_else(unknown)
    }
}

impl Node {
    fn size(&self, scope: &mut Scope<'_, '_>) -> Result<u64, Error> {
        if let Self::Load(load, ..) = self {
            return Ok(load.size() as u64);
        }
        let value = match self.evaluate(scope)? {
            Term::Object(object) => return object.size(scope),
            term => term.value(scope)?,
        };
        match value {
            Value::I32(_) | Value::F32(_) => Ok(4),
            Value::I64(_) | Value::F64(_) | Value::Unsigned(_) => Ok(8),
            Value::V128(_) => Ok(16),
            value => Err(Error::Value(format!("the type of {value} has no size"))),
        }
    }
}
