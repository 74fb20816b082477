//! [`slice()`]: derives the trace of one function's calls.
//!
//! 1. The program runs with the host of the trace. Probes at the function's entry and exit, and a
//!    watch for frames that are left otherwise, delimit its outermost calls.
//! 2. The events inside such a call are copied, including calls by the host and recursive calls.
//! 3. Everything outside is attributed to the host. A copy of the memories, tables and mutable
//!    globals is kept as they are when the slice is replayed; at the next entry, the differences
//!    become events, which are followed by one for the call. Only blocks of memory that were
//!    written are compared: probes at all stores record them ([`Dirty`]). Tables are compared if
//!    probes at the instructions that change tables have fired, or the host has changed a table.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use wasm_jit::probes::{Callback, GenericFn, Kind, Location, Place, ProbeSpec};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{AsContextMut, FunctionInfo, Instance, Module, Val};
use wasm_jit_hooks::{AccessKind, FunctionEventKind, functions};

use super::accesses::{self, Access, Probed};
use super::any_store::AnyStore;
use super::dirty::Dirty;
use super::error::{Error, unsupported};
use super::event::Event;
use super::exception;
use super::functions::{Functions, in_instance, of_global};
use super::limits::Limits;
use super::objects;
use super::rerun::{Observer, Run, rerun};
use super::state::Elements;
use super::trace::Writer;
use super::value::{Value, mutable_globals};
use super::writes;

/// Writes a trace in which the host calls only this function, as often as it was called from
/// outside of itself in the recorded run, and with the memories, tables and globals that it found
/// then. Returns the number of calls. Runs the program on this thread, several times slower than
/// usual; takes memory for a copy of the program's memories. No other instance of the module may
/// run at the same time.
///
/// [`reduce`](super::reduce) removes the bytes from the slice that the function does not read, and
/// verifies that the slice repeats.
///
/// # Errors
/// As [`generate`](super::generate) for the trace; [`Error::Mismatch`] with the first event that
/// does not repeat; [`Error::NotCalled`]; [`Error::Unsupported`] if the function is imported or
/// ends in tail calls, if a global, or a table that is changed outside of the calls, contains a
/// reference to something outside of the module, or if the function is called again after a trap or
/// an exception has left it.
pub fn slice(
    module: &Module,
    function: u32,
    trace: impl Read + 'static,
    out: impl Write + Send + 'static,
) -> Result<u64, Error> {
    slice_within(&Limits::default(), module, function, trace, out)
}

/// As [`slice()`], with limits for the program.
///
/// # Errors
/// As [`slice()`]; [`Error::Failed`] also if the program reaches a limit.
pub fn slice_within(
    limits: &Limits,
    module: &Module,
    function: u32,
    trace: impl Read + 'static,
    out: impl Write + Send + 'static,
) -> Result<u64, Error> {
    let found = accesses::delimited(module, function)?;
    let slice = Shared(Arc::new(Mutex::new(Slice::new(module, function, Writer::new(out)?))));
    slice.lock(|slice| {
        slice.out.write(&Event::Start {
            module: crc32fast::hash(module.bytes()),
            length: module.bytes().len() as u64,
        })
    })?;
    let result = run(limits, module, &found, trace, &slice);
    slice.lock(|slice| {
        // The reason why the run has failed.
        slice.failed.take().map_or(result, Err)?;
        // A reader needs all of it, although the writer exists until the last probe is removed.
        slice.out.close()?;
        match slice.calls {
            0 => Err(Error::NotCalled { function: accesses::name(module, function) }),
            calls => Ok(calls),
        }
    })
}

