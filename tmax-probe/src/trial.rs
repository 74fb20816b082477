//! One trial: a patcher toggles a site while executors run it and count what they observe.
//!
//! The site is one instruction of five bytes ([`LENGTH`]). A boundary splits it after its first
//! `front` bytes. It is toggled between two forms; an execution of anything else is a *tear*.
//!
//! # The trial is the unit of evidence
//! Tears come in clusters: on an AMD Zen 5, 87 of 88 tears came from one trial of 26. Therefore
//! neither the tears of one trial nor its millions of executions are independent. What counts is
//! whether a trial tore at all. To make trials as independent as possible, each runs in a separate
//! process (`kernel`): new pages, a new loop, new threads.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Length of the toggled instruction in bytes.
pub const LENGTH: u8 = 5;

/// The toggled instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// `mov eax, A` and `mov eax, B`, where A and B differ in every byte. A mixture shows in EAX,
    /// unless the entire immediate is on one side of the boundary (`front` is 1).
    Immediate,
    /// `mov eax, A` and `mov edx, B`: the opcode byte differs too. A mixture shows in the two
    /// registers.
    Opcode,
    /// The paper's kernel: a CALL and a 5-byte NOP. A mixture crashes the trial's process.
    Call,
}

impl Kernel {
    /// The smallest `front` with which a mixture differs from both forms.
    pub fn first_front(self) -> u8 {
        if self == Self::Immediate { 2 } else { 1 }
    }
}

/// How the site is toggled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// By one MOV of eight bytes.
    Store,
    /// By one XCHG of eight bytes: locked, as the library's stores are.
    LockedStore,
    /// By the three stores of the paper's protocol, with waits between them. The lock is not INT3
    /// but an opcode without visible effect, so executors do not trap and run a hundred times as
    /// often.
    Protocol {
        /// The wait, in TSC ticks.
        wait: u32,
    },
    /// By `wordpatch::patch` under the fetch model that is being verified, INT3 included.
    Wordpatch,
}

/// The time of the next toggle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// Immediately after the previous one.
    BackToBack,
    /// In pairs: the second one immediately after the first, then a random pause.
    Pairs,
    /// After a random pause.
    Spread,
}

/// The mapping through which the site is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// The mapping in which the site is executed.
    Direct,
    /// A second mapping of the same pages, as in the library.
    Alias,
}

/// How an executor repeatedly arrives at the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approach {
    /// In a tight loop, which processors run from their caches of decoded instructions.
    Loop,
    /// Through a return that no processor predicts: the site is fetched for each execution, and not
    /// earlier.
    Anew,
    /// As `Anew`, after the part beyond the boundary was flushed from all caches: the two parts are
    /// fetched as far apart in time as a memory access takes.
    Cold,
}

/// The processors on which the threads of a trial run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The patcher has its own processor; the executors share the others.
    Apart,
    /// The patcher shares its processor with every second executor.
    Shared,
    /// The kernel places the threads.
    Free,
}

/// The parameters of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spec {
    /// The toggled instruction.
    pub kernel: Kernel,
    /// The boundary, in bytes from the start of a cache line (a multiple of 4, up to its end), or
    /// 4096 for a page's end.
    pub boundary: u32,
    /// The number of the site's bytes before the boundary: 1 to 4.
    pub front: u8,
    /// How the site is toggled.
    pub method: Method,
    /// The time between toggles.
    pub spacing: Spacing,
    /// The mapping through which the site is written.
    pub mapping: Mapping,
    /// The number of threads that execute the site.
    pub executors: u8,
    /// How executors arrive at the site.
    pub approach: Approach,
    /// The processors on which the threads run.
    pub placement: Placement,
    /// Whether another thread accesses much memory at the same time.
    pub load: bool,
    /// Selects the cache line in the page, and the lengths of the loop around the site.
    pub seed: u64,
    /// Selects the order in which processors are assigned to threads. The same in all trials of a
    /// round.
    #[serde(default)]
    pub processors: u32,
    /// The number of toggles after which the trial ends.
    pub toggles: u64,
    /// The time in milliseconds after which the trial ends, if it has not reached its number of
    /// toggles.
    pub milliseconds: u32,
}

/// The results of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The trial's parameters.
    pub spec: Spec,
    /// The number of toggles.
    pub toggles: u64,
    /// The number of executions, by all executors.
    pub executions: u64,
    /// The number of executions of the lock.
    pub locked: u64,
    /// The number of executions of neither form. For [`Kernel::Call`], 1 if the process crashed.
    pub tears: u64,
    /// The duration of the trial, in milliseconds.
    pub milliseconds: u32,
}

/// A machine that runs trials: this one, or a simulated one.
pub trait Machine {
    /// Runs a trial. Blocks for its duration.
    ///
    /// # Errors
    /// The system refuses memory, threads or a child process.
    fn run(&mut self, spec: &Spec) -> Result<Trial, Error>;
}

impl Trial {
    /// A trial without observations.
    pub fn nothing(spec: &Spec) -> Self {
        Self { spec: *spec, toggles: 0, executions: 0, locked: 0, tears: 0, milliseconds: 0 }
    }
}
