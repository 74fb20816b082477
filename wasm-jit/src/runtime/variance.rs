//! Stores and linkers are invariant in the type of the embedder's data.
//!
//! The closures of a [`Linker<T>`](crate::Linker) write to and read from the data of stores. If a
//! store or a linker for one function pointer type could be used as one for its subtype or
//! supertype, a closure that takes `&'static str` would be called with shorter-lived strings.
//!
//! With the same type on both sides, this compiles:
//! ```
//! use wasm_jit::{Linker, Store};
//! fn same(store: Store<for<'a> fn(&'a str)>) -> Store<for<'a> fn(&'a str)> { store }
//! fn linker(linker: Linker<fn(&'static str)>) -> Linker<fn(&'static str)> { linker }
//! ```
//! A store is not covariant:
//! ```compile_fail
//! use wasm_jit::Store;
//! fn weaken(store: Store<for<'a> fn(&'a str)>) -> Store<fn(&'static str)> { store }
//! ```
//! nor contravariant:
//! ```compile_fail
//! use wasm_jit::Store;
//! fn strengthen(store: Store<fn(&'static str)>) -> Store<for<'a> fn(&'a str)> { store }
//! ```
//! A linker is not covariant:
//! ```compile_fail
//! use wasm_jit::Linker;
//! fn weaken(linker: Linker<for<'a> fn(&'a str)>) -> Linker<fn(&'static str)> { linker }
//! ```
//! nor contravariant:
//! ```compile_fail
//! use wasm_jit::Linker;
//! fn strengthen(linker: Linker<fn(&'static str)>) -> Linker<for<'a> fn(&'a str)> { linker }
//! ```
//! A caller has a store to which host functions may write:
//! ```compile_fail
//! use wasm_jit::Caller;
//! fn weaken(caller: Caller<'_, for<'a> fn(&'a str)>) -> Caller<'_, fn(&'static str)> { caller }
//! ```
