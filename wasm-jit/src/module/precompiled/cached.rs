//! Modules of engines with a cache: loaded if they are stored, else compiled and stored.

use std::borrow::Cow;

use super::format::{decode, encode, requirements};
use super::load;
use crate::cache::Cache;
use crate::engine::Engine;
use crate::error::Error;
use crate::module::{Module, compile_binary};
use crate::parallel::{self, PIECE};

/// The module, from the cache or compiled.
///
/// # Errors
/// As for compilation.
pub(in crate::module) fn module(
    engine: &Engine,
    cache: &Cache,
    bytes: Cow<'_, [u8]>,
) -> Result<Module, Error> {
    let key = key(engine, &bytes);
    let loaded = cache.load(&key, |stored, file| {
        // An equal key is not enough: files can be copied.
        let contents = decode(engine, &stored, Some(&bytes)).ok()?;
        // SAFETY: the cache guarantees who has written the contents, and that they do not change.
        unsafe { load(engine, contents, Some(file)) }.ok()
    });
    if let Some(module) = loaded {
        return Ok(module);
    }
    let (parsed, image) = compile_binary(engine, bytes.into_owned().into())?;
    // Nobody else knows the image yet, so nothing of it has been probed.
    if let Some(code) = image.original_code() {
        cache.store(&key, &encode(engine, &image, code));
    }
    Ok(Module::of(engine, parsed, image))
}

/// The name of a module in a cache: a hash of all that affects its code.
fn key(engine: &Engine, module: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (what, value) in requirements(engine) {
        // Both end with a character that neither contains.
        hasher.update(format!("{what}\n{value}\n").as_bytes());
    }
    let threads = engine.compile_threads().get();
    for part in parallel::map(threads, module.chunks(PIECE), blake3::hash) {
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
