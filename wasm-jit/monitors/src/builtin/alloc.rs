//! `alloc`: the memory that the program has allocated, by call path.
//!
//! Allocators are functions with known names and parameters. Probes at their entries take the
//! arguments, and probes at their exits the results. If an allocator calls another one, only the
//! outermost call of a thread counts.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use wasm_jit::probes::{
    Bound, Callback, Frame, GenericFn, Kind, Location, Place, ProbeSpec, UnwoundWatch, Values,
};
use wasm_jit::{FunctionInfo, ValType};
use wasm_jit_hooks::{CallForm, Period};

use super::contexts::{CONTEXTS_OPTION, Contexts, Current, Measure, name};
use super::stacks::{Function, Node, Stacks};
use crate::lock::lock;
use crate::names::Names;
use crate::{Cell, Description, Error, Monitor, OptionInfo, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "alloc",
    summary: "Allocated memory by paths of calls: live bytes, peak, leaks",
    details: "Follows the functions of an allocator by their names: those of C (malloc, calloc, realloc, \
              reallocarray, aligned_alloc, memalign, posix_memalign, valloc, free; also with the prefixes of dlmalloc, \
              emmalloc, mimalloc and Emscripten), operator new and operator delete of C++, those of Rust \
              (__rust_alloc, __rdl_alloc, __rg_alloc and the like), of AssemblyScript (~lib/rt/tlsf/__alloc) and TinyGo \
              (runtime.alloc); others are named by options. If one calls another, the outermost call counts. \
              Bytes are those that the program has asked for, without \
              the allocator's own. Blocks that are live when the program has ended were not freed. The peak is the \
              largest sum of live bytes; that of a path is its own. Memory that was allocated while the monitor \
              was off is unknown when it is freed; memory that a garbage collector frees without a call is live until \
              its address is allocated again. Paths are those of calltree: a function that is called again by \
              itself or what it calls is on the path once; [other functions] are those that are not observed. Calls of allocators that the compiler has \
              inlined are not seen, nor blocks that one returns by a tail call of another function. Blocks of an instance that \
              has ended are live until another one has its place. Files: a flame graph of live bytes (svg), folded \
              stacks, pprof, speedscope.",
    options: &[
        OptionInfo::repeated(
            "alloc",
            "NAME",
            "this function allocates as malloc does: (size) -> address; may be repeated",
        ),
        OptionInfo::repeated("free", "NAME", "this function frees: (address, ...); may be repeated"),
        OptionInfo::repeated(
            "realloc",
            "NAME",
            "this function changes a size: (address, size) -> address; may be repeated",
        ),
        CONTEXTS_OPTION,
    ],
    example: "alloc{alloc=my_alloc,free=my_free} app.wasm",
    start,
};

/// The operation of an allocator function, with the indices of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Allocate {
        size: u32,
    },
    /// The number of elements and their size.
    AllocateArray {
        count: u32,
        size: u32,
    },
    Reallocate {
        address: u32,
        size: u32,
    },
    ReallocateArray {
        address: u32,
        count: u32,
        size: u32,
    },
    Free {
        address: u32,
    },
    /// Stores the address of the block where the first of these parameters points to, and returns
    /// 0, or else an error.
    AllocateAt {
        place: u32,
        size: u32,
    },
}

/// The functions of C.
const OF_C: &[(&str, Does)] = &[
    ("malloc", Does::Allocate { size: 0 }),
    ("calloc", Does::AllocateArray { count: 0, size: 1 }),
    ("realloc", Does::Reallocate { address: 0, size: 1 }),
    ("reallocarray", Does::ReallocateArray { address: 0, count: 1, size: 2 }),
    ("aligned_alloc", Does::Allocate { size: 1 }),
    ("memalign", Does::Allocate { size: 1 }),
    ("posix_memalign", Does::AllocateAt { place: 0, size: 2 }),
    ("valloc", Does::Allocate { size: 0 }),
    ("pvalloc", Does::Allocate { size: 0 }),
    ("free", Does::Free { address: 0 }),
];

/// The prefixes of the functions of C in libraries: of dlmalloc in wasi-libc and Emscripten, of
/// Emscripten's other allocators, and of names that programs cannot replace.
const PREFIXES_OF_C: &[&str] = &["", "dl", "emmalloc_", "mi_", "emscripten_builtin_", "__libc_"];

