//! A program that uses SIGTRAP itself: actions, handlers that call the previous one, and foreign
//! traps.

use std::arch::asm;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use wordpatch::{Outstanding, patch, start_patch};

use super::{A, B, RET, STRADDLING, call, functions, mov_eax, text};

pub type Info = *mut libc::siginfo_t;
pub type Context = *mut libc::c_void;

/// The two kinds of handlers, which `SA_SIGINFO` distinguishes.
#[derive(Clone, Copy)]
pub enum Handler {
    Short(extern "C" fn(libc::c_int)),
    Long(extern "C" fn(libc::c_int, Info, Context)),
}

/// An action with these flags, which blocks these signals.
pub fn action(handler: Handler, flags: libc::c_int, mask: &[libc::c_int]) -> libc::sigaction {
    let (function, kind) = match handler {
        Handler::Short(function) => (function as usize, 0),
        Handler::Long(function) => (function as usize, libc::SA_SIGINFO),
    };
    let mut action = none(function);
    action.sa_flags = flags | kind;
    for signal in mask {
        // SAFETY: a valid mask and signal.
        unsafe { libc::sigaddset(&mut action.sa_mask, *signal) };
    }
    action
}

/// SIG_DFL, SIG_IGN, or the function of a [`Handler::Short`], without flags.
pub fn none(function: usize) -> libc::sigaction {
    // SAFETY: all zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = function;
    action
}

/// Installs an action; returns the previous one.
pub fn install(action: &libc::sigaction) -> libc::sigaction {
    let mut old = none(libc::SIG_DFL);
    // SAFETY: actions of the tests, whose handlers are async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, action, &mut old) }, 0);
    old
}

/// The function of the action in force.
pub fn current() -> usize {
    let mut current = none(libc::SIG_DFL);
    // SAFETY: changes nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, std::ptr::null(), &mut current) }, 0);
    current.sa_sigaction
}

pub fn install_handler(handler: Handler) -> libc::sigaction {
    install(&action(handler, 0, &[]))
}

/// The action that a handler has replaced.
pub struct Saved(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: the tests set it while no handler runs, or in the handler itself.
unsafe impl Sync for Saved {}

impl Saved {
    pub const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    pub fn set(&self, action: libc::sigaction) {
        // SAFETY: see `Sync`.
        unsafe { (*self.0.get()).write(action) };
    }

    pub fn get(&self) -> libc::sigaction {
        // SAFETY: see `Sync`; the tests set it first.
        unsafe { (*self.0.get()).assume_init() }
    }

    /// Installs `handler` and saves the previous action.
    pub fn replace_by(&self, handler: Handler) {
        self.set(install_handler(handler));
    }

    /// Calls the saved handler, if it is one, as a handler with SA_SIGINFO does.
    pub fn call_with(&self, signal: libc::c_int, info: Info, context: Context) {
        let old = self.get();
        if old.sa_sigaction == libc::SIG_DFL || old.sa_sigaction == libc::SIG_IGN {
            return;
        }
        if old.sa_flags & libc::SA_SIGINFO == 0 {
            return self.call(signal);
        }
        // SAFETY: a handler with this signature.
        let function: extern "C" fn(libc::c_int, Info, Context) =
            unsafe { std::mem::transmute(old.sa_sigaction) };
        function(signal, info, context);
    }

    /// Calls the saved handler with the signal's number only. The registers of the other arguments
    /// have arbitrary values.
    pub fn call(&self, signal: libc::c_int) {
        let old = self.get();
        if old.sa_sigaction == libc::SIG_DFL || old.sa_sigaction == libc::SIG_IGN {
            return;
        }
        // SAFETY: a handler's function; the stack is aligned.
        unsafe {
            asm!(
                "call {function}",
                function = in(reg) old.sa_sigaction,
                inlateout("rdi") signal => _,
                inlateout("rsi") 0x1111usize => _,
                inlateout("rdx") 0x2222usize => _,
                clobber_abi("C"),
            );
        }
    }
}

/// Executes a breakpoint of the program. Returns the address after it.
pub fn breakpoint() -> usize {
    let breakpoint = text(0, &[0xcc, RET]);
    // SAFETY: `int3; ret`.
    let function: extern "C" fn() = unsafe { std::mem::transmute(breakpoint) };
    function();
    breakpoint + 1
}

/// Sends SIGTRAP to this thread.
pub fn send() {
    // SAFETY: no memory is touched.
    unsafe { libc::raise(libc::SIGTRAP) };
}

/// A site that is locked until the patch is finished: [`call`] returns A until then, and B
/// afterwards.
pub fn locked_site() -> (usize, Outstanding) {
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    (site, unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap())
}

/// A site that needs the trap handler for each patch.
pub struct Toggled {
    site: usize,
    holds: [u32; 2],
}

impl Toggled {
    pub fn new() -> Self {
        Self { site: functions(1, STRADDLING)[0], holds: [A, B] }
    }

    pub fn toggle(&mut self) {
        let [old, new] = self.holds;
        // SAFETY: as in `locked_site`.
        unsafe { patch(self.site, &mov_eax(old), &mov_eax(new)) }.unwrap();
        assert_eq!(call(self.site), new);
        self.holds = [new, old];
    }
}

/// Makes a patch that needs the trap handler.
pub fn patch_straddler() {
    Toggled::new().toggle();
}

/// Makes handlers run on the stack of this thread: the standard library's alternate stack has no
/// room for several of them.
pub fn without_signal_stack() {
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the thread is not on its alternate stack.
    assert_eq!(unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) }, 0);
}
