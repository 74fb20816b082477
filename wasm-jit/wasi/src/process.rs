//! `proc_exit`, `proc_raise`, `sched_yield`.

use wasm_jit::Exit;

use super::context::WasiCtx;
use super::errno::{Errno, Failure, Outcome};
use super::memory::GuestMemory;

impl WasiCtx {
    /// Ends the program; never succeeds.
    pub(crate) fn proc_exit(&self, _memory: &GuestMemory<'_>, code: u32) -> Outcome {
        Err(Failure::Exit(Exit(code.cast_signed())))
    }

    /// Signals are not supported.
    pub(crate) fn proc_raise(&self, _memory: &GuestMemory<'_>, _signal: u32) -> Outcome {
        Err(Errno::Notsup.into())
    }

    pub(crate) fn sched_yield(&self, _memory: &GuestMemory<'_>) -> Outcome {
        std::thread::yield_now();
        Ok(())
    }
}