/// The functions of Rust: those that programs call, of the default allocator, and of others.
const PREFIXES_OF_RUST: &[&str] = &["__rust_", "__rdl_", "__rg_"];
const OF_RUST: &[(&str, Does)] = &[
    ("alloc", Does::Allocate { size: 0 }),
    ("alloc_zeroed", Does::Allocate { size: 0 }),
    ("realloc", Does::Reallocate { address: 0, size: 3 }),
    ("dealloc", Does::Free { address: 0 }),
];

/// The functions of AssemblyScript's runtimes, in `~lib/rt/NAME/`.
const OF_ASSEMBLYSCRIPT: &[(&str, Does)] = &[
    ("__alloc", Does::Allocate { size: 0 }),
    ("__realloc", Does::Reallocate { address: 0, size: 1 }),
    ("__free", Does::Free { address: 0 }),
];

const OF_TINYGO: &[(&str, Does)] = &[
    ("runtime.alloc", Does::Allocate { size: 0 }),
    ("runtime.realloc", Does::Reallocate { address: 0, size: 1 }),
    ("runtime.free", Does::Free { address: 0 }),
];

/// What a function with this name does, which is demangled or not.
fn known(name: &str) -> Option<Does> {
    let of = |known: &[(&str, Does)], prefixes: &[&str], name: &str| {
        let rests = prefixes.iter().filter_map(|prefix| name.strip_prefix(prefix));
        let mut found = rests.filter_map(|rest| known.iter().find(|(known, _)| *known == rest));
        found.next().map(|(_, does)| *does)
    };
    // With the path of a crate.
    let of_rust = || of(OF_RUST, PREFIXES_OF_RUST, name.rsplit("::").next()?);
    let of_assemblyscript = || {
        let (_, function) = name.strip_prefix("~lib/rt/")?.split_once('/')?;
        of(OF_ASSEMBLYSCRIPT, &[""], function)
    };
    of(OF_C, PREFIXES_OF_C, name)
        .or_else(|| of(OF_TINYGO, &[""], name))
        .or_else(of_rust)
        .or_else(of_assemblyscript)
        .or_else(|| of_cpp(name))
}

/// The operators of C++, of all types, alignments and kinds of errors, but not those that allocate
/// at an address that they are given.
fn of_cpp(name: &str) -> Option<Does> {
    let (operator, parameters) = name.strip_prefix("operator ")?.split_once('(')?;
    let parameters = parameters.strip_suffix(')')?;
    let pointers = parameters.matches("void*").count();
    match operator {
        "new" | "new[]" if parameters.starts_with("unsigned ") && pointers == 0 => {
            Some(Does::Allocate { size: 0 })
        }
        "delete" | "delete[]" if parameters.starts_with("void*") && pointers == 1 => {
            Some(Does::Free { address: 0 })
        }
        _ => None,
    }
}

impl Does {
    fn parameters(self) -> Vec<u32> {
        match self {
            Self::Allocate { size } => vec![size],
            Self::AllocateArray { count, size } => vec![count, size],
            Self::Reallocate { address, size } => vec![address, size],
            Self::ReallocateArray { address, count, size } => vec![address, count, size],
            Self::Free { address } => vec![address],
            Self::AllocateAt { place, size } => vec![place, size],
        }
    }

    fn has_result(self) -> bool {
        !matches!(self, Self::Free { .. })
    }

    /// The request of a call with these arguments.
    fn request(self, values: &[u64]) -> AllocRequest {
        let none = AllocRequest { free: None, size: None, place: None };
        match (self, values) {
            (Self::Allocate { .. }, [size, ..]) => AllocRequest { size: Some(*size), ..none },
            (Self::AllocateArray { .. }, [count, size, ..]) => {
                AllocRequest { size: Some(count.saturating_mul(*size)), ..none }
            }
            (Self::Reallocate { .. }, [address, size, ..]) => {
                AllocRequest { free: Some(*address), size: Some(*size), ..none }
            }
            (Self::ReallocateArray { .. }, [address, count, size, ..]) => {
                AllocRequest { free: Some(*address), size: Some(count.saturating_mul(*size)), ..none }
            }
            (Self::Free { .. }, [address, ..]) => AllocRequest { free: Some(*address), ..none },
            (Self::AllocateAt { .. }, [place, size, ..]) => {
                AllocRequest { size: Some(*size), place: Some(*place), ..none }
            }
            _ => none,
        }
    }
}

