//! `coverage`: which instructions, basic blocks, branches and functions were executed.
//!
//! Each [segment](super::graph::Graph::segments) has a probe where its completion is certain. The
//! probe is made when the function is first called, and deactivates itself when it has fired; a
//! function whose probes are all off returns to its original code. Segments that trap before their
//! probe are known from the frames that are left. The outcomes of most branches follow from the
//! executed basic blocks; the other branches have counters, if branches are observed.

mod branches;
mod cobertura;
mod earlier;
mod function;
mod lcov;
mod lines;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use wasm_jit::probes::{Bound, Callback, Kind, ProbeSpec, UnwoundWatch};
use wasm_jit::{FunctionInfo, Module};

use self::branches::Branch;
use self::function::{Covered, Function, Segment};
use super::graph::Graph;
use crate::lock::lock;
use crate::{Cell, Description, Error, LazyProbes, Monitor, OptionInfo, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "coverage",
    summary: "Which instructions, basic blocks, branches and functions were executed",
    details: "An instruction is covered when control has come to it, also if it then traps. Code that control can never \
              reach is left out. The files are lcov.info and cobertura.xml, by source line if the module has DWARF, \
              else by the lines of the file listing.wat; and source.txt with the lines of the source files that can \
              be read. Each probe is switched off when it has fired. With the option branches, a branch has an \
              outcome for each place where it may continue; functions with such branches count them, which costs \
              as much as the monitor branches. The option merge reads the JSON report; with branches, that run must have \
              observed branches, too.",
    options: &[
        OptionInfo::repeated(
            "merge",
            "FILE",
            "adds the JSON report of an earlier run of the same module; may be repeated",
        ),
        OptionInfo::flag("branches", "observes the outcomes of branches"),
    ],
    example: "coverage{merge=earlier/coverage.json} app.wasm",
    start,
};

/// The functions of which something is known, by index.
#[derive(Default)]
struct Functions {
    observes_branches: bool,
    is_on: AtomicBool,
    known: Mutex<BTreeMap<u32, Arc<Function>>>,
}

impl Functions {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Function>>> {
        lock(&self.known)
    }

    fn get(&self, index: u32) -> Option<Arc<Function>> {
        self.known().get(&index).cloned()
    }

    /// The entry of a function, created if there is none; `None` if the function has no body.
    fn get_or_add(&self, info: &FunctionInfo<'_>) -> Option<Arc<Function>> {
        if let Some(known) = self.get(info.index()) {
            return Some(known);
        }
        let function = Arc::new(Function::of(&Graph::of(info)?, self.observes_branches));
        // Another thread may have added it in the meantime.
        Some(self.known().entry(info.index()).or_insert(function).clone())
    }
}

struct Coverage {
    module: String,
    /// The functions to observe.
    chosen: Vec<u32>,
    functions: Arc<Functions>,
    /// The probes of segments. Closures must not own them.
    segments: Arc<OnceLock<LazyProbes>>,
    /// The probes of branches, if these are observed.
    branches: Option<LazyProbes>,
    _watch: UnwoundWatch,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let observes_branches = setup.options.flag("branches");
    let functions = Arc::new(Functions { observes_branches, ..Functions::default() });
    let coverage = Coverage {
        module: earlier::identity(setup.module),
        chosen: setup.functions().map(|function| function.index()).collect(),
        functions: functions.clone(),
        segments: probes_of_segments(setup, &functions),
        branches: observes_branches.then(|| probes_of_branches(setup, &functions)),
        _watch: watch(setup, &functions),
    };
    for file in setup.options.all("merge") {
        coverage.add_earlier(setup.module, file)?;
    }
    Ok(Box::new(coverage))
}

