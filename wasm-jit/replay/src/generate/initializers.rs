//! Initializers of tables, globals and segments, as a replay needs them:
//!
//! * In a replay, imported globals are globals of the module, which the initializers of standard
//!   modules cannot read: constants take the place of these reads.
//! * A replay of an instance that ran before begins with empty memories and tables. Active data
//!   segments become passive ones without bytes; active element segments become declarative, so the
//!   code may still refer to their functions. Indices remain valid.

use std::collections::HashMap;
use std::convert::Infallible;

use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    ConstExpr, DataSection, ElementSection, Encode, GlobalSection, InstructionSink, TableSection,
};
use wasm_jit::wasmparser as wp;

use super::program::{DATA, ELEMENTS, GLOBALS, Items, TABLES};
use super::values::constant;
use crate::error::{Error, not_generated};
use crate::value::Value;

/// In the sections that have initializers, replaces the reads of imported globals by these values
/// and, if memories and tables begin empty, the active segments that would fill them.
pub(super) fn resolve(
    sections: &mut HashMap<u8, Items>,
    globals: &[Value],
    has_typed_nulls: bool,
    is_cleared: bool,
) -> Result<(), Error> {
    if globals.is_empty() && !is_cleared {
        return Ok(());
    }
    let mut initializers = Initializers { globals, has_typed_nulls, is_cleared };
    for (id, items) in sections {
        let section = items.section();
        let reader = wp::BinaryReader::new(&section, 0);
        *items = match *id {
            TABLES => {
                let mut tables = TableSection::new();
                let reader = wp::TableSectionReader::new(reader)?;
                initializers.parse_table_section(&mut tables, reader).map_err(unknown)?;
                Items::encoded(&tables)
            }
            GLOBALS => {
                let mut globals = GlobalSection::new();
                let reader = wp::GlobalSectionReader::new(reader)?;
                initializers.parse_global_section(&mut globals, reader).map_err(unknown)?;
                Items::encoded(&globals)
            }
            ELEMENTS => {
                let mut elements = ElementSection::new();
                let reader = wp::ElementSectionReader::new(reader)?;
                initializers.parse_element_section(&mut elements, reader).map_err(unknown)?;
                Items::encoded(&elements)
            }
            DATA => {
                let mut data = DataSection::new();
                let reader = wp::DataSectionReader::new(reader)?;
                initializers.parse_data_section(&mut data, reader).map_err(unknown)?;
                Items::encoded(&data)
            }
            _ => continue,
        };
    }
    Ok(())
}

/// The error for something that cannot be encoded.
pub(super) fn unknown(error: reencode::Error<Infallible>) -> Error {
    not_generated(format!("an initializer, or the type of an import: {error}"))
}

/// Copies initializers.
struct Initializers<'a> {
    /// The values of imported globals.
    globals: &'a [Value],
    has_typed_nulls: bool,
    /// Whether memories and tables begin empty.
    is_cleared: bool,
}

impl Reencode for Initializers<'_> {
    type Error = Infallible;

    fn parse_table(
        &mut self,
        tables: &mut TableSection,
        table: wp::Table<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        let init = match table.init {
            _ if self.is_cleared && table.ty.element_type.is_nullable() => wp::TableInit::RefNull,
            init => init,
        };
        reencode::utils::parse_table(self, tables, wp::Table { init, ..table })
    }

    fn parse_element(
        &mut self,
        elements: &mut ElementSection,
        element: wp::Element<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        let kind = match element.kind {
            wp::ElementKind::Active { .. } if self.is_cleared => wp::ElementKind::Declared,
            kind => kind,
        };
        reencode::utils::parse_element(self, elements, wp::Element { kind, ..element })
    }

    fn parse_data(
        &mut self,
        data: &mut DataSection,
        segment: wp::Data<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        match segment.kind {
            wp::DataKind::Active { .. } if self.is_cleared => {
                data.passive([]);
                Ok(())
            }
            _ => reencode::utils::parse_data(self, data, segment),
        }
    }

    fn const_expr(
        &mut self,
        initializer: wp::ConstExpr<'_>,
    ) -> Result<ConstExpr, reencode::Error<Infallible>> {
        let mut operators = initializer.get_operators_reader();
        let mut bytes = Vec::new();
        while !operators.is_end_then_eof() {
            let operator = operators.read()?;
            let read = match operator {
                wp::Operator::GlobalGet { global_index } => self.globals.get(global_index as usize),
                _ => None,
            };
            match read {
                Some(value) => constant(&mut InstructionSink::new(&mut bytes), *value, self.has_typed_nulls),
                None => self.instruction(operator)?.encode(&mut bytes),
            }
        }
        Ok(ConstExpr::raw(bytes))
    }
}
