//! Cold code: code that rarely runs is placed after the epilogue, out of the hot path.

use wasmparser::FuncType;

use super::calls::Tail;
use super::edges::Move;
use super::function::FunctionCompiler;
use super::output::Position;
use super::state::Constant;
use crate::asm::Label;
use crate::vmctx::{Libcall, TrapCode};

/// A piece of code placed after the epilogue.
#[derive(Debug)]
pub(super) enum Cold<'a> {
    /// The moves of a conditional branch.
    Edge {
        label: Label,
        moves: Vec<Move>,
        target: Label,
        position: u32,
    },
    Trap {
        label: Label,
        code: TrapCode,
        position: u32,
    },
    /// A libcall has failed.
    Raise {
        label: Label,
        position: u32,
    },
    /// A jump table.
    Table {
        table: Label,
        targets: Vec<Label>,
    },
    /// The end of a tail call: see `calls.rs`.
    Tail {
        label: Label,
        tail: Tail,
    },
    /// A call into another instance; the code continues at `back`.
    CallThroughRef {
        label: Label,
        ty: &'a FuncType,
        back: Label,
        position: u32,
    },
    /// A tail call into another instance, which returns to this function.
    ReturnThroughRef {
        label: Label,
        ty: &'a FuncType,
        position: u32,
    },
    /// Receives an exception that a catch, given by region and index, passes to a label: see
    /// `exceptions.rs`.
    Handler {
        catch: (u32, u32),
        moves: Vec<Move>,
        target: Label,
        position: u32,
    },
}

impl FunctionCompiler<'_> {
    /// Emits the cold code, in the order in which it was requested.
    pub(super) fn emit_cold(&mut self, saved: u32, frame_size: u32) {
        let mut tables = Vec::new();
        for cold in std::mem::take(&mut self.cold) {
            let here = self.asm.offset();
            match cold {
                Cold::Edge { label, moves, target, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.apply(&moves);
                    self.asm.jmp(target);
                }
                Cold::Trap { label, code, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.asm.ud2(code as u8);
                }
                Cold::Raise { label, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    let entry = self.libcall_entry(Libcall::Raise);
                    self.asm.call_mem(entry);
                    self.asm.ud2(TrapCode::Unreachable as u8);
                }
                Cold::Table { table, targets } => tables.push((table, targets)),
                Cold::Tail { label, tail } => {
                    self.asm.bind(label);
                    self.tail_jump(&tail, saved, frame_size);
                }
                Cold::CallThroughRef { label, ty, back, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.call_through_ref(ty);
                    self.asm.jmp(back);
                }
                Cold::ReturnThroughRef { label, ty, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.call_through_ref(ty);
                    self.asm.jmp(self.leave);
                }
                Cold::Handler { catch: (region, index), moves, target, position } => {
                    self.show_more(here, position);
                    self.try_regions[region as usize].catches[index as usize].handler = here;
                    self.apply(&moves);
                    self.asm.jmp(target);
                }
            }
        }
        if !tables.is_empty() {
            self.show_more(self.asm.offset(), Position::DATA);
        }
        for (table, targets) in tables {
            self.asm.jump_table(table, &targets);
        }
    }

    pub(super) fn emit_constants(&mut self) {
        if !self.constants.is_empty() {
            self.show_more(self.asm.offset(), Position::DATA);
        }
        for Constant { bits, size, label } in std::mem::take(&mut self.constants) {
            while !self.asm.offset().is_multiple_of(size) {
                self.asm.bytes(&[0]);
            }
            self.asm.bind(label);
            self.asm.bytes(&bits.to_le_bytes()[..size as usize]);
        }
    }
}
