//! Interrupts of programs that call host functions which call back, or wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wasm_jit::{Caller, Engine, Error, Extern, Instance, InterruptHandle, Linker, Module, Store, Trap};

const NESTED: &str = r#"(module
    (import "host" "nested" (func $nested))
    (import "host" "mark" (func $mark))
    (func (export "spin") (loop $again (br $again)))
    (func (export "run") (call $nested) (call $mark)))"#;

/// Events that the test observes.
#[derive(Clone, Default)]
struct Seen {
    nested_interrupt: Arc<AtomicBool>,
    mark: Arc<AtomicBool>,
}

/// A program whose host function calls `spin` and ignores the interrupt; `within` makes that call.
fn swallowing(
    within: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static,
) -> (Store<()>, Instance, InterruptHandle, Seen) {
    let engine = Engine::default();
    let module = Module::new(&engine, NESTED).unwrap();
    let mut store = Store::new(&engine, ());
    let handle = store.interrupt_handle();
    let mut linker = Linker::new(&engine);
    let seen = Seen::default();
    let Seen { nested_interrupt, mark } = seen.clone();
    linker
        .func_wrap("host", "nested", move |mut caller: Caller<'_, ()>| {
            within(&mut || {
                let spin = caller.get_export("spin").and_then(Extern::into_func).unwrap();
                let error = spin.typed::<(), ()>(&caller).unwrap().call(&mut caller, ()).unwrap_err();
                nested_interrupt.store(error.trap() == Some(Trap::Interrupt), Ordering::SeqCst);
            });
        })
        .unwrap();
    linker.func_wrap("host", "mark", move || mark.store(true, Ordering::SeqCst)).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    (store, instance, handle, seen)
}

#[test]
fn an_interrupt_that_a_host_function_swallows_stops_its_caller_too() {
    let (mut store, instance, handle, seen) = swallowing(|call| call());
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    for _ in 0..3 {
        let timeout = handle.interrupt_after(Duration::from_millis(10)).unwrap();
        let outcome = run.call(&mut store, ());
        assert!(seen.nested_interrupt.load(Ordering::SeqCst));
        assert!(!seen.mark.load(Ordering::SeqCst), "the outer program has gone on");
        assert_eq!(outcome.unwrap_err().trap(), Some(Trap::Interrupt));
        drop(timeout);
    }
}

#[test]
fn a_request_by_a_handle_ends_with_the_outermost_call() {
    let (mut store, instance, handle, seen) = swallowing(|call| call());
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    handle.interrupt();
    assert_eq!(run.call(&mut store, ()).unwrap_err().trap(), Some(Trap::Interrupt));
    assert!(!seen.nested_interrupt.load(Ordering::SeqCst), "stopped before it began");
    let timeout = handle.interrupt_after(Duration::from_millis(10)).unwrap();
    assert_eq!(run.call(&mut store, ()).unwrap_err().trap(), Some(Trap::Interrupt));
    assert!(seen.nested_interrupt.load(Ordering::SeqCst), "the first request is over");
    drop(timeout);
}

#[test]
fn a_timeout_of_the_nested_call_alone_leaves_the_outer_one_running() {
    let own_handle = Arc::new(std::sync::OnceLock::<InterruptHandle>::new());
    let within = own_handle.clone();
    let (mut store, instance, handle, seen) = swallowing(move |call| {
        let timeout = within.get().expect("set").interrupt_after(Duration::from_millis(10)).unwrap();
        call();
        drop(timeout);
    });
    own_handle.set(handle).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    assert!(seen.nested_interrupt.load(Ordering::SeqCst) && seen.mark.load(Ordering::SeqCst));
}

#[test]
fn a_panic_after_a_swallowed_interrupt_ends_the_request() {
    let (mut store, instance, handle, seen) = swallowing(|call| {
        call();
        std::panic::resume_unwind(Box::new("of the host"));
    });
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    handle.interrupt();
    for _ in 0..2 {
        // The first request takes effect before the call begins; the second call panics in the
        // host.
        let timeout = handle.interrupt_after(Duration::from_millis(10)).unwrap();
        let call = std::panic::AssertUnwindSafe(|| run.call(&mut store, ()));
        let outcome = std::panic::catch_unwind(call);
        drop(timeout);
        if let Ok(outcome) = outcome {
            assert_eq!(outcome.unwrap_err().trap(), Some(Trap::Interrupt));
        }
    }
    assert!(!seen.mark.load(Ordering::SeqCst));
}

#[test]
fn a_host_function_that_waits_in_a_system_call_is_notified_of_an_interrupt() {
    let engine = Engine::default();
    let text = r#"(module (import "host" "read" (func $read)) (func (export "run") (call $read)))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut pipe = [0; 2];
    // SAFETY: writes two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let mut linker: Linker<Option<bool>> = Linker::new(&engine);
    linker
        .func_wrap("host", "read", move |mut caller: Caller<'_, Option<bool>>| -> Result<(), Error> {
            let mut byte = 0_u8;
            // SAFETY: reads one byte. Nothing is written to the pipe.
            let count = unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
            let error = io::Error::last_os_error();
            assert_eq!((count, error.kind()), (-1, io::ErrorKind::Interrupted));
            *caller.data_mut() = Some(caller.is_interrupted());
            Err(Error::host(error))
        })
        .unwrap();
    let mut store = Store::new(&engine, None);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let timeout = store.interrupt_handle().interrupt_after(Duration::from_millis(10)).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let error = run.call(&mut store, ()).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::Interrupt), "{error}");
    assert_eq!(*store.data(), Some(true));
    drop(timeout);
    // SAFETY: both are this test's own.
    pipe.into_iter().for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
}
