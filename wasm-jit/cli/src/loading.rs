//! Loads modules from files: in binary or text format, or precompiled.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use wasm_jit::{Engine, Error, Module};

use super::Failure;

/// Loads a module in binary or text format.
pub(super) fn load(engine: &Engine, file: &Path) -> Result<Module, Failure> {
    Module::from_file(engine, file).map_err(|error| failure(file, error))
}

/// Loads a module in binary or text format, or a precompiled one if `allow_precompiled`.
pub(super) fn load_program(engine: &Engine, file: &Path, allow_precompiled: bool) -> Result<Module, Failure> {
    match (is_precompiled(file), allow_precompiled) {
        // What cannot be read is reported by `load`.
        (Err(_) | Ok(false), _) => load(engine, file),
        (Ok(true), false) => Err(Failure::of_file(
            file,
            "this is a precompiled module, whose machine code is not confined to the sandbox: if it is \
             from somebody who may run programs as you, pass --allow-precompiled",
        )),
        // SAFETY: the user answers for the contents, by the option; `wasm-jit compile` replaces
        // files and does not write into them.
        (Ok(true), true) => {
            unsafe { Module::deserialize_file(engine, file) }.map_err(|error| failure(file, error))
        }
    }
}

fn failure(file: &Path, error: Error) -> Failure {
    match error {
        // The error already names the file.
        Error::Read { .. } => Failure::new(error),
        _ => Failure::of_file(file, error),
    }
}

/// Whether it is a file that begins like a precompiled module. Pipes are not read: their first bytes
/// would be lost.
fn is_precompiled(file: &Path) -> io::Result<bool> {
    if !fs::metadata(file)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    File::open(file)?.take(64).read_to_end(&mut start)?;
    Ok(Module::is_precompiled(&start))
}
