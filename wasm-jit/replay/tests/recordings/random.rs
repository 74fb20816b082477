//! Random hosts: they write everywhere, grow memories and tables, set globals and elements, call
//! back, and return values of all kinds. A replay must equal its recording, in this engine and in
//! wasmi.

use std::io::Cursor;
use std::num::NonZeroU64;

use crate::machine_code::code;
use crate::support::{
    Replayed, Trace, events, reduced, replay, replay_in_wasmi, replay_separately, replay_separately_in_wasmi,
    trace_of,
};
use wasm_jit::{
    AsContextMut, Caller, Engine, Extern, Func, FuncType, Global, GlobalType, HeapType, Instance, Linker,
    Memory, MemoryType, Module, Mutability, RefType, Store, Val, ValType,
};
use wasm_jit_replay::{CallRecorder, Calls, Event, Recorder, Value, generate, reduce, separate};

/// `run` mixes what it reads anywhere in both memories, the global, the sizes and what the host
/// returns; `back` is the same with fewer rounds, for the host.
const PROGRAM: &str = r#"(module
    (import "h" "i" (func $i (param i32 i64) (result i64)))
    (import "h" "f" (func $f (param f32 f64) (result f64 f32)))
    (import "h" "v" (func $v (param v128) (result v128)))
    (import "h" "g" (func $g (param funcref) (result funcref)))
    (memory $a (export "a") 1 20)
    (memory $b 1 20)
    (table $t (export "t") 1 8 funcref)
    (global $s (export "s") (mut i64) (i64.const 1))
    (global $x (export "x") (mut f32) (f32.const 0))
    (type $seven (func (result i32)))
    (func $seven (export "seven") (type $seven) (i32.const 7))
    (elem declare func $seven)
    (func $mix (param i64)
        (global.set $s (i64.add (i64.mul (i64.xor (global.get $s) (local.get 0))
            (i64.const 6364136223846793005)) (i64.const 1442695040888963407))))
    (func $at (param i32) (result i32)
        (i32.rem_u (i32.wrap_i64 (i64.shr_u (global.get $s) (i64.const 33)))
            (i32.sub (i32.shl (local.get 0) (i32.const 16)) (i32.const 16))))
    (func $rounds (export "back") (param $n i32) (result i64) (local $f f64) (local $p funcref)
        (loop $again
            (call $mix (i64.load $a (call $at (memory.size $a))))
            (call $mix (i64.load $b (call $at (memory.size $b))))
            (i64.store32 $a (call $at (memory.size $a)) (global.get $s))
            (i64.store16 $b (call $at (memory.size $b)) (global.get $s))
            (call $mix (call $i (local.get $n) (global.get $s)))
            (call $f (f32.reinterpret_i32 (i32.wrap_i64 (global.get $s))) (f64.reinterpret_i64 (global.get $s)))
            (call $mix (i64.extend_i32_u (i32.reinterpret_f32)))
            (local.set $f)
            (call $mix (i64.reinterpret_f64 (local.get $f)))
            (call $mix (i64.extend_i32_u (i32.reinterpret_f32 (global.get $x))))
            (call $mix (i64x2.extract_lane 1 (call $v (i64x2.splat (global.get $s)))))
            (call $mix (i64.extend_i32_u (table.size $t)))
            (call $mix (i64.extend_i32_u (ref.is_null
                (table.get $t (i32.sub (table.size $t) (i32.const 1))))))
            (local.set $p (call $g (ref.func $seven)))
            (if (i32.eqz (ref.is_null (local.get $p)))
                (then
                    (table.set $t (i32.const 0) (local.get $p))
                    (call $mix (i64.extend_i32_u (call_indirect $t (type $seven) (i32.const 0))))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (global.get $s))
    (func (export "run") (param i32) (result i64) (call $rounds (local.get 0)))
    (func $begin (drop (call $rounds (i32.const 2))))
    (start $begin))"#;

/// The same program, where the host has made one of the memories, the globals, and their contents.
fn with_imports() -> String {
    let moved = [
        (r#"(memory $a (export "a") 1 20)"#, r#"(memory $a 1)"#),
        (r#"(global $s (export "s") (mut i64) (i64.const 1))"#, r#"(global $s (mut i64))"#),
        (r#"(global $x (export "x") (mut f32) (f32.const 0))"#, r#"(global $x (mut f32))"#),
    ];
    let mut text = PROGRAM.to_owned();
    for (definition, import) in moved {
        let name = &import[import.find('$').unwrap() + 1..][..1];
        let kind = import[1..].split(' ').next().unwrap();
        assert!(text.contains(definition));
        text = text.replace(definition, &format!("(export \"{name}\" ({kind} ${name}))"));
        text = text.replacen("(import", &format!("(import \"h\" \"{name}\" {import})\n(import"), 1);
    }
    text
}

struct Host {
    random: u64,
    depth: u32,
}

impl Host {
    fn next(&mut self, below: u64) -> u64 {
        crate::support::random(&mut self.random, below)
    }
}

/// Something that a host does, at random.
fn act(caller: &mut Caller<'_, Host>) {
    for _ in 0..caller.data_mut().next(4) {
        let Some(Extern::Memory(memory)) = caller.get_export("a") else { panic!("a memory") };
        let size = memory.data_size(&*caller) as u64;
        let at = caller.data_mut().next(size - 64) as usize;
        match caller.data_mut().next(9) {
            0 => {
                let bytes = caller.data_mut().next(1 << 31).to_le_bytes();
                memory.write(&mut *caller, at, &bytes).unwrap();
            }
            1 => memory.data_mut(&mut *caller)[at..at + 50].fill(at as u8),
            2 => {
                let (bytes, host) = memory.data_and_store_mut(&mut *caller);
                bytes[at] ^= host.next(256) as u8;
            }
            // Refused beyond the maximum.
            3 if memory.grow(&mut *caller, 1).is_ok() => {
                memory.write(&mut *caller, size as usize + 65_535, &[1]).unwrap();
                memory.data_mut(&mut *caller)[size as usize] = 9;
            }
            3 => {}
            4 => {
                let value = caller.data_mut().next(u64::MAX) as i64;
                let Some(Extern::Global(global)) = caller.get_export("s") else { panic!("a global") };
                global.set(&mut *caller, Val::I64(value)).unwrap();
            }
            5 => {
                let bits = 0x7f80_0000 | caller.data_mut().next(1 << 31) as u32;
                let Some(Extern::Global(global)) = caller.get_export("x") else { panic!("a global") };
                global.set(&mut *caller, Val::F32(bits)).unwrap();
            }
            6 => {
                let Some(Extern::Table(table)) = caller.get_export("t") else { panic!("a table") };
                let Some(Extern::Func(seven)) = caller.get_export("seven") else { panic!("a function") };
                let size = table.size(&*caller);
                let element = caller.data_mut().next(size);
                let func = (caller.data_mut().next(2) == 0).then_some(seven);
                table.set(&mut *caller, element, Val::FuncRef(func)).unwrap();
            }
            7 => {
                let Some(Extern::Table(table)) = caller.get_export("t") else { panic!("a table") };
                // Refused beyond the maximum.
                let _ = table.grow(&mut *caller, 1, Val::FuncRef(None));
            }
            _ if caller.data().depth < 3 => {
                caller.data_mut().depth += 1;
                let Some(Extern::Func(back)) = caller.get_export("back") else { panic!("a function") };
                let rounds = 1 + caller.data_mut().next(2) as i32;
                back.call(&mut *caller, &[Val::I32(rounds)], &mut [Val::I64(0)]).unwrap();
                caller.data_mut().depth -= 1;
            }
            _ => {}
        }
    }
}

fn linker(engine: &Engine) -> Linker<Host> {
    let mut linker: Linker<Host> = Linker::new(engine);
    linker
        .func_wrap("h", "i", |mut caller: Caller<'_, Host>, _: i32, x: i64| -> i64 {
            act(&mut caller);
            if caller.data_mut().next(2) == 0 { i64::MIN } else { x ^ caller.data_mut().next(1 << 31) as i64 }
        })
        .unwrap();
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, Host>, x: f32, y: f64| -> (f64, f32) {
            act(&mut caller);
            (f64::from_bits(y.to_bits() | 0x7ff0_0000_0000_0000), f32::from_bits(x.to_bits() ^ 0x8000_0001))
        })
        .unwrap();
    linker.func_wrap("h", "v", |_: Caller<'_, Host>, x: u128| -> u128 { x.rotate_left(71) ^ 1 }).unwrap();
    linker
        .func_wrap("h", "g", |mut caller: Caller<'_, Host>, f: Option<Func>| -> Option<Func> {
            f.filter(|_| caller.data_mut().next(2) == 0)
        })
        .unwrap();
    linker
}

/// Defines what [`with_imports`] imports.
fn define(linker: &mut Linker<Host>, store: &mut Store<Host>, seed: u64) {
    let pages = 1 + (seed % 5) as u32;
    let memory = Memory::new(&mut *store, MemoryType::new(pages, Some(20))).unwrap();
    for at in (0..memory.data_size(&*store)).step_by(997) {
        memory.write(&mut *store, at, &[at as u8 ^ seed as u8]).unwrap();
    }
    linker.define(&*store, "h", "a", memory).unwrap();
    for (name, ty, value) in
        [("s", ValType::I64, Val::I64(seed as i64)), ("x", ValType::F32, Val::F32(0x7fa0_0000))]
    {
        let global = Global::new(&mut *store, GlobalType::new(ty, Mutability::Var), value).unwrap();
        linker.define(&*store, "h", name, global).unwrap();
    }
}

/// A recorded run; with an odd seed, of the program [`with_imports`].
fn recorded(seed: u64, rounds: i32) -> (Vec<u8>, Vec<u8>) {
    let engine = Engine::default();
    let text = if seed % 2 == 1 { &with_imports() } else { PROGRAM };
    let module = Module::new(&engine, text).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, Host { random: seed, depth: 0 });
    let mut linker = linker(&engine);
    define(&mut linker, &mut store, seed);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    // Through both parts of the API; the host also writes between the calls, and through an
    // address.
    let run = instance.get_typed_func::<i32, i64>(&mut store, "run").unwrap();
    run.call(&mut store, rounds).unwrap();
    let hidden = instance.memory(&store, 1).unwrap();
    hidden.write(&mut store.as_context_mut(), 40_000, &[1, 2, 3]).unwrap();
    let memory = instance.get_memory(&store, "a").unwrap();
    let address = memory.data_ptr(&store);
    // SAFETY: within the memory; nothing runs.
    unsafe { address.add(12_345).write(77) };
    instance.get_func(&store, "run").unwrap().call(&mut store, &[Val::I32(2)], &mut [Val::I64(0)]).unwrap();
    // SAFETY: as above.
    unsafe { address.add(23_456).write(78) };
    run.call(&mut store, 1).unwrap();
    (module.bytes().to_vec(), trace.bytes())
}

/// Calls `run` this number of times, with changes by the host in between.
fn run(store: &mut Store<Host>, instance: Instance, calls: u64) {
    for _ in 0..calls {
        let rounds = 1 + store.data_mut().next(9) as i32;
        instance
            .get_func(&*store, "run")
            .unwrap()
            .call(&mut *store, &[Val::I32(rounds)], &mut [Val::I64(0)])
            .unwrap();
        let (at, byte) = (store.data_mut().next(60_000) as usize, store.data_mut().next(256) as u8);
        instance.memory(&*store, 1).unwrap().write(&mut *store, at, &[byte]).unwrap();
    }
}

/// A program with an instance that has run for some time.
fn running(seed: u64) -> (Module, Store<Host>, Instance) {
    let engine = Engine::default();
    let text = if seed % 2 == 1 { &with_imports() } else { PROGRAM };
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, Host { random: seed, depth: 0 });
    let mut linker = linker(&engine);
    define(&mut linker, &mut store, seed);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    run(&mut store, instance, seed % 4);
    (module, store, instance)
}

/// Checks that a trace and its reduction repeat, in two engines; returns the reduced one.
#[track_caller]
fn check_replays(module: &Module, trace: &[u8], seed: u64) -> Vec<u8> {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        let bench = generate(module.bytes(), trace, true).unwrap();
        let expected = Replayed::Complete { returned: true };
        assert_eq!((replay(&bench), replay_in_wasmi(&bench)), (expected, expected), "seed {seed}");
        let modules = separate(module.bytes(), trace, true).unwrap();
        let replayed = (replay_separately(&modules), replay_separately_in_wasmi(&modules));
        assert_eq!(replayed, (expected, expected), "seed {seed}, in modules of their own");
    }
    small
}

