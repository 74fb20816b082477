//! Counts how often each conditional branch of a program is taken, with a script.
//!
//! Run by `cargo run --release -p wasm-jit-whamm --example branch_bias`.
//!
//! Prints:
//!
//! ```text
//! collatz+0xc: taken 1 times of 9
//! collatz+0x1a: taken 2 times of 8
//! ```

use std::error::Error;

use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
use wasm_jit_whamm::monitor_module::MonitorModule;

const SCRIPT: &[u8] = b"
    wasm:opcode:br_if|if:before {
        report unshared var executed: u64;
        report unshared var times_taken: u64;
        executed++;
        if (taken) { times_taken++; }
    }";

const PROGRAM: &str = r#"(module
    (func $collatz (export "collatz") (param $n i32) (result i32) (local $steps i32)
        (block $end
            (loop $next
                (br_if $end (i32.eq (local.get $n) (i32.const 1)))
                (local.set $steps (i32.add (local.get $steps) (i32.const 1)))
                (if (i32.and (local.get $n) (i32.const 1))
                    (then (local.set $n (i32.add (i32.mul (local.get $n) (i32.const 3)) (i32.const 1))))
                    (else (local.set $n (i32.shr_u (local.get $n) (i32.const 1)))))
                (br $next)))
        (local.get $steps)))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM)?;

    // The script is compiled to a module, whose functions are called from the program's code.
    let script = Script::new("branch_bias.mm", SCRIPT, &[])?;
    let monitor = MonitorModule::new(Module::from_binary(&engine, script.module())?, Vec::new())?;
    let mut store = Store::new(&engine, ());
    let mut attached = monitor.attach(&mut store, &mut Linker::new(&engine), &program)?;

    let instance = Instance::new(&mut store, &program, &[])?;
    instance.get_typed_func::<i32, i32>(&store, "collatz")?.call(&mut store, 6)?;

    // A variable that is not shared exists once for each place that the rule matches.
    attached.finish(&mut store)?;
    let monitor = attached.instance(&mut store);
    for rule in script.report(&store, monitor)?.rules {
        for site in rule.sites {
            let function = program.function(site.function).expect("it is one of the program");
            let name = function.name().unwrap_or("?");
            let [ReportedValue::Value(Value::Int(executed)), ReportedValue::Value(Value::Int(taken))] =
                site.values[..]
            else {
                return Err("not the variables of the script".into());
            };
            println!("{name}+{:#x}: taken {taken} times of {executed}", site.offset);
        }
    }
    Ok(())
}
