//! `wasm_module_t` and `wasm_shared_module_t`: modules of one store, and modules for any thread.

use wasm_jit::Module;

use crate::last_error::{expect, failed, required};
use crate::object::{Attached, Kind, Object};
use crate::store::StoreHandle;
use crate::types::{ExportType, ImportType};
use crate::vector::{Out, Vector, store};

fn object(store: &StoreHandle, module: Module) -> Box<Object> {
    Object::new(store, Kind::Module(Attached::new(module)))
}

fn module(object: Option<&Object>) -> Option<&Module> {
    expect(object, "a module", |object| match &object.kind {
        Kind::Module(module) => Some(&module.value),
        _ => None,
    })
}

/// Both arguments, if neither is null; otherwise records a failure.
fn binary_for<'a>(
    store: Option<&'a StoreHandle>,
    binary: Option<&'a Vector<u8>>,
) -> Option<(&'a StoreHandle, &'a Vector<u8>)> {
    Some((required(store, "a store")?, required(binary, "a vector of bytes")?))
}

/// Compiles a binary module. Null if it is invalid or unsupported.
#[unsafe(no_mangle)]
extern "C" fn wasm_module_new(
    store: Option<&StoreHandle>,
    binary: Option<&Vector<u8>>,
) -> Option<Box<Object>> {
    let (store, binary) = binary_for(store, binary)?;
    let module = Module::from_binary(store.engine(), binary.elements());
    module.map(|module| object(store, module)).map_err(failed).ok()
}

#[unsafe(no_mangle)]
extern "C" fn wasm_module_validate(store: Option<&StoreHandle>, binary: Option<&Vector<u8>>) -> bool {
    binary_for(store, binary).is_some_and(|(store, binary)| {
        Module::validate(store.engine(), binary.elements()).map_err(failed).is_ok()
    })
}

#[unsafe(no_mangle)]
extern "C" fn wasm_module_imports(object: Option<&Object>, out: Out<'_, Option<Box<ImportType>>>) {
    let imports = module(object).map_or_else(Vector::empty, |module| {
        module.imports().map(|import| Some(Box::new(ImportType::of(&import)))).collect()
    });
    store(out, imports);
}

#[unsafe(no_mangle)]
extern "C" fn wasm_module_exports(object: Option<&Object>, out: Out<'_, Option<Box<ExportType>>>) {
    let exports = module(object).map_or_else(Vector::empty, |module| {
        module.exports().map(|export| Some(Box::new(ExportType::of(&export)))).collect()
    });
    store(out, exports);
}

/// Stores the module with its machine code; an empty vector if that fails.
#[unsafe(no_mangle)]
extern "C" fn wasm_module_serialize(object: Option<&Object>, out: Out<'_, u8>) {
    let bytes = module(object).and_then(|module| module.serialize().map_err(failed).ok());
    store(out, bytes.unwrap_or_default().into_iter().collect());
}

/// Loads a module that [`wasm_module_serialize`] has stored. Null if it is damaged, or was compiled
/// by another version of the engine or with other settings.
///
/// # Safety
/// The machine code is executed: it must not have been tampered with.
#[unsafe(no_mangle)]
unsafe extern "C" fn wasm_module_deserialize(
    store: Option<&StoreHandle>,
    bytes: Option<&Vector<u8>>,
) -> Option<Box<Object>> {
    let (store, bytes) = binary_for(store, bytes)?;
    // SAFETY: the caller's obligation.
    let module = unsafe { Module::deserialize(store.engine(), bytes.elements()) };
    module.map(|module| object(store, module)).map_err(failed).ok()
}

/// Makes a module available to any thread.
#[unsafe(no_mangle)]
extern "C" fn wasm_module_share(object: Option<&Object>) -> Option<Box<Module>> {
    module(object).cloned().map(Box::new)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_shared_module_delete(_: Option<Box<Module>>) {}

/// The module, for a store. Null if the store belongs to another engine.
#[unsafe(no_mangle)]
extern "C" fn wasm_module_obtain(
    store: Option<&StoreHandle>,
    shared: Option<&Module>,
) -> Option<Box<Object>> {
    let (store, module) = (required(store, "a store")?, required(shared, "a shared module")?);
    if !store.engine().same(module.engine()) {
        failed("the module belongs to another engine");
        return None;
    }
    Some(object(store, module.clone()))
}
