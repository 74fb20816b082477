//! The machine code of an executor: a loop around the site that distinguishes mixtures from the two
//! forms.
//!
//! ```text
//!         mov  r8, old          what the old form leaves in (EDX:EAX)
//!         mov  r9, new          what the new one does
//! next:   flush the code after the boundary             Approach::Cold
//!         fetch again from here                         Approach::Cold and Anew
//!         xor  eax, eax
//!         xor  ecx, ecx
//!         xor  edx, edx
//!         padding                                       its length is the trial's own
//! site:   mov  eax, A           or  mov eax, B  |  mov edx, B  |  locked: mov ecx, any
//!         edx:eax is old or new -> fine; 0 -> locked; else -> a tear
//!         padding
//!         until stopped -> next
//! ```
//!
//! [`Kernel::Call`] has `call target` or a NOP as its site, and checks nothing: a mixture crashes.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, byte_ptr, dword_ptr, eax, ecx, edx, qword_ptr, r8, r9, r10, r11, rax, rdi, rdx, rsi, rsp,
};

use crate::trial::{Approach, Kernel, LENGTH, Spec};

/// The immediates of the two forms, which differ in every byte.
const A: u32 = 0x5a5a_5a5a;
const B: u32 = 0xa5a5_a5a5;

/// State that an executor shares with the thread that started it. Each executor has its own, on a
/// separate cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct Seen {
    /// If not 0, the loop ends.
    pub(super) stop: AtomicU32,
    /// Written when the loop has ended.
    pub(super) executions: AtomicU64,
    pub(super) locked: AtomicU64,
    pub(super) tears: AtomicU64,
}

/// A function that executes the site, and the two forms of it.
pub(super) struct Code {
    /// The machine code, from the start of the function.
    pub(super) bytes: Vec<u8>,
    /// The two forms of the site.
    pub(super) old: [u8; LENGTH as usize],
    pub(super) new: [u8; LENGTH as usize],
    /// The byte that is used instead of INT3: only the first byte matters.
    pub(super) lock: u8,
}

/// Lengths of the loop's padding in bytes, so that loops differ in shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Padding {
    /// The padding before the site.
    pub(super) before: usize,
    /// The padding after the site.
    pub(super) after: usize,
}

/// The type of the function.
pub(super) type Executor = unsafe extern "sysv64" fn(*const Seen);

