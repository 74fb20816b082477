//! The innermost frame at a signal, which may arrive at any instruction of a function: while its
//! frame is being built or torn down, and while `r14` is the context of another function.
//!
//! | instructions | return address | context |
//! | --- | --- | --- |
//! | up to `mov rbp, rsp` in the prologue, and RET | at the stack pointer, above what was pushed | `r14` |
//! | between leaving the frame and a tail call's JMP | `r11`, until the stack pointer leads to it | `r14` |
//! | JMP of a tail call | at the stack pointer | `r14` |
//! | up to the store of the context in the prologue, the trap of its check of the stack, a function without calls | in the frame | `r14` |
//! | all others | in the frame | in the frame: around a call, `r14` is the callee's |
//!
//! In the first three cases, `rbp` is the caller's frame pointer. All cases are recognized by the
//! instructions themselves.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::capture::instruction_at;
use super::unwind::Frame;
use crate::code::probed::counting::context_of;
use crate::code::registry::image_at;
use crate::vmctx::VmStoreContext;

/// The numbers of the registers in machine code.
const SCRATCH: usize = 11;
const CONTEXT: usize = 14;

/// The frame at the signal that the store has recorded. If the function has no frame, this is its
/// caller's, and the program counter is returned separately.
///
/// # Safety
/// The state that the signal handler recorded must be that of this thread, and current.
pub(super) unsafe fn innermost(store: &VmStoreContext) -> (Option<usize>, Frame) {
    let VmStoreContext { raised_pc: pc, raised_fp: fp, .. } = *store;
    // SAFETY: the caller's obligation.
    match unsafe { return_without_frame(store) } {
        Some(caller) => (Some(pc), Frame { pc: caller, fp, is_call: true }),
        None => (None, Frame { pc, fp, is_call: false }),
    }
}

/// The context of the function that the signal has stopped.
///
/// # Safety
/// As [`innermost`].
pub(super) unsafe fn context(store: &VmStoreContext) -> usize {
    // SAFETY: the caller's obligation.
    unsafe {
        if return_without_frame(store).is_none() && has_stored_context(store.raised_pc) {
            context_of(store.raised_fp).addr()
        } else {
            store.raised_registers[CONTEXT] as usize
        }
    }
}

/// The return address of a function that has no frame of its own at this point: not yet, or not any
/// more. `None` if it has one.
///
/// # Safety
/// As [`innermost`].
unsafe fn return_without_frame(store: &VmStoreContext) -> Option<usize> {
    let VmStoreContext { raised_pc: pc, raised_sp: sp, .. } = *store;
    // SAFETY: the function has pushed this many quadwords since it was called.
    let below = |pushed: usize| unsafe { std::ptr::with_exposed_provenance::<usize>(sp + 8 * pushed).read() };
    // SAFETY: the caller's obligation: the thread is in a function's code there, and so are the
    // instructions that it has executed or will execute next.
    unsafe {
        if instruction_at(pc).mnemonic() == Mnemonic::Ret {
            return Some(below(0));
        }
        let (entry, body) = image_at(pc)?.prologue_at(pc)?;
        if pc < body {
            let has_frame = instructions(entry, pc)
                .any(|it| it.mnemonic() == Mnemonic::Mov && it.op0_register() == Register::RBP);
            // The only PUSH comes first. A jump to another version may have taken its place.
            return (!has_frame).then(|| below(usize::from(pc > entry)));
        }
        let (at, is_tail_call) = after_moves(pc);
        let return_address = if at == pc { below(0) } else { store.raised_registers[SCRATCH] as usize };
        is_tail_call.then_some(return_address)
    }
}

/// Whether the function that the address is in has stored its context in its frame before it came
/// there. It has a frame.
///
/// # Safety
/// The address must be in the code of a function of an image that is alive.
unsafe fn has_stored_context(pc: usize) -> bool {
    // SAFETY: the caller's obligation.
    unsafe {
        let Some(image) = image_at(pc) else { return false };
        if let Some(start) = image.start_of_list_at(pc) {
            // The first instruction of a list's stub stores it.
            return pc != start;
        }
        let Some((entry, body)) = image.prologue_at(pc) else { return false };
        for instruction in instructions(entry, body.min(pc)) {
            match instruction.mnemonic() {
                // The check of the stack.
                Mnemonic::Jb if instruction.near_branch_target() as usize == pc => return false,
                Mnemonic::Mov if instruction.op1_register() == Register::R14 => return true,
                _ => {}
            }
        }
        false
    }
}

/// The instructions between two addresses.
///
/// # Safety
/// They must be in the code of a function of an image that is alive.
unsafe fn instructions(mut at: usize, end: usize) -> impl Iterator<Item = Instruction> {
    std::iter::from_fn(move || {
        // SAFETY: the caller's obligation.
        let instruction = (at < end).then(|| unsafe { instruction_at(at) })?;
        at += instruction.len().max(1);
        Some(instruction)
    })
}

/// The address of the first instruction from `pc` on that does not move arguments of a tail call
/// whose frame has been left, and whether it is the JMP of one.
///
/// # Safety
/// As [`instructions`].
unsafe fn after_moves(pc: usize) -> (usize, bool) {
    // SAFETY: the caller's obligation.
    let mut from_here = unsafe { instructions(pc, usize::MAX) };
    let next = from_here.find(|it| !moves_arguments(it)).expect("does not end");
    // SAFETY: the caller's obligation.
    (next.ip() as usize, unsafe { is_tail_call(&next) })
}

