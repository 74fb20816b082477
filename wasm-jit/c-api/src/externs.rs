//! `wasm_extern_t`: functions, globals, tables and memories; also tags, which `wasm.h` has no other
//! type for.

use crate::object::Object;
use crate::types::ExternType;
use crate::vector::export_vectors;

export_vectors! {
    "extern" Option<Box<crate::object::Object>>;
}

/// The type; the minimum of tables and memories is their current size.
fn type_of(object: Option<&Object>) -> Option<ExternType> {
    let object = object?.clone();
    let item = object.kind.to_item()?;
    Some(ExternType::of(object.store.with(|store| item.ty(store))))
}

/// Of what is not an extern, the kind of a function.
#[unsafe(no_mangle)]
extern "C" fn wasm_extern_kind(object: Option<&Object>) -> u8 {
    type_of(object).map_or(0, |ty| ty.kind())
}

#[unsafe(no_mangle)]
extern "C" fn wasm_extern_type(object: Option<&Object>) -> Option<Box<ExternType>> {
    type_of(object).map(Box::new)
}
