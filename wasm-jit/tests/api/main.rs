//! The Rust API, as an embedder uses it.

mod branch_hints;
mod drops;
mod fuel;
mod function_references;
mod functions;
mod inspection;
mod instantiation;
mod interrupts;
mod linking;
mod memory;
mod names;
mod objects;
mod observation;
mod references;
mod stacks;
mod tail_calls;
mod threads;
mod traps;
mod types;
mod vector_constants;
mod vector_frames;
mod vector_shuffles;
mod vector_widening;
mod vectors;

use wasm_jit::{Engine, Error, Func, Instance, IntoFunc, Module, Store, WasmResults};

fn module(text: &str) -> Module {
    Module::new(&Engine::default(), text).unwrap()
}

/// A store with an instance of a module that imports nothing.
fn instance(text: &str) -> (Store<()>, Instance) {
    let module = module(text);
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance)
}

/// An instance of a module that imports one host function, `host` `f`.
fn with_host<P, R>(text: &str, closure: impl IntoFunc<(), P, R>) -> (Store<()>, Instance) {
    let module = module(text);
    let mut store = Store::new(module.engine(), ());
    let func = Func::wrap(&mut store, closure).unwrap();
    let instance = Instance::new(&mut store, &module, &[func.into()]).unwrap();
    (store, instance)
}

fn call0<R: WasmResults>(store: &mut Store<()>, instance: Instance, name: &str) -> Result<R, Error> {
    instance.get_typed_func::<(), R>(&mut *store, name).unwrap().call(store, ())
}
