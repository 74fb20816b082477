//! Reports of earlier runs: the tables that are written for them, and reading these.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Deserialize;
use wasm_jit::Module;

use super::Coverage;
use super::branches::Evidence;
use super::function::{Covered, Function};
use crate::{Error, Report, Table};

/// The identity of a module: the checksum and the length of its bytes.
pub(super) fn identity(module: &Module) -> String {
    let bytes = module.bytes();
    format!("crc32:{:08x}/{}", crc32fast::hash(bytes), bytes.len())
}

/// The tables that later runs read: executed instructions, as the first and the last of successive
/// ones, by their offsets in the function's body; and outcomes of branches, which
/// are there only if branches are observed.
pub(super) struct Tables {
    executed: Table,
    outcomes: Table,
}

impl Tables {
    pub(super) fn new() -> Self {
        Self {
            executed: Table::new("executed", ["function", "from", "to"]).hidden(),
            outcomes: Table::new("outcomes_seen", ["function", "branch", "outcome"]).hidden(),
        }
    }

    pub(super) fn add(&mut self, function: &Function, covered: &Covered) {
        let parts = covered.instructions.chunk_by(|first, second| first == second);
        let mut at = 0;
        for part in parts {
            if part[0] == Some(true) {
                let (from, to) = (function.offsets[at], function.offsets[at + part.len() - 1]);
                self.executed.row([function.index.into(), from.into(), to.into()]);
            }
            at += part.len();
        }
        for (branch, seen) in &covered.branches {
            for (number, _) in seen.iter().enumerate().filter(|(_, (_, seen))| *seen) {
                self.outcomes.row([function.index.into(), function.offsets[*branch].into(), number.into()]);
            }
        }
    }

    pub(super) fn report(self, has_branches: bool, report: &mut Report) {
        report.table(self.executed);
        if has_branches {
            report.table(self.outcomes);
        }
    }
}

#[derive(Deserialize)]
struct Earlier {
    monitor: String,
    module: String,
    executed: Vec<Executed>,
    /// If branches were observed.
    outcomes_seen: Option<Vec<OutcomeSeen>>,
}

#[derive(Deserialize)]
struct Executed {
    function: u32,
    from: u32,
    to: u32,
}

#[derive(Deserialize)]
struct OutcomeSeen {
    function: u32,
    branch: u32,
    outcome: usize,
}

impl Coverage {
    /// Adds what an earlier run has executed of the chosen functions.
    pub(super) fn add_earlier(&self, module: &Module, file: &str) -> Result<(), Error> {
        let error =
            |expected: String| Error::Value { option: "merge".to_owned(), value: file.to_owned(), expected };
        let text =
            fs::read_to_string(file).map_err(|reason| error(format!("a file that can be read: {reason}")))?;
        let earlier: Earlier = serde_json::from_str(&text)
            .map_err(|reason| error(format!("the JSON report of `coverage`: {reason}")))?;
        if earlier.monitor != "coverage" {
            return Err(error(format!("a report of `coverage`, but of `{}`", earlier.monitor)));
        }
        if earlier.module != self.module {
            return Err(error(format!(
                "of the same module: it is of {}, and this one is {}",
                earlier.module, self.module
            )));
        }
        if self.functions.observes_branches && earlier.outcomes_seen.is_none() {
            let expected =
                "a report with the outcomes of branches: that run did not have the option branches";
            return Err(error(expected.to_owned()));
        }
        for Executed { function, from, to } in earlier.executed {
            let Some(function) = self.chosen_function(module, function) else { continue };
            for segment in &function.segments {
                let of_segment = &function.offsets[segment.instructions.clone()];
                if of_segment[0] < from || of_segment[0] > to {
                    continue;
                }
                let executed = of_segment.partition_point(|offset| *offset <= to);
                if executed == of_segment.len() {
                    segment.is_covered.store(true, Ordering::Relaxed);
                } else {
                    segment.until_trap.fetch_max(executed as u32, Ordering::Relaxed);
                }
            }
        }
        for OutcomeSeen { function, branch, outcome } in earlier.outcomes_seen.into_iter().flatten() {
            let Some(function) = self.chosen_function(module, function) else { continue };
            let branch = function.branches.iter().find(|known| function.offsets[known.instruction] == branch);
            if let Some(Evidence::ByProbe(seen)) =
                branch.and_then(|known| Some(&known.outcomes.get(outcome)?.seen))
            {
                seen.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn chosen_function(&self, module: &Module, index: u32) -> Option<Arc<Function>> {
        self.chosen.binary_search(&index).ok()?;
        self.functions.get_or_add(&module.function(index)?)
    }
}
