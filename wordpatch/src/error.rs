//! The errors of patches.
//!
//! There are three kinds: the requested patch is not possible, the environment refuses it, or the
//! text does not contain what it should. All variants leave the text unchanged, except in a rare
//! case of [`Error::MembarrierRefused`].

use std::io;

use crate::Bytes;

/// The reason why text was not patched. Addresses are those at which the text is executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The patch is empty or longer than eight bytes, or old and new bytes differ in length.
    #[error(
        "a patch replaces 1 to 8 bytes by the same number: {expected} expected bytes, {replacement} new bytes at {address:#x}"
    )]
    Length {
        /// The address of the patch.
        address: usize,
        /// The length of the expected old bytes.
        expected: usize,
        /// The length of the new bytes.
        replacement: usize,
    },

    /// The bytes at the address, or the new bytes, are not an instruction.
    #[error(
        "no valid instruction at {address:#x}: {bytes}; give the address of an instruction's first byte, and complete instructions"
    )]
    Undecodable {
        /// The address at which the instruction should start.
        address: usize,
        /// The bytes that do not decode.
        bytes: Bytes,
    },

    /// The new bytes would change where the next instruction starts (paper section 4, layout
    /// equivalence).
    #[error(
        "the patch would replace an instruction of {old_length} bytes at {address:#x} by one of {new_length}; instruction boundaries must not change"
    )]
    LayoutChanged {
        /// The address of the instruction.
        address: usize,
        /// The length of the old instruction.
        old_length: usize,
        /// The length of the new instruction.
        new_length: usize,
    },

    /// Several instructions change, and one store cannot replace all of them: a thread between them
    /// might execute some old and some new ones.
    #[error(
        "the patch at {address:#x} changes several instructions that are more than 8 bytes or cross a fetch window; patch them one at a time"
    )]
    SeveralInstructions {
        /// The address of the first instruction that changes.
        address: usize,
    },

    /// An earlier patch of the same batch changes some of the same bytes.
    #[error("the batch has an earlier patch of the bytes at {address:#x}; put this one into another batch")]
    Overlap {
        /// The address of the refused patch.
        address: usize,
    },

    /// The text does not contain the bytes that the caller expects.
    #[error(
        "foreign bytes at {address:#x}: expected {expected}, found {found}; another tool may have patched this code"
    )]
    Mismatch {
        /// The address at which the bytes differ.
        address: usize,
        /// The bytes that the caller expected.
        expected: Bytes,
        /// The bytes in the text.
        found: Bytes,
    },

    /// Another thread is patching the same instruction, or another part of it has changed since the
    /// patch was checked. It is safe to try again.
    #[error("another thread is patching the instruction at {address:#x}; try again")]
    Contended {
        /// The address of the site.
        address: usize,
    },

    /// There is an INT3 at the site that is not ours.
    #[error("there is a foreign breakpoint at {address:#x}; remove the debugger's breakpoint")]
    ForeignBreakpoint {
        /// The address of the site.
        address: usize,
    },

    /// The address is not mapped.
    #[error("{address:#x} is not mapped; was its library unloaded?")]
    NotMapped {
        /// The address that was given.
        address: usize,
    },

    /// The address is mapped, but not executable and readable.
    #[error("{address:#x} is not readable and executable memory; data needs no patch: write it directly")]
    NotExecutable {
        /// The address that was given.
        address: usize,
    },

    /// The instruction cannot be run out of line, so its site cannot be locked.
    #[error("the instruction at {address:#x} cannot be moved out of line: {reason}")]
    Immovable {
        /// The address of the site.
        address: usize,
        /// The reason why the instruction cannot be executed at another address.
        reason: &'static str,
    },

    /// No free address space within reach of a 32-bit displacement.
    #[error(
        "no {length} free bytes within 2 GiB of {address:#x}; leave addresses near the program's text unmapped"
    )]
    OutOfReach {
        /// The address near which the memory is needed.
        address: usize,
        /// The requested length, in bytes.
        length: usize,
    },

    /// The tables of patched straddlers are full: they have room for millions of sites and of old
    /// instructions.
    #[error("the tables for straddling instructions are full; place further sites inside a fetch window")]
    TableFull,

    /// The text was unmapped, or replaced, during an asynchronous patch. Nothing else has changed.
    #[error("the text at {address:#x} was unmapped while it was being patched; nothing is left to undo")]
    TextGone {
        /// The address of the site.
        address: usize,
    },

    /// The patch was started by the parent process. The text of this process has the old
    /// instruction.
    #[error(
        "the patch of {address:#x} was begun by the parent process, and has no effect in this one; start it again here"
    )]
    Forked {
        /// The address of the site.
        address: usize,
    },

    /// A thread has SIGTRAP blocked: the kernel would kill the process if the thread executed a
    /// locked site.
    #[error(
        "thread {thread} has SIGTRAP blocked; unblock it there before an instruction is patched across a fetch window"
    )]
    SigtrapBlocked {
        /// The kernel id of the thread.
        thread: i32,
    },

    /// The threads of the process could not be examined.
    #[error("/proc/self/task could not be read: {source}; mount /proc, or allow more open files")]
    ThreadsUnknown {
        /// The system call's error.
        source: io::Error,
    },

    /// A thread could not be started.
    #[error(
        "the thread that finishes patches could not be started: {source}; finish them with try_finish or wait instead"
    )]
    ThreadRefused {
        /// The system call's error.
        source: io::Error,
    },

    /// After a fork, the text, or the table of locked sites, is still shared with the parent
    /// process: call [`unshare`](crate::text::unshare).
    #[error("the text at {address:#x} is still shared with the parent process; call text::unshare first")]
    SharedWithParent {
        /// The address of the site.
        address: usize,
    },

    /// The kernel refused a writable mapping of the text.
    #[error(
        "no writable alias of the text at {address:#x} ({source}); text access by mprotect may be allowed here"
    )]
    AliasRefused {
        /// The start of the text mapping.
        address: usize,
        /// The system call's error.
        source: io::Error,
    },

    /// The kernel refused a change of page protection.
    #[error(
        "mprotect of the text at {address:#x} failed: {source}; where it is forbidden, text must be written through an alias"
    )]
    ProtectRefused {
        /// The start of the page.
        address: usize,
        /// The system call's error.
        source: io::Error,
    },

    /// The kernel refused `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. Nothing has changed, except if
    /// it was refused only in the second wait of a patch, because another thread has installed a
    /// seccomp filter: then the patch can be neither completed nor rolled back safely, and the site
    /// stays locked. Threads execute the old instruction, at the cost of a trap, and no other patch
    /// can acquire the site, until the text is gone and [forgotten](crate::text::forget).
    #[error(
        "membarrier SYNC_CORE refused: {source}; a straddling instruction cannot be patched here without a calibrated T_max"
    )]
    MembarrierRefused {
        /// The system call's error.
        source: io::Error,
    },

    /// The SIGTRAP handler could not be installed.
    #[error(
        "the SIGTRAP handler could not be installed: {source}; allow sigaction, or patch inside fetch windows only"
    )]
    TrapRefused {
        /// The system call's error.
        source: io::Error,
    },

    /// The program has installed more different actions for SIGTRAP than can be covered. The one
    /// that it installed last stays in force.
    #[error(
        "the program has installed more than {limit} different SIGTRAP handlers; install one handler, before the first patch"
    )]
    TrapHandlersExhausted {
        /// The number of actions that can be covered.
        limit: usize,
    },

    /// The kernel refused memory for generated code.
    #[error("no memory for generated code: {source}; allow memfd_create, and raise limits of address space")]
    CodeMemory {
        /// The system call's error.
        source: io::Error,
    },

    /// The process's memory map could not be read or changed.
    #[error(
        "the memory map near {address:#x} could not be read or changed: {source}; mount /proc, and allow mmap"
    )]
    MemoryMap {
        /// The address that was looked up.
        address: usize,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// A copy of the error, for another site of the same batch.
    pub(crate) fn of_refusal(refusal: &Self) -> Self {
        let errno = |source: &io::Error| io::Error::from_raw_os_error(source.raw_os_error().unwrap_or(0));
        match refusal {
            Self::TrapRefused { source } => Self::TrapRefused { source: errno(source) },
            Self::TrapHandlersExhausted { limit } => Self::TrapHandlersExhausted { limit: *limit },
            Self::MembarrierRefused { source } => Self::MembarrierRefused { source: errno(source) },
            other => unreachable!("not a refusal of the whole batch: {other}"),
        }
    }
}
