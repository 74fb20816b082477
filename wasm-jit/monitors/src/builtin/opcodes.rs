//! `opcodes`: how often each kind of instruction was executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wasm_jit::Module;
use wasm_jit::probes::Place;

use super::counts::{self, Counts};
use crate::{Cell, Description, Error, Monitor, Program, Report, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "opcodes",
    summary: "How often each opcode was executed",
    details: "An instruction counts when control comes to it, also if it then traps. The column places is the number \
              of instructions with the opcode that were executed.",
    options: &[],
    example: "opcodes app.wasm",
    start: |setup| Ok(Box::new(Opcodes(Counts::of(setup)))),
};

struct Opcodes(Counts);

impl Monitor for Opcodes {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let opcodes = by_opcode(&self.0, program.module);
        let total = opcodes.values().map(|(count, _)| count).sum();
        report.value("instructions", total);
        let mut rows: Vec<_> = opcodes.into_iter().collect();
        rows.sort_by(|(one, (a, _)), (other, (b, _))| (Reverse(a), one).cmp(&(Reverse(b), other)));
        let mut table = Table::new("by_opcode", ["times", "share", "places", "opcode"]);
        for (opcode, (count, places)) in rows {
            table.row([count.into(), Cell::share(count, total), places.into(), opcode.into()]);
        }
        report.table(table);
        self.0.report_refused(report);
    }
}

/// By opcode as in the text format: the number of executions, and the number of instructions that
/// were executed.
pub(super) fn by_opcode(counts: &Counts, module: &Module) -> BTreeMap<String, (u64, u64)> {
    let counts = counts.all();
    let listing = counts::listing(&counts, module);
    let mut opcodes: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (location, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let Place::Instruction { offset } = location.place else { continue };
        let text = listing.text(module, location.function, offset);
        let opcode = text.and_then(|text| text.split_whitespace().next()).unwrap_or("unknown");
        let (times, places) = opcodes.entry(opcode.to_owned()).or_default();
        *times += count;
        *places += 1;
    }
    opcodes
}
