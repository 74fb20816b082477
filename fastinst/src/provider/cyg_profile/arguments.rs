//! Determines the function of a site: the constant in RDI at the site.
//!
//! The compiler sets RDI by `lea rdi, [rip+f]`, `mov edi, f`, or a load from the GOT, at the site
//! or long before it in another register. The analysis is a constant propagation over the control
//! flow of one function, for the 16 registers:
//!
//! 1. For most sites, a backward search is sufficient. It starts at the site and goes against the
//!    control flow, as long as there is only one predecessor, to the last definition of RDI, or of
//!    the register from which it was copied.
//! 2. If the backward search ends with a register other than RDI, and all definitions of this
//!    register in the function are the same constant, that constant is the result.
//! 3. Otherwise the function is divided into basic blocks. The state at the start of a block is
//!    what its predecessors agree on. Nothing is known at the start of a block that is not reached
//!    from other blocks of the function (a landing pad, a case of a switch), nor at the start of
//!    any block if the function has a jump through a table.
//!
//! The functions of the remaining sites are determined by executing the site ([`super::resolve`]).
//! A wrong result must not occur: the time of one function would be attributed to another.

use std::ops::Range;

use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind, Register, UsedRegister,
};

const REGISTERS: usize = 16;

/// The constants in the registers, as far as they are known.
type State = [Option<usize>; REGISTERS];

const NOTHING: State = [None; REGISTERS];

/// Registers that a call may change (System V): RAX, RCX, RDX, RSI, RDI, R8 to R11.
const CALLER_SAVED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// The effect of an instruction on a register.
#[derive(Clone, Copy)]
enum Effect {
    Constant(Register, usize),
    Copy(Register, Register),
    Unknown(Register),
}

/// The effects of all instructions of a function.
#[derive(Default)]
struct Effects {
    all: Vec<Effect>,
    /// The end of the effects of each instruction.
    ends: Vec<u32>,
}

impl Effects {
    fn of(&self, instruction: usize) -> &[Effect] {
        let start = instruction.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.all[start..self.ends[instruction] as usize]
    }
}

/// The analysis, with buffers that are reused.
pub(super) struct Analysis {
    info: InstructionInfoFactory,
    branches: Branches,
    effects: Effects,
    /// The effects of one instruction.
    own: Vec<Effect>,
}

/// The branches of a function.
#[derive(Default)]
struct Branches {
    /// Its first address.
    start: u64,
    /// A bit for each of its bytes, whether it is the target of a branch of the function.
    targets: Vec<u64>,
    /// Whether there is a jump through a table, which stays inside the function, unlike a tail call
    /// through a pointer.
    has_table: bool,
}

impl Branches {
    fn find(&mut self, instructions: &[Instruction]) {
        let (Some(first), Some(last)) = (instructions.first(), instructions.last()) else { return };
        self.start = first.ip();
        let length = last.next_ip() - self.start;
        self.targets.clear();
        self.targets.resize(length.div_ceil(64) as usize, 0);
        self.has_table = false;
        for instruction in instructions {
            match instruction.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    let offset = instruction.near_branch_target().wrapping_sub(self.start);
                    if offset < length {
                        self.targets[offset as usize / 64] |= 1 << (offset % 64);
                    }
                }
                FlowControl::IndirectBranch => {
                    self.has_table |= instruction.memory_base() != Register::RIP;
                }
                _ => {}
            }
        }
    }

    fn lead_to(&self, instruction: &Instruction) -> bool {
        let offset = instruction.ip() - self.start;
        self.targets[offset as usize / 64] >> (offset % 64) & 1 != 0
    }
}

/// The result of a backward search.
enum Look {
    Constant(usize),
    /// Ended where there is more than one predecessor, or none, with the value in this register.
    Stopped(Register),
    /// Ended at a definition that is not a constant.
    Unknown,
}

impl Analysis {
    pub(super) fn new() -> Self {
        Self {
            info: InstructionInfoFactory::new(),
            branches: Branches::default(),
            effects: Effects::default(),
            own: Vec::new(),
        }
    }

