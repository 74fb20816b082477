//! `libwasm_jit`: the C interface `wasm.h` of the engine `wasm-jit`.
//!
//! The header is that of the WebAssembly C API (wasm-c-api); this library has the functions that it
//! declares, and those of `include/wasm_jit.h`. `README.md` explains how to use them, and what they
//! do where the header leaves it open.
//!
//! # Pointers of C code
//! Functions take `Option<&T>` for a pointer to something of type `T`, `Option<Box<T>>` for one
//! that they own, and `Option<&mut MaybeUninit<T>>` for one that they write a result to. This is
//! the header's contract, except that any pointer may be null: a function that requires one fails
//! then (`last_error::required`), and returns null, zero or false. Unsafe code is therefore needed
//! only in the modules marked below.
//!
//! | module | contents | unsafe |
//! | --- | --- | --- |
//! | `vector` | vectors of all kinds | yes |
//! | `types` | types of values, functions, imports ... | conversions |
//! | `store` | stores; how host functions use the store that runs | yes |
//! | `object`, `references` | objects; what all kinds of them have in common | sharing, conversions |
//! | `value` | values | yes |
//! | `host_info` | what C code attaches to objects; finalizers | yes |
//! | `func` | functions; calls in both directions | calls of C code |
//! | `engine`, `module`, `instance`, `global`, `table`, `memory`, `externs`, `foreign`, `trap` (`trap_info`), `frame` | one type of the header each | loading machine code, in `module` |
//! | `limits` | interrupts and fuel | |
//! | `last_error` | reasons for failures | |
//! | `version` | the number of this version | |
//!
//! A panic would be a defect of this library or of the engine. It ends the process: no function
//! unwinds into C code.

mod engine;
mod externs;
mod foreign;
mod frame;
mod func;
mod global;
mod host_info;
mod instance;
mod last_error;
mod limits;
mod memory;
mod module;
mod object;
mod references;
mod store;
mod table;
mod trap;
mod trap_info;
mod types;
mod value;
mod vector;
mod version;
