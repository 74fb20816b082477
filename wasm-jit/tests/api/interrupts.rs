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

/// Interrupts a call while it is in the host function, and returns its error. A thread that has to
/// wait for a processor may be interrupted before that; then the call is repeated with more time.
/// `call` returns whether the host function was called.
fn interrupted_in_host(handle: &InterruptHandle, mut call: impl FnMut() -> (Error, bool)) -> Error {
    let times = [10, 100, 1_000, 10_000].map(Duration::from_millis);
    let attempt = |time| {
        let _timeout = handle.interrupt_after(time).expect("the timer can be started");
        let (error, is_in_host) = call();
        is_in_host.then_some(error)
    };
    times.into_iter().find_map(attempt).expect("the host function is called within ten seconds")
}

#[test]
fn an_interrupt_that_a_host_function_swallows_stops_its_caller_too() {
    let (mut store, instance, handle, seen) = swallowing(|call| call());
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    for _ in 0..3 {
        let error = interrupted_in_host(&handle, || {
            let error = run.call(&mut store, ()).unwrap_err();
            (error, seen.nested_interrupt.swap(false, Ordering::SeqCst))
        });
        assert!(!seen.mark.load(Ordering::SeqCst), "the outer program has gone on");
        assert_eq!(error.trap(), Some(Trap::Interrupt));
    }
}

#[test]
fn a_request_by_a_handle_ends_with_the_outermost_call() {
    let (mut store, instance, handle, seen) = swallowing(|call| call());
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    handle.interrupt();
    assert_eq!(run.call(&mut store, ()).unwrap_err().trap(), Some(Trap::Interrupt));
    assert!(!seen.nested_interrupt.load(Ordering::SeqCst), "stopped before it began");
    // The first request is over.
    let error = interrupted_in_host(&handle, || {
        (run.call(&mut store, ()).unwrap_err(), seen.nested_interrupt.load(Ordering::SeqCst))
    });
    assert_eq!(error.trap(), Some(Trap::Interrupt));
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
    let handle = store.interrupt_handle();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let error = interrupted_in_host(&handle, || {
        let error = run.call(&mut store, ()).unwrap_err();
        (error, store.data().is_some())
    });
    assert_eq!(error.trap(), Some(Trap::Interrupt), "{error}");
    assert_eq!(*store.data(), Some(true));
    // SAFETY: both are this test's own.
    pipe.into_iter().for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
}

/// A large operation ends in the middle, and is the same in pieces.
#[test]
fn an_interrupt_stops_operations_on_large_arrays() {
    const LENGTH: i32 = 0x800_0000;
    // The copy overlaps its source, and begins at the end.
    let text = r#"(module
        (type $bytes (array (mut i8)))
        (type $longs (array (mut i64)))
        (global $array (ref $bytes) (array.new_default $bytes (i32.const 0x800_0000)))
        (func (export "get") (param i32) (result i32)
            (array.get_u $bytes (global.get $array) (local.get 0)))
        (func (export "set") (param i32 i32)
            (array.set $bytes (global.get $array) (local.get 0) (local.get 1)))
        (func (export "fill")
            (array.fill $bytes (global.get $array) (i32.const 0) (i32.const 1) (i32.const 0x800_0000)))
        (func (export "copy")
            (array.copy $bytes $bytes
                (global.get $array) (i32.const 1) (global.get $array) (i32.const 0)
                (i32.const 0x7ff_ffff)))
        (func (export "new") (param i32) (result i64)
            (array.get $longs (array.new $longs (i64.const 5) (i32.const 0x40_0001)) (local.get 0))))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let [get, set] = ["get", "set"].map(|name| instance.get_func(&store, name).unwrap());
    let (get, set) = (get.typed::<i32, i32>(&store).unwrap(), set.typed::<(i32, i32), ()>(&store).unwrap());
    // A request of the last operation may still be pending.
    let get = |store: &mut Store<()>, at: i32| loop {
        if let Ok(value) = get.call(&mut *store, at) {
            return value;
        }
    };
    let set = |store: &mut Store<()>, at: i32, value: i32| {
        while set.call(&mut *store, (at, value)).is_err() {}
    };
    // The elements that are written first and last.
    for (name, first, last) in [("fill", 0, LENGTH - 1), ("copy", LENGTH - 1, 1)] {
        let operation = instance.get_typed_func::<(), ()>(&store, name).unwrap();
        // On a busy machine, the operation may not have begun, or be over.
        let is_stopped = (0..400).any(|attempt| {
            for at in [first, last] {
                set(&mut store, at, 0);
                if name == "copy" {
                    set(&mut store, at - 1, 1);
                }
            }
            let time = Duration::from_millis(1 + attempt % 20);
            let timeout = store.interrupt_handle().interrupt_after(time).unwrap();
            let outcome = operation.call(&mut store, ());
            drop(timeout);
            outcome.is_err_and(|error| error.trap() == Some(Trap::Interrupt))
                && (get(&mut store, first), get(&mut store, last)) == (1, 0)
        });
        assert!(is_stopped, "{name}");
    }
    // Around multiples of a MiB.
    let marks: Vec<i32> = (1..127).flat_map(|mib| (0..3).map(move |near| (mib << 20) - 1 + near)).collect();
    let value = |at: i32| (at >> 20) + at % 3;
    let copy = instance.get_typed_func::<(), ()>(&store, "copy").unwrap();
    marks.iter().for_each(|at| set(&mut store, *at, value(*at)));
    copy.call(&mut store, ()).unwrap();
    for at in marks {
        assert_eq!(get(&mut store, at + 1), value(at), "{at:#x}");
    }
    let fill = instance.get_typed_func::<(), ()>(&store, "fill").unwrap();
    fill.call(&mut store, ()).unwrap();
    for at in [0, (16 << 20) - 1, 16 << 20, (48 << 20) + 1, LENGTH - 1] {
        assert_eq!(get(&mut store, at), 1, "{at:#x}");
    }
    let new = instance.get_typed_func::<i32, i64>(&store, "new").unwrap();
    for at in [0, (2 << 20) - 1, 2 << 20, (4 << 20) - 1, 4 << 20] {
        assert_eq!(new.call(&mut store, at).unwrap(), 5, "{at:#x}");
    }
}
