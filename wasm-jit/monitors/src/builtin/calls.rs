//! `calls`: which functions were called from where, and how often.
//!
//! A counter is at each direct call, and one at the entry of each function that may be called in
//! any other way: by the host, or by another instance. At each indirect call is a closure or, where
//! the table never changes, a record of the index ([`FixedTables`]). The probes of a function are
//! made when it is first called. Counters at entries are switched on last: a call that arrives
//! there has been counted where it was made, unless the host has made it. A call that the stack has
//! no room for arrives at no entry; it is reported as a frame that is unwound.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use wasm_jit::probes::{Callback, Called, Kind, Location, NO_FUNCTION, Place, ProbeSpec, UnwoundWatch};
use wasm_jit::wasmparser::{ConstExpr, ElementItems, Operator, Parser, Payload};
use wasm_jit::{FunctionInfo, Module, Trap, printable};
use wasm_jit_hooks::CallForm;

use super::fixed_tables::FixedTables;
use super::graph::Graph;
use super::other_functions::{self, Callee as Other};
use crate::lazy::Order;
use crate::lock::lock;
use crate::{Cell, Description, Error, LazyProbes, Monitor, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "calls",
    summary: "Direct and indirect calls with their targets, and the call graph",
    details: "A call counts when it is about to be made, also an indirect one that then traps because the table has \
              no function there, or one of another type: its callee is `none (trap)`. Functions of other modules that are called by a table \
              or a reference have the name MODULE::NAME. Calls by `host` are those that are not from the module's \
              own instructions: by the host, or by other instances. The file callgraph.dot has the call graph: draw \
              it with dot -Tsvg (graphviz). The targets of calls through a table that is neither imported nor \
              exported, and that no instruction writes, are the functions of its element segments, whatever the \
              host may store in it. With the option function, calls by the chosen functions only. While the \
              program runs, the latest calls by the host may be missing. If the monitor is switched on or off \
              meanwhile, up to as many calls by the host may be missing as the program makes to the same \
              function during the switch.",
    options: &[],
    example: "calls{rows=50} app.wasm",
    start: |setup| Ok(Box::new(Calls::of(setup)?)),
};

/// The location of a call.
#[derive(Clone)]
struct Site {
    function: u32,
    offset: u32,
    is_tail: bool,
    callee: Callee,
}

#[derive(Clone)]
enum Callee {
    Direct(u32),
    Indirect(Arc<Targets>),
    /// Through a table that never changes: the number of the call.
    Fixed(usize),
}

/// The functions that an indirect call has called, and the number of calls to each.
struct Targets {
    /// A hash table of functions, as indices plus 3, and counts.
    table: [(AtomicU64, AtomicU64); TABLE],
    /// Functions for which the table has no room.
    others: Mutex<HashMap<u64, u64>>,
}

/// The number of entries of a table, a power of two.
const TABLE: usize = 64;

/// The number of entries among which a function's entry may be.
const PLACES: u64 = 8;

impl Targets {
    fn new() -> Self {
        Self { table: std::array::from_fn(|_| Default::default()), others: Mutex::default() }
    }

    fn add(&self, callee: u64) {
        // Never 0: no index is that large, and the largest numbers stand for none and others.
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
        lock(&self.others)
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
    module: Module,
    probes: LazyProbes,
    /// Call sites of the functions in which probes were made.
    sites: Arc<Sites>,
    tables: FixedTables,
    /// Whether all functions are observed, so that the calls from the host are known.
    is_complete: bool,
    /// The number of calls of each function for which the stack had no room: they do not reach the
    /// function's entry.
    overflows: Arc<Mutex<BTreeMap<u32, u64>>>,
    /// While the monitor is on.
    watch: Mutex<Option<UnwoundWatch>>,
}

type Sites = Mutex<BTreeMap<Location, Site>>;

impl Calls {
    fn of(setup: &Setup<'_>) -> Result<Self, Error> {
        let is_complete = setup.options.all("function").next().is_none();
        let entered = match is_complete {
            true if setup.host_calls_any => setup.functions().map(|function| function.index()).collect(),
            true => referenced(setup.module),
            false => BTreeSet::new(),
        };
        let sites: Arc<Sites> = Arc::default();
        let found = sites.clone();
        let tables = FixedTables::of(setup.module)?;
        let of_probes = tables.clone();
        let functions = setup.functions().map(|function| function.index());
        let probes = LazyProbes::of(setup.module, functions, Order::EntriesLast, move |function| {
            let mut specs = Vec::new();
            for (location, site, kind) in sites_of(function, &of_probes) {
                specs.push(ProbeSpec { location, kind });
                lock(&found).insert(location, site);
            }
            if entered.contains(&function.index()) {
                let location = Location { function: function.index(), place: Place::Entry };
                specs.push(ProbeSpec { location, kind: Kind::Count });
            }
            specs
        });
        let (module, overflows, watch) = (setup.module.clone(), Arc::default(), Mutex::default());
        Ok(Self { module, probes, sites, tables, is_complete, overflows, watch })
    }