/// Changes a bit in each byte and global of a snapshot, one at a time; the replay must find each at
/// a later event. Returns the number of changes.
#[track_caller]
fn plant_in_snapshot(module: &Module, trace: &[u8]) -> usize {
    let all = events(trace);
    let first = all.iter().position(|event| matches!(event, Event::Enter { .. })).unwrap();
    let mut planted = 0;
    for number in 0..first {
        let mut changed = all.clone();
        match &mut changed[number] {
            Event::Write { bytes, .. } => bytes[0] ^= 1,
            Event::SetGlobal { value: Value::I64(value), .. } => *value ^= 1,
            _ => continue,
        }
        planted += 1;
        let found = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
        assert!(matches!(found, Replayed::Differs(at) if at > number as i32), "{}: {found:?}", all[number]);
        let error = reduce(module, Cursor::new(trace_of(&changed)), Trace::default());
        assert!(
            matches!(error, Err(wasm_jit_replay::Error::Mismatch { number: at, .. }) if at > number as u64),
            "{}: {found:?}, {error:?}",
            all[number]
        );
    }
    planted
}

#[test]
fn replays_from_any_moment_to_any_moment_equal_their_recordings() {
    let mut planted = 0;
    for seed in 0..30 {
        let (module, mut store, instance) = running(seed);
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        recorder.attach(&mut store, instance).unwrap();
        run(&mut store, instance, 1 + seed / 4 % 3);
        recorder.stop(&mut store).unwrap();
        assert!(!store.as_context_mut().is_observed());
        let length = trace.bytes().len();
        run(&mut store, instance, 2);
        assert_eq!(trace.bytes().len(), length, "seed {seed}");
        let small = check_replays(&module, &trace.bytes(), seed);
        if seed < 10 {
            planted += plant_in_snapshot(&module, &small);
        }
    }
    assert!(planted > 15, "{planted}");
}

