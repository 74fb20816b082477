//! `wasm_config_t` and `wasm_engine_t`.

use wasm_jit::{Config, Engine};

use crate::last_error::failed;

#[unsafe(no_mangle)]
extern "C" fn wasm_config_new() -> Box<Config> {
    Box::default()
}

#[unsafe(no_mangle)]
extern "C" fn wasm_config_delete(_: Option<Box<Config>>) {}

/// Null on a processor that the engine does not support.
#[unsafe(no_mangle)]
extern "C" fn wasm_engine_new() -> Option<Box<Engine>> {
    new(&Config::default())
}

/// As [`wasm_engine_new`]; without a configuration, the default one.
#[unsafe(no_mangle)]
extern "C" fn wasm_engine_new_with_config(config: Option<Box<Config>>) -> Option<Box<Engine>> {
    new(&config.unwrap_or_default())
}

fn new(config: &Config) -> Option<Box<Engine>> {
    Engine::new(config).map(Box::new).map_err(failed).ok()
}

/// Stores and modules of the engine remain usable.
#[unsafe(no_mangle)]
extern "C" fn wasm_engine_delete(_: Option<Box<Engine>>) {}
