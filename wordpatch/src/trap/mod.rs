//! SIGTRAP: resumes threads that execute the INT3 of a locked site, and passes every other trap on
//! to the action that the program had installed.
//!
//! The handler runs on any thread, at any instruction: it uses atomics on fixed memory and
//! async-signal-safe system calls, never a lock, an allocation or thread-local storage (which a
//! shared object may have to allocate first).
//!
//! # Which traps are ours
//! A thread that executed INT3 at a site of the [`site_table`](crate::site_table) stands one byte
//! after the start of the site. No other event stops a thread there, because nothing jumps into the
//! middle of a patched instruction. See [`site`]:
//! 1. the site is locked: the thread continues in the out-of-line copy of the old instruction;
//! 2. INT3 is gone: the patch was completed between the trap and the handler, so the thread
//!    executes the site again;
//! 3. otherwise the trap is foreign.
//!
//! The signal's code does not decide, because it may be wrong: the kernel keeps one pending SIGTRAP
//! per thread. If a thread executes INT3 while one that was sent to it is already pending, the trap
//! is dropped, and the handler sees the sent signal, at the site. The thread is resumed and the
//! sent signal is passed on.
//!
//! # Passing a trap on: entries
//! Each foreign action that has to be covered gets an [`entry`] of its own: a distinct handler
//! function, bound for the life of the process to the action it covered (function, flags and mask).
//! A handler of the program that saves the action it replaces, and calls it, therefore reaches what
//! was installed before, however often it is covered again:
//!
//! ```text
//! installed by     program   patch     program                    patch
//!                  P         entry 0   H, which saved entry 0     entry 1
//!                            → P       → entry 0 → P              → H → entry 0 → P
//! ```
//!
//! [`chain`] has the rules for installation: an entry found in place stays, a known action gets its
//! entry back, and the 17th distinct action is refused with an error.
//!
//! # No handler gets a trap twice
//! A handler that installs itself again on top of entry 1 saves entry 1 as its old action, which is
//! bound to this handler: a cycle. So each delivery of a signal records the entries it has passed
//! ([`delivery`]). An entry that is reached again, or whose handler has had the trap already,
//! passes it to the entry installed before it, and after the last one the default action is taken.
//!
//! # What an action means
//! It keeps the meaning that it had when the kernel called it ([`action`]): SA_SIGINFO selects the
//! signature, SA_RESETHAND makes it valid for one trap, `sa_mask` is blocked while it runs,
//! SA_RESTART applies to interrupted system calls. SIG_DFL kills the process, with the interrupted
//! registers in the core dump; so does SIG_IGN if an instruction forced the signal, as in the
//! kernel.
//!
//! Differences that remain:
//! * SIGTRAP stays deliverable while a program's handler runs, whatever its flags and mask say: the
//!   handler may execute a locked site. Signals that are sent faster than the handler returns
//!   therefore nest, and each takes a frame: an alternate stack of 8 KiB has room for two or three.
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
//! what it does not know, those threads are resumed too; otherwise they are lost. A program should
//! install its handler before it patches.
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
