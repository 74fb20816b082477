//! Finding the calls of the instrumentation functions in an object's text.
//!
//! A cheap search over all bytes tells which functions may hold such a call; only those are decoded, from their start, so
//! that a site is always a whole instruction. x86-64 compilers keep data out of the text of a function.

use std::collections::HashMap;
use std::ops::Range;

use callpatch::Shape;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use super::arguments;
use super::elf::ElfView;
use super::loaded::LoadedObject;
use crate::probe::ProbeType;

/// A call of an instrumentation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) address: usize,
    pub(super) kind: ProbeType,
    pub(super) shape: Shape,
    /// The function it is called for, where the code tells.
    pub(super) function: Option<usize>,
}

/// What a scan has found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// In ascending order.
    pub(super) sites: Vec<Site>,
    /// How many calls there are in forms that are no sites.
    pub(super) unsupported: usize,
}

/// The instrumentation functions as an object's code reaches them.
struct Callees<'a> {
    view: &'a ElfView,
    text: &'a [Range<usize>],
    /// What direct targets were found to be.
    stubs: HashMap<usize, Option<ProbeType>>,
}

/// The bytes of `range`, which must be text of a loaded object.
fn code(range: &Range<usize>) -> &'static [u8] {
    // SAFETY: the loader keeps the object's text mapped, under discovery's right.
    let place = unsafe { wordpatch::TextRef::resolve(range.start, range.len()) };
    // In the writable view, there are no breakpoints of a debugger.
    let view = place.ok().and_then(|place| place.writable_view());
    let start = view.map_or(std::ptr::with_exposed_provenance(range.start), |view| view.cast_const());
    // SAFETY: as above, and readable; it is only read here, while no store to it is made by us. The reference is dropped before
    // that.
    unsafe { std::slice::from_raw_parts(start, range.len()) }
}

impl Callees<'_> {
    /// What a direct call or jump to `target` ends up in: a PLT entry is `[endbr64] [bnd] jmp *pointer(%rip)`.
    fn of_stub(&mut self, target: usize) -> Option<ProbeType> {
        let Self { view, text, stubs } = self;
        *stubs.entry(target).or_insert_with(|| {
            let text = text.iter().find(|range| range.contains(&target))?;
            let entry = code(&(target..text.end.min(target + 32)));
            let decoder = Decoder::with_ip(64, entry, target as u64, DecoderOptions::NONE);
            let jump = decoder.into_iter().find(|instruction| instruction.code() != Code::Endbr64)?;
            let is_jump = jump.code() == Code::Jmp_rm64 && jump.memory_base() == Register::RIP;
            is_jump.then(|| view.pointers.get(&(jump.memory_displacement64() as usize)).copied()).flatten()
        })
    }

    /// Whether `instruction` goes to an instrumentation function, in whatever form.
    fn of(&mut self, instruction: &Instruction) -> Option<ProbeType> {
        let through_rip =
            instruction.op0_kind() == OpKind::Memory && instruction.memory_base() == Register::RIP;
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                self.of_stub(instruction.near_branch_target() as usize)
            }
            FlowControl::IndirectCall | FlowControl::IndirectBranch if through_rip => {
                self.view.pointers.get(&(instruction.memory_displacement64() as usize)).copied()
            }
            _ => None,
        }
    }

    /// Whether any four bytes of `function` are a displacement to an instrumentation function.
    fn may_be_called_in(&mut self, function: &Range<usize>) -> bool {
        let code = code(function);
        (1..code.len().saturating_sub(3)).any(|at| {
            let operand = i32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
            let target = (function.start + at + 4).wrapping_add_signed(operand as isize);
            match code[at - 1] {
                opcode if Shape::is_direct_opcode(opcode) => self.of_stub(target).is_some(),
                0x80..=0x8f | 0x15 | 0x25 => {
                    self.view.pointers.contains_key(&target) || self.of_stub(target).is_some()
                }
                // A pointer loaded into a register for an indirect call.
                _ => self.view.pointers.contains_key(&target),
            }
        })
    }
}

/// Finds every site in the object's functions.
pub(super) fn scan(loaded: &LoadedObject, view: &ElfView) -> Found {
    let mut callees = Callees { view, text: &loaded.text, stubs: HashMap::new() };
    let mut found = Found::default();
    let mut end_of_last = 0;
    for function in &view.functions {
        let inside = loaded.text.iter().any(|text| text.start <= function.start && function.end <= text.end);
        // Overlapping entries would decode the same site twice.
        if !inside || function.start < end_of_last || !callees.may_be_called_in(function) {
            continue;
        }
        end_of_last = function.end;
        scan_function(function, &mut callees, &mut found);
    }
    found
}

fn scan_function(function: &Range<usize>, callees: &mut Callees<'_>, found: &mut Found) {
    let decoder = Decoder::with_ip(64, code(function), function.start as u64, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = decoder.into_iter().collect();
    let mut sites = Vec::new();
    let mut loads_pointer = false;
    for (index, instruction) in instructions.iter().enumerate() {
        if let Some(kind) = callees.of(instruction) {
            match shape(instruction) {
                Some(shape) => sites.push((index, kind, shape)),
                None => found.unsupported += 1,
            }
        } else {
            loads_pointer |= instruction.code() == Code::Mov_r64_rm64
                && instruction.memory_base() == Register::RIP
                && callees.view.pointers.contains_key(&(instruction.memory_displacement64() as usize));
        }
    }
    found.unsupported += usize::from(loads_pointer);
    // Bytes that do not decode: the instruction boundaries of this function are not known for certain.
    if instructions.iter().any(Instruction::is_invalid) {
        found.unsupported += sites.len();
        return;
    }
    let indices: Vec<_> = sites.iter().map(|(index, ..)| *index).collect();
    let functions = arguments::functions_of(&instructions, &indices, &callees.view.constants);
    found.sites.extend(sites.into_iter().zip(functions).map(|((index, kind, shape), function)| Site {
        address: instructions[index].ip() as usize,
        kind,
        shape,
        function,
    }));
}

fn shape(instruction: &Instruction) -> Option<Shape> {
    let shape = match instruction.code() {
        Code::Call_rel32_64 => Shape::Call,
        Code::Jmp_rel32_64 => Shape::Jump,
        Code::Call_rm64 => Shape::IndirectCall,
        Code::Jmp_rm64 => Shape::IndirectJump,
        _ => return None,
    };
    (instruction.len() == shape.len()).then_some(shape)
}
