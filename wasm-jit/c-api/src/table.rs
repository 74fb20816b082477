//! `wasm_table_t`: tables of references.

use std::rc::Rc;

use wasm_jit::{Error, Extern, Table};

use crate::last_error::{expect, failed, required};
use crate::object::{Kind, Object};
use crate::store::{SharedStore, StoreHandle};
use crate::types::ExternType;
use crate::value;

/// Creates a table whose elements are `init`. Null if `init` is of another type.
#[unsafe(no_mangle)]
extern "C" fn wasm_table_new(
    store: Option<&StoreHandle>,
    ty: Option<&ExternType>,
    init: Option<&Object>,
) -> Option<Box<Object>> {
    let store = &required(store, "a store")?.clone();
    let ty = expect(ty, "the type of a table", ExternType::as_table)?;
    let init = value::reference(store, init, ty.element());
    let table = init.and_then(|init| store.with(|store| Table::new(store, ty, init)));
    Some(Object::new(store, Kind::Table(table.map_err(failed).ok()?)))
}

fn table(object: Option<&Object>) -> Option<(Rc<SharedStore>, Table)> {
    expect(object, "a table", |object| match object.kind {
        Kind::Table(table) => Some((object.store.clone(), table)),
        _ => None,
    })
}

/// The type of a table, with its current size as the minimum.
#[unsafe(no_mangle)]
extern "C" fn wasm_table_type(object: Option<&Object>) -> Option<Box<ExternType>> {
    let (store, table) = table(object)?;
    Some(Box::new(ExternType::of(store.with(|store| Extern::Table(table).ty(store)))))
}

/// The element at an index; null if it is null, or the index is beyond the table.
#[unsafe(no_mangle)]
extern "C" fn wasm_table_get(object: Option<&Object>, index: u32) -> Option<Box<Object>> {
    let (store, table) = table(object)?;
    let Some(element) = store.with(|store| table.get(store, index.into())) else {
        let size = store.with(|store| table.size(store));
        failed(format_args!("the index {index} is beyond the table's {size} elements"));
        return None;
    };
    value::object(&store, &element)
}

/// Sets an element. False for an index beyond the table, and for a reference of another type.
#[unsafe(no_mangle)]
extern "C" fn wasm_table_set(object: Option<&Object>, index: u32, reference: Option<&Object>) -> bool {
    change(object, reference, |store, table, element| {
        store.with(|store| table.set(store, index.into(), element))
    })
}

/// Changes a table by `change`, with a reference of its type. Returns whether that was possible.
fn change(
    object: Option<&Object>,
    reference: Option<&Object>,
    change: impl FnOnce(&SharedStore, Table, wasm_jit::Val) -> Result<(), Error>,
) -> bool {
    let Some((store, table)) = table(object) else { return false };
    let element = store.with(|store| table.ty(store)).element();
    let element = value::reference(&store, reference, element);
    element.and_then(|element| change(&store, table, element)).map_err(failed).is_ok()
}

/// The number of elements; the maximum of the result's type if it is larger.
#[unsafe(no_mangle)]
extern "C" fn wasm_table_size(object: Option<&Object>) -> u32 {
    let size = table(object).map_or(0, |(store, table)| store.with(|store| table.size(store)));
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Grows a table. False if its maximum, or the engine's, is exceeded, and for a reference of
/// another type.
#[unsafe(no_mangle)]
extern "C" fn wasm_table_grow(object: Option<&Object>, delta: u32, init: Option<&Object>) -> bool {
    change(object, init, |store, table, element| {
        store.with(|store| table.grow(store, delta.into(), element)).map(drop)
    })
}
