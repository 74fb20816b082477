//! Counts how often control comes to two places of a module.
//!
//! Run by `cargo run --release -p wasm-jit --example count`.
//!
//! Prints:
//!
//! ```text
//! fib was called 177 times, and returned early 89 times
//! ```

use std::error::Error;

use wasm_jit::probes::{Kind, Location, Place, ProbeSpec, deactivate_all};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Engine, Instance, Module, Store};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (func $fib (export "fib") (param $n i32) (result i32)
                (if (i32.lt_u (local.get $n) (i32.const 2)) (then (return (local.get $n))))
                (i32.add
                    (call $fib (i32.sub (local.get $n) (i32.const 1)))
                    (call $fib (i32.sub (local.get $n) (i32.const 2))))))"#,
    )?;

    // A probe at the function's entry, and one at its `return`.
    let fib = module.function(0).expect("it is there");
    let body = fib.body().expect("it is not imported");
    let is_return = |operator: &Operator<'_>| matches!(operator, Operator::Return);
    let found = body.instructions().find(|instruction| is_return(instruction.operator()));
    let offset = (found.expect("there is one").offset() - body.range().start) as u32;
    let places = [Place::Entry, Place::Instruction { offset }];
    let spec = |place| ProbeSpec { location: Location { function: fib.index(), place }, kind: Kind::Count };
    let probes = module.probes(&places.map(spec)).into_iter().collect::<Result<Vec<_>, _>>()?;

    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    let call = instance.get_typed_func::<i32, i32>(&mut store, "fib")?;
    call.call(&mut store, 20)?;

    // From here on they count, whatever thread does this, and whatever others run meanwhile.
    probes.iter().try_for_each(|probe| probe.activate())?;
    call.call(&mut store, 10)?;
    deactivate_all(&probes).into_iter().collect::<Result<(), _>>()?;
    call.call(&mut store, 20)?;
    println!("fib was called {} times, and returned early {} times", probes[0].count(), probes[1].count());
    Ok(())
}
