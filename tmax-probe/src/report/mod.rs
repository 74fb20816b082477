//! The forms of the results for people: text for a terminal, figures for a paper.

pub mod plot;
pub mod text;

use crate::trial::{Kernel, Method, Trial};

/// Executors and split of the trials that make one line of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    executors: u8,
    front: u8,
}

/// Tears in a million chances at each wait, for each line, as in the paper's Figure 9.
fn lines_by_wait(trials: &[Trial]) -> Vec<(Line, Vec<(u32, f64)>)> {
    let mut lines = std::collections::BTreeMap::<Line, std::collections::BTreeMap<u32, (u64, u64)>>::new();
    for trial in trials {
        let Method::Protocol { wait } = trial.spec.method else { continue };
        let line = Line { executors: trial.spec.executors, front: trial.spec.front };
        let (tears, chances) = lines.entry(line).or_default().entry(wait).or_default();
        *tears += trial.tears;
        *chances += trial.chances();
    }
    let per_million =
        |(wait, (tears, chances)): (u32, (u64, u64))| (wait, 1e6 * tears as f64 / chances.max(1) as f64);
    lines.into_iter().map(|(line, waits)| (line, waits.into_iter().map(per_million).collect())).collect()
}

/// Tears in a million chances for each offset of the boundary, by kernel; calls are told as crashes per million.
fn lines_by_boundary(trials: &[Trial]) -> Vec<(Kernel, Vec<(u32, f64)>)> {
    let one_store = |trial: &&Trial| matches!(trial.spec.method, Method::Store | Method::LockedStore);
    [Kernel::Immediate, Kernel::Opcode, Kernel::Call]
        .into_iter()
        .map(|kernel| {
            let mut boundaries = std::collections::BTreeMap::<u32, (u64, u64)>::new();
            for trial in trials.iter().filter(one_store).filter(|trial| trial.spec.kernel == kernel) {
                let (tears, chances) = boundaries.entry(trial.spec.boundary).or_default();
                *tears += trial.tears;
                *chances += trial.chances();
            }
            let points = boundaries.into_iter();
            (
                kernel,
                points
                    .map(|(at, (tears, chances))| (at, 1e6 * tears as f64 / chances.max(1) as f64))
                    .collect(),
            )
        })
        .collect()
}
