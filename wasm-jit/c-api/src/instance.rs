//! `wasm_instance_t`: instances of modules.

use std::mem::MaybeUninit;
use std::rc::Rc;

use wasm_jit::{Error, Extern, Instance, Module};

use crate::last_error::{expect, failed, null, other, required};
use crate::object::{Kind, Object};
use crate::store::{SharedStore, StoreHandle};
use crate::trap;
use crate::vector::{self, Out, Vector};

type Externs = Vector<Option<Box<Object>>>;

/// Instantiates a module with these imports, in the module's order. On failure the result is null
/// and the trap has the reason; otherwise the trap is null.
///
/// The module may belong to another store of the engine, which another thread uses: nothing in its
/// object is changed here, since its reference count is not atomic.
#[unsafe(no_mangle)]
extern "C" fn wasm_instance_new(
    store: Option<&StoreHandle>,
    module: Option<&Object>,
    imports: Option<&Externs>,
    trap: Option<&mut MaybeUninit<Option<Box<Object>>>>,
) -> Option<Box<Object>> {
    let Some(store) = required(store, "a store") else {
        vector::store(trap, None);
        return None;
    };
    // C code may delete the store and the module while the start function runs.
    let store = store.clone();
    let instance = module_of(module).and_then(|module| instantiate(&store, &module, imports));
    let (instance, failure) = match instance {
        Ok(instance) => (Some(Object::new(&store, Kind::Instance(instance))), None),
        Err(error) => {
            failed(&error);
            (None, Some(trap::of_error(&store, error)))
        }
    };
    vector::store(trap, failure);
    instance
}

fn module_of(object: Option<&Object>) -> Result<Module, Error> {
    match object.map(|object| &object.kind) {
        Some(Kind::Module(module)) => Ok(module.value.clone()),
        Some(_) => Err(Error::host(other("a module"))),
        None => Err(Error::host(null("a module"))),
    }
}

fn instantiate(
    store: &Rc<SharedStore>,
    module: &Module,
    imports: Option<&Externs>,
) -> Result<Instance, Error> {
    if !store.engine().same(module.engine()) {
        return Err(Error::host("the module belongs to another engine"));
    }
    let imports = imports.map_or(&[][..], Vector::elements).iter();
    let imports: Option<Vec<Extern>> = imports.map(|import| import.as_ref()?.kind.to_item()).collect();
    let imports = imports.ok_or_else(|| Error::host("an import is null"))?;
    store.instantiate(module, &imports)
}

/// Stores all exports, in the module's order.
#[unsafe(no_mangle)]
extern "C" fn wasm_instance_exports(object: Option<&Object>, out: Out<'_, Option<Box<Object>>>) {
    let instance = expect(object, "an instance", |object| match object.kind {
        Kind::Instance(instance) => Some((object.store.clone(), instance)),
        _ => None,
    });
    let exports = instance.map_or_else(Vector::empty, |(store, instance)| {
        let items: Vec<Extern> =
            store.with(|store| instance.exports(&store).map(|export| export.into_extern()).collect());
        items.into_iter().map(|item| Some(Object::of_item(&store, item))).collect()
    });
    vector::store(out, exports);
}
