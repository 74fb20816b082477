//! Random programs and hosts that throw exceptions at each other, and catch some of them. A replay
//! must equal its recording, event by event.

use std::io::Cursor;
use std::num::NonZeroU64;

use crate::support::{Replayed, Trace, events, reduced, replay, trace_of};
use wasm_jit::{
    AsContextMut, Caller, Engine, Error as EngineError, ExnRef, Extern, FuncType, Instance, Linker, Module,
    Store, Tag, TagType, Val, ValType,
};
use wasm_jit_replay::{
    CallRecorder, Calls, Ended, Error, Event, Exception, Recorder, Replay, Value, generate, slice,
};

/// `back` mixes what it reads in the memory, what the host returns, and what it throws. Some
/// exceptions are rethrown, some pass through it, and it throws its own.
const PROGRAM: &str = r#"(module
    (import "h" "i" (func $i (param i64) (result i64)))
    (import "h" "e" (tag $e (param i32 v128 funcref)))
    (tag $own (export "own") (param i64 f32))
    (tag $hidden (param f64))
    (memory (export "a") 1 4)
    (global $s (export "s") (mut i64) (i64.const 1))
    (func $seven (export "seven") (result i32) (i32.const 7))
    (elem declare func $seven)
    (func $mix (param i64)
        (global.set $s (i64.add (i64.mul (i64.xor (global.get $s) (local.get 0))
            (i64.const 6364136223846793005)) (i64.const 1442695040888963407))))
    ;; Below a power of two.
    (func $random (param i64) (result i32)
        (i32.wrap_i64 (i64.and (i64.shr_u (global.get $s) (i64.const 33)) (i64.sub (local.get 0) (i64.const 1)))))
    (func $guarded (local $x exnref) (local $f funcref) (local $v v128)
        (block $done
            (block $any (result exnref)
                (block $own (result i64 f32)
                    (block $e (result i32 v128 funcref)
                        (try_table (catch $e $e) (catch $own $own) (catch_all_ref $any)
                            (call $mix (call $i (global.get $s))))
                        (br $done))
                    (local.set $f)
                    (local.set $v)
                    (call $mix (i64.extend_i32_u))
                    (call $mix (i64x2.extract_lane 1 (local.get $v)))
                    (call $mix (i64.extend_i32_u (ref.is_null (local.get $f))))
                    (br $done))
                (call $mix (i64.extend_i32_u (i32.reinterpret_f32)))
                (call $mix)
                (br $done))
            (local.set $x)
            (call $mix (i64.const 5))
            (if (call $random (i64.const 2)) (then (throw_ref (local.get $x))))))
    (func $throw
        (call $mix (i64.const 6))
        (if (i32.eqz (call $random (i64.const 2)))
            (then (throw $own (global.get $s) (f32.reinterpret_i32 (call $random (i64.const 4294967296))))))
        (call $mix (i64.const 7))
        (if (call $random (i64.const 2))
            (then (throw $hidden (f64.reinterpret_i64 (global.get $s)))))
        (throw $e (call $random (i64.const 65536)) (i64x2.splat (global.get $s)) (ref.func $seven)))
    (func $rounds (export "back") (param $n i32) (result i64)
        (loop $again
            (call $mix (i64.load (call $random (i64.const 32768))))
            (i64.store32 (call $random (i64.const 32768)) (global.get $s))
            (call $guarded)
            (if (i32.eqz (call $random (i64.const 8))) (then (call $throw)))
            (if (i32.eqz (call $random (i64.const 4))) (then (call $mix (call $i (i64.const 3)))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (global.get $s))
    (func (export "run") (param i32) (result i64) (call $rounds (local.get 0)))
    (func $begin (block $caught (try_table (catch_all $caught) (drop (call $rounds (i32.const 2))))))
    (start $begin))"#;

/// Indices of functions.
const GUARDED: u32 = 4;
const THROW: u32 = 5;
const BACK: u32 = 6;

/// How many tags the program has.
const TAGS: u32 = 3;

struct Host {
    random: u64,
    depth: u32,
    /// `e`, and two tags that the program does not have.
    tags: Vec<Tag>,
}

impl Host {
    fn next(&mut self, below: u64) -> u64 {
        crate::support::random(&mut self.random, below)
    }
}

/// An exception at random.
fn thrown(caller: &mut Caller<'_, Host>) -> EngineError {
    let (which, bits) = (caller.data_mut().next(4) as usize, caller.data_mut().next(1 << 31));
    let Some(Extern::Tag(own)) = caller.get_export("own") else { panic!("a tag") };
    let Some(Extern::Func(seven)) = caller.get_export("seven") else { panic!("a function") };
    let tag = *caller.data().tags.get(which).unwrap_or(&own);
    let func = Val::FuncRef((bits % 2 == 0).then_some(seven));
    let fields = match which {
        0 => vec![Val::I32(bits as i32), Val::V128(u128::from(bits) << 70), func],
        1 => vec![Val::I64(bits as i64)],
        2 => vec![],
        _ => vec![Val::I64((bits << 20) as i64), Val::F32(0x7f80_0000 | bits as u32)],
    };
    ExnRef::new(caller.as_context_mut(), &tag, &fields).unwrap().into()
}

/// What the host does when it is called.
fn act(caller: &mut Caller<'_, Host>, x: i64) -> Result<i64, EngineError> {
    let Some(Extern::Memory(memory)) = caller.get_export("a") else { panic!("a memory") };
    let at = caller.data_mut().next(32_760) as usize;
    match caller.data_mut().next(8) {
        0 => memory.write(&mut *caller, at, &x.to_le_bytes())?,
        1 => memory.data_mut(&mut *caller)[at..at + 5].fill(x as u8),
        // Refused beyond the maximum.
        2 => _ = memory.grow(&mut *caller, 1),
        3 | 4 if caller.data().depth < 3 => {
            caller.data_mut().depth += 1;
            let Some(Extern::Func(back)) = caller.get_export("back") else { panic!("a function") };
            let rounds = 1 + caller.data_mut().next(3) as i32;
            let done = back.call(&mut *caller, &[Val::I32(rounds)], &mut [Val::I64(0)]);
            caller.data_mut().depth -= 1;
            memory.write(&mut *caller, at, &[1])?;
            match (done, caller.data_mut().next(3)) {
                (Err(error @ EngineError::Exception { .. }), 0) => return Err(error),
                (Err(EngineError::Exception { .. }), 1) => return Err(thrown(caller)),
                (Err(EngineError::Exception { .. }) | Ok(()), _) => {}
                (Err(error), _) => return Err(error),
            }
        }
        _ => {}
    }
    match caller.data_mut().next(3) {
        0 => Err(thrown(caller)),
        _ => Ok(x.wrapping_mul(3)),
    }
}

/// A program with its host, before there is an instance.
fn program(seed: u64) -> (Module, Store<Host>, Linker<Host>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, Host { random: seed, depth: 0, tags: Vec::new() });
    for types in [&[ValType::I32, ValType::V128, ValType::FUNCREF][..], &[ValType::I64], &[]] {
        let ty = TagType::new(FuncType::new(types.iter().copied(), []));
        let tag = Tag::new(&mut store, &ty).unwrap();
        store.data_mut().tags.push(tag);
    }
    let mut linker: Linker<Host> = Linker::new(&engine);
    linker.define(&store, "h", "e", store.data().tags[0]).unwrap();
    linker.func_wrap("h", "i", |mut caller: Caller<'_, Host>, x: i64| act(&mut caller, x)).unwrap();
    (module, store, linker)
}

/// Calls `run` this number of times; exceptions are ignored.
fn run(store: &mut Store<Host>, instance: Instance, calls: u64) {
    for _ in 0..calls {
        let rounds = 1 + store.data_mut().next(9) as i32;
        let run = instance.get_func(&*store, "run").unwrap();
        match run.call(&mut *store, &[Val::I32(rounds)], &mut [Val::I64(0)]) {
            Ok(()) | Err(EngineError::Exception { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A recording of the start and of this number of calls to `run`.
fn recorded(seed: u64, calls: u64) -> (Module, Vec<u8>) {
    let (module, mut store, linker) = program(seed);
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    run(&mut store, instance, calls);
    (module, trace.bytes())
}

/// Checks that a trace and its reduction repeat; returns the reduced one.
#[track_caller]
fn check(module: &Module, trace: &[u8], returns: bool, seed: u64) -> Vec<u8> {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        let bench = generate(module.bytes(), trace, true).unwrap();
        assert_eq!(replay(&bench), Replayed::Complete { returned: returns }, "seed {seed}");
        let ended = Replay::new(module, Cursor::new(trace.to_vec())).unwrap().run();
        let is_complete = matches!(ended, Ok(Ended::Returned | Ended::Failed(EngineError::Exception { .. })));
        assert!(is_complete || !returns, "seed {seed}: {ended:?}");
    }
    small
}

/// The exceptions of a trace, and whether the program has thrown them.
fn exceptions(events: &[Event]) -> Vec<(usize, &Exception, bool)> {
    let mut running = Vec::new();
    let mut found = Vec::new();
    for (number, event) in events.iter().enumerate() {
        match event {
            Event::Enter { .. } => running.push(true),
            Event::Call { .. } => running.push(false),
            Event::Leave { .. } | Event::Return { .. } | Event::Fail { .. } => _ = running.pop(),
            Event::Throw(exception) => found.push((number, exception, running.pop().unwrap())),
            _ => {}
        }
    }
    found
}

/// The change of the number of running calls by an event.
fn depth(event: &Event) -> i32 {
    match event {
        Event::Enter { .. } | Event::Call { .. } => 1,
        Event::Leave { .. } | Event::Return { .. } | Event::Fail { .. } | Event::Throw(_) => -1,
        _ => 0,
    }
}

#[test]
fn replays_of_runs_with_exceptions_equal_their_recordings() {
    // By tag: the program's own, which the host threw; any, which the program threw.
    let (mut by_host, mut by_program, mut others) = ([0; TAGS as usize], [0; TAGS as usize], [0; 2]);
    for seed in 0..40 {
        let (module, trace) = recorded(seed, 2 + seed % 3);
        let all = events(&trace);
        for (_, exception, is_programs) in exceptions(&all) {
            match exception.tag {
                tag if tag >= TAGS => others[usize::from(is_programs)] += 1,
                tag if is_programs => by_program[tag as usize] += 1,
                tag => by_host[tag as usize] += 1,
            }
        }
        check(&module, &trace, true, seed);
    }
    let counts = [&by_host[..], &by_program, &others];
    assert!(counts.iter().copied().flatten().all(|count| *count >= 4), "{counts:?}");
}

/// From any moment to any other, and of one function.
#[test]
fn replays_of_parts_with_exceptions_equal_their_recordings() {
    let mut ended_by_exception = 0;
    for seed in 0..30 {
        let (module, mut store, linker) = program(seed);
        let instance = linker.instantiate(&mut store, &module).unwrap();
        run(&mut store, instance, seed % 3);
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        recorder.attach(&mut store, instance).unwrap();
        run(&mut store, instance, 2);
        recorder.stop(&mut store).unwrap();
        check(&module, &trace.bytes(), true, seed);

        let trace = Trace::default();
        let function = if seed % 2 == 0 { GUARDED } else { BACK };
        let number = NonZeroU64::new(1 + seed % 5).unwrap();
        let calls = Calls { function, skipped: seed % 2, number };
        let recorder = CallRecorder::start::<Host>(&module, calls, trace.clone()).unwrap();
        run(&mut store, instance, 20);
        assert!(recorder.has_ended(), "seed {seed}");
        recorder.stop().unwrap();
        let all = events(&trace.bytes());
        let mut open = 0;
        all.iter().for_each(|event| open += depth(event));
        // One that the program does not have, or with a reference: the recording ends before.
        let is_known = open == 0;
        ended_by_exception += i32::from(is_known && matches!(all.last(), Some(Event::Throw(_))));
        check(&module, &trace.bytes(), is_known, seed);
    }
    assert!(ended_by_exception >= 3, "{ended_by_exception}");
}

#[test]
fn slices_of_runs_with_exceptions_repeat() {
    let (mut sliced, mut ended_by_exception) = (0, 0);
    for seed in 0..60 {
        let (module, trace) = recorded(seed, 1);
        let out = Trace::default();
        let function = if seed % 2 == 0 { GUARDED } else { THROW };
        match slice(&module, function, Cursor::new(trace), out.clone()) {
            Ok(_) => {
                let all = events(&out.bytes());
                let mut open = 0;
                all.iter().for_each(|event| open += depth(event));
                sliced += 1;
                ended_by_exception += i32::from(open == 0 && matches!(all.last(), Some(Event::Throw(_))));
                check(&module, &out.bytes(), open == 0, seed);
            }
            Err(Error::NotCalled { .. }) => {}
            Err(error) => {
                assert!(error.to_string().contains("called again after it has failed"), "{error}");
            }
        }
    }
    assert!(sliced >= 10 && ended_by_exception >= 3, "{sliced} {ended_by_exception}");
}

/// A changed bit of a value of an exception that the program throws is found at its event; if the
/// host throws the exception, at a later event.
#[test]
fn a_changed_bit_of_an_exception_is_found_and_named() {
    let (mut planted, mut later) = (0, 0);
    for seed in 0..12 {
        let (module, trace) = recorded(seed, 3);
        let all = events(&trace);
        for (number, exception, is_programs) in exceptions(&all) {
            // Values that the program cannot look into may not matter.
            if !is_programs && exception.tag != 1 {
                continue;
            }
            let Some(at) = exception.values.iter().position(|value| !matches!(value, Value::Func(_))) else {
                continue;
            };
            let mut changed = exception.clone();
            match &mut changed.values[at] {
                Value::I32(value) => *value ^= 1 << (seed % 32),
                Value::I64(value) => *value ^= 1 << (seed % 64),
                Value::F64(bits) => *bits ^= 1 << (seed % 64),
                other => panic!("{other:?}"),
            }
            let mut events = all.clone();
            events[number] = Event::Throw(changed);
            let trace = trace_of(&events);
            let bench = generate(module.bytes(), &trace[..], true).unwrap();
            let again = Replay::new(&module, Cursor::new(trace)).unwrap().run();
            let (found, at) = match (replay(&bench), again) {
                (
                    Replayed::Differs(found),
                    Err(Error::Mismatch { number, .. } | Error::Failed { number, .. }),
                ) => (found, number),
                // The program has caught it, and has not looked into it.
                (Replayed::Complete { .. }, Ok(_)) if !is_programs => continue,
                other => panic!("seed {seed}, event {number}: {other:?}"),
            };
            let (found, number) = (found as u64, number as u64);
            if is_programs {
                assert_eq!((found, at), (number, number), "seed {seed}");
                planted += 1;
            } else {
                assert!(found > number && at > number, "seed {seed}, event {number}: {found}, {at}");
                later += 1;
            }
        }
    }
    assert!(planted > 30 && later > 20, "{planted} {later}");
}
