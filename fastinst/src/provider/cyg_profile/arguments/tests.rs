use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// The address of one function; the other one is at 0x40_2000.
const F: usize = 0x40_1000;

/// Checks the constants in RDI at the instructions `ff d0` (calls through RAX represent sites).
#[track_caller]
fn check(code: &[&[u8]], expected: &[Option<usize>]) {
    let instructions = decode(&code.concat());
    let sites = sites(&instructions).into_iter();
    assert_eq!(Analysis::new().functions_of(&instructions, sites, &[]), expected);
}

fn decode(code: &[u8]) -> Vec<Instruction> {
    let instructions: Vec<_> = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect();
    assert!(instructions.iter().all(|instruction| !instruction.is_invalid()));
    instructions
}

fn sites(instructions: &[Instruction]) -> Vec<usize> {
    (0..instructions.len()).filter(|i| instructions[*i].op0_register() == Register::RAX).collect()
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

#[test]
fn all_ways_to_a_site_are_followed() {
    // A loop, which leads to the site from below as well.
    check(&[MOV_EBX_F, MOV_RDI_RBX, SITE, JNE_OVER_5, MOV_EBX_G, &[0x75, 0xf2]], &[None]);
    check(&[MOV_EBX_F, MOV_RDI_RBX, SITE, JNE_OVER_5, MOV_EBX_F, &[0x75, 0xf2]], &[Some(F)]);
    // RDI itself, on both of two ways.
    check(&[&[0x75, 0x07], MOV_EDI_F, &[0xeb, 0x05], MOV_EDI_F, SITE], &[Some(F)]);
    check(&[&[0x75, 0x07], MOV_EDI_F, &[0xeb, 0x05], MOV_EDI_G, SITE], &[None]);
    // Copied from different registers.
    const MOV_R12D_F: &[u8] = &[0x41, 0xbc, 0x00, 0x10, 0x40, 0x00];
    const MOV_RDI_R12: &[u8] = &[0x4c, 0x89, 0xe7];
    check(&[MOV_EBX_F, MOV_R12D_F, &[0x75, 0x05], MOV_RDI_RBX, &[0xeb, 0x03], MOV_RDI_R12, SITE], &[Some(F)]);
}

#[test]
fn after_a_jump_through_a_table_nothing_is_known() {
    const JMP_RAX: &[u8] = &[0xff, 0xe0];
    let code = [&[0x75, 0x07], MOV_EDI_F, &[0xeb, 0x05], MOV_EDI_F, SITE].concat();
    let with_table = decode(&[code, JMP_RAX.to_vec()].concat());
    let site = sites(&with_table).into_iter().take(1);
    assert_eq!(Analysis::new().functions_of(&with_table, site, &[]), [None]);
}

/// An instruction of a random function.
#[derive(Clone, Copy, Debug)]
enum Random {
    Set(Register, usize),
    Copy(Register, Register),
    Call,
    Site,
    /// To the instruction with this index.
    Branch {
        to: usize,
        is_conditional: bool,
    },
    Ret,
}

impl Random {
    fn new(random: &mut SmallRng, length: usize) -> Self {
        const REGISTERS: [Register; 3] = [Register::RDI, Register::RBX, Register::R12];
        let mut register = || REGISTERS[random.random_range(0..3)];
        let (to, from) = (register(), register());
        match random.random_range(0..20) {
            0..5 => Self::Set(to, if random.random_bool(0.8) { F } else { 0x40_2000 }),
            5..9 if to != from => Self::Copy(to, from),
            9 => Self::Call,
            10..15 => Self::Site,
            15..19 => {
                Self::Branch { to: random.random_range(0..length), is_conditional: random.random_bool(0.8) }
            }
            _ => Self::Ret,
        }
    }

    /// The encoding of an instruction in a function whose instructions are at these addresses; the
    /// next one is at `next`.
    fn encode(self, next: u64, addresses: &[u64]) -> Vec<u8> {
        let number = |register: Register| register.number() as u8;
        match self {
            Self::Set(register, value) => {
                let prefix = (number(register) >= 8).then_some(0x41);
                let opcode = [0xb8 + number(register) % 8];
                let value = (value as u32).to_le_bytes();
                prefix.into_iter().chain(opcode).chain(value).collect()
            }
            Self::Copy(to, from) => {
                let rex = 0x48 | ((number(from) / 8) << 2) | (number(to) / 8);
                vec![rex, 0x89, 0xc0 | ((number(from) % 8) << 3) | (number(to) % 8)]
            }
            Self::Call => [&[0xe8][..], &0x1000_i32.to_le_bytes()].concat(),
            Self::Site => SITE.to_vec(),
            Self::Branch { to, is_conditional } => {
                let displacement = (addresses.get(to).copied().unwrap_or(0) as i32) - next as i32;
                let opcode: &[u8] = if is_conditional { &[0x0f, 0x85] } else { &[0xe9] };
                [opcode, &displacement.to_le_bytes()].concat()
            }
            Self::Ret => RET.to_vec(),
        }
    }
}

fn encode(function: &[Random]) -> Vec<u8> {
    let mut addresses = vec![];
    let mut code = vec![];
    for _ in 0..2 {
        code.clear();
        let mut starts = vec![];
        for instruction in function {
            starts.push(0x1000 + code.len() as u64);
            let next = 0x1000 + (code.len() + instruction.encode(0, &[]).len()) as u64;
            code.extend(instruction.encode(next, &addresses));
        }
        addresses = starts;
    }
    code
}

/// The values of RDI, RBX and R12, of which RDI is unknown after a call.
type Values = BTreeMap<Register, Option<usize>>;

/// The executions of a random function.
struct Executed {
    /// The possible values of RDI at each instruction.
    values: Vec<BTreeSet<Option<usize>>>,
    /// The instructions that may be reached from a loop to which no path leads; the loop is
    /// executed as if there were one.
    after_unreachable_loops: BTreeSet<usize>,
}

/// Executes all paths through a function, from its start and from instructions without predecessor.
fn executed(function: &[Random]) -> Executed {
    let successors = |at: usize| {
        let (branch, falls_through) = match function[at] {
            Random::Branch { to, is_conditional } => (Some(to), is_conditional),
            Random::Ret => (None, false),
            _ => (None, true),
        };
        branch.into_iter().chain((falls_through && at + 1 < function.len()).then_some(at + 1))
    };
    let targets: BTreeSet<usize> = (0..function.len()).flat_map(successors).collect();
    let nothing: Values =
        [Register::RDI, Register::RBX, Register::R12].map(|register| (register, None)).into();
    let starts = (0..function.len()).filter(|at| *at == 0 || !targets.contains(at));
    let mut work: Vec<(usize, Values)> = starts.map(|at| (at, nothing.clone())).collect();
    let mut seen: BTreeSet<(usize, Vec<Option<usize>>)> = BTreeSet::new();
    let mut executed =
        Executed { values: vec![BTreeSet::new(); function.len()], after_unreachable_loops: BTreeSet::new() };
    let mut is_in_loop = false;
    loop {
        while let Some((at, mut values)) = work.pop() {
            let is_new = seen.insert((at, values.values().copied().collect()));
            if !is_new && (!is_in_loop || !executed.after_unreachable_loops.insert(at)) {
                continue;
            }
            executed.values[at].insert(values[&Register::RDI]);
            executed.after_unreachable_loops.extend(is_in_loop.then_some(at));
            match function[at] {
                Random::Set(register, value) => _ = values.insert(register, Some(value)),
                Random::Copy(to, from) => _ = values.insert(to, values[&from]),
                Random::Call | Random::Site => _ = values.insert(Register::RDI, None),
                Random::Branch { .. } | Random::Ret => {}
            }
            work.extend(successors(at).map(|to| (to, values.clone())));
        }
        let Some(unreached) = executed.values.iter().position(BTreeSet::is_empty) else { return executed };
        is_in_loop = true;
        work.push((unreached, nothing.clone()));
    }
}

/// Whether all definitions of a register other than RDI are this value, so that it is assumed where
/// other code may lead.
fn has_unique_definition(function: &[Random], value: usize) -> bool {
    [Register::RBX, Register::R12].into_iter().any(|register| {
        let defines = |instruction: &&Random| {
            matches!(instruction, Random::Set(to, _) | Random::Copy(to, _) if *to == register)
        };
        let is_value =
            |instruction: &Random| matches!(instruction, Random::Set(_, defined) if *defined == value);
        let mut definitions = function.iter().filter(defines).peekable();
        definitions.peek().is_some() && definitions.all(is_value)
    })
}

/// The analysis finds the constant of a site if all executions have it there, and none that an
/// execution contradicts.
#[test]
fn random_functions_agree_with_their_executions() {
    let mut random = SmallRng::seed_from_u64(7);
    let (mut constants, mut others) = (0, 0);
    for _ in 0..4_000 {
        let length = random.random_range(2..24);
        let function: Vec<_> = (0..length).map(|_| Random::new(&mut random, length)).collect();
        let instructions = decode(&encode(&function));
        let sites = sites(&instructions);
        let found = Analysis::new().functions_of(&instructions, sites.iter().copied(), &[]);
        let executed = executed(&function);
        for (site, found) in sites.into_iter().zip(found) {
            let values = &executed.values[site];
            let mut known = values.iter().flatten();
            match found {
                Some(value) => {
                    assert!(known.all(|known| *known == value), "{function:?} at {site}");
                    let may_be_unknown = executed.after_unreachable_loops.contains(&site)
                        || has_unique_definition(&function, value);
                    assert!(!values.contains(&None) || may_be_unknown, "{function:?} at {site}");
                }
                None => {
                    let is_constant = values.len() == 1 && known.next().is_some();
                    assert!(!is_constant, "{function:?} at {site}");
                }
            }
            *if found.is_some() { &mut constants } else { &mut others } += 1;
        }
    }
    assert!(constants > 1_000 && others > 1_000, "{constants} {others}");
}
