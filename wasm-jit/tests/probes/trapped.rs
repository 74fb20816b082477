//! Traps that are observed before the frames are left: `Module::watch_traps`.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{Ending, Frame, GenericFn, Kind, Location, Place, ProbeSpec};
use wasm_jit::{Caller, Engine, Error, Linker, Module, Store, Trap, Val};

/// Functions that fail in a callee of `$run`, with values of all types in both frames. Each has the
/// same locals; its operands below those of the failing instruction are 1 and 2.5.
fn program(body: &str) -> String {
    format!(
        r#"(module (import "host" "fail" (func $host (param i32)))
        (type $none (func)) (table 4 funcref)
        (type $many (func (param i32 i32 i64 f32 f64 i32)))
        (elem (i32.const 2) $run) (memory 1) (tag $tag (param i32 f64))
        (func $deep (call $deep))
        (func $fails (param $a i32) (param $b i64) (param $x f32) (param $y f64) (result i32)
            (local $c i32) (local $v v128)
            (local.set $c (i32.mul (local.get $a) (i32.const 3)))
            (local.set $v (v128.const i64x2 5 6))
            (local.set $b (i64.add (local.get $b) (i64.const 1)))
            (local.set $x (f32.add (local.get $x) (f32.const 0.5)))
            (i32.const 1) (f64.const 2.5)
            {body}
            (drop)
            (i32.trunc_f64_s (local.get $y))
            (i32.trunc_f32_s (local.get $x))
            (i32.wrap_i64 (local.get $b))
            (i32x4.extract_lane 0 (local.get $v))
            (i32.add) (i32.add) (i32.add) (i32.add)
            (i32.add (i32.add (local.get $a) (local.get $c))))
        (func $run (export "run") (param $depth i32) (result i32) (local $own i32)
            (local.set $own (i32.add (local.get $depth) (i32.const 100)))
            (if (result i32) (local.get $depth)
                (then (call $run (i32.sub (local.get $depth) (i32.const 1))))
                (else (call $fails (i32.const 7) (i64.const 8) (f32.const 9) (f64.const 10))))
            (i32.add (local.get $own))))"#
    )
}

/// A report of a trap: how the program ends, the functions of the frames, the locals of the frame
/// that has failed, its operands from the bottom, and the locals of the last frame.
#[derive(Debug, Default)]
struct Seen {
    ending: String,
    functions: Vec<u32>,
    locals: Vec<String>,
    operands: Vec<String>,
    outermost: Vec<String>,
    refused: bool,
}

fn shown(value: Result<Val, wasm_jit::probes::AccessError>) -> String {
    match value {
        Ok(Val::I32(value)) => value.to_string(),
        Ok(Val::I64(value)) => value.to_string(),
        Ok(Val::F32(bits)) => format!("{:?}", f32::from_bits(bits)),
        Ok(Val::F64(bits)) => format!("{:?}", f64::from_bits(bits)),
        Ok(Val::V128(bits)) => format!("{:?}", [bits as u64, (bits >> 64) as u64]),
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("<{error}>"),
    }
}

fn look(frame: &mut Frame<'_>, ending: &Ending) -> Seen {
    let ending = match ending {
        Ending::Trap(trap) => format!("{trap:?}"),
        Ending::Exception(exception) => format!("{:?}", exception.tag),
        Ending::Error(error) => error.to_string(),
        other => format!("{other:?}"),
    };
    let functions: Vec<u32> =
        frame.locations().iter().map(|location| location.expect("in this module").function).collect();
    let locals = (0..6).map_while(|index| match frame.local(index) {
        Err(wasm_jit::probes::AccessError::NoLocal { .. }) => None,
        value => Some(shown(value)),
    });
    let locals = locals.collect();
    let operands = (0..frame.operands() as u32).rev().map(|depth| shown(frame.operand(depth))).collect();
    let outer = frame.outer(functions.len() - 1).unwrap().unwrap();
    let outermost = match functions.len() {
        1 => Vec::new(),
        _ => (0..2).map(|index| shown(outer.local(frame, index))).collect(),
    };
    let refused = frame.set_local(0, &Val::I32(0)).is_err();
    Seen { ending, functions, locals, operands, outermost, refused }
}

