//! Scripts as monitors of programs: what they count is what happens.

use std::sync::{Arc, Mutex};

use wasm_jit::{Caller, Engine, Extern, Instance, Linker, Module, Store};
use wasm_jit_whamm::monitor_module::MonitorModule;

use super::compile;

/// Greatest common divisor: for 1071 and 462, three iterations; then calls it twice.
const PROGRAM: &str = r#"(module (memory 1)
    (func $gcd (param $a i32) (param $b i32) (result i32) (local $t i32)
        (block $done
            (loop $next
                (br_if $done (i32.eqz (local.get $b)))
                (local.set $t (i32.rem_u (local.get $a) (local.get $b)))
                (local.set $a (local.get $b))
                (local.set $b (local.get $t))
                (br $next)))
        (local.get $a))
    (func (export "run") (local $i i32)
        (i32.store offset=4 (i32.const 8) (call $gcd (i32.const 1071) (i32.const 462)))
        (i32.store8 offset=1 (i32.const 100) (call $gcd (i32.const 7) (i32.const 0)))
        (drop (i32.load (i32.const 12)))))"#;

/// The report of a script about a run of the program.
fn report(script: &str) -> String {
    let engine = Engine::default();
    let monitor = Module::from_binary(&engine, &compile(script)).unwrap();
    let monitor = MonitorModule::new(monitor, Vec::new()).unwrap();
    let output = Arc::new(Mutex::new(Vec::new()));
    let mut linker = Linker::new(&engine);
    let printed = output.clone();
    let write = move |mut caller: Caller<'_, ()>, _: i32, vectors: i32, _: i32, written: i32| {
        let Some(Extern::Memory(memory)) = caller.get_export("memory") else { return 8 };
        let mut vector = [0; 8];
        memory.read(&caller, vectors as usize, &mut vector).unwrap();
        let word = |from: usize| u32::from_le_bytes(vector[from..from + 4].try_into().unwrap());
        let mut bytes = vec![0; word(4) as usize];
        memory.read(&caller, word(0) as usize, &mut bytes).unwrap();
        memory.write(&mut caller, written as usize, &word(4).to_le_bytes()).unwrap();
        printed.lock().unwrap().extend(bytes);
        0
    };
    linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, ());
    let mut attached = monitor.attach(&mut store, &mut linker, &module).unwrap();
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    program.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    attached.finish(&mut store).unwrap();
    let bytes = output.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// Compares rows without the header and, for sites, the offset in the function.
#[track_caller]
fn check(script: &str, expected: &[&str]) {
    let report = report(script);
    let rows: Vec<_> = report
        .lines()
        .skip(1)
        .map(|row| {
            let fields: Vec<_> = row.split(',').collect();
            match fields.as_slice() {
                [name, _, event, fid, _, _, value] => format!("{name} {event} {fid} {value}"),
                _ => row.to_owned(),
            }
        })
        .collect();
    assert_eq!(rows, expected, "{script}");
}

#[test]
fn instructions_and_calls() {
    // Three iterations of eleven instructions; three in the last one. Two calls, of which the
    // second one has a last iteration only. The rest is around them.
    check("report var n: u64; wasm:opcode:br:before { n++; }", &["n   3"]);
    check("report var n: u64; wasm:opcode:i32.eqz|i32.rem_u:before { n++; }", &["n   8"]);
    check("report var n: u64; wasm:func:entry { n++; } wasm:func:exit { n = n + 100; }", &["n   303"]);
    check("report var n: u64; wasm:opcode:*:before / fid == 1 / { n++; }", &["n   14"]);
}

#[test]
fn branches_by_site() {
    check(
        "wasm:opcode:*if:before { report var yes: u32; report var total: u32;\n\
         yes = yes + (taken as u32); total++; }",
        &["yes wasm:opcode:br_if:before 0 2", "total wasm:opcode:br_if:before 0 5"],
    );
}

#[test]
fn operands_locals_and_memory() {
    check("report var sum: u32; wasm:opcode:i32.rem_u:before { sum = sum + arg0; }", &["sum   630"]);
    check("report var sum: i32; wasm:func:entry(local1: i32) { sum = sum + local1; }", &["sum   462"]);
    check(
        "report var first: u32; report var bytes: u32;\n\
         wasm:opcode:*load*|*store*:before { if (first == 0) { first = effective_addr; } bytes = bytes + data_size; }",
        &["first   12", "bytes   9"],
    );
    check("report var n: i32; wasm:opcode:i32.rem_u:before / fid == 1 || arg0 == 21 / { n++; }", &["n   1"]);
}

#[test]
fn calls_by_target() {
    let report =
        report("report var calls: map<(u32, u32), u32>; wasm:opcode:call:before { calls[(fid, imm0)]++; }");
    assert!(report.ends_with("calls,\"map<(u32, u32), u32>\",,,,\"(1, 0)\",2\n"), "{report}");
}
