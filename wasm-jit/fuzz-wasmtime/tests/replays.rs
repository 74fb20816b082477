//! Modules that replay a recorded run, executed by Wasmtime: they do what was recorded, and name a
//! planted difference.

use std::io::Write;
use std::sync::{Arc, Mutex};

use wasm_jit::{
    Caller, Engine, Error, ExnRef, Extern, ExternRef, FuncType, Linker, Module, Store, Tag, TagType, Val,
    ValType,
};
use wasm_jit_replay::{
    DIFFERENCE, Event, INCOMPLETE, LAST, POSITION, Reader, Recorder, Value, Writer, generate, separate,
};
use wasmtime::{Config, Engine as Wasmtime, Linker as WasmtimeLinker, Store as WasmtimeStore};

/// Has all that a host can change: memories, tables (one with indices of 64 bits and values of the
/// host), globals and segments, and is called back; `host` throws an exception for a multiple of 5.
const PROGRAM: &str = r#"(module
    (import "h" "host" (func $host (param i32 i64 f32 v128) (result i64 f64)))
    (import "h" "memory" (memory $m 1 9))
    (import "h" "table" (table $t 2 20 funcref))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "scale" (global $scale f64))
    (import "h" "fault" (tag $fault (param i32)))
    (import "h" "note" (func $note (param externref)))
    (memory $own (export "own") 1 4)
    (table $wide (export "wide") i64 1 9 externref)
    (global $sum (export "sum") (mut i64) (i64.const 7))
    (data $text "passive")
    (elem $elements func $seven)
    (func $seven (result i32) (i32.const 7))
    (func $add (param i64)
        (global.set $sum (i64.add (i64.mul (global.get $sum) (i64.const 31)) (local.get 0))))
    (func (export "start")
        (memory.init $m $text (i32.const 64) (i32.const 0) (i32.const 7)) (data.drop $text)
        (table.init $t $elements (i32.const 1) (i32.const 0) (i32.const 1)) (elem.drop $elements))
    (func (export "run") (param $n i32) (result i64 i32) (local $f f64) (local $x i64)
        (loop $again
            (call $add (i64.load $m (i32.const 64)))
            (call $add (i64.load $own (i32.and (i32.wrap_i64 (global.get $sum)) (i32.const 1016))))
            (local.set $f (block $normal (result f64)
                (call $add (i64.extend_i32_u (block $caught (result i32)
                    (try_table (result i64 f64) (catch $fault $caught)
                        (call $host (local.get $n) (global.get $sum) (f32.const nan:0x200001)
                            (i64x2.splat (global.get $count))))
                    (local.set $f) (local.set $x)
                    (call $add (local.get $x))
                    (br $normal (local.get $f)))))
                (f64.const 1)))
            (call $add (i64.trunc_sat_f64_s (f64.mul (local.get $f) (global.get $scale))))
            (call $add (global.get $count))
            (call $note (table.get $wide (i64.const 0)))
            (call $add (table.size $wide))
            (call $add (i64.extend_i32_u (i32.add (memory.size $m) (memory.size $own))))
            (call $add (i64.extend_i32_u (table.size $t)))
            (if (i32.eqz (ref.is_null (table.get $t (i32.const 1))))
                (then (call $add (i64.extend_i32_u (call_indirect $t (result i32) (i32.const 1))))))
            (i64.store $m (i32.const 128) (global.get $sum))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (global.get $sum) (i32.load $m (i32.const 130)))
    (export "seven" (func $seven))
    (export "t" (table $t))
    (export "m" (memory $m))
    (export "c" (global $count)))"#;

/// The depth of the host's calls, and the tag of its exceptions.
struct Host {
    depth: u32,
    fault: Option<Tag>,
}