/// The functions are `mix`, `at`, `back`, which the host also calls, and `run`.
#[test]
fn replays_of_a_functions_calls_equal_their_recordings() {
    let mut several = 0;
    for seed in 0..30 {
        let (module, mut store, instance) = running(seed);
        let before = code(&module);
        let trace = Trace::default();
        let (function, number) = (5 + (seed / 2 % 4) as u32, NonZeroU64::new(1 + seed % 5).unwrap());
        let calls = Calls { function, skipped: seed % 3, number };
        let recorder = CallRecorder::start::<Host>(&module, calls, trace.clone()).unwrap();
        assert_ne!(code(&module), before, "seed {seed}: the probes are not in the code");
        for _ in 0..10 {
            run(&mut store, instance, 1);
        }
        assert!(recorder.has_ended(), "seed {seed}");
        assert_eq!(code(&module), before, "seed {seed}: the code is another one after the recording");
        assert!(!store.as_context_mut().is_observed());
        let length = trace.bytes().len();
        run(&mut store, instance, 2);
        assert_eq!(trace.bytes().len(), length, "seed {seed}");
        assert_eq!(recorder.stop().unwrap(), number.get());
        several += u32::from(number.get() > 1);
        let small = check_replays(&module, &trace.bytes(), seed);
        // The others do not return a value that depends on everything.
        if (4..8).contains(&seed) {
            plant_in_snapshot(&module, &small);
        }
        let depth_0 = events(&trace.bytes()).iter().fold((0, 0), |(depth, calls), event| match event {
            Event::Enter { .. } | Event::Call { .. } => (depth + 1, calls + u64::from(depth == 0)),
            Event::Leave { .. } | Event::Return { .. } => (depth - 1, calls),
            _ => (depth, calls),
        });
        assert_eq!(depth_0, (0, number.get()), "seed {seed}");
    }
    assert!(several > 20, "{several}");
}

