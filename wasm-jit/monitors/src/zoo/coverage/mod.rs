//! `coverage`: which instructions, basic blocks, branches and functions were executed.
//!
//! A probe is in each [segment](super::graph::Graph::segments), where its completion is certain. It
//! switches itself off when it has fired; a function whose probes are all off returns to its
//! original code. Segments that trap before their probe are known from the frames that are left.
//! Where branches went is known from the basic blocks for most of them; the others have counters,
//! if branches are observed.

mod branches;
mod cobertura;
mod earlier;
mod lcov;
mod lines;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use wasm_jit::probes::{
    Bound, Callback, Kind, Location, Probe, ProbeError, ProbeSpec, UnwoundWatch, activate_all, deactivate_all,
};

use self::branches::{Branch, Outcome, Seen, branches_of};
use super::graph::{Completion, Graph};
use crate::{Cell, Description, Error, Monitor, OptionInfo, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "coverage",
    summary: "Which instructions, basic blocks, branches and functions were executed",
    details: "An instruction is covered when control has come to it, also if it then traps. Code that control can never \
              reach is left out. The files are lcov.info and cobertura.xml, by source line if the module has DWARF, \
              else by the lines of the file listing.wat; and source.txt with the lines of the source files that can \
              be read. Each probe is switched off when it has fired. With the option branches, a branch has an \
              outcome for each place where it may continue; functions with such branches count them, which takes \
              as long as the monitor branches does. The JSON report is what merge reads.",
    options: &[
        OptionInfo {
            name: "merge",
            value: "FILE",
            help: "adds the JSON report of an earlier run of the same module; may be repeated",
        },
        OptionInfo { name: "branches", value: "", help: "observes the outcomes of branches" },
    ],
    example: "coverage{merge=earlier/coverage.json} app.wasm",
    start,
};

/// A function and its parts.
struct Function {
    index: u32,
    /// The offsets of its instructions.
    offsets: Vec<u32>,
    /// Its basic blocks: their instructions.
    blocks: Vec<Range<usize>>,
    /// Its segments, by their numbers.
    segments: Range<usize>,
    /// Its branches, by their numbers.
    branches: Range<usize>,
}

/// Instructions of a function.
struct Segment {
    instructions: Range<usize>,
    /// Whether control can come to it.
    is_reachable: bool,
}

/// What closures use.
struct State {
    segments: Vec<SegmentState>,
    branches: Vec<Branch>,
    is_on: AtomicBool,
}

/// By number: segments, then branches; those that have one. Closures must not own them.
type Probes = OnceLock<Vec<Option<Probe>>>;

#[derive(Default)]
struct SegmentState {
    /// Whether all of it was executed.
    is_covered: AtomicBool,
    /// How many of its instructions were executed before one trapped.
    until_trap: AtomicU32,
}

struct Coverage {
    module: String,
    functions: Arc<Vec<Function>>,
    segments: Vec<Segment>,
    state: Arc<State>,
    probes: Arc<Probes>,
    _watch: UnwoundWatch,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let observes_branches = setup.options.flag("branches");
    let (mut functions, mut segments, mut branches) = (Vec::new(), Vec::new(), Vec::new());
    // Of segments: where their completion is certain. Of branches: where they are.
    let (mut of_segments, mut of_branches) = (Vec::new(), Vec::new());
    for graph in setup.functions().filter_map(|function| Graph::of(&function)) {
        let first = (segments.len(), branches.len());
        for instructions in graph.segments() {
            let last = instructions.end - 1;
            let certain = |index: &usize| graph.completion(*index) == Completion::Certain;
            let at = (instructions.start..last).rev().find(|index| !certain(index));
            of_segments.push(graph.location(at.map_or(instructions.start, |at| at + 1)));
            segments.push(Segment { instructions, is_reachable: true });
        }
        if observes_branches {
            for branch in branches_of(&graph) {
                let by_probe = |outcome: &Outcome| matches!(outcome.seen, Seen::ByProbe(_));
                let needs_probe = branch.outcomes.iter().any(by_probe);
                of_branches.push((graph.location(branch.instruction), needs_probe));
                branches.push(branch);
            }
        }
        functions.push(Function {
            index: graph.function,
            offsets: graph.flow.instructions.iter().map(|(offset, _)| *offset).collect(),
            blocks: graph.flow.blocks(),
            segments: first.0..segments.len(),
            branches: first.1..branches.len(),
        });
    }
    let state = Arc::new(State {
        segments: segments.iter().map(|_| SegmentState::default()).collect(),
        branches,
        is_on: AtomicBool::new(false),
    });
    let probes = make(setup, &state, &of_segments, &of_branches)?;
    for (segment, probe) in segments.iter_mut().zip(probes.get().into_iter().flatten()) {
        segment.is_reachable = probe.is_some();
    }
    let functions = Arc::new(functions);
    let watch = watch(setup, &functions, &segments, &state);
    let module = earlier::identity(setup.module);
    let coverage = Coverage { module, functions, segments, state, probes, _watch: watch };
    for file in setup.options.all("merge") {
        coverage.add_earlier(file)?;
    }
    Ok(Box::new(coverage))
}

