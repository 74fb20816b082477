//! Programs that are stopped: by traps, and by interrupts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wasm_jit::{
    Caller, Config, Engine, Error, Extern, Func, Instance, Linker, Module, Store, Trap, Val, WasmBacktrace,
};

use super::{call0, instance, with_host};

#[test]
fn every_kind_of_trap_is_an_error_with_a_backtrace() {
    let (mut store, instance) = instance(
        r#"(module
            (memory 1)
            (table 2 funcref)
            (elem (i32.const 0) $other)
            (type $nothing (func))
            (func $other (param i32))
            (func (export "unreachable") unreachable)
            (func (export "division") (result i32) i32.const 1 i32.const 0 i32.div_s)
            (func (export "overflow") (result i32) i32.const 0x80000000 i32.const -1 i32.div_s)
            (func (export "conversion") (result i32) f32.const nan i32.trunc_f32_s)
            (func (export "memory") (result i32) i32.const 65533 i32.load)
            (func (export "fill") i32.const 65535 i32.const 0 i32.const 2 memory.fill)
            (func (export "table") (result funcref) i32.const 2 table.get 0)
            (func (export "undefined") i32.const 2 call_indirect (type $nothing))
            (func (export "null") i32.const 1 call_indirect (type $nothing))
            (func (export "signature") i32.const 0 call_indirect (type $nothing))
            (func $recurse (export "recurse") call $recurse))"#,
    );
    let cases = [
        ("unreachable", Trap::UnreachableCodeReached),
        ("division", Trap::IntegerDivisionByZero),
        ("overflow", Trap::IntegerOverflow),
        ("conversion", Trap::BadConversionToInteger),
        ("memory", Trap::MemoryOutOfBounds),
        ("fill", Trap::MemoryOutOfBounds),
        ("table", Trap::TableOutOfBounds),
        ("undefined", Trap::UndefinedElement),
        ("null", Trap::IndirectCallToNull),
        ("signature", Trap::BadSignature),
        ("recurse", Trap::StackOverflow),
    ];
    for (name, expected) in cases {
        let func = instance.get_func(&mut store, name).unwrap();
        let mut results: Vec<Val> = func.ty(&store).results().map(Val::default_for_ty).collect();
        let error = func.call(&mut store, &[], &mut results).unwrap_err();
        assert_eq!(error.trap(), Some(expected), "{name}: {error}");
        assert!(!error.backtrace().unwrap().frames().is_empty(), "{name}");
    }
}

#[test]
fn a_backtrace_names_the_functions_innermost_first() {
    let (mut store, instance) = instance(
        r#"(module $program
            (func $inner unreachable)
            (func $outer (export "run") call $inner))"#,
    );
    let error = call0::<()>(&mut store, instance, "run").unwrap_err();
    let names: Vec<_> = error.backtrace().unwrap().frames().iter().map(|frame| frame.func_name()).collect();
    assert_eq!(names, [Some("inner"), Some("outer")]);
}

#[test]
fn a_host_functions_trap_has_the_frames_of_its_callers() {
    let (mut store, instance) = with_host(
        r#"(module (import "host" "f" (func $f)) (func $run (export "run") call $f))"#,
        || -> Result<(), Error> { Err(Trap::IntegerOverflow.into()) },
    );
    let error = call0::<()>(&mut store, instance, "run").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::IntegerOverflow));
    assert_eq!(error.backtrace().unwrap().frames()[0].func_name(), Some("run"));
}

