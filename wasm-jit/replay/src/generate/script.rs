//! [`Script`]: the actions of the host, from a trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

use wasm_jit::wasmparser as wp;

use super::program::{DATA, ELEMENTS, Program};
use super::values::{fits, null, parsed_type};
use crate::error::{Error, not_generated};
use crate::event::{Event, Exception};
use crate::initializers;
use crate::stops::Events;
use crate::value::{Type, Value};

/// An action of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Adds pages to a memory.
    Grow { memory: u32, pages: u64 },
    /// Copies bytes of [`Script::bytes`] to a memory.
    Write { memory: u32, address: u64, from: u32, length: u32 },
    /// Sets a global.
    SetGlobal { global: u32, value: Value },
    /// Adds null elements to a table.
    GrowTable { table: u32, elements: u64, null: Value },
    /// Sets an element of a table.
    SetElement { table: u32, element: u64, value: Value },
    /// Makes a data segment empty.
    DropData { segment: u32 },
    /// Makes an element segment empty.
    DropElements { segment: u32 },
    /// Calls a function of the program. Not inline: it is much larger than the others.
    Enter(Box<Enter>),
}

/// The end of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// The trace ended before the call did.
    #[default]
    Unknown,
    /// The call returned these results.
    Returned(Vec<Value>),
    /// The call threw this exception.
    Threw(Exception),
    /// The call ended with another error.
    Failed,
}

/// A call to a function of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Enter {
    pub(super) function: u32,
    pub(super) arguments: Vec<Value>,
    pub(super) outcome: Outcome,
    /// The number of the event that ended the call.
    pub(super) end: u64,
}

/// A call to an imported function.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    /// The number of the call's event.
    pub(super) event: u64,
    pub(super) arguments: Vec<Value>,
    pub(super) actions: Vec<Action>,
    pub(super) outcome: Outcome,
    /// The number of the event that ended the call.
    pub(super) end: u64,
}

/// The size of an imported memory in pages, or of an imported table, at the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImportedSize {
    pub(super) size: u64,
    pub(super) maximum: Option<u64>,
}

impl ImportedSize {
    /// The size, if it is possible for an import with this minimum in an index space of this size.
    fn new(minimum: u64, size: u64, maximum: Option<u64>, limit: u64) -> Result<Self, &'static str> {
        let highest = maximum.unwrap_or(limit);
        if !(minimum..=highest).contains(&size) || highest > limit {
            return Err("a size that the import cannot have");
        }
        Ok(Self { size, maximum })
    }
}

/// The actions of the host.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) memories: Vec<ImportedSize>,
    pub(super) tables: Vec<ImportedSize>,
    /// The values of imported globals at the start.
    pub(super) globals: Vec<Value>,
    /// The calls to each import, in order; then the calls to each of the other functions.
    pub(super) calls: Vec<Vec<Call>>,
    /// The number of these functions.
    pub(super) functions: u32,
    /// The types of functions that the program does not have.
    pub(super) others: Vec<wp::FuncType>,
    /// The actions that restore the state of an instance that ran before, after it was cleared;
    /// `None` for a new instance.
    pub(super) snapshot: Option<Vec<Action>>,
    /// The actions of the host itself.
    pub(super) host: Vec<Action>,
    /// All bytes that are written, each sequence stored once.
    pub(super) bytes: Vec<u8>,
    /// Whether the host has thrown or caught an exception.
    pub(super) has_exceptions: bool,
    /// Tags that the program does not have, with the values of the first exception with each.
    pub(super) other_tags: BTreeMap<u32, Vec<Value>>,
    /// Functions that are referenced.
    pub(super) references: BTreeSet<u32>,
    /// Whether there are nulls of types other than the most general one of their kind. Then
    /// [`constant`](super::values::constant) makes nulls of `nofunc` and the like, which have all
    /// types of their kind. Otherwise it does not, since not all engines have these types.
    pub(super) has_typed_nulls: bool,
    /// Whether there are references to host values.
    pub(super) has_host_values: bool,
    /// The number of events.
    pub(super) events: u64,
    /// The numbers of the events that a replay reaches, in order: calls of the program and their
    /// ends, the ends of calls to the program, and the first failure.
    pub(super) checkpoints: Vec<u64>,
    /// The last checkpoint, unless it is a failure of the program, which ends the replay earlier.
    pub(super) last: u64,
    /// Whether the trace ends while the program runs.
    pub(super) is_cut: bool,
    /// Whether the trace ends before the run does, while the program or its host runs.
    pub(super) is_incomplete: bool,
}

