//! `blocks`: how often each basic block was executed.
//!
//! A counter is at the first instruction of each block.

use std::cmp::Reverse;
use std::ops::Range;

use wasm_jit::Module;
use wasm_jit::probes::{Kind, Probe, ProbeSpec};

use super::graph::Graph;
use crate::{Cell, Description, Error, LazyProbes, Monitor, Program, Report, Setup, Table};

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
    /// The functions to observe.
    chosen: Vec<u32>,
    /// A counter for each block that control may reach.
    counters: LazyProbes,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let chosen = setup.functions().map(|function| function.index()).collect();
    let counters = LazyProbes::new(setup, |function| {
        let Some(graph) = Graph::of(function) else { return Vec::new() };
        let spec =
            |block: &Range<usize>| ProbeSpec { location: graph.location(block.start), kind: Kind::Count };
        reached_blocks(&graph).iter().map(spec).collect()
    });
    Ok(Box::new(Blocks { chosen, counters }))
}

/// The instructions of each block that control may reach.
fn reached_blocks(graph: &Graph<'_>) -> Vec<Range<usize>> {
    let reached = graph.reached();
    let mut blocks = graph.flow.blocks();
    blocks.retain(|block| reached[block.start]);
    blocks
}

/// A block that was executed.
struct Block {
    times: u64,
    function: u32,
    /// The offsets of the first and the last instruction.
    offsets: (u32, u32),
    length: u64,
}

impl Blocks {
    /// The number of blocks, and the blocks that were executed.
    fn executed(&self, module: &Module) -> (usize, Vec<Block>) {
        let (mut all, mut executed) = (0, Vec::new());
        let graphs = self.chosen.iter().filter_map(|function| Graph::of(&module.function(*function)?));
        for graph in graphs {
            let blocks = reached_blocks(&graph);
            all += blocks.len();
            for block in blocks {
                let times = self.counters.get(graph.location(block.start), Probe::count).unwrap_or(0);
                if times > 0 {
                    let offsets = (graph.flow.offset(block.start), graph.flow.offset(block.end - 1));
                    executed.push(Block {
                        times,
                        function: graph.function,
                        offsets,
                        length: block.len() as u64,
                    });
                }
            }
        }
        (all, executed)
    }
}

impl Monitor for Blocks {
    fn activate(&self) -> Result<(), Error> {
        self.counters.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.counters.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let (all, mut rows) = self.executed(program.module);
        let total = rows.iter().map(|block| block.times).sum();
        report.value("executed", total);
        report.value("blocks", all);
        report.value("blocks_executed", rows.len());
        rows.sort_by_key(|block| (Reverse(block.times), block.function, block.offsets));
        let columns = ["times", "share", "length", "from", "to", "function", "source"];
        let mut table = Table::new("by_block", columns);
        for Block { times, function, offsets: (first, last), length } in rows {
            table.row([
                times.into(),
                Cell::share(times, total),
                length.into(),
                program.offset(function, first),
                program.offset(function, last),
                program.name(function),
                program.line(function, first),
            ]);
        }
        report.table(table);
        self.counters.report_refused(report);
    }
}