    /// The calls that were made: the call site, the callee, and the number of calls.
    fn calls(&self) -> Vec<(Site, u64, u64)> {
        self.tables.flush();
        let sites = lock(&self.sites);
        let mut calls = Vec::new();
        self.probes.for_each(|probe| {
            let Some(site) = sites.get(&probe.spec().location) else { return };
            let counts = match &site.callee {
                Callee::Direct(callee) => vec![((*callee).into(), probe.count())],
                Callee::Indirect(targets) => targets.counts(),
                Callee::Fixed(number) => self.tables.counts(*number),
            };
            let made = counts.into_iter().filter(|(_, count)| *count > 0);
            calls.extend(made.map(|(callee, count)| (site.clone(), callee, count)));
        });
        calls
    }
}

/// The call sites in a function, with the kinds of their probes.
fn sites_of(function: &FunctionInfo<'_>, tables: &FixedTables) -> Vec<(Location, Site, Kind)> {
    let Some(graph) = Graph::of(function) else { return Vec::new() };
    let site = |index: usize| {
        let (offset, operator) = &graph.flow.instructions[index];
        let CallForm { callee, is_tail } = CallForm::of(operator)?;
        let (callee, kind) = match (callee, tables.call(operator)) {
            (Some(function), _) => (Callee::Direct(function), Kind::Count),
            (None, Some((number, kind))) => (Callee::Fixed(number), kind),
            (None, None) => {
                let targets = Arc::new(Targets::new());
                let of_probe = targets.clone();
                let function = Callback::with_callee(move |_, called| of_probe.add(callee_of(called)));
                (Callee::Indirect(targets), Kind::Callback { function, values: [].into() })
            }
        };
        let site = Site { function: graph.function, offset: *offset, is_tail, callee };
        Some((graph.location(index), site, kind))
    };
    (0..graph.len()).filter_map(site).collect()
}

/// The index or the number of a callee; [`NO_FUNCTION`] if the call traps.
fn callee_of(called: &Called<'_>) -> u64 {
    match Other::of(called) {
        Other::None => NO_FUNCTION,
        Other::Of(function) | Other::Other(function) => function.into(),
    }
}

/// The functions with a body that the host or other instances may call: exported functions, the
/// start function, and functions in globals or elements (including all that `ref.func` names in
/// code).
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
        if self.is_complete {
            let overflows = self.overflows.clone();
            lock(&self.watch).get_or_insert_with(|| {
                self.module.watch_unwound(move |frame| {
                    // The innermost frame is that of the callee.
                    if frame.trap() == Some(Trap::StackOverflow) && !frame.is_call() {
                        *lock(&overflows).entry(frame.function).or_default() += 1;
                    }
                })
            });
        }
        self.probes.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.probes.switch(false)?;
        *lock(&self.watch) = None;
        Ok(())
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        // Calls are read where they arrive first: one that is made in between is not mistaken for
        // one from the host.
        let overflows = lock(&self.overflows).clone();
        let mut arrived: Vec<(u32, u64)> = Vec::new();
        self.probes.for_each(|probe| {
            let Location { function, place } = probe.spec().location;
            if place == Place::Entry {
                arrived.push((function, probe.count() + overflows.get(&function).unwrap_or(&0)));
            }
        });
        let mut calls = self.calls();
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
        report.value("indirect", sum(&|site| !matches!(site.callee, Callee::Direct(_))));
        report.value("tail_calls", sum(&|site| site.is_tail));
        if self.is_complete {
            let mut by_host = 0;
            for (function, arrived) in arrived {
                let known = called.entry(function.into()).or_default();
                let calls = arrived.saturating_sub(*known);
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
            index => {
                other_functions::name(index as u32).map_or_else(|| program.name(index as u32), Cell::Text)
            }
        };
        let total = called.values().sum();
        let mut table = Table::new("functions", ["called", "share", "function"]);
        let mut rows: Vec<_> = called.into_iter().collect();
        rows.sort_by_key(|(callee, count)| (Reverse(*count), *callee));
        for (callee, count) in rows {
            table.row([count.into(), Cell::share(count, total), name(callee)]);
        }
        report.table(table);
        report.file("callgraph.dot", |out| out.write_all(dot(&edges, &name).as_bytes()));
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
                (Callee::Indirect(_) | Callee::Fixed(_), false) => "indirect",
                (Callee::Indirect(_) | Callee::Fixed(_), true) => "indirect, tail",
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
        self.probes.report_refused(report);
    }
}

/// The call graph in the language of Graphviz. A node is a function, by its index, or the host.
fn dot(edges: &BTreeMap<(Option<u32>, u64), u64>, name: &impl Fn(u64) -> Cell) -> String {
    let mut out = String::from("digraph calls {\n    node [shape=box];\n");
    let node = |function: u64| match function {
        NO_FUNCTION => "none".to_owned(),
        index => format!("f{index}"),
    };
    let ends = edges.keys().flat_map(|(caller, callee)| [caller.map(u64::from), Some(*callee)]);
    for end in ends.collect::<BTreeSet<_>>() {
        let Some(function) = end else {
            out.push_str("    host [shape=ellipse];\n");
            continue;
        };
        let Cell::Text(name) = name(function) else { continue };
        let name = printable(&name).replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(out, "    {} [label=\"{name}\"];", node(function));
    }
    for ((caller, callee), count) in edges {
        let caller = caller.map_or("host".to_owned(), |caller| node(caller.into()));
        let _ = writeln!(out, "    {caller} -> {} [label={count}];", node(*callee));
    }
    out + "}\n"
}