/// Runs a program; returns what the watcher has seen, and the error.
fn run(text: &str, probes: bool, depth: i32) -> (Vec<Seen>, Result<i32, Error>) {
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let add = seen.clone();
    let watch = module.watch_traps(move |frame, ending| {
        let found = look(frame, &ending);
        add.lock().unwrap().push(found);
    });
    let mut made = Vec::new();
    if probes {
        // A site at every instruction, as in a debugger.
        for function in module.functions().filter(|function| function.body().is_some()) {
            for instruction in function.body().unwrap().instructions() {
                let offset = (instruction.offset() - function.body().unwrap().range().start) as u32;
                let place = Place::Instruction { offset };
                let location = Location { function: function.index(), place };
                let kind = Kind::Generic(GenericFn::new(|_| Ok(())));
                // Some instructions are unreachable.
                let Ok(probe) = module.probe(ProbeSpec { location, kind }) else { continue };
                probe.activate().unwrap();
                probe.deactivate().unwrap();
                made.push(probe);
            }
        }
    }
    let mut linker: Linker<()> = Linker::new(&engine);
    let fail = |_: Caller<'_, ()>, kind: i32| -> Result<(), Error> {
        match kind {
            0 => Err(Trap::CastFailure.into()),
            _ => Err(Error::host(std::io::Error::other("failed"))),
        }
    };
    linker.func_wrap("host", "fail", fail).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let done = run.call(&mut store, depth);
    drop(watch);
    let _ = run.call(&mut store, depth);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen, done)
}

/// Checks the values where the body fails, in code without and with sites.
#[track_caller]
fn check(body: &str, ending: &str) {
    check_known(body, ending, 3);
}

/// As [`check`]; at least this many of the six locals are kept.
#[track_caller]
fn check_known(body: &str, ending: &str, least: usize) {
    for probes in [false, true] {
        let (seen, done) = run(&program(body), probes, 0);
        assert!(done.is_err(), "{body}");
        let [seen] = &seen[..] else { panic!("{body}: {seen:?}") };
        assert_eq!(seen.ending, ending, "{body}");
        assert_eq!(seen.functions, [2, 3], "{body}");
        let not_kept = "<the compiled code does not keep the value at this point>";
        let expected = ["7", "9", "9.5", "10.0", "21", "[5, 6]"];
        for (index, (found, expected)) in seen.locals.iter().zip(expected).enumerate() {
            assert!(found == expected || found == not_kept, "{body}: local {index}: {found}");
        }
        let known = seen.locals.iter().filter(|local| *local != not_kept).count();
        assert!(known >= least, "{body}: {:?}", seen.locals);
        assert!(seen.operands.len() >= 2, "{body}: {:?}", seen.operands);
        assert_eq!(seen.operands[0], "1", "{body}");
        assert_eq!(seen.operands[1], "2.5", "{body}");
        assert_eq!(seen.outermost, ["0", "100"], "{body}");
        assert!(seen.refused, "{body}");
    }
}

/// A division moves its dividend to the register that alone had the last value of a local, which it
/// stores before.
#[test]
fn locals_that_were_just_set_are_known() {
    // The uses after the hint do not count: no register keeps the local across labels.
    let text = r#"(module (import "host" "fail" (func (param i32)))
        (func (export "run") (param $n i32) (result i32) (local $x i32) (local $y i32)
            (@metadata.code.branch_hint "\00")
            (if (i32.eqz (local.get $n)) (then
                (local.set $x (i32.add (local.get $n) (i32.const 21)))
                (local.set $y (i32.add (local.get $n) (i32.const 22)))
                (drop (i32.div_u (i32.const 9) (local.get $n)))))
            (local.get $n)))"#;
    for probes in [false, true] {
        let (seen, done) = run(text, probes, 0);
        assert!(done.is_err());
        assert_eq!(seen[0].locals, ["0", "21", "22"]);
    }
}

#[test]
fn frames_are_intact_at_traps() {
    check("unreachable", "UnreachableCodeReached");
    check(
        "(drop (i32.div_s (local.get $c) (i32.sub (local.get $a) (i32.const 7))))",
        "IntegerDivisionByZero",
    );
    check("(drop (i64.rem_u (local.get $b) (i64.const 0)))", "IntegerDivisionByZero");
    check("(drop (i32.load (i32.mul (local.get $c) (i32.const 1000000))))", "MemoryOutOfBounds");
    check("(i64.store (i32.const -4) (local.get $b))", "MemoryOutOfBounds");
    check("(drop (i32.trunc_f64_s (f64.mul (local.get $y) (f64.const 1e20))))", "IntegerOverflow");
    check("(drop (i32.atomic.load (local.get $a)))", "HeapMisaligned");
}

