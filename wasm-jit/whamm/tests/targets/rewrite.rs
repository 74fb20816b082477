//! Rewritten programs: run by another engine, they print the same report as when they are observed
//! in place.

use std::sync::{Arc, Mutex};

use wasm_jit::wasmparser::{Operator, Parser, Payload};
use wasm_jit::{Caller, Engine, Error, Linker, Module, Store};
use wasm_jit_whamm::lang;
use wasm_jit_whamm::monitor_module::MonitorModule;
use wasm_jit_whamm::rewrite::{RewriteError, has_start, instrument, instrument_entry};

use crate::printing::written_bytes;

/// The error by which the program exits.
#[derive(Debug, thiserror::Error)]
#[error("exit {0}")]
struct Exit(i32);

impl wasmi::errors::HostError for Exit {}

/// What a program has printed, by descriptor, its exit code, and the sum of its first page.
pub(super) type Outcome = (String, String, Option<i32>, u64);

/// A sum that depends on the order.
fn sum(page: &[u8]) -> u64 {
    page[..1 << 16].iter().fold(0, |sum, byte| u64::rotate_left(sum, 5) ^ u64::from(*byte))
}

#[derive(Default)]
struct Printed([Vec<u8>; 2]);

impl Printed {
    fn outcome(self, code: Option<i32>, sum: u64) -> Outcome {
        let [out, err] = self.0.map(|bytes| String::from_utf8(bytes).unwrap());
        (out, err, code, sum)
    }
}

/// Runs `_start` in wasmi; the exported memory is the program's, or not.
pub(super) fn in_wasmi(binary: &[u8], has_memory: bool) -> Outcome {
    let engine = wasmi::Engine::default();
    let module = wasmi::Module::new(&engine, binary).unwrap();
    let mut linker = wasmi::Linker::new(&engine);
    let write =
        |mut caller: wasmi::Caller<'_, Printed>, descriptor: i32, vectors: i32, count: i32, written: i32| {
            assert_eq!(count, 1);
            let memory = caller.get_export("memory").and_then(wasmi::Extern::into_memory).unwrap();
            let word = |at: i32| {
                let mut word = [0; 4];
                memory.read(&caller, at as u32 as usize, &mut word).unwrap();
                u32::from_le_bytes(word)
            };
            let mut bytes = vec![0; word(vectors + 4) as usize];
            memory.read(&caller, word(vectors) as usize, &mut bytes).unwrap();
            memory.write(&mut caller, written as u32 as usize, &(bytes.len() as u32).to_le_bytes()).unwrap();
            caller.data_mut().0[descriptor as usize - 1].extend(bytes);
            0_i32
        };
    linker.func_wrap("wasi_snapshot_preview1", "fd_write", write).unwrap();
    let exit = |code: i32| -> Result<(), wasmi::Error> { Err(wasmi::Error::host(Exit(code))) };
    linker.func_wrap("wasi_snapshot_preview1", "proc_exit", exit).unwrap();
    let mut store = wasmi::Store::new(&engine, Printed::default());
    let instance = linker.instantiate_and_start(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&store, "_start").unwrap();
    let code = start.call(&mut store, ()).err().map(|error| match error.downcast_ref::<Exit>() {
        Some(exit) => exit.0,
        None => -1,
    });
    let memory = instance.get_memory(&store, "memory").filter(|_| has_memory);
    let sum = memory.map_or(0, |memory| sum(memory.data(&store)));
    std::mem::take(store.data_mut()).outcome(code, sum)
}

