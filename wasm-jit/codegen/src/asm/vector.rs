//! 128-bit vector instructions, in the VEX encoding (Intel SDM volume 2), or, if there is none, in
//! the EVEX encoding, which only processors with AVX-512 have.
//!
//! Memory operands need no alignment. An instruction is a [`VectorOp`], named by its mnemonic; the
//! functions differ in the number and the kind of operands.

use super::encode::{Map, Opcode, Prefix, op_p};
use super::{Assembler, Mem, Reg, Rm, Width};

/// A vector instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorOp {
    encoding: Encoding,
    opcode: Opcode,
    /// The bit W.
    width: Width,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Vex,
    Evex,
}

/// An instruction that has an immediate as its last operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorImmOp(VectorOp);

/// A shift by an immediate: its opcode, and the part of the opcode that is in ModRM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorShiftOp(VectorOp, u8);

const fn of(prefix: Prefix, map: Map, byte: u8, width: Width) -> VectorOp {
    VectorOp { encoding: Encoding::Vex, opcode: op_p(prefix, map, byte), width }
}

const fn of_evex(prefix: Prefix, map: Map, byte: u8, width: Width) -> VectorOp {
    VectorOp { encoding: Encoding::Evex, opcode: op_p(prefix, map, byte), width }
}

macro_rules! instructions {
    ($($kind:ident $of:ident $width:ident $prefix:ident $map:ident: $($name:ident $byte:literal),*;)*) => {
        $($(instructions! { @$kind $name $of(Prefix::$prefix, Map::$map, $byte, Width::$width) })*)*

        /// All instructions: whether they have an immediate, and their names.
        #[cfg(test)]
        const ALL: &[(bool, &str, VectorOp)] = &[
            $($((
                instructions! { @has_imm $kind },
                stringify!($name),
                $of(Prefix::$prefix, Map::$map, $byte, Width::$width),
            ),)*)*
        ];
    };
    (@has_imm plain) => { false };
    (@has_imm imm) => { true };
    (@plain $name:ident $op:expr) => {
        impl VectorOp {
            pub(crate) const $name: Self = $op;
        }
    };
    (@imm $name:ident $op:expr) => {
        impl VectorImmOp {
            pub(crate) const $name: Self = Self($op);
        }
    };
}

