//! The functions that probes call at calls and returns.
//!
//! Compiled code calls them directly, with constants in registers: a closure would take twice as
//! long as everything else.

use wasm_jit::probes::NativeFn;

use super::local::with;

/// The functions. The first argument of each is the number of the monitor; the comments list the
/// others.
#[derive(Clone, Copy)]
pub(super) struct Events {
    /// Takes the function that is entered, and its frame.
    pub(super) enter: NativeFn,
    /// Takes the frame.
    pub(super) leave: NativeFn,
    /// Takes the frame.
    pub(super) tail_call: NativeFn,
    /// Takes the host function, and the frame of the caller.
    pub(super) tail_call_host: NativeFn,
    /// Takes the host function, and the frame of the caller.
    pub(super) enter_host: NativeFn,
    /// Takes the frame of the caller.
    pub(super) leave_host: NativeFn,
}

impl Events {
    pub(super) fn get() -> Self {
        type Of2 = extern "C" fn(u64, u64);
        type Of3 = extern "C" fn(u64, u64, u64);
        // SAFETY: for each of them:
        // - it takes any values, at any time, on any thread: it ignores numbers of monitors that do
        //   not exist or no longer exist; it is part of the program, and refers to no other object;
        // - it returns; Rust aborts when a panic would leave an `extern "C"` function;
        // - it uses a few hundred bytes of stack, far less than 128 KiB;
        // - it uses no store.
        unsafe {
            Self {
                enter: NativeFn::new(enter as Of3),
                leave: NativeFn::new(leave as Of2),
                tail_call: NativeFn::new(tail_call as Of2),
                tail_call_host: NativeFn::new(tail_call_host as Of3),
                enter_host: NativeFn::new(enter_host as Of3),
                leave_host: NativeFn::new(leave_host as Of2),
            }
        }
    }
}

extern "C" fn enter(monitor: u64, function: u64, frame: u64) {
    with(monitor, |local| local.enter(function as u32, frame));
}

extern "C" fn leave(monitor: u64, frame: u64) {
    with(monitor, |local| local.leave(frame));
}

extern "C" fn tail_call(monitor: u64, frame: u64) {
    with(monitor, |local| local.tail_call(frame));
}

extern "C" fn tail_call_host(monitor: u64, function: u64, frame: u64) {
    with(monitor, |local| local.tail_call_host(function as u32, frame));
}

extern "C" fn enter_host(monitor: u64, function: u64, frame: u64) {
    with(monitor, |local| local.enter_host(function as u32, frame));
}

extern "C" fn leave_host(monitor: u64, frame: u64) {
    with(monitor, |local| local.leave_host(frame));
}
