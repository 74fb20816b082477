//! Closures that are called where a program traps, and the values of the frame that has trapped.
//!
//! # Values
//! A trap may occur at any machine instruction, which no site precedes. The locations of the values
//! before the WebAssembly instruction are found by compiling its function again. From there to the
//! trap, the code of the instruction may have overwritten registers, for operands or results of the
//! machine's own instructions. This code is decoded: a register that any of it writes has no
//! value. Unless the code has stored it to a slot before, a value that is nowhere else is reported
//! as not kept. Slots keep their values, since an instruction that may trap writes no local.
//!
//! Before an instruction calls a routine of the engine, it moves values out of the registers that
//! the call may change. If the routine fails, the values are where they are during the call.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};
use wasm_jit_codegen::{
    CompiledFunction, Located, Observer, Position, Positions, Reg, SiteFrame, State, callee_saved_slot,
};

use super::unwound::{Cause, Thrown};
use super::watchers::Watchers;
use crate::code::{CodeImage, ObserveError};

/// Number of watchers of all images: without any, nothing is examined.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any trap is reported to a watcher.
pub(crate) fn is_watched() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// The innermost frame of a program that has trapped, or that throws an exception without a
/// handler.
pub(crate) struct TrappedFrame<'a> {
    pub function: u32,
    /// The position of the instruction in the module.
    pub position: u32,
    pub located: Arc<Located>,
    /// The state of the frame.
    pub site: *mut SiteFrame,
    pub cause: Cause<Thrown<'a>>,
}

/// The watchers of an image.
pub(crate) type TrapWatchers = Watchers<dyn Fn(&TrappedFrame<'_>) + Send + Sync>;

/// No watchers yet.
pub(crate) fn watchers() -> TrapWatchers {
    Watchers::new(&WATCHERS)
}

/// The locations of values before the instruction at a position.
struct Before {
    positions: Positions,
    position: u32,
    located: Option<Located>,
    /// While its instruction calls routines of the engine: what all of the calls have in common.
    in_routines: Option<Located>,
}

impl Observer for Before {
    fn instruction(&mut self, position: Position, state: &State<'_>) {
        self.positions.instruction(position, state);
        if position.wasm == self.position {
            self.located = Some(state.located_unsettled());
        }
    }

    fn routine(&mut self, wasm: u32, state: &State<'_>) {
        if wasm == self.position {
            let located = state.located_unsettled();
            self.in_routines = Some(match self.in_routines.take() {
                Some(others) => others.common(&located),
                None => located,
            });
        }
    }

    fn moved(&mut self, from: u32, to: u32) {
        self.positions.moved(from, to);
    }

    fn more_code(&mut self, position: Position) {
        self.positions.more_code(position);
    }
}

impl CodeImage {
    /// The position of the instruction at an address, and the values of the frame that are known
    /// there. If a routine of the engine has failed, only callee-saved registers were captured.
    ///
    /// # Errors
    /// As [`CodeImage::observe`]; also if the address is not in the code of an instruction.
    pub(crate) fn trapped_values(
        &self,
        function: u32,
        pc: usize,
        in_routine: bool,
    ) -> Result<(u32, Arc<Located>), ObserveError> {
        let differs = || ObserveError::Differs { function };
        if self.stub_at(pc).is_some() {
            return Err(differs());
        }
        let position = self.position_at(pc, function)?.ok_or_else(differs)?;
        let mut before =
            Before { positions: Positions::default(), position, located: None, in_routines: None };
        let version = self.version_at(pc).map(|(_, version)| version);
        let (entry, (chunk, again)) = match version {
            Some(version) => {
                let again = self.compile_again(function, version.instrumentation(), &mut before)?;
                (version.at(version.entry), again)
            }
            None => {
                let entry = self.at(self.function(function).entry).addr();
                (entry, self.observe_code(function, &mut before)?)
            }
        };
        let is_kept = |reg: Reg| callee_saved_slot(reg).is_some();
        if in_routine && let Some(located) = before.in_routines {
            return Ok((position, Arc::new(located.at_trap(is_kept, |_| None))));
        }
        let located = before.located.ok_or_else(differs)?;
        let positions = before.positions.in_function(&again);
        let code = chunk.code.get(again.entry as usize..again.end as usize).ok_or_else(differs)?;
        let changes = changes(code, &ranges(&positions, position, &again), (pc - entry) as u32);
        let is_intact = |reg: Reg| (!in_routine || is_kept(reg)) && changes.written & 1 << reg.index() == 0;
        let stored = |reg: Reg| changes.stored.get(&(1 << reg.index())).copied();
        Ok((position, Arc::new(located.at_trap(is_intact, stored))))
    }
}

/// The code of an instruction, by offsets from the function's entry.
fn ranges(positions: &[Position], wasm: u32, function: &CompiledFunction) -> Vec<Range<u32>> {
    let end = function.end - function.entry;
    let ends = positions.iter().skip(1).map(|next| next.code).chain([end]);
    let all = positions.iter().zip(ends).filter(|(position, _)| position.wasm == wasm);
    all.map(|(position, end)| position.code..end).collect()
}

/// An instruction of a piece of code, and whether the next one may be executed after it.
type Decoded = (Instruction, bool);

/// What pieces of code have done to registers.
#[derive(Debug, Default, PartialEq)]
struct Changes {
    /// The registers that may have been written, as a set of bits.
    written: u32,
    /// The slots, by their offsets from `rbp`, to which registers were stored before they were
    /// written. The registers are given by their bits.
    stored: HashMap<u32, i32>,
}

/// What these pieces of code have done when a thread is about to execute the instruction at `pc` in
/// one of them: the effects of the instructions that lead to it.
fn changes(code: &[u8], ranges: &[Range<u32>], pc: u32) -> Changes {
    let decoded: Vec<Decoded> = ranges.iter().flat_map(|range| decode(code, range)).collect();
    let mut changes = Changes::default();
    let mut factory = InstructionInfoFactory::new();
    for ((instruction, _), leads) in decoded.iter().zip(leading(&decoded, pc)) {
        // An instruction that repeats itself has changed its registers when it traps.
        let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        let is_partial = is_repeated && instruction.ip() as u32 == pc;
        if !leads && !is_partial {
            continue;
        }
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            changes.written |= !callee_saved();
        }
        let info = factory.info(instruction);
        if let Some((reg, slot)) = stored(instruction, info.op0_access())
            && changes.written & reg == 0
        {
            changes.stored.insert(reg, slot);
        }
        for used in info.used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None) {
                changes.written |= bit(used.register());
            }
        }
    }
    changes
}

