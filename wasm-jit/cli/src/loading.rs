//! Loads modules from files: in binary or text format, or precompiled.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use wasm_jit::{Cache, Config, Engine, Error, Module};

use super::{Failure, folders, units};

/// Options for the origin of the modules' machine code.
#[derive(Clone, Debug, Args)]
pub(super) struct Loading {
    /// Cache the machine code of modules in this directory, so that they are not compiled again in
    /// later runs [default: none; without DIR: $XDG_CACHE_HOME/wasm-jit or ~/.cache/wasm-jit]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    cache: Option<Option<PathBuf>>,

    /// The maximum size of that directory; the least recently used code is removed
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = units::bytes, requires = "cache")]
    cache_size: usize,

    /// Compile each function when it is called for the first time: for large programs that run
    /// once
    #[arg(long, conflicts_with = "cache")]
    lazy: bool,

    /// Accept a precompiled module (wasm-jit compile -o) as FILE: its machine code is not confined
    /// to the sandbox, so it must be from somebody who may run programs as you
    #[arg(long)]
    allow_precompiled: bool,
}

impl Loading {
    /// Applies the options to the engine's configuration.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        config.lazy_compilation(self.lazy);
        let Some(folder) = &self.cache else { return Ok(()) };
        let folder = folder.clone().or_else(folders::cache);
        let folder = folder.ok_or_else(|| Failure::new("there is no home directory: use --cache=DIR"))?;
        config.cache(Cache::new(folder, self.cache_size as u64).map_err(Failure::new)?);
        Ok(())
    }

    /// Loads the program.
    pub(super) fn load(&self, engine: &Engine, file: &Path) -> Result<Module, Failure> {
        load_program(engine, file, self.allow_precompiled)
    }
}

/// Loads a module in binary or text format.
pub(super) fn load(engine: &Engine, file: &Path) -> Result<Module, Failure> {
    refuse_precompiled(file)?;
    Module::from_file(engine, file).map_err(|error| failure(file, error))
}

/// Refuses a precompiled module where the original one is needed.
pub(super) fn refuse_precompiled(file: &Path) -> Result<(), Failure> {
    // A file that cannot be read is reported later.
    match is_precompiled(file) {
        Ok(true) => Err(Failure::of_file(
            file,
            "this is a precompiled module: give the .wasm or .wat file that it was made from",
        )),
        _ => Ok(()),
    }
}

/// Loads a module in binary or text format, or a precompiled one if `allow_precompiled`.
pub(super) fn load_program(engine: &Engine, file: &Path, allow_precompiled: bool) -> Result<Module, Failure> {
    // A file that cannot be read is reported by `load`.
    if !is_precompiled(file).unwrap_or(false) {
        return load(engine, file);
    }
    if !allow_precompiled {
        return Err(Failure::of_file(
            file,
            "this is a precompiled module, whose machine code is not confined to the sandbox: if it is \
             from somebody who may run programs as you, pass --allow-precompiled",
        ));
    }
    // SAFETY: the user answers for the contents, by the option; `wasm-jit compile` replaces files
    // and does not write into them.
    let module = unsafe { Module::deserialize_file(engine, file) };
    module.map_err(|error| failure(file, error))
}

fn failure(file: &Path, error: Error) -> Failure {
    match error {
        // The error already names the file.
        Error::Read { .. } => Failure::new(error),
        _ => Failure::of_file(file, error),
    }
}

/// Whether this is a file that begins like a precompiled module. Pipes are not read, because their
/// first bytes would be lost.
fn is_precompiled(file: &Path) -> io::Result<bool> {
    if !fs::metadata(file)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(file)?.take(64).read_to_end(&mut start)?;
    Ok(Module::is_precompiled(&start))
}