/// Two instances of the same module: the second one imports the first one's function, which calls
/// the host.
#[test]
fn the_frames_of_a_host_functions_callers_name_their_instances() {
    let engine = Engine::default();
    let text = r#"(module
        (import "host" "f" (func $f (param i32)))
        (func $run (export "run") (param i32) (call $f (local.get 0))))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, Vec::new());
    let host = Func::wrap(&mut store, |mut caller: Caller<'_, Vec<_>>, trap: i32| -> Result<(), Error> {
        let backtrace = WasmBacktrace::capture(&caller);
        let frames = backtrace.frames().iter();
        let frames =
            frames.map(|frame| (frame.func_index(), frame.func_name().unwrap().to_owned(), frame.instance()));
        *caller.data_mut() = frames.collect();
        if trap == 0 { Ok(()) } else { Err(Trap::Interrupt.into()) }
    });
    let inner = Instance::new(&mut store, &module, &[host.unwrap().into()]).unwrap();
    let run = inner.get_func(&store, "run").unwrap();
    let outer = Instance::new(&mut store, &module, &[run.into()]).unwrap();
    let func = outer.get_func(&store, "run").unwrap();
    func.call(&mut store, &[Val::I32(0)], &mut []).unwrap();
    let expected = [&inner, &outer].map(|instance| (1, "run".to_owned(), instance.id(&store)));
    assert_eq!(*store.data(), expected);
    let error = func.call(&mut store, &[Val::I32(1)], &mut []).unwrap_err();
    let instances = error.backtrace().unwrap().frames().iter().map(|frame| frame.instance());
    assert_eq!(instances.collect::<Vec<_>>(), [inner.id(&store), outer.id(&store)]);
    assert!(WasmBacktrace::capture(&store).is_empty(), "nothing runs");
}

#[test]
fn the_frame_of_a_trap_names_its_instance() {
    // By a signal in the function, in its prologue, and by the runtime.
    let traps = ["unreachable", "call $f", "(memory.fill (i32.const 65535) (i32.const 0) (i32.const 2))"];
    for trap in traps {
        let text = format!(r#"(module (memory 1) (func $f (export "run") {trap}))"#);
        let (mut store, instance) = instance(&text);
        let error = call0::<()>(&mut store, instance, "run").unwrap_err();
        let frames = error.backtrace().unwrap().frames();
        assert!(frames.iter().all(|frame| frame.instance() == instance.id(&store)), "{trap}");
        assert!(!frames.is_empty(), "{trap}");
    }
}

#[test]
fn a_trap_in_a_nested_call_can_be_caught_by_the_host() {
    let (mut store, instance) = with_host(
        r#"(module
            (import "host" "f" (func $f (result i32)))
            (func (export "trap") unreachable)
            (func (export "run") (result i32) call $f i32.const 1 i32.add))"#,
        |mut caller: Caller<'_, ()>| -> i32 {
            let func = caller.get_export("trap").and_then(Extern::into_func).unwrap();
            let error = func.call(&mut caller, &[], &mut []).unwrap_err();
            assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
            41
        },
    );
    assert_eq!(call0::<i32>(&mut store, instance, "run").unwrap(), 42);
}

#[test]
fn an_interrupt_stops_an_endless_loop_and_the_store_remains_usable() {
    let (mut store, instance) = instance(
        r#"(module
            (func (export "forever") (loop $again br $again))
            (func (export "one") (result i32) i32.const 1))"#,
    );
    let handle = store.interrupt_handle();
    let timeout = handle.interrupt_after(Duration::from_millis(20)).unwrap();
    let error = call0::<()>(&mut store, instance, "forever").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::Interrupt));
    assert!(timeout.has_fired());
    drop(timeout);
    assert_eq!(call0::<i32>(&mut store, instance, "one").unwrap(), 1);
}

#[test]
fn an_interrupt_ends_an_endless_wait() {
    let (mut store, instance) = instance(
        r#"(module (memory 1 1 shared) (func (export "wait") (result i32)
            (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1))))"#,
    );
    let handle = store.interrupt_handle();
    let _timeout = handle.interrupt_after(Duration::from_millis(20)).unwrap();
    let error = call0::<i32>(&mut store, instance, "wait").unwrap_err();
    assert_eq!(error.trap(), Some(Trap::Interrupt));
}

