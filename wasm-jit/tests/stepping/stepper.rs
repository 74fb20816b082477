//! Single-steps a program to a machine instruction of its modules, and interrupts it there.

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use wasm_jit::{InterruptHandle, Module};

/// What the signal handler needs.
struct Stepper<'a> {
    modules: &'a [&'a Module],
    interrupt: InterruptHandle,
    /// Machine instructions of the modules, their versions and stubs until the interrupt.
    left: usize,
    /// Whether all other code is stepped, too: if not, it must call [`step_from_here`] before it
    /// comes back into a module.
    is_everywhere: bool,
    /// The address of the instruction at which the program is interrupted.
    stopped_at: u64,
}

/// How a program was stepped.
pub(crate) struct Stepped<R> {
    /// What the call has returned.
    pub result: R,
    /// The number of steps that it has left if it has ended before.
    pub left: usize,
    /// The address of the instruction at which it was interrupted, if it was.
    pub stopped_at: u64,
}

static STEPPER: AtomicPtr<Stepper<'static>> = AtomicPtr::new(ptr::null_mut());

/// Whether code outside of the modules is about to come back into one: it is stepped, too.
static COMES_BACK: AtomicBool = AtomicBool::new(false);

const TRAP_FLAG: u64 = 0x100;

/// Called after each instruction. In code of a module, the thread has no locks of the runtime.
extern "C" fn step(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's pointer.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let pc = registers[libc::REG_RIP as usize] as u64;
    let flags = &mut registers[libc::REG_EFL as usize];
    // SAFETY: set by this thread, which waits for the call of the program meanwhile.
    let stepper = unsafe { STEPPER.load(Ordering::Relaxed).as_mut() };
    let Some(stepper) = stepper else {
        *flags &= !(TRAP_FLAG as i64);
        return;
    };
    if !stepper.modules.iter().any(|module| contains(module, pc)) {
        if !stepper.is_everywhere && !COMES_BACK.load(Ordering::Relaxed) {
            *flags &= !(TRAP_FLAG as i64);
        }
        return;
    }
    COMES_BACK.store(false, Ordering::Relaxed);
    match stepper.left.checked_sub(1) {
        Some(left) => stepper.left = left,
        // The signal arrives when this handler, which blocks it, returns.
        None => {
            stepper.stopped_at = pc;
            stepper.interrupt.interrupt();
            *flags &= !(TRAP_FLAG as i64);
            STEPPER.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

/// Whether an instruction belongs to a function of a module.
fn contains(module: &Module, pc: u64) -> bool {
    // It takes return addresses.
    module.function_at(pc + 1).is_some()
}

/// The right to step, which one test has at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // SAFETY: the handler does what it may, see there.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
    turn
}

/// From now on, code of the modules is stepped, which is about to be entered.
pub(crate) fn step_from_here() {
    if !STEPPER.load(Ordering::Relaxed).is_null() {
        COMES_BACK.store(true, Ordering::Relaxed);
        // SAFETY: the handler is installed.
        unsafe { asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", flag = const TRAP_FLAG) };
    }
}

/// Makes a call to a program, and interrupts it after this many steps.
pub(crate) fn interrupted_after<R>(
    steps: usize,
    modules: &[&Module],
    is_everywhere: bool,
    interrupt: InterruptHandle,
    call: impl FnOnce() -> R,
) -> Stepped<R> {
    let mut stepper = Stepper { modules, interrupt, left: steps, is_everywhere, stopped_at: 0 };
    STEPPER.store((&raw mut stepper).cast(), Ordering::Relaxed);
    step_from_here();
    let result = call();
    STEPPER.store(ptr::null_mut(), Ordering::Relaxed);
    let Stepper { left, stopped_at, .. } = stepper;
    Stepped { result, left, stopped_at }
}
