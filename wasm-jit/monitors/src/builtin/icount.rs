//! `icount`: how many instructions were executed.

use std::collections::BTreeMap;

use super::counts::Counts;
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "icount",
    summary: "How many instructions were executed, by function",
    details: "An instruction counts when it is executed, also if it traps. The figures are exact once the threads that run the program are quiet.",
    options: &[],
    example: "icount app.wasm",
    start: |setup| Ok(Box::new(Icount(Counts::of(setup)))),
};

struct Icount(Counts);

impl Monitor for Icount {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let mut functions: BTreeMap<u32, u64> = BTreeMap::new();
        for (location, count) in self.0.all() {
            *functions.entry(location.function).or_default() += count;
        }
        let total = functions.values().sum();
        report.value("instructions", total);
        let mut functions: Vec<(u32, u64)> = functions.into_iter().filter(|(_, count)| *count > 0).collect();
        functions.sort_by_key(|(function, count)| (std::cmp::Reverse(*count), *function));
        let mut table = Table::new("functions", ["instructions", "share", "function"]);
        for (function, count) in functions {
            table.row([count.into(), Cell::share(count, total), program.name(function)]);
        }
        report.table(table);
        self.0.report_refused(report);
    }
}
