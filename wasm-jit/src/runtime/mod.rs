//! The runtime: stores, instances, host functions, and everything else that compiled code needs.
//!
//! Read in this order:
//! 1. `store.rs`: ownership, and exclusive access.
//! 2. `instance.rs` and `instantiate.rs`: contexts of compiled code, and their initialization.
//! 3. `activation.rs`: a call from the host into WebAssembly, and its outcome. `func.rs` and
//!    `typed.rs` are its two interfaces.
//! 4. `host.rs`: a call from WebAssembly to the host; `libcalls.rs`: operations of the runtime that
//!    compiled code calls; `tail_call.rs`: tail calls between instances; `callback.rs`: calls to
//!    closures by probes.
//! 5. `linear_memory.rs` in the crate's root: why accesses need no checks. `wait.rs`: threads that
//!    wait at an address.
//! 6. `objects.rs`: WebAssembly objects; `heap/`: the memory that they are in; `collect.rs`:
//!    collection of unreachable objects, exceptions and host values.
//! 7. `observe.rs`: what a recorder observes, namely calls from the host and its writes;
//!    `redirect.rs`: calls between instances, which go through the host while they are observed;
//!    `escaping.rs`: the functions that others can call through references.
//!
//! Each of the other files has one type of the public API.

pub(crate) mod accessors;
mod activation;
mod any_ref;
mod array_calls;
mod array_elements;
mod backtrace;
pub(crate) mod callback;
mod caller;
mod collect;
mod escaping;
mod exception;
mod externs;
mod float_settings;
mod fuel;
mod func;
mod global;
mod heap;
pub(crate) mod host;
pub(crate) mod instance;
mod instantiate;
mod libcalls;
mod limits;
mod linker;
mod memory;
mod numeric;
mod objects;
mod observe;
mod redirect;
mod references;
mod room;
mod roots;
mod stack;
pub(crate) mod store;
mod table;
mod tag;
mod tail_call;
mod typed;
pub(crate) mod value;
#[cfg(doctest)]
mod variance;
mod wait;

pub use any_ref::{AnyRef, ArrayRef, I31, StructRef};
pub use array_elements::ArrayElement;
pub use caller::Caller;
pub use externs::{Export, Extern};
pub use func::{Func, FuncId};
pub use global::Global;
pub use instance::Instance;
pub use limits::StoreLimits;
pub use linker::Linker;
pub use memory::{Memory, SharedMemory};
pub use numeric::NumericFunc;
pub use observe::{CallObserver, ChangedElements, ObserverId, PreviousBytes, WriteAnnouncer, WriteLog};
pub use references::ExternRef;
pub use stack::prepare_thread;
pub use store::{AsContext, AsContextMut, Store, StoreContext, StoreContextMut};
pub use table::Table;
pub use tag::Tag;
pub use typed::{IntoFunc, TypedFunc, WasmParams, WasmResults, WasmRet, WasmTy};
pub use value::Val;
