//! Finds out which functions the indirect calls of a program call, and then lets it run at full
//! speed.
//!
//! Run by `cargo run --release -p wasm-jit-hooks --example indirect_calls`.
//!
//! Prints:
//!
//! ```text
//! apply calls double 3 times
//! apply calls square 2 times
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Instance, Module, Store};
use wasm_jit_hooks::{Callee, calls};

const PROGRAM: &str = r#"(module
    (type $operation (func (param i32) (result i32)))
    (table funcref (elem $double $square))
    (func $double (type $operation) (i32.mul (local.get 0) (i32.const 2)))
    (func $square (type $operation) (i32.mul (local.get 0) (local.get 0)))
    (func $apply (export "apply") (param $value i32) (param $operation i32) (result i32)
        (call_indirect (type $operation) (local.get $value) (local.get $operation))))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let module = Module::new(&Engine::default(), PROGRAM)?;
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[])?;
    let apply = instance.get_typed_func::<(i32, i32), i32>(&store, "apply")?;

    let counts = Arc::new(Mutex::new(BTreeMap::new()));
    let counted = counts.clone();
    let is_indirect = |operator: &Operator<'_>| matches!(operator, Operator::CallIndirect { .. });
    // The closure is called on the thread that runs the program, before the call.
    let hook = calls(
        &module,
        |site| is_indirect(site.operator),
        move |call| {
            if let Callee::Function(callee) = call.callee {
                *counted.lock().expect("no hook panics").entry((call.function, callee)).or_insert(0) += 1;
            }
        },
    )?;
    for (value, operation) in [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0)] {
        apply.call(&mut store, (value, operation))?;
    }
    // From here on, the code is as it was before.
    drop(hook);
    apply.call(&mut store, (6, 0))?;

    let name = |index| module.function(index).and_then(|function| function.name().map(str::to_owned));
    let name = |index| name(index).unwrap_or_else(|| format!("function {index}"));
    for ((caller, callee), count) in &*counts.lock().expect("no hook panics") {
        println!("{} calls {} {count} times", name(*caller), name(*callee));
    }
    Ok(())
}
