//! A module calls a host function, which keeps a value in the store.
//!
//! Run by `cargo run --release -p wasm-jit --example host_function`.
//!
//! Prints:
//!
//! ```text
//! sum(4) = 10
//! ```

use wasm_jit::{Caller, Engine, Linker, Module, Store};

fn main() -> Result<(), wasm_jit::Error> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "next" (func $next (result i32)))
            (func (export "sum") (param $n i32) (result i32) (local $sum i32)
                (loop $again
                    (local.set $sum (i32.add (local.get $sum) (call $next)))
                    (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
                (local.get $sum)))"#,
    )?;

    // The host's function counts up in the store's value.
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "next", |mut caller: Caller<'_, i32>| {
        *caller.data_mut() += 1;
        *caller.data()
    })?;

    let mut store = Store::new(&engine, 0);
    let instance = linker.instantiate(&mut store, &module)?;
    let sum = instance.get_typed_func::<i32, i32>(&mut store, "sum")?;
    println!("sum(4) = {}", sum.call(&mut store, 4)?);
    Ok(())
}