/// A request to an allocator.
#[derive(Clone, Copy, Debug)]
struct AllocRequest {
    free: Option<u64>,
    size: Option<u64>,
    /// Where the address of the block is stored.
    place: Option<u64>,
}

struct Alloc {
    /// `None` if the module has no allocator.
    contexts: Option<Contexts>,
    shared: Arc<Shared>,
    _watch: UnwoundWatch,
}

struct Shared {
    /// Identifies the monitor in the threads.
    number: u64,
    current: Current,
    period: Period,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Indexed by instance and address. Instances that share a memory have the same blocks.
    live: HashMap<(u64, u64), Block>,
    paths: Vec<PathTotals>,
    /// Path indices by functions, the innermost first.
    numbers: HashMap<Vec<u32>, usize>,
    bytes: u64,
    peak: u64,
    allocations: u64,
    allocated: u64,
    frees: u64,
    failed: u64,
    unknown: u64,
    /// Blocks that were allocated again, and whose end was not observed.
    reused: u64,
}

struct Block {
    size: u64,
    path: usize,
}

/// The allocations on one path.
struct PathTotals {
    functions: Vec<u32>,
    live: u64,
    blocks: u64,
    allocated: u64,
    allocations: u64,
    /// The maximum that was live at one time.
    peak: u64,
}

/// Stands for the functions of a path on which no function was observed.
const OTHERS: u32 = u32::MAX - 3;

impl PathTotals {
    fn outermost_first(&self) -> impl Iterator<Item = u32> {
        let others = self.functions.is_empty().then_some(OTHERS);
        self.functions.iter().rev().copied().chain(others)
    }
}

fn name_of(program: &Program<'_>, function: u32) -> Arc<str> {
    if function == OTHERS { "[other functions]".into() } else { name(program, function) }
}

/// A call to an allocator that is being executed: the outermost one of the thread.
struct Running {
    frame: u64,
    asked: AllocRequest,
    path: Vec<u32>,
    /// The instance and the result of a function that has stored the address of the block.
    returned: Option<(u64, u64)>,
    /// The [`Period`] in which it began.
    period: u64,
}

struct Local {
    shared: Weak<Shared>,
    of: u64,
    running: Option<Running>,
}

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let allocators = allocators(setup)?;
    let current = Current::of(setup, Measure::Paths)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let shared = Arc::new(Shared {
        number,
        current: current.clone(),
        period: Period::default(),
        state: Mutex::default(),
    });
    let memory_is_shared = setup
        .module
        .imports()
        .any(|import| matches!(import.ty(), wasm_jit::ExternType::Memory(ty) if ty.is_shared()));
    let instance = if memory_is_shared { Bound::Const(0) } else { Bound::Context };
    // The path is known when the allocator begins.
    let mut probes: BTreeMap<u32, Vec<ProbeSpec>> = BTreeMap::new();
    for (function, does) in &allocators {
        let (of_entry, of_exit, of_tail, does) = (shared.clone(), shared.clone(), shared.clone(), *does);
        let begins = Callback::new(move |values| of_entry.begin(values[0], does.request(&values[1..])));
        let ends = Callback::new(move |values| of_exit.end(values[0], values[1], values.get(2).copied()));
        // The result of a tail call is the result of the function.
        let tail_calls = Callback::new(move |values| of_tail.tail_call(values[0]));
        let index = function.index();
        let specs = probes.entry(index).or_default();
        let mut add = |place, kind| {
            specs.push(ProbeSpec { location: Location { function: index, place }, kind });
        };
        let calling = |callback: &Callback, values: &[Bound]| Kind::Callback {
            function: callback.clone(),
            values: Values::from(values),
        };
        let parameters = does.parameters().into_iter().map(Bound::Local);
        let values: Vec<Bound> = std::iter::once(Bound::Frame).chain(parameters).collect();
        add(Place::Entry, calling(&begins, &values));
        let mut values = vec![Bound::Frame, instance];
        values.extend(does.has_result().then_some(Bound::Result(0)));
        add(Place::Exit, calling(&ends, &values));
        if let Does::AllocateAt { place, .. } = does {
            let of_stored = shared.clone();
            let bytes = match function.ty().params().nth(place as usize) {
                Some(ValType::I64) => 8,
                _ => 4,
            };
            let stored = GenericFn::new(move |frame| {
                of_stored.stored(frame, bytes);
                Ok(())
            });
            add(Place::Exit, Kind::Generic(stored));
        }
        let Some(body) = function.body() else { continue };
        for instruction in body.instructions() {
            if CallForm::is_tail_call(instruction.operator()) {
                let offset = (instruction.offset() - body.range().start) as u32;
                add(Place::Instruction { offset }, calling(&tail_calls, &[Bound::Frame]));
            }
        }
    }
    let contexts = (!allocators.is_empty()).then(|| Contexts::with(setup, current, probes));
    let watched = shared.clone();
    let watch = setup.module.watch_unwound(move |left| {
        watched.with(|running| _ = running.take_if(|running| running.frame <= left.frame));
    });
    Ok(Box::new(Alloc { contexts, shared, _watch: watch }))
}

