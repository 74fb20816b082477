//! The action of a process for SIGTRAP: reading it, replacing it, and performing it instead of the
//! kernel.

use std::io;
use std::mem::MaybeUninit;

use super::frame::Context;
use crate::thread_id::thread_id;

/// The bit of SIGTRAP in a signal mask of the kernel, which is one word.
const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

/// The flags of an action that are relevant here. (The C library adds SA_RESTORER when it installs
/// an action, and may not report it.)
const FLAGS: libc::c_int =
    libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER | libc::SA_RESETHAND;

/// An action for SIGTRAP: a function, SIG_DFL or SIG_IGN; flags; and the signals that are blocked
/// while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) function: usize,
    pub(super) flags: libc::c_int,
    pub(super) mask: u64,
}

impl Action {
    pub(super) const DEFAULT: Self = Self { function: libc::SIG_DFL, flags: 0, mask: 0 };

    pub(super) fn is_function(&self) -> bool {
        self.function != libc::SIG_DFL && self.function != libc::SIG_IGN
    }

    fn from_libc(action: &libc::sigaction) -> Self {
        // SAFETY: a signal mask is at least a word long; the first word has signals 1 to 64.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        Self { function: action.sa_sigaction, flags: action.sa_flags & FLAGS, mask }
    }

    fn to_libc(self) -> libc::sigaction {
        // SAFETY: all zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = self.function;
        action.sa_flags = self.flags;
        // SAFETY: as in `from_libc`.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask) };
        action
    }

    /// The action in force.
    pub(super) fn current() -> io::Result<Self> {
        let mut current = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: reads the current action into memory of the right type.
        if unsafe { libc::sigaction(libc::SIGTRAP, std::ptr::null(), current.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed, then written by the kernel; every bit pattern is valid.
        Ok(Self::from_libc(unsafe { current.assume_init_ref() }))
    }

    /// Installs the action, and returns the one that it replaces.
    ///
    /// # Safety
    /// The function must be SIG_DFL, SIG_IGN, or a handler with the signature that the flags
    /// select.
    pub(super) unsafe fn install(self) -> io::Result<Self> {
        let mut replaced = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the caller's obligation.
        if unsafe { libc::sigaction(libc::SIGTRAP, &self.to_libc(), replaced.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed, then written by the kernel; every bit pattern is valid.
        Ok(Self::from_libc(unsafe { replaced.assume_init_ref() }))
    }

    /// Calls the function with the action's signals blocked, except SIGTRAP.
    ///
    /// # Safety
    /// The program installed this action, its function is neither SIG_DFL nor SIG_IGN, and the
    /// pointers are those that the kernel or the program's handler has passed.
    pub(super) unsafe fn call(
        &self,
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        let mask = self.mask & !SIGTRAP_BIT;
        let before = (mask != 0).then(|| change_mask(libc::SIG_BLOCK, mask));
        // "C-unwind": the program's handler may end its thread.
        if self.flags & libc::SA_SIGINFO != 0 {
            type Function = extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the program installed this function with SA_SIGINFO.
            let function = unsafe { std::mem::transmute::<usize, Function>(self.function) };
            function(signal, info, context);
        } else {
            // SAFETY: the program installed this function without SA_SIGINFO.
            let function =
                unsafe { std::mem::transmute::<usize, extern "C-unwind" fn(libc::c_int)>(self.function) };
            function(signal);
        }
        if let Some(before) = before {
            change_mask(libc::SIG_SETMASK, before);
        }
    }
}

/// Changes this thread's signal mask; returns the previous one.
fn change_mask(how: libc::c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel's masks have eight bytes, and the call is async-signal-safe. It cannot
    // fail: `how` is valid.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &mask, &mut before, size_of::<u64>()) };
    before
}

/// Makes the signal kill the process, as its default action does.
///
/// If the kernel's frame is known, the signal is made pending, with the same `info`, until the
/// handler returns, so the core dump shows the interrupted registers. If another thread covers
/// SIG_DFL before that, the handler gets the same signal again and calls this function again.
pub(super) fn take_default(info: Option<&libc::siginfo_t>, context: Option<&mut Context>) {
    // SAFETY: SIG_DFL.
    let _ = unsafe { Action::DEFAULT.install() };
    match context {
        Some(context) => {
            change_mask(libc::SIG_BLOCK, SIGTRAP_BIT);
            context.mask &= !SIGTRAP_BIT;
        }
        None => _ = change_mask(libc::SIG_UNBLOCK, SIGTRAP_BIT),
    }
    // SAFETY: both calls are async-signal-safe; the kernel reads a valid `info`.
    unsafe {
        let (process, thread) = (libc::getpid(), thread_id());
        let queued = info.map(|info| {
            libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                process,
                thread,
                libc::SIGTRAP,
                std::ptr::from_ref(info),
            )
        });
        if queued != Some(0) {
            libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGTRAP);
        }
    }
}
