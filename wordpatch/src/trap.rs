//! The SIGTRAP handler: sends threads that meet a locked site on, and leaves every other trap to whoever had the signal.
//!
//! Runs in signal context, on any thread, at any instruction: atomics on fixed memory only; no locks, no allocation.
//!
//! # A trap is
//! 1. on a site that is locked in the [`site_table`]: the thread goes on in the out-of-line copy of the old instruction;
//! 2. on a byte that is no INT3 any more: the patch was finished between the trap and the handler, the thread runs the new
//!    instruction;
//! 3. else not ours: the previous handler gets it.
//!
//! # Other people's handlers
//! A handler that was there before ours gets what is not ours. One that the program installs later replaces ours: the next
//! patch that needs INT3 notices ([`own_sigtrap`]) and puts ours in front of it. A thread that meets a site which was locked
//! before, in that short time, comes to the program's handler: a program should install its handler first.
//!
//! A thread with SIGTRAP blocked is killed by the kernel when it meets an INT3: see [`check_sigtrap_unblocked`].

use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};

use crate::protocol::INT3;
use crate::site_table::{Int3, meaning_of_int3};
use crate::text::fork;
use crate::{Error, copies};

/// The handler that had SIGTRAP before us: address of its function and its flags.
static PREVIOUS_FUNCTION: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// Makes sure that SIGTRAP comes to us, also when the program has installed a handler since the last call. Without a lock: two
/// threads at once find the same previous handler.
pub(crate) fn own_sigtrap() -> Result<(), Error> {
    let refused = || Error::TrapRefused { source: io::Error::last_os_error() };
    let mut current = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads the current action into memory of the right type.
    if unsafe { libc::sigaction(libc::SIGTRAP, std::ptr::null(), current.as_mut_ptr()) } != 0 {
        return Err(refused());
    }
    // SAFETY: zeroed or written by the kernel; every bit pattern is valid.
    let current = unsafe { current.assume_init() };
    if current.sa_sigaction == handle as *const () as usize {
        return Ok(());
    }
    PREVIOUS_FUNCTION.store(current.sa_sigaction, Ordering::Relaxed);
    PREVIOUS_FLAGS.store(current.sa_flags as usize, Ordering::Release);
    // SAFETY: all zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handle as *const () as usize;
    // SIGINFO: the handler changes the context. ONSTACK: the site may run on a tiny stack. NODEFER: a previous handler that
    // we call may itself run through a locked site. RESTART: an interrupted system call is none of our business.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: `handle` has the signature that SA_SIGINFO asks for and obeys signal context.
    if unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) } != 0 {
        return Err(refused());
    }
    Ok(())
}

/// `si_code` of a trap by an INT3 instruction (sigaction(2)).
const SI_KERNEL: libc::c_int = 0x80;
/// Second byte of the two-byte form `int 3`.
const INT_IMM8: u8 = 0xcd;

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler.
    let (code, registers) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        ((*info).si_code, &mut context.uc_mcontext.gregs)
    };
    let instruction_pointer = &mut registers[libc::REG_RIP as usize];
    if code == SI_KERNEL {
        let site = *instruction_pointer as usize - 1;
        let text = std::ptr::with_exposed_provenance::<u8>(site);
        // SAFETY: the thread has just executed the byte at `site`.
        let is_int3 = || unsafe { text.read_volatile() } == INT3;
        // SAFETY: inside the page of the byte that was executed.
        let is_two_byte_form = site & 4095 != 0 && unsafe { text.sub(1).read_volatile() } == INT_IMM8;
        match meaning_here(site, is_int3) {
            Int3::Locked { copy } => return *instruction_pointer = copy as i64,
            Int3::Gone if !is_two_byte_form => return *instruction_pointer = site as i64,
            Int3::Gone | Int3::Foreign => {}
        }
    }
    pass_on(signal, info, context);
}

/// How often a child looks again whether its parent's patch is over, with a yield between two looks. Bounded: the parent may
/// be stopped, or gone.
const LOOKS: usize = 1 << 20;

/// [`meaning_of_int3`], for a thread that has met one.
///
/// A forked child may meet a lock whose copy stands in a page that its parent has made since: it waits for the end of the
/// patch.
fn meaning_here(site: usize, is_int3: impl Fn() -> bool) -> Int3 {
    for _ in 0..LOOKS {
        match meaning_of_int3(site, &is_int3) {
            Int3::Locked { copy } if fork::is_unprepared_child() && !copies::is_here(copy) => {
                // SAFETY: async-signal-safe, and touches no memory.
                unsafe { libc::sched_yield() };
            }
            meaning => return meaning,
        }
    }
    Int3::Foreign
}

/// Gives the trap to the handler that was there before us, or lets it have its default effect.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let flags = PREVIOUS_FLAGS.load(Ordering::Acquire) as libc::c_int;
    match PREVIOUS_FUNCTION.load(Ordering::Relaxed) {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            // SAFETY: both are async-signal-safe; the signal ends the process once this handler has returned.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        function if flags & libc::SA_SIGINFO != 0 => {
            type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the program installed this function with SA_SIGINFO.
            let function: Action = unsafe { std::mem::transmute(function) };
            function(signal, info, context);
        }
        function => {
            // SAFETY: the program installed this function without SA_SIGINFO.
            let function: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(function) };
            function(signal);
        }
    }
}

/// Has `act` run with every signal blocked but the trap: for making a thread that the program's handlers never run on, and
/// that can still run through a locked site.
pub fn with_signals_blocked<R>(act: impl FnOnce() -> R) -> R {
    let mut mask = SigSet::all();
    mask.remove(Signal::SIGTRAP);
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), Some(&mut before));
    let result = act();
    if blocked.is_ok() {
        // Cannot fail: the mask is one that was in force.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
    result
}

/// For how long a thread must have the trap blocked before it counts: the C library blocks every signal while a thread begins and
/// ends, which takes as long as the thread has to wait for a processor.
const LONG_BLOCKED: Duration = Duration::from_millis(200);

/// Whether every thread of this process can take a trap: says which one has SIGTRAP blocked, and would be killed by the
/// kernel if it met a locked site. Reads `/proc/self/task`, some ten microseconds for each thread, so no patch does it by
/// itself; 200 ms where it finds one. What a thread blocks later is not seen.
///
/// # Errors
/// [`Error::SigtrapBlocked`], or [`Error::ThreadsUnknown`] when `/proc` cannot be read.
pub fn check_sigtrap_unblocked() -> Result<(), Error> {
    let unreadable = |source| Error::ThreadsUnknown { source };
    for task in std::fs::read_dir("/proc/self/task").map_err(unreadable)? {
        let folder = task.map_err(unreadable)?.path();
        let begin = Instant::now();
        let mut blocked = blocks_sigtrap(&folder);
        while blocked && begin.elapsed() < LONG_BLOCKED {
            std::thread::yield_now();
            blocked = blocks_sigtrap(&folder);
        }
        if blocked {
            let name = folder.file_name().and_then(|name| name.to_str());
            return Err(Error::SigtrapBlocked {
                thread: name.and_then(|name| name.parse().ok()).unwrap_or(0),
            });
        }
    }
    Ok(())
}

/// Whether the thread of this folder has the signal blocked; not if it has ended.
fn blocks_sigtrap(folder: &Path) -> bool {
    let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|blocked| blocked & 1 << (libc::SIGTRAP - 1) != 0)
}
