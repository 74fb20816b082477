//! Linking: places chunks of code one after the other, and resolves the calls between them.
//!
//! A call to a function that is already placed is resolved when its chunk is added; the others are
//! kept until the end, eight bytes each. Chunks must be added in the order of their functions, so
//! the image does not depend on the order in which threads finish.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use wasm_jit_codegen::{
    Chunk, CompiledFunction, DirectCall, ModuleInfo, entry_trampoline, host_trampoline, lazy_entries,
};
use wordpatch::code_memory::{CodeBuffer, CodeMemory, CodeRoom};

use super::forks::Forks;
use super::functions::{ALIGNMENT, EagerFunctions};
use super::gdb::Shown;
use super::lazy::LazyFunctions;
use super::probed::accessor_users::AccessorUsers;
use super::probed::counters::Counters;
use super::probed::ids::Ids;
use super::probed::{trapped, unwound};
use super::stored::InFile;
use super::{CodeImage, CompileError, Function, Functions, Trampolines, add_regions, registry};
use crate::vmctx::VmLayout;

/// The number of addresses to reserve after code of this size for versions of probed functions and
/// the stubs of probes: more than they may take (`probed/stubs.rs`), since all must reach each
/// other, and memories leave no room elsewhere.
pub(super) fn room_for_probes(code: usize) -> usize {
    (48 << 20) + 64 * code
}

/// The tables of linked code.
pub(super) struct Linked {
    pub functions: Functions,
    pub functions_end: u32,
    pub trampolines: Vec<Option<Trampolines>>,
}

/// Makes linked code executable, and registers it.
pub(super) fn seal(
    code: CodeBuffer,
    module: Arc<ModuleInfo>,
    bytes: Bytes,
    linked: Linked,
) -> Result<Arc<CodeImage>, CompileError> {
    let has_functions = linked.functions.len() > 0;
    let room = if has_functions { room_for_probes(linked.functions_end as usize) } else { 0 };
    let sealed = code.seal_with_room(room)?;
    Ok(image(sealed, module, bytes, linked, None))
}

/// Registers an image of this code, which may be executed in a file.
pub(super) fn image(
    (memory, room): (CodeMemory, CodeRoom),
    module: Arc<ModuleInfo>,
    bytes: Bytes,
    linked: Linked,
    in_file: Option<InFile>,
) -> Arc<CodeImage> {
    let Linked { functions, functions_end, trampolines } = linked;
    let image = CodeImage {
        _registered: None,
        forks: Forks::default(),
        probed: OnceLock::new(),
        must_call: AtomicU32::new(0),
        counters: Counters::default(),
        ids: Ids::default(),
        watchers: unwound::watchers(),
        trap_watchers: trapped::watchers(),
        accessor_users: AccessorUsers::default(),
        memory,
        in_file,
        room: Mutex::new(room),
        shown: Shown::default(),
        layout: VmLayout::new(&module),
        module,
        bytes,
        functions,
        functions_end,
        trampolines,
    };
    registry::register(image, |image, registered| image._registered = Some(registered))
}

/// Code sizes, in bytes, of a module whose functions are compiled when they are first called.
pub(super) struct LazySizes {
    /// The maximum: addresses are reserved for this much code.
    pub most: usize,
    /// The likely size: addresses for probes are reserved for this much code.
    pub likely: usize,
}

#[derive(Debug)]
pub(crate) struct ImageLinker {
    code: CodeBuffer,
    /// The maximum code size is reserved.
    has_limit: bool,
    linked: EagerFunctions,
    /// Calls whose callee is not placed yet; `at` is an offset in the image.
    pending: Vec<DirectCall>,
}

impl ImageLinker {
    /// Reserves `limit` bytes for code, at most 2 GiB, which is the range of a call; or `likely`
    /// bytes if the system refuses that many addresses.
    pub(crate) fn new(limit: usize, likely: usize) -> Result<Self, CompileError> {
        let (code, has_limit) = match CodeBuffer::new(limit) {
            Err(_) if likely < limit => (CodeBuffer::new(likely)?, false),
            code => (code?, true),
        };
        Ok(Self { code, has_limit, linked: EagerFunctions::default(), pending: Vec::new() })
    }

    fn append(&mut self, code: &[u8]) -> Result<u32, CompileError> {
        match self.code.append(code, ALIGNMENT) {
            Some(start) => Ok(start as u32),
            None if self.has_limit => Err(CompileError::TooMuchCode),
            None => Err(CompileError::NoAddresses),
        }
    }

