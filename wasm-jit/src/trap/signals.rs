//! Signal handlers: for the signals with which the hardware reports traps, and the one that
//! interrupts a thread.
//!
//! Runs in signal context, on any thread, at any instruction: atomics and fixed memory only; no
//! locks, no allocation, no formatting.
//!
//! # Classification of a signal
//! 1. The thread executes a function in a code image: `r14` is its context. For a fault, or for an
//!    interrupt if one was requested for the store, program counter and registers are recorded in
//!    the store, and the thread is redirected to [`raise_by_signal`].
//! 2. Otherwise, a SIGILL at a point where a frame is transferred to another version of its
//!    function: the thread continues in that version ([`CodeImage::transfer`]).
//! 3. Otherwise, an interrupt of this engine that arrived at another point, or in a stub between
//!    steps that are executed together: it is ignored, and will be repeated.
//! 4. Otherwise, the signal is not for this engine, and is passed to the previous handler. If the
//!    previous action was the default, it is restored and the handler returns, so that the
//!    instruction faults again and the process ends as it would have without this engine.
//!
//! The signal that interrupts threads is first passed to the previous handler if another sender has
//! sent it ([`own_signal`]).
//!
//! The signal that interrupts threads also asks them which code they will return to
//! ([`code_in_use`]), and where they are ([`look`]).
//!
//! # The signal stack
//! A signal frame takes more than 3 KiB, and Rust's threads have a signal stack of 8 KiB. Therefore
//! all other signals are blocked while one of these handlers runs, except for faults and SIGTRAP,
//! which the previous handler may cause and handle.
//!
//! # Traps
//! A SIGSEGV is a trap only where WebAssembly can cause one: inside the reservation of one of the
//! instance's memories, or at a null function reference. Any other address is a defect of the
//! program or of this engine, and the signal is passed to the previous handler.

use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use fastinst_sigsafe::signal::{Action, was_sent};
use wasm_jit_codegen::UD2;

use super::ExecutionState;
use super::accessors;
use super::code_in_use;
use super::look;
use super::own_signal;
use super::routines::raise_by_signal;
use crate::code::CodeImage;
use crate::code::forks;
use crate::code::probed::Transfer;
use crate::code::probed::counting::counters_of;
use crate::code::registry::image_at;
use crate::vmctx::{FUNC_REF_SIZE, INTERRUPT_CHECK, TrapCode, VmContext, VmMemory};

/// The signals with which the hardware reports traps.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The end of the range that an access can reach, from a memory's base: index, offset, and eight
/// bytes.
const REACH: usize = 2 * u32::MAX as usize + 8;

/// `si_code` of a fault whose address the kernel does not know.
const SI_KERNEL: i32 = 0x80;

/// Signals are numbered from 1 to 64.
const MAX_SIGNALS: usize = 65;

/// The role of a signal, and the previously installed action.
struct Handled {
    /// The signal interrupts threads.
    is_interrupt: AtomicBool,
    previous: AtomicUsize,
    previous_flags: AtomicI32,
}

static HANDLED: [Handled; MAX_SIGNALS] = [const {
    Handled {
        is_interrupt: AtomicBool::new(false),
        previous: AtomicUsize::new(libc::SIG_DFL),
        previous_flags: AtomicI32::new(0),
    }
}; MAX_SIGNALS];

/// Installs the handlers for faults, once.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    if ONCE.is_completed() {
        return;
    }
    // A child would wait for ever for the end of an installation that its parent has begun.
    let _no_forks = wordpatch::internal::no_forks();
    ONCE.call_once(|| FAULTS.into_iter().for_each(|signal| install_one(signal, libc::SA_RESTART)));
}

/// Installs the handler for a signal that interrupts threads, once.
pub(super) fn install_interrupt(signal: i32) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _lock = forks::lock(&LOCK);
    let is_interrupt = &HANDLED[signal as usize].is_interrupt;
    if !is_interrupt.load(Ordering::Relaxed) {
        install_one(signal, 0);
        is_interrupt.store(true, Ordering::Release);
    }
}

