//! Trampolines: from the host into compiled code, and from compiled code to host functions. Both
//! move values between an array and the locations of the calling convention.

use wasmparser::FuncType;

use crate::asm::{Alu, Assembler, Cond, Mem, Precision, Reg, Size, Width};
use crate::compiler::abi::{
    ArgPlace, ArgPlaces, CALLEE_SAVED, CONTEXT, MEMORY, ResultPlace, SCRATCH, SLOTS, Ty, result_places,
    stack_bytes, with_index, words,
};
use crate::vmctx::{
    ACTIVATION_FP, EXIT_FP, EXIT_SP, HEAD, LIBCALLS, Libcall, MEMORY0, RESULTS, STORE, TrapCode,
};

/// Registers that an entry trampoline saves, in this order, directly below `rbp`.
const SAVED: [Reg; 5] = [Reg::RBX, Reg::R12, Reg::R13, Reg::R14, Reg::R15];

/// Stores a value from a register into an array, zero-extended to eight bytes; a vector has two
/// elements.
fn to_array(asm: &mut Assembler<'_>, ty: Ty, array: Reg, index: u32, src: Reg) {
    let element = Mem::base(array, 8 * index as i32);
    match ty {
        Ty::F32 => {
            asm.mov_store_imm(Size::B8, element, 0);
            asm.float_store(Precision::Single, element, src);
        }
        Ty::F64 => asm.float_store(Precision::Double, element, src),
        Ty::V128 => asm.vector_store(element, src),
        Ty::I32 | Ty::I64 | Ty::Ref => asm.mov_store(Size::B8, element, src),
    }
}

/// A quadword after the address in a register.
fn quadword(base: Reg, index: u32) -> Mem {
    Mem::base(base, 8 * index as i32)
}

fn from_array(asm: &mut Assembler<'_>, ty: Ty, dst: Reg, array: Reg, index: u32) {
    let element = Mem::base(array, 8 * index as i32);
    if ty == Ty::V128 {
        asm.vector_load(dst, element);
    } else if ty.is_sse() {
        asm.float_load(ty.precision(), dst, element)
    } else {
        asm.mov(ty.width(), dst, element)
    }
}

/// Appends the trampoline that enters compiled code:
/// `extern "sysv64" fn(context: *mut VmContext, code: *const u8, values: *mut u64) -> u64`.
/// Arguments are loaded from `values`, eight bytes each, a vector 16, and results are stored there.
/// It returns 0, or 1 if the activation was left by a trap or an exception. It sets the store's
/// `activation_fp`, which the caller saves and restores.
///
/// The frame: `rbp`, below it `rbx`, `r12`, `r13`, `r14`, `r15` from `rbp - 8` to `rbp - 40`, so
/// that one routine can leave any activation.
pub fn entry_trampoline(ty: &FuncType, code: &mut Vec<u8>) {
    let asm = &mut Assembler::new(code);
    asm.push(Reg::RBP);
    asm.mov(Width::W64, Reg::RBP, Reg::RSP);
    for reg in SAVED {
        asm.push(reg);
    }
    asm.push(Reg::RDX);
    asm.mov(Width::W64, CONTEXT, Reg::RDI);
    asm.mov(Width::W64, MEMORY, Mem::base(CONTEXT, MEMORY0));
    asm.mov(Width::W64, Reg::RAX, Mem::base(CONTEXT, STORE));
    asm.mov_store(Size::B8, Mem::base(Reg::RAX, ACTIVATION_FP), Reg::RBP);
    asm.mov(Width::W64, Reg::R10, Reg::RSI);
    asm.mov(Width::W64, SCRATCH, Reg::RDX);
    if stack_bytes(ty) > 0 {
        asm.alu_imm(Alu::Sub, Width::W64, Reg::RSP, stack_bytes(ty) as i32);
    }
    let mut places = ArgPlaces::default();
    for (index, ty) in with_index(ty.params()) {
        match places.next(ty) {
            ArgPlace::Reg(reg) => from_array(asm, ty, reg, SCRATCH, index),
            ArgPlace::Stack(at) => {
                for word in 0..ty.words() {
                    asm.mov(Width::W64, Reg::RAX, quadword(SCRATCH, index + word));
                    asm.mov_store(Size::B8, quadword(Reg::RSP, at + word), Reg::RAX);
                }
            }
        }
    }
    // The caller's context is null.
    asm.mov_imm(Reg::RAX, 0);
    asm.call_reg(Reg::R10);
    asm.mov(Width::W64, SCRATCH, Mem::base(Reg::RBP, -48));
    for ((index, _), (ty, place)) in with_index(ty.results()).zip(result_places(ty.results())) {
        match place {
            ResultPlace::Reg(reg) => to_array(asm, ty, SCRATCH, index, reg),
            ResultPlace::Buffer(at) => {
                for word in 0..ty.words() {
                    asm.mov(Width::W64, Reg::RCX, Mem::base(CONTEXT, STORE));
                    asm.mov(Width::W64, Reg::RCX, Mem::base(Reg::RCX, RESULTS + 8 * (at + word) as i32));
                    asm.mov_store(Size::B8, quadword(SCRATCH, index + word), Reg::RCX);
                }
            }
        }
    }
    asm.mov_imm(Reg::RAX, 0);
    asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RBP, -40));
    for reg in SAVED.into_iter().rev() {
        asm.pop(reg);
    }
    asm.pop(Reg::RBP);
    asm.ret(0);
}

