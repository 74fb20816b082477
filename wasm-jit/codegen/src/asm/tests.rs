//! Every encoding, decoded by iced-x86: mnemonic and operands must be the requested ones.
//!
//! The loops cover all registers in each operand, and memory operands with every base, index and
//! scale and with displacements at the limits of their sizes.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::{Alu, Assembler, Cond, FloatOp, Label, Mem, Precision, Reg, Rm, Rounding, Shift, Size, Width};

/// An operand, decoded or expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// The full register that it belongs to, and the number of bytes used.
    Reg(Register, usize),
    Mem {
        base: Register,
        index: Register,
        scale: u32,
        disp: i64,
        size: usize,
    },
    Imm(i64),
    Target(u64),
}

/// How an instruction interprets a register or memory operand.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// This many bytes of a general register, or of memory.
    Int(usize),
    /// An SSE register, or this many bytes of memory.
    Float(usize),
}

impl Kind {
    fn reg(self, reg: Reg) -> Op {
        let number = u32::from(reg.number());
        match self {
            Self::Int(size) => Op::Reg(Register::RAX + number, size),
            Self::Float(32) => Op::Reg(Register::ZMM0 + number, 32),
            Self::Float(_) => Op::Reg(Register::ZMM0 + number, 16),
        }
    }

    fn mem(self, mem: Mem) -> Op {
        let (Self::Int(size) | Self::Float(size)) = self;
        let full =
            |reg: Option<Reg>| reg.map_or(Register::None, |reg| Register::RAX + u32::from(reg.number()));
        Op::Mem {
            base: full(mem.base_register()),
            index: full(mem.index_register()),
            scale: 1 << mem.scale,
            disp: mem.disp.into(),
            size,
        }
    }

    fn rm(self, rm: Rm) -> Op {
        match rm {
            Rm::Reg(reg) => self.reg(reg),
            Rm::Mem(mem) => self.mem(mem),
        }
    }

    fn registers(self) -> impl Iterator<Item = Reg> {
        let first = if matches!(self, Self::Int(_)) { 0 } else { 16 };
        (first..first + 16).map(Reg)
    }

    /// The operands in registers and in memory.
    fn operands(self) -> impl Iterator<Item = Rm> {
        self.registers().map(Rm::Reg).chain(memory().into_iter().map(Rm::Mem))
    }
}

fn int(width: Width) -> Kind {
    Kind::Int(if width == Width::W64 { 8 } else { 4 })
}

fn float(precision: Precision) -> Kind {
    Kind::Float(if precision == Precision::Double { 8 } else { 4 })
}

const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
const PRECISIONS: [Precision; 2] = [Precision::Single, Precision::Double];
const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];
const IMMEDIATES: [i32; 9] = [0, 1, -1, 127, -128, 128, -129, i32::MAX, i32::MIN];

/// Every base, index and scale, with displacements of zero, one and four bytes.
fn memory() -> Vec<Mem> {
    let registers = || (0..16).map(Reg);
    let mut all = Vec::new();
    for base in registers() {
        all.extend(IMMEDIATES.map(|disp| Mem::base(base, disp)));
        for index in registers().filter(|index| *index != Reg::RSP) {
            for scale in 0..4 {
                all.extend([0, -8, 4096].map(|disp| Mem::indexed(base, index, scale, disp)));
            }
        }
    }
    for index in registers().filter(|index| *index != Reg::RSP) {
        for scale in 0..4 {
            all.extend([0, 8, i32::MAX].map(|disp| Mem::scaled(index, scale, disp)));
        }
    }
    all
}

fn assemble(assemble: impl FnOnce(&mut Assembler<'_>)) -> Vec<u8> {
    let mut code = Vec::new();
    assemble(&mut Assembler::new(&mut code));
    code
}

fn decode(code: &[u8]) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = decoder.iter().collect();
    assert!(instructions.iter().all(|instruction| !instruction.is_invalid()), "{code:02x?}");
    instructions
}

fn operand(instruction: &Instruction, index: u32) -> Op {
    match instruction.op_kind(index) {
        OpKind::Register => {
            let register = instruction.op_register(index);
            Op::Reg(register.full_register(), register.size())
        }
        OpKind::Memory => Op::Mem {
            base: instruction.memory_base(),
            index: instruction.memory_index(),
            scale: instruction.memory_index_scale(),
            disp: instruction.memory_displacement64() as i64,
            size: instruction.memory_size().size(),
        },
        OpKind::Immediate8 => Op::Imm(i64::from(instruction.immediate8() as i8)),
        OpKind::Immediate16 => Op::Imm(i64::from(instruction.immediate16() as i16)),
        OpKind::Immediate32 => Op::Imm(i64::from(instruction.immediate32() as i32)),
        OpKind::NearBranch64 => Op::Target(instruction.near_branch64()),
        _ => Op::Imm(instruction.immediate(index) as i64),
    }
}

