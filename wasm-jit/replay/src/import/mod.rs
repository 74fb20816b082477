//! [`import`]: traces in the text format of Wasm-R3.
//!
//! 1. `text.rs`: the lines are converted to steps of the host.
//! 2. `imports.rs`: what the program imports. Its functions execute steps of the host.
//! 3. The program runs with a host that executes these steps, and is recorded: the text lacks the
//!    arguments of imported functions and the results of exported ones.

mod imports;
mod text;

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, Write};
use std::vec::IntoIter;

use wasm_jit::wasmparser::{ExternalKind, Parser, Payload};
use wasm_jit::{
    AsContext, AsContextMut, ExternType, Func, Instance, Module, Store, StoreContextMut, Trap, Val, ValType,
};

use super::check::shared_globals;
use super::error::Error;
use super::limits::Limits;
use super::record::Recorder;
use text::{Change, Effect, Functions, Kind, Step};

/// The state of the host during the import.
struct Host {
    steps: std::iter::Peekable<IntoIter<Step>>,
    instance: Option<Instance>,
    /// The globals that the host can change.
    globals: BTreeSet<u32>,
    /// The number of memories that the program imports.
    memories: u32,
    /// The number of tables that the program imports.
    tables: u32,
    /// The reason why the program was stopped.
    failed: Option<Error>,
}

impl Host {
    fn instance(&self) -> Instance {
        self.instance.expect("only instances run")
    }
}

/// Writes a trace of a run that Wasm-R3 has recorded as text. Runs the program on this thread;
/// takes memory in proportion to the text.
///
/// If the text ends before the run does, the trace ends with a failure of the host.
///
/// Memories and tables that the program imports have the smallest size that it declares, unless the
/// text has their size, and contain nothing before the program's own segments are copied; globals
/// without a value in the text are zero or null. What the program later reads there is in the text.
///
/// # Errors
/// [`Error::Text`] with a line that cannot be read or does not fit the program;
/// [`Error::Unsupported`] for a module that cannot be recorded; [`Error::NotImported`] for one that
/// imports a global without a default value, whose value is not in the text; [`Error::Engine`],
/// [`Error::Io`].
pub fn import(module: &Module, text: impl BufRead, out: impl Write + Send + 'static) -> Result<(), Error> {
    import_within(&Limits::default(), module, text, out)
}

/// As [`import()`], with limits for the program.
///
/// # Errors
/// As [`import()`]; [`Error::Engine`] if the program is interrupted, or has no fuel left at the end
/// of the text.
pub fn import_within(
    limits: &Limits,
    module: &Module,
    text: impl BufRead,
    out: impl Write + Send + 'static,
) -> Result<(), Error> {
    let recorder = Recorder::new(module, out)?;
    let start = module.start_function().map(|start| start.index());
    let mut text = text::read(text, &Functions { exported: exported_functions(module)?, start })?;
    let steps = std::mem::take(&mut text.steps).into_iter().peekable();
    let globals = shared_globals(module)?;
    let number =
        |of: fn(&ExternType) -> bool| module.imports().filter(|import| of(import.ty())).count() as u32;
    let memories = number(|ty| matches!(ty, ExternType::Memory(_)));
    let tables = number(|ty| matches!(ty, ExternType::Table(_)));
    let host = Host { steps, instance: None, globals, memories, tables, failed: None };
    let mut store = Store::new(module.engine(), host);
    let _timeout = limits.apply(&mut store)?;
    let imports = imports::make(&mut store, module, &text)?;
    let instance = recorder.instantiate_unstarted(&mut store, &imports)?;
    store.data_mut().instance = Some(instance);
    let ended = run(&mut store.as_context_mut(), text.changes);
    match store.data_mut().failed.take() {
        Some(error) => Err(error),
        None => ended,
    }
}

/// The indices of the functions that a module exports, by name.
fn exported_functions(module: &Module) -> Result<HashMap<&str, u32>, Error> {
    let mut functions = HashMap::new();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        let Payload::ExportSection(exports) = payload? else { continue };
        for export in exports {
            let export = export?;
            if matches!(export.kind, ExternalKind::Func | ExternalKind::FuncExact) {
                functions.insert(export.name, export.index);
            }
        }
    }
    Ok(functions)
}