#[test]
fn an_interrupt_stops_a_program_that_is_mostly_in_the_runtime() {
    // Each handler is looked at before the exception is caught.
    let handlers = "(try_table (catch $other 0) ".repeat(2000);
    let nested_throw = format!("(block {handlers} (throw_ref (global.get $thrown)) {})", ")".repeat(2000));
    let bodies = [
        "(memory.fill (i32.const 0) (i32.const 1) (i32.const 0x400_0000))",
        "(memory.copy (i32.const 1) (i32.const 0) (i32.const 0x200_0000))",
        "(drop (memory.atomic.notify (i32.const 0) (i32.const 1)))",
        "(table.fill (i32.const 0) (ref.null func) (i32.const 1_000_000))",
        "(drop (memory.grow (i32.const 0)))",
        "(drop (table.grow (ref.null func) (i32.const 0)))",
        "(call $throw_below (i32.const 5000))",
        &nested_throw,
        "(data.drop $data)",
        "(elem.drop $elements)",
    ];
    for body in bodies {
        let (mut store, instance) = instance(&format!(
            r#"(module (memory 1024) (table 1_000_000 funcref) (tag $tag)
                (func $throw_below (param $frames i32)
                    (if (i32.eqz (local.get $frames)) (then (throw $tag)))
                    (call $throw_below (i32.sub (local.get $frames) (i32.const 1))))
                (global $thrown (mut exnref) (ref.null exn)) (tag $other)
                (data $data "data") (elem $elements func $throw_below)
                (func (export "run")
                    (global.set $thrown
                        (block $first (result exnref)
                            (try_table (catch_all_ref $first) (throw $tag)) (unreachable)))
                    (loop $again (block $caught (try_table (catch_all $caught) {body})) (br $again))))"#
        ));
        let handle = store.interrupt_handle();
        let start = Instant::now();
        let _timeout = handle.interrupt_after(Duration::from_millis(20)).unwrap();
        let error = call0::<()>(&mut store, instance, "run").unwrap_err();
        assert_eq!(error.trap(), Some(Trap::Interrupt), "{body}: {error}");
        let time = start.elapsed();
        assert!(time < Duration::from_secs(5), "{body}: {time:?}");
    }
}

/// A large operation ends in the middle, and is the same in pieces.
#[test]
fn an_interrupt_stops_operations_on_large_memories() {
    // The copy overlaps its source, and begins at the end.
    let text = r#"(module (memory (export "memory") 4096 4096 shared)
        (func (export "fill") (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x1000_0000)))
        (func (export "copy")
            (memory.copy (i32.const 0x0800_0001) (i32.const 0x0800_0000) (i32.const 0x07ff_ffff))))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_shared_memory(&store, "memory").unwrap();
    let byte = |at: usize| {
        let mut byte = [0];
        memory.read(at, &mut byte).unwrap();
        byte[0]
    };
    // The addresses that are written first and last, and the bytes before them.
    for (name, first, last) in [("fill", 0, 0x0fff_ffff), ("copy", 0x0fff_ffff, 0x0800_0001)] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name).unwrap();
        let handle = store.interrupt_handle();
        // On a busy machine, the operation may be over before it is interrupted.
        let is_stopped = (0..200).any(|_| {
            for at in [first, last] {
                memory.write(at, &[0]).unwrap();
                if name == "copy" {
                    memory.write(at - 1, &[1]).unwrap();
                }
            }
            let ends = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (handle, byte) = (&handle, &byte);
                scope.spawn(move || {
                    while byte(first) == 0 && !ends.load(Ordering::Relaxed) {}
                    handle.interrupt();
                });
                let outcome = function.call(&mut store, ());
                ends.store(true, Ordering::Relaxed);
                outcome.is_err_and(|error| error.trap() == Some(Trap::Interrupt)) && byte(last) == 0
            })
        });
        assert!(is_stopped, "{name}");
    }
    // Around multiples of a MiB.
    let marks = (1..128).flat_map(|mib| (0..3).map(move |near| (0x0800_0000 - 1 + (mib << 20) + near, mib)));
    let marks: Vec<(usize, usize)> = marks.collect();
    for (at, mib) in &marks {
        memory.write(*at, &[*mib as u8 + (at % 3) as u8]).unwrap();
    }
    // A request of the last turn may still be pending.
    let copy = instance.get_typed_func::<(), ()>(&mut store, "copy").unwrap();
    while copy.call(&mut store, ()).is_err() {
        for (at, mib) in &marks {
            memory.write(*at, &[*mib as u8 + (at % 3) as u8]).unwrap();
        }
    }
    for (at, mib) in marks {
        assert_eq!(byte(at + 1), mib as u8 + (at % 3) as u8, "{at:#x}");
    }
}