/// Runs `_start` here, in place. What the monitor prints counts as standard error.
fn in_place(monitor: &[u8], program: &str) -> Outcome {
    let engine = Engine::default();
    let printed: Arc<Mutex<Printed>> = Arc::default();
    let write = |to: Option<usize>| {
        let printed = printed.clone();
        move |mut caller: Caller<'_, ()>, descriptor: i32, vectors: i32, _: i32, written: i32| {
            let Some(all) = written_bytes(&mut caller, vectors, written) else { return 8 };
            printed.lock().unwrap().0[to.unwrap_or(descriptor as usize - 1)].extend(all);
            0
        }
    };
    let mut of_monitor: Linker<()> = Linker::new(&engine);
    of_monitor.func_wrap("wasi_snapshot_preview1", "fd_write", write(Some(1))).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.func_wrap("wasi_snapshot_preview1", "fd_write", write(None)).unwrap();
    let exit = |code: i32| -> Result<(), Error> { Err(Error::Host(Box::new(Exit(code)))) };
    linker.func_wrap("wasi_snapshot_preview1", "proc_exit", exit).unwrap();
    let monitor = MonitorModule::new(Module::from_binary(&engine, monitor).unwrap(), Vec::new()).unwrap();
    let module = Module::new(&engine, program).unwrap();
    let mut store = Store::new(&engine, ());
    let mut attached = monitor.attach(&mut store, &mut of_monitor, &module).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
    let code = start.call(&mut store, ()).err().map(|error| match &error {
        Error::Host(error) => error.downcast_ref::<Exit>().map_or(-1, |exit| exit.0),
        _ => -1,
    });
    attached.finish(&mut store).unwrap();
    let memory = instance.get_memory(&store, "memory");
    let sum = memory.map_or(0, |memory| sum(memory.data(&store)));
    drop((attached, store, instance, start, linker, of_monitor));
    Arc::into_inner(printed)
        .map_or_else(|| panic!("it is shared"), |all| all.into_inner().unwrap())
        .outcome(code, sum)
}

/// All values that rules can ask for, in a program with functions in a table, several results, and
/// passive data.
const SCRIPT: &str = r#"
    report var operands: map<(str, i32), u64>; report var last: u64; frame var mine: u32; report var frames: u32;
    wasm:func:entry { report var calls: u64; calls++; mine = fid + 1; }
    wasm:func:exit { report var ends: u64; ends++; if (mine == fid + 1) { frames++; } }
    wasm:opcode:*:before { report var times: u64; times++; last = (fid * 1000 + pc) as u64; }
    wasm:opcode:i32.add|i32.mul|i32.and|i32.sub|i32.lt_u(arg0: i32):before { operands[(opname, arg0)]++; }
    wasm:opcode:i64.add|i64.eq|i64.eqz(arg0: i64):before { operands[(opname, arg0 as i32)]++; }
    wasm:opcode:f64.add(arg0: f64, arg1: f64):before { operands[(opname, (arg0 * 10.0 + arg1) as i32)]++; }
    wasm:opcode:drop(arg0: i32):before { operands[(opname, arg0)]++; }
    wasm:func:entry(local0: i32) { operands[(fname, local0)]++; }
    wasm:opcode:i32.const:after { operands[("after", res0)]++; }
    wasm:opcode:call|call_indirect:after { report var returns: u64; returns++; }
    wasm:opcode:br_if|br_table|if:semantic_after { report var after: u64; after++; }
    wasm:opcode:*load*|*store*:before { operands[(opname, effective_addr as i32)]++; }
    wasm:block:end { report var blocks: u64; blocks++; }
    wasm:end { last = last + 1; }"#;

