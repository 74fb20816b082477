//! `wasm_config_t` and `wasm_engine_t`, and the settings of `wasm_jit.h`.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

use wasm_jit::{Cache, Config, Engine};

use crate::last_error::{failed, required};

/// The name of the argument in failure messages.
const A_CONFIG: &str = "a configuration";

#[unsafe(no_mangle)]
extern "C" fn wasm_config_new() -> Box<Config> {
    Box::default()
}

#[unsafe(no_mangle)]
extern "C" fn wasm_config_delete(_: Option<Box<Config>>) {}

#[unsafe(no_mangle)]
extern "C" fn wasm_jit_config_set_lazy_compilation(config: Option<&mut Config>, lazy: bool) {
    if let Some(config) = required(config, A_CONFIG) {
        config.lazy_compilation(lazy);
    }
}

#[unsafe(no_mangle)]
extern "C" fn wasm_jit_config_set_max_wasm_stack(config: Option<&mut Config>, bytes: usize) {
    if let Some(config) = required(config, A_CONFIG) {
        config.max_wasm_stack(bytes);
    }
}

#[unsafe(no_mangle)]
extern "C" fn wasm_jit_config_set_consume_fuel(config: Option<&mut Config>, consume: bool) {
    if let Some(config) = required(config, A_CONFIG) {
        config.consume_fuel(consume);
    }
}

/// # Safety
/// `folder` is null or points to a null-terminated text.
#[unsafe(no_mangle)]
unsafe extern "C" fn wasm_jit_config_set_cache(
    config: Option<&mut Config>,
    folder: *const c_char,
    max_bytes: u64,
) -> bool {
    let (Some(config), false) = (config, folder.is_null()) else {
        failed("a null pointer instead of a configuration or a folder");
        return false;
    };
    // SAFETY: the pointer is not null; the rest is the caller's obligation.
    let folder = unsafe { CStr::from_ptr(folder) };
    match Cache::new(OsStr::from_bytes(folder.to_bytes()), max_bytes) {
        Ok(cache) => {
            config.cache(cache);
            true
        }
        Err(error) => {
            failed(error);
            false
        }
    }
}

/// Creates an engine. Null on a processor that the engine does not support.
#[unsafe(no_mangle)]
extern "C" fn wasm_engine_new() -> Option<Box<Engine>> {
    new(&Config::default())
}

/// As [`wasm_engine_new`], with a configuration; if that is null, the default one.
#[unsafe(no_mangle)]
extern "C" fn wasm_engine_new_with_config(config: Option<Box<Config>>) -> Option<Box<Engine>> {
    new(&config.unwrap_or_default())
}

fn new(config: &Config) -> Option<Box<Engine>> {
    Engine::new(config).map(Box::new).map_err(failed).ok()
}

/// Deletes an engine. Its stores and modules remain usable.
#[unsafe(no_mangle)]
extern "C" fn wasm_engine_delete(_: Option<Box<Engine>>) {}
