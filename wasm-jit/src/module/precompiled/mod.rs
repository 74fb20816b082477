//! Precompiled modules: machine code in a file, which is loaded instead of being compiled.
//!
//! A precompiled module has the binary module, its machine code, and the tables of the code
//! (`code/stored.rs` says why nothing else is needed). `format.rs` has its layout and its checks.
//! Declarations are decoded again from the binary module, without validation; function bodies are
//! not read. A loaded module is therefore like one that was just compiled: names, lines, probes,
//! versions and listings are computed from the same bytes, with the same code.
//!
//! The code works together with the engine's own code: everything that affects it, or that it
//! relies on, is a [requirement](format::requirements), and a module with other requirements is
//! refused.
//!
//! The code of a file is executed where the file is mapped, so loading takes little more than the
//! time to read the file once, for its checksums.
//!
//! # Who may change a file
//! A file is verified when it is loaded, completely. From then on it must not change: bytes that
//! are overwritten may be executed, and an access beyond the end of a truncated file is a SIGBUS.
//! Files of a [cache](crate::Cache) do not change, because only the user can write to them, and
//! this engine replaces them by renaming new ones, as `wasm-jit compile -o` does. For other files,
//! this is an obligation of the caller.
//!
//! With a cache ([`Config::cache`](crate::Config::cache)), all of this happens automatically
//! (`cached.rs`).

pub(super) mod cached;
mod format;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::MmapOptions;

use super::{Module, compile_binary, parse};
use crate::code::CodeImage;
use crate::engine::Engine;
use crate::error::{Error, PrecompiledError};
use format::Contents;

impl Module {
    /// The module with its machine code, for [`Module::deserialize`] and
    /// [`Module::deserialize_file`]. The result is always complete: the module is compiled once
    /// more if its functions are compiled [when they are first
    /// called](crate::Config::lazy_compilation), or if they have been probed, because probes change
    /// code.
    ///
    /// ```
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "answer") (result i32) i32.const 42))"#)?;
    /// let bytes = module.serialize()?;
    ///
    /// // SAFETY: they come from `serialize`, and were not accessible to anybody else.
    /// let module = unsafe { Module::deserialize(&engine, &bytes)? };
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let answer = instance.get_typed_func::<(), i32>(&store, "answer")?;
    /// assert_eq!(answer.call(&mut store, ())?, 42);
    /// # Ok::<(), wasm_jit::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Module::new`], if the module is compiled once more.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let image = self.code();
        if let Some(code) = image.original_code() {
            return Ok(format::encode(self.engine(), image, code));
        }
        let (_, image) = compile_binary(self.engine(), image.bytes.clone())?;
        let code = image.original_code().expect("nobody else knows the new code");
        Ok(format::encode(self.engine(), &image, code))
    }

    /// Whether the first bytes are those of a [precompiled](Module::serialize) module.
    pub fn is_precompiled(bytes: &[u8]) -> bool {
        bytes.starts_with(&format::MAGIC)
    }

    /// Loads a module that [`Module::serialize`] returned, in this process or another one. The
    /// engine must have the same version and the same code-generation settings as the one that
    /// compiled the module. Names of functions, source lines, probes, traps and listings are the
    /// same as if the module had been compiled.
    ///
    /// # Safety
    /// The bytes must be those that [`Module::serialize`] returned. Accidental changes are
    /// detected, deliberate ones are not, and the loaded code can do whatever the process can.
    ///
    /// # Errors
    /// [`Error::Precompiled`] if the module is damaged, or was compiled by an engine of another
    /// version or with other settings; [`Error::Code`] if the system refused memory.
    pub unsafe fn deserialize(engine: &Engine, bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        let contents = format::decode(engine, &Bytes::copy_from_slice(bytes.as_ref()), None)?;
        // SAFETY: the caller's obligation.
        unsafe { load(engine, contents, None) }
    }

    /// As [`Module::deserialize`], from a file. The file is mapped, not read, so parts that are not
    /// needed do not take memory. The code is executed in the file, unless the [engine's
    /// settings](crate::Config::map_stored_code) or the file system (a mount option, `noexec`)
    /// forbid it, or the module has been probed.
    ///
    /// # Safety
    /// As for [`Module::deserialize`]; and the file must not be written or truncated as long as the
    /// module exists: changed code would be executed, and reading beyond the end of a truncated
    /// file ends the process by a SIGBUS. The file may be removed, or replaced by another one of
    /// this name, as `wasm-jit compile -o` does.
    ///
    /// # Errors
    /// As for [`Module::deserialize`], and [`Error::Read`] if the file cannot be read.
    pub unsafe fn deserialize_file(engine: &Engine, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the file stays unchanged, by the caller's obligation.
        let map = unsafe { MmapOptions::new().populate().map(&file) }.map_err(failed)?;
        let contents = format::decode(engine, &Bytes::from_owner(map), None)?;
        // SAFETY: the caller's obligation.
        unsafe { load(engine, contents, Some(&file)) }
    }
}

/// The module with these contents, which may be those of a file.
///
/// # Safety
/// They come from [`Module::serialize`], and do not change as long as the module exists.
unsafe fn load(engine: &Engine, contents: Contents, file: Option<&File>) -> Result<Module, Error> {
    let Contents { module: bytes, code, code_offset, tables } = contents;
    let mut parsed = parse::declarations(engine, &bytes)?;
    let info = Arc::new(std::mem::take(&mut parsed.info));
    let place = file.filter(|_| engine.maps_stored_code()).map(|file| (file, code_offset));
    // SAFETY: the caller's obligation.
    let image = unsafe { CodeImage::load(info, bytes, code, place, tables, engine.compile_threads().get())? };
    let image = image.ok_or(PrecompiledError::Damaged { what: "its code is not that of its module" })?;
    Ok(Module::of(engine, parsed, image))
}