/// The bit of the register that an instruction stores, and the slot, if it does that.
fn stored(instruction: &Instruction, access: OpAccess) -> Option<(u32, i32)> {
    let is_store = instruction.op_count() == 2
        && access == OpAccess::Write
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register;
    let is_slot = instruction.memory_base() == Register::RBP && instruction.memory_index() == Register::None;
    let slot = instruction.memory_displacement64() as i32;
    (is_store && is_slot).then(|| (bit(instruction.op1_register()), slot))
}

/// The instructions of a piece of code. Within it, each one may be followed by the next.
fn decode(code: &[u8], range: &Range<u32>) -> Vec<Decoded> {
    let bytes = &code[range.start as usize..range.end as usize];
    let decoder = Decoder::with_ip(64, bytes, u64::from(range.start), DecoderOptions::NONE);
    let continues = |instruction: &Instruction| {
        let is_last = instruction.next_ip() as u32 >= range.end;
        let ends =
            matches!(instruction.flow_control(), FlowControl::Return | FlowControl::UnconditionalBranch);
        !(is_last && ends)
    };
    decoder.into_iter().map(|instruction| (instruction, continues(&instruction))).collect()
}

/// For each instruction, whether the one at `pc` may be executed after it.
fn leading(decoded: &[Decoded], pc: u32) -> Vec<bool> {
    let mut leading = vec![false; decoded.len()];
    let at = |to: u32| {
        let contains = |of: &Instruction| (of.ip() as u32..of.next_ip() as u32).contains(&to);
        decoded.iter().position(|(instruction, _)| contains(instruction))
    };
    let trapped = at(pc);
    // A branch back makes code after the trap lead to it.
    loop {
        let mut is_changed = false;
        for (index, (instruction, continues)) in decoded.iter().enumerate().rev() {
            let next = continues.then_some(instruction.next_ip() as u32);
            let mut nexts = [next, target(instruction)].into_iter().flatten();
            let leads = instruction.flow_control() == FlowControl::IndirectBranch
                || nexts.any(|to| at(to).is_some_and(|to| trapped == Some(to) || leading[to]));
            is_changed |= leads && !leading[index];
            leading[index] |= leads;
        }
        if !is_changed {
            return leading;
        }
    }
}

/// The target of a branch.
fn target(instruction: &Instruction) -> Option<u32> {
    match instruction.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            Some(instruction.near_branch_target() as u32)
        }
        _ => None,
    }
}

/// The bit of a register in a set.
fn bit(register: Register) -> u32 {
    let full = register.full_register();
    if full.is_gpr64() {
        1 << full.number()
    } else if full.is_vector_register() && full.number() < 16 {
        1 << (16 + full.number())
    } else {
        0
    }
}

