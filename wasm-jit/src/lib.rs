//! A WebAssembly engine with a single-pass compiler, for programs that load modules at run time and
//! need them to start quickly. It compiles 27 to 42 MB of WebAssembly code a second on one thread;
//! on the repository's 53 kernels, the result takes 1.06 times as long as the code of `gcc -O2`
//! (Cranelift: 1.10).
//!
//! It runs WebAssembly 3.0, including garbage collection, and three proposals beyond it: threads,
//! 128-bit arithmetic, and memories with one-byte pages. A module that uses any other feature is
//! refused when it is loaded, by an error that names the feature. The crate `wasm-jit-wasi` runs
//! WASI preview 1 programs; `wasm-jit-js-string` provides JavaScript strings. The API follows that
//! of the crate `wasmtime`.
//!
//! # Concepts
//! - An [`Engine`] holds settings ([`Config`]) and the types of functions.
//! - A [`Module`] is validated and compiled completely, on several threads, when it is created. It
//!   is immutable, and any number of threads and stores share it and its machine code.
//! - A [`Store`] owns the state of running programs: instances, memories, tables, globals, and a
//!   value of the embedder, which host functions can access. One thread at a time uses a store.
//!   Everything in it is freed with the store.
//! - An [`Instance`] is a module in a store with its imports resolved. A [`Linker`] resolves them
//!   by name, to definitions by the host ([`Linker::func_wrap`]) and to exports of other instances.
//! - A [`Func`], [`Memory`], [`Table`], [`Global`] or [`Tag`] is a handle: small, copyable, valid
//!   in one store, which is passed to every use of it. A [`TypedFunc`] is a function whose type was
//!   compared with the Rust types once, when it was looked up. A [`SharedMemory`] belongs to no
//!   store: threads that each have a store of their own run one program with it.
//! - A program that performs an invalid operation [traps](Trap): the call that runs it returns
//!   [`Error::Trap`], with a [`WasmBacktrace`]. The same happens to a program that is stopped by an
//!   [`InterruptHandle`], from any thread, or by a [`Timeout`]. The store remains usable.
//!
//! - [Probes](probes) count how often an instruction or function is reached, or call a function
//!   there. They are activated and deactivated at any time, by stores to code that other threads
//!   may be executing.
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
//! A program can access only what it imports. [`StoreLimits`] bounds the memory that it may
//! allocate.
//!
//! # Signals
//! The first call to WebAssembly code installs handlers for SIGSEGV, SIGBUS, SIGILL and SIGFPE,
//! because the hardware detects most traps. The first [`Store::interrupt_handle`] installs one for
//! SIGURG, or for another signal ([`Config::interrupt_signal`]). A signal that does not concern
//! compiled code, or that another part of the process has sent, is passed to the previously
//! installed handler. (The kernel delivers one of two equal signals that wait for the same thread:
//! if the engine's comes first, the other one has no effect.) While one of these handlers runs,
//! other signals are blocked.
//!
//! # Addresses
//! A memory reserves 8 GiB of address space, so accesses to it need no check. If the system refuses
//! this when an [`Engine`] is created, the engine's modules check accesses by instructions
//! ([`BoundsChecks`]). Accesses to 64-bit memories and to memories with one-byte pages are always
//! checked; such a memory reserves its maximum size, but at most 64 GiB unless its initial size is
//! larger, and does not grow beyond its reservation.
//!
//! # Safety
//! The API is safe, except for functions that read a memory which programs may write concurrently,
//! functions that build handles from raw words, and functions that load machine code. A module
//! cannot leave its sandbox; programs are bounded by [`StoreLimits`], [`Timeout`] and
//! [`InterruptHandle`].
//!
//! # Errors
//! [`Error`] covers invalid modules, unsupported features (which are named), missing imports and
//! imports of another type, exceeded limits, [traps](Trap), uncaught exceptions, and errors of host
//! functions.
//!
//! # Features
//! `few-cached-locals` is for tests: the compiler caches few locals in registers.
//!
//! # Further reading
//! `README.md`, and `docs/wasm-jit.md` in the repository: the command, what is supported,
//! performance, limits. `examples/` has a program that calls a host function.
//!
//! # The code of this crate
//! | directory or file | what it is |
//! | --- | --- |
//! | `module/` | decoding and validation; the declarations of a module; precompiled modules |
//! | `code/` | compiles on several threads, links, owns the machine code; names for gdb and perf |
//! | `trap/` | non-local exits from compiled code: signals, exceptions, interrupts, backtraces |
//! | `trap_kind.rs` | why code traps |
//! | `runtime/` | stores, instances, host functions: most of the public API |
//! | `cache.rs` | compiled modules in a directory |
//! | `engine.rs`, `error.rs`, `types.rs` | the rest of the public API |
//! | `probes.rs` | probes: the public API; the machinery is in `code/probed/` |
//! | `symbols.rs` | names and source lines, for reports |
//! | `object_type.rs` | types at run time: what compiled code compares, and what the collector follows |
//! | `objdump.rs` | WebAssembly and machine code side by side |
//!
//! The compiler is the crate `wasm-jit-codegen`, with the contract between compiled code and the
//! runtime (`vmctx.rs`: registers, calls, frames, layouts; read it first). WASI and the command
//! `wasm-jit` use only this crate's public API.

mod cache;
pub(crate) mod code;
mod engine;
mod error;
mod exn_ref;
mod linear_memory;
pub(crate) mod module;
pub(crate) mod objdump;
mod object_type;
mod parallel;
pub mod probes;
mod runtime;
mod store_id;
mod symbols;
mod trap;
mod trap_kind;
mod types;

use wasm_jit_codegen::vmctx;

pub use cache::{Cache, CacheStatistics};
pub use code::gdb::GdbRegistration;
pub use code::sections::{demangle, printable};
pub use engine::{BoundsChecks, Config, Engine, ProbeSites};
pub use error::{Error, Exit, Mismatch, PrecompiledError};
pub use exn_ref::ExnRef;
pub use module::{FunctionBody, FunctionInfo, Instruction, Instructions, Module};
pub use runtime::{
    AnyRef, ArrayElement, ArrayRef, AsContext, AsContextMut, CallObserver, Caller, ChangedElements, Export,
    Extern, ExternRef, Func, FuncId, Global, I31, Instance, IntoFunc, Linker, Memory, NumericFunc,
    ObserverId, PreviousBytes, SharedMemory, Store, StoreContext, StoreContextMut, StoreLimits, StructRef,
    Table, Tag, TypedFunc, Val, WasmParams, WasmResults, WasmRet, WasmTy, WriteAnnouncer, WriteLog,
    prepare_thread,
};
pub use symbols::Symbols;
pub use trap::{FrameInfo, FrameSymbol, InterruptHandle, Timeout, Trap, WasmBacktrace};
pub use types::{
    ArrayType, ExportType, ExternType, FieldType, FuncType, FuncTypeId, GlobalType, HeapType, ImportType,
    MemoryType, Mutability, ObjectTypeId, RefType, StorageType, StructType, TableType, TagType, ValType,
};
/// The crate whose types represent instructions: see [`Instruction::operator`].
pub use wasmparser;