#[test]
fn replays_of_random_hosts_equal_their_recordings() {
    let (mut nested, mut grown) = (0, 0);
    for seed in 0..40 {
        let (program, trace) = recorded(seed, 1 + (seed as i32 * 7) % 40);
        let events = events(&trace);
        let first = events.iter().find(|event| matches!(event, Event::Enter { .. }));
        assert!(matches!(first, Some(Event::Enter { function: 9, .. })), "the start function: {first:?}");
        nested += events
            .windows(2)
            .filter(|pair| matches!(pair, [Event::Call { .. }, Event::Enter { .. }]))
            .count();
        grown += events.iter().filter(|event| matches!(event, Event::Grow { .. })).count();
        let expected = Replayed::Complete { returned: true };
        let checked = generate(&program, &trace[..], true).unwrap();
        assert_eq!(replay(&checked), expected, "seed {seed}");
        assert_eq!(replay_in_wasmi(&checked), expected, "seed {seed} in wasmi");
        let plain = replay(&generate(&program, &trace[..], false).unwrap());
        assert!(
            plain != Replayed::Differs(0) && !matches!(plain, Replayed::Differs(_)),
            "seed {seed}: {plain:?}"
        );
    }
    assert!(nested > 10 && grown > 10, "{nested} nested calls, {grown} events of growth");
}