/// The moves of the arguments follow the checks.
#[test]
fn locals_are_kept_at_traps_of_indirect_calls() {
    check_known("(call_indirect (type $none) (local.get $c))", "UndefinedElement", 6);
    check_known("(call_indirect (type $none) (i32.const 1))", "IndirectCallToNull", 6);
    check_known("(call_indirect (type $none) (i32.const 2))", "BadSignature", 6);
    let arguments = "(local.get $c) (local.get $a) (local.get $b) (local.get $x) (local.get $y)
        (i32.const 7)";
    for (index, ending) in [(5, "UndefinedElement"), (1, "IndirectCallToNull"), (2, "BadSignature")] {
        let call = format!("{arguments} (call_indirect (type $many) (i32.const {index}))");
        check_known(&call, ending, 6);
    }
}

#[test]
fn frames_are_intact_when_routines_of_the_engine_trap() {
    check("(memory.copy (i32.const 0) (i32.const -1) (local.get $c))", "MemoryOutOfBounds");
    check("(memory.fill (i32.const 65530) (i32.const 0) (local.get $c))", "MemoryOutOfBounds");
    check("(table.fill (local.get $c) (ref.null func) (i32.const 1))", "TableOutOfBounds");
}

#[test]
fn frames_are_intact_when_host_functions_trap() {
    check("(call $host (i32.const 0))", "CastFailure");
    check("(call $host (i32.const 1))", "failed");
}

#[test]
fn frames_are_intact_at_exceptions_without_handlers() {
    check("(throw $tag (local.get $a) (local.get $y))", "Some(0)");
    // One that is caught is not reported.
    let caught = "(block $caught (result i32 f64)
        (try_table (catch $tag $caught) (throw $tag (local.get $a) (local.get $y))) unreachable)
        drop drop";
    let (seen, done) = run(&program(caught), false, 0);
    assert!(seen.is_empty(), "{seen:?}");
    assert!(done.is_ok());
}

#[test]
fn a_stack_overflow_is_at_the_call() {
    let (seen, done) = run(&program("(call $deep)"), false, 0);
    assert!(matches!(done, Err(Error::Trap { trap: Trap::StackOverflow, .. })));
    let [seen] = &seen[..] else { panic!("{}", seen.len()) };
    assert_eq!(seen.ending, "StackOverflow");
    assert_eq!(seen.functions[0], 1);
    assert_eq!(seen.functions[seen.functions.len() - 2..], [2, 3]);
    assert_eq!(seen.outermost, ["0", "100"]);
}

#[test]
fn interrupts_are_not_reported() {
    let engine = Engine::default();
    let module = Module::new(&engine, r#"(module (func (export "run") (loop (br 0))))"#).unwrap();
    let _watch = module.watch_traps(|_, ending| panic!("{ending:?}"));
    let mut store = Store::new(&engine, ());
    let handle = store.interrupt_handle();
    let instance = wasm_jit::Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    handle.interrupt();
    assert!(run.call(&mut store, ()).is_err());
}

#[test]
fn watchers_may_call_functions_that_trap() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (memory 1)
            (func (export "outer") (param i32) (result i32) (i32.div_u (i32.const 1) (local.get 0)))
            (func (export "copy") (memory.copy (i32.const -1) (i32.const 0) (i32.const 1)))
            (func (export "inner") (unreachable)))"#,
    )
    .unwrap();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let add = seen.clone();
    let _watch = module.watch_traps(move |frame, ending| {
        add.lock().unwrap().push(format!("{ending:?}"));
        if !matches!(ending, Ending::Trap(Trap::UnreachableCodeReached)) {
            let instance = frame.instance();
            let mut store = frame.store::<()>().unwrap();
            let inner = instance.get_typed_func::<(), ()>(&mut store, "inner").unwrap();
            let error = inner.call(&mut store, ()).unwrap_err();
            assert_eq!(error.trap(), Some(Trap::UnreachableCodeReached));
        }
    });
    let mut store = Store::new(&engine, ());
    let instance = wasm_jit::Instance::new(&mut store, &module, &[]).unwrap();
    let outer = instance.get_typed_func::<i32, i32>(&mut store, "outer").unwrap();
    assert_eq!(outer.call(&mut store, 0).unwrap_err().trap(), Some(Trap::IntegerDivisionByZero));
    let copy = instance.get_typed_func::<(), ()>(&mut store, "copy").unwrap();
    let error = copy.call(&mut store, ()).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds));
    assert_eq!(seen.lock().unwrap().len(), 4);
    assert_eq!(outer.call(&mut store, 1).unwrap(), 1);
}
