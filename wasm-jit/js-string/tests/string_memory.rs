//! The memory of strings: freed when the program cannot reach them, and bounded.

use wasm_jit::{Engine, Error, ExternRef, Instance, Linker, Module, Store, StoreLimits, TypedFunc, Val};
use wasm_jit_js_string::{JsString, StringTooLong, add_to_linker};

const PROGRAM: &str = r#"(module
    (type $array (array (mut i16)))
    (import "wasm:js-string" "concat" (func $concat (param externref externref) (result (ref extern))))
    (import "wasm:js-string" "fromCharCodeArray"
        (func $fromCharCodeArray (param (ref null $array) i32 i32) (result (ref extern))))
    (table $kept 4 externref)
    (func (export "keep") (param externref i32) (table.set $kept (local.get 1) (local.get 0)))
    (func (export "kept") (result externref) (table.get $kept (i32.const 0)))
    ;; Concatenates the string with itself, n times.
    (func (export "drop") (param $s externref) (param $n i32)
        (loop $again
            (drop (call $concat (local.get $s) (local.get $s)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func (export "double") (param $s externref) (param $n i32)
        (loop $again
            (local.set $s (call $concat (local.get $s) (local.get $s)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    ;; A string of n units from an array that is then unreachable.
    (func (export "zeros") (param $n i32) (result (ref extern))
        (call $fromCharCodeArray
            (array.new_default $array (local.get $n)) (i32.const 0) (local.get $n))))"#;

/// Bytes of a string of this length.
const fn bytes(length: u64) -> u64 {
    2 * length
}

struct Program {
    store: Store<()>,
    instance: Instance,
}

impl Program {
    fn new() -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, PROGRAM).unwrap();
        let mut linker = Linker::new(&engine);
        add_to_linker(&mut linker).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &module).unwrap();
        Self { store, instance }
    }

    fn limited(bytes: u64) -> Self {
        let mut program = Self::new();
        program.store.set_limits(StoreLimits::new().heap_size(bytes));
        program
    }

    /// Calls a function with a string and a number.
    fn run(&mut self, name: &str, string: &ExternRef, n: i32) -> Result<(), Error> {
        let function: TypedFunc<(Option<ExternRef>, i32), ()> =
            self.instance.get_typed_func(&mut self.store, name).unwrap();
        function.call(&mut self.store, (Some(string.clone()), n))
    }

    /// Stores a string or null at this place of the program's table.
    fn keep(&mut self, string: Option<ExternRef>, place: i32) {
        let keep = self.instance.get_func(&self.store, "keep").unwrap();
        keep.call(&mut self.store, &[Val::ExternRef(string), Val::I32(place)], &mut []).unwrap();
    }

    fn zeros(&mut self, n: i32) -> Result<ExternRef, Error> {
        let zeros = self.instance.get_typed_func::<i32, ExternRef>(&mut self.store, "zeros").unwrap();
        zeros.call(&mut self.store, n)
    }
}

fn string(length: usize) -> ExternRef {
    JsString::from(vec![0x61; length]).into()
}

fn is_limit(error: &Error) -> bool {
    matches!(error, Error::StoreLimit { .. })
}

#[test]
fn unreachable_strings_are_freed_and_reachable_ones_kept() {
    let mut program = Program::new();
    let kept = string(1 << 20);
    program.keep(Some(kept.clone()), 0);
    assert!(program.store.heap_size() >= bytes(1 << 20));
    // 2 GiB altogether.
    for _ in 0..8 {
        program.run("drop", &string(1 << 20), 64).unwrap();
        assert!(program.store.heap_size() <= 64 << 20, "{}", program.store.heap_size());
    }
    program.store.gc();
    let size = program.store.heap_size();
    assert!((bytes(1 << 20)..bytes(1 << 20) + (1 << 20)).contains(&size), "{size}");
    let found = program.instance.get_typed_func::<(), Option<ExternRef>>(&mut program.store, "kept").unwrap();
    assert!(found.call(&mut program.store, ()).unwrap().unwrap().same(&kept));
    program.keep(None, 0);
    program.store.gc();
    assert!(program.store.heap_size() < 1 << 20, "{}", program.store.heap_size());
}

#[test]
fn strings_count_for_the_limit_of_the_heap() {
    let limit = 8 << 20;
    let mut program = Program::limited(limit);
    // Garbage does not: 128 MiB.
    program.run("drop", &string(1 << 18), 128).unwrap();
    assert!(is_limit(&program.run("drop", &string(1 << 22), 1).unwrap_err()));
    assert!(is_limit(&program.run("double", &string(1), 30).unwrap_err()));
    // The program can go on, also with what it could not have before.
    program.zeros(1 << 20).unwrap();
    program.keep(Some(string(1 << 21)), 0);
    assert!(is_limit(&program.zeros(1 << 20).unwrap_err()), "the array or the string");
    assert!(program.store.heap_size() <= limit);
    program.keep(None, 0);
    program.zeros(1 << 20).unwrap();
}

#[test]
fn a_string_counts_once_however_many_references_there_are() {
    let mut program = Program::limited(8 << 20);
    let large = string(1 << 21);
    for place in 0..4 {
        // Each of them has an entry of its own, since the program has returned another one.
        program.zeros(1).unwrap();
        program.keep(Some(large.clone()), place);
    }
    program.zeros(1 << 10).unwrap();
}

#[test]
fn strings_have_a_maximum_length() {
    let mut program = Program::new();
    // Pages that are never touched.
    let half: ExternRef = JsString::from(vec![0; 1 << 28]).into();
    let error = program.run("drop", &half, 1).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&StringTooLong));
}
