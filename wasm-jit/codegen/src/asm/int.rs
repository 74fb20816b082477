//! Integer instructions.

use super::encode::{Bytes, Extra, Map, Opcode, Prefix, op, op_0f, op_p};
use super::{Assembler, Mem, Reg, Rm, Width};

/// The eight instructions of the first group, by their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Alu {
    Add = 0,
    Or = 1,
    Adc = 2,
    Sbb = 3,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// Shifts and rotations, by their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Shift {
    Rol = 0,
    Ror = 1,
    Shl = 4,
    Shr = 5,
    Sar = 7,
}

/// Conditions, by their code; the opposite differs in the lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Cond {
    Overflow = 0,
    NotOverflow = 1,
    Below = 2,
    AboveEqual = 3,
    Equal = 4,
    NotEqual = 5,
    BelowEqual = 6,
    Above = 7,
    Sign = 8,
    NotSign = 9,
    Parity = 10,
    NotParity = 11,
    Less = 12,
    GreaterEqual = 13,
    LessEqual = 14,
    Greater = 15,
}

impl Cond {
    const ALL: [Self; 16] = [
        Self::Overflow,
        Self::NotOverflow,
        Self::Below,
        Self::AboveEqual,
        Self::Equal,
        Self::NotEqual,
        Self::BelowEqual,
        Self::Above,
        Self::Sign,
        Self::NotSign,
        Self::Parity,
        Self::NotParity,
        Self::Less,
        Self::GreaterEqual,
        Self::LessEqual,
        Self::Greater,
    ];

    /// The opposite condition.
    pub(crate) fn opposite(self) -> Self {
        Self::ALL[self as usize ^ 1]
    }

    /// The condition for the operands in reverse order.
    pub(crate) fn swapped(self) -> Self {
        match self {
            Self::Below => Self::Above,
            Self::AboveEqual => Self::BelowEqual,
            Self::BelowEqual => Self::AboveEqual,
            Self::Above => Self::Below,
            Self::Less => Self::Greater,
            Self::GreaterEqual => Self::LessEqual,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            same => same,
        }
    }
}

/// Size of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    B1,
    B2,
    B4,
    B8,
}

impl Size {
    pub(crate) fn bytes(self) -> u32 {
        1 << self as u32
    }

    /// The width of the operation that accesses it.
    pub(crate) fn width(self) -> Width {
        if self == Self::B8 { Width::W64 } else { Width::W32 }
    }
}

impl From<Width> for Size {
    fn from(width: Width) -> Self {
        match width {
            Width::W32 => Self::B4,
            Width::W64 => Self::B8,
        }
    }
}

/// The opcode for this size: `byte` is the opcode of the 8-bit form, the next one that of the
/// others.
fn sized(size: Size, map: Map, byte: u8) -> Opcode {
    match size {
        Size::B1 => op_p(Prefix::None, map, byte),
        Size::B2 => op_p(Prefix::X66, map, byte + 1),
        Size::B4 | Size::B8 => op_p(Prefix::None, map, byte + 1),
    }
}

/// Whether a byte register needs REX: without it, 4 to 7 are `ah` to `bh`.
fn needs_rex(size: Size, reg: Reg) -> bool {
    size == Size::B1 && matches!(reg.0, 4..=7)
}