    /// Adds the chunk of the next functions; `bodies` has the ranges of their bodies in the binary
    /// module.
    pub(crate) fn add(
        &mut self,
        module: &ModuleInfo,
        chunk: &Chunk,
        bodies: impl Iterator<Item = Range<usize>>,
    ) -> Result<(), CompileError> {
        let base = self.append(&chunk.code)?;
        for (function, body) in chunk.functions.iter().zip(bodies) {
            debug_assert_eq!(function.index, module.imported_functions + self.linked.functions.len() as u32);
            self.add_function(base, function, &body);
        }
        for call in &chunk.calls {
            let call = DirectCall { at: base + call.at, function: call.function - module.imported_functions };
            match self.linked.functions.get(call.function as usize) {
                Some(callee) => {
                    let callee = callee.entry;
                    self.resolve(call.at, callee);
                }
                None => self.pending.push(call),
            }
        }
        Ok(())
    }

    fn add_function(&mut self, base: u32, function: &CompiledFunction, body: &Range<usize>) {
        let EagerFunctions { functions, regions, catches } = &mut self.linked;
        let first_region = regions.len() as u32;
        add_regions(base, function, regions, catches);
        functions.push(Function {
            entry: base + function.entry,
            body: base + function.body,
            end: base + function.end,
            frame_size: function.frame_size,
            first_region,
            wasm_start: body.start as u32,
            wasm_end: body.end as u32,
        });
    }

    /// Writes the rel32 at `at`, which is relative to its end.
    fn resolve(&mut self, at: u32, target: u32) {
        let displacement = target.wrapping_sub(at + 4);
        let at = at as usize;
        self.code.bytes_mut()[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    }

    /// Resolves the remaining calls, adds trampolines for the types selected by `used`, and makes
    /// the code executable.
    pub(crate) fn finish(
        mut self,
        module: Arc<ModuleInfo>,
        bytes: Bytes,
        used: &[bool],
    ) -> Result<Arc<CodeImage>, CompileError> {
        for call in std::mem::take(&mut self.pending) {
            let callee = self.linked.functions[call.function as usize].entry;
            self.resolve(call.at, callee);
        }
        let functions_end = self.code.len() as u32;
        let trampolines = self.trampolines(&module, used)?;
        let mut linked = self.linked;
        linked.functions.shrink_to_fit();
        linked.regions.shrink_to_fit();
        linked.catches.shrink_to_fit();
        let functions = Functions::Eager(linked);
        seal(self.code, module, bytes, Linked { functions, functions_end, trampolines })
    }

    /// Makes an image of functions with these bodies, each of which is compiled when it is first
    /// called, and of trampolines for the types selected by `used`. Nothing must have been added.
    pub(super) fn finish_lazily(
        mut self,
        module: Arc<ModuleInfo>,
        bytes: Bytes,
        bodies: impl Iterator<Item = Range<u32>>,
        sizes: LazySizes,
        used: &[bool],
    ) -> Result<Arc<CodeImage>, CompileError> {
        self.append(&lazy_entries(module.imported_functions..module.functions.len() as u32))?;
        let functions_end = self.code.len() as u32;
        let trampolines = self.trampolines(&module, used)?;
        let room = sizes.most.saturating_add(room_for_probes(sizes.likely));
        let (memory, mut room) = self.code.seal_with_room(room)?;
        // If there are fewer addresses, a quarter is for probes.
        let arena = room.arena(sizes.most.min(room.len() / 4 * 3))?.ok_or(CompileError::NoAddresses)?;
        // The image is found by addresses in either part.
        debug_assert_eq!(memory.pages().end, arena.pages().start);
        let functions = Functions::Lazy(Box::new(LazyFunctions::new(bodies, arena)));
        let linked = Linked { functions, functions_end, trampolines };
        Ok(image((memory, room), module, bytes, linked, None))
    }

    /// Equal types share their trampolines.
    fn trampolines(
        &mut self,
        module: &ModuleInfo,
        used: &[bool],
    ) -> Result<Vec<Option<Trampolines>>, CompileError> {
        let mut made = HashMap::new();
        let mut code = Vec::new();
        let mut all = Vec::with_capacity(used.len());
        for (ty, used) in module.types.iter().zip(used) {
            let Some(ty) = ty.func().filter(|_| *used) else {
                all.push(None);
                continue;
            };
            let trampolines = match made.get(ty) {
                Some(trampolines) => *trampolines,
                None => {
                    let mut place = |make: fn(&wasmparser::FuncType, &mut Vec<u8>)| {
                        code.clear();
                        make(ty, &mut code);
                        self.append(&code)
                    };
                    let entry = place(entry_trampoline)?;
                    let host = place(host_trampoline)?;
                    let trampolines = Trampolines { entry, host };
                    made.insert(ty, trampolines);
                    trampolines
                }
            };
            all.push(Some(trampolines));
        }
        Ok(all)
    }
}