    /// For each of the `sites` (ascending indices into the instructions of one function), the
    /// constant in RDI before it. `constants` are ranges of memory with pointers that never change.
    pub(super) fn functions_of(
        &mut self,
        instructions: &[Instruction],
        sites: impl Iterator<Item = usize> + Clone,
        constants: &[Range<usize>],
    ) -> Vec<Option<usize>> {
        self.branches.find(instructions);
        let looks: Vec<Look> =
            sites.clone().map(|site| self.look_back(instructions, site, constants)).collect();
        let mut functions: Vec<Option<usize>> = Vec::with_capacity(looks.len());
        // Most sites that remain have their constant in the same register.
        let mut unique: [Option<Option<usize>>; REGISTERS] = [None; REGISTERS];
        for look in looks {
            functions.push(match look {
                Look::Constant(value) => Some(value),
                Look::Stopped(Register::RDI) | Look::Unknown => None,
                Look::Stopped(register) => number(register).and_then(|number| {
                    *unique[number]
                        .get_or_insert_with(|| self.unique_definition(instructions, register, constants))
                }),
            });
        }
        if functions.contains(&None) {
            self.find_effects(instructions, constants);
            let sites: Vec<usize> = sites.collect();
            let at_sites = propagate(instructions, &self.branches, &self.effects, &sites);
            for (function, propagated) in functions.iter_mut().zip(at_sites) {
                *function = function.or(propagated);
            }
        }
        functions
    }

    /// Step 1: the backward search.
    fn look_back(&mut self, instructions: &[Instruction], site: usize, constants: &[Range<usize>]) -> Look {
        let mut wanted = Register::RDI;
        let mut at = site;
        loop {
            let Some(before) = at.checked_sub(1).filter(|_| !self.branches.lead_to(&instructions[at])) else {
                return Look::Stopped(wanted);
            };
            let instruction = &instructions[before];
            if !falls_through(instruction) || self.branches.has_table && ends_block(instruction) {
                return Look::Stopped(wanted);
            }
            if may_define(instruction, wanted) {
                self.own.clear();
                effects_of(&mut self.info, instruction, constants, &mut self.own);
                let effect = self.own.iter().rev().find(|effect| effect.register() == wanted);
                match effect {
                    Some(Effect::Constant(_, value)) => return Look::Constant(*value),
                    Some(Effect::Copy(_, from)) => wanted = *from,
                    Some(Effect::Unknown(_)) => return Look::Unknown,
                    None => {}
                }
            }
            at = before;
        }
    }

    /// Step 2: the constant that all definitions of a register in the function are. Restoring it
    /// from the stack, as at the end of a function, does not count as a definition.
    fn unique_definition(
        &mut self,
        instructions: &[Instruction],
        register: Register,
        constants: &[Range<usize>],
    ) -> Option<usize> {
        let mut unique = None;
        for instruction in instructions {
            let is_restored = || matches!(instruction.mnemonic(), Mnemonic::Pop | Mnemonic::Leave);
            if !may_define(instruction, register) || is_restored() {
                continue;
            }
            self.own.clear();
            effects_of(&mut self.info, instruction, constants, &mut self.own);
            for effect in self.own.iter().filter(|effect| effect.register() == register) {
                match effect {
                    Effect::Constant(_, value) if unique.is_none_or(|unique| unique == *value) => {
                        unique = Some(*value);
                    }
                    _ => return None,
                }
            }
        }
        unique
    }

    fn find_effects(&mut self, instructions: &[Instruction], constants: &[Range<usize>]) {
        let Effects { all, ends } = &mut self.effects;
        all.clear();
        ends.clear();
        for instruction in instructions {
            effects_of(&mut self.info, instruction, constants, all);
            ends.push(all.len() as u32);
        }
    }
}

/// Appends the effects of an instruction.
fn effects_of(
    info: &mut InstructionInfoFactory,
    instruction: &Instruction,
    constants: &[Range<usize>],
    effects: &mut Vec<Effect>,
) {
    if let Some(effect) = definition(instruction, constants) {
        effects.push(effect);
        return;
    }
    match writes(instruction) {
        Writes::Nothing => return,
        Writes::First => {
            if instruction.op0_kind() == OpKind::Register {
                let register = instruction.op0_register().full_register();
                effects.extend(register.is_gpr64().then_some(Effect::Unknown(register)));
            }
            return;
        }
        Writes::Called => {
            effects.extend(CALLER_SAVED.map(Effect::Unknown));
            return;
        }
        Writes::Other => {}
    }
    let writes = |used: &&UsedRegister| {
        matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    let info = info.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    let used = info.used_registers().iter().filter(writes);
    effects.extend(
        used.map(|used| used.register().full_register())
            .filter(|register| register.is_gpr64())
            .map(Effect::Unknown),
    );
}

impl Effect {
    fn register(&self) -> Register {
        match self {
            Self::Constant(register, _) | Self::Copy(register, _) | Self::Unknown(register) => *register,
        }
    }
}

fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

/// The registers that an instruction writes, besides the stack pointer. Known for the most frequent
/// instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// None.
    Nothing,
    /// Its first operand, if that is a register.
    First,
    /// Those that the called function may change.
    Called,
    /// Must be looked up.
    Other,
}