fn install_one(signal: i32, restart: i32) {
    let handled = &HANDLED[signal as usize];
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads the action into memory of the right type; all zero is a valid one.
    let before = unsafe {
        libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr());
        before.assume_init()
    };
    handled.previous.store(before.sa_sigaction, Ordering::Relaxed);
    handled.previous_flags.store(before.sa_flags, Ordering::Release);
    // SAFETY: all zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handle as *const () as usize;
    // SIGINFO: the handler changes the context. ONSTACK: the thread's own stack may have
    // overflowed. RESTART for faults only: an interrupt ends the system call in which a host
    // function waits.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | restart;
    // SAFETY: changes the mask of the action.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        for synchronous in FAULTS.into_iter().chain([libc::SIGTRAP]) {
            libc::sigdelset(&mut action.sa_mask, synchronous);
        }
    }
    // SAFETY: `handle` has the signature that SA_SIGINFO asks for and obeys signal context.
    let result = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert!(result == 0, "signal {signal} cannot be handled");
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let is_interrupt = HANDLED[signal as usize].is_interrupt.load(Ordering::Acquire);
    // SAFETY: the kernel passes a valid pointer to an SA_SIGINFO handler.
    if is_interrupt && !own_signal::is_own(unsafe { &*info }) {
        // The kernel may have merged the engine's with it, so it counts as the engine's, too.
        pass_on(signal, info, context);
    }
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler.
    let (info_ref, registers, alternate) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        (&*info, &mut context.uc_mcontext.gregs, &context.uc_stack)
    };
    let pc = registers[libc::REG_RIP as usize] as usize;
    if is_interrupt {
        code_in_use::answer(registers, alternate);
    }
    // SAFETY: the thread is executing the instruction at `pc`.
    let image = unsafe { image_at(pc) }.filter(|image| image.has_function_at(pc));
    if signal == libc::SIGILL
        && let Some(image) = image
        && !was_sent(info_ref)
        // SAFETY: the thread has just executed the instruction.
        && unsafe { trap_code(pc) }.is_none()
        && let Some(Transfer { address, ends_accessor, with_counters }) = image.transfer(pc)
    {
        if ends_accessor {
            // SAFETY: in a function, `r14` is a context, whose store the thread runs, and `rbp` is
            // the frame pointer.
            unsafe {
                let store = ExecutionState::of(context_in(registers));
                accessors::end_through(store, registers[libc::REG_RBP as usize] as usize);
            }
        }
        registers[libc::REG_RIP as usize] = address as i64;
        if with_counters {
            // SAFETY: in a loop, `r14` is the context of its instance, which has counters since
            // there is a version that counts.
            let counters = unsafe { counters_of(context_in(registers)) };
            registers[libc::REG_R11 as usize] = counters.expose_provenance() as i64;
        }
        return;
    }
    if let Some(image) = image {
        let context = context_in(registers);
        // SAFETY: in a function, `r14` is a context, and its store is the one that the thread runs.
        let store = unsafe { ExecutionState::of(context) };
        // SAFETY: as above; only this thread changes the field.
        let interruption = unsafe { (*store).interruption.as_ref() };
        if is_interrupt && let Some(interruption) = interruption {
            interruption.find(pc);
        }
        let acknowledge = || interruption.is_some_and(|interruption| interruption.acknowledge());
        // SAFETY: the thread has just executed the instruction.
        let is_check = signal == libc::SIGILL && !was_sent(info_ref) && unsafe { is_interrupt_check(pc) };
        if is_check && !acknowledge() {
            // The request has been withdrawn since.
            registers[libc::REG_RIP as usize] += UD2.len() as i64 + 1;
            return;
        }
        let is_ours = if is_check {
            true
        } else if is_interrupt {
            !image.is_uninterrupted_at(pc) && acknowledge()
        } else if was_sent(info_ref) {
            false
        } else {
            // SAFETY: as above; the thread has just executed the instruction.
            unsafe {
                match signal {
                    libc::SIGILL => trap_code(pc).is_some(),
                    libc::SIGFPE => true,
                    _ => is_wasm_access(image, context, info_ref),
                }
            }
        };
        if is_ours {
            // SAFETY: as above.
            unsafe { note(store, if is_check { 0 } else { signal }, info_ref, registers) };
            // The routine's frames are placed below the red zone of the interrupted code, aligned
            // as for a call.
            registers[libc::REG_RSP as usize] = (registers[libc::REG_RSP as usize] - 128) & !15;
            registers[libc::REG_RDI as usize] = store as i64;
            registers[libc::REG_RIP as usize] = raise_by_signal as *const () as i64;
            return;
        }
    }
    if !is_interrupt {
        pass_on(signal, info, context);
    } else if image.is_none() {
        look::waiting(registers);
    }
}

