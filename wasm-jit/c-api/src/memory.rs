//! `wasm_memory_t`: memories of one store, and shared memories.

use std::ptr;
use std::rc::Rc;

use wasm_jit::{Extern, Memory, SharedMemory};

use crate::last_error::{expect, failed, required};
use crate::object::{Kind, Object};
use crate::store::{SharedStore, StoreHandle};
use crate::types::ExternType;

/// Creates a memory. Null if there is no memory, or the limits are invalid.
#[unsafe(no_mangle)]
extern "C" fn wasm_memory_new(store: Option<&StoreHandle>, ty: Option<&ExternType>) -> Option<Box<Object>> {
    let store = &required(store, "a store")?.clone();
    let ty = expect(ty, "the type of a memory", ExternType::as_memory)?;
    let memory = match ty.is_shared() {
        true => SharedMemory::new(ty).map(Kind::SharedMemory),
        false => store.with(|store| Memory::new(store, ty)).map(Kind::Memory),
    };
    Some(Object::new(store, memory.map_err(failed).ok()?))
}

/// Either kind of memory.
enum Either {
    OfStore(Memory),
    Shared(SharedMemory),
}

fn memory(object: Option<&Object>) -> Option<(Rc<SharedStore>, Either)> {
    expect(object, "a memory", |object| {
        let memory = match &object.kind {
            Kind::Memory(memory) => Either::OfStore(*memory),
            Kind::SharedMemory(memory) => Either::Shared(memory.clone()),
            _ => return None,
        };
        Some((object.store.clone(), memory))
    })
}

/// The type of a memory, with its current size as the minimum.
#[unsafe(no_mangle)]
extern "C" fn wasm_memory_type(object: Option<&Object>) -> Option<Box<ExternType>> {
    let (store, memory) = memory(object)?;
    let memory: Extern = match memory {
        Either::OfStore(memory) => memory.into(),
        Either::Shared(memory) => memory.into(),
    };
    Some(Box::new(ExternType::of(store.with(|store| memory.ty(store)))))
}

/// The address of the contents, which never changes and is valid as long as the store.
#[unsafe(no_mangle)]
extern "C" fn wasm_memory_data(object: Option<&Object>) -> *mut u8 {
    match memory(object) {
        Some((store, Either::OfStore(memory))) => store.with(|store| memory.data_ptr(store)),
        Some((_, Either::Shared(memory))) => memory.data_ptr(),
        None => ptr::null_mut(),
    }
}

/// The size of the contents in bytes.
#[unsafe(no_mangle)]
extern "C" fn wasm_memory_data_size(object: Option<&Object>) -> usize {
    match memory(object) {
        Some((store, Either::OfStore(memory))) => store.with(|store| memory.data_size(store)),
        Some((_, Either::Shared(memory))) => memory.data_size(),
        None => 0,
    }
}

/// The size in pages; the maximum of the result's type if it is larger.
#[unsafe(no_mangle)]
extern "C" fn wasm_memory_size(object: Option<&Object>) -> u32 {
    let pages = match memory(object) {
        Some((store, Either::OfStore(memory))) => store.with(|store| memory.size(store)),
        Some((_, Either::Shared(memory))) => memory.size(),
        None => 0,
    };
    u32::try_from(pages).unwrap_or(u32::MAX)
}

/// Grows a memory by a number of pages. False if its maximum is exceeded, or the system has no
/// memory.
#[unsafe(no_mangle)]
extern "C" fn wasm_memory_grow(object: Option<&Object>, delta: u32) -> bool {
    let grown = match memory(object) {
        Some((store, Either::OfStore(memory))) => store.with(|store| memory.grow(store, delta.into())),
        Some((_, Either::Shared(memory))) => memory.grow(delta.into()),
        None => return false,
    };
    grown.map_err(failed).is_ok()
}
