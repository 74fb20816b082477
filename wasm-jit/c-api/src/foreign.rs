//! `wasm_foreign_t`: values of the host, for WebAssembly to hold and pass on. What they are is what
//! the host attaches to them.

use crate::last_error::required;
use crate::object::{Kind, Object};
use crate::store::StoreHandle;

/// A new object. The finalizer of what is attached to it runs when neither C code nor WebAssembly
/// has a reference to it, which the engine finds out from time to time.
#[unsafe(no_mangle)]
extern "C" fn wasm_foreign_new(store: Option<&StoreHandle>) -> Option<Box<Object>> {
    required(store, "a store").map(|store| Object::new(store, Kind::foreign()))
}
