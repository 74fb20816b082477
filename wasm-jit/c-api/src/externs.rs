//! `wasm_extern_t`: functions, globals, tables and memories, and also tags, which have no other
//! type in `wasm.h`.

use crate::last_error::expect;
use crate::object::{Kind, Object};
use crate::types::{ExternType, extern_kind};
use crate::vector::export_vectors;

export_vectors! {
    "extern" Option<Box<crate::object::Object>>;
}

/// The name of the argument in failure messages.
const AN_EXTERN: &str = "a function, global, table, memory or tag";

/// The type of an extern; the minimum of tables and memories is their current size.
fn type_of(object: Option<&Object>) -> Option<ExternType> {
    let (store, item) =
        expect(object, AN_EXTERN, |object| Some((object.store.clone(), object.kind.to_item()?)))?;
    Some(ExternType::of(store.with(|store| item.ty(store))))
}

/// The kind of an extern; for anything else, that of a function.
#[unsafe(no_mangle)]
extern "C" fn wasm_extern_kind(object: Option<&Object>) -> u8 {
    let kind = expect(object, AN_EXTERN, |object| {
        Some(match object.kind {
            Kind::Func(_) => extern_kind::FUNC,
            Kind::Global(_) => extern_kind::GLOBAL,
            Kind::Table(_) => extern_kind::TABLE,
            Kind::Memory(_) | Kind::SharedMemory(_) => extern_kind::MEMORY,
            Kind::Tag(_) => extern_kind::TAG,
            _ => return None,
        })
    });
    kind.unwrap_or(extern_kind::FUNC)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_extern_type(object: Option<&Object>) -> Option<Box<ExternType>> {
    type_of(object).map(Box::new)
}
