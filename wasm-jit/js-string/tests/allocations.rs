//! Functions that make no string allocate no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use wasm_jit::{Engine, ExternRef, Linker, Module, Store, TypedFunc};
use wasm_jit_js_string::{JsString, add_to_linker};

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts allocations.
struct Counting;

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may allocate after its counter is gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligation.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligation.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Calls each of the functions n times.
const PROGRAM: &str = r#"(module
    (import "wasm:js-string" "cast" (func $cast (param externref) (result (ref extern))))
    (import "wasm:js-string" "test" (func $test (param externref) (result i32)))
    (import "wasm:js-string" "charCodeAt" (func $charCodeAt (param externref i32) (result i32)))
    (import "wasm:js-string" "codePointAt" (func $codePointAt (param externref i32) (result i32)))
    (import "wasm:js-string" "length" (func $length (param externref) (result i32)))
    (import "wasm:js-string" "equals" (func $equals (param externref externref) (result i32)))
    (import "wasm:js-string" "compare" (func $compare (param externref externref) (result i32)))
    (func (export "run") (param $a externref) (param $b externref) (param $n i32) (result i32)
        (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (local.get $sum) (call $test (call $cast (local.get $a)))))
            (local.set $sum (i32.add (local.get $sum) (call $charCodeAt (local.get $a) (i32.const 0))))
            (local.set $sum (i32.add (local.get $sum) (call $codePointAt (local.get $a) (i32.const 0))))
            (local.set $sum (i32.add (local.get $sum) (call $length (local.get $a))))
            (local.set $sum (i32.add (local.get $sum) (call $equals (local.get $a) (local.get $b))))
            (local.set $sum (i32.add (local.get $sum) (call $compare (local.get $a) (local.get $b))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

#[test]
fn functions_that_make_no_string_allocate_nothing() {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run: TypedFunc<(Option<ExternRef>, Option<ExternRef>, i32), i32> =
        instance.get_typed_func(&mut store, "run").unwrap();
    let [a, b] = ["abc", "abd"].map(|text| ExternRef::from(JsString::from(text)));
    let mut allocations = |n| {
        let before = ALLOCATIONS.get();
        let sum = run.call(&mut store, (Some(a.clone()), Some(b.clone()), n)).unwrap();
        // A test, the two first letters, the length, not equal, and less.
        assert_eq!(sum, n * (1 + 2 * 0x61 + 3 - 1));
        ALLOCATIONS.get() - before
    };
    allocations(1);
    let once = allocations(1);
    assert_eq!(allocations(5_000), once);
}
