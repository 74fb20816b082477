//! [`Recorder`].

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::wasmparser::{ExternalKind, Parser, Payload};
use wasm_jit::{
    AsContext, AsContextMut, Caller, Extern, ExternType, Func, Global, Instance, Linker, Memory, Module,
    Mutability, Store, Val, ValType,
};

use super::error::{Error, unsupported};
use super::trace::{Event, MAX_WRITE, Value};

/// The state of an instance that the host can access.
#[derive(Debug, Default)]
struct Visible {
    /// Exported memories, with their indices in the module.
    memories: Vec<(u32, Memory)>,
    /// Exported mutable globals.
    globals: Vec<(u32, Global)>,
}

/// A copy of it.
#[derive(Debug, Default)]
struct Copied {
    memories: Vec<Vec<u8>>,
    globals: Vec<Value>,
}

struct Recording {
    out: Box<dyn Write + Send>,
    visible: Visible,
    /// As the program left it when an export returned last.
    left: Copied,
}

impl Recording {
    fn write(&mut self, event: &Event) -> Result<(), Error> {
        Ok(event.write(&mut self.out)?)
    }

    fn copy(&self, mut store: impl AsContextMut) -> Result<Copied, Error> {
        let memories = &self.visible.memories;
        let memories = memories.iter().map(|(_, memory)| memory.data(store.as_context()).to_vec()).collect();
        let globals = &self.visible.globals;
        let globals = globals.iter().map(|(_, global)| number(&global.get(store.as_context_mut())));
        Ok(Copied { memories, globals: globals.collect::<Result<_, _>>()? })
    }

    /// Writes what has changed since the copy was made.
    fn write_changes(&mut self, mut store: impl AsContextMut, before: &Copied) -> Result<(), Error> {
        let out = &mut self.out;
        for ((index, memory), before) in self.visible.memories.iter().zip(&before.memories) {
            let now = memory.data(store.as_context());
            let pages = ((now.len() - before.len()) >> 16) as u64;
            if pages > 0 {
                Event::Grow { memory: *index, pages }.write(out)?;
            }
            write_bytes(out, *index, before, now)?;
        }
        for ((index, global), before) in self.visible.globals.iter().zip(&before.globals) {
            let value = number(&global.get(store.as_context_mut()))?;
            if value != *before {
                Event::SetGlobal { global: *index, value }.write(out)?;
            }
        }
        Ok(())
    }
}

/// Number of bytes that are compared at once.
const BLOCK: usize = 4096;

/// Writes the bytes that differ; those that the memory has grown by were zero.
fn write_bytes(out: &mut dyn Write, memory: u32, before: &[u8], now: &[u8]) -> Result<(), Error> {
    let zeros = [0; BLOCK];
    let mut run: Option<(usize, usize)> = None;
    for at in (0..now.len()).step_by(BLOCK) {
        let block = &now[at..at + BLOCK];
        let old = before.get(at..at + BLOCK).unwrap_or(&zeros);
        if block == old {
            continue;
        }
        for byte in (0..BLOCK).filter(|byte| block[*byte] != old[*byte]) {
            let here = at + byte;
            run = match run {
                Some((start, end)) if end == here && here - start < MAX_WRITE => Some((start, here + 1)),
                _ => {
                    flush(out, memory, now, run)?;
                    Some((here, here + 1))
                }
            };
        }
    }
    flush(out, memory, now, run)
}

fn flush(out: &mut dyn Write, memory: u32, now: &[u8], run: Option<(usize, usize)>) -> Result<(), Error> {
    let Some((start, end)) = run else { return Ok(()) };
    let event = Event::Write { memory, address: start as u64, bytes: now[start..end].to_vec() };
    Ok(event.write(out)?)
}

fn number(value: &Val) -> Result<Value, Error> {
    Value::of(value).ok_or_else(|| unsupported(format!("a value of type {}", value.ty())))
}

fn numbers(values: &[Val]) -> Result<Vec<Value>, Error> {
    values.iter().map(number).collect()
}

/// Records one instance of a module. A clone records to the same trace.
#[derive(Clone)]
pub struct Recorder {
    module: Module,
    recording: Arc<Mutex<Recording>>,
}

impl Recorder {
    /// A recorder that writes the trace to `out`, each event by several small writes: use a
    /// buffered writer. It is flushed when an imported function or an export has returned.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Io`].
    pub fn new(module: &Module, out: impl Write + Send + 'static) -> Result<Self, Error> {
        check(module)?;
        let (visible, left) = Default::default();
        let mut recording = Recording { out: Box::new(out), visible, left };
        let (bytes, length) = (module.bytes(), module.bytes().len() as u64);
        recording.write(&Event::Start { module: crc32fast::hash(bytes), length })?;
        Ok(Self { module: module.clone(), recording: Arc::new(Mutex::new(recording)) })
    }