/// Asserts that the code is one instruction, the expected one.
#[track_caller]
fn check(expected: (Mnemonic, &[Op]), write: impl FnOnce(&mut Assembler<'_>)) -> Instruction {
    let code = assemble(write);
    let decoded = decode(&code);
    let [instruction] = decoded[..] else { panic!("{expected:?}: {code:02x?}") };
    let operands: Vec<Op> = (0..instruction.op_count()).map(|index| operand(&instruction, index)).collect();
    assert_eq!((instruction.mnemonic(), &operands[..]), expected, "{instruction}: {code:02x?}");
    instruction
}

/// An instruction with a register and a register-or-memory operand, as in `mnemonic reg, rm`.
#[track_caller]
fn check_reg_rm(mnemonic: Mnemonic, (reg, rm): (Kind, Kind), write: impl Fn(&mut Assembler<'_>, Reg, Rm)) {
    for (number, operand) in rm.operands().enumerate() {
        // All pairs of registers, and one register for each memory operand.
        let all = matches!(operand, Rm::Reg(_));
        for register in
            reg.registers().filter(|register| all || number % 16 == usize::from(register.number()))
        {
            check((mnemonic, &[reg.reg(register), rm.rm(operand)]), |asm| write(asm, register, operand));
        }
    }
}

/// A store, `mnemonic [mem], reg`, with every register.
#[track_caller]
fn check_store(mnemonic: Mnemonic, kind: Kind, write: impl Fn(&mut Assembler<'_>, Mem, Reg)) {
    for (mem, reg) in memory().into_iter().zip(kind.registers().collect::<Vec<_>>().into_iter().cycle()) {
        check((mnemonic, &[kind.mem(mem), kind.reg(reg)]), |asm| write(asm, mem, reg));
    }
    for reg in kind.registers() {
        let mem = Mem::base(Reg::RBP, -8);
        check((mnemonic, &[kind.mem(mem), kind.reg(reg)]), |asm| write(asm, mem, reg));
    }
}

/// An instruction with one operand.
#[track_caller]
fn check_rm(mnemonic: Mnemonic, kind: Kind, write: impl Fn(&mut Assembler<'_>, Rm)) {
    for operand in kind.operands() {
        check((mnemonic, &[kind.rm(operand)]), |asm| write(asm, operand));
    }
}

const ALU: [(Alu, Mnemonic); 8] = [
    (Alu::Add, Mnemonic::Add),
    (Alu::Or, Mnemonic::Or),
    (Alu::Adc, Mnemonic::Adc),
    (Alu::Sbb, Mnemonic::Sbb),
    (Alu::And, Mnemonic::And),
    (Alu::Sub, Mnemonic::Sub),
    (Alu::Xor, Mnemonic::Xor),
    (Alu::Cmp, Mnemonic::Cmp),
];

#[test]
fn alu_of_registers_and_memory() {
    for (what, mnemonic) in ALU {
        for width in WIDTHS {
            check_reg_rm(mnemonic, (int(width), int(width)), |asm, reg, rm| asm.alu(what, width, reg, rm));
        }
    }
}

#[test]
fn alu_with_immediates_in_their_shortest_form() {
    for (what, mnemonic) in ALU {
        for width in WIDTHS {
            for imm in IMMEDIATES {
                for operand in [Reg::RAX, Reg::RSP, Reg::R8, Reg::R15].map(Rm::Reg).into_iter().chain([
                    Mem::base(Reg::R13, 0).into(),
                    Mem::base(Reg::R12, 300).into(),
                    Mem::indexed(Reg::R15, Reg::R9, 3, 5).into(),
                ]) {
                    let expected = (mnemonic, &[int(width).rm(operand), Op::Imm(imm.into())][..]);
                    let instruction = check(expected, |asm| asm.alu_imm(what, width, operand, imm));
                    let short = matches!(imm, -128..=127);
                    let immediate = decode_constant_size(&instruction);
                    assert_eq!(immediate, if short { 1 } else { 4 }, "{instruction}");
                }
            }
        }
    }
}

#[test]
fn alu_to_memory() {
    for (what, mnemonic) in ALU {
        for width in WIDTHS {
            check_store(mnemonic, int(width), |asm, mem, reg| asm.alu_memory(what, width, mem, reg));
        }
    }
}

#[test]
fn loads_relative_to_the_thread_pointer() {
    for reg in Kind::Int(8).registers() {
        for disp in [-8, i32::MIN, i32::MAX, 0] {
            let mem =
                Op::Mem { base: Register::None, index: Register::None, scale: 1, disp: disp.into(), size: 8 };
            let expected = (Mnemonic::Mov, &[Kind::Int(8).reg(reg), mem][..]);
            let instruction = check(expected, |asm| asm.mov_of_thread(reg, disp));
            assert_eq!(instruction.memory_segment(), Register::FS);
        }
    }
    check((Mnemonic::Rdtsc, &[]), |asm| asm.rdtsc());
}

/// Bytes of an instruction's immediate.
fn decode_constant_size(instruction: &Instruction) -> usize {
    match instruction.op_kind(instruction.op_count() - 1) {
        OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate8to64 => 1,
        OpKind::Immediate32 | OpKind::Immediate32to64 => 4,
        OpKind::Immediate64 => 8,
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_and_mov_between_registers_and_memory() {
    for width in WIDTHS {
        let kind = int(width);
        check_reg_rm(Mnemonic::Mov, (kind, kind), |asm, reg, rm| asm.mov(width, reg, rm));
        for operand in kind.operands() {
            for reg in [Reg::RBX, Reg::R11] {
                let expected = (Mnemonic::Test, &[kind.rm(operand), kind.reg(reg)][..]);
                check(expected, |asm| asm.test(width, operand, reg));
            }
            let expected = (Mnemonic::Test, &[kind.rm(operand), Op::Imm(-2)][..]);
            check(expected, |asm| asm.test_imm(width, operand, -2));
        }
    }
}

#[test]
fn stores_of_each_size_take_the_low_byte_of_every_register() {
    for size in SIZES {
        let kind = Kind::Int(size.bytes() as usize);
        check_store(Mnemonic::Mov, kind, |asm, mem, reg| asm.mov_store(size, mem, reg));
        for mem in memory() {
            for imm in [0, -1, 0x7b] {
                let expected = (Mnemonic::Mov, &[kind.mem(mem), Op::Imm(imm.into())][..]);
                check(expected, |asm| asm.mov_store_imm(size, mem, imm));
            }
        }
        let mem = Mem::base(Reg::RDI, 4);
        let stored = match size {
            Size::B1 => 0x78,
            Size::B2 => 0x5678,
            Size::B4 | Size::B8 => 0x1234_5678,
        };
        let expected = (Mnemonic::Mov, &[kind.mem(mem), Op::Imm(stored)][..]);
        check(expected, |asm| asm.mov_store_imm(size, mem, 0x1234_5678));
    }
}

#[test]
fn atomic_instructions_have_the_lock_prefix() {
    for size in SIZES {
        let kind = Kind::Int(size.bytes() as usize);
        check_store(Mnemonic::Xadd, kind, |asm, mem, reg| asm.lock_xadd(size, mem, reg));
        check_store(Mnemonic::Cmpxchg, kind, |asm, mem, reg| asm.lock_cmpxchg(size, mem, reg));
        check_store(Mnemonic::Xchg, kind, |asm, mem, reg| asm.xchg_mem(size, mem, reg));
        let mem = Mem::indexed(Reg::R15, Reg::RAX, 0, 64);
        for reg in Kind::Int(8).registers() {
            for code in [
                assemble(|asm| asm.lock_xadd(size, mem, reg)),
                assemble(|asm| asm.lock_cmpxchg(size, mem, reg)),
            ] {
                assert!(decode(&code)[0].has_lock_prefix(), "{code:02x?}");
            }
            let exchange = assemble(|asm| asm.xchg_mem(size, mem, reg));
            assert!(!decode(&exchange)[0].has_lock_prefix(), "implies LOCK: {exchange:02x?}");
        }
    }
    check((Mnemonic::Mfence, &[]), |asm| asm.mfence());
}

#[test]
fn constants_are_loaded_in_their_shortest_form() {
    let lengths = [
        (0, 5, 6),
        (0x7fff_ffff, 5, 6),
        (0xffff_ffff, 5, 6),
        (0x1_0000_0000, 10, 10),
        (u64::MAX, 7, 7),
        (0xffff_ffff_8000_0000, 7, 7),
        (0xffff_ffff_7fff_ffff, 10, 10),
        (0x8000_0000_0000_0000, 10, 10),
    ];
    for reg in Kind::Int(8).registers() {
        for (value, low, high) in lengths {
            let code = assemble(|asm| asm.mov_imm(reg, value));
            let [instruction] = decode(&code)[..] else { panic!("{code:02x?}") };
            assert_eq!(instruction.mnemonic(), Mnemonic::Mov);
            assert_eq!(instruction.op0_register().full_register(), Register::RAX + u32::from(reg.number()));
            let loaded = match instruction.op0_register().size() {
                4 => u64::from(instruction.immediate32()),
                _ => instruction.immediate(1),
            };
            assert_eq!(loaded, value, "{instruction}");
            assert_eq!(code.len(), if reg < Reg::R8 { low } else { high }, "{instruction}");
        }
        let kind = Kind::Int(4);
        check((Mnemonic::Xor, &[kind.reg(reg), kind.reg(reg)]), |asm| asm.zero(reg));
    }
}

#[test]
fn extensions_from_every_size() {
    for size in SIZES {
        let source = Kind::Int(size.bytes() as usize);
        let (mnemonic, result) = match size {
            Size::B1 | Size::B2 => (Mnemonic::Movzx, int(Width::W32)),
            Size::B4 | Size::B8 => (Mnemonic::Mov, source),
        };
        check_reg_rm(mnemonic, (result, source), |asm, reg, rm| asm.movzx(size, reg, rm));
        for width in WIDTHS {
            let (mnemonic, source) = match size {
                Size::B1 | Size::B2 => (Mnemonic::Movsx, source),
                Size::B4 if width == Width::W64 => (Mnemonic::Movsxd, source),
                // As wide as the result, whatever the source size is.
                Size::B4 | Size::B8 => (Mnemonic::Mov, int(width)),
            };
            check_reg_rm(mnemonic, (int(width), source), |asm, reg, rm| asm.movsx(size, width, reg, rm));
        }
    }
}

#[test]
fn lea_of_every_address() {
    for width in WIDTHS {
        for (mem, reg) in memory().into_iter().zip((0..16).map(Reg).cycle()) {
            // The decoder reports no size for an address.
            let expected = (Mnemonic::Lea, &[int(width).reg(reg), Kind::Int(0).mem(mem)][..]);
            check(expected, |asm| asm.lea(width, reg, mem));
        }
    }
}

#[test]
fn multiplication_and_division() {
    for width in WIDTHS {
        let kind = int(width);
        check_reg_rm(Mnemonic::Imul, (kind, kind), |asm, reg, rm| asm.imul(width, reg, rm));
        for imm in IMMEDIATES {
            for operand in [Reg::RSP.into(), Reg::R9.into(), Rm::Mem(Mem::base(Reg::R13, 0))] {
                for reg in kind.registers() {
                    let expected =
                        (Mnemonic::Imul, &[kind.reg(reg), kind.rm(operand), Op::Imm(imm.into())][..]);
                    check(expected, |asm| asm.imul_imm(width, reg, operand, imm));
                }
            }
        }
        check_rm(Mnemonic::Mul, kind, |asm, rm| asm.mul(width, rm));
        check_rm(Mnemonic::Imul, kind, |asm, rm| asm.imul_wide(width, rm));
        check_rm(Mnemonic::Div, kind, |asm, rm| asm.div(width, rm));
        check_rm(Mnemonic::Idiv, kind, |asm, rm| asm.idiv(width, rm));
        for reg in kind.registers() {
            check((Mnemonic::Neg, &[kind.reg(reg)]), |asm| asm.neg(width, reg));
            check((Mnemonic::Not, &[kind.reg(reg)]), |asm| asm.not(width, reg));
        }
    }
    check((Mnemonic::Cdq, &[]), |asm| asm.sign_to_rdx(Width::W32));
    check((Mnemonic::Cqo, &[]), |asm| asm.sign_to_rdx(Width::W64));
}

#[test]
fn shifts_and_rotations() {
    let legacy = [
        (Shift::Rol, Mnemonic::Rol),
        (Shift::Ror, Mnemonic::Ror),
        (Shift::Shl, Mnemonic::Shl),
        (Shift::Shr, Mnemonic::Shr),
        (Shift::Sar, Mnemonic::Sar),
    ];
    let three = [(Shift::Shl, Mnemonic::Shlx), (Shift::Shr, Mnemonic::Shrx), (Shift::Sar, Mnemonic::Sarx)];
    for width in WIDTHS {
        let kind = int(width);
        for (what, mnemonic) in legacy {
            for reg in kind.registers() {
                let expected = (mnemonic, &[kind.reg(reg), Op::Reg(Register::RCX, 1)][..]);
                check(expected, |asm| asm.shift_cl(what, width, reg));
                for count in [1, 7, 31, 63] {
                    let expected = (mnemonic, &[kind.reg(reg), Op::Imm(count.into())][..]);
                    check(expected, |asm| asm.shift_imm(what, width, reg, count));
                }
            }
        }
        for (what, mnemonic) in three {
            for operand in kind.operands() {
                for (reg, count) in [(Reg::RDX, Reg::R8), (Reg::R15, Reg::RCX)] {
                    let expected = (mnemonic, &[kind.reg(reg), kind.rm(operand), kind.reg(count)][..]);
                    check(expected, |asm| asm.shift_by(what, width, reg, operand, count));
                }
            }
            for count in kind.registers() {
                let operands = [kind.reg(Reg::RAX), kind.reg(Reg::RAX), kind.reg(count)];
                check((mnemonic, &operands), |asm| asm.shift_by(what, width, Reg::RAX, Reg::RAX, count));
            }
        }
        for operand in kind.operands() {
            for (reg, count) in [(Reg::RSI, 1), (Reg::R12, 63)] {
                let expected =
                    (Mnemonic::Rorx, &[kind.reg(reg), kind.rm(operand), Op::Imm(count.into())][..]);
                check(expected, |asm| asm.rorx(width, reg, operand, count));
            }
        }
    }
}

#[test]
fn counting_bits() {
    for width in WIDTHS {
        let kinds = (int(width), int(width));
        check_reg_rm(Mnemonic::Lzcnt, kinds, |asm, reg, rm| asm.lzcnt(width, reg, rm));
        check_reg_rm(Mnemonic::Tzcnt, kinds, |asm, reg, rm| asm.tzcnt(width, reg, rm));
        check_reg_rm(Mnemonic::Popcnt, kinds, |asm, reg, rm| asm.popcnt(width, reg, rm));
    }
}

const CONDITIONS: [(Cond, Mnemonic, Mnemonic, Mnemonic); 16] = [
    (Cond::Overflow, Mnemonic::Seto, Mnemonic::Cmovo, Mnemonic::Jo),
    (Cond::NotOverflow, Mnemonic::Setno, Mnemonic::Cmovno, Mnemonic::Jno),
    (Cond::Below, Mnemonic::Setb, Mnemonic::Cmovb, Mnemonic::Jb),
    (Cond::AboveEqual, Mnemonic::Setae, Mnemonic::Cmovae, Mnemonic::Jae),
    (Cond::Equal, Mnemonic::Sete, Mnemonic::Cmove, Mnemonic::Je),
    (Cond::NotEqual, Mnemonic::Setne, Mnemonic::Cmovne, Mnemonic::Jne),
    (Cond::BelowEqual, Mnemonic::Setbe, Mnemonic::Cmovbe, Mnemonic::Jbe),
    (Cond::Above, Mnemonic::Seta, Mnemonic::Cmova, Mnemonic::Ja),
    (Cond::Sign, Mnemonic::Sets, Mnemonic::Cmovs, Mnemonic::Js),
    (Cond::NotSign, Mnemonic::Setns, Mnemonic::Cmovns, Mnemonic::Jns),
    (Cond::Parity, Mnemonic::Setp, Mnemonic::Cmovp, Mnemonic::Jp),
    (Cond::NotParity, Mnemonic::Setnp, Mnemonic::Cmovnp, Mnemonic::Jnp),
    (Cond::Less, Mnemonic::Setl, Mnemonic::Cmovl, Mnemonic::Jl),
    (Cond::GreaterEqual, Mnemonic::Setge, Mnemonic::Cmovge, Mnemonic::Jge),
    (Cond::LessEqual, Mnemonic::Setle, Mnemonic::Cmovle, Mnemonic::Jle),
    (Cond::Greater, Mnemonic::Setg, Mnemonic::Cmovg, Mnemonic::Jg),
];

#[test]
fn conditions_in_setcc_cmov_and_jumps() {
    for (cond, set, cmov, jump) in CONDITIONS {
        for reg in Kind::Int(1).registers() {
            check((set, &[Kind::Int(1).reg(reg)]), |asm| asm.setcc(cond, reg));
        }
        for width in WIDTHS {
            check_reg_rm(cmov, (int(width), int(width)), |asm, reg, rm| asm.cmov(cond, width, reg, rm));
        }
        check((jump, &[Op::Target(6)]), |asm| asm.jcc_to_link(cond));
    }
}

#[test]
fn flags_through_rax() {
    let code = |emit: fn(&mut Assembler<'_>)| {
        let mut code = Vec::new();
        emit(&mut Assembler::new(&mut code));
        decode(&code).iter().map(|instruction| instruction.mnemonic()).collect::<Vec<_>>()
    };
    assert_eq!(code(|asm| asm.flags_to_rax()), [Mnemonic::Seto, Mnemonic::Lahf]);
    assert_eq!(code(|asm| asm.flags_from_rax()), [Mnemonic::Add, Mnemonic::Sahf]);
}

/// Compares the operands `1, 2`, `2, 1`, `1, 1` and `-1, 1`, to set the flags for the conditions.
#[test]
fn opposite_and_swapped_conditions() {
    fn holds(cond: Cond, left: i32, right: i32) -> Option<bool> {
        let (unsigned, signed) = ((left as u32).cmp(&(right as u32)), left.cmp(&right));
        Some(match cond {
            Cond::Below => unsigned.is_lt(),
            Cond::AboveEqual => unsigned.is_ge(),
            Cond::Equal => unsigned.is_eq(),
            Cond::NotEqual => unsigned.is_ne(),
            Cond::BelowEqual => unsigned.is_le(),
            Cond::Above => unsigned.is_gt(),
            Cond::Less => signed.is_lt(),
            Cond::GreaterEqual => signed.is_ge(),
            Cond::LessEqual => signed.is_le(),
            Cond::Greater => signed.is_gt(),
            Cond::Overflow | Cond::NotOverflow => {
                left.checked_sub(right).is_none() == (cond == Cond::Overflow)
            }
            Cond::Sign | Cond::NotSign | Cond::Parity | Cond::NotParity => return None,
        })
    }
    for (cond, ..) in CONDITIONS {
        assert_eq!(cond.opposite().opposite(), cond);
        assert_ne!(cond.opposite(), cond);
        for (left, right) in [(1, 2), (2, 1), (1, 1), (-1, 1), (1, -1), (i32::MIN, 1)] {
            let Some(truth) = holds(cond, left, right) else { continue };
            assert_eq!(holds(cond.opposite(), left, right), Some(!truth), "{cond:?}");
            if !matches!(cond, Cond::Overflow | Cond::NotOverflow) {
                assert_eq!(holds(cond.swapped(), right, left), Some(truth), "{cond:?}");
            }
        }
    }
}

#[test]
fn float_arithmetic_in_three_operands() {
    let scalar = [
        (FloatOp::Sqrt, Mnemonic::Vsqrtss, Mnemonic::Vsqrtsd),
        (FloatOp::Add, Mnemonic::Vaddss, Mnemonic::Vaddsd),
        (FloatOp::Mul, Mnemonic::Vmulss, Mnemonic::Vmulsd),
        (FloatOp::Sub, Mnemonic::Vsubss, Mnemonic::Vsubsd),
        (FloatOp::Min, Mnemonic::Vminss, Mnemonic::Vminsd),
        (FloatOp::Div, Mnemonic::Vdivss, Mnemonic::Vdivsd),
        (FloatOp::Max, Mnemonic::Vmaxss, Mnemonic::Vmaxsd),
    ];
    let packed = [
        (FloatOp::And, Mnemonic::Vandps, Mnemonic::Vandpd),
        (FloatOp::Or, Mnemonic::Vorps, Mnemonic::Vorpd),
        (FloatOp::Xor, Mnemonic::Vxorps, Mnemonic::Vxorpd),
    ];
    for precision in PRECISIONS {
        let all = scalar.map(|what| (what, float(precision))).into_iter();
        for ((what, single_form, double_form), kind) in all.chain(packed.map(|what| (what, Kind::Float(16))))
        {
            let mnemonic = if precision == Precision::Double { double_form } else { single_form };
            for operand in kind.operands() {
                for (dst, left) in [(0, 1), (7, 8), (8, 7), (15, 15)] {
                    let (dst, left) = (Reg::xmm(dst), Reg::xmm(left));
                    let expected = (mnemonic, &[kind.reg(dst), kind.reg(left), kind.rm(operand)][..]);
                    check(expected, |asm| asm.float(what, precision, dst, left, operand));
                }
            }
            for dst in kind.registers() {
                for left in kind.registers() {
                    let operands = [kind.reg(dst), kind.reg(left), kind.reg(Reg::xmm(3))];
                    check((mnemonic, &operands), |asm| asm.float(what, precision, dst, left, Reg::xmm(3)));
                }
            }
        }
    }
}

#[test]
fn vex_takes_two_bytes_where_they_do_and_three_elsewhere() {
    let add = |dst: u8, left: u8, right: Rm| {
        assemble(|asm| asm.float(FloatOp::Add, Precision::Double, Reg::xmm(dst), Reg::xmm(left), right))[0]
    };
    assert_eq!(add(1, 2, Reg::xmm(3).into()), 0xc5);
    assert_eq!(add(9, 10, Reg::xmm(3).into()), 0xc5, "R and vvvv are in both forms");
    assert_eq!(add(1, 2, Reg::xmm(11).into()), 0xc4, "B is not");
    assert_eq!(add(1, 2, Mem::base(Reg::RAX, 0).into()), 0xc5);
    assert_eq!(add(1, 2, Mem::base(Reg::R15, 0).into()), 0xc4);
    assert_eq!(add(1, 2, Mem::indexed(Reg::RAX, Reg::R9, 0, 0).into()), 0xc4, "X is not");
}

#[test]
fn float_moves() {
    let packed = Kind::Float(16);
    for dst in packed.registers() {
        for src in packed.registers() {
            let expected = (Mnemonic::Vmovaps, &[packed.reg(dst), packed.reg(src)][..]);
            check(expected, |asm| asm.float_mov(dst, src));
        }
        let operands = [packed.reg(dst); 3];
        check((Mnemonic::Vxorps, &operands), |asm| asm.float_zero(dst));
    }
    for precision in PRECISIONS {
        let kind = float(precision);
        let mnemonic = if precision == Precision::Double { Mnemonic::Vmovsd } else { Mnemonic::Vmovss };
        check_store(mnemonic, kind, |asm, mem, reg| asm.float_store(precision, mem, reg));
        for (mem, reg) in memory().into_iter().zip((0..16).map(Reg::xmm).cycle()) {
            check((mnemonic, &[kind.reg(reg), kind.mem(mem)]), |asm| asm.float_load(precision, reg, mem));
        }
    }
    check_store(Mnemonic::Vmovups, Kind::Float(32), |asm, mem, reg| asm.wide_store(mem, reg));
    for width in WIDTHS {
        let mnemonic = if width == Width::W64 { Mnemonic::Vmovq } else { Mnemonic::Vmovd };
        for float in packed.registers() {
            for general in int(width).registers() {
                let (bits, value) = (int(width).reg(general), packed.reg(float));
                check((mnemonic, &[value, bits]), |asm| asm.float_from_bits(width, float, general));
                check((mnemonic, &[bits, value]), |asm| asm.float_to_bits(width, general, float));
            }
        }
    }
}

#[test]
fn float_comparison_rounding_and_conversion() {
    for precision in PRECISIONS {
        let kind = float(precision);
        let pick =
            |single_form, double_form| if precision == Precision::Double { double_form } else { single_form };
        let compare = pick(Mnemonic::Vucomiss, Mnemonic::Vucomisd);
        check_reg_rm(compare, (kind, kind), |asm, reg, rm| asm.float_compare(precision, reg, rm));
        let round = pick(Mnemonic::Vroundss, Mnemonic::Vroundsd);
        let convert = pick(Mnemonic::Vcvtss2sd, Mnemonic::Vcvtsd2ss);
        for operand in kind.operands() {
            for dst in [Reg::xmm(0), Reg::xmm(12)] {
                let (reg, rm) = (kind.reg(dst), kind.rm(operand));
                // No dependency on the old value of the result's register if another one can be
                // used.
                let upper = if matches!(operand, Rm::Reg(_)) { rm } else { reg };
                for (how, code) in [
                    (Rounding::Nearest, 8),
                    (Rounding::Floor, 9),
                    (Rounding::Ceil, 10),
                    (Rounding::Trunc, 11),
                ] {
                    let expected = (round, &[reg, upper, rm, Op::Imm(code)][..]);
                    check(expected, |asm| asm.float_round(how, precision, dst, operand));
                }
                check((convert, &[reg, upper, rm]), |asm| asm.float_convert(precision, dst, operand));
            }
        }
        for width in WIDTHS {
            let from = pick(Mnemonic::Vcvtsi2ss, Mnemonic::Vcvtsi2sd);
            for operand in int(width).operands() {
                for dst in kind.registers().step_by(5) {
                    let expected = (from, &[kind.reg(dst), kind.reg(dst), int(width).rm(operand)][..]);
                    check(expected, |asm| asm.float_from_int(precision, dst, width, operand));
                }
            }
            let to = pick(Mnemonic::Vcvttss2si, Mnemonic::Vcvttsd2si);
            let kinds = (int(width), kind);
            check_reg_rm(to, kinds, |asm, reg, rm| asm.float_to_int(precision, reg, width, rm));
        }
    }
}

/// A constant after the code, one before it, and one that two instructions share.
#[test]
fn data_labels_are_relative_to_the_end_of_the_instruction() {
    let add = |asm: &mut Assembler<'_>, dst: u8, data: Label| {
        asm.float(FloatOp::Add, Precision::Double, Reg::xmm(dst), Reg::xmm(1), Mem::data(data));
    };
    let code = assemble(|asm| {
        let (front, back) = (asm.new_label(), asm.new_label());
        asm.bind(front);
        asm.nops(8);
        add(asm, 0, back);
        add(asm, 9, front);
        asm.float_load(Precision::Single, Reg::xmm(15), Mem::data(back));
        asm.float_compare(Precision::Double, Reg::xmm(2), Mem::data(back));
        asm.float(FloatOp::Xor, Precision::Double, Reg::xmm(2), Reg::xmm(2), Mem::data(back));
        asm.nops(3);
        asm.bind(back);
    });
    let places: Vec<u64> = decode(&code)
        .iter()
        .filter(|instruction| instruction.is_ip_rel_memory_operand())
        .map(Instruction::ip_rel_memory_address)
        .collect();
    let end = code.len() as u64;
    assert_eq!(places, [end, 0, end, end, end]);
}

/// A jump over `over` bytes, to a label bound before or after it, decoded.
fn jump(cond: Option<Cond>, over: u32, back: bool) -> (Instruction, u64) {
    let mut bound = 0;
    let code = assemble(|asm| {
        let label = asm.new_label();
        let jump = |asm: &mut Assembler<'_>| match cond {
            Some(cond) => asm.jcc(cond, label),
            None => asm.jmp(label),
        };
        if back {
            asm.bind(label);
            asm.nops(over);
            jump(asm);
        } else {
            jump(asm);
            asm.nops(over);
            bound = asm.offset();
            asm.bind(label);
        }
    });
    let instructions = decode(&code);
    (instructions[if back { instructions.len() - 1 } else { 0 }], bound.into())
}

#[test]
fn jumps_reach_their_label_and_are_short_only_back_and_near() {
    let kinds = CONDITIONS.map(|(cond, .., jump)| (Some(cond), jump));
    for (cond, mnemonic) in kinds.into_iter().chain([(None, Mnemonic::Jmp)]) {
        for over in [0, 1, 124, 125, 126, 127, 128, 300, 70_000] {
            for back in [false, true] {
                let (instruction, label) = jump(cond, over, back);
                assert_eq!(instruction.mnemonic(), mnemonic);
                assert_eq!(instruction.near_branch_target(), label, "{cond:?} over {over}, back: {back}");
                let short = back && over <= 126;
                let long = if cond.is_some() { 6 } else { 5 };
                assert_eq!(instruction.len(), if short { 2 } else { long }, "{cond:?} over {over}");
            }
        }
    }
}

#[test]
fn a_chain_of_forward_jumps_is_bound_at_once() {
    let mut bound = 0;
    let code = assemble(|asm| {
        let (label, other) = (asm.new_label(), asm.new_label());
        for (number, (cond, ..)) in (0..).zip(CONDITIONS) {
            asm.jcc(cond, label);
            asm.nops(number * 20);
            asm.jmp(if number % 2 == 0 { label } else { other });
        }
        asm.lea_label(Reg::R11, label);
        asm.bind(other);
        asm.nops(100);
        bound = asm.offset();
        asm.bind(label);
        asm.jmp(label);
    });
    let decoded = decode(&code);
    let jumps: Vec<u64> = decoded
        .iter()
        .filter(|instruction| instruction.op_count() == 1 && instruction.op0_kind() == OpKind::NearBranch64)
        .map(Instruction::near_branch_target)
        .collect();
    let to_other = u64::from(bound) - 100;
    let mut expected: Vec<u64> =
        (0..16).flat_map(|n| [bound.into(), if n % 2 == 0 { bound.into() } else { to_other }]).collect();
    expected.push(bound.into());
    assert_eq!(jumps, expected);
    let lea = decoded.iter().find(|instruction| instruction.mnemonic() == Mnemonic::Lea).unwrap();
    assert_eq!(lea.ip_rel_memory_address(), u64::from(bound));
}

#[test]
fn lea_of_a_label_into_every_register() {
    for reg in Kind::Int(8).registers() {
        let code = assemble(|asm| {
            let label = asm.new_label();
            asm.bind(label);
            asm.lea_label(reg, label);
        });
        let [instruction] = decode(&code)[..] else { panic!("{code:02x?}") };
        assert_eq!(operand(&instruction, 0), Kind::Int(8).reg(reg));
        assert_eq!(instruction.ip_rel_memory_address(), 0);
    }
}

#[test]
fn a_jump_table_holds_distances_from_its_start() {
    for before in 0..5 {
        let (mut start, mut places) = (0, Vec::new());
        let code = assemble(|asm| {
            let table = asm.new_label();
            let targets: Vec<Label> = (0..3).map(|_| asm.new_label()).collect();
            asm.lea_label(Reg::RAX, table);
            for target in &targets {
                places.push(asm.offset());
                asm.bind(*target);
                asm.nops(7);
            }
            asm.nops(before);
            asm.jump_table(table, &[targets[2], targets[0], targets[0], targets[1]]);
            start = asm.offset() - 16;
        });
        assert!(start.is_multiple_of(4));
        assert_eq!(decode(&code[..7])[0].ip_rel_memory_address(), u64::from(start));
        let entries: Vec<u32> = code[start as usize..]
            .chunks(4)
            .map(|entry| start.wrapping_add(u32::from_le_bytes(entry.try_into().unwrap())))
            .collect();
        assert_eq!(entries, [places[2], places[0], places[0], places[1]]);
    }
}

#[test]
fn calls_jumps_and_returns() {
    check((Mnemonic::Call, &[Op::Target(5)]), |asm| assert_eq!(asm.call_to_link(), 1));
    check((Mnemonic::Jmp, &[Op::Target(5)]), |asm| assert_eq!(asm.jmp_to_link(), 1));
    let kind = Kind::Int(8);
    for mem in memory() {
        check((Mnemonic::Call, &[kind.mem(mem)]), |asm| asm.call_mem(mem));
        check((Mnemonic::Jmp, &[kind.mem(mem)]), |asm| asm.jmp_mem(mem));
    }
    for reg in kind.registers() {
        check((Mnemonic::Call, &[kind.reg(reg)]), |asm| asm.call_reg(reg));
        check((Mnemonic::Jmp, &[kind.reg(reg)]), |asm| asm.jmp_reg(reg));
        check((Mnemonic::Push, &[kind.reg(reg)]), |asm| asm.push(reg));
        check((Mnemonic::Pop, &[kind.reg(reg)]), |asm| asm.pop(reg));
    }
    check((Mnemonic::Ret, &[]), |asm| asm.ret(0));
    check((Mnemonic::Ret, &[Op::Imm(16)]), |asm| asm.ret(16));
    check((Mnemonic::Ret, &[Op::Imm(8000)]), |asm| asm.ret(8000));
    check((Mnemonic::Leave, &[]), |asm| asm.leave());
    let trap = assemble(|asm| asm.ud2(7));
    assert_eq!((decode(&trap[..2])[0].mnemonic(), trap[2]), (Mnemonic::Ud2, 7));
}

#[test]
fn nops_of_every_length_are_as_few_as_can_be() {
    for count in 0..=40 {
        let code = assemble(|asm| asm.nops(count));
        assert_eq!(code.len(), count as usize);
        let decoded = decode(&code);
        assert!(decoded.iter().all(|instruction| instruction.mnemonic() == Mnemonic::Nop), "{code:02x?}");
        assert_eq!(decoded.len(), count.div_ceil(9) as usize);
    }
}
