//! Sites: NOPs before instructions, which a patch may turn into jumps while the code runs, or
//! jumps, which a patch diverts.
//!
//! A site is a five-byte NOP inside an aligned quadword, so that one store turns it into a JMP and
//! back, on any processor. Control reaches it whenever the program is about to execute the
//! instruction, and at no other time:
//!
//! - for a `loop`, right after its label: the entry into the loop and all branches back pass it;
//! - for any other instruction, after the code of the previous instruction. A branch to the end of
//!   a block continues after the site of its `end`, as it continues after the `end`.
//!
//! The function's *entry* is a separate location, after the prologue and before the first
//! instruction; its position is that of the body, where the declarations of locals begin. Its
//! *exit* is at the epilogue, where the results are where the caller expects them; its position is
//! the end of the body. A tail call does not reach it.
//!
//! **Sites change no decision of the compiler.** Compiled with other sites, a function has the same
//! registers, slots and flags before each instruction, the same frame, and the same calls in the
//! same order. A frame of one of these versions of a function can therefore continue in another one
//! at the same point. It may do so at *transfer points*: the labels of loops, and the points where
//! calls return ([`Observer::transfer`](crate::compiler::Observer::transfer)). A transfer point
//! never shares its address with another branch target, so a frame that is there has not executed
//! anything beyond it. Versions with sites have a one-byte NOP after each transfer point; code
//! without sites has one only where the addresses would coincide.
//!
//! A site may be *settled*: its stub then finds a location for every operand and local
//! (`settle.rs`). Entries and exits need no code for that. Sites in originals ([`CompiledSites`])
//! are not settled, since that code would run whether or not there are probes.
//!
//! **Originals with sites at branches** ([`CompiledSites::Branches`]) have sites without being
//! probed, and therefore as few NOPs as possible:
//!
//! - `br`, `br_if` and `if` have a jump, which is the site: JMP or Jcc with a 32-bit displacement,
//!   whose first five bytes are inside an aligned quadword. While the site is on, its stub executes
//!   the jump. There is nothing between a comparison and its Jcc, so that the processor fuses them.
//! - Control instructions without code between them share a site, if no label is between them:
//!   control that reaches the first one reaches the others. At most [`MAX_SHARED`] instructions
//!   share a site.
//! - Sites are aligned by redundant prefixes on the preceding instruction, or by a NOP where that
//!   instruction cannot be lengthened: a jump, a call, a RIP-relative instruction, or one that a
//!   label follows.
//!
//! In versions that are compiled for probes, each instruction has its own site, a NOP: frames that
//! come from another version continue after the sites of some instructions and before those of
//! others, and the state at each site is that before its instruction.
//!
//! In all versions the first [`ENTRY_LENGTH`] bytes of a function belong to one instruction and lie
//! inside an aligned quadword, so that they can be turned into a JMP as well.

pub(super) mod layout;
pub(super) mod plain;
pub(super) mod settle;

use wasmparser::Operator;

use crate::module::CompiledSites;

/// The number of bytes at a function's entry that can be turned into a JMP.
pub const ENTRY_LENGTH: u32 = 5;
/// The length of a site in bytes.
pub const SITE_LENGTH: u32 = 5;
/// A site lies inside an aligned block of this many bytes.
pub const SITE_WINDOW: u32 = 8;

/// The maximum number of instructions that share a site: toggling one of them takes the others into
/// account.
pub const MAX_SHARED: u32 = 32;

/// Which instructions of a function get sites, by their offsets in the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sites {
    /// No site.
    #[default]
    None,
    /// The entry.
    Functions,
    /// The entry and the control instructions ([`is_control`]).
    Branches,
    /// Some instructions.
    At {
        /// The offsets of the instructions in the module, in ascending order.
        positions: Box<[u32]>,
        /// Those of the instructions whose sites are settled.
        settled: Box<[u32]>,
    },
    /// All reachable instructions, the entry and the exit.
    All {
        /// Whether all sites are settled.
        settled: bool,
    },
    /// As `All`, in the plain version of a function (`plain.rs`).
    Plain {
        /// The callee-saved registers that the other versions save, as a set.
        saved: u32,
    },
}