    /// Instantiates the module with the definitions of a linker, wrapped.
    ///
    /// # Errors
    /// Those of [`Linker::instantiate`].
    pub fn instantiate<T: 'static>(
        &self,
        store: &mut Store<T>,
        linker: &Linker<T>,
    ) -> Result<Instance, Error> {
        let mut imports = Vec::new();
        for (index, import) in self.module.imports().enumerate() {
            let (module, name) = (import.module(), import.name());
            let found = linker.get(&mut *store, module, name)?;
            let unknown =
                || wasm_jit::Error::UnknownImport { module: module.to_owned(), name: name.to_owned() };
            let found = found.ok_or_else(unknown)?;
            imports.push(match found {
                Extern::Func(func) => self.wrap(store, index as u32, func)?.into(),
                // Of the wrong type, which instantiation reports.
                other => other,
            });
        }
        let instance = Instance::new(&mut *store, &self.module, &imports)?;
        let visible = visible(&self.module, store, &instance)?;
        let mut recording = self.lock();
        recording.visible = visible;
        recording.left = recording.copy(&mut *store)?;
        drop(recording);
        Ok(instance)
    }

    fn wrap<T: 'static>(&self, store: &mut Store<T>, import: u32, func: Func) -> Result<Func, Error> {
        let recorder = self.clone();
        let ty = func.ty(&*store);
        let wrapper = move |mut caller: Caller<'_, T>, arguments: &[Val], results: &mut [Val]| {
            recorder.host_call(&mut caller, import, &func, arguments, results).map_err(|error| match error {
                Error::Engine(error) => error,
                error => wasm_jit::Error::host(error),
            })
        };
        Ok(Func::new(store, ty, wrapper)?)
    }

    fn host_call<T: 'static>(
        &self,
        caller: &mut Caller<'_, T>,
        import: u32,
        func: &Func,
        arguments: &[Val],
        results: &mut [Val],
    ) -> Result<(), Error> {
        let before = {
            let mut recording = self.lock();
            recording.write(&Event::Call { import, arguments: numbers(arguments)? })?;
            recording.copy(&mut *caller)?
        };
        let entries = caller.as_context().entries();
        let done = caller.forward(func, arguments, results);
        if caller.as_context().entries() != entries {
            return Err(Error::Reentry { import });
        }
        let mut recording = self.lock();
        recording.write_changes(&mut *caller, &before)?;
        recording.write(&match done {
            Ok(()) => Event::Return { results: numbers(results)? },
            Err(_) => Event::Fail,
        })?;
        recording.out.flush()?;
        Ok(done?)
    }

    /// Calls an exported function, and records the call.
    ///
    /// # Errors
    /// [`Error::Engine`] if the program fails; [`Error::Unsupported`] if there is no function of
    /// this name, or a value is a reference.
    pub fn call<T: 'static>(
        &self,
        store: &mut Store<T>,
        instance: &Instance,
        export: &str,
        arguments: &[Val],
        results: &mut [Val],
    ) -> Result<(), Error> {
        let func = instance.get_func(&mut *store, export);
        let func = func.ok_or_else(|| unsupported(format!("no function is exported as `{export}`")))?;
        {
            let mut recording = self.lock();
            let left = std::mem::take(&mut recording.left);
            recording.write_changes(&mut *store, &left)?;
            recording.write(&Event::Enter { export: export.to_owned(), arguments: numbers(arguments)? })?;
        }
        let done = func.call(&mut *store, arguments, results);
        let mut recording = self.lock();
        recording.left = recording.copy(&mut *store)?;
        recording.write(&match done {
            Ok(()) => Event::Leave { results: numbers(results)? },
            Err(_) => Event::Fail,
        })?;
        recording.out.flush()?;
        Ok(done?)
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        // Not held while foreign code runs, which might panic.
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("module", &self.module).finish_non_exhaustive()
    }
}

/// Refuses a module that cannot be recorded.
fn check(module: &Module) -> Result<(), Error> {
    if module.has_start_function() {
        return Err(unsupported("a start function"));
    }
    for import in module.imports() {
        let name = format!("{}.{}", import.module(), import.name());
        let ExternType::Func(ty) = import.ty() else {
            return Err(unsupported(format!("the import {name}, which is no function")));
        };
        if ty.params().chain(ty.results()).any(|ty| matches!(ty, ValType::Ref(_))) {
            return Err(unsupported(format!("the import {name}, which takes or returns references")));
        }
    }
    for export in module.exports() {
        let refused = match export.ty() {
            ExternType::Memory(ty) if ty.is_shared() => "a shared memory",
            ExternType::Table(_) => "a table",
            ExternType::Global(ty) if is_reference(ty) => "a mutable reference",
            _ => continue,
        };
        return Err(unsupported(format!("the export {}, {refused}", export.name())));
    }
    Ok(())
}

fn is_reference(ty: &wasm_jit::GlobalType) -> bool {
    ty.mutability() == Mutability::Var && matches!(ty.content(), ValType::Ref(_))
}

/// The state that the module exports, each item once.
fn visible<T: 'static>(module: &Module, store: &mut Store<T>, instance: &Instance) -> Result<Visible, Error> {
    let mut visible = Visible::default();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        let Payload::ExportSection(exports) = payload? else { continue };
        for export in exports {
            let export = export?;
            match (export.kind, instance.get_export(&mut *store, export.name)) {
                (ExternalKind::Memory, Some(Extern::Memory(memory)))
                    if visible.memories.iter().all(|(index, _)| *index != export.index) =>
                {
                    visible.memories.push((export.index, memory));
                }
                (ExternalKind::Global, Some(Extern::Global(global)))
                    if global.ty(&*store).mutability() == Mutability::Var
                        && visible.globals.iter().all(|(index, _)| *index != export.index) =>
                {
                    visible.globals.push((export.index, global));
                }
                _ => {}
            }
        }
    }
    Ok(visible)
}
