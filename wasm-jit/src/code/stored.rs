//! Code that is stored and loaded again, in another process.
//!
//! # What an image consists of
//! * The code: that of functions, their constants and jump tables, and that of trampolines. It
//!   refers to itself by distances, and to everything else through the context in `r14`: routines
//!   of the runtime, functions, tables, memories, ids of types. It is therefore the same at all
//!   addresses and in all processes, and nothing is relocated.
//! * The tables: positions of functions, try regions and their catches, positions of trampolines.
//!   All of them are offsets.
//! * The module's declarations, from which the layout of contexts follows, and its bytes. They come
//!   from the binary module.
//!
//! What is recorded while a module is used is not stored: versions and stubs of probes, counters,
//! ids. Positions of instructions, frame maps and sites are not part of an image: they are computed
//! by compiling a function again, from the module's bytes.
//!
//! # Where loaded code is executed
//! Code of a file that does not change is executed where the file is mapped: nothing is copied, and
//! processes share the pages, which are mapped as they are executed. It is copied before it is
//! patched, when its first probe is made ([`CodeImage::make_patchable`]). Code that is in no such
//! file, or in a file system that is mounted `noexec`, is copied when it is loaded.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasm_jit_codegen::{Catch, ModuleInfo};
use wordpatch::code_memory::{CodeBuffer, CodeMemory};

use super::functions::{EagerFunctions, Function, Functions, TryRegion};
use super::link::{Linked, image, room_for_probes, seal};
use super::{CodeImage, CompileError, Trampolines};
use crate::parallel;

/// The tables of an image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredTables {
    functions: Vec<Function>,
    regions: Vec<TryRegion>,
    /// Tag and handler of each catch.
    catches: Vec<(Option<u32>, u32)>,
    functions_end: u32,
    trampolines: Vec<Option<Trampolines>>,
}

impl CodeImage {
    /// The code as it was compiled, and its tables; `None` if a function has been probed, which
    /// changes code, or functions are compiled when they are first called.
    pub(crate) fn original_code(&self) -> Option<(Vec<u8>, StoredTables)> {
        let Functions::Eager(all) = &self.functions else { return None };
        let code = self.memory.code();
        // Checked after the copy, which may contain probes that are inserted at the same time.
        self.probed.get().is_none().then(|| (code, self.tables_of(all)))
    }

    fn tables_of(&self, all: &EagerFunctions) -> StoredTables {
        StoredTables {
            functions: all.functions.clone(),
            regions: all.regions.clone(),
            catches: all.catches.iter().map(|catch| (catch.tag, catch.handler)).collect(),
            functions_end: self.functions_end,
            trampolines: self.trampolines.clone(),
        }
    }

    /// An image of code that was stored. At most `threads` threads copy it, now or later. `None` if
    /// code and tables do not belong to the module.
    ///
    /// # Safety
    /// If `place` says in which file the code is, and at which offset (a multiple of the page
    /// size), the file does not change as long as the image exists.
    pub(crate) unsafe fn load(
        module: Arc<ModuleInfo>,
        bytes: Bytes,
        code: Bytes,
        place: Option<(&File, u64)>,
        tables: StoredTables,
        threads: usize,
    ) -> Result<Option<Arc<Self>>, CompileError> {
        let own_functions = module.functions.len() - module.imported_functions as usize;
        let belongs = tables.functions.len() == own_functions
            && tables.trampolines.len() == module.types.len()
            && tables.functions_end as usize <= code.len();
        if !belongs {
            return Ok(None);
        }
        let functions = EagerFunctions {
            functions: tables.functions,
            regions: tables.regions,
            catches: tables.catches.into_iter().map(|(tag, handler)| Catch { tag, handler }).collect(),
        };
        let linked = Linked {
            functions: Functions::Eager(functions),
            functions_end: tables.functions_end,
            trampolines: tables.trampolines,
        };
        let room = room_for_probes(code.len());
        if let Some((file, offset)) = place.filter(|_| !code.is_empty()) {
            // SAFETY: the caller's obligation.
            match unsafe { CodeMemory::map(file, offset, code.len(), room) } {
                Ok(memory) => {
                    let in_file = InFile { code, threads };
                    return Ok(Some(image(memory, module, bytes, linked, Some(in_file))));
                }
                Err(error) if is_not_executable(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut buffer = CodeBuffer::new(code.len() + room).or_else(|_| CodeBuffer::new(code.len()))?;
        let place = buffer.append_by(code.len(), 1, |place| parallel::copy(threads, place, &code));
        place.expect("the buffer is as long as the code");
        seal(buffer, module, bytes, linked).map(Some)
    }

    /// Copies code that is executed in a file, so that it can be patched. Threads may be executing
    /// it.
    ///
    /// # Errors
    /// The system refuses memory, or this is a forked child that shares text with its parent.
    pub(super) fn make_patchable(&self) -> Result<(), wordpatch::Error> {
        let Some(InFile { code, threads }) = &self.in_file else { return Ok(()) };
        // SAFETY: these are the bytes of the file.
        unsafe { self.memory.make_patchable(|place| parallel::copy(*threads, place, code)) }
    }
}

/// Code that is executed in a file, as bytes to be copied.
#[derive(Debug)]
pub(super) struct InFile {
    code: Bytes,
    /// The maximum number of threads that copy it.
    threads: usize,
}

/// Whether a file cannot be mapped because it must not be executed.
fn is_not_executable(error: &wordpatch::Error) -> bool {
    matches!(error, wordpatch::Error::CodeMemory { source } if source.kind() == io::ErrorKind::PermissionDenied)
}
