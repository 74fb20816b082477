//! The linked machine code of a module.
//!
//! [`compile_all`] validates and compiles the functions of a module on several threads
//! ([`compile`]), links them ([`link`]) and returns a [`CodeImage`], which is immutable except for
//! patches and may be shared by any number of threads. The image and the function of a code address
//! are found without a lock ([`registry`]), even in a signal handler.
//!
//! The memory is managed by wordpatch (`wordpatch::code_memory`): two mappings of the same pages,
//! one writable, one executable. Code that was stored in a file may be executed there until it is
//! patched ([`stored`]). An image lives as long as there is a reference to it: from
//! modules, instances of stores, host functions, backtraces. A call borrows its store, which owns
//! the instances whose code runs, so code is never freed while a thread executes it.
//!
//! For each function, the image stores its position, the size of its frame, and its try regions,
//! but not the positions of its instructions.
//!
//! Functions may be compiled when they are first called ([`lazy`]), into memory next to the image.
//! Functions that are probed get further versions of their code, in memory next to the image
//! ([`probed`]).

pub(crate) mod compile;
mod error;
mod features;
pub(crate) mod forks;
mod functions;
pub(crate) mod gdb;
mod lazy;
pub(crate) mod link;
pub(crate) mod perf;
pub(crate) mod probed;
pub(crate) mod registry;
pub(crate) mod sections;
pub(crate) mod stored;
mod symbols;

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasmparser::{BinaryReader, FuncType, FunctionBody, ValType};
use wordpatch::code_memory::{CodeMemory, CodeRoom};

pub(crate) use compile::{ToCompile, compile_all, compile_lazily};
pub(crate) use error::CompileError;
pub(crate) use features::FEATURES;
pub(crate) use functions::Function;
use functions::{Functions, Tables, TryRegion, add_regions};

use wasm_jit_codegen::objects::ModuleType;
use wasm_jit_codegen::{
    Chunk, CompiledFunction, Compiler, Instrumentation, Limit, ModuleInfo, Observer, Position, Positions,
};

use crate::vmctx::VmLayout;

/// The code of a module's own functions, and of the trampolines for their types.
#[derive(Debug)]
pub(crate) struct CodeImage {
    /// Dropped first: the image cannot be found any more when its code is freed.
    _registered: Option<registry::Registered>,
    /// State of probes, made with the first probe.
    probed: OnceLock<Box<probed::Probed>>,
    /// Not 0 once there are probes, or first calls are watched: then stubs of other modules call
    /// the functions of this one instead of executing their instructions inline.
    pub must_call: AtomicU32,
    pub counters: probed::counters::Counters,
    /// Ids that are retired with the image.
    ids: probed::ids::Ids,
    /// The observers of frames that are left otherwise than by their exit.
    pub watchers: probed::unwound::UnwoundWatchers,
    /// The observers of traps.
    pub trap_watchers: probed::trapped::TrapWatchers,
    /// The users of accessors: generic probes and observers of traps.
    pub accessor_users: probed::accessor_users::AccessorUsers,
    forks: forks::Forks,
    memory: CodeMemory,
    /// The code, if it is executed in a file until it is patched.
    in_file: Option<stored::InFile>,
    /// Addresses after the code, for versions and stubs.
    room: Mutex<CodeRoom>,
    shown: gdb::Shown,
    pub module: Arc<ModuleInfo>,
    /// The binary module, for lookups on demand: bodies, names, lines.
    pub bytes: Bytes,
    pub layout: VmLayout,
    functions: Functions,
    /// Offset of the trampolines.
    functions_end: u32,
    /// The trampolines, by type index; `None` for a type that no function has.
    trampolines: Vec<Option<Trampolines>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Trampolines {
    entry: u32,
    host: u32,
}

/// Where a frame continues that catches an exception.
pub(crate) struct Handler {
    pub address: usize,
    pub frame_size: u32,
    /// As [`Transfer::ends_accessor`](probed::Transfer::ends_accessor).
    pub ends_accessor: bool,
}

/// The reason why a compiled function cannot be observed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ObserveError {
    /// The function now exceeds a limit.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// Compiling it again produced different code.
    #[error("function {function}: compiling it again produced different code")]
    Differs { function: u32 },
}

impl CodeImage {
    /// An image of trampolines only, for host functions of these types.
    pub(crate) fn of_trampolines(types: &[FuncType]) -> Result<Arc<Self>, CompileError> {
        let types: Vec<ModuleType> = types.iter().cloned().map(ModuleType::of_function).collect();
        let used = vec![true; types.len()];
        let module = ModuleInfo { types, ..ModuleInfo::default() };
        link::ImageLinker::new(1 << 20, 1 << 20)?.finish(Arc::new(module), Bytes::new(), &used)
    }

    /// The address at which a function is called, which must not be imported: that of its code,
    /// unless the function has not been compiled or called yet.
    pub(crate) fn entry(&self, function: u32) -> *const u8 {
        match &self.functions {
            Functions::Eager(_) => self.at(self.function(function).entry),
            Functions::Lazy(all) => self.at(all.entry(self.number(function))),
        }
    }