/// A call that has not ended.
#[derive(Debug)]
enum Running {
    /// A call to the program.
    Program(Enter),
    /// A call to an import or another function: its index in [`Script::calls`], and the index of
    /// the call.
    Import(usize, usize),
}

/// The state of reading a trace.
struct Reading<'a> {
    program: &'a Program,
    script: Script,
    running: Vec<Running>,
    /// The positions of byte sequences, by hash and length.
    known: HashMap<(u64, u32), u32>,
    hasher: RandomState,
    /// Whether the host has called the program.
    has_run: bool,
    failed: bool,
}

impl Script {
    /// Reads a trace, and passes each of its events to `also`.
    pub(super) fn read(
        binary: &[u8],
        program: &Program,
        trace: impl Read,
        mut also: impl FnMut(&Event) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut script = Self::default();
        script.calls.resize_with(program.imports as usize, Vec::new);
        let (running, known, hasher) = Default::default();
        let mut events = Reading { program, script, running, known, hasher, has_run: false, failed: false };
        for event in Events::new(trace) {
            let (event, number) = (event?, events.script.events);
            if let Event::Start { module, length } = event
                && (module, length) != (crc32fast::hash(binary), binary.len() as u64)
            {
                return Err(Error::OtherModule);
            }
            also(&event)?;
            events.event(event).map_err(|what| Error::Mismatch { number, what, values: None })?;
            events.script.events += 1;
        }
        let Script { memories, tables, globals, events: number, .. } = &events.script;
        let Program { imported_memories, imported_tables, imported_globals, .. } = program;
        if (memories.len(), tables.len(), globals.len())
            != (imported_memories.len(), imported_tables.len(), *imported_globals as usize)
        {
            let what = "it does not have the state of all imports";
            return Err(Error::Mismatch { number: *number, what, values: None });
        }
        // The trace of a process that was killed is replayed as far as it goes.
        events.script.is_cut = events.program_runs();
        events.script.is_incomplete = !events.running.is_empty();
        let end = events.script.events;
        while let Some(running) = events.running.pop() {
            if let Running::Program(enter) = running {
                events.act(Action::Enter(Box::new(Enter { end, ..enter })));
            }
        }
        events.script.functions = events.script.calls.len() as u32;
        Ok(events.script)
    }
}

impl Script {
    /// Refuses references to host values in a program that may find out what they are: in a module,
    /// they are references to integers.
    pub(super) fn check_host_values(&self, binary: &[u8]) -> Result<(), Error> {
        if self.has_host_values && converts_host_values(binary)? {
            return Err(not_generated("a reference to a host value, which `any.convert_extern` converts,"));
        }
        Ok(())
    }
}

/// Whether a module has an instruction that makes a value of type `any` from a host value.
fn converts_host_values(binary: &[u8]) -> Result<bool, Error> {
    let mut converts = false;
    let mut look_at = |operators: wp::OperatorsReader<'_>| -> Result<(), Error> {
        for operator in operators {
            converts |= matches!(operator?, wp::Operator::AnyConvertExtern);
        }
        Ok(())
    };
    for payload in wp::Parser::new(0).parse_all(binary) {
        match payload? {
            wp::Payload::CodeSectionEntry(body) => look_at(body.get_operators_reader()?)?,
            section => {
                initializers::visit(section, |_, initializer| look_at(initializer.get_operators_reader()))?;
            }
        }
    }
    Ok(converts)
}

