//! Memories and globals that functions of a monitor may access while the program runs.
//!
//! Numbers that the engine counts for a monitor are added to it later ([`Counted`]). Therefore none
//! of them may be accessible to a function that is called before.
//!
//! [`Counted`]: super::counted::Counted

use std::collections::BTreeSet;

use wasm_jit::wasmparser::Operator;

use super::contents::Contents;
use super::evaluate::Cell;
use super::instructions::access;

/// Memories and globals, by their indices.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Whether all memories and globals can be reached.
    everything: bool,
    memories: BTreeSet<u32>,
    globals: BTreeSet<u32>,
    functions: BTreeSet<u32>,
}

impl Reach {
    /// Adds what a function may reach, including through the functions that it calls.
    pub(super) fn add(&mut self, contents: &mut Contents<'_>, function: u32) {
        let mut waiting = vec![function];
        while let Some(function) = waiting.pop() {
            if !self.functions.insert(function) {
                continue;
            }
            let Some(code) = contents.code(function) else {
                // Other functions can reach what the monitor exports.
                self.add_everything();
                return;
            };
            for instruction in &code.instructions {
                match instruction.operator() {
                    Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                        waiting.push(*function_index);
                    }
                    Operator::CallIndirect { .. }
                    | Operator::ReturnCallIndirect { .. }
                    | Operator::CallRef { .. }
                    | Operator::ReturnCallRef { .. } => self.add_everything(),
                    Operator::GlobalGet { global_index } | Operator::GlobalSet { global_index } => {
                        self.globals.insert(*global_index);
                    }
                    Operator::MemoryCopy { dst_mem, src_mem } => self.memories.extend([*dst_mem, *src_mem]),
                    Operator::MemoryFill { mem } | Operator::MemoryInit { mem, .. } => {
                        self.memories.insert(*mem);
                    }
                    other => {
                        let access = access(other, instruction.bytes());
                        self.memories.extend(access.map(|access| access.memory as u32));
                    }
                }
            }
        }
    }

    /// Adds all memories and globals.
    pub(super) fn add_everything(&mut self) {
        self.everything = true;
    }

    /// Adds a memory.
    pub(super) fn add_memory(&mut self, memory: u32) {
        self.memories.insert(memory);
    }

    pub(super) fn has(&self, cell: &Cell) -> bool {
        self.everything
            || match cell {
                Cell::Memory { memory, .. } => self.memories.contains(memory),
                Cell::Global { index, .. } => self.globals.contains(index),
            }
    }
}