instructions! {
    plain of W32 X66 X0F: PUNPCKLBW 0x60, PUNPCKLWD 0x61, PUNPCKLDQ 0x62, PACKSSWB 0x63, PCMPGTB 0x64,
        PCMPGTW 0x65, PCMPGTD 0x66, PACKUSWB 0x67, PUNPCKHBW 0x68, PUNPCKHWD 0x69, PUNPCKHDQ 0x6a,
        PACKSSDW 0x6b, PUNPCKLQDQ 0x6c, PUNPCKHQDQ 0x6d, PCMPEQB 0x74, PCMPEQW 0x75, PCMPEQD 0x76, PSRLW 0xd1,
        PSRLD 0xd2, PSRLQ 0xd3, PADDQ 0xd4, PMULLW 0xd5, PMOVMSKB 0xd7, PSUBUSB 0xd8, PSUBUSW 0xd9,
        PMINUB 0xda, PAND 0xdb, PADDUSB 0xdc, PADDUSW 0xdd, PMAXUB 0xde, PANDN 0xdf, PAVGB 0xe0,
        PSRAW 0xe1, PSRAD 0xe2, PAVGW 0xe3, PMULHUW 0xe4, PMULHW 0xe5, CVTTPD2DQ 0xe6, PSUBSB 0xe8,
        PSUBSW 0xe9, PMINSW 0xea, POR 0xeb, PADDSB 0xec, PADDSW 0xed, PMAXSW 0xee, PXOR 0xef,
        PSLLW 0xf1, PSLLD 0xf2, PSLLQ 0xf3, PMULUDQ 0xf4, PMADDWD 0xf5, PSUBB 0xf8, PSUBW 0xf9,
        PSUBD 0xfa, PSUBQ 0xfb, PADDB 0xfc, PADDW 0xfd, PADDD 0xfe, SQRTPD 0x51, ANDPD 0x54,
        ADDPD 0x58, MULPD 0x59, CVTPD2PS 0x5a, SUBPD 0x5c, MINPD 0x5d, DIVPD 0x5e, MAXPD 0x5f,
        MOVMSKPD 0x50, UNPCKLPD 0x14;
    plain of W32 None X0F: SQRTPS 0x51, ANDPS 0x54, ANDNPS 0x55, ORPS 0x56, XORPS 0x57, ADDPS 0x58,
        MULPS 0x59, CVTPS2PD 0x5a, CVTDQ2PS 0x5b, SUBPS 0x5c, MINPS 0x5d, DIVPS 0x5e, MAXPS 0x5f,
        MOVMSKPS 0x50;
    plain of W32 XF3 X0F: CVTTPS2DQ 0x5b, CVTDQ2PD 0xe6, MOVSS 0x10;
    plain of W32 XF2 X0F: MOVSD 0x10, MOVDDUP 0x12;
    plain of W32 X66 X0F38: PSHUFB 0x00, PHADDW 0x01, PMADDUBSW 0x04, PMULHRSW 0x0b,
        PTEST 0x17, BROADCASTSS 0x18,
        PABSB 0x1c, PABSW 0x1d, PABSD 0x1e, PMOVSXBW 0x20, PMOVSXWD 0x23, PMOVSXDQ 0x25,
        PMULDQ 0x28, PCMPEQQ 0x29, PACKUSDW 0x2b, PMOVZXBW 0x30, PMOVZXWD 0x33, PMOVZXDQ 0x35,
        PCMPGTQ 0x37, PMINSB 0x38, PMINSD 0x39, PMINUW 0x3a, PMINUD 0x3b, PMAXSB 0x3c, PMAXSD 0x3d,
        PMAXUW 0x3e, PMAXUD 0x3f, PMULLD 0x40, PBROADCASTD 0x58, PBROADCASTQ 0x59, PBROADCASTB 0x78,
        PBROADCASTW 0x79, FMADD231PS 0xb8, FNMADD231PS 0xbc;
    plain of W64 X66 X0F38: FMADD231PD 0xb8, FNMADD231PD 0xbc;
    imm of W32 X66 X0F: PSHUFD 0x70, PINSRW 0xc4, CMPPD 0xc2;
    imm of W32 None X0F: CMPPS 0xc2, SHUFPS 0xc6;
    imm of W32 X66 X0F3A: ROUNDPS 0x08, ROUNDPD 0x09, PBLENDW 0x0e, PALIGNR 0x0f, PEXTRB 0x14,
        PEXTRW 0x15,
        PEXTRD 0x16, PINSRB 0x20, INSERTPS 0x21, PINSRD 0x22, BLENDVPS 0x4a, BLENDVPD 0x4b,
        PBLENDVB 0x4c;
    imm of W64 X66 X0F3A: PEXTRQ 0x16, PINSRQ 0x22;
    plain of_evex W32 X66 X0F38: POPCNTB 0x54;
    plain of_evex W32 None X0F: CVTTPS2UDQ 0x78;
    plain of_evex W32 XF2 X0F: CVTUDQ2PS 0x7a;
    plain of_evex W32 XF3 X0F: CVTUDQ2PD 0x7a;
    plain of_evex W64 None X0F: CVTTPD2UDQ 0x78;
    plain of_evex W64 X66 X0F: PSRAQ 0xe2;
    plain of_evex W64 X66 X0F38: PABSQ 0x1f, PMULLQ 0x40;
    imm of_evex W64 X66 X0F3A: PTERNLOGQ 0x25;
}

macro_rules! shifts {
    ($($name:ident $byte:literal / $extension:literal;)*) => {
        impl VectorShiftOp {
            $(
                pub(crate) const $name: Self =
                    Self(of(Prefix::X66, Map::X0F, $byte, Width::W32), $extension);
            )*
        }
    };
}