/// Runs the new instance, from its start function to the end of the text.
fn run(store: &mut StoreContextMut<'_, Host>, changes: Vec<Change>) -> Result<(), Error> {
    let instance = store.data().instance();
    let start = instance.module(store.as_context()).start_function().map(|start| start.index());
    let Some(start) = start else {
        return match changes.first() {
            Some(change) => Err(at(change.line, "the program does not run here")),
            None => act(store, None).map(drop),
        };
    };
    changes.into_iter().try_for_each(|change| apply(store, change))?;
    // The first call of the function is the one by the instantiation. The text does not have it if
    // the recorder did not see it.
    let is_start = |step: &Step| matches!(step.kind, Kind::Enter { function, .. } if function == start);
    if let Some(step) = store.data_mut().steps.next_if(is_start) {
        step.changes.into_iter().try_for_each(|change| apply(store, change))?;
    }
    let done = instance.start(store.as_context_mut());
    if ended(store, done)? {
        act(store, None)?;
    }
    Ok(())
}

/// The program calls one of these imports. Returns the results, or `None` at the end of the text.
fn called(
    store: &mut StoreContextMut<'_, Host>,
    imports: &[u32],
    types: &[ValType],
) -> Result<Option<Vec<Val>>, Error> {
    let import = match store.data_mut().steps.next() {
        Some(Step { kind: Kind::Call { import }, .. }) if imports.contains(&import) => import,
        Some(Step { line, .. }) => {
            return Err(at(line, format!("the program calls import {} before", imports[0])));
        }
        None => return Ok(None),
    };
    let returned = act(store, Some(import))?;
    returned.map(|(line, results)| list(line, &results, types)).transpose()
}

/// Executes the host's steps until it returns from this import, or to the end of the text. Returns
/// the results as text, with their line.
fn act(store: &mut StoreContextMut<'_, Host>, import: Option<u32>) -> Result<Option<(u64, String)>, Error> {
    while let Some(Step { line, kind, changes }) = store.data_mut().steps.next() {
        for change in changes {
            apply(store, change)?;
        }
        match kind {
            Kind::Enter { function, arguments } => {
                if !enter(store, line, function, &arguments)? {
                    break;
                }
            }
            Kind::Return { import: returns, results } if Some(returns) == import => {
                return Ok(Some((line, results)));
            }
            Kind::Return { import, .. } => {
                return Err(at(line, format!("import {import} does not run here")));
            }
            Kind::Leave => return Err(at(line, "no function runs here that could return")),
            Kind::Call { import } => {
                return Err(at(line, format!("the program does not call import {import} here")));
            }
        }
    }
    Ok(None)
}

/// The host calls a function. Returns whether the call has returned.
fn enter(
    store: &mut StoreContextMut<'_, Host>,
    line: u64,
    function: u32,
    arguments: &str,
) -> Result<bool, Error> {
    let func = own_function(store, line, function)?;
    let ty = func.ty(store.as_context());
    let parameters: Vec<ValType> = ty.params().collect();
    let arguments = list(line, arguments, &parameters)?;
    let mut results: Vec<Val> = ty.results().map(Val::default_for_ty).collect();
    let done = func.call(store.as_context_mut(), &arguments, &mut results);
    ended(store, done)
}

/// A call by the host has ended. Returns whether it has returned.
fn ended(store: &mut StoreContextMut<'_, Host>, done: Result<(), wasm_jit::Error>) -> Result<bool, Error> {
    let host = store.data_mut();
    match (done, host.steps.peek()) {
        (Ok(()), _) => {
            if let Some(step) = host.steps.next_if(|step| step.kind == Kind::Leave) {
                step.changes.into_iter().try_for_each(|change| apply(store, change))?;
            }
            Ok(true)
        }
        (Err(_), _) if host.failed.is_some() => Ok(false),
        (Err(error), None) => {
            if matches!(error.trap(), Some(Trap::Interrupt | Trap::OutOfFuel)) {
                host.failed = Some(error.into());
            }
            Ok(false)
        }
        (Err(error), Some(next)) => {
            // The rest is a backtrace.
            let error = error.to_string().lines().next().unwrap_or_default().to_owned();
            let line = next.line;
            host.failed = Some(at(line, format!("the program fails before: {error}")));
            Ok(false)
        }
    }
}

/// A function that is not imported.
fn own_function(store: &StoreContextMut<'_, Host>, line: u64, function: u32) -> Result<Func, Error> {
    let instance = store.data().instance();
    let found = instance.module(store.as_context()).function(function);
    let found = found.filter(|found| found.body().is_some());
    let func = found.and_then(|found| instance.func(store.as_context(), found.index()));
    func.ok_or_else(|| at(line, format!("function {function}, which has no code")))
}

