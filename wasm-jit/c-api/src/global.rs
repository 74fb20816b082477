//! `wasm_global_t`: global variables.

use std::mem::MaybeUninit;
use std::rc::Rc;

use wasm_jit::{Error, Global, ValType};

use crate::last_error::{expect, failed, required};
use crate::object::{Kind, Object};
use crate::store::{SharedStore, StoreHandle};
use crate::types::ExternType;
use crate::value::{Value, no_vectors};
use crate::vector;

/// Creates a global. Null if the value is of another type, or the type is a vector.
#[unsafe(no_mangle)]
extern "C" fn wasm_global_new(
    store: Option<&StoreHandle>,
    ty: Option<&ExternType>,
    value: Option<&Value>,
) -> Option<Box<Object>> {
    let store = &required(store, "a store")?.clone();
    let ty = expect(ty, "the type of a global", ExternType::as_global)?;
    let value = required(value, "a value")?.to_engine(store, ty.content()).map_err(failed).ok()?;
    let global = store.with(|store| Global::new(store, ty, value)).map_err(failed).ok()?;
    Some(Object::new(store, Kind::Global(global)))
}

fn global(object: Option<&Object>) -> Option<(Rc<SharedStore>, Global)> {
    expect(object, "a global", |object| match object.kind {
        Kind::Global(global) => Some((object.store.clone(), global)),
        _ => None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn wasm_global_type(object: Option<&Object>) -> Option<Box<ExternType>> {
    let (store, global) = global(object)?;
    let ty = store.with(|store| global.ty(store));
    Some(Box::new(ExternType::of(wasm_jit::ExternType::Global(ty))))
}

/// Stores the value of a global; for a vector, only its kind.
#[unsafe(no_mangle)]
extern "C" fn wasm_global_get(object: Option<&Object>, out: Option<&mut MaybeUninit<Value>>) {
    let value = global(object).map(|(store, global)| {
        let value = store.with(|store| global.get(store));
        Value::of(&store, &value)
    });
    vector::store(out, value.unwrap_or_else(Value::zero));
}

/// Sets a global. Has no effect if it is constant or the value is of another type.
#[unsafe(no_mangle)]
extern "C" fn wasm_global_set(object: Option<&Object>, value: Option<&Value>) {
    let (Some((store, global)), Some(value)) = (global(object), required(value, "a value")) else { return };
    if let Err(error) = set(&store, global, value) {
        failed(error);
    }
}

fn set(store: &Rc<SharedStore>, global: Global, value: &Value) -> Result<(), Error> {
    let ty = store.with(|store| global.ty(store)).content();
    if ty == ValType::V128 {
        return Err(no_vectors());
    }
    let value = value.to_engine(store, ty)?;
    store.with(|store| global.set(store, value))
}
