//! Threads that run one program: stores of their own, one module, one shared memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use wasm_jit::{
    Caller, Engine, Instance, InterruptHandle, Linker, MemoryType, Module, SharedMemory, Store, Trap,
    TypedFunc,
};

/// The address of the counter that all threads share; it is followed by one for each thread, eight
/// bytes each.
const COMMON: usize = 0;
const OWN: usize = 64;
/// Number of interrupts of each thread.
const INTERRUPTS: u64 = 200;

const COUNTERS: &str = r#"(module
    (import "host" "memory" (memory 1 64 shared))
    (import "host" "pause" (func $pause))
    (global $calls (mut i32) (i32.const 0))
    (table 1 funcref)
    (elem (i32.const 0) $count)
    ;; The common counter is never less than the sum of the others.
    (func $count (param $own i32)
        (drop (i64.atomic.rmw.add (i32.const 0) (i64.const 1)))
        (drop (i64.atomic.rmw.add (local.get $own) (i64.const 1))))
    (func (export "run") (param $own i32)
        (loop $again
            (call $count (local.get $own))
            (call_indirect (param i32) (local.get $own) (i32.const 0))
            (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
            (if (i32.eqz (i32.and (global.get $calls) (i32.const 0xfff))) (then
                (call $pause)
                (memory.fill (i32.const 4096) (i32.const 7) (i32.const 4096))
                (drop (memory.grow (i32.const 1)))
                (drop (memory.atomic.wait32 (i32.const 2048) (i32.const 0) (i64.const 1000)))))
            (br $again)))
    (func (export "sum") (param $threads i32) (result i64) (local $sum i64)
        (loop $again
            (local.set $threads (i32.sub (local.get $threads) (i32.const 1)))
            (local.set $sum (i64.add (local.get $sum)
                (i64.atomic.load offset=64 (i32.mul (local.get $threads) (i32.const 8)))))
            (br_if $again (local.get $threads)))
        (local.get $sum)))"#;

fn counter(memory: &SharedMemory, at: usize) -> u64 {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Runs a program in one store, again after each interrupt, until `stop` is set. Returns the number
/// of interrupts.
fn count_until(stop: &AtomicBool, store: &mut Store<u64>, run: TypedFunc<i32, ()>, own: usize) -> u64 {
    let mut interrupts = 0;
    while !stop.load(Ordering::Relaxed) {
        let error = run.call(&mut *store, own as i32).unwrap_err();
        assert_eq!(error.trap(), Some(Trap::Interrupt), "{error}");
        interrupts += 1;
    }
    interrupts
}

#[test]
fn threads_count_in_one_memory_while_they_are_interrupted_and_instances_come_and_go() {
    let engine = Engine::default();
    let module = Module::new(&engine, COUNTERS).unwrap();
    let memory = SharedMemory::new(MemoryType::shared(1, 64)).unwrap();
    let mut linker: Linker<u64> = Linker::new(&engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, u64>| *caller.data_mut() += 1).unwrap();
    let (threads, stop) = (3, AtomicBool::new(false));
    let (handles, handed) = mpsc::channel::<InterruptHandle>();
    let (interrupted, instances): (u64, u64) = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (module, memory, linker, stop) = (&module, &memory, &linker, &stop);
                let handles = handles.clone();
                scope.spawn(move || {
                    let mut store = Store::new(module.engine(), 0);
                    let mut linker = linker.clone();
                    linker.define(&store, "host", "memory", memory.clone()).unwrap();
                    let instance = linker.instantiate(&mut store, module).unwrap();
                    let run = instance.get_typed_func(&store, "run").unwrap();
                    handles.send(store.interrupt_handle()).unwrap();
                    let interrupts = count_until(stop, &mut store, run, OWN + 8 * number);
                    assert!(*store.data() > 0, "the host was called");
                    interrupts
                })
            })
            .collect();
        // One thread creates stores and instances of the same module, runs a function, and drops
        // them.
        let maker = scope.spawn(|| {
            let mut made = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut store = Store::new(&engine, 0);
                let mut linker = linker.clone();
                linker.define(&store, "host", "memory", memory.clone()).unwrap();
                let instance = linker.instantiate(&mut store, &module).unwrap();
                let sum = instance.get_typed_func::<i32, u64>(&store, "sum").unwrap();
                let before = sum.call(&mut store, threads as i32).unwrap();
                let common = counter(&memory, COMMON);
                assert!(before <= common, "{before} counted of {common}");
                made += 1;
            }
            made
        });
        let handles: Vec<InterruptHandle> = (0..threads).map(|_| handed.recv().unwrap()).collect();
        for number in 0..INTERRUPTS {
            let before = counter(&memory, COMMON);
            handles.iter().for_each(InterruptHandle::interrupt);
            // They continue.
            while counter(&memory, COMMON) < before + 10_000 {
                thread::sleep(Duration::from_micros(number));
            }
        }
        stop.store(true, Ordering::Relaxed);
        // The last requests, which may arrive between two calls.
        while !workers.iter().all(|worker| worker.is_finished()) {
            handles.iter().for_each(InterruptHandle::interrupt);
            thread::sleep(Duration::from_millis(1));
        }
        let interrupted = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        (interrupted, maker.join().unwrap())
    });
    let own: u64 = (0..threads).map(|number| counter(&memory, OWN + 8 * number)).sum();
    let common = counter(&memory, COMMON);
    assert!(interrupted >= INTERRUPTS && instances > 0, "{interrupted} interrupts, {instances} instances");
    assert!((own..=own + interrupted).contains(&common), "{common} and {own}, {interrupted} interrupts");
    assert_eq!(memory.size(), 64, "all have seen it grow to its maximum");
}

#[test]
fn a_token_passed_between_threads_is_never_lost() {
    const ROUNDS: i32 = 20_000;
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "memory" (memory 1 1 shared))
            ;; Waits for its turn, 0 or 1, takes it, and gives it to the other. Returns how many rounds are left when a wait
            ;; times out.
            (func (export "run") (param $me i32) (param $rounds i32) (result i32)
                (loop $round
                    (block $mine
                        (loop $wait
                            (br_if $mine (i32.eq (i32.atomic.load (i32.const 0)) (local.get $me)))
                            (if (i32.eq (i32.const 2)
                                    (memory.atomic.wait32 (i32.const 0)
                                        (i32.sub (i32.const 1) (local.get $me)) (i64.const 20_000_000_000)))
                                (then (return (local.get $rounds))))
                            (br $wait)))
                    (i32.store (i32.const 4) (i32.add (i32.load (i32.const 4)) (i32.const 1)))
                    (i32.atomic.store (i32.const 0) (i32.sub (i32.const 1) (local.get $me)))
                    (drop (memory.atomic.notify (i32.const 0) (i32.const 1)))
                    (br_if $round (local.tee $rounds (i32.sub (local.get $rounds) (i32.const 1)))))
                (i32.const 0)))"#,
    )
    .unwrap();
    let memory = SharedMemory::new(MemoryType::shared(1, 1)).unwrap();
    thread::scope(|scope| {
        for me in 0..2 {
            let (module, memory) = (&module, &memory);
            scope.spawn(move || {
                let mut store = Store::new(module.engine(), ());
                let instance = Instance::new(&mut store, module, &[memory.clone().into()]).unwrap();
                let run = instance.get_typed_func::<(i32, i32), i32>(&store, "run").unwrap();
                assert_eq!(run.call(&mut store, (me, ROUNDS)).unwrap(), 0, "a wait has timed out");
            });
        }
    });
    assert_eq!(counter(&memory, 0) >> 32, 2 * ROUNDS as u64);
}