/// The reduced trace replays as well, with the same calls and values, and fewer bytes.
#[test]
fn reduced_traces_replay() {
    for seed in 0..10 {
        let (program, trace) = recorded(seed, 10);
        let module = Module::from_binary(&Engine::default(), &program).unwrap();
        let out = Trace::default();
        let reduced = reduce(&module, Cursor::new(trace.clone()), out.clone()).unwrap();
        let small = out.bytes();
        assert!(reduced.bytes[1] < reduced.bytes[0], "seed {seed}: {reduced:?}");
        assert_eq!(reduced.events, [events(&trace).len() as u64, events(&small).len() as u64]);
        let others = |trace| {
            let events = events(trace).into_iter();
            events.filter(|event| !matches!(event, Event::Write { .. })).collect::<Vec<_>>()
        };
        assert_eq!(others(&trace), others(&small), "seed {seed}");
        let checked = generate(&program, &small[..], true).unwrap();
        assert_eq!(replay(&checked), Replayed::Complete { returned: true }, "seed {seed}");
        // Nothing more can be dropped.
        let again = reduce(&module, Cursor::new(small), Trace::default()).unwrap();
        assert!(again.bytes[1] == reduced.bytes[1], "seed {seed}: {again:?}");
    }
}

/// Bytes that a program reads, overwrites, copies and leaves: only the first and the third are
/// kept.
#[test]
fn only_bytes_that_are_read_are_kept() {
    let engine = Engine::default();
    let text = r#"(module (import "h" "f" (func $f)) (memory (export "a") 1)
        (func (export "run") (result i32)
            (call $f)
            (i32.store8 (i32.const 100) (i32.const 1))
            (memory.copy (i32.const 5000) (i32.const 200) (i32.const 2))
            (drop (i32.load16_u (i32.const 40)))
            (memory.fill (i32.const 60) (i32.const 0) (i32.const 2))
            (drop (i32.load16_u (i32.const 60)))
            (drop (v128.load16_splat (i32.const 350)))
            (call $two_pages)
            (call $f)
            (i32.load8_u (i32.const 300)))
        (func $two_pages (drop (i32.load (i32.const 4094)))))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<u8> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, u8>| {
            *caller.data_mut() += 1;
            let byte = *caller.data();
            let Some(Extern::Memory(memory)) = caller.get_export("a") else { panic!("a memory") };
            let bytes = memory.data_mut(&mut caller);
            bytes[..400].fill(byte);
            bytes[4090..4100].fill(byte);
        })
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, 0);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    instance.get_typed_func::<(), i32>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    let out = Trace::default();
    let reduced = reduce(&module, Cursor::new(trace.bytes()), out.clone()).unwrap();
    assert_eq!(reduced.bytes, [820, 11]);
    let writes: Vec<(u64, Vec<u8>)> = events(&out.bytes())
        .into_iter()
        .filter_map(|event| match event {
            Event::Write { address, bytes, .. } => Some((address, bytes)),
            _ => None,
        })
        .collect();
    let expected =
        [(40, vec![1, 1]), (200, vec![1, 1]), (350, vec![1, 1]), (4094, vec![1; 4]), (300, vec![2])];
    assert_eq!(writes, expected);
    // A run that does not repeat.
    let mut changed = events(&trace.bytes());
    let last = changed.len() - 1;
    changed[last] = Event::Leave { results: vec![Value::I32(3)] };
    let error = reduce(&module, Cursor::new(trace_of(&changed)), Trace::default()).unwrap_err();
    assert!(
        matches!(error, wasm_jit_replay::Error::Mismatch { number, .. } if number == last as u64),
        "{error}"
    );
}

