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
    Code, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register, UsedRegister,
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
    /// For each instruction, whether it is the target of a branch of the function.
    targets: Vec<bool>,
    effects: Effects,
    /// The effects of one instruction.
    own: Vec<Effect>,
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
            targets: Vec::new(),
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
        self.find_targets(instructions);
        let has_table = has_table(instructions);
        let looks: Vec<Look> =
            sites.clone().map(|site| self.look_back(instructions, site, has_table, constants)).collect();
        if looks.iter().all(|look| matches!(look, Look::Constant(_))) {
            return looks.into_iter().map(Look::constant).collect();
        }
        self.find_effects(instructions, constants);
        let unique = unique_definitions(instructions, &self.effects);
        let with_unique = |look: &Look| match look {
            Look::Constant(value) => Some(*value),
            Look::Stopped(Register::RDI) | Look::Unknown => None,
            Look::Stopped(register) => number(*register).and_then(|register| unique[register]),
        };
        let mut functions: Vec<Option<usize>> = looks.iter().map(with_unique).collect();
        if functions.contains(&None) {
            let sites: Vec<usize> = sites.collect();
            let at_sites = propagate(instructions, &self.targets, &self.effects, &sites, has_table);
            for (function, propagated) in functions.iter_mut().zip(at_sites) {
                *function = function.or(propagated);
            }
        }
        functions
    }

    fn find_targets(&mut self, instructions: &[Instruction]) {
        self.targets.clear();
        self.targets.resize(instructions.len(), false);
        for instruction in instructions {
            if let Some(target) = target(instructions, instruction) {
                self.targets[target] = true;
            }
        }
    }

    /// Step 1: the backward search.
    fn look_back(
        &mut self,
        instructions: &[Instruction],
        site: usize,
        has_table: bool,
        constants: &[Range<usize>],
    ) -> Look {
        let mut wanted = Register::RDI;
        let mut at = site;
        loop {
            let Some(before) = at.checked_sub(1).filter(|_| !self.targets[at]) else {
                return Look::Stopped(wanted);
            };
            let instruction = &instructions[before];
            if !falls_through(instruction) || has_table && ends_block(instruction) {
                return Look::Stopped(wanted);
            }
            if may_define(instruction, wanted) {
                let mut own = std::mem::take(&mut self.own);
                own.clear();
                self.effects_of(instruction, constants, &mut own);
                let effect = own.iter().rev().find(|effect| effect.register() == wanted);
                match effect {
                    Some(Effect::Constant(_, value)) => return Look::Constant(*value),
                    Some(Effect::Copy(_, from)) => wanted = *from,
                    Some(Effect::Unknown(_)) => return Look::Unknown,
                    None => {}
                }
                self.own = own;
            }
            at = before;
        }
    }

    fn find_effects(&mut self, instructions: &[Instruction], constants: &[Range<usize>]) {
        let mut effects = std::mem::take(&mut self.effects);
        effects.all.clear();
        effects.ends.clear();
        for instruction in instructions {
            self.effects_of(instruction, constants, &mut effects.all);
            effects.ends.push(effects.all.len() as u32);
        }
        self.effects = effects;
    }

    fn effects_of(
        &mut self,
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
            Writes::Other => {}
        }
        let writes = |used: &&UsedRegister| {
            matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        let info = self.info.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        let used = info.used_registers().iter().filter(writes);
        effects.extend(
            used.map(|used| used.register().full_register())
                .filter(|register| register.is_gpr64())
                .map(Effect::Unknown),
        );
        if is_call(instruction) {
            effects.extend(CALLER_SAVED.map(Effect::Unknown));
        }
    }
}