fn writes(instruction: &Instruction) -> Writes {
    match instruction.mnemonic() {
        Mnemonic::Mov
        | Mnemonic::Lea
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Shl
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::Inc
        | Mnemonic::Dec
        | Mnemonic::Neg
        | Mnemonic::Not
        | Mnemonic::Movd
        | Mnemonic::Movq
        | Mnemonic::Movss
        | Mnemonic::Movaps
        | Mnemonic::Movups
        | Mnemonic::Movdqa
        | Mnemonic::Movdqu
        | Mnemonic::Pxor => Writes::First,
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Nop | Mnemonic::Endbr64 => {
            Writes::Nothing
        }
        // They count in RCX.
        Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => Writes::Other,
        _ => match instruction.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => Writes::Nothing,
            FlowControl::Call | FlowControl::IndirectCall => Writes::Called,
            // `setcc`, `cmovcc`.
            _ if instruction.condition_code() != ConditionCode::None && instruction.op_count() <= 2 => {
                Writes::First
            }
            _ => Writes::Other,
        },
    }
}

/// Whether `instruction` may define `register`, so that its effects must be determined.
fn may_define(instruction: &Instruction, register: Register) -> bool {
    let is_first = || {
        instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == register
    };
    match writes(instruction) {
        Writes::Nothing => false,
        Writes::First => is_first(),
        Writes::Called => CALLER_SAVED.contains(&register),
        Writes::Other => true,
    }
}

/// The definition of a register by a constant or a copy, if that is the only effect of
/// `instruction`.
fn definition(instruction: &Instruction, constants: &[Range<usize>]) -> Option<Effect> {
    if instruction.op_count() != 2 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let to = instruction.op0_register();
    let through_rip = instruction.memory_base() == Register::RIP;
    let address = instruction.memory_displacement64() as usize;
    let effect = match instruction.code() {
        Code::Lea_r64_m if through_rip => Effect::Constant(to, address),
        Code::Mov_r32_imm32 | Code::Mov_r64_imm64 | Code::Mov_rm64_imm32 => {
            Effect::Constant(to.full_register(), instruction.immediate(1) as usize)
        }
        Code::Mov_r64_rm64 if instruction.op1_kind() == OpKind::Memory && through_rip => {
            if !constants.iter().any(|range| range.contains(&address)) {
                return None;
            }
            let pointer = std::ptr::with_exposed_provenance::<usize>(address);
            // SAFETY: the GOT of a loaded object, which the loader has filled in before any code of
            // the object runs.
            Effect::Constant(to, unsafe { pointer.read_unaligned() })
        }
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if instruction.op1_kind() == OpKind::Register => {
            Effect::Copy(to, instruction.op1_register())
        }
        _ => return None,
    };
    Some(effect)
}

/// The target of a direct branch.
fn target(branch: &Instruction) -> Option<u64> {
    match branch.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            Some(branch.near_branch_target())
        }
        _ => None,
    }
}

fn falls_through(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call | FlowControl::IndirectCall
    )
}

fn ends_block(instruction: &Instruction) -> bool {
    !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall)
}

fn apply(state: &mut State, effects: &[Effect]) {
    for effect in effects {
        match effect {
            Effect::Constant(to, value) => set(state, *to, Some(*value)),
            Effect::Copy(to, from) => set(state, *to, number(*from).and_then(|from| state[from])),
            Effect::Unknown(to) => set(state, *to, None),
        }
    }
}

fn set(state: &mut State, register: Register, value: Option<usize>) {
    if let Some(number) = number(register) {
        state[number] = value;
    }
}

/// A basic block.
struct Block {
    /// The address of its first instruction.
    start: u64,
    /// The index of its first instruction.
    first: usize,
    /// What is known at its start; `None` if no way to it was followed yet.
    entry: Option<State>,
}

/// The blocks of a function, ascending, and those of them at which nothing is known.
fn blocks(instructions: &[Instruction], branches: &Branches) -> (Vec<Block>, Vec<usize>) {
    let (mut blocks, mut unknown) = (Vec::new(), Vec::new());
    let mut before: Option<&Instruction> = None;
    for (first, instruction) in instructions.iter().enumerate() {
        let is_target = branches.lead_to(instruction);
        if is_target || before.is_none_or(ends_block) {
            // A branch, or the block before it, leads there.
            let is_reached = is_target || before.is_some_and(falls_through);
            let is_unknown = branches.has_table || first == 0 || !is_reached;
            if is_unknown {
                unknown.push(blocks.len());
            }
            blocks.push(Block { start: instruction.ip(), first, entry: is_unknown.then_some(NOTHING) });
        }
        before = Some(instruction);
    }
    (blocks, unknown)
}