    /// The address at which a function is called for the first time.
    pub(crate) fn first_entry(&self, function: u32) -> *const u8 {
        match &self.functions {
            Functions::Eager(_) => self.entry(function),
            Functions::Lazy(_) => self.at(lazy::entry_of(self.number(function))),
        }
    }

    /// The trampoline that enters functions of this type; `None` for a type that no function of the
    /// module has.
    pub(crate) fn entry_trampoline(&self, type_index: u32) -> Option<*const u8> {
        self.trampolines[type_index as usize].map(|trampolines| self.at(trampolines.entry))
    }

    /// The trampoline through which host functions of this type are called; see
    /// [`CodeImage::entry_trampoline`].
    pub(crate) fn host_trampoline(&self, type_index: u32) -> Option<*const u8> {
        self.trampolines[type_index as usize].map(|trampolines| self.at(trampolines.host))
    }

    /// The trampolines, which enter compiled code or leave it for the host, in ascending order.
    pub(crate) fn trampolines(&self) -> Vec<(&'static str, Range<u32>)> {
        let both = |trampolines: &Trampolines| [(trampolines.entry, "enter"), (trampolines.host, "leave")];
        let mut starts: Vec<_> = self.trampolines.iter().flatten().flat_map(both).collect();
        // Equal types share their trampolines.
        starts.sort_unstable();
        starts.dedup();
        let end = self.memory.pages().len() as u32;
        let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([end]);
        starts.iter().zip(ends).map(|((start, what), end)| (*what, *start..end)).collect()
    }

    /// The code with its trampolines.
    pub(crate) fn memory(&self) -> &CodeMemory {
        &self.memory
    }

    /// The size of the code of the functions that have been compiled, in bytes.
    pub(crate) fn code_length(&self) -> usize {
        match &self.functions {
            Functions::Eager(_) => self.functions_end as usize,
            Functions::Lazy(all) => all.code_length(),
        }
    }

    /// The code of the functions, and the trampolines, from the first address.
    pub(crate) fn code(&self) -> Vec<u8> {
        let mut code = self.memory.code();
        if let Functions::Lazy(all) = &self.functions {
            code.resize(self.memory.pages().len(), 0);
            code.extend(all.code());
        }
        code
    }

    /// The addresses of the functions' code, their entries, and the trampolines.
    pub(crate) fn pages(&self) -> Range<usize> {
        let pages = self.memory.pages();
        match &self.functions {
            Functions::Eager(_) => pages,
            Functions::Lazy(all) => pages.start..all.pages().end,
        }
    }

    /// The indices of the functions that are not imported.
    pub(crate) fn indices(&self) -> Range<u32> {
        let first = self.module.imported_functions;
        first..first + self.functions.len() as u32
    }

    /// The number of a function that is not imported.
    fn number(&self, index: u32) -> usize {
        (index - self.module.imported_functions) as usize
    }

    /// A function that has been compiled.
    pub(crate) fn function(&self, index: u32) -> &Function {
        self.compiled(index).expect("the function has been compiled")
    }

    /// A function that is not imported, if it has been compiled. Atomics only.
    pub(crate) fn compiled(&self, index: u32) -> Option<&Function> {
        self.functions.get(self.number(index))
    }

    /// The address at which an offset in the image is executed.
    pub(crate) fn at(&self, offset: u32) -> *const u8 {
        std::ptr::with_exposed_provenance(self.memory.address() + offset as usize)
    }

    /// Whether the address is in a function's code or in a stub, as opposed to a trampoline. Uses
    /// atomics only.
    pub(crate) fn has_function_at(&self, pc: usize) -> bool {
        self.has_original_at(pc) || self.version_at(pc).is_some()
    }

    fn has_original_at(&self, pc: usize) -> bool {
        match &self.functions {
            Functions::Eager(_) => pc.wrapping_sub(self.memory.address()) < self.functions_end as usize,
            Functions::Lazy(all) => all.pages().contains(&pc),
        }
    }

    /// The index of the function whose code, or stub, the address is in. Atomics only.
    pub(crate) fn function_at(&self, pc: usize) -> Option<u32> {
        if !self.has_original_at(pc) {
            return self.version_at(pc).map(|(function, _)| function);
        }
        let number = self.functions.find((pc - self.memory.address()) as u32)?;
        Some(self.module.imported_functions + number as u32)
    }

    /// The function whose body is at this offset in the module.
    pub(crate) fn function_with_body_at(&self, offset: u32) -> Option<u32> {
        let (mut from, mut to) = (0, self.functions.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if self.functions.body(middle).start <= offset { from = middle + 1 } else { to = middle }
        }
        let index = self.indices().start + from.checked_sub(1)? as u32;
        self.body_range(index).contains(&offset).then_some(index)
    }

    /// The range of a function's body in the binary module.
    pub(crate) fn body_range(&self, function: u32) -> Range<u32> {
        self.functions.body(self.number(function))
    }

