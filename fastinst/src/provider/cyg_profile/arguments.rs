//! Which function a site belongs to: the constant in RDI when the site is reached.
//!
//! The compiler sets RDI up by `lea rdi, [rip+f]`, `mov edi, f`, or a load from the GOT, at the site or long before it in
//! a register that it keeps. This is constant propagation over the control flow of one function, for the 16 registers:
//!
//! 1. The function is cut into basic blocks.
//! 2. Each block starts with what its predecessors agree on. A block that nothing in the function jumps to (a landing pad, a
//!    case of a switch) starts with nothing; so does every block, if a jump through a table could lead there.
//! 3. Where that leaves RDI open, a register whose every definition in the function is the same constant counts as it.
//!
//! What is still open is found out by executing the site ([`super::resolve`]). A wrong answer is not an option: it
//! would give one function's time to another.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    UsedRegister,
};

const REGISTERS: usize = 16;

/// The constant in each register, where there is one.
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

/// What an instruction does to a register.
enum Effect {
    Constant(Register, usize),
    Copy(Register, Register),
    Unknown(Register),
}

struct Analysis<'a> {
    constants: &'a [Range<usize>],
    info: InstructionInfoFactory,
}

/// For each of the `sites` (indices into the instructions of one function), the constant in RDI before it. `constants` are
/// ranges of memory that hold pointers which never change.
pub(super) fn functions_of(
    instructions: &[Instruction],
    sites: &[usize],
    constants: &[Range<usize>],
) -> Vec<Option<usize>> {
    let mut analysis = Analysis { constants, info: InstructionInfoFactory::new() };
    let effects: Vec<Vec<Effect>> = instructions.iter().map(|i| analysis.effects(i)).collect();
    let at_sites = propagate(instructions, &effects, sites);
    let unique = unique_definitions(instructions, &effects);
    let rdi = number(Register::RDI).expect("a general-purpose register");
    sites
        .iter()
        .map(|site| {
            let state = at_sites.get(site)?;
            // A copy made just before the site from a register with a single value.
            let copied = effects[..*site].iter().rev().take(8).find_map(|effects| {
                effects.iter().find_map(|effect| match effect {
                    Effect::Copy(Register::RDI, from) => Some(number(*from).and_then(|from| unique[from])),
                    Effect::Constant(Register::RDI, _) | Effect::Unknown(Register::RDI) => Some(None),
                    _ => None,
                })
            });
            state[rdi].or(copied.flatten())
        })
        .collect()
}

fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

impl Analysis<'_> {
    fn effects(&mut self, instruction: &Instruction) -> Vec<Effect> {
        if let Some(effect) = self.definition(instruction) {
            return vec![effect];
        }
        let writes = |used: &&UsedRegister| {
            matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        let used = self.info.info(instruction).used_registers().iter().filter(writes);
        let mut effects: Vec<_> = used
            .map(|used| used.register().full_register())
            .filter(|register| register.is_gpr64())
            .map(Effect::Unknown)
            .collect();
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            effects.extend(CALLER_SAVED.map(Effect::Unknown));
        }
        effects
    }

    /// The one register that `instruction` defines by a constant or a copy.
    fn definition(&self, instruction: &Instruction) -> Option<Effect> {
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
                if !self.constants.iter().any(|range| range.contains(&address)) {
                    return None;
                }
                let pointer = std::ptr::with_exposed_provenance::<usize>(address);
                // SAFETY: the GOT of a loaded object, filled in by the loader before any of its code runs.
                Effect::Constant(to, unsafe { pointer.read_unaligned() })
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if instruction.op1_kind() == OpKind::Register => {
                Effect::Copy(to, instruction.op1_register())
            }
            _ => return None,
        };
        Some(effect)
    }
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

