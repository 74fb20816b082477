//! What stops a program: interrupts, and fuel.

use std::mem::MaybeUninit;

use wasm_jit::{AsContext, InterruptHandle};

use crate::last_error::{failed, required};
use crate::store::StoreHandle;
use crate::vector;

/// Creates a handle to stop the store's program. Null in a host function of the store.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_interrupt_handle_new(store: Option<&StoreHandle>) -> Option<Box<InterruptHandle>> {
    let handle = required(store, "a store")?.interrupt_handle();
    if handle.is_none() {
        failed("an interrupt handle must be created before the store's program runs");
    }
    handle.map(Box::new)
}

/// Stops the program, from any thread.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_interrupt(handle: Option<&InterruptHandle>) {
    if let Some(handle) = required(handle, "an interrupt handle") {
        handle.interrupt();
    }
}

/// Deletes a handle, before or after its store.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_interrupt_handle_delete(_: Option<Box<InterruptHandle>>) {}

/// Sets the fuel of a store. False if the engine's programs consume none.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_store_set_fuel(store: Option<&StoreHandle>, fuel: u64) -> bool {
    let Some(store) = required(store, "a store") else { return false };
    store.with(|mut store| store.set_fuel(fuel)).map_err(failed).is_ok()
}

/// Stores the fuel that is left. False, and 0, if the engine's programs consume none.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_store_get_fuel(
    store: Option<&StoreHandle>,
    out: Option<&mut MaybeUninit<u64>>,
) -> bool {
    let fuel = required(store, "a store")
        .and_then(|store| store.with(|store| store.as_context().get_fuel()).map_err(failed).ok());
    vector::store(out, fuel.unwrap_or(0));
    fuel.is_some()
}