/// `WRITE` is replaced by an import or a function, `MEMORY` by the memory, `END` by the way in
/// which it ends.
const PROGRAM: &str = r#"(module
    (type $unary (func (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    WRITE
    MEMORY
    (data $hello "hello\n")
    (table 4 funcref)
    (elem (i32.const 1) $double $increment)
    (elem declare func $pair)
    (global $function (mut funcref) (ref.func $double))
    (global $started (mut i32) (i32.const 0))
    (start $initialize)
    (func $initialize (global.set $started (i32.const 41)))
    (func $double (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (func $increment (export "increment") (type $unary)
        (if (local.get 0) (then (return (i32.add (local.get 0) (i32.const 1)))))
        (i32.const 1))
    (func $pair (param i64) (result i64 f64)
        (block (br_if 1 (local.get 0) (f64.const 1.5) (i64.eqz (local.get 0))) drop drop)
        (if (i64.eq (local.get 0) (i64.const 7)) (then (return (i64.const 3) (f64.const 2.5))))
        (i64.add (local.get 0) (i64.const 1)) (f64.add (f64.const 0.25) (f64.const 4)))
    (func $tail (param i32) (result i32)
        (if (result i32) (local.get 0)
            (then (return_call $tail (i32.sub (local.get 0) (i32.const 1))))
            (else (call $increment (global.get $started)))))
    (func $print (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24))))
    (func (export "_start") (local $i i32) (local $sum i64)
        (memory.init $hello (i32.const 32) (i32.const 0) (i32.const 6))
        (i32.store (i32.const 16) (i32.const 32)) (i32.store (i32.const 20) (i32.const 6))
        ;; Parameters and an operand below a loop, and an operand that it leaves.
        (i32.const 5) (i32.const 9)
        (loop $next (param i32) (result i32)
            (drop)
            (local.set $sum (i64.add (local.get $sum) (i64.extend_i32_u
                (call_indirect (type $unary) (local.get $i) (i32.add (i32.const 1) (i32.and (local.get $i) (i32.const 1)))))))
            (call $pair (i64.extend_i32_u (local.get $i))) (drop) (drop)
            (i32.const 9)
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 12))))
        (drop) (drop)
        (i32.const 77) (loop (nop)) (drop)
        (block $a (block $b (block $c (br_table $a $b $c (i32.and (local.get $i) (i32.const 3))))))
        (i64.store (i32.const 64) (local.get $sum))
        (drop (call $tail (i32.const 5)))
        (call $print)
        END))"#;

fn program(imports_write: bool, exports_memory: bool, end: &str) -> String {
    let write = match imports_write {
        true => {
            "(import \"wasi_snapshot_preview1\" \"fd_write\" (func $write (param i32 i32 i32 i32) (result i32)))"
        }
        false => "(func $write (param i32 i32 i32 i32) (result i32) (i32.const 0))",
    };
    let memory = if exports_memory { "(memory (export \"memory\") 1)" } else { "(memory 1)" };
    PROGRAM.replace("WRITE", write).replace("MEMORY", memory).replace("END", end)
}

#[track_caller]
pub(super) fn check(script: &str, program: &str, code: Option<i32>) -> Outcome {
    let monitor = lang::compile("test.mm", script.as_bytes(), &[]).unwrap();
    let expected = in_place(&monitor, program);
    let module = Module::new(&Engine::default(), program).unwrap();
    let instrumented = instrument("test.mm", script.as_bytes(), &module).unwrap();
    let found = in_wasmi(&instrumented, module.get_export("memory").is_some());
    assert_eq!(found, expected, "{program}");
    assert_eq!(found.2, code);
    found
}

#[test]
fn another_engine_reports_what_is_observed_in_place() {
    for imports_write in [true, false] {
        for exports_memory in [true, false] {
            if imports_write && !exports_memory {
                // WASI would have no memory of the program.
                continue;
            }
            for (end, code) in [("", None), ("(call $exit (i32.const 3))", Some(3))] {
                let (out, err, ..) = check(SCRIPT, &program(imports_write, exports_memory, end), code);
                assert_eq!(out, if imports_write { "hello\n" } else { "" });
                // Not empty by mistake: of twelve calls to `$pair`, two do not reach its end.
                assert!(err.contains("\"(f64.add, 40)\",10\n"), "{err}");
                assert!(err.contains("\"(after, 77)\",1\n"), "{err}");
                assert_eq!(err.matches("name,type,event").count(), 1);
            }
        }
    }
}