impl Reading<'_> {
    fn event(&mut self, event: Event) -> Result<(), &'static str> {
        let number = self.script.events;
        if number > i32::MAX as u64 {
            return Err("it has more events than can be numbered");
        }
        if self.failed && !matches!(event, Event::Fail { .. }) {
            return Err("the run continues after a failure, which cannot be replayed");
        }
        match event {
            Event::Start { .. } => {}
            Event::ImportMemory { memory, pages, maximum } => self.import_memory(memory, pages, maximum)?,
            Event::ImportTable { table, elements, maximum } => self.import_table(table, elements, maximum)?,
            Event::ImportGlobal { global, value } => self.import_global(global, value)?,
            Event::Function { function, parameters, results } => {
                let known = self.program.functions.len() + self.script.others.len();
                if u32::try_from(known) != Ok(function) {
                    return Err("another number of functions that the module does not have");
                }
                let types = |types: Vec<Type>| types.into_iter().map(parsed_type);
                self.script.others.push(wp::FuncType::new(types(parameters), types(results)));
                self.script.calls.push(Vec::new());
            }
            Event::Snapshot => {
                let is_late = self.has_run || !self.script.host.is_empty();
                if is_late || self.script.snapshot.replace(Vec::new()).is_some() {
                    return Err("a snapshot that is not at the beginning");
                }
            }
            Event::Enter { function, arguments } => {
                let ty = self.program.type_of(function).ok_or("there is no such function")?;
                if self.program_runs() || function < self.program.imports {
                    return Err("a call of the host that is not possible here");
                }
                self.check(&arguments, ty.params())?;
                self.has_run = true;
                self.running.push(Running::Program(Enter {
                    function,
                    arguments,
                    outcome: Outcome::Unknown,
                    end: number,
                }));
            }
            Event::Call { import, arguments } => {
                let functions = self.program.functions.len() as u32;
                let import = match import {
                    import if import < self.program.imports => import as usize,
                    other if other >= functions => (self.program.imports + (other - functions)) as usize,
                    _ => return Err("a call of an import that is not possible here"),
                };
                if !self.program_runs() {
                    return Err("a call of an import that is not possible here");
                }
                let ty = self.type_of(import).ok_or("there is no such function")?;
                self.check(&arguments, ty.params())?;
                let calls = &mut self.script.calls[import];
                self.running.push(Running::Import(import, calls.len()));
                calls.push(Call { event: number, arguments, end: number, ..Call::default() });
                self.reaches(number);
            }
            Event::Return { results } => match self.running.pop() {
                Some(Running::Import(import, call)) => {
                    self.check(&results, self.type_of(import).ok_or("no function")?.results())?;
                    let call = &mut self.script.calls[import][call];
                    (call.outcome, call.end) = (Outcome::Returned(results), number);
                    self.reaches(number);
                }
                _ => return Err("no import is running"),
            },
            Event::Leave { results } => match self.running.pop() {
                Some(Running::Program(enter)) => {
                    self.check(
                        &results,
                        self.program.type_of(enter.function).ok_or("no function")?.results(),
                    )?;
                    let outcome = Outcome::Returned(results);
                    self.act(Action::Enter(Box::new(Enter { outcome, end: number, ..enter })));
                    self.reaches(number);
                }
                _ => return Err("no function of the program is running"),
            },
            Event::Throw(exception) => {
                self.check_exception(&exception)?;
                self.script.has_exceptions = true;
                let outcome = Outcome::Threw(exception);
                match self.running.pop() {
                    Some(Running::Program(enter)) => {
                        self.act(Action::Enter(Box::new(Enter { outcome, end: number, ..enter })));
                    }
                    Some(Running::Import(import, call)) => {
                        let call = &mut self.script.calls[import][call];
                        (call.outcome, call.end) = (outcome, number);
                    }
                    None => return Err("nothing is running"),
                }
                self.reaches(number);
            }
            Event::Fail { .. } => {
                let is_first = !std::mem::replace(&mut self.failed, true);
                if is_first {
                    self.script.checkpoints.push(number);
                }
                match self.running.pop() {
                    Some(Running::Program(enter)) => {
                        self.act(Action::Enter(Box::new(Enter {
                            outcome: Outcome::Failed,
                            end: number,
                            ..enter
                        })));
                    }
                    Some(Running::Import(import, call)) => {
                        let call = &mut self.script.calls[import][call];
                        (call.outcome, call.end) = (Outcome::Failed, number);
                        // Otherwise the function that it called has failed, and the replay fails
                        // there, too.
                        if is_first {
                            self.script.last = number;
                        }
                    }
                    None => return Err("nothing is running"),
                }
            }
            change => {
                if self.program_runs() {
                    return Err("a change by the host while the program runs");
                }
                let action = self.change(change)?;
                self.act(action);
            }
        }
        Ok(())
    }

    fn import_memory(&mut self, memory: u32, pages: u64, maximum: Option<u64>) -> Result<(), &'static str> {
        let is_next = memory as usize == self.script.memories.len();
        let ty = self.program.imported_memories.get(memory as usize).filter(|_| is_next);
        let ty = ty.ok_or("there is no such imported memory")?;
        let page_size_log2 = ty.page_size_log2.unwrap_or(16);
        let limit = if ty.memory64 { u64::MAX >> page_size_log2 } else { 1 << (32 - page_size_log2) };
        self.script.memories.push(ImportedSize::new(ty.initial, pages, maximum, limit)?);
        Ok(())
    }

    fn import_table(&mut self, table: u32, elements: u64, maximum: Option<u64>) -> Result<(), &'static str> {
        let is_next = table as usize == self.script.tables.len();
        let ty = self.program.imported_tables.get(table as usize).filter(|_| is_next);
        let ty = ty.ok_or("there is no such imported table")?;
        let limit = if ty.table64 { u64::MAX } else { u32::MAX.into() };
        self.script.tables.push(ImportedSize::new(ty.initial, elements, maximum, limit)?);
        Ok(())
    }

    fn import_global(&mut self, global: u32, value: Value) -> Result<(), &'static str> {
        let is_next = global as usize == self.script.globals.len() && global < self.program.imported_globals;
        let ty = self.program.globals.get(global as usize).filter(|_| is_next);
        let ty = ty.ok_or("there is no such imported global")?.content_type;
        self.check(&[value], &[ty])?;
        if let Value::Func(Some(_)) = value {
            return Err("a function of the module, before there is an instance");
        }
        self.script.globals.push(value);
        Ok(())
    }

    /// The type of the function whose calls have this index in [`Script::calls`].
    fn type_of(&self, calls: usize) -> Option<wp::FuncType> {
        match calls.checked_sub(self.program.imports as usize) {
            None => self.program.type_of(calls as u32).cloned(),
            Some(other) => self.script.others.get(other).cloned(),
        }
    }

    /// A replay reaches the event with this number.
    fn reaches(&mut self, number: u64) {
        self.script.checkpoints.push(number);
        self.script.last = number;
    }

    fn program_runs(&self) -> bool {
        matches!(self.running.last(), Some(Running::Program(_)))
    }

    /// Adds an action to the innermost running part of the host.
    fn act(&mut self, action: Action) {
        let actions = match self.running.last() {
            Some(Running::Import(import, call)) => &mut self.script.calls[*import][*call].actions,
            _ => match &mut self.script.snapshot {
                Some(snapshot) if !self.has_run => snapshot,
                _ => &mut self.script.host,
            },
        };
        if actions.is_empty() {
            // Most calls have one action.
            actions.reserve_exact(1);
        }
        actions.push(action);
    }

    fn change(&mut self, event: Event) -> Result<Action, &'static str> {
        let memories = &self.program.memories;
        match event {
            Event::Grow { memory, pages } => {
                let ty = memories.get(memory as usize).ok_or("there is no such memory")?;
                if !ty.memory64 && pages > u32::MAX.into() {
                    return Err("more pages than a memory can have");
                }
                Ok(Action::Grow { memory, pages })
            }
            Event::Write { memory, address, bytes } => {
                let ty = memories.get(memory as usize).ok_or("there is no such memory")?;
                if !ty.memory64 && address > u32::MAX.into() {
                    return Err("an address that is too large");
                }
                let (from, length) = (self.bytes(&bytes)?, bytes.len() as u32);
                Ok(Action::Write { memory, address, from, length })
            }
            Event::SetGlobal { global, value } => {
                let ty = self.program.globals.get(global as usize).ok_or("there is no such global")?;
                if !ty.mutable {
                    return Err("a global that is constant");
                }
                self.check(&[value], &[ty.content_type])?;
                Ok(Action::SetGlobal { global, value })
            }
            Event::GrowTable { table, elements } => {
                let ty = *self.program.tables.get(table as usize).ok_or("there is no such table")?;
                if !ty.table64 && elements > u32::MAX.into() {
                    return Err("a table that cannot grow so much");
                }
                let null = null(ty.element_type, self.program).ok_or("a table of another type")?;
                self.check(&[null], &[wp::ValType::Ref(ty.element_type)])?;
                Ok(Action::GrowTable { table, elements, null })
            }
            Event::SetElement { table, element, value } => {
                let ty = *self.program.tables.get(table as usize).ok_or("there is no such table")?;
                if !ty.table64 && element > u32::MAX.into() {
                    return Err("an element that is not in the table");
                }
                self.check(&[value], &[wp::ValType::Ref(ty.element_type)])?;
                Ok(Action::SetElement { table, element, value })
            }
            Event::DropData { segment } => {
                let is_one = segment < self.program.number_of(DATA);
                is_one.then_some(Action::DropData { segment }).ok_or("there is no such data segment")
            }
            Event::DropElements { segment } => {
                let is_one = segment < self.program.number_of(ELEMENTS);
                is_one.then_some(Action::DropElements { segment }).ok_or("there is no such element segment")
            }
            _ => Err("no change of the host"),
        }
    }

    /// The position of these bytes in [`Script::bytes`], to which they are added if necessary.
    fn bytes(&mut self, bytes: &[u8]) -> Result<u32, &'static str> {
        let key = (self.hasher.hash_one(bytes), bytes.len() as u32);
        let all = &mut self.script.bytes;
        if let Some(from) = self.known.get(&key)
            && all[*from as usize..][..bytes.len()] == *bytes
        {
            return Ok(*from);
        }
        let from = u32::try_from(all.len()).map_err(|_| "more than 4 GiB were written")?;
        all.extend(bytes);
        self.known.insert(key, from);
        Ok(from)
    }

    /// Checks that all exceptions with this tag have values of the same types.
    fn check_exception(&mut self, Exception { tag, values }: &Exception) -> Result<(), &'static str> {
        let program = self.program;
        if let Some(ty) = program.tag_type(*tag) {
            return self.check(values, ty.params());
        }
        let first = self.script.other_tags.entry(*tag).or_insert_with(|| values.clone());
        let types: Vec<_> = first.iter().map(|value| parsed_type(value.ty())).collect();
        self.check(values, &types)
    }

    /// Checks that the values have these types.
    fn check(&mut self, values: &[Value], types: &[wp::ValType]) -> Result<(), &'static str> {
        if values.len() != types.len()
            || values.iter().zip(types).any(|(value, ty)| !fits(*value, *ty, self.program))
        {
            return Err("values of other types");
        }
        self.script.has_typed_nulls |=
            values.iter().zip(types).any(|(value, ty)| value.is_null() && parsed_type(value.ty()) != *ty);
        for value in values {
            if let Value::Func(Some(function)) = value {
                let functions = self.program.functions.len() + self.script.others.len();
                if *function as usize >= functions {
                    return Err("there is no such function");
                }
                self.script.references.insert(*function);
            }
            if let Value::Extern(Some(number)) = value {
                if *number > i32::MAX as u32 {
                    return Err("more host values than can be numbered");
                }
                self.script.has_host_values = true;
            }
        }
        Ok(())
    }
}