impl Look {
    fn constant(self) -> Option<usize> {
        match self {
            Self::Constant(value) => Some(value),
            Self::Stopped(_) | Self::Unknown => None,
        }
    }
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

fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// The registers that an instruction writes, besides the stack pointer. Known for the most frequent
/// instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// None.
    Nothing,
    /// Its first operand, if that is a register.
    First,
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
        | Mnemonic::Sar => Writes::First,
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Nop | Mnemonic::Endbr64 => {
            Writes::Nothing
        }
        _ => match instruction.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => Writes::Nothing,
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

/// The target of a direct branch, if it is an instruction of the function.
fn target(instructions: &[Instruction], branch: &Instruction) -> Option<usize> {
    match branch.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            instructions.binary_search_by_key(&branch.near_branch_target(), Instruction::ip).ok()
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

/// Whether there is a jump through a table, which stays inside the function, unlike a tail call
/// through a pointer.
fn has_table(instructions: &[Instruction]) -> bool {
    instructions.iter().any(|instruction| {
        instruction.flow_control() == FlowControl::IndirectBranch
            && instruction.memory_base() != Register::RIP
    })
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

/// Step 3: the constant in RDI before each site.
fn propagate(
    instructions: &[Instruction],
    targets: &[bool],
    effects: &Effects,
    sites: &[usize],
    has_table: bool,
) -> Vec<Option<usize>> {
    let rdi = number(Register::RDI).expect("a general-purpose register");
    // Blocks by their first instruction, ascending, with whether a branch, or the block before it,
    // leads there.
    let mut leaders: Vec<(usize, bool)> = Vec::new();
    for (index, is_target) in targets.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &instructions[before]);
        let is_after_branch = before.is_none_or(ends_block);
        if *is_target || is_after_branch {
            let is_reached = *is_target || before.is_some_and(falls_through);
            leaders.push((index, is_reached));
        }
    }
    let block_of = |leader: usize| leaders.binary_search_by_key(&leader, |(first, _)| *first);
    let mut entry: Vec<Option<State>> = vec![None; leaders.len()];
    let mut work: Vec<usize> = Vec::new();
    for (block, (leader, is_reached)) in leaders.iter().enumerate() {
        if has_table || *leader == 0 || !is_reached {
            entry[block] = Some(NOTHING);
            work.push(block);
        }
    }
    let mut at_sites = vec![None; sites.len()];
    while let Some(block) = work.pop() {
        let mut state = entry[block].expect("a block in the work list has an entry state");
        let mut flow = |to: usize, state: &State| {
            let Ok(to) = block_of(to) else { return };
            let merged = entry[to].map_or(*state, |old| {
                std::array::from_fn(|i| if old[i] == state[i] { old[i] } else { None })
            });
            if entry[to].replace(merged) != Some(merged) {
                work.push(to);
            }
        };
        let first = leaders[block].0;
        for (index, instruction) in instructions.iter().enumerate().skip(first) {
            if let Ok(site) = sites.binary_search(&index) {
                at_sites[site] = state[rdi];
            }
            apply(&mut state, effects.of(index));
            if let Some(target) = target(instructions, instruction) {
                flow(target, &state);
            }
            if !falls_through(instruction) {
                break;
            }
            let next = index + 1;
            if next < targets.len() && (targets[next] || ends_block(instruction)) {
                flow(next, &state);
                break;
            }
        }
    }
    at_sites
}

/// Step 2: the registers whose definitions in the function are all the same constant. Restoring a
/// register from the stack, as at the end of a function, does not count as a definition.
fn unique_definitions(instructions: &[Instruction], effects: &Effects) -> State {
    let mut unique = NOTHING;
    let mut spoiled = [false; REGISTERS];
    for (index, instruction) in instructions.iter().enumerate() {
        if matches!(instruction.mnemonic(), Mnemonic::Pop | Mnemonic::Leave) {
            continue;
        }
        for effect in effects.of(index) {
            let (register, value) = match effect {
                Effect::Constant(register, value) => (register, Some(*value)),
                Effect::Copy(register, _) | Effect::Unknown(register) => (register, None),
            };
            let Some(number) = number(*register) else { continue };
            if value.is_none() || unique[number].is_some_and(|old| Some(old) != value) {
                spoiled[number] = true;
            }
            unique[number] = value.or(unique[number]);
        }
    }
    std::array::from_fn(|i| unique[i].filter(|_| !spoiled[i]))
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
