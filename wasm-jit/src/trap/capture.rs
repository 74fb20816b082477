//! Captures the reason and the backtrace of a non-local exit: on the thread's own stack, below the
//! frames that are about to be left, from the state recorded in the store.

use std::sync::atomic::{AtomicU64, Ordering};

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};

use super::signals::trap_code;
use super::unwind::{Frame, Frames, activation_left};
use super::{ExecutionState, Raised, Trap, WasmBacktrace, innermost, trapped};
use crate::code::probed::counters::InstanceId;
use crate::code::probed::counting::context_of;
use crate::code::probed::unwound::Cause;
use crate::code::registry::{image_at, share_image_at};
use crate::vmctx::{FUNC_REF_CONTEXT, FUNC_REF_SIZE, INSTANCE_NUMBER, VmStoreContext};

/// The longest instruction, in bytes.
const MAX_LENGTH: usize = 15;

/// Maximum number of frames that are kept; further outer frames are only counted.
const MAX_FRAMES: usize = 256;

/// Captures the reason and the backtrace, for [`enter`](super::enter): a trap, or else what a
/// libcall or a host function has recorded. The address `without_frame` is that of a callee of
/// `frame`.
///
/// # Safety
/// As [`Frames::new`].
pub(super) unsafe fn capture(
    store: *mut ExecutionState,
    without_frame: Option<usize>,
    frame: Frame,
    trap: Option<Trap>,
) {
    let cause = trap.map_or(Cause::Failure, Cause::Trap);
    // SAFETY: the caller's obligation.
    unsafe { activation_left(frame, (*store).vm.activation_fp, cause) };
    // SAFETY: as above.
    let backtrace = unsafe { trace(store, without_frame, frame) };
    let raised = match trap {
        Some(trap) => Raised::Trap { trap, backtrace },
        None => Raised::Noted { backtrace },
    };
    // SAFETY: the caller's obligation: compiled code does not run, and keeps no reference.
    unsafe { (*store).raised = Some(Box::new(raised)) };
}

/// The frames of a store's activations while a host function runs, from its caller outwards; none
/// if nothing runs.
///
/// # Safety
/// The store must be alive, and nothing must run in it but host functions of this thread.
pub(crate) unsafe fn of_waiting(store: *const ExecutionState) -> WasmBacktrace {
    // SAFETY: the caller's obligation.
    let (activation_fp, exit_fp) = unsafe { ((*store).vm.activation_fp, (*store).vm.exit_fp) };
    if activation_fp == 0 {
        return WasmBacktrace::default();
    }
    // SAFETY: the trampoline through which the activation was left has not been left.
    unsafe { trace(store, None, Frame::caller(exit_fp)) }
}

/// The backtrace of a frame. The address `without_frame` is that of a callee of it.
///
/// # Safety
/// As [`Frames::new`]; if the frame does not wait for a call, the state that the signal handler
/// recorded must be that of this frame.
pub(super) unsafe fn trace(
    store: *const ExecutionState,
    without_frame: Option<usize>,
    frame: Frame,
) -> WasmBacktrace {
    let mut backtrace = WasmBacktrace::default();
    // SAFETY: the caller's obligation: the state is that at the signal.
    let at_signal = |pc: usize| (pc, unsafe { innermost::context(&(*store).vm) });
    // SAFETY: as above.
    let frames = unsafe { Frames::new(store, frame) };
    let places = frames.map(|frame| match frame.is_call {
        // A return address may be the end of its function.
        // SAFETY: a frame that waits for a call has its context there, if it is a function's.
        true => (frame.pc - 1, unsafe { context_of(frame.fp) }.addr()),
        false => at_signal(frame.pc),
    });
    for (pc, context) in without_frame.map(at_signal).into_iter().chain(places) {
        // SAFETY: the thread is in the code at this address.
        let Some(image) = (unsafe { image_at(pc) }) else { continue };
        let Some(function) = image.function_at(pc) else { continue };
        if backtrace.len() >= MAX_FRAMES {
            backtrace.omit();
            continue;
        }
        // SAFETY: in a function, this is the context of an instance, which is alive.
        let instance = unsafe { instance_of(context) };
        // SAFETY: as above.
        let image = unsafe { share_image_at(pc) }.expect("just found");
        backtrace.push(image, function, pc, instance);
    }
    backtrace
}

/// The instance with this context.
///
/// # Safety
/// The instance must be alive.
unsafe fn instance_of(context: usize) -> InstanceId {
    let number =
        std::ptr::with_exposed_provenance::<u64>(context.wrapping_add_signed(INSTANCE_NUMBER as isize));
    // SAFETY: the caller's obligation.
    InstanceId::of_value(unsafe { number.read() })
}

/// For [`Libcall::Raise`](crate::vmctx::Libcall::Raise).
///
/// # Safety
/// `pc` and `fp` must be the program counter and the frame that raise, in the store's innermost
/// activation.
pub(super) unsafe extern "sysv64" fn capture_noted(store: *mut ExecutionState, pc: usize, fp: usize) {
    let frame = Frame { pc, fp, is_call: true };
    // SAFETY: the caller's obligation; the routine has recorded the callee-saved registers.
    unsafe { trapped::report(store, frame, None, Cause::Failure) };
    // SAFETY: the thread is in the code at this address, in a frame that calls.
    unsafe {
        if let Some(image) = image_at(pc - 1) {
            image.uncount_in_code(pc, fp);
        }
    }
    // SAFETY: the caller's obligation.
    unsafe { capture(store, None, frame, None) };
}

