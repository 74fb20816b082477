//! Registers and memory operands, and the widths of operations.

/// The two kinds of registers that the code uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegClass {
    /// Registers for integers and references.
    General,
    /// Registers for floats and vectors.
    Sse,
}

/// A general register (0 to 15) or an SSE register (16 to 31).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub(crate) u8);

impl Reg {
    pub(crate) const RAX: Self = Self(0);
    pub(crate) const RCX: Self = Self(1);
    pub(crate) const RDX: Self = Self(2);
    pub(crate) const RBX: Self = Self(3);
    pub(crate) const RSP: Self = Self(4);
    pub(crate) const RBP: Self = Self(5);
    pub(crate) const RSI: Self = Self(6);
    pub(crate) const RDI: Self = Self(7);
    pub(crate) const R8: Self = Self(8);
    pub(crate) const R9: Self = Self(9);
    pub(crate) const R10: Self = Self(10);
    pub(crate) const R11: Self = Self(11);
    pub(crate) const R12: Self = Self(12);
    pub(crate) const R13: Self = Self(13);
    pub(crate) const R14: Self = Self(14);
    pub(crate) const R15: Self = Self(15);

    /// SSE register `n`.
    pub(crate) const fn xmm(n: u8) -> Self {
        assert!(n < 16);
        Self(16 + n)
    }

    /// The class of the register.
    pub(crate) const fn class(self) -> RegClass {
        if self.is_float() { RegClass::Sse } else { RegClass::General }
    }

    /// Whether this is an SSE register.
    #[must_use]
    pub const fn is_float(self) -> bool {
        self.0 >= 16
    }

    /// The register's number among those of its kind.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0 & 15
    }

    /// The register's number among all registers: general ones come first.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The register's bit in a set of registers.
    pub(crate) const fn bit(self) -> u32 {
        1 << self.0
    }
}

impl std::fmt::Debug for Reg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15",
        ];
        if self.is_float() { write!(f, "xmm{}", self.number()) } else { f.write_str(NAMES[self.0 as usize]) }
    }
}

/// The width of an integer operation, or of a value, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Width {
    /// 32 bits; the upper half of a destination register becomes zero.
    W32 = 0,
    /// 64 bits. The number is the bit REX.W or VEX.W.
    W64 = 1,
}

impl Width {
    /// The number of bits.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }
}

/// The format of a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// 32 bits.
    Single,
    /// 64 bits.
    Double,
}

impl From<Width> for Precision {
    fn from(width: Width) -> Self {
        match width {
            Width::W32 => Self::Single,
            Width::W64 => Self::Double,
        }
    }
}

/// A memory operand: base + index * 2^scale + displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mem {
    base: Reg,
    index: Reg,
    pub(super) scale: u8,
    pub(super) disp: i32,
}

/// Stands for no register in a [`Mem`], which thus fits a register of the machine.
const NONE: Reg = Reg(u8::MAX);

impl Mem {
    pub(crate) const fn base(base: Reg, disp: i32) -> Self {
        Self { base, index: NONE, scale: 0, disp }
    }

    /// `index` must not be `rsp`.
    pub(crate) const fn indexed(base: Reg, index: Reg, scale: u8, disp: i32) -> Self {
        Self { base, index, scale, disp }
    }

    /// Data after the code, at a label: for instructions without an immediate.
    pub(crate) const fn data(label: super::Label) -> Self {
        Self { base: NONE, index: NONE, scale: 0, disp: label.0 as i32 }
    }

    /// The label, if this is data after the code.
    pub(super) const fn data_label(self) -> Option<super::Label> {
        match (self.base, self.index) {
            (NONE, NONE) => Some(super::Label(self.disp as u32)),
            _ => None,
        }
    }

    pub(super) fn base_register(self) -> Option<Reg> {
        (self.base != NONE).then_some(self.base)
    }

    pub(super) fn index_register(self) -> Option<Reg> {
        (self.index != NONE).then_some(self.index)
    }

    pub(crate) const fn disp(self) -> i32 {
        self.disp
    }

    /// Base, index with its shift, and displacement.
    pub(crate) fn parts(self) -> (Option<Reg>, Option<(Reg, u8)>, i32) {
        (self.base_register(), self.index_register().map(|index| (index, self.scale)), self.disp)
    }

    /// The registers that the address depends on.
    pub(crate) fn registers(self) -> impl Iterator<Item = Reg> {
        self.base_register().into_iter().chain(self.index_register())
    }

    /// An address without a base.
    pub(crate) const fn scaled(index: Reg, scale: u8, disp: i32) -> Self {
        Self { base: NONE, index, scale, disp }
    }
}

/// A register or a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rm {
    Reg(Reg),
    Mem(Mem),
}

impl From<Reg> for Rm {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<Mem> for Rm {
    fn from(mem: Mem) -> Self {
        Self::Mem(mem)
    }
}