fn run<R: Read + 'static>(
    limits: &Limits,
    module: &Module,
    function: &FunctionInfo<'_>,
    trace: R,
    slice: &Shared,
) -> Result<(), Error> {
    let (index, observed) = (function.index(), slice.clone());
    // It is called before that of the functions below.
    let _exceptions = module.watch_unwound(move |frame| {
        if frame.function == index {
            observed.lock(|slice| slice.left_by = exception::unwound(frame, None));
        }
    });
    let observed = slice.clone();
    // These probes come before those below at the same locations.
    let _calls = functions(
        module,
        |called| called == index,
        move |event| {
            observed.lock(|slice| match event.kind {
                FunctionEventKind::Entry => slice.depth += 1,
                FunctionEventKind::Unwound => slice.unwound(),
                _ => slice.depth -= 1,
            });
        },
    )
    .map_err(accesses::refused)?;
    let _values = accesses::make(module, &boundary::<R>(function, slice)).map_err(accesses::refused)?;
    let observed = slice.clone();
    let stored = accesses::callback(move |access| observed.lock(|slice| slice.stores(access)));
    let observed = slice.clone();
    let table_changes = Callback::new(move |_| observed.lock(|slice| slice.are_tables_dirty = true));
    let probed = Probed::new(module, move |function| {
        let mut specs = accesses::specs(function, &stored, |kind| {
            matches!(kind, AccessKind::Store | AccessKind::ReadModifyWrite)
        });
        let changes = accesses::instructions(function).filter(|(_, operator)| changes_table(operator));
        specs.extend(changes.map(|(place, _)| {
            let kind = Kind::Callback { function: table_changes.clone(), values: [].into() };
            ProbeSpec { location: Location { function: function.index(), place }, kind }
        }));
        specs
    })?;
    rerun(module, trace, slice.clone(), limits, |store, instance| {
        let functions = store.data().functions().clone();
        slice.lock(|slice| slice.begin(&mut store.as_context_mut(), instance, functions))
    })?;
    probed.is_complete()
}

/// Probes that pass the arguments and the results of the function.
fn boundary<R: Read + 'static>(function: &FunctionInfo<'_>, slice: &Shared) -> Vec<ProbeSpec> {
    let (parameters, results) = (function.ty().params().len() as u32, function.ty().results().len() as u32);
    let (entered, left) = (slice.clone(), slice.clone());
    let at_entry = GenericFn::new(move |frame| {
        let locals = (0..parameters).map(|local| frame.local(local));
        let arguments: Vec<Val> = locals.collect::<Result<_, _>>().map_err(wasm_jit::Error::host)?;
        let instance = frame.instance();
        let mut store = frame.store::<Run<R, Shared>>().expect("no other instance runs");
        entered.checked(|slice| slice.enter(&mut store, instance, &arguments))
    });
    let at_exit = GenericFn::new(move |frame| {
        let operands = (0..results).rev().map(|operand| frame.operand(operand));
        let results: Vec<Val> = operands.collect::<Result<_, _>>().map_err(wasm_jit::Error::host)?;
        let instance = frame.instance();
        let mut store = frame.store::<Run<R, Shared>>().expect("no other instance runs");
        left.checked(|slice| slice.leave(&mut store, instance, &results))
    });
    [(Place::Entry, at_entry), (Place::Exit, at_exit)]
        .map(|(place, closure)| ProbeSpec {
            location: Location { function: function.index(), place },
            kind: Kind::Generic(closure),
        })
        .into()
}

fn changes_table(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::TableSet { .. }
            | Operator::TableGrow { .. }
            | Operator::TableFill { .. }
            | Operator::TableCopy { .. }
            | Operator::TableInit { .. }
    )
}

/// A memory.
struct Memory {
    /// The bytes as they are when the slice is replayed, except for dirty blocks.
    known: Vec<u8>,
    dirty: Dirty,
}

impl Memory {
    /// Takes the dirty parts of the memory, which has this length now. Nothing is dirty afterwards.
    fn take_dirty(&mut self, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.known.resize(length, 0);
        let within = move |address: u64| (address as usize).min(length);
        self.dirty.take().into_iter().map(move |range| within(range.start)..within(range.end))
    }
}

