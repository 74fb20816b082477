//! Rendering of the results: text for a terminal, figures for a paper.

pub(crate) mod plot;
pub(crate) mod text;

use std::collections::BTreeMap;

use crate::estimate::Count;
use crate::trial::{Kernel, Method, Trial};

/// Executors and split of the trials that form one line of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    executors: u8,
    front: u8,
}

/// The share of trials that tore, in percent, by the coordinate that `place` returns.
fn points<'a>(trials: impl Iterator<Item = &'a Trial>, place: impl Fn(&Trial) -> u32) -> Vec<(u32, f64)> {
    let mut at: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    trials.for_each(|trial| at.entry(place(trial)).or_default().push(trial));
    at.into_iter().map(|(place, trials)| (place, 100.0 * Count::of(trials).torn_share())).collect()
}

/// The points by wait, one line per executors and split, as in the paper's Figure 9.
fn lines_by_wait(trials: &[Trial]) -> Vec<(Line, Vec<(u32, f64)>)> {
    let mut lines: BTreeMap<Line, Vec<&Trial>> = BTreeMap::new();
    for trial in trials {
        let Method::Protocol { .. } = trial.spec.method else { continue };
        let line = Line { executors: trial.spec.executors, front: trial.spec.front };
        lines.entry(line).or_default().push(trial);
    }
    let wait = |trial: &Trial| match trial.spec.method {
        Method::Protocol { wait } => wait,
        Method::Store | Method::LockedStore | Method::Wordpatch => unreachable!("left out above"),
    };
    lines.into_iter().map(|(line, trials)| (line, points(trials.into_iter(), wait))).collect()
}

/// The points by offset of the boundary, for each kernel. A tear of a call is a crash.
fn lines_by_boundary(trials: &[Trial]) -> Vec<(Kernel, Vec<(u32, f64)>)> {
    let one_store = |trial: &&Trial| matches!(trial.spec.method, Method::Store | Method::LockedStore);
    let line = |kernel| {
        let of_kernel = trials.iter().filter(one_store).filter(|trial| trial.spec.kernel == kernel);
        (kernel, points(of_kernel, |trial| trial.spec.boundary))
    };
    [Kernel::Immediate, Kernel::Opcode, Kernel::Call].map(line).into()
}
