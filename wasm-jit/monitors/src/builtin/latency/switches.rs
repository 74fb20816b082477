//! [`Switches`]: the probes of functions, which the profiler toggles.

use std::sync::{Mutex, OnceLock};

use profiler::embedded::{self, EntryProbe, Probes};
use wasm_jit::Module;
use wasm_jit::probes::{Bound, Kind, Location, NativeFn, Place, Probe, ProbeSpec, deactivate_all};
use wasm_jit_hooks::CallForm;

use crate::Error;
use crate::lock::lock;

/// The probes of a function.
#[derive(Default)]
struct Made {
    timed: Option<Probe>,
    counted: Option<Probe>,
    exits: Vec<Probe>,
}

/// Which of the probes are on, or are to be when they are made.
#[derive(Default)]
struct Wanted {
    entry: EntryProbe,
    has_exits: bool,
    /// Whether a thread makes or has made the probes: the thread that starts the monitor may do so
    /// at the same time as one that calls the function for the first time.
    is_claimed: bool,
}

#[derive(Default)]
struct OfFunction {
    wanted: Mutex<Wanted>,
    made: OnceLock<Made>,
}

/// Functions of a module, in ascending order of their indices, and their probes, which are made
/// when a function is first called. A probe that cannot be toggled stays as it is.
pub(super) struct Switches {
    module: Module,
    indices: Vec<u32>,
    functions: Vec<OfFunction>,
}

impl Switches {
    pub(super) fn new(module: &Module, indices: Vec<u32>) -> Self {
        let functions = indices.iter().map(|_| OfFunction::default()).collect();
        Self { module: module.clone(), indices, functions }
    }

    /// The indices of the functions, by their numbers here.
    pub(super) fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// The number of the function with this index.
    pub(super) fn number_of(&self, index: u32) -> Option<usize> {
        self.indices.binary_search(&index).ok()
    }

    /// Makes the probes of a function, which pass `value`, in the state that was set last.
    pub(super) fn make(&self, number: usize, value: u64) {
        let of = &self.functions[number];
        if std::mem::replace(&mut lock(&of.wanted).is_claimed, true) {
            return;
        }
        // Not under the lock, for which the profiler's thread may wait.
        let made = make(&self.module, self.indices[number], value);
        let wanted = lock(&of.wanted);
        let made = of.made.get_or_init(|| made);
        // In the order in which an observation begins.
        made.switch_exits(wanted.has_exits);
        made.switch_entry(wanted.entry);
    }

    /// The number of functions whose probes could not be made.
    pub(super) fn refused(&self) -> usize {
        let made = self.functions.iter().filter_map(|of| of.made.get());
        made.filter(|made| made.timed.is_none()).count()
    }

    /// Deactivates all probes.
    pub(super) fn deactivate(&self) -> Result<(), Error> {
        let made = self.functions.iter().filter_map(|of| of.made.get());
        let probes = made.flat_map(|made| made.timed.iter().chain(&made.counted).chain(&made.exits));
        Ok(deactivate_all(probes).into_iter().collect::<Result<_, _>>()?)
    }
}

impl Probes for Switches {
    fn switch_entry(&self, function: usize, to: EntryProbe) -> bool {
        let of = &self.functions[function];
        let mut wanted = lock(&of.wanted);
        let changes = std::mem::replace(&mut wanted.entry, to) != to;
        let made = of.made.get();
        made.iter().for_each(|made| made.switch_entry(to));
        changes && made.is_some()
    }

    fn switch_exits(&self, function: usize, on: bool) -> bool {
        let of = &self.functions[function];
        let mut wanted = lock(&of.wanted);
        let changes = std::mem::replace(&mut wanted.has_exits, on) != on;
        let made = of.made.get();
        made.iter().for_each(|made| made.switch_exits(on));
        changes && made.is_some()
    }
}

impl Made {
    fn switch_entry(&self, to: EntryProbe) {
        switch(&self.timed, to == EntryProbe::Timed);
        switch(&self.counted, to == EntryProbe::Counted);
    }

    fn switch_exits(&self, on: bool) {
        switch(&self.exits, on);
    }
}

fn switch<'a>(probes: impl IntoIterator<Item = &'a Probe>, on: bool) {
    for probe in probes {
        let _ = if on { probe.activate() } else { probe.deactivate() };
    }
}

/// The kind of a probe that calls this function with these values.
fn kind(function: NativeFn, values: &[Bound]) -> Kind {
    Kind::Native { function, values: values.into() }
}

/// The probes of a function, in this order: timed, counted, and exits.
fn specs(index: u32, value: u64, tail_calls: impl IntoIterator<Item = u32>) -> Vec<ProbeSpec> {
    // SAFETY: the three functions do not unwind, take any values, and may be called at any time by
    // any thread; they use little of the stack, and no store.
    let [entered, exited, counted] = unsafe {
        [
            NativeFn::new(embedded::entered as extern "C" fn(u64, u64, u64)),
            NativeFn::new(embedded::exited as extern "C" fn(u64, u64)),
            NativeFn::new(embedded::counted as extern "C" fn(u64)),
        ]
    };
    let value = Bound::Const(value);
    let at = |place, kind| ProbeSpec { location: Location { function: index, place }, kind };
    let tail_calls = tail_calls.into_iter().map(|offset| Place::Instruction { offset });
    let exits = std::iter::once(Place::Exit).chain(tail_calls);
    let mut specs = vec![
        at(Place::Entry, kind(entered, &[value, Bound::Frame, Bound::ReturnAddress])),
        at(Place::Entry, kind(counted, &[value])),
    ];
    specs.extend(exits.map(|place| at(place, kind(exited, &[value, Bound::Frame]))));
    specs
}

/// Makes the probes of a function, except those that cannot be made: a function may have no exit,
/// or exceed a limit of the compiler. If no entry can be timed, there are none.
fn make(module: &Module, index: u32, value: u64) -> Made {
    let mut probes =
        module.probes(&specs(index, value, tail_calls(module, index))).into_iter().map(Result::ok);
    match [probes.next().flatten(), probes.next().flatten()] {
        [None, _] => Made::default(),
        [timed, counted] => Made { timed, counted, exits: probes.flatten().collect() },
    }
}

/// The offsets of a function's tail calls in its body.
fn tail_calls(module: &Module, function: u32) -> Vec<u32> {
    let Some(body) = module.function(function).and_then(|function| function.body()) else {
        return Vec::new();
    };
    let start = body.range().start;
    let instructions =
        body.instructions().filter(|instruction| CallForm::is_tail_call(instruction.operator()));
    instructions.map(|instruction| (instruction.offset() - start) as u32).collect()
}
