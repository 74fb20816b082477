//! Whamm for programs that run in [`wasm_jit`]: monitors that are modules of WebAssembly.

pub mod lang;
pub mod monitor_module;
pub mod native;
pub mod rewrite;