/// The functions of the module that allocate or free memory.
fn allocators<'m>(setup: &Setup<'m>) -> Result<Vec<(FunctionInfo<'m>, Does)>, Error> {
    let names = Names::of(setup.module);
    let named = [
        (
            "alloc",
            Does::Allocate { size: 0 },
            "with an integer as its first parameter, the size, and one result, the address",
        ),
        ("free", Does::Free { address: 0 }, "with an integer as its first parameter, the address"),
        (
            "realloc",
            Does::Reallocate { address: 0, size: 1 },
            "with integers as its first two parameters, the address and the size, and one result, the address",
        ),
    ];
    let mut found = Vec::new();
    let mut given: Vec<Given<'_>> = Vec::new();
    for (option, does, signature) in named {
        let values = setup.options.all(option);
        given.extend(values.map(|name| Given { option, name, does, signature, exists: false, fits: false }));
    }
    for function in setup.module.functions().filter(|function| function.body().is_some()) {
        let [demangled, unique] = [function.display_name(), names.get(&function)];
        let names = function.name().into_iter().chain(function.exports()).chain([&*demangled, &unique]);
        let names: Vec<&str> = names.collect();
        let given = given.iter_mut().find(|given| names.contains(&given.name));
        let does = given.as_ref().map(|given| given.does);
        let does = does.or_else(|| names.iter().find_map(|name| known(name)));
        let Some(does) = does else { continue };
        let fits = fits(&function, does);
        if let Some(given) = given {
            given.exists = true;
            given.fits |= fits;
        }
        if fits {
            found.push((function, does));
        }
    }
    if let Some(given) = given.iter().find(|given| !given.fits) {
        let function = "the name of a function of the module";
        let expected = match given.exists {
            true => format!("{function} {}", given.signature),
            false => function.to_owned(),
        };
        return Err(Error::Value { option: given.option.to_owned(), value: given.name.to_owned(), expected });
    }
    Ok(found)
}

/// A function that an option names.
struct Given<'o> {
    option: &'static str,
    name: &'o str,
    does: Does,
    signature: &'static str,
    /// Whether there is such a function, and whether one has the signature.
    exists: bool,
    fits: bool,
}

/// Whether a function has the parameters and the result of the operation.
fn fits(function: &FunctionInfo<'_>, does: Does) -> bool {
    let is_integer = |ty: ValType| matches!(ty, ValType::I32 | ValType::I64);
    let ty = function.ty();
    let params: Vec<ValType> = ty.params().collect();
    let has = |index: &u32| params.get(*index as usize).copied().is_some_and(is_integer);
    does.parameters().iter().all(has) && (!does.has_result() || ty.results().len() == 1)
}

impl Shared {
    fn with(self: &Arc<Self>, function: impl FnOnce(&mut Option<Running>)) {
        // Programs that run while their thread is ending are not observed.
        let _ = LOCALS.try_with(|locals| {
            let Ok(mut locals) = locals.try_borrow_mut() else { return };
            let known = locals.iter().position(|local| local.of == self.number);
            let at = known.unwrap_or_else(|| {
                locals.retain(|local| local.shared.strong_count() > 0);
                locals.push(Local { shared: Arc::downgrade(self), of: self.number, running: None });
                locals.len() - 1
            });
            let running = &mut locals[at].running;
            // It may have ended while the monitor was off.
            running.take_if(|running| running.period != self.period.current());
            function(running);
        });
    }

