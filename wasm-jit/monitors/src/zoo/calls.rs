//! `calls`: which functions were called from where, and how often.
//!
//! A counter at each direct call, a closure at each indirect one, and a counter at the entry of
//! each function that something else than direct calls may call: the host, or another instance.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::Module;
use wasm_jit::probes::{
    Bound, Callback, Kind, Location, NO_FUNCTION, OTHER_FUNCTION, Place, Probe, ProbeError, ProbeSpec,
};
use wasm_jit::wasmparser::{ConstExpr, ElementItems, Operator, Parser, Payload};

use super::graph::Graph;
use crate::{Cell, Description, Error, Monitor, Program, Report, Setup, Table, switch};

pub(super) const DESCRIPTION: Description = Description {
    name: "calls",
    summary: "Direct and indirect calls with their targets, and the call graph",
    details: "A call counts when it is about to be made, also an indirect one that then traps because the table has \
              no function there, or one of another type. Calls by `host` are those that are not from the module's \
              own instructions: by the host, or by other instances. The file callgraph.dot has the call graph: draw \
              it with dot -Tsvg (graphviz). With the option function, calls by the chosen functions only. While \
              the program runs, calls by the host may be missing.",
    options: &[],
    example: "calls{rows=50} app.wasm",
    start,
};

/// Where a call is.
struct Site {
    function: u32,
    offset: u32,
    is_tail: bool,
    callee: Callee,
}

enum Callee {
    Direct(u32),
    Indirect(Arc<Targets>),
}

/// How often an indirect call has called each function.
struct Targets {
    /// A hash table: functions, by their indices plus 3, and counts.
    table: [(AtomicU64, AtomicU64); TABLE],
    /// Those for which it has no room.
    others: Mutex<HashMap<u64, u64>>,
}

/// Entries of a table, a power of two.
const TABLE: usize = 64;

/// In how many entries a function may be.
const PLACES: u64 = 8;

impl Targets {
    fn new() -> Self {
        Self { table: std::array::from_fn(|_| Default::default()), others: Mutex::default() }
    }

