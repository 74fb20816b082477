//! Host values whose destructors panic while the collector frees them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasm_jit::{AsContextMut, Engine, ExternRef, Func, Instance, Module, Store};

/// Counts its drops and panics when dropped, except while another panic unwinds.
struct Panics(Arc<AtomicUsize>);

impl Drop for Panics {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("dropped"));
        }
    }
}

/// Creates `count` references that panic when dropped, and throws enough exceptions to cause a
/// collection.
const PROGRAM: &str = r#"(module
    (import "host" "make" (func $make (result externref)))
    (tag $tag)
    (func (export "run") (param $count i32) (param $throws i32)
        (loop $again
            (if (local.get $count) (then
                (drop (call $make))
                (local.set $count (i32.sub (local.get $count) (i32.const 1)))
                (br $again))))
        (loop $again
            (block $caught (try_table (catch $tag $caught) (throw $tag)))
            (br_if $again (local.tee $throws (i32.sub (local.get $throws) (i32.const 1)))))))"#;

#[track_caller]
fn check_panic<R>(act: impl FnOnce() -> R) {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(_) => panic!("the panic of the destructor is lost"),
        Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"dropped")),
    }
}

#[test]
fn a_destructor_that_panics_in_a_collection_panics_in_the_call() {
    let (made, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let mut store = Store::new(module.engine(), ());
    let (makes, drops) = (made.clone(), dropped.clone());
    let make = Func::wrap(&mut store, move || {
        makes.fetch_add(1, Ordering::SeqCst);
        Some(ExternRef::new(Panics(drops.clone())))
    });
    let make = make.unwrap();
    let instance = Instance::new(&mut store, &module, &[make.into()]).unwrap();
    let run = instance.get_typed_func::<(i32, i32), ()>(&mut store, "run").unwrap();
    for _ in 0..3 {
        // While an exception is created.
        check_panic(|| run.call(&mut store, (5, 3000)));
    }
    // In a host function that returns a reference, and in an explicit collection.
    check_panic(|| run.call(&mut store.as_context_mut(), (3000, 1)));
    check_panic(|| {
        run.call(&mut store, (5, 1)).unwrap();
        store.gc();
    });
    let _ = catch_unwind(AssertUnwindSafe(|| store.gc()));
    run.call(&mut store, (0, 3000)).unwrap();
    store.gc();
    let [made, dropped] = [made, dropped].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(dropped, made, "all are dropped, once");
}
