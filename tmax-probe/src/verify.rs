//! Whether a fetch model holds on this machine: a short check by the library's own patches.
//!
//! 1. A control: one store across a cache line must tear, else the check is blind.
//! 2. One store at every boundary inside the window.
//! 3. The protocol without traps, with waits of T_max, at the boundaries from the window on.
//! 4. `wordpatch::patch` under the model in force, at every boundary: inside the window one store, else INT3 and all.
//!
//! Of 2 to 4 nothing may tear.

use serde::{Deserialize, Serialize};
use wordpatch::FetchModel;

use crate::error::Error;
use crate::estimate::Count;
use crate::plan::{CLASSES, straddled};
use crate::survey::{Observer, run_part};
use crate::trial::{
    Approach, CACHE_LINE, Kernel, LENGTH, Machine, Mapping, Method, PAGE, Spacing, Spec, Trial,
};

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Milliseconds for each of the parts 1 to 4.
    pub milliseconds: u32,
    /// Toggles of each trial through `wordpatch::patch`, however long that takes, as in the paper: at the window's own boundary, each split,
    /// with 2 to 6 executors. Else the time says, and every boundary is tried.
    pub toggles: Option<u64>,
}

/// What the check has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// The window that was checked, in bytes.
    pub window_bytes: u32,
    /// The T_max that was checked, in ticks; null when waits are `membarrier` only.
    pub t_max_ticks: Option<u32>,
    /// Part 1.
    pub control: Count,
    /// Part 2.
    pub one_store: Count,
    /// Part 3.
    pub protocol: Count,
    /// Part 4.
    pub wordpatch: Count,
    /// The trials of part 2 to 4 that tore.
    pub torn: Vec<Trial>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing tore that must not.
    Holds,
    /// Something did.
    Broken,
    /// Nothing tore that must not, but neither did what must.
    Blind,
}

impl Verification {
    /// What follows.
    pub fn verdict(&self) -> Verdict {
        match (self.torn.is_empty(), self.control.tears) {
            (false, _) => Verdict::Broken,
            (true, 0) => Verdict::Blind,
            (true, _) => Verdict::Holds,
        }
    }
}

/// The specs of a part, with equal shares of its time.
fn grid(
    boundaries: impl Iterator<Item = u32> + Clone,
    executors: &[u8],
    milliseconds: u32,
    spec: impl Fn(u32, u8, u8) -> Spec,
) -> Vec<Spec> {
    let mut specs = Vec::new();
    for boundary in boundaries {
        for front in 1..LENGTH {
            specs.extend(executors.iter().map(|executors| spec(boundary, front, *executors)));
        }
    }
    let each = (milliseconds / specs.len().max(1) as u32).max(5);
    specs.iter_mut().for_each(|spec| spec.milliseconds = spec.milliseconds.max(each));
    specs
}

/// Checks `model`, which must be in force. Blocks for the time that `effort` says.
///
/// # Errors
/// The machine's or the observer's.
pub fn verify(
    machine: &mut dyn Machine,
    model: &FetchModel,
    effort: Effort,
    observer: &mut dyn Observer,
) -> Result<Verification, Error> {
    let window = model.window.bytes() as u32;
    let t_max = model.t_max.map(|t_max| t_max.0);
    let base = Spec {
        kernel: Kernel::Opcode,
        boundary: CACHE_LINE,
        front: 3,
        method: Method::Store,
        spacing: Spacing::BackToBack,
        mapping: Mapping::Alias,
        executors: 1,
        approach: Approach::Loop,
        pinned: true,
        load: false,
        toggles: u64::MAX,
        milliseconds: 0,
    };
    let Effort { milliseconds, toggles } = effort;
    let mut torn = Vec::new();
    let mut run = |name, specs: Vec<Spec>, may_tear: bool| -> Result<Count, Error> {
        let trials = run_part(machine, observer, name, &specs)?;
        torn.extend(trials.iter().filter(|trial| trial.tears > 0 && !may_tear));
        Ok(Count::of(&trials))
    };
    let control = grid([CACHE_LINE].into_iter(), &[1], milliseconds / 10, |boundary, front, executors| {
        Spec { boundary, front, executors, ..base }
    });
    let inside = CLASSES.into_iter().filter(move |class| *class < window);
    let one_store = grid(inside, &[1], milliseconds, |boundary, front, executors| Spec {
        boundary,
        front,
        executors,
        ..base
    });
    let protocol = match t_max {
        None => Vec::new(),
        Some(wait) => grid(straddled(window), &[1, 2], milliseconds, |boundary, front, executors| Spec {
            boundary,
            front,
            executors,
            method: Method::Protocol { wait },
            ..base
        }),
    };
    let (boundaries, numbers): (Vec<u32>, &[u8]) = match toggles {
        None => (CLASSES.into_iter().chain([PAGE]).collect(), &[1, 2, 4]),
        Some(_) => (vec![window], &[2, 3, 4, 5, 6]),
    };
    let patches = grid(boundaries.into_iter(), numbers, milliseconds, |boundary, front, executors| Spec {
        boundary,
        front,
        executors,
        method: Method::Wordpatch,
        toggles: toggles.unwrap_or(u64::MAX),
        milliseconds: if toggles.is_some() { u32::MAX } else { 0 },
        ..base
    });
    Ok(Verification {
        window_bytes: window,
        t_max_ticks: t_max,
        control: run("control", control, true)?,
        one_store: run("one store", one_store, false)?,
        protocol: run("protocol", protocol, false)?,
        wordpatch: run("wordpatch::patch", patches, false)?,
        torn,
    })
}