/// For a thread that was redirected here by the signal handler.
///
/// # Safety
/// The state that the handler recorded in the store must be of this thread, and current; `vectors`
/// are the SSE registers.
pub(super) unsafe extern "sysv64" fn capture_signal(store: *mut ExecutionState, vectors: *const [u128; 16]) {
    // SAFETY: the caller's obligation.
    let (trap, (without_frame, frame)) =
        unsafe { (classify(&(*store).vm), innermost::innermost(&(*store).vm)) };
    // SAFETY: as above.
    unsafe {
        trapped::report(store, frame, Some(&*vectors), Cause::Trap(trap));
        uncount(&(*store).vm, trap);
        capture(store, without_frame, frame, Some(trap));
    }
}

/// Corrects the counters of instructions that the innermost frame will not execute.
///
/// # Safety
/// As [`capture_signal`].
unsafe fn uncount(store: &VmStoreContext, trap: Trap) {
    // An instruction for which there is no fuel is not executed.
    let is_executed = trap != Trap::OutOfFuel;
    // SAFETY: the thread is in the code at this address.
    unsafe {
        if let Some(image) = image_at(store.raised_pc) {
            let context = std::ptr::with_exposed_provenance(innermost::context(store));
            image.uncount(store.raised_pc, context, is_executed);
        }
    }
}

/// The trap that corresponds to the signal.
///
/// # Safety
/// As [`capture_signal`].
unsafe fn classify(store: &VmStoreContext) -> Trap {
    match store.raised_signal {
        libc::SIGILL => {
            // SAFETY: the thread has executed the instruction there.
            let code = unsafe { trap_code(store.raised_pc) };
            code.map_or(Trap::UnreachableCodeReached, Trap::from)
        }
        libc::SIGFPE => {
            // SAFETY: as above.
            let instruction = unsafe { instruction_at(store.raised_pc) };
            // SAFETY: it has read its divisor.
            match unsafe { first_operand(&instruction, store) } {
                Some(0) => Trap::IntegerDivisionByZero,
                _ => Trap::IntegerOverflow,
            }
        }
        libc::SIGSEGV | libc::SIGBUS if store.raised_address == FUNC_REF_CONTEXT as usize => {
            Trap::NullReference
        }
        libc::SIGSEGV | libc::SIGBUS if store.raised_address < FUNC_REF_SIZE as usize => {
            Trap::IndirectCallToNull
        }
        libc::SIGSEGV | libc::SIGBUS => Trap::MemoryOutOfBounds,
        _ => Trap::Interrupt,
    }
}

/// The instruction at `pc`.
///
/// # Safety
/// It must be in a function of an image that is alive.
pub(super) unsafe fn instruction_at(pc: usize) -> Instruction {
    // SAFETY: the address is in the image; the code of its functions is followed by more code, or
    // the rest of a page.
    unsafe {
        let Some(image) = image_at(pc) else { return Instruction::default() };
        let length = (image.code_end(pc) - pc).min(MAX_LENGTH);
        let mut code = [0; MAX_LENGTH];
        // Patches store entire aligned words, so none of these is half of a patch.
        for address in (pc & !7..pc + length).step_by(8) {
            let word: *const AtomicU64 = std::ptr::with_exposed_provenance(address);
            let bytes = (*word).load(Ordering::Relaxed).to_le_bytes();
            for (at, byte) in (address..).zip(bytes) {
                if let Some(place) = at.checked_sub(pc).and_then(|at| code[..length].get_mut(at)) {
                    *place = byte;
                }
            }
        }
        // A trap may since have replaced the byte that the thread has executed.
        code[0] = image.byte_under_trap(pc).unwrap_or(code[0]);
        Decoder::with_ip(64, &code[..length], pc as u64, DecoderOptions::NONE).decode()
    }
}

/// The value of an instruction's four-byte or eight-byte operand.
///
/// # Safety
/// The instruction must have read it, and it must not have changed since.
unsafe fn first_operand(instruction: &Instruction, store: &VmStoreContext) -> Option<u64> {
    let register = |register: Register| {
        let full = register.full_register();
        full.is_gpr64().then(|| store.raised_registers[full.number()])
    };
    let narrow = |value: u64, size: usize| if size == 4 { value & u64::from(u32::MAX) } else { value };
    match instruction.op0_kind() {
        OpKind::Register => {
            let operand = instruction.op0_register();
            Some(narrow(register(operand)?, operand.size()))
        }
        OpKind::Memory => {
            let address = instruction.virtual_address(0, 0, |base, _, _| match base {
                base if base.is_segment_register() => Some(0),
                base => register(base),
            })?;
            let place = std::ptr::with_exposed_provenance::<u8>(address as usize);
            let size = instruction.memory_size().size();
            // SAFETY: the caller's obligation.
            Some(unsafe {
                match size {
                    4 => u64::from(place.cast::<u32>().read_unaligned()),
                    _ => place.cast::<u64>().read_unaligned(),
                }
            })
        }
        _ => None,
    }
}