#[test]
fn what_was_written_through_an_address_is_recorded() {
    let (_, trace) = recorded(1, 1);
    for (place, byte) in [(12_345, 77), (23_456, 78)] {
        let found = events(&trace).into_iter().any(|event| match event {
            Event::Write { memory: 0, address, bytes } => {
                (address..address + bytes.len() as u64).contains(&place)
                    && bytes[(place - address) as usize] == byte
            }
            _ => false,
        });
        assert!(found, "{place}");
    }
}

/// The value with its lowest bit changed, if it is a number.
fn flipped(value: &mut Value) -> bool {
    match value {
        Value::I32(value) => *value ^= 1,
        Value::I64(value) => *value ^= 1,
        Value::F32(bits) => *bits ^= 1,
        Value::F64(bits) => *bits ^= 1,
        // The program uses the upper half.
        Value::V128(bits) => *bits ^= 1 << 127,
        _ => return false,
    }
    true
}

/// A changed bit in what the program passes or returns is found at its event; one in what the host
/// returns is found by the next event that depends on it, and not before.
#[test]
fn a_changed_bit_is_found_and_named() {
    let (program, trace) = recorded(3, 4);
    let all = events(&trace);
    let mut found = 0;
    for (number, event) in all.iter().enumerate() {
        let mut changed = event.clone();
        let (values, is_programs) = match &mut changed {
            Event::Call { arguments, .. } => (arguments, true),
            Event::Leave { results } => (results, true),
            Event::Return { results } => (results, false),
            _ => continue,
        };
        if !values.last_mut().is_some_and(flipped) {
            continue;
        }
        let mut events = all.clone();
        events[number] = changed;
        let bench = generate(&program, &trace_of(&events)[..], true).unwrap();
        match replay(&bench) {
            Replayed::Differs(named) if is_programs => assert_eq!(named, number as i32, "{event:?}"),
            Replayed::Differs(named) => assert!(named > number as i32, "{event:?}: {named}"),
            other => panic!("event {number}: {event:?}: {other:?}"),
        }
        found += 1;
    }
    assert!(found > 50, "{found}");
}

/// A function of another type is an error of the host, not of the recorder.
#[test]
fn references_to_what_is_not_the_modules_are_refused() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        "(module (import \"h\" \"g\" (func $g (result funcref))) (func (export \"run\") (drop (call $g))))",
    )
    .unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    let mut store = Store::new(&engine, ());
    let eq = ValType::Ref(RefType::new(true, HeapType::Eq));
    let foreign = Func::new(&mut store, FuncType::new([eq], []), |_, _, _| Ok(())).unwrap();
    let ty = FuncType::new([], [ValType::FUNCREF]);
    let define = move |_: Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
        results[0] = Val::FuncRef(Some(foreign));
        Ok(())
    };
    linker.func_new("h", "g", ty, define).unwrap();
    let recorder = Recorder::new(&module, Vec::new()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let error = run.call(&mut store, ()).unwrap_err().to_string();
    assert!(error.contains("cannot be recorded: a reference to a function of another module"), "{error}");
}