/// The registers that calls preserve: `rbx`, `rsp`, `rbp` and `r12` to `r15`.
const fn callee_saved() -> u32 {
    1 << 3 | 1 << 4 | 1 << 5 | 0xf << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAX: u32 = 1;
    const RCX: u32 = 1 << 1;
    const RDX: u32 = 1 << 2;
    const RSI: u32 = 1 << 6;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one piece of code")]
    fn registers_are_stored_before_they_are_written() {
        #[track_caller]
        fn check(code: &[u8], pc: u32, expected: &[(u32, i32)]) {
            let stored = changes(code, &[0..code.len() as u32], pc).stored;
            assert_eq!(stored, expected.iter().copied().collect(), "{code:x?} at {pc}");
        }
        // mov [rbp-0x30], eax; mov eax, ecx; ud2.
        let code = [0x89, 0x45, 0xd0, 0x89, 0xc8, 0x0f, 0x0b];
        check(&code, 5, &[(RAX, -0x30)]);
        check(&code, 0, &[]);
        // mov eax, ecx; mov [rbp-0x30], eax; ud2: this is another value.
        check(&[0x89, 0xc8, 0x89, 0x45, 0xd0, 0x0f, 0x0b], 5, &[]);
        // add [rbp-0x30], eax; mov eax, [rbp-0x30]; mov [rax-0x30], ecx; mov [rbp+rax-0x30], ecx;
        // ud2.
        let others =
            [0x01, 0x45, 0xd0, 0x8b, 0x45, 0xd0, 0x89, 0x48, 0xd0, 0x89, 0x4c, 0x05, 0xd0, 0x0f, 0x0b];
        check(&others, 13, &[]);
        // movups [rbp-0x30], xmm1; ud2.
        check(&[0x0f, 0x11, 0x4d, 0xd0, 0x0f, 0x0b], 4, &[(1 << 17, -0x30)]);
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "most instructions have one piece of code")]
    fn registers_are_written_by_the_code_before_the_trap() {
        #[track_caller]
        fn check(code: &[u8], ranges: &[Range<u32>], pc: u32, expected: u32) {
            assert_eq!(changes(code, ranges, pc).written, expected, "{code:x?} at {pc}");
        }
        // mov eax, ecx; xor edx, edx; div ebx; mov ecx, eax.
        let division = [0x89, 0xc8, 0x31, 0xd2, 0xf7, 0xf3, 0x89, 0xc1];
        check(&division, &[0..8], 4, RAX | RDX);
        check(&division, &[0..8], 0, 0);
        // Its other piece of code: all of the first one may have been executed.
        let cold = [&division[..], &[0x0f, 0x0b]].concat();
        check(&cold, &[0..8, 8..10], 8, RAX | RCX | RDX);
        check(&cold, &[8..10], 8, 0);
        // cmp eax, ecx; jb to UD2; mov ecx, eax; ret; ud2.
        let branch = [0x39, 0xc8, 0x72, 0x03, 0x89, 0xc1, 0xc3, 0x0f, 0x0b];
        check(&branch, &[0..7, 7..9], 7, 0);
        // cmp eax, ecx; jb to UD2; mov ecx, eax; jb to a piece that continues with a `ret`; the
        // piece; ud2: what follows the first branch has not been executed.
        let others =
            [0x39, 0xc8, 0x72, 0x09, 0x89, 0xc1, 0x72, 0x01, 0xc3, 0x89, 0xc2, 0xeb, 0xfb, 0x0f, 0x0b];
        check(&others, &[0..9, 9..13, 13..15], 13, 0);
        // The piece leads to the trap: so does all that precedes it.
        let leads = [&others[..11], &[0xeb, 0x00, 0x0f, 0x0b]].concat();
        check(&leads, &[0..9, 9..13, 13..15], 13, RCX | RDX);
        // movups xmm1, xmm0; ud2.
        check(&[0x0f, 0x10, 0xc8, 0x0f, 0x0b], &[0..5], 3, 1 << 17);
        // div ebx; mov ecx, eax; jne to the division: the second time, `ecx` is changed.
        check(&[0xf7, 0xf3, 0x89, 0xc1, 0x75, 0xfa], &[0..6], 0, RAX | RCX | RDX);
        // div ebx; mov ecx, eax; jne to the division; ret; mov esi, eax; jmp to `mov ecx`: the last
        // piece leads to the division through the code after it.
        let back = [0xf7, 0xf3, 0x89, 0xc1, 0x75, 0xfa, 0xc3, 0x89, 0xc6, 0xeb, 0xf7];
        check(&back, &[0..7, 7..11], 0, RAX | RCX | RDX | RSI);
        // The piece before the branch back does so through a third one.
        let third = [0xf7, 0xf3, 0x89, 0xc1, 0x75, 0x05, 0xc3, 0x89, 0xc6, 0xeb, 0xf7, 0xeb, 0xf3];
        check(&third, &[0..7, 7..11, 11..13], 0, RAX | RCX | RDX | RSI);
        // call [rdi]; ud2: a call changes all registers but those that callees preserve; of these
        // it uses the stack pointer, which has no values.
        let rsp = 1 << 4;
        check(&[0xff, 0x17, 0x0f, 0x0b], &[0..4], 2, !callee_saved() | rsp);
    }
}
