//! Determines the function of a site: the constant in RDI at the site.
//!
//! The compiler sets RDI by `lea rdi, [rip+f]`, `mov edi, f`, or a load from the GOT, at the site
//! or long before it in another register. The analysis is a search for the constant, against the
//! control flow of one function:
//!
//! 1. For most sites, a search along straight-line code is sufficient. It starts at the site and
//!    goes backwards, as long as there is only one predecessor, to the last definition of RDI, or
//!    of the register from which it was copied.
//! 2. If the search ends before a definition, at a register other than RDI, and all definitions of
//!    this register in the function are the same constant, that constant is the result.
//! 3. Otherwise the search follows all predecessors. If all definitions that it finds are the same
//!    constant, that constant is the result. Nothing is known where an instruction has no
//!    predecessor (a landing pad, a case of a switch), nor at the start of any basic block if the
//!    function has a jump through a table.
//!
//! The functions of the remaining sites are determined by executing the site ([`super::resolve`]).
//! A wrong result must not occur: the time of one function would be attributed to another.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind, Register, UsedRegister,
};

const REGISTERS: usize = 16;

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

/// The analysis, with buffers that are reused.
pub(super) struct Analysis {
    info: InstructionInfoFactory,
    branches: Branches,
    /// The effects of one instruction.
    effects: Vec<Effect>,
    /// What the searches of step 3 have found in the current function: the constant in a register
    /// before an instruction, or `None` if there is none.
    found: HashMap<Place, Option<usize>>,
}

/// A register, before the instruction with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    at: usize,
    register: Register,
}

/// The branches of a function.
#[derive(Default)]
struct Branches {
    /// The first address of the function.
    start: u64,
    /// One bit per byte of the function: whether it is the target of a branch of the function.
    targets: Vec<u64>,
    /// Whether there is a jump through a table, which stays inside the function, unlike a tail call
    /// through a pointer.
    has_table: bool,
    /// The targets, and the indices of the branches to them, ascending. Only computed for step 3.
    sources: Vec<(u64, usize)>,
}

impl Branches {
    fn find(&mut self, instructions: &[Instruction]) {
        let (Some(first), Some(last)) = (instructions.first(), instructions.last()) else { return };
        self.start = first.ip();
        let length = last.next_ip() - self.start;
        self.targets.clear();
        self.targets.resize(length.div_ceil(64) as usize, 0);
        self.has_table = false;
        self.sources.clear();
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

    fn find_sources(&mut self, instructions: &[Instruction]) {
        let with_target = |(index, branch): (usize, &Instruction)| Some((target(branch)?, index));
        self.sources.extend(instructions.iter().enumerate().filter_map(with_target));
        self.sources.sort_unstable();
    }

    /// The branches to an instruction.
    fn to(&self, instruction: &Instruction) -> impl Iterator<Item = usize> {
        let address = instruction.ip();
        let first = self.sources.partition_point(|(target, _)| *target < address);
        self.sources[first..]
            .iter()
            .take_while(move |(target, _)| *target == address)
            .map(|(_, index)| *index)
    }
}

/// The result of a search along straight-line code.
enum Look {
    Constant(usize),
    /// Ended before this instruction, which has several predecessors, or none.
    Stopped(Place),
    /// Ended at a definition that is not a constant.
    Unknown,
}

impl Analysis {
    pub(super) fn new() -> Self {
        Self {
            info: InstructionInfoFactory::new(),
            branches: Branches::default(),
            effects: Vec::new(),
            found: HashMap::new(),
        }
    }

    /// For each of the `sites` (ascending indices into the instructions of one function), returns
    /// the constant in RDI before it. `constants` are ranges of memory with pointers that never
    /// change.
    pub(super) fn functions_of(
        &mut self,
        instructions: &[Instruction],
        sites: impl Iterator<Item = usize>,
        constants: &[Range<usize>],
    ) -> Vec<Option<usize>> {
        self.branches.find(instructions);
        self.found.clear();
        // Most sites that remain after step 1 have their constant in the same register.
        let mut unique: [Option<Option<usize>>; REGISTERS] = [None; REGISTERS];
        let function_of = |at| {
            let place = match self.look_back(instructions, Place { at, register: Register::RDI }, constants) {
                Look::Constant(value) => return Some(value),
                Look::Unknown => return None,
                Look::Stopped(place) => place,
            };
            let of_register = match number(place.register) {
                Some(number) if place.register != Register::RDI => *unique[number]
                    .get_or_insert_with(|| self.unique_definition(instructions, place.register, constants)),
                _ => None,
            };
            of_register.or_else(|| self.agreed(instructions, place, constants))
        };
        sites.map(function_of).collect()
    }