    /// The body of a function in the binary module.
    pub(crate) fn body(&self, function: u32) -> FunctionBody<'_> {
        let Range { start, end } = self.body_range(function);
        FunctionBody::new(BinaryReader::new(&self.bytes[start as usize..end as usize], start.into()))
    }

    /// The type of a parameter or local of a function, if it exists.
    pub(crate) fn local_type(&self, function: u32, index: u32) -> Option<ValType> {
        let params = self.module.function_type(function).params();
        if let Some(ty) = params.get(index as usize) {
            return Some(*ty);
        }
        let mut end = params.len() as u32;
        let mut declared = self.body(function).get_locals_reader().into_iter().flatten().flatten();
        declared.find_map(|(count, ty)| {
            end = end.saturating_add(count);
            (index < end).then_some(ty)
        })
    }

    /// The code positions of a function's instructions, by offsets from its entry.
    ///
    /// # Errors
    /// As for [`CodeImage::observe`].
    pub(crate) fn positions(&self, function: u32) -> Result<Vec<Position>, ObserveError> {
        let mut positions = Positions::default();
        let compiled = self.observe(function, &mut positions)?;
        Ok(positions.in_function(&compiled))
    }

    /// Compiles a function again with an observer. Code offsets are relative to a separate chunk.
    ///
    /// # Errors
    /// The code differs from the code that was linked, which is a defect of the compiler: the
    /// observations do not apply to it.
    pub(crate) fn observe(
        &self,
        function: u32,
        observer: &mut dyn Observer,
    ) -> Result<CompiledFunction, ObserveError> {
        self.observe_code(function, observer).map(|(_, again)| again)
    }

    /// As [`CodeImage::observe`]; also returns the code.
    ///
    /// # Errors
    /// As [`CodeImage::observe`].
    fn observe_code(
        &self,
        function: u32,
        observer: &mut dyn Observer,
    ) -> Result<(Chunk, CompiledFunction), ObserveError> {
        let sites = self.module.settings.sites.into();
        let (chunk, again) =
            self.compile_again(function, Instrumentation { sites: &sites, counting: None }, observer)?;
        let first = self.function(function);
        let sizes = |entry: u32, body: u32, end: u32, frame| (body - entry, end - entry, frame);
        let is_same = sizes(first.entry, first.body, first.end, first.frame_size)
            == sizes(again.entry, again.body, again.end, again.frame_size);
        if is_same { Ok((chunk, again)) } else { Err(ObserveError::Differs { function }) }
    }

    /// Compiles a function with this instrumentation, and an observer.
    fn compile_again(
        &self,
        function: u32,
        instrumentation: Instrumentation<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Chunk, CompiledFunction), Limit> {
        let mut chunk = Chunk::default();
        let mut compiler = Compiler::new(&self.module);
        let body = self.body(function);
        compiler.compile_version(function, &body, &mut chunk, instrumentation, observer)?;
        let again = chunk.functions.pop().expect("a function was compiled");
        Ok((chunk, again))
    }

    /// The catches that an exception passes on its way out, innermost first, if it was raised by
    /// the call in `function` that returns to `pc`, each with its tag and its number among the
    /// catches of the function.
    pub(crate) fn catches(&self, function: u32, pc: usize) -> impl Iterator<Item = (usize, Option<u32>)> {
        // A return address may be the one after the last instruction of a function.
        let version = self.version_at(pc - 1).map(|(_, version)| version);
        let Tables { base, regions, own, catches, first_catch } = self.tables(function, version);
        let offset = (pc - base) as u32;
        // An inner region follows the outer one.
        let is_in = |region: &&TryRegion| region.start < offset && offset <= region.end;
        let innermost = own.iter().rfind(is_in);
        let outer = move |region: &&TryRegion| region.parent.map(|parent| &regions[parent as usize]);
        std::iter::successors(innermost, outer).flat_map(move |region| {
            let first = region.first_catch as usize;
            let numbers = first - first_catch..;
            numbers.zip(catches[first..first + region.catches as usize].iter().map(|catch| catch.tag))
        })
    }

    /// The handler of a catch, by its number among those of the function, for a frame that waits
    /// for the call that returns to `pc`. The handler is that of the current version: the frames of
    /// all versions are alike there.
    pub(crate) fn handler(&self, function: u32, pc: usize, number: usize) -> Handler {
        let version = self.version_for_handler(function, pc - 1);
        let Tables { base, catches, first_catch, .. } = self.tables(function, version);
        Handler {
            address: base + catches[first_catch + number].handler as usize,
            frame_size: version.map_or(self.function(function).frame_size, |version| version.frame_size),
            ends_accessor: !version.is_some_and(probed::Version::ends_accessors),
        }
    }

    /// The try regions of a function, in a version with sites or in its original.
    fn tables<'a>(&'a self, function: u32, version: Option<&'a probed::Version>) -> Tables<'a> {
        if let Some(version) = version {
            let (regions, catches) = version.tables();
            return Tables { base: version.base(), regions, own: regions, catches, first_catch: 0 };
        }
        self.functions.tables(self.memory.address(), self.number(function))
    }
}

#[cfg(test)]
pub(crate) mod tests;
