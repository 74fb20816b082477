//! `wasm_instance_t`.

use std::mem::MaybeUninit;
use std::rc::Rc;

use wasm_jit::{Error, Extern, Instance, Module};

use crate::last_error::failed;
use crate::object::{Kind, Object};
use crate::store::{SharedStore, StoreHandle};
use crate::trap;
use crate::vector::{self, Out, Vector};

type Externs = Vector<Option<Box<Object>>>;

/// Instantiates a module with these imports, in the module's order. If that fails, the result is
/// null, and a trap says why; otherwise, that is null.
#[unsafe(no_mangle)]
extern "C" fn wasm_instance_new(
    store: Option<&StoreHandle>,
    module: Option<&Object>,
    imports: Option<&Externs>,
    trap: Option<&mut MaybeUninit<Option<Box<Object>>>>,
) -> Option<Box<Object>> {
    let (instance, failure) = match (store, module) {
        (Some(store), Some(Object { kind: Kind::Module(module), .. })) => {
            // C code may delete both while the start function runs.
            let (store, module) = (store.clone(), module.clone());
            match instantiate(&store, &module.value, imports) {
                Ok(instance) => (Some(Object::new(&store, Kind::Instance(instance))), None),
                Err(error) => {
                    failed(&error);
                    (None, Some(trap::of_error(&store, error)))
                }
            }
        }
        _ => (None, None),
    };
    vector::store(trap, failure);
    instance
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

/// All exports, in the module's order.
#[unsafe(no_mangle)]
extern "C" fn wasm_instance_exports(object: Option<&Object>, out: Out<'_, Option<Box<Object>>>) {
    let exports = match object {
        Some(Object { store, kind: Kind::Instance(instance) }) => {
            let store = store.clone();
            let items: Vec<Extern> =
                store.with(|store| instance.exports(&store).map(|export| export.into_extern()).collect());
            items.into_iter().map(|item| Some(Object::of_item(&store, item))).collect()
        }
        _ => Vector::empty(),
    };
    vector::store(out, exports);
}