/// Step 3: the constant in RDI before each site.
fn propagate(
    instructions: &[Instruction],
    branches: &Branches,
    effects: &Effects,
    sites: &[usize],
) -> Vec<Option<usize>> {
    let rdi = number(Register::RDI).expect("a general-purpose register");
    let (mut blocks, mut work) = blocks(instructions, branches);
    let mut at_sites = vec![None; sites.len()];
    while let Some(number) = work.pop() {
        let block = &blocks[number];
        let mut state = block.entry.expect("a block in the work list has an entry state");
        let end = blocks.get(number + 1).map_or(instructions.len(), |next| next.first);
        let mut site = sites.partition_point(|site| *site < block.first);
        for index in block.first..end {
            if sites.get(site) == Some(&index) {
                at_sites[site] = state[rdi];
                site += 1;
            }
            apply(&mut state, effects.of(index));
        }
        let last = &instructions[end - 1];
        let target = target(last);
        let target = target.and_then(|target| blocks.binary_search_by_key(&target, |block| block.start).ok());
        let next = (number + 1 < blocks.len() && falls_through(last)).then_some(number + 1);
        for to in [target, next].into_iter().flatten() {
            let entry = &mut blocks[to].entry;
            let merged = entry
                .map_or(state, |old| std::array::from_fn(|i| if old[i] == state[i] { old[i] } else { None }));
            if entry.replace(merged) != Some(merged) {
                work.push(to);
            }
        }
    }
    at_sites
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    /// The address of one function; the other one is at 0x40_2000.
    const F: usize = 0x40_1000;

    /// Checks the constants in RDI at the instructions `ff d0` (calls through RAX represent sites).
    fn check(code: &[&[u8]], expected: &[Option<usize>]) {
        let code = code.concat();
        let instructions: Vec<_> =
            Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        assert!(instructions.iter().all(|instruction| !instruction.is_invalid()));
        let sites: Vec<_> =
            (0..instructions.len()).filter(|i| instructions[*i].op0_register() == Register::RAX).collect();
        assert_eq!(Analysis::new().functions_of(&instructions, sites.iter().copied(), &[]), expected);
    }

    const MOV_EDI_F: &[u8] = &[0xbf, 0x00, 0x10, 0x40, 0x00];
    const MOV_EDI_G: &[u8] = &[0xbf, 0x00, 0x20, 0x40, 0x00];
    const MOV_EBX_F: &[u8] = &[0xbb, 0x00, 0x10, 0x40, 0x00];
    const MOV_EBX_G: &[u8] = &[0xbb, 0x00, 0x20, 0x40, 0x00];
    const MOV_RDI_RBX: &[u8] = &[0x48, 0x89, 0xdf];
    const SITE: &[u8] = &[0xff, 0xd0];
    const JNE_OVER_5: &[u8] = &[0x75, 0x05];
    const POP_RBX: &[u8] = &[0x5b];
    const RET: &[u8] = &[0xc3];

    #[test]
    fn a_constant_is_set_at_the_site_or_kept_in_a_register() {
        check(&[MOV_EDI_F, SITE], &[Some(F)]);
        check(&[MOV_EDI_F, SITE, SITE], &[Some(F), None]);
        check(&[MOV_EBX_F, MOV_RDI_RBX, SITE, MOV_RDI_RBX, SITE, POP_RBX, RET], &[Some(F), Some(F)]);
    }

    #[test]
    fn paths_that_disagree_give_no_constant() {
        check(&[MOV_EBX_F, JNE_OVER_5, MOV_EBX_G, MOV_RDI_RBX, SITE], &[None]);
        check(&[MOV_EBX_F, JNE_OVER_5, MOV_EBX_F, MOV_RDI_RBX, SITE], &[Some(F)]);
        check(&[MOV_EDI_G, JNE_OVER_5, MOV_EDI_F, SITE], &[None]);
    }

    #[test]
    fn at_a_landing_pad_only_registers_with_a_unique_value_are_known() {
        check(&[MOV_EBX_F, RET, MOV_RDI_RBX, SITE], &[Some(F)]);
        // Restored at the end of another path.
        check(&[MOV_EBX_F, POP_RBX, RET, MOV_RDI_RBX, SITE], &[Some(F)]);
        check(&[MOV_EBX_F, RET, MOV_EBX_G, RET, MOV_RDI_RBX, SITE], &[None]);
        check(&[MOV_EDI_F, RET, SITE], &[None]);
    }
}