/// Appends the trampoline through which compiled code calls a host function of this type: it calls
/// `extern "sysv64" fn(context: *mut VmContext, caller: *mut VmContext, values: *mut u64) -> u64`,
/// whose address is in the quadword after the head of the host function's context. Arguments and
/// results are in `values`. If the return value is not 0, it calls `RaiseFromHost`.
///
/// The frame has the layout of a frame of compiled code, with all callee-saved registers: they may
/// hold references of the callers, which the collector must find, and the host may save them on
/// another stack.
pub fn host_trampoline(ty: &FuncType, code: &mut Vec<u8>) {
    let asm = &mut Assembler::new(code);
    let values = 8 * words(ty.params()).max(words(ty.results()));
    asm.push(Reg::RBP);
    asm.mov(Width::W64, Reg::RBP, Reg::RSP);
    asm.alu_imm(Alu::Sub, Width::W64, Reg::RSP, ((-SLOTS) as u32 + values).next_multiple_of(16) as i32);
    asm.mov_store(Size::B8, Mem::base(Reg::RBP, -8), CONTEXT);
    for (reg, slot) in CALLEE_SAVED {
        asm.mov_store(Size::B8, Mem::base(Reg::RBP, slot), reg);
    }
    let mut places = ArgPlaces::default();
    for (index, ty) in with_index(ty.params()) {
        match places.next(ty) {
            ArgPlace::Reg(reg) => to_array(asm, ty, Reg::RSP, index, reg),
            ArgPlace::Stack(at) => {
                for word in 0..ty.words() {
                    asm.mov(ty.width(), SCRATCH, quadword(Reg::RBP, 2 + at + word));
                    asm.mov_store(Size::B8, quadword(Reg::RSP, index + word), SCRATCH);
                }
            }
        }
    }
    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
    asm.mov_store(Size::B8, Mem::base(SCRATCH, EXIT_FP), Reg::RBP);
    asm.mov_store(Size::B8, Mem::base(SCRATCH, EXIT_SP), Reg::RSP);
    asm.mov(Width::W64, Reg::RDI, CONTEXT);
    asm.mov(Width::W64, Reg::RSI, Reg::RAX);
    asm.mov(Width::W64, Reg::RDX, Reg::RSP);
    asm.call_mem(Mem::base(CONTEXT, HEAD as i32));
    let failed = asm.new_label();
    asm.test(Width::W64, Reg::RAX, Reg::RAX);
    asm.jcc(Cond::NotEqual, failed);
    for ((index, _), (ty, place)) in with_index(ty.results()).zip(result_places(ty.results())) {
        if let ResultPlace::Buffer(at) = place {
            for word in 0..ty.words() {
                asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
                asm.mov(Width::W64, Reg::RCX, quadword(Reg::RSP, index + word));
                asm.mov_store(Size::B8, Mem::base(SCRATCH, RESULTS + 8 * (at + word) as i32), Reg::RCX);
            }
        }
    }
    for ((index, _), (ty, place)) in with_index(ty.results()).zip(result_places(ty.results())) {
        if let ResultPlace::Reg(reg) = place {
            from_array(asm, ty, reg, Reg::RSP, index);
        }
    }
    // A probe may have written locals of callers, which are in these registers.
    for (reg, slot) in CALLEE_SAVED {
        asm.mov(Width::W64, reg, Mem::base(Reg::RBP, slot));
    }
    asm.leave();
    asm.ret(stack_bytes(ty) as u16);
    asm.bind(failed);
    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, LIBCALLS));
    asm.call_mem(Mem::base(SCRATCH, 8 * Libcall::RaiseFromHost as i32));
    asm.ud2(TrapCode::Unreachable as u8);
}