/// What a site precedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteKind {
    Entry,
    Exit,
    /// `br`.
    Jump,
    /// `br_if` and `if`.
    JumpIf,
    /// Another control instruction.
    Control,
    Other,
}

impl SiteKind {
    pub(crate) fn of(operator: &Operator<'_>) -> Self {
        match operator {
            Operator::Br { .. } => Self::Jump,
            Operator::BrIf { .. } | Operator::If { .. } => Self::JumpIf,
            _ if is_control(operator) => Self::Control,
            _ => Self::Other,
        }
    }

    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Jump | Self::JumpIf | Self::Control)
    }
}

/// Whether an instruction begins or ends a block, branches, or calls.
pub fn is_control(operator: &Operator<'_>) -> bool {
    use Operator::{
        Block, Br, BrIf, BrOnCast, BrOnCastFail, BrOnNonNull, BrOnNull, BrTable, Call, CallIndirect, CallRef,
        Else, End, If, Loop, Return, ReturnCall, ReturnCallIndirect, ReturnCallRef, Try, TryTable,
    };
    matches!(
        operator,
        Block { .. }
            | Loop { .. }
            | If { .. }
            | Else
            | End
            | Try { .. }
            | TryTable { .. }
            | Br { .. }
            | BrIf { .. }
            | BrTable { .. }
            | BrOnNull { .. }
            | BrOnNonNull { .. }
            | BrOnCast { .. }
            | BrOnCastFail { .. }
            | Return
            | Call { .. }
            | CallIndirect { .. }
            | CallRef { .. }
            | ReturnCall { .. }
            | ReturnCallIndirect { .. }
            | ReturnCallRef { .. }
    )
}

impl Sites {
    pub(crate) fn contains(&self, position: u32, kind: SiteKind) -> bool {
        match self {
            Self::None => false,
            Self::Functions => kind == SiteKind::Entry,
            Self::Branches => kind == SiteKind::Entry || kind.is_control(),
            Self::At { positions, .. } => positions.binary_search(&position).is_ok(),
            Self::All { .. } | Self::Plain { .. } => true,
        }
    }

    /// The callee-saved registers that a frame has saved, if this is for a plain version.
    pub(crate) fn plain(&self) -> Option<u32> {
        if let Self::Plain { saved } = self { Some(*saved) } else { None }
    }

    /// Whether the site of an instruction is settled.
    #[must_use]
    pub fn settles(&self, position: u32) -> bool {
        match self {
            Self::None | Self::Functions | Self::Branches => false,
            Self::At { settled, .. } => settled.binary_search(&position).is_ok(),
            Self::All { settled } => *settled,
            Self::Plain { .. } => true,
        }
    }

    /// Whether functions end the accessors of their frames when they return: if probes read values,
    /// and thus if a site is settled.
    #[must_use]
    pub fn end_accessors(&self) -> bool {
        match self {
            Self::None | Self::Functions | Self::Branches => false,
            Self::At { settled, .. } => !settled.is_empty(),
            Self::All { settled } => *settled,
            Self::Plain { .. } => true,
        }
    }

    /// Whether instructions use code of the program as sites, and share them. They do not in
    /// versions that are compiled for probes, into which frames move: each instruction there has
    /// its own site.
    pub(crate) fn use_code(&self) -> bool {
        *self == Self::Branches
    }

    /// The number of bytes that one site may add to the code, with its alignment.
    pub(crate) fn max_bytes_each(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Plain { .. } => SITE_LENGTH + SITE_WINDOW + crate::compiler::sites::plain::MAX_BYTES,
            _ => SITE_LENGTH + SITE_WINDOW + crate::compiler::sites::settle::MAX_BYTES,
        }
    }
}

impl From<CompiledSites> for Sites {
    fn from(sites: CompiledSites) -> Self {
        match sites {
            CompiledSites::None => Self::None,
            // The other sites of `All` are in versions that are compiled for probes.
            CompiledSites::Functions | CompiledSites::All => Self::Functions,
            CompiledSites::Branches => Self::Branches,
        }
    }
}