/// The host changes something.
fn apply(store: &mut StoreContextMut<'_, Host>, Change { line, effect }: Change) -> Result<(), Error> {
    let instance = store.data().instance();
    match effect {
        Effect::Write { memory: index, address, bytes } => {
            let memory = instance.memory(store.as_context(), index);
            let memory = memory.ok_or_else(|| at(line, "there is no such memory"))?;
            let written = memory.write(store.as_context_mut(), address, &bytes);
            let is_imported = index < store.data().memories;
            written.map_err(|error| beyond(line, error, is_imported.then_some("IM")))
        }
        Effect::Grow { memory, pages } => {
            let memory = instance.memory(store.as_context(), memory);
            let memory = memory.ok_or_else(|| at(line, "there is no such memory"))?;
            memory.grow(store.as_context_mut(), pages).map(drop).map_err(|error| at(line, error))
        }
        Effect::GrowTable { table, elements } => {
            let table = instance.table(store.as_context(), table);
            let table = table.ok_or_else(|| at(line, "there is no such table"))?;
            let null = Val::default_for_ty(ValType::Ref(table.ty(store.as_context()).element()));
            table.grow(store.as_context_mut(), elements, null).map(drop).map_err(|error| at(line, error))
        }
        Effect::SetElement { table: index, element, function } => {
            let table = instance.table(store.as_context(), index);
            let table = table.ok_or_else(|| at(line, "there is no such table"))?;
            let func = instance.func(store.as_context(), function);
            let func = func.ok_or_else(|| at(line, format!("there is no function {function}")))?;
            let set = table.set(store.as_context_mut(), element, Val::FuncRef(Some(func)));
            let is_imported = index < store.data().tables;
            set.map_err(|error| beyond(line, error, is_imported.then_some("IT")))
        }
        Effect::SetGlobal { global, value } => {
            let found = instance.global(store.as_context(), global);
            let found = found.filter(|_| store.data().globals.contains(&global));
            let found = found.ok_or_else(|| at(line, "there is no such global that the host can change"))?;
            let value = list(line, &value, &[found.ty(store.as_context()).content()])?;
            found.set(store.as_context_mut(), value[0].clone()).map_err(|error| at(line, error))
        }
    }
}

fn at(line: u64, what: impl ToString) -> Error {
    Error::Text { line, what: what.to_string() }
}

/// The error for a change beyond the end of a memory or table; if it is imported, with the kind of
/// line that has its size.
fn beyond(line: u64, error: wasm_jit::Error, kind: Option<&str>) -> Error {
    let Some(kind) = kind else { return at(line, error) };
    at(line, format!("{error}; if it was larger than the program declares, add an {kind} line with its size"))
}

/// The values in a list.
fn list(line: u64, text: &str, types: &[ValType]) -> Result<Vec<Val>, Error> {
    let fields: Vec<&str> = match text.trim() {
        // In JavaScript, a function without results returns `undefined`.
        "" | "NaN" | "undefined" if types.is_empty() => Vec::new(),
        text => text.split(',').map(str::trim).collect(),
    };
    if fields.len() != types.len() {
        return Err(at(line, format!("{} values instead of {}", fields.len(), types.len())));
    }
    let values = fields.iter().zip(types);
    values
        .map(|(field, ty)| value(field, *ty).ok_or_else(|| at(line, format!("`{field}` is no {ty}"))))
        .collect()
}

/// A value as JavaScript prints it.
fn value(field: &str, ty: ValType) -> Option<Val> {
    Some(match ty {
        ValType::I32 => {
            let value = integer(field)?;
            Val::I32(i32::try_from(value).or_else(|_| u32::try_from(value).map(|value| value as i32)).ok()?)
        }
        ValType::I64 => {
            let value = integer(field)?;
            Val::I64(i64::try_from(value).or_else(|_| u64::try_from(value).map(|value| value as i64)).ok()?)
        }
        ValType::F32 => Val::F32((field.parse::<f64>().ok()? as f32).to_bits()),
        ValType::F64 => Val::F64(field.parse::<f64>().ok()?.to_bits()),
        ValType::Ref(ty) if ty.is_nullable() && matches!(field, "null" | "") => {
            Val::default_for_ty(ValType::Ref(ty))
        }
        _ => return None,
    })
}

/// Large integers may have an exponent.
fn integer(field: &str) -> Option<i128> {
    field.parse().ok().or_else(|| {
        let value: f64 = field.parse().ok()?;
        (value.fract() == 0.0 && value.abs() < 2_f64.powi(65)).then_some(value as i128)
    })
}
