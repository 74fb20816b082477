//! Runs a WASI program that sees nothing of the host but what it is given: an argument, and a pipe
//! as its standard output.
//!
//! Run by `cargo run --release -p wasm-jit-wasi --example sandbox`.
//!
//! Prints:
//!
//! ```text
//! the program wrote "hello, world" and exited with 3
//! ```

use std::error::Error;

use wasm_jit::{Engine, Linker, Module, Store};
use wasm_jit_wasi::{Exit, OutputPipe, WasiCtxBuilder, add_to_linker};

/// Writes its first argument, and exits. A compiler makes the same calls for `main`.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
    (memory (export "memory") 1)
    (func (export "_start")
        ;; The sizes to 0 and 4, the addresses of the arguments to 8, the arguments to 256.
        (drop (call $args_sizes_get (i32.const 0) (i32.const 4)))
        (drop (call $args_get (i32.const 8) (i32.const 256)))
        ;; One buffer: the first argument, without the NUL byte at its end.
        (i32.store (i32.const 16) (i32.load (i32.const 8)))
        (i32.store (i32.const 20) (i32.sub (i32.load (i32.const 4)) (i32.const 1)))
        (drop (call $fd_write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 0)))
        (call $proc_exit (i32.const 3))))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM)?;

    let stdout = OutputPipe::new(1 << 20);
    let wasi = WasiCtxBuilder::new().arg("hello, world").stdout(stdout.clone()).build();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |wasi| wasi)?;

    let mut store = Store::new(&engine, wasi);
    let instance = linker.instantiate(&mut store, &module)?;
    let ended = instance.get_typed_func::<(), ()>(&store, "_start")?.call(&mut store, ());

    // A program that calls `proc_exit` ends by an error, which has the code.
    let error = ended.expect_err("the program exits");
    let Exit(code) = error.downcast_ref().ok_or("it was not an exit")?;
    let written = String::from_utf8(stdout.contents())?;
    println!("the program wrote {written:?} and exited with {code}");
    Ok(())
}
