//! A WebAssembly engine with a single-pass compiler.
//!
//! It runs WebAssembly 2.0 without SIMD, and the proposals that real programs use: tail calls, extended constants, multiple memories,
//! exceptions (both forms) and threads. A [`Module`] is compiled once and shared; a [`Store`] owns what running programs
//! consist of; a [`Linker`] finds what modules import. The shape of the API is that of the crate `wasmtime`.
//!
//! ```
//! use wasm_jit::{Caller, Engine, Linker, Module, Store};
//!
//! let engine = Engine::default();
//! let module = Module::new(
//!     &engine,
//!     r#"(module
//!         (import "host" "next" (func $next (result i32)))
//!         (func (export "sum") (param $n i32) (result i32) (local $sum i32)
//!             (loop $again
//!                 (local.set $sum (i32.add (local.get $sum) (call $next)))
//!                 (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
//!             (local.get $sum)))"#,
//! )?;
//! let mut linker = Linker::new(&engine);
//! linker.func_wrap("host", "next", |mut caller: Caller<'_, i32>| {
//!     *caller.data_mut() += 1;
//!     *caller.data()
//! })?;
//! let mut store = Store::new(&engine, 0);
//! let instance = linker.instantiate(&mut store, &module)?;
//! let sum = instance.get_typed_func::<i32, i32>(&mut store, "sum")?;
//! assert_eq!(sum.call(&mut store, 4)?, 1 + 2 + 3 + 4);
//! # Ok::<(), wasm_jit::Error>(())
//! ```
//!
//! A program can do nothing but what it imports lets it. Whatever else it tries is a [`Trap`], an [`Error`] of the call that runs it.

pub(crate) mod asm;
pub(crate) mod code;
pub(crate) mod compiler;
mod engine;
mod error;
pub(crate) mod module;
pub(crate) mod objdump;
mod runtime;
mod trap;
mod types;
pub(crate) mod vmctx;
pub mod wasi;

pub use code::gdb::GdbRegistration;
pub use engine::{Config, Engine};
pub use error::{Error, Mismatch};
pub use module::Module;
pub use runtime::{
    AsContext, AsContextMut, Caller, ExnRef, Export, Extern, ExternRef, Func, Global, Instance, IntoFunc,
    Linker, Memory, SharedMemory, Store, StoreContext, StoreContextMut, StoreLimits, Table, Tag, TypedFunc,
    Val, WasmParams, WasmResults, WasmRet, WasmTy,
};
pub use trap::{FrameInfo, FrameSymbol, InterruptHandle, Timeout, Trap, WasmBacktrace};
pub use types::{
    ExportType, ExternType, FuncType, GlobalType, ImportType, MemoryType, Mutability, RefType, TableType,
    TagType, ValType,
};
