//! One trial: a site that a patcher toggles while executors run it, and what they saw.
//!
//! The site is one instruction of five bytes, [`LENGTH`], cut by a boundary behind its first `front` bytes. It is toggled
//! between two forms. An execution that is neither is a *tear*.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Bytes of the toggled instruction.
pub const LENGTH: u8 = 5;

/// Bytes of a cache line, on every x86-64 processor so far.
pub const CACHE_LINE: u32 = 64;

/// A page border is a boundary too: its two sides are looked up apart.
pub const PAGE: u32 = 4096;

/// What the toggled instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// `mov eax, A` and `mov eax, B`, where A and B differ in every byte. A mixture shows in EAX.
    Immediate,
    /// `mov eax, A` and `mov edx, B`: the opcode byte too. A mixture shows in the two registers.
    Opcode,
    /// The paper's: a CALL and a 5-byte NOP. A mixture crashes, so it runs in a process of its own.
    Call,
}

/// How the site is toggled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// By one store of eight bytes, MOV.
    Store,
    /// By one store of eight bytes, XCHG: a locked one, as the library's.
    LockedStore,
    /// By the paper's three stores, with waits of so many ticks in between. The lock is not INT3 but another opcode whose
    /// execution shows nothing: executors need no trap, and run a hundred times as often.
    Protocol {
        /// Ticks.
        wait: u32,
    },
    /// By `wordpatch::patch` under the fetch model in force, INT3 and all.
    Wordpatch,
}

/// When the next toggle comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// At once.
    BackToBack,
    /// Two at once, then after a random pause.
    Pairs,
    /// After a random pause.
    Spread,
}

/// Through which mapping the site is stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// The one it is executed in.
    Direct,
    /// Another one of the same pages, as the library's.
    Alias,
}

/// How an executor comes to the site, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approach {
    /// In a tight loop, which processors run from their caches of decoded instructions.
    Loop,
    /// By a return that no processor predicts: the site is fetched for each execution, and not before.
    Anew,
    /// The same after the part behind the boundary was flushed from all caches: its two parts are fetched as far apart in time as
    /// memory is away.
    Cold,
}

/// The largest power of two up to the cache line that a boundary is a multiple of: what a site that is cut there crosses.
pub fn class(boundary: u32) -> u32 {
    1 << boundary.trailing_zeros().min(CACHE_LINE.trailing_zeros())
}

/// What a trial does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spec {
    /// The instruction.
    pub kernel: Kernel,
    /// Where it is cut: so many bytes behind the start of a cache line (a multiple of 4, up to its end), or at a [`PAGE`]'s end.
    pub boundary: u32,
    /// How many of its bytes lie before the boundary: 1 to 4.
    pub front: u8,
    /// How it is toggled.
    pub method: Method,
    /// How often.
    pub spacing: Spacing,
    /// Through which mapping.
    pub mapping: Mapping,
    /// How many threads execute it.
    pub executors: u8,
    /// How they come to it.
    pub approach: Approach,
    /// Whether the patcher has a processor for itself, where there are two.
    pub pinned: bool,
    /// Whether another thread works on memory meanwhile.
    pub load: bool,
    /// It ends after so many toggles,
    pub toggles: u64,
    /// or after so many milliseconds.
    pub milliseconds: u32,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was done.
    pub spec: Spec,
    /// How often the site was toggled.
    pub toggles: u64,
    /// How often it was executed, by all executors.
    pub executions: u64,
    /// How many of these met the lock.
    pub locked: u64,
    /// How many were neither form; of [`Kernel::Call`], how many crashed.
    pub tears: u64,
    /// How long it took.
    pub milliseconds: u32,
}

/// Something that carries trials out: this machine, or a simulated one.
pub trait Machine {
    /// Carries one out. Blocks for its time.
    ///
    /// # Errors
    /// The system refuses memory, threads or a child process.
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error>;
}

impl Trial {
    /// Nothing was seen yet.
    pub fn nothing(spec: &Spec) -> Self {
        Self { spec: *spec, toggles: 0, executions: 0, locked: 0, tears: 0, milliseconds: 0 }
    }

    /// How often a tear could have been seen: an execution without a toggle shows none, nor a toggle without an execution.
    pub fn chances(&self) -> u64 {
        self.toggles.min(self.executions)
    }
}
