//! SIGTRAP: resumes threads that execute the INT3 of a locked site, and passes on every other trap
//! to the action that the program had installed.
//!
//! The handler runs on any thread, at any instruction: it uses atomics on fixed memory and
//! async-signal-safe system calls, never a lock, an allocation or thread-local storage (which a
//! shared object may have to allocate first).
//!
//! # Which traps are ours
//! The instruction pointer of a thread that executed INT3 at a site of the
//! [`site_table`](crate::site_table) is one byte after the start of the site. No other event traps
//! at this address, because no code jumps into the middle of a patched instruction. See [`site`]:
//! 1. the site is locked: the thread continues in the out-of-line copy of the old instruction;
//! 2. the INT3 has been overwritten: the patch was completed between the trap and the handler, so
//!    the thread executes the site again;
//! 3. otherwise the trap is foreign.
//!
//! The signal's code is not used to recognize a site, because it may be that of another signal: the
//! kernel keeps one pending SIGTRAP per thread. If a thread executes INT3 while a SIGTRAP that was
//! sent to it is pending, the trap is dropped, and the handler gets the sent signal, at the site.
//! The thread is resumed and the sent signal is passed on.
//!
//! # Passing a trap on: entries
//! Each action of the program that is covered gets its own [`entry`]: a distinct handler function,
//! bound for the life of the process to the action it covered (function, flags and mask). A handler
//! of the program that saves the action it replaces, and calls it, therefore reaches the action
//! that was installed before, however often it is covered again:
//!
//! ```text
//! installed by     program   patch     program                    patch
//!                  P         entry 0   H, which saved entry 0     entry 1
//!                            → P       → entry 0 → P              → H → entry 0 → P
//! ```
//!
//! [`chain`] has the rules for installation: an entry that is already installed is kept, a known
//! action gets the entry that it had, and the 17th distinct action is refused with an error.
//!
//! # No handler receives a trap twice
//! A handler that installs itself again on top of entry 1 saves entry 1 as its old action, which is
//! bound to this handler: a cycle. Therefore each delivery of a signal records the entries that it
//! has passed ([`delivery`]). An entry that is reached again, or whose handler has already received
//! the trap, passes it to the entry installed before it. After the last entry, the default action
//! is taken.
//!
//! # Semantics of an action
//! An action has the same effect as when the kernel called it ([`action`]): SA_SIGINFO selects the
//! signature, SA_RESETHAND makes it valid for one trap, `sa_mask` is blocked while it runs,
//! SA_RESTART applies to interrupted system calls. SIG_DFL kills the process, with the interrupted
//! registers in the core dump; SIG_IGN does the same if an instruction forced the signal, as in the
//! kernel.
//!
//! Differences that remain:
//! * SIGTRAP is not blocked while a program's handler runs, regardless of its flags and mask: the
//!   handler may execute a locked site. Signals that are sent faster than the handler returns
//!   therefore nest, and each needs a frame: an alternate stack of 8 KiB has room for two or three,
//!   or for one where vector registers make frames large (`AT_MINSIGSTKSZ` of getauxval(3)). Other
//!   signals with SA_ONSTACK nest in the same way if they come while a trap is handled.
//!   Blocking SIGTRAP in our own code alone would not change this, because the kernel delivers a
//!   pending signal as soon as the program's handler is called with SIGTRAP unblocked.
//! * Handlers run on the alternate signal stack if the thread has one, because a locked site may be
//!   reached on a stack without room for a signal frame.
//! * A SIGTRAP that is sent to a thread and ignored interrupts its system calls. They are
//!   restarted, except those that never are (signal(7): `poll`, `nanosleep` and the like), which
//!   fail with EINTR.
//!
//! # Handlers that the program installs later
//! A handler that replaces ours is covered by the next patch that needs INT3. Until then it
//! receives the traps of sites that were locked before. If it passes on `info` and `context` of
//! unknown traps, those threads are resumed, too; otherwise they are not. A program should install
//! its handler before it patches.
//!
//! If one thread installs a handler while another thread's patch is covering the previous handler,
//! the new handler receives no traps until that is done; until then they go to the previous one.
//! Each trap is passed on once.
//!
//! A thread that blocks SIGTRAP is killed by the kernel when it executes INT3: see
//! [`check_sigtrap_unblocked`].

mod action;
mod chain;
mod delivery;
mod entry;
mod frame;
mod site;
mod threads;

pub(crate) use chain::{Hold, hold, own_sigtrap};
pub use threads::{check_sigtrap_unblocked, with_signals_blocked};
