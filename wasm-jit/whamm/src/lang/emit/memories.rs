//! Copies between the memories of the script and of libraries.
//!
//! Code refers to the script's own memory as number 0, and to those of libraries as the following
//! numbers, as if they were not imported. Imported memories come first: when the module is
//! finished, [`import_first`] exchanges the numbers.

use std::convert::Infallible;

use wasm_encoder::reencode::{Error, Reencode};
use wasm_encoder::{Instruction, Module, ValType};

use super::super::ir::{Transfer, Typed};
use super::code::Code;

/// The script's own memory.
const OWN: u32 = 0;

/// The number of a library's memory.
fn of_library(memory: u32) -> u32 {
    OWN + 1 + memory
}

impl Code<'_> {
    /// Pushes the string that is read, if it is one.
    pub(super) fn transfer(&mut self, transfer: Transfer, operands: &[Typed]) {
        let kept: Vec<Vec<u32>> = operands.iter().map(|operand| self.keep(operand)).collect();
        match transfer {
            Transfer::Copy { from, to } => {
                let (source, target, length) = (kept[0][0], kept[1][0], kept[2][0]);
                let from = from.map_or(OWN, of_library);
                self.copy(from, source, of_library(to), target, length);
            }
            Transfer::Write(to) => {
                let (target, source, length) = (kept[0][0], kept[1][0], kept[1][1]);
                self.copy(OWN, source, of_library(to), target, length);
            }
            Transfer::Read(from) => {
                let (source, length) = (kept[0][0], kept[1][0]);
                let (room, entry) = (self.local(ValType::I32), self.local(ValType::I32));
                self.check_bytes(of_library(from), source, length);
                self.emit(Instruction::LocalGet(length));
                self.call("begin_read");
                self.emit(Instruction::LocalSet(room));
                self.copy_bytes(of_library(from), source, OWN, room, length);
                self.emit(Instruction::LocalGet(room));
                self.emit(Instruction::LocalGet(length));
                self.call("end_read");
                self.emit(Instruction::LocalSet(entry));
                for offset in [0, 8] {
                    self.emit(Instruction::LocalGet(entry));
                    self.load(ValType::I32, offset);
                }
                self.reads_strings();
            }
        }
    }

    fn copy(&mut self, from: u32, source: u32, to: u32, target: u32, length: u32) {
        self.check_bytes(from, source, length);
        self.check_bytes(to, target, length);
        self.copy_bytes(from, source, to, target, length);
    }

    /// Fails if bytes are outside of a memory.
    fn check_bytes(&mut self, memory: u32, address: u32, length: u32) {
        self.emit(Instruction::LocalGet(address));
        self.emit(Instruction::LocalGet(length));
        self.emit(Instruction::MemorySize(memory));
        self.call("outside");
    }

    fn copy_bytes(&mut self, from: u32, source: u32, to: u32, target: u32, length: u32) {
        for local in [target, source, length] {
            self.emit(Instruction::LocalGet(local));
        }
        self.emit(Instruction::MemoryCopy { src_mem: from, dst_mem: to });
    }
}

/// Renumbers the memories of a module for this number of imported ones, which precede its own.
struct ImportedFirst(u32);

impl Reencode for ImportedFirst {
    type Error = Infallible;

    fn memory_index(&mut self, memory: u32) -> Result<u32, Error<Infallible>> {
        Ok(if memory == OWN { self.0 } else { memory - 1 })
    }
}

/// The module with its memories renumbered for `imported` imported ones.
pub(super) fn import_first(module: Vec<u8>, imported: usize) -> Vec<u8> {
    if imported == 0 {
        return module;
    }
    let mut again = Module::new();
    let mut numbers = ImportedFirst(imported as u32);
    let parsed = numbers.parse_core_module(&mut again, wasmparser::Parser::new(0), &module);
    parsed.expect("the module was just emitted");
    again.finish()
}
