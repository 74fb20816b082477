//! [`import`]: traces in the text format of Wasm-R3.
//!
//! 1. `text.rs`: the lines are converted to steps of the host.
//! 2. The program runs with a host that executes these steps, and is recorded: the text lacks the
//!    arguments of imported functions and the results of exported ones.

mod text;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::vec::IntoIter;

use wasm_jit::{
    AsContext, AsContextMut, Caller, Extern, ExternType, Func, Instance, Linker, Module, Store,
    StoreContextMut, Trap, Val, ValType,
};

use super::error::Error;
use super::limits::Limits;
use super::record::Recorder;
use text::{Change, Effect, Kind, Step};

/// The state of the host during the import.
struct Host {
    steps: std::iter::Peekable<IntoIter<Step>>,
    instance: Option<Instance>,
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
/// # Errors
/// [`Error::Text`] with a line that cannot be read or does not fit the program;
/// [`Error::Unsupported`] for a module that cannot be recorded; [`Error::NotImported`] for one that
/// has a start function or imports something other than functions; [`Error::Engine`],
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
    if module.start_function().is_some() {
        // The text does not contain the calls that it made.
        return Err(Error::NotImported { what: "it has a start function".to_owned() });
    }
    for import in module.imports() {
        let kind = match import.ty() {
            ExternType::Func(_) => continue,
            ExternType::Memory(_) => "memory",
            ExternType::Table(_) => "table",
            ExternType::Global(_) => "global",
            ExternType::Tag(_) => "tag",
        };
        let what = format!("it imports {}.{}, a {kind}", import.module(), import.name());
        return Err(Error::NotImported { what });
    }
    let recorder = Recorder::new(module, out)?;
    let host = Host { steps: text::steps(text)?.into_iter().peekable(), instance: None, failed: None };
    let mut store = Store::new(module.engine(), host);
    let _timeout = limits.apply(&mut store)?;
    let linker = linker(module)?;
    let instance = recorder.instantiate(&mut store, &linker)?;
    store.data_mut().instance = Some(instance);
    let ended = act(&mut store.as_context_mut(), None);
    match store.data_mut().failed.take() {
        Some(error) => Err(error),
        None => ended.map(drop),
    }
}

/// The imports, which execute the steps of the host. Imports with the same names share a function.
fn linker(module: &Module) -> Result<Linker<Host>, Error> {
    let mut named: HashMap<(&str, &str), Vec<u32>> = HashMap::new();
    for (index, import) in (0..).zip(module.imports()) {
        named.entry((import.module(), import.name())).or_default().push(index);
    }
    let mut linker = Linker::new(module.engine());
    for import in module.imports() {
        let (ExternType::Func(ty), names) = (import.ty(), (import.module(), import.name())) else { continue };
        let Some(indices) = named.remove(&names) else { continue };
        let ty = ty.clone();
        let types: Vec<ValType> = ty.results().collect();
        let host = move |mut caller: Caller<'_, Host>, _: &[Val], results: &mut [Val]| {
            let store = &mut caller.as_context_mut();
            match called(store, &indices, &types) {
                Ok(Some(values)) => {
                    results.clone_from_slice(&values);
                    return Ok(());
                }
                // The end of the text, or a failure of a function that the host has called.
                Ok(None) => {}
                Err(error) => _ = store.data_mut().failed.get_or_insert(error),
            }
            Err(wasm_jit::Error::host("the text does not go on here"))
        };
        linker.func_new(names.0, names.1, ty, host)?;
    }
    Ok(linker)
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
                store.data_mut().steps.next_if(|step| step.kind == Kind::Leave);
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
    let host = store.data_mut();
    match (done, host.steps.peek()) {
        (Ok(()), _) => Ok(true),
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
        Effect::Write { memory, address, bytes } => {
            let memory = instance.memory(store.as_context(), memory);
            let memory = memory.ok_or_else(|| at(line, "there is no such memory"))?;
            memory.write(store.as_context_mut(), address, &bytes).map_err(|error| at(line, error))
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
        Effect::SetElement { table, element, function } => {
            let table = instance.table(store.as_context(), table);
            let table = table.ok_or_else(|| at(line, "there is no such table"))?;
            let func = own_function(store, line, function)?;
            let set = table.set(store.as_context_mut(), element, Val::FuncRef(Some(func)));
            set.map_err(|error| at(line, error))
        }
        Effect::SetGlobal { global, value } => {
            let found = instance.global(store.as_context(), global).filter(|global| {
                let mut exports = instance.exports(store.as_context());
                exports.any(
                    |export| matches!(export.into_extern(), Extern::Global(exported) if exported == *global),
                )
            });
            let found = found.ok_or_else(|| at(line, "there is no such global that the host can change"))?;
            let value = list(line, &value, &[found.ty(store.as_context()).content()])?;
            found.set(store.as_context_mut(), value[0].clone()).map_err(|error| at(line, error))
        }
    }
}

fn at(line: u64, what: impl ToString) -> Error {
    Error::Text { line, what: what.to_string() }
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
        .map(|(field, ty)| value(field, ty).ok_or_else(|| at(line, format!("`{field}` is no {ty}"))))
        .collect()
}

/// A value as JavaScript prints it.
fn value(field: &str, ty: &ValType) -> Option<Val> {
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
