//! Recording and replay: a program whose host writes, grows, sets globals and returns all kinds of
//! numbers.

use std::io::Write;
use std::sync::{Arc, Mutex};

use wasm_jit::{AsContext, Caller, Engine, Extern, Linker, Module, Store, Val};
use wasm_jit_replay::{DIFFERENCE, Error, Event, Reader, Recorder, Value, generate};

#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<u8>>>);

impl Trace {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Trace {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `run` calls the host `n` times and returns a checksum of results and of memory.
const PROGRAM: &str = r#"(module
    (import "h" "next" (func $next (param i32 f64) (result i64)))
    (import "h" "float" (func $float (param f32) (result f32)))
    (memory (export "memory") 1)
    (global $g (export "g") (mut i64) (i64.const 0))
    (func (export "run") (param $n i32) (result i64) (local $sum i64)
        (loop $again
            (local.set $sum (i64.add
                (i64.mul (local.get $sum) (i64.const 31))
                (call $next (local.get $n) (f64.const nan:0x4000000000001))))
            (local.set $sum (i64.add (local.get $sum) (i64.load (i32.shl (local.get $n) (i32.const 3)))))
            (local.set $sum (i64.add (local.get $sum) (global.get $g)))
            (local.set $sum (i64.add (local.get $sum) (i64.extend_i32_u (memory.size))))
            (local.set $sum (i64.add (local.get $sum)
                (i64.extend_i32_u (i32.reinterpret_f32 (call $float (f32.const nan:0x200001))))))
            (i64.store offset=8000 (i32.shl (local.get $n) (i32.const 3)) (local.get $sum))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

/// Records two calls of `run`, between which the host writes; returns program, trace and results.
fn recorded(calls: i32) -> (Vec<u8>, Vec<u8>, Vec<i64>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker: Linker<u64> = Linker::new(&engine);
    linker
        .func_wrap("h", "next", |mut caller: Caller<'_, u64>, n: i32, x: f64| -> i64 {
            assert_eq!(x.to_bits(), 0x7ff4_0000_0000_0001);
            *caller.data_mut() = caller.data().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = *caller.data();
            let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!("a memory") };
            let Some(Extern::Global(global)) = caller.get_export("g") else { panic!("a global") };
            memory.write(&mut caller, 8 * n as usize, &random.to_le_bytes()).unwrap();
            if n % 64 == 1 {
                let size = memory.grow(&mut caller, 1).unwrap() as usize;
                memory.write(&mut caller, (size << 16) + 65_535, &[7]).unwrap();
            }
            if n % 3 == 0 {
                global.set(&mut caller, Val::I64(i64::MIN + n as i64)).unwrap();
            }
            if n % 2 == 0 { i64::MIN } else { random as i64 }
        })
        .unwrap();
    linker
        .func_wrap("h", "float", |_: Caller<'_, u64>, x: f32| f32::from_bits(x.to_bits() ^ 0x8000_0002))
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, 1);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let mut sums = Vec::new();
    for _ in 0..2 {
        let mut results = [Val::I64(0)];
        recorder.call(&mut store, &instance, "run", &[Val::I32(calls)], &mut results).unwrap();
        sums.push(results[0].unwrap_i64());
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        memory.write(&mut store, 40_000, &[1, 2, 3]).unwrap();
    }
    (module.bytes().to_vec(), trace.bytes(), sums)
}

/// Runs a replay; returns whether it succeeded and the number of the event that differs.
fn replay(bench: &[u8]) -> (bool, i32) {
    let engine = Engine::default();
    let module = Module::from_binary(&engine, bench).unwrap();
    assert_eq!(module.imports().len(), 0);
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine).instantiate(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
    let done = start.call(&mut store, ());
    let difference = instance.get_global(&mut store, DIFFERENCE).unwrap();
    (done.is_ok(), difference.get(&mut store).unwrap_i32())
}

fn events(trace: &[u8]) -> Vec<Event> {
    Reader::new(trace).collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_replay_equals_its_recording() {
    for calls in [1, 5, 256, 600] {
        let (program, trace, sums) = recorded(calls);
        let events = events(&trace);
        let returned: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Leave { results } => Some(results[0]),
                _ => None,
            })
            .collect();
        assert_eq!(returned, sums.iter().map(|sum| Value::I64(*sum)).collect::<Vec<_>>());
        assert_eq!(replay(&generate(&program, &trace[..], true).unwrap()), (true, 0), "{calls} calls");
        assert_eq!(replay(&generate(&program, &trace[..], false).unwrap()), (true, 0), "{calls} calls");
    }
}

/// Changes one bit in the payload of the event of this number, and the checksum with it.
fn changed(trace: &[u8], number: usize, from_end: usize) -> Vec<u8> {
    let mut trace = trace.to_vec();
    let word = |trace: &[u8], at: usize| u32::from_le_bytes(trace[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 0;
    for _ in 0..number {
        at += 8 + word(&trace, at);
    }
    let end = at + 8 + word(&trace, at);
    trace[end - from_end] ^= 1;
    let checksum = crc32fast::hash(&trace[at + 8..end]);
    trace[at + 4..at + 8].copy_from_slice(&checksum.to_le_bytes());
    trace
}

#[test]
fn the_first_difference_is_named() {
    let (program, trace, _) = recorded(5);
    let events = events(&trace);
    let mut checked = 0;
    for (number, event) in events.iter().enumerate() {
        // Arguments and results of the program differ at once; what the host did, when the run's
        // result is compared.
        let expected = match event {
            Event::Call { .. } | Event::Leave { .. } => number,
            Event::Return { .. } => {
                let rest = &events[number..];
                number + rest.iter().position(|event| matches!(event, Event::Leave { .. })).unwrap()
            }
            _ => continue,
        };
        let bench = generate(&program, &changed(&trace, number, 8)[..], true).unwrap();
        assert_eq!(replay(&bench), (false, expected as i32), "event {number}: {event:?}");
        checked += 1;
    }
    assert!(checked > 20);
}

#[test]
fn damaged_traces_are_errors() {
    let (program, trace, _) = recorded(3);
    for at in 0..trace.len() {
        let mut damaged = trace.clone();
        damaged[at] ^= 4;
        assert!(generate(&program, &damaged[..], true).is_err(), "byte {at}");
    }
    // A trace that was cut is read up to its last complete frame.
    let all = events(&trace);
    for length in 1..trace.len() {
        let read: Vec<_> = Reader::new(&trace[..length]).map_while(Result::ok).collect();
        assert!(read.len() < all.len() && all.starts_with(&read), "{length} bytes");
    }
    let other = wat::parse_str("(module)").unwrap();
    assert!(matches!(generate(&other, &trace[..], true), Err(Error::OtherModule)));
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let engine = Engine::default();
    for (text, expected) in [
        ("(module (import \"m\" \"t\" (table 1 funcref)))", "m.t"),
        ("(module (func) (start 0))", "a start function"),
        ("(module (table (export \"t\") 1 funcref))", "a table"),
        ("(module (memory (export \"m\") 1 1 shared))", "a shared memory"),
        ("(module (import \"h\" \"f\" (func (param externref))))", "references"),
    ] {
        let module = Module::new(&engine, text).unwrap();
        let error = Recorder::new(&module, Vec::new()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_host_that_calls_back_ends_the_recording() {
    let engine = Engine::default();
    let text =
        "(module (import \"h\" \"f\" (func $f)) (func (export \"g\")) (func (export \"run\") (call $f)))";
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, ()>| {
            let Some(Extern::Func(g)) = caller.get_export("g") else { panic!("a function") };
            let entries = caller.as_context().entries();
            g.call(&mut caller, &[], &mut []).unwrap();
            assert_eq!(caller.as_context().entries(), entries + 1);
        })
        .unwrap();
    let recorder = Recorder::new(&module, Vec::new()).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let error = recorder.call(&mut store, &instance, "run", &[], &mut []).unwrap_err();
    assert!(error.to_string().contains("called back"), "{error}");
}
