//! The SIGTRAP handler: sends threads that meet a locked site on, and leaves every other trap to whoever had the signal.
//!
//! Runs in signal context, on any thread, at any instruction: atomics on fixed memory only; no locks, no allocation.
//!
//! # A trap is
//! 1. on a site in the table: the thread goes on in the out-of-line copy of the old instruction;
//! 2. on a byte that is no INT3 any more: the patch was finished between the trap and the handler, the thread runs the new
//!    instruction;
//! 3. else not ours: the previous handler gets it.
//!
//! A thread with SIGTRAP blocked is killed by the kernel when it meets an INT3: see the contract of [`crate::patch`].

use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Error;
use crate::protocol::INT3;

/// How many sites can be locked at once.
const SLOTS: usize = 64;

struct Slot {
    /// The owned site, 0 when the slot is free.
    site: AtomicUsize,
    /// Where threads go on.
    copy: AtomicUsize,
}

static SLOT_TABLE: [Slot; SLOTS] =
    [const { Slot { site: AtomicUsize::new(0), copy: AtomicUsize::new(0) } }; SLOTS];

/// The right to be the only multi-step patch of a site, for as long as the guard lives. Threads may find the site locked.
pub(crate) struct OwnedSite {
    slot: &'static Slot,
}

impl OwnedSite {
    /// Takes the site. Threads that meet an INT3 there go on at `copy`; without one, the patch must not store any.
    ///
    /// # Errors
    /// [`Error::Contended`] when another patch owns the site, [`Error::TableFull`], [`Error::TrapRefused`].
    pub(crate) fn take(site: usize, copy: Option<usize>) -> Result<Self, Error> {
        let _taking = TAKING.lock().unwrap_or_else(|e| e.into_inner());
        if copy.is_some() {
            own_sigtrap()?;
        }
        if is_owned(site) {
            return Err(Error::Contended { address: site });
        }
        let slot =
            SLOT_TABLE.iter().find(|slot| slot.site.load(Ordering::Relaxed) == 0).ok_or(Error::TableFull)?;
        slot.copy.store(copy.unwrap_or(0), Ordering::Release);
        // Release: pairs with the handler's Acquire load; whoever sees the site sees its copy.
        slot.site.store(site, Ordering::Release);
        // Between the slot and the INT3: see `meaning_of_int3`.
        TAKEN.fetch_add(1, Ordering::SeqCst);
        Ok(Self { slot })
    }
}

impl Drop for OwnedSite {
    fn drop(&mut self) {
        self.slot.site.store(0, Ordering::Release);
    }
}

/// Whether a patch owns `site`.
fn is_owned(site: usize) -> bool {
    SLOT_TABLE.iter().any(|slot| slot.site.load(Ordering::Acquire) == site)
}

/// How often a site was taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// What an INT3 that was met at a site means.
pub(crate) enum Int3 {
    /// A patch holds the site; threads go on at `copy`.
    Locked {
        /// Where the old instruction stands out of line.
        copy: usize,
    },
    /// It is gone: the patch was finished meanwhile.
    Gone,
    /// Somebody else's breakpoint.
    Foreign,
}

/// Tells whose the INT3 at `site` is; `is_int3` reads the site.
///
/// A patch takes its slot, counts itself in `TAKEN`, stores INT3, ..., unlocks, and gives the slot back. So an INT3 that is
/// read after the slots were searched in vain is ours only if its patch counted itself since the search began.
pub(crate) fn meaning_of_int3(site: usize, is_int3: impl Fn() -> bool) -> Int3 {
    loop {
        let taken = TAKEN.load(Ordering::SeqCst);
        if let Some(slot) = SLOT_TABLE.iter().find(|slot| slot.site.load(Ordering::Acquire) == site) {
            let copy = slot.copy.load(Ordering::Acquire);
            // The slot may have been given back, and taken for another site, before its copy was read.
            if slot.site.load(Ordering::Acquire) == site {
                return Int3::Locked { copy };
            }
            continue;
        }
        if !is_int3() {
            return Int3::Gone;
        }
        if TAKEN.load(Ordering::SeqCst) == taken {
            return Int3::Foreign;
        }
    }
}

/// Held while a slot, or SIGTRAP itself, is taken.
static TAKING: Mutex<()> = Mutex::new(());

/// The handler that had SIGTRAP before us: address of its function and its flags.
static PREVIOUS_FUNCTION: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// Makes sure that SIGTRAP comes to us, also when the program has installed a handler since the last call. The caller
/// holds `TAKING`.
fn own_sigtrap() -> Result<(), Error> {
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
        match meaning_of_int3(site, is_int3) {
            Int3::Locked { copy } => return *instruction_pointer = copy as i64,
            Int3::Gone if !is_two_byte_form => return *instruction_pointer = site as i64,
            Int3::Gone | Int3::Foreign => {}
        }
    }
    pass_on(signal, info, context);
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