    fn begin(self: &Arc<Self>, frame: u64, asked: AllocRequest) {
        self.with(|running| {
            // A frame further out is still running; one further in has ended.
            if running.as_ref().is_none_or(|running| running.frame <= frame) {
                let path = self.current.path();
                let period = self.period.current();
                *running = Some(Running { frame, asked, path, returned: None, period });
            }
        });
    }

    fn end(self: &Arc<Self>, frame: u64, instance: u64, result: Option<u64>) {
        self.with(|running| {
            let known = running.as_mut().filter(|running| running.frame == frame);
            if let Some(known) = known.filter(|running| running.asked.place.is_some()) {
                known.returned = result.map(|result| (instance, result));
            } else if let Some(ended) = running.take_if(|running| running.frame == frame) {
                self.state().record(ended, instance, result);
            }
        });
    }

    /// A function that has stored the address of a block has returned: the address has this size.
    fn stored(self: &Arc<Self>, frame: &mut Frame<'_>, bytes: usize) {
        let mut ended = None;
        self.with(|running| {
            ended = running.take_if(|running| running.frame == frame.number() && running.returned.is_some());
        });
        let Some(ended) = ended else { return };
        let (Some((instance, code)), Some(place)) = (ended.returned, ended.asked.place) else { return };
        let mut address = [0; 8];
        let is_there = code == 0 && frame.read_memory(0, place, &mut address[..bytes]).is_ok();
        let address = if is_there { u64::from_le_bytes(address) } else { 0 };
        self.state().record(ended, instance, Some(address));
    }

