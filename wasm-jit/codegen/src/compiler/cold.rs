//! Cold code and constants: code that rarely runs is placed after the epilogue, out of the hot
//! path, followed by data.
//!
//! Both are collected while the function is compiled. The size of cold code is estimated when it is
//! requested, so that the limit of the code size holds before it is emitted.

use wasmparser::FuncType;

use super::abi::{CONTEXT, SCRATCH};
use super::edges::Move;
use super::function::FunctionCompiler;
use super::operators::calls::Tail;
use super::output::Position;
use crate::asm::{Assembler, Cond, Label, Mem, Size, Width};
use crate::vmctx::{HEAP_WANTED, Libcall, STORE, TrapCode};

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
    /// There is no room for an object; the code continues at `back` when there is.
    MakeRoom {
        label: Label,
        size: u32,
        back: Label,
        position: u32,
    },
    /// A jump table.
    Table {
        table: Label,
        targets: Vec<Label>,
    },
    /// The end of a tail call: see `operators/calls.rs`.
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
    /// The end of a tail call into another instance, with the bytes of arguments on the stack.
    TailToOther {
        label: Label,
        stack: u32,
        position: u32,
    },
    /// Receives an exception that a catch, given by region and index, passes to a label: see
    /// `operators/exceptions.rs`.
    Handler {
        catch: (u32, u32),
        moves: Vec<Move>,
        target: Label,
        position: u32,
    },
}

/// Approximate size of a move between two slots.
const MOVE_BYTES: u32 = 12;

/// Number of recent constants that are searched for an equal one.
const RECENT_CONSTANTS: usize = 16;

/// Data after the code of a function.
#[derive(Clone, Copy, Debug)]
struct Constant {
    bits: u128,
    size: u32,
    label: Label,
}

/// Code and data after the epilogue, in the order in which they were requested.
#[derive(Debug, Default)]
pub(super) struct ColdCode<'a> {
    pieces: Vec<Cold<'a>>,
    /// The estimated size of the moves in the cold code.
    move_bytes: u32,
    constants: Vec<Constant>,
}

impl<'a> ColdCode<'a> {
    pub(super) fn push(&mut self, piece: Cold<'a>) {
        self.pieces.push(piece);
    }

    /// The number of pieces so far.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The pieces after this many.
    pub(super) fn since(&self, count: usize) -> impl Iterator<Item = &Cold<'a>> {
        self.pieces[count..].iter()
    }

    /// Adds these moves to the estimate of the size.
    pub(super) fn count_moves(&mut self, moves: &[Move]) {
        self.move_bytes = self.move_bytes.saturating_add(MOVE_BYTES * (1 + moves.len() as u32));
    }

    /// The estimated size.
    pub(super) fn bytes(&self) -> u32 {
        self.move_bytes
    }

    /// The location of a constant of `size` bytes.
    pub(super) fn constant(&mut self, bits: u128, size: u32, asm: &mut Assembler<'_>) -> Mem {
        let mut recent = self.constants.iter().rev().take(RECENT_CONSTANTS);
        let label = match recent.find(|known| known.bits == bits && known.size == size) {
            Some(known) => known.label,
            None => {
                let label = asm.new_label();
                self.constants.push(Constant { bits, size, label });
                label
            }
        };
        Mem::data(label)
    }
}

impl FunctionCompiler<'_> {
    /// Emits the cold code, in the order in which it was requested.
    pub(super) fn emit_cold(&mut self, saved: u32, frame_size: u32) {
        let mut tables = Vec::new();
        for cold in std::mem::take(&mut self.cold.pieces) {
            let here = self.asm.offset();
            match cold {
                Cold::Edge { label, moves, target, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.apply(moves);
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
                    self.raise();
                }
                Cold::MakeRoom { label, size, back, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
                    self.asm.mov_store_imm(Size::B8, Mem::base(SCRATCH, HEAP_WANTED), size as i32);
                    let entry = self.libcall_entry(Libcall::MakeRoom);
                    self.asm.call_mem(entry);
                    self.asm.test(Width::W32, SCRATCH, SCRATCH);
                    self.asm.jcc(Cond::Equal, back);
                    self.raise();
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
                Cold::TailToOther { label, stack, position } => {
                    self.show_more(here, position);
                    self.asm.bind(label);
                    self.jump_to_other(stack, saved);
                }
                Cold::Handler { catch: (region, index), moves, target, position } => {
                    self.show_more(here, position);
                    self.try_regions.set_handler(region, index, here);
                    self.apply(moves);
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

    /// Leaves the activation for the reason that the runtime has recorded.
    fn raise(&mut self) {
        let entry = self.libcall_entry(Libcall::Raise);
        self.asm.call_mem(entry);
        self.asm.ud2(TrapCode::Unreachable as u8);
    }

    pub(super) fn emit_constants(&mut self) {
        if !self.cold.constants.is_empty() {
            self.show_more(self.asm.offset(), Position::DATA);
        }
        for Constant { bits, size, label } in std::mem::take(&mut self.cold.constants) {
            while !self.asm.offset().is_multiple_of(size) {
                self.asm.bytes(&[0]);
            }
            self.asm.bind(label);
            self.asm.bytes(&bits.to_le_bytes()[..size as usize]);
        }
    }
}