fn host(caller: &mut Caller<'_, Host>, n: i32, x: i64) -> Result<(i64, f64), Error> {
    let item = |caller: &mut Caller<'_, Host>, name: &str| caller.get_export(name).unwrap();
    match n % 5 {
        0 => {
            let fault = caller.data().fault.unwrap();
            return Err(ExnRef::new(&mut *caller, &fault, &[Val::I32(n)])?.into());
        }
        1 => {
            let (Extern::Memory(memory), Extern::Memory(own)) = (item(caller, "m"), item(caller, "own"))
            else {
                panic!("two memories")
            };
            memory.write(&mut *caller, 65, &[n as u8, x as u8])?;
            own.write(&mut *caller, 8 * (n as usize), &x.to_le_bytes())?;
            let _ = own.grow(&mut *caller, u64::from(n == 1));
            let _ = memory.grow(&mut *caller, 1);
        }
        2 => {
            let (Extern::Global(count), Extern::Global(sum)) = (item(caller, "c"), item(caller, "sum"))
            else {
                panic!("two globals")
            };
            count.set(&mut *caller, Val::I64(i64::MIN + x))?;
            sum.set(&mut *caller, Val::I64(x ^ 5))?;
        }
        3 => {
            let (Extern::Table(table), Extern::Func(seven)) = (item(caller, "t"), item(caller, "seven"))
            else {
                panic!("a table and a function")
            };
            let Extern::Table(wide) = item(caller, "wide") else { panic!("a table") };
            wide.set(&mut *caller, 0, Val::ExternRef(Some(ExternRef::new(n))))?;
            wide.grow(&mut *caller, 1, Val::ExternRef(None))?;
            table.set(&mut *caller, 1, Val::FuncRef((n < 5).then_some(seven)))?;
            table.grow(&mut *caller, 2, Val::FuncRef(None))?;
        }
        _ if caller.data().depth == 0 => {
            let Extern::Func(run) = item(caller, "run") else { panic!("a function") };
            caller.data_mut().depth += 1;
            run.call(&mut *caller, &[Val::I32(3)], &mut [Val::I64(0), Val::I32(0)])?;
            caller.data_mut().depth -= 1;
        }
        _ => {}
    }
    Ok((x.rotate_left(9), f64::from(n) * -0.5))
}

/// A trace in memory.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<u8>>>);

impl Write for Trace {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The program, and a trace of it from the beginning or from the middle of its run.
fn recorded(is_new: bool) -> (Vec<u8>, Vec<u8>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, Host { depth: 0, fault: None });
    let mut linker = Linker::new(&engine);
    linker
        .func_wrap("h", "host", |mut caller: Caller<'_, Host>, n: i32, x: i64, _: f32, _: u128| {
            host(&mut caller, n, x)
        })
        .unwrap();
    linker.func_wrap("h", "note", |_: Option<ExternRef>| ()).unwrap();
    let items = Module::new(
        &engine,
        r#"(module (memory (export "memory") 2 9) (data (i32.const 70) "of the host")
            (table (export "table") 3 20 funcref) (global (export "count") (mut i64) (i64.const 5))
            (global (export "scale") f64 (f64.const 1.5)))"#,
    );
    let items = linker.instantiate(&mut store, &items.unwrap()).unwrap();
    linker.instance(&store, "h", items).unwrap();
    let fault = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::I32], []))).unwrap();
    store.data_mut().fault = Some(fault);
    linker.define(&store, "h", "fault", fault).unwrap();

    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let run = |store: &mut Store<Host>, instance: wasm_jit::Instance, name, n: &[Val]| {
        let function = instance.get_func(&*store, name).unwrap();
        let mut results = vec![Val::I64(0); if n.is_empty() { 0 } else { 2 }];
        function.call(&mut *store, n, &mut results).unwrap();
    };
    let instance = match is_new {
        true => recorder.instantiate(&mut store, &linker).unwrap(),
        false => linker.instantiate(&mut store, &module).unwrap(),
    };
    run(&mut store, instance, "start", &[]);
    run(&mut store, instance, "run", &[Val::I32(9)]);
    if !is_new {
        recorder.attach(&mut store, instance).unwrap();
    }
    run(&mut store, instance, "run", &[Val::I32(12)]);
    recorder.stop(&mut store).unwrap();
    let trace = trace.0.lock().unwrap().clone();
    (module.bytes().to_vec(), trace)
}

/// What a replay reports: whether it returned, and its exported globals.
#[derive(Debug, PartialEq)]
struct Report {
    returned: bool,
    difference: i32,
    is_at_last: bool,
    incomplete: i32,
}

const COMPLETE: Report = Report { returned: true, difference: 0, is_at_last: true, incomplete: 0 };

fn store() -> WasmtimeStore<()> {
    let mut config = Config::new();
    config.wasm_exceptions(true).wasm_multi_memory(true).wasm_simd(true).wasm_gc(true);
    config.wasm_function_references(true).wasm_memory64(true);
    WasmtimeStore::new(&Wasmtime::new(&config).unwrap(), ())
}

fn report(store: &mut WasmtimeStore<()>, instance: wasmtime::Instance) -> Report {
    let start = instance.get_typed_func::<(), ()>(&mut *store, "_start").unwrap();
    let returned = start.call(&mut *store, ()).is_ok();
    let [difference, position, last, incomplete] = [DIFFERENCE, POSITION, LAST, INCOMPLETE]
        .map(|name| instance.get_global(&mut *store, name).unwrap().get(&mut *store).unwrap_i32());
    Report { returned, difference, is_at_last: position == last, incomplete }
}