/// Functions of any type can be entry points; the report is made when one returns for the first
/// time. Without an entry point, it is made when the host requests it.
#[test]
fn libraries_report_at_the_end_of_an_entry_point() {
    let program = r#"(module
        (func $add (export "add") (export "plus") (param i32 i64) (result i64 i32)
            (i64.add (local.get 1) (i64.extend_i32_s (local.get 0))) (local.get 0))
        (func (export "twice") (param i32) (result i64 i32)
            (call $add (local.get 0) (i64.const 2)) (drop) (drop) (call $add (local.get 0) (i64.const 3)))
        (memory (export "add_memory") 1))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, program).unwrap();
    let script = b"report var n: u64; wasm:func:entry { n++; }";
    assert!(!has_start(&module));
    let run = |instrumented: Vec<u8>| {
        let (linker, output) = crate::printing::printing(&engine);
        let instrumented = Module::from_binary(&engine, &instrumented).unwrap();
        assert_eq!(instrumented.get_export("add"), module.get_export("add"));
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &instrumented).unwrap();
        let mut printed = Vec::new();
        let add = |name: &str, store: &mut Store<()>| {
            let add = instance.get_typed_func::<(i32, i64), (i64, i32)>(&mut *store, name).unwrap();
            assert_eq!(add.call(&mut *store, (5, 20)).unwrap(), (25, 5));
        };
        let twice = instance.get_typed_func::<i32, (i64, i32)>(&mut store, "twice").unwrap();
        assert_eq!(twice.call(&mut store, 4).unwrap(), (7, 4));
        for step in ["plus", "add", "add", "whamm:report"] {
            match step {
                "whamm:report" => {
                    let report = instance.get_typed_func::<(), ()>(&mut store, step).unwrap();
                    report.call(&mut store, ()).unwrap();
                }
                name => add(name, &mut store),
            }
            let text = crate::printing::text(&output);
            printed.push(text.lines().last().and_then(|line| line.rsplit(',').next()?.parse::<u64>().ok()));
        }
        printed
    };
    // `twice` calls `add` twice; its callee is not the export.
    let with_entry = instrument_entry("test.mm", script, &module, "add").unwrap();
    assert_eq!(run(with_entry), [None, Some(5), Some(5), Some(5)]);
    let with_entry = instrument_entry("test.mm", script, &module, "twice").unwrap();
    assert_eq!(run(with_entry), [Some(3); 4]);
    assert_eq!(run(instrument("test.mm", script, &module).unwrap()), [None, None, None, Some(6)]);
    for missing in ["subtract", "add_memory"] {
        let error = instrument_entry("test.mm", script, &module, missing).unwrap_err();
        assert!(matches!(error, RewriteError::Entry { .. }), "{error}");
        let expected = format!("the program exports no function `{missing}`: choose one that it exports");
        assert_eq!(error.to_string(), expected);
    }
    // A `_start` is an entry point, whatever its type is.
    let program = r#"(module (func (export "_start") (param i32) (result i32) (local.get 0)))"#;
    let module = Module::new(&engine, program).unwrap();
    assert!(has_start(&module));
    let instrumented =
        Module::from_binary(&engine, &instrument("test.mm", script, &module).unwrap()).unwrap();
    let (linker, output) = crate::printing::printing(&engine);
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &instrumented).unwrap();
    let start = instance.get_typed_func::<i32, i32>(&mut store, "_start").unwrap();
    assert_eq!(start.call(&mut store, 8).unwrap(), 8);
    assert!(crate::printing::text(&output).ends_with("n,u64,,,,,1\n"));
}

/// A report that is longer than the monitor's buffer and a page of memory.
/// The calls in the own functions of a rewritten program, which come first.
fn calls(script: &str, program: &str) -> usize {
    let module = Module::new(&Engine::default(), program).unwrap();
    let rewritten = instrument("copied.mm", script.as_bytes(), &module).unwrap();
    let bodies = Parser::new(0).parse_all(&rewritten).filter_map(|payload| match payload.unwrap() {
        Payload::CodeSectionEntry(body) => Some(body),
        _ => None,
    });
    let own = module.functions().filter(|function| function.body().is_some()).count();
    let operators = bodies.take(own).flat_map(|body| body.get_operators_reader().unwrap());
    operators.filter(|operator| matches!(operator, Ok(Operator::Call { .. }))).count()
}