    /// Step 1: the search along straight-line code, from before an instruction.
    fn look_back(&mut self, instructions: &[Instruction], place: Place, constants: &[Range<usize>]) -> Look {
        match self.only_predecessor(instructions, place.at) {
            Some(before) => self.look_back_from(instructions, before, place.register, constants),
            None => Look::Stopped(place),
        }
    }

    /// The same search, from after an instruction.
    fn look_back_from(
        &mut self,
        instructions: &[Instruction],
        mut last: usize,
        mut register: Register,
        constants: &[Range<usize>],
    ) -> Look {
        loop {
            match self.last_effect(&instructions[last], register, constants) {
                Some(Effect::Constant(_, value)) => return Look::Constant(value),
                Some(Effect::Copy(_, from)) => register = from,
                Some(Effect::Unknown(_)) => return Look::Unknown,
                None => {}
            }
            match self.only_predecessor(instructions, last) {
                Some(before) => last = before,
                None => return Look::Stopped(Place { at: last, register }),
            }
        }
    }

    /// The instruction before this one, if every execution of this one follows one of that.
    fn only_predecessor(&self, instructions: &[Instruction], at: usize) -> Option<usize> {
        at.checked_sub(1).filter(|before| {
            !self.branches.lead_to(&instructions[at])
                && falls_through(&instructions[*before])
                && !(self.branches.has_table && ends_block(&instructions[*before]))
        })
    }

    /// The last effect of an instruction on a register.
    fn last_effect(
        &mut self,
        instruction: &Instruction,
        register: Register,
        constants: &[Range<usize>],
    ) -> Option<Effect> {
        if !may_define(instruction, register) {
            return None;
        }
        self.effects.clear();
        effects_of(&mut self.info, instruction, constants, &mut self.effects);
        self.effects.iter().rev().find(|effect| effect.register() == register).copied()
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
            if is_restored() {
                continue;
            }
            match self.last_effect(instruction, register, constants) {
                Some(Effect::Constant(_, value)) if unique.is_none_or(|unique| unique == value) => {
                    unique = Some(value);
                }
                Some(_) => return None,
                None => {}
            }
        }
        unique
    }

    /// Step 3: the constant on which all predecessors agree, at a place where step 1 has stopped.
    fn agreed(
        &mut self,
        instructions: &[Instruction],
        place: Place,
        constants: &[Range<usize>],
    ) -> Option<usize> {
        if self.branches.has_table {
            return None;
        }
        if self.branches.sources.is_empty() {
            self.branches.find_sources(instructions);
        }
        let mut reached = Vec::new();
        let agreed = self.search(instructions, place, constants, &mut reached);
        match agreed {
            // What holds for all definitions holds for those before each location on the way.
            Some(_) => self.found.extend(reached.into_iter().map(|place| (place, agreed))),
            None => _ = self.found.insert(place, None),
        }
        agreed
    }

    /// Visits all definitions before a location, until two differ. Adds the locations at which it
    /// has looked for predecessors to `reached`.
    fn search(
        &mut self,
        instructions: &[Instruction],
        place: Place,
        constants: &[Range<usize>],
        reached: &mut Vec<Place>,
    ) -> Option<usize> {
        let mut agreed = None;
        let mut agrees = |value: usize| *agreed.get_or_insert(value) == value;
        let mut seen = HashSet::from([place]);
        let mut work = vec![place];
        while let Some(place) = work.pop() {
            match self.found.get(&place) {
                Some(Some(value)) if agrees(*value) => continue,
                Some(_) => return None,
                None => reached.push(place),
            }
            let Place { at, register } = place;
            let before = at.checked_sub(1).filter(|before| falls_through(&instructions[*before]));
            let predecessors: Vec<usize> = self.branches.to(&instructions[at]).chain(before).collect();
            // Other code may lead to the start of the function.
            if predecessors.is_empty() || at == 0 {
                return None;
            }
            for predecessor in predecessors {
                match self.look_back_from(instructions, predecessor, register, constants) {
                    Look::Constant(value) if agrees(value) => {}
                    Look::Constant(_) | Look::Unknown => return None,
                    Look::Stopped(place) => work.extend(seen.insert(place).then_some(place)),
                }
            }
        }
        agreed
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

/// The registers that an instruction writes, except the stack pointer. Known for the most frequent
/// instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// None.
    Nothing,
    /// The first operand, if it is a register.
    First,
    /// The registers that the called function may change.
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

#[cfg(test)]
mod tests;