/// The one instruction that `emit` encodes.
fn one(
    address: u64,
    emit: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<[u8; 5], IcedError> {
    let mut assembler = CodeAssembler::new(64)?;
    emit(&mut assembler)?;
    let bytes = assembler.assemble(address)?;
    Ok(bytes.try_into().expect("each form has five bytes"))
}

/// The executor of a spec at `start`, with its site at offset `site`. `target` is the target of a
/// CALL.
pub(super) fn assemble(
    spec: &Spec,
    start: u64,
    site: usize,
    target: u64,
    padding: Padding,
) -> Result<Code, IcedError> {
    let kernel = spec.kernel;
    let place = start + site as u64;
    let old = match kernel {
        Kernel::Immediate | Kernel::Opcode => one(place, |asm| asm.mov(eax, A))?,
        Kernel::Call => one(place, |asm| asm.call(target))?,
    };
    let new = match kernel {
        Kernel::Immediate => one(place, |asm| asm.mov(eax, B))?,
        Kernel::Opcode => one(place, |asm| asm.mov(edx, B))?,
        Kernel::Call => one(place, |asm| asm.nops_with_size(usize::from(LENGTH)))?,
    };
    let lock = one(place, |asm| asm.mov(ecx, A))?[0];
    let prologue = |asm: &mut CodeAssembler| {
        asm.mov(r8, u64::from(A))?;
        asm.mov(r9, if kernel == Kernel::Opcode { u64::from(B) << 32 } else { u64::from(B) })?;
        asm.xor(r10, r10)?;
        asm.xor(r11, r11)?;
        asm.xor(rsi, rsi)
    };
    let clear = |asm: &mut CodeAssembler| {
        if spec.approach == Approach::Cold {
            asm.mov(rax, place + u64::from(spec.front))?;
            asm.clflush(byte_ptr(rax))?;
            asm.mfence()?;
        }
        if spec.approach != Approach::Loop {
            fetch_again(asm)?;
        }
        asm.xor(eax, eax)?;
        asm.xor(ecx, ecx)?;
        asm.xor(edx, edx)
    };
    let length_of = |emit: &dyn Fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let mut assembler = CodeAssembler::new(64)?;
        emit(&mut assembler)?;
        Ok::<_, IcedError>(assembler.assemble(start)?.len())
    };
    let before_site = length_of(&prologue)? + length_of(&clear)? + padding.before;

    let mut asm = CodeAssembler::new(64)?;
    let (mut next, mut tear, mut done) = (asm.create_label(), asm.create_label(), asm.create_label());
    prologue(&mut asm)?;
    asm.nops_with_size(site - before_site)?;
    asm.set_label(&mut next)?;
    clear(&mut asm)?;
    asm.nops_with_size(padding.before)?;
    asm.db(&old)?;
    asm.inc(r10)?;
    if kernel != Kernel::Call {
        asm.shl(rdx, 32)?;
        asm.or(rdx, rax)?;
        asm.cmp(rdx, r8)?;
        asm.je(done)?;
        asm.cmp(rdx, r9)?;
        asm.je(done)?;
        asm.test(rdx, rdx)?;
        asm.jne(tear)?;
        asm.inc(rsi)?;
        asm.jmp(done)?;
        asm.set_label(&mut tear)?;
        asm.inc(r11)?;
    }
    asm.set_label(&mut done)?;
    // A label must be followed by an instruction, and the padding may be empty.
    asm.nop()?;
    asm.nops_with_size(padding.after)?;
    asm.cmp(dword_ptr(rdi + offset_of!(Seen, stop)), 0)?;
    asm.je(next)?;
    asm.mov(qword_ptr(rdi + offset_of!(Seen, executions)), r10)?;
    asm.mov(qword_ptr(rdi + offset_of!(Seen, tears)), r11)?;
    asm.mov(qword_ptr(rdi + offset_of!(Seen, locked)), rsi)?;
    asm.ret()?;
    let bytes = asm.assemble(start)?;
    assert_eq!(bytes[site..site + old.len()], old, "the site is where it should be");
    Ok(Code { bytes, old, new, lock })
}

/// Continues at the next instruction through a return that no processor predicts (a *retpoline*).
/// Otherwise the processor would fetch the code there long before the instructions above are
/// complete: it fetches hundreds of instructions ahead.
fn fetch_again(asm: &mut CodeAssembler) -> Result<(), IcedError> {
    let (mut inner, mut predicted, mut next) = (asm.create_label(), asm.create_label(), asm.create_label());
    asm.call(inner)?;
    asm.set_label(&mut predicted)?;
    asm.pause()?;
    asm.lfence()?;
    asm.jmp(predicted)?;
    asm.set_label(&mut inner)?;
    asm.lea(rax, qword_ptr(next))?;
    asm.mov(qword_ptr(rsp), rax)?;
    asm.ret()?;
    asm.set_label(&mut next)?;
    asm.zero_bytes()
}

/// A function that returns immediately: the target of the CALL.
pub(super) fn empty_function() -> Result<Vec<u8>, IcedError> {
    let mut asm = CodeAssembler::new(64)?;
    asm.ret()?;
    asm.assemble(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Depth};

    fn code(kernel: Kernel) -> Code {
        let spec = Spec { kernel, ..plan::window(Depth::Quick)[0] };
        assemble(&spec, 0x10_0000, 300, 0x1234_5678, Padding { before: 11, after: 3 }).unwrap()
    }

    /// The forms of the `mov` kernels, mixed at each offset, must be distinguishable in the
    /// registers.
    #[test]
    fn every_mixture_differs_from_both_forms() {
        for kernel in [Kernel::Immediate, Kernel::Opcode] {
            let code = code(kernel);
            let first = if kernel == Kernel::Opcode { 0 } else { 1 };
            let differ = |i: usize| code.old[i] != code.new[i];
            assert!((first..5).all(differ), "{kernel:?}");
            assert!(code.lock != code.old[0] && code.lock != code.new[0]);
        }
    }

    #[test]
    fn a_mixture_of_call_and_nop_has_another_target() {
        let code = code(Kernel::Call);
        assert!((0..5).all(|i| code.old[i] != code.new[i]), "{:02x?} {:02x?}", code.old, code.new);
    }
}