    /// If the callee is an allocator function, its request replaces the one of this function.
    fn tail_call(self: &Arc<Self>, frame: u64) {
        self.with(|running| _ = running.take_if(|running| running.frame == frame));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn record(&mut self, Running { asked, path, .. }: Running, instance: u64, result: Option<u64>) {
        let has_failed = asked.size.is_some_and(|size| result == Some(0) && size > 0);
        if has_failed {
            // A block whose size cannot be changed stays.
            self.failed += 1;
            return;
        }
        if let Some(address) = asked.free.filter(|address| *address != 0) {
            self.free(instance, address);
        }
        let (Some(size), Some(address)) = (asked.size, result) else { return };
        if address == 0 {
            return;
        }
        // The block was freed while the monitor was off, or by a garbage collector.
        self.reused += u64::from(self.remove(instance, address));
        let path = match self.numbers.get(&path) {
            Some(number) => *number,
            None => {
                let functions = path.clone();
                self.paths.push(PathTotals {
                    functions,
                    live: 0,
                    blocks: 0,
                    allocated: 0,
                    allocations: 0,
                    peak: 0,
                });
                self.numbers.insert(path, self.paths.len() - 1);
                self.paths.len() - 1
            }
        };
        let of_path = &mut self.paths[path];
        of_path.live += size;
        of_path.blocks += 1;
        of_path.allocated += size;
        of_path.allocations += 1;
        of_path.peak = of_path.peak.max(of_path.live);
        self.allocations += 1;
        self.allocated += size;
        self.bytes += size;
        self.peak = self.peak.max(self.bytes);
        self.live.insert((instance, address), Block { size, path });
    }

    fn free(&mut self, instance: u64, address: u64) {
        self.frees += 1;
        if !self.remove(instance, address) {
            self.unknown += 1;
        }
    }

    /// Removes a block, if there is one.
    fn remove(&mut self, instance: u64, address: u64) -> bool {
        let Some(Block { size, path }) = self.live.remove(&(instance, address)) else { return false };
        self.bytes -= size;
        self.paths[path].live -= size;
        self.paths[path].blocks -= 1;
        true
    }
}

impl Monitor for Alloc {
    fn activate(&self) -> Result<(), Error> {
        self.shared.period.begin();
        self.contexts.as_ref().map_or(Ok(()), Contexts::activate)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.shared.period.end();
        self.contexts.as_ref().map_or(Ok(()), Contexts::deactivate)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        if self.contexts.is_none() {
            let note = "  The module has no function with the name of an allocator's: the options alloc, free and \
                        realloc name others.\n";
            report.text(note);
        }
        let state = self.shared.state();
        report.value("live bytes", state.bytes);
        report.value("live blocks", state.live.len());
        report.value("peak bytes", state.peak);
        report.value("allocated bytes", state.allocated);
        report.value("allocations", state.allocations);
        report.value("frees", state.frees);
        if state.failed > 0 {
            report.value("failed allocations", state.failed);
        }
        if state.reused > 0 {
            report.value("blocks allocated again", state.reused);
        }
        if state.unknown > 0 {
            report.value("frees of unknown blocks", state.unknown);
        }
        let left_out = self.contexts.as_ref().map_or(0, |contexts| contexts.merged().left_out());
        if left_out > 0 {
            report.value("calls left out", left_out);
        }
        let mut paths: Vec<&PathTotals> = state.paths.iter().collect();
        paths.sort_by_key(|path| (Reverse(path.live), Reverse(path.allocated), path.functions.clone()));
        let columns =
            ["live bytes", "share", "live blocks", "peak bytes", "allocated bytes", "allocations", "path"];
        let mut table = Table::new("paths", columns);
        for path in &paths {
            let names: Vec<Arc<str>> =
                path.outermost_first().map(|function| name_of(program, function)).collect();
            table.row([
                path.live.into(),
                Cell::share(path.live, state.bytes),
                path.blocks.into(),
                path.peak.into(),
                path.allocated.into(),
                path.allocations.into(),
                names.join(" > ").into(),
            ]);
        }
        report.table(table);
        if let Some(contexts) = &self.contexts {
            contexts.report_refused(report);
        }
        stacks(program, &paths).add_files(report);
    }
}

/// Live bytes by call path.
fn stacks(program: &Program<'_>, paths: &[&PathTotals]) -> Stacks {
    let mut numbers: HashMap<u32, usize> = HashMap::new();
    let mut places: HashMap<(Option<usize>, u32), usize> = HashMap::new();
    let (mut functions, mut nodes) = (Vec::new(), Vec::<Node>::new());
    for path in paths {
        let mut at = None;
        for index in path.outermost_first() {
            let function = *numbers.entry(index).or_insert_with(|| {
                functions.push(Function { name: name_of(program, index), source: None });
                functions.len() - 1
            });
            at = Some(*places.entry((at, index)).or_insert_with(|| {
                nodes.push(Node { parent: at, function, weight: 0, count: 0 });
                nodes.len() - 1
            }));
        }
        if let Some(at) = at {
            nodes[at].weight += path.live;
            nodes[at].count += path.blocks;
        }
    }
    Stacks { what: "live memory", sampled: None, unit: "bytes", counted: "blocks", functions, nodes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_of_languages_are_known_by_their_names() {
        let (first, second) = (Does::Allocate { size: 0 }, Does::Allocate { size: 1 });
        let free = Does::Free { address: 0 };
        for (name, expected) in [
            ("malloc", Some(first)),
            ("dlmemalign", Some(second)),
            ("posix_memalign", Some(Does::AllocateAt { place: 0, size: 2 })),
            ("dlposix_memalign", Some(Does::AllocateAt { place: 0, size: 2 })),
            ("emmalloc_free", Some(free)),
            ("emscripten_builtin_malloc", Some(first)),
            ("__libc_free", Some(free)),
            ("aligned_alloc", Some(second)),
            ("reallocarray", Some(Does::ReallocateArray { address: 0, count: 1, size: 2 })),
            ("__rust_alloc", Some(first)),
            ("__rustc::__rdl_alloc_zeroed", Some(first)),
            ("__rustc::__rust_realloc", Some(Does::Reallocate { address: 0, size: 3 })),
            ("__rg_dealloc", Some(free)),
            ("operator new(unsigned long)", Some(first)),
            ("operator new[](unsigned int, std::align_val_t)", Some(first)),
            ("operator new(unsigned long, std::align_val_t, std::nothrow_t const&)", Some(first)),
            ("operator delete(void*)", Some(free)),
            ("operator delete[](void*, unsigned long, std::align_val_t)", Some(free)),
            ("operator delete(void*, std::nothrow_t const&)", Some(free)),
            ("operator new(unsigned long, void*)", None),
            ("operator delete(void*, void*)", None),
            ("Foo::operator new(unsigned long)", None),
            ("~lib/rt/tlsf/__alloc", Some(first)),
            ("~lib/rt/stub/__free", Some(free)),
            ("~lib/rt/itcms/__new", None),
            ("runtime.alloc", Some(first)),
            ("my::malloc", None),
            ("__rust_alloc_error_handler", None),
            ("", None),
        ] {
            assert_eq!(known(name), expected, "{name}");
        }
    }
}
