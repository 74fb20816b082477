//! Stops a program at a function when a condition holds, and shows its stack with the values of
//! parameters.
//!
//! Run by `cargo run --release -p wasm-jit-debug --example conditional_breakpoint`.
//!
//! Prints:
//!
//! ```text
//! stopped in gcd, 3 frames
//! gcd: a = 12, b = 6
//! gcd: a = 18, b = 12
//! gcd: a = 48, b = 18
//! gcd(48, 18) = 6
//! ```

use std::error::Error;
use std::thread;

use wasm_jit::{Engine, Instance, Module, Store};
use wasm_jit_debug::{Debugger, Event, Expression, Outcome, Resume, Stopped};

const PROGRAM: &str = r#"(module
    (func $gcd (export "gcd") (param $a i32) (param $b i32) (result i32)
        (if (result i32) (local.get $b)
            (then (call $gcd (local.get $b) (i32.rem_u (local.get $a) (local.get $b))))
            (else (local.get $a)))))"#;

/// A line for each frame, the innermost first. Executed by the thread that is stopped.
fn stack(stopped: &mut Stopped<'_, '_>) -> Result<String, wasm_jit_debug::Error> {
    let mut text = String::new();
    for level in 0..stopped.locations().len() {
        let mut frame = stopped.frame(level)?;
        let (code, function) = (frame.code(), frame.location().function);
        let mut locals = Vec::new();
        for index in 0..code.locals(function) {
            let name = code.local_name(function, index).unwrap_or("?");
            locals.push(format!("{name} = {}", frame.local(index)?.unwrap_i32()));
        }
        text.push_str(&format!("{}: {}\n", code.name(function), locals.join(", ")));
    }
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let module = Module::new(&Engine::default(), PROGRAM)?;
    let debugger = Debugger::new(&module);
    // For one stop only: a later call would be another one.
    debugger.add_breakpoint("gcd", Some(Expression::parse("$b < 10")?), true)?;

    // The program runs in a separate thread, which waits where it stops.
    let run = || -> Result<i32, wasm_jit::Error> {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[])?;
        instance.get_typed_func::<(i32, i32), i32>(&store, "gcd")?.call(&mut store, (48, 18))
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            debugger.ended(match run() {
                Ok(result) => Outcome::returned(result.to_string()),
                Err(error) => Outcome::failed(error.to_string(), 1),
            });
        });
        loop {
            match debugger.wait() {
                Event::Stopped(stop) => {
                    println!(
                        "stopped in {}, {} frames",
                        debugger.code().name(stop.location.function),
                        stop.depth + 1
                    );
                    print!("{}", debugger.inspect(stack)??);
                    debugger.resume(Resume::Continue)?;
                }
                Event::Ended(outcome) => {
                    println!("gcd(48, 18) = {}", outcome.text);
                    return Ok(());
                }
                _ => {}
            }
        }
    })
}
