//! `branches`: how often each branch was taken in each direction.
//!
//! A counter is at each branch, with one count per outcome ([`Kind::CountBranch`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use wasm_jit::probes::{Branches as Ways, Kind, Place, ProbeSpec};
use wasm_jit::wasmparser::Operator;

use super::graph::Graph;
use super::listing::Listing;
use crate::{Cell, Description, Error, LazyProbes, Monitor, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "branches",
    summary: "How often each branch was taken, and each target of br_table chosen",
    details: "A br_if, if or select is taken when its condition holds: the br_if branches, the if executes its \
              first part, the select selects its first operand. A br_on_null or br_on_non_null is taken when \
              it branches. A br_table is taken when its index is not beyond \
              its targets. A branch of which one way is rare may guard a special case; one near 50% is \
              hard to predict. The table targets has the choices of each br_table.",
    options: &[],
    example: "branches{rows=50} app.wasm",
    start,
};

struct Branches(LazyProbes);

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    Ok(Box::new(Branches(LazyProbes::new(setup, |function| {
        let Some(graph) = Graph::of(function) else { return Vec::new() };
        let chosen = (0..graph.len()).filter(|index| chooses(&graph.flow.instructions[*index].1));
        chosen.map(|index| ProbeSpec { location: graph.location(index), kind: Kind::CountBranch }).collect()
    }))))
}

fn chooses(operator: &Operator<'_>) -> bool {
    use Operator as O;
    matches!(
        operator,
        O::BrIf { .. }
            | O::If { .. }
            | O::BrTable { .. }
            | O::Select
            | O::TypedSelect { .. }
            | O::TypedSelectMulti { .. }
            | O::BrOnNull { .. }
            | O::BrOnNonNull { .. }
            | O::BrOnCast { .. }
            | O::BrOnCastFail { .. }
    )
}

impl Monitor for Branches {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let mut counted: Vec<(u32, u32, Ways)> = Vec::new();
        self.0.for_each(|probe| {
            let location = probe.spec().location;
            if let Place::Instruction { offset } = location.place
                && let Some(ways) = probe.branches().filter(|ways| ways.total() > 0)
            {
                counted.push((location.function, offset, ways));
            }
        });
        let listing =
            Listing::of(program.module, counted.iter().map(|(function, offset, _)| (*function, *offset)));
        counted.sort_by_key(|(function, offset, ways)| (Reverse(ways.total()), *function, *offset));
        let sum = |of: fn(&Ways) -> u64| counted.iter().map(|(.., ways)| of(ways)).sum::<u64>();
        report.value("branches", sum(Ways::total));
        report.value("taken", sum(taken));
        report.value("not_taken", sum(Ways::total) - sum(taken));
        let columns =
            ["times", "taken", "not taken", "share taken", "offset", "function", "instruction", "source"];
        let mut table = Table::new("by_branch", columns);
        let tables = counted.iter().filter(|(.., ways)| matches!(ways, Ways::Table { .. }));
        let mut continues_at =
            continues_at(program, tables.map(|(function, offset, _)| (*function, *offset)));
        let columns = ["times", "share", "index", "continues at", "offset", "function", "source"];
        let mut targets = Table::new("targets", columns);
        for (function, offset, ways) in &counted {
            let (function, offset, total) = (*function, *offset, ways.total());
            table.row([
                total.into(),
                taken(ways).into(),
                (total - taken(ways)).into(),
                Cell::share(taken(ways), total),
                program.offset(function, offset),
                program.name(function),
                listing.cell(program, function, offset),
                program.line(function, offset),
            ]);
            let Ways::Table { targets: counts, default } = ways else { continue };
            let to = continues_at.remove(&(function, offset)).unwrap_or_default();
            let indices = (0..counts.len()).map(Cell::from).chain(["default".into()]);
            let mut rows: Vec<_> = counts.iter().chain([default]).zip(indices).zip(to).collect();
            rows.retain(|((count, _), _)| **count > 0);
            rows.sort_by_key(|((count, _), _)| Reverse(**count));
            for ((count, index), to) in rows {
                targets.row([
                    (*count).into(),
                    Cell::share(*count, total),
                    index,
                    program.offset(function, to),
                    program.offset(function, offset),
                    program.name(function),
                    program.line(function, to),
                ]);
            }
        }
        report.table(table);
        report.table(targets);
        self.0.report_refused(report);
    }
}

fn taken(ways: &Ways) -> u64 {
    match ways {
        Ways::Condition { taken, .. } => *taken,
        Ways::Table { targets, .. } => targets.iter().sum(),
        _ => 0,
    }
}

/// The offsets at which each of these br_table, by function and offset, may continue, the default
/// last. Each function is read once.
fn continues_at(
    program: &Program<'_>,
    tables: impl Iterator<Item = (u32, u32)>,
) -> HashMap<(u32, u32), Vec<u32>> {
    let mut by_function: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    tables.for_each(|(function, offset)| by_function.entry(function).or_default().push(offset));
    let mut found = HashMap::new();
    for (function, offsets) in by_function {
        let info = program.module.function(function);
        let Some(graph) = info.as_ref().and_then(Graph::of) else { continue };
        for offset in offsets {
            let index = graph.flow.instructions.partition_point(|(at, _)| *at < offset);
            let next = graph.flow.successors[index].iter().map(|next| graph.flow.offset(*next));
            found.insert((function, offset), next.collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use wasm_jit::{Engine, Instance, Module, Store};

    use super::super::graph::GRAPHS;
    use crate::{Output, Session};

    #[test]
    fn a_function_is_read_once_whatever_the_number_of_its_tables() {
        const TABLES: usize = 500;
        let table = "(block (block (br_table 0 1 0 (local.get 0))))";
        let text = format!("(module (func (export \"run\") (param i32) {}))", table.repeat(TABLES));
        let module = Module::new(&Engine::default(), text).unwrap();
        let session = Session::new(&module, Output::none());
        session.enable("branches".parse().unwrap()).unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap().call(&mut store, 1).unwrap();
        let before = GRAPHS.get();
        let report = session.report("branches").unwrap();
        assert_eq!(report.get_table("targets").unwrap().rows().len(), TABLES);
        assert_eq!(GRAPHS.get() - before, 1);
    }
}