/// Steps 1 and 2: the state before each site.
fn propagate(
    instructions: &[Instruction],
    effects: &[Vec<Effect>],
    sites: &[usize],
) -> BTreeMap<usize, State> {
    let index_of: BTreeMap<u64, usize> =
        instructions.iter().enumerate().map(|(i, ins)| (ins.ip(), i)).collect();
    let target = |instruction: &Instruction| match instruction.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            index_of.get(&instruction.near_branch_target()).copied()
        }
        _ => None,
    };
    let falls_through = |instruction: &Instruction| {
        matches!(
            instruction.flow_control(),
            FlowControl::Next
                | FlowControl::ConditionalBranch
                | FlowControl::Call
                | FlowControl::IndirectCall
        )
    };
    let ends_block = |instruction: &Instruction| {
        !matches!(
            instruction.flow_control(),
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall
        )
    };
    // A tail call through a pointer leaves the function; a jump through a table stays in it.
    let has_table = instructions.iter().any(|instruction| {
        instruction.flow_control() == FlowControl::IndirectBranch
            && instruction.memory_base() != Register::RIP
    });

    let mut leaders = BTreeSet::from([0]);
    let mut reached = BTreeSet::new();
    for (index, instruction) in instructions.iter().enumerate() {
        if let Some(target) = target(instruction) {
            leaders.insert(target);
            reached.insert(target);
        }
        if ends_block(instruction) && index + 1 < instructions.len() {
            leaders.insert(index + 1);
            if falls_through(instruction) {
                reached.insert(index + 1);
            }
        }
    }
    let mut entry: BTreeMap<usize, State> = BTreeMap::new();
    let mut work: Vec<usize> = Vec::new();
    for leader in
        leaders.iter().copied().filter(|leader| has_table || *leader == 0 || !reached.contains(leader))
    {
        entry.insert(leader, NOTHING);
        work.push(leader);
    }
    let mut at_sites = BTreeMap::new();
    while let Some(leader) = work.pop() {
        let mut state = entry[&leader];
        let mut flow = |to: usize, state: &State| {
            let merged = entry.get(&to).map_or(*state, |old| {
                std::array::from_fn(|i| if old[i] == state[i] { old[i] } else { None })
            });
            if entry.insert(to, merged) != Some(merged) {
                work.push(to);
            }
        };
        for (index, instruction) in instructions.iter().enumerate().skip(leader) {
            if sites.binary_search(&index).is_ok() {
                at_sites.insert(index, state);
            }
            apply(&mut state, &effects[index]);
            if let Some(target) = target(instruction) {
                flow(target, &state);
            }
            if !falls_through(instruction) {
                break;
            }
            if leaders.contains(&(index + 1)) {
                flow(index + 1, &state);
                break;
            }
        }
    }
    at_sites
}

/// Step 3: the registers that hold one constant wherever the function has defined them. A register that is restored from the
/// stack at the end counts as not defined by that.
fn unique_definitions(instructions: &[Instruction], effects: &[Vec<Effect>]) -> State {
    let mut unique = NOTHING;
    let mut spoiled = [false; REGISTERS];
    for (instruction, effects) in instructions.iter().zip(effects) {
        if matches!(instruction.mnemonic(), Mnemonic::Pop | Mnemonic::Leave) {
            continue;
        }
        for effect in effects {
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

    /// Address of one function; the other is at 0x40_2000.
    const F: usize = 0x40_1000;

    /// The constant in RDI at each `ff d0` (a call through RAX stands for a site).
    fn check(code: &[&[u8]], expected: &[Option<usize>]) {
        let code = code.concat();
        let instructions: Vec<_> =
            Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        assert!(instructions.iter().all(|instruction| !instruction.is_invalid()));
        let sites: Vec<_> =
            (0..instructions.len()).filter(|i| instructions[*i].op0_register() == Register::RAX).collect();
        assert_eq!(functions_of(&instructions, &sites, &[]), expected);
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
    fn set_up_at_the_site_or_kept_in_a_register() {
        check(&[MOV_EDI_F, SITE], &[Some(F)]);
        check(&[MOV_EDI_F, SITE, SITE], &[Some(F), None]);
        check(&[MOV_EBX_F, MOV_RDI_RBX, SITE, MOV_RDI_RBX, SITE, POP_RBX, RET], &[Some(F), Some(F)]);
    }

    #[test]
    fn paths_that_disagree_leave_it_open() {
        check(&[MOV_EBX_F, JNE_OVER_5, MOV_EBX_G, MOV_RDI_RBX, SITE], &[None]);
        check(&[MOV_EBX_F, JNE_OVER_5, MOV_EBX_F, MOV_RDI_RBX, SITE], &[Some(F)]);
        check(&[MOV_EDI_G, JNE_OVER_5, MOV_EDI_F, SITE], &[None]);
    }

    #[test]
    fn a_landing_pad_knows_only_registers_with_a_single_value() {
        check(&[MOV_EBX_F, RET, MOV_RDI_RBX, SITE], &[Some(F)]);
        // Restored at the end of another path.
        check(&[MOV_EBX_F, POP_RBX, RET, MOV_RDI_RBX, SITE], &[Some(F)]);
        check(&[MOV_EBX_F, RET, MOV_EBX_G, RET, MOV_RDI_RBX, SITE], &[None]);
        check(&[MOV_EDI_F, RET, SITE], &[None]);
    }
}