/// The context of a thread that is in a function, from its registers.
fn context_in(registers: &[libc::greg_t]) -> *const VmContext {
    std::ptr::with_exposed_provenance(registers[libc::REG_R14 as usize] as usize)
}

/// Whether a stub's check for interrupts raised SIGILL at `pc`.
///
/// # Safety
/// As [`trap_code`].
unsafe fn is_interrupt_check(pc: usize) -> bool {
    let code = std::ptr::with_exposed_provenance::<[u8; 2]>(pc);
    // SAFETY: as in `trap_code`.
    unsafe { code.read_unaligned() == UD2 && code.add(1).cast::<u8>().read() == INTERRUPT_CHECK }
}

/// The reason of an explicit trap at `pc`: UD2 and a [`TrapCode`].
///
/// # Safety
/// A thread must have executed the instruction at `pc`, which must be in a function.
pub(super) unsafe fn trap_code(pc: usize) -> Option<TrapCode> {
    let code = std::ptr::with_exposed_provenance::<[u8; 2]>(pc);
    // SAFETY: the instruction raised SIGILL, so its two bytes are mapped, or it is not UD2; UD2 is
    // followed by its code.
    let code = unsafe { (code.read_unaligned() == UD2).then(|| code.add(1).cast::<u8>().read())? };
    TrapCode::ALL.get(usize::from(code)).copied()
}

/// Whether a SIGSEGV in the image's code is a WebAssembly trap.
///
/// # Safety
/// `context` must be that of the running instance or of the host function that it calls.
unsafe fn is_wasm_access(image: &CodeImage, context: *const VmContext, info: &libc::siginfo_t) -> bool {
    // For a non-canonical address (general protection), the kernel reports no address.
    if info.si_code == SI_KERNEL {
        return false;
    }
    // SAFETY: SIGSEGV has an address.
    let address = unsafe { info.si_addr() } as usize;
    if address < FUNC_REF_SIZE as usize {
        return true;
    }
    // SAFETY: the caller's obligation.
    if unsafe { (*context).is_host } != 0 {
        return false;
    }
    let memories = (0..image.module.memories.len() as u32).filter(|it| !image.module.checks_bounds(*it));
    memories.into_iter().any(|memory| {
        // SAFETY: the instance belongs to this image's module while one of its functions runs, so
        // the layout is correct.
        let base = unsafe {
            let memory = context.byte_offset(image.layout.memory(memory) as isize).cast::<VmMemory>();
            (*memory).base as usize
        };
        address.wrapping_sub(base) < REACH
    })
}

/// Records the event and the state of the thread in the store.
///
/// # Safety
/// The store must be the one that this thread runs.
unsafe fn note(
    store: *mut ExecutionState,
    signal: i32,
    info: &libc::siginfo_t,
    registers: &[libc::greg_t; 23],
) {
    let register = |number: i32| registers[number as usize] as u64;
    // SAFETY: the caller's obligation; a fault's signal has an address, and that of any other is
    // not read.
    unsafe {
        (*store).vm.raised_signal = signal;
        (*store).vm.raised_address = info.si_addr() as usize;
        (*store).vm.raised_pc = register(libc::REG_RIP) as usize;
        (*store).vm.raised_fp = register(libc::REG_RBP) as usize;
        (*store).vm.raised_sp = register(libc::REG_RSP) as usize;
        (*store).vm.raised_registers = NUMBERED.map(register);
    }
}

/// The registers by their numbers in machine code.
const NUMBERED: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Passes the signal to the previously installed handler, or performs its default action.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let handled = &HANDLED[signal as usize];
    // Acquire, first: pairs with the Release that published the action.
    let flags = handled.previous_flags.load(Ordering::Acquire);
    let previous = Action { function: handled.previous.load(Ordering::Relaxed), flags };
    // SAFETY: the program installed the function with these flags; the pointers are the kernel's.
    unsafe { previous.take(info, context) };
}