/// The probes, by number; without those that control never reaches.
fn make(
    setup: &Setup<'_>,
    state: &Arc<State>,
    of_segments: &[Location],
    of_branches: &[(Location, bool)],
) -> Result<Arc<Probes>, Error> {
    let probes = Arc::new(Probes::new());
    let (state, of_closure) = (state.clone(), Arc::downgrade(&probes));
    let closure = Callback::new(move |values| {
        let number = values[0] as usize;
        state.segments[number].is_covered.store(true, Ordering::Relaxed);
        // If the monitor has gone, this is the last event.
        if let Some(probes) = of_closure.upgrade()
            && let Some(probe) = probes.get().and_then(|probes| probes[number].as_ref())
        {
            // If it cannot be switched off, it fires again.
            let _ = deactivate_all([probe]);
        }
    });
    let mut specs = Vec::new();
    for (number, location) in of_segments.iter().enumerate() {
        let values = [Bound::Const(number as u64)].into();
        specs.push(ProbeSpec {
            location: *location,
            kind: Kind::Callback { function: closure.clone(), values },
        });
    }
    let counted = of_branches.iter().filter(|(_, needs_probe)| *needs_probe);
    specs.extend(counted.map(|(location, _)| ProbeSpec { location: *location, kind: Kind::CountBranch }));
    let mut made = setup.module.probes(&specs).into_iter().map(|probe| match probe {
        Ok(probe) => Ok(Some(probe)),
        Err(ProbeError::Unreachable { .. }) => Ok(None),
        Err(error) => Err(error),
    });
    let mut numbered: Vec<Option<Probe>> = made.by_ref().take(of_segments.len()).collect::<Result<_, _>>()?;
    for (_, needs_probe) in of_branches {
        numbered.push(if *needs_probe {
            made.next().expect("one for each").map_err(Error::from)?
        } else {
            None
        });
    }
    let _ = probes.set(numbered);
    Ok(probes)
}

/// Notes how far segments come that trap.
fn watch(
    setup: &Setup<'_>,
    functions: &Arc<Vec<Function>>,
    segments: &[Segment],
    state: &Arc<State>,
) -> UnwoundWatch {
    let (functions, state) = (functions.clone(), Arc::downgrade(state));
    let starts: Vec<usize> = segments.iter().map(|segment| segment.instructions.start).collect();
    setup.module.watch_unwound(move |left| {
        let Some(state) = state.upgrade() else { return };
        if left.is_call() || !state.is_on.load(Ordering::Relaxed) {
            return;
        }
        let function = functions.binary_search_by_key(&left.function, |function| function.index);
        let Some((function, offset)) = function.ok().map(|at| &functions[at]).zip(left.offset()) else {
            return;
        };
        let Ok(instruction) = function.offsets.binary_search(&offset) else { return };
        let starts = &starts[function.segments.clone()];
        let segment = starts.partition_point(|start| *start <= instruction) - 1;
        let executed = (instruction - starts[segment] + 1) as u32;
        let segment = &state.segments[function.segments.start + segment];
        segment.until_trap.fetch_max(executed, Ordering::Relaxed);
    })
}

