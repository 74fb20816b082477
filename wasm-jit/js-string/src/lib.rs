//! JavaScript strings for WebAssembly programs: the [builtin string functions][proposal] that
//! browsers offer as the module `wasm:js-string`, and string constants. Compilers for Dart, Kotlin,
//! Scheme and other languages emit imports of them.
//!
//! A string is any sequence of UTF-16 code units, including unpaired surrogates. To programs it is
//! an `externref`, whose host value is a [`JsString`], which embedders can create and read.
//! [`add_to_linker`] defines the functions, and [`define_constants`] the constants of a module.
//!
//! The functions behave exactly as in the proposal: an argument that is null or not a string traps
//! where the proposal says so, indices are unsigned, and imports must have the types of the
//! proposal. The proposal leaves one choice to the engine: here, a string that would be longer than
//! [`MAX_LENGTH`] ends the call with [`StringTooLong`], which a program cannot catch.
//!
//! # Cost
//! A string is an immutable array: access by index takes constant time, while `concat` and
//! `substring` copy. Only functions that return a new string allocate memory, except that functions
//! that take an array allocate a handle of it. Strings are freed by the collector of the store,
//! like all host values; until then their memory counts for
//! [`StoreLimits::heap_size`](wasm_jit::StoreLimits::heap_size).
//!
//! [proposal]: https://github.com/WebAssembly/js-string-builtins
//!
//! # Example
//! ```
//! use wasm_jit::{Engine, ExternRef, Linker, Module, Store};
//! use wasm_jit_js_string::{JsString, add_to_linker, define_constants};
//!
//! let engine = Engine::default();
//! let module = Module::new(&engine, r#"(module
//!     (import "wasm:js-string" "concat" (func $concat (param externref externref) (result (ref extern))))
//!     (import "'" "Hello, " (global $hello externref))
//!     (func (export "greet") (param $name externref) (result (ref extern))
//!         (call $concat (global.get $hello) (local.get $name))))"#)?;
//! let mut store = Store::new(&engine, ());
//! let mut linker = Linker::new(&engine);
//! add_to_linker(&mut linker)?;
//! define_constants(&mut linker, &mut store, &module, "'")?;
//! let instance = linker.instantiate(&mut store, &module)?;
//! let greet = instance.get_typed_func::<Option<ExternRef>, ExternRef>(&mut store, "greet")?;
//! let greeting = greet.call(&mut store, Some(JsString::from("Zoë").into()))?;
//! let greeting = JsString::from_extern(&greeting).expect("a string");
//! assert_eq!(greeting.to_string(), "Hello, Zoë");
//! assert_eq!(greeting.units().len(), 10);
//! # Ok::<(), wasm_jit::Error>(())
//! ```
//!
//! `linker.rs` lists the functions with their types, `builtins.rs` implements them.

mod arguments;
mod builtins;
mod linker;
mod string;

pub use linker::{MODULE, add_to_linker, define_constants};
pub use string::{JsString, MAX_LENGTH, StringTooLong};