struct Slice {
    function: u32,
    /// The name of the function.
    name: String,
    out: Writer,
    /// The number of frames of the function.
    depth: u32,
    /// Whether a call to it is being copied.
    is_inside: bool,
    memories: Vec<Memory>,
    /// The mutable globals by index, as they are when the slice is replayed; `None` for a reference
    /// that cannot be recorded.
    globals: Vec<(u32, Option<Value>)>,
    /// The functions of the replay, once it has begun.
    functions: Functions,
    /// The tables as they are when the slice is replayed, unless they are dirty.
    tables: Vec<Elements>,
    /// Whether a table may have changed.
    are_tables_dirty: bool,
    /// The event for the reason why a frame of the function is left.
    left_by: Option<Event>,
    /// Whether a call was left by a failure or an exception.
    has_failed: bool,
    /// Whether the trace has ended, and the program with it.
    has_ended: bool,
    calls: u64,
    failed: Option<Error>,
}

impl Slice {
    fn new(module: &Module, function: u32, out: Writer) -> Self {
        Self {
            function,
            name: accesses::name(module, function),
            out,
            depth: 0,
            is_inside: false,
            memories: Vec::new(),
            globals: Vec::new(),
            functions: Functions::new(module),
            tables: Vec::new(),
            are_tables_dirty: false,
            left_by: None,
            has_failed: false,
            has_ended: false,
            calls: 0,
            failed: None,
        }
    }

    /// Copies the state of a new instance.
    fn begin(
        &mut self,
        store: &mut dyn AnyStore,
        instance: Instance,
        functions: Functions,
    ) -> Result<(), Error> {
        self.functions = functions;
        objects::refuse(store, instance)?;
        let memories = (0..).map_while(|index| store.memory(instance, index));
        let known = memories.map(|memory| store.bytes(memory).to_vec());
        self.memories = known.map(|known| Memory { known, dirty: Dirty::default() }).collect();
        self.tables = Elements::of_all(store, instance, &self.functions);
        for (index, global) in mutable_globals(store, instance) {
            self.globals.push((index, of_global(store, instance, &self.functions, global)));
        }
        Ok(())
    }

    /// The program stores bytes, inside or outside.
    fn stores(&mut self, access: Access) {
        if let Some(memory) = self.memories.get_mut(access.memory as usize) {
            memory.dirty.insert(access.address, access.size);
        }
    }

    /// The function was entered.
    fn enter(
        &mut self,
        store: &mut dyn AnyStore,
        instance: Instance,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let function = self.function;
        if self.is_inside {
            return Ok(());
        }
        if self.has_failed {
            let what = format!("`{}`, which is called again after it has failed", self.name);
            return Err(unsupported(what));
        }
        let arguments = self.values(store, instance, arguments)?;
        self.changed_outside(store, instance)?;
        self.out.write(&Event::Enter { function, arguments })?;
        self.is_inside = true;
        self.calls += 1;
        Ok(())
    }

    /// Writes the changes outside of the calls as events of the host.
    fn changed_outside(&mut self, store: &mut dyn AnyStore, instance: Instance) -> Result<(), Error> {
        for (index, memory) in (0..).zip(&mut self.memories) {
            let handle = store.memory(instance, index).expect("memories remain");
            let now = store.bytes(handle);
            let pages = (now.len() - memory.known.len()) as u64 / store.memory_type(handle).page_size();
            if pages > 0 {
                self.out.write(&Event::Grow { memory: index, pages })?;
            }
            for range in memory.take_dirty(now.len()) {
                let start = range.start;
                let (known, now) = (&mut memory.known[range.clone()], &now[range]);
                for (from, to) in writes::changed(known, now) {
                    let (address, bytes) = ((start + from) as u64, now[from..to].to_vec());
                    self.out.write(&Event::Write { memory: index, address, bytes })?;
                }
                known.copy_from_slice(now);
            }
        }
        if self.are_tables_dirty {
            for (index, known) in (0..).zip(&self.tables) {
                let out = &mut |event| self.out.write(&event);
                known.write_changes(index, store, instance, &self.functions, out)?;
            }
            self.take_tables(store, instance);
        }
        for (global, known) in &mut self.globals {
            let now = global_of(store, instance, &self.functions, *global);
            let value = now.ok_or_else(|| unsupported(format!("the reference in global {global}")))?;
            if now != *known {
                self.out.write(&Event::SetGlobal { global: *global, value })?;
                *known = now;
            }
        }
        Ok(())
    }