/// Whether an instruction moves arguments from the end of a frame to that of its caller's, or
/// completes that.
fn moves_arguments(instruction: &Instruction) -> bool {
    let is_stack = |kind| kind == OpKind::Memory && instruction.memory_base() == Register::RSP;
    let is_register =
        |kind, register| kind == OpKind::Register && [Register::RAX, Register::R11].contains(&register);
    let (to, from) = (instruction.op0_kind(), instruction.op1_kind());
    match instruction.mnemonic() {
        Mnemonic::Mov => {
            (is_stack(from) && is_register(to, instruction.op0_register()))
                || (is_stack(to) && is_register(from, instruction.op1_register()))
        }
        Mnemonic::Lea => instruction.op0_register() == Register::RSP && is_stack(from),
        _ => false,
    }
}

/// Whether an instruction in the body of a function is a jump to a function. All other jumps stay
/// in the function, lead to a stub, or, for a tail call to another instance, to the runtime.
///
/// # Safety
/// As [`instructions`].
unsafe fn is_tail_call(instruction: &Instruction) -> bool {
    if instruction.mnemonic() != Mnemonic::Jmp {
        return false;
    }
    match instruction.op0_kind() {
        // SAFETY: the caller's obligation.
        OpKind::NearBranch64 => unsafe { image_at(instruction.ip() as usize) }
            .is_some_and(|image| image.is_entry(instruction.near_branch_target() as usize)),
        // Through a reference.
        OpKind::Memory => instruction.memory_base() == Register::R10,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::{GenericFn, Kind, Location, Place, ProbeSpec};
    use crate::{Config, Engine, Module};

    /// Functions with and without calls and saved registers: the first instructions of their code
    /// have different lengths.
    const FUNCTIONS: &str = r#"(module
        (func)
        (func (call 0))
        (func (param i32) (result i32) (call 0) (local.get 0))
        (func (local v128) (loop (br_if 0 (v128.any_true (local.get 0)))))
        (func (param i32) (loop (call 0) (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#;

    /// The return address is found before and after the only push, whatever is at the entry.
    #[test]
    fn an_entry_pushes_once_before_and_after_it_is_patched() {
        let module = Module::new(&Engine::default(), FUNCTIONS).unwrap();
        let image = module.code();
        let mut lengths = Vec::new();
        for function in 0..5 {
            let entry = image.entry(function).addr();
            // SAFETY: in the code of the module, as below.
            let length = unsafe { instruction_at(entry) }.len();
            lengths.push(length);
            let check = |expected| {
                let stack = [10_usize, 11, 12];
                let found = [entry, entry + length].map(|pc| {
                    let state = VmStoreContext {
                        raised_pc: pc,
                        raised_sp: stack.as_ptr().addr(),
                        ..VmStoreContext::default()
                    };
                    // SAFETY: the state of a thread there, with such a stack.
                    unsafe { return_without_frame(&state) }
                });
                // SAFETY: as above.
                assert_eq!(unsafe { instruction_at(entry) }.mnemonic(), expected);
                assert_eq!(found, [Some(10), Some(11)], "{function}: {expected:?}");
            };
            check(Mnemonic::Push);
            let location = Location { function, place: Place::Entry };
            let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
            probe.activate().unwrap();
            check(Mnemonic::Jmp);
        }
        assert!(lengths.iter().any(|length| *length > 5), "{lengths:?}");
    }

    /// Jumps in the code that begins at this address, up to its RET.
    fn jumps(entry: usize) -> Vec<Instruction> {
        // SAFETY: in the code of a module.
        let code = unsafe { instructions(entry, usize::MAX) };
        code.take_while(|it| it.mnemonic() != Mnemonic::Ret)
            .filter(|it| it.mnemonic() == Mnemonic::Jmp && it.op0_kind() == OpKind::NearBranch64)
            .collect()
    }

    fn is_tail(jump: &Instruction) -> bool {
        // SAFETY: in the code of a module.
        unsafe { is_tail_call(jump) }
    }

    /// The callee has been compiled, or has not.
    #[test]
    fn jumps_to_functions_are_tail_calls() {
        let text = "(module (func) (func (block (br_if 0 (i32.const 0)) (return_call 0)) (nop)))";
        for is_lazy in [false, true] {
            let engine = Engine::new(Config::new().lazy_compilation(is_lazy)).unwrap();
            let module = Module::new(&engine, text).unwrap();
            let image = module.code();
            image.ensure_compiled(1).unwrap();
            let code = image.function(1);
            let [start, end] = [code.body, code.end].map(|offset| image.at(offset).addr());
            // SAFETY: in the code of the module.
            let code = unsafe { instructions(start, end) };
            let (tail, others): (Vec<_>, Vec<_>) = code.partition(is_tail);
            assert_eq!(tail.len(), 1, "{is_lazy}");
            assert!(others.iter().any(|it| it.mnemonic() == Mnemonic::Jmp), "to the end of the tail call");
            assert_eq!(image.compiled(0).is_none(), is_lazy);
        }
    }

    #[test]
    fn jumps_to_stubs_are_no_tail_calls() {
        let module = Module::new(&Engine::default(), "(module (func (nop)))").unwrap();
        let image = module.code();
        let location = Location { function: 0, place: Place::Entry };
        let kind = Kind::Generic(GenericFn::new(|_| Ok(())));
        let probe = module.probe(ProbeSpec { location, kind }).unwrap();
        probe.activate().unwrap();
        let [to_version] = jumps(image.entry(0).addr())[..1] else { panic!("it leads to a version") };
        let jumps = jumps(to_version.near_branch_target() as usize);
        let to_list = |jump: &&Instruction| {
            let target = jump.near_branch_target() as usize;
            image.start_of_list_at(target) == Some(target)
        };
        assert!(is_tail(&to_version));
        assert_eq!(jumps.iter().filter(to_list).count(), 1);
        assert!(!jumps.iter().any(is_tail));
    }
}