/// Probes that deactivate themselves when they have fired.
fn probes_of_segments(setup: &Setup<'_>, functions: &Arc<Functions>) -> Arc<OnceLock<LazyProbes>> {
    let probes = Arc::new(OnceLock::<LazyProbes>::new());
    let (functions, of_closures) = (functions.clone(), Arc::downgrade(&probes));
    let specs = move |info: &FunctionInfo<'_>| {
        let Some(function) = functions.get_or_add(info) else { return Vec::new() };
        let (of_closure, probes) = (function.clone(), of_closures.clone());
        let closure = Callback::new(move |values| {
            let segment = &of_closure.segments[values[0] as usize];
            segment.is_covered.store(true, Ordering::Relaxed);
            // If the monitor no longer exists, this is the last event.
            if let Some(probes) = probes.upgrade()
                && let Some((probes, location)) = probes.get().zip(segment.probe)
            {
                // If it cannot be deactivated, it fires again.
                let _ = probes.deactivate_at(location);
            }
        });
        let spec = |(number, segment): (usize, &Segment)| {
            let values = [Bound::Const(number as u64)].into();
            let kind = Kind::Callback { function: closure.clone(), values };
            // An earlier run may have covered it.
            let location = segment.probe.filter(|_| !segment.is_covered.load(Ordering::Relaxed))?;
            Some(ProbeSpec { location, kind })
        };
        function.segments.iter().enumerate().filter_map(spec).collect()
    };
    let _ = probes.set(LazyProbes::new(setup, specs));
    probes
}

/// Probes that count the outcomes of branches.
fn probes_of_branches(setup: &Setup<'_>, functions: &Arc<Functions>) -> LazyProbes {
    let functions = functions.clone();
    LazyProbes::new(setup, move |info| {
        let Some(function) = functions.get_or_add(info) else { return Vec::new() };
        let counted = function.branches.iter().filter(|branch| branch.needs_probe());
        let location = |branch: &Branch| function.location(branch.instruction);
        counted.map(|branch| ProbeSpec { location: location(branch), kind: Kind::CountBranch }).collect()
    })
}

/// Records how far segments that trap were executed.
fn watch(setup: &Setup<'_>, functions: &Arc<Functions>) -> UnwoundWatch {
    let functions = Arc::downgrade(functions);
    setup.module.watch_unwound(move |left| {
        let Some(functions) = functions.upgrade() else { return };
        if left.is_call() || !functions.is_on.load(Ordering::Relaxed) {
            return;
        }
        // Where this is not known, the backtrace of the trap reports it.
        let offset = left.offset().ok().flatten();
        let Some((function, offset)) = functions.get(left.function).zip(offset) else { return };
        let Ok(instruction) = function.offsets.binary_search(&offset) else { return };
        let segment = &function.segments[function.segment_of(instruction)];
        let executed = (instruction - segment.instructions.start + 1) as u32;
        segment.until_trap.fetch_max(executed, Ordering::Relaxed);
    })
}

impl Coverage {
    fn segments(&self) -> &LazyProbes {
        self.segments.get().expect("made at the start")
    }

    fn switch(&self, on: bool) -> Result<(), Error> {
        self.functions.is_on.store(on, Ordering::Relaxed);
        let of_branches = self.branches.as_ref().map_or(Ok(()), |branches| branches.switch(on));
        self.segments().switch(on).and(of_branches)
    }

    /// What was executed until now.
    fn snapshot<'a>(&'a self, module: &'a Module) -> Snapshot<'a> {
        let known = self.functions.known().clone();
        let is_chosen = |index: &u32| self.chosen.binary_search(index).is_ok();
        let known = known.into_iter().filter(|(index, _)| is_chosen(index)).map(|(index, function)| {
            let counted = |instruction: usize| {
                self.branches.as_ref()?.get(function.location(instruction), |probe| probe.branches())?
            };
            let covered = function.covered(&counted);
            (index, (function, covered))
        });
        let observes_branches = self.functions.observes_branches;
        Snapshot { module, chosen: &self.chosen, observes_branches, known: known.collect() }
    }
}

/// The chosen functions and what was executed of them, at one time. Functions that were never
/// called are analysed whenever they are visited: the analyses of a large module are larger than
/// the module.
struct Snapshot<'a> {
    module: &'a Module,
    chosen: &'a [u32],
    observes_branches: bool,
    known: BTreeMap<u32, (Arc<Function>, Covered)>,
}