shifts! {
    PSRLW 0x71 / 2;
    PSRAW 0x71 / 4;
    PSLLW 0x71 / 6;
    PSRLD 0x72 / 2;
    PSRAD 0x72 / 4;
    PSLLD 0x72 / 6;
    PSRLQ 0x73 / 2;
    PSLLQ 0x73 / 6;
}

impl VectorShiftOp {
    pub(crate) const PSRAQ: Self = Self(of_evex(Prefix::X66, Map::X0F, 0x72, Width::W64), 4);
}

/// VMOVUPS, from and to memory.
const LOAD: VectorOp = of(Prefix::None, Map::X0F, 0x10, Width::W32);
const STORE: VectorOp = of(Prefix::None, Map::X0F, 0x11, Width::W32);

impl Assembler<'_> {
    fn vector_raw(&mut self, op: VectorOp, reg: u8, second: u8, rm: Rm, imm: Option<u8>) {
        match op.encoding {
            Encoding::Vex => self.vex(op.opcode, op.width, reg, second, rm, imm),
            Encoding::Evex => self.evex(op.opcode, op.width, reg, second, rm, imm),
        }
    }

    /// `dst = left op right`.
    pub(crate) fn vector(&mut self, op: VectorOp, dst: Reg, left: Reg, right: impl Into<Rm>) {
        self.vector_raw(op, dst.number(), left.number(), right.into(), None);
    }

    /// `dst = op src`; `dst` is a general register for PMOVMSKB, MOVMSKPS and MOVMSKPD, and the
    /// first one of two operands for PTEST.
    pub(crate) fn vector_unary(&mut self, op: VectorOp, dst: Reg, src: impl Into<Rm>) {
        self.vector_raw(op, dst.number(), 0, src.into(), None);
    }

    /// `dst = left op right`, with an immediate. `right` must not be data after the code.
    pub(crate) fn vector_imm(&mut self, op: VectorImmOp, dst: Reg, left: Reg, right: impl Into<Rm>, imm: u8) {
        self.vector_raw(op.0, dst.number(), left.number(), right.into(), Some(imm));
    }

    /// `dst = op src`, with an immediate. `src` must not be data after the code.
    pub(crate) fn vector_unary_imm(&mut self, op: VectorImmOp, dst: Reg, src: impl Into<Rm>, imm: u8) {
        self.vector_raw(op.0, dst.number(), 0, src.into(), Some(imm));
    }

    /// PEXTRB and similar instructions: a lane of `src` to a general register or to memory.
    pub(crate) fn vector_extract(&mut self, op: VectorImmOp, dst: impl Into<Rm>, src: Reg, lane: u8) {
        self.vector_raw(op.0, src.number(), 0, dst.into(), Some(lane));
    }

    /// BLENDVPS and similar instructions: takes `right` where the sign bit of the mask is set, else
    /// `left`.
    pub(crate) fn vector_blend(&mut self, op: VectorImmOp, dst: Reg, left: Reg, right: Reg, mask: Reg) {
        self.vector_raw(op.0, dst.number(), left.number(), right.into(), Some(mask.number() << 4));
    }

    /// `dst = src` shifted by a constant.
    pub(crate) fn vector_shift(&mut self, op: VectorShiftOp, dst: Reg, src: Reg, count: u8) {
        self.vector_raw(op.0, op.1, dst.number(), src.into(), Some(count));
    }

    pub(crate) fn vector_load(&mut self, dst: Reg, src: Mem) {
        self.vector_unary(LOAD, dst, src);
    }

    pub(crate) fn vector_store(&mut self, dst: Mem, src: Reg) {
        self.vector_unary(STORE, src, dst);
    }

    /// Sets all bits.
    pub(crate) fn vector_ones(&mut self, dst: Reg) {
        self.vector(VectorOp::PCMPEQD, dst, dst, dst);
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};

    use super::*;

    fn decoded(write: impl FnOnce(&mut Assembler<'_>)) -> Instruction {
        let mut code = Vec::new();
        write(&mut Assembler::new(&mut code));
        let instruction = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).decode();
        assert!(instruction.is_invalid() || instruction.len() == code.len(), "{code:02x?}");
        instruction
    }

    /// The numbers of the operands that are registers.
    fn registers(instruction: &Instruction) -> Vec<usize> {
        let registers = (0..instruction.op_count()).filter(|at| instruction.op_kind(*at) == OpKind::Register);
        registers.map(|at| instruction.op_register(at).number()).collect()
    }

    #[test]
    fn each_instruction_is_the_one_of_its_name() {
        for (has_imm, name, op) in ALL {
            for (dst, left, right) in [(1, 2, 3), (9, 2, 3), (1, 10, 3), (1, 2, 11), (15, 14, 13)] {
                let imm = has_imm.then_some(0x50);
                let rm = Rm::Reg(Reg::xmm(right));
                let three = decoded(|asm| asm.vector_raw(*op, dst, left, rm, imm));
                let two = decoded(|asm| asm.vector_raw(*op, dst, 0, rm, imm));
                let [dst, left, right] = [dst, left, right].map(usize::from);
                // An instruction with two operands is invalid if a third one is given.
                let (instruction, expected) = match three.is_invalid() {
                    true if name.starts_with("PEXTR") => (two, vec![right, dst]),
                    true => (two, vec![dst, right]),
                    // The mask is in the upper half of the immediate.
                    false if name.contains("BLENDV") => (three, vec![dst, left, right, 5]),
                    false => (three, vec![dst, left, right]),
                };
                let mnemonic = format!("{:?}", instruction.mnemonic()).to_uppercase();
                assert_eq!(mnemonic, format!("V{name}"), "{instruction}");
                assert_eq!(registers(&instruction), expected, "{instruction}");
            }
        }
    }

    #[test]
    fn shifts_by_constants_and_moves_to_memory() {
        let cases = [
            (VectorShiftOp::PSRLW, "vpsrlw"),
            (VectorShiftOp::PSRAW, "vpsraw"),
            (VectorShiftOp::PSLLW, "vpsllw"),
            (VectorShiftOp::PSRLD, "vpsrld"),
            (VectorShiftOp::PSRAD, "vpsrad"),
            (VectorShiftOp::PSLLD, "vpslld"),
            (VectorShiftOp::PSRLQ, "vpsrlq"),
            (VectorShiftOp::PSLLQ, "vpsllq"),
            (VectorShiftOp::PSRAQ, "vpsraq"),
        ];
        for (op, name) in cases {
            let instruction = decoded(|asm| asm.vector_shift(op, Reg::xmm(9), Reg::xmm(12), 5));
            assert_eq!(instruction.to_string(), format!("{name} xmm9,xmm12,5"));
        }
        let memory = Mem::indexed(Reg::R15, Reg::R9, 0, 16);
        let load = decoded(|asm| asm.vector_load(Reg::xmm(9), memory));
        assert_eq!(load.to_string(), "vmovups xmm9,[r15+r9+10h]");
        let store = decoded(|asm| asm.vector_store(memory, Reg::xmm(9)));
        assert_eq!(store.to_string(), "vmovups [r15+r9+10h],xmm9");
        for (base, disp) in [(Reg::RAX, 0), (Reg::RBP, 0), (Reg::RSP, 16), (Reg::R13, 0), (Reg::R12, 8)] {
            let op = VectorOp::PMULLQ;
            let sum = decoded(|asm| asm.vector(op, Reg::xmm(9), Reg::xmm(14), Mem::base(base, disp)));
            let address = format!("{base:?}").to_lowercase();
            let plus = if disp == 0 { String::new() } else { format!("+{disp:x}h") };
            let plus = plus.replace("+8h", "+8");
            assert_eq!(sum.to_string(), format!("vpmullq xmm9,xmm14,[{address}{plus}]"));
        }
        let sum = decoded(|asm| asm.vector(VectorOp::PMULLQ, Reg::xmm(9), Reg::xmm(14), memory));
        assert_eq!(sum.to_string(), "vpmullq xmm9,xmm14,[r15+r9+10h]");
        let extract = decoded(|asm| asm.vector_extract(VectorImmOp::PEXTRB, memory, Reg::xmm(9), 7));
        assert_eq!(extract.to_string(), "vpextrb [r15+r9+10h],xmm9,7");
    }
}