#[test]
fn signals_that_cannot_interrupt_are_refused() {
    for signal in [-1, 0, libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGFPE, 33, 65, i32::MAX] {
        let error = Engine::new(Config::new().interrupt_signal(signal)).unwrap_err();
        assert!(matches!(error, Error::InterruptSignal { signal: found } if found == signal), "{error}");
    }
    let engine = Engine::new(Config::new().interrupt_signal(libc::SIGUSR2)).unwrap();
    let module = Module::new(&engine, r#"(module (func (export "run") (loop $again br $again)))"#).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let _timeout = store.interrupt_handle().interrupt_after(Duration::from_millis(1)).unwrap();
    assert_eq!(call0::<()>(&mut store, instance, "run").unwrap_err().trap(), Some(Trap::Interrupt));
}

#[test]
fn stack_overflow_comes_earlier_with_a_smaller_stack() {
    let depth = |config: &Config| {
        let engine = Engine::new(config).unwrap();
        let module = Module::new(
            &engine,
            r#"(module (global $depth (export "depth") (mut i32) (i32.const 0))
                (func $recurse (export "recurse")
                    (global.set $depth (i32.add (global.get $depth) (i32.const 1)))
                    call $recurse))"#,
        )
        .unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let error = call0::<()>(&mut store, instance, "recurse").unwrap_err();
        assert_eq!(error.trap(), Some(Trap::StackOverflow));
        instance.get_global(&store, "depth").unwrap().get(&mut store).unwrap_i32()
    };
    let (small, large) = (depth(Config::new().max_wasm_stack(64 << 10)), depth(&Config::new()));
    assert!(small * 8 < large && small > 100, "{small} and {large} calls");
}

/// Recurses through the host until the stack overflows, in a thread with at least this stack size;
/// returns the depth.
fn depth_of_recursion_through_the_host(stack_size: usize) -> u32 {
    let recurse = move || {
        // The limit is the thread's stack.
        let engine = Engine::new(Config::new().max_wasm_stack(1 << 30)).unwrap();
        let module =
            Module::new(&engine, r#"(module (import "host" "f" (func $f)) (func (export "run") call $f))"#)
                .unwrap();
        let mut linker: Linker<u32> = Linker::new(&engine);
        let again = |mut caller: Caller<'_, u32>| -> Result<(), Error> {
            *caller.data_mut() += 1;
            let run = caller.get_export("run").and_then(Extern::into_func).unwrap();
            run.call(&mut caller, &[], &mut [])
        };
        linker.func_wrap("host", "f", again).unwrap();
        let mut store = Store::new(&engine, 0);
        let instance = linker.instantiate(&mut store, &module).unwrap();
        let run = instance.get_func(&store, "run").unwrap();
        let error = run.call(&mut store, &[], &mut []).unwrap_err();
        assert_eq!(error.trap(), Some(Trap::StackOverflow));
        store.into_data()
    };
    std::thread::Builder::new().stack_size(stack_size).spawn(recurse).unwrap().join().unwrap()
}

#[test]
fn recursion_through_the_host_ends_in_a_trap_whatever_the_threads_stack() {
    assert!(depth_of_recursion_through_the_host(768 << 10) > 100);
    assert!(depth_of_recursion_through_the_host(8 << 20) > 500);
}