    fn add(&self, callee: u64) {
        // Not 0: no index is that large, and the largest numbers mean none and others.
        let key = callee.wrapping_add(3);
        for place in 0..PLACES {
            let (known, count) = &self.table[(key.wrapping_add(place)) as usize % TABLE];
            let mut found = known.load(Ordering::Relaxed);
            if found == 0 {
                found = match known.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => key,
                    Err(found) => found,
                };
            }
            if found == key {
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        *self.others().entry(callee).or_default() += 1;
    }

    fn others(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> Vec<(u64, u64)> {
        let counted = self
            .table
            .iter()
            .map(|(key, count)| (key.load(Ordering::Relaxed), count.load(Ordering::Relaxed)));
        let mut counts: Vec<_> = counted.map(|(key, count)| (key.wrapping_sub(3), count)).collect();
        counts.extend(self.others().iter().map(|(callee, count)| (*callee, *count)));
        counts.retain(|(_, count)| *count > 0);
        counts.sort_by_key(|(callee, count)| (Reverse(*count), *callee));
        counts
    }
}

struct Calls {
    sites: Vec<(Probe, Site)>,
    /// At entries.
    entries: Vec<Probe>,
    /// Whether all functions are observed, so that it is known what the host has called.
    is_complete: bool,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let (mut specs, mut sites) = (Vec::new(), Vec::new());
    for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
        for index in 0..graph.len() {
            let (offset, operator) = &graph.flow.instructions[index];
            let (callee, is_tail) = match operator {
                Operator::Call { function_index } => (Some(*function_index), false),
                Operator::ReturnCall { function_index } => (Some(*function_index), true),
                Operator::CallIndirect { .. } => (None, false),
                Operator::ReturnCallIndirect { .. } => (None, true),
                _ => continue,
            };
            let (kind, callee) = match callee {
                Some(callee) => (Kind::Count, Callee::Direct(callee)),
                None => {
                    let targets = Arc::new(Targets::new());
                    let of_closure = targets.clone();
                    let function = Callback::new(move |values| of_closure.add(values[0]));
                    let kind = Kind::Callback { function, values: [Bound::Callee].into() };
                    (kind, Callee::Indirect(targets))
                }
            };
            specs.push(ProbeSpec { location: graph.location(index), kind });
            sites.push(Site { function: graph.function, offset: *offset, is_tail, callee });
        }
    }
    let calls = specs.len();
    let is_complete = setup.options.all("function").next().is_none();
    if is_complete {
        for function in referenced(setup.module) {
            specs.push(ProbeSpec { location: Location { function, place: Place::Entry }, kind: Kind::Count });
        }
    }
    let mut made = setup.module.probes(&specs).into_iter();
    let mut reached = Vec::new();
    for (probe, site) in made.by_ref().take(calls).zip(sites) {
        match probe {
            Err(ProbeError::Unreachable { .. }) => {}
            probe => reached.push((probe?, site)),
        }
    }
    let entries = made.collect::<Result<_, _>>()?;
    Ok(Box::new(Calls { sites: reached, entries, is_complete }))
}

/// The functions with a body that the host, or other instances, may call: those that are exported,
/// in elements (where all are that `ref.func` names in code) or globals, and the start function.
fn referenced(module: &Module) -> BTreeSet<u32> {
    let mut functions: BTreeSet<u32> = BTreeSet::new();
    for function in module.functions() {
        if function.exports().next().is_some() {
            functions.insert(function.index());
        }
    }
    let mut add = |expression: &ConstExpr<'_>| {
        functions.extend(expression.get_operators_reader().into_iter().flatten().filter_map(|operator| {
            match operator {
                Operator::RefFunc { function_index } => Some(function_index),
                _ => None,
            }
        }));
    };
    let mut named = Vec::new();
    for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
        match payload {
            Payload::StartSection { func, .. } => named.push(func),
            Payload::GlobalSection(globals) => {
                globals.into_iter().flatten().for_each(|global| add(&global.init_expr));
            }
            Payload::ElementSection(elements) => {
                for element in elements.into_iter().flatten() {
                    match element.items {
                        ElementItems::Functions(indices) => named.extend(indices.into_iter().flatten()),
                        ElementItems::Expressions(_, items) => {
                            items.into_iter().flatten().for_each(|item| add(&item))
                        }
                    }
                }
            }
            Payload::CodeSectionStart { .. } => break,
            _ => {}
        }
    }
    functions.extend(named);
    functions.retain(|index| module.function(*index).is_some_and(|function| function.body().is_some()));
    functions
}

