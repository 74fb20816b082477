//! Functions of the program, with the arguments and results that scripts ask for.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use profiler::arguments::{Fetch, Objects, Parameter, ScalarType, Site, Unavailable};
use wasm_jit_whamm::native::{NativeValue, NumberType, ValueName};

use crate::ring::{MAX_VALUES, Values};

/// A function of the program.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) object: &'static CStr,
    /// The address of the function, relative to the lowest address of the object.
    pub(crate) address: u64,
    /// The values that scripts ask for. Their indices are those of the values in events.
    pub(crate) values: Vec<Value>,
}

/// An argument or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    origin: Origin,
    /// The name of the value in the program, or its name in scripts.
    pub(crate) name: String,
    /// Whether it is a float that is passed to scripts as a 64-bit float.
    is_widened: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The index of the parameter.
    Parameter(usize),
    Result,
}

impl Value {
    /// How a probe fetches the value; `None` at the end of a call where it does not exist.
    pub(crate) fn fetch(
        &self,
        object: &Path,
        site: Site,
        is_entry: bool,
        objects: &mut Objects,
    ) -> Option<Result<Fetch, Unavailable>> {
        match self.origin {
            Origin::Parameter(parameter) if is_entry => Some(objects.fetch(object, site, parameter)),
            Origin::Result if !is_entry => Some(objects.fetch_result(object, site)),
            Origin::Parameter(_) | Origin::Result => None,
        }
    }
}

impl Function {
    /// The path of the file that contains the function.
    pub(crate) fn path(&self) -> &'static Path {
        Path::new(OsStr::from_bytes(self.object.to_bytes()))
    }

    /// The number of an argument or of the result, if the rule uses it; `None` if it does not
    /// exist, or its values are not of the requested type.
    ///
    /// # Errors
    /// The reason, if the parameters of the function are not known.
    pub(crate) fn value(
        &mut self,
        wanted: &NativeValue,
        objects: &mut Objects,
    ) -> Result<Option<u32>, Unavailable> {
        let Some((origin, name, ty)) = self.find(&wanted.name, objects)? else { return Ok(None) };
        let Some(ty) = ty.map(number_type).filter(|ty| wanted.ty.holds(*ty)) else { return Ok(None) };
        if !wanted.is_used {
            // It is not fetched, and has no number.
            return Ok(Some(u32::MAX));
        }
        let value = Value { origin, name, is_widened: ty != wanted.ty && ty == NumberType::F32 };
        if let Some(number) = self.values.iter().position(|known| *known == value) {
            return Ok(Some(number as u32));
        }
        if self.values.len() == MAX_VALUES {
            return Err(Unavailable::TooMany);
        }
        self.values.push(value);
        Ok(Some(self.values.len() as u32 - 1))
    }

    /// The reason why the function has no such value, which [`Function::value`] has not found.
    pub(crate) fn misfit(&self, wanted: &NativeValue, objects: &mut Objects) -> Option<String> {
        let name = &self.name;
        Some(match self.find(&wanted.name, objects).ok()? {
            Some((Origin::Result, _, None)) => format!("`{name}` does not return a number of up to 8 bytes"),
            Some((_, value, None)) => format!("`{value}` of `{name}` is no number of up to 8 bytes"),
            Some((_, value, Some(ty))) => {
                format!("`{value}` of `{name}` is of the type `{}`", number_type(ty))
            }
            None => {
                let parameters = objects.parameters(self.path(), self.address).ok()?;
                let unnamed = |(position, parameter): (usize, Parameter)| {
                    parameter.name.unwrap_or_else(|| format!("arg{position}"))
                };
                let names: Vec<_> = parameters.into_iter().enumerate().map(unnamed).collect();
                match names.len() {
                    0 => format!("`{name}` has no arguments"),
                    _ => format!("`{name}` has no `{wanted}`, but the arguments {}", names.join(", ")),
                }
            }
        })
    }

    /// An argument or the result, with its name and type.
    fn find(
        &self,
        wanted: &ValueName,
        objects: &mut Objects,
    ) -> Result<Option<(Origin, String, Option<ScalarType>)>, Unavailable> {
        if *wanted == ValueName::Result {
            let ty = objects.result(self.path(), self.address)?;
            return Ok(Some((Origin::Result, "res0".to_owned(), ty)));
        }
        let parameters = objects.parameters(self.path(), self.address)?;
        let is_it = |(position, parameter): &(usize, &Parameter)| match wanted {
            ValueName::Position(wanted) => *position == *wanted as usize,
            ValueName::Name(wanted) => parameter.name.as_ref() == Some(wanted),
            ValueName::Result => false,
        };
        let found = parameters.iter().enumerate().find(is_it);
        Ok(found.map(|(position, found)| {
            let name = found.name.clone().unwrap_or_else(|| format!("arg{position}"));
            (Origin::Parameter(position), name, found.ty)
        }))
    }

    /// Converts fetched values to the types that scripts expect.
    pub(crate) fn convert(&self, values: &mut Values) {
        for (wanted, value) in self.values.iter().zip(&mut values.values) {
            if wanted.is_widened {
                *value = f64::from(f32::from_bits(*value as u32)).to_bits();
            }
        }
    }
}

fn number_type(ty: ScalarType) -> NumberType {
    match ty {
        ScalarType::Integer { bytes, is_signed } => NumberType::Integer { bits: 8 * bytes, is_signed },
        ScalarType::Bool => NumberType::Bool,
        ScalarType::Float => NumberType::F32,
        ScalarType::Double => NumberType::F64,
    }
}