impl Assembler<'_> {
    /// `alu dst, src`
    pub(crate) fn alu(&mut self, what: Alu, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op((what as u8) << 3 | 3), width, dst.0, src.into());
    }

    /// `alu [dst], src`
    pub(crate) fn alu_memory(&mut self, what: Alu, width: Width, dst: Mem, src: Reg) {
        self.instruction(op((what as u8) << 3 | 1), width, src.0, dst.into());
    }

    /// `alu dst, imm`, sign-extended.
    pub(crate) fn alu_imm(&mut self, what: Alu, width: Width, dst: impl Into<Rm>, imm: i32) {
        match i8::try_from(imm) {
            Ok(short) => self.instruction_imm8(op(0x83), width, what as u8, dst.into(), short as u8),
            Err(_) => self.instruction_imm32(op(0x81), width, what as u8, dst.into(), imm),
        }
    }

    /// `add qword [dst], 1` with an immediate of 32 bits.
    pub(super) fn add_one_long(&mut self, dst: Mem) {
        self.instruction_imm32(op(0x81), Width::W64, Alu::Add as u8, dst.into(), 1);
    }

    /// `lock xadd [dst], src`: `src` becomes the old value.
    pub(crate) fn lock_xadd(&mut self, size: Size, dst: Mem, src: Reg) {
        self.with_lock(sized(size, Map::X0F, 0xc0), size, src, dst);
    }

    /// `lock cmpxchg [dst], src`: compares with `rax`, which becomes the old value.
    pub(crate) fn lock_cmpxchg(&mut self, size: Size, dst: Mem, src: Reg) {
        self.with_lock(sized(size, Map::X0F, 0xb0), size, src, dst);
    }

    /// `xchg [dst], src`, which implies LOCK.
    pub(crate) fn xchg_mem(&mut self, size: Size, dst: Mem, src: Reg) {
        let extra = Extra { lock: false, byte_register: needs_rex(size, src) };
        let bytes = self.legacy(sized(size, Map::One, 0x86), size.width(), src.0, dst.into(), extra);
        self.emit(&bytes);
    }

    fn with_lock(&mut self, opcode: Opcode, size: Size, src: Reg, dst: Mem) {
        let extra = Extra { byte_register: needs_rex(size, src), ..Self::locked() };
        let bytes = self.legacy(opcode, size.width(), src.0, dst.into(), extra);
        self.emit(&bytes);
    }

    pub(crate) fn mfence(&mut self) {
        self.bytes(&[0x0f, 0xae, 0xf0]);
    }

    /// Reads the time-stamp counter into `edx` and `eax`.
    pub(crate) fn rdtsc(&mut self) {
        self.bytes(&[0x0f, 0x31]);
    }

    pub(crate) fn test(&mut self, width: Width, a: impl Into<Rm>, b: Reg) {
        self.instruction(op(0x85), width, b.0, a.into());
    }

    pub(crate) fn test_imm(&mut self, width: Width, a: impl Into<Rm>, imm: i32) {
        self.instruction_imm32(op(0xf7), width, 0, a.into(), imm);
    }

    /// MOV between registers or from memory; a 32-bit MOV clears the upper half.
    pub(crate) fn mov(&mut self, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op(0x8b), width, dst.0, src.into());
    }

    /// `mov dst, fs:[offset]`
    pub(crate) fn mov_of_thread(&mut self, dst: Reg, offset: i32) {
        self.use_register(dst);
        // FS, REX.W and R, the opcode, and mod 00 with a SIB byte of neither base nor index.
        self.bytes(&[0x64, 0x48 | dst.number() >> 3 << 2, 0x8b, (dst.number() & 7) << 3 | 4, 0x25]);
        self.bytes(&offset.to_le_bytes());
    }

    pub(crate) fn mov_store(&mut self, size: Size, dst: Mem, src: Reg) {
        let extra = Extra { lock: false, byte_register: needs_rex(size, src) };
        let bytes = self.legacy(sized(size, Map::One, 0x88), size.width(), src.0, dst.into(), extra);
        self.emit(&bytes);
    }

    /// Stores an immediate, sign-extended for eight bytes.
    pub(crate) fn mov_store_imm(&mut self, size: Size, dst: Mem, imm: i32) {
        let mut bytes =
            self.legacy(sized(size, Map::One, 0xc6), size.width(), 0, dst.into(), Extra::default());
        match size {
            Size::B1 => bytes.push(imm as u8),
            Size::B2 => {
                bytes.push(imm as u8);
                bytes.push((imm >> 8) as u8);
            }
            Size::B4 | Size::B8 => bytes.push_i32(imm),
        }
        self.emit(&bytes);
    }

    /// Loads a constant in the shortest form that preserves the flags.
    pub(crate) fn mov_imm(&mut self, dst: Reg, imm: u64) {
        self.use_register(dst);
        let mut bytes = Bytes::new();
        let low = 0xb8 | dst.number() & 7;
        let high = dst.number() >> 3;
        if let Ok(imm) = u32::try_from(imm) {
            if high != 0 {
                bytes.push(0x41);
            }
            bytes.push(low);
            bytes.push_i32(imm as i32);
        } else if let Ok(imm) = i32::try_from(imm as i64) {
            return self.instruction_imm32(op(0xc7), Width::W64, 0, dst.into(), imm);
        } else {
            bytes.push(0x48 | high);
            bytes.push(low);
            bytes.push_u64(imm);
        }
        self.emit(&bytes);
    }

    /// XOR of a register with itself: changes the flags.
    pub(crate) fn zero(&mut self, dst: Reg) {
        self.alu(Alu::Xor, Width::W32, dst, dst);
    }

    /// Loads or moves with zero extension to 64 bits.
    pub(crate) fn movzx(&mut self, size: Size, dst: Reg, src: impl Into<Rm>) {
        let src = src.into();
        let opcode = match size {
            Size::B1 => op_0f(0xb6),
            Size::B2 => op_0f(0xb7),
            Size::B4 => return self.mov(Width::W32, dst, src),
            Size::B8 => return self.mov(Width::W64, dst, src),
        };
        self.extending(opcode, size, Width::W32, dst, src);
    }

    /// Loads or moves with sign extension to 32 or 64 bits.
    pub(crate) fn movsx(&mut self, size: Size, width: Width, dst: Reg, src: impl Into<Rm>) {
        let src = src.into();
        let opcode = match size {
            Size::B1 => op_0f(0xbe),
            Size::B2 => op_0f(0xbf),
            Size::B4 if width == Width::W64 => op(0x63),
            Size::B4 | Size::B8 => return self.mov(width, dst, src),
        };
        self.extending(opcode, size, width, dst, src);
    }

    fn extending(&mut self, opcode: Opcode, size: Size, width: Width, dst: Reg, src: Rm) {
        let byte_register = matches!(src, Rm::Reg(reg) if needs_rex(size, reg));
        let bytes = self.legacy(opcode, width, dst.0, src, Extra { lock: false, byte_register });
        self.emit(&bytes);
    }

    pub(crate) fn lea(&mut self, width: Width, dst: Reg, mem: Mem) {
        self.instruction(op(0x8d), width, dst.0, mem.into());
    }

    pub(crate) fn imul(&mut self, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op_0f(0xaf), width, dst.0, src.into());
    }

    /// `imul dst, src, imm`
    pub(crate) fn imul_imm(&mut self, width: Width, dst: Reg, src: impl Into<Rm>, imm: i32) {
        match i8::try_from(imm) {
            Ok(short) => self.instruction_imm8(op(0x6b), width, dst.0, src.into(), short as u8),
            Err(_) => self.instruction_imm32(op(0x69), width, dst.0, src.into(), imm),
        }
    }

    pub(crate) fn not(&mut self, width: Width, dst: Reg) {
        self.instruction(op(0xf7), width, 2, dst.into());
    }

    pub(crate) fn neg(&mut self, width: Width, dst: Reg) {
        self.instruction(op(0xf7), width, 3, dst.into());
    }

    /// `rdx:rax = rax * src`
    pub(crate) fn mul(&mut self, width: Width, src: impl Into<Rm>) {
        self.instruction(op(0xf7), width, 4, src.into());
    }

    /// `rdx:rax = rax * src`, signed.
    pub(crate) fn imul_wide(&mut self, width: Width, src: impl Into<Rm>) {
        self.instruction(op(0xf7), width, 5, src.into());
    }

    /// Quotient to `rax`, remainder to `rdx`.
    pub(crate) fn div(&mut self, width: Width, src: impl Into<Rm>) {
        self.instruction(op(0xf7), width, 6, src.into());
    }

    pub(crate) fn idiv(&mut self, width: Width, src: impl Into<Rm>) {
        self.instruction(op(0xf7), width, 7, src.into());
    }

    /// CDQ or CQO: `rdx` becomes the sign of `rax`.
    pub(crate) fn sign_to_rdx(&mut self, width: Width) {
        if width == Width::W64 {
            self.bytes(&[0x48]);
        }
        self.bytes(&[0x99]);
    }

    pub(crate) fn shift_imm(&mut self, what: Shift, width: Width, dst: Reg, count: u8) {
        self.instruction_imm8(op(0xc1), width, what as u8, dst.into(), count);
    }

    /// A shift by `cl`.
    pub(crate) fn shift_cl(&mut self, what: Shift, width: Width, dst: Reg) {
        self.instruction(op(0xd3), width, what as u8, dst.into());
    }

    /// SHLX, SHRX or SARX: preserves the flags.
    pub(crate) fn shift_by(&mut self, what: Shift, width: Width, dst: Reg, src: impl Into<Rm>, count: Reg) {
        let prefix = match what {
            Shift::Shl => Prefix::X66,
            Shift::Shr => Prefix::XF2,
            Shift::Sar => Prefix::XF3,
            Shift::Rol | Shift::Ror => unreachable!("rotations have no such form"),
        };
        self.vex(op_p(prefix, Map::X0F38, 0xf7), width, dst.0, count.0, src.into(), None);
    }

    /// `rorx dst, src, count`
    pub(crate) fn rorx(&mut self, width: Width, dst: Reg, src: impl Into<Rm>, count: u8) {
        self.vex(op_p(Prefix::XF2, Map::X0F3A, 0xf0), width, dst.0, 0, src.into(), Some(count));
    }

    pub(crate) fn lzcnt(&mut self, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op_p(Prefix::XF3, Map::X0F, 0xbd), width, dst.0, src.into());
    }

    pub(crate) fn tzcnt(&mut self, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op_p(Prefix::XF3, Map::X0F, 0xbc), width, dst.0, src.into());
    }

    pub(crate) fn popcnt(&mut self, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op_p(Prefix::XF3, Map::X0F, 0xb8), width, dst.0, src.into());
    }

    /// Sets the lowest byte to 0 or 1.
    pub(crate) fn setcc(&mut self, cond: Cond, dst: Reg) {
        let extra = Extra { lock: false, byte_register: needs_rex(Size::B1, dst) };
        let bytes = self.legacy(op_0f(0x90 | cond as u8), Width::W32, 0, dst.into(), extra);
        self.emit(&bytes);
    }

    /// Puts all arithmetic flags into `ah` and the lowest bit of `al`, and preserves them.
    pub(crate) fn flags_to_rax(&mut self) {
        self.setcc(Cond::Overflow, Reg::RAX);
        // LAHF
        self.bytes(&[0x9f]);
    }

    /// The reverse of [`Assembler::flags_to_rax`].
    pub(crate) fn flags_from_rax(&mut self) {
        // ADD al, 127 overflows for 1; SAHF, which preserves the overflow flag.
        self.bytes(&[0x04, 0x7f, 0x9e]);
    }

    pub(crate) fn cmov(&mut self, cond: Cond, width: Width, dst: Reg, src: impl Into<Rm>) {
        self.instruction(op_0f(0x40 | cond as u8), width, dst.0, src.into());
    }
}
