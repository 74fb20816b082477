//! `blocks`: how often each basic block was executed.
//!
//! A counter at the first instruction of each.

use std::cmp::Reverse;
use std::ops::Range;

use wasm_jit::probes::{Kind, Probe, ProbeError, ProbeSpec};

use super::graph::Graph;
use crate::{Cell, Description, Error, Monitor, Program, Report, Setup, Table, switch};

pub(super) const DESCRIPTION: Description = Description {
    name: "blocks",
    summary: "How often each basic block was executed",
    details: "A basic block is a sequence of instructions that control enters at its start only and leaves at its \
              end, or by a trap, an exception or a call that does not return: then fewer instructions than \
              times x length were executed. A block is executed when control comes to its first instruction.",
    options: &[],
    example: "blocks{function=main} app.wasm",
    start,
};

struct Blocks {
    probes: Vec<Probe>,
    /// For each probe.
    blocks: Vec<Block>,
}

struct Block {
    function: u32,
    /// The offsets of the first and the last instruction.
    offsets: (u32, u32),
    length: u64,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let (mut specs, mut blocks) = (Vec::new(), Vec::new());
    for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
        let offset = |index: usize| graph.flow.offset(index);
        for Range { start, end } in graph.flow.blocks() {
            let offsets = (offset(start), offset(end - 1));
            specs.push(ProbeSpec { location: graph.location(start), kind: Kind::Count });
            blocks.push(Block { function: graph.function, offsets, length: (end - start) as u64 });
        }
    }
    let mut probes = Vec::new();
    let mut reached = Vec::new();
    for (probe, block) in setup.module.probes(&specs).into_iter().zip(blocks) {
        match probe {
            Err(ProbeError::Unreachable { .. }) => {}
            probe => {
                probes.push(probe?);
                reached.push(block);
            }
        }
    }
    Ok(Box::new(Blocks { probes, blocks: reached }))
}

impl Monitor for Blocks {
    fn activate(&self) -> Result<(), Error> {
        switch(&self.probes, true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        switch(&self.probes, false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let mut rows: Vec<(u64, &Block)> = self.probes.iter().map(Probe::count).zip(&self.blocks).collect();
        let total = rows.iter().map(|(count, _)| count).sum();
        report.value("executed", total);
        report.value("blocks", rows.len());
        rows.retain(|(count, _)| *count > 0);
        report.value("blocks_executed", rows.len());
        rows.sort_by_key(|(count, block)| (Reverse(*count), block.function, block.offsets));
        let columns = ["times", "share", "length", "from", "to", "function", "source"];
        let mut table = Table::new("by_block", columns);
        for (count, Block { function, offsets: (first, last), length }) in rows {
            table.row([
                count.into(),
                Cell::share(count, total),
                (*length).into(),
                program.offset(*function, *first),
                program.offset(*function, *last),
                program.name(*function),
                program.line(*function, *first),
            ]);
        }
        report.table(table);
    }
}