    /// Records the tables as they are now.
    fn take_tables(&mut self, store: &mut dyn AnyStore, instance: Instance) {
        self.tables = Elements::of_all(store, instance, &self.functions);
        self.are_tables_dirty = false;
    }

    /// The function returns.
    fn leave(&mut self, store: &mut dyn AnyStore, instance: Instance, results: &[Val]) -> Result<(), Error> {
        if self.depth > 0 || !self.is_inside {
            return Ok(());
        }
        let results = self.values(store, instance, results)?;
        self.out.write(&Event::Leave { results })?;
        self.is_inside = false;
        // The replay has changed all of this as well.
        for (index, memory) in (0..).zip(&mut self.memories) {
            let handle = store.memory(instance, index).expect("memories remain");
            let now = store.bytes(handle);
            for range in memory.take_dirty(now.len()) {
                memory.known[range.clone()].copy_from_slice(&now[range]);
            }
        }
        if self.are_tables_dirty {
            self.take_tables(store, instance);
        }
        for (global, known) in &mut self.globals {
            *known = global_of(store, instance, &self.functions, *global);
        }
        Ok(())
    }

    fn values(&self, store: &dyn AnyStore, instance: Instance, values: &[Val]) -> Result<Vec<Value>, Error> {
        let recorded = |value| in_instance(value, instance, &self.functions, store);
        let recorded = values.iter().map(|value| {
            recorded(value).ok_or_else(|| unsupported(format!("a reference ({}) that is passed", value.ty())))
        });
        recorded.collect()
    }

    /// A trap, an exception, a failure of the host or the end of the trace leaves the function.
    fn unwound(&mut self) {
        self.depth -= 1;
        if self.depth > 0 || !self.is_inside {
            return;
        }
        self.is_inside = false;
        self.has_failed = true;
        if !self.has_ended
            && let Some(event) = self.left_by.take()
            && let Err(error) = self.out.write(&event)
        {
            self.failed.get_or_insert(error);
        }
    }

    /// Copies an event of the trace.
    fn reads(&mut self, event: Option<&Event>) -> Result<(), Error> {
        match event {
            None => self.has_ended = true,
            Some(event) if event.is_import() || event.is_function() || self.is_inside => {
                self.are_tables_dirty |= event.is_of_table();
                self.out.write(event)?;
            }
            Some(Event::Snapshot) => {
                self.out.write(&Event::Snapshot)?;
                self.memories.iter_mut().for_each(|memory| memory.known.fill(0));
                self.tables.iter_mut().for_each(Elements::clear);
                self.are_tables_dirty = true;
            }
            Some(event @ (Event::DropData { .. } | Event::DropElements { .. })) => self.out.write(event)?,
            Some(event) => self.are_tables_dirty |= event.is_of_table(),
        }
        Ok(())
    }
}

fn global_of(
    store: &mut dyn AnyStore,
    instance: Instance,
    functions: &Functions,
    index: u32,
) -> Option<Value> {
    let global = store.global(instance, index).expect("globals remain");
    of_global(store, instance, functions, global)
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Slice>>);

impl Shared {
    fn lock<R>(&self, run: impl FnOnce(&mut Slice) -> R) -> R {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps an error, which ends the program.
    fn checked(&self, run: impl FnOnce(&mut Slice) -> Result<(), Error>) -> Result<(), wasm_jit::Error> {
        self.lock(|slice| {
            run(slice).map_err(|error| {
                slice.failed.get_or_insert(error);
                wasm_jit::Error::host("the slice ends here")
            })
        })
    }
}

impl Observer for Shared {
    fn reads(&mut self, event: Option<&Event>) -> Result<(), Error> {
        self.lock(|slice| slice.reads(event))
    }

    fn writes(&mut self, memory: u32, address: u64, length: usize) {
        let size = length as u64;
        self.lock(|slice| slice.stores(Access { is_read: false, memory, address, size }));
    }
}