impl Snapshot<'_> {
    /// Visits a function that is chosen and has a body.
    fn visit(&self, index: u32, visit: impl FnOnce(&Function, &Covered)) {
        if let Some((function, covered)) = self.known.get(&index) {
            visit(function, covered);
        } else if self.chosen.binary_search(&index).is_ok()
            && let Some(graph) = self.module.function(index).as_ref().and_then(Graph::of)
        {
            let function = Function::of(&graph, self.observes_branches);
            visit(&function, &function.covered(&|_| None));
        }
    }

    /// Visits all functions, in module order.
    fn for_each(&self, mut visit: impl FnMut(&Function, &Covered)) {
        self.chosen.iter().for_each(|index| self.visit(*index, &mut visit));
    }
}

impl Monitor for Coverage {
    fn activate(&self) -> Result<(), Error> {
        self.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let snapshot = self.snapshot(program.module);
        // Lines of the module's text are only in files.
        let mut lines =
            (program.symbols.has_lines() || report.has_files()).then(|| lines::Lines::new(program));
        let (mut total, mut reachable) = (Figures::default(), Vec::new());
        let mut tables = earlier::Tables::new();
        snapshot.for_each(|function, covered| {
            total.add(&covered.figures);
            if covered.figures.instructions[1] > 0 {
                reachable.push((function.index, function.offsets[0], covered.figures));
            }
            tables.add(function, covered);
            lines.iter_mut().for_each(|lines| lines.add(program, function, covered));
        });
        report.value("module", self.module.as_str());
        let executed = reachable.iter().filter(|(.., figures)| figures.instructions[0] > 0);
        let of_functions = [executed.count() as u64, reachable.len() as u64];
        let Figures { instructions, blocks, outcomes } = total;
        let parts = [
            ("functions", of_functions),
            ("blocks", blocks),
            ("outcomes", outcomes),
            ("instructions", instructions),
        ];
        // No outcomes if branches are not observed.
        for (name, part) in parts.into_iter().filter(|(_, [_, all])| *all > 0) {
            add_part(report, name, part);
        }
        report.table(by_function(program, reachable));
        tables.report(self.functions.observes_branches, report);
        self.segments().report_refused(report);
        if let Some(branches) = &self.branches {
            branches.report_refused_as(report, "the outcomes of its branches were not all observed");
        }
        report.file(lines::LISTING, |out| lines::write_listing(&snapshot, out));
        if let Some(lines) = lines {
            lines.report(report);
            report.file("lcov.info", |out| lcov::write(&lines, out));
            report.file("cobertura.xml", |out| cobertura::write(&lines, out));
        }
    }
}

/// The number of executed parts, and of all.
type Part = [u64; 2];

#[derive(Clone, Copy, Default)]
struct Figures {
    instructions: Part,
    blocks: Part,
    outcomes: Part,
}

impl Figures {
    fn add(&mut self, other: &Self) {
        let add = |to: &mut Part, from: Part| (0..2).for_each(|at| to[at] += from[at]);
        add(&mut self.instructions, other.instructions);
        add(&mut self.blocks, other.blocks);
        add(&mut self.outcomes, other.outcomes);
    }
}

fn add_part(report: &mut Report, name: &str, [executed, all]: Part) {
    report.value(name, all);
    report.value(&format!("{name}_covered"), executed);
    report.value(&format!("{name}_share"), Cell::share(executed, all));
}

/// The rows of functions, of which each is given with the offset of its first instruction.
fn by_function(program: &Program<'_>, mut functions: Vec<(u32, u32, Figures)>) -> Table {
    let columns = [
        "share",
        "instructions",
        "executed",
        "blocks",
        "blocks executed",
        "outcomes",
        "outcomes seen",
        "function",
        "source",
    ];
    let mut table = Table::new("by_function", columns);
    // Executed functions first, by the number of instructions that remain to be covered.
    functions.sort_by_key(|(function, _, figures)| {
        let [executed, all] = figures.instructions;
        (executed == 0, std::cmp::Reverse(all - executed), *function)
    });
    for (function, first, figures) in functions {
        let Figures { instructions, blocks, outcomes } = figures;
        table.row([
            Cell::share(instructions[0], instructions[1]),
            instructions[1].into(),
            instructions[0].into(),
            blocks[1].into(),
            blocks[0].into(),
            outcomes[1].into(),
            outcomes[0].into(),
            program.name(function),
            program.line(function, first),
        ]);
    }
    table
}