impl Monitor for Calls {
    fn activate(&self) -> Result<(), Error> {
        switch_all(self, true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        switch_all(self, false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        // Entries first: a call that happens meanwhile is not taken for one by the host.
        let entered: Vec<(u32, u64)> =
            self.entries.iter().map(|probe| (probe.spec().location.function, probe.count())).collect();
        let mut calls: Vec<(&Site, u64, u64)> = Vec::new();
        for (probe, site) in &self.sites {
            match &site.callee {
                Callee::Direct(callee) => calls.push((site, (*callee).into(), probe.count())),
                Callee::Indirect(targets) => {
                    calls.extend(targets.counts().into_iter().map(|(callee, count)| (site, callee, count)));
                }
            }
        }
        calls.retain(|(.., count)| *count > 0);
        let mut edges: BTreeMap<(Option<u32>, u64), u64> = BTreeMap::new();
        let mut called: BTreeMap<u64, u64> = BTreeMap::new();
        for (site, callee, count) in &calls {
            *edges.entry((Some(site.function), *callee)).or_default() += count;
            *called.entry(*callee).or_default() += count;
        }
        let sum = |is_wanted: &dyn Fn(&Site) -> bool| {
            calls.iter().filter(|(site, ..)| is_wanted(site)).map(|(.., count)| count).sum::<u64>()
        };
        report.value("calls", sum(&|_| true));
        report.value("direct", sum(&|site| matches!(site.callee, Callee::Direct(_))));
        report.value("indirect", sum(&|site| matches!(site.callee, Callee::Indirect(_))));
        report.value("tail_calls", sum(&|site| site.is_tail));
        if self.is_complete {
            let mut by_host = 0;
            for (function, entered) in entered {
                let known = called.entry(function.into()).or_default();
                let calls = entered.saturating_sub(*known);
                *known += calls;
                by_host += calls;
                if calls > 0 {
                    edges.insert((None, function.into()), calls);
                }
            }
            report.value("by_host", by_host);
        }
        called.retain(|_, count| *count > 0);
        let name = |callee: u64| match callee {
            NO_FUNCTION => Cell::from("none (trap)"),
            OTHER_FUNCTION => "of another instance".into(),
            index => program.name(index as u32),
        };
        let total = called.values().sum();
        let mut table = Table::new("functions", ["called", "share", "function"]);
        let mut rows: Vec<_> = called.into_iter().collect();
        rows.sort_by_key(|(callee, count)| (Reverse(*count), *callee));
        for (callee, count) in rows {
            table.row([count.into(), Cell::share(count, total), name(callee)]);
        }
        report.table(table);
        report.file("callgraph.dot", || dot(&edges, &name));
        let mut table = Table::new("arcs", ["calls", "share", "caller", "callee"]);
        let mut rows: Vec<_> = edges.into_iter().collect();
        rows.sort_by_key(|(edge, count)| (Reverse(*count), *edge));
        for ((caller, callee), count) in rows {
            let caller = caller.map_or("host".into(), |caller| program.name(caller));
            table.row([count.into(), Cell::share(count, total), caller, name(callee)]);
        }
        report.table(table);
        calls.sort_by_key(|(site, callee, count)| (Reverse(*count), site.function, site.offset, *callee));
        let mut table = Table::new("sites", ["calls", "offset", "caller", "callee", "kind", "source"]);
        for (site, callee, count) in calls {
            let kind = match (&site.callee, site.is_tail) {
                (Callee::Direct(_), false) => "direct",
                (Callee::Direct(_), true) => "direct, tail",
                (Callee::Indirect(_), false) => "indirect",
                (Callee::Indirect(_), true) => "indirect, tail",
            };
            table.row([
                count.into(),
                program.offset(site.function, site.offset),
                program.name(site.function),
                name(callee),
                kind.into(),
                program.line(site.function, site.offset),
            ]);
        }
        report.table(table);
    }
}

fn switch_all(calls: &Calls, on: bool) -> Result<(), Error> {
    let sites = switch(calls.sites.iter().map(|(probe, _)| probe), on);
    let entries = switch(&calls.entries, on);
    sites.and(entries)
}

/// The call graph in the language of graphviz. A node is a function by its index, or the host.
fn dot(edges: &BTreeMap<(Option<u32>, u64), u64>, name: &impl Fn(u64) -> Cell) -> String {
    let mut out = String::from("digraph calls {\n    node [shape=box];\n");
    let node = |function: u64| match function {
        NO_FUNCTION => "none".to_owned(),
        OTHER_FUNCTION => "other".to_owned(),
        index => format!("f{index}"),
    };
    let ends = edges.keys().flat_map(|(caller, callee)| [caller.map(u64::from), Some(*callee)]);
    for end in ends.collect::<BTreeSet<_>>() {
        let Some(function) = end else {
            out.push_str("    host [shape=ellipse];\n");
            continue;
        };
        let Cell::Text(name) = name(function) else { continue };
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(out, "    {} [label=\"{name}\"];", node(function));
    }
    for ((caller, callee), count) in edges {
        let caller = caller.map_or("host".to_owned(), |caller| node(caller.into()));
        let _ = writeln!(out, "    {caller} -> {} [label={count}];", node(*callee));
    }
    out + "}\n"
}