impl Monitor for Coverage {
    fn activate(&self) -> Result<(), Error> {
        self.state.is_on.store(true, Ordering::Relaxed);
        let of_segments = self.state.segments.iter();
        let covered = of_segments.map(|segment| segment.is_covered.load(Ordering::Relaxed));
        let probes = self.probes().iter().zip(covered.chain(std::iter::repeat(false)));
        let probes = probes.filter(|(_, is_covered)| !is_covered);
        Ok(activate_all(probes.filter_map(|(probe, _)| probe.as_ref()))
            .into_iter()
            .collect::<Result<_, _>>()?)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.state.is_on.store(false, Ordering::Relaxed);
        Ok(deactivate_all(self.probes().iter().flatten()).into_iter().collect::<Result<_, _>>()?)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let covered: Vec<Covered> = self.functions.iter().map(|function| self.covered(function)).collect();
        let mut total = Figures::default();
        covered.iter().for_each(|covered| total.add(&covered.figures));
        let functions = covered.iter().filter(|covered| covered.figures.instructions[1] > 0);
        report.value("module", self.module.as_str());
        let executed = functions.clone().filter(|covered| covered.figures.instructions[0] > 0);
        let of_functions = [executed.count() as u64, functions.count() as u64];
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
        report.table(by_function(program, &self.functions, &covered));
        earlier::tables(&self.functions, &covered, report);
        let lines = lines::Lines::of(program, &self.functions, &covered);
        lines.report(report);
        report.file("lcov.info", lcov::print(&lines));
        report.file("cobertura.xml", cobertura::print(&lines));
    }
}

/// Executed, and all.
type Part = [u64; 2];

#[derive(Default)]
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

/// What was executed of a function, at one time.
struct Covered {
    /// By instruction; `None` if control never comes to it.
    instructions: Vec<Option<bool>>,
    /// Of branches: the instruction, and for each outcome the target and whether it was seen.
    branches: Vec<(usize, Vec<(usize, bool)>)>,
    figures: Figures,
}

impl Coverage {
    fn probes(&self) -> &[Option<Probe>] {
        self.probes.get().map_or(&[], |probes| probes)
    }

    fn covered(&self, function: &Function) -> Covered {
        let mut instructions = vec![None; function.offsets.len()];
        for number in function.segments.clone() {
            let (segment, state) = (&self.segments[number], &self.state.segments[number]);
            if !segment.is_reachable {
                continue;
            }
            let executed = match state.is_covered.load(Ordering::Relaxed) {
                true => usize::MAX,
                false => state.until_trap.load(Ordering::Relaxed) as usize,
            };
            for (at, index) in segment.instructions.clone().enumerate() {
                instructions[index] = Some(at < executed);
            }
        }
        let is_covered = |index: usize| instructions.get(index).copied().flatten() == Some(true);
        let mut branches = Vec::new();
        for number in function.branches.clone() {
            let branch = &self.state.branches[number];
            if instructions[branch.instruction].is_none() {
                continue;
            }
            let counted = self.probes()[self.segments.len() + number].as_ref().and_then(Probe::branches);
            let was_seen = |(number, outcome): (usize, &Outcome)| match &outcome.seen {
                Seen::ByTarget => is_covered(outcome.target),
                Seen::ByProbe(earlier) => {
                    earlier.load(Ordering::Relaxed) || branch.has_seen(number, counted.as_ref())
                }
            };
            let outcomes = branch.outcomes.iter().enumerate();
            let outcomes = outcomes.map(|outcome| (outcome.1.target, was_seen(outcome))).collect();
            branches.push((branch.instruction, outcomes));
        }
        let part = |all: &mut dyn Iterator<Item = bool>| {
            all.fold([0, 0], |[executed, all], is_covered| [executed + u64::from(is_covered), all + 1])
        };
        let figures = Figures {
            instructions: part(&mut instructions.iter().copied().flatten()),
            blocks: part(&mut function.blocks.iter().filter_map(|block| instructions[block.start])),
            outcomes: part(
                &mut branches.iter().flat_map(|(_, outcomes): &(_, Vec<_>)| outcomes).map(|(_, seen)| *seen),
            ),
        };
        Covered { instructions, branches, figures }
    }
}

fn by_function(program: &Program<'_>, functions: &[Function], covered: &[Covered]) -> Table {
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
    let mut rows: Vec<_> = functions.iter().zip(covered).collect();
    rows.retain(|(_, covered)| covered.figures.instructions[1] > 0);
    // Those with the most to do first, of those that were executed.
    rows.sort_by_key(|(function, covered)| {
        let [executed, all] = covered.figures.instructions;
        (executed == 0, std::cmp::Reverse(all - executed), function.index)
    });
    for (function, Covered { figures, .. }) in rows {
        let Figures { instructions, blocks, outcomes } = figures;
        table.row([
            Cell::share(instructions[0], instructions[1]),
            instructions[1].into(),
            instructions[0].into(),
            blocks[1].into(),
            blocks[0].into(),
            outcomes[1].into(),
            outcomes[0].into(),
            program.name(function.index),
            program.line(function.index, function.offsets[0]),
        ]);
    }
    table
}
