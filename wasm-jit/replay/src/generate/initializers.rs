//! Initializers that read imported globals: in a replay these are globals of the module, which the
//! initializers of standard modules cannot read, so constants take their place.

use std::collections::HashMap;
use std::convert::Infallible;

use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    ConstExpr, DataSection, ElementSection, Encode, GlobalSection, InstructionSink, TableSection,
};
use wasm_jit::wasmparser as wp;

use super::functions::constant;
use super::program::Items;
use crate::error::{Error, unsupported};
use crate::value::Value;

/// Replaces the reads of imported globals, which have these values, in the sections that have
/// initializers.
pub(super) fn resolve(sections: &mut HashMap<u8, Items>, globals: &[Value]) -> Result<(), Error> {
    if globals.is_empty() {
        return Ok(());
    }
    let mut constants = Constants(globals);
    for (id, items) in sections {
        let section = items.section();
        let reader = wp::BinaryReader::new(&section, 0);
        *items = match id {
            4 => {
                let mut tables = TableSection::new();
                let reader = wp::TableSectionReader::new(reader)?;
                constants.parse_table_section(&mut tables, reader).map_err(unknown)?;
                Items::encoded(&tables)
            }
            6 => {
                let mut globals = GlobalSection::new();
                let reader = wp::GlobalSectionReader::new(reader)?;
                constants.parse_global_section(&mut globals, reader).map_err(unknown)?;
                Items::encoded(&globals)
            }
            9 => {
                let mut elements = ElementSection::new();
                let reader = wp::ElementSectionReader::new(reader)?;
                constants.parse_element_section(&mut elements, reader).map_err(unknown)?;
                Items::encoded(&elements)
            }
            11 => {
                let mut data = DataSection::new();
                let reader = wp::DataSectionReader::new(reader)?;
                constants.parse_data_section(&mut data, reader).map_err(unknown)?;
                Items::encoded(&data)
            }
            _ => continue,
        };
    }
    Ok(())
}

/// The error of what cannot be encoded.
pub(super) fn unknown(error: reencode::Error<Infallible>) -> Error {
    unsupported(format!("an initializer, or the type of an import: {error}"))
}

/// Copies initializers.
struct Constants<'a>(&'a [Value]);

impl Reencode for Constants<'_> {
    type Error = Infallible;

    fn const_expr(
        &mut self,
        initializer: wp::ConstExpr<'_>,
    ) -> Result<ConstExpr, reencode::Error<Infallible>> {
        let mut operators = initializer.get_operators_reader();
        let mut bytes = Vec::new();
        while !operators.is_end_then_eof() {
            let operator = operators.read()?;
            let read = match operator {
                wp::Operator::GlobalGet { global_index } => self.0.get(global_index as usize),
                _ => None,
            };
            match read {
                Some(value) => constant(&mut InstructionSink::new(&mut bytes), *value),
                None => self.instruction(operator)?.encode(&mut bytes),
            }
        }
        Ok(ConstExpr::raw(bytes))
    }
}
