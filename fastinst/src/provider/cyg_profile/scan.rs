//! Finds the calls to the instrumentation functions in an object's text.
//!
//! A cheap search over all bytes of a body determines whether it may contain such a call. Only then
//! is it decoded, from its start, so that a site is always a complete instruction. x86-64 compilers
//! do not place data in the text of a function.

use std::cell::RefCell;
use std::ops::Range;

use callpatch::Shape;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use super::arguments::Analysis;
use super::elf::View;
use super::outermost::address_of;
use crate::loaded::LoadedObject;
use crate::probe::ProbeKind;

/// A call to an instrumentation function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) address: usize,
    /// The body that contains the call.
    pub(super) body: Range<usize>,
    pub(super) kind: ProbeKind,
    pub(super) shape: Shape,
    /// The function to which the call belongs, if it can be determined from the code.
    pub(super) function: Option<usize>,
}

/// The results of scans.
#[derive(Debug, Default)]
pub(super) struct FoundSites {
    /// The sites, ascending in each body.
    pub(super) sites: Vec<Site>,
    /// The number of calls in forms that cannot be sites.
    pub(super) unsupported: usize,
    /// The branches out of their bodies: tail calls, and branches to parts of the same function
    /// elsewhere.
    pub(super) branches: Vec<Branch>,
    /// The addresses outside of their bodies to which bodies refer by direct calls and branches, or
    /// which they load into registers.
    pub(super) references: Vec<usize>,
}

/// A direct branch out of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub(super) target: usize,
    pub(super) is_conditional: bool,
}

/// A scanner of bodies, with buffers that are reused.
pub(super) struct Scanner<'a> {
    callees: Callees<'a>,
    instructions: Vec<Instruction>,
    sites: Vec<(usize, ProbeKind, Shape)>,
    analysis: Analysis,
}

/// The instrumentation functions, as called by an object's code.
struct Callees<'a> {
    view: &'a View,
    code: Text<'a>,
    /// The PLT entries that were found: two, or a few in an object that consists of several parts.
    stubs: RefCell<Vec<(usize, ProbeKind)>>,
}

/// An object's text without the breakpoints of a debugger.
struct Text<'a> {
    text: &'a [Range<usize>],
    /// The alias of each range.
    views: Vec<Option<*const u8>>,
}

/// The address of `range` in the writable alias, which contains no breakpoints. The range must be
/// text of a loaded object.
fn view(range: &Range<usize>) -> Option<*const u8> {
    // SAFETY: the loader keeps the object's text mapped while it is scanned (`while_loaded`).
    let place = unsafe { wordpatch::TextRef::resolve(range.start, range.len()) };
    Some(place.ok()?.writable_view()?.cast_const())
}

impl<'a> Text<'a> {
    fn of(text: &'a [Range<usize>]) -> Self {
        Self { text, views: text.iter().map(view).collect() }
    }

    /// The bytes of `range`, which must be text of the object. They must not be used after the view
    /// has been moved.
    fn bytes(&self, range: &Range<usize>) -> &[u8] {
        let holder = self.text.iter().position(|text| text.start <= range.start && range.end <= text.end);
        let known =
            holder.and_then(|at| Some(self.views[at]?.wrapping_add(range.start - self.text[at].start)));
        // A text that consists of several mappings has no single view.
        let start =
            known.or_else(|| view(range)).unwrap_or_else(|| std::ptr::with_exposed_provenance(range.start));
        // SAFETY: the loader keeps the object's text mapped and readable while it is scanned
        // (`while_loaded`), and the view has the same length. It is only read here, and we make no
        // stores to it before the reference is dropped.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }
}

/// The length of the longest form of a PLT entry up to its pointer.
const PLT_ENTRY: usize = 16;

impl Callees<'_> {
    /// The instrumentation function that a direct call or jump to `target` reaches, if `target` is
    /// a PLT entry: `[endbr64] [bnd] jmp *pointer(%rip)`.
    fn of_stub(&self, target: usize) -> Option<ProbeKind> {
        if let Some((_, kind)) = self.stubs.borrow().iter().find(|(stub, _)| *stub == target) {
            return Some(*kind);
        }
        let kind = self.decode_stub(target)?;
        self.stubs.borrow_mut().push((target, kind));
        Some(kind)
    }

    fn decode_stub(&self, target: usize) -> Option<ProbeKind> {
        let text = self.code.text.iter().find(|range| range.contains(&target))?;
        let entry = self.code.bytes(&(target..text.end.min(target + PLT_ENTRY)));
        // Most targets are not PLT entries, which this shows without decoding.
        let is_opcode = |bytes: &[u8; 2]| bytes == Shape::IndirectJump.opcode();
        entry[..entry.len().min(7)].array_windows().find(|bytes| is_opcode(bytes))?;
        let decoder = Decoder::with_ip(64, entry, target as u64, DecoderOptions::NONE);
        let jump = decoder.into_iter().find(|instruction| instruction.code() != Code::Endbr64)?;
        let is_jump = jump.code() == Code::Jmp_rm64 && jump.memory_base() == Register::RIP;
        is_jump.then(|| self.view.pointer(jump.memory_displacement64() as usize)).flatten()
    }

