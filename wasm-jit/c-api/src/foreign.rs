//! `wasm_foreign_t`: host values that WebAssembly holds and passes on. Their meaning is given by
//! what the host attaches to them.

use crate::last_error::required;
use crate::object::{Kind, Object};
use crate::store::StoreHandle;

/// Creates a foreign object. The finalizer of what is attached to it runs when neither C code nor
/// WebAssembly has a reference to it, which the engine detects from time to time.
#[unsafe(no_mangle)]
extern "C" fn wasm_foreign_new(store: Option<&StoreHandle>) -> Option<Box<Object>> {
    required(store, "a store").map(|store| Object::new(store, Kind::foreign()))
}
