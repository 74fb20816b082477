//! Why a patch was not made.
//!
//! Three kinds stay apart: what the caller asked for cannot be patched, the environment refused,
//! and the text is not what it should be. Every variant leaves the text as it was, but for a rare
//! case of [`Error::MembarrierRefused`].

use std::io;

use crate::Bytes;

/// Why text was not patched. Addresses are of the text as it is executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The patch is empty, longer than eight bytes, or old and new bytes differ in length.
    #[error(
        "a patch replaces 1 to 8 bytes by as many: {expected} bytes expected, {replacement} given at {address:#x}"
    )]
    Length {
        /// Where the patch was to go.
        address: usize,
        /// Length of the expected old bytes.
        expected: usize,
        /// Length of the new bytes.
        replacement: usize,
    },

    /// The bytes at the address, or the new ones, are no instruction.
    #[error("no valid instruction at {address:#x}: {bytes}")]
    Undecodable {
        /// Where the instruction should start.
        address: usize,
        /// The bytes that do not decode.
        bytes: Bytes,
    },

    /// The new bytes would change where the next instruction starts (paper section 4, layout
    /// equivalence).
    #[error(
        "the patch would turn the instruction of {old_length} bytes at {address:#x} into one of {new_length}; instructions must start where they did"
    )]
    LayoutChanged {
        /// Where the instruction starts.
        address: usize,
        /// Length of the instruction that stands there.
        old_length: usize,
        /// Length of the instruction that the new bytes make.
        new_length: usize,
    },

    /// Several instructions change, and one store cannot replace all of them: a thread between them
    /// would run one of the old and one of the new.
    #[error(
        "the patch at {address:#x} changes several instructions that are more than 8 bytes or cross a fetch window; patch them one at a time"
    )]
    SeveralInstructions {
        /// The first instruction that changes.
        address: usize,
    },

    /// An earlier patch of the same batch changes some of the same bytes.
    #[error("the batch has an earlier patch of the bytes at {address:#x}")]
    Overlap {
        /// Where the refused patch was to go.
        address: usize,
    },

    /// The text holds other bytes than the caller expects.
    #[error(
        "foreign bytes at {address:#x}: expected {expected}, found {found}; another tool may have patched this code"
    )]
    Mismatch {
        /// Where the bytes differ.
        address: usize,
        /// What the caller expected.
        expected: Bytes,
        /// What stands there.
        found: Bytes,
    },

    /// Another thread is patching the same instruction, or another part of it has changed since the
    /// patch was checked. Trying again is safe.
    #[error("another thread is patching the instruction at {address:#x}; try again")]
    Contended {
        /// The site.
        address: usize,
    },

    /// An INT3 that is not ours stands on the site.
    #[error("a foreign breakpoint stands at {address:#x}; remove the debugger's breakpoint")]
    ForeignBreakpoint {
        /// The site.
        address: usize,
    },

    /// The address is not mapped.
    #[error("{address:#x} is not mapped")]
    NotMapped {
        /// The address.
        address: usize,
    },

    /// The address is mapped, but not executable and readable.
    #[error("{address:#x} is not readable and executable memory")]
    NotExecutable {
        /// The address.
        address: usize,
    },

    /// The instruction cannot be run out of line, so its site cannot be locked.
    #[error("the instruction at {address:#x} cannot be moved out of line: {reason}")]
    Immovable {
        /// The site.
        address: usize,
        /// What ties the instruction to its place.
        reason: &'static str,
    },

    /// No free address space within reach of a 32-bit displacement.
    #[error("no {length} free bytes within 2 GiB of {address:#x}")]
    OutOfReach {
        /// What the memory must be near to.
        address: usize,
        /// How many bytes were asked for.
        length: usize,
    },

    /// More different straddlers were patched than the tables hold: millions of sites, or of old
    /// instructions.
    #[error("the tables for straddling instructions are full")]
    TableFull,

    /// The text was unmapped, or replaced, while an asynchronous patch was under way. Nothing else
    /// was changed.
    #[error("the text at {address:#x} went away while it was being patched")]
    TextGone {
        /// The site.
        address: usize,
    },

    /// The patch was begun by the process that this one was forked from. Here, the old instruction
    /// stands.
    #[error("the patch of {address:#x} was begun by the parent process, and is not made in this one")]
    Forked {
        /// The site.
        address: usize,
    },

    /// A thread has SIGTRAP blocked: the kernel would kill the process if it met a locked site.
    #[error("thread {thread} has SIGTRAP blocked")]
    SigtrapBlocked {
        /// Its id, as the kernel numbers threads.
        thread: i32,
    },

    /// The process's threads could not be looked at.
    #[error("/proc/self/task could not be read: {source}")]
    ThreadsUnknown {
        /// The system call's error.
        source: io::Error,
    },

    /// A thread could not be started.
    #[error("no thread for finishing patches: {source}")]
    ThreadRefused {
        /// The system call's error.
        source: io::Error,
    },

    /// After a fork, the text, or the table of locked sites, is still shared with the parent
    /// process: call [`unshare`](crate::text::unshare).
    #[error("the text at {address:#x} is still shared with the parent process")]
    SharedWithParent {
        /// The site.
        address: usize,
    },

    /// The kernel refused a writable mapping of the text.
    #[error(
        "no writable alias of the text at {address:#x} ({source}); text access by mprotect may be allowed here"
    )]
    AliasRefused {
        /// Start of the text mapping.
        address: usize,
        /// The system call's error.
        source: io::Error,
    },

    /// The kernel refused a change of page protection.
    #[error("mprotect of the text at {address:#x} failed: {source}")]
    ProtectRefused {
        /// Start of the page.
        address: usize,
        /// The system call's error.
        source: io::Error,
    },

    /// The kernel refused `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. Nothing was changed; unless it
    /// was allowed up to the second wait of a patch (another thread has installed a seccomp
    /// filter): then there is no safe way on, nor back, and the site stays locked. Threads run the
    /// old instruction there, at the cost of a trap, and no other patch gets the site.
    #[error(
        "membarrier SYNC_CORE refused: {source}; a straddling instruction cannot be patched here without a calibrated T_max"
    )]
    MembarrierRefused {
        /// The system call's error.
        source: io::Error,
    },

    /// The SIGTRAP handler could not be installed.
    #[error("the SIGTRAP handler could not be installed: {source}")]
    TrapRefused {
        /// The system call's error.
        source: io::Error,
    },

    /// The program has had more different actions for SIGTRAP than handlers of ours can take the
    /// place of. The one it installed last stays in force.
    #[error(
        "the program has installed more than {limit} different SIGTRAP handlers; install one handler, before the first patch"
    )]
    TrapHandlersExhausted {
        /// How many can be covered.
        limit: usize,
    },

    /// The kernel refused memory for generated code.
    #[error("no memory for generated code: {source}")]
    CodeMemory {
        /// The system call's error.
        source: io::Error,
    },

    /// The process's memory map could not be read or changed.
    #[error("the memory map near {address:#x} could not be read or changed: {source}")]
    MemoryMap {
        /// The address looked up.
        address: usize,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// The same error once more, for another site that the same refusal concerns.
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
