//! Records a run whose result depends on its host, and turns it into a module that repeats the run
//! in any engine, without that host.
//!
//! Run by `cargo run --release -p wasm-jit-replay --example standalone`.
//!
//! Prints:
//!
//! ```text
//! start module=38f18198 length=126
//! enter func=1 i32:3
//! call import=0
//! return i32:4
//! call import=0
//! return i32:2
//! call import=0
//! return i32:6
//! leave i32:12
//! the replay has no imports, and did the same
//! ```

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::{AtomicU32, Ordering};

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_replay::{Reader, Recorder, generate};

const PROGRAM: &str = r#"(module
    (import "dice" "roll" (func $roll (result i32)))
    (func $sum (export "sum") (param $rolls i32) (result i32) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (call $roll)))
            (br_if $next (local.tee $rolls (i32.sub (local.get $rolls) (i32.const 1)))))
        (local.get $sum)))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sum.trace");
    let engine = Engine::default();
    let program = Module::new(&engine, PROGRAM)?;
    let mut linker = Linker::new(&engine);
    let rolls = AtomicU32::new(0);
    let dice = move || [4, 2, 6, 1][rolls.fetch_add(1, Ordering::Relaxed) as usize % 4];
    linker.func_wrap("dice", "roll", dice)?;

    // The recorder observes the calls between the program and its host.
    let recorder = Recorder::new(&program, File::create(&path)?)?;
    let mut store = Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &linker)?;
    instance.get_typed_func::<i32, i32>(&store, "sum")?.call(&mut store, 3)?;

    for event in Reader::new(BufReader::new(File::open(&path)?)) {
        println!("{}", event?);
    }

    // With checks: the replay traps at the first value that differs from the recorded run.
    let replay = generate(program.bytes(), BufReader::new(File::open(&path)?), true)?;
    let replay = Module::from_binary(&engine, &replay)?;
    assert_eq!(replay.imports().len(), 0);
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine).instantiate(&mut store, &replay)?;
    instance.get_typed_func::<(), ()>(&store, "_start")?.call(&mut store, ())?;
    println!("the replay has no imports, and did the same");
    Ok(())
}
