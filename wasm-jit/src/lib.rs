//! A WebAssembly engine with a single-pass compiler, for programs that load modules at run time and
//! want to start them soon: it compiles some 20 MB of code a second on one thread, to code of
//! nearly the speed of an optimizing compiler's.
//!
//! It runs WebAssembly 2.0 without SIMD, and the proposals that real programs use: tail calls,
//! extended constants, multiple memories, exceptions (both forms) and threads. A module that uses
//! anything else is refused when it is loaded, with the feature's name. Programs for WASI preview 1
//! run by the crate `wasm-jit-wasi`. The shape of the API is that of the crate `wasmtime`.
//!
//! # Concepts
//! - An [`Engine`] holds settings ([`Config`]) and the types of functions.
//! - A [`Module`] is validated and compiled as a whole, on several threads, when it is made. It
//!   never changes, and any number of threads and stores share it and its machine code.
//! - A [`Store`] owns what running programs consist of: instances, memories, tables, globals, and a
//!   value of the embedder's, which host functions get at. One thread at a time uses a store. All
//!   of it is freed with the store.
//! - An [`Instance`] is a module in a store, its imports filled in. A [`Linker`] finds them by
//!   name: what the host defines ([`Linker::func_wrap`]), and what other instances export.
//! - A [`Func`], [`Memory`], [`Table`], [`Global`] or [`Tag`] is a handle: small, copied, good for
//!   one store, which every use of it names. A [`TypedFunc`] is a function whose type was compared
//!   with Rust's once, when it was looked up. A [`SharedMemory`] is of no store: it is how threads,
//!   each with a store of its own, run one program.
//! - A program that does what it must not [traps](Trap): the call that runs it gives
//!   [`Error::Trap`], with a [`WasmBacktrace`]. So does one that is stopped by an
//!   [`InterruptHandle`], from any thread, or by a [`Timeout`]. The store may be used on.
//!
//! - [Probes](probes) count how often control comes to an instruction or function. They are
//!   switched on and off at any time, by stores to code that other threads run.
//!
//! # Example
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
//! A program can do nothing but what it imports lets it. [`StoreLimits`] bound the memory that it
//! may ask for.
//!
//! # Signals
//! The first call of WebAssembly installs handlers for SIGSEGV, SIGBUS, SIGILL and SIGFPE: the
//! hardware finds most traps. The first [`Store::interrupt_handle`] installs one for SIGURG, or for
//! another signal ([`Config::interrupt_signal`]). A signal that is not about compiled code goes to
//! the handler that was there before. While one of these handlers runs, other signals wait.
//!
//! # Addresses
//! A memory reserves 8 GiB of addresses, and its accesses need no check. Where the system refuses
//! that when an [`Engine`] is made, the engine's modules check their accesses by instructions
//! ([`BoundsChecks`]).
//!
//! # Safety
//! The API is safe, but for what reads a memory that programs may write meanwhile, and handles made
//! of raw words. A module cannot leave its sandbox; programs are bounded by [`StoreLimits`],
//! [`Timeout`] and [`InterruptHandle`].
//!
//! # Errors
//! [`Error`]: a module that is invalid or uses what is not supported (the feature is named), imports that are missing or of another
//! type, limits, a [`Trap`], an exception that was not caught, an error of a host function.
//!
//! # Features
//! `few-homes` is for tests: the compiler keeps few locals in registers.
//!
//! # Further reading
//! `README.md`, and `docs/wasm-jit.md` of the repository: the command, what is supported,
//! performance, limits. `examples/` has a program that calls a function of the host.
//!
//! # The code of this crate
//! | folder or file | what it is |
//! | --- | --- |
//! | `module/` | decoding and validation; what a module declares |
//! | `code/` | compiles on several threads, links, and keeps the machine code; finds a function by an address; names for gdb and perf |
//! | `trap/` | leaving compiled code: signals, exceptions, interrupts, backtraces |
//! | `runtime/` | stores, instances, host functions: most of the public API |
//! | `engine.rs`, `error.rs`, `types.rs` | the rest of the public API |
//! | `probes.rs` | probes: the public API; the machinery is in `code/probed/` |
//! | `objdump.rs` | WebAssembly and machine code side by side |
//!
//! The compiler is the crate `wasm-jit-codegen`, with the contract between compiled code and the
//! runtime (`vmctx.rs`: registers, calls, frames, layouts; read it first). WASI and the command
//! `wasm-jit` know nothing but this crate's public API.

pub(crate) mod code;
mod engine;
mod error;
pub(crate) mod module;
pub(crate) mod objdump;
pub mod probes;
mod runtime;
mod trap;
mod types;

use wasm_jit_codegen::vmctx;

pub use code::gdb::GdbRegistration;
pub use engine::{BoundsChecks, Config, Engine};
pub use error::{Error, Mismatch};
pub use module::{FunctionBody, FunctionInfo, Instruction, Instructions, Module};
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
/// What instructions are shown in: see [`Instruction::operator`].
pub use wasmparser;