fn replayed_alone(program: &[u8], trace: &[u8]) -> Report {
    let mut store = store();
    let bench = generate(program, trace, true).unwrap();
    let module = wasmtime::Module::new(store.engine(), bench).unwrap();
    let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
    report(&mut store, instance)
}

fn replayed_separately(program: &[u8], trace: &[u8]) -> Report {
    let mut store = store();
    let mut linker = WasmtimeLinker::new(store.engine());
    let modules = separate(program, trace, true).unwrap();
    for (name, bytes) in [("imports", &modules.imports), ("program", &modules.program)] {
        let module = wasmtime::Module::new(store.engine(), bytes).unwrap();
        let instance = linker.instantiate(&mut store, &module).unwrap();
        linker.instance(&mut store, name, instance).unwrap();
    }
    let host = wasmtime::Module::new(store.engine(), &modules.host).unwrap();
    let instance = linker.instantiate(&mut store, &host).unwrap();
    report(&mut store, instance)
}

/// Both forms of a replay report this.
#[track_caller]
fn check(program: &[u8], trace: &[u8], expected: &Report) {
    assert_eq!(&replayed_alone(program, trace), expected, "alone");
    assert_eq!(&replayed_separately(program, trace), expected, "separately");
}

fn events(trace: &[u8]) -> Vec<Event> {
    Reader::new(trace).collect::<Result<_, _>>().unwrap()
}

fn trace_of(events: &[Event]) -> Vec<u8> {
    let trace = Trace::default();
    let mut writer = Writer::new(trace.clone()).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    writer.close().unwrap();
    trace.0.lock().unwrap().clone()
}

#[test]
fn replays_do_what_was_recorded() {
    for is_new in [true, false] {
        let (program, trace) = recorded(is_new);
        check(&program, &trace, &COMPLETE);
        let kinds = events(&trace);
        let has = |wanted: fn(&Event) -> bool| kinds.iter().any(wanted);
        assert_eq!(has(|event| matches!(event, Event::Snapshot)), !is_new);
        assert!(has(|event| matches!(event, Event::Throw(_))));
        assert!(has(|event| matches!(event, Event::Write { memory: 1, .. })));
        assert!(has(|event| matches!(event, Event::SetElement { value: Value::Func(Some(_)), .. })));
        assert!(has(|event| matches!(event, Event::GrowTable { table: 1, .. })));
        assert!(has(|event| matches!(event, Event::SetElement { value: Value::Extern(Some(_)), .. })));
        assert!(has(|event| matches!(event, Event::Grow { memory: 1, .. })));
        assert!(has(|event| matches!(event, Event::SetGlobal { global: 2, .. })));
    }
}

/// One bit of each argument that the program passes, and of its results.
#[test]
fn planted_differences_are_named() {
    let (program, trace) = recorded(false);
    let all = events(&trace);
    let mut planted = 0;
    for number in 0..all.len() {
        let mut changed = all.clone();
        let values = match &mut changed[number] {
            Event::Call { arguments: values, .. } | Event::Leave { results: values } => values,
            _ => continue,
        };
        let at = planted % values.len();
        match &mut values[at] {
            Value::I32(value) => *value ^= 1,
            Value::I64(value) => *value ^= 1 << 63,
            Value::F32(bits) => *bits ^= 2,
            Value::V128(bits) => *bits ^= 1 << 127,
            Value::Extern(number) => *number = number.map_or(Some(1), |number| Some(number + 1)),
            other => panic!("{other}"),
        }
        planted += 1;
        let (returned, difference) = (false, number as i32);
        let is_at_last = number + 1 == all.len();
        let expected = Report { returned, difference, is_at_last, incomplete: 0 };
        check(&program, &trace_of(&changed), &expected);
    }
    assert!(planted > 10, "{planted}");
}

/// The trace of a process that was killed.
#[test]
fn replays_end_where_the_recording_was_cut_off() {
    let (program, trace) = recorded(true);
    let all = events(&trace);
    let call = all.iter().rposition(|event| matches!(event, Event::Call { .. })).unwrap();
    // In the call of the host, and while the program runs.
    let expected = Report { returned: false, incomplete: 1, ..COMPLETE };
    for length in [call + 1, call + 2] {
        check(&program, &trace_of(&all[..length]), &expected);
    }
}
