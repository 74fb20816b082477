//! [`Host`]: the data of a program's stores.

use wasm_jit_wasi::WasiCtx;

/// What the host keeps for a store.
#[derive(Debug)]
pub(super) struct Host {
    /// The program's.
    pub(super) program: WasiCtx,
    /// Those of monitor modules.
    pub(super) monitors: Vec<WasiCtx>,
}
