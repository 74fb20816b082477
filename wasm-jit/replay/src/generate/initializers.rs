//! Initializers that read imported globals: in a replay these are globals of the module, which the
//! initializers of standard modules cannot read, so constants take their place.

use std::collections::HashMap;
use std::convert::Infallible;

use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    DataSection, ElementSection, GlobalSection, HeapType, Ieee32, Ieee64, Instruction, TableSection,
};
use wasm_jit::wasmparser as wp;

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

fn unknown(error: reencode::Error<Infallible>) -> Error {
    unsupported(format!("an initializer: {error}"))
}

/// Copies initializers.
struct Constants<'a>(&'a [Value]);

impl Reencode for Constants<'_> {
    type Error = Infallible;

    fn instruction<'a>(
        &mut self,
        operator: wp::Operator<'a>,
    ) -> Result<Instruction<'a>, reencode::Error<Infallible>> {
        let read = match operator {
            wp::Operator::GlobalGet { global_index } => self.0.get(global_index as usize),
            _ => None,
        };
        match read {
            Some(value) => Ok(constant(*value)),
            None => reencode::utils::instruction(self, operator),
        }
    }
}

/// The instruction that has this value, which is no function.
pub(super) fn constant(value: Value) -> Instruction<'static> {
    match value {
        Value::I32(value) => Instruction::I32Const(value),
        Value::I64(value) => Instruction::I64Const(value),
        Value::F32(bits) => Instruction::F32Const(Ieee32::new(bits)),
        Value::F64(bits) => Instruction::F64Const(Ieee64::new(bits)),
        Value::V128(bits) => Instruction::V128Const(bits as i128),
        Value::Func(Some(index)) => Instruction::RefFunc(index),
        Value::Func(None) => Instruction::RefNull(HeapType::FUNC),
        Value::NullExtern => Instruction::RefNull(HeapType::EXTERN),
    }
}
