//! A WebAssembly engine with a single-pass compiler.

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
