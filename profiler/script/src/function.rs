//! Functions of the program, and the arguments of theirs that scripts ask for.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use profiler::arguments::{Objects, Parameter, ScalarType, Unavailable};
use wasm_jit_whamm::native::{ArgumentName, NativeArgument, NumberType};

use crate::ring::{MAX_VALUES, Values};

/// A function of the program.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) object: &'static CStr,
    /// Its address, relative to the lowest address of the object.
    pub(crate) address: u64,
    /// The arguments that scripts ask for. Their numbers are those of the values in events.
    pub(crate) arguments: Vec<Argument>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// The position of the parameter.
    pub(crate) parameter: usize,
    /// Its name in the program, or its position.
    pub(crate) name: String,
    /// Whether it is a float that scripts get as one of 64 bits.
    is_widened: bool,
}

impl Function {
    /// The file that contains it.
    pub(crate) fn path(&self) -> &'static Path {
        Path::new(OsStr::from_bytes(self.object.to_bytes()))
    }

    /// The number of an argument; `None` if there is no such one that has values of the type that
    /// is asked for.
    ///
    /// # Errors
    /// The parameters of the function are not known.
    pub(crate) fn argument(
        &mut self,
        wanted: &NativeArgument,
        objects: &mut Objects,
    ) -> Result<Option<u32>, Unavailable> {
        let parameters = objects.parameters(self.path(), self.address)?;
        let is_it = |(position, parameter): &(usize, &Parameter)| match &wanted.name {
            ArgumentName::Position(wanted) => *position == *wanted as usize,
            ArgumentName::Name(wanted) => parameter.name.as_ref() == Some(wanted),
        };
        let Some((parameter, found)) = parameters.iter().enumerate().find(is_it) else { return Ok(None) };
        let Some(ty) = found.ty.map(number_type).filter(|ty| wanted.ty.holds(*ty)) else { return Ok(None) };
        let argument = Argument {
            parameter,
            name: found.name.clone().unwrap_or_else(|| format!("arg{parameter}")),
            is_widened: ty != wanted.ty && ty == NumberType::F32,
        };
        if let Some(number) = self.arguments.iter().position(|known| *known == argument) {
            return Ok(Some(number as u32));
        }
        if self.arguments.len() == MAX_VALUES {
            return Err(Unavailable::TooMany);
        }
        self.arguments.push(argument);
        Ok(Some(self.arguments.len() as u32 - 1))
    }

    /// Converts values to what scripts ask for.
    pub(crate) fn convert(&self, values: &mut Values) {
        for (argument, value) in self.arguments.iter().zip(&mut values.values) {
            if argument.is_widened {
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
