//! [`Host`]: the data of a program's stores.

use wasm_jit_wasi::WasiCtx;

/// The data that the host keeps for a store.
#[derive(Debug)]
pub(super) struct Host {
    /// The program's view of the host.
    pub(super) program: WasiCtx,
    /// The views of monitor modules.
    pub(super) monitors: Vec<WasiCtx>,
}