    /// The instrumentation function to which `instruction` transfers control, in any form.
    fn of(&self, instruction: &Instruction, body: &Range<usize>) -> Option<ProbeKind> {
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target() as usize;
                if body.contains(&target) { None } else { self.of_stub(target) }
            }
            FlowControl::IndirectCall | FlowControl::IndirectBranch if is_through_rip(instruction) => {
                self.view.pointer(instruction.memory_displacement64() as usize)
            }
            _ => None,
        }
    }

    /// Whether any four bytes of `body` are a displacement to an instrumentation function.
    fn may_be_called_in(&self, body: &Range<usize>) -> bool {
        let code = self.code.bytes(body);
        code.windows(5).enumerate().any(|(at, bytes)| {
            let operand = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
            let target = (body.start + at + 5).wrapping_add_signed(operand as isize);
            match bytes[0] {
                opcode if Shape::is_direct_opcode(opcode) => self.of_stub(target).is_some(),
                0x80..=0x8f => self.view.pointer(target).is_some() || self.of_stub(target).is_some(),
                // A call through a pointer, or a pointer loaded into a register for an indirect
                // call.
                _ => self.view.pointer(target).is_some(),
            }
        })
    }
}

fn is_through_rip(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory && instruction.memory_base() == Register::RIP
}

impl<'a> Scanner<'a> {
    pub(super) fn new(loaded: &'a LoadedObject, view: &'a View) -> Self {
        Self {
            callees: Callees { view, code: Text::of(&loaded.text), stubs: RefCell::default() },
            instructions: Vec::new(),
            sites: Vec::new(),
            analysis: Analysis::new(),
        }
    }

    /// Whether a body lies in the text and was not generated by the linker.
    pub(super) fn is_code(&self, body: &Range<usize>) -> bool {
        let Callees { view, code, .. } = &self.callees;
        code.text.iter().any(|text| text.start <= body.start && body.end <= text.end)
            && !view.linkage.iter().any(|section| section.contains(&body.start))
    }

    /// Whether a body may, in addition, contain a call to an instrumentation function.
    pub(super) fn is_of_interest(&self, body: &Range<usize>) -> bool {
        self.is_code(body) && self.callees.may_be_called_in(body)
    }

    /// Finds all sites in a body of interest.
    pub(super) fn scan(&mut self, body: &Range<usize>, found: &mut FoundSites) {
        let Self { callees, instructions, sites, analysis } = self;
        instructions.clear();
        sites.clear();
        let mut decoder =
            Decoder::with_ip(64, callees.code.bytes(body), body.start as u64, DecoderOptions::NONE);
        let (mut loads_pointer, mut is_valid) = (false, true);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            is_valid &= !instruction.is_invalid();
            if let Some(kind) = callees.of(&instruction, body) {
                match shape(&instruction) {
                    Some(shape) => sites.push((instructions.len(), kind, shape)),
                    None => found.unsupported += 1,
                }
            } else if instruction.code() == Code::Mov_r64_rm64 && instruction.memory_base() == Register::RIP {
                let pointer = instruction.memory_displacement64() as usize;
                loads_pointer |= callees.view.pointer(pointer).is_some();
            } else if let FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch =
                instruction.flow_control()
            {
                let target = instruction.near_branch_target() as usize;
                let is_conditional = instruction.flow_control() == FlowControl::ConditionalBranch;
                if !body.contains(&target) {
                    found.branches.push(Branch { target, is_conditional });
                    found.references.push(target);
                }
            } else if instruction.flow_control() == FlowControl::Call {
                found.references.push(instruction.near_branch_target() as usize);
            } else {
                found.references.extend(address_of(&instruction));
            }
            instructions.push(instruction);
        }
        found.unsupported += usize::from(loads_pointer);
        // Some bytes cannot be decoded: the instruction boundaries of this body are not certain.
        if !is_valid {
            found.unsupported += sites.len();
            return;
        }
        let functions = analysis.functions_of(
            instructions,
            sites.iter().map(|(index, ..)| *index),
            &callees.view.constants,
        );
        found.sites.extend(sites.iter().zip(functions).map(|((index, kind, shape), function)| Site {
            address: instructions[*index].ip() as usize,
            body: body.clone(),
            kind: *kind,
            shape: *shape,
            function,
        }));
    }
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn the_text_is_read_without_a_debuggers_breakpoints() {
        wordpatch::text::set_access(wordpatch::TextAccess::Private);
        const INT3: u8 = 0xcc;
        extern "C" fn never_executed() -> u32 {
            std::hint::black_box(42)
        }
        let address = never_executed as *const () as usize;
        let range = address..address + 1;
        let texts = [range.clone()];
        let text = Text::of(&texts);
        let written = text.bytes(&range)[0];
        assert_ne!(written, INT3);
        // Write like a debugger.
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(&[INT3], address as u64).unwrap();
        // SAFETY: text of the test, which is mapped and readable.
        let shown = unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
        assert_eq!((shown, text.bytes(&range)[0]), (INT3, written));
        memory.write_all_at(&[written], address as u64).unwrap();
    }
}