/// Rules that count are a part of the program's functions; others are called.
#[test]
fn short_rules_are_copied() {
    let program = r#"(module (memory (export "memory") 1) (global (mut i32) (i32.const 9))
        (func (export "_start") (local i32 f64)
            (local.set 0 (i32.const 5))
            (loop
                (if (i32.and (local.get 0) (i32.const 1))
                    (then (global.set 0 (i32.mul (local.get 0) (i32.const 3)))))
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#;
    let copied = [
        "wasm:opcode:*:before { report unshared var times: u64; times++; }",
        "wasm:opcode:if|br_if:before {
            report unshared var yes: u64; report unshared var no: u64;
            if (taken) { yes++; } else { no++; }
        }",
        "report var sum: i32; wasm:opcode:i32.sub|i32.mul:before { sum = sum + arg0 - arg1 + arg1; }
            wasm:func:exit { sum = sum + 100; }",
        "report var sum: i32; wasm:opcode:i32.const:before { sum = sum + imm0; }",
        "report var last: i32; wasm:opcode:loop|br_if(local0: i32):before { last = last + last + local0; }",
    ];
    for script in copied {
        check(script, program, None);
        assert_eq!(calls(script, program), 0, "{script}");
    }
    let called = [
        "report var last: f64; wasm:opcode:i32.sub(local1: f64):before { last = local1; }",
        "report var times: map<i32, u64>; wasm:opcode:i32.sub:before { times[arg1]++; }",
        "report var n: u64; wasm:opcode:i32.sub:before { while (n < 3) { n++; } }",
    ];
    for script in called {
        check(script, program, None);
        assert_eq!(calls(script, program), 1, "{script}");
    }
}

#[test]
fn long_reports_are_complete() {
    let script = "report var squares: map<(u64, u64), u64>;
        wasm:opcode:i32.lt_u:before { var i: u64; while (i < 3000) { squares[(i, i * i)] = i + 1; i++; } }";
    let (_, err, ..) = check(script, &program(true, true, ""), None);
    assert!(err.len() > 65_536 && err.ends_with("\"(2999, 8994001)\",3000\n"), "{}", err.len());
}

/// What cannot be rewritten is refused, with the position in the script if it is in the script.
#[test]
fn the_rest_is_refused() {
    let engine = Engine::default();
    let refused = |script: &str, program: &str| {
        let module = Module::new(&engine, program).unwrap();
        instrument("test.mm", script.as_bytes(), &module).unwrap_err()
    };
    let error = refused("report var n: u64;\nuse clock;\nwasm:func:entry { n++; }", "(module)");
    let RewriteError::Script(error) = error else { panic!("{error}") };
    assert_eq!(error.problems()[0].span, 23..28);
    let text = error.to_string();
    assert!(text.contains("test.mm:2:5") && text.contains("functions of a library"), "{text}");
    const COUNT: &str = "report var n: u64; wasm:func:entry { n++; }";
    let error = refused("report var n u64;", "(module)");
    assert!(matches!(error, RewriteError::Script(_)), "{error}");
    for (program, reason) in [
        ("(module (memory 1 1 shared))", "shares a memory"),
        ("(module (func (export \"memory\")))", "is no memory"),
        ("(module (memory (export \"memory\") i64 1))", "addresses of 64 bits"),
        ("(module (memory (export \"memory\") 1 (pagesize 1)))", "not of 64 KiB"),
        ("(module (func (export \"whamm:report\")))", "instrumented already"),
    ] {
        let error = refused(COUNT, program);
        assert!(matches!(error, RewriteError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

/// Rules that match nothing, and empty programs.
#[test]
fn small_programs_and_scripts() {
    let engine = Engine::default();
    for program in [
        "(module)",
        "(module (func))",
        "(module (memory 1))",
        "(module (import \"a\" \"b\" (func)))",
        "(module (elem declare func $f) (func $f (drop (ref.func $f))))",
    ] {
        for script in [
            "wasm:func:entry { report var n: u64; n++; }",
            "",
            "wasm:opcode:f64.nearest:before { }",
            "wasm:opcode:drop(arg0: i32):before { }",
        ] {
            let module = Module::new(&engine, program).unwrap();
            let instrumented = instrument("test.mm", script.as_bytes(), &module).unwrap();
            Module::from_binary(&engine, &instrumented).unwrap();
        }
    }
}
